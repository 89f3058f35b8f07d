"""This process's connections to a Redis server, and the server's information about itself."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from ....errors import OptionsError, StorageError
from ....ground.text import on_one_line
from ...log.line import Durability
from ..holders import LEASE_S
from ..locate import without_user
from ..per_process import SharedByName
from ..server import RETRIES, StoreServer
from .scripts import FORMAT, run

T = TypeVar("T")
MAX_CONNECTIONS = 16
# How long to wait for one answer before the connection counts as lost; then the call checks whether it took effect.
ANSWER_S = 5.0
NO_DISK = (
    "the Redis server keeps sessions in memory only, so they are lost when it stops: enable its append-only file "
    "(CONFIG SET appendonly yes), or use another store"
)
SNAPSHOTS = (
    "the Redis server only saves snapshots, so everything written since the last one is lost when it stops: enable its "
    "append-only file (CONFIG SET appendonly yes)"
)
DELAYED = (
    "the Redis server writes its append-only file up to two seconds after it responds (appendfsync everysec), so these "
    "writes are lost if it is killed: make it wait for the disk"
    " (CONFIG SET appendfsync always)"
)
HIDDEN = "the Redis server does not reveal its settings, so only the weakest durability is promised ({durability})"
EVICTS = (
    "the Redis server deletes any key when its memory is full (maxmemory-policy {policy}), including sessions: set "
    "maxmemory-policy noeviction, or use another server for sessions"
)
REPLICA = (
    "this Redis server is a replica, which accepts no events and may lag behind its primary {primary}: use the primary"
)


def driver() -> ModuleType:
    """The module `redis`. Raises `OptionsError` if it is not installed."""
    try:
        import redis
    except ImportError:
        raise OptionsError("sessions in Redis need the driver redis-py: pip install 'redis>=5'") from None
    return redis


class RedisServer(StoreServer):
    """A Redis server as used by one process."""

    kind = "Redis"
    durability = "unknown"

    def __init__(
        self, url: str, prefix: str, patience_s: float, requested_durability: Durability | None = None
    ) -> None:
        parts = urlsplit(url)
        where = f"{parts.hostname}:{parts.port or 6379}" if parts.hostname else parts.path
        redis = driver()
        broken = redis.ConnectionError, redis.TimeoutError
        super().__init__(where, redis.RedisError, broken, _RedisNews(self))
        self.evicts = False
        self.prefix = prefix
        self._requested_durability = requested_durability
        self._hides = False
        self._url = url
        self._patience_s = patience_s
        self._client: Any = None
        # Identifies one run of the server: after a restart, it may have lost the newest changes.
        self._run_id: str | None = None

    def client(self) -> Any:
        """Return the client, which takes a connection from its pool for each command.

        Raises the driver's errors, and on first use `StorageError` if the durability is lower than requested.
        """
        with self._guard:
            if self._client is None:
                redis = driver()
                pool = redis.BlockingConnectionPool.from_url(
                    self._url,
                    max_connections=MAX_CONNECTIONS,
                    timeout=self._patience_s,
                    socket_timeout=min(ANSWER_S, self._patience_s / 2),
                    socket_connect_timeout=min(ANSWER_S, self._patience_s / 2),
                    **({} if self._url.startswith("unix:") else {"socket_keepalive": True}),
                    # The driver must not resend anything itself: only we can determine whether it took effect.
                    retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
                )
                client = redis.Redis(connection_pool=pool)
                try:
                    self.learn(client)
                except BaseException:  # also on Ctrl-C: close the connections
                    pool.disconnect()
                    raise
                self._client = client
            return self._client

    def notices(self, client: Any) -> list[str]:
        """Warnings about the server's current settings that matter before it is trusted with sessions."""
        self.learn(client)
        policy = _info(client, "memory").get("maxmemory_policy", "")
        role = _info(client, "replication")
        notices = [HIDDEN.format(durability=self.durability)] if self._hides else []
        notices.append({"memory": NO_DISK, "snapshot": SNAPSHOTS, "everysec": DELAYED}.get(self.durability, ""))
        notices.append(EVICTS.format(policy=policy) if self.evicts else "")
        if role.get("role") == "slave":
            notices.append(REPLICA.format(primary=f"{role.get('master_host')}:{role.get('master_port')}"))
        return [notice for notice in notices if notice]

    def call(self, session_id: str | None, work: Callable[[Any], T], patience_s: float, *, first_s: float = 0.0) -> T:
        redis = driver()
        began, pauses = time.monotonic(), RETRIES.waits()
        with self.translated(session_id):
            while True:
                try:
                    return work(self.client())
                except redis.AuthenticationError:
                    raise
                except self._broken:
                    pause_s = next(pauses)
                    if time.monotonic() + pause_s > began + (patience_s if self._client else first_s):
                        raise
                time.sleep(pause_s)

    def _disconnect(self) -> None:
        with self._guard:
            if self._client is not None:
                # The listener ends its own connection when it wakes up.
                self._client.connection_pool.disconnect(inuse_connections=False)
                self._client = None

    def name(self, kind: str, rest: str) -> str:
        """The full name of a key."""
        return f"{self.prefix}:{FORMAT}:{kind}:{rest}"

    def old_name(self, kind: str, rest: str) -> str:
        """The name of the key in format 1."""
        return f"{self.prefix}:{kind}:{rest}"

    def learn(self, client: Any) -> None:
        """Determine the server's durability as far as it reveals its settings. Raises `StorageError` if it is lower than
        requested.
        """
        # The policies named volatile-* only delete keys that expire anyway: leases and unfinished copies.
        self.evicts = str(_info(client, "memory").get("maxmemory_policy", "")).startswith("allkeys")
        persistence = _info(client, "persistence")
        is_first = persistence.get("aof_rewrite_in_progress") and persistence.get("aof_last_rewrite_time_sec") == -1
        names = ("appendfsync", "no-appendfsync-on-rewrite", "save")
        synced, pauses, save = settings = [_setting(client, name) for name in names]
        self._hides = not persistence or None in settings
        if persistence.get("aof_enabled") and not is_first:  # after enabling, the file is not used until it is complete
            # With everysec, a write that waits for a running sync is acknowledged early; without syncs, no write waits.
            durabilities = {"always": "fsync" if pauses == "no" else "flush", "no": "flush"}
            self.durability = durabilities.get(synced or "", "everysec")
        else:
            self.durability = "snapshot" if save else "memory"
        least = {"flush": ("flush", "fsync"), "barrier": ("fsync",), "fsync": ("fsync",)}
        if self._requested_durability is not None and self.durability not in least[self._requested_durability]:
            raise StorageError(
                f"durability {self._requested_durability!r} was requested, but the settings of the Redis server "
                f"{self.where} provide only {self.durability!r}: set appendonly to yes, appendfsync to always and "
                "no-appendfsync-on-rewrite to no (CONFIG SET)"
            )

    def _renew(self, name: str) -> None:
        def renew(client: Any) -> str | None:
            client.set(self.name("holder", name), 1, px=int(LEASE_S * 1000))
            run_id: str | None = _info(client, "server").get("run_id")
            return run_id

        run_id = self.call(None, renew, LEASE_S)
        if self._run_id not in (None, run_id):
            self.holder.release_again()
        self._run_id = run_id


