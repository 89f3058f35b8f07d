"""The state of a request: one fold of a session's log and the lease of its runner, for every interface that shows it.

A request is an accepted prompt with all runs that work on it: a run may park on a question, be suspended with its process
or lose its process, and each time another run continues the same request. It is over when a `result` ends it, or when
another prompt replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from typing import Literal

from ...events import Event, ModelRequest, Result, SystemInit, UserAnswer, UserMessage, UserQuestion
from ...ground.frozen import frozen, mutable

# `queued` waits for a run, `parked` for a person; `suspended` (it was stopped) and `dead` (it was killed) can be continued
# by any process that has their key and their agent.
RequestState = Literal["queued", "running", "parked", "suspended", "dead", "over"]
# The name of each state in a list of sessions; a request that is over has failed if its result is an `error`.
ROW_STATES: Mapping[RequestState, str] = {
    "queued": "queued",
    "running": "running",
    "parked": "waiting",
    "suspended": "suspended",
    "dead": "stopped",
    "over": "idle",
}
# The states in which nobody works on a request, although it is neither over nor waiting for a person.
LEFT_STATES = frozenset((ROW_STATES["dead"], ROW_STATES["suspended"]))
_PAUSES: Mapping[str, RequestState] = {"waiting": "parked", "suspended": "suspended"}


@frozen
class Request:
    """A request according to its log. Its events are those from `after_seq` (exclusive) to `last_seq`.

    `said_seq` is that of its prompt. `state` is that of the log alone, see `with_lease`. `result` is the newest of its runs,
    `deaths` the number of earlier runs without one. `is_newest` is False once another prompt was accepted.
    """

    id: str
    after_seq: int
    said_seq: int
    last_seq: int
    state: RequestState = "running"
    result: Result | None = None
    deaths: int = 0
    is_newest: bool = True


@mutable
class _Course:
    """The course of a request. `is_open` means that a run has begun and has no result, `began` is the `seq` before it,
    `has_asked` is true once it called the model; `questions` are the ids of the unanswered questions.
    """

    state: RequestState = "running"
    result: Result | None = None
    deaths: int = 0
    is_open: bool = True
    began: int = 0
    has_asked: bool = True
    questions: tuple[str, ...] = ()

    def apply(self, event: Event) -> None:
        match event:
            case SystemInit():
                self.deaths += self.is_open
                self.state, self.is_open, self.has_asked = "running", True, False
                self.began = (event.seq or 1) - 1
            case ModelRequest():
                self.has_asked = True
            case UserQuestion():
                self.questions = (*self.questions, event.question_id)
                self.state = "parked"
            case UserAnswer():
                self.questions = tuple(name for name in self.questions if name != event.question_id)
                if self.state == "parked" and not self.questions:
                    self.state = "running" if self.is_open else "queued"
            case Result():
                self.state, self.result, self.is_open = state_after(event), event, False


def state_after(result: Result) -> RequestState:
    """The state of a request after a run of it ended with this result."""
    return _PAUSES.get(result.stop_reason, "over")


def is_end(event: Event) -> bool:
    """Whether no run continues by itself after this event: the request is over, or waits for a person."""
    return isinstance(event, Result) and state_after(event) != "suspended"


def has_ended(ended: bool, event: Event) -> bool:
    """Whether `is_end` holds after this event, given whether it held before.

    Only a run and an answer reopen an ended session; a new title, a rewind or a signature does not.
    """
    return not isinstance(event, SystemInit | UserAnswer) and (ended or is_end(event))


def with_lease(state: RequestState, is_held: bool | None) -> RequestState:
    """The state, given whether a living process holds the session (None: unknown)."""
    return "dead" if state == "running" and is_held is False else state


def find_request(events: Iterable[Event], is_wanted: Callable[[str], bool]) -> Request | None:
    """The first request in a session's events with an id for which `is_wanted` is true; None without one. Pure."""
    request: Request | None = None
    began, last_seq, fold = 0, 0, _Course()
    # The ids of the request and of messages to its runs; None because older results name none.
    own_ids: set[str | None] = {None}
    before = fold
    for event in events:
        if event.parent_tool_use_id is not None:
            continue
        request_id = event.request_id if isinstance(event, UserMessage) else None
        if request is None:
            if isinstance(event, SystemInit):
                began = (event.seq or 1) - 1
            elif request_id is not None and is_wanted(request_id):
                request = Request(request_id, began, event.seq or 0, 0)
                own_ids.add(request_id)
        elif isinstance(event, UserMessage) and event.origin == "user" and request_id != request.id:
            # The run that accepted the new prompt may have begun only for it.
            end = last_seq if fold.has_asked else fold.began
            return replace(request, last_seq=end, state="over", result=fold.result, deaths=fold.deaths, is_newest=False)
        elif isinstance(event, Result) and event.request_id not in own_ids:
            fold = before  # of a run whose prompt was refused: it did nothing for this request
        else:
            before = copy(fold) if isinstance(event, SystemInit) else before
            own_ids.add(request_id)
            fold.apply(event)
        last_seq = event.seq or last_seq
    if request is None:
        return None
    return replace(request, last_seq=last_seq, state=fold.state, result=fold.result, deaths=fold.deaths)
