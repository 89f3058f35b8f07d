"""Explain a session's state: the request, how it ended, the event at which it went wrong, and how to continue.

A fold over the log and, if they can be read, over the logs of subagents. The newest run is judged by how it ended, and one
that came to its own end by failures in it that were not remedied later. Each kind of cause is a method of `_JudgedRun`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

from ..errors import (
    McpError,
    ModelRetryError,
    OptionsError,
    PartError,
    PermissionRuleError,
    ProviderError,
    StorageError,
    StructuredOutputError,
    WorkflowError,
)
from ..events import (
    AssistantMessage,
    ContextCleared,
    Event,
    HookEvent,
    McpServerChanged,
    ModelRequest,
    ModelResponse,
    ModelRetry,
    PermissionDecision,
    Result,
    SessionCompacted,
    SubagentFinished,
    SubagentStarted,
    SystemInit,
    SystemNotice,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from ..ground.frozen import changed, frozen
from ..ground.loose import as_mapping
from ..ground.patterns import regex
from ..ground.text import on_one_line, plural, shortened
from ..parts.masking import known_here, shown
from ..parts.record.folds.notes import describe_input
from ..parts.record.lifecycle import child_events
from ..permissions.hindsight.calls import PolicyJudge, call_context, recorded_calls
from ..permissions.offers import offered_rules
from ..permissions.subject import SESSION_TOOLS
from ..providers.named import BASE_URL_KEY, COMPATIBLE, LOCAL_SERVERS, PROVIDERS
from ..sessions.base import SessionStore
from ..sessions.folds.summary import total_tokens
from ..sessions.request import json_sha256
from ..tools.defaults import default_tools
from .tracebacks import read_traceback

MAX_LINES = 10
_MAX_CHARS, _MAX_PERIOD, _LEAST_REPEATS, _MAX_DEPTH = 300, 8, 3, 8
_LEAST_REPEATS_OF_A_GIVEN_UP_LOOP, _MOST_EARLIER_RUNS, _MOST_SUBAGENTS = 5, 8, 50
# The prefix of our own errors for refused requests (`ProviderHTTPError`): text from an endpoint can never precede it.
_ENDPOINT = regex(r"(https?://[^\s/@?#]+(?:/[^\s?#]*)?)/chat/completions answered ")
_URL = regex(r"https?://[!-~]{1,200}")
_WORD = regex(r"[\w][\w./@:-]*[\w]|\w")

# Returns the events of a subagent's session, given its parent's id and its own.
ReadEvents = Callable[[str, str], Sequence[Event]]


@frozen
class Cause:
    """The result of `find_cause`. `kind` is empty if nothing went wrong.

    `seq` is the event at which it went wrong, of type `event` in session `session_id`, which is a subagent's for a failure
    inside it. `ended` describes how the newest run ended, `why` is the cause as a sentence, `more` contains further
    lines, and `go_on` is the command that continues from there, in the folder `cwd` of the session.
    """

    session_id: str
    kind: str
    asked: str
    ended: str
    why: str
    seq: int | None = None
    event: str = ""
    more: tuple[str, ...] = ()
    go_on: tuple[str, ...] = ()
    cwd: str = ""

    def flags_outside(self, folder: str) -> tuple[str, ...]:
        """The flags with which the command continues in the session's folder, run from another one."""
        takes_it = self.go_on[1:2] in (("run",), ("chat",))
        return ("--cwd", self.cwd) if takes_it and self.cwd and self.cwd != folder else ()

    def lines(self, *flags: str) -> list[str]:
        """The cause in at most `MAX_LINES` lines; `flags` are added to the command."""
        where = [f"went wrong: event {self.seq}, {self.event}, of session {self.session_id}"] if self.kind else []
        begin = 3 if self.go_on[1:2] == ("workflow",) else 2
        command = (*self.go_on[:begin], *flags, *self.go_on[begin:])
        last = [f"to go on: {' '.join(map(_quoted, command))}"] if self.go_on else []
        lines = [f"asked: {self.asked}", f"ended: {self.ended}", *where, f"why: {self.why}"]
        lines += [f"  {line}" for line in self.more[: MAX_LINES - len(lines) - len(last)]]
        return [*map(on_one_line, lines), *last]


