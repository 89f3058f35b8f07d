"""Sessions in Redis, shared by many hosts. Needs redis-py: the extra `redis`, and a server of version 6.2 or later.

Every change of a session is one Lua script, which the server applies atomically. An append only takes effect for the epoch
of its writer and at the `seq` that it expects. A server may keep everything in memory only, or delete keys when its memory
is full; `durability` and `durability_notice` report this, and a session that lost keys is damaged, never empty.

    {openagentic}:2:head:<id>       hash: format, key, created_at, metadata, epoch, holder, revision, updated, summary,
                                    last_seq, blobs, checkpoint
    {openagentic}:2:log:<id>        list: the events as JSON, number `seq` at place `seq - 1`
    {openagentic}:2:blobs:<id>      hash: sha256 to bytes
    {openagentic}:2:by:<what>       sorted set: ids by the number of their last write
    {openagentic}:2:holder:<name>   the lease of a process; it expires
    {openagentic}:2:request:<sha>   hash: the id and key of the session that has the request id of this digest
    {openagentic}:2:inbox:<id>      hash: the key of the session, and its waiting messages by their numbers
    {openagentic}:2:inboxes:all     hash: numbers of waiting messages to ids
    {openagentic}:2:message:last    text: the number of the last message
    {openagentic}:2:message:<token> text: the number of a message that was just put; it expires
    {openagentic}:2:new-log:<name>  list, and a hash `new-blobs`: the contents of a session until it is created; they expire
    {openagentic}:2:deleted:<key>   text: marks a session that was just deleted; it expires
    {openagentic}:2:index:<part>    the index of words: search.py
    {openagentic}:2:followers:<id>  set: channels of the processes that follow the session; it expires
    {openagentic}:touches:          text: the number of the last write, shared with format 1
    {openagentic}:head:<id>         text: keeps the id from processes of format 1, whose names lack the `2`

A session of format 1 is moved when it is first used or listed, unless a process of that version holds it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Any

from ..errors import (
    LogCorruptError,
    SessionError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from ..events import Event
from ..ground.checks import MAX_NUMBER, TEXT, check_settings, or_none
from ..ground.clock import Clock
from ..ground.frozen import frozen
from ..ground.words import plural
from ..serialization import dumps_json, loads_json
from .arguments import check_digest, check_text
from .base import (
    Metadata,
    Remains,
    When,
    check_copied_part,
    check_session_id,
    iter_pages,
    read_clock,
    stamp_events,
)
from .core import SessionWriter
from .folds.summary import start_summary
from .log.line import Durability, check_durability, dumps_stored
from .stores.database import SessionRow, intact_blob, text_key
from .stores.log_state import LogHead, copied_head, read_head
from .stores.redis.inbox import TOKEN_S, RedisInbox
from .stores.redis.link import driver, without_settings
from .stores.redis.listed import PAGE_ROWS
from .stores.redis.scripts import FORMAT, run
from .stores.remote import Batch

DEFAULT_PREFIX = "openagentic"
# The keys of an unfinished import expire if its process dies.
STAGED_S = 3600
_FIELDS = (
    "created_at",
    "metadata",
    "epoch",
    "holder",
    "summary",
    "updated",
    "revision",
    "key",
    "last_seq",
    "format",
    "blobs",
)


class RedisSessionStore(RedisInbox):
    """A store of sessions on the server at `url` (`redis://host:port/number`), under keys that begin with `prefix`.

    `?prefix=NAME` in the URL sets it, too. `patience_s` (None: 30) limits every wait for the server, during its restart or
    when it hangs; if given, it also limits the wait for a server that was never reached. `durability` is known after first
    use: `fsync`, `flush` (survives the death of the server's process), `everysec` (loses up to two seconds when it dies),
    `snapshot` or `memory`. If one is requested, here or by `?durability=flush|barrier|fsync`, a server with weaker settings
    is refused with a `StorageError`.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str | None = None,
        patience_s: float | None = None,
        clock: Clock | None = None,
        durability: Durability | None = None,
    ) -> None:
        check_settings({"url": url, "prefix": prefix}, {"url": TEXT, "prefix": or_none(TEXT)})
        driver()
        address, url_prefix, url_durability = without_settings(url)
        url_durability = durability or url_durability
        # A hash tag (Redis Cluster): all keys are in one slot, as a script that uses several of them requires.
        prefix = "{%s}" % (prefix or url_prefix or DEFAULT_PREFIX)
        self._wait_for_server(patience_s)
        self._clock = read_clock(clock)
        self._join(address, prefix, self._patience_s, url_durability and check_durability(url_durability))

    @property
    def durability(self) -> str:  # type: ignore[override]
        """The durability that the server's settings provide; `unknown` before the first call."""
        return self._server.durability

    def durability_notice(self) -> str | None:
        return "; ".join(self._call(None, self._server.notices)) or None

    # --- steps of the server -----------------------------------------------------------------------------------------

    def _position_on(self, db: Any, session_id: str) -> SessionRow:
        keys = [*self._own(session_id), self._key("by", "all")]
        owner_key, *position = run("position", keys, [session_id, self._key("holder", ""), *_FIELDS], db)
        if position:
            length, left_ms, fields = position
            return _position(session_id, fields, length, left_ms)
        if self._adopt(session_id, db):
            return self._position_on(db, session_id)
        if owner_key:
            raise LogCorruptError(session_id, 1, 0, "missing")
        raise SessionNotFoundError(session_id, self._server.where)

    def _adopt(self, session_id: str, db: Any) -> bool:
        """Migrate a session of format 1, found by its keys; return False without one. Raises `SessionLockedError` while
        a process of that version holds it.
        """
        name = self._server.old_name
        old = [name(kind, session_id) for kind in ("head", "log", "blobs")]
        with db.pipeline(transaction=True) as pipe:
            pipe.hmget(old[0], *_FIELDS)
            pipe.llen(old[1])
            pipe.exists(*old)
            pipe.zscore(name("by", "all"), session_id)
            # Names without `2` may belong to something else, and have another type: then the command is an error, not a
            # session.
            fields, length, has_found, score = pipe.execute(raise_on_error=False)
        if isinstance(fields, Exception) or (not has_found and score is None):
            return False
        epoch, holder = ((fields[_FIELDS.index(field)] or b"").decode() for field in ("epoch", "holder"))
        head = LogHead(start_summary(session_id, 0.0, {}))
        if fields[0] is not None:
            fields[_FIELDS.index("format")] = str(FORMAT).encode()
            head = _position(session_id, fields, length, 0).head
        keys = [*self._own(session_id), *old, name("by", "all"), *self._indexes(head)]
        stale = " ".join(name("by", each) for each in _index_names(head))
        index = self._key("index", "")
        key = os.urandom(16).hex()
        answer = run("adopt", keys, [session_id, name("holder", ""), epoch, length, stale, index, key], db)
        if answer > 0:
            raise SessionLockedError(session_id, f"{holder.partition(' ')[2]}, of an older version", answer / 1000)
        return True

    def _adopt_all(self, db: Any) -> None:
        for session_id in db.zrange(self._server.old_name("by", "all"), 0, -1):
            with suppress(SessionLockedError, driver().exceptions.ReadOnlyError):
                self._adopt(session_id.decode(), db)

    def _event_rows_on(self, db: Any, at: SessionRow, after_seq: int, size: int) -> list[tuple[int, str]]:
        return self._lines(db, at.id, after_seq, size)

    def _lines(self, db: Any, session_id: str, after_seq: int, size: int) -> list[tuple[int, str]]:
        lines = db.lrange(self._key("log", session_id), after_seq, after_seq + size - 1) if size else []
        return [(seq, line.decode("ascii")) for seq, line in enumerate(lines, start=after_seq + 1)]

    def _send(self, db: Any, at: SessionRow, batch: Batch, epoch: int, holder: str) -> bool:
        head, log, _ = self._own(at.id)
        indexes = self._indexes(batch.head)
        stale = " ".join(name for name in self._indexes(at.head) if name not in indexes)
        keys = [head, log, self._key("followers", at.id), self._server.old_name("touches", ""), *indexes]
        fence = [at.id, at.key, at.epoch, at.holder, at.revision, batch.expected_seq, epoch, holder]
        row = [repr(batch.head.summary.updated), batch.head.to_json() or "", stale]
        answer = run("append", keys, [*fence, *row, *batch.lines], db)
        if answer == -1:
            raise LogCorruptError(at.id, db.llen(log) + 1, 0, "missing")
        return bool(answer)

    def _claim(self, db: Any, at: SessionRow, holder: str) -> bool:
        return bool(run("claim", [self._key("head", at.id)], [at.key, at.epoch, at.holder, holder], db))

    def _delete(self, db: Any, at: SessionRow) -> bool:
        keys = [*self._doomed(at.id), self._key("deleted", at.key), *self._indexes(at.head)]
        fence = [at.id, at.key, at.epoch, at.holder, at.head.last_seq]
        return bool(run("delete", keys, [*fence, self._key("index", ""), TOKEN_S], db))

    def _change_metadata(self, db: Any, at: SessionRow, metadata: str, head: LogHead) -> bool:
        indexes = self._indexes(head)
        stale = " ".join(name for name in self._indexes(at.head) if name not in indexes)
        row = [metadata, repr(head.summary.updated), head.to_json() or "", stale, self._key("index", "")]
        keys = [*self._own(at.id)[:2], *indexes]
        return bool(run("change", keys, [at.id, at.key, at.revision, head.last_seq, *row], db))

    def open_writer(self, session_id: str) -> SessionWriter:
        self._call(session_id, self._server.learn)  # the settings may have changed, and a run reports them
        return super().open_writer(session_id)

    # --- the core ----------------------------------------------------------------------------------------------------

    def list_sessions(self) -> list[str]:
        return self._ids("all", 0, None)

    def delete_session(self, session_id: str, *, expected_seq: int | None = None) -> None:
        try:
            super().delete_session(session_id, expected_seq=expected_seq)
        except LogCorruptError:
            # The server lost the session's row: delete the remaining keys as well.
            start = LogHead(start_summary(session_id, 0.0, {}))
            keys = [*self._doomed(session_id), self._key("deleted", ""), *self._indexes(start)]
            arguments = [session_id, "", "", "", 0, self._key("index", ""), TOKEN_S]
            self._call(session_id, partial(run, "delete", keys, arguments))

    def claim_request(self, session_id: str, request_id: str) -> str:
        check_text("request_id", request_id)
        self._position(session_id)
        key, head = self._key("request", text_key(request_id)), self._key("head", session_id)
        owner = self._call(session_id, partial(run, "claim_request", [key, head], [session_id, self._key("head", "")]))
        if owner is None:
            raise SessionNotFoundError(session_id, self._server.where)
        return str(owner.decode())

    def put_blob(self, session_id: str, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        head, _, blobs = self._own(session_id)
        if not self._call(session_id, partial(run, "put_blob", [head, blobs], [digest, data])):
            self._position(session_id)  # raises the reason
            raise SessionNotFoundError(session_id, self._server.where)
        return digest

    def read_blob(self, session_id: str, sha256: str) -> bytes:
        check_digest(session_id, sha256)
        self._position(session_id)
        return self._blob(session_id, sha256)

    def _blob(self, session_id: str, sha256: str) -> bytes:
        data = self._call(session_id, lambda client: client.hget(self._key("blobs", session_id), sha256))
        return intact_blob(session_id, sha256, data)

    # --- faster on the server ----------------------------------------------------------------------------------------

    def keep_checkpoint(self, session_id: str, data: bytes) -> None:
        self._call(session_id, partial(run, "keep", [self._key("head", session_id)], [data]))

    def read_checkpoint(self, session_id: str) -> bytes | None:
        fields = ("format", "checkpoint")
        version, data = self._call(session_id, lambda client: client.hmget(self._key("head", session_id), *fields))
        return bytes(data) if data is not None and version == str(FORMAT).encode() else None

    def list_blobs(self, session_id: str) -> list[str]:
        self._position(session_id)

        def ask(client: Any) -> list[Any]:
            with client.pipeline(transaction=True) as pipe:
                pipe.hget(self._key("head", session_id), "blobs")
                pipe.hkeys(self._key("blobs", session_id))
                return list(pipe.execute())

        count, names = self._call(session_id, ask)
        if count is not None and len(names) < int(count):
            raise StorageError(
                f"session {session_id!r} had {plural(int(count), 'blob')}, but the server has only {len(names)} of them",
                session_id=session_id,
            )
        return sorted(name.decode("ascii") for name in names)

    def read_remains(self, session_id: str) -> Remains:
        head, log, blobs = self._own(session_id)

        def ask(client: Any) -> list[Any]:
            with client.pipeline(transaction=True) as pipe:
                pipe.hmget(head, *_FIELDS)
                pipe.llen(log)
                pipe.hkeys(blobs)
                return list(pipe.execute())

        def page(after_seq: int, size: int) -> list[tuple[int, str]]:
            return self._call(session_id, lambda client: self._lines(client, session_id, after_seq, size))

        is_there = self.session_exists(session_id)
        fields, length, names = self._call(session_id, ask)
        if fields[0] is None and not length and not names and not is_there:
            raise SessionNotFoundError(session_id, self._server.where)
        metadata, holes = {}, []
        if fields[0] is None:
            holes.append(
                "its row is gone, and with it its folder, its metadata and the numbers of its events and blobs"
            )
        else:
            at = _position(session_id, fields, length, 0)
            metadata = loads_json(at.metadata)
            if length < at.head.last_seq:
                first, last = length + 1, at.head.last_seq
                holes.append(f"events {first} to {last} are gone" if first < last else f"event {last} is gone")
            if (lost := int(fields[-1] or 0) - len(names)) > 0:
                holes.append(f"{lost} of its {int(fields[-1])} blobs {'is' if lost == 1 else 'are'} gone")
        if fields[0] is None and not length:
            holes.append("its log is gone")
        size = self.page_events
        events = partial(iter_pages, session_id, page, after_seq=0, limit=None, page_events=size)
        read_blob = partial(self._blob, session_id)
        return Remains(metadata, events, tuple(sorted(name.decode("ascii") for name in names)), read_blob, tuple(holes))

    def list_children(self, session_id: str) -> list[str]:
        return list(reversed(self._ids(f"parent:{text_key(session_id)}", 0, None)))

    def _import_events(
        self, session_id: str, created_at: When, metadata: Metadata, events: Iterator[Event], blobs: Iterator[bytes]
    ) -> None:
        created_at = self._clock.now() if created_at is None else created_at
        metadata_json, digests = dumps_json(dict(metadata)), set()
        head = LogHead(start_summary(check_session_id(session_id), created_at, loads_json(metadata_json)))
        with self._staged(session_id) as staged:
            while batch := list(islice(events, self.page_events)):
                lines = [dumps_stored(event) for event in batch]
                stage = partial(run, "stage", [staged.log, staged.blobs], [head.last_seq, STAGED_S, *lines])
                head = head.after(batch)
                if self._call(session_id, stage) != head.last_seq:
                    raise _lost_a_part(session_id)
            for data in blobs:
                digest = hashlib.sha256(data).hexdigest()
                digests.add(digest)
                self._call(session_id, partial(_stage_blob, staged.blobs, digest, data))
            self._create(session_id, staged, head, created_at, metadata_json, len(digests))

    def copy_session(
        self, source_id: str, target_id: str, *, at_seq: int, tail: Sequence[Event], metadata: Mapping[str, Any]
    ) -> str:
        created_at, metadata_json = self._clock.now(), dumps_json(dict(metadata))
        start = start_summary(check_session_id(target_id), created_at, loads_json(metadata_json))
        source = self._position(source_id)
        check_copied_part(source_id, at_seq, source.head.last_seq)
        last = [event.ts for event in self.read_events(source_id, after_seq=at_seq - 1, limit=1)] if at_seq else []
        stamped = stamp_events(tail, first_seq=at_seq + 1, now=created_at)
        head = copied_head(source.head, source.start, start, at_seq, last[0] if last else None).after(stamped)
        with self._staged(target_id) as staged:
            keys = [staged.log, staged.blobs, *self._own(source_id)]
            lines = [dumps_stored(event) for event in stamped]
            stage = partial(run, "stage_copy", keys, [source.key, at_seq - 1, STAGED_S, *lines])
            length, blobs = self._call(source_id, stage)
            if length == -1:
                self._position(source_id)  # raises the reason
                raise SessionNotFoundError(source_id, self._server.where)
            if length == -2:
                self.list_blobs(source_id)  # raises if the server lost data
            if length != head.last_seq:
                raise LogCorruptError(source_id, max(0, length) + 1, 0, "missing")
            self._create(target_id, staged, head, created_at, metadata_json, blobs)
        return target_id

    # --- keys and rows -----------------------------------------------------------------------------------------------

    def _key(self, kind: str, rest: str) -> str:
        return self._server.name(kind, rest)

    def _own(self, session_id: str) -> list[str]:
        return [self._key(kind, session_id) for kind in ("head", "log", "blobs")]

    def _indexes(self, head: LogHead) -> list[str]:
        """The keys of the lists that contain a session."""
        return [self._key("by", name) for name in _index_names(head)]

    def _ids(self, index: str, offset: int, limit: int | None) -> list[str]:
        if limit == 0:
            return []
        self._call(None, self._adopt_all)
        if self._server.evicts:
            all_ids = self._ids_of_keys(index)
            return all_ids[offset:] if limit is None else all_ids[offset : offset + limit]
        last = -1 if limit is None else min(offset + limit - 1, MAX_NUMBER)
        names = self._call(None, lambda client: client.zrevrange(self._key("by", index), offset, last))
        return [name.decode() for name in names]

    def _ids_of_keys(self, index: str) -> list[str]:
        """The ids according to the sessions' own keys: a server that evicts keys may have evicted the lists."""
        prefixes = [self._key(kind, "") for kind in ("head", "log")]

        def ask(client: Any) -> set[str]:
            names: set[str] = set()
            for prefix in prefixes:
                # MATCH is a glob, in which [ begins a set: `?` matches it too, and `startswith` drops the other matches.
                keys = client.scan_iter(match=f"{prefix.replace('[', '?')}*", count=1000)
                names.update(key.decode()[len(prefix) :] for key in keys if key.decode().startswith(prefix))
            return names

        heads = [at.head for at in self._positions_of(sorted(self._call(None, ask)))]
        heads.sort(key=lambda head: head.summary.updated, reverse=True)
        index_key = self._key("by", index)
        return [head.summary.id for head in heads if index_key in self._indexes(head)]

    def _page(
        self, *, cwd: str | None, tenant: str | None, include_children: bool, limit: int | None, offset: int
    ) -> Iterator[SessionRow]:
        index = "all" if include_children else "top"
        ids = self._ids(index if cwd is None else f"{index}:{text_key(cwd)}", offset, limit)
        for start in range(0, len(ids), PAGE_ROWS):
            yield from self._positions_of(ids[start : start + PAGE_ROWS])

    def _positions_of(self, ids: Sequence[str]) -> Iterator[SessionRow]:
        def ask(client: Any) -> list[Any]:
            with client.pipeline(transaction=False) as pipe:
                for session_id in ids:
                    pipe.hmget(self._key("head", session_id), *_FIELDS)
                    pipe.llen(self._key("log", session_id))
                answers = list(pipe.execute())
                holders = {fields[_FIELDS.index("holder")] or b"" for fields in answers[::2]} - {b""}
                for name in sorted(holders):
                    pipe.pttl(self._key("holder", name.decode()))
                return [answers, dict(zip(sorted(holders), pipe.execute(), strict=True))]

        answers, leases = self._call(None, ask)
        for place, session_id in enumerate(ids):
            fields, length = answers[2 * place : 2 * place + 2]
            if fields[0] is None or not _is_ours(fields):
                # Just deleted, lost by the server, or of a newer version: reading the row will show which.
                yield SessionRow(None, 0, 0.0, "{}", LogHead(start_summary(session_id, 0.0, {}), is_kept=False))
            else:
                yield _position(session_id, fields, length, leases.get(fields[_FIELDS.index("holder")], 0))

    # --- building a session before it is visible ----------------------------------------------------------------------

    @contextmanager
    def _staged(self, session_id: str) -> Iterator[_Staged]:
        name = os.urandom(16).hex()
        staged = _Staged(name, self._key("new-log", name), self._key("new-blobs", name))
        try:
            yield staged
        except BaseException:
            # After any error, even Ctrl-C, remove the staged keys. If the server is unreachable, they expire.
            with suppress(SessionError):
                self._server.call(session_id, lambda client: client.delete(staged.log, staged.blobs), 1.0)
            raise

    def _create(
        self, session_id: str, staged: _Staged, head: LogHead, created_at: float, metadata: str, blobs: int
    ) -> None:
        fields = {
            "created_at": repr(created_at),
            "metadata": metadata,
            "epoch": 0,
            "holder": "",
            "revision": 0,
            "updated": repr(head.summary.updated),
            "summary": head.to_json() or "",
            "last_seq": head.last_seq,
        }
        arguments = [session_id, staged.key, staged.log, staged.blobs, head.last_seq, blobs]
        for name, value in fields.items():
            arguments += [name, str(value)]
        old_name = self._server.old_name
        old_names = old_name("touches", ""), old_name("head", session_id)
        keys = [*self._own(session_id), *old_names, self._key("deleted", staged.key), *self._indexes(head)]
        outcome = self._call(session_id, partial(run, "create", keys, arguments))
        if outcome == -1:
            raise _lost_a_part(session_id)
        if not outcome:
            raise SessionExistsError(session_id)


@frozen
class _Staged:
    key: str
    log: str
    blobs: str


def _index_names(head: LogHead) -> list[str]:
    summary = head.summary
    names = ["all"] if summary.is_child else ["all", "top"]
    if summary.cwd is not None:
        names += [f"{name}:{text_key(summary.cwd)}" for name in names]
    if summary.is_child and summary.parent is not None:
        names.append(f"parent:{text_key(summary.parent)}")
    return names


def _is_ours(fields: Sequence[bytes | None]) -> bool:
    return fields[_FIELDS.index("format")] == str(FORMAT).encode()


def _position(session_id: str, fields: Sequence[bytes | None], length: int, left_ms: int) -> SessionRow:
    """The row in a session's hash; one written by an older version lacks the last four fields."""
    texts = [(field or b"").decode("ascii") for field in fields]
    created_at, metadata, epoch, holder, summary, updated, revision, key, last_seq, version, _ = texts
    if not _is_ours(fields):
        raise StorageError(
            f"session {session_id!r} was written in format {version} by a newer version of this package, and this one "
            f"reads up to format {FORMAT}: upgrade openagentic-sdk",
            session_id=session_id,
        )
    head = read_head(
        session_id, float(created_at), metadata, summary or None, int(last_seq) if last_seq else length, float(updated)
    )
    return SessionRow(
        key, int(epoch), float(created_at), metadata, head, int(revision or 0), holder, max(0, left_ms) / 1000
    )


def _lost_a_part(session_id: str) -> StorageError:
    return StorageError(
        f"the server lost a part of session {session_id!r} during its creation: try again", session_id=session_id
    )


def _stage_blob(name: str, digest: str, data: bytes, client: Any) -> None:
    with client.pipeline(transaction=True) as pipe:
        pipe.hset(name, digest, data)
        pipe.expire(name, STAGED_S)
        pipe.execute()
