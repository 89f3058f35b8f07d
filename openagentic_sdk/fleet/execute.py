"""Execute one claimed run, from reading its log to updating its row."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

from ..errors import (
    ConcurrencyError,
    LeaseLostError,
    LogCorruptError,
    OpenAgentSdkError,
    RunLostError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from ..ground.text import on_one_line
from ..ground.threads import error_words, settled
from ..ground.words import plural
from ..kernel.prompt import Said
from ..kernel.recorder import off_loop
from ..options import OpenAgenticOptions
from ..parts.record.abandoned import end_session
from ..prompts import read_prompt
from ..runs.background import BackgroundRun, submit
from ..sessions.base import SessionStore
from ..sessions.core import TENANT_KEY
from ..sessions.seal import Seal
from .children import RUN_OF_STEP, StepRuns, is_run_of_step, sources_of_workflow, tell_end
from .fleet import Fleet
from .lease import Lease
from .prepare import rated_options, within_budget, workspace_of
from .record import OVER, FleetRun, RunOutcome
from .standing import Standing, ended_itself, last_outcome, look, parked, refused, usage_after

# The delay before retrying a run whose session is in use, and one whose store cannot be read.
BUSY_S = 1.0
REFUSED_S = 2.0
MAX_ERROR_CHARS = 1000


async def carry_out(fleet: Fleet, lease: Lease, draining: asyncio.Event, grace_s: float) -> RunOutcome | None:
    """Continue a run until it is over, parked or handed back; write this outcome to the run's row and return it.

    None means that the outcome could not be written, in most cases because the lease was lost.

    Once `draining` is set, a running step has `grace_s` seconds to finish before the run is handed back.
    """
    run, store, standing = lease.run, fleet.store, Standing(False)
    try:
        if run.lost_owner:
            await off_loop(True, _take_over, store, run.session)
        standing = await off_loop(True, look, store, run)
        outcome = standing.outcome or await _go_on(fleet, lease, standing, draining, grace_s)
    except (RunLostError, LeaseLostError):
        return None
    except (SessionLockedError, SessionExistsError, SessionNotFoundError) as error:
        # Another process uses, has just created or has just taken over the session: read the log again later.
        outcome = RunOutcome("queued", error=_words(error), delay_s=BUSY_S)
    except StorageError as error:
        outcome = RunOutcome("queued", error=_words(error), delay_s=REFUSED_S)
    except asyncio.CancelledError:
        await settled(_leave(fleet, lease, RunOutcome("queued"), standing.after_seq))
        raise
    except Exception as error:  # noqa: BLE001 - the caller's code may raise anything: the error is stored in the row
        outcome = RunOutcome("failed", "error", _words(error))
    return outcome if await _leave(fleet, lease, outcome, standing.after_seq) else None


async def _leave(fleet: Fleet, lease: Lease, outcome: RunOutcome, after_seq: int) -> bool:
    """Write a run's outcome and its usage after event `after_seq` to its row; return False if it could not be written."""
    run = lease.run
    if lease.is_lost:
        return False
    try:
        with suppress(LogCorruptError, SessionNotFoundError):
            outcome = replace(outcome, used=await off_loop(True, usage_after, fleet.store, run.session, after_seq))
        if run.tenant and fleet.queue.limits.are_any:
            # If there is no event, no request was sent to a model.
            cost_usd = 0.0 if outcome.used is None else outcome.used.cost_usd
            await off_loop(True, fleet.queue.limits.settle, run.id, run.fence, run.tenant, cost_usd)
        if outcome.state in OVER:  # before updating the row: after a crash in between, it is repeated
            await tell_end(fleet, run, outcome)
        # Once the lease has expired, another worker may own the run, so the row must not be written later.
        return bool(await off_loop(True, partial(fleet.queue.leave, run, outcome, patience_s=lease.left_s)))
    except (StorageError, SessionLockedError, LeaseLostError, ConcurrencyError):
        return False  # the next worker finds the outcome in the log


async def _go_on(fleet: Fleet, lease: Lease, standing: Standing, draining: asyncio.Event, grace_s: float) -> RunOutcome:
    run, store = lease.run, fleet.store
    if lease.is_cancelled or run.attempts > run.max_attempts:
        if standing.is_said:
            await off_loop(True, end_log, store, run, fleet.agents.options(run.agent).key_file)
        if lease.is_cancelled:
            return RunOutcome("cancelled", "interrupted")
        reason = f"{plural(run.max_attempts, 'worker')} died or hung while running it, most recently {run.lost_owner}"
        return RunOutcome("failed", "error", reason)
    if run.listener is not None and run.is_step and not await off_loop(True, store.session_exists, run.listener[0]):
        return RunOutcome("cancelled", "interrupted", "the workflow whose step it was has been deleted")
    options = rated_options(fleet, run, run_options(fleet, run, standing))
    affordable: OpenAgenticOptions | RunOutcome = await off_loop(
        True, within_budget, fleet, run, options, standing.cost_usd
    )
    if isinstance(affordable, RunOutcome):
        return affordable
    async with workspace_of(fleet, lease, affordable, draining) as options:
        lease.check()
        # The prompt is in the log already if an earlier worker stored it; to submit it again would be a second turn.
        prompt = None if standing.is_said else await off_loop(True, _named_prompt, fleet, run)
        background = submit(prompt, options, guard=lease.check)
        await _attend(background, lease, draining, grace_s)
        lease.check()
        return await _ending(store, lease, background, options.key_file, standing.after_seq)


