"""Translate permission rules into the file access of commands, for the sandbox and for the gate's decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from ..errors import ToolError
from ..ground.threads import run_in_thread
from ..kernel.agent import Run
from ..kernel.gate import CallContext
from ..kernel.part import Part
from ..kernel.tool import ToolContext
from ..permissions.gate import PermissionGate
from ..tools.bash import BashTool
from ..tools.shell.file_policy import CommandRules, FilePolicy
from ..tools.shell.sandbox_plan import probe_sandbox

_SHELL = "Bash"


class Confinement(Part):
    """A part with the sandbox mode and file rules for a run's commands.

    Without it, they run as their tool is set up, without rules.
    """

    def __init__(self, run: Run, sandbox: Literal["off", "auto", "require"]) -> None:
        super().__init__(run)
        self._rules = _RulesOfRun(run, sandbox)

    def services(self) -> Mapping[type, object]:
        return {CommandRules: self._rules}

    async def before_step(self) -> None:
        """Set aside the files that background shells, now ended, created in protected places."""
        if self._rules.before_step is not None:
            await run_in_thread(self._rules.before_step)

    def tell_gate(self, context: CallContext, tool: str | None) -> CallContext:
        if tool != _SHELL or _SHELL not in self.run.agent.tools:
            return context
        bash = self.run.agent.tools.get(_SHELL)
        if not isinstance(bash, BashTool) or bash.sandbox_under(self._rules).mode == "off":
            return context
        try:
            report = probe_sandbox()
        except ToolError:  # the call is decided as if unconfined, and refused when it would start
            return context
        return replace(context, confined=report.level) if report.is_mounted else context


class _RulesOfRun(CommandRules):
    """The file rules for a run's commands, from the gate that is in force when a command starts."""

    def __init__(self, run: Run, sandbox: Literal["off", "auto", "require"]) -> None:
        self._run = run
        self.sandbox = sandbox

    def policy(self, ctx: ToolContext, command: str) -> FilePolicy:
        run, gate = self._run, self._run.gate
        if not isinstance(gate, PermissionGate):
            return super().policy(ctx, command)
        record = run.view.calls.get(ctx.tool_use_id or "")
        decision = None if record is None else record.decision
        was_asked = decision is not None and decision.answered_by is not None
        context = run.gate_context(ctx.tool_use_id or "", tool=_SHELL)
        policy = gate.file_policy(command, context, asked=was_asked)
        if policy.problem is not None:
            raise ToolError(policy.problem)
        return policy
