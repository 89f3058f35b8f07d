"""A prompt, over any protocol, to a waiting session: it is logged together with the end of the question, or refused."""

from __future__ import annotations

import asyncio
from typing import Any

from openagentic_sdk.events import UserAnswer, UserMessage
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.server.guard import Principal
from openagentic_sdk.server.mcp import Face, McpCaller
from openagentic_sdk.server.responses import response_id
from openagentic_sdk.server.routes import Office, post
from openagentic_sdk.server.streams import EventLines
from openagentic_sdk.tools.function import tool
from tests.runtime.support import assert_closed
from tests.size import full_size

from .support import ask, options, until, until_free, until_state
from .test_desk import DeskCase

PAY = {"tool_calls": [{"name": "pay", "arguments": {}}]}
SAID = "never mind"


class SupersedingTest(DeskCase):
    def setUp(self) -> None:
        self.paid: list[str] = []

    def shop(self, *turns: Any, **more: Any) -> Any:
        @tool
        def pay() -> str:
            """Pay."""
            self.paid.append("paid")
            return "paid"

        return self.app(tea=options([PAY, *turns], pay, mode="default", **more))

    async def waiting(self, application: Any) -> tuple[str, str]:
        session_id = await self.start(application, "Pay.")
        row = await until_state(application, session_id, "waiting")
        await until_free(application)
        return session_id, row["open_questions"][0]["question_id"]

    async def check(self, application: Any, session_id: str, question_id: str) -> None:
        """Check that the prompt is in the log with the end of the question, and that an answer to it is refused."""
        await until_state(application, session_id, "idle")
        await until_free(application)
        path = f"/v1/sessions/{session_id}/answers"
        late = await ask(application, "POST", path, {"question_id": question_id, "answer": "yes"})
        self.assertEqual(late.status, 409, late.body)
        events = assert_closed(self, self.store, session_id)
        message = next(event for event in events if isinstance(event, UserMessage) and event.text == SAID)
        [end] = [event for event in events if isinstance(event, UserAnswer)]
        self.assertEqual((end.question_id, end.answered_by), (question_id, "superseded"))
        self.assertEqual(end.seq, message.seq - 1)
        self.assertEqual(self.paid, [])

    async def say(self, door: str, application: Any, session_id: str) -> None:
        path = f"/v1/sessions/{session_id}"
        match door:
            case "runs":
                answer = await ask(application, "POST", f"{path}/runs", {"prompt": SAID})
                self.assertEqual(answer.status, 202, answer.body)
            case "responses":
                log = self.store.read_events(session_id)
                request_id = next(event.request_id for event in log if isinstance(event, UserMessage))
                body = {"model": "tea", "input": SAID, "previous_response_id": response_id(session_id, request_id)}
                answer = await ask(application, "POST", "/v1/responses", body)
                self.assertEqual(answer.status, 200, answer.body)
                again = await ask(application, "GET", f"/v1/responses/{answer.json['id']}")
                self.assertEqual((again.status, again.json["status"]), (200, "completed"))
            case "websocket":
                office = Office(application.desk, None, EventLines())
                status, _ = await post(office, Principal(), session_id, "runs", {"prompt": SAID}, None)
                self.assertEqual(status, 202)
            case "mcp":
                call = {"name": "run_agent", "arguments": {"prompt": SAID, "session_id": session_id}}
                face = Face(application.desk, wait_s=120)
                result = await face.answer("tools/call", {**call, "_meta": {}}, McpCaller(Principal()))
                self.assertEqual(result["structuredContent"]["status"], "done")

    @full_size
    async def test_every_door_stores_the_prompt_with_the_end_of_the_question(self) -> None:
        for door in ("runs", "responses", "websocket", "mcp"):
            with self.subTest(door):
                application = self.shop("As you wish.")
                session_id, question_id = await self.waiting(application)
                await self.say(door, application, session_id)
                await self.check(application, session_id, question_id)

    async def test_ag_ui_refuses_a_prompt_in_place_of_an_answer(self) -> None:
        application = self.shop("As you wish.")
        session_id, _ = await self.waiting(application)
        before = self.store.read_events(session_id)
        message = {"id": "m", "role": "user", "content": SAID}
        body = {"threadId": session_id, "runId": "r", "messages": [message], "tools": [], "context": [], "state": {}}
        answer = await ask(application, "POST", "/v1/ag-ui/tea", body)
        self.assertIn(b"RUN_ERROR", answer.body)
        self.assertEqual(self.store.read_events(session_id), before)

    async def test_a_prompt_that_a_hook_refuses_is_not_accepted_and_the_question_stays_open(self) -> None:
        def judge(payload: Any) -> HookDecision | None:
            return HookDecision(block=True, block_reason="not today") if payload["prompt"] == SAID else None

        application = self.shop("Paid.", hooks=HookEngine(user_prompt_submit=[HookMatcher("judge", hook=judge)]))
        session_id, question_id = await self.waiting(application)
        for path, body in (
            (f"/v1/sessions/{session_id}/runs", {"prompt": SAID}),
            ("/v1/sessions", {"prompt": SAID}),
            ("/v1/responses", {"model": "tea", "input": SAID}),
        ):
            answer = await ask(application, "POST", path, body)
            self.assertEqual(answer.status, 422, answer.body)
            self.assertIn(b"not today", answer.body)
            await until_free(application)
        row = await until_state(application, session_id, "waiting")
        self.assertEqual([each["question_id"] for each in row["open_questions"]], [question_id])
        answer = {"question_id": question_id, "answer": "yes"}
        self.assertEqual((await ask(application, "POST", f"/v1/sessions/{session_id}/answers", answer)).status, 202)
        await until_state(application, session_id, "idle")
        self.assertEqual(self.paid, ["paid"])

    async def test_who_may_not_answer_may_not_send_another_prompt_and_the_log_is_unchanged(self) -> None:
        application = self.shop("As you wish.")
        session_id, question_id = await self.waiting(application)
        before = self.store.read_events(session_id)
        office, who = Office(application.desk, None, EventLines()), Principal(may_answer=False)
        for action in ("runs", "messages"):
            status, value = await post(office, who, session_id, action, {"prompt": SAID}, None)
            self.assertEqual(status, 403 if action == "runs" else 409, value)
        self.assertEqual(self.store.read_events(session_id), before)
        await self.say("runs", application, session_id)
        await self.check(application, session_id, question_id)

    async def test_a_message_that_came_while_the_run_parked_is_the_next_prompt_if_its_sender_may_answer(self) -> None:
        for may_answer in (True, False):
            self.paid.clear()
            reached, release = asyncio.Event(), asyncio.Event()

            async def hold(payload: Any, reached: Any = reached, release: Any = release) -> None:
                reached.set()
                await release.wait()

            application = self.shop("Good.", hooks=HookEngine(notification=[HookMatcher("bell", hook=hold)]))
            session_id = await self.start(application, "Pay.")
            await reached.wait()
            who = Principal(may_answer=may_answer)
            status, _ = await post(
                Office(application.desk, None, EventLines()), who, session_id, "messages", {"prompt": SAID}, None
            )
            self.assertEqual(status, 202)
            release.set()
            if may_answer:
                row = await until_state(application, session_id, "idle")
                question = next(e for e in self.store.read_events(session_id) if e.type == "user.question")
                await self.check(application, session_id, question.question_id)
                continue
            row = await until_state(application, session_id, "waiting")
            await until_free(application)
            [question_id] = [each["question_id"] for each in row["open_questions"]]
            body = {"question_id": question_id, "answer": "yes"}
            self.assertEqual((await ask(application, "POST", f"/v1/sessions/{session_id}/answers", body)).status, 202)

            async def said(session_id: str = session_id) -> bool:
                return [event.text for event in self.texts(session_id)] == ["Pay.", SAID]

            await until(said)
            await until_free(application)
            self.assertEqual(self.paid, ["paid"])
