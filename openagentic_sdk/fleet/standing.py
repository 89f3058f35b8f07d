"""The state of a run according to its session's log, the only authority; the run's row is a hint."""

from __future__ import annotations

import time

from ..errors import FleetError, LogCorruptError, SessionNotFoundError
from ..events import AssistantMessage, Result, SystemInit, SystemNotice, ToolResult, UserAnswer, UserMessage
from ..ground.backoff import Backoff
from ..ground.frozen import frozen
from ..parts.record.folds.spending import own_spending
from ..parts.workflows.fold import CANCELLED, StepsFold
from ..parts.workflows.inbox import ARRIVED, Park, has_arrived
from ..sessions.base import SessionStore
from ..sessions.core import TENANT_KEY
from ..sessions.folds.standing import find_request
from ..sessions.folds.usage import Usage, add_cost, add_usage
from ..sessions.resume import load_view
from ..sessions.seal import Seal
from .record import FleetRun, RunOutcome, RunUsage

# The delays before retrying a run whose answered call needs a tool that its worker lacked.
_FOR_ANOTHER = Backoff(1.0, 300.0, jitter=0.5)
# The delays before retrying a run whose store refused an event.
_REFUSED = Backoff(2.0, 300.0)
# How many events at the end of a log are searched for earlier attempts.
_LOOKED_AT = 200


@frozen
class Standing:
    """The state of a run according to its log. `is_there` is true if the session exists, `is_said` if the run's prompt is
    the newest, or was sent while the newest was being worked on.

    `outcome` is None if the run is to continue. The run's own events come after `after_seq`; `cost_usd` is the cost of the
    session so far, None if unknown.
    """

    is_there: bool
    is_said: bool = False
    outcome: RunOutcome | None = None
    after_seq: int = 0
    cost_usd: float | None = 0.0


def look(store: SessionStore, run: FleetRun) -> Standing:
    """Read the state of a run from its session's log.

    Raises `FleetError` for a session of another tenant. Also raises the errors of `load_view`.
    """
    try:
        metadata = store.read_metadata(run.session)["metadata"]
    except SessionNotFoundError:
        when = "while the run was parked" if run.parked_seq else "before the run began"
        deleted = RunOutcome("failed", "error", f"session {run.session!r} was deleted {when}")
        return Standing(False, outcome=deleted if run.parked_seq or run.must_exist else None)
    if (metadata.get(TENANT_KEY) or "") != run.tenant:
        raise FleetError(f"run {run.id}: session {run.session!r} does not exist for this tenant", run_id=run.id)
    view, _ = load_view(store, run.session)
    request = view.requests.get(run.prompt_id)
    later_events = () if request is None else store.iter_events(run.session, after_seq=request.seq - 1)
    newest = find_request(later_events, run.prompt_id.__eq__)
    if newest is None:
        return Standing(True, after_seq=store.last_seq(run.session), cost_usd=view.cost_usd)
    outcome, last = None, newest.result
    if not newest.is_newest and last is not None and last.stop_reason == "waiting":
        outcome = RunOutcome(
            "cancelled", "interrupted", "its question was not answered: another prompt arrived instead"
        )
    elif newest.state == "over" and last is not None and last.stop_reason != "interrupted":
        outcome = outcome_of(last)
    elif last is not None:
        outcome = _pause(store, run, last)
    return Standing(True, run.prompt_id in view.requests.asked, outcome, newest.said_seq - 1, view.cost_usd)


def begins_again(store: SessionStore, run: FleetRun) -> bool:
    """Whether a retry of this run must begin with its prompt, because the log does not contain it as one to be answered.

    Raises `FleetError` if the session has continued since, or belongs to another tenant, and the errors of `load_view`.
    """
    if not look(store, run).is_there:
        return True
    requests = load_view(store, run.session)[0].requests
    newest = requests.asked[0] if requests.asked else None
    is_said = run.prompt_id in requests
    has_continued = requests.answer_to(newest) is not None if run.prompt is None else is_said and bool(requests.asked)
    if run.prompt_id not in requests.asked and has_continued:
        raise FleetError(
            f"run {run.id} cannot be retried: its session {run.session!r} has continued with another prompt since; enqueue "
            "its task again",
            run_id=run.id,
        )
    return run.prompt_id not in requests.asked


def usage_after(store: SessionStore, session: str, after_seq: int) -> RunUsage | None:
    """The usage of the run whose events come after `after_seq`; None without events. Raises the errors of `iter_events`."""
    events = list(store.iter_events(session, after_seq=after_seq)) if store.session_exists(session) else []
    if not events:
        return None
    tokens: Usage | None = None
    cost_usd: float | None = 0.0
    for event in own_spending(events):
        if event.usage is None and event.cost_usd is None:
            continue  # cut off before the usage arrived
        tokens = add_usage(tokens, event.usage)
        cost_usd = add_cost(cost_usd, event.cost_usd)
    return RunUsage(
        (tokens or {}).get("input_tokens", 0),
        (tokens or {}).get("output_tokens", 0),
        cost_usd,
        sum(isinstance(event, ToolResult) and event.outcome == "unknown" for event in events),
        None if events[0].ts is None else max(0.0, time.time() - events[0].ts),
    )


