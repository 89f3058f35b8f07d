"""Answer a question from a folder of notes: scouts read, a writer cites, and only notes that were read can be cited.

python3 examples/apps/research.py notes "How did the harbour pay for its second crane?" --model openai:gpt-4o
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from common import UsageError, command_line, exit_code, model_of, options_of, shared_flags

from openagentic_sdk import Agent, ToolContext
from openagentic_sdk.errors import ModelRetryError

MAX_HITS = 20


@dataclass
class Hit:
    """A line that contains one of the words."""

    source: str
    line: int
    text: str


@dataclass
class Library:
    """The notes, and which of them were read completely."""

    folder: Path
    read: set[str] = field(default_factory=set[str])

    def sources(self) -> list[str]:
        """The names of all notes."""
        return sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*.txt"))

    def text(self, source: str) -> str:
        """The complete text of a note."""
        if source not in self.sources():
            raise ModelRetryError(f"there is no note {source!r}: search for words to find one")
        return (self.folder / source).read_text(encoding="utf-8")


@dataclass
class Claim:
    """A sentence of the answer, and the notes that support it."""

    text: str
    sources: Annotated[list[str], "names of notes that were read"]


@dataclass
class Report:
    """The answer."""

    claims: list[Claim]
    unanswered: Annotated[list[str], "what the notes do not say"] = field(default_factory=list[str])


def search(ctx: ToolContext[Library], words: list[str]) -> list[Hit]:
    """Find lines of the notes that contain one of the words."""
    wanted, hits = [word.lower() for word in words], list[Hit]()
    for source in ctx.deps.sources():
        for number, line in enumerate(ctx.deps.text(source).splitlines(), 1):
            if any(word in line.lower() for word in wanted):
                hits.append(Hit(source, number, line.strip()))
    return hits[:MAX_HITS]


def read_note(ctx: ToolContext[Library], source: str) -> str:
    """Read one note whole."""
    text = ctx.deps.text(source)
    ctx.deps.read.add(source)
    return text


def cites_what_was_read(ctx: ToolContext[Library], report: Report) -> Report:
    for claim in report.claims:
        if not claim.sources:
            raise ModelRetryError(f"the claim {claim.text!r} cites nothing: cite a note, or leave it out")
        for source in claim.sources:
            if source not in ctx.deps.read:
                raise ModelRetryError(f"{source!r} is cited, and nobody has read it: let a scout read it")
    return report


def research_agent(args: Namespace) -> Agent[Library, Report]:
    """The writer, with a scout for each part of the question."""
    model, options = model_of(args), options_of(args)
    scout = Agent(
        model,
        name="scout",
        description="Looks one thing up in the notes: say what, in a sentence.",
        instructions="You are a scout. Search the notes, read what matters whole, and report it with the names of notes.",
        tools=[search, read_note],
        deps=Library,
        options=options,
    )
    return Agent(
        model,
        name="writer",
        instructions="Answer the question from the notes alone. Send a scout for each part of it, several at once.",
        tools=[scout.as_tool()],
        deps=Library,
        output=Report,
        output_validators=[cites_what_was_read],
        options=replace(options, max_steps=args.max_steps),
    )


def program(args: Namespace) -> int:
    """Answer, and print the claims with their notes."""
    library = Library(args.notes)
    if not library.sources():
        raise UsageError(f"there are no notes (*.txt) in {args.notes}")
    result = research_agent(args).run_sync(args.question, deps=library)
    report = result.output
    numbers = {source: number for number, source in enumerate(sorted({s for c in report.claims for s in c.sources}), 1)}
    for claim in report.claims:
        print(claim.text, "".join(f"[{numbers[source]}]" for source in claim.sources))
    for text in report.unanswered:
        print("Not in the notes:", text)
    for source, number in numbers.items():
        print(f"[{number}] {source}")
    scouts = sum(event.type == "subagent.finished" for event in result.events)
    print(f"({scouts} scouts, {len(library.read)} of {len(library.sources())} notes read, session {result.session_id})")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = command_line(__doc__, shared_flags())
    parser.add_argument("notes", type=Path, help="a folder of .txt files")
    parser.add_argument("question")
    parser.add_argument("--max-steps", type=int, default=20, help="model calls of the writer (default: %(default)s)")
    return exit_code(program, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
