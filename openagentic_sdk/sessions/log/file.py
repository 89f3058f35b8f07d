"""One session's log: an append-only file of JSON lines.

    append -> encode -> number and seal -> one write -> (barrier: one fdatasync) -> acknowledged

Events that `append` has returned survive the death of the process at level `flush`, the death of the machine at level
`fsync`, and at level `barrier` the death of the machine up to the last event that matters afterwards (`line.is_barrier`). A
failed write is undone; a disk whose state can no longer be known is not written to again.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from zlib import crc32

from ...errors import ConcurrencyError, SessionLockedError, SessionNotFoundError, StorageError
from ...events import Event, LogRecovered
from ...ground.clock import Clock
from ...ground.disk import Disk, write_durably
from ...ground.system import BINARY, NO_FOLLOW, more_room, os_reason
from ...serialization import dumps_fields, dumps_time, encode_events
from ..core import SessionWriter
from ..folds.view import KeptView
from .blocks import read_range
from .line import FORMAT_VERSION, Durability, is_barrier, seal_line, stamp_event
from .lock import hold, let_go, lock_holder, try_lock, unlock
from .scan import LogEnd, Position, find_end, position_behind
from .summary_file import SummaryFile
from .unsynced import DISTRUSTED, distrust, marked_size, remove_marks, renew_log

# Opening a log checks the part not marked as synced, so level `flush` also syncs occasionally: after appending this much,
# and on opening a log with that much.
MAX_UNSYNCED_BYTES = 1 << 18
MAX_UNSYNCED_BYTES_FOUND = 1 << 15

# A tail that was cut off is kept in <log>.torn-<offset>-<its CRC-32>, so the same tail is stored once.
_TORN = ".torn-"

# After these errors the disk's contents are known, so a write can be undone and retried later.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EINTR, errno.EAGAIN})


class LogWriter(SessionWriter):
    """The only writer of a log, created by `open_log`. Threads may share it: their appends are serialized."""

    def __init__(
        self, disk: Disk, fd: int, path: Path, end: LogEnd, *, session_id: str, durability: Durability, clock: Clock
    ) -> None:
        self.session_id = session_id
        self._path = path
        self._place = os.path.abspath(path)  # a relative path would change with the working directory
        self._disk = disk
        self._fd = fd
        self._durability = durability
        self._clock = clock
        # A forked child inherits this object with the descriptor, but not the right to write: see `_own_lock`.
        self._pid = os.getpid()
        self._end = end.position.offset
        self._seq = end.position.seq
        self._crc = end.position.crc
        self._durable_seq = end.dur
        self._durable_end = end.durable_offset
        self._unusable: str | None = None
        self._lock = threading.Lock()
        self._summary: SummaryFile | None = None
        self._keep: Callable[[Position, KeptView], None] | None = None

    @property
    def last_seq(self) -> int:
        return self._seq

    @property
    def position(self) -> Position:
        """The position at the end of the log."""
        return Position(self._end, self._seq, self._crc)

    def keep_summary(self, summary: SummaryFile) -> None:
        """Rewrite the summary with each append from now on. It must end where the log does; `close` closes it."""
        self._summary = summary

    def keep_views(self, keep: Callable[[Position, KeptView], None]) -> None:
        """Pass each view given to `keep_view` on to `keep`, with its position in the log."""
        self._keep = keep

    def keep_view(self, kept: KeptView) -> None:
        with self._own_lock():
            if self._keep is None or self._fd < 0:
                return
            # The view is usually that of the end, whose position is known; only otherwise are lines counted.
            place = self.position if kept.horizon == self._seq else position_behind(self._disk, self._fd, kept.horizon)
        if place is not None:
            self._keep(place, kept)

    def waits_for_disk(self, events: Sequence[Event]) -> bool:
        return self._durability == "fsync" or (self._durability == "barrier" and any(map(is_barrier, events)))

    def append(self, events: Sequence[Event]) -> list[Event]:
        # Encoded before the lock is taken: a value that JSON cannot express must neither block other threads nor leave
        # half a batch.
        bodies = encode_events(events)
        if not bodies:
            return []
        with self._own_lock():
            if is_barred := any(map(is_barrier, events)):
                self._check_handle()
            else:
                self._check_end()
            now = self._clock.now()
            # `dur` is what is known to be on disk before this batch; a later scan treats a hole below it as lost data, not
            # as the result of a crash.
            ts, dur, seq, crc = dumps_time(now), self._durable_seq, self._seq, self._crc
            stored_events, lines = [], []
            for event, body in zip(events, bodies, strict=True):
                seq += 1
                line, crc = seal_line(body, seq=seq, ts=ts, dur=dur, crc=crc)
                lines.append(line)
                stored_events.append(stamp_event(event, seq, now))
            # One write for the whole batch, so that those of two processes never interleave. A kill can still cut it
            # (measured on ext4: 21 of 200 kills at 1.5 KB, 153 of 200 at 200 KB), which is why opening repairs a torn
            # tail.
            self._write(b"".join(lines), seq, crc)
            if self._summary:
                self._summary.add(stored_events, self._end, self._crc)
            waits = self._durability == "fsync" or (is_barred and self._durability == "barrier")
            if waits or self._end - self._durable_end > MAX_UNSYNCED_BYTES:
                self._sync()
        return stored_events

    def sync(self) -> None:
        """Sync everything appended to disk, whatever the durability level. Raises `StorageError`."""
        with self._own_lock():
            self._check_handle()
            self._sync()

    def close(self) -> None:
        with self._lock:
            if self._fd < 0:
                return
            # Before anything that can fail or be interrupted: a second `close` must not close a descriptor that was
            # reused since.
            fd, self._fd = self._fd, -1
            if self._summary:
                self._summary.close()
            if os.getpid() == self._pid:
                # A forked child may have a copy of the handle: closing ours would not release the lock. If a lock server
                # has no locks left (ENOLCK), closing does; the stored events are unaffected.
                with suppress(OSError):
                    unlock(fd)
            let_go(fd)
            self._disk.close(fd)

    def _own_lock(self) -> threading.Lock:
        """The lock. Raises `SessionLockedError` in a forked child, where a thread of the parent could hold it forever."""
        if os.getpid() != self._pid:
            raise SessionLockedError(self.session_id, f"process {self._pid}, from which this one was forked")
        return self._lock

    def _write(self, data: bytes, seq: int, crc: int) -> None:
        size, end = len(data), self._end + len(data)
        try:
            count = self._disk.write(self._fd, data)
            if count != size:
                # A write to a regular file is short only if there is no room for the rest, a quota or a file size limit
                # included.
                raise OSError(errno.ENOSPC, f"only {count} of {size} bytes were written")
            # Ctrl-C is raised only at calls: there is none between the write's return and here, so the write is either
            # recorded or undone.
            self._end, self._seq, self._crc = end, seq, crc
        except OSError as error:
            self._take_back(error)
            raise self._storage_error("could not be appended to", error) from error
        except BaseException:  # Ctrl-C, for example: undo a partial write
            self._take_back(InterruptedError(errno.EINTR, "interrupted"))
            raise

    def _take_back(self, cause: OSError) -> None:
        """Truncate what a failed write left; if the contents of the disk are unknown, give up the handle instead."""
        # After EIO and the like the pages in memory may differ from the disk, and would also show truncating as a success.
        if cause.errno not in _NO_ROOM:
            self._unusable = f"a write failed ({cause.strerror})"
            distrust(self._disk, self._fd, self._path, self._end)
            return
        try:
            cut_log(self._disk, self._fd, self._path, self._end)
        except OSError as error:
            self._unusable = f"a failed write could not be undone ({error.strerror})"

    def _sync(self) -> None:
        if self._durable_seq == self._seq:
            return
        try:
            self._disk.fdatasync(self._fd)
        except OSError as error:
            # The kernel may have dropped the pages and would report success for the next attempt: never retry
            # (Rebello et al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020).
            self._unusable = f"fdatasync failed ({error.strerror})"
            try:
                raise self._storage_error("could not be synced to disk", error) from error
            finally:  # also if a Ctrl-C that arrived during the sync is raised at that call
                distrust(self._disk, self._fd, self._path, self._end)
        self._durable_seq, self._durable_end = self._seq, self._end

    def _check_handle(self) -> None:
        """Raise unless we may write to the log, and it ends where we left it."""
        self._check_usable()
        try:
            stat = self._disk.fstat(self._fd)
        except OSError as error:
            self._unusable = f"its file cannot be examined ({error.strerror})"
            raise self._storage_error("could not be appended to", error) from error
        # A deleted or renamed file still accepts writes without an error; nobody would find the events after that.
        if stat.st_nlink == 0 or not self._is_at_its_path(stat):
            self._unusable = f"its file was {'moved or replaced' if stat.st_nlink else 'deleted'}"
            self._check_usable()
        self._check_size(stat.st_size)

    def _is_at_its_path(self, stat: os.stat_result) -> bool:
        try:
            named = os.stat(self._place, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # which shows nothing about the open file
            return True
        return os.path.samestat(named, stat)

    def _check_end(self) -> None:
        """Raise unless the log ends where we left it. Only the next barrier notices that it was deleted or moved: checking
        that each time would cost as much as writing a line.
        """
        self._check_usable()
        try:
            # Not `fstat`: a seek asks for the size alone, and this runs for every event that is not a barrier.
            size = self._disk.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            self._unusable = f"its file cannot be examined ({error.strerror})"
            raise self._storage_error("could not be appended to", error) from error
        self._check_size(size)

    def _check_size(self, size: int) -> None:
        if size != self._end:
            self._unusable = "another program wrote to it in spite of the lock"
            raise ConcurrencyError(
                self.session_id, self._seq, find_end(self._disk, self._fd, self.session_id).position.seq
            )

    def _check_usable(self) -> None:
        if self._fd < 0:
            raise StorageError("this writer is closed: open the session again", session_id=self.session_id)
        if self._unusable:
            raise StorageError(
                f"session {self.session_id!r} is no longer written to, since {self._unusable}: open it again",
                session_id=self.session_id,
            )

    def _storage_error(self, what: str, error: OSError) -> StorageError:
        todo = "open the session again" if self._unusable else f"{more_room()} and try again"
        return StorageError(
            f"session {self.session_id!r} {what}: {error.strerror or error}; {todo}",
            session_id=self.session_id,
            retryable=self._unusable is None,
        )


def open_log(path: Path, *, session_id: str, durability: Durability, clock: Clock, disk: Disk) -> LogWriter:
    """Become the only writer of an existing log; a torn tail is moved aside and recorded in the log.

    Raises `SessionNotFoundError`, `SessionLockedError`, `LogCorruptError`, and `StorageError` if the disk fails or a newer
    version wrote the log.
    """
    try:
        # O_APPEND although the end is known: a program that ignores the lock then makes the log longer, which is
        # noticed, instead of being overwritten by us.
        fd = disk.open(str(path), os.O_RDWR | os.O_APPEND | BINARY | NO_FOLLOW)
        try:
            # The lock is taken before anything is read: whatever is found afterwards can no longer change.
            if not try_lock(fd):
                raise SessionLockedError(session_id, lock_holder(fd))
            hold(fd)
            info = disk.fstat(fd)
            if info.st_nlink == 0:
                # Deleted between opening and locking, or replaced by another log.
                if path.exists():
                    raise SessionLockedError(session_id, "a process that rewrites its log")
                raise FileNotFoundError(errno.ENOENT, "deleted", str(path))
            # Listed once, under the lock: marks, tails and the log's own state are judged from the same moment.
            names = os.listdir(path.parent)
            marked = marked_size(path.name, names)
            if marked is not None or (info.st_dev, info.st_ino) in DISTRUSTED:
                old_fd, fd = fd, renew_log(disk, fd, path)
                let_go(old_fd)
                disk.close(old_fd)
            writer = _repaired_writer(fd, path, session_id, durability, clock, disk, names)
            # Only now: until the new log contains the report of what was lost, the mark is the only evidence.
            if marked is not None:
                remove_marks(disk, path, names)
            return writer
        except BaseException:  # after any error, the lock must be released
            let_go(fd)
            disk.close(fd)
            raise
    except FileNotFoundError:
        raise SessionNotFoundError(session_id, str(path.parent.parent)) from None
    except OSError as error:
        raise StorageError(
            f"session {session_id!r} cannot be opened for writing: {os_reason(error)}", session_id=session_id
        ) from error


def _repaired_writer(
    fd: int, path: Path, session_id: str, durability: Durability, clock: Clock, disk: Disk, names: list[str]
) -> LogWriter:
    end = find_end(disk, fd, session_id)
    # Appending lines of an older format after newer ones would let a newer reader misjudge the whole log.
    if end.version > FORMAT_VERSION:
        raise StorageError(
            f"session {session_id!r} was written in format {end.version}, and this version writes {FORMAT_VERSION}: it can "
            "be read, but only a newer version can continue it",
            session_id=session_id,
        )
    place = end.position.finished().offset
    if end.torn_bytes:
        # Sync the tail after the last good line in a file of its own before cutting the log.
        torn = read_range(disk, fd, end.position.offset, end.size)
        moved_to = f"{path.name}{_TORN}{place}-{crc32(torn):08x}"
        write_durably(disk, path.with_name(moved_to), torn)
        cut_log(disk, fd, path, end.position.offset)
        names = [*{*names, moved_to}]
    # The report of a tail is appended where it was cut off, so a log that ends there contains no report of these.
    cut_here = sorted(name for name in names if name.startswith(f"{path.name}{_TORN}{place}-"))
    events = [LogRecovered(path.with_name(name).stat().st_size, place, name) for name in cut_here]
    if (lost_bytes := (marked_size(path.name, names) or 0) - end.size) > 0:
        events.append(LogRecovered(lost_bytes, end.size))
    # A crash may cut off exactly the newline: the line is complete, and its checksum proves it, so it is kept.
    if not end.position.terminated:
        if disk.write(fd, b"\n") != 1:
            raise OSError(errno.ENOSPC, "the last line's newline could not be written")
        end = replace(end, position=end.position.finished())
    writer = LogWriter(disk, fd, path, end, session_id=session_id, durability=durability, clock=clock)
    # Sync the intact part, which costs little if it is already on disk, and mark it in the next line. Without
    # this, writers that append one event each would never know what the previous one synced.
    if durability != "flush" or end.position.offset - end.durable_offset > MAX_UNSYNCED_BYTES_FOUND:
        writer.sync()
    if events:
        writer.append(events)
        writer.sync()
    return writer


def cut_log(disk: Disk, fd: int, path: Path, end: int) -> None:
    """Truncate the log at `end`, after its last good line, and sync it; distrust it and raise `OSError` if that fails."""
    try:
        disk.ftruncate(fd, end)
        # Without this, a power loss could mix old bytes of the cut line with new ones.
        disk.fdatasync(fd)
    except OSError:
        distrust(disk, fd, path, end)
        raise


def seal_events(events: Iterable[Event], position: Position, now: float) -> Iterator[bytes]:
    """Yield the events as lines after `position`, for a log that is synced before anybody sees it. Times are kept; `now`
    fills in missing ones.
    """
    seq, crc = position.seq, position.crc
    for event in events:
        # `dur` claims the line before: the caller syncs the whole file before it replaces a log.
        ts = dumps_time(now if event.ts is None else event.ts)
        line, crc = seal_line(dumps_fields(event), seq=seq + 1, ts=ts, dur=seq, crc=crc)
        seq += 1
        yield line