def run_options(fleet: Fleet, run: FleetRun, standing: Standing) -> OpenAgenticOptions:
    """The options of a run: those of the registry, those that its client requested, and the session to create or resume."""
    place: dict[str, Any] = {"resume": run.session} if standing.is_there else {"session_id": run.session}
    ours: dict[str, Any] = {"session_store": fleet.store, "on_storage_error": "stop"}
    ours["traceparent"] = run.traceparent
    metadata = {TENANT_KEY: run.tenant} if run.tenant else {}
    if run.listener is not None and run.is_step:
        metadata |= {"parent_session_id": run.listener[0], "parent_tool_use_id": RUN_OF_STEP, "agent_name": run.agent}
    options = fleet.agents.options(run.agent, run.wishes, **ours, **place, session_metadata=metadata)
    steps = cast(Any, partial(StepRuns, fleet=fleet, row=run))
    return replace(options, parts=(*options.parts, steps))


def _named_prompt(fleet: Fleet, run: FleetRun) -> Said | None:
    """The prompt with its request id, which the queue keeps unique within the tenant; None to continue from the log.

    That of a step names what its workflow has read, because it may derive from it, like a subagent's prompt.
    """
    if run.prompt is None:
        return None
    may_name = fleet.agents[run.agent].client_files
    prompt = replace(read_prompt(run.prompt, paths=False), request_id=run.prompt_id, names_files=may_name)
    sources = sources_of_workflow(fleet.store, run)
    return replace(prompt, typed="", names_files=False, sources=sources) if sources else prompt


async def _attend(background: BackgroundRun, lease: Lease, draining: asyncio.Event, grace_s: float) -> None:
    """Wait for the run to end; cancel it on request, and suspend it for a drain or if its lease is lost."""
    over = asyncio.ensure_future(background.over())
    signals = {asyncio.ensure_future(lease.changed.wait()), asyncio.ensure_future(draining.wait())}
    suspending: asyncio.Future[None] | None = None
    try:
        while not over.done():
            await asyncio.wait({over, *signals}, return_when=asyncio.FIRST_COMPLETED)
            signals = {signal for signal in signals if not signal.done()}
            if lease.changed.is_set():
                # Whoever lost the run must not end a question that its next owner asked.
                await (background.suspend() if lease.is_lost else background.cancel())
            elif draining.is_set() and suspending is None:
                suspending = asyncio.ensure_future(background.suspend(grace_s))
    except asyncio.CancelledError:
        await background.suspend()
        raise
    finally:
        for task in (over, *signals):
            task.cancel()
        if suspending is not None:
            await suspending


async def _ending(
    store: SessionStore, lease: Lease, background: BackgroundRun, key_file: str | None, after_seq: int
) -> RunOutcome:
    """Wait for the run's result; return the outcome to release the run with. The run's own events come after `after_seq`."""
    if background.state == "cancelled":
        return RunOutcome("cancelled", "interrupted") if lease.is_cancelled else RunOutcome("queued")
    result = await background.wait()
    if result.stop_reason == "waiting":
        outcome: RunOutcome = await off_loop(True, parked, store, lease.run.session, background.last_seq, key_file)
        return outcome
    if result.stop_reason in ("interrupted", "suspended"):
        is_over = result.stop_reason == "interrupted" and await off_loop(True, ended_itself, store, lease.run.session)
        return RunOutcome("cancelled", "interrupted") if lease.is_cancelled or is_over else RunOutcome("queued")
    if result.state == "failed" or not result.saved:
        # If the store refused an operation, the log has no result: the run is not over.
        standing: Standing = await off_loop(True, look, store, lease.run)
        end = standing.outcome
        if end is None:  # no prompt in the log leads to its result: it had none, or it was refused
            end = await off_loop(True, last_outcome, store, lease.run.session, after_seq)
        if end is None:
            error = _words(result.error or "its result could not be stored")
            end = await off_loop(True, refused, store, lease.run.session, error)
        return end
    return RunOutcome("ended", result.stop_reason, None if result.success else _words(result.error))


def _take_over(store: SessionStore, session: str) -> None:
    """Prevent the run's previous process, if it is still alive, from writing to the session and those of its subagents."""
    with suppress(SessionNotFoundError):
        store.take_over(session).close()
        for child in store.list_children(session):
            # The run of a workflow's step has an owner and a lease of its own.
            if store.is_held(child) and not is_run_of_step(store, child):
                _take_over(store, child)


def end_log(store: SessionStore, run: FleetRun, key_file: str | None) -> None:
    """Close whatever a run left open in its log, so that the session can be used again. Raises `SessionLockedError`."""
    by = f"interrupted by {run.cancelled_by or 'the fleet'}"
    with suppress(SessionNotFoundError):
        end_session(store, run.session, Seal(key_file), also_parked=True, answered_by=by)


def _words(error: BaseException | str | None) -> str:
    text = ": ".join(error_words(error)) if isinstance(error, BaseException) else error or "error"
    if isinstance(error, OpenAgentSdkError):
        text = str(error)
    return on_one_line(text, MAX_ERROR_CHARS)
