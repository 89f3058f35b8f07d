"""Keep git from running what a repository's own configuration names: hooks, monitors, drivers, pagers, helpers.

Git takes its last word from the environment, so the names of a repository's programs are read, without running any, and
overruled there. Bare repositories that lie in a folder like any other files are not entered at all.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping

from ...ground.disk import nearest_holding
from ...ground.patterns import regex
from .environment import find_program

_ALWAYS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "diff.ignoreSubmodules": "all",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "status.submoduleSummary": "false",
    "diff.submodule": "short",
    "log.showSignature": "false",
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "push.gpgSign": "false",
    "protocol.ext.allow": "never",
    "safe.bareRepository": "explicit",
}
# What names a program under a name of its own.
_RUNS = regex(
    r"(?:alias|pager|trailer\..*|tar\..*|browser\..*|man\..*|difftool\..*|mergetool\..*|guitool\..*)\.[^.]+"
    r"|(?:filter\..*\.(?:clean|smudge|process)|diff\..*\.(?:command|textconv)|merge\..*\.driver|credential\..*helper)"
    r"|core\.(?:sshcommand|gitproxy|askpass|editor|alternaterefscommand)|sequence\.editor|gpg\.(?:.*\.)?program|interactive\.difffilter"
    r"|diff\.external|gpg\.ssh\.defaultkeycommand|remote\..*\.(?:uploadpack|receivepack|vcs)|submodule\..*\.update|uploadpack\.packobjectshook|sendemail\..*",
)
# A configuration with nothing else names no program.
_PLAIN_SECTIONS = frozenset({"core", "remote", "branch", "user", "extensions", "init", "gc", "pack"})
_SECTION = regex(r"\[\s*([a-z0-9.-]+)")
_NAMES_A_PROGRAM = regex(r"sshcommand|gitproxy|askpass|editor|refscommand|uploadpack|receivepack|vcs|hookspath")
_CHANGES = regex(
    r"\bgit\b[^;&|\n]*\b(?:commit|merge|rebase|checkout|switch|push|pull|am|cherry-pick|revert|worktree|gc|receive-pack)\b"
)


def without_programs(folder: str, workspace: Iterable[str], count: int = 0) -> dict[str, str]:
    """The variables under which git, started in `folder`, runs no program that the repository names.

    `count` is how many settings the environment gives already.
    """
    settings = dict(_ALWAYS)
    for key in _keys_of(folder, workspace):
        if _RUNS.fullmatch(key.lower()):
            settings[key] = _harmless(key.lower())
    found = {"GIT_CONFIG_COUNT": str(count + len(settings))}
    for number, (key, value) in enumerate(settings.items(), count):
        found |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return found


def _harmless(key: str) -> str:
    """What a setting that names a program is set to. An empty name ends every `git diff` of git 2.39 with an error."""
    if key == "diff.external" or (key.startswith("diff.") and key.endswith(".command")):
        return 'f() { diff -u -- "$2" "$5" || :; }; f'
    return {"core.sshcommand": "ssh"}.get(key, "checkout" if key.endswith(".update") else "")


def hooks_note(command: str, folder: str, workspace: Iterable[str]) -> str | None:
    """What a result says when a command that changes a repository ran without the hooks that are there."""
    git_dir = _git_dir(folder) if _CHANGES.search(command) else None
    if git_dir is None:
        return None
    try:
        hooks = [name for name in os.listdir(f"{git_dir}/hooks") if not name.endswith(".sample")]
    except OSError:
        hooks = []
    if not hooks and "core.hookspath" not in _keys_of(folder, workspace):
        return None
    return "git's hooks were off, as this project is not trusted: what they check has not been checked"


def _keys_of(folder: str, workspace: Iterable[str]) -> list[str]:
    """The names of the settings that the repository of a folder makes, in all files that it includes."""
    git_dir = _git_dir(folder)
    git = None if git_dir is None else find_program("git", workspace)
    if git is None:
        return []
    found: list[str] = []
    for name in ("config", "config.worktree"):
        path = f"{git_dir}/{name}"
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read(1_000_000).lower()
        except OSError:
            continue
        if not _PLAIN_SECTIONS.issuperset(_SECTION.findall(text)) or _NAMES_A_PROGRAM.search(text):
            command = [git, "config", "--file", path, "--includes", "--list", "--name-only", "-z"]
            environment: Mapping[str, str] = {"PATH": os.defpath, "HOME": "/nonexistent", "LC_ALL": "C"}
            done = subprocess.run(
                command,
                env=environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=10,
            )
            found += done.stdout.decode("utf-8", "replace").split("\0")
    return found


def _git_dir(folder: str) -> str | None:
    """Where the repository of a folder keeps its configuration."""
    top = nearest_holding(".git", folder)
    if top is None:
        return None
    path = os.path.join(top, ".git")
    try:
        if os.path.isfile(path):  # of a worktree or a submodule
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                path = os.path.join(top, file.read(4096).removeprefix("gitdir:").strip())
        common = os.path.join(path, "commondir")
        if os.path.isfile(common):
            with open(common, encoding="utf-8", errors="surrogateescape") as file:
                path = os.path.join(path, file.read(4096).strip())
    except OSError:
        return None
    return path
