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
from ....sessions.base import SessionStore
from ....sessions.folds.spent import DIMENSIONS, ZERO, settled, time_names
from ....sessions.folds.summary import SessionSummary, fold_session_summary
from ....sessions.folds.usage import Usage, add_cost, add_usage, cached_share
from ....sessions.stores.families import CellName, Cells, FamilyFold, SumsFamilies
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
        """The fraction of prompt tokens read from the provider's cache, 0 to 1; None if no prompt's size is known."""
        return cached_share(self.usage)


def spending(events: Iterable[Event]) -> list[Spending]:
    """The spending of one session by model and subagent, in the order of the first call.

    The totals equal the results of the functions `usage` and `session_cost`.
    """
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
# A cell is a list with the numeric fields of `Costs`, in their order.
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
    """Costs of sessions, the most expensive name first; days are in order.

    A session with several tags is in the row of each of them, so the rows may sum to more than `total`. `compaction` and
    `retries` (answers that failed after they had incurred costs) are included in the total. `unpriced_models` contains the
    models without a known price, `unreadable` the sessions whose spending could not be counted, `failed` those that could
    not be read, with the error.
    """

    by: str
    rows: tuple[Costs, ...]
    total: Costs
    compaction: Costs
    retries: Costs
    unpriced_models: tuple[str, ...]
    sessions: int
    unreadable: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


def cost_report(summaries: Iterable[SessionSummary], by: str = "model", *, first_day: int = 0) -> CostReport:
    """The costs of sessions by `model`, `tool`, `skill`, `agent`, `subagent`, `tag`, `day` or `cwd`.

    Subagents count by their own summaries, under the tags and the folder of the root session; costs of subagents whose
    summaries are missing are in the row `(deleted)`. `first_day` is in days since 1970 (UTC), inclusive. Raises
    `OptionsError` for another `by`.
    """
    return _report(_costs_by(summaries, (_checked(by),)), by, first_day)


def all_costs(store: SessionStore, by: str = "model", *, first_day: int = 0) -> CostReport:
    """Like `cost_report` for all sessions of a store; some stores read only what has changed since the last report."""
    kinds = {**dict.fromkeys(_ALWAYS), _checked(by): None}
    sums = store.family_sums(FamilyFold(1, _costs_by), [*kinds]) if isinstance(store, SumsFamilies) else None
    if sums is None:
        sums = _costs_by(store.list_session_summaries(include_children=True), (by,))
    return _report(sums, by, first_day)


def _checked(by: str) -> str:
    if by not in BY:
        raise OptionsError(f"costs are grouped by {', '.join(BY)}, not by {by!r}")
    return by


# Kinds of cells that every report reads. The cells of the last three count sessions; the day of the last four is 0.
_COMPACTION, _RETRIES, _GONE, _COUNTED, _UNREADABLE, _FAILED = (
    "compaction",
    "retries",
    "gone",
    "counted",
    "unreadable",
    "failed",
)
_ALWAYS = ("model", _COMPACTION, _RETRIES, _GONE, _COUNTED, _UNREADABLE, _FAILED)
_ONE: Sequence[float] = (1, *ZERO[1:])


def _costs_by(summaries: Iterable[SessionSummary], every_by: Sequence[str] = BY) -> Cells:
    """The costs of these families of sessions by each of `every_by`, name and day.

    After a change of the result, raise the version of the `FamilyFold` in `all_costs`: stores keep the results.
    """
    cells: defaultdict[CellName, list[float]] = defaultdict(lambda: list(ZERO))
    by_id: dict[str, SessionSummary] = {}
    for row in summaries:
        if row.error is not None:
            cells[_FAILED, f"{row.id}: {row.error}", 0] = list(_ONE)
        else:
            by_id[row.id] = row
    for row in by_id.values():
        try:
            of_row = list(_cells_of(row, every_by, by_id))
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError):  # it may come from an untrusted source
            cells[_UNREADABLE, row.id, 0] = list(_ONE)
            continue
        for name, cell in [*of_row, ((_COUNTED, "", 0), _ONE)]:
            _add(cells[name], cell)
    for cell in _deleted(by_id):
        _add(cells[_GONE, GONE, 0], cell)
    return cells


