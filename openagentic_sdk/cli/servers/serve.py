"""`mcp serve`: named agents as the tools of an MCP server, over stdin and stdout."""

from __future__ import annotations

import argparse
import sys

from ...agents import load_agents
from ...ground.stdio import take_stdio
from ...server.desk import MAX_RUNS, Desk
from ...server.mcp_stdio import GRACE_S
from ...server.mcp_stdio import serve as serve_stdio
from ...server.mcp_tools import WAIT_S
from ..exits import OK
from ..flags import add_agents_flag, positive, seconds
from ..loop import run_async
from ..stored.stores import add_store_flag, open_session_store


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `mcp serve`."""
    add_agents_flag(parser)
    add_store_flag(parser)
    parser.add_argument(
        "--wait-s",
        type=seconds,
        default=WAIT_S,
        metavar="SECONDS",
        help="how long a call waits for a run (default: %(default)s)",
    )
    parser.add_argument(
        "--grace",
        type=seconds,
        default=GRACE_S,
        metavar="SECONDS",
        help="the time for runs to finish once the client disconnects (default: %(default)s)",
    )
    parser.add_argument(
        "--max-runs",
        type=positive,
        default=MAX_RUNS,
        metavar="N",
        help="the maximum number of parallel runs (default: %(default)s)",
    )


def serve(args: argparse.Namespace) -> int:
    """Serve the client that started this command until it closes its end."""
    if sys.stdin.isatty():
        print("This command is started by a program and speaks JSON-RPC; see docs/mcp.md.", file=sys.stderr)
    stdin, stdout = take_stdio()  # before the caller's code is loaded, which may print
    agents, store = load_agents(args.agents), open_session_store(args.store)

    async def speak() -> None:
        desk = Desk(agents, store, max_runs=args.max_runs)
        await serve_stdio(desk, stdin=stdin, stdout=stdout, wait_s=args.wait_s, grace_s=args.grace)

    run_async(speak())
    return OK
