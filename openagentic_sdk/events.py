"""Everything that can happen in a session: one frozen class per kind of event.

An event is stored before anyone sees it, unless it is a delta, `ToolProgress`, a repeated answer, or part of an unsaved run.
The log is self-contained: prompts, requests, answers, decisions, effects and results, in the order of `seq`.

A field's annotation also defines which values a reader accepts, see `serialization`; a field without a default is required.
Times are in seconds, sizes in bytes or tokens as the name indicates, digests are lower-case hexadecimal SHA-256.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, Literal, get_args

from .ground.frozen import frozen

StopReason = Literal[
    "end", "max_steps", "timeout", "budget", "interrupted", "suspended", "waiting", "error", "handoff",
    "blocked:input_guardrail", "blocked:output_guardrail", "blocked:session_start", "blocked:user_prompt_submit",
    "blocked:before_model_call", "blocked:after_model_call", "blocked:pre_tool_use", "blocked:post_tool_use",
    "blocked:stop", "blocked:permission_request", "blocked:notification", "blocked:subagent_start",
    "blocked:subagent_stop", "blocked:pre_compact", "blocked:post_compact",
]  # fmt: skip
Outcome = Literal["ok", "error", "denied", "cancelled", "unknown"]
Effect = Literal["read", "idempotent", "unsafe"]
Mode = Literal["default", "acceptEdits", "plan", "dontAsk", "bypass", "prompt", "callback", "deny"]
QuestionKind = Literal["permission", "question"]


@frozen
class Event:
    """The fields common to all events: the position in the log, and the subagent that the event belongs to.

    `seq` (1, 2, 3 ...) and `ts` (seconds since the epoch, for information only) are None until the event is stored.
    `parent_tool_use_id` and `agent_name` are set on the events of a subagent: the Task call that started it, and its name.
    Events of a call made by code have the `parent_tool_use_id` of the call that runs the code. `mac` is a digest that only
    this installation can compute, on events that could authorize something later; see `sessions.authority`.
    """

    type: ClassVar[str] = ""
    seq: int | None = field(default=None, kw_only=True)
    ts: float | None = field(default=None, kw_only=True)
    parent_tool_use_id: str | None = field(default=None, kw_only=True)
    agent_name: str | None = field(default=None, kw_only=True)
    mac: str | None = field(default=None, kw_only=True)


# --- a run begins and ends -------------------------------------------------------------------------------------------


@frozen
class SystemInit(Event):
    """A run starts on a session. This is the first event of every run, so a resumed session contains several.

    `messages_from_seq`, if set, is the first event of the conversation that the model still sees (`resume_max_events`).
    `workspace_roots` are the folders that belong to the session, both as given and resolved; `untrusted` lists the outside
    content that a subagent's parent had read, see `sessions.folds.features.untrusted`. `traceparent` is the caller's trace
    context in the W3C Trace Context format.
    """

    type: ClassVar[Literal["system.init"]] = "system.init"
    session_id: str
    cwd: str
    sdk_version: str
    model: str | None = None
    provider: str | None = None
    permission_mode: Mode | None = None
    tools: Sequence[str] = field(default_factory=list)
    agents: Sequence[str] = field(default_factory=list)
    messages_from_seq: int | None = None
    durability: str | None = None
    workspace_roots: Sequence[str] = field(default_factory=list)
    untrusted: Sequence[str] = field(default_factory=list)
    traceparent: str | None = None


@frozen
class SystemNotice(Event):
    """A notice that is not an error: `code` for programs, `message` for people."""

    type: ClassVar[Literal["system.notice"]] = "system.notice"
    code: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)


@frozen
class Result(Event):
    """A run ended. This is the last event of a run, unless its process was killed.

    `stop_reason` is `end`, `max_steps`, `timeout`, `budget`, `interrupted` (by a person or the caller), `suspended` (the
    process was asked to end; the run can continue elsewhere), `error`, `waiting` (for a person; a workflow also for a time
    or an event), `handoff` (another agent continues the session), `blocked:<hook point>`, `blocked:input_guardrail` or
    `blocked:output_guardrail`. `usage` and `cost_usd` are the session's totals so far, including subagents; `cost_usd` is
    `None` if a price is unknown. `cached_share` is the fraction of all prompt tokens that the vendor's cache served, 0 to 1,
    or None if unknown. `steps` counts the model calls of this run. `saved` is False if events of this run could not be
    stored. `request_id` is that of the prompt that the run worked on.

    `final_text` is empty if a hook or guardrail refused the answer (`blocked:stop`, `blocked:after_model_call`, ...).
    `cut_by` is set if the text is incomplete: `length`, `content_filter`, or the endpoint's own reason.
    """

    type: ClassVar[Literal["result"]] = "result"
    final_text: str
    session_id: str
    stop_reason: StopReason
    usage: Mapping[str, Any] | None = None
    cost_usd: float | None = None
    steps: int = 0
    duration_s: float | None = None
    error_type: str | None = None
    error_message: str | None = None
    structured_output: Any = None
    saved: bool = True
    cached_share: float | None = None
    cut_by: str | None = None
    request_id: str | None = None


# --- messages of people ----------------------------------------------------------------------------------------------


@frozen
class UserMessage(Event):
    """An accepted prompt or steering message, or text that the run adds for the model. `origin` is `user`, `hook`,
    `steering`, `repair`, `rule` (a project's rule for a file), `mcp` (a server's description of itself), `task` (the result
    of a background subagent, after a resume), `part` (why a part keeps the run going) or `context` (other information).

    `about` names the subject of an added text (`skill:12`, `memory:/p/CLAUDE.md`): of several about the same subject in
    view, the last one applies. `request_id` makes a retried prompt idempotent, and `prompt_sha256`, the digest of the
    caller's input, shows whether it is the same prompt. `attachments` are the pictures, documents and sounds that came with
    the text: `{"type", "media_type", "name"?, "size", "sha256"}` of a blob beside the log, or `{"type", "url", ...}`.
    `untrusted` lists the outside content in it, see `sessions.folds.features.untrusted`.
    """

    type: ClassVar[Literal["user.message"]] = "user.message"
    text: str
    request_id: str | None = None
    origin: str = "user"
    attachments: Sequence[Mapping[str, Any]] = field(default_factory=list)
    about: str | None = None
    untrusted: Sequence[str] = field(default_factory=list)
    prompt_sha256: str | None = None


@frozen
class UserQuestion(Event):
    """A question is put to a person. `kind` is `permission` or `question`; `details` has the call, or the answer's form."""

    type: ClassVar[Literal["user.question"]] = "user.question"
    question_id: str
    prompt: str
    choices: Sequence[str] = field(default_factory=list)
    kind: QuestionKind = "question"
    tool_use_id: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@frozen
