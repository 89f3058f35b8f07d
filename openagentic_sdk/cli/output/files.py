"""Write the files that a command was asked for; an error names the file as it was typed, not a temporary one beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...ground.disk import SystemDisk, write_durably


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """During the block, raise any `OSError` with this path as its file, because the error of a full disk names none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def write_for_one(path: Path, text: str) -> None:
    """Write a file that only its owner may read (mode 0600), whatever its mode was; a device or pipe is written to as it is.

    Raises `OSError` with the path as its file.
    """
    data = text.encode("utf-8", "backslashreplace")
    with naming(path):
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            write_durably(SystemDisk(), Path(os.path.realpath(path)), data)
