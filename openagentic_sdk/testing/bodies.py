"""Make a workflow fail in a test if its body reads values that may be different in its next run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ..errors import WorkflowError
from ..parts.workflows.body import GUARD

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_IMPORTS = "<frozen importlib"
# C functions by the prefix of their names: the module, or for methods the class.
_CLOCK = ("time.", "datetime.now", "datetime.utcnow", "datetime.today", "date.today")
_CHANCE = ("Random.", "posix.urandom", "nt.urandom", "posix.getrandom")
_WORLD = (
    "posix.",
    "nt.",
    "_io.open",
    "io.open",
    "_socket.",
    "socket.",
    "_posixsubprocess.",
    "_thread.start_new_thread",
)
_PURE = ("posix.fspath", "nt.fspath", "time.gmtime", "time.strftime", "time.strptime", "time.mktime", "Random.seed")
_INSTEAD = ((_CLOCK, "flow.now()"), (_CHANCE, "flow.random() or flow.uuid()"), (_WORLD, "flow.step() with a function"))


@contextmanager
def strict_bodies() -> Iterator[None]:
    """Make a workflow fail as soon as its body reads the clock, randomness, files or the network during the block.

    Its steps may do so. Calls that C libraries make by themselves are not detected; the linter reads the source.
    """
    token = GUARD.set(_watched)
    try:
        yield
    finally:
        GUARD.reset(token)


@contextmanager
def _watched() -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(_look)
    try:
        yield
    finally:
        sys.setprofile(before)


def _look(frame: FrameType, event: str, function: Any) -> None:
    if event != "c_call":
        return
    name = _name(function)
    for names, instead in _INSTEAD:
        if name.startswith(names) and not name.startswith(_PURE) and (body := _body_of(frame)) is not None:
            sys.setprofile(None)
            place = f"{os.path.basename(body.f_code.co_filename)}:{body.f_lineno}"
            raise WorkflowError(f"the body of a workflow calls {name} at {place}, which no log records: use {instead}")


def _name(function: Any) -> str:
    owner = getattr(function, "__module__", None)
    own = str(getattr(function, "__qualname__", function))
    return f"{owner}.{own}" if owner and "." not in own else own


def _body_of(frame: FrameType | None) -> FrameType | None:
    """The frame of the body from which a call comes; None if this package or an import makes the call."""
    body = None
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGE):
            return body if os.path.basename(name) == "body.py" else None
        if name.startswith(_IMPORTS):
            return None
        body, frame = frame, frame.f_back
    return None
