"""Runs in the background: submitted, inspected at any time, parked when a person must answer.

A question that cannot be answered immediately ends the run as `waiting`. Its session is then closed and unlocked, so the
process may end; the answer is an ordinary event of the log, and the run is resumed in this process or another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Container, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from contextvars import copy_context
from dataclasses import field, replace
from functools import partial
from typing import Any, Literal
from weakref import WeakKeyDictionary

from ..assemble import named_session
from ..errors import OptionsError, SessionError, SessionLockedError, SessionNotFoundError, tool_missing
from ..events import AnyEvent, Result, StopReason, UserAnswer, UserMessage, UserQuestion
from ..ground.checks import TEXT, check_settings
from ..ground.frozen import frozen
from ..ground.text import existing
from ..ground.threads import running_loop
from ..kernel.prompt import Said
from ..kernel.recorder import off_loop
from ..options import OpenAgenticOptions, require_options
from ..parts.masking import environment_redactor, mask_event
from ..parts.record.abandoned import end_session
from ..parts.record.folds.metrics import RunMetrics
from ..parts.record.lifecycle import descendants
from ..prompts import OnePrompt, Prompt, read_prompt
from ..sessions.answers import check_answer
from ..sessions.base import SessionStore, require_store
from ..sessions.core import new_session_id
from ..sessions.folds.features.all import SubagentsFold
from ..sessions.folds.view import SessionView
from ..sessions.resume import load_view
from ..sessions.seal import Seal
from .turns import Turns

BackgroundState = Literal["queued", "running", "waiting", "ended", "failed", "cancelled"]


@frozen
class BackgroundResult:
    """The outcome of a background run. `success` is true if the run ended normally and its answer was not cut off.

    `data` is the structured output if one was requested, otherwise the final text; `error` is the error message. A
    `waiting` run has its open `questions`, the first of them also as `question`. `saved` is false if events of the run could
    not be stored.
    """

    success: bool
    session_id: str
    state: BackgroundState
    stop_reason: StopReason
    data: Any = None
    error: str | None = None
    question: UserQuestion | None = None
    questions: Sequence[UserQuestion] = ()
    metrics: RunMetrics = field(default_factory=RunMetrics)
    saved: bool = True


def submit(
    prompt: Prompt,
    options: OpenAgenticOptions,
    *,
    slots: asyncio.Semaphore | None = None,
    guard: Callable[[], None] | None = None,
) -> BackgroundRun:
    """Start a run and return immediately. `slots` limits how many run at the same time; the others are `queued`.

    With `options.resume` the run continues that session; then a `prompt` of None adds no prompt, which is how a parked run
    is resumed after an answer. `guard` is called before and after each append of the run: an exception from it ends the
    run, which then starts and writes nothing more. Raises `EventLoopError` without a running asyncio loop.
    """
    running_loop("submit()")
    require_options(options)
    session_id = options.resume or named_session(options) or options.session_id or new_session_id()
    if options.resume is None and named_session(options) is None:
        options = replace(options, session_id=session_id)
    return BackgroundRun(prompt, options, session_id, slots, guard)


async def answer_question(
    store: SessionStore,
    session_id: str,
    question_id: str,
    answer: str | bool,
    *,
    answered_by: str = "user",
    key_file: str | None = None,
) -> None:
    """Store the answer to a question of a parked run or of its subagent, signed with this installation's key.

    `answered_by` is the name of the person, `key_file` is as in the options. Raises `AnswerRefusedError` for an answer that
    does not fit the question (see `sessions.answers`; nothing is stored), `OptionsError` if the question is not open or was
    asked under another key, and `SessionLockedError` while a run holds the session; of two simultaneous answers, one is
    refused.
    """
    check_settings({"question_id": question_id}, {"question_id": TEXT})
    await answer_questions(store, session_id, {question_id: answer}, answered_by=answered_by, key_file=key_file)


async def answer_questions(
    store: SessionStore,
    session_id: str,
    answers: Mapping[str, str | bool],
    *,
    answered_by: str = "user",
    key_file: str | None = None,
    approver: Mapping[str, Any] | None = None,
    request_id: str | None = None,
    tools: Container[str] | None = None,
) -> bool:
    """Store several answers as `answer_question` does; all are checked before the first is stored.

    `approver` is that of `user.answer`, for authenticated callers. `tools` are those of the process that will continue the
    run, None if they are unknown. Raises `OptionsError`, and stores nothing, if the tool of a call that one of the questions
    is about is not among them.

    Secrets in free-text answers are masked: those found in the environment, and tokens recognized by their form.
    `request_id` makes the call idempotent: answers that the same person gave under it before are not stored again. Returns
    False if all of the answers had been stored before.
    """
    require_store(store)
    template = UserAnswer("", "", answered_by, approver, request_id)
    store_answers = partial(off_loop, True, _append_answers, store, session_id)
    try:
        await store_answers(answers, template, Seal(key_file), tools)
    except (OptionsError, SessionLockedError):
        # Looked for only after a refusal: a repeated request is refused if its first attempt stored the answers and only
        # the response was lost.
        ids = set() if request_id is None else await off_loop(True, _answered_ids, store, session_id, template)
        if ids.isdisjoint(answers):
            raise
        rest = {question_id: answer for question_id, answer in answers.items() if question_id not in ids}
        if rest:
            await store_answers(rest, template, Seal(key_file), tools)
        return bool(rest)
    return True


def _answered_ids(store: SessionStore, session_id: str, like: UserAnswer) -> set[str]:
    """The ids of the questions, including those of subagents, that this person has already answered in the same request."""
    return {
        event.question_id
        for name in (session_id, *descendants(store, session_id))
        for event in store.iter_events(name)
        if isinstance(event, UserAnswer)
        and (event.request_id, event.answered_by) == (like.request_id, like.answered_by)
        and event.approver == like.approver
    }


def open_questions(
    store: SessionStore, session_id: str, seal: Seal, view: SessionView | None = None
) -> list[UserQuestion]:
    """The open questions of the session and its subagents, as complete events.

    After a crash, some may only be in the subagents' own logs. `view` is the session's state, if the caller has it with
    `SubagentsFold`.
    """
    _, own, inner = _find_questions(store, session_id, seal, view)
    return [*own.values(), *(question for name, (_, question) in inner.items() if name not in own)]


def check_tools(tools: Container[str], view: SessionView, session_id: str, questions: Iterable[UserQuestion]) -> None:
    """Raise `OptionsError` if this process, with these tools, could not run a call that one of the questions is about.

    Calls of MCP servers' tools and of subagents pass: those tools are known only once the server or subagent runs.
    """
    for question in questions:
        record = view.calls.get(question.tool_use_id or "")
        if record is None or question.kind != "permission" or "child_session_id" in question.details:
            continue
        # The model may have used another name for the tool, and a tool may ask about its action under another tool's name.
        names = (record.use.name, str(question.details.get("tool_name")))
        if not any(name in tools or name.startswith("mcp__") for name in names):
            raise OptionsError(tool_missing(session_id, names[0]))


def _find_questions(
    store: SessionStore, session_id: str, seal: Seal, view: SessionView | None = None
) -> tuple[SessionView, dict[str, UserQuestion], dict[str, tuple[str, UserQuestion]]]:
    """The session's view, its own open questions, and those in its subagents' logs with their session ids."""
    if view is None:
        view, _ = load_view(store, session_id, (SubagentsFold,), seal=seal)
    # A question without a call (None) can be answered, but not one whose call has ended, as in a fork, or was rewound.
    open_ids = {None, *(record.use.tool_use_id for record in (*view.open_calls(), *view.open_inner_calls()))}
    own = {
        question.question_id: question
        for question in view.open_questions()
        if question.tool_use_id in open_ids or "child_session_id" in question.details
    }
    inner: dict[str, tuple[str, UserQuestion]] = {}
    for child_id in [each.child_session_id for each in view.fold(SubagentsFold).open.values() if view.is_ours(each)]:
        # A subagent's log that is missing or damaged must not hide the other questions.
        with suppress(SessionError):
            inner |= {question.question_id: (child_id, question) for question in open_questions(store, child_id, seal)}
    return view, own, inner


def _append_answers(
    store: SessionStore,
    session_id: str,
    answers: Mapping[str, str | bool],
    template: UserAnswer,
    seal: Seal,
    tools: Container[str] | None = None,
) -> None:
    """Store the answers, each a copy of `template` with the question's id and the text."""
    # Under the session's lock: no run and no other answer comes between the check and the append.
    with store.open_writer(session_id) as writer:
        view, own, inner = _find_questions(store, session_id, seal)
        waiting = {**{name: question for name, (_, question) in inner.items()}, **own}
        for name in answers:
            if name not in waiting:
                ended = view.answers.get(name)
                why = "" if ended is None else f", which {ended.answered_by} has already answered"
                raise OptionsError(
                    f"session {session_id!r} is not waiting for an answer to question {name!r}{why}: "
                    + existing("open questions", waiting)
                )
            if name in own and not view.is_ours(own[name]):
                raise OptionsError(
                    f"question {name!r} of session {session_id!r} was asked under another key, so an answer from here "
                    "does not count: to answer each other's questions, processes must share $OPENAGENTIC_SDK_HOME or one "
                    "key file (key_file, $OPENAGENTIC_SDK_KEY)"
                )
        if tools is not None:
            check_tools(tools, view, session_id, [waiting[name] for name in answers if name in own])
        # All are checked before the first is stored in any log.
        texts = {name: check_answer(waiting[name], answer) for name, answer in answers.items()}
        for name, answer in texts.items():
            child_id = own[name].details.get("child_session_id") if name in own else inner[name][0]
            if isinstance(child_id, str):
                # The subagent's own log is authoritative; after a crash between the two appends it has the answer already.
                with suppress(OptionsError) if name in own else nullcontext():
                    _append_answers(store, child_id, {name: answer}, template, seal)
        assert view.authority is not None, "a view with a seal has an authority"
        own_answers = [
            replace(template, question_id=name, answer=answer) for name, answer in texts.items() if name in own
        ]
        redact = environment_redactor()
        masked = [
            each if each.answer in own[each.question_id].choices else mask_event(each, redact) for each in own_answers
        ]
        if masked:
            writer.append(view.authority.sign(masked, writer.last_seq))