class UserAnswer(Event):
    """The answer to a question. `answered_by` names who or what gave it: `superseded` means that a prompt came instead,
    `rewound` that a rewind removed the question.

    `approver` is `{"name", "how"}` if the person's identity is known, where `how` is `server token`, `operating system` or
    `editor`, see docs/record.md. `request_id` makes a retried answer idempotent.
    """

    type: ClassVar[Literal["user.answer"]] = "user.answer"
    question_id: str
    answer: str
    answered_by: str = "user"
    approver: Mapping[str, Any] | None = None
    request_id: str | None = None


# --- requests to the model, and its answers --------------------------------------------------------------------------


@frozen
class ModelContext(Event):
    """The contents of the following requests besides messages. Written only if it differs from the previous one; `cause`
    describes the difference, because the earlier requests are then not a prefix of the later ones.

    `parts` lists the origin of each slice of the system prompt: `{"kind", "source", "start", "end"}`, see
    `parts.project.prompt`.
    """

    type: ClassVar[Literal["model.context"]] = "model.context"
    model: str
    provider: str
    system_prompt: str
    tools: Sequence[Mapping[str, Any]] = field(default_factory=list)
    parts: Sequence[Mapping[str, Any]] = field(default_factory=list)
    cause: str = ""


@frozen
class ModelRequest(Event):
    """A request to the model. `request_sha256` is the digest of the canonical request, see `sessions.request`.

    `step` counts the model calls of the whole session. `messages` is set only if a hook rewrote them for this request;
    otherwise they are rebuilt from the log before this event. `purpose` is `turn`, or `compaction` for a request for a
    summary and `extract` for a request for a value; the answers of these two are not part of the conversation. Such a
    request consists of the conversation plus what is `appended` to it, or has its own `messages` and no tools. `model` is
    the requested model; in older logs only the preceding `model.context` has it.
    """

    type: ClassVar[Literal["model.request"]] = "model.request"
    step: int
    attempt: int
    request_sha256: str
    message_count: int
    messages: Sequence[Mapping[str, Any]] | None = None
    purpose: str = "turn"
    model: str | None = None
    appended: Sequence[Mapping[str, Any]] | None = None


