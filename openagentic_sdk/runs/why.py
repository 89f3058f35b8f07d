"""Why a session stands where it does: what was asked, how it ended, the event at which it went wrong, and how to go on.

A fold over the log alone, and over those of its subagents where they can be read. The newest run is judged by how it ended,
and one that came to its own end by what failed in it and was not made good. Each kind of cause is a method of `_JudgedRun`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice, pairwise
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
from ..parts.masking import shown
from ..parts.record.folds.notes import describe_input
from ..parts.record.lifecycle import child_events
from ..permissions.hindsight.calls import PolicyJudge, call_context, recorded_calls
from ..permissions.offers import offered_rules
from ..providers.named import PROVIDERS
from ..sessions.base import SessionStore
from ..sessions.folds.summary import total_tokens
from ..sessions.request import json_sha256

MAX_LINES = 10
_MAX_CHARS, _MAX_PERIOD, _LEAST_REPEATS, _MAX_DEPTH = 300, 8, 3, 8
_FRAME = regex(r'  File "([^"\n]+)", line (\d+)(?:, in ([^\n]+))?(?:\n    ([^\n]*))?')
_LIBRARY = regex(r"/lib/python3|/site-packages/|^<frozen ")
_WORD = regex(r"[\w][\w./@:-]*[\w]|\w")

# The events of a subagent's session, by its parent's id and its own.
Read = Callable[[str, str], Sequence[Event]]


@frozen
class Cause:
    """What `find_cause` found. `kind` is empty when nothing went wrong; `seq` is the event at which it went wrong, a
    `event` of session `session_id`, which is that of a subagent for a failure inside of one.

    `ended` says how the newest run ended, `why` is the cause in a sentence, `more` are further lines, `go_on` is the command
    that goes on from there.
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

    def lines(self, *flags: str) -> list[str]:
        """The cause in at most `MAX_LINES` lines; `flags` are added to the command."""
        where = [f"went wrong: event {self.seq}, {self.event}, of session {self.session_id}"] if self.kind else []
        command = [*self.go_on[:-1], *flags, *self.go_on[-1:]] if self.go_on[1:2] == ("run",) else self.go_on
        last = [f"to go on: {shlex.join(command)}"] if self.go_on else []
        lines = [f"asked: {self.asked}", f"ended: {self.ended}", *where, f"why: {self.why}"]
        return [*lines, *(f"  {line}" for line in self.more[: MAX_LINES - len(lines) - len(last)]), *last]


@frozen
class _CauseInRun:
    """A cause within one run; `flags` and `prompt` make the command that goes on."""

    kind: str
    event: Event
    why: str
    more: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    prompt: str = "Go on."
    inside: Cause | None = None
    command: tuple[str, ...] = ()


def why_session(store: SessionStore, session_id: str) -> Cause:
    """Why the session of this store stands where it does. Raises what the store raises."""
    read, is_held = partial(child_events, store), store.is_held(session_id)
    return find_cause(session_id, store.read_events(session_id), read=read, is_held=is_held)


def find_cause(
    session_id: str, events: Iterable[Event], *, read: Read | None = None, is_held: bool | None = False, depth: int = 0
) -> Cause:
    """The cause in a log. `read` gives the events of a subagent's session; `is_held` is true while a run goes on, and None
    where nobody can tell."""
    events = [shown(event) for event in events]
    starts = [at for at, event in enumerate(events) if isinstance(event, SystemInit)]
    asked = next((e.text for e in reversed(events) if isinstance(e, UserMessage) and e.origin == "user"), "")
    asked = _short(asked, 200) or "nothing yet"
    if not starts:
        return Cause(session_id, "", asked, "no run began", "nothing went wrong: no run has begun")
    bounds = [*starts, len(events)]
    runs = [_JudgedRun(session_id, events, a, b, read, depth) for a, b in pairwise(bounds)]
    last = runs[-1]
    if last.result is None and is_held is not False:
        return Cause(session_id, "", asked, "it still runs", f"nothing went wrong so far: {last.doing}")
    found = last.diagnose()
    if found is None:
        earlier = next(((run, one) for run in reversed(runs[:-1]) if (one := run.diagnose()) is not None), None)
        more: tuple[str, ...] = ()
        if earlier is not None:
            more = (f"an earlier run ended as {earlier[0].ended}; event {earlier[1].event.seq}: {earlier[1].why}",)
        answer = _short(last.result.final_text, 120) if last.result is not None else ""
        why = f"nothing went wrong: it answered {answer!r}" if answer else "nothing went wrong"
        return Cause(session_id, "", asked, last.ended, why, more=more)
    inside, at = found.inside, found.event
    go_on = ("openagentic-sdk", "run", "--resume", session_id, *last.model_flags, *found.flags, found.prompt)
    where = (session_id, at.seq, at.type) if inside is None else (inside.session_id, inside.seq, inside.event)
    return Cause(
        where[0], found.kind, asked, last.ended, found.why, *where[1:], more=found.more, go_on=found.command or go_on
    )


