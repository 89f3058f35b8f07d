"""A server's tools as they were when they were first used, so that none is replaced without the person's knowledge.

A tool whose name, texts, schemas or annotations have changed since, and a new tool, is not offered until a person has seen
the difference and agreed. A tool that the server no longer lists is simply gone.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ....errors import StorageError
from ....ground.frozen import frozen
from ....ground.loose import as_mapping
from ....ground.text import visible
from ....sessions.request import canonical_json
from ...project.private_json import KeptFile
from ..definitions import PINNED, tool_digest

# Of definitions beyond these sizes only the digest is kept, and a change of one is shown without the text before it.
_MAX_TOOL_BYTES = 16 * 1024
_MAX_KEPT_BYTES = 2 * 1024 * 1024


@frozen
class ToolChange:
    """A tool that is not what was agreed to: `is_new`, or changed; `lines` say how, one thing a line, safe to show."""

    name: str
    is_new: bool
    lines: tuple[str, ...] = ()


class Pins:
    """The tools of one server as they were agreed to. `folder` None is a machine on which nothing can be kept."""

    def __init__(self, folder: str | os.PathLike[str] | None, root: str, name: str) -> None:
        digest = hashlib.sha256(f"{root}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
        self._file = None if folder is None else KeptFile(os.path.join(folder, f"{digest}.json"), "tools")

    def judge(
        self, server: str, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[Sequence[Mapping[str, Any]], Sequence[tuple[str, str]]]:
        """The tools that may be offered, and the names of the others with the reason. At first use these are all.

        Where nothing can be kept every use is the first one; a file that is damaged holds all tools back.
        """
        if self._file is None:
            return tools, ()
        try:
            known = self._file.read() or self._pin_first(self._file, tools)
        except StorageError as error:
            if os.path.lexists(self._file.path):
                return (), [(name_of(tool), f"what was agreed to is not known: {error}") for tool in tools]
            return tools, ()
        advice = f"`openagentic-sdk mcp trust {server}` shows it and agrees"
        offered: list[Mapping[str, Any]] = []
        held: list[tuple[str, str]] = []
        for tool in tools:
            kept = as_mapping(known.get(name_of(tool)))
            if kept and kept.get("sha256") == (_digest(tool) or ""):
                offered.append(tool)
            else:
                why = (
                    "it changed since it was agreed to"
                    if kept
                    else "it is new since this server's tools were agreed to"
                )
                held.append((name_of(tool), f"{why}: {advice}"))
        return offered, held

    def changes(self, tools: Iterable[Mapping[str, Any]]) -> list[ToolChange]:
        """The tools that are new or were changed since they were agreed to, with the difference. Raises `StorageError`."""
        known = {} if self._file is None else self._file.read()
        found: list[ToolChange] = []
        for tool in tools:
            kept = as_mapping(known.get(name_of(tool)))
            if kept.get("sha256") == _digest(tool):
                continue
            before = _lines(kept["definition"]) if "definition" in kept else []
            diff = difflib.unified_diff(before, _lines(_pinned(tool)), n=0, lineterm="")
            lines = [visible(line) for line in diff if not line.startswith(("---", "+++", "@@"))]
            found.append(ToolChange(name_of(tool), not kept, tuple(lines)))
        return found

    def agree(self, tools: Iterable[Mapping[str, Any]]) -> None:
        """Agree to these tools, and to no others. Raises `StorageError` when that cannot be kept."""
        if self._file is None:
            return
        with self._file.changing() as known:
            known.clear()
            known.update(_entries(tools))

    def _pin_first(self, file: KeptFile, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Keep these tools, unless another process kept some first: then those hold."""
        with file.changing() as known:
            if not known:
                known.update(_entries(tools))
            return known

    def forget(self) -> None:
        """Treat the next use as the first one. Raises `StorageError`."""
        self.agree(())


def _entries(tools: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    left = _MAX_KEPT_BYTES
    entries: dict[str, Any] = {}
    for tool in tools:
        definition, digest = _pinned(tool), _digest(tool)
        size = len(canonical_json(definition)) if digest is not None else _MAX_TOOL_BYTES + 1
        is_kept = size <= min(left, _MAX_TOOL_BYTES)
        left -= size if is_kept else 0
        entries.setdefault(name_of(tool), {"sha256": digest, **({"definition": definition} if is_kept else {})})
    return entries


def name_of(tool: Mapping[str, Any]) -> str:
    """The server's own name of a tool, as text."""
    return str(tool.get("name"))


def _pinned(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tool[key] for key in PINNED if key in tool}


def _digest(tool: Mapping[str, Any]) -> str | None:
    """None for a definition that is nested too deeply to have one: it is never offered."""
    try:
        return tool_digest(tool)
    except (ValueError, RecursionError):
        return None


def _lines(definition: Mapping[str, Any]) -> list[str]:
    """A definition for people: texts line by line, the rest as JSON."""
    lines: list[str] = []
    for key in PINNED:
        value = definition.get(key)
        texts = value.split("\n") if isinstance(value, str) else json.dumps(value, indent=1, sort_keys=True).split("\n")
        lines += [f"{key}: {text}" for text in texts if value is not None]
    return lines
