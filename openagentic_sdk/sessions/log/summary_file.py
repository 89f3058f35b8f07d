"""The summary stored beside a log: a cache that records up to which byte it was folded, and may be deleted.

The writer of a log rewrites its summary in place with each append: right after the events, so it is never ahead of the log.
A checksum detects content that was read or cut off in mid-write; content that lags behind is completed by folding the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import itemgetter
from zlib import crc32

from ...errors import InvalidEventError, SessionError
from ...events import Event
from ...ground.frozen import changed, frozen
from ...serialization import dumps_json, loads_json
from ..folds.summary import (
    SUMMARY_FIELDS,
    Counters,
    SessionSummary,
    counted,
    fold_session_summary,
    moves_summary,
    summary_from_dict,
    summary_to_dict,
)
from .scan import Position


@frozen
class KeptSummary:
    """A summary and the position in the log after the last event folded in."""

    summary: SessionSummary
    position: Position

    def to_json(self) -> bytes:
        text = _head_text(self.summary) + _sums_text(self.summary)
        return text + _tail_text(self.position.offset, self.position.crc, _counters(self.summary), crc32(text))

    @classmethod
    def from_json(cls, text: bytes) -> KeptSummary | None:
        """Parse the output of this version's `to_json`; trailing whitespace is allowed. None for anything else."""
        body, _, seal = text.rstrip().rpartition(b',"check":')
        try:
            data = loads_json(text) if seal == b'"%08x"}' % crc32(body) else None
        except InvalidEventError:
            return None
        if not isinstance(data, dict) or not all(isinstance(data.get(name), int) for name in ("offset", "seq", "crc")):
            return None
        # Every event has at least one byte; other numbers are from a damaged or invented file, and `seek` would fail on
        # them.
        if data["crc"] < 0 or not 0 <= data["seq"] <= data["offset"]:
            return None
        folded = data.get("summary")
        moved = {"events": data["seq"], **{name: data.get(name) for name in (*_COUNTERS, *_SUMS)}}
        summary = summary_from_dict({**folded, **moved}) if isinstance(folded, dict) else None
        return cls(summary, Position(data["offset"], data["seq"], data["crc"])) if summary else None


FindSummary = Callable[[Position], tuple[int, KeptSummary] | None]


class SummaryFile:
    """The summary beside a log that has a writer and now ends at `end`.

    `find` opens it for writing and returns its descriptor and contents; None if it cannot be continued to that end. The
    file is a cache: if it cannot be written, it is left as it is, and the next list folds the rest.
    """

    def __init__(self, find: FindSummary, end: Position) -> None:
        self._find = find
        self._fd = -1
        self._begin(end)

    def _begin(self, end: Position) -> None:
        """Release the previous file, and continue with the current one."""
        self.close()
        opened = self._find(end)
        if opened is None:
            return
        self._fd, stored_summary = opened
        # A shorter text is padded to this length: truncating would be a second system call, and a reader could see the
        # state between.
        self._room = os.fstat(self._fd).st_size
        self._summary, self._counters = stored_summary.summary, _counters(stored_summary.summary)
        # 0: what the file contains is certain only after the first append has written it.
        self._head_bytes = self._sums_bytes = self._head_crc = self._sums_crc = 0

    def add(self, events: Sequence[Event], offset: int, crc: int) -> None:
        """Fold in the events just written to the log, which now ends at `offset` with the checksum `crc`.

        Only the changed part of the file is written: most events change its tail, those that charge a model call its sums.
        """
        if self._fd < 0 or events[0].seq != self._counters[0] + 1:
            # An append was interrupted before it was folded in here.
            self.close()
            return
        if not self._head_bytes or any(map(moves_summary, events)):
            seq, updated = self._counters
            old_summary = changed(self._summary, events=seq, updated=updated)
            self._summary = fold_session_summary(old_summary, events)
            self._counters = _counters(self._summary)
            self._write_moved(old_summary, offset, crc)
            return
        self._counters = counted(self._counters, events)
        text = _tail_text(offset, crc, self._counters, self._sums_crc)
        try:
            # `pwrite` needs no seek, and a forked child shares the position of an open file.
            os.pwrite(self._fd, text, self._head_bytes + self._sums_bytes)
        except OSError:
            self.close()

    def _write_moved(self, old_summary: SessionSummary, offset: int, crc: int) -> None:
        """Write the differences from `old_summary`, the file's contents as far as known."""
        try:
            if not os.fstat(self._fd).st_nlink:
                # A list that read between an event and its summary has replaced this file with its own.
                self._begin(Position(offset, self._counters[0], crc))
                return
            head = b""
            # Compared field by field: formatting the head only to see whether it changed would cost as much as writing
            # it.
            if not self._head_bytes or _in_head(old_summary.__dict__) != _in_head(self._summary.__dict__):
                head = _head_text(self._summary)
                self._head_bytes, self._head_crc = len(head), crc32(head)
            at = 0 if head else self._head_bytes
            sums = _sums_text(self._summary)
            self._sums_bytes, self._sums_crc = len(sums), crc32(sums, self._head_crc)
            text = b"%b%b%b" % (head, sums, _tail_text(offset, crc, self._counters, self._sums_crc))
            self._room = max(self._room, at + len(text))
            # Overwrite the rest of a longer text with spaces.
            os.pwrite(self._fd, text.ljust(self._room - at), at)
        except (OSError, SessionError, InvalidEventError):
            # The events are stored anyway: no error here may make their append look like a failure.
            self.close()

    def close(self) -> None:
        """Release the file. Closing twice is allowed."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with suppress(OSError):
                os.close(fd)


# The fields in the tail, and those between head and tail; the head contains neither.
_COUNTERS = ("updated",)
_SUMS = ("tokens", "cost_usd", "spent")
_in_head = itemgetter(*(name for name in SUMMARY_FIELDS if name not in ("events", *_COUNTERS, *_SUMS)))


def _counters(summary: SessionSummary) -> Counters:
    return summary.events, summary.updated


def _head_text(summary: SessionSummary) -> bytes:
    left_out = (*_COUNTERS, *_SUMS)
    fields = {name: value for name, value in summary_to_dict(summary).items() if name not in left_out}
    return f'{{"summary":{dumps_json(fields)}'.encode("ascii")


def _sums_text(summary: SessionSummary) -> bytes:
    sums = {name: summary.__dict__[name] for name in _SUMS}
    return f",{dumps_json(sums)[1:-1]}".encode("ascii")


def _tail_text(offset: int, crc: int, counters: Counters, sums_crc: int) -> bytes:
    """The fields that most events change, in a fixed length, so that they alone can be rewritten."""
    text = b',"offset":%15d,"seq":%10d,"crc":%10d,"updated":%24a' % (offset, counters[0], crc, counters[1])
    return text + b',"check":"%08x"}\n' % crc32(text, sums_crc)
