"""Our stores through the protocol of the Claude Agent SDK: its contracts, and stricter ones against data loss."""

from __future__ import annotations

import asyncio
import copy
import importlib.util
import tempfile
import unittest
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from openagentic_sdk.errors import InvalidEventError
from openagentic_sdk.events import UnknownEvent
from openagentic_sdk.parts.record.interop import ENTRY_TYPE, ClaudeSessionStore, fold_session_summary, session_id_of
from openagentic_sdk.parts.record.lifecycle import rename_session
from openagentic_sdk.sessions.stores.locate import open_store
from openagentic_sdk.testing.clock import FakeClock

MAIN = {"project_key": "proj", "session_id": "sess"}
SUB1 = {**MAIN, "subpath": "subagents/agent-1"}
SUB2 = {**MAIN, "subpath": "subagents/agent-2"}
OTHER = {"project_key": "proj", "session_id": "sess2"}
ELSEWHERE = {"project_key": "elsewhere", "session_id": "sess"}


def entry(uuid: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"type": "x", **({} if uuid is None else {"uuid": uuid}), **fields}


class AdapterTest(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)
        self.number = 0

    def open_url(self, url: str) -> ClaudeSessionStore:
        store = open_store(url)
        adapter = ClaudeSessionStore(store)
        self.addCleanup(store.close)
        self.addCleanup(adapter.close)
        return adapter

    def on_every_store(self, check: Callable[[ClaudeSessionStore], Awaitable[None]]) -> None:
        for url in ("memory:", "sqlite:{}/{}.db?durability=flush", "file:{}/{}?durability=flush"):
            self.number += 1
            with self.subTest(url):
                asyncio.run(self.bounded(check(self.open_url(url.format(self.place, self.number)))))

    async def bounded(self, work: Awaitable[None]) -> None:
        async with asyncio.timeout(120):
            await work

    def test_entries_come_back_in_the_order_of_the_calls(self) -> None:
        async def check(store: ClaudeSessionStore) -> None:
            self.assertIsNone(await store.load(MAIN))
            batches = [
                [entry("z", n=1)],
                [entry("a"), entry("m", deep={"b": [None, 2**70, "\x00\ud800"]})],
                [entry("b")],
            ]
            for batch in batches:
                await store.append(MAIN, batch)
            await store.append(MAIN, [])
            self.assertEqual(await store.load(MAIN), [item for batch in batches for item in batch])
            self.assertIsNone(await store.load(SUB1))

        self.on_every_store(check)

    def test_an_empty_append_creates_nothing(self) -> None:
        async def check(store: ClaudeSessionStore) -> None:
            await store.append(MAIN, [])
            self.assertIsNone(await store.load(MAIN))
            self.assertEqual(await store.list_sessions("proj"), [])

        self.on_every_store(check)

    def test_a_uuid_that_is_there_is_not_added_again_and_entries_without_one_always_are(self) -> None:
        async def check(store: ClaudeSessionStore) -> None:
            await store.append(MAIN, [entry("a", n=1), entry(n=2), entry("a", n=3)])
            await store.append(MAIN, [entry("b", n=4), entry("a", n=5), entry(n=2), entry("b", n=6)])
            await store.append(MAIN, [entry("a", n=7)])
            loaded = await store.load(MAIN)
            self.assertEqual([item["n"] for item in loaded or ()], [1, 2, 4, 2])
            await store.append(SUB1, [entry("a", n=8)])
            self.assertEqual(await store.load(SUB1), [entry("a", n=8)])

        self.on_every_store(check)

    def test_keys_are_kept_apart(self) -> None:
        async def check(store: ClaudeSessionStore) -> None:
            keys = [MAIN, SUB1, SUB2, OTHER, ELSEWHERE, {"project_key": "pro", "session_id": "jsess"}]
            keys += [{**MAIN, "subpath": name} for name in ("subagents/agent-11", "..", "/", "a\x00", "A", "a")]
            for number, key in enumerate(keys):
                await store.append(key, [entry(n=number)])
            for number, key in enumerate(keys):
                self.assertEqual(await store.load(key), [entry(n=number)])
            for wrong in ({**MAIN, "subpath": ""}, {"project_key": "p", "session_id": 7}):
                with self.assertRaises(ValueError):
                    await store.load(wrong)

        self.on_every_store(check)

    def test_lists_show_main_transcripts_of_one_project_with_rising_times(self) -> None:
        async def check(store: ClaudeSessionStore) -> None:
            self.assertEqual(await store.list_sessions("proj"), [])
            for key in (MAIN, SUB1, OTHER, ELSEWHERE, {**OTHER, "session_id": "only-sub", "subpath": "s"}):
                await store.append(key, [entry()])
            listed = {row["session_id"]: row["mtime"] for row in await store.list_sessions("proj")}
            self.assertEqual(set(listed), {"sess", "sess2"})
            self.assertTrue(all(mtime > 1e12 for mtime in listed.values()))
            await store.append(SUB1, [entry()])
            self.assertEqual({row["session_id"]: row["mtime"] for row in await store.list_sessions("proj")}, listed)
            for _ in range(3):
                await store.append(MAIN, [entry()])
                newer = {row["session_id"]: row["mtime"] for row in await store.list_sessions("proj")}
                self.assertGreater(newer["sess"], listed["sess"])
                listed = newer
            self.assertEqual(await store.list_sessions("unknown"), [])

        self.on_every_store(check)

    def test_subkeys_are_listed_and_deleted_one_by_one_or_with_their_main_key(self) -> None:
        async def check(store: ClaudeSessionStore) -> None:
            await store.delete(MAIN)
            self.assertEqual(await store.list_subkeys(MAIN), [])
            for key in (
                MAIN,
                SUB1,
                SUB2,
                {**OTHER, "subpath": "theirs"},
                ELSEWHERE,
                {**MAIN, "subpath": "subagents/agent-11"},
            ):
                await store.append(key, [entry("u")])
            names = ["subagents/agent-1", "subagents/agent-11", "subagents/agent-2"]
            self.assertEqual(sorted(await store.list_subkeys(MAIN)), names)
            await store.delete(SUB1)
            self.assertEqual(sorted(await store.list_subkeys(MAIN)), names[1:])
            self.assertIsNotNone(await store.load(MAIN))
            await store.delete(MAIN)
            for gone in (MAIN, SUB1, SUB2):
                self.assertIsNone(await store.load(gone))
            self.assertEqual(await store.list_subkeys(MAIN), [])
            self.assertEqual(await store.list_sessions("proj"), [])
            self.assertIsNotNone(await store.load(ELSEWHERE))
            self.assertEqual(await store.list_subkeys(OTHER), ["theirs"])
            await store.append(MAIN, [entry("u", again=True)])
            self.assertEqual(await store.load(MAIN), [entry("u", again=True)])

        self.on_every_store(check)

    def test_summaries_equal_the_fold_whatever_the_split(self) -> None:
        entries = [
            entry("1", timestamp="2026-01-01T00:00:00Z", cwd="/w", customTitle="first", isSidechain=False),
            {"type": "user", "uuid": "2", "message": {"content": "hello\nworld"}, "gitBranch": "main"},
            {"type": "user", "uuid": "3", "message": {"content": "later"}},
            entry("4", customTitle="second", timestamp="2027-01-01T00:00:00Z"),
            {"type": "tag", "tag": "blue"},
        ]
        whole = fold_session_summary(None, MAIN, entries)["data"]
        self.assertEqual(
            (whole["custom_title"], whole["first_prompt"], whole["tag"]), ("second", "hello world", "blue")
        )
        self.assertEqual((whole["created_at"], whole["cwd"], whole["git_branch"]), (1767225600000, "/w", "main"))

        async def check(store: ClaudeSessionStore) -> None:
            await store.append(MAIN, entries[:2])
            await store.append(MAIN, entries[2:])
            await store.append(SUB1, [entry(customTitle="stolen")])
            await store.append(ELSEWHERE, [entry()])
            (row,) = await store.list_session_summaries("proj")
            self.assertEqual(row["data"], whole)
            self.assertEqual([row["mtime"]], [item["mtime"] for item in await store.list_sessions("proj")])
            again = fold_session_summary(row, MAIN, [entry()])
            self.assertEqual((again["session_id"], again["mtime"]), ("sess", row["mtime"]))
            await store.delete(MAIN)
            self.assertEqual(await store.list_session_summaries("proj"), [])

        self.on_every_store(check)

    def test_a_title_of_our_own_neither_hides_a_transcript_nor_stops_it(self) -> None:
        async def check(store: ClaudeSessionStore) -> None:
            await store.append(MAIN, [entry("a")])
            for number in range(20):
                rename_session(store._store, session_id_of(MAIN), f"title {number}")
            self.assertEqual([row["session_id"] for row in await store.list_sessions("proj")], ["sess"])
            self.assertEqual(len(await store.list_session_summaries("proj")), 1)
            await store.append(MAIN, [entry("b")])
            self.assertEqual(await store.load(MAIN), [entry("a"), entry("b")])

        self.on_every_store(check)

    def test_a_batch_that_a_crash_cut_off_is_completed_and_summarised_whole(self) -> None:
        batch = [entry("a", cwd="/a"), entry("b", customTitle="T"), entry("c")]

        async def check(store: ClaudeSessionStore) -> None:
            await store.append(MAIN, [entry("first")])
            cut_off = [UnknownEvent({"type": ENTRY_TYPE, "entry": each}) for each in batch[:2]]
            store._store.append_events(session_id_of(MAIN), cut_off)
            self.assertEqual(len(await store.list_sessions("proj")), 1)
            await store.append(MAIN, batch)
            self.assertEqual(await store.load(MAIN), [entry("first"), *batch])
            (row,) = await store.list_session_summaries("proj")
            self.assertEqual(row["data"], fold_session_summary(None, MAIN, [entry("first"), *batch])["data"])

        self.on_every_store(check)

    def test_one_bad_entry_keeps_the_batch_out(self) -> None:
        async def check(store: ClaudeSessionStore) -> None:
            for bad in ({"no": "type"}, "text", None, entry(x=float("nan")), entry(x=object())):
                for _ in range(2):
                    with self.assertRaises(InvalidEventError):
                        await store.append(MAIN, [entry("good"), bad])  # type: ignore[list-item]
                    self.assertIsNone(await store.load(MAIN))
            self.assertEqual(await store.list_sessions("proj"), [])

        self.on_every_store(check)

    def test_changing_a_passed_or_loaded_value_does_not_change_the_store(self) -> None:
        async def check(store: ClaudeSessionStore) -> None:
            item = entry("a", list=[1])
            original = copy.deepcopy(item)
            await store.append(MAIN, [item])
            item["list"].append(2)
            for _ in range(2):
                loaded = await store.load(MAIN)
                self.assertEqual(loaded, [original])
                (loaded or [])[0]["list"].append(3)

        self.on_every_store(check)

    def test_concurrent_appends_keep_their_order_and_lose_nothing(self) -> None:
        async def check(store: ClaudeSessionStore) -> None:
            await asyncio.gather(*(store.append(MAIN, [entry(n=n, part=part) for part in "ab"]) for n in range(20)))
            loaded = await store.load(MAIN) or []
            self.assertEqual(
                [(item["n"], item["part"]) for item in loaded], [(n, part) for n in range(20) for part in "ab"]
            )

        self.on_every_store(check)

    def test_two_adapters_on_one_database_see_each_other(self) -> None:
        async def check() -> None:
            one, other = (self.open_url(f"sqlite:{self.place}/shared.db?durability=flush") for _ in range(2))
            await asyncio.gather(
                *(store.append(MAIN, [entry(f"{n}"), entry(n=n)]) for n in range(10) for store in (one, other))
            )
            loaded = await one.load(MAIN) or []
            self.assertEqual(
                sorted(item["uuid"] for item in loaded if "uuid" in item), sorted(str(n) for n in range(10))
            )
            self.assertEqual(sum("n" in item for item in loaded), 20)
            self.assertEqual(await other.load(MAIN), loaded)

        asyncio.run(self.bounded(check()))

    def test_it_works_under_trio_with_the_anyio_that_is_there(self) -> None:
        if not importlib.util.find_spec("trio") or not importlib.util.find_spec("anyio"):
            self.skipTest("trio and anyio are not installed")
        import trio

        async def check() -> None:
            store = self.open_url("memory:")
            async with trio.open_nursery() as nursery:
                for number in range(10):
                    nursery.start_soon(store.append, MAIN, [entry(n=number)])
            loaded = await store.load(MAIN) or []
            self.assertEqual(sorted(item["n"] for item in loaded), list(range(10)))
            self.assertEqual(len(await store.list_sessions("proj")), 1)

        trio.run(check)

    def test_two_sessions_never_have_the_same_time(self) -> None:
        async def check(store: ClaudeSessionStore) -> None:
            store._clock = FakeClock(1_800_000_000.0)
            for number in range(5):
                await store.append({"project_key": "proj", "session_id": f"s{number}"}, [entry()])
            rows = await store.list_sessions("proj")
            self.assertEqual([row["session_id"] for row in rows], ["s4", "s3", "s2", "s1", "s0"])
            times = [row["mtime"] for row in rows]
            self.assertEqual(times, sorted(set(times), reverse=True))

        self.on_every_store(check)


