"""Run a subagent: a session of its own, linked both ways, of which the parent sees the last text only.

The parent's log names the session of a subagent before that begins, and says how it ended before the call has its result.
Whatever ended the process in between, the next run of the parent finds the one without the other, and goes on with the
subagent where its own log ends: nothing that is in a log happens twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import SessionError, SessionLockedError, SessionNotFoundError, ToolError, UnknownOutcomeError
from ..events import (
    Event,
    HookEvent,
    ModelResponse,
    Result,
    SubagentFinished,
    SubagentStarted,
    SystemInit,
    ToolResult,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from ..ground.frozen import frozen
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
from ..sessions.base import SessionStore
from ..sessions.closing import SAID_INSTEAD, SUPERSEDED, unknown_result
from ..sessions.core import TENANT_KEY, StoreCore
from ..sessions.folds.features.all import SubagentsFold
from ..sessions.folds.features.untrusted import UntrustedFold
from ..sessions.folds.standing import state_after
from ..sessions.folds.view import CallRecord, SessionView
from ..sessions.resume import load_view
from ..tools.session.background_tasks import RunTasks, SubagentResult, describe_result, running_task
from ..tools.session.task import Build, Subagents, TaskTool
from .budgets import Budgets
from .claude.project import ProjectPart
from .record.abandoned import copied_question, end_abandoned

# A run that ended so goes on when its session is resumed.
_GOES_ON = frozenset({"interrupted", "suspended", "waiting"})


@frozen
class LeftSubagent:
    """A subagent that an earlier run left: what started it, its session as it is, and how it ended, if it did."""

    started: SubagentStarted
    view: SessionView
    ended: Result | None = None
    is_recorded: bool = False


class SubagentRuns(Part, Subagents):
    """The subagents of one run, which share its budget, deadline, hooks and permissions.

    `child` builds the agent of a subagent by its name and who starts it, and raises `ToolError` for an unknown name. A
    subagent that waits for a person makes its parent wait too. Those of earlier runs go on, in their own sessions, when
    their calls run again.
    """

    def __init__(self, run: Run, child: Callable[[str, AgentRuntime], AgentRuntime], max_depth: int = 3) -> None:
        super().__init__(run)
        self._child = child
        self._max_depth = max_depth
        self._left: dict[str, LeftSubagent] = {}  # by the call that started them
        self._unbegun: set[str] = set()  # the calls whose tasks in the background an earlier process did not begin
        starter = None if run.parent is None else run.parent.parts.services.find(Subagents)
        # The sessions that this tree of runs has charged for what they spent in earlier processes.
        self._charged: set[str] = starter._charged if isinstance(starter, SubagentRuns) else set()

    def services(self) -> Mapping[type, object]:
        return {Subagents: self}

    async def settle(self, prompt_follows: bool) -> None:
        """All are charged before the first goes on: what they spent together may leave nothing to spend."""
        view = self.run.view
        open_ids = {record.use.tool_use_id for record in view.open_calls()}
        found: list[tuple[SubagentStarted, SubagentFinished | None]]
        found = [(started, None) for started in view.fold(SubagentsFold).open.values()]
        behind: list[LeftSubagent] = []
        for started, finished in [*found, *_finished_in(view)]:
            is_open = started.tool_use_id in open_ids
            left = await self._find(started, finished, is_open=is_open, prompt_follows=prompt_follows)
            if left is not None:
                self._left[started.tool_use_id] = left
                behind += [] if is_open else [left]
        waits = [self._report_on(left) for left in behind if _has_asked(left.view)]
        for left in behind:
            if not _has_asked(left.view):
                started = left.started
                self._work_behind(started.tool_use_id, started.name, started.prompt)
        for record, task_started in _tasks_of_turn(view):
            if task_started is None:  # the process did not live to begin it
                self._unbegun.add(record.use.tool_use_id)
                self._work_behind(record.use.tool_use_id, record.use.input["agent"], record.use.input["prompt"])
            elif task_started.child_session_id not in view.fold(SubagentsFold).open:
                self._tasks().start(task_started.name, self._fetch(task_started), _task_id(record))
        reports = await asyncio.gather(*waits, return_exceptions=True)
        for error in reports:
            if error is not None:
                raise error

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
            self._charge(started.child_session_id, finished.usage, finished.cost_usd)
            ends.append(finished)
            if started.tool_use_id not in open_calls:
                done = SubagentResult("", started.child_session_id, "interrupted", SAID_INSTEAD.cut_short)
                ends.append(self._report(started, done))
        self._left.clear()
        return ends

    def continues(self, tool_use_id: str) -> bool:
        return tool_use_id in self._left and self.run.lifetime.stopping.asked != "interrupt"

    def still_waits(self, question: UserQuestion) -> bool:
        return question.details.get("child_session_id") in self.run.view.fold(SubagentsFold).open

    async def end(self, ending: RunStopped) -> RunStopped:
        """End the subagents whose calls have ended, but for those in the background that go on when the run does."""
        run = self.run
        asking = {question.details.get("child_session_id") for question in run.view.open_questions()}
        goes_on = ending.reason == "waiting" or self._is_suspended()
        for started in list(run.view.fold(SubagentsFold).open.values()):
            record, child_id = run.view.calls.get(started.tool_use_id), started.child_session_id
            is_open = record is not None and record.result is None
            is_left = _task_id(record) is not None and (goes_on or self.continues(started.tool_use_id))
            if not is_open and not is_left and child_id not in asking:
                await self._end(started)
        return ending

    async def spawn(
        self, tool_use_id: str, name: str, prompt: str, events: Sequence[Event] = (), build: Build | None = None
    ) -> SubagentResult:
        run, left = self.run, self._left.pop(tool_use_id, None)
        if left is not None and left.ended is not None:
            return await self._finish(left.started, left.view, left.ended, is_recorded=left.is_recorded)
        build = build or partial(self._child, name if left is None else left.started.name)
        run.children += 1
        try:
            if left is not None:
                return await self._go_on(left, events, build)
            self._check_depth()
            added = await self._run_hooks("subagent_start", tool_use_id, {"agent_name": name, "prompt": prompt})
            empty = await self._find_empty(tool_use_id)
            child = await self._open(tool_use_id, build, empty, [*events, *_notes(added)])
            return await self._run_child(child, SubagentStarted(tool_use_id, name, child.session_id, prompt))
        finally:
            run.children -= 1

    def _check_depth(self) -> None:
        if self.run.depth >= self._max_depth:
            raise ToolError(f"subagents may be {self._max_depth} deep and this one is: do the work here instead")

    # --- what an earlier run left --------------------------------------------------------------------------------------

    async def _find(
        self, started: SubagentStarted, finished: SubagentFinished | None, *, is_open: bool, prompt_follows: bool
    ) -> LeftSubagent | None:
        """A subagent of an earlier run with which its call or its task goes on. Any other gets its end. Where a prompt
        follows, the parent's log gets its open questions instead.
        """
        run, store = self.run, self.run.agent.store
        if not run.view.is_ours(started):  # a log from elsewhere may name any session as its child: that is left alone
            nothing = _interrupted(started) if finished is None else None
            await self._record_loss(started, "this installation did not start it", nothing, is_open=is_open)
            return None
        try:
            view: SessionView = await off_loop(may_block(store), _child_view, run, started)
            ended = _end_of(view, finished)
            if ended is None:
                self._check(started)
        except (SessionError, ToolError) as error:
            why = "its log was deleted" if isinstance(error, SessionNotFoundError) else str(error)
            end = None if finished is not None else await self._ended(started)
            await self._record_loss(started, why, end, is_open=is_open)
            return None
        if prompt_follows and (asked := _open_questions(store, view)):
            known = {question.question_id for question in run.view.open_questions()}
            new = [question for question in asked if question.question_id not in known]
            await run.record(*(copied_question(each, started.tool_use_id, started.child_session_id) for each in new))
            return None
        if not is_open and _task_id(run.view.calls.get(started.tool_use_id)) is None and not _has_asked(view):
            await self._end(started)
            return None
        if finished is None:
            await off_loop(may_block(store), self._charge_tree, started.child_session_id, view)
        budgets = run.parts.services.find(Budgets)
        if budgets is not None and ended is not None and ended.stop_reason == "budget" and not prompt_follows:
            budgets.exhaust(ended.error_message)
        return LeftSubagent(started, view, ended, finished is not None)

    def _check(self, started: SubagentStarted) -> None:
        """Raises `ToolError` when Task refuses this name by now, and its call would not reach the subagent."""
        tools, record = self.run.agent.tools, self.run.view.calls.get(started.tool_use_id)
        name = "" if record is None else record.use.name
        if name in tools and isinstance(tools.get(name), TaskTool):
            self._child(started.name, self.run.agent)

    async def _go_on(self, left: LeftSubagent, events: Sequence[Event], build: Build) -> SubagentResult:
        """Resume a subagent at its own step, or begin it, when the process died before its prompt was stored."""
        started, notes = left.started, list[UserMessage]()
        if not _has_begun(left.view):
            told = {"agent_name": started.name, "prompt": started.prompt}
            notes = _notes(await self._run_hooks("subagent_start", started.tool_use_id, told))
        try:
            self._check_depth()
            child = await self._open_again(started, build, [*events, *notes])
        except (SessionError, ToolError) as error:
            await self._end(started)
            raise UnknownOutcomeError(_loss(started, str(error))) from error
        child.steps = _steps(child.view)
        return await self._run_child(child, started, is_new=False)

    async def _open_again(self, started: SubagentStarted, build: Build, events: Sequence[Event]) -> Run:
        """Open the session of a subagent; a holder that may have died on another host is waited for until that is known."""
        opened = partial(self._open, started.tool_use_id, build, started.child_session_id, events)
        try:
            return await opened()
        except SessionLockedError as error:
            if error.retry_after_s is None:
                raise
            await self.run.agent.clock.sleep(error.retry_after_s)
            return await opened()

    async def _find_empty(self, tool_use_id: str) -> str | None:
        """The session that an earlier attempt of this call made, when the process died before it was named in the log."""
        run, store = self.run, self.run.agent.store
        record = run.view.calls.get(tool_use_id)
        is_again = record is not None and (record.attempts > 1 or tool_use_id in self._unbegun)
        if not is_again or not isinstance(store, SessionStore):
            return None

        def find() -> str | None:
            for name in store.list_children(run.session_id):
                known = store.read_metadata(name)["metadata"]
                if known.get("parent_tool_use_id") == tool_use_id and store.last_seq(name) == 0:
                    return name
            return None

        found: str | None = await off_loop(True, find)
        return found

    async def _fetch(self, started: SubagentStarted) -> SubagentResult:
        """What a subagent in the background gave back before the process died, and nobody fetched."""
        store = self.run.agent.store
        view: SessionView = await off_loop(may_block(store), _child_view, self.run, started)
        ended = _end_of(view, _interrupted(started))
        assert ended is not None, "it is recorded that it has ended"
        return await self._finish(started, view, ended, is_recorded=True)

    def _work_behind(self, tool_use_id: str, name: str, prompt: str) -> None:
        """Let a subagent work in the background, under the id that the model was given."""
        task_id = _task_id(self.run.view.calls.get(tool_use_id))
        if task_id is not None:
            self._tasks().start(name, self.spawn(tool_use_id, name, prompt), task_id)

    def _tasks(self) -> RunTasks:
        return self.run.parts.services.get(RunResources).get(RunTasks)

    async def _report_on(self, left: LeftSubagent) -> None:
        """Go on with a subagent in the background that waited for a person, and tell the model what came of it."""
        started = left.started
        try:
            done = await self.spawn(started.tool_use_id, started.name, started.prompt)
        except UnknownOutcomeError as error:
            done = SubagentResult("", started.child_session_id, "interrupted", str(error))
        await self.run.record(self._report(started, done))

    def _report(self, started: SubagentStarted, done: SubagentResult) -> UserMessage:
        """What the model reads of a subagent that an earlier run left in the background and that has ended by now."""
        task_id = _task_id(self.run.view.calls.get(started.tool_use_id))
        if task_id is not None:
            self._tasks().put(task_id, started.name, done)
        said = dumps_json({"task_id": task_id, **describe_result(started.name, done)})
        return UserMessage(f"A subagent that worked in the background has ended: {said}", origin="task")

    async def _record_loss(
        self, started: SubagentStarted, why: str, finished: SubagentFinished | None, *, is_open: bool
    ) -> None:
        """Say that a subagent cannot go on: as the result of its call, if that is open."""
        result = [unknown_result(started.tool_use_id, _loss(started, why))] if is_open else []
        await self.run.record(*([] if finished is None else [finished]), *result)

    async def _end(self, started: SubagentStarted) -> None:
        await self.run.record(await self._ended(started))

    async def _ended(self, started: SubagentStarted) -> SubagentFinished:
        """Close the log of a subagent that nobody goes on with, and charge what it spent before the process died, which only
        that log holds.
        """
        run = self.run
        finished: SubagentFinished = await off_loop(True, end_abandoned, run.agent.store, started, run.agent.seal)
        self._charge(started.child_session_id, finished.usage, finished.cost_usd)
        return finished

    def _charge_tree(self, session_id: str, view: SessionView) -> None:
        """Charge what a subagent that goes on has spent, and what those did that it has open, as its log does not."""
        self._charge(session_id, view.usage, view.cost_usd)
        for started in filter(view.is_ours, view.fold(SubagentsFold).open.values()):
            with suppress(SessionError):
                inner, _ = load_view(self.run.agent.store, started.child_session_id, _READ, seal=self.run.agent.seal)
                self._charge_tree(started.child_session_id, inner)

    def _charge(self, session_id: str, usage: Mapping[str, Any] | None, cost_usd: float | None) -> None:
        """Charge what a subagent spent in an earlier process, once."""
        budgets = self.run.parts.services.find(Budgets)
        if budgets is not None and session_id not in self._charged:
            budgets.charge(usage, cost_usd)
        self._charged.add(session_id)

    # --- a subagent at work --------------------------------------------------------------------------------------------

    def _is_suspended(self) -> bool:
        """Whether the process was told to end, so that the run goes on elsewhere."""
        stopping = self.run.lifetime.stopping
        return stopping.asked == "suspend" or (stopping.soon and stopping.asked is None)

    async def _open(self, tool_use_id: str, build: Build, resume: str | None, events: Sequence[Event]) -> Run:
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
        child = await open_run(agent, request, run.recorder.channel, parent=run, parent_tool_use_id=tool_use_id)
        self._charged.add(child.session_id)
        return child

    async def _run_child(self, child: Run, started: SubagentStarted, *, is_new: bool = True) -> SubagentResult:
        run = self.run
        run.helpers.append(child)

        async def end_cancelled() -> None:
            if not child.view.events:
                await end_unbegun(child)
            if child.questions.parked:
                await self._park(child, started.tool_use_id)

        try:
            if is_new:
                await run.record(started)
            result = await run_session(child, None if _has_begun(child.view) else Said(started.prompt))
        except asyncio.CancelledError:
            ended, _ = await settled(end_cancelled())
            ended.exception()
            raise
        finally:
            run.helpers = [helper for helper in run.helpers if helper is not child]
            await child.recorder.close()
        if result.stop_reason == "waiting":
            await self._park(child, started.tool_use_id)
            raise RunStopped("waiting", result.error_message or "a subagent waits for an answer")
        if self._is_suspended() and result.stop_reason in _GOES_ON:
            raise RunStopped(result.stop_reason, result.error_message or "")
        return await self._finish(started, child.view, result)

    async def _finish(
        self, started: SubagentStarted, view: SessionView, result: Result, *, is_recorded: bool = False
    ) -> SubagentResult:
        """Record that a subagent has ended, as its log says; gives what its starter gets of it."""
        run, tool_use_id = self.run, started.tool_use_id
        for question in run.view.open_questions():
            if question.tool_use_id == tool_use_id:
                said = view.answers.get(question.question_id) or UserAnswer(question.question_id, "")
                await run.record(UserAnswer(question.question_id, said.answer, said.answered_by, said.approver))
        if not is_recorded:
            await run.record(replace(_interrupted(started, view), stop_reason=result.stop_reason))
        value = result.structured_output
        text = result.final_text if value is None else dumps_json(value)
        await self._run_hooks("subagent_stop", tool_use_id, {"agent_name": started.name, "final_text": text})
        return SubagentResult(text, started.child_session_id, result.stop_reason, result.error_message)

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

    async def _run_hooks(self, point: str, tool_use_id: str, payload: Mapping[str, Any]) -> str | None:
        """What the hooks want the subagent to know. Raises `ToolError` when one blocks it. What they said before a crash
        counts: they are not asked twice about one subagent.
        """
        said = list(_said_by_hooks(self.run.view, point, tool_use_id))
        if not said:
            _, decision = await self.run.hooks.run(point, payload, tool_use_id=tool_use_id)
            if decision is not None and (decision.block or (decision.stops and point == "subagent_start")):
                raise ToolError(decision.block_reason or "a hook blocked this subagent")
            return decision.additional_context if decision is not None else None
        for event in said:
            stops = point == "subagent_start" and event.details.get("stops")
            if "block_reason" in event.details or stops or event.details.get("fails") == "closed":
                why = event.details.get("block_reason") or event.error_message
                raise ToolError(why or "a hook blocked this subagent")
        contexts = [event.details["additional_context"] for event in said if "additional_context" in event.details]
        return "\n".join(contexts) or None


# What is read of the log of a subagent that an earlier run left.
_READ = (SubagentsFold, UntrustedFold)


def _child_view(run: Run, started: SubagentStarted) -> SessionView:
    """The session of a subagent. Raises `SessionError` when it is gone, or is not this run's to go on with."""
    store, session_id = run.agent.store, started.child_session_id
    parent_id = store.read_metadata(session_id)["metadata"].get("parent_session_id", run.session_id)
    if parent_id != run.session_id:
        raise SessionError(f"its session belongs to session {parent_id!r}", session_id=session_id)
    return load_view(store, session_id, _READ, seal=run.agent.seal)[0]


