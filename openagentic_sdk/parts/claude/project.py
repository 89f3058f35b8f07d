"""The project's part of a run: system prompt, `/name` in prompts, active skills, rules for files, opening notices."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...errors import SkillNotFoundError, ToolError
from ...events import Event, HookEvent, SkillActivated, SystemNotice, ToolResult, ToolUse, UserMessage
from ...ground.frozen import changed
from ...ground.patterns import regex
from ...ground.text import existing
from ...kernel.agent import Run
from ...kernel.context import Once, SystemPrompt
from ...kernel.gate import CallContext, Gate, Narrowing, narrowed_by
from ...kernel.part import IncomingPrompt, Part
from ...kernel.tool_call import Permitted, ask_gate
from ...sessions.folds.features.all import ObservedFilesFold
from ...sessions.folds.features.skills import SkillsFold
from ...sessions.folds.view import SessionView
from ...skills.activation import SkillPolicy, active_skills, skill_policy
from ...skills.fields import how_to_map, unmapped_model
from ...skills.index import PROJECT_FOLDERS, IndexResult, SkillInfo, find_skill
from ...skills.library import SkillLibrary
from ...skills.text_commands import Draft, draft_of
from ...tools.session.background_tasks import SubagentResult
from ...tools.session.task import Subagents
from ...tools.skill_activate import SkillRuns
from ..project.commands import Expansion, attached_file, expand_prompt, expanded_event
from ..project.memory import ProjectMemory, is_for, nested_folders, read_nested_memory
from ..project.notices import for_a_run
from ..project.project import OpenedProject
from ..project.prompt import (
    DEFAULT_BASE,
    build_system_prompt,
    memory_block,
    offer_message,
    rule_message,
    skill_message,
)
from ..record.folds.transcript import TranscriptFile
from ..servers import ServerTools
from .names import GENERAL_AGENT
from .text_commands import fill_draft

_GLOB_LETTER = regex(r"[*?\[\]\\{]")
_SKILL_TOOLS = ("SkillList", "SkillLoad", "SkillActivate", "SkillDeactivate")


class ProjectPart(Part, SkillRuns):
    """A part that applies a project to one run, and runs skills. `guidance` is shared by the runs of the agent."""

    def __init__(self, run: Run, guidance: ProjectGuidance) -> None:
        super().__init__(run)
        self._guidance = guidance
        self._fold = run.view.fold(SkillsFold)
        self._skills: tuple[int, SkillPolicy, Sequence[SkillActivated]] | None = None
        self._facts: tuple[int, Mapping[str, str]] = (-1, {})
        self._transcript_file: TranscriptFile | None = None
        self._pending: tuple[IncomingPrompt, str, Sequence[Draft]] | None = None
        self._typed: IncomingPrompt | None = None

    def services(self) -> Mapping[type, object]:
        library = self._guidance.skills
        return {ProjectPart: self, SkillRuns: self, **({} if library is None else {SkillLibrary: library})}

    def opening_events(self) -> Sequence[Event]:
        return self._guidance.opening_events(self.run.view, self.run.session_id)

    def system_prompt(self) -> SystemPrompt:
        servers = self.run.parts.services.find(ServerTools)
        return self._guidance.system_prompt(servers.instructions or () if servers else ())

    def facts(self) -> Mapping[str, str]:
        changes = self._fold.changes
        if self._facts[0] != changes:
            active = active_skills(self._fold.events)
            # Once, because the arguments of an activation belong to its turn.
            self._facts = changes, {f"skill:{skill.name}@{skill.seq}": Once(skill_message(skill)) for skill in active}
        return self._facts[1]

    async def before_step(self) -> None:
        for text in _ARRIVED.pop(self.run.session_id, ()):
            await self.run.record(UserMessage(text, origin="hook"))

    async def expand_prompt(self, prompt: IncomingPrompt) -> None:
        self._typed = prompt
        if prompt.is_expanded:
            return
        expansion, events, drafts = self._guidance.expand(
            prompt.text, self.run.view, self.run.session_id, names_files=prompt.said.names_files
        )
        prompt.text = expansion.text
        prompt.events += events
        for path in expansion.files:
            # Judged like the model's own Read: a mention in a prompt grants nothing.
            use = ToolUse(f"attachment:{os.urandom(8).hex()}", "Read", {"file_path": path})
            if (await ask_gate(self.run, self.run.agent.gate, use, "read", parks=False)).allowed:
                attached = self._guidance.attached_file(path)
                prompt.behind += f"\n\n{attached}" if attached else ""
        self._pending = (prompt, prompt.text, drafts) if drafts else None

    async def fill_prompt(self, prompt: IncomingPrompt) -> None:
        """Run the commands in the text of a command or skill, and insert their output. Raises `ToolError` if one fails.

        If a hook has replaced a command's text, the replacement is left unchanged.
        """
        if self._pending is None or self._pending[0] is not prompt:
            return
        (_, expanded, drafts), self._pending = self._pending, None
        is_skill = any(isinstance(event, SkillActivated) for event in prompt.events)
        if prompt.text != expanded and not is_skill:
            return
        cause = prompt.request_id or os.urandom(16).hex()
        for number, draft in enumerate(drafts):
            filled = await fill_draft(self.run, draft, f"{cause}:{number}" if number else cause)
            if not is_skill:
                prompt.text = filled
            prompt.events = [
                replace(e, body=filled) if isinstance(e, SkillActivated) and e.path == draft.path else e
                for e in prompt.events
            ]

    def policy(self) -> SkillPolicy:
        """The effects of the active skills on calls, folded again after new events."""
        changes, events = self._fold.changes, self._fold.events
        if self._skills is None or self._skills[0] != changes:
            self._skills = (changes, skill_policy(events), active_skills(events))
        return self._skills[1]

    def model(self) -> str | None:
        return self.policy().model

    def narrow(self) -> Sequence[Narrowing]:
        return allowlists(self.policy())

    def narrow_child(self, gate: Gate) -> Gate:
        """The gate of a subagent, narrowed by the allowlists and denied tools of the active skills of this run."""
        denied = self.policy().disallowed_tools
        parents = [Narrowing(deny=denied, source="skill of the parent")] if denied else []
        return narrowed_by(gate, [*self.narrow(), *parents])

    def tell_gate(self, context: CallContext, tool: str | None) -> CallContext:
        policy = self.policy()
        active = self._skills[2] if self._skills else ()
        reading = self._guidance.reading_rules(active) if active else ()
        return changed(
            context,
            grants=(*policy.grants, *reading),
            disallowed_tools=policy.disallowed_tools,
            names_of=self._guidance.skill_names,
        )

    def tell_hooks(self) -> Mapping[str, Any]:
        active, run = active_skills(self._fold.events), self.run
        facts: dict[str, Any] = {
            "transcript": self._transcript,
            "is_active": lambda name: any(skill.name == name for skill in active),
            "stop_blocks": self._stop_blocks,
            "deliver": partial(_deliver, run.session_id),
        }
        if self._typed is not None:
            facts["typed_prompt"] = (self._typed.said.text, self._typed.text)
        if run.parent is not None:
            top = run.parent
            while top.parent is not None:
                top = top.parent
            project = top.parts.services.find(ProjectPart)
            facts["main"] = {"session_id": top.session_id, "transcript": project._transcript if project else None}
            facts["agent_id"] = run.view.events[0].parent_tool_use_id if run.view.events else None
        return facts

    def _stop_blocks(self) -> int:
        """The number of times that hooks sent the model back to work since the last prompt."""
        count = 0
        for event in reversed(self.run.view.events):
            if isinstance(event, UserMessage) and event.origin == "user":
                break
            count += isinstance(event, HookEvent) and event.hook_point == "stop" and "block_reason" in event.details
        return count

    def _transcript(self) -> str:
        """Extend the session's transcript in Claude Code's format; return the transcript's path.

        Return "" if the session has no folder.
        """
        run = self.run
        if run.session_dir is None:
            return ""
        if self._transcript_file is None:
            self._transcript_file = TranscriptFile(os.path.join(run.session_dir, "transcript.jsonl"))
        return self._transcript_file.write(run.view.events, run.session_id, run.agent.cwd)

    async def after_call(self, call: Permitted, result: ToolResult) -> ToolResult:
        """Add messages with the rules for the files of a call, except rules that the model still sees; return the result.

        After a resume the model still sees them; after a compaction or a rewind it may not.
        """
        run = self.run
        paths = _files(run, call.input, result)
        texts = dict.fromkeys(text for path in paths for text in self._guidance.rules_for(path))
        if texts:
            visible_texts = {note.text for note in run.notes}
            visible_texts.update(str(message.get("content")) for message in run.view.conversation.messages())
            run.notes += [UserMessage(text, origin="rule") for text in texts if text not in visible_texts]
        return result

    async def fill_text(self, tool_use_id: str, draft: Draft) -> str:
        return await fill_draft(self.run, draft, tool_use_id)

    async def run_apart(self, tool_use_id: str, agent: str, prompt: str, skill: SkillActivated) -> SubagentResult:
        """Run a skill in a subagent, if the gate would let the model start it with Task.

        Raises `ToolError` if the gate would not, or if the subagent does not exist or cannot be started.
        """
        run = self.run
        subagents = run.parts.services.find(Subagents)
        if subagents is None:
            raise ToolError(f"skill {skill.name} runs in a subagent, and no subagent can be started here")
        name = agent or GENERAL_AGENT
        if agent and agent not in run.agent.agent_names:
            agent_names = existing("agents", sorted(run.agent.agent_names))
            raise ToolError(
                f"skill {skill.name} names the agent {agent[:80]!r}, which does not exist: {agent_names}; "
                f"correct `agent` in {skill.path}, or remove it to use {GENERAL_AGENT}"
            )
        use = ToolUse(f"{tool_use_id}:agent", "Task", {"agent": name, "prompt": prompt})
        approval = await ask_gate(run, run.gate, use, "unsafe")
        if not approval.allowed:
            raise ToolError(f"skill {skill.name} runs in a subagent, which is not allowed: {approval.reason}")
        return await subagents.spawn(tool_use_id, name, prompt, (skill,))


# Texts from background hooks since the last request, by session, and how many are kept per session.
_ARRIVED: dict[str, list[str]] = {}
_MAX_ARRIVED = 20


def _deliver(session_id: str, text: str) -> None:
    arrived = _ARRIVED.setdefault(session_id, [])
    if len(arrived) < _MAX_ARRIVED:
        arrived.append(text)
    while len(_ARRIVED) > 1000:  # drop those of sessions that were never continued
        _ARRIVED.pop(next(iter(_ARRIVED)))


def allowlists(policy: SkillPolicy) -> list[Narrowing]:
    """A restriction for each skill that allows only some tools; the tools for skills are always allowed, too."""
    return [Narrowing(tools=(*rules, *_SKILL_TOOLS), source="skill") for rules in policy.allowlists]


def _unsaid(notice: SystemNotice, view: SessionView) -> tuple[SystemNotice, ...]:
    """The notice, or nothing if the session already contains one with this message."""
    is_there = any(isinstance(e, SystemNotice) and e.message == notice.message for e in view.events)
    return () if is_there else (notice,)


def _files(run: Run, input: Mapping[str, Any], result: ToolResult) -> Iterator[str]:
    """Yield the files that a call read or wrote; a partly read file is only in the input."""
    if result.is_error:
        return
    yield from (result.meta or {}).get("files") or ()
    if isinstance(path := input.get("file_path"), str):
        yield os.path.join(run.agent.cwd, path)


class ProjectGuidance:
    """The contributions of a project to runs: system prompt, expanded prompts, rules for files, skills and notices.

    `base` is the beginning of the system prompt, None for the default. `notices` returns notices for the start of a run in
    addition to the findings about the project. `skills` are active from the start of a session; `brings` from the start of a
    subagent, None if the run is not one. Without `reads_memory`, no CLAUDE.md and no rule for files reaches the model.
    """

    def __init__(
        self,
        project: OpenedProject,
        *,
        base: str | None = None,
        notices: Callable[[], Sequence[SystemNotice]] = lambda: (),
        brings: Sequence[str] | None = None,
        skills: Sequence[str] = (),
        reads_memory: bool = True,
    ) -> None:
        self._project = project
        self._reads_memory = reads_memory
        self._base = DEFAULT_BASE if base is None else base
        self._notices = notices
        self._brings = brings
        self._active = skills
        self.skills = project.library if project.lists_skills else None
        self._listed = project.skills().skills
        self._for_some_files = [skill for skill in self._listed if skill.paths and skill.model_invocable]
        self._prompts: dict[tuple[tuple[str, str], ...], SystemPrompt] = {}

    def system_prompt(self, servers: tuple[tuple[str, str], ...] = ()) -> SystemPrompt:
        """The system prompt of a session that begins now; equal arguments return the same object.

        `servers` are the names of MCP servers and their instructions.
        """
        if servers not in self._prompts:
            self._prompts[servers] = build_system_prompt(
                base=self._base,
                style=self._project.output_style if self._brings is None else None,
                memory=self._project.memory if self._reads_memory else ProjectMemory(),
                servers=servers,
                skills=self._listed,
            )
        return self._prompts[servers]

    def attached_file(self, path: str) -> str | None:
        """The text to append for a file that a prompt names; None if it cannot be read."""
        return attached_file(path, self._project.folders)

    def expand(
        self, text: str, view: SessionView, session_id: str, *, names_files: bool = True
    ) -> tuple[Expansion, Sequence[Event], Sequence[Draft]]:
        """Expand `/name` in a prompt; return the expansion, its events, and the drafts.

        A draft is the text of a command or skill with gaps for commands that have not run yet. Without `names_files`, only
        the command's own file may name files to attach.
        """
        project = self._project
        index = project.skills()
        expansion = expand_prompt(
            text,
            project.commands,
            index.skills,
            project.folders,
            hidden=index.hidden,
            trusts=project.trusts if project.library.runs_commands else None,
            names_files=names_files,
            session_id=session_id,
        )
        if expansion.command is not None:
            trusted = project.trusts(expansion.command)
            names = project.settings.model_names
            event = expanded_event(expansion.command, expansion.arguments, trusted=trusted, model_names=names)
            is_left = expansion.draft is None and draft_of(expansion.command.body) is not None
            name = f"command /{expansion.command.name}"
            notices = list(self._commands_not_run(name, trusted, view) if is_left else ())
            if (word := unmapped_model(expansion.command.model, names)) is not None:
                message = (
                    f"{name}: its model alias {word!r} is not mapped to a model, so the current model is used: "
                    f"{how_to_map(word)}"
                )
                notices += _unsaid(SystemNotice("command.model", message), view)
            return expansion, (event, *notices), () if expansion.draft is None else (expansion.draft,)
        events: list[Event] = []
        drafts: list[Draft] = []
        for skill in () if expansion.skill is None else (expansion.skill, *expansion.stacked):
            activation = project.library.activate(
                skill,
                view.fold(SkillsFold).events,
                arguments=expansion.arguments,
                requested_by="user",
                project_dir=project.root,
                session_id=session_id,
            )
            if activation.event is None:
                continue
            is_left = activation.draft is None and draft_of(activation.event.body) is not None
            leftover = self._commands_not_run(f"skill {skill.name}", activation.trusted, view) if is_left else ()
            events += (activation.event, *activation.notices, *leftover)
            drafts += () if activation.draft is None else (activation.draft,)
        return expansion, events, drafts

    def _commands_not_run(self, name: str, trusted: bool, view: SessionView) -> tuple[SystemNotice, ...]:
        """A notice, once per session, that commands in text were not run, and how to enable them."""
        switch = "--text-commands, run_text_commands=True or enableSkillShellExecution in settings runs them"
        why = switch if trusted else f"the project is not trusted; once it is, {switch}"
        notice = SystemNotice("text_commands.off", f"the commands in the text of {name} were not run: {why}")
        return _unsaid(notice, view)

    def opening_events(self, view: SessionView, session_id: str) -> Sequence[Event]:
        """The events at the start of a run: activations of skills, new notices, and changes of active skills' files.

        With `brings`, only the activations are returned.
        """
        if self._brings is not None:
            return self._activations(self._brings, view, session_id)
        project = self._project
        earlier_notices = {(event.code, event.message) for event in view.events if isinstance(event, SystemNotice)}
        for path in view.fold(ObservedFilesFold).digests:  # skills offered in an earlier run remain available
            self._below(path)
        notices = [*self._notices(), *self._findings()]
        active_names = {event.name for event in view.fold(SkillsFold).events if isinstance(event, SkillActivated)}
        return [
            *self._activations([name for name in self._active if name not in active_names], view, session_id),
            *(notice for notice in notices if (notice.code, notice.message) not in earlier_notices),
            *project.library.find_drift(view.fold(SkillsFold).events, project_dir=project.root, session_id=session_id),
        ]

    def rules_for(self, path: str) -> Sequence[str]:
        """The messages from the project's rules and skills for a run that read or wrote this file."""
        if not self._reads_memory:
            return ()
        rules = [rule_message(rule) for rule in self._project.memory.rules_for(path)]
        root, folders, settings = self._project.root, self._project.folders, self._project.settings
        nested = read_nested_memory(folders, path, (*settings.memory_excludes, *settings.own_excludes))
        rules += [memory_block(file) for file in nested.files]
        rules += [rule_message(rule) for rule in nested.rules_for(path)]
        skills = [*self._for_some_files, *self._below(path)]
        return rules + [offer_message(s) for s in skills if not s.paths or is_for(s.paths, path, root)]

    def _below(self, path: str) -> list[SkillInfo]:
        """Make the skills of the folders below the working directory on the path to a file available; return those that the
        model may start.
        """
        nested = nested_folders(self._project.folders, path) if self._project.folders.reads_project else []
        for folder in nested:
            self._project.library.look_below(folder)
        skills = self._project.skills().skills if nested else ()
        roots = {os.path.join(folder, place) for folder in nested for place in PROJECT_FOLDERS}
        return [skill for skill in skills if skill.model_invocable and os.path.realpath(skill.root) in roots]

    def reading_rules(self, skill_events: Sequence[Event]) -> Sequence[str]:
        """The rules that allow reading the folders of those active skills that the project's index contains."""
        active = active_skills(skill_events)
        indexed_paths = {skill.path for skill in self._project.skills().skills} if active else set()
        folders = {os.path.dirname(skill.path) for skill in active if skill.path in indexed_paths and skill.path}
        places = sorted(folders | {os.path.realpath(folder) for folder in folders})
        literal = [_GLOB_LETTER.sub(r"\\\g<0>", place) for place in places]
        return [f"Read(/{place}/**)" for place in literal]

    def skill_names(self, input: Mapping[str, Any]) -> Sequence[str]:
        """All names of the skill that the input of a skill tool refers to; empty if there is no such skill."""
        project = self._project
        folder = os.path.join(project.cwd, str(input.get("project_dir") or project.root))
        try:
            return project.library.index(folder, project.cwd).find(str(input.get("name"))).names
        except (SkillNotFoundError, ValueError):
            return ()

    def _findings(self) -> list[SystemNotice]:
        project = self._project
        findings = project.diagnostics()
        # Of skills, only those that cannot be loaded: `skills check` reports problems in a skill's own text.
        findings["skills"] = tuple(n for n in findings["skills"] if n.is_error or n.code == "skill-shadowed")
        return [
            *([SystemNotice("settings.withheld", project.withheld)] if project.withheld else []),
            *(
                SystemNotice(f"{kind}.{note.code}", note.located)
                for kind, notes in findings.items()
                for note in for_a_run(notes, kind)
            ),
        ]

    def _activations(self, names: Sequence[str], view: SessionView, session_id: str) -> list[Event]:
        """Activate the skills that options or a subagent's definition name; return the events.

        There is a notice for a skill that does not exist, or that only people may start.
        """
        events: list[Event] = []
        index = self._project.library.index(self._project.root, self._project.cwd).read() if names else IndexResult(())
        for name in names:
            skill = find_skill(name, index.skills, index.hidden)
            if skill is None:
                text = f"the agent names the skill {name[:80]!r}, which does not exist: the agent runs without it"
                events.append(SystemNotice("skill.missing", text))
                continue
            if not skill.model_invocable:
                text = f"skill {skill.name}: only people can start it, so it is not active in this agent"
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
