"""Erase from session files: one log atomically replaces another, and no file beside it keeps the erased data."""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections.abc import Collection, Sequence
from pathlib import Path

from ...errors import StorageError
from ...ground.clock import Clock
from ...ground.disk import Disk, make_folder, remove_tree, write_durably
from ...ground.system import BINARY, NO_FOLLOW, os_reason
from ..arguments import DIGEST
from ..base import SessionStore
from ..rewriting import OUTPUT_NAME, Rewrite
from .checkpoint_file import CHECKPOINT_NAME
from .file import seal_events
from .folder import BLOBS_NAME, LOG_NAME, META_NAME, SUMMARY_NAME, is_session_folder, storage_errors, sweep_unfinished
from .scan import START
from .summary_beside import LOST
from .unsynced import MARK, replace_log

OUTPUTS_NAME = "outputs"  # where tools store outputs that are too long for an event
_OURS = (LOG_NAME, META_NAME, SUMMARY_NAME, BLOBS_NAME)


class RewritingFiles(SessionStore):
    """The erasing methods of `FileSessionStore`."""

    root_dir: Path
    _disk: Disk
    _clock: Clock

    @abstractmethod
    def session_dir(self, session_id: str) -> Path:
        """The session's folder. Raises `SessionNotFoundError`."""

    def rewrite_events(self, session_id: str, change: Rewrite) -> None:
        """Like `SessionStore.rewrite_events`; the new log is synced before it replaces the old one."""
        # As the session's writer: nobody may append to the old log after it has been read.
        with self.open_writer(session_id), storage_errors(session_id, "cannot be rewritten"):
            folder = self.session_dir(session_id)
            events = self.read_events(session_id)
            changed = change(events)
            lines = seal_events((changed.get(event.seq or 0, event) for event in events), START, self._clock.now())
            # Caches of the previous log, which contain its texts.
            stale = [folder / SUMMARY_NAME, folder / CHECKPOINT_NAME]
            self._disk.close(replace_log(self._disk, folder / LOG_NAME, lines, stale=stale))

    def delete_blobs(self, session_id: str, digests: Collection[str]) -> None:
        folder = self.session_dir(session_id) / BLOBS_NAME
        with storage_errors(session_id, "has a blob that cannot be deleted"):
            # The digests come from events: one that is not a digest could be a path that leads out of the folder.
            for name in filter(DIGEST.fullmatch, digests):
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(str(folder / name))
            if folder.is_dir():
                self._disk.fsync_folder(str(folder))

    def list_outputs(self, session_id: str) -> Sequence[str]:
        folder = self.session_dir(session_id) / OUTPUTS_NAME
        with storage_errors(session_id, "has outputs that cannot be listed"):
            return sorted(path.name for path in folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else ()

    def read_output(self, session_id: str, name: str) -> bytes:
        with storage_errors(session_id, f"has an output, {name}, that cannot be read"):
            path = self.session_dir(session_id) / OUTPUTS_NAME / name
            with os.fdopen(self._disk.open(str(path), os.O_RDONLY | BINARY | NO_FOLLOW), "rb") as file:
                return file.read()

    def add_output(self, session_id: str, name: str, data: bytes) -> None:
        folder = self.session_dir(session_id) / OUTPUTS_NAME
        with storage_errors(session_id, "cannot store an output"):
            if OUTPUT_NAME.fullmatch(name) is None:  # it comes from an archive, and could lead out of the folder
                raise StorageError(f"an output of session {session_id!r} cannot be called {name!r:.200}")
            make_folder(self._disk, folder, sync=True)
            write_durably(self._disk, folder / name, data)

    def delete_outputs(self, session_id: str, names: Collection[str]) -> None:
        with storage_errors(session_id, "has an output that cannot be deleted"):
            for name in set(names) & set(self.list_outputs(session_id)):
                self._disk.unlink(str(self.session_dir(session_id) / OUTPUTS_NAME / name))

    def scrub(self, *session_ids: str) -> Sequence[str]:
        """Remove what crashes and damage left: files that are not part of the session, and the contents of files about
        lost events, which may contain parts of any line. Raises `StorageError`.
        """
        sessions = self.root_dir / "sessions"
        try:
            sweep_unfinished(sessions)
            # A deletion renames the folder first; a crash before its removal leaves the whole session under this name.
            for doomed in sessions.glob(".deleted-*"):
                remove_tree(doomed)
        except OSError as error:
            raise StorageError(
                f"remains of deleted or unfinished sessions in {sessions} cannot be removed: {os_reason(error)}"
            ) from error
        for session_id in session_ids:
            self._scrub_folder(session_id, sessions / session_id)
        return ()

    def _scrub_folder(self, session_id: str, folder: Path) -> None:
        with storage_errors(session_id, "cannot be cleaned up"):
            for path in (*folder.iterdir(), *(folder / BLOBS_NAME).glob("*")) if is_session_folder(folder) else ():
                # Its name is the evidence that the log lost events; its content may be what is to be erased.
                if path.name.startswith(f"{SUMMARY_NAME}{LOST}"):
                    os.truncate(path, 0)
                elif path.name.startswith(LOG_NAME + MARK):
                    pass  # the mark of a failed sync is needed until the log is renewed
                elif path.name not in _OURS and not DIGEST.fullmatch(path.name) and not path.is_dir():
                    self._disk.unlink(str(path))
            folders = [path for path in (folder, folder / BLOBS_NAME) if path.is_dir()]
            for path in folders:
                self._disk.fsync_folder(str(path))
