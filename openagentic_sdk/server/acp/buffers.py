"""Keep what a person has typed and not saved: a file that is open in the editor with other text is not changed.

The editor's own file methods are used for nothing else. What goes through them passes no sandbox and no check of what the
model has seen, so tools read and write the files themselves.
"""

from __future__ import annotations

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

# Larger files are not compared, and an editor that does not say in time is not waited for.
MAX_BYTES = 4 << 20
WAIT_S = 5.0

# Asks the editor for the text of the file at an absolute path. Raises `RpcError` when it has none.
ReadBuffer = Callable[[str], Awaitable[Any]]


def unsaved_guard(read_buffer: ReadBuffer) -> HookMatcher:
    """A hook before each edit; one that cannot find out says nothing."""

    async def look(payload: dict[str, Any]) -> HookDecision | None:
        input, cwd = payload["tool_input"], str(payload["context"].get("cwd") or "/")
        path = place_of(input.get("file_path", input.get("notebook_path")), cwd)
        saved = None if path is None else await run_in_thread(partial(saved_text, path, MAX_BYTES))
        if path is None or saved is None:
            return None
        try:
            answer = await read_buffer(path)
        except RpcError:
            return None
        text = answer.get("content") if isinstance(answer, dict) else None
        # The ends of lines and a byte order mark are as the editor saves them.
        plain = [part.removeprefix("\ufeff").replace("\r\n", "\n").rstrip("\n") for part in (str(text), saved)]
        if not isinstance(text, str) or plain[0] == plain[1]:
            return None
        reason = (
            f"{on_one_line(path, 500)} is open in the person's editor with changes that are not saved: ask them to save or "
            "to undo these, then read the file and try again"
        )
        return HookDecision(block=True, block_reason=reason)

    return HookMatcher("editor", "Edit|MultiEdit|NotebookEdit|Write", look, timeout_s=WAIT_S, fail_closed=False)


def saved_text(path: str, max_bytes: int) -> str | None:
    """The text of a file as it is on the disk; None when there is no file, or one that is too long or not text."""
    try:
        found = read_snapshot(os.path.realpath(path), max_bytes)
        return None if found is None else found.data.decode()
    except (OSError, ValueError, ToolError):
        return None  # the tool will say what is wrong with it
