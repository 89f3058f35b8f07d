"""The sums over families of sessions in a Redis store, which reports keep up to date: hashes beside the index of words.

    index:sums:note    hash: version, turn (which each change increases), marks (their number so far), and the position in
                       `by:all` up to which sessions that moved are marked
    index:sums:marks   hash: ids of sessions to count, to the number of the mark
    index:sums:state   hash: ids to the key and the revision with which they are counted
    index:sums:<part>  hash: the parts of families.py

Appends move a session in `by:all`; other changes by this version, and deletions, mark it in the same step. An older version
marks nothing: once a minute, keys and revisions of all sessions are compared on the server, and its deletions are noticed
by the number of sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from ...folds.summary import SessionSummary
from ..database import SessionRow, text_key
from ..families import ROOT, FamilyChange, FamilyTable
from .scripts import run

LOOK_EVERY_S = 60
# Sessions per call of a script that only compares.
_LOOKED_AT = 1000
_STATE = "state"


class RedisFamilies(FamilyTable):
    """The sums of a Redis store; `key` and `rows` are as in `RedisIndex`, `summary_in` returns the summary of a row."""

    step_sessions = 200

    def __init__(
        self,
        call: Callable[[str | None, Callable[[Any], Any]], Any],
        key: Callable[[str, str], str],
        rows: Callable[[Sequence[str]], Iterable[SessionRow]],
        summary_in: Callable[[SessionRow], SessionSummary | None],
    ) -> None:
        self._call = call
        self._key = key
        self._rows = rows
        self._summary_in = summary_in
        self._index = key("index", "")
        self._all = [key("by", "all")]
        self._turn = ""
        self._states: dict[str, str] = {}

    def _begin(self, version: str) -> None:
        self._run("sums_begin", [self._index, version])

    def marked(self) -> Mapping[str, Any]:
        while self._run("sums_moved", [self._index, _LOOKED_AT]) == _LOOKED_AT:
            pass

        def read(client: Any) -> list[Any]:
            with client.pipeline(transaction=True) as pipe:
                pipe.hget(self._part("note"), "reached")
                pipe.hgetall(self._part("marks"))
                pipe.hlen(self._part(_STATE))
                pipe.set(f"{self._index}sums:looked", 1, nx=True, ex=LOOK_EVERY_S)
                return list(pipe.execute())

        reached, marks, counted, is_due = self._call(None, read)
        rank = 0
        while is_due and self._run("sums_other", [self._index, self._key("head", ""), rank, _LOOKED_AT]) == _LOOKED_AT:
            rank += _LOOKED_AT
        # Sessions created meanwhile are after `reached`.
        living = self._call(None, lambda client: client.zcount(self._all[0], "-inf", (reached or b"0").decode()))
        # More sessions are counted than exist: an older version deleted some and marked none of them.
        if is_due or counted + len(marks) - len(self.read(_STATE, marks)) > living:
            cursor = 0
            while cursor := self._run("sums_gone", [self._index, cursor]):
                pass
            marks = self._call(None, lambda client: client.hgetall(self._part("marks")))
        return {name.decode(): number.decode() for name, number in marks.items()}

    @contextmanager
    def changing(self) -> Iterator[bool]:
        version, turn = self._call(None, lambda client: client.hmget(self._part("note"), "version", "turn"))
        self._turn, self._states = (turn or b"").decode(), {}
        yield self._is_ours((version or b"").decode())

    def read(self, part: str, names: Collection[str]) -> dict[str, str]:
        ordered = list(names)
        values = self._call(None, lambda client: client.hmget(self._part(part), ordered)) if ordered else []
        return {name: value.decode() for name, value in zip(ordered, values, strict=True) if value is not None}

    def read_whole(self, parts: Sequence[str]) -> Mapping[str, Collection[str]] | None:
        def read(client: Any) -> list[Any]:
            with client.pipeline(transaction=True) as pipe:
                pipe.hget(self._part("note"), "version")
                for part in parts:
                    pipe.hvals(self._part(part))
                return list(pipe.execute())

        version, *values = self._call(None, read)
        if not self._is_ours((version or b"").decode()):
            return None
        return {part: [value.decode() for value in each] for part, each in zip(parts, values, strict=True)}

    def summaries(self, ids: Collection[str]) -> dict[str, SessionSummary | None]:
        rows = list(self._rows(list(ids)))
        self._states |= {at.id: f"{at.key} {at.revision}" for at in rows if at.key is not None}
        return {at.id: self._summary_in(at) for at in rows}

    def children(self, ids: Collection[str]) -> set[str]:
        def read(client: Any) -> list[Any]:
            with client.pipeline(transaction=False) as pipe:
                for name in ids:
                    pipe.zrange(self._key("by", f"parent:{text_key(name)}"), 0, -1)
                return list(pipe.execute())

        return {child.decode() for children in self._call(None, read) for child in children}

    def store(self, change: FamilyChange) -> bool:
        arguments: list[Any] = [self._index, self._turn, len(change.counted)]
        for item in change.counted.items():
            arguments += item
        arguments += [len(change.again), *change.again]
        states = {name: self._states.get(name) for name in {*change.counted, *change.parts.get(ROOT, {})}}
        for part, values in {**change.parts, _STATE: states}.items():
            for name, value in values.items():
                arguments += [part, name, value or ""]
        return bool(self._run("sums_store", arguments))

    def _part(self, part: str) -> str:
        return f"{self._index}sums:{part}"

    def _run(self, script: str, arguments: Sequence[Any]) -> Any:
        return self._call(None, partial(run, script, self._all, arguments))
