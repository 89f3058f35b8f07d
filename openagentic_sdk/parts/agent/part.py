"""The part that an `Agent` adds to its runs: dependencies, validation of input and output, message history, and handoffs.

Input guardrails run concurrently with the model; no call starts and no answer counts before all of them have finished. The
first that trips ends the run, without waiting for the model or the other guardrails, a subagent's run at its next answer.
Output guardrails check the final answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial
from typing import Any, Literal

from ...errors import ModelRetryError, OptionsError, ToolError
from ...events import (
    AssistantMessage,
    Event,
    ModelRequest,
    PartState,
    Result,
    StopReason,
    SystemNotice,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserMessage,
)
from ...ground.checks import shown
from ...ground.frozen import frozen, mutable
from ...ground.threads import ask_callable, call_guest, error_words, settled
from ...kernel.agent import Run
from ...kernel.lifetime import RunStopped
from ...kernel.model_step import Reply
from ...kernel.part import IncomingPrompt
from ...kernel.tool import Deps, Services, ToolContext
from ...sessions.closing import EndTexts, closing_events
from ...sessions.folds.features.untrusted import LABELS_STATE
from ...sessions.folds.requests import REFUSED
from ...sessions.rebuild import newest_standing, rebuild_messages, standing_events
from ...tools.base import Tool
from ...tools.labels import OWN_SESSION
from ...tools.schema import object_schema, string
from ...tools.session.task import Subagents
from ..custom import PackagePart
from ..final_answer import Repairs, StructuredOutput

# A function of (context, value), async or synchronous; synchronous code runs in a thread.
GuardrailCheck = Callable[[ToolContext[Any], Any], Any]
# Stored before a message history that holds more than prompts.
HISTORY_LABELS = PartState(LABELS_STATE, 1, {"untrusted": ["message_history"]})
# How a run ends only after its input guardrails have let the prompts pass.
_JUDGED = ("end", "handoff", "waiting", "blocked:output_guardrail", "blocked:stop")


@frozen
class Tripped:
    """The guardrail that stopped a run, and the reason."""

    kind: Literal["input", "output"]
    guardrail: str
    reason: str

    @property
    def stop_reason(self) -> StopReason:
        """The stop reason of the run."""
        return "blocked:input_guardrail" if self.kind == "input" else "blocked:output_guardrail"

    def __str__(self) -> str:
        return f"the {self.kind} guardrail {self.guardrail} stopped the run: {self.reason}"


@mutable
class AgentOutcome:
    """The outcome of a run besides its events: the typed output, a handoff, a tripped guardrail, and the number of events of
    a message history that it stored.
    """

    output: Any = None
    has_output: bool = False
    handoff: str | None = None
    tripped: Tripped | None = None
    history_length: int = 0


@frozen(kw_only=True)
class AgentRules:
    """An agent's rules for its runs.

    `runs_as` is the name of the subagent that the agent runs as, None for a caller's run. `may_be_none` permits validators
    to return None.

    `read` converts an answer, its text or, with a schema, its JSON value; it raises `ValueError` if the answer is invalid.
    `write` converts an output to that JSON value; it raises `ToolError` or `ValueError` if none fits.
    `outcome` receives the outcome of the run.
    """

    name: str | None = None
    runs_as: str | None = None
    deps: Any = None
    read: Callable[[Any], Any] = lambda value: value
    write: Callable[[Any], Any] = lambda value: value
    validators: Sequence[GuardrailCheck] = ()
    may_be_none: bool = True
    retries: int = 2
    input_guardrails: Sequence[GuardrailCheck] = ()
    output_guardrails: Sequence[GuardrailCheck] = ()
    history: Sequence[Event] = ()
    has_no_prompt: bool = False
    handoffs: Sequence[str] = ()
    outcome: AgentOutcome = field(default_factory=AgentOutcome)


class AgentPart(PackagePart):
    """A part that applies its agent's rules to one run; a run of another agent only receives the dependencies."""

    def __init__(self, run: Run, rules: AgentRules) -> None:
        super().__init__(run)
        self._rules = rules if run.agent.name == rules.runs_as else AgentRules(deps=rules.deps)
        self._outcome = self._rules.outcome
        self._guards: list[asyncio.Task[None]] = []
        self._tripped: Tripped | None = None
        self._handoff: str | None = None
        self._repairs = Repairs(run, self._rules.retries)

    def services(self) -> Mapping[type, object]:
        return {AgentPart: self, Deps: Deps(self._rules.deps)}

    def opening_events(self) -> Sequence[Event]:
        name = self._rules.name
        events: list[Event] = (
            [] if name is None else [SystemNotice("agent", f"this run is the agent {name!r}", {"agent": name})]
        )
        history = () if self._begun_with_history() else self._rules.history
        if any(not isinstance(event, UserMessage) for event in history):
            # Messages of models and tools are unverified claims; only the prompts are a person's words.
            events.append(HISTORY_LABELS)
        self._outcome.history_length = len(history)
        return [*events, *history]

    def _begun_with_history(self) -> bool:
        """Whether this run repeats one that began the session with the message history and died. Raises `OptionsError` for
        any other session that already has messages.
        """
        view, history = self.run.view, self._rules.history
        messages = view.conversation.messages() if history else ()
        if not messages:
            return False
        begun = rebuild_messages(history)
        is_repeated = self._rules.has_no_prompt or not any(isinstance(event, ModelRequest) for event in view.events)
        if not view.requests.is_due(self.run.request.request_id) or (is_repeated and messages[: len(begun)] == begun):
            return True
        raise OptionsError(
            f"message_history is for a new session, and {self.run.session_id!r} already has messages: remove it, or "
            "name another session"
        )

    async def begin(self) -> None:
        """Restore a handoff that an earlier process accepted but did not carry out before it died."""
        for event in newest_standing(self.run.view.events):
            # A message after a handoff shows that it was carried out; a run's end does not, unless it ends the turn.
            is_over = isinstance(event, Result) and event.stop_reason in ("end", *REFUSED)
            if is_over or isinstance(event, AssistantMessage | UserMessage):
                return
            if not isinstance(event, ToolResult) or event.outcome != "ok":
                continue
            record = self.run.view.calls.get(event.tool_use_id)
            if record is not None and record.use.name.startswith(HANDOFF):
                name = record.use.name.removeprefix(HANDOFF)
                self._handoff = name if name in self._rules.handoffs else None
                return

    async def settle(self, prompt_follows: bool) -> None:
        """Judge the prompts of an earlier run that ended before its guardrails did, and before anything of it continues."""
        calls = self.run.view.open_calls()
        if not self._rules.input_guardrails or (prompt_follows and not calls):
            return
        for text in _unjudged_prompts(standing_events(self.run.view.events)):
            await self._guard("input", self._rules.input_guardrails, text)
        if self._tripped is not None and prompt_follows:  # the new prompt is judged by itself
            await self.run.record(*closing_events(calls, (), str(self._tripped), EndTexts(str(self._tripped))))
            self._tripped = None
        await self._pass_input()

    async def fill_prompt(self, prompt: IncomingPrompt) -> None:
        self._repairs.count, self._handoff = 0, None
        if guardrails := self._rules.input_guardrails:
            of_run = asyncio.current_task()
            self._guards.append(asyncio.create_task(self._watch(guardrails, prompt.text, of_run)))

    async def before_step(self) -> None:
        if self._handoff is not None:
            self._outcome.handoff = self._handoff
            raise RunStopped("handoff", f"the agent {self._handoff!r} continues the session")

    async def after_answer(self, reply: Reply) -> None:
        await self._pass_input()

    async def may_end(self, reply: Reply) -> bool:
        await self._pass_input()
        rules, context = self._rules, self.context()
        structured = self.run.parts.services.find(StructuredOutput)
        try:
            output = rules.read(reply.text if structured is None else structured.value)
            for validator in rules.validators:
                output = await _ask(validator, context, output, "validator")
                if output is None and not rules.may_be_none:
                    raise OptionsError(f"the output validator {name_of(validator)} returned None: return the output")
        except OptionsError:  # a ValueError that the model cannot repair
            raise
        except (ModelRetryError, ValueError) as error:
            await self._send_back(error, self._repairs if structured is None else structured.repairs)
            return False
        await self._guard("output", rules.output_guardrails, output)
        if self._tripped is not None:
            self.run.view.last_text = ""  # a refused answer must not become the run's final text
            raise RunStopped(self._tripped.stop_reason, str(self._tripped))
        self._outcome.output, self._outcome.has_output = output, True
        # Whoever reads the result (a repeated request, an agent that uses this one, a server) gets what validators returned.
        if structured is None and isinstance(output, str):
            self.run.view.last_text = output
        elif structured is not None and rules.validators:
            with suppress(
                ToolError, ValueError
            ):  # it has no JSON form that fits the type: the model's answer is stored
                structured.replace(rules.write(output))
        return True

    async def end(self, ending: RunStopped) -> RunStopped:
        for guard in self._guards:
            guard.cancel()
        await settled(asyncio.gather(*self._guards, return_exceptions=True))
        if (tripped := self._tripped) is None:
            return ending
        self.run.view.last_text = ""
        self._outcome.tripped = tripped
        details = {"kind": tripped.kind, "guardrail": tripped.guardrail, "reason": tripped.reason}
        await self.run.record(SystemNotice("guardrail.tripped", str(tripped), details))
        return RunStopped(tripped.stop_reason, str(tripped))

    def context(self) -> ToolContext[Any]:
        """Create the context for validators and guardrails: the run's folders, session and services."""
        agent = self.run.agent
        return ToolContext(
            cwd=agent.cwd,
            project_dir=agent.project_dir,
            workspace_roots=agent.workspace_roots,
            session_id=self.run.session_id,
            session_dir=self.run.session_dir,
            agent_name=self._rules.name,
            services=self.run.parts.services,
        )

    def hand_over(self, name: str) -> None:
        """End this run before its next step so that another agent continues. Raises `ToolError` for a second handoff."""
        if self._handoff is not None:
            raise ToolError(f"the conversation has already been handed over to {self._handoff!r}")
        self._handoff = name

    async def _watch(self, guardrails: Sequence[GuardrailCheck], prompt: str, of_run: asyncio.Task[Any] | None) -> None:
        """Run the guardrails of a prompt concurrently with the model; as soon as one has tripped, interrupt the run.

        A subagent is not interrupted: `_pass_input` ends it at its next answer.
        """

        def interrupt() -> None:
            if self.run.depth == 0 and of_run is not None:
                self.run.lifetime.stopping.asked = "interrupt"
                of_run.cancel()

        await self._guard("input", guardrails, prompt, interrupt)

    async def _guard(
        self,
        kind: Literal["input", "output"],
        guardrails: Sequence[GuardrailCheck],
        value: Any,
        on_trip: Callable[[], None] = lambda: None,
    ) -> None:
        """Run these guardrails concurrently; the first that trips counts, calls `on_trip` and ends the others.

        A guardrail that raises, or returns neither None nor a string, counts as tripped.
        """

        async def ask(guardrail: GuardrailCheck) -> None:
            try:
                verdict = await _ask(guardrail, self.context(), value, "guardrail")
                if verdict is not None and not isinstance(verdict, str):
                    verdict = f"it returned {shown(verdict)}, and must return None or a reason"
            except Exception as error:  # noqa: BLE001 - a guardrail that fails must block: it has approved nothing
                verdict = f"it failed: {': '.join(error_words(error))}"
            if verdict and self._tripped is None:
                self._tripped = Tripped(kind, name_of(guardrail), verdict)
                on_trip()

        asked = [asyncio.create_task(ask(guardrail)) for guardrail in guardrails]
        try:
            for each in asyncio.as_completed(asked):
                await each
                if self._tripped is not None:
                    break
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _pass_input(self) -> None:
        """Wait for the input guardrails. Raises `RunStopped` if one has tripped."""
        while self._guards:
            # Cancelling the step must not cancel the guardrail: the run's end waits for it.
            await asyncio.shield(self._guards[0])
            self._guards.pop(0)
        if self._tripped is not None:
            raise RunStopped(self._tripped.stop_reason, str(self._tripped))

    async def _send_back(self, error: Exception, repairs: Repairs) -> None:
        """Send the model the reason why its answer was refused. Raises `StructuredOutputError` after too many attempts."""
        reason = error_words(error)[1]
        self.run.view.last_text = ""
        await repairs.send_back(f"Your answer cannot be used: {reason}. Answer again.", "was refused", reason)


