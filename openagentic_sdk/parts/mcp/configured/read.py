"""Read the server entries in files verbatim: nothing is expanded, decided or started here.

    local    the user's own, for one project: `servers.json` in this library's home, and `~/.claude.json`
    project  `.mcp.json` at the project's root, which is untrusted
    user     the user's own, for every project: the same two files as local
    plugin   `.mcp.json` or the manifest of a plugin, under prefixed names

If several scopes define a name, the first of these applies. A damaged file is omitted as a whole; an entry that is not an
object, or is too long, is omitted alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ....errors import FileRefusedError, StorageError
from ....ground.diagnostic import Diagnostic
from ....ground.disk import is_within, may_exist
from ....ground.frozen import frozen
from ....ground.text import visible
from ....skills.files import read_bytes
from ...project.claude import MAX_CLAUDE_JSON_BYTES, claude_json
from ...project.plugins import MANIFEST, Plugin
from ...project.private_json import KeptFile
from ...project.project import OpenedProject

PROJECT_FILE = ".mcp.json"
MAX_FILE_BYTES = 1024 * 1024
# Anybody may have written a project's file, and each of its entries is shown to a person and may become a process.
MAX_SERVERS = 100
# Longer entries are refused: no person would read that much before agreeing.
MAX_ENTRY_CHARS = 16 * 1024


@frozen
class ServerEntry:
    """One entry: its `name`, its `scope`, the file that contains it, and its content.

    `root` is the real folder of its project, empty in the user scope and for a plugin that a person added; `plugin_root` is
    the value of `${CLAUDE_PLUGIN_ROOT}`, `plugin_data` that of `${CLAUDE_PLUGIN_DATA}`. `hides` are the scopes of other
    entries with this name, which do not apply.
    """

    name: str
    scope: str
    source: str
    entry: Mapping[str, Any]
    root: str = ""
    plugin_root: str = ""
    plugin_data: str = ""
    hides: tuple[str, ...] = ()

    @property
    def in_milliseconds(self) -> bool:
        """Whether `timeout` is in milliseconds, as it is in all files that Claude Code reads, but not in our own."""
        return self.scope in ("project", "plugin") or os.path.basename(self.source) == ".claude.json"

    @property
    def is_own(self) -> bool:
        """Whether the person at this machine wrote the entry, or added the plugin that contains it."""
        return self.scope in ("local", "user", "plugin")


@frozen
class ServerEntries:
    """The entries that apply, one for each name and sorted by name, and the problems with the others."""

    entries: tuple[ServerEntry, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()

    def find(self, name: str) -> ServerEntry | None:
        """The entry with this name, or None."""
        return next((entry for entry in self.entries if entry.name == name), None)


def read_entries(project: OpenedProject, own: KeptFile | None) -> ServerEntries:
    """Read the entries of all files that the project's setting sources permit; `own` is `servers.json`."""
    problems: list[Diagnostic] = []
    by_name: dict[str, ServerEntry] = {}
    for entry in _in_order(project, own, problems):
        earlier = by_name.get(entry.name)
        if earlier is None:
            by_name[entry.name] = entry
        elif entry.scope not in (earlier.scope, *earlier.hides):
            hides = (*earlier.hides, entry.scope)
            by_name[entry.name] = ServerEntry(**{**vars(earlier), "hides": hides})
    return ServerEntries(tuple(by_name[name] for name in sorted(by_name)), tuple(problems))


def _in_order(project: OpenedProject, own: KeptFile | None, problems: list[Diagnostic]) -> Iterator[ServerEntry]:
    folders, root = project.folders, os.path.realpath(project.root)
    scopes, path = _own_entries(own, problems), claude_json(folders)
    is_there = path is not None and may_exist(path)
    claude = read_json_file(path or "", None, problems, MAX_CLAUDE_JSON_BYTES) if is_there else {}
    projects = _object(claude, "projects")
    if folders.reads_local:
        yield from _entries(_object(scopes.get("local"), root), "local", own.path if own else "", problems, root)
        # Claude Code stores the project's path as it was given, which may lead through links.
        for place in dict.fromkeys((root, project.root)):
            servers = _object(projects.get(place), "mcpServers")
            yield from _entries(servers, "local", path or "", problems, root)
    if folders.reads_project:
        file = os.path.join(project.root, PROJECT_FILE)
        if may_exist(file):
            data = read_json_file(file, folders.boundary, problems)
            for key in data.keys() - {"mcpServers", "$schema"}:
                problems.append(Diagnostic("mcp-key", f"{visible(key)[:100]} has no effect here", path=file))
            servers = data.get("mcpServers")
            yield from _entries(servers, "project", file, problems, root)
    if folders.user_dir is not None:
        yield from _entries(scopes.get("user"), "user", own.path if own else "", problems)
        yield from _entries(claude.get("mcpServers"), "user", path or "", problems)
    for plugin in project.plugins.plugins:
        yield from plugin_entries(plugin, problems, root)


