"""What a run is told beside its prompts: the system prompt, what `/name` means, rules for files, notices at its start."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import SkillNotFoundError
from ..events import Event, SkillActivated, SystemNotice
from ..frozen import frozen
from ..patterns import regex
from ..project.commands import expand_prompt, expanded_event
from ..project.memory import is_for, nested_folders, read_nested_memory
from ..project.project import Project
from ..project.prompt import (
    DEFAULT_BASE,
    SystemPrompt,
    build_system_prompt,
    memory_block,
    offer_message,
    rule_message,
    skill_message,
)
from ..sessions.folds.features.observed_files import ObservedFilesFold
from ..sessions.folds.features.skills import SkillsFold
from ..sessions.folds.view import SessionView
from ..skills.activation import active_skills
from ..skills.index import PROJECT_FOLDERS, IndexResult, SkillInfo, find_skill
from ..skills.library import SkillLibrary
from ..skills.text_commands import Draft, draft_of

_GLOB_LETTER = regex(r"[*?\[\]\\{]")


@frozen
class Expanded:
    """A prompt as the model gets it, and the events that it brings (a skill that it activates).

    `draft`, when set, is the prompt's text or that of its skill with gaps for commands that are still to run.
    """

    text: str
    events: Sequence[Event] = ()
    draft: Draft | None = None


class Guidance:
    """The guidance of a run without a project: it adds nothing, and a prompt is just its text.

    `skills` are those that the model is told about, None when skills are not listed.
    """

    skills: SkillLibrary | None = None

    def system_prompt(self, servers: tuple[tuple[str, str], ...] = ()) -> SystemPrompt:
        """The system prompt of a session that begins now; the same facts give the same object.

        `servers` are the names of MCP servers and what each says of itself.
        """
        return SystemPrompt("", ())

    def skill_facts(self, skill_events: Sequence[Event]) -> Mapping[str, str]:
        """What the skills that are active behind these events say, each by what it is about: `skill:name@seq`."""
        return {}

    def expand(self, text: str, view: SessionView, session_id: str) -> Expanded:
        """A prompt with `/name` replaced by the command's text, or by the activation of the skill."""
        return Expanded(text)

    def opening_events(self, view: SessionView, session_id: str) -> Sequence[Event]:
        """What a run records at its start."""
        return ()

    def rules_for(self, path: str) -> Sequence[str]:
        """What the project's rules say about one file."""
        return ()

    def reading_rules(self, skill_events: Sequence[Event]) -> Sequence[str]:
        """Allow rules for the files that active skills bring with them."""
        return ()

    def skill_names(self, input: Mapping[str, Any]) -> Sequence[str]:
        """Every name that leads to the skill that the input of a skill tool names; none when there is no such skill."""
        return ()


