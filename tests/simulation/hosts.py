"""The fleet's own workers on hosts that die, stop, drain and lose their database, one event loop per host.

Some are of an older version: they claim and end runs as it did, and write its rows.

Nothing runs beside anything else: the schedule draws which host takes the next turn of its loop, or which heartbeat is due,
and moves the clock when nobody has work. So every order of two hosts is possible, and a seed repeats it.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, Literal, TypeVar

from openagentic_sdk.agents import Agents, NamedAgent
from openagentic_sdk.errors import FleetError, StorageError
from openagentic_sdk.events import Event, Result, ToolResult, ToolStarted, ToolUse, UserMessage
from openagentic_sdk.fleet import Fleet, Worker, execute_run, lease, standing, worker
from openagentic_sdk.fleet.queue import Claimer, Queue
from openagentic_sdk.fleet.record import OVER, FleetRun, RunOutcome
from openagentic_sdk.ground import backoff
from openagentic_sdk.ground.backoff import Backoff
from openagentic_sdk.ground.threads import next_turn
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.sessions.rebuild import rebuild_messages
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.sessions.stores.sqlite.tables import SqliteTables
from openagentic_sdk.sessions.stores.tables import Tables
from openagentic_sdk.testing.clock import FakeClock
from openagentic_sdk.testing.crash import Killed
from openagentic_sdk.testing.validity import find_fault
from openagentic_sdk.tools.function import tool

from . import older
from .fleet import Times, database, empty
from .history import History
from .loops import FilelessLoop, without_threads
from .runs import EFFECTS, TOOLS, Planner

T = TypeVar("T")
# A drain lets a step finish: the longest, with its model and one tool, takes seven seconds.
LEASE_S, GRACE_S = 6.0, 8.0
# How long a worker without work waits for news.
POLL_S = 4.0
MOST_TURNS, LONGEST_S = 6000, 900.0
Kind = Literal["kill", "stop", "part", "drain", "jump", "cancel"]
# What a fault may wait for: a turn of any host, or something that a host does.
Moment = Literal["turn", "asked", "started", "paid", "claimed", "stored", "beat", "left"]


class HostLoop(FilelessLoop):
    """An event loop that is run one turn at a time by the clock of the schedule."""

    left = 0

    def __init__(self, times: Times) -> None:
        super().__init__()
        self._times = times
        self.set_exception_handler(lambda loop, context: None)  # do not report the tasks of a dead host

    def time(self) -> float:
        return self._times.steady_s

    @property
    def due_at(self) -> float:
        """The time of the next turn that has work."""
        if self._ready:  # type: ignore[attr-defined]
            return 0.0
        timers = (timer.when() for timer in self._scheduled if not timer.cancelled())  # type: ignore[attr-defined]
        return min(timers, default=float("inf"))

    def turn(self, most: int) -> None:
        """Run what is ready, and at most this many of the callbacks that become ready meanwhile."""
        self.left = most
        self.call_soon(self._count)
        self.run_forever()

    def _count(self) -> None:
        self.left -= 1
        if self.left > 0 and self._ready:  # type: ignore[attr-defined]
            self.call_soon(self._count)
        else:
            self.stop()


async def take(seconds: float) -> None:
    """Advance the clock of the schedule."""
    if not seconds:
        return await next_turn()
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    timer = loop.call_later(seconds, lambda: over.done() or over.set_result(None))
    try:
        await over
    finally:
        timer.cancel()


class _WaitsError(BaseException):
    """Leaves the loop of a heart that waits for its next beat."""


class HeartCondition:
    """The condition of a heart, whose thread runs when its wait is over: from its start again, up to its next wait."""

    def __init__(self, host: Host) -> None:
        self.run: Callable[[], None] | None = None
        self.due_at = float("inf")
        self._times, self._is_due, self.is_running = host.all.times, False, False
        host.hearts.append(self)

    def __enter__(self) -> None:
        """Do nothing: nothing runs beside it."""

    def __exit__(self, *error: object) -> None:
        """Do nothing, like `__enter__`."""

    def wait_for(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        if self._is_due or holds():
            self._is_due = False
            return holds()
        self.due_at = self._times.steady_s + timeout_s
        raise _WaitsError

    def notify_all(self) -> None:
        self.due_at = self._times.steady_s if self.run else float("inf")

    def begin(self, run: Callable[[], None]) -> None:
        self.run = run
        self._go_on()

    def turn(self) -> None:
        self._is_due = True
        self._go_on()

    def _go_on(self) -> None:
        assert self.run is not None
        self.is_running = True
        try:
            self.run()
        except _WaitsError:
            return
        except Killed:
            pass
        finally:
            self.is_running = False
        self.run, self.due_at = None, float("inf")


class HostFile:
    """The database as one host reaches it: never again once it is dead, and not while the network is parted."""

    def __init__(self, inner: Any, host: Host) -> None:
        self.inner, self.host = inner, host

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def check(self) -> None:
        if self.host.is_dead:
            raise Killed
        if self.host.all.times.steady_s < self.host.away_until:
            raise StorageError("simulated: the database is away", retryable=True)

    @contextmanager
    def reading(self, session_id: str | None = None) -> Iterator[Any]:
        self.check()
        with self.inner.reading(session_id) as db:
            yield db

    @contextmanager
    def transaction(self, session_id: str | None = None, *, durable: bool = False) -> Iterator[Any]:
        self.check()
        with self.inner.transaction(session_id, durable=durable) as db:
            yield db
        self.note()

    def note(self) -> None:
        self.host.stored_at = self.host.all.times.steady_s
        self.host.reach("stored")
        self.check()

    def changes_one(self, command: str, values: tuple[object, ...], *, durable: bool) -> bool:
        self.check()
        came = bool(self.inner.changes_one(command, values, durable=durable))
        self.note()
        return came


class HostTables(SqliteTables):
    """The fleet's tables as one host reaches them."""

    def __init__(self, file: Any, times: Times) -> None:
        super().__init__(file)
        self._times = times

    def lease_now(self) -> float:
        return self._times.steady_s

    def change(self, work: Callable[..., T], *, steps: int = 1, durable: bool = False, patience_s: float = 30.0) -> T:
        came = super().change(work, steps=steps, durable=durable)
        if self._file.host.loses_answer():  # type: ignore[attr-defined]
            came = super().change(work, steps=steps, durable=durable)
        return came


