"""Every setting of a run, declared once: its type, check, default and purpose, and where it can be set.

Nothing here is looked up, opened or connected: `assemble.build_agent` does that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from .errors import InvalidEventError, OptionsError, PermissionRuleError
from .ground.checks import (
    BOOL,
    NAME,
    SECONDS,
    TEXT,
    Check,
    check_settings,
    file,
    is_a,
    is_callable,
    list_of,
    one_of,
    or_none,
    shown,
)
from .ground.clock import Clock
from .ground.frozen import frozen
from .ground.schemas import require_checkable
from .ground.settings import (
    AnyPath,
    Doors,
    Name,
    Paths,
    Positive,
    Seconds,
    Texts,
    WithAdvice,
    check_fields,
    described,
    nondefault_values,
)
from .ground.system import working_dir
from .hooks.engine import POINTS, HookEngine
from .hooks.models import HookMatcher
from .kernel.agent import AgentRuntime
from .kernel.registry import ToolRegistry
from .parts.custom import CustomPart, check_parts
from .parts.labels.rules import PLAN, PRESETS, read_label_rules
from .parts.project.claude import find_project_root
from .permissions.gate import RULES, PermissionGate
from .permissions.policy import PermissionMode
from .permissions.rules import PermissionEffect, parse_rules
from .providers.base import CompletingProvider, Provider, StreamingProvider, fits
from .providers.keys import ApiKey
from .providers.wrappers.fallback import Fallback
from .providers.wrappers.retry import RetryPolicy
from .serialization import dumps_json
from .sessions.base import SessionStore
from .sessions.folds.trace import read_traceparent
from .sessions.log.folder import is_session_id
from .sessions.seal import Signer
from .tools.base import Tool

SettingSource = Literal["user", "project", "local"]
SETTING_SOURCES: tuple[SettingSource, ...] = ("user", "project", "local")


# --- checks beyond types ---------------------------------------------------------------------------------------------


def _json(value: Any) -> str | None:
    try:
        dumps_json(value)
    except (InvalidEventError, RecursionError):
        return "a mapping that JSON can express"
    return None if isinstance(value, Mapping) else "a mapping"


def _texts_by_text(description: str) -> Check:
    def check(value: Any) -> str | None:
        fits = isinstance(value, Mapping) and all(isinstance(word, str) for pair in value.items() for word in pair)
        return None if fits else description

    return check


def _rules(effect: PermissionEffect) -> Check:
    def check(value: Any) -> str | None:
        requirement = RULES(value)
        if requirement is None:
            try:
                parse_rules(value, effect)
            except PermissionRuleError as error:
                return f"a list of names or rules ({error.rule!r:.100} is not one, since {error.reason})"
        return requirement

    return check


def _pattern(value: Any) -> str | None:
    try:
        re.compile(value)
    except (TypeError, re.error, RecursionError, OverflowError):
        return "a regular expression"
    return None if isinstance(value, str) else "a regular expression"


def _api_key(value: Any) -> str | None:
    return None if isinstance(value, str) or callable(value) else "text, a callable"


def a_provider(value: Any) -> str | None:
    """Return None for a provider (an object with a name, and `complete` or `stream`), otherwise a description of one."""
    is_one = (fits(value, CompletingProvider) or fits(value, StreamingProvider)) and not isinstance(value, type)
    words = "a provider (a name, and complete or stream), for example OpenAIProvider()"
    return None if is_one and isinstance(value.name, str) else words


def _tools(value: Any) -> str | None:
    if isinstance(value, ToolRegistry):
        return None
    items: Any = value if isinstance(value, list | tuple) else ()
    wrong = next((each for each in items if not isinstance(each, Tool)), None)
    advice = ""
    if isinstance(wrong, str):
        advice = " (without this setting, the built-in tools are available; disallowed_tools removes some of them)"
    elif isinstance(wrong, type) and issubclass(wrong, Tool):
        advice = f" (write {wrong.__name__}(), an object of the class)"
    elif callable(wrong):
        advice = " (write @tool above the function, or pass it to an Agent)"
    return list_of(is_a(Tool, "a tool"), f"tools{advice or ' (see `tool`)'}")(value)


def _session_id(value: Any) -> str | None:
    return None if is_session_id(value) else "1 to 128 letters, digits, . _ and -, a letter or digit first"


def _traceparent(value: Any) -> str | None:
    return None if read_traceparent(value) else "a traceparent: 00-TRACE-SPAN-FLAGS in hex"


def _label_rules(value: Any) -> str | None:
    requirement = f"one of {', '.join(PRESETS)}, {PLAN}, or a list of these and of rules on labels"
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        return requirement
    try:
        read_label_rules(value)
    except PermissionRuleError as error:
        return f"{requirement} ({error.rule!r:.100} is not one of them)"
    return None


def _redact(value: Any) -> str | None:
    return None if isinstance(value, bool) or callable(value) else "True, False or a function"


def _model_or_fallback(value: Any) -> str | None:
    return None if isinstance(value, Fallback) else NAME(value)


def _isolation(value: Any) -> str | None:
    return None if value in (None, "") else "None, since isolation is not available here"


def _groups(value: Any) -> str | None:
    return list_of(_group, "Limits(...) and other groups of settings")(value)


def _group(value: Any) -> str | None:
    return None if value.__class__ in OptionGroup.__args__ else "a group of settings"


def _checked_elsewhere(value: Any) -> None:
    """Accept any value: its consumer reports errors."""


KeyOption = Annotated[ApiKey, _api_key]
Fallbacks = Annotated[Sequence[Fallback | str], list_of(_model_or_fallback, "models or Fallback(...)s")]
Prices = Annotated[Mapping[str, Any] | str, is_a(str | Mapping, "a mapping of models to prices, or a path")]
SettingSources = Annotated[Sequence[SettingSource], list_of(one_of(*SETTING_SOURCES), "'user', 'project' and 'local'")]
ModelNames = Annotated[Mapping[str, str], _texts_by_text("a mapping of words to models")]
Headers = Annotated[Mapping[str, str], _texts_by_text("a mapping of names to values")]
AllowRules = Annotated[Sequence[str], _rules("allow")]
DenyRules = Annotated[Sequence[str], _rules("deny")]
ServersByName = Annotated[
    Mapping[str, Any], is_a(Mapping, "a mapping of names to McpServer(...) or entries as in .mcp.json")
]
AgentsByName = Annotated[Mapping[str, "AgentDefinition"], is_a(Mapping, "a mapping of names to AgentDefinition(...)")]
StoreOrName = Annotated[SessionStore | str, is_a(str | SessionStore, "a session store, or its name for open_store()")]
Signers = Annotated[Sequence[Signer], list_of(is_a(Signer, "a signer"), "signers, as in `parts.record.signers`")]
FilePath = Annotated[str | os.PathLike[str], file]


@described
@frozen
class AgentDefinition(WithAdvice):
    """A subagent that the model can start through the Task tool."""

    description: str
    """When to use it, for the model."""
    prompt: str
    """Its system prompt."""
    tools: Texts = ()
    """The names of the tools that it may use; empty means all of its parent's except Task."""
    provider: Annotated[Provider, a_provider] | None = None
    """The provider to ask (default: the parent's)."""
    model: str | None = None
    """The model's name at the provider (default: the parent's)."""
    disallowed_tools: Texts = ()
    """Names of tools that it may not use."""
    max_steps: int | None = None
    """The maximum number of model calls per run (default: the parent's)."""
    permission_mode: PermissionMode | None = None
    """A permission mode, which cannot be looser than the parent's."""
    skills: Texts = ()
    """Names of skills that are active from its start."""
    source: str | None = None
    """The agent file that defines it."""
    isolation: Annotated[str | None, _isolation] = None
    """The isolation requested by an agent file; an agent that requires isolation does not start."""
    options: Annotated[Any, _checked_elsewhere] = None
    """Separate `OpenAgenticOptions`, in place of the other fields: its model, system prompt, tools, output and parts; the
    store, the project, the limits and the denials of its parent still apply.
    """


