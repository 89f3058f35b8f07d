"""Close what a crash left open, before a resumed session goes on.

A call that was asked for and never started runs now, through the whole gate again, if it was asked for here: one that came
with an archive or an edited log is history. A call that started and has no result
is in doubt: it runs again only when it was and still is read-only or idempotent, and at most `MAX_ATTEMPTS` times in all;
else the tool may know what came of it (`reconcile`); else the model is told, once, that it may or may not have run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import SessionError, SessionLockedError
from ..events import (
    Event,
    Result,
    SubagentFinished,
    SubagentStarted,
    ToolResult,
    ToolStarted,
    UserQuestion,
)
from ..sessions.core import StoreCore
from ..sessions.folds.features.subagents import SubagentsFold
from ..sessions.folds.features.untrusted import UntrustedFold
from ..sessions.folds.view import CallRecord, SessionView
from ..sessions.resume import load_view
from ..sessions.seal import Seal
from ..threads import call_guest
from ..tools.base import REPEATABLE, Tool, ToolOutput
from .agent import Run
from .closing import (
    IN_DOUBT,
    LOST,
    SAID_INSTEAD,
    SUPERSEDED,
    closing_events,
    unknown_result,
)
from .lifetime import RunStopped
from .part import Part
from .tool_context import tool_context
from .tool_output import plain_value, shrink_output, store_result
from .tool_step import masked, result_of, run_calls

MAX_ATTEMPTS = 3
# What is read of the log of a run that died.
_ENDED = (SubagentsFold, UntrustedFold)
_NOT_OURS: dict[str, Any] = {
    "is_error": True,
    "outcome": "cancelled",
    "error_type": "NotOurs",
    "error_message": "This call came with a log that this installation did not write, or that was changed: it was not run "
    "here. Ask for it again if it is still wanted.",
}


async def settle_open_calls(run: Run, *, prompt_follows: bool = False) -> None:
    """Give every call of an earlier run that the model still waits for its result, in order.

    Where a `prompt_follows`, what waits for a person, and what had not begun beside it, is left for `supersede`.
    """
    # The code that made them is gone, so none of them runs again.
    for record in run.view.open_inner_calls():
        await _end_inner(run, record)
    try:
        for part in run.parts.at(Part.settle):
            await part.settle(prompt_follows)
        await _settle_calls(run, {q.tool_use_id for q in run.view.open_questions()} if prompt_follows else set())
    except RunStopped as stopped:
        if stopped.reason != "waiting" or not prompt_follows:
            raise


async def supersede(run: Run) -> Sequence[Event]:
    """The events that end every open question and the calls behind them: the person sent a prompt instead.

    To be stored in one batch with that prompt.
    """
    view = run.view
    questions, calls = view.open_questions(), view.open_calls()
    asked_ids = {record.use.tool_use_id for record in calls if view.has_asked(record.use.tool_use_id)}
    ends: list[Event] = closing_events(calls, questions, SUPERSEDED, SAID_INSTEAD, asked_ids=asked_ids)
    for part in run.parts.at(Part.supersede):
        ends += await part.supersede(questions)
    run.parked.clear()
    return ends


def untouched_questions(run: Run) -> list[UserQuestion]:
    """The questions of an earlier run that this one neither asked again nor ended: it came to its end before its prompt was
    accepted. They still wait for their answer."""
    asked_here = run.answers_taken | {question.question_id for question in run.parked.values()}
    subagents = run.view.fold(SubagentsFold).open
    open_ids = {record.use.tool_use_id for record in run.view.open_calls()}
    return [
        question
        for question in run.view.open_questions()
        if question.question_id not in asked_here
        and (question.tool_use_id in open_ids or question.details.get("child_session_id") in subagents)
    ]


async def _settle_calls(run: Run, waiting_ids: Collection[str | None]) -> None:
    for record in run.view.open_calls():
        use_id = record.use.tool_use_id
        if not run.view.is_ours(record.use):
            await run.record(ToolResult(use_id, **_NOT_OURS))
            continue
        if use_id in waiting_ids or (waiting_ids and record.started is None and not run.view.has_asked(use_id)):
            continue
        tool = run.agent.tools.get(record.use.name) if record.use.name in run.agent.tools else None
        if (
            record.started is None
            or any(part.continues(use_id) for part in run.parts.at(Part.continues))
            or _may_repeat(run, record, record.started, tool)
        ):
            await run_calls(run, [record.use])
        else:
            await run.record(await _end_in_doubt(run, record, tool))


async def _end_inner(run: Run, record: CallRecord) -> None:
    """Close a call that code made, as a part of the call that ran the code."""
    use_id, ended = record.use.tool_use_id, None
    if not run.view.is_ours(record.use):
        ended = ToolResult(use_id, **_NOT_OURS)
    elif record.started is not None:
        tool = run.agent.tools.get(record.use.name) if record.use.name in run.agent.tools else None
        ended = await _end_in_doubt(run, record, tool)
    questions = [question for question in run.view.open_questions() if question.tool_use_id == use_id]
    ends = closing_events([record] if ended is None else (), questions, "interrupted")
    ends = ends if ended is None else [ended, *ends]
    await run.record(*(replace(event, parent_tool_use_id=record.use.parent_tool_use_id) for event in ends))


def _may_repeat(run: Run, record: CallRecord, started: ToolStarted, tool: Tool | None) -> bool:
    """Whether a call in doubt may run again. One that waited for a person did not fail, so its attempts do not count."""
    harmless = tool is not None and tool.effect in REPEATABLE and started.effect in REPEATABLE
    return harmless and (record.attempts < MAX_ATTEMPTS or run.view.has_asked(record.use.tool_use_id))


async def _end_in_doubt(run: Run, record: CallRecord, tool: Tool | None) -> ToolResult:
    """What the tool knows of a call in doubt, else the result that says so."""
    use_id = record.use.tool_use_id
    try:
        context = tool_context(run, record.use)
        output = None if tool is None else await call_guest(partial(tool.reconcile, record.use, context), tool.name)
    except RunStopped:
        raise  # it asks a person, who may answer later
    except Exception:  # noqa: BLE001 - a tool may raise anything; not knowing is the safe answer
        output = None
    if output is None:
        return unknown_result(use_id, IN_DOUBT)
    result = result_of(use_id, output if isinstance(output, ToolOutput) else ToolOutput(plain_value(output)))
    return await shrink_output(run, masked(run, await store_result(run, result)))


def copied_question(question: UserQuestion, tool_use_id: str, child_session_id: str) -> UserQuestion:
    """A subagent's question as its parent's log holds it, where the person who answers finds it."""
    details = {**question.details, "child_session_id": child_session_id}
    return UserQuestion(question.question_id, question.prompt, question.choices, question.kind, tool_use_id, details)


def end_abandoned(
    store: StoreCore,
    started: SubagentStarted,
    seal: Seal,
    *,
    also_parked: bool = False,
    answered_by: str = "interrupted",
) -> SubagentFinished:
    """What the parent's log says of a subagent whose process died. Its own log, and those of its subagents, get their end.

    A log that waits for an answer (but with `also_parked`), that somebody writes to, or that cannot be read stays as it is.
    """
    session_id, view = started.child_session_id, SessionView(_ENDED)
    origin: dict[str, Any] = {"parent_tool_use_id": started.tool_use_id, "agent_name": started.name}
    try:
        close = partial(end_session, store, session_id, seal, origin=origin)
        view = close(also_parked=also_parked, answered_by=answered_by)[0]
    except SessionError as error:
        if answered_by == SUPERSEDED and isinstance(error, SessionLockedError):
            raise  # somebody goes on with it just now: its question cannot be taken back
        with suppress(SessionError):
            view = SessionView(_ENDED).extend(store.iter_events(session_id))
    untrusted = list(view.fold(UntrustedFold).sources)
    return SubagentFinished(
        started.tool_use_id, started.name, session_id, "interrupted", view.usage, view.cost_usd, untrusted
    )


def end_session(
    store: StoreCore,
    session_id: str,
    seal: Seal,
    *,
    origin: Mapping[str, Any] | None = None,
    also_parked: bool = False,
    answered_by: str = "interrupted",
) -> tuple[SessionView, bool]:
    """Close the log of a run whose process died, or with `also_parked` of one that waits for a person, and whether it was
    open. Its questions are closed as `answered_by`; `origin` are the fields of a subagent's events.

    Raises `SessionNotFoundError`, and `SessionLockedError` when somebody runs it.
    """
    with store.open_writer(session_id) as writer:
        view, _ = load_view(store, session_id, _ENDED, seal=seal)
        if store.read_run_state(session_id) not in ("running", *(["waiting"] if also_parked else [])):
            return view, False
        children = filter(view.is_ours, view.fold(SubagentsFold).open.values())
        end_child = partial(end_abandoned, store, seal=seal, also_parked=also_parked, answered_by=answered_by)
        ends: list[Event] = [*map(end_child, children)]
        calls = [*view.open_inner_calls(), *view.open_calls()]
        asked_ids = [record.use.tool_use_id for record in calls if view.has_asked(record.use.tool_use_id)]
        texts = SAID_INSTEAD if answered_by == SUPERSEDED else LOST
        ends += closing_events(calls, view.open_questions(), answered_by, texts, asked_ids=asked_ids)
        request_id = next(iter(view.requests.asked), None)
        result = Result(view.last_text, session_id, "interrupted", view.usage, view.cost_usd, request_id=request_id)
        for batch in (ends, [result]):
            assert view.authority is not None, "a view with a seal has one"
            inside = [
                {"parent_tool_use_id": each.parent_tool_use_id} if each.parent_tool_use_id else {} for each in batch
            ]
            events = [replace(event, **{**(origin or {}), **own}) for event, own in zip(batch, inside, strict=True)]
            for event in writer.append(view.authority.sign(events, writer.last_seq)):
                view.apply(event, made_here=True)
        return view, True
