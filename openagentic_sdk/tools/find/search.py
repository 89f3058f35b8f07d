"""Find the matching lines of a file, block by block; also the program of Grep's worker process.

It imports almost nothing, because a worker starts for a single search, and depends on neither trees nor rules nor time. A
file is read in blocks that end at a line's end; only a small file, UTF-16 text, and for a multiline pattern a file of up to
`MAX_MULTILINE_BYTES`, is read as a whole.

A pattern that is not multiline is matched against one line at a time, as in grep; searching a whole block at once only
serves to find lines quickly, and a match that crosses a line's end is checked again on its line alone.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator
from typing import AnyStr

from ...ground.patterns import regex

HEAD_BYTES = 8_192
MAX_LINE_BYTES = 8 << 20
MAX_TRANSCODED_BYTES = 32 << 20
MAX_MULTILINE_BYTES = 32 << 20
MAX_FAILED_CHECKS = 64
MAX_WIDE_RANGES = 50  # Python compiles each in some 10 ms, and cannot be interrupted
FLUSH_EVERY_S = 0.005

_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# Syntax for which a match on a block differs from one on a line, in ways that a second match on the line cannot correct.
_FRAGILE = regex(r"\(\?(?![:P]|[aiLmsux]+\))|\\[AZz]|[*+?}]\+")
_ESCAPE_OR_SET = regex(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_DOUBTFUL = regex(r"(?<!\\)(?:\[|&(?=&)|\|(?=\|)|~(?=~))")
_WIDE_RANGE = regex(r"-(?:[^\x00-\x7f]|\\[uUN])")  # a range that ends beyond ASCII, as in [a-\uffff]
_SPECIAL = regex(r"[\\^$.|?*+()\[\]{}]")

Find = Callable[[int], "tuple[int, int] | None"]
LineSpan = tuple[int, int, int]  # start and end of the matching line, and start of the match in it
Hit = tuple[int, str, list[str], list[str]]  # the line's number, its text, lines before it, lines after it
SearchAnswer = tuple[str, int, list[Hit]]  # the outcome, the number of matching lines, those to show


class Query:
    """A search: its pattern, and how much to report; `max_hits` limits the hits of one file.

    Raises `re.error` or `ValueError` for a pattern that cannot be used.
    """

    def __init__(
        self,
        pattern: str,
        *,
        ignore_case: bool = False,
        multiline: bool = False,
        mode: str = "content",
        before: int = 0,
        after: int = 0,
        max_hits: int = 1_000,
        max_line_chars: int = 500,
        block_bytes: int = 1 << 20,
    ) -> None:
        pattern.encode()  # a model may write half of a surrogate pair, which no file contains: a ValueError
        if len(_WIDE_RANGE.findall(pattern)) > MAX_WIDE_RANGES:
            raise ValueError(f"it contains more than {MAX_WIDE_RANGES} ranges that end beyond ASCII")
        self.pattern, self.multiline = pattern, multiline
        self.mode, self.before, self.after = mode, before, after
        self.max_hits, self.max_line_chars = max_hits, max_line_chars
        self.block_bytes = MAX_MULTILINE_BYTES if multiline else block_bytes
        self.is_literal = not ignore_case and not _SPECIAL.search(pattern)
        self.by_line = bool(_FRAGILE.search(pattern)) and not multiline
        flags = re.MULTILINE | (re.IGNORECASE if ignore_case else 0) | (re.DOTALL if multiline else 0)
        # The pattern with a backslash before characters in sets whose meaning Python warns may change (`[[`, `&&`).
        plain = _ESCAPE_OR_SET.sub(_plain_set, pattern)
        self.text_pattern = re.compile(plain, flags)
        self.bytes_pattern = _bytes_pattern(plain, flags)


def _plain_set(match: re.Match[str]) -> str:
    text = match[0]
    return text if text[0] == "\\" else "[" + _DOUBTFUL.sub(r"\\\g<0>", text[1:])


def _bytes_pattern(pattern: str, flags: int) -> re.Pattern[bytes] | None:
    """The same pattern for ASCII-only text; None if it has no equivalent for bytes."""
    if not pattern.isascii():
        return None
    try:
        return re.compile(pattern.encode("ascii"), flags)
    except (re.error, ValueError):
        return None


def open_listed(path: str, inode: int) -> int:
    """Open the regular file that a walk listed with this inode number; return -1 if another file has replaced it."""
    fd = os.open(path, _OPEN_FLAGS)
    status = os.fstat(fd)
    if status.st_ino == inode and stat.S_ISREG(status.st_mode):
        return fd
    os.close(fd)
    return -1


def search_file(fd: int, query: Query) -> SearchAnswer:
    """Search one file; return `ok` and its hits, or `binary` or `large` for a file that was not searched."""
    size = min(os.fstat(fd).st_size, query.block_bytes) + 1
    data = os.read(fd, size)
    is_whole = len(data) < size
    if data.startswith(_UTF16_MARKS):
        while len(data) <= MAX_TRANSCODED_BYTES and (more := os.read(fd, query.block_bytes)):
            data += more
        if len(data) > MAX_TRANSCODED_BYTES:
            return "large", 0, []
        text = data.decode("utf-16", "replace")
        return _search_blocks(iter((text.encode("utf-8", "replace"),)), query)
    if data.find(b"\0", 0, HEAD_BYTES) >= 0:
        return "binary", 0, []
    if data[:3] == b"\xef\xbb\xbf":
        data = data[3:]
    if is_whole:
        return _search_blocks(iter((data,)), query)
    if query.multiline and size > MAX_MULTILINE_BYTES:
        return "large", 0, []
    return _search_blocks(_whole_lines(fd, data, query), query)


def _whole_lines(fd: int, data: bytes, query: Query) -> Iterator[bytes]:
    """Yield blocks that end at a line's end; a line of more than `MAX_LINE_BYTES` is split."""
    while more := os.read(fd, query.block_bytes):
        end = data.rfind(b"\n") + 1
        if end == 0 and len(data) > MAX_LINE_BYTES:
            end = len(data)
        if end:
            yield data[:end]
        data = data[end:] + more
    yield data


