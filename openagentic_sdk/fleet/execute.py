"""One claimed run, from the look at its log to the last step of its row."""

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
from ..kernel.prompt import Said
from ..kernel.recorder import off_loop
from ..options import OpenAgenticOptions
from ..parts.record.abandoned import end_session
from ..prompts import read_prompt
from ..runs.background import BackgroundRun, submit
from ..sessions.base import SessionStore
from ..sessions.core import TENANT_KEY
from ..sessions.seal import Seal
from .children import RUN_OF_STEP, StepRuns, is_run_of_step, tell_end
from .fleet import Fleet
from .lease import Lease
from .prepare import rated_options, within_budget, workspace_of
from .record import OVER, FleetRun, Outcome
from .standing import Standing, ended_itself, look, parked, used_behind

# How long a run is left alone whose session somebody else uses, or whose store refused.
BUSY_S = 1.0
REFUSED_S = 2.0
MAX_ERROR_CHARS = 1000


async def carry_out(fleet: Fleet, lease: Lease, draining: asyncio.Event, grace_s: float) -> Outcome | None:
    """Go on with a run until it is over, parked or handed back, and say so in its row; None when the lease was lost.

    When `draining` is set, what runs may come to the end of its step for `grace_s` seconds, and is handed back then.
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
        # Somebody else uses it, has made it, or has taken it back just now: the log is looked at anew.
        outcome = Outcome("queued", error=_words(error), delay_s=BUSY_S)
    except StorageError as error:
        outcome = Outcome("queued", error=_words(error), delay_s=REFUSED_S)
    except asyncio.CancelledError:
        await settled(_leave(fleet, lease, Outcome("queued"), standing.after_seq))
        raise
    except Exception as error:  # noqa: BLE001 - options, hooks and providers are the caller's: the row says what they raised
        outcome = Outcome("failed", "error", _words(error))
    return outcome if await _leave(fleet, lease, outcome, standing.after_seq) else None


async def _leave(fleet: Fleet, lease: Lease, outcome: Outcome, after_seq: int) -> bool:
    """Say in the row what became of the run, and what it used behind that event; False when it is another's."""
    run = lease.run
    if lease.is_lost:
        return False
    try:
        with suppress(LogCorruptError, SessionNotFoundError):
            outcome = replace(outcome, used=await off_loop(True, used_behind, fleet.store, run.session, after_seq))
        if run.tenant and fleet.queue.limits.are_any:
            # Without an event nothing was asked of a model.
            cost_usd = 0.0 if outcome.used is None else outcome.used.cost_usd
            await off_loop(True, fleet.queue.limits.settle, run.id, run.fence, run.tenant, cost_usd)
        if outcome.state in OVER:  # before its row says so: what dies in between is done again
            await tell_end(fleet, run, outcome)
        return bool(await off_loop(True, partial(fleet.queue.leave, run, outcome, patience_s=lease.left_s)))
    except (StorageError, SessionLockedError, LeaseLostError, ConcurrencyError):
        return False  # the next worker finds in the log what became of it


async def _go_on(fleet: Fleet, lease: Lease, standing: Standing, draining: asyncio.Event, grace_s: float) -> Outcome:
    run, store = lease.run, fleet.store
    if lease.is_cancelled or run.attempts > run.max_attempts:
        if standing.is_said:
            await off_loop(True, end_log, store, run, fleet.agents.options(run.agent).key_file)
        if lease.is_cancelled:
            return Outcome("cancelled", "interrupted")
        lost = f"{run.max_attempts} workers died or hung while they ran it, the last one was {run.lost_owner}"
        return Outcome("failed", "error", lost)
    if run.told is not None and run.is_step and not await off_loop(True, store.session_exists, run.told[0]):
        return Outcome("cancelled", "interrupted", "the workflow whose step it was has been deleted")
    options = rated_options(fleet, run, run_options(fleet, run, standing))
    affordable: OpenAgenticOptions | Outcome = await off_loop(
        True, within_budget, fleet, run, options, standing.cost_usd
    )
    if isinstance(affordable, Outcome):
        return affordable
    async with workspace_of(fleet, lease, affordable, draining) as options:
        lease.check()
        background = submit(None if standing.is_said else _named_prompt(fleet, run), options, guard=lease.check)
        await _attend(background, lease, draining, grace_s)
        lease.check()
        return await _ending(store, lease, background, options.key_file)


