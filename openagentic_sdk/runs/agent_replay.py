"""Replay a recorded session through an agent as it is configured today, and report the differences.

The model's answers come from the log; prompts, tool definitions, hooks and permissions are the agent's own. Tools return
their recorded results, except those that run live: pure functions of the caller (`@tool` with effect "read"), tools that
only change the session (skills, to-dos), and those named in `live_tools`. Questions get their recorded answers. Nothing is
sent to a model or an MCP server; the agent's hooks and live tools do run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from difflib import unified_diff
from functools import partial
from typing import Any

from ..agents import HasOptions, plain_options
from ..assemble import build_agent
from ..errors import ReplayMismatchError
from ..events import Event, PartState, PermissionDecision, ToolResult, ToolUse, UserAnswer, UserMessage, UserQuestion
from ..ground.frozen import frozen
from ..ground.words import shortened
from ..kernel.agent import AgentRuntime, Run
from ..kernel.lifetime import RunStopped
from ..kernel.part import without_parts
from ..kernel.registry import ToolRegistry
from ..kernel.tool import BareTool
from ..options import OpenAgenticOptions
from ..parts.agent.part import HISTORY_LABELS
from ..parts.attachments import Attachments
from ..parts.compaction import Compaction
from ..parts.servers import ServerTools
from ..permissions.gate import permission_gate
from ..serialization import dumps_json
from ..sessions.closing import SAID_INSTEAD
from ..sessions.memory import MemorySessionStore
from ..testing.replay import RecordedRun, RecordedStep, RecordedTool, Recording, recorded_outcome
from ..tools.function import FunctionTool
from .replay import RecordedSteps, Replay, is_prompt

# These tools change only the session, so they do the same each time.
_SESSION_TOOLS = frozenset(
    {"SkillList", "SkillLoad", "SkillActivate", "SkillDeactivate", "TodoWrite", "SlashCommand", "ToolSearch"}
)
_MAX_SHOWN_CHARS = 4_000


@frozen
class AgentReplayReport:
    """The result of a replay. `differences` are sentences, some followed by a diff.

    `steps` is the number of recorded requests, `compared` the number of them that the agent made again.
    """

    steps: int
    compared: int
    differences: Sequence[str] = ()
    events: Sequence[Event] = field(default=(), repr=False)

    @property
    def ok(self) -> bool:
        """Whether the agent made every recorded request and nothing differed."""
        return not self.differences and self.steps == self.compared

    @property
    def text(self) -> str:
        """The differences, and how many recorded requests were not repeated, as lines; empty if nothing differs."""
        missing = f"{self.steps - self.compared} of {self.steps} recorded requests were not repeated"
        return "\n".join([*self.differences, *([missing] if self.compared < self.steps else [])])


async def replay_agent(
    events: Iterable[Event], options: OpenAgenticOptions | HasOptions, *, live_tools: Collection[str] = ()
) -> AgentReplayReport:
    """Replay a log through the agent that `options` (or an `Agent`) describe.

    The provider, store and MCP servers of the options are not used. `live_tools` names further tools that run for real.
    Raises `OptionsError` for invalid options.
    """
    # The agent's own parts compute their states again, but its caller gave the message history.
    recording = Recording(event for event in events if not isinstance(event, PartState) or _is_of_history(event))
    replay = _AgentReplay(recording, plain_options(options), live_tools)
    problem = [] if recording.step_count() else ["this log has no model.request events, so there is nothing to compare"]
    try:
        for run in recording.runs:
            await replay.play(run)
    except ReplayMismatchError as mismatch:
        problem = [str(mismatch)]
    played = replay.replayed_events()
    # Calls that are decided differently now, and calls about which a person was asked only then or is asked only now.
    before, now = (
        {event.tool_use_id: event for event in events if isinstance(event, PermissionDecision)}
        for events in (recording.events, played)
    )
    calls = {event.tool_use_id: event for event in played if isinstance(event, ToolUse)}
    judged = []
    for call_id, old in before.items():
        new = now.get(call_id)
        if new is not None and (old.allowed, old.answered_by is None) != (new.allowed, new.answered_by is None):
            call = calls.get(call_id)
            about = "" if call is None else f" {_short(call.input)}"
            judged.append(
                f"{old.name}{about} ({call_id}) {_verdict(old)} in the recording, and {_verdict(new)} in the replay"
            )
    differences = [
        *judged,
        *_outputs(recording.events, played),
        *replay.first_difference(),
        *problem,
    ]
    return AgentReplayReport(recording.step_count(), replay.provider.compared, differences, played)


class _AgentReplay(Replay):
    """The replay of a session by an agent with its own configuration."""

    def __init__(self, recording: Recording, options: OpenAgenticOptions, live: Collection[str]) -> None:
        super().__init__(recording, strict=False, live={})
        self._options = options
        self._live_names = frozenset(live)
        self._places = {run.init.cwd: str(options.working_dir()) for run in recording.runs}
        questions = {event.question_id: event for event in recording.events if isinstance(event, UserQuestion)}
        self._answers: dict[tuple[str | None, str], str] = {}
        for event in recording.events:
            if isinstance(event, UserAnswer) and (question := questions.get(event.question_id)) is not None:
                self._answers[question.tool_use_id, question.kind] = event.answer

    def first_difference(self) -> list[str]:
        """The first request that differs, as a sentence with a diff; empty if all are equal. Later ones follow from it."""
        for difference in self.provider.differences:
            diff = self.provider.diff(difference.seq, self._places)
            if diff:
                return [f"step {difference.step} sends a different request to the model:\n{diff}"]
        return []

    def make_agent(self, run: RecordedRun) -> AgentRuntime:
        agent = build_agent(
            replace(
                self._options, provider=self.provider, session_store=MemorySessionStore(), resume=None, mcp_servers={}
            )
        )
        gate = replace(permission_gate(agent.gate).forgetful(), user_answerer=self._answer, approver=None)
        # The agent's tools, with recorded results unless they run live, and the recorded tools of servers.
        results = self._recording.results
        own = [agent.tools.get(name) for name in agent.tools.names()]
        served = [
            RecordedTool(spec, results)
            for spec in run.steps[0].context.tools
            if str(spec["function"]["name"]).startswith("mcp__") and spec["function"]["name"] not in agent.tools
        ]
        return replace(
            agent,
            store=self._store,
            gate=gate,
            tools=ToolRegistry(
                [*(tool if self._is_live(tool) else _GivesWhatItGave(tool, results) for tool in own), *served]
            ),
            parts=(
                partial(RecordedSteps, replay=self, recorded=run),
                *without_parts(agent.parts, ServerTools, Compaction, Attachments),
            ),
            cost=lambda usage, model, tier=None: None,
            max_steps=len(run.steps) + 1,
        )

    def _is_live(self, tool: BareTool) -> bool:
        is_pure = isinstance(tool, FunctionTool) and tool.effect == "read"
        return is_pure or tool.is_answer or tool.name in _SESSION_TOOLS or tool.name in self._live_names

    async def _answer(self, question: UserQuestion) -> str:
        ended = self._recording.results.get(question.tool_use_id or "")
        if ended is not None and ended.error_message in (SAID_INSTEAD.not_started, SAID_INSTEAD.cut_short):
            raise RunStopped("waiting", "the recorded run waited here until another prompt arrived")
        return self._answers.get((question.tool_use_id, question.kind), "")

    def raise_recorded_error(self, use: ToolUse) -> None:
        """Raise the recorded error of a call that the runtime ended, not its tool or a hook, such as an interrupted one."""
        result = self._recording.results.get(use.tool_use_id)
        if result is not None and result.outcome in ("cancelled", "unknown"):
            recorded_outcome(result)

    def bring_reasons(self, step: RecordedStep) -> None:
        """The agent's own hooks and validators give their reasons again."""

    def left_by(self, run: RecordedRun) -> Sequence[Event]:
        # The agent's hooks and validators have acted in a run that was played; one without a request was not.
        return [event for event in run.trailing if _is_from_outside(event) or not run.steps]

    async def before_step(self, run: Run) -> None:
        """Replay the events that a person or the runtime added between steps; hooks and rules add theirs live."""
        if not self._steps or any(is_prompt(event) for event in self._steps[0].before):
            raise RunStopped("interrupted", "the recorded run stopped here")
        step = self._current = self._steps.pop(0)
        await self.bring([event for event in step.before if _is_from_outside(event)])
        self.provider.expect(step)


