"""Kill an agent or a workflow at every point, let it continue, and report broken promises.

    def build(life):
        @tool
        def book(table: int) -> str:
            life.effect(f"table {table}")
            return "booked"

        options = OpenAgenticOptions(..., tools=[book], session_store=life.store, session="dinner", request_id="dinner")
        return run(prompt="A table, please.", options=options)

    def check(outcome):
        assert outcome.effects == ("table 4",)

    crash_everywhere(build, check)

`build` does what a process of yours does at its start: it begins the work, or continues what is in the store. The first
life of the work runs to its end. Then, for each store operation and for each effect of that life, one life is killed before
it and another one after it; a second life continues, and its outcome is judged. A kill is simulated: from that moment on,
nothing that the life does reaches the store or the world, whatever its `finally` blocks try. With `real`, each life to be
killed is a process, and is ended by SIGKILL.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from ..errors import OptionsError
from ..events import Event, ModelRequest, ModelResponse, ToolResult, ToolUse, UserQuestion
from ..ground.checks import check_settings, number, or_none
from ..ground.frozen import frozen
from ..ground.text import on_one_line
from ..ground.threads import error_words
from ..parts.record.folds.audit import rebuild_requests
from ..serialization import dumps_json, loads_json
from ..sessions.base import SessionStore
from ..sessions.core import SessionWriter
from ..sessions.folds.view import KeptView
from ..sessions.memory import MemorySessionStore
from ..sessions.rebuild import rebuild_messages
from ..sessions.store import FileSessionStore
from .validity import find_fault

_SOME = number(1, whole=True)  # a test that kills nothing would promise everything
T = TypeVar("T")
R = TypeVar("R")
_MOST_SHOWN = 5
_MAX_CHARS = 300


class Killed(BaseException):
    """Raised when a life is over. Code that catches it continues in vain: nothing that it does is stored."""


@frozen
class Moment:
    """The moment at which a life is killed: before or after the store operation or effect with this number, from 1."""

    number: int
    is_behind: bool
    what: str

    def __str__(self) -> str:
        return f"{'after' if self.is_behind else 'before'} {self.number}, {self.what}"


class World:
    """Everything that outlives a process: stored data, effects, and other data of a test."""

    def __init__(self, *, real: bool) -> None:
        self.real = real
        self.things: dict[str, Any] = {}
        self._effects: list[str] = []
        self._memory = MemorySessionStore()

    @cached_property
    def folder(self) -> Path:
        """A private folder, created on first use."""
        return Path(tempfile.mkdtemp(prefix="crash-"))

    def effects(self) -> tuple[str, ...]:
        """The effects, in order."""
        with suppress(FileNotFoundError):
            if self.real:
                return tuple(map(loads_json, (self.folder / ".effects").read_text(encoding="utf-8").splitlines()))
        return tuple(self._effects)

    def take_effect(self, what: str) -> None:
        if not self.real:
            self._effects.append(what)
            return
        with open(self.folder / ".effects", "a", encoding="utf-8") as file:
            file.write(f"{dumps_json(what)}\n")

    def open_store(self, life: Life) -> SessionStore:
        """Open the store for this life. Earlier lives no longer hold its sessions."""
        if self.real:
            return _make_mortal(FileSessionStore(self.folder / "store", durability="flush"), life)
        # A new object over the same data, like a new process: whatever the dead life still holds is not in it.
        store = MemorySessionStore()
        vars(store).update((name, value) for name, value in vars(self._memory).items() if name[0] == "_")
        for session in store._sessions.values():
            session.is_held = False
            session.epoch += 1  # so that a surviving thread of an earlier life cannot write
        self._memory = store
        return _make_mortal(store, life)

    def close(self) -> None:
        if "folder" in vars(self):
            shutil.rmtree(self.folder, ignore_errors=True)


class Life:
    """One process that does the work: its store and its effects, until it is killed.

    `number` counts the lives of the work from 1. `things`, a dict, and `folder` outlive it, and are new for each point at
    which the work is killed; `things` set by a process that is really killed are lost with it.
    """

    def __init__(self, world: World, number: int = 1, moment: Moment | None = None) -> None:
        self.number = number
        self.things = world.things
        self.seen: list[str] = []
        self.is_dead = False
        self._world, self._moment, self._guard = world, moment, threading.RLock()
        self.store = world.open_store(self)

    @property
    def folder(self) -> Path:
        """A folder for data that the work stores outside its store."""
        return self._world.folder

    def effect(self, what: str) -> None:
        """Record an effect on the world.

        A text that is recorded more than once, and more often than in the first life, is a doubled effect: a repeatable
        tool must use its `idempotency_key` to skip an effect that may happen only once.
        """
        self.do(f"effect {what!r}", partial(self._world.take_effect, what))

    def do(self, what: str, work: Callable[[], R]) -> R:
        """Do one thing with a lasting effect. The life may be killed before or after it."""
        with self._guard:
            # A dead life's `finally` blocks and threads continue: whatever they try must not last.
            self._die(self.is_dead)
            self.seen.append(what)
            moment = self._moment
            is_here = moment is not None and moment.number == len(self.seen)
            self._die(is_here and moment is not None and not moment.is_behind)
            done = work()
            self._die(is_here)
            return done

    def _die(self, is_over: bool) -> None:
        if is_over:
            self.is_dead = True
            if self._world.real:
                os.kill(os.getpid(), signal.SIGKILL)
            raise Killed


class _MortalWriter(SessionWriter):
    """The writer of a session in a life that may be killed."""

    def __init__(self, life: Life, inner: SessionWriter) -> None:
        self.session_id = inner.session_id
        self.epoch = inner.epoch
        self._life, self._inner = life, inner

    @property
    def last_seq(self) -> int:
        return self._inner.last_seq

    def append(self, events: Sequence[Event]) -> list[Event]:
        what = f"{', '.join(event.type for event in events)} in session {self.session_id!r}"
        return self._life.do(what, partial(self._inner.append, events))

    def keep_view(self, view: KeptView) -> None:
        self._life.do("a checkpoint", partial(self._inner.keep_view, view))

    def waits_for_disk(self, events: Sequence[Event]) -> bool:
        return self._inner.waits_for_disk(events)

    def close(self) -> None:
        if not self._life.is_dead:
            self._inner.close()


# The store's methods that change stored data, and their descriptions. Appends go through the writers.
_CHANGES = {
    "create_session": "a new session",
    "copy_session": "a copied session",
    "update_metadata": "metadata",
    "claim_request": "the claim of a request",
    "put_blob": "a blob",
    "put_message": "a message",
    "remove_messages": "messages that were read",
    "delete_session": "a deleted session",
}


def _make_mortal(store: SessionStore, life: Life) -> SessionStore:
    """Make every change of the store a point at which this life may be killed."""

    def change(what: str, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return life.do(what, partial(inner, *args, **kwargs))

    open_writer = store.open_writer
    for name, what in _CHANGES.items():
        vars(store)[name] = partial(change, what, getattr(store, name))
    vars(store)["open_writer"] = lambda session_id: _MortalWriter(life, open_writer(session_id))
    return store


@frozen
class CrashOutcome(Generic[T]):
    """The outcome of the work, however often it was killed: `result` is what the last life returned.

    `effects` are those of all lives, in order, `moments` the points at which lives were killed.
    """

    result: T
    store: SessionStore
    effects: tuple[str, ...]
    folder: Path | None = None
    things: Mapping[str, Any] = field(default_factory=dict)
    moments: tuple[Moment, ...] = ()

    @cached_property
    def events(self) -> Mapping[str, Sequence[Event]]:
        """The events of each session in the store, by id."""
        return {name: self.store.read_events(name) for name in sorted(self.store.list_sessions())}


@frozen
class Broken:
    """A broken promise, and the moments at which the work was killed.

    `promise` is `an effect twice`, `a lost answer`, `an invalid request`, `another result`, `no end`, or `check`, the
    caller's own.
    """

    promise: str
    moments: tuple[Moment, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.text} (killed {'; then '.join(map(str, self.moments))})"


@frozen
class CrashReport:
    """The findings of `crash_report`.

    `points` is the number of points at which the work was killed, `lives` the number of its starts.
    """

    points: int
    lives: int
    duration_s: float
    broken: tuple[Broken, ...] = ()

    def __str__(self) -> str:
        summary = f"{self.points} crash points, {self.lives} lives, {self.duration_s:.1f} s"
        if not self.broken:
            return f"every promise held: {summary}"
        counts = ", ".join(f"{name} ({count})" for name, count in Counter(each.promise for each in self.broken).items())
        first = {each.promise: each for each in reversed(self.broken)}.values()
        shown_breaks = [*first, *(each for each in self.broken if each not in first)][: max(_MOST_SHOWN, len(first))]
        return "\n".join([f"broken: {counts}; {summary}", *(f"  {each}" for each in shown_breaks)])


Build = Callable[[Life], "Awaitable[T] | T"]


def crash_everywhere(
    build: Build[T], check: Callable[[CrashOutcome[T]], object] | None = None, **how: Any
) -> CrashReport:
    """Return the report of `crash_report`; raise `AssertionError` with the broken promises, if there are any."""
    report = crash_report(build, check, **how)
    if report.broken:
        raise AssertionError(str(report))
    return report


def crash_report(
    build: Build[T],
    check: Callable[[CrashOutcome[T]], object] | None = None,
    *,
    real: bool = False,
    deaths: int = 1,
    points: int | None = None,
    seed: int = 0,
) -> CrashReport:
    """Kill the work of `build` at every point, let it continue, and judge the outcome.

    `check` raises `AssertionError` for further problems. With `real`, a life is a process that stores files and is killed
    by SIGKILL; the caller must then have only one thread. With `deaths` above 1 the continuing lives are killed, too, at
    points drawn by `seed`. `points` is how many of all points are drawn; None tries each. The work must be the same each
    time: a scripted model is `ScriptedProvider(turns, resumable=True)`. If a call ended as `unknown`, the model may answer
    differently: then the result is left to `check`. Raises `OptionsError` if the work has no point at which to kill it, or
    if `deaths` or `points` is below 1.
    """
    check_settings({"deaths": deaths, "points": points}, {"deaths": _SOME, "points": or_none(_SOME)})
    began, lives = time.monotonic(), 1
    world = World(real=real)
    try:
        first = Life(world)
        reference = _outcome(world, first, _live(build, first), ())
        moments = [Moment(n, is_behind, what) for n, what in enumerate(first.seen, 1) for is_behind in (False, True)]
        if not moments:
            raise OptionsError("nothing can be killed: build stored no event in life.store and called no life.effect()")
        standard = _Standard.of(reference)
        broken = list(_judge(standard, reference, {}, check))
    finally:
        world.close()
    rng = random.Random(seed)
    if points is not None and points < len(moments):
        moments = sorted(rng.sample(moments, points), key=lambda moment: (moment.number, moment.is_behind))
    for moment in moments:
        world = World(real=real)
        try:
            life_count, breaks = _crash(build, check, world, standard, [moment], deaths, rng)
        finally:
            world.close()
        lives += life_count
        broken += breaks
    return CrashReport(len(moments), lives, round(time.monotonic() - began, 3), tuple(broken))


def _crash(
    build: Build[T],
    check: Callable[[CrashOutcome[T]], object] | None,
    world: World,
    standard: _Standard,
    moments: list[Moment],
    deaths: int,
    rng: random.Random,
) -> tuple[int, list[Broken]]:
    """Kill the work one or more times, and judge its end; return its number of lives and its broken promises."""
    killed: list[Moment] = []
    for death in range(1, deaths + 1):
        # The length of a continued life is unknown; if the number is beyond its end, the life is not killed.
        moment = moments[0] if death == 1 else Moment(rng.randint(1, 40), rng.random() < 0.5, "drawn")
        seen = _die(build, world, death, moment)
        if seen is None:
            break  # it ended before
        killed.append(Moment(moment.number, moment.is_behind, seen))
    life = Life(world, len(killed) + 1)
    stored_events = {name: [*life.store.iter_events(name)] for name in life.store.list_sessions()}
    try:
        outcome = _outcome(world, life, _live(build, life), tuple(killed))
    except Exception as error:  # noqa: BLE001 - the work may raise anything, and any error breaks a promise
        return life.number, [Broken("no end", tuple(killed), ": ".join(error_words(error)))]
    return life.number, list(_judge(standard, outcome, stored_events, check))


def _die(build: Build[T], world: World, number: int, moment: Moment) -> str | None:
    """Let one life do the work until the moment; return what it was doing then, None if it ended before."""
    if not world.real:
        life = Life(world, number, moment)
        # A killed life may end with any error; one that ends before the moment is judged by the life after it.
        with suppress(Exception, Killed, asyncio.CancelledError):
            _live(build, life)
        return life.seen[moment.number - 1] if life.is_dead else None
    process = os.fork()
    if process == 0:
        try:
            _live(build, Life(world, number, moment))
        finally:
            # Whatever it raised: the cleanup of the test process must not run in its copy.
            os._exit(0)
    status = os.waitpid(process, 0)[1]
    return moment.what if os.WIFSIGNALED(status) else None


def _live(build: Build[T], life: Life) -> T:
    result = build(life)
    return asyncio.run(_awaited(result)) if isinstance(result, Awaitable) else result


async def _awaited(work: Awaitable[T]) -> T:
    # Do not report the unfinished tasks and unretrieved errors of a killed life.
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    return await work


def _outcome(world: World, life: Life, result: T, moments: tuple[Moment, ...]) -> CrashOutcome[T]:
    folder = world.folder if "folder" in vars(world) else None
    return CrashOutcome(result, life.store, world.effects(), folder, world.things, moments)


@runtime_checkable
class Answered(Protocol):
    """The result of an agent's run, as far as two outcomes of the work are compared."""

    final_text: str
    stop_reason: str
    structured_output: Any


