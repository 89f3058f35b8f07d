"""Run a workflow in place of a model's turns: its steps are the calls, its return value is the answer.

The run's prompt contains the arguments. A resumed run drives the body again from its beginning: steps with a result in the
log return it. When everything waits for a person, a time or an event, the run parks, and holds no resource.
"""

from __future__ import annotations

import asyncio
import math
import warnings
from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import field
from heapq import heappop
from typing import Any, NoReturn, cast

from ...errors import OptionsError, SessionError, WorkflowChangedError, WorkflowError
from ...events import AssistantMessage, Event, PartState, Result, ToolResult
from ...ground.frozen import changed, frozen, mutable
from ...ground.threads import next_turn
from ...ground.words import shortened
from ...kernel.agent import Run
from ...kernel.gate import CallContext
from ...kernel.lifetime import RunStopped
from ...kernel.recorder import off_loop
from ...serialization import dumps_json
from ...sessions.base import SessionStore
from ...sessions.folds.features.all import SubagentsFold
from ...sessions.folds.view import SessionView
from ..custom import PackagePart
from .body import Branch, FlowBody, Restart
from .fold import WAS_CANCELLED, StepsFold
from .inbox import PARKED, Park
from .log import WorkflowLog
from .steps import STEP_RULE, KnownSteps, Step, check_made
from .work import LOOK_AGAIN_S, StepsAtWork

# The number of finished steps after which they are stored beside the log.
CUT_STEPS = 500
# The run waits for a time that is nearer than this, and parks for all others.
HOLD_S = 2.0


@mutable
class WorkflowOutcome:
    """The outcome of a workflow as JSON, for the caller of its run: unlike the one in the log, it is not masked.

    `view` is the state of the session in the newest run.
    """

    value: Any = None
    has_value: bool = False
    view: SessionView | None = None


@frozen(kw_only=True)
class WorkflowRules:
    """A workflow to run: `start` creates its body from the part and the arguments, and `write` converts its value to JSON.

    With `gives_text`, the value itself is the answer's text. With `replays`, the body is driven to the end of its log, and
    no step begins.
    """

    name: str
    start: Callable[[WorkflowPart, Mapping[str, Any]], Coroutine[Any, Any, Any]]
    write: Callable[[Any], Any]
    gives_text: bool = False
    replays: bool = False
    outcome: WorkflowOutcome = field(default_factory=WorkflowOutcome)


