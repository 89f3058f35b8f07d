"""What all sessions of a store together may spend in one day (UTC), and those with a tag: `limits.toml`.

    [day]                      # every session
    max_cost_usd = 20.0
    max_tokens = 5_000_000

    [tag.nightly]              # the sessions that are tagged so, with their subagents
    max_cost_usd = 5.0

What was spent is read from the summaries of the sessions, so it holds over processes, and over hosts that share a store. It
is looked at before each model call; calls that run at the same time may go over a limit by one call each. A call without a
known price ends what a limit in dollars covers: add its model to `prices`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import OptionsError
from ..ground.checks import check_settings, number
from ..ground.disk import read_toml
from ..ground.frozen import frozen
from ..sessions.base import SessionStore
from ..sessions.folds.spent import SECONDS_PER_DAY
from ..sessions.folds.summary import SessionSummary
from .budgets import Room
from .record.folds.costs import DaySpending, spending_of_day

_CHECKS = {"max_cost_usd": number(0), "max_tokens": number(0, whole=True)}
_PAGE_ROWS = 200


@frozen
class DayLimit:
    """What may be spent in a day; `tag` None is for all sessions, None for a number is no limit."""

    tag: str | None
    max_cost_usd: float | None = None
    max_tokens: int | None = None

    @property
    def name(self) -> str:
        """The limit as the file calls it."""
        return "day" if self.tag is None else f"tag.{self.tag}"


@frozen
class DayLimits:
    """The limits of a file."""

    path: str
    limits: tuple[DayLimit, ...]

    def rooms(self, store: SessionStore, session_id: str, now: float) -> tuple[Room, ...]:
        """What is left today of each limit that this session, or the one it is a subagent of, falls under. Reads summaries.

        Raises what the store raises.
        """
        day = int(now // SECONDS_PER_DAY)
        rows = rows_since(store, day * SECONDS_PER_DAY)
        spent = spending_of_day(rows, day, session_id)
        return tuple(self._room(limit, spent) for limit in self.limits if limit.tag is None or limit.tag in spent.tags)

    def _room(self, limit: DayLimit, spent: DaySpending) -> Room:
        cost_usd, tokens, unpriced = spent.by_tag.get(limit.tag, (0.0, 0.0, ()))
        usd_left = None if limit.max_cost_usd is None else limit.max_cost_usd - cost_usd
        tokens_left = None if limit.max_tokens is None else int(limit.max_tokens - tokens)
        about = f"{limit.name} of {self.path}"
        way_out = "go on tomorrow (UTC) or raise it"
        reason = None
        if usd_left is not None and unpriced:
            names = ", ".join(name or "(no name)" for name in unpriced[:3])
            reason = f"{about} limits dollars, and calls of today had no known price: add {names} to `prices`"
        elif usd_left is not None and usd_left <= 0:
            limit_usd = f"max_cost_usd in {about} is {limit.max_cost_usd:g}"
            reason = f"{cost_usd:.4f} USD are spent today, {limit_usd}: {way_out}"
        elif tokens_left is not None and tokens_left <= 0:
            reason = f"{tokens:,.0f} tokens are spent today, max_tokens in {about} is {limit.max_tokens:,}: {way_out}"
        return Room(about, tokens_left, usd_left, reason)


def rows_since(store: SessionStore, moment: float) -> list[SessionSummary]:
    """The rows of all sessions that were written to at this time or later, those of subagents too."""
    found: list[SessionSummary] = []
    while True:
        page = store.list_session_summaries(include_children=True, limit=_PAGE_ROWS, offset=len(found))
        found += page
        if len(page) < _PAGE_ROWS or page[-1].updated < moment:
            return [row for row in found if row.error is None and row.updated >= moment]


def read_day_limits(path: Path) -> DayLimits | None:
    """The limits of this file; None when there is none. Raises `OptionsError` for a file that cannot be read or understood:
    its limits must not be taken for no limits."""
    try:
        data = read_toml(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise OptionsError(f"the limits in {str(path)!r} cannot be read: {error}") from error
    unknown = data.keys() - {"day", "tag"}
    tags = data.get("tag", {})
    if unknown or not isinstance(tags, dict):
        raise OptionsError(
            f"{str(path)!r} holds {sorted(unknown) or 'a tag that is no table'}: write [day] and [tag.NAME]"
        )
    tables: list[tuple[str | None, Any]] = [(None, data["day"])] if "day" in data else []
    limits = [_limit(tag, table, path) for tag, table in [*tables, *tags.items()]]
    return DayLimits(str(path), tuple(limits)) if limits else None


def _limit(tag: str | None, table: Any, path: Path) -> DayLimit:
    name = "day" if tag is None else f"tag.{tag}"
    if not isinstance(table, Mapping) or not table or table.keys() - _CHECKS.keys():
        raise OptionsError(f"[{name}] in {str(path)!r} must hold {' or '.join(_CHECKS)}, and nothing else")
    check_settings(table, {key: _CHECKS[key] for key in table}, f"[{name}] in {str(path)!r}: ")
    return DayLimit(tag, **table)
