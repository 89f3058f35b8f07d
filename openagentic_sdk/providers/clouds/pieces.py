"""Assemble a Gemini function call that arrives in pieces, each a value and its path in the arguments.

The format: Vertex AI's reference, `FunctionCall.partialArgs`. A path is a JSON path of names and numbers
(`$.items[0].name`); a string may arrive in several pieces. A piece that fits nowhere leaves `partialArgs` in the call,
which then never runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...ground.loose import as_list, as_mapping, as_mappings, as_text
from ...ground.patterns import regex

_PATH = regex(r"\$(?:\.[^.\[\]'\"]+|\[\d{1,6}\]|\['[^']*'\]|\[\"[^\"]*\"\]){1,100}")
_STEP = regex(r"\.([^.\[\]'\"]+)|\[(\d+)\]|\['([^']*)'\]|\[\"([^\"]*)\"\]")


class CallInPieces:
    """A call that arrives in pieces; `call` is the `functionCall` so far, which contains `willContinue` until its end."""

    def __init__(self) -> None:
        self.call: dict[str, Any] = {"name": "", "args": {}, "willContinue": True}
        self._open_path: str | None = None  # of the string that continues

    def take(self, piece: Mapping[str, Any]) -> None:
        """Add a piece of the call; one without `willContinue` ends it."""
        for key in ("name", "id"):
            if text := as_text(piece.get(key)):
                self.call[key] = text
        if isinstance(whole := piece.get("args"), Mapping):
            self.call["args"].update(whole)
        for value in as_mappings(piece.get("partialArgs")):
            if not self._place(value):
                self.call["partialArgs"] = True
        if not piece.get("willContinue"):
            del self.call["willContinue"]

    def _place(self, piece: Mapping[str, Any]) -> bool:
        """Put the piece at its path; return whether it fits there."""
        path = as_text(piece.get("jsonPath"))
        kinds = [key for key in ("stringValue", "numberValue", "boolValue", "nullValue") if key in piece]
        if _PATH.fullmatch(path) is None or len(kinds) > 1:
            return False
        value = None if kinds in ([], ["nullValue"]) else piece[kinds[0]]
        goes_on, self._open_path = self._open_path == path, path if piece.get("willContinue") else None
        if not kinds:
            return goes_on or bool(piece.get("willContinue"))
        steps: list[str | int] = [
            int(step[2]) if step[2] is not None else next(one for one in step.group(1, 3, 4) if one is not None)
            for step in _STEP.finditer(path)
        ]
        return _put(self.call["args"], steps, value, appends=goes_on)


def _put(holder: Any, steps: list[str | int], value: Any, *, appends: bool) -> bool:
    """Put the value at its path, in which an index may exceed its list by one; return whether the path fits."""
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if isinstance(step, str):
            fits, there = isinstance(holder, dict), as_mapping(holder).get(step)
        else:
            fits, there = step <= len(as_list(holder)), as_list(holder)[step : step + 1]
            fits, there = fits and isinstance(holder, list), there[0] if there else None
        if not fits:
            return False
        if following is None:
            is_text = isinstance(there, str) and isinstance(value, str)
            new = there + value if appends and is_text else value
        else:
            new = there if there is not None else ({} if isinstance(following, str) else [])
        if isinstance(step, int) and step == len(holder):
            holder.append(new)
        else:
            holder[step] = new
        holder = new
    return True
