"""`openagentic-sdk fleet ...`: enqueue runs for many hosts, execute, answer and cancel them."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from contextlib import closing, suppress
from datetime import datetime
from typing import Any

from ...agents import load_agents
from ...errors import FleetError
from ...fleet.fleet import Fleet
from ...fleet.record import STATES, FleetRun
from ...fleet.worker import GRACE_S, LEASE_S, SLOTS, Worker
from ...ground.signals import end_signals
from ...ground.text import on_one_line
from ...ground.words import plural
from ..actions import ActionList, add_list_flag
from ..exits import OK
from ..flags import add_agents_flag, positive
from ..fleet_rules import add_rules, add_run_flags, run_wishes
from ..loop import run_async
from ..output.terminal import Screen
from ..stored.stores import add_store_flag, check_new_id, open_session_store
from ..streams import ServiceNotes, read_stdin


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "fleet",
        description="Queue and execute runs of named agents that survive the loss of a host, over Postgres, or SQLite "
        "on one host.",
    )

    def add_common(action: argparse.ArgumentParser) -> None:
        action.set_defaults(agents=None)
        add_store_flag(action)
        action.add_argument("--json", action="store_true", help="print one JSON object per line")

    actions = ActionList(parser, add_common)
    enqueue = actions.add("enqueue", _enqueue, "enqueue a run and print its number")
    add_agents_flag(enqueue)
    enqueue.add_argument("agent", metavar="AGENT", help="the name of an agent in --agents")
    about = "the task; - reads it from standard input; with --session, it may be omitted to continue what is in its log"
    enqueue.add_argument("prompt", metavar="PROMPT", nargs="?", help=about)
    enqueue.add_argument("--session", metavar="ID", help="the session to continue or create (default: a new one)")
    enqueue.add_argument("--request-id", metavar="ID", help="an idempotency key: the same run is enqueued once")
    add_run_flags(enqueue)
    enqueue.add_argument(
        "--run-at",
        type=_time,
        metavar="TIME",
        help="the earliest start: 2026-12-01T09:00+01:00, or seconds since 1970 (default: now)",
    )
    work = actions.add("work", _work, "execute runs until a signal ends the worker")
    add_agents_flag(work)
    work.add_argument(
        "--slots",
        type=positive,
        default=SLOTS,
        metavar="N",
        help="the maximum number of parallel runs (default: %(default)s)",
    )
    add_list_flag(work, "--queue", metavar="NAME", help="take runs from this queue only (default: all)")
    about = "the time after which a silent worker is replaced (default: %(default)s)"
    work.add_argument("--lease", type=float, default=LEASE_S, metavar="SECONDS", help=about)
    work.add_argument(
        "--grace",
        type=float,
        default=GRACE_S,
        metavar="SECONDS",
        help="the time for running steps to finish at shutdown (default: %(default)s)",
    )
    work.add_argument("--until-idle", action="store_true", help="exit when no run is due")
    _add_actions_on_runs(actions)
    add_rules(actions)


def _add_actions_on_runs(actions: ActionList) -> None:
    runs = actions.add("runs", _runs, "list runs, the newest first")
    runs.add_argument(
        "--state", action="append", choices=STATES, default=[], help="only runs in this state (repeatable)"
    )
    runs.add_argument("--tenant", metavar="NAME", help="only runs of this tenant")
    runs.add_argument("--limit", type=positive, default=50, metavar="N", help="at most N runs (default: %(default)s)")
    status = actions.add("status", _status, "show the state of a run")
    cancel = actions.add("cancel", _cancel, "cancel a run permanently")
    answer = actions.add("answer", _answer, "answer the question that a run waits for")
    retry = actions.add(
        "retry",
        _retry,
        "enqueue a run again that failed or hit a limit, continuing its session",
    )
    for action in (status, cancel, answer, retry):
        action.add_argument("run", type=_run_number, metavar="RUN", help="the number of the run")
    answer.add_argument("answer", metavar="ANSWER", help="one of the choices, or a text if the question takes one")
    answer.add_argument("--question", metavar="ID", help="the question to answer, if the run waits for several")


def _run_number(text: str) -> int:
    try:
        return positive(text)
    except (ValueError, argparse.ArgumentTypeError):
        message = f"{text!r:.200} is not the number of a run (`openagentic-sdk fleet runs` lists them)"
        raise argparse.ArgumentTypeError(message) from None


def _time(text: str) -> datetime | float:
    with suppress(ValueError):
        return float(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if moment.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} has no time zone: write for instance {text}+01:00, or {text}Z")
    return moment


def run(args: argparse.Namespace) -> int:
    agents = None if args.agents is None else load_agents(args.agents)
    with closing(open_session_store(args.store)) as store, closing(Fleet(store, agents)) as fleet:
        code: int = run_async(args.run_action(fleet, args))
        return code


async def _enqueue(fleet: Fleet, args: argparse.Namespace) -> int:
    check_new_id(fleet.store, args.session)
    run_id = await fleet.enqueue(
        args.agent,
        read_stdin() if args.prompt == "-" else args.prompt,
        session=args.session,
        request_id=args.request_id,
        run_at=args.run_at,
        **run_wishes(args),
    )
    Screen(sys.stdout).tell(args.json, (await fleet.status(run_id)).to_dict(), [str(run_id)])
    return OK


async def _work(fleet: Fleet, args: argparse.Namespace) -> int:
    notes = ServiceNotes()

    def tell(data: dict[str, Any], line: str) -> None:
        with notes.written():
            Screen(sys.stdout).tell(args.json, data, [line])

    def report(run: FleetRun, what: str) -> None:
        facts = {"run": run.id, "session": run.session, "agent": run.agent}
        line = f"run {run.id} ({run.agent}, session {run.session}): {what}"
        tell({"happened": what.partition(":")[0], **facts, "note": what}, on_one_line(line, 500))

    def complain(problem: str) -> None:
        with suppress(OSError):
            print(f"openagentic-sdk: {on_one_line(problem, 500)}; trying again", file=sys.stderr, flush=True)

    worker = Worker(
        fleet,
        slots=args.slots,
        queues=args.queue,
        lease_s=args.lease,
        grace_s=args.grace,
        report=report,
        complain=complain,
    )

    def end(number: int) -> None:
        if worker.is_draining:
            os._exit(128 + number)  # nothing is lost: leases expire, and other workers continue
        worker.drain()
        with suppress(OSError):  # after SIGHUP the terminal may be gone
            print("shutting down: runs finish their step; a second signal ends at once", file=sys.stderr, flush=True)

    loop = asyncio.get_running_loop()
    for number in end_signals():
        loop.add_signal_handler(number, end, number)
    if not args.json:
        tell({}, f"working as {worker.name} (Ctrl-C ends)")
    await worker.work(until_idle=args.until_idle)
    notes.check()
    return OK


async def _runs(fleet: Fleet, args: argparse.Namespace) -> int:
    for run in await fleet.runs(states=args.state, tenant=args.tenant, limit=args.limit):
        _say(run, args)
    return OK


async def _status(fleet: Fleet, args: argparse.Namespace) -> int:
    run = await fleet.status(args.run)
    questions = await fleet.questions(run.id) if run.state == "waiting" else []
    _say(run, args, questions=[{"question_id": each.question_id, "prompt": each.prompt} for each in questions])
    if not args.json:
        for each in questions:
            choices = f" ({', '.join(map(str, each.choices))})" if each.choices else ""
            Screen(sys.stdout).line(on_one_line(f"asks {each.question_id}: {each.prompt}{choices}", 500))
    return OK


async def _cancel(fleet: Fleet, args: argparse.Namespace) -> int:
    if not await fleet.cancel(args.run):
        raise FleetError(f"run {args.run} has already ended", run_id=args.run)
    _say(await fleet.status(args.run), args)
    return OK


async def _retry(fleet: Fleet, args: argparse.Namespace) -> int:
    run = await fleet.status(await fleet.retry(args.run))
    if run.is_over:
        raise FleetError(
            f"run {args.run} was retried before, as run {run.id}, which is over ({run.state}): "
            f"`fleet status {run.id}` shows it"
        )
    Screen(sys.stdout).tell(args.json, run.to_dict(), [str(run.id)])
    return OK


async def _answer(fleet: Fleet, args: argparse.Namespace) -> int:
    await fleet.answer(args.run, args.question, args.answer)
    _say(await fleet.status(args.run), args)
    return OK


def _say(run: FleetRun, args: argparse.Namespace, **more: Any) -> None:
    parts = [f"{run.id}  {run.state}  {run.agent}  session {run.session}"]
    parts += [f"attempt {run.attempts} of {run.max_attempts}"] if run.attempts > 1 else []
    parts += [f"tenant {run.tenant}"] if run.tenant else []
    parts += [f"on {run.owner}"] if run.state == "running" else []
    parts += [f"{plural(run.unknown, 'call')} with an unknown outcome"] if run.unknown else []
    parts += [run.error] if run.error else []
    Screen(sys.stdout).tell(args.json, {**run.to_dict(), **more}, [on_one_line("  ".join(parts))])
