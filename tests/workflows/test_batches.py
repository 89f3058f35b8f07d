"""The number of writes to a workflow's store: a repeatable step ends in one write together with the events after it."""

from __future__ import annotations

import unittest
from collections.abc import Sequence
from typing import Any

from openagentic_sdk import Flow, HookEngine, HookMatcher, MemorySessionStore, RunFailedError, workflow
from openagentic_sdk.errors import StorageError
from openagentic_sdk.events import Event, ToolStarted
from openagentic_sdk.sessions.core import SessionWriter
from openagentic_sdk.sessions.folds.view import KeptView
from tests.size import full_size

from .test_flow import FlowCase

START = ["tool.use", "permission.decision", "tool.started"]
STEPS = 4


class WatchedStore(MemorySessionStore):
    """Record the batches of events, and refuse all batches from number `refused` on."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []
        self.refused: int | None = None

    def take_over(self, session_id: str) -> SessionWriter:
        return WatchedWriter(self, super().take_over(session_id))


class WatchedWriter(SessionWriter):
    def __init__(self, store: WatchedStore, inner: SessionWriter) -> None:
        self.session_id, self.epoch = inner.session_id, inner.epoch
        self._store, self._inner = store, inner

    @property
    def last_seq(self) -> int:
        return self._inner.last_seq

    def append(self, events: Sequence[Event]) -> list[Event]:
        self._store.batches.append([event.type for event in events])
        if self._store.refused is not None and len(self._store.batches) >= self._store.refused:
            raise StorageError("the disk is full")
        return self._inner.append(events)

    def keep_view(self, kept: KeptView) -> None:
        self._inner.keep_view(kept)

    def close(self) -> None:
        self._inner.close()


class Batches(FlowCase):
    def setUp(self) -> None:
        super().setUp()
        self.store = self.watched = WatchedStore()

    async def count(self, **more: Any) -> int:
        """Run one step after another."""

        @workflow
        async def count(flow: Flow) -> int:
            number = 0
            for _ in range(STEPS):
                number = await flow.step(self.add, number, effect=more.get("effect", "idempotent"))
            return number

        options = self.options(**{name: value for name, value in more.items() if name != "effect"})
        return (await count.run(options=options, session="s")).output

    def add(self, number: int) -> int:
        self.effect(f"add {number}")
        started = {event.tool_use_id for event in self.store.iter_events("s") if isinstance(event, ToolStarted)}
        self.assertEqual(len(started), number + 1, "the call must be in the log before its effect")
        return number + 1

    def steps(self) -> list[list[str]]:
        """The batches with events of steps, without the one that ends the body."""
        return [batch for batch in self.watched.batches if {"tool.started", "tool.result"} & {*batch}]

    async def test_a_step_that_may_run_again_is_one_write_and_its_start_is_stored_before_its_effect(self) -> None:
        self.assertEqual(await self.count(), STEPS)
        self.assertEqual(self.steps(), [START, *[["tool.result", *START]] * (STEPS - 1), ["tool.result"]])
        events = self.store.read_events("s")
        self.assertEqual([event.seq for event in events], list(range(1, len(events) + 1)))
        self.assertEqual(sum(event.type == "tool.result" for event in events), STEPS)

    async def test_the_result_of_an_unsafe_step_is_stored_before_anything_follows_from_it(self) -> None:
        self.assertEqual(await self.count(effect="unsafe"), STEPS)
        self.assertEqual([batch for batch in self.watched.batches if "tool.result" in batch], [["tool.result"]] * STEPS)

    async def test_hooks_find_the_call_in_the_log(self) -> None:
        found: list[bool] = []

        def look(payload: dict[str, Any]) -> None:
            uses = [event for event in self.store.iter_events("s") if event.type == "tool.use"]
            found.append(bool(uses) and len(uses) == len(found) + 1)

        hooks = HookEngine(pre_tool_use=[HookMatcher(name="look", tool_name_pattern="*", hook=look)])
        self.assertEqual(await self.count(hooks=hooks), STEPS)
        self.assertEqual(found, [True] * STEPS)

    @full_size
    async def test_a_store_that_refuses_leaves_a_log_that_continues_where_it_ended(self) -> None:
        self.assertEqual(await self.count(), STEPS)
        for refused in range(3, len(self.watched.batches)):
            with self.subTest(refused=refused):
                self.store = self.watched = WatchedStore()
                self.watched.refused = refused
                with self.assertRaisesRegex(RunFailedError, "the disk is full"):
                    await self.count()
                self.watched.refused = None
                self.assertEqual(await self.count(), STEPS)
                results = [e for e in self.store.iter_events("s") if e.type == "tool.result"]
                self.assertEqual(len(results), STEPS)

    async def test_no_step_is_made_that_cannot_be_stored_whatever_the_options_want(self) -> None:
        self.watched.refused = 4
        with self.assertRaisesRegex(RunFailedError, "the disk is full"):
            await self.count(on_storage_error="continue")
        self.assertEqual(self.effects, ["add 0"])


if __name__ == "__main__":
    unittest.main()