def run_options(fleet: Fleet, run: FleetRun, standing: Standing) -> OpenAgenticOptions:
    """The options of a run: the registry's, what its client wished, and where it goes on."""
    place: dict[str, Any] = {"resume": run.session} if standing.is_there else {"session_id": run.session}
    ours: dict[str, Any] = {"session_store": fleet.store, "on_storage_error": "stop"}
    ours["traceparent"] = run.traceparent
    metadata = {TENANT_KEY: run.tenant} if run.tenant else {}
    if run.told is not None and run.is_step:
        metadata |= {"parent_session_id": run.told[0], "parent_tool_use_id": RUN_OF_STEP, "agent_name": run.agent}
    options = fleet.agents.options(run.agent, run.wishes, **ours, **place, session_metadata=metadata)
    steps = cast(Any, partial(StepRuns, fleet=fleet, row=run))
    return replace(options, parts=(*options.parts, steps))


def _named_prompt(fleet: Fleet, run: FleetRun) -> Said | None:
    """The prompt under its request id, which the queue keeps unique among those of its tenant."""
    if run.prompt is None:
        return None
    may_name = fleet.agents[run.agent].client_files
    return replace(read_prompt(run.prompt, paths=False), request_id=run.request_id, names_files=may_name)


async def _attend(background: BackgroundRun, lease: Lease, draining: asyncio.Event, grace_s: float) -> None:
    """Wait until it has ended; end it when its lease is lost or somebody wants that, and suspend it for a drain."""
    over = asyncio.ensure_future(background.over())
    signals = {asyncio.ensure_future(lease.changed.wait()), asyncio.ensure_future(draining.wait())}
    suspending: asyncio.Future[None] | None = None
    try:
        while not over.done():
            await asyncio.wait({over, *signals}, return_when=asyncio.FIRST_COMPLETED)
            signals = {signal for signal in signals if not signal.done()}
            if lease.changed.is_set():
                await background.cancel()
            elif draining.is_set() and suspending is None:
                suspending = asyncio.ensure_future(background.suspend(grace_s))
    except asyncio.CancelledError:
        await background.suspend()
        raise
    finally:
        for left in (over, *signals):
            left.cancel()
        if suspending is not None:
            await suspending


async def _ending(store: SessionStore, lease: Lease, background: BackgroundRun, key_file: str | None) -> Outcome:
    """The next state of a run that this process gives up."""
    if background.state == "cancelled":
        return Outcome("cancelled", "interrupted") if lease.is_cancelled else Outcome("queued")
    result = await background.wait()
    if result.stop_reason == "waiting":
        outcome: Outcome = await off_loop(True, parked, store, lease.run.session, background.last_seq, key_file)
        return outcome
    if result.stop_reason in ("interrupted", "suspended"):
        is_over = result.stop_reason == "interrupted" and await off_loop(True, ended_itself, store, lease.run.session)
        return Outcome("cancelled", "interrupted") if lease.is_cancelled or is_over else Outcome("queued")
    if result.state == "failed":
        # A store that refused has no result: then the run is not over.
        standing: Standing = await off_loop(True, look, store, lease.run)
        return standing.outcome or Outcome("queued", error=_words(result.error), delay_s=REFUSED_S)
    return Outcome("ended", result.stop_reason, None if result.success else _words(result.error))


def _take_over(store: SessionStore, session: str) -> None:
    """Keep the process that ran it, and its subagents, from writing, in case it still lives."""
    with suppress(SessionNotFoundError):
        store.take_over(session).close()
        for child in store.list_children(session):
            if store.is_held(child) and not is_run_of_step(store, child):
                _take_over(store, child)


def end_log(store: SessionStore, run: FleetRun, key_file: str | None) -> None:
    """Close what a run left open in its log, so that the session can be used. Raises `SessionLockedError`."""
    by = f"interrupted by {run.cancelled_by or 'the fleet'}"
    with suppress(SessionNotFoundError):
        end_session(store, run.session, Seal(key_file), also_parked=True, answered_by=by)


def _words(error: BaseException | str | None) -> str:
    text = ": ".join(error_words(error)) if isinstance(error, BaseException) else error or "error"
    if isinstance(error, OpenAgentSdkError):
        text = str(error)
    return on_one_line(text, MAX_ERROR_CHARS)
