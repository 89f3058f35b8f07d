"""Build an AgentRuntime from options: the only file that chooses concrete classes.

All lookups in the environment, the home folder and the project happen here, once per run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .errors import OptionsError, SessionNotFoundError, StorageError, ToolInputError
from .events import CODE_CALLER, Event, SystemNotice
from .ground.clock import Clock, SystemClock
from .ground.diagnostic import Diagnostic
from .ground.disk import is_within
from .ground.frozen import changed
from .ground.rooms import is_installed
from .ground.system import working_dir
from .ground.text import existing
from .ground.threads import error_words, run_in_thread
from .ground.words import look_alikes
from .hooks.engine import HookEngine
from .kernel.agent import AgentRuntime, RunRequest
from .kernel.hooks import end_session
from .kernel.part import PartOpener
from .kernel.recorder import may_block, off_loop
from .kernel.registry import ToolRegistry
from .options import AgentDefinition, OpenAgenticOptions, check_options, located, require_options
from .parts.attachments import Attachments
from .parts.budgets import Budgets, LimitLeft, SharedLimits, read_limits
from .parts.claude.names import ALSO, GENERAL_AGENT, ClaudeNames
from .parts.claude.project import ProjectGuidance, ProjectPart
from .parts.code import CodeCalls
from .parts.compaction import Compaction
from .parts.confinement import Confinement
from .parts.custom import class_of, folds_of, is_of_package
from .parts.custom.run import CustomPartRun
from .parts.final_answer import (
    FinalAnswer,
    FinalAnswerTool,
    StructuredOutput,
    ask_for_final_answer,
    final_answer_prompt,
)
from .parts.labels.rules import PLAN, LabelRule, label_words, read_label_rules
from .parts.labels.settings_rules import label_rules_of_settings
from .parts.masking import Masking, mask_value
from .parts.memory import Memories
from .parts.project.agents import BUILT_IN, BUILT_IN_AGENTS, WITHOUT_MEMORY, AgentFile
from .parts.project.granting import files_named
from .parts.project.notices import for_a_run
from .parts.project.plugins import PluginRegistry
from .parts.project.project import OpenedProject, read_project
from .parts.project.prompt import DEFAULT_BASE
from .parts.project.settings import CommandHook, Settings, refuse_inaccessible
from .parts.project.trust import TRUST_VARIABLE, TrustAnswer, TrustStore, trust_from_variable, trusted_folders
from .parts.publishing import Publishing
from .parts.record.folds.prices import PriceTable, built_in_prices, cost, own_prices, with_prices
from .parts.record.signing import RecordSigning
from .parts.servers import ServerTools, ToolServers
from .parts.shell_folder import ShellFolder
from .parts.structured import read_output_schema
from .parts.subagents import SubagentRuns
from .parts.tool_search import DeferredTools
from .parts.trials import Trials
from .parts.undo import KeptFiles
from .permissions.decide import fits_rule
from .permissions.gate import PermissionGate, permission_gate
from .permissions.layers import SettingsRules, read_mode, rules_of_settings
from .permissions.policy import PermissionMode
from .permissions.redact import Redactor
from .permissions.rules import Rule, parse_rules
from .providers.base import Provider, fits
from .providers.named import BASE_URL_KEY, COMPATIBLE, LOCAL_SERVERS
from .providers.wrappers.abilities import HostedProvider
from .sessions.base import SessionStore
from .sessions.core import TENANT_KEY, session_of_request
from .sessions.folds.compaction import BYTES_PER_TOKEN, ContextLimits
from .sessions.folds.features.all import ALL_FOLDS
from .sessions.folds.view import Fold
from .sessions.follow import publish
from .sessions.seal import KEY_FILE_NAME, KEY_NAME, Seal, data_home, sdk_home
from .sessions.store import FileSessionStore
from .sessions.stores.locate import open_store
from .skills.fields import how_to_map, served_model, unmapped_model
from .skills.files import bytecode_folder
from .skills.ledger import row_of, words
from .tools.base import Tool
from .tools.bash import BashTool
from .tools.defaults import default_tools
from .tools.session.task import TaskTool

if TYPE_CHECKING:
    from .parts.mcp.configured.home import McpHome
    from .parts.mcp.configured.resolve import ConfiguredServers
    from .parts.mcp.servers import Servers
    from .tools.memory import MemoryTool

LIMITS_VARIABLE = "OPENAGENTIC_SDK_LIMITS"
TASK = "Task"
MEMORY = "memory"
_GENERAL = AgentDefinition("", DEFAULT_BASE)

_ANY_LETTER = str.maketrans(dict.fromkeys("*?[]{}()\\!\r\n", "?"))
_USUAL_WINDOW_TOKENS = 200_000
# The settings that a subagent with its own options inherits from the run that starts it.
_SHARED_WITH_CHILDREN = (
    "cwd", "project_dir", "setting_sources", "trust_project", "key_file", "redact", "prices", "labels", "sandbox", "clock",
    "limits_file", "otlp_endpoint", "otlp_headers", "on_storage_error",
)  # fmt: skip


def build_agent(options: OpenAgenticOptions, *, servers: ToolServers | None = None) -> AgentRuntime:
    """Build the agent that the options describe. Raises `OptionsError` with the setting to change.

    `servers` are those of an agent built earlier, for a conversation that keeps them between runs.
    """
    check_options(options)
    cwd = options.working_dir()
    if not os.path.isdir(cwd):
        raise OptionsError(f"cwd {str(cwd)!r} is not a folder that can be used: create it or pass another")
    return _Assembly(located(options), servers).agent()


async def open_agent(options: OpenAgenticOptions, *, servers: ToolServers | None = None) -> AgentRuntime:
    """Like `build_agent`, for coroutines: project files, of which there may be thousands, are read in a thread."""
    require_options(options)
    build = partial(build_agent, options, servers=servers)
    return await run_in_thread(build, name="openagentic-project") if options.setting_sources else build()


def mcp_home() -> McpHome:
    """Open the user's MCP data on this machine. Its room is imported on call: a run without servers never loads it."""
    from .parts.mcp.configured.home import McpHome

    home = data_home()
    return McpHome(home / "mcp" if home is not None else None)


