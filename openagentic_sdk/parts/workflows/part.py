"""Run a workflow in the place where other runs ask a model: its steps are the calls, its value is the answer.

The run's prompt holds the arguments. A run that is resumed drives the body again from its beginning: what the log holds of a
step is the step. When everything that goes on waits for a person, a time or an event, the run parks, and nothing is held.
"""

from __future__ import annotations

import asyncio
import math
from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from heapq import heappop, heappush
from typing import Any, NoReturn, cast

from ...errors import OptionsError, SessionError, WorkflowChangedError, WorkflowError
from ...events import AssistantMessage, Event, PartState, Result, SessionCompacted, ToolResult, ToolUse, UserMessage
from ...ground.frozen import changed, frozen, mutable
from ...ground.text import shortened
from ...ground.threads import next_turn, settled
from ...kernel.agent import Run
from ...kernel.gate import CallContext
from ...kernel.lifetime import RunStopped
from ...kernel.recorder import off_loop
from ...kernel.settle import settle_calls
from ...kernel.tool import REPEATABLE
from ...serialization import dumps_json, loads_json
from ...sessions.base import SessionStore
from ...sessions.closing import INTERRUPTED, cancelled_result
from ...sessions.folds.features.all import SubagentsFold
from ...sessions.folds.view import CallRecord
from ..custom import PackagePart
from .body import Branch, FlowBody, Restart
from .fold import CANCELLED, RESTARTED, StepsFold
from .inbox import CANCEL, PARKED, Park, read_inbox
from .steps import KnownSteps, Step, StepLedger, StepPlan, StepTool, check_made, check_record

# How many steps end before they are kept beside the log.
CUT_STEPS = 500
# A time that is nearer than this is waited for; for all others the run parks.
HOLD_S = 2.0
# How often times and events are looked at while other steps are at work.
LOOK_AGAIN_S = 1.0


@mutable
class WorkflowOutcome:
    """What came of a workflow, for the caller of its run."""

    value: Any = None
    has_value: bool = False


@frozen(kw_only=True)
class WorkflowRules:
    """What a workflow is: its name, its body, which `start` makes of the part and the arguments, and its value as JSON.

    One that `replays` is driven over its log as far as that goes, and no step begins.
    """

    name: str
    start: Callable[[WorkflowPart, Mapping[str, Any]], Coroutine[Any, Any, Any]]
    write: Callable[[Any], Any]
    gives_text: bool = False
    replays: bool = False
    outcome: WorkflowOutcome = field(default_factory=WorkflowOutcome)


