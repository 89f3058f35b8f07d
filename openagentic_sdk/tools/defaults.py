"""The built-in tools that an agent has by default."""

from __future__ import annotations

from collections.abc import Mapping

from ..kernel.registry import ToolRegistry
from ..skills.library import SkillLibrary
from .bash import BashTool
from .edit import EditTool
from .glob import GlobTool
from .grep import GrepTool
from .read import ReadTool
from .session.ask_user_question import AskUserQuestionTool
from .session.background_tasks import TaskOutputTool
from .session.task import TaskTool
from .session.todo_write import TodoWriteTool
from .shell.background import BashOutputTool, KillBashTool
from .skill_activate import SkillActivateTool, SkillDeactivateTool
from .skill_list import SkillListTool
from .skill_load import SkillLoadTool
from .web_fetch import WebFetchTool
from .web_search_tavily import WebSearchTool
from .write import WriteTool


def default_tools(
    agents: Mapping[str, str] | None = None,
    *,
    library: SkillLibrary | None = None,
    bash: BashTool | None = None,
) -> ToolRegistry:
    """Return a new registry with the default tools.

    `agents` maps names to their purposes; without any, Task and TaskOutput are missing. `library` is the library of the
    skill tools (default: the one that the run has read), `bash` a shell tool with settings that differ from the defaults.
    """
    registry = ToolRegistry(
        [
            ReadTool(),
            WriteTool(),
            EditTool(),
            GlobTool(),
            GrepTool(),
            bash or BashTool(),
            BashOutputTool(),
            KillBashTool(),
            WebFetchTool(),
            WebSearchTool(),
            TodoWriteTool(),
            AskUserQuestionTool(),
            SkillListTool(library),
            SkillLoadTool(library),
            SkillActivateTool(library),
            SkillDeactivateTool(),
        ]
    )
    if agents:
        registry.register(TaskTool(agents, background=True))
        registry.register(TaskOutputTool())
    return registry
