"""Sessions as folders of plain files.

    <root_dir>/sessions/<id>/events.jsonl     the log, the only source of truth
                             meta.json        the session's metadata; a cache, may be deleted
                             summary.json     the session's row in a list; a cache, may be deleted
                             checkpoint.json  the view after the last compaction; a cache, may be deleted
                             blobs/<sha256>   values too big for a line, on disk before the line that names them
                             outputs/<name>   outputs of tools that are too long for an event
                             events.jsonl.*, summary.json.*  evidence of damage by a crash or a failing disk
    <root_dir>/requests/<sha256>              the session with the request id of this digest; a cache, may be deleted
    <root_dir>/inbox/messages.json            messages to runs that no run has taken yet
    <root_dir>/index/                         the order of many sessions, and their words; a cache, may be deleted

A session appears complete or not at all: its folder is built under another name and renamed. No id leads out of the folder.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import (
    LogCorruptError,
    SessionError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from ..events import Event
from ..ground.checks import check_settings
from ..ground.checks import path as path_check
from ..ground.clock import Clock
from ..ground.disk import Disk, SystemDisk, make_folder, read_regular, remove_tree, rename_durably, write_durably
from ..ground.patterns import regex
from ..ground.system import BINARY, NO_FOLLOW
from ..serialization import loads_json
from .arguments import DIGEST, check_digest, check_text, cut_limit, cut_number
from .base import Metadata, SessionStore, When, check_copied_part, merged_metadata, read_clock, stamp_events
from .core import check_expected_seq, new_session_id
from .folds.summary import SessionSummary, fold_session_summary, start_summary
from .folds.view import KeptView
from .log.checkpoint_file import Checkpoint, is_at
from .log.file import LogWriter, open_log, seal_events
from .log.folder import (
    BLOBS_NAME,
    LOG_NAME,
    META_NAME,
    SUMMARY_NAME,
    Meta,
    build_folder,
    folder_lock,
    is_session_folder,
    is_session_id,
    path_in,
    read_if_exists,
    storage_errors,
    sweep_unfinished,
)
from .log.inbox_file import InboxFile
from .log.line import Durability, check_durability, stamp_event
from .log.lock import is_locked, lock_holder, try_lock
from .log.scan import START, LogReader, Position, cut_block, find_end, find_seq
from .log.summary_beside import SummaryBeside
from .log.summary_file import SummaryFile
from .request import json_sha256
from .seal import Seal
from .stores.file_index import FileIndex
from .stores.listed_files import ListedFiles, listing_errors
from .stores.log_state import LogHead, copied_head

__all__ = ["FileSessionStore", "SessionStore"]

# The number of imported events that are folded into the new session's summary together.
FOLDED_TOGETHER = 256
REQUESTS_NAME = "requests"
# A longer file was not written by a store: metadata are a few short texts.
_MAX_META_BYTES = 64 << 20
# If somebody has a removed file open, NFS and FUSE only rename it, to a name that begins like this.
_OPEN_FILES = (".nfs", ".fuse_hidden")
_REQUEST_ID = regex(rb'"request_id":\s*("(?:[^"\\]|\\.)*")')


class FileSessionStore(ListedFiles):
    """A store of sessions in files under `root_dir`, which is created with the first session.

    `durability` is `flush`, `barrier` or `fsync`, see `sessions.log.file`. With `read_only` nothing is ever written, not
    even a repair. `seal` creates and checks the digests of data kept beside logs, by default with this installation's key.
    """

    def __init__(
        self,
        root_dir: str | os.PathLike[str],
        durability: Durability = "barrier",
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        read_only: bool = False,
        seal: Seal | None = None,
    ) -> None:
        check_settings({"root_dir": root_dir}, {"root_dir": path_check})
        self.root_dir = Path(root_dir)
        self.place = "file", os.path.realpath(root_dir)
        self._sessions = path_in(self.root_dir, "sessions")
        self.durability: Durability = check_durability(durability)
        self.read_only = read_only
        self._clock = read_clock(clock)
        self._disk = disk or SystemDisk()
        self.seal = seal or Seal()
        self._guard = threading.Lock()
        self._is_swept = False
        self._inbox = InboxFile(self._disk, path_in(self.root_dir, "inbox"), sync=durability != "flush")
        self._lengths: dict[str, tuple[int, int]] = {}  # of logs without events after a seq
        self._index = FileIndex(self._sessions, path_in(self.root_dir, "index"), LOG_NAME)

    def session_dir(self, session_id: str) -> Path:
        """Return the session's folder. Raises `SessionNotFoundError`."""
        folder = self._folder(session_id)
        if not is_session_folder(folder):
            raise SessionNotFoundError(session_id, str(self.root_dir))
        return folder

    def create_session(self, *, metadata: Mapping[str, Any] | None = None, session_id: str | None = None) -> str:
        name, now = session_id or new_session_id(), self._clock.now()
        return self._build(name, now, metadata, summary=lambda: start_summary(name, now, metadata or {}))

    def _import_events(
        self, session_id: str, created_at: When, metadata: Metadata, events: Iterator[Event], blobs: Iterator[bytes]
    ) -> None:
        now = self._clock.now()
        created_at = now if created_at is None else created_at
        passed = _Passed(start_summary(session_id, created_at, metadata), now)
        lines = seal_events(passed.through(events), START, now)
        blobs_by_digest = ((_sha256(data), data) for data in blobs)
        self._build(session_id, created_at, metadata, lines=lines, blobs=blobs_by_digest, summary=passed.summary)

    def copy_session(
        self, source_id: str, target_id: str, *, at_seq: int, tail: Sequence[Event], metadata: Mapping[str, Any]
    ) -> str:
        """Like `SessionStore.copy_session`; the source's lines are copied byte for byte, and the source may be in use.

        Raises `LogCorruptError` for damage up to `at_seq`.
        """
        path = self._log(source_id)
        now = self._clock.now()
        blobs_by_digest = ((digest, self.read_blob(source_id, digest)) for digest in self.list_blobs(source_id))
        with self._opened(source_id, path) as fd:
            # The end of the copied log itself, because another log may replace it at any time.
            check_copied_part(source_id, at_seq, find_end(self._disk, fd, source_id).position.seq)
            stamped = stamp_events(tail, first_seq=at_seq + 1, now=now)
            lines = self._copied_lines(source_id, fd, at_seq, stamped, now)
            start = start_summary(target_id, now, metadata)
            summary = partial(self._copied_summary, source_id, start, at_seq, stamped)
            return self._build(target_id, now, metadata, lines=lines, blobs=blobs_by_digest, summary=summary)

    def open_writer(self, session_id: str) -> LogWriter:
        self._refuse_when_read_only(session_id)
        folder = self.session_dir(session_id)
        path = path_in(folder, LOG_NAME)
        writer = open_log(path, session_id=session_id, durability=self.durability, clock=self._clock, disk=self._disk)
        try:
            with storage_errors(session_id, "has a summary that cannot be kept"):
                beside = SummaryBeside(self._disk, folder)
                writer.keep_summary(SummaryFile(beside.open_for_writer, writer.position))
                writer.keep_views(Checkpoint(self._disk, folder, self.seal).write)
            self._index.touch(session_id)
        except BaseException:  # after any error, the lock must be released
            writer.close()
            raise
        return writer

    def iter_events(self, session_id: str, *, after_seq: int = 0, limit: int | None = None) -> Iterator[Event]:
        """Like `SessionStore.iter_events`; lines up to `after_seq` that are on disk are not checked, and mostly not read."""
        after_seq, limit = cut_number("after_seq", after_seq), cut_limit(limit)
        return islice(self._events(session_id, self._log(session_id), after_seq), limit)

    def _events(self, session_id: str, path: Path, after_seq: int, position: Position | None = None) -> Iterator[Event]:
        with self._opened(session_id, path) as fd:
            reader = LogReader(self._disk, fd, session_id, position or find_seq(self._disk, fd, after_seq))
            yield from reader.events(after_seq)

    def read_kept_view(self, session_id: str) -> tuple[KeptView | None, Iterator[Event]]:
        folder = self.session_dir(session_id)
        checkpoint = Checkpoint(self._disk, folder, self.seal).read()
        if checkpoint is not None:
            position, view = checkpoint
            with self._opened(session_id, path_in(folder, LOG_NAME)) as fd:
                if is_at(self._disk, fd, position):
                    return view, self._events(session_id, path_in(folder, LOG_NAME), position.seq, position)
        return None, self.iter_events(session_id)

    def last_seq(self, session_id: str) -> int:
        """Return the `seq` of the log's last event, 0 for an empty log, without reading the whole log."""
        path = self._log(session_id)
        with self._opened(session_id, path) as fd:
            return find_end(self._disk, fd, session_id).position.seq

    def wait_for_news(
        self, known: Mapping[str, int], *, timeout_s: float, messages_after: int | None = None
    ) -> set[str]:
        self._lengths = {name: length for name, length in self._lengths.items() if name in known}
        return super().wait_for_news(known, timeout_s=timeout_s, messages_after=messages_after)

    def _has_news(self, session_id: str, after_seq: int, timeout_s: float) -> bool:
        """Whether the log may have new events or have lost some; a log of unchanged size is not read again."""
        try:
            length = os.stat(os.path.join(self.root_dir, "sessions", session_id, LOG_NAME)).st_size
        except (OSError, ValueError):
            return True
        known_seq, known_length = self._lengths.get(session_id, (-1, 0))
        # A shorter log was damaged or replaced: reading it raises the reason.
        if length < known_length:
            del self._lengths[session_id]
            return True
        # Not if there is time to wait: an append during the wait is news, too.
        if timeout_s <= 0 and (known_seq, known_length) == (after_seq, length):
            return False
        has_news = super()._has_news(session_id, after_seq, timeout_s)
        if not has_news:
            self._lengths[session_id] = after_seq, length
        return has_news

    def read_metadata(self, session_id: str) -> dict[str, Any]:
        return self._read_meta(session_id).to_dict()

    def update_metadata(self, session_id: str, changes: Mapping[str, Any]) -> None:
        self._refuse_when_read_only(session_id)
        folder = self.session_dir(session_id)
        with self._guard, storage_errors(session_id, "has metadata that cannot be stored"), folder_lock(folder):
            meta = self._read_meta(session_id)
            meta = replace(meta, metadata=merged_metadata(meta.metadata, changes))
            # Before and after the change: the index may read the old metadata in between, and a crash may come in between.
            self._index.touch(session_id)
            # A summary starts from the metadata. No other summary is stored before the lock is released.
            (folder / SUMMARY_NAME).unlink(missing_ok=True)
            write_durably(self._disk, folder / META_NAME, meta.to_json(), sync=self.durability != "flush")
            self._index.touch(session_id)

    def is_held(self, session_id: str) -> bool:
        with self._opened(session_id, self._log(session_id)) as fd:
            return is_locked(fd)

    def kept_summary(self, session_id: str) -> SessionSummary:
        """Return the summary stored beside the log, with later events folded in, or fold the whole log if none is usable."""
        folder = self.session_dir(session_id)
        beside = SummaryBeside(self._disk, folder)
        summary = beside.kept()
        with self._opened(session_id, path_in(folder, LOG_NAME)) as fd:
            size = self._disk.fstat(fd).st_size
            if summary and summary.position.offset == size and not beside.is_hole(fd, summary.position):
                return summary.summary
            return beside.brought_up(fd, partial(self._start_summary, session_id), keep=not self.read_only)

    def _start_summary(self, session_id: str) -> SessionSummary:
        meta = self._read_meta(session_id)
        return start_summary(session_id, meta.created_at, meta.metadata)

    def list_lost(self) -> list[str]:
        """Return the ids of sessions whose log was removed, while the metadata beside it remains."""
        with listing_errors(self._sessions):
            names = os.listdir(self._sessions) if self._sessions.is_dir() else []
        folders = {name: self._sessions / name for name in sorted(names) if is_session_id(name)}
        return [
            name
            for name, folder in folders.items()
            if not os.path.lexists(path_in(folder, LOG_NAME)) and os.path.isfile(folder / META_NAME)
        ]

    def session_exists(self, session_id: str) -> bool:
        return is_session_id(session_id) and is_session_folder(self._folder(session_id))

    def claim_request(self, session_id: str, request_id: str) -> str:
        """Like `SessionStore.claim_request`. Reads one file; the first claim of a request id also writes it."""
        check_text("request_id", request_id)
        path = self.root_dir / REQUESTS_NAME / json_sha256(request_id)
        self.session_dir(session_id)
        with storage_errors(session_id, "cannot look up a request id"):
            # Without the lock first: a repeated request, the usual case, only reads.
            if owner := self._request_owner(path):
                return owner
        self._refuse_when_read_only(session_id)
        with storage_errors(session_id, "cannot store a request id"):
            if not path.parent.is_dir():
                make_folder(self._disk, path.parent, sync=self.durability != "flush")
            with self._guard, folder_lock(path.parent):
                owner = self._request_owner(path)
                if not owner:
                    write_durably(self._disk, path, session_id.encode("ascii"), sync=self.durability != "flush")
                return owner or session_id

    def _request_owner(self, path: Path) -> str | None:
        """Return the session named in a request id's file; None if the file or the session does not exist."""
        name = (read_if_exists(path) or b"").decode("ascii", "replace")
        return name if self.session_exists(name) else None

    def _forget_requests(self, session_id: str, folder: Path) -> None:
        """Unbind the request ids of a deleted session, which a later session with its id would otherwise inherit."""
        requests = self.root_dir / REQUESTS_NAME
        if not requests.is_dir():
            return
        with open(path_in(folder, LOG_NAME), "rb") as log:
            # By pattern instead of parsed, because a damaged log can be deleted too.
            texts = {text for line in log for text in _REQUEST_ID.findall(line)}
        with self._guard, folder_lock(requests):
            for text in texts:
                path = requests / json_sha256(loads_json(text.decode("ascii", "replace")))
                # A tool's text may look like a request id: only a file that names this session is removed.
                if read_if_exists(path) == session_id.encode("ascii"):
                    self._disk.unlink(str(path))

    def delete_session(self, session_id: str, *, expected_seq: int | None = None) -> None:
        self._refuse_when_read_only(session_id)
        self.refuse_kept(session_id)
        folder = self.session_dir(session_id)
        doomed = folder.with_name(f".deleted-{os.urandom(16).hex()}")
        with storage_errors(session_id, "cannot be deleted"), self._opened(session_id, path_in(folder, LOG_NAME)) as fd:
            # The log's lock, like a writer: no run may be using the session, and none can begin before the folder is
            # renamed.
            if not try_lock(fd):
                raise SessionLockedError(session_id, lock_holder(fd))
            if expected_seq is not None:
                check_expected_seq(session_id, expected_seq, self.last_seq(session_id))
            # So that a change of a file beside the log does not reach a new session with this name.
            with folder_lock(folder):
                if not os.path.samestat(self._disk.fstat(fd), os.stat(path_in(folder, LOG_NAME))):
                    raise SessionLockedError(session_id, "a process that replaced its log")
                # The inbox stays locked during the rename, so that no message for the session arrives in between.
                with self._inbox.without(lambda each: each[1] == session_id):
                    rename_durably(self._disk, folder, doomed, sync=self.durability != "flush")
        # After closing the log: network file systems keep a file that is open, and the folder around it.
        with storage_errors(session_id, "cannot be deleted"):
            # Our folder, and those left by processes killed while deleting; another process may be removing them, too.
            self._index.forget(session_id)
            with contextlib.suppress(OSError):
                self._forget_requests(session_id, doomed)
            for path in folder.parent.glob(".deleted-*"):
                remove_tree(path)
            sweep_unfinished(folder.parent)
            if doomed.exists() and not _has_open_files(doomed):
                remove_tree(doomed)  # whose last reader may have closed it just now
            if doomed.exists() and not _has_open_files(doomed):
                raise OSError(errno.EACCES, f"a part of it could not be removed, and is now in {doomed}")

    def put_blob(self, session_id: str, data: bytes) -> str:
        self._refuse_when_read_only(session_id)
        folder = self.session_dir(session_id)
        digest, data = _sha256(data), bytes(data)
        path = folder / BLOBS_NAME / digest
        with storage_errors(session_id, "cannot store a blob"):
            if not path.parent.is_dir():
                make_folder(self._disk, path.parent, sync=self.durability != "flush")
            # An existing blob need not be on disk: its writer may have died, or its sync may have failed.
            if self.durability != "flush" or not path.is_file() or path.read_bytes() != data:
                write_durably(self._disk, path, data, sync=self.durability != "flush")
        return digest

    def list_blobs(self, session_id: str) -> list[str]:
        """Return the digests of the session's blobs, even of those that no event names. Raises `SessionNotFoundError`."""
        folder = self.session_dir(session_id) / BLOBS_NAME
        with storage_errors(session_id, "has blobs that cannot be listed"):
            try:
                return sorted(name for name in os.listdir(folder) if DIGEST.fullmatch(name))
            except (FileNotFoundError, NotADirectoryError):
                self.session_dir(session_id)  # it may have been deleted in the meantime
        return []

    def read_blob(self, session_id: str, sha256: str) -> bytes:
        check_digest(session_id, sha256)
        path = self.session_dir(session_id) / BLOBS_NAME / sha256
        with storage_errors(session_id, f"has a blob, {sha256}, that cannot be read"):
            if not path.is_file():
                raise StorageError(f"session {session_id!r} has no blob {sha256}", session_id=session_id)
            data = path.read_bytes()
        if _sha256(data) != sha256:
            raise StorageError(
                f"blob {sha256} of session {session_id!r} is damaged: its bytes do not match its digest",
                session_id=session_id,
            )
        return data

    def _build(self, session_id: str, created_at: float, metadata: Mapping[str, Any] | None, **content: Any) -> str:
        """Create a session atomically; return its id. `content` is passed to `build_folder`."""
        self._refuse_when_read_only(session_id)
        if not self._is_swept:
            self._is_swept = True
            with contextlib.suppress(OSError):  # the next process removes them
                sweep_unfinished(self._sessions)
        meta = Meta(session_id, created_at, dict(metadata or {}))
        build_folder(self._disk, self._sessions, meta, sync=self.durability != "flush", **content)
        self._index.touch(session_id)
        return session_id

    def _copied_lines(
        self, session_id: str, fd: int, at_seq: int, tail: Sequence[Event], now: float
    ) -> Iterator[bytes]:
        reader, here = LogReader(self._disk, fd, session_id), START
        for block in reader.blocks() if at_seq else ():
            # A block of whole lines up to `at_seq` is copied as it is; only the last one has to be cut between two
            # lines.
            if reader.position.seq <= at_seq and block.endswith(b"\n"):
                part, here = block, reader.position
            else:
                part, here = cut_block(block, here, min(at_seq, reader.position.seq) - here.seq)
            yield part
            if here.seq == at_seq:
                break
        check_copied_part(session_id, at_seq, here.seq)  # the rest of a failed write may be gone by now
        yield from seal_events(tail, here, now)

    def _copied_summary(
        self, source_id: str, start: SessionSummary, at_seq: int, tail: Sequence[Event]
    ) -> SessionSummary | None:
        """The summary of a copy; None if that of the source at `at_seq` is unknown: then the first list folds the copy."""
        summary = SummaryBeside(self._disk, self.session_dir(source_id)).kept()
        source = LogHead(summary.summary if summary else start)
        head = copied_head(source, self._start_summary(source_id), start, at_seq, None)
        return head.after(tail).summary if head.is_kept else None

    def _folder(self, session_id: str) -> Path:
        if not is_session_id(session_id):
            raise SessionNotFoundError(session_id, str(self.root_dir))
        return path_in(self._sessions, session_id)

    def _log(self, session_id: str) -> Path:
        return path_in(self.session_dir(session_id), LOG_NAME)

    @contextlib.contextmanager
    def _opened(self, session_id: str, path: Path) -> Iterator[int]:
        with storage_errors(session_id, "cannot be read"):
            fd = self._disk.open(str(path), os.O_RDONLY | BINARY | NO_FOLLOW)
            try:
                yield fd
            finally:
                self._disk.close(fd)

    def _read_meta(self, session_id: str) -> Meta:
        folder = self.session_dir(session_id)
        with storage_errors(session_id, "has metadata that cannot be read"):
            try:
                return Meta.from_json(read_regular(path_in(folder, META_NAME), _MAX_META_BYTES), session_id)
            except (FileNotFoundError, ValueError):  # missing, or not what was written there
                # A cache: without it, the session is intact, and only the metadata of its creation is lost.
                first = None
                with contextlib.suppress(LogCorruptError):
                    first = next(self.iter_events(session_id), None)
                created_at = first.ts if first and first.ts else path_in(folder, LOG_NAME).stat().st_mtime
                return Meta(session_id, created_at, {})

    def _last_ts(self, session_id: str) -> float:
        try:
            folder = self.session_dir(session_id)
            summary = SummaryBeside(self._disk, folder).kept()
            if summary and summary.position.offset == path_in(folder, LOG_NAME).stat().st_size:
                return summary.summary.updated
            last = self.read_events(session_id, after_seq=self.last_seq(session_id) - 1)
            return (last[-1].ts if last else self.read_metadata(session_id)["created_at"]) or 0.0
        except (SessionError, OSError):
            return 0.0

    def _refuse_when_read_only(self, session_id: str) -> None:
        if self.read_only:
            raise StorageError(
                f"session {session_id!r} is open read-only: create the store without read_only to change it",
                session_id=session_id,
            )


class _Passed:
    """A summary folded from events while another consumer iterates over them; events without a time count as of `now`."""

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
        """The summary of all events so far."""
        self._summary = fold_session_summary(self._summary, self._waiting)
        self._waiting.clear()
        return self._summary


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _has_open_files(folder: Path) -> bool:
    """Whether readers still have files of a removed folder open: the file system removes them when they are closed."""
    return any(name.startswith(_OPEN_FILES) for _, _, names in os.walk(folder) for name in names)