@frozen
class _CauseInRun:
    """A cause within one run; `settings`, by option name, and `prompt` form the command that continues."""

    kind: str
    event: Event
    why: str
    more: tuple[str, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()
    prompt: str = "Go on."
    inside: Cause | None = None
    command: tuple[str, ...] = ()


def why_session(store: SessionStore, session_id: str) -> Cause:
    """The cause of a stored session's state. Raises like the store."""
    read, is_held = partial(child_events, store), store.is_held(session_id)
    base_url = store.read_metadata(session_id)["metadata"].get(BASE_URL_KEY)
    return find_cause(session_id, store.read_events(session_id), read=read, is_held=is_held, base_url=base_url)


def find_cause(
    session_id: str,
    events: Iterable[Event],
    *,
    read: ReadEvents | None = None,
    is_held: bool | None = False,
    base_url: object = None,
    depth: int = 0,
) -> Cause:
    """The cause in a log. `read` returns the events of a subagent's session.

    `is_held` is true while a run holds the session, None if that is unknown. `base_url` is the endpoint's address that the
    session's metadata names.
    """
    redact = known_here()
    events = [shown(event, redact) for event in events]
    starts = [at for at, event in enumerate(events) if isinstance(event, SystemInit)]
    task = next((e.text for e in reversed(events) if isinstance(e, UserMessage) and e.origin == "user"), "")
    task = _short(task, 200) or "nothing yet"
    if not starts:
        return Cause(session_id, "", task, "no run began", "nothing went wrong: no run has begun")
    uses = {event.tool_use_id: event for event in events if isinstance(event, ToolUse)}
    newest = list(pairwise([*starts, len(events)]))[-1 - _MOST_EARLIER_RUNS :]
    runs = [_JudgedRun(session_id, events, bounds, uses, read, depth, base_url) for bounds in newest]
    last = runs[-1]
    if last.result is None and is_held is not False:
        return Cause(session_id, "", task, "it still runs", f"nothing went wrong so far: {last.doing}")
    cause = last.diagnose()
    if cause is None:
        earlier = next(((run, one) for run in reversed(runs[:-1]) if (one := run.diagnose()) is not None), None)
        more: tuple[str, ...] = ()
        if earlier is not None:
            more = (f"an earlier run ended as {earlier[0].ended}; event {earlier[1].event.seq}: {earlier[1].why}",)
        answer = _short(last.result.final_text, 120) if last.result is not None else ""
        why = f"nothing went wrong: it answered {answer!r}" if answer else "nothing went wrong"
        return Cause(session_id, "", task, last.ended, why, more=more)
    inside, at = cause.inside, cause.event
    where = (session_id, at.seq, at.type) if inside is None else (inside.session_id, inside.seq, inside.event)
    more, command = cause.more, cause.command
    if depth == 0 and command[1:2] in ((), ("chat",)):
        more = (*more[: MAX_LINES - 7], *_going_on_in_code(last, cause))
    if not command:
        dashes = ("--",) if cause.prompt.startswith("-") else ()
        command = ("openagentic-sdk", "run", "--resume", session_id, *last.model_flags)
        command = (*command, *_flags(cause.settings), *dashes, cause.prompt)
    place = last.init.cwd
    return Cause(where[0], cause.kind, task, last.ended, cause.why, *where[1:], more=more, go_on=command, cwd=place)


class _JudgedRun:
    """One run of a log: its events, and the queries that the causes need."""

    def __init__(
        self,
        session_id: str,
        log: Sequence[Event],
        bounds: tuple[int, int],
        uses: Mapping[str, ToolUse],
        read: ReadEvents | None,
        depth: int,
        base_url: object = None,
    ) -> None:
        self.session_id, self.events, self.uses = session_id, log[slice(*bounds)], uses
        self._whole, self._end, self._read, self._depth = log, bounds[1], read, depth
        self._base_url = base_url if isinstance(base_url, str) and _URL.fullmatch(base_url) else None
        self.init = next(e for e in self.events if isinstance(e, SystemInit))

    @cached_property
    def log(self) -> Sequence[Event]:
        """The events up to the end of this run."""
        return self._whole[: self._end]

    @cached_property
    def result(self) -> Result | None:
        """Its result; None for a run that has not ended."""
        return next((e for e in reversed(self.events) if isinstance(e, Result)), None)

    @property
    def ended(self) -> str:
        """How it ended, as a sentence."""
        result = self.result
        if result is None:
            return f"it did not end: the log stops at event {self.events[-1].seq}"
        cost = "" if result.cost_usd is None else f", ${result.cost_usd:.4f}"
        took = "" if result.duration_s is None else f", {result.duration_s:.0f} s"
        error = f": {_short(result.error_message)}" if result.error_message else ""
        return f"{result.stop_reason} after {plural(result.steps, 'step')}{took}{cost} (event {result.seq}){error}"

    @property
    def model_flags(self) -> tuple[str, ...]:
        """The flags that select its model and endpoint, if a command can name them."""
        init = self.init
        if init.provider not in PROVIDERS or not init.model or on_one_line(init.model) != init.model:
            return ()
        if init.provider != COMPATIBLE and (self._base_url is None or init.provider not in LOCAL_SERVERS):
            return ("--model", f"{init.provider}:{init.model}")
        refused = (_ENDPOINT.match(e.error_message or "") for e in self.of(ModelResponse))
        url = self._base_url or next((url_match.group(1) for url_match in refused if url_match), "URL")
        return ("--provider", init.provider, "--model", init.model, "--base-url", url)

    @property
    def doing(self) -> str:
        """Its last activity, while it has no result."""
        ended = {e.tool_use_id for e in self.of(ToolResult) if e.outcome not in ("cancelled", "unknown")}
        open_calls = [e.tool_use_id for e in self.of(ToolStarted) if e.tool_use_id not in ended]
        if open_calls:
            return f"{self.call(open_calls[0])} was running"
        last = next(self.of(ModelRequest, ModelResponse, ToolResult), None)
        if isinstance(last, ModelRequest) or (isinstance(last, ModelResponse) and not last.complete):
            return "the model was asked and had not answered"
        return "no call was open"

    def diagnose(self) -> _CauseInRun | None:
        """What went wrong in it, None if nothing did."""
        result = self.result
        if result is None:
            return self._dead()
        causes = _BY_END.get(result.stop_reason) or _BY_END[result.stop_reason.partition(":")[0]]
        return next((diagnosis for cause in causes if (diagnosis := cause(self, result)) is not None), None)

    def call(self, tool_use_id: str) -> str:
        """A short description of a call."""
        use = self.uses.get(tool_use_id)
        return tool_use_id if use is None else on_one_line(f"{use.name}({describe_input(use.name, use.input)})", 160)

    def of(self, *kinds: type[Event]) -> Iterator[Any]:
        """Iterate over the events of these types, newest first."""
        return (event for event in reversed(self.events) if isinstance(event, kinds))

    # --- by how it ended -------------------------------------------------------------------------------------------------

    def _dead(self) -> _CauseInRun:
        last = next(self.of(ToolStarted, ModelRequest, UserQuestion), self.events[-1])
        why = f"its process died, or could store no more, when {self.doing}"
        return _CauseInRun("dead", last, why, prompt="The process died: check what was done, and go on.")

    def loop(self, result: Result, least: int = _LEAST_REPEATS, *, with_results: bool = False) -> _CauseInRun | None:
        """The same calls repeated up to the end of the run; with `with_results`, also with the same results."""
        uses = [event for event in self.events if isinstance(event, ToolUse) and not event.is_inside]
        ends = {e.tool_use_id: e for e in self.events if isinstance(e, ToolResult)}
        keys: list[tuple[str, ...]] = [(use.name, json_sha256(dict(use.input))) for use in uses]
        if with_results:
            outputs = ((ends[use.tool_use_id].output if use.tool_use_id in ends else None) for use in uses)
            keys = [(*key, _text(output)) for key, output in zip(keys, outputs, strict=True)]
        for period in range(1, _MAX_PERIOD + 1):
            size = period
            while size < len(keys) and keys[-size - 1] == keys[-size - 1 + period]:
                size += 1
            times = size // period
            if times >= least:
                break
        else:
            return None
        names = ", ".join(dict.fromkeys(self.call(use.tool_use_id) for use in uses[-period:]))
        why = f"a loop of period {period}: the model made {plural(period, 'call')} {times} times in a row, "
        why += f"until {_ENDS.get(result.stop_reason, result.stop_reason)}"
        last = next((ends[use.tool_use_id] for use in reversed(uses[-period:]) if use.tool_use_id in ends), None)
        prompt = f"You made the same {plural(period, 'call')} {times} times. Do something else."
        cause = _CauseInRun("loop", uses[-size], why, (names,), _raised(result), prompt)
        if last is None or not _failed_call(last):
            gave = () if last is None else (f"the last of them gave {_short(_text(last.output), 160)}",)
            return changed(cause, more=(names, *gave))
        error = self._explained(last, 1)
        settings, prompt = (*error.settings, *cause.settings), error.prompt if error.settings else prompt
        return changed(cause, more=(names, error.why, *error.more), settings=settings, prompt=prompt)

    def given_up(self, result: Result) -> _CauseInRun | None:
        """A loop that the model ended with an answer instead of a new attempt."""
        loop = self.loop(result, _LEAST_REPEATS_OF_A_GIVEN_UP_LOOP, with_results=True)
        if loop is None:
            return None
        requests = sum(isinstance(e, ModelRequest) and (e.seq or 0) > (loop.event.seq or 0) for e in self.events)
        return (
            loop if requests >= _LEAST_REPEATS_OF_A_GIVEN_UP_LOOP else None
        )  # one answer with many calls is not a loop

    def refused_answers(self, result: Result) -> _CauseInRun | None:
        """Stop hooks that rejected every answer."""
        blocks = [e for e in self.events if isinstance(e, HookEvent) and e.hook_point == "stop" and _blocks(e)]
        if len(blocks) < 2:
            return None
        cause = self._hook(blocks[0])
        why = f"{cause.why}; it sent the answer back {len(blocks)} times"
        return changed(cause, why=why, settings=_raised(result))

    def limit(self, result: Result) -> _CauseInRun:
        """A limit, and what consumed most of it, down to the subagents."""
        is_in_dollars = result.stop_reason == "budget" and "max_cost_usd" in (result.error_message or "")
        unit = {"max_steps": "calls", "timeout": "s"}.get(result.stop_reason, "USD" if is_in_dollars else "tokens")
        spender, child = _spent(self, unit)
        at_end = f" when {self.doing}" if unit == "s" else ""
        why = f"{result.error_message or result.stop_reason}{at_end}{f'; most went to {spender}' if spender else ''}"
        more: tuple[str, ...] = ()
        if child is not None and self._read is not None and unit != "calls":
            events = self._read(self.session_id, child.child_session_id)
            start = next((at for at, event in enumerate(events) if isinstance(event, SystemInit)), None)
            if start is not None:
                uses = {e.tool_use_id: e for e in events if isinstance(e, ToolUse)}
                run = _JudgedRun(child.child_session_id, events, (start, len(events)), uses, None, 0)
                more = (f"in the subagent, session {child.child_session_id}: {_spent(run, unit)[0]}",)
        return _CauseInRun(result.stop_reason, result, why, more, settings=_raised(result))

    def stopped(self, result: Result) -> _CauseInRun:
        """A person, or a part written by the caller, ended it."""
        if result.error_message and result.stop_reason == "interrupted":
            return _CauseInRun("part", result, result.error_message)
        who = "its process was told to end" if result.stop_reason == "suspended" else "a person or the caller ended it"
        return _CauseInRun(result.stop_reason, result, f"{who}, when {self.doing}")

    def waits(self, result: Result) -> _CauseInRun | None:
        answered_ids = {e.question_id for e in self.log if isinstance(e, UserAnswer)}
        open_ones = [e for e in self.log if isinstance(e, UserQuestion) and e.question_id not in answered_ids]
        if not open_ones:
            return _CauseInRun("waiting", result, result.error_message or "it waits", command=self._workflow("show"))
        question = open_ones[-1]
        choices = f" ({', '.join(question.choices)})" if question.choices else ""
        asking = self.uses.get(question.tool_use_id or "")
        about = f", for {self.call(asking.tool_use_id)}" if asking is not None else ""
        why = f"it waits for a person's answer to {_short(question.prompt)!r}{choices}{about}"
        answer = question.choices[0] if question.choices else "..."
        # A prompt would replace the answer and end the call: `chat` asks the question again.
        command = ("openagentic-sdk", "chat", "--resume", self.session_id, *self.model_flags)
        if self._is_workflow:
            command = self._workflow("answer", answer)
        return _CauseInRun("waiting", question, why, prompt=answer, command=command)

    def blocked(self, result: Result) -> _CauseInRun:
        point = result.stop_reason.partition(":")[2]
        hook = next((e for e in self.of(HookEvent) if e.hook_point == point and _blocks(e)), None)
        if hook is not None:
            return self._hook(hook, result)
        return _CauseInRun("hook", result, result.error_message or result.stop_reason)

    def guardrail(self, result: Result) -> _CauseInRun | None:
        notice = next((e for e in self.of(SystemNotice) if e.code == "guardrail.tripped"), None)
        return None if notice is None else _CauseInRun("guardrail", notice, notice.message)

    def failed(self, result: Result) -> _CauseInRun:
        """An error ended it; the kind follows from its type."""
        kind = _ERROR_KINDS.get(result.error_type or "", "error")
        why = f"{result.error_type or 'an error'}: {_short(result.error_message)}"
        if kind == "vendor":
            retries = [e.reason for e in self.events if isinstance(e, ModelRetry)]
            more = tuple(
                f"after {len(retries)} more attempts; the first attempt: {_short(one, 160)}" for one in retries[:1]
            )
            return _CauseInRun(kind, next(self.of(ModelResponse), result), why, more)
        if kind == "output":
            repairs = [e for e in self.events if isinstance(e, UserMessage) and e.origin == "repair"]
            misfits = [e for e in self.events if isinstance(e, ToolResult) and self.name_of(e) == "final_answer"]
            answers = [_text(dict(self.uses[e.tool_use_id].input)) for e in misfits[-1:]]
            answers += [e.text for e in self.of(AssistantMessage) if e.text]
            more = (
                *(f"its last answer was {_short(answer, 160)!r}" for answer in answers[:1]),
                "the form of the answer is in no log: --output-schema FILE asks for it again",
            )
            return _CauseInRun(kind, next(iter([*repairs, *misfits]), result), why, more)
        step = self.trouble(result)
        if self._is_workflow and step is not None:
            again = f"the step runs again in: openagentic-sdk workflow run MODULE:NAME --session {self.session_id}"
            return changed(
                step,
                kind="workflow",
                why=_short(result.error_message),
                more=(*step.more, again),
                command=self._workflow("retry", step.event),
            )
        return step if step is not None and step.kind == kind else _CauseInRun(kind, result, why)

    # --- what failed in a run that came to its own end -------------------------------------------------------------------

    def cut(self, result: Result) -> _CauseInRun | None:
        """An incomplete answer, or a refusal by the vendor's model."""
        response = next((e for e in self.of(ModelResponse) if e.complete), None)
        message = next(self.of(AssistantMessage), None)
        if message is not None and message.refusal:
            return _CauseInRun("vendor", message, f"the model refused: {_short(message.text)}")
        if result.cut_by is None and response is not None and _is_empty(self, result, response):
            tokens = f", {total_tokens(response.usage):,} tokens of prompt and answer" if response.usage else ""
            why = f"the model's last answer is empty (finish reason {response.finish_reason!r}{tokens})"
            return _CauseInRun("empty", response, why, prompt="Your last answer was empty: answer in words.")
        if result.cut_by is None or response is None:
            return None
        kind = "cut" if result.cut_by == "length" else "vendor"
        return _CauseInRun(kind, response, f"the last answer is not whole: the endpoint ended it for {result.cut_by!r}")

    def server(self, result: Result, of_call: str = "") -> _CauseInRun | None:
        """An MCP server that was lost or never started; with `of_call`, the one that this tool belongs to."""
        states = {e.name: e for e in self.events if isinstance(e, McpServerChanged)}
        # A server that waits for consent is a failure only if its tool was called.
        failures = (e for e in states.values() if e.state in ("failed", "lost", *(["pending"] if of_call else [])))
        event = next((e for e in failures if not of_call or of_call.startswith(f"mcp__{e.name}__")), None)
        if event is None:
            return None
        state = {"lost": "was lost", "pending": "was not started"}.get(event.state, "could not be used")
        why = f"the MCP server {event.name!r} {state}: {_short(event.error_message) or 'it ended'}"
        return _CauseInRun("mcp", event, why)

    def _errors(self) -> list[ToolResult]:
        """The failed calls of tools that did not succeed later."""
        by_tool: dict[str, list[ToolResult]] = {}
        for event in (e for e in self.events if isinstance(e, ToolResult)):
            if _failed_call(event):
                by_tool.setdefault(self.name_of(event), []).append(event)
            else:
                by_tool.pop(self.name_of(event), None)
        return sorted((one for series in by_tool.values() for one in series), key=lambda event: event.seq or 0)

    def name_of(self, event: ToolResult) -> str:
        use = self.uses.get(event.tool_use_id)
        return "" if use is None else use.name

    def trouble(self, result: Result) -> _CauseInRun | None:
        """The last tool that failed and did not succeed later."""
        errors = self._errors()
        if not errors:
            return None
        series = [one for one in errors if self.name_of(one) == self.name_of(errors[-1])]
        cause = self.server(result, self.name_of(errors[-1])) or self._explained(series[0], len(series))
        others = [one for one in errors if self.name_of(one) != self.name_of(errors[-1])]
        if others:
            more = f"before that, {self.call(others[-1].tool_use_id)} failed (event {others[-1].seq}): {_words(others[-1])}"
            cause = changed(cause, more=(*cause.more, more))
        return cause

    def steady_errors(self, result: Result) -> _CauseInRun | None:
        """One tool that failed repeatedly up to the end of the run."""
        ends = [e for e in self.events if isinstance(e, ToolResult)][-_LEAST_REPEATS:]
        is_steady = (
            len(ends) == _LEAST_REPEATS and all(map(_failed_call, ends)) and len({*map(self.name_of, ends)}) == 1
        )
        cause = self.trouble(result) if is_steady else None
        return None if cause is None else changed(cause, settings=(*cause.settings, *_raised(result)))

    def _explained(self, event: ToolResult, times: int) -> _CauseInRun:
        use_id, again = event.tool_use_id, f", {times} times" if times > 1 else ""
        hook = next(
            (e for e in self.events if isinstance(e, HookEvent) and e.tool_use_id == use_id and _blocks(e)), None
        )
        if hook is not None and event.outcome == "denied":
            return self._hook(hook)
        decision = next((e for e in self.of(PermissionDecision) if e.tool_use_id == use_id), None)
        if event.outcome == "denied" and decision is not None:
            return self._denied(decision, again)
        started = next((e for e in self.of(SubagentStarted) if e.tool_use_id == use_id), None)
        child = None if started is None else self._child(started)
        if child is not None:
            return child
        if event.outcome == "unknown":
            return _CauseInRun("unknown", event, f"{self.call(use_id)} was started, and may or may not have run{again}")
        prompt = "What failed is mended: go on."
        why = f"{self.call(use_id)} failed{again}: {_words(event)}"
        return _CauseInRun("tool", event, why, _place(event), prompt=prompt)

    def _hook(self, hook: HookEvent, result: Result | None = None) -> _CauseInRun:
        reason = hook.error_message or hook.details.get("block_reason") or (result and result.error_message) or ""
        if not reason and hook.tool_use_id is not None:
            denied = (e for e in self.of(ToolResult) if e.tool_use_id == hook.tool_use_id)
            reason = next((e.error_message or "" for e in denied), "")
        if not reason:
            after = self.events[self.events.index(hook) :]
            reason = next((e.text for e in after if isinstance(e, UserMessage) and e.origin == "hook"), "")
        about = f" {self.call(hook.tool_use_id)}" if hook.tool_use_id is not None else ""
        did = "failed, which blocks" if hook.error_type else "blocked"
        why = f"the {hook.hook_point} hook {hook.name!r} {did}{about}: {_short(str(reason))}"
        return _CauseInRun("hook", hook, why)

    def _denied(self, decision: PermissionDecision, again: str) -> _CauseInRun:
        """A call that was not allowed, and the rules that would have allowed it."""
        rules = _letting(self.session_id, self.log, decision)
        why = f"{self.call(decision.tool_use_id)} was denied{again}: {_short(decision.reason)}"
        if rules:
            allowed, settings = f"allowed by: {', '.join(rules)}", (("allowed_tools", list(rules)),)
            return _CauseInRun("denied", decision, why, (allowed,), settings, "It is allowed now: go on.")
        by_rule = f"no allow rule lets it: the deny rule {decision.rule} ({decision.source}) is in force"
        more = (by_rule,) if decision.rule else ("no rule lets it: the mode or the person would have to",)
        return _CauseInRun("denied", decision, why, more, prompt="Go on in another way.")

    def _child(self, started: SubagentStarted) -> _CauseInRun | None:
        """The cause inside a subagent."""
        events: Sequence[Event] = ()
        if self._read is not None and self._depth < _MAX_DEPTH:
            events = self._read(self.session_id, started.child_session_id)
        cause = find_cause(started.child_session_id, events, read=self._read, depth=self._depth + 1)
        if not cause.kind:
            return None
        why = f"the subagent {started.name!r}, started at event {started.seq}: {cause.why}"
        return _CauseInRun("subagent", started, why, cause.more, inside=cause)

    def subagent(self, result: Result) -> _CauseInRun | None:
        """A subagent that returned an answer although it had failed inside."""
        started = {e.name: e for e in self.events if isinstance(e, SubagentStarted)}  # the last event of each name
        causes = (self._child(event) for event in list(reversed(started.values()))[:_MOST_SUBAGENTS])
        return next((one for one in causes if one is not None), None)

    def dropped(self, result: Result) -> _CauseInRun | None:
        """A compaction or clearing that removed what a later prompt asked for."""
        prompt = next((e for e in self.of(UserMessage) if e.origin == "user"), None)
        if prompt is None:
            return None
        before = [e for e in self.log if (e.seq or 0) < (prompt.seq or 0)]
        cuts = [e for e in before if isinstance(e, SessionCompacted | ContextCleared)]
        if not cuts:
            return None
        asked_words = _significant(prompt.text)
        removed_events, remaining_texts = _parted(before, cuts)
        in_view = _significant(" ".join(remaining_texts))
        best = max(
            _facts(removed_events, asked_words - in_view, asked_words | in_view), key=lambda fact: fact[0], default=None
        )
        behind = (e for e in self.log if (e.seq or 0) > (prompt.seq or 0))
        if best is None or best[3] & _significant(" ".join(map(_said, behind))):
            return None
        _, event, line, words = best
        cut = next(one for one in cuts if _drops(one, event, words))
        why = f"the compaction at event {cut.seq} dropped what event {prompt.seq} asks for: event {event.seq} had it"
        text = f"In this session it was said: {line!r}. Go on."
        return _CauseInRun("compaction", cut, why, (f"event {event.seq}: {_short(line)}",), prompt=_short(text))

    def fallback(self, result: Result) -> _CauseInRun | None:
        """An answer by a fallback model instead of the requested one."""
        retry = next((e for e in self.of(ModelRetry) if e.model is not None), None)
        if retry is None:
            return None
        why = f"{retry.model} answered in place of {self.init.model}, which failed: {_short(retry.reason)}"
        return _CauseInRun("fallback", retry, why)

    def command_failed(self, result: Result) -> _CauseInRun | None:
        """The last command of the run, if it failed."""
        end = next(self.of(ToolResult), None)
        output = as_mapping(None if end is None else end.output)
        code = output.get("exit_code")
        if end is None or not isinstance(code, int) or code == 0:
            return None
        output_text = "\n".join(str(output.get(name) or "") for name in ("stdout", "stderr"))
        lines = output_text.strip().splitlines()
        more = (_short(lines[-1].strip()),) if lines else ()
        how = f"ended with exit code {code}"
        if output.get("timed_out") is True:
            took = f" after {end.duration_s:.0f} s" if end.duration_s is not None else ""
            how = f"was ended by its timeout_s{took}: it takes longer, or waits for something"
        return _CauseInRun("tool", end, f"{self.call(end.tool_use_id)} {how}", more)

    # --- workflows -------------------------------------------------------------------------------------------------------

    @property
    def _is_workflow(self) -> bool:
        prompts = (e.text for e in self.log if isinstance(e, UserMessage))
        return next(prompts, "").startswith('{"workflow":')

    def _workflow(self, action: str, *words: Event | str) -> tuple[str, ...]:
        """A workflow command; a step is identified by its number."""
        arguments = [w if isinstance(w, str) else getattr(w, "tool_use_id", "").rpartition("step-")[2] for w in words]
        return ("openagentic-sdk", "workflow", action, self.session_id, *arguments) if self._is_workflow else ()


def _going_on_in_code(run: _JudgedRun, cause: _CauseInRun) -> tuple[str, ...]:
    """How to continue in the caller's program, if it has tools or a model that no command can name."""
    builtin_tools = SESSION_TOOLS | set(default_tools().names()) | _TOOLS_OF_OPTIONS
    own = [name for name in run.init.tools if name not in builtin_tools and not name.startswith("mcp__")]
    if not run.model_flags:
        own.append(f"the model {run.init.provider or ''}:{run.init.model or ''}")
    if not own:
        if run.model_flags[-1] == "URL":
            return ("the address of the endpoint is not in the log: put it in the place of URL",)
        return ()
    changes = "".join(
        f", {name}=[*options.{name}, {repr(value)[1:-1]}]" if isinstance(value, list) else f", {name}={value!r}"
        for name, value in cause.settings
    )
    options = f"replace(options, resume={run.session_id!r}{changes})"
    whose = f"in your program, which brings {_short(', '.join(own), 120)}"
    if isinstance(cause.event, UserQuestion):
        answer = f"await answer_question(store, {run.session_id!r}, {cause.event.question_id!r}, {cause.prompt!r})"
        return (f"{whose}: {answer}, then run_sync(prompt=None, options={options})",)
    return (f"{whose}: run_sync(prompt={cause.prompt!r}, options={options})",)


def _spent(run: _JudgedRun, unit: str) -> tuple[str, SubagentStarted | None]:
    """The largest consumers of calls, seconds, tokens or dollars as text, and the subagent that consumed most, if any."""
    weights: dict[str, float] = defaultdict(float)
    cost = 0.0
    children = {e.tool_use_id: e for e in run.events if isinstance(e, SubagentStarted)}
    names = {f"the subagent {e.name!r}": e for e in children.values()}
    for event in run.events:
        if unit == "calls":
            if isinstance(event, ToolUse):
                weights[event.name] += 1
        elif isinstance(event, ModelResponse):
            weights["the model"] += _weight(event, unit)
            cost = 0.0 if unit == "s" else _weight(event, unit)
        elif isinstance(event, SubagentFinished) and unit != "s":
            weights[f"the subagent {event.name!r}"] += _weight(event, unit)
        elif isinstance(event, ToolUse) and cost:  # the cost of an answer is attributed to the first of its calls
            weights[event.name] += cost
            weights["the model"] -= cost
            cost = 0.0
        elif isinstance(event, ToolResult) and unit == "s":
            child = children.get(event.tool_use_id)
            weights[f"the subagent {child.name!r}" if child else run.name_of(event)] += round(event.duration_s or 0)
    top = [
        (name, weight)
        for name, weight in sorted(weights.items(), key=lambda each: -each[1])[:3]
        if weight >= (0.00005 if unit == "USD" else 1)
    ]
    form = "{} {:.4f} {}" if unit == "USD" else "{} {:,.0f} {}"
    return ", ".join(form.format(*each, unit) for each in top), names.get(top[0][0]) if top else None


def _raised(result: Result) -> tuple[tuple[str, Any], ...]:
    """Settings with twice the room of the limit that ended the run."""
    if result.stop_reason == "max_steps":
        return (("max_steps", max(2 * result.steps, 50)),)
    if result.stop_reason == "timeout":
        return (("timeout_s", max(2 * int(result.duration_s or 0), 600)),)
    if result.stop_reason != "budget":
        return ()
    if "max_tokens" in (result.error_message or ""):
        return (("max_tokens", 2 * total_tokens(result.usage)),)
    cost_usd = result.cost_usd if "max_cost_usd" in (result.error_message or "") else None
    return (("max_cost_usd", round(2 * cost_usd, 4)),) if cost_usd else ()


def _is_empty(run: _JudgedRun, result: Result, response: ModelResponse) -> bool:
    """Whether the last answer has no text, call or value, and nothing after it ended the run."""
    if result.final_text.strip() or result.structured_output is not None:
        return False
    behind = [e for e in run.events if (e.seq or 0) > (response.seq or 0)]
    return not any(isinstance(e, ToolUse | HookEvent) for e in behind) and not any(map(_said, behind))


def _letting(session_id: str, log: Sequence[Event], decision: PermissionDecision) -> tuple[str, ...]:
    """The narrowest rules that would have allowed a call; empty if there are none."""
    calls = (one for one in recorded_calls(session_id, log) if one.tool_use_id == decision.tool_use_id)
    call = next(calls, None)
    if call is None or call.input is None or call.is_settled or decision.answered_by is not None:
        return ()
    try:
        subject = PolicyJudge().gate(call.policy).subject(call.tool, call.input, call_context(call))
        rules = offered_rules(subject)
        verdict = PolicyJudge(None, rules).verdict(call) if rules else None
    except (OptionsError, PermissionRuleError):
        return ()
    return rules if verdict is not None and verdict.outcome == "allow" else ()


# --- texts -----------------------------------------------------------------------------------------------------------------


def _quoted(word: str) -> str:
    """A word for a shell, always on one line."""
    if on_one_line(word) == word:
        return shlex.quote(word)
    return "$'" + on_one_line(word.replace("\\", "\\\\").replace("'", "\\'")) + "'"


def _flags(settings: Iterable[tuple[str, Any]]) -> Iterator[str]:
    for name, value in settings:
        if name not in _FLAGS:
            continue  # no command has a flag for it
        for each in value if isinstance(value, list) else (value,):
            yield from (_FLAGS[name], str(each))


def _weight(event: ModelResponse | SubagentFinished, unit: str) -> float:
    """The consumption of a limit by an answer or a subagent."""
    if unit == "s":
        return round(event.total_s or 0) if isinstance(event, ModelResponse) else 0
    return event.cost_usd or 0.0 if unit == "USD" else total_tokens(event.usage)


def _short(text: object, most: int = _MAX_CHARS) -> str:
    return on_one_line(shortened(" ".join(str(text or "").split()), most))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _words(event: ToolResult) -> str:
    message = _short(event.error_message) or event.outcome
    kind = event.error_type or ""
    return message if not kind or message.startswith(kind) else f"{kind}: {message}"


def _failed_call(event: ToolResult) -> bool:
    return event.is_error or event.outcome in ("error", "denied", "unknown")


def _blocks(event: HookEvent) -> bool:
    return event.action in ("block", "stop") or event.details.get("fails") == "closed"


def _place(event: ToolResult) -> tuple[str, ...]:
    """Where the exception of a call was raised, and what caused it; empty if unknown."""
    return tuple(map(_short, read_traceback(str((event.meta or {}).get("traceback") or ""))))


def _said(event: Event) -> str:
    if isinstance(event, UserMessage | AssistantMessage):
        return event.text
    return _text(event.output) if isinstance(event, ToolResult) else ""


def _significant(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text) if len(word) > 3 or any(map(str.isdigit, word))}


