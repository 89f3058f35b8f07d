"""Subagents that a project describes in `.claude/agents`: frontmatter says what they may do, the body is their prompt."""

from __future__ import annotations

from collections.abc import Iterable

from ...ground.diagnostic import Diagnostic
from ...ground.frozen import frozen
from ...ground.text import one_line, without_hidden
from ...skills.fields import Fields
from ...skills.frontmatter import read_frontmatter
from ...skills.render import fill_variables, plugin_variables
from .claude import ClaudeFolders, MarkdownFile, read_named

_FIELDS = frozenset({
    "name", "description", "tools", "disallowedTools", "model", "skills", "maxTurns", "permissionMode", "isolation", "color",
})  # fmt: skip
MAX_AGENT_BYTES = 256 * 1024


@frozen
class AgentFile:
    """One subagent. `tools` empty is all of them; `max_turns` None and `permission_mode` "" are its parent's."""

    name: str
    description: str
    prompt: str
    path: str
    scope: str
    tools: tuple[str, ...] = ()
    disallowed_tools: tuple[str, ...] = ()
    model: str = ""
    skills: tuple[str, ...] = ()
    max_turns: int | None = None
    permission_mode: str = ""
    isolation: str = ""


@frozen
class AgentSet:
    """The subagents by name, the nearest of each; `diagnostics` names hidden and unreadable ones."""

    agents: tuple[AgentFile, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


def read_agents(folders: ClaudeFolders, more: Iterable[MarkdownFile] = ()) -> AgentSet:
    """The subagents of the project and its user, the project's first where both have one name.

    A file without a name is documentation and no subagent.
    """
    return AgentSet(*read_named(folders, "agents", more, MAX_AGENT_BYTES, parse_agent))


def parse_agent(text: str, file: MarkdownFile) -> tuple[AgentFile | None, list[Diagnostic]]:
    """The text of one agent file, None when it is none, and what is wrong with it."""
    front = read_frontmatter(text)
    fields = Fields(front)
    name = one_line(fields.text("name"))
    turns = fields.text("maxTurns")
    agent = AgentFile(
        name=file.prefix + name,
        description=one_line(fields.text("description")),
        prompt=fill_variables(
            without_hidden(front.body).strip(), plugin_variables(file.plugin_root, file.plugin_data, front.body)
        ),
        path=file.path,
        scope=file.scope,
        tools=fields.rules("tools"),
        disallowed_tools=fields.rules("disallowedTools"),
        model=fields.text("model"),
        skills=fields.words("skills"),
        max_turns=(int(turns) or None) if turns.isascii() and turns.isdigit() and len(turns) < 10 else None,
        permission_mode="" if file.plugin_root else fields.text("permissionMode"),
        isolation=fields.text("isolation"),
    )
    notes = [*front.diagnostics, *fields.diagnostics]
    notes += fields.without_effect(_FIELDS) if name else []
    reason = ""
    if name.startswith("-") or ":" in name:
        reason = f"the name {name[:80]!r} begins with a hyphen or has a colon: use letters, digits and hyphens"
    elif name and not agent.description:
        reason = f"the agent {name[:80]!r} has no description: say when it is to be used"
    if reason:
        notes.append(Diagnostic.left_out("agent", reason, line=fields.line("name")))
    return (None if reason or not name else agent), notes
