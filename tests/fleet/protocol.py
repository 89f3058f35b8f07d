"""The protocol of a fleet's runs, as a model small enough to check every interleaving of three workers.

One run gets its prompt, asks a person and parks, is answered, starts a tool that must not run twice, gets its result, and
ends. A worker can be stopped between any two of its steps for any length of time, and can die at any of them. Lease and
fence are in the row, the epoch in the session; a worker also has its own clock to tell when its lease ends. `RULES` lists
the rules of the protocol; without any one of them, some state breaks a promise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

WORKERS = 3

RULES = (
    "a step out of running names the fence",
    "a claim of a running row needs its lease to be over",
    "a claim raises the fence",
    "an append names the epoch",
    "whoever takes over raises the epoch",
    "the log is looked at before anything runs",
    "a call in doubt is not run again",
    "the lease is looked at before an append",
    "the lease is looked at between an append and the effect",
    "a beat names the fence",
    "a park counts no attempt",
    "an answer wakes a parked run only",
    "an answer wakes a run",
    "a cancel leaves a running row to its owner",
)


class Row(NamedTuple):
    state: str = "queued"
    fence: int = 0
    is_leased: bool = False
    attempts: int = 0
    is_cancelled: bool = False


class Log(NamedTuple):
    phase: str = "new"
    epoch: int = 0
    is_held: bool = False


class Worker(NamedTuple):
    at: str = "idle"
    fence: int = 0
    epoch: int = 0
    is_leased: bool = False
    stole: bool = False
    in_tool: bool = False


class World(NamedTuple):
    row: Row = Row()
    log: Log = Log()
    workers: tuple[Worker, ...] = (Worker(),) * WORKERS
    effects: int = 0
    effects_without_lease: int = 0
    writes_without_lease: int = 0
    steals: int = 0
    mishaps: int = 0


OVER = ("ended", "cancelled")
# The next phase of the log, which the worker has to bring about.
NEXT = {"new": "said", "said": "waiting", "answered": "started", "started": "resulted", "resulted": "final"}


class Protocol:
    """`mishaps` bounds how often the lease of a live worker expires, a worker dies, or one hands its run back."""

    def __init__(self, without: str = "", *, mishaps: int) -> None:
        assert not without or without in RULES
        self._without = without
        self._mishaps = mishaps

    def _holds(self, rule: str) -> bool:
        assert rule in RULES
        return rule != self._without

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """All possible next steps, with the worlds that result."""
        row, log = world.row, world.log
        believes = any(each.fence == row.fence and each.is_leased for each in world.workers)
        if row.state == "running" and row.is_leased and (world.mishaps < self._mishaps or not believes):
            # The owner's clock is never behind that of the database, so its lease ends there too.
            mine = [each._replace(is_leased=False) if each.fence == row.fence else each for each in world.workers]
            mishaps = world.mishaps + believes
            yield "expire", _set(world, row._replace(is_leased=False), workers=mine, mishaps=mishaps)
        if log.phase == "waiting" and not log.is_held:
            yield "answer", _set(world, log=log._replace(phase="answered"))
        can_wake = row.state == "waiting" or not self._holds("an answer wakes a parked run only")
        if log.phase not in ("new", "said", "waiting") and can_wake and self._holds("an answer wakes a run"):
            yield "wake", _set(world, row._replace(state="queued"))
        if row.state not in OVER and not row.is_cancelled:
            leaves = row.state == "running" and self._holds("a cancel leaves a running row to its owner")
            yield "cancel", _set(world, row._replace(is_cancelled=True, state=row.state if leaves else "cancelled"))
        for number, worker in enumerate(world.workers):
            for what, after in self._worker_steps(world, number, worker):
                yield f"{number} {what}", after

    def _worker_steps(self, world: World, number: int, worker: Worker) -> Iterator[tuple[str, World]]:
        if worker.at == "idle":
            yield from self._claim(world, number)
            return
        if world.mishaps < self._mishaps:
            held = world.log.is_held and worker.epoch != world.log.epoch
            log = world.log._replace(is_held=held)
            yield "crash", _set(world, log=log, number=number, worker=Worker(), mishaps=world.mishaps + 1)
        yield from self._beat(world, number, worker)
        if worker.at == "claimed":
            yield from self._take_over(world, number, worker)
        elif worker.at == "looking":
            yield from self._look(world, number, worker)
        elif worker.at == "running":
            yield from self._run(world, number, worker)
        elif worker.at == "appending":
            yield from self._append(world, number, worker)
        elif worker.at == "effect":
            yield from self._effect(world, number, worker)
        else:
            yield from self._leave(world, number, worker)

    def _claim(self, world: World, number: int) -> Iterator[tuple[str, World]]:
        row = world.row
        is_lost = row.state == "running" and (
            not row.is_leased or not self._holds("a claim of a running row needs its lease to be over")
        )
        if row.state != "queued" and not is_lost:
            return
        fence = row.fence + 1 if self._holds("a claim raises the fence") else max(1, row.fence)
        claimed = row._replace(state="running", fence=fence, is_leased=True, attempts=row.attempts + 1)
        worker = Worker("claimed", fence, 0, is_leased=True, stole=is_lost)
        yield "claim", _set(world, claimed, number=number, worker=worker, steals=world.steals + is_lost)

    def _beat(self, world: World, number: int, worker: Worker) -> Iterator[tuple[str, World]]:
        row = world.row
        if row.state == "running" and row.fence == worker.fence and not row.is_leased:
            # The heartbeat arrived late: the worker's own clock has already ended its lease.
            yield "beat", _set(world, row._replace(is_leased=True))
        if row.state == "running" and not self._holds("a beat names the fence"):
            yield (
                "beat",
                _set(world, row._replace(is_leased=True), number=number, worker=worker._replace(is_leased=True)),
            )

    def _take_over(self, world: World, number: int, worker: Worker) -> Iterator[tuple[str, World]]:
        log = world.log
        if worker.stole and self._holds("whoever takes over raises the epoch"):
            log = log._replace(epoch=log.epoch + 1, is_held=False)
        yield "take over", _set(world, log=log, number=number, worker=worker._replace(at="looking"))

    def _look(self, world: World, number: int, worker: Worker) -> Iterator[tuple[str, World]]:
        row, log = world.row, world.log
        looks = self._holds("the log is looked at before anything runs")
        at = "running"
        if looks and log.phase == "final":
            at = "leave ended"
        elif looks and log.phase == "waiting":
            at = "leave waiting"
        elif row.is_cancelled:
            at = "leave cancelled"
        if at != "running":
            yield "look", _set(world, number=number, worker=worker._replace(at=at))
        elif log.is_held and not worker.stole:
            yield "is locked out", _set(world, number=number, worker=worker._replace(at="leave queued"))
        else:
            phase = log.phase if looks else "new"
            opened = Log(phase, log.epoch + 1, is_held=True)
            yield "open", _set(world, log=opened, number=number, worker=worker._replace(at=at, epoch=opened.epoch))

    def _run(self, world: World, number: int, worker: Worker) -> Iterator[tuple[str, World]]:
        if not worker.is_leased and self._holds("the lease is looked at before an append"):
            yield "give up", _set(world, log=_closed(world, worker), number=number, worker=Worker())
            return
        if world.row.is_cancelled:
            # It closes the log under its epoch; the model merges this with the omitted step.
            yield (
                "end",
                _set(world, log=_closed(world, worker), number=number, worker=worker._replace(at="leave cancelled")),
            )
        if world.mishaps < self._mishaps:
            after = worker._replace(at="leave queued")
            mishaps = world.mishaps + 1
            yield "drain", _set(world, log=_closed(world, worker), number=number, worker=after, mishaps=mishaps)
        yield "check", _set(world, number=number, worker=worker._replace(at="appending"))

    def _append(self, world: World, number: int, worker: Worker) -> Iterator[tuple[str, World]]:
        log = world.log
        if log.epoch != worker.epoch and self._holds("an append names the epoch"):
            yield "is fenced", _set(world, number=number, worker=Worker())
            return
        phase = NEXT.get(log.phase, log.phase)
        late = world.writes_without_lease + (log.epoch != worker.epoch)
        after = worker._replace(at="running", in_tool=False)
        if phase == "started" or (log.phase == "started" and not worker.in_tool and not self._doubts()):
            after, phase = worker._replace(at="effect", in_tool=True), "started"
        elif phase in ("waiting", "final"):
            after = worker._replace(at=f"leave {'waiting' if phase == 'waiting' else 'ended'}")
            log = log._replace(is_held=False)
        log = log._replace(phase=phase)
        yield f"append {phase}", _set(world, log=log, number=number, worker=after, writes_without_lease=late)

    def _doubts(self) -> bool:
        return self._holds("a call in doubt is not run again")

    def _effect(self, world: World, number: int, worker: Worker) -> Iterator[tuple[str, World]]:
        if not worker.is_leased and self._holds("the lease is looked at between an append and the effect"):
            yield "give up", _set(world, log=_closed(world, worker), number=number, worker=Worker())
            return
        late = world.effects_without_lease + (not worker.is_leased)
        after = worker._replace(at="running")
        yield (
            "effect",
            world._replace(effects=world.effects + 1, effects_without_lease=late, workers=_with(world, number, after)),
        )

    def _leave(self, world: World, number: int, worker: Worker) -> Iterator[tuple[str, World]]:
        row, state = world.row, worker.at.removeprefix("leave ")
        is_mine = row.fence == worker.fence and row.state == "running"
        if not is_mine and self._holds("a step out of running names the fence"):
            yield "is not the owner", _set(world, number=number, worker=Worker())
            return
        gives_back = state == "queued" or (state == "waiting" and self._holds("a park counts no attempt"))
        if row.is_cancelled and state == "waiting":
            state = "queued"
        row = row._replace(state=state, is_leased=False, attempts=row.attempts - gives_back)
        yield worker.at, _set(world, row, number=number, worker=Worker())

    def broken(self, world: World) -> str | None:
        """The promise that this state breaks, if any."""
        row, log = world.row, world.log
        if world.effects > 1:
            return "the tool ran twice"
        if world.effects_without_lease:
            return "the tool was started after the lease was lost"
        if world.writes_without_lease:
            return "somebody wrote who had been replaced"
        if row.attempts - world.steals not in (0, 1):
            return "an attempt was counted that was no crash, or the other way round"
        if row.state == "ended" and log.phase != "final":
            return "the row says that the run ended, and the log does not"
        if row.state == "waiting" and log.phase in ("new", "said", "started", "resulted"):
            return "the row says that the run waits, and the log does not"
        # A worker that opened the session too late has yet to check its lease.
        ready = [each for each in world.workers if each.at == "appending" or (each.at == "running" and each.is_leased)]
        if row.state in OVER and any(each.epoch == log.epoch for each in ready):
            return "the run is over, and somebody may still write"
        if any(each.is_leased and (row.fence, row.state) != (each.fence, "running") for each in world.workers):
            return "somebody believes in a lease that is another's"
        return None


def _closed(world: World, worker: Worker) -> Log:
    return world.log._replace(is_held=False) if worker.epoch == world.log.epoch else world.log


def _with(world: World, number: int, worker: Worker) -> tuple[Worker, ...]:
    return (*world.workers[:number], worker, *world.workers[number + 1 :])


def _set(
    world: World,
    row: Row | None = None,
    log: Log | None = None,
    number: int | None = None,
    worker: Worker | None = None,
    workers: list[Worker] | None = None,
    **counts: int,
) -> World:
    team = tuple(workers) if workers is not None else world.workers
    if number is not None and worker is not None:
        team = _with(world, number, worker)
    return world._replace(row=row or world.row, log=log or world.log, workers=team, **counts)


def search(protocol: Protocol) -> tuple[int, str | None, list[str]]:
    """Explore all states; return their number, a broken promise if any, and the steps that lead to it.

    One more promise: from every state the run can still reach its end, and its regular one unless somebody cancels it.
    """
    start = World()
    came: dict[World, tuple[World, str] | None] = {start: None}
    before: dict[World, list[World]] = {}
    todo = [start]
    for world in todo:
        if (what := protocol.broken(world)) is not None:
            return len(came), what, _way(came, world)
        for step, after in protocol.steps(world):
            after = _same(after)
            before.setdefault(after, []).append(world)
            if after not in came:
                came[after] = (world, step)
                todo.append(after)
    can_end = _leading_to([world for world in todo if world.row.state == "ended"], before)
    can_stop = _leading_to([world for world in todo if world.row.state in OVER], before)
    for world in todo:
        if world not in (can_stop if world.row.is_cancelled else can_end):
            return len(came), "the run can never end", _way(came, world)
    return len(came), None, []


def _leading_to(worlds: list[World], before: dict[World, list[World]]) -> set[World]:
    seen = set(worlds)
    for world in worlds:
        new = set(before.get(world, ())) - seen
        seen |= new
        worlds += new
    return seen


def _same(world: World) -> World:
    """The canonical form of equivalent states, which differ only in worker order and in the absolute fences and epochs."""
    fences = sorted({world.row.fence, *(each.fence for each in world.workers)} - {0})
    epochs = sorted({world.log.epoch, *(each.epoch for each in world.workers)} - {0})
    fence = {0: 0, **{value: place for place, value in enumerate(fences, 1)}}
    epoch = {0: 0, **{value: place for place, value in enumerate(epochs, 1)}}
    team = (each._replace(fence=fence[each.fence], epoch=epoch[each.epoch]) for each in world.workers)
    return world._replace(
        row=world.row._replace(fence=fence[world.row.fence]),
        log=world.log._replace(epoch=epoch[world.log.epoch]),
        workers=tuple(sorted(team)),
    )


def _way(came: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    way: list[str] = []
    while (entry := came[world]) is not None:
        world, step = entry
        way.append(step)
    return way[::-1]
