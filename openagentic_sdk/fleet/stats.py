"""Figures about a fleet's pending, running and finished runs, from its rows: for people, and as text for Prometheus.

Everything is counted in the database, so all hosts report the same figures; a deleted row is no longer counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ..ground.frozen import frozen
from ..parts.record.telemetry.exposition import Families, to_exposition
from ..sessions.stores.tables import Tables
from .record import STATES

# Upper bounds, in seconds, of the cumulative buckets for the time from when a run was due to its first event.
BUCKETS_S = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0)
# Beyond this number of tenants, those with the fewest runs are reported together.
MAX_TENANTS = 500
OTHERS = "(others)"
# Without a tenant, its value is NULL, and each row is compared with itself.
_ROWS = """
    SELECT tenant, queue, state, count(*), sum(fence), sum(steals), sum(unknown), sum(input_tokens), sum(output_tokens),
        sum(cost_usd), max(CASE WHEN state = 'queued' AND run_at <= {now} THEN {now} - run_at END),
        sum(CASE WHEN state = 'running' AND lease_until < {now} THEN 1 ELSE 0 END),
        sum(CASE WHEN state IN ('ended', 'failed', 'cancelled') AND cost_usd IS NULL THEN 1 ELSE 0 END),
        sum({first_s}), count(first_event_at), {buckets}
    FROM openagentic_runs WHERE tenant = coalesce(%s, tenant) GROUP BY tenant, queue, state ORDER BY tenant, queue, state
