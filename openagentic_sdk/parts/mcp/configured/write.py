"""Add entries to a scope and remove them: the user's own are in this library's home, the project's in `.mcp.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from ....errors import OptionsError, StorageError
from ....ground.diagnostic import Diagnostic
from ...project.project import OpenedProject
from ...project.settings_write import change_json
from ..oauth.login import read_settings
from ..server_config import check_server_name, read_server_entry
from .consent import definition_of
from .expand import variables_in
from .home import McpHome
from .read import PROJECT_FILE, ServerEntry, read_json_file

SCOPES = ("local", "user", "project")


def add_entry(home: McpHome, project: OpenedProject, scope: str, name: str, entry: Mapping[str, Any]) -> str:
    """Write an entry and return the file that contains it; adding one to a project includes agreeing to it.

    Raises `OptionsError` for an unusable entry, for a name that exists in this scope, and if the file cannot be written;
    raises `StorageError` if the agreement cannot be stored.
    """
    check_server_name(name)
    if not any(variables_in(value) for value in entry.values()):  # the values of variables are not known yet
        fields = {key: value for key, value in entry.items() if key != "pin"}
        server = read_server_entry(name, fields, in_milliseconds=scope == "project")
        read_settings(name, server.oauth)
    root = os.path.realpath(project.root)
    if scope == "project":
        _check_project_file(project)

        def add(data: dict[str, Any], path: str) -> bool:
            _put(data.setdefault("mcpServers", {}), name, entry, path)
            return True

        change_json(project.root, PROJECT_FILE, add, f"the server {name!r}", mode=0o644)
        path = os.path.join(project.root, PROJECT_FILE)
        if home.consents is not None:
            project_entry = ServerEntry(name, "project", path, entry, root)
            home.consents.remember(project_entry, "agreed", definition=definition_of(project_entry))
        return path
    if home.own is None:
        raise OptionsError("this user has no home folder: set OPENAGENTIC_SDK_HOME, or add the server to the project")
    try:
        with home.own.changing() as scopes:
            stored_scope = scopes.setdefault(scope, {})
            _put(stored_scope if scope == "user" else stored_scope.setdefault(root, {}), name, entry, home.own.path)
    except StorageError as error:
        raise OptionsError(str(error)) from error
    return home.own.path


def remove_entry(home: McpHome, project: OpenedProject, scope: str, name: str) -> bool:
    """Remove an entry from a scope, the consent to it and its pinned tools; return False if it does not exist.

    Raises `OptionsError` if the project's file cannot be written, and `StorageError` if one of the user's cannot.
    """
    root = os.path.realpath(project.root)
    if scope == "project":
        _check_project_file(project)
        was_there = change_json(
            project.root,
            PROJECT_FILE,
            lambda data, path: (
                isinstance(data.get("mcpServers"), dict) and data["mcpServers"].pop(name, None) is not None
            ),
            f"the server {name!r}",
        )
        if was_there and home.consents is not None:
            home.consents.forget(root, name)
    else:
        was_there = False
        if home.own is not None and os.path.lexists(home.own.path):
            with home.own.changing() as scopes:
                stored_scope = scopes.get(scope) or {}
                was_there = (stored_scope if scope == "user" else stored_scope.get(root) or {}).pop(
                    name, None
                ) is not None
    if was_there:
        home.pins("" if scope == "user" else root, name).forget()
    return was_there


def read_entry(text: str) -> dict[str, Any]:
    """Parse an entry from JSON. Raises `OptionsError` unless the text is a JSON object."""
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionsError(f"the entry is not JSON: {error}") from error
    if not isinstance(entry, dict):
        raise OptionsError('an entry must be an object, such as {"command": "npx", "args": ["-y", "some-server"]}')
    return entry


def _put(servers: Any, name: str, entry: Mapping[str, Any], path: str) -> None:
    if not isinstance(servers, dict):
        raise OptionsError(f"mcpServers in {path} is not an object: correct it first")
    if name in servers:
        raise OptionsError(f"{path} already contains a server {name!r}: `openagentic-sdk mcp remove {name}` removes it")
    servers[name] = dict(entry)


def _check_project_file(project: OpenedProject) -> None:
    """Raise `OptionsError` for a file that this library could not read, so that it is not changed."""
    path = os.path.join(project.root, PROJECT_FILE)
    problems: list[Diagnostic] = []
    if os.path.lexists(path):
        read_json_file(path, project.folders.boundary, problems)
    for problem in problems:
        raise OptionsError(f"{problem.located}: correct it first")
