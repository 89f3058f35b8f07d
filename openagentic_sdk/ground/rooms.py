"""Rooms that an installation may omit: importing a missing one raises `RoomMissingError`.

The only seam is a finder at the end of `sys.meta_path`, which Python consults after all others.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

_PACKAGE = __name__.partition(".")[0]

# The features that need each of them. A nested room follows its parent.
OPTIONAL_ROOMS = {
    "fleet": "runs on many hosts",
    "server": "programs that connect over HTTP",
    "server.acp": "editors that start an agent",
    "evals": "suites of recorded sessions",
    "viewer": "pages for a browser",
    "parts.mcp": "MCP servers",
    "cli.screen": "conversations on a terminal",
}


def is_installed(room: str) -> bool:
    """Whether this room, one of `OPTIONAL_ROOMS`, is installed."""
    try:
        return import_module(f"{_PACKAGE}.{room}").__file__ is not None  # None: a folder without its files
    except ImportError:
        return False


def is_whole(module: str) -> bool:
    """Whether the room of this module is installed or not optional."""
    return all(is_installed(room) for room in OPTIONAL_ROOMS if f"{module}.".startswith(f"{room}."))


def require_room(room: str) -> None:
    """Raise `RoomMissingError` if this room, one of `OPTIONAL_ROOMS`, is not installed."""
    if not is_installed(room):
        raise _missing(room)


def _missing(room: str) -> Exception:
    from ..errors import (
        RoomMissingError,  # imported at start anyway, and `import openagentic_sdk` stays cheap
    )

    return RoomMissingError(room, OPTIONAL_ROOMS[room])


class MissingRooms:
    """The finder for `sys.meta_path` that reports missing rooms."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """Raise `RoomMissingError` for a missing room and its modules; find nothing else."""
        for room in OPTIONAL_ROOMS:
            module = f"{_PACKAGE}.{room}"
            is_within = name.startswith(f"{module}.") and getattr(sys.modules.get(module), "__file__", None) is None
            if name == module or is_within:
                raise _missing(room)
