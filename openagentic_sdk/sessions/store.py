"""Sessions as folders of plain files.

    <root_dir>/sessions/<id>/events.jsonl     the log, the only truth
                             meta.json        what was known at creation; a cache, may be deleted
                             summary.json     the session's row in a list; a cache, may be deleted
                             blobs/<sha256>   values too big for a line, on disk before the line that names them

A session appears complete or not at all: its folder is built under another name and renamed. Ids cannot leave the folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

from ..clock import Clock, SystemClock
from ..errors import (
    InvalidEventError,
    LogCorruptError,
    OptionsError,
    SessionError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from ..events import Event
from ..frozen import frozen
from ..serialization import dumps_json, loads_json
from .base import SessionStore, check_sequence, stamp_events
from .folds.summary import LAST_TIME, SessionSummary, fold_session_summary, page_of, start_summary, summary_matches
from .log.disk import BINARY, NO_FOLLOW, Disk, SystemDisk
from .log.file import DURABILITY_LEVELS, LogWriter, open_log, seal_events, write_durably, write_new_file
from .log.line import BadLineError, decode_line, stamp_event
from .log.lock import lock_holder, try_lock, wait_for_lock
from .log.scan import START, LogReader, Position, cut_block, find_end, find_seq, offset_of, split_lines
from .log.summary_file import KeptSummary, SummaryFile
from .stores.log_state import Head, copied_head

__all__ = ["FileSessionStore", "SessionStore"]

LOG_NAME = "events.jsonl"
META_NAME = "meta.json"
SUMMARY_NAME = "summary.json"
BLOBS_NAME = "blobs"
# A writer catches up with a summary that a killed one left behind; one that is further behind is left to the next list.
MAX_TAIL_BYTES = 1 << 18
KEPT_LOOKS = 3
MAX_CACHE_BYTES = 1 << 24
FOLDED_TOGETHER = 256
NO_WAIT = getattr(os, "O_NONBLOCK", 0)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# Windows opens a device for these names, whatever stands behind their first dot.
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|\Z)", re.IGNORECASE)


def is_session_id(text: str) -> bool:
    """Whether the text can name a session: 1 to 128 letters, digits, `.`, `_` and `-`, the first a letter or digit."""
    if not isinstance(text, str):
        return False
    return bool(_ID.fullmatch(text)) and not text.endswith(".") and not _DEVICE.match(text)


class FileSessionStore(SessionStore):
    """Sessions under `root_dir`, which is made when the first session is.

    `durability` is `flush`, `barrier` or `fsync`, see `log`. With `read_only` nothing is ever written, not even a repair.
    """

    def __init__(
        self,
        root_dir: str | os.PathLike[str],
        durability: str = "barrier",
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        read_only: bool = False,
    ) -> None:
        if durability not in DURABILITY_LEVELS:
            raise OptionsError(f"durability {durability!r} is none of {', '.join(DURABILITY_LEVELS)}")
        self.root_dir = Path(root_dir)
        self.durability = durability
        self.read_only = read_only
        self._clock = clock or SystemClock()
        self._disk = disk or SystemDisk()
        self._guard = threading.Lock()

    def new_session_id(self) -> str:
        """An id that no session has."""
        return os.urandom(16).hex()

    def session_dir(self, session_id: str) -> Path:
        """The session's folder. Raises `SessionNotFoundError`."""
        folder = self._folder(session_id)
        if not _is_session(folder):
            raise SessionNotFoundError(session_id, str(self.root_dir))
        return folder

    def create_session(self, *, metadata: Mapping[str, Any] | None = None, session_id: str | None = None) -> str:
        name, now = session_id or self.new_session_id(), self._clock.now()
        return self._build(name, now, metadata, summary=lambda: start_summary(name, now, metadata or {}))

    def import_session(
        self,
        session_id: str,
        events: Iterable[Event],
        *,
        metadata: Mapping[str, Any] | None = None,
        created_at: float | None = None,
        blobs: Iterable[bytes] = (),
    ) -> str:
        now = self._clock.now()
        created_at = now if created_at is None else created_at
        passed = _Passed(start_summary(session_id, created_at, metadata or {}), now)
        lines = seal_events(passed.through(check_sequence(events)), START, now)
        named = ((_sha256(data), data) for data in blobs)
        return self._build(session_id, created_at, metadata, lines, named, passed.summary)

    def copy_session(
        self,
        source_id: str,
        target_id: str,
        *,
        at_seq: int,
        tail: Sequence[Event],
        metadata: Mapping[str, Any],
        blobs: Sequence[str] | None = None,
    ) -> str:
        """Like `SessionStore.copy_session`; the source's lines are copied byte for byte, and it may be in use meanwhile.

        `blobs` are the digests to take along, all by default. Raises `LogCorruptError` for damage up to `at_seq`.
        """
        path = self.session_dir(source_id) / LOG_NAME
        now = self._clock.now()
        digests = self.list_blobs(source_id) if blobs is None else blobs
        named = ((digest, self.read_blob(source_id, digest)) for digest in digests)
        with self._opened(source_id, path) as fd:
            stamped = stamp_events(tail, first_seq=at_seq + 1, now=now)
            lines = self._copied_lines(source_id, fd, at_seq, stamped, now)
            start = start_summary(target_id, now, metadata)
            return self._build(
                target_id, now, metadata, lines, named, lambda: self._copied_summary(path, start, at_seq, stamped)
            )

    def open_writer(self, session_id: str) -> LogWriter:
        self._refuse_when_read_only(session_id)
        path = self.session_dir(session_id) / LOG_NAME
        writer = open_log(path, session_id=session_id, durability=self.durability, clock=self._clock, disk=self._disk)
        try:
            with _storage_errors(session_id, "summary cannot be kept"):
                writer.keep_summary(SummaryFile(partial(self._find_kept, session_id, path), writer.position))
        except BaseException:  # whatever happened, the lock must not stay behind
            writer.close()
            raise
        return writer

    def iter_events(self, session_id: str, *, after_seq: int = 0, limit: int | None = None) -> Iterator[Event]:
        """Like `SessionStore.iter_events`; with `after_seq` near the log's end, the lines before it are not checked."""
        path = self.session_dir(session_id) / LOG_NAME
        return islice(self._decoded(session_id, path, max(0, after_seq)), None if limit is None else max(0, limit))

    def last_seq(self, session_id: str) -> int:
        """The `seq` of the log's last event, 0 for an empty log, found without reading the whole log."""
        path = self.session_dir(session_id) / LOG_NAME
        with self._opened(session_id, path) as fd:
            return find_end(self._disk, fd, session_id).position.seq

    def read_metadata(self, session_id: str) -> dict[str, Any]:
        return self._read_meta(session_id).to_dict()

    def update_metadata(self, session_id: str, changes: Mapping[str, Any]) -> None:
        self._refuse_when_read_only(session_id)
        folder = self.session_dir(session_id)
        with self._guard, _storage_errors(session_id, "metadata cannot be stored"), _folder_lock(folder):
            meta = self._read_meta(session_id).changed(changes)
            # A summary begins with what the metadata says. Nobody keeps another one before the lock is given back.
            (folder / SUMMARY_NAME).unlink(missing_ok=True)
            self._write_file(folder / META_NAME, meta.to_json())

    def read_summary(self, session_id: str) -> SessionSummary:
        """The summary that is kept beside the log, with the events folded in that came since it was kept."""
        folder = self.session_dir(session_id)
        kept = self._kept_summary(folder)
        with self._opened(session_id, folder / LOG_NAME) as fd:
            if kept and kept.position.offset == self._disk.fstat(fd).st_size:
                return kept.summary
            # In this order: a summary that was kept for these metadata, and a log that has all that it says.
            meta, kept = _text_of(folder / META_NAME), self._kept_summary(folder)
            size = self._disk.fstat(fd).st_size
            fresh = self._fold_onto(session_id, fd, kept if kept and kept.position.offset <= size else None)
        if fresh.position.terminated and not self.read_only:
            with contextlib.suppress(OSError), _folder_lock(folder):
                if meta == _text_of(folder / META_NAME):
                    self._keep(folder, fresh)
        return fresh.summary

    def _keep(self, folder: Path, fresh: KeptSummary) -> None:
        """Put a summary beside the log, unless the log's writer has kept a newer one meanwhile."""
        kept = self._kept_summary(folder)
        size = (folder / LOG_NAME).stat().st_size
        if not (kept and fresh.position.offset <= kept.position.offset <= size):
            write_durably(self._disk, folder / SUMMARY_NAME, fresh.to_json(), sync=False)

    def list_sessions(self) -> list[str]:
        return list(self._newest_first())

    def list_session_summaries(
        self,
        *,
        cwd: str | None = None,
        limit: int | None = None,
        offset: int = 0,
        query: str | None = None,
        include_children: bool = False,
    ) -> list[SessionSummary]:
        rows = map(self._row, self._newest_first())
        wanted = (row for row in rows if summary_matches(row, cwd=cwd, query=query, include_children=include_children))
        return page_of(wanted, limit=limit, offset=offset)

    def _newest_first(self) -> Iterator[str]:
        """Ids by the time of the last write, found as far as the caller reads on.

        A file's time moves in steps of milliseconds: within one step, the time of the last event decides.
        """
        written = self._written_at()
        for tick in sorted(written, reverse=True):
            names = [name for name in written[tick] if is_session_id(name)]
            yield from names if len(names) == 1 else sorted(names, key=self._last_ts, reverse=True)

    def session_exists(self, session_id: str) -> bool:
        return is_session_id(session_id) and _is_session(self._folder(session_id))

    def delete_session(self, session_id: str) -> None:
        self._refuse_when_read_only(session_id)
        folder = self.session_dir(session_id)
        doomed = folder.with_name(f".deleted-{os.urandom(16).hex()}")
        with _storage_errors(session_id, "cannot be deleted"), self._opened(session_id, folder / LOG_NAME) as fd:
            if not try_lock(fd):
                raise SessionLockedError(session_id, lock_holder(fd))
            self._disk.rename(str(folder), str(doomed))
            self._sync_folder(folder.parent)
            # Ours, and what processes that were killed while deleting have left; another one may be at it as well.
            for path in folder.parent.glob(".deleted-*"):
                shutil.rmtree(path, ignore_errors=True)
            if doomed.exists():
                raise OSError(errno.EACCES, f"a part could not be removed and stands in {doomed}")

    def put_blob(self, session_id: str, data: bytes) -> str:
        self._refuse_when_read_only(session_id)
        folder = self.session_dir(session_id)
        digest = _sha256(data)
        path = folder / BLOBS_NAME / digest
        with _storage_errors(session_id, "cannot take a blob"):
            if not path.parent.is_dir():
                path.parent.mkdir(mode=0o700, exist_ok=True)
                self._sync_folder(folder)
            if path.is_file() and path.read_bytes() == data:
                # Whoever put it there may have died before its name was on disk.
                self._sync_folder(path.parent)
            else:
                self._write_file(path, data)
        return digest

    def list_blobs(self, session_id: str) -> list[str]:
        """The digests of the session's blobs. Raises `SessionNotFoundError`."""
        folder = self.session_dir(session_id) / BLOBS_NAME
        return sorted(name for name in os.listdir(folder) if _SHA256.fullmatch(name)) if folder.is_dir() else []

    def read_blob(self, session_id: str, sha256: str) -> bytes:
        path = self.session_dir(session_id) / BLOBS_NAME / sha256
        if not _SHA256.fullmatch(sha256) or not path.is_file():
            raise StorageError(f"session {session_id!r} has no blob {sha256}", session_id=session_id)
        with _storage_errors(session_id, f"blob {sha256} cannot be read"):
            data = path.read_bytes()
        if _sha256(data) != sha256:
            raise StorageError(
                f"blob {sha256} of session {session_id!r} is damaged: its bytes are others", session_id=session_id
            )
        return data

    def _build(
        self,
        session_id: str,
        created_at: float,
        metadata: Mapping[str, Any] | None,
        lines: Iterable[bytes] = (),
        blobs: Iterable[tuple[str, bytes]] = (),
        summary: Callable[[], SessionSummary | None] = lambda: None,
    ) -> str:
        """Make a session complete or not at all; returns its id. `summary` is asked when the lines are written."""
        _check_id(session_id)
        self._refuse_when_read_only(session_id)
        meta = _Meta(session_id, created_at, dict(metadata or {})).to_json()
        folder = self._folder(session_id)
        with _storage_errors(session_id, "cannot be created"):
            if folder.exists():
                raise SessionExistsError(session_id)
            self._make_folders(folder.parent)
            unfinished = folder.with_name(f".new-{os.urandom(16).hex()}")
            try:
                log = _Measured(lines)
                self._fill(unfinished, meta, log, blobs)
                self._keep_first(unfinished, summary(), log)
                self._move_into_place(unfinished, folder)
            except BaseException:  # whatever happened, no half session stays behind
                shutil.rmtree(unfinished, ignore_errors=True)
                raise
        return session_id

    def _fill(self, folder: Path, meta: bytes, log: _Measured, blobs: Iterable[tuple[str, bytes]]) -> None:
        sync = self.durability != "flush"
        folder.mkdir(mode=0o700)
        for digest, data in blobs:
            (folder / BLOBS_NAME).mkdir(mode=0o700, exist_ok=True)
            write_new_file(self._disk, folder / BLOBS_NAME / digest, [data], sync=sync)
        write_new_file(self._disk, folder / META_NAME, [meta], sync=sync)
        # Copied lines say (`dur`) that they are on disk, so here that must be true at every level.
        write_new_file(self._disk, folder / LOG_NAME, log, sync=sync or bool(log.lines))
        for made in (folder / BLOBS_NAME, folder):
            if made.is_dir():
                self._sync_folder(made)

    def _keep_first(self, folder: Path, summary: SessionSummary | None, log: _Measured) -> None:
        if summary is not None:
            kept = KeptSummary(summary, Position(log.bytes, summary.events, log.crc))
            write_new_file(self._disk, folder / SUMMARY_NAME, [kept.to_json()], sync=False)

    def _move_into_place(self, unfinished: Path, folder: Path) -> None:
        try:
            self._disk.rename(str(unfinished), str(folder))
        except OSError as error:
            if folder.exists():
                raise SessionExistsError(folder.name) from error
            raise
        self._sync_folder(folder.parent)

    def _copied_lines(
        self, session_id: str, fd: int, at_seq: int, tail: Sequence[Event], now: float
    ) -> Iterator[bytes]:
        reader, here = LogReader(self._disk, fd, session_id), START
        blocks = reader.blocks()
        while here.seq < at_seq:
            block = next(blocks, None)
            if block is None:
                raise InvalidEventError(
                    f"session {session_id!r} has {here.seq} events and no event {at_seq} to copy up to"
                )
            lines = min(at_seq, reader.position.seq) - here.seq
            part, here = cut_block(block, here, lines)
            yield part
        yield from seal_events(tail, here, now)

    def _copied_summary(
        self, source: Path, start: SessionSummary, at_seq: int, tail: Sequence[Event]
    ) -> SessionSummary | None:
        """The summary of a copy; None when the source's is not known at `at_seq`, and the first list folds it."""
        kept = self._kept_summary(source.parent)
        head = copied_head(Head(kept.summary if kept else start), start, at_seq, None)
        return head.after(tail).summary if head.is_kept else None

    def _make_folders(self, folder: Path) -> None:
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir(mode=0o700, exist_ok=True)
            self._sync_folder(path.parent)

    def _folder(self, session_id: str) -> Path:
        if not is_session_id(session_id):
            raise SessionNotFoundError(session_id, str(self.root_dir))
        return self.root_dir / "sessions" / session_id

    def _written_at(self) -> dict[int, list[str]]:
        """The folders by the time at which their logs were written to: unchecked, since a page shows few of them."""
        folder, ask = str(self.root_dir / "sessions"), os.stat
        written: dict[int, list[str]] = {}
        for name in _folder_names(folder):
            # A path in one piece: with thousands of sessions, joining costs more than asking.
            try:
                tick = ask(f"{folder}/{name}/{LOG_NAME}").st_mtime_ns
            except OSError:
                continue
            if tick in written:
                written[tick].append(name)
            else:
                written[tick] = [name]
        return written

    def _decoded(self, session_id: str, path: Path, after_seq: int) -> Iterator[Event]:
        with self._opened(session_id, path) as fd:
            reader = LogReader(self._disk, fd, session_id, find_seq(self._disk, fd, after_seq))
            yield from self._decoded_after(after_seq, fd, reader, session_id)

    def _decoded_after(self, after_seq: int, fd: int, reader: LogReader, session_id: str) -> Iterator[Event]:
        seq = reader.position.seq
        try:
            for block in reader.blocks():
                for line in split_lines(block):
                    seq += 1
                    if seq > after_seq:
                        yield decode_line(line, seq)
        except BadLineError as bad:
            raise LogCorruptError(session_id, seq, offset_of(self._disk, fd, seq), bad.kind) from bad

    def _kept_summary(self, folder: Path) -> KeptSummary | None:
        # Its writer may be at it while it is read, which takes but a moment.
        looks = (_text_of(folder / SUMMARY_NAME) for _ in range(KEPT_LOOKS))
        return next((kept for text in looks if (kept := self._known_summary(folder, text))), None)

    def _known_summary(self, folder: Path, text: bytes | None) -> KeptSummary | None:
        """None as well for the summary of the session that this folder was copied from."""
        kept = KeptSummary.from_json(text) if text else None
        return kept if kept and kept.summary.id == folder.name else None

    def _find_kept(self, session_id: str, path: Path, end: Position) -> tuple[int, KeptSummary] | None:
        """The kept summary of a log that ends at `end`, open for its writer; None when there is none to go on with.

        A summary that was kept of an end that the log lost with the power is removed: what comes now could be as long.
        """
        # Windows would not let a change of the metadata replace an open file.
        fd = None if sys.platform == "win32" else _open_if_there(path.with_name(SUMMARY_NAME), os.O_RDWR)
        if fd is None:
            return None
        found = None
        try:
            # Another name of the same file would show somebody else what is written here.
            kept = self._known_summary(path.parent, _text_in(fd)) if os.fstat(fd).st_nlink == 1 else None
            if kept and end.offset - kept.position.offset <= MAX_TAIL_BYTES:
                found = self._caught_up(session_id, path, kept, end)
                if found is None:
                    path.with_name(SUMMARY_NAME).unlink(missing_ok=True)
        finally:
            if found is None:
                os.close(fd)
        return None if found is None else (fd, found)

    def _caught_up(self, session_id: str, path: Path, kept: KeptSummary, end: Position) -> KeptSummary | None:
        """The summary with the events folded in up to `end`; None when it is of a log that stood here before."""
        if kept.position == end:
            return kept
        if kept.position.offset >= end.offset:
            return None
        try:
            with self._opened(session_id, path) as fd:
                folded = self._folded(session_id, fd, kept)
        except LogCorruptError:
            return None
        return folded if folded.position == end else None

    def _fold_onto(self, session_id: str, fd: int, kept: KeptSummary | None) -> KeptSummary:
        if kept is None:
            known = self._read_meta(session_id)
            start = start_summary(session_id, known.created_at, known.metadata)
            return self._folded(session_id, fd, KeptSummary(start, START))
        try:
            return self._folded(session_id, fd, kept)
        except LogCorruptError:
            # The cache may be of another log that stood here; only the log itself says whether it is damaged.
            return self._fold_onto(session_id, fd, None)

    def _folded(self, session_id: str, fd: int, kept: KeptSummary) -> KeptSummary:
        reader = LogReader(self._disk, fd, session_id, kept.position)
        events = self._decoded_after(kept.position.seq, fd, reader, session_id)
        summary = fold_session_summary(kept.summary, events)
        return KeptSummary(summary, reader.position)

    @contextlib.contextmanager
    def _opened(self, session_id: str, path: Path) -> Iterator[int]:
        with _storage_errors(session_id, "cannot be read"):
            fd = self._disk.open(str(path), os.O_RDONLY | BINARY | NO_FOLLOW)
            try:
                yield fd
            finally:
                self._disk.close(fd)

    def _read_meta(self, session_id: str) -> _Meta:
        folder = self.session_dir(session_id)
        try:
            return _Meta.from_json((folder / META_NAME).read_bytes(), session_id)
        except (FileNotFoundError, InvalidEventError):
            # A cache: without it the session is as good as before, only what was known at its creation is not.
            return _Meta(session_id, self._first_ts(session_id) or (folder / LOG_NAME).stat().st_mtime, {})

    def _write_file(self, path: Path, data: bytes) -> None:
        write_durably(self._disk, path, data, sync=self.durability != "flush")

    def _sync_folder(self, folder: Path) -> None:
        if self.durability != "flush":
            self._disk.fsync_folder(str(folder))

    def _first_ts(self, session_id: str) -> float | None:
        try:
            first = next(self.iter_events(session_id), None)
        except LogCorruptError:
            return None
        return first.ts if first else None

    def _last_ts(self, session_id: str) -> float:
        try:
            folder = self.session_dir(session_id)
            kept = self._kept_summary(folder)
            if kept and kept.position.offset == (folder / LOG_NAME).stat().st_size:
                return kept.summary.updated
            last = self.read_events(session_id, after_seq=self.last_seq(session_id) - 1)
            return (last[-1].ts if last else self.read_metadata(session_id)["created_at"]) or 0.0
        except (SessionError, FileNotFoundError):
            return 0.0

    def _refuse_when_read_only(self, session_id: str) -> None:
        if self.read_only:
            raise StorageError(
                f"session {session_id!r} is open read-only: make the store without read_only to change it",
                session_id=session_id,
            )


