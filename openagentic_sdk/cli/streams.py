"""The standard streams of a process: one that is closed at its start, and one whose reader leaves."""

from __future__ import annotations

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

    Make the others blocking: the program that started this process may have set them otherwise, and a full pipe would then
    be an error.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for as long as the process lives
        elif sys.platform != "win32":
            with suppress(OSError, ValueError, AttributeError):  # a stream of an embedding program may have no file
                os.set_blocking(getattr(sys, name).fileno(), True)


def read_stdin() -> str:
    """All of standard input. Raises `OptionsError` if it is too long."""
    text = sys.stdin.read(MAX_INPUT_CHARS + 1)
    if len(text) > MAX_INPUT_CHARS:
        raise OptionsError(
            f"standard input is longer than {MAX_INPUT_CHARS:,} characters: write it to a file, and name that in the prompt"
        )
    return text


def flush_or_discard(stream: TextIO) -> OSError | None:
    """Write what a stream still holds; return the error if that fails.

    A stream that fails is then connected to the null device, so that the interpreter's last flush does not complain.
    """
    try:
        stream.flush()
    except OSError as error:
        with suppress(OSError):  # a stream of an embedding program may have no file
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return error
    return None


def restore_terminal(terminal: int, mode: list[Any], marks: bytes = b"") -> None:
    """Give a terminal back in this mode, after these codes; do nothing if it is gone or the shell has it already."""
    import termios  # here: Windows has none, and no such terminals

    with suppress(OSError, termios.error):
        if os.tcgetpgrp(terminal) == os.getpgrp():  # otherwise SIGTTOU would stop this process
            os.write(sys.stdout.fileno(), marks)
            termios.tcsetattr(terminal, termios.TCSANOW, mode)


@contextmanager
def kept_terminal() -> Iterator[None]:
    """Restore the mode of the terminal at stdin before a signal ends the process: Python's line editor changes it."""
    if not sys.stdin.isatty() or sys.platform == "win32":
        yield
        return
    import termios

    terminal = sys.stdin.fileno()
    mode = termios.tcgetattr(terminal)
    with restored_at_death(lambda: restore_terminal(terminal, mode)):
        yield
