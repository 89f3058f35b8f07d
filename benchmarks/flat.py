"""Queries whose cost should stay flat with ten times the sessions: each is compared with the same query on the small store.

`OPENAGENTIC_TEST_LARGE=1` compares 10,000 with 100,000 sessions, otherwise 1,000 with 10,000. Postgres and Redis are
included if `OPENAGENTIC_TEST_POSTGRES_URL` and `OPENAGENTIC_TEST_REDIS_URL` name servers.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from openagentic_sdk.events import AssistantMessage, Event, ModelResponse, SessionMeta, UserMessage
from openagentic_sdk.parts.record.folds.costs import all_costs, cost_report
from openagentic_sdk.parts.record.lifecycle import rows_of_tag
from openagentic_sdk.sessions.base import SessionStore, stamp_events, whole_id
from openagentic_sdk.sessions.stores.locate import open_store

from . import Row, best_s
from .stores import POSTGRES_URL, own_schema

FEW = 10_000 if os.environ.get("OPENAGENTIC_TEST_LARGE") else 1_000
TIMES = 10
REDIS_URL = os.environ.get("OPENAGENTIC_TEST_REDIS_URL")
LONG_EVENTS = 100_000


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as place:
        found = []
        for name, make in _stores(Path(place)):
            found += _compared(name, make)
        return [*found, *_long_file(Path(place))]


def _stores(place: Path) -> Iterator[tuple[str, Callable[[int], Any]]]:
    """Each kind of store by its name, and how to open an empty one for this many sessions."""
    yield "files", lambda count: _closing(f"file:{place / f'files-{count}'}?durability=flush")
    yield "SQLite", lambda count: _closing(f"sqlite:{place / f'sqlite-{count}'}?durability=flush")
    if POSTGRES_URL:
        yield "Postgres", lambda count: _in_schema(POSTGRES_URL)
    if REDIS_URL:
        yield "Redis", lambda count: _under_prefix(REDIS_URL)


@contextmanager
def _closing(url: str) -> Iterator[SessionStore]:
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def _in_schema(url: str) -> Iterator[SessionStore]:
    with own_schema(url) as own, _closing(own) as store:
        yield store


@contextmanager
def _under_prefix(url: str) -> Iterator[SessionStore]:
    import redis

    prefix = f"bench-{uuid.uuid4().hex[:12]}"
    with _closing(f"{url}?prefix={prefix}") as store:
        yield store
    with redis.Redis.from_url(url) as server:
        for key in server.scan_iter(match=f"{{{prefix}}}*", count=1000):
            server.delete(key)


def _compared(name: str, make: Callable[[int], Any]) -> Iterator[Row]:
    """Compare the queries to a store of that kind with few sessions, and with ten times as many."""
    few_s, many_s = (_asked(make, count) for count in (FEW, FEW * TIMES))
    for question, took_s in many_s.items():
        floor = f"with {FEW:,} sessions"
        yield Row(
            f"{name}, {FEW * TIMES:,} sessions: {question}", took_s * 1e3, "ms", took_s / few_s[question], floor, _BAR
        )


_BAR = "ratio <= 2"


def _asked(make: Callable[[int], Any], count: int) -> dict[str, float]:
    with make(count) as store:
        for number in range(count):
            store.import_session(f"s{number:08d}-x", stamp_events(_session(number), first_seq=1, now=time.time()))
        began = time.perf_counter()
        store.search("nothinglikethis")
        first_s = time.perf_counter() - began
        middle = store.page_sessions(limit=count // 2).next
        questions: dict[str, Callable[[], object]] = {
            "first page": lambda: store.list_session_summaries(limit=20),
            "page at half": lambda: store.page_sessions(limit=20, after=middle),
            "search without a hit": lambda: store.search("nothinglikethis"),
            "sessions of a tag": lambda: store.list_session_summaries(query="tag7", limit=20),
            "costs of a tag": lambda: cost_report(rows_of_tag(store, "tag7"), "tag"),
            "costs of all by tag": lambda: all_costs(store, "tag"),
            "an id by its start": lambda: whole_id(store, f"s{count // 3:08d}"),
        }
        # The best of many runs, because other work on the machine delays most of them.
        found = {name: best_s(work, 20) for name, work in questions.items()}
        print(f"    first search of {count:,}: {first_s:.2f} s", flush=True)
        return found


def _session(number: int) -> list[Event]:
    tags = [f"tag{number}"] if number < 100 else ["common"]
    response = ModelResponse(1, 1, model="m", usage={"input_tokens": 100, "output_tokens": 10}, cost_usd=0.01)
    return [UserMessage(f"prompt {number}"), response, AssistantMessage("an answer " * 20), SessionMeta(tags=tags)]


def _long_file(place: Path) -> Iterator[Row]:
    store = open_store(f"file:{place / 'long'}?durability=flush")
    took_s = []
    for count in (LONG_EVENTS // TIMES, LONG_EVENTS):
        name = f"with-{count}"
        with store.open_writer(store.create_session(session_id=name)) as writer:
            for first in range(0, count, 500):
                writer.append([AssistantMessage(f"{first + n} " + "x" * 300) for n in range(500)])
        took_s.append(best_s(partial(store.read_events, name, after_seq=count // 2, limit=100)))
    yield Row(
        f"files: 100 events in the middle of {LONG_EVENTS:,}",
        took_s[1] * 1e3,
        "ms",
        took_s[1] / took_s[0],
        f"of {LONG_EVENTS // TIMES:,}",
        _BAR,
    )
