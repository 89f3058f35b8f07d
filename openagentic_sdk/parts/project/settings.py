"""Read settings.json files as plain data: rules as text with the file that contains them, hooks as descriptions.

The order of precedence is: managed, local, project and user settings. A single value in a higher file replaces that of a
lower one; lists are joined; a flag is set if any file sets it. An invalid entry is omitted with a warning; the rest of its
file is used. Nothing here decides or runs anything.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ...errors import OptionsError
from ...ground.checks import refuse_repeated_keys
from ...ground.diagnostic import Diagnostic
from ...ground.frozen import frozen
from ...skills.files import read_text
from ...skills.index import Precedence
from ...skills.ledger import row_of, word_notes, words
from .claude import ClaudeFolders

MAX_SETTINGS_BYTES = 1024 * 1024
# The code of the diagnostic about a file that may exist and cannot be read. No run begins without what it may forbid.
INACCESSIBLE = "settings-inaccessible"
# The errors that mean that no file with this path can be read, now or later; any other may hide a file.
_NO_FILE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO, errno.ENODEV}
)
# Modes that ask less often than the default one; only a trusted project may choose them.
LOOSE_MODES = frozenset({"acceptEdits", "auto", "bypassPermissions", "dontAsk"})


@frozen
class SettingsRule:
    """A permission rule as written, with its file, scope (`managed`, `local`, `project`, `user`) and line."""

    text: str
    source: str
    scope: str
    line: int = 0


@frozen
class CommandHook:
    """A hook from a file: at `event`, for what `matcher` matches, run `command` for at most `timeout_s`.

    With `args` the command is a program and these are its arguments, else it is a shell command line. `condition` (`if` in
    the file) is a permission rule that a tool call must match. `is_async` hooks run in the background, `once` hooks run once
    in a session. `root`, if set, is the folder of its plugin or skill, `data` the plugin's data folder. With `only_forbids`,
    the hook can neither allow a call, nor change its input or a prompt. A hook of a `skill` runs while that skill is active.
    """

    event: str
    matcher: str
    command: str
    source: str
    scope: str
    timeout_s: float | None = None
    args: tuple[str, ...] | None = None
    condition: str = ""
    is_async: bool = False
    once: bool = False
    root: str = ""
    only_forbids: bool = False
    skill: str = ""
    data: str = ""

    @property
    def folder(self) -> str | None:
        """The project folder whose `.claude` contains the hook; None for one of a user, a machine, a plugin or a skill."""
        place, name = os.path.split(os.path.dirname(self.source))
        return place if name == ".claude" and self.scope in ("project", "local") and not self.root else None


@frozen
class Settings:
    """The merged settings files of a run.

    `labels` are presets and rules on labels (`permissions.labels`, see docs/injection.md). `agents_md`, `outside_imports`,
    `skill_precedence` and `enforce_allowed_tools` (in the files `agentsMd`, `allowOutsideImports`, `skillPrecedence`,
    `enforceAllowedTools`) are settings of `read_memory` and `SkillLibrary`. `text_commands` enables the commands in the
    texts of skills and commands, `text_commands_disabled` disables them permanently (`enableSkillShellExecution`,
    `disableSkillShellExecution`). `hooks_disabled` and `managed_hooks_only` leave only the hooks of managed settings,
    `managed_rules_only` only their rules. `model_names` (`modelNames`) maps a word such as `haiku` to a model. `plugins`
    and `marketplaces` are `enabledPlugins` and `extraKnownMarketplaces`, `memory_excludes` is `claudeMdExcludes`, and
    `own_excludes` is that of an untrusted project, which only applies to the project's own memory.
    `servers_enabled` and `servers_disabled` are `enabledMcpjsonServers` (with `enableAllProjectMcpServers` as `*`), which
    is only read from the user's own and managed settings, and `disabledMcpjsonServers`. `values` has every other top-level
    key, from the highest file that contains it. `withheld` lists what an untrusted project requested and did not get, one
    sentence per file.
    """

    allow: tuple[SettingsRule, ...] = ()
    ask: tuple[SettingsRule, ...] = ()
    deny: tuple[SettingsRule, ...] = ()
    labels: tuple[SettingsRule, ...] = ()
    additional_dirs: tuple[SettingsRule, ...] = ()
    hooks: tuple[CommandHook, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    default_mode: str | None = None
    bypass_disabled: bool = False
    agents_md: str | None = None
    outside_imports: bool = False
    skill_precedence: Precedence | None = None
    enforce_allowed_tools: bool = False
    text_commands: bool = False
    text_commands_disabled: bool = False
    hooks_disabled: bool = False
    managed_hooks_only: bool = False
    managed_rules_only: bool = False
    output_style: str | None = None
    model_names: Mapping[str, str] = field(default_factory=dict)
    plugins: Mapping[str, bool] = field(default_factory=dict)
    marketplaces: Mapping[str, Any] = field(default_factory=dict)
    memory_excludes: tuple[str, ...] = ()
    own_excludes: tuple[str, ...] = ()
    servers_enabled: tuple[str, ...] = ()
    servers_disabled: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()

    def runs_text_commands(self, by_option: bool) -> bool:
        """Whether commands in text run, given the caller's setting."""
        return (by_option or self.text_commands) and not self.text_commands_disabled


