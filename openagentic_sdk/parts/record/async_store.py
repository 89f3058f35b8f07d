"""Sessions as messages and turns for async services: a protocol, and an adapter from any store of this package.

Sessions written here can be continued with `query(resume=...)` and vice versa: both are events of the same log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

from ...errors import InvalidEventError, SessionNotFoundError
from ...events import SessionCompacted, ToolResult, ToolUse
from ...sessions.base import SessionStore
from ...sessions.folds.summary import SessionSummary
from ...sessions.rebuild import Message, rebuild_messages
from . import lifecycle
from .importers import events_from_messages
from .in_turn import InTurn
from .lifecycle import SessionState


@runtime_checkable
class AsyncSessionStore(Protocol):
    """Eleven operations on sessions as chat-completions messages and turns (a prompt and everything up to the next)."""

    async def create_session(self, session_id: str | None = None, metadata: Mapping[str, Any] | None = None) -> str:
        """Create a session and return its id, a random one for None. Raises `SessionExistsError`, `OptionsError`."""

    async def load_session(self, session_id: str) -> SessionState | None:
        """Return the session's `metadata`, `messages` and other state, None if it does not exist."""

    async def append_message(self, session_id: str, message: Mapping[str, Any]) -> None:
        """Append one message. Raises `SessionNotFoundError`, `InvalidEventError`, `SessionLockedError`."""

    async def update_metadata(self, session_id: str, metadata: Mapping[str, Any]) -> None:
        """Set keys of the metadata; a value of None removes the key. Raises `SessionNotFoundError`."""

    async def get_messages(self, session_id: str, from_turn: int = 0, to_turn: int | None = None) -> Sequence[Message]:
        """Return the messages of turns `from_turn` (counted from 0) up to but not including `to_turn` (None: to the end).

        Messages before the first prompt belong to turn 0. Raises `SessionNotFoundError`.
        """

    async def fork_session(self, source_session_id: str, new_session_id: str | None = None) -> str:
        """Create an independent copy and return its id. Raises `SessionNotFoundError`, `SessionExistsError`."""

    async def compact_session(self, session_id: str, compaction_state: str | Mapping[str, Any]) -> None:
        """Replace all messages so far, up to the first open call, with this summary in the model's view.

        The summary is a string or the value under `summary`. Raises `SessionNotFoundError`, and `InvalidEventError` if the
        summary is missing or blank.
        """

    async def list_sessions(self, working_directory: str | None = None, limit: int = 100) -> Sequence[SessionSummary]:
        """Return at most `limit` sessions, of that folder or of all folders, most recently written first."""

    async def delete_session(self, session_id: str) -> None:
        """Delete the session and those of its subagents; a missing session is not an error."""

    async def session_exists(self, session_id: str) -> bool:
        """Return whether the session exists."""

    async def close(self) -> None:
        """Wait for pending operations, then close the store."""


class AsyncStore:
    """An adapter from any store to `AsyncSessionStore`.

    Calls run in threads, those for one session in the order in which they were made.
    """

    def __init__(self, store: SessionStore) -> None:
        self.store = store
        self._turns = InTurn()

    async def create_session(self, session_id: str | None = None, metadata: Mapping[str, Any] | None = None) -> str:
        create = partial(self.store.create_session, session_id=session_id, metadata=metadata)
        return await self._turns.call(session_id or "", create)

    async def load_session(self, session_id: str) -> SessionState | None:
        def load() -> SessionState | None:
            try:
                return lifecycle.load_session(self.store, session_id)
            except SessionNotFoundError:
                return None

        return await self._turns.call(session_id, load)

    async def append_message(self, session_id: str, message: Mapping[str, Any]) -> None:
        events = [replace(event, seq=None, ts=None) for event in events_from_messages([message])]
        await self._turns.call(session_id, partial(self.store.append_events, session_id, events))

    async def update_metadata(self, session_id: str, metadata: Mapping[str, Any]) -> None:
        await self._turns.call(session_id, partial(self.store.update_metadata, session_id, metadata))

    async def get_messages(self, session_id: str, from_turn: int = 0, to_turn: int | None = None) -> list[Message]:
        def read() -> list[Message]:
            before, *turns = lifecycle.turns_of(self.store.iter_events(session_id))
            turns[:1] = [[*before, *(turns[0] if turns else ())]]
            chosen_turns = turns[max(0, from_turn) : None if to_turn is None else max(0, to_turn)]
            return rebuild_messages(event for turn in chosen_turns for event in turn)

        return await self._turns.call(session_id, read)

    async def fork_session(self, source_session_id: str, new_session_id: str | None = None) -> str:
        fork = partial(lifecycle.fork_session, self.store, source_session_id, session_id=new_session_id)
        return await self._turns.call(source_session_id, fork)

    async def compact_session(self, session_id: str, compaction_state: str | Mapping[str, Any]) -> None:
        text = compaction_state.get("summary") if isinstance(compaction_state, Mapping) else compaction_state
        if not isinstance(text, str) or not text.strip():
            raise InvalidEventError(f"a compaction's summary must be text that is not blank, not {text!r:.100}")
        summary = text

        def compact() -> None:
            events = self.store.read_events(session_id)
            # The `seq` of the last event at which no call was open.
            waiting: set[str] = set()
            settled = 0
            for event in events:
                if isinstance(event, ToolUse):
                    waiting.add(event.tool_use_id)
                elif isinstance(event, ToolResult):
                    waiting.discard(event.tool_use_id)
                if not waiting:
                    settled = event.seq or settled
            event = SessionCompacted(settled, summary, trigger="manual", method="caller")
            self.store.append_events(session_id, [event], expected_seq=len(events))

        await self._turns.call(session_id, compact)

    async def list_sessions(self, working_directory: str | None = None, limit: int = 100) -> list[SessionSummary]:
        return await self._turns.call(
            "", partial(self.store.list_session_summaries, cwd=working_directory, limit=limit)
        )

    async def delete_session(self, session_id: str) -> None:
        def delete() -> None:
            with suppress(SessionNotFoundError):
                lifecycle.delete_session(self.store, session_id)

        await self._turns.call(session_id, delete)

    async def session_exists(self, session_id: str) -> bool:
        return await self._turns.call(session_id, partial(self.store.session_exists, session_id))

    async def close(self) -> None:
        def close() -> None:
            self._turns.wait()
            self.store.close()

        # Not in `self._turns`: this call would wait for itself.
        await InTurn().call("", close)
