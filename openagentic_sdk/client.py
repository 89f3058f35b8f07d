"""A conversation: many turns on one session, with a person who may interrupt and steer.

    async with AgentClient(options) as client:
        await client.send("Look at the tests.")
        async for event in client.receive():
            ...

Each turn is a run of its own on the same session, so between turns the log is closed and nothing is locked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextvars import Context, copy_context
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Literal

from .assemble import build_agent, end_conversation, run_request
from .errors import OptionsError
from .events import Event
from .kernel.prompt import OnePrompt, Said, read_prompt
from .kernel.task import RunTask
from .options import OpenAgenticOptions, check_options
from .parts.servers import ToolServers, servers_of
from .permissions.gate import PermissionGate, permission_gate
from .permissions.policy import PermissionMode
from .sessions.folds.metrics import RunMetrics

State = Literal["created", "connected", "running", "closed", "failed"]


class AgentClient:
    """One session, turn by turn. `state` is `created`, `connected`, `running`, `closed` or `failed`.

    `send` while a turn runs is delivered to it at its next step. The caller sets the pace: the run waits while it
    handles an event.
    """

    def __init__(self, options: OpenAgenticOptions) -> None:
        self.state: State = "created"
        self.session_id: str | None = None
        self._options = options
        self._prompts: deque[Said] = deque()
        self._turn: RunTask | None = None
        self._metrics = RunMetrics()
        self._turns = 0
        self._servers: ToolServers | None = None

    async def __aenter__(self) -> AgentClient:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def connect(self) -> None:
        """Check the options; raises what they raise. Nothing is stored before the first turn."""
        self._require("created")
        agent = build_agent(self._options)
        self.session_id = run_request(self._options, agent).resume
        self._servers = servers_of(agent.parts)
        if self._servers is not None:
            self._servers.hold()  # from turn to turn
        self.state = "connected"

    async def send(self, prompt: OnePrompt) -> None:
        """Say something: the next turn's prompt, or, while a turn runs, a message that it gets at its next step.

        A str, or a list of parts. Raises `OptionsError` for parts that cannot be sent.
        """
        self._require("connected", "running")
        said = read_prompt(prompt)
        if self._turn is not None:
            self._turn.run.inbox.append(said)
        else:
            self._prompts.append(said)

    def receive(self) -> AsyncGenerator[Event, None]:
        """The events of the turn that `send` asked for, its `result` last. Nothing when nothing was sent.

        Leaving the loop early ends the turn; the session can go on. The turn sees the context variables of this call.
        """
        return self._events(copy_context())

    async def _events(self, context: Context) -> AsyncGenerator[Event, None]:
        self._require("connected", "running")
        if not self._prompts and self._turn is None:
            return
        options = replace(self._options, part="next" if self._turns else "first")
        if self.session_id is not None:
            options = replace(options, resume=self.session_id, session=None, session_id=None, continue_last=False)
        if self._turns:
            options = replace(options, request_id=None)  # it names the first prompt
        agent = build_agent(options, servers=self._servers)
        try:
            start = partial(RunTask.start, agent, run_request(options, agent), self._prompts.popleft())
            turn = await RunTask.start_in(context, start)
        except BaseException:
            self.state = "failed"
            raise
        self.session_id = turn.run.session_id
        self._turns += 1
        self._turn = turn
        self.state = "running"
        try:
            while (event := await turn.next_event()) is not None:
                self._metrics = self._metrics.after(event)
                yield event
            if turn.run.recorder.hung is not None:
                raise turn.run.recorder.hung
        finally:
            await turn.close()
            self._turn = None
            self.state = "connected" if self.state == "running" else self.state
            self._prompts.extendleft(reversed(turn.run.inbox))

    async def interrupt(self) -> None:
        """End the turn that runs: its calls are cancelled, its question is closed; its last events still come."""
        if self._turn is not None:
            self._turn.interrupt()

    async def suspend(self) -> None:
        """End the turn that runs so that it can go on: an open question stays open, and the turn ends as `waiting`."""
        if self._turn is not None:
            self._turn.suspend()

    def take_back(self) -> None:
        """Forget what was said and has not been heard yet: prompts of turns to come, and messages for the next step."""
        self._prompts.clear()
        if self._turn is not None:
            self._turn.run.inbox.clear()

    def set_model(self, model: str) -> None:
        """Another model, from the next step on. Raises `OptionsError` for an invalid one, and then nothing has changed."""
        self._change(replace(self._options, model=model))

    def set_permission_mode(self, mode: PermissionMode) -> None:
        """Another permission mode, from the next call on, of subagents too. Raises `OptionsError` for an unknown mode."""
        gate = self._options.permission_gate or PermissionGate(clock=self._options.clock)
        self._change(replace(self._options, permission_gate=gate.with_mode(mode)))

    def metrics(self) -> RunMetrics:
        """What this client's turns did and cost so far."""
        return self._metrics

    async def close(self) -> None:
        """End what runs and stop. Closing twice is allowed."""
        is_last = self.state in ("connected", "running")
        if self.state != "failed":
            self.state = "closed"
        if self._turn is not None:
            await self._turn.close()
        servers, self._servers = self._servers, None
        if servers is not None:
            await servers.release()
        if is_last and self._turns and self.session_id is not None:
            await end_conversation(self._options, self.session_id)

    def _change(self, options: OpenAgenticOptions) -> None:
        check_options(options)
        if self._turn is not None:
            run, agent = self._turn.run, build_agent(options, servers=self._servers)
            # The run's own gate keeps what people allowed in this session; settings may forbid the mode that was asked for.
            run.agent = replace(run.agent, model=agent.model)
            run.change_gate(permission_gate(run.agent.gate).with_mode(agent.gate.mode))
        self._options = options

    def _require(self, *states: State) -> None:
        if self.state not in states:
            raise OptionsError(f"this client is {self.state}: {_ADVICE[self.state]}")


_ADVICE: dict[State, str] = {
    "created": "connect it first, with `async with AgentClient(options)`",
    "connected": "it is ready",
    "running": "wait until the turn has ended",
    "closed": "create another one; `resume` continues its session",
    "failed": "create another one; `resume` continues its session",
}
