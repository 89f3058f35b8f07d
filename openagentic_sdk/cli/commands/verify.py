"""`openagentic-sdk verify ID`: `sessions verify` by a shorter name, for those who were handed a file."""

from __future__ import annotations

import argparse

from ..stored.check import add_verify_flags, verify_sessions
from ..stored.stores import add_store_flag, open_session_store


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("verify", description="Check a session, or who vouches for the record in a file.")
    add_verify_flags(parser)
    add_store_flag(parser)


def run(args: argparse.Namespace) -> int:
    store = open_session_store(args.store)
    try:
        return verify_sessions(store, args)
    finally:
        store.close()
