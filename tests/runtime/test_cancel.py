"""Cancelling a run from outside at any point: the log is closed, the session can be resumed, and nothing is left running."""

import asyncio
import gc
import tempfile
import threading
import unittest
from contextlib import suppress

from openagentic_sdk.api import query, run
from openagentic_sdk.errors import SessionLockedError
from openagentic_sdk.events import UserMessage
from openagentic_sdk.options import AgentDefinition
from openagentic_sdk.runs.turns import Turns
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.tools.base import Tool
from openagentic_sdk.tools.function import tool
from openagentic_sdk.tools.session.task import TaskTool
from tests.looptime import skip_time
from tests.size import LARGE, full_size, sized
from tests.waiting import until, until_async

from .support import assert_closed, options_for


@tool(effect="read")
async def pause(text: str) -> str:
    """Yield to other tasks for a few turns, then answer."""
    for _ in range(4):
        await asyncio.sleep(0)
    return text


@tool
def work(text: str) -> str:
    """Work in a thread."""
    return text


def long_run(store, **changes):
    """A run with streaming, parallel tools, a thread, and a subagent with a tool of its own."""
    turns = [
        {
            "text": "I look at three things.",
            "deltas": 6,
            "tool_calls": [
                {"name": "pause", "arguments": {"text": "a"}},
                {"name": "pause", "arguments": {"text": "b"}},
                {"name": "work", "arguments": {"text": "c"}},
                {"name": "Task", "arguments": {"agent": "helper", "prompt": "help"}},
            ],
        },
        {"agent": "You help", "text": "On it.", "tool_calls": [{"name": "pause", "arguments": {"text": "d"}}]},
        {"agent": "You help", "text": "Helped."},
        {"text": "All done.", "deltas": 4},
    ]
    agents = {"helper": AgentDefinition("helps", "You help", tools=("pause",))}
    tools = [pause, work, TaskTool({"helper": "helps"})]
    return options_for(turns, tools=tools, agents=agents, session_store=store, **changes)


