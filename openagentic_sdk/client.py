"""A conversation: many turns on one session, with a person who may interrupt and steer.

    async with AgentClient(options) as client:
        await client.send("Look at the tests.")
        async for event in client.receive():
            ...

Each turn is a separate run on the same session, so between turns the log is closed and nothing is locked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextvars import Context, copy_context
from dataclasses import replace
from types import TracebackType
from typing import Literal

from .errors import OptionsError
from .events import AnyEvent
from .options import OpenAgenticOptions, require_options, with_model
from .parts.record.folds.metrics import RunMetrics
from .permissions.gate import PermissionGate
from .permissions.policy import PermissionMode
from .prompts import OnePrompt
from .runs.turns import Turns

ClientState = Literal["created", "connected", "running", "closed", "failed"]


class AgentClient:
    """A conversation on one session, turn by turn. `state` is `created`, `connected`, `running`, `closed` or `failed`.

    A message sent during a turn is delivered to it before its next step. The caller sets the pace: the run waits while the
    caller handles an event.
    """

    def __init__(self, options: OpenAgenticOptions) -> None:
        require_options(options)
        self.state: ClientState = "created"
        self._turns = Turns(replace(options, part="first"))
        # How to end the turn that is still being opened.
        self._stop: Literal["interrupt", "suspend"] | None = None

    async def __aenter__(self) -> AgentClient:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def session_id(self) -> str | None:
        """The id of the session; None before a new one has begun."""
        return self._turns.session_id

    async def connect(self) -> None:
        """Check the options, and start the tool servers in the background. Nothing is stored before the first turn.

        Raises `OptionsError`, also if the client was connected before, and `SessionNotFoundError` if `continue_last` finds
        no session.
        """
        self._require("created")
        if self._turns.options.session_store == "memory:":
            raise OptionsError(
                "session_store='memory:' is a new, empty store for each turn: create a MemorySessionStore() and pass that"
            )
        self._turns.open()
        self.state = "connected"

    async def send(self, prompt: OnePrompt) -> None:
        """Send the next turn's prompt or, during a turn, a message that is delivered before its next step.

        The prompt is a string or a list of parts. Raises `OptionsError` for invalid parts, and if the client is not
        connected.
        """
        self._require("connected", "running")
        self._turns.say(prompt)

    def receive(self) -> AsyncGenerator[AnyEvent, None]:
        """Iterate over the events of the turn that `send` requested, its `result` last; no events if nothing was sent.

        Leaving the loop early ends the turn; the session can continue. The turn sees the context variables of this call.
        """
        return self._events(copy_context())

    async def _events(self, context: Context) -> AsyncGenerator[AnyEvent, None]:
        self._require("connected")
        turns = self._turns
        if (prompt := turns.next_prompt()) is None:
            return
        self.state, self._stop = "running", None
        try:
            turn = await turns.begin(prompt, context)
        except OptionsError:  # for example, a folder that is gone: the caller can correct it
            turns.waiting.appendleft(prompt)
            self.state = "connected"
            raise
        except BaseException:  # even a cancellation: the prompt may or may not have been stored
            self.state = "failed"
            raise
        try:
            while (event := await turns.next_event(turn)) is not None:
                self._end_turn(self._stop)
                yield event
        finally:
            await turns.end(turn)
            self.state = "connected" if self.state == "running" else self.state

    async def interrupt(self) -> None:
        """Tell the running turn to end, without waiting for it: its calls are cancelled and its question is closed.

        The turn's last events still arrive.
        """
        self._end_turn("interrupt")

    async def suspend(self) -> None:
        """Tell the running turn to end so that it can be resumed, without waiting for it.

        The turn ends as `suspended`, or as `waiting` if a question is open.
        """
        self._end_turn("suspend")

    def _end_turn(self, how: Literal["interrupt", "suspend"] | None) -> None:
        turn, self._stop = self._turns.running, None
        if turn is None and self.state == "running":
            self._stop = how
        elif turn is not None and how is not None:
            turn.interrupt() if how == "interrupt" else turn.suspend()

    def take_back(self) -> None:
        """Discard undelivered messages: prompts of future turns, and messages for the next step."""
        self._turns.take_back()

    def set_model(self, model: str) -> None:
        """Use another model from the next step on, or another provider's (`openai:gpt-4o`) from the next turn on.

        Raises `OptionsError` for an invalid name, and once the client is closed or has failed; nothing has changed then.
        """
        self._require("created", "connected", "running")
        self._turns.change(with_model(self._turns.options, model))

    def set_permission_mode(self, mode: PermissionMode) -> None:
        """Change the permission mode from the next call on, in subagents too. Raises `OptionsError` for an unknown mode."""
        self._require("created", "connected", "running")
        options = self._turns.options
        gate = options.permission_gate or PermissionGate(clock=options.clock)
        self._turns.change(replace(options, permission_gate=gate.with_mode(mode)))

    def metrics(self) -> RunMetrics:
        """The accumulated metrics of this client's turns."""
        return self._turns.metrics

    async def close(self) -> None:
        """End a running turn, and then the conversation. Closing twice is allowed."""
        is_last = self.state in ("connected", "running")
        if self.state != "failed":
            self.state = "closed"
        await self._turns.close()
        if is_last:
            await self._turns.end_conversation()

    def _require(self, *states: ClientState) -> None:
        if self.state not in states:
            raise OptionsError(f"this client {_PROBLEMS[self.state]}")


_PROBLEMS: dict[ClientState, str] = {
    "created": "is not connected: connect it first, with `async with AgentClient(options)`",
    "connected": "is already connected: send it a prompt",
    "running": "is running: wait until the turn has ended",
    "closed": "is closed: create another one; `resume` continues its session",
    "failed": "has failed: create another one; `resume` continues its session",
}