def outcome_of(result: Result) -> RunOutcome:
    """The next state of a run with this result."""
    if result.stop_reason == "error":
        return RunOutcome("failed", "error", result.error_message or "error")
    return RunOutcome("ended", result.stop_reason, result.error_message)


def last_outcome(store: SessionStore, session: str, after_seq: int) -> RunOutcome | None:
    """The outcome of the last result after event `after_seq`; None without one. Raises the errors of `iter_events`."""
    results = [event for event in store.iter_events(session, after_seq=after_seq) if isinstance(event, Result)]
    return outcome_of(results[-1]) if results else None


def _pause(store: SessionStore, run: FleetRun, last: Result) -> RunOutcome | None:
    """The outcome of a run that was last parked or interrupted; None if it is to continue."""
    at = last.seq or 0
    if last.stop_reason == "waiting" and run.lost_owner and not is_answered(store, run.session, at):
        # Its owner died after writing the log and before updating the row.
        return parked(store, run.session, at)
    if last.stop_reason == "interrupted" and ended_itself(store, run.session):
        return RunOutcome("cancelled", "interrupted")
    if last.stop_reason == "interrupted" and 0 < run.parked_seq < at:
        since = list(store.iter_events(run.session, after_seq=run.parked_seq, limit=at - run.parked_seq))
        if not any(isinstance(event, SystemInit) for event in since):
            # It was ended while parked, by a client that used only the session and not the fleet.
            return RunOutcome("cancelled", "interrupted")
    return None


def ended_itself(store: SessionStore, session: str) -> bool:
    """Whether a workflow was cancelled by an event and has cleaned up, so that there is nothing to continue."""
    return load_view(store, session, (StepsFold,))[0].fold(StepsFold).find(CANCELLED) is not None


def parked(store: SessionStore, session: str, seq: int, key_file: str | None = None) -> RunOutcome:
    """The outcome of a run that has parked and whose log ends at `seq`; a workflow that waits for a time is queued for it.

    An event that arrived between a workflow's last check and its end could not wake the run: it is queued at once. Blocks.
    """
    park = Park.read(store, session)
    if park is None:
        is_asking = bool(store.open_question_ids(session))
        return RunOutcome("waiting", "waiting", parked_seq=seq) if is_asking else _for_another(store, session, seq)
    if has_arrived(store, session, Seal(key_file)):
        return RunOutcome("queued", "waiting")
    if park.wake_at is None:
        return RunOutcome("waiting", "waiting", parked_seq=seq)
    return RunOutcome("queued", "waiting", delay_s=max(0.0, park.wake_at - time.time()), parked_seq=seq)


def _for_another(store: SessionStore, session: str, seq: int) -> RunOutcome:
    """The outcome of a parked run whose questions are all answered, but whose call needs a tool that this process lacks.

    Nobody would wake a parked run; another worker may have the tool, for instance of another version. Each attempt appends
    to the log, hence the growing delays.
    """
    attempts, reason = 0, None
    for event in store.iter_events(session, after_seq=max(0, seq - _LOOKED_AT)):
        if isinstance(event, UserAnswer):
            attempts = 0
        elif isinstance(event, Result) and event.stop_reason == "waiting":
            attempts, reason = attempts + 1, event.error_message
    return RunOutcome("queued", error=reason, delay_s=_FOR_ANOTHER.wait_s(max(1, attempts)))


def refused(store: SessionStore, session: str, error: str) -> RunOutcome:
    """The outcome of a run that ended because its store refused an event: it is retried until the store accepts it.

    Each attempt may pay for the refused answer again, hence the growing delays while the log makes no progress.
    """
    attempts = 1
    for event in store.iter_events(session, after_seq=max(0, store.last_seq(session) - _LOOKED_AT)):
        if isinstance(event, UserMessage | AssistantMessage | ToolResult):
            attempts = 1
        elif isinstance(event, SystemInit):
            attempts += 1
    return RunOutcome("queued", error=error, delay_s=_REFUSED.wait_s(attempts))


def is_answered(store: SessionStore, session: str, seq: int) -> bool:
    """Whether the log contains an answer, or an event for a workflow, after event `seq`.

    True for an unreadable or deleted log: the run will report the error.
    """
    try:
        return any(
            isinstance(event, UserAnswer) or (isinstance(event, SystemNotice) and event.code == ARRIVED)
            for event in store.iter_events(session, after_seq=seq)
        )
    except (LogCorruptError, SessionNotFoundError):
        return True
