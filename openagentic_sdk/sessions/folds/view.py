"""The state of a session, folded from its log event by event: the kernel's state, and that of features in other folds.

The kernel's own state comprises calls, questions and answers, prompts and results, the conversation, and spending. A
feature registers a `Fold`, and the log is read once for all of them.

After a compaction, a view can release what the model no longer sees. The rest is a value, `KeptView`: a view restored from
it folds later events like the view of the whole log. The same value is stored beside a log, so that a resume reads only
from the last compaction on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

from ...errors import FoldNotFoundError, OptionsError
from ...events import (
    AssistantMessage,
    Event,
    ModelContext,
    ModelRequest,
    ModelResponse,
    ModelRetry,
    PermissionDecision,
    Result,
    SessionCompacted,
    SessionForked,
    SessionRewound,
    SubagentFinished,
    SystemInit,
    SystemNotice,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from ...ground.frozen import frozen, mutable
from ..authority import Authority
from ..rebuild import Conversation, standing_events
from .requests import Requests
from .usage import Usage, add_usage

F = TypeVar("F", bound="Fold")


@frozen
class Cut:
    """A compaction, as folds see it.

    `open_call_ids` are the calls that the model still waits for, `standing` the view's events that no rewind removed, and
    `prompt_seq` is the `seq` of a person's newest prompt among them, or 0.
    """

    open_call_ids: Container[str | None]
    standing: Sequence[Event]
    prompt_seq: int


class Fold:
    """The state that one feature folds from a log, in addition to the kernel's.

    A view creates each of its folds once, without arguments, and `view.fold(TheFold)` returns it: the same object as long
    as the view lives. `name` and `version` identify its state in a checkpoint; increase `version` with each change of what
    `kept` returns or `in_force` yields. `reads` are the types of events that `apply` receives.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    reads: ClassVar[tuple[type[Event], ...]] = ()

    def apply(self, event: Any, view: SessionView) -> None:
        """Apply one more event of the types in `reads`. The view's own state already includes it."""

    def in_force(self, view: SessionView, cut: Cut) -> Iterable[int]:
        """Return the `seq` of each event that must be kept after a compaction although the model does not see it."""
        return ()

    def kept(self) -> Mapping[str, Any]:
        """Return a copy, as JSON, of the state that cannot be folded from the kept events."""
        return {}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue from a state returned by `kept`. The kept events were applied before."""


@mutable
class CallRecord:
    """One tool call, as far as the log describes it."""

    use: ToolUse
    decision: PermissionDecision | None = None
    started: ToolStarted | None = None
    result: ToolResult | None = None
    attempts: int = 0


_FREED_AT_ONCE = 200
# The end of an id that no endpoint sends twice: `call_0a1b2c3d` has one, `call_1` and `functions.look_up:0` do not.
_RANDOM_END = r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{8,32}\Z"


@frozen
class KeptView:
    """The part of a session's view to keep after a compaction: events in view or in force, and sums over the rest.

    `blocks` are the messages in view, each as the `seq` of its events, `horizon` is the compaction's `seq`. `requests` is
    the result of `Requests.kept`, `authority` that of `Authority.kept`. `folds` maps each fold's name to its version and
    the result of its `kept`. `used_ids` are ids of calls not kept that an endpoint would send again if it counts its calls.
    """

    events: tuple[Event, ...]
    blocks: tuple[tuple[int, ...], ...]
    horizon: int
    steps: int
    usage: Usage | None
    cost_usd: float | None
    last_text: str
    requests: Mapping[str, Any]
    authority: Mapping[str, Any] = field(default_factory=dict)
    folds: Mapping[str, tuple[int, Mapping[str, Any]]] = field(default_factory=dict)
    used_ids: tuple[str, ...] = ()

    def has(self, folds: Iterable[type[Fold]]) -> bool:
        """Whether all of these folds can continue from here: each was kept, in its current version."""
        return all(fold.name in self.folds and self.folds[fold.name][0] == fold.version for fold in folds)


# For one type of event: the kernel's function, None if it does not read the type, and `apply` of the folds that do.
_FoldCalls = tuple["Callable[[SessionView, Any], None] | None", "tuple[Callable[[Any, SessionView], None], ...]"]


class SessionView:
    """The state of a session, as a fold over its events.

    `events` are those since the last compaction at which older ones were released, and the older ones that are still in
    force.

    `usage` and `cost_usd` sum this session's model calls and those of its finished subagents; `cost_usd` is `None` as soon
    as one call had no price. `last_text` is the text of the newest run's last answer. `steps` counts model requests.
    `requests` are the prompts with a request id, `answers` maps the id of each answered question to its answer.
    `last_request_tokens` is the size of the newest request, None if the endpoint reported none. `controls` are the
    adaptations made because endpoints rejected requests. The state of features is in their folds: `fold`.
    """

    def __init__(
        self, folds: Sequence[type[Fold]] = (), *, provider: str | None = None, authority: Authority | None = None
    ) -> None:
        self.authority = authority
        self.events: list[Event] = []
        self.conversation = Conversation(provider=provider)
        self.calls: dict[str, CallRecord] = {}
        self.used_ids: frozenset[str] = frozenset()
        self.context: ModelContext | None = None
        self.controls: set[str] = set()
        self.steps = 0
        self.usage: Usage | None = None
        self.cost_usd: float | None = 0.0
        self.requests = Requests()
        self.last_text = ""
        self.last_request_tokens: int | None = None
        self._questions: dict[str, UserQuestion] = {}
        self._asked_by: dict[str, list[str]] = {}  # the questions of each call
        self.answers: dict[str, UserAnswer] = {}
        self._folds: dict[type[Fold], Fold] = {fold: fold() for fold in folds}
        self._dispatch: dict[str, _FoldCalls] = {}
        self._readers = _readers(tuple(folds))

    @classmethod
    def restored(
        cls,
        kept: KeptView,
        folds: Sequence[type[Fold]] = (),
        *,
        provider: str | None = None,
        authority: Authority | None = None,
    ) -> SessionView:
        """Rebuild the view from `kept` with these folds; `authority` already includes what `kept` holds."""
        view = cls(folds, provider=provider, authority=authority)
        view.events = list(kept.events)
        for event in kept.events:
            view._fold(event)
        by_seq = {event.seq: event for event in kept.events}
        blocks = ([by_seq[seq] for seq in block] for block in kept.blocks)
        view.conversation = Conversation.restored(blocks, horizon=kept.horizon, provider=provider, context=view.context)
        view.steps, view.usage, view.cost_usd = kept.steps, kept.usage, kept.cost_usd
        view.last_text, view.requests = kept.last_text, Requests.restored(kept.requests)
        view.last_request_tokens, view.used_ids = None, frozenset(kept.used_ids)
        for fold in view._folds.values():
            fold.restore(kept.folds[fold.name][1])
        return view

    def fold(self, kind: type[F]) -> F:
        """Return the fold of this type. Raises `FoldNotFoundError` if the view was created without it."""
        fold = self._folds.get(kind)
        if not isinstance(fold, kind):
            raise FoldNotFoundError(kind.name, [fold.name for fold in self._folds])
        return fold

    def kept(self) -> KeptView:
        """Return the part of this view to keep. Call this right after a compaction."""
        blocks = self.conversation.blocks()
        stay = {seq for block in blocks for seq in block}
        called = {event.tool_use_id for event in self.events if isinstance(event, ToolUse) and event.seq in stay}
        for record in map(self.calls.__getitem__, called):
            parts = record.use, record.decision, record.started, record.result
            stay.update(part.seq or 0 for part in parts if part is not None)
        standing = standing_events(self.events)
        prompt = max((e.seq or 0 for e in standing if isinstance(e, UserMessage) and e.origin == "user"), default=0)
        cut = Cut({use.tool_use_id for use in self.conversation.open_calls()}, standing, prompt)
        stay.update(self._in_force(cut))
        for fold in self._folds.values():
            stay.update(fold.in_force(self, cut))
        # Endpoints that count their calls (`call_1`) repeat these ids; random ones never come again and need not be
        # kept.
        counted = (name for name in self.calls.keys() - called if not re.search(_RANDOM_END, name))
        return KeptView(
            events=tuple(event for event in self.events if event.seq in stay),
            blocks=tuple(map(tuple, blocks)),
            horizon=self.events[-1].seq or 0,
            steps=self.steps,
            usage=self.usage,
            cost_usd=self.cost_usd,
            last_text=self.last_text,
            requests=self.requests.kept(),
            authority={} if self.authority is None else self.authority.kept(stay),
            folds={fold.name: (fold.version, fold.kept()) for fold in self._folds.values()},
            used_ids=(*self.used_ids, *counted),
        )

    def forget(self, kept: KeptView) -> None:
        """Release everything except `kept`, which was just taken from this view. Thread-safe while nothing is applied."""
        if self.authority is not None:
            self.authority.restore(kept.authority)
        old = dict(vars(self))
        provider, folds = self.conversation.provider, self._folds
        fresh = SessionView.restored(kept, tuple(folds), provider=provider, authority=self.authority)
        for kind, fold in folds.items():
            vars(fold).update(vars(fresh._folds[kind]))
        # In place, because the recorder, the parts and the tools of the run hold this view and these folds.
        self.__dict__.update(vars(fresh), _folds=folds, _dispatch={})
        # In slices, because freeing everything at once would block all threads.
        old["conversation"].clear()
        while old["calls"]:
            old["calls"].popitem()
        while old["events"]:
            del old["events"][-_FREED_AT_ONCE:]

    def _in_force(self, cut: Cut) -> Iterator[int]:
        """Yield the `seq` of each event that matters to the kernel although the model does not see it."""
        notices: set[tuple[str, str]] = set()
        for event in self.events:
            seq, counts = event.seq or 0, False
            match event:
                case PermissionDecision():
                    counts = bool(event.details.get("remembered"))
                case UserQuestion():
                    is_open = event.question_id not in self.answers or event.tool_use_id in cut.open_call_ids
                    counts = is_open and event is self._questions.get(event.question_id)
                case UserAnswer():
                    question = self._questions.get(event.question_id)
                    counts = question is not None and question.tool_use_id in cut.open_call_ids
                case SystemNotice():
                    counts = (event.code, event.message) not in notices
                    notices.add((event.code, event.message))
                case ModelContext():
                    counts = event is self.context
                case ModelRetry():
                    counts = event.control is not None
                case UserMessage():
                    counts = seq == cut.prompt_seq
            if counts:
                yield seq

    def is_ours(self, event: Event) -> bool:
        """Whether the event may authorize something: this installation wrote it. Always true in a view without authority."""
        return self.authority is None or self.authority.is_ours(event)

    def apply(self, event: Event, *, made_here: bool = False) -> None:
        """Apply one more stored event; `made_here` is true if this very run created it."""
        if self.authority is not None:
            self.authority.apply(event, made_here=made_here)
        self.events.append(event)
        self.conversation.apply(event)
        # `_fold`, inlined, because this is called for every event.
        fold, reads = self._dispatch.get(event.type) or self._bind(event.type)
        if fold is not None:
            fold(self, event)
        for reader in reads:
            reader(event, self)

    def _fold(self, event: Event) -> None:
        fold, reads = self._dispatch.get(event.type) or self._bind(event.type)
        if fold is not None:
            fold(self, event)
        for reader in reads:
            reader(event, self)

    def _bind(self, kind: str) -> _FoldCalls:
        """Return the functions to call for events of this type: the kernel's, and `apply` of each fold that reads them."""
        reads = tuple(map(attrgetter("apply"), map(self._folds.__getitem__, self._readers.get(kind, ()))))
        self._dispatch[kind] = calls = _FOLDS.get(kind), reads
        return calls

    def extend(self, events: Iterable[Event]) -> SessionView:
        """Apply all events; return self."""
        for event in events:
            self.apply(event)
        return self

    def open_calls(self) -> list[CallRecord]:
        """The calls that the model still waits for, in the order of its requests."""
        return [*map(self.calls.__getitem__, map(attrgetter("tool_use_id"), self.conversation.open_calls()))]

    def open_inner_calls(self) -> list[CallRecord]:
        """The calls without a result that code made inside other calls."""
        return [record for record in self.calls.values() if record.use.is_inside and record.result is None]

    def answer_to(self, question: UserQuestion, taken: Container[str] = ()) -> UserAnswer | None:
        """Return the first recorded answer to the same question about the same call and arguments; None without one.

        Each answer is used once: `taken` holds the ids of questions whose answers were used.
        """
        answered_ids = (
            same.question_id for same in self._same_questions(question, taken) if same.question_id in self.answers
        )
        first = next(answered_ids, None)
        return None if first is None else self.answers[first]

    def open_question_like(self, question: UserQuestion, taken: Container[str] = ()) -> UserQuestion | None:
        """Return the equal, unanswered question about the same call whose id is not in `taken`, or None."""
        open_ones = (same for same in self._same_questions(question, taken) if same.question_id not in self.answers)
        return next(open_ones, None)

    def _same_questions(self, question: UserQuestion, taken_ids: Container[str]) -> Iterator[UserQuestion]:
        """Yield the same question each time it was recorded for this call and its arguments, except those in `taken_ids`."""
        key = (question.kind, question.prompt, question.details.get("input_sha256"))
        for question_id in self._asked_by.get(question.tool_use_id or "", ()):
            earlier = self._questions[question_id]
            earlier_key = (earlier.kind, earlier.prompt, earlier.details.get("input_sha256"))
            # A question that came with a foreign log proves nothing, so its answer must not permit the call.
            if earlier_key == key and question_id not in taken_ids and self.is_ours(earlier):
                yield earlier

    def has_asked(self, tool_use_id: str) -> bool:
        """Whether this call put a question to a person."""
        return tool_use_id in self._asked_by

    def has_answer(self, tool_use_id: str) -> bool:
        """Whether the answer to a question of this call is stored."""
        return any(question_id in self.answers for question_id in self._asked_by.get(tool_use_id, ()))

    def open_questions(self) -> list[UserQuestion]:
        """The unanswered questions, oldest first."""
        return [question for key, question in self._questions.items() if key not in self.answers]

    @property
    def tokens(self) -> int:
        """Input and output tokens spent so far."""
        return 0 if self.usage is None else max(self.usage["input_tokens"], 0) + max(self.usage["output_tokens"], 0)

    # --- folds -------------------------------------------------------------------------------------------------------

    def _context(self, event: ModelContext) -> None:
        self.context = event

    def _retry(self, event: ModelRetry) -> None:
        if event.control is not None:
            self.controls.add(event.control)

    def _request(self, event: ModelRequest) -> None:
        if event.step > self.steps:
            self.steps = event.step

    def _text(self, event: AssistantMessage | SystemInit) -> None:
        self.last_text = event.text if isinstance(event, AssistantMessage) else ""
        self.requests.apply(event, self.last_text)

    def _compacted(self, event: SessionCompacted) -> None:
        self.last_request_tokens = None  # it was the size of the previous conversation

    def _forked(self, event: SessionForked) -> None:
        """Reset the costs: the session that the events were copied from paid for them."""
        self.usage, self.cost_usd = None, 0.0

    def _apply_request(self, event: UserMessage | SessionRewound | Result) -> None:
        self.requests.apply(event, self.last_text)

    def _spent(self, event: ModelResponse | SubagentFinished) -> None:
        if isinstance(event, ModelResponse):
            self.last_request_tokens = (event.usage or {}).get("input_tokens") or None
            # Nothing was reported for an answer that was cut off; its unknown cost must not make the sum unknown.
            if not event.complete and event.usage is None:
                return
        self.usage = add_usage(self.usage, event.usage)
        # A log from elsewhere may contain any cost, but must not lower the sum, nor make it infinite.
        cost_usd = event.cost_usd
        self.cost_usd = (
            None if cost_usd is None or self.cost_usd is None else self.cost_usd + min(max(cost_usd, 0.0), 1e18)
        )

    def _use(self, event: ToolUse) -> None:
        # An earlier call may have had the same id: its answers were about another call.
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

    def _question(self, event: UserQuestion) -> None:
        self._questions[event.question_id] = event
        if event.tool_use_id is not None:
            self._asked_by.setdefault(event.tool_use_id, []).append(event.question_id)

    def _answer(self, event: UserAnswer) -> None:
        # An answer in an edited or foreign log must not count as a person's.
        if self.is_ours(event):
            self.answers[event.question_id] = event


