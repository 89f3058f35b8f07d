"""The cost of tokens: a small price table that anyone can replace, and the calculation.

The cost of a model that is not in the table is `None`, never 0. The table is a JSON file: `models` maps a model's name to
US dollars per million tokens, under `input`, `cached_input`, `cache_write`, `cache_write_1h` and `output`; a part without
its own price costs the same as `input` (`cache_write_1h` the same as `cache_write`). `tiers` maps a service tier, or
`batch`, to a factor; without an entry, the usual names of the standard tier have 1, `batch` and `flex` 0.5, and other tiers
have no known price. `long`, if present, contains the prices of a request whose prompt exceeds `above_tokens` tokens. Files
with LiteLLM's keys (`input_cost_per_token` ...) can be loaded too, without their `above` tiers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from ....errors import OptionsError, StorageError
from ....events import Event, ModelResponse
from ....ground.checks import number, shown
from ....ground.disk import read_regular
from ....ground.packaged import read_packaged
from ....ground.system import reason_of
from ....sessions.folds.usage import HOUR, normalize_usage
from .spending import own_spending

Price = Mapping[str, Any]
PriceTable = Mapping[str, Price]

_PARTS = ("input", "cached_input", "cache_write", "cache_write_1h", "output")
# The names of the tier that the table's prices apply to; OpenAI and Anthropic halve them for batches.
_TIERS = {
    **dict.fromkeys(("default", "standard", "auto", "standard_only", "on_demand", "scale"), 1.0),
    **dict.fromkeys(("batch", "flex"), 0.5),
}
_LITELLM = {
    "input": "input_cost_per_token",
    "cached_input": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
    "cache_write_1h": "cache_creation_input_token_cost_above_1hr",
    "output": "output_cost_per_token",
}
_TOKENS_PER_PRICE = 1_000_000
_NUMBER = number(0)
# The largest table that is read; LiteLLM's has about 2 MiB.
_MAX_BYTES = 64 * 1024 * 1024
# A dated release costs the same as its family: gpt-4o-2024-08-06, claude-sonnet-4-20250514, claude-3-5-haiku-latest.
_RELEASE = r"(-\d{4}-\d{2}-\d{2}|-20\d{6}|@20\d{6}|-latest)$"
# Routers prefix the vendor. Other prefixes may imply other prices.
_MAKERS = ("openai/", "anthropic/", "google/", "deepseek/", "mistralai/", "x-ai/", "moonshotai/")


def cost(
    usage: Mapping[str, Any] | None, model: str | None, prices: PriceTable | None = None, tier: str | None = None
) -> float | None:
    """The cost of one usage in US dollars; None if the usage, or the model's price in this tier, is unknown.

    `prices` is the built-in table by default. `tier` is the service tier that the answer names, or `batch`.
    """
    price = find_price(model, built_in_prices() if prices is None else prices)
    tokens = None if price is None else normalize_usage(usage)
    if tokens is None or price is None:
        return None
    factor = 1.0 if tier is None else {**_TIERS, **price.get("tiers", {})}.get(tier.lower())
    if factor is None:
        return None
    long = price.get("long")
    if long and tokens["input_tokens"] > long["above_tokens"]:
        price = {**price, **long}
    cached, cache_writes = tokens["cached_input_tokens"], tokens["cache_write_tokens"]
    # An endpoint may report more cached tokens than prompt tokens; that must not make the cost negative.
    plain, for_an_hour = max(0, tokens["input_tokens"] - cached - cache_writes), min(tokens.get(HOUR, 0), cache_writes)
    write = price.get("cache_write", price["input"])
    dollars = (
        plain * price["input"]
        + cached * price.get("cached_input", price["input"])
        + (cache_writes - for_an_hour) * write
        + for_an_hour * price.get("cache_write_1h", write)
        + tokens["output_tokens"] * price["output"]
    )
    return float(dollars * factor / _TOKENS_PER_PRICE)


def session_cost(events: Iterable[Event]) -> float | None:
    """The cost of a session including its subagents; None if any part of it is unknown or no costs were incurred.

    An answer cut off before its usage arrived counts as nothing: its endpoint never reports it.
    """
    spending = own_spending(events)
    parts = [e.cost_usd for e in spending if e.usage or (isinstance(e, ModelResponse) and e.complete)]
    costs = [part for part in parts if part is not None]
    return sum(costs) if parts and len(costs) == len(parts) else None


def find_price(model: str | None, prices: PriceTable) -> Price | None:
    """Find a model's price by its exact name, else without a vendor prefix, else without a release date; None if missing."""
    return next((prices[name] for name in priced_names(model) if name in prices), None) if model else None


@lru_cache(maxsize=64)
def priced_names(model: str) -> tuple[str, ...]:
    """The names under which a table may contain this model."""
    bare = next((model[len(maker) :] for maker in _MAKERS if model.startswith(maker)), model)
    return model, bare, re.sub(_RELEASE, "", bare)


