"""`openagentic-sdk store ...`: create or upgrade the schema of a database store, and show the store's durability."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing

from ...ground.text import on_one_line
from ...sessions.stores.locate import open_store
from ..actions import ActionList
from ..exits import OK
from ..output.terminal import Screen


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("store", description="Create the tables of a store.")
    migrate = ActionList(parser).add("migrate", run, "create the tables of a store, or migrate them to this version")
    migrate.epilog = (
        "Afterwards a role that may only read and write rows suffices; grant it SELECT, INSERT, UPDATE and DELETE on the "
        "tables, and USAGE on the sequences."
    )
    migrate.add_argument("url", metavar="URL", help="for instance postgresql://owner@host/database or sqlite:///path")


def run(args: argparse.Namespace) -> int:
    with closing(open_store(args.url)) as store:
        store.migrate()
        notices = (store.durability_notice(), store.search_notice())
    lines = [f"note: {on_one_line(notice, 500)}" for notice in notices if notice]
    Screen(sys.stdout).lines(["the store is ready", *lines])
    return OK
