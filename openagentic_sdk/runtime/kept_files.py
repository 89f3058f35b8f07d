"""Keep what files are before a call of this run changes them, so that `sessions.undo` can put them back."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from ..errors import StorageError, ToolError
from ..events import FileKept
from ..files import read_snapshot
from .agent import Run
from .tool_output import put_blob

# A larger file, and what one call changes beyond so many, is changed all the same; its event says that it was not kept.
MAX_KEPT_BYTES = 128 << 20
MAX_KEPT_FILES = 500


def file_keeper(run: Run, tool_use_id: str) -> Callable[[Sequence[str]], None]:
    """What a tool calls, in its thread, with the resolved paths of the files that it is about to change.

    When it returns, a `file.kept` of each that this run changes for the first time is on disk. Raises `StorageError`.
    """
    loop = asyncio.get_running_loop()

    def on_loop(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def kept(path: str, number: int) -> FileKept:
        try:
            before = read_snapshot(path, MAX_KEPT_BYTES)
            if before is None:
                return FileKept(tool_use_id, path)
            if number >= MAX_KEPT_FILES:
                raise ToolError(f"one call changed more than {MAX_KEPT_FILES} files")
            sha256 = on_loop(put_blob(run, before.data))
        except (ToolError, OSError) as error:
            return FileKept(tool_use_id, path, problem=str(error))
        except StorageError as error:
            if run.agent.on_storage_error == "stop":
                raise
            return FileKept(tool_use_id, path, problem=str(error))
        return FileKept(tool_use_id, path, sha256, stat.S_IMODE(before.status.st_mode))

    def keep_files(paths: Sequence[str]) -> None:
        new = [path for path in dict.fromkeys(paths) if path not in run.kept_files]
        if new:
            on_loop(run.record(*[kept(path, number) for number, path in enumerate(new)]))
            run.kept_files.update(new)

    return keep_files