@frozen
class _File:
    path: str
    scope: str
    boundary: str | None
    is_below: bool = False


def read_settings(folders: ClaudeFolders, *, trusted: bool = False, trusted_below: bool | None = None) -> Settings:
    """Read and merge all settings files of the folders. Raises `OptionsError` for managed settings that cannot be listed.

    Unless the project is `trusted`, its files contribute nothing that grants, such as hooks, env, allow rules, additional
    folders, plugins or a looser mode; what they forbid still applies. `trusted_below` is the same for the working
    directory's own files if it is a folder of the project; None is the same as `trusted`.
    """
    whole = Settings()
    for file in _settings_files(folders):
        one = _read_file(file)
        if one is not None:
            is_trusted = trusted if trusted_below is None or not file.is_below else trusted_below
            whole = _under(
                whole, one if is_trusted or file.scope in ("managed", "user") else _without_grants(one, file)
            )
    if whole.hooks_disabled or whole.managed_hooks_only:
        whole = replace(whole, hooks=tuple(hook for hook in whole.hooks if hook.scope == "managed"))
    if whole.managed_rules_only:
        allow, ask, deny, labels = (
            tuple(rule for rule in rules if rule.scope == "managed")
            for rules in (whole.allow, whole.ask, whole.deny, whole.labels)
        )
        whole = replace(whole, allow=allow, ask=ask, deny=deny, labels=labels)
    return whole


def read_settings_file(path: str) -> Settings:
    """Read one file as a user's own settings. Raises `OptionsError` if it is unreadable or not a JSON object."""
    if not os.path.lexists(path):
        raise OptionsError(f"the settings file does not exist: {path!r}")
    settings = _read_file(_File(path, "user", None))
    assert settings is not None, "the file exists"
    codes = ("settings-unreadable", INACCESSIBLE)
    broken = next((note for note in settings.diagnostics if note.code in codes), None)
    if broken is not None:
        raise OptionsError(f"the settings file {path!r} cannot be used: {broken.message.partition(': ')[2]}")
    return settings


def _settings_files(folders: ClaudeFolders) -> Iterator[_File]:
    """Yield the settings files, highest precedence first. Raises `OptionsError` if managed settings cannot be listed."""
    if folders.managed_dir is not None:
        more = os.path.join(folders.managed_dir, "managed-settings.d")
        try:
            names = sorted(os.listdir(more), reverse=True)
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise OptionsError(f"the managed settings in {more!r} cannot be listed: {error.strerror}") from error
            names = []
        # Files in the folder beside the main file take precedence over it, and later names over earlier ones.
        for name in (name for name in names if name.endswith(".json") and not name.startswith(".")):
            yield _File(os.path.join(more, name), "managed", None)
        yield _File(os.path.join(folders.managed_dir, "managed-settings.json"), "managed", None)
    for name, scope, is_read in (
        ("settings.local.json", "local", folders.reads_local),
        ("settings.json", "project", folders.reads_project),
    ):
        for folder in dict.fromkeys((folders.folders[-1], folders.project_dir)) if is_read else ():
            path = os.path.join(folder, ".claude", name)
            yield _File(path, scope, folders.boundary, folder != folders.project_dir)
    if folders.user_dir is not None:
        yield _File(os.path.join(folders.user_dir, "settings.json"), "user", None)


def _read_file(file: _File) -> Settings | None:
    try:
        os.lstat(file.path)
    except OSError as error:
        is_others = isinstance(error, PermissionError) and file.scope == "user"  # the home folder of another user
        return None if error.errno in _NO_FILE or is_others else _inaccessible(file, error)
    try:
        # Some editors begin a file with a byte order mark, which `json` refuses.
        text = read_text(file.path, boundary=file.boundary, max_bytes=MAX_SETTINGS_BYTES).removeprefix("\ufeff")
        data = json.loads(text, object_pairs_hook=refuse_repeated_keys)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno not in (None, *_NO_FILE):
            return _inaccessible(file, error)
        note = Diagnostic("settings-unreadable", f"the file is left out: {error}", path=file.path, is_error=True)
        return Settings(diagnostics=(note,))
    if not isinstance(data, dict):
        note = Diagnostic(
            "settings-unreadable", "the file is ignored: it is not a JSON object", path=file.path, is_error=True
        )
        return Settings(diagnostics=(note,))
    return Entries(file.path, file.scope, text).settings(data)