def configured_servers(project: OpenedProject) -> ConfiguredServers | None:
    """Read the MCP servers in files of the open setting sources; None if these name none, or without the room for MCP."""
    return mcp_home().configured(project) if _names_servers(project) and is_installed("parts.mcp") else None


def _left_out(project: OpenedProject) -> tuple[Diagnostic, ...]:
    """The diagnostics about project files that need a room that is not installed."""
    if not _names_servers(project) or is_installed("parts.mcp"):
        return ()
    text = "the MCP servers named in files are not started: the parts.mcp room is not installed"
    return (Diagnostic("mcp-missing", text),)


def _names_servers(project: OpenedProject) -> bool:
    home = data_home() if project.reads_own_files else None
    return project.may_name_servers(None if home is None else home / "mcp" / "servers.json")


def _servers(
    options: OpenAgenticOptions, project: OpenedProject, configured: ConfiguredServers | None
) -> tuple[Servers | None, Mapping[str, str]]:
    """Prepare the MCP servers of a run (None without any), and return them with the secrets that they receive.

    Raises `OptionsError`.
    """
    if not options.mcp_servers and configured is None:
        return None, {}
    from .parts.mcp.configured.open import open_servers, secrets_of_servers

    own_servers, home, roots = options.mcp_servers, mcp_home(), project.workspace_roots
    servers = open_servers(own_servers, configured, home, cwd=project.cwd, roots=roots)
    return servers, secrets_of_servers(own_servers, configured, home)


def open_memory(options: OpenAgenticOptions) -> MemoryTool:
    """Create the tool for notes about this project and user. They are stored outside the project, separately per tenant.

    Raises `OptionsError` if there is no home folder.
    """
    from .tools.memory import MemoryFolders, MemoryTool

    tenant = str(options.session_metadata.get(TENANT_KEY) or "")
    return MemoryTool(
        MemoryFolders(sdk_home() / "memory", options.project_root(), Seal(options.key_file), tenant=tenant)
    )


def open_code() -> Tool:
    """Create the tool that runs a model's Python. Its room is imported on call: runs without the tool never load it."""
    from .tools.code import CodeTool

    return CodeTool()


def plan_tools() -> list[Tool]:
    """Create the tools of a planning model. Their room is imported on call: runs without the tools never load it."""
    from .parts.labels.plans.tools import ExtractTool, PlanCodeTool

    return [PlanCodeTool(), ExtractTool()]


def open_project(options: OpenAgenticOptions) -> OpenedProject:
    """Read the project as a run with these options does; `doctor` and `skills` call this, so that they report the same."""
    root, cwd = options.project_root(), options.working_dir()
    trust, *below = [trust_in(folder, options) for folder in trusted_folders(root, cwd)]
    return read_project(
        root,
        cwd=cwd,
        trust=trust,
        below=below[0] if below else None,
        setting_sources=options.setting_sources,
        home=options.home,
        skill_paths=options.skill_paths,
        additional_dirs=options.additional_dirs,
        run_text_commands=options.run_text_commands,
        model_names=options.model_names,
        registry=plugin_registry() if "user" in options.setting_sources and data_home() else None,
    )


def trust_in(folder: str, options: OpenAgenticOptions) -> TrustAnswer:
    """Determine from the options and the user's decisions whether the files of a project folder may grant anything."""
    if options.trust_project is not None:
        reason = f"trust_project={options.trust_project} was set"
        return TrustAnswer("trusted" if options.trust_project else "refused", folder, None, reason)
    if not options.setting_sources:
        return TrustAnswer("unknown", folder, None, "setting_sources is empty")
    decision = trust_from_variable(folder, os.environ.get(TRUST_VARIABLE, ""))
    nobody = TrustAnswer("unknown", folder, None, "this user has no home folder")
    return decision or (trust_store().look_up(folder) if data_home() else nobody)


def project_findings(project: OpenedProject) -> tuple[Diagnostic, ...]:
    """The diagnostics about a project for the start of a run: what was ignored, hidden, withheld or invalid."""
    _, hook_problems = _with_command_hooks(HookEngine(), project.settings.hooks, project)
    configured = configured_servers(project)
    return (
        *project.findings(),
        *rules_of_settings(project.settings, project.root, project.cwd).diagnostics,
        *label_rules_of_settings(project.settings, is_trusted=project.trust.is_trusted)[1],
        *hook_problems,
        *(configured.diagnostics if configured is not None else _left_out(project)),
    )


def _with_command_hooks(
    engine: HookEngine, described: Sequence[CommandHook], project: OpenedProject, mode: str = "default"
) -> tuple[HookEngine, tuple[Diagnostic, ...]]:
    """Add command hooks to the engine; also return the diagnostics about those that cannot run here.

    `parts.claude.command_hooks` is imported on call: runs without such hooks never load it.
    """
    if not described:
        return engine, ()
    from .parts.claude.command_hooks import with_command_hooks

    return with_command_hooks(
        engine,
        described,
        project_dir=project.root,
        permission_mode=mode,
        env=project.settings.env,
        fits=lambda rule, tool, input: fits_rule(rule, tool, input, project.cwd),
    )


