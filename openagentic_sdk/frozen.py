"""Frozen dataclasses that cost little to make.

The standard decorator writes and compiles six methods for each class, and that is most of what importing a module of many
classes costs. Here a constructor is compiled when the first object is made, and all classes share the other five, which do
what the standard ones do. A class made here extends only classes that were made here, and is extended only by such.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from reprlib import recursive_repr
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Like `dataclasses.dataclass(frozen=True)`; a method that the class defines itself stays."""
    methods = {"__init__": _first_constructor(dataclass(init=False, repr=False, eq=False)(cls)), **_SHARED}
    for name in methods.keys() - vars(cls).keys():
        setattr(cls, name, methods[name])
    return cls


def _first_constructor(cls: Any) -> Callable[..., None]:
    """An `__init__` that puts the real one in its place."""

    def __init__(self: Any, *args: Any, **values: Any) -> None:
        made = _constructor(cls)
        cls.__init__ = made
        made(self, *args, **values)

    return __init__


def _constructor(cls: Any) -> Callable[..., None]:
    """An `__init__` whose parameters are the fields. It fills the object's dict, past the `__setattr__` that refuses."""
    names: dict[str, Any] = {"MISSING": MISSING}
    positional, keyword_only, values = ["self"], ["*"], []
    for known in fields(cls):
        name, default, value = known.name, "", known.name
        if known.default is not MISSING:
            names[f"default_{name}"], default = known.default, f"=default_{name}"
        elif known.default_factory is not MISSING:
            names[f"make_{name}"], default = known.default_factory, "=MISSING"
            value = f"make_{name}() if {name} is MISSING else {name}"
        (keyword_only if known.kw_only else positional).append(name + default)
        values.append(f"{name}={value}")
    parameters = positional + (keyword_only if len(keyword_only) > 1 else [])
    exec(f"def __init__({', '.join(parameters)}): self.__dict__.update({', '.join(values)})", names)
    made: Callable[..., None] = names["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _values(self: Any) -> tuple[Any, ...]:
    return tuple(self.__dict__[known.name] for known in fields(self))


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{known.name}={self.__dict__[known.name]!r}" for known in fields(self))
    return f"{self.__class__.__qualname__}({shown})"


def _eq(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _setattr(self: Any, name: str, value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


_SHARED = {
    "__repr__": _repr,
    "__eq__": _eq,
    "__hash__": _hash,
    "__setattr__": _setattr,
    "__delattr__": _delattr,
}