def _end_of(view: SessionView, finished: SubagentFinished | None) -> Result | None:
    """How a subagent ended, None when it goes on. Raises `SessionError` for an end that was not written here."""
    for event in reversed(view.events):
        if isinstance(event, Result) and (finished is not None or event.stop_reason not in _GOES_ON):
            if not view.is_ours(event):
                raise SessionError(f"session {event.session_id!r} was changed by somebody else")
            return event
        if isinstance(event, Result | SystemInit):
            break
    return None if finished is None else Result("", finished.child_session_id, finished.stop_reason)


def _has_begun(view: SessionView) -> bool:
    """Whether the prompt of a subagent is in its log."""
    return view.steps > 0 or any(isinstance(event, UserMessage) for event in view.events)


def _has_asked(view: SessionView) -> bool:
    return any(view.has_asked(record.use.tool_use_id) for record in view.open_calls())


def _steps(view: SessionView) -> int:
    """How many answers of the model a subagent has had: those of earlier processes count, too."""
    answers = sum(isinstance(event, ModelResponse) and event.complete for event in view.events)
    return max(answers, view.steps - 1) if view.conversation.horizon else answers


def _finished_in(view: SessionView) -> Iterator[tuple[SubagentStarted, SubagentFinished]]:
    """The subagents that have ended, and whose result the process did not live to store."""
    waiting = {
        record.use.tool_use_id: record.use.seq or 0 for record in view.open_calls() if record.started is not None
    }
    if not waiting:
        return
    starts = {event.child_session_id: event for event in view.events if isinstance(event, SubagentStarted)}
    for event in view.events:
        if isinstance(event, SubagentFinished) and (event.seq or 0) > waiting.get(event.tool_use_id, event.seq or 0):
            yield starts[event.child_session_id], event


