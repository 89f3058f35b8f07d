"""Subagents that work while the conversation continues, and the tool that fetches their results.

They belong to the run: those still running at its end are cancelled, and the end of the run waits for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from ...errors import OpenAgentSdkError, ToolInputError
from ...events import StopReason, ToolResult, ToolUse
from ...ground.frozen import frozen
from ...ground.text import existing
from ...kernel.tool import RunResources, ToolContext
from ..base import Tool
from ..labels import OWN_SESSION
from ..schema import number, object_schema, string

MAX_WAIT_S = 600.0
END_LIMIT_S = 30.0


@frozen
class SubagentResult:
    """The result of a subagent: its last text, its session, and why it ended (see `Result.stop_reason`)."""

    final_text: str
    child_session_id: str
    stop_reason: StopReason
    error_message: str | None = None


@frozen
class BackgroundTask:
    """One subagent in the background, which runs or has ended."""

    agent: str
    task: asyncio.Task[SubagentResult]


class RunTasks:
    """The background subagents of one run."""

    def __init__(self) -> None:
        self._tasks: dict[str, BackgroundTask] = {}

    def start(self, agent: str, work: Coroutine[Any, Any, SubagentResult], task_id: str | None = None) -> str:
        """Start a subagent and return its task's id: `task_id`, from an earlier run of the session, or a new one."""
        number = len(self._tasks) + 1
        while f"task_{number}" in self._tasks:  # an earlier run of the session may have used it
            number += 1
        task_id = task_id or f"task_{number}"
        task = asyncio.create_task(work, name=f"{agent} ({task_id})")
        # Retrieve the error, because the result may never be fetched.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self._tasks[task_id] = BackgroundTask(agent, task)
        return task_id

    def put(self, task_id: str, agent: str, done: SubagentResult) -> None:
        """Register a subagent that an earlier run of the session started, and that has ended by now."""

        async def result() -> SubagentResult:
            return done

        self._tasks[task_id] = BackgroundTask(agent, asyncio.create_task(result()))

    def get(self, task_id: str) -> BackgroundTask:
        if task_id not in self._tasks:
            task_ids = existing("tasks", self._tasks, "in this run")
            raise ToolInputError(f"unknown task {task_id!r}: {task_ids}", path="task_id")
        return self._tasks[task_id]

    def close(self) -> None:
        """Cancel the running subagents and wait for their end, up to `END_LIMIT_S` seconds each.

        Call this outside the loop's thread, or after the loop has ended.
        """
        tasks = [background.task for background in self._tasks.values() if not background.task.done()]
        self._tasks.clear()
        try:
            current = asyncio.get_running_loop()
        except RuntimeError:
            current = None
        for task in tasks:
            loop = task.get_loop()
            if loop.is_running() and loop is not current:
                asyncio.run_coroutine_threadsafe(_end(task), loop).result(END_LIMIT_S)
            elif not loop.is_closed():
                task.cancel()


async def _end(task: asyncio.Task[SubagentResult]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # retrieve it, so that asyncio does not warn


def run_tasks(ctx: ToolContext) -> RunTasks:
    """The background subagents of this call's run."""
    return ctx.services.get(RunResources).get(RunTasks)


def running_task(use: ToolUse, result: ToolResult | None) -> str | None:
    """The id of the background task that a call started; None for any other call."""
    output = None if result is None else result.output
    task_id = output.get("task_id") if isinstance(output, Mapping) and use.input.get("background") is True else None
    return task_id if isinstance(task_id, str) else None


def describe_result(agent: str, done: SubagentResult) -> dict[str, Any]:
    """A subagent's result in the model's format; `result` duplicates `final_text`."""
    output = {
        "agent": agent,
        "child_session_id": done.child_session_id,
        "final_text": done.final_text,
        "result": done.final_text,
        "stop_reason": done.stop_reason,
    }
    if done.error_message is not None:
        output["error_message"] = done.error_message
    return output


class TaskOutputTool(Tool):
    """A tool that returns `{"task_id", "agent", "status"}` of a subagent in the background.

    `status` is `running`, `failed` (with `error_message`) or `done` (with the result of Task).
    """

    name = "TaskOutput"
    labels = OWN_SESSION
    description = (
        "Fetch the result of a subagent that was started in the background, or learn that it still works. With `wait_s` "
        "the call waits that long for the end."
    )
    input_schema = object_schema(
        {
            "task_id": string("What Task returned as `task_id`."),
            "wait_s": number("Seconds to wait for the end; 0 when left out.", minimum=0, maximum=MAX_WAIT_S),
        },
        required=["task_id"],
    )
    effect = "read"
    allowed_callers = ("direct",)

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> dict[str, Any]:
        background = run_tasks(ctx).get(input["task_id"])
        # Not awaited itself: if this call is cancelled, the subagent continues.
        await asyncio.wait({background.task}, timeout=input.get("wait_s", 0))
        return {"task_id": input["task_id"], "agent": background.agent, **_state(background)}


def _state(background: BackgroundTask) -> dict[str, Any]:
    if not background.task.done():
        return {"status": "running"}
    if background.task.cancelled():
        return {"status": "failed", "error_message": "the subagent was cancelled"}
    error = background.task.exception()
    if error is None:
        return {"status": "done", **describe_result(background.agent, background.task.result())}
    if isinstance(error, OpenAgentSdkError):
        return {"status": "failed", "error_message": str(error)}
    raise error
