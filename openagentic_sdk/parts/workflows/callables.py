"""Use any callable as a step, with a name for each argument, even one that callers can only pass by position."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, ParamSpecArgs, ParamSpecKwargs, Unpack, get_origin

from ...ground.schemas.typed import hints_of
from ...tools.function import inside_partials, plain_function

_UNNAMED = (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_ANY_ARGUMENTS = Signature([Parameter("args", Parameter.VAR_POSITIONAL), Parameter("kwargs", Parameter.VAR_KEYWORD)])


def name_of_callable(function: Any) -> str:
    """The name of a step that calls this function."""
    called = inside_partials(function)
    return str(getattr(called, "__name__", type(called).__name__)).strip("<>")


def signature_of(function: Any) -> Signature:
    """The parameters of a callable; `*args` and `**kwargs` for a C function whose parameters cannot be passed by name.

    The parameter names that such a function shows differ between versions of Python.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return _ANY_ARGUMENTS
    return _ANY_ARGUMENTS if _has_unnamed(signature) and _python_function(function) is None else signature


def by_name(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, or an equivalent that accepts all arguments by name: `*args` as a list, `**kwargs` as a dict."""
    signature = signature_of(function)
    if not _has_unnamed(signature):
        return function
    plain = _python_function(function)
    hints = {} if plain is None else hints_of(plain)
    parameters: list[Parameter] = []
    for each in signature.parameters.values():
        hint, default = hints.get(each.name, Any), each.default
        if isinstance(hint, ParamSpecArgs | ParamSpecKwargs) or get_origin(hint) is Unpack:
            hint = Any
        if each.kind is Parameter.VAR_POSITIONAL:
            hint, default = list[hint], ()  # type: ignore[valid-type]
        elif each.kind is Parameter.VAR_KEYWORD:
            hint, default = dict[str, hint], ()  # type: ignore[valid-type]
        hints[each.name] = hint
        parameters.append(Parameter(each.name, Parameter.KEYWORD_ONLY, default=default))

    def call(**kwargs: Any) -> Any:
        bound = inspect.BoundArguments(signature, kwargs)
        return function(*bound.args, **bound.kwargs)

    call.__annotations__ = hints
    vars(call)["__signature__"] = Signature(parameters)
    return call


def result_hint(function: Any) -> Any:
    """The annotated return type of a callable; for a class, the class itself; `Any` if there is no annotation."""
    called = inside_partials(function)
    if isinstance(called, type):
        return called
    plain = _python_function(called)
    return Any if plain is None else hints_of(plain).get("return", Any)


def _has_unnamed(signature: Signature) -> bool:
    return any(each.kind in _UNNAMED for each in signature.parameters.values())


def _python_function(function: Any) -> Any:
    """The Python function that a callable wraps; None for one implemented in C."""
    plain = inspect.unwrap(plain_function(function))
    return plain if hasattr(plain, "__code__") else None
