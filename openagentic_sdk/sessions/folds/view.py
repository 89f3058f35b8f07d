"""What a log says so far: every fold that a run needs, kept up to date event by event."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from ...events import (
    AssistantMessage,
    CommandExpanded,
    Event,
    ModelContext,
    ModelRequest,
    ModelResponse,
    PermissionDecision,
    Result,
    SessionCompacted,
    SessionForked,
    SessionRewound,
    SkillActivated,
    SkillDeactivated,
    SkillDrifted,
    SubagentFinished,
    SubagentStarted,
    SystemInit,
    TextCommandFinished,
    TextCommandStarted,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from ...frozen import mutable
from ..rebuild import Conversation
from .usage import Usage, add_usage


@mutable
class CallRecord:
    """One tool call as far as the log knows it."""

    use: ToolUse
    decision: PermissionDecision | None = None
    started: ToolStarted | None = None
    result: ToolResult | None = None
    attempts: int = 0


class SessionView:
    """The state of a session, as a fold over its events.

    `usage` and `cost_usd` sum this session's model calls and those of its finished subagents; `cost_usd` is None as soon as
    one call had no price. `last_text` is the last answer's text of the newest run. `steps` counts model requests. `prompts`
    maps a request id to the `seq` of its prompt. `text_commands` maps the id of each command that a text ran to its end,
    None while it has none. `last_request_tokens` is what the newest request weighed, None
    when the endpoint did not say.
    """

    def __init__(self, *, provider: str | None = None) -> None:
        self.events: list[Event] = []
        self.conversation = Conversation(provider=provider)
        self.calls: dict[str, CallRecord] = {}
        self.context: ModelContext | None = None
        self.steps = 0
        self.usage: Usage | None = None
        self.cost_usd: float | None = 0.0
        self.observed_files: dict[str, str] = {}
        self.prompts: dict[str, int] = {}
        self.results: list[Result] = []
        self.last_text = ""
        self.open_subagents: dict[str, SubagentStarted] = {}
        self.last_request_tokens: int | None = None
        self.text_commands: dict[str, TextCommandFinished | None] = {}
        self.skill_events: list[Event] = []  # what decides which skills are active and what the turn grants
        self._questions: dict[str, UserQuestion] = {}
        self._answers: dict[str, str] = {}

    def apply(self, event: Event) -> None:
        """Take one more stored event into account."""
        self.events.append(event)
        self.conversation.apply(event)
        fold = _FOLDS.get(event.type)
        if fold is not None:
            fold(self, event)

    def extend(self, events: Iterable[Event]) -> SessionView:
        """Apply all of them; returns self."""
        for event in events:
            self.apply(event)
        return self

    def open_calls(self) -> list[CallRecord]:
        """The calls that the model still waits for, in the order in which it asked."""
        return [self.calls[use.tool_use_id] for use in self.conversation.open_calls()]

    def result_of(self, request_id: str) -> Result | None:
        """How the run of this prompt ended, or None while it has not."""
        prompt_seq = self.prompts[request_id]
        later = [result for result in self.results if (result.seq or 0) > prompt_seq and result.stop_reason == "end"]
        return later[0] if later else None

    def answer_to(self, question: UserQuestion, taken: Container[str] = ()) -> UserAnswer | None:
        """The first recorded answer to the same question about the very same arguments of the same call.

        Each is taken once: those in `taken` were.
        """
        if question.tool_use_id is None:
            return None
        wanted = (question.tool_use_id, question.kind, question.prompt, question.details.get("input_sha256"))
        for earlier in self._questions.values():
            key = earlier.question_id
            asked = (earlier.tool_use_id, earlier.kind, earlier.prompt, earlier.details.get("input_sha256"))
            if key in self._answers and key not in taken and asked == wanted:
                return UserAnswer(key, self._answers[key])
        return None

    def has_asked(self, tool_use_id: str) -> bool:
        """Whether this call put a question to a person."""
        return any(question.tool_use_id == tool_use_id for question in self._questions.values())

    def open_questions(self) -> list[UserQuestion]:
        """The questions without an answer, oldest first."""
        return [question for key, question in self._questions.items() if key not in self._answers]

    @property
    def tokens(self) -> int:
        """Input and output tokens spent so far."""
        return 0 if self.usage is None else self.usage["input_tokens"] + self.usage["output_tokens"]

    # --- folds -------------------------------------------------------------------------------------------------------

    def _init(self, event: SystemInit) -> None:
        self.last_text = ""

    def _forked(self, event: SessionForked) -> None:
        """What the copied events cost was paid by the session that they came from."""
        self.usage, self.cost_usd = None, 0.0

    def _prompt(self, event: UserMessage) -> None:
        self.skill_events.append(event)
        if event.request_id is not None:
            self.prompts.setdefault(event.request_id, event.seq or 0)

    def _model_context(self, event: ModelContext) -> None:
        self.context = event

    def _request(self, event: ModelRequest) -> None:
        self.steps = max(self.steps, event.step)

    def _response(self, event: ModelResponse) -> None:
        self.last_request_tokens = (event.usage or {}).get("input_tokens") or None
        if event.complete or event.usage is not None:
            self._spend(event.usage, event.cost_usd)

    def _message(self, event: AssistantMessage) -> None:
        self.last_text = event.text

    def _use(self, event: ToolUse) -> None:
        self.calls[event.tool_use_id] = CallRecord(event)

    def _decision(self, event: PermissionDecision) -> None:
        if event.tool_use_id in self.calls:
            self.calls[event.tool_use_id].decision = event

    def _started(self, event: ToolStarted) -> None:
        if event.tool_use_id in self.calls:
            self.calls[event.tool_use_id].started = event
            self.calls[event.tool_use_id].attempts = event.attempt

    def _tool_result(self, event: ToolResult) -> None:
        if event.tool_use_id in self.calls:
            self.calls[event.tool_use_id].result = event
        files = (event.meta or {}).get("files")
        if isinstance(files, Mapping):
            self.observed_files.update({str(path): str(digest) for path, digest in files.items()})

    def _text_command_started(self, event: TextCommandStarted) -> None:
        self.text_commands[event.command_id] = None

    def _text_command_finished(self, event: TextCommandFinished) -> None:
        self.text_commands[event.command_id] = event

    def _subagent_started(self, event: SubagentStarted) -> None:
        self.open_subagents[event.child_session_id] = event

    def _subagent_finished(self, event: SubagentFinished) -> None:
        self.open_subagents.pop(event.child_session_id, None)
        self._spend(event.usage, event.cost_usd)

    def _question(self, event: UserQuestion) -> None:
        self._questions[event.question_id] = event

    def _answer(self, event: UserAnswer) -> None:
        self._answers[event.question_id] = event.answer

    def _compacted(self, event: SessionCompacted) -> None:
        self.last_request_tokens = None  # it was the size of what is gone

    def _skill(self, event: Event) -> None:
        self.skill_events.append(event)

    def _result(self, event: Result) -> None:
        self.results.append(event)

    def _spend(self, usage: Mapping[str, Any] | None, cost_usd: float | None) -> None:
        self.usage = add_usage(self.usage, usage)
        self.cost_usd = None if cost_usd is None or self.cost_usd is None else self.cost_usd + cost_usd


_FOLDS: Mapping[str, Callable[[SessionView, Any], None]] = {
    SystemInit.type: SessionView._init,
    UserMessage.type: SessionView._prompt,
    ModelContext.type: SessionView._model_context,
    ModelRequest.type: SessionView._request,
    ModelResponse.type: SessionView._response,
    AssistantMessage.type: SessionView._message,
    ToolUse.type: SessionView._use,
    PermissionDecision.type: SessionView._decision,
    ToolStarted.type: SessionView._started,
    ToolResult.type: SessionView._tool_result,
    TextCommandStarted.type: SessionView._text_command_started,
    TextCommandFinished.type: SessionView._text_command_finished,
    SubagentStarted.type: SessionView._subagent_started,
    SubagentFinished.type: SessionView._subagent_finished,
    Result.type: SessionView._result,
    SessionForked.type: SessionView._forked,
    UserQuestion.type: SessionView._question,
    UserAnswer.type: SessionView._answer,
    SessionCompacted.type: SessionView._compacted,
    CommandExpanded.type: SessionView._skill,
    SkillActivated.type: SessionView._skill,
    SkillDeactivated.type: SessionView._skill,
    SkillDrifted.type: SessionView._skill,
    SessionRewound.type: SessionView._skill,
}
