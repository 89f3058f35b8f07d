"""The standard streams of a process: one that is closed at its start, and one whose reader leaves."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO


def open_streams() -> None:
    """Open the null device for a standard stream that was closed at the start of the process; Python has None for it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for as long as the process lives


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
