"""The cost of operations: each figure beside a floor that was measured in the same run on the same machine.

A topic is a module of this folder with `def rows() -> list[Row]`; `python3 -m benchmarks [topic ...]` runs them. A figure
alone does not carry over to another machine; its ratio to the floor does.

The figures in docstrings show how a cost is divided. They were measured once, on a machine of two cores that was also
running other work, and are not a promise.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_COMPARE: dict[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}


@dataclass(frozen=True)
class Row:
    """One figure. `ratio` is `value` divided by the floor's value, `floor` describes the floor in words.

    `bar` is what the figure must meet: `"ratio <= 1.5"` or, if a number itself is promised, `"value <= 20"`; empty if there
    is no promise. A duration is never held to an absolute limit, because machines differ.
    """

    name: str
    value: float
    unit: str
    ratio: float | None = None
    floor: str = ""
    bar: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None if there is none."""
        if not self.bar:
            return None
        subject, comparison, limit = self.bar.split()
        figure = self.value if subject == "value" else self.ratio
        if figure is None:
            raise ValueError(f"{self.name}: the bar {self.bar!r} speaks of a ratio, and there is none")
        return _COMPARE[comparison](figure, float(limit))


def best_s(work: Callable[[], object], repeats: int = 5) -> float:
    """Wall-clock seconds of the fastest of `repeats` runs: the cost of the work without disturbance."""
    return min(_timed(work, time.perf_counter) for _ in range(repeats))


def best_cpu_s(work: Callable[[], object], repeats: int = 5) -> float:
    """Seconds of processor time, of all threads of this process, of the cheapest of `repeats` runs."""
    return min(_timed(work, time.process_time) for _ in range(repeats))


def resident_mb() -> float:
    """The resident memory of this process; 0 if the system does not report it."""
    return _status_mb("VmRSS:")


def peak_mb() -> float:
    """The peak memory of this process, without its parent's (which `getrusage` includes); 0 if unknown."""
    return _status_mb("VmHWM:")


def _status_mb(field: str) -> float:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def _timed(work: Callable[[], object], clock: Callable[[], float]) -> float:
    began = clock()
    work()
    return clock() - began
