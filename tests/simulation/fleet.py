"""Workers on a shared queue: they die, stop and wake up, clocks jump, the database is unreachable, responses are lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from openagentic_sdk.errors import FleetError, StorageError
from openagentic_sdk.fleet.queue import Claimer, NewRun, Queue
from openagentic_sdk.fleet.record import FleetRun, RunOutcome
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.sessions.stores.sqlite.schema import MIGRATIONS
from openagentic_sdk.sessions.stores.sqlite.tables import SqliteTables
from openagentic_sdk.sessions.stores.tables import Tables

from . import older
from .history import History

LEASE_S = 10.0
OVER = ("ended", "failed", "cancelled")


class Times:
    """The clocks of the machine: a monotonic one, and one that people set."""

    def __init__(self) -> None:
        self.steady_s, self.jump_s = 1_000_000.0, 0.0

    def now(self) -> float:
        return self.steady_s

    def wall(self) -> float:
        return self.steady_s + self.jump_s

    def find(self, db: Any) -> None:
        """Do nothing: no time is stored."""

    start = find


@cache
def database() -> tuple[SqliteSessionStore, Times]:
    """The database of this process, which each schedule empties first."""
    store, times = SqliteSessionStore(":memory:"), Times()
    store._file.clock = times  # type: ignore[assignment]
    return store, times


@cache
def tables() -> Tables:
    """The tables of the fleet in that database."""
    return database()[0].tables()


def empty(*names: str) -> None:
    """Empty these tables of that database."""
    with database()[0]._file.transaction() as db:
        for name in names:
            db.execute(f"DELETE FROM {name}")


class PartitionedTables:
    """A database whose responses may be lost: then the request is repeated, or the caller gives up."""

    now, skip_locked = SqliteTables.now, SqliteTables.skip_locked  # the queue asks the class for them

    def __init__(self, inner: Tables, rng: random.Random) -> None:
        self.inner, self.rng = inner, rng
        self.is_bad = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def read(self, command: str, values: Sequence[Any] = (), **how: Any) -> Any:
        if self.is_bad and self.rng.random() < 0.2:
            raise StorageError("simulated: the database is away")
        return self.inner.read(command, values, **how)

    def change(self, work: Callable[..., Any], **how: Any) -> Any:
        fault = self.rng.choice(("away", "again", "again", "unheard", "", "")) if self.is_bad else ""
        if fault == "away":
            raise StorageError("simulated: the database is away")
        came = self.inner.change(work, **how)
        if fault == "again":
            came = self.inner.change(work, **how)
        if fault == "unheard":
            raise StorageError("simulated: the answer was lost")
        return came


class Workers:
    """One schedule. For each run the model has its fence, its state and the end of its lease."""

    def __init__(self, seed: int, place: str) -> None:
        self.rng = random.Random(seed)
        self.history = History(seed)
        store, self.times = database()
        self.times.__init__()  # type: ignore[misc]
        empty("openagentic_runs", "sqlite_sequence")
        self.tables = PartitionedTables(tables(), self.rng)
        self.queue = Queue(self.tables)  # type: ignore[arg-type]
        self.truth = Queue(tables())  # what stands there, asked over a way that never breaks
        self.queue.limits = self.truth.limits
        self.leases: dict[int, tuple[int, float]] = {}
        self.fences: dict[int, int] = {}
        self.states: dict[int, str] = {}
        self.bodies: dict[str, tuple[int, str]] = {}
        self.sessions: dict[int, str] = {}
        self.held: dict[str, list[FleetRun]] = {name: [] for name in "ab"}
        self.file = store._file
        # With numbers of their own, so that the same seeds do the same without other versions.
        self.versions = random.Random(f"{seed} versions")
        self.has_others = self.versions.random() < 0.4

    def run(self) -> None:
        for _ in range(self.rng.choice((3, 6))):
            if self.has_others and self.states and self.versions.random() < 0.7:
                self.versions.choices((self.claim_by_older, self.leave_by_older, self.claim_beside_newer), (4, 2, 1))[
                    0
                ]()
                self.compare()
            self.tables.is_bad = self.rng.random() < 0.3
            self.rng.choices(self.ACTIONS, (4, 6, 3, 4, 1, 3, 2))[0](self)
            self.tables.is_bad = False
            self.compare()
        # Whatever happened, each run that is left comes to its end.
        for _ in range(60):
            self.times.steady_s += LEASE_S
            if (run := self.claim("a")) is None:
                if all(state in OVER for state in self.states.values()):
                    return
                continue
            self.leave_as("a", run, "ended")
        raise self.history.broken(f"runs are never done: {self.states}")

    def enqueue(self) -> None:
        request, body = self.rng.choice("pqrs"), self.rng.choice(("{}", "{}", '{"other":1}'))
        known = self.bodies.get(request)
        session = (known and self.sessions[known[0]]) or self.rng.choice(("s", "t"))
        new = NewRun("a", body, "", "default", self.rng.choice((0, 5)), 50, session=session, request_id=request)
        came = self.history.invoke(
            "client", f"enqueue {request} {body}", lambda: self.queue.add(new), StorageError, FleetError
        )
        if isinstance(came, StorageError) and known is None:
            rows = self.truth.tables.read("SELECT id, body FROM openagentic_runs WHERE request_id = %s", (request,))
            came = rows[0][0] if rows else came
        if isinstance(came, int):
            require = self.history.require
            require(known is None or known == (came, body), f"request {request} is run {came}, not {known}")
            if known is None:
                self.bodies[request], self.states[came], self.fences[came] = (came, body), "queued", 0
                self.sessions[came] = session
        elif isinstance(came, FleetError):
            self.history.require(known is not None and known[1] != body, "a retry was refused")

    def claim_any(self) -> None:
        self.claim(self.rng.choice("ab"))

    def claim(self, who: str) -> FleetRun | None:
        claimer = Claimer(who, LEASE_S, ("a",))
        came = self.history.invoke(f"worker {who}", "claim", lambda: self.queue.claim(claimer), StorageError)
        if isinstance(came, StorageError):
            self.learn(who)
            return None
        if came is None:
            return None
        _, until = self.leases.get(came.id, (0, 0.0))
        require, now = self.history.require, self.times.steady_s
        require(self.states[came.id] != "running" or until < now, f"run {came.id} was taken from a worker that lives")
        require(self.states[came.id] not in OVER, f"run {came.id} is over and was claimed")
        require(came.fence > self.fences[came.id], f"run {came.id} has the fence {came.fence} again")
        others = [one for one, state in self.states.items() if state == "running" and one != came.id]
        require(all(self.sessions[one] != came.session for one in others), "two runs of one session run")
        self.note_claim(came)
        self.held[who].append(came)
        return came

    def note_claim(self, run: FleetRun) -> None:
        self.states[run.id], self.fences[run.id] = "running", run.fence
        self.leases[run.id] = (run.fence, self.times.steady_s + LEASE_S)

    def learn(self, who: str) -> None:
        """Find out what became of a claim or an end whose response was lost."""
        for run_id, fence in self.fences.items():
            row = self.truth.find(run_id)
            require = self.history.require
            require(row.fence - fence in (0, 1), f"run {run_id} went from fence {fence} to {row.fence}")
            if row.fence > fence:
                until = self.leases.get(run_id, (0, 0.0))[1]
                require(
                    self.states[run_id] != "running" or until < self.times.steady_s, "taken from a worker that lives"
                )
                self.note_claim(row)

    def beat(self, who: str = "") -> None:
        who = who or self.rng.choice("ab")
        fences = {run.id: run.fence for run in self.held[who]}
        if not fences:
            return
        came = self.history.invoke(
            f"worker {who}", f"beat {fences}", lambda: self.queue.beat(fences, LEASE_S, 1.0), StorageError
        )
        mine = [one for one, fence in fences.items() if self.fences[one] == fence and self.states[one] == "running"]
        if isinstance(came, dict):
            self.history.require(sorted(came) == sorted(mine), f"{sorted(came)} are still its own, not {sorted(mine)}")
        for one in mine:
            if not isinstance(came, StorageError):
                self.leases[one] = (fences[one], self.times.steady_s + LEASE_S)
            else:
                left = self.truth.tables.read("SELECT lease_until FROM openagentic_runs WHERE id = %s", (one,))
                self.leases[one] = (fences[one], left[0][0])
        if isinstance(came, dict):
            self.held[who] = [run for run in self.held[who] if run.id in came]

    def leave(self) -> None:
        who = self.rng.choice("ab")
        if self.held[who]:
            self.leave_as(
                who, self.rng.choice(self.held[who]), self.rng.choice(("ended", "failed", "queued", "queued"))
            )

    def leave_as(self, who: str, run: FleetRun, state: Any) -> None:
        is_mine = self.fences[run.id] == run.fence and self.states[run.id] == "running"
        outcome = RunOutcome(state, "end")
        came = self.history.invoke(
            f"worker {who}",
            f"leave {run.id} as {state} by {run.fence}",
            lambda: self.queue.leave(run, outcome),
            StorageError,
        )
        self.held[who] = [one for one in self.held[who] if one is not run]
        if isinstance(came, StorageError):
            now = self.truth.find(run.id)
            self.history.require(is_mine or now.state == self.states[run.id], "a worker that lost a run changed it")
            if is_mine:
                self.states[run.id] = now.state
            return
        if not is_mine:
            self.history.require(not came or self.states[run.id] != "running", "a worker that lost a run ended it")
            return
        self.history.require(came, "the owner of a run cannot end it")
        self.states[run.id] = state

    def cancel(self) -> None:
        if not self.states:
            return
        run_id = self.rng.choice(sorted(self.states))
        self.history.invoke("client", f"cancel {run_id}", lambda: self.queue.cancel(run_id, "somebody"), StorageError)
        if self.states[run_id] != "running" and self.truth.find(run_id).state == "cancelled":
            self.states[run_id] = "cancelled"

    def pass_time(self) -> None:
        self.times.steady_s += self.rng.choice((1.0, LEASE_S / 2, LEASE_S * 1.5))
        self.times.jump_s = self.rng.choice((0.0, 0.0, 3600.0, -3600.0))
        self.history.lines.append(f"it is {self.times.steady_s:g}, the wall clock {self.times.jump_s:+g} s")

    def compare(self) -> None:
        for run_id, state, fence in self.truth.tables.read("SELECT id, state, fence FROM openagentic_runs"):
            known = self.states.get(run_id), self.fences.get(run_id)
            self.history.require(known == (state, fence), f"run {run_id} is {state} at fence {fence}, not {known}")

    def hang(self) -> None:
        """Suspend a worker until its lease is over and another one claims; then let it do what it was about to do."""
        if holders := sorted(who for who, runs in self.held.items() if runs):
            who = self.rng.choice(holders)
            run = self.rng.choice(self.held[who])
            self.times.steady_s += LEASE_S * 1.2
            self.history.lines.append(f"worker {who} hung until {self.times.steady_s:g}")
            self.claim("a" if who == "b" else "b")
            if self.rng.random() < 0.5:
                return self.beat(who)
            self.leave_as(who, run, self.rng.choice(("ended", "failed", "queued")))

    # --- turns of other versions -----------------------------------------------------------------------------------------

    def claim_by_older(self) -> None:
        """Claim a run as an older version; then continue it as this version, as after a restart."""
        with self.file.transaction() as db:
            run_id = older.claim_run(db, "older", self.times.steady_s, LEASE_S)
        if run_id is not None:
            run = self.truth.find(run_id)
            self.history.lines.append(f"an older version claims {run_id} at fence {run.fence}")
            self.note_claim(run)
            self.held[self.versions.choice("ab")].append(run)

    def leave_by_older(self) -> None:
        """End a run as a worker of an older version that may have lost it."""
        if runs := [run for held in self.held.values() for run in held]:
            run = self.versions.choice(runs)
            is_mine = self.fences[run.id] == run.fence and self.states[run.id] == "running"
            with self.file.transaction() as db:
                came = older.end_run(db, run.id, run.fence, self.times.steady_s)
            self.history.lines.append(f"an older version ends {run.id} by {run.fence}: {came}")
            self.history.require(came == is_mine, "a worker of an older version ended a run that it had lost")
            if is_mine:
                self.states[run.id] = "ended"

    def claim_beside_newer(self) -> None:
        """Claim after a newer version has migrated the tables and recorded whether workers of this one still may."""
        oldest = self.versions.choice((len(MIGRATIONS), len(MIGRATIONS) + 1, None))
        self.history.lines.append(f"a newer version migrates; the oldest that may continue is {oldest}")
        with older.migrated(self.file, oldest):
            run = self.claim("a")
        self.history.require(run is None or oldest == len(MIGRATIONS), "a run was claimed in tables of a newer version")

    ACTIONS = (enqueue, claim_any, beat, leave, cancel, pass_time, hang)
