"""The cost of a step of a workflow on Postgres, compared with DBOS on the same work and server.

`OPENAGENTIC_TEST_POSTGRES_URL` names the server, in which two new databases are used, and `OPENAGENTIC_TEST_DBOS_PYTHON`
the Python of an environment with DBOS (`pip install dbos`). Without one of them there are no rows, and a sentence explains
this. Both sides commit each step to the server before the next one begins; our commit also contains the start of the next
step.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

from openagentic_sdk import Flow, OpenAgenticOptions, workflow
from openagentic_sdk.sessions.postgres import PostgresSessionStore

from . import Row

POSTGRES_URL = os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL")
DBOS_PYTHON = os.environ.get("OPENAGENTIC_TEST_DBOS_PYTHON")
# Concurrent workflows, the steps of each, and rounds, of which the fastest counts.
SIZES = ((1, 300), (8, 100), (64, 20))
ROUNDS = 3
LONG = 1_000
# The same work as a DBOS program, which prints seconds: `run` this many workflows of this many steps, `begin` one and die
# before its last step, `recover` that one.
_DBOS = """
import asyncio
import json
import os
import sys
import time

from dbos import DBOS, SetWorkflowID

URL, KIND, *NUMBERS = sys.argv[1:]
DBOS(
    config={
        "name": "steps",
        "system_database_url": URL,
        "run_admin_server": False,
        "log_level": "ERROR",
        "application_version": "1",
        "executor_id": "one",
        "enable_otlp": False,
    }
)


@DBOS.step()
async def add(number: int) -> int:
    return number + 1


@DBOS.workflow()
async def count(steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = await add(number)
        if KIND == "begin" and number == steps - 1:
            os._exit(0)
    return number


async def measure(workflows: int, steps: int) -> float:
    assert await count(2) == 2
    began = time.perf_counter()
    found = await asyncio.gather(*(count(steps) for _ in range(workflows)))
    took_s = time.perf_counter() - began
    assert found == [steps] * workflows
    return took_s


async def begin(steps: int) -> None:
    with SetWorkflowID("long"):
        await count(steps)


async def recover(began: float, steps: int) -> float:
    handle = await DBOS.retrieve_workflow_async("long")
    assert await handle.get_result() == steps
    return time.perf_counter() - began


launched = time.perf_counter()
DBOS.launch()
if KIND == "run":
    figure = asyncio.run(measure(int(NUMBERS[0]), int(NUMBERS[1])))
elif KIND == "begin":
    asyncio.run(begin(int(NUMBERS[0])))
else:
    figure = asyncio.run(recover(launched, int(NUMBERS[0])))
print(json.dumps(figure), flush=True)
os._exit(0)
"""
DIES_BEHIND: int | None = None


async def add(number: int) -> int:
    return number + 1


@workflow
async def count(flow: Flow, steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = await flow.step(add, number)
        if number == DIES_BEHIND:
            os._exit(0)
    return number


def rows() -> list[Row]:
    if not POSTGRES_URL or not DBOS_PYTHON:
        print("  skipped: OPENAGENTIC_TEST_POSTGRES_URL and OPENAGENTIC_TEST_DBOS_PYTHON name what it needs")
        return []
    with _databases(POSTGRES_URL) as (ours, theirs):
        return [*_speed(ours, theirs), *_bytes(ours, theirs), *_recovery(ours, theirs)]


def _speed(ours: str, theirs: str) -> Iterator[Row]:
    for workflows, steps in SIZES:
        # In turns, so that other work on the machine affects both.
        pairs = [(_ours(ours, workflows, steps), _dbos(theirs, "run", workflows, steps)) for _ in range(ROUNDS)]
        our_s, their_s = (min(side) for side in zip(*pairs, strict=True))
        speed = workflows * steps / our_s
        yield Row(f"steps, {workflows} workflows at a time", speed, "1/s", their_s / our_s, "DBOS", "ratio >= 1")


def _bytes(ours: str, theirs: str) -> Iterator[Row]:
    """The bytes that a step adds to the server's write-ahead log.

    Of our 3.3 kB (`pg_waldump --stats=record`), 1.7 are the rows of four events of 350 characters: the call, its
    permission, its start and its result, each with a checksum and the signature of this installation. The session's row,
    with the end of its log and its summary, is another 0.6, and nine entries of indexes are 0.7: lists are ordered by the
    newest write, so each step moves the row in five indexes. DBOS stores one row for a step: its output.
    """
    our_bytes = _written(ours, lambda: _ours(ours, 1, LONG)) / LONG
    their_bytes = _written(theirs, lambda: _dbos(theirs, "run", 1, LONG)) / LONG
    yield Row("bytes that the server writes for a step", our_bytes, "B", our_bytes / their_bytes, "DBOS")


def _recovery(ours: str, theirs: str) -> Iterator[Row]:
    """The time from the start of the library until the end of a workflow that died before its last step."""
    _python(sys.executable, "-m", "benchmarks.workflow_steps", ours, "begin", LONG)
    our_s = float(_python(sys.executable, "-m", "benchmarks.workflow_steps", ours, "recover", LONG))
    _dbos(theirs, "begin", LONG)
    their_s = _dbos(theirs, "recover", LONG)
    yield Row(f"recovery of a workflow of {LONG:,} steps", our_s * 1e3, "ms", our_s / their_s, "DBOS", "ratio <= 1")


def _ours(url: str, workflows: int, steps: int) -> float:
    async def run() -> float:
        store = PostgresSessionStore(url)
        options = OpenAgenticOptions(session_store=store)
        await count.run(2, options=options)
        began = time.perf_counter()
        found = await asyncio.gather(*(count.run(steps, options=options) for _ in range(workflows)))
        took_s = time.perf_counter() - began
        assert [each.output for each in found] == [steps] * workflows
        store.close()
        return took_s

    return asyncio.run(run())


def _dbos(url: str, *words: object) -> float:
    found = _python(DBOS_PYTHON or "", "-c", _DBOS, url, *words)
    return float(json.loads(found)) if found else 0.0


def _python(python: str, *words: object) -> str:
    done = subprocess.run([python, *map(str, words)], capture_output=True, text=True, timeout=600, check=True)
    return done.stdout.strip()


def _written(url: str, work: Callable[[], object]) -> float:
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        began = db.execute("SELECT pg_current_wal_lsn()").fetchone()
        work()
        found = db.execute("SELECT pg_current_wal_lsn() - %s::pg_lsn", began).fetchone()
    assert found is not None
    return float(found[0])


@contextmanager
def _databases(url: str) -> Iterator[list[str]]:
    import psycopg

    names = [f"bench_{uuid.uuid4().hex[:12]}" for _ in range(2)]
    with psycopg.connect(url, autocommit=True) as db:
        for name in names:
            db.execute(f"CREATE DATABASE {name}")
        try:
            yield [urlunsplit(urlsplit(url)._replace(path=f"/{name}")) for name in names]
        finally:
            for name in names:
                db.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _main(url: str, kind: str, steps: str) -> None:
    global DIES_BEHIND
    began = time.perf_counter()
    options = OpenAgenticOptions(session_store=PostgresSessionStore(url))
    if kind == "begin":
        DIES_BEHIND = int(steps) - 1
        count.run_sync(int(steps), options=options, session="long")
    assert asyncio.run(count.resume("long", options=options)).output == int(steps)
    print(time.perf_counter() - began, flush=True)
    os._exit(0)


if __name__ == "__main__":
    _main(*sys.argv[1:])
