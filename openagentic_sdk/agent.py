"""An agent as a value: a model, its instructions, its tools, and the types of its dependencies and its output.

    agent = Agent("openai:gpt-4o", instructions="Help with orders.", tools=[refund], output=Verdict, deps=Shop)
    result = await agent.run("Where is my order?", deps=shop, session="customer-17")
    result.output  # a Verdict

An agent is translated to `OpenAgenticOptions` (`to_options`). All state between runs is in the session's log.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from contextvars import copy_context
from dataclasses import KW_ONLY, field, replace
from functools import cached_property, partial
from inspect import signature
from types import NoneType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, cast

from .api import RunResult, refuse_running_loop, run_result
from .assemble import build_agent, check_session, end_conversation, named_session, run_request, store_of
from .errors import (
    GuardrailTrippedError,
    OpenAgentSdkError,
    OptionsError,
    RunFailedError,
    SessionNotFoundError,
    ToolInputError,
)
from .events import (
    AnyEvent,
    AssistantDelta,
    AssistantMessage,
    ModelRequest,
    ModelRetry,
    Result,
    SessionRewound,
    SystemInit,
    SystemNotice,
    UserMessage,
    UserQuestion,
)
from .ground.checks import COUNT, NAME, TEXT, TEXTS, Check, check_settings, is_a, or_none, shown
from .ground.frozen import changed, frozen, values_of
from .ground.patterns import regex
from .ground.settings import WithAdvice, advice_on
from .ground.text import existing
from .ground.threads import ask_callable
from .hooks.engine import POINTS, HookEngine
from .hooks.models import HookMatcher
from .kernel.recorder import off_loop
from .kernel.task import RunTask, run_events
from .kernel.tool import Deps, Services, ToolContext
from .options import AgentDefinition, OpenAgenticOptions, a_provider
from .parts.agent.messages import events_of_messages, new_messages, partial_json
from .parts.agent.part import AgentOutcome, AgentPart, AgentRules, AgentTool, HandoffTool, bound_hook, name_of
from .parts.structured import OutputSchema, read_output_schema
from .permissions.gate import PermissionGate
from .permissions.rules import parse_rules
from .prompts import Prompt, read_prompts
from .providers.base import Provider
from .providers.named import MODEL_VARIABLE, find_provider, split_model
from .sessions.base import SessionStore
from .sessions.folds.requests import Requests
from .sessions.resume import load_view
from .sessions.seal import Seal
from .tools.base import Tool
from .tools.defaults import default_tools

if TYPE_CHECKING:  # type checkers include this module: `Agent("m")` is an `Agent[None, str]`
    from typing_extensions import TypeForm
    from typing_extensions import TypeVar as TypeVarWithDefault

    DepsT = TypeVarWithDefault("DepsT", default=None)
    OutputT = TypeVarWithDefault("OutputT", default=str)
else:
    DepsT, OutputT = TypeVar("DepsT"), TypeVar("OutputT")

_NO_DEPS: Any = None
MAX_HANDOFFS = 10
# Tool names that a permission rule can contain: each of an agent's own tools is allowed by a rule with its name.
_TOOL_NAME = regex(r"[A-Za-z_][\w.-]*")
TOOL_SETS: Mapping[str, Sequence[str]] = {
    "files": ("Read", "Write", "Edit", "Glob", "Grep"),
    "shell": ("Bash", "BashOutput", "KillBash"),
    "web": ("WebFetch", "WebSearch"),
}
_BUILT_IN = frozenset(name for names in TOOL_SETS.values() for name in names)
Instruction = str | Callable[[ToolContext[DepsT]], str | Awaitable[str]]
Validator = Callable[[ToolContext[DepsT], OutputT], OutputT | Awaitable[OutputT]]
Guardrail = Callable[[ToolContext[DepsT], OutputT], str | Awaitable[str | None] | None]
Hook = Callable[[ToolContext[DepsT], dict[str, Any]], Any]
AnyTool = Tool | Callable[..., Any] | str


@frozen
class AgentResult(RunResult, Generic[OutputT]):
    """The result of a run: a `RunResult` with its typed `output`, and in `agent_name` the name of the agent that produced
    it. `history_length` is the number of events, made from `message_history`, with which the session began.

    If the run ended as `waiting`, `questions` are the open questions of the session and its subagents, including those of
    earlier runs.
    """

    output: OutputT = cast(Any, None)
    agent_name: str | None = None
    history_length: int = 0
    questions: list[UserQuestion] = field(default_factory=list)

    __repr__ = RunResult.__repr__

    def new_messages(self) -> list[dict[str, Any]]:
        """Return the messages that this run added, as JSON values for the `message_history` of another run."""
        return new_messages(self.events, self.history_length)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            advice = "" if name.startswith("_") else advice_on(name, ("output", "events", "new_messages"))
            raise AttributeError(f"an AgentResult has no attribute {name!r}{advice}")


@frozen
class Agent(WithAdvice, Generic[DepsT, OutputT]):
    """An agent as a value: a model, instructions, tools, and the types of its dependencies and its output.

    `dataclasses.replace` creates a variant with other fields. `name` and `description` are what other agents see of it, as
    a tool or in a handoff.

    `model` is a model with its provider (`openai:gpt-4o`), a model of the options' provider, or a provider such as a
    `ScriptedProvider`; the default is $OPENAGENTIC_SDK_MODEL. `instructions` are strings, and functions of the context that
    are called at the start of each run. `tools` are functions, tools, and names of sets of built-in tools: "files",
    "shell", "web". Your own tools need no permission unless `needs_approval` names them or a rule forbids them; built-in
    ones are judged as in `query()`. `output` is a type that JSON can represent; `deps` is the class of the value passed as
    `run(deps=...)`, available to tools, hooks, validators and guardrails as `ctx.deps`.

    A validator receives the output and returns it, or another one; raising `ModelRetryError` or `ValueError` sends the
    model back, at most `output_retries` times. A guardrail receives the prompt, or the output, and returns None, or the
    reason why the run must stop; a guardrail that fails stops the run. `handoffs` are agents with the same output that may
    take over the session, or a function that returns them. `hooks` are functions of the context and the payload, by point
    (see `HookEngine`). `options` holds all other settings.
    """

    model: str | Provider | None = None
    _: KW_ONLY
    instructions: Instruction[DepsT] | Sequence[Instruction[DepsT]] = ""
    tools: AnyTool | Sequence[AnyTool] = ()
    output: TypeForm[OutputT] = str  # type: ignore[assignment]  # the default of its variable
    deps: type[DepsT] = type(None)  # type: ignore[assignment]
    name: str | None = None
    description: str = ""
    output_validators: Sequence[Validator[DepsT, OutputT]] = ()
    output_retries: int = 2
    input_guardrails: Sequence[Guardrail[DepsT, str]] = ()
    output_guardrails: Sequence[Guardrail[DepsT, OutputT]] = ()
    handoffs: Sequence[Agent[DepsT, OutputT]] | Callable[[], Sequence[Agent[DepsT, OutputT]]] = ()
    hooks: HookEngine | Mapping[str, Sequence[Hook[DepsT]]] = field(default_factory=dict)
    needs_approval: Sequence[str] = ()
    options: OpenAgenticOptions = field(default_factory=OpenAgenticOptions)

    def __post_init__(self) -> None:
        """Check everything that can be checked without I/O. Raises `OptionsError`."""
        check_settings(self, _CHECKS)
        _ = self._own_tools, self._schema
        if not callable(self.handoffs):
            self._next_agents()
        for each in self._own_tools:
            if isinstance(each, AgentTool) and each.name in self.options.agents:
                raise OptionsError(
                    f"tools: {each.name!r} is also the name of one of options.agents: rename one of them"
                )
        instructions = self.instructions
        texts: Any = [instructions] if isinstance(instructions, str) or callable(instructions) else instructions
        if isinstance(texts, Sequence):
            texts = [each for each in texts if not isinstance(each, str)]
        _check_functions("instructions", texts, "(ctx)")
        _check_functions("output_validators", self.output_validators, "(ctx, output)")
        _check_functions("input_guardrails", self.input_guardrails, "(ctx, prompt)")
        _check_functions("output_guardrails", self.output_guardrails, "(ctx, output)")
        self._check_hooks()
        names = self._tool_names()
        for rule in parse_rules(self.needs_approval, "ask"):
            if not (rule.tool.startswith("mcp__") or any(map(rule.covers, names))):
                raise OptionsError(
                    f"needs_approval names a tool that does not exist, {rule.tool!r}: {existing('tools', names)}"
                )

    @classmethod
    def advice(cls, name: str) -> str:
        """Return advice on what to write instead of an unknown argument, as a clause; empty if nothing is similar."""
        return advice_on(name, cls.__dataclass_fields__, OpenAgenticOptions.__dataclass_fields__)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):  # it exists, but computing it raised an AttributeError
                return object.__getattribute__(self, name)
            raise AttributeError(f"an Agent has no attribute {name!r}{type(self).advice(name)}")

    # --- runs ------------------------------------------------------------------------------------------------------------

    async def run(
        self, prompt: Prompt = None, *, deps: DepsT = _NO_DEPS, **settings: Unpack[RunSettings]
    ) -> AgentResult[OutputT]:
        """Run a prompt to its end; None continues where the session stopped.

        Raises `RunFailedError`, which carries the result, for a run without a complete answer, and its subclass
        `GuardrailTrippedError` if a guardrail stopped it. This includes a run that waits for a person: its result has the
        `stop_reason` `waiting`, and the open `questions`. Also raises the errors of `query()`.
        """
        running = _AgentRun(self, deps, prompt, settings)
        async with aclosing(running.events()) as events:
            async for _ in events:
                pass
        return running.result()

    def run_sync(
        self, prompt: Prompt = None, *, deps: DepsT = _NO_DEPS, **settings: Unpack[RunSettings]
    ) -> AgentResult[OutputT]:
        """Call `run()` in a new event loop, for synchronous code. Raises the errors of `run()`, and `EventLoopError` in
        a coroutine.
        """
        refuse_running_loop("run_sync()", "agent.run(...)")
        return asyncio.run(self.run(prompt, deps=deps, **settings))

    def stream(
        self, prompt: Prompt = None, *, deps: DepsT = _NO_DEPS, **settings: Unpack[RunSettings]
    ) -> AgentStream[OutputT]:
        """Return a stream of a run's text, output or events: `async with agent.stream(...) as stream`. Leaving the block
        ends the run.
        """
        return AgentStream(_AgentRun(self, deps, prompt, settings))

    def iter(
        self, prompt: Prompt = None, *, deps: DepsT = _NO_DEPS, **settings: Unpack[RunSettings]
    ) -> AsyncGenerator[AnyEvent, None]:
        """Iterate over the events of a run, like `query()`; after the `result` of a handoff, the events of the next agent
        follow.
        """
        return _AgentRun(self, deps, prompt, settings).events()

    async def to_options(self, *, deps: DepsT = _NO_DEPS, **settings: Unpack[RunSettings]) -> OpenAgenticOptions:
        """Return the options of a run, for `query()`, `submit()`, `AgentClient` and servers, without handoffs."""
        plan = _AgentRun(replace(self, handoffs=()), deps, None, settings)
        return await plan.options()

    async def child_options(self, runs_as: str, deps: Any = None) -> OpenAgenticOptions:
        """Return the options of this agent as the subagent `runs_as` of a workflow, without handoffs."""
        alone = replace(self, handoffs=())
        options: OpenAgenticOptions = await alone._options(_AgentRun(alone, deps, None, {}), None, runs_as)
        return options

    def read_answer(self, text: str) -> OutputT:
        """Convert the text of an answer to the output; a typed output is parsed as JSON. Raises `ToolInputError` if it does
        not fit.
        """
        check_settings({"text": text}, {"text": TEXT})
        value: OutputT = self._read(text if self._schema is None else self._schema.read_text(text))
        return value

    def as_tool(self, name: str | None = None, description: str | None = None) -> Tool:
        """Return a tool with which another agent can call this one, in a separate session, with the same deps.

        Raises `OptionsError` if neither this call nor the agent gives a name.
        """
        name = name or self.name
        if not name:
            raise OptionsError("an agent used as a tool needs a name: Agent(name=...) or as_tool(name=...)")
        return AgentTool(self, name, description or self.description or f"Ask the agent {name}.")

    # --- derived values --------------------------------------------------------------------------------------------------

    @cached_property
    def _schema(self) -> OutputSchema | None:
        return None if self.output is str else read_output_schema(self.output)

    @cached_property
    def _own_tools(self) -> Sequence[Tool]:
        tools: list[Tool] = []
        for item in [self.tools] if isinstance(self.tools, str | Tool) or callable(self.tools) else self.tools:
            if isinstance(item, str):
                if item not in TOOL_SETS:
                    raise OptionsError(
                        f"tools names the unknown set {item!r}: the sets are {', '.join(TOOL_SETS)}"
                        + "".join(f"; {item} is in {name!r}" for name, names in TOOL_SETS.items() if item in names)
                    )
                tools += [cast(Tool, each) for each in default_tools() if each.name in TOOL_SETS[item]]
            elif isinstance(item, Tool):
                tools.append(item)
            elif isinstance(item, type) and issubclass(item, Tool):
                raise OptionsError(f"tools contains the class {item.__name__}: write {item.__name__}()")
            elif callable(item):
                from .tools.function import (
                    tool,
                )  # late: it reads types; only functions need it

                tools.append(tool(item))
            else:
                advice = ": write agent.as_tool()" if isinstance(item, Agent) else ""
                raise OptionsError(f"tools: {shown(item)} is not a function, tool or name of a set{advice}")
        for each in tools:
            if not _TOOL_NAME.fullmatch(each.name):
                raise OptionsError(
                    f"no permission rule can name the tool {each.name!r} in `tools`: begin its name with an ASCII letter or "
                    "_, and continue with letters, digits, _, . and -"
                )
        return tools

    @cached_property
    def _model_place(self) -> tuple[Provider | None, str | None]:
        """The provider and model to ask, created on first use: an agent can be defined without a key."""
        return _place_of(self.model, self.options)

    def _tool_names(self) -> list[str]:
        """The names of this agent's tools, including those that options add and those of the agents used as tools."""
        options = self.options
        added = {"memory": options.memory, "Code": options.code, "Task": options.agents}
        names = [*(each.name for each in self._own_tools), *(name for name, is_there in added.items() if is_there)]
        children = (each.agent for each in self._own_tools if isinstance(each, AgentTool))
        return [*names, *(name for child in children for name in child._tool_names())]

    def _read(self, value: Any) -> Any:
        """Convert an answer, its text or the JSON value that fits the schema, to the output. Raises `ToolInputError`."""
        kind = None if self._schema is None else self._schema.kind
        return value if kind is None else kind.read(value, "the answer")

    def _write(self, output: Any) -> Any:
        """Convert an output to the JSON value of an answer. Raises `ToolError` or `ToolInputError` if none fits."""
        from .ground.schemas.typed import to_json  # late: an agent without an output type needs none

        value = to_json(output)
        return value if self._schema is None else self._schema.read_value(value)

    def _may_be_none(self) -> bool:
        try:
            return self._schema is not None and self._read(None) is None
        except ToolInputError:
            return False

    def read_partial(self, text: str) -> Any:
        """Convert the text of an incomplete answer to the output so far; `NOTHING` if it does not fit the type yet."""
        if self._schema is None:
            return text
        try:
            value = partial_json(text)
            return self._read(self._schema.read_value(value))
        except (ValueError, RecursionError, OpenAgentSdkError):
            return NOTHING

    def _next_agents(self) -> Mapping[str, Agent[Any, Any]]:
        """The agents that may take over the session, by name. Raises `OptionsError` for an invalid name or output type."""
        agents = self.handoffs() if callable(self.handoffs) else self.handoffs
        for agent in agents:
            if not isinstance(agent, Agent) or not agent.name or not agent.name.isidentifier():
                raise OptionsError(
                    f"handoffs: {shown(agent)} must be an Agent whose name is a valid identifier (letters, digits and _, "
                    "not starting with a digit)"
                )
            if agent.output != self.output:
                raise OptionsError(
                    f"the agent {agent.name} in handoffs returns {shown(agent.output)} and this agent {shown(self.output)}: "
                    "give both the same output type, since a handoff returns the other agent's answer to this agent's caller"
                )
        by_name = {str(agent.name): agent for agent in agents}
        if len(by_name) < len(agents):
            raise OptionsError(
                f"handoffs: the agents must have different names, not {', '.join(str(agent.name) for agent in agents)}"
            )
        return by_name

    async def _options(self, run: _AgentRun, parent: Agent[Any, Any] | None = None, runs_as: str | None = None) -> Any:
        """Build the options for one run of this agent. `runs_as` is its name as a subagent, and `parent` the agent that uses
        it as a tool.
        """
        base, deps = self.options, run.deps_for(self)
        provider, model = self._model_place if parent is not None or run.model is None else _place_of(run.model, base)
        # An agent without a model of its own uses that of the agent that calls it.
        if parent is not None and provider is None:
            provider, model = parent._model_place
        after = self._next_agents() if parent is None and run.handoffs < MAX_HANDOFFS else {}
        children = [each for each in self._own_tools if isinstance(each, AgentTool)]
        definitions = {
            child.name: AgentDefinition(
                child.description, "", options=await child.agent._options(run, self, child.name)
            )
            for child in children
        }
        tools = [*self._own_tools, *(HandoffTool(name, agent.description) for name, agent in after.items())]
        # Passing a function as a tool allows it; built-in tools need the rules of the gate.
        granted = [each.name for each in tools if each.name not in _BUILT_IN]
        granted += [name for definition in definitions.values() for name in definition.options.allowed_tools]
        gate = base.permission_gate
        if self.needs_approval:
            gate = (gate or PermissionGate(clock=base.clock)).with_rules(
                ask=self.needs_approval, source="needs_approval"
            )
        # None means no output type, as in `output_schema`.
        output_type = NoneType if self.output is None else self.output
        rules = self._rules(run, deps, tuple(after), is_callers=parent is None, runs_as=runs_as)
        return replace(
            base,
            provider=provider,
            model=model,
            system_prompt=await self._instructions(deps),
            tools=tools,
            allowed_tools=(*base.allowed_tools, *granted),
            permission_gate=gate,
            hooks=self._hooks(deps),
            output_schema=base.output_schema if self._schema is None else output_type,
            output_repair_turns=base.output_repair_turns if self._schema is None else self.output_retries,
            agents={**base.agents, **definitions},
            parts=(*base.parts, cast(Any, partial(AgentPart, rules=rules))),
        )

    def _rules(
        self, run: _AgentRun, deps: Any, handoffs: Sequence[str], *, is_callers: bool, runs_as: str | None
    ) -> AgentRules:
        """The rules of one run; only the caller's own run begins with its message history, and has its outcome."""
        return AgentRules(
            name=self.name,
            runs_as=runs_as,
            deps=deps,
            read=self._read,
            write=self._write,
            validators=self.output_validators,
            may_be_none=self._may_be_none(),
            retries=self.output_retries,
            input_guardrails=self.input_guardrails,
            output_guardrails=self.output_guardrails,
            history=run.history if is_callers and not run.handoffs else (),
            has_no_prompt=run.has_no_prompt,
            handoffs=handoffs,
            outcome=run.outcome if is_callers else AgentOutcome(),
        )

    async def _instructions(self, deps: Any) -> str:
        options, texts = self.options, []
        context = ToolContext[Any](
            cwd=str(options.working_dir()), agent_name=self.name, services=Services({Deps: Deps(deps)})
        )
        instructions = self.instructions
        for each in [instructions] if isinstance(instructions, str) or callable(instructions) else instructions:
            text = (
                each
                if isinstance(each, str)
                else await ask_callable(partial(each, context), "openagentic-instructions")
            )
            if not isinstance(text, str):
                raise OptionsError(
                    f"the function {name_of(each)} in `instructions` returned {shown(text)}: return a string"
                )
            texts.append(text)
        return "\n\n".join(filter(None, texts))

    def _check_hooks(self) -> None:
        """Raise `OptionsError` for an unknown point, and for hooks that are not a list of functions."""
        if isinstance(self.hooks, HookEngine):
            return
        for point, hooks in self.hooks.items():
            if point not in POINTS:
                raise OptionsError(f"hooks has the unknown point {shown(point)}: the points are {', '.join(POINTS)}")
            _check_functions(f"hooks[{point!r}]", hooks, "(ctx, payload)")

    def _hooks(self, deps: Any) -> HookEngine | None:
        """The hooks of the options followed by the agent's, whose context has these deps. If the agent's hooks are a
        `HookEngine`, they are used alone.
        """
        if isinstance(self.hooks, HookEngine):
            return self.hooks
        if not self.hooks:
            return self.options.hooks
        caller_hooks = self.options.hooks or HookEngine()
        more: dict[str, Any] = {
            point: [
                *getattr(caller_hooks, point),
                *(HookMatcher(name_of(hook), hook=bound_hook(hook, deps)) for hook in hooks),
            ]
            for point, hooks in self.hooks.items()
        }
        return replace(caller_hooks, **more)


