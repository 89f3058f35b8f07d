"""Run subagents: each has its own session, linked with its parent's in both directions, and returns only a final answer.

The parent's log names the session of a subagent before the subagent begins, and records its end before its call has a
result. If the process dies in between, the next run of the parent finds the start without the end, and continues the
subagent from the end of its own log: nothing that a log records as done is done twice.
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
from ..kernel.opening import close_run, open_run
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
from ..tools.session.task import BuildSubagent, Subagents, TaskTool
from .budgets import Budgets
from .claude.project import ProjectPart
from .record.abandoned import copied_question, end_abandoned

# A run with one of these stop reasons continues when its session is resumed.
_GOES_ON = frozenset({"interrupted", "suspended", "waiting"})


@frozen
class UnfinishedSubagent:
    """A subagent that an earlier run left unfinished: its start event, its session, and its end, if it ended.

    `is_recorded` is true if the parent's log contains the end.
    """

    started: SubagentStarted
    view: SessionView
    ended: Result | None = None
    is_recorded: bool = False


class SubagentRuns(Part, Subagents):
    """A part that runs the subagents of one run, which share its budget, deadline, hooks and permissions.

    `child` builds a subagent's agent from its name and its starter's agent, and raises `ToolError` for an unknown name. A
    subagent that waits for a person makes its parent wait too. Subagents of earlier runs continue, in their own sessions,
    when their calls run again.
    """

    def __init__(self, run: Run, child: Callable[[str, AgentRuntime], AgentRuntime], max_depth: int = 3) -> None:
        super().__init__(run)
        self._child = child
        self._max_depth = max_depth
        self._left: dict[str, UnfinishedSubagent] = {}  # by the call that started them
        self._unbegun: set[str] = set()  # calls whose background tasks an earlier process did not begin
        starter = None if run.parent is None else run.parent.parts.services.find(Subagents)
        # The sessions whose spending in earlier processes this tree of runs has already charged.
        self._charged: set[str] = starter._charged if isinstance(starter, SubagentRuns) else set()

    def services(self) -> Mapping[type, object]:
        return {Subagents: self}

    async def settle(self, prompt_follows: bool) -> None:
        """Find the subagents that earlier runs left unfinished, and continue those that ran in the background.

        The others continue when their calls run again. All are charged before the first continues, because together they
        may have exhausted the budget.
        """
        view = self.run.view
        open_ids = {record.use.tool_use_id for record in view.open_calls()}
        candidates: list[tuple[SubagentStarted, SubagentFinished | None]]
        candidates = [(started, None) for started in view.fold(SubagentsFold).open.values()]
        background: list[UnfinishedSubagent] = []
        for started, finished in [*candidates, *_finished_in(view)]:
            is_open = started.tool_use_id in open_ids
            subagent = await self._find(started, finished, is_open=is_open, prompt_follows=prompt_follows)
            if subagent is not None:
                self._left[started.tool_use_id] = subagent
                background += [] if is_open else [subagent]
        waits = [self._report_on(subagent) for subagent in background if _waits_for_person(subagent.view)]
        for subagent in background:
            if not _waits_for_person(subagent.view):
                started = subagent.started
                self._work_behind(started.tool_use_id, started.name, started.prompt)
        for record, task_started in _tasks_of_turn(view):
            if task_started is None:  # the process died before it began
                self._unbegun.add(record.use.tool_use_id)
                self._work_behind(record.use.tool_use_id, record.use.input["agent"], record.use.input["prompt"])
            elif task_started.child_session_id not in view.fold(SubagentsFold).open:
                self._tasks().start(task_started.name, self._fetch(task_started), _task_id(record))
        # Wait for all, even after a failure: no report may continue once an exception has ended the run.
        reports = await asyncio.gather(*waits, return_exceptions=True)
        for error in reports:
            if error is not None:
                raise error

    async def supersede(self, questions: Sequence[UserQuestion]) -> Sequence[Event]:
        """Close the sessions of waiting subagents; return the events that end them in the parent's log.

        Their logs are closed first, so that after any later crash no late answer can run their calls.
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
        """End the subagents whose calls have ended, except those that wait for a person or continue in the background."""
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
        self, tool_use_id: str, name: str, prompt: str, events: Sequence[Event] = (), build: BuildSubagent | None = None
    ) -> SubagentResult:
        run, subagent = self.run, self._left.pop(tool_use_id, None)
        if subagent is not None and subagent.ended is not None:
            return await self._finish(subagent.started, subagent.view, subagent.ended, is_recorded=subagent.is_recorded)
        build = build or partial(self._child, name if subagent is None else subagent.started.name)
        run.children += 1
        try:
            if subagent is not None:
                return await self._go_on(subagent, events, build)
            self._check_depth()
            added = await self._run_hooks("subagent_start", tool_use_id, {"agent_name": name, "prompt": prompt})
            empty = await self._find_empty(tool_use_id)
            child = await self._open(tool_use_id, build, empty, [*events, *_notes(added)])
            return await self._run_child(child, SubagentStarted(tool_use_id, name, child.session_id, prompt))
        finally:
            run.children -= 1

    def _check_depth(self) -> None:
        if self.run.depth >= self._max_depth:
            raise ToolError(
                f"subagents may be nested at most {self._max_depth} deep, and another one would exceed that: do the "
                "work here instead"
            )

    # --- subagents of earlier runs -------------------------------------------------------------------------------------

    async def _find(
        self, started: SubagentStarted, finished: SubagentFinished | None, *, is_open: bool, prompt_follows: bool
    ) -> UnfinishedSubagent | None:
        """Return the subagent of an earlier run if its call or task continues; otherwise record its end and return None.

        If a prompt follows and the subagent has open questions, copy them to the parent's log and return None.
        """
        run, store = self.run, self.run.agent.store
        if not run.view.is_ours(started):  # a foreign log may name any session as its child: do not touch it
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
        if prompt_follows and (questions := _open_questions(store, view)):
            open_ids = {question.question_id for question in run.view.open_questions()}
            new = [question for question in questions if question.question_id not in open_ids]
            await run.record(*(copied_question(each, started.tool_use_id, started.child_session_id) for each in new))
            return None
        if not is_open and _task_id(run.view.calls.get(started.tool_use_id)) is None and not _waits_for_person(view):
            await self._end(started)
            return None
        if finished is None:
            await off_loop(may_block(store), self._charge_tree, started.child_session_id, view)
        budgets = run.parts.services.find(Budgets)
        if budgets is not None and ended is not None and ended.stop_reason == "budget" and not prompt_follows:
            budgets.exhaust(ended.error_message)
        return UnfinishedSubagent(started, view, ended, finished is not None)

    def _check(self, started: SubagentStarted) -> None:
        """Raise `ToolError` if the Task tool no longer accepts this name, because a repeated call could not reach the
        subagent.
        """
        tools, record = self.run.agent.tools, self.run.view.calls.get(started.tool_use_id)
        name = "" if record is None else record.use.name
        if name in tools and isinstance(tools.get(name), TaskTool):
            self._child(started.name, self.run.agent)

    async def _go_on(
        self, subagent: UnfinishedSubagent, events: Sequence[Event], build: BuildSubagent
    ) -> SubagentResult:
        """Resume a subagent where it stopped, or begin it if the process died before its prompt was stored.

        Raises `UnknownOutcomeError` if its session can no longer be opened, or if it is nested too deeply.
        """
        started, notes = subagent.started, list[UserMessage]()
        if not _has_begun(subagent.view):
            payload = {"agent_name": started.name, "prompt": started.prompt}
            notes = _notes(await self._run_hooks("subagent_start", started.tool_use_id, payload))
        try:
            self._check_depth()
            child = await self._open_again(started, build, [*events, *notes])
        except (SessionError, ToolError) as error:
            await self._end(started)
            raise UnknownOutcomeError(_loss(started, str(error))) from error
        child.steps = _steps(child.view)
        return await self._run_child(child, started, is_new=False)

    async def _open_again(self, started: SubagentStarted, build: BuildSubagent, events: Sequence[Event]) -> Run:
        """Open the session of a subagent; if its holder may have died on another host, wait until that is certain."""
        opened = partial(self._open, started.tool_use_id, build, started.child_session_id, events)
        try:
            return await opened()
        except SessionLockedError as error:
            if error.retry_after_s is None:
                raise
            await self.run.agent.clock.sleep(error.retry_after_s)
            return await opened()

    async def _find_empty(self, tool_use_id: str) -> str | None:
        """Find the empty session that an earlier attempt of this call created, or None.

        The process died before the parent's log named that session.
        """
        run, store = self.run, self.run.agent.store
        record = run.view.calls.get(tool_use_id)
        is_again = record is not None and (record.attempts > 1 or tool_use_id in self._unbegun)
        if not is_again or not isinstance(store, SessionStore):
            return None

        def find() -> str | None:
            for name in store.list_children(run.session_id):
                metadata = store.read_metadata(name)["metadata"]
                if metadata.get("parent_tool_use_id") == tool_use_id and store.last_seq(name) == 0:
                    return name
            return None

        session_id: str | None = await off_loop(True, find)
        return session_id

    async def _fetch(self, started: SubagentStarted) -> SubagentResult:
        """Return the result of a background subagent that ended in an earlier process and whose result was not fetched."""
        store = self.run.agent.store
        view: SessionView = await off_loop(may_block(store), _child_view, self.run, started)
        ended = _end_of(view, _interrupted(started))
        assert ended is not None, "the log records that it has ended"
        return await self._finish(started, view, ended, is_recorded=True)

    def _work_behind(self, tool_use_id: str, name: str, prompt: str) -> None:
        """Run a subagent in the background, under the task id that the model already has."""
        task_id = _task_id(self.run.view.calls.get(tool_use_id))
        if task_id is not None:
            self._tasks().start(name, self.spawn(tool_use_id, name, prompt), task_id)

    def _tasks(self) -> RunTasks:
        return self.run.parts.services.get(RunResources).get(RunTasks)

    async def _report_on(self, subagent: UnfinishedSubagent) -> None:
        """Continue a background subagent that waited for a person, and report its result to the model."""
        started = subagent.started
        try:
            done = await self.spawn(started.tool_use_id, started.name, started.prompt)
        except UnknownOutcomeError as error:
            done = SubagentResult("", started.child_session_id, "interrupted", str(error))
        await self.run.record(self._report(started, done))

    def _report(self, started: SubagentStarted, done: SubagentResult) -> UserMessage:
        """Store the result of a background subagent of an earlier run; return the message that tells the model."""
        task_id = _task_id(self.run.view.calls.get(started.tool_use_id))
        if task_id is not None:
            self._tasks().put(task_id, started.name, done)
        description = dumps_json({"task_id": task_id, **describe_result(started.name, done)})
        return UserMessage(f"A subagent that worked in the background has ended: {description}", origin="task")

    async def _record_loss(
        self, started: SubagentStarted, why: str, finished: SubagentFinished | None, *, is_open: bool
    ) -> None:
        """Record that a subagent cannot continue: its end, unless None, and the result of its call, if that is open."""
        result = [unknown_result(started.tool_use_id, _loss(started, why))] if is_open else []
        await self.run.record(*([] if finished is None else [finished]), *result)

    async def _end(self, started: SubagentStarted) -> None:
        await self.run.record(await self._ended(started))

    async def _ended(self, started: SubagentStarted) -> SubagentFinished:
        """Close the log of a subagent that nobody continues, charge its spending; return its end for the parent's log."""
        run = self.run
        end = partial(end_abandoned, also_parked=True)
        finished: SubagentFinished = await off_loop(True, end, run.agent.store, started, run.agent.seal)
        self._charge(started.child_session_id, finished.usage, finished.cost_usd)
        return finished

    def _charge_tree(self, session_id: str, view: SessionView) -> None:
        """Charge a continuing subagent's spending and that of its own open subagents, which its log does not include."""
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

    # --- running subagents ---------------------------------------------------------------------------------------------

    def _is_suspended(self) -> bool:
        """Whether the process was asked to end, so that the run continues elsewhere."""
        stopping = self.run.lifetime.stopping
        return stopping.asked == "suspend" or (stopping.soon and stopping.asked is None)

    async def _open(self, tool_use_id: str, build: BuildSubagent, resume: str | None, events: Sequence[Event]) -> Run:
        run = self.run
        agent = build(run.agent)
        project = run.parts.services.find(ProjectPart)
        if project is not None:  # tools that the parent's active skills remove are removed from its subagents too
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
            # Cancelled before its first event: its session exists, and would be one in which no run ever began.
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
            await close_run(child)
        if result.stop_reason == "waiting":
            await self._park(child, started.tool_use_id)
            raise RunStopped("waiting", result.error_message or "a subagent is waiting for an answer")
        if self._is_suspended() and result.stop_reason in _GOES_ON:
            raise RunStopped(result.stop_reason, result.error_message or "")
        return await self._finish(started, child.view, result)

    async def _finish(
        self, started: SubagentStarted, view: SessionView, result: Result, *, is_recorded: bool = False
    ) -> SubagentResult:
        """Record a subagent's answers and end in the parent's log, and run the hooks; return the result for its caller."""
        run, tool_use_id = self.run, started.tool_use_id
        for question in run.view.open_questions():
            if question.tool_use_id == tool_use_id:
                answer = view.answers.get(question.question_id) or UserAnswer(question.question_id, "")
                await run.record(UserAnswer(question.question_id, answer.answer, answer.answered_by, answer.approver))
        if not is_recorded:
            # Before the hooks and the call's result: the next run finds a subagent that ended without a result by this
            # event.
            await run.record(replace(_interrupted(started, view), stop_reason=result.stop_reason))
        value = result.structured_output
        text = result.final_text if value is None else dumps_json(value)
        await self._run_hooks("subagent_stop", tool_use_id, {"agent_name": started.name, "final_text": text})
        return SubagentResult(text, started.child_session_id, result.stop_reason, result.error_message)

    async def _park(self, child: Run, tool_use_id: str) -> None:
        """Copy the questions that a subagent waits for to its parent's log, where the person who answers finds them."""
        run = self.run
        open_ids = {question.question_id for question in run.view.open_questions()}
        for question in child.view.open_questions():
            if question.tool_use_id not in child.questions.parked:
                continue
            copied = copied_question(question, tool_use_id, child.session_id)
            run.questions.park(copied)
            if question.question_id not in open_ids and question.question_id not in child.view.answers:
                await run.record(copied)

    async def _run_hooks(self, point: str, tool_use_id: str, payload: Mapping[str, Any]) -> str | None:
        """Run the hooks; return the context that they add for the subagent. Raises `ToolError` if one blocks it.

        Decisions recorded before a crash are reused: hooks run only once for a subagent.
        """
        hook_events = list(_hook_events(self.run.view, point, tool_use_id))
        if not hook_events:
            _, decision = await self.run.hooks.run(point, payload, tool_use_id=tool_use_id)
            if decision is not None and (decision.block or (decision.stops and point == "subagent_start")):
                raise ToolError(decision.block_reason or "a hook blocked this subagent")
            return decision.additional_context if decision is not None else None
        for event in hook_events:
            stops = point == "subagent_start" and event.details.get("stops")
            if "block_reason" in event.details or stops or event.details.get("fails") == "closed":
                why = event.details.get("block_reason") or event.error_message
                raise ToolError(why or "a hook blocked this subagent")
        contexts = [
            event.details["additional_context"] for event in hook_events if "additional_context" in event.details
        ]
        return "\n".join(contexts) or None


