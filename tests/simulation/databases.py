"""Sessions in a database whose processes die, hang and are replaced, with failures and lost responses at any statement."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

from openagentic_sdk.errors import (
    ConcurrencyError,
    LeaseLostError,
    SessionError,
    SessionExistsError,
    SessionLockedError,
    StorageError,
)
from openagentic_sdk.events import AssistantMessage, Event, UserMessage
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.sessions.stores.sqlite.schema import MIGRATIONS
from openagentic_sdk.testing.clock import FakeClock
from openagentic_sdk.testing.crash import Killed

from . import older
from .history import History

FAULTS = ("killed", "away", "unheard", "killed unheard")


class FaultyFile:
    """A database file that fails at statement `at` of a transaction; an "unheard" statement takes effect all the same.

    It passes `skips` transactions first.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.fault, self.at, self.skips, self.struck = "", 0, 0, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def strike(self) -> None:
        self.struck = True
        if self.fault.startswith("killed"):
            raise Killed
        raise StorageError("simulated: the database is away", retryable=True)

    @contextmanager
    def transaction(self, session_id: str | None = None, *, durable: bool = False) -> Iterator[Any]:
        if self.is_skipped():
            with self.inner.transaction(session_id, durable=durable) as db:
                yield db
            return
        with self.inner.transaction(session_id, durable=durable) as db:
            yield Statements(db, self) if self.fault in ("killed", "away") else db
        if self.fault.endswith("unheard"):
            self.strike()

    def is_skipped(self) -> bool:
        self.skips -= self.skips > 0
        return self.skips > 0

    def changes_one(self, command: str, values: tuple[object, ...], *, durable: bool) -> bool:
        if self.is_skipped():
            return bool(self.inner.changes_one(command, values, durable=durable))
        if self.fault in ("killed", "away"):
            self.strike()
        came = self.inner.changes_one(command, values, durable=durable)
        if came and self.fault.endswith("unheard"):
            self.strike()
        return bool(came)


class Statements:
    """A connection on which one statement fails."""

    def __init__(self, db: Any, file: FaultyFile) -> None:
        self.db, self.file, self.count = db, file, 0

    def __getattr__(self, name: str) -> Any:
        if name in ("execute", "executemany"):
            self.count += 1
            if self.count >= self.file.at and not self.file.struck:
                self.file.strike()
        return getattr(self.db, name)


@cache
def database() -> tuple[SqliteSessionStore, FaultyFile]:
    """The database of this process, which each schedule empties first."""
    store = SqliteSessionStore(":memory:", clock=FakeClock(1_700_000_000.0))
    file = FaultyFile(store._file)
    store._file = file  # type: ignore[assignment]
    return store, file


