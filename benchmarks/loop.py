"""The cost of one step of the loop: ask a model that answers at once, run a tool that does nothing, store everything.

The floor of a step is its own lines of the log, as JSON and with one plain write each, which cannot be avoided. Costs that
only the first run of a process pays (modules imported late, patterns compiled late) are in the first rows; "at n steps" is
the n-th step of any run, so it is measured in runs after a first one. A warm run excludes only those first costs: it
includes options, agent, session, prompt, a call of Read with all decisions about it, and the answer, as an application pays
them.

A step of a longer run misses its bar: the floor contains only what the six events of a step cost as text. Of the
processor time of a step (by a profile of that time), 43 % store them: 11 % in checks, checksums and the write, 8 % for
the summary beside the log, 10 % for the digests by which a resumed run recognizes its own events, 5 % for the view of
the session, 3 % for masking secrets; the rest goes to parts that observe events. The permission of the call takes 10 %,
the messages of the request and their digest 5 %, asyncio's switches between run, channel and caller 9 %. The rest is
spread over some 1,700 calls of functions, none of which takes more than 3 %. By the machine's own profile (perf), 85 %
are Python's interpreter, 7 % the kernel, 3 % the C library, 1 % each the digests and the encoder of JSON; garbage
collection is below 3 %. Only fewer calls make a step cheaper, and meeting the bar would mean halving their number.

Counted in instructions (cachegrind), a step is 7.8 times its floor, 2.9 million to 0.37. In time it is more, because the
floor is a short loop that stays in the processor's caches, and a step is not: the same lines, written between two steps of
a run, take 1.5 to 2.5 times as long (the row "the floor between two steps"), and a step is 11 to 13 times that.

A warm run of one call misses its bar by about a tenth, for the same reason: of its processor time (py-spy, 1,200 runs), 19 %
build the agent from its options, a quarter of that to read the project; 20 % are spent in the thread of its five durable
writes and of the read, of which 8 % create the session's folder and 6 % wake the event loop; 7 % start and end that thread,
because a run leaves none behind; 12 % each are the steps of the model and of the tool, 8 % the rest of the loop. The floor
contains none of these, only the text of ten events.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openagentic_sdk import FileSessionStore, MemorySessionStore, OpenAgenticOptions, Tool, ToolContext, query, run
from openagentic_sdk.providers.base import ModelOutput, ToolCall
from openagentic_sdk.sessions.base import SessionStore

from . import Row

STEPS = 1000
_WINDOWS = {10: (2, 12), 100: (80, 120), 1000: (900, 999)}  # the steps whose median is "at n steps"
_LONG_RUNS, _SHORT_RUNS = 3, 9
_WARM_RUNS = 100
_FLOOR = "json.dumps + os.write of its lines"


class Nothing(Tool):
    """The trivial tool."""

    name = "nothing"
    description = "Does nothing."
    input_schema: Mapping[str, Any] = {"type": "object", "properties": {}, "required": []}
    effect = "read"

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> str:
        return "done"


class Stepping:
    """A model that requests a tool `steps` times; records the processor time of each request to it."""

    name = "stepping"

    def __init__(self, steps: int, tool_name: str = Nothing.name, arguments: Mapping[str, Any] | None = None) -> None:
        self.steps = steps
        self._call = tool_name, dict(arguments or {})
        self.asked_at: list[float] = []

    async def complete(
        self, *, model: str, messages: Sequence[Any], tools: Sequence[Any] = (), api_key: str | None = None
    ) -> ModelOutput:
        self.asked_at.append(time.process_time())
        if len(self.asked_at) > self.steps:
            return ModelOutput("ready")
        return ModelOutput(None, [ToolCall(f"call_{len(self.asked_at)}", *self._call)], {"input_tokens": 1})


class Writing(Stepping):
    """A model that also writes the lines of a step at each request, and records what that took."""

    def __init__(self, events: Sequence[Any], descriptor: int) -> None:
        super().__init__(STEPS // 2)
        self.took_s: list[float] = []
        self._events = events
        self._descriptor = descriptor

    async def complete(
        self, *, model: str, messages: Sequence[Any], tools: Sequence[Any] = (), api_key: str | None = None
    ) -> ModelOutput:
        self.took_s.append(_write_s(self._events, self._descriptor))
        return await super().complete(model=model, messages=messages, tools=tools, api_key=api_key)


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        store = FileSessionStore(folder, durability="flush")
        first_event_s, single_s = _first_event_s(store), _run(store, 1)[0]
        _run(store, STEPS // 10)
        short = [_run(store, _WINDOWS[10][1])[1] for _ in range(_SHORT_RUNS)]
        long, floors = [], []
        for _ in range(_LONG_RUNS):
            wall_s, asked_at, log = _run(store, STEPS)
            long.append(asked_at)
            floors.append(_floor_us(Path(folder), log) / STEPS)
        warm_us, warm_floor_us = _warm_run_us(Path(folder))
        floor_us = statistics.median(floors)
        between_us = _floor_between_us(store, log)
    in_memory = [_run(MemorySessionStore(), STEPS)[1] for _ in range(_LONG_RUNS)]
    steps_us = {steps: _step_us([*long, *short] if steps == 10 else long, steps) for steps in _WINDOWS}
    result = [
        Row("first event of query(), file store", first_event_s * 1000, "ms"),
        Row("a whole run of 1 step, file store", single_s * 1e6, "us", single_s * 1e6 / floor_us, _FLOOR),
        Row(
            "processor time of a warm run of one read-only tool call",
            warm_us,
            "us",
            warm_us / warm_floor_us,
            _FLOOR,
            "ratio <= 30",
        ),
    ]
    for steps, step_us in steps_us.items():
        bar = "ratio <= 10"
        result.append(
            Row(
                f"processor time of a step at {steps} steps, file store", step_us, "us", step_us / floor_us, _FLOOR, bar
            )
        )
    result.append(Row("the floor between two steps", between_us, "us", between_us / floor_us, _FLOOR))
    growth = steps_us[1000] / steps_us[10]
    result.append(
        Row("a step at 1,000 steps against one at 10", steps_us[1000], "us", growth, "at 10 steps", "ratio <= 1.3")
    )
    memory_us = _step_us(in_memory, 1000)
    result.append(
        Row("processor time of a step at 1000 steps, in memory", memory_us, "us", memory_us / floor_us, _FLOOR)
    )
    lines = len(log)
    result.append(
        Row(
            "events stored by the loop",
            lines / wall_s,
            "events/s",
            lines / wall_s / (lines / STEPS * 1e6 / floor_us),
            _FLOOR,
        )
    )
    return result


def _run(store: SessionStore, steps: int) -> tuple[float, list[float], list[bytes]]:
    """Wall-clock seconds of a run, the times of the requests to its model, and the lines of its log."""
    provider = Stepping(steps)
    began = time.perf_counter()
    session_id = asyncio.run(_drain(store, provider))
    wall_s = time.perf_counter() - began
    if not isinstance(store, FileSessionStore):
        return wall_s, provider.asked_at, []
    log = store.session_dir(session_id) / "events.jsonl"
    return wall_s, provider.asked_at, log.read_bytes().splitlines(keepends=True)


async def _drain(store: SessionStore, provider: Stepping) -> str:
    session_id = ""
    async for event in query(prompt="go", options=_options(store, provider)):
        session_id = getattr(event, "session_id", session_id)
    return session_id


def _options(store: SessionStore, provider: Stepping) -> OpenAgenticOptions:
    return OpenAgenticOptions(
        provider=provider,
        model="none",
        tools=[Nothing()],
        allowed_tools=["nothing"],
        session_store=store,
        max_steps=STEPS + 1,
    )


def _first_event_s(store: SessionStore) -> float:
    async def first() -> float:
        began = time.perf_counter()
        events = query(prompt="go", options=_options(store, Stepping(0)))
        await anext(events)
        took = time.perf_counter() - began
        await events.aclose()
        return took

    return min(asyncio.run(first()) for _ in range(5))


def _step_us(runs: list[list[float]], steps: int) -> float:
    """The median of the steps around this one in all runs; each run is a list of the times of its steps."""
    first, last = _WINDOWS[steps]
    times = [
        pair for asked_at in runs for pair in zip(asked_at[first:last], asked_at[first + 1 : last + 1], strict=True)
    ]
    return statistics.median(b - a for a, b in times) * 1e6


def _warm_run_us(folder: Path) -> tuple[float, float]:
    """Microseconds of processor time of a warm run that calls Read once, and of writing the lines of its log."""
    (folder / "note.txt").write_text("a line\n")
    store = FileSessionStore(folder / "warm")
    took: list[float] = []
    floors: list[float] = []

    async def run_all() -> None:
        for _ in range(_WARM_RUNS):
            began = time.process_time()
            options = OpenAgenticOptions(
                provider=Stepping(1, "Read", {"file_path": "note.txt"}), model="none", cwd=folder, session_store=store
            )
            result = await run(prompt="go", options=options)
            took.append(time.process_time() - began)
            if result.final_text != "ready" or any(getattr(event, "is_error", False) for event in result.events):
                raise RuntimeError("the run did not read the file")
            log = store.session_dir(result.session_id) / "events.jsonl"
            floors.append(_floor_us(folder, log.read_bytes().splitlines(keepends=True)))

    asyncio.run(run_all())
    return min(took) * 1e6, min(floors)


def _floor_us(folder: Path, log: list[bytes]) -> float:
    """Microseconds of processor time for the lines of a log alone."""
    events = [json.loads(line) for line in log]
    descriptor = os.open(folder / "floor", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    took_s = _write_s(events, descriptor)
    os.close(descriptor)
    return took_s * 1e6


def _floor_between_us(store: FileSessionStore, log: list[bytes]) -> float:
    """Microseconds of processor time for the lines of one step of this log, between the steps of another run."""
    middle = len(log) // 2
    events = [json.loads(line) for line in log[middle : middle + len(log) // STEPS]]
    descriptor = os.open(store.root_dir / "floor", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    provider = Writing(events, descriptor)
    asyncio.run(_drain(store, provider))
    os.close(descriptor)
    return statistics.median(provider.took_s) * 1e6


def _write_s(events: Sequence[Any], descriptor: int) -> float:
    """Seconds of processor time to write these events as lines."""
    began = time.process_time()
    for event in events:
        os.write(descriptor, json.dumps(event).encode("ascii") + b"\n")
    return time.process_time() - began
