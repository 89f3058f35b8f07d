"""The row of one session in a list of sessions, as a pure fold over its events.

`fold_session_summary` over any split of a log into batches yields the same summary, so a store updates it in each append
and a list never reads a log. Titles come from `session.meta` events alone: no content of a tool, a file or a prompt can
rename a session.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, fields
from itertools import islice
from math import isfinite
from typing import Any

from ...events import (
    Event,
    ModelContext,
    ModelResponse,
    RecordKept,
    Result,
    SessionForked,
    SessionMeta,
    SubagentFinished,
    SubagentStarted,
    SystemInit,
    UnknownEvent,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from ...ground.frozen import changed, frozen
from ...ground.text import is_plain
from ...ground.words import shortened
from ..core import TENANT_KEY
from .spent import name_of, spends, spent_after
from .standing import ROW_STATES, state_after
from .usage import normalize_usage

# Increase it whenever the fold changes: a summary stored by another version is folded again when its row is shown.
SUMMARY_VERSION = 7
MAX_TEXT_CHARS = 200
# The metadata key for the initial tags.
TAGS_KEY = "tags"
STATES = ("idle", "running", "waiting", "suspended", "failed")
# Orders two events of the same instant; the resolution of today's epoch seconds as a float is 0.25 microseconds.
_TICK_S = 1e-6
_MAX_STEPS = 10**9  # a higher value in a log is ignored
# The end of the last year of `datetime`; a later time in a log is ignored.
LAST_TIME = 253402300799.0


@frozen
class SessionSummary:
    """One row of a list of sessions.

    `state` is that of the newest request, see `standing.ROW_STATES`: `idle` or `failed` if it is over, `running`, `waiting`
    (a person is asked), `suspended` (its process was asked to end; a resume continues it), or `stopped`: it is running
    according to its log, but its process was killed. The fold cannot detect that and returns `running`. `open_questions` are
    those of the session and, in a store's list, of its subagents; `subagents` are the sessions of those that are running or
    parked. `steps` counts the model calls of the runs that ended. `spent` is the session's own spending, see `folds.spent`;
    `costs.cost_report` reads it. `events` is the `seq` of the last event folded in. `updated` increases with every event,
    in epoch seconds. `parent` is the session from which this one was forked or, if `is_child`, whose Task call it belongs
    to. `tenant` is the session's owner, None without one. `held` and `kept_until` (epoch seconds) prevent its deletion.
    `cost_usd` is None if unknown. `error` explains why a row could not be read; only `id` and `state` are set besides it.
    """

    id: str = ""
    title: str | None = None
    first_prompt: str = ""
    last_prompt: str = ""
    cwd: str | None = None
    created: float = 0.0
    updated: float = 0.0
    events: int = 0
    turns: int = 0
    steps: int = 0
    model: str | None = None
    tokens: int = 0
    cost_usd: float | None = None
    tags: tuple[str, ...] = ()
    parent: str | None = None
    is_child: bool = False
    tenant: str | None = None
    state: str = "idle"
    open_questions: tuple[str, ...] = ()
    subagents: tuple[str, ...] = ()
    held: bool = False
    kept_until: float = 0.0
    error: str | None = None
    spent: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """A one-line name of the session: its title, otherwise its first prompt, otherwise its id."""
        return self.title or self.first_prompt or self.id


def start_summary(session_id: str, created_at: float, metadata: Mapping[str, Any]) -> SessionSummary:
    """The summary of a session without events, from its creation data."""
    agent = _text_or_none(metadata.get("agent_name")) or _text_or_none(metadata.get("agent"))
    tags = metadata.get(TAGS_KEY)
    return SessionSummary(
        id=session_id,
        cwd=_text_or_none(metadata.get("cwd")),
        model=_text_or_none(metadata.get("model")),
        created=created_at,
        updated=created_at,
        parent=_text_or_none(metadata.get("parent_session_id")),
        is_child=isinstance(metadata.get("parent_tool_use_id"), str),
        tenant=_text_or_none(metadata.get(TENANT_KEY)),
        tags=tuple(plain_line(tag) for tag in tags if isinstance(tag, str)) if isinstance(tags, list | tuple) else (),
        spent={"agent": name_of(agent)} if agent is not None else {},
    )


def fold_session_summary(previous: SessionSummary | None, events: Iterable[Event]) -> SessionSummary:
    """The summary after these events; `previous` is the one before them (None: of no events and no metadata). Pure."""
    summary = changed(previous or SessionSummary())
    state = summary.__dict__
    if not state["events"]:
        # From here on, only times of events count, so that a copy of a log folds to the same summary.
        state["updated"] = 0.0
    for event in events:
        state["events"] = event.seq or state["events"] + 1
        state["updated"] = time_after(state["updated"], event.ts)
        fold = _MOVES.get(event.type)
        if fold is not None and not isinstance(event, UnknownEvent):  # which may have any name
            fold(state, event)
        if spends(event):
            state["spent"] = spent_after(state["spent"], event)
    if not state["events"]:
        state["updated"] = state["created"]
    return summary


def moves_summary(event: Event) -> bool:
    """Whether the event changes more of a summary than `events` and `updated`."""
    return event.type in _MOVES or spends(event)


# `events` and `updated` of a summary.
Counters = tuple[int, float]


def counted(counters: Counters, events: Iterable[Event]) -> Counters:
    """The counters after events for which `moves_summary` is false, and which are not the first of a log."""
    seq, updated = counters
    for event in events:
        seq, updated = event.seq or seq + 1, time_after(updated, event.ts)
    return seq, updated


def _spend(state: dict[str, Any], event: ModelResponse | SubagentFinished) -> None:
    state["tokens"] += total_tokens(event.usage)
    if event.cost_usd is not None:
        cost_usd = (state["cost_usd"] or 0.0) + event.cost_usd
        state["cost_usd"] = cost_usd if isfinite(cost_usd) else None


def time_after(updated: float, ts: float | None) -> float:
    """The `updated` of a summary after an event at time `ts`; `updated` is the previous one, 0.0 for the first event."""
    tick = updated + _TICK_S
    return ts if ts is not None and tick <= ts <= LAST_TIME else tick


def calendar_time(ts: float | None) -> float:
    """The time in epoch seconds, moved to the nearest one that can be shown: a log from elsewhere may contain any number."""
    return min(max(ts or 0.0, 0.0), LAST_TIME)


def summary_to_dict(summary: SessionSummary) -> dict[str, Any]:
    """The summary as JSON values, with the version of its fold."""
    return {"version": SUMMARY_VERSION, **summary.__dict__}


def summary_from_dict(data: Any) -> SessionSummary | None:
    """The summary in a dict; None if another version of the fold, or something else, wrote it."""
    if not isinstance(data, Mapping) or data.get("version") != SUMMARY_VERSION:
        return None
    values: dict[str, Any] = {}
    for name, kinds in _ACCEPTED.items():
        value = values[name] = data.get(name)
        if value.__class__ not in kinds:
            return None
    if not all(abs(values[name]) <= LAST_TIME for name in ("created", "updated", "kept_until")):
        return None
    if values["state"] not in STATES or values["error"] is not None or not isfinite(values["cost_usd"] or 0):
        return None
    for name in ("title", "first_prompt", "last_prompt"):
        text = values[name]
        if text and not text.isprintable():
            values[name] = plain_line(text)
    for name in ("tags", "open_questions", "subagents"):
        values[name] = tuple(map(str, values[name]))
    # The same as `changed`, but fast, because it is called for each row of a list of thousands.
    summary = object.__new__(SessionSummary)
    summary.__dict__.update(values)
    return summary


def failed_summary(session_id: str, error: Exception) -> SessionSummary:
    """The row of an unreadable session."""
    return SessionSummary(id=session_id, state="failed", error=f"{type(error).__name__}: {error}")


def summary_matches(
    summary: SessionSummary,
    *,
    cwd: str | None = None,
    query: str | None = None,
    include_children: bool = False,
    tenant: str | None = None,
) -> bool:
    """Whether a row matches a list's filters: folder, tenant, and every word of `query` in title, prompts, tags, model or
    id.

    A `tenant` of "" matches sessions without one.
    """
    if tenant is not None and (summary.tenant or "") != tenant:
        return False
    if summary.is_child and not include_children:
        return False
    if cwd is not None and summary.cwd != cwd:
        return False
    if not query:
        return True
    haystack = summary_text(summary)
    return all(word in haystack for word in dict.fromkeys(query.casefold().split()))


def summary_text(summary: SessionSummary) -> str:
    """The case-folded text in which the words of a list's query are searched."""
    parts = (summary.id, summary.title, summary.first_prompt, summary.last_prompt, summary.model, *summary.tags)
    return "\n".join(part or "" for part in parts).casefold()


