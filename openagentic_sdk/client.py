"""A conversation: many turns on one session, with a person who may interrupt and steer.

    async with AgentClient(options) as client:
        await client.send("Look at the tests.")
        async for event in client.receive():
            ...

Each turn is a run of its own on the same session, so between turns the log is closed and nothing is locked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextvars import Context, copy_context
from dataclasses import replace
from types import TracebackType
from typing import Literal

from .errors import OptionsError
from .events import AnyEvent
from .options import OpenAgenticOptions, with_model
from .parts.record.folds.metrics import RunMetrics
from .permissions.gate import PermissionGate
from .permissions.policy import PermissionMode
from .prompts import OnePrompt
from .runs.turns import Turns

State = Literal["created", "connected", "running", "closed", "failed"]


class AgentClient:
    """One session, turn by turn. `state` is `created`, `connected`, `running`, `closed` or `failed`.

    `send` while a turn runs is delivered to it at its next step. The caller sets the pace: the run waits while it
    handles an event.
    """

    def __init__(self, options: OpenAgenticOptions) -> None:
        self.state: State = "created"
        self._turns = Turns(replace(options, part="first"))

    async def __aenter__(self) -> AgentClient:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def session_id(self) -> str | None:
        """The id of the session, None until a new one has begun."""
        return self._turns.session_id

    async def connect(self) -> None:
        """Check the options; raises what they raise. Nothing is stored before the first turn."""
        self._require("created")
        self._turns.open()
        self.state = "connected"

    async def send(self, prompt: OnePrompt) -> None:
        """Say something: the next turn's prompt, or, while a turn runs, a message that it gets at its next step.

        A str, or a list of parts. Raises `OptionsError` for parts that cannot be sent.
        """
        self._require("connected", "running")
        self._turns.say(prompt)

    def receive(self) -> AsyncGenerator[AnyEvent, None]:
        """The events of the turn that `send` asked for, its `result` last. Nothing when nothing was sent.

        Leaving the loop early ends the turn; the session can go on. The turn sees the context variables of this call.
        """
        return self._events(copy_context())

    async def _events(self, context: Context) -> AsyncGenerator[AnyEvent, None]:
        self._require("connected")
        turns = self._turns
        if (prompt := turns.next_prompt()) is None:
            return
        self.state = "running"
        try:
            turn = await turns.begin(prompt, context)
        except OptionsError:  # a folder that is gone, say: it can be put right
            turns.waiting.appendleft(prompt)
            self.state = "connected"
            raise
        except BaseException:
            self.state = "failed"
            raise
        try:
            while (event := await turns.next_event(turn)) is not None:
                yield event
        finally:
            await turns.end(turn)
            self.state = "connected" if self.state == "running" else self.state

    async def interrupt(self) -> None:
        """End the turn that runs: its calls are cancelled, its question is closed; its last events still come."""
        if self._turns.running is not None:
            self._turns.running.interrupt()

    async def suspend(self) -> None:
        """End the turn that runs so that it can go on: an open question stays open, and the turn ends as `waiting`."""
        if self._turns.running is not None:
            self._turns.running.suspend()

    def take_back(self) -> None:
        """Forget what was said and has not been heard yet: prompts of turns to come, and messages for the next step."""
        self._turns.take_back()

    def set_model(self, model: str) -> None:
        """Another model, from the next step on, or one of another provider (`openai:gpt-4o`) from the next turn on.

        Raises `OptionsError` for an invalid one, and then nothing has changed.
        """
        self._turns.change(with_model(self._turns.options, model))

    def set_permission_mode(self, mode: PermissionMode) -> None:
        """Another permission mode, from the next call on, of subagents too. Raises `OptionsError` for an unknown mode."""
        options = self._turns.options
        gate = options.permission_gate or PermissionGate(clock=options.clock)
        self._turns.change(replace(options, permission_gate=gate.with_mode(mode)))

    def metrics(self) -> RunMetrics:
        """What this client's turns did and cost so far."""
        return self._turns.metrics

    async def close(self) -> None:
        """End what runs and stop. Closing twice is allowed."""
        is_last = self.state in ("connected", "running")
        if self.state != "failed":
            self.state = "closed"
        await self._turns.close()
        if is_last:
            await self._turns.end_conversation()

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