@frozen
class ModelRetry(Event):
    """An attempt failed, and another follows after `delay_s`. With `mid_answer`, part of its answer had arrived: the deltas
    already shown and the incomplete message before this event are void, and the answer starts over.

    `control` describes how the requests of this session are written from now on, because an endpoint refused one:
    `drop_block`, `no_reasoning`, `unsigned`, `hold_tool NAME` or `cut_descriptions N`, and the endpoint's host, see
    `providers.base.ProviderSession`.
    """

    type: ClassVar[Literal["model.retry"]] = "model.retry"
    step: int
    attempt: int
    reason: str
    delay_s: float
    model: str | None = None
    mid_answer: bool = False
    control: str | None = None


@frozen
class AssistantDelta(Event):
    """A piece of text as it arrives. Shown but never stored: the following `assistant.message` holds the complete text.

    `attempt` distinguishes the pieces of one attempt from those of the next, which replace them.
    """

    type: ClassVar[Literal["assistant.delta"]] = "assistant.delta"
    text_delta: str
    attempt: int = 1


@frozen
class ReasoningDelta(Event):
    """A piece of the model's reasoning as it arrives. Shown but never stored."""

    type: ClassVar[Literal["reasoning.delta"]] = "reasoning.delta"
    text_delta: str
    attempt: int = 1


@frozen
class ModelResponse(Event):
    """The model answered, or stopped answering: `complete` is False for an answer that was cut off.

    `usage` is that of this call alone, in the normal form of `sessions.folds.usage`; None if the endpoint reported none.
    `cost_usd` is the cost reported by the endpoint, otherwise the one computed from the price table. `model` is the one that
    answered, `rate_limits` are the response headers about limits, `notices` list the parts of the request that the model
    does not support and that were omitted, `raw` is everything the endpoint sent, if the request's settings ask for it.
    """

    type: ClassVar[Literal["model.response"]] = "model.response"
    step: int
    attempt: int
    complete: bool = True
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    cost_usd: float | None = None
    first_token_s: float | None = None
    total_s: float | None = None
    model: str | None = None
    provider: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    response_id: str | None = None
    service_tier: str | None = None
    system_fingerprint: str | None = None
    rate_limits: Mapping[str, Any] | None = None
    logprobs: Any = None
    notices: Sequence[str] | None = None
    raw: Any = None


@frozen
class AssistantReasoning(Event):
    """The model's reasoning as text, never sent again; vendors receive the `extras` of the message and its calls instead."""

    type: ClassVar[Literal["assistant.reasoning"]] = "assistant.reasoning"
    text: str


@frozen
class AssistantMessage(Event):
    """The text of one answer. `incomplete` is true if the answer was cut off and this is the part that arrived.

    `extras` are opaque vendor fields that belong in the message when it goes back to the same `provider`. `citations` are
    the sources of the text, as sent by the vendor.
    """

    type: ClassVar[Literal["assistant.message"]] = "assistant.message"
    text: str
    incomplete: bool = False
    refusal: bool = False
    provider: str | None = None
    extras: Mapping[str, Any] | None = None
    citations: Sequence[Mapping[str, Any]] | None = None


# --- a tool call, from the request to the outcome --------------------------------------------------------------------


# The caller's type of calls that our tool `Code` makes.
CODE_CALLER = "Code"


@frozen
class ToolUse(Event):
    """The model asks for a tool. All calls of one answer are stored as one batch.

    `raw_arguments` is set if the call did not arrive whole (the answer was cut off, or the arguments are not a JSON object):
    the call is answered with an error and never runs. `caller` is set if code made the call instead of the model: `{"type":
    "Code", "tool_use_id"}` for a call inside that call of our tool, invisible to the model, with the `labels` of its
    arguments if a plan made it (docs/injection.md); otherwise a vendor's description of code that it runs, and the model
    sees the result as usual.
    """

    type: ClassVar[Literal["tool.use"]] = "tool.use"
    tool_use_id: str
    name: str
    input: Mapping[str, Any]
    raw_arguments: str | None = None
    provider: str | None = None
    extras: Mapping[str, Any] | None = None
    caller: Mapping[str, Any] | None = None

    @property
    def is_inside(self) -> bool:
        """Whether the call was made inside another one, by the code that it runs."""
        return self.caller is not None and self.caller.get("type") == CODE_CALLER


