"""The contract of parts that keep a state, as test cases: subclass `PartContract` and define how to create an agent.

    class NotebookTest(part_contract.PartContract):
        part = Notebook
        turns = [{"tool_calls": [{"name": "look", "arguments": {"at": "tea"}}]}, "Done."]

        def make_agent(self, provider, store):
            return build_agent(OpenAgenticOptions(provider=provider, session_store=store, parts=[Notebook], ...))

`turns` are the model's answers, in the format of `testing.scripted`, one after the other. Their calls should be to tools of
effect "read", which run again after a crash. A part passes if its state follows from prompts and results, not from what a
process does twice. Import the module, not the class, or unittest runs the abstract class, too.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..events import AssistantMessage, AssistantReasoning, Event, ModelResponse, Result, ToolUse, UserMessage
from ..kernel.agent import AgentRuntime, Run, RunRequest
from ..kernel.part import Part, PartOpener
from ..kernel.prompt import Said
from ..kernel.task import RunTask
from ..parts.compaction import compact_closed_session
from ..parts.custom import CustomPart
from ..parts.custom.run import CustomPartRun
from ..parts.record.lifecycle import fork_session
from ..providers.base import Provider
from ..serialization import dumps_json
from ..sessions.base import SessionStore
from ..sessions.memory import MemorySessionStore
from .scripted import ScriptedProvider

PartTurn = Mapping[str, Any] | str


class PartContract(unittest.IsolatedAsyncioTestCase):
    """The contract of a part: subclass it, set `part` and `turns`, and define `make_agent`. `prompt` is the run's prompt."""

    part: type[CustomPart] | type[Part]
    turns: Sequence[PartTurn] = ()
    prompt = "Go."

    def make_agent(self, provider: Provider, store: SessionStore) -> AgentRuntime:
        """Create an agent with the part."""
        raise NotImplementedError

    def state_of(self, part: Any) -> Any:
        """The state that the part must restore, as JSON; called at the end of a run."""
        return part.state()

    async def asyncSetUp(self) -> None:
        if type(self).make_agent is PartContract.make_agent:
            self.skipTest("the contract itself: subclass it")
        self.store = MemorySessionStore()
        self.session_id, self.state = await self._play(self.store, self._turns(0), self.prompt)
        self.events = self.store.read_events(self.session_id)

    async def test_the_run_comes_to_its_end_and_the_part_has_a_state_that_is_json(self) -> None:
        self.assertEqual(_stop_reason(self.events), "end")
        self.assertNotIn(
            dumps_json(self.state), ("null", "{}", "[]"), "the part has no state at the end: add turns that give it one"
        )

    async def test_wherever_a_run_is_killed_it_ends_with_the_same_state_when_it_is_resumed(self) -> None:
        for count in range(1, len(self.events)):
            events = self.events[:count]
            store = self._store_of(events)
            is_asked = any(isinstance(event, UserMessage) for event in events)
            answers = sum(isinstance(event, ModelResponse) and event.complete for event in events)
            with self.subTest(killed_behind=f"event {count}, {events[-1].type}"):
                if is_torn(events, self.events[count]):
                    continue  # a whole answer is one write, which a killed process has either done or not
                session_id, state = await self._play(
                    store, self._turns(answers), None if is_asked else self.prompt, resume=self.session_id
                )
                self.assertEqual(dumps_json(state), dumps_json(self.state))
                self.assertEqual(_stop_reason(store.read_events(session_id)), "end")

    async def test_a_session_that_has_ended_gives_the_state_to_the_next_run(self) -> None:
        _, state = await self._play(self.store, (), None, resume=self.session_id)
        self.assertEqual(dumps_json(state), dumps_json(self.state))

    async def test_a_fork_has_the_state(self) -> None:
        agent = self.make_agent(ScriptedProvider(), self.store)
        _, state = await self._play(
            self.store, (), None, resume=fork_session(self.store, self.session_id, seal=agent.seal)
        )
        self.assertEqual(dumps_json(state), dumps_json(self.state))

    async def test_a_compaction_leaves_the_state(self) -> None:
        agent = self.make_agent(ScriptedProvider(["It was done."]), self.store)
        if not await compact_closed_session(agent, RunRequest(resume=self.session_id)):
            self.skipTest("the session is too short to be compacted: add turns")
        _, state = await self._play(self.store, (), None, resume=self.session_id)
        self.assertEqual(dumps_json(state), dumps_json(self.state))

    async def _play(
        self, store: SessionStore, turns: Sequence[PartTurn], prompt: str | None, *, resume: str | None = None
    ) -> tuple[str, Any]:
        """Run the agent to the end; return the session's id and the part's state at that point."""
        opened: list[Part] = []

        def watched(opener: PartOpener, run: Run) -> Part:
            part = opener(run)
            if run.parent is None:
                opened.append(part)
            return part

        agent = self.make_agent(ScriptedProvider(turns), store)
        openers: list[Callable[[Run], Part]] = [partial(watched, opener) for opener in agent.parts]
        message = None if prompt is None else Said(prompt)
        async with await RunTask.start(replace(agent, parts=openers), RunRequest(resume=resume), message) as task:
            while await task.next_event() is not None:
                pass
            result = await task.result()
        self.assertEqual((result.stop_reason, result.error_message), ("end", None))
        parts = [part.part if isinstance(part, CustomPartRun) else part for part in opened]
        matches = [part for part in parts if isinstance(part, self.part)]
        self.assertEqual(len(matches), 1, f"the agent must have one {self.part.__name__}")
        return result.session_id, self.state_of(matches[0])

    def _turns(self, first: int) -> Sequence[PartTurn]:
        """The turns from this number on. Calls have the same ids however many turns are skipped."""
        turns: list[PartTurn] = []
        for number, turn in enumerate(self.turns):
            if not isinstance(turn, str) and turn.get("tool_calls"):
                calls = [{"id": f"call_{number}_{at}", **call} for at, call in enumerate(turn["tool_calls"])]
                turn = {**turn, "tool_calls": calls}
            turns.append(turn)
        return turns[first:]

    def _store_of(self, events: Sequence[Event]) -> SessionStore:
        store = MemorySessionStore()
        store.create_session(session_id=self.session_id)
        store.append_events(self.session_id, events)
        return store


def is_torn(events: Sequence[Event], following: Event) -> bool:
    """Whether these events end inside an answer, which is stored in one write, before the event `following`."""
    answer = AssistantMessage | AssistantReasoning | ToolUse
    return isinstance(events[-1], ModelResponse | answer) and isinstance(following, answer)


def _stop_reason(events: Sequence[Event]) -> str:
    return events[-1].stop_reason if isinstance(events[-1], Result) else "none"
