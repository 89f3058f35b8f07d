"""External events for a workflow: stored when they are delivered, even if the workflow is not waiting for them yet.

These events are in a separate session beside the workflow's, because the workflow's session is locked by its runner.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from threading import Lock
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary

from ...errors import (
    ConcurrencyError,
    InvalidEventError,
    LeaseLostError,
    SessionError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    WorkflowError,
)
from ...events import (
    Event,
    PartState,
    Result,
    SessionForked,
    SessionRewound,
    SystemInit,
    SystemNotice,
    ToolUse,
    UserMessage,
)
from ...ground.backoff import Backoff
from ...ground.frozen import frozen
from ...ground.schemas.typed import to_json
from ...ground.text import Redact
from ...serialization import dumps_json, loads_json
from ...sessions.authority import Authority
from ...sessions.base import SessionStore
from ...sessions.core import TENANT_KEY
from ...sessions.folds.features.all import SubagentsFold
from ...sessions.folds.view import SessionView
from ...sessions.resume import load_view
from ...sessions.seal import Seal
from ..masking import environment_redactor, mask_value
from .fold import CANCELLED, END_OF_STEP, StepsFold, is_final

# The part state that a parked workflow leaves in its log, and the notice of an event that arrives while it is parked.
PARKED = "workflow"
ARRIVED = "workflow.event"
CANCEL = "workflow.cancel"
MAX_NAME_CHARS = 200
# Replaces the id of a call in the inbox's metadata: it makes the inbox a child of the workflow's session, deleted with it.
_INBOX_CALL = "workflow.inbox"
INBOX_ENDING = ".inbox"
# The maximum number of events that may follow the one that records how a workflow parked.
_LOOKED_AT = 100
# The events that continue a workflow after its end; names, tags, signatures and notices leave it ended.
_CONTINUES = (SystemInit, UserMessage, ToolUse, SessionRewound, SessionForked)
_BUSY = Backoff(0.002, 0.1, jitter=0.5)


@frozen
class Delivered:
    """One event: its number in the inbox, its name and its payload."""

    seq: int
    name: str
    payload: Any


def inbox_of(session_id: str) -> str:
    """The id of the session that contains a workflow's external events."""
    return f"{session_id}{INBOX_ENDING}"


def deliver(
    store: SessionStore,
    session_id: str,
    name: str,
    payload: Any = None,
    *,
    event_id: str | None = None,
    key_file: str | None = None,
    redact: Redact | None = None,
) -> bool:
    """Store an event for a workflow's `flow.wait_for(name)`; an `event_id` that was delivered before is not stored again.

    The event is stored when this returns, and wakes a workflow that a fleet has parked. Returns False if it was delivered
    before; a cancellation of a workflow that has ended is not stored either. `redact` masks secrets in the payload (default:
    those named by the environment, and tokens of known formats). Raises `WorkflowError` for a name that is empty or too
    long, and for a workflow that has ended, and `SessionLockedError` if others keep delivering without pause, or if
    a hung process holds the inbox in a store of files.
    """
    if not name or len(name) > MAX_NAME_CHARS:
        raise WorkflowError(f"the name of an event must have 1 to {MAX_NAME_CHARS} characters, not {name!r:.300}")
    inbox = inbox_of(session_id)
    if _has_ended(store, session_id):
        # A sender that repeats itself, because an answer was lost, sees what it would have seen before the end.
        if name == CANCEL or _was_delivered(store, inbox, event_id):
            return False
        raise WorkflowError(
            f"workflow {session_id!r:.200} has ended and receives no more events: {name!r} was not stored; "
            "`Workflow.resume` and `workflow show` return its result"
        )
    metadata: dict[str, Any] = {"parent_session_id": session_id, "parent_tool_use_id": _INBOX_CALL}
    with suppress(SessionNotFoundError):
        parent_metadata = store.read_metadata(session_id)["metadata"]
        metadata |= {TENANT_KEY: parent_metadata[TENANT_KEY]} if parent_metadata.get(TENANT_KEY) else {}
    try:
        store.create_session(session_id=inbox, metadata=metadata)
    except SessionExistsError:
        _require_inbox(store, inbox, session_id)
    plain = to_json(payload)
    masked = mask_value(plain, redact or environment_redactor())
    message = {"event": name, "payload": masked}
    # An event without an id gets one, so that it is stored once even if the answer to the first attempt is lost.
    event = UserMessage(dumps_json(message), request_id=event_id or f"event-{os.urandom(12).hex()}")

    stored_events = _when_free(partial(_deliver_once, store, session_id, event, Seal(key_file)))
    about = "" if masked == plain else "; a secret in its payload was masked, and the workflow receives the masked text"
    notice = SystemNotice(ARRIVED, f"the event {name!r} arrived{about}", {"event": name})
    with suppress(SessionNotFoundError):
        # A fleet parks the outermost workflow, which continues those inside it.
        for above in with_ancestors(store, session_id):
            if _has_ended(store, above):
                continue
            with suppress(SessionLockedError):  # the run that holds it checks the inbox before it parks
                store.append_event(above, notice)
    # If the caller gave no id and nothing was stored, the first attempt had stored it, and only its response was lost.
    return bool(stored_events) or event_id is None


