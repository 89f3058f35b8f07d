"""Constants of the Model Context Protocol: versions, member names, and this client's description of itself.

Modern is 2026-07-28: every request is self-contained, with the client, the version and the client's capabilities in its
`_meta`. Legacy is every earlier version, in which all of this is sent once, in `initialize`.
"""

from __future__ import annotations

import json
import json.scanner
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ...errors import InvalidEventError
from ...ground.loose import MAX_JSON_VALUES, as_list, as_mapping, read_json
from ...ground.threads import run_in_thread
from ...version import __version__

MODERN = ("2026-07-28",)
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")

UNSUPPORTED_VERSION, HEADER_MISMATCH = -32022, -32020
URL_NEEDED = -32042
# Only this much of an error message is examined, because it may be as long as a line.
MAX_ERROR_CHARS = 8_000
MAX_BATCH = 100
LONG_BYTES = 1024 * 1024

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
    """The versions listed in this member of a server's message, without items that are not strings."""
    return [version for version in as_list(as_mapping(data).get(member)) if isinstance(version, str)]


def newest_common(ours: tuple[str, ...], theirs: list[str]) -> str | None:
    """The newest version that both sides support, or None; ours are sorted, newest first."""
    return next((version for version in ours if version in theirs), None)


def size_within(value: Any, room: int) -> int | None:
    """The size of a value: the characters of all its strings, plus eight for each value; None if that exceeds `room`."""
    waiting, left = [value], room
    while waiting:
        part = waiting.pop()
        left -= 8 + (len(part) if isinstance(part, str) else 0)
        if isinstance(part, dict | list):
            if left < 8 * len(part):
                return None
            left -= sum(map(len, part)) if isinstance(part, dict) else 0
            waiting += part.values() if isinstance(part, dict) else part
        if left < 0:
            return None
    return room - left


def as_batch(whole: Any) -> list[Any]:
    """The messages in a line or body: one or, before 2025-06-18, a list of them; a list that is too long is ignored."""
    if not isinstance(whole, list):
        return [whole]
    return whole if len(whole) <= MAX_BATCH else []


def read_message(line: bytes, parse: Callable[[str], Any] = read_json) -> Any:
    """Decode a line of JSON; numbers that JSON cannot express become null. Raises `InvalidEventError`."""
    try:
        return parse(line.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidEventError(f"this cannot be read as JSON: {error}") from None


def _read_patiently(text: str) -> Any:
    """Like `read_json`, but slower, so that other threads can run. Raises ValueError if there are too many values."""
    if text.count(",") + text.count("[") + text.count("{") > MAX_JSON_VALUES:
        raise ValueError(f"it has more than {MAX_JSON_VALUES:,} values")
    return _PATIENT.decode(text)


# The standard library's decoder in Python (strings are still decoded in C): unlike the C one, it lets other threads run.
_PATIENT = json.JSONDecoder(
    parse_constant=lambda name: None,
    parse_float=lambda text: number if math.isfinite(number := float(text)) else None,
)
vars(_PATIENT)["scan_once"] = vars(json.scanner)["py_make_scanner"](_PATIENT)


async def read_long_message(line: bytes) -> Any:
    """Like `read_message`; a line longer than `LONG_BYTES` is read in a thread, so that it does not block the event loop."""
    if len(line) <= LONG_BYTES:
        return read_message(line)
    return await run_in_thread(partial(read_message, line, _read_patiently), name="openagentic-mcp-read")
