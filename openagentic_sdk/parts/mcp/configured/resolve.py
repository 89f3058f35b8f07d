"""Resolve entries to servers: which may start, which wait for a person, which are unusable, and why.

A project's entry starts only if a person agreed to exactly this entry. Settings of the user or of the machine that enable
a project's server count as the first agreement, which is likewise bound to the entry's text at that time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from ....errors import OptionsError, StorageError
from ....ground.diagnostic import Diagnostic
from ....ground.frozen import frozen
from ....ground.text import visible
from ....skills.render import plugin_variables
from ...project.project import OpenedProject
from ...project.settings import Settings
from ..oauth.login import read_settings
from ..server_config import ENTRY_KEYS, USER_KEYS, McpServer, check_server_name, read_server_entry
from .consent import Consent, Consents, definition_of
from .expand import EXPANDED, expand_entry, variables_in
from .read import ServerEntries, ServerEntry

ServerState = Literal["ready", "pending", "refused", "disabled", "unusable"]
# Settings that only the person at this machine may give, in their own entries.
OWN_KEYS = USER_KEYS | {"pin"}


@frozen
class Configured:
    """An entry and its state: with a `server` if the state is `ready`, else with the `reason`, a clause for messages."""

    entry: ServerEntry
    state: ServerState
    reason: str = ""
    consent: Consent | None = None
    server: McpServer | None = None


@frozen
class ConfiguredServers:
    """The state of each entry, by name, and the notices about the files."""

    found: tuple[Configured, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()

    def ready(self) -> dict[str, McpServer]:
        """The servers that may start, by name."""
        return {each.entry.name: each.server for each in self.found if each.server is not None}

    def waiting(self) -> dict[str, str]:
        """The reason why each server that is pending or unusable does not start, by name."""
        return {each.entry.name: each.reason for each in self.found if each.state in ("pending", "unusable")}


def resolve(
    entries: ServerEntries, project: OpenedProject, consents: Consents | None, environ: Mapping[str, str]
) -> ConfiguredServers:
    """Determine the state of every entry. `consents` None means that no agreement can be stored."""
    states: list[Configured] = []
    problems = list(entries.diagnostics)
    for entry in entries.entries:
        one = _resolve_one(entry, project.settings, consents, environ, problems)
        states.append(one)
        if one.state == "unusable":
            problems.append(Diagnostic("mcp-server", _problem(entry, one.reason), path=entry.source, is_error=True))
        elif one.state == "pending":
            problems.append(Diagnostic("mcp-pending", _problem(entry, one.reason), path=entry.source))
    return ConfiguredServers(tuple(states), tuple(problems))


def _problem(entry: ServerEntry, reason: str) -> str:
    return f"the server {visible(entry.name)[:100]!r} is not started: {reason}"


def _resolve_one(
    entry: ServerEntry,
    settings: Settings,
    consents: Consents | None,
    environ: Mapping[str, str],
    problems: list[Diagnostic],
) -> Configured:
    is_off = entry.scope == "project" and entry.name in settings.servers_disabled
    if is_off or entry.entry.get("disabled") is True:
        return Configured(entry, "disabled", "it is disabled")
    fields = {key: value for key, value in entry.entry.items() if key != "disabled"}
    for key in [key for key in fields if key not in ENTRY_KEYS | OWN_KEYS or (key in OWN_KEYS and not entry.is_own)]:
        why = "applies only in the user's own files" if key in OWN_KEYS else "has no effect here"
        problems.append(Diagnostic("mcp-key", f"{visible(str(key))[:100]} of {entry.name!r} {why}", path=entry.source))
        del fields[key]
    try:
        check_server_name(entry.name)
        if "url" in fields and "type" not in fields:
            raise OptionsError('it has a url but no type; add "type": "http"')
        pin = fields.pop("pin", True)
        if not isinstance(pin, bool):
            raise OptionsError(f"pin must be true or false, not {pin!r:.100}")
        own = plugin_variables(entry.plugin_root, entry.plugin_data, repr(fields))
        expanded = expand_entry(fields, {**environ, **own})
        server = read_server_entry(entry.name, expanded, source=entry.source, in_milliseconds=entry.in_milliseconds)
        # Only for its errors: an unusable login must appear now, and not at the first 401.
        read_settings(entry.name, server.oauth)
        names = [name for key, value in fields.items() if key in EXPANDED for name in variables_in(value)]
        secrets = {name: environ[name] for name in names if name in environ}
        server = replace(server, pin=pin, env={**own, **server.env}, secrets=secrets)
    except OptionsError as error:
        return Configured(entry, "unusable", str(error))
    if entry.is_own:
        return Configured(entry, "ready", server=server)
    consent = _consent(entry, settings, consents)
    if consent.decision == "agreed":
        return Configured(entry, "ready", consent=consent, server=server)
    if consent.decision == "refused":
        return Configured(entry, "refused", consent.reason, consent)
    advice = f"review and approve it with `openagentic-sdk mcp trust {entry.name}`"
    return Configured(entry, "pending", f"{consent.reason}: {advice}", consent)


def _consent(entry: ServerEntry, settings: Settings, consents: Consents | None) -> Consent:
    if consents is None:
        return Consent("unknown", "this user has no home folder in which to store an approval")
    consent = consents.look_up(entry)
    # Not if it has changed: then the settings enabled another entry of this name.
    if consent.decision == "unknown" and {"*", entry.name} & {*settings.servers_enabled}:
        try:
            consents.remember(entry, "agreed", definition=definition_of(entry))
        except StorageError as error:
            return Consent("unknown", str(error))
        return Consent("agreed", "the user's settings enable it")
    return consent
