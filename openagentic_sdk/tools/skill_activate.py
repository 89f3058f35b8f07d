"""SkillActivate and SkillDeactivate: add a skill to the instructions, and remove it again, with an event for each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import SkillNotFoundError
from ..events import Event, SkillActivated, SkillDeactivated
from ..kernel.tool import SessionLog, ToolContext, ToolOutput
from ..sessions.folds.features.skills import SkillsFold
from ..skills.activation import active_skills, grantable, skill_request
from ..skills.index import find_skill, nested_variants
from ..skills.names import name_key
from ..skills.text_commands import Draft
from .base import Tool
from .labels import OWN_SESSION
from .schema import object_schema, string
from .session.background_tasks import SubagentResult, describe_result
from .skill_list import SkillTool, one_skill_schema
from .skill_load import refuse_user_only


class SkillRuns:
    """A service that runs the commands in skills' texts, and skills that need a subagent."""

    async def fill_text(self, tool_use_id: str, draft: Draft) -> str:
        """Run the commands in a skill's text; return the text with their output. Raises `ToolError`."""
        raise NotImplementedError

    async def run_apart(self, tool_use_id: str, agent: str, prompt: str, skill: SkillActivated) -> SubagentResult:
        """Run a subagent with the skill active only there, as `context: fork` requires. Raises `ToolError`."""
        raise NotImplementedError


class SkillActivateTool(SkillTool):
    """A tool that activates a skill: `{"name", "arguments"?}` -> `{"active": [names, in order of activation]}`.

    A skill with `context: fork` is carried out by a subagent instead, and is active only there: then the answer is that of
    `TaskTool` with `skill` instead of `agent`. Activating an active skill with the same text and arguments changes and
    records nothing. The name of a custom command returns `{"command", "instructions"}` and activates nothing. Raises
    `SkillNotFoundError` for an unknown name, and `ToolError` for a skill that only people may start.
    """

    name = "SkillActivate"
    labels = OWN_SESSION
    description = (
        "Activate a skill: its instructions come to you in a message and are in force from then on, until SkillDeactivate. "
        "Arguments, if the skill accepts any, come with them."
    )
    input_schema = one_skill_schema({"arguments": string("What the skill is to be applied to.")})
    effect = "idempotent"
    allowed_callers = ("direct",)

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> dict[str, Any] | ToolOutput:
        index = (await self.find_index(input, ctx)).read()
        name = str(input["name"]).removeprefix("/")
        if find_skill(name, index.skills, index.hidden) is None:
            text = self.library(ctx).command_text(name, str(input.get("arguments") or ""))
            if text is not None:
                return {"command": name, "instructions": text}
        skill = index.find(name)
        refuse_user_only(skill)
        events = session_events(ctx)
        activation = self.library(ctx).activate(
            skill,
            events,
            arguments=input.get("arguments"),
            requested_by="subagent" if ctx.agent_name else "model",
            project_dir=ctx.project_dir or ctx.cwd,
            session_id=ctx.session_id,
        )
        event = activation.event
        if event is None:
            return {"active": active_names(events), "note": f"{skill.name} was already active"}
        runs, call_id = ctx.services.find(SkillRuns), ctx.tool_use_id or ""
        if activation.draft is not None and runs is not None:
            event = replace(event, body=await runs.fill_text(call_id, activation.draft))
        if activation.doc.runs_apart and runs is not None:
            request = skill_request(event.name, event.arguments or "")
            done = await runs.run_apart(call_id, activation.doc.agent, request, event)
            output = describe_result(activation.doc.agent, done)
            del output["agent"]
            return ToolOutput({"skill": event.name, **output}, is_error=done.stop_reason == "error")
        await ctx.services.get(SessionLog).record(event, *activation.notices)
        answer: dict[str, Any] = {"active": active_names([*events, event])}
        if variants := nested_variants(skill, index.skills):
            answer["for_folders"] = list(variants)
            answer["note"] = "Activate each of for_folders whose folder holds what you work on, too."
        if event.grants and (too_wide := grantable(activation.doc.allowed_tools)[1]):
            answer["not_granted"] = list(too_wide)
        return answer


def session_events(ctx: ToolContext) -> list[Event]:
    """The session's events that determine which skills are active."""
    fold = ctx.services.find(SkillsFold)
    return ctx.services.get(SessionLog).events() if fold is None else list(fold.events)


def active_names(events: list[Event]) -> list[str]:
    """The names of the active skills, in the order of their activation."""
    return [skill.name for skill in active_skills(events)]


class SkillDeactivateTool(Tool):
    """A tool that deactivates a skill: `{"name"}` -> `{"active": [names, in order of activation]}`.

    Raises `SkillNotFoundError` for a skill that is not active.
    """

    name = "SkillDeactivate"
    labels = OWN_SESSION
    description = "Deactivate a skill: its instructions are no longer in force."
    input_schema = object_schema(
        {"name": string("The name of an active skill.")},
        required=["name"],
        additionalProperties=False,
    )
    effect = "idempotent"
    allowed_callers = ("direct",)

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> dict[str, Any]:
        events = session_events(ctx)
        skill = _find_active(str(input["name"]), active_skills(events))
        event = SkillDeactivated(name=skill.name, reason="asked for by the model")
        await ctx.services.get(SessionLog).record(event)
        return {"active": active_names([*events, event])}


def _find_active(name: str, active: tuple[SkillActivated, ...]) -> SkillActivated:
    """Find the active skill by declared name, else by folder name or qualified id. Raises `SkillNotFoundError`."""
    key = name_key(name)
    for skill in active:
        if name_key(skill.name) == key:
            return skill
    for skill in active:
        folder = os.path.basename(os.path.dirname(skill.path or ""))
        if key in map(name_key, (folder, f"{skill.scope}:{skill.name}", f"{skill.scope}:{folder}")):
            return skill
    raise SkillNotFoundError(name, [skill.name for skill in active])