class ProjectGuidance(Guidance):
    """What a project says to a run.

    `base` is the start of the system prompt, `may_read` says which files a command may attach. `notices` are what is to be
    said when a run starts besides what reading the project has found; `brings` are skills that are active from the start of
    a subagent, `skills` from the start of a session.
    """

    def __init__(
        self,
        project: Project,
        *,
        base: str | None = None,
        may_read: Callable[[str], bool] | None = None,
        notices: Callable[[], Sequence[SystemNotice]] = lambda: (),
        brings: Sequence[str] | None = None,
        skills: Sequence[str] = (),
    ) -> None:
        self._project = project
        self._base = DEFAULT_BASE if base is None else base
        self._may_read = may_read
        self._notices = notices
        self._brings = brings
        self._active = skills
        self.skills = project.library if project.lists_skills else None
        self._listed = project.skills().skills
        self._for_some_files = [skill for skill in self._listed if skill.paths and skill.model_invocable]
        self._prompts: dict[tuple[tuple[str, str], ...], SystemPrompt] = {}

    def system_prompt(self, servers: tuple[tuple[str, str], ...] = ()) -> SystemPrompt:
        if servers not in self._prompts:
            self._prompts[servers] = build_system_prompt(
                base=self._base,
                style=self._project.output_style if self._brings is None else None,
                memory=self._project.memory,
                servers=servers,
                skills=self._listed,
            )
        return self._prompts[servers]

    def skill_facts(self, skill_events: Sequence[Event]) -> Mapping[str, str]:
        return {f"skill:{skill.name}@{skill.seq}": skill_message(skill) for skill in active_skills(skill_events)}

    def expand(self, text: str, view: SessionView, session_id: str) -> Expanded:
        project = self._project
        index = project.skills()
        expansion = expand_prompt(
            text,
            project.commands,
            index.skills,
            project.folders,
            hidden=index.hidden,
            trusts=project.trusts if project.library.runs_commands else None,
            may_read=self._may_read,
        )
        if expansion.command is not None:
            trusted = project.trusts(expansion.command)
            names = project.settings.model_names
            event = expanded_event(expansion.command, expansion.arguments, trusted=trusted, model_names=names)
            is_left = expansion.draft is None and draft_of(expansion.command.body) is not None
            notice = self._commands_left(f"command /{expansion.command.name}", trusted, view) if is_left else ()
            return Expanded(expansion.text, (event, *notice), expansion.draft)
        if expansion.skill is None:
            return Expanded(expansion.text)
        activation = project.library.activate(
            expansion.skill,
            view.fold(SkillsFold).events,
            arguments=expansion.arguments,
            requested_by="user",
            project_dir=project.root,
            session_id=session_id,
        )
        if activation.event is None:
            return Expanded(expansion.text)
        is_left = activation.draft is None and draft_of(activation.event.body) is not None
        notice = self._commands_left(f"skill {expansion.skill.name}", activation.trusted, view) if is_left else ()
        return Expanded(expansion.text, (activation.event, *activation.notices, *notice), activation.draft)

    def _commands_left(self, name: str, trusted: bool, view: SessionView) -> tuple[SystemNotice, ...]:
        """Says once in a session that commands in a text were not run, and what would run them."""
        switch = "--text-commands, run_text_commands=True or enableSkillShellExecution in settings runs them"
        why = switch if trusted else f"the project is not trusted; once it is, {switch}"
        notice = SystemNotice("text_commands.off", f"the commands in the text of {name} were not run: {why}")
        said = any(isinstance(e, SystemNotice) and e.message == notice.message for e in view.events)
        return () if said else (notice,)

    def opening_events(self, view: SessionView, session_id: str) -> Sequence[Event]:
        """What has not been said in this session yet: settings that were left out, skills whose files changed."""
        if self._brings is not None:
            return self._brought(self._brings, view, session_id)
        project = self._project
        said = {(event.code, event.message) for event in view.events if isinstance(event, SystemNotice)}
        for path in view.fold(ObservedFilesFold).digests:  # what was offered in an earlier run can still be asked for
            self._below(path)
        notices = [*self._notices(), *self._findings()]
        known = {event.name for event in view.fold(SkillsFold).events if isinstance(event, SkillActivated)}
        return [
            *self._brought([name for name in self._active if name not in known], view, session_id),
            *(notice for notice in notices if (notice.code, notice.message) not in said),
            *project.library.find_drift(view.fold(SkillsFold).events, project_dir=project.root, session_id=session_id),
        ]

    def rules_for(self, path: str) -> Sequence[str]:
        rules = [rule_message(rule) for rule in self._project.memory.rules_for(path)]
        root, folders = self._project.root, self._project.folders
        nested = read_nested_memory(folders, path, self._project.settings.memory_excludes)
        rules += [memory_block(file) for file in nested.files]
        rules += [rule_message(rule) for rule in nested.rules_for(path)]
        offered = [*self._for_some_files, *self._below(path)]
        return rules + [offer_message(s) for s in offered if not s.paths or is_for(s.paths, path, root)]

    def _below(self, path: str) -> list[SkillInfo]:
        """The skills of the folders below the working directory that lead to a file."""
        nested = nested_folders(self._project.folders, path) if self._project.folders.reads_project else []
        for folder in nested:
            self._project.library.look_below(folder)
        skills = self._project.skills().skills if nested else ()
        roots = {os.path.join(folder, place) for folder in nested for place in PROJECT_FOLDERS}
        return [skill for skill in skills if skill.model_invocable and os.path.realpath(skill.root) in roots]

    def reading_rules(self, skill_events: Sequence[Event]) -> Sequence[str]:
        """Of skills that stand where their events say: an event alone opens no folder."""
        active = active_skills(skill_events)
        known = {skill.path for skill in self._project.skills().skills} if active else set()
        folders = {os.path.dirname(skill.path) for skill in active if skill.path in known and skill.path}
        places = sorted(folders | {os.path.realpath(folder) for folder in folders})
        literal = [_GLOB_LETTER.sub(r"\\\g<0>", place) for place in places]
        return [f"Read(/{place}/**)" for place in literal]

    def skill_names(self, input: Mapping[str, Any]) -> Sequence[str]:
        project = self._project
        folder = os.path.join(project.cwd, str(input.get("project_dir") or project.root))
        try:
            return project.library.index(folder, project.cwd).find(str(input.get("name"))).names
        except (SkillNotFoundError, ValueError):
            return ()

    def _findings(self) -> list[SystemNotice]:
        """What reading the project has found that a person should know."""
        project = self._project
        found = project.diagnostics()
        # of skills only what is lost: what a skill's own text gets wrong is for `skills check`
        hidden = [note for note in found.pop("skills") if note.is_error or note.code == "skill-shadowed"]
        return [
            *(SystemNotice("settings.withheld", text) for text in project.settings.withheld),
            *(SystemNotice(f"{kind}.{note.code}", note.located) for kind, notes in found.items() for note in notes),
            *(SystemNotice(f"skills.{note.code}", note.located) for note in hidden),
        ]

    def _brought(self, names: Sequence[str], view: SessionView, session_id: str) -> list[Event]:
        """Activates the skills that options or a subagent's definition name, but for those that only people start."""
        events: list[Event] = []
        index = self._project.library.index(self._project.root, self._project.cwd).read() if names else IndexResult(())
        for name in names:
            skill = find_skill(name, index.skills, index.hidden)
            if skill is None:
                text = f"the agent names the skill {name[:80]!r}, which is not there: it runs without it"
                events.append(SystemNotice("skill.missing", text))
                continue
            if not skill.model_invocable:
                text = f"skill {skill.name}: only people start it, so no agent brings it with it"
                events.append(SystemNotice("skill.user_only", text))
                continue
            activation = self._project.library.activate(
                skill,
                view.fold(SkillsFold).events,
                requested_by="config",
                project_dir=self._project.root,
                session_id=session_id,
            )
            events += () if activation.event is None else (activation.event, *activation.notices)
        return events
