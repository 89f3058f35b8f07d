"""Reading from the log: replaying a session, many background runs, following one as it grows, and a long one.

The floor of a replayed step is a step of the run that recorded it; memory and pauses are measured in a separate process.

64 runs in SQLite sometimes pause their event loop for longer than the bar allows. One turn of the loop takes at most 35 ms
of processor time (to start the runs; later 20, of which half is garbage collection), and then it waits for the interpreter
lock, which the threads that write for the other runs hold for up to 5 ms each.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from openagentic_sdk import FileSessionStore, MemorySessionStore, OpenAgenticOptions, PermissionGate, run, tool
from openagentic_sdk.events import UserMessage
from openagentic_sdk.runs.background import submit
from openagentic_sdk.runs.replay import replay_events
from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.follow import follow
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.testing.scripted import ScriptedProvider

from . import Row, _long, peak_mb

STEPS = 1000
RUNS = 64
RUN_STEPS = 20
FOLLOWED = 200
_CALL = {"tool_calls": [{"name": "nothing", "arguments": {}}], "usage": {"input_tokens": 1, "output_tokens": 1}}


@tool(effect="read")
async def nothing() -> str:
    """Do nothing."""
    return "done"


def rows() -> list[Row]:
    recorded_us, replayed_us = asyncio.run(_replay())
    result = [
        Row(
            f"processor time of a replayed step of {STEPS:,}",
            replayed_us,
            "us",
            replayed_us / recorded_us,
            "a recorded step",
            "ratio <= 2",
        )
    ]
    for kind in ("files", "sqlite"):
        measured = _in_own_process(kind)
        name = f"{RUNS} background runs of {RUN_STEPS} steps, {kind}"
        result.append(Row(f"{name}: peak memory", measured["megabytes"], "MB", bar="value <= 100"))
        result.append(Row(f"{name}: longest pause of the event loop", measured["pause_ms"], "ms", bar="value <= 50"))
    with tempfile.TemporaryDirectory() as folder:
        delays_ms = asyncio.run(_follow(FileSessionStore(folder, durability="flush")))
    p95 = statistics.quantiles(delays_ms, n=20)[18]
    result.append(Row("a follower sees an event after, p95, files", p95, "ms", bar="value <= 50"))
    return [*result, *_long.rows()]


def _options(steps: int, store: SessionStore) -> OpenAgenticOptions:
    return OpenAgenticOptions(
        provider=ScriptedProvider([*[_CALL] * steps, "Done."]),
        model="scripted-1",
        tools=[nothing],
        permission_gate=PermissionGate(permission_mode="bypass"),
        session_store=store,
        max_steps=steps + 1,
    )


async def _replay() -> tuple[float, float]:
    """Microseconds of processor time per step: recording a session in memory, and replaying it."""
    store = MemorySessionStore()
    began = time.process_time()
    result = await run(prompt="go", options=_options(STEPS, store))
    recorded = time.process_time() - began
    events = store.read_events(result.session_id)
    began = time.process_time()
    report = await replay_events(events)
    replayed = time.process_time() - began
    if not report.ok:
        raise RuntimeError(report.error or "the replay differs")
    return recorded / STEPS * 1e6, replayed / STEPS * 1e6


def _in_own_process(kind: str) -> dict[str, Any]:
    command = [sys.executable, "-c", "import sys; from benchmarks.runs import main; main(sys.argv[1])", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def main(kind: str) -> None:
    """Run the background runs and print their figures as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        store = FileSessionStore(folder) if kind == "files" else SqliteSessionStore(Path(folder) / "sessions.db")
        pause_s = asyncio.run(_background(store))
        store.close()
    print(json.dumps({"pause_ms": pause_s * 1000, "megabytes": peak_mb()}))


async def _background(store: SessionStore) -> float:
    pauses: list[float] = []
    watcher = asyncio.create_task(_watch(pauses))
    runs = [submit("go", _options(RUN_STEPS, store)) for _ in range(RUNS)]
    results = await asyncio.gather(*(run.wait() for run in runs))
    watcher.cancel()
    if not all(result.success for result in results):
        raise RuntimeError("a background run failed")
    return max(pauses)


async def _watch(pauses: list[float]) -> None:
    """The delay of the event loop's wake-ups."""
    while True:
        before = time.monotonic()
        await asyncio.sleep(0.001)
        pauses.append(time.monotonic() - before - 0.001)


async def _follow(store: SessionStore) -> list[float]:
    """Milliseconds from the append of an event to its delivery to a follower."""
    session_id = store.create_session()
    delays: list[float] = []

    async def watch() -> None:
        async for event in follow(store, session_id):
            assert isinstance(event, UserMessage)
            delays.append((time.monotonic() - float(event.text)) * 1000)
            if len(delays) == FOLLOWED:
                return

    watcher = asyncio.create_task(watch())
    for _ in range(FOLLOWED):
        store.append_event(session_id, UserMessage(str(time.monotonic())))
        await asyncio.sleep(0.01)
    await asyncio.wait_for(watcher, 30)
    return delays
