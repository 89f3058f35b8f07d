"""`sessions bisect`: find which of several changes flips the outcome of a session, by what-if runs."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from ...errors import OptionsError
from ...events import ModelRequest, Result, UserMessage
from ...ground.text import on_one_line
from ...ground.words import plural
from ...options import OpenAgenticOptions, with_model
from ...runs.whatif import what_if
from ...sessions.base import SessionStore
from ..actions import ActionList, add_list_flag
from ..exits import FAILED, OK
from ..flags import add_fork_flags, text_or_file
from ..loop import run_async
from ..output.terminal import Screen
from .stores import add_id, find_session

KINDS = ("prompt", "model", "allow", "deny", "without")


def add_actions(actions: ActionList) -> None:
    """Add `bisect` to the command line."""
    bisect = actions.add(
        "bisect",
        _bisect,
        "find which of several changes flips the outcome, by what-if runs",
        conflict_handler="resolve",
    )
    add_id(bisect)
    add_list_flag(
        bisect,
        "--change",
        metavar="KIND=VALUE",
        help=f"a change, in order; KIND is {', '.join(KINDS[:-1])} or {KINDS[-1]} (a tool); prompt may name a file",
    )
    bisect.add_argument("--at", metavar="SEQ", type=int, help="the last event to keep (default: the first prompt)")
    bisect.add_argument(
        "--passes",
        metavar="REGEX",
        default="",
        help="a pattern that the final text of a successful run contains (default: any text)",
    )
    bisect.add_argument(
        "--on-new",
        choices=("stop", "live"),
        default="stop",
        help="what to do with a call that the session never made (default: %(default)s)",
    )
    bisect.add_argument("--agent", metavar="MODULE:NAME", help="your Agent or options, or a function that returns them")
    bisect.add_argument("--app-dir", metavar="DIR", help="the folder of MODULE (default: this folder)")
    bisect.add_argument("--dry-run", action="store_true", help="only print how many model calls it would take")
    add_fork_flags(bisect)
    bisect.set_defaults(resume=None)


async def find_flip(count: int, passes: Callable[[int], Awaitable[bool]]) -> int | None:
    """Find the change, from 1 to `count`, that flips the outcome if the changes are applied in order; None if all of them
    together do not. `passes(n)` tries the first `n` of them.
    """
    low, high = 0, count  # with `low` changes the outcome is the old one, with `high` the new one
    before = await passes(low)
    if await passes(high) == before:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if await passes(middle) == before else (low, middle)
    return high


def changed_options(options: OpenAgenticOptions, change: str) -> OpenAgenticOptions:
    """Apply one change, `KIND=VALUE`, to the options. Raises `OptionsError` for any other form or an unusable value."""
    kind, equals, value = change.partition("=")
    if kind not in KINDS or not equals or not value:
        raise OptionsError(f"--change {change!r:.200} is not KIND=VALUE: the kinds are {', '.join(KINDS)}")
    if kind == "prompt":
        return replace(options, system_prompt=text_or_file(value, "--change prompt="))
    if kind == "model":
        return with_model(options, value)
    if kind == "allow":
        return replace(options, allowed_tools=(*options.allowed_tools, value))
    return replace(options, disallowed_tools=(*options.disallowed_tools, value))


def _bisect(store: SessionStore, args: argparse.Namespace) -> int:
    from ..commands.whatif import options_for

    session_id, screen = find_session(store, args.id), Screen(sys.stdout)
    events = store.read_events(session_id)
    at = args.at or next((e.seq for e in events if isinstance(e, UserMessage)), None)
    if at is None or not args.change:
        raise OptionsError("a bisection needs a session with a prompt, and at least one --change KIND=VALUE")
    steps = max(sum(isinstance(e, ModelRequest) and (e.seq or 0) > at for e in events), 1)
    runs = 2 + (len(args.change) - 1).bit_length()
    each = f"at most {plural(runs, 'run')} of about {plural(steps, 'model call')} each"
    screen.line(f"{plural(len(args.change), 'change')}: {each}, {runs * steps} in all")
    for change in args.change:
        changed_options(OpenAgenticOptions(), change)
    pattern = _pattern(args.passes)
    if args.dry_run:
        return OK

    async def passes(count: int) -> bool:
        options = replace(options_for(args), session_store=store)
        for change in args.change[:count]:
            options = changed_options(options, change)
        playing = what_if(source_id=session_id, at_seq=at, options=options, on_new=args.on_new)
        async with aclosing(playing) as played:
            ends = [e async for e in played if isinstance(e, Result) and e.parent_tool_use_id is None]
        end = ends[-1]
        well = end.stop_reason == "end" and pattern.search(end.final_text) is not None
        verdict = f"{'passes' if well else 'FAILS'}, session {end.session_id}, stop reason {end.stop_reason}"
        screen.line(f"with {_change_list(args.change[:count])}: {verdict}")
        return well

    flip = run_async(find_flip(len(args.change), passes))
    if flip is None:
        screen.line("the changes do not flip the outcome")
        return FAILED
    screen.line(f"the outcome flips with {_change_list(args.change[flip - 1 : flip])}")
    return OK


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise OptionsError(f"--passes {text!r:.200} is not a regular expression: {error}") from None


def _change_list(changes: Sequence[str]) -> str:
    return ", ".join(on_one_line(change, 80) for change in changes) or "no change"
