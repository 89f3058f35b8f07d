"""Measure how full the model's window is, what fills it, and what a compaction would drop, from the log of one session.

The size of the window is the run's `max_context_tokens` if it was set (then a compaction starts before the window is full),
otherwise the model's own if it is in the packaged table (then one starts when the endpoint refuses a request as too long).
Without either it is unknown. A request's size is the endpoint's count if it reports one, otherwise an estimate.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from ....events import (
    ContextCleared,
    Event,
    ModelContext,
    ModelRequest,
    ModelResponse,
    PartState,
    SessionCompacted,
    SessionRewound,
    SystemInit,
    UserMessage,
)
from ....ground.frozen import changed, frozen
from ....ground.loose import as_mapping
from ....ground.packaged import read_packaged
from ....ground.text import on_one_line
from ....ground.words import plural
from ....sessions.folds.clearing import plan_clearing
from ....sessions.folds.compaction import (
    WINDOW_STATE,
    CompactionPlan,
    ContextLimits,
    corrected_bytes_per_token,
    estimate_tokens,
    plan_compaction,
    size_of,
)
from ....sessions.folds.summary import total_tokens
from ....sessions.folds.usage import normalize_usage
from ....sessions.rebuild import Conversation, standing_events
from ....sessions.request import canonical_json
from .prices import price_setting, priced_names

_KINDS = {"user": "prompts and notes", "assistant": "answers and calls", "tool": "results of calls"}
# The model of `run --script`, and of most tests: it answers from a list and charges nothing, so it needs no price.
_SCRIPTED = "scripted"
_MAX_LISTED, _MAX_PROMPTS, _MAX_PROMPT_CHARS = 8, 5, 120


@frozen
class ContextWindow:
    """The use of a model's window by one session.

    `tokens` is the estimated size of the next request, `by_kind` the tokens of each kind in it, and `last_request_tokens`
    the endpoint's count of the last one, or None. `window` is the size of the window in tokens, None if unknown; `source` is
    its origin: "max_context_tokens", "model" or "caller". A compaction starts at `starts_at` tokens; without that number,
    it starts when the endpoint refuses a request as too long. `cleared` are the ids of the calls whose outputs it would
    clear; `dropped` are the prompts (`seq` and text) in the part that a summary would replace, and `up_to_seq` is the last
    event of that part. A compaction does the first of the two that frees enough. `unpriced` are the models that answered
    and have no known price.
    """

    tokens: int
    last_request_tokens: int | None
    by_kind: dict[str, int]
    window: int | None
    starts_at: int | None
    cleared: tuple[str, ...] = ()
    up_to_seq: int | None = None
    dropped_messages: int = 0
    dropped_tokens: int = 0
    dropped: tuple[tuple[int, str], ...] = ()
    source: str = ""
    unpriced: tuple[str, ...] = ()

    @property
    def share(self) -> float | None:
        """The fraction of the window that the next request uses; None if the window is unknown."""
        return self.tokens / self.window if self.window else None

    def lines(self) -> list[str]:
        """Describe the window in sentences, one per line."""
        share = "" if self.share is None else f", {self.share:.1%} of {_window_words(self.source)} {self.window:,}"
        counted = (
            ""
            if self.last_request_tokens is None
            else f"; the endpoint counted {self.last_request_tokens:,} in the last"
        )
        lines = [f"next request: about {self.tokens:,} tokens{share}{counted}"]
        lines += [f"  {kind}: {tokens:,}" for kind, tokens in self.by_kind.items() if tokens]
        if self.window is None:
            lines.append(
                "the window size is unknown: --window TOKENS shows when a compaction would start; max_context_tokens "
                "makes a run do it"
            )
        elif self.starts_at is None:
            lines.append(
                f"a compaction starts when the endpoint refuses a request as too long; max_context_tokens={self.window} "
                "starts one earlier"
            )
        else:
            room = self.starts_at - self.tokens
            when = f"{room:,} from now" if room > 0 else "before the next request"
            lines.append(f"a compaction starts at {self.starts_at:,} tokens, {when}")
        lines += self._lost()
        lines += [
            f"cost unknown: no price of {on_one_line(name)} is known; {price_setting(name)}" for name in self.unpriced
        ]
        return lines

    def _lost(self) -> list[str]:
        """Describe what a compaction would remove from the model's view, one sentence per line."""
        if self.cleared:
            names = on_one_line(", ".join(self.cleared[:_MAX_LISTED]))
            more = len(self.cleared) - _MAX_LISTED
            others = f" and {more} more" if more > 0 else ""
            return [f"it would clear the outputs of {plural(len(self.cleared), 'call')}: {names}{others}"]
        if self.up_to_seq is None:
            return ["a compaction could drop nothing now"]
        gone = f"{plural(self.dropped_messages, 'message')}, about {self.dropped_tokens:,} tokens"
        more = len(self.dropped) - _MAX_PROMPTS
        return [
            f"it would replace everything up to event {self.up_to_seq} with a summary: {gone}",
            *(f"  event {seq}: {text}" for seq, text in self.dropped[-_MAX_PROMPTS:]),
            *([f"  and {plural(more, 'earlier prompt')}"] if more > 0 else []),
        ]


