"""Read JSON from an endpoint tolerantly: each value as the expected type, or as an empty value of that type."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


# Python accepts NaN, Infinity and 1e999, which are not JSON and could not be written to a log.
_DECODER = json.JSONDecoder(parse_constant=lambda name: None, parse_float=_finite)
# The decoder's inner function, without its search for white space around the value.
_scan = vars(_DECODER)["scan_once"]
MAX_JSON_VALUES = 3_000_000  # of one text; once parsed, as many small ones take some 200 MB


def read_json(text: str) -> Any:
    """Parse a JSON text; NaN and infinities become None. Raises `ValueError`, even for valid JSON that is too large."""
    # An upper bound: characters inside strings count as well.
    if len(text) > MAX_JSON_VALUES < text.count(",") + text.count("[") + text.count("{"):
        raise ValueError(f"it has more than {MAX_JSON_VALUES:,} values")
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        return _DECODER.decode(text)  # leading white space, or the error message
    return value if end == len(text) else _DECODER.decode(text)


def as_mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, otherwise an empty one."""
    return value if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    """The value if it is a list, otherwise an empty one."""
    return value if isinstance(value, list) else []


def as_mappings(value: Any) -> list[Mapping[str, Any]]:
    """The objects in a list; empty if the value is not a list."""
    return [item for item in as_list(value) if isinstance(item, Mapping)]


def as_text(value: Any) -> str:
    """The value if it is a string, otherwise an empty one."""
    return value if isinstance(value, str) else ""


def tool_name(spec: Mapping[str, Any]) -> str:
    """The name in a tool's definition; empty if it is missing, as it may be in a log from elsewhere."""
    return as_text(as_mapping(spec.get("function")).get("name"))