class WorkflowPart(PackagePart):
    """One workflow in one run: its body, its log, and its running steps."""

    folds = (StepsFold,)

    def __init__(self, run: Run, rules: WorkflowRules) -> None:
        super().__init__(run)
        self._rules = rules
        self.body = FlowBody()
        self.log = WorkflowLog(run, rules.name, replays=rules.replays)
        self.work = StepsAtWork(run, self.log)
        self._value: Any = None
        self._context = copy_context()
        rules.outcome.view = run.view

    # --- seams ---------------------------------------------------------------------------------------------------------

    def may_wait(self, events: Sequence[Event]) -> bool:
        return self.work.may_wait(events)

    async def settle(self, prompt_follows: bool) -> None:
        if self.log.fold.prompt is None:
            if not prompt_follows:
                raise OptionsError(
                    f"session {self.run.session_id!r} no longer contains the arguments of the workflow {self._rules.name}: "
                    "it was rewound to before them. Rewind it to a later event, or begin with run() in another session"
                )
            return
        self.log.arguments()  # raises for the session of another workflow, whose result must not count for this one
        if prompt_follows:
            raise OptionsError(
                f"session {self.run.session_id!r} is the workflow {self._rules.name}, which accepts no second prompt: "
                "resume it without one, deliver an event to it, or start a new session"
            )
        await self._drive()

    async def before_step(self) -> None:
        await self._drive()

    def tell_gate(self, context: CallContext, tool: str | None) -> CallContext:
        """Allow a workflow's own steps without a question; rules that deny or ask still apply."""
        if tool is None or not self.work.is_step(context.tool_use_id):
            return context
        return changed(context, grants=(*context.grants, tool, STEP_RULE))

    def stored(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, ToolResult):
                self.work.take_result(event.tool_use_id)

    def complete_result(self, result: Result) -> Result:
        has_value = result.stop_reason == "end" and not self._rules.gives_text
        return changed(result, structured_output=self._value) if has_value else result

    def restart(self, arguments: Mapping[str, Any]) -> NoReturn:
        """End the body, and start over with these arguments."""
        raise Restart(arguments)

    # --- the body ------------------------------------------------------------------------------------------------------

    async def _drive(self) -> None:
        """Run the body until it ends or parks. Always raises: `RunStopped`, or the error that ended the body."""
        run, ended = self.run, self.log.fold.ended
        self.work.known_steps = run.parts.services.find(KnownSteps)
        if ended is not None and not self._rules.replays:
            # The workflow ended in an earlier run: its body is not driven again, and its code may have changed since.
            run.view.last_text, self._value = ended.final_text, ended.structured_output
            raise RunStopped("end")
        while True:
            arguments, path = self.log.arguments()
            root = Branch(self.body, self._rules.start(self, arguments), path)
            root.begin()
            self.work.open()
            try:
                await self._run_to_end(root)
            finally:
                try:
                    await self.work.close()
                finally:
                    self.body.close()
            if not isinstance(root.error, Restart):
                break
            await self.log.begin_anew(root.error.arguments)
        if isinstance(root.error, CancelledError):
            raise RunStopped("interrupted", WAS_CANCELLED)
        value = root.result()
        for what in self.body.idle.values():
            warnings.warn(f"{what} was never awaited, so it was not run", RuntimeWarning, stacklevel=1)
        await self._end_with(value)

    async def _end_with(self, value: Any) -> NoReturn:
        """Record the value of the workflow, or in a replay compare it with the log; then raise `RunStopped`."""
        self._value = self._rules.write(value)
        self._rules.outcome.value, self._rules.outcome.has_value = self._value, True
        text = self._value if self._rules.gives_text else dumps_json(self._value)
        if self._rules.replays:
            masked, ended = self.run.parts.masked(text), self.log.fold.ended
            # The text in the log may be masked.
            if ended is not None and ended.final_text not in (text, masked):
                raise WorkflowChangedError(
                    f"the workflow ended with {shortened(ended.final_text, 300)}, but its body now ends with "
                    f"{shortened(masked, 300)}"
                )
        else:
            await self.log.record(AssistantMessage(text))
        raise RunStopped("end")

    def _end_of_replay(self) -> Exception:
        """The error that ends a replay whose body continues after the end of its log."""
        ended = self.log.fold.ended
        if ended is None:
            return RunStopped("waiting", "the log contains no more steps")
        new = next((step for step in self.work.new if step.record is None), None)
        what = (
            "waits for a step that did not end"
            if new is None
            else f"makes step {new.number} ({new.plan.name}) at {new.at}"
        )
        return WorkflowChangedError(
            f"the workflow ended with {shortened(ended.final_text, 300)}, but its body now {what}"
        )

    async def _run_to_end(self, root: Branch) -> None:
        has_caught_up, work = False, self.work
        while True:
            await self._advance()
            if self.log.failure is not None:
                raise self.log.failure
            if work.known_steps is not None and (why := work.known_steps.why_stopped()):
                raise RunStopped("interrupted", why)
            if work.due and not root.is_done:
                await self._hand_out(heappop(work.due)[1], root)
                continue
            if not has_caught_up:  # before any new step or the end, the body must have created all steps of its log
                has_caught_up = True
                check_made(self.log.fold, self.body.step_places)
            if root.is_done:
                return
            if self._rules.replays:
                raise self._end_of_replay()
            if not work.looks_at:  # not yet looked for a cancellation: a cancelled workflow begins nothing more
                await work.look_in_inbox()
                continue
            await self.log.cut(CUT_STEPS)
            work.begin_due()
            if not work.due and not self.body.ready:
                await self._wait()

    async def _advance(self) -> None:
        """Run the body outside of any task: `asyncio.timeout()` in a body would otherwise cancel the run and its caller."""
        advanced: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def advance() -> None:
            try:
                if not advanced.done():
                    self.body.advance()
                    advanced.set_result(None)
            except Exception as error:  # noqa: BLE001 - it ends the run, as if it had been raised there
                advanced.set_exception(error)

        handle = asyncio.get_running_loop().call_soon(advance, context=self._context)
        try:
            await advanced
        finally:
            handle.cancel()

    async def _hand_out(self, due: Step | ToolResult, root: Branch) -> None:
        if isinstance(due, ToolResult):
            root.cancel()
        elif due.record is not None and due.record.result is not None:
            due.give(due.record.result, await self.log.read_output(due.record.result))

    async def _wait(self) -> None:
        """Wait for whatever comes first; if only people, distant times and events are left, park."""
        work = self.work
        await next_turn()  # steps that begin now store the pending events along with theirs
        await work.flush()
        if work.due or self.body.ready or self.log.failure is not None:
            return
        # Once more before parking: an event that arrived since the last look must not wait for the next resume.
        if (not work.tasks and work.nearest_s > HOLD_S) or asyncio.get_running_loop().time() >= work.looks_at:
            await work.look_in_inbox()
            if work.due or work.nearest_s <= 0 or self.log.failure is not None:
                return
        if not work.tasks:
            if not work.waiting and not work.parked:
                raise WorkflowError("the body of the workflow waits for something that no step will complete")
            if work.nearest_s > HOLD_S:
                await self._park()
            await self.run.agent.clock.sleep(work.nearest_s)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(min(work.nearest_s, LOOK_AGAIN_S)):
                await work.news.wait()
        work.news.clear()

    async def _park(self) -> None:
        now, unfinished = self.run.agent.clock.now(), (*self.work.waiting, *self.work.parked)
        wakes_at = [now + wait_s for wait_s in map(self.work.wait_s, self.work.waiting) if wait_s < math.inf]
        wakes_at += await off_loop(True, self._children_wake_at)
        steps = [step.call_id for step in unfinished]
        await self.log.record(PartState(PARKED, 1, {"wake_at": min(wakes_at, default=None), "steps": steps}))
        raise RunStopped(
            "waiting", f"the workflow waits in {'step' if len(steps) == 1 else 'steps'} {', '.join(steps)}"
        )

    def _children_wake_at(self) -> list[float]:
        """Read the times at which workflows inside this one continue by themselves."""
        run, times = self.run, list[float]()
        for started in run.view.fold(SubagentsFold).open.values():
            # A child whose session was deleted has no time to wake up at.
            with suppress(SessionError):
                park = Park.read(cast(SessionStore, run.agent.store), started.child_session_id)
                times += [park.wake_at] if park is not None and park.wake_at is not None else []
        return times