def store_of(agent: AgentRuntime) -> SessionStore:
    """The store of an agent that was assembled here, as a `SessionStore`: it can also list and search sessions."""
    assert isinstance(agent.store, SessionStore)
    return agent.store


def run_request(options: OpenAgenticOptions, agent: AgentRuntime) -> RunRequest:
    """Build the request for one run of the agent, in a new session or in the one that the options name.

    Raises `SessionNotFoundError` if `continue_last` is set and this folder has no session.
    """
    resume = options.resume
    if resume is None and options.continue_last:
        resume = newest_session(store_of(agent), agent.cwd)
    metadata = {**_endpoint_metadata(options.provider), **options.session_metadata}
    return RunRequest(
        resume=resume,
        session=named_session(options) if resume is None else None,
        session_id=options.session_id,
        metadata=metadata if agent.redact is None else mask_value(metadata, agent.redact),
        request_id=options.request_id,
        traceparent=options.traceparent,
        part=options.part,
        max_events=options.resume_max_events,
        max_bytes=options.resume_max_bytes,
        timeout_s=options.timeout_s,
        max_tokens=options.max_tokens,
        max_cost_usd=options.max_cost_usd,
    )


async def check_session(agent: AgentRuntime, request: RunRequest) -> None:
    """Check that a run without a prompt has a session to continue: in a new one, nothing would happen.

    Raises `SessionNotFoundError`, or `OptionsError` if no session is named.
    """
    store, name = store_of(agent), request.session
    if request.resume is not None or (name and await off_loop(may_block(store), store.session_exists, name)):
        return
    if name is None:
        raise OptionsError("there is no session to continue: give a prompt to begin one, or name one")
    raise SessionNotFoundError(name, advice="give a prompt to begin one")


def _endpoint_metadata(provider: Provider | None) -> dict[str, str]:
    """Metadata with the endpoint's address, for the command that continues a session; empty if the provider's name
    determines the address.
    """
    if provider is None or provider.name not in (COMPATIBLE, *LOCAL_SERVERS):
        return {}
    from .providers.endpoint import EndpointProvider  # late: heavy, and already loaded if there is such a provider
    from .providers.wire.connect import shown_url
    from .providers.wrappers.wrap import AroundProvider

    while isinstance(provider, AroundProvider):
        provider = provider.provider
    if not isinstance(provider, EndpointProvider) or provider.base_url == LOCAL_SERVERS.get(provider.name):
        return {}
    return {BASE_URL_KEY: shown_url(provider.base_url)}


def named_session(options: OpenAgenticOptions) -> str | None:
    """The id of the session to continue or create: `session`, otherwise one derived from `request_id`.

    None if neither is set, or if `session_id` is.
    """
    if options.session is not None or options.request_id is None or options.session_id is not None:
        return options.session
    return session_of_request(options.request_id)


async def end_conversation(options: OpenAgenticOptions, session_id: str, reason: str = "other") -> list[Event]:
    """Run the session_end hooks of a conversation of several runs (`part`); return their stored events."""
    agent = build_agent(options)
    return await end_session(agent, session_id, reason) if agent.hooks.are_any else []


def newest_session(store: SessionStore, cwd: str) -> str:
    """The id of the top-level session of this folder written to last. Raises `SessionNotFoundError` if it has none."""
    newest = store.list_session_summaries(cwd=cwd, limit=1)
    if not newest:
        error = SessionNotFoundError("(newest)")
        error.args = (f"the folder {cwd} has no session to continue: give a prompt to begin one",)
        raise error
    return newest[0].id


def plugin_registry() -> PluginRegistry:
    """The registry of the plugins that this machine's user added."""
    return PluginRegistry(sdk_home() / "plugins.json")


def trust_store() -> TrustStore:
    """The store of the trust decisions of this machine's user."""
    return TrustStore(sdk_home() / "trust.json")


