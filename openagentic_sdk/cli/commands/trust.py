"""`openagentic-sdk trust ...`: whether a project's own files may grant anything; and the same question before a run."""

from __future__ import annotations

import argparse
import os
import sys

from ...assemble import configured_servers, open_project, trust_in, trust_store
from ...errors import OptionsError
from ...ground.text import on_one_line
from ...options import SETTING_SOURCES, OpenAgenticOptions
from ...parts.project.commands import unknown_name
from ...parts.project.trust import TRUST_VARIABLE, TrustAnswer, project_digest, requests_of, trusted_folders
from ...skills.index import SkillIndex
from ..exits import FAILED, OK
from ..output.questions import ask_yes_or_no
from ..output.terminal import Screen

_BYPASS = ("bypass", "bypassPermissions")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "trust",
        description="Show or decide whether the files of a project may grant hooks, env, allow rules and the like. A "
        "decision applies to the current state of the files. Where nobody can be asked, set "
        f"${TRUST_VARIABLE} to DIR@DIGEST, as printed by `trust show`.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary in {
        "add": "trust the files in their current state, and print what that grants",
        "show": "show the decision, what the files request, and their digest; exit code 1 if they are not trusted",
        "revoke": "withdraw a decision",
    }.items():
        action = actions.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        action.add_argument("dir", nargs="?", metavar="DIR", help="the project (default: the current one)")
    about = "list the projects with a decision"
    actions.add_parser("list", help=about, description=f"{about.capitalize()}.")


def run(args: argparse.Namespace) -> int:
    screen, store = Screen(sys.stdout), trust_store()
    if args.action == "list":
        for folder in store.roots():
            screen.line(f"{store.look_up(folder).decision:8} {on_one_line(folder)}")
        return OK
    options = OpenAgenticOptions(cwd=args.dir, setting_sources=SETTING_SOURCES)
    root = options.project_root()
    if not root.is_dir():
        raise OptionsError(f"{str(root)!r} is not a folder: name a project that exists")
    codes = [_decide(args.action, folder, options, screen) for folder in trusted_folders(root, options.working_dir())]
    return max(codes)


def _decide(action: str, root: str, options: OpenAgenticOptions, screen: Screen) -> int:
    store = trust_store()
    if action == "revoke":
        is_known = store.forget(root)
        screen.line(f"{on_one_line(root)} {'is no longer trusted' if is_known else 'had no decision'}")
        return OK if is_known else FAILED
    digest = project_digest(root)
    screen.lines(f"  {on_one_line(request)}" for request in _requests(root))
    if action == "add":
        if digest is None:
            raise OptionsError(f"{store.look_up(root).reason}: nothing in {root} can be trusted")
        store.remember(root, "trusted", digest=digest)
    answer = trust_in(root, options) if action == "show" else store.look_up(root)
    screen.line(f"{on_one_line(root)} is {'' if answer.is_trusted else 'not '}trusted: {on_one_line(answer.reason)}")
    screen.lines(f"  changed: {on_one_line(name)}" for name in answer.changed)
    if digest is not None:
        screen.line(f"{TRUST_VARIABLE}={on_one_line(os.path.realpath(root))}@{digest}")
    return OK if answer.is_trusted else FAILED


def _requests(root: str) -> list[str]:
    index = SkillIndex(root).read()
    return requests_of(root, (*index.skills, *index.hidden))


def ask_for_trust(options: OpenAgenticOptions, screen: Screen) -> None:
    """Ask the person about files of the project that request grants, if nobody has decided about their current state yet."""
    if not {"project", "local"} & set(options.setting_sources):
        return
    for folder in trusted_folders(options.project_root(), options.working_dir()):
        _ask_about(folder, trust_in(folder, options), screen)


def _ask_about(root: str, answer: TrustAnswer, screen: Screen) -> None:
    if answer.digest is None or answer.decision not in ("unknown", "changed"):
        return
    requests = _requests(root)
    if not requests:
        return
    screen.lines(f"  {on_one_line(request)}" for request in requests)
    screen.lines(f"  changed since it was trusted: {on_one_line(name)}" for name in answer.changed)
    changed = " Its files changed since it was trusted." if answer.decision == "changed" else ""
    agreed = ask_yes_or_no(f"Trust the files of {on_one_line(root)} to grant this?{changed}", screen)
    if agreed is not None:  # without an answer nothing is decided: the question is asked again next time
        trust_store().remember(root, "trusted" if agreed else "refused", digest=answer.digest)


def ask_about_servers(options: OpenAgenticOptions, screen: Screen) -> None:
    """Ask about the MCP servers in the project's files; the code to do so is imported only if there are any."""
    if configured_servers(open_project(options)) is not None:
        from ..servers.agree import ask_for_servers

        ask_for_servers(options, screen)


def check_prompt(options: OpenAgenticOptions, prompt: str) -> str | None:
    """The problem with a prompt that names an unknown command or skill; None if it can be sent."""
    if not prompt.lstrip().startswith("/"):
        return None
    project = open_project(options)
    index = project.skills()
    names = [name for skill in (*index.skills, *index.hidden) if skill.user_invocable for name in skill.names]
    return unknown_name(prompt, [*(command.name for command in project.commands.commands), *names])


def check_mode(args: argparse.Namespace, options: OpenAgenticOptions) -> None:
    """Raise `OptionsError` for a mode flag that settings forbid, before anything runs."""
    if args.permission_mode in _BYPASS and open_project(options).settings.bypass_disabled:
        mode = args.permission_mode
        raise OptionsError(f"permission mode {mode} is disabled by settings: choose another with --permission-mode")
