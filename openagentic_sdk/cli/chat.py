"""`openagentic-sdk chat`: turn by turn on one session, questions answered in place.

Ctrl-C stops the turn that runs and keeps the session; at the prompt it clears the line. Ctrl-D or /exit ends the chat.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import sys
from dataclasses import replace

from ..api import query
from ..errors import OpenAgentSdkError
from ..events import SystemInit
from ..options import OpenAgenticOptions
from .exits import OK
from .flags import add_agent_flags, build_options
from .people import Asker, build_gate
from .render import EventPrinter
from .terminal import Screen, printable

_HELP = "/exit or Ctrl-D ends the chat, Ctrl-C stops the turn; a line that ends with \\ goes on in the next one"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("chat", description="Talk with an agent, turn by turn.", epilog=_HELP)
    add_agent_flags(parser)


def run(args: argparse.Namespace) -> int:
    screen = Screen(sys.stdout)
    options = build_options(args, build_gate(args, Asker(screen)))
    _edit_lines()
    screen.line(screen.styled(_HELP, "dim"))
    chat = _Chat(options, screen)
    with asyncio.Runner() as runner:
        while (prompt := _read_prompt(screen)) is not None:
            if prompt.strip():
                chat.take_turn(runner, prompt)
    chat.say_goodbye()
    return OK


class _Chat:
    """The session that the turns share."""

    def __init__(self, options: OpenAgenticOptions, screen: Screen) -> None:
        self._options = options
        self._screen = screen
        self._session_id: str | None = None

    def take_turn(self, runner: asyncio.Runner, prompt: str) -> None:
        """One prompt to its end, or to Ctrl-C."""
        printer = EventPrinter(self._screen)
        try:
            runner.run(self._show_events(prompt, printer))
        except KeyboardInterrupt:
            printer.show_interruption(None)
        except OpenAgentSdkError as error:
            self._screen.line(printable(str(error)))

    async def _show_events(self, prompt: str, printer: EventPrinter) -> None:
        async for event in query(prompt=prompt, options=self._options):
            if isinstance(event, SystemInit) and event.parent_tool_use_id is None:
                self._session_id = event.session_id
                self._options = replace(self._options, resume=event.session_id, continue_last=False)
            printer.show(event)

    def say_goodbye(self) -> None:
        if self._session_id:
            self._screen.line(f"Go on with: openagentic-sdk chat --resume {printable(self._session_id)}")


def _edit_lines() -> None:
    """Arrow keys and history at the prompt, where Python was built with them."""
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            importlib.import_module("readline")


def _read_prompt(screen: Screen) -> str | None:
    """The next prompt, None at the end. Ctrl-C clears what was typed."""
    lines: list[str] = []
    while True:
        screen.end_line()
        try:
            line = input("... " if lines else "> ")
        except EOFError:
            screen.write("\n")
            return None
        except KeyboardInterrupt:
            screen.write("\n")
            lines.clear()
            continue
        if not lines and line.strip() in ("/exit", "/quit"):
            return None
        lines.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            return "\n".join(lines)