@frozen
class HookEvent(Event):
    """A hook ran. `action` is its effect: `none`, `block`, `rewrite_input`, `ignored_override_messages`, `error` ..."""

    type: ClassVar[Literal["hook.event", "workspace.kept"]] = "hook.event"
    hook_point: str
    name: str
    matched: bool = True
    action: str | None = None
    duration_s: float | None = None
    tool_use_id: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    error_type: str | None = None
    error_message: str | None = None


@frozen
class WorkspaceKept(HookEvent):
    """The state of the checkout in which a run of a fleet works, when it was opened and after each change.

    `workspace` is its name in the registry, `commit` the starting point, `patch` the blob with all changes since, empty
    without any; `branch` is the branch to which they were pushed, if any.
    """

    type: ClassVar[Literal["workspace.kept"]] = "workspace.kept"
    workspace: str = ""
    commit: str = ""
    patch: str = ""
    branch: str | None = None


@frozen
class PermissionDecision(Event):
    """Whether a call may run, and why. `input_sha256` binds an approval to the exact arguments.

    `reason` is a sentence; `rule` and `source` name the deciding rule and its location; `answered_by` is who decided if a
    person or callback was asked, `waited_s` how many seconds that took. `policy_sha256` identifies the policy in force.
    """

    type: ClassVar[Literal["permission.decision"]] = "permission.decision"
    tool_use_id: str
    name: str
    allowed: bool
    mode: Mode
    input_sha256: str
    reason: str = ""
    rule: str | None = None
    source: str | None = None
    hook: str | None = None
    answered_by: str | None = None
    waited_s: float | None = None
    policy_sha256: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@frozen
class ToolStarted(Event):
    """A call is about to take effect; stored beforehand, and on disk unless the call only reads.

    `input` is set if a hook changed the input. `effect` is `read`, `idempotent` or `unsafe`; `attempt` is above 1 if a call
    in doubt is repeated.
    """

    type: ClassVar[Literal["tool.started"]] = "tool.started"
    tool_use_id: str
    name: str
    effect: Effect
    input_sha256: str
    idempotency_key: str
    attempt: int = 1
    input: Mapping[str, Any] | None = None


@frozen
class TrialStarted(Event):
    """A call is about to be tried on a copy, where it changes nothing; a later decision judges its effects."""

    type: ClassVar[Literal["trial.started"]] = "trial.started"
    tool_use_id: str
    name: str
    mode: Mode
    input_sha256: str
    reason: str = ""
    policy_sha256: str | None = None
    attempt: int = 1


@frozen
class ToolResult(Event):
    """The result of a call. `outcome` is `ok`, `error`, `denied`, `cancelled` or `unknown` (it may or may not have run).

    `output` is any JSON value, and what the model reads; `meta` is for the runtime and never shown to the model:
    `meta["files"]` maps absolute paths to the digest of the content that the tool read or wrote, `meta["traceback"]` is
    that of the tool's exception, at most about 8,000 characters. `attachments` are the pictures, documents and sounds that
    the tool returned, as in `user.message`; those of the type `other` are stored and not sent.
    """

    type: ClassVar[Literal["tool.result"]] = "tool.result"
    tool_use_id: str
    output: Any = None
    is_error: bool = False
    error_type: str | None = None
    error_message: str | None = None
    outcome: Outcome = "ok"
    duration_s: float | None = None
    meta: Mapping[str, Any] | None = None
    attachments: Sequence[Mapping[str, Any]] = field(default_factory=list)


@frozen
class ToolProgress(Event):
    """A tool's progress report on its call. Shown but never stored. `total` is `None` if unknown."""

    type: ClassVar[Literal["tool.progress"]] = "tool.progress"
    tool_use_id: str
    progress: float
    total: float | None = None
    message: str = ""


@frozen
class ToolsLoaded(Event):
    """The model receives these tools from now on: ToolSearch found them for `query`, or it called them by name.

    Their definitions are in the `model.context` that follows.
    """

    type: ClassVar[Literal["tools.loaded"]] = "tools.loaded"
    names: Sequence[str]
    query: str | None = None
    tool_use_id: str | None = None


# --- what tools and subagents leave behind ---------------------------------------------------------------------------


