"""Hooks as the kernel calls them: their decisions, an agent's hooks, and those bound to one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from ..events import Event, HookEvent, StopReason, UserMessage
from ..ground.frozen import frozen
from .lifetime import RunStopped
from .part import Part

if TYPE_CHECKING:
    from .agent import AgentRuntime, Run

Permission = Literal["allow", "deny", "ask"]
Context = Mapping[str, Any] | None


@frozen
class HookDecision:
    """The decision of a hook. Fields that do not apply to its point are ignored and logged.

    `block` stops the pending action, for `block_reason`. The `override_*` fields replace a call's input, a result's output,
    the messages of a request, or the prompt. `action` is a word for the log. `additional_context` is text that the model
    receives with the prompt or the result. `permission` is `allow`, `deny` or `ask`; an allow never overrides a deny or ask
    rule. `stops` ends the whole run at any point; `system_message` is for the person, not for the model. `log_as` creates
    the event in place of `HookEvent`, from the same arguments; it may be a partial of a subclass with additional fields.
    """

    block: bool = False
    block_reason: str | None = None
    override_tool_input: Mapping[str, Any] | None = None
    override_tool_output: Any = None
    override_messages: Sequence[Mapping[str, Any]] | None = None
    override_prompt: str | None = None
    action: str | None = None
    additional_context: str | None = None
    permission: Permission | None = None
    stops: bool = False
    system_message: str | None = None
    log_as: Callable[..., HookEvent] = HookEvent


# The value of the point after the hooks, an event for each hook that ran, and their combined decision.
HookRun = tuple[Any, list[HookEvent], HookDecision | None]
PointOutcome = tuple[list[HookEvent], HookDecision | None]


class Hooks(Protocol):
    """The hooks of an agent. `hooks.engine.HookEngine` defines the points and payloads; this base changes nothing."""

    @property
    def are_any(self) -> bool: ...

    @property
    def post_tool_use(self) -> Sequence[object]: ...

    @property
    def post_tool_use_failure(self) -> Sequence[object]: ...

    async def run(self, point: str, payload: Mapping[str, Any], context: Context = None) -> HookRun:
        return None, [], None

    async def run_user_prompt_submit(self, *, prompt: str, context: Context = None) -> HookRun:
        return prompt, [], None

    async def run_before_model_call(self, *, messages: Sequence[Mapping[str, Any]], context: Context = None) -> HookRun:
        return messages, [], None

    async def run_after_model_call(self, *, output: Any, context: Context = None) -> HookRun:
        return output, [], None

    async def run_pre_tool_use(
        self, *, tool_name: str, tool_input: Mapping[str, Any], context: Context = None
    ) -> HookRun:
        return tool_input, [], None

    async def run_post_tool_use(
        self, *, tool_name: str, tool_output: Any, context: Context = None, tool_input: Mapping[str, Any] | None = None
    ) -> HookRun:
        return tool_output, [], None

    async def run_session_start(self, *, source: str = "startup", context: Context = None) -> PointOutcome:
        return [], None

    async def run_session_end(self, *, reason: str = "other", context: Context = None) -> PointOutcome:
        return [], None

    async def run_stop(
        self, *, stop_hook_active: bool = False, last_assistant_message: str = "", context: Context = None
    ) -> PointOutcome:
        return [], None


class NoHooks(Hooks):
    """The hooks of an agent that has none."""

    are_any = False
    post_tool_use = post_tool_use_failure = ()


class RunHooks:
    """The agent's hooks, bound to one run.

    `stopped_by`, if set, ends the run before its next step; `is_stop_active` is true after a stop hook has sent the model
    back to work in this turn.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.stopped_by: RunStopped | None = None
        self.is_stop_active = False

    def context(self, **more: Any) -> dict[str, Any]:
        """Return the context that hooks receive; only `more` if there are no hooks."""
        run = self._run
        if not run.agent.hooks.are_any:
            return more
        return {
            **run.whereabouts(**more),
            # A function, because few hooks call it, and it scans every event.
            "has_run": lambda name: any(isinstance(e, HookEvent) and e.name == name for e in run.view.events),
            **{name: value for part in run.parts.at(Part.tell_hooks) for name, value in part.tell_hooks().items()},
        }

    async def run(self, point: str, payload: Mapping[str, Any], **context: Any) -> PointOutcome:
        """Run and record the hooks of a point that has nothing to change; one that stops the run sets `stopped_by`."""
        _, events, decision = await self._run.agent.hooks.run(point, payload, self.context(**context))
        await self._run.record(*events)
        if decision is not None and decision.stops:
            reason = cast(StopReason, f"blocked:{point}")
            # The first hook that stops the run gives the reason.
            self.stopped_by = self.stopped_by or RunStopped(reason, decision.block_reason or "")
        return events, decision

    async def run_session_start(self, source: str) -> None:
        """Run the session_start hooks; their additions follow the next prompt. Raises `RunStopped` if one blocks."""
        run = self._run
        events, decision = await run.agent.hooks.run_session_start(source=source, context=self.context())
        await run.record(*events)
        if decision is None:
            return
        if decision.block or decision.stops:
            raise RunStopped("blocked:session_start", decision.block_reason or "")
        if decision.additional_context:
            run.notes.append(UserMessage(decision.additional_context, origin="hook"))


async def end_session(agent: AgentRuntime, session_id: str, reason: str) -> list[Event]:
    """Run the session_end hooks after the last run of a conversation; return the stored events."""
    context = {"session_id": session_id, "cwd": agent.cwd, "project_dir": agent.project_dir, "model": agent.model}
    events, _ = await agent.hooks.run_session_end(reason=reason, context=context)
    # The conversation's last run has released the session, so each append takes its lock anew.
    return [agent.store.append_event(session_id, event) for event in events]
