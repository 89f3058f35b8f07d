"""A trigram index over the words of a Postgres store, updated by searches.

It stores the words in the form in which the scan compares them, each after a blank, so that a word prefix is a substring:
the index finds exactly what the scan finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from ....errors import LogCorruptError, SessionNotFoundError
from ....events import Event
from ...base import SessionStore
from ...folds.search import SearchHit, event_text, search_words
from ..database import search_hits

T = TypeVar("T")
STEP_EVENTS = 200
_HAS_INDEX = """
    SELECT to_regclass('openagentic_words_trigrams') IS NOT NULL AND NOT pg_is_in_recovery()
       AND has_table_privilege(to_regclass('openagentic_words'), 'INSERT')
"""
_BEHIND = """
    SELECT key, id, coalesce(seq, 0) FROM openagentic_sessions LEFT JOIN openagentic_words_upto ON session = key
    WHERE last_seq > coalesce(seq, 0)
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
    if not call(None, has_index):
        return None
    for key, session_id, indexed_seq in call(None, lambda db: db.execute(_BEHIND).fetchall()):
        # A damaged log hides only its own events; another command checks logs.
        with suppress(LogCorruptError, SessionNotFoundError):
            events = store.iter_events(session_id, after_seq=indexed_seq)
            while step := list(islice(events, STEP_EVENTS)):
                call(None, partial(_add_words, key=key, events=step))
    matches = " AND ".join(["words LIKE %s"] * len(words))
    command = (
        "SELECT openagentic_sessions.id, found.seq, openagentic_events.data FROM openagentic_words AS found "
        "JOIN openagentic_sessions ON openagentic_sessions.key = found.session "
        "JOIN openagentic_events ON openagentic_events.session = found.session AND openagentic_events.seq = found.seq "
        f"WHERE {matches} AND tenant = coalesce(%s, tenant) ORDER BY touched DESC, found.seq LIMIT %s"
    )
    wanted = [f"% {word}%" for word in words]
    values = (*wanted, tenant, max(0, limit))
    return search_hits(call(None, lambda db: db.execute(command, values).fetchall()), words)


def _add_words(db: Any, key: int, events: Sequence[Event]) -> None:
    texts = [(event.seq, " ".join(["", *search_words(event_text(event))])) for event in events]
    found = [(seq, text) for seq, text in texts if text]
    seqs, words = [seq for seq, _ in found], [text for _, text in found]
    db.execute(_ADD, {"key": key, "seqs": seqs, "words": words, "upto": events[-1].seq})
