"""`openagentic-sdk view ID`: a session as a page for a browser, or followed live; `view --all`: the list of all sessions."""

from __future__ import annotations

import argparse
import re
import secrets
import sys
from functools import partial
from pathlib import Path
from urllib.parse import quote

from ...ground.text import on_one_line
from ...runs.why import why_session
from ...sessions.base import SessionStore
from ...sessions.core import TENANT_KEY
from ...viewer.page import build_page
from ..exits import OK
from ..flags import tcp_port
from ..loop import run_async
from ..output.files import write_for_one
from ..output.terminal import Screen
from ..stored.stores import NEWEST, add_id, add_store_flag, find_session, open_session_store


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "view", description="Write a session as a single page for any browser, or follow it while it runs."
    )
    add_id(parser, default=NEWEST)
    parser.add_argument("-o", "--output", metavar="FILE", help="the file to write (default: ID.html)")
    parser.add_argument("--serve", action="store_true", help="follow the session on 127.0.0.1 until Ctrl-C")
    parser.add_argument(
        "--all", action="store_true", help="serve a searchable list of all sessions on 127.0.0.1 until Ctrl-C"
    )
    parser.add_argument(
        "--port", type=tcp_port, default=0, metavar="N", help="with --serve or --all: the port (default: a free one)"
    )
    add_store_flag(parser)


def run(args: argparse.Namespace) -> int:
    store = open_session_store(args.store)
    if args.all:
        return _serve(store, None, args.port, Screen(sys.stdout))
    session_id = find_session(store, args.id)
    title = store.read_summary(session_id).label or session_id
    screen = Screen(sys.stdout)
    if args.serve:
        return _serve(store, session_id, args.port, screen)
    # An id may contain characters that would lead into another folder.
    target = Path(args.output or f"{re.sub(r'[^A-Za-z0-9_-][^A-Za-z0-9._-]*', '_', session_id)}.html")
    pictures = partial(store.read_blob, session_id)
    cause = why_session(store, session_id)
    write_for_one(target, build_page(store.iter_events(session_id), title=title, read_blob=pictures, cause=cause))
    screen.line(f"wrote {on_one_line(str(target))}: open it in a browser")
    return OK


def _serve(store: SessionStore, session_id: str | None, port: int, screen: Screen) -> int:
    """Serve the page of a session, or the list of all sessions that have no tenant."""
    from ...server.asgi import app
    from ...server.guard import Principal
    from ...server.listen import SmallServer

    application = app(None, store=store, auth=secrets.token_urlsafe(32))

    def tell(address: str) -> None:
        path, tenant = "/", ""
        if session_id is not None:
            path = f"/sessions/{quote(session_id, safe='')}"
            tenant = store.read_metadata(session_id)["metadata"].get(TENANT_KEY, "")
        ticket = application.guard.new_ticket(Principal(tenant))
        screen.line(f"open {address}/signin/{ticket}?to={quote(path, safe='')} (Ctrl-C ends)")
        sys.stdout.flush()

    run_async(SmallServer(application, port=port).serve(tell))
    return OK
