"""This process's connection to a Redis server, and what the server says of itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from ...errors import OptionsError, SessionNotFoundError, StorageError

T = TypeVar("T")
RETRY_S = 0.1
NO_DISK = (
    "the Redis server keeps sessions in memory only: they end when it stops. Switch its append-only file on "
    "(CONFIG SET appendonly yes), or use another store"
)
SNAPSHOTS = (
    "the Redis server only saves snapshots: what was written since the last one is lost when it stops. Switch its "
    "append-only file on (CONFIG SET appendonly yes)"
)


def driver() -> ModuleType:
    try:
        import redis
    except ImportError:
        raise OptionsError("sessions in Redis need the driver redis-py: pip install 'openagentic-sdk[redis]'") from None
    return redis


class RedisLink:
    """The client of one server, made when it is first asked for, and patient while the server restarts."""

    durability = "unknown"

    def __init__(self, url: str, patience_s: float) -> None:
        driver()
        self._url = url
        self._patience_s = patience_s
        self._guard = threading.Lock()
        self._client: Any = None

    def close(self) -> None:
        with self._guard:
            if self._client is not None:
                self._client.close()
                self._client = None

    @property
    def where(self) -> str:
        parts = urlsplit(self._url)
        return f"{parts.hostname or parts.path}:{parts.port or 6379}"

    def new_client(self, **settings: Any) -> Any:
        redis = driver()
        # The driver must not send anything twice on its own: only we can tell whether the first time took effect.
        retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        with translated(None, self.where):
            return redis.Redis.from_url(self._url, retry=retry, **settings)

    def client(self) -> Any:
        with self._guard:
            if self._client is None:
                client = self.new_client()
                with translated(None, self.where):
                    self.durability = _durability(client)
                self._client = client
            return self._client

    def call(self, session_id: str | None, work: Callable[[Any], T]) -> T:
        with translated(session_id, self.where):
            return self.patiently(self.client(), work)

    def once(self, session_id: str, work: Callable[[Any], T]) -> T:
        """Work that must not be done twice: a connection that broke before is replaced, one that breaks now fails it."""
        self.call(session_id, lambda client: client.ping())
        with translated(session_id, self.where):
            return work(self.client())

    def run(self, session_id: str, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        return self.call(session_id, lambda client: client.register_script(script)(keys, arguments))

    def patiently(self, client: Any, work: Callable[[Any], T]) -> T:
        """Do the work, again from its start while the server is away."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return work(client)
            except driver().ConnectionError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_S)


def connection_name(client: Any) -> str:
    """A name that no other connection will ever have: the server's run and the connection's number."""
    return f"{client.info('server')['run_id']}:{client.client_id()}"


def is_connected(client: Any, holder: str) -> bool:
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
    except driver().ResponseError:
        return None


def without_prefix(url: str) -> tuple[str, str | None]:
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    prefix = query.pop("prefix", None)
    return urlunsplit(parts._replace(query=urlencode(query))), prefix


@contextmanager
def translated(session_id: str | None, where: str = "Redis") -> Iterator[None]:
    """The driver's errors as ours."""
    redis = driver()
    try:
        yield
    except UnicodeEncodeError as error:
        # Everything but ids is sent as ASCII, and no session has an id with a lone surrogate.
        raise SessionNotFoundError(str(session_id), where) from error
    except redis.RedisError as error:
        raise StorageError(f"Redis refused ({where}): {error}", session_id=session_id) from error
