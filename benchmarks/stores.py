"""The cost of stores: appends, lists, forks and opening, each compared with the minimum on the same medium.

`OPENAGENTIC_TEST_LARGE=1` lists sessions of 200 KB, as the bars require; otherwise they have 20 KB. Postgres is measured if
`OPENAGENTIC_TEST_POSTGRES_URL` names a server, in a schema that is dropped afterwards.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import quote

from openagentic_sdk.events import AssistantMessage, Event, ModelRequest, ToolResult, ToolUse, UserMessage
from openagentic_sdk.parts.record import lifecycle
from openagentic_sdk.serialization import dumps_event
from openagentic_sdk.sessions.base import SessionStore, stamp_events
from openagentic_sdk.sessions.log.line import dumps_stored
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.sessions.stores.locate import open_store

from . import Row, best_s

SESSIONS = 10_000
SESSION_BYTES = 200_000 if os.environ.get("OPENAGENTIC_TEST_LARGE") else 20_000
APPENDS = 3_000
LOG_EVENTS = 10_000
POSTGRES_URL = os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL")
_LIST = """
from openagentic_sdk.sessions.stores.locate import open_store
rows = open_store({url!r}).list_session_summaries(limit=10)
assert len(rows) == 10 and not any(row.error for row in rows)
"""
_STAT_ALL = """
import json, os
names = [(os.stat(entry.path + "/events.jsonl").st_mtime_ns, entry.name) for entry in os.scandir({folder!r})]
names.sort(reverse=True)
"""


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as place:
        return [*_appends(Path(place)), *_opening(Path(place)), *_forks(Path(place)), *_lists(Path(place))]


# --- appends ---------------------------------------------------------------------------------------------------------


def _appends(place: Path) -> Iterator[Row]:
    """Compare appends with bare inserts of the same bytes, one transaction per event, as in a run.

    No run has prepared rows: the JSON alone brings the first floor to 0.7 of the second, which therefore has no bar. Of the
    56 us of processor time that an append takes, the statement is 19 (a bare insert of a prepared row is 21, because its
    key is an index of its own), the JSON and its line 11, the event with its number and time 2, the look at the queue of
    writers 1.5, and Python around them 9. These were timed one by one; in turns, as here, they take 13 more, and the two
    steps of the floor 4. The statement compares the session's epoch and whether it is the newest; as INSERT ... VALUES, it
    needs no temporary table, which cost 10 more.
    """
    event = ToolResult("call_0123456789", output={"stdout": "x" * 1000, "exit_code": 0}, duration_s=0.25)
    ready_s = made_s = ours_s = float("inf")
    for attempt in range(9):
        ready_s = min(ready_s, _bare_inserts_s(place / f"ready{attempt}.db", event, make_rows=False))
        made_s = min(made_s, _bare_inserts_s(place / f"made{attempt}.db", event, make_rows=True))
        ours_s = min(ours_s, _our_appends_s(place / f"ours{attempt}.db", event))
    rate = APPENDS / ours_s
    made, ready = (
        "bare sqlite3 inserts of the same rows, JSON included",
        "bare sqlite3 inserts of prepared rows",
    )
    yield Row("bare sqlite3 inserts (WAL, NORMAL)", APPENDS / made_s, "events/s")
    yield Row("append, SQLite", rate, "events/s", made_s / ours_s, made, "ratio >= 0.7")
    yield Row("append, SQLite", rate, "events/s", ready_s / ours_s, ready)


def _bare_inserts_s(path: Path, event: Event, *, make_rows: bool) -> float:
    stamped = stamp_events([event], first_seq=1, now=time.time())[0]
    line = dumps_stored(stamped)
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute(
        "CREATE TABLE events (session INTEGER, seq INTEGER, updated REAL, data TEXT, PRIMARY KEY (session, seq))"
    )
    began = time.perf_counter()
    for seq in range(1, APPENDS + 1):
        text = dumps_event(stamped) if make_rows else line
        db.execute("INSERT INTO events VALUES (1, ?, 1.5, ?)", (seq, text))
    took_s = time.perf_counter() - began
    db.close()
    return took_s


def _our_appends_s(path: Path, event: Event) -> float:
    store = SqliteSessionStore(path, durability="flush")
    with store.open_writer(store.create_session()) as writer:
        began = time.perf_counter()
        for _ in range(APPENDS):
            writer.append([event])
        took_s = time.perf_counter() - began
    store.close()
    return took_s


# --- long sessions ---------------------------------------------------------------------------------------------------


def _long_session(store: SessionStore, count: int) -> str:
    step: list[Event] = [ModelRequest(1, 1, "", 1), AssistantMessage("x" * 500), ToolUse("c", "Bash", {})]
    events = [*step, ToolResult("c", output="x" * 2500)] * (count // 4 + 1)
    name = f"with-{count}"
    return store.import_session(name, stamp_events(events[:count], first_seq=1, now=time.time()))


def _opening(place: Path) -> Iterator[Row]:
    """Measure becoming the writer of a log that grew by appends; reading it would cost hundreds of times the floor."""
    for scheme in ("sqlite", "file"):
        store = open_store(f"{scheme}:{place / 'open'}-{scheme}")
        short, long = _grown_session(store, 10), _grown_session(store, LOG_EVENTS)
        floor_s, ours_s = (best_s(partial(_open_and_close, store, name)) for name in (short, long))
        name = f"open a session of {LOG_EVENTS:,} events for an append, {scheme}"
        yield Row(name, ours_s * 1000, "ms", ours_s / floor_s, "a session of 10 events", "ratio <= 10")
        store.close()


def _grown_session(store: SessionStore, count: int) -> str:
    session_id = store.create_session()
    with store.open_writer(session_id) as writer:
        for _ in range(0, count, 10):
            writer.append([ToolResult("c", output="x" * 1000)] * 10)
    return session_id


def _open_and_close(store: SessionStore, session_id: str) -> None:
    store.open_writer(session_id).close()


def _forks(place: Path) -> Iterator[Row]:
    """Compare forks with plain copies.

    A fork of a file reads, checks and writes each block in this process, and waits for the disk once; `copytree` lets the
    system copy.

    Of its processor time, 4 times that of the copy, two thirds are the checksums and the count of the lines.
    """
    floors = {
        "sqlite": ("the same rows into another table", _copy_rows, 2),
        "file": ("copying the folder", _copy_folder, 8),
    }
    for scheme, (floor, copy, most) in floors.items():
        path = place / f"fork-{scheme}"
        store = open_store(f"{scheme}:{path}?durability=flush")
        source = _long_session(store, LOG_EVENTS)
        floor_s = best_s(partial(copy, path))
        for name, at_seq in ((f"fork {LOG_EVENTS:,} events", None), ("fork at half of them", LOG_EVENTS // 2)):
            took_s = best_s(partial(lifecycle.fork_session, store, source, at_seq=at_seq))
            yield Row(f"{name}, {scheme}", took_s * 1000, "ms", took_s / floor_s, floor, f"ratio <= {most}")
        store.close()


def _copy_rows(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE copied AS SELECT * FROM events")
        db.execute("DROP TABLE copied")


def _copy_folder(path: Path) -> None:
    shutil.rmtree(path.with_name("copied"), ignore_errors=True)
    shutil.copytree(path, path.with_name("copied"))


# --- lists -----------------------------------------------------------------------------------------------------------


def _lists(place: Path) -> Iterator[Row]:
    yield from _list_files(place / "list-files")
    yield _list_database(f"sqlite:{place / 'list.db'}?durability=flush", "SQLite")
    if POSTGRES_URL:
        with own_schema(POSTGRES_URL) as url:
            yield _list_database(url, "Postgres")


def _list_database(url: str, name: str) -> Row:
    store = open_store(url)
    for number in range(SESSIONS):
        store.import_session(f"s{number}", stamp_events(_session(number), first_seq=1, now=time.time()))
    took_s = best_s(lambda: store.list_session_summaries(limit=10))
    single_s = best_s(lambda: store.read_summary("s5"))
    store.close()
    text = f"list the newest 10 of {SESSIONS:,} sessions of {SESSION_BYTES // 1000} KB, {name}"
    return Row(text, took_s * 1000, "ms", took_s / single_s, "one summary", "ratio <= 15")


def _list_files(folder: Path) -> Iterator[Row]:
    url = f"file:{folder}?durability=flush"
    _fill_files(folder, url)
    list_s = best_s(lambda: _run(_LIST.format(url=url), folder / "bytecode"))
    floor_s = best_s(lambda: _run(_STAT_ALL.format(folder=str(folder / "sessions")), folder / "bytecode"))
    floor = "a process that looks at each log's time"
    text = f"list the newest 10 of {SESSIONS:,} sessions of {SESSION_BYTES // 1000} KB, files, cold process"
    yield Row(text, list_s * 1000, "ms", list_s / floor_s, floor, "ratio <= 3")


def _fill_files(folder: Path, url: str) -> None:
    """Create one session by the store, and copies of it under other names: the log does not contain its id."""
    store = open_store(url)
    first = store.import_session("s0", stamp_events(_session(0), first_seq=1, now=time.time()))
    log = (folder / "sessions" / first / "events.jsonl").read_bytes()
    meta = (folder / "sessions" / first / "meta.json").read_text()
    for number in range(1, SESSIONS):
        target = folder / "sessions" / f"s{number}"
        target.mkdir()
        (target / "events.jsonl").write_bytes(log)
        (target / "meta.json").write_text(meta.replace('"s0"', f'"s{number}"'))
        os.utime(target / "events.jsonl", (number, number))
    store.close()


def _session(number: int) -> list[Event]:
    return [UserMessage(f"prompt {number}"), ToolResult("c", output="x" * SESSION_BYTES)]


def _run(source: str, bytecode: Path) -> None:
    """Run one process that finds the package compiled, as from its second start on."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(bytecode)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, "-c", source], check=True, cwd=Path(__file__).parent.parent, env=environment)


@contextmanager
def own_schema(url: str) -> Iterator[str]:
    import psycopg

    schema = f"bench_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"CREATE SCHEMA {schema}")
        try:
            yield f"{url}{'&' if '?' in url else '?'}options={quote(f'-csearch_path={schema}')}"
        finally:
            db.execute(f"DROP SCHEMA {schema} CASCADE")
