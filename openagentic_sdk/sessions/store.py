"""Sessions as folders of plain files.

    <root_dir>/sessions/<id>/events.jsonl     the log, the only truth
                             meta.json        what was known at creation; a cache, may be deleted
                             blobs/<sha256>   values too big for a line, on disk before the line that names them

A session appears complete or not at all: its folder is built under another name and renamed. Ids cannot leave the folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from ..clock import Clock, SystemClock
from ..errors import (
    InvalidEventError,
    LogCorruptError,
    OptionsError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from ..events import Event
from ..serialization import dumps_json, loads_json
from .base import SessionStore
from .disk import BINARY, NO_FOLLOW, Disk, SystemDisk
from .line import BadLineError, decode_line
from .lock import try_lock, wait_for_lock
from .log import DURABILITY_LEVELS, LogWriter, open_log, write_durably
from .scan import LogReader, find_end, find_seq, offset_of, split_lines

__all__ = ["FileSessionStore", "SessionStore"]

LOG_NAME = "events.jsonl"
META_NAME = "meta.json"
BLOBS_NAME = "blobs"

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# Windows opens a device for these names, whatever stands behind their first dot.
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def is_session_id(text: str) -> bool:
    """Whether the text can name a session: 1 to 128 letters, digits, `.`, `_` and `-`, the first a letter or digit."""
    return bool(_ID.fullmatch(text)) and not text.endswith(".") and not _DEVICE.fullmatch(text)


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

    def session_dir(self, session_id: str) -> Path:
        """The session's folder. Raises `SessionNotFoundError`."""
        folder = self._folder(session_id)
        if not _is_session(folder):
            raise SessionNotFoundError(session_id, str(self.root_dir))
        return folder

    def create_session(self, *, metadata: Mapping[str, Any] | None = None, session_id: str | None = None) -> str:
        session_id = session_id or uuid.uuid4().hex
        if not is_session_id(session_id):
            raise OptionsError(
                f"{session_id!r} cannot name a session: use up to 128 letters, digits, '.', '_' and '-', "
                "beginning with a letter or digit"
            )
        meta = _Meta(session_id, self._clock.now(), dict(metadata or {})).to_json()
        self._refuse_when_read_only(session_id)
        with _storage_errors(session_id, "cannot be created"):
            self._create(session_id, meta)
        return session_id

    def open_writer(self, session_id: str) -> LogWriter:
        self._refuse_when_read_only(session_id)
        path = self.session_dir(session_id) / LOG_NAME
        return open_log(path, session_id=session_id, durability=self.durability, clock=self._clock, disk=self._disk)

    def iter_events(self, session_id: str, *, after_seq: int = 0, limit: int | None = None) -> Iterator[Event]:
        """Like `SessionStore.iter_events`; with `after_seq` near the log's end, the lines before it are not checked."""
        path = self.session_dir(session_id) / LOG_NAME
        return islice(self._decoded(session_id, path, max(0, after_seq)), limit)

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
            self._write_file(folder / META_NAME, meta.to_json())

    def list_sessions(self) -> list[str]:
        return [name for _, name in sorted(self._written_at(), reverse=True)]

    def session_exists(self, session_id: str) -> bool:
        return is_session_id(session_id) and _is_session(self._folder(session_id))

    def delete_session(self, session_id: str) -> None:
        self._refuse_when_read_only(session_id)
        folder = self.session_dir(session_id)
        doomed = folder.with_name(f".deleted-{uuid.uuid4().hex}")
        with _storage_errors(session_id, "cannot be deleted"), self._opened(session_id, folder / LOG_NAME) as fd:
            if not try_lock(fd):
                raise SessionLockedError(session_id)
            self._disk.rename(str(folder), str(doomed))
            self._sync_folder(folder.parent)
            shutil.rmtree(doomed)

    def put_blob(self, session_id: str, data: bytes) -> str:
        self._refuse_when_read_only(session_id)
        folder = self.session_dir(session_id)
        digest = hashlib.sha256(data).hexdigest()
        path = folder / BLOBS_NAME / digest
        with _storage_errors(session_id, "cannot take a blob"):
            if not path.parent.is_dir():
                path.parent.mkdir(mode=0o700, exist_ok=True)
                self._sync_folder(folder)
            if not (path.is_file() and path.stat().st_size == len(data)):
                self._write_file(path, data)
        return digest

    def read_blob(self, session_id: str, sha256: str) -> bytes:
        path = self.session_dir(session_id) / BLOBS_NAME / sha256
        if not _SHA256.fullmatch(sha256) or not path.is_file():
            raise StorageError(f"session {session_id!r} has no blob {sha256}", session_id=session_id)
        with _storage_errors(session_id, f"blob {sha256} cannot be read"):
            data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise StorageError(
                f"blob {sha256} of session {session_id!r} is damaged: its bytes are others", session_id=session_id
            )
        return data

    def _create(self, session_id: str, meta: bytes) -> None:
        folder = self._folder(session_id)
        if folder.exists():
            raise SessionExistsError(session_id)
        self._make_folders(folder.parent)
        unfinished = folder.with_name(f".new-{uuid.uuid4().hex}")
        unfinished.mkdir(mode=0o700)
        try:
            self._write_file(unfinished / META_NAME, meta)
            self._write_file(unfinished / LOG_NAME, b"")
            self._disk.rename(str(unfinished), str(folder))
        except BaseException as error:  # whatever happened, no half session stays behind
            shutil.rmtree(unfinished, ignore_errors=True)
            if isinstance(error, OSError) and folder.exists():
                raise SessionExistsError(session_id) from None
            raise
        self._sync_folder(folder.parent)

    def _make_folders(self, folder: Path) -> None:
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir(mode=0o700, exist_ok=True)
            self._sync_folder(path.parent)

    def _folder(self, session_id: str) -> Path:
        if not is_session_id(session_id):
            raise SessionNotFoundError(session_id, str(self.root_dir))
        return self.root_dir / "sessions" / session_id

    def _written_at(self) -> Iterator[tuple[int, str]]:
        try:
            entries = list(os.scandir(self.root_dir / "sessions"))
        except FileNotFoundError:
            return
        for entry in entries:
            if is_session_id(entry.name) and entry.is_dir(follow_symlinks=False):
                try:
                    yield os.stat(os.path.join(entry.path, LOG_NAME)).st_mtime_ns, entry.name
                except FileNotFoundError:
                    continue

    def _decoded(self, session_id: str, path: Path, after_seq: int) -> Iterator[Event]:
        with self._opened(session_id, path) as fd:
            start = find_seq(self._disk, fd, after_seq)
            seq = start.seq
            try:
                for block in LogReader(self._disk, fd, session_id, start).blocks():
                    for line in split_lines(block):
                        seq += 1
                        if seq > after_seq:
                            yield decode_line(line, seq)
            except BadLineError as bad:
                raise LogCorruptError(session_id, seq, offset_of(self._disk, fd, seq), bad.kind) from bad

    @contextmanager
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
            return _Meta(session_id, (folder / LOG_NAME).stat().st_mtime, {})

    def _write_file(self, path: Path, data: bytes) -> None:
        write_durably(self._disk, path, data, sync=self.durability != "flush")

    def _sync_folder(self, folder: Path) -> None:
        if self.durability != "flush":
            self._disk.fsync_folder(str(folder))

    def _refuse_when_read_only(self, session_id: str) -> None:
        if self.read_only:
            raise StorageError(
                f"session {session_id!r} is open read-only: make the store without read_only to change it",
                session_id=session_id,
            )


@dataclass(frozen=True)
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
        if not isinstance(created_at, int | float) or not isinstance(metadata, dict):
            raise InvalidEventError("meta.json holds no created_at and metadata")
        return cls(session_id, created_at, metadata)

    def changed(self, changes: Mapping[str, Any]) -> _Meta:
        merged = {**self.metadata, **changes}
        return replace(self, metadata={key: value for key, value in merged.items() if value is not None})

    def to_dict(self) -> dict[str, Any]:
        return {"session_id": self.session_id, "created_at": self.created_at, "metadata": self.metadata}

    def to_json(self) -> bytes:
        return dumps_json(self.to_dict()).encode("ascii") + b"\n"


def _is_session(folder: Path) -> bool:
    """A link instead of a folder could lead out of the store, so it is no session."""
    try:
        return stat.S_ISDIR(os.lstat(folder).st_mode) and stat.S_ISREG(os.lstat(folder / LOG_NAME).st_mode)
    except OSError:
        return False


@contextmanager
def _storage_errors(session_id: str, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"session {session_id!r} {what}: {error.strerror or error}", session_id=session_id
        ) from error


@contextmanager
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