def check_sent_name(name: str) -> None:
    """Raise `WorkflowError` for the name of an event that no sender outside may choose: one of the workflow's own."""
    if name == CANCEL or name.startswith(END_OF_STEP):
        raise WorkflowError(
            f"the name {name!r:.100} is reserved for `workflow cancel` and the ends of steps that run elsewhere: send an "
            "event with another name"
        )


def _has_ended(store: SessionStore, session_id: str) -> bool:
    """Whether a workflow has ended for good and nothing has continued it since."""
    with suppress(SessionNotFoundError):
        # From the end, in growing windows: one of the last events nearly always decides.
        after, looked_at = store.last_seq(session_id), 8
        while after:
            after, looked_at = max(0, after - looked_at), looked_at * 8
            newest: Event | None = None
            for event in store.iter_events(session_id, after_seq=after):
                newest = event if isinstance(event, (Result, *_CONTINUES)) else newest
            if newest is not None:
                return isinstance(newest, Result) and is_final(newest.stop_reason, newest.error_message)
    return False


def _was_delivered(store: SessionStore, inbox: str, event_id: str | None) -> bool:
    if event_id is None or not store.session_exists(inbox):
        return False
    return any(_is_delivery(event) and event.request_id == event_id for event in store.iter_events(inbox))


def _is_delivery(event: Event) -> TypeGuard[UserMessage]:
    """Whether `deliver` wrote this event: a prompt that a run accepted under an id has the digest of its text."""
    return isinstance(event, UserMessage) and event.request_id is not None and event.prompt_sha256 is None


def _require_inbox(store: SessionStore, inbox: str, session_id: str) -> None:
    """Raise `WorkflowError` if the session with the name of a workflow's inbox is something else."""
    is_marked = store.read_metadata(inbox)["metadata"].get("parent_tool_use_id") == _INBOX_CALL
    # Metadata can be lost; then the first event shows what the session is.
    if not is_marked and not all(map(_is_delivery, store.iter_events(inbox, limit=1))):
        raise WorkflowError(
            f"workflow {session_id!r:.200} cannot receive events: {inbox!r:.220} is not its inbox but another session; "
            "start the workflow again with another session id"
        ) from None


def _when_free(deliver_once: Callable[[bool], list[Event]]) -> list[Event]:
    """Deliver as soon as nobody else does. That takes milliseconds: whoever takes much longer has hung and is replaced."""
    for wait_s in islice(_BUSY.waits(), 200):
        try:
            return deliver_once(False)
        except (SessionLockedError, ConcurrencyError, LeaseLostError):  # another was faster, and nothing was written
            time.sleep(wait_s)
    return deliver_once(True)


class WorkflowInbox:
    """A workflow's inbox as far as it was read: the ids of its events and, with `reads`, those of this installation."""

    def __init__(self, session_id: str, *, reads: bool) -> None:
        self.ids: set[str | None] = set()
        self.delivered: list[Delivered] = []
        self._session_id, self._reads = inbox_of(session_id), reads
        # The event before the newest one, and the state of the signatures there.
        self._seq = 0
        self._signed: Mapping[str, Any] | None = None

    def catch_up(self, store: SessionStore, seal: Seal) -> Authority:
        """Read the events added since the last call, and return the authority that signs the next one.

        The newest event read before is verified again, with the present key; if that fails, because an erasure signed the
        log anew or another session has this name now, everything is read again. Raises `SessionNotFoundError` if nothing was
        ever delivered.
        """
        authority = Authority(self._session_id, seal)
        events = store.iter_events(self._session_id, after_seq=self._seq)
        if self._signed is not None:
            authority.restore(self._signed)
            newest = next(events, None)
            if newest is not None:
                authority.apply(newest)
            if newest is None or not authority.is_ours(newest):
                self.ids, self.delivered = set(), []
                authority, events = Authority(self._session_id, seal), store.iter_events(self._session_id)
        newest = None
        for event in events:
            if newest is not None:
                self._take(newest, authority)
            newest = event
        if newest is not None:
            self._seq, self._signed = (newest.seq or 1) - 1, authority.kept(())
            self._take(newest, authority)
        return authority

    def _take(self, event: Event, authority: Authority) -> None:
        authority.apply(event)
        if not _is_delivery(event):
            return
        self.ids.add(event.request_id)
        if self._reads and authority.is_ours(event):
            with suppress(InvalidEventError):  # an event whose text was erased is not delivered
                message = loads_json(event.text)
                self.delivered.append(Delivered(event.seq or 0, str(message["event"]), message["payload"]))


