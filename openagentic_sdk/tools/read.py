"""The Read tool: a window of a text file with line numbers, an image or PDF as data, a notebook as cells.

A file is processed in pieces and never held as a whole, except images, PDFs and notebooks, up to their limits. A stored
output (`blob:`) is loaded as a whole.
"""

from __future__ import annotations

import base64
import codecs
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from ..errors import StorageError, StorageTimeoutError, ToolError
from ..ground.files import CHUNK_BYTES, iter_bytes, open_file, read_at_most
from ..ground.frozen import frozen
from ..ground.media import MAX_BYTES, media_type_of, part_type_of, pixels_of, why_refused
from ..ground.patterns import regex
from ..ground.threads import run_in_thread
from ..ground.words import plural
from ..kernel.tool import Blobs, Secrets, ToolContext, ToolOutput
from .base import Tool
from .files.encoding import (
    HEAD_BYTES,
    LATIN1,
    UTF8,
    Encoding,
    binary_kind,
    is_binary,
    marked_encoding,
)
from .files.notebook import notebook_lines
from .files.window import LineWindow, number_lines
from .files.workspace import ResolvedPath, check_cancelled, missing_file, permitted_path, plain_path_errors, shown_path
from .labels import LOCAL_FILES
from .schema import integer, object_schema, string

MAX_SCAN_BYTES = 256 << 20
MAX_NOTEBOOK_BYTES = 32 << 20
_BLOB = regex(r"blob:([0-9a-f]{64})\Z")


@frozen
class _ByteSource:
    """A source of bytes: its location in words, its size, its first bytes, and how to read it from the start."""

    name: str
    size: int
    head: bytes
    chunks: Callable[[], Iterator[bytes]]


@frozen
class _Scan:
    """The result of one pass over a text. `total_lines` and `sha256` are None if the pass stopped before the end."""

    window: LineWindow
    encoding: Encoding
    total_lines: int | None
    sha256: str | None


