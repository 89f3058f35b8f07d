"""Store a person's decision on whether a project's files may grant anything, bound to the files' content at that time.

One JSON file contains the decisions. Trust is valid only while everything in the project that could grant something is
unchanged byte for byte, apart from new files that request nothing; if the file of decisions cannot be read, nothing is
trusted.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

from ...errors import StorageError
from ...ground.disk import is_within
from ...ground.frozen import frozen
from ...ground.loose import as_list
from ...ground.text import without_hidden
from ...skills.activation import grantable
from ...skills.files import read_text
from ...skills.frontmatter import read_frontmatter
from ...skills.index import SkillInfo, folders_up, load_skill
from ...skills.text_commands import draft_of
from .claude import claude_folders
from .commands import MAX_COMMAND_BYTES, read_commands
from .granting import GRANTING, GrantingFiles, files_named, granting_files
from .private_json import KeptFile
from .settings import LOOSE_MODES, CommandHook, read_settings

# Trusts a project whose files have this digest, for unattended machines: `DIR@sha256`.
TRUST_VARIABLE = "OPENAGENTIC_SDK_TRUST"

TrustDecision = Literal["trusted", "refused", "unknown", "changed"]


@frozen
class TrustAnswer:
    """The decision about a project: `trusted`, `refused`, `unknown` if none exists, `changed` if the files changed later.

    In the last case, `changed` names those files, and `hooks` are the trusted ones that only forbid.
    """

    decision: TrustDecision
    root: str
    digest: str | None
    reason: str
    changed: tuple[str, ...] = ()
    hooks: tuple[CommandHook, ...] = ()

    @property
    def is_trusted(self) -> bool:
        return self.decision == "trusted"

    @property
    def can_be_added(self) -> bool:
        """Whether a person can trust the current files; a decision given by the program takes precedence."""
        return self.digest is not None


def trusted_folders(root: str | os.PathLike[str], cwd: str | os.PathLike[str]) -> tuple[str, ...]:
    """The folders that are trusted separately: the project, and a working directory in it that has settings."""
    here = folders_up(root, cwd)[0]
    has_own = any(os.path.lexists(os.path.join(here, name)) for name in GRANTING[:2])
    return tuple(dict.fromkeys((os.fspath(root), here))) if has_own else (os.fspath(root),)


def project_digest(root: str) -> str | None:
    """The digest of everything in a project that could grant something; None if it is too large or unreadable."""
    files = _files_of(os.path.realpath(root))
    return None if files is None else files.digest


def _files_of(root: str) -> GrantingFiles | None:
    try:
        return granting_files(root)
    except OSError:
        return None


def trust_from_variable(root: str, text: str) -> TrustAnswer | None:
    """The decision about a project in one or several `DIR@sha256`, separated by spaces; None if none names the project."""
    real = os.path.realpath(root)
    for part in text.split():
        folder, _, trusted_digest = part.rpartition("@")
        if not folder or os.path.realpath(folder) != real:
            continue
        digest = project_digest(real)
        if digest is not None and trusted_digest == digest:
            return TrustAnswer("trusted", real, digest, f"{TRUST_VARIABLE} trusts these files")
        reason = f"{TRUST_VARIABLE} trusts files with the digest {trusted_digest[:80]!r}, but these have {digest}"
        return TrustAnswer("changed", real, digest, reason)
    return None


def requests_of(project_dir: str | os.PathLike[str], skills: Sequence[SkillInfo]) -> list[str]:
    """The rules, folders, hooks, variables, plugins and commands that a trusted project would get, verbatim, for the person
    who decides.
    """
    folders = claude_folders(project_dir, setting_sources=("project", "local"), managed_dir=None)
    settings = read_settings(folders, trusted=True)
    lines = [f"allow without asking: {rule.text} ({rule.source})" for rule in settings.allow]
    lines += [f"use the folder {rule.text} ({rule.source})" for rule in settings.additional_dirs]
    lines += [f"at {h.event} run: {' '.join((h.command, *(h.args or ())))} ({h.source})" for h in settings.hooks]
    lines += [f"set {name} to {value}" for name, value in settings.env.items()]
    lines += [f"use the plugin {name}" for name, is_wanted in settings.plugins.items() if is_wanted]
    lines += ["import memory from outside the project"] if settings.outside_imports else []
    lines += [f"leave out the memory files {glob}, also yours" for glob in settings.memory_excludes]
    lines += ["run the commands in texts of skills and commands"] if settings.text_commands else []
    lines += ["use its skills instead of yours with the same name"] if settings.skill_precedence == "project" else []
    lines += ["turn off all hooks, also yours"] if settings.hooks_disabled else []
    lines += [f"work in mode {settings.default_mode}"] if settings.default_mode in LOOSE_MODES else []
    commands = read_commands(folders).commands
    own = [skill for skill in skills if skill.scope == "project"]
    texts = [_GrantingText(f"skill {skill.name}", skill.path, skill.allowed_tools, _body_of(skill)) for skill in own]
    texts += [_GrantingText(f"command /{c.name}", c.path, c.allowed_tools, c.body) for c in commands]
    return [*lines, *(line for text in texts for line in text.requests())]


@frozen
class _GrantingText:
    """A skill or command whose file may request rules and commands."""

    name: str
    path: str
    allowed_tools: tuple[str, ...]
    body: str

    def requests(self) -> list[str]:
        rules = [
            f"{rule} (any command)" if rule.casefold() == "bash" else rule for rule in grantable(self.allowed_tools)[0]
        ]
        lines = [f"while {self.name} is used, allow: {', '.join(rules)} ({self.path})"] if rules else []
        draft = draft_of(self.body)
        commands = draft.commands if draft is not None else ()
        return [
            *lines,
            *(
                f"before {self.name} is read, if commands in text are on, run: {line} ({self.path})"
                for line in commands
            ),
        ]


def _body_of(skill: SkillInfo) -> str:
    """A skill's text as used, without invisible characters, which could hide a command; "" if it cannot be read."""
    try:
        return without_hidden(load_skill(skill).body)
    except OSError:
        return ""  # an unreadable skill cannot be activated either