class HostStore(SqliteSessionStore):
    """The store as one host reaches it. The kernel releases the locks of its writers when it dies."""

    def __init__(self, inner: SqliteSessionStore, host: Host) -> None:
        vars(self).update(vars(inner))
        self._file = HostFile(inner._file, host)  # type: ignore[assignment]
        self._times = host.all.times
        self.writers: list[Any] = []

    def tables(self) -> Tables:
        return HostTables(self._file, self._times)

    def _new_writer(self, *at: Any) -> Any:
        self.writers.append(super()._new_writer(*at))
        return self.writers[-1]


class OlderHostStore(HostStore):
    """The store of a worker of an older version: it appends in transactions, and writes rows in another form."""

    def _write(self, db: Any, key: int, head: Any, events: Sequence[Event]) -> Any:
        after = super()._write(db, key, head, events)
        older.age_row_in_database(db, key)
        return after

    def _append_one(self, *at: Any) -> bool:
        return False


class HostQueue(Queue):
    """The queue, which notes for the model who holds a lease, and when."""

    def __init__(self, tables: Tables, host: Host) -> None:
        super().__init__(tables)
        self._host = host

    def claim(self, who: Claimer, *, run_id: int | None = None) -> FleetRun | None:
        run = super().claim(who, run_id=run_id)
        if run is not None:
            self._host.all.note_claim(self._host, run)
            self._host.reach("claimed")
        return run

    def beat(self, fences: Mapping[int, int], lease_s: float, patience_s: float) -> dict[int, bool]:
        self._host.reach("beat")
        self._host.all.travel(self._host)
        mine = super().beat(fences, lease_s, patience_s)
        self._host.all.note_beat(self._host, {run_id: fences[run_id] for run_id in mine})
        self._host.all.travel(self._host)
        return mine

    def leave(self, run: FleetRun, *rest: Any, **how: Any) -> bool:
        self._host.left.add((run.id, run.fence))
        self._host.reach("left")
        return super().leave(run, *rest, **how)