SERVERS = SharedByName(RedisServer)


class _RedisNews:
    """The news source of a Redis server. Subscriptions are a set beside the session that each append checks."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server

    def listen(self, channel: str) -> _RedisListener | None:
        with self._server.translated():
            client = self._server.client()
            if _info(client, "replication").get("role") == "slave":
                return None
            news = client.pubsub(ignore_subscribe_messages=True)
            news.subscribe(channel)
            return _RedisListener(self._server, news)

    def follow(self, session_ids: Collection[str], channel: str, for_s: float) -> None:
        for session_id in session_ids:
            self._server.call(session_id, partial(self._follow, session_id, channel, for_s), ANSWER_S)

    def _follow(self, session_id: str, channel: str, for_s: float, client: Any) -> None:
        keys = [self._server.name("head", session_id), self._server.name("followers", session_id)]
        with suppress(driver().exceptions.ReadOnlyError):
            run("follow", keys, [channel, int(for_s)], client)

    def places(self, session_ids: Collection[str]) -> dict[str, tuple[int, int]]:
        names = list(session_ids)

        def ask(client: Any) -> list[Any]:
            with client.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.exists(self._server.name("head", name))
                    pipe.llen(self._server.name("log", name))
                    pipe.hkeys(self._server.name("inbox", name))
                return list(pipe.execute())

        answers = self._server.call(None, ask, ANSWER_S)
        rows = [(name, *answers[3 * place : 3 * place + 3]) for place, name in enumerate(names)]
        return {
            name: (length, max((int(number) for number in messages if number != b"key"), default=0))
            for name, is_there, length, messages in rows
            if is_there
        }


class _RedisListener:
    def __init__(self, server: RedisServer, news: Any) -> None:
        self._server = server
        self._news = news

    def hear(self, timeout_s: float) -> set[str]:
        with self._server.translated():
            message = self._news.get_message(timeout=timeout_s)
        return {message["data"].decode()} if message else set()

    def close(self) -> None:
        self._news.close()


def without_settings(url: str) -> tuple[str, str | None, str | None]:
    """The URL for the driver, and the prefix and durability in it, None if missing. Raises `OptionsError` if invalid."""
    try:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        prefix, durability = query.pop("prefix", None), query.pop("durability", None)
        address = urlunsplit(parts._replace(query=urlencode(query)))
        if parts.scheme == "unix":
            address = address if parts.netloc else address.replace("unix:", "unix://", 1)
        if not (parts.path if parts.scheme == "unix" else parts.hostname):
            raise ValueError("the path of the socket is missing" if parts.scheme == "unix" else "the host is missing")
        if parts.scheme != "unix" and not re.fullmatch(r"/?[0-9]{0,5}", parts.path):
            raise ValueError(f"{parts.path[1:]!r} is not the number of a database")
        if parts.port == 0 or parts.fragment:  # reading the port checks it
            raise ValueError("it must not contain port 0 or a #")
        # Created but not opened: the driver parses the other settings in the URL, such as `?socket_timeout=5`.
        driver().ConnectionPool.from_url(address).make_connection()
    except (ValueError, TypeError, AttributeError, driver().RedisError) as error:
        unknown = re.search("unexpected keyword argument ('[^']*')", str(error))
        reason = f"there is no setting {unknown[1]}" if unknown else on_one_line(str(error), 200).replace(url, "it")
        raise OptionsError(
            f"{without_user(url)!r} is not the address of a Redis server: write "
            "redis://[user:password@]host[:port][/number] "
            f"or rediss:// for TLS, or unix://[user:password@]/socket ({reason})"
        ) from None
    return address, prefix, durability


def _setting(client: Any, name: str) -> str | None:
    try:
        return dict(client.config_get(name)).get(name)
    except driver().ResponseError:
        return None


def _info(client: Any, section: str) -> dict[str, Any]:
    """A section of the server's INFO; empty if this user may not read it."""
    try:
        return dict(client.info(section))
    except driver().ResponseError:
        return {}
