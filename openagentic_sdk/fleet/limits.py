"""What a fleet may use at a time: runs of a tenant, queue or agent, money of a tenant, requests and tokens of a key.

All of it is in the database. The counts are exact: where there are limits at all, claims take turns, so each sees what the
one before it took. Money is reserved before a run and settled when its worker lets go of it, by what the session's log says
that it cost.

The row of a provider's key is a bucket that the database fills. A caller takes first and then waits for its turn, so all go
in turn without polling; in no minute more begins than the limit allows. The wait that a 429 asks for holds for everybody:
whoever slept meanwhile takes a new turn behind it.
"""

from __future__ import annotations

import random
import time
from typing import Any

from ..errors import OptionsError
from ..ground.frozen import frozen
from ..sessions.stores.tables import Execute, Tables

KINDS = ("tenant", "queue", "agent")
# How soon after the first limit was set all claims take turns, and a host learns of the first limit, or wait, of a key.
LOOK_S = 1.0
# What a run of a tenant with a budget reserves, of the budget, when neither it nor the tenant has a limit for one run.
SHARE_OF_RUN = 0.1

# Who has how many runs, counted once for a claim.
BUSY = "busy AS (SELECT tenant, queue, agent, count(*) AS n FROM openagentic_runs WHERE state = 'running' GROUP BY 1, 2, 3)"
# The first run of each tenant, queue and agent, found by jumping along an index, however many wait: to the next agent of the
# queue, else to the next queue of the tenant, else to the next tenant. Compared as one row of three, SQLite looks at every
# run of the tenant instead.
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
# Whether a limit keeps another run from beginning.
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
# Tenants with the fewest runs come first, then who has waited longest with the highest priority: `rank` has the age in it.
FAIR = (
    f"WITH RECURSIVE {BUSY}, {_HEADS}, groups AS ("
    "SELECT run.tenant, run.queue, run.agent, run.rank FROM heads JOIN openagentic_runs AS run ON run.id = heads.id "
    "WHERE {mine} "
    "ORDER BY (SELECT coalesce(sum(n), 0) FROM busy WHERE busy.tenant = run.tenant), run.rank DESC, run.id LIMIT 10000) "
    "SELECT found.id FROM (SELECT ({first}) AS id FROM groups LIMIT 10000) AS found WHERE found.id IS NOT NULL LIMIT 1"
)

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


# Where no rate says how those who waited for the end of a block are to follow each other, they come within so long.
SPREAD_S = 1.0
# A bucket holds a twentieth of a minute's worth, and is filled so slowly that both together make no more than a minute's.
_REQUESTS_CAP = "(CASE WHEN requests_per_minute > 20 THEN requests_per_minute / 20.0 ELSE 1.0 END)"
_REQUESTS_PER_S = f"((requests_per_minute - {_REQUESTS_CAP} + 1.0) / 60.0)"
_TOKENS_CAP = "(tokens_per_minute / 20.0)"
_TOKENS_PER_S = "(tokens_per_minute * 0.95 / 60.0)"
_FILLED = "(CASE WHEN {level} + ({now} - at) * {per_s} < {cap} THEN {level} + ({now} - at) * {per_s} ELSE {cap} END)"
_TAKE = """
    UPDATE openagentic_rates SET requests = {requests} - 1, tokens = {tokens} - %s, at = {now} WHERE name = %s
    RETURNING requests, {requests_per_s}, tokens, {tokens_per_s}, {tokens_cap}, blocked_until - {now}
"""
_SETTLE = "UPDATE openagentic_rates SET tokens = tokens - %s WHERE name = %s RETURNING name"
# What would have come in meanwhile is lost, or all who wait would be let go at once. Of two who are told at the same time
# only the longer wait counts.
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
    """At most so many runs of this tenant, queue or agent (`kind`) at a time, on all hosts together."""

    kind: str
    name: str
    max_running: int


@frozen
class TenantBudget:
    """What a tenant may spend in US dollars, and has; `run_usd` is what one run may, None for a tenth of it all."""

    tenant: str
    max_usd: float
    run_usd: float | None
    spent_usd: float = 0.0
    reserved_usd: float = 0.0


class _SetLimits:
    """Limits in a database. Every call blocks, and raises `StorageError`."""

    def __init__(self, tables: Tables, look: str) -> None:
        self._tables = tables
        self._look = look
        self._looked_at: float | None = None
        self._found: list[Any] = []

    def _found_lately(self) -> list[Any]:
        """The first column of `look`; asked of the database at most once in a second."""
        now = time.monotonic()
        if self._looked_at is None or now - self._looked_at > LOOK_S:
            self._found, self._looked_at = [row[0] for row in self._tables.read(self._look)], now
        return self._found


