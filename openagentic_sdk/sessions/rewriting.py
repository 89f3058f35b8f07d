"""The one way in which what a log says is ever taken out of it: fields that are erased under a proof, see `parts.record`.

Nothing else rewrites a log. A store that can do this replaces events whole, all of them or none, in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256

from ..errors import StorageError
from ..events import Event, SessionForked, UnknownEvent
from ..ground.frozen import changed
from .authority import Authority, signed_body
from .core import StoreCore
from .seal import Seal

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


def sign_again(session_id: str, before: Sequence[Event], after: Sequence[Event], seal: Seal) -> list[Event]:
    """The events of a log after some were rewritten, with the digests of what was ours made anew, as `before` shows it.

    From the first rewritten event on no other digest can fit any more: it goes, since with what is left it would say what
    stood there before.
    """
    known = Authority(session_id, seal)
    for event in before:
        known.apply(event)
    forks = [(event.seq or 0, event.parent_session_id) for event in after if isinstance(event, SessionForked)]
    made, chain, is_same = [], b"", True
    for event, was in zip(after, before, strict=True):
        is_same = is_same and event == was
        body = signed_body(event).encode("ascii")
        chain = sha256(chain + body).digest()
        if event.mac is not None and not is_same:
            # What a fork copied was signed in the session that it was copied from.
            written_in = next((parent for seq, parent in forks if seq > (event.seq or 0)), session_id)
            mac = Authority(written_in, seal).mac(event, event.seq or 0, body, chain) if known.is_ours(was) else None
            if isinstance(event, UnknownEvent):
                event = UnknownEvent({name: value for name, value in event.data.items() if name != "mac"})
            else:
                event = changed(event, mac=mac)
        made.append(event)
    return made