def _tasks_of_turn(view: SessionView) -> list[tuple[CallRecord, SubagentStarted | None]]:
    """The calls of the turn that goes on whose subagents work in the background, and what started each, if it began."""
    started: dict[str, SubagentStarted] = {}
    found: list[CallRecord] = []
    for event in reversed(view.events):
        if isinstance(event, SubagentStarted):
            started[event.tool_use_id] = event
        elif isinstance(event, ToolResult):
            record = view.calls.get(event.tool_use_id)
            found += [record] if record is not None and _task_id(record) is not None else []
        elif isinstance(event, UserMessage) and event.origin == "user":
            break
        elif isinstance(event, Result) and state_after(event) == "over":
            break  # what worked then has ended with its run
    return [(record, started.get(record.use.tool_use_id)) for record in reversed(found)]


def _task_id(record: CallRecord | None) -> str | None:
    """The id of the background task that a call has started."""
    return None if record is None else running_task(record.use, record.result)


def _said_by_hooks(view: SessionView, point: str, tool_use_id: str) -> Iterator[HookEvent]:
    """What hooks did at this point for this call."""
    record = view.calls.get(tool_use_id)
    behind = 0 if record is None else record.use.seq or 0
    for event in view.events:
        if isinstance(event, HookEvent) and (event.hook_point, event.tool_use_id) == (point, tool_use_id):
            yield from [event] if (event.seq or 0) > behind else []


