"""Find requests abandoned by a process that was shut down or died; a process with their agent and key can resume them."""

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
from ..sessions.follow import is_abandoned
from ..sessions.resume import load_view
from ..sessions.seal import Seal

WISHES_KEY = "wishes"
# After this many deaths a request is no longer resumed: it may be the reason why the processes die.
MAX_DEATHS = 10


@frozen
class AbandonedRequest:
    """An abandoned request; its session's log ends at `seq`. `deaths` counts the processes that died during it.

    `said_seq` is the `seq` of its prompt. `options` resume the request; if this process cannot, they are None, `said_seq`
    and `deaths` are 0, and `refusal` is the reason.
    """

    session_id: str
    seq: int
    said_seq: int = 0
    deaths: int = 0
    options: OpenAgenticOptions | None = None
    refusal: str | None = None


def find_abandoned(store: SessionStore, session_id: str, agents: Agents | None) -> AbandonedRequest | None:
    """Find the newest request of a session if it is abandoned; None if it is running, parked or finished.

    Raises `SessionNotFoundError`, and the errors of reading a log.
    """
    row = store.read_summary(session_id)
    if not is_abandoned(store, row):
        return None
    metadata: Mapping[str, Any] = store.read_metadata(session_id)["metadata"]
    agent = str(metadata.get(AGENT_KEY))
    if agents is None or agent not in agents:
        return _refused(session_id, row.events, f"this server has no agent {agent!r:.100}")
    try:
        options = agents.options(agent, metadata.get(WISHES_KEY), session_store=store, resume=session_id)
    except OptionsError as error:
        return _refused(session_id, row.events, str(error))
    view, _ = load_view(store, session_id, seal=Seal(options.key_file))
    request_id = next(iter(view.requests.asked), None)
    if request_id is None:
        return _refused(session_id, row.events, "its prompt has no request id, so it did not come from a server")
    said_seq = view.requests[request_id].seq
    request = find_request(store.iter_events(session_id, after_seq=said_seq - 1), request_id.__eq__)
    if not all(map(view.is_ours, (event for event in view.events if event.seq == said_seq))):
        return _refused(
            session_id,
            row.events,
            "it was accepted with another key; hosts that continue each other's requests must share one",
        )
    deaths = (request.deaths if request is not None else 0) + (row.state != ROW_STATES["suspended"])
    return AbandonedRequest(session_id, row.events, said_seq, deaths, options)


def _refused(session_id: str, seq: int, why: str) -> AbandonedRequest:
    return AbandonedRequest(
        session_id, seq, refusal=f"the request was abandoned by its process and cannot be continued here: {why}"
    )


def first_writer_at(store: SessionStore, request: AbandonedRequest) -> Callable[[], None]:
    """Return a guard for the run that resumes a request; it raises `SessionLockedError` if another process was faster."""
    checked = False

    def check() -> None:
        nonlocal checked
        if not checked and store.last_seq(request.session_id) != request.seq:
            raise SessionLockedError(request.session_id, "a process that resumed its request")
        checked = True

    return check


def give_up(store: SessionStore, request: AbandonedRequest) -> None:
    """End a request whose processes keep dying, as an `error`. Raises `SessionLockedError`."""
    assert request.options is not None, "only a request that this process could resume is given up"
    text = f"{request.deaths} processes died while processing this request"
    end_session(store, request.session_id, Seal(request.options.key_file), also_parked=True, failure=text)
