"""Search words in events: pure functions, shared by every store's search.

A word matches if a word of the text begins with it, ignoring case and accents. The stores' indexes are built from the
same words, so a search with an index returns the same hits as one without.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ...events import AssistantMessage, AssistantReasoning, Event, SessionMeta, ToolResult, ToolUse, UserMessage
from ...ground.frozen import frozen
from ...ground.patterns import regex
from .summary import plain_line

CONTEXT_CHARS = 120
# The progress of an index update: the number of sessions done, and of all sessions.
Progress = Callable[[int, int], None]
_WORD = regex(r"[^\W_]+")


@frozen
class SearchHit:
    """One matching event: its position, its kind, and the words in context on one line."""

    session_id: str
    seq: int
    type: str
    context: str


def search_words(text: str) -> list[str]:
    """The words of a text or query in the form in which they are compared."""
    return _WORD.findall(fold_text(text))


def event_text(event: Event) -> str:
    """The searchable text of an event: that of people, the model and tools. Empty for bookkeeping."""
    if isinstance(event, UserMessage | AssistantMessage | AssistantReasoning):
        return event.text
    if isinstance(event, ToolUse):
        return f"{event.name}\n" + "\n".join(_strings(event.input))
    if isinstance(event, ToolResult):
        return "\n".join((*_strings(event.output), *_strings(event.error_message)))
    if isinstance(event, SessionMeta):
        return "\n".join((event.title or "", *(event.tags or ())))
    return ""


def scan_events(session_id: str, events: Iterable[Event], words: Sequence[str], limit: int) -> list[SearchHit]:
    """The hits in the first `limit` events whose text matches every word, see `text_matches`."""
    hits: list[SearchHit] = []
    for event in events:
        if len(hits) >= limit:
            break
        text = event_text(event)
        if text and text_matches(text, words):
            hits.append(SearchHit(session_id, event.seq or 0, event.type, context_of(text, words)))
    return hits


def text_matches(text: str, words: Sequence[str]) -> bool:
    """Whether each word is the prefix of some word of the text."""
    folded = fold_text(text)
    if not all(word in folded for word in words):
        return False
    return all(re.search(rf"(?<![^\W_]){re.escape(word)}", folded) for word in words)


def context_of(text: str, words: Sequence[str]) -> str:
    """The text around the first match on one line, or the beginning if nothing matches."""
    text, prefixes = unicodedata.normalize("NFC", text), tuple(words)
    positions = (match.start() for match in _WORD.finditer(text) if fold_text(match[0]).startswith(prefixes))
    place = next(positions, 0)
    begin = max(0, place - CONTEXT_CHARS // 3)
    line = plain_line(text[begin : begin + 2 * CONTEXT_CHARS], CONTEXT_CHARS)
    return f"…{line}" if begin else line


def fold_text(text: str) -> str:
    """The text in the form in which it is compared: without case and accents, compatible characters made equal."""
    if text.isascii():
        return text.lower()
    # Normalize before folding the case, because some characters only have a case afterwards.
    plain = unicodedata.normalize("NFKD", text).casefold()
    marks_apart = unicodedata.normalize("NFKD", plain)
    return "".join(char for char in marks_apart if not unicodedata.combining(char))


def _strings(value: Any) -> Iterator[str]:
    """Yield every string inside a JSON value but keys; without recursion, because values may be nested to any depth."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            stack.extend(reversed(item.values()))
        elif isinstance(item, list | tuple):
            stack.extend(reversed(item))
