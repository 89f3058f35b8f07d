"""Record the operations on one log, and derive every state in which a power cut may leave the file.

The whole disk, with processes that die on it, is `testing.simulated_disk`, which `tests.simulation` runs by seed.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence

from openagentic_sdk.ground.disk import SystemDisk
from openagentic_sdk.ground.frozen import frozen
from openagentic_sdk.testing import simulated_disk
from openagentic_sdk.testing.simulated_disk import FileStep


@frozen
class TapeStep:
    """One operation on a file, which is identified by number: 0 is the file that had the recorded name at first.

    `write` put `data` at `offset`, `cut` truncated the file at `offset`, `sync` flushed it to disk, `failed sync` flushed
    only some of its pages, `name` gave it the recorded name, and `names` flushed the folder to disk.
    """

    kind: str
    offset: int = 0
    data: bytes = b""
    file: int = 0


class Tape(SystemDisk):
    """A disk that records the operations on the file of one name and on files renamed to it, without syncing to the
    hardware.

    `steps` is the record so far; a test notes its length whenever something is acknowledged. Override `is_failing` for a
    disk that refuses syncs, drops the pages it could not write, and reports success the next time, as Linux does.
    """

    def __init__(self, file_name: str) -> None:
        self.steps: list[TapeStep] = []
        self._file_name = file_name
        self._recorded: set[int] = set()
        self._files: dict[int, int] = {}
        self._numbers: dict[str, int] = {}
        self._made = 0
        self._is_named = False

    def is_failing(self) -> bool:
        """Whether the sync being requested fails."""
        return False

    def open(self, path: str, flags: int, mode: int = 0o666) -> int:  # type: ignore[override]
        fd = os.open(path, flags, mode)
        is_named = os.path.basename(path) == self._file_name
        if path not in self._numbers or flags & os.O_EXCL:
            self._made += 1
            self._numbers[path] = 0 if is_named and not self._is_named else self._made
            self._is_named = self._is_named or is_named
        self._files[fd] = self._numbers[path]
        if is_named:
            self._recorded.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self._recorded.discard(fd)
        self._files.pop(fd, None)
        os.close(fd)

    def write(self, fd: int, data: bytes | memoryview) -> int:  # type: ignore[override]
        offset = os.fstat(fd).st_size
        written = os.write(fd, data)
        self._record(fd, "write", offset, bytes(data[:written]))
        return written

    def ftruncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)
        self._record(fd, "cut", length)

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        if self.is_failing():
            self._record(fd, "failed sync")
            raise OSError(errno.EIO, "the pages were not written")
        self._record(fd, "sync")

    def replace(self, src: str, dst: str) -> None:  # type: ignore[override]
        os.replace(src, dst)
        self._numbers[dst] = self._numbers.pop(src, -1)
        if os.path.basename(dst) == self._file_name:
            self.steps.append(TapeStep("name", file=self._numbers[dst]))

    def fsync_folder(self, path: str) -> None:  # type: ignore[override]
        if self.is_failing():
            raise OSError(errno.EIO, "the names were not written")
        self.steps.append(TapeStep("names"))

    def _record(self, fd: int, kind: str, offset: int = 0, data: bytes = b"") -> None:
        self.steps.append(TapeStep(kind, offset, data, self._files.get(fd, -1)))


def after_power_cut(base: bytes, steps: Sequence[TapeStep], rng: random.Random) -> bytes:
    """One possible content, after a power cut, of the file with the recorded name, which held `base` before these steps.

    If other files took the name since the folder was last synced, it may be any of them.
    """
    named_files = [0]
    for step in steps:
        if step.kind == "name":
            named_files.append(step.file)
        elif step.kind == "names":
            named_files = named_files[-1:]
    file = rng.choice(named_files)
    own = [
        FileStep(step.kind, step.offset, step.data)
        for step in steps
        if step.file == file and step.kind not in ("name", "names")
    ]
    return simulated_disk.after_power_cut(b"" if file else base, own, rng)