class _JudgedRun:
    """One run of a log: its events, and the questions that the causes ask of them."""

    def __init__(
        self, session_id: str, log: Sequence[Event], start: int, end: int, read: Read | None, depth: int
    ) -> None:
        self.session_id, self.log, self.events = session_id, log[:end], log[start:end]
        self._read, self._depth = read, depth
        self.init = next(e for e in self.events if isinstance(e, SystemInit))
        self.uses = {e.tool_use_id: e for e in self.log if isinstance(e, ToolUse)}

    @cached_property
    def result(self) -> Result | None:
        """How it ended; None for a run that has not."""
        return next((e for e in reversed(self.events) if isinstance(e, Result)), None)

    @property
    def ended(self) -> str:
        """How it ended, in words."""
        result = self.result
        if result is None:
            return f"it did not end: the log stops at event {self.events[-1].seq}"
        cost = "" if result.cost_usd is None else f", ${result.cost_usd:.4f}"
        took = "" if result.duration_s is None else f", {result.duration_s:.0f} s"
        said = f": {_short(result.error_message)}" if result.error_message else ""
        return f"{result.stop_reason} behind {plural(result.steps, 'step')}{took}{cost} (event {result.seq}){said}"

    @property
    def model_flags(self) -> tuple[str, ...]:
        """The model that was asked, where a command can name it."""
        init = self.init
        is_named = init.provider in PROVIDERS and init.model
        return ("--model", f"{init.provider}:{init.model}") if is_named else ()

    @property
    def doing(self) -> str:
        """What it did last, while it had no result."""
        ended = {e.tool_use_id for e in self.of(ToolResult) if e.outcome not in ("cancelled", "unknown")}
        open_calls = [e.tool_use_id for e in self.of(ToolStarted) if e.tool_use_id not in ended]
        if open_calls:
            return f"{self.call(open_calls[0])} was running"
        last = next(self.of(ModelRequest, ModelResponse, ToolResult), None)
        if isinstance(last, ModelRequest) or (isinstance(last, ModelResponse) and not last.complete):
            return "the model was asked and had not answered"
        return "no call was open"

    def diagnose(self) -> _CauseInRun | None:
        """What went wrong in it, None for nothing."""
        result = self.result
        if result is None:
            return self._dead()
        causes = _BY_END.get(result.stop_reason) or _BY_END[result.stop_reason.partition(":")[0]]
        return next((found for cause in causes if (found := cause(self, result)) is not None), None)

    def call(self, tool_use_id: str) -> str:
        """A call in a few words."""
        use = self.uses.get(tool_use_id)
        return tool_use_id if use is None else on_one_line(f"{use.name}({describe_input(use.name, use.input)})", 160)

    def of(self, *kinds: type[Event]) -> Iterator[Any]:
        """The events of these kinds, the newest first."""
        return (event for event in reversed(self.events) if isinstance(event, kinds))

    # --- by how it ended -------------------------------------------------------------------------------------------------

    def _dead(self) -> _CauseInRun:
        last = next(self.of(ToolStarted, ModelRequest, UserQuestion), self.events[-1])
        why = f"its process died, or could store no more, when {self.doing}"
        return _CauseInRun("dead", last, why, prompt="The process died: check what was done, and go on.")

    def loop(self, result: Result) -> _CauseInRun | None:
        """The same calls over and over, up to the end of the run."""
        uses = [event for event in self.events if isinstance(event, ToolUse) and not event.is_inside]
        keys = [(use.name, json_sha256(dict(use.input))) for use in uses]
        for period in range(1, _MAX_PERIOD + 1):
            size = period
            while size < len(keys) and keys[-size - 1] == keys[-size - 1 + period]:
                size += 1
            times = size // period
            if times >= _LEAST_REPEATS:
                break
        else:
            return None
        names = ", ".join(dict.fromkeys(self.call(use.tool_use_id) for use in uses[-period:]))
        said = f"a loop of period {period}: the model made {plural(period, 'call')} {times} times in a row"
        ends = {e.tool_use_id: e for e in self.events if isinstance(e, ToolResult)}
        last = next((ends[use.tool_use_id] for use in reversed(uses[-period:]) if use.tool_use_id in ends), None)
        more: tuple[str, ...] = () if last is None else (f"the last of them gave {_short(_text(last.output), 160)}",)
        if last is not None and last.is_error:
            more = (_words(last), *_place(last))
        why = f"{said}, until {_ENDS.get(result.stop_reason, result.stop_reason)}"
        prompt = f"You made the same {plural(period, 'call')} {times} times. Do something else."
        return _CauseInRun("loop", uses[-size], why, (names, *more), self._raised(result), prompt)

    def refused_answers(self, result: Result) -> _CauseInRun | None:
        """Stop hooks that sent every answer back."""
        blocks = [e for e in self.events if isinstance(e, HookEvent) and e.hook_point == "stop" and _blocks(e)]
        if len(blocks) < 2:
            return None
        found = self._hook(blocks[0])
        why = f"{found.why}; it sent the answer back {len(blocks)} times"
        return changed(found, why=why, flags=self._raised(result))

    def limit(self, result: Result) -> _CauseInRun:
        """A limit, and what took most of it."""
        weights, unit, calls = Counter[str](), "tokens", 0.0
        if result.stop_reason == "max_steps":
            weights, unit = Counter(event.name for event in self.events if isinstance(event, ToolUse)), "calls"
        elif result.stop_reason == "timeout":
            unit = "s"
        for event in self.events if unit != "calls" else ():
            if isinstance(event, ModelResponse):
                weights["the model"] += round(event.total_s or 0) if unit == "s" else total_tokens(event.usage)
                calls = 0.0 if unit == "s" else total_tokens(event.usage)
            elif isinstance(event, ToolUse) and calls:  # an answer is paid by the first of its calls
                weights.update({event.name: int(calls), "the model": -int(calls)})
                calls = 0.0
            elif isinstance(event, ToolResult) and unit == "s":
                weights[self._name(event)] += round(event.duration_s or 0)
        told = ", ".join(f"{name} {weight:,} {unit}" for name, weight in weights.most_common(3) if weight >= 1)
        at_end = f" when {self.doing}" if unit == "s" else ""
        why = f"{result.error_message or result.stop_reason}{at_end}{f'; most went to {told}' if told else ''}"
        return _CauseInRun(result.stop_reason, result, why, flags=self._raised(result))

    def _raised(self, result: Result) -> tuple[str, ...]:
        """The flags that give the next run more room than the limit that ended this one."""
        if result.stop_reason == "max_steps":
            return ("--max-steps", str(max(2 * result.steps, 50)))
        if result.stop_reason == "timeout":
            return ("--timeout", str(max(2 * int(result.duration_s or 0), 600)))
        return ()

    def stopped(self, result: Result) -> _CauseInRun:
        """Somebody, or a part of the caller's own, ended it."""
        if result.error_message and result.stop_reason == "interrupted":
            return _CauseInRun("part", result, result.error_message)
        who = "its process was told to end" if result.stop_reason == "suspended" else "a person or the caller ended it"
        return _CauseInRun(result.stop_reason, result, f"{who}, when {self.doing}")

    def waits(self, result: Result) -> _CauseInRun | None:
        answered = {e.question_id for e in self.log if isinstance(e, UserAnswer)}
        open_ones = [e for e in self.log if isinstance(e, UserQuestion) and e.question_id not in answered]
        if not open_ones:
            return _CauseInRun("waiting", result, result.error_message or "it waits", command=self._workflow("show"))
        question = open_ones[-1]
        choices = f" ({', '.join(question.choices)})" if question.choices else ""
        about = f", for {self.call(question.tool_use_id)}" if question.tool_use_id in self.uses else ""
        why = f"it waits for a person's answer to {_short(question.prompt)!r}{choices}{about}"
        answer = question.choices[0] if question.choices else "..."
        command = self._workflow("answer", answer) if self._is_workflow else ()
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
        """An error ended it: of which kind, its type says."""
        kind = _ERROR_KINDS.get(result.error_type or "", "error")
        why = f"{result.error_type or 'an error'}: {_short(result.error_message)}"
        if kind == "vendor":
            retries = [e.reason for e in self.events if isinstance(e, ModelRetry)]
            more = (
                (f"behind {len(retries)} more attempts; the first failed with: {_short(retries[0], 160)}",)
                if retries
                else ()
            )
            return _CauseInRun(kind, next(self.of(ModelResponse), result), why, more)
        if kind == "output":
            repairs = [e for e in self.events if isinstance(e, UserMessage) and e.origin == "repair"]
            last = (f"its last answer was {_short(e.text, 160)!r}" for e in self.of(AssistantMessage))
            return _CauseInRun(kind, repairs[0] if repairs else result, why, tuple(islice(last, 1)))
        step = self.trouble(result)
        if self._is_workflow and step is not None:
            return changed(
                step, kind="workflow", why=_short(result.error_message), command=self._workflow("retry", step.event)
            )
        return step if step is not None and step.kind == kind else _CauseInRun(kind, result, why)

    # --- what failed in a run that came to its own end -------------------------------------------------------------------

    def cut(self, result: Result) -> _CauseInRun | None:
        """An answer that is not whole, or a refusal of the vendor's model."""
        response = next((e for e in self.of(ModelResponse) if e.complete), None)
        message = next(self.of(AssistantMessage), None)
        if message is not None and message.refusal:
            return _CauseInRun("vendor", message, f"the model refused: {_short(message.text)}")
        if result.cut_by is None or response is None:
            return None
        kind = "cut" if result.cut_by == "length" else "vendor"
        return _CauseInRun(kind, response, f"the last answer is not whole: the endpoint ended it for {result.cut_by!r}")

    def server(self, result: Result, of_call: str = "") -> _CauseInRun | None:
        """An MCP server that was lost or never came; with `of_call`, the one that this tool belongs to."""
        states = {e.name: e for e in self.events if isinstance(e, McpServerChanged)}
        gone = (e for e in states.values() if e.state in ("failed", "lost"))
        event = next((e for e in gone if not of_call or of_call.startswith(f"mcp__{e.name}__")), None)
        if event is None:
            return None
        state = "was lost" if event.state == "lost" else "could not be used"
        why = f"the MCP server {event.name!r} {state}: {_short(event.error_message) or 'it ended'}"
        return _CauseInRun("mcp", event, why)

    def _errors(self) -> list[ToolResult]:
        """The calls that failed, of tools that did not succeed later."""
        found: list[ToolResult] = []
        for event in (e for e in self.events if isinstance(e, ToolResult)):
            others = [one for one in found if self._name(one) != self._name(event)]
            found = [*found, event] if _failed_call(event) else others
        return found

    def _name(self, event: ToolResult) -> str:
        use = self.uses.get(event.tool_use_id)
        return "" if use is None else use.name

    def trouble(self, result: Result) -> _CauseInRun | None:
        """The last tool that failed and did not succeed later."""
        errors = self._errors()
        if not errors:
            return None
        series = [one for one in errors if self._name(one) == self._name(errors[-1])]
        found = self.server(result, self._name(errors[-1])) or self._explained(series[0], len(series))
        others = [one for one in errors if one not in series]
        if others:
            more = f"before that, {self.call(others[-1].tool_use_id)} failed (event {others[-1].seq}): {_words(others[-1])}"
            found = changed(found, more=(*found.more, more))
        return found

    def steady_errors(self, result: Result) -> _CauseInRun | None:
        """One tool that failed again and again, up to the end of the run."""
        ends = [e for e in self.events if isinstance(e, ToolResult)][-_LEAST_REPEATS:]
        is_steady = len(ends) == _LEAST_REPEATS and all(map(_failed_call, ends)) and len({*map(self._name, ends)}) == 1
        found = self.trouble(result) if is_steady else None
        return None if found is None else changed(found, flags=(*found.flags, *self._raised(result)))

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
        child = self._child(use_id)
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
        """A call that was not allowed, and the rules that would have let it."""
        rules = _letting(self.session_id, self.log, decision)
        why = f"{self.call(decision.tool_use_id)} was denied{again}: {_short(decision.reason)}"
        if rules:
            flags = tuple(word for rule in rules for word in ("--allow", rule))
            return _CauseInRun(
                "denied", decision, why, (f"allowed by: {', '.join(rules)}",), flags, "It is allowed now: go on."
            )
        by_rule = f"no allow rule lets it: the deny rule {decision.rule} ({decision.source}) is in force"
        more = (by_rule,) if decision.rule else ("no rule lets it: the mode or the person would have to",)
        return _CauseInRun("denied", decision, why, more, prompt="Go on in another way.")

    def _child(self, tool_use_id: str) -> _CauseInRun | None:
        """What went wrong in the subagent that a call started."""
        started = next((e for e in self.of(SubagentStarted) if e.tool_use_id == tool_use_id), None)
        if started is None:
            return None
        events: Sequence[Event] = ()
        if self._read is not None and self._depth < _MAX_DEPTH:
            events = self._read(self.session_id, started.child_session_id)
        found = find_cause(started.child_session_id, events, read=self._read, depth=self._depth + 1)
        if not found.kind:
            return None
        why = f"the subagent {started.name!r}, started at event {started.seq}: {found.why}"
        return _CauseInRun("subagent", started, why, found.more, inside=found)

    def subagent(self, result: Result) -> _CauseInRun | None:
        """A subagent that gave something back although it had failed inside."""
        started = {e.name: e for e in self.events if isinstance(e, SubagentStarted)}  # the last one of each name
        found = (self._child(event.tool_use_id) for event in reversed(started.values()))
        return next((one for one in found if one is not None), None)

    def dropped(self, result: Result) -> _CauseInRun | None:
        """A compaction, or outputs that were cleared, without what a later prompt asked for."""
        prompt = next((e for e in self.of(UserMessage) if e.origin == "user"), None)
        if prompt is None:
            return None
        asked = _significant(prompt.text)
        behind = [e for e in self.log if (e.seq or 0) > (prompt.seq or 0)]
        answered = _significant(" ".join(map(_said, behind)))
        for cut in reversed(self.log):
            if not isinstance(cut, SessionCompacted | ContextCleared) or (cut.seq or 0) > (prompt.seq or 0):
                continue
            gone, kept = _parted(self.log, cut)
            in_view = _significant(" ".join(kept))
            best = max(_facts(gone, asked - in_view, asked | in_view), key=lambda fact: fact[0], default=None)
            if best is not None and not best[3] & answered:
                _, event, line, _ = best
                why = f"the compaction at event {cut.seq} dropped what event {prompt.seq} asks for: event {event.seq} had it"
                text = f"In this session it was said: {line!r}. Go on."
                return _CauseInRun("compaction", cut, why, (f"event {event.seq}: {_short(line)}",), prompt=_short(text))
        return None

    def fallback(self, result: Result) -> _CauseInRun | None:
        """The answer of another model than the one that was asked."""
        retry = next((e for e in self.of(ModelRetry) if e.model is not None), None)
        if retry is None:
            return None
        why = f"{retry.model} answered in place of {self.init.model}, which failed: {_short(retry.reason)}"
        return _CauseInRun("fallback", retry, why)

    def command_failed(self, result: Result) -> _CauseInRun | None:
        """The last command of the run, when it failed."""
        end = next(self.of(ToolResult), None)
        output = as_mapping(None if end is None else end.output)
        code = output.get("exit_code")
        if end is None or not isinstance(code, int) or code == 0:
            return None
        said = "\n".join(str(output.get(name) or "") for name in ("stdout", "stderr"))
        lines = said.strip().splitlines()
        more = (_short(lines[-1].strip()),) if lines else ()
        return _CauseInRun("tool", end, f"{self.call(end.tool_use_id)} ended with exit code {code}", more)

    # --- workflows -------------------------------------------------------------------------------------------------------

    @property
    def _is_workflow(self) -> bool:
        prompts = (e.text for e in self.log if isinstance(e, UserMessage))
        return next(prompts, "").startswith('{"workflow":')

    def _workflow(self, action: str, *words: Event | str) -> tuple[str, ...]:
        """A command about a workflow; a step is named by its number."""
        named = [w if isinstance(w, str) else getattr(w, "tool_use_id", "").rpartition("step-")[2] for w in words]
        return ("openagentic-sdk", "workflow", action, self.session_id, *named) if self._is_workflow else ()


