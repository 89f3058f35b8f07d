"""Requests and tokens per minute of a provider's key, for all hosts together, and the wait that an endpoint asked for.

A row is a bucket that the database fills. Who asks takes first and then waits until his turn has come, so all go in turn
without asking again and again; in no minute more begins than the limit says. What a 429 asks for holds for everybody: who
slept meanwhile takes a new turn behind it.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Self

from ..assemble import guarded_provider
from ..errors import OptionsError, ProviderHTTPError
from ..ground.clock import Clock, SystemClock
from ..kernel.recorder import off_loop
from ..options import OpenAgenticOptions
from ..providers.base import Done, Message, Provider, StreamEvent, ToolSpec
from ..providers.token_count import estimate_tokens
from ..providers.wrappers.answer import ask
from ..providers.wrappers.fallback import FallbackProvider
from ..providers.wrappers.retry import retry_after_s
from ..providers.wrappers.wrap import AroundProvider, KeyedProvider
from ..sessions.folds.usage import normalize_usage
from ..sessions.stores.tables import Execute, Tables

# How soon a host hears of the first limit, or the first wait, of a key.
LOOK_S = 1.0
# How long all hosts leave a key alone after a 429 that names no time, and at most.
UNNAMED_BLOCK_S = 1.0
MAX_BLOCK_S = 600.0
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


class Rates:
    """The buckets of one database, by the names of keys. Every call blocks, and raises `StorageError`."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._known: set[str] = set()
        self._looked_at: float | None = None
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
        now = time.monotonic()
        if self._looked_at is None or now - self._looked_at > LOOK_S:
            rows = self._tables.read("SELECT name FROM openagentic_rates")
            self._known, self._looked_at = {name for (name,) in rows}, now
        return name in self._known

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


class RatedProvider(AroundProvider):
    """A provider that asks when the turn of its key has come. It stands inside of retries: each attempt is a request."""

    def __init__(self, provider: Provider, rates: Rates, key: str, *, clock: Clock | None = None) -> None:
        super().__init__(provider)
        self._rates = rates
        self._key = key
        self._clock = clock or SystemClock()

    def with_idempotency_key(self, key: str) -> Self:
        """The same around a provider that marks its attempts, when it can."""
        other = copy(self)
        if isinstance(self.provider, KeyedProvider):
            other.provider = self.provider.with_idempotency_key(key)
        return other

    async def stream(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: str | None = None
    ) -> AsyncGenerator[StreamEvent, None]:
        """The answer, once its turn has come."""
        taken = estimate_tokens({"messages": messages, "tools": list(tools)}).tokens
        is_counted = await off_loop(True, self._rates.is_known, self._key)
        while is_counted and (wait_s := await off_loop(True, partial(self._rates.take, self._key, taken))) > 0:
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
            if error.retryable and (asked_s is not None or error.status == 429):
                for_s = min(MAX_BLOCK_S, asked_s or UNNAMED_BLOCK_S)
                await off_loop(True, self._rates.block, self._key, for_s)
            raise
        if is_counted and usage is not None:
            more = usage["input_tokens"] + usage["output_tokens"] - taken
            await off_loop(True, self._rates.settle, self._key, more)


def rated(options: OpenAgenticOptions, rates: Rates, key: str) -> OpenAgenticOptions:
    """The options with every provider of a run, but those of its subagents' own, in the turn of this key."""

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
        return RatedProvider(provider, rates, key, clock=options.clock)

    provider = around(guarded_provider(options, options.clock or SystemClock()))
    return replace(options, provider=provider, retry=None, fallback=(), stream=True)