@frozen
class TodoUpdated(Event):
    """The complete to-do list. An item has `content` and `status` (`pending`, `in_progress`, `completed`)."""

    type: ClassVar[Literal["todo.updated"]] = "todo.updated"
    todos: Sequence[Mapping[str, Any]]


@frozen
class PartState(Event):
    """The complete state of a caller's own part: JSON, with the `version` of the part that wrote it.

    The newest one of each part counts, even across a compaction; a rewind to before it undoes it.
    """

    type: ClassVar[Literal["part.state"]] = "part.state"
    part: str
    version: int
    data: Any


@frozen
class CommandExpanded(Event):
    """The preceding prompt is the text of a command, which was called as `/name arguments`.

    `scope` is where the command was found (`project`, `user`); `grants` are the permission rules and `model` the model that
    apply for its turn.
    """

    type: ClassVar[Literal["command.expanded"]] = "command.expanded"
    name: str
    path: str | None = None
    scope: str | None = None
    arguments: str | None = None
    grants: Sequence[str] = field(default_factory=list)
    model: str | None = None


@frozen
class TextCommandStarted(Event):
    """A command inside the text of a skill or command is about to run. The event is written to disk first.

    `name` and `path` identify the text. `command_id` is the same for every attempt; the preceding `permission.decision`
    carries it as its `tool_use_id`.
    """

    type: ClassVar[Literal["text_command.started"]] = "text_command.started"
    command_id: str
    name: str
    command: str
    input_sha256: str
    path: str | None = None


@frozen
class TextCommandFinished(Event):
    """The result of a command inside text: `output` replaces it there, or `error_message` explains why nothing does.

    `outcome` is `ok`, `error` or `cancelled`.
    """

    type: ClassVar[Literal["text_command.finished"]] = "text_command.finished"
    command_id: str
    output: str = ""
    outcome: Outcome = "ok"
    error_message: str | None = None
    duration_s: float | None = None


@frozen
class SkillActivated(Event):
    """A skill became active. `body` is its rendered text, so the file may change or disappear; `body_sha256` is the digest
    of that text before the outputs of its commands were inserted.

    `scope` is where the skill was found (`project`, `user`, `path`), `requested_by` is `model`, `user`, `config` or
    `subagent`; `grants` are the permission rules and `model` the model that apply for its turn. `argument_names` are the
    names by which the text refers to the words of `arguments`.
    """

    type: ClassVar[Literal["skill.activated"]] = "skill.activated"
    name: str
    path: str | None = None
    scope: str | None = None
    body: str = ""
    body_sha256: str | None = None
    tree_sha256: str | None = None
    arguments: str | None = None
    requested_by: str = "model"
    grants: Sequence[str] = field(default_factory=list)
    disallowed_tools: Sequence[str] = field(default_factory=list)
    allowed_only: Sequence[str] | None = None
    model: str | None = None
    argument_names: Sequence[str] = field(default_factory=list)


@frozen
class SkillDeactivated(Event):
    """A skill is no longer active."""

    type: ClassVar[Literal["skill.deactivated"]] = "skill.deactivated"
    name: str
    reason: str = ""


@frozen
class SkillDrifted(Event):
    """The file of an active skill has changed since its activation; the stored text remains in force."""

    type: ClassVar[Literal["skill.drifted"]] = "skill.drifted"
    name: str
    old_sha256: str | None = None
    new_sha256: str | None = None


@frozen
class SubagentStarted(Event):
    """A subagent runs in its own session, `child_session_id`."""

    type: ClassVar[Literal["subagent.started"]] = "subagent.started"
    tool_use_id: str
    name: str
    child_session_id: str
    prompt: str


@frozen
class SubagentFinished(Event):
    """A subagent ended. `usage` and `cost_usd` are its totals, including its own subagents.

    `untrusted` lists the outside content that it had read, see `sessions.folds.features.untrusted`; None in older logs.
    """

    type: ClassVar[Literal["subagent.finished"]] = "subagent.finished"
    tool_use_id: str
    name: str
    child_session_id: str
    stop_reason: StopReason
    usage: Mapping[str, Any] | None = None
    cost_usd: float | None = None
    untrusted: Sequence[str] | None = None