@frozen
class _Standard:
    """The outcome of the work without kills, and how often things happened that must not be repeated."""

    value: Any
    effects: Mapping[str, int]
    answers: Mapping[str, int]
    questions: Mapping[str, int]
    is_closed: bool

    @classmethod
    def of(cls, outcome: CrashOutcome[Any]) -> _Standard:
        return cls(
            _value(outcome.result),
            Counter(outcome.effects),
            Counter(_answered(outcome)),
            Counter(_open_questions(outcome)),
            not any(map(_open_calls, outcome.events.values())),
        )


def _judge(
    standard: _Standard,
    outcome: CrashOutcome[T],
    stored_events: Mapping[str, Sequence[Event]],
    check: Callable[[CrashOutcome[T]], object] | None,
) -> Iterator[Broken]:
    """Yield the promises that the outcome breaks. `stored_events` is the state when the last life began."""

    def broken(promise: str, text: str) -> Broken:
        return Broken(promise, outcome.moments, on_one_line(text, _MAX_CHARS))

    for what, count in _more(outcome.effects, standard.effects):
        yield broken("an effect twice", f"{what!r} took place {count} times")
    for name, events in stored_events.items():
        if list(outcome.events.get(name, ())[: len(events)]) != list(events):
            yield broken("a lost answer", f"the contents of session {name!r} no longer exist")
    for what, count in _more(_answered(outcome), standard.answers):
        yield broken("a lost answer", f"the model was asked {count} times, and had answered before: {what}")
    for what, count in _more(_open_questions(outcome), standard.questions):
        yield broken("a lost answer", f"a person was asked {count} times: {what}")
    is_unknown = False
    for name, events in outcome.events.items():
        fault = next(filter(None, map(find_fault, _requests(events))), None)
        if fault is not None:
            yield broken("an invalid request", f"session {name!r}: {fault}")
        is_unknown = is_unknown or any(isinstance(e, ToolResult) and e.outcome == "unknown" for e in events)
        if standard.is_closed and (open_calls := _open_calls(events)):
            yield broken("no end", f"session {name!r} has calls without a result: {', '.join(open_calls)}")
    value = _value(outcome.result)
    if value != standard.value and not is_unknown:
        yield broken("another result", f"{value!r} instead of {standard.value!r}")
    try:
        if check is not None:
            check(outcome)
    except AssertionError as error:
        yield broken("check", str(error) or "AssertionError")


