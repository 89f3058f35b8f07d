"""Every setting of a run, once.

A field that is None takes the default that its comment names. Nothing here is looked up, opened or connected:
`assemble.build_agent` does that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from .errors import InvalidEventError, OptionsError, PermissionRuleError
from .ground.checks import (
    BOOL,
    COUNT,
    NAME,
    PATHS,
    SECONDS,
    TEXT,
    TEXTS,
    Check,
    check_settings,
    file,
    is_a,
    is_callable,
    list_of,
    number,
    one_of,
    or_none,
    path,
    shown,
)
from .ground.clock import Clock
from .ground.frozen import frozen
from .ground.schemas import require_checkable
from .ground.system import working_dir
from .hooks.engine import POINTS, HookEngine
from .hooks.models import HookMatcher
from .kernel.registry import ToolRegistry
from .parts.custom import CustomPart, check_parts
from .parts.project.claude import find_project_root
from .permissions.gate import PermissionGate
from .permissions.policy import MODES, PermissionMode
from .permissions.rules import Effect, Rule, parse_rules
from .providers.base import CompletingProvider, Provider, StreamingProvider
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
MAX_STEPS = 50
MAX_SUBAGENT_DEPTH = 3
BLOB_BYTES = 256 * 1024
MAX_ANSWER_BYTES = 16 * 1024 * 1024


@frozen
class AgentDefinition:
    """A subagent that the model can start through the Task tool.

    `description` tells the model when to use it, `prompt` is its system prompt. `tools` are the names of the tools it may
    use; empty means all of its parent's but Task. `provider` and `model` default to the parent's. `max_steps` bounds one run
    of it. `permission_mode`, `disallowed_tools` and `skills` (names, active from its start) come from agent files, which
    `source` names; one that wants `isolation` does not start.
    """

    description: str
    prompt: str
    tools: Sequence[str] = ()
    provider: Provider | None = None
    model: str | None = None
    disallowed_tools: Sequence[str] = ()
    max_steps: int | None = None
    permission_mode: PermissionMode | None = None
    skills: Sequence[str] = ()
    source: str | None = None
    isolation: str | None = None


@frozen(kw_only=True)
class OpenAgenticOptions:
    """How `query()` and `run()` work. Only `provider` and `model` have no useful default.

    The model
        provider            where to ask; see `openagentic_sdk.providers`
        model               the model's name there
        api_key             passed to the provider with each call, a text or a callable that gives one (sync or async, see
                            `providers.keys`); None leaves it to the provider and its environment
        stream              False asks for whole answers, for endpoints that cannot stream
        retry               how often and how long an endpoint is asked again (default: `RetryPolicy()` for endpoints, never
                            for other providers); with it comes the circuit breaker that all runs of the process share
        fallback            models, or `Fallback`s, to ask in order when the first one's endpoint gave up
        output_schema       JSON schema, dataclass or TypedDict that the final answer must fit, see `structured_output`
        output_form         how it is asked for: by the endpoint's "response_format", a last "tool", or as "text";
                            "auto" takes the first that the provider has
        output_repair_turns how often a final answer that does not fit is sent back
        prices              prices that replace or add to the built-in table: {model: {...}}, or a path to such a file

    The project
        cwd                 working directory of tools (default: the process's)
        project_dir         the root of what `.claude` and CLAUDE.md say, down to cwd (default: cwd's repository, or cwd)
        setting_sources     which settings, memory, skills, commands and agents are read: any of "user", "project", "local"
        trust_project       True lets the project's files grant (hooks, env, allow rules, skill grants); None asks the stored
                            decisions; False never
        run_text_commands   True runs the commands that stand as !`command` in the text of trusted skills and commands, if an
                            allow rule covers them, and puts what they write in their place; False leaves that to the
                            settings ("enableSkillShellExecution"); "disableSkillShellExecution" there forbids it
        model_names         which model a word of files (haiku, sonnet, opus) stands for; others leave the model as it is
        additional_dirs     more folders that belong to the workspace
        system_prompt       replaces the built-in base of the system prompt
        skills              skills that are active from the start of a session, by name
        skill_paths         more folders of skills, which count whatever the setting sources are

    What it may do
        tools               the tools, as a registry or a sequence (default: all built-in tools)
        allowed_tools       names or rules that need no question: "Read", "Bash(git diff:*)"
        disallowed_tools    names or rules that are denied
        permission_gate     the whole policy; allowed_tools and disallowed_tools are added to it (default: mode "default")
        sandbox             for Bash: "require" refuses to run without one, "auto" takes what this machine has
        bash_effects        "preview" runs Bash commands on a copy and drops what they did, "commit" applies it; both list it
        hooks               see `openagentic_sdk.hooks.engine`
        parts               parts of your own, as classes made from `parts.custom.CustomPart`, besides those of this package:
                            code that stays with each run and keeps a state in the log (docs/parts.md)
        mcp_servers         MCP servers by name: `McpServer(...)`, or an entry as in `.mcp.json`; their tools are offered as
                            `mcp__name__tool`
        agents              subagents by name
        memory              True gives the tool `memory`: its notes about the project and the user lie in the home folder of
                            this library, and later sessions are told of them
        code                True gives the tool `Code`: the model's Python in a sandbox, which calls the other tools

    The session
        session_store       where events go: a store, or its name for `open_store`, "sqlite:runs.db" (default: what
                            $OPENAGENTIC_SDK_STORE names, else files under $OPENAGENTIC_SDK_HOME or ~/.openagentic-sdk)
        resume              id of the session to continue
        continue_last       continue the newest session of this cwd
        resume_max_events, resume_max_bytes    how much of an old session the model sees again; None is no limit
        session             the id of the session to continue, which is made if it is not there: letters, digits, . _ and -
        session_id          the id of a new session (default: a random one)
        session_metadata    more keys for meta.json
        part                "first" and "next" are runs of one conversation, whose session_start and session_end hooks do not
                            run for each of them; `end_conversation` ends it. "whole" is both
        request_id          names this prompt, once in the whole store: sent again, also after a crash, it goes on or gives
                            its answer; without `session` or another id it has a session of its own
        traceparent         the caller's place in a trace (W3C Trace Context, section 3.2): the run's spans stand below it
        on_storage_error    "stop" ends the run when an event cannot be stored, "continue" goes on unsaved and says so
        redact              masks secrets in what is stored: True (the default) for the values of secret-looking environment
                            variables and known token forms, False for nothing, or a function of your own
                            (`permissions.redact.Redactor`); the inputs of calls are stored as they are
        key_file            the key that marks what this installation allowed, 32 bytes or more, mode 0600; hosts that resume
                            each other's sessions share it (default: what $OPENAGENTIC_SDK_KEY names, else installation.key
                            in $OPENAGENTIC_SDK_HOME or ~/.openagentic-sdk; made when it is not there)
        record_signers      who signs the record when a run ends, as in `parts.record.signers` (default: nobody); a
                            signer that fails is a `system.notice`, and the next one signs what it did not
        otlp_endpoint       where the session's OpenTelemetry spans go while it runs (OTLP over HTTP, JSON), see
                            `parts.record.telemetry`; None is what $OTEL_EXPORTER_OTLP_ENDPOINT names, "" is nowhere
        otlp_headers        headers of those requests, for keys
        blob_bytes          tool outputs above this size are stored beside the log, and the model sees a cut

    Limits
        max_steps           model calls of one run
        timeout_s           seconds for the whole run, subagents included; None is no limit
        max_tokens          tokens (input and output) that the session and its subagents may spend; None is no limit
        max_cost_usd        the same in US dollars; needs prices for every model that is used
        limits_file         what all sessions of the store, or those with a tag, may spend in a day, see `kernel.day_limits`
                            (default: what $OPENAGENTIC_SDK_LIMITS names, else limits.toml in $OPENAGENTIC_SDK_HOME or
                            ~/.openagentic-sdk, when it is there)
        max_answer_bytes    what one answer of a model may weigh, text, reasoning and calls together
        max_subagent_depth  how deep subagents may start subagents
        defer_tools         "auto" tells the model about tools of servers and of the caller only once ToolSearch has found
                            them, when the definitions of all tools take more than a tenth of its window; "off" never
        max_context_tokens, max_context_bytes    the model's window: the conversation is summarised when a request comes
                            near it; None is only when the endpoint refuses a prompt as too long
        clock               where time comes from (default: the machine's)
    """

    provider: Provider | None = None
    model: str | None = None
    api_key: ApiKey | None = field(default=None, repr=False)
    stream: bool = True
    retry: RetryPolicy | None = None
    fallback: Sequence[Fallback | str] = ()
    output_schema: Any = None
    output_form: Literal["auto", "response_format", "tool", "text"] = "auto"
    output_repair_turns: int = 2
    prices: Mapping[str, Any] | str | None = None

    cwd: str | os.PathLike[str] | None = None
    project_dir: str | os.PathLike[str] | None = None
    setting_sources: Sequence[SettingSource] = ()
    trust_project: bool | None = None
    run_text_commands: bool = False
    model_names: Mapping[str, str] = field(default_factory=dict)
    additional_dirs: Sequence[str | os.PathLike[str]] = ()
    system_prompt: str | None = None
    skills: Sequence[str] = ()
    skill_paths: Sequence[str | os.PathLike[str]] = ()
    home: str | os.PathLike[str] | None = None

    tools: ToolRegistry | Sequence[Tool] | None = None
    allowed_tools: Sequence[str] = ()
    disallowed_tools: Sequence[str] = ()
    permission_gate: PermissionGate | None = None
    sandbox: Literal["off", "auto", "require"] = "auto"
    bash_effects: Literal["preview", "commit"] | None = None
    hooks: HookEngine | None = None
    parts: Sequence[Callable[[], CustomPart]] = ()
    mcp_servers: Mapping[str, Any] = field(default_factory=dict)
    agents: Mapping[str, AgentDefinition] = field(default_factory=dict)
    memory: bool = False
    code: bool = False

    session_store: SessionStore | str | None = None
    resume: str | None = None
    continue_last: bool = False
    resume_max_events: int | None = None
    resume_max_bytes: int | None = None
    session: str | None = None
    session_id: str | None = None
    session_metadata: Mapping[str, Any] = field(default_factory=dict)
    part: Literal["whole", "first", "next"] = "whole"
    request_id: str | None = None
    traceparent: str | None = None
    on_storage_error: Literal["stop", "continue"] = "stop"
    otlp_endpoint: str | None = None
    otlp_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    blob_bytes: int = BLOB_BYTES
    redact: Callable[[str], str] | bool = True
    key_file: str | None = None
    record_signers: Sequence[Signer] = ()

    max_steps: int = MAX_STEPS
    timeout_s: float | None = None
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    limits_file: str | os.PathLike[str] | None = None
    max_answer_bytes: int = MAX_ANSWER_BYTES
    max_subagent_depth: int = MAX_SUBAGENT_DEPTH
    defer_tools: Literal["auto", "off"] = "auto"
    max_context_tokens: int | None = None
    max_context_bytes: int | None = None
    clock: Clock | None = None

    def working_dir(self) -> Path:
        """`cwd` as an absolute path."""
        return Path(self.cwd or working_dir()).expanduser().absolute()

    def project_root(self) -> Path:
        """`project_dir` as an absolute path; when it is not set, the repository that cwd is in, else cwd."""
        if self.project_dir:
            return Path(self.project_dir).expanduser().absolute()
        return Path(find_project_root(self.working_dir()))


# --- what each setting may be ----------------------------------------------------------------------------------------


def check_options(options: OpenAgenticOptions) -> None:
    """Raise `OptionsError` with the name of the first setting that cannot be used, its value and what is accepted."""
    if not isinstance(options, OpenAgenticOptions):
        raise OptionsError(f"options must be OpenAgenticOptions(...), not {shown(options)}")
    check_settings(options, _CHECKS)
    if options.session and (options.resume or options.session_id or options.continue_last):
        raise OptionsError(
            f"session={options.session!r} names the session: leave out resume, session_id and continue_last"
        )
    check_parts(options.parts)
    for name, definition in options.agents.items():
        if not isinstance(name, str) or not isinstance(definition, AgentDefinition):
            raise OptionsError(
                f"agents must map names to AgentDefinition(...), not {shown(name)} to {shown(definition)}"
            )
        check_settings(definition, _AGENT_CHECKS, f"agents[{name!r}].")
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


def _json(value: Any) -> str | None:
    try:
        dumps_json(value)
    except (InvalidEventError, RecursionError):
        return "a mapping that can be written as JSON"
    return None if isinstance(value, Mapping) else "a mapping"


def _texts_by_text(wanted: str) -> Check:
    def check(value: Any) -> str | None:
        fits = isinstance(value, Mapping) and all(isinstance(word, str) for pair in value.items() for word in pair)
        return None if fits else wanted

    return check


def _rules(effect: Effect) -> Check:
    """A list of rules, each of which can be understood."""
    is_list = list_of(is_a(str | Rule, "a rule"), "names or rules")

    def check(value: Any) -> str | None:
        wanted = is_list(value)
        if wanted is None:
            try:
                parse_rules(value, effect)
            except PermissionRuleError as error:
                return f"a list of names or rules ({error})"
        return wanted

    return check


def _pattern(value: Any) -> str | None:
    try:
        re.compile(value)
    except (TypeError, re.error, RecursionError, OverflowError):
        return "a regular expression"
    return None if isinstance(value, str) else "a regular expression"


def _api_key(value: Any) -> str | None:
    return None if isinstance(value, str) or callable(value) else "text, a callable"


def _provider(value: Any) -> str | None:
    is_one = isinstance(value, CompletingProvider | StreamingProvider) and not isinstance(value, type)
    return None if is_one and isinstance(value.name, str) else "a provider, for example OpenAIProvider()"


_MODES = one_of(*MODES, "bypassPermissions")
_CLOCK = is_a(Clock, "a clock, as in `clock.Clock`")

_CHECKS: Mapping[str, Check] = {
    "provider": _provider,
    "model": or_none(TEXT),
    "api_key": or_none(_api_key),
    "stream": BOOL,
    "retry": or_none(is_a(RetryPolicy, "a RetryPolicy(...)")),
    "fallback": list_of(lambda value: None if isinstance(value, Fallback) else NAME(value), "models or Fallback(...)s"),
    "output_schema": lambda value: None,
    "output_form": one_of("auto", "response_format", "tool", "text"),
    "output_repair_turns": COUNT,
    "prices": or_none(is_a(str | Mapping, "a mapping of models to prices, or a path")),
    "cwd": or_none(path),
    "project_dir": or_none(path),
    "setting_sources": list_of(one_of("user", "project", "local"), "'user', 'project' and 'local'"),
    "trust_project": or_none(BOOL),
    "run_text_commands": BOOL,
    "additional_dirs": PATHS,
    "system_prompt": or_none(TEXT),
    "skills": TEXTS,
    "skill_paths": PATHS,
    "home": or_none(path),
    "tools": or_none(
        lambda value: (
            None if isinstance(value, ToolRegistry) else list_of(is_a(Tool, "a tool"), "tools (see `tool`)")(value)
        )
    ),
    "allowed_tools": _rules("allow"),
    "disallowed_tools": _rules("deny"),
    "permission_gate": or_none(is_a(PermissionGate, "a PermissionGate(...)")),
    "sandbox": one_of("off", "auto", "require"),
    "bash_effects": or_none(one_of("preview", "commit")),
    "parts": lambda value: None,
    "hooks": or_none(is_a(HookEngine, "a HookEngine(...)")),
    "mcp_servers": is_a(Mapping, "a mapping of names to McpServer(...) or entries as in .mcp.json"),
    "agents": is_a(Mapping, "a mapping of names to AgentDefinition(...)"),
    "memory": BOOL,
    "code": BOOL,
    "model_names": _texts_by_text("a mapping of words to models"),
    "session_store": or_none(is_a(str | SessionStore, "a session store, or its name for open_store()")),
    "resume": or_none(NAME),
    "continue_last": BOOL,
    "resume_max_events": or_none(COUNT),
    "resume_max_bytes": or_none(COUNT),
    "session": or_none(
        lambda value: None if is_session_id(value) else "1 to 128 letters, digits, . _ and -, a letter or digit first"
    ),
    "session_id": or_none(NAME),
    "session_metadata": _json,
    "part": one_of("whole", "first", "next"),
    "request_id": or_none(NAME),
    "traceparent": or_none(
        lambda value: None if read_traceparent(value) else "a traceparent: 00-TRACE-SPAN-FLAGS in hex"
    ),
    "on_storage_error": one_of("stop", "continue"),
    "otlp_endpoint": or_none(TEXT),
    "otlp_headers": _texts_by_text("a mapping of names to values"),
    "blob_bytes": COUNT,
    "redact": lambda value: None if isinstance(value, bool) or callable(value) else "True, False or a function",
    "max_steps": COUNT,
    "timeout_s": or_none(SECONDS),
    "max_tokens": or_none(COUNT),
    "max_cost_usd": or_none(number(0)),
    "limits_file": or_none(file),
    "max_answer_bytes": number(1, whole=True),
    "max_subagent_depth": COUNT,
    "defer_tools": one_of("auto", "off"),
    "max_context_tokens": or_none(number(1, whole=True)),
    "max_context_bytes": or_none(number(1, whole=True)),
    "clock": or_none(_CLOCK),
    "key_file": or_none(file),
    "record_signers": list_of(is_a(Signer, "a signer"), "signers, as in `parts.record.signers`"),
}
_AGENT_CHECKS: Mapping[str, Check] = {
    "description": TEXT,
    "prompt": TEXT,
    "tools": TEXTS,
    "provider": or_none(_provider),
    "model": or_none(TEXT),
    "disallowed_tools": TEXTS,
    "max_steps": or_none(COUNT),
    "permission_mode": or_none(_MODES),
    "skills": TEXTS,
    "source": or_none(TEXT),
    "isolation": lambda value: None if value is None or value == "" else "None: there is no isolation here",
}
_FALLBACK_CHECKS: Mapping[str, Check] = {
    "model": NAME,
    "provider": or_none(_provider),
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
    "clock": _CLOCK,
}
_MATCHER_CHECKS: Mapping[str, Check] = {
    "name": TEXT,
    "tool_name_pattern": TEXT,
    "hook": or_none(is_callable),
    "timeout_s": or_none(SECONDS),
    "fail_closed": or_none(BOOL),
    "tool_name_regex": or_none(_pattern),
    "when": or_none(is_callable),
}