@described
@frozen(kw_only=True)
class Project(WithAdvice):
    """The folder in which an agent works, and the project files that it reads there."""

    cwd: Annotated[AnyPath | None, Doors("--cwd, `project` in agents.toml")] = None
    """The working directory of tools (default: the process's)."""
    project_dir: AnyPath | None = None
    """The root for `.claude` and CLAUDE.md, which are read from there down to cwd (default: cwd's repository, else cwd)."""
    setting_sources: Annotated[SettingSources, Doors("--setting-sources", toml=True)] = ()
    """The sources of settings, memory, skills, commands and agents: any of "user", "project", "local"."""
    trust_project: Annotated[bool | None, Doors("--trust, $OPENAGENTIC_SDK_TRUST", toml=True)] = None
    """True lets the project's files grant (hooks, env, allow rules, skill grants), False never does, None uses the stored
    decisions.
    """
    run_text_commands: Annotated[bool, Doors("settings.json", flag="--text-commands")] = False
    """Run the !`commands` in the text of trusted skills and commands that an allow rule covers, and insert their output;
    `enableSkillShellExecution` in settings also does so, and `disableSkillShellExecution` forbids it.
    """
    model_names: Annotated[ModelNames, Doors("`modelNames` in settings.json")] = field(default_factory=dict)
    """The models that words in files (haiku, sonnet, opus) refer to; other words leave the model unchanged."""
    additional_dirs: Annotated[Paths, Doors("settings.json")] = ()
    """Additional folders that belong to the workspace."""
    system_prompt: Annotated[str | None, Doors(toml=True, flag="--system TEXT")] = None
    """The text that replaces the built-in base of the system prompt."""
    skills: Texts = ()
    """Names of skills that are active from the start of a session."""
    skill_paths: Annotated[Paths, Doors(flag="--skill-path DIR")] = ()
    """Additional folders of skills, whatever the setting sources are."""
    home: AnyPath | None = None
    """The home folder in which to look for `.claude` (default: the user's)."""


