"""Find the subcommand, run it, and turn whatever it raises into one sentence and an exit code.

A subcommand is a module of this folder with `add_parser(subparsers)` and `run(args) -> int`. Help texts import none of
them, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from .exits import FAILED, INTERRUPTED, USAGE

COMMANDS = {
    "run": "run one prompt to its end",
    "chat": "talk with an agent, turn by turn",
    "sessions": "list, read, compare, check and repair sessions",
    "verify": "check a session, and with --signed say who vouches for its record",
    "acp": "serve an editor (Zed, JetBrains, Neovim, Emacs ...) that starts this command",
    "replay": "play a session again from its log and compare every request",
    "whatif": "go on with a copy of a session under other conditions",
    "eval": "run a suite of recorded sessions and prompts, and compare what came of it",
    "view": "show a session as a page in the browser",
    "serve": "serve named agents and their sessions over HTTP",
    "fleet": "queue runs for many hosts, work on them, answer and end them",
    "export": "write a session for other programs: OpenTelemetry, messages, Markdown, JSON",
    "bundle": "write everything into one file that a bare Python runs",
    "skills": "list, read and check skills",
    "memory": "list, explain, check and delete what agents keep for later sessions",
    "plugins": "list, add and check plugins",
    "mcp": "add, look at, agree to and test MCP servers, and be one",
    "permissions": "judge recorded calls by other rules, and find rules worth having",
    "trust": "say whether a project's own files may grant anything",
    "import": "bring in the conversations of other programs",
    "store": "make the tables of a store",
    "completion": "print what bash, zsh or fish evaluate for completion",
    "doctor": "say what this machine, this project and an endpoint give an agent, and what to set",
}
# No module can have the name of a statement.
_MODULES = {"import": "importing"}
_EPILOG = "exit codes: 0 ended, 1 failed or refused, 2 wrong usage, 130 interrupted, 128 + n stopped by signal n"


class Subcommand(Protocol):
    """What a module of this folder offers."""

    def add_parser(self, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        command, args = read_command_line(sys.argv[1:] if argv is None else argv)
        return _run(command, args)
    except SystemExit as stop:  # argparse has printed its help or its complaint
        return stop.code if isinstance(stop.code, int) else USAGE
    except KeyboardInterrupt:
        return INTERRUPTED


def module_of(name: str) -> str:
    """The module of a subcommand, relative to this package."""
    return f".{_MODULES.get(name, name)}"


def read_command_line(argv: Sequence[str]) -> tuple[Subcommand, argparse.Namespace]:
    """The subcommand and its arguments. Raises `SystemExit` for a request for help and for wrong usage."""
    name = argv[0] if argv and argv[0] in COMMANDS else None
    command = cast(Subcommand, importlib.import_module(module_of(name), __package__)) if name else None
    parser = argparse.ArgumentParser(
        prog="openagentic-sdk",
        description="Run an LLM agent whose every step is a durable event.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action=_Version)
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


class _Version(argparse.Action):
    """`--version`, which looks the number up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from ..version import __version__

        print(f"{parser.prog} {__version__}")
        parser.exit()


def _run(command: Subcommand, args: argparse.Namespace) -> int:
    from ..errors import OpenAgentSdkError, OptionsError, PermissionRuleError

    for stream in (sys.stdout, sys.stderr):  # let no character that the terminal's encoding lacks end a run
        reconfigure = getattr(stream, "reconfigure", None)  # replaced streams of an embedding program have none
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        return command.run(args)
    except (OptionsError, PermissionRuleError) as error:
        return _complain(error, USAGE)
    except OpenAgentSdkError as error:
        return _complain(error, FAILED)
    except BrokenPipeError:
        # Whoever read our output has left; the interpreter's last flush must not complain about it either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        return _complain(error, FAILED)


def _complain(error: Exception, code: int) -> int:
    from ..text import printable

    print(f"openagentic-sdk: {printable(str(error))}", file=sys.stderr)
    return code
