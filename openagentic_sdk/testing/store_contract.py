"""What every session store must do, as test cases: subclass `StoreContract`, say how to make a store, run it with unittest.

    class MyStoreTest(store_contract.StoreContract):
        def make_store(self):
            return MyStore(self.place)

The cases only use what `SessionStore` promises, so they fit any backend. Import the module, not the class, or unittest runs
the abstract class too.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
import tempfile
import threading
import unittest
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import (
    ConcurrencyError,
    InvalidEventError,
    LeaseLostError,
    OptionsError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from ..events import (
    AssistantMessage,
    Event,
    ModelResponse,
    Result,
    SessionForked,
    SessionMeta,
    SystemInit,
    ToolResult,
    ToolUse,
    UnknownEvent,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from ..sessions.base import SessionStore
from ..sessions.folds.summary import fold_session_summary, start_summary

# Each id must be kept apart from all others, or be refused when a session of that name is created.
HOSTILE_IDS = (
    *(
        "a",
        "ab",
        "a.b",
        "A",
        "a/b",
        "a:b",
        "a%2Fb",
        "..",
        ".",
        "../a",
        "/a",
        "C:\\a",
        "con",
        "a b",
        "a'b",
        'a"b',
        "a;--",
    ),
    *(
        "__sessions",
        "__subkeys",
        "{a}",
        "*",
        "a*",
        "a?",
        "ä",
        "a\u0308",
        "\N{PILE OF POO}",
        "a\u202eb",
        "a\x00b",
        "\ud800",
    ),
    *(" ", "", "a\n", "x" * 200, "x" * 5000, "-", "-rf", "~", "$HOME", "null", "0", "sqlite_sequence"),
)
HOSTILE_TEXTS = (
    *("", "\x00", "a\x00b\x00", "\u2028\u2029\u0085", "\r\n\t\x0b\x0c", "\ud800", "\udfff x \ud83d", "\N{PILE OF POO}"),
    *("\\u0000", "\\", '"', "\x7f\x80\x9f", "\ufeff", "\uffff", "%s{}$1?:name", "x" * 1_000_000),
)
HOSTILE_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -0.0, 0.1, 1e308, 5e-324, 2**63 + 1, -(2**64), 10**300, [], {}, [[]], {"": None}),
    {"a\x00": ["\ud800", {"\u2028": [1, 2.5, None]}], "__proto__": {}, "seq": 7, "type": "result"},
)
_CRASHING_WRITER = """
import sys
from openagentic_sdk.events import ToolResult
writer = store.open_writer(sys.argv[1])
print("open", flush=True)
number = writer.last_seq
while True:
    batch = [ToolResult(f"call-{number + i}", output="x" * 2000) for i in range(1 + number % 3)]
    number = writer.append(batch)[-1].seq
    print(number, flush=True)
