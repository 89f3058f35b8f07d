"""The limits of a fleet: concurrent runs of a tenant, queue or agent, a tenant's budget, and the rates of a provider's key.

All state is in the database. The counts are exact: if any limit is set, claims are serialized, so each sees the effect of
the one before. Money is reserved before a run and settled when its worker releases it, by the cost in the session's log.

The row of a provider's key is a token bucket that is refilled by the database's clock. A caller takes tokens first and then
waits for its turn, so all callers proceed in order without polling; no minute starts more than the limit allows. The wait
that a 429 response requests applies to all callers: callers that were already waiting queue again after it.
"""

from __future__ import annotations

import random
import time
from typing import Any

from ..errors import OptionsError
from ..ground.checks import check_settings, number, or_none
from ..ground.frozen import frozen
from ..sessions.stores.tables import Execute, Tables

KINDS = ("tenant", "queue", "agent")
MAX_RUNNING = 1_000_000_000  # far above any fleet, and within an integer of every database
# The maximum age of a cached answer, and so the longest time until all hosts respect the fleet's first limit of runs, and a
# key's first limit or block.
LOOK_S = 1.0
# The fraction of a tenant's budget that a run reserves if neither the run nor the tenant limits the cost of one run.
SHARE_OF_RUN = 0.1

# The number of runs per tenant, queue and agent, counted once per claim.
BUSY = "busy AS (SELECT tenant, queue, agent, count(*) AS n FROM openagentic_runs WHERE state = 'running' GROUP BY 1, 2, 3)"
# The first run of each tenant, queue and agent, found by skipping along an index, however many wait: to the queue's next
# agent, else to the tenant's next queue, else to the next tenant. With one row comparison instead of three subqueries,
# SQLite would scan every run of the tenant.
_NEXT = """(
            SELECT next.id FROM openagentic_runs AS next
            WHERE next.state = 'queued' AND {where}
            ORDER BY next.tenant, next.queue, next.agent, next.rank DESC, next.id LIMIT 1
        )"""
_OF_HEAD = {name: f"(SELECT {name} FROM openagentic_runs WHERE id = heads.id)" for name in ("tenant", "queue", "agent")}
_JUMPS = ", ".join(
    _NEXT.format(where=where.format(**_OF_HEAD))
    for where in (
        "next.tenant = {tenant} AND next.queue = {queue} AND next.agent > {agent}",
        "next.tenant = {tenant} AND next.queue > {queue}",
        "next.tenant > {tenant}",
    )
)
_HEADS = f"""
    heads (id) AS (
        SELECT id FROM (
            SELECT id FROM openagentic_runs WHERE state = 'queued' ORDER BY tenant, queue, agent, rank DESC, id LIMIT 1
        ) AS first
        UNION ALL
        SELECT coalesce({_JUMPS}) FROM heads WHERE heads.id IS NOT NULL
    )
"""
# Whether a limit prevents another run from starting. The sum over no runs is NULL, and no comparison with NULL holds: hence
# `coalesce`. A budget with nothing reserved holds no run back: once it is spent, each claimed run fails with that reason.
IS_FULL = """
    EXISTS (
        SELECT 1 FROM openagentic_limits AS lim WHERE
            (lim.kind = 'tenant' AND lim.name = run.tenant AND lim.max_running <= (
                SELECT coalesce(sum(n), 0) FROM busy WHERE busy.tenant = run.tenant))
            OR (lim.kind = 'queue' AND lim.name = run.queue AND lim.max_running <= (
                SELECT coalesce(sum(n), 0) FROM busy WHERE busy.queue = run.queue))
            OR (lim.kind = 'agent' AND lim.name = run.agent AND lim.max_running <= (
                SELECT coalesce(sum(n), 0) FROM busy WHERE busy.agent = run.agent))
    ) OR EXISTS (
        SELECT 1 FROM openagentic_budgets AS budget WHERE budget.tenant = run.tenant AND budget.reserved_usd > 0
            AND budget.spent_usd + budget.reserved_usd >= budget.max_usd
    )
"""
# Tenants with the fewest running runs come first, then the run with the highest `rank`, which combines priority and age.
# While only one tenant's runs wait, nothing is counted. Two ranges instead of `<>`, for which no index is used.
_RUNNING_OF_TENANT = """
    CASE WHEN EXISTS (SELECT 1 FROM openagentic_runs WHERE state = 'queued' AND tenant < run.tenant)
        OR EXISTS (SELECT 1 FROM openagentic_runs WHERE state = 'queued' AND tenant > run.tenant)
    THEN (SELECT coalesce(sum(n), 0) FROM busy WHERE busy.tenant = run.tenant) END
"""
# The large limits keep SQLite from merging the subqueries into the outer one: it could drop their order, and would evaluate
# `first` twice for each group.
FAIR = (
    f"WITH RECURSIVE {BUSY}, {_HEADS}, groups AS ("
    "SELECT run.tenant, run.queue, run.agent, run.rank FROM heads JOIN openagentic_runs AS run ON run.id = heads.id "
    "WHERE {mine} "
    f"ORDER BY {_RUNNING_OF_TENANT}, run.rank DESC, run.id LIMIT 10000) "
    "SELECT found.id FROM (SELECT ({first}) AS id FROM groups LIMIT 10000) AS found WHERE found.id IS NOT NULL LIMIT 1"
)

