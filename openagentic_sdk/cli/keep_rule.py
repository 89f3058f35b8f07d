"""Save rules that a person at the terminal wants to keep in the project's local settings, without ending its trust."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from ..assemble import trust_store
from ..errors import OpenAgentSdkError
from ..ground.system import working_dir
from ..parts.project.claude import find_project_root
from ..parts.project.settings_write import LOCAL_SETTINGS, add_allow_rule


def rule_keeper(args: argparse.Namespace, tell: Callable[[str], None]) -> Callable[[str], None] | None:
    """Create a function that saves a rule and reports to `tell`; None if the run does not read the local settings."""
    if "local" not in [name.strip() for name in args.setting_sources.split(",")]:
        return None
    root = find_project_root(Path(args.cwd or working_dir()).expanduser().absolute())

    def keep(rule: str) -> None:
        try:
            tell(keep_in_project(root, rule))
        except OpenAgentSdkError as error:
            tell(f"for this session only: {error}")
            raise

    return keep


def keep_in_project(root: str, rule: str) -> str:
    """Write the rule to the project's local settings; return a sentence about the outcome.

    Trust is bound to the files' digest; a change requested by the person does not end it. Raises `OptionsError` or
    `StorageError` if the rule cannot be stored.
    """
    store = trust_store()
    was_trusted = store.look_up(root).is_trusted
    is_new = add_allow_rule(root, rule)
    if was_trusted and is_new:
        store.remember(root, "trusted", digest=store.look_up(root).digest)
    note = "" if was_trusted else "; it applies in later sessions once the project is trusted"
    return f"{'kept' if is_new else 'already'} in {os.path.join(root, LOCAL_SETTINGS)}: {rule}{note}"
