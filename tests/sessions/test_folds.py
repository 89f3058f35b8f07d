"""A feature's fold over the log: registered with a view, kept in checkpoints, looked up by type."""

from __future__ import annotations

import tempfile
import unittest
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from openagentic_sdk.errors import FoldNotFoundError, OptionsError
from openagentic_sdk.events import AssistantMessage, Event, SessionCompacted, SessionRewound, SystemNotice, UserMessage
from openagentic_sdk.sessions.checkpoint import view_from_dict, view_to_dict
from openagentic_sdk.sessions.folds.features.all import ALL_FOLDS, ObservedFilesFold
from openagentic_sdk.sessions.folds.features.skills import SkillsFold
from openagentic_sdk.sessions.folds.view import Cut, Fold, KeptView, SessionView
from openagentic_sdk.sessions.resume import load_view
from openagentic_sdk.sessions.seal import Seal
from openagentic_sdk.sessions.store import FileSessionStore


class Letters(Fold):
    """Count the letters of prompts, and keep the newest notice in force."""

    name = "letters"
    reads = (UserMessage, SystemNotice)

    def __init__(self) -> None:
        self.count = 0
        self.notices: list[str] = []

    def apply(self, event: UserMessage | SystemNotice, view: SessionView) -> None:
        assert view.events[-1:] == [event] or event in view.events, "the view does not contain the event yet"
        if isinstance(event, UserMessage):
            self.count += len(event.text)
        else:
            self.notices = [event.message]

    def in_force(self, view: SessionView, cut: Cut) -> Iterable[int]:
        return [event.seq or 0 for event in cut.standing if isinstance(event, SystemNotice)][-1:]

    def kept(self) -> Mapping[str, Any]:
        return {"count": self.count}

    def restore(self, kept: Mapping[str, Any]) -> None:
        self.count = kept["count"]


class Letters2(Letters):
    """The same fold with a changed meaning."""

    version = 2


class CountingStore(FileSessionStore):
    """Count how often a whole log is read."""

    whole_reads = 0

    def iter_events(self, session_id: str, *, after_seq: int = 0, limit: int | None = None) -> Iterator[Event]:
        self.whole_reads += after_seq == 0 and limit is None
        return super().iter_events(session_id, after_seq=after_seq, limit=limit)


def talk(letters: str) -> list[Event]:
    return [UserMessage(letters), AssistantMessage("yes"), SystemNotice("n", letters)]


class FoldTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.store = CountingStore(root_dir=folder.name, durability="flush")
        self.store.seal = Seal(Path(folder.name) / "installation.key")
        self.store.create_session(session_id="s")
        self.store.append_events("s", [*talk("ab"), *talk("cde"), SessionCompacted(5, "they talked"), *talk("f")])

    def load(self, *folds: type[Fold]) -> tuple[SessionView, bool]:
        """Load the view as a run does; also return whether the whole log was read."""
        self.store.whole_reads = 0
        with self.store.open_writer("s") as writer:
            view, kept = load_view(self.store, "s", folds)
            if kept is not None:
                writer.keep_view(kept)
        return view, self.store.whole_reads > 0

    def test_a_fold_continues_from_a_checkpoint_where_it_was(self) -> None:
        first, is_whole = self.load(Letters, *ALL_FOLDS)
        self.assertEqual((first.fold(Letters).count, first.fold(Letters).notices, is_whole), (6, ["f"], True))
        view, is_whole = self.load(Letters, *ALL_FOLDS)
        self.assertEqual((view.fold(Letters).count, view.fold(Letters).notices, is_whole), (6, ["f"], False))
        self.assertEqual([e.message for e in view.events if isinstance(e, SystemNotice)], ["ab", "cde", "f"])

    def test_all_folds_of_a_view_are_fed_by_one_reading_of_the_log(self) -> None:
        seen: list[int] = []
        whole = self.store.read_events("s")

        def once() -> Iterator[Event]:
            for event in whole:
                seen.append(event.seq or 0)
                yield event

        view = SessionView((Letters, *ALL_FOLDS)).extend(once())
        self.assertEqual(view.fold(Letters).count, 6)
        self.assertEqual(seen, [event.seq for event in whole])

    def test_a_checkpoint_without_a_wanted_fold_is_not_used_and_the_next_one_has_it(self) -> None:
        self.load()
        self.assertFalse(self.load()[1])
        view, is_whole = self.load(Letters)
        self.assertEqual((view.fold(Letters).count, is_whole), (6, True))
        view, is_whole = self.load(Letters)
        self.assertEqual((view.fold(Letters).count, is_whole), (6, False))
        self.assertFalse(self.load()[1], "a view with fewer folds must be able to use it")

    def test_a_checkpoint_of_another_version_of_a_fold_is_not_used(self) -> None:
        self.load(Letters)
        view, is_whole = self.load(Letters2)
        self.assertEqual((view.fold(Letters2).count, is_whole), (6, True))
        self.assertFalse(self.load(Letters2)[1])
        self.assertTrue(self.load(Letters)[1])

    def test_a_checkpoint_of_an_earlier_version_of_this_package_is_made_again(self) -> None:
        view, _ = self.load(Letters)
        data = view.fold(Letters), view_to_dict(KeptView((), (), 7, 0, None, 0.0, "", {}))
        self.assertIsNone(view_from_dict({**data[1], "version": 4, "observed_files": {}, "place": [], "untrusted": {}}))

    def test_a_fold_is_the_same_object_before_and_after_a_compaction(self) -> None:
        view = SessionView((Letters, SkillsFold))
        letters, skills = view.fold(Letters), view.fold(SkillsFold)
        view.extend(self.store.iter_events("s", limit=7))
        changes = skills.changes
        view.forget(view.kept())
        self.assertIs(view.fold(Letters), letters)
        self.assertEqual((letters.count, letters.notices), (5, ["cde"]))
        self.assertGreater(skills.changes, changes, "the fold must be derived from the events again")
        view.extend(self.store.iter_events("s", after_seq=7))
        self.assertEqual((letters.count, letters.notices), (6, ["f"]))

    def test_a_rewind_to_before_a_compaction_folds_the_whole_log_for_every_fold(self) -> None:
        self.load(Letters)
        self.store.append_event("s", SessionRewound(3))
        view, is_whole = self.load(Letters)
        self.assertEqual((view.fold(Letters).count, view.fold(Letters).notices, is_whole), (6, ["f"], True))

    def test_a_fold_that_a_view_lacks_is_an_error_that_names_what_it_has(self) -> None:
        view = SessionView((SkillsFold,))
        with self.assertRaises(FoldNotFoundError) as caught:
            view.fold(ObservedFilesFold)
        self.assertEqual((caught.exception.name, caught.exception.known), ("observed_files", ["skills"]))
        self.assertIn("AgentRuntime.folds", str(caught.exception))
        with self.assertRaisesRegex(FoldNotFoundError, "only the state of the kernel"):
            SessionView().fold(SkillsFold)

    def test_two_folds_of_one_name_are_refused(self) -> None:
        with self.assertRaisesRegex(OptionsError, "letters, letters"):
            SessionView((Letters, Letters2))


if __name__ == "__main__":
    unittest.main()