class OlderHostQueue(HostQueue):
    """The queue of a worker of an older version, which claims and ends runs as that version did."""

    def claim(self, who: Claimer, *, run_id: int | None = None) -> FleetRun | None:
        host = self._host
        claimed = host.change(lambda db: older.claim_run(db, who.owner, host.all.times.steady_s, who.lease_s))
        if claimed is None:
            return None
        run = host.all.truth.find(claimed)
        host.all.note_claim(host, run)
        host.reach("claimed")
        return run

    def leave(self, run: FleetRun, outcome: RunOutcome, **how: Any) -> bool:
        if outcome.state != "ended" or outcome.stop_reason != "end":
            return super().leave(run, outcome, **how)
        host = self._host
        host.left.add((run.id, run.fence))
        host.reach("left")
        return host.change(lambda db: older.end_run(db, run.id, run.fence, host.all.times.steady_s))


class Host:
    """One process of the fleet: a worker, or a scheduler's job that executes one run."""

    def __init__(self, hosts: Hosts, number: int, run_id: int = 0, *, is_older: bool = False) -> None:
        self.all, self.number, self.is_older = hosts, number, is_older
        self.is_dead = self.is_drained = False
        self.stopped_until = self.away_until = self.stored_at = 0.0
        self.until: dict[int, float] = {}  # the ends of the leases that it got
        self.hearts: list[HeartCondition] = []
        # Runs, by number and fence, that it has claimed, and those that it does not continue any more.
        self.claimed, self.left = set[tuple[int, int]](), set[tuple[int, int]]()
        self.news = asyncio.Event()
        self.loop = HostLoop(hosts.times)
        self.store = (OlderHostStore if is_older else HostStore)(database()[0], self)
        self.fleet = Fleet(self.store, agents())
        self.fleet.queue = (OlderHostQueue if is_older else HostQueue)(self.store.tables(), self)
        self.fleet.schedules._queue = self.fleet.queue
        self.worker: Worker | None = None
        with hosts.turn_of(self):
            if run_id:
                self.work = self.loop.create_task(self.execute(run_id))
            else:
                self.worker = Worker(self.fleet, slots=2, lease_s=LEASE_S, grace_s=GRACE_S, report=self.report)
                self.work = self.loop.create_task(self.worker.work())

    def __str__(self) -> str:
        return f"older host {self.number}" if self.is_older else f"host {self.number}"

    async def execute(self, run_id: int) -> None:
        await execute_run(self.fleet, run_id, lease_s=LEASE_S, grace_s=GRACE_S)

    def change(self, work: Callable[[Any], T]) -> T:
        """Change the database in one transaction."""
        with self.store._file.transaction() as db:
            return work(db)

    def report(self, run: FleetRun, what: str) -> None:
        self.all.history.lines.append(f"{self}: run {run.id} at fence {run.fence} is {what}")

    def reach(self, moment: Moment) -> None:
        if not self.is_dead:
            self.all.reach(moment, self)

    def loses_answer(self) -> bool:
        return self.all.is_lossy and self.all.rng.random() < 0.3

    def due_at(self) -> float:
        hearts = (heart.due_at for heart in self.hearts if not heart.is_running)
        return max(self.stopped_until, min([self.loop.due_at, *hearts]))

    def turn(self) -> None:
        """Take the next turn: a heartbeat that is due, or a turn of the loop."""
        now = self.all.times.steady_s
        hearts = [heart for heart in self.hearts if heart.due_at <= now and not heart.is_running]
        with self.all.turn_of(self):
            if hearts and (self.loop.due_at > now or self.all.rng.random() < 0.5):
                hearts[0].turn()
            else:
                self.loop.turn(self.all.rng.choice((1, 3, 20)))

    def drain(self) -> None:
        """Tell the process to end, as SIGTERM does."""
        self.is_drained = True
        if self.worker is not None:
            self.worker.drain()
        else:
            self.work.cancel()

    def end(self) -> None:
        """Die: nothing that the process still does has an effect, and the kernel releases its locks."""
        self.is_dead = True
        for writer in self.store.writers:
            writer.lease.release()
        with self.all.turn_of(self):
            for _ in range(100):
                tasks = sorted(asyncio.all_tasks(self.loop), key=asyncio.Task.get_name)
                for task in tasks:
                    task.cancel()
                if not tasks:
                    break
                self.loop.turn(9)
                self.all.times.steady_s += 0.0 if self.loop.due_at == 0 else 1.0
        self.loop.close()


