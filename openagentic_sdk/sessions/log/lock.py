"""One writer per session, by a lock on an open file that the operating system releases when the holder dies.

No PID file, no clock, no timeout. The lock belongs to the open file, so a second handle in the same process is refused like
one in another process. On network file systems such locks are best effort; the check of the log's size is the second line
of defence.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from ...ground.backoff import Backoff
from ...ground.system import BINARY

# Windows locks byte ranges, and a locked byte cannot be read: lock one that no log ever reaches.
_WINDOWS_LOCK_BYTE = 0x7FFF_FFFF
# Longer than `is_locked` holds its lock, and too short for a caller to notice.
_MOMENTS_S = (0.0002, 0.001, 0.003)
# How long to wait for a lock that is held briefly.
_PATIENCE_S = 30.0
_WAITS = Backoff(0.0002, 0.02, jitter=0.5)

if sys.platform == "win32":
    import msvcrt

    def try_lock(fd: int) -> bool:
        """Take the exclusive lock on an open file. Return False if another handle has it."""
        os.lseek(fd, _WINDOWS_LOCK_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

    def is_locked(fd: int) -> bool:
        """Whether another handle has the exclusive lock on an open file."""
        is_free = try_lock(fd)
        if is_free:
            unlock(fd)
        return not is_free

    def wait_for_lock(fd: int) -> None:
        """Wait for the exclusive lock; only for locks that are held briefly. Raises `OSError` after ten seconds."""
        os.lseek(fd, _WINDOWS_LOCK_BYTE, os.SEEK_SET)
        # In spite of its name, LK_LOCK tries once a second, ten times, and then raises `OSError`.
        msvcrt.locking(fd, msvcrt.LK_LOCK, 1)

    def share_lock(fd: int) -> None:
        """Do nothing: a folder cannot be locked on this system."""

    def unlock(fd: int) -> None:
        """Release the lock."""
        os.lseek(fd, _WINDOWS_LOCK_BYTE, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

else:
    # Not the record locks of fcntl(2): those belong to the process, which loses them as soon as any part of it closes any
    # handle of the file.
    import fcntl

    def try_lock(fd: int) -> bool:
        """Take the exclusive lock on an open file. Return False if another handle has it."""
        for moment_s in (*_MOMENTS_S, None):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                # A process that only checks the lock (`is_locked`) holds it for a moment.
                if moment_s is not None:
                    time.sleep(moment_s)
        return False

    def is_locked(fd: int) -> bool:
        """Whether another handle has the exclusive lock on an open file."""
        try:
            # Shared, so that two processes that only check the lock do not mistake each other for a writer.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(fd, fcntl.LOCK_UN)
        return False

    def wait_for_lock(fd: int) -> None:
        """Wait for the exclusive lock; only for locks that are held briefly.

        Raises `BlockingIOError`, which names the holder, after half a minute, when the holder must be stopped or hanging.
        """
        _wait(fd, fcntl.LOCK_EX)

    def share_lock(fd: int) -> None:
        """Wait for the shared lock. Raises `BlockingIOError` after half a minute."""
        _wait(fd, fcntl.LOCK_SH)

    def _wait(fd: int, operation: int) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        for wait_s in _WAITS.waits():
            try:
                fcntl.flock(fd, operation | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    text = f"it has been locked for {_PATIENCE_S:g} s by {lock_holder(fd)}"
                    raise BlockingIOError(error.errno, text) from None
            time.sleep(wait_s)

    def unlock(fd: int) -> None:
        """Release the lock, even if a forked child still holds a copy of the handle."""
        fcntl.flock(fd, fcntl.LOCK_UN)


# Open files whose locks mark this process as a session's writer.
_LOCKED_FILES: set[int] = set()


def hold(fd: int) -> None:
    """Bind the lock on this open file to this process: a forked child would otherwise keep holding it."""
    _watch_forks()
    _LOCKED_FILES.add(fd)


def let_go(fd: int) -> None:
    """Undo `hold` for a file that is about to be closed."""
    _LOCKED_FILES.discard(fd)


@cache
def _watch_forks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_close_inherited)


def _close_inherited() -> None:
    if not _LOCKED_FILES:
        return
    # The descriptors stay valid, because objects that the child inherited may close them.
    # The lock lasts as long as any copy of the open file: a child that outlives its parent would keep the session locked.
    null = os.open(os.devnull, os.O_RDWR)
    for fd in _LOCKED_FILES:
        os.dup2(null, fd, inheritable=False)
    os.close(null)
    _LOCKED_FILES.clear()


def lock_holder(fd: int) -> str:
    """A text that names the holder of the lock on an open file; "another run" unless the system reports it (only Linux)."""
    holders = [words[4] for words in _locks_on(os.fstat(fd)) if words[1] == "FLOCK"]
    # 0 is a process of another container.
    return _described(f"process {holders[0]}") if holders and holders[0] != "0" else "another run"


def byte_holder(path: Path, byte: int) -> str | None:
    """A text that names the process with an exclusive record lock (fcntl(2)) on a byte; None if the system reports none."""
    with suppress(OSError):
        for words in _locks_on(os.stat(path)):
            if words[1:4:2] == ["POSIX", "WRITE"] and int(words[6]) <= byte <= float(words[7].replace("EOF", "inf")):
                return _described(f"process {words[4]}") if words[4] != "0" else None
    return None


def _locks_on(info: os.stat_result) -> list[list[str]]:
    """The fields of each line of /proc/locks that concerns the file with this status; see proc_locks(5)."""
    try:
        with open("/proc/locks", encoding="ascii") as file:
            locks = [line.split() for line in file if "->" not in line]  # without those that wait for a lock
    except OSError:
        return []
    # Compared without the device: /proc/locks prints its number in a form that differs from `st_dev` on some file systems.
    return [words for words in locks if words[5].rpartition(":")[2] == str(info.st_ino)]


def _described(holder: str) -> str:
    """The holder of a lock as an error names it; a stopped process is named with the commands that continue or end it."""
    pid = holder.rpartition(" ")[2]
    try:
        stat = Path("/proc", pid, "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # another system, or it has just ended
        return holder
    if stat.rpartition(")")[2].split()[:1] != ["T"]:
        return holder
    return f"{holder}, which is stopped (`kill -CONT {pid}` continues it, `kill -KILL {pid}` ends it)"


class LeaseFile:
    """A locked file that names the process of this machine that writes a session."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        self._path = path
        self._pid = os.getpid()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | BINARY, 0o600)
        # It is free: callers give every writer its own file, named after an epoch or a random number.
        self.is_held = try_lock(self._fd)
        hold(self._fd)
        os.ftruncate(self._fd, 0)  # a crash may have left a longer text
        os.write(self._fd, f"process {self._pid}".encode())

    def release(self) -> None:
        """Unlock and remove the file. Releasing twice is allowed, and does nothing in a child of the process that locked
        it.
        """
        if self.is_held and self._pid == os.getpid():
            self.is_held = False
            with suppress(OSError):
                self._path.unlink()
            let_go(self._fd)
            os.close(self._fd)


def living_holder(path: Path, *, missing: str | None = None) -> str | None:
    """Return a text that names the live holder of a lease, or None; `missing` if the file does not exist."""
    try:
        fd = os.open(path, os.O_RDWR | BINARY)
    except FileNotFoundError:
        return missing
    try:
        return None if try_lock(fd) else _described(os.read(fd, 100).decode("ascii", "replace"))
    finally:
        os.close(fd)
