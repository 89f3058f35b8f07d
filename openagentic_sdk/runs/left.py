"""Requests that nobody works on any more: their process was told to end, or died. Who has their agent and key goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..agents import AGENT_KEY, Agents
from ..errors import OptionsError, SessionLockedError
from ..ground.frozen import frozen
from ..options import OpenAgenticOptions
from ..parts.record.abandoned import end_session
from ..sessions.base import SessionStore
from ..sessions.folds.standing import ROW_STATES, find_request
from ..sessions.follow import is_left
from ..sessions.resume import load_view
from ..sessions.seal import Seal

WISHES_KEY = "wishes"
# So many processes may die over a request before nobody takes it up again: it may be what kills them.
MAX_DEATHS = 10


@frozen
class LeftRequest:
    """A request without a process, at the end of its session's log, `seq`. `deaths` counts the processes that it lost.

    `said_seq` is its prompt. `refusal` says why this process cannot go on with it; then `options`, which go on with it, are
    None.
    """

    session_id: str
    seq: int
    said_seq: int = 0
    deaths: int = 0
    options: OpenAgenticOptions | None = None
    refusal: str | None = None


def find_left(store: SessionStore, session_id: str, agents: Agents | None) -> LeftRequest | None:
    """The newest request of a session, if nobody works on it; None when somebody does, or it is parked or over.

    Raises `SessionNotFoundError` and what reading a log raises.
    """
    row = store.read_summary(session_id)
    if not is_left(store, row):
        return None
    known: Mapping[str, Any] = store.read_metadata(session_id)["metadata"]
    agent = str(known.get(AGENT_KEY))
    if agents is None or agent not in agents:
        return _refused(session_id, row.events, f"there is no agent {agent!r:.100} here")
    try:
        options = agents.options(agent, known.get(WISHES_KEY), session_store=store, resume=session_id)
    except OptionsError as error:
        return _refused(session_id, row.events, str(error))
    view, _ = load_view(store, session_id, seal=Seal(options.key_file))
    request_id = next(iter(view.requests.asked), None)
    if request_id is None:
        return _refused(session_id, row.events, "its prompt has no request id: no server took it")
    said_seq = view.requests[request_id].seq
    request = find_request(store.iter_events(session_id, after_seq=said_seq - 1), request_id.__eq__)
    if not all(map(view.is_ours, (event for event in view.events if event.seq == said_seq))):
        return _refused(
            session_id, row.events, "it was taken with another key: hosts that go on for each other share one"
        )
    deaths = (request.deaths if request is not None else 0) + (row.state != ROW_STATES["suspended"])
    return LeftRequest(session_id, row.events, said_seq, deaths, options)


def _refused(session_id: str, seq: int, why: str) -> LeftRequest:
    return LeftRequest(session_id, seq, refusal=f"the request was left by its process, and {why}")


def first_writer_at(store: SessionStore, left: LeftRequest) -> Callable[[], None]:
    """A guard for the run that goes on with a request: it refuses the run when another one has by now."""
    checked = False

    def check() -> None:
        nonlocal checked
        if not checked and store.last_seq(left.session_id) != left.seq:
            raise SessionLockedError(left.session_id, "a process that went on with its request")
        checked = True

    return check


def give_up(store: SessionStore, left: LeftRequest) -> None:
    """End a request that keeps losing its processes, as an `error`. Raises `SessionLockedError`."""
    assert left.options is not None, "whoever gives up could go on"
    text = f"{left.deaths} processes died while they worked on this request"
    end_session(store, left.session_id, Seal(left.options.key_file), also_parked=True, failure=text)
