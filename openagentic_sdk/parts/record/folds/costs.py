"""Costs of sessions by model, tool and so on: from the events of one session, or from the summaries of many."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from ....errors import OptionsError
from ....events import Event, ModelResponse
from ....ground.frozen import frozen
from ....sessions.folds.spent import DIMENSIONS, ZERO, settled, time_names
from ....sessions.folds.summary import SessionSummary, fold_session_summary
from ....sessions.folds.usage import Usage, add_cost, add_usage, cached_share
from .spending import own_spending


@frozen
class Spending:
    """The usage of one model, or of all runs of one subagent; `kind` is `model` or `subagent`.

    `usage` is normalized, None if no endpoint reported it; `cost_usd` is `None` if the price of any part is unknown.
    """

    kind: str
    name: str
    calls: int
    usage: Usage | None
    cost_usd: float | None

    @property
    def cached_share(self) -> float | None:
        """The fraction of prompt tokens read from the provider's cache, 0 to 1."""
        return cached_share(self.usage)


def spending(events: Iterable[Event]) -> list[Spending]:
    """The rows of one session in the order of their first call; their totals equal `usage` and `session_cost`."""
    rows: dict[tuple[str, str], Spending] = {}
    for event in own_spending(events):
        if isinstance(event, ModelResponse):
            key = ("model", event.model or "")
            if event.usage is None and not event.complete:
                continue  # cut off before its usage arrived: the endpoint will never report it
        else:
            key = ("subagent", event.name)
        before = rows.get(key, Spending(*key, 0, None, 0.0))
        rows[key] = Spending(
            *key, before.calls + 1, add_usage(before.usage, event.usage), add_cost(before.cost_usd, event.cost_usd)
        )
    return list(rows.values())


# --- many sessions, from their summaries -----------------------------------------------------------------------------

BY = ("model", "tool", "skill", "agent", "subagent", "tag", "day", "cwd")
MAIN, NO_SKILL, NO_TAG, NO_CWD, GONE = "(main)", "(none)", "(no tag)", "(no folder)", "(deleted)"
_Cells = defaultdict[str, list[float]]


@frozen
class Costs:
    """The costs under one name. `calls` counts model answers; if several names share an answer, each has a fraction of it.

    `input_tokens` are prompt tokens not read from a cache; `cached_tokens` and `cache_write_tokens` are the other prompt
    tokens. `reasoning_tokens` are included in `output_tokens`. `known_cost_usd` is the sum of all known prices;
    `unpriced_calls` counts the calls without one.
    """

    name: str
    calls: float = 0
    input_tokens: float = 0
    cached_tokens: float = 0
    cache_write_tokens: float = 0
    output_tokens: float = 0
    reasoning_tokens: float = 0
    known_cost_usd: float = 0.0
    unpriced_calls: float = 0

    @property
    def cost_usd(self) -> float | None:
        """The cost in US dollars, None if any price is unknown."""
        return None if self.unpriced_calls > 0 else self.known_cost_usd

    @property
    def tokens(self) -> float:
        """All prompt and answer tokens."""
        return self.input_tokens + self.cached_tokens + self.cache_write_tokens + self.output_tokens


@frozen
class CostReport:
    """Costs of sessions, the most expensive name first.

    A session with several tags is in the row of each of them, so the rows may sum to more than `total`. `compaction` and
    `retries` (answers that failed after they had incurred costs) are included in the total. `unpriced_models` contains the
    models without a known price, `unreadable` the sessions that could not be counted.
    """

    by: str
    rows: tuple[Costs, ...]
    total: Costs
    compaction: Costs
    retries: Costs
    unpriced_models: tuple[str, ...]
    sessions: int
    unreadable: tuple[str, ...] = ()


