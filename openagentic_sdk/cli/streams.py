"""The standard streams of a process, even if one was closed before its start, or its reader has gone."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from ..errors import OptionsError
from ..ground.signals import restored_at_death

MAX_INPUT_CHARS = 16 << 20


def open_streams() -> None:
    """Open the null device for a standard stream that was closed at the start of the process; Python has None for it.

    What is printed on a closed stdout is lost, so printing fails, as with GNU's tools, and a command that prints nothing
    succeeds: for stdout, the null device is therefore open for reading only. A closed stdin is empty, and a closed stderr is
    ignored.

    Open streams are made blocking: the program that started this process may have made them non-blocking, and a full pipe
    would then be an error.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            access = os.O_WRONLY if name == "stderr" else os.O_RDONLY
            # Without a `with`: it stays open as long as the process lives.
            setattr(sys, name, open(os.open(os.devnull, access), mode, encoding="utf-8"))  # noqa: SIM115
        elif sys.platform != "win32":
            with suppress(OSError, ValueError, AttributeError):  # a stream of an embedding program may have no file
                os.set_blocking(getattr(sys, name).fileno(), True)


def read_stdin() -> str:
    """Read all of standard input. Raises `OptionsError` if it is too long."""
    text = sys.stdin.read(MAX_INPUT_CHARS + 1)
    if len(text) > MAX_INPUT_CHARS:
        raise OptionsError(
            f"standard input is longer than {MAX_INPUT_CHARS:,} characters: write it to a file, and name that in the prompt"
        )
    return text


def flush_or_discard(stream: TextIO) -> OSError | None:
    """Flush a stream; return the error if that fails.

    A stream that fails is then connected to the null device, so that the interpreter's last flush does not complain.
    """
    try:
        stream.flush()
    except OSError as error:
        with suppress(OSError):  # a stream of an embedding program may have no file
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return error
    return None


class ServiceNotes:
    """The notes that a service prints on stdout; a failed write must not end the service."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._error: OSError | None = None

    @contextmanager
    def written(self) -> Iterator[None]:
        """Flush what the block prints, and keep the error for `check` if writing fails."""
        try:
            yield
            sys.stdout.flush()
        except OSError as error:
            self._error = error

    def check(self) -> None:
        """Raise the error of an output that somebody will read, such as a file on a full disk.

        Nothing is raised if nobody would read the output: the reader has gone, or stdout or its terminal was closed.
        """
        error = flush_or_discard(sys.stdout) or self._error
        unread = {errno.EPIPE, errno.EBADF, *((errno.EIO,) if self._is_terminal else ())}
        if error is not None and error.errno not in unread:
            raise error


def restore_terminal(terminal: int, mode: list[Any], marks: bytes = b"") -> None:
    """Write these codes to stdout and set the terminal's mode; do nothing if it is gone or the shell already controls it."""
    import termios  # here: Windows has none, and no such terminals

    with suppress(OSError, termios.error):
        if os.tcgetpgrp(terminal) == os.getpgrp():  # otherwise SIGTTOU would stop this process
            os.write(sys.stdout.fileno(), marks)
            termios.tcsetattr(terminal, termios.TCSANOW, mode)


@contextmanager
def kept_terminal() -> Iterator[None]:
    """If a signal ends the process during the block, restore stdin's terminal mode, which Python's line editor changes."""
    if not sys.stdin.isatty() or sys.platform == "win32":
        yield
        return
    import termios

    terminal = sys.stdin.fileno()
    mode = termios.tcgetattr(terminal)
    with restored_at_death(lambda: restore_terminal(terminal, mode)):
        yield
