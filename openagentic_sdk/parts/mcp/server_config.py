"""The configuration of an MCP server: one frozen value, created in code or read from an entry of a `.mcp.json`.

Nothing is expanded, resolved or started here. Every instance is usable: an invalid value raises an `OptionsError` that
names the field and, if known, the server.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal, get_args

from ...errors import OptionsError
from ...events import Effect
from ...ground.checks import (
    Check,
    above_0,
    is_a,
    list_of,
    passable,
    shown,
)
from ...ground.frozen import frozen
from ...ground.schemas import require_checkable
from ...ground.settings import AnyPath, check_fields
from ...permissions.redact import Redactor, secrets_of
from ...providers.wire.http import check_headers, read_url
from ...tools.base import Tool
from ...tools.labels import ToolLabels

CONNECT_TIMEOUT_S = 30.0
IDLE_TIMEOUT_S = 300.0
CALL_TIMEOUT_S = 3600.0
# The wait for a launcher that may be installing: ending it during the installation leaves a broken cache.
INSTALL_TIMEOUT_S = 300.0
_LAUNCHERS = frozenset(("npx", "uvx", "bunx", "pnpx", "pipx", "npm", "uv", "docker", "podman", "dnx"))
# Distinguish a call's limit in seconds from one in milliseconds: nobody wants to wait for hours, or for less than a second.
_MOST_SECONDS, _LEAST_MILLISECONDS = 10_000, 1_000

TransportKind = Literal["stdio", "http", "sse", "tools"]
TokenSource = str | Callable[[], "str | Awaitable[str]"]

# `mcp__<name>__` and a cut tool name with its digest must fit into the 64 characters that model endpoints accept.
_NAME = r"[A-Za-z0-9-](?:[A-Za-z0-9_-]{0,38}[A-Za-z0-9-])?"


def _texts(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and all(map(passable, value))


def _variables(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        passable(name) and passable(text) and name and "=" not in name for name, text in value.items()
    )


def _named_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(part, str) for pair in value.items() for part in pair)


def _headers(value: Any) -> bool:
    if not _named_texts(value):
        return False
    try:
        check_headers(value)
    except OptionsError:
        return False
    return True


def _fits(is_right: Callable[[Any], bool], description: str) -> Check:
    return lambda value: None if is_right(value) else description


_TextList = Annotated[Sequence[str], _fits(_texts, "a list of strings")]
_TextPairs = Annotated[Mapping[str, str], _fits(_named_texts, "a mapping of strings to strings")]
_PositiveSeconds = Annotated[float, above_0]
_TOOL_NAMES = _fits(_texts, "a list of names of tools")
_EFFECTS = _fits(
    lambda value: (
        isinstance(value, Mapping)
        and all(isinstance(name, str) and effect in get_args(Effect) for name, effect in value.items())
    ),
    "a mapping of names of tools to 'read', 'idempotent' or 'unsafe'",
)
_LABELS = _fits(
    lambda value: (
        isinstance(value, Mapping)
        and all(isinstance(name, str) and isinstance(labels, ToolLabels) for name, labels in value.items())
    ),
    "a mapping of names of tools to ToolLabels",
)
_PROGRAM = _fits(lambda value: passable(value) and value.strip() != "", "the name of a program")
_VARIABLES = _fits(_variables, "a mapping of variable names to strings")
_TOKEN = _fits(lambda value: isinstance(value, str) or callable(value), "a string or a callable")
_ERA = _fits(lambda value: value in (None, "modern", "legacy"), "'modern' or 'legacy'")
_HEADERS = _fits(_headers, "a mapping of header names to ASCII strings without line ends")


@frozen(kw_only=True)
class McpServer:
    """One server, reached by a `command` (stdio) or a `url` (Streamable HTTP), or consisting of `tools` of this process.

    `command` and `args` are started without a shell, in `cwd` (default: the run's). The program receives `env` and, from
    this process's environment, what programs need to start (HOME, LANG, PATH and the like); with `inherit_env`, all of it.
    `is_sse` means that `url` is the event stream of the transport of 2024-11-05; without it, this is detected.

    `headers` are sent with every request. `token` is sent as `Authorization: Bearer`; it may be a sync or async callable
    that is called before each request. `oauth` are login settings (`clientId`, `callbackPort`, ...).

    `connect_timeout_s` is the longest time that the first request of a run waits for the server (by default 300 s for
    programs that install what they start, such as npx and uvx), `idle_timeout_s` the longest silence in a call (progress
    counts as a sign of life), `call_timeout_s` the longest call. `era` is the protocol, `modern` (since 2026-07-28) or
    `legacy`; None detects it.

    `allow` and `deny` are patterns (`*`, `?`, `[a-z]`) for the server's tools: those that match `deny` are not offered, nor,
    unless `allow` is None, are those that do not match `allow`. `effects` maps tool names to the effect that the *user*
    declares: `read` and `idempotent` calls may be repeated if the server dies during a call; the server's own claims do not
    count. `labels` maps tool names to the labels that the user declares; for any other tool, labels are derived from its
    annotations.

    With `pin=True`, the default of entries in files, only tools whose definitions a person agreed to are offered (at first
    use, all). With None, a call of a tool whose definition changed during the session needs a person's approval once; with
    False, rules and approvals cover changed definitions, too. `source` names the origin of the entry, for messages; no
    message repeats `env`, `headers`, a token, or the additional `secrets`.
    """

    command: Annotated[str, _PROGRAM] | None = None
    args: _TextList = ()
    env: Annotated[Mapping[str, str], _VARIABLES] = field(default_factory=dict, repr=False)
    cwd: AnyPath | None = None
    inherit_env: bool = False
    url: Annotated[str, is_a(str, "an http:// or https:// URL")] | None = None
    is_sse: bool = False
    headers: Annotated[Mapping[str, str], _HEADERS] = field(default_factory=dict, repr=False)
    token: Annotated[TokenSource, _TOKEN] | None = field(default=None, repr=False)
    oauth: Mapping[str, Any] | None = field(default=None, repr=False)
    tools: Annotated[Sequence[Tool], list_of(is_a(Tool, "a tool"), "tools")] = ()
    connect_timeout_s: _PositiveSeconds = CONNECT_TIMEOUT_S
    idle_timeout_s: _PositiveSeconds = IDLE_TIMEOUT_S
    call_timeout_s: _PositiveSeconds = CALL_TIMEOUT_S
    allow: Annotated[Sequence[str], _TOOL_NAMES] | None = None
    deny: Annotated[Sequence[str], _TOOL_NAMES] = ()
    effects: Annotated[Mapping[str, Effect], _EFFECTS] = field(default_factory=dict)
    labels: Annotated[Mapping[str, ToolLabels], _LABELS] = field(default_factory=dict)
    era: Annotated[Literal["modern", "legacy"] | None, _ERA] = None
    pin: bool | None = None
    source: str = "options"
    secrets: _TextPairs = field(default_factory=dict, repr=False)

    @property
    def kind(self) -> TransportKind:
        """The transport by which the server is reached; `tools` for tools of this process."""
        if self.command is not None:
            return "stdio"
        return ("sse" if self.is_sse else "http") if self.url is not None else "tools"

    @property
    def wait_s(self) -> float:
        """How long to wait for the server before it counts as unavailable, in seconds."""
        # A limit that the user chose applies even to a program that may have to install the server.
        is_usual = self.connect_timeout_s == CONNECT_TIMEOUT_S
        return INSTALL_TIMEOUT_S if is_usual and self.launcher else self.connect_timeout_s

    @property
    def launcher(self) -> str:
        """The name of the command if it is one that may first have to install the server, such as npx; else empty."""
        program = os.path.basename(self.command or "").partition(".")[0]
        return program if program in _LAUNCHERS else ""

    def __post_init__(self) -> None:
        reached = [name for name, value in (("command", self.command), ("url", self.url)) if value is not None]
        reached += ["tools"] if self.tools else []
        if len(reached) != 1:
            raise OptionsError(
                f"a server needs exactly one of command, url and tools, and has {' and '.join(reached) or 'none of them'}"
            )
        check_fields(self)
        for tool in self.tools:
            require_checkable(tool.input_schema, f"tools: {tool.name}.input_schema")
        if self.url is not None:
            read_url(self.url)


# The field for each key of an entry; the spellings are those of the hosts that people copy entries from.
_KEYS: Mapping[str, str] = {
    "command": "command",
    "args": "args",
    "env": "env",
    "cwd": "cwd",
    "inheritEnv": "inherit_env",
    "url": "url",
    "headers": "headers",
    "oauth": "oauth",
    "connectTimeout": "connect_timeout_s",
    "idleTimeout": "idle_timeout_s",
    "callTimeout": "call_timeout_s",
    "timeout": "call_timeout_s",
    "era": "era",
    "allowedTools": "allow",
    "disabledTools": "deny",
    "effects": "effects",
}
ENTRY_KEYS = frozenset(("type", *_KEYS))
# Settings that only the user may give, not the project's files or plugins.
USER_KEYS = frozenset(("inheritEnv", "allowedTools", "disabledTools", "effects"))
_TYPES: Mapping[str, str] = {"stdio": "command", "http": "url", "streamable-http": "url", "sse": "url"}


def read_server_entry(name: str, entry: Any, *, source: str = "options", in_milliseconds: bool = False) -> McpServer:
    """Read an entry of `mcpServers`: `{"type", "command", "args", "env"}` or `{"type", "url", "headers"}`.

    Times are in seconds, except `timeout` with `in_milliseconds`, for files that Claude Code reads in that unit. The default
    of `type` is stdio, or http if there is a `url` and no `command`. Raises an `OptionsError` that names the server, even
    for an unknown key, because it could be meant as a limit.
    """
    try:
        if not isinstance(entry, Mapping):
            raise OptionsError(f"an entry must be a mapping, not a value of type {type(entry).__name__}")
        default = "http" if "url" in entry and "command" not in entry else "stdio"
        kind = entry.get("type", default)
        if not isinstance(kind, str) or kind not in _TYPES:
            raise OptionsError(f"type must be one of {', '.join(map(repr, _TYPES))}, not {shown(kind)}")
        if _TYPES[kind] not in entry:
            raise OptionsError(f"a server of type {kind} needs a {_TYPES[kind]}")
        unknown = [key for key in entry if key not in _KEYS and key != "type"]
        if unknown:
            raise OptionsError(f"{shown(unknown[0])} is unknown here; the keys are type, {', '.join(_KEYS)}")
        fields = {_KEYS[key]: value for key, value in entry.items() if key not in ("type", "timeout")}
        if "timeout" in entry:
            fields["call_timeout_s"] = _call_timeout_s(entry["timeout"], in_milliseconds)
        for key in ("env", "headers"):
            _check_texts(key, fields.get(key))
        return McpServer(**fields, is_sse=kind == "sse", source=source)
    except OptionsError as error:
        raise OptionsError(f"mcp_servers[{name!r}]: {error}") from None


def _call_timeout_s(value: Any, in_milliseconds: bool) -> Any:
    """Convert the time limit of a call to seconds. Raises `OptionsError` if it seems to be in the other unit."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return value
    if in_milliseconds and value < _LEAST_MILLISECONDS:
        raise OptionsError(
            f'"timeout": {value:g} is in milliseconds here, as Claude Code reads this file: write "timeout": '
            f'{value * 1000:g} for {value:g} seconds, or "callTimeout": {value:g}'
        )
    if not in_milliseconds and value > _MOST_SECONDS:
        raise OptionsError(
            f'"timeout": {value:g} is in seconds here, and looks like milliseconds: write "timeout": {value / 1000:g}, or '
            f'"callTimeout": {value:g} for that many seconds'
        )
    return value / 1000 if in_milliseconds else value


def _check_texts(key: str, value: Any) -> None:
    """Raise an `OptionsError` that names, without its value, a member of `env` or `headers` that is not a string."""
    for name, text in value.items() if isinstance(value, Mapping) else ():
        if not isinstance(text, str):
            raise OptionsError(
                f"{shown(name)} in {key} must be a string, not a value of type {type(text).__name__}: put it in quotes"
            )


def mask_secrets(settings: McpServer, text: str, more: Mapping[str, str] | None = None) -> str:
    """Mask, in a text that a server sent, its secrets and the values of its variables, except variables whose value begins
    with `/`.

    `more` maps names to further values to mask.
    """
    values = {**settings.env, **settings.secrets, **(more or {})}
    maskable = {name: value for name, value in values.items() if not value.startswith("/")}
    return Redactor({**maskable, **secrets_in(settings)})(text)


def secrets_in(settings: McpServer) -> dict[str, str]:
    """The secrets in a server's configuration, each with a name.

    These are the token, the client secret, the variables whose name suggests a secret, and every header value, both whole
    and without what precedes its last word (such as `Bearer`).
    """
    secrets = {f"{name} of a server": value for name, value in secrets_of(settings.env).items()}
    for name, value in settings.headers.items():
        secrets |= {f"header {name}": value, f"value of header {name}": value.rpartition(" ")[2]}
    if isinstance(settings.token, str):
        secrets["token of a server"] = settings.token
    client_secret = (settings.oauth or {}).get("clientSecret")
    return {**secrets, "client secret": client_secret} if isinstance(client_secret, str) else secrets


def read_servers(servers: Any) -> dict[str, McpServer]:
    """Check the value of `OpenAgenticOptions.mcp_servers`, and return the servers by name. Raises `OptionsError`."""
    if not isinstance(servers, Mapping):
        raise OptionsError(f"mcp_servers must be a mapping of names to servers, not {shown(servers)}")
    by_name: dict[str, McpServer] = {}
    for name, entry in servers.items():
        check_server_name(name, " in mcp_servers")
        by_name[name] = entry if isinstance(entry, McpServer) else read_server_entry(name, entry)
    return by_name


def check_server_name(name: Any, place: str = "") -> None:
    """Raise `OptionsError` for a name that is not valid in a tool name, `mcp__server__tool`; `place` says where it was."""
    if not isinstance(name, str) or re.fullmatch(_NAME, name) is None or "__" in name:
        raise OptionsError(
            f"{shown(name)}{place} is not a valid name of an MCP server: use up to 40 letters, digits, '-' and '_', "
            "without '__' and without '_' at either end"
        )
