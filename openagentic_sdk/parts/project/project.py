"""Read a project for a run: settings, memory, commands, agents and skills, and whether it is trusted.

Commands that show or check what a run would read use this too, so that they show the same content.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ...ground.diagnostic import Diagnostic
from ...ground.disk import read_regular
from ...ground.frozen import changed, frozen
from ...skills.index import IndexResult, claude_home
from ...skills.library import SkillLibrary
from .agents import AgentSet, read_agents
from .claude import MANAGED_DIR, MAX_CLAUDE_JSON_BYTES, ClaudeFolders, claude_folders, claude_json
from .commands import CommandSet, expand_prompt, read_commands
from .memory import ProjectMemory, read_memory
from .output_style import OutputStyle, read_output_style
from .plugins import PluginRegistry, PluginSet, read_plugins
from .settings import CommandHook, Entries, Settings, as_json_values, read_settings
from .trust import GrantingFile, TrustAnswer, skill_trust


@frozen
class LoadedFile:
    """One file in use, its `kind` (`settings`, `memory`, `rule`, `skill` ...) and the `name` under which it is used."""

    kind: str
    name: str
    path: str
    scope: str


@frozen(kw_only=True)
class OpenedProject:
    """The content of the files of a project, its user and the machine, as the setting sources permit and trust allows.

    `library` reads the skills again if their files change; everything else is a snapshot. `trusts` decides whether a skill
    or command receives the grants that its file requests.
    """

    cwd: str
    root: str
    folders: ClaudeFolders
    trust: TrustAnswer
    below: TrustAnswer | None
    trusts: Callable[[GrantingFile], bool]
    settings: Settings
    memory: ProjectMemory
    commands: CommandSet
    agents: AgentSet
    output_style: OutputStyle
    plugins: PluginSet
    library: SkillLibrary
    lists_skills: bool
    workspace_roots: tuple[str, ...]

    def skills(self) -> IndexResult:
        """The skills that are listed for the model."""
        return self.library.index(self.root, self.cwd).read() if self.lists_skills else IndexResult(())

    @property
    def lets_hooks_run(self) -> bool:
        """Whether hooks other than those of managed settings run."""
        return not (self.settings.hooks_disabled or self.settings.managed_hooks_only)

    @property
    def reads_own_files(self) -> bool:
        """Whether the user's files of this library are read."""
        return self.folders.reads_local or self.folders.user_dir is not None

    def may_name_servers(self, own_file: str | os.PathLike[str] | None) -> bool:
        """Whether a file in use may name MCP servers; `own_file` is the user's own file of this library."""
        folders, claude = self.folders, claude_json(self.folders)
        if folders.reads_project and os.path.lexists(os.path.join(self.root, ".mcp.json")):
            return True
        if self.reads_own_files and own_file is not None and os.path.lexists(own_file):
            return True
        if any("mcpServers" in p.manifest or os.path.lexists(f"{p.root}/.mcp.json") for p in self.plugins.plugins):
            return True
        try:
            return claude is not None and b'"mcpServers"' in read_regular(claude, MAX_CLAUDE_JSON_BYTES)
        except (OSError, ValueError):
            return False

    def skill_hooks(self) -> tuple[CommandHook, ...]:
        """The hooks of trusted skills; each runs while its skill is active."""
        all_hooks: list[CommandHook] = []
        for skill in self.skills().skills:
            if isinstance(skill.hooks, dict) and self.lets_hooks_run and self.trusts(skill):
                hooks = Entries(skill.path, skill.scope).hooks(as_json_values(skill.hooks), os.path.dirname(skill.path))
                all_hooks += [replace(hook, skill=skill.name) for hook in hooks]
        return tuple(all_hooks)

    def files(self) -> tuple[LoadedFile, ...]:
        """All files in use, and the folders of plugins, grouped by kind."""
        return (
            *(LoadedFile("settings", "", path, "") for path in self.settings.sources),
            *(LoadedFile("memory", "", file.path, file.scope) for file in self.memory.files),
            *(LoadedFile("style", style.name, style.path, "") for style in [self.output_style] if style.path),
            *(LoadedFile("rule", ", ".join(rule.paths), rule.path, rule.scope) for rule in self.memory.rules),
            *(LoadedFile("command", f"/{c.name}", c.path, c.scope) for c in self.commands.commands),
            *(LoadedFile("agent", agent.name, agent.path, agent.scope) for agent in self.agents.agents),
            *(LoadedFile("plugin", plugin.id, plugin.root, plugin.scope) for plugin in self.plugins.plugins),
            *(LoadedFile("skill", skill.name, skill.path, skill.scope) for skill in self.skills().skills),
        )

    def findings(self) -> tuple[Diagnostic, ...]:
        """The findings about everything withheld, omitted or hidden, for all kinds of files."""
        withheld = [Diagnostic("settings-withheld", self.withheld)] if self.withheld else []
        return (*withheld, *(note for notes in self.diagnostics().values() for note in notes))

    @property
    def withheld(self) -> str:
        """A message about what the project's files request and are not granted, why, and how to grant it; else empty."""
        trust = self.trust if not self.trust.is_trusted or self.below is None else self.below
        if trust.is_trusted or not (self.settings.withheld or trust.decision == "changed"):
            return ""
        requests = "; ".join(self.settings.withheld)
        text = (
            f"{requests}; the run continues without them, since"
            if requests
            else "the grants of the project's files have ended, since"
        )
        fix = "`openagentic-sdk trust show` lists what they request, `openagentic-sdk trust add` grants it"
        return f"{text} {trust.reason}" + (f": {fix}" if trust.can_be_added else "")

    def diagnostics(self) -> dict[str, tuple[Diagnostic, ...]]:
        """The findings about what was omitted, is hidden or has no effect, by kind of file."""
        return {
            "settings": self.settings.diagnostics,
            "memory": self.memory.diagnostics,
            "commands": self.commands.diagnostics,
            "agents": self.agents.diagnostics,
            "style": self.output_style.diagnostics,
            "plugins": self.plugins.diagnostics,
            "skills": self.skills().diagnostics,
        }


