"""Erasures, holds, retention and purges in families of sessions, by processes that die between and in their transactions."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

from openagentic_sdk.errors import SessionHeldError, StorageError
from openagentic_sdk.events import RecordPurged, UserMessage
from openagentic_sdk.parts.record.erase import erase, finish_each, has_unfinished_erasure, unfinished_erasures
from openagentic_sdk.parts.record.keep import hold_session, purge_session, purge_sessions, retain_session
from openagentic_sdk.parts.record.lifecycle import TOMBSTONES, fork_session
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.testing.clock import FakeClock
from openagentic_sdk.testing.crash import Killed

from .databases import FAULTS, FaultyFile
from .history import History

# In the year 2096.
FAR_S = 4e9


class NotingStore(SqliteSessionStore):
    """A store that notes its writers, whose locks the kernel releases when a process dies."""

    def __init__(self) -> None:
        super().__init__(":memory:", clock=FakeClock(1_700_000_000.0))
        self._file = FaultyFile(self._file)  # type: ignore[assignment]
        self.writers: list[Any] = []

    def _new_writer(self, *at: Any) -> Any:
        self.writers.append(super()._new_writer(*at))
        return self.writers[-1]


@cache
def database() -> NotingStore:
    """The database of this process, which each schedule empties first."""
    return NotingStore()


class Keeping:
    """One schedule. For each session the model has its texts and its parent; `erased` has those that may not be found."""

    def __init__(self, seed: int, place: str) -> None:
        self.rng = random.Random(seed)
        self.history = History(seed)
        self.store = database()
        self.file: Any = self.store._file
        self.file.fault = ""
        with self.file.transaction() as db:
            for table in ("sessions", "openagentic_requests"):
                db.execute(f"DELETE FROM {table}")
        self.texts: dict[str, list[str]] = {}
        self.parents: dict[str, str] = {}
        # Sessions whose texts were requested to be erased, and those from which they were.
        self.requested: dict[str, str] = {}
        self.erased: set[tuple[str, str]] = set()
        # Sessions with a hold or retention; with None it is unknown, because the process died.
        self.held: dict[str, bool | None] = {}
        self.retained: dict[str, bool | None] = {}
        self.doomed: set[str] = set()
        self.texts_by_reason: dict[str, str] = {}
        self.count = 0

    def run(self) -> None:
        for step in range(self.rng.choice((2, 3, 4))):
            if not self.texts:
                self.create(f"a{self.number():03}", {})
                self.append()
                self.rng.choice((self.fork, self.begin_child))()
            if step == 0:
                self.erase()
            self.rng.choices(self.ACTIONS, self.WEIGHTS)[0](self)
            self.judge()
        self.finish()

    def require(self, holds: object, claim: str | Callable[[], str]) -> None:
        self.history.require(holds, claim)

    def do(self, what: str, work: Callable[[], Any], *expected: type[BaseException], faults: bool = True) -> Any:
        """Do something that is stopped, at times, in one of its transactions."""
        self.store._clock.advance(1.0)
        file = self.file
        file.struck, file.fault = False, self.rng.choice(FAULTS) if faults and self.rng.random() < 0.5 else ""
        file.skips, file.at = self.rng.randrange(12), self.rng.randrange(1, 3)
        where = f"{file.fault} {file.skips}" if file.fault else "process"
        came = self.history.invoke(where, what, work, Killed, StorageError, *expected)
        is_stopped, file.fault, file.skips = file.struck, "", 0
        for writer in self.store.writers:
            writer.lease.release()
        self.store.writers.clear()
        is_failure = isinstance(came, Killed | StorageError) and not isinstance(came, expected)
        self.require(is_stopped or not is_failure, lambda: f"{what} failed without a cause: {came!r}")
        return came

    def some(self) -> str:
        return self.rng.choice(sorted(self.texts))

    def number(self) -> int:
        self.count += 1
        return self.count

    def family(self, name: str) -> set[str]:
        """The session with all that descend from it or that it descends from, and so on."""
        found, added = set[str](), {name}
        while added:
            found |= added
            near = {each for each, parent in self.parents.items() if each in found or parent in found}
            near |= {self.parents[each] for each in found if each in self.parents}
            added = (near & self.texts.keys()) - found
        return found

    def tree(self, name: str) -> set[str]:
        """The session with those of its subagents."""
        found = {name}
        for each in sorted(self.texts):  # the names of children follow those of their parents
            if each[0] == "c" and self.parents[each] in found:
                found.add(each)
        return found

    # --- actions -----------------------------------------------------------------------------------------------------

    def create(self, name: str, metadata: dict[str, str]) -> None:
        self.do(f"create {name}", lambda: self.store.create_session(session_id=name, metadata=metadata), faults=False)
        self.texts[name] = []

    def append(self, name: str = "") -> None:
        name, number = name or self.some(), self.number()
        known = sorted({text for texts in self.texts.values() for text in texts} - self.requested.keys())
        text = self.rng.choice(known) if known and self.rng.random() < 0.3 else f"secret{number:03}"
        self.do(f"append {text} to {name}", lambda: self.store.append_event(name, UserMessage(text)), faults=False)
        self.texts[name].append(text)
        if self.rng.random() < 0.4:
            self.do(f"note {text}", lambda: self.store.update_metadata(name, {"note": f"of {text}"}), faults=False)

    def fork(self) -> None:
        name, fork = self.some(), f"f{self.number():03}"
        self.do(f"fork {name} as {fork}", lambda: fork_session(self.store, name, session_id=fork))
        if self.store.session_exists(fork):
            self.texts[fork], self.parents[fork] = list(self.texts[name]), name
            self.erased |= {(fork, text) for each, text in self.erased if each == name}

    def begin_child(self) -> None:
        name, child = self.some(), f"c{self.number():03}"
        self.create(child, {"parent_session_id": name, "parent_tool_use_id": "t", "agent_name": "x"})
        self.parents[child] = name
        self.append(child)

    def erase(self) -> None:
        name = self.some()
        if self.texts[name]:
            self.erase_text(name, self.rng.choice(self.texts[name]))

    def erase_text(self, name: str, text: str, *, faults: bool = True) -> None:
        family, reason = self.family(name), f"request {self.number():03}"
        self.texts_by_reason[reason] = text
        came = self.do(
            f"erase {text} of {name}",
            lambda: erase(self.store, name, texts=[text], reason=reason),
            SessionHeldError,
            faults=faults,
        )
        holds = [self.held.get(each, False) for each in family]
        self.require(True not in holds or isinstance(came, Exception | Killed), f"erased from {name}, which is held")
        is_refused = isinstance(came, SessionHeldError)
        self.require(not is_refused or holds != [False] * len(holds), f"{name}, which nobody holds, is held")
        if not is_refused:
            self.requested[text] = name
        if not isinstance(came, Exception | Killed):
            self.erased |= {(each, text) for each in family}

    def complete(self, *, faults: bool = True) -> None:
        """Complete what was stopped, as `erase --finish` does: the text is gone from the sessions that recorded the erasure,
        and from their forks.
        """
        work = unfinished_erasures(self.store)
        came = self.do(f"finish {len(work)} erasures", lambda: len(finish_each(self.store, work)), faults=faults)
        for each in work if isinstance(came, int) else ():
            found, since = set(each.sessions), each.reason.split()[1]
            for fork in sorted(self.parents):  # whose names follow those of what they were made of
                is_made_meanwhile = fork[0] == "f" and fork[1:] > since and self.parents[fork] in found
                found |= {fork} if is_made_meanwhile else set()
            self.erased |= {(name, self.texts_by_reason[each.reason]) for name in found & self.texts.keys()}
        for each in self.texts if not faults else ():
            found = has_unfinished_erasure(self.store.iter_events(each))
            self.require(not found, f"an erasure in {each} is not finished")

    def hold(self) -> None:
        name, release = self.some(), self.rng.random() < 0.3
        came = self.do(f"hold {name}, release {release}", lambda: hold_session(self.store, name, release=release))
        for each in self.tree(name):
            known = self.held.get(each, False)
            self.held[each] = not release if came is None or known is (not release) else None

    def retain(self) -> None:
        name, until = self.some(), self.rng.choice((FAR_S, FAR_S, 0.0))
        came = self.do(f"retain {name} until {until:g}", lambda: retain_session(self.store, name, until))
        for each in self.tree(name):
            known = self.retained.get(each, False)
            self.retained[each] = bool(until) if came is None or known is bool(until) else None

    def purge(self) -> None:
        name = self.some()
        doomed = self.tree(name)
        self.doomed |= doomed
        came = self.do(f"purge {name}", lambda: len(purge_session(self.store, name)), SessionHeldError)
        kept = [self.held.get(each, False) or self.retained.get(each, False) for each in doomed]
        if True in kept:
            left = all(map(self.store.session_exists, doomed))
            self.require(left and not isinstance(came, int), f"{name} was purged, and some of {doomed} are kept")
        elif isinstance(came, int):
            self.require(not any(map(self.store.session_exists, doomed)), f"some of {doomed} are there after a purge")

    def purge_old(self) -> None:
        """Purge whatever is old, which is everything, by the clock of the store."""
        self.doomed |= self.texts.keys()
        self.do("purge what is old", lambda: len(purge_sessions(self.store, 3600.0)))

    # --- the model -----------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Check what became of every session: its texts, and its tombstone if it is gone."""
        stones: list[str] = []
        if self.store.session_exists(TOMBSTONES):
            events = self.store.iter_events(TOMBSTONES)
            stones = [event.purged_session_id for event in events if isinstance(event, RecordPurged)]
        self.require(len(stones) == len(set(stones)), f"two tombstones of one session: {stones}")
        for name in sorted(self.texts):
            if not self.store.session_exists(name):
                is_kept = self.held.get(name) or self.retained.get(name)
                self.require(name in self.doomed and not is_kept, f"{name} is gone")
                self.require(name in stones, f"{name} is gone, without a tombstone")
                del self.texts[name]
                continue
            events = self.store.read_events(name)
            shown = [event.text for event in events if isinstance(event, UserMessage)]
            known = self.texts[name]
            self.require(len(shown) == len(known), f"{name} shows {shown}, not {known}")
            for text, before in zip(shown, known, strict=True):
                self.require(text == before or before in self.requested, f"{before} became {text} in {name}")
        with self.file.reading() as db:
            rows = db.execute("SELECT id, data FROM events JOIN sessions ON key = place >> 32").fetchall()
            rows += db.execute("SELECT id, metadata || coalesce(summary, '') FROM sessions").fetchall()
        for name, text in sorted(self.erased):
            found = [data for each, data in rows if each == name and text in data]
            self.require(not found, f"{text} was erased from {name}, and is in {found[:1]}")

    def finish(self) -> None:
        """Release everything, complete what was stopped, repeat what was requested, and check that it is gone."""
        for name in sorted(each for each in self.texts if self.held.get(each, False) is not False):
            self.do(f"release {name}", lambda name=name: hold_session(self.store, name, release=True), faults=False)  # type: ignore[misc]
        self.held = {}
        self.complete(faults=False)
        self.judge()
        for text, name in sorted(self.requested.items()):
            if name in self.texts and text in self.texts[name]:
                self.erase_text(name, text, faults=False)
        self.judge()

    ACTIONS = (append, fork, begin_child, erase, complete, hold, retain, purge, purge_old)
    WEIGHTS = (4, 3, 3, 7, 2, 1.5, 1, 2, 1)
