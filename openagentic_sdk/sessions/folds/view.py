"""What a log says so far: every fold that a run needs, kept up to date event by event.

Behind a compaction, a view can let go of what went out of the model's sight. What must stay is a value, `KeptView`: a view
that was made of it folds what comes as the view of the whole log does. The same value is what is kept beside a log, so that
a resume reads from the last compaction on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any

from ...events import (
    AssistantMessage,
    CommandExpanded,
    Event,
    FilesRestored,
    FilesRestoring,
    ModelContext,
    ModelRequest,
    ModelResponse,
    ModelRetry,
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
    SystemNotice,
    TextCommandFinished,
    TextCommandStarted,
    TodoUpdated,
    ToolResult,
    ToolsLoaded,
    ToolStarted,
    ToolUse,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from ...frozen import frozen, mutable
from ...serialization import event_from_dict, event_to_dict
from ..authority import Authority
from ..rebuild import Conversation
from .compaction import standing_events
from .untrusted import MAX_SOURCES, untrusted_command, untrusted_source
from .usage import Usage, add_usage


@mutable
class CallRecord:
    """One tool call as far as the log knows it."""

    use: ToolUse
    decision: PermissionDecision | None = None
    started: ToolStarted | None = None
    result: ToolResult | None = None
    attempts: int = 0


KEPT_VERSION = 4
_FREED_AT_ONCE = 200


@frozen
class KeptView:
    """What of a session's view must stay behind a compaction: events that are in view or in force, and sums over the rest.

    `blocks` are the messages in view, each as the `seq` of its events, `horizon` is the compaction's `seq`. `prompts`,
    `observed_files`, `place` and `untrusted` are as in `SessionView`, `authority` is what `Authority.kept` gave.
    """

    events: tuple[Event, ...]
    blocks: tuple[tuple[int, ...], ...]
    horizon: int
    steps: int
    usage: Usage | None
    cost_usd: float | None
    last_text: str
    prompts: Mapping[str, int]
    observed_files: dict[str, str]
    place: tuple[str, ...]
    untrusted: dict[str, int]
    authority: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The value as JSON."""
        return {**vars(self), "version": KEPT_VERSION, "events": [event_to_dict(event) for event in self.events]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> KeptView | None:
        """The value of what `to_dict` gave; None for that of another version. What is given is trusted to be ours."""
        if data.get("version") != KEPT_VERSION:
            return None
        known = {name: value for name, value in data.items() if name != "version"}
        known["events"] = tuple(event_from_dict(event, strict=False) for event in data["events"])
        known["blocks"] = tuple(map(tuple, data["blocks"]))
        known["place"] = tuple(data["place"])
        return cls(**known)


class SessionView:
    """The state of a session, as a fold over its events.

    `events` are those since the last compaction of which the older ones were let go, and of these what is still in force.

    `usage` and `cost_usd` sum this session's model calls and those of its finished subagents; `cost_usd` is None as soon as
    one call had no price. `last_text` is the last answer's text of the newest run. `steps` counts model requests. `prompts`
    maps a request id to the `seq` of its prompt. `text_commands` maps the id of each command that a text ran to its end,
    None while it has none, `answers` the id of each answered question to its answer. `last_request_tokens` is what the
    newest request weighed, None when the endpoint did not say. `place` is the newest run's working directory and then the
    folders that belong to the session. `untrusted` maps what of elsewhere the session has read (see `untrusted`), the first
    hundred of it, to the event that said so.
    """

    def __init__(self, *, provider: str | None = None, authority: Authority | None = None) -> None:
        self.authority = authority
        self.events: list[Event] = []
        self.conversation = Conversation(provider=provider)
        self.calls: dict[str, CallRecord] = {}
        self.context: ModelContext | None = None
        self.loaded_tools: dict[str, None] = {}  # that the model is told about since they were found, in that order
        self.controls: set[str] = set()  # how requests are written since endpoints refused some
        self.steps = 0
        self.usage: Usage | None = None
        self.cost_usd: float | None = 0.0
        self.observed_files: dict[str, str] = {}
        self.place: tuple[str, ...] = ()
        self.untrusted: dict[str, int] = {}
        self.prompts: dict[str, int] = {}
        self.results: list[Result] = []  # of the runs that came to their end
        self.last_text = ""
        self.open_subagents: dict[str, SubagentStarted] = {}
        self.last_request_tokens: int | None = None
        self.text_commands: dict[str, TextCommandFinished | None] = {}
        self.skill_events: list[Event] = []  # what decides which skills are active and what the turn grants
        self.skill_changes = 0  # rises when they change
        self._questions: dict[str, UserQuestion] = {}
        self._asked_by: dict[str, list[str]] = {}  # the questions of each call
        self.answers: dict[str, UserAnswer] = {}

    @classmethod
    def restored(
        cls, kept: KeptView, *, provider: str | None = None, authority: Authority | None = None
    ) -> SessionView:
        """The view that `kept` was taken of; `authority` knows already what `kept` says."""
        view = cls(provider=provider, authority=authority)
        view.events = list(kept.events)
        for event in kept.events:
            fold = _FOLDS.get(event.type)
            if fold is not None:
                fold(view, event)
        by_seq = {event.seq: event for event in kept.events}
        blocks = ([by_seq[seq] for seq in block] for block in kept.blocks)
        view.conversation = Conversation.restored(blocks, horizon=kept.horizon, provider=provider, context=view.context)
        view.steps, view.usage, view.cost_usd = kept.steps, kept.usage, kept.cost_usd
        view.last_text, view.observed_files = kept.last_text, kept.observed_files
        view.place, view.untrusted = kept.place, dict(kept.untrusted)
        view.prompts, view.last_request_tokens = dict(kept.prompts), None
        return view

    def kept(self) -> KeptView:
        """What of this view must stay. To be asked right behind a compaction."""
        blocks = self.conversation.blocks()
        stay = {seq for block in blocks for seq in block}
        called = {event.tool_use_id for event in self.events if isinstance(event, ToolUse) and event.seq in stay}
        for record in map(self.calls.__getitem__, called):
            parts = record.use, record.decision, record.started, record.result
            stay.update(part.seq or 0 for part in parts if part is not None)
        stay.update(self._in_force({use.tool_use_id for use in self.conversation.open_calls()}))
        return KeptView(
            events=tuple(event for event in self.events if event.seq in stay),
            blocks=tuple(map(tuple, blocks)),
            horizon=self.events[-1].seq or 0,
            steps=self.steps,
            usage=self.usage,
            cost_usd=self.cost_usd,
            last_text=self.last_text,
            prompts=self.prompts,
            observed_files=self.observed_files,
            place=self.place,
            untrusted=self.untrusted,
            authority={} if self.authority is None else self.authority.kept(stay),
        )

    def forget(self, kept: KeptView) -> None:
        """Let go of all but `kept`, which was just taken of this view. Another thread may do it while nothing is applied."""
        if self.authority is not None:
            self.authority.restore(kept.authority)
        old = dict(vars(self))
        fresh = SessionView.restored(kept, provider=self.conversation.provider, authority=self.authority)
        fresh.skill_changes = self.skill_changes + 1
        self.__dict__.update(vars(fresh))
        # In slices, since all that is freed at once holds up every thread for as long.
        old["conversation"].clear()
        while old["calls"]:
            old["calls"].popitem()
        while old["events"]:
            del old["events"][-_FREED_AT_ONCE:]

    def _in_force(self, waiting: Container[str]) -> Iterator[int]:
        """The `seq` of what counts though the model does not see it; `waiting` are the ids of open calls."""
        answers = {answer.seq for answer in map(self.result_of, self.prompts) if answer is not None}
        standing = standing_events(self.events)
        prompt = max((e.seq or 0 for e in standing if isinstance(e, UserMessage) and e.origin == "user"), default=0)
        todo = max((event.seq or 0 for event in standing if isinstance(event, TodoUpdated)), default=0)
        notices: set[tuple[str, str]] = set()
        for event in self.events:
            seq, counts = event.seq or 0, False
            match event:
                case PermissionDecision():
                    counts = bool(event.details.get("remembered"))
                case SubagentStarted():
                    counts = event.child_session_id in self.open_subagents or event.tool_use_id in waiting
                case SubagentFinished():
                    counts = event.tool_use_id in waiting
                case UserQuestion():
                    is_open = event.question_id not in self.answers or event.tool_use_id in waiting
                    counts = is_open and event is self._questions.get(event.question_id)
                case UserAnswer():
                    asked = self._questions.get(event.question_id)
                    counts = asked is not None and asked.tool_use_id in waiting
                case TextCommandStarted() | TextCommandFinished():
                    counts = seq > prompt
                case Result():
                    counts = seq in answers
                case SystemNotice():
                    counts = (event.code, event.message) not in notices
                    notices.add((event.code, event.message))
                case ModelContext():
                    counts = event is self.context
                case ModelRetry():
                    counts = event.control is not None
                case ToolsLoaded():
                    counts = True
                case UserMessage() | TodoUpdated():
                    counts = seq in (prompt, todo)
            if counts:
                yield seq
        yield from (event.seq or 0 for event in self.skill_events)

    def is_ours(self, event: Event) -> bool:
        """Whether the event may allow something: this installation wrote it. A view that only reports does not ask."""
        return self.authority is None or self.authority.is_ours(event)

    def apply(self, event: Event, *, made_here: bool = False) -> None:
        """Take one more stored event into account; `made_here` when this very run made it."""
        if self.authority is not None:
            self.authority.apply(event, made_here=made_here)
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

    def history(self) -> list[Event]:
        """The events as they count here: skills and commands that came from elsewhere are without what they would allow."""
        return [self._as_allowed(event) for event in self.events]

    def open_calls(self) -> list[CallRecord]:
        """The calls that the model still waits for, in the order in which it asked."""
        return [self.calls[use.tool_use_id] for use in self.conversation.open_calls()]

    def open_inner_calls(self) -> list[CallRecord]:
        """The calls without a result that were made inside of others, by the code that those run."""
        return [record for record in self.calls.values() if record.use.is_inside and record.result is None]

    def result_of(self, request_id: str) -> Result | None:
        """How the run of this prompt ended, or None while it has not."""
        place = bisect_right(self.results, self.prompts[request_id], key=lambda result: result.seq or 0)
        return self.results[place] if place < len(self.results) else None

    def answer_to(self, question: UserQuestion, taken: Container[str] = ()) -> UserAnswer | None:
        """The first recorded answer to the same question about the very same arguments of the same call.

        Each is taken once: those in `taken` were.
        """
        answered = (
            same.question_id for same in self._same_questions(question, taken) if same.question_id in self.answers
        )
        first = next(answered, None)
        return None if first is None else self.answers[first]

    def open_question_like(self, question: UserQuestion, taken: Container[str] = ()) -> UserQuestion | None:
        """The same question of the same call, when it was asked before and has no answer yet."""
        open_ones = (same for same in self._same_questions(question, taken) if same.question_id not in self.answers)
        return next(open_ones, None)

    def _same_questions(self, question: UserQuestion, taken: Container[str]) -> Iterator[UserQuestion]:
        """The recorded questions about the very same arguments of the same call, but for those in `taken`."""
        wanted = (question.kind, question.prompt, question.details.get("input_sha256"))
        for question_id in self._asked_by.get(question.tool_use_id or "", ()):
            earlier = self._questions[question_id]
            asked = (earlier.kind, earlier.prompt, earlier.details.get("input_sha256"))
            if asked == wanted and question_id not in taken and self.is_ours(earlier):
                yield earlier

    def has_asked(self, tool_use_id: str) -> bool:
        """Whether this call put a question to a person."""
        return tool_use_id in self._asked_by

    def open_questions(self) -> list[UserQuestion]:
        """The questions without an answer, oldest first."""
        return [question for key, question in self._questions.items() if key not in self.answers]

    @property
    def tokens(self) -> int:
        """Input and output tokens spent so far."""
        return 0 if self.usage is None else max(self.usage["input_tokens"], 0) + max(self.usage["output_tokens"], 0)

    # --- folds -------------------------------------------------------------------------------------------------------

    def _turn(self, event: Event) -> None:
        """What frames a turn, and what the model said last."""
        match event:
            case SystemInit():
                self.last_text = ""
                self.place = (event.cwd, *(event.workspace_roots or (event.cwd,)))
                self._distrust(event, *event.untrusted)
            case ModelContext():
                self.context = event
            case ModelRetry(control=str(control)):
                self.controls.add(control)
            case ToolsLoaded():
                self.loaded_tools.update(dict.fromkeys(event.names))
            case ModelRequest():
                self.steps = max(self.steps, event.step)
            case AssistantMessage():
                self.last_text = event.text
            case SessionCompacted():
                self.last_request_tokens = None  # it was the size of what is gone

    def _forked(self, event: SessionForked) -> None:
        """What the copied events cost was paid by the session that they came from; what was ours in it is ours here."""
        self.usage, self.cost_usd = None, 0.0
        stored = {earlier.seq: earlier for earlier in self.events}
        self.skill_events = [self._as_allowed(stored.get(earlier.seq, earlier)) for earlier in self.skill_events]
        self.skill_changes += 1

    def _prompt(self, event: UserMessage) -> None:
        self._skill(event)
        self._distrust(event, *event.untrusted)
        if event.request_id is not None:
            self.prompts.setdefault(event.request_id, event.seq or 0)

    def _response(self, event: ModelResponse) -> None:
        self.last_request_tokens = (event.usage or {}).get("input_tokens") or None
        if event.complete or event.usage is not None:
            self._spend(event.usage, event.cost_usd)

    def _use(self, event: ToolUse) -> None:
        # A call of an earlier time may have had the same id: what was answered then was about another call.
        for question_id in self._asked_by.pop(event.tool_use_id, ()):
            self._questions.pop(question_id, None)
        self.calls[event.tool_use_id] = CallRecord(event)

    def _progress(self, event: PermissionDecision | ToolStarted) -> None:
        record = self.calls.get(event.tool_use_id)
        if record is not None and isinstance(event, ToolStarted):
            record.started, record.attempts = event, event.attempt
        elif record is not None and isinstance(event, PermissionDecision):
            record.decision = event

    def _tool_result(self, event: ToolResult) -> None:
        record = self.calls.get(event.tool_use_id)
        if record is not None:
            record.result = event
            input = record.use.input if record.started is None or record.started.input is None else record.started.input
            cwd, *roots = self.place or ("/",)
            source = untrusted_source(record.use.name, input, event, cwd, roots)
            if source is not None:
                self._distrust(event, source)
        files = event.meta and event.meta.get("files")
        if files and isinstance(files, Mapping):
            self.observed_files.update({str(path): str(digest) for path, digest in files.items()})

    def _restored(self, event: FilesRestored) -> None:
        """A model that was taken back too may change files that are again as it saw them, without another look."""
        journal = next((e for e in reversed(self.events) if isinstance(e, FilesRestoring)), None)
        for file in journal.files if journal is not None else ():
            path, digest = str(file.get("path")), file.get("sha256")
            if path in event.paths and isinstance(digest, str):
                self.observed_files[path] = digest
            elif path in event.paths:
                self.observed_files.pop(path, None)

    def _distrust(self, event: Event, *sources: str) -> None:
        for source in sources:
            if len(self.untrusted) < MAX_SOURCES:
                self.untrusted.setdefault(source, event.seq or 0)

    def _text_command(self, event: TextCommandStarted | TextCommandFinished) -> None:
        if isinstance(event, TextCommandStarted):
            cwd, *roots = self.place or ("/",)
            source = untrusted_command(event.command, cwd, roots)
            self._distrust(event, *(() if source is None else (source,)))
        self.text_commands[event.command_id] = event if isinstance(event, TextCommandFinished) else None

    def _subagent(self, event: SubagentStarted | SubagentFinished) -> None:
        if isinstance(event, SubagentStarted):
            self.open_subagents[event.child_session_id] = event
            return
        self.open_subagents.pop(event.child_session_id, None)
        self._distrust(event, *((f"subagent {event.name}",) if event.untrusted is None else event.untrusted))
        self._spend(event.usage, event.cost_usd)

    def _question(self, event: UserQuestion) -> None:
        self._questions[event.question_id] = event
        if event.tool_use_id is not None:
            self._asked_by.setdefault(event.tool_use_id, []).append(event.question_id)

    def _answer(self, event: UserAnswer) -> None:
        if self.is_ours(event):
            self.answers[event.question_id] = event

    def _skill(self, event: Event) -> None:
        if isinstance(event, UserMessage):
            # Of prompts in a row only two count: later ones end nothing that these did not.
            before = self.skill_events[-2:]
            if event.origin != "user" or (len(before) == 2 and all(isinstance(e, UserMessage) for e in before)):
                return
        self.skill_events.append(self._as_allowed(event))
        self.skill_changes += 1

    def _as_allowed(self, event: Event) -> Event:
        """What a skill or command that was brought here from elsewhere still says: all but what it would allow."""
        if isinstance(event, SkillActivated | CommandExpanded) and not self.is_ours(event):
            return replace(event, grants=(), model=None)
        return event

    def _result(self, event: Result) -> None:
        if event.stop_reason == "end":
            self.results.append(event)

    def _spend(self, usage: Mapping[str, Any] | None, cost_usd: float | None) -> None:
        self.usage = add_usage(self.usage, usage)
        # A log from elsewhere may say anything, but not that money came back.
        self.cost_usd = None if cost_usd is None or self.cost_usd is None else self.cost_usd + max(cost_usd, 0.0)


_FOLDS: Mapping[str, Callable[[SessionView, Any], None]] = {
    SystemInit.type: SessionView._turn,
    UserMessage.type: SessionView._prompt,
    ModelContext.type: SessionView._turn,
    ModelRequest.type: SessionView._turn,
    ModelRetry.type: SessionView._turn,
    ToolsLoaded.type: SessionView._turn,
    ModelResponse.type: SessionView._response,
    AssistantMessage.type: SessionView._turn,
    ToolUse.type: SessionView._use,
    PermissionDecision.type: SessionView._progress,
    ToolStarted.type: SessionView._progress,
    ToolResult.type: SessionView._tool_result,
    TextCommandStarted.type: SessionView._text_command,
    TextCommandFinished.type: SessionView._text_command,
    FilesRestored.type: SessionView._restored,
    SubagentStarted.type: SessionView._subagent,
    SubagentFinished.type: SessionView._subagent,
    Result.type: SessionView._result,
    SessionForked.type: SessionView._forked,
    UserQuestion.type: SessionView._question,
    UserAnswer.type: SessionView._answer,
    SessionCompacted.type: SessionView._turn,
    CommandExpanded.type: SessionView._skill,
    SkillActivated.type: SessionView._skill,
    SkillDeactivated.type: SessionView._skill,
    SkillDrifted.type: SessionView._skill,
    SessionRewound.type: SessionView._skill,
}
