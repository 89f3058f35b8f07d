"""Runs whose process dies anywhere, repeated requests and other prompts, on stores that refuse."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import Any

from openagentic_sdk.api import query
from openagentic_sdk.errors import OpenAgentSdkError, RequestConflictError, StorageError
from openagentic_sdk.events import Event, Result, ToolResult, ToolStarted, ToolUse, UserMessage
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.providers.base import ModelOutput, ToolCall
from openagentic_sdk.sessions.rebuild import rebuild_messages
from openagentic_sdk.testing.clock import FakeClock
from openagentic_sdk.testing.crash import Killed, Life, Moment, World
from openagentic_sdk.testing.validity import find_fault
from openagentic_sdk.tools.function import tool

from .history import History, read_lines
from .loops import run_in_loop, without_threads

SESSION = "s"
TOOLS = ("pay", "book", "look")
EFFECTS = {"pay": "unsafe", "book": "idempotent", "look": "read"}


class Planner:
    """A model that calls the tools named in the prompt, one by one or all at once, and answers with the prompt."""

    name = "planner"

    def __init__(self, history: History) -> None:
        self.history = history
        self.asked = 0

    async def complete(
        self, *, model: str, messages: Sequence[Any], tools: Any = (), api_key: Any = None
    ) -> ModelOutput:
        self.asked += 1
        fault = find_fault(messages)
        self.history.require(fault is None, f"no provider would take these messages: {fault}")
        at = max(number for number, message in enumerate(messages) if message["role"] == "user")
        words = str(messages[at]["content"]).split()
        made = sum(len(message.get("tool_calls") or ()) for message in messages[at:])
        calls = [word for word in words if word in TOOLS]
        if made < len(calls):
            wanted = calls[made:] if "together" in words else calls[made : made + 1]
            asked = [ToolCall(f"{words[0]}-{made + n}", name, {"what": words[0]}) for n, name in enumerate(wanted)]
            return ModelOutput("", asked)
        return ModelOutput(f"done {words[0]}", [])


class RefusingLife(Life):
    """A life whose store refuses the operation with this number, or executes it and loses the response."""

    refuses_at = 0
    is_heard = True
    dies_at_effect = 0

    def do(self, what: str, work: Any) -> Any:
        if what.startswith("effect"):
            self.dies_at_effect -= 1
            if self.dies_at_effect == 0:
                self._moment = Moment(len(self.seen) + 1, self.number % 2 == 0, what)
        if (
            self.refuses_at
            and not self.refused
            and not what.startswith("effect")
            and len(self.seen) + 1 >= self.refuses_at
        ):
            self.refused = True
            if not self.is_heard:
                super().do(what, work)
            self.stored_then = self.stored()
            raise StorageError(f"simulated: no room for {what}", retryable=self.is_heard)
        return super().do(what, work)

    refused, stored_then = False, 0

    def stored(self) -> int:
        return self.store.last_seq(SESSION) if self.store.session_exists(SESSION) else 0


class Runs:
    """One schedule of lives that repeat the same requests."""

    ordinal = 0  # how many schedules of this kind came before

    def __init__(self, seed: int, place: str) -> None:
        self.rng = random.Random(seed)
        self.history, self.place = History(seed), place
        self.world = World(real=False)
        self.lives = 0
        self.life = RefusingLife(self.world)
        self.tools = [self.made(name) for name in TOOLS]
        words = [*self.rng.choices(TOOLS, (3, 1, 1), k=self.rng.choice((1, 2, 2)))]
        together = ["together"] if self.rng.random() < 0.5 else []
        self.prompts = {
            "r1": " ".join(["one", *words, *together]),
            "r2": " ".join(["two", *self.rng.choices(TOOLS, k=self.rng.choice((0, 1)))]),
        }
        self.asked, self.answered = set[str](), set[str]()
        self.unsaved = False  # a run went on although nothing was stored any more

    def run(self) -> None:
        with without_threads():
            self.run_lives()

    def run_lives(self) -> None:
        try:
            for number in range(self.rng.choice((1, 2, 2))):
                request = "r1" if number == 0 or self.rng.random() < 0.5 else "r2"
                self.live(request)
            # Each that was asked is asked until it is answered.
            asked = ("r1", "r2") if "r2" in self.asked or self.rng.random() < 0.4 else ("r1",)
            for request in self.rng.sample(asked, len(asked)):
                self.live(request, to_end=True)
        finally:
            self.world.close()

    def live(self, request: str, *, to_end: bool = False) -> None:
        self.lives += 1
        self.asked.add(request)
        moment = None
        if not to_end and self.rng.random() < 0.55:
            moment = Moment(self.rng.randrange(1, 22), self.rng.random() < 0.5, "")
        life = self.life = RefusingLife(self.world, self.lives, moment)
        if moment is not None and self.rng.random() < 0.5:
            life._moment, life.dies_at_effect = None, 1  # where most is at stake
        if not to_end and moment is None and self.rng.random() < 0.95:
            life.refuses_at, life.is_heard = self.rng.randrange(2, 14), self.rng.random() < 0.35
        goes_on = self.rng.random() < 0.5
        if self.lives == 1 and self.ordinal % 3 == 0:  # the answer is lost, and the run goes on without its store
            life._moment, life.dies_at_effect, moment = None, 0, None
            life.refuses_at, life.is_heard, goes_on = self.rng.randrange(4, 12), False, True
        stops_after = 0 if to_end or moment is not None or self.rng.random() < 0.5 else self.rng.randrange(3, 12)
        if stops_after % 2:  # whether a call is left open shows only without another failure
            life.refuses_at = 0
        prompt, known = self.prompts[request], self.stored()
        if not to_end and self.rng.random() < 0.12:
            prompt = f"other {prompt}"
        before = {event.request_id: event.text for event in known if isinstance(event, UserMessage)}
        is_other = before.get(request, prompt) != prompt
        model = Planner(self.history)
        effects = len(self.world.effects())
        came = self.history.invoke(
            f"life {self.lives}",
            f"{request} {prompt!r} killed {life._moment or life.dies_at_effect} refuses {life.refuses_at}, "
            f"heard {life.is_heard}, stops {stops_after}",
            lambda: run_in_loop(self.ask(life, model, prompt, request, goes_on, stops_after)),
            *(Killed, OpenAgentSdkError, asyncio.CancelledError),
        )
        self.unsaved = self.unsaved or (life.refused and goes_on)
        if life.refused and goes_on:
            self.history.require(life.stored() == life.stored_then, "an event is stored behind one that was refused")
        if is_other:
            allowed = RequestConflictError | Killed | StorageError
            self.history.require(isinstance(came, allowed), "another prompt passed under a request id")
            self.history.require(len(self.stored()) == len(known), "a refused prompt was stored")
            return
        is_whole = isinstance(came, Result) and not life.refused and stops_after == 0 and not life.is_dead
        if is_whole:
            self.history.require(came.stop_reason == "end", f"the run ended as {came.stop_reason}: {came}")
            self.history.require(came.final_text == f"done {prompt.split()[0]}", f"the answer is {came.final_text!r}")
            if request in self.answered:
                self.history.require(model.asked == 0, "a prompt that was answered is run again")
                self.history.require(len(self.world.effects()) == effects, "what was done is done again")
            self.answered.add(request)
        is_stopped = stops_after > 0 and not life.refused and not life.is_dead
        self.judge(is_over=(is_whole or is_stopped) and model.asked > 0)

    def stored(self) -> Sequence[Event]:
        kept = self.world._memory._sessions.get(SESSION)
        return read_lines(SESSION, kept.lines) if kept else []

    async def ask(
        self, life: RefusingLife, model: Planner, prompt: str, request: str, goes_on: bool, stops_after: int
    ) -> Result | None:
        store = life.store
        options = OpenAgenticOptions(
            provider=model,
            model="planner",
            tools=self.tools,
            permission_gate=PermissionGate(permission_mode="bypass"),
            session_store=store,
            session=SESSION,
            request_id=request,
            clock=FakeClock(1_700_000_000.0 + self.rng.choice((0, 3600, -3600, 1e9))),
            on_storage_error="continue" if goes_on else "stop",
            cwd=self.place,
            setting_sources=(),
        )
        last, seen = None, 0
        async with aclosing(query(prompt=prompt, options=options)) as events:
            async for event in events:
                seen += 1
                if (
                    isinstance(event, UserMessage | ToolUse | ToolStarted | ToolResult)
                    and not life.refused
                    and not life.is_dead
                ):
                    is_stored = event.seq is not None and store.last_seq(SESSION) >= event.seq
                    self.history.require(is_stored, f"{event.type} is shown before it is stored")
                if isinstance(event, Result):
                    last = event
                if 0 < stops_after <= seen and (stops_after % 4 == 0 or isinstance(event, ToolUse | ToolStarted)):
                    break
        return last

    def made(self, name: str) -> Any:
        async def act(what: str) -> str:  # not in a thread, whose order no seed would repeat
            life = self.life
            if not life.is_dead and not life.refused:
                started = [event for event in self.stored() if isinstance(event, ToolStarted)]
                self.history.require(
                    any(each.name == name for each in started), f"{name} runs before its start is in the log"
                )
            life.effect(f"{name} {what}")
            return f"{name} {what}"

        act.__doc__ = f"{name} something."
        return tool(name=name, effect=EFFECTS[name])(act)

    def judge(self, *, is_over: bool) -> None:
        """Check the promises that hold for every log."""
        events, require = self.stored(), self.history.require
        require([event.seq for event in events] == list(range(1, len(events) + 1)), "the numbers have a hole")
        require(find_fault(rebuild_messages(events)) is None, "the rebuilt messages are no conversation")
        uses = [event for event in events if isinstance(event, ToolUse)]
        results = Counter(event.tool_use_id for event in events if isinstance(event, ToolResult))
        starts = Counter(event.tool_use_id for event in events if isinstance(event, ToolStarted))
        unsafe = {event.tool_use_id for event in uses if EFFECTS[event.name] == "unsafe"}
        require(all(count == 1 for count in results.values()), "a call has two results")
        if is_over:
            open_ids = [event.tool_use_id for event in uses if not results[event.tool_use_id]]
            require(not open_ids, f"calls are left open: {open_ids}")
        require(all(starts[call] <= 1 for call in unsafe), "an unsafe call was started twice")
        prompts = [event.request_id for event in events if isinstance(event, UserMessage)]
        twice = [one for one, next_one in pairwise(prompts) if one == next_one]
        require(not twice, f"a prompt was stored twice: {twice}")
        paid = Counter(what for what in self.world.effects() if what.startswith("pay"))
        asked = Counter(f"pay {event.input['what']}" for event in uses if event.name == "pay")
        require(
            all(count <= asked[what] for what, count in paid.items()) or self.unsaved, f"{paid} was done for {asked}"
        )
