"""Workflows whose process may die anywhere, on a store that refuses or loses responses, with events, answers and pauses."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

from openagentic_sdk.errors import (
    OpenAgentSdkError,
    RunFailedError,
    StepFailedError,
    StepUnknownError,
    StorageError,
    WorkflowError,
)
from openagentic_sdk.events import Event, Result, ToolResult, ToolStarted, UserAnswer, UserMessage
from openagentic_sdk.flows import Flow, Retries, Workflow, WorkflowResult, workflow
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.parts.workflows.inbox import CANCEL, deliver, inbox_of
from openagentic_sdk.parts.workflows.work import LOOK_AGAIN_S
from openagentic_sdk.runs.background import answer_questions
from openagentic_sdk.serialization import loads_json
from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.testing.clock import FakeClock
from openagentic_sdk.testing.crash import Killed, Life, Moment, World
from openagentic_sdk.tools.base import ToolContext

from .history import History, read_lines
from .loops import SlowLoop, run_in_loop, without_threads

SESSION = "s"
KINDS = ("pay", "pay", "note", "note", "look", "wait", "waits", "sleep", "ask", "flaky", "both", "random", "child")
# The longest way to the end: each step that waits costs a run.
MOST_RUNS = 12


class UnreliableLife(Life):
    """A life whose store refuses the operation with this number, or executes it and loses the response."""

    fails_at, is_heard, has_failed = 0, True, False
    # Whether each thing takes longer than a workflow waits before it looks for events again, by the clock of the loop.
    is_slow = False
    loop: SlowLoop | None = None

    def do(self, what: str, work: Any) -> Any:
        if self.loop is not None and self.is_slow:
            self.loop.late_s += 1.1 * LOOK_AGAIN_S
        is_here = len(self.seen) + 1 == self.fails_at and not what.startswith(("effect", "note"))
        if is_here and not self.has_failed:
            self.has_failed = True
            if not self.is_heard:
                super().do(what, work)
            raise StorageError(f"simulated: no answer to {what}", retryable=self.is_heard)
        return super().do(what, work)


class Flows:
    """One workflow of random steps. The model is the value of each step, and how often it may take effect."""

    ordinal = 0  # how many schedules of this kind came before

    def __init__(self, seed: int, place: str) -> None:
        self.rng = random.Random(seed)
        self.history = History(seed)
        self.world = World(real=False)
        self.kinds = self.rng.choices(KINDS, k=self.rng.choice((1, 1, 2)))
        if self.rng.random() < 0.4:
            self.kinds = self.rng.choice((["wait", "wait"], ["waits"], ["waits"]))
        self.awaited = sum({"wait": 1, "waits": 2}.get(kind, 0) for kind in self.kinds)
        self.workflow = self.made()
        self.life = Life(self.world)
        self.lives = 0
        self.now_s = 1_700_000_000.0
        self.drawn: dict[int, set[int]] = {}
        self.sent = 0
        self.known: dict[str, list[str]] = {}
        self.is_cancelled = self.has_failed = False

    def made(self) -> Workflow[[], list[Any]]:
        """The workflow; its steps act in the life that runs it."""

        async def pay(number: int) -> int:
            self.require_started("pay")
            self.life.effect(f"pay {number}")
            return number

        async def note(number: int, ctx: ToolContext) -> int:
            self.life.do(f"note {number}", lambda: self.life.things.setdefault(ctx.idempotency_key, number))
            return number

        async def look(number: int) -> int:
            return number

        async def flaky(number: int) -> int:
            raise ConnectionError(f"down {number}")

        @workflow
        async def inner(flow: Flow, number: int) -> int:
            return await flow.step(note, number)

        async def do(flow: Flow, number: int, kind: str) -> Any:
            match kind:
                case "pay":
                    try:
                        return await flow.step(pay, number, effect="unsafe")
                    except StepUnknownError:
                        return "unknown"
                case "note" | "look":
                    return await flow.step(note if kind == "note" else look, number, effect="idempotent")
                case "wait":
                    return await flow.wait_for("paid")
                case "waits":
                    return await flow.gather([flow.wait_for("paid"), flow.wait_for("paid")])
                case "sleep":
                    return await flow.sleep(60)
                case "ask":
                    return await flow.ask(f"Go {number}?", ("yes", "no"))
                case "flaky":
                    try:
                        return await flow.step(flaky, number, retry=Retries(attempts=2, delay_s=30))
                    except StepFailedError:
                        return "failed"
                case "both":
                    return await flow.gather([flow.step(note, number + 100), flow.step(look, number)])
                case "random":
                    drawn = flow.random()
                    self.drawn.setdefault(number, set()).add(int(drawn * 1000))
                    return await flow.step(look, int(drawn * 1000))
            try:
                return await flow.child(inner, number)
            except StepFailedError:  # the store failed the child alone
                return "failed"

        @workflow
        async def drawn(flow: Flow) -> list[Any]:
            return [await do(flow, number, kind) for number, kind in enumerate(self.kinds)]

        return drawn

    def require_started(self, name: str) -> None:
        if not self.life.is_dead:
            started = [e for e in self.events() if isinstance(e, ToolStarted)]
            self.history.require(
                any(each.name == name for each in started), f"{name} runs before its start is in the log"
            )

    # --- lives -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        with without_threads():
            self.run_lives()

    def run_lives(self) -> None:
        try:
            for _ in range(self.rng.choice((1, 2, 3))):
                self.rng.choices((self.live, self.send, self.answer, self.pass_time, self.cancel), (6, 2, 2, 2, 0.3))[
                    0
                ]()
            self.finish()
        finally:
            self.world.close()

    def begin(self, *, faults: bool) -> UnreliableLife:
        self.lives += 1
        moment = None
        if faults and self.rng.random() < 0.45:
            moment = Moment(self.rng.randrange(1, 18), self.rng.random() < 0.5, "")
        life = UnreliableLife(self.world, self.lives, moment)
        if faults and moment is None and self.rng.random() < 0.8:
            life.fails_at, life.is_heard = self.rng.randrange(2, 14), self.rng.random() < 0.3
        if faults and self.lives == 1 and self.ordinal % 2 == 0:  # every second schedule begins with a lost answer
            life._moment, life.fails_at, life.is_heard = None, self.rng.randrange(2, 10), False
        life.is_slow = self.rng.random() < 0.75
        self.life = life
        return life

    def do(self, what: str, work: Any, life: UnreliableLife) -> Any:
        told = f"dies {life._moment}" if life._moment else f"fails at {life.fails_at}, heard {life.is_heard}"
        came = self.history.invoke(
            f"life {self.lives}", f"{what}, {told}", work, Killed, OpenAgentSdkError, asyncio.CancelledError
        )
        self.has_failed = self.has_failed or life.has_failed
        is_allowed = not isinstance(came, BaseException) or life.is_dead or life.has_failed
        self.history.require(is_allowed or self.is_cancelled, lambda: f"{what} failed without a cause: {came!r}")
        self.judge()
        return came

    def live(self, *, faults: bool = True) -> Any:
        life = self.begin(faults=faults)
        options = OpenAgenticOptions(session_store=life.store, clock=FakeClock(self.now_s))
        return self.do("run", lambda: run_in_loop(self.go(options)), life)

    async def go(self, options: OpenAgenticOptions) -> WorkflowResult[list[Any]]:
        self.life.loop = cast(SlowLoop, asyncio.get_running_loop())
        return await self.workflow.run(options=options, session=SESSION)

    def send(self, *, faults: bool = True) -> None:
        """Send an event, and often repeat it: the sender does not know whether it arrived."""
        number = self.sent if self.sent and self.rng.random() < 0.4 else self.sent + 1
        self.sent = max(self.sent, number)
        life = self.begin(faults=faults)
        self.do(f"send {number}", lambda: self.delivered(life, number), life)

    def delivered(self, life: UnreliableLife, number: int) -> bool:
        """Deliver an event, which only a finished workflow may refuse."""
        try:
            return deliver(life.store, SESSION, "paid", number, event_id=f"e{number}")
        except WorkflowError:
            newest = [event for event in self.truth().read_events(SESSION) if isinstance(event, Result)][-1:]
            if [event.stop_reason for event in newest] != ["end"]:
                raise
            return False

    def cancel(self) -> None:
        if self.truth().session_exists(SESSION) and self.rng.random() < 0.5:
            life = self.begin(faults=False)
            self.is_cancelled = True
            self.do("cancel", lambda: deliver(life.store, SESSION, CANCEL, "enough", event_id=CANCEL), life)

    def answer(self, *, faults: bool = True) -> None:
        if self.truth().session_exists(SESSION) and (ids := self.truth().open_question_ids(SESSION)):
            life = self.begin(faults=faults)
            self.do("answer", lambda: run_in_loop(answer_questions(life.store, SESSION, {ids[0]: "yes"})), life)

    def pass_time(self) -> None:
        self.now_s += self.rng.choice((20.0, 70.0))
        self.history.lines.append(f"it is {self.now_s:g}")

    def finish(self) -> None:
        """Check that the workflow ends with the value of the model, whatever happened, and stays ended."""
        for run in range(MOST_RUNS):
            while len(self.inbox()) < self.awaited and (run > MOST_RUNS / 2 or self.rng.random() < 0.6):
                self.send(faults=False)
            self.now_s += 70
            came = self.live(faults=False)
            if isinstance(came, RunFailedError) and self.is_cancelled:
                self.history.require(
                    came.result.stop_reason == "interrupted", f"cancelled, it ends as {came.result.stop_reason}"
                )
                return
            if isinstance(came, WorkflowResult) and came.stop_reason == "end":
                break
            self.answer(faults=False)
        else:
            raise self.history.broken("the workflow never ends")
        if not self.is_cancelled:
            self.compare(came.output)
        if self.rng.random() < 0.8:
            return
        before = self.world.effects(), len(self.events())
        again = self.live(faults=False)
        self.history.require(again.output == came.output, f"the end was {came.output} and is {again.output}")
        self.history.require(before == (self.world.effects(), len(self.events())), "what had ended did something")
        if self.rng.random() < 0.5:
            options = OpenAgenticOptions(session_store=self.life.store)
            played = run_in_loop(self.workflow.replay(SESSION, options=options))
            self.history.require(played.ok, f"its own log does not fit: {played.difference}")

    # --- what the model says -------------------------------------------------------------------------------------------

    def compare(self, output: list[Any]) -> None:
        payloads = iter([loads_json(event.text)["payload"] for event in self.inbox()])
        fixed = {"sleep": None, "ask": "yes", "flaky": "failed"}
        for number, (kind, value) in enumerate(zip(self.kinds, output, strict=True)):
            expected: Any = fixed.get(kind, number)
            if kind == "wait":
                expected = next(payloads, None)
            elif kind == "waits":
                expected = [next(payloads, None), next(payloads, None)]
            elif kind == "both":
                expected = [number + 100, number]
            elif kind == "random":
                expected = value if value in self.drawn[number] else self.drawn[number]
            is_unknown = (
                value == "unknown" if kind == "pay" else kind == "child" and self.has_failed and value == "failed"
            )
            self.history.require(
                value == expected or is_unknown, f"step {number}, {kind}, gave {value!r}, not {expected!r}"
            )
            if kind == "pay":
                paid = self.world.effects().count(f"pay {number}")
                self.history.require(paid == 1 or is_unknown, f"step {number} was paid {paid} times")

    def truth(self) -> SessionStore:
        return self.world._memory

    def events(self, session: str = SESSION) -> Sequence[Event]:
        kept = self.world._memory._sessions.get(session)
        return read_lines(session, kept.lines) if kept else []

    def inbox(self) -> list[UserMessage]:
        return [event for event in self.events(inbox_of(SESSION)) if isinstance(event, UserMessage)]

    def judge(self) -> None:
        """Check the promises that hold for every log."""
        require = self.history.require
        for name, session in self.world._memory._sessions.items():
            lines, known = session.lines, self.known.get(name, [])
            require(lines[: len(known)] == known, f"what was stored in {name} is not there any more")
            self.known[name] = list(lines)
        events = self.events()
        require([event.seq for event in events] == list(range(1, len(events) + 1)), "the numbers have a hole")
        results = Counter(event.tool_use_id for event in events if isinstance(event, ToolResult))
        require(all(count == 1 for count in results.values()), "a step has two results")
        unsafe = [e.tool_use_id for e in events if isinstance(e, ToolStarted) and e.effect == "unsafe"]
        require(len(unsafe) == len(set(unsafe)), "an unsafe step was started twice")
        answered = [event.question_id for event in events if isinstance(event, UserAnswer)]
        require(len(answered) == len(set(answered)), "a question has two answers")
        taken = [(event.meta or {}).get("event_seq") for event in events if isinstance(event, ToolResult)]
        taken = [each for each in taken if each is not None]
        require(len(taken) == len(set(taken)), f"an event reached two steps: {taken}")
        ids = [event.request_id for event in self.inbox()]
        require(len(ids) == len(set(ids)), f"an event came twice: {ids}")
        paid = Counter(what for what in self.world.effects() if what.startswith("pay"))
        require(all(count == 1 for count in paid.values()), f"a step that may happen once happened again: {paid}")
