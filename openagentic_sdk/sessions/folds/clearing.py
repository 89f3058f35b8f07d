"""Choose the old outputs to clear when a conversation grows too long, before any of it is summarized.

Pure. An output read long ago is the cheapest thing to lose: the call stays in view, and a note replaces the output and
names its location. Outputs likely to be needed again are kept: the newest ones, errors, and the files read last. Clearing
changes the prefix of requests, so it is done rarely and in large steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...events import ToolResult, ToolUse
from ...ground.frozen import frozen
from ..rebuild import Conversation, result_text
from .compaction import BYTES_PER_TOKEN, ContextLimits

KEPT_RESULTS = 10
KEPT_FILES = 10
# Only outputs of at least this many bytes are cleared, because the note in their place also has some bytes.
LEAST_BYTES = 1000
# Clearing is worthwhile only if it gets below the first fraction of the limit; it stops at the second.
_ENOUGH, _GOAL = 0.65, 0.5


@frozen
class OldOutput:
    """An output that may be cleared: the call's id, the text that the model read, and the digest of its blob, if any."""

    tool_use_id: str
    text: str
    blob: str | None = None


@frozen
class ClearingPlan:
    """The outputs to clear, oldest first, and the conversation's size before and after."""

    outputs: Sequence[OldOutput]
    bytes_before: int
    bytes_after: int


def outputs_in_view(conversation: Conversation) -> list[tuple[ToolUse, ToolResult]]:
    """The calls whose output the model sees, with their results, oldest first; without answers that have an open call."""
    return [
        (use, block.results[call_id])
        for block in conversation.view
        if not block.open_calls
        for call_id, use in block.calls.items()
        if call_id not in block.cleared
    ]


def plan_clearing(
    conversation: Conversation,
    limits: ContextLimits,
    *,
    bytes_per_token: float = BYTES_PER_TOKEN,
    overhead_bytes: int = 0,
) -> ClearingPlan | None:
    """Choose the outputs to clear; None without a limit, or if clearing is not enough, so that a summary is needed."""
    goal, enough = (limits.budget_bytes(share, bytes_per_token) for share in (_GOAL, _ENOUGH))
    if goal is None or enough is None:
        return None
    before = bytes_left = conversation.size_bytes()
    cleared: list[OldOutput] = []
    # The outputs that may be cleared, oldest first.
    outputs = outputs_in_view(conversation)
    last_read = [path for use, result in outputs if use.name == "Read" and (path := _path_of(use, result))]
    kept_files = list(dict.fromkeys(reversed(last_read)))[:KEPT_FILES]
    old_outputs: list[OldOutput] = []
    for use, result in reversed(outputs):
        path = _path_of(use, result)
        if path in kept_files and use.name == "Read":
            kept_files.remove(path)  # this is the last time that it was read
            continue
        text = result_text(result)
        # The model, or its vendor, reads the definitions from ToolSearch's results.
        if use.name != "ToolSearch" and not result.is_error and not result.attachments and len(text) >= LEAST_BYTES:
            blob = result.output.get("blob") if isinstance(result.output, dict) else None
            old_outputs.append(OldOutput(use.tool_use_id, text, blob if isinstance(blob, str) else None))
    newest = {use.tool_use_id for use, _ in outputs[-KEPT_RESULTS:]}
    for output in [output for output in reversed(old_outputs) if output.tool_use_id not in newest]:
        if bytes_left + overhead_bytes <= goal:
            break
        cleared.append(output)
        # 200: about the size of the note that replaces an output.
        bytes_left -= len(output.text.encode("utf-8", "surrogatepass")) - 200
    if not cleared or bytes_left + overhead_bytes > enough:
        return None
    return ClearingPlan(cleared, before, bytes_left)


def _path_of(use: ToolUse, result: ToolResult) -> str | None:
    """The first file named in the result's metadata, otherwise the one in the call's input; None if neither names one."""
    files: Any = (result.meta or {}).get("files")
    path = use.input.get("file_path")
    return next(iter(files), None) if files else path if isinstance(path, str) else None