class _GivesWhatItGave(RecordedTool):
    """A tool that looks like the agent's own to the model, and returns the recorded results."""

    def __init__(self, tool: BareTool, results: Mapping[str, ToolResult]) -> None:
        self.name, self.description, self.input_schema = tool.name, tool.description, tool.input_schema
        self.effect, self.allowed_callers = tool.effect, tool.allowed_callers
        self._results = results


def _is_from_outside(event: Event) -> bool:
    """Whether a person or the runtime caused an event, and not a hook, rule or validator of the agent."""
    return not isinstance(event, UserMessage) or event.origin in ("user", "steering")


def _is_of_history(state: PartState) -> bool:
    return (state.part, state.data) == (HISTORY_LABELS.part, HISTORY_LABELS.data)


def _verdict(decision: PermissionDecision) -> str:
    by = f" by {decision.answered_by}" if decision.answered_by else ""
    return f"was {'allowed' if decision.allowed else 'refused'}{by} ({decision.reason})"


def _outputs(recorded: Iterable[Event], played: Iterable[Event]) -> list[str]:
    """Sentences about the calls that returned a different result, each with a diff of at most 60 lines.

    Denied calls are left out, because their verdicts are compared already.
    """
    before = {event.tool_use_id: event for event in recorded if isinstance(event, ToolResult)}
    differences = []
    for new in played:
        old = before.get(new.tool_use_id) if isinstance(new, ToolResult) else None
        if old is None or not isinstance(new, ToolResult):
            continue
        recorded_output, now = ([event.output, event.error_message] for event in (old, new))
        if dumps_json(recorded_output) != dumps_json(now) and old.outcome != "denied" and new.outcome != "denied":
            lines = unified_diff(_lines(recorded_output), _lines(now), "recorded", "now", lineterm="", n=1)
            diff = "\n".join(list(lines)[:60])
            differences.append(f"call {new.tool_use_id} returns a different result:\n{diff}")
    return differences


def _lines(values: Sequence[Any]) -> list[str]:
    return [line for value in values if value is not None for line in _short(value).splitlines()]


def _short(value: Any) -> str:
    return shortened(value if isinstance(value, str) else dumps_json(value), _MAX_SHOWN_CHARS)
