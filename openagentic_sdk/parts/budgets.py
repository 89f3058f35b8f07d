"""Limit tokens and money: per session with its subagents, and per day or hour (UTC) for all sessions of a store.

Limits are checked before each step and while an answer arrives. An endpoint reports the cost of an answer only at the
answer's end; until then the answer's tokens are estimated from its size. The limits for all sessions are in `limits.toml`:

    [day]                      # all sessions together
    max_cost_usd = 20.0
    max_tokens = 5_000_000

    [hour]
    max_cost_usd = 5.0

    [tag.nightly]              # all sessions with this tag and their subagents, per day
    max_cost_usd = 5.0

    [tenant."*"]               # each tenant separately
    max_cost_usd = 2.0
    hour.max_tokens = 200_000

    [tenant.acme]              # overrides the daily limit; the hourly limit of "*" still applies
    max_cost_usd = 10.0

Each name that matches a pattern (`*`, `?`, `[a-z]`) gets the entry's full amount. For each limit, the most specific entry
that sets it applies: an exact name, then the pattern with the most characters that are not wildcards, then the first in the
file.

Spending is read from the session summaries, so it is shared by all processes and by all hosts that use the same store;
concurrent calls may exceed a limit by one call each. After a call without a known price, a limit in dollars allows no
further calls: add the model to `prices`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..errors import OptionsError
from ..events import Event, ModelResponse, Result, SubagentFinished
from ..ground.checks import check_settings, number
from ..ground.disk import read_toml
from ..ground.frozen import frozen, mutable
from ..ground.patterns import regex
from ..ground.system import reason_of
from ..kernel.agent import Run
from ..kernel.lifetime import RunStopped
from ..kernel.part import Part
from ..kernel.recorder import off_loop
from ..sessions.base import SessionStore
from ..sessions.folds.compaction import BYTES_PER_TOKEN, estimate_tokens
from ..sessions.folds.spent import SECONDS_PER_DAY, SECONDS_PER_HOUR
from ..sessions.folds.standing import state_after
from ..sessions.folds.summary import SessionSummary
from ..sessions.folds.usage import normalize_usage
from .record.folds.costs import WINDOWS, CostScope, NowSpending, Window, spending_now

_CHECKS = {"max_cost_usd": number(0), "max_tokens": number(0, whole=True)}
_PAGE_ROWS = 200


@mutable
class Budget:
    """The budget of a session and all its subagents, or of all sessions that a limit of `window` covers.

    A maximum of None means no limit. `cost_usd` becomes None permanently after a call without a known price. `is_estimated`
    is true if some of `tokens` were not counted by the endpoint; `coming_bytes` is the current size of the unfinished
    answers. `shared` holds the daily and hourly budgets that the session's spending also counts against; each has a `name`,
    and lists the models without a price in `unpriced`. `ended` is set if a subagent of this turn ended with "budget",
    possibly in an earlier process; the budget is then exhausted, for that reason, for the session and all its subagents.
    """

    max_tokens: int | None = None
    max_cost_usd: float | None = None
    tokens: int = 0
    cost_usd: float | None = 0.0
    is_estimated: bool = False
    coming_bytes: int = 0
    shared: tuple[Budget, ...] = ()
    name: str = ""
    window: Window = "day"
    unpriced: tuple[str, ...] = ()
    ended: str | None = None

    def charge(self, usage: Mapping[str, Any] | None, cost_usd: float | None, estimated_tokens: int = 0) -> None:
        """Charge one call to this budget and to `shared`; `estimated_tokens` is used if the endpoint reports no tokens.

        A `cost_usd` of None makes the cost of all these budgets unknown.
        """
        # A log or a provider from elsewhere may report anything, but must neither lower the sums nor make them infinite.
        normal = normalize_usage(usage)
        tokens = 0 if normal is None else normal["input_tokens"] + normal["output_tokens"]
        if not tokens and estimated_tokens:
            tokens, self.is_estimated = estimated_tokens, True
        # The shared budgets were read before the step, so what this step spends is added until they are read again.
        for budget in (self, *self.shared):
            budget.tokens += tokens
            budget.cost_usd = (
                None if cost_usd is None or budget.cost_usd is None else budget.cost_usd + min(max(cost_usd, 0.0), 1e18)
            )

    def complaint(self) -> str | None:
        """The reason why no further call may be made, or None."""
        if self.ended is not None:
            return self.ended
        for budget in self.shared:
            if (shared := budget.complaint()) is not None:
                return shared
        today, of_name, way_out = "", "", ""
        if self.name:
            today, then = _WINDOW_WORDS[self.window]
            of_name, way_out = f" in {self.name}", f": continue {then} (UTC) or raise it"
        if self.max_tokens is not None and self.tokens >= self.max_tokens:
            about = "about " if self.is_estimated else ""
            tokens, most = (f"{n:,}" if self.name else str(n) for n in (self.tokens, self.max_tokens))
            return f"{about}{tokens} tokens have been spent{today}; max_tokens{of_name} is {most}{way_out}"
        if self.max_cost_usd is None:
            return None
        limit = f"max_cost_usd{of_name} is {f'{self.max_cost_usd:g}' if self.name else self.max_cost_usd}"
        if self.cost_usd is None:
            models = ", ".join(name or "(no name)" for name in self.unpriced[:3]) or "its model"
            return f"{limit} and the price of a call is unknown: add {models} to `prices`"
        if self.cost_usd >= self.max_cost_usd:
            return f"{self.cost_usd:.4f} USD have been spent{today}; {limit}{way_out}"
        return None


_WINDOW_WORDS: Mapping[Window, tuple[str, str]] = {
    "day": (" today", "tomorrow"),
    "hour": (" in this hour", "in the next hour"),
}

# A function that returns the bytes currently left for all unfinished answers together, and the reason given if they run out.
_ByteLimit = tuple[Callable[[], float], str]


class Budgets(Part):
    """A part that enforces the budget of a run, which its subagents share.

    `shared` is a blocking function that returns the daily and hourly budgets that apply to a session id at a time in epoch
    seconds; None means that no such limits exist.
    """

    limits = frozenset({"max_tokens", "max_cost_usd"})

    def __init__(self, run: Run, shared: Callable[[str, float], tuple[Budget, ...]] | None = None) -> None:
        super().__init__(run)
        parents = None if run.parent is None else run.parent.parts.services.find(Budgets)
        request, view = run.request, run.view
        own = Budget(request.max_tokens, request.max_cost_usd, view.tokens, view.cost_usd)
        self._budget: Budget = own if parents is None else parents._budget
        self._shared = shared
        self._limits: Sequence[_ByteLimit] | None = None
        self._coming_bytes = 0

    def services(self) -> Mapping[type, object]:
        return {Budgets: self}

    async def complaint(self) -> str | None:
        """Read the shared budgets again; return the reason why no further model call may be made, or None."""
        if self._shared is not None:
            run = self.run
            self._budget.shared = await off_loop(True, self._shared, run.session_id, run.agent.clock.now())
        return self._budget.complaint()

    async def settle(self, prompt_follows: bool) -> None:
        if not prompt_follows:
            for event in reversed(self.run.view.events):
                if isinstance(event, Result) and state_after(event) == "over":
                    break
                if isinstance(event, SubagentFinished) and event.stop_reason == "budget":
                    self.exhaust(None)

    def exhaust(self, why: str | None) -> None:
        """Mark the budget as exhausted because a subagent of the current turn ended with "budget"; `why` is the subagent's
        error message, if any.
        """
        self._budget.ended = why or "the budget was spent inside a subagent"

    async def before_step(self) -> None:
        complaint = await self.complaint()
        if complaint is not None:
            raise RunStopped("budget", complaint)

    def charge(self, usage: Mapping[str, Any] | None, cost_usd: float | None) -> None:
        """Charge what a subagent spent in an earlier process."""
        self._budget.charge(usage, cost_usd)

    def receive(self, size_bytes: int) -> tuple[int, str | None]:
        budget = self._budget
        if self._limits is None:
            self._limits = self._open_limits()
        room, why = size_bytes, None
        for bytes_left, limit in self._limits:
            # Subagents share the budget: what their unfinished answers have received is not free either.
            bytes_free = int(max(0.0, bytes_left())) - (budget.coming_bytes - self._coming_bytes)
            if bytes_free < room:
                room, why = max(0, bytes_free), limit
        budget.coming_bytes += size_bytes - self._coming_bytes
        self._coming_bytes = size_bytes
        return room, why

    def stored(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, ModelResponse):
                # A request that failed before its first byte costs nothing.
                if event.complete or event.usage is not None or self._coming_bytes:
                    self._charge_answer(event)
                self._budget.coming_bytes -= self._coming_bytes
                self._coming_bytes, self._limits = 0, None

    def _charge_answer(self, response: ModelResponse) -> None:
        estimated = 0
        if self._budget.max_tokens is not None:
            estimated = estimate_tokens(self.run.view.conversation.size_bytes() + self._coming_bytes)
        # An unknown cost would end the run as a call without a price; a broken answer without usage is only estimated.
        is_lost = not response.complete and response.usage is None
        self._budget.charge(response.usage, 0.0 if is_lost else response.cost_usd, estimated)

    def _open_limits(self) -> list[_ByteLimit]:
        """The byte limits for the answer that is about to begin."""
        run = self.run
        budgets = (self._budget, *self._budget.shared)
        has_dollars = any(budget.max_cost_usd is not None and budget.cost_usd is not None for budget in budgets)
        # The price of a million tokens, because that of a single token may round to zero.
        price = run.agent.cost({"input_tokens": 0, "output_tokens": 1_000_000}, run.model) if has_dollars else None
        limits: list[_ByteLimit] = []
        for budget in budgets:
            limits += _limits_of(budget, price)
        return limits


def _limits_of(budget: Budget, price: float | None) -> list[_ByteLimit]:
    """The byte limits that one budget sets for an answer; `price` is in USD per million output tokens, None if unknown."""
    limits: list[_ByteLimit] = []

    def add(tokens_left: Callable[[], float], key: str, most: str) -> None:
        reason = (
            f"exhausted {key} in {budget.name}" if budget.name else f"raised the total to about {most}, which is {key}"
        )
        limits.append((lambda: tokens_left() * BYTES_PER_TOKEN, f"the unfinished answer {reason}"))

    if (tokens := budget.max_tokens) is not None:
        add(lambda: tokens - budget.tokens, "max_tokens", f"{tokens} tokens")
    if (usd := budget.max_cost_usd) is not None and budget.cost_usd is not None and price:
        add(lambda: (usd - (budget.cost_usd or 0.0)) / price * 1_000_000, "max_cost_usd", f"{usd} USD")
    return limits


@frozen
class LimitEntry:
    """One table of a limits file: the limits for each name that matches `pattern`, per day or hour."""

    scope: CostScope
    pattern: str
    window: Window
    limits: Mapping[str, Any]

    @property
    def table(self) -> str:
        """The name of the table in the file."""
        names = [] if self.scope == "all" else [self.scope, self.pattern]
        names += [self.window] if self.scope == "all" or self.window == "hour" else []
        return ".".join(name if _BARE_KEY.fullmatch(name) else f'"{name}"' for name in names)

    def covers(self, scope: CostScope, name: str, window: Window) -> bool:
        """Whether the entry applies to this name in this window."""
        return (scope, window) == (self.scope, self.window) and (
            name == self.pattern or fnmatchcase(name, self.pattern)
        )

    def rank(self, name: str) -> tuple[bool, int]:
        """The specificity of the entry for a name that it covers; greater is more specific."""
        return name == self.pattern, len(_WILDCARD.sub("", self.pattern))


_BARE_KEY = regex(r"[A-Za-z0-9_-]+")
_WILDCARD = regex(r"[*?]|\[!?\]?[^\]]*\]")


@frozen
class LimitLeft:
    """The remainder of the limits of one entry for one tag or tenant, or for all sessions (`name` is then empty).

    If `name` is a pattern with wildcards, it represents the matching names that have spent nothing. A number is None if the
    entry has no such limit, or if another entry overrides it; `left_usd` is also None after a call of one of the `unpriced`
    models, because without a price the limit allows no further calls. `until` is the end of the window, in epoch seconds.
    """

    window: Window
    scope: CostScope
    name: str
    table: str
    until: float
    max_cost_usd: float | None = None
    left_usd: float | None = None
    max_tokens: int | None = None
    left_tokens: int | None = None
    unpriced: tuple[str, ...] = ()


@frozen
class SharedLimits:
    """The entries of a limits file; those with the same scope and window are in file order."""

    path: str
    entries: tuple[LimitEntry, ...]

    def shared(self, store: SessionStore, session_id: str, now: float) -> tuple[Budget, ...]:
        """The current budgets that apply to this session or to the session whose subagent it is.

        Reads session summaries. Also raises the errors of the store.
        """
        spending = spending_now(rows_since(store, now // SECONDS_PER_DAY * SECONDS_PER_DAY), now)
        return tuple(
            budget
            for scope, name in spending.names_of(session_id)
            for window in WINDOWS
            for _, budget in self._budgets(spending, scope, name, window)
        )

    def left(self, store: SessionStore, now: float) -> tuple[LimitLeft, ...]:
        """The remainder of each limit: for each entry's own pattern, and for each name that has spent anything.

        Reads session summaries. Also raises the errors of the store.
        """
        spending = spending_now(rows_since(store, now // SECONDS_PER_DAY * SECONDS_PER_DAY), now)
        entry_keys = [(entry.scope, entry.pattern, entry.window) for entry in self.entries]
        spending_keys = sorted((scope, name, window) for window, scope, name in spending.sums)
        return tuple(
            _remainder(window, scope, name, entry, budget, now)
            for scope, name, window in dict.fromkeys([*entry_keys, *spending_keys])
            for entry, budget in self._budgets(spending, scope, name, window)
        )

    def _budgets(
        self, spending: NowSpending, scope: CostScope, name: str, window: Window
    ) -> Iterator[tuple[LimitEntry, Budget]]:
        """Yield the budgets of a name in a window: one for each entry whose limits apply, with that entry."""
        covering = [entry for entry in self.entries if entry.covers(scope, name, window)]
        stated: dict[int, dict[str, Any]] = {}
        for key in _CHECKS:
            having = [entry for entry in covering if key in entry.limits]
            if having:
                best = max(having, key=lambda entry: entry.rank(name))  # max() returns the first of equals
                stated.setdefault(self.entries.index(best), {})[key] = best.limits[key]
        cost_usd, tokens, unpriced = spending.sums.get((window, scope, name), (0.0, 0.0, ()))
        for at, limits in stated.items():
            entry = self.entries[at]
            whose = f" for {name}" if name != entry.pattern else ""
            yield (
                entry,
                Budget(
                    **limits,
                    tokens=int(tokens),
                    cost_usd=None if unpriced else cost_usd,
                    name=f"{entry.table}{whose} of {self.path}",
                    window=window,
                    unpriced=unpriced,
                ),
            )


def _remainder(window: Window, scope: CostScope, name: str, entry: LimitEntry, budget: Budget, now: float) -> LimitLeft:
    usd, tokens, cost = budget.max_cost_usd, budget.max_tokens, budget.cost_usd
    size_s = SECONDS_PER_DAY if window == "day" else SECONDS_PER_HOUR
    return LimitLeft(
        window,
        scope,
        name,
        entry.table,
        (now // size_s + 1) * size_s,
        usd,
        None if usd is None or cost is None else max(0.0, usd - cost),
        tokens,
        None if tokens is None else max(0, tokens - budget.tokens),
        budget.unpriced if usd is not None else (),
    )


def rows_since(store: SessionStore, moment: float) -> list[SessionSummary]:
    """The summaries of all readable sessions, including subagents, written to at `moment` (epoch seconds) or later."""
    rows: list[SessionSummary] = []
    while True:
        page = store.list_session_summaries(include_children=True, limit=_PAGE_ROWS, offset=len(rows))
        rows += page
        # Rows are in the order of their times, newest first, so all others are older.
        if len(page) < _PAGE_ROWS or page[-1].updated < moment:
            return [row for row in rows if row.error is None and row.updated >= moment]


def read_limits(path: Path) -> SharedLimits | None:
    """Read a limits file; return None if it does not exist or sets no limits.

    Raises `OptionsError` for a file that cannot be read or is invalid: a damaged file must not remove the limits.
    """
    try:
        data = read_toml(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise OptionsError(f"the limits in {str(path)!r} cannot be read: {reason_of(error)}") from error
    names: dict[CostScope, Any] = {"tag": data.pop("tag", {}), "tenant": data.pop("tenant", {})}
    if data.keys() - {*WINDOWS} or not all(isinstance(tables, dict) for tables in names.values()):
        unknown = sorted(data.keys() - {*WINDOWS})
        raise OptionsError(
            f"{str(path)!r} contains "
            f"{', '.join(unknown) or 'a tag or tenant that is not a table'}: write [day], [hour], [tag.NAME], "
            "[tenant.NAME] and [tag.NAME.hour]"
        )
    entries = [_entry("all", "", window, data[window], path) for window in WINDOWS if window in data]
    for scope, tables in names.items():
        for name, table in tables.items():
            rest = dict(table) if isinstance(table, dict) else table
            of_hour = rest.pop("hour", None) if isinstance(rest, dict) else None
            if of_hour is not None:
                entries.append(_entry(scope, name, "hour", of_hour, path))
            if of_hour is None or rest:
                entries.append(_entry(scope, name, "day", rest, path))
    return SharedLimits(str(path), tuple(entries)) if entries else None


def _entry(scope: CostScope, pattern: str, window: Window, table: Any, path: Path) -> LimitEntry:
    entry = LimitEntry(scope, pattern, window, table)
    where = f"[{entry.table}] in {str(path)!r}"
    if not isinstance(table, Mapping) or not table or table.keys() - _CHECKS.keys():
        raise OptionsError(f"{where} must set {' or '.join(_CHECKS)}, or both, and nothing else")
    check_settings(table, {key: _CHECKS[key] for key in table}, f"{where}: ")
    return entry
