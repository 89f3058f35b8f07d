"""Run code that may never return. Cancelled code gets a moment to end, and is then abandoned.

Python can stop neither a thread nor a coroutine that swallows its cancellation. So both run apart from their caller: a
blocking call in a thread of its own (the loop's executor has few workers, which slow calls would occupy), foreign
coroutines in a task of their own. Abandoned work is named in the list that `collect_left` returned.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import math
import os
import signal
import threading
import traceback
import types
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from itertools import dropwhile
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from ..errors import EventLoopError, OpenAgentSdkError

T = TypeVar("T")

# How long, in seconds, cancelled code may take to end: a thread, and a coroutine, which may be waiting for a thread.
THREAD_MOMENT_S = 1.0
GUEST_MOMENT_S = 2.0

# Frames in these folders only lead to a guest's code: this package, and asyncio.
_OWN_FOLDERS = (os.path.dirname(os.path.dirname(__file__)) + os.sep, os.path.dirname(asyncio.__file__) + os.sep)

_left_tasks: set[asyncio.Task[None]] = set()
_left: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar("left_behind", default=None)
_kept_threads: contextvars.ContextVar[KeptThreads | None] = contextvars.ContextVar("kept_threads", default=None)


def running_loop(what: str) -> asyncio.AbstractEventLoop:
    """Return the running event loop. Raises `EventLoopError`, with advice, outside asyncio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise EventLoopError(
            f"{what} needs asyncio's event loop, and none is running here (trio and curio have their own): start with "
            "asyncio.run(), or call run_sync() in a thread"
        ) from None


def collect_left() -> list[str]:
    """Return a list that collects the names of everything this context and its copies leave running from now on."""
    names: list[str] = []
    _left.set(names)
    return names


def note_left(name: str) -> None:
    """Record that something was abandoned: it still runs, and nobody waits for it."""
    names = _left.get()
    if names is not None:
        names.append(name)


# --- threads ---------------------------------------------------------------------------------------------------------


async def run_in_thread(
    work: Callable[[], T],
    cancelled: threading.Event | None = None,
    name: str = "openagentic-tool",
    *,
    keep: bool = False,
    moment_s: float = THREAD_MOMENT_S,
) -> T:
    """Run `work` in a daemon thread, its own or with `keep` one of `KeptThreads`; return or raise its outcome.

    On cancellation, `cancelled` is set for the work to see, and after `moment_s` seconds the work is abandoned.
    """
    done = start_thread(work, name, keep=keep)
    try:
        await wait_until(done)
        return done.result()
    except asyncio.CancelledError:
        if cancelled is not None:
            cancelled.set()
        await _wait_a_moment(done, moment_s)
        if not done.done():
            note_left(f"thread {name}")
            if not keep:
                done.cancel()  # nobody waits for its result any longer
        elif not done.cancelled() and done.exception() is None:
            _drop(done.result())  # the result arrived after the wait was over
        raise


async def ask_callable(work: Callable[[], Any], name: str) -> Any:
    """Call a user's callable and return its result; plain code runs in a thread of its own, async code is awaited."""
    value = work() if inspect.iscoroutinefunction(work) else await run_in_thread(work, name=name, moment_s=0)
    return await value if inspect.isawaitable(value) else value


def start_thread(work: Callable[[], T], name: str, *, keep: bool = False) -> asyncio.Future[T]:
    """Start `work` in a daemon thread with a copy of this context; the future gets its outcome if the loop still runs.

    `keep` is for this package's own code, which leaves no state behind in a thread: it may run in one of `KeptThreads`.
    """
    loop = running_loop("this call, which waits for a thread,")
    done: _ThreadOutcome[T] = _ThreadOutcome(loop=loop)
    # With the context, so that whatever the work leaves running is named in the list of this run.
    carry = partial(_carry, partial(contextvars.copy_context().run, work), loop, done)
    keeper = _kept_threads.get() if keep else None
    if keeper is not None and keeper.is_open and keeper.loop is loop:
        keeper.do(carry, name)
        return done
    # After handing over its outcome, the thread only has to return, so joining it then is short.
    # A daemon: a call that never returns must not keep the process from ending.
    thread = threading.Thread(target=lambda: carry(thread.join), name=name, daemon=True)
    thread.start()
    return done


