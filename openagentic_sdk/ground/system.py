"""The operating system around this process: how to open files, its user, and its working folder."""

from __future__ import annotations

import _thread
import contextlib
import errno
import os
import sys
import threading
from collections.abc import Callable

from ..errors import EventLoopError, OptionsError, StorageError

# Flags of `os.open` that not every system has.
BINARY = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0)
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)

_WAYS_OUT = {
    "ENAMETOOLONG": "choose a shorter path",
    "ENOSPC": "free some space",
    "EDQUOT": "free some space, or raise the quota",
    "EFBIG": "raise the file size limit (ulimit -f), or choose another file system",
    "EROFS": "choose a place that can be written to",
    "EACCES": "change the permissions, or choose another place",
    "EPERM": "change the permissions, or choose another place",
    "EMFILE": "raise the limit of open files (ulimit -n)",
    "ENFILE": "raise the system's limit of open files",
    "ENOLCK": "choose a place on a file system that supports locks",
    "ENOTDIR": "choose a path that leads through folders only",
}


def require_threads(what: str) -> None:
    """Raise `EventLoopError` in an interpreter without daemon threads, as isolated subinterpreters are by default."""
    are_allowed = getattr(_thread, "daemon_threads_allowed", None)  # from Python 3.12 on
    if are_allowed is not None and not are_allowed():
        raise EventLoopError(
            f"{what} needs daemon threads, and this subinterpreter allows none: use the main interpreter, another thread, "
            "or a pool of processes"
        )


def start_daemon(work: Callable[[], None], name: str) -> None:
    """Start a daemon thread for a store or a fleet. Raises `StorageError`, with advice, if no thread can be started."""
    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    except RuntimeError as error:
        raise StorageError(
            f"the thread {name!r} cannot be started ({error}): raise the limit of threads (ulimit -u), or leave the "
            "subinterpreter"
        ) from error


def os_reason(error: OSError) -> str:
    """The system's message for the error and, if a person can fix it, how."""
    way_out = _WAYS_OUT.get(errno.errorcode.get(error.errno or 0, ""))
    reason = error.strerror or str(error)
    return reason if way_out is None else f"{reason}; {way_out}"


def more_room() -> str:
    """Advice on how to make room for the rest of a file that was written in part."""
    try:
        import resource  # here: Windows has none, and no such limit
    except ImportError:
        return "free some space"
    is_limited = resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
    return "raise the file size limit (ulimit -f)" if is_limited else "free some space"


def reason_of(error: Exception) -> str:
    """The message of an error that occurred while a file was read; for an `OSError`, as in `os_reason`, without the path."""
    return os_reason(error) if isinstance(error, OSError) else str(error)


def user_home() -> str:
    """The user's home folder; otherwise a path below which nothing can exist, so that nothing is read there.

    The home of another user, which HOME names after `sudo -u` and the like, does not count.
    """
    home = os.path.expanduser("~")
    try:
        os.stat(os.path.join(home, "."))
    except PermissionError:
        return os.devnull
    except (OSError, ValueError):  # a missing one can be created
        pass
    return home if os.path.isabs(home) else os.devnull


def working_dir() -> str:
    """The working folder of this process. Raises `OptionsError` if it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise OptionsError("the working directory of this process has been removed: pass another one as cwd") from error


def user_name() -> str:
    """The user of this process according to the system; environment variables cannot be trusted."""
    if sys.platform == "win32":
        return os.getlogin()
    import pwd

    with contextlib.suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    return f"uid {os.getuid()}"
