"""An older and a newer version of the package beside today's on a simulated server: stand-ins for those around 934eb5e1.

An older version compares epoch, holder and `seq` as today's does, and writes the fields and rows that it had then, in code
of its own. It has no index of words and no inbox, leaves no mark of a deletion, and its erasures do not change the revision.
"""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from openagentic_sdk.errors import SessionError, SessionLockedError, StorageError
from openagentic_sdk.events import UserMessage
from openagentic_sdk.sessions.stores.database import text_key
from openagentic_sdk.sessions.stores.postgres.schema import MIGRATIONS
from openagentic_sdk.sessions.stores.redis.scripts import FORMAT

from .history import History
from .modelled_redis import PREFIX, RedisDatabase, WrongTypeError
from .modelled_server import Database
from .older import ERASED, ERASURE, NOW_S, line_of, row_of, said

LEASE_S = 15.0


class Fence(NamedTuple):
    """What an older version compares when it changes a session."""

    key: Any
    epoch: int
    holder: str
    revision: int
    last_seq: int


class OlderVersion(ABC):
    """The steps of an older version on one database."""

    @abstractmethod
    def fence(self, name: str) -> Fence | None:
        """The state of a session; None if it does not exist."""

    @abstractmethod
    def claim(self, name: str, holder: str) -> None:
        """Give the session the next epoch and this holder."""

    @abstractmethod
    def lease(self, holder: str, until_s: float) -> None:
        """Renew the lease of a process."""

    @abstractmethod
    def add(self, name: str, line: str, last_seq: int, epoch: int, holder: str) -> None:
        """Append a line, with the row that this version writes."""

    @abstractmethod
    def put(self, name: str, seq: int, line: str) -> None:
        """Replace a line."""

    @abstractmethod
    def change(self, name: str, metadata: dict[str, Any]) -> None:
        """Set the metadata."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a session."""

    def append(self, name: str, fence: Fence, fields: dict[str, Any], epoch: int, holder: str) -> bool:
        """Append an event if the session is as it was; return whether it was."""
        if self.fence(name) != fence:
            return False
        line = line_of(fence.last_seq + 1, fields)
        self.add(name, line, fence.last_seq, epoch, holder)
        return True

    def erase(self, name: str, seq: int, text: str) -> None:
        """Replace the text of an event, as the holder, and record it."""
        self.put(name, seq, line_of(seq, said(text)))
        fence = self.fence(name)
        assert fence is not None
        self.append(name, fence, ERASURE, fence.epoch, fence.holder)


