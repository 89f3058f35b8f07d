"""Dataclasses that are cheap to define: `@frozen` is `dataclasses.dataclass(frozen=True)`, completed on first use, and
`@mutable` is the standard decorator without `frozen`, for state that changes during one piece of work.

The standard decorator writes and compiles six methods per class at definition, which is most of the cost of importing a
module of many classes. Here each method and field table is created on first access, and a constructor is compiled only for
a class with many instances. The result is indistinguishable from the standard one; a contract test compares the two. A
class with unusual features (slots, ordering, an InitVar, a base made by the standard decorator, an error in its fields) is
handed to the standard decorator unchanged.
"""

from __future__ import annotations

import abc
import dataclasses
import inspect
import sys
from collections.abc import Callable
from dataclasses import KW_ONLY, MISSING, Field, FrozenInstanceError, InitVar, dataclass, field, fields
from functools import cache, partial
from operator import attrgetter
from reprlib import recursive_repr
from types import FunctionType
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform, get_origin, overload
from weakref import WeakKeyDictionary

T = TypeVar("T")
Make = Callable[[Any], Any]


class _ClassFacts:
    """The facts about a class made here: the defaults of its own fields that are class attributes, and all positional
    fields in order, each with whether its argument can be omitted.
    """

    __slots__ = ("is_frozen", "kw_only", "own", "positional")

    def __init__(self, is_frozen: bool, kw_only: bool, positional: dict[str, bool]) -> None:
        self.is_frozen, self.kw_only, self.positional = is_frozen, kw_only, positional
        self.own: dict[str, Any] = {}


_MADE_HERE: WeakKeyDictionary[type, _ClassFacts] = WeakKeyDictionary()


@overload
def frozen(cls: type[T], /) -> type[T]: ...
@overload
def frozen(*, kw_only: bool = False, **standard: bool) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T] | None = None, /, *, kw_only: bool = False, **standard: bool) -> Any:
    """Make a frozen dataclass, like `dataclasses.dataclass(frozen=True)`, which is used itself for any other setting."""

    return _decorator(True, kw_only, standard) if cls is None else _decorator(True, kw_only, standard)(cls)


@overload
def mutable(cls: type[T], /) -> type[T]: ...
@overload
def mutable(*, kw_only: bool = False, **standard: bool) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(field_specifiers=(field,))
def mutable(cls: type[T] | None = None, /, *, kw_only: bool = False, **standard: bool) -> Any:
    """Make a dataclass, like `dataclasses.dataclass`, for state; see `frozen`."""
    return _decorator(False, kw_only, standard) if cls is None else _decorator(False, kw_only, standard)(cls)


def _decorator(is_frozen: bool, kw_only: bool, standard: dict[str, bool]) -> Callable[[type[T]], type[T]]:
    def decorate(cls: type[T]) -> type[T]:
        facts = None if standard else _look_at(cls, is_frozen, kw_only)
        if facts is None:
            return dataclass(frozen=is_frozen, kw_only=kw_only, **standard)(cls)
        return _make_at_first_use(cls, facts)

    return decorate


def changed(value: T, **changes: Any) -> T:
    """Return a copy with changes, like `dataclasses.replace`. Without slots, it is faster and skips `__post_init__`."""
    cls: Any = value.__class__
    if _has_slots(cls):
        return dataclasses.replace(value, **changes)  # type: ignore[type-var]
    other: T = object.__new__(cls)
    other.__dict__.update(value.__dict__, **changes)
    return other


def values_of(value: Any) -> dict[str, Any]:
    """The fields of a value by name: its `__dict__`, unless a subclass added slots."""
    if not _has_slots(value.__class__):
        values: dict[str, Any] = value.__dict__
        return values
    return {spec.name: getattr(value, spec.name) for spec in fields(value)}


@cache
def _has_slots(cls: type) -> bool:
    return hasattr(cls, "__slots__")


class _AtFirstUse:
    """A class attribute that creates the real value when it is looked up, and replaces itself with it."""

    __slots__ = ("_cls", "_make", "_name")

    def __init__(self, cls: type, name: str, make: Make) -> None:
        self._cls, self._name, self._make = cls, name, make

    def __get__(self, instance: object, owner: type) -> Any:
        method = self._make(self._cls)
        if isinstance(method, FunctionType):
            method.__name__, method.__qualname__ = self._name, f"{self._cls.__qualname__}.{self._name}"
            method.__module__ = self._cls.__module__
            if self._name != "__init__":
                method.__annotations__ = {}
        setattr(self._cls, self._name, method)
        return method.__get__(instance, owner) if isinstance(method, FunctionType) else method


