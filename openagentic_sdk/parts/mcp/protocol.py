"""Constants of the Model Context Protocol: versions, member names, and this client's description of itself.

Modern is 2026-07-28: every request is self-contained, with the client, the version and the client's capabilities in its
`_meta`. Legacy is every earlier version: these are sent once, in `initialize`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import InvalidEventError
from ...ground.loose import as_list, as_mapping, read_json
from ...version import __version__

MODERN = ("2026-07-28",)
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")

UNSUPPORTED_VERSION, HEADER_MISMATCH = -32022, -32020
URL_NEEDED = -32042
MAX_BATCH = 100

# This program's name and version, as a client and as a server.
OURSELVES: Mapping[str, Any] = {"name": "openagentic-sdk", "version": __version__}
# Sampling is not offered, because it would let a server spend the user's tokens.
CAPABILITIES: Mapping[str, Any] = {"roots": {}, "elicitation": {"form": {}, "url": {}}}

_PREFIX = "io.modelcontextprotocol/"
SERVER_INFO = f"{_PREFIX}serverInfo"
CLIENT_INFO = f"{_PREFIX}clientInfo"
CLIENT_CAPABILITIES = f"{_PREFIX}clientCapabilities"
PROTOCOL_VERSION = f"{_PREFIX}protocolVersion"


def modern_meta(version: str) -> dict[str, Any]:
    """The `_meta` of a modern request (2026-07-28, "Per-request metadata")."""
    return {PROTOCOL_VERSION: version, CLIENT_INFO: OURSELVES, CLIENT_CAPABILITIES: CAPABILITIES}


def versions_named(data: Any, member: str) -> list[str]:
    """The strings in a list of versions that a server sent."""
    return [version for version in as_list(as_mapping(data).get(member)) if isinstance(version, str)]


def newest_common(ours: tuple[str, ...], theirs: list[str]) -> str | None:
    """The newest version that both sides support, or None; ours are sorted, newest first."""
    return next((version for version in ours if version in theirs), None)


def as_batch(whole: Any) -> list[Any]:
    """The messages in a line or body: one, or, before 2025-06-18, a list of them; a list that is too long has none."""
    if not isinstance(whole, list):
        return [whole]
    return whole if len(whole) <= MAX_BATCH else []


def read_message(line: bytes) -> Any:
    """Decode a line of JSON; numbers that JSON cannot express become null. Raises `InvalidEventError`."""
    try:
        return read_json(line.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidEventError(f"this is not JSON: {error}") from None