class WorkflowPart(PackagePart, StepLedger):
    """One workflow in one run."""

    folds = (StepsFold,)

    def __init__(self, run: Run, rules: WorkflowRules) -> None:
        super().__init__(run)
        self._rules = rules
        self.body = FlowBody()
        self._value: Any = None
        self._steps: dict[str, Step] = {}  # by the id of their present calls
        self._offered: set[str] = set()
        self._due: list[tuple[int, Step | ToolResult]] = []  # what the body has not got, by its `seq`
        self._new: list[Step] = []
        self._waiting: list[Step] = []  # for a time or an event
        self._parked: list[Step] = []  # for a person, or inside of a child
        self._tasks: dict[asyncio.Task[None], Step] = {}
        self._news = asyncio.Event()
        self._failure: BaseException | None = None
        self._unstored: list[Event] = []
        self._is_driving = False
        self._root: Any = None
        self._known: KnownSteps | None = None
        self._looks_at = 0.0
        run.recorder.may_wait = self._may_wait

    # --- seams ---------------------------------------------------------------------------------------------------------

    async def settle(self, prompt_follows: bool) -> None:
        if self._fold.prompt is None:
            if not prompt_follows:
                raise OptionsError(
                    f"session {self.run.session_id!r} holds no arguments of the workflow {self._rules.name} any more: it "
                    "was rewound to before them. Rewind it to a later event, or begin with run() in another session"
                )
            return
        if prompt_follows:
            raise OptionsError(
                f"session {self.run.session_id!r} is the workflow {self._rules.name}, which takes no second prompt: resume "
                "it without one, deliver an event to it, or begin a new session"
            )
        await self._drive()

    async def before_step(self) -> None:
        await self._drive()

    def tell_gate(self, context: CallContext, tool: str | None) -> CallContext:
        """A workflow's own steps need no question; what denies or asks still holds."""
        if tool is None or context.tool_use_id not in self._steps:
            return context
        return changed(context, grants=(*context.grants, tool))

    def stored(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, ToolResult):
                self._take_result(event.tool_use_id)

    def complete_result(self, result: Result) -> Result:
        has_value = result.stop_reason == "end" and not self._rules.gives_text
        return changed(result, structured_output=self._value) if has_value else result

    def _may_wait(self, events: Sequence[Event]) -> bool:
        """Whether events are stored with the next ones: what may run again is asked for together with its start, and ends
        together with what follows from it.
        """
        if self.run.agent.hooks.are_any or not self._is_driving or len(events) > 1:
            return False
        (event,) = events
        step = self._steps.get(event.tool_use_id) if isinstance(event, ToolUse | ToolResult) else None
        return step is not None and step.plan.effect in REPEATABLE

    def _take_result(self, call_id: str) -> None:
        """Have the result of a step handed out, once, in its turn."""
        record = self.find(call_id)
        if call_id in self._steps and record is not None and record.result is not None:
            step = self._steps.pop(call_id)
            step.record = record
            heappush(self._due, (record.result.seq or 0, step))
            self._news.set()

    # --- steps ---------------------------------------------------------------------------------------------------------

    def offer(self, name: str, effect: Any) -> None:
        """Let calls of this name be steps. Raises `WorkflowError` for a name that has another meaning here."""
        tools = self.run.agent.tools
        if name not in tools:
            tools.register(StepTool(name, effect, self._steps.__getitem__))
            self._offered.add(name)
            return
        known = tools.get(name)
        if name not in self._offered or known.effect != effect:
            raise WorkflowError(
                f"a step cannot be called {name!r} here, with the effect {effect!r}: another step or tool has that name "
                f"and the effect {known.effect!r}; give the step a name of its own, flow.step(..., name=...)"
            )

    def now(self) -> float:
        return self.run.agent.clock.now()

    def take(self, step: Step) -> None:
        record = self.find(step.call_id)
        while record is not None and (later := self.find(f"{step.number}_{step.attempt + 1}")) is not None:
            step.attempt, record = step.attempt + 1, later
        step.record = record
        if record is not None:
            with suppress(WorkflowChangedError):
                self.check(step.number, step.plan, step.at, record)
            if self._failure is not None:
                return
        if record is None or record.result is None:
            self._new.append(step)
        else:
            heappush(self._due, (record.result.seq or 0, step))

    def drop(self, step: Step) -> None:
        if step in self._new:
            self._new.remove(step)
        elif (task := next((task for task, each in self._tasks.items() if each is step), None)) is not None:
            task.cancel()  # it is handed out when its result is stored
            return
        for kept in (self._waiting, self._parked):
            if step in kept:
                kept.remove(step)
        if step.record is not None and step.record.result is None:
            self._unstored.append(cancelled_result(step.call_id, INTERRUPTED.cut_short))
        step.finish(error=CancelledError())

    def check(self, number: str, plan: StepPlan, at: str, record: CallRecord) -> None:
        """Compare a step with its record. Raises `WorkflowChangedError`, and the run ends with it whatever the body does."""
        try:
            check_record(number, plan, at, record, self.run.parts.masked)
        except WorkflowChangedError as error:
            self._failure = self._failure or error
            raise

    @property
    def _fold(self) -> StepsFold:
        return self.run.view.fold(StepsFold)

    def find(self, call_id: str) -> CallRecord | None:
        """What the log holds of a call of the present history; None for one that was not made."""
        return self._fold.find(call_id)

    def restart(self, arguments: Mapping[str, Any]) -> NoReturn:
        """End the body, and begin anew with these arguments."""
        raise Restart(arguments)

    def note(self, *events: Event) -> None:
        """Store events together with the next step, or with the end."""
        self._unstored += events

    # --- the body ------------------------------------------------------------------------------------------------------

    def _arguments(self) -> tuple[Mapping[str, Any], str]:
        """The arguments of the present history, and the beginning of its steps' ids."""
        try:
            said = loads_json(self._fold.prompt or "")
            name, arguments, history = said["workflow"], dict(said["arguments"]), int(said.get("history", 1))
        except (ValueError, KeyError, TypeError) as error:
            raise OptionsError(
                f'the prompt of a workflow is {{"workflow": {self._rules.name!r}, "arguments": {{...}}}} as JSON: {error}'
            ) from error
        if name != self._rules.name:
            raise OptionsError(f"this session is the workflow {name!r}, and not {self._rules.name!r}")
        return arguments, "" if history == 1 else f"h{history}-"

    async def _drive(self) -> None:
        """Run the body to its end. Raises `RunStopped`, always: the end of the body is that of the run."""
        run = self.run
        self._known = run.parts.services.find(KnownSteps)
        if (ended := self._fold.ended) is not None and not self._rules.replays:
            run.view.last_text, self._value = ended.final_text, ended.structured_output
            raise RunStopped("end")
        while True:
            arguments, path = self._arguments()
            root = Branch(self.body, self._rules.start(self, arguments), path)
            self._begin(root)
            try:
                await self._run_to_end(root)
            finally:
                await self._stop()
            if not isinstance(root.error, Restart):
                break
            await self._begin_anew(root.error.arguments)
        if isinstance(root.error, CancelledError):
            raise RunStopped("interrupted", "the workflow was cancelled")
        value = root.result()
        self._rules.outcome.value, self._rules.outcome.has_value = value, True
        self._value = self._rules.write(value)
        text = self._value if self._rules.gives_text else dumps_json(self._value)
        if self._rules.replays:
            masked, ended = run.parts.masked(text), self._fold.ended
            if ended is not None and ended.final_text not in (text, masked):
                raise WorkflowChangedError(
                    f"the workflow ended with {shortened(ended.final_text, 300)}, and its body ends with "
                    f"{shortened(masked, 300)} now"
                )
        else:
            await self._record(AssistantMessage(text))
        raise RunStopped("end")

    def _end_of_replay(self) -> Exception:
        """What a replay ends with whose body goes on where the log does not."""
        if self._fold.ended is None:
            return RunStopped("waiting", "the log holds no more")
        new = next((step for step in self._new if step.record is None), None)
        what = (
            "waits for a step that did not end"
            if new is None
            else f"makes step {new.number} ({new.plan.name}) at {new.at}"
        )
        return WorkflowChangedError(
            f"the workflow ended with {shortened(self._fold.ended.final_text, 300)}, where its body {what} now"
        )

    def _begin(self, root: Branch) -> None:
        self._root, self._is_driving = root, True
        root.begin()
        record = self.find(CANCELLED)
        if record is not None and record.result is not None:
            heappush(self._due, (record.result.seq or 0, record.result))

    async def _begin_anew(self, arguments: Mapping[str, Any]) -> None:
        """End the history: what follows does not see it, and nothing reads it again."""
        said = loads_json(self._fold.prompt or "")
        said |= {"arguments": dict(arguments), "history": int(said.get("history", 1)) + 1}
        text = f"the workflow began anew behind {len(self._fold.ids())} steps"
        await self._record(
            SessionCompacted(self.run.view.events[-1].seq or 0, text, trigger="workflow", method="restart")
        )
        await self._record(UserMessage(dumps_json(said), origin="part", about=RESTARTED))

    async def _cut(self) -> None:
        """Keep the finished steps beside the log from time to time, so that the next run does not read all of it."""
        fold = self._fold
        if fold.finished < CUT_STEPS or fold.finished * 8 < len(fold.ids()):
            return
        open_seqs = [record.use.seq or 0 for record in fold.calls.values() if record.result is None]
        up_to = min(open_seqs, default=(self.run.view.events[-1].seq or 0) + 1) - 1
        fold.finished = 0
        if up_to > self.run.view.conversation.horizon:
            text = f"{len(fold.ids())} steps of the workflow"
            await self._record(SessionCompacted(up_to, text, trigger="workflow", method="steps"))

    async def _run_to_end(self, root: Branch) -> None:
        has_caught_up = False
        while True:
            self.body.advance()
            if self._failure is not None:
                raise self._failure
            if self._known is not None and (why := self._known.why_stopped()):
                raise RunStopped("interrupted", why)
            if self._due and not root.is_done:
                await self._hand_out(heappop(self._due)[1])
                continue
            if not has_caught_up:  # no step is begun, and the end is not taken, before the body has made all of its log
                has_caught_up = True
                check_made(self._fold, self.body.made)
            if root.is_done:
                return
            if self._rules.replays:
                raise self._end_of_replay()
            await self._cut()
            self._begin_new()
            if self._due or self.body.ready:
                continue
            await self._wait()

    async def _hand_out(self, due: Step | ToolResult) -> None:
        if isinstance(due, ToolResult):
            self._root.cancel()
        elif due.record is not None and due.record.result is not None:
            due.give(due.record.result, await self._output(due.record.result))

    async def _output(self, result: ToolResult) -> Any:
        output = result.output
        if not (isinstance(output, Mapping) and output.get("truncated") is True and "blob" in output):
            return output
        data = await off_loop(True, self.run.agent.store.read_blob, self.run.session_id, output["blob"])
        text = data.decode("utf-8", "surrogatepass")
        return text if (result.meta or {}).get("is_text") else loads_json(text)

    def _begin_new(self) -> None:
        new, self._new = self._new, []
        for step in new:
            self._start(step)

    def _start(self, step: Step) -> None:
        if self._wait_s(step) > 0 and step.record is not None:
            self._waiting.append(step)
            return
        task = asyncio.create_task(self._perform(step), name=f"openagentic-step {step.call_id}")
        self._tasks[task] = step
        task.add_done_callback(self._over)

    def _wait_s(self, step: Step) -> float:
        """Seconds until the step may run; infinite for one that waits for an event."""
        due, plan = step.recorded_due, step.plan
        if self._known is not None and self._known.has(plan.name, plan.input):
            return 0.0
        if step.plan.event is not None and step.event is None:
            return math.inf if due is None else max(0.0, due - self.now())
        return 0.0 if due is None or step.event is not None else max(0.0, due - self.now())

    def _over(self, task: asyncio.Task[None]) -> None:
        step = self._tasks.pop(task)
        self._news.set()
        error = None if task.cancelled() else task.exception()
        if isinstance(error, RunStopped) and error.reason == "waiting":
            self._parked.append(step)
        elif error is not None:
            self._failure = self._failure or error
        elif step.is_cancelled and self._is_driving and (step.record is None or step.record.result is None):
            self.drop(step)

    async def _perform(self, step: Step) -> None:
        """Ask for the step's call, if the log does not hold it, and bring it to its end."""
        run, plan = self.run, step.plan
        self._steps[step.call_id] = step
        if step.record is None:
            extras = {"at": step.at} if step.due is None else {"at": step.at, "due": step.due}
            await self._record(ToolUse(step.call_id, plan.name, plan.input, extras=extras))
            step.record = self.find(step.call_id)
        assert step.record is not None, "it was recorded"
        if self._wait_s(step) > 0:
            self._waiting.append(step)
            return
        try:
            await settle_calls(run, [step.record])
            self._take_result(step.call_id)
        finally:
            if self._is_driving:
                run.lifetime.is_ending = False  # a step that was cancelled by its body ends no run

    async def _look_in_inbox(self) -> None:
        """Give events that have come to the steps that wait for them, each once; end the body if somebody wants that."""
        agent, self._looks_at = self.run.agent, asyncio.get_running_loop().time() + LOOK_AGAIN_S
        seen = self._fold.taken | {step.event.seq for step in (*self._waiting, *self._tasks.values()) if step.event}
        for event in await off_loop(True, read_inbox, agent.store, self.run.session_id, agent.seal):
            if event.seq in seen:
                continue
            if event.name == CANCEL and self.find(CANCELLED) is None:
                result = ToolResult(CANCELLED, event.payload, meta={"event_seq": event.seq})
                stored = await self._record(ToolUse(CANCELLED, CANCELLED, {}), result)
                heappush(self._due, (stored[-1].seq or 0, result))
            taker = next((s for s in self._waiting if s.plan.event == event.name and s.event is None), None)
            if taker is not None:
                taker.event = event

    async def _wait(self) -> None:
        """Wait for whatever comes first; where only people, far times and events are left, park."""
        await next_turn()  # what begins now takes along what waits to be stored
        await self.run.recorder.flush()
        if self._due:
            return
        parks = not self._tasks and min(map(self._wait_s, self._waiting), default=math.inf) > HOLD_S
        if parks or asyncio.get_running_loop().time() >= self._looks_at:
            await self._look_in_inbox()
            if self._due:
                return
        for step in [step for step in self._waiting if self._wait_s(step) <= 0]:
            self._waiting.remove(step)
            self._start(step)
        nearest_s = min(map(self._wait_s, self._waiting), default=math.inf)
        if not self._tasks:
            if not self._waiting and not self._parked:
                raise WorkflowError("the body of the workflow waits for something that no step will end")
            if nearest_s > HOLD_S:
                await self._park()
            await self.run.agent.clock.sleep(nearest_s)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(min(nearest_s, LOOK_AGAIN_S)):
                await self._news.wait()
        self._news.clear()

    async def _park(self) -> None:
        wakes_at = [self.now() + wait_s for step in self._waiting if (wait_s := self._wait_s(step)) < math.inf]
        wakes_at += await off_loop(True, self._children_wake_at)
        steps = [step.call_id for step in (*self._waiting, *self._parked)]
        await self._record(PartState(PARKED, 1, {"wake_at": min(wakes_at, default=None), "steps": steps}))
        raise RunStopped("waiting", f"the workflow waits in step {', '.join(steps)}")

    def _children_wake_at(self) -> list[float]:
        """When workflows inside of this one go on by themselves."""
        run, found = self.run, list[float]()
        for started in run.view.fold(SubagentsFold).open.values():
            with suppress(SessionError):
                park = Park.read(cast(SessionStore, run.agent.store), started.child_session_id)
                found += [park.wake_at] if park is not None and park.wake_at is not None else []
        return found

    async def _record(self, *events: Event) -> list[Event]:
        unstored, self._unstored = self._unstored, []
        return await self.run.record(*unstored, *events)

    async def _stop(self) -> None:
        """End what is at work, and let go of the body."""
        self._is_driving = False
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await settled(asyncio.gather(*tasks, return_exceptions=True))
        await self.run.recorder.flush()
        self.body.close()
        self._new, self._waiting, self._parked, self._due = [], [], [], []