class _InitAtFirstUse(_AtFirstUse):
    """A stand-in for a constructor that fills the first few objects itself: compiling one takes as long as filling dozens
    of objects, and most classes of a short run have one or two.
    """

    __slots__ = ("_filled", "_places")

    def __init__(self, cls: type, name: str, make: Make) -> None:
        super().__init__(cls, name, make)
        self._filled = 0
        self._places: list[str] | None = None

    def __get__(self, instance: object, owner: type) -> Any:
        # Code that only inspects it passes no object, or one that is already filled.
        if self._filled < _FILLED_BY_HAND and isinstance(instance, self._cls) and not vars(instance):
            self._filled += 1
            return partial(self._fill, instance)
        return super().__get__(instance, owner)

    def _fill(self, instance: Any, /, *args: Any, **kwargs: Any) -> None:
        """Do what the compiled constructor does; an invalid call is left to that one, for its error message."""
        table = fields(cast(Any, self._cls))
        if self._places is None:
            self._places = [spec.name for spec in table if spec.init and not spec.kw_only]
        rest = {**dict(zip(self._places, args, strict=False)), **kwargs}
        values: dict[str, Any] = {}
        makes: dict[str, Callable[[], Any]] = {}
        is_whole = len(rest) == len(args) + len(kwargs)
        for spec in table:
            name = spec.name
            if spec.init and name in rest:
                values[name] = rest.pop(name)
            elif spec.default_factory is not MISSING:
                makes[name], values[name] = spec.default_factory, None
            elif spec.init:
                values[name] = spec.default
                is_whole = is_whole and spec.default is not MISSING
        if rest or not is_whole:
            super().__get__(instance, self._cls)(*args, **kwargs)  # raises
        for name, make in makes.items():
            values[name] = make()
        instance.__dict__.update(values)
        if hasattr(self._cls, "__post_init__"):
            instance.__post_init__()


_FILLED_BY_HAND = 8


# The following runs at the definition of every class: it is written for speed.


def _make_at_first_use(cls: type[T], facts: _ClassFacts) -> type[T]:
    present, target = vars(cls), cast(Any, cls)
    for name, default in facts.own.items():
        if default.__class__ is Field:
            if default.default is MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, default.default)
    has_hash = "__hash__" in present and (present["__hash__"] is not None or "__eq__" not in present)
    for name, make in _FROZEN if facts.is_frozen else _MUTABLE:
        if name not in present:
            setattr(cls, name, (_InitAtFirstUse if make is _init else _AtFirstUse)(cls, name, make))
    if not has_hash:
        target.__hash__ = _AtFirstUse(cls, "__hash__", _hash) if facts.is_frozen else None
    if present.get("__doc__") is None:
        target.__doc__ = _AtFirstUse(cls, "__doc__", _doc)
    _MADE_HERE[cls] = facts
    return abc.update_abstractmethods(cls)


def _look_at(cls: type, is_frozen: bool, kw_only: bool) -> _ClassFacts | None:
    """Return the facts about a class; None for one that is left to the standard decorator."""
    present = vars(cls)
    positional = _positional_of_bases(cls, is_frozen) if _STEERING.isdisjoint(present) else None
    if positional is None:
        return None
    facts = _ClassFacts(is_frozen, kw_only, positional)
    annotations = present.get("__annotations__", {})
    for name, value in present.items():
        if value.__class__ is Field and name not in annotations:
            return None
    module = sys.modules.get(cls.__module__)
    names = {} if module is None else vars(module)
    for name, annotation in annotations.items():
        meaning = _meaning(annotation, names)
        if meaning is InitVar or meaning is KW_ONLY:
            return None
        default = facts.own[name] = present[name] if name in present else getattr(cls, name, MISSING)
        by_name, is_optional = kw_only or meaning is ClassVar, default is not MISSING
        if default.__class__ not in _PLAIN:
            if default.__class__ is Field:
                by_name = kw_only if default.kw_only is MISSING else default.kw_only
                is_optional = not (default.init and default.default is MISSING and default.default_factory is MISSING)
            if not _may_stand(cls, name, default, meaning):
                return None
            facts.own[name] = getattr(cls, name, MISSING)
        if by_name:
            positional.pop(name, None)
        else:
            positional[name] = is_optional
    orders = tuple(positional.values())
    return None if True in orders and False in orders[orders.index(True) :] else facts


