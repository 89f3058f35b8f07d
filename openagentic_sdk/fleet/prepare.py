"""Prepare a claimed run on this host: rate limits at its providers, its share of a budget, its workspace."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from ..assemble import guarded_provider
from ..errors import ProviderHTTPError
from ..ground.clock import Clock, SystemClock
from ..ground.threads import settled
from ..kernel.recorder import off_loop
from ..options import OpenAgenticOptions
from ..providers.base import Done, Message, Provider, StreamEvent, ToolSpec
from ..providers.token_count import estimate_tokens
from ..providers.wrappers.answer import ask
from ..providers.wrappers.fallback import FallbackProvider
from ..providers.wrappers.retry import retry_after_s
from ..providers.wrappers.wrap import AroundProvider, KeyedProvider
from ..sessions.folds.usage import normalize_usage
from .fleet import Fleet
from .lease import Lease
from .limits import Rates
from .record import FleetRun, RunOutcome
from .workspace import open_workspace, read_wish

# The delay before retrying a run whose tenant's budget is reserved by other runs.
RESERVED_S = 5.0
# How long a 429 response that names no time blocks a key for all hosts, and the longest block for any response.
UNNAMED_BLOCK_S = 1.0
MAX_BLOCK_S = 600.0


class RatedProvider(AroundProvider):
    """A provider whose requests wait for their turn under the rate limits of its key.

    Place it inside retries, because each attempt is a request.
    """

    def __init__(self, provider: Provider, rates: Rates, key: str, *, clock: Clock | None = None) -> None:
        super().__init__(provider)
        self._rates = rates
        self._key = key
        self._clock = clock or SystemClock()

    def with_idempotency_key(self, key: str) -> Self:
        """Return a copy whose provider marks its attempts with this key, if the provider supports that."""
        other = copy(self)
        if isinstance(self.provider, KeyedProvider):
            other.provider = self.provider.with_idempotency_key(key)
        return other

    async def stream(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: str | None = None
    ) -> AsyncGenerator[StreamEvent, None]:
        """Wait for the key's turn, then request the answer and yield its events."""
        is_counted = await off_loop(not self._rates.is_fresh, self._rates.is_known, self._key)
        # An estimate writes the whole request as JSON, which would be wasted without a limit.
        token_count = estimate_tokens({"messages": messages, "tools": list(tools)}).tokens if is_counted else 0
        while is_counted and (wait_s := await off_loop(True, partial(self._rates.take, self._key, token_count))) > 0:
            # `take` has already taken the tokens, in advance: only a block since then makes this request queue again.
            await self._clock.sleep(wait_s)
            if not await off_loop(True, self._rates.is_blocked, self._key):
                break
        usage: Any = None
        try:
            events = ask(self.provider, model=model, messages=messages, tools=tools, api_key=api_key)
            async with aclosing(events):
                async for event in events:
                    if isinstance(event, Done):
                        usage = normalize_usage(event.usage or (event.output.usage if event.output else None))
                    yield event
        except ProviderHTTPError as error:
            asked_s = retry_after_s(error.headers, self._clock.now()) if error.retryable else None
            # Another failure that names no time, such as a 500, implies nothing about the requests of other hosts.
            if error.retryable and (asked_s is not None or error.status == 429):
                for_s = min(MAX_BLOCK_S, asked_s or UNNAMED_BLOCK_S)
                await off_loop(True, self._rates.block, self._key, for_s)
            raise
        if is_counted and usage is not None:
            more = usage["input_tokens"] + usage["output_tokens"] - token_count
            await off_loop(True, self._rates.settle, self._key, more)


def rated_options(fleet: Fleet, run: FleetRun, options: OpenAgenticOptions) -> OpenAgenticOptions:
    """The options with the fleet's rate limits around every provider of a run, except those of its subagents.

    The limits are those of the agent's `rate_key` in the registry, or if it has none, of the provider's name.
    """
    assert options.provider is not None, "checked by the registry"
    key = fleet.agents[run.agent].rate_key or options.provider.name

    def around(provider: Provider) -> Provider:
        if isinstance(provider, AroundProvider):
            other = copy(provider)
            other.provider = around(provider.provider)
            if isinstance(other, FallbackProvider):
                other.fallbacks = tuple(
                    one if one.provider is None else replace(one, provider=around(one.provider))
                    for one in other.fallbacks
                )
            return other
        return RatedProvider(provider, fleet.rates, key, clock=options.clock)

    provider = around(guarded_provider(options, options.clock or SystemClock()))
    # These are part of the provider already: retries and fallbacks around the rate limits, `stream=False` inside them.
    return replace(options, provider=provider, retry=None, fallback=(), stream=True)


def within_budget(
    fleet: Fleet, run: FleetRun, options: OpenAgenticOptions, cost_usd: float | None
) -> OpenAgenticOptions | RunOutcome:
    """The options of a run, limited to its reservation, or the outcome of the run if nothing could be reserved.

    `cost_usd` is the cost of its session so far. Blocks, and raises `StorageError`.
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
        return RunOutcome(
            "failed",
            "budget",
            f"the budget of tenant {run.tenant!r} is spent: increase it, then `fleet retry {run.id}`",
        )
    text = f"the budget of tenant {run.tenant!r} is reserved by other runs"
    return RunOutcome("queued", error=text, delay_s=RESERVED_S)


@asynccontextmanager
async def workspace_of(
    fleet: Fleet, lease: Lease, options: OpenAgenticOptions, draining: asyncio.Event
) -> AsyncIterator[OpenAgenticOptions]:
    """Open the workspace of a run; yield the run's options in it. A checkout is deleted after the block, a folder stays."""
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
        # A thread cannot be cancelled: the workspace is opened to the end, or until it notices `stop`, and then closed.
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
