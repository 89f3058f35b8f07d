"""`openagentic-sdk serve`: named agents and their sessions over HTTP, until a signal ends it."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from ...agents import load_agents
from ...errors import OptionsError
from ...server.asgi import app
from ...server.desk import GRACE_S, MAX_RUNS
from ...server.guard import TOKEN_VARIABLE, Principal, is_loopback, token_path
from ...server.listen import SmallServer
from ...sessions.seal import read_key
from ..actions import add_list_flag
from ..exits import OK
from ..flags import add_agents_flag, positive, tcp_port
from ..output.terminal import Screen
from ..stored.stores import add_store_flag, open_session_store

DEFAULT_PORT = 8321


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "serve",
        description="Serve named agents over HTTP, server-sent events and WebSocket, for programs and browsers.",
    )
    add_agents_flag(parser)
    add_store_flag(parser)
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen (default: %(default)s)")
    parser.add_argument(
        "--port", type=tcp_port, default=DEFAULT_PORT, metavar="N", help="0 is a free one (default: %(default)s)"
    )
    access = parser.add_argument_group("who may ask")
    access.add_argument("--token-file", metavar="FILE", help="holds the token (default: server.token, which is made)")
    access.add_argument("--auth", metavar="MODULE:NAME", help="a function of the ASGI scope that gives a Principal")
    add_list_flag(access, "--allow-host", metavar="NAME", help="a name, or name:port, that leads here")
    add_list_flag(access, "--allow-origin", metavar="ORIGIN", help="a page elsewhere that may ask, with a token")
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--fleet", action="store_true", help="queue runs for `fleet work`, and let none go on in this process"
    )
    limits.add_argument(
        "--max-runs", type=positive, default=MAX_RUNS, metavar="N", help="at the same time (default: %(default)s)"
    )
    limits.add_argument(
        "--grace", type=float, default=GRACE_S, metavar="SECONDS", help="for runs, at the end (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    auth: Any = None
    if args.auth:
        auth = _import_function(args.auth)
    elif args.token_file:
        auth = (read_key(Path(args.token_file)) or b"").decode("ascii", "replace")
    elif not os.environ.get(TOKEN_VARIABLE) and not is_loopback(args.host):
        raise OptionsError(
            f"{args.host} is in reach of others: give a token (--token-file, ${TOKEN_VARIABLE}), or --auth MODULE:NAME"
        )
    application = app(
        load_agents(args.agents),
        store=open_session_store(args.store),
        auth=auth,
        hosts=args.allow_host,
        origins=args.allow_origin,
        max_runs=args.max_runs,
        grace_s=args.grace,
        in_fleet=args.fleet,
    )
    screen = Screen(sys.stdout)

    def tell(address: str) -> None:
        screen.line(f"serving {', '.join(application.desk.agents)} on {address} (Ctrl-C ends)")
        if auth is None and not os.environ.get(TOKEN_VARIABLE):
            screen.line(f"token: in {token_path()}")
        if not args.auth:
            screen.line(f"in a browser, once: {address}/signin/{application.guard.new_ticket(Principal())}")
        sys.stdout.flush()

    asyncio.run(SmallServer(application, host=args.host, port=args.port).serve(tell))
    return OK


def _import_function(where: str) -> Any:
    module, colon, name = where.partition(":")
    try:
        found = getattr(importlib.import_module(module), name) if colon else None
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionsError(f"--auth {where!r} cannot be imported: {error}") from error
    if not callable(found):
        raise OptionsError(f"--auth {where!r} names no function: write MODULE:NAME")
    return found
