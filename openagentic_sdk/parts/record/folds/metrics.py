"""The activity and costs of runs, as a fold over their events: the same figures for every kind of run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ....events import Event, ModelResponse, ModelRetry, Result, ToolResult, ToolUse, UserMessage
from ....ground.frozen import changed, frozen
from ....sessions.folds.usage import add_cost, add_usage


@frozen
class RunMetrics:
    """The activity and costs of one or several runs, including their subagents.

    `steps` counts the model calls of the runs themselves, `messages` prompts and answers, `retries` repeated attempts at
    model calls, `failed_runs` runs that ended with an error. `usage` is `None` if no endpoint reported it, `cost_usd` None
    if the price of a call is unknown. `seconds` is the duration of the runs.
    """

    steps: int = 0
    messages: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    retries: int = 0
    failed_runs: int = 0
    usage: Mapping[str, Any] | None = None
    cost_usd: float | None = 0.0
    seconds: float = 0.0

    @property
    def errors(self) -> int:
        """Failed tool calls and failed runs."""
        return self.tool_errors + self.failed_runs

    @property
    def input_tokens(self) -> int:
        """The tokens of all prompts that endpoints reported."""
        return int((self.usage or {}).get("input_tokens") or 0)

    @property
    def output_tokens(self) -> int:
        """The tokens of all answers that endpoints reported."""
        return int((self.usage or {}).get("output_tokens") or 0)

    def after(self, event: Event) -> RunMetrics:
        """The figures including one more event."""
        if isinstance(event, UserMessage):
            return changed(self, messages=self.messages + 1)
        if isinstance(event, ToolUse):
            return changed(self, tool_calls=self.tool_calls + 1)
        if isinstance(event, ToolResult) and event.is_error:
            return changed(self, tool_errors=self.tool_errors + 1)
        if isinstance(event, ModelRetry):
            return changed(self, retries=self.retries + 1)
        if isinstance(event, ModelResponse):
            if not event.complete and event.usage is None:
                return changed(self, messages=self.messages + 1)
            return changed(
                self,
                messages=self.messages + 1,
                usage=add_usage(self.usage, event.usage),
                cost_usd=add_cost(self.cost_usd, event.cost_usd),
            )
        if isinstance(event, Result) and event.parent_tool_use_id is None:
            return changed(
                self,
                steps=self.steps + event.steps,
                failed_runs=self.failed_runs + (event.stop_reason == "error"),
                seconds=self.seconds + (event.duration_s or 0.0),
            )
        return self


def run_metrics(events: Iterable[Event]) -> RunMetrics:
    """The figures of all these events."""
    metrics = RunMetrics()
    for event in events:
        metrics = metrics.after(event)
    return metrics
