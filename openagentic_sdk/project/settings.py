"""What settings.json files say, as plain data: rules as text with the file they stand in, hooks as descriptions.

Managed settings stand above local ones, those above the project's, those above the user's. A single value of a higher file
replaces that of a lower one, lists are joined; an entry that cannot be used is left out with a warning, the rest of its file
counts. Nothing here decides or runs anything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ..frozen import frozen
from ..skills.files import read_text
from ..skills.frontmatter import Diagnostic
from .claude import ClaudeFolders

MAX_SETTINGS_BYTES = 1024 * 1024
# Modes that ask less than the default one; a project may choose them only when it is trusted.
LOOSE_MODES = frozenset({"acceptEdits", "auto", "bypassPermissions", "dontAsk"})


@frozen
class SettingsRule:
    """A permission rule as it was written, and the file and scope (`managed`, `local`, `project`, `user`) it is from."""

    text: str
    source: str
    scope: str


@frozen
class CommandHook:
    """A hook that a file describes: at `event`, for tools that fit `matcher`, run `command` for at most `timeout_s`."""

    event: str
    matcher: str
    command: str
    source: str
    scope: str
    timeout_s: float | None = None


@frozen
class Settings:
    """All settings files of a run as one.

    `agents_md`, `outside_imports`, `skill_precedence` and `enforce_allowed_tools` (in the files `agentsMd`,
    `allowOutsideImports`, `skillPrecedence`, `enforceAllowedTools`) are settings of `read_memory` and `SkillLibrary`.
    `text_commands` and `text_commands_disabled` (`enableSkillShellExecution`, `disableSkillShellExecution`) switch the
    commands in the texts of skills and commands on, and off for good.
    `values` holds every other top-level key, from the highest file that has it. `withheld` says what an untrusted project
    asked for and did not get, one sentence per file.
    """

    allow: tuple[SettingsRule, ...] = ()
    ask: tuple[SettingsRule, ...] = ()
    deny: tuple[SettingsRule, ...] = ()
    additional_dirs: tuple[SettingsRule, ...] = ()
    hooks: tuple[CommandHook, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    default_mode: str | None = None
    bypass_disabled: bool = False
    agents_md: str | None = None
    outside_imports: bool = False
    skill_precedence: str | None = None
    enforce_allowed_tools: bool = False
    text_commands: bool = False
    text_commands_disabled: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()

    def runs_text_commands(self, wanted: bool) -> bool:
        """Whether commands in texts run, when the caller wants it or leaves it to the files."""
        return (wanted or self.text_commands) and not self.text_commands_disabled


@frozen
class _File:
    path: str
    scope: str
    boundary: str | None


def read_settings(folders: ClaudeFolders, *, trusted: bool = False) -> Settings:
    """The settings of all files that the folders name.

    Unless the project is `trusted`, its files bring no hooks, env, allow rules, additional folders or looser mode; what they
    forbid holds all the same.
    """
    whole = Settings()
    for file in _settings_files(folders):
        one = _read_file(file)
        if one is not None:
            whole = _under(whole, one if trusted or file.scope in ("managed", "user") else _without_grants(one, file))
    return whole


def _settings_files(folders: ClaudeFolders) -> Iterator[_File]:
    """From the highest to the lowest."""
    if folders.managed_dir is not None:
        yield _File(os.path.join(folders.managed_dir, "managed-settings.json"), "managed", None)
    for name, scope, wanted in (
        ("settings.local.json", "local", folders.reads_local),
        ("settings.json", "project", folders.reads_project),
    ):
        if wanted:
            yield _File(os.path.join(folders.project_dir, ".claude", name), scope, folders.boundary)
    if folders.user_dir is not None:
        yield _File(os.path.join(folders.user_dir, "settings.json"), "user", None)


def _read_file(file: _File) -> Settings | None:
    if not os.path.lexists(file.path):
        return None
    try:
        data = json.loads(
            read_text(file.path, boundary=file.boundary, max_bytes=MAX_SETTINGS_BYTES).removeprefix("\ufeff")
        )
    except (OSError, ValueError, RecursionError) as error:
        note = Diagnostic("settings-unreadable", f"left out: {error}", path=file.path, is_error=True)
        return Settings(diagnostics=(note,))
    if not isinstance(data, dict):
        note = Diagnostic("settings-unreadable", "left out: this is no JSON object", path=file.path, is_error=True)
        return Settings(diagnostics=(note,))
    return _Entries(file).settings(data)


_READ_KEYS = frozenset(
    (
        "permissions",
        "hooks",
        "env",
        "model",
        "agentsMd",
        "allowOutsideImports",
        "skillPrecedence",
        "enforceAllowedTools",
        "enableSkillShellExecution",
        "disableSkillShellExecution",
    )
)


class _Entries:
    """The entries of one file; what is of the wrong kind is noted and left out."""

    def __init__(self, file: _File) -> None:
        self.file = file
        self.notes: list[Diagnostic] = []

    def settings(self, data: Mapping[str, Any]) -> Settings:
        permissions = self._map(data, "permissions")
        return Settings(
            allow=self.rules(permissions, "allow"),
            ask=self.rules(permissions, "ask"),
            deny=self.rules(permissions, "deny"),
            additional_dirs=self.rules(permissions, "additionalDirectories"),
            hooks=tuple(self.hooks(self._map(data, "hooks"))),
            env=self.env(self._map(data, "env")),
            model=self.text(data, "model"),
            default_mode=self.text(permissions, "defaultMode"),
            bypass_disabled=permissions.get("disableBypassPermissionsMode") in ("disable", True),
            agents_md=self.choice(data, "agentsMd", ("fallback", "both", "never")),
            outside_imports=self.flag(data, "allowOutsideImports"),
            skill_precedence=self.choice(data, "skillPrecedence", ("project", "user")),
            enforce_allowed_tools=self.flag(data, "enforceAllowedTools"),
            text_commands=self.flag(data, "enableSkillShellExecution"),
            text_commands_disabled=self.flag(data, "disableSkillShellExecution"),
            values={key: value for key, value in data.items() if key not in _READ_KEYS},
            sources=(self.file.path,),
            diagnostics=tuple(self.notes),
        )

    def skip(self, where: str, expected: str) -> None:
        message = f"{where} is left out: {expected} is expected"
        self.notes.append(Diagnostic("settings-entry", message, path=self.file.path))

    def _map(self, data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        value = data.get(key, {})
        if isinstance(value, dict):
            return value
        self.skip(key, "an object")
        return {}

    def text(self, data: Mapping[str, Any], key: str) -> str | None:
        value = data.get(key)
        if value is None or isinstance(value, str):
            return value
        self.skip(key, "text")
        return None

    def choice(self, data: Mapping[str, Any], key: str, choices: Sequence[str]) -> str | None:
        value = data.get(key)
        if value is None or value in choices:
            return value
        self.skip(key, f"one of {', '.join(choices)}")
        return None

    def flag(self, data: Mapping[str, Any], key: str) -> bool:
        value = data.get(key, False)
        if isinstance(value, bool):
            return value
        self.skip(key, "true or false")
        return False

    def list(self, data: Mapping[str, Any], key: str, where: str) -> list[Any]:
        value = data.get(key, [])
        if isinstance(value, list):
            return value
        self.skip(where, "a list")
        return []

    def rules(self, permissions: Mapping[str, Any], key: str) -> tuple[SettingsRule, ...]:
        where = f"permissions.{key}"
        rules: list[SettingsRule] = []
        for i, rule in enumerate(self.list(permissions, key, where)):
            if isinstance(rule, str) and rule.strip():
                rules.append(SettingsRule(rule.strip(), self.file.path, self.file.scope))
            else:
                self.skip(f"{where}[{i}]", "text")
        return tuple(rules)

    def env(self, env: Mapping[str, Any]) -> dict[str, str]:
        usable: dict[str, str] = {}
        for name, value in env.items():
            if _is_env_name(name) and isinstance(value, str | int | float) and "\0" not in str(value):
                usable[name] = str(value).lower() if isinstance(value, bool) else str(value)
            else:
                self.skip(f"env.{name}", "a name with a text")
        return usable

    def hooks(self, hooks: Mapping[str, Any]) -> Iterator[CommandHook]:
        for event in hooks:
            for i, group in enumerate(self.list(hooks, event, f"hooks.{event}")):
                where = f"hooks.{event}[{i}]"
                if not isinstance(group, dict) or not isinstance(group.get("matcher", ""), str):
                    self.skip(where, "an object with matcher and hooks")
                    continue
                for j, entry in enumerate(self.list(group, "hooks", f"{where}.hooks")):
                    hook = self.hook(event, group.get("matcher", ""), entry)
                    if hook is not None:
                        yield hook
                    else:
                        self.skip(
                            f"{where}.hooks[{j}]", "an object with type command, a command and a timeout in seconds"
                        )

    def hook(self, event: str, matcher: str, entry: Any) -> CommandHook | None:
        if not isinstance(entry, dict) or entry.get("type") != "command":
            return None
        command, timeout = entry.get("command"), entry.get("timeout")
        if not isinstance(command, str) or not command.strip():
            return None
        if timeout is not None and (not isinstance(timeout, int | float) or isinstance(timeout, bool) or timeout <= 0):
            return None
        return CommandHook(event, matcher, command, self.file.path, self.file.scope, timeout)


def _is_env_name(name: str) -> bool:
    return bool(name) and "=" not in name and "\0" not in name


def _under(high: Settings, low: Settings) -> Settings:
    """Two settings as one; where only one value can hold, it is that of `high`."""
    return Settings(
        allow=_joined(high.allow, low.allow),
        ask=_joined(high.ask, low.ask),
        deny=_joined(high.deny, low.deny),
        additional_dirs=_joined(high.additional_dirs, low.additional_dirs),
        hooks=high.hooks + low.hooks,
        env={**low.env, **high.env},
        model=high.model if high.model is not None else low.model,
        default_mode=high.default_mode if high.default_mode is not None else low.default_mode,
        bypass_disabled=high.bypass_disabled or low.bypass_disabled,
        agents_md=high.agents_md or low.agents_md,
        outside_imports=high.outside_imports or low.outside_imports,
        skill_precedence=high.skill_precedence or low.skill_precedence,
        enforce_allowed_tools=high.enforce_allowed_tools or low.enforce_allowed_tools,
        text_commands=high.text_commands or low.text_commands,
        text_commands_disabled=high.text_commands_disabled or low.text_commands_disabled,
        values=_merged(high.values, low.values),
        sources=high.sources + low.sources,
        withheld=high.withheld + low.withheld,
        diagnostics=high.diagnostics + low.diagnostics,
    )


def _joined(high: tuple[SettingsRule, ...], low: tuple[SettingsRule, ...]) -> tuple[SettingsRule, ...]:
    known = {rule.text for rule in high}
    return high + tuple(rule for rule in low if rule.text not in known)


def _merged(high: Mapping[str, Any], low: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**low, **high}
    for key in high.keys() & low.keys():
        if isinstance(high[key], list) and isinstance(low[key], list):
            merged[key] = high[key] + [item for item in low[key] if item not in high[key]]
        elif isinstance(high[key], dict) and isinstance(low[key], dict):
            merged[key] = _merged(high[key], low[key])
    return merged


_GRANTS: Mapping[str, Callable[[Settings], Any]] = {
    "allow rules": lambda settings: settings.allow,
    "additional folders": lambda settings: settings.additional_dirs,
    "hooks": lambda settings: settings.hooks,
    "env": lambda settings: settings.env,
    "imports from outside": lambda settings: settings.outside_imports,
    "commands in texts": lambda settings: settings.text_commands,
    "a looser permission mode": lambda settings: settings.default_mode in LOOSE_MODES,
}


def _without_grants(settings: Settings, file: _File) -> Settings:
    wanted = [name for name, value_of in _GRANTS.items() if value_of(settings)]
    if not wanted:
        return settings
    mode = None if settings.default_mode in LOOSE_MODES else settings.default_mode
    sentence = f"{file.path} asks for {', '.join(wanted)}; the project is not trusted, so it goes on without them"
    return replace(
        settings,
        allow=(),
        additional_dirs=(),
        hooks=(),
        env={},
        outside_imports=False,
        text_commands=False,
        default_mode=mode,
        withheld=(*settings.withheld, sentence),
    )
