"""The built-in subagents, and those of `.claude/agents`: the frontmatter has their settings, the body is their prompt."""

from __future__ import annotations

from collections.abc import Iterable

from ...ground.diagnostic import Diagnostic
from ...ground.frozen import frozen
from ...ground.text import one_line, without_hidden
from ...skills.fields import Fields
from ...skills.frontmatter import read_frontmatter
from ...skills.render import fill_variables, plugin_variables
from .claude import ClaudeFolders, MarkdownFile, read_named

MAX_AGENT_BYTES = 256 * 1024
# The scope of the agents that no file defines.
BUILT_IN = "built in"


@frozen
class AgentFile:
    """The definition of a subagent. Empty `tools` means all.

    `max_turns` None and `permission_mode` "" mean those of the parent.
    """

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


_LOOKS = ("Read", "Glob", "Grep", "Bash", "WebFetch", "WebSearch")
_READ_ONLY = "You change nothing: no files, no settings, no state of other programs. Name files by their full paths."
# The built-in subagents; a file with the same name replaces one.
BUILT_IN_AGENTS = (
    AgentFile(
        "general-purpose",
        "Does work of any kind with all tools: research over many files, changes, tasks of several steps.",
        "You carry out one task for another agent, which reads nothing but your last message. Do what was asked, all of it "
        "and no more, and end with what you found or changed: the files by their full paths, and what is still open.",
        BUILT_IN,
        BUILT_IN,
    ),
    AgentFile(
        "Explore",
        "Searches and reads without changing anything: finds files, names, and answers to questions about the code. Say how "
        "thorough it should be: quick, medium or very thorough.",
        f"You search a code base for another agent, which reads nothing but your last message. {_READ_ONLY} Begin with "
        "broad searches, several at a time, read only what matters, and stop once the question is answered. End with "
        "the answer and the places that show it.",
        BUILT_IN,
        BUILT_IN,
        tools=_LOOKS,
        permission_mode="plan",
    ),
    AgentFile(
        "Plan",
        "Reads the code and plans a change without making it: steps, files, and what may go wrong.",
        f"You plan a change for another agent, which reads nothing but your last message. {_READ_ONLY} Read what the "
        "change touches, and how the code does such things elsewhere. End with the steps in their order, the files of each, "
        "what may go wrong, and how to check the result.",
        BUILT_IN,
        BUILT_IN,
        tools=_LOOKS,
        permission_mode="plan",
    ),
)
# Built-in subagents that do not read CLAUDE.md, because their parent has it.
WITHOUT_MEMORY = frozenset({"Explore", "Plan"})


@frozen
class AgentSet:
    """The subagents, the nearest one of each name; `diagnostics` reports hidden and unreadable ones."""

    agents: tuple[AgentFile, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


def read_agents(folders: ClaudeFolders, more: Iterable[MarkdownFile] = ()) -> AgentSet:
    """Read the subagents of the project, its user and `more`; the first of each name applies.

    A file without a name is documentation and not a subagent.
    """
    return AgentSet(*read_named(folders, "agents", more, MAX_AGENT_BYTES, parse_agent))


def parse_agent(text: str, file: MarkdownFile) -> tuple[AgentFile | None, list[Diagnostic]]:
    """Parse an agent file; return the subagent (None if the file defines none) and the problems."""
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
    notes += fields.without_effect("agent") if name else []
    reason = ""
    if name.startswith("-") or ":" in name:
        reason = f"the name {name[:80]!r} begins with a hyphen or contains a colon: use letters, digits and hyphens"
    elif name and not agent.description:
        reason = f"the agent {name[:80]!r} has no description: describe when to use it"
    if reason:
        notes.append(Diagnostic.left_out("agent", reason, line=fields.line("name")))
    return (None if reason or not name else agent), notes