def _own_entries(own: KeptFile | None, problems: list[Diagnostic]) -> dict[str, Any]:
    try:
        return {} if own is None else own.read()
    except StorageError as error:
        problems.append(Diagnostic("mcp-file", str(error), is_error=True))
        return {}


def plugin_server_name(plugin: str, server: str) -> str:
    """The unique name of a plugin's server: `plugin_<plugin>_<server>`, shortened to fit into a tool name."""
    whole = f"plugin_{plugin}_{server}"
    name = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9_-]", "-", whole)).rstrip("_")
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return name if name == whole and len(name) <= 40 else f"{name[:31].rstrip('_')}-{digest}"


def plugin_entries(plugin: Plugin, problems: list[Diagnostic], root: str) -> Iterator[ServerEntry]:
    """Yield a plugin's servers: from its `.mcp.json` (unless `only_named`), its manifest, and the files that the manifest
    names.
    """
    manifest = os.path.join(plugin.root, MANIFEST)
    inline_servers = plugin.manifest.get("mcpServers")
    inline: dict[str, Any] = {name: entry for servers in plugin.inline("mcpServers") for name, entry in servers.items()}
    sources: list[tuple[str, Any]] = [(manifest, inline)] if inline else []
    usual = () if plugin.only_named else (PROJECT_FILE,)
    for each in (
        *usual,
        *(
            [inline_servers]
            if isinstance(inline_servers, str)
            else inline_servers
            if isinstance(inline_servers, list)
            else ()
        ),
    ):
        path = os.path.realpath(os.path.join(plugin.root, each)) if isinstance(each, str) else ""
        # A plugin's manifest may name a path with `..`, or a link that leads out of the plugin.
        if is_within(path, plugin.root) and os.path.isfile(path):
            data = read_json_file(path, plugin.root, problems)
            sources.append((path, data.get("mcpServers", data)))
    for path, servers in dict(sources).items():
        is_added = plugin.scope == "plugin"
        for entry in _entries(servers, "plugin" if is_added else "project", path, problems, "" if is_added else root):
            name = plugin_server_name(plugin.name, entry.name)
            yield ServerEntry(name, entry.scope, path, entry.entry, entry.root, plugin.root, plugin_data=plugin.data)


def _entries(
    servers: Any, scope: str, source: str, problems: list[Diagnostic], root: str = ""
) -> Iterator[ServerEntry]:
    if servers is None:
        return
    if not isinstance(servers, Mapping):
        problems.append(
            Diagnostic("mcp-file", "its mcpServers is not an object and is ignored", path=source, is_error=True)
        )
        return
    if len(servers) > MAX_SERVERS:
        text = f"it names {len(servers)} servers, and only the first {MAX_SERVERS} are used"
        problems.append(Diagnostic("mcp-file", text, path=source, is_error=True))
    for name, entry in list(servers.items())[:MAX_SERVERS]:
        why = _unreadable(entry)
        if why is not None:
            text = f"the server {visible(str(name))[:100]!r} is left out: {why}"
            problems.append(Diagnostic("mcp-server", text, path=source, is_error=True))
            continue
        yield ServerEntry(name, scope, source, entry, root)


def _unreadable(entry: Any) -> str | None:
    """The reason why an entry cannot be shown to a person for agreement; None if it can."""
    if not isinstance(entry, Mapping):
        return "it is not an object"
    try:
        is_short = len(json.dumps(entry)) <= MAX_ENTRY_CHARS
    except RecursionError:
        is_short = False
    return None if is_short else f"it has more than {MAX_ENTRY_CHARS} characters, too many to read before approving it"


def _object(value: Any, key: str) -> Any:
    inner = value.get(key) if isinstance(value, Mapping) else None
    return {} if inner is None else inner


def read_json_file(
    path: str, boundary: str | None, problems: list[Diagnostic], max_bytes: int = MAX_FILE_BYTES
) -> Mapping[str, Any]:
    """Read the JSON object in a file; if it cannot be read, add a diagnostic to `problems` and return an empty object.

    A file with a duplicate key is omitted, because different readers would use different values.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for key, value in pairs:
            if key in members:
                raise FileRefusedError(f"{path} names {visible(key)[:100]!r} twice in one object")
            members[key] = value
        return members

    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is not JSON")

    try:
        text = read_bytes(path, boundary=boundary, max_bytes=max_bytes).decode("utf-8-sig")
        data = json.loads(text, object_pairs_hook=once, parse_constant=refuse)
        if not isinstance(data, dict):
            raise FileRefusedError(f"{path} is not a JSON object")
        return data
    except (OSError, ValueError, RecursionError) as error:
        problems.append(Diagnostic("mcp-file", f"the file is left out: {error}", path=path, is_error=True))
        return {}
