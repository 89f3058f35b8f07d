"""What can happen in a session: one frozen class per kind of event, nothing else.

Every event is written to the session's log before anyone sees it (`AssistantDelta` alone is only shown). A reader of the
log needs no other source: prompts, requests, answers, decisions, effects and results are all here, in the order of `seq`.

A field's annotation is also what a reader accepts for it, see `serialization`; a field without a default is required.
Times in seconds, sizes in bytes or tokens as the name says, digests are lower-case hex sha256.
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
    """What every event carries: its place in the log, and which subagent it belongs to.

    `seq` (1, 2, 3 ...) and `ts` (seconds since the epoch, information only) are None until the event is stored.
    `parent_tool_use_id` and `agent_name` are set on events of a subagent: the Task call that started it, and its name.
    Events of a call that code makes have the `parent_tool_use_id` of the call that runs the code.
    `mac` is a digest that only this installation can make, on events that could allow something later, see
    `sessions.authority`.
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
    """A run starts on a session. First event of every run, so a resumed session holds several.

    `messages_from_seq`, when set, is the first event that the conversation still shows the model (`resume_max_events`).
    `workspace_roots` are the folders that belong to the session, as they are named and where that leads; `untrusted` says
    what of elsewhere a subagent's parent had read, see `sessions.folds.features.untrusted`. `traceparent` is the caller's
    place in a trace, as W3C Trace Context writes it.
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
    """Something a person should know that is no error: `code` for programs, `message` for people."""

    type: ClassVar[Literal["system.notice"]] = "system.notice"
    code: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)


@frozen
class Result(Event):
    """A run ended. Last event of every run.

    `stop_reason` is `end`, `max_steps`, `timeout`, `budget`, `interrupted` (by a person or the caller), `suspended` (its
    process was told to end: the run goes on elsewhere), `error`, `waiting`, `handoff` (another agent goes on with the
    session), `blocked:<hook point>`, `blocked:input_guardrail` or `blocked:output_guardrail`.
    `usage` and `cost_usd` are what the session has spent so far, subagents included; `cost_usd` is None when a price is
    unknown. `cached_share` is how much of all prompts came from the vendor's cache, 0 to 1, None when unknown. `steps`
    counts the model calls of this run. `saved` is False when events of this run could not be stored. `request_id` is that
    of the prompt that the run worked on.

    `final_text` is empty when a hook or guardrail refused the answer (`blocked:stop`, `blocked:after_model_call`, ...).
    `cut_by` says that it is a part only: `length`, `content_filter`, or the endpoint's own word for why the model was not
    done.
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


# --- what people say -------------------------------------------------------------------------------------------------