@described
@frozen(kw_only=True)
class Permissions(WithAdvice):
    """The permissions of an agent."""

    allowed_tools: Annotated[AllowRules, Doors("--allow, settings.json, `allow` in agents.toml")] = ()
    """Names or rules of calls that need no approval: "Read", "Bash(git diff:*)"."""
    disallowed_tools: Annotated[DenyRules, Doors("--deny, settings.json", toml=True)] = ()
    """Names or rules of calls that are denied."""
    permission_gate: Annotated[PermissionGate | None, Doors("--permission-mode, settings.json, agents.toml")] = None
    """The whole policy, to which allowed_tools and disallowed_tools are added (default: mode "default")."""
    labels: Annotated[str | Sequence[str], _label_rules, Doors(toml=True, flag="--labels RULES")] = "off"
    """Limits on what untrusted text can influence: "off", "watch", "guard" (recommended), "strict", "plan" (the model plans
    before it reads), rules like "deny(untrusted): send_money", or several, as a list or separated by commas
    (docs/injection.md).
    """
    sandbox: Annotated[Literal["off", "auto", "require"], Doors(toml=True, flag="--sandbox")] = "auto"
    """The sandbox for Bash: "auto" (the default) uses what this machine offers and announces it, "require" runs nothing
    without a sandbox and denies commands the network, "off" confines nothing.
    """
    bash_effects: Annotated[Literal["preview", "commit"] | None, Doors(toml=True, flag="--bash-effects")] = None
    """Run Bash commands on a copy and list what they write: "preview" discards it, "commit" applies it."""


