"""Close the log of a run whose process died, and those of its subagents, whom nobody else would end."""

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

# What is read of the log of a run that died.
_ENDED = (SubagentsFold, UntrustedFold)


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
    failure: str | None = None,
) -> tuple[SessionView, bool]:
    """Close the log of a run whose process died, or with `also_parked` of one that waits for a person or was suspended, and
    whether it was open. Its questions are closed as `answered_by`; `origin` are the fields of a subagent's events. With a
    `failure` it ends as an error.

    Raises `SessionNotFoundError`, and `SessionLockedError` when somebody runs it.
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
            assert view.authority is not None, "a view with a seal has one"
            inside = [
                {"parent_tool_use_id": each.parent_tool_use_id} if each.parent_tool_use_id else {} for each in batch
            ]
            events = [replace(event, **{**(origin or {}), **own}) for event, own in zip(batch, inside, strict=True)]
            for event in writer.append(view.authority.sign(events, writer.last_seq)):
                view.apply(event, made_here=True)
        return view, True


def ends_of_rewind(store: StoreCore, session_id: str, to_seq: int, seal: Seal) -> list[Event]:
    """The end of the calls, subagents and questions that a rewind to `to_seq` takes back, and of the run when nothing else
    of it is open. The logs of those subagents get theirs now.
    """
    view, _ = load_view(store, session_id, _ENDED, seal=seal)
    kept_ids: set[str | None] = set()
    children: list[SubagentStarted] = []
    for started in view.fold(SubagentsFold).open.values():
        if (started.seq or 0) <= to_seq:
            kept_ids.add(started.tool_use_id)
        elif view.is_ours(started):
            children.append(started)
    # An answer stays or goes as a whole, with all of its calls.
    gone = {seq for block in view.conversation.blocks() if max(block) > to_seq for seq in block}
    kept_ids.update(record.use.tool_use_id for record in view.open_calls() if record.use.seq not in gone)
    inner = view.open_inner_calls()
    kept_ids.update(each.use.tool_use_id for each in inner if each.use.parent_tool_use_id in kept_ids)
    calls = [each for each in (*inner, *view.open_calls()) if each.use.tool_use_id not in kept_ids]
    questions = [
        asked
        for asked in view.open_questions()
        if asked.tool_use_id not in kept_ids and (asked.tool_use_id is not None or (asked.seq or 0) > to_seq)
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