@frozen
class McpServerChanged(Event):
    """The state of an MCP server of this run: `started`, `restarted`, `changed` (its tools differ), `failed` (unusable or
    not ready, see `error_message`), `lost` (it ended) or `pending` (nobody has consented to it yet).

    `transport` is `stdio`, `http`, `sse` or `tools` (in this process), `protocol_version` the negotiated version, `server`
    the server's description of itself. `tools` are those on offer, `{"name", "tool", "sha256"}`: the name that the model
    calls, the server's own, and the digest of its definition, with `unchecked` if the schema has keywords that are not
    checked here; `left_out` are the others, `{"tool", "code", "reason"}`.
    """

    type: ClassVar[Literal["mcp.server"]] = "mcp.server"
    name: str
    state: str
    transport: str
    protocol_version: str | None = None
    server: Mapping[str, Any] | None = None
    tools: Sequence[Mapping[str, Any]] = field(default_factory=list)
    left_out: Sequence[Mapping[str, Any]] = field(default_factory=list)
    error_message: str | None = None


# --- files that calls change -----------------------------------------------------------------------------------------


@frozen
class FileKept(Event):
    """The state of a file before a call of this run changes it for the first time, so that it can be restored.

    `path` is absolute and resolved. `sha256` is a blob beside the log, None if there was no file; `mode` its permission
    bits. `problem` explains why no content was kept.
    """

    type: ClassVar[Literal["file.kept"]] = "file.kept"
    tool_use_id: str
    path: str
    sha256: str | None = None
    mode: int | None = None
    problem: str | None = None


@frozen
class FilesRestoring(Event):
    """Files are about to be restored to their state at event `to_seq`; on disk before the first of them is touched.

    Each of `files` is `{"path", "found", "sha256", "mode", "session_id"}`: the digests of the current content and of the
    content to restore (null for no file), and the session that keeps the latter. So an interrupted restore can be completed.
    """

    type: ClassVar[Literal["files.restoring"]] = "files.restoring"
    to_seq: int
    files: Sequence[Mapping[str, Any]] = field(default_factory=list)


@frozen
class FilesRestored(Event):
    """The outcome of a restore: the restored paths, and the reason for each path that was not restored."""

    type: ClassVar[Literal["files.restored"]] = "files.restored"
    to_seq: int
    paths: Sequence[str] = field(default_factory=list)
    failed: Mapping[str, Any] = field(default_factory=dict)


# --- the session itself ----------------------------------------------------------------------------------------------


@frozen
class SessionCompacted(Event):
    """In the model's view, `summary` replaces everything up to `up_to_seq`. The log keeps all of it.

    `files_read` and `files_changed` are the absolute paths that tools have read and changed in the session so far.
    """

    type: ClassVar[Literal["session.compacted"]] = "session.compacted"
    up_to_seq: int
    summary: str
    trigger: str = "auto"
    method: str = "model"
    tokens_before: int | None = None
    tokens_after: int | None = None
    files_read: Sequence[str] = field(default_factory=list)
    files_changed: Sequence[str] = field(default_factory=list)


@frozen
class ContextCleared(Event):
    """In the model's view, a note with their location replaces the outputs of these calls. The log keeps them.

    `results` maps each call's id to the `{"sha256", "bytes"}` of the blob beside the log with the output that the model had
    read.
    """

    type: ClassVar[Literal["context.cleared"]] = "context.cleared"
    results: Mapping[str, Any]
    trigger: str = "auto"
    tokens_before: int | None = None
    tokens_after: int | None = None


@frozen
class SessionForked(Event):
    """This session began as a copy of another one up to its event `parent_seq`."""

    type: ClassVar[Literal["session.forked"]] = "session.forked"
    parent_session_id: str
    parent_seq: int


@frozen
class SessionRewound(Event):
    """In the model's view, everything after `to_seq` is removed. `request_id` makes a retried rewind idempotent."""

    type: ClassVar[Literal["session.rewound"]] = "session.rewound"
    to_seq: int
    request_id: str | None = None


@frozen
class SessionMeta(Event):
    """A person renamed or tagged the session; a field that is `None` is unchanged."""

    type: ClassVar[Literal["session.meta"]] = "session.meta"
    title: str | None = None
    tags: Sequence[str] | None = None


@frozen
class LogRecovered(Event):
    """A torn tail was found when the log was opened, and moved aside: the `bytes` from `offset` on are in `moved_to`.

    Without `moved_to`, the bytes never reached the disk: their sync failed, and nothing is left of them.
    """

    type: ClassVar[Literal["log.recovered"]] = "log.recovered"
    bytes: int
    offset: int
    moved_to: str | None = None


