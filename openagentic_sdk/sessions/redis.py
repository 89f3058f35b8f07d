"""Sessions in Redis, shared by many hosts. Needs redis-py: the extra `redis`, and a server from version 6.2.

Every change is one Lua script, so the server makes it whole or not at all. An append only takes effect for the epoch of its
writer and at the `seq` that it expects. Whether a holder lives is asked of the server, which knows its connections: no lease
runs out, and no clock is compared. A server may keep everything in memory only; `durability` and `durability_notice` say so.

    {openagentic}:head:<id>     hash: created_at, metadata, epoch, updated, summary, holder
    {openagentic}:log:<id>      list: the events as JSON, number `seq` at place `seq - 1`
    {openagentic}:blobs:<id>    hash: sha256 to bytes
    {openagentic}:by:<what>     sorted set: ids by when they were last written to
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from typing import Any, ClassVar, TypeVar

from ..clock import Clock, SystemClock
from ..errors import (
    ConcurrencyError,
    LeaseLostError,
    SessionError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from ..events import Event
from ..frozen import frozen
from ..serialization import dumps_json, loads_json
from .base import (
    SessionWriter,
    check_sequence,
    check_session_id,
    dumps_stored,
    stamp_events,
)
from .folds.summary import SessionSummary, start_summary
from .stores.database import DatabaseStore, Position, changed_metadata
from .stores.log_state import Head, copied_head, read_head
from .stores.redis_link import (
    NO_DISK,
    SNAPSHOTS,
    RedisLink,
    connection_name,
    driver,
    is_connected,
    translated,
    without_prefix,
)
from .stores.redis_scripts import APPEND, ATTACH, CREATE, DELETE, EXCHANGE, HOLD, KEEP, STAGE_COPY

T = TypeVar("T")
DEFAULT_PREFIX = "openagentic"
PAGE_EVENTS = 500
PAGE_ROWS = 100
RETRY_S = 0.1
GRACE_S = 0.2
# What a half-written import leaves behind when its process dies goes by itself.
STAGED_S = 3600


class RedisSessionStore(DatabaseStore):
    """Sessions on the server that `url` names (`redis://host:port/number`), under keys that begin with `prefix`.

    `?prefix=NAME` in the URL does the same. While the server restarts, calls wait for it up to `patience_s` seconds.
    `durability` is known once the store was used: `fsync`, `flush` (up to a second is lost when the server's machine fails),
    `snapshot` or `memory`.
    """

    is_remote = True

    @property
    def durability(self) -> str:  # type: ignore[override]
        """What survives the server, `unknown` before the first call."""
        return self._link.durability

    def __init__(
        self, url: str, *, prefix: str | None = None, patience_s: float = 30.0, clock: Clock | None = None
    ) -> None:
        address, named = without_prefix(url)
        self._prefix = "{%s}" % (prefix or named or DEFAULT_PREFIX)
        self._clock = clock or SystemClock()
        self._link = RedisLink(address, patience_s)

    # --- the core ----------------------------------------------------------------------------------------------------

    def open_writer(self, session_id: str) -> SessionWriter:
        return self._open_writer(session_id, by_force=False)

    def take_over(self, session_id: str) -> SessionWriter:
        return self._open_writer(session_id, by_force=True)

    def append_events(
        self, session_id: str, events: Sequence[Event], *, expected_seq: int | None = None
    ) -> list[Event]:
        while True:
            at = self._position(session_id)
            self._refuse_if_held(session_id, at.holder)
            if expected_seq is not None and at.head.last_seq != expected_seq:
                raise ConcurrencyError(session_id, expected_seq, at.head.last_seq)
            try:
                return self._append(self._link.client(), session_id, at, events)[0]
            except ConcurrencyError:
                # Somebody was faster. Without an expectation the next place is as good; with one, the check above refuses.
                continue

    def update_metadata(self, session_id: str, changes: Mapping[str, Any]) -> None:
        while True:
            old = self._position(session_id).metadata
            new = changed_metadata(old, changes)
            if self._link.run(session_id, EXCHANGE, [self._key("head", session_id)], ["metadata", old, new]):
                return

    def list_sessions(self) -> list[str]:
        return self._ids("all", 0, None)

    def delete_session(self, session_id: str) -> None:
        while True:
            at = self._position(session_id)
            self._refuse_if_held(session_id, at.holder)
            if self._link.run(session_id, DELETE, self._keys(session_id, at.head), [session_id, at.holder]):
                return

    def put_blob(self, session_id: str, data: bytes) -> str:
        self._position(session_id)
        digest = hashlib.sha256(data).hexdigest()
        self._link.call(session_id, lambda client: client.hset(self._key("blobs", session_id), digest, data))
        return digest

    def read_blob(self, session_id: str, sha256: str) -> bytes:
        self._position(session_id)
        data = self._link.call(session_id, lambda client: client.hget(self._key("blobs", session_id), sha256))
        if data is None or hashlib.sha256(data).hexdigest() != sha256:
            raise StorageError(f"session {session_id!r} has no intact blob {sha256}", session_id=session_id)
        return bytes(data)

    def close(self) -> None:
        self._link.close()

    def durability_notice(self) -> str | None:
        self._link.client()
        return {"memory": NO_DISK, "snapshot": SNAPSHOTS}.get(self.durability)

    # --- what the server does better ---------------------------------------------------------------------------------

    def list_blobs(self, session_id: str) -> list[str]:
        self._position(session_id)
        names = self._link.call(session_id, lambda client: client.hkeys(self._key("blobs", session_id)))
        return sorted(name.decode("ascii") for name in names)

    def list_children(self, session_id: str) -> list[str]:
        return list(reversed(self._ids(f"parent:{_digest(session_id)}", 0, None)))

    def import_session(
        self,
        session_id: str,
        events: Iterable[Event],
        *,
        metadata: Mapping[str, Any] | None = None,
        created_at: float | None = None,
        blobs: Iterable[bytes] = (),
    ) -> str:
        created_at = self._clock.now() if created_at is None else created_at
        known = dumps_json(dict(metadata or {}))
        head = Head(start_summary(check_session_id(session_id), created_at, loads_json(known)))
        remaining = check_sequence(events)
        with self._staged(session_id) as staged:
            while batch := list(islice(remaining, PAGE_EVENTS)):
                lines = [dumps_stored(event) for event in batch]
                self._stage(session_id, staged, lines, ())
                head = head.after(batch)
            for data in blobs:
                self._stage(session_id, staged, (), (data,))
            self._create(session_id, staged, head, created_at, known)
        return session_id

    def copy_session(
        self, source_id: str, target_id: str, *, at_seq: int, tail: Sequence[Event], metadata: Mapping[str, Any]
    ) -> str:
        created_at, known = self._clock.now(), dumps_json(dict(metadata))
        start = start_summary(check_session_id(target_id), created_at, loads_json(known))
        source = self._position(source_id)
        stamped = stamp_events(tail, first_seq=at_seq + 1, now=created_at)
        last = self.read_events(source_id, after_seq=at_seq - 1, limit=1)[0].ts if at_seq else None
        head = copied_head(source.head, start, at_seq, last).after(stamped)
        with self._staged(target_id) as staged:
            keys = [staged.log, staged.blobs, self._key("log", source_id), self._key("blobs", source_id)]
            lines = [dumps_stored(event) for event in stamped]
            length = self._link.run(source_id, STAGE_COPY, keys, [at_seq - 1, STAGED_S, *lines])
            if length != head.last_seq:
                raise ConcurrencyError(source_id, head.last_seq, int(length))
            self._create(target_id, staged, head, created_at, known)
        return target_id

    def wait_for_events(self, session_id: str, *, after_seq: int, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        with translated(session_id), self._link.client().pubsub(ignore_subscribe_messages=True) as news:
            news.subscribe(self._news)
            while self.last_seq(session_id) <= after_seq:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                news.get_message(timeout=left_s)
        return True

    # --- keys and rows -----------------------------------------------------------------------------------------------

    @property
    def _news(self) -> str:
        return f"{self._prefix}:news"

    def _key(self, kind: str, session_id: str) -> str:
        return f"{self._prefix}:{kind}:{session_id}"

    def _keys(self, session_id: str, head: Head) -> list[str]:
        own = [self._key(kind, session_id) for kind in ("head", "log", "blobs")]
        return [*own, *self._indexes(head)]

    def _indexes(self, head: Head) -> list[str]:
        """The lists that a session stands in; they only ever become more."""
        summary = head.summary
        names = ["all"] if summary.is_child else ["all", "top"]
        if summary.cwd is not None:
            names += [f"{name}:{_digest(summary.cwd)}" for name in names]
        if summary.is_child and summary.parent is not None:
            names.append(f"parent:{_digest(summary.parent)}")
        return [self._key("by", name) for name in names]

    def _ids(self, index: str, offset: int, limit: int | None) -> list[str]:
        if limit == 0:
            return []
        last = -1 if limit is None else offset + limit - 1
        names = self._link.call(None, lambda client: client.zrevrange(self._key("by", index), offset, last))
        return [name.decode() for name in names]

    def _heads(self, *, cwd: str | None, include_children: bool, limit: int | None, offset: int) -> Iterator[Head]:
        index = "all" if include_children else "top"
        ids = self._ids(index if cwd is None else f"{index}:{_digest(cwd)}", offset, limit)
        for start in range(0, len(ids), PAGE_ROWS):
            yield from self._heads_of(ids[start : start + PAGE_ROWS])

    def _heads_of(self, ids: Sequence[str]) -> list[Head]:
        def ask(client: Any) -> list[Any]:
            with client.pipeline(transaction=False) as pipe:
                for session_id in ids:
                    self._ask_position(pipe, session_id)
                return list(pipe.execute())

        answers = self._link.call(None, ask)
        return [
            _Position.read(session_id, answers[2 * index], answers[2 * index + 1]).head
            for index, session_id in enumerate(ids)
            if answers[2 * index][0] is not None
        ]

    def _position(self, session_id: str) -> _Position:
        def ask(client: Any) -> list[Any]:
            with client.pipeline(transaction=True) as pipe:
                self._ask_position(pipe, session_id)
                return list(pipe.execute())

        fields, length = self._link.call(session_id, ask)
        if fields[0] is None:
            raise SessionNotFoundError(session_id, self._link.where)
        return _Position.read(session_id, fields, length)

    def _ask_position(self, pipe: Any, session_id: str) -> None:
        pipe.hmget(self._key("head", session_id), *_Position.FIELDS)
        pipe.llen(self._key("log", session_id))

    def _event_rows(self, at: Position, after_seq: int, size: int) -> Sequence[tuple[int, str]]:
        session_id = at.head.summary.id
        key = self._key("log", session_id)
        lines = self._link.call(session_id, lambda client: client.lrange(key, after_seq, after_seq + size - 1))
        return [(seq, line.decode("ascii")) for seq, line in enumerate(lines, start=after_seq + 1)]

    def _keep_folded(self, session_id: str, folded: SessionSummary) -> None:
        keys = [self._key("head", session_id), self._key("log", session_id)]
        self._link.run(session_id, KEEP, keys, [folded.events, repr(folded.updated), Head(folded).to_json()])

    # --- building a session out of sight -----------------------------------------------------------------------------

    @contextmanager
    def _staged(self, session_id: str) -> Iterator[_Staged]:
        name = uuid.uuid4().hex
        staged = _Staged(self._key("new-log", name), self._key("new-blobs", name))
        try:
            yield staged
        except BaseException:
            # The keys expire by themselves should the server be gone as well.
            with suppress(SessionError):
                self._link.call(session_id, lambda client: client.delete(staged.log, staged.blobs))
            raise

    def _stage(self, session_id: str, staged: _Staged, lines: Sequence[str], blobs: Sequence[bytes]) -> None:
        def send(client: Any) -> None:
            with client.pipeline(transaction=True) as pipe:
                if lines:
                    pipe.rpush(staged.log, *lines)
                    pipe.expire(staged.log, STAGED_S)
                for data in blobs:
                    pipe.hset(staged.blobs, hashlib.sha256(data).hexdigest(), data)
                    pipe.expire(staged.blobs, STAGED_S)
                pipe.execute()

        self._link.once(session_id, send)

    def _create(self, session_id: str, staged: _Staged, head: Head, created_at: float, metadata: str) -> None:
        touches = self._key("touches", "")
        own = self._keys(session_id, head)
        fields = ["created_at", repr(created_at), "metadata", metadata, "epoch", "0", "holder", ""]
        fields += ["updated", repr(head.summary.updated), "summary", head.to_json() or ""]
        arguments = [session_id, staged.log, staged.blobs, *fields]
        keys = [*own[:3], touches, *own[3:]]
        if not self._link.once(session_id, lambda client: client.register_script(CREATE)(keys, arguments)):
            raise SessionExistsError(session_id)

    # --- appending ---------------------------------------------------------------------------------------------------

    def _append(
        self,
        client: Any,
        session_id: str,
        at: _Position,
        events: Sequence[Event],
        attach: Callable[[], None] = lambda: None,
    ) -> tuple[list[Event], _Position]:
        """Send the events behind `at`; `attach` makes the connection a writer's again after it broke."""
        stamped = stamp_events(events, first_seq=at.head.last_seq + 1, now=self._clock.now())
        lines = [dumps_stored(event) for event in stamped]
        after = at.after(stamped)
        attempts = 0

        def send(client: Any) -> None:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                return self._send(client, session_id, at, after.head, lines)
            # The answer to an earlier attempt was lost. Whatever became of the session since, what is stored is stored.
            if self._is_stored(client, session_id, at.head.last_seq, lines):
                with suppress(LeaseLostError):
                    attach()
                return None
            attach()
            return self._send(client, session_id, at, after.head, lines)

        with translated(session_id, self._link.where):
            self._link.patiently(client, send)
        return stamped, after

    def _send(self, client: Any, session_id: str, at: _Position, head: Head, lines: Sequence[str]) -> None:
        own = self._keys(session_id, head)
        keys = [own[0], own[1], self._news, self._key("touches", ""), *own[3:]]
        holder = "*" if at.is_writer else at.holder
        counters = [at.head.last_seq, repr(head.summary.updated), head.to_json() or ""]
        answer, length = client.register_script(APPEND)(keys, [session_id, at.epoch, holder, *counters, *lines])
        if answer == b"epoch":
            raise LeaseLostError(session_id, at.head.last_seq, length)
        if answer != b"ok":
            raise ConcurrencyError(session_id, at.head.last_seq, length)

    def _is_stored(self, client: Any, session_id: str, after_seq: int, lines: Sequence[str]) -> bool:
        """Whether a batch whose answer was lost took effect: the log holds it, word for word, at its place."""
        found = client.lrange(self._key("log", session_id), after_seq, after_seq + len(lines) - 1)
        return bool(lines) and [line.decode("ascii") for line in found] == list(lines)

    def _open_writer(self, session_id: str, *, by_force: bool) -> SessionWriter:
        holder = self._position(session_id).holder
        if not by_force:
            self._refuse_if_held(session_id, holder)
        client = self._link.new_client(single_connection_client=True)
        try:
            with translated(session_id, self._link.where):
                name = connection_name(client)
                keys = [self._key("head", session_id)]
                answer, _ = client.register_script(HOLD)(keys, ["*" if by_force else holder, name])
            if answer == b"missing":
                raise SessionNotFoundError(session_id, self._link.where)
            if answer == b"held":
                raise SessionLockedError(session_id, "another run")
            return _RedisWriter(self, client, session_id, self._position(session_id))
        except BaseException:
            client.close()
            raise

    def _refuse_if_held(self, session_id: str, holder: str) -> None:
        """A server may take a moment to notice that a process died; a holder that lives is refused after it."""
        deadline = time.monotonic() + GRACE_S
        while holder and self._link.call(session_id, lambda client: is_connected(client, holder)):
            if time.monotonic() > deadline:
                raise SessionLockedError(session_id, f"connection {holder.rpartition(':')[2]} of the server")
            time.sleep(GRACE_S / 20)


@frozen
class _Staged:
    log: str
    blobs: str


@frozen
class _Position(Position):
    holder: str = ""
    is_writer: bool = False

    FIELDS: ClassVar[Sequence[str]] = ("created_at", "metadata", "epoch", "holder", "summary", "updated")

    @classmethod
    def read(cls, session_id: str, fields: Sequence[bytes], length: int) -> _Position:
        created_at, metadata, epoch, holder, summary, updated = (field.decode("ascii") for field in fields)
        head = read_head(session_id, float(created_at), metadata, summary or None, length, float(updated))
        return cls(session_id, int(epoch), float(created_at), metadata, head, holder)

    def after(self, stamped: Sequence[Event]) -> _Position:
        return replace(self, head=self.head.after(stamped))


class _RedisWriter(SessionWriter):
    def __init__(self, store: RedisSessionStore, client: Any, session_id: str, at: _Position) -> None:
        self.session_id = session_id
        self.epoch = at.epoch
        self._store = store
        self._client = client
        self._at = replace(at, is_writer=True)
        self._open = True

    @property
    def last_seq(self) -> int:
        return self._at.head.last_seq

    def append(self, events: Sequence[Event]) -> list[Event]:
        if not self._open:
            raise StorageError("this writer is closed: open the session again", session_id=self.session_id)
        stored, self._at = self._store._append(self._client, self.session_id, self._at, events, self._attach)
        return stored

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        # A holder whose connection ends is no holder: without the server's answer the session becomes free as well.
        with suppress(driver().RedisError):
            self._client.register_script(ATTACH)([self._store._key("head", self.session_id)], [self.epoch, ""])
        self._client.close()

    def _attach(self) -> None:
        """Be the holder again on a new connection, unless somebody else became it."""
        keys = [self._store._key("head", self.session_id)]
        if not self._client.register_script(ATTACH)(keys, [self.epoch, connection_name(self._client)]):
            raise LeaseLostError(self.session_id, self.last_seq, self._store.last_seq(self.session_id))


def _digest(text: str) -> str:
    return hashlib.sha256(dumps_json(text).encode("ascii")).hexdigest()
