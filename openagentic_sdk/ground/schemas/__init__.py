"""JSON schemas as data: read once, then used to check values in a bounded number of steps.

The functions here load the checker on their first call: a run in which no tool is called does not need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .reading import Schema

__all__ = ["Schema", "compiled", "is_bounded", "require_checkable", "validate"]


def __getattr__(name: str) -> Any:
    if name != "Schema":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .reading import Schema

    return Schema


def is_bounded(value: Any, *, max_values: int, max_levels: int) -> bool:
    """Whether a JSON value contains at most `max_values` values on `max_levels` levels of nesting; stops at the limits."""
    left, level = max_values, [value]
    for _ in range(max_levels):
        parts = [item.values() if isinstance(item, Mapping) else item for item in level if isinstance(item, _NESTS)]
        left -= sum(map(len, parts))
        if left < 0:
            return False
        level = [one for part in parts for one in part]
        if not level:
            return True
    return False


_NESTS = (Mapping, list, tuple)


def compiled(source: Mapping[str, Any]) -> Schema:
    """Return the parsed schema; the same source object is usually parsed only once."""
    from . import reading

    return reading.compiled(source)


def validate(value: Any, schema: Mapping[str, Any], what: str = "the arguments") -> Any:
    """Check a value against a schema that is used once; return or raise the same as `Schema(schema).check`."""
    from . import reading

    return reading.Schema(schema).check(value, what)


def require_checkable(schema: Mapping[str, Any], what: str) -> None:
    """Raise `OptionsError` if part of the caller's own schema could not be checked."""
    from . import reading

    reading.require_checkable(schema, what)
