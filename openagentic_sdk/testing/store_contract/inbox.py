"""Contract tests: waiters learn of new events in many sessions, and of messages for the process that runs a session."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from ...errors import InvalidEventError, OptionsError, SessionNotFoundError, StorageError
from ...events import ToolResult, UserMessage
from ...sessions.inbox import MAX_MESSAGE_BYTES, MAX_WAITING
from .base import StoreTest
from .processes import PUTTING_MESSAGES

MESSAGES = 40


class Inbox(StoreTest):
    """Contract tests: waiters learn of new events in many sessions, and of messages for the process that runs a session."""

    def needs_inbox(self) -> None:
        if not self.store.has_inbox:
            self.skipTest("this store has no inbox")

    def payloads(self, *session_ids: str, after: int = 0) -> list[Any]:
        return [message.message for message in self.store.read_messages(session_ids, after=after)]

    def test_a_store_without_an_inbox_says_so(self) -> None:
        if self.store.has_inbox:
            self.skipTest("this store has an inbox")
        session_id = self.store.create_session()
        for call in (
            lambda: self.store.put_message(session_id, {}),
            lambda: self.store.read_messages([session_id]),
            lambda: self.store.remove_messages([1]),
        ):
            with self.assertRaisesRegex(OptionsError, "inbox"):
                call()

    def test_a_message_waits_until_it_is_removed_whoever_put_it_while_a_run_holds_the_session(self) -> None:
        self.needs_inbox()
        session_id, other = self.filled(1), self.open_or_same()
        with self.store.open_writer(session_id) as writer:
            numbers = [other.put_message(session_id, {"text": text}) for text in ("one", "two", "three")]
            self.assertEqual(numbers, sorted(set(numbers)))
            messages = self.store.read_messages([session_id])
            self.assertEqual([(each.number, each.session_id) for each in messages], [(n, session_id) for n in numbers])
            self.assertEqual(self.store.read_messages([session_id]), messages)
            writer.append([UserMessage("one")])
            self.store.remove_messages([numbers[0], numbers[0], 10**9])
            self.store.remove_messages([])
        self.assertEqual(self.payloads(session_id), [{"text": "two"}, {"text": "three"}])
        self.assertEqual(self.payloads(session_id, after=numbers[1]), [{"text": "three"}])
        self.store.remove_messages(numbers[2:])
        self.assertEqual(self.payloads(session_id), [{"text": "two"}], "only the named ones are removed")
        self.assertEqual([event.seq for event in self.store.read_events(session_id)], [1, 2])
        self.store.remove_messages(numbers)
        self.assertEqual(self.payloads(session_id), [])
        self.assertGreater(self.store.put_message(session_id, {}), numbers[-1])

    def test_messages_of_many_sessions_are_read_together_and_of_no_other(self) -> None:
        self.needs_inbox()
        names = [self.store.create_session(session_id=name) for name in ("a", "b", "c")]
        for number in range(6):
            self.store.put_message(names[number % 3], {"n": number})
        self.assertEqual(
            [each["n"] for each in self.payloads("c", "a", "never", "lone \ud800", "nul \0")], [0, 2, 3, 5]
        )
        self.assertEqual((self.payloads(), self.payloads("never")), ([], []))
        many = [f"never-{number}" for number in range(1200)]
        self.assertEqual([each["n"] for each in self.payloads(*many, "b")], [1, 4])

    def test_a_message_comes_back_as_it_was_put_or_is_refused_whole(self) -> None:
        self.needs_inbox()
        session_id = self.store.create_session()
        messages: list[Any] = [
            {"text": "a\0b \ud800 \u2028 日本", "deep": [{"n": 2**63 + 1, "f": 0.1}], "none": None},
            {},
            {},
        ]
        messages.append({"text": "x" * (MAX_MESSAGE_BYTES - 20)})
        for message in messages:
            self.store.put_message(session_id, message)
        refused: list[Any] = [{"f": float("nan")}, {"o": object()}, ["list"], "text", {"text": "x" * MAX_MESSAGE_BYTES}]
        for message in refused:
            with self.assertRaises(InvalidEventError):
                self.store.put_message(session_id, message)
        self.assertEqual(self.payloads(session_id), messages)
        for changed_later in (messages[0], self.payloads(session_id)[0]):
            changed_later["deep"].append("changed later")
        self.assertEqual(self.payloads(session_id)[0], {**messages[0], "deep": messages[0]["deep"][:1]})
        with self.assertRaises(SessionNotFoundError):
            self.store.put_message("never", {})

    def test_messages_go_with_their_session_and_no_copy_has_them(self) -> None:
        self.needs_inbox()
        session_id = self.filled(1)
        self.store.put_message(session_id, {"for": "the old one"})
        self.store.copy_session(session_id, "copy", at_seq=1, tail=[], metadata={})
        self.assertEqual(self.payloads("copy"), [])
        self.store.delete_session(session_id)
        self.assertEqual(self.payloads(session_id), [])
        self.store.create_session(session_id=session_id)
        self.assertEqual(self.payloads(session_id), [])

    def test_a_session_that_nobody_reads_takes_no_endless_number_of_messages(self) -> None:
        self.needs_inbox()
        session_id, other = self.store.create_session(), self.store.create_session()
        numbers = [self.store.put_message(session_id, {"n": number}) for number in range(MAX_WAITING)]
        with self.assertRaises(StorageError):
            self.store.put_message(session_id, {"n": "too many"})
        self.store.put_message(other, {})
        self.store.remove_messages(numbers[:1])
        self.store.put_message(session_id, {"n": "last"})
        self.assertEqual([each["n"] for each in self.payloads(session_id)], [*range(1, MAX_WAITING), "last"])

    def test_a_reader_with_a_cursor_misses_no_message_of_many_who_put_at_once(self) -> None:
        self.needs_inbox()
        names = [self.store.create_session(session_id=name) for name in ("a", "b", "c")]
        stores = [self.open_or_same() for _ in names]

        def put(number: int) -> None:
            for count in range(MESSAGES):
                stores[number].put_message(names[number], {"n": count})

        failures: list[BaseException] = []
        putting = threading.Thread(target=lambda: failures.extend(self.at_once(len(names), put)))
        putting.start()
        numbers: dict[str, list[int]] = {name: [] for name in names}
        after, is_over = 0, False
        while not is_over:
            is_over = not putting.is_alive()
            for each in self.store.read_messages(names, after=after):
                after = each.number
                numbers[each.session_id].append(each.message["n"])
        putting.join()
        self.assertEqual((failures, numbers), ([], {name: list(range(MESSAGES)) for name in names}))

    def test_a_message_of_another_process_is_there_although_it_was_killed(self) -> None:
        self.needs_inbox()
        session_id = self.store.create_session()
        process = self.started(PUTTING_MESSAGES, session_id)
        self.assertEqual(self.tell(process, "7"), "done")
        process.kill()
        self.assertEqual(self.payloads(session_id), [{"n": 7}])

    def awaited(
        self, change: Callable[[], object], known: dict[str, int], messages_after: int | None = None
    ) -> set[str]:
        """Make a change while a waiter is waiting; return the ids of the sessions with news for it."""
        results: list[set[str]] = []
        wait = functools.partial(self.store.wait_for_news, known, timeout_s=30, messages_after=messages_after)
        waiting = threading.Thread(target=lambda: results.append(wait()))
        waiting.start()
        change()
        waiting.join()
        return results[0]

    def test_who_follows_many_sessions_learns_which_have_news(self) -> None:
        other, last_seqs = self.open_or_same(), {self.filled(2): 2 for _ in range(5)}
        first, second, *_ = last_seqs
        wait = self.store.wait_for_news
        self.assertEqual(
            (wait(last_seqs, timeout_s=0), wait(last_seqs, timeout_s=0.05), wait({}, timeout_s=0)), (set(),) * 3
        )
        for number in range(3, 6):
            news = self.awaited(lambda: other.append_event(first, UserMessage("more")), last_seqs)
            self.assertEqual(news, {first})
            self.assertEqual(self.store.last_seq(first), number)
            last_seqs[first] = number
        other.append_events(first, [ToolResult("c")] * 2)
        other.append_event(second, ToolResult("c"))
        ends = {first: 7, second: 3}
        news = wait(last_seqs, timeout_s=30)
        last_seqs.update({name: ends.get(name, 0) for name in news})
        if news != set(ends):  # the wait ends as soon as one of the two has news
            news |= wait(last_seqs, timeout_s=30)
        self.assertEqual(news, set(ends))
        last_seqs.update(ends)
        self.assertEqual(wait(last_seqs, timeout_s=0), set())
        self.assertEqual(self.awaited(lambda: other.delete_session(second), last_seqs), {second})
        del last_seqs[second]
        for unknown in ("never", "lone \ud800"):
            self.assertEqual(wait({**last_seqs, unknown: 0}, timeout_s=30), {unknown})

    def test_who_begins_to_follow_is_told_of_all_that_have_news(self) -> None:
        quiet, with_event, with_message, gone, ahead = (self.filled(2) for _ in range(5))
        last_seqs = {quiet: 2, with_event: 2, with_message: 2, gone: 2, ahead: 3, "never": 0}
        self.store.append_event(with_event, UserMessage("more"))
        self.store.delete_session(gone)
        self.store.update_metadata(quiet, {"title": "no event"})
        self.store.put_blob(quiet, b"no event")
        expected, messages_after = {with_event, gone, "never"}, None
        if self.store.has_inbox:
            self.store.put_message(with_message, {})
            expected.add(with_message)
            messages_after = 0
        news = self.store.wait_for_news(last_seqs, timeout_s=30, messages_after=messages_after)
        self.assertEqual(news, expected)
        self.assertEqual(self.store.wait_for_news({quiet: 2, ahead: 3}, timeout_s=0.05), set())

    def test_a_message_wakes_who_waits_for_messages_until_it_is_taken(self) -> None:
        self.needs_inbox()
        wait, other, never = self.store.wait_for_news, self.open_or_same(), 2**62
        last_seqs = {self.filled(1): never, self.filled(1): never}
        session_id = next(iter(last_seqs))
        self.assertEqual(wait(last_seqs, timeout_s=0, messages_after=0), set())
        number = 0
        for _ in range(3):
            news = self.awaited(lambda: other.put_message(session_id, {}), last_seqs, number)
            self.assertEqual(news, {session_id})
            number = self.store.read_messages(last_seqs, after=number)[-1].number
            self.assertEqual(wait(last_seqs, timeout_s=0.05, messages_after=number), set())
        self.assertEqual(wait(last_seqs, timeout_s=0.05), set())
        self.assertEqual(wait(last_seqs, timeout_s=30, messages_after=number - 1), {session_id})
