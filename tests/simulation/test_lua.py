"""The translated scripts and the modelled commands answer as a real Redis does, and leave the same keys behind."""

from __future__ import annotations

import importlib.util
import random
import shutil
import unittest
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.size import LARGE, full_size, sized
from tests.stores.own_servers import OwnRedis

from . import modelled_redis
from .lua import translated
from .modelled_redis import RedisDatabase, WrongTypeError
from .modelled_server import Times
from .redis_servers import RedisServers
from .schedules import folder

# A script, its keys and its arguments.
Call = tuple[str, list[bytes], list[bytes]]
# Times to live are set again to this after each script, so that no key expires while the test waits for its turn.
LONG_MS = 10**8


@contextmanager
def recording(calls: list[Call]) -> Iterator[None]:
    """Record the scripts that run on the modelled server."""

    def recorded(source: str) -> Callable[..., Any]:
        script = translated(source)

        def run(keys: list[bytes], arguments: list[bytes], call: Callable[..., Any]) -> Any:
            calls.append((source, list(keys), list(arguments)))
            return script(keys, arguments, call)

        return run

    modelled_redis.translated = recorded
    try:
        yield
    finally:
        modelled_redis.translated = translated


class Model:
    """The translator on the modelled commands."""

    def __init__(self) -> None:
        self.database = RedisDatabase(Times(), random.Random(0))

    def run(self, call: Call) -> Any:
        source, keys, arguments = call
        try:
            return modelled_redis._answer(translated(source)(keys, arguments, self.database.call))
        except (WrongTypeError, TypeError, ValueError):  # the server's errors, and those of Lua
            return "an error"
        finally:
            for key in self.database.until:
                self.database.until[key] = self.database.times.now_s + LONG_MS / 1000

    def state(self) -> dict[bytes, Any]:
        kinds: dict[type[Any], Callable[[Any], Any]] = {dict: dict, list: list, bytes: bytes, set: set}
        return {
            key: (kinds.get(type(value), dict)(value), key in self.database.until)
            for key, value in self.database.keys.items()
        }


class Real:
    """A real server."""

    def __init__(self, url: str) -> None:
        import redis

        self.client = redis.Redis.from_url(url)
        self.error = redis.ResponseError

    def run(self, call: Call) -> Any:
        source, keys, arguments = call
        try:
            return self.client.register_script(source)(keys, arguments)
        except self.error:
            return "an error"
        finally:
            for key in self.client.scan_iter():
                if self.client.pttl(key) > 0:
                    self.client.pexpire(key, LONG_MS)

    def state(self) -> dict[bytes, Any]:
        read: dict[bytes, Callable[[bytes], Any]] = {
            b"hash": self.client.hgetall,
            b"list": lambda key: self.client.lrange(key, 0, -1),
            b"string": self.client.get,
            b"set": self.client.smembers,
            b"zset": lambda key: dict(self.client.zrange(key, 0, -1, withscores=True)),
        }
        return {key: (read[self.client.type(key)](key), self.client.pttl(key) > 0) for key in self.client.scan_iter()}


class ListingServers(RedisServers):
    """Schedules that list and search often, so that a few of them run every script."""

    WEIGHTS = tuple(
        12 if action.__name__ in ("list_rows", "search_any") else weight
        for action, weight in zip(RedisServers.ACTIONS, RedisServers.WEIGHTS, strict=True)
    )


def altered(call: Call, values: Sequence[bytes], rng: random.Random) -> Call:
    """The call with another value, or the key of another type, in one place."""
    source, keys, arguments = call[0], list(call[1]), list(call[2])
    if arguments and (not keys or rng.random() < 0.8):
        arguments[rng.randrange(len(arguments))] = rng.choice(values)
    else:
        keys[rng.randrange(len(keys))] = rng.choice(keys)
    return source, keys, arguments


@unittest.skipUnless(importlib.util.find_spec("redis"), "the driver redis-py is not installed")
@unittest.skipUnless(shutil.which("redis-server"), "the program redis-server is not installed")
class LuaTest(unittest.TestCase):
    @full_size
    def test_scripts_of_random_schedules_with_random_values_do_the_same_on_a_real_server(self) -> None:
        server = OwnRedis("--save", "", "--appendonly", "no")
        self.addCleanup(server.remove)
        real = Real(server.url)
        self.addCleanup(real.client.close)
        used, missing = set[str](), {"BITOP", "HSCAN", "SPOP", "ZRANGEBYLEX"}
        for seed in range(sized(100, 100, 200)):
            if seed >= 8 and not missing and not LARGE:
                break
            rng, calls = random.Random(seed), list[Call]()
            schedule = ListingServers(seed, folder())
            schedule.ordinal = seed
            with recording(calls):
                schedule.run()
            real.client.flushall()
            model = Model()
            values = [value for _, _, arguments in calls for value in arguments]
            for call in calls:
                for each in (call, altered(call, values, rng)) if rng.random() < 0.5 else (call,):
                    used.add(each[0])
                    missing -= {word for word in missing if f"'{word}'" in each[0].rpartition("-- script")[2][-2500:]}
                    self.assertEqual(
                        model.run(each), real.run(each), (seed, each[0].rpartition("-- KEYS")[2], each[1:])
                    )
                    self.assertEqual(model.state(), real.state(), (seed, each[0].rpartition("-- KEYS")[2], each[1:]))
        self.assertGreaterEqual(len(used), 14)
        self.assertEqual(missing, set())


if __name__ == "__main__":
    unittest.main()
