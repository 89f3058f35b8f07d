"""SkillDeactivate: take a skill out of the instructions again, on the record."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..errors import SkillNotFoundError
from ..events import SkillActivated, SkillDeactivated
from ..kernel.tool import SessionLog, ToolContext
from ..skills.activation import active_skills
from ..skills.names import name_key
from .base import Tool
from .labels import OWN_SESSION
from .schema import object_schema, string
from .skill_activate import active_names, session_events


class SkillDeactivateTool(Tool):
    """`{"name"}` -> `{"active": [names, in order of activation]}`. A skill that is not active is a `SkillNotFoundError`."""

    name = "SkillDeactivate"
    labels = OWN_SESSION
    description = "Deactivate a skill: its instructions no longer stand in the system prompt."
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
    """The active skill with this declared name, else with this folder's name or qualified id."""
    wanted = name_key(name)
    for skill in active:
        if name_key(skill.name) == wanted:
            return skill
    for skill in active:
        folder = os.path.basename(os.path.dirname(skill.path or ""))
        if wanted in map(name_key, (folder, f"{skill.scope}:{skill.name}", f"{skill.scope}:{folder}")):
            return skill
    raise SkillNotFoundError(name, [skill.name for skill in active])
