"""The store of a command, and the session and time that a person refers to."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from ...errors import OptionsError
from ...ground.patterns import regex
from ...ground.text import on_one_line
from ...sessions.base import SessionStore, whole_id
from ...sessions.seal import HOME_NAME
from ...sessions.store import FileSessionStore
from ...sessions.stores.locate import ENVIRONMENT_NAME, FORMS, open_store, without_user

NEWEST = "newest"
ID_HELP = f"a session's id or a prefix of it; {NEWEST} is the one written to last"

# A scheme has two letters at least; one alone is a drive of Windows.
_ADDRESS = regex(r"[A-Za-z][A-Za-z0-9+]+:")
# A mistyped address must not become a folder, in which sessions would seem to be lost: a known scheme in a wrong form, an
# empty name, or anything that contains `://`.
_MISTYPED = regex(r"\s*(?:(?i:rediss?|postgres(?:ql)?|sqlite3?|file|memory|unix|s3|https?|mysql)\s*(?:$|:|//)|$)|.*://")
_SPAN = regex(r"(\d{1,6})\s*(min|[hdwmy])")
_SECONDS = {"min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0, "m": 2_629_800.0, "y": 31_557_600.0}


def add_store_flag(parser: argparse._ActionsContainer) -> None:
    """Add `--store`, for every command that uses sessions."""
    parser.add_argument(
        "--store",
        metavar="DIR",
        help="the store: a folder, or an address such as sqlite:///path "
        f"(default: ${ENVIRONMENT_NAME}, else ${HOME_NAME}, else ~/.openagentic-sdk)",
    )


def store_flag(args: argparse.Namespace) -> str:
    """The `--store` flag with which another command uses the same store, after a space; empty for the default store."""
    return f" --store {shlex.quote(on_one_line(args.store, 200))}" if args.store else ""


def add_id(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add `ID`, optional if there is a default."""
    if default is None:
        parser.add_argument("id", metavar="ID", help=ID_HELP)
    else:
        parser.add_argument("id", nargs="?", default=default, metavar="ID", help=f"{ID_HELP} (default: {default})")


def open_session_store(address: str | None) -> SessionStore:
    """Open the store of `--store`, otherwise of the environment; a name without a scheme is a folder of session files.

    Raises `OptionsError` for a name that looks like a mistyped address.
    """
    if address is None or _ADDRESS.match(address):
        return open_store(address)
    if _MISTYPED.match(address):
        raise OptionsError(
            f"store {without_user(address)!r} looks like a mistyped address: give it as {FORMS}, or begin a folder's name "
            "with ./"
        )
    return FileSessionStore(Path(address).expanduser().absolute())


class Progress:
    """A report on the progress of a slow command, on stderr: after a second, then less and less often.

    `text` is a format string with `done` and `whole`.
    """

    def __init__(self, text: str = "indexing {whole:,} sessions: {done:,} done") -> None:
        self._text = text
        self._printed_at, self._wait_s = time.monotonic(), 1.0

    def __call__(self, done: int, whole: int = 0) -> None:
        if time.monotonic() - self._printed_at >= self._wait_s:
            self._printed_at, self._wait_s = time.monotonic(), min(10.0, self._wait_s * 1.3)
            print(self._text.format(done=done, whole=whole), file=sys.stderr, flush=True)


def find_session(store: SessionStore, text: str) -> str:
    """Find the id that a person means: the full id, a prefix, or `newest`. Raises `SessionNotFoundError`, `OptionsError`."""
    if text == NEWEST:
        for row in store.list_session_summaries(limit=1):
            return row.id
        raise OptionsError('this store contains no sessions yet: `openagentic-sdk run "..."` creates one')
    return whole_id(store, text)


def check_new_id(store: SessionStore, session_id: str | None) -> None:
    """Raise `OptionsError` instead of creating a session that no command could name afterwards."""
    if session_id == NEWEST and not store.session_exists(NEWEST):
        raise OptionsError(
            f"--session needs a complete id, and {NEWEST!r} is not one: `openagentic-sdk sessions list` shows the ids; omit "
            "--session for a new session"
        )


def span_s(text: str) -> float | None:
    """The number of seconds in `30min`, `36h`, `7d`, `2w`, `6m` (months) or `10y`; None for another text."""
    span = _SPAN.fullmatch(text.strip())
    return None if span is None else int(span[1]) * _SECONDS[span[2]]


def moment(text: str) -> float:
    """Convert a date, a date and time (UTC by default), or a time ago (`36h`, `7d`) to epoch seconds.

    Raises `argparse.ArgumentTypeError` for any other text.
    """
    ago_s = span_s(text)
    if ago_s is not None:
        return time.time() - ago_s
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: write 2026-11-01, 2026-11-01T12:00 or 7d") from None
    return (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()