def _window_words(source: str) -> str:
    return {"max_context_tokens": "max_context_tokens,", "model": "the model's window of"}.get(source, "a window of")


def read_window(events: Sequence[Event], window: int | None = None) -> ContextWindow:
    """Measure the next request of this log. `window` in tokens takes precedence over the log's and the model's."""
    meter = WindowMeter()
    conversation = Conversation()
    asked_bytes: int | None = None
    last_request: tuple[int, int | None] = (0, None)  # its bytes, and its tokens by the endpoint's count
    for event in events:
        meter.take(event)
        if isinstance(event, ModelRequest):
            asked_bytes = conversation.size_bytes() + _overhead(meter.context) if event.purpose == "turn" else None
        elif isinstance(event, ModelResponse) and asked_bytes is not None and event.usage:
            last_request = asked_bytes, (normalize_usage(event.usage) or {}).get("input_tokens")
        conversation.apply(event)
    weight, overhead = corrected_bytes_per_token(*last_request), _overhead(meter.context)
    own, source = (meter.window, meter.source) if window is None else (window, "caller")
    # The model's own window is not a limit of the run: a compaction then cuts the conversation in half.
    limits = ContextLimits(None if source == "model" else own, meter.max_bytes if window is None else None)
    start = limits.budget_bytes(limits.start_at, weight)
    clearing = plan_clearing(conversation, limits, bytes_per_token=weight, overhead_bytes=overhead)
    contents = ContextWindow(
        tokens=estimate_tokens(conversation.size_bytes() + overhead, weight),
        last_request_tokens=last_request[1],
        by_kind=_tokens_by_kind(conversation, meter.context, weight),
        window=own,
        starts_at=None if start is None else estimate_tokens(start, weight),
        cleared=() if clearing is None else tuple(output.tool_use_id for output in clearing.outputs),
        source=source,
        unpriced=tuple(meter.unpriced),
    )
    if clearing is not None or not events:
        return contents
    plan = plan_compaction(events, limits, conversation=conversation, bytes_per_token=weight, overhead_bytes=overhead)
    return contents if plan is None else _with_dropped(contents, events, plan, weight)


def _tokens_by_kind(conversation: Conversation, context: ModelContext | None, weight: float) -> dict[str, int]:
    """The sizes of the kinds of contents, largest first."""
    sizes = Counter[str]()
    for message in conversation.messages():
        sizes[_KINDS.get(str(message.get("role")), "prompts and notes")] += size_of([message])
    if context is not None:
        sizes["definitions of tools"] = len(canonical_json(list(context.tools)))
        sizes["system prompt"] = len(context.system_prompt)
    return {kind: estimate_tokens(size, weight) for kind, size in sizes.most_common()}


