"""SkillList: which skills there are, for a model that wants to find one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..errors import ToolError
from ..skills.index import SkillIndex, SkillInfo
from ..skills.library import SkillLibrary
from ..skills.names import name_key
from .base import Tool, ToolContext

PROJECT_DIR_SCHEMA = {"type": "string", "description": "The project to look in; the current one when left out."}


async def find_index(library: SkillLibrary, input: Mapping[str, Any], ctx: ToolContext) -> SkillIndex:
    """The index of the project that a call is about: the one it names, else the session's, else the working directory.

    Raises `ToolError` when the call names a project that the permission gate keeps closed.
    """
    named = input.get("project_dir")
    if not named:
        return library.index(ctx.project_dir or ctx.cwd, ctx.cwd)
    project_dir = _absolute(named, ctx)
    if (
        not _is_own(project_dir, ctx)
        and ctx.permits_path is not None
        and not await ctx.permits_path(project_dir, False)
    ):
        raise ToolError(f"{project_dir} may not be read: leave out project_dir to see this project's skills")
    return library.index(project_dir, ctx.cwd)


def _absolute(path: str, ctx: ToolContext) -> str:
    return os.path.abspath(os.path.join(ctx.cwd, path))


def _is_own(project_dir: str, ctx: ToolContext) -> bool:
    return project_dir in (_absolute(ctx.project_dir or "", ctx), _absolute("", ctx))


class SkillListTool(Tool):
    """`{"query"?, "project_dir"?}` -> `{"skills": [{"name", "summary", "path"}]}`, sorted by name."""

    name = "SkillList"
    description = (
        "List the skills of this project: their names, what each is for, and where its SKILL.md is. "
        "With a query, only those whose name or summary has all of its words."
    )
    input_schema: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "Words to look for, in any order."},
            "project_dir": PROJECT_DIR_SCHEMA,
        },
        "additionalProperties": False,
    }
    effect = "read"

    def __init__(self, library: SkillLibrary | None = None) -> None:
        self._library = library or SkillLibrary()

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> dict[str, Any]:
        skills = (await find_index(self._library, input, ctx)).read().skills
        words = name_key(str(input.get("query") or "")).split()
        return {"skills": [_row(skill) for skill in skills if skill.model_invocable and _has_words(skill, words)]}


def _row(skill: SkillInfo) -> dict[str, str]:
    return {"name": skill.name, "summary": skill.summary, "path": skill.path}


def _has_words(skill: SkillInfo, words: list[str]) -> bool:
    text = name_key(f"{skill.name} {skill.folder} {skill.summary}")
    return all(word in text for word in words)