class RunSettings(TypedDict, total=False):
    """The settings that can differ between runs of an agent.

    `session` is the id of the session to continue or create; `message_history` are messages of another run with which a new
    session begins. `answers` are answers to the questions of a waiting session, by question id. `model` replaces the
    models of the agent and of agents that take over. The others are options of the same names.
    """

    session: str | None
    message_history: Sequence[Mapping[str, Any]]
    answers: Mapping[str, str | bool]
    model: str | Provider
    max_steps: int
    max_tokens: int | None
    max_cost_usd: float | None
    timeout_s: float | None
    request_id: str | None
    session_metadata: Mapping[str, Any]
    session_store: SessionStore | str | None


class AgentStream(Generic[OutputT]):
    """An agent's run in progress. Iterate over one of `text`, `output` and `events`; `result` waits for the run to end.

    If the run failed, `text` and `output` raise the error of `Agent.run` after their last item, and `result` raises it, too.
    """

    def __init__(self, running: _AgentRun) -> None:
        self._running = running
        self._events = running.events()

    async def __aenter__(self) -> AgentStream[OutputT]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._events.aclose()

    def events(self) -> AsyncIterator[AnyEvent]:
        """Iterate over the events of the run."""
        return self._events

    async def text(self) -> AsyncIterator[str]:
        """Yield the text that the model writes, piece by piece, including text that accompanies calls."""
        async for event in self._events:
            if isinstance(event, AssistantDelta) and event.parent_tool_use_id is None:
                yield event.text_delta
        self._running.result()

    async def output(self) -> AsyncIterator[OutputT]:
        """Yield the output so far: a growing text, or values that fit the type; the last one has been validated.

        An answer that the model gives through a call (see the option `output_form`) is yielded once, as a whole.
        """
        text, read_chars, last = "", 0, cast(Any, NOTHING)
        async for event in self._events:
            if event.parent_tool_use_id is not None:
                continue
            if isinstance(event, ModelRequest | ModelRetry):
                text, read_chars = "", 0
            elif isinstance(event, AssistantDelta):
                text += event.text_delta
                if len(text) - read_chars > len(text) // 50:  # parsing it for each piece would take quadratic time
                    read_chars = len(text)
                    value = self._running.agent.read_partial(text)
                    if value is not NOTHING and value != last:
                        last = value
                        yield value
        if (output := self._running.result().output) != last:
            yield output

    async def result(self) -> AgentResult[OutputT]:
        """Wait for the end of the run and return its result. Raises the errors of `Agent.run`."""
        async for _ in self._events:
            pass
        return self._running.result()


