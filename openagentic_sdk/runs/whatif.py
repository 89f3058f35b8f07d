"""What-if: continue a copy of a session under other conditions, and answer repeated calls with their recorded results.

A call with the same tool and arguments as a recorded call gets its result. The first new call stops the run, is asked
about, or runs for real, as the caller chooses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ..assemble import build_agent, run_request
from ..errors import OptionsError, ToolError
from ..events import (
    AnyEvent,
    Event,
    McpServerChanged,
    ModelContext,
    SessionForked,
    SystemInit,
    ToolResult,
    ToolStarted,
    ToolUse,
)
from ..ground.frozen import frozen
from ..ground.loose import tool_name
from ..hooks.engine import HookEngine
from ..hooks.models import HookDecision, HookMatcher
from ..kernel.agent import AgentRuntime, Run
from ..kernel.lifetime import RunStopped
from ..kernel.part import Part, kind_of, without_parts
from ..kernel.recorder import may_block, off_loop
from ..kernel.registry import ToolRegistry
from ..kernel.task import RunTask, run_events
from ..kernel.tool import BareTool, Questions, ToolContext
from ..options import OpenAgenticOptions
from ..parts.servers import ServerTools, ToolServers, servers_of
from ..parts.structured import FINAL_ANSWER
from ..parts.workflows.part import WorkflowPart
from ..parts.workflows.progress import WorkflowProgress
from ..parts.workflows.steps import KnownSteps
from ..prompts import Prompt, read_prompts
from ..sessions.request import json_sha256
from ..testing.replay import recorded_outcome
from ..tools.base import Tool
from .forked import start_forked

if TYPE_CHECKING:
    from ..parts.mcp.resources import PromptExpansion

# The end of the sentence that explains why a what-if stopped.
NEVER_MADE = "is a call that the recorded session never made"
OnNew = Literal["stop", "ask", "live"]


def what_if(
    *,
    source_id: str,
    at_seq: int,
    options: OpenAgenticOptions,
    prompt: Prompt = None,
    on_new: OnNew = "stop",
) -> AsyncGenerator[AnyEvent, None]:
    """Fork `source_id` after `at_seq` and run there with other options; yield the events that `query()` yields.

    `on_new` selects what happens to a call without a recorded result left: `stop` ends the run before the next model call,
    `ask` asks the person behind `options.permission_gate`, `live` runs it under the gate. Raises `OptionsError` for a
    workflow if `options` are not those of its code. Also raises the errors of `query_forked`.
    """

    async def start() -> RunTask:
        return await start_what_if(build_agent(options), options, source_id, at_seq, prompt, on_new)

    return run_events(start)


async def start_what_if(
    agent: AgentRuntime, options: OpenAgenticOptions, source_id: str, at_seq: int, prompt: Prompt, on_new: OnNew
) -> RunTask:
    """Start a what-if with an agent that is already built. The caller must close the run. Raises the errors of `what_if`.

    With `options.resume`, continue that fork of the source; results that it has already used are not used again.
    """
    if on_new not in ("stop", "ask", "live"):
        raise OptionsError(f"on_new {on_new!r:.100} is unknown: use stop, ask or live")
    store = agent.store
    events = await off_loop(may_block(store), store.read_events, source_id)
    if WorkflowProgress.of(events).is_workflow and not any(kind_of(part) is WorkflowPart for part in agent.parts):
        raise OptionsError(
            f"session {source_id!r} is a workflow, which only its code can continue: call what_if(..., "
            "options=flow.to_options())"
        )
    known_calls = RecordedCalls(events, after_seq=at_seq)
    # The tools last announced to the model of a recorded session.
    specs = {tool_name(spec): spec for event in events if isinstance(event, ModelContext) for spec in event.tools}
    if options.tools is None and specs:  # the same built-in tools as in the recording, whatever this version has
        asked_for = {event.name for event in events if isinstance(event, ToolUse)} | {*specs, *_offered(events)}
        agent = replace(agent, tools=ToolRegistry(tool for tool in agent.tools if tool.name in asked_for))
    here = set(agent.tools.names())
    # Tools that a rule denies entirely are hidden, as in every run, even if they were recorded.
    may_show = agent.gate.offered_tools(name for name in specs if name not in here)
    absent = {name: _AbsentTool(specs[name]) for name in may_show}
    of_servers = [tool for name, tool in absent.items() if name.startswith("mcp__") or name in _READERS]
    own = [tool for tool in absent.values() if tool not in of_servers and tool.name != FINAL_ANSWER]
    answering_agent = _answered(agent, known_calls, on_new, of_servers, own)
    if options.resume is None:
        return await start_forked(answering_agent, options, source_id, prompt, at_seq)
    forked_events = await off_loop(may_block(store), store.read_events, options.resume)
    if not any(isinstance(event, SessionForked) and event.parent_session_id == source_id for event in forked_events):
        raise OptionsError(f"session {options.resume!r} is not a fork of {source_id!r}: omit resume to create one")
    for event in forked_events:
        if isinstance(event, ToolUse) and (event.seq or 0) > at_seq:
            known_calls.take(event.name, event.input)
    return await RunTask.start(answering_agent, run_request(options, answering_agent), read_prompts(prompt))


def _offered(events: Iterable[Event]) -> Iterable[str]:
    """The names of the tools that the runs of a log had, including those that a search would have found."""
    return (name for event in events if isinstance(event, SystemInit) for name in event.tools)


class RecordedCalls:
    """The results and errors of a session's calls by tool and arguments, each used once.

    The results of calls after event `after_seq` are used first. `new_call` is the tool of the first call that was refused
    because it has no recorded result; None if there was none.
    """

    def __init__(self, events: Iterable[Event], *, after_seq: int) -> None:
        self._results: dict[tuple[str, str], deque[ToolResult]] = {}
        self.new_call: str | None = None
        # False sorts first, and `sorted` is stable: those after the fork come first, and both groups keep their order.
        ordered = sorted(events, key=lambda event: (event.seq or 0) <= after_seq)
        uses = {event.tool_use_id: event for event in ordered if isinstance(event, ToolUse)}
        started_ids = {event.tool_use_id for event in ordered if isinstance(event, ToolStarted)}
        for event in ordered:
            if not isinstance(event, ToolResult) or event.tool_use_id not in uses:
                continue
            # An error before the call started, such as input that did not fit, is not an answer of the tool.
            if event.outcome == "ok" or (event.outcome == "error" and event.tool_use_id in started_ids):
                use = uses[event.tool_use_id]
                self._results.setdefault(_key(use.name, use.input), deque()).append(event)

    def has(self, name: str, input: Mapping[str, Any]) -> bool:
        """Whether a recorded result of this call is left."""
        return bool(self._results.get(_key(name, input)))

    def take(self, name: str, input: Mapping[str, Any]) -> ToolResult | None:
        """Remove and return the next recorded result of this call; None if none is left."""
        results = self._results.get(_key(name, input))
        return results.popleft() if results else None


def _key(name: str, input: Mapping[str, Any]) -> tuple[str, str]:
    return name, json_sha256(dict(input))


@frozen
class _Answering:
    recorded_calls: RecordedCalls
    on_new: OnNew


class _AnsweredTool(Tool):
    """A tool whose recorded calls are answered from the recording."""

    def __init__(self, inner: BareTool, answering: _Answering) -> None:
        self.name, self.description, self.input_schema = inner.name, inner.description, inner.input_schema
        self.effect, self.allowed_callers = inner.effect, inner.allowed_callers
        self._inner = inner
        self._answering = answering

    @property
    def parallel(self) -> bool:
        return self._inner.parallel

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        known_calls, on_new = self._answering.recorded_calls, self._answering.on_new
        recorded = known_calls.take(self.name, input)
        if recorded is not None:
            return recorded_outcome(recorded)
        if on_new == "stop":
            known_calls.new_call = known_calls.new_call or self.name
            raise ToolError(f"{self.name} was not run: the recorded session never made this call")
        if on_new == "ask" and not await self._is_wanted(ctx):
            raise ToolError(
                f"{self.name} was not run: the recorded session never made this call, and a person declined it"
            )
        return await self._inner.run(input, ctx)

    async def _is_wanted(self, ctx: ToolContext) -> bool:
        questions = ctx.services.get(Questions)
        if not questions.reach_anybody(ctx):
            return False
        prompt = f"The recorded session never called {self.name} like this. Run it?"
        answer = await questions.ask(ctx, prompt, ("yes", "no"))
        return answer.strip().lower() in ("y", "yes")


class _AnsweredServers:
    """The servers of a what-if and their recorded tools. Without `servers`, they may not run, and none is started."""

    def __init__(self, servers: ToolServers | None, recorded: Sequence[BareTool], answering: _Answering) -> None:
        self._servers = servers
        self._recorded = recorded
        self._answering = answering
        self._wrappers: dict[BareTool, BareTool] = {}  # a tool must keep the same wrapper object

    def hold(self) -> None:
        if self._servers is not None:
            self._servers.hold()

    async def release(self) -> None:
        if self._servers is not None:
            await self._servers.release()

    async def ready(self) -> None:
        if self._servers is not None:
            await self._servers.ready()

    def tools(self, may_use: Callable[[str], bool]) -> list[BareTool]:
        live = [] if self._servers is None else self._servers.tools(may_use)
        names = {tool.name for tool in live}
        tools = [*live, *(tool for tool in self._recorded if tool.name not in names)]
        return [self._wrappers.setdefault(tool, _AnsweredTool(tool, self._answering)) for tool in tools]

    def instructions(self) -> list[tuple[str, str]]:
        return [] if self._servers is None else self._servers.instructions()

    def changes(self, seen: dict[str, int]) -> list[McpServerChanged]:
        return [] if self._servers is None else self._servers.changes(seen)

    def held_definition(self, tool: str) -> tuple[str, str] | None:
        return None if self._servers is None else self._servers.held_definition(tool)

    async def expand_prompt(self, text: str, permits: Callable[[str, str], Awaitable[bool]]) -> PromptExpansion | None:
        return None if self._servers is None else await self._servers.expand_prompt(text, permits)


class _AbsentTool(Tool):
    """A recorded tool of a server or of the caller that is not available now."""

    effect = "unsafe"

    def __init__(self, spec: Mapping[str, Any]) -> None:
        function = spec["function"]
        self.name, self.description = str(function["name"]), str(function.get("description", ""))
        self.input_schema = function.get("parameters", {})

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        raise ToolError(
            f"{self.name} cannot be run, because it is not available here: name the agent that has it (--agent), or "
            "its server"
        )


# Tools of servers whose names do not contain the server's name.
_READERS = ("ListMcpResources", "ReadMcpResource")


class _AnsweredRegistry(ToolRegistry):
    """Tools whose known calls are answered from the recording, including those registered later (workflow steps).

    A call that gives the final answer is the model's answer, and no call to compare.
    """

    def __init__(self, tools: Iterable[BareTool], answering: _Answering) -> None:
        super().__init__(tool if tool.is_answer else _AnsweredTool(tool, answering) for tool in tools)
        self._answering = answering

    def register(self, tool: BareTool) -> None:
        super().register(_AnsweredTool(tool, self._answering))


class _EndAtNewCall(Part, KnownSteps):
    """A part that ends the run before its next step once it has made a call for which no recorded result is left."""

    def __init__(self, run: Run, known_calls: RecordedCalls) -> None:
        super().__init__(run)
        self._recorded_calls = known_calls

    def services(self) -> Mapping[type, object]:
        return {KnownSteps: self}

    def has(self, name: str, input: Mapping[str, Any]) -> bool:
        return self._recorded_calls.has(name, input)

    def why_stopped(self) -> str | None:
        return None if self._recorded_calls.new_call is None else f"{self._recorded_calls.new_call} {NEVER_MADE}"

    async def before_step(self) -> None:
        if why := self.why_stopped():
            raise RunStopped("interrupted", why)


def _answered(
    agent: AgentRuntime,
    known_calls: RecordedCalls,
    on_new: OnNew,
    recorded: Sequence[BareTool],
    own: Sequence[BareTool],
) -> AgentRuntime:
    answering = _Answering(known_calls, on_new)
    servers = None if on_new == "stop" else servers_of(agent.parts)  # new calls do not run, so no server is needed
    is_served = servers is not None or recorded

    def allow_known(payload: dict[str, Any]) -> HookDecision | None:
        is_known = known_calls.has(payload["tool_name"], payload["tool_input"])
        # The call only gets a recorded result, so no rule needs to allow it; deny rules still apply.
        return HookDecision(permission="allow") if is_known else None

    hooks = agent.hooks
    assert isinstance(hooks, HookEngine), "assemble creates no other kind of gate"
    matcher = HookMatcher("what-if: known calls touch nothing", hook=allow_known)
    return replace(
        agent,
        tools=_AnsweredRegistry((*agent.tools, *own), answering),
        hooks=replace(hooks, pre_tool_use=(matcher, *hooks.pre_tool_use)),
        parts=(
            partial(_EndAtNewCall, known_calls=known_calls),
            *([partial(ServerTools, servers=_AnsweredServers(servers, recorded, answering))] if is_served else ()),
            *without_parts(agent.parts, ServerTools),
        ),
    )
