"""`openagentic-sdk whatif ID --at SEQ`: continue a copy of a session under other conditions."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from ...errors import OptionsError
from ...events import Result, SystemInit
from ...ground.settings import open_at
from ...ground.system import working_dir
from ...ground.text import on_one_line
from ...options import SETTING_SOURCES, OpenAgenticOptions, with_model
from ...parts.masking import shown
from ...parts.record.folds.compare import compare_sessions
from ...runs.whatif import what_if
from ...sessions.base import SessionStore
from ..exits import FAILED, OK
from ..flags import add_fork_flags, build_options, build_provider, find_model, text_or_file
from ..loop import run_async
from ..output.questions import Asker, build_gate, somebody_is_there
from ..output.render import EventPrinter
from ..output.terminal import Screen
from ..output.turn import JsonPrinter
from ..stored.compare import comparison_lines
from ..stored.stores import add_id, find_session, open_session_store, store_flag
from .trust import check_mode

# The flags that only affect options built from flags. With --agent they are refused: an ignored --deny would allow what
# somebody wanted to forbid.
_BUILT_HERE: Mapping[str, Any] = {
    "cwd": None,
    "tag": [],
    "sign_record": False,
    "setting_sources": ",".join(SETTING_SOURCES),
    "trust": False,
    "allow": [],
    "deny": [],
    "permission_mode": None,
    "no_redact": False,
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "whatif",
        description="Fork a session after one of its events and run there with another model, system prompt or prompt. "
        "--system may also name a file. Calls that the session made before get their recorded results or errors; the "
        "session itself is unchanged.",
    )
    add_id(parser)
    parser.add_argument("--at", metavar="SEQ", type=int, required=True, help="the last event to keep")
    parser.add_argument("--prompt", metavar="TEXT", help="a new prompt; without it the run continues from the event")
    parser.add_argument(
        "--on-new",
        choices=("stop", "ask", "live"),
        default="stop",
        help="what to do with a call that the session never made (default: %(default)s)",
    )
    parser.add_argument("--agent", metavar="MODULE:NAME", help="your Agent or options, or a function that returns them")
    parser.add_argument("--app-dir", metavar="DIR", help="the folder of MODULE (default: this folder)")
    parser.add_argument("--json", action="store_true", help="print the events as JSON lines instead of text")
    parser.add_argument("--resume", metavar="ID", help="continue this earlier what-if of the session, in its fork")
    add_fork_flags(parser)


def run(args: argparse.Namespace) -> int:
    screen = Screen(sys.stdout, plain=args.plain)
    asker = Asker(screen) if somebody_is_there() and not args.json else None
    options = options_for(args, asker)
    if args.system_prompt:
        options = replace(options, system_prompt=text_or_file(args.system_prompt, "--system"))
    store = options.session_store
    assert isinstance(store, SessionStore), "build_options opens a store"
    fork_ids: list[str] = []
    try:
        result = run_async(_play(store, options, args, screen, fork_ids))
    except KeyboardInterrupt:
        for fork_id in fork_ids:
            words = f"whatif {shlex.quote(args.id)} --at {args.at} --resume {fork_id}{store_flag(args)}"
            print(f"to continue, with the other flags as before: openagentic-sdk {on_one_line(words)}", file=sys.stderr)
        raise
    return OK if result.stop_reason == "end" else FAILED


def options_for(args: argparse.Namespace, asker: Asker | None = None) -> OpenAgenticOptions:
    """Build the options of a what-if: those of `--agent`, or those in the flags.

    Raises `OptionsError` if they cannot be used.
    """
    options = with_agent(args) if args.agent else build_options(args, build_gate(args, asker))
    check_mode(args, options)
    return options


def with_agent(args: argparse.Namespace) -> OpenAgenticOptions:
    """Load the options of `--agent`, and apply the store, the model and the options from other flags.

    Raises `OptionsError`, also for a flag that does not apply to them.
    """
    from ...evals.suite import options_of

    useless = next((name for name, default in _BUILT_HERE.items() if getattr(args, name) != default), None)
    if useless is not None:
        flag = f"--{useless.replace('_', '-')}"
        raise OptionsError(f"{flag} does not apply to the options of --agent: set it in {args.agent}, or omit {flag}")
    base: OpenAgenticOptions = options_of(args.agent, args.app_dir or working_dir())
    changes: dict[str, Any] = {"session_store": open_session_store(args.store)}
    if args.script or args.provider or args.base_url:
        changes |= {"provider": build_provider(args), "model": find_model(args)}
    elif args.model:
        base = with_model(base, args.model)
    flagged = (name for name in open_at(OpenAgenticOptions, "flag") if name in args)
    changes |= {name: value for name in flagged if (value := getattr(args, name)) != getattr(OpenAgenticOptions, name)}
    return replace(base, **changes)


async def _play(
    store: SessionStore, options: OpenAgenticOptions, args: argparse.Namespace, screen: Screen, fork_ids: list[str]
) -> Result:
    """Play the what-if, show it, and return its result. The fork's id is added to `fork_ids` once its run has begun."""
    printer = JsonPrinter() if args.json else EventPrinter(screen)
    source = find_session(store, args.id)
    events = what_if(source_id=source, at_seq=args.at, options=options, prompt=args.prompt, on_new=args.on_new)
    result: Result | None = None
    async with aclosing(events):
        async for event in events:
            printer.show(event)
            if isinstance(event, SystemInit) and event.parent_tool_use_id is None and not fork_ids:
                fork_ids.append(event.session_id)
            if isinstance(event, Result) and event.parent_tool_use_id is None:
                result = event
    assert result is not None, "a run ends with a result"
    if not args.json:
        a, b = (list(map(shown, store.iter_events(session_id))) for session_id in (source, result.session_id))
        screen.lines(comparison_lines(a, b, compare_sessions(a, b)))
    return result