def refuse_inaccessible(settings: Settings) -> None:
    """Raise `OptionsError` if a settings file cannot be read: it may forbid what the run is about to do."""
    for note in settings.diagnostics:
        if note.code == INACCESSIBLE:
            raise OptionsError(
                f"{note.located}; no run begins without the rules and hooks that they may contain: make the file readable, "
                "or leave its source out (--setting-sources, options.setting_sources)"
            )


def _inaccessible(file: _File, error: OSError) -> Settings:
    text = f"the settings cannot be read: {error.strerror}"
    return Settings(diagnostics=(Diagnostic(INACCESSIBLE, text, path=file.path, is_error=True),))


def as_json_values(value: Any) -> Any:
    """Convert frontmatter, whose values are all strings, to the values of a JSON file."""
    if isinstance(value, dict):
        return {key: as_json_values(each) for key, each in value.items()}
    if isinstance(value, list):
        return [as_json_values(each) for each in value]
    if value in ("true", "false"):
        return value == "true"
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10 else value


# Keys that are only read from managed settings.
_MANAGED_KEYS = ("allowManagedHooksOnly", "allowManagedPermissionRulesOnly")
# Keys that are never read from a project's files.
_OWN_KEYS = ("enableAllProjectMcpServers", "enabledMcpjsonServers")