@cache
def agents() -> Agents:
    """The agents of all hosts; their tools and models act in the host whose turn it is."""
    gates = {"a": PermissionGate(allow=TOOLS), "asks": PermissionGate(permission_mode="prompt")}
    return Agents({name: NamedAgent(partial(_options, gate)) for name, gate in gates.items()})


def _options(gate: PermissionGate) -> OpenAgenticOptions:
    hosts = Hosts.current
    return OpenAgenticOptions(
        provider=SlowPlanner(hosts.history),
        model="planner",
        tools=_tools(),
        permission_gate=gate,
        cwd=hosts.place,
        setting_sources=(),
        clock=FakeClock(hosts.times.wall()),
    )


@cache
def _tools() -> list[Any]:
    return [_made(name) for name in TOOLS]


def _made(name: str) -> Any:
    async def act(what: str) -> str:
        hosts, host = Hosts.current, Hosts.current.host
        hosts.require_right(host, name, what)
        host.reach("started")
        await take(hosts.rng.choice((0.0, 1.0, 3.0)))
        if not host.is_dead:
            hosts.effects.append(f"{name} {what}")
            hosts.history.lines.append(f"{host}: effect {name} {what}")
        host.reach("paid")
        await take(hosts.rng.choice((0.0, 0.0, 2.0)))
        return f"{name} {what}"

    act.__doc__ = f"{name} something."
    return tool(name=name, effect=EFFECTS[name])(act)


class SlowPlanner(Planner):
    """A planner that takes its time."""

    async def complete(self, **request: Any) -> Any:
        hosts = Hosts.current
        hosts.host.reach("asked")
        await take(hosts.rng.choice((0.0, 0.0, 2.0)))
        return await super().complete(**request)


