"""Options to Agent: the only file that picks concrete classes.

Everything that is looked up in the environment, the home folder or the project is looked up here, once per run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .clock import Clock, SystemClock
from .errors import OptionsError, SessionNotFoundError, SkillNotFoundError, ToolInputError
from .events import Event, SystemNotice
from .hooks.command import with_command_hooks
from .hooks.engine import HookEngine
from .options import AgentDefinition, OpenAgenticOptions
from .permissions.gate import PermissionGate
from .permissions.redact import Redactor
from .project.agents import AgentFile, read_agents
from .project.claude import claude_folders
from .project.commands import expand_prompt, expanded_event, read_commands
from .project.memory import Memory, read_memory
from .project.prompt import DEFAULT_BASE, SystemPrompt, build_system_prompt, rule_message
from .project.settings import Settings, read_settings
from .project.trust import TrustStore, skill_trust
from .providers.base import Provider
from .providers.endpoint import EndpointProvider
from .providers.guarded import guarded
from .runtime.agent import Agent, Expanded, FinalAnswer, RunRequest
from .runtime.final_answer import FinalAnswerTool, ask_for_final_answer, final_answer_prompt
from .runtime.skill_apart import GENERAL_AGENT
from .runtime.structured import read_output_schema
from .sessions.base import SessionStore
from .sessions.folds.compaction import ContextLimits
from .sessions.folds.prices import PriceTable, built_in_prices, cost, with_prices
from .sessions.folds.view import SessionView
from .sessions.store import FileSessionStore
from .sessions.stores.locate import open_store
from .skills.activation import active_skills
from .skills.fields import served_model
from .skills.index import IndexResult, SkillInfo
from .skills.library import SkillLibrary
from .tools.bash import BashTool
from .tools.defaults import default_tools
from .tools.registry import ToolRegistry
from .tools.shell.sandbox_plan import probe_sandbox
from .tools.shell.sandboxed import BashSandbox

TASK = "Task"
_GENERAL = AgentDefinition("", DEFAULT_BASE)


def build_agent(options: OpenAgenticOptions) -> Agent:
    """The agent that the options describe. Raises `OptionsError` with the setting to change."""
    if options.provider is None:
        raise OptionsError("provider is not set: pass a provider, for example OpenAIProvider()")
    cwd = options.working_dir()
    if not cwd.is_dir():
        raise OptionsError(f"cwd {str(cwd)!r} is no folder: create it or pass another")
    return _Builder(options).agent()


def run_request(options: OpenAgenticOptions, agent: Agent) -> RunRequest:
    """What one run of the agent is to do: a new session, or which old one."""
    resume = options.resume
    if resume is None and options.continue_last:
        resume = newest_session(agent.store, agent.cwd)
    return RunRequest(
        resume=resume,
        session_id=options.session_id,
        metadata=options.session_metadata,
        request_id=options.request_id,
        max_events=options.resume_max_events,
        max_bytes=options.resume_max_bytes,
        timeout_s=options.timeout_s,
        max_tokens=options.max_tokens,
        max_cost_usd=options.max_cost_usd,
    )


def newest_session(store: SessionStore, cwd: str) -> str:
    """The top-level session of this folder that was written to last. Raises `SessionNotFoundError` when there is none."""
    newest = store.list_session_summaries(cwd=cwd, limit=1)
    if not newest:
        raise SessionNotFoundError("(newest)", f"{cwd}, so there is nothing to continue")
    return newest[0].id


def default_store() -> SessionStore:
    """$OPENAGENTIC_SDK_STORE, else files under $OPENAGENTIC_SDK_HOME, else files under ~/.openagentic-sdk."""
    url = os.environ.get("OPENAGENTIC_SDK_STORE")
    return open_store(url) if url else FileSessionStore(root_dir=sdk_home())


def sdk_home() -> Path:
    """Where this library keeps what outlives a run."""
    home = os.environ.get("OPENAGENTIC_SDK_HOME")
    return Path(home) if home else Path.home() / ".openagentic-sdk"


class _Builder:
    """What all agents of one run share, and how each is made of it."""

    def __init__(self, options: OpenAgenticOptions) -> None:
        self._options = options
        self._clock = options.clock or SystemClock()
        self._store = _store(options.session_store)
        self._prices = _prices(options.prices)
        self._project = _Project(options)
        self._agents = {**self._project.agents, **options.agents}
        self._gate, self._project.mode_notes = _gate(options, self._project)
        self._project.may_read = self._gate.read_filter(self._project.cwd, self._project.workspace_roots)
        self._hooks, self._project.hook_problems = with_command_hooks(
            options.hooks or HookEngine(clock=self._clock),
            self._project.settings.hooks,
            project_dir=self._project.root,
            permission_mode=self._gate.mode,
        )
        self._tools = self._all_tools()

    def agent(self) -> Agent:
        """The agent that the caller talks to."""
        options, project = self._options, self._project
        model = options.model or project.settings.model
        if not model:
            raise OptionsError(
                'model is not set: name one that the provider serves (--model, options.model, "model" in settings.json)'
            )
        provider, wanted, tools = self._final_answer(options)
        return Agent(
            provider=provider,
            model=model,
            api_key=options.api_key,
            tools=tools,
            hooks=self._hooks,
            gate=self._gate,
            store=self._store,
            clock=self._clock,
            cwd=project.cwd,
            project_dir=project.root,
            system_prompt=project.system_prompt(options.system_prompt, final_answer_prompt(wanted) if wanted else ""),
            final_answer=wanted,
            summary_provider=_guarded(options, self._clock) if wanted else None,
            child=self.child,
            expand_prompt=project.expand,
            on_open=self._opening_events,
            cost=lambda usage, model: cost(usage, model, self._prices),
            agent_names=tuple(self._agents),
            workspace_roots=project.workspace_roots,
            max_steps=options.max_steps,
            max_subagent_depth=options.max_subagent_depth,
            blob_bytes=options.blob_bytes,
            on_storage_error=options.on_storage_error,
            context_limits=ContextLimits(options.max_context_tokens, options.max_context_bytes),
            redact=_redact(options.redact),
            rules_for=project.rules_for,
            skill_names=project.skill_names,
            session_dir=self._session_dir,
        )

    def _final_answer(self, options: OpenAgenticOptions) -> tuple[Provider, FinalAnswer | None, ToolRegistry]:
        """Whom to ask, how the final answer is asked for, and the tools that are offered for it."""
        asked = _guarded(options, self._clock)
        tools = self._tools.only(self._gate.offered_tools(self._tools.names()))
        if options.output_schema is None:
            return asked, None, tools
        schema = read_output_schema(options.output_schema)
        provider, wanted = ask_for_final_answer(asked, schema, options.output_form, options.output_repair_turns)
        if wanted.form == "tool":
            tools = ToolRegistry((*tools, FinalAnswerTool(schema)))
        return provider, wanted, tools

    def child(self, name: str) -> Agent:
        """The agent of a subagent: its own prompt and tools, within what its parent may do."""
        definition = self._agents.get(name) or (_GENERAL if name == GENERAL_AGENT else None)
        if definition is None:
            known = ", ".join(self._agents) or "(none)"
            raise ToolInputError(f"there is no agent {name!r}: the agents are {known}", path="agent")
        parent = self.agent()
        gate = _narrowed(definition, parent.gate)
        tools = _tools_of(definition, self._tools)
        return replace(
            parent,
            name=name,
            provider=definition.provider or _guarded(self._options, self._clock),
            final_answer=None,
            model=definition.model if definition.model not in (None, "", "inherit") else parent.model,
            tools=tools.only(gate.offered_tools(tools.names())),
            gate=gate,
            system_prompt=self._project.system_prompt(definition.prompt),
            on_open=self._project.preloading(definition.skills),
            max_steps=definition.max_steps or parent.max_steps,
        )

    def _all_tools(self) -> ToolRegistry:
        options = self._options
        if isinstance(options.tools, ToolRegistry):
            return options.tools
        if options.tools is not None:
            return ToolRegistry(options.tools)
        agents = {name: definition.description for name, definition in self._agents.items()}
        is_announced = options.sandbox == "auto"
        bash = BashTool(
            environment=self._project.settings.env,
            sandbox=options.sandbox,
            bash_effects=options.bash_effects,
            sandbox_is_announced=is_announced,
        )
        self._project.sandbox = BashSandbox(options.sandbox, effects=options.bash_effects) if is_announced else None
        return default_tools(agents, library=self._project.library, bash=bash)

    def _opening_events(self, view: SessionView, session_id: str) -> Sequence[Event]:
        """What a run says at its start: how far its store can be trusted, then what the project has to say."""
        notice = self._store.durability_notice()
        notes = [SystemNotice("store.durability", notice)] if notice else []
        return [*notes, *self._project.opening_events(view, session_id)]

    def _session_dir(self, session_id: str) -> str | None:
        return str(self._store.session_dir(session_id)) if isinstance(self._store, FileSessionStore) else None


class _Project:
    """What the project folder and the user's home say, as far as the options ask for it and trust allows it."""

    def __init__(self, options: OpenAgenticOptions) -> None:
        self.cwd = str(options.working_dir())
        self.root = str(options.project_root())
        home = None if options.home is None else os.fspath(options.home)
        self.folders = claude_folders(self.root, cwd=self.cwd, setting_sources=options.setting_sources, home=home)
        self.trusted = _is_trusted(options, self.root)
        self._trusts = skill_trust(self.root, is_trusted=self.trusted)
        self.settings: Settings = read_settings(self.folders, trusted=self.trusted)
        self.memory: Memory = read_memory(
            self.folders,
            agents_md=self.settings.agents_md or "fallback",
            allow_outside_imports=self.settings.outside_imports,
        )
        self.library = SkillLibrary(
            precedence=self.settings.skill_precedence or "project",
            enforce=self.settings.enforce_allowed_tools,
            runs_commands=self.settings.runs_text_commands(options.run_text_commands),
            setting_sources=options.setting_sources,
            paths=[os.fspath(path) for path in options.skill_paths],
            home=home,
            trusts=self._trusts,
        )
        found = read_agents(self.folders)
        self.agents = {file.name: _definition(file) for file in found.agents}
        self.hook_problems: Sequence[str] = ()
        self.mode_notes: Sequence[str] = ()
        self.may_read: Callable[[str], bool] | None = None
        self.sandbox: BashSandbox | None = None
        self._commands = read_commands(self.folders)
        self._diagnostics = {
            "settings": self.settings.diagnostics,
            "memory": self.memory.diagnostics,
            "agents": found.diagnostics,
            "commands": self._commands.diagnostics,
        }
        self._lists_skills = bool(options.skill_paths) or bool({"user", "project"} & set(options.setting_sources))
        more = [*options.additional_dirs, *(rule.text for rule in self.settings.additional_dirs)]
        roots = [self.cwd, *(str(Path(self.cwd, folder)) for folder in more)]
        self.workspace_roots = tuple(dict.fromkeys(roots))

    def skills(self) -> IndexResult:
        """The skills that the model is told about; their files are read again only when they changed."""
        return self.library.index(self.root, self.cwd).read() if self._lists_skills else IndexResult(())

    def system_prompt(self, base: str | None, about_answer: str = "") -> Callable[[Sequence[Event]], SystemPrompt]:
        """Makes the system prompt of the skill events so far; the same facts give the same object."""
        known: dict[tuple[Any, ...], SystemPrompt] = {}
        skills = self.skills().skills
        start = "\n\n".join(part for part in (DEFAULT_BASE if base is None else base, about_answer) if part)

        def prompt(skill_events: Sequence[Event]) -> SystemPrompt:
            active = active_skills(skill_events)
            key = tuple((event.seq, event.arguments) for event in active)
            if key not in known:
                known[key] = build_system_prompt(base=start, memory=self.memory, skills=skills, active=active)
            return known[key]

        return prompt

    def expand(self, text: str, view: SessionView, session_id: str) -> Expanded:
        """A prompt with `/name` replaced by the command's text, or by the activation of the skill."""
        trusts = self._trusts if self.library.runs_commands else None
        index = self.skills()
        expansion = expand_prompt(
            text, self._commands, index.skills, self.folders, hidden=index.hidden, trusts=trusts, may_read=self.may_read
        )
        if expansion.command is not None:
            trusted = self._trusts(expansion.command)
            event = expanded_event(expansion.command, expansion.arguments, trusted=trusted)
            return Expanded(expansion.text, (event,), expansion.draft)
        if expansion.skill is None:
            return Expanded(expansion.text)
        activation = self.library.activate(
            expansion.skill,
            view.skill_events,
            arguments=expansion.arguments,
            requested_by="user",
            project_dir=self.root,
            session_id=session_id,
        )
        events = () if activation.event is None else (activation.event, *activation.notices)
        return Expanded(expansion.text, events, activation.draft)

    def skill_names(self, input: Mapping[str, Any]) -> Sequence[str]:
        """Every name that leads to the skill that the input of a skill tool names; none when there is no such skill."""
        project_dir = os.path.join(self.cwd, str(input.get("project_dir") or self.root))
        try:
            return self.library.index(project_dir, self.cwd).find(str(input.get("name"))).names
        except (SkillNotFoundError, ValueError):
            return ()

    def rules_for(self, path: str) -> list[str]:
        """What the project's rules say about one file."""
        return [rule_message(rule) for rule in self.memory.rules_for(path)]

    def opening_events(self, view: SessionView, session_id: str) -> Sequence[Event]:
        """What a run says at its start: settings that were left out, skills whose files changed."""
        notes: list[Event] = [SystemNotice("settings.withheld", text) for text in self.settings.withheld]
        notes += [SystemNotice("settings.hook", text) for text in self.hook_problems]
        notes += [SystemNotice("settings.mode", text) for text in self.mode_notes]
        notes += self._sandbox_notice(view)
        for source, found in self._diagnostics.items():
            notes += [SystemNotice(f"{source}.{note.code}", note.message) for note in found]
        notes += self._skill_notices()
        return [*notes, *self.library.find_drift(view.skill_events, project_dir=self.root, session_id=session_id)]

    def _skill_notices(self) -> list[SystemNotice]:
        """Which skills could not be read, and which are hidden behind others."""
        notes = [note for note in self.skills().diagnostics if note.is_error or note.code == "skill-shadowed"]
        return [SystemNotice(f"skills.{note.code}", f"{note.path}: {note.message}") for note in notes]

    def _sandbox_notice(self, view: SessionView) -> Sequence[Event]:
        """What the sandbox gives on this machine, once a session as long as it stays the same."""
        if self.sandbox is None:
            return ()
        notice = SystemNotice("sandbox.level", self.sandbox.says(probe_sandbox()))
        said = [event for event in view.events if isinstance(event, SystemNotice) and event.code == notice.code]
        return () if said and said[-1].message == notice.message else (notice,)

    def preloading(self, names: Sequence[str]) -> Callable[[SessionView, str], Sequence[Event]]:
        """Activates the skills that a subagent's definition names, but for those that only people start."""

        def events(view: SessionView, session_id: str) -> Sequence[Event]:
            index = self.library.index(self.root, self.cwd).read() if names else None
            found = [] if index is None else [index.find(name) for name in names]
            return [event for skill in found for event in self._preload(skill, view, session_id)]

        return events

    def _preload(self, skill: SkillInfo, view: SessionView, session_id: str) -> Sequence[Event]:
        if not skill.model_invocable:
            text = f"skill {skill.name}: only people start it, so no subagent brings it with it"
            return [SystemNotice("skill.user_only", text)]
        activation = self.library.activate(
            skill, view.skill_events, requested_by="config", project_dir=self.root, session_id=session_id
        )
        return () if activation.event is None else (activation.event, *activation.notices)