class Entries:
    """A reader of the entries of one file; it omits entries of the wrong type, and adds a finding for each to `notes`."""

    def __init__(self, path: str, scope: str, text: str = "") -> None:
        self.path = path
        self.scope = scope
        self.source = text
        self.notes: list[Diagnostic] = []

    def settings(self, data: Mapping[str, Any]) -> Settings:
        """Read the content of a settings file."""
        permissions = self.object(data, "permissions")
        values = {key: value for key, value in data.items() if key not in words("setting", "does", "narrower", "ours")}
        self.notes += self.words("setting", _dotted(data))
        if self.scope != "managed":
            for key in data.keys() & {*_MANAGED_KEYS}:
                self.note("settings-key", f"{key} has an effect in managed settings only", key)
        is_own = self.scope in ("managed", "user")
        for key in data.keys() & {*_OWN_KEYS} if not is_own else ():
            self.note("settings-key", f"{key} has an effect in the user's own settings only", key)
        managed = data if self.scope == "managed" else {}
        enabled = ["*"] if is_own and self.flag(data, "enableAllProjectMcpServers") else []
        return Settings(
            allow=self.rules(permissions, "allow"),
            ask=self.rules(permissions, "ask"),
            deny=self.rules(permissions, "deny"),
            labels=self.rules(permissions, "labels", one=True),
            additional_dirs=self.rules(permissions, "additionalDirectories"),
            hooks=tuple(self.hooks(self.object(data, "hooks"))),
            env=self.env(self.object(data, "env")),
            model=self.text(data, "model"),
            default_mode=self.text(permissions, "defaultMode"),
            bypass_disabled=permissions.get("disableBypassPermissionsMode") in ("disable", True),
            agents_md=self.choice(data, "agentsMd", ("fallback", "both", "never")),
            outside_imports=self.flag(data, "allowOutsideImports"),
            skill_precedence=self.choice(data, "skillPrecedence", ("project", "user")),
            enforce_allowed_tools=self.flag(data, "enforceAllowedTools"),
            text_commands=self.flag(data, "enableSkillShellExecution"),
            text_commands_disabled=self.flag(data, "disableSkillShellExecution"),
            hooks_disabled=self.flag(data, "disableAllHooks"),
            managed_hooks_only=self.flag(managed, "allowManagedHooksOnly"),
            managed_rules_only=self.flag(managed, "allowManagedPermissionRulesOnly"),
            output_style=self.text(data, "outputStyle"),
            model_names={
                word.casefold(): model
                for word, model in self.object(data, "modelNames").items()
                if isinstance(model, str) and model
            },
            plugins={
                name: value for name, value in self.object(data, "enabledPlugins").items() if isinstance(value, bool)
            },
            marketplaces=self.object(data, "extraKnownMarketplaces"),
            memory_excludes=self.texts(data, "claudeMdExcludes"),
            servers_enabled=(*enabled, *self.texts(data if is_own else {}, "enabledMcpjsonServers")),
            servers_disabled=self.texts(data, "disabledMcpjsonServers"),
            values=values,
            sources=(self.path,),
            diagnostics=tuple(self.notes),
        )

    def words(self, kind: str, used: Iterable[str]) -> list[Diagnostic]:
        """Return a finding for each of these keys that has no effect here."""
        notes = word_notes(kind, used, "settings-key", lambda word: self.line_of(word.rpartition(".")[2]))
        return [replace(note, path=self.path) for note in notes]

    def note(self, code: str, message: str, text: str) -> None:
        """Add a finding at the line that contains this text in quotes."""
        self.notes.append(Diagnostic(code, message, self.line_of(text), self.path))

    def line_of(self, text: str) -> int:
        """The number of the first line that contains this text in quotes; 0 if none does."""
        # The file may contain the text with or without escapes.
        at = self.source.find(json.dumps(text, ensure_ascii=False))
        at = at if at >= 0 else self.source.find(json.dumps(text))
        return self.source.count("\n", 0, at) + 1 if at >= 0 else 0

    def skip(self, where: str, expected: str) -> None:
        key = where.partition("[")[0].rpartition(".")[2]
        self.note("settings-entry", f"{where} is ignored: it must be {expected}", key)

    def object(self, data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
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

    def choice(self, data: Mapping[str, Any], key: str, choices: Sequence[str]) -> Any:
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

    def texts(self, data: Mapping[str, Any], key: str) -> tuple[str, ...]:
        return tuple(each for each in self.list(data, key, key) if isinstance(each, str))

    def rules(self, permissions: Mapping[str, Any], key: str, *, one: bool = False) -> tuple[SettingsRule, ...]:
        """Read the rules in a list; with `one`, a single string also counts."""
        where = f"permissions.{key}"
        rules: list[SettingsRule] = []
        if one and isinstance(permissions.get(key), str):
            permissions = {key: [permissions[key]]}
        for i, rule in enumerate(self.list(permissions, key, where)):
            if isinstance(rule, str) and rule.strip():
                rules.append(SettingsRule(rule.strip(), self.path, self.scope, self.line_of(rule)))
            else:
                self.skip(f"{where}[{i}]", "text")
        return tuple(rules)

    def env(self, env: Mapping[str, Any]) -> dict[str, str]:
        usable: dict[str, str] = {}
        self.notes += self.words("environment", [name for name in env if row_of("environment", name) is not None])
        for name, value in env.items():
            is_name = name and "=" not in name and "\0" not in name
            if is_name and isinstance(value, str | int | float) and "\0" not in str(value):
                # The file has `true`, which `str` would write as `True`.
                usable[name] = str(value).lower() if isinstance(value, bool) else str(value)
            else:
                self.skip(f"env.{name}", "a name with a text value")
        return usable

    def hooks(self, hooks: Mapping[str, Any], root: str = "") -> Iterator[CommandHook]:
        """Yield the hooks of a settings file, a plugin or a skill."""
        for event in hooks:
            for i, group in enumerate(self.list(hooks, event, f"hooks.{event}")):
                where = f"hooks.{event}[{i}]"
                if not isinstance(group, dict) or not isinstance(group.get("matcher", ""), str):
                    self.skip(where, "an object with matcher and hooks")
                    continue
                for j, entry in enumerate(self.list(group, "hooks", f"{where}.hooks")):
                    hook = self.hook(event, group.get("matcher", ""), entry, f"{where}.hooks[{j}]", root)
                    if hook is not None:
                        yield hook

    def hook(self, event: str, matcher: str, entry: Any, where: str, root: str) -> CommandHook | None:
        """Read one hook; return None, and add a finding, if it cannot run here."""
        kind = entry.get("type") if isinstance(entry, dict) else None
        if isinstance(kind, str) and kind != "command":
            row = row_of("hook-type", kind)
            advice = row.how if row is not None else f"use one of {', '.join(sorted(words('hook-type', 'does')))}"
            self.note("settings-entry", f"hooks of type {kind[:80]} are not run here: {advice}", event)
            return None
        if not isinstance(entry, dict) or kind is None:
            self.skip(where, "an object with type command, a command and, optionally, a timeout above 0, in seconds")
            return None
        command, timeout, args = entry.get("command"), entry.get("timeout"), entry.get("args")
        is_number = timeout is None or (
            isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout > 0
        )
        is_list = args is None or (isinstance(args, list) and all(isinstance(each, str) for each in args))
        if not isinstance(command, str) or not command.strip() or not is_number or not is_list:
            self.skip(where, "an object with type command, a command and, optionally, a timeout above 0, in seconds")
            return None
        shell = entry.get("shell", "bash")
        if shell != "bash" and args is None:
            self.note(
                "settings-entry",
                f"hooks for the shell {shell!r:.80} are not supported here: write them for bash",
                event,
            )
            return None
        self.notes += self.words("hook", entry)
        return CommandHook(
            event,
            matcher,
            command,
            self.path,
            self.scope,
            timeout,
            tuple(args) if args is not None else None,
            self.text(entry, "if") or "",
            self.flag(entry, "async") or self.flag(entry, "asyncRewake"),
            self.flag(entry, "once"),
            root,
        )


def _dotted(data: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the keys of settings as in the table: dotted for keys of an object that the table lists, else the key itself."""
    for key, value in data.items():
        word = prefix + key
        row = row_of("setting", word)
        has_more = isinstance(value, dict) and any(key.startswith(f"{word}.") for key in words("setting"))
        if has_more and (row is None or row.state != "no"):
            yield from _dotted(value, f"{word}.")
        else:
            yield word


def _under(high: Settings, low: Settings) -> Settings:
    """Merge two settings; a single value is taken from `high` if it has one."""
    values: dict[str, Any] = {}
    for name, above in vars(high).items():
        below = getattr(low, name)
        if name in _JOINED:
            values[name] = _JOINED[name](above, below)
        else:  # flags are true if any file sets them; other values are those of the highest file that has one
            values[name] = below if above is None or above is False else above
    return Settings(**values)


def _joined(high: tuple[SettingsRule, ...], low: tuple[SettingsRule, ...]) -> tuple[SettingsRule, ...]:
    texts = {rule.text for rule in high}
    return high + tuple(rule for rule in low if rule.text not in texts)


def _merged(high: Mapping[str, Any], low: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**low, **high}
    for key in high.keys() & low.keys():
        if isinstance(high[key], list) and isinstance(low[key], list):
            merged[key] = high[key] + [item for item in low[key] if item not in high[key]]
        elif isinstance(high[key], dict) and isinstance(low[key], dict):
            merged[key] = _merged(high[key], low[key])
    return merged


_JOINED: Mapping[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("allow", "ask", "deny", "additional_dirs"), _joined),
    # The author of a rule decides what it can loosen, so equal rules of several files are all kept.
    "labels": lambda high, low: high + low,
    **dict.fromkeys(("hooks", "sources", "withheld", "diagnostics"), lambda high, low: high + low),
    **dict.fromkeys(
        ("memory_excludes", "own_excludes", "servers_enabled", "servers_disabled"),
        lambda high, low: tuple(dict.fromkeys(high + low)),
    ),
    **dict.fromkeys(("env", "model_names", "plugins", "marketplaces"), lambda high, low: {**low, **high}),
    "values": _merged,
}


_GRANTS: Mapping[str, Callable[[Settings], Any]] = {
    "allow rules": lambda settings: settings.allow,
    "additional folders": lambda settings: settings.additional_dirs,
    "hooks": lambda settings: settings.hooks,
    "env": lambda settings: settings.env,
    "imports from outside": lambda settings: settings.outside_imports,
    "commands in text": lambda settings: settings.text_commands,
    # A grant as well: a user's hooks may forbid what the project wants to do.
    "no hooks at all": lambda settings: settings.hooks_disabled,
    "its skills before the user's": lambda settings: settings.skill_precedence == "project",
    "plugins": lambda settings: any(settings.plugins.values()),
    "a looser permission mode": lambda settings: settings.default_mode in LOOSE_MODES,
}


def _without_grants(settings: Settings, file: _File) -> Settings:
    grants = [name for name, value_of in _GRANTS.items() if value_of(settings)]
    # The user's memory may forbid what the project wants to do.
    settings = replace(settings, memory_excludes=(), own_excludes=settings.memory_excludes)
    if not grants:
        return settings
    mode = None if settings.default_mode in LOOSE_MODES else settings.default_mode
    sentence = f"{file.path} asks for {', '.join(grants)}"
    return replace(
        settings,
        allow=(),
        additional_dirs=(),
        hooks=(),
        env={},
        outside_imports=False,
        text_commands=False,
        hooks_disabled=False,
        skill_precedence=None if settings.skill_precedence == "project" else settings.skill_precedence,
        plugins={name: value for name, value in settings.plugins.items() if not value},
        default_mode=mode,
        withheld=(*settings.withheld, sentence),
    )
