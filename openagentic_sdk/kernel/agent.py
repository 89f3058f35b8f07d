"""The collaborators of an agent, frozen, and the mutable state of one run."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any, Literal

from ..events import Event, UserMessage
from ..ground.clock import Clock, SystemClock
from ..ground.frozen import changed, frozen, mutable
from ..providers.base import Provider
from ..sessions.authority import KeyedDigests
from ..sessions.core import StoreCore
from ..sessions.folds.view import Fold, SessionView
from .context import RequestContext
from .gate import CallContext, Gate, ReadOnlyGate, narrowed_by
from .hooks import Hooks, NoHooks, RunHooks
from .lifetime import Lifetime
from .part import Part, PartOpener, Parts
from .prompt import Said
from .questions import RunQuestions
from .recorder import Recorder
from .registry import ToolRegistry


@frozen(kw_only=True)
class AgentRuntime:
    """The constant state of an agent. `assemble` builds one with every feature; fields with a default are optional.

    `project_dir` is empty if there is no project. `cost` returns the price of one call's usage, or None if it is unknown.
    `parts` are the openers of a run's features, in the order in which the loop calls them; `folds` are their folds over the
    log, in addition to the kernel's view. `session_dir` returns a session's folder, or None if the store has none. `seal`
    marks the events that this installation wrote; without it, `open_run` uses the installation's own key.
    """

    provider: Provider
    model: str
    tools: ToolRegistry
    store: StoreCore
    cwd: str
    hooks: Hooks = field(default_factory=NoHooks)
    gate: Gate = field(default_factory=ReadOnlyGate)
    clock: Clock = field(default_factory=SystemClock)
    project_dir: str = ""
    cost: Callable[..., float | None] = lambda usage, model, tier=None: None
    name: str | None = None
    api_key: str | None = field(default=None, repr=False)
    agent_names: tuple[str, ...] = ()
    workspace_roots: tuple[str, ...] = ()
    max_steps: int = 50
    max_answer_bytes: int = 16 * 1024 * 1024
    blob_bytes: int = 256 * 1024
    on_storage_error: Literal["stop", "continue"] = "stop"
    parts: Sequence[PartOpener] = ()
    redact: Callable[[str], str] | None = None
    session_dir: Callable[[str], str | None] = lambda session_id: None
    seal: KeyedDigests | None = None
    folds: Sequence[type[Fold]] = ()


@frozen(kw_only=True)
class RunRequest:
    """A caller's request for one run: its session, its limits, and how much of the session's history the model sees.

    With `parks`, an unanswered question ends the run as `waiting`; the answer may arrive in another process. `brings` are
    events that accompany the prompt of a subagent (for example, a skill that is active there). `part` is the run's place in
    a conversation of several runs: session hooks run once for the whole. `untrusted` is the outside content that a
    subagent's parent has read. `guard` is called before and after each append of the run and its subagents, and raises if
    the run has lost its right to act. `traceparent` is the caller's trace context, for the log. `session` is created if it
    does not exist; `session_id` must not exist yet.
    """

    resume: str | None = None
    session: str | None = None
    session_id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    request_id: str | None = None
    max_events: int | None = None
    max_bytes: int | None = None
    timeout_s: float | None = None
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    parks: bool = False
    brings: Sequence[Event] = ()
    part: Literal["whole", "first", "next"] = "whole"
    untrusted: Sequence[str] = ()
    guard: Callable[[], None] | None = None
    traceparent: str | None = None


@mutable
class Run:
    """One run of an agent on one session.

    `inbox` holds messages that a person sent during the run, `notes` messages from hooks and rules to the model. `children`
    counts the runs and calls active inside this run's calls; `helpers` are the runs of its subagents and of its code.
    `policy_told` is the digest of the policy last recorded by this run.
    """

    agent: AgentRuntime
    session_id: str
    recorder: Recorder
    view: SessionView
    lifetime: Lifetime
    parent: Run | None = None
    request: RunRequest = field(default_factory=RunRequest)
    steps: int = 0
    inbox: deque[Said] = field(default_factory=deque)
    notes: list[UserMessage] = field(default_factory=list)
    children: int = 0
    policy_told: str = ""
    helpers: list[Run] = field(default_factory=list)
    parts: Parts = field(default_factory=Parts)

    @property
    def depth(self) -> int:
        """Nesting depth: 0 for a run that the caller started, 1 for its subagents."""
        return 0 if self.parent is None else self.parent.depth + 1

    @cached_property
    def hooks(self) -> RunHooks:
        """The hooks, bound to this run."""
        return RunHooks(self)

    @cached_property
    def questions(self) -> RunQuestions:
        """The questions that this run puts to people."""
        return RunQuestions(self)

    @cached_property
    def context(self) -> RequestContext:
        """The part of this run's requests that is not the conversation."""
        return RequestContext(self)

    @cached_property
    def session_dir(self) -> str | None:
        """The session's folder, or None if its store does not use files."""
        return self.agent.session_dir(self.session_id)

    def record(self, *events: Event) -> Coroutine[Any, Any, list[Event]]:
        """Store the events as one batch, show them to the caller, and return them as stored."""
        return self.recorder.append(*events)

    def whereabouts(self, **more: Any) -> dict[str, Any]:
        """The session and agent of a call and the folders where it runs, with `more`, for hooks and permission callbacks."""
        agent = self.agent
        return {
            "session_id": self.session_id,
            "cwd": agent.cwd,
            "project_dir": agent.project_dir,
            "agent_name": agent.name,
            "model": self.model,
            "permission_mode": agent.gate.mode,
            **more,
        }

    @property
    def model(self) -> str:
        """The model for the next request: the agent's, unless a part names another."""
        for part in self.parts.at(Part.model):
            if model := part.model():
                return model
        return self.agent.model

    @property
    def gate(self) -> Gate:
        """The agent's gate, narrowed by the parts."""
        gate = self.agent.gate
        # Computed anew for each call: the last one may have activated a skill.
        for part in self.parts.at(Part.narrow):
            gate = narrowed_by(gate, part.narrow())
        return gate

    def change_gate(self, gate: Gate) -> None:
        """Use another gate from the next call on, also in this run's subagents and inner calls."""
        old = self.agent.gate
        self.agent = changed(self.agent, gate=gate)
        for helper in self.helpers:
            # Their gates were narrowed from the old one, and stay narrowed.
            helper.change_gate(helper.agent.gate.moved(old, gate))

    @property
    def can_ask(self) -> bool:
        """Whether a question can be answered, now or after the run has parked."""
        return self.request.parks or self.agent.gate.can_ask

    def gate_context(
        self, tool_use_id: str, effect: str | None = None, tool: str | None = None, **more: Any
    ) -> CallContext:
        """The gate's context for one call. `more` are further fields, such as the request of a hook.

        `tool` is None for a path that a running call asks for.
        """
        context = CallContext(
            cwd=self.agent.cwd,
            session_cwd=self.agent.cwd,
            project_dir=self.agent.project_dir,
            workspace_roots=(*self.agent.workspace_roots, *self.outputs),
            protected_paths=self.protected_paths,
            session_id=self.session_id,
            tool_use_id=tool_use_id,
            effect=effect,
            # An answer in the log counts even if nobody can be asked now.
            ask=self.questions.ask if self.can_ask or self.view.has_answer(tool_use_id) else None,
            told=self.whereabouts(tool_use_id=tool_use_id, effect=effect),
            **more,
        )
        for part in self.parts.at(Part.tell_gate):
            context = part.tell_gate(context, tool)
        return context

    def policy_record(self, gate: Gate) -> dict[str, Any]:
        """The inputs that all decisions about calls share, as JSON: the gate's policy and the session's location."""
        record = gate.record()
        own_roots = record.pop("roots")
        roots = (*self.agent.workspace_roots, *self.outputs) or own_roots
        protected = [*record["protected"], *self.protected_paths]
        return {**record, "protected": protected, "project_dir": self.agent.project_dir, "roots": list(roots)}

    @property
    def outputs(self) -> tuple[str, ...]:
        """The folders that hold outputs too long to show; the model is referred to them, so it may read them."""
        return () if self.session_dir is None else (os.path.join(self.session_dir, "outputs"),)

    @property
    def protected_paths(self) -> tuple[str, ...]:
        """The session's own files; no tool may edit them."""
        return () if self.session_dir is None else (self.session_dir,)
