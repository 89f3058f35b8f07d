"""The process that `server` measures: the application on the small server, and two bare broadcasts beside it.

It reads one JSON command per line and answers with one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import sys
import time
from typing import Any

from openagentic_sdk.events import AssistantMessage, UserMessage
from openagentic_sdk.server.asgi import app
from openagentic_sdk.server.listen import SmallServer
from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.follow import publish
from openagentic_sdk.sessions.stores.locate import open_store

TOKEN = "a-token-of-a-benchmark"


def rss_bytes() -> int:
    """The resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


class Serving:
    """Answers commands."""

    def __init__(self, store: SessionStore) -> None:
        self.store = store
        self.writers: list[asyncio.StreamWriter] = []
        self.next_data: asyncio.Future[bytes]

    async def run(self) -> None:
        server = SmallServer(app(None, store=self.store, auth=TOKEN))
        await server.start()
        self.next_data = asyncio.get_running_loop().create_future()
        bare, tasks = [
            await asyncio.start_server(enter, "127.0.0.1", 0, backlog=1024) for enter in (self.enter, self.enter_task)
        ]
        ports = {"bare": bare.sockets[0].getsockname()[1], "tasks": tasks.sockets[0].getsockname()[1]}
        say({"port": int(server.address.rpartition(":")[2]), **ports})
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while line := await lines.readline():
            command = json.loads(line)
            say(await getattr(self, command.pop("do"))(**command))
        bare.close()
        tasks.close()
        await server.stop()

    async def enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)

    async def enter_task(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a client as an application with one coroutine per client would: wait for data, write it, wait again."""
        while True:
            writer.write(await self.next_data)
            await writer.drain()

    async def make(self, sessions: int, events: int, text: str = "x" * 100) -> Any:
        names = []
        for _ in range(sessions):
            names.append(self.store.create_session())
            self.store.append_events(names[-1], [UserMessage(f"{text} {n}") for n in range(events)])
        return names

    async def rss(self) -> Any:
        return rss_bytes()

    async def tell(self, session_id: str) -> Any:
        """Store an event and notify its followers, as a run does."""
        stored = self.store.append_events(session_id, [AssistantMessage("y" * 300)])
        publish(self.store, session_id, stored)
        return stored[0].seq

    async def broadcast(self, size: int) -> Any:
        """Write the same bytes to all watchers by asyncio alone: the floor."""
        data = b"z" * size
        for writer in self.writers:
            writer.write(data)
        for writer in self.writers:
            await writer.drain()
        return None

    async def wake(self, size: int) -> Any:
        """Let each watcher's own task write the same bytes: the floor of an application."""
        data, self.next_data = self.next_data, asyncio.get_running_loop().create_future()
        data.set_result(b"z" * size)
        return None

    async def rest(self) -> Any:
        """Wait until this process uses less than a fifth of a processor."""
        spent_s = 1.0
        while spent_s > 0.2 * 0.25:
            began = time.process_time()
            await asyncio.sleep(0.25)
            spent_s = time.process_time() - began
        return None

    async def append(self, session_id: str, count: int) -> Any:
        """The median of this many appends, in microseconds, from a thread, as in a run with a durable store."""

        def work() -> float:
            took = []
            for _ in range(count):
                began = time.perf_counter()
                self.store.append_event(session_id, AssistantMessage("y" * 300))
                took.append(time.perf_counter() - began)
                time.sleep(0.0005)
            return statistics.median(took) * 1e6

        return await asyncio.to_thread(work)


def say(value: Any) -> None:
    """Write one line for the benchmark."""
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    asyncio.run(Serving(open_store(sys.argv[1])).run())
