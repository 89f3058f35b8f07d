"""Contract tests: lists and summaries agree with the logs."""

from __future__ import annotations

import random
import threading
from typing import Any

from ...errors import OptionsError
from ...events import (
    AssistantMessage,
    Event,
    ModelResponse,
    Result,
    SessionForked,
    SessionMeta,
    SubagentFinished,
    SubagentStarted,
    SystemInit,
    ToolResult,
    ToolUse,
    UnknownEvent,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from ...ground.frozen import changed
from ...sessions.base import as_shown
from .base import StoreTest


class Listing(StoreTest):
    """Contract tests: lists and summaries agree with the logs."""

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

    def test_pages_by_cursor_give_each_session_once_though_others_are_made_written_to_and_deleted(self) -> None:
        ids: list[str] = []
        for number in range(9):
            ids.append(self.store.create_session(metadata={"tenant": "x" if number % 3 else None}))
            self.distinct_time()
        seen: list[str] = []
        page = self.store.page_sessions(limit=2)
        while True:
            seen += [row.id for row in page.rows]
            self.assertLessEqual(len(page.rows), 2)
            if page.next is None:
                break
            self.store.append_event(seen[0], UserMessage("to the front"))
            self.store.create_session()
            if len(seen) == 4:
                self.store.delete_session(seen[1])
                self.store.delete_session(seen[3])  # the last of the page
            page = self.open_or_same().page_sessions(limit=2, after=page.next)
        self.assertEqual(seen, ids[::-1])
        mine = self.store.page_sessions(limit=9, tenant="x", keep=lambda row: row.id in ids[:5])
        self.assertEqual(([row.id for row in mine.rows], mine.next), ([ids[4], ids[2], ids[1]], None))
        child = self.store.create_session(metadata={"parent_session_id": ids[0], "parent_tool_use_id": "c"})
        self.store.append_event(child, UserMessage("of the child"))
        for include_children, expected in ((False, []), (True, [child])):
            rows = self.store.page_sessions(limit=9, query="of the child", include_children=include_children).rows
            self.assertEqual([row.id for row in rows], expected)
        for cursor in ("", "x", "bm90IGEgcGxhY2U", "W10", "W05hTiwwLCIiXQ", "\ud800", "WzFlOTk5LDAsIiJd"):
            with self.subTest(cursor), self.assertRaises(OptionsError):
                self.store.page_sessions(limit=2, after=cursor)

    def test_the_order_follows_each_append_also_of_runs_side_by_side(self) -> None:
        with self.store.open_writer(self.filled(1)) as one, self.store.open_writer(self.filled(1)) as other:
            for writer in (one, other, one, other, other, one):
                self.distinct_time()
                writer.append([ToolResult("c")])
                self.assertEqual(self.store.list_sessions()[0], writer.session_id)

    def test_a_tenant_lists_and_finds_its_own_sessions_only(self) -> None:
        tenants = {"a": "x", "b": None, "c": "X", "d": "x", "e": "", "f": 'q"\u00fc\ud800', "g": 5, "h": "null"}
        for name, tenant in tenants.items():
            self.store.create_session(session_id=name, metadata={"cwd": "/w", "tenant": tenant})
            self.store.append_event(name, UserMessage("a word"))
            self.distinct_time()
        for tenant, expected in (
            ("x", "da"),
            ("X", "c"),
            ("", "geb"),
            ('q"\u00fc\ud800', "f"),
            ("null", "h"),
            ("y", ""),
        ):
            rows = self.store.list_session_summaries(tenant=tenant)
            self.assertEqual([row.id for row in rows], list(expected), tenant)
            self.assertEqual({row.tenant or "" for row in rows} - {tenant}, set())
            self.assertEqual([hit.session_id for hit in self.store.search("word", tenant=tenant)], list(expected))
            page = self.store.list_session_summaries(tenant=tenant, cwd="/w", limit=1, offset=1, query="word")
            self.assertEqual([row.id for row in page], list(expected)[1:2])
        self.assertEqual([hit.session_id for hit in self.store.search("word", tenant="x", limit=1)], ["d"])
        self.assertEqual(len(self.store.list_session_summaries()), len(tenants))
        self.store.update_metadata("a", {"tenant": "y"})
        self.store.copy_session("d", "copy", at_seq=1, tail=[], metadata={"tenant": "z"})
        self.assertEqual([self.row(name).tenant for name in ("a", "copy")], ["y", "z"])
        for tenant, name in (("y", "a"), ("x", "d"), ("z", "copy")):
            self.assertEqual([row.id for row in self.store.list_session_summaries(tenant=tenant)], [name])

    def test_the_summary_is_the_fold_of_the_log_however_it_was_split(self) -> None:
        chance = random.Random(3)
        for _ in range(5):
            session_id = self.store.create_session(metadata={"cwd": "/w", "model": "m0"})
            events = list(EVERY_SUMMARY_EVENT)
            chance.shuffle(events)
            with self.store.open_writer(session_id) as writer:
                rest = list(events)
                while rest:
                    size = chance.randrange(1, 5)
                    writer.append(rest[:size])
                    del rest[:size]
                    self.assertEqual(self.store.read_summary(session_id), self.folded(session_id))
            self.assertEqual(self.row(session_id), self.folded(session_id))
            for got, event in zip(self.store.read_events(session_id), events, strict=True):
                if not isinstance(event, UnknownEvent):
                    self.assertEqual(changed(got, seq=None, ts=None), event)

    def test_a_summary_says_what_a_list_shows(self) -> None:
        session_id = self.store.create_session(metadata={"cwd": "/w"})
        self.store.append_events(
            session_id,
            [
                SystemInit(session_id, "/w", "1", model="m1"),
                UserMessage("first\nprompt"),
                ModelResponse(1, 1, usage={"input_tokens": 2**40, "output_tokens": 5}, cost_usd=0.123456789),
                AssistantMessage("title: stolen"),
                ToolUse("c", "Bash", {"title": "stolen", "customTitle": "stolen"}),
            ],
        )
        with self.store.open_writer(session_id):
            row = self.row(session_id)
        self.assertEqual((row.id, row.cwd, row.model, row.first_prompt), (session_id, "/w", "m1", "first prompt"))
        self.assertEqual((row.events, row.turns, row.tokens, row.cost_usd), (5, 1, 2**40 + 5, 0.123456789))
        self.assertEqual((row.state, row.title), ("running", None))
        self.assertEqual(self.store.read_run_state(session_id), "running")
        self.store.append_event(session_id, UserQuestion("q", "may I?"))
        self.assertEqual(self.row(session_id).state, "waiting")
        self.assertEqual(self.store.open_question_ids(session_id), ("q",))
        title, tags = "Größe \N{PILE OF POO} 日本", ("ä, b", "a\u0308")
        self.store.append_events(
            session_id, [UserAnswer("q", "yes"), SessionMeta(title=title, tags=tags), Result("", session_id, "end")]
        )
        row = self.row(session_id)
        self.assertEqual((row.state, row.title, row.tags), ("idle", title, tags))
        self.assertEqual(
            (self.store.read_run_state(session_id), self.store.open_question_ids(session_id)), ("idle", ())
        )

    def test_a_run_that_nobody_runs_any_more_is_stopped_and_questions_of_subagents_are_shown(self) -> None:
        parent = self.store.create_session()
        child = self.store.create_session(metadata={"parent_session_id": parent, "parent_tool_use_id": "c"})
        grandchild = self.store.create_session(metadata={"parent_session_id": child, "parent_tool_use_id": "c"})
        for session_id, started in ((parent, (child, "nobody")), (child, (grandchild, parent)), (grandchild, ())):
            calls = [SubagentStarted("c", "a", name, "go") for name in started]
            self.store.append_events(session_id, [SystemInit(session_id, "/w", "1"), *calls])
        if self.store.is_held(parent) is None:
            self.assertEqual(self.row(parent).state, "running")
            return
        with self.store.open_writer(child):
            self.assertEqual([self.row(name).state for name in (parent, child)], ["stopped", "running"])
        self.assertEqual([self.row(name).state for name in (parent, child, grandchild)], ["stopped"] * 3)
        self.store.append_event(grandchild, UserQuestion("q", "may I?"))
        for session_id in (parent, child, grandchild):
            self.assertEqual((self.row(session_id).state, self.row(session_id).open_questions), ("waiting", ("q",)))
            self.assertEqual(self.store.open_question_ids(session_id), ("q",))
        self.store.append_event(child, SubagentFinished("c", "a", grandchild, "end"))
        self.assertEqual(self.row(parent).state, "stopped")
        self.assertEqual(self.row(grandchild).state, "waiting")
        self.store.append_event(parent, Result("done", parent, "end"))
        self.assertEqual(self.row(parent).state, "idle")

    def test_a_run_that_ends_while_its_row_is_read_is_not_shown_as_stopped(self) -> None:
        session_id = self.store.create_session()
        with self.store.open_writer(session_id) as writer:
            writer.append([SystemInit(session_id, "/w", "1")])
            row = self.store.kept_summary(session_id)
            writer.append([Result("done", session_id, "end")])
        expected = "running" if self.store.is_held(session_id) is None else "idle"
        self.assertEqual(as_shown(self.store, row).state, expected)

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
        for other in ("/nowhere", "/ODD", "/od", "/odd/", "%", "/od_"):
            self.assertEqual(listed(cwd=other), [], other)
        for query in ("NUMBER 4", "umber 4", "s4"):
            self.assertEqual(listed(query=query), ["s4"], query)
        self.assertEqual(listed(query="prompt", cwd="/even", limit=2), ["s6", "s4"])
        self.assertEqual(listed(query="100%_"), [])

    def test_lists_find_titles_tags_models_and_ids_as_they_are_now(self) -> None:
        session_id, other = self.store.create_session(session_id="oaken"), self.filled(1)
        for word in ("maple", "willow"):
            events = [
                SessionMeta(title=f"The {word} title: Ärger", tags=[f"{word}-tag"]),
                SystemInit("s", "/w", "1", model=f"{word}9"),
            ]
            self.store.append_events(session_id, events)
            queries = (
                f"{word} title",
                f"{word}-tag",
                f"{word}9",
                f"OAKEN {word}-TAG",
                f"{word}9 {word} title",
                "ärger ÄRGER",
            )
            for query in queries:
                self.assertEqual(
                    [row.id for row in self.store.list_session_summaries(query=query)], [session_id], query
                )
        for query in ("maple", "maple-tag", f"{other} willow"):
            self.assertEqual(self.store.list_session_summaries(query=query), [], query)

    def test_pages_make_up_the_whole_list_and_the_order_stays(self) -> None:
        names = [self.store.create_session(session_id=f"s{number:03}") for number in range(105)]
        for name in names[::3]:
            self.store.append_event(name, UserMessage("hello"))
        whole = [row.id for row in self.store.list_session_summaries()]
        self.assertEqual(sorted(whole), names)
        for size in (7, 40, 105):
            pages = [
                row.id
                for offset in range(0, 120, size)
                for row in self.store.list_session_summaries(limit=size, offset=offset)
            ]
            self.assertEqual(pages, whole)
        self.assertEqual([row.id for row in self.open_or_same().list_session_summaries()], whole)
        self.assertEqual(self.store.list_sessions(), whole)

    def test_the_sessions_of_subagents_are_listed_only_when_asked_for(self) -> None:
        parent = self.filled(1)
        metadata = {"parent_session_id": parent, "parent_tool_use_id": "call", "agent_name": "helper"}
        child = self.store.create_session(metadata=metadata)
        other = self.store.create_session()
        self.assertEqual({row.id for row in self.store.list_session_summaries()}, {parent, other})
        rows = {row.id: row for row in self.store.list_session_summaries(include_children=True)}
        self.assertEqual(set(rows), {parent, child, other})
        self.assertEqual((rows[child].parent, rows[child].is_child), (parent, True))
        grandchild = self.store.create_session(metadata={**metadata, "parent_session_id": child})
        self.assertEqual((self.store.list_children(parent), self.store.list_children(child)), ([child], [grandchild]))
        self.assertEqual(self.store.list_children(other), [])

    def test_pages_stay_whole_while_others_write(self) -> None:
        ids = {self.store.create_session(session_id=f"s{number:02}") for number in range(20)}
        stop = threading.Event()

        def write() -> None:
            store = self.open_or_same()
            # Bounded, because a store that folds whole logs for its rows must finish, too.
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


EVERY_SUMMARY_EVENT: tuple[Event, ...] = (
    SystemInit("s", "/elsewhere", "1", model="m1"),
    UserMessage("first\n\u202eprompt \x1b[31m"),
    UserMessage("x" * 1000),
    UserMessage("by a hook", origin="hook", request_id="r"),
    AssistantMessage("text"),
    ToolUse("c1", "Read", {"file_path": "a"}),
    ToolResult("c1", output="x"),
    ModelResponse(1, 1, usage={"input_tokens": 10, "output_tokens": 5}, cost_usd=0.25),
    ModelResponse(2, 1, usage={"prompt_tokens": 7, "completion_tokens": 1}),
    UserQuestion("q1", "?"),
    UserQuestion("q2", "?"),
    UserAnswer("q1", "yes"),
    SessionMeta(title="A\ntitle"),
    SessionMeta(tags=["Y", "b, a", "x", "x"]),
    Result("", "s", "error"),
    Result("", "s", "waiting"),
    Result("", "s", "end", usage={"input_tokens": 100, "output_tokens": 50}, cost_usd=1.5),
    SystemInit("s", "/w", "1", model="m2"),
    UnknownEvent({"type": "from.the.future"}),
    SessionForked("p", 3),
)