# The folds that are read from the log of a subagent of an earlier run.
_READ = (SubagentsFold, UntrustedFold)


def _child_view(run: Run, started: SubagentStarted) -> SessionView:
    """Load the session of a subagent. Raises `SessionError` if it is missing or belongs to another session."""
    store, session_id = run.agent.store, started.child_session_id
    parent_id = store.read_metadata(session_id)["metadata"].get("parent_session_id", run.session_id)
    if parent_id != run.session_id:
        raise SessionError(f"its session belongs to session {parent_id!r}", session_id=session_id)
    return load_view(store, session_id, _READ, seal=run.agent.seal)[0]


def _end_of(view: SessionView, finished: SubagentFinished | None) -> Result | None:
    """The result of a subagent; None if it continues. Raises `SessionError` for an end that another installation wrote."""
    for event in reversed(view.events):
        if isinstance(event, Result) and (finished is not None or event.stop_reason not in _GOES_ON):
            if not view.is_ours(event):
                raise SessionError(f"session {event.session_id!r} was changed by another writer")
            return event
        if isinstance(event, Result | SystemInit):
            break
    return None if finished is None else Result("", finished.child_session_id, finished.stop_reason)


def _has_begun(view: SessionView) -> bool:
    """Whether a subagent's log contains its prompt."""
    return view.steps > 0 or any(isinstance(event, UserMessage) for event in view.events)


