"""A small HTTP/1.1 and WebSocket server for one machine, based on asyncio alone; it runs any ASGI application.

It supports neither TLS nor HTTP/2: on a public network, put a proxy in front of it, or run the application under another
server.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from ..errors import OptionsError
from ..ground.signals import end_signals
from .connection import App, AsgiMessage, HttpConnection

BACKLOG = 1024
MAX_FILES = 65536
# File descriptors reserved for stores, tools and connections to models; at most a quarter of the limit.
KEPT_FILES = 512
# How long open responses may take at shutdown, after the application's own grace period.
CLOSE_GRACE_S = 2.0


class SmallServer:
    """A server that runs `app` on `host` and `port` (0: any free one), from `start` to `stop`.

    Connections beyond `max_connections` are answered with 503; by default, the limit of open files determines the number.
    """

    def __init__(self, app: App, *, host: str = "127.0.0.1", port: int = 0, max_connections: int | None = None) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._max_connections = max_connections
        self._connections: set[HttpConnection] = set()
        self._listening: asyncio.Server | None = None
        self._lifespan = _Lifespan(app)

    @property
    def address(self) -> str:
        """The server's URL on this machine, such as `http://127.0.0.1:8321`; available once it has started."""
        assert self._listening is not None, "start it first"
        host, port = self._listening.sockets[0].getsockname()[:2]
        return http_address(host, port)

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    async def start(self) -> None:
        """Start listening. Raises `OptionsError` if the address cannot be bound or the application's startup fails."""
        loop = asyncio.get_running_loop()
        connect = partial(
            HttpConnection, self._app, self._connections, self._max_connections or _room_for_connections()
        )
        try:
            self._listening = await loop.create_server(connect, self._host, self._port, backlog=BACKLOG)
        except OSError as error:
            raise OptionsError(
                f"cannot listen on {self._host} port {self._port}: {error.strerror or error}; choose another host or port"
            ) from error
        try:
            await self._lifespan.start()
        except BaseException:  # even if cancelled: nothing else would close the port
            self._listening.close()
            raise

    async def stop(self) -> None:
        """Shut down the application, which can still refuse new requests meanwhile; then close all connections."""
        assert self._listening is not None, "start it first"
        try:
            await self._lifespan.stop()
        finally:
            self._listening.close()
        for connection in list(self._connections):
            connection.drain()
        busy = {task for connection in self._connections if (task := connection.task) is not None}
        if busy:
            await asyncio.wait(busy, timeout=CLOSE_GRACE_S)
        for connection in list(self._connections):
            connection.abort()
        # The event loop reports aborted connections to their owners in its next iteration.
        await asyncio.sleep(0)

    async def serve(self, tell: Callable[[str], None]) -> int:
        """Start, pass the address to `tell`, serve until a termination signal, and return the signal's number.

        A second signal ends the process at once.
        """
        signal_future = asyncio.get_running_loop().create_future()
        _allow_many_connections()

        def hear(number: int) -> None:
            if signal_future.done():
                os._exit(128 + number)
            signal_future.set_result(number)

        for signal_number in end_signals():
            asyncio.get_running_loop().add_signal_handler(signal_number, hear, signal_number)
        await self.start()
        tell(self.address)
        number: int = await signal_future
        await self.stop()
        return number


def http_address(host: str, port: int) -> str:
    """The URL at which this machine reaches a server bound to this address; the loopback address if it is bound to all."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _allow_many_connections() -> None:
    """Raise the limit of open files as far as the system allows, up to `MAX_FILES`: a typical shell sets 1,024."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = MAX_FILES if most == resource.RLIM_INFINITY else min(most, MAX_FILES)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))


def _room_for_connections() -> int:
    """The number of connections that leave enough file descriptors for runs."""
    try:
        import resource
    except ImportError:
        return MAX_FILES
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    files = MAX_FILES if files == resource.RLIM_INFINITY else files
    return max(1, files - min(KEPT_FILES, files // 4))


class _Lifespan:
    """The startup and shutdown of an application (ASGI's lifespan protocol); both do nothing if it does not support them."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._lifespan_events: asyncio.Queue[AsgiMessage] = asyncio.Queue()
        self._answers: asyncio.Queue[AsgiMessage] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        scope: dict[str, Any] = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
        self._task = asyncio.create_task(self._run(scope))
        await self._send_lifespan("startup")

    async def stop(self) -> None:
        await self._send_lifespan("shutdown")
        if self._task is not None:
            await self._task

    async def _run(self, scope: dict[str, Any]) -> None:
        with suppress(Exception):  # ASGI: an application that raises at "lifespan" does not support it
            await self._app(scope, self._lifespan_events.get, self._answers.put)

    async def _send_lifespan(self, what: str) -> None:
        """Send a lifespan event and wait until the application has handled it or turns out not to support it."""
        assert self._task is not None
        self._lifespan_events.put_nowait({"type": f"lifespan.{what}"})
        answer = asyncio.create_task(self._answers.get())
        await asyncio.wait({answer, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
        elif answer.result()["type"].endswith(".failed"):
            reason = answer.result().get("message") or "it gave no reason"
            raise OptionsError(f"the application failed at {what}: {reason}")
