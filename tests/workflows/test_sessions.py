"""A workflow is a session: session operations apply to it, and include the files beside its log."""

from __future__ import annotations

import tempfile
import unittest
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from openagentic_sdk import (
    Flow,
    MemorySessionStore,
    OpenAgenticOptions,
    StepFailedError,
    Workflow,
    answer_question,
    run,
    workflow,
)
from openagentic_sdk.errors import LeaseLostError, OptionsError, RunFailedError, WorkflowError
from openagentic_sdk.events import Result, SessionMeta, UserMessage
from openagentic_sdk.ground.backoff import Backoff
from openagentic_sdk.parts.record.erase import erase
from openagentic_sdk.parts.record.keep import purge_sessions
from openagentic_sdk.parts.record.lifecycle import delete_session, export_session, fork_session, rewind_session
from openagentic_sdk.parts.workflows import inbox
from openagentic_sdk.runs.background import open_questions
from openagentic_sdk.runs.replay import replay_events
from openagentic_sdk.runs.whatif import what_if
from openagentic_sdk.sessions.folds.features.untrusted import UntrustedFold
from openagentic_sdk.sessions.resume import load_view
from openagentic_sdk.sessions.seal import Seal
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.testing import FakeClock, ScriptedProvider
from tests.size import full_size

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