def _waits_for_person(view: SessionView) -> bool:
    return any(view.has_asked(record.use.tool_use_id) for record in view.open_calls())


def _steps(view: SessionView) -> int:
    """The number of model answers that a subagent has received, including those in earlier processes."""
    # After a compaction, older responses are no longer in `view.events`; `view.steps` still counts all requests, and the
    # last one may have no answer.
    answers = sum(isinstance(event, ModelResponse) and event.complete for event in view.events)
    return max(answers, view.steps - 1) if view.conversation.horizon else answers


def _finished_in(view: SessionView) -> Iterator[tuple[SubagentStarted, SubagentFinished]]:
    """Yield the subagents that had ended when the process died, before the results of their calls were stored."""
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
    """The current turn's calls whose subagents run in the background, each with its start event, if it has one."""
    started: dict[str, SubagentStarted] = {}
    records: list[CallRecord] = []
    for event in reversed(view.events):
        if isinstance(event, SubagentStarted):
            started[event.tool_use_id] = event
        elif isinstance(event, ToolResult):
            record = view.calls.get(event.tool_use_id)
            records += [record] if record is not None and _task_id(record) is not None else []
        elif isinstance(event, UserMessage) and event.origin == "user":
            break
        elif isinstance(event, Result) and state_after(event) == "over":
            break  # background work of that run ended with it
    return [(record, started.get(record.use.tool_use_id)) for record in reversed(records)]


