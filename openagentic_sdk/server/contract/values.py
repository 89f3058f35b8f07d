"""Types of the native protocol's JSON values; schemas, checks and the client are generated from them.

Values that clients send are closed dicts; values that the server returns are open objects: a later server may add fields.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from ...events import Event, UserQuestion
from ...ground.frozen import frozen


@frozen
class _NumberBounds:
    """The minimum and maximum of a number."""

    ge: int = 0
    le: int = 2**63 - 1


Count = Annotated[int, _NumberBounds()]


class SentPart(TypedDict):
    """A part of a prompt: a `text` with its text, or an `image`, `file` or `audio` with `data` (base64) or a `url`.

    The media type is detected from the bytes if possible.
    """

    type: Literal["text", "image", "file", "audio"]
    text: NotRequired[str | None]
    data: NotRequired[str | None]
    url: NotRequired[str | None]
    media_type: NotRequired[str | None]
    name: NotRequired[str | None]


SentPrompt = str | list[SentPart]
RowState = Literal["waiting", "running", "queued", "suspended", "stopped", "failed", "idle"]


@frozen
class RefusalReason:
    status: int
    code: str
    message: str


@frozen
class Refusal:
    """The reason why a request was refused: `code` is for programs and never changes, `message` is for people."""

    error: RefusalReason


# --- sent by clients -------------------------------------------------------------------------------------------------


class SessionBody(TypedDict):
    """The prompt for a new session: a string or a list of parts."""

    prompt: SentPrompt
    agent: NotRequired[str | None]
    options: NotRequired[dict[str, Any] | None]


class RunBody(TypedDict):
    """A prompt for a session; without a prompt, the session continues from its log."""

    prompt: NotRequired[SentPrompt | None]
    agent: NotRequired[str | None]
    options: NotRequired[dict[str, Any] | None]


class AnswersBody(TypedDict):
    """The answer to one question, or `answers`, which maps question ids to answers."""

    question_id: NotRequired[str | None]
    answer: NotRequired[str | None]
    answers: NotRequired[dict[str, str] | None]


class MessageBody(TypedDict):
    prompt: SentPrompt


class ForkBody(TypedDict):
    """The last event to copy; all events if omitted."""

    at_seq: NotRequired[Count | None]


class RewindBody(TypedDict):
    """The event to rewind to, or the number of newest prompts to remove: exactly one of them."""

    to_seq: NotRequired[Count | None]
    turns: NotRequired[Count | None]


class TitleBody(TypedDict):
    """The title shown to people; an empty text removes it."""

    title: str


class ArchiveBody(TypedDict):
    """Whether lists exclude the session; true if omitted."""

    archived: NotRequired[bool | None]


class DeleteBody(TypedDict):
    """The session's id again, as a confirmation: deletion is permanent."""

    confirm: str


class EmptyBody(TypedDict):
    pass


# --- returned by the server ------------------------------------------------------------------------------------------


@frozen
class StartedRun:
    """An accepted request, whose events follow event `after_seq`.

    `request_id` identifies the `user.message` of its prompt, if it has one. `is_new` is false if the same request was
    accepted before.
    """

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
    """The ids of the deleted sessions: those of subagents, then the session's own."""

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
    """Facts about a session. Times are in seconds since 1970; `events` is the `seq` of the log's last event."""

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
    state: RowState
    subagents: list[str]
    held: bool
    kept_until: float
    error: str | None
    spent: dict[str, Any]


@frozen
class ListedSession(_KnownSession):
    """A session in a list; `open_questions` contains the ids of its open questions."""

    open_questions: list[str]


@frozen
class ShownSession(_KnownSession):
    """One session; `open_questions` contains the whole question events."""

    open_questions: list[UserQuestion]


@frozen
class SessionCause:
    """The reason why a session stopped, which may be in one of its subagents.

    `kind` is empty if nothing went wrong. `go_on` contains the words of the command that continues, to be run in `cwd`.
    """

    session_id: str
    kind: str
    asked: str
    ended: str
    why: str
    seq: Count | None
    event: str
    more: list[str]
    go_on: list[str]
    cwd: str


@frozen
class DroppedPrompt:
    """A prompt that a compaction would replace with its summary."""

    seq: Count
    text: str


@frozen
class SessionContext:
    """The use of the model's window, and what a compaction would drop now.

    `tokens` is the estimated size of the next request, `by_kind` the sizes of its parts, and `last_request_tokens` the
    endpoint's count of the last one. `window` is the window's size in tokens, null if it is unknown; `source` is its origin.
    A compaction starts at `starts_at` tokens; if that is null, when the endpoint refuses a request as too long. It would
    clear the outputs of the calls `cleared`, or replace everything up to event `up_to_seq`, including the prompts `dropped`,
    with a summary. `unpriced` are models without a known price. `lines` describes all of it for people.
    """

    session_id: str
    tokens: Count
    last_request_tokens: Count | None
    by_kind: dict[str, int]
    window: Count | None
    source: Literal["", "max_context_tokens", "model", "caller"]
    starts_at: Count | None
    cleared: list[str]
    up_to_seq: Count | None
    dropped_messages: Count
    dropped_tokens: Count
    dropped: list[DroppedPrompt]
    unpriced: list[str]
    lines: list[str]


@frozen
class SessionList:
    """A page of sessions, most recently updated first; `next` is the cursor of the next page, null on the last one."""

    sessions: list[ListedSession]
    next: str | None


@frozen
class InboxQuestion:
    """A question that waits for a person: its event and its session."""

    session_id: str
    label: str
    updated: float
    question: UserQuestion


@frozen
class QuestionList:
    """Open questions of all sessions, most recently updated session first; `next` is the cursor of the next page.

    A page may be short or even empty although another page follows.
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
    """Events in order of `seq`; `next` is the cursor after them, `last_seq` the `seq` of the log's last event."""

    events: list[Event]
    next: int
    last_seq: int


@frozen
class SigninTicket:
    """A path on this server that signs a browser in once."""

    path: str


@frozen
class ServerHealth:
    status: str
