"""A Redis server in memory, which runs the store's own scripts, and a driver whose connections break.

An unknown command fails the schedule. A script sent before a connection broke may arrive after later commands of others,
like packets in a network.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial, reduce
from operator import and_
from types import SimpleNamespace, TracebackType
from typing import Any, ClassVar

from openagentic_sdk.sessions.stores.redis.scripts import _scripts

from .lua import translated
from .modelled_server import CHANGE, BrokenConnectionError, Refusal, Times, Wire

PREFIX = "{openagentic}"
_HEAD = f"{PREFIX}:2:head:".encode()
_HOLDER = f"{PREFIX}:2:holder:".encode()
_SETTINGS = {"appendfsync": "always", "no-appendfsync-on-rewrite": "no", "save": ""}
_INFO = {
    "persistence": {"aof_enabled": 1},
    "replication": {"role": "master"},
}


class WrongTypeError(Refusal):
    """A command for another type than the key's."""


class Sorted(dict[bytes, float]):
    """A sorted set: members with their scores."""

    def ordered(self) -> list[bytes]:
        return sorted(self, key=lambda member: (self[member], member))


def _above(score: float, low: bytes) -> bool:
    return low == b"-inf" or (score > float(low[1:]) if low[:1] == b"(" else score >= float(low))


def _below(score: float, high: bytes) -> bool:
    return high == b"+inf" or (score < float(high[1:]) if high[:1] == b"(" else score <= float(high))


def _and(*values: int) -> int:
    return reduce(and_, values)


def _bytes(value: Any) -> bytes:
    return value.encode() if type(value) is str else value if isinstance(value, bytes) else str(value).encode()


