"""Let the code that a tool call runs use the other tools of its run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

from ..errors import ToolError
from ..events import CODE_CALLER, Event, ToolResult, ToolUse
from ..ground.frozen import changed, mutable
from ..ground.threads import settled
from ..kernel.agent import Run
from ..kernel.lifetime import Stopping
from ..kernel.part import Part
from ..kernel.registry import ToolRegistry
from ..kernel.tool import BareTool, ToolContext, may_call
from ..kernel.tool_call import error_result
from ..kernel.tool_context import run_services
from ..kernel.tool_step import run_calls
from ..sessions.closing import closing_events
from ..tools.inner_calls import CallsInside, InnerCalls


@mutable
class _RunInside(Run):
    """A run as seen by the code of one of its calls: recorded events are marked as nested in that call."""

    outer_id: str = ""

    def record(self, *events: Event) -> Coroutine[Any, Any, list[Event]]:
        return super().record(*(changed(event, parent_tool_use_id=self.outer_id) for event in events))


class CodeCalls(Part, InnerCalls):
    """A part that offers `InnerCalls`, by which the code that a tool runs can call the run's other tools."""

    def services(self) -> Mapping[type, object]:
        return {InnerCalls: self}

    def inside(self, ctx: ToolContext) -> CallsInside:
        return _RecordedCallsInside(self.run, ctx.tool_use_id or "")


class _RecordedCallsInside:
    """The calls made by the code of one call: each is recorded, approved and answered like any other, but nested in it.

    Parallel tools run concurrently; any other tool runs alone. A call is refused if its question cannot be answered while
    the process waits, because the code's state cannot be parked in a log. Tools that change the model's conversation are not
    callable.
    """

    def __init__(self, run: Run, outer_id: str) -> None:
        self._outer_id, self._run = outer_id, run
        self._call_count = self._at_work = 0

    @cached_property
    def _inner(self) -> Run:
        run = self._run
        tools = [tool for tool in run.agent.tools if may_call(tool, CODE_CALLER)]
        changes = {
            "agent": replace(run.agent, tools=ToolRegistry(tools)),
            "request": replace(run.request, parks=False),
            "lifetime": replace(run.lifetime, stopping=Stopping("interrupt")),
            "helpers": [],
            "outer_id": self._outer_id,
        }
        inner = _RunInside(**{**{field.name: getattr(run, field.name) for field in fields(Run)}, **changes})
        inner.parts = run.parts.offering({**run_services(inner), InnerCalls: CodeCalls(inner)})
        inner.questions.taken_ids = run.questions.taken_ids
        run.helpers.append(inner)
        return inner

    @cached_property
    def _entrance(self) -> asyncio.Lock:
        return asyncio.Lock()

    @cached_property
    def _empty(self) -> asyncio.Event:
        empty = asyncio.Event()
        empty.set()
        return empty

    def tools(self) -> Sequence[BareTool]:
        registry = self._inner.agent.tools
        return [registry.get(name) for name in self._run.gate.offered_tools(registry.names())]

    async def make(self, name: str, input: Mapping[str, Any], labels: Mapping[str, Any] | None = None) -> ToolResult:
        inner, run = self._inner, self._run
        if run.hooks.stopped_by is not None:
            return error_result("", ToolError("a hook has ended this run: no more calls are made"))
        outer_id = self._outer_id
        self._call_count += 1
        # An earlier attempt of this call may have used these ids.
        while f"{outer_id}.{self._call_count}" in run.view.calls:
            self._call_count += 1
        if labels is not None:
            inner.notes = []  # notes that hooks add to a result inside a plan must not reach the model that wrote the plan
        caller = {"type": CODE_CALLER, "tool_use_id": outer_id, **({} if labels is None else {"labels": labels})}
        use = ToolUse(f"{outer_id}.{self._call_count}", name, input, caller=caller)
        run.children += 1
        try:
            stored_events = await inner.record(use)
            [use] = [event for event in stored_events if isinstance(event, ToolUse)]
            parallel = name in inner.agent.tools and inner.agent.tools.get(name).parallel
            async with self._turn(beside_others=parallel):
                return (await run_calls(inner, [use]))[0]
        except BaseException:  # also when cancelled: the log must not keep an open call
            closing, _ = await settled(self._close(use))
            closing.exception()  # retrieved only to avoid a warning: a failing store has already stopped the run
            raise
        finally:
            run.children -= 1
            run.hooks.stopped_by = run.hooks.stopped_by or inner.hooks.stopped_by

    @asynccontextmanager
    async def _turn(self, *, beside_others: bool) -> AsyncIterator[None]:
        # A call that must run alone holds the entrance while it runs, so that calls made after it wait for it.
        async with self._entrance:
            if not beside_others:
                await self._empty.wait()
                yield
                return
            self._at_work += 1
            self._empty.clear()
        try:
            yield
        finally:
            self._at_work -= 1
            if not self._at_work:
                self._empty.set()

    async def _close(self, use: ToolUse) -> None:
        """Record the missing events of a call that was cut short."""
        view, use_id = self._run.view, use.tool_use_id
        calls = [record for record in view.open_inner_calls() if record.use.tool_use_id == use_id]
        questions = [question for question in view.open_questions() if question.tool_use_id == use_id]
        await self._inner.record(*closing_events(calls, questions, "interrupted"))
