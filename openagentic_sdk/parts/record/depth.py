"""Copy events of other tools whose values are nested too deeply for our logs: such values become JSON text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ...events import Event, UnknownEvent
from ...ground.frozen import changed
from ...serialization import MAX_DEPTH, dumps_json, nesting

# The event is a level of its own.
_MOST = MAX_DEPTH - 1


def flattened(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events; each value in their fields that is nested too deeply for a log is replaced by its JSON, a string."""
    for event in events:
        is_unknown = isinstance(event, UnknownEvent)
        fields = event.data if isinstance(event, UnknownEvent) else vars(event)
        deep = {
            name: deep_json(value) if is_unknown else _with_texts(value)
            for name, value in fields.items()
            if isinstance(value, dict | list) and nesting(value) > _MOST
        }
        if not deep:
            yield event
        elif is_unknown:
            yield UnknownEvent({**fields, **deep})
        else:
            yield changed(event, **deep)


def _with_texts(value: dict[str, Any] | list[Any]) -> dict[str, Any] | list[Any]:
    """The value of a field, whose own type must not change: only the values within it become JSON text."""
    if isinstance(value, dict):
        return {key: deep_json(child) if nesting(child) >= _MOST else child for key, child in value.items()}
    return [deep_json(child) if nesting(child) >= _MOST else child for child in value]


def deep_json(value: Any) -> str:
    """The JSON of a value of any depth; the standard library's encoder would exceed the recursion limit."""
    parts: list[str] = []
    # Texts to append, and values to encode, each wrapped in a list; the next item is the last one.
    waiting: list[str | list[Any]] = [[value]]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            parts.append(item)
            continue
        (inner,) = item
        if isinstance(inner, dict):
            waiting.append("}")
            for index, (key, child) in reversed([*enumerate(inner.items())]):
                waiting += [[child], f"{',' if index else ''}{dumps_json(key)}:"]
            waiting.append("{")
        elif isinstance(inner, list):
            waiting.append("]")
            for index, child in reversed([*enumerate(inner)]):
                waiting += [[child], "," if index else ""]
            waiting.append("[")
        else:
            parts.append(dumps_json(inner))
    return "".join(parts)
