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
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from types import ModuleType
from typing import Any, ClassVar, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from ..clock import Clock, SystemClock
from ..errors import (
    ConcurrencyError,
    LeaseLostError,
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
from .base import (
    SessionStore,
    SessionWriter,
    check_sequence,
    check_session_id,
    dumps_stored,
    iter_pages,
    stamp_events,
)
from .folds.summary import SessionSummary, page_of, start_summary, summary_matches
from .stores.log_state import Head, copied_head, read_head

T = TypeVar("T")
DEFAULT_PREFIX = "openagentic"
PAGE_EVENTS = 500
PAGE_ROWS = 100
RETRY_S = 0.1
GRACE_S = 0.2
# What a half-written import leaves behind when its process dies goes by itself.
STAGED_S = 3600

# Each script gets the names of its keys, and answers with what it found instead of failing.
_TOUCH = """
    local at = redis.call('INCR', KEYS[4])
    for place = 5, #KEYS do redis.call('ZADD', KEYS[place], at, ARGV[1]) end
"""
# KEYS: head, log, news channel, touches, indexes.  ARGV: id, epoch, holder or '*', expected seq, fields, lines ...
_APPEND = f"""
    local epoch, holder = unpack(redis.call('HMGET', KEYS[1], 'epoch', 'holder'))
    local length = redis.call('LLEN', KEYS[2])
    if epoch ~= ARGV[2] then return {{'epoch', length}} end
    if ARGV[3] ~= '*' and holder ~= ARGV[3] then return {{'held', length}} end
    if length ~= tonumber(ARGV[4]) then return {{'seq', length}} end
    for place = 7, #ARGV, 1000 do
        redis.call('RPUSH', KEYS[2], unpack(ARGV, place, math.min(place + 999, #ARGV)))
    end
    redis.call('HSET', KEYS[1], 'updated', ARGV[5], 'summary', ARGV[6])
    {_TOUCH}
    redis.call('PUBLISH', KEYS[3], ARGV[1])
    return {{'ok', length}}
"""
# KEYS: head, log, blobs, touches, indexes.  ARGV: id, staged log, staged blobs, field, value ...
_CREATE = f"""
    if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
    redis.call('HSET', KEYS[1], unpack(ARGV, 4))
    for place = 2, 3 do
        if redis.call('EXISTS', ARGV[place]) == 1 then
            redis.call('RENAME', ARGV[place], KEYS[place])
            redis.call('PERSIST', KEYS[place])
        end
    end
    {_TOUCH}
    return 1
"""
# KEYS: staged log, staged blobs, source's log, source's blobs.  ARGV: last place, seconds, lines ...
_STAGE_COPY = """
    redis.call('COPY', KEYS[3], KEYS[1])
    redis.call('COPY', KEYS[4], KEYS[2])
    if ARGV[1] == '-1' then redis.call('DEL', KEYS[1]) else redis.call('LTRIM', KEYS[1], 0, ARGV[1]) end
    if #ARGV > 2 then redis.call('RPUSH', KEYS[1], unpack(ARGV, 3)) end
    for place = 1, 2 do redis.call('EXPIRE', KEYS[place], ARGV[2]) end
    return redis.call('LLEN', KEYS[1])
"""
# KEYS: head.  ARGV: holder that is thought dead or '*', new holder
_HOLD = """
    local holder = redis.call('HGET', KEYS[1], 'holder')
    if not holder then return {'missing', 0} end
    if ARGV[1] ~= '*' and holder ~= ARGV[1] then return {'held', 0} end
    redis.call('HSET', KEYS[1], 'holder', ARGV[2])
    return {'ok', redis.call('HINCRBY', KEYS[1], 'epoch', 1)}
"""
# KEYS: head.  ARGV: epoch, new holder
_ATTACH = """
    if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
    redis.call('HSET', KEYS[1], 'holder', ARGV[2])
    return 1
"""
# KEYS: head.  ARGV: field, old value, new value
_EXCHANGE = """
    if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
    return 1
"""
# KEYS: head, log.  ARGV: seq, updated, summary
_KEEP = """
    if redis.call('LLEN', KEYS[2]) ~= tonumber(ARGV[1]) then return 0 end
    redis.call('HSET', KEYS[1], 'updated', ARGV[2], 'summary', ARGV[3])
    return 1
"""
# KEYS: head, log, blobs, indexes.  ARGV: id, holder
_DELETE = """
    if redis.call('HGET', KEYS[1], 'holder') ~= ARGV[2] then return 0 end
    redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
    for place = 4, #KEYS do redis.call('ZREM', KEYS[place], ARGV[1]) end
    return 1
"""
_NO_DISK = (
    "the Redis server keeps sessions in memory only: they end when it stops. Switch its append-only file on "
    "(CONFIG SET appendonly yes), or use another store"
)
_SNAPSHOTS = (
    "the Redis server only saves snapshots: what was written since the last one is lost when it stops. Switch its "
    "append-only file on (CONFIG SET appendonly yes)"
)


def _driver() -> ModuleType:
    try:
        import redis
    except ImportError:
        raise OptionsError("sessions in Redis need the driver redis-py: pip install 'openagentic-sdk[redis]'") from None
    return redis


class RedisSessionStore(SessionStore):
    """Sessions on the server that `url` names (`redis://host:port/number`), under keys that begin with `prefix`.

    `?prefix=NAME` in the URL does the same. While the server restarts, calls wait for it up to `patience_s` seconds.
    `durability` is known once the store was used: `fsync`, `flush` (up to a second is lost when the server's machine fails),
    `snapshot` or `memory`.
    """

    is_remote = True

    def __init__(
        self, url: str, *, prefix: str | None = None, patience_s: float = 30.0, clock: Clock | None = None
    ) -> None:
        _driver()
        self._url, named = _without_prefix(url)
        self._prefix = "{%s}" % (prefix or named or DEFAULT_PREFIX)
        self._patience_s = patience_s
        self._clock = clock or SystemClock()
        self._guard = threading.Lock()
        self._client: Any = None

    # --- the core ----------------------------------------------------------------------------------------------------

    def create_session(self, *, metadata: Mapping[str, Any] | None = None, session_id: str | None = None) -> str:
        return self.import_session(session_id or uuid.uuid4().hex, (), metadata=metadata)

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
                return self._append(self._connected(), session_id, at, events)[0]
            except ConcurrencyError:
                # Somebody was faster. Without an expectation the next place is as good; with one, the check above refuses.
                continue

    def iter_events(self, session_id: str, *, after_seq: int = 0, limit: int | None = None) -> Iterator[Event]:
        self._position(session_id)
        page = partial(self._page, session_id)
        yield from iter_pages(session_id, page, after_seq=max(0, after_seq), limit=limit, page_events=PAGE_EVENTS)

    def read_metadata(self, session_id: str) -> dict[str, Any]:
        at = self._position(session_id)
        return {"session_id": session_id, "created_at": at.created_at, "metadata": loads_json(at.metadata)}

    def update_metadata(self, session_id: str, changes: Mapping[str, Any]) -> None:
        while True:
            old = self._position(session_id).metadata
            merged = {**loads_json(old), **changes}
            new = dumps_json({key: value for key, value in merged.items() if value is not None})
            if self._run(session_id, _EXCHANGE, [self._key("head", session_id)], ["metadata", old, new]):
                return

    def list_sessions(self) -> list[str]:
        return self._ids("all", 0, None)

    def session_exists(self, session_id: str) -> bool:
        try:
            return bool(self._call(session_id, lambda client: client.exists(self._key("head", session_id))))
        except SessionNotFoundError:
            return False

    def delete_session(self, session_id: str) -> None:
        while True:
            at = self._position(session_id)
            self._refuse_if_held(session_id, at.holder)
            if self._run(session_id, _DELETE, self._keys(session_id, at.head), [session_id, at.holder]):
                return

    def put_blob(self, session_id: str, data: bytes) -> str:
        self._position(session_id)
        digest = hashlib.sha256(data).hexdigest()
        self._call(session_id, lambda client: client.hset(self._key("blobs", session_id), digest, data))
        return digest

    def read_blob(self, session_id: str, sha256: str) -> bytes:
        self._position(session_id)
        data = self._call(session_id, lambda client: client.hget(self._key("blobs", session_id), sha256))
        if data is None or hashlib.sha256(data).hexdigest() != sha256:
            raise StorageError(f"session {session_id!r} has no intact blob {sha256}", session_id=session_id)
        return bytes(data)

    def close(self) -> None:
        with self._guard:
            if self._client is not None:
                self._client.close()
                self._client = None

    def durability_notice(self) -> str | None:
        self._connected()
        return {"memory": _NO_DISK, "snapshot": _SNAPSHOTS}.get(self.durability)

    # --- what the server does better ---------------------------------------------------------------------------------

    def last_seq(self, session_id: str) -> int:
        return self._position(session_id).head.last_seq

    def list_blobs(self, session_id: str) -> list[str]:
        self._position(session_id)
        names = self._call(session_id, lambda client: client.hkeys(self._key("blobs", session_id)))
        return sorted(name.decode("ascii") for name in names)

    def list_children(self, session_id: str) -> list[str]:
        return list(reversed(self._ids(f"parent:{_digest(session_id)}", 0, None)))

    def read_summary(self, session_id: str) -> SessionSummary:
        head = self._position(session_id).head
        return head.summary if head.is_kept else self._refold(session_id)

    def list_session_summaries(
        self,
        *,
        cwd: str | None = None,
        limit: int | None = None,
        offset: int = 0,
        query: str | None = None,
        include_children: bool = False,
    ) -> list[SessionSummary]:
        index = "all" if include_children else "top"
        index = index if cwd is None else f"{index}:{_digest(cwd)}"
        if not query:
            return self._rows(self._ids(index, offset, limit))
        matching = (row for row in self._all_rows(index) if summary_matches(row, query=query, include_children=True))
        return page_of(matching, limit=limit, offset=offset)

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
            length = self._run(source_id, _STAGE_COPY, keys, [at_seq - 1, STAGED_S, *lines])
            if length != head.last_seq:
                raise ConcurrencyError(source_id, head.last_seq, int(length))
            self._create(target_id, staged, head, created_at, known)
        return target_id

    def wait_for_events(self, session_id: str, *, after_seq: int, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        with _translated(session_id), self._connected().pubsub(ignore_subscribe_messages=True) as news:
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
        names = self._call(None, lambda client: client.zrevrange(self._key("by", index), offset, last))
        return [name.decode() for name in names]

    def _all_rows(self, index: str) -> Iterator[SessionSummary]:
        ids = self._ids(index, 0, None)
        for start in range(0, len(ids), PAGE_ROWS):
            yield from self._rows(ids[start : start + PAGE_ROWS])

    def _rows(self, ids: Sequence[str]) -> list[SessionSummary]:
        def ask(client: Any) -> list[Any]:
            with client.pipeline(transaction=False) as pipe:
                for session_id in ids:
                    self._ask_position(pipe, session_id)
                return list(pipe.execute())

        answers = self._call(None, ask)
        found = [
            _Position.read(session_id, answers[2 * index], answers[2 * index + 1])
            for index, session_id in enumerate(ids)
            if answers[2 * index][0] is not None
        ]
        return [at.head.summary if at.head.is_kept else self._row(at.head.summary.id) for at in found]

    def _position(self, session_id: str) -> _Position:
        def ask(client: Any) -> list[Any]:
            with client.pipeline(transaction=True) as pipe:
                self._ask_position(pipe, session_id)
                return list(pipe.execute())

        fields, length = self._call(session_id, ask)
        if fields[0] is None:
            raise SessionNotFoundError(session_id, self._where)
        return _Position.read(session_id, fields, length)

    def _ask_position(self, pipe: Any, session_id: str) -> None:
        pipe.hmget(self._key("head", session_id), *_Position.FIELDS)
        pipe.llen(self._key("log", session_id))

    def _page(self, session_id: str, after_seq: int, size: int) -> list[tuple[int, str]]:
        key = self._key("log", session_id)
        lines = self._call(session_id, lambda client: client.lrange(key, after_seq, after_seq + size - 1))
        return [(seq, line.decode("ascii")) for seq, line in enumerate(lines, start=after_seq + 1)]

    def _refold(self, session_id: str) -> SessionSummary:
        """Fold a stale row anew, and keep it if nobody wrote meanwhile."""
        folded = self.fold_summary(session_id)
        keys = [self._key("head", session_id), self._key("log", session_id)]
        self._run(session_id, _KEEP, keys, [folded.events, repr(folded.updated), Head(folded).to_json()])
        return folded

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
                self._call(session_id, lambda client: client.delete(staged.log, staged.blobs))
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

        self._once(session_id, send)

    def _create(self, session_id: str, staged: _Staged, head: Head, created_at: float, metadata: str) -> None:
        touches = self._key("touches", "")
        own = self._keys(session_id, head)
        fields = ["created_at", repr(created_at), "metadata", metadata, "epoch", "0", "holder", ""]
        fields += ["updated", repr(head.summary.updated), "summary", head.to_json() or ""]
        arguments = [session_id, staged.log, staged.blobs, *fields]
        keys = [*own[:3], touches, *own[3:]]
        if not self._once(session_id, lambda client: client.register_script(_CREATE)(keys, arguments)):
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

        with _translated(session_id, self._where):
            self._patiently(client, send)
        return stamped, after

    def _send(self, client: Any, session_id: str, at: _Position, head: Head, lines: Sequence[str]) -> None:
        own = self._keys(session_id, head)
        keys = [own[0], own[1], self._news, self._key("touches", ""), *own[3:]]
        holder = "*" if at.is_writer else at.holder
        counters = [at.head.last_seq, repr(head.summary.updated), head.to_json() or ""]
        answer, length = client.register_script(_APPEND)(keys, [session_id, at.epoch, holder, *counters, *lines])
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
        client = self._new_client(single_connection_client=True)
        try:
            with _translated(session_id, self._where):
                name = _connection_name(client)
                keys = [self._key("head", session_id)]
                answer, _ = client.register_script(_HOLD)(keys, ["*" if by_force else holder, name])
            if answer == b"missing":
                raise SessionNotFoundError(session_id, self._where)
            if answer == b"held":
                raise SessionLockedError(session_id, "another run")
            return _RedisWriter(self, client, session_id, self._position(session_id))
        except BaseException:
            client.close()
            raise

    def _refuse_if_held(self, session_id: str, holder: str) -> None:
        """A server may take a moment to notice that a process died; a holder that lives is refused after it."""
        deadline = time.monotonic() + GRACE_S
        while holder and self._call(session_id, lambda client: _is_connected(client, holder)):
            if time.monotonic() > deadline:
                raise SessionLockedError(session_id, f"connection {holder.rpartition(':')[2]} of the server")
            time.sleep(GRACE_S / 20)

    # --- connections -------------------------------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        parts = urlsplit(self._url)
        return f"{parts.hostname or parts.path}:{parts.port or 6379}"

    def _new_client(self, **settings: Any) -> Any:
        redis = _driver()
        # The driver must not send anything twice on its own: only we can tell whether the first time took effect.
        retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        with _translated(None, self._where):
            return redis.Redis.from_url(self._url, retry=retry, **settings)

    def _connected(self) -> Any:
        with self._guard:
            if self._client is None:
                client = self._new_client()
                with _translated(None, self._where):
                    self.durability = _durability(client)
                self._client = client
            return self._client

    def _call(self, session_id: str | None, work: Callable[[Any], T]) -> T:
        with _translated(session_id, self._where):
            return self._patiently(self._connected(), work)

    def _once(self, session_id: str, work: Callable[[Any], T]) -> T:
        """Work that must not be done twice: a connection that broke before is replaced, one that breaks now fails it."""
        self._call(session_id, lambda client: client.ping())
        with _translated(session_id, self._where):
            return work(self._connected())

    def _run(self, session_id: str, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        return self._call(session_id, lambda client: client.register_script(script)(keys, arguments))

    def _patiently(self, client: Any, work: Callable[[Any], T]) -> T:
        """Do the work, again from its start while the server is away."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return work(client)
            except _driver().ConnectionError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_S)


@frozen
class _Staged:
    log: str
    blobs: str


@frozen
class _Position:
    created_at: float
    metadata: str
    epoch: int
    holder: str
    head: Head
    is_writer: bool = False

    FIELDS: ClassVar[Sequence[str]] = ("created_at", "metadata", "epoch", "holder", "summary", "updated")

    @classmethod
    def read(cls, session_id: str, fields: Sequence[bytes], length: int) -> _Position:
        created_at, metadata, epoch, holder, summary, updated = (field.decode("ascii") for field in fields)
        head = read_head(session_id, float(created_at), metadata, summary or None, length, float(updated))
        return cls(float(created_at), metadata, int(epoch), holder, head)

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
        with suppress(_driver().RedisError):
            self._client.register_script(_ATTACH)([self._store._key("head", self.session_id)], [self.epoch, ""])
        self._client.close()

    def _attach(self) -> None:
        """Be the holder again on a new connection, unless somebody else became it."""
        keys = [self._store._key("head", self.session_id)]
        if not self._client.register_script(_ATTACH)(keys, [self.epoch, _connection_name(self._client)]):
            raise LeaseLostError(self.session_id, self.last_seq, self._store.last_seq(self.session_id))


def _digest(text: str) -> str:
    return hashlib.sha256(dumps_json(text).encode("ascii")).hexdigest()


def _connection_name(client: Any) -> str:
    """A name that no other connection will ever have: the server's run and the connection's number."""
    return f"{client.info('server')['run_id']}:{client.client_id()}"


def _is_connected(client: Any, holder: str) -> bool:
    run_id, _, number = holder.partition(":")
    return bool(client.info("server")["run_id"] == run_id and client.client_list(client_id=[number]))


def _durability(client: Any) -> str:
    """What survives the server, as far as it says: some keep their settings to themselves."""
    if client.info("persistence").get("aof_enabled"):
        return "fsync" if _setting(client, "appendfsync") == "always" else "flush"
    return "memory" if _setting(client, "save") == "" else "snapshot"


def _setting(client: Any, name: str) -> str | None:
    try:
        return dict(client.config_get(name)).get(name)
    except _driver().ResponseError:
        return None


def _without_prefix(url: str) -> tuple[str, str | None]:
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    prefix = query.pop("prefix", None)
    return urlunsplit(parts._replace(query=urlencode(query))), prefix


@contextmanager
def _translated(session_id: str | None, where: str = "Redis") -> Iterator[None]:
    """The driver's errors as ours."""
    redis = _driver()
    try:
        yield
    except UnicodeEncodeError as error:
        # Everything but ids is sent as ASCII, and no session has an id with a lone surrogate.
        raise SessionNotFoundError(str(session_id), where) from error
    except redis.RedisError as error:
        raise StorageError(f"Redis refused ({where}): {error}", session_id=session_id) from error
