"""Shared objects for the server's tests: agents with scripted models, direct requests to the application, and a real
server.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from openagentic_sdk.agents import Agents, NamedAgent
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.server.asgi import Application, app
from openagentic_sdk.server.guard import Principal
from openagentic_sdk.server.listen import SmallServer
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.tools.function import tool
from openagentic_sdk.tools.session.ask_user_question import AskUserQuestionTool
from tests.waiting import until_async

TOKEN = "a-token-for-tests-only"
AUTH = {"Authorization": f"Bearer {TOKEN}"}
WAIT_S = 120  # bounds failures only
ASK = {"tool_calls": [{"name": "AskUserQuestion", "arguments": {"question": "Milk or lemon?"}}]}


class Gate:
    """A tool whose calls wait until the test releases them."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def tool(self) -> Any:
        @tool(effect="read")
        def hold() -> str:
            """Wait."""
            self.reached.set()
            if not self.open.wait(WAIT_S):
                raise TimeoutError("the test released nobody")
            return "held"

        return hold


def endless(reached: asyncio.Event) -> Any:
    """A tool `hold` whose calls set `reached` and end only when their run is cancelled."""

    @tool(effect="read")
    async def hold() -> str:
        """Wait."""
        reached.set()
        await asyncio.Event().wait()
        return "held"

    return hold


def options(turns: Any = (), *tools: Any, mode: str = "bypass", **more: Any) -> OpenAgenticOptions:
    """Options of an agent with a scripted model, its own tools and AskUserQuestion."""
    return OpenAgenticOptions(
        provider=ScriptedProvider(turns),
        model="scripted",
        tools=[AskUserQuestionTool(), *tools],
        permission_gate=PermissionGate(permission_mode=mode),
        system_prompt="A test.",
        **more,
    )


def agents(**given: Any) -> Agents:
    """A registry; a list contains the turns that each run of the agent plays from the start."""

    def fresh(turns: Any) -> Any:
        return NamedAgent(lambda: options(turns)) if isinstance(turns, list) else turns

    return Agents({name: fresh(turns) for name, turns in (given or {"tea": ["Tea."]}).items()})


TENANTS = {
    "token-of-anna-at-north": Principal("north", True, "anna"),
    "token-of-bert-at-north": Principal("north", False, "bert"),
    "token-of-carl-at-south": Principal("south", True, "carl"),
}


def by_tenant(scope: Any) -> Principal | None:
    """An `auth` with several tenants."""
    values = [value.decode() for name, value in scope["headers"] if name == b"authorization"]
    return TENANTS.get(values[0].removeprefix("Bearer ")) if values else None


def bearer(token: str) -> dict[str, str]:
    """The header of a token."""
    return {"Authorization": f"Bearer {token}"}


# --- the application itself ----------------------------------------------------------------------------------------------


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def messages(self) -> list[Any]:
        """The data of the events of a stream, which are JSON."""
        return [json.loads(line[6:]) for line in self.body.decode().split("\n") if line.startswith("data: ")]


async def ask(
    application: Application,
    method: str,
    target: str,
    body: Any = None,
    *,
    headers: Mapping[str, str] | None = None,
    raw_headers: list[tuple[bytes, bytes]] | None = None,
    pieces: list[bytes] | None = None,
    server: tuple[str, int] | None = ("127.0.0.1", 8000),
) -> Answer:
    """Make one request without a connection. A header of None omits the usual one; a stream is read to its end."""
    path, _, query = target.partition("?")
    sent = {"Host": "127.0.0.1:8000", **AUTH}
    if body is not None:
        sent["Content-Type"] = "application/json"
    sent |= dict(headers or {})
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    coming = [
        {"type": "http.request", "body": piece, "more_body": True}
        for piece in (pieces if pieces is not None else [data])
    ]
    coming.append({"type": "http.request", "body": b"", "more_body": False})
    never = asyncio.Event()
    answer = Answer()

    async def receive() -> Any:
        if coming:
            return coming.pop(0)
        await never.wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answer.body += message.get("body", b"")

    listed = [(name.lower().encode(), value.encode()) for name, value in sent.items() if value is not None]
    scope = {
        "type": "http",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [*listed, *(raw_headers or [])],
        "server": server,
        "root_path": "",
    }
    await asyncio.wait_for(application(scope, receive, send), WAIT_S)
    return answer


