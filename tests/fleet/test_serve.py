"""A server whose runs belong to a fleet: it enqueues them, and workers elsewhere execute them."""

from __future__ import annotations

import asyncio
import unittest
from collections.abc import Sequence
from functools import partial
from typing import Any

from openagentic_sdk import OpenAgenticOptions
from openagentic_sdk.agents import Agents, NamedAgent
from openagentic_sdk.errors import FleetError, RequestRefusedError, SessionNotFoundError
from openagentic_sdk.events import Result, UserMessage
from openagentic_sdk.fleet import Fleet, Worker
from openagentic_sdk.parts.record.lifecycle import delete_session
from openagentic_sdk.providers.base import Message, ModelOutput, ToolSpec
from openagentic_sdk.serialization import dumps_json, loads_json
from openagentic_sdk.server.asgi import app
from openagentic_sdk.server.desk import rate_headers
from openagentic_sdk.server.fleet_desk import FleetDesk
from openagentic_sdk.server.guard import Principal
from openagentic_sdk.server.operations.webhooks import WATCH_S, WebhookTarget
from tests.server.support import TOKEN, WAIT_S
from tests.server.support import ask as http
from tests.size import full_size
from tests.waiting import until_async

from .payments import agents
from .places import FleetTest

SSE = {"Accept": "text/event-stream"}
ANN, BOB = Principal("a", name="ann"), Principal("b", name="bob")


class Echo:
    """A model that repeats the newest prompt."""

    name = "echo"

    async def complete(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: str | None = None
    ) -> ModelOutput:
        said = [message["content"] for message in messages if message["role"] == "user"]
        return ModelOutput(f"You said {said[-1]}.", [])