async def cancel_session(
    store: SessionStore, session_id: str, *, cancelled_by: str = "user", key_file: str | None = None
) -> bool:
    """Permanently end a run that is parked or was left by a dead process; return whether there was one.

    Its open questions and calls are closed. Raises `SessionNotFoundError`, and `SessionLockedError` while a process holds
    the session.
    """
    by = f"interrupted by {cancelled_by}"
    end = partial(end_session, store, session_id, Seal(key_file), also_parked=True, answered_by=by)
    _, was_open = await off_loop(True, end)
    return bool(was_open)


class BackgroundRun:
    """A submitted run. `state` is `queued`, `running`, `waiting`, `ended`, `failed` or `cancelled`.

    `heard` contains the request ids of the prompts and messages stored so far.
    """

    def __init__(
        self,
        prompt: Prompt,
        options: OpenAgenticOptions,
        session_id: str,
        slots: asyncio.Semaphore | None = None,
        guard: Callable[[], None] | None = None,
    ) -> None:
        self.session_id = session_id
        self.state: BackgroundState = "queued"
        self._turns = Turns(options, parks=True, guard=guard)
        self._request_id = (prompt.request_id if isinstance(prompt, Said) else None) or options.request_id
        self._slots = slots
        self._stored = 0
        self._news = asyncio.Event()
        self._begun: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._prompt_stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._requested_end: Literal["cancel", "suspend"] | None = None
        self.heard: set[str] = set()
        self._context = copy_context()  # of the user who began it, even if someone else answers its question
        self._driver = asyncio.create_task(self._drive(prompt))

    async def wait(self) -> BackgroundResult:
        """Wait until the run ends or waits for an answer; return its result.

        Raises the error that prevented the run's start, and `asyncio.CancelledError` if the run was cancelled.
        """
        # Cancelling this wait must not cancel the run.
        result = await asyncio.shield(self._driver)
        assert result is not None
        return result

    @property
    def request_id(self) -> str | None:
        """The request id of the run's prompt; None if it has none."""
        return self._request_id

    @property
    def key_file(self) -> str | None:
        """The key file in the run's options."""
        return self._turns.options.key_file

    @property
    def last_seq(self) -> int:
        """The `seq` of the run's newest event in the session's own log, 0 before the first one."""
        return self._stored

    @property
    def is_over(self) -> bool:
        """Whether the run has ended or is parked, and no longer holds its session."""
        return self._driver.done()

    async def over(self) -> None:
        """Wait until `is_over`, whatever the outcome."""
        await asyncio.wait({self._driver})
        if not self._driver.cancelled():
            self._driver.exception()  # or asyncio would report it, if nobody calls `wait`

    @property
    def has_begun(self) -> bool:
        """Whether the run has stored its first event, so it holds its session or has held it."""
        return self._begun.done()

    @property
    def first_seq(self) -> int:
        """The `seq` of the run's first event, 0 until it `has_begun`."""
        return self._begun.result() if self._begun.done() else 0

    async def wait_begun(self) -> None:
        """Wait until the run has stored its first event, and so holds its session, or is over.

        Raises the error that prevented the run's start.
        """
        await self._until(self._begun)

    async def wait_stored(self) -> int:
        """Wait until the prompt is stored; return its `seq`.

        Returns 0 once the run is over without it: a hook refused the prompt, the run was cancelled, or there was none to
        store. Raises the error that prevented the run's start.
        """
        await self._until(self._prompt_stored)
        return self._prompt_stored.result() if self._prompt_stored.done() else 0

    async def _until(self, store_future: asyncio.Future[int]) -> None:
        either: set[asyncio.Future[Any]] = {store_future, self._driver}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        # A cancellation is not an error of the run: it was requested.
        if not store_future.done() and not self._driver.cancelled():
            self._driver.result()

    def send(self, prompt: OnePrompt) -> None:
        """Send a message to the run, for its next step or, if it takes no further step, as its next prompt.

        Raises `OptionsError` for parts that cannot be sent, and if the run is not in progress.
        """
        message = read_prompt(prompt)
        if self._turns.running is None:
            raise OptionsError(f"this run is {self.state}, so it accepts no messages")
        self._turns.say(message)

    async def events(self, *, after_seq: int = 0) -> AsyncGenerator[AnyEvent, None]:
        """Yield the session's stored events after `after_seq` until the run ends or waits.

        Deltas, and the events in the logs of subagents, are not among them.
        """
        while True:
            # Cleared before the state is read: an event that arrives from here on sets it again, so that none is missed.
            self._news.clear()
            finished, stored_seq = self._driver.done(), self._stored
            if stored_seq > after_seq or finished:
                batch = await off_loop(True, self._read_events, after_seq)
                for event in batch:
                    after_seq = event.seq or after_seq
                    yield event
                if finished:
                    return
            if self._stored <= after_seq and not self._driver.done():
                await self._news.wait()

    def _read_events(self, after_seq: int) -> list[AnyEvent]:
        store = self._turns.store
        exists = store is not None and store.session_exists(self.session_id)
        return store.read_events(self.session_id, after_seq=after_seq) if store is not None and exists else []

    async def answer(self, question_id: str, answer: str) -> None:
        """Answer a question of a waiting run, and resume the run.

        Raises `OptionsError` if the run is not waiting. Also raises the errors of `answer_question`.
        """
        store = self._turns.store
        if self.state != "waiting" or store is None:
            raise OptionsError(f"this run is {self.state} and is not waiting for an answer")
        await answer_question(store, self.session_id, question_id, answer, key_file=self._turns.options.key_file)
        self._requested_end = None
        self._driver = asyncio.get_running_loop().create_task(self._drive(None), context=self._context.copy())

    async def cancel(self) -> None:
        """End the run permanently, and close its open calls and questions.

        A run that `is_over` is not changed, even if it waits for an answer; `cancel_session` ends that.
        """
        if not self._driver.done():
            # `asyncio.wait`, because awaiting the task itself would raise the cancellation that is requested here.
            self._requested_end = "cancel"
            self._driver.cancel()
            await asyncio.wait({self._driver})
            self.state = "cancelled"
            if (store := self._turns.store) is not None:
                # Close what the run left open, if it parked just as it was cancelled.
                with suppress(SessionNotFoundError):
                    if (await off_loop(True, store.read_summary, self.session_id)).state == "waiting":
                        await cancel_session(store, self.session_id, key_file=self._turns.options.key_file)

    async def suspend(self, grace_s: float = 0.0) -> None:
        """End the run so that it can be resumed, here or in another process; an open question stays open, as `waiting`.

        The current step has `grace_s` seconds to finish. A run that has not started yet never starts, and is `cancelled`.
        """
        if self._driver.done():
            return
        self._requested_end = "suspend"
        if (task := self._turns.running) is None:
            self._driver.cancel()
            await asyncio.wait({self._driver})
            self.state = "cancelled"
            return
        task.suspend_soon()
        await asyncio.wait({self._driver}, timeout=grace_s)
        if not self._driver.done():
            task.suspend()
            await asyncio.wait({self._driver})

    async def _drive(self, prompt: Prompt) -> BackgroundResult:
        try:
            async with self._slots or nullcontext():
                self.state = "running"
                result = await self._run(prompt)
                while result.stop_reason not in ("interrupted", "suspended") and self._requested_end is None:
                    # Messages that arrived after the last step are the next prompt.
                    if (message := self._turns.next_prompt()) is None:
                        break
                    result = await self._run(message)
        except BaseException:  # cancellation included: the state must not stay `running`
            self.state = "failed"
            raise
        finally:
            self._news.set()
        # A run that was ended by a limit counts as ended, too: only an error is a failure of the run itself.
        ends: dict[StopReason, BackgroundState] = {"waiting": "waiting", "error": "failed"}
        self.state = ends.get(result.stop_reason, "ended")
        success = result.stop_reason == "end" and result.cut_by is None
        questions = self._turns.questions if self.state == "waiting" else ()
        return BackgroundResult(
            success,
            self.session_id,
            self.state,
            result.stop_reason,
            data=result.final_text if result.structured_output is None else result.structured_output,
            error=None if success else result.error_message or result.stop_reason,
            question=questions[0] if questions else None,
            questions=questions,
            metrics=self._turns.metrics,
            saved=result.saved,
        )

    async def _run(self, prompt: Prompt) -> Result:
        turns = self._turns
        async with _STARTING.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            task = await turns.begin(prompt)
        try:
            self.session_id = turns.session_id or self.session_id
            # Messages sent while the turn was starting would otherwise wait for the next turn.
            for message in turns.take_back():
                turns.say(message)
            while (event := await turns.next_event(task)) is not None:
                if event.seq is not None and event.parent_tool_use_id is None:
                    self._stored = event.seq
                    self._news.set()
                    if not self._begun.done():
                        self._begun.set_result(event.seq)
                    if isinstance(event, UserMessage) and event.request_id is not None:
                        self.heard.add(event.request_id)
                    if isinstance(event, UserMessage) and event.origin == "user" and not self._prompt_stored.done():
                        self._prompt_stored.set_result(event.seq)
            assert turns.result is not None, "a run ends with a result"
            return turns.result
        finally:
            await turns.end(task, interrupt=self._requested_end == "cancel")


# Runs start one at a time per event loop: submitting many together must not block everything else.
_STARTING: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
