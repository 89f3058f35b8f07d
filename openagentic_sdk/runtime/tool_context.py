"""What one call is given: the session's services, cut down to what a tool may use."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..errors import ToolError
from ..events import Event, SkillActivated, ToolResult, ToolUse, UserQuestion
from ..skills.text_commands import Draft
from ..tools.base import SubagentResult, Tool, ToolContext, may_read_all
from .agent import Run
from .kept_files import file_keeper
from .tool_output import put_blob


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

    async def spawn(name: str, prompt: str) -> SubagentResult:
        _check_depth(run)
        return await run.spawn(run, use.tool_use_id, name, prompt, ())

    async def run_skill(name: str, prompt: str, skill: SkillActivated) -> SubagentResult:
        _check_depth(run)
        return await run.run_skill(run, use.tool_use_id, name, prompt, skill)

    async def permits_path(path: str, write: bool) -> bool:
        permitted: bool = await run.gate.permits_path(path, write, run.gate_context(use.tool_use_id))
        return permitted

    async def fill_text(draft: Draft) -> str:
        return await run.fill_text(run, draft, use.tool_use_id)

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
        observed_files=run.view.observed_files,
        seq=use.seq,
        untrusted=run.view.untrusted,
        history=run.view.history,
        record=record,
        show=run.recorder.show,
        ask_user=ask if run.can_ask else None,
        spawn=spawn,
        permits_path=permits_path,
        may_read=run.read_filter[1],
        read_blob=lambda sha256: agent.store.read_blob(run.session_id, sha256),
        keep_files=file_keeper(run, use.tool_use_id),
        redact=agent.redact,
        fill_text=fill_text,
        run_skill=run_skill,
        accept_answer=lambda value: run.answer.accept(value),
        run_resources=run.resources,
        call_tool=None if inside is None else inside.make,
        callable_tools=tuple if inside is None else inside.tools,
        keep_blob=lambda data: put_blob(run, data),
    )


def _check_depth(run: Run) -> None:
    if run.depth >= run.agent.max_subagent_depth:
        raise ToolError(
            f"subagents may be {run.agent.max_subagent_depth} deep and this one is: do the work here instead"
        )
