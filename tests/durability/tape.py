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

PAGE_BYTES = 4096


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
    """One possible content of a file that safely held `base` before these steps, after a power cut.

    Everything up to the last sync is on disk. Each page written later may independently have any of its versions, or zeros
    if it was never written before, and the length may be any that the file had or passed through. The same holds after a
    failed sync; a page that would have been new then gets no second chance, unless it is cut off. If other files took the
    name since the folder was last synced, the result may be any of them.
    """
    page_bytes = rng.choice((PAGE_BYTES, 512))
    named = [0]
    for step in steps:
        if step.kind == "name":
            named.append(step.file)
        elif step.kind == "names":
            named = named[-1:]
    file = rng.choice(named)
    on_disk = shown = b"" if file else base
    versions, dirty, stuck = [on_disk], set[int](), set[int]()
    for step in steps:
        if step.file != file or step.kind in ("name", "names"):
            continue
        if step.kind in ("write", "cut"):
            before, shown = shown, _apply(shown, step)
            end = max(len(before), len(shown)) if step.kind == "cut" else step.offset + len(step.data)
            dirty |= set(range(step.offset // page_bytes, -(-end // page_bytes)))
            if step.kind == "cut":
                stuck = {page for page in stuck if page * page_bytes < step.offset}
            versions.append(shown)
            continue
        if step.kind == "sync":
            on_disk = _mixed(on_disk, [shown], len(shown), dirty - stuck, page_bytes, rng)
        else:
            was, size = len(on_disk), len(rng.choice(versions))
            on_disk = _mixed(on_disk, versions, size, dirty - stuck, page_bytes, rng)
            stuck |= {page for page in dirty if page * page_bytes >= was}
        versions, dirty = [on_disk], set()
    lengths = [len(version) for version in versions]
    size = rng.choice(lengths) if rng.random() < 0.5 else rng.randint(min(lengths), max(lengths))
    return _mixed(on_disk, versions, size, dirty - stuck, page_bytes, rng)


def _mixed(
    on_disk: bytes, ages: Sequence[bytes], size: int, dirty: set[int], page_bytes: int, rng: random.Random
) -> bytes:
    """The file with a random version of each dirty page; all other pages are as on disk."""
    pages = []
    for number, start in enumerate(range(0, size, page_bytes)):
        age = rng.choice(ages) if number in dirty else on_disk
        pages.append(age[start : start + page_bytes].ljust(page_bytes, b"\0"))
    return b"".join(pages)[:size]


def _apply(content: bytes, step: TapeStep) -> bytes:
    if step.kind == "write":
        return content[: step.offset].ljust(step.offset, b"\0") + step.data + content[step.offset + len(step.data) :]
    return content[: step.offset]
