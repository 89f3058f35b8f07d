"""The words of the Model Context Protocol: versions, names of members, what this client says of itself.

Modern is 2026-07-28: every request stands alone and says in its `_meta` who asks, in which version, and what the client can
do. Legacy is everything before: that is said once, in `initialize`.
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

# What this program says of itself, as a client and as a server.
OURSELVES: Mapping[str, Any] = {"name": "openagentic-sdk", "version": __version__}
# Sampling would let a server spend the user's tokens; it is not offered.
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
    """The texts of a list of versions that a server sent."""
    return [version for version in as_list(as_mapping(data).get(member)) if isinstance(version, str)]


def newest_common(ours: tuple[str, ...], theirs: list[str]) -> str | None:
    """The newest version that both sides know; ours are sorted, the newest first."""
    return next((version for version in ours if version in theirs), None)


def read_message(line: bytes) -> Any:
    """The value of a line; numbers that JSON cannot say are null. Raises `InvalidEventError`."""
    try:
        return read_json(line.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidEventError(f"this is not JSON: {error}") from None
