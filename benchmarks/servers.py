"""The cost of shared stores: simultaneous writers and followers, parked sessions, pages, and the first search.

Postgres is measured if `OPENAGENTIC_TEST_POSTGRES_URL` names a server, in schemas that are dropped afterwards. A server
with `fsync=off` has no disk to wait for; `-c commit_delay=2000 -c commit_siblings=0` makes each commit as slow as on a slow
disk.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from openagentic_sdk.events import ToolResult, UserMessage
from openagentic_sdk.sessions.base import SessionStore, stamp_events
from openagentic_sdk.sessions.log.line import dumps_stored
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.sessions.stores.locate import open_store

from . import Row, best_s
from .stores import own_schema

POSTGRES_URL = os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL")
IS_LARGE = bool(os.environ.get("OPENAGENTIC_TEST_LARGE"))
WRITERS, APPENDS = 16, 60
TURNS, TURN_EVENTS = 200, 10
FOLLOWERS = 200
PARKED = 1000 if IS_LARGE else 200
LISTED = 10_000 if IS_LARGE else 6_000
SEARCHED_SESSIONS, SEARCHED_BYTES = (10_000, 20_000) if IS_LARGE else (1_000, 20_000)
EVENT = ToolResult("call_0123456789", output={"stdout": "x" * 300, "exit_code": 0}, duration_s=0.25)


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        found = [_first_search(Path(place))]
        if POSTGRES_URL:
            url = stack.enter_context(own_schema(POSTGRES_URL))
            store = open_store(url)
            stack.callback(store.close)
            found += [_writers(store, url), _turns(store, Path(place)), *_followers(store), _parked(store)]
            found += _pages(store, url)
        return found


def side_by_side(works: Sequence[Callable[[], object]]) -> float:
    """Seconds until all threads, which begin together, are done."""
    barrier = threading.Barrier(len(works) + 1)

    def begin(work: Callable[[], object]) -> None:
        barrier.wait()
        work()

    threads = [threading.Thread(target=begin, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    barrier.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def _writers(store: SessionStore, url: str) -> Row:
    import psycopg

    line = dumps_stored(stamp_events([EVENT], first_seq=1, now=time.time())[0])
    with ExitStack() as stack:
        bare = [stack.enter_context(psycopg.connect(url, autocommit=True)) for _ in range(WRITERS)]
        bare[0].execute("CREATE TABLE bare (writer integer, seq bigint, data text, PRIMARY KEY (writer, seq))")
        writers = [stack.enter_context(store.open_writer(store.create_session())) for _ in range(WRITERS)]

        def insert(db: Any, writer: int, offset: int) -> None:
            for seq in range(offset, offset + APPENDS):
                db.execute("INSERT INTO bare VALUES (%s, %s, %s)", (writer, seq, line))

        def append(writer: Any) -> None:
            for _ in range(APPENDS):
                writer.append([EVENT])

        floor_s = ours_s = float("inf")
        for attempt in range(8):
            inserts = [lambda db=db, n=n, a=attempt: insert(db, n, a * APPENDS) for n, db in enumerate(bare)]  # type: ignore[misc]
            floor_s = min(floor_s, side_by_side(inserts))
            ours_s = min(ours_s, side_by_side([lambda writer=writer: append(writer) for writer in writers]))  # type: ignore[misc]
        settings = [bare[0].execute(f"SHOW {name}").fetchone() for name in ("fsync", "commit_delay")]
    rate = WRITERS * APPENDS / ours_s
    # Without waiting for a disk, this compares two amounts of computation.
    bar = "ratio <= 1.5" if settings[0] == ("on",) and settings[1] != ("0",) else ""
    return Row(f"{WRITERS} writers, Postgres", rate, "events/s", ours_s / floor_s, "bare inserts", bar)


def _turns(store: SessionStore, place: Path) -> Row:
    """Turns as in a service: each opens its session, appends step by step, and closes it."""

    def turn(target: SessionStore) -> None:
        session_id = target.create_session(metadata={"cwd": "/w"})
        with target.open_writer(session_id) as writer:
            writer.append([UserMessage("a prompt")])
            for _ in range(TURN_EVENTS):
                writer.append([EVENT])

    sqlite = SqliteSessionStore(place / "turns.db")
    best = {}
    for name, target in (("floor", sqlite), ("ours", store)):
        best[name] = min(side_by_side([lambda target=target: turn(target)] * TURNS) for _ in range(3))  # type: ignore[misc]
    sqlite.close()
    text = f"{TURNS} concurrent turns of {TURN_EVENTS + 1} appends, Postgres"
    return Row(text, best["ours"], "s", best["ours"] / best["floor"], "the same on SQLite", "ratio <= 1.5")


def _followers(store: SessionStore) -> Iterator[Row]:
    session_id = store.create_session()

    def median_s() -> float:
        times = []
        with store.open_writer(session_id) as writer:
            for _ in range(200):
                began = time.perf_counter()
                writer.append([EVENT])
                times.append(time.perf_counter() - began)
        return statistics.median(times)

    floor_s = median_s()
    idle = [store.create_session() for _ in range(FOLLOWERS)]
    stop = threading.Event()

    def follow(name: str) -> None:
        while not stop.is_set():
            store.wait_for_events(name, after_seq=0, timeout_s=1.0)

    threads = [threading.Thread(target=follow, args=(name,)) for name in idle]
    for thread in threads:
        thread.start()
    time.sleep(1.5)
    followed_s = median_s()
    stop.set()
    for thread in threads:
        thread.join()
    text = f"append with {FOLLOWERS} idle followers of other sessions, Postgres"
    yield Row(text, followed_s * 1e6, "us", followed_s / floor_s, "an append without followers", "ratio <= 1.5")


def _parked(store: SessionStore) -> Row:
    with ExitStack() as stack:
        for _ in range(PARKED):
            stack.enter_context(store.open_writer(store.create_session())).append([EVENT])
        held = len(store._server._idle)  # type: ignore[attr-defined]
    return Row(f"connections of {PARKED:,} parked sessions, Postgres", held, "connections", bar="value <= 16")


def _pages(store: SessionStore, url: str) -> Iterator[Row]:
    import psycopg

    for number in range(LISTED - len(store.list_sessions())):
        store.create_session(session_id=f"listed{number}", metadata={"cwd": "/w"})
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as db:
        # Both are planned from the same statistics, regardless of when the server would have collected them.
        db.execute("ANALYZE openagentic_sessions")
        plain = (
            "SELECT id, created_at, metadata, summary, last_seq, updated FROM openagentic_sessions WHERE NOT is_child "
            "ORDER BY touched DESC LIMIT 10 OFFSET %s"
        )
        for name, offset in (("the first page of 10", 0), ("page 500 of 10", 4990)):
            floor_s = best_s(lambda offset=offset: db.execute(plain, (offset,)).fetchall(), 30)  # type: ignore[misc]
            ours_s = best_s(lambda offset=offset: store.list_session_summaries(limit=10, offset=offset), 30)  # type: ignore[misc]
            yield Row(f"{name}, Postgres", ours_s * 1e6, "us", ours_s / floor_s, "a plain query", "ratio <= 2")


def _first_search(place: Path) -> Row:
    """The longest append of another run while the first search reads every log."""
    url = f"sqlite:{place / 'search.db'}?durability=flush"
    store, other = open_store(url), open_store(url)
    for number in range(SEARCHED_SESSIONS):
        text = f"session {number} " + "word " * (SEARCHED_BYTES // 5)
        store.import_session(f"s{number}", stamp_events([UserMessage(text)], first_seq=1, now=time.time()))
    longest_s, done = 0.0, threading.Event()

    def search() -> None:
        other.search("word 77")
        done.set()

    thread = threading.Thread(target=search)
    with store.open_writer(store.create_session()) as writer:
        thread.start()
        while not done.is_set():
            began = time.perf_counter()
            writer.append([EVENT])
            longest_s = max(longest_s, time.perf_counter() - began)
            time.sleep(0.001)
    thread.join()
    store.close()
    other.close()
    text = f"longest append during the first search of {SEARCHED_SESSIONS:,} sessions, SQLite"
    return Row(text, longest_s * 1000, "ms", bar="value <= 50")
