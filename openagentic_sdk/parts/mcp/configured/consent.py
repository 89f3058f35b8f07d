"""What a person agreed to start, bound to every word of the entry as it stood in the file.

Starting a server is running a program. So an agreement is about the command, its arguments, the environment with its values,
the address, the names of headers and the variables in their values, all before variables are filled in: when a word of
these changes, the person is asked again. It does not cover what the words lead to: another program of that name on PATH, a
new version of a package, the values of variables.
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

Decision = Literal["agreed", "refused", "unknown", "changed"]


@frozen
class Consent:
    """`agreed` or `refused` as a person decided; `unknown` when nobody was asked; `changed` when the entry
    differs from the one that was agreed to, which `before` describes line by line."""

    decision: Decision
    reason: str
    before: tuple[str, ...] = ()


def definition_of(entry: ServerEntry) -> dict[str, Any]:
    """What an agreement is about. Of a header's value it is the variables that it takes from this machine, and no secret."""
    said = dict(entry.entry)
    headers = said.get("headers")
    if isinstance(headers, Mapping):
        said["headers"] = {name: list(variables_in(value)) for name, value in headers.items()}
    said["type"] = said.get("type") or "stdio"
    said["args"], said["env"] = said.get("args") or [], said.get("env") or {}
    return {**said, "plugin_root": entry.plugin_root} if entry.plugin_root else said


def describe(definition: Mapping[str, Any]) -> list[str]:
    """A definition for the person who decides: one thing a line, with hidden letters made visible."""
    args = definition.get("args")
    words = [definition.get("command"), *(args if isinstance(args, list) else [args])]
    lines = [f"run: {' '.join(shlex.quote(str(word)) for word in words)}"] if definition.get("command") else []
    lines += [f"connect to: {definition['url']}"] if definition.get("url") else []
    for key, text in (("env", "with the variable {}={}"), ("headers", "send the header {}, from {}")):
        values = definition.get(key)
        for name, value in values.items() if isinstance(values, Mapping) else ():
            taken = value if key == "env" else ", ".join(value) or "the file"
            lines.append(text.format(name, taken))
    known = ("type", "command", "args", "url", "env", "headers")
    lines += [f"{key}: {json.dumps(value)}" for key, value in definition.items() if key not in known]
    asked = variables_in([*map(str, words), str(definition.get("url") or "")])
    lines += [f"it is told this machine's variable {name}" for name in asked]
    return [visible(line) for line in lines]


def changes(before: tuple[str, ...], now: list[str]) -> list[str]:
    """What is gone (`- `) and what is new (`+ `)."""
    gone = [f"- {line}" for line in before if line not in now]
    return [*gone, *(f"+ {line}" for line in now if line not in before)]


class Consents:
    """The decisions in one file, by default `consent.json` in `~/.openagentic-sdk/mcp`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = KeptFile(path, "projects")

    def look_up(self, entry: ServerEntry) -> Consent:
        """What was decided about an entry of a project. Never raises: a file that cannot be read agrees to nothing."""
        try:
            projects = self._file.read()
        except StorageError as error:
            return Consent("unknown", str(error))
        known = projects.get(entry.root)
        kept = known.get(entry.name) if isinstance(known, dict) else None
        if not isinstance(kept, dict):
            return Consent("unknown", "nobody has agreed to it yet")
        if kept.get("decision") == "refused":
            return Consent("refused", "it was refused")
        definition = definition_of(entry)
        if kept.get("decision") == "agreed" and kept.get("digest") == json_sha256(definition):
            return Consent("agreed", "it was agreed to as it stands")
        before = kept.get("definition")
        lines = tuple(describe(before)) if isinstance(before, dict) else ()
        return Consent("changed", "it changed since it was agreed to", lines)

    def remember(
        self, entry: ServerEntry, decision: Literal["agreed", "refused"], *, definition: Mapping[str, Any]
    ) -> None:
        """Keep a decision about the definition that was shown. Raises `StorageError` when it cannot be kept."""
        kept = {"decision": decision, "digest": json_sha256(definition), "definition": dict(definition)}
        with self._file.changing() as projects:
            known = projects.get(entry.root)
            projects[entry.root] = {**(known if isinstance(known, dict) else {}), entry.name: kept}

    def forget(self, root: str, name: str) -> bool:
        """Take a decision back; False when there is none. Raises `StorageError`."""
        with self._file.changing() as projects:
            known = projects.get(root)
            is_known = isinstance(known, dict) and known.pop(name, None) is not None
            if not known:
                projects.pop(root, None)
        return is_known