class _Assembly:
    """The values shared by all agents of one run, from which each of these agents is built."""

    def __init__(self, options: OpenAgenticOptions, servers: ToolServers | None) -> None:
        self._options = options
        self._project = project = open_project(options)
        refuse_inaccessible(project.settings)
        self._home = data_home()
        self._limits_path = _limits_path(options, self._home)
        rules = rules_of_settings(project.settings, project.root, project.cwd)
        own_files = (self._limits_path, None if self._home is None else os.path.join(self._home, "prices.json"))
        kept_paths = [path for path in own_files if path is not None and os.path.exists(path)]
        self._gate, mode_notes = _gate(options, project, rules, _secret_rules(options.key_file, self._home, kept_paths))
        configured = configured_servers(project)
        opened, server_secrets = _servers(options, project, configured)
        self._servers = servers or opened
        self._clock = options.clock or SystemClock()
        environment = dict(os.environ)
        self._may_export = any(map(methodcaller("startswith", "OTEL_EXPORTER_OTLP_"), environment))
        self._redact = _redact(options.redact, environment, server_secrets)
        self._store = _store(options.session_store)
        self._label_rules, label_notes = _label_rules(options, project)
        self._label_words = _label_words(options, project)
        self._makes_plans = PLAN in self._label_words
        self._prices = _prices(options.prices, self._home)
        built_in = BUILT_IN_AGENTS if options.setting_sources else ()
        files = {file.name: file for file in (*built_in, *project.agents.agents)}
        self._agents = {**{name: _definition(file) for name, file in files.items()}, **options.agents}
        # Modes in the files of the user or an administrator, which alone may be looser than that of the run.
        self._own_modes = {
            name: file.permission_mode
            for name, file in files.items()
            if file.scope in ("user", "managed") and name not in options.agents
        }
        engine = options.hooks or HookEngine(clock=self._clock)
        described = (*project.settings.hooks, *project.skill_hooks())
        self._hooks, hook_problems = _with_command_hooks(engine, described, project, self._gate.mode)
        self._notes = [
            *(SystemNotice(f"settings.{note.code}", note.located) for note in for_a_run(rules.diagnostics)),
            *(SystemNotice(f"settings.{note.code}", note.located) for note in for_a_run(label_notes)),
            *(SystemNotice(f"settings.{note.code}", note.located) for note in for_a_run(hook_problems)),
            *(SystemNotice("settings.mode", text) for text in mode_notes),
            *(
                SystemNotice(n.code.replace("-", "."), n.located)
                for n in for_a_run(configured.diagnostics if configured else _left_out(project))
            ),
        ]
        self._memory = open_memory(options) if options.memory else None
        self._tools = self.all_tools()
        self._notes += _mistyped_tools(options, self._tools.names())
        self._notes += _unknown_tools((*rules.allow, *rules.ask, *rules.deny), self._tools.names())
        self._notes += _notes_on_agents(project, options, self._tools.names())

    def agent(self) -> AgentRuntime:
        """Build the main agent, which talks to the caller."""
        options, project = self._options, self._project
        model = options.model or served_model(project.settings.model or "", project.settings.model_names)
        if not model and project.settings.model:
            raise OptionsError(
                f"the model {project.settings.model!r} in settings is an alias: map it to a model (modelNames in "
                "settings, options.model_names), or pass a model"
                " (--model, options.model)"
            )
        if not model:
            raise OptionsError(
                'model is not set: name one that the provider serves (--model, options.model, "model" in settings.json)'
            )
        provider, answer_form, tools = self.final_answer(options)
        base = DEFAULT_BASE if options.system_prompt is None else options.system_prompt
        about_answer = final_answer_prompt(answer_form) if answer_form else ""
        guidance = ProjectGuidance(
            project,
            base="\n\n".join(part for part in (base, about_answer) if part),
            notices=self.notices,
            skills=options.skills,
        )
        return AgentRuntime(
            provider=provider,
            model=model,
            api_key=cast("str | None", options.api_key),  # endpoints accept callables too
            tools=tools,
            hooks=self._hooks,
            gate=self._gate,
            store=self._store,
            clock=self._clock,
            cwd=project.cwd,
            project_dir=project.root,
            cost=lambda usage, model, tier=None: cost(usage, model, self._prices, tier),
            agent_names=tuple(self._agents),
            workspace_roots=project.workspace_roots,
            max_steps=options.max_steps,
            blob_bytes=options.blob_bytes,
            max_answer_bytes=options.max_answer_bytes,
            on_storage_error=options.on_storage_error,
            redact=self._redact,
            session_dir=self.session_dir,
            seal=Seal(options.key_file),
            parts=self.parts(guidance, self._gate.offered_tools, tools, answer_form),
            folds=self.folds(),
        )

    def folds(self) -> tuple[type[Fold], ...]:
        """The folds over the log that the agent's runs need, in addition to the kernel's own state."""
        folds = (*ALL_FOLDS, *own) if (own := folds_of(self._options.parts)) else ALL_FOLDS
        if not (self._label_rules or self._makes_plans):
            return folds
        from .parts.labels.fold import LabelsFold

        if not self._makes_plans:
            return (*folds, LabelsFold)
        from .parts.labels.plans.part import PlannerFold

        return (*folds, LabelsFold, PlannerFold)

    def parts(
        self,
        guidance: ProjectGuidance,
        offers: Callable[[Iterable[str]], Iterable[str]],
        tools: ToolRegistry,
        answer_form: FinalAnswer | None = None,
    ) -> tuple[PartOpener, ...]:
        """The features of an agent's runs, in the order in which the loop calls them."""
        options = self._options
        limits = ContextLimits(options.max_context_tokens, options.max_context_bytes)
        defer_bytes = _defer_bytes(options)
        # A summary is not a final answer, so it is requested without the answer's form.
        summary_provider = guarded_provider(options, self._clock) if answer_form else None
        parts: list[PartOpener] = [partial(Publishing, tell=partial(publish, self._store)), *self.traces()]
        if self._redact is not None:
            parts.append(partial(Masking, redact=self._redact))
        # Servers first: all other parts may use their tools, and `/mcp__...` must not be looked up as a skill.
        if self._servers is not None:
            parts.append(partial(ServerTools, servers=self._servers, offers=offers))
        parts.append(partial(ProjectPart, guidance=guidance))
        common = _shared_limits(options, self._limits_path)
        parts.append(partial(Budgets, shared=None if common is None else partial(common.shared, self._store)))
        parts += [
            ClaudeNames,
            ShellFolder,
            partial(Confinement, sandbox=options.sandbox),
        ]
        if defer_bytes is not None and not self._makes_plans:
            parts.append(partial(DeferredTools, limit_bytes=defer_bytes))
        # A note may contain text from others, which the planning model must not read; its plan reads notes by a call.
        if self._memory is not None and MEMORY in tools and not self._makes_plans:
            parts.append(partial(Memories, read=self._memory.memory.overview))
        own = [opener for opener in options.parts if not is_of_package(opener)]
        parts += [partial(CustomPartRun, kind=class_of(opener), opener=opener) for opener in own]
        # After those that change the content of a request, because compaction measures the request.
        parts.append(partial(Compaction, limits=limits, provider=summary_provider))
        parts.append(partial(SubagentRuns, child=self.child, max_depth=options.max_subagent_depth))
        if answer_form is not None:
            parts.append(partial(StructuredOutput, answer=answer_form))
        parts += [cast(PartOpener, opener) for opener in options.parts if is_of_package(opener)]
        parts += (KeptFiles, CodeCalls)
        if options.sandbox != "off":
            parts.append(Trials)
        if self._label_rules or self._makes_plans:
            parts += self._label_parts(summary_provider)
        if options.record_signers:
            parts.append(partial(RecordSigning, store=self._store, signers=tuple(options.record_signers)))
        # Last, so that attachments that other parts add to a prompt are stored too.
        parts.append(Attachments)
        return tuple(parts)

    def _label_parts(self, plan_provider: Provider | None) -> Iterator[PartOpener]:
        """Yield the part for labels and, if enabled, that for plans, which asks `plan_provider` (None: the run's)."""
        from .parts.labels.part import Labels  # only if labels are on

        project, is_trusted = self._project, self._project.trust.is_trusted
        texts = [file.path for file in project.files() if file.kind != "settings"]
        root = os.path.realpath(project.root)
        has_guidance = any(is_within(os.path.realpath(path), root) for path in texts)
        yield partial(Labels, rules=self._label_rules, is_trusted=is_trusted, has_guidance=has_guidance)
        if self._makes_plans:
            from .parts.labels.plans.part import Plans

            yield partial(Plans, is_strict="strict" in self._label_words, provider=plan_provider)

    def final_answer(self, options: OpenAgenticOptions) -> tuple[Provider, FinalAnswer | None, ToolRegistry]:
        """Choose the provider, the form of the final answer (None without a schema), and the tools to offer."""
        own_provider = guarded_provider(options, self._clock)
        tools = self._tools.only(self._gate.offered_tools(self._tools.names()))
        if options.output_schema is None:
            return own_provider, None, tools
        schema = read_output_schema(options.output_schema)
        provider, answer_form = ask_for_final_answer(
            own_provider, schema, options.output_form, options.output_repair_turns
        )
        if answer_form.form == "tool":
            tools = ToolRegistry((*tools, FinalAnswerTool(schema)))
        return provider, answer_form, tools

    def child(self, name: str, starter: AgentRuntime) -> AgentRuntime:
        """Build the agent of a subagent: its own prompt and tools, under the mode and denials of `starter`."""
        definition = self._definition_of(name)
        if definition.options is not None:
            return own_child(name, definition.options, self._options, starter)
        parent = self.agent()
        names_all = not definition.tools or "*" in definition.tools
        source = definition.source or "subagent"
        gate = self._in_own_mode(name, permission_gate(starter.gate))
        gate = gate.for_subagent(None if names_all else definition.tools, source)
        gate = gate.narrowed(permission_mode=_agent_mode(definition), deny=definition.disallowed_tools, source=source)
        names = self._tool_names(definition)
        tools = self._tools.only(names)
        patterns = parse_rules([tool for tool in definition.tools if tool.startswith("mcp__")], "ask", "agent")

        def offers(served: Iterable[str]) -> Iterable[str]:
            """The servers' tools that the definition names, or all if it names none, without those it or the gate denies."""
            tools = [tool for tool in served if names_all or any(rule.covers(tool) for rule in patterns)]
            return gate.offered_tools(tool for tool in tools if tool not in definition.disallowed_tools)

        may_come_later = bool(patterns) and self._servers is not None
        if not names_all and not may_come_later and not names & {*self._tools.names()}:
            tool_list = ", ".join(map(repr, definition.tools))
            raise ToolInputError(
                f"the agent {name!r} would have no tools, since no tool here is named {tool_list}; correct its "
                f"`tools` in {source}",
                path="agent",
            )
        model = definition.model
        if definition.provider is None:
            model = served_model(model or "", self._project.settings.model_names)
        # A starter without a name talks to the caller, and its provider may request the form of the final answer.
        provider = starter.provider if starter.name else guarded_provider(self._options, self._clock)
        tools = tools.only(gate.offered_tools(tools.names()))
        guidance = ProjectGuidance(
            self._project,
            base=definition.prompt,
            brings=definition.skills,
            reads_memory=not (definition.source == BUILT_IN and name in WITHOUT_MEMORY),
        )
        return replace(
            parent,
            name=name,
            provider=definition.provider or provider,
            model=model or starter.model,
            tools=tools,
            gate=gate,
            parts=self.parts(guidance, offers, tools),
            max_steps=definition.max_steps or parent.max_steps,
        )

    def _tool_names(self, definition: AgentDefinition) -> set[str]:
        """The names of a subagent's tools: those that its definition names (`*` names all), otherwise all except Task;
        without those that it denies.
        """
        named = {ALSO.get(tool, tool) for tool in (tool.partition("(")[0].strip() for tool in definition.tools)}
        if "*" in named:
            named = set(self._tools.names())
        return (named or {*self._tools.names()} - {TASK}) - set(definition.disallowed_tools)

    def _definition_of(self, name: str) -> AgentDefinition:
        """The definition of the subagent with this name. Raises `ToolInputError` if it cannot be started."""
        definition = self._agents.get(name) or (_GENERAL if name == GENERAL_AGENT else None)
        if definition is None:
            raise ToolInputError(f"unknown agent {name!r}: {existing('agents', self._agents)}", path="agent")
        if definition.isolation:
            text = (
                f"the agent {name!r} requests isolation {definition.isolation!r}, which is not available here: "
                "remove that field"
            )
            raise ToolInputError(text, path="agent")
        return definition

    def _in_own_mode(self, name: str, gate: PermissionGate) -> PermissionGate:
        """Return the gate, in a looser mode than `default` if the agent file of the user or an administrator names one."""
        mode = {"acceptEdits": "acceptEdits", "bypassPermissions": "bypass"}.get(self._own_modes.get(name, ""))
        # With several layers, this run is already narrowed, and a looser mode must not undo that.
        if mode is None or len(gate.layers) != 1 or gate.mode != "default":
            return gate
        if mode == "bypass" and self._project.settings.bypass_disabled:
            return gate
        return gate.with_mode(cast(PermissionMode, mode))

    def _offers(self, agent: str) -> bool:
        """Whether the deny rules permit the subagent of this name."""
        verdict = self._gate.verdict(TASK, {"agent": agent, "prompt": ""})
        return verdict.category != "deny_rule"

    def all_tools(self) -> ToolRegistry:
        options = self._options
        own: list[Tool] = [] if self._memory is None else [self._memory]
        own += plan_tools() if self._makes_plans else [open_code()] if options.code else []
        if options.tools is not None:
            caller_tools = (tool for tool in options.tools if not (self._makes_plans and tool.name == CODE_CALLER))
            registry = ToolRegistry((*caller_tools, *own))
            if any(
                isinstance(tool, BashTool) and not tool.keeps(options.sandbox, options.bash_effects)
                for tool in registry
            ):
                raise OptionsError(
                    f"sandbox={options.sandbox!r} and bash_effects={options.bash_effects!r} apply to the built-in Bash, "
                    "and `tools` contains another one: set them there, as in BashTool"
                    "(sandbox=..., bash_effects=...)"
                )
            return _with_task(registry, options.agents)
        agents = {name: definition.description for name, definition in self._agents.items() if self._offers(name)}
        bash = BashTool(
            environment={"PYTHONPYCACHEPREFIX": bytecode_folder("commands"), **self._project.settings.env},
            bash_effects=options.bash_effects,
            sandbox_protected=_hook_files(self._project),
            trusts_git=self._project.trust.is_trusted,
        )
        return ToolRegistry((*default_tools(agents, library=self._project.library, bash=bash), *own))

    def notices(self) -> list[SystemNotice]:
        """The notices for the start of a run: on the durability of its store, and those from building the agent."""
        durability = self._store.durability_notice()
        notices = [SystemNotice("store.durability", durability)] if durability else []
        return [*notices, *self._notes]

    def traces(self) -> list[PartOpener]:
        """The part that sends traces of the runs to a collector, as a list; empty without a collector.

        Raises `OptionsError` for invalid settings. Runs without a collector never load the part.
        """
        options = self._options
        if options.otlp_endpoint is None and not self._may_export:
            return []
        from .parts.record.telemetry.exporter import exporter_for
        from .parts.record.telemetry.part import Traces
        from .parts.record.telemetry.settings import read_telemetry

        settings = read_telemetry(options.otlp_endpoint, options.otlp_headers, os.environ)
        if settings is None:
            return []
        folder = None if self._home is None else self._home / "telemetry"
        return [partial(Traces, exporter=exporter_for(self._store, settings, folder, self._redact))]

    def session_dir(self, session_id: str) -> str | None:
        return str(self._store.session_dir(session_id)) if isinstance(self._store, FileSessionStore) else None


