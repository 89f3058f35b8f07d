"""Who writes a session of this machine: a locked file, which the kernel unlocks when its process dies."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ...disk import BINARY
from ..log.lock import hold, let_go, try_lock


class LeaseFile:
    """A locked file that says which process holds it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        self._path = path
        self._pid = os.getpid()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | BINARY, 0o600)
        self.is_held = try_lock(self._fd)
        hold(self._fd)
        os.write(self._fd, f"process {self._pid}".encode())

    def release(self) -> None:
        """Unlock and remove the file. Releasing twice is allowed, and does nothing in a child of the process that locked."""
        if self.is_held and self._pid == os.getpid():
            self.is_held = False
            with suppress(OSError):
                self._path.unlink()
            let_go(self._fd)
            os.close(self._fd)


def living_holder(path: Path, *, missing: str | None = None) -> str | None:
    """Who holds a lease, None when nobody living does; `missing` when there is no such file."""
    try:
        fd = os.open(path, os.O_RDWR | BINARY)
    except FileNotFoundError:
        return missing
    try:
        return None if try_lock(fd) else os.read(fd, 100).decode("ascii", "replace")
    finally:
        os.close(fd)