class RedisDatabase:
    """The keys with their values, and when they expire."""

    def __init__(self, times: Times, rng: random.Random) -> None:
        self.times, self.rng = times, rng
        self.keys: dict[bytes, Any] = {}
        self.until: dict[bytes, float] = {}
        self.late: list[Callable[[], object]] = []
        self.policy = "noeviction"
        self.runs = 1  # a server has another run id after each restart
        # Channels with the texts that were sent there and not read.
        self.channels: dict[bytes, list[bytes]] = {}

    def saved(self) -> Callable[[], None]:
        """Return a function that restarts the server with the keys that it has now, as after a crash."""
        kept = {key: type(value)(value) for key, value in self.keys.items()}
        until = dict(self.until)

        def restart() -> None:
            self.keys, self.until, self.late, self.channels = kept, until, [], {}
            self.runs += 1

        return restart

    def deliver(self) -> None:
        """Deliver a script whose sender has given up."""
        if self.late:
            self.late.pop(self.rng.randrange(len(self.late)))()

    def call(self, name: bytes, *values: Any) -> Any:
        """Execute a command; a missing answer is False, as in scripts."""
        command = self._COMMANDS.get(name)
        if command is None:
            raise AssertionError(f"the modelled server has no command {name.decode()}")
        return command(self, *[each if type(each) is bytes else _bytes(each) for each in values])

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

    @property
    def names(self) -> list[str]:
        return [key[len(_HEAD) :].decode() for key in self.keys if key.startswith(_HEAD)]

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
        if key == new:
            raise Refusal("ERR source and destination objects are the same")
        if key not in self.keys:
            return 0
        self.delete(new)
        self.keys[new] = self.keys[key].copy()
        return 1

    def expire(self, key: bytes, seconds: bytes) -> int:
        left_s = int(seconds)  # another number is an error
        if left_s <= 0:
            self.delete(key)
        elif key in self.keys:
            self.until[key] = self.times.now_s + left_s
        return 1

    def persist(self, key: bytes) -> int:
        self.until.pop(key, None)
        return 1

    def left_ms(self, key: bytes) -> int:
        if key not in self.until:
            return -1 if key in self.keys else -2
        return max(-2, int((self.until[key] - self.times.now_s) * 1000))

    def set(self, key: bytes, value: bytes, unit: bytes = b"", time: bytes = b"0") -> int:
        until = self.times.now_s + int(time) / (1000 if unit == b"PX" else 1)
        self.delete(key)
        self.keys[key] = value
        if unit:
            self.until[key] = until
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

    def hsetnx(self, key: bytes, field: bytes, value: bytes) -> int:
        return int(self.own(key, dict).setdefault(field, value) is value)

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

    def lset(self, key: bytes, place: bytes, value: bytes) -> int:
        self.found(key, list)[int(place)] = value
        return 1

    def ltrim(self, key: bytes, first: bytes, last: bytes) -> int:
        kept = self.lrange(key, first, last)
        if key in self.keys:
            self.keys[key] = kept
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

    def scored(self, key: bytes, low: bytes, high: bytes, *how: bytes) -> list[bytes]:
        """ZRANGEBYSCORE, with its options in any order."""
        values = self.found(key, Sorted) or Sorted()
        members = [
            member for member in values.ordered() if _above(values[member], low) and _below(values[member], high)
        ]
        if b"LIMIT" in how:
            first, size = (int(each) for each in how[how.index(b"LIMIT") + 1 :][:2])
            members = members[first : first + size]
        if b"WITHSCORES" in how:
            return [each for member in members for each in (member, b"%d" % values[member])]
        return members

    def between(self, key: bytes, low: bytes, high: bytes, *limit: bytes) -> list[bytes]:
        """ZRANGEBYLEX."""
        members = (self.found(key, Sorted) or Sorted()).ordered()
        found = [each for each in members if each >= low[1:] and each < high[1:] and low != b"(" + each]
        return found[int(limit[1]) :][: int(limit[2])] if limit else found

    def newest(self, key: bytes, first: bytes, last: bytes, *how: bytes) -> list[bytes]:
        """ZREVRANGE."""
        members = self.ranked(key, first, last, backwards=True)
        return [each for member in members for each in (member, b"%d" % self.keys[key][member])] if how else members

    def set_bit(self, key: bytes, place: bytes, bit: bytes) -> int:
        at, shift = divmod(int(place), 8)
        bits = bytearray(self.found(key, bytes) or b"").ljust(at + 1, b"\0")
        mask = 128 >> shift
        was = bool(bits[at] & mask)
        bits[at] = bits[at] | mask if bit == b"1" else bits[at] & ~mask
        self.keys[key] = bytes(bits)
        return int(was)

    def all_bits(self, _: bytes, target: bytes, *keys: bytes) -> int:
        """BITOP AND."""
        values = [self.found(key, bytes) or b"" for key in keys]
        size = max(map(len, values))
        bits = bytes(map(_and, *(value.ljust(size, b"\0") for value in values))) if size else b""
        self.delete(target)
        if bits:
            self.keys[target] = bits
        return size

    def pop_member(self, key: bytes) -> Any:
        members = self.found(key, set)
        if not members:
            return False
        member = min(members)
        self.srem(key, member)
        return member

    def publish(self, channel: bytes, text: bytes) -> int:
        if channel in self.channels:
            self.channels[channel].append(text)
        return int(channel in self.channels)

    def sadd(self, key: bytes, *members: bytes) -> int:
        self.own(key, set).update(members)
        return 1

    def srem(self, key: bytes, *members: bytes) -> int:
        values = self.found(key, set) or set()
        values.difference_update(members)
        if not values:
            self.delete(key)
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
        b"HSETNX": hsetnx,
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
        b"PUBLISH": publish,
        b"UNLINK": delete,
        b"LSET": lset,
        b"SETBIT": set_bit,
        b"BITOP": all_bits,
        b"SPOP": pop_member,
        b"ZRANGEBYSCORE": scored,
        b"ZRANGEBYLEX": between,
        b"ZLEXCOUNT": lambda self, *values: len(self.between(*values)),
        b"ZCOUNT": lambda self, *values: len(self.scored(*values)),
        # Small hashes come whole, whatever the caller asks for.
        b"HSCAN": lambda self, key, cursor, *how: [b"%d" % (0 * int(cursor)), self.flat(key)],
        b"HVALS": lambda self, key: list((self.found(key, dict) or {}).values()),
        b"SUNION": lambda self, *keys: sorted(set().union(*(self.found(key, set) or () for key in keys))),
        b"BGREWRITEAOF": lambda self: True,
        b"HLEN": lambda self, key: len(self.found(key, dict) or ()),
        b"HKEYS": lambda self, key: list(self.found(key, dict) or ()),
        b"LLEN": lambda self, key: len(self.found(key, list) or ()),
        b"SMEMBERS": lambda self, key: sorted(self.found(key, set) or ()),
        b"ZREVRANGE": newest,
    }


def _answer(came: Any) -> Any:
    """An answer as the driver returns it."""
    if isinstance(came, list):
        return [_answer(each) if isinstance(each, list) else None if each is False else each for each in came]
    return None if came is False else came


@cache
def _names() -> dict[str, str]:
    """The names of the scripts by their texts."""
    return {source: name for name, source in _scripts().items()}


def _flat(values: Sequence[Any]) -> list[Any]:
    """Values as the driver takes them: some of its methods accept a list of names."""
    return [each for value in values for each in (value if isinstance(value, list) else (value,))]


def _pairs(found: list[bytes], withscores: bool) -> list[Any]:
    return [(name, float(score)) if withscores else name for name, score in zip(found[::2], found[1::2], strict=True)]


