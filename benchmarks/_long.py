"""A very long session: the cost of its ten-thousandth step compared with its first thousand, with compactions in between.

The whole run is a separate process, so that its memory is the run's. The floors are the same run at its beginning.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openagentic_sdk import FileSessionStore, OpenAgenticOptions, PermissionGate, query, tool
from openagentic_sdk.events import (
    AssistantMessage,
    ModelRequest,
    SessionCompacted,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserMessage,
)
from openagentic_sdk.providers.base import ModelOutput, ToolCall
from openagentic_sdk.sessions.folds.view import SessionView
from openagentic_sdk.sessions.resume import load_view

from . import Row, best_s, peak_mb

STEPS = 10_000
FIRST, LAST = range(200, 1_000), range(STEPS - 800, STEPS)
WINDOW_BYTES = 60_000
IN_VIEW = 60_000


@tool(effect="read")
async def look(number: int) -> str:
    """Look at a number."""
    return f"{number} " + "It is a number like others. " * 15


class Looking:
    """A model that looks at one number after the other."""

    name = "looking"

    def __init__(self) -> None:
        self.step = 0

    async def complete(
        self,
        *,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        api_key: str | None = None,
    ) -> ModelOutput:
        # A request for a summary is the conversation followed by the instruction.
        if self.step and messages[-1]["role"] == "user":
            return ModelOutput("They looked at numbers. " * 40, ())
        self.step += 1
        if self.step > STEPS:
            return ModelOutput("That was all.", ())
        return ModelOutput("", (ToolCall(f"call-{self.step}", "look", {"number": self.step}),))


def rows() -> list[Row]:
    command = [sys.executable, "-c", "from benchmarks._long import main; main()"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    it: dict[str, float] = json.loads(done.stdout)
    name = f"{STEPS:,} steps, {it['events']:,.0f} events, {it['compactions']:.0f} compactions"
    cpu, memory, resumed = it["last_ms"] / it["first_ms"], it["last_mb"] / it["first_mb"], it["resume_s"] / it["fold_s"]
    return [
        Row(f"{name}: processor time of a step at its end", it["last_ms"], "ms", cpu, "at 1,000 steps", "ratio <= 1.3"),
        Row("... peak memory of query()", it["last_mb"], "MB", memory, "at 1,000 steps", "ratio <= 1.2"),
        Row("... longest pause of the event loop", it["pause_ms"], "ms", bar="value <= 50"),
        Row("... folding it for a resume", it["resume_s"] * 1e3, "ms", resumed, "folding all of it", "ratio <= 0.05"),
        Row(
            f"{IN_VIEW:,} events in view, never compacted: longest pause of a resume",
            it["in_view_pause_ms"],
            "ms",
            bar="value <= 50",
        ),
    ]


def main() -> None:
    """Run the session and print its figures as JSON."""
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(asyncio.run(_run(Path(place)))))


async def _run(place: Path) -> dict[str, float]:
    store = FileSessionStore(place)
    options = OpenAgenticOptions(
        provider=Looking(),
        model="m",
        tools=[look],
        permission_gate=PermissionGate(permission_mode="bypass"),
        session_store=store,
        max_steps=STEPS + 1,
        max_context_bytes=WINDOW_BYTES,
    )
    pauses: list[float] = [0.0]
    watching = asyncio.create_task(_watch(pauses))
    spent: dict[int, float] = {}
    memory: dict[int, float] = {}
    step = compactions = 0
    async for event in query(prompt="Look at all numbers.", options=options):
        compactions += isinstance(event, SessionCompacted)
        if isinstance(event, ModelRequest) and event.purpose == "turn":
            step += 1
            if step in (FIRST.start, FIRST.stop, LAST.start, LAST.stop):
                spent[step] = time.process_time()
                memory[step] = peak_mb()
    watching.cancel()
    session_id = store.list_sessions()[0]
    return {
        "events": store.last_seq(session_id),
        "compactions": compactions,
        "first_ms": (spent[FIRST.stop] - spent[FIRST.start]) / len(FIRST) * 1e3,
        "last_ms": (spent[LAST.stop] - spent[LAST.start]) / len(LAST) * 1e3,
        "first_mb": memory[FIRST.stop],
        "last_mb": memory[LAST.stop],
        "pause_ms": max(pauses) * 1e3,
        "resume_s": best_s(lambda: load_view(store, session_id)),
        "fold_s": best_s(lambda: SessionView().extend(store.iter_events(session_id)), 1),
        "in_view_pause_ms": await _resume_in_view(store) * 1e3,
    }


async def _resume_in_view(store: FileSessionStore) -> float:
    """The longest pause while resuming a session that the model still sees completely."""
    session_id = store.create_session()
    for number in range(IN_VIEW // 6):
        step = f"c{number}"
        store.append_events(
            session_id,
            [
                UserMessage(f"And {number}?"),
                ModelRequest(number + 1, 1, "0" * 64, 1),
                ToolUse(step, "look", {"number": number}),
                ToolStarted(step, "look", "read", "0" * 64, step),
                ToolResult(step, "It is a number like others."),
                AssistantMessage("It is a number like others. " * 5),
            ],
        )
    pauses: list[float] = [0.0]
    watching = asyncio.create_task(_watch(pauses))
    options = OpenAgenticOptions(provider=Looking(), model="m", session_store=store, resume=session_id, max_steps=1)
    async for _ in query(prompt="Go on.", options=options):
        pass
    watching.cancel()
    return max(pauses)


async def _watch(pauses: list[float]) -> None:
    """The longest delay of the event loop's wake-ups, counting only time in which this process was working.

    Time in which another process had the processor is not counted.
    """
    while True:
        before, worked = time.monotonic(), time.process_time()
        await asyncio.sleep(0.001)
        late = time.monotonic() - before - 0.001
        pauses[0] = max(pauses[0], min(late, time.process_time() - worked))
