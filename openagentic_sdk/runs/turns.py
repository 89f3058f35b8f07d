"""The turns of one session: the running turn, the messages waiting for the next one, and the session to continue.

A turn is one run of the session, and between turns nothing is locked. Messages that a turn did not read before its end come
first in the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from functools import partial
from typing import Any, Literal

from ..assemble import build_agent, check_session, end_conversation, open_agent, run_request, store_of
from ..events import AnyEvent, Event, Result, UserQuestion
from ..ground.frozen import changed
from ..kernel.prompt import Said
from ..kernel.task import RunTask
from ..options import OpenAgenticOptions, check_options
from ..parts.record.folds.metrics import RunMetrics
from ..parts.servers import ToolServers, servers_of
from ..permissions.gate import permission_gate
from ..prompts import OnePrompt, Prompt, read_prompt, read_prompts
from ..sessions.base import SessionStore


class Turns:
    """The turns of a session, run one at a time: `begin`, then `next_event` until None, then always `end`.

    `options` are those of the next turn; after the first turn they continue its session. `waiting` contains the prompts of
    future turns, `running` is the turn that has begun and not ended, and `store` is that of the newest turn. `result` is the
    newest turn's, None until it has one; `questions` are those that the last turn left open, and `metrics` are those of all
    turns. With `parks`, a question that nobody can answer immediately ends a turn as `waiting`; `guard` is as in
    `RunRequest`.
    """

    def __init__(
        self, options: OpenAgenticOptions, *, parks: bool = False, guard: Callable[[], None] | None = None
    ) -> None:
        self.options = options
        self.waiting: deque[Said] = deque()
        self.result: Result | None = None
        self.questions: list[UserQuestion] = []
        self.metrics = RunMetrics()
        self._parks, self._guard = parks, guard
        self.running: RunTask | None = None
        self.store: SessionStore | None = None
        self._servers: ToolServers | None = None

    @property
    def session_id(self) -> str | None:
        """The session that the next turn continues; None for a new one."""
        return self.options.resume

    def open(self) -> None:
        """Check the options, find the session to continue, and keep the tool servers running between turns.

        Raises `OptionsError`, and `SessionNotFoundError` if `continue_last` finds no session. `close` releases the servers.
        """
        agent = build_agent(self.options)
        resume = run_request(self.options, agent).resume
        if resume is not None:
            self.options = changed(self.options, resume=resume, continue_last=False)
        if self._servers is None and (servers := servers_of(agent.parts)) is not None:
            servers.hold()
            self._servers = servers

    def go_to(self, session_id: str | None, *, part: Literal["whole", "first", "next"] = "first") -> None:
        """Continue this session (None: a new one) with the next turn, which is this `part` of its conversation.

        The options' request id is dropped, because it applies to the first prompt only.
        """
        place: dict[str, Any] = {"resume": session_id, "session": None, "session_id": None, "continue_last": False}
        self.options = changed(self.options, **place, part=part, request_id=None)

    async def begin(self, prompt: Prompt, context: Context | None = None) -> RunTask:
        """Start a turn in this context, None for the current one. A prompt of None continues from the log.

        Raises the errors that `query` raises before its first event, in which case nothing has happened.
        """
        agent = await open_agent(self.options, servers=self._servers)
        self.store = store_of(agent)
        request = run_request(self.options, agent)
        if prompt is None:
            await check_session(agent, request)
        request = changed(request, parks=self._parks and not agent.gate.can_ask, guard=self._guard)
        start = partial(RunTask.start, agent, request, read_prompts(prompt))
        task = self.running = await (start() if context is None else RunTask.start_in(context, start))
        self.result = None
        self.go_to(task.session_id, part="whole" if self.options.part == "whole" else "next")
        return task

    async def next_event(self, task: RunTask) -> AnyEvent | None:
        """Wait for the next event of a turn; None after its last. Raises the errors of `RunTask.result`."""
        event = await task.next_event()
        if event is None:
            await task.result()
            return None
        self.metrics = self.metrics.after(event)
        if isinstance(event, Result) and event.parent_tool_use_id is None:
            self.result = event
        return event

    async def end(self, task: RunTask, *, interrupt: bool = False) -> None:
        """End a turn, if it is still running, as `RunTask.close` does, and keep the messages that it did not read."""
        try:
            await task.close(interrupt=interrupt)
        finally:
            if self.running is task:
                self.running = None
            self.questions = task.open_questions()
            # `extendleft` adds one by one, and so reverses the order.
            self.waiting.extendleft(reversed(task.take_back()))

    def say(self, prompt: OnePrompt) -> None:
        """Add a message to the running turn, otherwise a prompt for a future turn. Raises `OptionsError` if invalid."""
        message = read_prompt(prompt)
        if self.running is not None:
            self.running.say(message)
        else:
            self.waiting.append(message)

    def take_back(self) -> list[Said]:
        """Remove and return everything not read yet: messages to the running turn, and prompts of future turns."""
        unread = [*(self.running.take_back() if self.running is not None else ()), *self.waiting]
        self.waiting.clear()
        return unread

    def next_prompt(self) -> Said | None:
        """Remove and return the prompt of the next turn; None if no waiting one may begin it."""
        prompt = first_allowed(self.waiting, is_asking=self.result is not None and self.result.stop_reason == "waiting")
        if prompt is not None:
            self.waiting.remove(prompt)
        return prompt

    def change(self, options: OpenAgenticOptions) -> None:
        """Use other options from the next turn on, and their permission mode and model in the running turn.

        The running turn keeps its model if the provider is another one. Raises `OptionsError` for invalid options, in which
        case nothing has changed.
        """
        check_options(options)
        if self.running is not None:
            agent = build_agent(options, servers=self._servers)
            before = build_agent(self.options, servers=self._servers)
            is_there = agent.provider.name == before.provider.name  # a running turn keeps its provider to its end
            # The run's own gate has the permissions granted in this session; settings may forbid the requested mode.
            model = agent.model if is_there else before.model
            self.running.change(model, permission_gate(self.running.gate).with_mode(agent.gate.mode))
        self.options = options

    async def end_conversation(self, reason: str = "other") -> list[Event]:
        """Run the session_end hooks if a turn of this conversation has begun; return their events."""
        if self.session_id is None or self.options.part != "next":
            return []
        return await end_conversation(self.options, self.session_id, reason)

    async def close(self) -> None:
        """End the running turn and release the servers."""
        if self.running is not None:
            await self.end(self.running)
        servers, self._servers = self._servers, None
        if servers is not None:
            await servers.release()


def first_allowed(waiting: Iterable[Said], *, is_asking: bool) -> Said | None:
    """The first prompt that may begin a turn, or None.

    While a question is open, only a prompt by a sender who may answer it can begin one.
    """
    return next((prompt for prompt in waiting if prompt.may_answer or not is_asking), None)
