"""Causes in calls: tools that fail, are denied or blocked, servers that are lost, and subagents."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import OptionsError, PermissionRuleError
from ...events import (
    Event,
    HookEvent,
    McpServerChanged,
    PermissionDecision,
    Result,
    SubagentStarted,
    ToolResult,
    UserMessage,
)
from ...ground.frozen import changed
from ...ground.loose import as_mapping
from ...permissions.hindsight.calls import PolicyJudge, call_context, recorded_calls
from ...permissions.offers import offered_rules
from ..tracebacks import read_traceback
from .cause import CauseInRun
from .run import JudgedRun, blocks, error_words_of, has_failed, short

# Each one is another log to read.
_MAX_SUBAGENTS = 50


def trouble(run: JudgedRun, result: Result) -> CauseInRun | None:
    """The cause of the failures of the tool that failed last; None if every tool that failed has succeeded since."""
    errors = lasting_errors(run)
    if not errors:
        return None
    series = [one for one in errors if run.name_of(one) == run.name_of(errors[-1])]
    cause = server(run, result, run.name_of(errors[-1])) or explained(run, series[0], len(series))
    others = [one for one in errors if run.name_of(one) != run.name_of(errors[-1])]
    if others:
        other = others[-1]
        more = f"before that, {run.call(other.tool_use_id)} failed (event {other.seq}): {error_words_of(other)}"
        cause = changed(cause, more=(*cause.more, more))
    return cause


def lasting_errors(run: JudgedRun) -> list[ToolResult]:
    """The failed calls of each tool since its last success in the run, in the log's order."""
    by_tool: dict[str, list[ToolResult]] = {}
    for event in (e for e in run.events if isinstance(e, ToolResult)):
        if has_failed(event):
            by_tool.setdefault(run.name_of(event), []).append(event)
        elif event.outcome != "cancelled":
            by_tool.pop(run.name_of(event), None)
    return sorted((one for series in by_tool.values() for one in series), key=lambda event: event.seq or 0)


def explained(run: JudgedRun, event: ToolResult, times: int) -> CauseInRun:
    """The cause of a failed call; `times` is how often calls of its tool failed."""
    use_id, again = event.tool_use_id, f", {times} times" if times > 1 else ""
    hook = next((e for e in run.events if isinstance(e, HookEvent) and e.tool_use_id == use_id and blocks(e)), None)
    if hook is not None and event.outcome == "denied":
        return blocked_by(run, hook)
    decision = next((e for e in run.of(PermissionDecision) if e.tool_use_id == use_id), None)
    if event.outcome == "denied" and decision is not None:
        return denied(run, decision, again)
    starts = (e for e in reversed(run.log) if isinstance(e, SubagentStarted) and e.tool_use_id == use_id)
    started = next(starts, None)
    child = None if started is None else child_cause(run, started)
    if child is not None:
        return child
    if event.outcome == "unknown":
        return CauseInRun("unknown", event, f"{run.call(use_id)} was started, and may or may not have run{again}")
    prompt = "The problem is fixed: continue."
    why = f"{run.call(use_id)} failed{again}: {error_words_of(event)}"
    return CauseInRun("tool", event, why, _place(event), prompt=prompt)


def blocked_by(run: JudgedRun, hook: HookEvent, result: Result | None = None) -> CauseInRun:
    """A hook that refused a call, a prompt or an answer, with its reason."""
    reason = hook.error_message or hook.details.get("block_reason") or (result and result.error_message) or ""
    if not reason and hook.tool_use_id is not None:
        refused = (e for e in run.of(ToolResult) if e.tool_use_id == hook.tool_use_id)
        reason = next((e.error_message or "" for e in refused), "")
    if not reason:
        after = run.events[run.events.index(hook) :]
        reason = next((e.text for e in after if isinstance(e, UserMessage) and e.origin == "hook"), "")
    about = f" {run.call(hook.tool_use_id)}" if hook.tool_use_id is not None else ""
    did = "failed, which blocks" if hook.error_type else "blocked"
    why = f"the {hook.hook_point} hook {hook.name!r} {did}{about}: {short(str(reason))}"
    return CauseInRun("hook", hook, why)


