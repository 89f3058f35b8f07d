"""Plugins: folders with skills, commands, agents, hooks and output styles of their own, named `plugin:name`.

Nothing is downloaded. A plugin in the project counts while the project is trusted, as a part of what is trusted; one from
elsewhere counts when a person has added it, and as long as its files are what they were then.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...errors import OptionsError, StorageError
from ...ground.checks import refuse_repeated_keys
from ...ground.diagnostic import Diagnostic
from ...ground.disk import path_below
from ...ground.frozen import frozen
from ...ground.loose import as_list, as_mapping, as_mappings
from ...skills.files import read_bytes, tree_sha256
from ...skills.index import SkillRoot
from .claude import MarkdownFile, markdown_below
from .granting import MARKETPLACE, marketplace_folder
from .private_json import KeptFile
from .settings import CommandHook, Entries, Settings

MAX_MANIFEST_BYTES = 1024 * 1024
MANIFEST = os.path.join(".claude-plugin", "plugin.json")
_KEYS = frozenset({
    "$schema", "name", "version", "description", "author", "homepage", "repository", "license", "keywords", "metadata",
    "displayName", "skills", "commands", "agents", "hooks", "outputStyles", "mcpServers",
})  # fmt: skip
# What a plugin may hold besides that has no effect here.
_UNUSED = (".lsp.json", "bin", "workflows", "monitors", "settings.json", "themes")


@frozen
class Plugin:
    """A plugin. `id` is `name@marketplace`, `root` its real folder, `scope` is `plugin`, or `project` if a part of one.

    `data` is the folder of what it keeps through its updates; it need not exist.
    """

    id: str
    name: str
    root: str
    scope: str
    manifest: Mapping[str, Any]
    data: str = ""

    def places(self, key: str, usual: str) -> list[str]:
        """The files and folders of one kind: those that the manifest names, else the usual one; for skills both."""
        named = self.manifest.get(key)
        given = [named] if isinstance(named, str) else [each for each in as_list(named) if isinstance(each, str)]
        if key == "skills" or not given:
            given = [usual, *given]
        paths = [path_below(self.root, each) for each in given]
        return [path for path in paths if path is not None and os.path.exists(path)]

    def markdown(self, key: str, usual: str, problems: list[Diagnostic]) -> Iterator[MarkdownFile]:
        """Its `.md` files of one kind."""
        for place in self.places(key, usual):
            files: Iterable[MarkdownFile] = markdown_below(place, self.scope, self.root, problems)
            if os.path.isfile(place):
                files = [MarkdownFile(place, os.path.basename(place), self.scope, self.root)]
            yield from (
                replace(file, prefix=f"{self.name}:", plugin_root=self.root, plugin_data=self.data) for file in files
            )

    def skill_roots(self) -> list[SkillRoot]:
        """Where its skills are."""
        single = [self.root] if os.path.isfile(os.path.join(self.root, "SKILL.md")) else []
        folders = [*self.places("skills", "skills"), *single]
        return [
            SkillRoot(each, self.scope, self.root, (3, at), f"{self.name}:", self.root, self.data)
            for at, each in enumerate(folders)
        ]

    def hooks(self, problems: list[Diagnostic]) -> list[CommandHook]:
        """Its hooks, from `hooks/hooks.json`, the files that the manifest names, or the manifest itself."""
        inline, usual = self.manifest.get("hooks"), os.path.join("hooks", "hooks.json")
        sources = [(os.path.join(self.root, MANIFEST), inline)] if isinstance(inline, dict) else []
        paths, own = self.places("hooks", usual), os.path.join(self.root, usual)
        # One that leads out of the plugin is read too, for its finding.
        paths += [own] if os.path.isfile(own) and os.path.realpath(own) not in paths else []
        sources += [(path, _read_json(path, self.root, problems)) for path in dict.fromkeys(paths)]
        found: list[CommandHook] = []
        for path, read in sources:
            entries, data = Entries(path, self.scope), as_mapping(read)
            inner = entries.object(data, "hooks") if "hooks" in data else data
            hooks = entries.hooks({k: v for k, v in inner.items() if k != "description"}, self.root)
            found += [replace(hook, data=self.data) for hook in hooks]
            problems += entries.notes
        return found


@frozen
class PluginSet:
    """The plugins that count with what they bring, and what is wrong with them and with those that do not."""

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
        """Folder and digest by id. Raises `StorageError` when the file is damaged."""
        try:
            kept = self._file.read().items()
            return {key: {"root": os.fspath(each["root"]), "digest": str(each["digest"])} for key, each in kept}
        except (KeyError, TypeError) as error:
            raise StorageError(f"{self.path} cannot be read: {error!r}; move it aside to begin anew") from error

    def add(self, folder: str) -> list[str]:
        """Trust the plugin in a folder, or all of a marketplace's, with the files that it has now; gives their ids.

        Raises `OptionsError` when there is none, or when one cannot be loaded.
        """
        root = os.path.realpath(folder)
        market = _read_json(os.path.join(root, MARKETPLACE), root, None) if _has(root, MARKETPLACE) else None
        found = dict(plugins_of(root, market)) if isinstance(market, dict) else {f"{_name_of(root)}@local": root}
        added: dict[str, dict[str, str]] = {}
        for key, place in found.items():
            problems: list[Diagnostic] = []
            if load_plugin(key, place, "plugin", problems) is None:
                raise OptionsError(f"{place} is no plugin: {problems[-1].message}")
            try:
                added[key] = {"root": place, "digest": tree_sha256(place)}
            except OSError as error:
                raise OptionsError(f"{place} cannot be added: {error}") from error
        if not found:
            raise OptionsError(f"{root} names no plugin: give a folder with {MANIFEST}, or with {MARKETPLACE}")
        with self._file.changing() as entries:
            entries.update(added)
        return sorted(found)

    def remove(self, name: str) -> bool:
        """Forget a plugin by its id or name; False when there is none."""
        with self._file.changing() as entries:
            known = [key for key in entries if name in (key, key.partition("@")[0])]
            for key in known:
                del entries[key]
        return bool(known)


def read_plugins(
    settings: Settings, registry: PluginRegistry | None, project_dir: str, data_dir: str | None = None
) -> PluginSet:
    """The plugins that settings switch on, and those that a person added by themselves and nothing switches off.

    What they keep lies below `data_dir`, each in a folder with the name of its id.
    """
    problems: list[Diagnostic] = []
    added: Mapping[str, Mapping[str, str]] = {}
    try:
        added = registry.entries() if registry is not None else {}
    except StorageError as error:
        problems.append(Diagnostic.left_out("plugin", error))
    wanted = {key: True for key in added if key.endswith("@local")} | dict(settings.plugins)
    found: list[Plugin] = []
    for key in (key for key, is_wanted in wanted.items() if is_wanted):
        scope = "plugin" if key in added else "project"
        place = added[key]["root"] if key in added else _in_project(key, settings, project_dir)
        if place is None:
            advice = f"the plugin {key[:80]!r} is not here: get its folder, and run `openagentic-sdk plugins add DIR`"
            problems.append(Diagnostic("plugin-missing", advice))
            continue
        try:
            is_same = scope == "project" or tree_sha256(place) == added[key]["digest"]
        except (OSError, ValueError):  # it is gone, or the registry holds no path
            is_same = False
        if not is_same:
            text = f"the files of the plugin {key} changed since it was added: look at them and add it again"
            problems.append(Diagnostic("plugin-changed", text, path=place, is_error=True))
            continue
        plugin = load_plugin(key, place, scope, problems)
        if plugin is not None:
            name = re.sub(r"[^A-Za-z0-9_-]", "-", key)
            found.append(replace(plugin, data="" if data_dir is None else os.path.join(data_dir, name)))
    commands, agents, styles = (
        tuple(file for plugin in found for file in plugin.markdown(kind, usual, problems))
        for kind, usual in (("commands", "commands"), ("agents", "agents"), ("outputStyles", "output-styles"))
    )
    hooks = tuple(hook for plugin in found for hook in plugin.hooks(problems))
    return PluginSet(tuple(found), hooks, commands, agents, styles, tuple(problems))


def load_plugin(key: str, folder: str, scope: str, problems: list[Diagnostic]) -> Plugin | None:
    """The plugin in a folder; None, and a finding, when its manifest cannot be used."""
    root = os.path.realpath(folder)
    path = os.path.join(root, MANIFEST)
    manifest = _read_json(path, root, problems) if _has(root, MANIFEST) else {"name": os.path.basename(root)}
    if not isinstance(manifest, dict):
        return None
    name = manifest.get("name")
    wrong = next((k for k in ("skills", "commands", "agents") if not isinstance(manifest.get(k, []), str | list)), None)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or wrong:
        what = "it has no name of letters, digits and hyphens"
        what = f"{wrong} is neither a path nor a list of paths" if wrong else what
        problems.append(Diagnostic.left_out("plugin", what, path))
        return None
    notes = [f"{each} has no effect here" for each in manifest if each not in _KEYS]
    notes += [
        f"{each} of the plugin {name} has no effect here"
        for each in _UNUSED
        if os.path.lexists(os.path.join(root, each))
    ]
    problems += [Diagnostic("plugin-part", note, path=path) for note in notes]
    return Plugin(key, name, root, scope, manifest)


def plugins_of(root: str, market: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The plugins of a marketplace that stand in its own folder: id and folder."""
    base = as_mapping(market.get("metadata")).get("pluginRoot")
    for entry in as_mappings(market.get("plugins")):
        source, name = entry.get("source"), entry.get("name")
        if not isinstance(source, str) or not isinstance(name, str):
            continue
        below = os.path.join(base, source) if isinstance(base, str) and not source.startswith("./") else source
        place = path_below(root, below)
        if place is not None and os.path.isdir(place):
            yield f"{name}@{market.get('name')}", place


