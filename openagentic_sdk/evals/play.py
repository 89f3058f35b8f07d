"""Run one case once: as a replay, as a what-if, or live; a run that a crash cut off is continued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ..assemble import build_agent, run_request
from ..errors import OptionsError
from ..events import Event, ModelResponse, Result, StopReason, SystemInit, UserMessage
from ..kernel.agent import AgentRuntime, Run
from ..kernel.lifetime import RunStopped
from ..kernel.part import Part
from ..kernel.recorder import may_block, off_loop
from ..kernel.task import RunTask
from ..options import OpenAgenticOptions
from ..parts.budgets import Budget
from ..parts.record.folds.prices import session_cost
from ..parts.record.folds.spending import usage
from ..prompts import Prompt, read_prompts
from ..runs.agent_replay import replay_agent
from ..runs.replay import replay_events
from ..runs.whatif import NEVER_MADE, start_what_if
from ..sessions.base import SessionStore
from .judge import judge_options, question, verdict
from .plan import EVAL_KEY, EvalJob, Planned, prompts_of
from .played import Played, played
from .scorers import Judge, Score
from .suite import Suite


class Player:
    """The shared state of one eval's runs: the suite, the store, the eval's id, and their common budget."""

    def __init__(self, suite: Suite, store: SessionStore, eval_id: str, budget: Budget) -> None:
        self.suite = suite
        self.store = store
        self.eval_id = eval_id
        self.budget = budget

    async def play(self, job: EvalJob) -> Played | None:
        """Run a job and return its run; None if the budget ended it first. Raises `OptionsError`, `SessionError`."""
        if job.planned.mode == "replay":
            return await self._replay(job)
        options = self.suite.options(job.variant)
        if options is None:
            raise OptionsError(f"the suite names no agent, so {job.planned.id} cannot run {job.planned.mode}")
        options = self._in_session(options, job, "run")
        session_id = job.session_id(self.eval_id)
        if job.planned.mode == "live":
            await self._say(options, session_id, await self._prompts(job.planned))
        else:
            await self._run_what_if(job, options, session_id)
        run = played(session_id, await self._read(session_id), is_fork=job.planned.mode == "whatif")
        return None if run.stop_reason == "budget" and self.budget.complaint() else run

    async def judge(self, job: EvalJob, judge: Judge, name: str, run: Played) -> Score:
        """Obtain the verdict on a run from a judge in a separate session; one given before a crash is read again."""
        # One judge for all variants: the judge must not vary with what it judges.
        options = judge_options(judge, self.suite.judged_by(judge, self.suite.base()))
        session_id = job.session_id(self.eval_id, f"judge {name}")
        await self._say(self._in_session(options, job, f"judge {name}"), session_id, [question(judge, run)])
        return verdict(judge, name, played(session_id, await self._read(session_id)))

    # --- how a case runs ---------------------------------------------------------------------------------------------

    async def _replay(self, job: EvalJob) -> Played:
        recorded = await off_loop(may_block(self.store), job.planned.recorded, self.suite, self.store)
        options = self.suite.options(job.variant, offline=True)
        if options is None:
            report = await replay_events(recorded, strict=False)
            words = [f"step {each.step} makes a different request:\n{each.diff}" for each in report.differences]
            words += [report.error] if report.error else []
            if report.compared < report.steps:
                words.append(f"{report.steps - report.compared} of {report.steps} recorded requests were not repeated")
            events, text = report.events, "\n".join(words)
        else:
            replay = await replay_agent(recorded, options, live_tools=self.suite.live_tools)
            events, text = replay.events, replay.text
        return played(job.planned.session_id, events, spent=recorded, difference=text)

    async def _run_what_if(self, job: EvalJob, options: OpenAgenticOptions, session_id: str) -> None:
        case = job.planned.case
        source_id = job.planned.session_id or await self._imported_source(job.planned)
        prompts = prompts_of(await self._read(source_id))
        at_seq = case.at or (prompts[0].seq if prompts else None)
        if at_seq is None:
            raise OptionsError(f"session {source_id!r} has no prompt to continue from: set `at`")
        if not await off_loop(may_block(self.store), self.store.session_exists, session_id):
            options = replace(options, session_id=session_id)
        elif ended_by(await self._read(session_id)) is not None:
            return
        else:
            options = replace(options, resume=session_id)
        agent = self._metered(build_agent(options))
        await self._drive(await start_what_if(agent, options, source_id, at_seq, None, case.on_new))

    async def _say(self, options: OpenAgenticOptions, session_id: str, prompts: Sequence[str]) -> None:
        """Send the prompts one after the other, as long as runs end normally; those sent before a crash are not repeated."""
        count = 0
        if await off_loop(may_block(self.store), self.store.session_exists, session_id):
            before = await self._read(session_id)
            options = replace(options, resume=session_id)
            count = len(prompts_of(before))
            reason = ended_by(before)
            if count and reason is None:
                reason = (await self._run(options, None)).stop_reason
            if count and reason != "end":
                return
        else:
            options = replace(options, session_id=session_id)
        for prompt in prompts[count:]:
            result = await self._run(options, prompt)
            if result.stop_reason != "end":
                return
            options = replace(options, session_id=None, resume=session_id)

    async def _run(self, options: OpenAgenticOptions, prompt: Prompt) -> Result:
        agent = self._metered(build_agent(options))
        return await self._drive(await RunTask.start(agent, run_request(options, agent), read_prompts(prompt)))

    async def _drive(self, task: RunTask) -> Result:
        async with task:
            while (event := await task.next_event()) is not None:
                if isinstance(event, ModelResponse) and (event.usage is not None or event.complete):
                    self.budget.charge(event.usage, event.cost_usd)
            return await task.result()

    def _metered(self, agent: AgentRuntime) -> AgentRuntime:
        """The agent, modified to stop calling models once all runs together have spent the budget."""
        return replace(agent, parts=(partial(_SharedBudget, budget=self.budget), *agent.parts))

    # --- prerequisites of a run --------------------------------------------------------------------------------------

    def _in_session(self, options: OpenAgenticOptions, job: EvalJob, part: str) -> OpenAgenticOptions:
        metadata = {EVAL_KEY: self.eval_id, "eval_case": job.planned.id, "eval_variant": job.variant, "eval_part": part}
        limits = [seconds for seconds in (options.timeout_s, self.suite.timeout_s) if seconds is not None]
        return replace(
            options,
            session_store=self.store,
            session_metadata={**options.session_metadata, **metadata},
            timeout_s=min(limits),
            resume=None,
            continue_last=False,
            session_id=None,
            request_id=None,
        )

    async def _prompts(self, planned: Planned) -> list[str]:
        if planned.case.prompt is not None:
            return [planned.case.prompt]
        recorded = await off_loop(may_block(self.store), planned.recorded, self.suite, self.store)
        prompts = prompts_of(recorded)
        if any(prompt.attachments for prompt in prompts):
            raise OptionsError(
                f"the prompts of {planned.id} have attachments, which a live run does not send again: use whatif"
            )
        return [prompt.text for prompt in prompts]

    async def _imported_source(self, planned: Planned) -> str:
        """Import a log file into this store, where a what-if can fork it; return the session's id."""
        session_id = EvalJob(planned=planned, variant="", repeat=0).session_id(self.eval_id, "source")
        if not await off_loop(may_block(self.store), self.store.session_exists, session_id):
            recorded = planned.recorded(self.suite, self.store)
            numbered = [replace(event, seq=number) for number, event in enumerate(recorded, 1)]
            import_log = partial(self.store.import_session, session_id, numbered, metadata={EVAL_KEY: self.eval_id})
            await off_loop(may_block(self.store), import_log)
        return session_id

    async def _read(self, session_id: str) -> list[Event]:
        events: list[Event] = await off_loop(may_block(self.store), self.store.read_events, session_id)
        return events

    async def charge_unfinished(self, session_ids: Sequence[str]) -> None:
        """Charge the budget for runs that an earlier process began but did not finish."""
        for session_id in session_ids:
            if await off_loop(may_block(self.store), self.store.session_exists, session_id):
                events = await self._read(session_id)
                if (run_usage := usage(events)) is not None:
                    self.budget.charge(run_usage, session_cost(events))


class _SharedBudget(Part):
    """A part that ends a run before its next step once all runs of the eval together have spent the budget."""

    def __init__(self, run: Run, budget: Budget) -> None:
        super().__init__(run)
        self._budget = budget

    async def before_step(self) -> None:
        complaint = self._budget.complaint()
        if complaint is not None:
            raise RunStopped("budget", f"for all runs of this eval together: {complaint}")


def ended_by(events: Sequence[Event]) -> StopReason | None:
    """The stop reason of a session's last run; None if its process or the budget ended it, so that it can be resumed."""
    for event in reversed(events):
        if isinstance(event, Result):
            was_cut = event.stop_reason in ("interrupted", "suspended") and not (event.error_message or "").endswith(
                NEVER_MADE
            )
            return None if was_cut or event.stop_reason == "budget" else event.stop_reason
        if isinstance(event, SystemInit | UserMessage):
            return None
    return None
