"""SkillList: the available skills, for a model that looks for one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..errors import ToolError
from ..kernel.tool import PathRules, ToolContext
from ..skills.index import SkillIndex, SkillInfo
from ..skills.library import SkillLibrary
from ..skills.names import name_key
from .base import Tool
from .files.workspace import can_name_a_file
from .labels import OWN_SESSION
from .schema import object_schema, string

_PROJECT_DIR = string("The project to look in; the current one when left out.")


def _absolute(path: str, ctx: ToolContext) -> str:
    if not can_name_a_file(path):
        raise ToolError(f"{path!r} is not a folder: omit project_dir to see this project's skills")
    return os.path.abspath(os.path.join(ctx.cwd, path))


class SkillTool(Tool):
    """A tool that uses skills: those of its own `library`, otherwise those that the run has read, otherwise those of a
    library with the default settings.
    """

    def __init__(self, library: SkillLibrary | None = None) -> None:
        self._own = library
        self._alone = SkillLibrary()

    def library(self, ctx: ToolContext) -> SkillLibrary:
        """The library that a call uses."""
        return self._own or ctx.services.find(SkillLibrary) or self._alone

    async def find_index(self, input: Mapping[str, Any], ctx: ToolContext) -> SkillIndex:
        """Find the index of a call's project: the one that it names, otherwise the session's, otherwise the working
        directory.

        Raises `ToolError` if the call names a project that the permission gate does not allow.
        """
        project, own = input.get("project_dir"), ctx.project_dir or ctx.cwd
        if not project:
            return self.library(ctx).index(own, ctx.cwd)
        project_dir, *own_dirs = [_absolute(path, ctx) for path in (project, own, "")]
        if project_dir not in own_dirs and not await ctx.services.get(PathRules).permits(ctx, project_dir):
            raise ToolError(f"{project_dir} may not be read: omit project_dir to see this project's skills")
        return self.library(ctx).index(project_dir, ctx.cwd)


def one_skill_schema(other: Mapping[str, Any]) -> dict[str, Any]:
    """The input schema of a tool for one skill: the skill's name, the properties in `other`, and the project."""
    name = string("The skill's name as SkillList shows it.")
    properties = {"name": name, **other, "project_dir": _PROJECT_DIR}
    return object_schema(properties, required=["name"], additionalProperties=False)


class SkillListTool(SkillTool):
    """A tool that lists the skills that a model may start, sorted by name.

    `{"query"?, "project_dir"?}` -> `{"skills": [{"name", "summary", "path"}]}`.
    """

    name = "SkillList"
    labels = OWN_SESSION
    description = (
        "List the skills of this project: their names, what each is for, and where its SKILL.md is. "
        "With a query, only those whose name or summary has all of its words."
    )
    input_schema = object_schema(
        {
            "query": string("Words to look for, in any order."),
            "project_dir": _PROJECT_DIR,
        },
        additionalProperties=False,
    )
    effect = "read"

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> dict[str, Any]:
        skills = (await self.find_index(input, ctx)).read().skills
        words = name_key(str(input.get("query") or "")).split()
        return {
            "skills": [
                {"name": skill.name, "summary": skill.summary, "path": skill.path}
                for skill in skills
                if skill.model_invocable and _has_words(skill, words)
            ]
        }


def _has_words(skill: SkillInfo, words: list[str]) -> bool:
    text = name_key(f"{skill.name} {skill.folder} {skill.summary}")
    return all(word in text for word in words)