def _with_dropped(
    contents: ContextWindow, events: Sequence[Event], plan: CompactionPlan, weight: float
) -> ContextWindow:
    """The window's contents, with the part that a compaction would replace with a summary."""
    gone_before = max((e.up_to_seq for e in events if isinstance(e, SessionCompacted)), default=0)
    standing = (e for e in standing_events(events) if gone_before < (e.seq or 0) <= plan.up_to_seq)
    prompts = (e for e in standing if isinstance(e, UserMessage) and e.origin == "user")
    return changed(
        contents,
        up_to_seq=plan.up_to_seq,
        dropped_messages=len(plan.messages),
        dropped_tokens=estimate_tokens(size_of(plan.messages), weight),
        dropped=tuple((e.seq or 0, on_one_line(e.text, _MAX_PROMPT_CHARS)) for e in prompts),
    )


class WindowMeter:
    """A meter of how full the window is after each event of a session: `tokens` of `window`, each None if unknown.

    `max_tokens` is the run's `max_context_tokens`, for events that do not begin with those of the session. `tokens` is the
    size of the conversation after the last answer, as the endpoint counted it. `source` is that of `ContextWindow`,
    `max_bytes` the run's limit in bytes, `context` what requests contain besides messages, and `unpriced` the models that
    answered without a known price, except scripted ones.
    """

    def __init__(self, max_tokens: int | None = None) -> None:
        self.tokens: int | None = None
        self.context: ModelContext | None = None
        self.max_bytes: int | None = None
        self.unpriced: dict[str, None] = {}
        self._max_tokens = max_tokens
        self._session: str | None = None
        self._model: str | None = None
        self._is_turn = True

    @property
    def window(self) -> int | None:
        """The size of the window in tokens; None if unknown."""
        return self._max_tokens or model_window(self._model)

    @property
    def source(self) -> str:
        """The origin of `window`: "max_context_tokens" or "model"; empty if it is unknown."""
        return "max_context_tokens" if self._max_tokens else "model" if self.window else ""

    @property
    def words(self) -> str:
        """The share of the window in use, for a row of a screen, and whether a compaction is next; empty if unknown."""
        if self.tokens is None or not self.window:
            return ""
        share = self.tokens / self.window
        is_near = self._max_tokens is not None and share >= ContextLimits.start_at
        return f"window {share:.0%}" + (", compacts next" if is_near else "")

    def take(self, event: Event) -> None:
        """Apply the next event; those of subagents are ignored."""
        if event.parent_tool_use_id is not None:
            return
        match event:
            case SystemInit():
                if self._session not in (None, event.session_id):
                    self.tokens, self.context, self.unpriced = None, None, {}
                self._session, self._model = event.session_id, event.model or self._model
            case ModelContext():
                self._model, self.context = event.model, event
            case PartState() if event.part == WINDOW_STATE:
                self._max_tokens, self.max_bytes = (_count(event.data, name) for name in ("max_tokens", "max_bytes"))
            case ModelRequest():
                self._is_turn = event.purpose == "turn"
            case ModelResponse():
                self._answer(event)
            case SessionCompacted() | ContextCleared():
                self.tokens = event.tokens_after or None
            case SessionRewound():
                self.tokens = None

    def _answer(self, event: ModelResponse) -> None:
        if event.usage is None:
            return
        model = event.model or self._model or ""
        if event.cost_usd is None and model != _SCRIPTED:
            self.unpriced[model] = None
        if self._is_turn and event.complete:
            self.tokens = total_tokens(event.usage) or self.tokens


def model_window(model: str | None) -> int | None:
    """The size of a model's window in tokens, from the packaged table; None if the table lacks it."""
    windows = _windows()
    return next((windows[name] for name in priced_names(model) if name in windows), None) if model else None


@cache
def _windows() -> dict[str, int]:
    """The maximum number of tokens in a request, by model."""
    windows: dict[str, int] = json.loads(read_packaged(__spec__, "prices.json"))["windows"]
    return windows


def _count(data: Any, name: str) -> int | None:
    """A positive number in a log, None for anything else."""
    value = as_mapping(data).get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _overhead(context: ModelContext | None) -> int:
    return 0 if context is None else len(context.system_prompt) + len(canonical_json(list(context.tools)))
