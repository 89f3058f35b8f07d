"""The cost of a fleet: claims, whole runs, parks, and the delay until another worker continues, on Postgres if one is
named.

`OPENAGENTIC_TEST_POSTGRES_URL` names the server, in which a new schema is used; without it everything is measured on
SQLite. `OPENAGENTIC_TEST_LARGE=1` claims 100,000 runs, as the bar requires; otherwise there are 4,000.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from openagentic_sdk.agents import NamedAgent
from openagentic_sdk.api import run
from openagentic_sdk.fleet import Fleet, Worker
from openagentic_sdk.fleet.queue import Claimer, NewRun, Queue
from openagentic_sdk.fleet.record import RunOutcome
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.sessions.stores.locate import open_store
from openagentic_sdk.sessions.stores.tables import Execute, Tables, tables_of
from openagentic_sdk.testing.scripted import ScriptedProvider

from . import Row

POSTGRES_URL = os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL")
MANY = 100_000 if os.environ.get("OPENAGENTIC_TEST_LARGE") else 4_000
CLAIMERS = 16
RUNS = 40
PARKED = 1_000
LEASE_S = 2.0
WHO = Claimer("a worker", 600.0, ("step",))
# The minimum for a queue: one row is locked, changed and returned, by the index of waiting rows.
_BARE = """
    UPDATE bare SET state = 'running'
    WHERE id = (SELECT id FROM bare WHERE state = 'queued' ORDER BY id LIMIT 1 {skip}) RETURNING id
"""
_WORKER = """
from openagentic_sdk.cli.main import main
main(["fleet", "work", "--agents", "benchmarks.fleet:agents", *{args!r}])
"""


def agents() -> dict[str, NamedAgent]:
    """A run of one step, and one that never ends."""

    def made(turn: object) -> Callable[[], OpenAgenticOptions]:
        return lambda: OpenAgenticOptions(provider=ScriptedProvider([turn]), model="scripted")

    return {"step": NamedAgent(made("done")), "hang": NamedAgent(made({"text": "x", "delay_s": 3600}))}


def rows() -> list[Row]:
    with _address() as url:
        return [*_claims(url), *_whole_runs(url), *_parks(url), *_take_over(url), *_workers(url), *_after_many(url)]


@contextmanager
def _address() -> Iterator[str]:
    if not POSTGRES_URL:
        with tempfile.TemporaryDirectory() as place:
            yield f"sqlite:{place}/runs.db"
        return
    import psycopg

    schema = f"bench_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(POSTGRES_URL, autocommit=True) as db:
        db.execute(f"CREATE SCHEMA {schema}")
        try:
            mark = "&" if "?" in POSTGRES_URL else "?"
            yield f"{POSTGRES_URL}{mark}options={quote(f'-csearch_path={schema}')}"
        finally:
            db.execute(f"DROP SCHEMA {schema} CASCADE")


# --- claims ----------------------------------------------------------------------------------------------------------


def _claims(url: str) -> Iterator[Row]:
    """Compare claims with the bare statement, both by the same number of threads at once.

    On Postgres, each thread has a connection; on SQLite they share that of the process. On SQLite, a claim costs about 0.12
    ms of processor time and the bare statement 0.035: 3.6 x, with one thread as with 16, because 150 bare ones in a row stay
    in the processor's caches. In turns of ten it is 2.8 x, in turns of one 2.5 x. Of the difference, about a third is
    finding the run (lost leases, tenants in turn, sessions in order), almost half the row and its indexes, four more pages
    of the log, and a quarter Python, which reads back a row of 28 columns. No index can go: without the one by lease, or
    the one of open runs, a claim takes 1.2 to 1.6 times as long, and only the one of busy runs, which divides workers among
    tenants, costs more here (7 %) than it saves.
    """
    count = 2_400
    with closing(open_store(url)) as store:
        queue = Queue(tables_of(store))
        _enqueue(queue, count)
        queue.tables.change(_make_bare)
        queue.tables.change(lambda execute: execute(_FILL_BARE.format(count=count)))
        bare_s = ours_s = float("inf")
        for _ in range(5):  # in turns, so that other work on the machine affects both
            bare_s = min(bare_s, _all_at_once(lambda: _claim_bare(queue.tables), count // 6))
            ours_s = min(ours_s, _all_at_once(lambda: queue.claim(WHO) is not None, count // 6))
    name = f"a claim, {CLAIMERS} workers at once"
    yield Row(name, ours_s * 1e3, "ms", ours_s / bare_s, "the bare statement", "ratio <= 3")


_FILL_BARE = """
    INSERT INTO bare (id, state) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
    SELECT i, 'queued' FROM n RETURNING id
