"""Workflows: plain async functions whose steps are durable.

    @workflow
    async def review(flow: Flow, repository: str) -> Report:
        files = await flow.step(list_files, repository)
        notes = await flow.gather((flow.agent(reviewer, file) for file in files), limit=20)
        if await flow.ask("Publish?", choices=("yes", "no")) == "yes":
            await flow.step(publish, notes, effect="unsafe")
        return Report(notes)

    result = await review.run("/srv/shop", session="review-17")

A workflow is a session: each step is a call in its log. A run that is resumed calls the function again from its beginning,
and what the log holds of a step is the step; so the function itself must do nothing but make steps and compute.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import KW_ONLY, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from random import SystemRandom
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload
from uuid import UUID, uuid4

from .agent import Agent
from .api import RunResult, refuse_running_loop, run_result
from .assemble import build_agent, own_child, run_request
from .errors import OptionsError, RunFailedError, WorkflowError
from .events import AnyEvent, Effect, Result, ToolResult, ToolUse, UserQuestion
from .ground.frozen import changed, frozen, values_of
from .ground.schemas.typed import JsonType, hints_of, json_type, to_json
from .kernel.agent import AgentRuntime
from .kernel.prompt import Said
from .kernel.task import RunTask, run_events
from .kernel.tool import Questions, ToolContext, ToolOutput
from .options import OpenAgenticOptions
from .parts.agent.part import name_of
from .parts.workflows.body import Together
from .parts.workflows.part import WorkflowOutcome, WorkflowPart, WorkflowRules
from .parts.workflows.steps import Retries, Step, StepPlan
from .providers.base import ModelOutput
from .serialization import dumps_json
from .sessions.core import new_session_id
from .tools.function import FunctionTool, tool
from .tools.session.task import Subagents

__all__ = ["Flow", "Retries", "Workflow", "WorkflowResult", "workflow"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_RESERVED = ("options", "session", "request_id", "answers")
_HERE = str(Path(__file__).parent)


class _StepFunction:
    """A function as steps call it: as a tool, with the JSON of its arguments and result."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.tool = tool(function)
        self._signature = inspect.signature(self.tool.function)
        hints = hints_of(inspect.unwrap(self.tool.function)) if inspect.isroutine(self.tool.function) else {}
        returns = hints.get("return", Any)
        self._returns: JsonType[Any] = json_type(None if returns is type(None) else returns)

    def input(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by their names, as JSON."""
        bound = self._signature.bind_partial(*args, **kwargs).arguments
        return {name: to_json(value) for name, value in bound.items()}

    def read(self, value: Any) -> Any:
        """The value that the function returned."""
        return self._returns.read(value, "the result")


class Flow:
    """What a workflow's body makes its steps with. Everything that is awaited in a body comes from here.

    Steps are numbered in the order in which they are made, side by side in `gather` and `map` each branch for itself. What
    a step gets and gives is JSON in the log; annotations make values of their types of it again. A step that fails raises
    `StepFailedError`; one that was started and has no result `StepUnknownError`, which a body may catch: to look what came
    of it, to ask a person, to go on.
    """

    def __init__(self, part: WorkflowPart, options: OpenAgenticOptions) -> None:
        self._part, self._options = part, options
        self._functions: dict[Any, _StepFunction] = {}

    @property
    def session_id(self) -> str:
        """The session of this workflow."""
        return self._part.run.session_id

    # --- steps ---------------------------------------------------------------------------------------------------------

    @overload
    def step(
        self, function: Callable[..., Coroutine[Any, Any, R]], /, *args: Any, name: str | None = None,
        effect: Effect | None = None, retry: Retries | int | None = None, **kwargs: Any,
    ) -> Awaitable[R]: ...  # fmt: skip
    @overload
    def step(
        self, function: Callable[..., R], /, *args: Any, name: str | None = None,
        effect: Effect | None = None, retry: Retries | int | None = None, **kwargs: Any,
    ) -> Awaitable[R]: ...  # fmt: skip
    def step(
        self, function: Callable[..., Any], /, *args: Any, name: str | None = None,
        effect: Effect | None = None, retry: Retries | int | None = None, **kwargs: Any,
    ) -> Awaitable[Any]:  # fmt: skip
        """Call a function, async or not, once, and keep its result; a function that is not async runs in a thread.

        `effect` says what a crash in the middle means: `idempotent` (the default for plain functions) and `read` run again,
        `unsafe` is started once at most. `retry` is how often and when it is tried again after an error.
        """
        known = self._functions.get(function)
        if known is None:
            known = self._functions[function] = _StepFunction(function)
        if effect is None:
            effect = known.tool.effect if isinstance(function, FunctionTool) else "idempotent"
        return self._step(
            StepPlan(
                name=name or known.tool.name,
                input=known.input(args, kwargs),
                work=partial(self._call, known.tool),
                effect=effect,
                read=known.read,
                retry=Retries(attempts=retry) if isinstance(retry, int) else retry,
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
    ) -> Awaitable[R]:
        """Ask an agent, in a session of its own, and get its output. Its calls are judged as they always are."""
        name = name or agent.name or "agent"
        plan = StepPlan(
            name=name,
            input={"prompt": prompt},
            work=partial(self._ask_agent, agent, deps, name),
            effect="unsafe",
            read=agent.read_answer,
            retry=retry,
        )
        return self._step(plan)

    def ask(self, question: str, choices: Sequence[str] = ()) -> Awaitable[str]:
        """Put a question to a person; the workflow parks until it is answered, for years if need be."""
        plan = StepPlan(
            name="ask", input={"question": question, "choices": list(choices)}, work=_ask_person, effect="read"
        )
        return self._step(plan)

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Wait. Nothing is held meanwhile."""
        due = self._part.now() + seconds
        return self._step(StepPlan(name="sleep", input={"seconds": seconds}, work=_do_nothing, effect="read", due=due))

    def until(self, time: datetime | float) -> Awaitable[None]:
        """Wait until a time: a datetime with its zone, or seconds since 1970."""
        if isinstance(time, datetime) and time.tzinfo is None:
            raise WorkflowError(f"until({time}) names no time zone: datetime(..., tzinfo=...)")
        due = time.timestamp() if isinstance(time, datetime) else float(time)
        return self._step(StepPlan(name="until", input={"time": due}, work=_do_nothing, effect="read", due=due))

    # --- side by side --------------------------------------------------------------------------------------------------

    def gather(
        self, *works: Awaitable[R] | Iterable[Awaitable[R]], limit: int | None = None, return_exceptions: bool = False
    ) -> Awaitable[list[R]]:
        """Wait for steps and coroutines side by side, at most `limit` at a time; gives their values in order.

        The first that fails ends the others, unless `return_exceptions` gives errors in the place of values.
        """
        path = self._next_id()
        each: list[Awaitable[R]] = []
        for work in works:
            each += [work] if isinstance(work, Awaitable) else work
        return Together(self._part.body, path, each, limit, return_exceptions)

    def map(
        self,
        function: Callable[[T], Awaitable[R]],
        items: Iterable[T],
        *,
        limit: int | None = None,
        return_exceptions: bool = False,
    ) -> Awaitable[list[R]]:
        """`gather` of the function of each item."""
        return self.gather((function(item) for item in items), limit=limit, return_exceptions=return_exceptions)

    # --- what a body may not look at by itself ---------------------------------------------------------------------------

    def now(self) -> datetime:
        """The time, recorded."""
        return datetime.fromtimestamp(self._recorded("now", self._part.now), UTC)

    def random(self) -> float:
        """A random number from 0 to 1, recorded."""
        return float(self._recorded("random", SystemRandom().random))

    def uuid(self) -> UUID:
        """A random UUID, recorded."""
        return UUID(self._recorded("uuid", lambda: str(uuid4())))

    # --- how -------------------------------------------------------------------------------------------------------------

    def _next_id(self) -> str:
        branch = self._part.body.current
        if branch is None:
            raise WorkflowError(
                "a workflow's steps are made in its body only: in the function itself, or what it awaits"
            )
        return branch.next_id()

    def _step(self, plan: StepPlan) -> Step:
        number = self._next_id()
        self._part.offer(plan.name, plan.effect)
        return Step(self._part.body, self._part, number, plan, _place())

    def _recorded(self, name: str, make: Callable[[], Any]) -> Any:
        """A value that is made once: its call and result are stored with the next step."""
        number, part = self._next_id(), self._part
        record = part.run.view.calls.get(number)
        if record is None or record.result is None:
            value = make()
            part.note(ToolUse(number, name, {}, extras={"at": _place()}), ToolResult(number, value))
            return value
        part.check(number, StepPlan(name=name, input={}, work=_do_nothing), _place(), record)
        return record.result.output

    async def _call(self, function: FunctionTool[..., Any], input: Mapping[str, Any], ctx: ToolContext) -> Any:
        output = await function.run(function.check_input(input), ctx)
        is_long = isinstance(output, str) and len(output) > self._part.run.agent.blob_bytes // 2
        return ToolOutput(output, meta={"is_text": True}) if is_long else output

    async def _ask_agent(
        self, agent: Agent[Any, Any], deps: Any, name: str, input: Mapping[str, Any], ctx: ToolContext
    ) -> Any:
        options = await agent.child_options(name, deps)

        def build(starter: AgentRuntime) -> AgentRuntime:
            return own_child(name, options, self._options, starter)

        subagents = ctx.services.get(Subagents)
        done = await subagents.spawn(ctx.tool_use_id or "", name, input["prompt"], build=build)
        if done.stop_reason != "end":
            why = f": {done.error_message}" if done.error_message else ""
            raise WorkflowError(f"the agent {name} ended as {done.stop_reason!r}{why}")
        return ToolOutput(done.final_text, meta={"child_session_id": done.child_session_id, "is_text": True})


async def _do_nothing(input: Mapping[str, Any], ctx: ToolContext) -> None:
    """A step that only takes time, or a value."""


async def _ask_person(input: Mapping[str, Any], ctx: ToolContext) -> str:
    return await ctx.services.get(Questions).ask(ctx, input["question"], input["choices"])


def _place() -> str:
    """Where in the code of the caller a step is made."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


# --- the workflow as a value -------------------------------------------------------------------------------------------


@frozen
class WorkflowResult(RunResult, Generic[R]):
    """What came of a run of a workflow: a `RunResult` with the workflow's `output`.

    One that is not over has stopped as `waiting`: `questions` are those that it waits for, `wake_at` is the time, in seconds
    since 1970, at which it goes on by itself, None where it waits for people and events only.
    """

    output: R = cast(Any, None)
    questions: Sequence[UserQuestion] = ()
    wake_at: float | None = None


class _NoModel:
    """The provider of runs that ask no model."""

    name = "workflow"

    async def complete(self, **request: Any) -> ModelOutput:
        raise WorkflowError("a workflow asks no model itself: its agents do")


def workflow(function: Callable[Concatenate[Flow, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]:
    """Make a workflow of an async function, whose first parameter is the `Flow`. Raises `OptionsError` for any other."""
    return Workflow(function)


@frozen
class Workflow(Generic[P, R]):
    """See the module. `dataclasses.replace` makes another with other `options`, which are those of its runs: the store, the
    gate, hooks, limits; its agents bring options of their own.
    """

    function: Callable[Concatenate[Flow, P], Coroutine[Any, Any, R]]
    _: KW_ONLY
    name: str = ""
    options: OpenAgenticOptions = field(default_factory=OpenAgenticOptions)

    def __post_init__(self) -> None:
        if not inspect.iscoroutinefunction(self.function):
            raise OptionsError(f"@workflow is for an async function, and {name_of(self.function)} is none: async def")
        vars(self)["name"] = self.name or name_of(self.function)
        if taken := set(_RESERVED) & self._function.parameters.keys():
            raise OptionsError(f"workflow {self.name}: run() has a parameter {min(taken)!r} of its own: rename it")

    @cached_property
    def _function(self) -> _BodyFunction:
        return _BodyFunction(self.name, self.function)

    async def run(
        self, *args: Any, options: OpenAgenticOptions | None = None, session: str | None = None, **kwargs: Any
    ) -> WorkflowResult[R]:
        """Run to the end, or to where everything waits. Run again with the same `session`, it goes on where it stopped.

        Raises `RunFailedError`, which carries the result, for one that failed, and `RequestConflictError` for a session that
        began with other arguments.
        """
        session = session or new_session_id()
        said = Said(self.prompt(*args, **kwargs), request_id=f"workflow:{session}", names_files=False)
        return await self._run(said, {"session": session}, options)

    async def resume(self, session: str, *, options: OpenAgenticOptions | None = None) -> WorkflowResult[R]:
        """Go on with a workflow that parked or was killed. Raises what `run()` raises, `SessionNotFoundError` too."""
        return await self._run(None, {"resume": session}, options)

    def run_sync(
        self, *args: Any, options: OpenAgenticOptions | None = None, session: str | None = None, **kwargs: Any
    ) -> WorkflowResult[R]:
        """`run()` for plain code, in an event loop of its own. Raises what it raises, `EventLoopError` in a coroutine."""
        refuse_running_loop("run_sync()")
        return asyncio.run(self.run(*args, options=options, session=session, **kwargs))

    def prompt(self, *args: Any, **kwargs: Any) -> str:
        """The prompt of a run with these arguments, for `query()`, `submit()`, servers and the fleet."""
        return dumps_json({"workflow": self.name, "arguments": self._function.input(args, kwargs)})

    def to_options(self, options: OpenAgenticOptions | None = None) -> OpenAgenticOptions:
        """The options of a run, for `query()`, `submit()`, servers and the fleet."""
        return self._to_options(options, WorkflowOutcome())

    def _to_options(self, options: OpenAgenticOptions | None, outcome: WorkflowOutcome) -> OpenAgenticOptions:
        base = options or self.options

        def start(part: WorkflowPart, arguments: Mapping[str, Any]) -> Coroutine[Any, Any, R]:
            return self._function.call(Flow(part, base), arguments)

        rules = WorkflowRules(name=self.name, start=start, write=to_json, outcome=outcome)
        return replace(
            base,
            provider=_NoModel(),
            model="workflow",
            retry=None,
            fallback=(),
            tools=(),
            parts=(*base.parts, cast(Any, partial(WorkflowPart, rules=rules))),
        )

    async def _run(
        self, said: Said | None, place: Mapping[str, Any], options: OpenAgenticOptions | None
    ) -> WorkflowResult[R]:
        outcome = WorkflowOutcome()
        prepared = replace(self._to_options(options, outcome), **place)

        async def start() -> RunTask:
            agent = build_agent(prepared)
            request = changed(run_request(prepared, agent), parks=not agent.gate.can_ask)
            return await RunTask.start(agent, request, said)

        events: list[AnyEvent] = []
        result: Result | None = None
        async with aclosing(run_events(start)) as stream:
            async for event in stream:
                if event.seq is not None or isinstance(event, Result):
                    events.append(event)
                if isinstance(event, Result) and event.parent_tool_use_id is None:
                    result = event
        assert result is not None, "a run ends with a result"
        made = run_result(events, result)
        output = (
            outcome.value if outcome.has_value else self._function.read(made.structured_output) if made.ok else None
        )
        found = WorkflowResult[R](**values_of(made), output=cast(R, output))
        if not made.ok and made.stop_reason != "waiting":
            raise RunFailedError(found)
        return found


class _BodyFunction:
    """The function of a workflow: its parameters behind the flow, and what it returns, as JSON."""

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
        """The arguments by their names, as JSON. Raises `OptionsError` for those that do not fit."""
        try:
            bound = self._signature.bind(None, *args, **kwargs)
        except TypeError as error:
            raise OptionsError(f"workflow {self._name}: {error}") from error
        return {name: to_json(value) for name, value in bound.arguments.items() if name != self._flow}

    def call(self, flow: Flow, arguments: Mapping[str, Any]) -> Coroutine[Any, Any, Any]:
        """The body with these arguments, read as their types."""
        given = {
            name: json_type(self._hints.get(name, Any)).read(value, f"the argument {name}")
            for name, value in arguments.items()
        }
        return self._function(flow, **given)

    def read(self, value: Any) -> Any:
        """The value that the workflow returned."""
        returns = self._hints.get("return", Any)
        return json_type(None if returns is type(None) else returns).read(value, "the result")