class Commands:
    """The driver's methods for commands."""

    def send(self, work: Callable[[], Any], script: str = "") -> Any:
        raise NotImplementedError

    @property
    def database(self) -> RedisDatabase:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Callable[..., Any]:
        command = {"delete": "DEL"}.get(name, name.upper()).encode()
        return lambda *values: self.send(lambda: _answer(self.database.call(command, *_flat(values))))

    def zrevrange(self, key: str, first: int, last: int, *, withscores: bool = False) -> Any:
        return self.send(lambda: _pairs(self.database.call(b"ZREVRANGE", key, first, last, b"WITHSCORES"), withscores))

    def zrangebyscore(self, key: str, low: str, high: str, start: int, num: int, *, withscores: bool) -> Any:
        how = b"WITHSCORES", b"LIMIT", start, num
        return self.send(lambda: _pairs(self.database.call(b"ZRANGEBYSCORE", key, low, high, *how), withscores))

    def zrevrangebyscore(self, key: str, high: str, low: str, start: int, num: int, *, withscores: bool) -> Any:
        def ask() -> Any:
            found = self.database.call(b"ZRANGEBYSCORE", key, low, high, b"WITHSCORES")
            return _pairs(found, withscores)[::-1][start : start + num]

        return self.send(ask)

    def zmscore(self, key: str, members: Sequence[str]) -> Any:
        def ask() -> list[float | None]:
            scores = [self.database.call(b"ZSCORE", key, member) for member in members]
            return [None if score is False else float(score) for score in scores]

        return self.send(ask)

    def scan_iter(self, match: str, count: int) -> Any:
        start = match.removesuffix("*").encode()
        return self.send(lambda: [key for key in self.database.keys if key.startswith(start)])

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

    def set(self, key: str, value: object, *, px: int = 0, ex: int = 0, nx: bool = False) -> Any:
        def work() -> Any:
            if nx and self.database.found(_bytes(key), bytes) is not None:
                return None
            return self.database.call(b"SET", key, value, b"PX", px or ex * 1000)

        return self.send(work)

    def info(self, section: str) -> Any:
        now = {"memory": {"maxmemory_policy": self.database.policy}, "server": {"run_id": str(self.database.runs)}}
        return self.send(lambda: {**_INFO, **now}[section])

    def config_get(self, name: str) -> Any:
        return self.send(lambda: {name: _SETTINGS[name]})

    def register_script(self, source: str) -> Callable[[Sequence[str], Sequence[Any]], Any]:
        script, name = translated(source), _names()[source]

        def run(keys: Sequence[str], arguments: Sequence[Any]) -> Any:
            sent = [key.encode() for key in keys], [each if type(each) is bytes else _bytes(each) for each in arguments]
            return self.send(lambda: _answer(script(*sent, self.database.call)), name)

        return run


class Client(Commands):
    """The connections of one process."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    @property
    def database(self) -> RedisDatabase:
        return self.wire.database  # type: ignore[return-value]

    def send(self, work: Callable[[], Any], script: str = "") -> Any:
        if not script:
            return self.wire.pass_through(work)
        return self.change(work, (script,) if script == "position" else (script, CHANGE))

    def change(self, work: Callable[[], Any], scripts: Collection[str]) -> Any:
        """Send what may arrive late."""
        return self.wire.pass_through(work, partial(self.database.late.append, work), scripts)

    def pipeline(self, *, transaction: bool) -> Pipeline:
        return Pipeline(self)

    def pubsub(self, *, ignore_subscribe_messages: bool) -> Subscription:
        return Subscription(self)


class WaitsError(BaseException):
    """Leaves the loop of a listener that waits for news."""


class Subscription:
    """A connection on which the server sends what is published on one channel."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.channel = b""

    def subscribe(self, channel: str) -> None:
        self.channel = channel.encode()
        self.client.send(lambda: self.client.database.channels.setdefault(self.channel, []))

    def get_message(self, timeout: float) -> dict[str, bytes]:
        waiting = self.client.send(lambda: self.client.database.channels.get(self.channel))
        if not waiting:
            raise WaitsError
        return {"data": waiting.pop(0)}

    def close(self) -> None:
        """Do nothing: the channel keeps its texts for the next subscription."""


class Pipeline(Commands):
    """Commands that are sent together, and executed without those of others between them."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.waiting: list[Callable[[], Any]] = []
        self.scripts: list[str] = []
        self.watched: tuple[bytes, Any] | None = None
        self.is_immediate = False

    @property
    def database(self) -> RedisDatabase:
        return self.client.database

    def watch(self, key: str) -> None:
        self.watched, self.is_immediate = (key.encode(), self.database.call(b"HGETALL", key)), True

    def multi(self) -> None:
        self.is_immediate = False

    def send(self, work: Callable[[], Any], script: str = "") -> Any:
        if self.is_immediate:
            return self.client.send(work)
        self.waiting.append(work)
        self.scripts.append(script)

    def execute(self, *, raise_on_error: bool = True) -> list[Any]:
        works, self.waiting = self.waiting, []

        def execute() -> list[Any]:
            if self.watched and self.database.call(b"HGETALL", self.watched[0]) != self.watched[1]:
                raise Refusal("Watched variable changed.")
            return [_tried(work) for work in works]

        answers = self.client.change(execute, (*self.scripts, CHANGE))
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
