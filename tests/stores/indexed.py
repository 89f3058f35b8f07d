"""What holds for the index of every store on a server: lists and searches return the same as reading everything."""

from __future__ import annotations

import unittest
from contextlib import closing
from typing import Any

from openagentic_sdk.events import SessionMeta, UserMessage
from openagentic_sdk.parts.record.folds.costs import all_costs
from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.folds.summary import summary_matches
from openagentic_sdk.sessions.stores.locate import open_store

# More sessions than a list reads without the index.
MANY = 130
TITLES = {
    "s000": "Straße",
    "s001": "100% done_now",
    "s002": "back\\slash",
    "s003": "ﬁsh \N{KELVIN SIGN}elvin",
    "s004": "a\0b",
}
QUERIES = (
    "strasse",
    "STRASSE",
    "0%",
    "100%",
    "e_n",
    "k\\s",
    "fish kelvin",
    "odd",
    "s00",
    "odd s002",
    "%%%",
    "___",
    "a",
)


class IndexedContract(unittest.TestCase):
    """A subclass sets `url`, and `store` to the store there, and calls `fill`."""

    url: str
    store: Any

    def indexed_sessions(self) -> int:
        """The number of sessions that are indexed completely."""
        raise NotImplementedError

    def fill(self) -> None:
        self.addCleanup(self.store.close)
        for number in range(MANY):
            name = f"s{number:03d}"
            metadata = {"tags": ["even" if number % 2 else "odd"], **({"tenant": "acme"} if number < 3 else {})}
            self.store.create_session(session_id=name, metadata=metadata)
            if name in TITLES:
                self.store.append_event(name, SessionMeta(title=TITLES[name]))

    def touch_others(self) -> None:
        """Write to so many other sessions that lists reach the first ones only through the index."""
        for number in range(20, MANY):
            self.store.append_event(f"s{number:03d}", UserMessage("later"))

    def found(self, words: str, store: SessionStore | None = None) -> list[tuple[str, int]]:
        return [(hit.session_id, hit.seq) for hit in (store or self.store).search(words)]

    def assert_lists_agree(self, *queries: str) -> None:
        everything = self.store.list_session_summaries()
        for query in queries:
            expected = [row.id for row in everything if summary_matches(row, query=query)]
            with self.subTest(query=query):
                self.assertEqual([row.id for row in self.store.list_session_summaries(query=query)], expected)
                page = self.store.page_sessions(limit=MANY * 2, query=query)
                self.assertEqual([row.id for row in page.rows], expected)

    def test_a_list_finds_by_the_index_what_it_finds_without_it(self) -> None:
        self.store.update_search()
        self.assertEqual(self.indexed_sessions(), MANY)
        self.assert_lists_agree(*QUERIES, "nothinglikethis")

    def test_events_written_since_are_found(self) -> None:
        self.store.update_search()
        with self.store.open_writer("s007") as writer:
            writer.append([UserMessage("heldword"), SessionMeta(title="heldtitle")])
            self.assertEqual(self.found("heldword"), [("s007", 1)])
            writer.append([UserMessage("heldword")])
            self.assertEqual(self.found("heldword"), [("s007", 1), ("s007", 3)])
            self.touch_others()
            self.assert_lists_agree("heldtitle")
        self.store.update_metadata("s010", {"tags": ["fresh"]})
        self.assert_lists_agree("fresh", "odd", "later", "heldtitle")
        self.store.update_search()
        self.assert_lists_agree("fresh", "odd", "later", "heldtitle")

    def stop_an_update(self) -> None:
        """Stop an update of all sessions after its first step."""

        def stop(done: int, whole: int) -> None:
            raise KeyboardInterrupt

        for number in range(MANY):
            self.store.append_event(f"s{number:03d}", UserMessage("later"))
        with self.assertRaises(KeyboardInterrupt):
            self.store.update_search(stop)

    def test_an_update_that_is_stopped_keeps_what_it_did(self) -> None:
        self.stop_an_update()
        self.assertTrue(0 < self.indexed_sessions() < MANY)
        reports: list[tuple[int, int]] = []
        self.store.update_search(lambda done, whole: reports.append((done, whole)))
        self.assertLessEqual(reports[0][1], MANY)
        self.assertEqual(reports[-1][0], reports[-1][1])
        self.assertEqual(len(self.store.search("later", limit=MANY)), MANY)

    def test_lists_searches_and_sums_report_the_index_that_they_update(self) -> None:
        reports: list[tuple[int, int]] = []
        self.store.index_progress = lambda done, whole: reports.append((done, whole))
        for ask in (
            lambda: self.store.list_session_summaries(query="strasse"),
            lambda: self.store.search("nothing"),
            lambda: all_costs(self.store, "tag"),
        ):
            self.touch_others()
            reports.clear()
            ask()
            self.assertTrue(reports)
            self.assertEqual(reports[-1][0], reports[-1][1])

    def test_two_searches_at_once_leave_the_newer_words(self) -> None:
        with closing(open_store(self.url)) as other:
            self.store.append_events("s009", [UserMessage("firstword"), SessionMeta(title="firsttitle")])
            other.append_events("s009", [UserMessage("secondword"), SessionMeta(title="secondtitle")])
            other.update_search()
            self.store.update_search()
            self.assertEqual(self.indexed_sessions(), MANY)
            for store in (self.store, other):
                self.assertEqual(self.found("secondword", store), [("s009", 3)])
                self.assertEqual(self.found("firstword", store), [("s009", 1)])
        self.touch_others()
        self.assert_lists_agree("firsttitle", "secondtitle")