class _AgentRun:
    """The run of an agent, followed by those of the agents that take over, in one session and for one caller."""

    def __init__(self, agent: Agent[Any, Any], deps: Any, prompt: Prompt, settings: RunSettings) -> None:
        self.agent, self.outcome, self.handoffs = agent, AgentOutcome(), 0
        self.model = settings.get("model")
        check_settings({"model": self.model}, {"model": _model})
        self.history = events_of_messages(settings.get("message_history") or ())
        self.has_no_prompt = prompt is None
        self._answers = settings.get("answers") or {}
        own = ("model", "message_history", "answers")
        self._settings: dict[str, Any] = {name: value for name, value in settings.items() if name not in own}
        if unknown := self._settings.keys() - RunSettings.__annotations__.keys():
            names = ", ".join(RunSettings.__annotations__)
            name = min(unknown)
            advice = advice_on(name, (*RunSettings.__annotations__, "deps"), OpenAgenticOptions.__dataclass_fields__)
            raise OptionsError(f"a run has no setting {name!r}{advice or f': the settings are {names}'}")
        self._deps, self._prompt, self._context = deps, prompt, copy_context()
        self._left: dict[str, Any] = {}
        self._events: list[AnyEvent] = []
        self._result: Result | None = None
        self._questions: list[UserQuestion] = []

    def deps_for(self, agent: Agent[Any, Any]) -> Any:
        """The caller's deps. Raises `OptionsError` if they are not of the class that this agent declares."""
        kind, deps = agent.deps, self._deps
        if kind in (None, type(None)):
            return deps
        try:
            fits = deps is not None if getattr(kind, "_is_protocol", False) else isinstance(deps, kind)
        except TypeError:  # a type that nothing can be an instance of, such as a TypedDict
            fits = deps is not None
        if not fits:
            name = getattr(kind, "__name__", shown(kind))
            raise OptionsError(
                f"deps must be of the type {name} that the agent declares, not {shown(deps)}: pass such a value to "
                "run(..., deps=...) or to_options(deps=...)"
            )
        return deps

    async def options(self) -> OpenAgenticOptions:
        """Build the options for the current agent, with the remainder of the run's limits."""
        options: OpenAgenticOptions = replace(await self.agent._options(self), **self._settings)
        limits: dict[str, Any] = {name: getattr(options, name) for name in _LIMITS}
        self._left = self._left or limits
        # An agent that takes over has limits of its own; what is left of the first agent's limits also applies to it.
        limits = {name: _least(own, self._left[name]) for name, own in limits.items() if own is not self._left[name]}
        return replace(options, **limits)

    async def events(self) -> AsyncGenerator[AnyEvent, None]:
        """Yield the events of the run, then those of the run of each agent that takes over."""
        prompt, part = self._prompt, self.agent.options.part
        # All these runs are one conversation, so that session_start and session_end hooks run once for all of them.
        if self.agent.handoffs and part == "whole":
            self._settings["part"] = "first"
        request_id = self._settings.get("request_id", self.agent.options.request_id)
        if self.agent.handoffs and (prompt is None or request_id is not None):
            await self._continue_with_the_last_agent(prompt is None)
        while True:
            options = await self.options()
            await self._answer(options)
            start = partial(_start, options, prompt, bool(self.history))
            async with aclosing(self._context.copy().run(run_events, start)) as events:
                async for event in events:
                    self._take(event)
                    yield event
            if self.outcome.handoff is None:
                break
            self._go_on(self.outcome.handoff, options)
            prompt = None
        if self._result is not None and self._result.stop_reason == "waiting":
            self._questions = await self._find_questions(options, self._result.session_id)
        if self._settings.get("part", part) != part and self._result is not None:
            await end_conversation(options, self._result.session_id)

    async def _continue_with_the_last_agent(self, without_prompt: bool) -> None:
        """Switch to the agent that had the session last, or that answered the request, if handoffs lead to it from the
        caller's agent. A prompt that is not in the log begins with the caller's.
        """
        options = await self.options()
        request_id = None if without_prompt else options.request_id
        session_id = options.resume or named_session(options)
        if session_id is None:
            return
        store = store_of(build_agent(options))
        name = await off_loop(True, _last_agent, store, session_id, without_prompt, request_id)
        agents: dict[str, Agent[Any, Any]] = {self.agent.name or "": self.agent}
        waiting = [self.agent]
        while waiting:
            new_agents = {key: agent for key, agent in waiting.pop()._next_agents().items() if key not in agents}
            agents.update(new_agents)
            waiting += new_agents.values()
        if (agent := agents.get(name or "", self.agent)) is not self.agent:
            self.agent = agent
            of_caller = ("session_store", "key_file", "session", "session_id", "resume", "request_id")
            self._settings |= {key: getattr(options, key) for key in of_caller}

    async def _find_questions(self, options: OpenAgenticOptions, session_id: str) -> list[UserQuestion]:
        """Read the open questions from the store: an earlier run may have asked them."""
        from .runs.background import open_questions  # late: it imports much that other runs do not need

        store = store_of(build_agent(options))
        questions: list[UserQuestion] = await off_loop(True, open_questions, store, session_id, Seal(options.key_file))
        return questions

    def _take(self, event: AnyEvent) -> None:
        if event.seq is not None or isinstance(event, Result):
            self._events.append(event)
        if isinstance(event, Result) and event.parent_tool_use_id is None:
            self._result = event

    def _go_on(self, name: str, options: OpenAgenticOptions) -> None:
        """Switch to the agent that takes over the session, in the same store, with the remaining steps and time."""
        assert self._result is not None, "a run ends with a result"
        self.agent = self.agent._next_agents()[name]
        self.outcome = AgentOutcome(history_length=self.outcome.history_length)
        self.handoffs += 1
        result = self._result
        self._settings |= {
            "session_store": options.session_store,
            "key_file": options.key_file,
            "session": None,
            "session_id": None,
            "resume": result.session_id,
            "request_id": None,
            "part": "next",
        }
        self._left["max_steps"] = max(0, self._left["max_steps"] - result.steps)
        if self._left["timeout_s"] is not None:
            self._left["timeout_s"] = max(0.001, self._left["timeout_s"] - (result.duration_s or 0))

    async def _answer(self, options: OpenAgenticOptions) -> None:
        """Store the caller's answers to the session's questions, unless that is done. Raises `OptionsError` without a
        session.
        """
        answers, self._answers = self._answers, {}
        if answers:
            from .runs.background import answer_questions  # late: it imports much that other runs do not need

            session = options.session or options.resume
            if session is None:
                raise OptionsError("answers need the waiting session: write run(None, session=..., answers=...)")
            agent = build_agent(options)
            await answer_questions(store_of(agent), session, answers, key_file=options.key_file, tools=agent.tools)

    def result(self) -> AgentResult[Any]:
        """Return the result. Raises `RunFailedError` for a run without a complete answer, and `OptionsError` for one that
        was abandoned or had nothing to do.
        """
        if self._result is None:
            raise OptionsError("the run was abandoned before its end and has no result: iterate over all of its events")
        plain_result = run_result(self._events, self._result)
        output, outcome = self.outcome.output, self.outcome
        # The answer to a request that was answered before is converted again, but not validated again.
        is_known = outcome.has_output or not plain_result.ok
        if self.has_no_prompt and not is_known and not plain_result.steps:
            raise OptionsError(f"session {plain_result.session_id} has no work left to continue: give a prompt")
        if not is_known:
            output = self.agent._read(
                plain_result.final_text if plain_result.structured_output is None else plain_result.structured_output
            )
        ends = [event for event in self._events if isinstance(event, Result) and event.parent_tool_use_id is None]
        of_all = {"steps": sum(end.steps for end in ends), "duration_s": sum(end.duration_s or 0.0 for end in ends)}
        result = AgentResult[Any](
            **values_of(plain_result) | of_all,
            output=output,
            agent_name=self.agent.name,
            history_length=outcome.history_length,
            questions=self._questions,
        )
        if (tripped := outcome.tripped) is not None:
            raise GuardrailTrippedError(result, tripped.kind, tripped.guardrail, tripped.reason)
        if not plain_result.ok:
            raise RunFailedError(result)
        return result