# Changes nothing, and locks the row until the end of the transaction: SQLite has no SELECT FOR UPDATE.
_ALONE = (
    "UPDATE openagentic_budgets SET max_usd = max_usd WHERE tenant = %s "
    "RETURNING max_usd, run_usd, spent_usd, reserved_usd"
)
_RESERVE = "UPDATE openagentic_budgets SET reserved_usd = reserved_usd + %s WHERE tenant = %s RETURNING tenant"
_RESERVE_RUN = (
    "UPDATE openagentic_runs SET reserved_usd = %s WHERE id = %s AND fence = %s AND state = 'running' RETURNING id"
)
_SETTLE_RUN = "UPDATE openagentic_runs SET settled_usd = %s, reserved_usd = 0 WHERE id = %s RETURNING id"
_SPEND = (
    "UPDATE openagentic_budgets SET spent_usd = spent_usd + %s, reserved_usd = reserved_usd - %s WHERE tenant = %s "
    "RETURNING tenant"
)


# Without a rate, callers that waited for the end of a block are spread over this time.
SPREAD_S = 1.0
# A bucket's capacity is a twentieth of a minute's limit; capacity plus refill of one minute never exceeds the limit. (The
# request that `+ 1.0` adds starts 60 s after the first one, and so in the next minute.)
_REQUESTS_CAP = "(CASE WHEN requests_per_minute > 20 THEN requests_per_minute / 20.0 ELSE 1.0 END)"
_REQUESTS_PER_S = f"((requests_per_minute - {_REQUESTS_CAP} + 1.0) / 60.0)"
_TOKENS_CAP = "(tokens_per_minute / 20.0)"
_TOKENS_PER_S = "(tokens_per_minute * 0.95 / 60.0)"
# Postgres has `least` and SQLite `min` for the smaller of two numbers; both have CASE.
_FILLED = "(CASE WHEN {level} + ({now} - at) * {per_s} < {cap} THEN {level} + ({now} - at) * {per_s} ELSE {cap} END)"
_TAKE = """
    UPDATE openagentic_rates SET requests = {requests} - 1, tokens = {tokens} - %s, at = {now} WHERE name = %s
    RETURNING requests, {requests_per_s}, tokens, {tokens_per_s}, {tokens_cap}, blocked_until - {now}
"""
_SETTLE = "UPDATE openagentic_rates SET tokens = tokens - %s WHERE name = %s RETURNING name"
# Drop the refill during the block, or all waiting callers would be released at once. If two responses request a block at the
# same time, only the longer one counts.
_BLOCK = """
    UPDATE openagentic_rates SET
        requests = requests - {requests_per_s} * {longer}, tokens = tokens - {tokens_per_s} * {longer},
        blocked_until = CASE WHEN blocked_until < {now} + %s THEN {now} + %s ELSE blocked_until END
    WHERE name = %s RETURNING name
"""
_LONGER = """
    (CASE WHEN blocked_until >= {now} + %s THEN 0.0 WHEN blocked_until > {now} THEN {now} + %s - blocked_until ELSE %s END)
"""
_ADD = """
    INSERT INTO openagentic_rates (name, requests, tokens, at, blocked_until) VALUES (%s, 0, 0, {now}, 0)
    ON CONFLICT (name) DO NOTHING RETURNING name
"""
_SET = """
    UPDATE openagentic_rates SET requests_per_minute = %s, tokens_per_minute = %s, requests = 0, tokens = 0, at = {now}
    WHERE name = %s RETURNING name
"""


