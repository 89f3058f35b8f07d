"""Check parts from outside this package: an error or an invalid return value is reported with the part and the seam."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from inspect import iscoroutinefunction
from typing import Any

from ..errors import OpenAgentSdkError, PartError
from ..events import Event, Result, ToolResult, ToolUse
from .gate import CallContext
from .lifetime import RunStopped
from .part import Part

# The return type of each seam; `object`, for one of several types, only refuses None. A seam that is not listed may return
# anything.
_RETURNS: Mapping[str, type] = {
    "services": Mapping, "opening_events": Sequence, "supersede": Sequence, "facts": Mapping, "narrow": Sequence,
    "tell_gate": CallContext, "permit": object, "tell_hooks": Mapping, "receive": tuple, "mask": Event, "may_wait": bool,
    "make_room": bool, "read_call": ToolUse, "continues": bool, "still_waits": bool, "send": Sequence,
    "store_result": ToolResult, "after_call": ToolResult, "may_end": bool, "complete_result": Result, "end": RunStopped,
}  # fmt: skip


def watch_foreign(parts: Sequence[Part]) -> None:
    """Make the parts from outside this package raise a `PartError` for an unexpected error or an invalid return value."""
    for place in _foreign(tuple(map(type, parts))):
        _watch(parts[place])


@cache
def _foreign(kinds: tuple[type[Part], ...]) -> tuple[int, ...]:
    """The positions of the classes from outside this package, computed once per combination of parts."""
    package = __name__.partition(".")[0]
    return tuple([place for place, kind in enumerate(kinds) if kind.__module__.partition(".")[0] != package])


def _watch(part: Part) -> None:
    """Replace the seams that a part overrides, on the object, with versions whose errors name the part and the seam."""
    kind = type(part)
    for seam, default in vars(Part).items():
        if seam[0] != "_" and callable(default) and getattr(kind, seam) is not default:
            # On the object: `at` compares classes, and so still finds the seams that a class overrides.
            setattr(part, seam, _watched(kind.__name__, seam, getattr(part, seam), default))


def _watched(name: str, seam: str, work: Callable[..., Any], default: Callable[..., Any]) -> Callable[..., Any]:
    due = _RETURNS.get(seam)

    @contextmanager
    def naming_the_part() -> Iterator[None]:
        try:
            yield
        except (RunStopped, OpenAgentSdkError):  # an orderly end, or an error that explains itself
            raise
        except Exception as error:  # a part may raise anything: name it in the error
            raise PartError(name, seam, f"{type(error).__name__}: {error}") from error

    def checked(value: Any) -> Any:
        if due is not None and (value is None or not isinstance(value, due)):
            raise TypeError(f"it returned {value!r:.100}, but must return a value of type {due.__name__}")
        return value

    async def awaited(*args: Any) -> Any:
        with naming_the_part():
            return checked(await work(*args))

    def called(*args: Any) -> Any:
        with naming_the_part():
            return checked(work(*args))

    return awaited if iscoroutinefunction(default) else called