@frozen
class UserMessage(Event):
    """A prompt was accepted. `origin` is `user`, `hook`, `steering`, `repair`, `rule` (of the project, for a file), `mcp`
    (what a server says of itself), `task` (what a subagent in the background gave back, after a resume), `part` (why a part
    of the caller's own lets the run not end yet) or `context` (what else the model has to know by now).

    `about` names what such a message is about (`skill:12`, `memory:/p/CLAUDE.md`): of several in view the last one counts.
    `request_id` makes a retried prompt harmless, and `prompt_sha256`, the digest of what the caller gave, tells whether it
    is the same prompt. `attachments` are the pictures, documents and sounds that came with the text:
    `{"type", "media_type", "name"?, "size", "sha256"}` of a blob beside the log, or `{"type", "url", ...}`.
    `untrusted` says what of elsewhere stands in it, see `sessions.folds.features.untrusted`.
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
    """A person is asked something. `kind` is `permission` or `question`; `details` is what an interface may show."""

    type: ClassVar[Literal["user.question"]] = "user.question"
    question_id: str
    prompt: str
    choices: Sequence[str] = field(default_factory=list)
    kind: QuestionKind = "question"
    tool_use_id: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@frozen
class UserAnswer(Event):
    """The answer to a question. `answered_by` names who or what gave it: `superseded` is a prompt that came instead,
    `rewound` a rewind that took the question back.

    `approver` is `{"name", "how"}` where it is known who that was: how it is known is `server token`, `operating system`
    or `editor`, see docs/record.md. `request_id` makes a retried answer harmless.
    """

    type: ClassVar[Literal["user.answer"]] = "user.answer"
    question_id: str
    answer: str
    answered_by: str = "user"
    approver: Mapping[str, Any] | None = None
    request_id: str | None = None


# --- what the model is asked and says --------------------------------------------------------------------------------


@frozen
class ModelContext(Event):
    """What the requests that follow carry besides messages. Written only when it differs from the one before; `cause` says
    how, since nothing of the requests before is a beginning of those that follow.

    `parts` says who put which slice of the system prompt there: `{"kind", "source", "start", "end"}`, see
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
    """The model is asked. `request_sha256` is the digest of the canonical request, see `sessions.request`.

    `step` counts the model calls of the whole session. `messages` is set only when a hook rewrote them for this request;
    otherwise they follow from the log before this event. `purpose` is `turn`, or `compaction` for a request that asks for
    a summary and `extract` for one that asks for a value, whose answers are no part of the conversation: it is the
    conversation and what is `appended` to it, or it has `messages` of its own and no tools. `model` is whom it is for; logs
    before version 0.3 leave that to the `model.context` before.
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
    """An attempt failed, and another follows after `delay_s`. With `mid_answer`, part of its answer had come: the deltas
    that were shown and the incomplete message before this event are void, and the answer begins again.

    `control` says how the requests of this session are written from now on because an endpoint refused one: `drop_block`,
    `no_reasoning`, `unsigned` or `hold_tool NAME`, and the endpoint's host, see `providers.base.ProviderSession`.
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
    """A piece of text as it arrives. Shown, never stored: the `assistant.message` that follows holds the whole.

    `attempt` tells the pieces of one attempt from those of the next, which take their place.
    """

    type: ClassVar[Literal["assistant.delta"]] = "assistant.delta"
    text_delta: str
    attempt: int = 1


@frozen
class ReasoningDelta(Event):
    """A piece of the model's reasoning as it arrives. Shown, never stored."""

    type: ClassVar[Literal["reasoning.delta"]] = "reasoning.delta"
    text_delta: str
    attempt: int = 1


@frozen
class ModelResponse(Event):
    """The model answered, or stopped answering: `complete` is False for an answer that was cut.

    `usage` is this call's alone, in the normal form of `sessions.folds.usage`; None when the endpoint did not say.
    `cost_usd` is what the endpoint says that the call cost, else what the price table makes of the usage. `model` is the
    one that answered, `rate_limits` are the headers that tell what is left of a limit, `notices` say what of the request
    the model does not take and was left out, `raw` is all that the endpoint sent, when the request's settings ask for it.
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
    """The model's reasoning, never sent as text. `extras` go back to the same provider as they came."""

    type: ClassVar[Literal["assistant.reasoning"]] = "assistant.reasoning"
    text: str


@frozen
class AssistantMessage(Event):
    """The text of one answer. `incomplete` when the answer was cut and this is what had come.

    `extras` are opaque fields of the vendor that belong into the message when it goes back to the same `provider`.
    `citations` are what the text refers to, as the vendor sent it.
    """

    type: ClassVar[Literal["assistant.message"]] = "assistant.message"
    text: str
    incomplete: bool = False
    refusal: bool = False
    provider: str | None = None
    extras: Mapping[str, Any] | None = None
    citations: Sequence[Mapping[str, Any]] | None = None


# --- a tool call, from the wish to the outcome -----------------------------------------------------------------------


# The caller's type of calls that our tool `Code` makes.
CODE_CALLER = "Code"


