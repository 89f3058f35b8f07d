"""A person's agreement to start a server, bound to the exact entry in the file.

Starting a server means running a program. An agreement therefore covers the command, its arguments, the environment with its
values, the address, the names of headers and the variables in their values, all before variables are expanded: after any
change to these, the person is asked again. An agreement does not cover what these resolve to: the program of that name on
PATH, the version of a package, the values of variables.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from typing import Any, Literal

from ....errors import StorageError
from ....ground.frozen import frozen
from ....ground.text import visible
from ....sessions.request import json_sha256
from ...project.private_json import KeptFile
from .expand import variables_in
from .read import ServerEntry

ConsentDecision = Literal["agreed", "refused", "unknown", "changed"]


@frozen
class Consent:
    """The state of a person's decision about an entry.

    `decision` is `agreed` or `refused` as the person decided; `unknown` if no decision is stored or readable; `changed` if
    the entry differs from the one that was agreed to, which `before` describes line by line.
    """

    decision: ConsentDecision
    reason: str
    before: tuple[str, ...] = ()


def definition_of(entry: ServerEntry) -> dict[str, Any]:
    """The part of an entry that an agreement covers. Of a header's value, only the names of its variables are included."""
    fields = dict(entry.entry)
    headers = fields.get("headers")
    if isinstance(headers, Mapping):
        fields["headers"] = {name: list(variables_in(value)) for name, value in headers.items()}
    # The defaults are filled in, so that writing them out later is not a change.
    fields["type"] = fields.get("type") or "stdio"
    fields["args"], fields["env"] = fields.get("args") or [], fields.get("env") or {}
    # `${CLAUDE_PLUGIN_ROOT}` in the entry stands for this folder, so another folder means another program.
    return {**fields, "plugin_root": entry.plugin_root} if entry.plugin_root else fields


def describe(definition: Mapping[str, Any]) -> list[str]:
    """Describe a definition to the person who decides: one item per line, with invisible characters made visible."""
    args = definition.get("args")
    words = [definition.get("command"), *(args if isinstance(args, list) else [args])]
    lines = [f"run: {' '.join(shlex.quote(str(word)) for word in words)}"] if definition.get("command") else []
    lines += [f"connect to: {definition['url']}"] if definition.get("url") else []
    for key, text in (("env", "with the variable {}={}"), ("headers", "send the header {}, from {}")):
        values = definition.get(key)
        for name, value in values.items() if isinstance(values, Mapping) else ():
            shown_value = value if key == "env" else ", ".join(value) or "the file"
            lines.append(text.format(name, shown_value))
    shown_keys = ("type", "command", "args", "url", "env", "headers")
    lines += [f"{key}: {json.dumps(value)}" for key, value in definition.items() if key not in shown_keys]
    variables = variables_in([*map(str, words), str(definition.get("url") or "")])
    lines += [f"it receives this machine's variable {name}" for name in variables]
    return [visible(line) for line in lines]


def changes(before: tuple[str, ...], now: list[str]) -> list[str]:
    """The lines of a description that were removed (`- `) and those that were added (`+ `)."""
    removed_lines = [f"- {line}" for line in before if line not in now]
    return [*removed_lines, *(f"+ {line}" for line in now if line not in before)]


class Consents:
    """The decisions in one file, by project folder and server name; `McpHome` uses `consent.json`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = KeptFile(path, "projects")

    def look_up(self, entry: ServerEntry) -> Consent:
        """Look up the decision about an entry of a project. An unreadable file counts as one without a decision."""
        try:
            projects = self._file.read()
        except StorageError as error:
            return Consent("unknown", str(error))
        decisions = projects.get(entry.root)
        decision = decisions.get(entry.name) if isinstance(decisions, dict) else None
        if not isinstance(decision, dict):
            return Consent("unknown", "nobody has approved it yet")
        if decision.get("decision") == "refused":
            return Consent("refused", "it was refused")
        definition = definition_of(entry)
        if decision.get("decision") == "agreed" and decision.get("digest") == json_sha256(definition):
            return Consent("agreed", "it was approved in its current state")
        before = decision.get("definition")
        lines = tuple(describe(before)) if isinstance(before, dict) else ()
        return Consent("changed", "it changed since it was approved", lines)

    def remember(
        self, entry: ServerEntry, decision: Literal["agreed", "refused"], *, definition: Mapping[str, Any]
    ) -> None:
        """Store a decision about the definition that was shown. Raises `StorageError` if it cannot be stored."""
        record = {"decision": decision, "digest": json_sha256(definition), "definition": dict(definition)}
        with self._file.changing() as projects:
            decisions = projects.get(entry.root)
            projects[entry.root] = {**(decisions if isinstance(decisions, dict) else {}), entry.name: record}

    def forget(self, root: str, name: str) -> bool:
        """Delete a decision; return False if none exists. Raises `StorageError`."""
        with self._file.changing() as projects:
            decisions = projects.get(root)
            is_known = isinstance(decisions, dict) and decisions.pop(name, None) is not None
            if not decisions:
                projects.pop(root, None)
        return is_known