def denied(run: JudgedRun, decision: PermissionDecision, again: str) -> CauseInRun:
    """A call that was not allowed, and the rules that would have allowed it."""
    rules = _letting(run.session_id, run.log, decision)
    why = f"{run.call(decision.tool_use_id)} was denied{again}: {short(decision.reason)}"
    if rules:
        allowed, settings = f"allowed by: {', '.join(rules)}", (("allowed_tools", list(rules)),)
        return CauseInRun("denied", decision, why, (allowed,), settings, "It is allowed now: go on.")
    return CauseInRun("denied", decision, why, _forbidding(decision), prompt="Go on in another way.")


def child_cause(run: JudgedRun, started: SubagentStarted) -> CauseInRun | None:
    """The cause found inside a subagent, as a cause in the run that started it; None if nothing went wrong there."""
    cause = run.explain_child(started)
    if cause is None:
        return None
    why = f"the subagent {started.name!r}, started at event {started.seq}: {cause.why}"
    return CauseInRun("subagent", started, why, cause.more, inside=cause)


def subagent(run: JudgedRun, result: Result) -> CauseInRun | None:
    """The newest subagent inside which something went wrong, even if it returned an answer, or None.

    Only the last subagent of each name is examined.
    """
    started = {e.name: e for e in run.events if isinstance(e, SubagentStarted)}  # the last event of each name
    causes = (child_cause(run, event) for event in list(reversed(started.values()))[:_MAX_SUBAGENTS])
    return next((one for one in causes if one is not None), None)


def server(run: JudgedRun, result: Result, of_call: str = "") -> CauseInRun | None:
    """An MCP server that failed or was lost; None if none did.

    With `of_call`, the name of a tool, only its server counts, even if it was not started for lack of consent.
    """
    states = {e.name: e for e in run.events if isinstance(e, McpServerChanged)}
    # A server that waits for consent is a failure only if its tool was called.
    failures = (e for e in states.values() if e.state in ("failed", "lost", *(["pending"] if of_call else [])))
    event = next((e for e in failures if not of_call or of_call.startswith(f"mcp__{e.name}__")), None)
    if event is None:
        return None
    state = {"lost": "was lost", "pending": "was not started"}.get(event.state, "could not be used")
    why = f"the MCP server {event.name!r} {state}: {short(event.error_message) or 'it ended'}"
    return CauseInRun("mcp", event, why)


def command_failed(run: JudgedRun, result: Result) -> CauseInRun | None:
    """The last call of the run, if it was a command that failed; None otherwise."""
    end = next(run.of(ToolResult), None)
    output = as_mapping(None if end is None else end.output)
    code = output.get("exit_code")
    if end is None or not isinstance(code, int) or code == 0:
        return None
    output_text = "\n".join(str(output.get(name) or "") for name in ("stdout", "stderr"))
    lines = output_text.strip().splitlines()
    more = (short(lines[-1].strip()),) if lines else ()
    how = f"ended with exit code {code}"
    if output.get("timed_out") is True:
        took = f" after {end.duration_s:.0f} s" if end.duration_s is not None else ""
        how = f"was ended by its timeout_s{took}: it takes longer, or waits for something"
    return CauseInRun("tool", end, f"{run.call(end.tool_use_id)} {how}", more)


def _letting(session_id: str, log: Sequence[Event], decision: PermissionDecision) -> tuple[str, ...]:
    """The narrowest rules that would have allowed a call; empty without any."""
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


def _forbidding(decision: PermissionDecision) -> tuple[str, ...]:
    """The reason why no allow rule would have permitted a call; empty if the decision's own reason explains it."""
    label_rule = as_mapping(decision.details.get("labels")).get("rule")
    if decision.rule:
        return (f"no allow rule permits it: the deny rule {decision.rule} ({decision.source}) is in force",)
    if label_rule:
        return (f"no allow rule permits it: the label rule {short(label_rule, 120)} is in force",)
    return () if decision.answered_by else ("no rule permits it: only another mode or the person could",)


def _place(event: ToolResult) -> tuple[str, ...]:
    """Lines about where a call's exception was raised and which error caused it; empty if unknown."""
    return tuple(map(short, read_traceback(str((event.meta or {}).get("traceback") or ""))))
