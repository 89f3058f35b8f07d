"""Convert the output of a command to text: any bytes in, a limited number of bytes of UTF-8 out.

Head and tail are joined without a mark, because any mark between them could be mistaken for output: where and how much was
cut is reported elsewhere in the result.
"""

from __future__ import annotations

import atexit
import codecs
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...ground.disk import SystemDisk, remove_tree, write_durably
from ...ground.frozen import frozen
from ...ground.text import CUT_MARGIN, Redact, safe_cut
from ...kernel.tool import Secrets, ToolContext

_CONTINUATION = range(0x80, 0xC0)
_PIECE_BYTES = 1 << 20
# A command that prints without end fills its file up to the limit, and masking takes 0.1 s of processor time for each MB.
MAX_MASKED_BYTES = 64 << 20


@frozen
class KeptText:
    """The text of one stream; `omitted_bytes` is 0 if it is complete."""

    text: str
    total_bytes: int
    omitted_bytes: int

    @property
    def is_truncated(self) -> bool:
        return self.omitted_bytes > 0


def keep_text(head: bytes, tail: bytes, total_bytes: int, max_bytes: int, redact: Redact | None = None) -> KeptText:
    """The text of a stream that began with `head` and ended with `tail`; its UTF-8 form has at most `max_bytes` bytes.

    Invalid UTF-8 becomes U+FFFD. A cut is moved to a line's end if one is near. With `redact` the text is masked before it
    is cut: `head` and `tail` then contain `CUT_MARGIN` bytes more than are shown, if available.
    """
    mask = redact or str
    if not tail and len(head) == total_bytes:
        text = mask(head.decode("utf-8", "replace"))
        if _size(text) <= max_bytes:
            return KeptText(text, total_bytes, 0)
    first_limit = max_bytes - max_bytes // 2
    start = trim_incomplete(head).decode("utf-8", "replace")
    whole, skipped = tail or head, 0
    # The rest of a character that the cut has divided: at most three bytes; any more of them are invalid, and shown as such.
    while skipped < min(3, len(whole)) and whole[skipped] in _CONTINUATION:
        skipped += 1
    end = whole[skipped:].decode("utf-8", "replace")
    first = start[: safe_cut(start, len(_fitting_start(start, first_limit)), redact)]
    last = end[safe_cut(end, len(end) - len(_fitting_end(end, max_bytes // 2)), redact, forward=True) :]
    first_shown, last_shown = mask(first), mask(last)
    if _size(first_shown) + _size(last_shown) > max_bytes:  # a mask may be longer than the secret
        first_shown = _fitting_start(first_shown, first_limit)
        last_shown = _fitting_end(last_shown, max_bytes // 2)
    # Never 0 here: something was cut, even if replaced bytes made the text as long as the stream.
    omitted_bytes = max(1, total_bytes - _size(first) - _size(last))
    return KeptText(first_shown + last_shown, total_bytes, omitted_bytes)


def trim_incomplete(data: bytes) -> bytes:
    """`data` without an incomplete UTF-8 character at its end."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte in _CONTINUATION:
            continue
        width = 2 if byte >= 0xC0 else 1
        width = 3 if byte >= 0xE0 else width
        width = 4 if byte >= 0xF0 else width
        return data[:-back] if width > back else data
    return data


def _fitting_start(text: str, max_bytes: int) -> str:
    """The first characters, up to a line's end if one is in their second half."""
    text = text.encode("utf-8")[:max_bytes].decode("utf-8", "ignore")
    end = text.rfind("\n") + 1
    return text[:end] if end > len(text) // 2 else text


def _fitting_end(text: str, max_bytes: int) -> str:
    """The last characters, from a line's start on if one is in their first half."""
    encoded = text.encode("utf-8")
    text = encoded[max(0, len(encoded) - max_bytes) :].decode("utf-8", "ignore")
    start = text.find("\n") + 1
    return text[start:] if 0 < start <= len(text) // 2 else text


def _size(text: str) -> int:
    return len(text.encode("utf-8"))


# --- files for the whole output ---------------------------------------------------------------------------------------

_lock = threading.Lock()
_temporary_dirs: dict[int, str] = {}


def output_paths(tool_use_id: str | None) -> tuple[str, str]:
    """Unused names for the files of a call's standard output and error.

    A command's output is written there unchanged, in a folder that is removed with this process; `keep_output` stores it.
    """
    # The id comes from a model's provider: do not trust it as part of a file name.
    name = re.sub(r"[^A-Za-z0-9_-]", "_", tool_use_id or "command")[:64]
    base = os.path.join(_temporary_dir(), f"{name}-{os.urandom(4).hex()}")
    return f"{base}.stdout.txt", f"{base}.stderr.txt"


def keep_output(path: str, ctx: ToolContext, *, is_over: bool) -> str | None:
    """Move a command's output, masked, to its session's folder, and return its path; None if it cannot be kept.

    At most `MAX_MASKED_BYTES` are masked and moved.

    Without a session the output stays in this process's folder, and without masking in the file itself. Once the command
    `is_over`, nothing writes that file any more, and it is deleted. The command may have replaced it: no link is followed. A
    cancelled call keeps nothing.
    """
    session_dir, redact = ctx.session_dir, ctx.services.get(Secrets).redact
    try:
        # Not blocking, because the command may have put a named pipe here, on which opening would wait for a writer.
        source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if session_dir is None and redact is None:
                return path
            folder = os.path.join(os.path.abspath(session_dir or os.path.dirname(path)), "outputs")
            os.makedirs(folder, 0o700, exist_ok=True)
            target = os.path.join(folder, os.path.basename(path))
            pieces = _pieces(source, ctx.cancelled, MAX_MASKED_BYTES if redact else sys.maxsize)
            write_durably(SystemDisk(), Path(target), _masked(pieces, redact) if redact else pieces, sync=False)
        finally:
            os.close(source)
        if is_over:
            os.unlink(path)
    except OSError:  # deleted by the command, or the disk is full: reporting how it ended matters more
        return None
    return target


def kept_part(total_bytes: int, ctx: ToolContext) -> str:
    """The amount of an output that `keep_output` keeps, in words."""
    is_whole = total_bytes <= MAX_MASKED_BYTES or ctx.services.get(Secrets).redact is None
    return "all of it is" if is_whole else f"its first {MAX_MASKED_BYTES:,} bytes are"


def _pieces(source: int, cancelled: threading.Event, max_bytes: int) -> Iterator[bytes]:
    while piece := os.read(source, min(_PIECE_BYTES, max_bytes)):
        if cancelled.is_set():
            raise InterruptedError
        max_bytes -= len(piece)
        yield piece


def _masked(pieces: Iterable[bytes], redact: Redact) -> Iterator[bytes]:
    decoder, text = codecs.getincrementaldecoder("utf-8")("replace"), ""
    for piece in pieces:
        text += decoder.decode(piece)
        end = safe_cut(text, len(text) - CUT_MARGIN, redact) if len(text) > CUT_MARGIN else 0
        yield redact(text[:end]).encode("utf-8", "replace")
        text = text[end:]
    yield redact(text + decoder.decode(b"", True)).encode("utf-8", "replace")


def _temporary_dir() -> str:
    pid = os.getpid()
    with _lock:
        if not os.path.isdir(_temporary_dirs.get(pid, "")):  # a command may have deleted all temporary files
            import tempfile

            if pid not in _temporary_dirs:
                atexit.register(_remove_temporary_dir, pid)
            _temporary_dirs[pid] = tempfile.mkdtemp(prefix="openagentic-")
        return _temporary_dirs[pid]


def _remove_temporary_dir(owner_pid: int) -> None:
    # A forked child inherits the registration, and its parent still needs the folder.
    if owner_pid == os.getpid():
        remove_tree(_temporary_dirs.pop(owner_pid))
