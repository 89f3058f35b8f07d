"""Contract tests: a session has one writer, whoever else tries, hangs or dies."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading

from ...errors import LeaseLostError, SessionError, SessionLockedError, StorageError
from ...events import Event, ToolResult, UserMessage
from .base import StoreTest
from .processes import COUNTING_WRITER, STALLED_WRITER


class Writers(StoreTest):
    """Contract tests: a session has one writer, whoever else tries, hangs or dies."""

    def test_the_second_writer_is_refused_and_changes_nothing(self) -> None:
        session_id = self.filled(1)
        with self.store.open_writer(session_id) as writer:
            self.assert_refused(self.store, session_id)
            self.assert_refused(self.open_or_same(), session_id)
            writer.append([UserMessage("kept")])
        self.store.open_writer(session_id).close()
        self.open_or_same().open_writer(session_id).close()
        self.assertEqual(len(self.store.read_events(session_id)), 2)

    def test_another_process_is_refused_while_a_writer_is_open(self) -> None:
        session_id = self.filled(1)
        holder = self.started(STALLED_WRITER, session_id)
        assert holder.stdout is not None
        self.assertEqual(holder.stdout.readline(), "open\n")
        self.assert_refused(self.store, session_id)

    def test_the_epoch_rises_with_every_writer(self) -> None:
        if not self.can_take_over:
            self.skipTest("the lock of this store belongs to the kernel and needs no epoch")
        session_id = self.filled(1)
        epochs = []
        for opened in (self.store.open_writer, self.open_or_same().open_writer, self.store.take_over):
            with opened(session_id) as writer:
                epochs.append(writer.epoch)
        with self.store.open_writer(session_id) as writer, self.store.take_over(session_id) as second:
            epochs += [writer.epoch, second.epoch]
        self.assertEqual(epochs, sorted(set(epochs)))

    def test_threads_that_share_a_writer_are_served_one_after_the_other(self) -> None:
        session_id = self.store.create_session()
        stored_events: list[Event] = []
        with self.store.open_writer(session_id) as writer:

            def write(number: int) -> None:
                for each in range(10):
                    stored_events.extend(writer.append([UserMessage(f"{number} {each} {part}") for part in "ab"]))

            self.assertEqual(self.at_once(4, write), [])
            self.assertEqual(writer.last_seq, 80)
        self.assertEqual(sorted(event.seq or 0 for event in stored_events), list(range(1, 81)))
        self.assert_batches_whole(session_id, [str(number) for number in range(4)], 10)

    def test_of_threads_that_open_a_session_at_once_one_becomes_its_writer(self) -> None:
        """Hint for a store: these threads share a process, so its id does not distinguish their writers."""
        session_id, open_writers, most = self.store.create_session(), list[int](), list[int]()

        def open_and_write(number: int) -> None:
            for _ in range(10):
                try:
                    with self.store.open_writer(session_id) as writer:
                        open_writers.append(number)
                        writer.append([UserMessage(f"{number}")])
                        most.append(len(open_writers))
                        open_writers.remove(number)
                except SessionLockedError:
                    continue

        self.assertEqual(self.at_once(4, open_and_write), [])
        self.assertEqual(most, [1] * len(most))
        self.assertEqual(len(self.store.read_events(session_id)), len(most))

    def test_a_closed_writer_can_be_closed_again_and_not_be_used(self) -> None:
        """Hint for a store: begin `append` with `sessions.stores.per_process.check_open`, or raise `StorageError`."""
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

    def test_a_holder_that_hangs_cannot_append_after_its_replacement_ended_or_its_session_began_anew(self) -> None:
        if not self.can_take_over:
            self.skipTest("the lock of this store belongs to the kernel and cannot be taken from a living holder")
        name = self.store.create_session(session_id="again")
        stalled, other = self.store.open_writer(name), self.open_or_same()
        other.take_over(name).close()

        def assert_fenced() -> None:
            with self.assertRaises(SessionError):
                stalled.append([UserMessage("from the past")])
            self.assertEqual(other.read_events(name), [])

        assert_fenced()
        other.delete_session(name)
        other.create_session(session_id=name)
        assert_fenced()
        with other.open_writer(name):
            assert_fenced()
            stalled.close()
            with self.assertRaises(SessionLockedError):
                self.store.open_writer(name)

    def test_a_process_that_hangs_cannot_append_after_it_was_replaced(self) -> None:
        if not self.can_take_over:
            self.skipTest("the lock of this store belongs to the kernel and cannot be taken from a living holder")
        session_id = self.filled(1)
        with self.python(self.needs_processes() + STALLED_WRITER, session_id) as process:
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
        script = source + COUNTING_WRITER
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
            self.skipTest("this store does not outlive its object")
        session_id = self.filled(3, metadata={"cwd": "/w"})
        self.store.update_metadata(session_id, {"later": [1]})
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