def _letting(session_id: str, log: Sequence[Event], decision: PermissionDecision) -> tuple[str, ...]:
    """The narrowest rules that would have let a call run; empty where no rule does."""
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


def _short(text: object, most: int = _MAX_CHARS) -> str:
    return on_one_line(shortened(" ".join(str(text or "").split()), most))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _words(event: ToolResult) -> str:
    said = _short(event.error_message) or event.outcome
    kind = event.error_type or ""
    return said if not kind or said.startswith(kind) else f"{kind}: {said}"


def _failed_call(event: ToolResult) -> bool:
    return event.is_error or event.outcome in ("error", "denied", "unknown")


def _blocks(event: HookEvent) -> bool:
    return event.action in ("block", "stop") or event.details.get("fails") == "closed"


def _place(event: ToolResult) -> tuple[str, ...]:
    """Where an exception came from: the deepest frame that is nobody's library, else the deepest; nothing if unknown."""
    trace = str((event.meta or {}).get("traceback") or "").rpartition("Traceback (most recent call last)")[2]
    frames = [found.groups() for found in _FRAME.finditer(trace)]
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])]
    places = (
        f"at {path}:{line}{f' in {name}' if name else ''}{f': {code}' if code else ''}"
        for path, line, name, code in (own or frames)[-1:]
    )
    return tuple(_short(place) for place in places)


