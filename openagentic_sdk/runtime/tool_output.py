"""Make a tool's output storable, and small enough for the log.

A value that JSON cannot say becomes text that says so. An output above `blob_bytes` goes to a blob beside the log first; the
model then sees its beginning and end, and how to read the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from ..errors import InvalidEventError
from ..events import ToolResult
from ..serialization import dumps_json
from .agent import Run
from .recorder import ask_store

SHOWN_CHARS = 8_000


async def shrink_output(run: Run, result: ToolResult) -> ToolResult:
    """The result as it can be stored."""
    try:
        size = len(dumps_json(result.output))
    except InvalidEventError as error:
        text = f"the tool's output is no JSON value ({error}); as text: {result.output!r}"
        result, size = replace(result, output=text), len(text)
    # An image is sent whole or not at all; the tool that read it has bounded its size.
    is_image = isinstance(result.output, Mapping) and result.output.get("type") == "image"
    if size <= run.agent.blob_bytes or is_image:
        return result
    text = result.output if isinstance(result.output, str) else json.dumps(result.output, ensure_ascii=False, indent=1)
    data = text.encode("utf-8", "surrogatepass")
    store = run.agent.store
    sha256, cancelled = await ask_store(partial(store.put_blob, run.session_id, data), run.patience)
    if cancelled is not None:
        raise cancelled
    note = (
        f'{len(data)} bytes are too many to show. Read {{"file_path": "blob:{sha256}", "offset": ..., "limit": ...}} '
        "gives any part of it."
    )
    head, tail = text[: SHOWN_CHARS * 3 // 4], text[-SHOWN_CHARS // 4 :]
    shown = {"truncated": True, "bytes": len(data), "head": head, "tail": tail, "blob": sha256, "note": note}
    return replace(result, output=shown)
