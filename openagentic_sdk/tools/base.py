"""The base class of tools: input is checked against its schema, and a tool can also run from plain code.

The kernel's requirements of a tool, and what it passes to a call, are in `kernel.tool`; this module has the public names.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from contextvars import copy_context
from math import isfinite
from typing import Any

from ..errors import ToolError
from ..ground.schemas import compiled
from ..ground.threads import run_in_thread
from ..kernel.tool import (
    BareTool,
    Blobs,
    PathRules,
    Questions,
    RunResources,
    Secrets,
    Services,
    SessionLog,
    ToolContext,
    ToolOutput,
)
from .labels import ToolLabels

__all__ = [
    "Blobs",
    "BlockingTool",
    "PathRules",
    "Questions",
    "RunResources",
    "Secrets",
    "Services",
    "SessionLog",
    "Tool",
    "ToolContext",
    "ToolLabels",
    "ToolOutput",
]


class Tool(BareTool):
    """A tool that a model can call; `kernel.tool.BareTool` documents its fields.

    `labels` declares properties of the tool's inputs and results; None assumes the most cautious ones.
    """

    labels: ToolLabels | None = None

    def check_input(self, input: Mapping[str, Any], name: str = "the arguments") -> Mapping[str, Any]:
        checked: Mapping[str, Any] = compiled(self.input_schema).check(input, name)
        return checked

    def json_value(self, output: Any) -> Any:
        with suppress(RecursionError):  # a cyclic value: `to_json` reports it
            if _is_plain(output):
                return output
        from ..ground.schemas.typed import to_json  # late: most tools return JSON values

        with suppress(ToolError):  # for the rest, the kernel reports that it is not a JSON value: the call has happened
            return to_json(output)
        return output

    def run_sync(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        """Run the tool from plain code and return its output; an event loop that runs in this thread is blocked meanwhile.

        Raises `ToolInputError` for input that does not fit; `run` only receives valid input.
        """
        input = self.check_input(input)

        async def output() -> Any:
            result = await self.run(input, ctx)
            return self.json_value(result.output if isinstance(result, ToolOutput) else result)

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(output())
        with concurrent.futures.ThreadPoolExecutor(1, "openagentic-tool") as apart:
            return apart.submit(copy_context().run, asyncio.run, output()).result()


def _is_plain(value: Any) -> bool:
    """Whether JSON can represent this value unchanged."""
    kind = value.__class__
    if kind is dict:
        return all(
            key.__class__ is str and (item.__class__ in _PLAIN or _is_plain(item)) for key, item in value.items()
        )
    if kind is list:
        return all(item.__class__ in _PLAIN or _is_plain(item) for item in value)
    return kind in _PLAIN or (kind is float and isfinite(value))


_PLAIN = frozenset({str, int, bool, type(None)})


class BlockingTool(Tool):
    """A tool with blocking code; it runs in a thread of its own, so the event loop is not blocked.

    A cancelled call sets `ctx.cancelled` and waits a moment (`THREAD_MOMENT_S`) for the thread to end; then it abandons the
    thread.
    """

    @abstractmethod
    def execute(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        """Do the work, in a thread, and return the output. Long work must poll `ctx.cancelled`."""

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        return await run_in_thread(lambda: self.execute(input, ctx), ctx.cancelled)

    def run_sync(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        input = self.check_input(input)
        result = self.execute(input, ctx)
        return self.json_value(result.output if isinstance(result, ToolOutput) else result)
