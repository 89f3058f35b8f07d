"""How big tests that drive real load are, and where those write that look at no hardware.

Crashes, races and soaks are small by default and run in full with OPENAGENTIC_TEST_LARGE=1.
"""

from __future__ import annotations

import os

LARGE = os.environ.get("OPENAGENTIC_TEST_LARGE") == "1"
# A disk in memory, where there is one.
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def write_in_memory() -> None:
    """Let temporary folders be on that disk, also of processes that are started, when it is large and may hold programs."""
    if IN_MEMORY and not LARGE:
        disk = os.statvfs(IN_MEMORY)
        if disk.f_bavail * disk.f_frsize >= 2 << 30 and not disk.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("TMPDIR", IN_MEMORY)