def _unjudged_prompts(events: Sequence[Event]) -> list[str]:
    """The texts of the newest prompts after which no call started and no run ended of itself.

    Both happen only once the input guardrails have let the prompts pass.
    """
    texts: list[str] = []
    # Before the first request, answers and calls are those of a message history, which nobody judges.
    first = next((place for place, event in enumerate(events) if isinstance(event, ModelRequest)), len(events))
    for place, event in reversed([*enumerate(events)]):
        # A refused prompt ends the search behind a newer one: it was judged, and is not to be continued.
        ends = _JUDGED if not texts else (*_JUDGED, "blocked:input_guardrail")
        is_judged = isinstance(event, Result) and event.stop_reason in ends
        is_history = place < first and isinstance(event, AssistantMessage | ToolUse)
        if is_judged or is_history or isinstance(event, ToolStarted):
            break
        if isinstance(event, UserMessage) and event.origin in ("user", "steering"):
            texts.append(event.text)
    return texts


async def _ask(check: GuardrailCheck, context: ToolContext[Any], value: Any, kind: str) -> Any:
    name = f"{kind} {name_of(check)}"
    return await call_guest(partial(ask_callable, partial(check, context, value), f"openagentic-{name}"), name)


def name_of(function: Any) -> str:
    """A callable's name in the log: its `__name__`, without any enclosing `partial`, or else the name of its class."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


HANDOFF = "transfer_to_"


class HandoffTool(Tool):
    """A tool that hands the conversation over to another agent, which continues it in the same session."""

    labels = OWN_SESSION
    effect = "read"
    allowed_callers = ("direct",)
    input_schema = object_schema({}, additionalProperties=False)

    def __init__(self, agent: str, description: str) -> None:
        self.agent = agent
        self.name = f"{HANDOFF}{agent}"
        about = f" {description}" if description else ""
        self.description = f"Hand the conversation over to the agent {agent}.{about}"

    async def run(self, input: Mapping[str, Any], ctx: ToolContext[Any]) -> Any:
        ctx.services.get(AgentPart).hand_over(self.agent)
        return f"The agent {self.agent} continues."


class AgentTool(Tool):
    """A tool that asks another agent, which works in its own session and returns its answer."""

    labels = OWN_SESSION
    effect = "idempotent"  # a repeated call continues with the same subagent
    allowed_callers = ("direct",)
    input_schema = object_schema(
        {"prompt": string("The work, with all that the agent must know.", minLength=1)},
        required=["prompt"],
        additionalProperties=False,
    )

    def __init__(self, agent: Any, name: str, description: str) -> None:
        self.agent, self.name, self.description = agent, name, description

    @property
    def parallel(self) -> bool:
        return True

    async def run(self, input: Mapping[str, Any], ctx: ToolContext[Any]) -> Any:
        done = await ctx.services.get(Subagents).spawn(ctx.tool_use_id or "", self.name, input["prompt"])
        if done.stop_reason != "end":
            why = f": {done.error_message}" if done.error_message else ""
            raise ToolError(f"the agent {self.name} ended with the stop reason {done.stop_reason!r}{why}")
        return done.final_text


def bound_hook(hook: GuardrailCheck, deps: Any) -> Callable[[dict[str, Any]], Any]:
    """Bind a hook of (context, payload) to the dependencies; the result is a hook that accepts only the payload."""

    def call(payload: dict[str, Any]) -> Any:
        facts = payload.get("context") or {}
        context = ToolContext[Any](
            cwd=facts.get("cwd") or ".",
            project_dir=facts.get("project_dir"),
            session_id=facts.get("session_id"),
            tool_use_id=facts.get("tool_use_id"),
            agent_name=facts.get("agent_name"),
            services=Services({Deps: Deps(deps)}),
        )
        return hook(context, payload)

    return call