def _cells_of(
    row: SessionSummary, every_by: Sequence[str], by_id: Mapping[str, SessionSummary]
) -> Iterator[tuple[CellName, Sequence[float]]]:
    for day, day_costs in settled(row.spent).get("days", {}).items() if row.spent else ():
        for name, cell in day_costs["model"].items():
            yield ("model", str(name), int(day)), _checked_cell(day, cell)
        for part in (_COMPACTION, _RETRIES):
            if part in day_costs:
                yield (part, "", int(day)), _checked_cell(day, day_costs[part])
        for by in every_by:
            for name, cell in () if by == "model" else _shares(by, row, day, day_costs, by_id):
                yield (by, name, int(day)), _checked_cell(day, cell)


def _checked_cell(day: str, cell: Sequence[float]) -> Sequence[float]:
    # Infinity and NaN also fail the comparison: either would spoil the sum of all sessions.
    if not 0 <= int(day) < 1e9 or len(cell) != len(ZERO) or not all(abs(x) < 1e30 for x in cell):
        raise ValueError(f"{cell} of day {day} is not a cell of costs")
    return cell


def _report(cells: Cells, by: str, first_day: int) -> CostReport:
    sums: dict[str, _Cells] = defaultdict(lambda: defaultdict(lambda: list(ZERO)))
    for (kind, name, day), cell in cells.items():
        if day >= first_day or kind in (_COUNTED, _UNREADABLE, _FAILED):
            _add(sums[kind][name], cell)
    for name, cell in sums[_GONE].items():
        # A set: in costs by model, these must not count twice.
        for kind in {"model", by}:
            _add(sums[kind][name], cell)
    models = sums["model"]
    rows = [_costs(name, cell) for name, cell in sums[by].items()]
    # The second sort is stable: names with the same cost stay in alphabetical order, in every report.
    rows.sort(key=lambda row: row.name)
    if by != "day":
        rows.sort(key=lambda row: (-row.known_cost_usd, -row.tokens))
    return CostReport(
        by,
        tuple(rows),
        _costs("total", _sum(models.values())),
        _costs("compaction", _sum(sums[_COMPACTION].values())),
        _costs("retries", _sum(sums[_RETRIES].values())),
        tuple(sorted(name for name, cell in models.items() if cell[-1] > 0)),
        round(_sum(sums[_COUNTED].values())[0]),
        tuple(sums[_UNREADABLE]),
        tuple(sums[_FAILED]),
    )


def _shares(
    by: str, row: SessionSummary, day: str, day_costs: Mapping[str, Any], by_id: Mapping[str, SessionSummary]
) -> Iterable[tuple[str, Sequence[float]]]:
    """The names that the costs of a session's day count under, each with its share."""
    if by not in DIMENSIONS:
        whole = _sum(day_costs["model"].values())
        return [(name, whole) for name in _names(by, row, day, by_id)]
    cells = day_costs.get(by, {})
    if by != "skill":
        return cells.items()  # type: ignore[no-any-return]
    used = _sum(cells.values())
    unused = [a - b for a, b in zip(_sum(day_costs["model"].values()), used, strict=True)]
    # Shares of calls are fractions: their sum may miss a whole number by a rounding error.
    return [*cells.items(), *([(NO_SKILL, unused)] if unused[0] > 1e-6 else [])]


def session_costs(events: Iterable[Event], by: str = "model") -> CostReport:
    """The costs of one session from its events alone, `by` as in `cost_report`; its subagents form one row, `(deleted)`."""
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
        """The groups of a session; a subagent's session has those of its root session.

        A session that was not written to on that day is only in ("all", "").
        """
        row = self.rows.get(session_id)
        return [("all", "")] if row is None else _counted_under(root_of(row, self.rows))


def spending_now(rows: Iterable[SessionSummary], now: float) -> NowSpending:
    """The sums for the day and hour of `now` (epoch seconds), from the summaries of all sessions written to on that day."""
    by_id = {row.id: row for row in rows}
    sums: dict[tuple[Window, CostScope, str], tuple[list[float], dict[str, None]]] = {}
    day, hour = time_names(now)
    for row in by_id.values():
        # A summary may come from an untrusted source: one that is malformed must not fail the sums of all others.
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
    """The session at the root of a chain of subagents, or the last one of the chain in `by_id`."""
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
    """Yield the costs of each session's deleted subagents: those that it reports for all, less those of existing ones."""
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
            # Less than a token and a billionth of a dollar is a rounding error.
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
