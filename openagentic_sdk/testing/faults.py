"""A disk that fails on demand, and every state that a power cut may leave a file in.

    store = FileSessionStore(folder, disk=FaultyOS(at=7, fault="ENOSPC"))

`FaultyOS` counts the operations that it is asked for and spoils the n-th, so a test can run the same scenario once for
each n. `Tape` records what was written and synced; `after_power_cut` picks one of the files that a disk which forgets and
reorders unsynced pages could hold after a cut.
"""

from __future__ import annotations

import errno
import os
import random
import signal
from collections.abc import Sequence
from typing import Any

from ..disk import Disk, SystemDisk
from ..frozen import frozen

# What can go wrong. The first group is raised as an OSError before anything happens; `short` and `torn` write half.
ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EFBIG", "EINTR")
WRITE_FAULTS = ("short", "torn ENOSPC", "torn EIO")
KILLS = ("kill before", "kill middle", "kill after")

PAGE_BYTES = 4096


def _spoiled(name: str) -> Any:
    """An operation of the disk that is counted, and may be the one that goes wrong."""

    def operation(self: FaultyOS, *arguments: Any, **named: Any) -> Any:
        self._strike(name)
        return getattr(self._disk, name)(*arguments, **named)

    return operation


class FaultyOS:
    """The real disk, with one fault. It is handed to a store as `disk`.

    `at` is the number of the operation that goes wrong, from 1; 0 is none. `fault` is one of `ERRORS`, `WRITE_FAULTS` (they
    pass over operations that are no writes) or `KILLS` (SIGKILL to this process). With `sticky` everything after it of the
    same kind goes wrong too, as on a full disk. `operations` keeps the names of all operations in order.
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
        written = self._disk.write(fd, data if self.fault == "kill after" else data[: len(data) // 2])
        if self.fault in KILLS:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault.startswith("torn "):
            raise OSError(getattr(errno, self.fault[5:]), f"injected {self.fault}")
        return written

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


@frozen
class Step:
    """One thing that happened to a recorded file: `data` written at `offset`, cut at `offset`, or put on disk."""

    kind: str
    offset: int = 0
    data: bytes = b""


class Tape(SystemDisk):
    """A disk that records what happens to every file of one name, and does not really wait for the hardware.

    `steps` is the record so far; a test remembers its length whenever something is acknowledged.
    """

    def __init__(self, file_name: str) -> None:
        self.steps: list[Step] = []
        self._file_name = file_name
        self._recorded: set[int] = set()

    def open(self, path: str, flags: int, mode: int = 0o666) -> int:  # type: ignore[override]
        fd = os.open(path, flags, mode)
        if os.path.basename(path) == self._file_name:
            self._recorded.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self._recorded.discard(fd)
        os.close(fd)

    def write(self, fd: int, data: bytes | memoryview) -> int:  # type: ignore[override]
        offset = os.fstat(fd).st_size
        written = os.write(fd, data)
        self._record(fd, Step("write", offset, bytes(data[:written])))
        return written

    def ftruncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)
        self._record(fd, Step("cut", length))

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        self._record(fd, Step("sync"))

    def fsync_folder(self, path: str) -> None:  # type: ignore[override]
        return

    def _record(self, fd: int, step: Step) -> None:
        if fd in self._recorded:
            self.steps.append(step)


def after_power_cut(base: bytes, steps: Sequence[Step], rng: random.Random) -> bytes:
    """What may stand in a file that held `base`, safely, before these steps happened and the power was cut.

    Everything up to the last sync is there. After it each page is independently of any age, also one that was never
    written (zeros), and the length is anything that the file had or grew through.
    """
    synced = max((index + 1 for index, step in enumerate(steps) if step.kind == "sync"), default=0)
    safe = _apply(base, steps[:synced])
    versions = [safe]
    for step in steps[synced:]:
        versions.append(_apply(versions[-1], [step]))
    lengths = [len(version) for version in versions]
    size = rng.choice(lengths) if rng.random() < 0.5 else rng.randint(min(lengths), max(lengths))
    page_bytes = rng.choice((PAGE_BYTES, 512))
    pages = [
        rng.choice(versions)[start : start + page_bytes].ljust(page_bytes, b"\0")
        for start in range(0, size, page_bytes)
    ]
    return b"".join(pages)[:size]


def _apply(content: bytes, steps: Sequence[Step]) -> bytes:
    for step in steps:
        if step.kind == "write":
            content = (
                content[: step.offset].ljust(step.offset, b"\0") + step.data + content[step.offset + len(step.data) :]
            )
        elif step.kind == "cut":
            content = content[: step.offset]
    return content
