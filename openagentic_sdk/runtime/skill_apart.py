"""Run a skill in a subagent of its own, as its `context: fork` asks for: active there, and only there."""

from __future__ import annotations

from ..errors import ToolError
from ..events import SkillActivated, SubagentStarted, ToolUse
from ..tools.base import SubagentResult
from .agent import Run
from .tool_call import decision_event

# The subagent for skills that name none, or one that is not there: the tools and the system prompt of the run itself.
GENERAL_AGENT = "general-purpose"


async def run_skill_apart(run: Run, tool_use_id: str, agent: str, prompt: str, skill: SkillActivated) -> SubagentResult:
    """Run the skill to its end; the gate is asked about the subagent as if the model had asked for it with Task.

    Raises `ToolError` when that is not allowed, and when the same call started it before a crash.
    """
    started = (event.tool_use_id for event in run.view.events if isinstance(event, SubagentStarted))
    if tool_use_id in started and tool_use_id not in run.parked_children:
        raise ToolError(f"skill {skill.name} may or may not have been carried out before the process died: check first")
    name = agent if agent in run.agent.agent_names else GENERAL_AGENT
    use = ToolUse(f"{tool_use_id}:agent", "Task", {"agent": name, "prompt": prompt})
    gate = run.gate
    approval = await gate.approve(use.name, use.input, run.gate_context(use.tool_use_id, "unsafe"))
    await run.record(decision_event(run, use, approval, gate, use.input))
    if not approval.allowed:
        raise ToolError(f"skill {skill.name} runs in a subagent, and that is not allowed: {approval.reason}")
    return await run.spawn(run, tool_use_id, name, prompt, (skill,))
