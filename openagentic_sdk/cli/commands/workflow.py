"""`openagentic-sdk workflow ...`: check workflows before they run."""

from __future__ import annotations

import argparse
import sys

from ...ground.text import on_one_line, plural
from ...parts.workflows.lint import check_paths
from ..actions import ActionList
from ..exits import FAILED, OK
from ..output.terminal import Screen

_ALLOWED = """A comment allows what is meant: `# workflow: allow` everything on its line, `# workflow: allow clock, files`
these kinds. Exit code 1 when something was found. Nothing is imported or run."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("workflow", description="Check workflows: functions whose steps are durable.")
    actions = ActionList(parser)
    check = actions.add(
        "check", _check, "find what makes a body take another way when it is replayed: clock, randomness, files ..."
    )
    check.epilog = _ALLOWED
    check.add_argument("paths", metavar="PATH", nargs="+", help="a Python file, or a folder with some")
    check.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    code: int = args.run_action(args, Screen(sys.stdout))
    return code


def _check(args: argparse.Namespace, screen: Screen) -> int:
    report = check_paths(args.paths)
    workflows = f"{plural(len(report.workflows), 'workflow')} in {plural(report.files, 'file')}"
    lines = [on_one_line(str(finding)) for finding in report.findings]
    lines.append(f"{workflows}: {plural(len(report.findings), 'finding') if report.findings else 'nothing found'}")
    findings = [
        {name: getattr(finding, name) for name in ("path", "line", "column", "kind", "message", "function", "workflow")}
        for finding in report.findings
    ]
    data = {"ok": not report.findings, "files": report.files, "workflows": report.workflows, "findings": findings}
    screen.tell(args.json, data, lines)
    return FAILED if report.findings else OK