@described
@frozen(kw_only=True)
class Session(WithAdvice):
    """The store, the choice of a session, and the content to store."""

    session_store: Annotated[StoreOrName | None, Doors("--store, $OPENAGENTIC_SDK_STORE")] = None
    """Where events are stored: a store, or its name for `open_store`, such as "sqlite:runs.db" (default:
    $OPENAGENTIC_SDK_STORE, otherwise files under $OPENAGENTIC_SDK_HOME or ~/.openagentic-sdk).
    """
    resume: Annotated[Name | None, Doors("--resume")] = None
    """The id of the session to continue."""
    continue_last: Annotated[bool, Doors(flag="--continue")] = False
    """Continue the newest session of this working directory."""
    resume_max_events: int | None = None
    """The maximum number of events of a resumed session that the model sees (default: no limit)."""
    resume_max_bytes: int | None = None
    """The maximum number of bytes of a resumed session that the model sees (default: no limit)."""
    session: Annotated[str, _session_id] | None = None
    """The id of the session to continue or create: letters, digits, . _ and -."""
    session_id: Name | None = None
    """The id of a new session (default: a random one)."""
    session_metadata: Annotated[Mapping[str, Any], _json, Doors("--tag")] = field(default_factory=dict)
    """Additional keys for the metadata of a new session."""
    part: Literal["whole", "first", "next"] = "whole"
    """"first" and "next" are runs of one conversation, so that session_start and session_end hooks run once for all of them
    (`end_conversation` ends it); "whole" is a conversation of one run.
    """
    request_id: Name | None = None
    """A name for this prompt, unique in the store: a prompt sent again, even after a crash, is continued, or its answer is
    returned; without `session` or another id, the prompt gets a separate session.
    """
    on_storage_error: Literal["stop", "continue"] = AgentRuntime.on_storage_error
    """The reaction to an event that cannot be stored: "stop" ends the run, "continue" continues unsaved and reports it."""
    blob_bytes: int = AgentRuntime.blob_bytes
    """Tool outputs above this size are stored beside the log, and the model sees a shortened version."""
    redact: Annotated[Callable[[str], str] | bool, _redact, Doors("--no-redact")] = True
    """Mask secrets in stored data: True for the values of secret-looking environment variables and known token formats,
    False for none, or your own function, which threads may call (`permissions.redact.Redactor`); inputs of calls are stored
    unchanged.
    """
    key_file: Annotated[Annotated[str, file] | None, Doors("$OPENAGENTIC_SDK_KEY")] = None
    """The key that marks what this installation allowed, at least 32 bytes, mode 0600, shared by hosts that resume each
    other's sessions (default: $OPENAGENTIC_SDK_KEY, otherwise installation.key in $OPENAGENTIC_SDK_HOME or
    ~/.openagentic-sdk, created on first use).
    """
    record_signers: Annotated[Signers, Doors("--sign-record")] = ()
    """The signers of the record at the end of a run, as in `parts.record.signers`; if one fails, a `system.notice` reports
    it, and the signatures at the end of the next run also cover these events.
    """


@described
@frozen(kw_only=True)
class Telemetry(WithAdvice):
    """The destination of a session's traces."""

    otlp_endpoint: Annotated[str | None, Doors("$OTEL_EXPORTER_OTLP_ENDPOINT", flag="--otlp-endpoint URL")] = None
    """Where the session's OpenTelemetry spans are sent during the run, over OTLP/HTTP (default:
    $OTEL_EXPORTER_OTLP_ENDPOINT; "" sends none).
    """
    otlp_headers: Annotated[Headers, Doors("$OTEL_EXPORTER_OTLP_HEADERS")] = field(default_factory=dict, repr=False)
    """Headers of these requests, for keys."""
    traceparent: Annotated[str, _traceparent] | None = None
    """The caller's trace context (W3C Trace Context, section 3.2), the parent of the run's spans."""


