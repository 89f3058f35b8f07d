"""Plugins: folders with their own skills, commands, agents, hooks and output styles, named `plugin:name`.

Nothing is downloaded. A plugin in the project is used while the project is trusted, as a part of what is trusted; a plugin
from elsewhere is used if a person has added it and its files have not changed since. Settings can disable any plugin, and
must enable one that a marketplace lists.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...errors import OptionsError, StorageError
from ...ground.diagnostic import Diagnostic
from ...ground.disk import path_below
from ...ground.frozen import frozen
from ...ground.loose import as_list, as_mapping, as_mappings
from ...skills.files import tree_sha256
from ...skills.index import SkillRoot
from ...skills.ledger import QUIET, word_notes, words
from .claude import MarkdownFile, markdown_below
from .granting import MARKETPLACE, marketplace_folder
from .marketplace import COMPONENTS, NAME, ListedPlugin, is_marketplace, listed_plugins, read_json, with_entry
from .private_json import KeptFile
from .settings import CommandHook, Entries, Settings

MANIFEST = os.path.join(".claude-plugin", "plugin.json")


@frozen
class Plugin:
    """A plugin. `id` is `name@marketplace`, `root` its real folder, `scope` is `plugin`, or `project` if it is part of one.

    `data` is the folder, which need not exist, for data that the plugin keeps across updates. With `shares_root`, the
    plugin's folder is that of the marketplace itself, and if the manifest names skills, only those belong to the plugin.
    With `only_named`, only what the manifest names is read.
    """

    id: str
    name: str
    root: str
    scope: str
    manifest: Mapping[str, Any]
    data: str = ""
    shares_root: bool = False
    only_named: bool = False

    def places(self, key: str, usual: str) -> list[str]:
        """The files and folders of one kind: those named in the manifest, else the usual one.

        Skills use both, unless the plugin shares its root or has only named files.
        """
        value = self.manifest.get(key)
        paths = [value] if isinstance(value, str) else [each for each in as_list(value) if isinstance(each, str)]
        places = self._there(paths)
        if (key == "skills" and not self.shares_root) or (not places if key == "skills" else not paths):
            usuals = [] if self.only_named and key not in self.manifest else [usual]
            places = [*self._there(usuals), *places]
        return list(dict.fromkeys(places))

    def _there(self, names: Iterable[str]) -> list[str]:
        paths = [path_below(self.root, each) for each in names]
        return [path for path in paths if path is not None and os.path.exists(path)]

    def inline(self, key: str) -> list[Mapping[str, Any]]:
        """The objects given inline under a key that may also name files."""
        value = self.manifest.get(key)
        return as_mappings(value if isinstance(value, list) else [value])

    def markdown(self, key: str, usual: str, problems: list[Diagnostic]) -> Iterator[MarkdownFile]:
        """Yield the plugin's `.md` files of one kind."""
        for place in self.places(key, usual):
            files: Iterable[MarkdownFile] = markdown_below(place, self.scope, self.root, problems)
            if os.path.isfile(place):
                files = [MarkdownFile(place, os.path.basename(place), self.scope, self.root)]
            yield from (
                replace(file, prefix=f"{self.name}:", plugin_root=self.root, plugin_data=self.data) for file in files
            )

    def skill_roots(self) -> list[SkillRoot]:
        """The folders of the plugin's skills."""
        is_one = not self.shares_root or "skills" not in self.manifest
        single = [self.root] if is_one and os.path.isfile(os.path.join(self.root, "SKILL.md")) else []
        folders = [*self.places("skills", "skills"), *single]
        return [
            SkillRoot(each, self.scope, self.root, (3, at), f"{self.name}:", self.root, self.data)
            for at, each in enumerate(folders)
        ]

    def hooks(self, problems: list[Diagnostic]) -> list[CommandHook]:
        """The plugin's hooks, from its manifest, the files named there, and `hooks/hooks.json` (unless `only_named`)."""
        usual = os.path.join("hooks", "hooks.json")
        sources: list[tuple[str, Any]] = [(os.path.join(self.root, MANIFEST), each) for each in self.inline("hooks")]
        paths, own = self.places("hooks", usual), os.path.join(self.root, usual)
        # A file that leads out of the plugin is read too, for its finding.
        is_read = os.path.isfile(own) and os.path.realpath(own) not in paths and not self.only_named
        paths += [own] if is_read else []
        sources += [(path, read_json(path, self.root, problems)) for path in dict.fromkeys(paths)]
        all_hooks: list[CommandHook] = []
        for path, content in sources:
            entries, data = Entries(path, self.scope), as_mapping(content)
            inner = entries.object(data, "hooks") if "hooks" in data else data
            hooks = entries.hooks({k: v for k, v in inner.items() if k != "description"}, self.root)
            all_hooks += [replace(hook, data=self.data) for hook in hooks]
            problems += entries.notes
        return all_hooks


