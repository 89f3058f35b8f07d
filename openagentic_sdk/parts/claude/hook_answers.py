"""Interpret the answers of `.claude` hooks: the decisions in their exit codes and stdout.

Exit code 0 permits, 2 forbids with stderr as the reason (at `permission_request`, only the JSON forbids). A JSON object on
stdout is the answer after any other code, too, and adds to code 2; without one, any other end is a failure that stops
nothing. With code 0, other text is context for the model if Claude Code documents that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...errors import InvalidEventError
from ...hooks.models import HookDecision, Permission
from ...serialization import loads_json

MAX_TEXT_CHARS = 10_000

# Points at which plain text on stdout is context for the model, and those at which a block comes too late and is a remark.
_TEXT_IS_CONTEXT = frozenset({"user_prompt_submit", "session_start"})
_TOO_LATE_TO_BLOCK = frozenset(
    (
        "post_tool_use",
        "post_tool_use_failure",
        "session_start",
        "session_end",
        "subagent_start",
        "subagent_stop",
        "post_compact",
        "notification",
    )
)
# The points at which the model reads the remark; at the others only a person does.
_MODEL_READS = frozenset({"post_tool_use", "post_tool_use_failure"})
# The fields, with their types, of an answer, of its `hookSpecificOutput`, and of a `decision` in that.
_TYPES: Mapping[str, type] = {
    "continue": bool, "stopReason": str, "decision": str, "reason": str, "systemMessage": str, "suppressOutput": bool,
    "hookSpecificOutput": dict,
}  # fmt: skip
_SPECIFIC_TYPES: Mapping[str, type] = {
    "permissionDecision": str, "permissionDecisionReason": str, "updatedInput": dict, "additionalContext": str,
    "decision": dict, "initialUserMessage": str,
}  # fmt: skip
_INNER_TYPES: Mapping[str, type] = {"behavior": str, "message": str, "interrupt": bool, "updatedInput": dict}
# "defer" leaves the call to a person, as "ask" does here.
_PERMISSIONS: Mapping[str, Permission] = {"allow": "allow", "deny": "deny", "ask": "ask", "defer": "ask"}


def decision_of(point: str, code: int, out: str, err: str, command: str = "the hook") -> HookDecision | None:
    """The decision of a hook that ended with this exit code, if any.

    Raises RuntimeError if the hook failed or its answer is invalid.
    """
    if code == 2:
        return _forbidden(point, out, err)
    if code == 0 or read_object(out) is not None:
        return answer_of(point, out)
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    raise RuntimeError(f"{command!r} {how}: {err.strip()[:1000] or 'it wrote nothing to stderr'}")


def answer_of(point: str, text: str) -> HookDecision | None:
    """The decision in a hook's stdout, if any. Text other than a JSON object is context where Claude Code documents that.

    Raises RuntimeError for an object with undocumented types or values of fields, unless the object clearly forbids.
    """
    answer = read_object(text)
    if answer is None:
        text = capped(text.strip())
        return HookDecision(additional_context=text) if text and point in _TEXT_IS_CONTEXT else None
    problems = [*_problems(answer, _TYPES), *_unknown_words(answer)]
    specific = answer.get("hookSpecificOutput")
    specific = specific if isinstance(specific, dict) else {}
    problems += _problems(specific, _SPECIFIC_TYPES, "hookSpecificOutput.")
    inner = specific.get("decision")
    inner = inner if isinstance(inner, dict) else {}
    problems += _problems(inner, _INNER_TYPES, "hookSpecificOutput.decision.")
    decision = _specific(point, specific, inner, _general(point, answer))
    if problems:
        if not (decision.block or decision.stops or decision.permission == "deny"):
            raise RuntimeError(f"the hook's answer is ignored: {'; '.join(problems)}")
        decision = replace(
            decision, override_tool_input=None, override_tool_output=None, additional_context=None, system_message=None
        )
    return None if decision == HookDecision() else decision


def read_object(text: str) -> Mapping[str, Any] | None:
    """Parse the JSON object that a hook wrote; None if it wrote anything else."""
    if not _is_object(text):
        return None
    try:
        answer = loads_json(text.strip())
    except InvalidEventError:
        return None
    return answer if isinstance(answer, Mapping) else None


def runs_on(first_line: str) -> bool:
    """Whether the first line of a running hook asks not to wait for it."""
    answer = read_object(first_line)
    return answer is not None and answer.get("async") is True


def capped(text: str) -> str:
    """A hook's text; if longer than `MAX_TEXT_CHARS`, it is cut there and a note is added."""
    left_out = len(text) - MAX_TEXT_CHARS
    return text if left_out <= 0 else f"{text[:MAX_TEXT_CHARS]}... [{left_out} characters left out]"


def _is_object(text: str) -> bool:
    return text.lstrip().startswith("{")


