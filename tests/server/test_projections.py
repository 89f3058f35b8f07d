"""AG-UI and the Responses API over the application: runs, interrupts, cut streams, retries, and access."""

from __future__ import annotations

import asyncio
import unittest

from openagentic_sdk.events import SystemInit, UserMessage
from openagentic_sdk.server.asgi import app
from openagentic_sdk.sessions.memory import MemorySessionStore

from .support import ASK, TOKEN, WAIT_S, agents, ask, bearer, by_tenant, endless, options

SSE = {"Accept": "text/event-stream"}


def kinds(messages):
    return [message["type"] for message in messages]


class ProjectionCase(unittest.IsolatedAsyncioTestCase):
    def app(self, auth=TOKEN, registry=None, **given):
        self.store = MemorySessionStore()
        made = app(registry or agents(**given), store=self.store, auth=auth)
        self.addAsyncCleanup(made.desk.drain, 2.0)
        made.desk.open()
        return made

    def prompts(self, session_id):
        return [event.text for event in self.store.read_events(session_id) if isinstance(event, UserMessage)]


class AgUi(ProjectionCase):
    async def run_agent(self, application, thread, run, text=None, *, headers=None, resume=None, messages=()):
        body = {"threadId": thread, "runId": run, "messages": list(messages), "state": {}, "tools": [], "context": []}
        if text is not None:
            body["messages"].append({"id": f"m-{run}", "role": "user", "content": text})
        if resume is not None:
            body["resume"] = resume
        return await ask(application, "POST", "/v1/ag-ui/tea", body, headers={**SSE, **(headers or {})})

    async def test_a_thread_is_a_session_and_a_run_is_streamed_from_its_start_to_its_end(self):
        application = self.app(tea=["Tea."])
        answer = await self.run_agent(application, "thread-1", "run-1", "Tea?")
        self.assertEqual((answer.status, answer.headers["content-type"]), (200, "text/event-stream"))
        messages = answer.messages()
        self.assertEqual((messages[0]["type"], messages[-1]["type"]), ("RUN_STARTED", "RUN_FINISHED"))
        self.assertEqual(messages[0]["threadId"], "thread-1")
        text = "".join(message["delta"] for message in messages if message["type"] == "TEXT_MESSAGE_CONTENT")
        self.assertEqual(text, "Tea.")
        again = await self.run_agent(application, "thread-1", "run-1", "Tea?")
        self.assertEqual(kinds(again.messages())[-1], "RUN_FINISHED")
        self.assertEqual(self.prompts("thread-1"), ["Tea?"], "the same run does not run twice")
        await self.run_agent(application, "thread-1", "run-2", "More?")
        self.assertEqual(self.prompts("thread-1"), ["Tea?", "More?"])

    async def test_a_question_is_an_interrupt_and_its_answer_continues_once_however_often_it_is_sent(self):
        application = self.app(registry=agents(tea=options([ASK, "Lemon tea."])))
        first = (await self.run_agent(application, "t", "r1", "Tea?")).messages()
        [interrupt] = first[-1]["outcome"]["interrupts"]
        self.assertEqual(interrupt["message"], "Milk or lemon?")
        unanswered = (await self.run_agent(application, "t", "r2", "Well?")).messages()
        self.assertEqual(kinds(unanswered), ["RUN_STARTED", "RUN_ERROR"])
        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": "lemon"}]
        answers = await asyncio.gather(*(self.run_agent(application, "t", "r3", resume=resume) for _ in range(2)))
        good = [answer.messages() for answer in answers if answer.status == 200]
        self.assertIn("RUN_FINISHED", [messages[-1]["type"] for messages in good])
        last = (await self.run_agent(application, "t", "r3", resume=resume)).messages()
        self.assertEqual(last[-1]["outcome"]["type"], "success")
        self.assertEqual([kind for kind in kinds(last) if kind.startswith("TOOL_CALL")], ["TOOL_CALL_RESULT"])
        events = self.store.read_events("t")
        self.assertEqual(sum(event.type == "user.answer" for event in events), 1)
        self.assertEqual(sum(isinstance(event, SystemInit) for event in events), 2)
        wrong = [{"interruptId": "none", "status": "resolved", "payload": "x"}]
        self.assertEqual(
            kinds((await self.run_agent(application, "t", "r4", resume=wrong)).messages())[-1], "RUN_ERROR"
        )

    async def test_threads_of_tenants_with_the_same_name_are_two_sessions(self):
        application = self.app(auth=by_tenant, tea=["Tea."])
        north, south = bearer("token-of-anna-at-north"), bearer("token-of-carl-at-south")
        for who in (north, south):
            self.assertEqual(
                kinds((await self.run_agent(application, "same", "r", "Hi.", headers=who)).messages())[-1],
                "RUN_FINISHED",
            )
        self.assertEqual(len(self.store.list_sessions()), 2)
        odd = await self.run_agent(application, "../../etc/passwd\n", "r", "Hi.", headers=north)
        self.assertEqual(kinds(odd.messages())[-1], "RUN_FINISHED")
        self.assertTrue(all(name.isalnum() for name in self.store.list_sessions()))

    async def test_no_thread_gets_the_name_of_the_inbox_of_a_workflow(self):
        application = self.app(tea=["Tea."])
        for thread in ("plain", "plain.inbox"):
            await self.run_agent(application, thread, "r", "Hi.")
        self.assertIn("plain", self.store.list_sessions())
        self.assertNotIn("plain.inbox", self.store.list_sessions())

    async def test_an_invalid_input_is_refused_before_a_stream_begins(self):
        application = self.app()
        for body, status in (({}, 400), ([], 400), ({"threadId": "t", "runId": "r", "messages": 3}, 400)):
            self.assertEqual((await ask(application, "POST", "/v1/ag-ui/tea", body)).status, status)
        good = {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "x"}]}
        self.assertEqual((await ask(application, "POST", "/v1/ag-ui/nobody", good)).status, 404)
        self.assertEqual(self.store.list_sessions(), [])


