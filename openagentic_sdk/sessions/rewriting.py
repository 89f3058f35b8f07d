"""The one way in which what a log says is ever taken out of it: fields that are erased under a proof, see `parts.record`.

Nothing else rewrites a log. A store that can do this replaces events whole, all of them or none, in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from ..errors import StorageError
from ..events import Event
from .core import StoreCore

# Given the events of a log, those to put in the place of some of them, by `seq`.
Change = Callable[[Sequence[Event]], Mapping[int, Event]]


class Rewriting(StoreCore):
    """What a store does to forget."""

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
