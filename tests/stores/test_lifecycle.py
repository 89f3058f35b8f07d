"""Operations on whole sessions, over every kind of store."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import tempfile
import threading
import unittest
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from openagentic_sdk.errors import (
    ConcurrencyError,
    InvalidEventError,
    OptionsError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from openagentic_sdk.events import (
    AssistantMessage,
    Event,
    ModelContext,
    ModelRequest,
    ModelResponse,
    SessionCompacted,
    SystemInit,
    ToolResult,
    ToolStarted,
    ToolUse,
    UnknownEvent,
    UserMessage,
)
from openagentic_sdk.parts.record import archive, lifecycle
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.runs.background import answer_question
from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.follow import follow
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.rebuild import rebuild_messages
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.sessions.stores.locate import open_store
from tests.size import full_size

CALLS = (
    ModelRequest(1, 1, "", 1),
    AssistantMessage("two calls"),
    ToolUse("a", "Bash", {"command": "x"}),
    ToolUse("b", "Bash", {"command": "y"}),
    ToolStarted("a", "Bash", "unsafe", "", ""),
    ToolResult("a", output="done"),
    ToolStarted("b", "Bash", "unsafe", "", ""),
    ToolResult("b", output="done"),
)


class WrongValuesTest(unittest.TestCase):
    def test_a_name_in_the_place_of_a_store_is_refused_with_the_way_to_open_it(self) -> None:
        uses: tuple[Callable[[Any], object], ...] = (
            lambda store: lifecycle.fork_session(store, "s"),
            lambda store: lifecycle.rewind_session(store, "s", turns=1),
            lambda store: lifecycle.rename_session(store, "s", "Tea"),
            lambda store: lifecycle.tag_session(store, "s", add=["tea"]),
            lambda store: lifecycle.delete_session(store, "s"),
            lambda store: asyncio.run(answer_question(store, "s", "q", "yes")),
            lambda store: asyncio.run(anext(follow(store, "s"))),
        )
        for use in uses:
            with self.assertRaises(OptionsError) as caught:
                use("postgresql://ada:secret@host/db")
            self.assertTrue(str(caught.exception).endswith("not a string: pass it to open_store()"))
            self.assertNotIn("secret", str(caught.exception))
            with self.assertRaisesRegex(OptionsError, "store must be a session store, .*, not None"):
                use(None)

    def test_a_position_that_is_not_a_whole_number_and_other_wrong_values_are_refused(self) -> None:
        store: Any = MemorySessionStore()
        session_id = store.create_session()
        for wrong in ("3", 2.5, True):
            with self.assertRaisesRegex(OptionsError, "at_seq must be a whole number"):
                lifecycle.fork_session(store, session_id, at_seq=cast(Any, wrong))
            with self.assertRaisesRegex(OptionsError, "turns must be a whole number"):
                lifecycle.rewind_session(store, session_id, turns=cast(Any, wrong))
        with self.assertRaisesRegex(OptionsError, "title must be a string, not None"):
            lifecycle.rename_session(store, session_id, cast(Any, None))
        with self.assertRaisesRegex(OptionsError, "add must be a list of strings, not 'tea'"):
            lifecycle.tag_session(store, session_id, add="tea")
        with self.assertRaisesRegex(OptionsError, "url must be a string, or None, not 3"):
            open_store(cast(Any, 3))
        with self.assertRaisesRegex(OptionsError, "root_dir must be a path, not None"):
            FileSessionStore(cast(Any, None))
        with self.assertRaisesRegex(OptionsError, "tool_name must be a string, not None"):
            asyncio.run(PermissionGate().approve(cast(Any, None), {}))


class LifecycleTest(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)

    def stores(self) -> list[SessionStore]:
        urls = ("memory:", f"sqlite:{self.place}/s.db?durability=flush", f"file:{self.place}/f?durability=flush")
        stores = [open_store(url) for url in urls]
        for store in stores:
            self.addCleanup(store.close)
        return stores

    def on_every_store(self, check: Callable[[SessionStore], None]) -> None:
        for store in self.stores():
            with self.subTest(type(store).__name__):
                check(store)

    def session(self, store: SessionStore, events: Sequence[Event], **metadata: str) -> str:
        session_id = store.create_session(metadata={"cwd": "/w", **metadata})
        store.append_events(session_id, events)
        return session_id

    # --- fork --------------------------------------------------------------------------------------------------------

    def test_a_fork_at_any_event_is_a_conversation_that_a_model_accepts(self) -> None:
        def check(store: SessionStore) -> None:
            source = self.session(store, [UserMessage("go"), *CALLS, UserMessage("on")])
            for at_seq in range(store.last_seq(source) + 1):
                fork = lifecycle.fork_session(store, source, at_seq=at_seq)
                events = store.read_events(fork)
                self.assertEqual(open_calls(events), [], at_seq)
                outcomes = {event.tool_use_id: event.outcome for event in events if isinstance(event, ToolResult)}
                if at_seq in (5, 6):
                    self.assertEqual(outcomes, {"a": "cancelled" if at_seq == 5 else "unknown", "b": "cancelled"})
                self.assertEqual(store.read_metadata(fork)["metadata"]["parent_session_id"], source)
                self.assertEqual(store.read_summary(fork).parent, source)
            self.assertEqual(len(store.read_events(source)), 10)

        self.on_every_store(check)

    def test_a_running_session_can_be_forked_and_both_continue(self) -> None:
        def check(store: SessionStore) -> None:
            source = self.session(store, [UserMessage("go")])
            with store.open_writer(source) as writer:
                fork = lifecycle.fork_session(store, source)
                store.append_event(fork, UserMessage("mine"))
                writer.append([UserMessage("yours")])
            self.assertEqual(texts(store, fork), ["go", "mine"])
            self.assertEqual(texts(store, source), ["go", "yours"])

        self.on_every_store(check)

    def test_a_fork_at_a_place_that_is_not_there_makes_nothing(self) -> None:
        def check(store: SessionStore) -> None:
            source = self.session(store, [UserMessage("go")])
            for at_seq in (-1, 2):
                with self.assertRaises(OptionsError):
                    lifecycle.fork_session(store, source, at_seq=at_seq)
            with self.assertRaises(SessionNotFoundError):
                lifecycle.fork_session(store, "nobody")
            with self.assertRaises(SessionExistsError):
                lifecycle.fork_session(store, source, session_id=source)
            self.assertEqual(store.list_sessions(), [source])

        self.on_every_store(check)

    # --- rewind, rename, tag -----------------------------------------------------------------------------------------

    def test_a_rewind_undoes_turns_in_the_view_and_keeps_the_log(self) -> None:
        def check(store: SessionStore) -> None:
            session_id = self.session(
                store, [event for n in "123" for event in (UserMessage(n), AssistantMessage("a" + n))]
            )
            lifecycle.rewind_session(store, session_id, turns=1)
            self.assertEqual(contents(store, session_id), ["1", "a1", "2", "a2"])
            store.append_event(session_id, UserMessage("other"))
            lifecycle.rewind_session(store, session_id, turns=2)
            self.assertEqual(contents(store, session_id), ["1", "a1"])
            lifecycle.rewind_session(store, session_id, to_seq=0)
            self.assertEqual(contents(store, session_id), [])
            self.assertEqual(store.last_seq(session_id), 10)
            for wrong in ({"to_seq": 99}, {"to_seq": -1}, {"turns": 1}, {"turns": 0}, {}, {"turns": 1, "to_seq": 1}):
                with self.assertRaises(OptionsError):
                    lifecycle.rewind_session(store, session_id, **wrong)

        self.on_every_store(check)

    def test_titles_and_tags_come_and_go(self) -> None:
        def check(store: SessionStore) -> None:
            session_id = lifecycle.create_session(store, cwd="/w", title=" My\ntitle\x1b[31m\u202e ")
            self.assertEqual(store.read_summary(session_id).title, "My title[31m")
            self.assertEqual(lifecycle.tag_session(store, session_id, add=["b", "a", "b", " "]).tags, ("b", "a"))
            self.assertEqual(lifecycle.tag_session(store, session_id, add=["c"], remove=["b"]).tags, ("a", "c"))
            self.assertIsNone(lifecycle.rename_session(store, session_id, "").title)
            self.assertEqual(store.read_summary(session_id).tags, ("a", "c"))
            with self.assertRaises(SessionNotFoundError):
                lifecycle.rename_session(store, "nobody", "ghost")
            self.assertEqual(store.list_sessions(), [session_id])

        self.on_every_store(check)

    def test_tags_of_many_at_once_are_all_kept(self) -> None:
        def check(store: SessionStore) -> None:
            session_id = self.session(store, [UserMessage("go")])
            tags = [f"tag{number}" for number in range(8)]
            threads = [
                threading.Thread(target=lifecycle.tag_session, args=(store, session_id), kwargs={"add": [tag]})
                for tag in tags
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(sorted(store.read_summary(session_id).tags), tags)

        self.on_every_store(check)

    @full_size
    def test_an_archive_that_was_made_to_fill_a_disk_is_refused_before_it_is_unpacked(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "bomb.zip")
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open("0/events.jsonl", "w") as log:
                for _ in range(80):
                    log.write(bytes(1 << 20))
            self.assertLess(os.path.getsize(path), 204_000)
            with self.assertRaisesRegex(StorageError, "unpack to"):
                archive.check_archive(path)
            with self.assertRaisesRegex(StorageError, "unpack to"):
                archive.restore_session(MemorySessionStore(), path)

    def test_an_event_that_came_after_the_archive_was_written_is_not_removed_with_the_session(self) -> None:
        def check(store: SessionStore) -> None:
            session_id = self.session(store, [UserMessage("go")])
            child = self.session(store, [UserMessage("help")], parent_session_id=session_id, parent_tool_use_id="c")
            path = self.place / f"{type(store).__name__}.zip"

            def late(name: str, *, change: str = child) -> None:
                store.append_event(change, UserMessage("late"))
                self.assertEqual(name, path.name)

            publish = os.link
            try:
                os.link = lambda source, target: (publish(source, target), late(Path(target).name))[0]  # type: ignore[assignment]
                with self.assertRaises(ConcurrencyError):
                    archive.archive_session(store, session_id, path, remove=True)
            finally:
                os.link = publish
            self.assertEqual((len(store.read_events(child)), store.session_exists(session_id)), (2, True))
            self.assertEqual(archive.check_archive(path), [session_id, child])
            path.unlink()
            archive.archive_session(store, session_id, path, remove=True)
            self.assertEqual(store.list_sessions(), [])

        self.on_every_store(check)

    def test_the_session_to_resume_is_found_by_id_by_its_beginning_or_as_the_newest(self) -> None:
        def check(store: SessionStore) -> None:
            for name in ("abc1", "abc2", "xyz"):
                lifecycle.create_session(store, session_id=name, cwd="/" + name[0])
            store.append_event("abc2", UserMessage("newest there"))
            self.assertEqual(lifecycle.resume_session(store, "abc1"), "abc1")
            self.assertEqual(lifecycle.resume_session(store, "x"), "xyz")
            self.assertEqual(lifecycle.resume_session(store, cwd="/a"), "abc2")
            with self.assertRaises(OptionsError):
                lifecycle.resume_session(store, "abc")
            for missing in ("q", ""):
                with self.assertRaises(SessionNotFoundError):
                    lifecycle.resume_session(store, missing)
            with self.assertRaises(SessionNotFoundError):
                lifecycle.resume_session(store, cwd="/nowhere")

        self.on_every_store(check)

    # --- read --------------------------------------------------------------------------------------------------------

    def test_a_session_is_loaded_with_all_that_it_ran_under(self) -> None:
        def check(store: SessionStore) -> None:
            session_id = self.session(
                store,
                [
                    SystemInit("s", "/later", "1", model="m1", permission_mode="plan", tools=["Read"]),
                    ModelContext("m2", "p", "be good"),
                    UserMessage("one"),
                    ModelResponse(1, 1, usage={"input_tokens": 3, "output_tokens": 4}, cost_usd=0.5),
                    AssistantMessage("1"),
                    SessionCompacted(5, "short"),
                    UserMessage("two"),
                ],
            )
            state = lifecycle.load_session(store, session_id)
            self.assertEqual((state.model, state.cwd, state.system_prompt), ("m2", "/later", "be good"))
            self.assertEqual((state.permission_mode, state.tools, state.turns), ("plan", ["Read"], 2))
            self.assertEqual((state.cost_usd, (state.usage or {})["output_tokens"]), (0.5, 4))
            assert state.compaction is not None
            self.assertEqual(state.compaction.up_to_seq, 5)
            self.assertEqual(state.messages, rebuild_messages(store.read_events(session_id)))
            self.assertEqual(len(state.messages), 2)
            lifecycle.undo_compaction(store, session_id)
            self.assertEqual(contents(store, session_id), ["one", "1"])
            with self.assertRaises(OptionsError):
                lifecycle.undo_compaction(store, session_id)

        self.on_every_store(check)

    def test_messages_can_be_read_turn_by_turn_unchanged(self) -> None:
        def check(store: SessionStore) -> None:
            events: list[Event] = [event for n in "123" for event in (UserMessage(n), AssistantMessage("a" + n))]
            session_id = self.session(store, [*events, SessionCompacted(4, "short")])

            def said(**turns: int) -> list[object]:
                return [message["content"] for message in lifecycle.get_messages(store, session_id, **turns)]

            self.assertEqual(said(), ["1", "a1", "2", "a2", "3", "a3"])
            self.assertEqual(said(from_turn=2), ["2", "a2", "3", "a3"])
            self.assertEqual(said(to_turn=1), ["1", "a1"])
            self.assertEqual(said(from_turn=2, to_turn=2), ["2", "a2"])
            for empty in ({"from_turn": 0}, {"from_turn": 4}, {"from_turn": 3, "to_turn": 2}):
                self.assertEqual(said(**empty), [])

        self.on_every_store(check)

    # --- whole families ----------------------------------------------------------------------------------------------

    def family(self, store: SessionStore) -> tuple[str, str, str]:
        root = self.session(
            store, [UserMessage("root"), *CALLS, UnknownEvent({"type": "new.kind", "x": ["\ud800\x00"]})]
        )
        child = self.session(store, [UserMessage("child")], parent_session_id=root, parent_tool_use_id="a")
        grandchild = self.session(store, [UserMessage("deep")], parent_session_id=child, parent_tool_use_id="b")
        digest = store.put_blob(child, b"big" * 1000)
        store.append_event(child, ToolResult("c", output=f"blob:{digest}"))
        return root, child, grandchild

    def test_deleting_a_session_takes_those_of_its_subagents_along(self) -> None:
        def check(store: SessionStore) -> None:
            root, child, grandchild = self.family(store)
            other = self.session(store, [UserMessage("other")])
            fork = lifecycle.fork_session(store, root)
            self.assertEqual(lifecycle.delete_session(store, root), [grandchild, child, root])
            self.assertEqual(sorted(store.list_sessions()), sorted([other, fork]))
            with self.assertRaises(SessionNotFoundError):
                lifecycle.delete_session(store, root)
            with store.open_writer(other), self.assertRaises(SessionLockedError):
                lifecycle.delete_session(store, other)

        self.on_every_store(check)

    def test_sessions_travel_between_all_stores_unchanged(self) -> None:
        for source in self.stores():
            family = self.family(source)
            for number, url in enumerate(("memory:", "sqlite:{}/t{}.db", "file:{}/t{}")):
                target = open_store(url.format(self.place, f"{type(source).__name__}{number}"))
                self.addCleanup(target.close)
                with self.subTest(f"{type(source).__name__} to {type(target).__name__}"):
                    self.assertEqual(lifecycle.export_session(source, target, family[0]), list(family))
                    self.assert_same(source, target, family)

    def test_an_export_that_cannot_be_complete_leaves_nothing(self) -> None:
        source, target, _ = self.stores()
        root, child, _ = self.family(source)
        target.create_session(session_id=child)
        with self.assertRaises(SessionExistsError):
            lifecycle.export_session(source, target, root)
        self.assertEqual(target.list_sessions(), [child])

    def test_a_copy_ends_although_a_run_appends_faster(self) -> None:
        appended: list[int] = []

        class Growing(FileSessionStore):
            def iter_events(self, *args: Any, **named: Any) -> Iterator[Event]:
                for event in super().iter_events(*args, **named):
                    if len(appended) < 50:
                        appended.extend(each.seq or 0 for each in writer.append([UserMessage("more")]))
                    yield event

        source = Growing(self.place / "growing", durability="flush")
        session_id = self.session(source, [UserMessage("a"), UserMessage("b"), UserMessage("c")])
        with source.open_writer(session_id) as writer:
            target = open_store("memory:")
            lifecycle.export_session(source, target, session_id)
        self.assertEqual((target.last_seq(session_id), appended[0]), (3, 4))

    def test_an_archive_restores_everything_into_any_store(self) -> None:
        for number, source in enumerate(self.stores()):
            family = self.family(source)
            path = self.place / f"{number}.zip"
            self.assertEqual(archive.archive_session(source, family[0], path), list(family))
            self.assertEqual(archive.check_archive(path), list(family))
            with zipfile.ZipFile(path) as file:  # a zip holds no time of a clock before 1980 or after 2107
                self.assertEqual({member.date_time[:3] for member in file.infolist()}, {(1980, 1, 1)})
            for target in (open_store("memory:"), open_store(f"sqlite:{self.place}/a{number}.db")):
                self.addCleanup(target.close)
                self.assertEqual(archive.restore_session(target, path), list(family))
                self.assert_same(source, target, family)
                with self.assertRaises(SessionExistsError):
                    archive.restore_session(target, path)
            with self.assertRaises(FileExistsError):
                archive.archive_session(source, family[0], path)
            moved = self.place / f"{number}-moved.zip"
            archive.archive_session(source, family[0], moved, remove=True)
            self.assertEqual(source.list_sessions(), [])
            archive.restore_session(source, moved)
            self.assertEqual(len(source.list_sessions()), 3)

    def test_outputs_that_calls_stored_as_files_go_into_archives_and_copies(self) -> None:
        source = FileSessionStore(self.place / "source", durability="flush")
        session_id = self.session(source, [UserMessage("a")])
        outputs = source.session_dir(session_id) / "outputs"
        outputs.mkdir()
        (outputs / "call_1-0a.stdout.txt").write_bytes(b"all of it")
        path = self.place / "whole.zip"
        archive.archive_session(source, session_id, path, remove=True)
        archive.restore_session(source, path)
        self.assertEqual((outputs / "call_1-0a.stdout.txt").read_bytes(), b"all of it")
        target = FileSessionStore(self.place / "target", durability="flush")
        for expected in ([(session_id, True)], [(session_id, False)]):
            self.assertEqual(list(lifecycle.copy_missing(source, target, session_id)), expected)
            self.assertEqual(target.read_output(session_id, "call_1-0a.stdout.txt"), b"all of it")
            target.delete_outputs(session_id, target.list_outputs(session_id))  # a kill before it was copied

        def mislead(members: dict[str, bytes]) -> None:
            members["0/outputs/../../evil"] = b"evil"
            manifest = json.loads(members[archive.MANIFEST_NAME])
            manifest["sessions"][0]["outputs"] = {"../../evil": hashlib.sha256(b"evil").hexdigest()}
            members[archive.MANIFEST_NAME] = json.dumps(manifest).encode()

        rewrite(path, bad := self.place / "bad.zip", mislead)
        empty = FileSessionStore(self.place / "empty", durability="flush")
        with self.assertRaisesRegex(StorageError, "cannot be called '../../evil'"):
            archive.restore_session(empty, bad)
        self.assertEqual((empty.list_sessions(), list(self.place.rglob("evil"))), ([], []))

    def test_a_session_whose_output_is_not_in_its_archive_is_not_removed(self) -> None:
        source = FileSessionStore(self.place / "source", durability="flush")
        session_id = self.session(source, [UserMessage("a")])
        (source.session_dir(session_id) / "outputs").mkdir()
        (source.session_dir(session_id) / "outputs" / "a name with spaces").write_bytes(b"x")
        with self.assertRaisesRegex(StorageError, "has an output, a name with spaces, that is not in the archive"):
            archive.archive_session(source, session_id, self.place / "a.zip", remove=True)
        self.assertEqual(source.list_sessions(), [session_id])

    @full_size
    def test_a_session_with_a_file_of_zeros_can_be_archived(self) -> None:
        source = open_store("memory:")
        session_id = self.session(source, [UserMessage("a")])
        source.put_blob(session_id, bytes(archive.MAX_UNCHECKED_BYTES + 1))
        path = self.place / "zeros.zip"
        archive.archive_session(source, session_id, path)
        target = open_store("memory:")
        archive.restore_session(target, path)
        self.assertEqual(target.list_blobs(session_id), source.list_blobs(session_id))

    def test_a_summary_begins_with_the_current_metadata(self) -> None:
        def check(store: SessionStore) -> None:
            session_id = self.session(store, [UserMessage("a")], cwd="/a")
            with store.open_writer(session_id) as writer:
                writer.append([AssistantMessage("b")])
                for cwd in ("/b", None, "/c"):
                    store.update_metadata(session_id, {"cwd": cwd, "other": cwd})
                    for event in (AssistantMessage("c"), UserMessage("d"), AssistantMessage("e")):
                        self.assertEqual(store.read_summary(session_id), store.fold_summary(session_id))
                        self.assertEqual(store.read_summary(session_id).cwd, cwd)
                        writer.append([event])
            self.assertEqual([row.id for row in store.list_session_summaries(cwd="/c")], [session_id])
            self.assertEqual(store.list_session_summaries(cwd="/a"), [])

        self.on_every_store(check)

    def test_an_event_of_another_version_under_a_known_name_moves_no_summary(self) -> None:
        store = open_store("memory:")
        session_id = self.session(store, [UserMessage("a")])
        store.append_event(session_id, UnknownEvent({"type": UserMessage.type, "text": "b"}))
        self.assertEqual(store.read_summary(session_id).last_prompt, "a")

    def test_a_page_of_any_size_and_place_can_be_asked_for(self) -> None:
        for url in ("memory:", f"file:{self.place}/f?durability=flush"):
            store = open_store(url)
            session_id = self.session(store, [UserMessage("a")])
            self.assertEqual([row.id for row in store.list_session_summaries(limit=10**30, offset=-1)], [session_id])
            self.assertEqual(store.list_session_summaries(limit=10**30, offset=10**30), [])

    def test_a_range_that_begins_or_ends_before_the_first_event_is_cut_to_what_is_there(self) -> None:
        def check(store: SessionStore) -> None:
            session_id = self.session(store, [UserMessage("a"), UserMessage("b")])
            self.assertEqual([event.seq for event in store.iter_events(session_id, after_seq=-5, limit=1)], [1])
            self.assertEqual(store.read_events(session_id, limit=-1), [])

        self.on_every_store(check)

    def test_an_id_that_is_not_text_is_refused(self) -> None:
        def check(store: SessionStore) -> None:
            for wrong in (5, b"x", ("x",)):
                with self.assertRaises(OptionsError):
                    store.create_session(session_id=cast(Any, wrong))

        self.on_every_store(check)

    def test_a_time_that_no_calendar_has_is_not_believed(self) -> None:
        for store in self.stores():
            for ts in (10**400, -(10**400), 1e305, True, "1"):
                with self.assertRaisesRegex(InvalidEventError, "ts"):
                    store.import_session("unreadable", [UserMessage("a", seq=1, ts=ts)])
            for number, ts in enumerate((1e20, 10**30, -1e20)):
                store.import_session(f"s{number}", [UserMessage("a", seq=1, ts=ts), UserMessage("b", seq=2, ts=ts)])
            rows = store.list_session_summaries()
            self.assertEqual(len(rows), 3)
            self.assertEqual([row.updated for row in rows if not 0 < row.updated < 1], [])
            self.assertEqual([row for row in rows if row != store.fold_summary(row.id)], [])

    def test_a_damaged_or_hostile_archive_changes_nothing(self) -> None:
        source = self.stores()[0]
        root = self.family(source)[0]
        good = self.place / "good.zip"
        archive.archive_session(source, root, good)
        for name, change in HOSTILE_ARCHIVES.items():
            bad = self.place / "bad.zip"
            bad.unlink(missing_ok=True)
            rewrite(good, bad, change)
            for target in (
                open_store("memory:"),
                open_store(f"sqlite:{self.place}/h.db"),
                open_store(f"file:{self.place}/h"),
            ):
                self.addCleanup(target.close)
                with self.subTest(f"{name}, {type(target).__name__}"), self.assertRaises((StorageError, ValueError)):
                    archive.restore_session(target, bad)
                self.assertEqual(target.list_sessions(), [])
        rewrite(good, bomb := self.place / "bomb.zip", lambda members: None)
        with zipfile.ZipFile(bomb, "a") as file:
            next(member for member in file.infolist() if "/blobs/" in member.filename).file_size = 1 << 40
            file.comment = b"so that the list of members is written anew"
        with self.assertRaisesRegex(StorageError, "too large|unpack to"):
            archive.check_archive(bomb)
        whole = good.read_bytes()
        for size in range(0, len(whole), max(1, len(whole) // 50)):
            bad.write_bytes(whole[:size])
            with self.assertRaises(StorageError):
                archive.check_archive(bad)
        self.assertFalse((self.place.parent / "evil").exists())

    def test_the_message_about_a_wrong_manifest_names_the_file_and_what_is_wrong_with_it(self) -> None:
        source = self.stores()[0]
        archive.archive_session(source, self.family(source)[0], good := self.place / "good.zip")
        with zipfile.ZipFile(good) as file:
            manifest = json.loads(file.read(archive.MANIFEST_NAME))
        for text, value in {
            "bad.zip is not a session archive: it has no manifest.json": None,
            "bad.zip is not a session archive: its manifest.json has another format": {"format": "a book"},
            "bad.zip is not a session archive: its manifest.json has another": [1],
            "has version 2, and this package reads 1: upgrade openagentic-sdk": {**manifest, "version": 2},
            " is damaged: it names no sessions": {**manifest, "sessions": []},
            " is damaged: it names no sessions, or": {**manifest, "sessions": [{"id": "s"}]},
        }.items():
            (bad := self.place / "bad.zip").unlink(missing_ok=True)
            rewrite(good, bad, partial(with_manifest, value))
            with self.subTest(text), self.assertRaisesRegex(StorageError, re.escape(text)):
                archive.check_archive(bad)

    def assert_same(self, source: SessionStore, target: SessionStore, family: Sequence[str]) -> None:
        for session_id in family:
            self.assertEqual(source.read_events(session_id), target.read_events(session_id))
            self.assertEqual(source.read_metadata(session_id), target.read_metadata(session_id))
            self.assertEqual(source.read_summary(session_id), target.read_summary(session_id))
            self.assertEqual(source.list_blobs(session_id), target.list_blobs(session_id))
            for digest in source.list_blobs(session_id):
                self.assertEqual(source.read_blob(session_id, digest), target.read_blob(session_id, digest))
            self.assertEqual(source.list_children(session_id), target.list_children(session_id))


def open_calls(events: Sequence[Event]) -> list[str]:
    done = {event.tool_use_id for event in events if isinstance(event, ToolResult)}
    return [event.tool_use_id for event in events if isinstance(event, ToolUse) and event.tool_use_id not in done]


def texts(store: SessionStore, session_id: str) -> list[str]:
    return [event.text for event in store.iter_events(session_id) if isinstance(event, UserMessage)]


def contents(store: SessionStore, session_id: str) -> list[object]:
    return [message["content"] for message in rebuild_messages(store.read_events(session_id))]


Members = dict[str, bytes]


def with_manifest(value: object, members: Members) -> None:
    """Replace the manifest, or remove it for None."""
    del members[archive.MANIFEST_NAME]
    if value is not None:
        members[archive.MANIFEST_NAME] = json.dumps(value).encode()


def rewrite(good: Path, bad: Path, change: Callable[[Members], None]) -> None:
    with zipfile.ZipFile(good) as file:
        members = {name: file.read(name) for name in file.namelist()}
    change(members)
    with zipfile.ZipFile(bad, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)


def replace_in(name: str, old: bytes, new: bytes) -> Callable[[Members], None]:
    def change(members: Members) -> None:
        assert old in members[name], (name, old)
        members[name] = members[name].replace(old, new, 1)

    return change


def drop(name: str) -> Callable[[Members], None]:
    return lambda members: members.__delitem__(name)


HOSTILE_ARCHIVES: dict[str, Callable[[Members], None]] = {
    "an event changed": replace_in("0/events.jsonl", b"root", b"evil"),
    "an event that is invalid": replace_in("0/events.jsonl", b'"type"', b'"typo"'),
    "no JSON": replace_in("0/events.jsonl", b'{"type"', b'["type"'),
    "an unterminated line": lambda members: members.update({"0/events.jsonl": members["0/events.jsonl"][:-1]}),
    "an event missing": lambda members: members.update(
        {"0/events.jsonl": b"".join(members["0/events.jsonl"].splitlines(keepends=True)[:-1])}
    ),
    "a member missing": drop("1/events.jsonl"),
    "no manifest": drop("manifest.json"),
    "another format": replace_in("manifest.json", b"openagentic-sdk", b"something"),
    "a newer version": replace_in("manifest.json", b'"version":1', b'"version":9'),
    "no version": replace_in("manifest.json", b'"version":1', b'"version":"1"'),
    "a manifest that is not JSON": lambda members: members.update({"manifest.json": b"{"}),
    "a manifest of other bytes": lambda members: members.update({"manifest.json": b"\xff\xfe\x00"}),
    "sessions that are none": replace_in("manifest.json", b'"sessions":[', b'"sessions":5,"others":['),
    "no sessions": replace_in("manifest.json", b'"sessions":[', b'"sessions":[],"others":['),
    "a time that no calendar has": replace_in("manifest.json", b'"created_at":', b'"created_at":' + b"9" * 400),
    "a time without end": replace_in("manifest.json", b'"created_at":', b'"created_at":1e999,"created":'),
    "an entry incomplete": replace_in("manifest.json", b'"created_at"', b'"created"'),
    "an id with a NUL": replace_in("manifest.json", b'{"id":"', b'{"id":"../../evil\\u0000'),
    "a blob elsewhere": replace_in("manifest.json", b'"blobs":["', b'"blobs":["../../../evil'),
    "a blob missing": replace_in("manifest.json", b'"blobs":["', b'"blobs":["0'),
}
