"""Read the documents that arrived today, tenant by tenant, within each tenant's budget.

    python3 examples/apps/nightly.py inbox --day 2026-11-23 --limits limits.toml --model openai:gpt-4o

The documents are `inbox/TENANT/*.txt`; the results are written to `inbox/TENANT/*.json`. Start it again after a crash or a
spent budget: finished work is not requested again, interrupted work continues, and no ticket is opened twice.
"""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from common import UsageError, command_line, exit_code, model_of, options_of, shared_flags

from openagentic_sdk import Agent, OpenAgenticOptions, RunFailedError, ToolContext
from openagentic_sdk.testing import ScriptedProvider


@dataclass
class Inbox:
    """The folder of one tenant's documents."""

    folder: Path


@dataclass
class Summary:
    """The summary of a document."""

    title: str
    urgent: bool
    points: Annotated[list[str], "at most five"]


def open_ticket(ctx: ToolContext[Inbox], title: str) -> str:
    """Open a ticket for something that somebody must do."""
    path = ctx.deps.folder / "tickets.log"
    with path.open("a", encoding="utf-8") as file:
        file.write(title + "\n")
    return f"opened {title!r}"


def at_most_five(ctx: ToolContext[Inbox], summary: Summary) -> Summary:
    if len(summary.points) > 5:
        raise ValueError(f"{len(summary.points)} points are too many: give the five that matter")
    return summary


async def read_document(args: Namespace, agent: Agent[Inbox, Summary], document: Path) -> str:
    """Summarise one document, and return its outcome in one word."""
    tenant = document.parent.name
    text = await asyncio.to_thread(document.read_text, encoding="utf-8")
    try:
        result = await agent.run(
            f"Summarise this document. Open a ticket for what somebody must do.\n\n{text}",
            deps=Inbox(document.parent),
            request_id=f"{args.day}/{tenant}/{document.stem}",
            session_metadata={"tags": ["nightly", f"tenant-{tenant}"]},
        )
    except RunFailedError as error:
        return f"{error.result.stop_reason}: {error.result.error_message}"
    whole = document.with_suffix(".json.new")
    whole.write_text(json.dumps(asdict(result.output), indent=2) + "\n", encoding="utf-8")
    whole.replace(document.with_suffix(".json"))
    return "urgent" if result.output.urgent else "done"


async def batch(args: Namespace, settings: OpenAgenticOptions, model: str | ScriptedProvider | None) -> int:
    """Read all documents, `--at-once` of them at a time; failed ones are left for the next start."""
    documents = sorted(args.inbox.glob("*/*.txt"))
    if not documents:
        raise UsageError(f"there are no documents (TENANT/*.txt) in {args.inbox}")
    agent = Agent(
        model,
        name="nightly",
        instructions="You summarize documents for people who have no time.",
        tools=[open_ticket],
        deps=Inbox,
        output=Summary,
        output_validators=[at_most_five],
        options=replace(settings, limits_file=args.limits, max_steps=12),
    )
    slots = asyncio.Semaphore(args.at_once)

    async def read(document: Path) -> bool:
        async with slots:
            became = await read_document(args, agent, document)
        print(f"{document.parent.name}/{document.stem}: {became}", flush=True)
        return became in ("done", "urgent")

    done = await asyncio.gather(*map(read, documents))
    print(f"{sum(done)} of {len(done)}")
    return 0 if all(done) else 1


def program(args: Namespace) -> int:
    return asyncio.run(batch(args, options_of(args), model_of(args)))


def arguments() -> ArgumentParser:
    """The command line."""
    parser = command_line(__doc__, shared_flags())
    parser.add_argument("inbox", type=Path)
    parser.add_argument("--day", required=True, help="names the batch: the same day is the same batch")
    parser.add_argument("--limits", metavar="FILE", help="budgets by tag, as limits.toml")
    parser.add_argument(
        "--at-once", type=int, default=4, metavar="N", help="documents at a time (default: %(default)s)"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    return exit_code(program, arguments(), argv)


if __name__ == "__main__":
    sys.exit(main())
