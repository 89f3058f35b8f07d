"""`openagentic-sdk eval SUITE`, `eval show ID` and `eval compare A B`: run a suite, show an eval, compare two."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from ...errors import OpenAgentSdkError, OptionsError
from ...evals.compare import Comparison, compare_reports, comparison_junit, pair_name, paired_rows
from ...evals.plan import EVAL_KEY, EvalJob
from ...evals.report import EvalReport, FailOn, Row, to_junit
from ...evals.run import run_suite
from ...evals.suite import Suite, load_suite
from ...events import EvalFinished, EvalStarted
from ...ground.system import working_dir
from ...ground.text import on_one_line
from ...ground.words import plural
from ...sessions.base import SessionStore
from ..actions import add_list_flag
from ..exits import FAILED, INTERRUPTED, OK
from ..loop import run_async
from ..output.files import write_for_one
from ..output.terminal import Screen
from ..stored.stores import NEWEST, add_store_flag, find_session, open_session_store, store_flag

_MAX_CHANGED = 50


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "eval",
        description="Run a suite and keep the results as a session; `eval show ID` shows one again, `eval compare A B` "
        "shows what improved and what got worse between two evals"
        ", or variants (ID:VARIANT). Exit code 1 when something failed, or "
        "fails in B and not in A; --fail-on defines when a case fails.",
    )
    parser.add_argument("suite", metavar="SUITE", help="suite.toml, suite.py, module:name; or show, or compare")
    parser.add_argument("ids", nargs="*", metavar="ID", help="for show and compare: an eval's id, or a prefix of it")
    run = parser.add_argument_group("what runs")
    add_list_flag(run, "--case", metavar="NAME", help="only this case")
    add_list_flag(run, "--variant", metavar="NAME", help="only this variant")
    run.add_argument("--repeats", metavar="N", type=int, help="the number of runs of each case under each variant")
    run.add_argument("--parallel", metavar="N", type=int, help="the number of parallel runs")
    run.add_argument("--max-cost", metavar="USD", type=float, help="the cost limit for all runs and judges together")
    run.add_argument(
        "--resume",
        metavar="ID",
        nargs="?",
        const=NEWEST,
        help="continue an interrupted eval of this suite (default: the newest one)",
    )
    out = parser.add_argument_group("output")
    out.add_argument("--json", action="store_true", help="print one JSON object")
    out.add_argument("--junit", metavar="FILE", help="also write JUnit XML")
    out.add_argument("--page", metavar="FILE", help="also write a page for a browser")
    out.add_argument(
        "--fail-on",
        choices=get_args(FailOn),
        default="most",
        help="which failed repeats fail a case (default: a majority; a repeat that could not run always does)",
    )
    add_store_flag(out)


def run(args: argparse.Namespace) -> int:
    store = open_session_store(args.store)
    count = {"show": 1, "compare": 2}.get(args.suite, 0)
    if len(args.ids) != count:
        raise OptionsError(
            f"`eval {args.suite}` accepts {plural(count, 'id')}, not {len(args.ids)}: `eval --help` shows the forms"
        )
    if args.suite == "compare":
        (a, variant_a), (b, variant_b) = (_eval_and_variant(store, text) for text in args.ids)
        reports = _read(store, a), _read(store, b)
        comparison = compare_reports(*reports, variant_a=variant_a, variant_b=variant_b)
        if args.junit:
            title = f"{args.ids[0]} against {args.ids[1]}"
            write_for_one(Path(args.junit), comparison_junit(comparison, title, args.fail_on))
        if args.page:
            from ...viewer.evals import build_comparison_page

            left, right = paired_rows(*reports, variant_a, variant_b)
            pairs = [(pair_name(key), left[key], right[key]) for key in left if key in right]
            page = build_comparison_page(comparison_lines(comparison, args.fail_on), pairs, store.read_events)
            write_for_one(Path(args.page), page)
        failing = comparison.failing[args.fail_on]
        lines = comparison_lines(comparison, args.fail_on)
        Screen(sys.stdout).tell(args.json, {**comparison.to_dict(), "ok": not failing}, lines)
        return FAILED if failing else OK
    if args.suite == "show":
        report = _read(store, find_session(store, args.ids[0]))
        return _give(report, args, _suite_of(report))
    return _run(store, args)


def _run(store: SessionStore, args: argparse.Namespace) -> int:
    for name, value in (("--parallel", args.parallel), ("--repeats", args.repeats)):
        if value is not None and value < 1:
            raise OptionsError(f"{name} must be at least 1, not {value}")
    if args.max_cost is not None and not 0 <= args.max_cost < float("inf"):
        raise OptionsError(f"--max-cost must be a number of dollars of at least 0, not {args.max_cost}")
    suite = load_suite(args.suite)
    progress = _EvalProgress()
    resume = None if args.resume is None else _unfinished(store, args.resume, suite.name)
    try:
        report = run_async(
            run_suite(
                suite,
                store=store,
                resume=resume,
                cases=args.case,
                variants=args.variant,
                repeats=args.repeats,
                parallel=args.parallel,
                max_cost_usd=args.max_cost,
                on_progress=progress.show,
            )
        )
    except KeyboardInterrupt:
        progress.end()
        if progress.session_id is not None:
            report = _read(store, progress.session_id)
            how = f"openagentic-sdk eval {shlex.quote(args.suite)} --resume {report.session_id}{store_flag(args)}"
            print(f"\nstopped, with {plural(len(report.runs), 'run')} kept. To continue: {how}", file=sys.stderr)
        return INTERRUPTED
    progress.end()
    return _give(report, args, suite)


def _unfinished(store: SessionStore, name: str, suite: str) -> str:
    """Find the id of the eval to continue: the one that `name` refers to, or for `newest` the newest interrupted one of the
    suite. Raises `OptionsError` if none exists.
    """
    if name != NEWEST:
        return find_session(store, name)
    for row in store.list_session_summaries():
        if store.read_metadata(row.id)["metadata"].get(EVAL_KEY) == suite:
            events = store.read_events(row.id)
            ends = [event for event in events if isinstance(event, EvalFinished)]
            if any(isinstance(e, EvalStarted) for e in events) and (not ends or ends[-1].left):
                return row.id
    raise OptionsError(f"this store contains no interrupted eval of {suite!r}: omit --resume to begin one")


def _read(store: SessionStore, session_id: str) -> EvalReport:
    return EvalReport.of(session_id, store.iter_events(session_id))


class _EvalProgress:
    """The progress of an eval, in one row at the bottom of a terminal; nothing is shown if stderr is not a terminal."""

    def __init__(self) -> None:
        self._screen = Screen(sys.stderr)
        self.session_id: str | None = None

    def show(self, report: EvalReport, running: Sequence[EvalJob]) -> None:
        self.session_id = report.session_id
        names = ", ".join(f"{job.planned.id} ({job.variant})" for job in running)
        failed = len(report.runs) - report.passed
        self._screen.show_below([f"{len(report.runs)} done, {failed} failed; running: {on_one_line(names, 500)}"])

    def end(self) -> None:
        self._screen.show_below([])


def _give(report: EvalReport, args: argparse.Namespace, suite: Suite | None = None) -> int:
    """Print and write the report in all requested forms; return the exit code."""
    if args.junit:
        write_for_one(Path(args.junit), to_junit(report, args.fail_on))
    if args.page:
        from ...viewer.evals import build_eval_page

        write_for_one(Path(args.page), build_eval_page(report))
    screen = Screen(sys.stdout)
    ok = report.passes(args.fail_on)
    screen.tell(args.json, {**report.to_dict(), "ok": ok}, _table(report, screen, args, suite))
    return OK if ok else FAILED


def _table(report: EvalReport, screen: Screen, args: argparse.Namespace, suite: Suite | None) -> list[str]:
    rows, store = report.rows(), store_flag(args)
    several = len(report.started.variants) > 1
    width = min(max([len(row.case) for row in rows], default=4), 50)
    other = min(max([len(row.variant) for row in rows], default=0), 20) if several else 0
    lines = []
    for row in rows:
        verdict = row.verdict(args.fail_on)
        label = screen.styled(verdict, {"pass": "green", "same": "green", "wavers": "yellow"}.get(verdict, "red"))
        variant = f"  {on_one_line(row.variant, 20):{other}}" if several else ""
        spread = "" if row.spread is None else f" ± {row.spread:.2f}"
        passed = f"{row.passed}/{len(row.runs)}  " if len(row.runs) > 1 else ""
        cost = "?" if row.cost_usd is None else f"{row.cost_usd:.4f}"
        figures = f"{passed}value {row.value:.2f}{spread}  {row.steps:g} steps  {cost} USD"
        lines.append(f"{label}  {on_one_line(row.case, 50):{width}}{variant}  {figures}")
        lines += [f"      {problem}" for problem in row.problems()]
        lines += [f"      {command}" for command in _commands(report, row, store, _agent_flags(suite, row.variant))]
    finished = report.finished
    rest = ""
    if finished is not None and finished.left:
        rest = f", {finished.left} did not run ({on_one_line(finished.message or finished.reason, 200)})"
    cost = "an unknown cost" if report.cost_usd is None else f"{report.cost_usd:.4f} USD"
    lines.append(f"{report.passed} of {len(report.runs)} runs passed{rest}; {cost}; eval {report.session_id}")
    if rest:
        source = _word(report.started.source or "SUITE")
        lines.append(f"to continue: openagentic-sdk eval {source} --resume {report.session_id}{store}")
    return lines


def _suite_of(report: EvalReport) -> Suite | None:
    """The suite of an eval, for the commands that the report suggests.

    None if its file is gone or has changed, or is not TOML: no module is imported for a report.
    """
    source = report.started.source or ""
    if not source.endswith(".toml"):
        return None
    try:
        suite = load_suite(source)
    except (OpenAgentSdkError, OSError):
        return None
    return suite if suite.digest() == report.started.suite_sha256 else None


def _agent_flags(suite: Suite | None, variant: str) -> str:
    """The flags that name the agent of a run; empty if the suite is unknown or defines its agent in code."""
    if suite is None:
        return ""
    agent = suite.variants[variant].agent if variant in suite.variants else None
    agent = suite.agent if agent is None else agent
    if not isinstance(agent, str):
        return ""
    is_here = os.path.realpath(suite.folder) == os.path.realpath(working_dir())
    return f" --agent {_word(agent)}" + ("" if is_here else f" --app-dir {_word(suite.folder)}")


def _commands(report: EvalReport, row: Row, store: str, agent: str) -> list[str]:
    """The commands that inspect the first failed run, and retry its last step under other conditions; empty without one."""
    run = next((run for run in row.runs if not run.passed and run.session_id), None)
    if run is None:
        return []
    name = _word(run.session_id)
    source = next((e.get("session_id") for e in report.started.plan if e.get("id") == run.case), None)
    commands = [f"view {name}"]
    if source and source != run.session_id:
        commands.append(f"sessions diff {_word(source)} {name}")
    if run.step_seq:
        commands.append(f"whatif {name} --at {run.step_seq}{agent}")
    return [f"openagentic-sdk {command}{store}" for command in commands]


def _word(text: object) -> str:
    return shlex.quote(on_one_line(str(text), 200))


# --- compare ---------------------------------------------------------------------------------------------------------


def _eval_and_variant(store: SessionStore, text: str) -> tuple[str, str | None]:
    """Find the id of an eval, and the variant that may follow it after a colon; None without a variant."""
    name, colon, variant = text.rpartition(":")
    if colon and not store.session_exists(text):
        return find_session(store, name), variant
    return find_session(store, text), None


def comparison_lines(comparison: Comparison, fail_on: FailOn = "most") -> list[str]:
    """Describe what improved and got worse between two evals, in sentences; `fail_on` separates worse cases that fail from
    those that do not.
    """
    lines = [
        f"{plural(comparison.cases, 'case')} ran in both: {len(comparison.better)} better, {len(comparison.worse)} worse"
    ]
    if comparison.replayed:
        lines.append(f"  replays, which check equality and give no score: {len(comparison.replayed)}")
        lines += [f"  differs only in B: {on_one_line(case, 200)}" for case in comparison.differs[:_MAX_CHANGED]]
    failing = comparison.failing[fail_on]
    wavering = [name for name in comparison.worse if name not in failing]
    wavers = f"worse in some repeats, no failure with --fail-on {fail_on}"
    for word, names in (("worse", failing), (wavers, wavering), ("better", comparison.better)):
        lines += [f"  {word}: {on_one_line(name, 200)}" for name in names[:_MAX_CHANGED]]
        lines += [f"  and {len(names) - _MAX_CHANGED} more"] if len(names) > _MAX_CHANGED else []
    for side, names in (("A", comparison.only_a), ("B", comparison.only_b)):
        if names:
            lines.append(f"  only in {side}: {on_one_line(', '.join(names), 300)}")
    for each in comparison.differences:
        figures = f"{on_one_line(each.of, 60)}: {each.a:.4g} -> {each.b:.4g}, {each.mean:+.4g}"
        if each.low is None or each.high is None:
            lines.append(f"{figures}; no interval ({each.method.removeprefix('none: ')})")
        else:
            chance = "; that may be chance" if each.mean else "; no difference"
            sure = "" if each.is_sure else chance
            lines.append(f"{figures}, 95 % from {each.low:+.4g} to {each.high:+.4g} ({each.method}){sure}")
    if comparison.p_value is None:
        lines.append("no case changed")
    else:
        lines.append(f"McNemar's exact test of better against worse: p = {comparison.p_value:.3g}")
    return lines