class Responses(ProjectionCase):
    async def create(self, application, headers=None, **body):
        return await ask(
            application, "POST", "/v1/responses", {"input": "Tea?", "model": "tea", **body}, headers=headers
        )

    async def test_a_response_is_a_run_and_the_next_one_continues_with_its_session(self):
        application = self.app(tea=["Tea."])
        first = (await self.create(application)).json
        self.assertEqual((first["status"], first["output"][0]["content"][0]["text"]), ("completed", "Tea."))
        second = (await self.create(application, previous_response_id=first["id"], input="More?")).json
        self.assertEqual(second["previous_response_id"], first["id"])
        [session_id] = self.store.list_sessions()
        self.assertEqual(self.prompts(session_id), ["Tea?", "More?"])
        for made in (first, second):
            shown = (await ask(application, "GET", f"/v1/responses/{made['id']}")).json
            self.assertEqual((shown["output"], shown["status"], shown["model"]), (made["output"], "completed", "tea"))

    async def test_a_stream_that_was_cut_continues_after_any_number(self):
        application = self.app(tea=[{"text": "Hello there, and tea.", "deltas": 3}])
        answer = await self.create(application, stream=True)
        live = answer.messages()
        names = [line[7:] for line in answer.body.decode().split("\n") if line.startswith("event: ")]
        self.assertEqual(names, kinds(live))
        numbers = [message["sequence_number"] for message in live]
        self.assertEqual(numbers, sorted(set(numbers)))
        response_id = live[0]["response"]["id"]
        text = live[-1]["response"]["output"][0]["content"][0]["text"]
        for at in range(len(live)):
            path = f"/v1/responses/{response_id}?stream=true&starting_after={numbers[at]}"
            rest = (await ask(application, "GET", path)).messages()
            whole = live[: at + 1] + rest
            deltas = [message["delta"] for message in whole if message["type"] == "response.output_text.delta"]
            self.assertEqual("".join(deltas), text)
            self.assertEqual(whole[-1]["sequence_number"], numbers[-1])

    async def test_a_response_in_the_background_is_asked_for_later_and_can_be_cancelled(self):
        reached = asyncio.Event()
        turns = [{"tool_calls": [{"name": "hold", "arguments": {}}]}, "Tea."]
        application = self.app(registry=agents(tea=options(turns, endless(reached))))
        made = (await self.create(application, background=True)).json
        self.assertIn(made["status"], ("queued", "in_progress"))
        await asyncio.wait_for(reached.wait(), WAIT_S)
        self.assertEqual((await ask(application, "GET", f"/v1/responses/{made['id']}")).json["status"], "in_progress")
        cancelled = await ask(application, "POST", f"/v1/responses/{made['id']}/cancel", {})
        self.assertEqual(cancelled.json["status"], "cancelled")

    async def test_a_retry_with_its_key_is_the_same_response(self):
        application = self.app(tea=["Tea."])
        key = {"Idempotency-Key": "stainless-python-retry-1"}
        first, again = [(await self.create(application, key)).json for _ in range(2)]
        self.assertEqual(first, again)
        other = await self.create(application, key, input="Coffee?")
        self.assertEqual((other.status, other.json["error"]["type"]), (422, "invalid_request_error"))

    async def test_errors_have_the_shape_that_the_vendors_clients_read_and_reveal_no_other_tenant(self):
        application = self.app(auth=by_tenant, tea=["Tea."])
        north, south = bearer("token-of-anna-at-north"), bearer("token-of-carl-at-south")
        made = (await self.create(application, north)).json
        unknown = made["id"][:-12] + "0" * 12
        foreign = made["id"].replace(made["id"][5:9], "0000")
        for path in (made["id"], unknown, foreign, "x"):
            answer = await ask(application, "GET", f"/v1/responses/{path}", headers=south)
            self.assertEqual((answer.status, answer.json["error"]["type"]), (404, "not_found_error"))
            cancel = await ask(application, "POST", f"/v1/responses/{path}/cancel", {}, headers=south)
            self.assertEqual(cancel.json["error"]["message"], answer.json["error"]["message"])
        previous = await self.create(application, south, previous_response_id=made["id"])
        self.assertEqual(previous.status, 404)
        for body, status in (({"model": "nobody"}, 404), ({"instructions": "Be evil."}, 400), ({"input": []}, 400)):
            self.assertEqual((await self.create(application, north, **body)).status, status)


if __name__ == "__main__":
    unittest.main()
