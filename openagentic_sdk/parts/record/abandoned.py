"""Close the log of a run whose process died, and those of its subagents, which nobody else would close."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ...errors import SessionError, SessionLockedError
from ...events import Event, Result, SubagentFinished, SubagentStarted, UserQuestion
from ...sessions.closing import LOST, REWOUND, SAID_INSTEAD, SUPERSEDED, closing_events
from ...sessions.core import StoreCore
from ...sessions.folds.features.all import SubagentsFold
from ...sessions.folds.features.untrusted import UntrustedFold
from ...sessions.folds.view import CallRecord, SessionView
from ...sessions.resume import load_view
from ...sessions.seal import Seal

# The folds over the log of a run that died.
_ENDED = (SubagentsFold, UntrustedFold)


def copied_question(question: UserQuestion, tool_use_id: str, child_session_id: str) -> UserQuestion:
    """A copy of a subagent's question for its parent's log, where the person who answers finds it."""
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
    """Close the logs of a subagent whose process died and of its own subagents; return the event for the parent's log.

    A log is left unchanged if its run waits for an answer (unless `also_parked`), if a writer holds it, or if it cannot be
    read. Raises `SessionLockedError` for a held log if `answered_by` is `SUPERSEDED`.
    """
    session_id, view = started.child_session_id, SessionView(_ENDED)
    origin: dict[str, Any] = {"parent_tool_use_id": started.tool_use_id, "agent_name": started.name}
    try:
        close = partial(end_session, store, session_id, seal, origin=origin)
        view = close(also_parked=also_parked, answered_by=answered_by)[0]
    except SessionError as error:
        if answered_by == SUPERSEDED and isinstance(error, SessionLockedError):
            raise  # another process is resuming it: its question cannot be closed
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
    failure: str | None = None,
) -> tuple[SessionView, bool]:
    """Close the log of a run whose process died, and return the session's view and whether the run was open.

    With `also_parked`, also close a run that waits for a person or was suspended. Open questions are closed with this
    `answered_by`; `origin` contains the fields that mark a subagent's events. With a `failure`, the run ends as an error
    with this message. Raises `SessionNotFoundError`, and `SessionLockedError` if a run holds the session.
    """
    with store.open_writer(session_id) as writer:
        view, _ = load_view(store, session_id, _ENDED, seal=seal)
        if store.read_run_state(session_id) not in ("running", *(["waiting", "suspended"] if also_parked else [])):
            return view, False
        children = filter(view.is_ours, view.fold(SubagentsFold).open.values())
        end_child = partial(end_abandoned, store, seal=seal, also_parked=also_parked, answered_by=answered_by)
        calls = [*view.open_inner_calls(), *view.open_calls()]
        ends = _ends(view, map(end_child, children), calls, view.open_questions(), answered_by)
        result = _result(view, session_id)
        if failure is not None:
            result = replace(result, stop_reason="error", error_type="ProcessLost", error_message=failure)
        for batch in (ends, [result]):
            assert view.authority is not None, "a view with a seal has an authority"
            inside = [
                {"parent_tool_use_id": each.parent_tool_use_id} if each.parent_tool_use_id else {} for each in batch
            ]
            events = [replace(event, **{**(origin or {}), **own}) for event, own in zip(batch, inside, strict=True)]
            for event in writer.append(view.authority.sign(events, writer.last_seq)):
                view.apply(event, made_here=True)
        return view, True


def ends_of_rewind(store: StoreCore, session_id: str, to_seq: int, seal: Seal) -> list[Event]:
    """Close the logs of the subagents that were started after `to_seq`; return the events that close the rest.

    The events close the calls, subagents and questions opened after `to_seq`, and the run if nothing else is open.
    """
    view, _ = load_view(store, session_id, _ENDED, seal=seal)
    kept_ids: set[str | None] = set()
    children: list[SubagentStarted] = []
    for started in view.fold(SubagentsFold).open.values():
        if (started.seq or 0) <= to_seq:
            kept_ids.add(started.tool_use_id)
        elif view.is_ours(started):
            children.append(started)
    # An answer is kept or removed as a whole, with all of its calls.
    removed_seqs = {seq for block in view.conversation.blocks() if max(block) > to_seq for seq in block}
    kept_ids.update(record.use.tool_use_id for record in view.open_calls() if record.use.seq not in removed_seqs)
    inner = view.open_inner_calls()
    kept_ids.update(each.use.tool_use_id for each in inner if each.use.parent_tool_use_id in kept_ids)
    calls = [each for each in (*inner, *view.open_calls()) if each.use.tool_use_id not in kept_ids]
    questions = [
        question
        for question in view.open_questions()
        if question.tool_use_id not in kept_ids and (question.tool_use_id is not None or (question.seq or 0) > to_seq)
    ]
    end_child = partial(end_abandoned, store, seal=seal, also_parked=True, answered_by=REWOUND)
    ends = _ends(view, map(end_child, children), calls, questions, REWOUND)
    is_over = bool(ends) and not kept_ids and len(questions) == len(view.open_questions())
    return [*ends, _result(view, session_id)] if is_over else ends


def _ends(
    view: SessionView,
    finished: Iterable[SubagentFinished],
    calls: Sequence[CallRecord],
    questions: Sequence[UserQuestion],
    answered_by: str,
) -> list[Event]:
    asked_ids = [record.use.tool_use_id for record in calls if view.has_asked(record.use.tool_use_id)]
    texts = SAID_INSTEAD if answered_by == SUPERSEDED else LOST
    return [*finished, *closing_events(calls, questions, answered_by, texts, asked_ids=asked_ids)]


def _result(view: SessionView, session_id: str) -> Result:
    request_id = next(iter(view.requests.asked), None)
    return Result(view.last_text, session_id, "interrupted", view.usage, view.cost_usd, request_id=request_id)
