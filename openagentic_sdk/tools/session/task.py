"""Delegate a task to a subagent, which has its own session and context.

Building and running a subagent is up to the part of a run that offers `Subagents`: this tool only checks the name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import ToolError, ToolInputError
from ...events import Event
from ...ground.text import existing
from ...kernel.agent import AgentRuntime
from ...kernel.tool import ToolContext, ToolOutput
from ..base import Tool
from ..labels import OWN_SESSION
from ..schema import boolean, object_schema, string
from .background_tasks import SubagentResult, describe_result, run_tasks

BuildSubagent = Callable[[AgentRuntime], AgentRuntime]


class Subagents:
    """A service that starts subagents for calls."""

    async def spawn(
        self, tool_use_id: str, name: str, prompt: str, events: Sequence[Event] = (), build: BuildSubagent | None = None
    ) -> SubagentResult:
        """Run a subagent to its end, for this call.

        `events` are recorded after the subagent's prompt, for example the activation of a skill. `build` creates an agent
        without a definition from the agent that starts it. A call left open by an earlier process continues with its
        subagent. Raises `ToolError` if there is no agent of this name or none may be started, and `UnknownOutcomeError` if
        that subagent cannot continue.
        """
        raise NotImplementedError


class TaskTool(Tool):
    """A tool that runs a subagent and returns `{"agent", "child_session_id", "final_text", "result", "stop_reason"}`.

    `result` duplicates `final_text`. `agents` maps the available names to their purposes. A subagent that ended with an
    error produces an error result with the same fields. With `background` a model may also start one without waiting: the
    call then returns `{"agent", "task_id", "status"}` at once, and `TaskOutputTool` fetches the rest.
    """

    name = "Task"
    labels = OWN_SESSION
    effect = "idempotent"  # a repeated call continues its subagent
    allowed_callers = ("direct",)

    def __init__(self, agents: Mapping[str, str] | None = None, *, background: bool = False) -> None:
        self.agents = dict(agents or {})
        self._offers_background = background
        lines = [
            "Start a subagent on a piece of work of its own. It sees only `prompt`, nothing of this conversation, and "
            "returns one text: say everything it needs and what to give back. Calls of one answer run at the same time.",
            "Agents:",
            *(f"- {name}: {purpose}" for name, purpose in self.agents.items()),
        ]
        self.description = "\n".join(lines) if self.agents else f"{lines[0]}\nThere are no agents here."
        agent = string("The agent's name.")
        if self.agents:
            agent["enum"] = list(self.agents)
        prompt = string("The work, with all that the agent must know.", minLength=1)
        properties = {"agent": agent, "prompt": prompt}
        if background:
            properties["background"] = boolean(
                "Return at once with a `task_id`, and fetch the result with TaskOutput; "
                "what still works ends with this run."
            )
        self.input_schema = object_schema(properties, required=["agent", "prompt"])

    @property
    def parallel(self) -> bool:
        return True

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> dict[str, Any] | ToolOutput:
        agent = input.get("agent")
        if isinstance(agent, str) and agent not in self.agents:
            raise ToolInputError(f"unknown agent {agent!r}: {existing('agents', sorted(self.agents))}", path="agent")
        subagents = ctx.services.find(Subagents)
        if subagents is None:
            raise ToolError("no subagent can be started here: do the work yourself, in this conversation")
        work = subagents.spawn(ctx.tool_use_id or "", input["agent"], input["prompt"])
        if self._offers_background and input.get("background", False):
            task_id = run_tasks(ctx).start(input["agent"], work)
            return {"agent": input["agent"], "task_id": task_id, "status": "running"}
        done = await work
        return ToolOutput(describe_result(input["agent"], done), is_error=done.stop_reason == "error")