@workflow
async def looks_up(flow: Flow) -> str:
    account = await flow.step(lambda: "DE89 3704", name="look")
    await flow.ask("Pay?", choices=("yes", "no"))
    return await flow.step(note, account, effect="unsafe", name="pay")


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

    async def test_a_prompt_to_a_session_with_the_name_of_an_inbox_is_no_event(self) -> None:
        event = '{"event": "paid", "payload": "by a model"}'
        chat = replace(self.options, provider=ScriptedProvider(["Hello."] * 2), model="scripted")
        for name in ("early", "late"):
            if name == "early":
                await run(prompt=event, options=replace(chat, session=inbox.inbox_of(name), request_id="early"))
            await order.run("tea", options=self.options, session=name)
            if name == "late":
                await order.deliver(name, "other", options=self.options)
                await run(prompt=event, options=replace(chat, session=inbox.inbox_of(name), request_id="late"))
            self.assertEqual((await order.resume(name, options=self.options)).stop_reason, "waiting")
        with self.assertRaisesRegex(WorkflowError, "'early.inbox' is not its inbox"):
            await order.deliver("early", "paid", 7, options=self.options)
        await order.deliver("late", "paid", 7, options=self.options)
        self.assertEqual((await order.resume("late", options=self.options)).output, ["tea", 7, "sent"])

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

    async def test_a_workflow_does_not_continue_with_the_mark_of_an_erased_value(self) -> None:
        await looks_up.run(options=self.options, session="s")
        question = open_questions(self.store, "s", Seal(None))[0]
        erase(self.store, "s", texts=["DE89 3704"])
        await answer_question(self.store, "s", question.question_id, "yes")
        for _ in range(2):
            with self.assertRaisesRegex(RunFailedError, r"step 1 \(look\) .* has lost values to an erasure"):
                await looks_up.resume("s", options=self.options)
        self.assertEqual(RUNS, [])

    async def test_an_ended_workflow_replays_after_an_erasure(self) -> None:
        @workflow
        async def ends(flow: Flow) -> str:
            await flow.step(lambda: "Ada Lovelace", name="look")
            return "done"

        await ends.run(options=self.options, session="s")
        erase(self.store, "s", texts=["Ada Lovelace"])
        self.assertTrue((await ends.replay("s", options=self.options)).ok)

    async def test_an_inbox_that_lost_its_metadata_receives_events(self) -> None:
        await order.run("tea", options=self.options, session="s")
        await order.deliver("s", "other", 1, options=self.options)
        read = self.store.read_metadata
        self.store.read_metadata = lambda name: {**read(name), "metadata": {}}  # type: ignore[method-assign,misc]
        self.assertTrue(await order.deliver("s", "paid", 7, options=self.options))

    async def test_an_end_is_found_after_any_number_of_titles(self) -> None:
        await order.run("tea", options=self.options, session="s")
        await order.deliver("s", "paid", 7, options=self.options)
        await order.resume("s", options=self.options)
        for number in range(30):
            self.store.append_event("s", SessionMeta(title=f"Title {number}"))
        with self.assertRaisesRegex(WorkflowError, "'s' has ended and receives no more events"):
            await order.deliver("s", "paid", 8, options=self.options)

    async def test_an_event_that_comes_after_an_erasure_or_in_a_new_session_of_the_name_is_given_once(self) -> None:
        async def paid(value: Any, event_id: str) -> bool:
            return await order.deliver("s", "paid", value, event_id=event_id, options=self.options)

        await order.run("tea", options=self.options, session="s")
        self.assertTrue(await paid("Ada Lovelace", "e1"))
        self.assertTrue(await order.deliver("s", "other", 1, options=self.options))
        erase(self.store, "s", texts=["Ada Lovelace"])
        self.assertFalse(await paid(7, "e1"))
        self.assertTrue(await paid(7, "e2"))
        self.assertEqual((await order.resume("s", options=self.options)).output, ["tea", 7, "sent"])
        for name in ("s.inbox", "s"):
            self.store.delete_session(name)
        await order.run("tea", options=self.options, session="s")
        self.assertTrue(await paid(8, "e2"))
        self.assertEqual((await order.resume("s", options=self.options)).output, ["tea", 8, "sent"])

    @full_size
    async def test_many_events_are_delivered_and_given_without_reading_them_over_and_over(self) -> None:
        reads = 0

        class Counted(MemorySessionStore):
            def iter_events(self, session_id: str, **where: Any) -> Any:
                nonlocal reads
                for event in super().iter_events(session_id, **where):
                    reads += session_id == "s.inbox"
                    yield event

        @workflow
        async def total(flow: Flow, count: int) -> int:
            return sum([await flow.wait_for("paid") for _ in range(count)])

        count, options = 50, OpenAgenticOptions(session_store=Counted(), clock=FakeClock())
        await total.run(count, options=options, session="s")
        for number in range(count):
            await total.deliver("s", "paid", number, options=options)
        self.assertLess(reads, 4 * count)
        self.assertEqual((await total.resume("s", options=options)).output, sum(range(count)))
        self.assertLess(reads, 8 * count)

    async def test_a_workflow_that_was_rewound_continues_from_there(self) -> None:
        await self.ordered()
        rewind_session(self.store, "s", to_seq=self.seq("part.state"))
        self.assertEqual((await order.resume("s", options=self.options)).output, ["tea", 7, "sent"])
        self.assertEqual(RUNS, ["tea", "sent", "sent"])
        rewind_session(self.store, "s", to_seq=self.seq("user.message"))
        self.assertEqual((await order.resume("s", options=self.options)).output, ["tea", 7, "sent"])
        self.assertEqual(RUNS, ["tea", "sent", "sent", "tea", "sent"])

    async def test_an_event_with_a_name_of_the_workflows_own_is_refused(self) -> None:
        await order.run("tea", options=self.options, session="s")
        for name in (inbox.CANCEL, "end of step 2"):
            with self.assertRaisesRegex(WorkflowError, "is reserved"):
                await order.deliver("s", name, {"stop_reason": "end"}, options=self.options)
        self.assertFalse(self.store.session_exists(inbox.inbox_of("s")))
        await order.cancel("s", options=self.options)
        with self.assertRaisesRegex(RunFailedError, "was cancelled"):
            await order.resume("s", options=self.options)

    async def test_a_fork_waits_for_events_of_its_own(self) -> None:
        await self.ordered()
        fork = fork_session(self.store, "s", at_seq=self.seq("part.state"))
        self.assertEqual((await order.resume(fork, options=self.options)).stop_reason, "waiting")
        await order.deliver(fork, "paid", 8, options=self.options)
        self.assertEqual((await order.resume(fork, options=self.options)).output, ["tea", 8, "sent"])
        self.assertEqual((await order.resume("s", options=self.options)).output, ["tea", 7, "sent"])

    async def answered(self, session: str, text: str) -> Any:
        [question] = (await asks.resume(session, options=self.options)).questions
        await answer_question(self.store, session, question.question_id, text)
        return (await asks.resume(session, options=self.options)).output

    async def test_a_fork_of_a_workflow_that_waits_for_an_answer_asks_its_own_question(self) -> None:
        await asks.run(options=self.options, session="s")
        fork = fork_session(self.store, "s")
        self.assertEqual(await self.answered(fork, "blue"), "blue")
        self.assertEqual(await self.answered("s", "red"), "red")

    async def test_the_question_of_a_rewound_workflow_can_be_answered_and_its_earlier_answer_does_not_count(
        self,
    ) -> None:
        await asks.run(options=self.options, session="s")
        rewind_session(self.store, "s", to_seq=self.seq("tool.use"))
        self.assertEqual(await self.answered("s", "red"), "red")
        for kind in ("tool.use", "user.question", "part.state"):
            rewind_session(self.store, "s", to_seq=self.seq(kind))
            self.assertEqual(await self.answered("s", f"not red, {kind}"), f"not red, {kind}")

    async def test_an_error_about_a_session_rewound_to_before_its_arguments_names_the_remedy(self) -> None:
        await self.ordered()
        rewind_session(self.store, "s", to_seq=1)
        with self.assertRaisesRegex(RunFailedError, "rewound to before them. Rewind it to a later event"):
            await order.resume("s", options=self.options)

    async def test_a_what_if_takes_the_recorded_results_and_stops_at_the_first_new_step(self) -> None:
        await self.ordered()
        same = await self.what_if(order)
        self.assertEqual((same.stop_reason, same.structured_output, RUNS), ("end", ["tea", 7, "sent"], ["tea", "sent"]))

        @workflow(name="order")
        async def other(flow: Flow, name: str) -> list[Any]:
            with suppress(StepFailedError):
                await flow.step(note, f"more {name}")
            return [await flow.step(note, name)]

        new = await self.what_if(other)
        self.assertEqual((new.stop_reason, RUNS), ("interrupted", ["tea", "sent"]))
        self.assertEqual(new.error_message, "note is a call that the recorded session never made")

    async def what_if(self, flow: Workflow[Any, Any]) -> Result:
        events = what_if(source_id="s", at_seq=self.seq("user.message"), options=flow.to_options(self.options))
        return [event async for event in events if isinstance(event, Result)][-1]

    async def test_another_agent_and_a_replay_of_requests_get_errors_that_name_what_a_workflow_needs(self) -> None:
        await self.ordered()
        with self.assertRaisesRegex(OptionsError, "only its code can continue"):
            plain = replace(self.options, provider=ScriptedProvider(["Hi."]), model="m")
            [event async for event in what_if(source_id="s", at_seq=3, options=plain)]
        with self.assertRaisesRegex(OptionsError, "workflow replay"):
            await replay_events(self.store.read_events("s"))