def _parted(log: Sequence[Event], cuts: Sequence[SessionCompacted | ContextCleared]) -> tuple[list[Event], list[str]]:
    """The events that the cuts removed from the model's view, and the texts that remained after the last one."""
    summary = next((cut for cut in reversed(cuts) if isinstance(cut, SessionCompacted)), None)
    cleared = {use_id: cut.seq or 0 for cut in cuts if isinstance(cut, ContextCleared) for use_id in cut.results}
    removed_events, texts = list[Event](), [] if summary is None else [summary.summary]
    for event in log:
        seq = event.seq or 0
        is_cleared = isinstance(event, ToolResult) and seq < cleared.get(event.tool_use_id, 0)
        if is_cleared or (summary is not None and seq <= summary.up_to_seq):
            removed_events.append(event)
        elif seq <= (cuts[-1].seq or 0):
            texts.append(_said(event))
    return removed_events, texts


def _drops(cut: SessionCompacted | ContextCleared, event: Event, words: set[str]) -> bool:
    """Whether a cut removed an event, and its summary lacks these words of it."""
    if isinstance(cut, SessionCompacted):
        return (event.seq or 0) <= cut.up_to_seq and not words & _significant(cut.summary)
    return isinstance(event, ToolResult) and event.tool_use_id in cut.results


