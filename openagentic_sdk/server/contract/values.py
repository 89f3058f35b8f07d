"""The JSON values that go in and out of the native protocol, as types: schemas, checks and the client are made from them.

What is sent is a dict and closed, what comes back is an object and open: a later server may add to it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from ...events import Event, UserQuestion
from ...ground.frozen import frozen


@frozen
class _NumberBounds:
    """The limits of a number."""

    ge: int = 0
    le: int = 2**63 - 1


Count = Annotated[int, _NumberBounds()]


class SentPart(TypedDict):
    """A part of a prompt: `text` with its text; `image`, `file` and `audio` with `data` (base64) or a `url`.

    The media type is read from the bytes where they tell it.
    """

    type: Literal["text", "image", "file", "audio"]
    text: NotRequired[str | None]
    data: NotRequired[str | None]
    url: NotRequired[str | None]
    media_type: NotRequired[str | None]
    name: NotRequired[str | None]


Prompt = str | list[SentPart]
SessionState = Literal["waiting", "running", "queued", "suspended", "stopped", "failed", "idle"]


@frozen
class RefusalReason:
    status: int
    code: str
    message: str


@frozen
class Refusal:
    """Why something was refused: `code` is for programs and stays the same, `message` is for people."""

    error: RefusalReason


# --- what is sent ----------------------------------------------------------------------------------------------------


class SessionBody(TypedDict):
    """A prompt for a new session: a text, or a list of parts."""

    prompt: Prompt
    agent: NotRequired[str | None]
    options: NotRequired[dict[str, Any] | None]


class RunBody(TypedDict):
    """A prompt for a session; without one, it goes on with what is in its log."""

    prompt: NotRequired[Prompt | None]
    agent: NotRequired[str | None]
    options: NotRequired[dict[str, Any] | None]


class AnswersBody(TypedDict):
    """The answer to one question, or `answers`: a text for the id of each question."""

    question_id: NotRequired[str | None]
    answer: NotRequired[str | None]
    answers: NotRequired[dict[str, str] | None]


class MessageBody(TypedDict):
    prompt: Prompt


class ForkBody(TypedDict):
    """Up to which event; all of them when it is left out."""

    at_seq: NotRequired[Count | None]


class RewindBody(TypedDict):
    """Back to an event, or before the newest prompts: one of the two."""

    to_seq: NotRequired[Count | None]
    turns: NotRequired[Count | None]


class TitleBody(TypedDict):
    """The title that people see; the empty text takes it away."""

    title: str


class ArchiveBody(TypedDict):
    """Whether lists leave the session out; True when it is left out here."""

    archived: NotRequired[bool | None]


class DeleteBody(TypedDict):
    """The id of the session once more: what is deleted is gone."""

    confirm: str


class EmptyBody(TypedDict):
    pass


# --- what comes back -------------------------------------------------------------------------------------------------


@frozen
class StartedRun:
    """A prompt that was stored: `request_id` names its `user.message`, whose `seq` is above `after_seq`."""

    session_id: str
    request_id: str
    after_seq: int
    is_new: bool


@frozen
class SessionName:
    session_id: str


@frozen
class CancelledRun:
    session_id: str
    was_running: bool


@frozen
class DeletedSessions:
    """The ids of what is gone: the session, and those of its subagents before it."""

    deleted: list[str]


@frozen
class ListedAgent:
    name: str
    description: str
    permission_modes: list[str]


@frozen
class AgentList:
    agents: list[ListedAgent]
    default: str


@frozen
class _KnownSession:
    """What is known of a session. Times are seconds since 1970."""

    session_id: str
    label: str
    title: str | None
    first_prompt: str
    last_prompt: str
    cwd: str | None
    created: float
    updated: float
    events: int
    turns: int
    steps: int
    model: str | None
    tokens: int
    cost_usd: float | None
    tags: list[str]
    parent: str | None
    is_child: bool
    tenant: str | None
    state: SessionState
    subagents: list[str]
    held: bool
    kept_until: float
    error: str | None
    spent: dict[str, Any]


@frozen
class ListedSession(_KnownSession):
    """A session as lists show it; `open_questions` are the ids of what it waits for."""

    open_questions: list[str]


@frozen
class ShownSession(_KnownSession):
    """The row of one session: its `open_questions` are the events that ask."""

    open_questions: list[UserQuestion]


@frozen
class SessionCause:
    """Where a session, or a subagent's, went wrong: `kind` is empty when nothing did, `go_on` the command that goes on."""

    session_id: str
    kind: str
    asked: str
    ended: str
    why: str
    seq: Count | None
    event: str
    more: list[str]
    go_on: list[str]


@frozen
class SessionList:
    """A page of sessions, the one last written to first; `next` is the cursor of the following page, null at the end."""

    sessions: list[ListedSession]
    next: str | None


@frozen
class InboxQuestion:
    """A question that waits for a person: the event that asks, and the session in which it does."""

    session_id: str
    label: str
    updated: float
    question: UserQuestion


@frozen
class QuestionList:
    """Open questions of all sessions, of the one last written to first; `next` is the cursor of the following page.

    A page may be short, or empty, although there is a next one.
    """

    questions: list[InboxQuestion]
    next: str | None


@frozen
class FoundEvent:
    session_id: str
    seq: int
    type: str
    context: str


@frozen
class FoundEvents:
    hits: list[FoundEvent]


@frozen
class EventPage:
    """Events in the order of `seq`; `next` is the cursor behind them, `last_seq` that of the end of the log."""

    events: list[Event]
    next: int
    last_seq: int


@frozen
class SigninTicket:
    """A path of this server that signs a browser in, once."""

    path: str


@frozen
class ServerHealth:
    status: str