async def until(condition: Any) -> Any:
    """The value of an awaited condition as soon as it is true."""
    return await until_async(condition, "the other side came so far", WAIT_S)


async def until_state(application: Application, session_id: str, *states: str) -> Any:
    """The row of a session once it is in one of these states."""

    async def look() -> Any:
        row = (await ask(application, "GET", f"/v1/sessions/{session_id}")).json
        return row if row["state"] in states else None

    return await until(look)


async def until_received(application: Application, count: int = 1) -> None:
    """Wait until runs have received this many messages; the models get them with the next steps, not as later prompts."""

    async def look() -> bool:
        return len(application.desk.messages._delivered) == count

    await until(look)


async def until_free(application: Application) -> None:
    """Wait until no run holds a slot: the last event of a run is visible shortly before it has released everything."""

    async def look() -> bool:
        return not application.desk._runs

    await until(look)


# --- a real server -------------------------------------------------------------------------------------------------------


class Client:
    """The standard library's client, and server-sent events on it."""

    def __init__(self, port: int, prefix: str = "") -> None:
        self.port, self.prefix = port, prefix

    def ask(self, method: str, target: str, body: Any = None, **headers: str) -> Answer:
        """Make one request with the standard library's client."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            sent = {**AUTH, **({} if body is None else {"Content-Type": "application/json"}), **headers}
            connection.request(method, self.prefix + target, None if body is None else json.dumps(body), sent)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def stream(self, target: str, **headers: str) -> Stream:
        """Open a stream of server-sent events."""
        return Stream(self, target, headers)


class Served(Client):
    """The application behind the small server, in a thread, on a free port of 127.0.0.1."""

    def __init__(self, registry: Agents | None = None, **settings: Any) -> None:
        settings = {"store": MemorySessionStore(), "auth": TOKEN, "grace_s": 2.0, **settings}
        self._max_connections = settings.pop("max_connections", None)
        self.application = app(registry or agents(), **settings)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        if not self._ready.wait(WAIT_S):
            raise TimeoutError("the server did not start")
        super().__init__(urlsplit(self.server.address).port or 0)
        self.host = f"127.0.0.1:{self.port}"

    async def _run(self) -> None:
        self.loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self.server = SmallServer(self.application, max_connections=self._max_connections)
        await self.server.start()
        self._ready.set()
        await self._end.wait()
        await self.server.stop()

    def close(self) -> None:
        """Shut it down gracefully."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._end.set)
            self._thread.join(WAIT_S)
            assert not self._thread.is_alive(), "the server does not shut down"

    @property
    def store(self) -> Any:
        return self.application.desk.store

    def connect(self, *, small_buffers: bool = False) -> socket.socket:
        """A bare connection."""
        sock = socket.socket()
        if small_buffers:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(WAIT_S)
        sock.connect(("127.0.0.1", self.port))
        return sock

    def raw(self, data: bytes) -> bytes:
        """The response to these bytes until the server closes the connection."""
        with self.connect() as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            return read_all(sock)


class Stream:
    """Reads server-sent events, one by one, as dicts of their fields."""

    def __init__(self, served: Client, target: str, headers: Mapping[str, str]) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=WAIT_S)
        self._connection.request(
            "GET", served.prefix + target, headers={**AUTH, "Accept": "text/event-stream", **headers}
        )
        self.answer = self._connection.getresponse()
        self.status = self.answer.status

    def next(self) -> dict[str, str] | None:
        """The next event, None at the end. Comments are skipped."""
        fields: dict[str, str] = {}
        until = time.monotonic() + WAIT_S
        while line := self.answer.readline().decode():
            line = line.rstrip("\n")
            if not line and "data" in fields:
                return fields
            if time.monotonic() > until:
                raise TimeoutError("only comments arrived")
            name, colon, value = line.partition(":")
            if name and colon:
                fields[name] = value.removeprefix(" ")
        return None

    def events(self, count: int | None = None) -> list[dict[str, Any]]:
        """The JSON of this many events, or of all until the end."""
        found: list[dict[str, Any]] = []
        while (count is None or len(found) < count) and (event := self.next()) is not None:
            found.append(json.loads(event["data"]))
        return found

    def close(self) -> None:
        self.answer.close()
        self._connection.close()


def read_all(sock: socket.socket) -> bytes:
    """Everything until the other side closes."""
    data = b""
    try:
        while piece := sock.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data
