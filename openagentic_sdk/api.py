"""The front door: `query()` yields the events of a run as they happen, `run()` returns its result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import field, fields
from reprlib import Repr
from typing import TYPE_CHECKING, Any

from .assemble import build_agent, check_session, open_agent, run_request
from .errors import EventLoopError, RunFailedError
from .events import AnyEvent, AssistantMessage, Result, StopReason
from .ground.frozen import frozen, values_of
from .ground.settings import advice_on
from .kernel.loop import MAX_TEXT_TWICE
from .kernel.task import RunTask, run_events
from .options import OpenAgenticOptions
from .parts.compaction import compact_closed_session
from .parts.record.folds.metrics import RunMetrics, run_metrics
from .prompts import Prompt, read_prompts


@frozen
class RunResult:
    """The result of a run. `events` are the stored events, and the results, of the run and its subagents.

    `stop_reason`, `usage`, `cost_usd`, `cached_share`, `cut_by` and the error fields are those of the `result` event, see
    `events.Result`. `metrics` are those of this run alone, including subagents; `steps` are its own model calls,
    `duration_s` is its length in seconds. `structured_output` is the answer as a JSON value, if a schema was given.
    """

    final_text: str
    session_id: str
    events: Sequence[AnyEvent]
    usage: Mapping[str, Any] | None
    cost_usd: float | None
    stop_reason: StopReason
    steps: int = 0
    duration_s: float | None = None
    error_type: str | None = None
    error_message: str | None = None
    structured_output: Any = None
    metrics: RunMetrics = field(default_factory=RunMetrics)
    cached_share: float | None = None
    cut_by: str | None = None

    def __repr__(self) -> str:
        """Show each field briefly: long values are truncated, events are counted."""
        short = Repr()
        short.maxstring, short.maxother, short.maxdict = 280, 280, 8
        # `asyncio.run` of Python 3.11 calls this at the end of each run.
        write = {"events": lambda events: f"<{len(events)} events>", "metrics": repr}
        values = {name: write.get(name, short.repr)(value) for name, value in values_of(self).items()}
        values = {name: value if len(value) <= 280 else f"{value[:277]}..." for name, value in values.items()}
        return f"{type(self).__name__}({', '.join([f'{name}={value}' for name, value in values.items()])})"

    @property
    def ok(self) -> bool:
        """Whether the run ended by itself, with a complete answer."""
        return self.stop_reason == "end" and self.cut_by is None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            advice = "" if name.startswith("_") else advice_on(name, self.__dataclass_fields__)
            raise AttributeError(f"a {type(self).__name__} has no attribute {name!r}{advice}")


def query(*, prompt: Prompt, options: OpenAgenticOptions) -> AsyncGenerator[AnyEvent, None]:
    """Run a prompt; yield its events, `system.init` first and `result` last, each once it is stored; deltas are not stored.

    `prompt` is a string, a list of parts (text, pictures, documents, sound: see `prompts`), or an async iterable of prompts
    that run one after the other on one session; None continues where the session stopped. The run waits while the caller
    handles an event. Closing the generator, leaving the loop or cancelling the task ends the run: its calls are cancelled
    and closed in the log, and the session can be resumed. An open question to a person stays open: the run then ends as
    `waiting`. The run always ends, whatever tools, hooks and providers do; whatever does not stop is abandoned. Tools, hooks
    and providers see the context variables of the caller of `query`, not of the consumer.

    Raises `OptionsError`, `SessionNotFoundError`, `SessionLockedError` and other `OpenAgentSdkError`s before the first
    event. After it, failures are a `result` whose `stop_reason` is `error`, with two exceptions: `StorageTimeoutError` for
    a store that no longer answers, and in tests `ScriptMismatchError` for a request that the scripted model did not expect.
    """

    async def start() -> RunTask:
        agent = await open_agent(options)
        request = run_request(options, agent)
        if prompt is None:
            await check_session(agent, request)
        return await RunTask.start(agent, request, read_prompts(prompt))

    return run_events(start)


async def run(*, prompt: Prompt, options: OpenAgenticOptions, raise_on_error: bool = False) -> RunResult:
    """Run a prompt to its end. Raises the errors of `query()`.

    With `raise_on_error`, a run whose result is not `ok` raises `RunFailedError`, which carries the result.
    """
    events: list[AnyEvent] = []
    result: Result | None = None
    async for event in query(prompt=prompt, options=options):
        # Deltas have no `seq`; a result has none either if it could not be stored.
        if event.seq is not None or isinstance(event, Result):
            events.append(event)
        if isinstance(event, Result) and event.parent_tool_use_id is None:
            result = event
    assert result is not None, "a run ends with a result"
    whole_result = run_result(events, result)
    if raise_on_error and not whole_result.ok:
        raise RunFailedError(whole_result)
    return whole_result


def run_result(events: Sequence[AnyEvent], result: Result) -> RunResult:
    """Build the result of a run from its stored events and its `result` event."""
    # A `result` event holds at most this much of the answer; the message before it holds all of it.
    texts = [event.text for event in events if isinstance(event, AssistantMessage) and event.parent_tool_use_id is None]
    is_cut = len(result.final_text) == MAX_TEXT_TWICE and bool(texts)
    names = {spec.name for spec in fields(RunResult)}
    values = {name: value for name, value in values_of(result).items() if name in names}
    values["final_text"] = texts[-1] if is_cut else result.final_text
    return RunResult(**values, events=events, metrics=run_metrics(events))


def run_sync(*, prompt: Prompt, options: OpenAgenticOptions, raise_on_error: bool = False) -> RunResult:
    """Call `run()` in a new event loop. Raises the errors of `run()`, and `EventLoopError` in a coroutine."""
    refuse_running_loop("run_sync()", "run(...)")
    return asyncio.run(run(prompt=prompt, options=options, raise_on_error=raise_on_error))


def refuse_running_loop(what: str, instead: str) -> None:
    """Raise `EventLoopError` in a coroutine: `what` needs its own event loop, and `instead` can be awaited."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise EventLoopError(f"{what} cannot be called while an event loop is running: write `await {instead}`")


async def compact_session(*, options: OpenAgenticOptions) -> bool:
    """Summarize the older part of the session `options.resume`; return False if nothing could be summarized.

    The log keeps everything, and a rewind to before the compaction undoes it. Raises the errors that `query()` raises before
    its first event, and `BudgetError` if a limit is used up.
    """
    agent = build_agent(options)
    return await compact_closed_session(agent, run_request(options, agent))
