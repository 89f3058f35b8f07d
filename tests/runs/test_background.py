"""Runs that nobody watches."""

import asyncio
import gc
import tempfile
import unittest
from functools import partial
from pathlib import Path

from openagentic_sdk.errors import OptionsError
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.runs.background import answer_question, submit
from openagentic_sdk.sessions.follow import follow
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.tools.function import tool
from openagentic_sdk.tools.session.ask_user_question import AskUserQuestionTool
from tests.runtime.support import assert_closed, options_for
from tests.size import LARGE, full_size

ECHO = {"name": "echo", "arguments": {"text": "x"}}


@tool
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def asking(turns, **changes):
    """Options whose gate must ask but cannot reach anybody."""
    return options_for(turns, permission_gate=PermissionGate(permission_mode="default"), tools=[pay], **changes)


PAY = {"tool_calls": [{"name": "pay", "arguments": {"amount": 5}}]}


class BackgroundTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_run_continues_by_itself_and_its_result_is_complete(self):
        run = submit("hi", options_for([{"tool_calls": [ECHO, {"name": "fail"}]}, "Done."]))
        result = await run.wait()
        self.assertTrue(result.success)
        self.assertEqual((result.data, result.state, result.error), ("Done.", "ended", None))
        self.assertEqual((result.metrics.steps, result.metrics.tool_calls, result.metrics.tool_errors), (2, 2, 1))

    async def test_events_are_the_stored_ones_from_any_position(self):
        options = options_for([{"tool_calls": [ECHO]}, "Done."])
        run = submit("hi", options)
        events = [event async for event in run.events()]
        self.assertEqual([event.seq for event in events], list(range(1, len(events) + 1)))
        self.assertEqual(events, options.session_store.read_events(run.session_id))
        self.assertEqual([event.seq async for event in run.events(after_seq=5)], [e.seq for e in events[5:]])

    async def test_a_cancelled_run_has_a_closed_log(self):
        options = options_for([{"tool_calls": [ECHO]}, {"text": "never", "delay_s": 60}])
        run = submit("hi", options)
        async for event in run.events():
            if event.type == "user.message":
                break
        await run.cancel()
        self.assertEqual(run.state, "cancelled")
        assert_closed(self, options.session_store, run.session_id)

    async def test_an_error_that_prevents_a_run_from_starting_is_raised_by_wait(self):
        run = submit("hi", options_for([], resume="nowhere"))
        with self.assertRaises(LookupError):
            await run.wait()
        self.assertEqual(run.state, "failed")

    async def test_slots_bound_how_many_run_at_once(self):
        running, most = 0, 0

        @tool
        async def busy() -> str:
            """Count who is here."""
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return "ok"

        slots = asyncio.Semaphore(3)
        turns = [{"tool_calls": [{"name": "busy"}]}, "Done."]
        runs = [submit("hi", options_for(turns, tools=[busy]), slots=slots) for _ in range(12)]
        results = await asyncio.gather(*(run.wait() for run in runs))
        self.assertTrue(all(result.success for result in results))
        self.assertLessEqual(most, 3)


class ParkedTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_question_without_anybody_parks_the_run_and_the_answer_continues(self):
        options = asking([PAY, "Thank you."])
        run = submit("pay", options)
        waiting = await run.wait()
        self.assertEqual((waiting.state, waiting.success), ("waiting", False))
        self.assertEqual(waiting.question.details["input"], {"amount": 5})
        await run.answer(waiting.question.question_id, "yes")
        result = await run.wait()
        self.assertTrue(result.success, result.error)
        events = assert_closed(self, options.session_store, run.session_id)
        self.assertEqual([e.output for e in events if e.type == "tool.result"], ["paid 5"])
        self.assertEqual(len([e for e in events if e.type == "user.question"]), 1, "it is asked once")

    async def test_a_parked_run_continues_in_another_process_with_a_no(self):
        with tempfile.TemporaryDirectory() as folder:
            first = submit("pay", asking([PAY], session_store=FileSessionStore(folder)))
            question = (await first.wait()).question
            # Nothing remains of the first process: another store object, another model, another gate.
            store = FileSessionStore(folder)
            await answer_question(store, first.session_id, question.question_id, "no too expensive")
            second = submit(None, asking(["I see."], session_store=store, resume=first.session_id))
            self.assertTrue((await second.wait()).success)
            events = assert_closed(self, store, first.session_id)
            denied = next(event for event in events if event.type == "tool.result")
            self.assertEqual(denied.outcome, "denied")
            self.assertIn("too expensive", denied.error_message)

    async def test_a_question_of_the_model_parks_too_and_its_tool_gets_the_answer(self):
        ask = {
            "tool_calls": [
                {"name": "AskUserQuestion", "arguments": {"question": "Red or blue?", "choices": ["red", "blue"]}}
            ]
        }
        options = options_for([ask, "Blue it is."], tools=[AskUserQuestionTool()])
        run = submit("paint", options)
        waiting = await run.wait()
        self.assertEqual(waiting.state, "waiting", waiting.error)
        await run.answer(waiting.question.question_id, "blue")
        self.assertTrue((await run.wait()).success)
        events = assert_closed(self, options.session_store, run.session_id)
        self.assertEqual(next(e for e in events if e.type == "tool.result").output["answer"], "blue")

    async def test_an_answer_that_nobody_waits_for_is_refused(self):
        run = submit("hi", options_for(["Done."]))
        await run.wait()
        with self.assertRaisesRegex(OptionsError, "is not waiting for an answer"):
            await run.answer("q", "yes")


class ManyTest(unittest.IsolatedAsyncioTestCase):
    @full_size
    async def test_many_runs_at_once_complete_on_files_and_on_sqlite(self):
        count, steps = (64, 20) if LARGE else (8, 4)
        files = partial(FileSessionStore, durability="flush")
        for make in (files, lambda folder: SqliteSessionStore(Path(folder) / "sessions.db")):
            with tempfile.TemporaryDirectory() as folder, self.subTest(store=make):
                store = make(folder)
                turns = [{"tool_calls": [ECHO]}] * steps + ["Done."]
                runs = [submit("go", options_for(turns, session_store=store)) for _ in range(count)]
                results = await asyncio.gather(*(run.wait() for run in runs))
                self.assertEqual([result.metrics.steps for result in results], [steps + 1] * count)
                self.assertEqual(len(store.list_sessions()), count)
                store.close()
                del runs, results
                gc.collect()


class FollowTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_follower_sees_each_event_once_in_order_while_the_run_continues(self):
        with tempfile.TemporaryDirectory() as folder:
            store = FileSessionStore(folder)
            run = submit("go", options_for([{"tool_calls": [ECHO]}] * 10 + ["Done."], session_store=store))
            async for _ in run.events():
                break
            follower = follow(FileSessionStore(folder, read_only=True), run.session_id, until_result=True)
            events = [event async for event in follower]
            self.assertEqual(events, store.read_events(run.session_id))

    async def test_a_follower_starts_after_a_position(self):
        options = options_for(["Done."])
        run = submit("go", options)
        await run.wait()
        events = [e async for e in follow(options.session_store, run.session_id, after_seq=3, until_result=True)]
        self.assertEqual(events[0].seq, 4)


if __name__ == "__main__":
    unittest.main()
