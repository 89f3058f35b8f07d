"""A disk that fails on demand.

    store = FileSessionStore(folder, disk=FaultyOS(at=7, fault="ENOSPC"))

`FaultyOS` counts its operations and makes the n-th fail, so a test can run the same scenario once for each n. Failures of a
whole machine are simulated by `simulated_disk`.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import Any

from ..ground.disk import Disk, SystemDisk

# The possible faults. The first group is raised as an OSError before the operation; `short` and `torn` write half.
ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EFBIG", "EINTR")
WRITE_FAULTS = ("short", "torn ENOSPC", "torn EIO")
KILLS = ("kill before", "kill middle", "kill after")


def _spoiled(name: str) -> Any:
    """Wrap the disk operation `name` so that it is counted, and fails if it is the chosen one."""

    def operation(self: FaultyOS, *arguments: Any, **kwargs: Any) -> Any:
        self._strike(name)
        return getattr(self._disk, name)(*arguments, **kwargs)

    return operation


class FaultyOS:
    """The real disk, with one fault. Pass it to a store as `disk`.

    `at` is the number of the failing operation, from 1; 0 for none. `fault` is one of `ERRORS`, `WRITE_FAULTS` (which skip
    operations other than writes) or `KILLS` (SIGKILL to this process). With `sticky`, every later operation of the same
    kind also fails, as on a full disk. `operations` records the names of the operations in order; `close` and `lseek` are
    not counted and do not fail.
    """

    def __init__(self, *, at: int = 0, fault: str = "EIO", sticky: bool = False, disk: Disk | None = None) -> None:
        self.operations: list[str] = []
        self.at = at
        self.fault = fault
        self.sticky = sticky
        self._disk = disk or SystemDisk()
        self._struck: str | None = None

    open = _spoiled("open")
    read = _spoiled("read")
    fstat = _spoiled("fstat")
    ftruncate = _spoiled("ftruncate")
    fdatasync = _spoiled("fdatasync")
    fsync_folder = _spoiled("fsync_folder")
    replace = _spoiled("replace")
    rename = _spoiled("rename")
    unlink = _spoiled("unlink")

    def close(self, fd: int) -> None:
        self._disk.close(fd)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        if not self._is_due("write"):
            return self._disk.write(fd, data)
        if self.fault in ("kill before", *ERRORS):
            self._fail()
        count = self._disk.write(fd, data if self.fault == "kill after" else data[: len(data) // 2])
        if self.fault in KILLS:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault.startswith("torn "):
            raise OSError(getattr(errno, self.fault[5:]), f"injected {self.fault}")
        return count

    def lseek(self, fd: int, position: int, how: int) -> int:
        return self._disk.lseek(fd, position, how)

    def _strike(self, name: str) -> None:
        if self._is_due(name) and self.fault not in WRITE_FAULTS:
            self._fail()

    def _is_due(self, name: str) -> bool:
        self.operations.append(name)
        if len(self.operations) == self.at:
            self._struck = name
            return True
        return self.sticky and self._struck == name

    def _fail(self) -> None:
        if self.fault in KILLS:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(getattr(errno, self.fault), f"injected {self.fault}")