def _more(items: Iterable[str], allowed: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield each item that occurs more than once, and more often than is allowed, with the number of its occurrences."""
    return ((what, count) for what, count in Counter(items).items() if count > max(1, allowed.get(what, 0)))


def _answered(outcome: CrashOutcome[Any]) -> Iterator[str]:
    """Yield the digest and the step of each request that has a complete answer in a log."""
    for events in outcome.events.values():
        request: ModelRequest | None = None
        for event in events:
            if isinstance(event, ModelRequest):
                request = event
            elif isinstance(event, ModelResponse) and event.complete and request is not None:
                yield f"request {request.request_sha256[:16]}, step {request.step}"


def _open_questions(outcome: CrashOutcome[Any]) -> Iterator[str]:
    for name, events in outcome.events.items():
        for event in events:
            if isinstance(event, UserQuestion):
                yield f"{event.prompt} (call {event.tool_use_id} of session {name!r})"


def _requests(events: Sequence[Event]) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Yield the messages of each request of a log, and those of the next request.

    A request that the log does not rebuild is followed by a message that no provider would accept.
    """
    for request in rebuild_requests(events):
        yield request.messages
        if not request.matches:
            yield [{"role": f"a request that differs from the log, at event {request.seq}"}]
    yield rebuild_messages(events)


def _open_calls(events: Sequence[Event]) -> list[str]:
    names = {event.tool_use_id: event.name for event in events if isinstance(event, ToolUse)}
    for event in events:
        if isinstance(event, ToolResult):
            names.pop(event.tool_use_id, None)
    return [f"{name} ({call_id})" for call_id, name in names.items()]


def _value(result: Any) -> Any:
    """The part of a result that must be the same each time."""
    if isinstance(result, Answered):
        return result.stop_reason, result.final_text, result.structured_output
    return result