class GrantingFile(Protocol):
    """A skill or a command: a file with allowed-tools, and its scope."""

    @property
    def path(self) -> str: ...
    @property
    def scope(self) -> str: ...
    @property
    def allowed_tools(self) -> tuple[str, ...]: ...


def skill_trust(project_dir: str | os.PathLike[str], *, is_trusted: bool) -> Callable[[GrantingFile], bool]:
    """Create the function that decides whether the allowed-tools of a skill or command are granted.

    Skills and commands of the user, and those that the program names, are always granted theirs. Those of a project are
    granted theirs while it is trusted and nothing in it that could grant something has changed since this call; files of
    folders below the root are not part of that decision and grant nothing.
    """
    root = os.path.realpath(project_dir)
    trusted = _files_of(root) if is_trusted else None

    def trusts(file: GrantingFile) -> bool:
        if file.scope not in ("project", "local"):
            return True
        real = os.path.realpath(file.path)
        if trusted is None or not any(is_within(real, place) for place in trusted.places):
            return False
        # Read again for each use: the run itself may have changed the files.
        now = _files_of(root)
        return now is not None and not changes_that_grant(now, trusted.files, root)

    return trusts


def changes_that_grant(now: GrantingFiles, before: Mapping[str, str], root: str) -> tuple[str, ...]:
    """The names of changed files, excluding new ones that request nothing.

    If rules about the folders of such files could let them run, every new file counts.
    """
    changed = now.changes_since(before)
    new = [name for name in changed if name in now.files and name not in before and f"{name}@" not in now.files]
    if not new or any(_is_about_folders(rule) for rule in _allow_rules(root)):
        return changed
    harmless = {name for name in new if _asks_for_nothing(root, name)}
    return tuple(name for name in changed if name not in harmless)


def _allow_rules(root: str) -> Iterator[str]:
    folders = claude_folders(root, setting_sources=("project", "local"), managed_dir=None)
    yield from (rule.text for rule in read_settings(folders, trusted=True).allow)


def _is_about_folders(rule: str) -> bool:
    return "*" in rule and any(folder in rule for folder in (".claude", ".agents", "${CLAUDE_PROJECT_DIR}"))


def _asks_for_nothing(root: str, name: str) -> bool:
    """Whether a new file is the Markdown of a command, agent or skill that requests no rules, hooks or commands."""
    path = os.path.join(root, name)
    kind = next((each for each in ("commands", "agents") if name.startswith(f".claude/{each}/")), "")
    is_skill = name.startswith((".claude/skills/", ".agents/skills/"))
    if not name.endswith(".md") or not (kind or is_skill) or os.access(path, os.X_OK):
        return False
    try:
        if is_skill:
            path = _skill_of(root, name) or path
        front = read_frontmatter(read_text(path, boundary=root, max_bytes=MAX_COMMAND_BYTES))
    except OSError:
        return False
    requests = {"allowed-tools", "hooks", "mcpServers", "permissionMode"} & front.data.keys()
    is_read = front.rung in ("strict", "none")
    return is_read and not requests and draft_of(without_hidden(front.body)) is None


def _skill_of(root: str, name: str) -> str:
    """The SKILL.md of the skill folder that contains a file; "" if none exists."""
    folder, top = os.path.dirname(os.path.join(root, name)), os.path.join(root, *name.split("/")[:2])
    while is_within(folder, root) and folder != top:
        with os.scandir(folder) as entries:
            path = next((entry.path for entry in entries if entry.name.casefold() == "skill.md"), "")
        if path:
            return path
        folder = os.path.dirname(folder)
    return ""