def _positional_of_bases(cls: type, is_frozen: bool) -> dict[str, bool] | None:
    """The positional fields of the base classes; None if one of these was not made here."""
    positional: dict[str, bool] = {}
    for base in cls.__mro__[-2:0:-1]:
        attrs = vars(base)
        if attrs.get("__slots__") or (not is_frozen and "__setattr__" in attrs):
            return None
        if "__dataclass_fields__" in attrs:
            facts = _MADE_HERE.get(base)
            if facts is None or facts.is_frozen is not is_frozen:
                return None
            positional.update(facts.positional)
    return positional


def _meaning(annotation: Any, names: dict[str, Any]) -> object:
    """The value of an annotation's first name in a module with these names; `KW_ONLY` for one that is hard to resolve."""
    if annotation.__class__ is not str:
        return InitVar if isinstance(annotation, InitVar) else get_origin(annotation) or annotation
    meaning = names.get(annotation.partition("[")[0])
    is_doubtful = (
        "InitVar" in annotation or "KW_ONLY" in annotation or ("ClassVar" in annotation and meaning is not ClassVar)
    )
    return KW_ONLY if is_doubtful else meaning


def _may_stand(cls: type, name: str, default: Any, meaning: object) -> bool:
    """Whether the standard decorator would store this default as a class attribute."""
    if default.__class__ is Field:
        if meaning is ClassVar:
            return False
        default = default.default
    if default.__class__.__hash__ is None:
        return False
    attr = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
    return not hasattr(attr.__class__, "__set__") and not hasattr(default.__class__, "__set__")


def _field_table(cls: type) -> dict[str, Field[Any]]:
    """All fields of a class by name, inherited ones first."""
    table: dict[str, Field[Any]] = {}
    for base in cls.__mro__[-1:0:-1]:
        table.update(getattr(base, "__dataclass_fields__", {}))
    plain, class_var = _field_kinds()
    facts, module = _MADE_HERE[cls], sys.modules.get(cls.__module__)
    names = {} if module is None else vars(module)
    for name, default in facts.own.items():
        entry: Any = default if isinstance(default, Field) else field(default=default)
        annotation = vars(cls)["__annotations__"][name]
        is_class_var = _meaning(annotation, names) is ClassVar
        entry.name, entry.type, entry._field_type = name, annotation, class_var if is_class_var else plain
        if entry.kw_only is MISSING and not is_class_var:
            entry.kw_only = facts.kw_only
        table[name] = entry
    return table


@cache
def _field_kinds() -> tuple[Any, Any]:
    """The standard decorator's markers of a field and of a ClassVar."""
    # With a docstring, or the standard decorator would create one, for which it inspects signatures slowly.
    bare = type("Bare", (), {"__doc__": ".", "__annotations__": {"plain": int, "class_var": ClassVar[int]}})
    table: Any = vars(dataclass(init=False, repr=False, eq=False)(bare))["__dataclass_fields__"]
    return table["plain"]._field_type, table["class_var"]._field_type


def _parameters(cls: type) -> Any:
    return _standard_parameters(_MADE_HERE[cls].is_frozen, _MADE_HERE[cls].kw_only)


@cache
def _standard_parameters(is_frozen: bool, kw_only: bool) -> Any:
    return vars(dataclass(frozen=is_frozen, kw_only=kw_only)(type("Any", (), {"__doc__": "."})))["__dataclass_params__"]


class _FactoryDefault:
    """A default that is created per object, as shown in a signature."""

    def __repr__(self) -> str:
        return "<factory>"


_MAKE_IT = _FactoryDefault()