def _search_blocks(blocks: Iterator[bytes], query: Query) -> SearchAnswer:
    hits = _Hits(query)
    block = next(blocks)
    for following in blocks:
        if not hits.take(block, is_last=False):
            return "ok", hits.count, hits.shown
        block = following
    hits.take(block, is_last=True)
    return "ok", hits.count, hits.shown


class _Hits:
    """The hits in one file, collected block by block. Lines are counted only up to a hit that is shown."""

    def __init__(self, query: Query) -> None:
        self.count = 0
        self.shown: list[Hit] = []
        self._query = query
        self._line = 1  # the number of the line at which the block begins
        self._tail: list[str] = []  # the last lines of the previous block
        self._open: list[tuple[list[str], int]] = []  # lists of lines after a hit, and the number of missing ones

    def take(self, block: bytes, *, is_last: bool) -> bool:
        """Search one block; return whether more are needed."""
        if self._query.is_literal or (self._query.bytes_pattern and block.isascii()):
            return self.take_text(block, is_last)
        return self.take_text(block.decode("utf-8", "surrogateescape"), is_last)

    def take_text(self, data: AnyStr, is_last: bool) -> bool:
        query = self._query
        spans = multiline_spans(data, query) if query.multiline else line_spans(data, query)
        if query.mode == "files":
            self.count = next((1 for _ in spans), 0)
            return not self.count
        if query.mode == "count":
            self.count += sum(1 for _ in spans)
            return True
        return self.take_lines(data, spans, is_last)

    def take_lines(self, data: AnyStr, spans: Iterator[LineSpan], is_last: bool) -> bool:
        newline = _newline(data)
        counted, line = 0, self._line
        self.complete(data)
        for start, end, at in spans:
            if self.count >= self._query.max_hits:
                return bool(self._open)
            self.count += 1
            line += data.count(newline, counted, start)
            counted = start
            self.show(data, line, start, end, at)
        if not is_last:
            self._line = line + data.count(newline, counted)
            self._tail = (self._tail + self.last_lines(data))[-self._query.before :]
        return True

    def show(self, data: AnyStr, line: int, start: int, end: int, at: int) -> None:
        query = self._query
        limit = query.max_line_chars
        before = _lines_before(data, start, query.before, limit)
        if len(before) < query.before and self._tail:
            before = self._tail[len(before) - query.before :] + before
        after = _lines_after(data, end + 1, query.after, limit)
        self.shown.append((line, _excerpt(data, start, end, at, limit), before, after))
        if len(after) < query.after:
            self._open.append((after, query.after - len(after)))

    def last_lines(self, data: AnyStr) -> list[str]:
        return _lines_before(data, len(data), self._query.before, self._query.max_line_chars)

    def complete(self, data: AnyStr) -> None:
        """Add the context lines in this block to the hits at the end of the previous one."""
        still_open = []
        for after, missing in self._open:
            lines = _lines_after(data, 0, missing, self._query.max_line_chars)
            after += lines
            if len(lines) < missing:
                still_open.append((after, missing - len(lines)))
        self._open = still_open


def line_spans(data: AnyStr, query: Query) -> Iterator[LineSpan]:
    """Yield the matching lines, in order."""
    newline = _newline(data)
    find = _finder(data, query)
    pos, failed, size = 0, MAX_FAILED_CHECKS if query.by_line else 0, len(data)
    while pos < size:
        if failed >= MAX_FAILED_CHECKS:  # searching the whole block is not worthwhile with this pattern
            yield from _spans_line_by_line(data, query, pos)
            return
        span = find(pos)
        # After the last line end there is no further line, so an empty match there does not count.
        if span is None or (span[0] >= size and data[-1:] == newline):
            return
        start = data.rfind(newline, pos, span[0]) + 1 or pos
        end = data.find(newline, span[0])
        end = size if end < 0 else end
        at = span[0]
        if span[1] > end:
            again = _finder(data[start:end], query)(0)
            at = -1 if again is None else start + again[0]
            failed += again is None
        if at >= 0:
            yield start, end, at
        pos = end + 1