def _facts(
    removed_events: Sequence[Event], asked_words: set[str], view_words: set[str]
) -> Iterator[tuple[int, Event, str, set[str]]]:
    """Iterate over sentences of dropped events that share words with the question and add new ones.

    Each comes with the number of shared words, its event and the new words.
    """
    lines = [
        (event, line) for event in removed_events for line in re.split(r"(?<=[.!?])\s|\n", _said(event)) if line.strip()
    ]
    for event, line in lines:
        words = _significant(line)
        marked = {
            w.casefold() for w in _WORD.findall(line)[1:] if any(map(str.isdigit, w)) or w[:1].isupper() or "-" in w
        }
        more = words - view_words
        is_fact = len(words & asked_words) >= 2 or (words & asked_words and marked & more)
        if is_fact and more:
            yield len(words & asked_words), event, line.strip(), (marked & more) or more


def _names(*kinds: type[BaseException]) -> Iterator[str]:
    for kind in kinds:
        yield kind.__name__
        yield from _names(*kind.__subclasses__())


# The kind of cause for each error type that ends a run.
_ERROR_KINDS: Mapping[str, str] = {
    **dict.fromkeys(_names(ProviderError), "vendor"),
    **dict.fromkeys(_names(StorageError), "store"),
    **dict.fromkeys(_names(McpError), "mcp"),
    **dict.fromkeys(_names(StructuredOutputError, ModelRetryError), "output"),
    **dict.fromkeys(_names(PartError), "part"),
    **dict.fromkeys(_names(WorkflowError), "workflow"),
}
_FLAGS: Mapping[str, str] = {
    "max_steps": "--max-steps",
    "timeout_s": "--timeout",
    "max_cost_usd": "--max-cost",
    "allowed_tools": "--allow",
}
# Tools of this package that an option enables.
_TOOLS_OF_OPTIONS = frozenset({"Code", "TaskOutput", "ToolSearch", "final_answer", "memory"})
_ENDS: Mapping[str, str] = {
    "end": "it gave up",
    "max_steps": "max_steps ended the run",
    "timeout": "timeout_s was over",
    "budget": "the budget was spent",
    "interrupted": "somebody ended the run",
}
_LIMITS = (_JudgedRun.loop, _JudgedRun.steady_errors, _JudgedRun.refused_answers, _JudgedRun.limit)
_AT_THE_END = (
    _JudgedRun.cut,
    _JudgedRun.trouble,
    _JudgedRun.given_up,
    _JudgedRun.subagent,
    _JudgedRun.dropped,
    _JudgedRun.fallback,
    _JudgedRun.command_failed,
    _JudgedRun.server,
)
_BY_END: Mapping[str, Sequence[Callable[[_JudgedRun, Result], _CauseInRun | None]]] = {
    "end": _AT_THE_END,
    "handoff": (),
    "max_steps": _LIMITS,
    "timeout": _LIMITS,
    "budget": _LIMITS,
    "interrupted": (_JudgedRun.loop, _JudgedRun.stopped),
    "suspended": (_JudgedRun.stopped,),
    "waiting": (_JudgedRun.waits,),
    "blocked": (_JudgedRun.guardrail, _JudgedRun.blocked),
    "error": (_JudgedRun.failed,),
}