def _init(cls: Any) -> Any:
    """Compile an `__init__` whose parameters are the fields. It fills a frozen object's dict, bypassing its `__setattr__`.

    Its globals are those of the class's module, so that the names in its annotations resolve.
    """
    # Set the fields of mutable objects one by one: an object without a materialized dict is smaller.
    is_frozen = _MADE_HERE[cls].is_frozen
    this = "__dataclass_self__" if "self" in cls.__dataclass_fields__ else "self"
    factories: dict[str, Any] = {}
    positional, keyword_only, values, annotations = [this], ["*"], [], {}
    defaults: list[Any] = []
    keyword_defaults: dict[str, Any] = {}
    for spec in fields(cls):
        name, value, default = spec.name, spec.name, spec.default
        if spec.default_factory is not MISSING:
            factories[f"__make_{name}__"], default = spec.default_factory, _MAKE_IT
            value = f"__make_{name}__() if {name} is __make_it__ else {name}" if spec.init else f"__make_{name}__()"
        elif not spec.init:
            continue
        values.append(f"{name}={value}" if is_frozen else f"{this}.{name}={value}")
        if not spec.init:
            continue
        annotations[name] = spec.type
        (keyword_only if spec.kw_only else positional).append(name)
        if default is not MISSING and spec.kw_only:
            keyword_defaults[name] = default
        elif default is not MISSING:
            defaults.append(default)
    body = [f"{this}.__dict__.update({', '.join(values)})"] if is_frozen and values else values or ["pass"]
    if hasattr(cls, "__post_init__"):
        body.append(f"{this}.__post_init__()")
    parameters = positional + (keyword_only if len(keyword_only) > 1 else [])
    source = f"def __init__({', '.join(parameters)}): {'; '.join(body)}"
    if factories:
        source = f"def make(__make_it__, {', '.join(factories)}):\n {source}\n return __init__"
    module = sys.modules.get(cls.__module__)
    here: dict[str, Any] = {}
    exec(source, {} if module is None else vars(module), here)
    init = here["make"](_MAKE_IT, **factories) if factories else here["__init__"]
    # Set here, because in the source each would cost as much to compile as its parameter.
    init.__defaults__, init.__kwdefaults__ = tuple(defaults) or None, keyword_defaults or None
    init.__annotations__ = {**annotations, "return": None}
    return init


def _repr(cls: Any) -> Any:
    names = [spec.name for spec in fields(cls) if spec.repr]

    def __repr__(self: Any) -> str:
        text = ", ".join([f"{name}={getattr(self, name)!r}" for name in names])
        return f"{self.__class__.__qualname__}({text})"

    method: Any = recursive_repr()(__repr__)
    # With this name, `pprint` formats the fields itself.
    method.__wrapped__, __repr__.__qualname__ = __repr__, "__create_fn__.<locals>.__repr__"
    __repr__.__annotations__ = {}
    return method


def _eq(cls: Any) -> Any:
    names = [spec.name for spec in fields(cls) if spec.compare]
    values = _values(names)

    def compare_as_tuples(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def compare_one_by_one(self: Any, other: Any) -> Any:
        if self is other:
            return True
        if other.__class__ is not self.__class__:
            return NotImplemented
        same: Any = True
        for name in names:
            same = getattr(self, name) == getattr(other, name)
            if not same:
                break
        return same

    # The standard decorator changed from one to the other in 3.13; they differ if a value is not equal to itself.
    return compare_one_by_one if sys.version_info >= (3, 13) else compare_as_tuples


def _hash(cls: Any) -> Any:
    values = _values([spec.name for spec in fields(cls) if (spec.compare if spec.hash is None else spec.hash)])

    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _setattr(cls: Any) -> Any:
    names = {spec.name for spec in fields(cls)}

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    return __setattr__


def _delattr(cls: Any) -> Any:
    names = {spec.name for spec in fields(cls)}

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return __delattr__


def _replace(cls: Any) -> Any:
    def __replace__(self: Any, /, **changes: Any) -> Any:
        return dataclasses.replace(self, **changes)

    return __replace__


def _match_args(cls: Any) -> tuple[str, ...]:
    return tuple(spec.name for spec in fields(cls) if spec.init and not spec.kw_only)


def _doc(cls: Any) -> str:
    try:
        signature = str(inspect.signature(cls)).replace(" -> None", "")
    except (TypeError, ValueError):
        signature = ""
    return f"{cls.__name__}{signature}"


_MUTABLE: list[tuple[str, Make]] = [
    ("__init__", _init),
    ("__repr__", _repr),
    ("__eq__", _eq),
    ("__match_args__", _match_args),
    ("__dataclass_fields__", _field_table),
    ("__dataclass_params__", _parameters),
    *([("__replace__", _replace)] if sys.version_info >= (3, 13) else []),
]
_FROZEN: list[tuple[str, Make]] = [*_MUTABLE, ("__setattr__", _setattr), ("__delattr__", _delattr)]
# A class that defines one of these is left to the standard decorator.
_STEERING = frozenset({"__slots__", "__setattr__", "__delattr__", "__annotate_func__"})
# The types of most defaults: such a value can be a class attribute.
_PLAIN = frozenset({MISSING.__class__, None.__class__, str, int, float, bool, tuple})
