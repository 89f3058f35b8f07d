"""The only writer of a session's log: number, stamp and store an event, then show it.

An event to be stored is shown only then. If the store refuses, the run stops before its next effect or continues unsaved
and announces that, depending on the options. A store that does not answer at all is abandoned and not called again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

from ..errors import OpenAgentSdkError, StorageError, StorageTimeoutError
from ..events import Event, SessionCompacted, SystemNotice
from ..ground.frozen import changed
from ..ground.threads import error_words, note_left, run_in_thread, settled, start_thread, wait_until
from ..serialization import joined
from ..sessions.core import SessionWriter, StoreCore
from ..sessions.folds.view import SessionView
from .channel import EventChannel
from .lifetime import STORE_MOMENT_S
from .part import Part, Parts

E = TypeVar("E", bound=Event)
_PACKAGE = __name__.partition(".")[0]
# How often the remaining time of the run is checked while a slow store is working.
_LOOK_AGAIN_S = 0.5

# Returns the seconds to wait for a store's answer; None means no limit.
StorePatience = Callable[[], float | None]


class Recorder:
    """The writer of one session, which shows stored events on a channel. `patience` limits how long the store may take.

    `guard` raises if the run has lost its right to act: then nothing is appended, and nothing follows what was appended.
    Events that may wait (`Part.may_wait`) count for the view at once; they are stored and shown with the next ones, or by
    `flush`.
    """

    def __init__(
        self,
        writer: SessionWriter,
        view: SessionView,
        channel: EventChannel[Event],
        *,
        may_block: bool = False,
        on_storage_error: Literal["stop", "continue"] = "stop",
        parent_tool_use_id: str | None = None,
        agent_name: str | None = None,
        guard: Callable[[], None] | None = None,
    ) -> None:
        self.channel = channel
        self.saved = True
        self.patience: StorePatience = lambda: None
        self.parts = Parts()
        self.hung: StorageTimeoutError | None = None
        self._writer = writer
        self._view = view
        self._may_block = may_block or not _is_ours(writer)
        self._on_storage_error = on_storage_error
        self._parent_tool_use_id = parent_tool_use_id
        self._agent_name = agent_name
        self._guard = guard
        self._said_unsaved = self._said_unsigned = False
        self._is_closed = False
        self._held: Sequence[Event] = ()
        self._one_at_a_time = asyncio.Lock()  # so that parts see events in the order of `seq`

    async def append(self, *events: Event) -> list[Event]:
        """Store the events as one batch and show them; return them as stored."""
        if not events:
            return []
        # Not in a run that is no longer saved: there is no next write to store them with.
        if self.saved and any(part.may_wait(events) for part in self.parts.at(Part.may_wait)):
            return await self._hold(self._stamped(events))
        stored_events = await self.store(*events)
        await self.channel.send(*stored_events)
        # The first events are those that had waited.
        return stored_events[-len(events) :]

    async def flush(self) -> None:
        """Store and show the events that wait for the next ones."""
        if self._held:
            await self.channel.send(*await self.store())

    async def _hold(self, events: Sequence[Event]) -> list[Event]:
        async with self._one_at_a_time:
            last_seq, authority = self._writer.last_seq + len(self._held), self._view.authority
            signed = events if authority is None else authority.sign(events, last_seq)
            # As the store will number them: this run is the only writer, and the lock serializes its own events.
            numbered = [changed(event, seq=seq) for seq, event in enumerate(signed, start=last_seq + 1)]
            for event in numbered:
                self._view.apply(event, made_here=True)
            self._held = joined(self._held, signed)
            return numbered

    async def store(self, *events: Event) -> list[Event]:
        """Store the waiting events and these, and show none; return all. A cancellation waits for the store's answer."""
        batch = self._stamped(events)
        # Instead of `async with`, which makes two more coroutines for each event.
        await self._one_at_a_time.acquire()
        try:
            # Inside the lock: the wait for it may last longer than the right to act.
            if self._guard is not None:
                self._guard()
            authority, queue = self._view.authority, self._held
            if authority is not None:
                # Signed inside the lock, because a digest covers the `seq` that only the lock makes certain.
                batch = authority.sign(batch, self._writer.last_seq + len(queue))
            self._held = ()
            try:
                stored_events, cancelled = await self._write(joined(queue, batch))
            except BaseException as error:  # where log and view may differ, no event may follow
                self._is_closed |= bool(queue) or (isinstance(error, StorageError) and not error.retryable)
                raise
            # Those of the queue have been in the view since `_hold`.
            for event in stored_events[len(queue) :]:
                self._view.apply(event, made_here=True)
            for part in self.parts.at(Part.stored):
                part.stored(stored_events)
            if self._guard is not None:
                self._guard()  # the process may have been suspended for too long in between
            if authority is not None and authority.problem is not None and not self._said_unsigned:
                self._said_unsigned = True
                text = f"approvals given in this run will be asked for again when it is resumed: {authority.problem}"
                await self.show(SystemNotice("unsigned", text))
            if self.saved and stored_events and isinstance(stored_events[-1], SessionCompacted):
                # Inside the lock, because no event may be applied while the view is replaced.
                cancelled = await self._let_go() or cancelled
        finally:
            self._one_at_a_time.release()
        if cancelled is not None:
            raise cancelled
        return stored_events

    async def _let_go(self) -> asyncio.CancelledError | None:
        """Release the events that a compaction removed from view, keep the rest for a resume; return any cancellation."""
        looking, cancelled = await settled(run_in_thread(self._view.kept))
        kept_view = looking.result()
        _, late = await self._ask(partial(self._writer.keep_view, kept_view))
        freeing, later = await settled(run_in_thread(partial(self._view.forget, kept_view)))
        freeing.result()
        return later or late or cancelled

    def masked(self, event: E) -> E:
        """Return the event as it may be stored and shown."""
        for part in self.parts.at(Part.mask):
            event = part.mask(event)
        return event

    async def show(self, event: Event) -> None:
        """Show an event that is never stored."""
        stamped = self._stamped([event])
        for part in self.parts.at(Part.stored):
            part.stored(stamped)
        await self.channel.send(*stamped)

    async def append_by(self, append: Callable[[SessionWriter], object]) -> None:
        """Call, off the event loop, a function that appends to the session by itself; its events are not shown.

        Raises the errors of `ask_store`.
        """
        _, cancelled = await self._ask(partial(append, self._writer))
        if cancelled is not None:
            raise cancelled

    async def close(self) -> None:
        """Release the session's lock; closing twice is allowed. A store that hangs keeps the lock until it answers."""
        self._is_closed = True
        if self.hung is not None:
            return
        if not self._may_block:
            self._writer.close()
            return
        _, cancelled = await self._ask(self._writer.close)
        if cancelled is not None:
            raise cancelled

    def _stamped(self, events: Sequence[Event]) -> Sequence[Event]:
        for part in self.parts.at(Part.mask):
            events = [*map(part.mask, events)]
        if self._parent_tool_use_id is None and self._agent_name is None:
            return events
        parent, name = self._parent_tool_use_id, self._agent_name
        return [
            changed(event, parent_tool_use_id=event.parent_tool_use_id or parent, agent_name=name) for event in events
        ]

    async def _write(self, batch: Sequence[Event]) -> tuple[list[Event], asyncio.CancelledError | None]:
        """Append, in a thread if the store may block; return the stored events, and a cancellation to raise later."""
        if self._is_closed:
            raise StorageError("this run has ended: its session accepts no more events from it")
        if self._said_unsaved:
            return list(batch), None  # after a lost event, later ones would leave a gap in the log
        try:
            if self.hung is not None:
                raise self.hung
            if not self._may_block and not self._writer.waits_for_disk(batch):
                return self._writer.append(batch), None
            return await self._ask(partial(self._writer.append, batch))
        except StorageError as error:
            self.saved = False
            if self._on_storage_error == "stop":
                raise
            if not self._said_unsaved:
                self._said_unsaved = True
                await self.show(SystemNotice("unsaved", f"this run is no longer being saved: {error}"))
            return list(batch), None

    async def _ask(self, call: Callable[[], Any]) -> tuple[Any, asyncio.CancelledError | None]:
        try:
            return await ask_store(call, self.patience, too_late=self._writer.close)
        except StorageTimeoutError as error:
            self.hung = error
            raise


