"""Which simulation a seed runs: a third are of files, most others of servers, databases and fleets, few of whole runs."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from functools import cache

from tests.size import IN_MEMORY

from .databases import Databases
from .files import Files
from .fleet import Workers
from .flows import Flows
from .history import History
from .runs import Runs
from .servers import Servers

Schedule = Files | Workers | Databases | Servers | Runs | Flows
# Each takes its turns; those that cost most have the fewest.
_TURNS: tuple[tuple[Callable[[int, str], Schedule], int], ...] = (
    *((Runs, 2), (Files, 30), (Servers, 13), (Workers, 20), (Databases, 17), (Flows, 2)),
)
# In an order that is the same for each process, and in which no kind comes in one block.
_KINDS = [kind for kind, times in _TURNS for _ in range(times)]
random.Random(1).shuffle(_KINDS)


@cache
def _place() -> str:
    """The folder of this process, which each schedule begins empty."""
    place = tempfile.mkdtemp(dir=IN_MEMORY)
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


def empty(folder: str) -> None:
    """Remove what is in a folder; `shutil.rmtree`, which mistrusts links, costs three times as much."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            empty(entry.path)
            os.rmdir(entry.path)
        else:
            os.unlink(entry.path)


def run_seed(seed: int) -> History:
    """Run the schedule of that number. Raises `PromiseBrokenError`."""
    place = _place()
    schedule = _KINDS[seed % len(_KINDS)](seed, place)
    try:
        schedule.run()
    finally:
        empty(place)
    if schedule.history.failure:
        raise schedule.history.failure
    return schedule.history