def _models_of_variables(settings: Settings) -> dict[str, str]:
    """The models that environment variables assign to `haiku`, `sonnet` and `opus`, as in Claude Code.

    The settings' `env` overrides the process environment.
    """
    variables = {word: f"ANTHROPIC_DEFAULT_{word.upper()}_MODEL" for word in ("haiku", "sonnet", "opus")}
    models = {word: settings.env.get(name) or os.environ.get(name, "") for word, name in variables.items()}
    return {word: model for word, model in models.items() if model}


def _command_text(commands: CommandSet, folders: ClaudeFolders, name: str, arguments: str) -> str | None:
    """The prompt of a command that the model invokes; None if there is no such command, or the model may not invoke it."""
    command = commands.find(name)
    if command is None or not command.model_invocable:
        return None
    return expand_prompt(f"/{command.name} {arguments}", CommandSet((command,)), (), folders).text


def read_project(
    root: str | os.PathLike[str],
    *,
    cwd: str | os.PathLike[str],
    trust: TrustAnswer,
    below: TrustAnswer | None = None,
    setting_sources: Sequence[str] = (),
    home: str | os.PathLike[str] | None = None,
    skill_paths: Sequence[str | os.PathLike[str]] = (),
    additional_dirs: Sequence[str | os.PathLike[str]] = (),
    run_text_commands: bool = False,
    model_names: Mapping[str, str] | None = None,
    registry: PluginRegistry | None = None,
    managed_dir: str | None = MANAGED_DIR,
) -> OpenedProject:
    """Read everything that `setting_sources` (`user`, `project`, `local`) permit; damaged files are omitted with a finding.

    `trust` decides whether the project's own files may grant anything; `below` decides the same for the settings of a
    working directory inside the project. Raises `OptionsError` if the folder of managed settings cannot be listed.
    """
    root, cwd = os.fspath(root), os.fspath(cwd)
    home = None if home is None else os.fspath(home)
    folders = claude_folders(root, cwd=cwd, setting_sources=setting_sources, home=home, managed_dir=managed_dir)
    settings = read_settings(folders, trusted=trust.is_trusted, trusted_below=(below or trust).is_trusted)
    models = {**_models_of_variables(settings), **settings.model_names, **(model_names or {})}
    settings = changed(settings, model_names=models)
    plugins = read_plugins(settings, registry, root, os.path.join(claude_home(home), "plugins", "data"))
    if not (settings.hooks_disabled or settings.managed_hooks_only):
        # Hooks that were trusted still forbid while the project waits to be trusted again.
        trusted_hooks = (*trust.hooks, *(() if below is None else below.hooks))
        settings = changed(settings, hooks=(*settings.hooks, *plugins.hooks, *trusted_hooks))
    trusts = skill_trust(root, is_trusted=trust.is_trusted)
    commands = read_commands(folders, plugins.commands)
    # Paths from the caller are relative to the working directory, those from settings to the project.
    more = [Path(cwd, os.path.expanduser(folder)) for folder in additional_dirs]
    more += [Path(root, os.path.expanduser(rule.text)) for rule in settings.additional_dirs]
    return OpenedProject(
        cwd=cwd,
        root=root,
        folders=folders,
        trust=trust,
        below=below,
        trusts=trusts,
        settings=settings,
        memory=read_memory(
            folders,
            agents_md=settings.agents_md or "fallback",
            allow_outside_imports=settings.outside_imports,
            excludes=settings.memory_excludes,
            own_excludes=settings.own_excludes,
        ),
        commands=commands,
        agents=read_agents(folders, plugins.agents),
        output_style=read_output_style(folders, settings.output_style, plugins.styles),
        plugins=plugins,
        library=SkillLibrary(
            precedence=settings.skill_precedence or "user",
            enforce=settings.enforce_allowed_tools,
            runs_commands=settings.runs_text_commands(run_text_commands),
            setting_sources=setting_sources,
            paths=[os.fspath(path) for path in skill_paths],
            home=home,
            trusts=trusts,
            reads_project="project" in setting_sources,
            commands=partial(_command_text, commands, folders),
            model_names=settings.model_names,
            plugins=[place for plugin in plugins.plugins for place in plugin.skill_roots()],
        ),
        lists_skills=bool(skill_paths) or bool(plugins.plugins) or bool({"user", "project"} & set(setting_sources)),
        workspace_roots=tuple(dict.fromkeys([cwd, *map(str, more)])),
    )
