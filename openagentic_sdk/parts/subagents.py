"""Run a subagent: a session of its own, linked both ways, of which the parent sees the last text only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import SessionError, ToolError
from ..events import Event, StopReason, SubagentFinished, SubagentStarted, UserAnswer, UserMessage, UserQuestion
from ..ground.threads import settled
from ..kernel.agent import AgentRuntime, Run, RunRequest
from ..kernel.lifetime import RunStopped
from ..kernel.loop import end_unbegun, run_session
from ..kernel.opening import open_run
from ..kernel.part import Part
from ..kernel.prompt import Said
from ..kernel.recorder import may_block, off_loop
from ..kernel.tool import RunResources
from ..serialization import dumps_json
from ..sessions.closing import SAID_INSTEAD, SUPERSEDED
from ..sessions.core import TENANT_KEY, StoreCore
from ..sessions.folds.features.all import SubagentsFold
from ..sessions.folds.features.untrusted import UntrustedFold
from ..sessions.folds.view import SessionView
from ..tools.session.background_tasks import RunTasks, SubagentResult, describe_result
from ..tools.session.task import Subagents
from .budgets import Budgets
from .claude.project import ProjectPart
from .record.abandoned import copied_question, end_abandoned


class SubagentRuns(Part, Subagents):
    """The subagents of one run, which share its budget, deadline, hooks and permissions.

    `child` builds the agent of a subagent by its name and who starts it, and raises `ToolError` for an unknown name. A
    subagent that waits for a person makes its parent wait too: it goes on, in the same session, when the call runs again.
    """

    def __init__(self, run: Run, child: Callable[[str, AgentRuntime], AgentRuntime], max_depth: int = 3) -> None:
        super().__init__(run)
        self._child = child
        self._max_depth = max_depth
        self._parked: dict[str, str] = {}  # the sessions of subagents that go on, by the call that started them

    def services(self) -> Mapping[type, object]:
        return {Subagents: self}

    async def settle(self, prompt_follows: bool) -> None:
        open_subagents = list(self.run.view.fold(SubagentsFold).open.values())
        open_calls = {record.use.tool_use_id for record in self.run.view.open_calls()} if open_subagents else set[str]()
        for started in open_subagents:
            await self._settle(started, is_open=started.tool_use_id in open_calls, prompt_follows=prompt_follows)

    async def supersede(self, questions: Sequence[UserQuestion]) -> Sequence[Event]:
        """The sessions of subagents that wait are closed first: however this process ends, none of their calls runs with an
        answer that comes later.
        """
        run, ends = self.run, list[Event]()
        open_calls = {record.use.tool_use_id for record in run.view.open_calls()}
        for child_id in dict.fromkeys(question.details.get("child_session_id") for question in questions):
            started = run.view.fold(SubagentsFold).open.get(child_id) if isinstance(child_id, str) else None
            if started is None or not run.view.is_ours(started):
                continue
            end = partial(end_abandoned, also_parked=True, answered_by=SUPERSEDED)
            finished: SubagentFinished = await off_loop(True, end, run.agent.store, started, run.agent.seal)
            self._charge(finished.usage, finished.cost_usd)
            ends.append(finished)
            if started.tool_use_id not in open_calls:
                done = SubagentResult("", started.child_session_id, "interrupted", SAID_INSTEAD.cut_short)
                ends.append(self._report(started, done))
        self._parked.clear()
        return ends

    def continues(self, tool_use_id: str) -> bool:
        return tool_use_id in self._parked

    def still_waits(self, question: UserQuestion) -> bool:
        return question.details.get("child_session_id") in self.run.view.fold(SubagentsFold).open

    async def spawn(
        self,
        tool_use_id: str,
        name: str,
        prompt: str,
        events: Sequence[Event] = (),
        build: Callable[[AgentRuntime], AgentRuntime] | None = None,
    ) -> SubagentResult:
        run = self.run
        if run.depth >= self._max_depth:
            raise ToolError(f"subagents may be {self._max_depth} deep and this one is: do the work here instead")
        run.children += 1
        try:
            return await self._run_child(tool_use_id, name, prompt, events, build or partial(self._child, name))
        finally:
            run.children -= 1

    async def _settle(self, started: SubagentStarted, *, is_open: bool, prompt_follows: bool) -> None:
        """Let a subagent that waits for a person go on with its call. End any other, and charge what it spent before the
        crash, which only its own log holds. Where a prompt follows, the parent's log gets its open questions instead.
        """
        run, store = self.run, self.run.agent.store
        if not run.view.is_ours(
            started
        ):  # a log from elsewhere may name any session as its child: nothing is done to that
            ended = SubagentFinished(
                started.tool_use_id, started.name, started.child_session_id, "interrupted", cost_usd=0.0
            )
            await run.record(ended)
            return
        try:
            events = await off_loop(may_block(store), store.read_events, started.child_session_id)
        except SessionError:
            events = []
        child = SessionView((SubagentsFold,)).extend(events)
        if prompt_follows and (asked := _open_questions(store, child)):
            known = {question.question_id for question in run.view.open_questions()}
            new = [question for question in asked if question.question_id not in known]
            await run.record(*(copied_question(each, started.tool_use_id, started.child_session_id) for each in new))
            return
        if any(child.has_asked(record.use.tool_use_id) for record in child.open_calls()):
            self._parked[started.tool_use_id] = started.child_session_id
            if not is_open:
                done = await self.spawn(started.tool_use_id, started.name, started.prompt)
                await run.record(self._report(started, done))
            return
        finished: SubagentFinished = await off_loop(True, end_abandoned, store, started, run.agent.seal)
        self._charge(finished.usage, finished.cost_usd)
        await run.record(finished)

    def _report(self, started: SubagentStarted, done: SubagentResult) -> UserMessage:
        """What the model reads of a subagent that an earlier run left in the background and that has ended by now."""
        record = self.run.view.calls.get(started.tool_use_id)
        output = None if record is None or record.result is None else record.result.output
        task_id = output.get("task_id") if isinstance(output, Mapping) else None
        if isinstance(task_id, str):
            self.run.parts.services.get(RunResources).get(RunTasks).put(task_id, started.name, done)
        said = dumps_json({"task_id": task_id, **describe_result(started.name, done)})
        return UserMessage(f"A subagent that worked in the background has ended: {said}", origin="task")

    def _charge(self, usage: Mapping[str, Any] | None, cost_usd: float | None) -> None:
        """Charge what a subagent spent in an earlier process."""
        budgets = self.run.parts.services.find(Budgets)
        if budgets is not None:
            budgets.charge(usage, cost_usd)

    async def _open(
        self,
        tool_use_id: str,
        resume: str | None,
        events: Sequence[Event],
        build: Callable[[AgentRuntime], AgentRuntime],
    ) -> Run:
        run = self.run
        agent = build(run.agent)
        project = run.parts.services.find(ProjectPart)
        if project is not None:  # what the parent's active skills take away is taken from its subagents too
            agent = replace(agent, gate=project.narrow_child(agent.gate))
        links = {"parent_session_id": run.session_id, "parent_tool_use_id": tool_use_id}
        if tenant := run.request.metadata.get(TENANT_KEY):
            links[TENANT_KEY] = tenant
        request = RunRequest(
            resume=resume,
            metadata=links,
            brings=events,
            parks=run.request.parks,
            untrusted=tuple(run.view.fold(UntrustedFold).sources),
            traceparent=run.request.traceparent,
        )
        return await open_run(agent, request, run.recorder.channel, parent=run, parent_tool_use_id=tool_use_id)

    async def _run_child(
        self,
        tool_use_id: str,
        name: str,
        prompt: str,
        events: Sequence[Event],
        build: Callable[[AgentRuntime], AgentRuntime],
    ) -> SubagentResult:
        run = self.run
        resume = self._parked.pop(tool_use_id, None)
        added = None
        if resume is None:
            added = await self._run_hooks("subagent_start", {"agent_name": name, "prompt": prompt})
        child = await self._open(tool_use_id, resume, events, build)
        run.helpers.append(child)
        child.notes += [UserMessage(added, origin="hook")] if added else []

        def finished(stop_reason: StopReason) -> Event:
            view = child.view
            untrusted = list(view.fold(UntrustedFold).sources)
            return SubagentFinished(
                tool_use_id, name, child.session_id, stop_reason, view.usage, view.cost_usd, untrusted
            )

        async def end_cancelled() -> None:
            if not child.view.events:
                await end_unbegun(child)
            if child.questions.parked:
                await self._park(child, tool_use_id)
            else:
                await run.record(finished("interrupted"))

        try:
            if resume is None:
                await run.record(SubagentStarted(tool_use_id, name, child.session_id, prompt))
            else:
                self._charge(child.view.usage, child.view.cost_usd)
            result = await run_session(child, Said(prompt) if resume is None else None)
        except asyncio.CancelledError:
            ended, _ = await settled(end_cancelled())
            ended.exception()
            raise
        finally:
            run.helpers = [helper for helper in run.helpers if helper is not child]
            await child.recorder.close()
        if result.stop_reason == "waiting":
            await self._park(child, tool_use_id)
            raise RunStopped("waiting", result.error_message or "a subagent waits for an answer")
        for question in run.view.open_questions():
            if question.tool_use_id == tool_use_id:
                said = child.view.answers.get(question.question_id) or UserAnswer(question.question_id, "")
                await run.record(UserAnswer(question.question_id, said.answer, said.answered_by, said.approver))
        await run.record(finished(result.stop_reason))
        value = result.structured_output
        text = result.final_text if value is None else dumps_json(value)
        await self._run_hooks("subagent_stop", {"agent_name": name, "final_text": text})
        return SubagentResult(text, child.session_id, result.stop_reason, result.error_message)

    async def _park(self, child: Run, tool_use_id: str) -> None:
        """Put the questions that a subagent waits for into its parent's log too, where the person who answers looks."""
        run = self.run
        known = {question.question_id for question in run.view.open_questions()}
        for question in child.view.open_questions():
            if question.tool_use_id not in child.questions.parked:
                continue
            copied = copied_question(question, tool_use_id, child.session_id)
            run.questions.park(copied)
            if question.question_id not in known and question.question_id not in child.view.answers:
                await run.record(copied)

    async def _run_hooks(self, point: str, payload: Mapping[str, Any]) -> str | None:
        """What the hooks want the subagent to know. Raises `ToolError` when one blocks it."""
        _, decision = await self.run.hooks.run(point, payload)
        if decision is not None and (decision.block or (decision.stops and point == "subagent_start")):
            raise ToolError(decision.block_reason or "a hook blocked this subagent")
        return decision.additional_context if decision is not None else None


def _open_questions(store: StoreCore, child: SessionView) -> list[UserQuestion]:
    """The open questions of a subagent, and those that only the logs of its own subagents hold."""
    found = {question.question_id: question for question in child.open_questions()}
    for started in child.fold(SubagentsFold).open.values():
        with suppress(SessionError):
            inner = SessionView((SubagentsFold,)).extend(store.iter_events(started.child_session_id))
            found.update({question.question_id: question for question in _open_questions(store, inner)})
    return list(found.values())
