"""A Redis server in memory, which runs the store's own scripts, and a driver whose connections break.

An unknown command fails the schedule. A script sent before a connection broke may arrive after later commands of others,
like packets in a network.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace, TracebackType
from typing import Any, ClassVar

from .lua import translated
from .modelled_server import BrokenConnectionError, Refusal, Times, Wire

PREFIX = "{openagentic}"
_HEAD = f"{PREFIX}:2:head:".encode()
_HOLDER = f"{PREFIX}:2:holder:".encode()
_SETTINGS = {"appendfsync": "always", "no-appendfsync-on-rewrite": "no", "save": ""}
_INFO = {
    "memory": {"maxmemory_policy": "noeviction"},
    "persistence": {"aof_enabled": 1},
    "replication": {"role": "master"},
}


class WrongTypeError(Refusal):
    """A command for another type than the key's."""


class Sorted(dict[bytes, float]):
    """A sorted set: members with their scores."""

    def ordered(self) -> list[bytes]:
        return sorted(self, key=lambda member: (self[member], member))


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


class RedisDatabase:
    """The keys with their values, and when they expire."""

    def __init__(self, times: Times, rng: random.Random) -> None:
        self.times, self.rng = times, rng
        self.keys: dict[bytes, Any] = {}
        self.until: dict[bytes, float] = {}
        self.late: list[Callable[[], object]] = []

    def deliver(self) -> None:
        """Deliver a script whose sender has given up."""
        if self.late:
            self.late.pop(self.rng.randrange(len(self.late)))()

    def call(self, name: bytes, *values: Any) -> Any:
        """Execute a command; a missing answer is False, as in scripts."""
        command = self._COMMANDS.get(name)
        if command is None:
            raise AssertionError(f"the modelled server has no command {name.decode()}")
        return command(self, *map(_bytes, values))

    # --- what schedules ask ------------------------------------------------------------------------------------------

    @property
    def sessions(self) -> dict[str, dict[str, Any]]:
        """The rows of the sessions by their ids."""
        rows: dict[str, dict[str, Any]] = {}
        for key, head in self.keys.items():
            if key.startswith(_HEAD):
                row = {"epoch": int(head[b"epoch"]), "holder": head[b"holder"].decode()}
                rows[key[len(_HEAD) :].decode()] = row
        return rows

    @property
    def holders(self) -> dict[str, float]:
        """When the leases of the processes end."""
        return {key[len(_HOLDER) :].decode(): until for key, until in self.until.items() if key.startswith(_HOLDER)}

    def lines(self, name: str) -> list[str]:
        return [line.decode() for line in self.keys.get(f"{PREFIX}:2:log:{name}".encode(), ())]

    # --- commands ----------------------------------------------------------------------------------------------------

    def found(self, key: bytes, kind: type[Any]) -> Any:
        """The value of a key, or None. Raises `WrongTypeError`."""
        if self.until.get(key, self.times.now_s + 1) <= self.times.now_s:
            self.delete(key)
        value = self.keys.get(key)
        if value is not None and type(value) is not kind:
            raise WrongTypeError("WRONGTYPE Operation against a key holding the wrong kind of value")
        return value

    def own(self, key: bytes, kind: type[Any]) -> Any:
        """The value of a key, which is created if it is missing."""
        value = self.found(key, kind)
        if value is None:
            value = self.keys[key] = kind()
        return value

    def delete(self, *keys: bytes) -> int:
        count = sum(key in self.keys for key in keys)
        for key in keys:
            self.keys.pop(key, None)
            self.until.pop(key, None)
        return count

    def exists(self, *keys: bytes) -> int:
        return sum(key in self.keys for key in keys)

    def type_of(self, key: bytes) -> Any:
        names = {dict: b"hash", list: b"list", set: b"set", bytes: b"string", Sorted: b"zset", type(None): b"none"}
        return SimpleNamespace(ok=names[type(self.keys.get(key))])

    def rename(self, key: bytes, new: bytes) -> int:
        self.delete(new)
        self.keys[new] = self.keys.pop(key)
        if key in self.until:
            self.until[new] = self.until.pop(key)
        return 1

    def copy(self, key: bytes, new: bytes, _: bytes) -> int:
        self.delete(new)
        if key in self.keys:
            self.keys[new] = self.keys[key].copy()
        return 1

    def expire(self, key: bytes, seconds: bytes) -> int:
        if key in self.keys:
            self.until[key] = self.times.now_s + float(seconds)
        return 1

    def persist(self, key: bytes) -> int:
        self.until.pop(key, None)
        return 1

    def left_ms(self, key: bytes) -> int:
        if key not in self.until:
            return -1 if key in self.keys else -2
        return max(-2, int((self.until[key] - self.times.now_s) * 1000))

    def set(self, key: bytes, value: bytes, unit: bytes = b"", time: bytes = b"0") -> int:
        self.delete(key)
        self.keys[key] = value
        if unit:
            self.until[key] = self.times.now_s + float(time) / (1000 if unit == b"PX" else 1)
        return 1

    def get(self, key: bytes) -> Any:
        value = self.found(key, bytes)
        return False if value is None else value

    def increase(self, key: bytes) -> int:
        value = int(self.found(key, bytes) or 0) + 1
        self.keys[key] = b"%d" % value
        return value

    def hget(self, key: bytes, field: bytes) -> Any:
        return (self.found(key, dict) or {}).get(field, False)

    def hmget(self, key: bytes, *fields: bytes) -> list[Any]:
        values = self.found(key, dict) or {}
        return [values.get(field, False) for field in fields]

    def hset(self, key: bytes, *pairs: bytes) -> int:
        self.own(key, dict).update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(pairs) // 2

    def hdel(self, key: bytes, *fields: bytes) -> int:
        values = self.found(key, dict) or {}
        for field in fields:
            values.pop(field, None)
        if not values:
            self.delete(key)
        return 1

    def hincrby(self, key: bytes, field: bytes, more: bytes) -> int:
        values = self.own(key, dict)
        values[field] = b"%d" % (int(values.get(field, 0)) + int(more))
        return int(values[field])

    def flat(self, key: bytes) -> list[bytes]:
        return [each for pair in (self.found(key, dict) or {}).items() for each in pair]

    def rpush(self, key: bytes, *values: bytes) -> int:
        items = self.own(key, list)
        items.extend(values)
        return len(items)

    def lrange(self, key: bytes, first: bytes, last: bytes) -> list[bytes]:
        return (self.found(key, list) or [])[int(first) :][: int(last) - int(first) + 1]

    def ltrim(self, key: bytes, first: bytes, last: bytes) -> int:
        if key in self.keys:
            self.keys[key] = self.lrange(key, first, last)
        return 1

    def zadd(self, key: bytes, *pairs: bytes) -> int:
        self.own(key, Sorted).update(
            (member, float(score)) for score, member in zip(pairs[::2], pairs[1::2], strict=False)
        )
        return 1

    def zrem(self, key: bytes, *members: bytes) -> int:
        values = self.found(key, Sorted) or {}
        for member in members:
            values.pop(member, None)
        if not values:
            self.delete(key)
        return 1

    def zscore(self, key: bytes, member: bytes) -> Any:
        score = (self.found(key, Sorted) or {}).get(member)
        return False if score is None else b"%d" % score

    def ranked(self, key: bytes, first: bytes, last: bytes, *, backwards: bool = False) -> list[bytes]:
        members = (self.found(key, Sorted) or Sorted()).ordered()
        members = members[::-1] if backwards else members
        return members[int(first) : None if last == b"-1" else int(last) + 1]

    def sadd(self, key: bytes, *members: bytes) -> int:
        self.own(key, set).update(members)
        return 1

    def srem(self, key: bytes, *members: bytes) -> int:
        (self.found(key, set) or set()).difference_update(members)
        return 1

    _COMMANDS: ClassVar[dict[bytes, Callable[..., Any]]] = {
        b"DEL": delete,
        b"EXISTS": exists,
        b"TYPE": type_of,
        b"RENAME": rename,
        b"COPY": copy,
        b"EXPIRE": expire,
        b"PERSIST": persist,
        b"PTTL": left_ms,
        b"SET": set,
        b"GET": get,
        b"INCR": increase,
        b"HGET": hget,
        b"HMGET": hmget,
        b"HSET": hset,
        b"HDEL": hdel,
        b"HINCRBY": hincrby,
        b"HGETALL": flat,
        b"RPUSH": rpush,
        b"LRANGE": lrange,
        b"LTRIM": ltrim,
        b"ZADD": zadd,
        b"ZREM": zrem,
        b"ZSCORE": zscore,
        b"ZRANGE": ranked,
        b"SADD": sadd,
        b"SREM": srem,
        b"PUBLISH": lambda self, channel, text: 0,
        b"HLEN": lambda self, key: len(self.found(key, dict) or ()),
        b"HKEYS": lambda self, key: list(self.found(key, dict) or ()),
        b"LLEN": lambda self, key: len(self.found(key, list) or ()),
        b"SMEMBERS": lambda self, key: sorted(self.found(key, set) or ()),
        b"ZREVRANGE": partial(ranked, backwards=True),
    }


