"""The values of a plan, each with a label for the sources and secrets it was computed from.

A container's label is that of its shape (number, order and names of items); each item has its own label. A value that is
computed from others has the labels of all of them, whatever the computation (`PlanValues.compute`). Only taking an item out
of a container and putting one in keeps labels separate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ....errors import ToolError
from ....ground.frozen import frozen

MAX_UNITS = 300_000
MAX_CHARS = 1_000_000
MAX_ITEMS = 100_000
MAX_DEPTH = 60
MAX_BITS = 4_096
_CHARS_PER_UNIT = 200


@frozen
class ValueLabel:
    """The provenance of a value: untrusted `sources`, each with the id of its call, and names of `secrets`."""

    sources: frozenset[tuple[str, str]] = frozenset()
    secrets: frozenset[str] = frozenset()

    def joined(self, other: ValueLabel) -> ValueLabel:
        """The label of a value computed from both."""
        if other is self or not (other.sources or other.secrets):
            return self
        if not (self.sources or self.secrets):
            return other
        return ValueLabel(self.sources | other.sources, self.secrets | other.secrets)

    def __bool__(self) -> bool:
        return bool(self.sources or self.secrets)


CLEAN = ValueLabel()


class Value:
    """A value and its label.

    `data` is `None`, a bool, a number, a string, a list or tuple of values, a dict that maps each key to a pair of values
    (key and item), or a lambda of the plan.
    """

    __slots__ = ("data", "label")

    def __init__(self, data: Any, label: ValueLabel = CLEAN) -> None:
        self.data, self.label = data, label


class PlanValues:
    """The operations on the values of one plan, limited in size and work. They raise `ToolError` if a limit is exceeded."""

    def __init__(self) -> None:
        self._units = 0

    def spend(self, units: int) -> None:
        self._units += units
        if self._units > MAX_UNITS:
            raise ToolError("the plan does more work than one plan may: process less at once")

    def _enter(self, depth: int) -> None:
        self.spend(1)
        if depth > MAX_DEPTH:
            raise ToolError(f"a value is nested more than {MAX_DEPTH} deep")

    def lift(
        self,
        data: Any,
        label: ValueLabel = CLEAN,
        trusted_paths: Iterable[Sequence[str]] = (),
        trusted_label: ValueLabel = CLEAN,
        depth: int = 0,
    ) -> Value:
        """Convert plain data to a value with this label at every depth, and with `trusted_label` at `trusted_paths`."""
        self._enter(depth)
        if any(not path for path in trusted_paths):
            label, trusted_paths = trusted_label, ()

        def item(name: object, each: Any) -> Value:
            below = [path[1:] for path in trusted_paths if path[0] in ("*", name)]
            return self.lift(each, label, below, trusted_label, depth + 1)

        if isinstance(data, Mapping):
            self.check_size(data)
            pairs = {key: (self.lift(key, label), item(key, each)) for key, each in data.items()}
            return Value(pairs, label)
        if isinstance(data, list | tuple):
            self.check_size(data)
            return Value(type(data)([item("*", each) for each in data]), label)
        if isinstance(data, str):
            self.spend(len(data) // _CHARS_PER_UNIT)
        self.check_size(data)
        return Value(data, label)

    def check_size(self, data: Any) -> None:
        """Raise `ToolError` for a string, container or number that is too large, and `TypeError` for any other type."""
        kind = type(data)
        if kind is str and len(data) > MAX_CHARS:
            raise ToolError(f"a string is longer than {MAX_CHARS} characters")
        if isinstance(data, Mapping | list | tuple) and len(data) > MAX_ITEMS:
            raise ToolError(f"a container has more than {MAX_ITEMS} items")
        if kind is int and data.bit_length() > MAX_BITS:
            raise ToolError(f"a number has more than {MAX_BITS} bits")
        if not (data is None or kind in (str, bool, int, float) or isinstance(data, Mapping | list | tuple)):
            raise TypeError(f"a plan cannot contain values of type {kind.__name__}")

    def plain(self, value: Value, depth: int = 0) -> Any:
        """The data without labels. Raises `TypeError` for a lambda."""
        self._enter(depth)
        data = value.data
        if isinstance(data, dict):
            return {key: self.plain(item, depth + 1) for key, (_, item) in data.items()}
        if isinstance(data, list | tuple):
            return type(data)([self.plain(item, depth + 1) for item in data])
        if isinstance(data, str):
            self.spend(len(data) // _CHARS_PER_UNIT)
        self.check_size(data)
        return data

    def _walk(self, value: Value) -> Iterator[Value]:
        """Yield the value and everything in it, visiting each container once."""
        waiting, seen = [value], set[int]()
        while waiting:
            each = waiting.pop()
            self.spend(1)
            if isinstance(each.data, dict | list | tuple):
                if id(each) in seen:
                    continue
                seen.add(id(each))
                pairs = each.data.values() if isinstance(each.data, dict) else [each.data]
                waiting += [item for pair in pairs for item in pair]
            yield each

    def label_of(self, *values: Value) -> ValueLabel:
        """The joined labels of values and of everything in them."""
        label = CLEAN
        for value in values:
            for each in self._walk(value):
                label = label.joined(each.label)
        return label

    def raised(self, value: Value, label: ValueLabel) -> Value:
        """Return the value with a label added at every depth. Containers are changed in place: they may be shared."""
        if not label:
            return value
        if not isinstance(value.data, dict | list | tuple):
            return Value(value.data, value.label.joined(label))
        for each in [*self._walk(value)]:
            data = each.data
            if isinstance(data, dict):
                pairs = {
                    key: (self._marked(name, label), self._marked(item, label)) for key, (name, item) in data.items()
                }
                data.update(pairs)
            elif isinstance(data, list):
                data[:] = [self._marked(item, label) for item in data]
            elif isinstance(data, tuple):
                each.data = tuple([self._marked(item, label) for item in data])
            else:
                continue
            each.label = each.label.joined(label)
        return value

    @staticmethod
    def _marked(item: Value, label: ValueLabel) -> Value:
        """An item as `raised` stores it; containers are labelled when `raised` visits them."""
        is_container = isinstance(item.data, dict | list | tuple)
        return item if is_container else Value(item.data, item.label.joined(label))

    def compute(self, function: Callable[..., Any], *values: Value) -> Value:
        """Call a function of plain data; return its result with the labels of all arguments."""
        return self.lift(function(*map(self.plain, values)), self.label_of(*values))


def labelled_leaves(
    value: Value, place: str, with_shapes: bool, label: ValueLabel = CLEAN
) -> Iterator[tuple[str, ValueLabel]]:
    """Yield the labels of a value's leaves and field names, each with its place as in `labels.values.leaves`.

    With `with_shapes`, a leaf also gets the labels of the containers around it.
    """
    label = label.joined(value.label) if with_shapes else label
    if isinstance(value.data, dict):
        for key, (name, item) in value.data.items():
            yield f"name in {place}", name.label.joined(label)
            yield from labelled_leaves(item, f"{place}.{key}", with_shapes, label)
    elif isinstance(value.data, list | tuple):
        for number, item in enumerate(value.data):
            yield from labelled_leaves(item, f"{place}.{number}", with_shapes, label)
    else:
        yield place, value.label.joined(label)