@frozen
class ToolUse(Event):
    """The model asks for a tool. All calls of one answer are stored as one batch.

    `raw_arguments` is set when the call did not arrive whole (the answer was cut, the arguments are no JSON object): the
    call is answered with an error and never runs. `caller` is set when code made the call and not the model itself:
    `{"type": "Code", "tool_use_id"}` for a call inside of that call of our tool, which the model sees nothing of, with the
    `labels` of its arguments where a plan made it (docs/injection.md);
    else what a vendor says of code that it runs, and the model sees the result as that of any call.
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
        """Whether the call was made inside of another one, by the code that it runs."""
        return self.caller is not None and self.caller.get("type") == CODE_CALLER


@frozen
class HookEvent(Event):
    """A hook ran. `action` is what came of it: `none`, `block`, `rewrite_input`, `ignored_override_messages`, `error` ..."""

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
    """The checkout that a run of a fleet works in, when it was opened and after each change.

    `workspace` is its name in the registry, `commit` where it began, `patch` the blob with what has changed since, empty
    for nothing; `branch` is what it was pushed to.
    """

    type: ClassVar[Literal["workspace.kept"]] = "workspace.kept"
    workspace: str = ""
    commit: str = ""
    patch: str = ""
    branch: str | None = None


@frozen
class PermissionDecision(Event):
    """Whether a call may run, and why. `input_sha256` binds an approval to the exact arguments.

    `reason` is a sentence; `rule` and `source` name the rule that decided and where it stands; `answered_by` is who said
    so when a person or callback was asked, `waited_s` how long that took.
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
    """A call is about to take effect; stored before it does, and on disk unless it only reads.

    `input` is set when a hook changed what will run. `effect` is `read`, `idempotent` or `unsafe`; `attempt` is above 1
    when a call in doubt is run again.
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
    """A call is about to be tried on a copy, where it changes nothing; why it may. A later decision judges what it did."""

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
    """A call ended. `outcome` is `ok`, `error`, `denied`, `cancelled` or `unknown` (it may or may not have run).

    `output` is any JSON value and what the model reads; `meta` is for the runtime and never shown to the model:
    `meta["files"]` maps absolute paths to the digest of what the tool saw or wrote, `meta["traceback"]` is that of the
    exception that a tool raised, in at most some 8,000 letters. `attachments` are the pictures,
    documents and sounds that the tool gave, as in `user.message`; those of the type `other` are kept and not sent.
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
    """How far a call has come, as its tool says. Shown, never stored. `total` is None when it is not known."""

    type: ClassVar[Literal["tool.progress"]] = "tool.progress"
    tool_use_id: str
    progress: float
    total: float | None = None
    message: str = ""


@frozen
class ToolsLoaded(Event):
    """From now on the model is told about these tools: ToolSearch found them for `query`, or it called them by their names.

    The definitions stand in the `model.context` that follows.
    """

    type: ClassVar[Literal["tools.loaded"]] = "tools.loaded"
    names: Sequence[str]
    query: str | None = None
    tool_use_id: str | None = None


# --- what tools and subagents leave behind ---------------------------------------------------------------------------


@frozen
class TodoUpdated(Event):
    """The to-do list as it now stands, whole. An item has `content` and `status` (`pending`, `in_progress`, `completed`)."""

    type: ClassVar[Literal["todo.updated"]] = "todo.updated"
    todos: Sequence[Mapping[str, Any]]


@frozen
class PartState(Event):
    """The state of a part of the caller's own as it now is, whole: JSON, kept by `version` of that part.

    The newest one of each part holds, also behind a compaction; a rewind to before it takes it back.
    """

    type: ClassVar[Literal["part.state"]] = "part.state"
    part: str
    version: int
    data: Any