class Hosts:
    """One schedule. For each run the model has its prompt, its fence and the end of its lease."""

    current: Hosts
    ordinal = 0  # how many schedules of this kind came before
    # An orderly end while a tool runs; a tool or a heartbeat that waits while the lease ends.
    FIRST: tuple[tuple[Kind, Moment], ...] = (
        ("drain", "started"),
        ("stop", "claimed"),
        ("drain", "paid"),
        ("part", "asked"),
        ("drain", "asked"),
        ("stop", "asked"),
    )

    def __init__(self, seed: int, place: str) -> None:
        self.rng = random.Random(seed)
        self.history, self.place = History(seed), place
        self.base, self.times = database()
        self.times.__init__()  # type: ignore[misc]
        empty("openagentic_runs", "sqlite_sequence", "sessions", "openagentic_requests")
        Hosts.current = self
        self.client = Fleet(self.base, agents())
        self.truth = self.client.queue
        self.effects: list[str] = []
        self.faults: list[tuple[Kind, Moment, int]] = []
        self.hosts: list[Host] = []
        self.prompts: dict[int, str] = {}
        self.leases: dict[int, tuple[int, float]] = {}
        self.known: dict[str, list[str]] = {}
        self.cancelled: set[int] = set()
        # The first words of prompts whose runs had no owner when they were cancelled: their calls may stay open.
        self.left_open: set[str] = set()
        self.turns, self.started = 0, 0
        self.due: list[Callable[[], None]] = []
        # Whether something has happened after which a call may be in doubt, and after which a lease may end.
        self.is_harsh = self.may_steal = False
        self.is_lossy = self.is_over = self.is_ending = False
        # With numbers of their own, so that the same seeds do the same without other versions.
        self.versions = random.Random(f"{seed} versions")
        self.has_older = self.versions.random() < 0.5
        self.host: Host

    # --- the schedule --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        with _on_hosts(self), without_threads(self.do_soon):
            try:
                self.run_hosts()
            finally:
                for host in self.hosts:
                    host.end()

    def run_hosts(self) -> None:
        self.is_lossy = self.rng.random() < 0.2
        self.draw_faults()
        self.begin()
        for _ in range(self.rng.choice((1, 1, 1, 2))):
            self.enqueue()
        if self.rng.random() < 0.5:
            self.begin()
        while not self.is_over:
            self.turn()
        self.judge(is_over=True)
        self.is_ending = True
        for host in self.hosts:
            host.drain()
        while self.hosts:
            self.turn()

    def do_soon(self, work: Callable[[], object]) -> None:
        """Do the work of a thread at once, or some turns of its host later."""
        if self.rng.random() < 0.7:
            work()
        else:
            asyncio.get_running_loop().call_soon(work)

    def draw_faults(self) -> None:
        kinds: Sequence[Kind] = ("kill", "stop", "part", "drain", "jump", "cancel")
        moments: Sequence[Moment] = ("turn", "asked", "started", "paid", "claimed", "stored", "beat", "left")
        is_mild = self.rng.random() < 0.25  # then nothing may be lost, and nobody's lease ends
        if self.ordinal % 2 == 0:  # every second schedule begins with one of these in turn
            kind, moment = self.FIRST[self.ordinal // 2 % len(self.FIRST)]
            self.faults.append((kind, moment, 1))
            is_mild = kind == "drain"
        for _ in range(self.rng.choice((1, 2, 3))):
            [kind] = self.rng.choices(kinds, (0, 0, 0, 3, 1, 0) if is_mild else (3, 6, 3, 1, 1, 1))
            [moment] = self.rng.choices(moments, (1, 2, 2, 2, 3, 3, 2, 1))
            most = {"turn": 30, "stored": 14}.get(moment, 2)
            self.faults.append((kind, moment, self.rng.randrange(1, most + 1)))
        self.history.lines.append(f"faults {self.faults}, lossy {self.is_lossy}")

    def turn(self) -> None:
        """Let one of the hosts that have work take a turn, after moving the clock if none has any now."""
        self.turns += 1
        self.reach("turn", self.rng.choice(self.hosts))
        for work in self.due:
            work()
        self.due = []
        due_at = {host: host.due_at() for host in self.hosts}
        if (soonest := min(due_at.values())) > self.times.steady_s:
            self.move_clock(soonest)
        host = self.rng.choice([host for host in self.hosts if due_at[host] <= self.times.steady_s])
        host.turn()
        self.look_at(host)

    def move_clock(self, now_s: float) -> None:
        self.require_one_owner()
        self.times.steady_s = now_s
        is_slow = self.turns > MOST_TURNS or now_s > 1_000_000 + LONGEST_S
        self.history.require(not is_slow, lambda: f"runs are never done: {self.rows()}")
        left = self.truth.tables.read(
            "SELECT id, state FROM openagentic_runs WHERE state IN ('queued', 'running', 'waiting')"
        )
        for run_id, state in left:
            if state == "waiting" and self.rng.random() < 0.5:
                self.answer(run_id)
        self.is_over = not left

    def look_at(self, host: Host) -> None:
        """Check what became of a host with its turn, and replace it if it has ended."""
        if any(heart.is_running for heart in host.hearts):
            return
        if host.is_dead:
            host.end()
        elif not host.work.done():
            return
        else:
            error = None if host.work.cancelled() else host.work.exception()
            self.history.require(
                error is None or isinstance(error, StorageError | FleetError), f"the worker ended with {error!r}"
            )
            self.check_handed_back(host)
            host.end()
        self.hosts.remove(host)
        if not self.is_ending:
            self.begin()

    def begin(self) -> None:
        self.started += 1
        open_runs = [run_id for run_id in self.prompts if self.truth.find(run_id).state not in OVER]
        # A job executes its run alone, so there is always a worker for the others.
        is_job = open_runs and any(host.worker for host in self.hosts) and self.rng.random() < 0.3
        job = self.rng.choice(open_runs) if is_job else 0
        is_older = not job and self.has_older and self.versions.random() < 0.5
        self.hosts.append(Host(self, self.started, job, is_older=is_older))

    def enqueue(self) -> None:
        number = len(self.prompts) + 1
        words = [f"r{number}", *self.rng.choices(TOOLS, (4, 1, 1), k=self.rng.choice((1, 1, 2)))]
        agent = "asks" if self.rng.random() < 0.15 else "a"
        enqueue = self.client.enqueue
        session = self.rng.choice(("s", "s", "t"))
        prompt = " ".join(words)
        run_id = self.history.invoke(
            "client",
            f"enqueue {prompt} for {agent} in {session}",
            lambda: self.ask(enqueue(agent, prompt, session=session, request_id=f"q{number}", max_attempts=3)),
        )
        self.prompts[run_id] = prompt

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work of a client, between the turns of the hosts."""
        loop = HostLoop(self.times)
        try:
            return loop.run_until_complete(work)
        finally:
            loop.close()

    @contextmanager
    def turn_of(self, host: Host) -> Iterator[None]:
        before, self.host = getattr(self, "host", host), host
        try:
            yield
        finally:
            self.host = before

    # --- faults --------------------------------------------------------------------------------------------------------

    def reach(self, moment: Moment, host: Host) -> None:
        """Let the faults strike that wait for this moment."""
        for at, (kind, wanted, count) in enumerate(self.faults):
            if wanted == moment:
                self.faults[at] = kind, wanted, count - 1
                if count == 1:
                    self.strike(kind, host)

    def strike(self, kind: Kind, host: Host) -> None:
        now = self.times.steady_s
        self.history.lines.append(f"{host}: {kind} at {now:g}")
        host.loop.left = 0
        self.may_steal = self.may_steal or kind not in ("drain", "jump")
        self.is_harsh = self.is_harsh or kind not in ("drain", "jump") or host.worker is None
        match kind:
            case "kill":
                host.is_dead = True
            case "stop":
                host.stopped_until = now + self.rng.choice((LEASE_S / 2, LEASE_S * 1.6, LEASE_S * 2.5))
            case "part":
                host.away_until = now + self.rng.choice((2.0, LEASE_S * 0.8, LEASE_S * 1.6))
            case "drain":
                self.due.append(host.drain)
            case "jump":
                self.times.jump_s = self.rng.choice((3600.0, -3600.0, 1e8))
            case "cancel":
                self.due.append(self.cancel)

    def cancel(self) -> None:
        if self.prompts:
            run_id = self.rng.choice(sorted(self.prompts))
            if self.truth.find(run_id).state != "running":
                self.left_open.add(self.prompts[run_id].split()[0])
            self.history.invoke("client", f"cancel {run_id}", lambda: self.truth.cancel(run_id, "somebody"))
            self.cancelled.add(run_id)

    def travel(self, host: Host) -> None:
        """Let a request of a heart, or its answer, take its time: everything else goes on until it arrives."""
        if self.rng.random() < 0.8:
            return
        arrives = self.times.steady_s + self.rng.choice((1.0, LEASE_S * 1.2, LEASE_S * 2))
        until = min(arrives, 1_000_000 + LONGEST_S)
        self.is_harsh = self.may_steal = True
        self.history.lines.append(f"{host}: its heartbeat arrives at {arrives:g}")
        while (
            ready := [each for each in self.hosts if each.due_at() <= until and not each.is_dead]
        ) and self.turns < MOST_TURNS:
            self.turns += 1
            soonest = min(each.due_at() for each in ready)
            if soonest > self.times.steady_s:
                self.move_clock(soonest)
            each = self.rng.choice([each for each in ready if each.due_at() <= self.times.steady_s])
            each.turn()
            self.look_at(each)
        self.times.steady_s = max(self.times.steady_s, arrives)

    # --- the model -----------------------------------------------------------------------------------------------------

    def note_claim(self, host: Host, run: FleetRun) -> None:
        self.history.lines.append(f"{host}: claims run {run.id} at fence {run.fence}, {self.times.steady_s:g}")
        fence, until = self.leases.get(run.id, (0, 0.0))
        require = self.history.require
        require(not run.lost_owner or until < self.times.steady_s, f"run {run.id} is taken from a worker that lives")
        require(run.fence > fence, f"run {run.id} is claimed at the fence {run.fence} again")
        host.claimed.add((run.id, run.fence))
        host.until[run.id] = self.times.steady_s + LEASE_S
        self.leases[run.id] = (run.fence, host.until[run.id])

    def note_beat(self, host: Host, fences: Mapping[int, int]) -> None:
        for run_id, fence in fences.items():
            self.history.require(
                self.leases[run_id][0] == fence,
                f"a heartbeat at fence {fence} renews the lease of {self.leases[run_id][0]}",
            )
            host.until[run_id] = self.times.steady_s + LEASE_S
            self.leases[run_id] = (fence, host.until[run_id])

    def require_one_owner(self) -> None:
        """Check that no process believes it has the lease of a run that another one has claimed since."""
        for host in self.hosts:
            for run in () if host.is_dead else self.leased_by(host):
                newest = self.leases[run.id][0]
                self.history.require(
                    run.fence == newest, f"{host} has run {run.id} at fence {run.fence}, and it is at {newest}"
                )

    def leased_by(self, host: Host) -> list[FleetRun]:
        """The runs that a host may continue, as far as it can tell."""
        hearts = [heart.run.__self__ for heart in host.hearts if heart.run]  # type: ignore[attr-defined]
        runs = [lease.run for heart in hearts for lease in heart.leases() if not lease.is_lost]
        return [run for run in runs if (run.id, run.fence) not in host.left]

    def require_right(self, host: Host, name: str, what: str) -> None:
        """Check that a tool starts only behind its start in the log, which was stored while this host had the lease.

        A host that stops between the two starts the tool when it goes on: nobody can know.
        """
        if host.is_dead:
            return
        [run_id] = [run_id for run_id, prompt in self.prompts.items() if prompt.split()[0] == what]
        late_s = host.stored_at - host.until[run_id]
        self.history.require(late_s <= 0, f"{name} {what} starts on {host}, whose lease of run {run_id} is over")
        started = [e for e in self.events(self.truth.find(run_id).session) if isinstance(e, ToolStarted)]
        self.history.require(any(each.name == name for each in started), f"{name} runs before its start is in the log")

    def check_handed_back(self, host: Host) -> None:
        held = self.truth.tables.read("SELECT id, fence FROM openagentic_runs WHERE state = 'running'")
        kept = [run_id for run_id, fence in held if (run_id, fence) in host.claimed]
        self.history.require(self.may_steal or not kept, f"{host} has ended and kept {kept}")

    def rows(self) -> list[tuple[Any, ...]]:
        return self.truth.tables.read("SELECT id, state, owner, attempts, fence, error FROM openagentic_runs")

    def answer(self, run_id: int) -> None:
        self.history.invoke(
            "client", f"answer {run_id}", lambda: self.ask(self.client.answer(run_id, None, "yes")), FleetError
        )

    def events(self, session: str) -> list[Event]:
        return list(self.base.read_events(session)) if self.base.session_exists(session) else []

    def judge(self, *, is_over: bool = False) -> None:
        """Check the promises that hold for every log, and those for runs that are over."""
        require = self.history.require
        paid = Counter(what for what in self.effects if what.startswith("pay"))
        asked = Counter[str]()
        for session in self.base.list_sessions():
            events = self.events(session)
            require([event.seq for event in events] == list(range(1, len(events) + 1)), "the numbers have a hole")
            require(find_fault(rebuild_messages(events)) is None, "the rebuilt messages are no conversation")
            uses = [event for event in events if isinstance(event, ToolUse)]
            starts = Counter(event.tool_use_id for event in events if isinstance(event, ToolStarted))
            results = {event.tool_use_id: event for event in events if isinstance(event, ToolResult)}
            require(len(results) == sum(isinstance(event, ToolResult) for event in events), "a call has two results")
            unsafe = {event.tool_use_id for event in uses if EFFECTS[event.name] == "unsafe"}
            require(all(starts[call] <= 1 for call in unsafe), "an unsafe call was started twice")
            asked.update(f"pay {event.input['what']}" for event in uses if event.name == "pay")
            open_calls = [event for event in uses if event.tool_use_id not in results]
            require(not is_over or all(e.input["what"] in self.left_open for e in open_calls), "a call is left open")
            if not self.is_harsh:
                lost = [event for event in results.values() if event.outcome != "ok"]
                require(not lost, f"a step was lost although nothing broke: {lost}")
            prompts = [event.request_id for event in events if isinstance(event, UserMessage)]
            require(len(prompts) == len(set(prompts)), f"a prompt was stored twice: {prompts}")
        require(all(count <= asked[what] for what, count in paid.items()), f"{paid} was done for {asked}")
        for run_id in self.prompts:
            self.judge_run(self.truth.find(run_id))

    def judge_run(self, run: FleetRun) -> None:
        require = self.history.require
        results = [event for event in self.events(run.session) if isinstance(event, Result)]
        if run.state == "ended":
            ends = [f"done {self.prompts[run.id].split()[0]}"]
            require(
                any(each.final_text in ends for each in results) and run.stop_reason == "end",
                f"run {run.id} ended as {run.stop_reason}, and its log has {[each.final_text for each in results]}",
            )
        elif run.state == "cancelled":
            require(run.id in self.cancelled, f"run {run.id} was cancelled by nobody: {run.error}")
        else:
            require(run.steals >= run.max_attempts, f"run {run.id} failed after {run.steals} workers: {run.error}")
        require(
            self.may_steal or (run.steals, run.attempts) == (0, 1),
            f"run {run.id} was not handed back: {run.steals} steals, {run.attempts} attempts",
        )


@contextmanager
def _on_hosts(hosts: Hosts) -> Iterator[None]:
    """Give the fleet's worker and lease the clock and the turns of the schedule."""
    off_loop = worker.off_loop

    async def off(in_thread: bool, call: Callable[..., Any], *args: Any) -> Any:
        if getattr(call, "__func__", None) is SqliteTables.wait:
            await take(hosts.rng.choice((0.5, POLL_S)))
            return False
        return await off_loop(in_thread, call, *args)

    stand_ins: list[tuple[Any, str, Any]] = [
        (worker, "off_loop", off),
        (worker, "_CLAIMS", Backoff(POLL_S / 2, POLL_S / 2, jitter=0.6)),
        (worker, "_worker_name", lambda: str(hosts.host)),
        (worker, "random", SimpleNamespace(uniform=hosts.rng.uniform)),
        (backoff, "os", SimpleNamespace(urandom=hosts.rng.randbytes)),
        (worker, "time", SimpleNamespace(monotonic=hosts.times.now)),
        (standing, "time", SimpleNamespace(time=hosts.times.wall)),
        (lease, "start_daemon", lambda work, name: work.__self__._changed.begin(work)),
        (lease, "threading", SimpleNamespace(Condition=lambda: HeartCondition(hosts.host), Lock=threading.Lock)),
    ]
    real = [(module, name, getattr(module, name)) for module, name, _ in stand_ins]
    try:
        for place in stand_ins:
            setattr(*place)
        yield
    finally:
        for place in real:
            setattr(*place)
