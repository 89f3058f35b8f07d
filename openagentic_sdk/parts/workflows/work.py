"""The steps of a workflow whose results have not been delivered to its body: running, waiting and ended ones."""

from __future__ import annotations

import asyncio
import math
from asyncio import CancelledError
from collections.abc import Sequence
from contextlib import suppress
from heapq import heappush
from typing import Any

from ...errors import SessionNotFoundError, WorkflowChangedError, WorkflowError
from ...events import Event, ToolResult, ToolUse
from ...ground.checks import check_settings
from ...ground.threads import settled
from ...kernel.agent import Run
from ...kernel.lifetime import RunStopped
from ...kernel.recorder import off_loop
from ...kernel.settle import settle_calls
from ...kernel.tool import REPEATABLE
from ...sessions.closing import closing_events
from .fold import CANCELLED
from .inbox import CANCEL, WorkflowInbox
from .log import WorkflowLog
from .steps import NAMES, KnownSteps, Step, StepLedger, StepTool

# How often times and events are checked while other steps are running.
LOOK_AGAIN_S = 1.0


class StepsAtWork(StepLedger):
    """The steps of one run.

    `due` are those to deliver to the body next, by the `seq` of their results, `waiting` those that wait for a time or an
    event, `parked` those that wait for a person or in a child, `new` those to begin.
    """

    def __init__(self, run: Run, log: WorkflowLog) -> None:
        self.due: list[tuple[int, Step | ToolResult]] = []
        self.new: list[Step] = []
        self.waiting: list[Step] = []
        self.parked: list[Step] = []
        self._cancelled: list[Step] = []  # their tasks have ended
        self.tasks: dict[asyncio.Task[None], Step] = {}
        self.news = asyncio.Event()
        self.known_steps: KnownSteps | None = None
        self._run, self._log = run, log
        self._inbox = WorkflowInbox(run.session_id, reads=True)
        self._calls: dict[str, Step] = {}  # by the id of their current calls
        self._offered: set[str] = set()
        self._is_open = False
        self.looks_at = 0.0  # by the clock of the event loop

    def open(self) -> None:
        """Begin a history; a cancellation in its log is delivered in its turn."""
        self._is_open = True
        record = self._log.find(CANCELLED)
        if record is not None and record.result is not None:
            heappush(self.due, (record.result.seq or 0, record.result))

    async def close(self) -> None:
        """Cancel the running steps and wait until they have ended; forget the others."""
        self._is_open = False
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await settled(asyncio.gather(*tasks, return_exceptions=True))
        await self._run.recorder.flush()
        self.new, self.waiting, self.parked, self.due = [], [], [], []

    def is_step(self, call_id: str | None) -> bool:
        """Whether a call is a step that has not ended."""
        return call_id in self._calls

    def offer(self, name: str, effect: Any) -> None:
        """Register the tool for steps with this name and effect, unless it exists.

        Raises `OptionsError` for an invalid name or effect, `WorkflowError` for a name that another tool has, or steps with
        another effect.
        """
        tools = self._run.agent.tools
        if name not in tools:
            check_settings({"name": name, "effect": effect}, NAMES, "a step's ")
            tools.register(StepTool(name, effect, self._calls.__getitem__))
            self._offered.add(name)
            return
        tool = tools.get(name)
        if name not in self._offered or tool.effect != effect:
            raise WorkflowError(
                f"a step cannot be named {name!r} here, with the effect {effect!r}: another step or tool has that name "
                "with the effect"
                f" {tool.effect!r}; give the step a different name, flow.step(..., name=...)"
            )

    def now(self) -> float:
        return self._run.agent.clock.now()

    def take(self, step: Step) -> None:
        record = self._log.find(step.call_id)
        # The newest attempt in the log counts: `retry_step` may have added one.
        while record is not None and (later := self._log.find(f"{step.number}_{step.attempt + 1}")) is not None:
            step.attempt, record = step.attempt + 1, later
        step.record = record
        if record is not None:
            # `check` also sets `failure`, which ends the run even if the body would catch the error.
            with suppress(WorkflowChangedError):
                self._log.check(step.number, step.plan, step.at, record)
            if self._log.failure is not None:
                return
        if record is None or record.result is None:
            self.new.append(step)
        else:
            heappush(self.due, (record.result.seq or 0, step))

    def drop(self, step: Step) -> None:
        if step in self.new:
            self.new.remove(step)
        elif (task := next((task for task, each in self.tasks.items() if each is step), None)) is not None:
            task.cancel()  # it is delivered when its result is stored
            return
        for steps in (self.waiting, self.parked):
            if step in steps:
                steps.remove(step)
        if step.record is not None and step.record.result is None:
            self._run.questions.parked.pop(step.call_id, None)
            questions = [each for each in self._run.view.open_questions() if each.tool_use_id == step.call_id]
            self._log.note(*closing_events([step.record], questions, "interrupted"))
        step.finish(error=CancelledError())

    async def flush(self) -> None:
        """Store pending events, and end the cancelled steps whose results were not among them."""
        await self._run.recorder.flush()
        while self._cancelled:
            step = self._cancelled.pop()
            self.take_result(step.call_id)
            if step.record is None or step.record.result is None:
                self.drop(step)

    @property
    def nearest_s(self) -> float:
        """Seconds until the first waiting step may run without an event; infinite if none may."""
        return min(map(self.wait_s, self.waiting), default=math.inf)

    def begin_due(self) -> None:
        """Begin the new steps, and those whose wait is over."""
        due = [step for step in self.waiting if self.wait_s(step) <= 0]
        for step in due:
            self.waiting.remove(step)
        new, self.new = self.new, []
        for step in (*due, *new):
            self._start(step)

    def _start(self, step: Step) -> None:
        # A step without a record starts a task even if it has to wait, because the task records it.
        if self.wait_s(step) > 0 and step.record is not None:
            self.waiting.append(step)
            return
        task = asyncio.create_task(self._perform(step), name=f"openagentic-step {step.call_id}")
        self.tasks[task] = step
        task.add_done_callback(self._over)

    def wait_s(self, step: Step) -> float:
        """Seconds until the step may run; infinite if it waits for an event without a time limit."""
        due, plan = step.recorded_due, step.plan
        # A what-if has the recorded result already, and must not wait for its time again.
        if self.known_steps is not None and self.known_steps.has(plan.name, plan.input):
            return 0.0
        if step.plan.event is not None and step.event is None:
            return math.inf if due is None else max(0.0, due - self.now())
        return 0.0 if due is None or step.event is not None else max(0.0, due - self.now())

    def _over(self, task: asyncio.Task[None]) -> None:
        step = self.tasks.pop(task)
        self.news.set()
        error = None if task.cancelled() else task.exception()
        is_parked = isinstance(error, RunStopped) and error.reason == "waiting"
        if error is not None and not is_parked:
            self._log.failure = self._log.failure or error
        elif step.is_cancelled and self._is_open:
            self._cancelled.append(step)
        elif is_parked:
            self.parked.append(step)

    async def _perform(self, step: Step) -> None:
        """Record the step's call, if the log does not contain it, and execute it to its end."""
        run, plan = self._run, step.plan
        self._calls[step.call_id] = step
        if step.record is None:
            extras = {"at": step.at} if step.due is None else {"at": step.at, "due": step.due}
            await self._log.record(ToolUse(step.call_id, plan.name, plan.input, extras=extras))
            step.record = self._log.find(step.call_id)
        assert step.record is not None, "the step was recorded"
        if self.wait_s(step) > 0:
            self.waiting.append(step)
            return
        try:
            await settle_calls(run, [step.record])
            self.take_result(step.call_id)
        finally:
            if self._is_open:
                run.lifetime.is_ending = False  # cancelling a step from the body must not end the run

    async def look_in_inbox(self) -> None:
        """Assign arrived events to the steps that wait for them, each once; cancel the body if that was requested."""
        agent, self.looks_at = self._run.agent, asyncio.get_running_loop().time() + LOOK_AGAIN_S
        with suppress(SessionNotFoundError):
            await off_loop(True, self._inbox.catch_up, agent.store, agent.seal)
        taken_seqs = self._log.fold.taken
        # An event that was assigned counts as received only once the step's result is in the log (`taken`).
        assigned_seqs = {step.event.seq for step in (*self.waiting, *self.tasks.values()) if step.event}
        self._inbox.delivered = [event for event in self._inbox.delivered if event.seq not in taken_seqs]
        for event in self._inbox.delivered:
            if event.seq in assigned_seqs:
                continue
            if event.name == CANCEL and self._log.find(CANCELLED) is None:
                result = ToolResult(CANCELLED, event.payload, meta={"event_seq": event.seq})
                stored_events = await self._log.record(ToolUse(CANCELLED, CANCELLED, {}), result)
                heappush(self.due, (stored_events[-1].seq or 0, result))
            taker = next((s for s in self.waiting if s.plan.event == event.name and s.event is None), None)
            if taker is not None:
                taker.event = event

    def may_wait(self, events: Sequence[Event]) -> bool:
        """Whether events may be stored together with the next ones.

        The call of a repeatable step is stored together with its start, and its result with whatever follows from it.
        """
        # A hook may act on an event as soon as it is called, so what led to the event must be in the log by then.
        if self._run.agent.hooks.are_any or not self._is_open or len(events) > 1:
            return False
        (event,) = events
        step = self._calls.get(event.tool_use_id) if isinstance(event, ToolUse | ToolResult) else None
        return step is not None and step.plan.effect in REPEATABLE

    def take_result(self, call_id: str) -> None:
        """Queue the result of a step for delivery, once, in its turn."""
        record = self._log.find(call_id)
        if call_id in self._calls and record is not None and record.result is not None:
            step = self._calls.pop(call_id)
            step.record = record
            heappush(self.due, (record.result.seq or 0, step))
            self.news.set()