class _Measured:
    """The lines of a new log; when they have been taken, how many bytes they are, and their checksum."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self.lines = lines
        self.bytes = self.crc = 0

    def __iter__(self) -> Iterator[bytes]:
        for line in self.lines:
            self.bytes, self.crc = self.bytes + len(line), crc32(line, self.crc)
            yield line


class _Passed:
    """Folds events while they go by; those without a time get `now`."""

    def __init__(self, start: SessionSummary, now: float) -> None:
        self._summary, self._now = start, now
        self._waiting: list[Event] = []

    def through(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            self._waiting.append(event if event.ts is not None else stamp_event(event, event.seq or 0, self._now))
            yield event
            if len(self._waiting) >= FOLDED_TOGETHER:
                self.summary()

    def summary(self) -> SessionSummary:
        """The summary of all that went by."""
        self._summary = fold_session_summary(self._summary, self._waiting)
        self._waiting.clear()
        return self._summary


@frozen
class _Meta:
    """What `meta.json` holds."""

    session_id: str
    created_at: float
    metadata: dict[str, Any]

    @classmethod
    def from_json(cls, text: bytes, session_id: str) -> _Meta:
        """Raises `InvalidEventError` for anything but what `to_json` writes."""
        data = loads_json(text)
        created_at, metadata = (
            (data.get("created_at"), data.get("metadata")) if isinstance(data, dict) else (None, None)
        )
        if not isinstance(created_at, int | float) or abs(created_at) > LAST_TIME or not isinstance(metadata, dict):
            raise InvalidEventError("meta.json holds no created_at and metadata")
        return cls(session_id, created_at, metadata)

    def changed(self, changes: Mapping[str, Any]) -> _Meta:
        merged = {**self.metadata, **changes}
        return replace(self, metadata={key: value for key, value in merged.items() if value is not None})

    def to_dict(self) -> dict[str, Any]:
        return {"session_id": self.session_id, "created_at": self.created_at, "metadata": self.metadata}

    def to_json(self) -> bytes:
        return dumps_json(self.to_dict()).encode("ascii") + b"\n"


def _sha256(data: bytes) -> str:
    # Loading it takes as long as a list of sessions has for all else that it does.
    import hashlib

    return hashlib.sha256(data).hexdigest()


def _open_if_there(path: Path, how: int) -> int | None:
    """A handle that opening never waits for, whatever stands there; None for a link."""
    try:
        return os.open(path, how | BINARY | NO_FOLLOW | NO_WAIT)
    except OSError:
        return None


def _text_of(path: Path) -> bytes | None:
    """The bytes of a cache file; None when there is none that could be one."""
    fd = _open_if_there(path, os.O_RDONLY)
    try:
        return None if fd is None else _text_in(fd)
    except OSError:
        return None
    finally:
        if fd is not None:
            os.close(fd)


def _text_in(fd: int) -> bytes | None:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_CACHE_BYTES:
        return None
    return os.read(fd, found.st_size)


def _check_id(session_id: str) -> None:
    if not is_session_id(session_id):
        raise OptionsError(
            f"{session_id!r} cannot name a session: use up to 128 letters, digits, '.', '_' and '-', "
            "beginning with a letter or digit"
        )


def _folder_names(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _is_session(folder: Path) -> bool:
    """A link instead of a folder could lead out of the store, so it is no session."""
    try:
        return stat.S_ISDIR(os.lstat(folder).st_mode) and stat.S_ISREG(os.lstat(folder / LOG_NAME).st_mode)
    except OSError:
        return False


@contextlib.contextmanager
def _storage_errors(session_id: str, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"session {session_id!r} {what}: {error.strerror or error}", session_id=session_id
        ) from error


@contextlib.contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Keep other processes from changing the same metadata between our read and our write."""
    if sys.platform == "win32":
        yield
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        wait_for_lock(fd)
        yield
    finally:
        os.close(fd)
