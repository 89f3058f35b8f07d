"""Which simulation a seed runs: most are of files, some of a fleet or a database, and one in 25 of whole runs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

from tests.size import IN_MEMORY

from .databases import Databases
from .files import Files
from .fleet import Workers
from .history import History
from .runs import Runs

_KINDS: tuple[Callable[[int, str], Files | Workers | Databases | Runs], ...] = (
    *(Runs, *[Workers] * 4, *[Files] * 17, *[Databases] * 3),
)


def run_seed(seed: int) -> History:
    """Run the schedule of that number. Raises `PromiseBrokenError`."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as place:
        schedule = _KINDS[seed % len(_KINDS)](seed, place)
        schedule.run()
        if schedule.history.failure:
            raise schedule.history.failure
        return schedule.history
