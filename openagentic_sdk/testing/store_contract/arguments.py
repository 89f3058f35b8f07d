"""Contract tests: all stores clamp numbers to the same range, and refuse arguments of another type before any change."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...errors import ConcurrencyError, OptionsError, SessionNotFoundError, StorageError
from ...events import SessionMeta, UserMessage
from ...sessions.arguments import MAX_QUERY_CHARS, MAX_QUERY_WORDS
from .base import StoreTest

LARGEST = 2**63 - 1
NO_NUMBERS: tuple[Any, ...] = (True, False, 1.0, 0.5, float("nan"), float("inf"), "1", b"1", [1])
# Numbers out of range, each with the one that it is clamped to.
CUT_NUMBERS = {-1: 0, -(2**70): 0, LARGEST: LARGEST, LARGEST + 1: LARGEST, 10**400: LARGEST}
NO_IDS: tuple[Any, ...] = ("", "\0", "a\0b", "\ud800", "x" * 201, "x" * 1_000_000, None, 5, True, b"a")


class Arguments(StoreTest):
    """Contract tests: all stores clamp numbers to the same range, and refuse arguments of another type."""

    def test_a_range_of_whole_numbers_is_cut_to_what_exists(self) -> None:
        """Hint for a store: use `sessions.arguments.cut_number` and `cut_limit` in `iter_events` before any iteration."""
        store, name = self.store, self.store.create_session()
        for session_id, count in ((name, 3), (store.create_session(), 2)):
            store.append_events(session_id, [UserMessage("an event")] * count)
        calls: dict[str, Callable[[Any], Any]] = {
            "after_seq": lambda number: [event.seq for event in store.read_events(name, after_seq=number)],
            "limit": lambda number: [event.seq for event in store.read_events(name, limit=number)],
            "limit of a list": lambda number: store.list_session_summaries(limit=number),
            "offset": lambda number: store.list_session_summaries(offset=number),
            "offset and limit": lambda number: store.list_session_summaries(offset=number, limit=number),
            "limit of a query": lambda number: store.list_session_summaries(limit=number, query="event"),
            "offset of a query": lambda number: store.list_session_summaries(offset=number, query="event"),
            "limit of a tenant": lambda number: store.list_session_summaries(limit=number, tenant=""),
            "limit of a page": lambda number: store.page_sessions(limit=number).rows,
            "limit of a search": lambda number: store.search("event", limit=number),
            "wait": lambda number: store.wait_for_events(name, after_seq=number, timeout_s=0),
        }
        if store.has_inbox:
            number = store.put_message(name, {"a": 1})
            calls |= {
                "after": lambda number: store.read_messages([name], after=number),
                "messages": lambda number: store.wait_for_news({name: 3}, timeout_s=0, messages_after=number),
                "numbers": lambda number: store.remove_messages([number]),
            }
            store.remove_messages([-1, 2**70])
            self.assertEqual([each.number for each in store.read_messages([name], after=-1)], [number])
        for what, call in calls.items():
            for number in NO_NUMBERS:
                with self.subTest(what, number=number), self.assertRaises(OptionsError):
                    call(number)
            for number, counts_as in CUT_NUMBERS.items():
                with self.subTest(what, number=str(number)[:30]):
                    self.assertEqual(call(number), call(counts_as))
        self.assertEqual([calls["after_seq"](number) for number in (-1, 10**400)], [[1, 2, 3], []])
        self.assertEqual([calls["limit"](number) for number in (-1, 10**400)], [[], [1, 2, 3]])
        for what in ("limit of a list", "limit of a query", "limit of a tenant", "limit of a page"):
            self.assertEqual([len(calls[what](number)) for number in (-1, 0, 1, 10**400)], [0, 0, 1, 2], what)
        for what in ("offset", "offset of a query"):
            self.assertEqual([len(calls[what](number)) for number in (-1, 0, 1, 10**400)], [2, 2, 1, 0], what)
        self.assertEqual([len(calls["limit of a search"](number)) for number in (-1, 1, 10**400)], [0, 1, 5])
        for what in ("limit of a page", "limit of a search", "after_seq", "offset"):
            with self.subTest(what), self.assertRaises(OptionsError):
                calls[what](None)

    def test_a_time_to_wait_is_a_number_of_seconds(self) -> None:
        name = self.filled(1)
        for timeout_s in (-1, -float("inf"), 0):
            self.assertFalse(self.store.wait_for_events(name, after_seq=1, timeout_s=timeout_s))
            self.assertEqual(self.store.wait_for_news({name: 1}, timeout_s=timeout_s), set())
        for timeout_s in (2**70, 10**400, float("inf")):
            self.assertTrue(self.store.wait_for_events(name, after_seq=0, timeout_s=timeout_s))
            self.assertEqual(self.store.wait_for_news({name: 0}, timeout_s=timeout_s), {name})
        for no_time in (True, "1", None, float("nan")):
            wrong: Any = no_time
            with self.subTest(no_time), self.assertRaises(OptionsError):
                self.store.wait_for_events(name, after_seq=1, timeout_s=wrong)
            with self.subTest(no_time), self.assertRaises(OptionsError):
                self.store.wait_for_news({name: 1}, timeout_s=wrong)
        for number in NO_NUMBERS:
            with self.subTest(number), self.assertRaises(OptionsError):
                self.store.wait_for_news({name: number}, timeout_s=0)

    def test_an_expected_position_of_another_kind_is_not_the_expected_one(self) -> None:
        """Hint for a store: in `delete_session`, call `sessions.core.check_expected_seq` under the session's lock."""
        name = self.filled(1)
        for number in (True, 1.0, "1", -1, 2**64):
            with self.subTest(number), self.assertRaises(ConcurrencyError):
                self.store.append_events(name, [UserMessage("lost")], expected_seq=number)  # type: ignore[arg-type]
            with self.subTest(number), self.assertRaises(ConcurrencyError):
                self.store.delete_session(name, expected_seq=number)  # type: ignore[arg-type]
            with self.subTest(number), self.assertRaises(OptionsError):
                at_seq: Any = 2 if number is True else number
                self.store.copy_session(name, "copy", at_seq=at_seq, tail=[], metadata={})
        self.assertEqual((self.store.last_seq(name), self.store.list_sessions()), (1, [name]))

    def test_an_id_that_no_session_can_have_is_not_found(self) -> None:
        """Hint for a store: if `sessions.arguments.is_possible_id` is false, raise `SessionNotFoundError`."""
        self.filled(1)
        for name in NO_IDS:
            calls: tuple[Callable[[Any], object], ...] = (
                self.store.read_events,
                self.store.read_metadata,
                self.store.read_summary,
                self.store.open_writer,
                self.store.delete_session,
                lambda name: self.store.update_metadata(name, {"a": 1}),
                lambda name: self.store.claim_request(name, "request"),
                lambda name: self.store.put_blob(name, b"x"),
            )
            for number, call in enumerate(calls):
                with self.subTest(number, name=str(name)[:20]), self.assertRaises(SessionNotFoundError) as caught:
                    call(name)
                self.assertLess(len(str(caught.exception)), 600)
            self.assertFalse(self.store.session_exists(name))
        name = self.store.list_sessions()[0]
        for digest in ("", "\0", "\ud800", "x" * 64, "../meta.json", "A" * 64, "0" * 65, None, 5, b"0" * 64):
            with self.subTest(digest), self.assertRaises(StorageError) as refused:
                self.store.read_blob(name, digest)  # type: ignore[arg-type]
            str(refused.exception).encode()

    def test_a_query_is_a_string_of_limited_length_and_quick(self) -> None:
        name = self.filled(3)
        self.store.append_event(name, SessionMeta(title="event \0 \ud800", tags=("blue",)))
        checked_calls: tuple[Callable[[Any], object], ...] = (
            self.store.search,
            lambda query: self.store.list_session_summaries(query=query),
            lambda query: self.store.page_sessions(limit=9, query=query),
        )
        for call in checked_calls:
            letters = "abcdefghij"
            words = [a + b + c for a in letters for b in letters for c in letters]
            many = " ".join(words[:MAX_QUERY_WORDS])
            for query in (5, True, b"event", ["event"], "x" * (MAX_QUERY_CHARS + 1), "event " * 200_000, f"{many} k"):
                with self.subTest(str(query)[:20]), self.assertRaises(OptionsError):
                    call(query)
            repeated = "event " * (MAX_QUERY_CHARS // 6)
            for query in (repeated, many, "x" * MAX_QUERY_CHARS, "\0", "\ud800", "%_*\\'\""):
                began = time.monotonic()
                with self.subTest(query[:20]):
                    call(query)
                    self.assertLess(time.monotonic() - began, 30)
        for value in (5, b"x", ["x"]):
            with self.subTest(value), self.assertRaises(OptionsError):
                self.store.list_session_summaries(tenant=value)  # type: ignore[arg-type]
            with self.subTest(value), self.assertRaises(OptionsError):
                self.store.list_session_summaries(cwd=value)  # type: ignore[arg-type]
            with self.subTest(value), self.assertRaises(OptionsError):
                self.store.ids_beginning(value)  # type: ignore[arg-type]
            with self.subTest(value), self.assertRaises(OptionsError):
                self.store.claim_request(name, value)  # type: ignore[arg-type]
