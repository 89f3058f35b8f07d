"""`sessions context`: how full the model's window is, with what, and what a compaction would drop."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...errors import OptionsError
from ...events import Event, ModelContext, ModelRequest, ModelResponse, SessionCompacted, UserMessage
from ...ground.frozen import frozen
from ...ground.text import on_one_line, plural
from ...parts.masking import known_here, shown
from ...sessions.base import SessionStore
from ...sessions.folds.clearing import plan_clearing
from ...sessions.folds.compaction import (
    ContextLimits,
    corrected_bytes_per_token,
    estimate_tokens,
    plan_compaction,
)
from ...sessions.folds.usage import normalize_usage
from ...sessions.rebuild import Conversation, size_of, standing_events
from ...sessions.request import canonical_json
from ..actions import ActionList
from ..exits import OK
from ..output.terminal import Screen
from .stores import NEWEST, add_id, find_session

_KINDS = {"user": "prompts and notes", "assistant": "answers and calls", "tool": "results of calls"}


@frozen
class Window:
    """The use of a model's window. `tokens` is the estimate of the next request, `last_request_tokens` the endpoint's count
    of the last one, or None; `by_kind` splits the estimate.

    `window` is None if nobody named it. `cleared` are the calls whose outputs are cleared first; `dropped` are the prompts
    in the part that a summary replaces, `up_to_seq` its last event. A compaction does the first of the two that frees
    enough.
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


def read_window(events: Sequence[Event], window: int | None) -> Window:
    """The contents of the next request of this log; `window` in tokens, None for a compaction on demand."""
    conversation, context = Conversation(), None
    asked_bytes = counted = last_tokens = None
    for event in events:
        if isinstance(event, ModelContext):
            context = event
        elif isinstance(event, ModelRequest):
            asked_bytes = conversation.size_bytes() + _overhead(context) if event.purpose == "turn" else None
        elif isinstance(event, ModelResponse) and asked_bytes is not None and event.usage:
            usage = normalize_usage(event.usage)
            last_tokens = usage["input_tokens"] if usage else None
            counted = (asked_bytes, last_tokens)
        conversation.apply(event)
    weight, overhead = corrected_bytes_per_token(*(counted or (0, None))), _overhead(context)
    sizes = Counter[str]()
    for message in conversation.messages():
        sizes[_KINDS.get(str(message.get("role")), "prompts and notes")] += size_of([message])
    if context is not None:
        sizes["definitions of tools"] = len(canonical_json(list(context.tools)))
        sizes["system prompt"] = len(context.system_prompt)
    limits = ContextLimits(window)
    size = conversation.size_bytes() + overhead
    clearing = plan_clearing(conversation, limits, bytes_per_token=weight, overhead_bytes=overhead)
    plan = None
    if clearing is None and events:
        plan = plan_compaction(
            events, limits, conversation=conversation, bytes_per_token=weight, overhead_bytes=overhead
        )
    start = limits.budget_bytes(limits.start_at, weight)
    contents = Window(
        tokens=estimate_tokens(size, weight),
        last_request_tokens=last_tokens,
        by_kind={kind: estimate_tokens(each, weight) for kind, each in sizes.most_common()},
        window=window,
        starts_at=None if start is None else estimate_tokens(start, weight),
        cleared=() if clearing is None else tuple(output.tool_use_id for output in clearing.outputs),
    )
    if plan is None:
        return contents
    gone_before = max((e.up_to_seq for e in events if isinstance(e, SessionCompacted)), default=0)
    standing = (e for e in standing_events(events) if gone_before < (e.seq or 0) <= plan.up_to_seq)
    prompts = (e for e in standing if isinstance(e, UserMessage) and e.origin == "user")
    return Window(
        **{
            **vars(contents),
            "up_to_seq": plan.up_to_seq,
            "dropped_messages": len(plan.messages),
            "dropped_tokens": estimate_tokens(size_of(plan.messages), weight),
            "dropped": tuple((e.seq or 0, on_one_line(e.text, 120)) for e in prompts),
        }
    )


def _overhead(context: ModelContext | None) -> int:
    return 0 if context is None else len(context.system_prompt) + len(canonical_json(list(context.tools)))


def add_actions(actions: ActionList) -> None:
    """Add the action to the command line."""
    context = actions.add(
        "context", _context, "say how full the model's window is, with what, and what a compaction would drop"
    )
    add_id(context, default=NEWEST)
    context.add_argument("--window", type=int, metavar="TOKENS", help="the model's window (max_context_tokens)")
    context.add_argument("--json", action="store_true", help="print one JSON object")


def _context(store: SessionStore, args: argparse.Namespace) -> int:
    if args.window is not None and args.window < 1:
        raise OptionsError(f"--window {args.window} is not a number of tokens: give the model's window, such as 200000")
    redact = known_here()
    events = [shown(event, redact) for event in store.iter_events(find_session(store, args.id))]
    window = read_window(events, args.window)
    Screen(sys.stdout).tell(args.json, vars(window), window_lines(window))
    return OK


def window_lines(window: Window) -> list[str]:
    """A window in sentences."""
    share = "" if not window.window else f", {window.tokens / window.window:.1%} of a window of {window.window:,}"
    counted = (
        ""
        if window.last_request_tokens is None
        else f"; the endpoint counted {window.last_request_tokens:,} in the last"
    )
    lines = [f"next request: about {window.tokens:,} tokens{share}{counted}"]
    lines += [f"  {kind}: {tokens:,}" for kind, tokens in window.by_kind.items() if tokens]
    if window.window is None:
        lines.append(
            "the window is not known: --window TOKENS says when a compaction starts; max_context_tokens makes a run do it"
        )
    elif window.starts_at is not None:
        room = window.starts_at - window.tokens
        when = f"{room:,} from now" if room > 0 else "before the next request"
        lines.append(f"a compaction starts at {window.starts_at:,} tokens, {when}")
    if window.cleared:
        lines.append(f"it would clear the outputs of {plural(len(window.cleared), 'call')}: {_listed(window.cleared)}")
    elif window.up_to_seq is None:
        lines.append("a compaction could drop nothing now")
    else:
        dropped_text = f"{plural(window.dropped_messages, 'message')}, about {window.dropped_tokens:,} tokens"
        lines.append(f"it would replace all up to event {window.up_to_seq} by a summary: {dropped_text}")
        lines += [f"  event {seq}: {text}" for seq, text in window.dropped[-5:]]
        more = len(window.dropped) - 5
        lines += [f"  and {plural(more, 'earlier prompt')}"] if more > 0 else []
    return lines


def _listed(names: Sequence[Any]) -> str:
    most = 8
    return on_one_line(", ".join(map(str, names[:most]))) + (
        f" and {len(names) - most} more" if len(names) > most else ""
    )
