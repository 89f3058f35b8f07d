"""One tool call before it runs, as a record that grows: requested by the model, proposed, then permitted.

A `Proposed` fits its tool and has passed the hooks; a `Permitted` carries the decision that lets it run, with the digest of
exactly the input that runs. The rest is in the log: `tool.started`, then `tool.result`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import ToolError, ToolInputError, ToolNotFoundError, tool_missing
from ..events import Effect, Event, PermissionDecision, ToolResult, ToolStarted, ToolUse, UserMessage
from ..ground.frozen import frozen
from ..ground.threads import error_trace, error_words
from ..ground.words import shortened
from ..sessions.request import json_sha256
from .agent import Run
from .gate import ApprovalResult, Gate
from .hooks import HookDecision
from .lifetime import RunStopped
from .part import Part
from .tool import CALLER_WORDS, BareTool, may_call

_NO_WISH = HookDecision()


@frozen
class Proposed:
    """A call of an existing tool with input that fits its schema, after the pre-tool hooks.

    `wish` is the outcome that those hooks request, `hook` the name of the hook that blocks the call or requests a
    permission.
    """

    use: ToolUse
    tool: BareTool
    input: Mapping[str, Any]
    wish: HookDecision = _NO_WISH
    hook: str | None = None


@frozen
class Permitted:
    """A call that may run, with its decision, which is not in the log yet."""

    use: ToolUse
    tool: BareTool
    input: Mapping[str, Any]
    decision: PermissionDecision

    def opening_events(self, run: Run) -> Sequence[Event]:
        """The events to log before the call takes effect."""
        use = self.use
        started = ToolStarted(
            use.tool_use_id,
            use.name,
            self.tool.effect,
            self.decision.input_sha256,
            # The same for every attempt, so that a service can recognize a repetition.
            idempotency_key=f"{run.session_id}:{use.tool_use_id}",
            attempt=run.view.calls[use.tool_use_id].attempts + 1,
            # The log states it once: `tool.use` has it, unless a hook or a person changed it.
            input=None if self.input is use.input else self.input,
        )
        return self.decision, started


async def prepare(run: Run, use: ToolUse) -> Permitted | ToolResult:
    """Do everything up to `tool.started`; return a result if the call will not run. Raises `RunStopped` if it waits."""
    try:
        call = await propose(run, use)
        if call.wish.block:
            reason = call.wish.block_reason or "a hook blocked this call"
            blocked = ApprovalResult(
                False, reason, run.agent.gate.mode, hook=call.hook, input_sha256=json_sha256(dict(call.input))
            )
            await run.record(decision_event(run, use, blocked))
            return _denied(use, "HookBlocked", reason)
        return await _permit(run, call)
    except ToolNotFoundError as error:
        # The person's answer is for a process that has the tool: an error result here would discard it.
        if run.view.has_asked(use.tool_use_id):
            raise waits_elsewhere(run, error.name) from None
        return error_result(use.tool_use_id, error)
    except ToolError as error:
        return error_result(use.tool_use_id, error)


def waits_elsewhere(run: Run, tool_name: str) -> RunStopped:
    """The end of a run that leaves a call, about which a person was asked, to a process that has its tool."""
    return RunStopped("waiting", tool_missing(run.session_id, tool_name))


async def propose(run: Run, use: ToolUse) -> Proposed:
    """Check a call, run the pre-tool hooks on it, and return it as they left it; their events are in the log by then.

    Raises `ToolError` for an unknown tool, a caller that may not call it, and input that does not fit it.
    """
    for part in run.parts.at(Part.read_call):
        use = part.read_call(use, run.agent.tools)
    tool = run.agent.tools.get(use.name)
    if use.raw_arguments is not None:
        raise ToolInputError(
            f"{use.name}: the call did not arrive whole (the answer was cut off or withdrawn, or the arguments are too "
            f"large or not a JSON object), so it did not run; received: {shortened(use.raw_arguments, 500)!r}"
        )
    caller = str((use.caller or {}).get("type") or "direct")
    if not may_call(tool, CALLER_WORDS.get(caller, caller)):
        raise ToolError(f"{use.name} may not be called by {caller} (see its allowed_callers)")
    # Before the hooks: they see the defaults filled in, and never an input that cannot run.
    input = tool.check_input(use.input, use.name)
    if not run.agent.hooks.are_any:
        return Proposed(use, tool, input)
    hooked, events, decision = await run.agent.hooks.run_pre_tool_use(
        tool_name=use.name, tool_input=input, context=run.hooks.context(tool_use_id=use.tool_use_id)
    )
    await run.record(*events)
    if decision is None:
        return Proposed(use, tool, hooked)
    if decision.stops:
        run.hooks.stopped_by = RunStopped("blocked:pre_tool_use", decision.block_reason or "")
    if decision.block:
        hook = next((event.name for event in events if event.action == "block"), None)
        # A hook that blocks a call does not also change it: the log and the model see the original input.
        return Proposed(use, tool, input, decision, hook)
    if hooked is not input:
        hooked = tool.check_input(hooked, f"{use.name}, as a hook changed it")
    if decision.additional_context:
        run.notes.append(UserMessage(decision.additional_context, origin="hook"))
    wishes = (event.name for event in events if event.details.get("permission") == decision.permission)
    return Proposed(use, tool, hooked, decision, next(wishes, None) if decision.permission else None)


def decision_event(
    run: Run, use: ToolUse, approval: ApprovalResult, gate: Gate | None = None, input: Mapping[str, Any] | None = None
) -> PermissionDecision:
    """The decision of the gate or a hook about a call, with the digest of the input that was judged.

    `details` holds what is needed to judge the call again under another policy (see `docs/permissions.md`): `category`,
    `facts`, and `policy` if the `gate` differs from that of the previous decision. `input` is the input that the gate
    received; if it differs from what the model wrote, it is among the facts.
    """
    details, facts = {**approval.details}, {**approval.facts}
    if approval.category:
        details["category"] = approval.category
    record = run.view.calls.get(use.tool_use_id)
    if input is not None and (record is None or record.use.input is not input):
        facts["input"] = input
    if facts:
        details["facts"] = facts
    if gate is not None and gate.policy_sha256 != run.policy_told:
        run.policy_told = gate.policy_sha256
        details["policy"] = run.policy_record(gate)
    return PermissionDecision(
        use.tool_use_id,
        use.name,
        approval.allowed,
        approval.mode,
        approval.input_sha256,
        approval.reason,
        rule=approval.rule,
        source=approval.source,
        hook=approval.hook,
        answered_by=approval.answered_by,
        waited_s=approval.waited_s,
        policy_sha256=approval.policy_sha256,
        details=details,
    )


async def ask_gate(run: Run, gate: Gate, use: ToolUse, effect: Effect, *, parks: bool = True) -> ApprovalResult:
    """Ask the gate about a call that the runtime itself makes; record and return its decision.

    Without `parks`, a call for which the run could only wait is refused: nothing would act on a later answer.
    """
    context = run.gate_context(use.tool_use_id, effect, use.name)
    if run.request.parks and not parks:
        context = replace(context, ask=None)
    approval = await gate.approve(use.name, use.input, context)
    await run.record(decision_event(run, use, approval, gate, use.input))
    return approval


async def _permit(run: Run, call: Proposed) -> Permitted | ToolResult:
    """Ask the parts and the gate about a call. Raises `ToolError` if a person substituted input that does not fit."""
    use, tool, input = call.use, call.tool, call.input
    if tool.is_answer:
        reason = "it is the answer that the caller asked for"
        answer = ApprovalResult(True, reason, run.agent.gate.mode, input_sha256=json_sha256(dict(input)))
        return Permitted(use, tool, input, decision_event(run, use, answer))
    wish: dict[str, Any] = {}
    if call.wish.permission is not None:
        wish = {"hook_permission": call.wish.permission, "hook": call.hook, "hook_reason": call.wish.block_reason}
    context = run.gate_context(
        use.tool_use_id,
        tool.effect,
        use.name,
        permission_request=partial(_ask_hooks, run, use),
        rule_names=tool.rule_names,
        **wish,
    )
    for part in run.parts.at(Part.permit):
        permitted = await part.permit(call, context)
        if isinstance(permitted, Permitted):
            return permitted
        context = permitted
    # Once: the property narrows anew each time, and the decision must be recorded with the policy that made it.
    gate = run.gate
    approval = await gate.approve(use.name, input, context)
    if approval.updated_input is not None:
        input = tool.check_input(approval.updated_input, f"{use.name}, as it was edited")
        if input is not approval.updated_input:  # a default was added; the digest is of the final input
            approval = replace(approval, input_sha256=json_sha256(dict(input)))
    decision = decision_event(run, use, approval, gate, call.input)
    if approval.allowed:
        return Permitted(use, tool, input, decision)
    await run.record(decision)
    return _denied(use, "PermissionDenied", approval.reason)


async def _ask_hooks(run: Run, use: ToolUse, name: str, input: Mapping[str, Any]) -> ApprovalResult | None:
    """Ask the hooks to decide instead of the person; return None if they leave the decision to the person."""
    payload = {"tool_name": name, "tool_input": input}
    events, decision = await run.hooks.run("permission_request", payload, tool_use_id=use.tool_use_id)
    forbids = decision is not None and (decision.block or decision.stops)
    if decision is None or (decision.permission not in ("allow", "deny") and not forbids):
        return None
    allowed = decision.permission == "allow" and not forbids
    hook = next((event.name for event in events if event.action not in (None, "none")), None)
    reason = decision.block_reason or f"a hook {'allowed' if allowed else 'denied'} this call"
    return ApprovalResult(allowed, reason, hook=hook, updated_input=decision.override_tool_input)


def _denied(use: ToolUse, error_type: str, reason: str) -> ToolResult:
    return ToolResult(use.tool_use_id, is_error=True, error_type=error_type, error_message=reason, outcome="denied")


def error_result(tool_use_id: str, error: BaseException) -> ToolResult:
    """The result of a call that raised this exception. `meta["traceback"]` is for people; see `threads.error_trace`."""
    kind, text = error_words(error)
    if isinstance(error, KeyError) and text != kind:
        text = f"{kind}: {text}"  # its text is only the key
    trace = error_trace(error)
    meta = {"traceback": trace} if trace else None
    return ToolResult(tool_use_id, is_error=True, error_type=kind, error_message=text, outcome="error", meta=meta)
