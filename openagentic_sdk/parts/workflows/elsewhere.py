"""Run the agents and workflows that a workflow starts elsewhere: in a service with its own queues, limits and hosts.

Each such run takes two steps: one enqueues it, once, and one waits for its end as for any event. Without such a service,
the first step runs the agent or workflow in place, so that the same code works there, too.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ...errors import StepFailedError, WorkflowError
from ...ground.frozen import frozen
from ...kernel.agent import Run
from ...kernel.tool import ToolContext, ToolOutput
from .fold import END_OF_STEP, StepsFold
from .steps import Step, StepPlan, Work

# How long to wait for the end of a run before checking whether it ended without notification.
LOOK_S = 900.0


@frozen(kw_only=True)
class Placement:
    """The place of a step's run: the queue, and the priority in it (higher comes first)."""

    queue: str
    priority: int = 0


class RunsElsewhere:
    """The service that runs agents by name in other processes, and notifies a workflow of their ends with an event."""

    async def start(self, key: str, event: str, name: str, prompt: str, where: Placement) -> Mapping[str, Any]:
        """Enqueue a run of the agent or workflow `name`, once for each `key`; return its `run` and `session`.

        The end of the run is announced to the workflow with an event named `event`.
        """
        raise NotImplementedError

    async def look(self, run_id: int, payload: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Find the end of a run (`stop_reason`, `text`, `error`) by its log and the `payload`; None while it runs."""
        raise NotImplementedError

    async def cancel(self, run_id: int) -> None:
        """Cancel a run whose end is no longer awaited."""
        raise NotImplementedError


def runs_elsewhere(run: Run | None) -> RunsElsewhere | None:
    """The service of a run, otherwise that of the nearest run around it; None if no run has one."""
    while run is not None:
        if (service := run.parts.services.find(RunsElsewhere)) is not None:
            return service
        run = run.parent
    return None


async def run_elsewhere(
    make: Callable[[StepPlan], Step], run: Run, name: str, prompt: str, where: Placement, in_place: Work
) -> str:
    """Run the agent or workflow with that name; return its answer. Raises `StepFailedError` if it ended in another way."""

    async def place(input: Mapping[str, Any], ctx: ToolContext) -> Any:
        service = runs_elsewhere(run)
        if service is None or run.parts.continue_call(ctx.tool_use_id or ""):  # it was started in place
            output = await in_place(input, ctx)
            return ToolOutput({"text": output.output}, meta=output.meta)
        starts = _starts_before(run, placed)
        key = f"{ctx.idempotency_key or ''}_{starts + 1}" if starts else ctx.idempotency_key or ""
        record = await service.start(key, _event(placed), name, prompt, where)
        return ToolOutput(dict(record), meta={"child_session_id": record["session"]})

    input = {"prompt": prompt, "queue": where.queue, "priority": where.priority}
    placed = make(StepPlan(name=name, input=input, work=place))
    record: Mapping[str, Any] = await placed
    if "text" in record:
        return str(record["text"])
    try:
        end = await _end(make, run, record, _event(placed))
    except CancelledError:
        # A step itself, so that the cancellation is recorded, and repeated after a crash.
        await make(StepPlan(name="cancel_run", input={"run": record["run"]}, work=_cancelling(run)))
        raise
    if end["stop_reason"] != "end":
        why = f": {end['error']}" if end["error"] else ""
        text = f"step {placed.number} ({name}), run {record['run']}, ended with the stop reason {end['stop_reason']!r}{why}"
        raise StepFailedError(text, step=placed.number, error_type=str(end["stop_reason"]))
    return str(end["text"])


def _event(placed: Step) -> str:
    return f"{END_OF_STEP}{placed.number}"


def _starts_before(run: Run, step: Step) -> int:
    """The number of runs that earlier attempts of this step have started: `retry_step` requires another one."""
    steps = run.view.fold(StepsFold)
    records = map(steps.find, (step.number, *(f"{step.number}_{attempt}" for attempt in range(2, step.attempt))))
    results = (record.result for record in records if record is not None)
    return sum(result is not None and result.outcome == "ok" for result in results) if step.attempt > 1 else 0


async def _end(make: Callable[[StepPlan], Step], run: Run, record: Mapping[str, Any], event: str) -> Mapping[str, Any]:
    """Wait until a run has ended, checking every `LOOK_S` seconds if no event arrives; return the run's end."""

    async def take(input: Mapping[str, Any], ctx: ToolContext) -> ToolOutput:
        arrival = waiting.event
        end = await _service(run).look(int(record["run"]), None if arrival is None else arrival.payload)
        meta = {} if arrival is None else {"event_seq": arrival.seq}
        return ToolOutput(
            {"end": None if end is None else dict(end)}, meta={**meta, "untrusted": f"run {record['run']}"}
        )

    while True:
        due = run.agent.clock.now() + LOOK_S
        waiting = make(
            StepPlan(name="wait_for", input={"event": event}, work=take, effect="read", due=due, event=event)
        )
        answer: Mapping[str, Any] = await waiting
        if answer["end"] is not None:
            end: Mapping[str, Any] = answer["end"]
            return end


def _cancelling(run: Run) -> Callable[[Mapping[str, Any], ToolContext], Awaitable[None]]:
    async def cancel(input: Mapping[str, Any], ctx: ToolContext) -> None:
        await _service(run).cancel(int(input["run"]))

    return cancel


def _service(run: Run) -> RunsElsewhere:
    service = runs_elsewhere(run)
    if service is None:
        raise WorkflowError(
            "this step is a run of a fleet and continues only where a worker of that fleet runs the workflow"
        )
    return service
