"""A growing answer: the same messages with the same ids, whether their pieces arrive live or from a stored log.

Live, deltas come first and the stored message adds the rest; from a log there is one piece. A reader cut off after any
piece of one form can continue in the other: a piece names its message and the length of the text before it. Only the
reasoning of a failed attempt is not in any log.
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
from ...ground.words import sendable


@frozen
class Piece:
    """An addition to a message. `id` identifies it within its session, `text` may be empty, `at` is the number of
    characters before it.

    `seq` is that of the request, or of the retry, that the message answers; `is_thought` marks reasoning. `ends` means that
    nothing follows, and then `whole` is the stored message, None if it is not stored; if `is_incomplete`, it was cut off.
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
    """A message so far: its pieces, their total length, and a surrogate waiting for its other half."""

    pieces: list[str] = field(default_factory=list)
    chars: int = 0
    half: str = ""

    def add(self, piece: str) -> str:
        piece, self.half = self.half + piece, ""
        # An endpoint may split a character outside the Basic Multilingual Plane between two pieces.
        if "\ud800" <= piece[-1:] <= "\udbff":
            piece, self.half = piece[:-1], piece[-1]
        piece = sendable(piece)
        self.pieces.append(piece)
        self.chars += len(piece)
        return piece

    def lacks(self, whole: str) -> str:
        """The part of the stored message that was not streamed; empty if the two differ because secrets are masked."""
        streamed_text = "".join(self.pieces)
        return whole[len(streamed_text) :] if whole.startswith(streamed_text) else ""


class Streamed:
    """A fold of one agent's events into pieces of its messages; each subagent needs its own."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._seq = 0
        self._growing: dict[bool, _Growing] = {}

    def take(self, event: Event) -> list[Piece]:
        """Apply the event; return the pieces that it adds to messages, in order: none for most events."""
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
        """The id of the message to which this answer's calls belong, whether it has text or not."""
        return self._id(False, event)

    def _begin(self, event: Event, attempt: str | None) -> list[Piece]:
        """Start the next message; return the pieces that end those left open."""
        ended_pieces = [
            Piece(self._id(is_thought, event), self._seq, "", growing.chars, is_thought, ends=True, is_incomplete=True)
            for is_thought, growing in self._growing.items()
        ]
        self._growing.clear()
        self._seq = event.seq or self._seq
        self._name = None if attempt is None else str(event.seq or f"unsaved.{attempt}")
        return ended_pieces

    def _id(self, is_thought: bool, event: Event) -> str:
        # Logs of older tools have messages without requests.
        name = self._name if self._name is not None else f"event.{event.seq}"
        return f"{'thought' if is_thought else 'message'}.{name}"


def message_id(event: ModelRequest | ModelRetry) -> str:
    """The id of the message that answers a stored request, even if nothing of it arrived."""
    return f"message.{event.seq}"
