"""Separate reasoning from text if a server leaves the model's `<think>` tags in the content.

Only a tag at the very start of an answer counts: later in a text it is part of what the model writes about.
"""

from __future__ import annotations

_OPEN, _CLOSE = "<think>", "</think>"

TextPiece = tuple[bool, str]  # whether it is reasoning, and the text


class ThinkTagSplitter:
    """A splitter of content that arrives piece by piece; it holds back only what may still prove to be part of a tag."""

    def __init__(self) -> None:
        self._pending = ""
        # The states: start, opened and after (white space after a tag is dropped), thinking, text
        self._state = "start"

    def feed(self, text: str) -> list[TextPiece]:
        """Add text; return the pieces that can be separated so far."""
        if self._state == "text":
            return [(False, text)]
        self._pending += text
        pieces: list[TextPiece] = []
        while self._step(pieces):
            pass
        return [piece for piece in pieces if piece[1]]

    def close(self) -> list[TextPiece]:
        """Return the pieces held back until the end of the answer."""
        rest, self._pending = self._pending, ""
        return [(self._state == "thinking", rest)] if rest else []

    def _step(self, pieces: list[TextPiece]) -> bool:
        """Make one transition to another state; return whether another may follow."""
        if self._state == "start":
            start = self._pending.lstrip()
            if start.startswith(_OPEN):
                self._state, self._pending = "opened", start[len(_OPEN) :]
                return True
            if _OPEN.startswith(start):
                return False
            self._state = "text"
            return True
        if self._state == "opened":
            self._pending = self._pending.lstrip()
            self._state = "thinking" if self._pending else "opened"
            return bool(self._pending)
        if self._state == "thinking":
            reasoning, tag, rest = self._pending.partition(_CLOSE)
            if tag:
                pieces.append((True, reasoning))
                self._state, self._pending = "after", rest
                return True
            keep = next((n for n in range(len(_CLOSE) - 1, 0, -1) if reasoning.endswith(_CLOSE[:n])), 0)
            pieces.append((True, reasoning[: len(reasoning) - keep]))
            self._pending = reasoning[len(reasoning) - keep :]
            return False
        self._pending = self._pending.lstrip() if self._state == "after" else self._pending
        if self._pending:
            self._state = "text"
            pieces.append((False, self._pending))
            self._pending = ""
        return False
