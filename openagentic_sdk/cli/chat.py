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

from ..assemble import end_conversation
from ..errors import OpenAgentSdkError
from ..options import OpenAgenticOptions
from ..text import printable
from .attach import with_files
from .countdown import Countdown
from .exits import OK
from .flags import add_agent_flags, build_options
from .questions import Asker, build_gate, somebody_is_there
from .render import EventPrinter
from .terminal import Screen
from .trust import ask_for_trust, check_mode, check_prompt
from .turn import Turn

_HELP = "/exit or Ctrl-D ends the chat, Ctrl-C stops the turn; a line that ends with \\ goes on in the next one"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("chat", description="Talk with an agent, turn by turn.", epilog=_HELP)
    add_agent_flags(parser)


def run(args: argparse.Namespace) -> int:
    screen = Screen(sys.stdout)
    options = build_options(args, build_gate(args, Asker(screen)))
    _edit_lines()
    if somebody_is_there():
        ask_for_trust(options, screen)
    check_mode(args, options)
    screen.line(screen.styled(_HELP, "dim"))
    session_id = options.resume
    options = replace(options, part="first")
    with asyncio.Runner() as runner:
        while (prompt := _read_prompt(screen)) is not None:
            if wrong := check_prompt(options, prompt):
                screen.line(printable(wrong))
            elif prompt.strip():
                begun = _take_turn(runner, options, prompt, screen)
                session_id = begun or session_id
                options = replace(
                    options,
                    resume=session_id,
                    continue_last=options.continue_last and session_id is None,
                    part="next" if begun else options.part,
                )
        if session_id and options.part == "next":
            runner.run(end_conversation(options, session_id, "prompt_input_exit"))
    if session_id:
        screen.line(f"Go on with: openagentic-sdk chat --resume {printable(session_id)}")
    return OK


def _take_turn(runner: asyncio.Runner, options: OpenAgenticOptions, prompt: str, screen: Screen) -> str | None:
    """One prompt to its end, to Ctrl-C or to an error; returns the session's id when it began."""
    turn = Turn(options, EventPrinter(screen), Countdown(screen))
    try:
        turn.play(runner, with_files(prompt, str(options.cwd), typed=sys.stdin.isatty()))
    except OpenAgentSdkError as error:
        screen.line(printable(str(error)))
    return turn.session_id


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
        if not sys.stdin.isatty():  # nobody echoes what comes from a pipe
            screen.write(line + "\n")
        if not lines and line.strip() in ("/exit", "/quit"):
            return None
        lines.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            return "\n".join(lines)