@frozen
class Limit:
    """The maximum number of concurrent runs of this tenant, queue or agent (`kind`), on all hosts together."""

    kind: str
    name: str
    max_running: int


@frozen
class TenantBudget:
    """A tenant's budget in US dollars and its use. `run_usd` is the limit of one run; without it, the run's own limit
    applies, or a tenth of `max_usd` if it has none.
    """

    tenant: str
    max_usd: float
    run_usd: float | None
    spent_usd: float = 0.0
    reserved_usd: float = 0.0


class _SetLimits:
    """Limits in a database. The result of the query `look` is cached for `LOOK_S`. Calls block, and raise `StorageError`."""

    def __init__(self, tables: Tables, look: str) -> None:
        self._tables = tables
        self._look = look
        self._looked_at: float | None = None
        self._cached_names: list[Any] = []

    @property
    def is_fresh(self) -> bool:
        """Whether the last query of the database is at most `LOOK_S` old, so that its answer can be used again."""
        return self._looked_at is not None and time.monotonic() - self._looked_at <= LOOK_S

    def _recent_names(self) -> list[Any]:
        """The first column of the `look` query, which is sent to the database at most once in `LOOK_S`."""
        if not self.is_fresh:
            now = time.monotonic()
            self._cached_names, self._looked_at = [row[0] for row in self._tables.read(self._look)], now
        return self._cached_names


