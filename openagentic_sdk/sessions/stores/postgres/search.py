"""A trigram index over the words of a Postgres store, updated by searches.

It stores the words in the form in which the scan compares them, each after a space, so that a word prefix is a substring:
the index finds exactly what the scan finds. The row with `seq` 0 holds the text in which lists look for words.

Words are added only while the session has the `revision` that it had before its log was read: replacing events increments it
and removes the words in one transaction. An older version only removes them; the `record.erased` that it appends afterwards
makes the next update index the session again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ....errors import LogCorruptError
from ....events import Event, RecordErased
from ....ground.frozen import changed, frozen
from ....ground.patterns import regex
from ...base import loads_stored
from ...folds.search import SearchHit, event_text, search_words
from ..database import search_hits

STEP_EVENTS = 50
STEP_SESSIONS = 50
# Shorter words contain no trigram.
LEAST_LETTERS = 3
# The most words of a list's query that are used, and the most characters of each.
_MAX_LIKES, _MAX_LIKE_CHARS = 20, 200
# The characters with a meaning in LIKE, and their escaped form.
_LIKE_SIGNS, _ESCAPED = regex(r"[\\%_]"), r"\\\g<0>"
# For a missing table, `to_regclass` and thus the whole condition is NULL, where the table's name would be an error.
_HAS_INDEX = """
    SELECT to_regclass('openagentic_words_trigrams') IS NOT NULL
       AND to_regclass('openagentic_sessions_behind') IS NOT NULL AND NOT pg_is_in_recovery()
       AND has_table_privilege(to_regclass('openagentic_words'), 'INSERT')
"""
_BEHIND = "searched < epoch + last_seq + revision"
_ALL_BEHIND = f"""
    SELECT key, id, coalesce(seq, 0), last_seq, revision, epoch + last_seq + revision, holder <> ''
    FROM openagentic_sessions LEFT JOIN openagentic_words_upto ON session = key WHERE {_BEHIND}
"""
_NEXT = f"""
    SELECT key, seq, data FROM unnest(%s::integer[], %s::bigint[], %s::bigint[]) AS given (key, after, last)
    JOIN openagentic_events ON session = key AND seq > after AND seq <= least(last, after + {STEP_EVENTS}) ORDER BY key, seq
"""
# A session that somebody holds stays behind: its holder may be replacing events. Rows are locked in the order of their keys,
# so that two searches cannot deadlock.
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
# New entries wait in a list that every search reads completely; only the owner of an index may merge the list into it.
_TIDY = """
    SELECT gin_clean_pending_list(oid) FROM pg_class
    WHERE oid IN (to_regclass('openagentic_words_trigrams'), to_regclass('openagentic_words_of_rows'))
      AND pg_has_role(relowner, 'USAGE')
"""
# The lock waits for a transaction that replaces events, and compares the revision that it leaves.
_ADD = """
    WITH known AS (
        SELECT key, upto FROM unnest(%(keys)s::integer[], %(revisions)s::bigint[], %(uptos)s::bigint[])
        AS given (key, revision, upto) JOIN openagentic_sessions USING (key, revision)
        ORDER BY key FOR SHARE OF openagentic_sessions
    ), added AS (
        INSERT INTO openagentic_words (session, seq, words)
        SELECT key, row.seq, row.words FROM known
        JOIN unnest(%(sessions)s::integer[], %(seqs)s::bigint[], %(words)s::text[]) AS row (key, seq, words) USING (key)
        ON CONFLICT DO NOTHING
    )
    INSERT INTO openagentic_words_upto (session, seq) SELECT key, upto FROM known
    ON CONFLICT (session) DO UPDATE SET seq = greatest(openagentic_words_upto.seq, excluded.seq) RETURNING session