def page_of(rows: Iterable[SessionSummary], *, limit: int | None, offset: int) -> Iterator[SessionSummary]:
    """Return an iterator over rows `offset` to `offset + limit`, which consumes no more of `rows` than necessary."""
    first = min(max(0, offset), sys.maxsize)
    return islice(rows, first, None if limit is None else min(first + max(0, limit), sys.maxsize))


def plain_line(text: str, max_chars: int = MAX_TEXT_CHARS) -> str:
    """The text on one line that is safe to print: no control, format or surrogate characters, truncated with an ellipsis."""
    head = shown_text = text[: max_chars * 4]
    if not (head.isascii() and head.isprintable()):
        shown_text = "".join(" " if char.isspace() else char for char in head if char.isspace() or is_plain(char))
    line = " ".join(shown_text.split())
    return shortened(line if len(head) == len(text) else line.ljust(max_chars + 1), max_chars, "…")


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def total_tokens(usage: Mapping[str, Any] | None) -> int:
    """Input and output tokens together; 0 if the endpoint reported none."""
    normal = normalize_usage(usage)
    return normal["input_tokens"] + normal["output_tokens"] if normal else 0


def _began(state: dict[str, Any], event: SystemInit) -> None:
    state["state"] = "running"
    state["cwd"] = state["cwd"] or event.cwd or None
    state["model"] = event.model or state["model"]