def _last_agent(store: SessionStore, session_id: str, without_prompt: bool, request_id: str | None) -> str | None:
    """The name of the agent of the session's last run, or of the one that answered the request; None if it has no name, if
    there is no run or session, or if the request is to be worked on from its beginning.
    """
    agents: list[tuple[int, str | None]] = []
    requests = Requests()
    try:
        # A new prompt begins with the caller's agent: the log, which may be long, need not be read.
        if not without_prompt and load_view(store, session_id)[0].requests.is_due(request_id):
            return None
        for event in store.iter_events(session_id):
            if isinstance(event, SystemInit | AssistantMessage | UserMessage | SessionRewound | Result):
                requests.apply(event, "")
            if isinstance(event, SystemInit):
                agents.append((event.seq or 0, None))
            elif isinstance(event, SystemNotice) and event.code == "agent" and agents:
                agents[-1] = (agents[-1][0], str(event.details.get("agent")))
            elif isinstance(event, SessionRewound):
                agents = [each for each in agents if each[0] <= event.to_seq]
    except SessionNotFoundError:
        return None
    end = requests.answer_to(request_id)
    names = [name for seq, name in agents if end is None or not end.seq or seq <= end.seq]
    return names[-1] if names else None


def _model(value: Any) -> str | None:
    is_one = value is None or isinstance(value, str) or a_provider(value) is None
    return None if is_one else f'a name such as "openai:gpt-4o", or {a_provider(value)}'


