"""Every setting of a run, once.

A field that is None takes the default that its comment names. Nothing here is looked up, opened or connected:
`assemble.build_agent` does that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from .clock import Clock
from .frozen import frozen
from .hooks.engine import HookEngine
from .permissions.gate import PermissionGate
from .permissions.policy import PermissionMode
from .project.claude import find_project_root
from .providers.base import Provider
from .providers.fallback import Fallback
from .providers.retry import RetryPolicy
from .sessions.base import SessionStore
from .tools.base import Tool
from .tools.registry import ToolRegistry

SettingSource = Literal["user", "project", "local"]
SETTING_SOURCES: tuple[SettingSource, ...] = ("user", "project", "local")
MAX_STEPS = 50
MAX_SUBAGENT_DEPTH = 3
BLOB_BYTES = 256 * 1024


@frozen
class AgentDefinition:
    """A subagent that the model can start through the Task tool.

    `description` tells the model when to use it, `prompt` is its system prompt. `tools` are the names of the tools it may
    use; empty means all of its parent's but Task. `provider` and `model` default to the parent's. `max_steps` bounds one run
    of it. `permission_mode`, `disallowed_tools` and `skills` (names, active from its start) come from agent files.
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


@frozen(kw_only=True)
class OpenAgenticOptions:
    """How `query()` and `run()` work. Only `provider` and `model` have no useful default.

    The model
        provider            where to ask; see `openagentic_sdk.providers`
        model               the model's name there
        api_key             passed to the provider with each call; None leaves it to the provider and its environment
        retry               how often and how long an endpoint is asked again (default: `RetryPolicy()` for endpoints, never
                            for other providers); with it comes the circuit breaker that all runs of the process share
        fallback            models, or `providers.fallback.Fallback`s, to ask in order when the first one's endpoint gave up
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
        additional_dirs     more folders that belong to the workspace
        system_prompt       replaces the built-in base of the system prompt

    What it may do
        tools               the tools, as a registry or a sequence (default: all built-in tools)
        allowed_tools       names or rules that need no question: "Read", "Bash(git diff:*)"
        disallowed_tools    names or rules that are denied
        permission_gate     the whole policy; allowed_tools and disallowed_tools are added to it (default: mode "default")
        sandbox             for Bash: "require" refuses to run without one, "auto" takes what this machine has
        bash_effects        "preview" runs Bash commands on a copy and drops what they did, "commit" applies it; both list it
        hooks               see `openagentic_sdk.hooks.engine`
        agents              subagents by name

    The session
        session_store       where events go: a store, or its name for `open_store`, "sqlite:runs.db" (default: what
                            $OPENAGENTIC_SDK_STORE names, else files under $OPENAGENTIC_SDK_HOME or ~/.openagentic-sdk)
        resume              id of the session to continue
        continue_last       continue the newest session of this cwd
        resume_max_events, resume_max_bytes    how much of an old session the model sees again; None is no limit
        session_id          the id of a new session (default: a random one)
        session_metadata    more keys for meta.json
        part                "first" and "next" are runs of one conversation, whose session_start and session_end hooks do not
                            run for each of them; `end_conversation` ends it. "whole" is both
        request_id          names this prompt: sent again after a crash, it does not run twice
        on_storage_error    "stop" ends the run when an event cannot be stored, "continue" goes on unsaved and says so
        redact              masks secrets in what is stored: True (the default) for the values of secret-looking environment
                            variables and known token forms, False for nothing, or a function of your own
                            (`permissions.redact.Redactor`); the inputs of calls are stored as they are
        key_file            the key that marks what this installation allowed, 32 bytes or more, mode 0600; hosts that resume
                            each other's sessions share it (default: what $OPENAGENTIC_SDK_KEY names, else installation.key
                            in $OPENAGENTIC_SDK_HOME or ~/.openagentic-sdk; made when it is not there)
        blob_bytes          tool outputs above this size are stored beside the log, and the model sees a cut

    Limits
        max_steps           model calls of one run
        timeout_s           seconds for the whole run, subagents included; None is no limit
        max_tokens          tokens (input and output) that the session and its subagents may spend; None is no limit
        max_cost_usd        the same in US dollars; needs prices for every model that is used
        max_subagent_depth  how deep subagents may start subagents
        max_context_tokens, max_context_bytes    the model's window: the conversation is summarised when a request comes
                            near it; None is only when the endpoint refuses a prompt as too long
    """

    provider: Provider | None = None
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
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
    additional_dirs: Sequence[str | os.PathLike[str]] = ()
    system_prompt: str | None = None
    skill_paths: Sequence[str | os.PathLike[str]] = ()
    home: str | os.PathLike[str] | None = None

    tools: ToolRegistry | Sequence[Tool] | None = None
    allowed_tools: Sequence[str] = ()
    disallowed_tools: Sequence[str] = ()
    permission_gate: PermissionGate | None = None
    sandbox: Literal["off", "auto", "require"] = "off"
    bash_effects: Literal["preview", "commit"] | None = None
    hooks: HookEngine | None = None
    agents: Mapping[str, AgentDefinition] = field(default_factory=dict)

    session_store: SessionStore | str | None = None
    resume: str | None = None
    continue_last: bool = False
    resume_max_events: int | None = None
    resume_max_bytes: int | None = None
    session_id: str | None = None
    session_metadata: Mapping[str, Any] = field(default_factory=dict)
    part: Literal["whole", "first", "next"] = "whole"
    request_id: str | None = None
    on_storage_error: Literal["stop", "continue"] = "stop"
    blob_bytes: int = BLOB_BYTES
    redact: Callable[[str], str] | bool = True
    key_file: str | None = None

    max_steps: int = MAX_STEPS
    timeout_s: float | None = None
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    max_subagent_depth: int = MAX_SUBAGENT_DEPTH
    max_context_tokens: int | None = None
    max_context_bytes: int | None = None
    clock: Clock | None = None

    def working_dir(self) -> Path:
        """`cwd` as an absolute path."""
        return Path(self.cwd or os.getcwd()).expanduser().absolute()

    def project_root(self) -> Path:
        """`project_dir` as an absolute path; when it is not set, the repository that cwd is in, else cwd."""
        if self.project_dir:
            return Path(self.project_dir).expanduser().absolute()
        return Path(find_project_root(self.working_dir()))
