"""The only writer of a session's log: number, stamp and store an event, then show it.

An event is shown only when it is stored. When the store refuses, the run stops before its next effect, or goes on unsaved
and says so, as the options want.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from ..errors import StorageError
from ..events import Event, SessionCompacted, SystemNotice
from ..sessions.base import SessionWriter
from ..sessions.folds.view import SessionView
from ..threads import run_in_thread
from .channel import EventChannel


class Recorder:
    """Appends to one session and shows the stored events on a channel."""

    def __init__(
        self,
        writer: SessionWriter,
        view: SessionView,
        channel: EventChannel,
        *,
        is_remote: bool = False,
        on_storage_error: Literal["stop", "continue"] = "stop",
        parent_tool_use_id: str | None = None,
        agent_name: str | None = None,
        mask: Callable[[Event], Event] | None = None,
    ) -> None:
        self.channel = channel
        self.saved = True
        self._writer = writer
        self._view = view
        self._is_remote = is_remote
        self._on_storage_error = on_storage_error
        self._parent_tool_use_id = parent_tool_use_id
        self._agent_name = agent_name
        self._mask = mask
        self._said_unsaved = self._said_unsigned = False
        self._one_at_a_time = asyncio.Lock()  # events are seen in the order of their `seq`

    async def append(self, *events: Event) -> list[Event]:
        """Store the events as one batch and show them; returns them as they were stored."""
        stored = await self.store(*events)
        await self.channel.send(*stored)
        return stored

    async def store(self, *events: Event) -> list[Event]:
        """Store without showing. A cancellation waits until the store has answered."""
        batch = [self._stamp(event) for event in events]
        if not batch:
            return []
        async with self._one_at_a_time:
            authority = self._view.authority
            if authority is not None:
                batch = authority.sign(batch, self._writer.last_seq)
            stored, cancelled = await self._write(batch)
            for event in stored:
                self._view.apply(event, made_here=True)
            if authority is not None and authority.problem is not None and not self._said_unsigned:
                self._said_unsigned = True
                text = f"what is allowed in this run will be asked again when it is resumed: {authority.problem}"
                await self.show(SystemNotice("unsigned", text))
            if self.saved and stored and isinstance(stored[-1], SessionCompacted):
                kept = self._view.kept()
                self._view.forget(kept)
                keeping, late = await settled(off_loop(True, self._writer.keep_view, kept))
                keeping.result()
                cancelled = cancelled or late
        if cancelled is not None:
            raise cancelled
        return stored

    async def show(self, event: Event) -> None:
        """Show an event that is never stored."""
        await self.channel.send(self._stamp(event))

    async def close(self) -> None:
        """Give the session's lock back; closing twice is allowed."""
        closing, cancelled = await settled(off_loop(self._is_remote, self._writer.close))
        closing.result()
        if cancelled is not None:
            raise cancelled

    def _stamp(self, event: Event) -> Event:
        if self._mask is not None:
            event = self._mask(event)
        if self._parent_tool_use_id is None and self._agent_name is None:
            return event
        return replace(event, parent_tool_use_id=self._parent_tool_use_id, agent_name=self._agent_name)

    async def _write(self, batch: Sequence[Event]) -> tuple[list[Event], asyncio.CancelledError | None]:
        """Append, in a thread when the store makes its caller wait; a cancellation is given back, to be raised."""
        cancelled: asyncio.CancelledError | None = None
        try:
            if not self._is_remote and not self._writer.waits_for_disk(batch):
                return self._writer.append(batch), None
            writing, cancelled = await settled(off_loop(True, self._writer.append, batch))
            return writing.result(), cancelled
        except StorageError as error:
            self.saved = False
            if self._on_storage_error == "stop":
                raise
            if not self._said_unsaved:
                self._said_unsaved = True
                await self.show(SystemNotice("unsaved", f"this run is not being saved any more: {error}"))
            return list(batch), cancelled


async def off_loop(is_remote: bool, call: Callable[..., Any], *args: Any) -> Any:
    """Call a store: at once, or in a thread when it talks to a network."""
    if not is_remote:
        return call(*args)
    return await run_in_thread(partial(call, *args), name="openagentic-store")


async def settled(work: Coroutine[Any, Any, Any]) -> tuple[asyncio.Task[Any], asyncio.CancelledError | None]:
    """Wait for work to its end through any number of cancellations; the last of them is given back, to be raised."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    return task, cancelled