def own_child(name: str, options: OpenAgenticOptions, mine: OpenAgenticOptions, starter: AgentRuntime) -> AgentRuntime:
    """Build the runtime of a subagent with its own options; `mine` and `starter` belong to the run that starts it."""
    shared = {name: getattr(mine, name) for name in _SHARED_WITH_CHILDREN}
    store = cast(SessionStore, starter.store)
    own = _Assembly(located(replace(options, **shared, session_store=store)), None).agent()
    layers = permission_gate(own.gate).layers
    gate = permission_gate(starter.gate).for_subagent(None, "subagent")
    return replace(own, name=name, gate=changed(gate, layers=(*gate.layers, *layers)))


def _with_task(tools: ToolRegistry, agents: Mapping[str, AgentDefinition]) -> ToolRegistry:
    """Add the Task tool to the caller's tools, unless it is one of them, for subagents that are defined without `options`.

    A subagent with `options` is started by a tool of its own (`Agent.as_tool`).
    """
    descriptions = {name: each.description for name, each in agents.items() if each.options is None}
    if descriptions and TASK not in tools:
        tools.register(TaskTool(descriptions))
    return tools


def _store(store: SessionStore | str | None) -> SessionStore:
    if not isinstance(store, str):
        return open_store() if store is None else store
    try:
        return open_store(store)
    except OptionsError as error:
        raise OptionsError(f"session_store: {error}") from error


