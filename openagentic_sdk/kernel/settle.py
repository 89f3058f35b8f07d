"""Close everything that a crash left open, before a resumed session continues.

A call that was requested and never started runs now, through the whole gate again, provided it was requested here: one that
came with an archive or an edited log never runs. A call that started and has no result is in doubt. It runs again only if
its tool was and still is read-only or idempotent, at most `MAX_ATTEMPTS` times in all; otherwise the tool may be able to
determine its outcome (`reconcile`); otherwise the model reads, once, that it may or may not have run. A call about which a
person was asked stays open if its tool is missing here: the answer is for a process that has the tool.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..events import AssistantMessage, Event, ModelRetry, ToolResult, ToolStarted, ToolUse, UserMessage, UserQuestion
from ..ground.threads import call_guest
from ..sessions.closing import IN_DOUBT, SAID_INSTEAD, SUPERSEDED, closing_events, unknown_result
from ..sessions.folds.view import CallRecord
from ..sessions.rebuild import newest_standing
from .agent import Run
from .lifetime import RunStopped
from .part import Part
from .tool import REPEATABLE, BareTool
from .tool_call import waits_elsewhere
from .tool_context import tool_context
from .tool_output import plain_output, shrink_output, store_result
from .tool_step import masked, result_of, run_calls

# A call that ends its process each time, such as by exhausting the memory, must not end every run that resumes the session.
MAX_ATTEMPTS = 3
_MESSAGES = (AssistantMessage, ModelRetry, ToolUse, UserMessage)
_CUT_OFF = "Your last answer was cut off before its end: give it again, as a whole."
_NOT_OURS: dict[str, Any] = {
    "is_error": True,
    "outcome": "cancelled",
    "error_type": "NotOurs",
    "error_message": "This call came with a log that this installation did not write, or that was changed: it was not run "
    "here. Ask for it again if it is still wanted.",
}


async def settle_open_calls(run: Run, *, prompt_follows: bool = False) -> None:
    """Give every open call of an earlier run its result, in order.

    If a prompt follows, calls that wait for a person are left for `supersede`, and with them calls that never started;
    otherwise raises `RunStopped` if a call waits for a person.
    """
    # The code that made these calls no longer exists, so they are not repeated.
    for record in run.view.open_inner_calls():
        await _end_inner(run, record)
    try:
        for part in run.parts.at(Part.settle):
            await part.settle(prompt_follows)
        waiting_ids = {question.tool_use_id for question in run.view.open_questions()} if prompt_follows else set()
        await settle_calls(run, [each for each in run.view.open_calls() if not _is_superseded(run, each, waiting_ids)])
        last = next((e for e in newest_standing(run.view.events) if isinstance(e, _MESSAGES)), None)
        if not prompt_follows and isinstance(last, AssistantMessage) and last.incomplete:
            # Not every endpoint accepts a conversation that ends with its own text, and none continues it reliably.
            await run.record(UserMessage(_CUT_OFF, origin="repair"))
    except RunStopped as stopped:
        # The prompt that follows ends the question, so that the run need not wait for its answer.
        if stopped.reason != "waiting" or not prompt_follows:
            raise


async def supersede(run: Run) -> Sequence[Event]:
    """Return the events that end all open questions and calls, because a prompt was sent instead of an answer.

    They must be stored in one batch with that prompt.
    """
    view = run.view
    questions, calls = view.open_questions(), view.open_calls()
    asked_ids = {record.use.tool_use_id for record in calls if view.has_asked(record.use.tool_use_id)}
    ends: list[Event] = closing_events(calls, questions, SUPERSEDED, SAID_INSTEAD, asked_ids=asked_ids)
    for part in run.parts.at(Part.supersede):
        ends += await part.supersede(questions)
    run.questions.parked.clear()
    return ends


def untouched_questions(run: Run) -> list[UserQuestion]:
    """The questions of an earlier run that this run neither repeated nor ended, because it ended before its prompt was
    accepted. They still await their answer.
    """
    asked_here = run.questions.taken_ids | {question.question_id for question in run.questions.parked.values()}
    open_ids = {record.use.tool_use_id for record in run.view.open_calls()}
    return [
        question
        for question in run.view.open_questions()
        if question.question_id not in asked_here
        and (
            question.tool_use_id in open_ids
            or any(part.still_waits(question) for part in run.parts.at(Part.still_waits))
        )
    ]


def _is_superseded(run: Run, record: CallRecord, waiting_ids: Collection[str | None]) -> bool:
    """Whether `supersede` ends a call: it waits for a person, or never started while another one waits for a person."""
    use_id, is_ours = record.use.tool_use_id, run.view.is_ours(record.use)
    is_untouched = record.started is None and not run.view.has_asked(use_id)
    return is_ours and (use_id in waiting_ids or (bool(waiting_ids) and is_untouched))


async def settle_calls(run: Run, records: Iterable[CallRecord]) -> None:
    """Give these calls their results: run them (again, if that is harmless), or record an outcome, known or `unknown`."""
    again: list[ToolUse] = []
    asking_ids = {question.tool_use_id for question in run.view.open_questions()}
    for record in records:
        use, started = record.use, record.started
        tool = run.agent.tools.get(use.name) if use.name in run.agent.tools else None
        # First: nothing else in a log from elsewhere may decide what happens, not even a question that it claims was
        # asked.
        if not run.view.is_ours(use):
            await run.record(ToolResult(use.tool_use_id, **_NOT_OURS))
        elif started is not None and started.name not in run.agent.tools and use.tool_use_id in asking_ids:
            raise waits_elsewhere(run, started.name)
        elif started is None or run.parts.continue_call(use.tool_use_id) or _may_repeat(run, record, started, tool):
            again.append(use)
        else:
            await run.record(await _end_in_doubt(run, record, tool))
    # Last, so that the other results are in the log whatever these calls do.
    await run_calls(run, again)


async def _end_inner(run: Run, record: CallRecord) -> None:
    """Close a call that code made, as part of the call that ran the code."""
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


def _may_repeat(run: Run, record: CallRecord, started: ToolStarted, tool: BareTool | None) -> bool:
    """Whether a call in doubt may run again. The limit does not apply if the call asked a person: waiting is not failing."""
    harmless = tool is not None and tool.effect in REPEATABLE and started.effect in REPEATABLE
    return harmless and (record.attempts < MAX_ATTEMPTS or run.view.has_asked(record.use.tool_use_id))


async def _end_in_doubt(run: Run, record: CallRecord, tool: BareTool | None) -> ToolResult:
    """Return the result of a call in doubt: the outcome if the tool can determine it, otherwise `unknown`."""
    use_id = record.use.tool_use_id
    try:
        context = tool_context(run, record.use)
        output = None if tool is None else await call_guest(partial(tool.reconcile, record.use, context), tool.name)
    except RunStopped:
        raise  # the tool asks a person, who may answer later
    except Exception:  # noqa: BLE001 - a tool may raise anything; "unknown" is the safe outcome
        output = None
    if output is None or tool is None:
        return unknown_result(use_id, IN_DOUBT)
    result = result_of(use_id, plain_output(output, tool))
    return await shrink_output(run, await masked(run, await store_result(run, result)))
