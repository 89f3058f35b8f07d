"""`openagentic-sdk verify ID`: short for `sessions verify`, for recipients of an exported file."""

from __future__ import annotations

import argparse

from ..actions import run_over_store
from ..stored.check import add_verify_flags, verify_sessions
from ..stored.stores import add_store_flag


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("verify", description="Check a session, or the signatures of the record in a file.")
    add_verify_flags(parser)
    add_store_flag(parser)
    parser.set_defaults(run_action=verify_sessions)


def run(args: argparse.Namespace) -> int:
    return run_over_store(args)