class OlderPostgres(OlderVersion):
    """An older version on the modelled Postgres server."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def fence(self, name: str) -> Fence | None:
        row = self.database.sessions.get(name)
        return row and Fence(*(row[each] for each in Fence._fields))

    def claim(self, name: str, holder: str) -> None:
        row = self.database.sessions[name]
        row |= {"epoch": row["epoch"] + 1, "holder": holder}

    def lease(self, holder: str, until_s: float) -> None:
        self.database.holders[holder] = until_s

    def add(self, name: str, line: str, last_seq: int, epoch: int, holder: str) -> None:
        row = self.database.sessions[name]
        row |= {"epoch": epoch, "holder": holder, "last_seq": last_seq + 1, "touched": self.database.number()}
        row |= {"updated": _updated(row["updated"], last_seq), "summary": row_of(row["summary"])}
        self.database.events[row["key"]].append((last_seq + 1, row["updated"], line))

    def put(self, name: str, seq: int, line: str) -> None:
        row = self.database.sessions[name]
        rows = self.database.events[row["key"]]
        rows[seq - 1] = (*rows[seq - 1][:2], line)
        row["summary"] = row_of(row["summary"])

    def change(self, name: str, metadata: dict[str, Any]) -> None:
        row = self.database.sessions[name]
        summary = row_of(row["summary"], cwd=metadata["cwd"])
        row |= {
            "cwd": text_key(metadata["cwd"]),
            "metadata": json.dumps(metadata),
            "revision": row["revision"] + 1,
            "summary": summary,
        }

    def delete(self, name: str) -> None:
        row = self.database.sessions[name]
        self.database.delete(row["key"], row["epoch"], row["holder"], row["last_seq"])


class OlderRedis(OlderVersion):
    """An older version on the modelled Redis server."""

    def __init__(self, database: RedisDatabase) -> None:
        self.call = database.call
        self.times = database.times

    def fence(self, name: str) -> Fence | None:
        fields = self.call(b"HMGET", _key("head", name), "key", "epoch", "holder", "revision")
        if fields[1] is False:
            return None
        key, epoch, holder, revision = ((each or b"").decode() for each in fields)
        return Fence(key, int(epoch), holder, int(revision or 0), self.call(b"LLEN", _key("log", name)))

    def claim(self, name: str, holder: str) -> None:
        self.call(b"HSET", _key("head", name), "holder", holder)
        self.call(b"HINCRBY", _key("head", name), "epoch", 1)

    def lease(self, holder: str, until_s: float) -> None:
        self.call(b"SET", _key("holder", holder), 1, b"PX", int((until_s - self.times.now_s) * 1000))

    def add(self, name: str, line: str, last_seq: int, epoch: int, holder: str) -> None:
        head = _key("head", name)
        updated = _updated(float(self.call(b"HGET", head, "updated")), last_seq)
        row = row_of((self.call(b"HGET", head, "summary") or b"").decode())
        self.call(b"RPUSH", _key("log", name), line)
        counts = ("epoch", epoch, "holder", holder, "updated", repr(updated), "last_seq", last_seq + 1)
        self.call(b"HSET", head, *counts, "summary", row)
        at = self.call(b"INCR", f"{PREFIX}:touches:")
        for index in self.indexes(name):
            self.call(b"ZADD", index, at, name)
        for channel in self.call(b"SMEMBERS", _key("followers", name)):
            self.call(b"PUBLISH", channel, name)

    def put(self, name: str, seq: int, line: str) -> None:
        self.call(b"LSET", _key("log", name), seq - 1, line)
        self.call(b"HSET", _key("head", name), "summary", "")

    def change(self, name: str, metadata: dict[str, Any]) -> None:
        at = self.call(b"ZSCORE", _key("by", "all"), name)
        for index in self.indexes(name):
            self.call(b"ZREM", index, name)
        self.call(b"HSET", _key("head", name), "metadata", json.dumps(metadata), "summary", "")
        self.call(b"HINCRBY", _key("head", name), "revision", 1)
        for index in self.indexes(name):
            self.call(b"ZADD", index, at, name)

    def indexes(self, name: str) -> list[bytes]:
        """The lists that contain a session."""
        cwd = json.loads(self.call(b"HGET", _key("head", name), "metadata")).get("cwd")
        names = ["all", "top"]
        names += [] if cwd is None else [f"{each}:{text_key(cwd)}" for each in names]
        return [_key("by", each) for each in names]

    def delete(self, name: str) -> None:
        for index in self.indexes(name):
            self.call(b"ZREM", index, name)
        self.call(
            b"DEL", *(_key(kind, name) for kind in ("head", "log", "blobs", "followers")), f"{PREFIX}:head:{name}"
        )


class FirstFormat:
    """A version of format 1 on the modelled Redis server: it knows no format, and its names have no `2`."""

    def __init__(self, database: RedisDatabase) -> None:
        self.call, self.times = database.call, database.times

    def create(self, name: str, holder: str, *, counts: bool) -> None:
        """Create a session; some of these versions counted its events and gave it a key."""
        fields = {"created_at": NOW_S, "metadata": "{}", "epoch": 0, "holder": holder, "updated": NOW_S, "summary": ""}
        fields |= {"revision": 0, "key": f"key {name}", "last_seq": 0} if counts else {}
        self.call(b"HSET", _first("head", name), *[each for pair in fields.items() for each in pair])
        if holder:
            self.call(b"SET", _first("holder", holder), 1, b"PX", int(LEASE_S * 1000))
        self.move(name)

    def append(self, name: str, text: str) -> None:
        """Append as the holder. Raises `WrongTypeError` once the session was moved, since only a text has its name then."""
        head, log = _first("head", name), _first("log", name)
        counted = self.call(b"HGET", head, "last_seq")
        seq = self.call(b"RPUSH", log, line_of(self.call(b"LLEN", log) + 1, said(text)))
        self.call(b"HSET", head, "updated", repr(_updated(NOW_S, seq - 1)), *(("last_seq", seq) if counted else ()))
        self.move(name)

    def move(self, name: str) -> None:
        at = self.call(b"INCR", f"{PREFIX}:touches:")
        for index in ("all", "top"):
            self.call(b"ZADD", _first("by", index), at, name)


class OlderWriter:
    """A writer of an older version in a process on another host: nobody here can tell whether it lives."""

    def __init__(self, fence: Fence) -> None:
        self.fence = fence

    def holds(self, now: Fence | None) -> bool:
        return now is not None and now[:3] == self.fence[:3] and now.last_seq == self.fence.last_seq


class OtherVersions:
    """The turns of other versions in a schedule. With random numbers of their own, so that the other seeds stay the same."""

    database: Any
    history: History
    truth: Any
    certain: dict[str, list[str]]
    maybe: dict[str, list[list[str]]]
    holder: dict[str, Any]
    older_type: Callable[[Any], OlderVersion] = OlderPostgres
    require: Callable[..., None]
    settle: Callable[..., None]
    lose: Callable[[str], None]
    forget: Callable[[str], None]
    shown: Callable[[str], list[str]]
    deliver_all: Callable[[], None]
    process: Callable[[], Any]
    do: Callable[..., Any]
    list_rows: Callable[[str], None]
    append_to: Callable[..., None]

    def prepare_versions(self, seed: int) -> None:
        self.versions = random.Random(f"{seed} versions")
        self.has_others = self.versions.random() < 0.5
        self.older = self.older_type(self.database)
        self.older_names: set[str] = set()
        self.older_writers: dict[str, OlderWriter] = {}
        self.older_count = 0
        self.has_stale_words = False  # an older version leaves the words that it erases in the index

    def take_turn(self) -> None:
        """Let another version take a turn with one of the sessions."""
        if self.has_others and self.certain and self.versions.random() < 0.5:
            name = self.versions.choice(sorted(self.certain))
            self.versions.choices(self.TURNS, self.TURN_WEIGHTS)[0](self, name)

    def holding(self, name: str) -> str:
        """The name of the process that writes the session while its lease is valid; "" if there is none."""
        fence, process = self.older.fence(name), self.holder.get(name)
        is_older = fence is not None and fence.holder in self.older_names
        holder = fence.holder if fence and is_older else process.server.holder.name if process else ""
        return holder if self.lasts(holder) else ""

    def lasts(self, holder: str) -> bool:
        """Whether the lease of the process is valid."""
        return bool(self.database.holders.get(holder, 0.0) > self.database.times.now_s)

    def is_held_by_older(self, name: str) -> bool:
        return self.holding(name) in self.older_names

    def note(self, what: str) -> None:
        self.history.lines.append(f"an older version {what}")

    def next_text(self) -> str:
        self.older_count += 1
        return f"o{self.older_count}"

    def open_by_older(self, name: str) -> None:
        """Open a session as an older version, or take it over from a process of the current one."""
        if self.is_held_by_older(name) or (self.holding(name) and self.versions.random() < 0.5):
            return
        self.settle(name)
        holder = f"{self.next_text()} process 1 on another host"
        self.note(f"takes {name} as {holder}")
        self.older.lease(holder, self.database.times.now_s + LEASE_S)
        self.older.claim(name, holder)
        self.older_names.add(holder)
        self.lose(name)
        self.maybe[name] = []
        self.note_fence(name)

    def note_fence(self, name: str) -> None:
        fence = self.older.fence(name)
        assert fence is not None
        self.older_writers[name] = OlderWriter(fence)

    def append_by_older(self, name: str) -> None:
        """Append with a writer of an older version, unless it was replaced; without a writer, append alone."""
        fence, writer = self.older.fence(name), self.older_writers.get(name)
        if fence is None or (writer is None and self.holding(name)):
            return
        if writer is not None and not writer.holds(fence):
            self.note(f"has lost {name}")
            del self.older_writers[name]
            return
        self.settle(name)
        text = self.next_text()
        is_alone = writer is None
        epoch, holder = (fence.epoch + bool(fence.holder), "") if is_alone else (fence.epoch, fence.holder)
        append = partial(self.older.append, name, fence, said(text), epoch, holder)
        if is_alone and self.versions.random() < 0.3:
            self.note(f"appends {text} to {name}, and it is on its way")
            self.database.late.append(append)
            self.maybe.setdefault(name, []).append([text])
            return
        self.note(f"appends {text} to {name}")
        append()
        if is_alone:
            self.lose(name)
        else:
            self.note_fence(name)
        self.certain[name] = [*self.certain[name], text]
        self.maybe[name] = []
        self.require(self.shown(name) == self.certain[name], lambda: f"{name} shows {self.shown(name)}")

    def close_by_older(self, name: str) -> None:
        """Close a writer of an older version, or let its process die while its lease continues for a while."""
        writer = self.older_writers.pop(name, None)
        if writer is not None and writer.holds(self.older.fence(name)) and self.versions.random() < 0.7:
            self.note(f"closes {name}")
            self.older.claim(name, "")

    def erase_by_older(self, name: str) -> None:
        """Erase a text as an older version, which leaves its words in any index."""
        self.deliver_all()
        self.settle(name)
        places = [place for place, text in enumerate(self.certain[name]) if text != ERASED]
        if self.holding(name) or not places:
            return
        self.index_words(always=True)
        place, new = self.versions.choice(places), self.next_text()
        old = self.certain[name][place]
        self.note(f"erases {old} of {name}, which becomes {new}")
        self.older.claim(name, f"{new} process 1 on another host")
        self.older.erase(name, place + 1, new)
        self.older.claim(name, "")
        self.lose(name)
        self.certain[name][place] = new
        self.certain[name] = [*self.certain[name], ERASED]
        self.maybe[name] = []
        self.has_stale_words = True
        self.note_erasure(old)
        self.index_words(always=True)

    def note_erasure(self, text: str, *, searches: bool = True) -> None:
        """Do nothing: only some stores have an index of words."""

    def index_words(self, *, always: bool = False) -> None:
        """Do nothing, like `note_erasure`."""

    def change_by_older(self, name: str) -> None:
        """Change the metadata as an older version, also beside a writer."""
        metadata = {"n": self.versions.randrange(10**6), "cwd": self.versions.choice(("/a", "/b"))}
        self.note(f"sets the metadata of {name} to {metadata}")
        self.older.change(name, metadata)
        found = self.truth.store.read_metadata(name)["metadata"]
        self.require(found == metadata, f"the metadata of {name} are {found}")
        if name in self.holder and self.holding(name):
            self.append_to(name, faults=False)
            self.look_at(name)

    def delete_by_older(self, name: str) -> None:
        self.deliver_all()
        if not self.holding(name):
            self.index_words(always=True)
            self.note(f"deletes {name}")
            self.older.delete(name)
            self.older_writers.pop(name, None)
            self.forget(name)
            self.has_stale_words = True
            self.index_words(always=True)

    def look_at(self, name: str) -> None:
        """Compare a row after the turns of an older version."""
        self.deliver_all()
        row, folded = self.truth.store.read_summary(name), self.truth.store.fold_summary(name)
        self.require(
            (row.events, row.last_prompt, row.cwd, round(row.updated, 3))  # a copy on Redis counts no microseconds
            == (folded.events, folded.last_prompt, folded.cwd, round(folded.updated, 3)),
            lambda: f"the row of {name} is {row}, not {folded}",
        )

    def meet_newer(self, name: str) -> None:
        """Change the tables or the session as a newer version: the current version refuses it, and changes nothing."""
        self.deliver_all()
        writes = self.holder.get(name)
        process = writes or self.process()
        with self.newer(name) as is_allowed:
            before = self.stored(name)
            store = self.newcomer(process)
            works: list[tuple[str, Callable[[], Any]]] = [
                ("append to", lambda: store.append_events(name, [UserMessage("too old")])),
                ("open", lambda: store.open_writer(name)),
                ("change", lambda: store.update_metadata(name, {"n": 0})),
                ("delete", lambda: store.delete_session(name)),
            ]
            if writes is not None:
                works = [("write to", lambda: writes.writers[name].append([UserMessage("too old")]))]
            what, work = self.versions.choice(works)
            if is_allowed:
                what, work = "look for", partial(store.session_exists, name)
            came = self.do(
                process, f"{what} {name} beside a newer version", work, SessionError, faults=False, may_refuse=True
            )
            is_refused = isinstance(came, StorageError) and ("upgrade" in str(came) or "update it" in str(came))
            self.require(is_refused != is_allowed, f"{what} beside a newer version gave {came!r}")
            self.require(self.stored(name) == before, f"{name} was changed beside a newer version")

    def list_beside(self, name: str) -> None:
        """List the sessions after the turn of an older version, whose rows are to be folded again."""
        self.append_by_older(name)
        self.list_rows(self.versions.choice(("away", "away", "")))

    def newcomer(self, process: Any) -> Any:
        """The store of a process that has only just connected."""
        process.server.is_ready = False
        process.server._drop_idle(older_than=float("inf"))
        return process.store

    def stored(self, name: str) -> Any:
        """Everything that is stored of a session."""
        row = self.database.sessions[name]
        return dict(row), list(self.database.events[row["key"]])

    @contextmanager
    def newer(self, name: str) -> Iterator[bool]:
        """A newer version, which records whether this one may continue."""
        oldest = self.versions.choice((len(MIGRATIONS), len(MIGRATIONS) + 1, None))
        self.history.lines.append(f"a newer version migrates; the oldest that may continue is {oldest}")
        self.database.schema = (len(MIGRATIONS) + 1, oldest)
        try:
            yield oldest == len(MIGRATIONS)
        finally:
            self.database.schema = (len(MIGRATIONS), len(MIGRATIONS))

    TURNS = (
        *(open_by_older, append_by_older, close_by_older, erase_by_older, change_by_older, delete_by_older, look_at),
        *(meet_newer, list_beside),
    )
    TURN_WEIGHTS: tuple[int, ...] = (3, 4, 2, 3, 2, 3, 1, 2, 1)


class OtherVersionsOnRedis(OtherVersions):
    """The turns of other versions on Redis: a newer one writes sessions in another format."""

    older_type = OlderRedis

    def meet_first_format(self, _: str) -> None:
        """Ask for a session of format 1, which moves it unless a process of that version holds it; afterwards that version
        can no longer write it.
        """
        name = next((each for each in "xyz" if each not in self.certain), None)
        if name is None:
            return
        first, texts = FirstFormat(self.database), [self.next_text() for _ in range(self.versions.choice((1, 1, 3)))]
        lives = self.versions.random() < 0.4
        first.create(name, "1 process 1 on another host" if lives else "", counts=self.versions.random() < 0.5)
        self.note(f"of format 1 creates {name} with {texts}{', and holds it' if lives else ''}")
        for text in texts:
            first.append(name, text)
        if lives:
            process = self.process()
            came = self.do(process, f"open {name}", lambda: process.store.open_writer(name), SessionLockedError)
            is_refused = isinstance(came, SessionLockedError) or self.fault
            self.require(is_refused, f"a session of format 1 that is held was opened: {came!r}")
            texts.append(self.next_text())
            first.append(name, texts[-1])
            self.database.times.sleep(LEASE_S)
        process = self.process()
        what, work = self.versions.choice(
            (
                ("read", lambda: process.store.read_events(name)),
                ("look for", lambda: process.store.session_exists(name)),
                ("list", process.store.list_sessions),
                ("set the metadata of", lambda: process.store.update_metadata(name, {"cwd": "/a"})),
            )
        )
        self.do(process, f"{what} {name} of format 1", work)
        self.deliver_all()
        self.require(name in self.truth.store.list_sessions(), f"{name} of format 1 is not listed")
        self.certain[name] = texts
        self.settle(name)
        try:
            first.append(name, "too late")
        except WrongTypeError:
            self.look_at(name)
        else:
            self.require(False, f"a version of format 1 appends to {name}, which was moved")
        came = self.truth.store.claim_request(name, f"first {name}")
        self.require(came == name, f"a request of {name} of format 1 belongs to {came}")
        self.require(self.shown(name) == texts, lambda: f"{name} of format 1 shows {self.shown(name)}, not {texts}")

    TURNS = (*OtherVersions.TURNS, meet_first_format)
    TURN_WEIGHTS = (*OtherVersions.TURN_WEIGHTS, 3)

    def newcomer(self, process: Any) -> Any:
        return process.store

    def stored(self, name: str) -> Any:
        return dict(self.database.keys[_key("head", name)]), self.database.lines(name)

    @contextmanager
    def newer(self, name: str) -> Iterator[bool]:
        self.history.lines.append(f"a newer version writes {name}")
        head = _key("head", name)
        self.database.call(b"HSET", head, "format", FORMAT + 1)
        try:
            yield False
        finally:
            self.database.call(b"HSET", head, "format", FORMAT)


def _key(kind: str, rest: str) -> bytes:
    return f"{PREFIX}:2:{kind}:{rest}".encode()


def _first(kind: str, rest: str) -> bytes:
    """The name of a key in format 1."""
    return f"{PREFIX}:{kind}:{rest}".encode()


def _updated(before: float, last_seq: int) -> float:
    """The time of a row after one more event."""
    return before + 1e-6 if last_seq else NOW_S
