"""`openagentic-sdk serve`: named agents and their sessions over HTTP, until a signal."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import threading
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...agents import Agents, load_agents, read_agent
from ...assemble import build_agent
from ...errors import OptionsError
from ...ground.system import user_name, working_dir
from ...providers.named import MODEL_VARIABLE
from ...server.asgi import app
from ...server.contract.openapi import openapi
from ...server.contract.typescript import typescript
from ...server.desk import GRACE_S, MAX_RUNS
from ...server.guard import TICKET_S, TOKEN_VARIABLE, Principal, is_loopback, token_path
from ...server.listen import SmallServer
from ...server.operations.journal import Journal
from ...server.operations.webhooks import WebhookTarget
from ...sessions.memory import MemorySessionStore
from ...sessions.seal import read_key
from ..actions import add_list_flag
from ..exits import OK
from ..flags import add_agents_flag, add_model_flags, positive, seconds, tcp_port
from ..loop import run_async
from ..output.terminal import Screen
from ..stored.stores import add_store_flag, open_session_store
from ..streams import ServiceNotes

DEFAULT_PORT = 8321
SECRET_VARIABLE = "OPENAGENTIC_SDK_WEBHOOK_SECRET"
MODEL_FLAGS = ("script", "provider", "model", "fallback", "base_url", "api_key_env")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "serve",
        description="Serve named agents over HTTP, server-sent events and WebSocket, for programs and browsers.",
    )
    add_agents_flag(parser, required=False)
    add_model_flags(parser.add_argument_group("a single agent for this folder, without --agents"))
    add_store_flag(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="the address to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--port",
        type=tcp_port,
        default=DEFAULT_PORT,
        metavar="N",
        help="the port; 0 chooses a free one (default: %(default)s)",
    )
    parser.add_argument("--open", action="store_true", help="open a browser that is signed in")
    parser.add_argument(
        "--contract",
        choices=("openapi", "typescript"),
        help="print the OpenAPI document or the TypeScript types, and exit",
    )
    _add_access_flags(parser.add_argument_group("access"))
    _add_operation_flags(parser.add_argument_group("operations"))
    _add_limit_flags(parser.add_argument_group("limits"))


def _add_access_flags(access: argparse._ActionsContainer) -> None:
    access.add_argument(
        "--token-file", metavar="FILE", help="the file with the token (default: server.token, created if missing)"
    )
    access.add_argument("--auth", metavar="MODULE:NAME", help="a function that returns a Principal for an ASGI scope")
    add_list_flag(access, "--allow-host", metavar="NAME", help="another host name, or name:port, of this server")
    add_list_flag(
        access,
        "--allow-origin",
        metavar="ORIGIN",
        help="the origin of another page that may send requests, with a token",
    )


def _add_operation_flags(operations: argparse._ActionsContainer) -> None:
    forms = ("text", "json", "none")
    operations.add_argument("--log", choices=forms, default="text", help="log each request to stderr (default: text)")
    about = "at shutdown, return 503 from /ready for this long (default: 0)"
    operations.add_argument("--notice", type=seconds, default=0.0, metavar="SECONDS", help=about)
    about = "notify this address of sessions that wait, have ended or have failed"
    add_list_flag(operations, "--webhook", metavar="URL", help=about)
    add_list_flag(
        operations, "--webhook-host", metavar="NAME", help="the host of a webhook that may be in a private network"
    )


def _add_limit_flags(limits: argparse._ActionsContainer) -> None:
    limits.add_argument(
        "--fleet", action="store_true", help="queue runs for `fleet work`, and execute none in this process"
    )
    limits.add_argument(
        "--max-runs",
        type=positive,
        default=MAX_RUNS,
        metavar="N",
        help="the maximum number of parallel runs (default: %(default)s)",
    )
    limits.add_argument(
        "--max-connections",
        type=positive,
        metavar="N",
        help="the maximum number of open connections, which are otherwise limited by the open files that the system allows",
    )
    about = "the time for runs to finish at shutdown (default: %(default)s)"
    limits.add_argument("--grace", type=seconds, default=GRACE_S, metavar="SECONDS", help=about)


def run(args: argparse.Namespace) -> int:
    if args.contract:
        print(typescript() if args.contract == "typescript" else json.dumps(openapi(), indent=1))
        return OK
    auth = _authentication(args)
    agents, problem = _own_agent(args) if args.agents is None else (_named_agents(args), "")
    application = app(
        agents,
        store=open_session_store(args.store),
        auth=auth,
        hosts=args.allow_host,
        origins=args.allow_origin,
        max_runs=args.max_runs,
        grace_s=args.grace,
        in_fleet=args.fleet,
        problem=problem,
        notice_s=args.notice,
        webhooks=[WebhookTarget(url, _webhook_secret()) for url in args.webhook],
        webhook_hosts=args.webhook_host,
        journal=Journal(None if args.log == "none" else _write_line, "json" if args.log == "json" else "text"),
    )
    screen, notes = Screen(sys.stdout), ServiceNotes()

    def tell(address: str) -> None:
        with notes.written():
            show(address)

    def show(address: str) -> None:
        subject = "the sessions of this machine" if agents is None else ", ".join(agents)
        screen.line(f"serving {subject} on {address} (Ctrl-C ends)")
        if auth is None and not os.environ.get(TOKEN_VARIABLE):
            screen.line(f"token: in {token_path()}")
        if problem:
            screen.line(problem)
        if not args.auth:
            link = f"{address}/signin/{application.guard.new_ticket(Principal(name=user_name()))}"
            screen.line(f"in a browser, valid once, within {TICKET_S / 60:.0f} minutes: {link}")
            if args.open:  # a browser in the terminal would block everything
                threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()

    server = SmallServer(application, host=args.host, port=args.port, max_connections=args.max_connections)
    run_async(server.serve(tell))
    notes.check()
    return OK


def _authentication(args: argparse.Namespace) -> Any:
    """The function or the token that decides who has access; None for the token of this machine or of the environment."""
    if args.auth:
        return _import_function(args.auth)
    if args.token_file:
        return (read_key(Path(args.token_file)) or b"").decode("ascii", "replace")
    if not os.environ.get(TOKEN_VARIABLE) and not is_loopback(args.host):
        raise OptionsError(
            f"{args.host} is reachable by others: give a token (--token-file, ${TOKEN_VARIABLE}), or --auth MODULE:NAME"
        )
    return None


def _named_agents(args: argparse.Namespace) -> Agents:
    flags = [name for name in MODEL_FLAGS if getattr(args, name)]
    if flags:
        raise OptionsError(f"--{flags[0].replace('_', '-')} and --agents both choose an agent: remove one of them")
    return load_agents(args.agents)


def _own_agent(args: argparse.Namespace) -> tuple[Agents | None, str]:
    """Create one agent for this folder from flags and environment; None, with the reason, if the environment does not
    suffice. Raises `OptionsError` if flags were given and cannot be used.
    """
    flags = {name: getattr(args, name) for name in MODEL_FLAGS if getattr(args, name)}
    word = os.environ.get(MODEL_VARIABLE)
    try:
        agent = read_agent("agent", {**({"model": word} if word else {}), **flags}, Path(working_dir()))
        build_agent(replace(agent.made(), session_store=MemorySessionStore()))
    except OptionsError as error:
        if flags:
            raise
        return (
            None,
            f"No model is configured yet. Set ${MODEL_VARIABLE} (ollama:qwen3), or --model, and start again: {error}",
        )
    return Agents({"agent": agent}), ""


def _webhook_secret() -> str:
    secret = os.environ.get(SECRET_VARIABLE, "").strip()
    if not secret:
        raise OptionsError(
            f"--webhook signs its messages: set ${SECRET_VARIABLE} to whsec_ and 24 random bytes in base64"
        )
    return secret


def _write_line(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _import_function(where: str) -> Any:
    module, colon, name = where.partition(":")
    try:
        function = getattr(importlib.import_module(module), name) if colon else None
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionsError(f"--auth {where!r} cannot be imported: {error}") from error
    if not callable(function):
        raise OptionsError(f"--auth {where!r} is not a function: write MODULE:NAME")
    return function
