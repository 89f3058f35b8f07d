"""SkillLoad: the text of one skill, or one of its other files. Reading changes nothing and runs nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..errors import FileRefusedError, ToolError
from ..ground.text import existing, without_hidden
from ..kernel.tool import PathRules, ToolContext
from ..skills.files import list_resources, read_text
from ..skills.index import SkillInfo, load_skill
from .labels import OWN_SESSION
from .schema import string
from .skill_list import SkillTool, one_skill_schema

MAX_RESOURCE_BYTES = 256 * 1024
MAX_LISTED_RESOURCES = 50


class SkillLoadTool(SkillTool):
    """A tool that reads a skill: it returns `{"name", "summary", "checklist", "content", "path"}`.

    `resources` are added if the skill has other files. With `path`, it returns one of these files:
    `{"name", "path", "content"}`. Raises `SkillNotFoundError` for an unknown name, and `ToolError` for a skill that only
    people may start.
    """

    name = "SkillLoad"
    labels = OWN_SESSION
    description = (
        "Read a skill: its instructions and its checklist. With path, read one file of the skill's own folder instead, "
        "for example references/style.md."
    )
    input_schema = one_skill_schema({"path": string("A file of the skill, relative to its folder.")})
    effect = "read"

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> dict[str, Any]:
        skill = (await self.find_index(input, ctx)).find(str(input["name"]))
        refuse_user_only(skill)
        if not input.get("path"):
            doc = load_skill(skill)
            answer: dict[str, Any] = {
                "name": doc.name,
                "summary": doc.summary,
                "checklist": doc.checklist,
                "content": without_hidden(doc.body),
                "path": skill.path,
            }
            resources, more = list_resources(os.path.dirname(skill.path), MAX_LISTED_RESOURCES)
            if resources:
                answer["resources"] = resources
            if more:
                answer["resources_not_listed"] = more
            return answer
        may_read = ctx.services.get(PathRules).read_filter()
        if may_read is not None and not may_read(os.path.join(os.path.dirname(skill.path), input["path"])):
            raise ToolError(f"{input['path']!r} of the skill {skill.name!r} may not be read: a rule forbids it")
        return read_resource(skill, input["path"])


def refuse_user_only(skill: SkillInfo) -> None:
    """Raise `ToolError` for a skill that only a person may start."""
    if not skill.model_invocable:
        raise ToolError(f"the skill {skill.name!r} is started by people only: ask the user to type /{skill.name}")


def read_resource(skill: SkillInfo, path: str) -> dict[str, Any]:
    """Read one text file in the skill's folder. Raises `ToolError` for a path that leads elsewhere or cannot be read."""
    folder = os.path.dirname(skill.path)
    if os.path.isabs(path) or "\0" in path or ".." in path.replace("\\", "/").split("/"):
        raise ToolError(f"{path!r} is not a file of the skill {skill.name!r}: give a path relative to {folder}")
    full = os.path.join(folder, path)
    try:
        text = read_text(full, boundary=os.path.realpath(folder), max_bytes=MAX_RESOURCE_BYTES)
    except FileRefusedError as error:
        raise ToolError(f"{error}: only text files inside the skill's folder are read here") from None
    except OSError as error:
        resources = existing("files", list_resources(folder, MAX_LISTED_RESOURCES)[0], "in the skill's folder")
        raise ToolError(f"{path!r} cannot be read ({error.strerror}): {resources}") from None
    return {"name": skill.name, "path": full, "content": without_hidden(text)}