@described
@frozen(kw_only=True)
class Limits(WithAdvice):
    """The resources that an agent may use, and the sizes that it may read and write."""

    max_steps: Annotated[int, Doors(toml=True, flag="--max-steps N", client=True)] = AgentRuntime.max_steps
    """The maximum number of model calls of one run."""
    timeout_s: Annotated[Seconds | None, Doors(toml=True, flag="--timeout SECONDS", client=True)] = None
    """The time limit of the whole run, including subagents (default: no limit)."""
    max_tokens: Annotated[int | None, Doors(toml=True, client=True)] = None
    """The maximum number of tokens (input and output) of the session and its subagents (default: no limit)."""
    max_cost_usd: Annotated[float | None, Doors(toml=True, flag="--max-cost USD", client=True)] = None
    """The maximum cost of the session and its subagents; needs a price for every model in use (default: no limit)."""
    limits_file: Annotated[FilePath | None, Doors("$OPENAGENTIC_SDK_LIMITS")] = None
    """The daily and hourly limits of all sessions of the store, of a tag or of a tenant, see `parts.budgets` (default:
    $OPENAGENTIC_SDK_LIMITS, otherwise limits.toml in $OPENAGENTIC_SDK_HOME or ~/.openagentic-sdk, if it exists).
    """
    max_answer_bytes: Positive = AgentRuntime.max_answer_bytes
    """The maximum size of one answer of a model: text, reasoning and calls together. An answer has at most 2,000 calls."""
    max_subagent_depth: int = 3
    """The maximum nesting depth of subagents."""
    defer_tools: Literal["auto", "off"] = "auto"
    """"auto" defers the definitions of servers' and the caller's tools until ToolSearch has found them, if there are more
    than 128 tools or the definitions exceed a tenth of the model's window; "off" never does.
    """
    max_context_tokens: Annotated[Positive | None, Doors(toml=True, flag="--window TOKENS")] = None
    """The model's window; the conversation is summarized when it nears this size (default: only after the endpoint has
    rejected a prompt as too long).
    """
    max_context_bytes: Positive | None = None
    """The model's window in bytes of a request, with the same effect."""


OptionGroup = Project | Permissions | Session | Telemetry | Limits


