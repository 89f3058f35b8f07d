"""What a claimed run gets before it begins on this host: its turn at the provider, its share of a budget, its files."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from ..ground.threads import settled
from ..kernel.recorder import off_loop
from ..options import OpenAgenticOptions
from .fleet import Fleet
from .lease import Lease
from .rates import rated
from .record import FleetRun, Outcome
from .workspace import open_workspace, read_wish

# How long a run is left alone whose tenant's budget is reserved by others.
RESERVED_S = 5.0


def rated_options(fleet: Fleet, run: FleetRun, options: OpenAgenticOptions) -> OpenAgenticOptions:
    """The options with the provider's key shared by all hosts, under the name that the registry gives it."""
    assert options.provider is not None, "the registry has checked it"
    return rated(options, fleet.rates, fleet.agents[run.agent].rate_key or options.provider.name)


def within_budget(
    fleet: Fleet, run: FleetRun, options: OpenAgenticOptions, cost_usd: float | None
) -> OpenAgenticOptions | Outcome:
    """The options of a run that may cost what was reserved for it, or where it goes when nothing was.

    `cost_usd` is what its session has cost by now. Blocks, and raises `StorageError`.
    """
    limits = fleet.queue.limits
    if not run.tenant or not limits.are_any:
        return options
    amount = limits.reserve(run.id, run.fence, run.tenant, options.max_cost_usd)
    if amount is None:
        return options
    if amount > 0:
        return replace(options, max_cost_usd=(cost_usd or 0.0) + amount)
    if limits.is_spent(run.tenant):
        return Outcome(
            "failed", "budget", f"the budget of tenant {run.tenant!r} is spent: give it more, and enqueue again"
        )
    return Outcome("queued", error=f"the budget of tenant {run.tenant!r} is reserved by others", delay_s=RESERVED_S)


@asynccontextmanager
async def workspace_of(
    fleet: Fleet, lease: Lease, options: OpenAgenticOptions, draining: asyncio.Event
) -> AsyncIterator[OpenAgenticOptions]:
    """The options of a run in its workspace, which is there until the block ends."""
    run, stop = lease.run, threading.Event()
    agent = fleet.agents[run.agent]
    wish = read_wish(agent, run.workspace)
    opening = open_workspace(
        agent,
        options,
        wish,
        store=fleet.store,
        session_id=run.session,
        root=Path() if wish is None else fleet.workspace_dir,
        is_cancelled=lambda: stop.is_set() or draining.is_set() or lease.is_cancelled or lease.is_lost,
    )
    entering = asyncio.ensure_future(off_loop(True, opening.__enter__))
    try:
        options = await asyncio.shield(entering)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait({entering})
        if entering.exception() is None:
            await settled(off_loop(True, opening.__exit__, None, None, None))
        raise
    try:
        yield options
    finally:
        _, cancelled = await settled(off_loop(True, opening.__exit__, None, None, None))
        if cancelled is not None:
            raise cancelled
