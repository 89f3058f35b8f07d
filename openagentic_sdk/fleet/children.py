"""Run the steps of a workflow as runs of the fleet: queue them, let any worker run them, and deliver their results."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import RunNotFoundError, SessionError, SessionNotFoundError, WorkflowError
from ..events import Result
from ..kernel.agent import Run
from ..kernel.recorder import off_loop
from ..parts.custom import PackagePart
from ..parts.workflows.elsewhere import Placement, RunsElsewhere
from ..parts.workflows.fold import StepsFold
from ..parts.workflows.inbox import deliver, with_ancestors
from ..serialization import dumps_json
from ..sessions.base import SessionStore
from ..sessions.folds.features.untrusted import UntrustedFold
from ..sessions.resume import load_view
from ..sessions.seal import Seal
from .record import OPEN, FleetRun, RunOutcome

if TYPE_CHECKING:
    from .fleet import Fleet

# Replaces the id of a tool call in the metadata of such a run's session, which makes it a child of the workflow's session.
RUN_OF_STEP = "workflow.run"


class StepRuns(PackagePart, RunsElsewhere):
    """A part that runs the steps of the workflow in the run `row` as runs of the fleet, for the same tenant."""

    def __init__(self, run: Run, fleet: Fleet, row: FleetRun) -> None:
        super().__init__(run)
        self._fleet, self._row = fleet, row

    def services(self) -> Mapping[type, object]:
        return {RunsElsewhere: self}

    async def start(self, key: str, event: str, name: str, prompt: str, where: Placement) -> Mapping[str, Any]:
        row, session = self._row, key.rpartition(":")[0]
        run_id = await self._fleet.enqueue(
            name,
            prompt,
            request_id=f"step:{key}",
            queue=where.queue,
            priority=where.priority,
            tenant=row.tenant,
            workspace=row.workspace,
            traceparent=row.traceparent,
            told=(session, event),
        )
        return {"run": run_id, "session": (await self._fleet.status(run_id)).session}

    async def look(self, run_id: int, payload: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        row = await self._fleet.status(run_id)
        # Numbers of runs are easy to guess: one of another tenant must look like one that does not exist.
        if row.tenant != self._row.tenant:
            raise RunNotFoundError(run_id)
        if payload is None and row.is_over:
            payload = {"stop_reason": row.stop_reason or row.state, "error": row.error}
        if payload is None:
            return None
        text = await off_loop(True, _answer, self._fleet.store, row.session, self.run.agent.seal)
        return {"stop_reason": payload["stop_reason"], "error": payload["error"], "text": text}

    async def cancel(self, run_id: int) -> None:
        with suppress(RunNotFoundError):
            await self._fleet.cancel(run_id, cancelled_by="the workflow")


def _answer(store: SessionStore, session: str, seal: Seal) -> str:
    """The text of the session's last result that this installation wrote, JSON if it is structured; empty without one."""
    try:
        view, _ = load_view(store, session, seal=seal)
    except SessionNotFoundError:
        return ""
    for event in reversed(view.events):
        if isinstance(event, Result) and view.is_ours(event):
            value = event.structured_output
            return event.final_text if value is None else dumps_json(value)
    return ""


async def tell_end(fleet: Fleet, row: FleetRun, outcome: RunOutcome) -> None:
    """Notify the workflow that listens for a run's end, if any; notifying it twice has no further effect.

    If the run was cancelled or failed, first cancel the runs of its own steps.
    """
    if outcome.state in ("cancelled", "failed"):
        await cancel_steps(fleet, row)
    if row.listener is None:
        return
    session, event = row.listener
    is_there = await off_loop(True, fleet.store.session_exists, session)
    if row.is_step and not is_there:
        return  # the workflow was deleted
    payload = {"stop_reason": outcome.stop_reason or outcome.state, "error": outcome.error}
    # Without the result's text: it is in the log of the run, and may be long.
    # The same `event_id` for each attempt: if a worker dies after the delivery, the repeated one has no effect.
    notify = partial(
        deliver, fleet.store, session, event, payload, event_id=f"run {row.id}", key_file=fleet.key_file(row)
    )
    with suppress(WorkflowError):  # a workflow that has ended need not be notified
        await off_loop(True, notify)
    for above in await off_loop(True, lambda: list(with_ancestors(fleet.store, session))) if is_there else ():
        for waiting in await fleet.runs(states=OPEN, session=above, limit=None):
            if waiting.is_parked:
                await off_loop(True, fleet.queue.wake, waiting.id, waiting.parked_seq)


async def cancel_steps(fleet: Fleet, row: FleetRun) -> None:
    """Cancel the runs of a workflow's steps, because the workflow has ended without waiting for them."""
    for session, run_id in await off_loop(True, _step_runs, fleet.store, row.session):
        with suppress(RunNotFoundError):
            step = await fleet.status(run_id)
            if step.listener is not None and step.listener[0] == session and step.tenant == row.tenant:
                await fleet.cancel(run_id, cancelled_by=row.cancelled_by or "the workflow")


def _step_runs(store: SessionStore, session: str) -> list[tuple[str, int]]:
    """The runs that the steps of a workflow and of its nested workflows enqueued: the workflow's session and the number.

    Empty if the log cannot be read.
    """
    runs = list[tuple[str, int]]()
    with suppress(SessionError):
        steps = load_view(store, session, (StepsFold,))[0].fold(StepsFold)
        for record in map(steps.find, steps.ids()):
            output = None if record is None or record.result is None else record.result.output
            if isinstance(output, Mapping) and isinstance(output.get("run"), int):
                runs.append((session, output["run"]))
        for child in store.list_children(session):
            with suppress(SessionNotFoundError):
                runs += [] if is_run_of_step(store, child) else _step_runs(store, child)
    return runs


def sources_of_workflow(store: SessionStore, run: FleetRun) -> tuple[str, ...]:
    """The untrusted sources that the workflow of this step has read; empty for a run that is not a step."""
    if run.listener is None or not run.is_step:
        return ()
    return tuple(load_view(store, run.listener[0], (UntrustedFold,))[0].fold(UntrustedFold).sources)


def is_run_of_step(store: SessionStore, session: str) -> bool:
    """Whether a session belongs to a run that a workflow step enqueued. Raises `SessionNotFoundError`."""
    return bool(store.read_metadata(session)["metadata"].get("parent_tool_use_id") == RUN_OF_STEP)