@frozen
class CommandExpanded(Event):
    """The prompt before this event is the text of a command, which was called as `/name arguments`.

    `scope` is where the command was found (`project`, `user`); `grants` are permission rules and `model` is the model that
    it brings for the turn.
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
    """A command that stands in the text of a skill or command is about to run; on disk before it does.

    `name` and `path` say whose text it is. `command_id` is the same for every attempt; the `permission.decision` before
    this event carries it as its `tool_use_id`.
    """

    type: ClassVar[Literal["text_command.started"]] = "text_command.started"
    command_id: str
    name: str
    command: str
    input_sha256: str
    path: str | None = None


@frozen
class TextCommandFinished(Event):
    """What a command of a text wrote: `output` stands in its place, or `error_message` says why nothing does.

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
    """A skill became active. `body` is the text as it was rendered, so the file may change or go; `body_sha256` is the
    digest of that text before the outputs of its commands were put into it.

    `scope` is where the skill was found (`project`, `user`, `path`), `requested_by` `model`, `user`, `config` or
    `subagent`; `grants` are permission rules and `model` is the model that it brings for the turn. `argument_names` are
    the names by which the text asks for the words of `arguments`.
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
    """The file of an active skill is not what was activated any more; the stored text stays in force."""

    type: ClassVar[Literal["skill.drifted"]] = "skill.drifted"
    name: str
    old_sha256: str | None = None
    new_sha256: str | None = None


@frozen
class SubagentStarted(Event):
    """A subagent runs in a session of its own, `child_session_id`."""

    type: ClassVar[Literal["subagent.started"]] = "subagent.started"
    tool_use_id: str
    name: str
    child_session_id: str
    prompt: str


@frozen
class SubagentFinished(Event):
    """A subagent ended. `usage` and `cost_usd` are all it spent, its own subagents included.

    `untrusted` says what of elsewhere it had read, see `sessions.folds.features.untrusted`; None in logs that do not know.
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
    """An MCP server of this run: `state` is `started`, `restarted`, `changed` (its tools are other ones), `failed` (it
    cannot be used, or has not come yet, as `error_message` says), `lost` (it ended) or `pending` (nobody agreed to it yet).

    `transport` is `stdio`, `http`, `sse` or `tools` (of this process), `protocol_version` what both sides speak, `server`
    what the server says of itself. `tools` are those that are offered, `{"name", "tool", "sha256"}`: the name that the
    model calls, the server's own, and the digest of its definition, with `unchecked`, where the schema asks for what is not
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
    """What a file was before a call of this run changes it for the first time, so that it can be put back.

    `path` is absolute, with links followed. `sha256` is a blob beside the log, None when there was no file; `mode` its
    permission bits. `problem` says why nothing was kept.
    """

    type: ClassVar[Literal["file.kept"]] = "file.kept"
    tool_use_id: str
    path: str
    sha256: str | None = None
    mode: int | None = None
    problem: str | None = None


@frozen
class FilesRestoring(Event):
    """Files are about to be put back as they were at event `to_seq`: on disk before the first of them is touched.

    Each of `files` is `{"path", "found", "sha256", "mode", "session_id"}`: the digest of what stands there, and of what
    shall (null where there is no file), which that session keeps; so a restore that was interrupted can go on.
    """

    type: ClassVar[Literal["files.restoring"]] = "files.restoring"
    to_seq: int
    files: Sequence[Mapping[str, Any]] = field(default_factory=list)


@frozen
class FilesRestored(Event):
    """What came of it: the paths that were put back, and for each that was not, why."""

    type: ClassVar[Literal["files.restored"]] = "files.restored"
    to_seq: int
    paths: Sequence[str] = field(default_factory=list)
    failed: Mapping[str, Any] = field(default_factory=dict)


# --- the session itself ----------------------------------------------------------------------------------------------


@frozen
class SessionCompacted(Event):
    """In the model's view, everything up to `up_to_seq` is replaced by `summary`. The log keeps all of it.

    `files_read` and `files_changed` are the absolute paths that tools read and changed in the session so far.
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
    """In the model's view, the outputs of these calls are replaced by a note of where they are kept. The log keeps them.

    `results` maps each call's id to `{"sha256", "bytes"}` of the blob beside the log that holds what the model had read.
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
    """In the model's view, everything after `to_seq` is taken back. The log keeps all of it. `request_id` makes a retried
    rewind harmless.
    """

    type: ClassVar[Literal["session.rewound"]] = "session.rewound"
    to_seq: int
    request_id: str | None = None


@frozen
class SessionMeta(Event):
    """A person renamed or tagged the session; a field that is None is left as it was."""

    type: ClassVar[Literal["session.meta"]] = "session.meta"
    title: str | None = None
    tags: Sequence[str] | None = None


@frozen
class LogRecovered(Event):
    """A torn tail was found and moved aside when the log was opened: `bytes` from `offset` on stand in `moved_to`.

    Without `moved_to`, they were never put on disk: the sync failed for them, and nothing is left of them.
    """

    type: ClassVar[Literal["log.recovered"]] = "log.recovered"
    bytes: int
    offset: int
    moved_to: str | None = None


@frozen
class LogSalvaged(Event):
    """This session is what was intact of a damaged one: its first event, in front of the `events` copied ones.

    What they say of positions in the log is counted on by one. `damage` is the finding of the check, `dropped_bytes` what
    stands behind it in the old log, `kept_behind` how many of these events stand at this log's end as `log.fragment`.
    """

    type: ClassVar[Literal["log.salvaged"]] = "log.salvaged"
    source_session_id: str
    events: int
    damage: str = ""
    dropped_bytes: int = 0
    kept_behind: int = 0


@frozen
class LogFragment(Event):
    """An event that stood behind the damage of the log that this session was salvaged from: a record, and no part of the
    conversation. `is_proved` says whether the line before it vouched for it."""

    type: ClassVar[Literal["log.fragment"]] = "log.fragment"
    source_seq: int
    event: Mapping[str, Any] = field(default_factory=dict)
    is_proved: bool = True


# --- what the record is worth ----------------------------------------------------------------------------------------


@frozen
class RecordSigned(Event):
    """Somebody vouches for the events `from_seq` to `to_seq`, and through `before` for all before them, see
    `parts.record`.

    `before` and `head` are the ends of the SHA-256 chain around the range, `digests` those of its events, joined, in
    base64. Each of `signatures` is `{"by", ...}`: a key's, a person's, a witness's, over the statement that these fields
    make. `opening` holds the salts that the digests were made with; no digest covers it, and erasing takes salts out of it.
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
    """Fields are about to be erased, for an erasure that began in session `source_session_id`: on disk before the first of
    them is. Each of `fields` is `{"seq", "path"}`.
    """

    type: ClassVar[Literal["record.erasing"]] = "record.erasing"
    erasure_id: str
    source_session_id: str
    fields: Sequence[Mapping[str, Any]] = field(default_factory=list)
    reason: str = ""
    by: str = ""


