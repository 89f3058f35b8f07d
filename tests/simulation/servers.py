"""Sessions on a Postgres or Redis server, with processes that die, hang and lose their connection before, in and after any
statement.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from openagentic_sdk.errors import (
    ConcurrencyError,
    LeaseLostError,
    LogCorruptError,
    SessionError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from openagentic_sdk.events import AssistantMessage, Event, UserMessage
from openagentic_sdk.sessions import postgres, redis
from openagentic_sdk.sessions.postgres import PostgresSessionStore
from openagentic_sdk.sessions.stores import holders, news
from openagentic_sdk.sessions.stores.postgres import link
from openagentic_sdk.sessions.stores.postgres import tables as postgres_tables
from openagentic_sdk.sessions.stores.redis import link as redis_link
from openagentic_sdk.sessions.stores.redis import listed as redis_listed
from openagentic_sdk.sessions.stores.server import StoreServer
from openagentic_sdk.testing.clock import FakeClock
from openagentic_sdk.testing.crash import Killed

from . import modelled_redis
from .history import History, read_lines
from .modelled_server import CHANGE, FAULTS, LONG_S, STRAGGLER, UNHEARD, Database, Driver, Times, Wire
from .older import ERASED
from .older_servers import OtherVersions

# A few attempts: a server that is away stays away for the rest of a call.
PATIENCE_S = 0.3


class Lease:
    """The lock file of a process, as the others on its host see it: a dead one leaves it, without a lock."""

    files: ClassVar[dict[Path, Lease]] = {}

    def __init__(self, path: Path) -> None:
        self.path, self.is_held = path, True
        self.files[path] = self

    def release(self) -> None:
        self.is_held = False
        self.files.pop(self.path, None)


def living_holder(path: Path, *, missing: str | None = None) -> str | None:
    lease = Lease.files.get(path)
    return missing if lease is None else "process" if lease.is_held else None


def text_of(event: Event) -> str:
    return str(getattr(event, "text", event.type))


def worded(event: Event, text: str) -> Event:
    return replace(event, text=text)  # type: ignore[call-arg]


class Process:
    """One process: its driver, its store, and its writers by session."""

    def __init__(self, number: int, database: Any) -> None:
        self.number = number
        self.wire = Wire(database)
        self.server, self.store = self.connect()
        self.server.holder._beating = True  # its thread, which no seed would repeat: `beat` does its work
        self.writers: dict[str, Any] = {}

    def connect(self) -> tuple[StoreServer, Any]:
        server = link.PostgresServer(f"postgresql://model/{self.number}")
        server._driver = Driver(self.wire)
        server.is_ready = True
        return server, ModelledStore(server)

    def __str__(self) -> str:
        return f"process {self.number}"

    def beat(self) -> None:
        """Do the work of one heartbeat."""
        holder = self.server.holder
        if holder._claims or holder._unreleased:
            holder._beat()
            while holder._unreleased:
                holder._unreleased[0]()
                holder._unreleased.pop(0)

    def end(self) -> None:
        """Leave the traces of a dead process: a lock file that is not locked."""
        self.wire.is_dead = True
        self.lease.is_held = False

    def clean_up(self) -> None:
        self.end()
        self.lease.release()

    @property
    def lease(self) -> Any:
        return self.server.holder._file


class Modelled:
    """The beginning of a store on a modelled server."""

    _wait_for_server: Callable[[float], None]

    def __init__(self, server: StoreServer) -> None:
        self._wait_for_server(PATIENCE_S)
        self._clock = FakeClock(1_700_000_000.0)
        self._joined: Any = SimpleNamespace(get=lambda: server)


class ModelledStore(Modelled, PostgresSessionStore):  # type: ignore[misc]
    """A store on the modelled Postgres server."""


@contextmanager
def in_place_of_the_real(times: Times) -> Iterator[None]:
    """Let all processes use a modelled driver and the clock of the schedule."""
    stands_in: list[tuple[Any, str, Any]] = [
        *((module, "driver", lambda: Driver) for module in (link, postgres, postgres_tables)),
        *((module, "driver", lambda: modelled_redis.Driver) for module in (redis_link, redis, redis_listed)),
        (holders, "_folder", lambda: Path("host")),
        (holders, "LeaseFile", Lease),
        (holders, "living_holder", living_holder),
        (redis_listed, "LISTED_UNASKED", 1),  # the index of words is used for lists of two sessions
        *((module, "time", times) for module in (link, postgres, redis_link, holders, news)),
        (news, "start_daemon", lambda work, name: None),  # a thread, whose work the schedule does itself, at its turn
    ]
    real = [(module, name, getattr(module, name)) for module, name, _ in stands_in]
    try:
        for place in stands_in:
            setattr(*place)
        yield
    finally:
        for place in real:
            setattr(*place)


class Servers(OtherVersions):
    """One schedule. For each session the model has the events that are certain, and the batches that may follow."""

    process_type: type[Process] = Process
    database_type: Callable[[Times, random.Random], Any] = Database
    # The numbers of statements before which a fault may strike.
    PLACES: tuple[int, ...] = (1, 2, 2, 3, 3, 4, 4, 5)
    LIST_PLACES: tuple[int, ...] = (1, 2, 3, 4, 5)
    # The names of the statements that claim a session, and create one; on Postgres that is a transaction.
    CLAIM, CREATE = postgres._CLAIM, ""
    # Lists are in the order of the times of the rows, which a list may correct by a microsecond when it folds them.
    sorts_by_time = False
    ordinal = 0  # how many schedules of this kind came before

    def __init__(self, seed: int, place: str) -> None:
        self.rng = random.Random(seed)
        self.history = History(seed)
        self.database = self.database_type(Times(), self.rng)
        self.every: dict[str, Process] = {}  # by the name as a holder
        self.zombies: list[tuple[Process, Any]] = []
        self.certain: dict[str, list[str]] = {}
        self.maybe: dict[str, list[list[str]]] = {}
        self.holder: dict[str, Process] = {}
        self.owners: dict[str, str] = {}
        self.waiting: dict[str, list[int]] = {}
        # Sessions whose writers may know events that a restart of the server lost.
        self.rolled_back: set[str] = set()
        self.count = 0
        self.fault = ""  # that struck last
        self.prepare_versions(seed)

    def begin(self) -> Process:
        process = self.process_type(len(self.every), self.database)
        self.every[process.server.holder.name] = process
        return process

    def run(self) -> None:
        with in_place_of_the_real(self.database.times):
            self.truth = self.begin()  # asks over a connection that never breaks
            self.processes = [self.begin(), self.begin()]
            try:
                self.create()
                steps = self.rng.choice((2, 3, 4))
                begins = self.rng.randrange(steps)
                for step in range(steps):
                    if step == begins:
                        getattr(self, self.SCENARIOS[self.ordinal % len(self.SCENARIOS)])()
                    self.take_turn()
                    self.rng.choices(self.ACTIONS, self.WEIGHTS)[0](self)
                self.finish()
            finally:
                for process in self.every.values():
                    process.clean_up()

    def finish(self) -> None:
        """Check that, once the server is back, every session shows its certain events and opens for everybody entitled to
        it.
        """
        self.deliver_all()
        for process in self.processes:
            self.do(process, "beat", process.beat, faults=False)
        for name in list(self.certain):
            self.settle(name)
            if self.rng.random() < 0.5:
                continue
            self.require([text_of(event) for event in self.truth.store.read_events(name)] == self.certain[name], name)
            self.look_at(name)
            if name not in self.holder:
                named = self.database.sessions[name]["holder"]
                others = [each for each in self.processes if each.server.holder.name != named]
                self.open(name, self.rng.choice(others), faults=False)

    def require(self, holds: object, claim: str | Callable[[], str]) -> None:
        self.history.require(holds, claim)

    def do(
        self,
        process: Process,
        what: str,
        work: Any,
        *expected: type[BaseException],
        faults: bool = True,
        fault: str = "",
        places: tuple[int, ...] = (),
        name: str = "",
        may_refuse: bool = False,
    ) -> Any:
        """Let a process do something, with this fault or, if `faults`, a random one.

        The fault meets one of these statements, or the first with this name. Half of the random ones meet the first
        statement that changes something, where it matters most whether it took effect.
        """
        if not fault and faults and self.rng.random() < 0.4:
            fault, name = self.rng.choice(FAULTS), CHANGE if self.rng.random() < 0.5 else ""
        process.wire.plan(fault, self.rng.choice(places or self.PLACES), name)
        came = self.history.invoke(
            f"{process}, {fault or 'well'} {name[:12] or process.wire.at}", what, work, Killed, StorageError, *expected
        )
        self.fault = process.wire.fault if process.wire.struck else ""
        process.wire.plan("", 0)
        self.require(self.fault or not isinstance(came, Killed), "killed by nobody")
        is_refused = isinstance(came, StorageError) and not isinstance(came, SessionError)
        is_allowed = self.fault or may_refuse or not is_refused
        self.require(is_allowed, lambda: f"{what} was refused by a server that is there: {came!r}")
        once = self.fault in ("cut before", "cut after", "late") and what != "import"
        self.require(not (is_refused and once), lambda: f"a connection that broke once makes {what} fail: {came!r}")
        if process.wire.is_dead:
            self.bury(process)
        return came

    def bury(self, process: Process) -> None:
        if self.rng.random() < 0.7:  # otherwise it was on another host: nobody here can tell that it is dead
            process.end()
        self.holder = {name: each for name, each in self.holder.items() if each is not process}
        self.processes = [each for each in self.processes if each is not process]
        self.processes.append(self.begin())

    def some(self) -> str | None:
        return self.rng.choice(sorted(self.certain)) if self.certain else None

    def process(self) -> Process:
        return self.rng.choice(self.processes)

    def batch(self) -> list[Event]:
        self.count += 1
        kind = self.rng.choice((UserMessage, AssistantMessage))
        return [kind(f"w{self.count}.{number}") for number in range(self.rng.choice((1, 1, 3)))]

    # --- what the model says -------------------------------------------------------------------------------------------

    def settle(self, name: str, *unheard: list[str]) -> None:
        """Treat all events in the log as certain; unacknowledged batches are in it whole, or may still arrive, in order."""
        doubtful = self.maybe.setdefault(name, [])
        doubtful.extend(unheard)
        shown, certain = self.shown(name), self.certain[name]
        for size in range(len(doubtful) + 1):
            for landed in combinations(range(len(doubtful)), size):
                if shown == sum((doubtful[each] for each in landed), certain):
                    self.certain[name] = shown
                    self.maybe[name] = doubtful[landed[-1] + 1 :] if landed else doubtful
                    return
        self.require(False, f"{name} shows {shown}, not {certain} and perhaps {doubtful}")

    def shown(self, name: str) -> list[str]:
        try:
            return [text_of(event) for event in read_lines(name, self.database.lines(name))]
        except LogCorruptError as error:
            raise self.history.broken(f"{name} cannot be read any more: {error}") from error

    def grow(self, name: str, texts: list[str], last_seq: int) -> None:
        """Record an acknowledged batch: doubtful batches before it are in the log now, or never will be."""
        shown = self.shown(name)
        self.require(
            len(shown) == last_seq and shown[-len(texts) :] == texts, f"{name} shows {shown}, not {texts} last"
        )
        self.settle(name, texts)
        self.maybe[name] = []

    # --- actions ---------------------------------------------------------------------------------------------------------

    def create(self) -> None:
        process, name = self.process(), self.rng.choice("abc")
        came = self.do(
            process, f"create {name}", lambda: process.store.create_session(session_id=name), SessionExistsError
        )
        if name in self.certain:
            self.require(not isinstance(came, str), "a session was created twice")
        elif isinstance(came, str) or name in self.database.sessions:
            self.require(not isinstance(came, SessionExistsError), f"{name} exists already")
            self.certain[name] = []

    def open_any(self) -> None:
        free = sorted(name for name in self.certain if name not in self.holder)
        name = self.rng.choice(free) if free and self.rng.random() < 0.8 else self.some()
        if name is not None:
            self.open(name, self.process())

    def open(self, name: str, process: Process, *, faults: bool = True) -> None:
        holding, late = self.holding(name), len(self.database.late)
        came = self.do(
            process, f"open {name}", lambda: process.store.open_writer(name), SessionLockedError, faults=faults
        )
        if hasattr(came, "append"):
            self.require(not self.lasts(holding), "two writers of one session")
            self.replace(name, process, came)
        elif isinstance(came, SessionLockedError):
            # A claim that arrived late may have been faster, also one by a process without a lease.
            is_beaten = len(self.database.late) < late
            self.require(is_beaten or self.may_be_locked(name), f"a session that nobody holds is locked: {came}")
        else:
            self.lose_if_replaced(name)
        if faults and isinstance(came, StorageError) and not isinstance(came, SessionError) and self.rng.random() < 0.6:
            # Whoever could not open it may have claimed it, and releases it with its next heartbeat.
            self.do(process, "beat", process.beat, faults=False)
            self.open(name, self.rng.choice([each for each in self.processes if each is not process]), faults=False)

    def may_be_locked(self, name: str) -> bool:
        """Whether the recorded holder is writing, has yet to release its claim, or died unnoticed; or the server lost what
        it did.
        """
        named = self.database.sessions[name]["holder"]
        process = self.every.get(named)
        if process is None or not self.lasts(named):
            return self.is_held_by_older(name)
        if process.wire.is_dead:
            return process.server.holder._file is None or process.server.holder._file.is_held
        is_late = bool(process.server.holder._unreleased or self.database.late)
        return name in process.writers or is_late or name in self.rolled_back

    def replace(self, name: str, process: Process, writer: Any) -> None:
        if (old := self.holder.get(name)) is not None and name in old.writers:
            self.zombies.append((old, old.writers.pop(name)))
        self.holder[name] = process
        process.writers[name] = writer
        self.settle(name)
        self.require(writer.last_seq == len(self.certain[name]), f"the writer of {name} begins at {writer.last_seq}")

    def take_over(self) -> None:
        if (name := self.some()) is None:
            return
        process = self.process()
        came = self.do(process, f"take {name} over", lambda: process.store.take_over(name))
        if hasattr(came, "append"):
            self.replace(name, process, came)
        else:
            self.lose_if_replaced(name)

    def lose_if_replaced(self, name: str) -> None:
        """Forget a writer that a claim replaced whose answer was lost: nobody has the new writer."""
        if (old := self.holder.get(name)) and old.writers[name].epoch != self.database.sessions[name]["epoch"]:
            self.lose(name)

    def lose(self, name: str) -> None:
        if (old := self.holder.pop(name, None)) is not None and name in old.writers:
            self.zombies.append((old, old.writers.pop(name)))

    def wake_any(self) -> None:
        zombies = [(process, writer) for process, writer in self.zombies if process in self.processes]
        if zombies:
            self.wake(*self.rng.choice(zombies))

    def wake(self, process: Process, writer: Any) -> None:
        """Wake a writer that was replaced: it must not change anything."""
        if process in self.processes:
            came = self.do(process, "a zombie appends", lambda: writer.append(self.batch()), SessionError)
            self.require(isinstance(came, Exception | Killed), "a writer that was replaced appends")

    def append(self) -> None:
        if not self.holder:
            return self.append_alone_any()
        self.append_to(self.rng.choice(sorted(self.holder)))

    def append_to(self, name: str, *, faults: bool = True, fault: str = "") -> None:
        process, batch = self.holder[name], self.batch()
        texts = [event.text for event in batch]  # type: ignore[attr-defined]
        was = self.database.sessions[name]["epoch"]
        came = self.do(
            process,
            f"append {texts} to {name}",
            lambda: process.writers[name].append(batch),
            *(LeaseLostError, ConcurrencyError),
            faults=faults,
            fault=fault,
            name=CHANGE if fault else "",
        )
        if isinstance(came, list):
            self.grow(name, texts, came[-1].seq or 0)
        elif isinstance(came, LeaseLostError):
            self.require(self.database.sessions[name]["epoch"] != process.writers[name].epoch, f"lost to nobody: {was}")
            self.lose(name)
        else:
            is_told = isinstance(came, ConcurrencyError) and name not in self.rolled_back
            self.require(not is_told, f"the one writer of {name} is told of another: {came}")
            self.settle(name, texts)

    def append_alone_any(self) -> None:
        if (name := self.some()) is not None:
            self.append_alone(name, self.process())

    def append_alone(self, name: str, process: Process, *, faults: bool = True) -> None:
        batch = self.batch()
        texts = [event.text for event in batch]  # type: ignore[attr-defined]
        holding = self.holding(name)
        came = self.do(
            process,
            f"append {texts} alone to {name}",
            lambda: process.store.append_events(name, batch),
            *(SessionLockedError, ConcurrencyError),
            faults=faults,
        )
        if isinstance(came, list):
            self.require(not self.lasts(holding), "an append passed a writer by")
            self.grow(name, texts, came[-1].seq or 0)
            self.lose(name)
        elif isinstance(came, SessionLockedError):
            self.require(self.may_be_locked(name), f"a session that nobody holds is locked: {came}")
        else:
            self.settle(name, texts)

    def close(self) -> None:
        if self.holder:
            name = self.rng.choice(sorted(self.holder))
            process = self.holder[name]
            self.do(process, f"close {name}", process.writers[name].close)
            self.holder.pop(name, None)
            process.writers.pop(name, None)

    def delete(self) -> None:
        if (name := self.some()) is None:
            return
        process, holding = self.process(), self.holding(name)
        came = self.do(process, f"delete {name}", lambda: process.store.delete_session(name), SessionLockedError)
        gone = name not in self.database.sessions
        self.require(not (self.lasts(holding) and gone), "a session in use was deleted")
        self.require(gone or came is not None, f"{name} is there after it was deleted")
        if gone:
            self.forget(name)

    def forget(self, name: str) -> None:
        """Remove a session that was deleted."""
        self.lose(name)
        for kept in (self.certain, self.maybe, self.waiting):
            kept.pop(name, None)
        self.owners = {request: owner for request, owner in self.owners.items() if owner != name}

    def change_metadata(self) -> None:
        if (name := self.some()) is not None:
            process = self.process()
            values = {"n": self.rng.randrange(10**6), "cwd": self.rng.choice(("/a", "/b"))}
            came = self.do(process, f"metadata of {name}", lambda: process.store.update_metadata(name, values))
            if came is None:
                found = self.truth.store.read_metadata(name)["metadata"]
                self.require(found == values, f"the metadata of {name} are {found}, not {values}")

    def erase(self) -> None:
        if (name := self.free()) is not None:
            self.erase_from(name, self.process())

    def erase_from(self, name: str, process: Process, *, faults: bool = True, searches: bool = True) -> None:
        places = [place for place, text in enumerate(self.certain[name]) if text != ERASED]
        if not places or self.maybe.get(name):
            return
        self.count += 1
        place, new = self.rng.choice(places), f"gone{self.count}"
        old = self.certain[name][place]
        came = self.do(
            process,
            f"erase {old} of {name}",
            lambda: process.store.rewrite_events(name, lambda events: {place + 1: worded(events[place], new)}),
            *(SessionLockedError, ConcurrencyError, SessionNotFoundError),
            faults=faults,
        )
        shown = self.shown(name)
        if len(shown) > place and shown[place] == new:
            self.certain[name][place] = new
            self.note_erasure(old, searches=searches)
        self.require(came is not None or new in shown, f"{old} was erased and is shown")
        self.settle(name)
        self.require(came is None or self.fault or isinstance(came, SessionLockedError), f"nothing is erased: {came!r}")

    def copy(self) -> None:
        source, target, process = self.some(), self.rng.choice("de"), self.process()
        if source is None:
            return
        self.settle(source)
        at = self.rng.randrange(len(self.certain[source]) + 1)
        came = self.do(
            process,
            f"copy {source} up to {at} as {target}",
            lambda: process.store.copy_session(source, target, at_seq=at, tail=[UserMessage("tail")], metadata={}),
            SessionExistsError,
        )
        if target in self.certain:
            self.require(not isinstance(came, str), "a copy replaced a session")
        elif isinstance(came, str) or target in self.database.sessions:
            self.settle(source)
            self.certain[target] = [*self.certain[source][:at], "tail"]
            self.settle(target)

    def list_rows(self, fault: str = "") -> None:
        before, process = {name: self.shown(name) for name in self.database.sessions}, self.process()
        cwd = self.rng.choice((None, None, "/a"))
        came = self.do(
            process,
            f"list {cwd}",
            lambda: list(process.store.list_session_summaries(cwd=cwd)),
            fault=fault,
            places=self.LIST_PLACES,
        )
        if not isinstance(came, list):
            return
        folded = [self.truth.store.fold_summary(name) for name in self.truth.store.list_sessions()]
        expected = [(row.id, row.events) for row in folded if cwd in (None, row.cwd)]
        found = [(row.id, row.events) for row in came]
        if self.sorts_by_time:
            found, expected = sorted(found), sorted(expected)
        if before == {name: self.shown(name) for name in self.database.sessions}:
            self.require(found == expected, lambda: f"{found} are listed in {cwd}, not {expected}")

    def claim(self) -> None:
        name, request, process = self.some(), self.rng.choice("rs"), self.process()
        if name is None:
            return
        came = self.do(
            process,
            f"{name} claims {request}",
            lambda: process.store.claim_request(name, request),
            SessionNotFoundError,
        )
        if isinstance(came, str):
            known = self.owners.get(request)
            self.require(came == known if known else came in self.certain, f"{request} belongs to {came}, not {known}")
            self.owners[request] = came

    def send(self) -> None:
        if (name := self.some()) is None:
            return
        process = self.process()
        before = len(self.waiting.get(name, ()))
        came = self.do(process, f"send to {name}", lambda: process.store.put_message(name, {"n": 1}))
        found = [each.number for each in self.truth.store.read_messages([name])]
        if isinstance(came, int):
            self.require(came in found, f"message {came} is not there")
            self.require(len(found) == before + 1, f"one message was sent, and {len(found) - before} came")
        else:
            self.require(len(found) in (before, before + 1), f"{len(found) - before} messages came of one")
        self.waiting[name] = found

    def receive(self) -> None:
        name = self.some()
        if name is None or not self.waiting.get(name):
            return
        process, first = self.process(), self.waiting[name][0]
        self.do(process, f"remove message {first}", lambda: process.store.remove_messages([first]))
        found = [each.number for each in self.truth.store.read_messages([name])]
        self.require(
            self.waiting[name][-len(found) :] == found or not found, f"{found} are left of {self.waiting[name]}"
        )
        self.waiting[name] = found

    def pass_time(self) -> None:
        """Let time pass; the leases of processes without a heartbeat expire."""
        self.database.times.sleep(self.rng.choice((1.0, LONG_S / 2)))
        self.history.lines.append(f"it is {self.database.times.now_s:g}")
        for process in self.processes:
            if self.rng.random() < 0.6:
                self.do(process, "beat", process.beat)

    def hang(self) -> None:
        """Suspend a process until its lease expires, let another take its session, and wake it up."""
        if self.holder:
            name = self.rng.choice(sorted(self.holder))
            hung, writer = self.holder[name], self.holder[name].writers[name]
            self.database.times.sleep(LONG_S)
            self.history.lines.append(f"{hung} hung until {self.database.times.now_s:g}")
            others = [each for each in self.processes if each is not hung]
            if self.rng.random() < 0.5:
                self.open(name, others[0])
            else:
                self.append_alone(name, others[0])
            for _ in range(2 if (hung, writer) in self.zombies else 0):
                self.wake(hung, writer)

    def kill(self) -> None:
        process = self.process()
        self.history.lines.append(f"{process}: killed")
        self.bury(process)

    # --- statements that arrive after their senders have given up ---------------------------------------------------------

    # Each schedule has one of these in turn, so that each comes often, and between random actions.
    SCENARIOS: tuple[str, ...] = (
        *("delete_late", "claim_late", "create_late", "send_late", "append_late", "claim_unheard"),
        *("erase_older", "list_older", "meet_newer_at_once"),
    )

    def ready(self) -> str:
        """A session with events that nobody writes."""
        self.deliver_all()
        if (name := self.free()) is None:
            process, name = self.process(), f"r{len(self.certain)}"
            self.do(process, f"create {name}", lambda: process.store.create_session(session_id=name), faults=False)
            self.certain[name] = []
        self.settle(name)
        self.maybe[name] = []
        if not self.certain[name]:
            self.append_alone(name, self.process(), faults=False)
        return name

    def erase_older(self) -> None:
        self.erase_by_older(self.ready())

    def list_older(self) -> None:
        self.list_beside(self.ready())

    def meet_newer_at_once(self) -> None:
        self.meet_newer(self.ready())

    def append_late(self) -> None:
        """Deliver an append once more, or late: after it was repeated or given up."""
        name, process = self.ready(), self.process()
        self.open(name, process, faults=False)
        if self.holder.get(name) is process:
            self.append_to(name, fault=self.rng.choice(("late", "cut after", STRAGGLER, UNHEARD)))
            if self.rng.random() < 0.5:
                self.append_alone_any()
            self.deliver_all()

    def claim_unheard(self) -> None:
        """Let a claim take effect without an answer: the process releases the session with its next heartbeat."""
        name = self.ready()
        claims, other = self.rng.sample(self.processes, 2)
        came = self.do(claims, f"open {name}", lambda: claims.store.open_writer(name), fault=UNHEARD, name=self.CLAIM)
        self.require(isinstance(came, StorageError), f"{name} was opened without an answer: {came!r}")
        self.do(claims, "beat", claims.beat, faults=False)
        self.open(name, other, faults=False)

    def straggle(self) -> None:
        getattr(self, self.rng.choice(self.SCENARIOS))()

    def deliver_all(self) -> None:
        while self.database.late:
            self.database.deliver()

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Let what is on its way to the server arrive only afterwards."""
        late, self.database.late = self.database.late, []
        try:
            yield
        finally:
            self.database.late = [*late, *self.database.late]

    def free(self) -> str | None:
        """A session that nobody writes."""
        names = sorted(name for name in self.certain if name not in self.holder and not self.is_held_by_older(name))
        return self.rng.choice(names) if names else None

    def delete_late(self) -> None:
        """Deliver a deletion after another process has opened the session: then nothing may be deleted."""
        name = self.ready()
        late, other = self.rng.sample(self.processes, 2)
        self.do(
            late,
            f"delete {name}",
            lambda: late.store.delete_session(name),
            SessionLockedError,
            fault=STRAGGLER,
            name=CHANGE,
        )
        with self.held_back():
            came = self.do(other, f"open {name}", lambda: other.store.open_writer(name), SessionError, faults=False)
        self.deliver_all()
        is_there = name in self.database.sessions
        if hasattr(came, "append"):
            self.require(is_there, "a session in use was deleted")
            self.replace(name, other, came)
        elif not is_there:
            self.forget(name)

    def claim_late(self) -> None:
        """Deliver a claim after another one of the same or another process, which keeps the session."""
        name = self.ready()
        late, other = self.process(), self.process()
        fault = self.rng.choice(("away", STRAGGLER, STRAGGLER))
        came = self.do(late, f"take {name} over", lambda: late.store.take_over(name), fault=fault, name=self.CLAIM)
        if hasattr(came, "append"):
            return self.replace(name, late, came)
        self.open(name, other, faults=False)
        self.deliver_all()
        self.do(late, "beat", late.beat, faults=False)
        if self.holder.get(name) is other:
            batch = self.batch()
            came = self.do(
                other, f"append to {name}", lambda: other.writers[name].append(batch), SessionError, faults=False
            )
            self.require(isinstance(came, list), f"a claim that came too late took the session away: {came!r}")
            self.grow(name, [text_of(event) for event in batch], came[-1].seq or 0)

    def create_late(self) -> None:
        """Deliver a creation once more after the session was deleted: it must not bring it back."""
        name = self.rng.choice("abc")
        if name in self.certain:
            return
        late, other = self.rng.sample(self.processes, 2)
        fault = self.rng.choice(("late", STRAGGLER))
        came = self.do(
            late,
            f"create {name}",
            lambda: late.store.create_session(session_id=name),
            fault=fault,
            places=(1,),
            name=self.CREATE,
        )
        if isinstance(came, str):
            self.certain[name] = []
            with self.held_back():
                gone = self.do(other, f"delete {name}", lambda: other.store.delete_session(name), faults=False)
            self.require(gone is None, f"{name} cannot be deleted: {gone!r}")
            self.forget(name)
            self.deliver_all()
            self.require(name not in self.database.sessions, "a session that was deleted is there again")
        else:
            self.deliver_all()
            if name in self.database.sessions:
                self.certain[name] = []

    def send_late(self) -> None:
        """Deliver a message once more, or late: it counts as one."""
        name = self.ready()
        late, before = self.process(), len(self.waiting.get(name, ()))
        fault = self.rng.choice(("late", "cut after", STRAGGLER))
        came = self.do(
            late, f"send to {name}", lambda: late.store.put_message(name, {"n": 1}), fault=fault, places=(1,)
        )
        self.deliver_all()
        found = [each.number for each in self.truth.store.read_messages([name])]
        allowed = (before + 1,) if isinstance(came, int) else (before, before + 1)
        self.require(len(found) in allowed, f"{len(found) - before} messages came of one")
        self.waiting[name] = found

    ACTIONS = (
        *(create, open_any, append, append_alone_any, take_over, wake_any, close, delete, change_metadata, copy),
        *(claim, send, receive, pass_time, kill, hang, straggle, erase, list_rows),
    )
    WEIGHTS: tuple[float, ...] = (4, 9, 9, 2, 1, 1, 2, 0.7, 1, 1, 1, 1, 0.5, 1.5, 0.7, 1.5, 2, 2, 1)
