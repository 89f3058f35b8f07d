"""A small HTTP/1.1 and WebSocket server for one machine, on asyncio alone; it runs any ASGI application.

It speaks no TLS and no HTTP/2: for the open network, put a proxy in front of it, or run the application under another
server.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from ..errors import OptionsError
from .connection import App, HttpConnection, Message

BACKLOG = 1024
MAX_FILES = 65536
# How long open answers get at the end, after the application's own grace.
CLOSE_GRACE_S = 2.0


class SmallServer:
    """`app` on `host` and `port` (0: a free one), from `start` to `stop`."""

    def __init__(self, app: App, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._connections: set[HttpConnection] = set()
        self._listening: asyncio.Server | None = None
        self._lifespan = _Lifespan(app)

    @property
    def address(self) -> str:
        """Where it is reached from this machine, `http://127.0.0.1:8321`; once it has started."""
        assert self._listening is not None, "start it first"
        host, port = self._listening.sockets[0].getsockname()[:2]
        return http_address(host, port)

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections)

    async def start(self) -> None:
        """Begin to listen. Raises `OptionsError` for an address that cannot be bound, and what the application raises."""
        loop = asyncio.get_running_loop()
        try:
            self._listening = await loop.create_server(
                partial(HttpConnection, self._app, self._connections), self._host, self._port, backlog=BACKLOG
            )
        except OSError as error:
            raise OptionsError(
                f"cannot listen on {self._host} port {self._port}: {error.strerror or error}; choose another port"
            ) from error
        try:
            await self._lifespan.start()
        except BaseException:
            self._listening.close()
            raise

    async def stop(self) -> None:
        """Let the application end what goes on, while it still says to whoever asks that it ends; then close."""
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
        await asyncio.sleep(0)

    async def serve(self, tell: Callable[[str], None]) -> int:
        """Start, tell the address, and serve until a signal says to end; gives its number. A second one ends at once."""
        told = asyncio.get_running_loop().create_future()
        _allow_many_connections()

        def hear(number: int) -> None:
            if told.done():
                os._exit(128 + number)
            told.set_result(number)

        for known in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(known, hear, int(known))
        await self.start()
        tell(self.address)
        number: int = await told
        await self.stop()
        return number


def http_address(host: str, port: int) -> str:
    """The address at which this machine reaches a server that is bound so; one that is bound to all addresses, locally."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _allow_many_connections() -> None:
    """Use all the open files that the system lets this process have: a usual shell gives 1,024."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = MAX_FILES if most == resource.RLIM_INFINITY else min(most, MAX_FILES)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


class _Lifespan:
    """The application's own start and end (the lifespan protocol of ASGI); an application without it goes on as it is."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._said: asyncio.Queue[Message] = asyncio.Queue()
        self._answers: asyncio.Queue[Message] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        scope: dict[str, Any] = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
        self._task = asyncio.create_task(self._run(scope))
        await self._say("startup")

    async def stop(self) -> None:
        await self._say("shutdown")
        if self._task is not None:
            await self._task

    async def _run(self, scope: dict[str, Any]) -> None:
        with suppress(Exception):  # ASGI: one that raises at "lifespan" does not know it
            await self._app(scope, self._said.get, self._answers.put)

    async def _say(self, what: str) -> None:
        """Tell the application, and wait until it is done with it, or does not know of it."""
        assert self._task is not None
        self._said.put_nowait({"type": f"lifespan.{what}"})
        answer = asyncio.create_task(self._answers.get())
        await asyncio.wait({answer, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
        elif answer.result()["type"].endswith(".failed"):
            raise OptionsError(f"the application does not {what}: {answer.result().get('message', '')}")
