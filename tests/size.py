"""Which tests run, how much load they create, and where they put temporary files.

README's command runs the tests that take less than about a tenth of a second of one core. The gate runs the others too, on
one Python (OPENAGENTIC_TEST_FULL=1). Crashes, races and soaks are small unless OPENAGENTIC_TEST_LARGE=1.
"""

from __future__ import annotations

import os
import shutil
import sys
import unittest
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
Case = TypeVar("Case", bound=unittest.TestCase)
LARGE = os.environ.get("OPENAGENTIC_TEST_LARGE") == "1"
FULL = LARGE or os.environ.get("OPENAGENTIC_TEST_FULL") == "1"
full_size = unittest.skipUnless(FULL, "slow: it runs in the gate, and with OPENAGENTIC_TEST_FULL=1")
# Ignored when the package is copied: bytecode that another process is writing, which vanishes when it has its final name.
UNFINISHED = shutil.ignore_patterns("*.pyc.*")
# A memory-backed file system, if the machine has one.
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def sized(small: T, full: T, large: T) -> T:
    """Choose a quantity by test size: for README's command, for the gate, or for the large size."""
    return large if LARGE else full if FULL else small


def drawn(cases: Iterable[T], step: int) -> list[T]:
    """All cases in the gate's size; in README's size every `step`th, from an offset that depends on the Python version.

    The gate's bare Pythons thus run different cases. No case may depend on another.
    """
    return list(cases) if FULL else list(cases)[sum(sys.version_info[:3]) % step :: step]


def full_size_but(*names: str) -> Callable[[type[Case]], type[Case]]:
    """Decorate a class that inherits the tests of another: in README's size only these of the inherited tests run."""

    def shorten(kind: type[Case]) -> type[Case]:
        inherited = {name for name in dir(kind) if name.startswith("test") and name not in vars(kind)}
        for name in inherited - {*names}:
            setattr(kind, name, full_size(getattr(kind, name)))
        return kind

    return shorten


def write_in_memory() -> None:
    """Put temporary folders in memory, child processes included, if the disk has 2 GiB free and may hold programs."""
    if IN_MEMORY and not LARGE:
        disk = os.statvfs(IN_MEMORY)
        if disk.f_bavail * disk.f_frsize >= 2 << 30 and not disk.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("TMPDIR", IN_MEMORY)
