"""Drive the body of a workflow: coroutines that wait only for steps and for each other.

No event loop runs them. A body is advanced until it waits for a step, and is woken when that step ends. Results are
delivered in the order of the log, one at a time, and a step begins only after all results in the log are delivered: so a
body that is driven again over its log sees everything in the original order.
"""

from __future__ import annotations

from asyncio import CancelledError, Future
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from inspect import iscoroutine
from typing import Any, Generic, TypeVar, cast

from ...errors import OptionsError, WorkflowError
from ...ground.checks import check_settings, number, or_none, shown

R = TypeVar("R")
# The context in which a body runs; a test uses it to refuse reading unrecorded values.
GUARD: ContextVar[Callable[[], AbstractContextManager[object]]] = ContextVar("GUARD", default=nullcontext)


class Restart(BaseException):
    """An exception with which a body ends its history and starts over with these arguments; `except Exception` does not
    catch it.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__("the workflow restarts")
        self.arguments = arguments


class Promise(Generic[R]):
    """A result that a body may wait for. `begin` is called when the body starts to wait, `cancel` when it stops waiting."""

    def __init__(self, body: FlowBody) -> None:
        self.body = body
        self.is_done = self.is_cancelled = False
        self._value: Any = None
        self.error: BaseException | None = None
        self._waiters: list[Callable[[], object]] = []

    def __await__(self) -> Generator[Any, Any, R]:
        if self.body.current is None and not self.is_done:
            raise WorkflowError(
                "a workflow awaits its steps only in its body: run several at once with flow.gather(), not in tasks"
            )
        if not self.is_done:
            yield self
        return self.result()

    def result(self) -> R:
        """Return the value of a promise that is done, or raise its error."""
        if self.error is not None:
            raise self.error
        return cast(R, self._value)

    def finish(self, value: Any = None, error: BaseException | None = None) -> None:
        """End with a value or an error, once, and wake all waiters."""
        if self.is_done:
            return
        self.is_done, self._value, self.error = True, value, error
        # Replaced first: a waiter may call `when_done` of this promise again.
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()

    def when_done(self, wake: Callable[[], object]) -> None:
        """Call `wake` when this promise ends, or now if it has already ended."""
        if self.is_done:
            wake()
        else:
            self._waiters.append(wake)

    def begin(self) -> None:
        """Start, unless already started."""

    def cancel(self) -> None:
        """End as soon as possible, with `CancelledError`."""


class Branch(Promise[Any]):
    """One coroutine of a body. `path` is the prefix of its steps' ids, `step_count` their number so far."""

    def __init__(self, body: FlowBody, work: Coroutine[Any, Any, Any], path: str) -> None:
        super().__init__(body)
        self.path, self.step_count = path, 0
        self._work = work
        body.works.add(work)
        self._has_begun = False
        self._waits_for: Promise[Any] | None = None
        self._raises: BaseException | None = None

    def next_id(self) -> str:
        """Return the id for the next step that this branch creates, and count the step."""
        self.step_count += 1
        return f"{self.path}{self.step_count}"

    def begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self.body.ready.append(self)

    def cancel(self) -> None:
        if self.is_done or self.is_cancelled:
            return
        self.is_cancelled = True
        if not self._has_begun:
            # A coroutine that never began has nothing to clean up, and `throw` would run none of its code either.
            self._work.close()
            self.finish(error=CancelledError())
        elif self._waits_for is None or self._waits_for.is_done:
            self._raises = CancelledError()  # it is ready, and gets the error when it is advanced
        else:
            self._waits_for.cancel()

    def advance(self) -> None:
        """Run the coroutine until it waits for something or ends."""
        self.body.current, self._waits_for = self, None
        error, self._raises = self._raises, None
        try:
            with self.body.guard():
                waits_for = self._work.send(None) if error is None else self._work.throw(error)
        except StopIteration as stop:
            self.finish(stop.value)
        except (Exception, CancelledError, Restart) as failure:  # noqa: BLE001 - any error of a body goes to its waiter
            self.finish(error=_explained(failure))
        except KeyboardInterrupt:  # Ctrl-C is meant for the program, not for one of its workflows
            raise
        except BaseException as failure:  # noqa: BLE001 - sys.exit() in a body must not end a worker that runs many
            error = WorkflowError(f"the body of the workflow raised {type(failure).__name__}: {failure}")
            error.__cause__ = failure
            self.finish(error=error)
        else:
            self._wait_for(waits_for)
        finally:
            self.body.current = None
        if self.is_done:
            self.body.works.discard(self._work)

    def _wait_for(self, waits_for: Any) -> None:
        if not isinstance(waits_for, Promise):
            # Its work must not continue unobserved, and asyncio must not report its error as never retrieved.
            if isinstance(waits_for, Future):
                waits_for.add_done_callback(_take_error)
                waits_for.cancel()
            self._raises = WorkflowError(
                f"the body of a workflow awaits {shown(waits_for)}, which is not recorded in the log: await only "
                "flow.step(), flow.sleep() and the like, and do everything else in a step"
            )
            self.body.ready.append(self)
            return
        self._waits_for = waits_for
        waits_for.when_done(lambda: self.body.ready.append(self))
        waits_for.begin()


