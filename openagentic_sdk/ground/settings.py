"""Settings that are stated once: the annotation of a field is its check, and names the doors at which it is open.

    max_steps: Annotated[int, Doors(toml=True, flag="--max-steps N")] = 50
    \"\"\"Model calls of one run.\"\"\"

A field is read when a value of it is first checked, not when its class is defined; a default is not checked. Editors show
the sentence. Python drops it, so `settings.json`, which `python3 -m tests.guards.generated` makes, keeps it for `help()` and
`--help`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, InitVar, fields
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

from .checks import (
    BOOL,
    COUNT,
    NAME,
    PATHS,
    SECONDS,
    TEXT,
    TEXTS,
    Check,
    check_settings,
    is_a,
    is_callable,
    number,
    one_of,
    or_none,
    path,
)
from .frozen import frozen
from .text import look_alikes

T = TypeVar("T")

# Types with their checks, for annotations.
Seconds = Annotated[float, SECONDS]
Positive = Annotated[int, number(1, whole=True)]
Name = Annotated[str, NAME]
AnyPath = Annotated[str | os.PathLike[str], path]
Texts = Annotated[Sequence[str], TEXTS]
Paths = Annotated[Sequence[str | os.PathLike[str]], PATHS]

_OF_TYPES: Mapping[Any, Check | None] = {bool: BOOL, str: TEXT, int: COUNT, float: number(0), Any: None}


@frozen
class Doors:
    """Where a setting is open besides in code.

    With `toml` it is a key of `agents.toml`; `flag` is that of the commands that run agents, with what stands for its value;
    a `client` of a server may lower it. `elsewhere` names doors at which it takes another form, for people.
    """

    elsewhere: str = ""
    toml: bool = False
    flag: str = ""
    client: bool = False


@frozen
class Setting:
    """One field as its annotation states it. `kind` is the type without None; `check` is None for what may be anything."""

    kind: Any
    check: Check | None
    doors: Doors


class WithAdvice:
    """A value whose constructor tells what an argument that it does not take is called here."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __new__(cls, *given, **named):
            known = cls.__dataclass_fields__
            for name in named:
                if name not in known:
                    raise TypeError(f"{cls.__name__}() takes no argument {name!r}{cls.advice(name)}")
            return object.__new__(cls)

    @classmethod
    def advice(cls, name: str) -> str:
        """What to write instead, as a clause; empty where nothing is like it."""
        return advice_on(name, cast(Any, cls).__dataclass_fields__)


def check_fields(value: object, where: str = "", **others: Any) -> None:
    """Raise `OptionsError` for the first field that its annotation does not allow, see `check_settings`. `others` are those
    that a constructor takes and does not keep. A default is allowed as it is: only what differs from it is looked at.
    """
    cls: Any = value.__class__
    for of, names in ((value, given_values(value)), (others, others)):
        if names:
            checks = {name: check for name in names if (check := _check_of(cls, name)) is not None}
            check_settings(of, checks, where)


@cache
def settings_of(cls: type) -> Mapping[str, Setting]:
    """The fields of a class by name. Annotations are evaluated together: one by one takes twice as long."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        own = vars(base).get("__annotations__", {})
        if own:
            texts = ", ".join(map(str, own.values()))
            found |= zip(own, eval(f"({texts},)", vars(sys.modules[base.__module__])), strict=True)
    return {name: _read(annotation) for name, annotation in found.items()}


def open_at(cls: type, door: str) -> dict[str, Setting]:
    """The fields of a class that are open at a door, by name."""
    return {name: setting for name, setting in settings_of(cls).items() if getattr(setting.doors, door)}


@cache
def _check_of(cls: type, name: str) -> Check | None:
    """The check of one field, whose annotation alone is evaluated: few of a class's fields are ever given."""
    base = next(base for base in cls.__mro__ if name in vars(base).get("__annotations__", {}))
    return _read(eval(vars(base)["__annotations__"][name], vars(sys.modules[base.__module__]))).check


@cache
def _usual_values(cls: Any) -> Mapping[str, Any]:
    """The default of each field, or what makes it."""
    return {
        known.name: known.default if known.default_factory is MISSING else known.default_factory
        for known in fields(cls)
    }


def given_values(value: object, cls: type | None = None) -> dict[str, Any]:
    """The fields that do not hold their defaults, nor an empty value of the class that makes them."""
    return {
        name: held
        for name, usual in _usual_values(cls or value.__class__).items()
        if (held := getattr(value, name)) is not usual and (held or held.__class__ is not usual)
    }


def _read(annotation: Any) -> Setting:
    if isinstance(annotation, InitVar):
        annotation = annotation.type
    given = getattr(annotation, "__metadata__", ())
    kind = annotation.__origin__ if given else annotation
    if get_origin(kind) in (Union, UnionType):
        some = [each for each in get_args(kind) if each is not NoneType]
        kind = some[0] if len(some) == 1 else kind
    doors = next((each for each in given if isinstance(each, Doors)), Doors())
    return Setting(
        getattr(kind, "__origin__", kind) if hasattr(kind, "__metadata__") else kind, _check(annotation), doors
    )


