"""`openagentic-sdk acp`: an agent for an editor (Zed, JetBrains, Neovim, Emacs and others), over stdin and stdout."""

from __future__ import annotations

import argparse
import sys

from ...ground.stdio import take_stdio
from ...options import OpenAgenticOptions
from ...server.acp.stdio import serve
from ..actions import add_list_flag
from ..exits import OK
from ..flags import add_agent_flags, build_options
from ..loop import run_async
from ..output.questions import build_gate
from ..stored.stores import open_session_store


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "acp",
        description="Speak the Agent Client Protocol with the editor that starts this command. The editor chooses the "
        "folder and the session; these flags set everything else."
        "",
    )
    add_list_flag(parser, "--offer-model", metavar="NAME", help="another model that can be chosen")
    add_agent_flags(parser)
    parser.set_defaults(resume=None, tag=[], sign_record=False)


def run(args: argparse.Namespace) -> int:
    store = open_session_store(args.store)

    def make_options(cwd: str) -> OpenAgenticOptions:
        own_args = argparse.Namespace(**{**vars(args), "cwd": cwd})
        return build_options(own_args, build_gate(args, None), store)

    if sys.stdin.isatty():
        print("This command is started by an editor and speaks JSON-RPC; see docs/editors.md.", file=sys.stderr)
    stdin, stdout = take_stdio()
    run_async(serve(make_options, store, stdin=stdin, stdout=stdout, models=args.offer_model))
    return OK
