"""A session's own spending, by day and then by model, tool and skill, as a small record in its summary.

The record is JSON, and folding any split of a log into batches yields the same one. An answer of a model is charged to the
calls that it makes, in equal shares, or to `(answer)` if it makes none, and to the active skills. Spending of subagents is
in their own records; this one has only its totals by name, for subagents whose session is gone. Days are UTC. The last hours
are also recorded by model.

A cell is `[calls, uncached prompt tokens, tokens read from the cache, tokens written to the cache, answer tokens,
reasoning tokens among these, US dollars, calls without a known price]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from operator import add
from typing import Any

from ...events import (
    Event,
    ModelRequest,
    ModelResponse,
    SessionForked,
    SessionRewound,
    SkillActivated,
    SkillDeactivated,
    SubagentFinished,
    ToolUse,
)
from ...ground.text import is_plain
from .usage import normalize_usage

Spent = Mapping[str, Any]
Cell = Sequence[float]

ZERO: Cell = (0, 0, 0, 0, 0, 0, 0, 0)
ANSWER, OTHER = "(answer)", "(other)"
DIMENSIONS = ("model", "tool", "skill")
SECONDS_PER_DAY, SECONDS_PER_HOUR = 86_400, 3_600
# More than the current hour, so that the one that counts against a limit is still there if the clock is set back.
MAX_HOURS = 3
MAX_NAMES, MAX_DAYS, MAX_SKILLS = 64, 400, 32
MAX_NAME_CHARS = 100
# The last day of `datetime`; a later time in a log is ignored.
_LAST_DAY = 2_932_896

SPENDING = frozenset(
    kind.type
    for kind in (
        ModelResponse,
        SessionForked,
        SessionRewound,
        SkillActivated,
        SkillDeactivated,
        SubagentFinished,
        ToolUse,
    )
)


def spends(event: Event) -> bool:
    """Whether the event changes the record."""
    return event.type in SPENDING or (isinstance(event, ModelRequest) and event.purpose != "turn")


def spent_after(spent: Spent, event: Event) -> Spent:
    """The record after one more event for which `spends` is true; the given record is not modified."""
    match event:
        case ModelRequest():
            return {**spent, "purpose": name_of(event.purpose)}
        case ModelResponse():
            return _answered(spent, event)
        case ToolUse():
            # Another call of the last answer.
            if "last" not in spent:
                return spent
            day, cell, tools = spent["last"]
            return {**spent, "last": [day, cell, [*tools, name_of(event.name)][:MAX_NAMES]]}
        case SubagentFinished():
            children = _put(spent.get("children", {}), name_of(event.name), cell_of(event.usage, event.cost_usd))
            return {**spent, "children": children}
        case SkillActivated():
            others = [skill for skill in spent.get("skills", ()) if skill[0] != name_of(event.name)]
            return {**spent, "skills": [*others, [name_of(event.name), event.seq or 0]][-MAX_SKILLS:]}
        case SkillDeactivated():
            return {**spent, "skills": [skill for skill in spent.get("skills", ()) if skill[0] != name_of(event.name)]}
        case SessionRewound():
            return {**spent, "skills": [skill for skill in spent.get("skills", ()) if skill[1] <= event.to_seq]}
        case SessionForked():  # the parent paid for copied events
            return {name: value for name, value in spent.items() if name in ("agent", "skills")}
    return spent


def cell_of(usage: Mapping[str, Any] | None, cost_usd: float | None) -> Cell:
    """One call as a cell; a price that is missing, negative or not below 1e12 is unknown."""
    tokens = normalize_usage(usage)
    is_known = cost_usd is not None and isfinite(cost_usd) and 0 <= cost_usd < 1e12
    dollars = cost_usd if is_known and cost_usd is not None else 0.0
    if tokens is None:
        return (1, 0, 0, 0, 0, 0, dollars, 0 if is_known else 1)
    cached, cache_writes = tokens["cached_input_tokens"], tokens["cache_write_tokens"]
    plain = max(0, tokens["input_tokens"] - cached - cache_writes)
    return (
        1,
        plain,
        cached,
        cache_writes,
        tokens["output_tokens"],
        tokens["reasoning_tokens"],
        dollars,
        0 if is_known else 1,
    )


def add_cells(a: Cell, b: Cell, share: float = 1) -> list[float]:
    """`a` plus a share of `b`."""
    if share == 1:
        return list(map(add, a, b))
    return [x + y * share for x, y in zip(a, b, strict=True)]


def name_of(text: str) -> str:
    """A name in the form used in records: at most `MAX_NAME_CHARS` printable characters."""
    if len(text) <= MAX_NAME_CHARS and text.isprintable():
        return text
    return "".join(char for char in text[:MAX_NAME_CHARS] if is_plain(char) and char.isprintable())


def settled(spent: Spent) -> Spent:
    """The closed record: the last answer is charged to its tools, since it will make no more calls."""
    if "last" not in spent:
        return spent
    record = dict(spent)
    day, cell, tools = record.pop("last")
    days = record["days"]
    names = days[day].get("tool", {})
    for tool in tools or (ANSWER,):
        names = _put(names, tool, cell, 1 / max(len(tools), 1))
    record["days"] = {**days, day: {**days[day], "tool": names}}
    return record


def time_names(ts: float) -> tuple[str, str]:
    """The record's names for the day and the hour of a time, both counted since 1970 (UTC)."""
    day = min(max(int(ts // SECONDS_PER_DAY), 0), _LAST_DAY)
    return str(day), str(min(max(int(ts // SECONDS_PER_HOUR), day * 24), day * 24 + 23))


def _answered(spent: Spent, event: ModelResponse) -> Spent:
    record = dict(settled(spent))
    purpose = record.pop("purpose", None)
    if event.agent_name is not None and "agent" not in record:
        record["agent"] = name_of(event.agent_name)
    if event.usage is None and not event.complete:
        return record  # it was cut off before its usage arrived, so the usage is unknown
    cell, days = cell_of(event.usage, event.cost_usd), record.get("days", {})
    day, hour = time_names(event.ts or 0)
    if day not in days and len(days) >= MAX_DAYS:
        day = max(days, key=int)
    costs = dict(days.get(day, {}))
    costs["model"] = _put(costs.get("model", {}), name_of(event.model or ""), cell)
    hours = {name: cells for name, cells in record.get("hours", {}).items() if name != hour}
    of_hour = _put(record.get("hours", {}).get(hour, {}), name_of(event.model or ""), cell)
    record["hours"] = {**dict([*hours.items()][1 - MAX_HOURS :]), hour: of_hour}
    skills = record.get("skills", ())
    for name, _ in skills:
        costs["skill"] = _put(costs.get("skill", {}), name, cell, 1 / len(skills))
    if purpose is not None:
        costs["tool"] = _put(costs.get("tool", {}), f"({purpose})", cell)
        costs["compaction"] = add_cells(costs.get("compaction", ZERO), cell)
    else:
        record["last"] = [day, list(cell), []]
    if not event.complete:
        costs["retries"] = add_cells(costs.get("retries", ZERO), cell)
    record["days"] = {**days, day: costs}
    return record


def _put(cells: Mapping[str, Cell], name: str, cell: Cell, share: float = 1) -> dict[str, Cell]:
    """The cells with one more share under a name; under `(other)` if there are too many names."""
    name = name if name in cells or len(cells) < MAX_NAMES else OTHER
    return {**cells, name: add_cells(cells.get(name, ZERO), cell, share)}
