"""A server whose runs belong to a fleet: it enqueues them, and workers elsewhere execute them."""

from __future__ import annotations

import asyncio
import unittest
from typing import Any

from openagentic_sdk.errors import RequestRefusedError, SessionNotFoundError
from openagentic_sdk.events import Result, UserMessage
from openagentic_sdk.fleet import Worker
from openagentic_sdk.server.asgi import app
from openagentic_sdk.server.desk import rate_headers
from openagentic_sdk.server.fleet_desk import FleetDesk
from openagentic_sdk.server.guard import Principal

from .payments import agents
from .places import FleetTest

ANN, BOB = Principal("a", name="ann"), Principal("b", name="bob")


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


if __name__ == "__main__":
    unittest.main()
