"""The database row of a fleet's run, and its states.

    queued    -> running     a worker claims it: it is due, its session is free, the limits allow it
    running   -> running     another worker claims it, because the lease expired
    running   -> ended, failed, cancelled, waiting, queued (handed back), each by its owner only
    waiting   -> queued      the question is answered, or an event arrives
    queued, waiting -> cancelled

An owner's transition names its own fence, every other one the state that it leaves. The row is a hint about who should
try; the session's log records what happened, and the session's epoch decides who may write there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal

from ..events import StopReason
from ..ground.frozen import frozen
from ..serialization import loads_json

FleetState = Literal["queued", "running", "waiting", "ended", "failed", "cancelled"]
STATES: tuple[FleetState, ...] = ("queued", "running", "waiting", "ended", "failed", "cancelled")
OPEN: tuple[FleetState, ...] = ("queued", "running", "waiting")
OVER: tuple[FleetState, ...] = ("ended", "failed", "cancelled")
# The row format that this version writes, and the newest that it understands.
FORMAT = 1
MAX_ATTEMPTS = 3


def id_in_session(request_id: str, session: str) -> str:
    """The request id of a run whose prompt has an id that a run of another session of its tenant has, too."""
    return f"{request_id}@{hashlib.sha256(session.encode()).hexdigest()[:16]}"


@frozen
class FleetRun:
    """A run, as read from its row. Times are seconds since 1970 by the database's clock; `lease_left_s` is `None` unless the
    run is running.

    `attempts` counts the claims that did not end in a park or a hand-over: more than one means that a worker was lost.
    `unknown` counts the calls that may or may not have taken effect.
    """

    id: int
    session: str
    tenant: str
    queue: str
    agent: str
    priority: int
    state: FleetState
    request_id: str
    attempts: int
    max_attempts: int
    steals: int
    owner: str
    created_at: float
    run_at: float
    started_at: float | None
    ended_at: float | None
    lease_left_s: float | None
    is_cancelled: bool
    cancelled_by: str | None
    stop_reason: StopReason | None
    error: str | None
    workspace: str | None
    traceparent: str | None
    format: int
    fence: int
    parked_seq: int
    lost_owner: str
    body: str
    unknown: int

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, failed or been cancelled."""
        return self.state in OVER

    @property
    def is_parked(self) -> bool:
        """Whether the run waits for a person, an event or a time, or was woken and no worker has claimed it since."""
        return self.state == "waiting" or (self.state == "queued" and self.stop_reason == "waiting")

    @property
    def prompt(self) -> Any:
        """The prompt: a string, a list of parts, or None to continue what is in the log."""
        return loads_json(self.body).get("prompt")

    @property
    def prompt_id(self) -> str:
        """The id of the prompt in the session's log."""
        retried_id = loads_json(self.body).get("request_id")
        return str(retried_id) if retried_id else self.request_id.removesuffix(id_in_session("", self.session))

    @property
    def wishes(self) -> Mapping[str, Any]:
        """The options that the client requested, as in `Agents.options`; empty without any."""
        wishes: Mapping[str, Any] = loads_json(self.body).get("wishes") or {}
        return wishes

    @property
    def listener(self) -> tuple[str, str] | None:
        """The session of the workflow to notify when this run is over, and the event to deliver, or None."""
        pair = loads_json(self.body).get("told")
        return None if pair is None else (str(pair[0]), str(pair[1]))

    @property
    def must_exist(self) -> bool:
        """Whether the run fails if its session does not exist."""
        return loads_json(self.body).get("must_exist") is True

    @property
    def is_step(self) -> bool:
        """Whether a workflow enqueued the run as one of its steps; its session is then a child of the workflow's."""
        return self.listener is not None and self.request_id.startswith("step:")

    def to_dict(self) -> dict[str, Any]:
        """The fields to show to people and programs: all but the prompt, the client's wishes and internal bookkeeping."""
        hidden = ("body", "fence", "parked_seq", "format", "lost_owner")
        return {spec.name: getattr(self, spec.name) for spec in fields(self) if spec.name not in hidden}


@frozen
class RunUsage:
    """The usage of a run so far, according to its session's log; `cost_usd` is `None` if a price is unknown.

    `unknown` counts calls that may or may not have taken effect; `first_s` is the age of the run's first event in seconds,
    `None` if unknown.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    unknown: int = 0
    first_s: float | None = None


@frozen
class RunOutcome:
    """The next state of a run after `running`. The run is not claimed again for `delay_s` seconds.

    `parked_seq` is the last `seq` of the log of a parked run, otherwise 0. If `used` is `None`, the usage in the row is left
    unchanged.
    """

    state: FleetState
    stop_reason: StopReason | None = None
    error: str | None = None
    delay_s: float = 0.0
    parked_seq: int = 0
    used: RunUsage | None = None
