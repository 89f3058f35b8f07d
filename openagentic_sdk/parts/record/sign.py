"""Sign the record of a session: append a checkpoint that vouches for its events so far."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import OptionsError
from ...events import Event, RecordSigned
from ...ground.frozen import changed
from ...serialization import dumps_json
from ...sessions.base import SessionStore, windows_from_end
from ...sessions.core import SessionWriter
from ...sessions.seal import Signer
from ...version import __version__
from .commit import FORMAT, ZERO, Opening, chain_digests, event_digest, join_digests, new_opening

# Events per checkpoint; a longer range gets several checkpoints, and only the last of them is signed.
RANGE_EVENTS = 1000
_WINDOW_EVENTS = 128


def statement_of(signed: RecordSigned) -> bytes:
    """The bytes that a signature of this checkpoint covers: one line of JSON."""
    statement = {
        "format": FORMAT.decode("ascii"),
        "session_id": signed.session_id,
        "from_seq": signed.from_seq,
        "to_seq": signed.to_seq,
        "before": signed.before,
        "head": signed.head,
    }
    return dumps_json(statement).encode("ascii") + b"\n"


def sign_session(store: SessionStore, session_id: str, signers: Sequence[Signer]) -> RecordSigned:
    """Append a signed checkpoint that vouches for all events of the session; return it as stored.

    It covers the last checkpoint and everything after it. More than `RANGE_EVENTS` events are divided among several
    checkpoints, the last of them signed. Raises `OptionsError` for an empty log and without signers, and
    `SessionLockedError` while a run writes. Also raises the errors of the signers. In each case nothing is appended.
    """
    with store.open_writer(session_id) as writer:
        return append_signed_head(store, writer, signers)


def append_signed_head(store: SessionStore, writer: SessionWriter, signers: Sequence[Signer]) -> RecordSigned:
    """Like `sign_session`, for a caller that holds the session's writer."""
    if not signers:
        raise OptionsError("no signer was given: name at least one")
    last, events = _since_last_checkpoint(store, writer.session_id, writer.last_seq)
    if not events:
        raise OptionsError(f"session {writer.session_id!r} has no events yet: there is nothing to sign")
    before = last.head if last else ZERO
    checkpoints: list[Event] = []
    for start in range(0, len(events), RANGE_EVENTS):
        part = events[start : start + RANGE_EVENTS]
        opening = new_opening()
        salts = Opening.read(opening, len(part))
        digests = [event_digest(salts.leaf_digests(event, index)) for index, event in enumerate(part)]
        head = chain_digests(before, digests)
        first = (last.to_seq if last else 0) + 1 + start
        checkpoints.append(
            RecordSigned(
                writer.session_id,
                first,
                first + len(part) - 1,
                before,
                head,
                join_digests(digests),
                sdk_version=__version__,
                opening=opening,
            )
        )
        before = head
    newest = checkpoints[-1]
    assert isinstance(newest, RecordSigned)
    statement = statement_of(newest)
    checkpoints[-1] = changed(newest, signatures=[dict(signer.sign(statement)) for signer in signers])
    stored_event = writer.append(checkpoints)[-1]
    assert isinstance(stored_event, RecordSigned)
    return stored_event


def _since_last_checkpoint(
    store: SessionStore, session_id: str, last_seq: int
) -> tuple[RecordSigned | None, Sequence[Event]]:
    """The newest checkpoint and the events that it does not cover, found from the end of the log."""
    newest: RecordSigned | None = None
    events: Sequence[Event] = []
    for events in windows_from_end(store, session_id, last_seq, _WINDOW_EVENTS):
        newest = next((event for event in reversed(events) if isinstance(event, RecordSigned)), None)
        if newest is not None and newest.to_seq >= last_seq - len(events):
            return newest, [event for event in events if (event.seq or 0) > newest.to_seq]
    return newest, events
