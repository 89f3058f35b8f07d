"""Make a tool from a typed function.

    @tool
    async def add(a: Annotated[int, "the first number"], b: int = 1) -> int:
        "Add two numbers."
        return a + b

The JSON schema comes from the annotations (see `ground.schemas.typed`); `Annotated[..., "text"]` adds the description. A
parameter named `ctx` or annotated `ToolContext` receives the call's context and is not part of the schema. Methods,
partials and callable objects are functions, too: the model is not asked for arguments that are already bound.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Concatenate, Generic, ParamSpec, TypeVar, get_args, get_origin, overload

from ..errors import OptionsError
from ..events import Effect
from ..ground.checks import TEXTS, check_settings, one_of, or_none, shown
from ..ground.schemas.typed import (
    NO_DEFAULT,
    JsonType,
    Member,
    hints_of,
    is_field,
    record_type,
    require_writable,
    to_json,
)
from ..ground.settings import advice_on
from ..ground.threads import run_in_thread
from ..kernel.tool import ToolContext, ToolOutput
from .base import Tool
from .labels import Source, ToolLabels

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
Q = ParamSpec("Q")


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
    *more: object,
    name: str | None = None,
    description: str | None = None,
    effect: Effect = "unsafe",
    allowed_callers: Sequence[str] | None = None,
    source: Source | None = None,
    trusted_fields: Sequence[str] = (),
    secret: bool | Sequence[str] = False,
    control: Sequence[str] | None = None,
    sink: bool | None = None,
    **unknown: object,
) -> FunctionTool[P, R] | Callable[[Callable[P, R]], FunctionTool[P, R]]:
    """Turn a function, async or not, into a tool; a synchronous one runs in a thread of its own.

    `name` defaults to the function's, `description` to its docstring. `effect`: `read` if it changes nothing, `idempotent`
    if repeating it with the same arguments is harmless, `unsafe` (the default) otherwise. `allowed_callers` is as in `Tool`.
    The other arguments are those of `ToolLabels`; without any of them the tool declares no labels. Raises `OptionsError` for
    a parameter or result that JSON cannot represent, and for invalid labels, and `TypeError` for an unknown argument.
    """
    for argument in unknown:
        raise TypeError(f"tool() takes no argument {argument!r}{advice_on(argument, tool.__kwdefaults__ or ())}")
    if more or isinstance(function, str):
        raise OptionsError(
            f"tool() accepts only a function as a positional argument, not {shown(more[0] if more else function)}: write "
            "@tool(name=..., description=...) above a function whose parameters have type hints"
        )
    declares = (source, control, sink) != (None, None, None) or trusted_fields != () or secret is not False
    source = "untrusted" if source is None else source
    labels = ToolLabels(source, trusted_fields, secret, control, sink) if declares else None
    method: Any = getattr(function, "__func__", None)
    if isinstance(function, FunctionTool):
        return function
    if isinstance(method, FunctionTool):  # a class method that is already a tool, from Python 3.13 on
        return method.bound_to(getattr(function, "__self__", None))
    if function is not None:
        return FunctionTool(function, name, description, effect, allowed_callers, labels)
    return lambda wrapped: FunctionTool(wrapped, name, description, effect, allowed_callers, labels)


class FunctionTool(Tool, Generic[P, R]):
    """A function as a tool; calling it calls the function, and type checkers see its parameters and result.

    In a class body it is a method: `Shop().refund` is the tool of that shop.
    """

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
        called = inside_partials(function)
        self.name = name or str(getattr(called, "__name__", type(called).__name__))
        if self.name == "<lambda>":
            raise OptionsError("a tool needs a name, and a lambda has none: write a function, or tool(name=...)")
        self.description = description or inspect.getdoc(called) or self.name
        check_settings({"effect": effect, "allowed_callers": allowed_callers}, _CHECKS, f"tool {self.name}: ")
        self.effect, self.allowed_callers = effect, allowed_callers
        self._settings = (name, description, effect, allowed_callers, labels)
        self._context_names: list[str] = []
        # A function in a class body has no object yet: its parameters are read once it is bound.
        self._is_unbound = isinstance(function, classmethod) or _is_method(function)
        if not self._is_unbound:
            self._read_parameters(function)

    def _read_parameters(self, function: Callable[P, R]) -> None:
        plain = plain_function(function)
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError) as error:
            raise OptionsError(
                f"the parameters of tool {self.name} cannot be read ({error}): wrap it in a function"
            ) from error
        if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
            raise OptionsError(f"tool {self.name} yields its result in pieces: collect them in a list and return that")
        hints = hints_of(plain)
        bound = function.keywords if isinstance(function, functools.partial) else {}
        members = []
        self._defaults: dict[str, Callable[[], Any]] = {}
        for parameter in parameters:
            hint = hints.get(parameter.name, Any)
            if parameter.name in bound:
                continue
            # The arguments of a model are a JSON object, so each has a name.
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise OptionsError(
                    f"parameter {parameter} of tool {self.name} cannot be passed by name: name each one, or use a "
                    "list or dict"
                )
            if _is_context(hint) or parameter.name == "ctx":
                self._context_names.append(parameter.name)
            else:
                members.append(self._member(parameter, hint))
        try:
            self._arguments: JsonType[dict[str, Any]] = record_type(members, dict, plain)
            require_writable(hints.get("return", Any), (ToolOutput,))
        except OptionsError as error:
            raise OptionsError(f"tool {self.name}: {error}") from error
        self._schema = self._arguments.schema
        if self.labels is not None:
            self.labels.check_arguments(self.name, [member.name for member in members])

    def _member(self, parameter: inspect.Parameter, hint: Any) -> Member:
        default = parameter.default
        notes = [note for note in (default, *getattr(hint, "__metadata__", ())) if is_field(note)]
        if is_field(default):
            hint, default = Annotated[hint, default], inspect.Parameter.empty
        name = next((note.alias for note in notes if note.alias), parameter.name)
        for note in notes:
            if default is inspect.Parameter.empty and not note.is_required():
                default = note.get_default(call_default_factory=True)
                self._defaults[parameter.name] = functools.partial(note.get_default, call_default_factory=True)
        is_plain = isinstance(default, str | int | float | bool)
        is_required = default is inspect.Parameter.empty
        return Member(name, parameter.name, None, is_required, hint, to_json(default) if is_plain else NO_DEFAULT)

    @property
    def input_schema(self) -> Mapping[str, Any]:  # type: ignore[override]
        if self._is_unbound:
            words = getattr(self.function, "__qualname__", self.name).replace(".", "().")
            raise OptionsError(f"tool {self.name} is a method: use it from an object of its class, as in `{words}`")
        return self._schema

    @overload
    def __get__(self, instance: None, owner: Any) -> FunctionTool[P, R]: ...
    @overload
    def __get__(self: FunctionTool[Concatenate[S, Q], R], instance: S, owner: Any) -> FunctionTool[Q, R]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        if not self._is_unbound or (instance is None and not isinstance(self.function, classmethod)):
            return self
        return self.bound_to(instance, owner)

    def bound_to(self, instance: Any, owner: Any = None) -> FunctionTool[..., R]:
        """Bind the tool's function to this object, or class, as its method; return the tool of the method."""
        function: Any = self.function
        return FunctionTool(function.__get__(instance, owner), *self._settings)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def json_value(self, output: Any) -> Any:
        return to_json(output)

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        arguments = {name: make() for name, make in self._defaults.items()} | self._arguments.read(
            input, "the arguments"
        )
        for name in self._context_names:
            arguments[name] = ctx
        function: Callable[..., Any] = self.function
        if inspect.iscoroutinefunction(plain_function(function)):
            result = await function(**arguments)
        else:
            result = await run_in_thread(lambda: function(**arguments), ctx.cancelled)
            # A lambda or a decorated function may be synchronous and still return a coroutine.
            if inspect.isawaitable(result):
                result = await result
        return result


_CHECKS = {"effect": one_of(*get_args(Effect)), "allowed_callers": or_none(TEXTS)}


def inside_partials(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def plain_function(function: Any) -> Any:
    """The function with the annotations: the one inside a partial, an object's `__call__` or a class's `__init__`."""
    function = inside_partials(function)
    if inspect.isroutine(function) or isinstance(function, staticmethod | classmethod):
        return function
    return vars(function).get("__init__", function) if isinstance(function, type) else type(function).__call__


def _is_method(function: Any) -> bool:
    """Whether a function that is defined in a class body needs an object or class (`self` or `cls`)."""
    outer = getattr(function, "__qualname__", "").rpartition(".")[0]
    if not inspect.isfunction(function) or not outer or outer.endswith("<locals>"):
        return False
    first = next(iter(inspect.signature(function).parameters.values()), None)
    return first is not None and first.name in ("self", "cls") and first.annotation is first.empty


def _is_context(hint: Any) -> bool:
    return any(part is ToolContext or get_origin(part) is ToolContext for part in (hint, *get_args(hint)))