@described
@frozen(kw_only=True)
class OpenAgenticOptions(Limits, Telemetry, Session, Permissions, Project):
    """The settings of `query()` and `run()`. Only `provider` and `model` have no useful default.

    Each setting is a separate argument; those of a group may be given together, as `groups=[Limits(max_steps=5)]`.
    """

    # --- The model -----------------------------------------------------------------------------------------------------

    provider: Annotated[
        Provider | None, a_provider, Doors("--provider, --base-url, --script, and so in agents.toml")
    ] = None
    """The provider to ask, see `openagentic_sdk.providers`."""
    model: Annotated[str | None, Doors("--model, $OPENAGENTIC_SDK_MODEL, settings.json", toml=True)] = None
    """The model's name at the provider; without a provider, "openai:gpt-4o" names both."""
    api_key: Annotated[KeyOption | None, Doors("--api-key-env, and so in agents.toml")] = field(
        default=None, repr=False
    )
    """The key for each call, a string or a callable that returns one (sync or async, see `providers.keys`); None leaves it
    to the provider and its environment.
    """
    stream: bool = True
    """False requests whole answers, for endpoints that cannot stream."""
    retry: RetryPolicy | None = None
    """How often and how long requests are retried (default: `RetryPolicy()` for endpoints, never for other providers); all
    runs of the process share its circuit breaker.
    """
    fallback: Annotated[Fallbacks, Doors("--fallback, and so in agents.toml")] = ()
    """Models, or `providers.wrappers.fallback.Fallback`s, to ask in this order once the first one's endpoint has failed."""
    output_schema: Any = None
    """The JSON schema or type (dataclass, pydantic model ...) that the final answer must fit, see `structured_output`."""
    output_form: Literal["auto", "response_format", "tool", "text"] = "auto"
    """How that answer is requested: by the endpoint's "response_format", by a final "tool", or as "text"; "auto" uses the
    first that the provider supports.
    """
    output_repair_turns: int = 2
    """How often a final answer that does not fit is sent back."""
    prices: Prices | None = None
    """Prices that replace or extend the built-in table: {model: {...}}, or the path of such a file (default: prices.json in
    $OPENAGENTIC_SDK_HOME or ~/.openagentic-sdk, if it exists).
    """

    # --- Tools and agents ----------------------------------------------------------------------------------------------

    tools: Annotated[ToolRegistry | Sequence[Tool], _tools] | None = None
    """The tools, as a registry or a sequence (default: all built-in tools)."""
    hooks: Annotated[HookEngine | None, Doors("settings.json")] = None
    """Code that runs at fixed points of a run, see `openagentic_sdk.hooks.engine`."""
    parts: Annotated[Sequence[Callable[[], CustomPart]], _checked_elsewhere] = ()
    """Your own parts, as classes derived from `parts.custom.CustomPart`: code that accompanies each run and keeps state in
    the log (docs/parts.md).
    """
    mcp_servers: Annotated[ServersByName, Doors(".mcp.json")] = field(default_factory=dict)
    """MCP servers by name: `McpServer(...)`, or an entry as in `.mcp.json`; their tools are offered as `mcp__name__tool`."""
    agents: Annotated[AgentsByName, Doors(".claude/agents")] = field(default_factory=dict)
    """Subagents by name."""
    memory: Annotated[bool, Doors(flag="--memory")] = False
    """Let the agent keep and read notes about the project and the user for later sessions, with the tool `memory`."""
    code: Annotated[bool, Doors(flag="--code")] = False
    """Let the model write Python that calls the other tools, in a sandbox, with the tool `Code`."""
    clock: Clock | None = None
    """The source of time (default: the machine's clock)."""
    groups: Annotated[Sequence[OptionGroup], _groups] = ()
    """Groups of settings: `Project(...)`, `Permissions(...)`, `Session(...)`, `Telemetry(...)`, `Limits(...)`. Their fields
    become settings of the same names, and this field ends up empty.
    """

    def __post_init__(self) -> None:
        """Copy the groups' settings to this value's fields. Raises `OptionsError` for a setting with two values."""
        if not self.groups or _groups(self.groups) is not None:
            return
        for group in self.groups:
            mine = nondefault_values(self, group.__class__)
            for name, value in nondefault_values(group).items():
                if name in mine and mine[name] != value:
                    raise OptionsError(
                        f"{name} is set twice, as {shown(mine[name])} and by {group.__class__.__name__}({name}="
                        f"{shown(value)}): remove one of them"
                    )
                vars(self)[name] = value  # a frozen value refuses assignment
        vars(self)["groups"] = ()

    def working_dir(self) -> Path:
        """Return `cwd` as an absolute path; the default is the process's."""
        return Path(self.cwd or working_dir()).expanduser().absolute()

    def project_root(self) -> Path:
        """Return `project_dir` as an absolute path; the default is the repository of `cwd`, otherwise `cwd`."""
        if self.project_dir:
            return Path(self.project_dir).expanduser().absolute()
        return Path(find_project_root(self.working_dir()))


def located(options: OpenAgenticOptions) -> OpenAgenticOptions:
    """Return the options with the provider that the model's name includes (`openai:gpt-4o`), here and in each subagent
    without a provider. Raises `OptionsError` if a provider cannot be created.
    """
    located_agents = {
        name: agent
        for name, agent in options.agents.items()
        if isinstance(agent, AgentDefinition) and agent.provider is None and ":" in str(agent.model)
    }
    if (options.provider is not None or options.model is None) and not located_agents:
        return options
    from .providers.named import find_model  # late: most options already have a provider

    provider, model = options.provider, options.model
    if provider is None and model is not None:
        provider, model = find_model(model, api_key=options.api_key)
    agents = {**options.agents}
    for name, agent in located_agents.items():
        of_agent, word = find_model(str(agent.model), provider)
        agents[name] = replace(agent, provider=None if of_agent is provider else of_agent, model=word)
    return replace(options, provider=provider, model=model, agents=agents)


