"""Shared parts of subcommands: actions, as in `sessions list`, flags, and running an action over a store."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import closing
from typing import Any

from .stored.stores import Progress, open_session_store


class ActionList:
    """The actions of one subcommand. `common` adds flags to each of them; `settings` are arguments for argparse."""

    def __init__(
        self,
        parser: argparse.ArgumentParser,
        common: Callable[[argparse.ArgumentParser], None] = lambda action: None,
        **settings: Any,
    ) -> None:
        self._subparsers = parser.add_subparsers(dest="action", metavar="ACTION", required=True, **settings)
        self._common = common

    def add(self, name: str, action: Callable[..., Any], summary: str, **settings: Any) -> argparse.ArgumentParser:
        """Add an action, stored as `run_action` in the arguments; return its parser."""
        parser: argparse.ArgumentParser = self._subparsers.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", **settings
        )
        parser.set_defaults(run_action=action)
        self._common(parser)
        return parser


def add_list_flag(parser: argparse._ActionsContainer, *flags: str, metavar: str, help: str) -> None:
    """Add a repeatable flag; its values form one list, empty by default."""
    parser.add_argument(*flags, metavar=metavar, action="append", default=[], help=f"{help} (repeatable)")


def add_yes_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--yes`, for actions that first ask with `is_agreed`."""
    parser.add_argument(
        "--yes", action="store_true", help="do not ask for confirmation; required if nobody can be asked"
    )


def run_over_store(args: argparse.Namespace) -> int:
    """Run the requested action with the store of `--store`; return the exit code."""
    with closing(open_session_store(args.store)) as store:
        store.index_progress = Progress()
        code: int = args.run_action(store, args)
        return code