def _forbidden(point: str, out: str, err: str) -> HookDecision | None:
    """The decision of exit code 2: the answer's JSON cannot revoke it, but adds texts and may stop the run."""
    if point == "permission_request":  # at this point, only the decision in the answer denies
        try:
            return answer_of(point, out) if _is_object(out) else None
        except RuntimeError:
            return None
    try:
        answer = answer_of(point, out) if _is_object(out) else None
    except RuntimeError:  # an invalid answer does not weaken the exit code
        answer = None
    own = answer is not None and answer.block and answer.block_reason
    reason = own or capped(err.strip()) or "the hook gave no reason"
    blocked = _blocked(point, reason)
    if answer is None:
        return blocked
    contexts = dict.fromkeys(filter(None, (blocked.additional_context, answer.additional_context)))
    messages = dict.fromkeys(filter(None, (blocked.system_message, answer.system_message)))
    return replace(
        blocked,
        additional_context="\n".join(contexts) or None,
        system_message="\n".join(messages) or None,
        stops=answer.stops,
    )


def _blocked(point: str, reason: str) -> HookDecision:
    if point in _MODEL_READS:
        return HookDecision(additional_context=reason, action="feedback")
    if point in _TOO_LATE_TO_BLOCK:
        return HookDecision(system_message=reason, action="feedback")
    return HookDecision(block=True, block_reason=reason)


def _general(point: str, answer: Mapping[str, Any]) -> HookDecision:
    """The decision in the fields that all events have."""
    decision, reason = HookDecision(), _text(answer.get("reason"))
    if answer.get("continue") is False:
        why = _text(answer.get("stopReason")) or reason or "the hook stopped the run"
        decision = HookDecision(block=point not in _TOO_LATE_TO_BLOCK, block_reason=why, action="stop", stops=True)
    elif answer.get("decision") == "block" and point != "permission_request":
        decision = _blocked(point, reason or "the hook gave no reason")
    elif answer.get("decision") == "approve" and point == "pre_tool_use":
        decision = HookDecision(permission="allow", block_reason=reason)
    return replace(decision, system_message=_text(answer.get("systemMessage")) or decision.system_message)


def _specific(
    point: str, specific: Mapping[str, Any], inner: Mapping[str, Any], decision: HookDecision
) -> HookDecision:
    """The decision extended by the fields of one event."""
    wish, reason = specific.get("permissionDecision"), specific.get("permissionDecisionReason")
    changed = specific.get("updatedInput")
    if inner:
        wish, changed = inner.get("behavior", wish), inner.get("updatedInput", changed)
        reason = inner.get("message", reason)
    permission = _PERMISSIONS.get(wish) if isinstance(wish, str) else None
    is_denied = permission == "deny"
    contexts = [decision.additional_context, _text(specific.get("additionalContext"))]
    if point == "session_start":
        contexts.append(_text(specific.get("initialUserMessage")))
    context = "\n".join(filter(None, contexts)) or None
    block, block_reason, action = decision.block, _text(reason) or decision.block_reason, decision.action
    if point == "stop" and context is not None and not block:
        block, block_reason, action, context = True, context, "feedback", None
    if wish == "defer":
        changed = context = None
    message = decision.system_message
    if "updatedPermissions" in inner:
        note = "updatedPermissions has no effect here: write the rule into a settings file"
        message = "\n".join(filter(None, (message, note)))
    return replace(
        decision,
        block=block or (is_denied and point == "pre_tool_use"),
        block_reason=block_reason,
        override_tool_input=changed if isinstance(changed, dict) and not is_denied else None,
        override_tool_output=specific.get("updatedToolOutput", specific.get("updatedMCPToolOutput"))
        if point == "post_tool_use"
        else None,
        permission=permission or decision.permission,
        additional_context=context,
        stops=decision.stops or (is_denied and inner.get("interrupt") is True),
        action=action,
        system_message=message,
    )


def _problems(fields: Mapping[str, Any], types: Mapping[str, type], where: str = "") -> list[str]:
    """A sentence for each field whose type differs from the documented one; null counts as missing."""
    words = {bool: "true or false", str: "text", dict: "an object"}
    return [
        f"{where}{name} is {type(fields[name]).__name__}, and {words[kind]} is expected"
        for name, kind in types.items()
        if fields.get(name) is not None and not isinstance(fields[name], kind)
    ]


def _unknown_words(answer: Mapping[str, Any]) -> list[str]:
    """A sentence for each decision that is not a valid value of its field."""
    problems, specific = [], answer.get("hookSpecificOutput")
    inner = specific.get("decision") if isinstance(specific, dict) else None
    for name, fields, values in (
        ("decision", answer, ("block", "approve")),
        ("permissionDecision", specific, tuple(_PERMISSIONS)),
        ("behavior", inner, ("allow", "deny")),
    ):
        word = fields.get(name) if isinstance(fields, dict) else None
        if isinstance(word, str) and word not in values:
            problems.append(f"{name} is {word[:80]!r}, and one of {', '.join(values)} is expected")
    return problems


def _text(value: Any) -> str | None:
    return capped(value) if isinstance(value, str) and value else None
