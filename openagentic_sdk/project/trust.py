"""Whether a project's files may grant anything, as a person decided it, bound to what the files said at that time.

One JSON file holds the decisions. A decision counts only while everything in the project that could grant something is byte
for byte what it was; a file of decisions that cannot be read trusts nobody.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from ..disk import SystemDisk, write_durably
from ..errors import FileRefusedError, StorageError
from ..frozen import frozen
from ..skills.activation import grantable
from ..skills.files import is_within, read_bytes, tree_sha256
from ..skills.index import SkillInfo, load_skill
from ..skills.text_commands import draft_of
from ..text import without_hidden
from .claude import claude_folders
from .commands import read_commands
from .settings import LOOSE_MODES, read_settings

# What can bring hooks, env, allow rules, grants or instructions with grants.
GRANTING = (
    ".claude/settings.json",
    ".claude/settings.local.json",
    ".claude/skills",
    ".claude/commands",
    ".claude/agents",
    ".claude/hooks",
    ".agents/skills",
)
# Trusts a project whose files have this digest, for machines that nobody sits at: `DIR@sha256`.
TRUST_VARIABLE = "OPENAGENTIC_SDK_TRUST"
MAX_STORE_BYTES = 4 * 1024 * 1024
_MAX_FILE_BYTES = 4 * 1024 * 1024

Decision = Literal["trusted", "refused", "unknown", "changed"]


@frozen
class TrustAnswer:
    """`trusted` or `refused` as decided; `unknown` when nobody was asked; `changed` when the files are others than then."""

    decision: Decision
    root: str
    digest: str | None
    reason: str

    @property
    def is_trusted(self) -> bool:
        return self.decision == "trusted"


def project_digest(root: str) -> str | None:
    """The digest of all that could grant something in a project; None when it is too large or cannot be read."""
    digest = hashlib.sha256()
    for name in GRANTING:
        try:
            digest.update(f"{name}\0{_digest_of(os.path.join(root, name), root)}\n".encode())
        except OSError:
            return None
    return digest.hexdigest()


def _digest_of(path: str, root: str) -> str:
    real = os.path.realpath(path)
    if not is_within(real, os.path.realpath(root)):
        raise FileRefusedError(f"{path} leads to {real}, outside of {root}")
    if os.path.isdir(real):
        return tree_sha256(real)
    if not os.path.lexists(path):
        return "-"
    return hashlib.sha256(read_bytes(path, boundary=os.path.realpath(root), max_bytes=_MAX_FILE_BYTES)).hexdigest()


def requests_of(project_dir: str | os.PathLike[str], skills: Sequence[SkillInfo]) -> list[str]:
    """What a project would get if it were trusted, word for word, for the person who decides."""
    folders = claude_folders(project_dir, setting_sources=("project", "local"), managed_dir=None)
    settings = read_settings(folders, trusted=True)
    lines = [f"allow without asking: {rule.text} ({rule.source})" for rule in settings.allow]
    lines += [f"use the folder {rule.text} ({rule.source})" for rule in settings.additional_dirs]
    lines += [f"at {hook.event} run: {hook.command} ({hook.source})" for hook in settings.hooks]
    lines += [f"set {name} to {value}" for name, value in settings.env.items()]
    lines += ["import memory from outside of the project"] if settings.outside_imports else []
    lines += [f"work in mode {settings.default_mode}"] if settings.default_mode in LOOSE_MODES else []
    commands = read_commands(folders).commands
    own = [skill for skill in skills if skill.scope == "project"]
    texts = [_GrantingText(f"skill {skill.name}", skill.path, skill.allowed_tools, _body_of(skill)) for skill in own]
    texts += [_GrantingText(f"command /{c.name}", c.path, c.allowed_tools, c.body) for c in commands]
    return [*lines, *(line for text in texts for line in text.requests())]


@frozen
class _GrantingText:
    """A skill or command, as far as it wants something."""

    name: str
    path: str
    allowed_tools: tuple[str, ...]
    body: str

    def requests(self) -> list[str]:
        rules = grantable(self.allowed_tools)[0]
        lines = [f"while {self.name} is used allow: {', '.join(rules)} ({self.path})"] if rules else []
        draft = draft_of(self.body)
        found = draft.commands if draft is not None else ()
        return [
            *lines,
            *(f"before {self.name} is read, if commands in texts are on, run: {line} ({self.path})" for line in found),
        ]


def _body_of(skill: SkillInfo) -> str:
    """Its text as it is when the skill is used: without hidden characters, which can keep a command from being seen."""
    try:
        return without_hidden(load_skill(skill).body)
    except OSError:
        return ""  # what cannot be read cannot be activated either


class GrantingFile(Protocol):
    """A skill or a command: a file with allowed-tools, and where it was found."""

    @property
    def path(self) -> str: ...
    @property
    def scope(self) -> str: ...
    @property
    def allowed_tools(self) -> tuple[str, ...]: ...


def skill_trust(project_dir: str | os.PathLike[str], *, is_trusted: bool) -> Callable[[GrantingFile], bool]:
    """Says whether the allowed-tools of a skill or command are granted: the user's own and those that the program names are.

    A project's are while it is trusted and nothing in it that could grant something changed since this call; files of
    folders below the root are not part of that decision and bring no grants.
    """
    root = os.path.realpath(project_dir)
    digest = project_digest(root) if is_trusted else None
    places = [os.path.join(root, name) for name in GRANTING]

    def trusts(file: GrantingFile) -> bool:
        if file.scope != "project":
            return True
        real = os.path.realpath(file.path)
        decided = digest is not None and any(is_within(real, place) for place in places)
        return decided and project_digest(root) == digest

    return trusts


class TrustStore:
    """The decisions in one file, by default `trust.json` in the user's `~/.openagentic-sdk`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(path)

    def look_up(self, root: str | os.PathLike[str]) -> TrustAnswer:
        """What was decided about a project. Never raises: what cannot be read is not trusted."""
        real = os.path.realpath(root)
        digest = project_digest(real)
        if digest is None:
            return TrustAnswer("unknown", real, None, "the project's files are too many or cannot be read")
        try:
            entry = self._read().get(real)
        except (OSError, ValueError) as error:
            return TrustAnswer("unknown", real, digest, f"{self.path} cannot be read: {error}")
        if not isinstance(entry, dict):
            return TrustAnswer("unknown", real, digest, f"nobody has decided about {real} yet")
        if entry.get("decision") == "refused":
            return TrustAnswer("refused", real, digest, "it was refused")
        if entry.get("decision") != "trusted" or entry.get("digest") != digest:
            return TrustAnswer("changed", real, digest, "its files changed since it was trusted")
        return TrustAnswer("trusted", real, digest, "it was trusted with these files")

    def remember(
        self, root: str | os.PathLike[str], decision: Literal["trusted", "refused"], *, digest: str | None
    ) -> None:
        """Keep a decision about the files with this digest (what was shown when it was asked for).

        Raises `StorageError` when the file cannot be written or is damaged, `ValueError` to trust files without a digest.
        """
        if decision == "trusted" and digest is None:
            raise ValueError("files that cannot be read cannot be trusted: make them readable first")
        try:
            projects = dict(self._read())
            projects[os.path.realpath(root)] = {"decision": decision, "digest": digest}
            self._write(projects)
        except (OSError, ValueError) as error:
            raise StorageError(f"{self.path} cannot be changed: {error}") from error

    def _read(self) -> Mapping[str, Any]:
        if not os.path.lexists(self.path):
            return {}
        data = json.loads(read_bytes(self.path, boundary=None, max_bytes=MAX_STORE_BYTES))
        projects = data.get("projects") if isinstance(data, dict) else None
        if not isinstance(projects, dict):
            raise FileRefusedError(f"{self.path} holds no decisions: move it aside to begin anew")
        return projects

    def _write(self, projects: Mapping[str, Any]) -> None:
        folder = os.path.dirname(self.path)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        text = json.dumps({"version": 1, "projects": projects}, indent=1, sort_keys=True)
        write_durably(SystemDisk(), Path(self.path), text.encode("ascii") + b"\n")
