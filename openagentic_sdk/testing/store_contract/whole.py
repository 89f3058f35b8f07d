"""Contract tests: sessions are imported, copied, searched and followed."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from ...errors import (
    InvalidEventError,
    OpenAgentSdkError,
    SessionError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from ...events import (
    AssistantMessage,
    Event,
    ModelResponse,
    SessionForked,
    SessionMeta,
    ToolResult,
    ToolUse,
    UnknownEvent,
    UserMessage,
)
from ...ground.frozen import changed
from .base import StoreTest
from .processes import APPENDING_ONCE


class WholeSessions(StoreTest):
    """Contract tests: sessions are imported, copied, searched and followed."""

    def test_an_imported_session_keeps_ids_numbers_and_times(self) -> None:
        events = [UserMessage("a", seq=1, ts=11.5), UnknownEvent({"type": "x.y", "z": [1], "seq": 2, "ts": 12.0})]
        if not self.keeps_imported_times():
            self.skipTest("this store uses the default import, which assigns new times")
        self.store.import_session("kept", events, metadata={"cwd": "/w"}, created_at=10.0, blobs=[b"blob"])
        self.assertEqual(self.store.read_events("kept"), events)
        self.assertEqual(self.store.read_metadata("kept")["created_at"], 10.0)
        self.assertEqual(len(self.store.list_blobs("kept")), 1)
        self.assertEqual(self.row("kept"), self.folded("kept"))
        self.assertEqual(self.store.append_event("kept", UserMessage("b")).seq, 3)
        self.store.import_session("other", events, created_at=0.0)
        meta = self.store.read_metadata("other")
        self.assertEqual((meta["metadata"], meta["created_at"], self.store.list_blobs("other")), ({}, 0.0, []))

    def test_imports_and_copies_of_copies_are_whole_even_when_their_sources_are_gone(self) -> None:
        digests = {hashlib.sha256(data).hexdigest(): data for data in (b"one", b"two")}
        texts = [*(f"word{number}" for number in range(700)), " ".join(digests)]
        events = [UserMessage(text, seq=seq, ts=seq + 0.123456) for seq, text in enumerate(texts, start=1)]
        blobs, created_at = digests.values(), 1.123456789
        self.store.import_session("source", events, metadata={"n": 2**63}, created_at=created_at, blobs=blobs)
        self.assertEqual(self.without_times(self.store.read_events("source")), self.without_times(events))
        meta = self.store.read_metadata("source")
        self.assertEqual((self.store.last_seq("source"), meta["metadata"]), (701, {"n": 2**63}))
        self.assertTrue(not self.keeps_imported_times() or meta["created_at"] == created_at)
        self.assertEqual([hit.seq for hit in self.store.search("word699")], [700])
        tail = [UserMessage("tail one"), UserMessage("tail two")]
        for source, target, at_seq in (("source", "first", 701), ("first", "second", 702), ("second", "third", 650)):
            self.store.copy_session(source, target, at_seq=at_seq, tail=tail, metadata={})
            self.assertIn(target, [hit.session_id for hit in self.store.search("word649")], "found at once")
            self.assertGreater(
                self.store.read_metadata(target)["created_at"], 1e9, "the time of a copy is the time of copying"
            )
        for name in ("first", "source"):
            self.store.delete_session(name)
        for name, head in (("second", [*texts, "tail one"]), ("third", texts[:650])):
            copied = [event.text for event in self.store.iter_events(name) if isinstance(event, UserMessage)]
            self.assertEqual(copied, [*head, "tail one", "tail two"])
            self.assertEqual(self.row(name), self.folded(name))
        self.assertEqual({digest: self.store.read_blob("second", digest) for digest in digests}, digests)

    def test_an_import_is_complete_or_absent(self) -> None:
        """Hint for a store: encode all events, with `sessions.log.line.dumps_stored`, before storing the first."""

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

    def test_a_copy_keeps_its_blobs_and_metadata_when_its_source_is_gone(self) -> None:
        source = self.filled(2, metadata={"cwd": "/w", "of": "source"})
        digest = self.store.put_blob(source, b"blob")
        self.store.append_event(source, ToolResult("c", output=f"blob:{digest}"))
        self.store.copy_session(source, "copy", at_seq=3, tail=[], metadata={"cwd": "/w", "of": "copy"})
        events = self.store.read_events("copy")
        self.store.delete_session(source)
        self.assertEqual(self.store.read_blob("copy", digest), b"blob")
        self.assertEqual(self.store.list_blobs("copy"), [digest])
        self.assertEqual(self.store.read_metadata("copy")["metadata"], {"cwd": "/w", "of": "copy"})
        self.assertEqual(self.store.read_events("copy"), events)
        self.assertEqual(self.open_or_same().read_events("copy"), events)

    def test_a_copy_that_is_deleted_takes_nothing_of_its_source_along(self) -> None:
        source = self.filled(2, metadata={"cwd": "/w", "tags": ["of the source"], "tenant": "acme"})
        digest = self.store.put_blob(source, b"blob")
        self.store.append_event(source, ToolResult("c", output=f"blob:{digest}"))
        events = self.store.read_events(source)
        self.store.copy_session(source, "copy", at_seq=3, tail=[], metadata={})
        self.assertEqual(self.store.read_metadata("copy")["metadata"], {})
        row = self.store.read_summary("copy")
        self.assertEqual((row.tags, row.tenant, row.cwd), ((), None, None))
        self.store.delete_session("copy")
        self.assertEqual(self.store.read_blob(source, digest), b"blob")
        self.assertEqual((self.store.list_blobs(source), self.store.read_events(source)), ([digest], events))

    def test_what_comes_to_a_copy_later_does_not_reach_its_source_nor_the_other_way(self) -> None:
        source = self.filled(1, metadata={"cwd": "/w"})
        self.store.copy_session(source, "copy", at_seq=1, tail=[], metadata={"cwd": "/w"})
        of_copy, of_source = self.store.put_blob("copy", b"of the copy"), self.store.put_blob(source, b"of the source")
        for session_id, digest in (source, of_copy), ("copy", of_source):
            with self.assertRaises(StorageError):
                self.store.read_blob(session_id, digest)
        self.store.append_events(source, [UserMessage("of the source"), SessionMeta(title="source")])
        self.assertEqual([event.seq for event in self.store.read_events("copy")], [1])
        self.store.append_event("copy", SessionMeta(title="copy"))
        rows = [(row.title, row.events, row.turns) for row in map(self.row, (source, "copy"))]
        self.assertEqual(rows, [("source", 3, 2), ("copy", 2, 1)])
        self.store.update_metadata("copy", {"of": "the copy"})
        self.store.update_metadata(source, {"in": "the source"})
        self.assertEqual(self.store.read_metadata(source)["metadata"], {"cwd": "/w", "in": "the source"})
        self.assertEqual(self.store.read_metadata("copy")["metadata"], {"cwd": "/w", "of": "the copy"})

    def test_a_copy_of_what_is_not_there_makes_nothing(self) -> None:
        source = self.filled(3)
        for at_seq in (4, 100, -1):
            with self.assertRaises(OpenAgentSdkError):
                self.store.copy_session(source, "copy", at_seq=at_seq, tail=[UserMessage("tail")], metadata={})
            self.assertFalse(self.store.session_exists("copy"))
        with self.assertRaises(SessionNotFoundError):
            self.store.copy_session("nobody", "copy", at_seq=0, tail=[], metadata={})
        self.assertEqual(self.store.list_sessions(), [source])

    def test_a_read_of_a_session_that_is_deleted_meanwhile_fails_or_is_whole(self) -> None:
        """Hint for a store: raise `SessionNotFoundError` in `iter_events` if the session disappears during a read."""
        session_id = self.filled(1500)
        events = self.store.iter_events(session_id)
        events_read = [next(events)]
        self.open_or_same().delete_session(session_id)
        try:
            events_read.extend(events)
        except SessionError:
            return
        self.assertEqual(len(events_read), 1500)

    def test_a_copy_of_a_session_that_is_deleted_meanwhile_is_whole_or_absent(self) -> None:
        """Hint for a store: raise `SessionNotFoundError` in `iter_events` if the session disappears during a read."""
        other = self.open_or_same()
        for number in range(5):
            source, target = f"source{number}", f"target{number}"
            self.store.create_session(session_id=source)
            self.store.append_events(source, [UserMessage("x" * 100)] * 300)

            def work(thread: int, source: str = source, target: str = target) -> None:
                if thread == 0:
                    with contextlib.suppress(SessionError):
                        self.store.copy_session(source, target, at_seq=300, tail=[], metadata={})
                # No deletion in the first round.
                while thread == 1 and source != "source0" and other.session_exists(source):
                    with contextlib.suppress(SessionLockedError):
                        other.delete_session(source)

            self.assertEqual(self.at_once(2, work), [])
            if self.store.session_exists(target):
                self.assertEqual(len(self.store.read_events(target)), 300)
                self.assertEqual(self.row(target), self.folded(target))

    def test_a_follower_learns_of_what_another_process_appends(self) -> None:
        self.needs_processes()
        session_id = self.filled(1)
        writer = self.started(APPENDING_ONCE, session_id)
        for seq in (1, 2, 3):
            answers: list[bool] = []
            wait = functools.partial(self.store.wait_for_events, session_id, after_seq=seq, timeout_s=30)
            follower = threading.Thread(target=lambda wait=wait, answers=answers: answers.append(wait()))
            follower.start()
            self.assertEqual(self.tell(writer, "news"), "done")
            follower.join()
            self.assertEqual((answers, self.store.last_seq(session_id)), ([True], seq + 1))
        self.assertFalse(self.store.wait_for_events(session_id, after_seq=4, timeout_s=0))

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
        hits = {(hit.session_id, hit.seq) for hit in self.store.search("ZEBRA")}
        self.assertEqual(hits, {(one, 1), (other, 1), (other, 2)})
        (hit,) = self.store.search("zebr horse")
        self.assertEqual((hit.session_id, hit.seq, hit.type), (other, 2, "tool.result"))
        self.assertIn("zebra-striped horse", hit.context)
        self.assertEqual([(hit.session_id, hit.seq) for hit in self.store.search("naively")], [(one, 2)])
        self.assertEqual([len(self.store.search("zebra", limit=limit)) for limit in (2, 0)], [2, 0])
        for query in ("", "ebra", '"', "zebra AND NOT", "*", "x OR y", "'; DROP"):
            self.assertEqual(self.store.search(query), [], query)
        third = self.store.create_session()
        self.store.append_events(third, [UserMessage("x " * 10_000 + "ПРИВЕТ Ärger"), *[UserMessage("often")] * 60])
        for query in ("привет", "Привет", "ÄRGER", "arger", "a\u0308rger"):
            self.assertEqual([hit.seq for hit in self.store.search(query)], [1], query)
        self.assertEqual(sorted(hit.seq for hit in self.store.search("often", limit=100)), list(range(2, 62)))
        self.store.append_event(one, UserMessage("another zebra"))
        self.assertEqual(len(self.store.search("zebra")), 4)
        self.store.delete_session(other)
        self.assertEqual({(hit.session_id, hit.seq) for hit in self.store.search("zebra")}, {(one, 1), (one, 3)})

    def test_events_that_are_replaced_are_gone_from_all_that_can_be_read(self) -> None:
        session_id = self.filled(1)
        self.store.create_session(session_id="other")
        self.store.claim_request(session_id, "claimed")
        self.store.append_events(session_id, [SessionMeta(title="replaced title"), UserMessage("a replacedword")])
        digests = [self.store.put_blob(session_id, data) for data in (b"gone", b"kept")]
        self.assertEqual([hit.seq for hit in self.store.search("replacedword")], [3])
        before = self.store.read_events(session_id)
        new = {2: changed(before[1], title="other title"), 3: changed(before[2], text="another one")}
        try:
            self.store.rewrite_events(session_id, lambda events: new if list(events) == before else {})
        except StorageError:
            self.skipTest("this store cannot replace events")
        self.store.append_event(session_id, ToolResult("c", output=[f"blob:{digest}" for digest in digests]))
        self.store.copy_session(session_id, "copy", at_seq=4, tail=[], metadata={})
        missing_digests = [f"{number:064x}" for number in range(9_000)]  # more than one command of a database accepts
        self.store.delete_blobs(session_id, [*digests[:1], *missing_digests])
        self.assertEqual(self.store.read_blob("copy", digests[0]), b"gone")
        self.store.delete_session("copy")
        for store in (self.store, self.open_or_same()):
            self.assertEqual(store.read_events(session_id, limit=3), [before[0], new[2], new[3]])
            self.assertEqual([hit.seq for hit in store.search("replacedword")], [])
            self.assertEqual([hit.seq for hit in store.search("another one")], [3])
            self.assertEqual(store.list_session_summaries(query="replaced"), [])
            self.assertEqual(store.read_summary(session_id).title, "other title")
            with self.assertRaises(StorageError):
                store.read_blob(session_id, digests[0])
            self.assertEqual(store.read_blob(session_id, digests[1]), b"kept")
        self.assertEqual(self.row(session_id), self.folded(session_id))
        self.assertEqual(self.store.claim_request("other", "claimed"), session_id)
        # Nobody holds the session any longer; a holder keeps others from replacing events.
        with self.store.open_writer(session_id) as writer:
            with self.assertRaises(SessionLockedError):
                self.open_or_same().rewrite_events(session_id, lambda events: {})
            self.assertEqual(writer.append([UserMessage("next")])[0].seq, 5)

    def test_events_are_replaced_together_or_not_at_all_and_in_no_other_session(self) -> None:
        session_id = self.filled(700)
        paid = ModelResponse(1, 1, usage={"input_tokens": 10, "output_tokens": 5}, cost_usd=0.5)
        self.store.append_event(session_id, paid)
        self.store.copy_session(session_id, "copy", at_seq=701, tail=[], metadata={})
        before: dict[str, list[Event]] = {name: [*self.store.iter_events(name)] for name in (session_id, "copy")}

        def replace(*seqs: int, bad: Any = None) -> dict[int, Event]:
            new: dict[int, Event] = {seq: changed(before[session_id][seq - 1], text="other") for seq in seqs}
            return {**new, 701: changed(before[session_id][700], cost_usd=bad)}

        def replace_in(name: str, new: dict[int, Event]) -> None:
            self.store.rewrite_events(name, lambda events: new)
            before[name] = [new.get(event.seq or 0, event) for event in before[name]]

        try:
            with self.assertRaises(InvalidEventError):
                self.store.rewrite_events(session_id, lambda events: replace(1, 2, bad=float("nan")))
        except StorageError:
            self.skipTest("this store cannot replace events")
        with self.assertRaises(ZeroDivisionError):
            self.store.rewrite_events(session_id, lambda events: replace(1 // 0))
        self.assertEqual(self.store.read_events(session_id), before[session_id])
        digest = self.store.put_blob(session_id, b"blob")
        self.store.delete_blobs(session_id, [digest])
        self.store.put_blob(session_id, b"blob")
        self.assertEqual(self.store.read_blob(session_id, digest), b"blob", "a deleted blob can be stored again")
        for name, seqs in ((session_id, (1, 600)), ("copy", (2, 650))):
            replace_in(name, replace(*seqs))
            for other, events in before.items():
                self.assertEqual(self.store.read_events(other), events)
                self.assertEqual(self.row(other), self.folded(other))
        self.assertEqual(self.row(session_id).first_prompt, "other")
        self.assertEqual(self.row(session_id).cost_usd, None)

    def test_all_followers_of_a_session_learn_of_its_events_and_its_end_and_of_no_other(self) -> None:
        session_id, other, answers = self.filled(1), self.filled(1), queue.SimpleQueue[object]()

        def follow(after_seq: int) -> None:
            try:
                answers.put(self.store.wait_for_events(session_id, after_seq=after_seq, timeout_s=120))
            except SessionError as error:
                answers.put(type(error))

        writing = self.open_or_same()
        changes: tuple[tuple[int, object, Callable[[], object]], ...] = (
            (1, True, lambda: writing.append_event(session_id, UserMessage("news"))),
            (2, SessionNotFoundError, lambda: writing.delete_session(session_id)),
        )
        for after_seq, expected, change in changes:
            followers = [threading.Thread(target=follow, args=(after_seq,)) for _ in range(3)]
            for follower in followers:
                follower.start()
            writing.append_event(other, UserMessage("of the other"))
            writing.update_metadata(session_id, {"no": "event"})
            try:
                self.assertFalse(self.store.wait_for_events(session_id, after_seq=after_seq, timeout_s=0.1))
                self.assertTrue(answers.empty(), "events of other sessions are not news")
            finally:
                change()
                for follower in followers:
                    follower.join()
            self.assertEqual([answers.get() for _ in range(3)], [expected] * 3)

    def test_a_follower_learns_of_new_events(self) -> None:
        session_id = self.filled(1)
        began = time.monotonic()
        self.assertTrue(self.store.wait_for_events(session_id, after_seq=0, timeout_s=6))
        self.assertLess(time.monotonic() - began, 5, "the wait must end at once if there are events")
        self.assertTrue(self.store.wait_for_events(session_id, after_seq=0, timeout_s=0))
        for after_seq in (1, 2, 10**9):
            self.assertFalse(self.store.wait_for_events(session_id, after_seq=after_seq, timeout_s=0.01), after_seq)
        writing = self.open_or_same()
        timer = threading.Timer(0.05, lambda: writing.append_event(session_id, UserMessage("news")))
        timer.start()
        self.addCleanup(timer.join)
        self.assertTrue(self.store.wait_for_events(session_id, after_seq=1, timeout_s=10))
