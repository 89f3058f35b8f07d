"""Runs whose disk fails: they stop before the next effect with an error, and the session resumes once there is room."""

import asyncio
import contextlib
import json
import tempfile
import unittest

from openagentic_sdk.api import run
from openagentic_sdk.errors import StorageError
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.parts.record.folds.audit import find_mismatches
from openagentic_sdk.sessions.core import SessionWriter
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.rebuild import rebuild_messages
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing.faults import ERRORS, WRITE_FAULTS, FaultyOS
from openagentic_sdk.testing.validity import find_fault
from openagentic_sdk.tools.function import tool
from tests.size import IN_MEMORY, LARGE, full_size

from .support import assert_closed, events_of, options_for, result_of

FAULTS = (*ERRORS, *WRITE_FAULTS) if LARGE else ("EIO", "ENOSPC")
TURNS = [{"tool_calls": [{"name": "act", "arguments": {"n": n}}]} for n in range(2)] + ["Done."]


class FullStore(MemorySessionStore):
    """A store that refuses a number of batches, from the n-th on."""

    def __init__(self, first, batches):
        super().__init__()
        self.refused = range(first, first + batches)
        self.batch = 0

    def open_writer(self, session_id):
        return FullWriter(self, super().open_writer(session_id))


class FullWriter(SessionWriter):
    def __init__(self, store, inner):
        self.store, self.inner, self.session_id = store, inner, inner.session_id

    @property
    def last_seq(self):
        return self.inner.last_seq

    def append(self, events):
        self.store.batch += 1
        if self.store.batch in self.store.refused:
            raise StorageError("no space left", session_id=self.session_id)
        return self.inner.append(events)

    def close(self):
        self.inner.close()


class UnheardWriter(FullWriter):
    """A writer that appends and then reports failure, like a server whose response is lost."""

    def append(self, events):
        if self.store.batch + 1 in self.store.refused:
            self.inner.append(events)
        return super().append(events)


class UnheardStore(FullStore):
    def open_writer(self, session_id):
        return UnheardWriter(self, MemorySessionStore.open_writer(self, session_id))


class StorageTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.ran = ran = []

        @tool
        def act(n: int) -> str:
            """Take effect."""
            ran.append(n)
            return f"did {n}"

        self.act = act

    async def test_a_full_disk_ends_the_run_before_its_next_effect_with_a_result_that_names_it(self):
        for batch in range(1, 14):
            self.ran.clear()
            store = FullStore(batch, 10_000)
            events = await events_of("go", options_for(TURNS, tools=[self.act], session_store=store))
            result = result_of(events)
            started = {e.input_sha256 for e in store.read_events(result.session_id) if e.type == "tool.started"}
            self.assertLessEqual(len(self.ran), len(started), "a call ran without a stored start")
            if result.stop_reason != "end":
                self.assertEqual(
                    (result.stop_reason, result.error_type, result.saved), ("error", "StorageError", False)
                )
                self.assertIn("no space left", result.error_message)

    async def test_a_run_that_failed_keeps_its_reason_when_its_end_cannot_be_stored(self):
        hooks = HookEngine(session_end=[HookMatcher("note", hook=lambda payload: HookDecision(action="noted"))])
        for turn, expected in ("Done.", "StorageError"), ({"error": {"message": "gone"}}, "ProviderHTTPError"):
            whole = FullStore(10_000, 0)
            await events_of("go", options_for([turn], session_store=whole, hooks=hooks))
            full = FullStore(whole.batch - 1, 10_000)  # the batch with the hook's event, and the one with the result
            result = result_of(await events_of("go", options_for([turn], session_store=full, hooks=hooks)))
            self.assertEqual((result.stop_reason, result.error_type, result.saved), ("error", expected, False))

    @full_size
    async def test_the_session_continues_when_there_is_room_again(self):
        for batch in range(1, 14):
            store = FullStore(batch, 1)
            first = await run(prompt="go", options=options_for(TURNS, tools=[self.act], session_store=store))
            second = await run(
                prompt="go on",
                options=options_for(["Ok."], tools=[self.act], session_store=store, resume=first.session_id),
            )
            self.assertEqual(second.final_text, "Ok.", (batch, second.error_message))
            assert_closed(self, store, first.session_id)

    @full_size
    async def test_nothing_is_stored_after_a_batch_that_may_be_stored_or_not(self):
        for batch in range(1, 14):
            self.ran.clear()
            store = UnheardStore(batch, 1)
            first = await run(prompt="go", options=options_for(TURNS, tools=[self.act], session_store=store))
            results = [e.tool_use_id for e in store.read_events(first.session_id) if e.type == "tool.result"]
            self.assertEqual(len(results), len(set(results)), (batch, "a call has two results"))
            second = await run(
                prompt="go on",
                options=options_for(["Ok."], tools=[self.act], session_store=store, resume=first.session_id),
            )
            self.assertEqual(second.final_text, "Ok.", (batch, second.error_message))
            assert_closed(self, store, first.session_id)

    async def test_continue_proceeds_unsaved_with_a_notice_at_once_and_in_the_result(self):
        store = FullStore(5, 10_000)
        options = options_for(TURNS, tools=[self.act], session_store=store, on_storage_error="continue")
        events = await events_of("go", options)
        result = result_of(events)
        self.assertEqual((result.stop_reason, result.final_text, result.saved), ("end", "Done.", False))
        self.assertEqual(self.ran, [0, 1])
        notices = [event for event in events if event.type == "system.notice"]
        self.assertEqual([notice.code for notice in notices], ["unsaved"])
        self.assertEqual(len(store.read_events(result.session_id)), 4, "stored events were lost")

    @full_size
    async def test_continue_stores_nothing_behind_an_event_that_was_refused(self):
        for first in range(2, 14):
            store = FullStore(first, 1)
            options = options_for(TURNS, tools=[self.act], session_store=store, on_storage_error="continue")
            events = await events_of("go", options)
            result = result_of(events)
            self.assertEqual((result.stop_reason, result.final_text), ("end", "Done."), first)
            stored = store.read_events(result.session_id)
            shown = [event for event in events if event.seq is not None]
            self.assertEqual(stored, shown, "exactly the events shown before the refusal are stored")
            self.assertEqual(result.saved, stored[-1].type == "result")
            options = options_for(["Ok."], tools=[], session_store=store, resume=result.session_id)
            self.assertEqual((await run(prompt="go on", options=options)).final_text, "Ok.")
            assert_closed(self, store, result.session_id)


class FaultAtEveryOperationTest(unittest.TestCase):
    """A three-turn tool session on a real file whose n-th operation fails, for every n and fault."""

    def play(self, folder, at, fault):
        started = []

        @tool
        def act(n: int) -> str:
            """Take effect."""
            started.append(n)
            return f"did {n}"

        disk = FaultyOS(at=at, fault=fault)
        store = FileSessionStore(folder, disk=disk)
        with contextlib.suppress(StorageError):
            asyncio.run(run(prompt="go", options=options_for(TURNS, tools=[act], session_store=store, session_id="s")))
        return started, disk

    @full_size
    def test_no_acknowledged_event_is_lost_and_the_session_can_continue(self):
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            _, disk = self.play(folder, 0, "EIO")
        operations = len(disk.operations)
        self.assertGreater(operations, 20)
        for row, fault in enumerate(FAULTS):
            # In the small size each operation gets only one of the faults.
            for at in range(1, operations + 1) if LARGE else range(1 + row, operations + 1, len(FAULTS)):
                with self.subTest(fault=fault, at=at), tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
                    started, _ = self.play(folder, at, fault)
                    store = FileSessionStore(folder)
                    if not store.session_exists("s"):
                        self.assertEqual(started, [])
                        continue
                    options = options_for(["Ok."], tools=[], session_store=store, resume="s")
                    result = asyncio.run(run(prompt="go on", options=options))
                    self.assertEqual(result.final_text, "Ok.", result.error_message)
                    self.judge(store, started)

    def judge(self, store, started):
        events = store.read_events("s")
        self.assertEqual([event.seq for event in events], list(range(1, len(events) + 1)))
        self.assertIsNone(find_fault(rebuild_messages(events)))
        self.assertEqual(find_mismatches(events), [])
        stored = [json.loads(e.idempotency_key.split(":")[1].split("_")[1]) for e in events if e.type == "tool.started"]
        self.assertLessEqual(len(started), len(stored), "each effect needs its start in the log")


if __name__ == "__main__":
    unittest.main()
