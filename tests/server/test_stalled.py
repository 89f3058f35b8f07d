"""A client that stops reading holds a bounded part of what it follows, however large the events are."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
import unittest
from collections.abc import Callable
from typing import Any

from openagentic_sdk.events import AssistantMessage, UserMessage
from openagentic_sdk.server.asgi import Application, app
from openagentic_sdk.server.responses import response_id
from openagentic_sdk.sessions.memory import MemorySessionStore
from tests.size import drawn, full_size

from .support import AUTH, TOKEN, WAIT_S, agents, ask, until_state

MANY_LARGE = 40 * [AssistantMessage("x" * 300_000)]
MAX_HELD_BYTES = 4 * 1024 * 1024
RUN = {"threadId": "t", "runId": "r", "state": {}, "tools": [], "context": []}
RUN |= {"messages": [{"id": "m", "role": "user", "content": "Tea?"}]}


class Stalled:
    """A client that reads less than one event of the log, and nothing after that."""

    def __init__(self, application: Application, method: str, target: str, body: Any = None) -> None:
        path, _, query = target.partition("?")
        named = {**AUTH, "Host": "127.0.0.1:8000", "Accept": "text/event-stream", "Content-Type": "application/json"}
        headers = [(name.lower().encode(), value.encode()) for name, value in named.items()]
        kind = "websocket" if method == "WS" else "http"
        self._scope = {"type": kind, "method": method, "scheme": "ws" if kind == "websocket" else "http", "path": path}
        self._scope |= {"raw_path": path.encode(), "query_string": query.encode(), "headers": headers}
        self._scope |= {"server": ("127.0.0.1", 8000), "root_path": ""}
        data = b"" if body is None else json.dumps(body).encode()
        self._coming = [{"type": "websocket.connect"} if method == "WS" else {"type": "http.request", "body": data}]
        self._application = application
        self.is_stalled, self._never = asyncio.Event(), asyncio.Event()

    async def _receive(self) -> Any:
        if self._coming:
            return self._coming.pop()
        await self._never.wait()

    async def _send(self, message: Any) -> None:
        if len(message.get("body") or message.get("text") or "") > 100_000:
            self.is_stalled.set()
            await self._never.wait()

    async def follow(self) -> None:
        await self._application(self._scope, self._receive, self._send)


class StalledReaders(unittest.IsolatedAsyncioTestCase):
    @full_size
    async def test_a_stalled_reader_holds_at_most_4_mb_over_every_protocol(self) -> None:
        store = MemorySessionStore()
        application = app(agents(tea=["Tea."]), store=store, auth=TOKEN)
        self.addAsyncCleanup(application.desk.drain, 2.0)
        await ask(application, "POST", "/v1/ag-ui/tea", RUN, headers={"Accept": "text/event-stream"})
        [session_id] = store.list_sessions()
        await until_state(application, session_id, "idle")
        kept, log = store.read_metadata(session_id)["metadata"], store.read_events(session_id)
        store.delete_session(session_id)
        place = next(number for number, event in enumerate(log) if isinstance(event, AssistantMessage))
        store.create_session(metadata=kept, session_id=session_id)
        store.append_events(session_id, [*log[:place], *MANY_LARGE, *log[place:]])
        [said] = [event for event in log if isinstance(event, UserMessage)]
        events = f"/v1/sessions/{session_id}/events"
        readers: list[Callable[[], Stalled]] = [
            lambda: Stalled(application, "GET", events),
            lambda: Stalled(application, "WS", events),
            lambda: Stalled(
                application, "GET", f"/v1/responses/{response_id(session_id, said.request_id)}?stream=true"
            ),
            lambda: Stalled(application, "POST", "/v1/ag-ui/tea", RUN),
        ]
        for make in drawn(readers, 2):
            await self.held(make(), is_first=True)
            self.assertLess(await self.held(make()), MAX_HELD_BYTES)

    async def held(self, reader: Stalled, *, is_first: bool = False) -> int:
        """How many more bytes are held while the reader is stalled; the first reader fills what all share."""
        gc.collect()
        if not is_first:
            tracemalloc.start()
        following = asyncio.create_task(reader.follow())
        await asyncio.wait_for(reader.is_stalled.wait(), WAIT_S)
        gc.collect()
        held = 0 if is_first else tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        following.cancel()
        await asyncio.wait({following})
        return held
