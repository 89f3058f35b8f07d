"""Replay a recorded session through the real loop: the model's answers and the tools' results come from its log.

Nothing is sent and, unless live tools are requested, nothing is executed. The session is replayed in memory, run by run,
and every request of the loop is compared with the recorded one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

from ..errors import OptionsError, ReplayMismatchError
from ..events import Event, PartState, SessionCompacted, SessionRewound, ToolResult, ToolUse, UserMessage
from ..ground.clock import SystemClock
from ..ground.frozen import frozen
from ..hooks.engine import HookEngine
from ..hooks.models import HookDecision, HookMatcher
from ..kernel.agent import AgentRuntime, Run, RunRequest
from ..kernel.context import SystemPrompt
from ..kernel.lifetime import RunStopped
from ..kernel.part import Part
from ..kernel.prompt import Said
from ..kernel.registry import ToolRegistry
from ..kernel.task import RunTask
from ..kernel.tool import BareTool
from ..parts.claude.names import ClaudeNames
from ..parts.publishing import Publishing
from ..parts.shell_folder import ShellFolder
from ..parts.workflows.progress import WorkflowProgress
from ..permissions.gate import PermissionGate
from ..serialization import require_event
from ..sessions.folds.features.all import ALL_FOLDS
from ..sessions.follow import publish
from ..sessions.memory import MemorySessionStore
from ..testing.replay import (
    RecordedRun,
    RecordedStep,
    RecordedTool,
    Recording,
    ReplayProvider,
    RequestDifference,
    recorded_outcome,
)

# Positions count the events that change the view, so that a place after a rewind is not mistaken for one before it.
_CONVERSATION = frozenset(
    {
        "user.message",
        "assistant.message",
        "tool.use",
        "tool.result",
        "session.compacted",
        "session.rewound",
        "context.cleared",
    }
)


@frozen
class ReplayReport:
    """The result of a replay. `ok` is true if each of the `steps` recorded requests was made again and is equal.

    `compared` is the number of requests made again, and `events` are those of the replayed session. `error` is the reason
    if the replay stopped early or had nothing to compare.
    """

    steps: int
    compared: int
    differences: Sequence[RequestDifference] = ()
    error: str | None = None
    events: Sequence[Event] = field(default=(), repr=False)

    @property
    def ok(self) -> bool:
        return self.error is None and not self.differences and self.compared == self.steps


async def replay_events(
    events: Iterable[Event], *, strict: bool = True, live_tools: Iterable[BareTool] = ()
) -> ReplayReport:
    """Replay a log in memory and compare each request with the recorded one.

    `strict` stops at the first request that differs; otherwise all are compared. Of `live_tools`, those whose effect is
    `read` run for real, and their results become part of the next requests. Raises `OptionsError` for a workflow's log.
    """
    events = [require_event(event) for event in events]
    if WorkflowProgress.of(events).is_workflow:
        raise OptionsError(
            "a workflow does not call a model itself: replay its body against its log with `openagentic-sdk workflow "
            "replay MODULE:NAME ID` or Workflow.replay(), and replay the session of each of its agents separately"
        )
    recording = Recording(events)
    if not recording.step_count():
        return ReplayReport(0, 0, error="this log has no model.request events, so there is nothing to compare")
    replay = Replay(recording, strict, {tool.name: tool for tool in live_tools if tool.effect == "read"})
    error = None
    try:
        for run in recording.runs:
            await replay.play(run)
    except ReplayMismatchError as mismatch:
        error = str(mismatch)
    provider = replay.provider
    return ReplayReport(
        recording.step_count(), provider.compared, tuple(provider.differences), error, replay.replayed_events()
    )


class RecordedSteps(Part):
    """A part that records again, before each step, the messages, compactions and part states that preceded it in the log,
    and supplies recorded errors of calls.
    """

    def __init__(self, run: Run, replay: Replay, recorded: RecordedRun) -> None:
        super().__init__(run)
        self._replay = replay
        replay.enter(run, recorded)

    async def before_step(self) -> None:
        await self._replay.before_step(self.run)

    def read_call(self, use: ToolUse, tools: ToolRegistry) -> ToolUse:
        self._replay.raise_recorded_error(use)
        return use


class ReplayPart(RecordedSteps):
    """A `RecordedSteps` that also supplies the recorded system prompt."""

    def system_prompt(self) -> SystemPrompt | None:
        return self._replay.system_prompt()


class Replay:
    """The state of a replay: the steps to play, and the log replayed so far. `live` are the tools that run for real."""

    def __init__(self, recording: Recording, strict: bool, live: Mapping[str, BareTool]) -> None:
        self.provider = ReplayProvider(recording, strict=strict)
        self._recording = recording
        self._live = live
        self._store = MemorySessionStore()
        self._session_id: str | None = None
        self._steps: list[RecordedStep] = []
        self._current: RecordedStep | None = None
        self._run: Run | None = None

    def replayed_events(self) -> Sequence[Event]:
        """The log of the replayed session."""
        return [] if self._session_id is None else self._store.read_events(self._session_id)

    async def play(self, run: RecordedRun) -> None:
        """Play one recorded run through the loop, then append its trailing events to the replayed log.

        Raises `ReplayMismatchError` if the loop departs from the recording or, when strict, if a request differs.
        """
        self.append(run.history)
        if run.steps:
            self._steps = list(run.steps)
            self.provider.name = run.steps[0].context.provider
            # A run that resumed after an answer or a crash began without a prompt; its source may have given some later.
            if not any(map(is_prompt, run.steps[0].before)):
                self.bring_reasons(run.steps[0])
                await self._play(run, None)
            if any(is_prompt(event) for step in self._steps for event in step.before):
                await self._play(run, self._prompts(run))
        # Events after the last answer: those of a run that ended there, and those between two runs.
        self.append(self.left_by(run))

    async def _play(self, run: RecordedRun, prompts: AsyncIterator[Said] | None) -> None:
        """Play turns of a recorded run through the loop. Raises `ReplayMismatchError` as `play` does."""
        async with await RunTask.start(self.make_agent(run), RunRequest(resume=self._session_id), prompts) as task:
            while await task.next_event() is not None:
                pass
            result = await task.result()
        if result.error_type == ReplayMismatchError.__name__:
            raise ReplayMismatchError(result.error_message or "")

    def left_by(self, run: RecordedRun) -> Sequence[Event]:
        """The events behind the last request of a recorded run that its replay does not add by itself."""
        return run.trailing

    def append(self, events: Sequence[Event]) -> None:
        """Append recorded events to the replayed log between two runs."""
        for event in events:  # one by one: each may reference the position of the one before
            self._session_id = self._session_id or self._store.create_session()
            self._store.append_event(self._session_id, self._as_now(event))

    def bring_reasons(self, step: RecordedStep) -> None:
        """Append what precedes the first request of a run without a prompt, such as why a hook refused the answer before."""
        self.append(step.before)
        step.before = ()

    def enter(self, run: Run, recorded: RecordedRun) -> None:
        """Attach to `run`, which plays `recorded`, and show its model the same part of the session."""
        self._run, self._session_id = run, run.session_id
        if recorded.init.messages_from_seq is not None:
            run.view.conversation.cut(self._position_now(recorded.init.messages_from_seq))

    def make_agent(self, run: RecordedRun) -> AgentRuntime:
        """Create the agent that plays a recorded run, with the recorded model, prompt, tools and effects of hooks."""
        context = run.steps[0].context
        return AgentRuntime(
            provider=self.provider,
            model=context.model,
            tools=self._tools(run.steps[0]),
            hooks=HookEngine(
                before_model_call=[HookMatcher("recorded messages", hook=self._recorded_messages)]
                if any(step.request.messages is not None for step in run.steps)
                else (),
                stop=[HookMatcher("recorded continuation", hook=self._recorded_continuation)],
                enable_message_rewrite_hooks=True,
            ),
            # The permissions are recorded: a denied call has an error as its result, and nothing here takes effect.
            gate=PermissionGate(permission_mode="bypass"),
            store=self._store,
            clock=SystemClock(),
            cwd=run.init.cwd,
            project_dir=run.init.cwd,
            cost=lambda usage, model, tier=None: None,
            # One more than recorded, so that a run that goes on too long is reported as a difference and not as a
            # limit.
            max_steps=len(run.steps) + 1,
            parts=(
                partial(Publishing, tell=partial(publish, self._store)),
                partial(ReplayPart, replay=self, recorded=run),
                ClaudeNames,
                ShellFolder,
            ),
            folds=ALL_FOLDS,
        )

    def system_prompt(self) -> SystemPrompt:
        """The recorded system prompt of the current step, empty before the first one."""
        return SystemPrompt("" if self._current is None else self._current.context.system_prompt, ())

    def _tools(self, step: RecordedStep) -> ToolRegistry:
        recorded = [RecordedTool(spec, self._recording.results) for spec in step.context.tools]
        return ToolRegistry(self._live.get(tool.name, tool) for tool in recorded)

    async def _prompts(self, run: RecordedRun) -> AsyncIterator[Said]:
        """Yield the prompts that began turns; events recorded before a prompt are replayed before it."""
        while self._steps:
            before = self._steps[0].before
            position = next((index for index, event in enumerate(before) if is_prompt(event)), None)
            if position is None:
                raise ReplayMismatchError(
                    f"the replay ended its turn before step {self._steps[0].request.step}, which the recorded run reached"
                )
            await self.bring(before[:position])
            self._steps[0].before = before[position + 1 :]
            prompt = before[position]
            assert isinstance(prompt, UserMessage)
            yield Said(prompt.text, attachments=prompt.attachments)

    async def bring(self, events: Sequence[Event]) -> None:
        """Add these recorded events to the replayed log."""
        assert self._run is not None
        for event in events:
            await self._run.record(self._as_now(event))

    async def before_step(self, run: Run) -> None:
        """Replay the events between steps (steering, hooks' messages, compactions), and select the next answer.

        Raises `RunStopped` where the recorded run stopped.
        """
        if not self._steps or any(is_prompt(event) for event in self._steps[0].before):
            raise RunStopped("interrupted", "the recorded run stopped here")
        step = self._current = self._steps.pop(0)
        await self.bring(step.before)
        run.agent = replace(
            run.agent,
            model=step.context.model,
            tools=run.agent.tools if run.agent.tools.specs() == list(step.context.tools) else self._tools(step),
        )
        self.provider.expect(step)

    def raise_recorded_error(self, use: ToolUse) -> None:
        """Raise the recorded error of a call, if any: even an invalid call may have been cancelled instead."""
        result = self._recording.results.get(use.tool_use_id)
        if result is not None and result.is_error and use.name not in self._live:
            recorded_outcome(result)

    def _as_now(self, event: Event) -> Event:
        """A recorded event without `seq` and `ts`, its references to other events translated to the replayed log."""
        event = replace(event, seq=None, ts=None)
        if isinstance(event, SessionCompacted):
            return replace(event, up_to_seq=self._position_now(event.up_to_seq))
        if isinstance(event, SessionRewound):
            return replace(event, to_seq=self._position_now(event.to_seq))
        return event

    def _position_now(self, seq: int) -> int:
        """The `seq` up to which the replayed log has as many conversation events as the recording up to this `seq`.

        0 without any.
        """
        count = sum((event.seq or 0) <= seq for event in _conversation(self._recording.events))
        positions = [event.seq or 0 for event in _conversation(self.replayed_events())]
        return positions[min(count, len(positions)) - 1] if count and positions else 0

    def _recorded_continuation(self, payload: dict[str, Any]) -> HookDecision | None:
        """Send the model back to work if a stop hook or a repair did so in the recording, with the same message."""
        before = self._steps[0].before if self._steps else ()
        message = next((event for event in before if not isinstance(event, PartState)), None)
        if not isinstance(message, UserMessage) or is_prompt(message):
            return None
        self._steps[0].before = tuple(event for event in before if event is not message)
        return HookDecision(block=True, block_reason=message.text)

    def _recorded_messages(self, payload: dict[str, Any]) -> HookDecision | None:
        step = self._current
        messages = None if step is None else step.request.messages
        return None if messages is None else HookDecision(override_messages=messages)


def _conversation(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events that change the view, except the calls that code made: a replay does not run the code."""
    inside = set()
    for event in events:
        if isinstance(event, ToolUse) and event.is_inside:
            inside.add(event.tool_use_id)
        elif event.type in _CONVERSATION and not (isinstance(event, ToolResult) and event.tool_use_id in inside):
            yield event


def is_prompt(event: Event) -> bool:
    """Whether the event begins a turn."""
    return isinstance(event, UserMessage) and event.origin == "user"