_INBOXES: WeakKeyDictionary[SessionStore, OrderedDict[str, WorkflowInbox]] = WeakKeyDictionary()
_MAX_INBOXES = 64
# Protects only the table. The writer of an inbox's session keeps other threads away from that inbox, and no store is
# called while this is locked.
_LOCK = Lock()


def _deliver_once(
    store: SessionStore, session_id: str, event: UserMessage, seal: Seal, replaces_holder: bool
) -> list[Event]:
    """Store an event in the inbox, signed, unless one with its id is there; return the stored events.

    Also raises the errors of `append_events`.
    """
    with _LOCK:
        inboxes = _INBOXES.setdefault(store, OrderedDict())
        inbox = inboxes.setdefault(session_id, WorkflowInbox(session_id, reads=False))
        inboxes.move_to_end(session_id)
        if len(inboxes) > _MAX_INBOXES:
            inboxes.popitem(last=False)
    with (store.take_over if replaces_holder else store.open_writer)(inbox_of(session_id)) as writer:
        authority = inbox.catch_up(store, seal)
        return [] if event.request_id in inbox.ids else writer.append(authority.sign([event], writer.last_seq))


def read_inbox(store: SessionStore, session_id: str, seal: Seal) -> list[Delivered]:
    """Read all events that this installation stored for a workflow, in order."""
    inbox = WorkflowInbox(session_id, reads=True)
    with suppress(SessionNotFoundError):
        inbox.catch_up(store, seal)
    return inbox.delivered


def has_arrived(store: SessionStore, session_id: str, seal: Seal, view: SessionView | None = None) -> bool:
    """Whether an event has arrived that a workflow, or one inside it, waits for and has not received.

    Also true if the log of an inner workflow cannot be read: the run will report the error. `view` is the session's state,
    if the caller has it with `StepsFold` and `SubagentsFold`.
    """
    if view is None:
        view, _ = load_view(store, session_id, (StepsFold, SubagentsFold), seal=seal)
    steps = view.fold(StepsFold)
    awaited_names = steps.wanted_events() | (set() if steps.find(CANCELLED) else {CANCEL})
    if any(
        event.name in awaited_names and event.seq not in steps.taken for event in read_inbox(store, session_id, seal)
    ):
        return True
    # A foreign log could name any session here, and the events of that are not this workflow's.
    inside = [each.child_session_id for each in view.fold(SubagentsFold).open.values() if view.is_ours(each)]
    with suppress(SessionError):
        return any(has_arrived(store, child_id, seal) for child_id in inside)
    return True  # the run will report the error


def with_ancestors(store: SessionStore, session_id: str) -> Iterator[str]:
    """Yield a session, then each session that it is inside, from the innermost."""
    # Metadata is not signed: a forged parent could create a cycle.
    seen: set[str] = set()
    while session_id and session_id not in seen:
        seen.add(session_id)
        yield session_id
        session_id = str(store.read_metadata(session_id)["metadata"].get("parent_session_id") or "")


@frozen
class Park:
    """A parked workflow: the `seq` of its run's end, its waiting steps, and the time at which it continues by itself.

    `wake_at` is in epoch seconds, None if it only waits for people and events.
    """

    seq: int
    wake_at: float | None
    steps: tuple[str, ...]

    @classmethod
    def read(cls, store: SessionStore, session_id: str) -> Park | None:
        """Read how the workflow of a session has parked; None if it is running or has ended, and for other sessions."""
        parked_data: Mapping[str, Any] | None = None
        park: Park | None = None
        for event in store.iter_events(session_id, after_seq=max(0, store.last_seq(session_id) - _LOOKED_AT)):
            if isinstance(event, SystemInit):
                # A later run has begun, so whatever the earlier one waited for is out of date.
                parked_data = park = None
            elif isinstance(event, PartState) and event.part == PARKED:
                parked_data = event.data
            elif isinstance(event, Result) and event.stop_reason == "waiting" and parked_data is not None:
                park = cls(event.seq or 0, parked_data["wake_at"], tuple(parked_data["steps"]))
        return park
