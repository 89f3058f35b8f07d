"""What a project's own settings may decide at the command line: whether they grant anything, and the permission mode."""

from __future__ import annotations

import argparse

from ..assemble import open_project, trust_store
from ..errors import OptionsError
from ..options import OpenAgenticOptions
from ..project.trust import requests_of
from ..skills.index import SkillIndex
from .terminal import Screen, on_one_line

_BYPASS = ("bypass", "bypassPermissions")


def ask_for_trust(options: OpenAgenticOptions, screen: Screen) -> None:
    """Put the question when files of the project want to be granted something and nobody has decided about them yet."""
    if not {"project", "local"} & set(options.setting_sources):
        return
    root = options.project_root()
    store = trust_store()
    known = store.look_up(root)
    if known.digest is None or known.decision not in ("unknown", "changed"):
        return
    index = SkillIndex(root).read()
    requests = requests_of(root, (*index.skills, *index.hidden))
    if not requests:
        return
    for request in requests:
        screen.line(f"  {on_one_line(request)}")
    changed = " Its files changed since it was trusted." if known.decision == "changed" else ""
    screen.line(f"Trust the files of {on_one_line(str(root))} to grant this?{changed}")
    try:
        answer = input("[yes/no] ").strip().lower()
    except EOFError:  # no answer is no decision: the question comes again next time
        screen.write("\n")
        return
    store.remember(root, "trusted" if answer in ("y", "yes") else "refused", digest=known.digest)


def check_mode(args: argparse.Namespace, options: OpenAgenticOptions) -> None:
    """Raises `OptionsError` for a mode that the flag asks for and settings switch off, before anything runs."""
    if args.permission_mode in _BYPASS and open_project(options).settings.bypass_disabled:
        mode = args.permission_mode
        raise OptionsError(f"permission mode {mode} is switched off by settings: choose another with --permission-mode")
