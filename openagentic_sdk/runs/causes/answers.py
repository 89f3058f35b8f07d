"""Causes in the model's answers: cut off, refused, empty, by another model, or without what a compaction dropped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ...events import (
    AssistantMessage,
    ContextCleared,
    Event,
    HookEvent,
    ModelResponse,
    ModelRetry,
    Result,
    SessionCompacted,
    ToolResult,
    ToolUse,
    UserMessage,
)
from ...ground.patterns import regex
from ...sessions.folds.summary import total_tokens
from .cause import CauseInRun
from .run import JudgedRun, short, text_of

_WORD = regex(r"[\w][\w./@:-]*[\w]|\w")


def cut(run: JudgedRun, result: Result) -> CauseInRun | None:
    """The last answer, if it was refused, is empty or was cut off; None otherwise."""
    response = next((e for e in run.of(ModelResponse) if e.complete), None)
    message = next(run.of(AssistantMessage), None)
    if message is not None and message.refusal:
        return CauseInRun("vendor", message, f"the model refused: {short(message.text)}")
    if result.cut_by is None and response is not None and _is_empty(run, result, response):
        tokens = f", {total_tokens(response.usage):,} tokens of prompt and answer" if response.usage else ""
        why = f"the model's last answer is empty (finish reason {response.finish_reason!r}{tokens})"
        return CauseInRun("empty", response, why, prompt="Your last answer was empty: answer in words.")
    if result.cut_by is None or response is None:
        return None
    kind = "cut" if result.cut_by == "length" else "vendor"
    return CauseInRun(
        kind, response, f"the last answer is incomplete: the endpoint ended it because of {result.cut_by!r}"
    )


def fallback(run: JudgedRun, result: Result) -> CauseInRun | None:
    """The fallback model that answered instead of the requested one; None without a fallback."""
    retry = next((e for e in run.of(ModelRetry) if e.model is not None), None)
    if retry is None:
        return None
    why = f"{retry.model} answered in place of {run.init.model}, which failed: {short(retry.reason)}"
    return CauseInRun("fallback", retry, why)


def dropped(run: JudgedRun, result: Result) -> CauseInRun | None:
    """The compaction or clearing that removed what this run's last prompt asks for.

    None without one, or if a text after that prompt contains the removed words again.
    """
    prompt = next((e for e in run.of(UserMessage) if e.origin == "user"), None)
    if prompt is None:
        return None
    before = [e for e in run.log if (e.seq or 0) < (prompt.seq or 0)]
    cuts = [e for e in before if isinstance(e, SessionCompacted | ContextCleared)]
    if not cuts:
        return None
    asked_words = _significant(prompt.text)
    removed_events, remaining_texts = _parted(before, cuts)
    in_view = _significant(" ".join(remaining_texts))
    best = max(
        _facts(removed_events, asked_words - in_view, asked_words | in_view), key=lambda fact: fact[0], default=None
    )
    later_events = (e for e in run.log if (e.seq or 0) > (prompt.seq or 0))
    if best is None or best[3] & _significant(" ".join(map(text_of, later_events))):
        return None
    _, event, line, words = best
    cut = next(one for one in cuts if _drops(one, event, words))
    why = f"the compaction at event {cut.seq} dropped what event {prompt.seq} asks for, which was in event {event.seq}"
    text = f"Earlier in this session: {line!r}. Go on."
    return CauseInRun("compaction", cut, why, (f"event {event.seq}: {short(line)}",), prompt=short(text))


def _is_empty(run: JudgedRun, result: Result, response: ModelResponse) -> bool:
    """Whether the last answer has no text, call or value, and nothing after it ended the run."""
    if result.final_text.strip() or result.structured_output is not None:
        return False
    later_events = [e for e in run.events if (e.seq or 0) > (response.seq or 0)]
    return not any(isinstance(e, ToolUse | HookEvent) for e in later_events) and not any(map(text_of, later_events))


def _significant(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text) if len(word) > 3 or any(map(str.isdigit, word))}


def _parted(log: Sequence[Event], cuts: Sequence[SessionCompacted | ContextCleared]) -> tuple[list[Event], list[str]]:
    """The events that the cuts removed from the model's view, and the texts that remained after the last one."""
    summary = next((cut for cut in reversed(cuts) if isinstance(cut, SessionCompacted)), None)
    cleared = {use_id: cut.seq or 0 for cut in cuts if isinstance(cut, ContextCleared) for use_id in cut.results}
    removed_events, texts = list[Event](), [] if summary is None else [summary.summary]
    for event in log:
        seq = event.seq or 0
        is_cleared = isinstance(event, ToolResult) and seq < cleared.get(event.tool_use_id, 0)
        if is_cleared or (summary is not None and seq <= summary.up_to_seq):
            removed_events.append(event)
        elif seq <= (cuts[-1].seq or 0):
            texts.append(text_of(event))
    return removed_events, texts


def _drops(cut: SessionCompacted | ContextCleared, event: Event, words: set[str]) -> bool:
    """Whether a cut removed an event, and its summary lacks these words of the event."""
    if isinstance(cut, SessionCompacted):
        return (event.seq or 0) <= cut.up_to_seq and not words & _significant(cut.summary)
    return isinstance(event, ToolResult) and event.tool_use_id in cut.results


def _facts(
    removed_events: Sequence[Event], asked_words: set[str], view_words: set[str]
) -> Iterator[tuple[int, Event, str, set[str]]]:
    """Yield the sentences of dropped events that share words with the question and add new ones.

    Each is a tuple of the number of shared words, the event, the sentence, and its new words.
    """
    lines = [
        (event, line)
        for event in removed_events
        for line in re.split(r"(?<=[.!?])\s|\n", text_of(event))
        if line.strip()
    ]
    for event, line in lines:
        words = _significant(line)
        marked = {
            w.casefold() for w in _WORD.findall(line)[1:] if any(map(str.isdigit, w)) or w[:1].isupper() or "-" in w
        }
        more = words - view_words
        is_fact = len(words & asked_words) >= 2 or (words & asked_words and marked & more)
        if is_fact and more:
            yield len(words & asked_words), event, line.strip(), (marked & more) or more