def _check(annotation: Any) -> Check | None:
    """The check that a type is annotated with, else what the type says. None for anything."""
    kind, args = get_origin(annotation), get_args(annotation)
    if kind is Annotated:
        own: Any = next(filter(callable, args[1:]), None)
        return own or _check(args[0])
    if kind in (Union, UnionType):
        first, *others = [_check(each) for each in args if each is not NoneType]
        return None if others or first is None else or_none(first) if NoneType in args else first
    if kind is Literal:
        return one_of(*args)
    if kind is not None:
        return is_callable if kind is Callable else is_a(kind, f"a {kind.__name__.lower()}")
    if annotation in _OF_TYPES or not isinstance(annotation, type):
        return _OF_TYPES.get(annotation)
    name = annotation.__name__
    article = "an" if name[0] in "AEIOU" else "a"
    if getattr(annotation, "_is_protocol", False):
        return is_a(annotation, f"{article} {name.lower()}, as in `{annotation.__module__.partition('.')[2]}.{name}`")
    return is_a(annotation, f"{article} {name}(...)")


# --- what each is for --------------------------------------------------------------------------------------------------


@cache
def sentences(cls: type) -> Mapping[str, Mapping[str, str]]:
    """What each field of a class is for, by the heading that it stands under."""
    loader: Any = __spec__.loader  # also from inside of a zip
    data = loader.get_data(os.path.join(os.path.dirname(__file__), "settings.json"))
    found: Mapping[str, Mapping[str, str]] = json.loads(data).get(f"{cls.__module__}.{cls.__qualname__}", {})
    return found


def described(cls: type[T]) -> type[T]:
    """Adds to the docstring of a class each field with its sentence, when somebody asks for it."""
    cls.__doc__ = cast(Any, _Description(cls.__doc__ or ""))
    return cls


class _Description:
    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, found: object, owner: type) -> str:
        import inspect  # these are slow to import, and only help() asks
        import textwrap

        lines = [inspect.cleandoc(self._text)]
        for heading, described_fields in sentences(owner).items():
            lines += ["", heading] if heading else [""]
            for name, sentence in described_fields.items():
                lines += textwrap.wrap(sentence, 120, initial_indent=f"    {name:<20}", subsequent_indent=" " * 24)
        return "\n".join(lines)


# What people who come from other SDKs (claude-agent-sdk, openai-agents, pydantic-ai) write, and what stands here for it; the
# whole tables are in docs/from-*.md.
_LIMITS = "max_steps=, max_tokens=, max_cost_usd= or timeout_s="
_WORDS = {
    "betas": "RequestSettings(extra_headers=...) of the provider",
    "can_use_tool": "PermissionGate(approver=...)",
    "capabilities": "options=OpenAgenticOptions(parts=...)",
    "context": "deps=",
    "continue_conversation": "continue_last=",
    "conversation_id": "session=",
    "deferred_tool_results": "answers=",
    "deps_type": "deps=",
    "effort": "RequestSettings(reasoning_effort=...) of the provider",
    "enable_file_checkpointing": "rewind_session(files=True), without a setting",
    "fallback_model": "fallback=[...]",
    "handoff_description": "description=",
    "include_partial_messages": "assistant.delta events, which come always",
    "instructions": "system_prompt=, or an Agent",
    "max_budget_usd": "max_cost_usd=",
    "max_turns": "max_steps=",
    "mode": "permission_mode=",
    "model_settings": "a provider with settings=RequestSettings(...)",
    "output_format": "output_schema=, or Agent(output=...)",
    "output_type": "output=",
    "permission_mode": "permission_gate=PermissionGate(permission_mode=...)",
    "request_limit": "max_steps=",
    "result_type": "output=",
    "retries": "output_retries=",
    "run_config": "arguments of run()",
    "session_id": "session=",
    "system_prompt": "instructions=",
    "timeout": "timeout_s=",
    "toolsets": "tools=, and options=OpenAgenticOptions(mcp_servers=...)",
    "total_tokens_limit": "max_tokens=",
    "usage": "tools=[other.as_tool()], which spends from the same limits",
    "usage_limits": _LIMITS,
    # Methods and decorators of an agent.
    "instrument": "options=OpenAgenticOptions(otlp_endpoint=...)",
    "output_validator": "Agent(output_validators=[...])",
    "override": "run(model=...), or dataclasses.replace(agent, ...)",
    "run_stream": "async with agent.stream(...) as stream",
    "run_stream_events": "agent.iter(...)",
    "run_streamed": "async with agent.stream(...) as stream",
    "tool": "Agent(tools=[function])",
    "tool_plain": "Agent(tools=[function])",
    "to_cli_sync": "the command openagentic-sdk chat",
}


def advice_on(word: str, known: Collection[str], options: Collection[str] = ()) -> str:
    """What to write in place of a word that is not `known`: a clause for the end of an error, empty for none.

    `options` are words that count inside of `options=OpenAgenticOptions(...)`.
    """
    if word in options and word not in ("system_prompt", "session_id"):
        return f": write options=OpenAgenticOptions({word}=...)"
    if (meant := _WORDS.get(word)) is not None and meant.removesuffix("=") != word:
        return f": here that is {meant}"
    near = look_alikes(word, known, 0.7)
    return f"; did you mean {' or '.join(near)}?" if near else ""
