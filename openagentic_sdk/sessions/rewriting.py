"""The one way in which what a log says is ever taken out of it: fields that are erased under a proof, see `sessions.record`.

Nothing else rewrites a log. A store that can do this replaces events whole, all of them or none, in one step.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress

from ..errors import InvalidEventError, SessionError, SessionHeldError, StorageError
from ..events import Event, RecordKept
from .folds.summary import LAST_TIME, SessionSummary

# Given the events of a log, those to put in the place of some of them, by `seq`.
Change = Callable[[list[Event]], Mapping[int, Event]]


class Rewriting(ABC):
    """What a store does to forget, and what keeps it from that."""

    @abstractmethod
    def iter_events(self, session_id: str, *, after_seq: int = 0, limit: int | None = None) -> Iterator[Event]:
        """As in `SessionStore`."""

    @abstractmethod
    def kept_summary(self, session_id: str) -> SessionSummary:
        """As in `SessionStore`."""

    def rewrite_events(self, session_id: str, change: Change) -> None:
        """Put other events in the place of some, as their writer; what is kept beside the log of before goes with them.

        Raises `SessionLockedError` while somebody writes, and `StorageError` for a store that cannot do this.
        """
        raise StorageError(
            f"{type(self).__name__} cannot erase anything from session {session_id!r}: export it to a store of this package",
            session_id=session_id,
        )

    def delete_blobs(self, session_id: str, digests: Collection[str]) -> None:
        """Remove these blobs; missing ones are no error."""
        if digests:
            raise StorageError(f"{type(self).__name__} cannot remove blobs", session_id=session_id)

    def list_outputs(self, session_id: str) -> Sequence[str]:
        """The names of files beside the log in which calls kept what was too long for an event."""
        return ()

    def read_output(self, session_id: str, name: str) -> bytes:
        """The bytes of one of them. Raises `StorageError`."""
        raise StorageError(f"session {session_id!r} has no kept output {name!r}", session_id=session_id)

    def delete_outputs(self, session_id: str, names: Collection[str]) -> None:
        """Remove these; missing ones are no error."""

    def scrub(self, session_id: str) -> Sequence[str]:
        """Remove what the store itself still has of bytes that were replaced or deleted; returns sentences about what it
        cannot remove. A session that was deleted meanwhile is no error.
        """
        return ()

    def refuse_kept(self, session_id: str, doing: str = "deleted", *, may_shorten: bool = False) -> None:
        """Raise `SessionHeldError` for a session that is held or, unless `may_shorten`, is to be kept for longer."""
        held, until = False, 0.0
        try:
            summary = self.kept_summary(session_id)
            held, until = summary.held, summary.kept_until
        except (SessionError, InvalidEventError):
            # A damaged log: what can be read of it may say that it is held.
            with suppress(SessionError, InvalidEventError):
                for event in self.iter_events(session_id):
                    if isinstance(event, RecordKept):
                        held = held if event.held is None else event.held
                        until = until if event.until is None else min(event.until, LAST_TIME)
        if held or (until > time.time() and not may_shorten):
            raise SessionHeldError(session_id, doing, None if held else until)