def with_model(options: OpenAgenticOptions, word: str) -> OpenAgenticOptions:
    """Return the options with the model that `word` names and, if it also names another provider, with that provider and
    without `api_key`. Raises `OptionsError` for an invalid name.
    """
    from .providers.named import find_model

    check_settings({"model": word}, {"model": NAME})
    here = located(options)
    provider, model = find_model(word, here.provider)
    if provider is here.provider:
        return replace(here, model=model)
    return replace(here, provider=provider, model=model, api_key=None)  # the key of one endpoint must not go to another


def require_options(options: object) -> None:
    """Raise `OptionsError` for anything but an `OpenAgenticOptions`."""
    if not isinstance(options, OpenAgenticOptions):
        raise OptionsError(f"options must be OpenAgenticOptions(...), not {shown(options)}")


def check_options(options: OpenAgenticOptions) -> None:
    """Raise `OptionsError` for the first invalid setting, with its name, its value and the accepted values."""
    require_options(options)
    check_fields(options)
    full_options = located(options)
    if full_options.provider is None:
        model = "" if options.model is None else f" for the model {options.model!r}"
        raise OptionsError(
            f"no provider is configured{model}: name provider and model in one value, such as model"
            '="openai:gpt-4o" (an Agent also reads $OPENAGENTIC_SDK_MODEL), or pass a provider'
        )
    check_settings(full_options, _REQUIRED_CHECKS)
    if options.session and (options.resume or options.session_id or options.continue_last):
        raise OptionsError(
            f"session={options.session!r} already names the session: remove resume, session_id and continue_last"
        )
    if options.session_store == "memory:" and (options.resume or options.session):
        raise OptionsError(
            f"session_store='memory:' is a new, empty store for each run, without the session "
            f"{options.resume or options.session!r}: create a MemorySessionStore() and pass that"
        )
    check_parts(options.parts)
    for name, definition in options.agents.items():
        if not isinstance(name, str) or not isinstance(definition, AgentDefinition):
            raise OptionsError(
                f"agents must map names to AgentDefinition(...), not {shown(name)} to {shown(definition)}"
            )
        check_fields(definition, f"agents[{name!r}].")
        if definition.options is not None:
            check_options(definition.options)
    for at, fallback in enumerate(options.fallback):
        if isinstance(fallback, Fallback):
            check_settings(fallback, _FALLBACK_CHECKS, f"fallback[{at}].")
    for tool in options.tools or ():
        check_settings(tool, _TOOL_CHECKS, f"tools: {shown(tool)}.")
        require_checkable(tool.input_schema, f"tools: {tool.name}.input_schema")
    if options.hooks is not None:
        check_settings(options.hooks, _HOOK_CHECKS, "hooks.")
        for point in POINTS:
            for matcher in getattr(options.hooks, point):
                check_settings(matcher, _MATCHER_CHECKS, f"hooks.{point}[{shown(matcher.name)}].")


_REQUIRED_CHECKS: Mapping[str, Check] = {"provider": a_provider}
_FALLBACK_CHECKS: Mapping[str, Check] = {
    "model": NAME,
    "provider": or_none(a_provider),
    "api_key": or_none(_api_key),
}
_TOOL_CHECKS: Mapping[str, Check] = {
    "name": NAME,
    "description": TEXT,
    "input_schema": is_a(Mapping, "a JSON schema"),
}
_HOOK_CHECKS: Mapping[str, Check] = {
    **{point: list_of(is_a(HookMatcher, "a hook"), "HookMatcher(...)") for point in POINTS},
    "enable_message_rewrite_hooks": BOOL,
    "default_timeout_s": SECONDS,
    "clock": is_a(Clock, "a clock, as in `ground.clock.Clock`"),
}
_MATCHER_CHECKS: Mapping[str, Check] = {
    "name": TEXT,
    "tool_name_pattern": TEXT,
    "hook": is_callable,
    "timeout_s": or_none(SECONDS),
    "fail_closed": or_none(BOOL),
    "tool_name_regex": or_none(_pattern),
    "when": or_none(is_callable),
}
