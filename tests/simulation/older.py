"""An older version of the package beside today's on the same files or database: a stand-in for that of commit 100fb167.

It takes the lock of a log, moves a torn tail aside and seals its lines as that version did, in code of its own, so that a
defect of today's package is not one of both. It writes the fields that events had then, does not sync what it finds when it
opens a log, and knows neither `requests/` nor the summary that today's writers maintain: it keeps one in its own form.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

from openagentic_sdk.errors import ConcurrencyError, SessionLockedError, StorageError
from openagentic_sdk.events import AssistantMessage, Event, LogRecovered, ToolStarted, UserMessage
from openagentic_sdk.ground.disk import write_durably
from openagentic_sdk.sessions.core import SessionWriter
from openagentic_sdk.sessions.folds.summary import SessionSummary, summary_to_dict
from openagentic_sdk.sessions.log.folder import LOG_NAME, SUMMARY_NAME
from openagentic_sdk.sessions.store import FileSessionStore
from tests.pythons import ROOT

_SEALED = re.compile(rb'\{"v":(\d+),"seq":(\d+),.*,"dur":(\d+),"crc":"([0-9a-f]{8})"\}')
_SEAL_BYTES = len(',"crc":"01234567"}')
# The lines of tools before the log had seals: UTF-8, in files that an editor may have saved in its way.
_PLAIN = ("\ufeff", "\r\n", "grüße 日本")
NOW_S = 1_700_000_000.0
ERASED = "record.erased"
ERASURE = {"type": ERASED, "erasure_id": "e", "source_session_id": "s"}
_FIELDS: dict[type[Event], dict[str, Any]] = {
    UserMessage: {"text": "", "request_id": None, "origin": "user"},
    AssistantMessage: {"text": "", "incomplete": False, "refusal": False, "provider": None, "extras": None},
    ToolStarted: dict.fromkeys(
        ("tool_use_id", "name", "effect", "input_sha256", "idempotency_key", "attempt", "input"), None
    ),
    LogRecovered: {"bytes": 0, "offset": 0, "moved_to": None},
}


def said(text: str) -> dict[str, Any]:
    """The fields of a prompt, as that version stored them in a database."""
    return {"type": "user.message", **_FIELDS[UserMessage], "text": text}


def line_of(seq: int, fields: dict[str, Any]) -> str:
    """An event as that version stored it in a database."""
    return json.dumps({"seq": seq, "ts": NOW_S, **fields}, separators=(",", ":"))


def row_of(row: str | None, **changes: object) -> str:
    """A row of a session in a form that later versions do not read."""
    return json.dumps({**json.loads(row or "{}"), **changes, "version": 1})


@cache
def landed_logs() -> tuple[bytes, ...]:
    """The logs that landed versions wrote."""
    folder = Path(ROOT, "fixtures", "logs", "versions")
    return tuple(path.read_bytes() for path in sorted(folder.glob(f"*/{LOG_NAME}")))


def plain_log(text: str) -> bytes:
    """A log of one line as a tool wrote it that knew no seals."""
    mark, newline, words = _PLAIN
    return (mark + json.dumps({"type": "user.message", "text": text + words}, ensure_ascii=False) + newline).encode()


class _End:
    """What that version finds in a log: its good lines end at `offset`, with number `seq` and the checksum `crc`."""

    def __init__(self, raw: bytes) -> None:
        self.offset = self.seq = self.crc = self.dur = 0
        self.is_terminated = True
        while (at := raw.find(b"\n", self.offset) + 1 or len(raw)) > self.offset and self._takes(raw[self.offset : at]):
            pass

    def _takes(self, line: bytes) -> bool:
        body = line.removesuffix(b"\n")
        if seal := _SEALED.fullmatch(body):
            if int(seal[1]) > 1:
                raise StorageError("a newer version wrote the log")
            if int(seal[2]) != self.seq + 1 or int(seal[4], 16) != crc32(body[:-_SEAL_BYTES], self.crc):
                return False
            self.dur = max(self.dur, int(seal[3]))
        elif body.startswith(b'{"v":') or b"\0" in body or not body.rstrip(b"\r").endswith(b"}"):
            return False
        self.offset, self.seq, self.crc = self.offset + len(line), self.seq + 1, crc32(line, self.crc)
        self.is_terminated = line != body
        return True


class OlderStore(FileSessionStore):
    def open_writer(self, session_id: str) -> OlderWriter:  # type: ignore[override]
        return OlderWriter(self, session_id)

    def kept_summary(self, session_id: str) -> SessionSummary:
        """Compute the row, and keep it in a form that later versions do not read."""
        folder = self.session_dir(session_id)
        summary, end = self.fold_summary(session_id), _End((folder / LOG_NAME).read_bytes())
        kept = {"offset": end.offset, "seq": end.seq, "crc": end.crc, "summary": summary_to_dict(summary)}
        write_durably(self._disk, folder / SUMMARY_NAME, json.dumps(kept).encode() + b"\n", sync=False)
        return summary

    def delete_session(self, session_id: str, *, expected_seq: int | None = None) -> None:
        """Remove the folder alone: the session keeps its request ids."""
        folder = self.session_dir(session_id)
        fd = self._disk.open(str(folder / LOG_NAME), os.O_RDONLY)
        try:
            lock(fd, session_id)
            self._disk.rename(str(folder), str(folder.with_name(".deleted-0")))
            if self.durability != "flush":
                self._disk.fsync_folder(str(folder.parent))
        except OSError as error:
            raise StorageError(f"{session_id} cannot be deleted: {error}") from error
        finally:
            self._disk.close(fd)


def lock(fd: int, session_id: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SessionLockedError(session_id, "another run") from None


class OlderWriter(SessionWriter):
    def __init__(self, store: OlderStore, session_id: str) -> None:
        self.session_id, self.durability, self.clock, self.disk = (
            session_id,
            store.durability,
            store._clock,
            store._disk,
        )
        self.path = store.session_dir(session_id) / LOG_NAME
        self.unusable = ""
        self.fd = self.disk.open(str(self.path), os.O_RDWR | os.O_APPEND)
        try:
            lock(self.fd, session_id)
            self._repair()
        except OSError as error:
            self.close()
            raise StorageError(f"{session_id} cannot be opened: {error}") from error
        except BaseException:
            self.close()
            raise

    def _repair(self) -> None:
        raw = os.pread(self.fd, os.fstat(self.fd).st_size, 0)
        end = self.end = _End(raw)
        place = end.offset + (not end.is_terminated)
        if torn := raw[end.offset :]:
            write_durably(self.disk, self.path.with_name(f"{LOG_NAME}.torn-{place}-{crc32(torn):08x}"), torn)
            self.disk.ftruncate(self.fd, end.offset)
            self.disk.fdatasync(self.fd)
        if not end.is_terminated:
            if self.disk.write(self.fd, b"\n") != 1:
                raise OSError(errno.ENOSPC, "no newline")
            end.offset, end.crc, end.is_terminated = place, crc32(b"\n", end.crc), True
        tails = sorted(self.path.parent.glob(f"{LOG_NAME}.torn-{place}-*"))
        if tails:
            self.append([LogRecovered(tail.stat().st_size, place, tail.name) for tail in tails])
            self._sync()

    @property
    def last_seq(self) -> int:
        return self.end.seq

    def append(self, events: Sequence[Event]) -> list[Event]:
        end, now = self.end, self.clock.now()
        if self.unusable:
            raise StorageError(f"{self.unusable}: open it again")
        if self.disk.fstat(self.fd).st_size != end.offset:
            self.unusable = "somebody wrote to it in spite of the lock"
            raise ConcurrencyError(self.session_id, end.seq, end.seq + 1)
        data, seq, crc, stored = b"", end.seq, end.crc, list[Event]()
        for event in events:
            seq += 1
            fields = {name: getattr(event, name, value) for name, value in _FIELDS[type(event)].items()}
            head = {"v": 1, "seq": seq, "ts": now, "type": event.type, **fields, "dur": end.dur}
            text = json.dumps(head, separators=(",", ":")).encode()[:-1]
            line = text + b',"crc":"%08x"}\n' % crc32(text, crc)
            data, crc = data + line, crc32(line, crc)
            stored.append(replace(event, seq=seq, ts=now))
        self._write(data)
        end.offset, end.seq, end.crc = end.offset + len(data), seq, crc
        is_barrier = any(isinstance(event, UserMessage | ToolStarted) for event in events)
        if self.durability == "fsync" or (self.durability == "barrier" and is_barrier):
            self._sync()
        return stored

    def _write(self, data: bytes) -> None:
        try:
            if self.disk.write(self.fd, data) != len(data):
                raise OSError(errno.ENOSPC, "too little room")
        except OSError as error:
            self.disk.ftruncate(self.fd, self.end.offset)
            self.disk.fdatasync(self.fd)
            raise StorageError(f"{error}; make room and try again", retryable=True) from error

    def _sync(self) -> None:
        self.disk.fdatasync(self.fd)
        self.end.dur = self.end.seq

    def close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            self.disk.close(fd)


def append_to_database(db: Any, name: str, event: dict[str, Any], *, takes_over: bool) -> None:
    """Append as that version did on SQLite, with its fields of an event, and a row in a form that later ones do not read."""
    (key, epoch, summary) = db.execute("SELECT key, epoch, summary FROM sessions WHERE id = ?", (name,)).fetchone()
    place = "SELECT coalesce(max(place), ?) FROM events WHERE place >= ? AND place < ?"
    (last,) = db.execute(place, (key << 32, key << 32, (key + 1) << 32)).fetchone()
    line = line_of(last + 1 & 0xFFFFFFFF, event)
    (before,) = db.execute("SELECT max(updated) FROM events WHERE place = ?", (last,)).fetchone()
    updated = NOW_S if before is None else before + 1e-6
    db.execute("INSERT INTO events (place, updated, data) VALUES (?, ?, ?)", (last + 1, updated, line))
    touched = "(SELECT max(touched) + 1 FROM sessions)"
    command = f"UPDATE sessions SET epoch = ?, held = ?, summary = ?, touched = {touched} WHERE key = ?"
    db.execute(command, (epoch + takes_over, 0, row_of(summary), key))


def erase_in_database(db: Any, name: str, seq: int, text: str) -> None:
    """Replace the text of an event as that version did on SQLite, as a writer, and record the erasure."""
    (key, summary) = db.execute("SELECT key, summary FROM sessions WHERE id = ?", (name,)).fetchone()
    db.execute("UPDATE events SET data = ? WHERE place = ?", (line_of(seq, said(text)), (key << 32) + seq))
    db.execute("DELETE FROM checkpoints WHERE session = ?", (key,))
    row = row_of(summary)
    db.execute("UPDATE sessions SET epoch = epoch + 1, held = 0, summary = ? WHERE key = ?", (row, key))
    append_to_database(db, name, ERASURE, takes_over=False)


def change_in_database(db: Any, name: str, metadata: dict[str, Any]) -> None:
    """Set the metadata as that version did on SQLite."""
    (key, summary) = db.execute("SELECT key, summary FROM sessions WHERE id = ?", (name,)).fetchone()
    cwd = metadata.get("cwd")
    command = "UPDATE sessions SET metadata = ?, cwd = ?, summary = ? WHERE key = ?"
    db.execute(command, (json.dumps(metadata), json.dumps(cwd), row_of(summary, cwd=cwd), key))


def age_row_in_database(db: Any, key: int) -> None:
    """Give the row of a session the form that later versions do not read."""
    (summary,) = db.execute("SELECT summary FROM sessions WHERE key = ?", (key,)).fetchone()
    db.execute("UPDATE sessions SET summary = ? WHERE key = ?", (row_of(summary), key))


@contextmanager
def migrated(file: Any, oldest: int | None) -> Iterator[None]:
    """Tables that a newer version has migrated, with its record of the oldest that may continue; None if it has none."""
    with file.reading() as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        kept = db.execute("SELECT version, oldest FROM openagentic_oldest").fetchall()
        db.execute("DELETE FROM openagentic_oldest")
        if oldest is not None:
            db.execute("INSERT INTO openagentic_oldest VALUES (?, ?)", (version + 1, oldest))
        db.execute(f"PRAGMA user_version = {version + 1}")
    try:
        yield
    finally:
        with file.reading() as db:
            db.execute(f"PRAGMA user_version = {version}")
            db.execute("DELETE FROM openagentic_oldest")
            db.executemany("INSERT INTO openagentic_oldest VALUES (?, ?)", kept)


_CLAIMABLE = """
    SELECT id FROM openagentic_runs AS run
    WHERE (state = 'queued' AND run_at <= :now OR state = 'running' AND lease_until < :now) AND NOT EXISTS (
        SELECT 1 FROM openagentic_runs AS other WHERE other.session = run.session AND other.id != run.id
        AND (other.state = 'running' OR other.state IN ('queued', 'waiting') AND other.id < run.id)
    ) ORDER BY id LIMIT 1
"""
_CLAIM = """
    UPDATE openagentic_runs SET state = 'running', claim = 'older', fence = fence + 1, attempts = attempts + 1,
        lost_owner = CASE WHEN state = 'running' THEN owner ELSE '' END,
        steals = steals + CASE WHEN state = 'running' THEN 1 ELSE 0 END,
        owner = :owner, lease_until = :now + :lease_s, started_at = coalesce(started_at, :now) WHERE id = :id
"""


def claim_run(db: Any, owner: str, now: float, lease_s: float) -> int | None:
    """Claim the first run that is due or lost; return its number."""
    row = db.execute(_CLAIMABLE, {"now": now}).fetchone()
    if row is None:
        return None
    db.execute(_CLAIM, {"owner": owner, "now": now, "lease_s": lease_s, "id": row[0]})
    return int(row[0])


def end_run(db: Any, run_id: int, fence: int, now: float) -> bool:
    """End a run if its owner has this fence; return whether it had."""
    command = (
        "UPDATE openagentic_runs SET state = 'ended', stop_reason = 'end', ended_at = ? WHERE id = ? AND fence = ?"
    )
    return bool(db.execute(f"{command} AND state = 'running'", (now, run_id, fence)).rowcount)
