"""What a run reads from the project, the user and the machine, file by file: the answer to "where does this come from?"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..skills.frontmatter import Diagnostic
from ..skills.index import IndexResult
from .agents import read_agents
from .claude import ClaudeFolders
from .commands import read_commands
from .memory import read_memory
from .settings import read_settings


@dataclass(frozen=True)
class Loaded:
    """One file that counts: `kind` is `settings`, `memory`, `rule`, `command`, `agent` or `skill`, `name` what calls it."""

    kind: str
    name: str
    path: str
    scope: str


@dataclass(frozen=True)
class LoadedFiles:
    """All files that count, in the order in which a run reads them, and what was left out or hidden."""

    files: tuple[Loaded, ...]
    diagnostics: tuple[Diagnostic, ...]


def what_is_loaded(folders: ClaudeFolders, skills: IndexResult, *, trusted: bool = False) -> LoadedFiles:
    """The files behind a run with these folders and skills."""
    settings = read_settings(folders, trusted=trusted)
    memory = read_memory(folders)
    commands = read_commands(folders)
    agents = read_agents(folders)
    files: list[Loaded] = [
        *(Loaded("settings", "", path, "") for path in settings.sources),
        *(Loaded("memory", "", file.path, file.scope) for file in memory.files),
        *(Loaded("rule", ", ".join(rule.paths), rule.path, rule.scope) for rule in memory.rules),
        *(Loaded("command", f"/{command.name}", command.path, command.scope) for command in commands.commands),
        *(Loaded("agent", agent.name, agent.path, agent.scope) for agent in agents.agents),
        *(Loaded("skill", skill.name, skill.path, skill.scope) for skill in skills.skills),
    ]
    withheld = [Diagnostic("settings-withheld", sentence) for sentence in settings.withheld]
    notes: Sequence[tuple[Diagnostic, ...]] = (
        settings.diagnostics, memory.diagnostics, commands.diagnostics, agents.diagnostics, skills.diagnostics,
    )  # fmt: skip
    return LoadedFiles(tuple(files), (*withheld, *(note for part in notes for note in part)))
