"""What one call is given: the session's services, cut down to what a tool may use."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from ..errors import StorageError, ToolError
from ..events import Event, FileKept, ToolResult, ToolUse, UserQuestion
from ..files import read_snapshot
from ..sessions.folds.features.observed_files import ObservedFilesFold
from ..sessions.folds.features.skills import history
from ..sessions.folds.features.untrusted import UntrustedFold
from ..tools.base import Tool, ToolContext, may_read_all
from .agent import Run
from .tool_output import put_blob

# A larger file, and what one call changes beyond so many, is changed all the same; its event says that it was not kept.
_MAX_KEPT_BYTES = 128 << 20
_MAX_KEPT_FILES = 500


class Calls(Protocol):
    """Makes calls inside of another one, and says of which tools."""

    async def make(self, name: str, input: Mapping[str, Any], /) -> ToolResult: ...

    def tools(self) -> Sequence[Tool]: ...


def tool_context(run: Run, use: ToolUse, inside: Calls | None = None) -> ToolContext:
    """The context of one call of one run; `inside` makes calls inside of it."""
    agent = run.agent

    async def record(event: Event) -> None:
        await run.record(event)

    async def ask(prompt: str, choices: tuple[str, ...], details: Mapping[str, Any] | None = None) -> str:
        question_id = os.urandom(16).hex()
        question = UserQuestion(question_id, prompt, choices, "question", use.tool_use_id, details or {})
        return (await run.ask(question)).answer

    async def permits_path(path: str, write: bool) -> bool:
        permitted: bool = await run.gate.permits_path(path, write, run.gate_context(use.tool_use_id))
        return permitted

    gate = run.gate
    if run.read_filter is None or run.read_filter[0] is not gate:
        run.read_filter = gate, gate.read_filter(agent.cwd, agent.workspace_roots) or may_read_all
    return ToolContext(
        cwd=agent.cwd,
        project_dir=agent.project_dir,
        workspace_roots=agent.workspace_roots,
        session_id=run.session_id,
        session_dir=run.session_dir,
        tool_use_id=use.tool_use_id,
        idempotency_key=f"{run.session_id}:{use.tool_use_id}",
        agent_name=agent.name,
        observed_files=run.view.fold(ObservedFilesFold).digests,
        seq=use.seq,
        untrusted=run.view.fold(UntrustedFold).sources,
        history=partial(history, run.view),
        record=record,
        show=run.recorder.show,
        ask_user=ask if run.can_ask or run.view.has_answer(use.tool_use_id) else None,
        permits_path=permits_path,
        may_read=run.read_filter[1],
        read_blob=lambda sha256: agent.store.read_blob(run.session_id, sha256),
        keep_files=_file_keeper(run, use.tool_use_id),
        redact=agent.redact,
        run_resources=run.resources,
        call_tool=None if inside is None else inside.make,
        callable_tools=tuple if inside is None else inside.tools,
        keep_blob=lambda data: put_blob(run, data),
        services=run.parts.services,
    )


def _file_keeper(run: Run, tool_use_id: str) -> Callable[[Sequence[str]], None]:
    """What a tool calls, in its thread, with the resolved paths of the files that it is about to change.

    So `sessions.undo` can put them back. When it returns, a `file.kept` of each that this run changes for the first
    time is on disk. Raises `StorageError`.
    """
    loop = asyncio.get_running_loop()

    def on_loop(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def kept(path: str, number: int) -> FileKept:
        try:
            before = read_snapshot(path, _MAX_KEPT_BYTES)
            if before is None:
                return FileKept(tool_use_id, path)
            if number >= _MAX_KEPT_FILES:
                raise ToolError(f"one call changed more than {_MAX_KEPT_FILES} files")
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
