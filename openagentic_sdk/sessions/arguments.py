"""The arguments that the methods of every store accept, defined once: a store checks them before it asks its backend.

Whole numbers are clamped to the range from 0 to 2**63 - 1, the largest number that every backend can compare. Booleans,
fractions and texts are not whole numbers, and are refused. An id that no session can have is not an invalid argument: such a
session does not exist.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from threading import TIMEOUT_MAX

from ..errors import OptionsError, SessionNotFoundError, StorageError
from ..ground.checks import MAX_NUMBER, shown
from ..ground.patterns import regex

MAX_ID_CHARS = 200
# The SHA-256 of a blob as text.
DIGEST = regex(r"[0-9a-f]{64}")
# A longer query is a mistake, such as a pasted file, and takes minutes on some backends.
MAX_QUERY_CHARS, MAX_QUERY_WORDS = 100_000, 1_000


def cut_number(name: str, value: object) -> int:
    """The number, clamped to the range from 0 to 2**63 - 1. Raises `OptionsError` for anything but a whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionsError(f"{name} must be a whole number, not {shown(value)}")
    return min(max(0, value), MAX_NUMBER)


def cut_limit(value: object) -> int | None:
    """Like `cut_number`, for a limit; None means no limit."""
    return None if value is None else cut_number("limit", value)


def cut_wait(value: object) -> float:
    """The number of seconds, clamped to what a thread can wait. Raises `OptionsError` for anything but a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # NaN
        raise OptionsError(f"timeout_s must be a number of seconds, not {shown(value)}")
    return min(max(0.0, value), TIMEOUT_MAX)


def check_news(known: Mapping[str, int], messages_after: object) -> None:
    """Raise `OptionsError` unless the positions of the sessions, and `messages_after` if given, are whole numbers."""
    for seq in known.values():
        cut_number("a position in known", seq)
    if messages_after is not None:
        cut_number("messages_after", messages_after)


def cut_numbers(numbers: Collection[int]) -> list[int]:
    """The numbers of messages, clamped like `cut_number`; the messages need not exist. Raises `OptionsError`."""
    return [cut_number("the number of a message", number) for number in numbers]


def check_text(name: str, value: object) -> None:
    """Raise `OptionsError` unless the value is a string."""
    if not isinstance(value, str):
        raise OptionsError(f"{name} must be a string, not {shown(value)}")


def check_filters(*, query: object = None, tenant: object = None, cwd: object = None) -> None:
    """Raise `OptionsError` for a filter that is not a string, and for a query that is too long; None filters nothing."""
    for name, value in (("query", query), ("tenant", tenant), ("cwd", cwd)):
        if value is not None:
            check_text(name, value)
    if isinstance(query, str):
        check_query(query, query.split())


def check_query(query: str, words: Collection[str]) -> None:
    """Raise `OptionsError` for a query that is too long, or has too many different words."""
    if len(query) > MAX_QUERY_CHARS or len(set(words)) > MAX_QUERY_WORDS:
        raise OptionsError(
            f"a query may have at most {MAX_QUERY_CHARS} characters and {MAX_QUERY_WORDS} different words, and this one has "
            f"{len(query)} and {len(set(words))}: search for fewer words"
        )


def is_possible_id(session_id: object) -> bool:
    """Whether a session can have this id, so that a backend may be asked for it."""
    return (
        isinstance(session_id, str)
        and 0 < len(session_id) <= MAX_ID_CHARS
        and "\0" not in session_id
        and session_id.encode("utf-8", "replace").decode() == session_id
    )


def find_possible(session_id: str, where: str) -> str:
    """Return the id if a session can have it. Raises `SessionNotFoundError`."""
    if not is_possible_id(session_id):
        raise SessionNotFoundError(session_id, where)
    return session_id


def check_digest(session_id: str, sha256: object) -> None:
    """Raise `StorageError`, as for a missing blob, for a digest that no blob can have."""
    if not isinstance(sha256, str) or DIGEST.fullmatch(sha256) is None:
        raise StorageError(f"session {session_id!r:.220} has no blob {shown(sha256)}", session_id=session_id)
