"""Keep a person's data between runs (decisions, settings, tokens): one JSON object in a file that only they can read.

Several processes may change it at once: each change is made under a lock, to the file's current content. A damaged file is
never replaced, and is an error instead of counting as empty.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import StorageError
from ...ground.checks import refuse_repeated_keys
from ...ground.disk import SystemDisk, may_exist, write_durably
from ...ground.system import BINARY, reason_of
from ...sessions.log.lock import wait_for_lock
from ...skills.files import read_bytes

MAX_BYTES = 4 * 1024 * 1024


class KeptFile:
    """A file with entries below one key: `{"version": 1, "<key>": {...}}`. `version` is written, and not checked."""

    def __init__(self, path: str | os.PathLike[str], key: str, version: int = 1) -> None:
        self.path = os.path.abspath(path)
        self._key = key
        self._version = version

    def read(self) -> dict[str, Any]:
        """Read all entries; empty if there is no file. Raises `StorageError` for an unreadable or damaged file."""
        if not may_exist(self.path):
            return {}
        try:
            data = json.loads(
                read_bytes(self.path, boundary=None, max_bytes=MAX_BYTES), object_pairs_hook=refuse_repeated_keys
            )
        except (OSError, ValueError, RecursionError) as error:
            raise StorageError(
                f"{self.path} cannot be read: {reason_of(error)}; move it aside to start afresh"
            ) from error
        entries = data.get(self._key) if isinstance(data, dict) else None
        if not isinstance(entries, dict):
            raise StorageError(f"{self.path} cannot be read: it contains no {self._key}; move it aside to start afresh")
        return entries

    @contextlib.contextmanager
    def changing(self) -> Iterator[dict[str, Any]]:
        """Lock the file and yield its entries, to be changed in place; write them if the block ends without an error.

        The block must be short. Raises `StorageError` if the file cannot be locked, read or written.
        """
        with self._lock():
            before = self.read()
            # A deep copy: the block may change values inside entries, and an unchanged file is not written.
            entries = json.loads(json.dumps(before))
            yield entries
            if entries != before:
                text = json.dumps({"version": self._version, self._key: entries}, indent=1, sort_keys=True)
                try:
                    write_durably(SystemDisk(), Path(self.path), text.encode("ascii") + b"\n")
                except OSError as error:
                    raise StorageError(f"{self.path} cannot be changed: {error.strerror or error}") from error

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        folder, name = os.path.split(self.path)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            # The lock is a separate file, because each change replaces the file with the entries.
            lock_fd = os.open(os.path.join(folder, f".{name}.lock"), os.O_RDWR | os.O_CREAT | BINARY, 0o600)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be changed: {error.strerror or error}") from error
        try:
            try:
                wait_for_lock(lock_fd)
            except OSError as error:
                raise StorageError(f"{self.path} cannot be locked: {error.strerror or error}") from error
            yield
        finally:
            os.close(lock_fd)  # which releases the lock