class CancelTest(unittest.IsolatedAsyncioTestCase):
    async def count_events(self):
        return len([event async for event in query(prompt="go", options=long_run(MemorySessionStore()))])

    async def assert_resumable(self, store):
        """Check that every session of the store is closed and that the newest top-level one can be resumed."""
        top = [
            name for name in store.list_sessions() if not store.read_metadata(name)["metadata"].get("parent_session_id")
        ]
        for name in store.list_sessions():
            if store.read_events(name):
                assert_closed(self, store, name)
        if not store.read_events(top[0]):
            return
        result = await run(prompt="and now?", options=options_for(["Still here."], session_store=store, resume=top[0]))
        self.assertEqual(result.final_text, "Still here.")
        assert_closed(self, store, top[0])

    def setUp(self):
        self.before = set(threading.enumerate())  # threads left over from other tests do not count

    def assert_nothing_left(self):
        self.assertEqual([t for t in asyncio.all_tasks() if t is not asyncio.current_task()], [])
        left = set(threading.enumerate()) - self.before
        self.assertEqual([t.name for t in left if t.name.startswith("openagentic")], [])

    @full_size
    async def test_closing_the_generator_after_every_event(self):
        for stop_after in range(1, await self.count_events() + 1, sized(7, 3, 1)):
            with self.subTest(stop_after=stop_after):
                store = MemorySessionStore()
                events = query(prompt="go", options=long_run(store))
                for _ in range(stop_after):
                    await anext(events)
                await events.aclose()
                self.assert_nothing_left()
                await self.assert_resumable(store)

    async def test_a_loop_that_ends_while_a_generator_is_still_referenced_ends_its_run(self):
        held = []

        async def leave_at(stop_after, store):
            held.append(query(prompt="go", options=long_run(store)))
            for _ in range(stop_after):
                await anext(held[-1])

        for stop_after in range(1, await self.count_events() + 1, sized(17, 7, 1)):
            with self.subTest(stop_after=stop_after):
                store = MemorySessionStore()
                # In a thread with a loop of its own; a daemon, because a run that does not end would end no process.
                ending = threading.Thread(target=asyncio.run, args=(leave_at(stop_after, store),), daemon=True)
                ending.start()
                await asyncio.to_thread(ending.join, 60)
                self.assertFalse(ending.is_alive(), "asyncio.run still waits for the run")
                await self.assert_resumable(store)

    @full_size
    async def test_cancelling_the_consumer_at_every_turn_of_the_event_loop(self):
        turns = 0
        # Other threads work for the run: on a busy machine it takes more turns of the loop, so the step between tries grows.
        while turns < 100_000:
            store = MemorySessionStore()
            consumer = asyncio.create_task(self._consume(store))
            for _ in range(turns):
                await asyncio.sleep(0)
            finished = consumer.done()
            consumer.cancel()
            await asyncio.wait({consumer})
            with self.subTest(turns=turns):
                self.assert_nothing_left()
                if store.list_sessions():
                    await self.assert_resumable(store)
            if finished:
                self.assertFalse(consumer.cancelled())
                return
            turns += max(sized(15, 5, 1), turns // sized(10, 20, 400))
        self.fail("the run never finished on its own")

    async def _consume(self, store):
        async for _ in query(prompt="go", options=long_run(store)):
            pass

    async def test_cancelling_again_and_again_changes_nothing(self):
        for turns in range(5, 120, 7 if LARGE else 13):
            store = MemorySessionStore()
            consumer = asyncio.create_task(self._consume(store))
            for _ in range(turns):
                await asyncio.sleep(0)
            while not consumer.done():
                consumer.cancel()
                await asyncio.sleep(0)
            await asyncio.wait({consumer})
            self.assert_nothing_left()
            if store.list_sessions():
                await self.assert_resumable(store)

    async def test_leaving_the_loop_frees_the_session_by_the_time_the_result_is_seen(self):
        store = MemorySessionStore()
        options = options_for(["one"], session_store=store)
        async for event in query(prompt="hi", options=options):
            if event.type == "result":
                break
        again = await run(prompt="more", options=options_for(["two"], session_store=store, resume=event.session_id))
        self.assertEqual(again.final_text, "two")

    async def test_a_caller_that_stops_at_a_call_keeps_it_from_running(self):
        ran = []

        @tool
        def effect() -> str:
            """Record an effect."""
            ran.append(1)
            return "done"

        events = query(
            prompt="hi", options=options_for([{"tool_calls": [{"name": "effect"}]}, "Done."], tools=[effect])
        )
        async for event in events:
            if event.type == "tool.use":
                break
        await events.aclose()
        self.assertEqual(ran, [])

    async def test_a_finished_call_beside_a_cancelled_one_keeps_its_result_whatever_it_is(self):
        returned = asyncio.Event()

        class Odd(Tool):
            name, description, input_schema, effect = "odd", "Return a class.", {"type": "object"}, "read"

            async def run(self, input, ctx):
                returned.set()
                return set

        @tool(effect="read")
        async def forever() -> str:
            """Never return."""
            await returned.wait()
            for _ in range(20):  # let the other call finish first, which takes a few turns
                await asyncio.sleep(0)
            skip_time(60)
            await asyncio.Event().wait()

        calls = {"tool_calls": [{"name": "forever"}, {"name": "odd"}]}
        options = options_for([calls, "never"], tools=[Odd(), forever], timeout_s=60)
        result = await run(prompt="hi", options=options)
        events = assert_closed(self, options.session_store, result.session_id)
        outcomes = [event.outcome for event in events if event.type == "tool.result"]
        self.assertEqual((result.stop_reason, outcomes), ("timeout", ["cancelled", "ok"]))

    async def test_a_cancellation_while_a_long_log_is_read_is_not_a_failure_of_the_store(self):
        class LongLog(MemorySessionStore):
            def iter_events(self, session_id, **where):
                reading.set()
                go_on.wait()
                return super().iter_events(session_id, **where)

        reading, go_on, store = threading.Event(), threading.Event(), LongLog()
        self.addCleanup(go_on.set)
        session_id = store.create_session()
        store.append_event(session_id, UserMessage("hi"))
        skip_time(0)  # before the run asks for the clock
        turns = Turns(options_for(["a"], session_store=store, resume=session_id))
        task = asyncio.create_task(turns.begin("hi"))
        await until_async(reading.is_set, "the log is read")
        task.cancel()
        await asyncio.sleep(0)
        skip_time(60)
        with self.assertRaises(asyncio.CancelledError):
            await task
        go_on.set()

        def is_free():
            with suppress(SessionLockedError):
                store.open_writer(session_id).close()
                return True

        await until_async(is_free, "the session is released when the log was read")

    async def test_a_partial_answer_is_kept_as_an_incomplete_message(self):
        store = MemorySessionStore()
        events = query(prompt="hi", options=options_for([{"text": "one two three", "deltas": 4}], session_store=store))
        async for event in events:
            if event.type == "assistant.delta":
                break
        await events.aclose()
        stored = store.read_events(store.list_sessions()[0])
        partial = next(event for event in stored if event.type == "assistant.message")
        self.assertEqual((partial.text, partial.incomplete), ("one ", True))
        self.assertEqual(stored[-1].stop_reason, "interrupted")


class ClosedLoops(unittest.TestCase):
    """A loop that is closed with an unfinished generator, without `shutdown_asyncgens`."""

    def setUp(self):
        self.store = FileSessionStore(self.enterContext(tempfile.TemporaryDirectory()), "flush")
        self.addCleanup(gc.collect)  # ends the threads of the run, which would outlive the test
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda loop, context: None)  # asyncio reports the tasks that never end
        self.addCleanup(self.loop.close)

    def begin(self):
        """A run that has not ended, in the loop that is not running any more."""
        events = query(prompt="hi", options=options_for(["a"], session_store=self.store))
        first = self.loop.run_until_complete(anext(events))
        return events, first.session_id

    def go_on(self, session_id):
        return asyncio.run(run(prompt="go on", options=options_for(["b"], session_store=self.store, resume=session_id)))

    def test_the_next_run_of_the_process_takes_the_session(self):
        events, session_id = self.begin()
        with self.assertRaisesRegex(SessionLockedError, r"event loop is not running \(close its iterator there"):
            self.go_on(session_id)
        self.loop.close()
        self.assertEqual(self.go_on(session_id).final_text, "b")
        del events

    def test_a_run_with_the_same_session_id_in_another_store_is_not_the_holder(self):
        events, session_id = self.begin()
        other = FileSessionStore(self.enterContext(tempfile.TemporaryDirectory()), "flush")
        other.create_session(session_id=session_id)
        mine, self.store = self.store, other
        with other.open_writer(session_id):
            with self.assertRaises(SessionLockedError) as caught:
                self.go_on(session_id)
            self.assertNotIn("event loop", str(caught.exception))
        self.assertEqual(self.go_on(session_id).final_text, "b")
        # Another object for the same folder is the same store.
        self.store = FileSessionStore(mine.root_dir / ".." / mine.root_dir.name, "flush")
        with self.assertRaisesRegex(SessionLockedError, "event loop is not running"):
            self.go_on(session_id)
        self.loop.close()
        self.assertEqual(self.go_on(session_id).final_text, "b")
        del events

    def test_a_garbage_collected_run_releases_its_session(self):
        events, session_id = self.begin()
        self.loop.close()
        del events
        gc.collect()

        def is_free():
            try:
                self.store.open_writer(session_id).close()
            except SessionLockedError:
                return False
            return True

        until(is_free, "the session is free")


if __name__ == "__main__":
    unittest.main()
