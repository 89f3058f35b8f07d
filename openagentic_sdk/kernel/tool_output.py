"""Make a tool's output storable and small enough for the log.

A value that JSON cannot express becomes a string that explains this. An output above `blob_bytes` is stored in a blob beside
the log first; the model then sees its beginning and end, and how to read the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import InvalidEventError, ToolError
from ..events import ToolResult
from ..ground.words import shortened
from ..serialization import dumps_field, dumps_json, loads_json
from .agent import Run
from .part import Part
from .recorder import ask_store
from .tool import BareTool, ToolOutput

# The number of characters that remain of a long output or traceback: its beginning and its end.
SHOWN_CHARS = 8_000


def plain_value(value: Any) -> Any:
    """Convert a value from a tool or hook to plain JSON values, or to text, so that no code of its classes runs later."""
    # Exactly these types: a subclass may bring code of its own.
    if value is None or type(value) in (str, bool):
        return value
    try:
        # Through JSON and back: only plain types are left, and whatever the log would refuse fails here.
        return loads_json(dumps_field(value))
    except InvalidEventError as error:
        try:
            text = repr(value)
        except BaseException as silent:  # noqa: BLE001 - any object's repr may raise, even SystemExit
            text = f"a {type(value).__name__}, whose repr raises {type(silent).__name__}"
        return f"the tool's output is not a JSON value ({error}); as text: {text}"


def plain_output(output: Any, tool: BareTool) -> ToolOutput:
    """A tool's output with all its fields converted to plain JSON values.

    Raises `ToolError` for attachments and metadata that cannot be converted.
    """
    output = output if isinstance(output, ToolOutput) else ToolOutput(output)
    attachments = plain_value([dict(part) for part in output.attachments]) if output.attachments else []
    meta = output.meta and plain_value(tool.json_value(output.meta))
    for name, value, kind in (("attachments", attachments, list), ("meta", meta or {}, dict)):
        if not isinstance(value, kind):
            raise ToolError(
                f"the call ran, but its output's {name} must be JSON values, not {shortened(str(value), 500)}"
            )
    return ToolOutput(plain_value(tool.json_value(output.output)), meta, output.is_error, attachments)


def has_more_text(value: object, limit: int) -> bool:
    """Whether the strings of a JSON value have more than `limit` characters; each other value counts as one."""
    waiting, size = [value], 0
    while waiting and size <= limit:
        item = waiting.pop()
        size += len(item) if isinstance(item, str) else 1
        if isinstance(item, Mapping | list | tuple):
            waiting += item.values() if isinstance(item, Mapping) else item
    return size > limit


async def shrink_output(run: Run, result: ToolResult) -> ToolResult:
    """Return the result with long outputs, error messages and tracebacks cut in the middle; a long output goes to a blob."""
    trace = (result.meta or {}).get("traceback")
    if isinstance(trace, str) and len(trace) > SHOWN_CHARS:
        result = replace(result, meta={**(result.meta or {}), "traceback": _ends_of(trace, SHOWN_CHARS // 4)})
    message = result.error_message
    if message is not None and len(message) > run.agent.blob_bytes:
        result = replace(result, error_message=_ends_of(message, SHOWN_CHARS * 3 // 4))
    output = result.output
    # For a long text, its length suffices: its JSON is longer still, and encoding it would block the event loop.
    size = len(output) if isinstance(output, str) else len(dumps_json(output))
    if size <= run.agent.blob_bytes:
        return result
    # On many lines, because the model reads it page by page.
    text = result.output if isinstance(result.output, str) else json.dumps(result.output, ensure_ascii=False, indent=1)
    data = text.encode("utf-8", "surrogatepass")
    sha256 = await put_blob(run, data)
    note = (
        f'{len(data)} bytes are too many to show. Read {{"file_path": "blob:{sha256}", "offset": ..., "limit": ...}} '
        "gives any part of it."
    )
    head, tail = text[: SHOWN_CHARS * 3 // 4], text[-SHOWN_CHARS // 4 :]
    excerpt = {"truncated": True, "bytes": len(data), "head": head, "tail": tail, "blob": sha256, "note": note}
    return replace(result, output=excerpt)


def _ends_of(text: str, head_chars: int) -> str:
    return f"{text[:head_chars]}\n... {len(text)} characters ...\n{text[head_chars - SHOWN_CHARS :]}"


async def store_result(run: Run, result: ToolResult) -> ToolResult:
    """Let the parts prepare a result for the log, and return it."""
    for part in run.parts.at(Part.store_result):
        result = await part.store_result(result)
    return result


async def put_blob(run: Run, data: bytes) -> str:
    """Store bytes beside the log and return their digest; a cancellation waits until they are stored."""
    sha256, cancelled = await ask_store(partial(run.agent.store.put_blob, run.session_id, data), run.lifetime.patience)
    if cancelled is not None:
        raise cancelled
    return str(sha256)