def _ended(state: dict[str, Any], event: Result) -> None:
    state["steps"] = min(state["steps"] + max(event.steps, 0), _MAX_STEPS)
    state["state"] = "failed" if event.stop_reason == "error" else ROW_STATES[state_after(event)]
    if state["open_questions"]:  # it ended before its prompt was accepted: earlier questions are still open
        state["state"] = "waiting"
    elif event.stop_reason != "waiting":
        state["subagents"] = ()
    if event.usage is not None:
        # The run's own sum is more accurate: it excludes duplicates and includes calls of subagents.
        state["tokens"], state["cost_usd"] = total_tokens(event.usage), event.cost_usd


def _prompted(state: dict[str, Any], event: UserMessage) -> None:
    if event.origin == "user":
        line = plain_line(event.text)
        state["turns"] += 1
        state["first_prompt"] = state["first_prompt"] or line
        state["last_prompt"] = line


def _add_question(state: dict[str, Any], event: UserQuestion) -> None:
    state["open_questions"] = _with(state["open_questions"], event.question_id)
    state["state"] = "waiting"


def _remove_question(state: dict[str, Any], event: UserAnswer) -> None:
    state["open_questions"] = _without(state["open_questions"], event.question_id)
    if state["state"] == "waiting" and not state["open_questions"]:
        state["state"] = "running"


def _sent(state: dict[str, Any], event: ModelContext) -> None:
    state["model"] = event.model


def _delegated(state: dict[str, Any], event: SubagentStarted) -> None:
    state["subagents"] = _with(state["subagents"], event.child_session_id)


def _returned(state: dict[str, Any], event: SubagentFinished) -> None:
    _spend(state, event)
    state["subagents"] = _without(state["subagents"], event.child_session_id)


def _forked(state: dict[str, Any], event: SessionForked) -> None:
    # The parent paid for copied events.
    state.update(parent=event.parent_session_id, state="idle", tokens=0, cost_usd=None)
    state.update(open_questions=(), subagents=(), held=False, kept_until=0.0)


def _apply_meta(state: dict[str, Any], event: SessionMeta) -> None:
    if event.title is not None:
        state["title"] = plain_line(event.title) or None
    if event.tags is not None:
        state["tags"] = tuple(plain_line(str(tag)) for tag in event.tags)


def _apply_kept(state: dict[str, Any], event: RecordKept) -> None:
    state["held"] = state["held"] if event.held is None else event.held
    until = state["kept_until"] if event.until is None else float(event.until)
    state["kept_until"] = min(max(until, 0.0), LAST_TIME)  # a log may contain anything


def _with(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return names if name in names else (*names, name)


def _without(names: tuple[str, ...], name_to_drop: str) -> tuple[str, ...]:
    return tuple(name for name in names if name != name_to_drop)


# The events that change more of a summary than its counters, and functions that update the summary's fields.
_MOVES: Mapping[str, Callable[[dict[str, Any], Any], None]] = {
    SystemInit.type: _began,
    Result.type: _ended,
    UserMessage.type: _prompted,
    UserQuestion.type: _add_question,
    UserAnswer.type: _remove_question,
    ModelContext.type: _sent,
    ModelResponse.type: _spend,
    SubagentStarted.type: _delegated,
    SubagentFinished.type: _returned,
    SessionForked.type: _forked,
    SessionMeta.type: _apply_meta,
    RecordKept.type: _apply_kept,
}


_KINDS: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "int": (int,),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "bool": (bool,),
    "tuple[str, ...]": (list, tuple),
    "Mapping[str, Any]": (dict,),
}
_ACCEPTED: Mapping[str, tuple[type, ...]] = {field.name: _KINDS[str(field.type)] for field in fields(SessionSummary)}
SUMMARY_FIELDS = tuple(_ACCEPTED)
