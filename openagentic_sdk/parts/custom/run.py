"""One user-defined part in one run: its seams are called outside the loop, and its state is stored in the log."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ...errors import PartError, StorageError
from ...events import AssistantMessage, Event, ModelResponse, PartState, SystemNotice, ToolResult, UserMessage
from ...ground.checks import shown
from ...ground.threads import Guest, ask_callable, call_guest, error_words
from ...kernel.agent import Run
from ...kernel.lifetime import RunStopped
from ...kernel.model_step import Reply
from ...kernel.part import Part
from ...serialization import dumps_json, loads_json
from ...sessions.folds.features.all import PartStatesFold
from ...sessions.rebuild import standing_events
from . import (
    MAX_BLOCK_BYTES,
    MAX_STATE_BYTES,
    CustomPart,
    CustomPartOpener,
    EndRun,
    PartPlace,
    SeenAnswer,
    SeenCost,
    SeenPrompt,
    SeenResult,
)

Seen = UserMessage | ModelResponse | AssistantMessage | ToolResult


class CustomPartRun(Part):
    """One user-defined part, of class `kind`, in one run. `part` is None until `begin` creates it with `opener`."""

    def __init__(self, run: Run, kind: type[CustomPart], opener: CustomPartOpener) -> None:
        super().__init__(run)
        self.name = kind.name
        self.part: CustomPart | None = None
        self._opener = opener
        self._unseen: deque[Seen] = deque()
        self._sees_answers = kind.see_answer is not CustomPart.see_answer
        self._sees_costs = kind.see_cost is not CustomPart.see_cost
        self._is_behind = False  # whether it has seen anything since its state was stored
        self._stored_state = kind.version, dumps_json(None)
        self._timeout_s = kind.timeout_s
        self._block: Mapping[str, str] = {}
        self._has_failed = self._hangs = False

    async def begin(self) -> None:
        run, agent = self.run, self.run.agent
        part = await self._call("__init__", self._opener)
        if not isinstance(part, CustomPart):
            raise self._failure("__init__", f"it returned {shown(part)}, not a CustomPart")
        self.part = part
        seen_up_to = await self._restore()
        await self._ask("begin", PartPlace(run.session_id, agent.cwd, agent.project_dir, agent.name))
        if type(part).state is not CustomPart.state:
            standing = standing_events(run.view.events)
            self._unseen.extend(self._visible_events(event for event in standing if (event.seq or 0) > seen_up_to))
        await self._show_unseen()
        await self._take_block()
        await self._keep_state()

    def stored(self, events: Sequence[Event]) -> None:
        self._unseen.extend(self._visible_events(events))

    def facts(self) -> Mapping[str, str]:
        return self._block

    async def before_step(self) -> None:
        await self._show_unseen()
        await self._ask("before_step")
        await self._take_block()
        await self._keep_state()

    async def may_end(self, reply: Reply) -> bool:
        await self._show_unseen()
        reason = await self._ask("may_end", self.run.parts.masked(reply.text))
        if reason is not None:
            self._check_text("may_end", reason)
            self.run.view.last_text = ""  # a refused answer must not become the run's final text
            await self.run.record(UserMessage(reason, origin="part"))
        await self._keep_state()
        return reason is None

    async def end(self, ending: RunStopped) -> RunStopped:
        if self.part is None or self._hangs:
            return ending
        guest = Guest(partial(self._end, ending), f"the end of part {self.name!r}")
        await self.run.lifetime.wait_for(guest)
        if isinstance(guest.error, StorageError):
            raise guest.error
        if guest.error is not None and not guest.is_left:
            await self.run.record(SystemNotice("part.end", error_words(guest.error)[1], {"part": self.name}))
        return ending

    async def _end(self, ending: RunStopped) -> None:
        is_sound = not self._has_failed
        while is_sound and self._unseen:
            with suppress(RunStopped):  # the run is ending already
                await self._show_unseen()
        await self._ask("end", ending.reason)
        if is_sound:
            await self._keep_state(again=self._is_behind)

    async def _restore(self) -> int:
        """Pass the part its state from the log; return the `seq` up to which the part has seen the stored events, 0 without
        a state.

        A state that another installation wrote is not used.
        """
        state = self.run.view.fold(PartStatesFold).newest(self.name)
        if state is None:
            return 0
        if not self.run.view.is_ours(state):
            text = (
                f"the state of part {self.name!r} was written by another installation, so it starts empty: hosts "
                "that resume each "
            )
            await self.run.record(SystemNotice("part.state", f"{text}other's sessions must share a key_file"))
            return 0
        await self._ask("restore", loads_json(dumps_json(state.data)), state.version)
        self._stored_state = state.version, dumps_json(state.data)
        return state.seq or 0

    async def _show_unseen(self) -> None:
        """Show the part the events stored since the last call, as copies with masked text."""
        while self._unseen:
            event = self._unseen[0]
            seam, shown_event = self._shown(event)
            stopped = returned = None
            try:
                returned = await self._ask(seam, shown_event)
            except RunStopped as ended:  # the part has seen the event even so
                stopped = ended
            if returned is not None:
                text = (
                    f"it returned {shown(returned)}: a part only observes; to change results, use a post_tool_use hook"
                )
                raise self._failure(seam, text)
            self._unseen.popleft()
            self._is_behind = True
            if stopped is not None:
                raise stopped

    def _shown(self, event: Seen) -> tuple[str, SeenPrompt | SeenCost | SeenAnswer | SeenResult]:
        """The seam for an event, and its argument."""
        if isinstance(event, ToolResult):
            return "see_result", self._visible_result(event)
        if isinstance(event, ModelResponse):
            return "see_cost", SeenCost(event.model, event.usage and dict(event.usage), event.cost_usd)
        text = self.run.parts.masked(event.text)
        if isinstance(event, AssistantMessage):
            return "see_answer", SeenAnswer(text, event.incomplete)
        return "see_prompt", SeenPrompt(text, event.origin)

    def _visible_result(self, event: ToolResult) -> SeenResult:
        call = self.run.view.calls.get(event.tool_use_id)
        name, input = ("", {}) if call is None else (call.use.name, call.use.input)
        if call is not None and call.started is not None and call.started.input is not None:
            input = call.started.input
        masked = self.run.parts.masked([dict(input), event.output, event.error_message])
        input, output, message = loads_json(dumps_json(masked))
        return SeenResult(event.tool_use_id, name, input, output, event.outcome, message)

    async def _take_block(self) -> None:
        text = await self._ask("block")
        if text is not None:
            self._check_text("block", text)
        if text != next(iter(self._block.values()), None):
            self._block = {} if text is None else {f"part:{self.name}": text}

    async def _keep_state(self, *, again: bool = False) -> None:
        """Store the part's state if it has changed, or if `again`; events seen before are then not shown again."""
        if self.part is None or type(self.part).state is CustomPart.state:
            return
        text = await self._call("state", partial(_state_text, self.part))
        if len(text) > MAX_STATE_BYTES:
            problem = f"the state has {len(text)} bytes, and the limit is {MAX_STATE_BYTES}: store large data in a file"
            raise self._failure("state", problem)
        state = type(self.part).version, text
        if again or state != self._stored_state:
            await self.run.record(PartState(self.name, type(self.part).version, loads_json(text)))
            self._stored_state, self._is_behind = state, False

    def _check_text(self, seam: str, text: object) -> None:
        if not isinstance(text, str) or not text.strip() or len(text.encode("utf-8", "replace")) > MAX_BLOCK_BYTES:
            requirement = f"return a non-blank string of at most {MAX_BLOCK_BYTES} bytes, or None"
            raise self._failure(seam, f"it returned {shown(text)}: {requirement}")

    async def _ask(self, seam: str, *args: Any) -> Any:
        """Call a seam of the part and return its result; None immediately if the part does not override it."""
        part = self.part
        if part is None or getattr(type(part), seam) is getattr(CustomPart, seam):
            return None
        return await self._call(seam, partial(getattr(part, seam), *args))

    async def _call(self, seam: str, work: Callable[[], Any]) -> Any:
        """Call the part's code and return its result. Raises `RunStopped` for `EndRun`.

        Raises `PartError` if the code raises anything else or times out.
        """
        what = f"part {self.name!r}"
        try:
            async with asyncio.timeout(self._timeout_s) as timer:
                return await call_guest(partial(ask_callable, work, f"openagentic-part {self.name}"), what)
        except EndRun as ended:
            raise RunStopped(ended.stop_reason, str(ended)) from None
        except Exception as error:  # a part is the caller's code: whatever it raises becomes a `PartError`
            if timer.expired():
                self._hangs = True
                raise self._failure(seam, f"it did not return within {self._timeout_s:g} s") from None
            raise self._failure(seam, ": ".join(error_words(error))) from error

    def _visible_events(self, events: Iterable[Event]) -> Iterable[Seen]:
        """Yield the events that the part may see: people's prompts, the model's answers, their costs, and results."""
        for event in events:
            is_prompt = isinstance(event, UserMessage) and event.origin in ("user", "steering")
            is_answer = isinstance(event, AssistantMessage) and self._sees_answers
            # As in the session's own sum, an answer that broke off without a usage does not count.
            is_cost = (
                isinstance(event, ModelResponse) and self._sees_costs and (event.complete or event.usage is not None)
            )
            if isinstance(event, Seen) and (is_prompt or is_cost or is_answer or isinstance(event, ToolResult)):
                yield event

    def _failure(self, seam: str, problem: str) -> PartError:
        self._has_failed = True
        return PartError(self.name, seam, problem)


def _state_text(part: CustomPart) -> str:
    """The part's state as JSON text. Raises `InvalidEventError` if it is not JSON."""
    return dumps_json(part.state())
