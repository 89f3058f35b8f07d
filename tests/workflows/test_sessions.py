"""A workflow is a session: what is done with sessions holds for it, and takes along what lies beside it."""

from __future__ import annotations

import unittest
from typing import Any

from openagentic_sdk import Flow, MemorySessionStore, OpenAgenticOptions, answer_question, workflow
from openagentic_sdk.parts.record.erase import erase
from openagentic_sdk.parts.record.keep import purge_sessions
from openagentic_sdk.parts.record.lifecycle import delete_session, export_session, fork_session, rewind_session
from openagentic_sdk.runs.background import open_questions
from openagentic_sdk.sessions.folds.features.untrusted import UntrustedFold
from openagentic_sdk.sessions.resume import load_view
from openagentic_sdk.sessions.seal import Seal
from openagentic_sdk.testing import FakeClock

SECRET = "sk-ant-" + "api03-abcdefghijklmnopqrstuvwxyz0123456789"
RUNS: list[str] = []


def note(text: str) -> str:
    RUNS.append(text)
    return text


@workflow
async def order(flow: Flow, name: str) -> list[Any]:
    first = await flow.step(note, name)
    paid = await flow.wait_for("paid")
    return [first, paid, await flow.step(note, "sent", effect="unsafe", name="send")]


@workflow
async def asks(flow: Flow) -> str:
    return await flow.ask("What is the key?")


class Sessions(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.store = MemorySessionStore()
        self.options = OpenAgenticOptions(session_store=self.store, clock=FakeClock())
        RUNS.clear()

    async def ordered(self) -> None:
        await order.run("tea", options=self.options, session="s")
        await order.deliver("s", "paid", 7, options=self.options)
        self.assertEqual((await order.resume("s", options=self.options)).output, ["tea", 7, "sent"])

    def seq(self, kind: str) -> int:
        return next(event.seq or 0 for event in self.store.read_events("s") if event.type == kind)

    async def test_the_events_of_a_workflow_go_wherever_its_session_goes(self) -> None:
        await self.ordered()
        other = MemorySessionStore()
        self.assertEqual(export_session(self.store, other, "s"), ["s", "s.inbox"])
        self.assertEqual([row.id for row in self.store.list_session_summaries()], ["s"])
        self.assertEqual(delete_session(self.store, "s"), ["s.inbox", "s"])
        self.assertEqual(self.store.list_sessions(), [])

    async def test_events_of_a_workflow_that_never_began_are_purged_by_themselves(self) -> None:
        await order.deliver("never", "paid", 7, options=self.options)
        self.assertEqual([purged.session_id for purged in purge_sessions(self.store, -60)], ["never.inbox"])

    async def test_secrets_in_events_and_answers_are_masked_and_events_count_as_untrusted(self) -> None:
        await order.run("tea", options=self.options, session="s")
        await order.deliver("s", "paid", {"key": SECRET}, options=self.options)
        await order.resume("s", options=self.options)
        await asks.run(options=self.options, session="asks")
        question = open_questions(self.store, "asks", Seal(None))[0]
        await answer_question(self.store, "asks", question.question_id, SECRET)
        self.assertNotIn(SECRET, (await asks.resume("asks", options=self.options)).output)
        for session in self.store.list_sessions():
            self.assertNotIn(SECRET, str(self.store.read_events(session)))
        view, _ = load_view(self.store, "s", (UntrustedFold,))
        self.assertEqual(list(view.fold(UntrustedFold).sources), ["event paid"])

    async def test_an_event_that_was_erased_is_given_to_nobody(self) -> None:
        await order.run("tea", options=self.options, session="s")
        await order.deliver("s", "paid", "Ada Lovelace", options=self.options)
        erase(self.store, "s", texts=["Ada Lovelace"])
        self.assertNotIn("Lovelace", str(self.store.read_events("s.inbox")))
        self.assertEqual((await order.resume("s", options=self.options)).stop_reason, "waiting")

    async def test_a_workflow_that_was_rewound_goes_on_from_there(self) -> None:
        await self.ordered()
        rewind_session(self.store, "s", to_seq=self.seq("part.state"))
        self.assertEqual((await order.resume("s", options=self.options)).output, ["tea", 7, "sent"])
        self.assertEqual(RUNS, ["tea", "sent", "sent"])
        rewind_session(self.store, "s", to_seq=self.seq("user.message"))
        self.assertEqual((await order.resume("s", options=self.options)).output, ["tea", 7, "sent"])
        self.assertEqual(RUNS, ["tea", "sent", "sent", "tea", "sent"])

    async def test_a_fork_waits_for_events_of_its_own(self) -> None:
        await self.ordered()
        fork = fork_session(self.store, "s", at_seq=self.seq("part.state"))
        self.assertEqual((await order.resume(fork, options=self.options)).stop_reason, "waiting")
        await order.deliver(fork, "paid", 8, options=self.options)
        self.assertEqual((await order.resume(fork, options=self.options)).output, ["tea", 8, "sent"])
        self.assertEqual((await order.resume("s", options=self.options)).output, ["tea", 7, "sent"])


if __name__ == "__main__":
    unittest.main()