class Replays(unittest.IsolatedAsyncioTestCase):
    """Replays of changed workflow bodies against the log of an unfinished and of a finished one."""

    def setUp(self) -> None:
        self.clock = FakeClock()
        self.store = MemorySessionStore()
        self.options = OpenAgenticOptions(session_store=self.store, clock=self.clock)
        RUNS.clear()

    async def test_a_body_that_makes_other_more_or_fewer_steps_differs_at_both_places(self) -> None:
        def body(names: str, value: str = "done") -> Workflow[[], str]:
            @workflow(name="letters")
            async def letters(flow: Flow) -> str:
                for name in names:
                    await (flow.sleep(60) if name == "z" else flow.step(note, name))
                return value

            return letters

        await body("azb").run(options=self.options, session="s")
        fits = {names: (await body(names).replay("s", options=self.options)).ok for names in ("azb", "az", "azc", "a")}
        self.assertEqual(fits, {"azb": True, "az": True, "azc": True, "a": False})
        with self.assertRaisesRegex(
            RunFailedError, r"step 2 was sleep\(.*\) at test_sessions.py:\d+ and is no longer made"
        ):
            await body("a").resume("s", options=self.options)
        self.clock.advance(60)
        self.assertEqual((await body("azb").resume("s", options=self.options)).output, "done")
        wanted = {
            "azb": None,
            "az": r"its step 3 was note\(.*\) at .* is no longer made, after step 2 at test_sessions.py:\d+",
            "azc": r"its step 3 was note\(.*\) at .* and is now note\(.*\) at ",
            "azbb": r"the workflow ended with done, but its body now makes step 4 \(note\) at test_sessions.py:\d+",
        }
        for names, difference in wanted.items():
            with self.subTest(names):
                found = await body(names).replay("s", options=self.options)
                self.assertRegex(str(found.difference), difference or "None")
        self.assertRegex(
            str((await body("azb", "else").replay("s", options=self.options)).difference), "now ends with else"
        )
        self.assertEqual((RUNS, self.store.list_sessions()), (["a", "b"], ["s"]))

    async def test_a_branch_with_fewer_steps_is_found_before_any_step_begins(self) -> None:
        def body(most: int) -> Workflow[[], list[str]]:
            async def branch(flow: Flow, item: str) -> str:
                for number in range(most if item == "b" else 2):
                    await flow.step(note, f"{item}{number}")
                return await flow.ask(f"{item}?")

            @workflow(name="branches")
            async def branches(flow: Flow) -> list[str]:
                return await flow.map(lambda item: branch(flow, item), ["a", "b"])

            return branches

        await body(2).run(options=self.options, session="s")
        before = list(RUNS)
        with self.assertRaisesRegex(RunFailedError, r"its step 1-2-2 was note|its step 1-2-3 was ask"):
            await body(1).resume("s", options=self.options)
        self.assertEqual(RUNS, before)

    async def test_a_code_without_a_version_that_all_old_runs_have_passed_still_fits(self) -> None:
        def body(*, asks: bool) -> Workflow[[], str]:
            @workflow(name="versions")
            async def versions(flow: Flow) -> str:
                if asks:
                    flow.version("v2")
                return await flow.step(note, "a")

            return versions

        await body(asks=True).run(options=self.options, session="s")
        self.assertTrue((await body(asks=False).replay("s", options=self.options)).ok)

    async def test_the_first_of_two_waits_wins_in_every_run(self) -> None:
        @workflow(name="race")
        async def race(flow: Flow) -> list[Any]:
            winner = await flow.first(flow.wait_for("paid"), flow.sleep(60))
            return [*winner, await flow.step(note, "after"), await flow.ask("Go on?")]

        for session, wanted in (("event", [0, 7]), ("timer", [1, None])):
            await race.run(options=self.options, session=session)
            if session == "event":
                await race.deliver(session, "paid", 7, options=self.options)
            else:
                self.clock.advance(60)
            asked = (await race.resume(session, options=self.options)).questions
            self.clock.advance(60)  # both could have arrived by now
            await race.deliver(session, "paid", 8, options=self.options)
            self.assertTrue((await race.replay(session, options=self.options)).ok)
            await answer_question(self.store, session, asked[0].question_id, "yes")
            self.assertEqual((await race.resume(session, options=self.options)).output, [*wanted, "after", "yes"])
            self.assertTrue((await race.replay(session, options=self.options)).ok)

    async def test_a_gather_of_a_wait_and_a_timer_ends_when_both_have_in_the_order_of_the_log(self) -> None:
        order_of_end: list[str] = []

        async def branch(flow: Flow, name: str) -> None:
            await (flow.wait_for("paid") if name == "event" else flow.sleep(60))
            order_of_end.append(name)
            await flow.step(note, name)

        @workflow(name="both")
        async def both(flow: Flow) -> str:
            order_of_end.clear()
            await flow.map(lambda name: branch(flow, name), ["timer", "event"])
            return " ".join(order_of_end)

        await both.run(options=self.options, session="s")
        await both.deliver("s", "paid", options=self.options)
        await both.resume("s", options=self.options)
        self.clock.advance(60)
        self.assertEqual((await both.resume("s", options=self.options)).output, "event timer")
        self.assertTrue((await both.replay("s", options=self.options)).ok)
        self.assertEqual(order_of_end, ["event", "timer"])


class HangingSender(unittest.TestCase):
    def test_a_process_that_hangs_while_it_delivers_is_replaced(self) -> None:
        place = self.enterContext(tempfile.TemporaryDirectory())
        store = SqliteSessionStore(Path(place, "x.db"), durability="flush")
        self.addCleanup(store.close)
        self.assertTrue(inbox.deliver(store, "s", "paid", 1))
        hanging = store.open_writer(inbox.inbox_of("s"))
        self.addCleanup(hanging.close)
        self.addCleanup(setattr, inbox, "_BUSY", inbox._BUSY)
        inbox._BUSY = Backoff(1e-6, 1e-6)
        self.assertTrue(inbox.deliver(store, "s", "paid", 2))
        with self.assertRaises(LeaseLostError):
            hanging.append([UserMessage("late")])
        self.assertEqual(len(store.read_events(inbox.inbox_of("s"))), 2)


if __name__ == "__main__":
    unittest.main()