def _definition(file: AgentFile) -> AgentDefinition:
    return AgentDefinition(
        description=file.description,
        prompt=file.prompt,
        tools=file.tools,
        model=file.model or None,
        disallowed_tools=file.disallowed_tools,
        max_steps=file.max_turns,
        permission_mode=cast(PermissionMode | None, file.permission_mode or None),  # the gate checks it
        skills=file.skills,
        source=file.path,
        isolation=file.isolation or None,
    )


def _agent_mode(definition: AgentDefinition) -> PermissionMode | None:
    """The mode that a definition imposes on a subagent; None for its parent's."""
    words: Mapping[str, PermissionMode | None] = {"manual": "default", "auto": None}
    return words.get(str(definition.permission_mode), definition.permission_mode)


def _prices(prices: Mapping[str, Any] | str | None, home: Path | None) -> PriceTable:
    if prices is None:
        own = None if home is None else home / "prices.json"
        try:
            has_own = own is not None and bool(os.lstat(own))
        except (FileNotFoundError, NotADirectoryError):
            has_own = False
        except OSError:  # reading it explains the error; the built-in prices, which could be lower, must not apply
            has_own = True
        return with_prices(own) if own is not None and has_own else built_in_prices()
    return with_prices(prices) if isinstance(prices, str) else own_prices(prices)


