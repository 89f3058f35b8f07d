"""`sessions cost`: one session's spending and its requests that missed the cache, or many sessions' by category."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from time import gmtime, strftime
from typing import Any

from ...assemble import limits_left
from ...events import ModelResponse
from ...ground.text import on_one_line
from ...options import OpenAgenticOptions
from ...parts.budgets import LimitLeft
from ...parts.masking import environment_redactor, mask_value
from ...parts.record.folds.costs import BY, CostReport, Costs, Spending, all_costs, cost_report, spending
from ...parts.record.folds.explain import find_misses
from ...parts.record.folds.prices import price_setting, session_cost
from ...parts.record.folds.spending import usage
from ...parts.record.lifecycle import rows_of_tag
from ...sessions.base import SessionStore
from ...sessions.folds.spent import SECONDS_PER_DAY
from ...sessions.folds.summary import SessionSummary
from ...sessions.folds.usage import cached_share
from ..actions import ActionList
from ..exits import FAILED, OK
from ..output.render import cost_words
from ..output.terminal import Screen
from ..output.widths import text_width
from .stores import ID_HELP, NEWEST, find_session, moment


def add_actions(actions: ActionList) -> None:
    """Add `cost` to the command line."""
    cost = actions.add(
        "cost",
        _cost,
        "show what a session spent and which requests missed the cache; with --by, what many sessions spent",
    )
    cost.add_argument("sessions", nargs="*", metavar="ID", help=f"{ID_HELP} (default: {NEWEST}, with --by all)")
    cost.add_argument(
        "--by",
        choices=BY,
        help="group the total cost of these sessions by this; the cost of an answer with several calls or active skills "
        "is divided among them, so a row may contain part of a call; input excludes cached tokens",
    )
    cost.add_argument(
        "--tag", metavar="TAG", help="with --by: only sessions with this tag, and those of their subagents"
    )
    cost.add_argument("--since", metavar="WHEN", type=moment, help="with --by: only from this day on (2026-11-01, 7d)")
    cost.add_argument(
        "--left",
        nargs="?",
        const="",
        metavar="FILE",
        help="show what is left of the limits that all sessions share (default: those in force for runs, limits.toml)",
    )
    cost.add_argument("--json", action="store_true", help="print one JSON object")


def _cost(store: SessionStore, args: argparse.Namespace) -> int:
    if args.left is not None:
        return _show_limits(store, args.left or None, args.json)
    if args.by is None and args.since is None and args.tag is None and len(args.sessions) < 2:
        return _cost_of_one(store, find_session(store, (args.sessions or [NEWEST])[0]), args.json)
    first_day = int(max(args.since, 0) // SECONDS_PER_DAY) if args.since is not None else 0
    by = args.by or "model"
    if args.tag is None and not args.sessions:
        report = all_costs(store, by, first_day=first_day)
    else:
        rows = store.list_session_summaries(include_children=True) if args.tag is None else rows_of_tag(store, args.tag)
        if args.sessions:
            rows = with_subagents(rows, {find_session(store, text) for text in args.sessions})
        report = cost_report(rows, by, first_day=first_day)
    screen = Screen(sys.stdout)
    data = mask_value(report_json(report), environment_redactor())
    screen.tell(args.json, data, report_lines(report, screen))
    for line in [*report.failed, *report.unreadable] if not args.json else ():
        print(f"not counted: {on_one_line(line)}", file=sys.stderr)
    return FAILED if report.failed or report.unreadable else OK


def with_subagents(rows: list[SessionSummary], ids: set[str]) -> list[SessionSummary]:
    """These sessions and those of their subagents, recursively."""
    children: dict[str, list[SessionSummary]] = {}
    for row in rows:
        if row.is_child and row.parent is not None:
            children.setdefault(row.parent, []).append(row)
    by_id = {row.id: row for row in rows if row.id in ids}
    waiting = list(by_id)
    while waiting:
        for row in children.get(waiting.pop(), ()):
            if row.id not in by_id:
                by_id[row.id] = row
                waiting.append(row.id)
    return list(by_id.values())


def report_json(report: CostReport) -> dict[str, Any]:
    """A report as JSON; `cost_usd` is null if a price is unknown, `known_cost_usd` is the sum of the known costs."""

    def row(costs: Costs) -> dict[str, Any]:
        return {**asdict(costs), "cost_usd": costs.cost_usd, "share": _share(costs, report.total)}

    return {
        "by": report.by,
        "sessions": report.sessions,
        "rows": [row(each) for each in report.rows],
        "total": row(report.total),
        "compaction": row(report.compaction),
        "retries": row(report.retries),
        "unpriced_models": list(report.unpriced_models),
        "unreadable": list(report.unreadable),
        "failed": list(report.failed),
    }


def _share(costs: Costs, total: Costs) -> float | None:
    """The share of all known costs, or of all tokens if these costs are 0; None if there are no tokens either."""
    part, whole = (each.known_cost_usd or 0.0 for each in (costs, total))
    if not whole:
        part, whole = costs.tokens, total.tokens
    return round(part / whole, 4) if whole else None


_COLUMNS = ("calls", "input", "cached", "output", "cost", "share")


def report_lines(report: CostReport, screen: Screen) -> list[str]:
    """A report as a table that fits the terminal, the total last; remarks below it."""
    below = [replace(report.total, name=f"in all, {report.sessions} sessions")]
    for part, about in (
        (report.compaction, "  compaction (included)"),
        (report.retries, "  failed attempts (included)"),
    ):
        below += [replace(part, name=about)] if part.calls else []
    rows = [(on_one_line(row.name) or "(no name)", _cells(row, report.total)) for row in report.rows]
    rows += [(row.name, _cells(row, report.total)) for row in below]
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *(cells for _, cells in rows), strict=True)]
    names = max(len(report.by), *(text_width(name) for name, _ in rows))
    if screen.is_terminal:
        names = min(names, max(screen.width - sum(widths) - 2 * len(widths) - 1, 12))
    lines = [screen.styled(_line(report.by, _COLUMNS, names, widths), "dim")]
    lines += [
        _line(on_one_line(name, names) if text_width(name) > names else name, cells, names, widths)
        for name, cells in rows
    ]
    if report.unpriced_models:
        unpriced = ", ".join(on_one_line(name or "(no name)") for name in report.unpriced_models)
        lines.append(f"no known price: {unpriced}; {price_setting(report.unpriced_models[0])}")
    return lines


def _line(name: str, cells: Sequence[str], names: int, widths: Sequence[int]) -> str:
    padding = " " * (names - text_width(name))
    return name + padding + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _cells(row: Costs, total: Costs) -> tuple[str, ...]:
    calls = f"{row.calls:,.0f}" if row.calls == int(row.calls) else f"{row.calls:,.1f}"
    dollars = f"${row.known_cost_usd:.{2 if row.known_cost_usd >= 100 else 4}f}"
    if row.unpriced_calls:
        # A row's calls may be a sum of fractions: the cost of an answer is divided among its calls and skills.
        dollars = "unknown" if row.unpriced_calls >= row.calls - 1e-6 else f"{dollars} + unknown"
    share = _share(row, total)
    tokens = (row.input_tokens + row.cache_write_tokens, row.cached_tokens, row.output_tokens)
    return (calls, *(f"{each:,.0f}" for each in tokens), dollars, "" if share is None else f"{share:.1%}")


def _show_limits(store: SessionStore, path: str | None, is_json: bool) -> int:
    limits = limits_left(OpenAgenticOptions(session_store=store, limits_file=path))
    screen = Screen(sys.stdout)
    lines = [f"{each.table}: {_limit_words(each)}" for each in limits] or ["no limits are set: write limits.toml"]
    screen.tell(is_json, {"limits": [asdict(each) for each in limits]}, lines)
    return OK


def _limit_words(limit: LimitLeft) -> str:
    whose = "" if limit.table.endswith(limit.name) or not limit.name else f" for {on_one_line(limit.name)}"
    words = []
    if limit.max_cost_usd is not None and limit.left_usd is None:
        words.append(f"nothing, since the calls of {', '.join(map(on_one_line, limit.unpriced))} have no price")
    elif limit.left_usd is not None:
        words.append(f"{limit.left_usd:.4f} of {limit.max_cost_usd:g} USD")
    if limit.left_tokens is not None:
        words.append(f"{limit.left_tokens:,} of {limit.max_tokens:,} tokens")
    until = "the day's end" if limit.window == "day" else strftime("%H:%M", gmtime(limit.until))
    return f"{' and '.join(words)} left{whose} until {until} (UTC)"


def _cost_of_one(store: SessionStore, session_id: str, as_json: bool) -> int:
    events = store.read_events(session_id)
    rows = spending(events)
    misses = [(request.step, request.seq, report) for request, report in find_misses(events)]
    total, cost_usd = usage(events), session_cost(events)
    row_dicts = [{**asdict(row), "cached_share": row.cached_share} for row in rows]
    missing = [{"step": step, "request_seq": seq, **asdict(report)} for step, seq, report in misses]
    whole = {"usage": total, "cached_share": cached_share(total), "cost_usd": cost_usd}
    lines = []
    for row in [*rows, Spending("", "in all", sum(row.calls for row in rows), total, cost_usd)]:
        token_text, share = "tokens unknown", row.cached_share
        if row.usage is not None:
            token_text = f"{row.usage['input_tokens']:,} + {row.usage['output_tokens']:,} tokens"
        cached = "" if share is None else f", {share:.1%} of the prompts cached"
        cost = cost_words(row.cost_usd)
        lines.append(
            f"{on_one_line(f'{row.kind} {row.name}'.strip())}: {row.calls} calls, {token_text}{cached}, {cost}"
        )
    answers = [event for event in events if isinstance(event, ModelResponse) and event.usage is not None]
    unpriced = dict.fromkeys(on_one_line(event.model or "") for event in answers if event.cost_usd is None)
    lines += [f"the price of {model or 'the model'} is unknown: {price_setting(model)}" for model in unpriced]
    if answers:
        tokens = int((answers[-1].usage or {}).get("input_tokens") or 0)
        lines.append(f"context: {tokens:,} tokens in the last request (`sessions context` has more)")
    for step, seq, report in misses:
        missed = f"bytes {report.same_bytes:,} to {report.previous_bytes:,} of the previous request"
        lines.append(f"step {step} (event {seq}) does not share {missed}: {on_one_line(report.reason or '')}")
    data = mask_value({**whole, "by": row_dicts, "misses": missing}, environment_redactor())
    Screen(sys.stdout).tell(as_json, data, lines)
    return OK
