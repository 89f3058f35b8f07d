"""Present servers' tools as our own: pass calls and progress between a run and a server, and ask the server's questions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from ...events import Effect, ToolProgress, ToolUse, UserQuestion
from ...ground.loose import as_mapping
from ...ground.schemas import compiled
from ...kernel.tool import BareTool, Questions, SessionLog, ToolContext
from ...sessions.folds.features.listed import definition_at
from ...tools.base import Tool
from ...tools.labels import ToolLabels
from .content import read_long_result
from .definitions import ToolDefinition, shown_name
from .server_config import McpServer
from .session import InputRound, RequestHooks

# Progress that arrives faster than anybody can read is not shown.
_PROGRESS_EVERY_S = 0.1
# After this many questions in one call, a person is asked whether to allow more.
MAX_QUESTIONS = 10


class ToolServer(Protocol):
    """A server whose tools can be called."""

    name: str
    settings: McpServer

    async def call_tool(
        self,
        tool: ToolDefinition,
        arguments: Mapping[str, Any],
        hooks: RequestHooks,
        effect: Effect,
        first_round: InputRound | None = None,
    ) -> Mapping[str, Any]: ...


class RemoteTool(Tool):
    """A tool of a server. Its effect is the one that the user declared, `unsafe` by default."""

    def __init__(self, seat: ToolServer, definition: ToolDefinition) -> None:
        self.definition = definition
        self.name = definition.shown
        self.description, self.input_schema = definition.description, definition.input_schema
        self.effect = seat.settings.effects.get(definition.name, "unsafe")
        self.labels = _remote_labels(seat, definition)
        self._seat = seat

    def unchecked(self) -> dict[str, list[str]]:
        """The schema's constraints that are not checked here (the server may check them), as a field for the log, if any."""
        problems = compiled(self.input_schema).problems
        return {"unchecked": problems} if problems else {}

    def rule_names(self, input: Mapping[str, Any]) -> tuple[str, ...]:
        return _full_name(self._seat.name, self.definition.name, self.name)

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        return await read_long_result(await self._seat.call_tool(self.definition, input, hooks_of(ctx), self.effect))

    async def reconcile(self, call: ToolUse, ctx: ToolContext) -> Any | None:
        """Continue a call that was parked because the server's question had to wait for a person; None for any other call.

        A modern server keeps no state between requests and has specified what to send again. A legacy one has forgotten the
        call: it is repeated from its start, since the person who answered wanted it to continue. If `pin` is not set, a tool
        whose definition has changed since is not called, because nobody has agreed to the new one.
        """
        events = ctx.services.get(SessionLog).events()
        called = definition_at(events, self.name, call.seq)
        if called is not None and called != self.definition.sha256 and self._seat.settings.pin is None:
            return None
        questions = [
            event
            for event in events
            if isinstance(event, UserQuestion) and event.tool_use_id == call.tool_use_id and "mcp" in event.details
        ]
        if not questions:
            return None
        resumes = as_mapping(as_mapping(questions[-1].details["mcp"]).get("resumes"))
        first_round = None
        if resumes:
            first_round = InputRound(
                resumes.get("request_state"), as_mapping(resumes.get("requests")), resumes.get("rounds", 1)
            )
        result = await self._seat.call_tool(self.definition, call.input, hooks_of(ctx), self.effect, first_round)
        return await read_long_result(result)


class OwnTool(Tool):
    """A tool of this process, offered under a server's name."""

    def __init__(self, server: str, inner: BareTool, settings: McpServer) -> None:
        self.name = shown_name(server, inner.name)
        self.description, self.input_schema = inner.description, inner.input_schema
        self.effect = settings.effects.get(inner.name, inner.effect)
        self.allowed_callers = inner.allowed_callers
        self.inner = inner
        self.labels = inner.labels if isinstance(inner, Tool) else None
        self._server = server

    @property
    def parallel(self) -> bool:
        return self.inner.parallel

    def rule_names(self, input: Mapping[str, Any]) -> tuple[str, ...]:
        return _full_name(self._server, self.inner.name, self.name)

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        return await self.inner.run(input, ctx)

    async def reconcile(self, call: ToolUse, ctx: ToolContext) -> Any | None:
        return await self.inner.reconcile(call, ctx)


def _remote_labels(seat: ToolServer, definition: ToolDefinition) -> ToolLabels:
    """The labels that the user declared for the tool, else labels from its annotations.

    Without a declaration, its arguments count as leaving the machine unless the server annotates it as read-only and
    without access to anything outside. In either case, `described_by` names the server, which wrote the description.
    """
    described_by = f"MCP: {seat.name}, in what it says of its tools"
    declared_labels = seat.settings.labels.get(definition.name)
    if declared_labels is not None:
        return replace(declared_labels, described_by=described_by)
    hints = as_mapping(definition.raw.get("annotations"))
    # `is`, not truth: a missing hint, or a text such as "false", must not count as a declaration.
    is_closed = hints.get("openWorldHint") is False and hints.get("readOnlyHint") is True
    return ToolLabels(sink=not is_closed, described_by=described_by)


def _full_name(server: str, tool: str, shown_name: str) -> tuple[str, ...]:
    full = f"mcp__{server}__{tool}"
    return () if full == shown_name else (full,)


def hooks_of(ctx: ToolContext) -> RequestHooks:
    """Create the hooks through which a server reports progress and asks questions during one call."""
    questions = ctx.services.get(Questions)
    shown_at = 0.0

    async def progress(done: float, total: float | None, message: str) -> None:
        nonlocal shown_at
        now = asyncio.get_running_loop().time()
        if now - shown_at >= _PROGRESS_EVERY_S:
            shown_at = now
            await ctx.services.get(SessionLog).show(ToolProgress(ctx.tool_use_id or "", done, total, message))

    question_count, is_agreed = 0, True

    async def ask(text: str, choices: tuple[str, ...], details: Mapping[str, Any]) -> str:
        nonlocal question_count, is_agreed
        if is_agreed and question_count and question_count % MAX_QUESTIONS == 0:
            # A parked question is found again by its text, even by a later version: do not reword it.
            about = f"A server has asked {question_count} questions in one call, and asks more. Let it go on?"
            is_agreed = await questions.ask(ctx, about, ("yes", "decline"), details) == "yes"
        question_count += 1
        return await questions.ask(ctx, text, choices, details) if is_agreed else "decline"

    return RequestHooks(progress, ask if questions.reach_anybody(ctx) else None)