def _deps_class(value: Any) -> str | None:
    """Check `deps`: a class, a type from `typing`, or None for an agent without deps."""
    is_one = (
        value is None or isinstance(value, type) or type(value).__module__ in ("types", "typing", "typing_extensions")
    )
    return None if is_one else "the class of the value that run(deps=...) gets"


_CHECKS: Mapping[str, Check] = {
    "model": _model,
    "tools": lambda value: None if isinstance(value, Iterable) or callable(value) else "a list of functions and tools",
    "deps": _deps_class,
    "name": or_none(NAME),
    "description": TEXT,
    "output_retries": COUNT,
    "handoffs": lambda value: None if isinstance(value, Sequence) or callable(value) else "a list of agents",
    "hooks": is_a(HookEngine | Mapping, "a HookEngine(...), or a mapping of points to lists of functions"),
    "needs_approval": TEXTS,
    "options": is_a(OpenAgenticOptions, "OpenAgenticOptions(...)"),
}


def _check_functions(name: str, functions: Any, takes: str) -> None:
    """Raise `OptionsError` unless the value is a list of functions that accept the arguments `takes`, such as "(ctx)"."""
    if not isinstance(functions, Sequence) or not all(map(callable, functions)):
        texts = "strings or " if name == "instructions" else ""
        raise OptionsError(f"{name} must be a list of {texts}functions of {takes}, not {shown(functions)}")
    for function in functions:
        try:
            signature(function).bind(*takes.split(","))
        except TypeError as error:
            raise OptionsError(f"{name}: {name_of(function)} must accept {takes} ({error})") from error
        except ValueError:  # a function written in C has no readable signature
            continue


_LIMITS = ("max_steps", "max_tokens", "max_cost_usd", "timeout_s")


def _least(*limits: float | None) -> float | None:
    """The tightest of the limits; None for no limit."""
    return min((limit for limit in limits if limit is not None), default=None)


def _place_of(model: str | Provider | None, options: OpenAgenticOptions) -> tuple[Provider | None, str | None]:
    """The provider and the model to ask. A name that combines both is only split if no provider is given."""
    if model is not None and not isinstance(model, str):
        return model, options.model or model.name
    word = model or options.model or os.environ.get(MODEL_VARIABLE) or None
    if options.provider is not None or word is None:
        return options.provider, word
    name, word = split_model(word)
    return find_provider(name, api_key=options.api_key, model=word), word


async def _start(options: OpenAgenticOptions, prompt: Prompt, has_history: bool) -> RunTask:
    agent = build_agent(options)
    # Where nobody can be asked, a question waits in the log until somebody answers it.
    request = changed(run_request(options, agent), parks=not agent.gate.can_ask)
    if prompt is None and not has_history:
        await check_session(agent, request)
    return await RunTask.start(agent, request, read_prompts(prompt))


NOTHING = object()
