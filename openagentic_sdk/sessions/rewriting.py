"""The only way to remove contents from a log: erasing fields, which preserves the proof of the rest (`parts.record`).

Nothing else rewrites a log. A store that supports this replaces events atomically, all of them or none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256

from ..errors import StorageError
from ..events import Event, SessionForked
from ..ground.patterns import regex
from .authority import Authority, signed_body, with_mac
from .core import StoreCore
from .seal import Seal

# The names of outputs: no path leads out of their folder.
OUTPUT_NAME = regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
# Returns replacements for some of a log's events, by `seq`.
Rewrite = Callable[[Sequence[Event]], Mapping[int, Event]]


class Rewriting(StoreCore):
    """A store with the methods that an erasure needs; by default, they refuse or find nothing to do."""

    def rewrite_events(self, session_id: str, change: Rewrite) -> None:
        """Replace some events, as the session's writer; caches of the old log are removed, too.

        Raises `SessionLockedError` while somebody writes, and `StorageError` for a store that cannot do this.
        """
        raise StorageError(
            f"{type(self).__name__} cannot erase anything from session {session_id!r}: export it to a store of this package",
            session_id=session_id,
        )

    def delete_blobs(self, session_id: str, digests: Collection[str]) -> None:
        """Delete these blobs. A missing one is not an error. Raises `StorageError` for a store that cannot do this."""
        if digests:
            raise StorageError(
                f"{type(self).__name__} cannot remove blobs of session {session_id!r}", session_id=session_id
            )

    def list_outputs(self, session_id: str) -> Sequence[str]:
        """Return the names of the files beside the log in which calls stored outputs too long for an event."""
        return ()

    def read_output(self, session_id: str, name: str) -> bytes:
        """Return the bytes of a file that `list_outputs` names. Raises `StorageError`."""
        raise StorageError(f"session {session_id!r} has no stored output {name!r}", session_id=session_id)

    def add_output(self, session_id: str, name: str, data: bytes) -> None:
        """Store an output of a copied session under its name. A store without such files ignores it."""

    def delete_outputs(self, session_id: str, names: Collection[str]) -> None:
        """Delete files that `list_outputs` names. A missing one is not an error."""

    def scrub(self, *session_ids: str) -> Sequence[str]:
        """Remove what is left of data that was replaced in, or deleted from, these sessions; return sentences about what
        cannot be removed. A session that was deleted meanwhile is not an error.
        """
        return ()


def sign_again(session_id: str, before: Sequence[Event], after: Sequence[Event], seal: Seal) -> list[Event]:
    """Return the events of a log after some were rewritten, with new digests for those that this installation wrote.

    From the first rewritten event on, no other digest matches any more: these are removed, because together with the rest
    they would reveal what was erased.
    """
    authority = Authority(session_id, seal)
    for event in before:
        authority.apply(event)
    forks = [(event.seq or 0, event.parent_session_id) for event in before if isinstance(event, SessionForked)]
    signed_events, chain, chain_before, is_same = [], b"", b"", True
    for event, was in zip(after, before, strict=True):
        is_same = is_same and event == was
        seq, body, body_before = event.seq or 0, signed_body(event).encode("ascii"), signed_body(was).encode("ascii")
        chain, chain_before = sha256(chain + body).digest(), sha256(chain_before + body_before).digest()
        if event.mac is not None and not is_same:
            # Copied events of a fork were signed in the source session, those of a salvaged log in this one.
            names = (
                [session_id, *(parent for fork_seq, parent in forks if fork_seq > seq)]
                if authority.is_ours(was)
                else []
            )
            signers = (Authority(name, seal) for name in names)
            signer = next((each for each in signers if each.mac(was, seq, body_before, chain_before) == was.mac), None)
            event = with_mac(event, None if signer is None else signer.mac(event, seq, body, chain))
        signed_events.append(event)
    return signed_events
