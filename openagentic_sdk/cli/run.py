"""`openagentic-sdk run PROMPT`: one prompt to its end, streamed."""

from __future__ import annotations

import argparse
import asyncio
import sys

from ..api import query
from ..errors import OptionsError
from ..events import Event, Result, SystemInit
from ..options import OpenAgenticOptions
from ..serialization import dumps_event
from .exits import FAILED, INTERRUPTED, OK
from .flags import add_agent_flags, build_options
from .people import Asker, build_gate, somebody_is_there
from .render import EventPrinter
from .terminal import Screen


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("run", description="Run one prompt to its end.")
    parser.add_argument(
        "prompt", nargs="?", metavar="PROMPT", help="what to do; without it, or as -, it is read from stdin"
    )
    parser.add_argument("--json", action="store_true", help="print the events as JSON lines instead of text")
    add_agent_flags(parser)


def run(args: argparse.Namespace) -> int:
    prompt = _read_prompt(args.prompt)
    screen = Screen(sys.stdout)
    asker = Asker(screen) if somebody_is_there() and not args.json else None
    options = build_options(args, build_gate(args, asker))
    return run_prompt(prompt, options, JsonPrinter() if args.json else EventPrinter(screen))


class JsonPrinter:
    """Prints every event as one line of JSON, in the form of the log."""

    def show(self, event: Event) -> None:
        print(dumps_event(event), flush=True)

    def show_interruption(self, session_id: str | None) -> None:
        """Nothing: the last line is the last event that was seen."""


def run_prompt(prompt: str, options: OpenAgenticOptions, printer: EventPrinter | JsonPrinter) -> int:
    """Run the prompt, show its events and return the exit code. Ctrl-C ends the run cleanly and keeps the session."""
    seen = _Seen()
    try:
        asyncio.run(_show_events(prompt, options, printer, seen))
    except KeyboardInterrupt:
        printer.show_interruption(seen.session_id)
        return INTERRUPTED
    return exit_code(seen.result)


class _Seen:
    """What a run has said so far that outlives it."""

    session_id: str | None = None
    result: Result | None = None


async def _show_events(
    prompt: str, options: OpenAgenticOptions, printer: EventPrinter | JsonPrinter, seen: _Seen
) -> None:
    async for event in query(prompt=prompt, options=options):
        if event.parent_tool_use_id is None:
            if isinstance(event, SystemInit):
                seen.session_id = event.session_id
            elif isinstance(event, Result):
                seen.result = event
        printer.show(event)


def exit_code(result: Result | None) -> int:
    """0 for a run that reached its end, 130 for an interrupted one, 1 for any other."""
    if result is None:
        return FAILED
    return {"end": OK, "interrupted": INTERRUPTED}.get(result.stop_reason, FAILED)


def _read_prompt(prompt: str | None) -> str:
    if prompt is None or prompt == "-":
        if sys.stdin.isatty():
            raise OptionsError('what should be done? Give a prompt: openagentic-sdk run "..."')
        prompt = sys.stdin.read()
    if not prompt.strip():
        raise OptionsError("the prompt is empty: say what should be done")
    return prompt