def _answer(came: Any) -> Any:
    """An answer as the driver returns it."""
    if came is False:
        return None
    return [_answer(each) for each in came] if isinstance(came, list) else came


class Commands:
    """The driver's methods for commands."""

    def send(self, work: Callable[[], Any], *, changes: bool = False) -> Any:
        raise NotImplementedError

    @property
    def database(self) -> RedisDatabase:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Callable[..., Any]:
        command = {"delete": "DEL"}.get(name, name.upper()).encode()
        return lambda *values: self.send(lambda: _answer(self.database.call(command, *values)))

    def zscore(self, key: str, member: str) -> Any:
        def ask() -> float | None:
            score = self.database.call(b"ZSCORE", key, member)
            return None if score is False else float(score)

        return self.send(ask)

    def hgetall(self, key: str) -> Any:
        def ask() -> dict[bytes, bytes]:
            pairs = self.database.call(b"HGETALL", key)
            return dict(zip(pairs[::2], pairs[1::2], strict=True))

        return self.send(ask)

    def set(self, key: str, value: object, *, px: int) -> Any:
        return self.send(lambda: self.database.call(b"SET", key, value, b"PX", px))

    def info(self, section: str) -> Any:
        return self.send(lambda: _INFO[section])

    def config_get(self, name: str) -> Any:
        return self.send(lambda: {name: _SETTINGS[name]})

    def register_script(self, source: str) -> Callable[[Sequence[str], Sequence[Any]], Any]:
        script = translated(source)

        def run(keys: Sequence[str], arguments: Sequence[Any]) -> Any:
            sent = list(map(_bytes, keys)), list(map(_bytes, arguments))
            return self.send(lambda: _answer(script(*sent, self.database.call)), changes=True)

        return run


