"""Find the subcommand, run it, and turn whatever it raises into one sentence and an exit code.

A subcommand is a module of `commands` with `add_parser(subparsers)` and `run(args) -> int`. Help texts import none of
them, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from ..errors import OpenAgentSdkError, OptionsError, PermissionRuleError
from ..ground.text import printable
from ..version import __version__
from .commands import COMMANDS, Subcommand, load_command
from .exits import FAILED, INTERRUPTED, USAGE

_EPILOG = "exit codes: 0 ended, 1 failed or refused, 2 wrong usage, 130 interrupted, 128 + n stopped by signal n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    _open_streams()
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except SystemExit as stop:  # argparse has printed its help or its complaint
        return stop.code if isinstance(stop.code, int) else USAGE
    except KeyboardInterrupt:
        return INTERRUPTED


def read_command_line(argv: Sequence[str]) -> tuple[Subcommand, argparse.Namespace]:
    """The subcommand and its arguments. Raises `SystemExit` for a request for help and for wrong usage."""
    name = argv[0] if argv and argv[0] in COMMANDS else None
    command = load_command(name) if name else None
    parser = argparse.ArgumentParser(
        prog="openagentic-sdk", description="Run an LLM agent whose every step is a durable event.", epilog=_EPILOG
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for other, summary in COMMANDS.items():
        if command is not None and other == name:
            command.add_parser(subparsers)
        else:
            subparsers.add_parser(other, help=summary, add_help=False)
    if "-h" in argv or "--help" in argv:
        examples = importlib.import_module(".examples", __package__)
        examples.add_examples(parser)
        if name:
            examples.add_examples(subparsers.choices[name], name)
    args = parser.parse_args(argv)
    assert command is not None, "argparse lets nothing through that is no subcommand"
    return command, args


def _open_streams() -> None:
    """Open the null device for a standard stream that was closed when the process began, for which Python has None."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for as long as the process lives


def _run(argv: Sequence[str]) -> int:
    for stream in (sys.stdout, sys.stderr):  # a character that the terminal's encoding lacks must not end a run
        reconfigure = getattr(stream, "reconfigure", None)  # replaced streams of an embedding program lack it
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        command, args = read_command_line(argv)
        return command.run(args)
    except (OptionsError, PermissionRuleError) as error:
        return _complain(error, USAGE)
    except OpenAgentSdkError as error:
        return _complain(error, FAILED)
    except BrokenPipeError:
        # The reader of our output has gone; the interpreter's last flush must not complain about it either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        return _complain(error, FAILED)


def _complain(error: Exception, code: int) -> int:
    print(f"openagentic-sdk: {printable(str(error))}", file=sys.stderr)
    return code
