"""Review a change: the output of git diff, or a diff in a file, together with the project that it belongs to.

    python3 examples/apps/review.py HEAD~1                 --model openai:gpt-4o
    git diff --cached | python3 examples/apps/review.py -  --model ollama:qwen3

Prints one finding per line; exits with 1 if one of them blocks the change. The model may read the project and change
nothing.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from common import UsageError, command_line, exit_code, model_of, options_of, shared_flags

from openagentic_sdk import Agent, PermissionGate, ToolContext
from openagentic_sdk.errors import ModelRetryError

MAX_DIFF_CHARS = 200_000


@dataclass
class Finding:
    """A finding that the author of the change must know about."""

    file: str
    line: Annotated[int, "the line in the new file"]
    severity: Literal["blocker", "warning", "note"]
    text: str


@dataclass
class Review:
    """The whole review."""

    summary: str
    findings: list[Finding] = field(default_factory=list[Finding])


@dataclass
class Change:
    """A diff, and the lines of the new files that it shows."""

    diff: str
    lines: dict[str, set[int]]


def read_change(diff: str) -> Change:
    """Parse a unified diff. Raises `UsageError` for text that is not a diff."""
    lines: dict[str, set[int]] = {}
    file, number = "", 0
    for line in diff.splitlines():
        if line.startswith("+++ "):
            file = line.removeprefix("+++ ").removeprefix("b/").partition("\t")[0]
        elif hunk := re.match(r"@@ -\d+(?:,\d+)? \+(\d+)", line):
            number = int(hunk[1])
        elif file and line[:1] in ("+", " "):
            lines.setdefault(file, set()).add(number)
            number += 1
    if not lines:
        raise UsageError("there is no change to review")
    if len(diff) > MAX_DIFF_CHARS:
        raise UsageError(
            f"the change has {len(diff)} characters, and {MAX_DIFF_CHARS} can be reviewed at once: split it"
        )
    return Change(diff, lines)


def find_change(args: Namespace) -> Change:
    """The change named on the command line."""
    if args.change == "-":
        return read_change(sys.stdin.read())
    if args.change.endswith((".diff", ".patch")):
        try:
            return read_change(Path(args.change).read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"the change cannot be read: {error}") from None
    command = ["git", "diff", "--no-ext-diff", "--no-color", args.change, "--"]
    done = subprocess.run(command, cwd=args.project, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(done.stderr.strip().partition("\n")[0])
    return read_change(done.stdout)


def in_the_change(ctx: ToolContext[Change], review: Review) -> Review:
    """Reject findings about lines that the diff does not show."""
    for each in review.findings:
        if each.line not in ctx.deps.lines.get(each.file, ()):
            shown = ", ".join(f"{name}: {min(lines)}-{max(lines)}" for name, lines in ctx.deps.lines.items())
            raise ModelRetryError(f"{each.file}:{each.line} is not a line of the change, which shows {shown}")
    order = ("blocker", "warning", "note")
    return replace(review, findings=sorted(review.findings, key=lambda each: order.index(each.severity)))


def program(args: Namespace) -> int:
    """Review the change, and print the findings."""
    change = find_change(args)
    # Nobody is asked: whatever is not allowed by default, unlike reading the project, is refused.
    gate = PermissionGate(permission_mode="dontAsk")
    agent = Agent(
        model_of(args),
        name="reviewer",
        instructions="Review the change. Read the files around it before you judge. Report defects, not taste.",
        tools="files",
        deps=Change,
        output=Review,
        output_validators=[in_the_change],
        options=replace(options_of(args, gate), cwd=args.project, max_steps=30),
    )
    result = agent.run_sync(f"```diff\n{change.diff}\n```", deps=change)
    review = result.output
    if args.json:
        print(json.dumps(asdict(review), indent=2))
    else:
        for each in review.findings:
            print(f"{each.file}:{each.line}: {each.severity}: {each.text}")
        print(review.summary)
    for event in result.events:
        if event.type == "tool.result" and event.outcome == "denied":
            print(f"refused: {event.error_message}", file=sys.stderr)
    return 1 if any(each.severity == "blocker" for each in review.findings) else 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = command_line(__doc__, shared_flags())
    parser.add_argument("change", nargs="?", default="HEAD", help="a revision to compare with, a .diff file, or -")
    parser.add_argument("--project", default=".", help="the folder of the project (default: this one)")
    parser.add_argument("--json", action="store_true", help="print the review as JSON")
    return exit_code(program, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
