"""The Write tool: create or replace a whole file in one step, but not a file that changed after the model saw it.

Its effect class is `unsafe`, with a `reconcile` that inspects the file: after a crash the file itself shows whether the
call was carried out, and a blind repetition could undo what somebody wrote in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ToolError
from ..events import ToolUse
from ..ground.files import change_lock, digest_bytes, digest_file, file_status, replace_file
from ..ground.threads import run_in_thread
from ..kernel.tool import ToolContext, ToolOutput
from .base import Tool
from .files.copies import keep_files
from .files.workspace import (
    ResolvedPath,
    observed_digest,
    permitted_path,
    plain_path_errors,
    refuse_if_stale,
    resolve_path,
    shown_path,
)
from .labels import LOCAL_FILES
from .schema import boolean, object_schema, string


class WriteTool(Tool):
    """A tool that creates a file, or replaces one if `overwrite` is set.

    It returns `{"file_path", "bytes_written", "created", "sha256"}`, and `note` if there is something to report.
    Raises `FileExistsError` if the file exists and `overwrite` is not set, and `ToolError` if the file changed after the
    model read or wrote it.
    """

    name = "Write"
    labels = LOCAL_FILES
    description = (
        "Create a file with this content; missing folders are created. Replaces an existing file only with "
        "overwrite=true, and not when it changed since you read it. To change parts of a file use Edit."
    )
    input_schema = object_schema(
        {
            "file_path": string("The file, absolute or relative to the working directory"),
            "content": string("The whole content, written as UTF-8 exactly as given"),
            "overwrite": boolean("Replace the file when it exists (default false)"),
        },
        required=["file_path", "content"],
    )
    effect = "unsafe"

    def __init__(self, *, max_bytes: int = 64 << 20) -> None:
        self._max_bytes = max_bytes

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> ToolOutput:
        path = await permitted_path(input["file_path"], ctx, write=True)
        with plain_path_errors(path, ctx.cwd):
            return await run_in_thread(lambda: self._write(path, input, ctx), ctx.cancelled)

    def _write(self, path: ResolvedPath, input: Mapping[str, Any], ctx: ToolContext) -> ToolOutput:
        data = self._encode(input["content"])
        with change_lock(path.real):
            before = file_status(path.real)
            if before is not None and not input.get("overwrite"):
                path_text = shown_path(path.lexical, ctx.cwd)
                raise FileExistsError(
                    f"{path_text} exists: Read it and set overwrite to replace it, or use Edit to change it"
                )
            if observed_digest(path, ctx) is not None:
                refuse_if_stale(path, digest_file(path.real), ctx)
            keep_files(ctx, [path.real])
            notes = replace_file(path.real, data, before)
        return _written(path, data, ctx, created=before is None, notes=notes)

    async def reconcile(self, call: ToolUse, ctx: ToolContext) -> Any | None:
        """Determine the outcome after a crash: a file with the new content was written, one in the state that the model last
        saw was not; otherwise it is unknown (None).
        """
        path = resolve_path(call.input["file_path"], ctx.cwd)
        data = self._encode(call.input["content"])
        now = await run_in_thread(lambda: digest_file(path.real), ctx.cancelled)
        if now == digest_bytes(data):
            return _written(path, data, ctx, created=False, notes=["found in place after an interruption"])
        if now is not None and now == observed_digest(path, ctx):
            text = (
                f"interrupted before {shown_path(path.lexical, ctx.cwd)} was written; it is unchanged: repeat the call"
            )
            return ToolOutput(text, is_error=True)
        return None

    def _encode(self, content: str) -> bytes:
        try:
            data = content.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ToolError(
                f"content cannot be written as UTF-8: remove the lone surrogate at character {error.start}"
            ) from None
        if len(data) > self._max_bytes:
            raise ToolError(
                f"content has {len(data):,} bytes, more than the limit of {self._max_bytes:,}: write it in parts"
            )
        return data


def _written(path: ResolvedPath, data: bytes, ctx: ToolContext, *, created: bool, notes: list[str]) -> ToolOutput:
    sha256 = digest_bytes(data)
    output = {
        "file_path": shown_path(path.lexical, ctx.cwd),
        "bytes_written": len(data),
        "created": created,
        "sha256": sha256,
    }
    if notes:
        output["note"] = "; ".join(notes)
    return ToolOutput(output, {"files": {path.real: sha256}})
