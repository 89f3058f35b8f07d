"""The simulation of each seed: most use files, servers, databases or fleets, and a few are whole runs or workflows."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType

from openagentic_sdk.sessions import store
from openagentic_sdk.sessions.log import file, lock
from tests.size import IN_MEMORY

from .databases import Databases
from .files import Files
from .fleet import Workers
from .flows import Flows
from .history import History, PromiseBrokenError
from .hosts import Hosts
from .keeping import Keeping
from .redis_servers import RedisServers
from .runs import Runs
from .servers import Servers

Schedule = Files | Workers | Hosts | Databases | Servers | Runs | Flows | Keeping
# Each takes its turns; those that cost most have the fewest.
_TURNS: tuple[tuple[Callable[[int, str], Schedule], int], ...] = (
    *(
        (Runs, 3),
        (Files, 30),
        (Servers, 15),
        (RedisServers, 17),
        (Workers, 60),
        (Hosts, 2),
        (Databases, 40),
        (Flows, 3),
        (Keeping, 2),
    ),
)
# In an order that is the same for each process, and in which no kind comes in one block.
_KINDS = [kind for kind, times in _TURNS for _ in range(times)]
random.Random(1).shuffle(_KINDS)


@cache
def folder() -> str:
    """The folder of this process, which is emptied after each schedule."""
    place = tempfile.mkdtemp(dir=IN_MEMORY)
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


def empty(folder: str) -> None:
    """Remove the contents of a folder; `shutil.rmtree` takes three times as long, because it guards against links."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            empty(entry.path)
            os.rmdir(entry.path)
        else:
            os.unlink(entry.path)


@contextmanager
def _alone() -> Iterator[None]:
    """Keep the real machine out: nobody holds a lock for a moment, and no list of its locks names who holds one."""
    stand_ins: dict[ModuleType, dict[str, object]] = {
        lock: {"_MOMENTS_S": ()},
        file: {"lock_holder": lambda fd: "another run"},
        store: {"lock_holder": lambda fd: "another run"},
    }
    real = {module: {name: vars(module)[name] for name in names} for module, names in stand_ins.items()}
    for module, names in stand_ins.items():
        vars(module).update(names)
    try:
        yield
    finally:
        for module, names in real.items():
            vars(module).update(names)


def run_seed(seed: int) -> History:
    """Run the schedule of that number. Raise `PromiseBrokenError` if it breaks a promise."""
    place = folder()
    cycle, at = divmod(seed, len(_KINDS))
    kind = _KINDS[at]
    schedule = kind(seed, place)
    schedule.ordinal = cycle * _KINDS.count(kind) + _KINDS[:at].count(kind)
    try:
        with _alone():
            schedule.run()
    except PromiseBrokenError:
        raise
    except Exception as error:
        raise schedule.history.broken(f"the schedule ended with {type(error).__name__}: {error}") from error
    finally:
        empty(place)
    if schedule.history.failure:
        raise schedule.history.failure
    return schedule.history
