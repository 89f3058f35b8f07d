"""Sessions as messages and turns for async services, over every kind of store."""

from __future__ import annotations

import asyncio
import os
import tempfile
import unittest
from collections.abc import Awaitable, Callable
from typing import Any

from openagentic_sdk import OpenAgenticOptions, run
from openagentic_sdk.errors import InvalidEventError, SessionExistsError, SessionNotFoundError
from openagentic_sdk.parts.record.async_store import AsyncSessionStore, AsyncStore
from openagentic_sdk.sessions.stores.locate import open_store
from openagentic_sdk.testing.scripted import ScriptedProvider

from . import servers

CALL = {"id": "c1", "type": "function", "function": {"name": "Read", "arguments": '{"file_path": "a"}'}}
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "reading", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "text"},
    {"role": "assistant", "content": "done"},
    {"role": "user", "content": "two"},
    {"role": "assistant", "content": "again"},
]


class AsyncStoreTest(unittest.TestCase):
    def on_every_store(self, check: Callable[[AsyncStore], Awaitable[None]]) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        urls = ["memory:", f"sqlite:{place.name}/s.db?durability=flush", f"file:{place.name}/f?durability=flush"]
        if url := os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL"):
            urls.append(servers.own_postgres_schema(self, url))
        if url := os.environ.get("OPENAGENTIC_TEST_REDIS_URL"):
            urls.append(servers.own_redis_prefix(self, url))
        for url in urls:
            with self.subTest(url.partition(":")[0]):

                async def run_check(url: str = url) -> None:
                    store = AsyncStore(open_store(url))
                    self.assertIsInstance(store, AsyncSessionStore)
                    try:
                        await check(store)
                    finally:
                        await store.close()

                asyncio.run(run_check())

    def test_messages_come_back_by_turns(self) -> None:
        async def check(store: AsyncStore) -> None:
            self.assertEqual(await store.create_session("s", {"cwd": "/w"}), "s")
            with self.assertRaises(SessionExistsError):
                await store.create_session("s", {})
            for message in TURNS:
                await store.append_message("s", message)
            loaded = await store.load_session("s")
            assert loaded is not None
            self.assertEqual(loaded.metadata, {"cwd": "/w"})
            texts = [(message["role"], message.get("content")) for message in loaded.messages]
            self.assertEqual(texts, [(message["role"], message["content"]) for message in TURNS])
            self.assertEqual(await store.get_messages("s"), loaded.messages)
            self.assertEqual(await store.get_messages("s", 0, 1), loaded.messages[:4])
            self.assertEqual(await store.get_messages("s", from_turn=1), loaded.messages[4:])
            self.assertEqual(await store.get_messages("s", 2), [])
            self.assertEqual([row.id for row in await store.list_sessions("/w")], ["s"])
            self.assertEqual(await store.list_sessions("/other"), [])
            await store.update_metadata("s", {"cwd": None, "x": 1})
            self.assertEqual((await store.load_session("s")).metadata, {"x": 1})  # type: ignore[union-attr]

        self.on_every_store(check)

    def test_missing_things_are_an_error_or_none(self) -> None:
        async def check(store: AsyncStore) -> None:
            self.assertIsNone(await store.load_session("nobody"))
            self.assertFalse(await store.session_exists("nobody"))
            await store.delete_session("nobody")
            for call in (
                store.append_message("nobody", TURNS[0]),
                store.fork_session("nobody", "new"),
                store.get_messages("nobody"),
                store.update_metadata("nobody", {}),
                store.compact_session("nobody", "short"),
            ):
                with self.assertRaises(SessionNotFoundError):
                    await call
            await store.create_session("s")
            for bad in ({"role": "stranger"}, {}, "text"):
                with self.assertRaises(InvalidEventError):
                    await store.append_message("s", bad)  # type: ignore[arg-type]
            for state in ("", {}, {"summary": 5}):
                with self.assertRaises(InvalidEventError):
                    await store.compact_session("s", state)  # type: ignore[arg-type]
            self.assertEqual([row.id for row in await store.list_sessions()], ["s"])

        self.on_every_store(check)

    def test_ten_appends_at_once_land_in_the_order_of_the_calls(self) -> None:
        async def check(store: AsyncStore) -> None:
            await store.create_session("s")
            texts = [f"message {number}" for number in range(10)]
            await asyncio.gather(*(store.append_message("s", {"role": "user", "content": text}) for text in texts))
            self.assertEqual([message["content"] for message in await store.get_messages("s")], texts)

        self.on_every_store(check)

    def test_a_fork_is_independent_and_a_summary_replaces_its_messages(self) -> None:
        async def check(store: AsyncStore) -> None:
            await store.create_session("s")
            for message in TURNS:
                await store.append_message("s", message)
            self.assertEqual(await store.fork_session("s", "fork"), "fork")
            await store.compact_session("fork", {"summary": "All is well."})
            await store.append_message("fork", {"role": "user", "content": "three"})
            forked = await store.load_session("fork")
            assert forked is not None
            self.assertEqual(forked.messages[-1]["content"], "three")
            self.assertIn("All is well.", str(forked.messages[0]["content"]))
            self.assertLessEqual(len(forked.messages), 3)
            self.assertEqual(len(await store.get_messages("s")), len(TURNS))
            await store.delete_session("s")
            self.assertTrue(await store.session_exists("fork"))

        self.on_every_store(check)

    def test_a_run_reads_what_was_appended_and_the_other_way_round(self) -> None:
        async def check(store: AsyncStore) -> None:
            await store.create_session("s")
            for message in TURNS:
                await store.append_message("s", message)
            provider = ScriptedProvider(["three it is"])
            options = OpenAgenticOptions(provider=provider, model="m", session_store=store.store, resume="s")
            result = await run(prompt="three", options=options)
            self.assertEqual(result.final_text, "three it is")
            sent = [message.get("content") for message in provider.requests[0]["messages"]]
            self.assertIn("again", sent)
            read = [message.get("content") for message in await store.get_messages("s", from_turn=2)]
            self.assertEqual(read, ["three", "three it is"])

        self.on_every_store(check)