class ReadTool(Tool):
    """A tool that reads a file.

    For a text file, it returns `{"file_path", "content", "start_line", "end_line", "total_lines", "truncated", "note"}`;
    `content` has line numbers and, as JSON, at most `max_output_chars`; `note` states what was omitted and how to continue.
    `total_lines` is None if a file of more than `MAX_SCAN_BYTES` was read only as far as needed. For an image, it returns
    `{"type": "image", "media_type", "data", ...}`, for a PDF the same with the type `file`, for a notebook its cells as
    text. Folders, devices and other binary files are refused.
    """

    name = "Read"
    labels = LOCAL_FILES
    description = (
        "Read a file. Text comes with line numbers (a number and a tab before each line; they are not part of the file). "
        "Large files come in windows: use offset and limit to continue where the note says. Images and PDFs are shown as "
        "they are, notebooks as cells. Also accepts 'blob:<sha256>' for a stored output. For folders use Glob."
    )
    input_schema = object_schema(
        {
            "file_path": string("The file, absolute or relative to the working directory"),
            "offset": integer("The first line to read, counted from 1", minimum=0),
            "limit": integer("How many lines to read", minimum=1),
        },
        required=["file_path"],
    )
    effect = "read"

    def __init__(
        self,
        *,
        max_lines: int = 2_000,
        max_line_chars: int = 2_000,
        max_output_chars: int = 200_000,
        max_image_bytes: int = MAX_BYTES["image"],
    ) -> None:
        self._max_lines = max_lines
        self._max_line_chars = max_line_chars
        self._max_output_chars = max_output_chars
        self._max_image_bytes = max_image_bytes

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> ToolOutput:
        blob = _BLOB.match(input["file_path"])
        if blob:
            work = partial(self._read_blob, blob[1], input, ctx)
        else:
            path = await permitted_path(input["file_path"], ctx, write=False)
            work = partial(self._read_file, path, input, ctx)
        return await run_in_thread(work, ctx.cancelled, keep=True)

    def _read_file(self, path: ResolvedPath, input: Mapping[str, Any], ctx: ToolContext) -> ToolOutput:
        try:
            with plain_path_errors(path, ctx.cwd), open_file(path.real) as fd:

                def chunks() -> Iterator[bytes]:
                    os.lseek(fd, 0, os.SEEK_SET)
                    return iter_bytes(fd)

                name = shown_path(path.lexical, ctx.cwd)
                source = _ByteSource(name, os.fstat(fd).st_size, os.pread(fd, HEAD_BYTES, 0), chunks)
                output, sha256 = self._read_source(source, input, ctx)
        except FileNotFoundError:
            raise missing_file(path, ctx.cwd) from None
        return ToolOutput(output, {"files": {path.real: sha256}} if sha256 else None)

    def _read_blob(self, sha256: str, input: Mapping[str, Any], ctx: ToolContext) -> ToolOutput:
        try:
            data = ctx.services.get(Blobs).read(sha256)
        except StorageTimeoutError:
            raise
        except StorageError as error:  # the model may name any digest: that must not end the run like a failing store
            raise ToolError(f"{error}: give the blob that a result of this session names") from None

        def chunks() -> Iterator[bytes]:
            return (data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES))

        source = _ByteSource(f"blob:{sha256}", len(data), data[:HEAD_BYTES], chunks)
        return ToolOutput(self._read_source(source, input, ctx)[0])

    def _read_source(
        self, source: _ByteSource, input: Mapping[str, Any], ctx: ToolContext
    ) -> tuple[dict[str, Any], str | None]:
        media_type = media_type_of(source.head) or ""
        if media_type.startswith("image/") or media_type == "application/pdf":
            return self._read_media(source, media_type)
        if is_binary(source.head):
            raise ToolError(
                f"{source.name} is {binary_kind(source.head)} ({plural(source.size, 'byte')}), not text: "
                "use a program that understands it"
            )
        scan = self._scan(source, input, ctx)
        if source.name.endswith(".ipynb"):
            # Show the cells as text; a notebook that is too large or not JSON is shown as a plain text file.
            data = read_at_most(source.chunks(), MAX_NOTEBOOK_BYTES)
            lines = None if data is None else notebook_lines(data)
            if lines is None:
                return self._describe(source.name, scan), scan.sha256
            window = self._window(input, ctx)
            for line in lines:
                window.feed(line + "\n")
            cells = _Scan(window, scan.encoding, window.finish(), scan.sha256)
            output = self._describe(source.name, cells)
            output["note"] += "; cells of a notebook, whose line numbers differ from those of the file"
            return output, scan.sha256
        return self._describe(source.name, scan), scan.sha256

    def _window(self, input: Mapping[str, Any], ctx: ToolContext) -> LineWindow:
        return LineWindow(
            max(1, int(input.get("offset") or 1)),
            int(input.get("limit") or self._max_lines),
            self._max_line_chars,
            self._max_output_chars,
            ctx.services.get(Secrets).redact,
        )

    def _scan(self, source: _ByteSource, input: Mapping[str, Any], ctx: ToolContext) -> _Scan:
        try:
            return self._scan_as(source, marked_encoding(source.head) or UTF8, self._window(input, ctx), ctx)
        except UnicodeDecodeError:
            # Every sequence of bytes is text in Latin-1, so this attempt cannot fail.
            return self._scan_as(source, LATIN1, self._window(input, ctx), ctx)

    def _scan_as(self, source: _ByteSource, encoding: Encoding, window: LineWindow, ctx: ToolContext) -> _Scan:
        digest = hashlib.sha256()
        decoder = codecs.getincrementaldecoder(encoding.codec)()
        bytes_read = 0
        skip = len(encoding.bom)
        for chunk in source.chunks():
            check_cancelled(ctx)
            # The digest covers the whole file, even if only a window is shown: Edit uses it to detect a changed file.
            digest.update(chunk)
            bytes_read += len(chunk)
            window.feed(decoder.decode(chunk[skip:]))
            skip = 0
            # The size may be that of a file that grows, or 0 in /proc: what was read counts as well.
            if window.closed and max(bytes_read, source.size) > MAX_SCAN_BYTES:
                return _Scan(window, encoding, None, None)
        window.feed(decoder.decode(b"", True))
        return _Scan(window, encoding, window.finish(), digest.hexdigest())

    def _describe(self, name: str, scan: _Scan) -> dict[str, Any]:
        window, total = scan.window, scan.total_lines
        notes = [_position(window, total)]
        if window.cut_lines:
            notes.append(f"{plural(window.cut_lines, 'line')} cut at {self._max_line_chars:,} characters")
        if scan.encoding.note:
            notes.append(scan.encoding.note)
        return {
            "file_path": name,
            "content": number_lines(window.lines, window.first),
            "start_line": window.first if window.lines else 0,
            "end_line": window.last if window.lines else 0,
            "total_lines": total,
            "truncated": bool(window.cut_lines) or total is None or window.last < total or window.first > 1,
            "note": "; ".join(notes),
        }

    def _read_media(self, source: _ByteSource, media_type: str) -> tuple[dict[str, Any], str | None]:
        """Encode an image or PDF for the model. Raises `ToolError` if it exceeds the vendors' limits."""
        kind = part_type_of(media_type)
        noun, limit = ("an image", self._max_image_bytes) if kind == "image" else ("a PDF document", MAX_BYTES[kind])
        data = read_at_most(source.chunks(), limit)
        if data is None:
            raise ToolError(
                f"{source.name} is {noun} of {source.size:,} bytes, more than the {limit:,} that can be shown: "
                "make a smaller copy and read that"
            )
        refusal = why_refused(kind, data)
        if refusal:
            raise ToolError(f"{source.name} is {noun} that cannot be shown: {refusal}")
        pixels = pixels_of(data)
        output = {
            "type": kind,
            "media_type": media_type,
            "data": base64.b64encode(data).decode("ascii"),
            "file_path": source.name,
            "bytes": len(data),
            **({"width": pixels[0], "height": pixels[1]} if pixels else {}),
        }
        return output, hashlib.sha256(data).hexdigest()


def _position(window: LineWindow, total: int | None) -> str:
    """The position of the window in the file, and how to continue."""
    if total == 0:
        return "the file is empty"
    if total is not None and window.first > total:
        return f"offset {window.first} is past the end: the file has {plural(total, 'line')}"
    if window.last == total:
        return f"end of file, {plural(total, 'line')}"
    whole = f"{total:,}" if total is not None else "an unknown number (the file is large)"
    return f"lines {window.first}-{window.last} of {whole}; go on with offset={window.last + 1}"