def guarded_provider(options: OpenAgenticOptions, clock: Clock) -> Provider:
    """Wrap the provider in retries, a circuit breaker and fallbacks: an endpoint always, any other provider
    if the options set `retry` or `fallback`.

    With `stream=False`, the result also requests whole answers.
    """
    provider = options.provider
    assert provider is not None, "checked by build_agent"
    is_bare = options.retry is None and not options.fallback and not fits(provider, HostedProvider)
    if is_bare and options.stream:
        return provider
    from .providers.wrappers.guarded import guarded, unstreamed  # late: a provider that plays a script does not need it

    if not options.stream:
        provider = unstreamed(provider)
    return provider if is_bare else guarded(provider, retry=options.retry, fallback=options.fallback, clock=clock)


def _limits_path(options: OpenAgenticOptions, home: Path | None) -> str | None:
    """The path of the file with limits shared by sessions, whether it exists or not.

    None if no setting names one and this user has no home folder.
    """
    setting = options.limits_file or os.environ.get(LIMITS_VARIABLE)
    if setting:
        return os.path.join(working_dir(), os.path.expanduser(setting))
    return None if home is None else os.path.join(home, "limits.toml")


def _shared_limits(options: OpenAgenticOptions, path: str | None) -> SharedLimits | None:
    """The shared limits in the file at `path`; None without a file.

    Raises `OptionsError` for a file that is invalid, or that a setting names and that does not exist.
    """
    if path is None:
        return None
    setting = options.limits_file or os.environ.get(LIMITS_VARIABLE)
    if setting and not os.path.exists(path):
        raise OptionsError(
            f"the limits file {path!r} does not exist: create it, or unset limits_file and ${LIMITS_VARIABLE}"
        )
    try:
        return read_limits(Path(path))
    except OptionsError as error:
        raise OptionsError(f"the limits file cannot be used: {error}") from error


def limits_left(options: OpenAgenticOptions) -> tuple[LimitLeft, ...]:
    """The remainder of the limits shared with all sessions of the options' store. This call blocks.

    Raises `OptionsError`, and the store's errors.
    """
    limits = _shared_limits(options, _limits_path(options, data_home()))
    now = (options.clock or SystemClock()).now()
    return () if limits is None else limits.left(_store(options.session_store), now)


def _defer_bytes(options: OpenAgenticOptions) -> int | None:
    """The size of all tool definitions above which some are deferred, a tenth of a window; None if options exclude it."""
    window = ContextLimits(options.max_context_tokens, options.max_context_bytes)
    usual = ContextLimits(_USUAL_WINDOW_TOKENS)
    share = window.budget_bytes(0.1, BYTES_PER_TOKEN) or usual.budget_bytes(0.1, BYTES_PER_TOKEN)
    return share if options.defer_tools == "auto" else None


def _redact(
    mask: Callable[[str], str] | bool, environment: Mapping[str, str], server_secrets: Mapping[str, str]
) -> Callable[[str], str] | None:
    if mask is True:
        return Redactor.from_environment(environment, server_secrets)
    if mask is False or isinstance(mask, Redactor):
        return mask or None

    def careful(text: str) -> str:
        """Mask the text; if that fails, a secret may remain in it, so none of it is stored."""
        try:
            return str(mask(text))
        except BaseException as error:  # the caller's function; even an interrupt must not let the text through
            raise StorageError(f"redact failed, so nothing is stored: {': '.join(error_words(error))}") from error

    return careful


def _hook_files(project: OpenedProject) -> tuple[str, ...]:
    """The project files named by hook commands, existing or not: their content determines what a hook runs."""
    paths = [
        os.path.join(root, name)
        for hook in project.settings.hooks
        for root in [os.path.realpath(hook.folder or project.root)]
        for name in files_named(" ".join((hook.command, *(hook.args or ()))), root, or_missing=True)
    ]
    return tuple(dict.fromkeys(paths))


def _gate(
    options: OpenAgenticOptions, project: OpenedProject, rules: SettingsRules, denied: Sequence[str]
) -> tuple[PermissionGate, list[str]]:
    """Build the gate of a run: the caller's, with the rules of options and settings and the built-in denials, in its own
    mode or otherwise that of the settings. Also return notes about refused modes.
    """
    own_gate = options.permission_gate or changed(_usual_gate().forgetful(), clock=options.clock)
    gate, notes = _in_settings_mode(own_gate, project.settings)
    gate = replace(
        gate,
        allow=[
            *parse_rules(options.allowed_tools, "allow"),
            *(parse_rules([MEMORY], "allow", "options.memory") if options.memory else ()),
            *(parse_rules([CODE_CALLER], "allow", "options.code") if options.code else ()),
            *(
                parse_rules([CODE_CALLER, "extract"], "allow", "options.labels")
                if PLAN in _label_words(options, project)
                else ()
            ),
            *rules.allow,
        ],
        ask=rules.ask,
        deny=[*parse_rules(options.disallowed_tools, "deny"), *rules.deny, *parse_rules(denied, "deny", "built in")],
        trusted=gate.trusted or project.trust.is_trusted,
        protected_paths=(*gate.protected_paths, *_hook_files(project)),
        workspace_roots=gate.workspace_roots or project.workspace_roots,
    )
    return gate, notes


