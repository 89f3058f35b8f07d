"""The skills that a run may use, and their trust: shared by the skill tools, the prompt and the loop.

No skill is trusted unless `trusts` returns true; `openagentic_sdk.parts.project.trust` decides it for a project.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..errors import FileRefusedError
from ..events import Event, SkillActivated, SkillDrifted, SystemNotice, UserMessage
from ..ground.frozen import frozen
from .activation import activation_event, active_skills, drift_event, render_body, skill_policy
from .fields import how_to_map, unmapped_model
from .files import tree_sha256
from .index import PROJECT_FOLDERS, Precedence, SkillIndex, SkillInfo, SkillRoot, load_skill
from .ledger import QUIET, word_notes
from .names import name_key
from .parse import SkillDoc
from .text_commands import Draft, draft_of


def trust_nobody(skill: SkillInfo) -> bool:
    """Trust no file to grant anything."""
    return False


@frozen
class Activation:
    """A skill's document, the event that activates it, and its text as a draft if its commands must run.

    `event` is None if activating the skill would change nothing. `unmapped_model` is the skill's word for its model, if that
    is not mapped here.
    """

    doc: SkillDoc
    event: SkillActivated | None = None
    draft: Draft | None = None
    trusted: bool = False
    unmapped_model: str | None = None

    @property
    def notices(self) -> tuple[SystemNotice, ...]:
        """Notices for people on activation: requests of the skill that are not granted."""
        if self.event is None:
            return ()
        notes = word_notes("skill", self.doc.extra, line=lambda key: self.doc.lines.get(key, 1))
        texts = [replace(note, path=self.event.path or "").located for note in notes if note.code not in QUIET]
        if self.doc.hooks and not self.trusted:
            texts.append("its hooks do not run, since the project is not trusted")
        if self.doc.runs_apart and self.event.requested_by in ("user", "config"):
            texts.append("it is active in this session instead of in its own subagent, since no model started it")
        if (word := self.unmapped_model) is not None:
            texts.append(
                f"its model alias {word!r} is not mapped to a model, so the current model is used: {how_to_map(word)}"
            )
        return tuple(SystemNotice("skill.field", f"skill {self.event.name}: {text}") for text in texts)


class SkillLibrary:
    """The indexes of the projects that a run touches, each cached until its files change.

    `trusts` decides whether a skill's allowed-tools are granted; with `enforce`, only they may be used while the skill is
    active. Without `reads_project`, skills of projects are ignored. With `runs_commands`, the commands in the text of a
    trusted skill run on activation, as far as rules allow them. `commands` returns the text of a slash command by its name
    and arguments, for a model that requests one like a skill. See `index_skills` for the other settings.
    """

    def __init__(
        self,
        *,
        setting_sources: Sequence[str] = (),
        paths: Sequence[str] = (),
        home: str | None = None,
        precedence: Precedence = "user",
        trusts: Callable[[SkillInfo], bool] = trust_nobody,
        enforce: bool = False,
        runs_commands: bool = False,
        reads_project: bool = True,
        commands: Callable[[str, str], str | None] = lambda name, arguments: None,
        model_names: Mapping[str, str] | None = None,
        plugins: Sequence[SkillRoot] = (),
    ) -> None:
        self._plugins = tuple(plugins)
        self.model_names = model_names or {}
        self.setting_sources = tuple(setting_sources)
        self.trusts = trusts
        self.enforce = enforce
        self.runs_commands = runs_commands
        self.command_text = commands
        self._reads_project = reads_project
        self._paths = tuple(paths)
        self._home = home
        self._precedence = precedence
        self._below: tuple[str, ...] = ()
        self._indexes: dict[tuple[str, str | None], SkillIndex] = {}

    def index(self, project_dir: str, cwd: str | None = None) -> SkillIndex:
        """The index of a project from the perspective of `cwd`."""
        key = (os.path.abspath(project_dir), os.path.abspath(cwd) if cwd else None)
        if key not in self._indexes:
            self._indexes[key] = SkillIndex(
                key[0] if self._reads_project else None,
                cwd=key[1],
                setting_sources=self.setting_sources,
                paths=self._paths,
                home=self._home,
                precedence=self._precedence,
                below=self._below,
                plugins=self._plugins,
            )
        return self._indexes[key]

    def look_below(self, folder: str) -> bool:
        """Include the skills of one more folder of the project; return False if it has none or is already included."""
        if folder in self._below or not any(os.path.isdir(os.path.join(folder, place)) for place in PROJECT_FOLDERS):
            return False
        self._below = (*self._below, folder)
        self._indexes.clear()
        return True

    def activate(
        self,
        info: SkillInfo,
        events: Sequence[Event],
        *,
        arguments: str | None = None,
        requested_by: str = "model",
        project_dir: str | None = None,
        session_id: str | None = None,
    ) -> Activation:
        """Prepare the activation of a skill; the result has no event if activating the skill would change nothing.

        Nothing changes if text, arguments, grants and model are the same. With `requested_by="user"` the skill is for a
        prompt that is not among the `events` yet. Raises `OSError` if its file cannot be read, and `OptionsError` if its
        model names a provider.
        """
        doc = load_skill(info)
        trusted = self.trusts(info)
        try:
            digest = tree_sha256(os.path.dirname(info.path))
        except FileRefusedError:  # too many or too large files: the digest of the skill's own text must do
            digest = None
        event = activation_event(
            info,
            doc,
            arguments=arguments or None,
            requested_by=requested_by,
            trusted=trusted,
            enforce=self.enforce,
            tree_sha256=digest,
            variables=_variables(project_dir, session_id),
            model_names=self.model_names,
        )
        # The prompt begins a turn, in which the arguments of earlier ones no longer count.
        before = [*events, UserMessage("")] if requested_by == "user" else events
        same = [skill for skill in active_skills(before) if name_key(skill.name) == name_key(event.name)]
        is_active = [(skill.body_sha256, skill.arguments) for skill in same] == [(event.body_sha256, event.arguments)]
        policy = skill_policy(before)
        if is_active and set(event.grants) <= set(policy.grants) and event.model in (None, policy.model):
            return Activation(doc)
        word = unmapped_model(doc.model, self.model_names)
        if not (trusted and self.runs_commands):
            return Activation(doc, event, None, trusted, word)
        draft = draft_of(
            event.body,
            name=f"skill {event.name}",
            path=event.path,
            grants=event.grants,
            arguments=event.arguments or "",
            argument_names=doc.arguments,
        )
        return Activation(doc, event, draft, trusted, word)

    def find_drift(
        self, events: Sequence[Event], *, project_dir: str | None = None, session_id: str | None = None
    ) -> list[SkillDrifted]:
        """Return a warning for each active skill whose file has changed or disappeared, unless `events` contains it."""
        reported = {(e.name, e.new_sha256) for e in events if isinstance(e, SkillDrifted)}
        drifts: list[SkillDrifted] = []
        for skill in active_skills(events):
            drift = drift_event(skill, _body_now(skill, _variables(project_dir, session_id)))
            if drift is not None and (drift.name, drift.new_sha256) not in reported:
                drifts.append(drift)
        return drifts


def _variables(project_dir: str | None, session_id: str | None) -> dict[str, str]:
    values = {"CLAUDE_PROJECT_DIR": project_dir, "CLAUDE_SESSION_ID": session_id}
    return {name: value for name, value in values.items() if value}


def _body_now(skill: SkillActivated, variables: dict[str, str]) -> str | None:
    if not skill.path:
        return None
    info = SkillInfo(skill.name, "", skill.path, folder=os.path.basename(os.path.dirname(skill.path)))
    try:
        return render_body(info, load_skill(info), variables)
    except OSError:
        return None
