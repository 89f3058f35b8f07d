"""Run a suite: cases in parallel up to a limit, each result stored at once as an event of the eval's own session.

Runs that this session records as done are not repeated, and an unfinished run continues in its own session: neither a kill
nor an exhausted budget causes anything to be run or paid for twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import OptionsError, SuiteError
from ..events import EvalCase, EvalStarted, Event, SessionMeta
from ..ground.checks import NAME, TEXTS, Check, check_settings, is_callable, number, or_none
from ..ground.threads import error_words, running_loop
from ..kernel.recorder import may_block, off_loop
from ..parts.budgets import Budget
from ..parts.masking import environment_redactor, mask_event
from ..sessions.base import SessionStore, require_store
from ..sessions.core import SessionWriter
from .apart import Apart
from .judge import names_of
from .plan import EVAL_KEY, EvalJob, jobs_of, plan_cases, planned_before, variants_of
from .play import Player
from .played import Played
from .report import EvalReport, could_not_run, key_of
from .score import score_run
from .scorers import Judge, Score, Scorer
from .suite import Suite, check_suite

MAX_FINAL_CHARS = 4_000
OnEvalProgress = Callable[[EvalReport, Sequence[EvalJob]], None]
_SELECTION: Mapping[str, Check] = {
    "resume": or_none(NAME),
    "cases": TEXTS,
    "variants": TEXTS,
    "repeats": or_none(number(1, whole=True, most=1_000)),
    "parallel": or_none(number(1, whole=True, most=1_000)),
    "max_cost_usd": or_none(number(0)),
    "on_progress": is_callable,
}


async def run_suite(
    suite: Suite,
    *,
    store: SessionStore,
    resume: str | None = None,
    cases: Sequence[str] = (),
    variants: Sequence[str] = (),
    repeats: int | None = None,
    parallel: int | None = None,
    max_cost_usd: float | None = None,
    on_progress: OnEvalProgress = lambda report, running: None,
) -> EvalReport:
    """Run a suite, or with `resume` the remaining runs of that eval; the report includes the results of earlier processes.

    `cases` and `variants` select by name (empty: all); `repeats`, `parallel` and `max_cost_usd` override the suite's.
    `cases`, `variants` and `repeats` cannot be combined with `resume`. `on_progress` is called with the current report
    whenever a run starts or ends. Raises `SuiteError`, `SessionLockedError` if another process runs this eval, and
    `SessionNotFoundError` for an unknown `resume`.
    """
    running_loop("run_suite()")
    require_store(store)
    suite = check_suite(suite)
    _check(
        resume=resume, cases=cases, variants=variants, repeats=repeats, parallel=parallel, max_cost_usd=max_cost_usd,
        on_progress=on_progress,
    )  # fmt: skip
    if resume is None:
        started = await _plan(suite, store, cases, variants, repeats, max_cost_usd)
        session_id: str = await off_loop(may_block(store), _create, store, suite.name, started)
    elif cases or variants or repeats:
        raise SuiteError("a resumed eval keeps its cases, variants and repeats: give none of them")
    else:
        started, session_id = await _began(suite, store, resume), resume
    writer: SessionWriter = await off_loop(may_block(store), store.open_writer, session_id)
    try:
        events = await off_loop(may_block(store), store.read_events, session_id)
        budget = Budget(max_cost_usd=started.max_cost_usd if max_cost_usd is None else max_cost_usd)
        run = _SuiteRun(
            Player(suite, store, session_id, budget), writer, EvalReport.of(session_id, events), on_progress
        )
        plan = planned_before(suite, started.plan)
        jobs = list(jobs_of(plan, suite, started.variants, started.repeats))
        await run.work(jobs, parallel or suite.parallel)
        return run.report
    finally:
        await off_loop(may_block(store), writer.close)


def _check(**selection: Any) -> None:
    """Raise `SuiteError` for a value that does not fit its parameter of `run_suite`."""
    try:
        check_settings(selection, _SELECTION)
    except OptionsError as error:
        raise SuiteError(str(error)) from None


async def _began(suite: Suite, store: SessionStore, session_id: str) -> EvalStarted:
    """Read the event with which an earlier process began an eval. Raises `SuiteError` if the suite has changed."""
    events = await off_loop(may_block(store), store.read_events, session_id)
    started = EvalReport.of(session_id, events).started
    if started.suite_sha256 != suite.digest():
        raise SuiteError(f"the suite has changed since eval {session_id!r} began: start a new eval")
    return started


async def _plan(
    suite: Suite,
    store: SessionStore,
    cases: Sequence[str],
    variants: Sequence[str],
    repeats: int | None,
    max_cost_usd: float | None,
) -> EvalStarted:
    """Plan the runs of a new eval that the caller selected. Raises `SuiteError` for an unknown name."""
    all_variants = variants_of(suite)
    unknown = [name for name in variants if name not in all_variants]
    if unknown:
        raise SuiteError(
            f"unknown variant {unknown[0]!r}: the variants are {', '.join(all_variants)}", source=suite.source
        )
    plan = await off_loop(may_block(store), plan_cases, suite, store)
    chosen_cases = [planned for planned in plan if not cases or planned.id in cases or planned.case.id in cases]
    missing = [name for name in cases if not any(name in (planned.id, planned.case.id) for planned in chosen_cases)]
    if missing:
        raise SuiteError(
            f"unknown case {missing[0]!r}: the cases are {', '.join(p.id for p in plan)}", source=suite.source
        )
    return EvalStarted(
        suite=suite.name,
        suite_sha256=suite.digest(),
        plan=[planned.to_dict() for planned in chosen_cases],
        variants=[name for name in all_variants if not variants or name in variants],
        repeats=repeats or suite.repeats,
        max_cost_usd=suite.max_cost_usd if max_cost_usd is None else max_cost_usd,
        source=suite.source or None,
    )


def _create(store: SessionStore, name: str, started: EvalStarted) -> str:
    session_id = store.create_session(metadata={EVAL_KEY: name})
    store.append_events(session_id, [SessionMeta(title=f"eval {name}", tags=["eval"]), started])
    return session_id


class _SuiteRun:
    """One process's work on an eval."""

    def __init__(self, player: Player, writer: SessionWriter, report: EvalReport, on_progress: OnEvalProgress) -> None:
        self.report = report
        self._player = player
        self._budget = player.budget
        self._writer = writer
        self._apart = Apart()
        self._on_progress = on_progress
        self._running: list[EvalJob] = []
        self._appending = asyncio.Lock()

    async def work(self, jobs: Sequence[EvalJob], parallel: int) -> None:
        """Do the remaining jobs, at most `parallel` at a time, and store how the eval stopped."""
        done = {key_of(event) for event in self.report.runs if not could_not_run(event)}
        remaining = [job for job in jobs if job.key not in done]
        # The cost of earlier processes of this eval counts towards the same budget.
        for event in self.report.runs:
            if event.cost_usd is not None or event.mode != "replay":
                self._budget.charge(event.usage, event.cost_usd)
            for judged in event.scores:
                if judged.get("session_id"):
                    self._budget.charge(None, judged.get("cost_usd"))
        await self._player.charge_unfinished([name for job in remaining for name in self._sessions_of(job)])
        waiting = iter(remaining)
        reason = "interrupted"
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(parallel, len(remaining))):
                    group.create_task(self._take(waiting))
            reason = "budget" if self.report.missing() else "end"
        except BaseExceptionGroup as failures:
            # The first failure ended the group; any others followed from it.
            raise failures.exceptions[0] from None
        finally:
            self._apart.close()
            complaint = (self._budget.complaint() or "") if reason == "budget" else ""
            await self._append(self.report.finished_event(reason, complaint))

    def _sessions_of(self, job: EvalJob) -> Iterator[str]:
        """Yield the ids of the sessions that a run creates: its own, and those of its judges."""
        yield job.session_id(self.report.session_id)
        scorers = self._scorers(job)
        for scorer, name in zip(scorers, names_of(scorers), strict=True):
            if isinstance(scorer, Judge):
                yield job.session_id(self.report.session_id, f"judge {name}")

    def _scorers(self, job: EvalJob) -> list[Scorer]:
        return [*self._player.suite.scores, *job.planned.case.scores]

    async def _take(self, waiting: Iterator[EvalJob]) -> None:
        """Do one job after the other until none is left; skip those that need money once the budget is spent."""
        for job in waiting:
            # A replay costs nothing, so it runs even when the budget is spent.
            if self._budget.complaint() is not None and job.planned.mode != "replay":
                continue
            with self._shown(job):
                event = await self._do(job)
                if event is not None:
                    await self._append(event)

    @contextmanager
    def _shown(self, job: EvalJob) -> Iterator[None]:
        self._running.append(job)
        self._on_progress(self.report, self._running)
        try:
            yield
        finally:
            self._running.remove(job)
            self._on_progress(self.report, self._running)

    async def _append(self, event: Event) -> None:
        async with self._appending:
            masked = mask_event(event, environment_redactor())
            stored_events = await off_loop(may_block(self._player.store), self._writer.append, [masked])
            self.report = self.report.after(stored_events[0])

    async def _do(self, job: EvalJob) -> EvalCase | None:
        """Run and score a job; return None if the budget ended it, so that it can be resumed."""
        began = asyncio.get_running_loop().time()
        event = EvalCase(
            case=job.planned.id, variant=job.variant, repeat=job.repeat, mode=job.planned.mode, passed=False
        )
        try:
            async with asyncio.timeout(self._player.suite.timeout_s + 30):  # the run's own limit takes precedence
                run = await self._player.play(job)
        except Exception as error:  # noqa: BLE001 - a log may come from anywhere: only its case fails, the suite continues
            name, words = error_words(error)
            failed = Score("run", "run", False, 0.0, f"it could not run: {name}: {words}", name)
            return replace(event, scores=[_score_fields(failed)], duration_s=self._since(began))
        if run is None:
            return None
        scores = [*_own_scores(job, run)]
        scorers = self._scorers(job)
        ask_judge = partial(self._player.judge, job)
        for scorer, name in zip(scorers, names_of(scorers), strict=True):
            scores.append(await score_run(scorer, name, run, self._apart, ask_judge))
            if isinstance(scorer, Judge) and scores[-1].error_type == "NoVerdict" and self._budget.complaint():
                return None
        return replace(
            event,
            passed=all(score.passed for score in scores),
            scores=list(map(_score_fields, scores)),
            session_id=run.session_id,
            run_seq=run.run_seq,
            step_seq=run.step_seq,
            response_id=run.response_id,
            stop_reason=run.stop_reason,
            final_text=run.final_text[:MAX_FINAL_CHARS],
            steps=run.steps,
            usage=run.usage,
            cost_usd=0.0 if job.planned.mode == "replay" else run.cost_usd,
            duration_s=self._since(began),
        )

    def _since(self, began: float) -> float:
        return round(asyncio.get_running_loop().time() - began, 3)


def _own_scores(job: EvalJob, run: Played) -> Iterator[Score]:
    """Yield the score that a run gets without a scorer: a replay must equal the recording, others end as the case allows.

    A replay that differs gets none if its case is not `strict`.
    """
    case = job.planned.case
    if run.difference is not None:
        same = not run.difference
        if case.strict or same:
            yield Score("replay", "replay", same, float(same), run.difference[:MAX_FINAL_CHARS] or "as it was recorded")
        return
    ended = run.stop_reason in case.ends
    words = f"it ended with {run.stop_reason}" + (f": {run.error}" if run.error else "")
    yield Score("ended", "ended", ended, float(ended), words[:MAX_FINAL_CHARS])


def _score_fields(score: Score) -> dict[str, object]:
    return {name: value for name, value in vars(score).items() if value is not None}


def run_suite_sync(suite: Suite, *, store: SessionStore, **settings: object) -> EvalReport:
    """Call `run_suite` with these settings from synchronous code, in a new event loop."""
    return asyncio.run(run_suite(suite, store=store, **settings))  # type: ignore[arg-type]