class FirstPromptTest(unittest.TestCase):
    """The first prompt that Claude's own list shows for a session."""

    def first_prompt(self, *contents: Any, **fields: Any) -> dict[str, Any]:
        entries = [{"type": "user", "message": {"content": content}, **fields} for content in contents]
        data: dict[str, Any] = fold_session_summary(None, MAIN, entries)["data"]
        return data

    def test_a_prompt_that_begins_with_a_bracket_counts(self) -> None:
        for text in ("<div> is broken", "<b>why</b>", "< 5 items", "<ide_selection>x</ide_selection> what is this?"):
            self.assertEqual(self.first_prompt(text)["first_prompt"], text)

    def test_text_that_no_person_wrote_is_omitted(self) -> None:
        for text in (
            "<local-command-stdout>x</local-command-stdout>",
            "<session-start-hook>x",
            "<tick>1",
            "[Request interrupted by user for tool use]",
            "<ide_opened_file>a\nb</ide_opened_file>",
            "  <ide_selection>x\ny</ide_selection>  ",
            "",
        ):
            self.assertEqual(self.first_prompt(text, "then this")["first_prompt"], "then this", text)
        for marked in ({"isMeta": True}, {"isCompactSummary": True}):
            self.assertNotIn("first_prompt", self.first_prompt("text", **marked))
        self.assertNotIn("first_prompt", self.first_prompt([{"type": "tool_result", "content": "x"}]))

    def test_a_block_of_an_ide_before_the_prompt_does_not_hide_it(self) -> None:
        blocks = [
            {"type": "text", "text": "<ide_opened_file>a.py</ide_opened_file>"},
            {"type": "text", "text": "fix\nit"},
        ]
        self.assertEqual(self.first_prompt(blocks)["first_prompt"], "fix it")

    def test_a_slash_command_stands_in_until_there_is_a_prompt(self) -> None:
        command = "<command-message>review</command-message>\n<command-name>/review</command-name>"
        data = self.first_prompt(command, "<command-name>/other</command-name>")
        self.assertEqual(data["command_fallback"], "/review")
        self.assertNotIn("first_prompt", data)
        self.assertEqual(self.first_prompt(command, "now this")["first_prompt"], "now this")

    def test_a_tag_can_be_removed_and_an_invalid_time_is_ignored(self) -> None:
        entries = [{"type": "x", "timestamp": "nonsense"}, {"type": "tag", "tag": "a"}, {"type": "tag", "tag": ""}]
        data = fold_session_summary(None, MAIN, entries)["data"]
        self.assertEqual(data, {"is_sidechain": False})
