"""Pin a server's tools to their definitions at first use, so that none is replaced unnoticed.

A new tool, or one whose name, descriptions, schemas or annotations have changed, is not offered until a person has seen the
difference and agreed. A tool that the server no longer lists is simply not offered.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ....errors import StorageError
from ....ground.disk import may_exist
from ....ground.frozen import frozen
from ....ground.loose import as_mapping
from ....ground.text import visible
from ....sessions.request import canonical_json
from ...project.private_json import KeptFile
from ..definitions import PINNED, tool_digest

# For a larger definition, only the digest is stored, so a change is shown without the previous text.
_MAX_TOOL_BYTES = 16 * 1024
_MAX_KEPT_BYTES = 2 * 1024 * 1024


@frozen
class ToolChange:
    """A tool that is new or changed since the agreement. `lines` is the difference, safe to display."""

    name: str
    is_new: bool
    lines: tuple[str, ...] = ()


class Pins:
    """The tool definitions of one server that a person agreed to. `folder` None means that nothing can be stored."""

    def __init__(self, folder: str | os.PathLike[str] | None, root: str, name: str) -> None:
        digest = hashlib.sha256(f"{root}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
        self._file = None if folder is None else KeptFile(os.path.join(folder, f"{digest}.json"), "tools")

    def judge(
        self, server: str, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[Sequence[Mapping[str, Any]], Sequence[tuple[str, str]]]:
        """Return the tools that may be offered (at first use, all), and the names of the others with the reason.

        If nothing can be stored, every use is the first one; a damaged file withholds all tools.
        """
        if self._file is None:
            return tools, ()
        try:
            pins = self._file.read() or self._pin_first(self._file, tools)
        except StorageError as error:
            # A file that exists may withhold tools, so if it cannot be read, none may be offered.
            if may_exist(self._file.path):
                return (), [(name_of(tool), f"the approved tools are unknown: {error}") for tool in tools]
            return tools, ()
        advice = f"`openagentic-sdk mcp trust {server}` shows and approves it"
        offered_tools: list[Mapping[str, Any]] = []
        refusals: list[tuple[str, str]] = []
        for tool in tools:
            pin = as_mapping(pins.get(name_of(tool)))
            # A definition without a digest never matches, not even a stored None.
            if pin and pin.get("sha256") == (_digest(tool) or ""):
                offered_tools.append(tool)
            else:
                why = "it changed since it was approved" if pin else "it is new since this server's tools were approved"
                refusals.append((name_of(tool), f"{why}: {advice}"))
        return offered_tools, refusals

    def changes(self, tools: Iterable[Mapping[str, Any]]) -> list[ToolChange]:
        """Find the tools that are new or changed since the agreement, with the difference. Raises `StorageError`."""
        pins = {} if self._file is None else self._file.read()
        changes: list[ToolChange] = []
        for tool in tools:
            pin = as_mapping(pins.get(name_of(tool)))
            if pin.get("sha256") == _digest(tool):
                continue
            before = _lines(pin["definition"]) if "definition" in pin else []
            diff = difflib.unified_diff(before, _lines(_pinned(tool)), n=0, lineterm="")
            lines = [visible(line) for line in diff if not line.startswith(("---", "+++", "@@"))]
            changes.append(ToolChange(name_of(tool), not pin, tuple(lines)))
        return changes

    def agree(self, tools: Iterable[Mapping[str, Any]]) -> None:
        """Store the agreement to exactly these tools, if there is a folder. Raises `StorageError`."""
        if self._file is None:
            return
        with self._file.changing() as pins:
            pins.clear()
            pins.update(_entries(tools))

    def _pin_first(self, file: KeptFile, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Store these tools, unless another process stored some first; return those that are stored."""
        with file.changing() as pins:
            if not pins:
                pins.update(_entries(tools))
            return pins

    def forget(self) -> None:
        """Forget the pinned tools, so that the next use counts as the first. Raises `StorageError`."""
        self.agree(())


def _entries(tools: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    room = _MAX_KEPT_BYTES
    entries: dict[str, Any] = {}
    for tool in tools:
        definition, digest = _pinned(tool), _digest(tool)
        size = len(canonical_json(definition)) if digest is not None else _MAX_TOOL_BYTES + 1
        is_kept = size <= min(room, _MAX_TOOL_BYTES)
        room -= size if is_kept else 0
        # The first of two tools with one name counts, as it does when they are offered.
        entries.setdefault(name_of(tool), {"sha256": digest, **({"definition": definition} if is_kept else {})})
    return entries


def name_of(tool: Mapping[str, Any]) -> str:
    """The server's name for a tool, as text."""
    return str(tool.get("name"))


def _pinned(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tool[key] for key in PINNED if key in tool}


def _digest(tool: Mapping[str, Any]) -> str | None:
    """The digest of a definition; None if it is nested too deeply, and then the tool is not offered."""
    try:
        return tool_digest(tool)
    except (ValueError, RecursionError):
        return None


def _lines(definition: Mapping[str, Any]) -> list[str]:
    """A definition for people: strings line by line, the rest as JSON."""
    lines: list[str] = []
    for key in PINNED:
        value = definition.get(key)
        texts = value.split("\n") if isinstance(value, str) else json.dumps(value, indent=1, sort_keys=True).split("\n")
        lines += [f"{key}: {text}" for text in texts if value is not None]
    return lines