def _task_id(record: CallRecord | None) -> str | None:
    """The id of the background task that a call started, None if it started none."""
    return None if record is None else running_task(record.use, record.result)


def _hook_events(view: SessionView, point: str, tool_use_id: str) -> Iterator[HookEvent]:
    """Yield the hook events of this point since the call was last requested."""
    record = view.calls.get(tool_use_id)
    request_seq = 0 if record is None else record.use.seq or 0
    for event in view.events:
        if isinstance(event, HookEvent) and (event.hook_point, event.tool_use_id) == (point, tool_use_id):
            yield from [event] if (event.seq or 0) > request_seq else []


def _notes(added: str | None) -> list[UserMessage]:
    """The message with the hooks' context directly after a subagent's prompt; empty if they added none."""
    return [UserMessage(added, origin="hook")] if added else []


def _interrupted(started: SubagentStarted, view: SessionView | None = None) -> SubagentFinished:
    totals: dict[str, Any] = {"cost_usd": 0.0}
    if view is not None:
        untrusted = list(view.fold(UntrustedFold).sources)
        totals = {"usage": view.usage, "cost_usd": view.cost_usd, "untrusted": untrusted}
    return SubagentFinished(started.tool_use_id, started.name, started.child_session_id, "interrupted", **totals)


def _loss(started: SubagentStarted, why: str) -> str:
    """The text for the model about a subagent that cannot continue."""
    return (
        f"The process died while the subagent {started.name!r} (session {started.child_session_id}) was at work, and it "
        f"cannot continue: {why}. Whatever it had done by then remains done: check before repeating it."
    )


def _open_questions(store: StoreCore, child: SessionView) -> list[UserQuestion]:
    """The open questions of a subagent, and those that are only in the logs of its own subagents."""
    questions = {question.question_id: question for question in child.open_questions()}
    for started in child.fold(SubagentsFold).open.values():
        with suppress(SessionError):
            inner = SessionView((SubagentsFold,)).extend(store.iter_events(started.child_session_id))
            questions.update({question.question_id: question for question in _open_questions(store, inner)})
    return list(questions.values())