# One of these makes a folder a plugin.
_PLACES = (MANIFEST, "SKILL.md", "skills", "commands", "agents", "output-styles", "hooks/hooks.json", ".mcp.json")


@frozen
class PluginSet:
    """The usable plugins with their contents, and the problems found in them and in the others."""

    plugins: tuple[Plugin, ...] = ()
    hooks: tuple[CommandHook, ...] = ()
    commands: tuple[MarkdownFile, ...] = ()
    agents: tuple[MarkdownFile, ...] = ()
    styles: tuple[MarkdownFile, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


class PluginRegistry:
    """The plugins that the person at this machine added, in one file, each with the digest of its files."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = KeptFile(path, "plugins")
        self.path = self._file.path

    def entries(self) -> dict[str, dict[str, str]]:
        """Each plugin's folder, digest and marketplace folder (if any), by id. Raises `StorageError` for a damaged file."""
        try:
            items = self._file.read().items()
            return {
                key: {"root": os.fspath(each["root"]), "digest": str(each["digest"]), "market": each.get("market", "")}
                for key, each in items
            }
        except (KeyError, TypeError) as error:
            raise StorageError(f"{self.path} cannot be read: {error!r}; move it aside to start afresh") from error

    def add(self, folder: str, wrong: list[Diagnostic]) -> list[str]:
        """Trust the current files of the plugin in a folder, or of all plugins of a marketplace; return their ids.

        Problems of plugins that cannot be loaded are appended to `wrong`. Raises `OptionsError` if there is no plugin that
        can be added, and `StorageError` if the registry cannot be written.
        """
        root = os.path.realpath(folder)
        if not os.path.isdir(root):
            raise OptionsError(f"{root} is not a folder: give one with {MANIFEST}, or with {MARKETPLACE}")
        listed: list[ListedPlugin | None] = [None]
        if is_marketplace(root):
            listed = [*listed_plugins(root, wrong)]
        elif not any(_has(root, name) for name in _PLACES):
            listed = []
        added: dict[str, dict[str, str]] = {}
        for one in listed:
            place, key = (root, f"{_name_of(root)}@local") if one is None else (one.folder, one.id)
            problems: list[Diagnostic] = []
            if load_plugin(key, place, "plugin", problems, one) is None:
                wrong += problems[-1:]
                continue
            try:
                added[key] = {"root": place, "digest": _digest(place, one), "market": "" if one is None else one.market}
            except OSError as error:
                wrong.append(Diagnostic.left_out("plugin", error, place))
        if not added:
            why = next((note.message for note in wrong if note.code not in QUIET), "")
            why = why or f"give a folder with {MANIFEST}, or with {MARKETPLACE}"
            raise OptionsError(f"{root} contains no plugin that can be added: {why}")
        with self._file.changing() as entries:
            entries.update(added)
        return sorted(added)

    def load(self, key: str, problems: list[Diagnostic]) -> Plugin | None:
        """Load an added plugin with its current files; return None, and add a finding, if it cannot be used.

        Raises KeyError for an id that was not added, and `StorageError` for a damaged registry.
        """
        entry = self.entries()[key]
        return load_plugin(key, entry["root"], "plugin", problems, _in_market(key, entry["market"]))

    def remove(self, name: str) -> bool:
        """Remove a plugin by its id, or all plugins with this name; return False if there are none.

        Raises `StorageError` if the registry cannot be read or written.
        """
        with self._file.changing() as entries:
            keys = [key for key in entries if name in (key, key.partition("@")[0])]
            for key in keys:
                del entries[key]
        return bool(keys)


def read_plugins(
    settings: Settings, registry: PluginRegistry | None, project_dir: str, data_dir: str | None = None
) -> PluginSet:
    """Read the plugins that settings enable, and those that a person added from a folder and no setting disables.

    Their data is below `data_dir`, each in a folder named after its id.
    """
    problems: list[Diagnostic] = []
    added: Mapping[str, Mapping[str, str]] = {}
    try:
        added = registry.entries() if registry is not None else {}
    except StorageError as error:
        problems.append(Diagnostic.left_out("plugin", error))
    switches = {key: True for key in added if key.endswith("@local")} | dict(settings.plugins)
    plugins: list[Plugin] = []
    for key in (key for key, is_wanted in switches.items() if is_wanted):
        scope = "plugin" if key in added else "project"
        listed = _listed(key, added, settings, project_dir)
        if listed is None and key not in added:
            advice = (
                f"the plugin {key[:80]!r} is not installed: get its folder, and run `openagentic-sdk plugins add DIR`"
            )
            problems.append(Diagnostic("plugin-missing", advice))
            continue
        place = added[key]["root"] if listed is None else listed.folder
        try:
            # A plugin of the project is part of what the project's trust covers.
            is_same = scope == "project" or (
                bool(listed) == bool(added[key]["market"]) and _digest(place, listed) == added[key]["digest"]
            )
        except (OSError, ValueError):  # it no longer exists, or the registry contains no path
            is_same = False
        if not is_same:
            text = (
                f"the files of plugin {key} are gone or have changed since it was added: look at them and add it again"
            )
            problems.append(Diagnostic("plugin-changed", text, path=place, is_error=True))
            continue
        plugin = load_plugin(key, place, scope, problems, listed)
        if plugin is not None:
            name = re.sub(r"[^A-Za-z0-9_-]", "-", key)
            plugins.append(replace(plugin, data="" if data_dir is None else os.path.join(data_dir, name)))
    commands, agents, styles = (
        tuple(file for plugin in plugins for file in plugin.markdown(kind, usual, problems))
        for kind, usual in (("commands", "commands"), ("agents", "agents"), ("outputStyles", "output-styles"))
    )
    hooks = tuple(hook for plugin in plugins for hook in plugin.hooks(problems))
    return PluginSet(tuple(plugins), hooks, commands, agents, styles, tuple(problems))


def _listed(
    key: str, added: Mapping[str, Mapping[str, str]], settings: Settings, project_dir: str
) -> ListedPlugin | None:
    """The marketplace entry of a plugin that a person added, or that is in the project and covered by its trust, if any."""
    if key in added:
        root = added[key]["market"]
    else:
        root = marketplace_folder(settings.marketplaces.get(key.partition("@")[2]), os.path.realpath(project_dir)) or ""
    return _in_market(key, root)


def _in_market(key: str, root: str) -> ListedPlugin | None:
    plugins = listed_plugins(root, []) if root else []
    return next((one for one in plugins if one.id == key), None)


def _digest(place: str, listed: ListedPlugin | None) -> str:
    files = tree_sha256(place)
    return files if listed is None else hashlib.sha256(f"{files}\0{listed.digest}".encode()).hexdigest()


def load_plugin(
    key: str, folder: str, scope: str, problems: list[Diagnostic], listed: ListedPlugin | None = None
) -> Plugin | None:
    """Load the plugin in a folder, as its marketplace lists it; return None, and add a finding, if it cannot be used."""
    root = os.path.realpath(folder)
    path = os.path.join(root, MANIFEST)
    manifest = read_json(path, root, problems) if _has(root, MANIFEST) else None
    if manifest is None and _has(root, MANIFEST):
        return None
    name = manifest.get("name") if isinstance(manifest, dict) else None
    if manifest is not None and (not isinstance(name, str) or not NAME.fullmatch(name)):
        problems.append(Diagnostic.left_out("plugin", "it has no name of letters, digits, '.', '_' and '-'", path))
        return None
    try:
        merged = with_entry(manifest, listed) if listed is not None else manifest or {"name": os.path.basename(root)}
    except ValueError as error:
        problems.append(Diagnostic.left_out("plugin", error, path))
        return None
    name, wrong = merged["name"], _wrong(merged)
    if not NAME.fullmatch(name) or wrong:
        what = (
            wrong
            or f"its folder's name {name[:80]!r} contains more than letters, digits, '.', '_' and '-', or begins with one "
            "of the last three: give it a manifest"
        )
        problems.append(Diagnostic.left_out("plugin", what, path))
        return None
    shares_root = listed is not None and listed.folder == listed.market
    only_named = shares_root and listed is not None and not listed.is_strict and any(k in merged for k in COMPONENTS)
    there = [] if shares_root else [each for each in words("plugin-file") if os.path.lexists(os.path.join(root, each))]
    notes = [
        *word_notes("plugin", _dotted(manifest or {}), "plugin-part"),
        *word_notes("plugin-file", sorted(there), "plugin-part"),
    ]
    problems += [replace(note, path=path) for note in notes]
    return Plugin(key, name, root, scope, merged, shares_root=shares_root, only_named=only_named)


def _dotted(manifest: Mapping[str, Any]) -> Iterator[str]:
    for key, value in manifest.items():
        is_known = key == "experimental" and isinstance(value, dict) and value
        yield from (f"experimental.{inner}" for inner in value) if is_known else (key,)


def _wrong(manifest: Mapping[str, Any]) -> str:
    """The problem with the paths of a manifest; "" if none exists."""
    for key in COMPONENTS:
        kinds = str | list | dict if key in ("hooks", "mcpServers") else str | list
        if not isinstance(manifest.get(key, []), kinds):
            return f"{key} is neither a path nor a list of paths"
    return ""


def _has(root: str, name: str) -> bool:
    return os.path.lexists(os.path.join(root, name))


def _name_of(root: str) -> str:
    manifest = read_json(os.path.join(root, MANIFEST), root, None) if _has(root, MANIFEST) else {}
    name = as_mapping(manifest).get("name")
    return name if isinstance(name, str) else os.path.basename(root)
