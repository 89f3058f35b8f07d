"""How a run stands in its session's log, which alone says what happened; its row is only a hint."""

from __future__ import annotations

from ..errors import FleetError, LogCorruptError, SessionNotFoundError
from ..events import Result, SystemInit, UserAnswer
from ..frozen import frozen
from ..sessions.base import SessionStore
from ..sessions.folds.summary import TENANT_KEY
from ..sessions.resume import load_view
from .record import FleetRun, Outcome


@frozen
class Standing:
    """Whether its session is there, whether its prompt is in the log, and what came of it; None when it is to go on."""

    is_there: bool
    is_said: bool = False
    outcome: Outcome | None = None


def look(store: SessionStore, run: FleetRun) -> Standing:
    """What the log says of a run. Raises `FleetError` for a session of another tenant, and what reading a log raises."""
    try:
        known = store.read_metadata(run.session)["metadata"]
    except SessionNotFoundError:
        gone = Outcome("failed", "error", f"session {run.session!r} was deleted while the run was parked")
        return Standing(False, outcome=gone if run.parked_seq else None)
    if (known.get(TENANT_KEY) or "") != run.tenant:
        raise FleetError(f"run {run.id}: there is no session {run.session!r} for this tenant", run_id=run.id)
    view, _ = load_view(store, run.session)
    said_at = view.prompts.get(run.request_id)
    if said_at is None:
        return Standing(True)
    results = [result for result in view.results if (result.seq or 0) > said_at]
    final = next((result for result in results if result.stop_reason not in ("waiting", "interrupted")), None)
    if final is not None:
        return Standing(True, True, outcome_of(final))
    last = results[-1] if results else None
    return Standing(True, True, None if last is None else _pause(store, run, last))


def outcome_of(result: Result) -> Outcome:
    """Where a run belongs whose own end this is."""
    if result.stop_reason == "error":
        return Outcome("failed", "error", result.error_message or "error")
    return Outcome("ended", result.stop_reason, result.error_message)


def _pause(store: SessionStore, run: FleetRun, last: Result) -> Outcome | None:
    """What a run is that was parked or interrupted last; None when it is to go on."""
    at = last.seq or 0
    if last.stop_reason == "waiting" and run.lost_owner and not is_answered(store, run.session, at):
        # Its owner died between the log and the row.
        return Outcome("waiting", "waiting", parked_seq=at)
    if last.stop_reason == "interrupted" and 0 < run.parked_seq < at:
        since = list(store.iter_events(run.session, after_seq=run.parked_seq, limit=at - run.parked_seq))
        if not any(isinstance(event, SystemInit) for event in since):
            # It was ended where it was parked, by somebody who knows the session only.
            return Outcome("cancelled", "interrupted")
    return None


def is_answered(store: SessionStore, session: str, seq: int) -> bool:
    """Whether an answer stands in the log behind that event. Of a log that cannot be read, whoever runs it says so."""
    try:
        return any(isinstance(event, UserAnswer) for event in store.iter_events(session, after_seq=seq))
    except (LogCorruptError, SessionNotFoundError):
        return True