"""


def _make_bare(execute: Execute) -> None:
    execute("CREATE TABLE bare (id bigint PRIMARY KEY, state text NOT NULL)")
    execute("CREATE INDEX bare_queued ON bare (id) WHERE state = 'queued'")


def _claim_bare(tables: Tables) -> bool:
    return bool(tables.change(lambda execute: execute(_BARE.format(skip=tables.skip_locked))))


def _all_at_once(claim: Callable[[], bool], count: int) -> float:
    """Seconds per claim if all claimers make this many claims at the same time."""
    each = count // CLAIMERS

    def work() -> None:
        for _ in range(each):
            assert claim(), "there are runs left"

    threads = [threading.Thread(target=work) for _ in range(CLAIMERS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - began) / (each * CLAIMERS)


def _enqueue(queue: Queue, count: int, agent: str = "step", body: str = '{"prompt":"go"}') -> list[int]:
    return [
        queue.add(NewRun(agent, body, "", "default", 0, 3, session=f"s{name}", request_id=f"r{name}"))
        for name in (os.urandom(8).hex() for _ in range(count))
    ]


# --- whole runs ------------------------------------------------------------------------------------------------------


def _whole_runs(url: str) -> Iterator[Row]:
    """Compare runs of a fleet with runs alone, one after the other, in this process.

    On SQLite, the fleet adds about two thirds of what a run alone takes: three transactions (enqueue, claim, end), and 14
    calls of the database in threads that the worker keeps. A new thread for each call would add a quarter more.
    """
    with closing(open_store(url)) as store, closing(Fleet(store, agents())) as fleet:
        options = fleet.agents.options("step", session_store=store)

        async def alone() -> float:
            began = time.perf_counter()
            for _ in range(RUNS):
                again = fleet.agents.options("step", session_store=options.session_store)
                await run(prompt="go", options=again)
            return (time.perf_counter() - began) / RUNS

        async def through() -> float:
            began = time.perf_counter()
            for _ in range(RUNS):
                await fleet.enqueue("step", "go")
            await Worker(fleet, slots=1).work(until_idle=True)
            return (time.perf_counter() - began) / RUNS

        _end_all(fleet.queue)
        floor_s, ours_s = _best_of_both(alone, through)
    yield Row("a run of one step through the fleet", ours_s * 1e3, "ms", ours_s / floor_s, "without it", "ratio <= 2")


def _best_of_both(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    times = [(asyncio.run(first()), asyncio.run(second())) for _ in range(4)]  # type: ignore[arg-type]
    return min(time_s for time_s, _ in times), min(time_s for _, time_s in times)


def _end_all(queue: Queue) -> None:
    command = "UPDATE openagentic_runs SET state = 'ended' WHERE state IN ('queued', 'running', 'waiting') RETURNING id"
    queue.tables.change(lambda execute: execute(command))


def _parks(url: str) -> Iterator[Row]:
    """Count the connections that many parked runs hold in addition to those that this process had before."""
    if not POSTGRES_URL:
        return
    with closing(open_store(url)) as store:
        queue = Queue(tables_of(store))
        command = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        before = queue.tables.read(command)[0][0]
        _enqueue(queue, PARKED)
        while (claimed := queue.claim(WHO)) is not None:
            queue.leave(claimed, RunOutcome("waiting", "waiting"))
        more = queue.tables.read(command)[0][0] - before
        _end_all(queue)
    yield Row(f"connections that {PARKED:,} parked runs hold", max(0, more), "", bar="value <= 0")


# --- several workers -------------------------------------------------------------------------------------------------


@contextmanager
def _worker(url: str, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    script = _WORKER.format(args=["--store", url, *args])
    root = Path(__file__).parents[1]
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL, cwd=root)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _take_over(url: str) -> Iterator[Row]:
    """Measure the time from `kill -9` of one worker to the claim of the other."""
    with closing(open_store(url)) as store, closing(Fleet(store, agents())) as fleet:
        queue = fleet.queue
        [run_id] = _enqueue(queue, 1, agent="hang")
        with _worker(url, "--lease", str(LEASE_S)) as first:
            while queue.find(run_id).state != "running":
                time.sleep(0.01)
            with _worker(url, "--lease", str(LEASE_S)) as second:
                time.sleep(2.0)  # until the second works: its start is not measured
                first.send_signal(signal.SIGKILL)
                began = time.perf_counter()
                while queue.find(run_id).steals == 0:
                    time.sleep(0.01)
                took_s = time.perf_counter() - began
                second.kill()
        _end_all(queue)
    bar = f"value <= {LEASE_S + 1}"
    yield Row(f"another worker continues, lease {LEASE_S:g} s", took_s, "s", bar=bar)


def _workers(url: str) -> Iterator[Row]:
    """Measure the time from the first claim to the last end, by the database's clock."""
    count, times = 240, {}
    command = "SELECT max(ended_at) - min(started_at) FROM openagentic_runs WHERE id >= %s"
    with closing(open_store(url)) as store:
        queue = Queue(tables_of(store))
        for workers in (1, 4):
            ids = _enqueue(queue, count)
            processes = [_worker(url, "--until-idle", "--slots", "2") for _ in range(workers)]
            for process in [process.__enter__() for process in processes]:
                process.wait()
            for each in processes:
                each.__exit__(None, None, None)
            times[workers] = queue.tables.read(command, (ids[0],))[0][0]
    name = "runs per second of 4 workers, for those of 1"
    yield Row(name, times[1] / times[4], "x", bar="value >= 1.6" if POSTGRES_URL and (os.cpu_count() or 1) >= 2 else "")


def _after_many(url: str) -> Iterator[Row]:
    """Compare the last twentieth of claims and ends, one after the other, with the first."""
    with closing(open_store(url)) as store:
        queue = Queue(tables_of(store))
        _end_all(queue)
        waits, part = [], MANY // 20
        for begun in range(0, MANY, part):
            _enqueue(queue, part)
            for _ in range(part):
                began = time.perf_counter()
                claimed = queue.claim(WHO)
                if begun in (0, MANY - part):
                    waits.append(time.perf_counter() - began)
                assert claimed is not None
                queue.leave(claimed, RunOutcome("ended", "end"))
    first, last = (sorted(some)[int(part * 0.99)] for some in (waits[:part], waits[part:]))
    name = f"p99 of claims after {MANY:,} runs"
    yield Row(name, last * 1e3, "ms", last / first, "the first ones", "ratio <= 2")
