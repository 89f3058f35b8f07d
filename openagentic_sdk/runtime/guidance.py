"""What a run is told beside its prompts: the system prompt, what `/name` means, rules for files, notices at its start."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import SkillNotFoundError
from ..events import Event, SystemNotice
from ..frozen import frozen
from ..project.commands import expand_prompt, expanded_event
from ..project.project import Project
from ..project.prompt import DEFAULT_BASE, SystemPrompt, build_system_prompt, rule_message
from ..sessions.folds.view import SessionView
from ..skills.activation import active_skills
from ..skills.text_commands import Draft


@frozen
class Expanded:
    """A prompt as the model gets it, and the events that it brings (a skill that it activates).

    `draft`, when set, is the prompt's text or that of its skill with gaps for commands that are still to run.
    """

    text: str
    events: Sequence[Event] = ()
    draft: Draft | None = None


class Guidance:
    """The guidance of a run without a project: there is none, and every prompt is what it says."""

    def system_prompt(self, skill_events: Sequence[Event]) -> SystemPrompt:
        """The system prompt behind the skill events of the log; the same facts give the same object."""
        return SystemPrompt("", ())

    def expand(self, text: str, view: SessionView, session_id: str) -> Expanded:
        """A prompt with `/name` replaced by the command's text, or by the activation of the skill."""
        return Expanded(text)

    def opening_events(self, view: SessionView, session_id: str) -> Sequence[Event]:
        """What a run records at its start."""
        return ()

    def rules_for(self, path: str) -> Sequence[str]:
        """What the project's rules say about one file."""
        return ()

    def skill_names(self, input: Mapping[str, Any]) -> Sequence[str]:
        """Every name that leads to the skill that the input of a skill tool names; none when there is no such skill."""
        return ()


class ProjectGuidance(Guidance):
    """What a project says to a run.

    `base` is the start of the system prompt, `may_read` says which files a command may attach. `notices` are what is to be
    said when a run starts besides what reading the project has found; `brings` are skills that are active from the start.
    """

    def __init__(
        self,
        project: Project,
        *,
        base: str | None = None,
        may_read: Callable[[str], bool] | None = None,
        notices: Callable[[], Sequence[SystemNotice]] = lambda: (),
        brings: Sequence[str] | None = None,
    ) -> None:
        self._project = project
        self._base = DEFAULT_BASE if base is None else base
        self._may_read = may_read
        self._notices = notices
        self._brings = brings
        self._listed = project.skills().skills
        self._prompts: dict[tuple[Any, ...], SystemPrompt] = {}

    def system_prompt(self, skill_events: Sequence[Event]) -> SystemPrompt:
        active = active_skills(skill_events)
        key = tuple((event.seq, event.arguments) for event in active)
        if key not in self._prompts:
            self._prompts[key] = build_system_prompt(
                base=self._base, memory=self._project.memory, skills=self._listed, active=active
            )
        return self._prompts[key]

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
            event = expanded_event(expansion.command, expansion.arguments, trusted=trusted)
            return Expanded(expansion.text, (event,), expansion.draft)
        if expansion.skill is None:
            return Expanded(expansion.text)
        activation = project.library.activate(
            expansion.skill,
            view.skill_events,
            arguments=expansion.arguments,
            requested_by="user",
            project_dir=project.root,
            session_id=session_id,
        )
        events = () if activation.event is None else (activation.event, *activation.notices)
        return Expanded(expansion.text, events, activation.draft)

    def opening_events(self, view: SessionView, session_id: str) -> Sequence[Event]:
        """What has not been said in this session yet: settings that were left out, skills whose files changed."""
        if self._brings is not None:
            return self._brought(self._brings, view, session_id)
        project = self._project
        said = {(event.code, event.message) for event in view.events if isinstance(event, SystemNotice)}
        notices = [*self._notices(), *self._findings()]
        return [
            *(notice for notice in notices if (notice.code, notice.message) not in said),
            *project.library.find_drift(view.skill_events, project_dir=project.root, session_id=session_id),
        ]

    def rules_for(self, path: str) -> Sequence[str]:
        return [rule_message(rule) for rule in self._project.memory.rules_for(path)]

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
        parts = {
            "settings": project.settings.diagnostics,
            "memory": project.memory.diagnostics,
            "agents": project.agents.diagnostics,
            "commands": project.commands.diagnostics,
        }
        hidden = [note for note in project.skills().diagnostics if note.is_error or note.code == "skill-shadowed"]
        return [
            *(SystemNotice("settings.withheld", text) for text in project.settings.withheld),
            *(SystemNotice(f"{kind}.{n.code}", n.message) for kind, notes in parts.items() for n in notes),
            *(SystemNotice(f"skills.{note.code}", f"{note.path}: {note.message}") for note in hidden),
        ]

    def _brought(self, names: Sequence[str], view: SessionView, session_id: str) -> list[Event]:
        """Activates the skills that a subagent's definition names, but for those that only people start."""
        events: list[Event] = []
        index = self._project.library.index(self._project.root, self._project.cwd).read() if names else None
        for skill in [index.find(name) for name in names] if index is not None else []:
            if not skill.model_invocable:
                text = f"skill {skill.name}: only people start it, so no subagent brings it with it"
                events.append(SystemNotice("skill.user_only", text))
                continue
            activation = self._project.library.activate(
                skill,
                view.skill_events,
                requested_by="config",
                project_dir=self._project.root,
                session_id=session_id,
            )
            events += () if activation.event is None else (activation.event, *activation.notices)
        return events