class FleetLimits(_SetLimits):
    """The limits of concurrent runs and the budgets of tenants in one database."""

    def __init__(self, tables: Tables) -> None:
        look = "SELECT 1 WHERE EXISTS (SELECT 1 FROM openagentic_limits) OR EXISTS (SELECT 1 FROM openagentic_budgets)"
        super().__init__(tables, look)

    # --- setting limits ------------------------------------------------------------------------------------------------

    def set(self, kind: str, name: str, max_running: int | None) -> None:
        """Limit the number of concurrent runs, from the next claim on; None removes the limit. Raises `OptionsError`."""
        if kind not in KINDS:
            raise OptionsError(f"a limit is for one of {', '.join(KINDS)}, not for {kind!r:.100}")
        check_settings({"max_running": max_running}, {"max_running": or_none(number(0, whole=True, most=MAX_RUNNING))})

        def change(execute: Execute) -> None:
            self._tables.take_turn(execute)
            execute("DELETE FROM openagentic_limits WHERE kind = %s AND name = %s RETURNING name", (kind, name))
            if max_running is not None:
                values = (kind, name, max_running)
                execute(
                    "INSERT INTO openagentic_limits (kind, name, max_running) VALUES (%s, %s, %s) RETURNING name",
                    values,
                )

        self._tables.change(change, steps=3, durable=True)
        self._looked_at = None

    def rows(self) -> list[Limit]:
        """All limits of concurrent runs."""
        command = "SELECT kind, name, max_running FROM openagentic_limits ORDER BY kind, name"
        return [Limit(*row) for row in self._tables.read(command)]

    def set_budget(self, tenant: str, max_usd: float | None, run_usd: float | None = None) -> None:
        """Set what a tenant may spend from now on, and count from 0; reservations stay. None removes the budget.

        `run_usd` is as in `TenantBudget`. Raises `OptionsError`.
        """
        for of, amount in (("max_usd", max_usd), ("run_usd", run_usd)):
            if amount is not None and (not isinstance(amount, int | float) or not 0 <= amount < 1e12):
                raise OptionsError(
                    f"{of} of a budget must be at least 0 and below 1e12 US dollars, or None, not {amount!r:.100}"
                )
        if max_usd is None:
            command, values = "DELETE FROM openagentic_budgets WHERE tenant = %s RETURNING tenant", (tenant,)
            self._tables.change(lambda execute: execute(command, values), durable=True)
            self._looked_at = None
            return
        add = (
            "INSERT INTO openagentic_budgets (tenant, max_usd, run_usd, spent_usd, reserved_usd) VALUES (%s, %s, %s, 0, 0) "
            "ON CONFLICT (tenant) DO UPDATE SET max_usd = excluded.max_usd, run_usd = excluded.run_usd, spent_usd = 0 "
            "RETURNING tenant"
        )
        self._tables.change(lambda execute: execute(add, (tenant, max_usd, run_usd)), durable=True)
        self._looked_at = None

    def budgets(self) -> list[TenantBudget]:
        """All budgets, with the amounts spent and reserved."""
        command = "SELECT tenant, max_usd, run_usd, spent_usd, reserved_usd FROM openagentic_budgets ORDER BY tenant"
        return [TenantBudget(*row) for row in self._tables.read(command)]

    # --- enforcing them ------------------------------------------------------------------------------------------------

    @property
    def are_any(self) -> bool:
        """Whether there are limits, so that claims have to be serialized; queries the database at most once a second."""
        return bool(self._recent_names())

    def reserve(self, run_id: int, fence: int, tenant: str, wanted_usd: float | None) -> float | None:
        """Reserve money for a run that this process owns; return the amount, or None if the tenant has no budget.

        0.0 means that the budget is spent, that the rest of it is reserved by other runs, or that the run has another owner
        by now. `wanted_usd` is the run's own limit, None if it has none.
        """

        def attempt(execute: Execute) -> float | None:
            # The first writer of the row locks it until the end of the transaction.
            rows = execute(_ALONE, (tenant,))
            if not rows:
                return None
            max_usd, run_usd, spent_usd, reserved_usd = rows[0]
            mine = execute("SELECT reserved_usd FROM openagentic_runs WHERE id = %s AND fence = %s", (run_id, fence))
            if mine and mine[0][0] > 0:
                return float(mine[0][0])  # reserved by a dead worker, or by a call of ours whose answer was lost
            usual = max_usd * SHARE_OF_RUN if run_usd is None else run_usd
            requested_usd = usual if wanted_usd is None else wanted_usd if run_usd is None else min(wanted_usd, run_usd)
            amount = max(0.0, min(max_usd - spent_usd - reserved_usd, requested_usd))
            if amount <= 0 or not execute(_RESERVE_RUN, (amount, run_id, fence)):
                return 0.0
            execute(_RESERVE, (amount, tenant))
            return float(amount)

        return self._tables.change(attempt, steps=4, durable=True)

    def is_spent(self, tenant: str) -> bool:
        """Whether a tenant's budget is used up: nothing is left, and no reservation could give anything back."""
        command = "SELECT 1 FROM openagentic_budgets WHERE tenant = %s AND spent_usd >= max_usd AND reserved_usd <= 0"
        return bool(self._tables.read(command, (tenant,)))

    def settle(self, run_id: int, fence: int, tenant: str, cost_usd: float | None) -> None:
        """Book the cost so far of a run that this process owns, and release its reservation.

        An unknown cost (None) counts as the whole reservation.
        """

        def attempt(execute: Execute) -> None:
            execute(_ALONE, (tenant,))
            command = "SELECT settled_usd, reserved_usd FROM openagentic_runs WHERE id = %s AND fence = %s"
            rows = execute(command, (run_id, fence))
            if not rows:
                return
            settled_usd, reserved_usd = rows[0]
            known_usd = settled_usd + reserved_usd if cost_usd is None else cost_usd
            execute(_SETTLE_RUN, (known_usd, run_id))
            execute(_SPEND, (known_usd - settled_usd, reserved_usd, tenant))

        self._tables.change(attempt, steps=4, durable=True)


