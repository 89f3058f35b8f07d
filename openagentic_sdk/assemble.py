"""Options to Agent: the only file that picks concrete classes.

Everything that is looked up in the environment, the home folder or the project is looked up here, once per run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .clock import SystemClock
from .errors import OptionsError, SessionNotFoundError, ToolInputError
from .events import Event
from .hooks.engine import HookEngine
from .options import AgentDefinition, OpenAgenticOptions
from .permissions.gate import PermissionGate
from .runtime.agent import Agent, RunRequest
from .sessions.base import SessionStore
from .sessions.prices import PriceTable, built_in_prices, cost, with_prices
from .sessions.store import FileSessionStore
from .tools.defaults import default_tools
from .tools.registry import ToolRegistry


def build_agent(options: OpenAgenticOptions) -> Agent:
    """The agent that the options describe. Raises `OptionsError` with the setting to change."""
    if options.provider is None:
        raise OptionsError("provider is not set: pass a provider, for example OpenAIProvider()")
    if not options.model:
        raise OptionsError("model is not set: pass the name of a model that the provider serves")
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
    for session_id in store.list_sessions():
        metadata = store.read_metadata(session_id)["metadata"]
        if metadata.get("cwd") == cwd and not metadata.get("parent_session_id"):
            return session_id
    raise SessionNotFoundError("(newest)", f"{cwd}, so there is nothing to continue")


def default_store() -> FileSessionStore:
    """Files under $OPENAGENTIC_SDK_HOME, or ~/.openagentic-sdk."""
    return FileSessionStore(root_dir=os.environ.get("OPENAGENTIC_SDK_HOME") or Path.home() / ".openagentic-sdk")


class _Builder:
    """What all agents of one run share, and how each is made of it."""

    def __init__(self, options: OpenAgenticOptions) -> None:
        self._options = options
        self._clock = options.clock or SystemClock()
        self._store = options.session_store or default_store()
        self._prices = _prices(options.prices)
        self._cwd = str(options.working_dir())
        self._project_dir = str(options.project_root())
        self._roots = tuple(dict.fromkeys((self._cwd, *(str(Path(d).absolute()) for d in options.additional_dirs))))
        self._agents = dict(options.agents)
        self._hooks = options.hooks or HookEngine()
        self._gate = _gate(options)

    def agent(self) -> Agent:
        """The agent that the caller talks to."""
        options = self._options
        assert options.provider is not None and options.model is not None
        return Agent(
            provider=options.provider,
            model=options.model,
            api_key=options.api_key,
            tools=self._tools(),
            hooks=self._hooks,
            gate=self._gate,
            store=self._store,
            clock=self._clock,
            cwd=self._cwd,
            project_dir=self._project_dir,
            system_prompt=self._system_prompt(options.system_prompt),
            child=self.child,
            expand_prompt=lambda text: text,
            cost=lambda usage, model: cost(usage, model, self._prices),
            agent_names=tuple(self._agents),
            workspace_roots=self._roots,
            max_steps=options.max_steps,
            max_depth=options.max_subagent_depth,
            blob_bytes=options.blob_bytes,
            continue_unsaved=options.on_storage_error == "continue",
            compact_at_tokens=options.compact_at_tokens,
            redact=options.redact,
            session_dir=self._session_dir,
        )

    def child(self, name: str) -> Agent:
        """The agent of a subagent: its own prompt and tools, within what its parent may do."""
        definition = self._agents.get(name)
        if definition is None:
            known = ", ".join(self._agents) or "(none)"
            raise ToolInputError(f"there is no agent {name!r}: the agents are {known}", path="agent")
        parent = self.agent()
        model = definition.model if definition.model not in (None, "", "inherit") else parent.model
        return replace(
            parent,
            name=name,
            provider=definition.provider or parent.provider,
            model=model,
            tools=_tools_of(definition, parent.tools),
            gate=_narrowed(definition, parent.gate),
            system_prompt=self._system_prompt(definition.prompt),
            max_steps=definition.max_steps or parent.max_steps,
        )

    def _tools(self) -> ToolRegistry:
        options = self._options
        if isinstance(options.tools, ToolRegistry):
            return options.tools
        if options.tools is not None:
            return ToolRegistry(options.tools)
        return default_tools({name: definition.description for name, definition in self._agents.items()})

    def _system_prompt(self, base: str | None) -> Callable[[Sequence[Event]], str]:
        text = BASE_PROMPT if base is None else base
        return lambda skill_events: text

    def _session_dir(self, session_id: str) -> str | None:
        return str(self._store.session_dir(session_id)) if isinstance(self._store, FileSessionStore) else None


def _prices(prices: Mapping[str, Any] | str | None) -> PriceTable:
    if prices is None:
        return built_in_prices()
    return with_prices(prices) if isinstance(prices, str) else {**built_in_prices(), **prices}


def _gate(options: OpenAgenticOptions) -> PermissionGate:
    gate = options.permission_gate or PermissionGate(permission_mode="default")
    if options.allowed_tools or options.disallowed_tools:
        gate = gate.with_rules(allow=options.allowed_tools, deny=options.disallowed_tools)
    return gate


def _tools_of(definition: AgentDefinition, tools: ToolRegistry) -> ToolRegistry:
    """The tools of a subagent: those it names, else its parent's without Task; never those it must not have."""
    names = definition.tools or [name for name in tools.names() if name != "Task"]
    return tools.only(set(names) - set(definition.disallowed_tools))


def _narrowed(definition: AgentDefinition, gate: PermissionGate) -> PermissionGate:
    """The parent's gate, and what the subagent's definition takes away on top of it."""
    if definition.permission_mode is None and not definition.disallowed_tools:
        return gate
    return gate.narrowed(permission_mode=definition.permission_mode, deny=tuple(definition.disallowed_tools))
