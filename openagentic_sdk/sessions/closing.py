"""End the calls and questions that nobody will continue: one pure function returns the events that close them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..events import Event, ToolResult, UserAnswer, UserQuestion
from ..ground.frozen import changed, frozen
from .folds.view import CallRecord

# `user.answer.answered_by` of a question that ended because the person sent a prompt instead of an answer.
SUPERSEDED: Final = "superseded"
# The same if a rewind undid the question or its call.
REWOUND: Final = "rewound"


@frozen
class EndTexts:
    """The texts for calls that end without a result. `in_doubt` is for a call that started and asked nobody; None if the
    process that ran the call has ended it itself.
    """

    not_started: str = "The run was interrupted before this call started: it did not run."
    cut_short: str = (
        "The run was interrupted while this call was running: it may have taken effect in part. Check before repeating."
    )
    in_doubt: str | None = None


IN_DOUBT = (
    "The process died while this call was running: it may or may not have run. "
    "Check what it would have changed before repeating it."
)
INTERRUPTED = EndTexts()
LOST = EndTexts(in_doubt=IN_DOUBT)
SAID_INSTEAD = EndTexts(
    "This call did not run: a person was asked first, and said something else instead of answering.",
    "This call was ended while it waited for a person, who said something else instead of answering. "
    "If it changes anything, check before repeating it.",
    IN_DOUBT,
)


def closing_events(
    calls: Iterable[CallRecord],
    questions: Iterable[UserQuestion],
    answered_by: str,
    texts: EndTexts = INTERRUPTED,
    *,
    asked_ids: Iterable[str | None] = (),
) -> list[Event]:
    """The events that end these calls, and these questions with empty answers; `asked_ids` are calls that asked a person.

    Calls come first: whatever part of the batch a power cut leaves, no call runs with an answer that nobody gave.
    """
    questions = list(questions)
    asked_calls = {question.tool_use_id for question in questions} | set(asked_ids)
    ends: list[Event] = []
    for record in calls:
        use = record.use
        if record.started is None:
            end = cancelled_result(use.tool_use_id, texts.not_started)
        # A call that asked a person stopped there, so it is known how far it had come.
        elif texts.in_doubt is None or use.tool_use_id in asked_calls:
            end = cancelled_result(use.tool_use_id, texts.cut_short)
        else:
            end = unknown_result(use.tool_use_id, texts.in_doubt)
        ends.append(changed(end, parent_tool_use_id=use.parent_tool_use_id) if use.is_inside else end)
    return ends + [UserAnswer(question.question_id, "", answered_by=answered_by) for question in questions]


def cancelled_result(tool_use_id: str, text: str) -> ToolResult:
    """The result of a call that a cancellation ended."""
    return ToolResult(tool_use_id, is_error=True, error_type="Cancelled", error_message=text, outcome="cancelled")


def unknown_result(tool_use_id: str, text: str) -> ToolResult:
    """The result of a call that may or may not have run."""
    return ToolResult(tool_use_id, is_error=True, error_type="UnknownOutcome", error_message=text, outcome="unknown")