class KeptThreads:
    """The threads of one run, reused because starting a thread costs more than most of their work.

    Only the run's event loop assigns and reclaims them; code in another loop, and so in a forked process, starts its own
    threads. A thread that hangs is never reclaimed, and ends with its work.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._idle: list[_KeptThread] = []
        self.is_open = True

    def use(self) -> None:
        """Let this context and its copies run suitable work in these threads."""
        _kept_threads.set(self)

    def do(self, work: Callable[[Callable[[], None]], None], name: str) -> None:
        """Run work in an idle thread or a new one; the work receives a callable with which the loop frees the thread."""
        worker = self._idle.pop() if self._idle else _KeptThread()
        worker.thread.name = name
        worker.due.put(partial(work, partial(self._take_back, worker)))

    def close(self) -> None:
        """End the idle threads now, and each of the others after its work."""
        self.is_open = False
        while self._idle:
            self._idle.pop().end()

    def _take_back(self, worker: _KeptThread) -> None:
        if self.is_open:
            self._idle.append(worker)
        else:
            worker.end()


class _KeptThread:
    """A thread that does one piece of work after another, as long as this object is referenced."""

    def __init__(self) -> None:
        self.due: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.thread = threading.Thread(target=_do_all, args=(self.due,), daemon=True)
        self.thread.start()

    def end(self) -> None:
        """End a thread that has delivered the outcome of its last work, and wait until it is gone."""
        self.due.put(None)
        self.thread.join()

    def __del__(self) -> None:
        self.due.put(None)  # safe wherever the garbage collector may run


def _do_all(due: SimpleQueue[Callable[[], None] | None]) -> None:
    while (work := due.get()) is not None:
        work()
        del work  # it keeps its caller's context alive


class _ThreadOutcome(asyncio.Future[T]):
    """The outcome of a thread's work. `waiter` is woken directly: one loop iteration sooner than by a callback."""

    waiter: asyncio.Future[None] | None = None


async def wait_until(done: asyncio.Future[Any], timeout_s: float | None = None) -> None:
    """Wait for the future, at most `timeout_s`, without cancelling it. `asyncio.wait` costs twice as much."""
    if done.done():
        return
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()
    timer = None if timeout_s is None else loop.call_later(timeout_s, _wake, waiter)
    wake = partial(_wake, waiter)
    # Only one waiter can be woken directly; any others use callbacks.
    if isinstance(done, _ThreadOutcome) and (done.waiter is None or done.waiter.done()):
        done.waiter = waiter
    else:
        done.add_done_callback(wake)
    try:
        await waiter
    finally:
        if timer is not None:
            timer.cancel()
        done.remove_done_callback(wake)


def _wake(waiter: asyncio.Future[None], _: object = None) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def settled(
    work: Awaitable[T], on_cancel: Callable[[], object] = lambda: None
) -> tuple[asyncio.Future[T], asyncio.CancelledError | None]:
    """Wait for work to finish through any number of cancellations; return it, and the last of them for the caller to raise.

    `on_cancel` is called for each of them.
    """
    # `asyncio.shield` would return at the first cancellation and leave the work unobserved.
    done = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not done.done():
        try:
            await wait_until(done)
        except asyncio.CancelledError as error:
            cancelled = error
            on_cancel()
    return done, cancelled


def _carry(
    work: Callable[[], Any], loop: asyncio.AbstractEventLoop, done: _ThreadOutcome[Any], free: Callable[[], None]
) -> None:
    """The body of a thread: do the work and deliver its outcome, after the loop has called `free`."""
    result: Any = None
    failure: BaseException | None = None
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - any error is passed to the caller
        failure = error
    try:
        loop.call_soon_threadsafe(_settle, done, result, failure, free)
    except RuntimeError:  # the loop is closed: the work has outlived its run, and nobody waits for it
        _drop(result)


def _drop(result: Any) -> None:
    """Close a coroutine that nobody will await, because Python would warn about it."""
    if inspect.iscoroutine(result):
        result.close()