def _store(named: SessionStore | str | None) -> SessionStore:
    if named is None:
        return default_store()
    return open_store(named) if isinstance(named, str) else named


def _is_trusted(options: OpenAgenticOptions, root: str) -> bool:
    if options.trust_project is not None:
        return options.trust_project
    return bool(options.setting_sources) and TrustStore(sdk_home() / "trust.json").look_up(root).is_trusted


def _definition(file: AgentFile) -> AgentDefinition:
    return AgentDefinition(
        description=file.description,
        prompt=file.prompt,
        tools=file.tools,
        model=served_model(file.model),
        disallowed_tools=file.disallowed_tools,
        max_steps=file.max_turns,
        permission_mode=file.permission_mode or None,
        skills=file.skills,
        source=file.path,
    )


def _prices(prices: Mapping[str, Any] | str | None) -> PriceTable:
    if prices is None:
        return built_in_prices()
    return with_prices(prices) if isinstance(prices, str) else {**built_in_prices(), **prices}


def _guarded(options: OpenAgenticOptions, clock: Clock) -> Provider:
    """The provider with retries, breaker and fallbacks: an endpoint always, any other when the options ask for it."""
    provider = options.provider
    assert provider is not None, "build_agent has checked it"
    if options.retry is None and not options.fallback and not isinstance(provider, EndpointProvider):
        return provider
    return guarded(provider, retry=options.retry, fallback=options.fallback, clock=clock)