def cost_report(summaries: Iterable[SessionSummary], by: str = "model", *, first_day: int = 0) -> CostReport:
    """The costs of sessions by `model`, `tool`, `skill`, `agent`, `subagent`, `tag`, `day` or `cwd`.

    Subagents count by their own summaries, under the tags and the folder of the root session; costs of subagents whose
    summaries are missing are in the row `(deleted)`. `first_day` is in days since 1970 (UTC), inclusive. Raises
    `OptionsError` for another `by`.
    """
    if by not in BY:
        raise OptionsError(f"costs are grouped by {', '.join(BY)}, not by {by!r}")
    by_id = {row.id: row for row in summaries if row.error is None}
    models: _Cells = defaultdict(lambda: list(ZERO))
    groups: _Cells = defaultdict(lambda: list(ZERO))
    parts = {"compaction": list(ZERO), "retries": list(ZERO)}
    unreadable = []
    for row in by_id.values():
        try:
            days = settled(row.spent).get("days", {}) if row.spent else {}
            for day, day_costs in days.items():
                if int(day) < first_day:
                    continue
                for name, cell in day_costs["model"].items():
                    _add(models[name], cell)
                for part, cells in parts.items():
                    if part in day_costs:
                        _add(cells, day_costs[part])
                for name, cell in () if by == "model" else _shares(by, row, day, day_costs, by_id):
                    _add(groups[name], cell)
        except (TypeError, ValueError, KeyError, AttributeError):  # a summary may come from an untrusted source
            unreadable.append(row.id)
    for cell in () if first_day else _deleted(by_id):
        _add(models[GONE], cell)
        _add(groups[GONE], cell)
    rows = [_costs(name, cell) for name, cell in (models if by == "model" else groups).items()]
    rows.sort(key=lambda row: row.name)
    if by != "day":
        rows.sort(key=lambda row: (-row.known_cost_usd, -row.tokens))
    return CostReport(
        by,
        tuple(rows),
        _costs("total", _sum(models.values())),
        _costs("compaction", parts["compaction"]),
        _costs("retries", parts["retries"]),
        tuple(sorted(name for name, cell in models.items() if cell[-1] > 0)),
        len(by_id) - len(unreadable),
        tuple(unreadable),
    )


def _shares(
    by: str, row: SessionSummary, day: str, day_costs: Mapping[str, Any], by_id: Mapping[str, SessionSummary]
) -> Iterable[tuple[str, Sequence[float]]]:
    """The names that a session's day counts under, each with its fraction of the costs."""
    if by not in DIMENSIONS:
        whole = _sum(day_costs["model"].values())
        return [(name, whole) for name in _names(by, row, day, by_id)]
    cells = day_costs.get(by, {})
    if by != "skill":
        return cells.items()  # type: ignore[no-any-return]
    used = _sum(cells.values())
    unused = [a - b for a, b in zip(_sum(day_costs["model"].values()), used, strict=True)]
    return [*cells.items(), *([(NO_SKILL, unused)] if unused[0] > 1e-6 else [])]


def session_costs(events: Iterable[Event], by: str = "model") -> CostReport:
    """The costs of one session from its events alone; its subagents form one row, `(deleted)`. `by` as in `cost_report`."""
    return cost_report([fold_session_summary(None, events)], by)


Window = Literal["day", "hour"]
WINDOWS: tuple[Window, ...] = ("day", "hour")
CostScope = Literal["all", "tag", "tenant"]


@frozen
class NowSpending:
    """The sums for the current day and hour (UTC): US dollars, tokens, and models without a known price.

    They are keyed by the window and the group that a session counts under: ("all", ""), ("tag", "nightly"), ("tenant",
    "acme").
    """

    sums: Mapping[tuple[Window, CostScope, str], tuple[float, float, tuple[str, ...]]]
    rows: Mapping[str, SessionSummary]

    def names_of(self, session_id: str) -> list[tuple[CostScope, str]]:
        """The groups of a session written to on that day; a subagent's session has the groups of its root session."""
        row = self.rows.get(session_id)
        return [("all", "")] if row is None else _counted_under(root_of(row, self.rows))