class Databases:
    """One schedule. For each session the model has the events that are certain, and those that may follow."""

    def __init__(self, seed: int, place: str) -> None:
        self.rng = random.Random(seed)
        self.history = History(seed)
        self.store, self.file = database()
        self.file.fault = ""
        with self.file.transaction() as db:
            for table in ("sessions", "openagentic_requests"):
                db.execute(f"DELETE FROM {table}")
        self.certain: dict[str, list[str]] = {}
        self.maybe: dict[str, list[str]] = {}
        self.writers: dict[str, Any] = {}
        self.zombies: list[Any] = []
        self.owners: dict[str, str] = {}
        self.metadata: dict[str, list[dict[str, Any]]] = {}
        self.count = 0
        self.fault = ""  # the fault that struck last
        # With numbers of their own, so that the same seeds do the same without older versions.
        self.versions = random.Random(f"{seed} versions")
        self.has_older = self.versions.random() < 0.3

    def run(self) -> None:
        for _ in range(self.rng.choice((6, 8, 10))):
            if self.has_older and self.certain and self.versions.random() < 0.4:
                self.file.fault = ""
                self.versions.choice(self.TURNS)(self, self.versions.choice(sorted(self.certain)))
            self.rng.choices(self.ACTIONS, self.WEIGHTS)[0](self)
        self.file.fault = ""
        for name in list(self.certain):
            self.settle(name)
            self.look_at(name)
        for writer in [*self.writers.values(), *self.zombies]:
            writer.lease.release()

    def look_at(self, name: str) -> None:
        row, folded = self.store.read_summary(name), self.store.fold_summary(name)
        self.require(
            (row.events, row.last_prompt, row.cwd, row.updated)
            == (folded.events, folded.last_prompt, folded.cwd, folded.updated),
            lambda: f"the row of {name} is {row}, not {folded}",
        )

    def require(self, holds: object, claim: str | Callable[[], str]) -> None:
        self.history.require(holds, claim)

    def do(
        self, what: str, work: Any, *expected: type[BaseException], faults: bool = True, may_refuse: bool = False
    ) -> Any:
        self.file.struck = False
        self.file.fault = self.rng.choice(FAULTS) if faults and self.rng.random() < 0.3 else ""
        self.file.at = self.rng.randrange(1, 7)
        came = self.history.invoke(
            f"{self.file.fault or 'process'} {self.file.at}", what, work, Killed, StorageError, *expected
        )
        fault, self.file.fault = self.file.fault if self.file.struck else "", ""
        self.fault = fault
        self.require(fault or not isinstance(came, Killed), "killed by nobody")
        is_refused = isinstance(came, StorageError) and not isinstance(came, SessionError)
        is_allowed = fault or may_refuse or not is_refused
        self.require(is_allowed, lambda: f"{what} was refused by a database that is there: {came!r}")
        return came

    # --- the model -----------------------------------------------------------------------------------------------------

    def settle(self, name: str) -> None:
        """Treat everything that the log shows as certain, whatever the responses were."""
        shown = self.texts(name)
        certain, maybe = self.certain[name], self.maybe.get(name, [])
        self.require(shown[: len(certain)] == certain, f"{name} shows {shown}, not {certain}")
        self.require(shown in (certain, certain + maybe), f"{name} shows {shown}: half of {maybe} or more than that")
        self.certain[name], self.maybe[name] = shown, []

    def texts(self, name: str) -> list[str]:
        return [getattr(event, "text", event.type) for event in self.store.read_events(name)]

    def some(self) -> str | None:
        return self.rng.choice(sorted(self.certain)) if self.certain else None

    def batch(self) -> list[Event]:
        self.count += 1
        kind = self.rng.choice((UserMessage, AssistantMessage))
        return [kind(f"{self.count}.{number}") for number in range(self.rng.choice((1, 1, 3)))]

    # --- actions ---------------------------------------------------------------------------------------------------------

    def create(self) -> None:
        name = self.rng.choice("abcd")
        came = self.do(f"create {name}", lambda: self.store.create_session(session_id=name), SessionExistsError)
        if name in self.certain:
            self.require(not isinstance(came, str), "a session was created twice")
        elif isinstance(came, str) or self.store.session_exists(name):
            self.require(not isinstance(came, SessionExistsError), f"{name} exists already")
            self.certain[name] = []

    def open(self) -> None:
        if (name := self.some()) is None:
            return
        came = self.do(f"open {name}", lambda: self.store.open_writer(name), SessionLockedError)
        if name in self.writers:
            self.require(not hasattr(came, "append"), "two writers of one session")
        elif hasattr(came, "append"):
            self.settle(name)
            self.writers[name] = came
        else:
            self.require(not isinstance(came, SessionLockedError), "a session that nobody holds is locked")

    def take_over(self) -> None:
        if not self.writers:
            return
        name = self.rng.choice(sorted(self.writers))
        came = self.do(f"take {name} over", lambda: self.store.take_over(name))
        if hasattr(came, "append"):
            self.zombies.append(self.writers[name])
            self.writers[name] = came
            self.settle(name)
        elif self.fault.endswith("unheard"):
            # Its caller never received the new writer, and the old one is void.
            self.zombies.append(self.writers.pop(name))

    def wake(self) -> None:
        """Wake a writer that was replaced: it must not change anything."""
        if self.zombies:
            came = self.do("a zombie appends", lambda: self.rng.choice(self.zombies).append(self.batch()), SessionError)
            self.require(isinstance(came, Exception | Killed), "a writer that was replaced appends")

    def append(self) -> None:
        if not self.writers:
            return self.append_alone()
        name = self.rng.choice(sorted(self.writers))
        batch = self.batch()
        texts = [event.text for event in batch]  # type: ignore[attr-defined]
        came = self.do(
            f"append {texts} to {name}", lambda: self.writers[name].append(batch), LeaseLostError, ConcurrencyError
        )
        if isinstance(came, list):
            self.certain[name] = self.certain[name] + self.taken(name) + texts
            self.require([event.seq for event in came][-1] == len(self.certain[name]), "the numbers are others")
            return
        self.require(not isinstance(came, ConcurrencyError), f"the one writer of {name} is told of another: {came}")
        self.maybe[name] = texts
        if isinstance(came, Killed):
            self.writers.pop(name).lease.release()
        self.settle(name)

    def taken(self, name: str) -> list[str]:
        return self.maybe.pop(name, [])

    def append_alone(self) -> None:
        if (name := self.some()) is None:
            return
        batch, expected = self.batch(), self.rng.choice((None, len(self.certain[name]), len(self.certain[name]) + 1))
        texts = [event.text for event in batch]  # type: ignore[attr-defined]
        came = self.do(
            f"append {texts} alone to {name} at {expected}",
            lambda: self.store.append_events(name, batch, expected_seq=expected),
            *(SessionLockedError, ConcurrencyError),
        )
        if name in self.writers:
            self.require(not isinstance(came, list), "an append passed a writer by")
        elif expected is not None and expected > len(self.certain[name]):
            self.require(not isinstance(came, list), "an append came to another place than it expected")
        elif isinstance(came, list):
            self.certain[name] = self.certain[name] + texts
        else:
            self.require(isinstance(came, StorageError | Killed), f"{name} refuses what fits: {came!r}")
            self.maybe[name] = texts
            self.settle(name)

    def copy(self) -> None:
        source, target = self.some(), self.rng.choice("efgh")
        if source is None:
            return
        at = self.rng.randrange(len(self.certain[source]) + 1)
        tail = [UserMessage(f"tail {target}")]
        came = self.do(
            f"copy {source} up to {at} as {target}",
            lambda: self.store.copy_session(source, target, at_seq=at, tail=tail, metadata={}),
            SessionExistsError,
        )
        if target in self.certain:
            self.require(not isinstance(came, str), "a copy replaced a session")
        elif isinstance(came, str) or self.store.session_exists(target):
            self.certain[target] = [*self.certain[source][:at], f"tail {target}"]
            self.settle(target)

    def delete(self) -> None:
        if (name := self.some()) is None:
            return
        came = self.do(f"delete {name}", lambda: self.store.delete_session(name), SessionLockedError)
        self.require(name not in self.writers or came is not None, "a session in use was deleted")
        if came is None or not self.store.session_exists(name):
            self.certain.pop(name)
            self.metadata.pop(name, None)
            self.owners = {request: owner for request, owner in self.owners.items() if owner != name}

    def claim(self) -> None:
        name, request = self.some(), self.rng.choice("rs")
        if name is None:
            return
        came = self.do(f"{name} claims {request}", lambda: self.store.claim_request(name, request))
        if isinstance(came, str):
            known = self.owners.get(request)
            self.require(came == known if known else came in self.certain, f"{request} belongs to {came}, not {known}")
            self.owners[request] = came

    def erase(self) -> None:
        if (name := self.some()) is None or not self.certain[name]:
            return
        self.count += 1
        place, new = self.rng.randrange(len(self.certain[name])), f"gone{self.count}"
        old = self.certain[name][place]
        if old == older.ERASED:
            return
        came = self.do(
            f"erase {old} of {name}",
            lambda: self.store.rewrite_events(
                name,
                lambda events: {place + 1: replace(events[place], text=new)},  # type: ignore[call-arg]
            ),
            SessionLockedError,
        )
        if name in self.writers:
            self.require(isinstance(came, Exception | Killed), "something was erased beside a writer")
        else:
            self.require(not isinstance(came, SessionLockedError), "a session that nobody holds is locked")
            is_done = self.texts(name)[place] == new
            self.require(came is not None or is_done, f"{old} was erased and is shown")
            self.certain[name][place] = new if is_done else old
        self.settle(name)

    def change_metadata(self) -> None:
        if (name := self.some()) is None:
            return
        change = self.rng.choice(({"cwd": "/a"}, {"cwd": "/b"}, {"cwd": None}))
        came = self.do(f"set {change} of {name}", lambda: self.store.update_metadata(name, change))
        after = {key: value for key, value in change.items() if value is not None}
        self.metadata[name] = [after] if came is None else [*self.metadata.get(name, [{}]), after]
        self.check_metadata(name)

    def check_metadata(self, name: str) -> None:
        found, allowed = self.store.read_metadata(name)["metadata"], self.metadata.get(name, [{}])
        self.require(found in allowed, f"the metadata of {name} are {found}, not one of {allowed}")
        self.metadata[name] = [found]

    def search(self) -> None:
        """Search for a text; the answer is that of a scan of all logs."""
        texts = {name: self.texts(name) for name in self.certain}
        every = sorted({text for each in texts.values() for text in each} - {older.ERASED})
        if every:
            text = self.rng.choice(every)
            found = {(hit.session_id, hit.seq) for hit in self.store.search(f'"{text}"')}
            expected = {(name, seq) for name, each in texts.items() for seq, one in enumerate(each, 1) if one == text}
            self.require(expected <= found, f"{text} is found at {sorted(found)}, not {sorted(expected)}")

    def look(self) -> None:
        names = self.store.list_sessions()
        self.require(sorted(names) == sorted(self.certain), f"{names} are listed")
        page, seen = self.store.page_sessions(limit=2), list[str]()
        seen += [row.id for row in page.rows]
        while page.next:
            page = self.store.page_sessions(limit=2, after=page.next)
            seen += [row.id for row in page.rows]
        self.require(seen == names, f"pages show {seen}, the list {names}")

    # --- turns of other versions -----------------------------------------------------------------------------------------

    def append_by_older(self, name: str) -> None:
        """Append as an older version, which first takes the session over if it is held here."""
        self.count += 1
        text = f"old{self.count}"
        self.history.lines.append(f"an older version appends {text} to {name}")
        with self.file.inner.transaction() as db:
            older.append_to_database(db, name, older.said(text), takes_over=name in self.writers)
        if name in self.writers:
            self.zombies.append(self.writers.pop(name))
        self.certain[name] = self.certain[name] + self.taken(name) + [text]
        self.settle(name)

    def delete_by_older(self, name: str) -> None:
        if name not in self.writers:
            self.history.lines.append(f"an older version deletes {name}")
            with self.file.inner.transaction() as db:
                db.execute("DELETE FROM sessions WHERE id = ?", (name,))
            self.certain.pop(name)
            self.metadata.pop(name, None)
            self.owners = {request: owner for request, owner in self.owners.items() if owner != name}

    def look_at_once(self, name: str) -> None:
        """Compare a row right after the turn of an older version."""
        self.versions.choice((self.append_by_older, self.erase_by_older, self.change_by_older))(name)
        self.look_at(name)
        cwd = self.metadata.get(name, [{}])[0].get("cwd")
        listed = {each.id for each in self.store.list_session_summaries(cwd=cwd)}
        self.require(name in listed, f"{name} is not listed in its folder {cwd}")

    def erase_by_older(self, name: str) -> None:
        places = [place for place, text in enumerate(self.certain[name]) if text != older.ERASED]
        if name in self.writers or not places:
            return
        self.count += 1
        place, text = self.versions.choice(places), f"old{self.count}"
        self.history.lines.append(f"an older version erases event {place + 1} of {name}, which becomes {text}")
        with self.file.inner.transaction() as db:
            older.erase_in_database(db, name, place + 1, text)
        self.certain[name] = [*self.certain[name], older.ERASED]
        self.certain[name][place] = text
        self.settle(name)

    def change_by_older(self, name: str) -> None:
        """Change the metadata as an older version, also beside a writer."""
        metadata = {"cwd": self.versions.choice(("/a", "/b"))}
        self.history.lines.append(f"an older version sets the metadata of {name} to {metadata}")
        with self.file.inner.transaction() as db:
            older.change_in_database(db, name, metadata)
        self.metadata[name] = [metadata]
        self.check_metadata(name)

    def migrate_by_newer(self, name: str) -> None:
        """Migrate the tables as a newer version, which records in them what this version may still do."""
        if name in self.writers:
            return
        oldest = self.versions.choice((len(MIGRATIONS), len(MIGRATIONS) + 1, None))
        self.history.lines.append(f"a newer version migrates; the oldest that may continue is {oldest}")
        with older.migrated(self.file.inner, oldest):
            came = self.do(
                f"open {name} beside it", lambda: self.store.open_writer(name), faults=False, may_refuse=True
            )
            claim = self.do(
                "claim a request beside it", lambda: self.store.claim_request(name, "q"), faults=False, may_refuse=True
            )
        if hasattr(came, "append"):
            came.close()
        is_new = "q" not in self.owners
        if isinstance(claim, str):
            self.owners["q"] = claim
        is_refused = isinstance(came, StorageError) and "upgrade" in str(came)
        is_allowed = oldest == len(MIGRATIONS)
        self.require(is_refused != is_allowed, f"opened beside a newer version: {came!r}")
        if is_new:
            self.require(isinstance(claim, StorageError) != is_allowed, f"claimed beside a newer version: {claim!r}")

    TURNS = (append_by_older, look_at_once, delete_by_older, migrate_by_newer, erase_by_older, change_by_older)

    ACTIONS = (
        *(create, open, take_over, wake, append, append_alone, copy, delete, claim, look, erase),
        *(change_metadata, search),
    )
    WEIGHTS = (5, 4, 1, 1, 9, 2, 1.5, 1, 1, 1, 1, 1, 0.5)