# Hooks at these events run before an effect, and can prevent it.
_FORBIDDING = frozenset({"PreToolUse", "UserPromptSubmit", "PermissionRequest"})
_MOST_NAMED = 5


def _remaining_hooks(entries: Any, changed: Sequence[str], root: str) -> tuple[CommandHook, ...]:
    """The hooks that still forbid although other files changed; one whose own files changed asks instead of running."""
    hooks: list[CommandHook] = []
    for entry in as_list(entries):
        try:
            args = entry["args"]
            hook = CommandHook(**{**entry, "args": None if args is None else tuple(args), "only_forbids": True})
            words = " ".join((hook.command, *(hook.args or ())))
        except (TypeError, KeyError):
            continue
        if not all(
            isinstance(text, str) for text in (hook.event, hook.matcher, hook.source, hook.condition, hook.root)
        ):
            continue
        # A deleted file is not found among the words, so its name is searched for, too.
        its_own = {*files_named(words, root), *(name for name in changed if os.path.basename(name) in words)}
        if its_own & set(changed):
            why = f"a file of the hook {hook.command[:80]!r} has changed since the project was trusted"
            answer = {"hookSpecificOutput": {"permissionDecision": "ask", "permissionDecisionReason": why}}
            block = f"printf %s {shlex.quote(why)} >&2; exit 2"
            asks = f"printf %s {shlex.quote(json.dumps(answer))}"
            hook = replace(hook, command=block if hook.event == "UserPromptSubmit" else asks, args=None)
        hooks.append(hook)
    return tuple(hooks)


class TrustStore:
    """The decisions in one file, usually `trust.json` in this library's home (`~/.openagentic-sdk`)."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = KeptFile(path, "projects", version=2)
        self.path = self._file.path

    def look_up(self, root: str | os.PathLike[str]) -> TrustAnswer:
        """Look up the decision about a project.

        A project or file that cannot be read counts as not trusted, not as an error.
        """
        real = os.path.realpath(root)
        try:
            files = granting_files(real)
        except OSError as error:
            reason = f"the project has too many files, or one cannot be read: {error}"
            return TrustAnswer("unknown", real, None, reason)
        digest = files.digest
        try:
            entry = self._file.read().get(real)
        except StorageError as error:
            return TrustAnswer("unknown", real, digest, str(error))
        if not isinstance(entry, dict):
            return TrustAnswer("unknown", real, digest, f"nobody has decided yet whether to trust {real}")
        # A refusal does not depend on the content of the files.
        if entry.get("decision") == "refused":
            return TrustAnswer("refused", real, digest, "it was refused")
        if entry.get("decision") != "trusted" or entry.get("digest") != digest:
            before = entry.get("files")
            changed = changes_that_grant(files, before, real) if isinstance(before, dict) else ()
            if entry.get("decision") == "trusted" and isinstance(before, dict) and not changed:
                return TrustAnswer("trusted", real, digest, "it was trusted, and files added since grant nothing")
            more = [f"{len(changed) - _MOST_NAMED} more"] if len(changed) > _MOST_NAMED else []
            names = ", ".join([*changed[:_MOST_NAMED], *more])
            reason = f"its files have changed since it was trusted{': ' if names else ''}{names}"
            hooks = _remaining_hooks(entry.get("hooks"), changed, real) if isinstance(before, dict) else ()
            return TrustAnswer("changed", real, digest, reason, changed, hooks)
        return TrustAnswer("trusted", real, digest, "it was trusted with these files")

    def remember(
        self, root: str | os.PathLike[str], decision: Literal["trusted", "refused"], *, digest: str | None
    ) -> None:
        """Store a decision about the files with this digest, which must be that of the files shown to the person.

        Raises `StorageError` if the file cannot be written or is damaged, `ValueError` to trust files without a digest.
        """
        if decision == "trusted" and digest is None:
            raise ValueError("unreadable files cannot be trusted: make them readable first")
        real = os.path.realpath(root)
        entry: dict[str, Any] = {"decision": decision, "digest": digest}
        files = _files_of(real) if decision == "trusted" else None
        # If the files changed while the person decided, only the digest is stored: that of the files shown.
        if files is not None and files.digest == digest:
            folders = claude_folders(real, setting_sources=("project", "local"), managed_dir=None)
            hooks = read_settings(folders, trusted=True).hooks
            entry["files"] = dict(files.files)
            entry["hooks"] = [dict(vars(hook)) for hook in hooks if hook.event in _FORBIDDING]
        with self._file.changing() as projects:
            projects[real] = entry

    def forget(self, root: str | os.PathLike[str]) -> bool:
        """Delete a decision; return False if none exists.

        Raises `StorageError` if the file cannot be written or is damaged.
        """
        with self._file.changing() as projects:
            return projects.pop(os.path.realpath(root), None) is not None

    def roots(self) -> list[str]:
        """The projects with a decision. Raises `StorageError` if the file cannot be read."""
        return sorted(self._file.read())
