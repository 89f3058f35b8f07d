"""Make a tool of a typed function.

    @tool
    async def add(a: Annotated[int, "the first number"], b: int = 1) -> int:
        "Add two numbers."
        return a + b

The JSON schema comes from the annotations: str, int, float, bool, None, list, tuple, dict, Literal, Optional and unions,
dataclasses and TypedDicts, each also inside another; `Annotated[..., "text"]` gives the description. A parameter named
`ctx` or annotated `ToolContext` gets the call's context and is not part of the schema.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, Generic, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, overload

from ..errors import OptionsError, ToolInputError
from ..events import Effect
from ..ground.checks import shown
from ..ground.schemas import validate
from ..ground.threads import run_in_thread
from ..kernel.tool import ToolContext
from .base import Tool
from .labels import Source, ToolLabels
from .schema import object_schema

_SIMPLE: Mapping[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
    object: {},
    list: {"type": "array"},
    tuple: {"type": "array"},
    dict: {"type": "object"},
}


P = ParamSpec("P")
R = TypeVar("R")


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect = "unsafe",
    allowed_callers: Sequence[str] | None = None,
    source: Source | None = None,
    trusted_fields: Sequence[str] = (),
    secret: bool | Sequence[str] = False,
    control: Sequence[str] | None = None,
    sink: bool | None = None,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect = "unsafe",
    allowed_callers: Sequence[str] | None = None,
    source: Source | None = None,
    trusted_fields: Sequence[str] = (),
    secret: bool | Sequence[str] = False,
    control: Sequence[str] | None = None,
    sink: bool | None = None,
) -> FunctionTool[P, R] | Callable[[Callable[P, R]], FunctionTool[P, R]]:
    """Turn a function, async or not, into a tool; a function that is not async runs in a thread of its own.

    `name` is the function's and `description` its docstring unless given. `effect`: `read` when it changes nothing,
    `idempotent` when repeating it with the same arguments is harmless, `unsafe` (the default) otherwise. `allowed_callers`
    is as in `Tool`. The other arguments are those of `ToolLabels`; without any of them the tool declares no labels.
    Raises `OptionsError` for an annotation that has no JSON schema, and for labels that cannot be meant.
    """
    declares = (source, control, sink) != (None, None, None) or trusted_fields != () or secret is not False
    source = "untrusted" if source is None else source
    labels = ToolLabels(source, trusted_fields, secret, control, sink) if declares else None
    if function is not None:
        return FunctionTool(function, name, description, effect, allowed_callers, labels)
    return lambda wrapped: FunctionTool(wrapped, name, description, effect, allowed_callers, labels)


class FunctionTool(Tool, Generic[P, R]):
    """A function as a tool; calling it calls the function, and type checkers see its parameters and what it returns."""

    def __init__(
        self,
        function: Callable[P, R],
        name: str | None,
        description: str | None,
        effect: Effect,
        allowed_callers: Sequence[str] | None = None,
        labels: ToolLabels | None = None,
    ) -> None:
        self.function, self.labels = function, labels
        self.name = name or function.__name__
        self.description = description or inspect.getdoc(function) or self.name
        self.effect, self.allowed_callers = effect, allowed_callers
        # The name of the context parameter, if there is one, and the types of the others.
        hints = typing.get_type_hints(function, include_extras=True)
        context_name = None
        parameters: dict[str, Any] = {}
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise OptionsError(f"tool {function.__name__}: parameter {parameter} cannot be given by name")
            hint = hints.get(parameter.name)
            if ToolContext in (hint, get_origin(hint)) or parameter.name == "ctx":
                context_name = parameter.name
            else:
                parameters[parameter.name] = hints.get(parameter.name, Any)
        self._context_name, self._types = context_name, parameters
        self.input_schema = _parameters_schema(function, parameters)
        if labels is not None:
            labels.check_arguments(self.name, list(parameters))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        arguments = {name: _to_python(value, self._types.get(name, Any)) for name, value in input.items()}
        if self._context_name is not None:
            arguments[self._context_name] = ctx
        function: Callable[..., Any] = self.function
        if inspect.iscoroutinefunction(function):
            result = await function(**arguments)
        else:
            result = await run_in_thread(lambda: function(**arguments), ctx.cancelled)
        return _to_json(result)


def json_schema(annotation: Any) -> dict[str, Any]:
    """The JSON schema of a Python type. Raises `OptionsError` for a type that JSON cannot say."""
    try:
        if annotation in _SIMPLE:
            return dict(_SIMPLE[annotation])
    except TypeError as error:
        raise OptionsError(f"{shown(annotation)} has no JSON schema: it is no type") from error
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        texts = [note for note in args[1:] if isinstance(note, str)]
        return {**json_schema(args[0]), **({"description": texts[0]} if texts else {})}
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [json_schema(arg) for arg in args]}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": json_schema(args[1])}
    if isinstance(origin, type):
        if kinds := _kinds_by_place(origin, args):
            items = {"anyOf": [json_schema(kind) for kind in kinds]}
            return {"type": "array", "items": items, "minItems": len(kinds), "maxItems": len(kinds)}
        if issubclass(origin, list | set | frozenset | tuple) or origin.__module__ == "collections.abc":
            return {"type": "array", "items": json_schema(args[0] if args else Any)}
        raise OptionsError(f"{annotation!r} has no JSON schema: use list or dict")
    if isinstance(annotation, type):
        if issubclass(annotation, enum.Enum):
            return {"enum": [member.value for member in annotation]}
        if dataclasses.is_dataclass(annotation):
            hints = typing.get_type_hints(annotation, include_extras=True)
            required = [
                field.name
                for field in dataclasses.fields(annotation)
                if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            ]
            return _closed_schema(hints, required)
        if typing.is_typeddict(annotation):
            hints = typing.get_type_hints(annotation, include_extras=True)
            return _closed_schema(hints, sorted(annotation.__required_keys__))  # type: ignore[attr-defined]
        raise OptionsError(f"{annotation.__name__} has no JSON schema: make it a dataclass or a TypedDict")
    raise OptionsError(
        f"{shown(annotation)} has no JSON schema: use str, int, float, bool, list, dict, Literal or a dataclass"
    )


def _closed_schema(hints: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    properties = {name: json_schema(hint) for name, hint in hints.items()}
    return object_schema(properties, required=required, additionalProperties=False)


def _parameters_schema(function: Callable[..., Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    signature = inspect.signature(function).parameters
    required = [name for name in parameters if signature[name].default is inspect.Parameter.empty]
    schema = _closed_schema(parameters, required)
    for name in parameters:
        default = signature[name].default
        if isinstance(default, str | int | float | bool):
            schema["properties"][name]["default"] = default
    return schema


def _to_python(value: Any, annotation: Any) -> Any:
    """A validated JSON value as the type that the function expects: dataclasses, enums and their containers are built."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        return _to_python(value, args[0])
    if origin in (Union, types.UnionType):
        return next((_to_python(value, choice) for choice in args if _fits(value, choice)), value)
    if isinstance(value, list) and args and origin is not None:
        kinds = _kinds_by_place(origin, args) or repeat(args[0])
        built = [_to_python(item, kind) for item, kind in zip(value, kinds, strict=False)]
        return built if origin is list or origin.__module__ == "collections.abc" else origin(built)
    if isinstance(value, Mapping) and len(args) == 2:
        return {key: _to_python(item, args[1]) for key, item in value.items()}
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation) and isinstance(value, Mapping):
        hints = typing.get_type_hints(annotation, include_extras=True)
        return annotation(**{key: _to_python(item, hints.get(key, Any)) for key, item in value.items()})
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return annotation(value)
    return value


def _kinds_by_place(origin: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The types of a `tuple[A, B]`, place by place; empty for what holds any number of one type."""
    return () if origin is not tuple or Ellipsis in args else args


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a JSON value is one of this type, as a union asks of its members."""
    try:
        validate(value, json_schema(annotation))
    except ToolInputError:
        return False
    return True


def _to_json(value: Any) -> Any:
    """What a function returned, as JSON: dataclasses become objects, sets and tuples lists, enum members their values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {key: _to_json(item) for key, item in dataclasses.asdict(value).items()}
    if isinstance(value, enum.Enum):
        return _to_json(value.value)
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_json(item) for item in value]
    return value
