"""Protect unsaved changes: a file is edited only if its text in the editor equals the file on disk.

The editor's file methods are used only for this comparison. Access through them would bypass the sandbox and the check of
which text the model has read, so tools read and write the files themselves.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from ...errors import RpcError, ToolError
from ...ground.files import read_snapshot
from ...ground.text import on_one_line
from ...ground.threads import run_in_thread
from ...hooks.models import HookDecision, HookMatcher
from .calls import place_of

# How long an editor may take to return a file, and the maximum size of a file to be compared.
WAIT_S = 5.0
MAX_BYTES = 32 << 20
EDITS = ("Edit", "MultiEdit", "NotebookEdit", "Write")

# Requests the text of the file at an absolute path from the editor. Raises `RpcError` if the editor refuses.
ReadBuffer = Callable[[str], Awaitable[Any]]


def unsaved_guard(read_buffer: ReadBuffer, wait_s: float = WAIT_S) -> HookMatcher:
    """Create a hook that blocks an edit if the editor has unsaved changes of the file, or returns no text within `wait_s`
    seconds.
    """

    async def look(payload: dict[str, Any]) -> HookDecision | None:
        cwd = str(payload["context"].get("cwd") or "/")
        reason = await find_unsaved(read_buffer, payload["tool_input"], cwd, wait_s)
        return None if reason is None else HookDecision(block=True, block_reason=reason)

    # The timeouts inside the hook expire before this one; a failing hook blocks the edit, too.
    return HookMatcher("editor", "|".join(EDITS), look, timeout_s=2 * wait_s + 60, fail_closed=True)


async def find_unsaved(
    read_buffer: ReadBuffer, input: Mapping[str, Any], cwd: str, wait_s: float = WAIT_S
) -> str | None:
    """The reason why an edit with this input must not be made; None if the editor has no unsaved changes of its file."""
    raw_path = input.get("file_path", input.get("notebook_path"))
    path = place_of(raw_path, cwd)
    if path is None and isinstance(raw_path, str) and raw_path:
        return _refused(raw_path, "is a path that the person's editor cannot resolve")
    if path is None:  # no path at all: the tool's own error is clearer
        return None
    try:
        saved = await run_in_thread(partial(_read_saved, path, MAX_BYTES))
    except (OSError, ValueError, ToolError):
        return _refused(path, "cannot be compared with the buffer in the person's editor")
    try:
        async with asyncio.timeout(wait_s):
            answer = await read_buffer(path)
    except TimeoutError:
        return _refused(
            path, f"may hold unsaved changes, because the person's editor did not return it within {wait_s:g} s"
        )
    except RpcError as error:
        if saved is None:  # missing both on disk and in the editor: a new file
            return None
        reason = on_one_line(str(error), 200)
        return _refused(path, f"may hold unsaved changes, because the person's editor did not return it ({reason})")
    text = answer.get("content") if isinstance(answer, dict) else None
    if not isinstance(text, str):
        return _refused(path, "may hold unsaved changes, because the person's editor returned no text for it")
    # Line endings and byte order marks are the editor's choice when it saves.
    plain = [part.removeprefix("\ufeff").replace("\r\n", "\n").rstrip("\n") for part in (text, saved or "")]
    return None if plain[0] == plain[1] else _refused(path, "is open in the person's editor with unsaved changes")


def _refused(path: str, why: str) -> str:
    way_out = "ask them to save it or to undo the changes, then read the file and try again"
    return f"{on_one_line(path, 500)} {why}: {way_out}"


def saved_text(path: str, max_bytes: int) -> str | None:
    """The text of the file on disk; None if it is missing, too long, unreadable or not text."""
    try:
        return _read_saved(path, max_bytes)
    except (OSError, ValueError, ToolError):
        return None  # the tool itself will report the error


def _read_saved(path: str, max_bytes: int) -> str | None:
    snapshot = read_snapshot(os.path.realpath(path), max_bytes)
    return None if snapshot is None else snapshot.data.decode()