@frozen
class LogSalvaged(Event):
    """This session is the intact part of a damaged one: this event, followed by `events` copied events.

    Log positions in the copied events are shifted by one. `damage` is the finding of the check, `dropped_bytes` the size of
    what follows it in the old log, `kept_behind` how many of those events are at this log's end as `log.fragment`.
    """

    type: ClassVar[Literal["log.salvaged"]] = "log.salvaged"
    source_session_id: str
    events: int
    damage: str = ""
    dropped_bytes: int = 0
    kept_behind: int = 0


@frozen
class LogFragment(Event):
    """An event after the damage of the log from which this session was salvaged: a record, not part of the conversation.
    `is_proved` is true if the preceding line's checksum confirms it.
    """

    type: ClassVar[Literal["log.fragment"]] = "log.fragment"
    source_seq: int
    event: Mapping[str, Any] = field(default_factory=dict)
    is_proved: bool = True


# --- the signed record -----------------------------------------------------------------------------------------------


@frozen
class RecordSigned(Event):
    """An attestation of the events `from_seq` to `to_seq`, and through `before` of all earlier ones, see `parts.record`.

    `before` and `head` are the ends of the SHA-256 chain around the range, `digests` those of its events, joined, in
    base64. Each of `signatures` is `{"by", ...}`, made by a key, a person or a witness over the statement that these fields
    form. `opening` holds the salts of the digests; no digest covers it, and an erasure removes salts from it.
    """

    type: ClassVar[Literal["record.signed"]] = "record.signed"
    session_id: str
    from_seq: int
    to_seq: int
    before: str
    head: str
    digests: str
    signatures: Sequence[Mapping[str, Any]] = field(default_factory=list)
    sdk_version: str = ""
    opening: Mapping[str, Any] = field(default_factory=dict)


@frozen
class RecordErasing(Event):
    """Fields are about to be erased, for an erasure that began in session `source_session_id`; on disk before the first of
    them is erased. Each of `fields` is `{"seq", "path"}`.
    """

    type: ClassVar[Literal["record.erasing"]] = "record.erasing"
    erasure_id: str
    source_session_id: str
    fields: Sequence[Mapping[str, Any]] = field(default_factory=list)
    reason: str = ""
    by: str = ""


@frozen
class RecordErased(Event):
    """An erasure that began in session `source_session_id` is complete here: the `record.erasing` with its id lists the
    fields; a fork or child with nothing to erase has only this event. `blobs` counts the stored values that were removed
    with them.
    """

    type: ClassVar[Literal["record.erased"]] = "record.erased"
    erasure_id: str
    source_session_id: str
    blobs: int = 0
    reason: str = ""
    by: str = ""


@frozen
class RecordKept(Event):
    """The session was put on hold or released (`held`: it must not be deleted, purged or erased from), or the time until
    which it is retained was set (`until`, epoch seconds; 0 ends that). A field that is `None` is unchanged.
    """

    type: ClassVar[Literal["record.kept"]] = "record.kept"
    held: bool | None = None
    until: float | None = None
    reason: str = ""
    by: str = ""


@frozen
class RecordPurged(Event):
    """What remains of a purged session: the number and time range of its events, and the head of its chain.

    `signed` is the newest signed statement about it, with its signatures.
    """

    type: ClassVar[Literal["record.purged"]] = "record.purged"
    purged_session_id: str
    events: int
    created: float
    updated: float
    head: str | None = None
    signed: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    by: str = ""


# --- evals -----------------------------------------------------------------------------------------------------------


@frozen
class EvalStarted(Event):
    """An eval begins, in a session that contains nothing else; see `openagentic_sdk.evals`.

    `plan` lists the cases, `{"id", "mode", "session_id"?, "at_seq"?, "variants"?}`: each runs `repeats` times under each of
    `variants`, or of its own variants. `suite_sha256` is the digest of the suite's content, `source` its location.
    """

    type: ClassVar[Literal["eval.started"]] = "eval.started"
    suite: str
    suite_sha256: str
    plan: Sequence[Mapping[str, Any]]
    variants: Sequence[str]
    repeats: int = 1
    max_cost_usd: float | None = None
    source: str | None = None