def _in_project(key: str, settings: Settings, project_dir: str) -> str | None:
    """The folder of a plugin of a marketplace that is part of the project, whose trust covers it."""
    root = os.path.realpath(project_dir)
    folder = marketplace_folder(settings.marketplaces.get(key.partition("@")[2]), root)
    if folder is None:
        return None
    market = _read_json(os.path.join(folder, MARKETPLACE), root, [])
    return dict(plugins_of(folder, market)).get(key) if isinstance(market, dict) else None


def _has(root: str, name: str) -> bool:
    return os.path.lexists(os.path.join(root, name))


def _name_of(root: str) -> str:
    manifest = _read_json(os.path.join(root, MANIFEST), root, None) if _has(root, MANIFEST) else {}
    name = as_mapping(manifest).get("name")
    return name if isinstance(name, str) else os.path.basename(root)


def _read_json(path: str, boundary: str, problems: list[Diagnostic] | None) -> Any:
    """A JSON file below a real folder; None, and a finding or an `OptionsError`, when it cannot be read."""
    try:
        text = read_bytes(path, boundary=boundary, max_bytes=MAX_MANIFEST_BYTES)
        return json.loads(text, object_pairs_hook=refuse_repeated_keys)
    except (OSError, ValueError, RecursionError) as error:
        if problems is None:
            raise OptionsError(f"{path} cannot be read: {error}") from error
        problems.append(Diagnostic.left_out("plugin", f"left out: {error}", path))
        return None
