"""The calls of the operating system that the log needs, so that tests can put a failing disk in their place.

`SystemDisk` hides what differs between platforms: a system without `fdatasync` gets `fsync`, macOS gets the call that
empties the drive's cache too, and where a folder cannot be synced (Windows) syncing one does nothing.
"""

from __future__ import annotations

import os
import sys
from typing import Protocol

BINARY = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0)
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)


class Disk(Protocol):
    """The part of `os` that the log uses, by the same names; every call raises `OSError` like `os` does."""

    def open(self, path: str, flags: int, mode: int = 0o666) -> int: ...

    def close(self, fd: int) -> None: ...

    def read(self, fd: int, n: int) -> bytes: ...

    def write(self, fd: int, data: bytes | memoryview) -> int: ...

    def lseek(self, fd: int, position: int, how: int) -> int: ...

    def fstat(self, fd: int) -> os.stat_result: ...

    def ftruncate(self, fd: int, length: int) -> None: ...

    def fdatasync(self, fd: int) -> None: ...

    def fsync_folder(self, path: str) -> None: ...

    def replace(self, src: str, dst: str) -> None: ...

    def rename(self, src: str, dst: str) -> None: ...


class SystemDisk:
    """The real disk."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    read = staticmethod(os.read)
    write = staticmethod(os.write)
    lseek = staticmethod(os.lseek)
    fstat = staticmethod(os.fstat)
    ftruncate = staticmethod(os.ftruncate)
    replace = staticmethod(os.replace)
    rename = staticmethod(os.rename)

    if sys.platform == "darwin":

        @staticmethod
        def fdatasync(fd: int) -> None:
            import fcntl

            # fsync on macOS leaves the data in the drive's cache; fcntl(2) names this call for what fsync means elsewhere.
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)

    elif sys.platform == "win32":
        fdatasync = staticmethod(os.fsync)
    else:
        fdatasync = staticmethod(os.fdatasync)

    @staticmethod
    def fsync_folder(path: str) -> None:
        if sys.platform == "win32":
            return
        fd = os.open(path, os.O_RDONLY | BINARY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
