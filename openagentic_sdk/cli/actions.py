"""What subcommands share: actions, as in `sessions list`, which run over a store, and flags that may be repeated."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import closing
from typing import Any

from .stored.stores import open_session_store


class ActionList:
    """The actions of one subcommand. `common` adds the flags that all of them take, `settings` are those of argparse."""

    def __init__(
        self,
        parser: argparse.ArgumentParser,
        common: Callable[[argparse.ArgumentParser], None] = lambda action: None,
        **settings: Any,
    ) -> None:
        self._subparsers = parser.add_subparsers(dest="action", metavar="ACTION", required=True, **settings)
        self._common = common

    def add(self, name: str, action: Callable[..., Any], summary: str, **settings: Any) -> argparse.ArgumentParser:
        """One more action, which stands in `run_action` of the arguments; returns its parser."""
        parser: argparse.ArgumentParser = self._subparsers.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", **settings
        )
        parser.set_defaults(run_action=action)
        self._common(parser)
        return parser


def add_list_flag(parser: argparse._ActionsContainer, *flags: str, metavar: str, help: str) -> None:
    """A flag that may be given several times; all its values are one list, empty without it."""
    parser.add_argument(*flags, metavar=metavar, action="append", default=[], help=help)


def add_yes_flag(parser: argparse.ArgumentParser) -> None:
    """`--yes`, for actions that ask with `is_agreed` first."""
    parser.add_argument("--yes", action="store_true", help="do not ask; needed where nobody can be asked")


def run_over_store(args: argparse.Namespace) -> int:
    """Run the action that was asked for with the store that `--store` names; returns the exit code."""
    with closing(open_session_store(args.store)) as store:
        code: int = args.run_action(store, args)
        return code
