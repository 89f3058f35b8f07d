"""A run as an asyncio task whose events are received one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context, copy_context
from dataclasses import replace
from typing import Any, Literal

from ..errors import QuestionOpenError
from ..events import AnyEvent, Result, UserQuestion
from ..ground.frozen import changed
from ..ground.system import require_threads
from ..ground.threads import KeptThreads, running_loop, settled, wait_until
from .agent import AgentRuntime, Run, RunRequest
from .channel import EventChannel
from .gate import Gate
from .loop import run_session
from .opening import close_run, open_run
from .prompt import Prompts, Said, prompt_sha256
from .recorder import off_loop


class RunTask:
    """A run in an asyncio task, from `start` to `close`. Whoever starts it must close it, however it ends (`async with`)."""

    def __init__(
        self, run: Run, channel: EventChannel[AnyEvent], prompt: Said | Prompts | None, threads: KeptThreads
    ) -> None:
        self.session_id = run.session_id
        self._run = run
        self._channel = channel
        # Returns the next event, or None after the last. The run waits until the next call.
        self.next_event = channel.receive
        self._task = asyncio.create_task(run_session(run, prompt))
        # Close the channel whatever ends the task, or the consumer would wait for the next event forever. In a separate
        # task, because `asyncio.run` cancels all tasks and waits for them before it closes generators: then nobody receives
        # the last events of a run whose generator is still referenced.
        self._watch = asyncio.create_task(wait_until(self._task))
        self._watch.add_done_callback(lambda _: channel.close())
        self._task.add_done_callback(lambda _: threads.close())

    @classmethod
    async def start(cls, agent: AgentRuntime, request: RunRequest, prompt: Said | Prompts | None) -> RunTask:
        """Open the session and begin the run.

        Raises `RequestConflictError` for a request id that was used for another prompt, and `QuestionOpenError` for a prompt
        that may not close the open questions. Also raises the errors of `open_run`. None of these leaves a trace in the log.
        """
        running_loop("a run")
        require_threads("a run")
        channel = EventChannel[Any]()
        if prompt is None:
            request = replace(request, request_id=None)  # without a prompt there is nothing to identify
        threads = KeptThreads()
        threads.use()
        try:
            run = await open_run(agent, request, channel)
        except BaseException:  # also on cancellation: release the threads
            threads.close()
            raise
        try:
            if isinstance(prompt, Said):
                run.request = changed(request, request_id=prompt.request_id or request.request_id)
                await _check_prompt(run, prompt, run.request.request_id)
        except BaseException:  # also on cancellation: release the session
            await close_run(run)
            threads.close()
            raise
        return cls(run, channel, prompt, threads)

    @classmethod
    async def start_in(cls, context: Context, start: Callable[[], Coroutine[Any, Any, RunTask]]) -> RunTask:
        """Run `start`, which calls `RunTask.start`, in a caller's context: the consumer of the events may have another."""
        starting = running_loop("a run").create_task(start(), context=context)
        done, cancelled = await settled(starting, starting.cancel)
        if cancelled is not None:
            if not done.cancelled() and done.exception() is None:
                await done.result().close()
            raise cancelled
        return done.result()

    async def __aenter__(self) -> RunTask:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def say(self, said: Said) -> None:
        """Add a message that the model reads before its next step."""
        self._run.inbox.append(said)

    def take_back(self) -> list[Said]:
        """Remove and return the messages that the model has not read."""
        unread = list(self._run.inbox)
        self._run.inbox.clear()
        return unread

    def open_questions(self) -> list[UserQuestion]:
        """Return the unanswered questions."""
        return self._run.view.open_questions()

    @property
    def gate(self) -> Gate:
        """The gate of the run, including approvals given in this session."""
        return self._run.agent.gate

    def change(self, model: str, gate: Gate) -> None:
        """Use another model from the next step on, and another gate from the next call on, also in subagents."""
        self._run.agent = replace(self._run.agent, model=model)
        self._run.change_gate(gate)

    def interrupt(self) -> None:
        """End the run on a person's request: an open question is closed. The run's last events still arrive."""
        self._end("interrupt")

    def suspend(self) -> None:
        """End the run so that it can be resumed: an open question stays open. The run's last events still arrive."""
        self._end("suspend")

    def _end(self, how: Literal["interrupt", "suspend", "close"]) -> None:
        stopping = self._run.lifetime.stopping
        # A person's interrupt replaces an earlier suspend, and no later request replaces it: the question is closed.
        stopping.asked = how if how == "interrupt" else stopping.asked or how
        self._task.cancel()

    def suspend_soon(self) -> None:
        """End the run before its next step, so that it can be resumed."""
        self._run.lifetime.stopping.soon = True

    async def result(self) -> Result:
        """Wait for the run's result. Raises `StorageTimeoutError`, or `ScriptMismatchError` in a test; all else is a bug."""
        return await self._task

    async def close(self, *, interrupt: bool = False) -> None:
        """Stop receiving events, end the run if it is still active, and wait until it has ended.

        An open question stays open unless `interrupt` is set.
        """
        if self._task.get_loop().is_closed():
            return  # the run can no longer end: its session is released when the run is collected or another needs it
        # First, or the run would wait for somebody to receive its last events.
        self._channel.close()
        self._end("interrupt" if interrupt else "close")
        _, cancelled = await settled(self._task)
        if not self._task.cancelled():
            self._task.exception()  # retrieve it, or asyncio would log a warning
        _, late = await settled(self._watch)
        await close_run(self._run)
        if (last := late or cancelled) is not None:
            raise last


async def _check_prompt(run: Run, prompt: Said, request_id: str | None) -> None:
    """Refuse a prompt with the request id of another prompt, and one that may not close the open questions."""
    requests = run.view.requests
    if request_id is not None:
        requests.check(request_id, prompt_sha256(prompt), run.session_id)
    if not prompt.may_answer and requests.is_due(request_id):
        open_ids = await off_loop(True, run.agent.store.open_question_ids, run.session_id)
        if open_ids:
            raise QuestionOpenError(run.session_id, open_ids)


def run_events(start: Callable[[], Coroutine[Any, Any, RunTask]]) -> AsyncGenerator[AnyEvent, None]:
    """Return an iterator over the events of the run that `start` begins; `start` runs in a copy of this call's context."""
    return _events(start, copy_context())


async def _events(
    start: Callable[[], Coroutine[Any, Any, RunTask]], context: Context
) -> AsyncGenerator[AnyEvent, None]:
    async with await RunTask.start_in(context, start) as task:
        while (event := await task.next_event()) is not None:
            yield event
        await task.result()
