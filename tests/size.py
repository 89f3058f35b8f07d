"""Which tests run, how much load they drive, and where tests write that look at no hardware.

README's command runs the tests that take less than about half a second of one core. The gate runs the others too, on one
Python (OPENAGENTIC_TEST_FULL=1). Crashes, races and soaks are small unless OPENAGENTIC_TEST_LARGE=1.
"""

from __future__ import annotations

import os
import unittest
from typing import TypeVar

T = TypeVar("T")
LARGE = os.environ.get("OPENAGENTIC_TEST_LARGE") == "1"
FULL = LARGE or os.environ.get("OPENAGENTIC_TEST_FULL") == "1"
full_size = unittest.skipUnless(FULL, "takes long: it runs in the gate, and with OPENAGENTIC_TEST_FULL=1")
# A disk in memory, where there is one.
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def sized(small: T, full: T, large: T) -> T:
    """How much there is of something: in README's command, in the gate, and in the large size."""
    return large if LARGE else full if FULL else small


def write_in_memory() -> None:
    """Let temporary folders be on that disk, also of processes that are started, when it is large and may hold programs."""
    if IN_MEMORY and not LARGE:
        disk = os.statvfs(IN_MEMORY)
        if disk.f_bavail * disk.f_frsize >= 2 << 30 and not disk.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("TMPDIR", IN_MEMORY)
