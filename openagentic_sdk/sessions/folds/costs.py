"""What a session spent, split by who spent it: each model that answered, and each subagent that it started."""

from __future__ import annotations

from collections.abc import Iterable

from ...events import Event, ModelResponse
from ...frozen import frozen
from .usage import Usage, add_usage, cached_share, own_spending


@frozen
class Spending:
    """What one model, or all runs of one subagent, took; `kind` is `model` or `subagent`.

    `usage` is in the normal form, None when no endpoint told it; `cost_usd` is None as soon as one part has no known price.
    """

    kind: str
    name: str
    calls: int
    usage: Usage | None
    cost_usd: float | None

    @property
    def cached_share(self) -> float | None:
        """How much of the prompts came from the vendor's cache, 0 to 1."""
        return cached_share(self.usage)


def spending(events: Iterable[Event]) -> list[Spending]:
    """The rows of one session in the order of their first call; together they are `usage` and `session_cost`."""
    rows: dict[tuple[str, str], Spending] = {}
    for event in own_spending(events):
        if isinstance(event, ModelResponse):
            key = ("model", event.model or "")
            if event.usage is None and not event.complete:
                continue  # cut before its usage came: the endpoint will not say what it was
        else:
            key = ("subagent", event.name)
        before = rows.get(key, Spending(*key, 0, None, 0.0))
        known = before.cost_usd is not None and event.cost_usd is not None
        rows[key] = Spending(
            *key,
            before.calls + 1,
            add_usage(before.usage, event.usage),
            (before.cost_usd or 0.0) + (event.cost_usd or 0.0) if known else None,
        )
    return list(rows.values())