"""
# The new revision keeps processes that have already read the log from adding the old words again.
_FORGET = (
    "UPDATE openagentic_sessions SET revision = revision + 1 WHERE key = ANY(%s)",
    "DELETE FROM openagentic_words WHERE session = ANY(%s)",
    "DELETE FROM openagentic_words_upto WHERE session = ANY(%s)",
)


@frozen
class _StaleRow:
    """A session that is not indexed up to its end: `seq` is its last indexed event, `mark` a number that changes with it."""

    key: int
    id: str
    seq: int
    last_seq: int
    revision: int
    mark: int
    is_held: bool


def has_index(db: Any) -> bool:
    """Whether there is an index that this role may update."""
    return bool(db.execute(_HAS_INDEX).fetchone()[0])


def search_index(
    call: Callable[[None, Callable[[Any], Any]], Any], words: Sequence[str], limit: int, tenant: str | None
) -> list[SearchHit]:
    """At most `limit` indexed events that contain every word, newest session first.

    `tenant` is the value in the table; None searches all sessions.
    """
    matches = " AND ".join(["words LIKE %s"] * len(words))
    # `coalesce` of NULL and the column is the column: then each row is compared with itself.
    command = (
        "SELECT openagentic_sessions.id, found.seq, openagentic_events.data FROM openagentic_words AS found "
        "JOIN openagentic_sessions ON openagentic_sessions.key = found.session "
        "JOIN openagentic_events ON openagentic_events.session = found.session AND openagentic_events.seq = found.seq "
        f"WHERE {matches} AND tenant = coalesce(%s, tenant) ORDER BY touched DESC, found.seq LIMIT %s"
    )
    # Words consist of letters and digits, so none contains a wildcard of LIKE.
    patterns = [f"% {word}%" for word in words]
    values = (*patterns, tenant, max(0, limit))
    return search_hits(call(None, lambda db: db.execute(command, values).fetchall()), words)


def update_index(
    call: Callable[[None, Callable[[Any], Any]], Any],
    texts: Callable[[Sequence[int]], dict[int, str]],
    progress: Callable[[int, int], None] | None = None,
    at_most: int | None = None,
) -> int | None:
    """Bring the index up to date; return the number of sessions that are left, None if there is no index.

    With `at_most`, index only that many sessions, and none that somebody holds. `texts` returns the texts that lists search
    for words, by the keys of the sessions. If the update is interrupted, finished steps remain.
    """
    if not call(None, has_index):
        return None
    stale_rows = [_StaleRow(*row) for row in call(None, lambda db: by_index(db, _ALL_BEHIND, through_order=True))]
    chosen_rows = stale_rows if at_most is None else [row for row in stale_rows if not row.is_held][:at_most]
    for first in range(0, len(chosen_rows), STEP_SESSIONS):
        step = chosen_rows[first : first + STEP_SESSIONS]
        marks = {row.key: row.mark for row in _add_all(call, step) if not row.is_held}
        row_texts = texts(list(marks)) if marks else {}
        if row_texts:
            call(
                None,
                partial(_mark, values=[list(row_texts), [marks[key] for key in row_texts], list(row_texts.values())]),
            )
        if progress is not None:
            progress(first + len(step), len(stale_rows))
    if len(chosen_rows) >= STEP_SESSIONS:
        call(None, lambda db: db.execute(_TIDY).fetchall())
    return len(stale_rows) - len(chosen_rows)


def _add_all(call: Callable[[None, Callable[[Any], Any]], Any], rows: Sequence[_StaleRow]) -> list[_StaleRow]:
    """Add the words of these sessions; return those that are indexed to their ends."""
    whole_rows: list[_StaleRow] = []
    first_seqs, erased_keys = {row.key: row.seq for row in rows}, list[int]()
    waiting = list(rows)
    # One batch of each session per round, so that a step of a long log is no larger than that of a short one.
    while waiting:
        whole_rows += [row for row in waiting if row.seq >= row.last_seq]
        waiting = [row for row in waiting if row.seq < row.last_seq]
        events_by_key = call(None, partial(_next_events, rows=waiting)) if waiting else {}
        erased_now = {key for key, events in events_by_key.items() if first_seqs[key] and any(map(_is_erased, events))}
        erased_keys += erased_now
        batches = [
            (row, events_by_key[row.key]) for row in waiting if events_by_key[row.key] and row.key not in erased_now
        ]
        added_keys = call(None, partial(_add_words, batches=batches)) if batches else set()
        waiting = [changed(row, seq=events[-1].seq or 0) for row, events in batches if row.key in added_keys]
    if erased_keys:
        new_rows = call(None, partial(_forget, keys=erased_keys))
        whole_rows += _add_all(call, [_StaleRow(*row) for row in new_rows])
    return whole_rows


def keys_with_words(query: str) -> tuple[str, list[str]] | None:
    """SQL and its values for the keys of all sessions that may match `query`; None if no word is long enough.

    The longest words of a long query are enough: the caller compares each row with all words.
    """
    all_words = {word[:_MAX_LIKE_CHARS] for word in query.casefold().split() if word.isprintable()}
    words = sorted((word for word in all_words if len(word) >= LEAST_LETTERS), key=len, reverse=True)[:_MAX_LIKES]
    if not words:
        return None
    matches = " AND ".join(["words LIKE %s"] * len(words))
    command = (
        f"SELECT session FROM openagentic_words WHERE seq = 0 AND {matches} "
        f"UNION SELECT key FROM openagentic_sessions WHERE {_BEHIND}"
    )
    return command, [f"%{_LIKE_SIGNS.sub(_ESCAPED, word)}%" for word in words]


def by_index(db: Any, command: str, values: Sequence[Any] = (), *, through_order: bool = False) -> list[Any]:
    """Run a query by index: the planner, which has no statistics about outdated sessions, would read whole tables.

    With `through_order` the scan also marks the index entries of replaced rows as dead, so that later ones skip them.
    """
    with db.transaction():
        db.execute("SET LOCAL enable_seqscan = off")
        if through_order:
            db.execute("SET LOCAL enable_bitmapscan = off")
        return list(db.execute(command, values).fetchall())


def _mark(db: Any, values: Sequence[Any]) -> None:
    db.execute(_MARK, values)


def _next_events(db: Any, rows: Sequence[_StaleRow]) -> dict[int, list[Event]]:
    """The next events of each session, at most `STEP_EVENTS`, by session key; none after a damaged one."""
    events_by_key: dict[int, list[Event]] = {row.key: [] for row in rows}
    columns = [[row.key for row in rows], [row.seq for row in rows], [row.last_seq for row in rows]]
    rows_by_key, damaged_keys = {row.key: row for row in rows}, set[int]()
    for key, _, data in by_index(db, _NEXT, columns):
        try:
            event = loads_stored(rows_by_key[key].id, rows_by_key[key].seq + len(events_by_key[key]) + 1, data)
        except LogCorruptError:
            # A damaged log hides only its own events; another command checks logs.
            damaged_keys.add(key)
        if key not in damaged_keys:
            events_by_key[key].append(event)
    return events_by_key


def _add_words(db: Any, batches: Sequence[tuple[_StaleRow, Sequence[Event]]]) -> set[int]:
    """Add the words of these events; return the keys of the sessions that were not changed or deleted meanwhile."""
    rows = [(row.key, event.seq, _words(event)) for row, events in batches for event in events]
    sessions, seqs, words = ([row[at] for row in rows if row[2]] for at in range(3))
    values = {
        "keys": [row.key for row, _ in batches],
        "revisions": [row.revision for row, _ in batches],
        "uptos": [events[-1].seq for _, events in batches],
        "sessions": sessions,
        "seqs": seqs,
        "words": words,
    }
    with db.transaction():
        db.execute("SET LOCAL synchronous_commit = off")  # a crash may lose the newest entries of a cache
        return {row[0] for row in db.execute(_ADD, values).fetchall()}


def _forget(db: Any, keys: Sequence[int]) -> list[Any]:
    """Remove the words of these sessions from the index; return their rows, to index them again."""
    with db.transaction():
        for command in _FORGET:
            db.execute(command, (keys,))
    return list(db.execute(f"{_ALL_BEHIND} AND key = ANY(%s)", (keys,)).fetchall())


def _words(event: Event) -> str:
    return " ".join(["", *search_words(event_text(event))])


def _is_erased(event: Event) -> bool:
    return isinstance(event, RecordErased)
