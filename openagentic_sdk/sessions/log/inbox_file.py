"""Messages to the runs of the sessions in a folder: one small file with all waiting messages, replaced by each change."""

from __future__ import annotations

import contextlib
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ...errors import InvalidEventError, StorageError
from ...ground.disk import Disk, make_folder, write_durably
from ...serialization import dumps_json, loads_json
from ..arguments import cut_number, cut_numbers
from ..inbox import MAX_WAITING, InboxMessage, dumps_message, full_inbox, loads_message
from .folder import folder_lock, path_in, storage_errors
from .rewriting import RewritingFiles

# The number, the session's id and the text of each message.
_Waiting: TypeAlias = list[tuple[int, str, str]]


class InboxFile:
    """The inbox in a folder, created with the first message. Its methods raise `OSError` and `StorageError`.

    The file also stores the highest number ever assigned, so that numbers only increase.
    """

    def __init__(self, disk: Disk, folder: Path, *, sync: bool) -> None:
        self._disk, self._folder, self._sync = disk, folder, sync
        self._path = path_in(folder, "messages.json")
        self._guard = threading.Lock()

    def read(self) -> list[InboxMessage]:
        """Return all waiting messages, oldest first. Raises `StorageError` for an invalid file."""
        return [loads_message(*each) for each in self._read()[1]]

    def put(self, session_id: str, text: str, check: Callable[[], object]) -> int:
        """Add a message; return its number. `check`, called under the lock, raises if the session cannot receive it."""
        if not self._folder.is_dir():
            make_folder(self._disk, self._folder, sync=self._sync)
        with self._guard, folder_lock(self._folder):
            check()
            last, waiting = self._read()
            # The whole file is rewritten for each message, so its size must be bounded.
            if sum(name == session_id for _, name, _ in waiting) >= MAX_WAITING:
                raise full_inbox(session_id)
            self._write(last + 1, [*waiting, (last + 1, session_id, text)])
            return last + 1

    def remove(self, numbers: Collection[int]) -> None:
        """Remove the messages with these numbers; unknown numbers are ignored."""
        with self.without(lambda each: each[0] in numbers):
            return

    @contextlib.contextmanager
    def without(self, is_doomed: Callable[[tuple[int, str, str]], bool]) -> Iterator[None]:
        """Remove the messages that `is_doomed` selects, and keep the inbox locked during the block."""
        if not self._folder.is_dir():
            yield
            return
        with self._guard, folder_lock(self._folder):
            last, waiting = self._read()
            remaining = [each for each in waiting if not is_doomed(each)]
            if len(remaining) < len(waiting):
                self._write(last, remaining)
            yield

    def _read(self) -> tuple[int, _Waiting]:
        try:
            inbox = loads_json(self._path.read_bytes())
            return int(inbox["last"]), [(int(number), str(name), str(text)) for number, name, text in inbox["waiting"]]
        except FileNotFoundError:
            # No message was ever stored. Nothing removes the file, because its numbers must not start again.
            return 0, []
        except (InvalidEventError, KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"{self._path} is not a valid inbox ({error}): move the file away to accept new messages"
            ) from error

    def _write(self, last: int, waiting: _Waiting) -> None:
        data = dumps_json({"last": last, "waiting": waiting}).encode("ascii")
        write_durably(self._disk, self._path, data, sync=self._sync)


class MessageFiles(RewritingFiles):
    """The inbox methods of `FileSessionStore`."""

    has_inbox = True
    read_only: bool
    _inbox: InboxFile

    @abstractmethod
    def _refuse_when_read_only(self, session_id: str) -> None:
        """Raise `StorageError` if the store is read-only."""

    def put_message(self, session_id: str, message: Mapping[str, Any]) -> int:
        self._refuse_when_read_only(session_id)
        text = dumps_message(message)
        self.session_dir(session_id)
        with storage_errors(session_id, "cannot store a message"):
            # Checked again under the inbox's lock: a deletion in between removes its messages under the same lock.
            return self._inbox.put(session_id, text, lambda: self.session_dir(session_id))

    def read_messages(self, session_ids: Collection[str], *, after: int = 0) -> list[InboxMessage]:
        after = cut_number("after", after)
        ids = set(session_ids)
        with storage_errors("", "the messages of this store cannot be read"):
            return [each for each in self._inbox.read() if each.number > after and each.session_id in ids]

    def remove_messages(self, numbers: Collection[int]) -> None:
        numbers = cut_numbers(numbers)
        if numbers and not self.read_only:
            with storage_errors("", "the messages of this store cannot be removed"):
                self._inbox.remove(numbers)