def _said(event: Event) -> str:
    if isinstance(event, UserMessage | AssistantMessage):
        return event.text
    return _text(event.output) if isinstance(event, ToolResult) else ""


def _significant(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text) if len(word) > 3 or any(map(str.isdigit, word))}


def _parted(log: Sequence[Event], cut: SessionCompacted | ContextCleared) -> tuple[list[Event], list[str]]:
    """What a cut took out of the model's view, and the texts that stayed."""
    if isinstance(cut, SessionCompacted):
        gone = [e for e in log if (e.seq or 0) <= cut.up_to_seq]
        return gone, [cut.summary, *(_said(e) for e in log if cut.up_to_seq < (e.seq or 0) <= (cut.seq or 0))]
    gone = [
        e for e in log if isinstance(e, ToolResult) and e.tool_use_id in cut.results and (e.seq or 0) < (cut.seq or 0)
    ]
    return gone, [_said(e) for e in log if e not in gone and (e.seq or 0) < (cut.seq or 0)]


def _facts(gone: Sequence[Event], asked: set[str], known: set[str]) -> Iterator[tuple[int, Event, str, set[str]]]:
    """The sentences of dropped events that share words with what is asked and say more than is known: how many, where."""
    lines = [(event, line) for event in gone for line in re.split(r"(?<=[.!?])\s|\n", _said(event)) if line.strip()]
    for event, line in lines:
        words = _significant(line)
        marked = {
            w.casefold() for w in _WORD.findall(line)[1:] if any(map(str.isdigit, w)) or w[:1].isupper() or "-" in w
        }
        more = words - known
        is_fact = len(words & asked) >= 2 or (words & asked and marked & more)
        if is_fact and more:
            yield len(words & asked), event, line.strip(), (marked & more) or more


def _names(*kinds: type[BaseException]) -> Iterator[str]:
    for kind in kinds:
        yield kind.__name__
        yield from _names(*kind.__subclasses__())


# What an error type that ended a run is a matter of.
_ERROR_KINDS: Mapping[str, str] = {
    **dict.fromkeys(_names(ProviderError), "vendor"),
    **dict.fromkeys(_names(StorageError), "store"),
    **dict.fromkeys(_names(McpError), "mcp"),
    **dict.fromkeys(_names(StructuredOutputError, ModelRetryError), "output"),
    **dict.fromkeys(_names(PartError), "part"),
    **dict.fromkeys(_names(WorkflowError), "workflow"),
}
_ENDS: Mapping[str, str] = {
    "max_steps": "max_steps ended the run",
    "timeout": "timeout_s was over",
    "budget": "the budget was spent",
    "interrupted": "somebody ended the run",
}
_LIMITS = (_JudgedRun.loop, _JudgedRun.steady_errors, _JudgedRun.refused_answers, _JudgedRun.limit)
_AT_THE_END = (
    _JudgedRun.cut,
    _JudgedRun.trouble,
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