_FOLDS: Mapping[str, Callable[[SessionView, Any], None]] = {
    SystemInit.type: SessionView._text,
    UserMessage.type: SessionView._apply_request,
    ModelContext.type: SessionView._context,
    ModelRequest.type: SessionView._request,
    ModelRetry.type: SessionView._retry,
    ModelResponse.type: SessionView._spent,
    AssistantMessage.type: SessionView._text,
    ToolUse.type: SessionView._use,
    PermissionDecision.type: SessionView._progress,
    ToolStarted.type: SessionView._progress,
    ToolResult.type: SessionView._tool_result,
    SubagentFinished.type: SessionView._spent,
    Result.type: SessionView._apply_request,
    SessionRewound.type: SessionView._apply_request,
    SessionForked.type: SessionView._forked,
    UserQuestion.type: SessionView._question,
    UserAnswer.type: SessionView._answer,
    SessionCompacted.type: SessionView._compacted,
}


@cache
def _readers(folds: tuple[type[Fold], ...]) -> Mapping[str, Sequence[type[Fold]]]:
    """The folds that read each type of event, in order; computed once per set of folds.

    Raises `OptionsError` if two of them have the same name.
    """
    readers: dict[str, list[type[Fold]]] = {}
    names = [fold.name for fold in folds]
    if len({*names}) < len(names):
        raise OptionsError(f"several folds of a view have the same name; the names are {', '.join(sorted(names))}")
    for fold in folds:
        for event in fold.reads:
            readers.setdefault(event.type, []).append(fold)
    return readers
