"""The actions of `openagentic-sdk fleet` for the operator of a fleet: schedules, limits and statistics."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from typing import Any

from ..errors import OptionsError
from ..fleet.fleet import Fleet
from ..fleet.limits import KINDS
from ..fleet.record import MAX_ATTEMPTS
from ..fleet.schedules import Schedule
from ..fleet.stats import to_text
from ..ground.text import on_one_line
from .actions import ActionList
from .exits import OK
from .output.terminal import Screen
from .streams import read_stdin


def add_rules(actions: ActionList) -> None:
    """Add the actions `schedule`, `limits` and `stats`."""
    schedule = actions.add("schedule", _schedule, "enqueue runs on a schedule: add, list, pause, resume, remove")
    schedule.add_argument("--agents", metavar="WHERE", help="add: a TOML file, or MODULE:NAME in Python")
    schedule.add_argument(
        "what", choices=("add", "list", "pause", "resume", "remove"), help="what to do with schedules"
    )
    schedule.add_argument("name", nargs="?", metavar="NAME", help="the schedule; list shows all")
    schedule.add_argument("agent", nargs="?", metavar="AGENT", help="add: the agent to start")
    schedule.add_argument("prompt", nargs="?", metavar="PROMPT", help="add: the task; - reads it from standard input")
    schedule.add_argument(
        "--cron",
        metavar="LINE",
        help="add: when to start runs: minute hour day-of-month month day-of-week, or @daily and the like",
    )
    schedule.add_argument(
        "--zone",
        default="UTC",
        metavar="ZONE",
        help="the time zone, such as Europe/Berlin (default: %(default)s)",
    )
    add_run_flags(schedule)
    limits = actions.add("limits", _limits, "limit the use of the fleet: list, set, rate, budget")
    limits.add_argument("what", choices=("list", *KINDS, "rate", "budget"), help="the kind of limit; list shows all")
    limits.add_argument("name", nargs="?", metavar="NAME", help="the tenant, queue or agent, or the key of a provider")
    limits.add_argument(
        "most",
        nargs="?",
        metavar="MOST",
        help="tenant, queue, agent: parallel runs; budget: US dollars; none removes the limit",
    )
    limits.add_argument("--requests", type=float, metavar="N", help="rate: requests per minute (default: no limit)")
    limits.add_argument("--tokens", type=float, metavar="N", help="rate: tokens per minute (default: no limit)")
    limits.add_argument(
        "--run",
        type=float,
        metavar="USD",
        help="budget: the most that one run may cost (default: a tenth of the budget)",
    )
    stats = actions.add("stats", _stats, "print the figures of all hosts, as text for Prometheus and the like")
    stats.add_argument("--tenant", metavar="NAME", help="only those of this tenant")


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that describe a run of the fleet."""
    parser.add_argument(
        "--queue", default="default", metavar="NAME", help="the queue to wait in (default: %(default)s)"
    )
    parser.add_argument(
        "--priority", type=int, default=0, metavar="N", help="the priority; higher ones run first (default: 0)"
    )
    parser.add_argument(
        "--tenant", default="", metavar="NAME", help="the tenant that the run belongs to (default: none)"
    )
    parser.add_argument("--workspace", metavar="NAME", help="one of the agent's workspaces")
    about = "the number of workers that may die while running it (default: %(default)s)"
    parser.add_argument("--max-attempts", type=int, default=MAX_ATTEMPTS, metavar="N", help=about)


def run_wishes(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments for `Fleet.enqueue` and `Fleet.schedule` that these flags give."""
    return {name: getattr(args, name) for name in ("queue", "priority", "tenant", "workspace", "max_attempts")}


async def _schedule(fleet: Fleet, args: argparse.Namespace) -> int:
    schedules = fleet.schedules
    if args.what == "list":
        for row in schedules.rows():
            _say(row, args)
        return OK
    if args.name is None:
        raise OptionsError(f"schedule {args.what} needs the schedule's name")
    if args.what == "remove":
        schedules.remove(args.name)
        return OK
    if args.what == "add":
        if None in (args.agent, args.prompt, args.cron):
            raise OptionsError("schedule add needs NAME AGENT PROMPT and --cron LINE")
        schedule = await fleet.schedule(
            args.name,
            args.cron,
            args.agent,
            read_stdin() if args.prompt == "-" else args.prompt,
            zone=args.zone,
            **run_wishes(args),
        )
    else:
        schedule = schedules.pause(args.name, paused=args.what == "pause")
    _say(schedule, args)
    return OK


def _say(row: Schedule, args: argparse.Namespace) -> None:
    due = f"next at {datetime.fromtimestamp(row.next_at, UTC).isoformat(' ', 'seconds')}"
    parts = [row.name, f"{row.cron} ({row.zone})", row.agent, f"fired {row.fired} times"]
    parts += ["paused" if row.is_paused else due, *([row.error] if row.error else [])]
    data = {name: value for name, value in vars(row).items() if name != "body"}
    Screen(sys.stdout).tell(args.json, data, [on_one_line("  ".join(parts))])


async def _limits(fleet: Fleet, args: argparse.Namespace) -> int:
    limits = fleet.queue.limits
    if args.what == "list":
        rows = [{"limit": row.kind, "name": row.name, "max_running": row.max_running} for row in limits.rows()]
        keys = ("name", "requests_per_minute", "tokens_per_minute", "blocked_s")
        rows += [{"limit": "rate", **dict(zip(keys, row, strict=True))} for row in fleet.rates.rows()]
        rows += [{"limit": "budget", **vars(row)} for row in limits.budgets()]
        for row in rows:
            line = "  ".join(f"{key} {value}" for key, value in row.items() if value is not None)
            Screen(sys.stdout).tell(args.json, row, [on_one_line(line)])
        return OK
    if args.name is None or (args.most is None) != (args.what == "rate"):
        form = "NAME and --requests or --tokens" if args.what == "rate" else "NAME and MOST (a number, or none)"
        raise OptionsError(f"limits {args.what} needs {form}")
    if args.what == "rate":
        fleet.rates.set(args.name, args.requests, args.tokens)
        return OK
    try:
        most = None if args.most == "none" else float(args.most) if args.what == "budget" else int(args.most)
    except ValueError:
        kind = "a number" if args.what == "budget" else "a whole number"
        raise OptionsError(f"{args.most!r:.100} is not {kind}: give one, or none to remove the limit") from None
    if args.what == "budget":
        limits.set_budget(args.name, most, args.run)
    else:
        limits.set(args.what, args.name, None if most is None else int(most))
    return OK


async def _stats(fleet: Fleet, args: argparse.Namespace) -> int:
    stats = await fleet.stats(tenant=args.tenant)
    Screen(sys.stdout).tell(args.json, stats.to_dict(), to_text(stats).splitlines())
    return OK
