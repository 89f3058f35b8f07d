"""The context of one call: where it runs, and the services of its run that a tool may use."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..events import Event, ToolUse, UserQuestion
from .agent import Run
from .gate import Gate
from .tool import Blobs, PathRules, Questions, SessionLog, ToolContext
from .tool_output import put_blob


class _RunLog(SessionLog):
    """The log of a run's session."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def events(self) -> list[Event]:
        return list(self._run.view.events)

    async def record(self, *events: Event) -> None:
        await self._run.record(*events)

    async def show(self, event: Event) -> None:
        await self._run.recorder.show(event)


class _ToolQuestions(Questions):
    """Questions to the person behind a run."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def reach_anybody(self, ctx: ToolContext) -> bool:
        return self._run.can_ask or self._run.view.has_answer(ctx.tool_use_id or "")

    async def ask(
        self, ctx: ToolContext, prompt: str, choices: Sequence[str] = (), details: Mapping[str, Any] | None = None
    ) -> str:
        # The base class raises the error that explains how somebody can be asked.
        if not self.reach_anybody(ctx):
            return await super().ask(ctx, prompt, choices)
        question_id = os.urandom(16).hex()
        question = UserQuestion(question_id, prompt, tuple(choices), "question", ctx.tool_use_id, details or {})
        return (await self._run.questions.ask(question)).answer


class _GateRules(PathRules):
    """The rules of the gate that judges a run's next call."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._filter: tuple[Gate, Callable[[str], bool] | None] | None = None

    async def permits(self, ctx: ToolContext, path: str, *, write: bool = False) -> bool:
        run = self._run
        permitted: bool = await run.gate.permits_path(path, write, run.gate_context(ctx.tool_use_id or ""))
        return permitted

    def read_filter(self) -> Callable[[str], bool] | None:
        gate, agent = self._run.gate, self._run.agent
        if self._filter is None or self._filter[0] is not gate:
            # Kept while the gate is the same: a filter compiles the patterns of its rules once, for the first path.
            self._filter = gate, gate.read_filter(agent.cwd, agent.workspace_roots)
        return self._filter[1]


class _StoredBlobs(Blobs):
    def __init__(self, run: Run) -> None:
        self._run = run

    def read(self, digest: str) -> bytes:
        return self._run.agent.store.read_blob(self._run.session_id, digest)

    async def keep(self, data: bytes) -> str:
        return await put_blob(self._run, data)


def run_services(run: Run) -> Mapping[type, object]:
    """The services that the kernel offers to the tools of a run, and the folds over its log."""
    return {
        **{kind: run.view.fold(kind) for kind in run.agent.folds},
        SessionLog: _RunLog(run),
        Questions: _ToolQuestions(run),
        PathRules: _GateRules(run),
        Blobs: _StoredBlobs(run),
    }


def tool_context(run: Run, use: ToolUse) -> ToolContext:
    """The context of one call of a run."""
    agent = run.agent
    return ToolContext(
        cwd=agent.cwd,
        project_dir=agent.project_dir,
        workspace_roots=agent.workspace_roots,
        session_id=run.session_id,
        session_dir=run.session_dir,
        tool_use_id=use.tool_use_id,
        idempotency_key=f"{run.session_id}:{use.tool_use_id}",
        agent_name=agent.name,
        seq=use.seq,
        services=run.parts.services,
    )
