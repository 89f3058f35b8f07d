"""An answer as it grows: the same messages, under the same ids, whether their pieces come live or from a stored log.

Live, deltas come first and the stored message adds what they lacked; from a log it is one piece. Whoever was cut off after
any piece of the one finds its place in the other: a piece says which message it belongs to and how much of it came before.
Only the reasoning of an attempt that failed is in no log.
"""

from __future__ import annotations

from dataclasses import field

from ...events import (
    AssistantDelta,
    AssistantMessage,
    AssistantReasoning,
    Event,
    ModelRequest,
    ModelRetry,
    ReasoningDelta,
    Result,
)
from ...ground.frozen import frozen, mutable
from ...ground.text import sendable


@frozen
class Piece:
    """What a message grew by. `id` names it within its session, `text` may be empty, `at` is how many letters came before.

    `seq` is that of the request, or of the retry, that the message answers; `ends` says that nothing follows, and then
    `whole` is the message as it is stored, None for reasoning that is not. An `incomplete` message was cut.
    """

    id: str
    seq: int
    text: str = ""
    at: int = 0
    is_thought: bool = False
    ends: bool = False
    whole: str | None = None
    is_incomplete: bool = False


@mutable
class _Growing:
    """A message so far: its pieces, how long they are together, and half a letter that waits for its other half."""

    pieces: list[str] = field(default_factory=list)
    chars: int = 0
    half: str = ""

    def add(self, piece: str) -> str:
        piece, self.half = self.half + piece, ""
        if "\ud800" <= piece[-1:] <= "\udbff":
            piece, self.half = piece[:-1], piece[-1]
        piece = sendable(piece)
        self.pieces.append(piece)
        self.chars += len(piece)
        return piece

    def lacks(self, whole: str) -> str:
        """What of the stored message was not there yet; nothing when that is another one, with its secrets masked."""
        said = "".join(self.pieces)
        return whole[len(said) :] if whole.startswith(said) else ""


class Streamed:
    """The fold, over the events of one agent: those of its subagents need one each."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._seq = 0
        self._growing: dict[bool, _Growing] = {}

    def take(self, event: Event) -> list[Piece]:
        """What the event adds to messages, in order; nothing for most."""
        match event:
            case ModelRequest() if event.purpose == "turn":
                return self._begin(event, f"{event.step}.1")
            case ModelRetry():
                return self._begin(event, f"{event.step}.{event.attempt + 1}")
            case Result():
                return self._begin(event, None)
            case AssistantDelta() | ReasoningDelta():
                is_thought = isinstance(event, ReasoningDelta)
                growing = self._growing.setdefault(is_thought, _Growing())
                at = growing.chars
                text = growing.add(event.text_delta)
                return [Piece(self._id(is_thought, event), self._seq, text, at, is_thought)] if text else []
            case AssistantMessage() | AssistantReasoning():
                is_thought = isinstance(event, AssistantReasoning)
                growing = self._growing.pop(is_thought) if is_thought in self._growing else _Growing()
                if not event.text and not growing.chars:
                    return []
                whole = sendable(event.text)
                piece = Piece(
                    self._id(is_thought, event),
                    self._seq or event.seq or 0,
                    growing.lacks(whole),
                    growing.chars,
                    is_thought,
                    ends=True,
                    whole=whole,
                    is_incomplete=isinstance(event, AssistantMessage) and event.incomplete,
                )
                return [piece]
        return []

    def parent_id(self, event: Event) -> str:
        """The id of the message that the calls of this answer belong to, whether it says anything or not."""
        return self._id(False, event)

    def _begin(self, event: Event, attempt: str | None) -> list[Piece]:
        """The next message, behind the end of what was left open."""
        left = [
            Piece(self._id(is_thought, event), self._seq, "", growing.chars, is_thought, ends=True, is_incomplete=True)
            for is_thought, growing in self._growing.items()
        ]
        self._growing.clear()
        self._seq = event.seq or self._seq
        self._name = None if attempt is None else str(event.seq or f"unsaved.{attempt}")
        return left

    def _id(self, is_thought: bool, event: Event) -> str:
        # A log that an older tool wrote has messages without requests.
        name = self._name if self._name is not None else f"event.{event.seq}"
        return f"{'thought' if is_thought else 'message'}.{name}"


def message_id(event: ModelRequest | ModelRetry) -> str:
    """The id of the message that answers a stored request, whether anything of it came or not."""
    return f"message.{event.seq}"
