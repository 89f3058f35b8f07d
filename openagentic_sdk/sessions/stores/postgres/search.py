"""A trigram index over the words of a Postgres store, updated by searches.

It stores the words in the form in which the scan compares them, each after a blank, so that a word prefix is a substring:
the index finds exactly what the scan finds. The row with `seq` 0 holds the text in which lists look for words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from ....errors import InvalidEventError, LogCorruptError, SessionNotFoundError
from ....events import Event
from ....ground.patterns import regex
from ...base import SessionStore
from ...folds.search import SearchHit, event_text, search_words
from ...folds.summary import summary_text
from ..database import search_hits

T = TypeVar("T")
STEP_EVENTS = 200
STEP_SESSIONS = 100
# Shorter words are in too many rows: trigrams begin here.
LEAST_LETTERS = 3
# What means something to LIKE.
_LIKE_SIGNS, _ESCAPED = regex(r"[\\%_]"), r"\\\g<0>"
_HAS_INDEX = """
    SELECT to_regclass('openagentic_words_trigrams') IS NOT NULL
       AND to_regclass('openagentic_sessions_behind') IS NOT NULL AND NOT pg_is_in_recovery()
       AND has_table_privilege(to_regclass('openagentic_words'), 'INSERT')
"""
_BEHIND = "searched < epoch + last_seq + revision"
_ALL_BEHIND = f"""
    SELECT key, id, coalesce(seq, 0), last_seq, epoch + last_seq + revision, holder <> ''
    FROM openagentic_sessions LEFT JOIN openagentic_words_upto ON session = key WHERE {_BEHIND}
"""
# A session that somebody holds stays behind: its holder may be replacing events.
_MARK = """
    WITH known AS (
        SELECT key, mark, words FROM unnest(%s::integer[], %s::bigint[], %s::text[]) AS listed (key, mark, words)
        JOIN openagentic_sessions USING (key)
        WHERE epoch + last_seq + revision = mark AND holder = '' ORDER BY key FOR NO KEY UPDATE OF openagentic_sessions
    ), added AS (
        INSERT INTO openagentic_words (session, seq, words) SELECT key, 0, words FROM known
        ON CONFLICT (session, seq) DO UPDATE SET words = excluded.words
    )
    UPDATE openagentic_sessions SET searched = mark FROM known WHERE openagentic_sessions.key = known.key
"""
# New entries wait in a list that every search reads whole; only the owner of an index may put them in their place.
_TIDY = """
    SELECT gin_clean_pending_list(oid) FROM pg_class
    WHERE oid IN (to_regclass('openagentic_words_trigrams'), to_regclass('openagentic_words_of_rows'))
      AND pg_has_role(relowner, 'USAGE')
"""
# A session deleted in the meantime has no row to refer to.
_ADD = """
    WITH known AS (SELECT key FROM openagentic_sessions WHERE key = %(key)s FOR KEY SHARE), added AS (
        INSERT INTO openagentic_words (session, seq, words)
        SELECT key, row.seq, row.words FROM known, unnest(%(seqs)s::bigint[], %(words)s::text[]) AS row (seq, words)
        ON CONFLICT DO NOTHING
    )
    INSERT INTO openagentic_words_upto (session, seq) SELECT key, %(upto)s FROM known
    ON CONFLICT (session) DO UPDATE SET seq = greatest(openagentic_words_upto.seq, excluded.seq)
