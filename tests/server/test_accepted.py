"""Whatever a server has answered with 2xx remains valid, even if its process is killed directly after the response."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import unittest
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from openagentic_sdk.errors import SessionNotFoundError
from openagentic_sdk.events import Event, Result, SessionRewound, UserAnswer, UserMessage
from openagentic_sdk.server.asgi import Application, app
from openagentic_sdk.sessions.store import FileSessionStore
from tests.size import full_size
from tests.stores.minimal import MinimalStore

from .support import ASK, TOKEN, WAIT_S, Answer, Gate, agents, ask, options, until, until_free, until_state

HOLD = {"text": "I look.", "tool_calls": [{"name": "hold", "arguments": {}}]}
BOTH = {"Accept": "application/json, text/event-stream"}
Check = Callable[[Application, str], Awaitable[bool]]


def rpc(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


def events_of(application: Application, session_id: str, kind: type[Event]) -> list[Any]:
    try:
        return [event for event in application.desk.store.read_events(session_id) if isinstance(event, kind)]
    except SessionNotFoundError:
        return []


def says(text: str) -> Check:
    async def check(two: Application, session_id: str) -> bool:
        return text in [event.text for event in events_of(two, session_id, UserMessage)]

    return check


def ends_as(*reasons: str) -> Check:
    async def check(two: Application, session_id: str) -> bool:
        ends = events_of(two, session_id, Result)
        return bool(ends) and ends[-1].stop_reason in reasons

    return check


async def is_answered(two: Application, session_id: str) -> bool:
    return bool(events_of(two, session_id, UserAnswer)) and await ends_as("end")(two, session_id)


async def is_said_anywhere(two: Application, session_id: str) -> bool:
    return any([await says("New.")(two, name) for name in two.desk.store.list_sessions()])


async def is_forked(two: Application, session_id: str) -> bool:
    return len(two.desk.store.list_sessions()) == 2


async def is_rewound(two: Application, session_id: str) -> bool:
    return len(events_of(two, session_id, SessionRewound)) == 1


async def is_deleted(two: Application, session_id: str) -> bool:
    return not two.desk.store.session_exists(session_id)


def shows(**row: Any) -> Check:
    async def check(two: Application, session_id: str) -> bool:
        shown = (await ask(two, "GET", f"/v1/sessions/{session_id}")).json
        return bool(row.items() <= shown.items())

    return check


TOLD = {"session_id": "{}", "question_id": "?", "answer": "milk", "wait_s": 0}
# A session's state, the request posted to it (`{}` is its id), and what the next server shows of it.
ROUTES: list[tuple[str, str, str, Any, Check]] = [
    ("run", "idle", "/v1/sessions/{}/runs", {"prompt": "New."}, says("New.")),
    ("run in a waiting session", "waiting", "/v1/sessions/{}/runs", {"prompt": "New."}, says("New.")),
    ("message", "running", "/v1/sessions/{}/messages", {"prompt": "New."}, says("New.")),
    ("cancel", "running", "/v1/sessions/{}/cancel", {}, ends_as("interrupted")),
    ("cancel of what waits", "waiting", "/v1/sessions/{}/cancel", {}, ends_as("interrupted")),
    ("answer", "waiting", "/v1/sessions/{}/answers", {"question_id": "?", "answer": "milk"}, is_answered),
    ("fork", "idle", "/v1/sessions/{}/fork", {}, is_forked),
    ("rewind", "idle", "/v1/sessions/{}/rewind", {"turns": 1}, is_rewound),
    ("rename", "idle", "/v1/sessions/{}/rename", {"title": "New."}, shows(title="New.")),
    ("archive", "idle", "/v1/sessions/{}/archive", {}, shows(tags=["archived"])),
    ("delete", "idle", "/v1/sessions/{}/delete", {"confirm": "{}"}, is_deleted),
    ("mcp prompt", "idle", "/mcp", rpc("run_agent", session_id="{}", prompt="New.", wait_s=0), says("New.")),
    (
        "mcp answer",
        "waiting",
        "/mcp",
        rpc("answer_question", session_id="{}", question_id="?", answer="milk", wait_s=0),
        is_answered,
    ),
    ("mcp cancel", "running", "/mcp", rpc("cancel_run", session_id="{}"), ends_as("interrupted")),
    ("response", "idle", "/v1/responses", {"background": True, "input": "New."}, is_said_anywhere),
]


def filled(value: Any, session_id: str, question_id: str) -> Any:
    """The body with the ids in their places."""
    if isinstance(value, dict):
        return {name: filled(each, session_id, question_id) for name, each in value.items()}
    return {"{}": session_id, "?": question_id}.get(value, value) if isinstance(value, str) else value


class Accepted(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.gate = Gate()
        self.addCleanup(self.gate.open.set)

    def server(self, store: Any, *turns: Any) -> Application:
        application = app(agents(tea=options(list(turns), self.gate.tool())), store=store, auth=TOKEN, grace_s=0.0)
        application.desk.left.look_s = 0.02
        self.addCleanup(store.close)
        self.addAsyncCleanup(application.desk.drain, 0.0)
        return application

    async def started(self, state: str, store: Any) -> tuple[Application, str, str]:
        """A server with a session in this state, and the question that it waits for."""
        first = {"idle": "Tea.", "waiting": ASK, "running": HOLD}[state]
        one = self.server(store, first, HOLD, "Milk.")
        session_id = (await ask(one, "POST", "/v1/sessions", {"prompt": "Tea?"})).json["session_id"]
        if state == "running":
            await asyncio.to_thread(self.gate.reached.wait, WAIT_S)
            return one, session_id, ""
        row = await until_state(one, session_id, state)
        await until_free(one)
        return one, session_id, "".join(each["question_id"] for each in row["open_questions"])

    def killed(self) -> FileSessionStore:
        """The current contents of the disk: what a process leaves if it is killed now."""
        copy = self.place / "killed"
        shutil.copytree(self.place / "files", copy)
        return FileSessionStore(copy, durability="flush")

    async def check(self, answer: Answer, left: FileSessionStore, check: Check, session_id: str) -> None:
        self.assertLess(answer.status, 300, answer.body)
        self.assertNotIn(b'"isError":true', answer.body)
        self.gate.open.set()
        two = self.server(left, "Milk.", "More.", "And more.")
        two.desk.open()
        await until(lambda: check(two, session_id))

    @full_size
    async def test_whatever_was_accepted_is_there_when_the_process_is_killed_after_the_answer(self) -> None:
        for name, state, path, body, check in ROUTES:
            with self.subTest(name):
                self.setUp()
                one, session_id, question_id = await self.started(
                    state, FileSessionStore(self.place / "files", "flush")
                )
                path = path.replace("{}", session_id)
                answer = await ask(one, "POST", path, filled(body, session_id, question_id), headers=BOTH)
                await self.check(answer, self.killed(), check, session_id)
                await one.desk.drain(0.0)

    async def test_a_cancel_that_another_server_took_counts_when_the_one_that_runs_is_killed(self) -> None:
        one, session_id, _ = await self.started("running", FileSessionStore(self.place / "files", "flush"))
        other = self.server(FileSessionStore(self.place / "files", "flush"))
        one.desk.messages._hand_over = lambda waiting: asyncio.sleep(0)  # type: ignore[method-assign]
        answer = await ask(other, "POST", f"/v1/sessions/{session_id}/cancel", {})
        await self.check(answer, self.killed(), ends_as("interrupted"), session_id)

    async def test_a_message_that_came_at_the_end_of_a_run_is_taken_up_by_the_next_server(self) -> None:
        one, session_id, _ = await self.started("idle", FileSessionStore(self.place / "files", "flush"))
        one.desk.store.put_message(session_id, {"do": "steer", "prompt": "New.", "by": "anna", "request_id": "late"})
        await self.check(Answer(202), self.killed(), says("New."), session_id)

    async def test_a_word_that_no_store_could_keep_for_the_run_is_refused(self) -> None:
        one, session_id, _ = await self.started("running", MinimalStore())
        answer = await ask(one, "POST", f"/v1/sessions/{session_id}/messages", {"prompt": "New."})
        self.assertEqual((answer.status, answer.json["error"]["code"]), (409, "no_run"))
        self.gate.open.set()