class ServeTest(FleetTest):
    def setUp(self) -> None:
        super().setUp()
        desk = app(agents(), store=self.store, auth="t" * 32, in_fleet=True).desk
        assert isinstance(desk, FleetDesk)
        self.desk = desk
        self.addCleanup(desk._fleet.close)

    async def work(self) -> None:
        await Worker(self.fleet).work(until_idle=True)

    def states(self) -> list[str]:
        return [run.state for run in self.fleet.queue.rows()][::-1]

    def test_a_prompt_is_queued_once_and_a_worker_continues_with_it(self) -> None:
        async def ask() -> Any:
            first = await self.desk.start(ANN, "payer", "pay k 0", key="once")
            again = await self.desk.start(ANN, "payer", "pay k 0", key="once")
            self.assertEqual((first.session_id, self.states()), (again.session_id, ["queued"]))
            await self.work()
            self.assertFalse((await self.desk.start(ANN, "payer", "pay k 0", key="once")).is_new)
            await self.desk.start(ANN, None, [{"type": "text", "text": "pay l 0"}], session_id=first.session_id)
            await self.work()
            with self.assertRaises(SessionNotFoundError):
                await self.desk.start(BOB, None, "pay m 0", session_id=first.session_id)
            return first

        started = asyncio.run(ask())
        self.assertEqual((self.states(), self.payments()), (["ended", "ended"], {"k": 1, "l": 1}))
        events = self.store.read_events(started.session_id)
        request_ids = [event.request_id for event in events if isinstance(event, UserMessage)]
        self.assertEqual(request_ids[0], started.request_id)
        self.assertEqual(self.store.read_summary(started.session_id).tenant, "a")

    def test_a_server_that_only_queues_runs_announces_no_limit_of_simultaneous_ones(self) -> None:
        self.assertEqual(rate_headers(self.desk), {})

    def test_an_answer_wakes_the_run_and_a_message_sent_meanwhile_is_the_next_prompt(self) -> None:
        async def ask() -> str:
            session = (await self.desk.start(ANN, "asker", "pay k 0")).session_id
            await self.work()
            (question,) = (await self.desk.row(ANN, session)).open_questions
            await self.desk.steer(ANN, session, "pay l 0")
            await self.desk.answer_all(ANN, session, {question: "yes"})
            await self.work()
            with self.assertRaises(RequestRefusedError):
                await self.desk.answer_all(ANN, session, {question: "yes"})
            return session

        session = asyncio.run(ask())
        self.assertEqual((self.states(), self.payments()), (["ended", "waiting"], {"k": 1}))
        self.assertTrue(asyncio.run(self.desk.cancel(ANN, session)))
        self.assertEqual(self.states(), ["ended", "cancelled"])
        last = self.store.read_events(session)[-1]
        assert isinstance(last, Result)
        self.assertEqual((last.stop_reason, asyncio.run(self.desk.cancel(ANN, session))), ("interrupted", False))

    def prompts(self, session: str) -> list[str]:
        return [event.text for event in self.store.read_events(session) if isinstance(event, UserMessage)]

    @full_size
    def test_a_key_is_valid_within_its_session_though_the_queue_belongs_to_the_tenant(self) -> None:
        async def ask() -> None:
            sessions = [(await self.desk.start(ANN, "payer", f"pay {key} 0")).session_id for key in "ab"]
            await self.work()
            for session in sessions * 2:
                started = await self.desk.start(ANN, None, "pay c 0", session_id=session, key="once")
                self.assertEqual(started.session_id, session)
            await self.work()
            for session, key in zip(sessions, "ab", strict=True):
                self.assertEqual(self.prompts(session), [f"pay {key} 0", "pay c 0"])
                self.assertFalse((await self.desk.start(ANN, None, "pay c 0", session_id=session, key="once")).is_new)
                # As an AG-UI client does, whose run ids are unique in its thread.
                await self.desk.start(ANN, None, f"pay {key}2 0", session_id=session, request_id="ag-ui 1")
            await self.work()
            self.assertEqual([self.prompts(session)[-1] for session in sessions], ["pay a2 0", "pay b2 0"])

        asyncio.run(ask())

    def test_a_key_of_a_queued_request_is_refused_with_another_body_and_known_with_its_own(self) -> None:
        async def ask() -> None:
            session = (await self.desk.start(ANN, "payer", "pay a 0")).session_id
            start = partial(self.desk.start, ANN, None, session_id=session, key="k")
            for send in (start, partial(self.desk.steer, ANN, session, key="m")):
                await send(prompt="pay b 0")
                with self.assertRaises(RequestRefusedError) as refused:
                    await send(prompt="pay c 0")
                self.assertEqual((refused.exception.status, refused.exception.code), (422, "key_reused"))
            self.assertFalse((await start(prompt="pay b 0")).is_new)
            self.assertEqual(self.states(), ["queued"] * 3)
            await self.desk.cancel(ANN, session)
            self.assertFalse((await start(prompt="pay b 0")).is_new)
            self.assertEqual(self.states(), ["cancelled"] * 3)

        asyncio.run(ask())

    def test_a_failed_request_that_is_sent_again_is_retried(self) -> None:
        async def failed() -> None:
            send = partial(self.desk.start, ANN, "payer", "never understood", key="once")
            for count in (1, 2, 3):
                await send()
                await self.work()
                self.assertEqual(self.states(), ["failed"] * count)

        asyncio.run(failed())

    def test_the_server_watches_for_the_runs_of_workers_that_its_webhooks_report(self) -> None:
        target = WebhookTarget("https://hooks.example/", "whsec_" + "a" * 32)
        for in_fleet in (True, False):
            served = app(agents(), store=self.store, auth="t" * 32, in_fleet=in_fleet, webhooks=[target])
            assert served.webhooks is not None
            self.assertEqual(served.webhooks._watch_s, WATCH_S if in_fleet else None)

    def test_a_queued_response_can_be_polled_and_cancelled(self) -> None:
        async def poll() -> None:
            served = app(agents(), store=self.store, auth=TOKEN, in_fleet=True)
            body = {"model": "payer", "input": "pay a 0", "background": True}
            for cancels in (True, False):
                made = (await http(served, "POST", "/v1/responses", body)).json
                again = (await http(served, "GET", f"/v1/responses/{made['id']}")).json
                self.assertEqual((made["status"], again["status"]), ("queued", "queued"))
                if cancels:
                    ended = await http(served, "POST", f"/v1/responses/{made['id']}/cancel", {})
                    self.assertEqual(ended.json["status"], "cancelled")
                await self.work()
                status = (await http(served, "GET", f"/v1/responses/{made['id']}")).json["status"]
                self.assertEqual(status, "cancelled" if cancels else "completed")

        asyncio.run(poll())
        self.assertEqual((self.states(), self.payments()), (["cancelled", "ended"], {"a": 1}))

    def test_a_cancelled_response_takes_no_other_of_its_session_with_it(self) -> None:
        async def poll() -> None:
            served = app(agents(), store=self.store, auth=TOKEN, in_fleet=True)
            body = {"model": "payer", "input": "pay a 0", "background": True}
            first = (await http(served, "POST", "/v1/responses", body)).json["id"]
            body |= {"input": "pay b 0", "previous_response_id": first}
            second = (await http(served, "POST", "/v1/responses", body)).json["id"]
            for _ in range(2):
                await http(served, "POST", f"/v1/responses/{second}/cancel", {})
            await self.work()
            third = (await http(served, "POST", "/v1/responses", {**body, "input": "pay c 0"})).json["id"]
            await http(served, "POST", f"/v1/responses/{first}/cancel", {})
            await self.work()
            self.assertEqual((await http(served, "GET", f"/v1/responses/{third}")).json["status"], "completed")

        asyncio.run(poll())
        self.assertEqual((self.states(), self.payments()), (["ended", "cancelled", "ended"], {"a": 1, "c": 1}))

    def test_a_response_that_a_retry_completed_is_returned_and_one_that_is_over_is_not_waited_for(self) -> None:
        away = [False]

        def options() -> OpenAgenticOptions:
            if away[0]:
                raise RuntimeError("the vault is away")
            return OpenAgenticOptions(provider=Echo(), model="m")

        registry = Agents({"echo": NamedAgent(options)})
        fleet = Fleet(self.store, registry)
        self.addCleanup(fleet.close)
        body, key = {"model": "echo", "input": "hello", "background": True}, {"Idempotency-Key": "once"}

        async def ask() -> None:
            served = app(registry, store=self.store, auth=TOKEN, in_fleet=True)
            made = (await http(served, "POST", "/v1/responses", body, headers=key)).json
            away[0] = True
            await Worker(fleet).work(until_idle=True)
            failed = await http(served, "GET", f"/v1/responses/{made['id']}?stream=true")
            self.assertIn(b"event: response.incomplete", failed.body)
            away[0] = False
            await http(served, "POST", "/v1/responses", body, headers=key)
            await Worker(fleet).work(until_idle=True)
            again = await http(served, "POST", "/v1/responses", {**body, "background": False}, headers=key)
            self.assertEqual((again.json["id"], again.json["status"]), (made["id"], "completed"))

        asyncio.run(ask())

    def test_a_request_that_the_version_before_queued_is_recognized(self) -> None:
        def without_the_new_field(execute: Any) -> None:
            for run_id, body in execute("SELECT id, body FROM openagentic_runs", ()):
                old = {name: value for name, value in loads_json(body).items() if name != "must_exist"}
                execute("UPDATE openagentic_runs SET body = %s WHERE id = %s RETURNING id", (dumps_json(old), run_id))

        async def ask() -> None:
            send = partial(self.desk.start, ANN, "payer", "pay a 0", name="thread", request_id="ag-ui 1")
            await send()
            self.fleet.queue.tables.change(without_the_new_field)
            await send()

        asyncio.run(ask())
        self.assertEqual(self.states(), ["queued"])

    @full_size
    def test_a_client_follows_a_run_that_is_still_queued_to_its_end(self) -> None:
        async def follow() -> None:
            served = app(agents(), store=self.store, auth=TOKEN, in_fleet=True)
            made = (await http(served, "POST", "/v1/sessions", {"agent": "payer", "prompt": "pay a 0"})).json
            place = f"/v1/sessions/{made['session_id']}"
            for _ in range(2):
                cursors = {0, made["after_seq"]}
                self.assertEqual((await http(served, "GET", place)).json["state"], "running")
                urls = [f"{place}/events?until=result&after={cursor}" for cursor in cursors]
                streams = [asyncio.create_task(http(served, "GET", url, headers=SSE)) for url in urls]
                await until_async(lambda: len(served.desk.followers) == len(cursors), "followed", WAIT_S)  # noqa: B023
                await self.work()
                last_seq = self.store.last_seq(made["session_id"])
                for stream in streams:
                    last = (await stream).messages()[-1]
                    self.assertEqual((last["type"], last["seq"]), ("result", last_seq))
                self.assertEqual((await http(served, "GET", place)).json["state"], "idle")
                made |= (await http(served, "POST", f"{place}/runs", {"prompt": "pay b 0"})).json

        asyncio.run(follow())

    @full_size
    def test_every_protocol_returns_the_answer_to_its_own_request_behind_another_one(self) -> None:
        async def ask() -> None:
            registry = Agents({"echo": NamedAgent(lambda: OpenAgenticOptions(provider=Echo(), model="m"))})
            served, fleet = app(registry, store=self.store, auth=TOKEN, in_fleet=True), Fleet(self.store, registry)
            self.addCleanup(fleet.close)

            def message(text: str, thread: str) -> Any:
                said = [{"id": text, "role": "user", "content": text}]
                return http(served, "POST", "/v1/ag-ui/echo", {"threadId": thread, "runId": text, "messages": said})

            def respond(text: str, **more: Any) -> Any:
                return http(served, "POST", "/v1/responses", {"model": "echo", "input": text, **more})

            def call(text: str, session: str) -> Any:
                given = {"name": "run_agent", "arguments": {"agent": "echo", "prompt": text, "session_id": session}}
                body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": given}
                return http(served, "POST", "/mcp", body, headers={"Accept": "application/json, text/event-stream"})

            first = (await respond("first", background=True)).json["id"]
            made = (await http(served, "POST", "/v1/sessions", {"prompt": "first"})).json["session_id"]
            before = asyncio.create_task(message("first", "t"))
            await until_async(lambda: len(self.states()) == 3, "queued", WAIT_S)
            later = [respond("second", previous_response_id=first), call("second", made), message("second", "t")]
            tasks = [asyncio.create_task(each) for each in later]
            await until_async(lambda: len(self.states()) == 6, "queued", WAIT_S)
            await until_async(lambda: len(served.desk.followers) == 4, "followed", WAIT_S)
            await Worker(fleet).work(until_idle=True)
            self.assertIn(b"You said first", (await before).body)
            for task in tasks:
                self.assertIn(b"You said second", (await task).body)
                self.assertNotIn(b"You said first", (await task).body)

        asyncio.run(ask())

    def test_a_request_id_of_another_session_is_refused(self) -> None:
        async def ask() -> None:
            enqueue = partial(self.fleet.enqueue, "payer", "pay a 0", request_id="order-17")
            self.assertEqual(await enqueue(), await enqueue())
            with self.assertRaisesRegex(FleetError, "already used"):
                await enqueue(session="another")

        asyncio.run(ask())

    @full_size
    def test_a_cancel_ends_any_number_of_queued_prompts(self) -> None:
        async def ask() -> None:
            session = (await self.desk.start(ANN, "payer", "pay a 0")).session_id
            for number in range(50):
                await self.desk.steer(ANN, session, f"pay {number} 0")
            self.assertTrue(await self.desk.cancel(ANN, session))
            await self.work()

        asyncio.run(ask())
        self.assertEqual({run.state for run in self.fleet.queue.rows(limit=None)}, {"cancelled"})
        self.assertFalse(self.payments())

    def test_a_deleted_session_is_not_created_again_by_its_queued_prompts(self) -> None:
        async def ask() -> str:
            session = (await self.desk.start(ANN, "payer", "pay a 0")).session_id
            self.assertEqual(await self.desk.delete(ANN, session, confirmed=session), [session])
            await self.work()
            return session

        self.assertFalse(self.store.session_exists(asyncio.run(ask())))
        self.assertEqual((self.states(), self.payments()), (["cancelled"], {}))

    def test_a_queued_prompt_fails_if_its_session_was_deleted_without_the_server(self) -> None:
        async def ask() -> str:
            session = (await self.desk.start(ANN, "payer", "pay a 0")).session_id
            delete_session(self.store, session)
            await self.work()
            return session

        self.assertFalse(self.store.session_exists(asyncio.run(ask())))
        [run] = self.fleet.queue.rows()
        self.assertEqual((run.state, "was deleted before the run began" in (run.error or "")), ("failed", True))
        self.assertFalse(self.payments())


if __name__ == "__main__":
    unittest.main()