class Rates(_SetLimits):
    """The rate limits in one database: a token bucket for each key, by its name."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables, "SELECT name FROM openagentic_rates")
        now = tables.now
        names = {
            "requests_per_s": _REQUESTS_PER_S,
            "tokens_per_s": _TOKENS_PER_S,
            "tokens_cap": _TOKENS_CAP,
            "now": now,
        }
        requests = _FILLED.format(level="requests", now=now, per_s=_REQUESTS_PER_S, cap=_REQUESTS_CAP)
        tokens = _FILLED.format(level="tokens", now=now, per_s=_TOKENS_PER_S, cap=_TOKENS_CAP)
        self._take = _TAKE.format(requests=requests, tokens=tokens, **names)
        self._block = _BLOCK.format(longer=_LONGER.format(now=now), **names)

    def is_known(self, name: str) -> bool:
        """Whether this key has a limit or a block; queries the database at most once a second, for all keys."""
        return name in self._recent_names()

    def set(self, name: str, requests_per_minute: float | None, tokens_per_minute: float | None) -> None:
        """Limit the rates of a key; None means no limit. Raises `OptionsError`."""
        for of, limit in (("requests", requests_per_minute), ("tokens", tokens_per_minute)):
            if limit is not None and (not isinstance(limit, int | float) or not 0 < limit < 1e12):
                raise OptionsError(
                    f"the {of} per minute must be a number above 0 and below 1e12, or None, not {limit!r:.100}"
                )

        def change(execute: Execute) -> None:
            execute(_ADD.format(now=self._tables.now), (name,))
            execute(_SET.format(now=self._tables.now), (requests_per_minute, tokens_per_minute, name))

        self._tables.change(change, steps=2, durable=True)
        self._looked_at = None

    def rows(self) -> list[tuple[str, float | None, float | None, float]]:
        """Each key with its requests and tokens per minute, and the seconds for which it is still blocked."""
        blocked = f"CASE WHEN blocked_until > {self._tables.now} THEN blocked_until - {self._tables.now} ELSE 0.0 END"
        command = f"SELECT name, requests_per_minute, tokens_per_minute, {blocked} FROM openagentic_rates ORDER BY name"
        return [(name, requests, tokens, left_s) for name, requests, tokens, left_s in self._tables.read(command)]

    def take(self, name: str, tokens: int) -> float:
        """Take one request and its estimated tokens from a key's bucket; return the seconds until it may start, 0 if now."""
        rows = self._tables.change(lambda execute: execute(self._take, (tokens, name)))
        if not rows:
            return 0.0
        requests, requests_per_s, tokens_left, tokens_per_s, cap, blocked_s = rows[0]
        waits = [blocked_s]
        if requests_per_s is not None:
            waits.append(-requests / requests_per_s)
        else:
            waits[0] += random.uniform(0, SPREAD_S) if blocked_s > 0 else 0.0
        if tokens_per_s is not None:
            # A request larger than the bucket starts when the bucket is full; later requests wait for the rest.
            waits.append((min(tokens, cap) - tokens - tokens_left) / tokens_per_s)
        return float(max(0.0, *waits))

    def settle(self, name: str, tokens: int) -> None:
        """Correct the estimate of a request: take this many tokens more, or return them if the number is negative."""
        self._tables.change(lambda execute: execute(_SETTLE, (tokens, name)))

    def block(self, name: str, for_s: float) -> None:
        """Block the key for `for_s` seconds from now; a block that lasts longer stays."""

        def change(execute: Execute) -> None:
            execute(_ADD.format(now=self._tables.now), (name,))
            # Three in each of the two `_LONGER`, two for `blocked_until`.
            execute(self._block, (*(for_s,) * 8, name))

        self._tables.change(change, steps=2)
        self._looked_at = None

    def is_blocked(self, name: str) -> bool:
        """Whether the key is blocked now."""
        command = f"SELECT 1 FROM openagentic_rates WHERE name = %s AND blocked_until > {self._tables.now}"
        return bool(self._tables.read(command, (name,)))