@frozen
class EvalCase(Event):
    """A case ran once under a variant, and was scored; `repeat` counts from 1.

    `session_id` is the session that was scored, `run_seq` the `system.init` of the run in it, `step_seq` the event after
    which the model was last asked, `response_id` the endpoint's id for that answer. `scores` are `{"name", "type",
    "passed", "value", "words", "error_type"?, "session_id"?, "cost_usd"?}`: the value is 0 to 1, the session is a judge's.
    `cost_usd` is what this eval paid for the run, None if unknown; replayed answers cost nothing.
    """

    type: ClassVar[Literal["eval.case"]] = "eval.case"
    case: str
    variant: str
    repeat: int
    mode: str
    passed: bool
    scores: Sequence[Mapping[str, Any]] = field(default_factory=list)
    session_id: str | None = None
    run_seq: int | None = None
    step_seq: int | None = None
    response_id: str | None = None
    stop_reason: StopReason | None = None
    final_text: str = ""
    steps: int = 0
    usage: Mapping[str, Any] | None = None
    cost_usd: float | None = None
    duration_s: float | None = None


@frozen
class EvalFinished(Event):
    """An eval stopped: `reason` is `end`, `budget` (see `message`) or `interrupted`. `left` counts the remaining runs."""

    type: ClassVar[Literal["eval.finished"]] = "eval.finished"
    reason: str
    passed: int
    failed: int
    left: int = 0
    cost_usd: float | None = None
    message: str = ""


class UnknownEvent(Event):
    """An event of a type unknown to this version, kept verbatim. `data` is the complete JSON object."""

    type: ClassVar[Literal[""]] = ""  # each instance has its own: only the class identifies it
    data: Mapping[str, Any]

    def __init__(self, data: Mapping[str, Any]) -> None:
        super().__init__(
            seq=data.get("seq"),
            ts=data.get("ts"),
            parent_tool_use_id=data.get("parent_tool_use_id"),
            agent_name=data.get("agent_name"),
            mac=data.get("mac"),
        )
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "type", str(data.get("type")))

    def __repr__(self) -> str:
        return f"UnknownEvent({dict(self.data)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnknownEvent) and self.data == other.data

    def __hash__(self) -> int:
        return hash((self.seq, self.type))


# All event classes: with this union, type checkers infer from `type`, or from a `match`, which fields an event has.
AnyEvent = (
    SystemInit | SystemNotice | Result | UserMessage | UserQuestion | UserAnswer | ModelContext | ModelRequest |
    ModelRetry | AssistantDelta | ReasoningDelta | ModelResponse | AssistantReasoning | AssistantMessage | ToolUse |
    HookEvent | WorkspaceKept | PermissionDecision | ToolStarted | TrialStarted | ToolResult | ToolProgress |
    ToolsLoaded | TodoUpdated | PartState | CommandExpanded | TextCommandStarted | TextCommandFinished |
    SkillActivated | SkillDeactivated | SkillDrifted | SubagentStarted | SubagentFinished | McpServerChanged |
    FileKept | FilesRestoring | FilesRestored | SessionCompacted | ContextCleared | SessionForked | SessionRewound |
    SessionMeta | LogRecovered | LogSalvaged | LogFragment | RecordSigned | RecordErasing | RecordErased | RecordKept |
    RecordPurged | EvalStarted | EvalCase | EvalFinished | UnknownEvent
)  # fmt: skip
EVENT_CLASSES: Mapping[str, type[AnyEvent]] = {cls.type: cls for cls in get_args(AnyEvent) if cls is not UnknownEvent}

# Shown to the caller as they happen and not stored; another event has the complete text, or the outcome.
UNSTORED = frozenset({AssistantDelta.type, ReasoningDelta.type, ToolProgress.type})

# Events that may let something run after a resume: each carries a digest of this installation, see `sessions.authority`.
AUTHORIZING = frozenset({
    SystemInit, Result, UserMessage, UserQuestion, UserAnswer, ToolUse, PermissionDecision, PartState, CommandExpanded,
    SkillActivated, SubagentStarted, FileKept, FilesRestoring, SessionForked,
})  # fmt: skip

# After each of these the run acts in the world, or somebody relies on what it shows: a power failure must not lose the
# event, see `sessions.log.line.is_barrier`.
BARRIERS = (
    Result, UserMessage, PermissionDecision, ToolResult, TextCommandStarted, TextCommandFinished, SubagentStarted,
    FileKept, FilesRestoring, FilesRestored, RecordSigned, RecordErasing, RecordErased, RecordKept, RecordPurged,
)  # fmt: skip