def _mistyped_tools(options: OpenAgenticOptions, names: Sequence[str]) -> Iterator[SystemNotice]:
    """Yield a notice for each of the caller's rules that names an unknown tool resembling an existing one."""
    own = options.permission_gate.layers[:1] if isinstance(options.permission_gate, PermissionGate) else ()
    allowed = [*parse_rules(options.allowed_tools, "allow"), *(rule for layer in own for rule in layer.allow.rules)]
    denied = [*parse_rules(options.disallowed_tools, "deny"), *(rule for layer in own for rule in layer.deny.rules)]
    for option, rules in (("allowed_tools", allowed), ("disallowed_tools", denied)):
        for rule in rules:
            is_known = rule.source not in ("options", "command line") or any(map(rule.covers, names))
            near = [] if is_known else look_alikes(rule.tool, names, 0.6)
            if near:
                text = f"{option}: no tool is called {rule.tool!r}; did you mean {' or '.join(near)}?"
                yield SystemNotice("options.tool", text)


def _unknown_tools(rules: Sequence[Rule], names: Sequence[str]) -> Iterator[SystemNotice]:
    """Yield a notice for each tool that rules in settings name and that exists neither here nor in Claude Code."""
    for tool in dict.fromkeys(rule.tool for rule in rules):
        same = [rule for rule in rules if rule.tool == tool]
        # A name with other characters may be a pattern, or the name of a server's tool.
        if not tool.isalnum() or any(map(same[0].covers, names)) or tool in words("tool"):
            continue
        near = look_alikes(tool, names, 0.6)
        advice = f"; did you mean {' or '.join(near)}?" if near else ""
        texts = ", ".join(rule.text for rule in same)
        yield SystemNotice("settings.tool", f"{same[0].source}: no tool is called {tool!r} ({texts}){advice}")


def _notes_on_agents(
    project: OpenedProject, options: OpenAgenticOptions, tools: Sequence[str]
) -> Iterator[SystemNotice]:
    """Yield at most one notice about unmapped model aliases in agent files, and at most one about unknown tools in them."""
    by_word: dict[str, list[str]] = {}
    unknown: dict[str, list[str]] = {}
    for file in project.agents.agents:
        word = unmapped_model(file.model, project.settings.model_names)
        if word is not None:
            by_word.setdefault(word, []).append(file.name)
        for tool in dict.fromkeys(rule.partition("(")[0].strip() for rule in file.tools):
            if tool.isalnum() and ALSO.get(tool, tool) not in tools and tool not in words("tool"):
                unknown.setdefault(tool, []).append(file.name)
    if by_word:
        model = options.model or served_model(project.settings.model or "", project.settings.model_names)
        details = "; ".join(f"{word}: {_first_names(names)}" for word, names in by_word.items())
        text = (
            "the model aliases of these agents are not mapped to models, so they run on "
            f"{repr(model) if model else 'the model of the run'}"
        )
        yield SystemNotice("agents.model", f"{text} ({details}): {how_to_map(next(iter(by_word)))}")
    if unknown and options.tools is None:
        details = "; ".join(f"{tool}: {_first_names(names)}" for tool, names in unknown.items())
        yield SystemNotice("agents.tool", f"agents list tools that do not exist, and run without them ({details})")


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


@cache
def _usual_gate() -> PermissionGate:
    return PermissionGate()


def _label_words(options: OpenAgenticOptions, project: OpenedProject) -> tuple[str, ...]:
    """The presets, rules and modes of labels in options and settings."""
    return (*label_words(options.labels), *(rule.text for rule in project.settings.labels))


def _label_rules(options: OpenAgenticOptions, project: OpenedProject) -> tuple[tuple[LabelRule, ...], list[Diagnostic]]:
    """The label rules of options and settings combined, and the diagnostics for invalid ones."""
    own = () if options.labels == "off" else read_label_rules(options.labels)
    if not project.settings.labels:
        return own, []
    more, notes = label_rules_of_settings(project.settings, is_trusted=project.trust.is_trusted)
    return (*own, *more), notes


def _secret_rules(key_file: str | None, home: Path | None, kept_paths: Sequence[str]) -> list[str]:
    """The rules that protect the installation's signing key, its server's token, MCP consents and logins, and memories
    against every tool but the memory tool, and the files of `kept_paths` against changes.
    """
    key = key_file or os.environ.get(KEY_FILE_NAME)
    paths = [(os.path.abspath(key), "")] if key else []
    if home is not None:
        below = [("mcp", "/**"), ("memory", "/**"), ("server.token", ""), *([] if key else [(KEY_NAME, "")])]
        paths += [(os.path.join(os.path.abspath(home), name), inside) for name, inside in below]
    real_folder = cache(os.path.realpath)

    def places(path: str) -> set[str]:
        folder, name = os.path.split(path)
        real = os.path.join(real_folder(folder), name)
        real = os.path.realpath(real) if os.path.islink(real) else real
        # Characters with a meaning in patterns are replaced by a wildcard for any character.
        return {place.translate(_ANY_LETTER) for place in (path, real)}

    secret = sorted({place + inside for path, inside in paths for place in places(path)})
    rules = [f"{tool}(/{place})" for place in secret for tool in ("Read", "Edit")]
    return [*rules, *(f"Edit(/{place})" for path in kept_paths for place in sorted(places(path)))]


def _in_settings_mode(gate: PermissionGate, settings: Settings) -> tuple[PermissionGate, list[str]]:
    """Give a gate without a mode the settings' mode, and refuse `bypass` where settings forbid it; also return notes."""
    notes: list[str] = []
    if not gate.is_mode_given and settings.default_mode is not None:
        try:
            gate = gate.with_mode(read_mode(settings.default_mode))
        except OptionsError as error:
            row = row_of("mode", settings.default_mode)
            advice = row.how if row is not None else error
            notes.append(f"the mode {settings.default_mode[:80]!r} from settings is ignored: {advice}")
    if settings.bypass_disabled and gate.mode == "bypass":
        gate = gate.with_mode("default")
        notes.append("settings disable mode bypass: this run uses mode default")
    return gate, notes
