"""Shared by the programs: the choice of the model, the store of sessions, and errors as one line."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from pathlib import Path

# So that `python3 examples/apps/support.py` works in a checkout where nothing is installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

from openagentic_sdk import OpenAgenticOptions, OpenAgentSdkError, PermissionGate, RunFailedError
from openagentic_sdk.testing import ScriptedProvider


class UsageError(Exception):
    """Invalid usage of the program; the message explains what to do."""


def shared_flags() -> ArgumentParser:
    """The flags of all programs, as a parent of their parsers."""
    parser = ArgumentParser(add_help=False)
    parser.add_argument("--model", metavar="PROVIDER:MODEL", help="such as openai:gpt-4o or ollama:qwen3")
    parser.add_argument("--script", metavar="FILE", help="play this script in place of a model")
    parser.add_argument("--store", default="file:sessions", help="file:FOLDER or sqlite:FILE (default: %(default)s)")
    return parser


def command_line(description: str | None, *parents: ArgumentParser) -> ArgumentParser:
    """Create a parser that prints a module's docstring as its help."""
    return ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter, parents=parents)


def model_of(args: Namespace) -> str | ScriptedProvider | None:
    """The model named on the command line; None means the one of $OPENAGENTIC_SDK_MODEL."""
    return ScriptedProvider.from_file(args.script) if args.script else args.model


def options_of(args: Namespace, gate: PermissionGate | None = None) -> OpenAgenticOptions:
    """The settings that all programs share."""
    return OpenAgenticOptions(session_store=args.store, permission_gate=gate)


def exit_code(program: Callable[[Namespace], int], parser: ArgumentParser, argv: Sequence[str] | None) -> int:
    """Run a program. An error that its user can correct is a line on stderr and exit code 1."""
    args = parser.parse_args(argv)
    try:
        return program(args)
    except (UsageError, OpenAgentSdkError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 3 if isinstance(error, RunFailedError) else 1