def _take_error(future: Future[Any]) -> None:
    """Take the error of a future that nobody awaits, which asyncio would report as never retrieved."""
    if not future.cancelled():
        future.exception()


def _explained(failure: BaseException) -> BaseException:
    """The error to report for a body's failure: the failure itself, unless asyncio raised it.

    asyncio fails there because a body is not a task; its error is replaced by one that names alternatives.
    """
    place = failure.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if not isinstance(failure, RuntimeError) or place is None:
        return failure
    if not str(place.tb_frame.f_globals.get("__name__")).startswith("asyncio."):
        return failure
    error = WorkflowError(
        f"asyncio cannot be used in the body of a workflow ({failure}): limit a time with flow.first(..., flow.sleep(s)), "
        "run several at once with flow.gather(), and do everything else in a step"
    )
    error.__cause__ = failure
    return error


class Together(Promise[list[Any]]):
    """Several concurrent promises, at most `limit` at a time (None: all); the result is the list of their results.

    The first failure cancels the others; with `keeps_errors`, failures are results instead.
    """

    def __init__(
        self, body: FlowBody, path: str, members: Sequence[Awaitable[Any]], limit: int | None, keeps_errors: bool
    ) -> None:
        super().__init__(body)
        check_settings({"limit": limit}, {"limit": or_none(number(1, whole=True))}, "flow.gather: ")
        # Members beyond the limit may never begin, and Python warns about a coroutine that is neither awaited nor
        # closed.
        body.works.update(filter(iscoroutine, members))
        for member in members:
            body.idle.pop(member, None) if isinstance(member, Promise) else None
        for member in members:
            if not isinstance(member, Awaitable):
                raise OptionsError(f"flow.gather() and flow.first() accept steps and coroutines, not {shown(member)}")
        self._members, self._path = members, path
        self._limit = limit or max(1, len(members))
        self._keeps_errors = keeps_errors
        self._begun: list[Promise[Any]] = []
        self._at_work = 0
        self._has_begun = self._is_going_on = False
        self._failure: BaseException | None = None
        self._first: Any = None

    def begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._go_on()

    def cancel(self) -> None:
        if not self.is_done and not self.is_cancelled:
            self.is_cancelled = True
            self._end(CancelledError())

    def _go_on(self) -> None:
        if self._is_going_on:  # a member that ends at once is handled by the loop that began it
            return
        self._is_going_on = True
        while self._failure is None and self._at_work < self._limit and len(self._begun) < len(self._members):
            each = self._members[len(self._begun)]
            member = each if isinstance(each, Promise) else self._branch(each)
            self._begun.append(member)
            self._at_work += 1
            member.begin()
            member.when_done(partial(self._take, member))
        self._is_going_on = False
        if not self._at_work and not self.is_done:
            if self._failure is not None:
                self.finish(error=self._failure)
            else:
                self.finish([member.error or member.result() for member in self._begun])

    def _branch(self, each: Awaitable[Any]) -> Branch:
        if not iscoroutine(each):
            raise WorkflowError(f"flow.gather() accepts steps and coroutines, not {shown(each)}")
        return Branch(self.body, each, f"{self._path}-{len(self._begun) + 1}-")

    def _take(self, member: Promise[Any]) -> None:
        self._at_work -= 1
        if member.error is not None and not self._keeps_errors:
            self._end(member.error)
        self._go_on()

    def _end(self, failure: BaseException) -> None:
        """Cancel what is running and begin nothing more."""
        if self._failure is None:
            self._failure = failure
            for each in self._members[len(self._begun) :]:
                if iscoroutine(each):
                    each.close()
            # They end in their turn: the failure is raised only once none of them is running (`_go_on`).
            for member in self._begun:
                member.cancel()
        self._go_on()


class First(Together):
    """Several concurrent promises; the result is the position and value of the first to end, or its error.

    The others are cancelled.
    """

    def _take(self, member: Promise[Any]) -> None:
        if self._failure is None and member.error is None:
            self._first = self._begun.index(member), member.result()
            self._at_work -= 1
            self._end(_Over())
        else:
            super()._take(member)

    def finish(self, value: Any = None, error: BaseException | None = None) -> None:
        super().finish(*((self._first,) if isinstance(error, _Over) else (value, error)))


class _Over(Exception):
    """A marker that one of the promises has ended first."""


class FlowBody:
    """The state of one workflow's body.

    `ready` are the branches that can continue, `current` is the one being advanced, `works` are all unfinished coroutines.
    `step_places` maps the numbers of the steps created to their places in the code, `idle` maps promises that were created
    and have not been awaited yet to their names.
    """

    def __init__(self) -> None:
        self.ready: deque[Branch] = deque()
        self.current: Branch | None = None
        self.works: set[Any] = set()
        self.step_places: dict[str, str] = {}
        self.idle: dict[Promise[Any], str] = {}
        self.guard = GUARD.get()

    def advance(self) -> None:
        """Run every branch as far as possible."""
        while self.ready:
            self.ready.popleft().advance()

    def close(self) -> None:
        """Close all coroutines where they are: a parked run continues from its log. No further step can be created."""
        self.ready.clear()
        for work in self.works:
            with suppress(Exception, CancelledError):  # its next run repeats whatever the body does now
                work.close()
        self.works.clear()
