"""Sessions are created, read and deleted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from ...errors import (
    OptionsError,
    SessionExistsError,
    SessionNotFoundError,
    StorageError,
)
from ...events import (
    SessionMeta,
    ToolResult,
    UserMessage,
)
from .base import StoreTest
from .hostile import HOSTILE_IDS, HOSTILE_TEXTS


class Sessions(StoreTest):
    """Sessions are created, read and deleted."""

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
