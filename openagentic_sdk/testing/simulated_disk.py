"""A simulated machine's disk: processes that die, a page cache, failing write-back, and power cuts.

    disk = SimulatedDisk(folder, random.Random(7))
    one = disk.process()
    store = FileSessionStore(folder, disk=one)
    one.faults = {3: "kill middle"}        # the process dies inside its third operation from now on
    disk.cut_power()                       # all of them die; unsynced data may be lost

The files are real, and have the contents of the page cache. The contents of the disk are decided when the power is cut:
each extent written since the last successful sync is of any age, or was never written (zeros); the length is any that the
file had or grew through; and in a folder that was not synced, the newest changes of names are lost. A failing sync loses
what it should have written, and the next one succeeds, as on Linux. The same random numbers produce the same disk.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from ..ground.disk import SystemDisk
from ..ground.frozen import frozen
from .crash import Killed

PAGE_BYTES = 4096
# Faults of an operation; `lost` is a sync that fails and drops what it should have written.
KILLS = ("kill before", "kill middle", "kill behind")
WRITE_ERRORS = ("short", "torn ENOSPC", "torn EIO", "ENOSPC", "EIO")


@frozen
class FileStep:
    """One step in the history of a file since it was completely on disk.

    `write` put `data` at `offset`, `cut` truncated the file at `offset`, `sync` put it on disk, and `failed sync` did so
    for some of its pages.
    """

    kind: str
    offset: int = 0
    data: bytes = b""


class _PagedFile:
    """The part of a file that is certainly on disk, and its history since."""

    def __init__(self, base: bytes) -> None:
        self.base = base
        self.steps: list[FileStep] = []

    def synced(self, read_contents: Callable[[], bytes]) -> None:
        if any(step.kind == "failed sync" for step in self.steps):
            self.steps.append(FileStep("sync"))  # a later sync does not restore what the failed one dropped
        else:
            self.base, self.steps = read_contents(), []


class SimulatedDisk:
    """A machine whose files are in the folder `root`. `failing_syncs` is the probability that a sync fails."""

    def __init__(self, root: str | os.PathLike[str], rng: random.Random, *, failing_syncs: float = 0.0) -> None:
        self.root = os.fspath(root)
        self.rng = rng
        self.failing_syncs = failing_syncs
        self.processes: list[ProcessDisk] = []
        self.files: dict[int, _PagedFile] = {}
        # How to undo each change of a folder's names since it was synced, by the folder's inode.
        self.names: dict[int, list[tuple[str, str, str, str]]] = {}
        self._grave = f"{self.root}.grave"
        self._buried = 0

    def process(self) -> ProcessDisk:
        """Add a process; return its disk."""
        self.processes.append(ProcessDisk(self))
        return self.processes[-1]

    def bury(self, path: str) -> str:
        """Keep a file whose name is about to be removed, in case the removal is undone; return its other path."""
        os.makedirs(self._grave, exist_ok=True)
        self._buried += 1
        grave = f"{self._grave}/{self._buried}"
        with suppress(OSError):
            os.link(path, grave)
        return grave

    def note_name(self, kind: str, path: str, source: str = "", buried: str = "") -> None:
        """Record a change of a folder's names: `made`, `moved` from `source`, or `gone`.

        `buried` is the other path of the file that had the name before, '' if there was none.
        """
        self.names.setdefault(os.stat(os.path.dirname(path)).st_ino, []).append((kind, path, source, buried))

    def cut_power(self) -> None:
        """End all processes, and leave on the disk a state that a power cut may leave."""
        for process in self.processes:
            process.kill()
        self.processes.clear()
        for changes in self.names.values():
            count = self.rng.randint(0, len(changes))
            for change in reversed(changes[count:]):
                with suppress(OSError):  # its folder no longer exists
                    _take_back(*change)
        self.names.clear()
        paths = {os.lstat(path).st_ino: path for path in _paths(self.root)}
        for (
            inode,
            file,
        ) in self.files.items():  # in the order in which they were opened, which is reproducible with a seed
            if file.steps and inode in paths:
                with open(paths[inode], "r+b") as disk_file:
                    disk_file.truncate(0)
                    disk_file.write(after_power_cut(file.base, file.steps, self.rng))
        self.files.clear()


def _paths(root: str) -> Iterator[str]:
    return (f"{folder}/{name}" for folder, _, names in os.walk(root) for name in names)


def _take_back(kind: str, path: str, source: str, buried: str) -> None:
    if kind == "made":
        os.unlink(path)
    if source:
        os.rename(path, source)
    if buried:
        os.link(buried, path)


class ProcessDisk(SystemDisk):
    """The disk of one process, until it dies: then each operation raises `Killed` and does nothing.

    `faults` maps the number of an operation, counted from when it was set, to its fault: one of `KILLS`, `WRITE_ERRORS`
    (which skip operations other than writes) or `lost`. `struck` is the last fault that occurred.
    """

    def __init__(self, machine: SimulatedDisk) -> None:
        self._machine = machine
        self._fds: dict[int, _PagedFile | None] = {}
        self.is_dead = False
        self._faults: dict[int, str] = {}
        self._count = 0
        self.struck = ""

    @property
    def faults(self) -> Mapping[int, str]:
        return self._faults

    @faults.setter
    def faults(self, faults: Mapping[int, str]) -> None:
        self._faults, self._count, self.struck = dict(faults), 0, ""

    def kill(self) -> None:
        """End the process as SIGKILL does: close its handles, release its locks, and do nothing more."""
        self.is_dead = True
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()

    def _strike(self, *spared: str) -> str:
        """Return the fault of this operation, '' for none; one that is `spared` is left for the next operation."""
        if self.is_dead:
            raise Killed
        self._count += 1
        fault = self._faults.get(self._count, "")
        if fault in spared:
            self._faults[self._count + 1] = fault
            return ""
        self.struck = fault or self.struck
        if fault == "kill before":
            self._die()
        return fault

    def _die(self) -> None:
        self.kill()
        raise Killed

    def open(self, path: str, flags: int, mode: int = 0o666) -> int:  # type: ignore[override]
        fault = self._strike("lost", *WRITE_ERRORS)
        is_new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
        if flags & os.O_WRONLY:
            flags += os.O_RDWR - os.O_WRONLY  # so that the synced contents can be read
        fd = os.open(path, flags, mode)
        file = None
        if flags & os.O_RDWR:
            inode = os.fstat(fd).st_ino
            if is_new or inode not in self._machine.files:
                self._machine.files[inode] = _PagedFile(b"" if is_new else _content(fd))
            file = self._machine.files[inode]
        if is_new:
            self._machine.note_name("made", path)
        self._fds[fd] = file
        if fault:
            self._die()
        return fd

    def close(self, fd: int) -> None:
        if self._fds.pop(fd, False) is not False:
            os.close(fd)

    def write(self, fd: int, data: bytes | memoryview) -> int:  # type: ignore[override]
        fault = self._strike("lost")
        if fault in ("ENOSPC", "EIO"):
            raise OSError(getattr(errno, fault), f"simulated {fault}")
        offset = os.fstat(fd).st_size
        part = data if fault in ("", "kill behind") else data[: self._machine.rng.randrange(len(data) + 1)]
        count = os.write(fd, part)
        if file := self._fds[fd]:
            file.steps.append(FileStep("write", offset, bytes(data[:count])))
        if fault in KILLS:
            self._die()
        if fault.startswith("torn "):
            raise OSError(getattr(errno, fault[5:]), f"simulated {fault}")
        return count

    def read(self, fd: int, n: int) -> bytes:
        self._alive()
        return os.read(fd, n)

    def lseek(self, fd: int, position: int, how: int) -> int:
        self._alive()
        return os.lseek(fd, position, how)

    def fstat(self, fd: int) -> os.stat_result:
        self._alive()
        return os.fstat(fd)

    def ftruncate(self, fd: int, length: int) -> None:
        fault = self._strike("lost", *WRITE_ERRORS)
        os.ftruncate(fd, length)
        if file := self._fds[fd]:
            file.steps.append(FileStep("cut", length))
        if fault:
            self._die()

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        fault = self._strike(*WRITE_ERRORS)
        file = self._fds[fd]
        if fault == "lost" or self._machine.rng.random() < self._machine.failing_syncs:
            if file:
                file.steps.append(FileStep("failed sync"))
            raise OSError(errno.EIO, "the pages were not written")
        if file and fault != "kill middle":
            file.synced(lambda: _content(fd))
        if fault:
            self._die()

    def fsync_folder(self, path: str) -> None:  # type: ignore[override]
        fault = self._strike(*WRITE_ERRORS)
        if fault == "lost" or self._machine.rng.random() < self._machine.failing_syncs:
            raise OSError(errno.EIO, "the names were not written")
        if fault != "kill middle":
            self._machine.names.pop(os.stat(path).st_ino, None)
        if fault:
            self._die()

    def replace(self, src: str, dst: str) -> None:  # type: ignore[override]
        fault = self._strike("lost", *WRITE_ERRORS)
        buried = self._machine.bury(dst) if os.path.isfile(dst) else ""
        os.replace(src, dst)
        self._machine.note_name("moved", dst, src, buried)
        if fault:
            self._die()

    rename = replace  # type: ignore[assignment]

    def unlink(self, path: str) -> None:  # type: ignore[override]
        fault = self._strike("lost", *WRITE_ERRORS)
        buried = self._machine.bury(path)
        os.unlink(path)
        self._machine.note_name("gone", path, buried=buried)
        if fault:
            self._die()

    def _alive(self) -> None:
        if self.is_dead:
            raise Killed


def _content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def after_power_cut(base: bytes, steps: Sequence[FileStep], rng: random.Random) -> bytes:
    """Possible contents of a file that had `base` safely on disk before these steps and the power cut.

    Everything up to the last sync is present. After it, each extent independently has any age, including never written
    (zeros), and the length is any that the file had or grew through. The same holds after a failed sync; a page that was to
    be written then for the first time is not written later, unless it is truncated.
    """
    page_bytes = rng.choice((PAGE_BYTES, 512))
    on_disk = content = base
    versions, dirty, stuck = [on_disk], set[int](), set[int]()
    for step in steps:
        if step.kind in ("write", "cut"):
            before, content = content, _apply(content, step)
            end = max(len(before), len(content)) if step.kind == "cut" else step.offset + len(step.data)
            dirty |= set(range(step.offset // page_bytes, -(-end // page_bytes)))
            if step.kind == "cut":
                stuck = {page for page in stuck if page * page_bytes < step.offset}
            versions.append(content)
            continue
        if step.kind == "sync":
            on_disk = _mixed(on_disk, [content], len(content), dirty - stuck, page_bytes, rng)
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
    """A file in which each dirty extent, one or several pages, has any of these ages, and the rest is as on disk."""
    pages, age, by_page = [], on_disk, rng.random() < 0.5
    for number, start in enumerate(range(0, size, page_bytes)):
        if number not in dirty:
            age = on_disk
        elif by_page or number - 1 not in dirty:
            age = rng.choice(ages)
        pages.append(age[start : start + page_bytes].ljust(page_bytes, b"\0"))
    return b"".join(pages)[:size]


def _apply(content: bytes, step: FileStep) -> bytes:
    if step.kind == "write":
        return content[: step.offset].ljust(step.offset, b"\0") + step.data + content[step.offset + len(step.data) :]
    return content[: step.offset]