@cache
def built_in_prices() -> PriceTable:
    """The table shipped with the package; its file `prices.json` contains the table's month and source."""
    return _read_table(_packaged(), "the built-in table")


def own_prices(entries: Any) -> PriceTable:
    """The built-in table with a caller's entries taking precedence. Raises `OptionsError` for an invalid entry."""
    if not isinstance(entries, Mapping):
        raise OptionsError(
            f"prices must map models to their prices, or be the path of such a file, not {shown(entries)}"
        )
    table: dict[str, Price] = {}
    for name, entry in entries.items():
        if not isinstance(name, str):
            raise OptionsError(f"prices must map model names to prices, and {shown(name)} is not a name")
        unknown = set(entry) - {*_PARTS, *_LITELLM.values(), "long", "tiers"} if isinstance(entry, Mapping) else set()
        price = None if unknown else _read_price(name, dict(entry) if isinstance(entry, Mapping) else entry, "prices")
        if price is None:
            shown_keys = f"the keys {', '.join(map(repr, entry))}" if entry else "no keys"
            raise OptionsError(
                f"the price of {name!r} in 'prices' has {shown_keys}: "
                f"give dollars per million tokens as {', '.join(_PARTS)}, and a price for longer prompts as long"
            )
        table[name] = price
    return {**built_in_prices(), **table}


def price_setting(model: str) -> str:
    """A sentence about the setting that defines a model's price."""
    entry = f'{{{json.dumps(model or "MODEL")}: {{"input": USD, "output": USD}}}}'
    return (
        f"OpenAgenticOptions(prices={entry}) sets it, in US dollars per million tokens; so does this mapping in "
        "prices.json in $OPENAGENTIC_SDK_HOME or ~/.openagentic-sdk"
    )


def price_date() -> str:
    """The month of the built-in table, such as `2026-11`; "unknown" if the table has none."""
    return str(json.loads(_packaged()).get("as_of", "unknown"))


def _packaged() -> str:
    try:
        return read_packaged(__spec__, "prices.json")
    except OSError as error:  # for example too many open files
        raise StorageError(f"the built-in prices cannot be read: {error.strerror or error}", retryable=True) from error


def load_prices(path: str | Path) -> PriceTable:
    """Read a table from a file in this module's format. Raises `OptionsError` if the file or an entry is invalid."""
    try:
        text = read_regular(path, _MAX_BYTES)
    except (OSError, ValueError) as error:
        raise OptionsError(f"prices cannot be read from {shown(str(path))}: {reason_of(error)}") from error
    return _read_table(text, str(path))


def _read_table(text: str | bytes, path: str) -> PriceTable:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionsError(f"prices cannot be read from {path!r}: {error}") from error
    models = data.get("models", data) if isinstance(data, dict) else None
    if not isinstance(models, dict):
        raise OptionsError(f"prices in {path!r} must be an object with models as its keys")
    return {name: price for name, entry in models.items() if (price := _read_price(name, entry, path))}


def with_prices(path: str | Path) -> PriceTable:
    """The built-in table with a file's entries taking precedence.

    Raises `OptionsError` if the file or an entry is invalid.
    """
    return {**built_in_prices(), **load_prices(path)}


def _read_price(name: str, entry: Any, path: str) -> Price | None:
    if not isinstance(entry, dict):
        raise OptionsError(f"the price of {name!r} in {path!r} must be an object, not {shown(entry)}")
    price: dict[str, Any] = {part: entry[part] for part in _PARTS if entry.get(part) is not None}
    for part, key in _LITELLM.items():
        if part not in price and isinstance(entry.get(key), int | float):
            price[part] = entry[key] * _TOKENS_PER_PRICE
    if not price:
        return None  # LiteLLM's file also lists images, audio and search
    for part, value in price.items():
        if _NUMBER(value) is not None:
            raise OptionsError(
                f"the price of {name!r} in {path!r} has {part}={shown(value)}: give dollars per million tokens"
            )
    if "input" not in price or "output" not in price:
        raise OptionsError(f"the price of {name!r} in {path!r} needs both input and output")
    tiers = entry.get("tiers")
    if isinstance(tiers, dict):
        if not all(_NUMBER(factor) is None for factor in tiers.values()):
            raise OptionsError(f"the tiers of {name!r} in {path!r} must be factors such as 0.5, not {shown(tiers)}")
        price["tiers"] = tiers
    if entry.get("long") is not None:
        long = entry["long"]
        above = long.get("above_tokens") if isinstance(long, dict) else None
        if isinstance(above, bool) or not isinstance(above, int):
            raise OptionsError(f"the long price of {name!r} in {path!r} needs above_tokens, a number of tokens")
        price["long"] = {**(_read_price(f"{name} (long)", long, path) or {}), "above_tokens": above}
    return price
