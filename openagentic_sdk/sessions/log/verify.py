"""Check a stored session from its first byte to its last, say what is wrong, where and what to do, and save what is good.

Nothing here changes the session that is looked at.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from ...disk import BINARY, NO_FOLLOW, SystemDisk
from ...errors import LogCorruptError, StorageError
from ...events import SessionForked
from ...frozen import frozen
from ..authority import foreign_authority, sign_fork
from ..store import FileSessionStore
from .folder import LOG_NAME
from .line import BadLineError, decode_line, read_envelope
from .scan import LogReader, offset_of, split_lines

_WRONG: Mapping[str, str] = {
    "checksum": "its bytes are not those that were written",
    "sequence": "it is not the next event: lines are missing, doubled or moved",
    "json": "it is not an event",
    "hole": "zeros stand in its place",
    "durable-loss": "it is damaged although a later line says that it was safely on disk",
    "torn-tail": "it is unfinished, as a crash in the middle of a write leaves it",
    "blob": "its bytes are not those that its name promises",
}
_HARMLESS = frozenset({"torn-tail"})


@frozen
class Problem:
    """One thing that is wrong. `seq` and `offset` say where in the log; both are 0 for a blob, whose digest is `blob`."""

    kind: str
    seq: int
    offset: int
    todo: str
    blob: str | None = None

    @property
    def is_harmless(self) -> bool:
        """Whether it is what a crash leaves behind, and the next run cleans up without loss of anything acknowledged."""
        return self.kind in _HARMLESS

    def __str__(self) -> str:
        where = f"blob {self.blob}" if self.blob else f"event {self.seq} at byte {self.offset}"
        return f"{where}: {_WRONG[self.kind]} ({self.kind}); {self.todo}"


@frozen
class SessionReport:
    """What a check found: `events` good events take `good_bytes` of the log's `size`.

    `durable_seq` is the last event of which the log itself says that it is safely on disk. `foreign` are the events that
    would allow something when the session goes on and were not written by this installation: they count as history.
    """

    session_id: str
    events: int
    good_bytes: int
    size: int
    durable_seq: int
    problems: tuple[Problem, ...] = ()
    foreign: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the session can be gone on with as it is."""
        return all(problem.is_harmless for problem in self.problems)


@frozen
class Salvage:
    """What was saved: `session_id` is the new session, `report` what the check of the old one found."""

    session_id: str
    events: int
    dropped_bytes: int
    report: SessionReport


def verify_session(store: FileSessionStore, session_id: str, *, decode: bool = True) -> SessionReport:
    """Check the whole log, and every blob beside it.

    Without `decode` only numbers and checksums are checked, which takes little more than reading the file. Raises
    `SessionNotFoundError`, and `StorageError` when the disk does not give the bytes.
    """
    path = store.session_dir(session_id) / LOG_NAME
    disk = SystemDisk()
    try:
        fd = disk.open(str(path), os.O_RDONLY | BINARY | NO_FOLLOW)
        try:
            report = _verify_log(disk, fd, session_id, decode)
        finally:
            disk.close(fd)
    except OSError as error:
        raise StorageError(
            f"session {session_id!r} cannot be read: {error.strerror or error}", session_id=session_id
        ) from error
    events = store.iter_events(session_id, limit=report.events) if decode and report.ok else ()
    foreign = foreign_authority(session_id, events, store.seal)
    return replace(_with_blobs(report, store), foreign=tuple(event.seq or 0 for event in foreign))


def _verify_log(disk: SystemDisk, fd: int, session_id: str, decode: bool) -> SessionReport:
    reader = LogReader(disk, fd, session_id)
    problems: list[Problem] = []
    last, decoded = b"", 0
    try:
        for block in reader.blocks():
            last = block
            for line in split_lines(block) if decode else ():
                decode_line(line, decoded + 1)
                decoded += 1
    except LogCorruptError as error:
        problems.append(_damage(error.kind, error.seq, error.offset, session_id))
    except BadLineError as bad:
        return _undecodable(disk, fd, session_id, bad.kind, decoded)
    here, size = reader.position, disk.fstat(fd).st_size
    if not problems and here.offset < size:
        todo = "nothing needs to be done: the next run moves it aside and says so in the log"
        problems.append(Problem("torn-tail", here.seq + 1, here.offset, todo))
    envelope = read_envelope(split_lines(last)[-1])
    return SessionReport(session_id, here.seq, here.offset, size, envelope.dur if envelope else 0, tuple(problems))


def _undecodable(disk: SystemDisk, fd: int, session_id: str, kind: str, good: int) -> SessionReport:
    """The report for a line whose checksum is right and which is no event all the same."""
    offset = offset_of(disk, fd, good + 1)
    problem = _damage(kind, good + 1, offset, session_id)
    return SessionReport(session_id, good, offset, disk.fstat(fd).st_size, 0, (problem,))


def _damage(kind: str, seq: int, offset: int, session_id: str) -> Problem:
    kept = f"the {seq - 1} events before it" if seq > 1 else "nothing of the log"
    todo = f"`openagentic-sdk sessions salvage {session_id}` makes a new session of what is intact: {kept}"
    return Problem(kind, seq, offset, todo)


def _with_blobs(report: SessionReport, store: FileSessionStore) -> SessionReport:
    damaged = [digest for digest in store.list_blobs(report.session_id) if not _is_intact(store, report, digest)]
    todo = "the log is not touched by this; salvage leaves the blob out"
    problems = [Problem("blob", 0, 0, todo, blob=digest) for digest in damaged]
    return replace(report, problems=(*report.problems, *problems))


def _is_intact(store: FileSessionStore, report: SessionReport, digest: str) -> bool:
    try:
        store.read_blob(report.session_id, digest)
    except StorageError:
        return False
    return True


def salvage(store: FileSessionStore, session_id: str, *, target_id: str | None = None) -> Salvage:
    """Make a new session of the intact beginning of a damaged one, byte for byte, and its intact blobs.

    The new one ends with a `session.forked` event that names where it comes from; the old one stays as it is. Raises
    `SessionExistsError` for a `target_id` that is taken.
    """
    report = verify_session(store, session_id)
    damaged = {problem.blob for problem in report.problems}
    new_id = target_id or store.new_session_id()
    store.copy_session(
        session_id,
        new_id,
        at_seq=report.events,
        tail=[sign_fork(SessionForked(session_id, report.events), new_id, report.events + 1, store.seal)],
        metadata=store.read_metadata(session_id)["metadata"],
        blobs=[digest for digest in store.list_blobs(session_id) if digest not in damaged],
    )
    return Salvage(new_id, report.events, report.size - report.good_bytes, report)