"""


def has_index(db: Any) -> bool:
    """Whether there is an index that this role may update."""
    return bool(db.execute(_HAS_INDEX).fetchone()[0])


def search_index(
    store: SessionStore,
    call: Callable[[None, Callable[[Any], Any]], Any],
    words: Sequence[str],
    limit: int,
    tenant: str | None,
) -> list[SearchHit] | None:
    """The events that contain every word, newest session first; None if there is no index.

    `tenant` is the value in the table; None searches all sessions.
    """
    if update_index(store, call) is None:
        return None
    matches = " AND ".join(["words LIKE %s"] * len(words))
    command = (
        "SELECT openagentic_sessions.id, found.seq, openagentic_events.data FROM openagentic_words AS found "
        "JOIN openagentic_sessions ON openagentic_sessions.key = found.session "
        "JOIN openagentic_events ON openagentic_events.session = found.session AND openagentic_events.seq = found.seq "
        f"WHERE {matches} AND tenant = coalesce(%s, tenant) ORDER BY touched DESC, found.seq LIMIT %s"
    )
    patterns = [f"% {word}%" for word in words]
    values = (*patterns, tenant, max(0, limit))
    return search_hits(call(None, lambda db: db.execute(command, values).fetchall()), words)


def update_index(
    store: SessionStore,
    call: Callable[[None, Callable[[Any], Any]], Any],
    progress: Callable[[int, int], None] | None = None,
    at_most: int | None = None,
) -> int | None:
    """Bring the index up to date, with `at_most` for so many sessions without a holder; return the number of sessions left,
    None without an index.
    """
    if not call(None, has_index):
        return None
    behind = call(None, lambda db: by_index(db, _ALL_BEHIND, through_order=True))
    chosen_rows = behind if at_most is None else [row for row in behind if not row[-1]][:at_most]
    for first in range(0, len(chosen_rows), STEP_SESSIONS):
        marks: list[tuple[int, int, str]] = []
        for key, session_id, indexed_seq, last_seq, mark, is_held in chosen_rows[first : first + STEP_SESSIONS]:
            # A damaged log hides only its own events; another command checks logs.
            with suppress(LogCorruptError, InvalidEventError, SessionNotFoundError):
                events = store.iter_events(session_id, after_seq=indexed_seq) if indexed_seq < last_seq else iter(())
                while step := list(islice(events, STEP_EVENTS)):
                    call(None, partial(_add_words, key=key, events=step))
                if not is_held:
                    text = summary_text(store.kept_summary(session_id)).encode("utf-8", "replace").decode()
                    marks.append((key, mark, text.replace("\0", " ")))
        if marks:
            call(None, partial(_mark, values=[list(column) for column in zip(*marks, strict=True)]))
        if progress is not None:
            progress(min(first + STEP_SESSIONS, len(chosen_rows)), len(chosen_rows))
    if len(chosen_rows) >= STEP_SESSIONS:
        call(None, lambda db: db.execute(_TIDY).fetchall())
    return len(behind) - len(chosen_rows)


def keys_with_words(query: str) -> tuple[str, list[str]] | None:
    """SQL and its values for the keys of all sessions that may match `query`; None if no word is long enough."""
    words = [word for word in query.casefold().split() if len(word) >= LEAST_LETTERS and word.isprintable()]
    if not words:
        return None
    matches = " AND ".join(["words LIKE %s"] * len(words))
    command = (
        f"SELECT session FROM openagentic_words WHERE seq = 0 AND {matches} "
        f"UNION SELECT key FROM openagentic_sessions WHERE {_BEHIND}"
    )
    return command, [f"%{_LIKE_SIGNS.sub(_ESCAPED, word)}%" for word in words]


def by_index(db: Any, command: str, values: Sequence[Any] = (), *, through_order: bool = False) -> list[Any]:
    """The rows of a query for which the planner, which has no statistics of outdated sessions, would read whole tables.

    With `through_order` the scan also marks the index entries of replaced rows as dead, so that later ones skip them.
    """
    with db.transaction():
        db.execute("SET LOCAL enable_seqscan = off")
        if through_order:
            db.execute("SET LOCAL enable_bitmapscan = off")
        return list(db.execute(command, values).fetchall())


def _mark(db: Any, values: Sequence[Any]) -> None:
    db.execute(_MARK, values)


def _add_words(db: Any, key: int, events: Sequence[Event]) -> None:
    texts = [(event.seq, " ".join(["", *search_words(event_text(event))])) for event in events]
    seqs_and_texts = [(seq, text) for seq, text in texts if text]
    seqs, words = [seq for seq, _ in seqs_and_texts], [text for _, text in seqs_and_texts]
    db.execute(_ADD, {"key": key, "seqs": seqs, "words": words, "upto": events[-1].seq})