"""
_STALLED_WRITER = """
import sys
from openagentic_sdk.errors import LeaseLostError
from openagentic_sdk.events import UserMessage
writer = store.open_writer(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
try:
    writer.append([UserMessage("from the past")])
except LeaseLostError:
    print("fenced", flush=True)
"""
_COUNTING_WRITER = """
import sys
from openagentic_sdk.errors import SessionLockedError
from openagentic_sdk.events import UserMessage
done = 0
while done < int(sys.argv[3]):
    try:
        store.append_events(sys.argv[1], [UserMessage(f"{sys.argv[2]} {done} a"), UserMessage(f"{sys.argv[2]} {done} b")])
        done += 1
    except SessionLockedError:
        pass
"""


class StoreContract(unittest.TestCase):
    """The contract. A subclass gives `make_store`, and says in the attributes what its backend cannot do.

    `place` is a folder of the test's own. `make_store` is called again within a test to look at the same sessions from a
    second store object; `process_source` is Python source that binds `store` to a third one in another process.
    """

    place: Path
    keeps_on_close = True
    can_take_over = True

    def make_store(self) -> SessionStore:
        """A store on this test's own, empty place; later calls within the test see the same sessions."""
        raise unittest.SkipTest("StoreContract is abstract: subclass it and give make_store")

    def process_source(self) -> str | None:
        """Python source that binds `store` in a fresh process; None when the backend is not shared with processes."""
        return None

    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory(prefix="store-contract-")
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)
        self.store = self.open_store()

    def open_store(self) -> SessionStore:
        """One more store object on the same place, closed at the end of the test."""
        store = self.make_store()
        self.addCleanup(store.close)
        return store

    # --- creating, reading, deleting ---------------------------------------------------------------------------------

    def test_a_new_session_is_empty_and_knows_what_it_was_created_with(self) -> None:
        session_id = self.store.create_session(metadata={"cwd": "/w", "n": [1, None]})
        known = self.store.read_metadata(session_id)
        self.assertEqual(known["session_id"], session_id)
        self.assertEqual(known["metadata"], {"cwd": "/w", "n": [1, None]})
        self.assertIsInstance(known["created_at"], float)
        self.assertEqual(self.store.read_events(session_id), [])
        self.assertEqual(self.store.last_seq(session_id), 0)
        self.assertTrue(self.store.session_exists(session_id))

    def test_an_id_can_be_chosen_once(self) -> None:
        self.assertEqual(self.store.create_session(session_id="mine"), "mine")
        self.store.append_event("mine", UserMessage("hi"))
        with self.assertRaises(SessionExistsError):
            self.store.create_session(session_id="mine")
        self.assertEqual(len(self.store.read_events("mine")), 1)

    def test_every_call_says_when_there_is_no_such_session(self) -> None:
        calls: tuple[Callable[[], object], ...] = (
            lambda: self.store.read_events("nobody"),
            lambda: self.store.open_writer("nobody"),
            lambda: self.store.append_event("nobody", UserMessage("hi")),
            lambda: self.store.append_events("nobody", [], expected_seq=0),
            lambda: self.store.read_metadata("nobody"),
            lambda: self.store.update_metadata("nobody", {"a": 1}),
            lambda: self.store.read_summary("nobody"),
            lambda: self.store.last_seq("nobody"),
            lambda: self.store.delete_session("nobody"),
            lambda: self.store.put_blob("nobody", b"x"),
            lambda: self.store.read_blob("nobody", "0" * 64),
            lambda: self.store.list_blobs("nobody"),
        )
        for number, call in enumerate(calls):
            with self.subTest(number), self.assertRaises(SessionNotFoundError):
                call()
        self.assertFalse(self.store.session_exists("nobody"))
        self.assertEqual(self.store.list_sessions(), [])

    def test_metadata_changes_key_by_key_and_none_removes(self) -> None:
        session_id = self.store.create_session(metadata={"a": 1, "b": 2})
        self.store.update_metadata(session_id, {"b": None, "c": {"d": "\x00"}})
        self.assertEqual(self.store.read_metadata(session_id)["metadata"], {"a": 1, "c": {"d": "\x00"}})

    def test_metadata_may_hold_any_text(self) -> None:
        for text in HOSTILE_TEXTS:
            session_id = self.store.create_session(metadata={"cwd": text, text: text, "parent_session_id": text})
            self.assertEqual(self.store.read_metadata(session_id)["metadata"][text], text)
            rows = self.store.list_session_summaries(cwd=text) if text else [self.store.read_summary(session_id)]
            self.assertEqual([row.id for row in rows], [session_id])

    def test_a_deleted_session_is_gone_and_its_id_starts_clean(self) -> None:
        self.store.create_session(session_id="again", metadata={"old": True})
        self.store.append_events("again", [UserMessage("old"), SessionMeta(title="old")])
        digest = self.store.put_blob("again", b"old")
        self.store.delete_session("again")
        self.assertFalse(self.store.session_exists("again"))
        self.assertEqual(self.store.list_session_summaries(), [])
        self.store.create_session(session_id="again")
        self.assertEqual(self.store.read_events("again"), [])
        self.assertEqual(self.store.append_event("again", UserMessage("new")).seq, 1)
        self.assertEqual(self.store.read_metadata("again")["metadata"], {})
        self.assertIsNone(self.store.read_summary("again").title)
        with self.assertRaises(StorageError):
            self.store.read_blob("again", digest)

    def test_blobs_come_back_as_they_were_and_belong_to_one_session(self) -> None:
        one, other = self.store.create_session(), self.store.create_session()
        data = bytes(range(256)) * 5000
        digest = self.store.put_blob(one, data)
        self.assertEqual(self.store.put_blob(one, data), digest)
        self.assertEqual(self.store.read_blob(one, digest), data)
        empty = self.store.put_blob(one, b"")
        self.assertEqual(self.store.read_blob(one, empty), b"")
        self.store.append_event(one, ToolResult("c", output={"blobs": [digest, empty]}))
        self.assertEqual(sorted(self.store.list_blobs(one)), sorted([digest, empty]))
        self.assertEqual(self.store.list_blobs(other), [])
        for session_id, sha256 in ((other, digest), (one, "0" * 64), (one, "../meta.json")):
            with self.assertRaises(StorageError):
                self.store.read_blob(session_id, sha256)

    def test_hostile_ids_are_kept_apart_or_refused(self) -> None:
        created = []
        for session_id in HOSTILE_IDS:
            with contextlib.suppress(OptionsError):
                if session_id:
                    created.append(self.store.create_session(session_id=session_id))
        self.assertEqual(len(set(created)), len(created))
        for session_id in created:
            self.store.append_events(session_id, [UserMessage(session_id), SessionMeta(title="t" + session_id)])
            self.store.put_blob(session_id, session_id.encode())
        self.assertEqual(sorted(self.store.list_sessions()), sorted(created))
        for session_id in created:
            self.assertEqual(
                [event.type for event in self.store.read_events(session_id)], ["user.message", "session.meta"]
            )
            self.assertEqual(
                self.store.read_events(session_id)[0], UserMessage(session_id, seq=1, ts=self._ts(session_id))
            )
        self.store.delete_session(created[0])
        self.assertEqual(sorted(self.store.list_sessions()), sorted(created[1:]))

    def test_nothing_outside_of_a_session_can_be_reached_by_a_hostile_id(self) -> None:
        self.store.create_session(session_id="real")
        for session_id in HOSTILE_IDS:
            with self.subTest(session_id[:20]):
                self.assertFalse(self.store.session_exists(session_id))
                with self.assertRaises((SessionNotFoundError, OptionsError)):
                    self.store.read_events(session_id)

    # --- appending ---------------------------------------------------------------------------------------------------

    def test_events_come_back_in_order_numbered_from_one_without_a_hole(self) -> None:
        session_id = self.store.create_session()
        with self.store.open_writer(session_id) as writer:
            self.assertEqual(writer.last_seq, 0)
            stored = (
                writer.append([UserMessage("a")])
                + writer.append([])
                + writer.append([UserMessage("b"), UserMessage("c")])
            )
            self.assertEqual(writer.last_seq, 3)
        stored.append(self.store.append_event(session_id, UserMessage("d")))
        self.assertEqual([event.seq for event in stored], [1, 2, 3, 4])
        self.assertTrue(all(event.ts for event in stored))
        self.assertEqual(self.store.read_events(session_id), stored)
        self.assertEqual(self.store.last_seq(session_id), 4)

    def test_a_part_of_a_log_can_be_read(self) -> None:
        session_id = self.filled(10)
        for after_seq in (0, 1, 5, 9, 10, 11):
            for limit in (None, 0, 1, 3, 100):
                seqs = [event.seq for event in self.store.read_events(session_id, after_seq=after_seq, limit=limit)]
                self.assertEqual(seqs, list(range(after_seq + 1, 11))[:limit], (after_seq, limit))

    def test_an_append_that_expects_another_position_changes_nothing(self) -> None:
        session_id = self.filled(2)
        for expected_seq in (0, 1, 3):
            with self.assertRaises(ConcurrencyError) as caught:
                self.store.append_events(session_id, [UserMessage("lost")], expected_seq=expected_seq)
            self.assertEqual((caught.exception.expected_seq, caught.exception.actual_seq), (expected_seq, 2))
        self.store.append_events(session_id, [UserMessage("kept")], expected_seq=2)
        self.assertEqual([event.seq for event in self.store.read_events(session_id)], [1, 2, 3])

    def test_one_bad_event_keeps_the_whole_batch_out(self) -> None:
        session_id = self.filled(1)
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        unwritable = (float("nan"), float("inf"), object(), {1: "x", "1": b"y"}, deep)
        unreadable: Any = (5, None, ["a"])
        for bad in (*(ToolResult("c", output=value) for value in unwritable), *map(UserMessage, unreadable)):
            batch = [UserMessage("good"), bad, UserMessage("good")]
            with self.assertRaises(InvalidEventError):
                self.store.append_events(session_id, batch)
            with self.store.open_writer(session_id) as writer:
                with self.assertRaises(InvalidEventError):
                    writer.append(batch)
                self.assertEqual(writer.last_seq, 1)
        self.assertEqual(len(self.store.read_events(session_id)), 1)
        self.assertEqual(self.store.read_summary(session_id).turns, 1)
        self.assertEqual(self.store.append_event(session_id, UserMessage("next")).seq, 2)

    def test_changing_what_was_passed_or_returned_changes_nothing_stored(self) -> None:
        session_id = self.store.create_session(metadata=(metadata := {"list": [1]}))
        output: dict[str, Any] = {"list": [1]}
        stored = self.store.append_event(session_id, ToolResult("c", output=output))
        output["list"].append(2)
        metadata["list"].append(2)
        first = self.store.read_events(session_id)[0]
        assert isinstance(first, ToolResult) and isinstance(stored, ToolResult)
        first.output["list"].append(3)
        self.store.read_metadata(session_id)["metadata"]["list"].append(3)
        again = self.store.read_events(session_id)[0]
        assert isinstance(again, ToolResult)
        self.assertEqual(again.output, {"list": [1]})
        self.assertEqual(self.store.read_metadata(session_id)["metadata"], {"list": [1]})

    def test_every_text_and_value_of_json_survives(self) -> None:
        session_id = self.store.create_session()
        events: list[Event] = [UserMessage(text) for text in HOSTILE_TEXTS]
        events += [ToolResult("c", output=value) for value in HOSTILE_VALUES]
        events += [UnknownEvent({"type": "from.the.future", "deep": {"\x00": [None, 2**70]}, "agent_name": "x"})]
        stored = self.store.append_events(session_id, events)
        read = self.open_store().read_events(session_id) if self.keeps_on_close else self.store.read_events(session_id)
        self.assertEqual(read, stored)
        for got, sent in zip(read, events, strict=True):
            if isinstance(got, ToolResult) and isinstance(sent, ToolResult):
                self.assertEqual(repr(got.output), repr(sent.output))

    def test_ten_thousand_events_are_complete_and_in_order(self) -> None:
        session_id = self.store.create_session()
        with self.store.open_writer(session_id) as writer:
            for start in range(0, 10_000, 500):
                writer.append([UserMessage(str(number)) for number in range(start, start + 500)])
        texts = [event.text for event in self.store.iter_events(session_id) if isinstance(event, UserMessage)]
        self.assertEqual(texts, [str(number) for number in range(10_000)])
        self.assertEqual([event.seq for event in self.store.read_events(session_id, after_seq=9_998)], [9_999, 10_000])
        self.assertEqual(self.store.read_summary(session_id).turns, 10_000)

    # --- one writer --------------------------------------------------------------------------------------------------

    def test_the_second_writer_is_refused_and_changes_nothing(self) -> None:
        session_id = self.filled(1)
        with self.store.open_writer(session_id) as writer:
            self.assert_refused(self.store, session_id)
            self.assert_refused(self.open_or_same(), session_id)
            writer.append([UserMessage("kept")])
        self.store.open_writer(session_id).close()
        self.open_or_same().open_writer(session_id).close()
        self.assertEqual(len(self.store.read_events(session_id)), 2)

    def test_a_closed_writer_can_be_closed_again_and_not_be_used(self) -> None:
        session_id = self.filled(1)
        writer = self.store.open_writer(session_id)
        writer.close()
        writer.close()
        with self.assertRaises(StorageError):
            writer.append([UserMessage("late")])
        with self.store.open_writer(session_id) as next_writer:
            writer.close()
            with self.assertRaises(SessionLockedError):
                self.store.open_writer(session_id)
            self.assertEqual(next_writer.last_seq, 1)

    def test_writers_of_different_sessions_do_not_disturb_each_other(self) -> None:
        ids = [self.store.create_session() for _ in range(5)]
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(self.store.open_writer(session_id)) for session_id in ids]
            for number in range(3):
                for writer in writers:
                    writer.append([UserMessage(f"{writer.session_id} {number}")])
        for session_id in ids:
            texts = [event.text for event in self.store.iter_events(session_id) if isinstance(event, UserMessage)]
            self.assertEqual(texts, [f"{session_id} {number}" for number in range(3)])

    def test_a_holder_that_hangs_cannot_append_after_it_was_replaced(self) -> None:
        if not self.can_take_over:
            self.skipTest("the lock of this store belongs to the kernel and cannot be taken from a living holder")
        session_id = self.filled(1)
        stalled = self.store.open_writer(session_id)
        with self.open_or_same().take_over(session_id) as writer:
            for _ in range(2):
                with self.assertRaises(LeaseLostError):
                    stalled.append([UserMessage("from the past")])
            writer.append([UserMessage("kept")])
            stalled.close()
            with self.assertRaises(SessionLockedError):
                self.store.open_writer(session_id)
            writer.append([UserMessage("kept too")])
        with self.assertRaises((LeaseLostError, StorageError)):
            stalled.append([UserMessage("from the past")])
        self.assertEqual([event.seq for event in self.store.read_events(session_id)], [1, 2, 3])
        self.store.open_writer(session_id).close()

    def test_a_process_that_hangs_cannot_append_after_it_was_replaced(self) -> None:
        if not self.can_take_over:
            self.skipTest("the lock of this store belongs to the kernel and cannot be taken from a living holder")
        session_id = self.filled(1)
        with self.python(self.needs_processes() + _STALLED_WRITER, session_id) as process:
            assert process.stdout is not None and process.stdin is not None
            self.assertEqual(process.stdout.readline(), "open\n")
            with self.assertRaises(SessionLockedError):
                self.store.open_writer(session_id)
            with self.store.take_over(session_id) as writer:
                writer.append([UserMessage("kept")])
                output, errors = process.communicate("go on\n", timeout=60)
                self.assertEqual(output, "fenced\n", errors)
        self.assertEqual([event.seq for event in self.store.read_events(session_id)], [1, 2])

    def test_threads_lose_and_double_nothing(self) -> None:
        session_id = self.store.create_session()
        failures: list[BaseException] = []

        def write(name: str) -> None:
            try:
                for number in range(20):
                    self.append_patiently(session_id, [UserMessage(f"{name} {number} {part}") for part in "ab"])
            except BaseException as error:  # noqa: BLE001 - an error of a thread must reach the test
                failures.append(error)

        threads = [threading.Thread(target=write, args=(f"t{index}",)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assert_batches_whole(session_id, [f"t{index}" for index in range(4)], 20)

    def test_two_processes_lose_and_double_nothing(self) -> None:
        source = self.needs_processes()
        session_id = self.store.create_session()
        script = source + _COUNTING_WRITER
        processes = [self.python(script, session_id, name, "30") for name in ("p0", "p1")]
        for process in processes:
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, errors)
        self.assert_batches_whole(session_id, ["p0", "p1"], 30)

    def test_a_killed_writer_leaves_a_prefix_and_is_replaced_at_once(self) -> None:
        source = self.needs_processes()
        session_id = self.store.create_session()
        chance = random.Random(7)
        for _ in range(4):
            acknowledged = self.kill_while_writing(source, session_id, chance.randrange(1, 40))
            with self.open_store().open_writer(session_id) as writer:
                self.assertGreaterEqual(writer.last_seq, acknowledged)
                writer.append([ToolResult("after the crash")])
            seqs = [event.seq for event in self.store.read_events(session_id)]
            self.assertEqual(seqs, list(range(1, len(seqs) + 1)))

    def test_everything_is_there_when_the_store_is_opened_again(self) -> None:
        if not self.keeps_on_close:
            self.skipTest("this store ends with its object")
        session_id = self.filled(3, metadata={"cwd": "/w"})
        digest = self.store.put_blob(session_id, b"blob")
        before = (
            self.store.read_events(session_id),
            self.store.read_metadata(session_id),
            self.store.read_summary(session_id),
        )
        self.store.close()
        again = self.open_store()
        self.assertEqual(
            (again.read_events(session_id), again.read_metadata(session_id), again.read_summary(session_id)), before
        )
        self.assertEqual(again.read_blob(session_id, digest), b"blob")
        self.assertEqual(again.append_event(session_id, UserMessage("more")).seq, 4)
        self.assertEqual(len(self.store.read_events(session_id)), 4)

    def test_a_cancelled_append_is_fully_in_or_fully_out(self) -> None:
        session_id = self.store.create_session()

        async def append_and_cancel(delay_s: float) -> None:
            batch = [UserMessage("x" * 10_000) for _ in range(5)]
            task = asyncio.create_task(asyncio.to_thread(self.append_patiently, session_id, batch))
            await asyncio.sleep(delay_s)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        for delay_s in (0, 0, 0.001, 0.002, 0.005):
            asyncio.run(append_and_cancel(delay_s))
        self.assertEqual(self.store.last_seq(session_id) % 5, 0)
        self.assertEqual(len(self.store.read_events(session_id)) % 5, 0)

    # --- lists and summaries -----------------------------------------------------------------------------------------

    def test_the_session_last_written_to_comes_first(self) -> None:
        ids = [self.store.create_session(session_id=name) for name in ("a", "b", "c")]
        order = list(ids)
        for session_id in ("a", "c", "b", "b", "a"):
            self.distinct_time()
            self.store.append_event(session_id, UserMessage("x"))
            order.remove(session_id)
            order.insert(0, session_id)
        self.assertEqual(self.store.list_sessions(), order)
        self.assertEqual([row.id for row in self.store.list_session_summaries()], order)

    def test_the_order_follows_each_append_also_of_runs_side_by_side(self) -> None:
        with self.store.open_writer(self.filled(1)) as one, self.store.open_writer(self.filled(1)) as other:
            for writer in (one, other, one, other, other, one):
                self.distinct_time()
                writer.append([ToolResult("c")])
                self.assertEqual(self.store.list_sessions()[0], writer.session_id)

    def test_the_summary_is_the_fold_of_the_log_however_it_was_split(self) -> None:
        chance = random.Random(3)
        for _ in range(5):
            session_id = self.store.create_session(metadata={"cwd": "/w", "model": "m0"})
            events = list(EVERY_SUMMARY_EVENT)
            chance.shuffle(events)
            with self.store.open_writer(session_id) as writer:
                while events:
                    size = chance.randrange(1, 5)
                    writer.append(events[:size])
                    del events[:size]
                    self.assertEqual(self.store.read_summary(session_id), self.folded(session_id))
            self.assertEqual(self.row(session_id), self.folded(session_id))

    def test_a_summary_says_what_a_list_shows(self) -> None:
        session_id = self.store.create_session(metadata={"cwd": "/w"})
        self.store.append_events(
            session_id,
            [
                SystemInit(session_id, "/w", "1", model="m1"),
                UserMessage("first\nprompt"),
                ModelResponse(1, 1, usage={"input_tokens": 10, "output_tokens": 5}, cost_usd=0.5),
                AssistantMessage("title: stolen"),
                ToolUse("c", "Bash", {"title": "stolen", "customTitle": "stolen"}),
            ],
        )
        row = self.row(session_id)
        self.assertEqual((row.id, row.cwd, row.model, row.first_prompt), (session_id, "/w", "m1", "first prompt"))
        self.assertEqual((row.events, row.turns, row.tokens, row.cost_usd, row.state), (5, 1, 15, 0.5, "running"))
        self.assertIsNone(row.title)
        self.store.append_event(session_id, UserQuestion("q", "may I?"))
        self.assertEqual(self.row(session_id).state, "waiting")
        self.store.append_events(
            session_id, [UserAnswer("q", "yes"), SessionMeta(title="Mine"), Result("done", session_id, "end")]
        )
        self.assertEqual((self.row(session_id).state, self.row(session_id).title), ("idle", "Mine"))

    def test_the_time_of_the_last_write_rises_with_every_append(self) -> None:
        session_id = self.store.create_session()
        times = [self.store.read_summary(session_id).updated]
        for _ in range(5):
            self.store.append_event(session_id, ToolResult("c"))
            times.append(self.store.read_summary(session_id).updated)
        self.assertEqual(times, sorted(set(times)))
        self.assertGreater(times[0], 1e9)

    def test_lists_can_be_filtered_and_paged(self) -> None:
        for number in range(7):
            session_id = self.store.create_session(
                session_id=f"s{number}", metadata={"cwd": "/even" if number % 2 == 0 else "/odd"}
            )
            self.store.append_event(session_id, UserMessage(f"prompt number {number}"))
            self.distinct_time()
        newest_first = [f"s{number}" for number in range(6, -1, -1)]

        def listed(**how: Any) -> list[str]:
            return [row.id for row in self.store.list_session_summaries(**how)]

        self.assertEqual(listed(), newest_first)
        self.assertEqual(listed(limit=3), newest_first[:3])
        self.assertEqual(listed(limit=3, offset=2), newest_first[2:5])
        self.assertEqual(listed(offset=5), newest_first[5:])
        self.assertEqual(listed(limit=0), [])
        self.assertEqual(listed(limit=5, offset=50), [])
        self.assertEqual(listed(cwd="/odd"), ["s5", "s3", "s1"])
        self.assertEqual(listed(cwd="/odd", limit=1, offset=1), ["s3"])
        self.assertEqual(listed(cwd="/nowhere"), [])
        self.assertEqual(listed(query="NUMBER 4"), ["s4"])
        self.assertEqual(listed(query="prompt", cwd="/even", limit=2), ["s6", "s4"])
        self.assertEqual(listed(query="100%_"), [])

    def test_the_sessions_of_subagents_are_listed_only_when_asked_for(self) -> None:
        parent = self.filled(1)
        metadata = {"parent_session_id": parent, "parent_tool_use_id": "call", "agent_name": "helper"}
        child = self.store.create_session(metadata=metadata)
        other = self.store.create_session()
        self.assertEqual({row.id for row in self.store.list_session_summaries()}, {parent, other})
        rows = {row.id: row for row in self.store.list_session_summaries(include_children=True)}
        self.assertEqual(set(rows), {parent, child, other})
        self.assertEqual((rows[child].parent, rows[child].is_child), (parent, True))
        self.assertEqual(self.store.list_children(parent), [child])
        self.assertEqual(self.store.list_children(other), [])

    def test_pages_stay_whole_while_others_write(self) -> None:
        ids = {self.store.create_session(session_id=f"s{number:02}") for number in range(20)}
        stop = threading.Event()

        def write() -> None:
            store = self.open_or_same()
            # Bounded, for a store that folds whole logs for its rows must come to an end too.
            for session_id in sorted(ids)[:5] * 50:
                if not stop.is_set():
                    store.append_event(session_id, UserMessage("x"))

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for _ in range(10):
                rows = self.store.list_session_summaries()
                self.assertEqual(sorted(row.id for row in rows), sorted(ids))
                self.assertTrue(all(row.events == row.turns and row.error is None for row in rows))
                page = self.store.list_session_summaries(limit=7, offset=3)
                self.assertEqual(len({row.id for row in page}), 7)
        finally:
            stop.set()
            thread.join()

    # --- whole sessions ----------------------------------------------------------------------------------------------

    def test_an_imported_session_keeps_ids_numbers_and_times(self) -> None:
        events = [UserMessage("a", seq=1, ts=11.5), UnknownEvent({"type": "x.y", "z": [1], "seq": 2, "ts": 12.0})]
        if not self.keeps_imported_times():
            self.skipTest("this store uses the derived import, whose times are new")
        self.store.import_session("kept", events, metadata={"cwd": "/w"}, created_at=10.0, blobs=[b"blob"])
        self.assertEqual(self.store.read_events("kept"), events)
        self.assertEqual(self.store.read_metadata("kept")["created_at"], 10.0)
        self.assertEqual(len(self.store.list_blobs("kept")), 1)
        self.assertEqual(self.row("kept"), self.folded("kept"))
        self.assertEqual(self.store.append_event("kept", UserMessage("b")).seq, 3)

    def test_an_import_is_complete_or_absent(self) -> None:
        def failing() -> Iterator[Event]:
            for number in range(1, 1000):
                yield UserMessage("x", seq=number, ts=1.0)
            raise RuntimeError("the source failed")

        wrong: Any = 5
        for events in (
            [UserMessage("a", seq=1), UserMessage("b", seq=3)],
            [UserMessage("a", seq=2)],
            [UserMessage("a")],
            [UserMessage("a", seq=1, ts=1.0), ToolResult("c", output=float("nan"), seq=2, ts=1.0)],
            [UserMessage("a" if number < 256 else wrong, seq=number, ts=1.0) for number in range(1, 300)],
        ):
            with self.assertRaises(InvalidEventError):
                self.store.import_session("half", events)
            self.assertFalse(self.store.session_exists("half"))
        with self.assertRaises(RuntimeError):
            self.store.import_session("half", failing())
        self.assertFalse(self.store.session_exists("half"))
        self.assertEqual(self.store.list_sessions(), [])
        self.store.create_session(session_id="taken")
        with self.assertRaises(SessionExistsError):
            self.store.import_session("taken", [UserMessage("a", seq=1)])
        self.assertEqual(self.store.read_events("taken"), [])

    def test_a_copy_has_the_same_beginning_and_goes_its_own_way(self) -> None:
        source = self.filled(10, metadata={"cwd": "/w"})
        digest = self.store.put_blob(source, b"blob")
        self.store.append_event(source, ToolResult("c", output=f"blob:{digest}"))
        writer = self.store.open_writer(source)
        for at_seq in (0, 4, 11):
            copy = f"copy{at_seq}"
            self.store.copy_session(
                source, copy, at_seq=at_seq, tail=[SessionForked(source, at_seq)], metadata={"cwd": "/w"}
            )
            events = self.store.read_events(copy)
            self.assertEqual([event.seq for event in events], list(range(1, at_seq + 2)))
            self.assertEqual(
                self.without_times(events[:-1]), self.without_times(self.store.read_events(source)[:at_seq])
            )
            self.assertEqual(events[-1].type, "session.forked")
            self.assertEqual(self.row(copy), self.folded(copy))
            self.assertEqual((self.row(copy).parent, self.row(copy).is_child), (source, False))
            self.store.append_event(copy, UserMessage("own way"))
            self.assertEqual(self.row(copy), self.folded(copy))
        self.store.copy_session(source, "moved", at_seq=11, tail=[], metadata={"cwd": "/elsewhere", "model": "m9"})
        self.assertEqual((self.row("moved"), self.row("moved").cwd), (self.folded("moved"), "/elsewhere"))
        self.assertEqual(self.store.read_blob("copy11", digest), b"blob")
        self.assertEqual(len(self.store.read_events(source)), 11)
        with self.assertRaises(SessionExistsError):
            self.store.copy_session(source, "copy4", at_seq=1, tail=[], metadata={})
        writer.close()

    def test_words_are_found_with_session_seq_and_context(self) -> None:
        one, other = self.store.create_session(), self.store.create_session()
        self.store.append_events(
            one, [UserMessage("Please fix the Zebra crossing"), AssistantMessage("Done, naïvely.")]
        )
        self.store.append_events(
            other,
            [
                ToolUse("c", "Grep", {"query": "zebra"}),
                ToolResult("c", output={"lines": ["nothing", "a zebra-striped\nhorse \x00"]}),
            ],
        )
        found = {(hit.session_id, hit.seq) for hit in self.store.search("ZEBRA")}
        self.assertEqual(found, {(one, 1), (other, 1), (other, 2)})
        (hit,) = self.store.search("zebr horse")
        self.assertEqual((hit.session_id, hit.seq, hit.type), (other, 2, "tool.result"))
        self.assertIn("zebra-striped horse", hit.context)
        self.assertEqual([(hit.session_id, hit.seq) for hit in self.store.search("naively")], [(one, 2)])
        self.assertEqual(len(self.store.search("zebra", limit=2)), 2)
        for query in ("", "ebra", '"', "zebra AND NOT", "*", "x OR y", "'; DROP"):
            self.assertEqual(self.store.search(query), [], query)
        self.store.append_event(one, UserMessage("another zebra"))
        self.assertEqual(len(self.store.search("zebra")), 4)
        self.store.delete_session(other)
        self.assertEqual({(hit.session_id, hit.seq) for hit in self.store.search("zebra")}, {(one, 1), (one, 3)})

    def test_a_follower_learns_of_new_events(self) -> None:
        session_id = self.filled(1)
        self.assertTrue(self.store.wait_for_events(session_id, after_seq=0, timeout_s=0))
        self.assertFalse(self.store.wait_for_events(session_id, after_seq=1, timeout_s=0.01))
        writing = self.open_or_same()
        timer = threading.Timer(0.05, lambda: writing.append_event(session_id, UserMessage("news")))
        timer.start()
        self.assertTrue(self.store.wait_for_events(session_id, after_seq=1, timeout_s=10))
        timer.join()

    # --- helpers -----------------------------------------------------------------------------------------------------

    def assert_refused(self, store: SessionStore, session_id: str) -> None:
        """Nobody but the holder can change the session, and everybody can read it."""
        with self.assertRaises(SessionLockedError):
            store.open_writer(session_id)
        with self.assertRaises(SessionLockedError):
            store.append_event(session_id, UserMessage("lost"))
        with self.assertRaises(SessionLockedError):
            store.delete_session(session_id)
        self.assertEqual(len(store.read_events(session_id)), 1)

    def filled(self, count: int, metadata: dict[str, Any] | None = None) -> str:
        """A session with `count` prompts."""
        session_id = self.store.create_session(metadata=metadata)
        self.store.append_events(session_id, [UserMessage(f"prompt {number}") for number in range(1, count + 1)])
        return session_id

    def folded(self, session_id: str) -> Any:
        """The summary as the law says it."""
        known = self.store.read_metadata(session_id)
        start = start_summary(session_id, known["created_at"], known["metadata"])
        return fold_session_summary(start, self.store.read_events(session_id))

    def row(self, session_id: str) -> Any:
        """The session's row in the list, which a single look-up must agree with."""
        rows = [row for row in self.store.list_session_summaries(include_children=True) if row.id == session_id]
        self.assertEqual(rows, [self.store.read_summary(session_id)])
        return rows[0]

    def without_times(self, events: list[Event]) -> list[Event]:
        """The events as they are compared: a store with the derived import gives new times to what it copies."""
        if self.keeps_imported_times():
            return events
        return [UnknownEvent({"type": event.type, "seq": event.seq}) for event in events]

    def keeps_imported_times(self) -> bool:
        """Whether the store imports by itself instead of by the derived way."""
        return type(self.store).import_session is not SessionStore.import_session

    def open_or_same(self) -> SessionStore:
        """A second store object where the backend allows one."""
        return self.open_store() if self.keeps_on_close else self.store

    def append_patiently(self, session_id: str, events: Sequence[Event]) -> None:
        """Append as soon as nobody else holds the session."""
        while True:
            try:
                self.store.append_events(session_id, events)
                return
            except SessionLockedError:
                pass

    def assert_batches_whole(self, session_id: str, names: list[str], count: int) -> None:
        """Each writer's batches are there once, whole and in its order."""
        events = self.store.read_events(session_id)
        self.assertEqual([event.seq for event in events], list(range(1, 2 * count * len(names) + 1)))
        texts = [event.text for event in events if isinstance(event, UserMessage)]
        for first, second in zip(texts[::2], texts[1::2], strict=True):
            self.assertEqual(first[:-1], second[:-1])
        for name in names:
            own = [text for text in texts if text.startswith(f"{name} ")]
            self.assertEqual(own, [f"{name} {number} {part}" for number in range(count) for part in "ab"])
        self.assertEqual(self.store.read_summary(session_id), self.folded(session_id))

    def needs_processes(self) -> str:
        """The source that opens the store elsewhere; skips the test when there is none."""
        source = self.process_source()
        if source is None:
            self.skipTest("this store lives in one process")
        return source

    def python(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        """A Python process that runs `script`."""
        command = [sys.executable, "-c", script, *arguments]
        root = str(Path(__file__).parents[2])
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=root)

    def kill_while_writing(self, source: str, session_id: str, acknowledgements: int) -> int:
        """Kill a writing process after so many acknowledged appends; the last `seq` that it was told is stored."""
        with self.python(source + _CRASHING_WRITER, session_id) as process:
            assert process.stdout is not None and process.stderr is not None
            acknowledged = 0
            try:
                line = process.stdout.readline()
                self.assertEqual(line, "open\n", line or process.stderr.read())
                for _ in range(acknowledgements):
                    acknowledged = int(process.stdout.readline())
            finally:
                process.kill()
            return acknowledged

    def distinct_time(self) -> None:
        """A backend that orders by a clock may need a moment between two writes; others need none."""

    def _ts(self, session_id: str) -> float | None:
        return self.store.read_events(session_id)[0].ts


EVERY_SUMMARY_EVENT: tuple[Event, ...] = (
    SystemInit("s", "/elsewhere", "1", model="m1"),
    UserMessage("first\n\u202eprompt \x1b[31m"),
    UserMessage("x" * 1000),
    UserMessage("by a hook", origin="hook"),
    AssistantMessage("text"),
    ToolUse("c1", "Read", {"file_path": "a"}),
    ToolResult("c1", output="x"),
    ModelResponse(1, 1, usage={"input_tokens": 10, "output_tokens": 5}, cost_usd=0.25),
    ModelResponse(2, 1, usage={"prompt_tokens": 7, "completion_tokens": 1}),
    UserQuestion("q1", "?"),
    UserQuestion("q2", "?"),
    UserAnswer("q1", "yes"),
    SessionMeta(title="A\ntitle"),
    SessionMeta(tags=["x", "y"]),
    Result("", "s", "error"),
    Result("", "s", "waiting"),
    Result("", "s", "end", usage={"input_tokens": 100, "output_tokens": 50}, cost_usd=1.5),
    SystemInit("s", "/w", "1", model="m2"),
    UnknownEvent({"type": "from.the.future"}),
    SessionForked("p", 3),
)