async def ask_store(
    call: Callable[[], Any], patience: StorePatience, *, too_late: Callable[[], None] | None = None
) -> tuple[Any, asyncio.CancelledError | None]:
    """Call a store in a thread; return its answer, and a cancellation for the caller to raise.

    A cancelled wait continues for at most `STORE_MOMENT_S`. Raises the store's typed errors, `StorageError` for any
    other error, and `StorageTimeoutError` on timeout. After that, `too_late` is called if the answer arrives after all.
    """
    gave_up = False

    def work() -> Any:
        try:
            return call()
        finally:
            if gave_up and too_late is not None:
                too_late()

    done, now = start_thread(work, "openagentic-store", keep=True), asyncio.get_running_loop().time
    give_up_at, cancelled = math.inf, None
    while not done.done():
        limit_s = patience()  # shrinks if the run is stopped in the meantime
        give_up_at = min(give_up_at, math.inf if limit_s is None else now() + limit_s)
        try:
            # In short waits: a stop requested meanwhile shortens `patience`, and nothing else would end a longer wait.
            await wait_until(done, min(max(0.0, give_up_at - now()), _LOOK_AGAIN_S))
        except asyncio.CancelledError as error:
            cancelled = error
            give_up_at = min(give_up_at, now() + STORE_MOMENT_S)
        if now() >= give_up_at and not done.done():
            gave_up = True
            note_left("thread openagentic-store")
            raise StorageTimeoutError(
                "the session store does not respond, so the last events may or may not be stored: check its disk or "
                "server, then resume the session"
            )
    failure = done.exception()
    if failure is None or isinstance(failure, OpenAgentSdkError):
        return done.result(), cancelled
    raise StorageError(f"the session store failed: {': '.join(error_words(failure))}") from failure


def _is_ours(value: StoreCore | SessionWriter) -> bool:
    """Whether a store or writer belongs to this package: our writers themselves report if they would block an event loop."""
    return type(value).__module__.partition(".")[0] == _PACKAGE


def may_block(store: StoreCore) -> bool:
    """Whether calling this store could block the event loop: it uses a network, or is not ours."""
    return store.is_remote or not _is_ours(store)


async def off_loop(in_thread: bool, call: Callable[..., Any], *args: Any) -> Any:
    """Call a store, directly or with `in_thread` in a thread, and return its answer."""
    if not in_thread:
        return call(*args)
    answer, cancelled = await ask_store(partial(call, *args), lambda: None)
    if cancelled is not None:
        raise cancelled
    return answer
