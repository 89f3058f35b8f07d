"""Run clean-up for garbage-collected objects in a thread that may wait for locks."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import cache, partial
from queue import Empty, SimpleQueue
from typing import Any

# How long, in seconds, the process's exit and a fork wait for work in progress.
MOMENT_S = 2.0

# Only `SimpleQueue.put` is reentrant, so that the garbage collector may interrupt it (see the module `queue`).
_due: SimpleQueue[Callable[[], object]] = SimpleQueue()
_cleaning: set[tuple[int, int]] = set()
_is_ending = False


def when_collected(owner: object, work: Callable[..., object], *args: Any) -> weakref.finalize[..., Any]:
    """Call `work(*args)` after `owner` has been collected, at the latest when the process exits.

    The collector may run at any instruction, even while a lock of ours or of a driver is held, and waiting for that lock
    would deadlock. So the work runs in a thread of its own; only a fork and the exit of the process wait for it.
    """
    finalizer = weakref.finalize(owner, _hand_over, partial(work, *args))
    _watch_end()
    return finalizer


@cache
def _watch_end() -> None:
    # After the first finalizer was made, which registered the exit function of `weakref`. The latest function is called
    # first, so `_is_ending` is set before `weakref` calls the remaining finalizers.
    atexit.register(_begin_to_end)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_wait_a_moment)  # otherwise the child could wait forever for a thread's lock


def _hand_over(work: Callable[[], object]) -> None:
    # Queued before a thread starts: if none can start, the work is not lost.
    _due.put(work)
    if _is_ending:
        _clean_up()
    else:
        # `Thread.start` would wait for a lock. If no thread can start any longer, the process's exit does the work.
        with contextlib.suppress(RuntimeError):
            _thread.start_new_thread(_clean_up, ())


def _clean_up() -> None:
    """Do one pending piece of work, unless another thread has taken it."""
    mine = (os.getpid(), threading.get_ident())
    _cleaning.add(mine)
    try:
        with contextlib.suppress(Empty):
            _due.get_nowait()()
    finally:
        _cleaning.discard(mine)


def _begin_to_end() -> None:
    global _is_ending
    _is_ending = True
    while not _due.empty():
        _clean_up()
    _wait_a_moment()


def _wait_a_moment() -> None:
    """Wait until no clean-up of this process is pending or running in another thread, at most `MOMENT_S`."""
    here, until = (os.getpid(), threading.get_ident()), time.monotonic() + MOMENT_S
    while not _due.empty() or any(pid == here[0] and (pid, thread) != here for pid, thread in list(_cleaning)):
        if time.monotonic() > until:
            return
        time.sleep(0.001)