def spending_now(rows: Iterable[SessionSummary], now: float) -> NowSpending:
    """The current sums, from the summaries of all sessions written to on the current day."""
    by_id = {row.id: row for row in rows}
    sums: dict[tuple[Window, CostScope, str], tuple[list[float], dict[str, None]]] = {}
    day, hour = time_names(now)
    for row in by_id.values():
        with suppress(TypeError, ValueError, KeyError, AttributeError):
            of_day = row.spent.get("days", {}).get(day, {}).get("model", {})
            cells: dict[Window, Any] = {"day": of_day, "hour": row.spent.get("hours", {}).get(hour, {})}
            for scope, name in _counted_under(root_of(row, by_id)):
                for window in WINDOWS:
                    for model, cell in cells[window].items():
                        total, unpriced = sums.setdefault((window, scope, name), (list(ZERO), {}))
                        _add(total, cell)
                        unpriced.update({model: None} if cell[7] else {})
    return NowSpending(
        {key: (total[6], sum(total[1:5]), tuple(unpriced)) for key, (total, unpriced) in sums.items()}, by_id
    )


def _counted_under(root: SessionSummary) -> list[tuple[CostScope, str]]:
    tenants: list[tuple[CostScope, str]] = [] if root.tenant is None else [("tenant", root.tenant)]
    return [("all", ""), *(("tag", tag) for tag in dict.fromkeys(root.tags)), *tenants]


def day_name(day: int) -> str:
    """The date of a day counted from 1970, such as `2026-11-22`."""
    return time.strftime("%Y-%m-%d", time.gmtime(day * 86_400))


def root_of(row: SessionSummary, by_id: Mapping[str, SessionSummary]) -> SessionSummary:
    """The session at the root of a chain of subagents."""
    seen: set[str] = set()
    while row.is_child and row.parent is not None and row.id not in seen:
        seen.add(row.id)
        row = by_id.get(row.parent, row)
    return row


def _names(by: str, row: SessionSummary, day: str, by_id: Mapping[str, SessionSummary]) -> Sequence[str]:
    match by:
        case "day":
            return (day_name(int(day)),)
        case "agent":
            return (str(row.spent.get("agent") or MAIN),)
        case "subagent":
            return (str(row.spent.get("agent") or "(unnamed)"),) if row.is_child else (MAIN,)
        case "tag":
            return tuple(dict.fromkeys(root_of(row, by_id).tags)) or (NO_TAG,)
    return (root_of(row, by_id).cwd or NO_CWD,)


def _deleted(by_id: Mapping[str, SessionSummary]) -> Iterator[Sequence[float]]:
    """The costs that sessions report for their subagents minus those in the summaries of these subagents and their own."""
    child_sums: dict[str, list[float]] = {}
    for row in by_id.values():
        if row.is_child and row.parent is not None and row.parent in by_id:
            with suppress(TypeError, ValueError, KeyError, AttributeError):
                sums = child_sums.setdefault(row.parent, list(ZERO))
                for day in settled(row.spent).get("days", {}).values():
                    for cell in day["model"].values():
                        _add(sums, cell)
                for cell in row.spent.get("children", {}).values():
                    _add(sums, cell)
    for row in by_id.values():
        with suppress(TypeError, ValueError, AttributeError):
            reported_sums = _sum(row.spent.get("children", {}).values())
            difference = [max(0.0, a - b) for a, b in zip(reported_sums, child_sums.get(row.id, ZERO), strict=True)]
            if sum(difference[1:5]) > 0.5 or difference[6] > 1e-9:
                yield difference


def _add(cells: list[float], cell: Sequence[float]) -> None:
    a, b, c, d, e, f, g, h = cell
    cells[0] += a
    cells[1] += b
    cells[2] += c
    cells[3] += d
    cells[4] += e
    cells[5] += f
    cells[6] += g
    cells[7] += h


def _sum(cells: Iterable[Sequence[float]]) -> list[float]:
    total = list(ZERO)
    for cell in cells:
        _add(total, cell)
    return total


def _costs(name: str, cell: Sequence[float]) -> Costs:
    """A cell in display form: counts as integers where possible, dollars without rounding noise."""
    a, b, c, d, e, f, _, unpriced = (round(x) if abs(x - round(x)) < 1e-6 else round(x, 6) for x in cell)
    return Costs(name, a, b, c, d, e, f, round(cell[6], 9), unpriced)
