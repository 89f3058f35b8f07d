"""Sessions on a Redis server that restarts without its last second, or evicts; erasures, lists, searches and followers."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from typing import Any

from openagentic_sdk.errors import (
    LogCorruptError,
    SessionError,
    SessionLockedError,
    SessionNotFoundError,
)
from openagentic_sdk.parts.record.folds.costs import all_costs, cost_report
from openagentic_sdk.sessions.folds.summary import summary_text
from openagentic_sdk.sessions.redis import RedisSessionStore
from openagentic_sdk.sessions.stores.redis import link
from openagentic_sdk.sessions.stores.server import StoreServer
from openagentic_sdk.testing.crash import Killed

from . import modelled_redis
from .modelled_server import STRAGGLER
from .older import ERASED
from .older_servers import OtherVersionsOnRedis
from .servers import PATIENCE_S, Modelled, Process, Servers, text_of

_INDEX = f"{modelled_redis.PREFIX}:2:index:".encode()
# The parts of the model that a restart of the server takes back.
_MODEL = ("certain", "maybe", "owners", "waiting")


class RedisProcess(Process):
    """A process with sessions on the modelled Redis server."""

    def connect(self) -> tuple[StoreServer, Any]:
        server = link.RedisServer(f"redis://model/{self.number}", modelled_redis.PREFIX, PATIENCE_S)
        server._client = modelled_redis.Client(self.wire)
        server.evicts = server._client.database.policy.startswith("allkeys")
        return server, ModelledRedis(server)

    def hear(self) -> None:
        """Do the work of the thread that waits for news, until it waits again."""
        with suppress(modelled_redis.WaitsError):
            self.server.news._run()


class ModelledRedis(Modelled, RedisSessionStore):  # type: ignore[misc]
    """A store on the modelled Redis server."""


class RedisServers(OtherVersionsOnRedis, Servers):
    """One schedule with a Redis server."""

    process_type = RedisProcess
    database_type = modelled_redis.RedisDatabase
    LIST_PLACES = (2, 3, 4, 5, 6, 7)
    PLACES = (1, 1, 1, 2, 2, 2, 3, 6, 7, 8)  # whoever opens a session asks for the settings of the server first

    def __init__(self, seed: int, place: str) -> None:
        super().__init__(seed, place)
        self.erased: list[str] = []
        self.restart: Callable[[], None] | None = None
        self.before: dict[str, Any] = {}
        if self.rng.random() < 0.25:
            self.database.policy, self.sorts_by_time = "allkeys-lru", True

    # --- erasures, lists and searches --------------------------------------------------------------------------------

    CLAIM, CREATE = "claim", "create"
    SCENARIOS = (
        *Servers.SCENARIOS,
        *("erase_beside_search", "erase_found", "delete_older", "move_first_format", "crash", "follow", "list_evicted"),
        "change_older",
    )

    def erase_found(self) -> None:
        """Erase what a search found."""
        name = self.ready()
        self.index_words(always=True)
        self.erase_from(name, self.process())

    def delete_older(self) -> None:
        self.delete_by_older(self.ready())

    def change_older(self) -> None:
        """Let an older version change the metadata beside a writer, which then appends."""
        name, process = self.ready(), self.process()
        self.open(name, process, faults=False)
        self.change_by_older(name)

    def move_first_format(self) -> None:
        self.meet_first_format("")

    def list_evicted(self) -> None:
        """List the sessions, at times without an answer: a server that evicts keys is asked for each session."""
        self.ready()
        Servers.list_rows(self, self.rng.choice(("away", "")))

    def erase(self) -> None:
        self.index_words(always=self.rng.random() < 0.5)
        super().erase()

    def index_words(self, *, always: bool = False) -> None:
        """Search, at times or always: afterwards, the index contains all words."""
        if always or self.rng.random() < 0.5:
            self.search("w", faults=not always)

    def erase_beside_search(self) -> None:
        """Erase words that a search has read for the first time and that it then asks the server to add to the index."""
        known = self.database.keys.get(_INDEX + b"upto", {})
        name = self.ready()
        if name.encode() in known or not self.certain[name]:
            return
        late, other = self.rng.sample(self.processes, 2)
        text = self.certain[name][0]
        fault = self.rng.choice((STRAGGLER, STRAGGLER, "away"))
        script = self.rng.choice(("index_words", "index_words", "index_row"))
        self.do(late, f"search {text}", lambda: late.store.search(text), fault=fault, name=script)
        with self.held_back():
            self.erase_from(name, other, faults=False, searches=False)
            lists = self.process()
            self.do(lists, "list none", lambda: lists.store.list_session_summaries(query="none"), faults=False)
        self.deliver_all()
        self.check_index()

    def note_erasure(self, text: str, *, searches: bool = True) -> None:
        self.erased.append(text)
        self.check_index()
        if searches and self.rng.random() < 0.7:
            self.search(text)

    def search_any(self) -> None:
        words = [*self.erased, *(text for texts in self.certain.values() for text in texts if text != ERASED)]
        if words:
            self.search(self.rng.choice(words))

    def search(self, text: str, *, faults: bool = True) -> None:
        """Search for a text; the answer is that of a scan of all logs, unless one of them changed meanwhile."""
        before, process = self.logs(), self.process()
        came = self.do(process, f"search {text}", lambda: process.store.search(text), faults=faults)
        if before == self.logs() and isinstance(came, list):
            expected = {
                (name, seq)
                for name, texts in before.items()
                for seq, each in enumerate(texts, 1)
                if _matches(each, text)
            }
            found = {(hit.session_id, hit.seq) for hit in came}
            self.require(found == expected, f"{text} is found at {sorted(found)}, not {sorted(expected)}")
            self.has_stale_words = False  # what an older version left behind is gone, too
            self.check_index()

    def check_index(self) -> None:
        """Check that the index has no word that no event contains any more, unless only an older version erased it."""
        if self.has_stale_words:
            return
        logs, names = self.logs(), self.database.keys.get(_INDEX + b"names", {})
        for member in self.database.keys.get(_INDEX + b"words", ()):
            word, number, places = member.decode().rsplit(" ", 2)
            name, (first, last) = names.get(number.encode(), b"").decode(), map(int, places.split("-"))
            texts = logs.get(name, [])[first - 1 : last]
            self.require(
                any(word in _words(text) for text in texts), f"the index has {word!r} of {name}, which shows {texts}"
            )

    def logs(self) -> dict[str, list[str]]:
        return {name: self.shown(name) for name in self.database.names}

    def list_rows(self, fault: str = "") -> None:
        if fault or self.rng.random() < 0.3:
            return super().list_rows(fault)
        before, lists = self.logs(), self.process()
        query = self.rng.choice(
            ("", "w", *self.database.sessions, *(text for texts in before.values() for text in texts))
        )
        came = self.do(lists, f"list {query!r}", lambda: lists.store.list_session_summaries(query=query or None))
        process = self.process()
        ids = self.do(process, "ids", process.store.list_sessions)
        begins = self.process()
        same = self.do(begins, f"ids from {query[:1]}", lambda: begins.store.ids_beginning(query[:1]))
        if before != self.logs():
            return
        if isinstance(ids, list):
            self.require(sorted(ids) == sorted(before), f"{ids} are listed, not {sorted(before)}")
        if isinstance(same, list):
            expected = sorted(name for name in before if query and name.startswith(query[:1]))
            self.require(sorted(same) == expected, f"{same} begin with {query[:1]!r}, not {expected}")
        if isinstance(came, list):
            rows = self.truth.store.list_session_summaries()
            shown = [row for row in rows if all(word in summary_text(row) for word in query.casefold().split())]
            self.require(
                [(row.id, row.events) for row in came] == [(row.id, row.events) for row in shown],
                lambda: f"{query!r} lists {[row.id for row in came]}, not {[row.id for row in shown]}",
            )

    def count_costs(self) -> None:
        before, process = self.logs(), self.process()
        came = self.do(process, "costs", lambda: all_costs(process.store, "tag"))
        if before == self.logs() and not isinstance(came, Exception | Killed):
            rows = self.truth.store.list_session_summaries(include_children=True)
            self.require(came == cost_report(rows, "tag"), f"the costs are {came}")

    # --- followers ---------------------------------------------------------------------------------------------------

    def follow(self) -> None:
        name, process = self.ready(), self.process()
        seq = len(self.shown(name))
        follows = self.do(
            process,
            f"follow {name}",
            lambda: process.store.wait_for_events(name, after_seq=seq, timeout_s=0.0),
            SessionNotFoundError,
        )
        if isinstance(follows, bool):
            self.do(process, "listen", process.hear, faults=False)  # type: ignore[attr-defined]
            other = next(each for each in self.processes if each is not process)
            self.append_alone(name, other)
            if len(self.shown(name)) == seq or process not in self.processes:
                return
            self.do(process, "listen", process.hear, faults=False)  # type: ignore[attr-defined]
            came = self.do(
                process,
                f"news of {name}",
                lambda: process.store.wait_for_events(name, after_seq=seq, timeout_s=0.0),
                faults=False,
            )
            self.require(came is True, f"a follower of {name} is not told of event {seq + 1}")

    # --- a server that loses something -------------------------------------------------------------------------------

    def save(self) -> None:
        """Put on disk everything that the server has; the next crash loses what comes after that."""
        self.restart = self.database.saved()
        self.before = deepcopy({part: getattr(self, part) for part in _MODEL})
        self.history.lines.append("the server syncs its file")

    def crash(self) -> None:
        """Restart the server without its last second."""
        if self.restart is None:
            self.save()
            self.rng.choice((self.open_any, self.open_any, self.append_alone_any))()
        self.history.lines.append("the server restarts without its last second")
        self.restart()
        vars(self).update(self.before)
        self.restart = None
        for name, process in list(self.holder.items()):
            row, writer = self.database.sessions.get(name), process.writers[name]
            if row is None or (row["epoch"], row["holder"]) != (writer.epoch, process.server.holder.name):
                self.lose(name)
        self.rolled_back = set(self.certain)
        zombies = [(process, writer) for process, writer in self.zombies if writer.session_id in self.certain]
        zombies = [(process, writer) for process, writer in zombies if process in self.processes]
        if zombies and self.rng.random() < 0.7:
            self.reopen(*self.rng.choice(zombies))

    def reopen(self, process: Process, writer: Any) -> None:
        """Open a session whose claim the server lost; the writer that had claimed it closes, or appends."""
        name, other = writer.session_id, next(each for each in self.processes if each is not process)
        self.open(name, other, faults=False)
        if self.holder.get(name) is not other:
            return
        if self.rng.random() < 0.5:
            self.wake(process, writer)
        if process not in self.processes:
            return
        self.do(process, f"the writer of {name} that the server forgot closes", writer.close, faults=False)
        self.zombies = [each for each in self.zombies if each[1] is not writer]
        batch = self.batch()
        came = self.do(
            other, f"append to {name}", lambda: other.writers[name].append(batch), SessionError, faults=False
        )
        self.require(isinstance(came, list), f"a writer that the server had forgotten released the session: {came!r}")
        self.grow(name, [text_of(event) for event in batch], came[-1].seq or 0)

    def finish(self) -> None:
        super().finish()
        self.evict()

    def evict(self) -> None:
        """Evict a key of a session, or a list, where the server's settings allow it: a damaged session is no empty one."""
        name = self.some()
        if name is None or not self.database.policy.startswith("allkeys") or not self.certain[name]:
            return
        part = self.rng.choice(("head", "log", "by"))
        parts = [key for key in self.database.keys if f":2:{part}:".encode() in key]
        keys = parts if part == "by" else [key for key in parts if key.endswith(f":{name}".encode())]
        self.database.delete(self.rng.choice(sorted(keys)))
        self.history.lines.append(f"the server evicts a key of {part} of {name}")
        process = self.process()
        ids = self.do(process, "ids", process.store.list_sessions, faults=False)
        self.require(sorted(ids) == sorted(self.certain), f"{ids} are listed after an eviction")
        if part != "by":
            came = self.do(
                process, f"read {name}", lambda: process.store.read_events(name), LogCorruptError, faults=False
            )
            self.require(isinstance(came, LogCorruptError), f"a session that lost its {part} is read as {came!r}")
            self.do(
                process, f"delete {name}", lambda: process.store.delete_session(name), SessionLockedError, faults=False
            )

    ACTIONS = (
        *Servers.ACTIONS,
        *(search_any, count_costs, follow, crash, save),
    )
    WEIGHTS = (*(4, 6, 7, 2, 1, 1, 2, 0.7, 1, 1, 1, 1, 0.5, 1.5, 0.7, 1.5), *(8, 6, 2, 3, 1, 2, 3, 1))


def _matches(text: str, query: str) -> bool:
    """Whether each word of the query begins a word of the text."""
    words = _words(text)
    return all(any(word.startswith(wanted) for word in words) for wanted in _words(query))


def _words(text: str) -> list[str]:
    return re.findall("[a-z0-9]+", text)
