"""Keep the content of files before a call changes them, so that `parts.record.undo` can restore them."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from ..errors import StorageError, ToolError
from ..events import Event, FileKept, FilesRestoring, SystemNotice
from ..ground.files import read_snapshot
from ..kernel.agent import Run
from ..kernel.part import Part
from ..kernel.tool import Blobs, SessionLog, ToolContext
from ..tools.files.copies import FileCopies

T = TypeVar("T")

# A file above these limits (size; number per call) is changed without a copy; its event records that none was kept.
_MAX_KEPT_BYTES = 128 << 20
_MAX_KEPT_FILES = 500


class KeptFiles(Part, FileCopies):
    """A part that keeps the content that each file had before this run first changed it."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._loop = asyncio.get_running_loop()
        self._kept_paths: set[str] = set()

    def services(self) -> Mapping[type, object]:
        return {FileCopies: self}

    def opening_events(self) -> Sequence[Event]:
        last = self.run.view.events[-1:]
        text = "restoring files to their state at event {} was interrupted"
        restoring = [event for event in last if isinstance(event, FilesRestoring)]
        return [SystemNotice("files.half_restored", text.format(event.to_seq)) for event in restoring]

    def keep(self, ctx: ToolContext, paths: Sequence[str]) -> None:
        """Store each file that this run is about to change for the first time, and record a `file.kept` event for it.

        Blocks until the event loop has recorded them, so it must be called in another thread.
        """
        new = [path for path in dict.fromkeys(paths) if path not in self._kept_paths]
        if new:
            events = [self._kept_event(ctx, path, number) for number, path in enumerate(new)]
            self._on_loop(ctx.services.get(SessionLog).record(*events))
            self._kept_paths.update(new)

    def _kept_event(self, ctx: ToolContext, path: str, number: int) -> FileKept:
        use_id = ctx.tool_use_id or ""
        try:
            before = read_snapshot(path, _MAX_KEPT_BYTES)
            if before is None:
                return FileKept(use_id, path)
            if number >= _MAX_KEPT_FILES:
                raise ToolError(f"one call changed more than {_MAX_KEPT_FILES} files")
            sha256 = self._on_loop(ctx.services.get(Blobs).keep(before.data))
        except (ToolError, OSError) as error:
            return FileKept(use_id, path, problem=str(error))
        except StorageError as error:
            if self.run.agent.on_storage_error == "stop":
                raise
            return FileKept(use_id, path, problem=str(error))
        return FileKept(use_id, path, sha256, stat.S_IMODE(before.status.st_mode))

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
