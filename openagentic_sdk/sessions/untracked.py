"""Exclude values that cannot contain a cycle from garbage collection.

A full collection stops every thread while it visits everything that the process holds: 150 ms for the events and messages
of a long session, again and again while they are read. Values from a log refer only to their own contents, so reference
counting frees them; the collector has nothing to find there.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

_PACKAGE = f"{__name__.partition('.')[0]}."


def untrack(values: Iterable[Any]) -> None:
    """Exclude JSON values or value objects of this package, and everything in them, from garbage collection."""
    forget, waiting = _forget(), list(values)
    while waiting and forget is not None:
        value = waiting.pop()
        if not gc.is_tracked(value):
            continue
        if value.__class__ is dict:
            waiting.extend(value.values())
        elif value.__class__ in (list, tuple):
            waiting.extend(value)
        elif type(value).__module__.startswith(_PACKAGE):
            waiting.append(vars(value))
        else:
            continue
        forget(value)


@cache
def _forget() -> Callable[[Any], None] | None:
    """`PyObject_GC_UnTrack` of CPython's documented C API; None where it is not available."""
    if sys.implementation.name != "cpython":
        return None
    try:
        from ctypes import py_object, pythonapi  # slow to import, and only needed by long sessions
    except ImportError:
        return None
    forget: Any = pythonapi.PyObject_GC_UnTrack
    forget.argtypes, forget.restype = [py_object], None
    return lambda value: forget(value)
