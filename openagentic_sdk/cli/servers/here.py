"""Shared parts of the actions of `mcp`: the servers of this folder, and their display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import OptionsError
from ...ground.frozen import frozen
from ...ground.text import existing, visible
from ...parts.mcp.configured.consent import changes, definition_of, describe
from ...parts.mcp.configured.home import McpHome
from ...parts.mcp.configured.resolve import Configured, ConfiguredServers
from ...parts.project.project import OpenedProject
from ...permissions.redact import Redactor
from ...sessions.request import json_sha256
from ...tools.shell.environment import is_secret_name
from ..output.terminal import Screen

STYLES = {"ready": "green", "pending": "yellow", "refused": "yellow", "disabled": "dim", "unusable": "red"}


@frozen
class Here:
    """A folder's project, and this user's MCP data."""

    screen: Screen
    project: OpenedProject
    home: McpHome

    def configured(self) -> ConfiguredServers:
        """The servers named in files, with the state of each."""
        return self.home.configured(self.project)

    def find(self, name: str) -> Configured:
        """Find a server by name. Raises an `OptionsError` that lists the existing ones."""
        servers = self.configured().found
        for one in servers:
            if one.entry.name == name:
                return one
        names = existing("servers", [visible(one.entry.name) for one in servers], "here")
        raise OptionsError(f"unknown server {name!r}: {names}; `openagentic-sdk mcp add --help` shows how to add one")


def shown_definition(one: Configured, *, is_listed: bool = False) -> tuple[str, list[str]]:
    """The digest of a server's definition, and the lines that describe it to a person.

    Client secrets are hidden, and other secrets of the user's own entries are masked. Those of a project are shown to the
    person who decides about it, and masked in a list.
    """
    definition = definition_of(one.entry)
    digest = json_sha256(definition)
    is_hidden = is_listed or one.entry.is_own
    if is_hidden and isinstance(args := definition.get("args"), list):
        definition = {**definition, "args": hidden_arguments(args)}
    env = definition.get("env")
    if one.entry.is_own and isinstance(env, Mapping):
        hidden = {key: "[hidden]" for key, value in env.items() if is_secret_name(key) and "${" not in str(value)}
        definition = {**definition, "env": {**env, **hidden}}
    oauth = definition.get("oauth")
    if isinstance(oauth, Mapping) and "${" not in str(oauth.get("clientSecret", "${")):
        definition = {**definition, "oauth": {**oauth, "clientSecret": "[hidden]"}}
    lines = describe(definition)
    return digest, list(map(Redactor(), lines)) if is_hidden else lines


def hidden_arguments(args: Sequence[Any]) -> list[str]:
    """The arguments of a command; the values of flags whose names suggest secrets are masked."""
    result, is_secret, redact = list[str](), False, Redactor()
    for arg in map(str, args):
        name, equals, value = arg.partition("=")
        is_named = is_secret_name(name.lstrip("-").replace("-", "_")) and "${" not in arg
        is_mixed = "://" not in arg and redact(arg) != arg
        is_value = (is_secret and not arg.startswith("-") and "${" not in arg) or is_mixed
        is_pair = bool(equals and value) and (is_named or is_mixed)
        result.append(f"{name}=[hidden]" if is_pair else "[hidden]" if is_value else arg)
        is_secret = is_named and not equals and arg.startswith("-")
    return result


def differences(one: Configured) -> list[str]:
    """The changes to a server's definition since it was approved; empty if it never was."""
    before = one.consent.before if one.consent is not None else ()
    return changes(before, describe(definition_of(one.entry))) if before else []


def row(one: Configured) -> dict[str, Any]:
    """A server as JSON."""
    digest, lines = shown_definition(one)
    return {
        "name": one.entry.name,
        "scope": one.entry.scope,
        "source": one.entry.source,
        "state": one.state,
        "reason": one.reason,
        "type": one.entry.entry.get("type") or "stdio",
        "digest": digest,
        "definition": lines,
        "changes": differences(one),
        "hides": list(one.entry.hides),
    }
