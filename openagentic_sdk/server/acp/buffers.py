"""Keep what a person has typed and not saved: a file is changed only when the editor gives it as it is on the disk.

The editor's own file methods are used for nothing else. What goes through them passes no sandbox and no check of what the
model has seen, so tools read and write the files themselves.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ...errors import RpcError, ToolError
from ...ground.files import read_snapshot
from ...ground.text import on_one_line
from ...ground.threads import run_in_thread
from ...hooks.models import HookDecision, HookMatcher
from .calls import place_of

# How long an editor may take to give a file, and how much of the disk is compared with what it gives.
WAIT_S = 5.0
MAX_BYTES = 32 << 20

# Asks the editor for the text of the file at an absolute path. Raises `RpcError` when it gives none.
ReadBuffer = Callable[[str], Awaitable[Any]]


def unsaved_guard(read_buffer: ReadBuffer, wait_s: float = WAIT_S) -> HookMatcher:
    """A hook before each edit; it refuses the edit of a file whose text the editor does not give within `wait_s`."""

    async def look(payload: dict[str, Any]) -> HookDecision | None:
        input, cwd = payload["tool_input"], str(payload["context"].get("cwd") or "/")
        named = input.get("file_path", input.get("notebook_path"))
        path = place_of(named, cwd)
        if path is None and isinstance(named, str) and named:
            return _refused(named, "is a path by which the person's editor cannot be asked for the file")
        if path is None:  # no path at all: the tool's own refusal says more
            return None
        try:
            saved = await run_in_thread(partial(_read_saved, path, MAX_BYTES))
        except (OSError, ValueError, ToolError):
            return _refused(path, "cannot be compared with what the person's editor holds")
        try:
            async with asyncio.timeout(wait_s):
                answer = await read_buffer(path)
        except TimeoutError:
            return _refused(path, f"may hold unsaved changes: the person's editor did not give it within {wait_s:g} s")
        except RpcError as error:
            if saved is None:  # neither on the disk nor in the editor: a new file
                return None
            said = on_one_line(str(error), 200)
            return _refused(path, f"may hold unsaved changes: the person's editor did not give it ({said})")
        text = answer.get("content") if isinstance(answer, dict) else None
        if not isinstance(text, str):
            return _refused(path, "may hold unsaved changes: the person's editor gave no text for it")
        # The ends of lines and a byte order mark are as the editor saves them.
        plain = [part.removeprefix("\ufeff").replace("\r\n", "\n").rstrip("\n") for part in (text, saved or "")]
        return None if plain[0] == plain[1] else _refused(path, "is open in the person's editor with unsaved changes")

    # Its own limit ends first; a hook that fails stops the edit too.
    return HookMatcher("editor", "Edit|MultiEdit|NotebookEdit|Write", look, timeout_s=2 * wait_s + 60, fail_closed=True)


def _refused(path: str, why: str) -> HookDecision:
    way_out = "ask them to save it or to undo the changes, then read the file and try again"
    return HookDecision(block=True, block_reason=f"{on_one_line(path, 500)} {why}: {way_out}")


def saved_text(path: str, max_bytes: int) -> str | None:
    """The text of a file as it is on the disk; None when there is no file, or one that is too long or not text."""
    try:
        return _read_saved(path, max_bytes)
    except (OSError, ValueError, ToolError):
        return None  # the tool will say what is wrong with it


def _read_saved(path: str, max_bytes: int) -> str | None:
    found = read_snapshot(os.path.realpath(path), max_bytes)
    return None if found is None else found.data.decode()