@frozen
class RecordErased(Event):
    """An erasure that began in session `source_session_id` is complete here: the `record.erasing` of its id says where; a
    fork or child that had nothing to erase has only this. `blobs` counts the stored values that went with the fields.
    """

    type: ClassVar[Literal["record.erased"]] = "record.erased"
    erasure_id: str
    source_session_id: str
    blobs: int = 0
    reason: str = ""
    by: str = ""


@frozen
class RecordKept(Event):
    """Whether the session is held (`held`: it may not be deleted, purged or erased from), or until when it is to be kept
    (`until`, epoch seconds; 0 ends that). A field that is None is left as it was.
    """

    type: ClassVar[Literal["record.kept"]] = "record.kept"
    held: bool | None = None
    until: float | None = None
    reason: str = ""
    by: str = ""


@frozen
class RecordPurged(Event):
    """What is left of a session that was purged: how many events it had between which times, and the head of its chain.

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
    """An eval begins, in a session of its own that holds nothing else; see `openagentic_sdk.evals`.

    `plan` names the cases, `{"id", "mode", "session_id"?, "at_seq"?, "variants"?}`: each runs under each of `variants`, or
    under its own, `repeats` times.
    `suite_sha256` is the digest of all that the suite says, `source` is where it stands.
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
    """A case ran once under a variant, and was scored: `repeat` counts from 1.

    `session_id` is the session that was scored, `run_seq` the `system.init` of the run in it,
    `step_seq` the event behind which the model was asked for the last time, `response_id` the endpoint's name of
    that answer. `scores` are
    `{"name", "type", "passed", "value", "words", "error_type"?, "session_id"?, "cost_usd"?}`: the value is 0 to 1, the
    session a judge's. `cost_usd` is what this eval paid for the run, None when unknown; what was replayed cost nothing.
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
    """An eval stopped: `reason` is `end`, `budget` (`message` says more) or `interrupted`. `left` counts the runs that are
    still to be made."""

    type: ClassVar[Literal["eval.finished"]] = "eval.finished"
    reason: str
    passed: int
    failed: int
    left: int = 0
    cost_usd: float | None = None
    message: str = ""


class UnknownEvent(Event):
    """An event of a type that this version does not know, kept word for word. `data` is the whole JSON object."""

    type: ClassVar[Literal[""]] = ""  # each has its own: nothing but the class tells what it is
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


# Every event by its class, which is how type checkers tell from `type`, or by `match`, what fields an event has.
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

# Shown to the caller as they happen; what they add up to is stored in another event.
UNSTORED = frozenset({AssistantDelta.type, ReasoningDelta.type, ToolProgress.type})