class FleetLimits(_SetLimits):
    """The limits and budgets of one database."""

    def __init__(self, tables: Tables) -> None:
        look = "SELECT 1 WHERE EXISTS (SELECT 1 FROM openagentic_limits) OR EXISTS (SELECT 1 FROM openagentic_budgets)"
        super().__init__(tables, look)

    # --- as they are set -----------------------------------------------------------------------------------------------

    def set(self, kind: str, name: str, max_running: int | None) -> None:
        """Limit the runs at a time, from the next claims on; None takes the limit away. Raises `OptionsError`."""
        if kind not in KINDS:
            raise OptionsError(f"a limit is for one of {', '.join(KINDS)}, not for {kind!r:.100}")
        if max_running is not None and (not isinstance(max_running, int) or max_running < 0):
            raise OptionsError(f"a limit is a whole number from 0 on, not {max_running!r:.100}")

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
        """All limits of runs at a time."""
        command = "SELECT kind, name, max_running FROM openagentic_limits ORDER BY kind, name"
        return [Limit(*row) for row in self._tables.read(command)]

    def set_budget(self, tenant: str, max_usd: float | None, run_usd: float | None = None) -> None:
        """What a tenant may spend from now on; None takes the budget away. What is reserved stays. Raises `OptionsError`."""
        for amount in (max_usd, run_usd):
            if amount is not None and (not isinstance(amount, int | float) or not 0 <= amount < 1e12):
                raise OptionsError(f"a budget is a number of US dollars from 0 on, not {amount!r:.100}")
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
        """All budgets, with what is spent and reserved of them."""
        command = "SELECT tenant, max_usd, run_usd, spent_usd, reserved_usd FROM openagentic_budgets ORDER BY tenant"
        return [TenantBudget(*row) for row in self._tables.read(command)]

    # --- as they hold --------------------------------------------------------------------------------------------------

    @property
    def are_any(self) -> bool:
        """Whether claims have to take turns; asked of the database at most once in a second."""
        return bool(self._found_lately())

    def reserve(self, run_id: int, fence: int, tenant: str, wanted_usd: float | None) -> float | None:
        """Set money aside for a run that this process owns: what the run may spend, or None where its tenant has no budget.

        0.0 says that the budget is spent, or that others have reserved what is left of it.
        """

        def attempt(execute: Execute) -> float | None:
            # Who writes the row first is alone with it until the transaction's end.
            rows = execute(_ALONE, (tenant,))
            if not rows:
                return None
            max_usd, run_usd, spent_usd, reserved_usd = rows[0]
            mine = execute("SELECT reserved_usd FROM openagentic_runs WHERE id = %s AND fence = %s", (run_id, fence))
            if mine and mine[0][0] > 0:
                return float(mine[0][0])  # kept from a worker that died, or an answer of ours that was lost
            usual = max_usd * SHARE_OF_RUN if run_usd is None else run_usd
            asked = usual if wanted_usd is None else wanted_usd if run_usd is None else min(wanted_usd, run_usd)
            amount = max(0.0, min(max_usd - spent_usd - reserved_usd, asked))
            if amount <= 0 or not execute(_RESERVE_RUN, (amount, run_id, fence)):
                return 0.0
            execute(_RESERVE, (amount, tenant))
            return float(amount)

        return self._tables.change(attempt, steps=4, durable=True)

    def is_spent(self, tenant: str) -> bool:
        """Whether nothing is left of a tenant's budget, and nothing can come back."""
        command = "SELECT 1 FROM openagentic_budgets WHERE tenant = %s AND spent_usd >= max_usd AND reserved_usd <= 0"
        return bool(self._tables.read(command, (tenant,)))

    def settle(self, run_id: int, fence: int, tenant: str, cost_usd: float | None) -> None:
        """Say what a run has cost by now, whose owner this process is, and give back what it had reserved.

        A cost that is not known (None) counts as all that was reserved.
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
    """The buckets of one database, by the names of keys."""

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
        """Whether there is anything to wait for; asked of the database at most once in a second, for all keys."""
        return name in self._found_lately()

    def set(self, name: str, requests_per_minute: float | None, tokens_per_minute: float | None) -> None:
        """Limit a key; None is no limit. Raises `OptionsError`."""
        for limit in (requests_per_minute, tokens_per_minute):
            if limit is not None and (not isinstance(limit, int | float) or not 0 < limit < 1e12):
                raise OptionsError(f"a rate is a number above 0, or None, not {limit!r:.100}")

        def change(execute: Execute) -> None:
            execute(_ADD.format(now=self._tables.now), (name,))
            execute(_SET.format(now=self._tables.now), (requests_per_minute, tokens_per_minute, name))

        self._tables.change(change, steps=2, durable=True)
        self._looked_at = None

    def rows(self) -> list[tuple[str, float | None, float | None, float]]:
        """Each key with its requests and tokens per minute, and for how many seconds more it is left alone."""
        blocked = f"CASE WHEN blocked_until > {self._tables.now} THEN blocked_until - {self._tables.now} ELSE 0.0 END"
        command = f"SELECT name, requests_per_minute, tokens_per_minute, {blocked} FROM openagentic_rates ORDER BY name"
        return [(name, requests, tokens, left_s) for name, requests, tokens, left_s in self._tables.read(command)]

    def take(self, name: str, tokens: int) -> float:
        """Take one request of about so many tokens; gives the seconds until its turn, 0 for now."""
        rows = self._tables.change(lambda execute: execute(self._take, (tokens, name)))
        if not rows:
            return 0.0
        requests, requests_per_s, left, tokens_per_s, cap, blocked_s = rows[0]
        waits = [blocked_s]
        if requests_per_s is not None:
            waits.append(-requests / requests_per_s)
        else:
            waits[0] += random.uniform(0, SPREAD_S) if blocked_s > 0 else 0.0
        if tokens_per_s is not None:
            # What is larger than the bucket begins when that is full; those behind it pay for the rest.
            waits.append((min(tokens, cap) - tokens - left) / tokens_per_s)
        return float(max(0.0, *waits))

    def settle(self, name: str, tokens: int) -> None:
        """Say how many tokens more it was than was taken; fewer is a negative number."""
        self._tables.change(lambda execute: execute(_SETTLE, (tokens, name)))

    def block(self, name: str, for_s: float) -> None:
        """Block the key for that many seconds."""

        def change(execute: Execute) -> None:
            execute(_ADD.format(now=self._tables.now), (name,))
            execute(self._block, (*(for_s,) * 8, name))

        self._tables.change(change, steps=2)
        self._looked_at = None

    def is_blocked(self, name: str) -> bool:
        """Whether the key is blocked now."""
        command = f"SELECT 1 FROM openagentic_rates WHERE name = %s AND blocked_until > {self._tables.now}"
        return bool(self._tables.read(command, (name,)))
