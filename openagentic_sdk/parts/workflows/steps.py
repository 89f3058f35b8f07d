"""The steps of a workflow: their form in the log, how they run, and how their results reach the body.

A step is a call: `tool.use` with the step's id, its name and its arguments, and a `tool.result`. Each further attempt is a
separate call, such as `4_2` after `4`.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ...errors import StepFailedError, StepUnknownError, WorkflowChangedError
from ...events import Effect, SessionForked, ToolResult, ToolUse
from ...ground.checks import Check, check_settings, number, one_of
from ...ground.frozen import changed, frozen
from ...ground.words import shortened
from ...kernel.tool import REPEATABLE, BareTool, ToolContext
from ...permissions.rules import EDIT_TOOLS, READ_TOOLS
from ...permissions.subject import NETWORK_TOOLS
from ...serialization import dumps_json
from ...sessions.closing import IN_DOUBT
from ...sessions.folds.view import CallRecord
from .body import FlowBody, Promise
from .fold import CANCELLED, END_OF_STEP, StepsFold
from .inbox import Delivered

# The name of every step in permission rules, besides its own; the workflow uses it to allow its steps without a question.
STEP_RULE = "workflow_step"
# The maximum number of calls of a repeatable step if each is started several times and yields no result.
MAX_CALLS = 10
Work = Callable[[Mapping[str, Any], ToolContext], Awaitable[Any]]


@frozen(kw_only=True)
class Retries:
    """The retries of a failed step: `attempts` in all, the first retry after `delay_s` seconds.

    Each further delay is `factor` times as long as the one before, up to `max_delay_s` seconds. `errors` are the names of
    the errors that are retried, such as `TimeoutError`; empty means all. A step that was denied is never retried
    automatically, nor is an unsafe one that may or may not have run.
    """

    attempts: int = 3
    delay_s: float = 1.0
    factor: float = 2.0
    max_delay_s: float = 300.0
    errors: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_settings(self, _RETRIES, "retry: ")

    def delay_behind(self, attempt: int, error_type: str | None) -> float | None:
        """Seconds to wait after this attempt, which failed; None if it is not retried."""
        if attempt >= self.attempts or (self.errors and error_type not in self.errors):
            return None
        return min(self.max_delay_s, self.delay_s * self.factor ** (attempt - 1))


_RETRIES: Mapping[str, Check] = {
    "attempts": number(1, whole=True, most=10_000),
    "delay_s": number(0),
    "factor": number(1, most=1_000),
    "max_delay_s": number(0),
}
MAX_NAME_CHARS = 200
# Permission rules name steps like tools; these characters have a meaning in rules.
_OF_RULES = frozenset("()[]*?|,")
_OF_TOOLS = READ_TOOLS | EDIT_TOOLS | NETWORK_TOOLS | {"Bash"}


def _name(name: Any) -> str | None:
    if isinstance(name, str) and name in _OF_TOOLS:
        return "a name that no built-in tool has, since permission rules read the input of such a tool"
    if isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARS and name.isprintable() and not _OF_RULES & {*name}:
        return None
    return f"a string of 1 to {MAX_NAME_CHARS} visible characters other than ( ) [ ] * ? | and commas, which rules use"


NAMES: Mapping[str, Check] = {
    "name": _name,
    "effect": one_of("read", "idempotent", "unsafe"),
}


@frozen(kw_only=True)
class StepPlan:
    """The definition of a step: `work` is executed, and `read` converts its JSON to the value for the body.

    `reconcile` determines the result of an unsafe step whose process died. The step does not run before `due`, in seconds
    since 1970; the first recorded value counts. A step that waits for an `event` runs when the event has arrived, or when
    it is due.
    """

    name: str
    input: Mapping[str, Any]
    work: Work
    effect: Effect = "idempotent"
    read: Callable[[Any], Any] = lambda value: value
    retry: Retries | None = None
    reconcile: Work | None = None
    due: float | None = None
    event: str | None = None


class Step(Promise[Any]):
    """One step of a body, created at `at` in the code. `record` is the record of its current attempt in the log."""

    def __init__(self, body: FlowBody, steps: StepLedger, number: str, plan: StepPlan, at: str) -> None:
        super().__init__(body)
        self.number, self.plan, self.at = number, plan, at
        self.attempt = 1
        self.record: CallRecord | None = None
        self.due = plan.due
        self.event: Delivered | None = None
        self._steps = steps
        self._has_begun = False

    @property
    def call_id(self) -> str:
        """The id of the call of the current attempt."""
        return self.number if self.attempt == 1 else f"{self.number}_{self.attempt}"

    def begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self.body.idle.pop(self, None)
            self._steps.take(self)

    def cancel(self) -> None:
        if not self.is_done and not self.is_cancelled:
            self.is_cancelled = True
            self._steps.drop(self)

    def try_again(self, due: float | None) -> None:
        """Create another attempt, which may already be in the log."""
        self.attempt, self.record, self.due = self.attempt + 1, None, due
        self._steps.take(self)

    def give(self, result: ToolResult, output: Any) -> None:
        """Deliver the result of this attempt to the body, or try again."""
        if self.is_cancelled:
            self.finish(error=CancelledError())
        elif result.outcome == "ok":
            try:
                self.finish(self.plan.read(output))
            except Exception as error:  # noqa: BLE001 - the caller's own types may raise anything
                text = f"step {self.number} ({self.plan.name}): its result cannot be read: {error}"
                self.finish(error=StepFailedError(text, step=self.number, error_type=type(error).__name__))
        # The body did not cancel it: its run was stopped, and the next one continues.
        elif result.outcome == "cancelled" and (self._may_repeat or self.has_not_started):
            self.try_again(self.recorded_due)
        elif result.error_type == SessionForked.__name__ and self._only_reads:
            self.try_again(self.recorded_due)  # a fork asks its own question
        elif result.error_message == IN_DOUBT and self._may_repeat and self.attempt < MAX_CALLS:
            self.try_again(self.recorded_due)  # its process died several times, perhaps for other reasons
        elif result.outcome in ("unknown", "cancelled"):
            self._fail(StepUnknownError, "was started, and its outcome is unknown", result)
        else:
            delay_s = None
            if self.plan.retry is not None and result.outcome == "error":
                delay_s = self.plan.retry.delay_behind(self.attempt, result.error_type)
            if delay_s is None:
                self._fail(StepFailedError, "failed" if result.outcome == "error" else "was denied", result)
            else:
                self.try_again(self._steps.now() + delay_s)

    @property
    def recorded_due(self) -> float | None:
        """The time before which this attempt does not run; None if it may run at once."""
        extras = None if self.record is None else self.record.use.extras
        return self.due if extras is None else extras.get("due")

    @property
    def has_not_started(self) -> bool:
        """Whether the log shows that this attempt was recorded but never started, and so had no effect."""
        return self.record is not None and self.record.started is None

    @property
    def _may_repeat(self) -> bool:
        started = None if self.record is None else self.record.started
        # Both the recorded and the present effect: code that was changed to `unsafe` must not repeat, nor may code that
        # no longer is.
        return started is not None and started.effect in REPEATABLE and self.plan.effect in REPEATABLE

    @property
    def _only_reads(self) -> bool:
        started = None if self.record is None else self.record.started
        return started is not None and started.effect == self.plan.effect == "read"

    def _fail(self, kind: type[StepFailedError], what: str, result: ToolResult) -> None:
        text = f"step {self.number} ({self.plan.name}) {what}: {result.error_message or result.output}"
        self.finish(error=kind(text, step=self.number, error_type=result.error_type))


def check_record(number: str, plan: StepPlan, at: str, record: CallRecord, masked: Callable[[Any], Any]) -> None:
    """Compare a newly created step with the record of its number in the log. Raises `WorkflowChangedError`."""
    use = record.use
    # The log contains the masked input, and the body creates the step with the secret itself.
    if use.name == plan.name and (use.input == plan.input or use.input == masked(plan.input)):
        return
    recorded_step, now = _shown(use.name, use.input, (use.extras or {}).get("at")), _shown(plan.name, plan.input, at)
    raise WorkflowChangedError(
        f"the workflow's code differs from the code that wrote this log: its step {number} was {recorded_step} and is now "
        f'{now}. Put new code under `if flow.version("..."):` and keep the old code in the other branch, or start a new '
        "session",
        step=number,
    )


def _shown(name: str, input: Mapping[str, Any], at: str | None) -> str:
    return f"{name}({shortened(dumps_json(dict(input))[1:-1], 200)})" + (f" at {at}" if at else "")


def check_made(steps: StepsFold, body_steps: Mapping[str, str]) -> None:
    """Compare the steps in the log with those that the body has created, given with their places in the code.

    Raises `WorkflowChangedError` for the first step in the log that the body no longer creates.
    """
    for call_id in steps.ids():
        number = call_id.partition("_")[0]
        # A body may stop calling `version` once no session needs the old branch; a cancellation is not a step of the body.
        if number in body_steps or call_id == CANCELLED or "v-" in number:
            continue
        record = steps.find(call_id)
        assert record is not None, "the id is one of ids()"
        use, branch = record.use, number.rpartition("-")[0]
        event = str(use.input.get("event", ""))
        if use.name == "wait_for" and event.startswith(END_OF_STEP) and steps.is_open(event.removeprefix(END_OF_STEP)):
            continue  # the body waits for the end of that step's run once the step, which is repeated, has enqueued it
        before = [other for other in body_steps if other.rpartition("-")[0] == branch]
        position = (
            f"after step {before[-1]} at {body_steps[before[-1]]}" if before else "from the beginning of its branch"
        )
        raise WorkflowChangedError(
            f"the workflow's code differs from the code that wrote this log: its step {number} was "
            f"{_shown(use.name, use.input, (use.extras or {}).get('at'))} and is no longer made, {position}. "
            'Keep it where `flow.version("...")` is False, or start a new session. If it followed the failure of an '
            "earlier step "
            "that was retried, rewind the session to before that failure",
            step=number,
        )


class KnownSteps:
    """A service for steps that must not run: a recording provides their results."""

    def has(self, name: str, input: Mapping[str, Any]) -> bool:
        """Whether there is a recorded result for this step."""
        raise NotImplementedError

    def why_stopped(self) -> str | None:
        """The reason why the run ends now, before another step; None if it continues."""
        raise NotImplementedError


class StepLedger:
    """The interface through which a step is looked up in the log, begun and ended."""

    def take(self, step: Step) -> None:
        """Find the record of the step's current attempt: if it has ended, deliver it in its turn, otherwise begin it."""
        raise NotImplementedError

    def now(self) -> float:
        """The time, in seconds since 1970."""
        raise NotImplementedError

    def drop(self, step: Step) -> None:
        """End a step whose result is no longer awaited."""
        raise NotImplementedError


class StepTool(BareTool):
    """A step's function as the tool of its call."""

    def __init__(self, name: str, effect: Effect, step_of: Callable[[str], Step]) -> None:
        self.name, self.effect = name, effect
        self.description = f"The step {name} of a workflow."
        self.input_schema = {"type": "object"}
        self._step_of = step_of

    async def reconcile(self, call: ToolUse, ctx: ToolContext) -> Any | None:
        plan = self._step_of(call.tool_use_id).plan
        return None if plan.reconcile is None else await plan.reconcile(plan.input, ctx)

    def rule_names(self, input: Mapping[str, Any]) -> tuple[str, ...]:
        return (STEP_RULE,)

    def check_input(self, input: Mapping[str, Any], name: str = "the arguments") -> Mapping[str, Any]:
        return input

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        step = self._step_of(ctx.tool_use_id or "")
        # The same key for each attempt, because one that failed, or whose process died, may have taken effect.
        return await step.plan.work(input, changed(ctx, idempotency_key=f"{ctx.session_id}:{step.number}"))