def _spans_line_by_line(data: AnyStr, query: Query, pos: int) -> Iterator[LineSpan]:
    newline = _newline(data)
    while pos < len(data):
        end = data.find(newline, pos)
        end = len(data) if end < 0 else end
        span = _finder(data[pos:end], query)(0)
        if span is not None:
            yield pos, end, pos + span[0]
        pos = end + 1


def multiline_spans(data: AnyStr, query: Query) -> Iterator[LineSpan]:
    """Yield the matches, each extended to whole lines; the rest of its last line is not searched again."""
    newline = _newline(data)
    find = _finder(data, query)
    pos, size = 0, len(data)
    while pos < size and (span := find(pos)) is not None:
        if span[0] >= size and data[-1:] == newline:
            return
        start = data.rfind(newline, 0, span[0]) + 1
        end = data.find(newline, max(span[0], span[1] - 1))
        end = size if end < 0 else end
        yield start, end, span[0]
        pos = end + 1


def _newline(data: AnyStr) -> AnyStr:
    return b"\n" if isinstance(data, bytes) else "\n"


def _finder(data: AnyStr, query: Query) -> Find:
    """Return a function from a position to the start and end of the next match."""
    if query.is_literal:
        needle: AnyStr = query.pattern.encode("utf-8") if isinstance(data, bytes) else query.pattern
        size = len(needle)

        def find_literal(pos: int) -> tuple[int, int] | None:
            at = data.find(needle, pos)
            return (at, at + size) if at >= 0 else None

        return find_literal
    search = query.bytes_pattern.search if isinstance(data, bytes) else query.text_pattern.search  # type: ignore[union-attr]

    def find(pos: int) -> tuple[int, int] | None:
        match = search(data, pos)
        return match.span() if match else None

    return find


def _lines_before(data: AnyStr, end: int, count: int, limit: int) -> list[str]:
    """Up to `count` lines that end at or before `end`, the start of a line."""
    newline = _newline(data)
    lines: list[str] = []
    if end == len(data) and end and data[-1:] != newline:
        end += 1  # the last line of the data has no line end
    while end > 0 and len(lines) < count:
        start = data.rfind(newline, 0, end - 1) + 1
        lines.append(_excerpt(data, start, end - 1, start, limit))
        end = start
    return lines[::-1]


def _lines_after(data: AnyStr, start: int, count: int, limit: int) -> list[str]:
    newline = _newline(data)
    lines: list[str] = []
    while start < len(data) and len(lines) < count:
        end = data.find(newline, start)
        end = len(data) if end < 0 else end
        lines.append(_excerpt(data, start, end, start, limit))
        start = end + 1
    return lines


def _excerpt(data: bytes | str, start: int, end: int, at: int, limit: int) -> str:
    """A line, or the part of a long one around its match, with the number of omitted characters."""
    if end - start <= limit:
        return _text(data[start:end])
    first = max(start, at - limit // 4)
    last = min(end, first + limit)
    # Cut no word, token or match in two: half a secret would not be recognized.
    first = _at_token(data, first, at, 1) if first > start else first
    last = _at_token(data, last, max(at, first), -1) if last < end else last
    head = f"(+{first - start:,} characters) …" if first > start else ""
    tail = f"… (+{end - last:,} characters)" if last < end else ""
    return f"{head}{_text(data[first:last])}{tail}"


def _at_token(data: bytes | str, cut: int, stop: int, step: int) -> int:
    """The cut moved inwards to a token's edge, at most to the match or by 512 characters."""
    for place in range(cut, max(stop, cut - 512) if step < 0 else min(stop, cut + 512), step):
        two = data[place - 1 : place + 1]
        text = two if isinstance(two, str) else two.decode("latin-1")
        if not all(letter.isalnum() or letter in "_+/=.~%:@-" for letter in text):
            return place
    return cut


def _text(data: bytes | str) -> str:
    raw = data if isinstance(data, bytes) else data.encode("utf-8", "surrogateescape")
    return raw.decode("utf-8", "replace").removesuffix("\r")


def serve() -> None:
    """Run as a worker: read a line with the query, then a line for each list of files; write one line for each file.

    A limit on processor time ends a worker that is stuck in a pattern when its host is gone.
    """
    import json
    import resource

    first = json.loads(sys.stdin.buffer.readline())
    resource.setrlimit(resource.RLIMIT_CPU, (first["cpu_s"], first["cpu_s"]))
    query = Query(**first["query"])
    flush_at = 0.0
    for line in sys.stdin.buffer:
        for path, inode in json.loads(line):
            sys.stdout.write(json.dumps(_answer(path, inode, query)) + "\n")
            now = time.monotonic()
            if now > flush_at:
                sys.stdout.flush()
                flush_at = now + FLUSH_EVERY_S
        sys.stdout.flush()


def _answer(path: str, inode: int, query: Query) -> SearchAnswer:
    try:
        fd = open_listed(path, inode)
        if fd < 0:
            return "moved", 0, []
        try:
            return search_file(fd, query)
        finally:
            os.close(fd)
    except OSError:
        return "unreadable", 0, []
