"""Workflows: plain async functions whose steps are durable.

    @workflow
    async def review(flow: Flow, repository: str) -> Report:
        files = await flow.step(list_files, repository)
        notes = await flow.gather((flow.agent(reviewer, file) for file in files), limit=20)
        if await flow.ask("Publish?", choices=("yes", "no")) == "yes":
            await flow.step(publish, notes, effect="unsafe")
        return Report(notes)

    result = await review.run("/srv/shop", session="review-17")

A workflow is a session: each step is a call in its log. A resumed run calls the function again from its beginning, and
steps with a result in the log return it without running; so the function itself must only make steps and compute.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import KW_ONLY, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from random import SystemRandom
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar, cast, overload
from uuid import UUID, uuid4

from .agent import Agent
from .api import RunResult, refuse_running_loop, run_result
from .assemble import build_agent, own_child, run_request, store_of
from .errors import OptionsError, RunFailedError, ToolInputError, WorkflowChangedError, WorkflowError
from .events import AnyEvent, Effect, Result, ToolResult, ToolUse, UserQuestion
from .ground.checks import TEXT, TEXTS, Check, check_settings, is_a, is_callable, number, or_none, shown
from .ground.frozen import changed, frozen, values_of
from .ground.schemas.typed import JsonType, hints_of, json_type, to_json
from .ground.text import existing
from .kernel.agent import AgentRuntime
from .kernel.prompt import Said
from .kernel.recorder import off_loop
from .kernel.task import RunTask, run_events
from .kernel.tool import Questions, ToolContext, ToolOutput
from .options import OpenAgenticOptions, require_options
from .parts.agent.part import name_of
from .parts.record.lifecycle import export_session
from .parts.workflows.body import Branch, First, Together
from .parts.workflows.callables import by_name, name_of_callable, result_hint, signature_of
from .parts.workflows.elsewhere import Placement, run_elsewhere
from .parts.workflows.fold import StepsFold
from .parts.workflows.inbox import CANCEL, MAX_NAME_CHARS, Park, check_sent_name, deliver, has_arrived
from .parts.workflows.log import read_prompt
from .parts.workflows.part import WorkflowOutcome, WorkflowPart, WorkflowRules
from .parts.workflows.steps import Retries, Step, StepPlan, Work
from .providers.base import ModelOutput
from .runs.background import open_questions
from .serialization import dumps_json, loads_json
from .sessions.core import new_session_id
from .sessions.memory import MemorySessionStore
from .sessions.resume import load_view
from .sessions.seal import Seal
from .tools.function import FunctionTool, tool
from .tools.session.task import Subagents

__all__ = ["Flow", "Retries", "Workflow", "WorkflowReplay", "WorkflowResult", "workflow"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_RESERVED = ("options", "session", "request_id", "answers")
_HERE = os.path.dirname(__file__) + os.sep


def _has_text(most: int) -> Check:
    return lambda text: (
        None if isinstance(text, str) and 0 < len(text) <= most else f"a string of 1 to {most:,} characters"
    )


_TEXT, _EVENT = _has_text(1_000_000), _has_text(MAX_NAME_CHARS)
# Up to the year 9999, the last one of `datetime`.
_SECONDS = number(-253_402_300_799, most=253_402_300_799)
_ITEMS: Check = lambda value: None if isinstance(value, Iterable) else "a list or another iterable"  # noqa: E731


class _StepFunction:
    """A step's function as a tool, with its arguments and result as JSON."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if isinstance(function, FunctionTool):
            self.tool, self._signature = function, inspect.signature(function.function)
        else:
            self.tool = tool(name=name_of_callable(function))(by_name(function))
            self._signature = signature_of(function)
        returns = result_hint(self.tool.function)
        self._returns: JsonType[Any] = json_type(None if returns is type(None) else returns)

    def input(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, as JSON. Raises `OptionsError` for arguments that do not fit."""
        try:
            bound = self._signature.bind_partial(*args, **kwargs).arguments
        except TypeError as error:
            raise OptionsError(f"step {self.tool.name}: {error}") from error
        return {name: to_json(value) for name, value in bound.items()}

    def read(self, value: Any) -> Any:
        """Convert the result of the function from JSON to its type."""
        return self._returns.read(value, "the result")


class Flow:
    """The argument with which a workflow's body creates its steps. A body may await only what these methods return.

    Steps are numbered in the order of their creation, in the parallel branches of `gather` and `map` separately. Arguments
    and results of a step are JSON in the log; annotations convert them back to values of their types. A failed step raises
    `StepFailedError`; a step that was started and has no result raises `StepUnknownError`, which a body may catch to find
    out what happened, to ask a person, or to continue. Invalid arguments of these methods raise `OptionsError`.
    """

    def __init__(
        self, part: WorkflowPart, options: OpenAgenticOptions, arguments: Callable[..., Mapping[str, Any]]
    ) -> None:
        self._part, self._options, self._arguments = part, options, arguments
        self._functions: dict[Any, _StepFunction] = {}
        self._versions: dict[str, bool] = {}

    @property
    def session_id(self) -> str:
        """The id of this workflow's session."""
        return self._part.run.session_id

    # --- steps ---------------------------------------------------------------------------------------------------------

    @overload
    def step(
        self, function: Callable[..., Coroutine[Any, Any, R]], /, *args: Any, name: str | None = None,
        effect: Effect | None = None, retry: Retries | int | None = None,
        reconcile: Callable[..., Any] | None = None, **kwargs: Any,
    ) -> Awaitable[R]: ...  # fmt: skip
    @overload
    def step(
        self, function: Callable[..., R], /, *args: Any, name: str | None = None,
        effect: Effect | None = None, retry: Retries | int | None = None,
        reconcile: Callable[..., Any] | None = None, **kwargs: Any,
    ) -> Awaitable[R]: ...  # fmt: skip
    def step(
        self, function: Callable[..., Any], /, *args: Any, name: str | None = None,
        effect: Effect | None = None, retry: Retries | int | None = None,
        reconcile: Callable[..., Any] | None = None, **kwargs: Any,
    ) -> Awaitable[Any]:  # fmt: skip
        """Call a function, async or not, and record its result; a function that is not async runs in a thread.

        `effect` determines what happens after a crash during the call: `idempotent` (the default for plain functions) and
        `read` run again, `unsafe` is started at most once. `name` is the step's (default: the function's). `retry` defines
        the attempts after an error; an integer is the number of all attempts. `reconcile` is for an unsafe step that was
        started in a process that died: it is called with the same arguments and returns the result of the step, or None if
        the result is unknown, so that the step raises `StepUnknownError`.
        """
        if not callable(function):
            raise OptionsError(f"flow.step() accepts a function and its arguments, not {shown(function)}")
        check_settings({"name": name}, {"name": or_none(TEXT)}, "flow.step: ")
        step_function = self._functions.get(function) if isinstance(function, Hashable) else _StepFunction(function)
        if step_function is None:
            step_function = self._functions[function] = _StepFunction(function)
        if effect is None:
            effect = step_function.tool.effect if isinstance(function, FunctionTool) else "idempotent"
        return self._step(
            StepPlan(
                name=name or step_function.tool.name,
                input=step_function.input(args, kwargs),
                work=partial(self._call, step_function.tool),
                effect=effect,
                read=step_function.read,
                reconcile=None if reconcile is None else partial(self._call, _StepFunction(reconcile).tool),
                retry=retry if retry is None or isinstance(retry, Retries) else Retries(attempts=retry),
            )
        )

    def agent(
        self,
        agent: Agent[Any, R],
        prompt: str,
        *,
        deps: Any = None,
        name: str | None = None,
        retry: Retries | None = None,
        queue: str | None = None,
        priority: int = 0,
    ) -> Awaitable[R]:
        """Run an agent in a separate session, and return its output. Its calls need permission as always.

        With a `queue`, if a fleet runs this workflow, the agent is a separate run of the fleet's agent with this name, on
        any host and within the fleet's limits; `priority` is as in `Fleet.enqueue`. `deps` and `retry` cannot be combined
        with a `queue`: that raises `OptionsError`.
        """
        check_settings({"agent": agent, "prompt": prompt, "name": name}, _AGENT, "flow.agent: ")
        name = name or agent.name or "agent"
        work = partial(self._spawn, name, partial(_options_of_agent, agent, deps, name))
        if queue is not None:
            if retry is not None or deps is not None:
                raise OptionsError(
                    f"flow.agent({name!r}, queue={queue!r}) accepts neither deps nor retry, since the fleet has its own"
                )
            return self._elsewhere(name, prompt, Placement(queue=queue, priority=priority), work, agent.read_answer)
        plan = StepPlan(
            name=name,
            input={"prompt": prompt},
            work=work,
            read=agent.read_answer,
            retry=retry,
        )
        return self._step(plan)

    def ask(self, question: str, choices: Sequence[str] = ()) -> Awaitable[str]:
        """Ask a person a question, with these `choices` if there are any, and return the answer.

        If nobody can be asked now, the workflow parks until somebody answers, for years if necessary.
        """
        check_settings({"question": question, "choices": choices}, {"question": _TEXT, "choices": TEXTS}, "flow.ask: ")
        plan = StepPlan(
            name="ask", input={"question": question, "choices": list(choices)}, work=_ask_person, effect="read"
        )
        return self._step(plan)

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Wait this many seconds. A negative number does not wait.

        If that is more than 2 s and the workflow waits for nothing sooner, it parks, and holds no resource.
        """
        check_settings({"seconds": seconds}, {"seconds": _SECONDS}, "flow.sleep: ")
        due = self._part.work.now() + seconds
        return self._step(StepPlan(name="sleep", input={"seconds": seconds}, work=_do_nothing, effect="read", due=due))

    def until(self, time: datetime | float) -> Awaitable[None]:
        """Wait until a time: a datetime with its zone, or seconds since 1970. Raises `WorkflowError` for one without a
        zone.
        """
        if isinstance(time, datetime) and time.tzinfo is None:
            raise WorkflowError(f"until({time}) has no time zone: pass datetime(..., tzinfo=...)")
        due = time.timestamp() if isinstance(time, datetime) else time
        check_settings({"time": due}, {"time": _SECONDS}, "flow.until: ")
        return self._step(StepPlan(name="until", input={"time": due}, work=_do_nothing, effect="read", due=due))

    @overload
    def wait_for(self, event: str, *, timeout_s: float | None = None) -> Awaitable[Any]: ...
    @overload
    def wait_for(self, event: str, kind: type[T], *, timeout_s: float | None = None) -> Awaitable[T]: ...
    def wait_for(self, event: str, kind: Any = Any, *, timeout_s: float | None = None) -> Awaitable[Any]:
        """Wait for an event from outside (`deliver`), and return its payload as a value of `kind`.

        Each event is returned once, in the order of arrival, including events that arrived earlier. If none arrives within
        `timeout_s` seconds (None: no limit), the step raises `StepFailedError` with the `error_type` `TimeoutError`.
        """
        check_settings(
            {"event": event, "timeout_s": timeout_s},
            {"event": _EVENT, "timeout_s": or_none(_SECONDS)},
            "flow.wait_for: ",
        )

        async def take(input: Mapping[str, Any], ctx: ToolContext) -> ToolOutput:
            arrival = step.event
            if arrival is None:
                raise TimeoutError(f"event {event!r} did not arrive within {timeout_s} s")
            return ToolOutput(arrival.payload, meta={"event_seq": arrival.seq, "untrusted": f"event {event}"})

        step = self._step(
            StepPlan(
                name="wait_for",
                input={"event": event},
                work=take,
                effect="read",
                read=partial(json_type(kind).read, what=f"the event {event!r}"),
                due=None if timeout_s is None else self._part.work.now() + timeout_s,
                event=event,
            )
        )
        return step

    def child(
        self, workflow: Workflow[..., R], /, *args: Any, name: str | None = None, queue: str | None = None,
        priority: int = 0, **kwargs: Any,
    ) -> Awaitable[R]:  # fmt: skip
        """Run another workflow in a separate session; it parks, and is cancelled, together with this one.

        `queue` and `priority` are as in `agent`.
        """
        if not isinstance(workflow, Workflow):
            raise OptionsError(f"flow.child() accepts a workflow and its arguments, not {shown(workflow)}")
        check_settings({"name": name}, {"name": or_none(TEXT)}, "flow.child: ")
        name, prompt = name or workflow.name, workflow.prompt(*args, **kwargs)
        work = partial(self._spawn, name, partial(_options_of_child, workflow))
        if queue is not None:
            return self._elsewhere(name, prompt, Placement(queue=queue, priority=priority), work, workflow.read_output)
        return self._step(StepPlan(name=name, input={"prompt": prompt}, work=work, read=workflow.read_output))

    # --- concurrency ---------------------------------------------------------------------------------------------------

    def gather(
        self, *works: Awaitable[R] | Iterable[Awaitable[R]], limit: int | None = None, return_exceptions: bool = False
    ) -> Awaitable[list[R]]:
        """Run steps and coroutines concurrently, at most `limit` at a time (None: all); return their values in order.

        The first failure cancels the others, unless `return_exceptions` returns errors in place of values.
        """
        # Before `works` is read, since a generator in it creates its steps only then: the numbers must be the same in
        # each replay.
        path = self._next_id()
        each: list[Any] = []
        for work in works:
            is_list = isinstance(work, Iterable) and not isinstance(work, Awaitable | str | bytes | Mapping)
            each += cast(Iterable[Any], work) if is_list else [work]
        return Together(self._part.body, path, each, limit, return_exceptions)

    def map(
        self,
        function: Callable[[T], Awaitable[R]],
        items: Iterable[T],
        *,
        limit: int | None = None,
        return_exceptions: bool = False,
    ) -> Awaitable[list[R]]:
        """Call the function with each item, and `gather` the results, with the same `limit` and `return_exceptions`."""
        check_settings({"function": function, "items": items}, {"function": is_callable, "items": _ITEMS}, "flow.map: ")
        return self.gather((function(item) for item in items), limit=limit, return_exceptions=return_exceptions)

    def first(self, *works: Awaitable[Any]) -> Awaitable[tuple[int, Any]]:
        """Wait until the first of these steps and coroutines ends, and cancel the others; return its position, from 0, and
        its value.

        If the step or coroutine that ended first failed, raises its error. Raises `WorkflowError` if none is given.
        """
        if not works:
            raise WorkflowError("flow.first() waits for the first of several: give it at least one step or coroutine")
        return cast(Awaitable[tuple[int, Any]], First(self._part.body, self._next_id(), works, None, False))

    # --- values that a body must not read by itself ------------------------------------------------------------------------

    def now(self) -> datetime:
        """Return the current time in UTC, and record it: a replay returns the same."""
        return datetime.fromtimestamp(self._recorded("now", self._part.work.now), UTC)

    def random(self) -> float:
        """Return a random number of at least 0 and below 1, and record it."""
        return float(self._recorded("random", SystemRandom().random))

    def uuid(self) -> UUID:
        """Return a random UUID, and record it."""
        return UUID(self._recorded("uuid", lambda: str(uuid4())))

    def version(self, name: str) -> bool:
        """Return whether the change to the workflow's code that is called `name` applies to this history.

        True if the history reaches this place for the first time, False if it had already passed it before the code called
        `version`. The answer is recorded.
        """
        check_settings({"name": name}, {"name": TEXT}, "flow.version: ")
        branch, part = self._branch(), self._part
        # Not the number of a step: adding `version` must not shift the numbers in existing histories.
        call_id = f"{branch.path}v-{name}"
        if call_id not in self._versions:
            record = part.log.find(call_id)
            if record is not None and record.result is not None:
                self._versions[call_id] = bool(record.result.output)
            else:
                self._versions[call_id] = is_new = part.log.find(f"{branch.path}{branch.step_count + 1}") is None
                part.log.note(ToolUse(call_id, "version", {"name": name}), ToolResult(call_id, is_new))
        return self._versions[call_id]

    def publish(self, name: str, value: Any) -> None:
        """Publish a value, which `Workflow.query` reads at any time, even after the workflow has ended."""
        check_settings({"name": name}, {"name": TEXT}, "flow.publish: ")
        self._recorded("publish", lambda: to_json(value), {"name": name})

    def restart(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Start again with other arguments, in the same session and with an empty history: for a workflow without an end.

        No later run reads the old history; the log keeps it.
        """
        self._part.restart(self._arguments(args, kwargs))

    # --- implementation ----------------------------------------------------------------------------------------------------

    def _branch(self) -> Branch:
        branch = self._part.body.current
        if branch is None:
            raise WorkflowError(
                "steps can be started only in the body of a workflow: in its function, or in coroutines that it awaits"
            )
        return branch

    def _next_id(self) -> str:
        return self._branch().next_id()

    def _step(self, plan: StepPlan) -> Step:
        body, number, place = self._part.body, self._next_id(), _place()
        self._part.work.offer(plan.name, plan.effect)
        body.step_places[number] = place
        step = Step(body, self._part.work, number, plan, place)
        body.idle[step] = f"step {number} ({plan.name}) at {place}"
        return step

    def _recorded(self, name: str, make: Callable[[], Any], input: Mapping[str, Any] | None = None) -> Any:
        """Return the value that `make` creates once in this history; its call and result are stored with the next step."""
        plan = StepPlan(name=name, input=input or {}, work=_do_nothing)
        number, part, place = self._next_id(), self._part, _place()
        record = part.log.find(number)
        part.body.step_places[number] = place
        if record is None or record.result is None:
            value = make()
            part.log.note(ToolUse(number, name, plan.input, extras={"at": place}), ToolResult(number, value))
            return value
        part.log.check(number, plan, place, record)
        return record.result.output

    async def _elsewhere(self, name: str, prompt: str, where: Placement, in_place: Work, read: Callable[[str], R]) -> R:
        return read(await run_elsewhere(self._step, self._part.run, name, prompt, where, in_place))

    async def _call(self, function: FunctionTool[..., Any], input: Mapping[str, Any], ctx: ToolContext) -> Any:
        output = await function.run(function.check_input(input), ctx)
        if isinstance(output, ToolOutput):
            return output
        output = to_json(output)
        # A long result moves out of the log to a file, and without this mark it would be read back as JSON.
        is_long = isinstance(output, str) and len(output) > self._part.run.agent.blob_bytes // 2
        return ToolOutput(output, meta={"is_text": True}) if is_long else output

    async def _spawn(
        self,
        name: str,
        find_options: Callable[[OpenAgenticOptions], Awaitable[OpenAgenticOptions]],
        input: Mapping[str, Any],
        ctx: ToolContext,
    ) -> ToolOutput:
        """Run an agent or another workflow as a subagent; return its final text.

        Raises `WorkflowError` if the subagent does not end by itself.
        """
        mine = self._options
        options = await find_options(mine)

        def build(starter: AgentRuntime) -> AgentRuntime:
            return own_child(name, options, mine, starter)

        subagents = ctx.services.get(Subagents)
        done = await subagents.spawn(ctx.tool_use_id or "", name, input["prompt"], build=build)
        if done.stop_reason != "end":
            why = f": {done.error_message}" if done.error_message else ""
            raise WorkflowError(f"the agent {name} ended with the stop reason {done.stop_reason!r}{why}")
        return ToolOutput(done.final_text, meta={"child_session_id": done.child_session_id, "is_text": True})


_AGENT: Mapping[str, Check] = {"agent": is_a(Agent, "an Agent(...)"), "prompt": TEXT, "name": or_none(TEXT)}


async def _options_of_agent(
    agent: Agent[Any, Any], deps: Any, name: str, mine: OpenAgenticOptions
) -> OpenAgenticOptions:
    return await agent.child_options(name, deps)


async def _options_of_child(workflow: Workflow[..., Any], mine: OpenAgenticOptions) -> OpenAgenticOptions:
    return workflow.to_options()


async def _do_nothing(input: Mapping[str, Any], ctx: ToolContext) -> None:
    """The work of a step that only waits or records a value."""


async def _ask_person(input: Mapping[str, Any], ctx: ToolContext) -> str:
    return await ctx.services.get(Questions).ask(ctx, input["question"], input["choices"])


def _place() -> str:
    """The place in the caller's code at which a step is created, as `file.py:12`."""
    frame = sys._getframe(1)  # `inspect.stack` would read the source of every frame
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


# --- the workflow as a value -------------------------------------------------------------------------------------------


@frozen
class WorkflowResult(RunResult, Generic[R]):
    """The result of a run of a workflow: a `RunResult` with the workflow's `output`.

    If the workflow is not over, it has stopped as `waiting`: `questions` are those that it waits for, `wake_at` is the time,
    in seconds since 1970, at which the workflow can continue without these, None if it only waits for people and events.
    """

    output: R = cast(Any, None)
    questions: Sequence[UserQuestion] = ()
    wake_at: float | None = None

    __repr__ = RunResult.__repr__


@frozen
class WorkflowReplay:
    """The result of a replay. `ok` is true if the body fits its log of `steps` steps; otherwise `difference` describes the
    first step that differs, with its places in the old and the new code.
    """

    session_id: str
    ok: bool
    steps: int
    difference: str | None = None


class _NoModel:
    """The provider of runs that use no model."""

    name = "workflow"

    async def complete(self, **request: Any) -> ModelOutput:
        raise WorkflowError("a workflow does not call a model itself: its agents do")


@overload
def workflow(function: Callable[Concatenate[Flow, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *, name: str = "", options: OpenAgenticOptions | None = None
) -> Callable[[Callable[Concatenate[Flow, P], Coroutine[Any, Any, R]]], Workflow[P, R]]: ...
def workflow(
    function: Callable[Concatenate[Flow, P], Coroutine[Any, Any, R]] | None = None,
    /,
    *,
    name: str = "",
    options: OpenAgenticOptions | None = None,
) -> Workflow[P, R] | Callable[[Callable[Concatenate[Flow, P], Coroutine[Any, Any, R]]], Workflow[P, R]]:
    """Turn an async function whose first parameter is the `Flow` into a workflow; `name` defaults to the function's.

    Raises `OptionsError` for any other function.
    """
    settings = OpenAgenticOptions() if options is None else options
    if function is not None:
        return Workflow(function, name=name, options=settings)
    return lambda wrapped: Workflow(wrapped, name=name, options=settings)


@frozen
class Workflow(Generic[P, R]):
    """A workflow as a value; the docstring of this module shows how to write one.

    `dataclasses.replace` makes a copy with other `options`. These apply to the workflow's runs (the store, the gate, hooks,
    limits); its agents have options of their own.
    """

    function: Callable[Concatenate[Flow, P], Coroutine[Any, Any, R]]
    _: KW_ONLY
    name: str = ""
    options: OpenAgenticOptions = field(default_factory=OpenAgenticOptions)

    def __post_init__(self) -> None:
        if not inspect.iscoroutinefunction(self.function):
            raise OptionsError(
                f"@workflow needs an async function, and {name_of(self.function)} is not one: write async def"
            )
        check_settings(self, {"name": TEXT})
        require_options(self.options)
        vars(self)["name"] = self.name or name_of(self.function)  # a frozen value refuses assignment
        if clashes := set(_RESERVED) & self._function.parameters.keys():
            raise OptionsError(
                f"the function of workflow {self.name} has a parameter {min(clashes)!r}, which "
                "Workflow.run uses itself: rename it"
            )

    @cached_property
    def _function(self) -> _BodyFunction:
        return _BodyFunction(self.name, self.function)

    async def run(
        self, *args: Any, options: OpenAgenticOptions | None = None, session: str | None = None, **kwargs: Any
    ) -> WorkflowResult[R]:
        """Run to the end, or until every branch waits. With the `session` of an earlier run, continue where it stopped.

        Raises `RunFailedError`, which carries the result, if the run failed, `OptionsError` for arguments that do not fit,
        and `RequestConflictError` for a session that began with others. Also raises the errors that `query()` raises before
        its first event.
        """
        session = session or new_session_id()
        prompt = Said(self.prompt(*args, **kwargs), request_id=f"workflow:{session}", names_files=False)
        return await self._run(prompt, {"session": session}, options)

    async def resume(self, session: str, *, options: OpenAgenticOptions | None = None) -> WorkflowResult[R]:
        """Continue a workflow that parked or was killed.

        Raises `SessionNotFoundError`, and `OptionsError` for the session of another workflow, which is left unchanged. Also
        raises the errors of `run()`.
        """
        agent, key_file = self._agent(options)
        view, _ = await off_loop(True, partial(load_view, agent.store, session, (StepsFold,), seal=Seal(key_file)))
        if (prompt := view.fold(StepsFold).prompt) is not None:
            read_prompt(prompt, self.name)
        return await self._run(None, {"resume": session}, options)

    def run_sync(
        self, *args: Any, options: OpenAgenticOptions | None = None, session: str | None = None, **kwargs: Any
    ) -> WorkflowResult[R]:
        """Call `run()` in a new event loop. Raises the errors of `run()`, and `EventLoopError` in a coroutine."""
        refuse_running_loop("run_sync()", "workflow.run(...)")
        return asyncio.run(self.run(*args, options=options, session=session, **kwargs))

    async def cancel(self, session: str, reason: str = "", *, options: OpenAgenticOptions | None = None) -> None:
        """Cancel a workflow: its body gets `CancelledError` where it waits, and may clean up with further steps.

        If no process runs the workflow, resume it for that; a fleet does so by itself. Raises the errors of `deliver`.
        """
        await self._deliver(session, CANCEL, reason, event_id=CANCEL, options=options)

    async def deliver(
        self,
        session: str,
        event: str,
        payload: Any = None,
        *,
        event_id: str | None = None,
        options: OpenAgenticOptions | None = None,
    ) -> bool:
        """Store an event for `flow.wait_for(event)`; return False if one with this `event_id` was delivered before.

        The details and errors are those of `parts.workflows.inbox.deliver`; also raises `WorkflowError` for a reserved name.
        """
        check_sent_name(event)
        return await self._deliver(session, event, payload, event_id=event_id, options=options)

    async def _deliver(
        self, session: str, event: str, payload: Any, *, event_id: str | None, options: OpenAgenticOptions | None
    ) -> bool:
        agent, key_file = self._agent(options)
        redact = agent.redact or str
        send = partial(
            deliver, store_of(agent), session, event, payload, event_id=event_id, key_file=key_file, redact=redact
        )
        return bool(await off_loop(True, send))

    async def query(self, session: str, name: str, *, options: OpenAgenticOptions | None = None) -> Any:
        """Return the value that the workflow last published under this name, or None. Nothing is run.

        Raises `SessionNotFoundError`.
        """
        check_settings({"name": name}, {"name": TEXT})
        agent, key_file = self._agent(options)
        view, _ = await off_loop(True, partial(load_view, agent.store, session, (StepsFold,), seal=Seal(key_file)))
        return view.fold(StepsFold).published.get(name)

    async def replay(self, session: str, *, options: OpenAgenticOptions | None = None) -> WorkflowReplay:
        """Play the body against the log of one of its sessions, which may be running elsewhere, without running any step.

        A test can thus determine whether new code still fits old histories. Raises `SessionNotFoundError`, and
        `OptionsError` for a session of another workflow.
        """
        base, copy = self._base(options), MemorySessionStore()
        store = store_of(build_agent(self.to_options(base)))
        await off_loop(True, export_session, store, copy, session)
        # Without the hooks, limits and gate of `options`, which could act, or stop the replay.
        plain = OpenAgenticOptions(session_store=copy, redact=base.redact, key_file=base.key_file, resume=session)
        prepared = self._to_options(plain, WorkflowOutcome(), replays=True)
        result = await _run_once(build_agent(prepared), prepared, None, [])
        if result.error_type == OptionsError.__name__:
            raise OptionsError(result.error_message or "")
        view, _ = load_view(copy, session, (StepsFold,))
        # Further attempts of a step have its number with a suffix, such as `3_2`.
        numbers = {call_id.partition("_")[0] for call_id in view.fold(StepsFold).ids()}
        fits = result.error_type != WorkflowChangedError.__name__
        return WorkflowReplay(session, fits, len(numbers), None if fits else result.error_message)

    def _agent(self, options: OpenAgenticOptions | None) -> tuple[AgentRuntime, str | None]:
        base = self._base(options)
        return build_agent(self.to_options(base)), base.key_file

    def _base(self, options: OpenAgenticOptions | None) -> OpenAgenticOptions:
        """These options, otherwise the workflow's own. Raises `OptionsError` for a value that is not options."""
        if options is not None:
            require_options(options)
        return options or self.options

    def read_output(self, text: str) -> R:
        """Convert the `final_text` of a run that ended to the workflow's output. Raises `ToolInputError` for a misfit."""
        value = text if self._function.gives_text else loads_json(text)
        return cast(R, self._function.read(value))

    def prompt(self, *args: Any, **kwargs: Any) -> str:
        """Return the prompt of a run with these arguments, for `query()`, `submit()`, servers and the fleet.

        Raises `OptionsError` for arguments that do not fit.
        """
        return dumps_json({"workflow": self.name, "arguments": self._function.input(args, kwargs)})

    def read_words(self, words: Mapping[str, str]) -> dict[str, Any]:
        """Convert arguments typed by a person: JSON, or plain text where the parameter's type accepts only that.

        Raises `OptionsError` for a value that the type refuses either way.
        """
        check_settings({"words": words}, {"words": is_a(Mapping, "a mapping of names to strings")})
        return {name: self._function.read_word(name, text) for name, text in words.items()}

    def to_options(self, options: OpenAgenticOptions | None = None) -> OpenAgenticOptions:
        """Return the options of a run, for `query()`, `submit()`, servers and the fleet."""
        return self._to_options(options, WorkflowOutcome())

    def _to_options(
        self, options: OpenAgenticOptions | None, outcome: WorkflowOutcome, *, replays: bool = False
    ) -> OpenAgenticOptions:
        base = self._base(options)

        def start(part: WorkflowPart, arguments: Mapping[str, Any]) -> Coroutine[Any, Any, R]:
            return self._function.call(Flow(part, base, self._function.input), arguments)

        gives_text = self._function.gives_text
        rules = WorkflowRules(
            name=self.name,
            start=start,
            write=self._function.write,
            gives_text=gives_text,
            replays=replays,
            outcome=outcome,
        )
        return replace(
            base,
            provider=_NoModel(),
            model="workflow",
            retry=None,
            fallback=(),
            on_storage_error="stop",  # a step that is not in the log would run again
            tools=(),
            parts=(*base.parts, cast(Any, partial(WorkflowPart, rules=rules))),
        )

    async def _run(
        self, prompt: Said | None, place: Mapping[str, Any], options: OpenAgenticOptions | None
    ) -> WorkflowResult[R]:
        outcome, seal = WorkflowOutcome(), Seal(self._base(options).key_file)
        prepared = replace(self._to_options(options, outcome), **place)
        events: list[AnyEvent] = []
        while True:
            agent = build_agent(prepared)
            result = await _run_once(agent, prepared, prompt, events)
            if result.stop_reason != "waiting":
                return self._result(events, result, outcome)
            park = await off_loop(True, Park.read, agent.store, result.session_id)
            # Events that arrived between the last check and the end of the run would be missed otherwise.
            if not await off_loop(True, has_arrived, agent.store, result.session_id, seal, outcome.view):
                questions = await off_loop(True, open_questions, agent.store, result.session_id, seal, outcome.view)
                flow_result = self._result(events, result, outcome)
                return changed(flow_result, questions=tuple(questions), wake_at=None if park is None else park.wake_at)
            prompt, prepared = None, replace(prepared, session=None, resume=result.session_id)

    def _result(self, events: Sequence[AnyEvent], result: Result, outcome: WorkflowOutcome) -> WorkflowResult[R]:
        """Build the result of a run. Raises `RunFailedError` if it neither ended by itself nor waits."""
        plain_result, output = run_result(events, result), None
        if outcome.has_value:  # read from JSON like the value of an earlier run, so that every run returns the same
            output = self._function.read(outcome.value)
        elif plain_result.ok:  # the workflow had ended in an earlier run
            output = self._function.read(
                plain_result.final_text if self._function.gives_text else plain_result.structured_output
            )
        flow_result = WorkflowResult[R](**values_of(plain_result), output=cast(R, output))
        if not plain_result.ok and plain_result.stop_reason != "waiting":
            raise RunFailedError(flow_result)
        return flow_result


async def _run_once(
    agent: AgentRuntime, options: OpenAgenticOptions, prompt: Said | None, events: list[AnyEvent]
) -> Result:
    """Execute one run, append its events to `events`, and return its result."""

    async def start() -> RunTask:
        # If somebody can be asked, the run asks them; only otherwise does the workflow park.
        request = changed(run_request(options, agent), parks=not agent.gate.can_ask)
        return await RunTask.start(agent, request, prompt)

    result: Result | None = None
    async with aclosing(run_events(start)) as stream:
        async for event in stream:
            # Events without a `seq` are pieces of text that are not in the log. A result may lack one, if it could not
            # be stored.
            if event.seq is not None or isinstance(event, Result):
                events.append(event)
            if isinstance(event, Result) and event.parent_tool_use_id is None:
                result = event
    assert result is not None, "a run ends with a result"
    return result


class _BodyFunction:
    """The function of a workflow, and the conversion of its arguments and its return value to and from JSON."""

    def __init__(self, name: str, function: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self._name, self._function = name, function
        self._signature = inspect.signature(function)
        first, *others = self._signature.parameters.values()
        self.parameters = {parameter.name: parameter for parameter in others}
        self._flow = first.name

    @cached_property
    def _hints(self) -> Mapping[str, Any]:
        return hints_of(self._function)

    def input(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, as JSON. Raises `OptionsError` for arguments that do not fit."""
        try:
            bound = self._signature.bind(None, *args, **kwargs)
        except TypeError as error:
            takes = existing("arguments", self.parameters)
            raise OptionsError(f"workflow {self._name}: {error} ({takes})") from error
        return {name: to_json(value) for name, value in bound.arguments.items() if name != self._flow}

    def read_word(self, name: str, text: str) -> Any:
        """Convert one typed argument; see `Workflow.read_words`."""
        hint = json_type(self._hints.get(name, Any))
        try:
            # JSON first, so that `5` is a number; a parameter that only accepts strings refuses that, and gets the text
            # itself.
            value = loads_json(text)
        except ValueError:
            value = text
        try:
            hint.read(value)
        except ToolInputError as error:
            with suppress(ToolInputError):
                hint.read(text)
                return text
            raise OptionsError(
                f"workflow {self._name}: {name}={text:.200} cannot be used ({error}): write it as JSON"
            ) from error
        return value

    def call(self, flow: Flow, arguments: Mapping[str, Any]) -> Coroutine[Any, Any, Any]:
        """Call the function with these arguments, converted to their types; return the coroutine."""
        values = {
            name: json_type(self._hints.get(name, Any)).read(value, f"the argument {name}")
            for name, value in arguments.items()
        }
        return self._function(flow, **values)

    @property
    def gives_text(self) -> bool:
        """Whether the function is annotated to return `str`: its output is then stored verbatim, not as JSON."""
        return self._hints.get("return", Any) is str

    def write(self, value: Any) -> Any:
        """Convert the value that the body returns to JSON. Raises `WorkflowError` if it does not fit the annotation."""
        # Read back at once: a value that a later run cannot read from the log must fail here, not there.
        written = to_json(value)
        try:
            self.read(written)
        except ToolInputError as error:
            raise WorkflowError(
                f"workflow {self._name} returned a value that does not fit its annotation: {error}"
            ) from error
        return written

    def read(self, value: Any) -> Any:
        """Convert the value that the workflow returned from JSON to its type."""
        returns = self._hints.get("return", Any)
        return json_type(None if returns is type(None) else returns).read(value, "the result")