def _settle(done: _ThreadOutcome[Any], result: Any, failure: BaseException | None, free: Callable[[], None]) -> None:
    free()
    if done.done():
        _drop(result)
    elif failure is None:
        done.set_result(result)
    else:
        is_refused = isinstance(failure, StopIteration)  # by futures
        done.set_exception(RuntimeError("StopIteration was raised") if is_refused else failure)
        done.exception()  # mark it as retrieved: a second Ctrl-C may have ended whoever waited for it
    if done.waiter is not None and not done.waiter.done():
        done.waiter.set_result(None)


async def _wait_a_moment(
    done: asyncio.Future[Any],
    moment_s: float | None,
    busy: Callable[[], bool] | None = None,
    hurried: asyncio.Future[None] | None = None,
) -> None:
    """Wait through any number of cancellations until the future is done or the moment is over; `busy` extends the moment,
    and `hurried` reduces what is left of it to `GUEST_MOMENT_S`.
    """
    now = asyncio.get_running_loop().time
    over = None if moment_s is None else now() + moment_s
    waited: set[asyncio.Future[Any]] = {done} if hurried is None else {done, hurried}
    while not done.done() and (over is None or now() < over or (busy is not None and busy())):
        with contextlib.suppress(asyncio.CancelledError):
            # Never 0: while `busy` extends the moment, this loop would spin.
            left_s = None if over is None else max(over - now(), 0.05)
            await asyncio.wait(waited, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if hurried in waited and hurried.done():
            waited = {done}
            over = min(now() + GUEST_MOMENT_S, math.inf if over is None else over)


@types.coroutine
def next_turn() -> Generator[None, None, None]:
    """Let everything that is ready now run first: `asyncio.sleep(0)` at half its cost."""
    yield


# --- other people's coroutines ---------------------------------------------------------------------------------------


class _LetGoError(BaseException):
    """Thrown into an abandoned guest to end its work, past any code that swallows its cancellations."""


class Guest(Generic[T]):
    """A foreign coroutine running in a task of its own.

    Any exception is kept in `error`, even those that would end the process (`SystemExit` and the like); only a real Ctrl-C
    propagates. `is_left` is true if it did not end when it was cancelled.
    """

    def __init__(self, work: Callable[[], Awaitable[T]], name: str) -> None:
        self.name = name
        self.error: BaseException | None = None
        self.is_left = False
        self._value: T | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._hurried: asyncio.Future[None] | None = None
        self._task = running_loop(name).create_task(self._contain(work))

    @property
    def is_done(self) -> bool:
        """Whether the guest has ended, by itself or on request."""
        return self._task.done()

    async def ended(self) -> None:
        """Wait for the guest's end. A cancellation ends only this wait."""
        if not self._task.done():
            await next_turn()  # a task that has just started is usually done by then
        if not self._task.done():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def end(self, busy: Callable[[], bool] | None = None) -> None:
        """Cancel the guest and give it a moment, longer while `busy`; then abandon it."""
        self._task.cancel()
        await _wait_a_moment(self._task, GUEST_MOMENT_S, busy)
        self._wake()  # a task cancelled before its start has not done this itself
        if not self._task.done():
            self.is_left = True
            note_left(self.name)
            # asyncio references tasks weakly: a task that waits for an otherwise unreferenced object would be collected.
            _left_tasks.add(self._task)
            self._task.add_done_callback(_left_tasks.discard)

    async def wait_a_moment(
        self, moment_s: float | None = GUEST_MOMENT_S, busy: Callable[[], bool] | None = None
    ) -> None:
        """Wait for the guest's end for a moment at most (None: without limit); then do the same as `end`."""
        self._hurried = asyncio.get_running_loop().create_future()
        await _wait_a_moment(self._task, moment_s, busy, self._hurried)
        if not self._task.done():
            await self.end(busy)

    def hurry(self) -> None:
        """Limit `wait_a_moment` to `GUEST_MOMENT_S` from now on."""
        if self._hurried is not None and not self._hurried.done():
            self._hurried.set_result(None)

    def value(self) -> T:
        """Return the guest's value or raise its exception; one that would end the process becomes a `RuntimeError`."""
        if self.error is not None:
            if isinstance(self.error, Exception):
                raise self.error
            raise RuntimeError(f"{self.name} raised {type(self.error).__name__}") from self.error
        return self._value  # type: ignore[return-value]

    async def _contain(self, work: Callable[[], Awaitable[T]]) -> None:
        try:
            self._value = await self._run_until_let_go(work)
        except BaseException as error:  # even `SystemExit`: a guest never ends the process
            if isinstance(error, KeyboardInterrupt) and is_ctrl_c(error):
                # It leaves the event loop by itself; without this, the task would log it, too.
                self._task.add_done_callback(asyncio.Task.exception)
                raise
            self.error = error
        finally:
            self._wake()

    @types.coroutine
    def _run_until_let_go(self, work: Callable[[], Awaitable[T]]) -> Generator[Any, None, T]:
        """Await the work. Once it is abandoned, the next cancellation ends the task even if the work does not."""
        # At the end of the program, `asyncio.run` cancels all tasks, and waits for them.
        coroutine = _awaiting(work)
        thrown: BaseException | None = None
        while True:
            try:
                waited = coroutine.send(None) if thrown is None else coroutine.throw(thrown)
            except StopIteration as end:
                value: T = end.value
                return value
            try:
                thrown = yield waited
            except BaseException as error:  # noqa: BLE001 - pass any error to the work unless it is abandoned
                thrown = error
            if thrown is not None and self.is_left:
                with contextlib.suppress(_LetGoError, Exception):
                    # Not `close()`: before Python 3.13, it would leave an async generator half open.
                    coroutine.throw(_LetGoError())
                raise thrown

    def _wake(self) -> None:
        """Wake those who wait for the end: one loop iteration sooner than the task's own callbacks."""
        while self._waiters:
            waiter = self._waiters.pop()
            if not waiter.done():
                waiter.set_result(None)


async def _awaiting(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


async def call_guest(work: Callable[[], Awaitable[T]], name: str) -> T:
    """Run a foreign coroutine and return or raise its outcome, see `Guest.value`. On cancellation it has a moment to end."""
    guest = Guest(work, name)
    try:
        await guest.ended()
    except asyncio.CancelledError:
        await guest.end()
        raise
    return guest.value()


def error_words(error: BaseException) -> tuple[str, str]:
    """An error's type and message for the log, even if its `__str__` fails; the error of a guest is unwrapped."""
    cause = error.__cause__
    if isinstance(error, RuntimeError) and cause is not None and not isinstance(cause, Exception):
        error = cause
    name = type(error).__name__
    try:
        return name, str(error) or name
    except BaseException as own:  # a guest's `__str__` may raise anything
        if isinstance(own, KeyboardInterrupt) and is_ctrl_c(own):
            raise
        return name, name


def error_trace(error: BaseException) -> str:
    """The traceback of a guest's error in Python's format, without the frames between here and the guest.

    Empty if it cannot be formatted, and for errors by which this package's tools inform the model.
    """
    try:
        trace = traceback.TracebackException.from_exception(error, compact=True)
        frames = list(dropwhile(lambda frame: frame.filename.startswith(_OWN_FOLDERS), trace.stack))
        if not frames and isinstance(error, OpenAgentSdkError | OSError | ValueError):
            return ""
        trace.stack[:] = frames or trace.stack
        return "".join(trace.format())
    except BaseException as own:  # a guest's exception may raise anything when it is formatted
        if isinstance(own, KeyboardInterrupt) and is_ctrl_c(own):
            raise
        return ""


def is_ctrl_c(error: KeyboardInterrupt) -> bool:
    """Whether a person pressed Ctrl-C, as opposed to code that raised `KeyboardInterrupt`.

    A signal reaches only the main thread. A handler written in Python, like that of `asyncio.run`, appears in the traceback
    of its exception. Python's own leaves no trace: while it is installed, every `KeyboardInterrupt` counts as Ctrl-C.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    handler = signal.getsignal(signal.SIGINT)
    code = getattr(handler.func if isinstance(handler, partial) else handler, "__code__", None)
    if code is None:
        return callable(handler)
    return any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__))
