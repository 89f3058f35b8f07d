"""Trust servers: `mcp trust`, and the question before a run. The subject of the consent is shown first, literally."""

from __future__ import annotations

import argparse

from ...assemble import mcp_home, open_project
from ...errors import OptionsError
from ...ground.text import visible
from ...options import OpenAgenticOptions
from ...parts.mcp.configured.consent import definition_of, describe
from ...parts.mcp.configured.resolve import Configured
from ...sessions.request import json_sha256
from ..exits import FAILED, OK
from ..loop import run_async
from ..output.questions import ask_yes_or_no, somebody_is_there
from ..output.terminal import Screen
from .here import Here, differences
from .reach import try_servers


def ask_for_servers(options: OpenAgenticOptions, screen: Screen) -> None:
    """Ask about every server of the project that nobody has approved or refused in its current form.

    Stop at end of input; the servers that were not asked about stay undecided.
    """
    project = open_project(options)
    home = mcp_home()
    for one in home.configured(project).found:
        if one.state != "pending" or home.consents is None:
            continue
        definition = definition_of(one.entry)
        screen.lines(_introduced(one))
        agreed = ask_yes_or_no(f"Start this server in this project from now on? {visible(one.entry.name)}", screen)
        if agreed is None:
            return
        home.consents.remember(one.entry, "agreed" if agreed else "refused", definition=definition)


def trust(args: argparse.Namespace, here: Here) -> int:
    """Approve a server and its tools; exit code 1 if it does not start, or the person refuses."""
    if args.revoke:
        return revoke(args, here)
    one = here.find(args.name)
    definition = definition_of(one.entry)
    digest = json_sha256(definition)
    if one.state in ("unusable", "disabled"):
        raise OptionsError(f"{args.name!r} cannot be started, so there is nothing to approve: {one.reason}")
    if args.digest and args.digest != digest:
        raise OptionsError(f"{args.name!r} now has the digest {digest}, not {args.digest:.100}: look at it again")
    asks = somebody_is_there() and not args.json
    if not one.entry.is_own:
        if here.home.consents is None:
            raise OptionsError("this user has no home folder in which to store the approval: set OPENAGENTIC_SDK_HOME")
        here.screen.lines(() if args.json else _introduced(one))
        is_asked = asks and one.state != "ready"
        if is_asked and not ask_yes_or_no("Start this server in this project from now on?", here.screen):
            return FAILED
        here.home.consents.remember(one.entry, "agreed", definition=definition)
        one = here.find(args.name)
        if one.server is None:  # the file was changed meanwhile
            raise OptionsError(f"{args.name!r} is not started: {one.reason}")
    (tried,) = run_async(try_servers(here.home, [one], here.project.cwd))
    here.screen.lines(() if args.json else tried.lines(here.screen))
    if tried.works and tried.changes:
        tools = "this tool in its" if len(tried.changes) == 1 else f"these {len(tried.changes)} tools in their"
        if asks and not ask_yes_or_no(f"Approve {tools} current state?", here.screen):
            return FAILED
        here.home.pins(one.entry.root, args.name).agree(tried.tools)
    data = {"name": args.name, "agreed": True, "digest": digest, **tried.row()}
    message = f"{visible(args.name)} is approved{'' if tried.works else ', and does not start now'}"
    here.screen.tell(args.json, data, [message])
    return OK if tried.works else FAILED


def revoke(args: argparse.Namespace, here: Here) -> int:
    """Revoke the consent to a server, and forget its tools. If settings would approve it again, refuse it."""
    one, consents = here.find(args.name), here.home.consents
    was = one.state == "ready" and not one.entry.is_own
    if consents is not None and not one.entry.is_own:
        consents.forget(one.entry.root, args.name)
        if here.find(args.name).state == "ready":  # settings would still approve it
            consents.remember(one.entry, "refused", definition=definition_of(one.entry))
    here.home.pins(one.entry.root, args.name).forget()
    name = visible(args.name)
    if one.entry.is_own:
        message = (
            f"{name} is your own server, which needs no approval: `mcp remove` removes it; its tools are forgotten"
        )
    else:
        message = f"{name} is {'no longer approved' if was else 'not approved'}, and its tools are forgotten"
    here.screen.tell(args.json, {"name": args.name, "agreed": False, "revoked": was}, [message])
    return OK


def _introduced(one: Configured) -> list[str]:
    """The lines that show everything a consent covers, and what has changed since an earlier consent."""
    entry = one.entry
    hidden = [f"it replaces your own server of this name ({', '.join(entry.hides)})"] if entry.hides else []
    changed = differences(one)
    return [
        f"server {visible(entry.name)} of {visible(entry.source)}:",
        *(f"  {line}" for line in [*describe(definition_of(entry)), *hidden]),
        *(["  it was approved in another state; the changes:"] if changed else []),
        *(f"    {line}" for line in changed),
    ]