class Client(Commands):
    """The connections of one process."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    @property
    def database(self) -> RedisDatabase:
        return self.wire.database  # type: ignore[return-value]

    def send(self, work: Callable[[], Any], *, changes: bool = False) -> Any:
        late = self.database.late.append
        return self.wire.pass_through(work, partial(late, work) if changes else None)

    def pipeline(self, *, transaction: bool) -> Pipeline:
        return Pipeline(self)


class Pipeline(Commands):
    """Commands that are sent together, and executed without those of others between them."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.waiting: list[Callable[[], Any]] = []

    @property
    def database(self) -> RedisDatabase:
        return self.client.database

    def send(self, work: Callable[[], Any], *, changes: bool = False) -> Any:
        self.waiting.append(work)

    def execute(self, *, raise_on_error: bool = True) -> list[Any]:
        works, self.waiting = self.waiting, []
        answers = self.client.send(lambda: [_tried(work) for work in works])
        for answer in answers if raise_on_error else ():
            if isinstance(answer, Refusal):
                raise answer
        return list(answers)

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.waiting = []


def _tried(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Refusal as error:
        return error


class Driver:
    """The driver, with the names of redis-py."""

    class AuthenticationError(Refusal):
        """The server does not accept the password."""

    RedisError, ResponseError = Refusal, WrongTypeError
    ConnectionError = TimeoutError = BrokenConnectionError
    exceptions = SimpleNamespace(
        ReadOnlyError=AuthenticationError, OutOfMemoryError=AuthenticationError, NoPermissionError=AuthenticationError
    )