def _notes(added: str | None) -> list[UserMessage]:
    """What hooks tell a subagent: it stands right behind its prompt."""
    return [UserMessage(added, origin="hook")] if added else []


def _interrupted(started: SubagentStarted, view: SessionView | None = None) -> SubagentFinished:
    spent: dict[str, Any] = {"cost_usd": 0.0}
    if view is not None:
        untrusted = list(view.fold(UntrustedFold).sources)
        spent = {"usage": view.usage, "cost_usd": view.cost_usd, "untrusted": untrusted}
    return SubagentFinished(started.tool_use_id, started.name, started.child_session_id, "interrupted", **spent)


def _loss(started: SubagentStarted, why: str) -> str:
    """What the model reads of a subagent that cannot go on."""
    return (
        f"The process died while the subagent {started.name!r} (session {started.child_session_id}) was at work, and it "
        f"cannot go on: {why}. What it had done by then is done: check before repeating."
    )


def _open_questions(store: StoreCore, child: SessionView) -> list[UserQuestion]:
    """The open questions of a subagent, and those that only the logs of its own subagents hold."""
    found = {question.question_id: question for question in child.open_questions()}
    for started in child.fold(SubagentsFold).open.values():
        with suppress(SessionError):
            inner = SessionView((SubagentsFold,)).extend(store.iter_events(started.child_session_id))
            found.update({question.question_id: question for question in _open_questions(store, inner)})
    return list(found.values())
