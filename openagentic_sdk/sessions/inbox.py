"""Messages from any process to the one that runs a session, such as cancel, steer and answer, which wait in the store.

A message is not an event: it becomes one when the run accepts it, and is then removed. Its sender does not need the right
to write to the session, which the run holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidEventError, OptionsError, StorageError
from ..ground.frozen import frozen
from ..serialization import dumps_json, loads_json

MAX_MESSAGE_BYTES = 256 * 1024
# The most waiting messages of one session: more would be a mistake, and fill the memory.
MAX_WAITING = 256


@frozen
class InboxMessage:
    """A waiting message; numbers increase in the order in which messages become readable, over all sessions of a store."""

    number: int
    session_id: str
    message: Mapping[str, Any]


def dumps_message(message: Mapping[str, Any]) -> str:
    """Encode a message, a JSON object, as ASCII. Raises `InvalidEventError`, also if it exceeds `MAX_MESSAGE_BYTES`."""
    if not isinstance(message, Mapping):
        raise InvalidEventError(f"a message to a session must be a JSON object, not {type(message).__name__}")
    text = dumps_json(dict(message))
    if len(text) > MAX_MESSAGE_BYTES:
        raise InvalidEventError(f"a message to a session may have at most {MAX_MESSAGE_BYTES} bytes, not {len(text)}")
    return text


def loads_message(number: int, session_id: str, text: str) -> InboxMessage:
    """Decode a stored message."""
    return InboxMessage(number, session_id, loads_json(text))


def refuse_message() -> OptionsError:
    """The error for a message to a store without an inbox."""
    return OptionsError(
        "this store has no inbox, so only the process that runs a session can steer and cancel it: use a store in files, "
        "SQLite, Postgres or Redis to do so from other processes"
    )


def full_inbox(session_id: str) -> StorageError:
    """The error for a message to a session with `MAX_WAITING` unread messages."""
    return StorageError(
        f"{MAX_WAITING} messages for session {session_id!r} are waiting, which is the limit: check that the session is "
        "running",
        session_id=session_id,
    )