"""
_FIRST_S = "CASE WHEN first_event_at > run_at THEN first_event_at - run_at WHEN first_event_at IS NOT NULL THEN 0.0 END"


@frozen
class GroupStats:
    """Figures about the runs of one tenant and queue in one state.

    `claims` counts every time that a worker claimed one of them, `steals` the claims of runs whose lease had expired, and
    `lost_now` the expired leases that no worker has taken over yet. `oldest_s` is how long the longest waiting run has been
    due. `unknown` counts calls that may or may not have taken effect. `cost_usd` excludes `unpriced` runs. `first_event_s`
    is the sum of the seconds from when a run was due to its first event, over `begun` runs; `first_within` counts those
    within each of `BUCKETS_S`.
    """

    tenant: str
    queue: str
    state: str
    runs: int
    claims: int
    steals: int
    unknown: int
    input_tokens: int
    output_tokens: int
    cost_usd: float
    oldest_s: float
    lost_now: int
    unpriced: int
    first_event_s: float
    begun: int
    first_within: tuple[int, ...]


@frozen
class FleetStats:
    """Figures about a fleet: those of its groups of runs, and the tenants' budgets.

    A budget is `(tenant, max_usd, spent_usd, reserved_usd)`.
    """

    groups: tuple[GroupStats, ...]
    budgets: tuple[tuple[str, float, float, float], ...] = ()

    def total(self, name: str, **only: str) -> float:
        """The sum of a figure over the groups with these field values."""
        rows = (vars(group) for group in self.groups)
        return float(sum(group[name] for group in rows if all(group[key] == value for key, value in only.items())))

    def to_dict(self) -> dict[str, Any]:
        """The figures as a JSON value, with their totals."""
        summed = ("claims", "steals", "unknown", "input_tokens", "output_tokens", "cost_usd", "lost_now", "unpriced")
        totals = {name: self.total(name) if name == "cost_usd" else int(self.total(name)) for name in summed}
        runs = {state: int(self.total("runs", state=state)) for state in STATES}
        begun_count = self.total("begun")
        first_s = self.total("first_event_s") / begun_count if begun_count else None
        oldest_s = max((group.oldest_s for group in self.groups), default=0.0)
        budgets = [
            dict(zip(("tenant", "max_usd", "spent_usd", "reserved_usd"), row, strict=True)) for row in self.budgets
        ]
        return {
            "runs": runs,
            "oldest_queued_s": oldest_s,
            "first_event_mean_s": first_s,
            **totals,
            "groups": [{**vars(group), "first_within": list(group.first_within)} for group in self.groups],
            "budgets": budgets,
        }


def fleet_stats(tables: Tables, tenant: str | None = None) -> FleetStats:
    """Compute all figures with one query of the runs and one of the budgets. Blocks, and raises `StorageError`."""
    buckets = ", ".join(f"sum(CASE WHEN ({_FIRST_S}) <= {within_s} THEN 1 ELSE 0 END)" for within_s in BUCKETS_S)
    command = _ROWS.format(now=tables.now, first_s=_FIRST_S, buckets=buckets)
    groups = []
    for group_tenant, queue, state, *numbers in tables.read(command, (tenant,)):
        runs, claims, steals, unknown, *rest = (number or 0 for number in numbers)
        tokens_in, tokens_out, cost_usd, oldest_s, lost_now, unpriced, first_s, begun_count, *within = rest
        counts = (int(runs), int(claims), int(steals), int(unknown), int(tokens_in), int(tokens_out), float(cost_usd))
        seen = (
            float(oldest_s),
            int(lost_now),
            int(unpriced),
            float(first_s),
            int(begun_count),
            tuple(map(int, within)),
        )
        groups.append(GroupStats(group_tenant, queue, state, *counts, *seen))
    command = (
        "SELECT tenant, max_usd, spent_usd, reserved_usd FROM openagentic_budgets WHERE tenant = coalesce(%s, tenant) "
        "ORDER BY tenant"
    )
    return FleetStats(tuple(groups), tuple(tables.read(command, (tenant,))))


# --- text exposition -------------------------------------------------------------------------------------------------


def to_text(stats: FleetStats) -> str:
    """The figures in the text exposition format 0.0.4 of Prometheus, which OpenMetrics readers also accept."""
    most = Counter[str]()
    for group in stats.groups:
        most[group.tenant] += group.runs
    top_tenants = {tenant for tenant, _ in most.most_common(MAX_TENANTS)}
    families: Families = {}

    def add(name: str, kind: str, text: str, value: float, labels: Mapping[str, str], largest: bool = False) -> None:
        samples = families.setdefault((f"openagentic_fleet_{name}", kind, text), {})
        key = tuple(labels.items())
        samples[key] = max(samples.get(key, 0.0), value) if largest else samples.get(key, 0.0) + value

    for group in stats.groups:
        who = {"tenant": group.tenant if group.tenant in top_tenants else OTHERS}
        queue = {"queue": group.queue}
        add("runs", "gauge", "Runs by state.", group.runs, {**who, **queue, "state": group.state})
        if group.state == "queued":
            text = "How long the longest waiting run has been due."
            add("oldest_queued_seconds", "gauge", text, group.oldest_s, {**who, **queue}, largest=True)
        add("claims_total", "counter", "Times that a worker claimed a run.", group.claims, queue)
        text = "Claims of runs whose owner's lease had expired."
        add("steals_total", "counter", text, group.steals, queue)
        text = "Leases that expired during their runs, taken over or not yet."
        add("lease_losses_total", "counter", text, group.steals + group.lost_now, queue)
        add("unknown_outcomes_total", "counter", "Calls whose effect is unknown.", group.unknown, who)
        text = "Tokens, by direction."
        add("tokens_total", "counter", text, group.input_tokens, {**who, "direction": "input"})
        add("tokens_total", "counter", text, group.output_tokens, {**who, "direction": "output"})
        add("cost_usd_total", "counter", "US dollars spent by runs whose price is known.", group.cost_usd, who)
        add("unpriced_runs_total", "counter", "Ended runs whose price is unknown.", group.unpriced, who)
    for tenant, max_usd, spent_usd, reserved_usd in stats.budgets:
        text = "US dollars that a tenant may spend, has spent, and has reserved."
        for part, value in (("max", max_usd), ("spent", spent_usd), ("reserved", reserved_usd)):
            add("budget_usd", "gauge", text, value, {"tenant": tenant, "part": part})
    return to_exposition(families) + "\n".join(_histogram(stats)) + "\n"


def _histogram(stats: FleetStats) -> Iterable[str]:
    name = "openagentic_fleet_first_event_seconds"
    yield f"# HELP {name} Seconds from when a run was due to its first event."
    yield f"# TYPE {name} histogram"
    for at, within_s in enumerate(BUCKETS_S):
        yield f'{name}_bucket{{le="{within_s:g}"}} {sum(group.first_within[at] for group in stats.groups)}'
    yield f'{name}_bucket{{le="+Inf"}} {stats.total("begun"):.10g}'
    yield f"{name}_sum {stats.total('first_event_s'):.10g}"
    yield f"{name}_count {stats.total('begun'):.10g}"
