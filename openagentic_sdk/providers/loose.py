"""Read JSON that an endpoint sent: each value as the kind that it should be, or as an empty one of that kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def as_mapping(value: Any) -> Mapping[str, Any]:
    """The object, or an empty one."""
    return value if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    """The list, or an empty one."""
    return value if isinstance(value, list) else []


def as_mappings(value: Any) -> list[Mapping[str, Any]]:
    """The objects in a list."""
    return [item for item in as_list(value) if isinstance(item, Mapping)]


def as_text(value: Any) -> str:
    """The text, or an empty one."""
    return value if isinstance(value, str) else ""
