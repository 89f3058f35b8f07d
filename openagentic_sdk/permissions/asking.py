"""Ask about a call that rules and mode neither allow nor deny: hooks that answer in a person's place, then a callback, or
else a person.

Each hook, callback and person receives a copy of the input: exactly the judged input runs, whatever happens to the copy.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..events import UserAnswer, UserQuestion
from ..ground.checks import shown
from ..ground.clock import Clock
from ..ground.frozen import frozen
from ..ground.text import visible
from ..ground.threads import ask_callable, call_guest, error_words, run_in_thread, running_loop
from ..kernel.gate import ApprovalResult
from ..sessions.answers import edited_input
from .decide import judge_rules
from .display import preview
from .facts import Facts
from .offers import advice, offered_rules
from .policy import Verdict
from .rules import EDIT_TOOLS
from .subject import Subject

AnswerGiven = str | bool | UserAnswer
UserAnswerer = Callable[[UserQuestion], AnswerGiven | Awaitable[AnswerGiven]]
Approver = Callable[[str, dict[str, Any], dict[str, Any]], Any]


@frozen
class People:
    """The callback and the person that can answer, if there are any, and the functions that keep and save the rules of an
    "always" answer.
    """

    approver: Approver | None
    answer: Callable[[UserQuestion], Awaitable[str | UserAnswer]] | None
    remember: Callable[[str, Sequence[str]], None]
    save_rule: Callable[[str], None] | None
    clock: Clock


async def ask(facts: Facts, verdict: Verdict, people: People) -> ApprovalResult:
    """Ask whether a call with the verdict `ask` may run; if nobody can be asked, the call is denied."""
    final_facts, changed = facts, None
    result = facts.result(verdict)
    request = facts.context.permission_request
    hook_answer = (
        None if request is None else await request(facts.subject.tool, copy.deepcopy(dict(facts.subject.input)))
    )
    if hook_answer is not None:
        reason = hook_answer.reason or f"a hook {'allowed' if hook_answer.allowed else 'denied'} this call"
        hook_result = replace(
            result,
            allowed=hook_answer.allowed,
            reason=reason,
            category="hook",
            hook=hook_answer.hook,
            answered_by="hook",
        )
        if hook_answer.allowed and hook_answer.updated_input is not None:
            # The input from the hook is judged like a new call, and the hook's approval does not override an ask rule.
            changed = dict(hook_answer.updated_input)
            final_facts = facts.with_input(changed)
            verdict = judge_rules(final_facts)
            result = replace(final_facts.result(verdict), hook=hook_answer.hook)
        # A firm verdict, such as that of an ask rule, is for a person to decide, whatever a hook allowed.
        if not hook_answer.allowed or verdict.outcome == "deny" or not verdict.firm:
            return _with_input(facts, hook_result, changed)
    if people.approver is not None:
        answer = await _ask_callback(final_facts, result, people.approver, people.clock)
    else:
        answer = await ask_person(final_facts, result, people)
    if changed is not None and answer.allowed and answer.updated_input is None:
        answer = replace(answer, updated_input=changed)
    return answer


async def _ask_callback(facts: Facts, result: ApprovalResult, approver: Approver, clock: Clock) -> ApprovalResult:
    tool = facts.subject.tool
    running_loop("an approver")
    began = clock.monotonic()
    call = partial(approver, tool, copy.deepcopy(dict(facts.subject.input)), dict(facts.context.told))
    try:
        answer = await call_guest(partial(ask_callable, call, "openagentic-approver"), "the approver")
    except Exception as error:  # noqa: BLE001 - a callback may raise anything; one that fails has not approved
        answer = ApprovalResult(False, f"the approver failed: {': '.join(error_words(error))}")
    result = replace(result, category="callback", answered_by="callback", waited_s=clock.monotonic() - began)
    if isinstance(answer, ApprovalResult):
        result = replace(result, allowed=answer.allowed, reason=answer.reason or result.reason)
        return _with_input(facts, result, answer.updated_input)
    reason = f"the approver {'allowed' if answer is True else 'refused'} {tool}"
    if not isinstance(answer, bool):
        reason = f"the approver returned {shown(answer)}, which allows nothing: return True, False or an ApprovalResult"
    # Only True itself: a callback that returns a text such as "no" has not approved.
    return replace(result, allowed=answer is True, reason=reason)


async def ask_person(
    facts: Facts,
    result: ApprovalResult,
    people: People,
    prompt: str = "Allow {}?",
    extra_details: Mapping[str, Any] | None = None,
) -> ApprovalResult:
    """Ask a person about a call; return the decision.

    `prompt` is a format string for the tool's name; `extra_details` add to the question's details, or replace them.
    """
    subject = facts.subject
    put_question: Callable[[UserQuestion], Awaitable[Any]] | None = facts.context.ask or people.answer
    offers = offered_rules(subject) if result.category not in ("ask_rule", "path", "objection") else ()
    answer = ""
    if put_question is not None:
        show = partial(preview, subject.tool, subject.input, subject.workspace.cwd)
        # Comparing long texts may take a second.
        shown = await run_in_thread(show, name="openagentic-preview") if subject.tool in EDIT_TOOLS else show()
        keeps = ("always", "always save") if people.save_rule is not None else ("always",)
        question = UserQuestion(
            os.urandom(16).hex(),
            prompt.format(visible(subject.tool)),
            ("yes", "no", *(keeps if offers else ())),
            kind="permission",
            tool_use_id=facts.context.tool_use_id,
            details={
                "tool_name": subject.tool,
                # Copied: what a person sees must be what runs, whatever a callback does with the question.
                "input": copy.deepcopy(dict(subject.input)),
                "input_sha256": facts.input_sha256,
                "preview": [*shown, *_place(subject)],
                "reason": result.reason,
                "offers": list(offers),
                **(extra_details or {}),
                **(facts.objection.details if facts.objection is not None else {}),
            },
        )
        began = people.clock.monotonic()
        reply = await put_question(question)
        waited = people.clock.monotonic() - began
        reply, by = (reply.answer, reply.answered_by) if isinstance(reply, UserAnswer) else (reply, "user")
        answer = reply.strip() if isinstance(reply, str) else ""
    if put_question is None or (not answer and people.answer is None):
        why = "mode callback has no approver" if facts.mode == "callback" else "nobody can be asked"
        reason = f"{subject.tool} needs approval and {why}: {result.reason}. {advice(subject)}"
        return replace(result, reason=reason, category="nobody")
    result = replace(result, category="answer", answered_by=by, waited_s=waited, question=question)
    return await _answered(facts, result, answer, offers, people)


def _place(subject: Subject) -> list[str]:
    """A line with the folder of a command, if it is not the one in which the session began."""
    return [f"(in {visible(subject.workspace.cwd)})"] if subject.command and subject.workspace.has_moved else []


async def _answered(
    facts: Facts, result: ApprovalResult, answer: str, offers: Sequence[str], people: People
) -> ApprovalResult:
    """Interpret an answer: y, yes, always and always save allow, edit allows other input, everything else denies."""
    word, _, rest = answer.partition(" ")
    word, rest = word.lower().rstrip(",.:"), rest.strip()
    if answer.lower() in ("y", "yes"):
        return replace(result, allowed=True, reason="the person answered yes")
    if answer.lower() in ("always", "always save"):
        details = dict(result.details)
        if offers:
            people.remember(facts.context.session_id, offers)
            details["remembered"] = list(offers)
            details |= await _saved(offers, people.save_rule if answer.lower() == "always save" else None)
        return replace(result, allowed=True, reason="the person answered always", details=details)
    if word == "edit" and rest:
        changed = edited_input({"tool_name": facts.subject.tool, "input": facts.subject.input}, rest)
        if changed is None:
            return replace(result, reason="the person's edit is not a JSON object")
        return _with_input(facts, replace(result, allowed=True), changed)
    if word in ("n", "no"):
        return replace(result, reason=f"the person answered no{': ' + rest if rest else ''}")
    return replace(result, reason=f"the person answered {answer!r}, which is not yes")


async def _saved(offers: Sequence[str], save_rule: Callable[[str], None] | None) -> dict[str, str]:
    """Save the rules; return where, as details for the log. Unwritable settings do not invalidate the answer."""
    if save_rule is None:
        return {"remembered_in": "session"}

    def save() -> None:
        for rule in offers:
            save_rule(rule)

    try:
        await call_guest(partial(run_in_thread, save, name="openagentic-save-rule", moment_s=0), "save_rule")
    except Exception as error:  # noqa: BLE001 - a callback may raise anything
        return {"remembered_in": "session", "not_saved": error_words(error)[1]}
    return {"remembered_in": "settings"}


def _with_input(facts: Facts, result: ApprovalResult, changed: Mapping[str, Any] | None) -> ApprovalResult:
    """Add the changed input to an approval, or turn the approval into a denial if a rule forbids that input."""
    if changed is None or not result.allowed:
        return result
    other = facts.with_input(changed)
    verdict = judge_rules(other)
    details = {**other.details(), "asked_about_sha256": facts.input_sha256}
    result = replace(result, input_sha256=other.input_sha256, details=details)
    if verdict.outcome == "deny":
        denied = other.result(verdict)
        reason = f"{facts.subject.tool} is denied as edited: {verdict.reason}"
        return replace(
            result, allowed=False, reason=reason, category=verdict.category, rule=denied.rule, source=denied.source
        )
    reason = f"{result.answered_by} allowed it with other input"
    return replace(result, reason=reason, updated_input=dict(changed))