def _redact(redact: Callable[[str], str] | bool) -> Callable[[str], str] | None:
    if redact is True:
        return Redactor.from_environment(os.environ)
    return None if redact is False else redact


def _gate(options: OpenAgenticOptions, project: _Project) -> tuple[PermissionGate, list[str]]:
    """The caller's gate with the rules of options and settings, in its own mode or else theirs; and what was refused."""
    settings = project.settings
    gate, notes = _in_settings_mode(options.permission_gate or PermissionGate(clock=options.clock), settings)
    gate = gate.with_rules(
        allow=options.allowed_tools,
        deny=options.disallowed_tools,
        trusted=gate.trusted or project.trusted,
        workspace_roots=gate.workspace_roots or project.workspace_roots,
    )
    for rule in settings.allow:
        gate = gate.with_rules(allow=[rule.text], source=rule.source, root=project.root)
    for rule in settings.ask:
        gate = gate.with_rules(ask=[rule.text], source=rule.source, root=project.root)
    for rule in settings.deny:
        gate = gate.with_rules(deny=[rule.text], source=rule.source, root=project.root)
    return gate, notes


def _in_settings_mode(gate: PermissionGate, settings: Settings) -> tuple[PermissionGate, list[str]]:
    """A gate that was given no mode takes the settings'; none may bypass where settings forbid it."""
    notes: list[str] = []
    if not gate.is_mode_given and settings.default_mode is not None:
        try:
            gate = gate.with_mode(settings.default_mode)
        except OptionsError as error:
            notes.append(f"the mode that settings name is left out: {error}")
    if settings.bypass_disabled and gate.mode == "bypass":
        gate = gate.with_mode("default")
        notes.append("settings switch off mode bypass: this run is in mode default")
    return gate, notes


def _tools_of(definition: AgentDefinition, tools: ToolRegistry) -> ToolRegistry:
    """The tools of a subagent: those it names, else all but Task; never those it must not have."""
    named = {name.partition("(")[0].strip() for name in definition.tools}
    names = named or {name for name in tools.names() if name != TASK}
    return tools.only(names - set(definition.disallowed_tools))


def _narrowed(definition: AgentDefinition, gate: PermissionGate) -> PermissionGate:
    """The parent's gate, and what the subagent's definition takes away on top of it."""
    return gate.narrowed(
        permission_mode=definition.permission_mode,
        tools=definition.tools or None,
        deny=definition.disallowed_tools,
        source=definition.source or "subagent",
    )
