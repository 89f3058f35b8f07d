"""Run somebody's blocking code beside the event loop, in a thread that nobody has to wait for."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any


async def in_daemon_thread(work: Callable[[], Any], name: str) -> Any:
    """What `work` returns or raises, from a daemon thread of its own.

    A cancelled wait leaves the thread to its own end: Python cannot stop it, and it does not keep the process alive.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def body() -> None:
        result: Any = None
        failure: BaseException | None = None
        try:
            result = context.run(work)
        except BaseException as error:  # noqa: BLE001 - carried to the caller, whatever it is
            failure = error
        # The loop may be gone when the work outlives its run; then nobody waits for the answer.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, done, result, failure)

    threading.Thread(target=body, name=name, daemon=True).start()
    return await done


def _settle(done: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
    if done.done():
        if inspect.iscoroutine(result):
            result.close()
    elif failure is None:
        done.set_result(result)
    elif isinstance(failure, StopIteration):  # a future refuses it
        done.set_exception(RuntimeError("StopIteration was raised"))
    else:
        done.set_exception(failure)
