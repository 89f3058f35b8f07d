"""Run blocking code beside the event loop: ours in a thread that is waited for, somebody's in one that is left behind.

A thread per call, not the loop's executor: its few workers would be held by slow calls, and its threads stay.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from functools import partial
from typing import Any


async def run_in_thread(
    work: Callable[[], Any], cancelled: threading.Event | None = None, name: str = "openagentic-tool"
) -> Any:
    """What `work` returns or raises, from a thread of its own that has ended when this comes back.

    When this is cancelled, `cancelled` is set for the work to see, and its end is waited for all the same.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    thread = threading.Thread(target=_carry, args=(work, loop, done), name=name, daemon=True)
    thread.start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        if cancelled is not None:
            cancelled.set()
        await _wait_out(done)
        raise
    finally:
        thread.join()  # it has handed over its outcome and only has to return


async def _wait_out(done: asyncio.Future[Any]) -> None:
    """Wait for a thread's end through any number of further cancellations, and drop what it returned."""
    while not done.done():
        try:
            await asyncio.wait({done})
        except asyncio.CancelledError:
            continue
    if not done.cancelled():
        done.exception()


async def in_daemon_thread(work: Callable[[], Any], name: str) -> Any:
    """What `work` returns or raises, from a daemon thread of its own.

    A cancelled wait leaves the thread to its own end: Python cannot stop it, and it does not keep the process alive.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    in_context = partial(contextvars.copy_context().run, work)
    threading.Thread(target=_carry, args=(in_context, loop, done), name=name, daemon=True).start()
    try:
        return await done
    except asyncio.CancelledError:
        if done.done() and not done.cancelled() and done.exception() is None:
            _drop(done.result())  # it came in the same turn of the loop as the end of the wait
        raise


def _carry(work: Callable[[], Any], loop: asyncio.AbstractEventLoop, done: asyncio.Future[Any]) -> None:
    """The body of a thread: do the work and hand its outcome over."""
    result: Any = None
    failure: BaseException | None = None
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - carried to the caller, whatever it is
        failure = error
    try:
        loop.call_soon_threadsafe(_settle, done, result, failure)
    except RuntimeError:  # the loop is gone: the work has outlived its run, and its answer is not waited for
        _drop(result)


def _drop(result: Any) -> None:
    """A coroutine that nobody will await is closed, or Python would warn that it never was."""
    if inspect.iscoroutine(result):
        result.close()


def _settle(done: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
    if done.done():
        _drop(result)
    elif failure is None:
        done.set_result(result)
    elif isinstance(failure, StopIteration):  # a future refuses it
        done.set_exception(RuntimeError("StopIteration was raised"))
    else:
        done.set_exception(failure)
