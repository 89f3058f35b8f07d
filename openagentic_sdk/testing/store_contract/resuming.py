"""Contract tests: a long session resumes from its last compaction, by a checkpoint that was stored for this very log."""

from __future__ import annotations

from ...errors import SessionError
from ...events import AssistantMessage, Event, SessionCompacted, SessionRewound, UserMessage
from ...sessions.base import SessionStore
from ...sessions.folds.view import SessionView
from ...sessions.resume import load_view
from ...sessions.seal import Seal
from .base import StoreTest


class Resuming(StoreTest):
    """Contract tests: a long session resumes from its last compaction, by a checkpoint that was stored for this very log."""

    def talked(self, name: str, summary: str = "they talked") -> None:
        """Create a session whose first events are summarized, and resume it once."""
        self.store.create_session(session_id=name)
        self.talk(name, summary)
        self.resumed(self.store, name)

    def talk(self, name: str, summary: str) -> None:
        talk: list[Event] = [UserMessage("a"), AssistantMessage("b"), UserMessage("c"), AssistantMessage("d")]
        self.store.append_events(name, [*talk, SessionCompacted(4, summary), UserMessage("and then")])

    def resumed(self, store: SessionStore, name: str) -> SessionView:
        with store.open_writer(name) as writer:
            view, kept_view = load_view(store, name)
            if kept_view is not None:
                writer.keep_view(kept_view)
        return view

    def seqs_read(self, store: SessionStore, name: str) -> list[int | None]:
        """Return the `seq` of each event that a resume reads; assert that its result is the same as from the whole log."""
        kept_view, events = store.read_kept_view(name)
        seqs = [event.seq for event in events]
        self.assertEqual(kept_view is None, seqs[:1] == [1])
        whole = SessionView().extend(store.iter_events(name))
        view, _ = load_view(store, name)
        self.assertEqual(view.conversation.messages(), whole.conversation.messages())
        self.assertEqual((view.steps, view.usage, view.last_text), (whole.steps, whole.usage, whole.last_text))
        return seqs

    def require_checkpoints(self) -> None:
        """Give the store the test's own key; skip the test if the store keeps no checkpoints."""
        self.store.seal = Seal(self.place / "installation.key")
        self.store.create_session(session_id="probe")
        self.store.keep_checkpoint("probe", b"kept")
        if self.store.read_checkpoint("probe") is None:
            self.skipTest("this store keeps no checkpoints")

    def test_a_resume_reads_what_came_since_the_last_compaction(self) -> None:
        self.require_checkpoints()
        self.talked("s")
        other = self.open_store()
        other.seal = self.store.seal
        self.assertEqual(self.seqs_read(self.store, "s"), [6])
        self.assertEqual(self.seqs_read(other if other.session_exists("s") else self.store, "s"), [6])
        self.store.append_events("s", [AssistantMessage("e"), SessionCompacted(7, "and more"), UserMessage("so")])
        self.assertEqual(self.seqs_read(self.store, "s"), [6, 7, 8, 9])
        self.resumed(self.store, "s")
        self.assertEqual(self.seqs_read(self.store, "s"), [9])
        self.store.append_event("s", SessionRewound(3))
        self.assertEqual(self.resumed(self.store, "s").conversation.messages()[-1]["content"], "c")

    def test_a_checkpoint_goes_with_its_session_and_comes_along_with_no_copy(self) -> None:
        self.require_checkpoints()
        self.talked("s")
        checkpoint = self.store.read_checkpoint("s")
        assert checkpoint is not None
        self.store.copy_session("s", "copy", at_seq=6, tail=[], metadata={})
        self.store.import_session("again", self.store.read_events("s"))
        for name in ("copy", "again"):
            self.assertIsNone(self.store.read_checkpoint(name))
            self.store.keep_checkpoint(name, checkpoint)
            self.assertEqual(self.seqs_read(self.store, name), [1, 2, 3, 4, 5, 6], "it belongs to another session")
        self.store.delete_session("s")
        with self.assertRaises(SessionError):
            if self.store.read_checkpoint("s") is None:
                self.store.read_metadata("s")
        self.store.create_session(session_id="s")
        self.assertIsNone(self.store.read_checkpoint("s"))
        self.talk("s", "another summary")
        self.store.keep_checkpoint("s", checkpoint)
        self.assertEqual(self.seqs_read(self.store, "s"), [1, 2, 3, 4, 5, 6], "it belongs to the deleted log")

    def test_a_checkpoint_that_this_installation_did_not_write_is_not_used(self) -> None:
        self.require_checkpoints()
        self.talked("s")
        checkpoint = self.store.read_checkpoint("s") or b""
        digest, _, body = checkpoint.partition(b"\n")
        for bad in (
            b"",
            b"\n",
            b"\xff\n{}\n",
            checkpoint[:-9],
            b"0" * 64 + b"\n" + body,
            checkpoint.replace(b"they talked", b"they waited"),
            digest + b"\n[]\n",
        ):
            self.store.keep_checkpoint("s", bad)
            self.assertEqual(self.seqs_read(self.store, "s"), [1, 2, 3, 4, 5, 6])
        self.store.keep_checkpoint("s", checkpoint)
        self.assertEqual(self.seqs_read(self.store, "s"), [6])
        self.store.seal = Seal(self.place / "other.key")
        self.assertEqual(self.seqs_read(self.store, "s"), [1, 2, 3, 4, 5, 6])
