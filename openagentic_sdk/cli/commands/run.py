"""`openagentic-sdk run PROMPT`: one prompt to its end, streamed."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import Any

from ...errors import OptionsError
from ...ground.disk import read_named
from ...ground.rooms import is_installed
from ...ground.system import reason_of
from ...options import OpenAgenticOptions
from ...runs.turns import Turns
from ..actions import add_list_flag
from ..flags import add_run_flags, build_options, with_files
from ..loop import event_loop
from ..output.questions import Asker, build_gate, somebody_is_there
from ..output.render import EventPrinter
from ..output.terminal import Screen
from ..output.turn import Countdown, JsonPrinter, ResultPrinter, Turn
from ..stored.stores import store_flag
from ..streams import read_stdin
from .trust import ask_about_servers, ask_for_trust, check_mode, check_prompt

_MAX_SCHEMA_BYTES = 4 << 20


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("run", description="Run one prompt to completion.")
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="the task; read from stdin if omitted or -")
    add_list_flag(parser, "--attach", metavar="FILE", help="an image, PDF, audio or text file to attach; also @FILE")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the events as JSON lines instead of text")
    form.add_argument(
        "--json-result", action="store_true", help="print the result as one JSON object, and everything else on stderr"
    )
    form.add_argument("--quiet", action="store_true", help="print only the final answer, and everything else on stderr")
    parser.add_argument("--output-schema", metavar="FILE", help="the JSON schema that the final answer must match")
    add_run_flags(parser)


def run(args: argparse.Namespace) -> int:
    prompt = _read_prompt(args)
    is_result = args.json_result or args.quiet
    screen = Screen(sys.stderr if is_result else sys.stdout, plain=args.plain)
    asker = Asker(screen) if somebody_is_there() and not args.json else None
    options = build_options(args, build_gate(args, asker))
    if args.output_schema is not None:
        options = replace(options, output_schema=_read_schema(args.output_schema))
    if asker is not None:
        ask_for_trust(options, screen)
        ask_about_servers(options, screen)
    check_mode(args, options)
    if wrong := check_prompt(options, prompt):
        raise OptionsError(wrong)
    if is_result:
        turn = Turn(Turns(options), ResultPrinter(None if args.quiet else _printer(options, screen)))
    else:
        turn = Turn(Turns(options), JsonPrinter()) if args.json else printed_turn(options, screen)
    with event_loop() as runner:
        code = turn.play(runner, with_files(prompt, str(options.cwd), args.attach, typed=prompt == args.prompt))
    turn.say_how_to_go_on(store_flag(args))
    return code


def printed_turn(options: OpenAgenticOptions, screen: Screen) -> Turn:
    """Create a turn that is shown with changing rows if the screen and the installation allow it, otherwise in lines."""
    if not screen.can_rewrite or not is_installed("cli.screen"):
        return Turn(Turns(options), _printer(options, screen), Countdown(screen))
    from ..screen.live import LivePrinter

    printer = LivePrinter(screen, window=options.max_context_tokens)
    return Turn(Turns(options), printer, tick=printer.tick)


def _printer(options: OpenAgenticOptions, screen: Screen) -> EventPrinter:
    return EventPrinter(screen, window=options.max_context_tokens)


def _read_schema(path: str) -> dict[str, Any]:
    try:
        schema = json.loads(read_named(path, _MAX_SCHEMA_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise OptionsError(f"--output-schema {path} cannot be read: {reason_of(error)}") from error
    if not isinstance(schema, dict):
        raise OptionsError(
            f"--output-schema {path} must contain a JSON object, not a value of type {type(schema).__name__}"
        )
    return schema


def _read_prompt(args: argparse.Namespace) -> str:
    prompt: str | None = args.prompt
    why = f"openagentic-sdk sessions why {args.resume}{store_flag(args)}"
    other = f"; `{why}` shows how to continue without one" if args.resume else ""
    if prompt is None or prompt == "-":
        if sys.stdin.isatty():
            resume = f" --resume {args.resume}{store_flag(args)}" if args.resume else ""
            raise OptionsError(f'no prompt was given: write openagentic-sdk run{resume} "..."{other}')
        prompt = read_stdin()
    if not prompt.strip():
        raise OptionsError(f"the prompt is empty: describe the task{other}")
    return prompt
