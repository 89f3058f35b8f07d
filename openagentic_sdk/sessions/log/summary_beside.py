"""The summary file beside a log: find it, bring it up to date with the log's end, and store it again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...errors import LogCorruptError, SessionError
from ...ground.disk import Disk, write_durably
from ...ground.system import BINARY, NO_FOLLOW
from ..folds.summary import SessionSummary, fold_session_summary
from .folder import LOG_NAME, SUMMARY_NAME, folder_lock, open_cache, path_in, read_cache, read_open_cache
from .scan import START, LogReader, Position
from .summary_file import KeptSummary

# A writer updates a summary that a killed writer left, unless it is further behind than this: then the next list does.
MAX_TAIL_BYTES = 1 << 18
# How often to read a summary that its writer is changing at that moment.
LOOKS = 3
# A summary with more events than its log is kept in <summary>.lost-<events in the log>-<events in the summary>.
LOST = ".lost-"


class SummaryBeside:
    """The summary beside the log of the session in `folder`, whose name is the session's id."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._folder = folder

    def kept(self) -> KeptSummary | None:
        """Return the stored summary; None if the file is missing or another session's."""
        # Its writer may be updating it during the read, which only takes a moment.
        looks = (self._ours(read_cache(path_in(self._folder, SUMMARY_NAME))) for _ in range(LOOKS))
        return next((summary for summary in looks if summary), None)

    def brought_up(self, fd: int, start_summary: Callable[[], SessionSummary], *, keep: bool) -> SessionSummary:
        """Return the summary of the whole open log, continued from the stored one if possible; with `keep`, store it, too.

        A stored one that disagrees with the log is left in place, as evidence of what the log lost.
        """
        # In this order: the summary must belong to this metadata, and the log must contain all its events.
        start, stored_summary = start_summary(), self.kept()
        size = self._disk.fstat(fd).st_size
        fresh = None
        if stored_summary and stored_summary.position.offset <= size and not self.is_hole(fd, stored_summary.position):
            # The cache may belong to an earlier log at this place; only the log itself shows whether it is damaged.
            with suppress(LogCorruptError):
                fresh = self._folded(fd, stored_summary)
        agrees = stored_summary is None or fresh is not None
        fresh = fresh or self._folded(fd, KeptSummary(start, START))
        # The next writer completes or cuts off a last line without a newline, and then this position no longer exists.
        if fresh.position.terminated and keep and agrees:
            with suppress(OSError, SessionError), folder_lock(self._folder):
                log = os.stat(path_in(self._folder, LOG_NAME))
                # The log may have been replaced by an erasure meanwhile, and the summary would bring the erased texts
                # back.
                if os.path.samestat(log, self._disk.fstat(fd)) and start == start_summary():
                    self._keep(fresh)
        return fresh.summary

    def is_hole(self, fd: int, end: Position) -> bool:
        """Whether zeros end there: a power cut may spare the summary and the log's length, but not the log's last page."""
        self._disk.lseek(fd, max(0, end.offset - 1), os.SEEK_SET)
        return self._disk.read(fd, 1) == b"\0"

    def _keep(self, fresh: KeptSummary) -> None:
        """Store a summary beside the log, unless the log's writer has stored a newer one meanwhile."""
        stored_summary = self.kept()
        size = path_in(self._folder, LOG_NAME).stat().st_size
        if not (stored_summary and fresh.position.offset <= stored_summary.position.offset <= size):
            # Atomic but not synced: a lost cache costs a fold, a damaged one would fail its checksum and cost the same.
            write_durably(self._disk, path_in(self._folder, SUMMARY_NAME), fresh.to_json(), sync=False)

    def open_for_writer(self, end: Position) -> tuple[int, KeptSummary] | None:
        """Open the stored summary of a log that ends at `end` for the log's writer; None if it cannot be continued.

        A summary of an end that the log has lost is moved aside: the log could grow to the same length, and the summary is
        evidence of the loss.
        """
        path = path_in(self._folder, SUMMARY_NAME)
        # On Windows, a change of the metadata could not replace an open file.
        cache = None if sys.platform == "win32" else open_cache(path, os.O_RDWR)
        if cache is None:
            return None
        summary = None
        try:
            # A hard link to the file would disclose what is written here.
            stored_summary = self._ours(read_open_cache(cache)) if os.fstat(cache).st_nlink == 1 else None
            if stored_summary and end.offset - stored_summary.position.offset <= MAX_TAIL_BYTES:
                summary = self._caught_up(stored_summary, end)
                if summary is None and stored_summary.position.seq > end.seq:
                    os.replace(path, path.with_name(f"{SUMMARY_NAME}{LOST}{end.seq}-{stored_summary.position.seq}"))
                elif summary is None:
                    path.unlink(missing_ok=True)
        finally:
            if summary is None:
                os.close(cache)
        return None if summary is None else (cache, summary)

    def _caught_up(self, stored_summary: KeptSummary, end: Position) -> KeptSummary | None:
        """The summary with the events up to `end` folded in; None if it belongs to an earlier log at this path."""
        if stored_summary.position == end:
            return stored_summary
        if stored_summary.position.offset >= end.offset:
            return None
        fd = self._disk.open(str(path_in(self._folder, LOG_NAME)), os.O_RDONLY | BINARY | NO_FOLLOW)
        try:
            folded = self._folded(fd, stored_summary)
        except LogCorruptError:
            return None
        finally:
            self._disk.close(fd)
        return folded if folded.position == end else None

    def _folded(self, fd: int, stored_summary: KeptSummary) -> KeptSummary:
        reader = LogReader(self._disk, fd, self._folder.name, stored_summary.position)
        summary = fold_session_summary(stored_summary.summary, reader.events())
        return KeptSummary(summary, reader.position)

    def _ours(self, text: bytes | None) -> KeptSummary | None:
        """Parse a summary; None if it is invalid, or belongs to the session from which this folder was copied."""
        stored_summary = KeptSummary.from_json(text) if text else None
        return stored_summary if stored_summary and stored_summary.summary.id == self._folder.name else None
