"""A desk that runs nothing itself: requests are queued for a fleet, whose workers run them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ..agents import AGENT_KEY
from ..errors import FleetError, QuestionOpenError, RequestRefusedError, SessionExistsError
from ..fleet.fleet import Fleet
from ..fleet.record import OPEN, FleetRun, id_in_session
from ..kernel.prompt import Said
from ..kernel.recorder import off_loop
from ..options import OpenAgenticOptions
from ..prompts import OnePrompt
from ..runs.abandoned import WISHES_KEY
from ..sessions.core import TENANT_KEY
from ..sessions.folds.standing import Request, RequestState
from ..sessions.folds.summary import SessionSummary
from ..sessions.resume import load_view
from .desk import Desk, Started, is_request_known, other_body, request_id_of
from .guard import Principal
from .messages import read_message


class FleetDesk(Desk):
    """A desk for the agents and the store of `fleet`. Its operations return once the run is queued."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet.agents, fleet.store)
        self.is_queue = True
        self._fleet = fleet

    async def steer(self, who: Principal, session_id: str, prompt: OnePrompt, *, key: str | None = None) -> None:
        """Queue a message for a session with a run in progress: it becomes the next prompt, or closes that run's question.

        Raises `RequestRefusedError` 409 if no run is in progress, and `QuestionOpenError` if questions are open that the
        principal may not answer.
        """
        self._check_open()
        metadata = await self._metadata(who, session_id)
        request_id = request_id_of(key, "messages", session_id, prompt)
        message = replace(read_message(prompt), request_id=request_id, may_answer=who.may_answer)
        is_known = await is_request_known(self.store, session_id, request_id, key)
        if is_known or await self._is_queued(session_id, request_id, key):
            return
        await self._check_may_prompt(message, session_id)
        if not await self._fleet.runs(states=OPEN, session=session_id, limit=1):
            raise RequestRefusedError(409, "no run is in progress in this session: send a prompt", "no_run")
        agent = metadata.get(AGENT_KEY) or self.agents.default
        wishes, tenant = metadata.get(WISHES_KEY), metadata.get(TENANT_KEY, "")
        await self._enqueue(agent, message, session_id, request_id, tenant, wishes)

    async def cancel(self, who: Principal, session_id: str, *, request_id: str | None = None) -> bool:
        """End all runs of a session permanently, wherever they are, or the one with this request id if it is open.

        Return False if there are none.
        """
        await self._metadata(who, session_id)
        if await self._cancel_runs(session_id, who.name, lambda run: request_id in (None, run.prompt_id)):
            return True
        # The request may be in the log already; then a run without a prompt continues it. Others must not end with it.
        if request_id is not None and await self._fleet.runs(states=OPEN, session=session_id, limit=1):
            return await self._cancel_runs(session_id, who.name, lambda run: run.prompt is None)
        return await super().cancel(who, session_id)

    async def delete(self, who: Principal, session_id: str, *, confirmed: str) -> list[str]:
        """Delete the session as in `Shelf.delete`, and end its queued runs: each would create the session again."""
        deleted = await super().delete(who, session_id, confirmed=confirmed)
        for name in deleted:
            await self._cancel_runs(name, who.name, lambda run: True)
        return deleted

    async def _cancel_runs(self, session_id: str, cancelled_by: str, is_meant: Callable[[FleetRun], bool]) -> bool:
        """End the open runs of a session that are meant, the newest first, so that none begins meanwhile.

        Return whether any was open.
        """
        runs = await self._fleet.runs(states=OPEN, session=session_id, limit=None)
        return any([await self._fleet.cancel(run.id, cancelled_by=cancelled_by) for run in runs if is_meant(run)])

    async def begin_run(
        self,
        session_id: str,
        prompt: Said | None,
        options: OpenAgenticOptions,
        *,
        is_stored: bool = False,
        guard: Callable[[], None] | None = None,
    ) -> None:
        """Queue a run, and create its session if it is new; without a prompt, wake the session's open runs if it has any.

        `is_stored` and `guard` have no effect.
        """
        if options.resume is None:
            new_metadata = {"cwd": options.cwd, "model": options.model, **options.session_metadata}
            # The same request may have arrived twice at the same time: the queue recognizes it by its id.
            with suppress(SessionExistsError):
                await off_loop(True, lambda: self.store.create_session(metadata=new_metadata, session_id=session_id))
        runs = await self._fleet.runs(states=OPEN, session=session_id, limit=None) if prompt is None else []
        for run in runs:
            await off_loop(True, self._fleet.queue.wake, run.id, run.parked_seq)
        if runs:
            return
        if prompt is not None:
            await self._check_may_prompt(prompt, session_id)
        metadata = (await off_loop(True, self.store.read_metadata, session_id))["metadata"]
        run_metadata = options.session_metadata
        request_id = options.request_id if prompt is None else prompt.request_id
        wishes = (metadata if prompt is None else run_metadata).get(WISHES_KEY)
        await self._enqueue(
            run_metadata[AGENT_KEY], prompt, session_id, request_id, metadata.get(TENANT_KEY, ""), wishes
        )

    async def _enqueue(
        self,
        agent: str,
        prompt: Said | None,
        session_id: str,
        request_id: str | None,
        tenant: str,
        wishes: Mapping[str, Any] | None,
    ) -> None:
        """Queue a run, or retry the run of the same request if it failed.

        A client's request id is unique in its session, and a fleet's in the whole tenant.
        """
        body = None if prompt is None else _as_prompt(prompt)
        enqueue = partial(self._fleet.enqueue, agent, body, session=session_id, tenant=tenant, wishes=wishes)
        enqueue = partial(enqueue, must_exist=True)  # or a run would create again what was deleted
        try:
            run_id = await enqueue(request_id=request_id)
        except FleetError as error:
            if request_id is None or error.run_id is None:
                raise
            if (await self._fleet.status(error.run_id)).session == session_id:
                raise RequestRefusedError(422, str(error), "key_reused") from None
            run_id = await enqueue(request_id=id_in_session(request_id, session_id))
        with suppress(FleetError):  # it ended by itself, or the session has continued since
            while (await self._fleet.status(run_id)).is_over:
                run_id = await self._fleet.retry(run_id)

    async def _earlier(
        self, session_id: str, request_id: str, key: str | None, message: Said | None, *, is_there: bool
    ) -> Started | None:
        """As in `Desk`, and also find a request that is queued and not in the log yet."""
        earlier = await super()._earlier(session_id, request_id, key, message, is_there=is_there)
        if key is None or not is_there or (earlier is not None and not earlier.is_new):
            return earlier
        if not await self._is_queued(session_id, request_id, key):
            return earlier
        last_seq = (await off_loop(True, self.store.read_summary, session_id)).events
        return Started(session_id, request_id, last_seq, is_new=False)

    async def row(self, who: Principal, session_id: str) -> SessionSummary:
        """As in `Desk`; a session whose next run is queued counts as running."""
        row = await super().row(who, session_id)
        is_at_rest = row.state not in ("running", "waiting")
        return replace(row, state="running") if is_at_rest and await self.has_queued(session_id) else row

    async def has_queued(self, session_id: str) -> bool:
        """Whether a worker is about to begin or to continue a run of the session."""
        runs = await self._fleet.runs(states=OPEN, session=session_id, limit=None)
        # What was queued before a run parked waits behind it.
        parked_at = max((run.run_at for run in runs if run.state == "waiting"), default=0.0)
        runs = [run for run in runs if run.state != "waiting" and run.created_at >= parked_at]
        if any(run.state == "queued" for run in runs):
            now = await off_loop(True, self._fleet.queue.now)
            if any(run.state == "queued" and (not run.is_parked or run.run_at <= now) for run in runs):
                return True
        claimed_ids = {run.prompt_id for run in runs if run.state == "running" and run.prompt is not None}
        # A run that has begun is in the log, and its row says `running` until a little after its end.
        return bool(
            claimed_ids and claimed_ids - (await off_loop(True, load_view, self.store, session_id))[0].requests.keys()
        )

    async def find_queued(self, session_id: str, is_wanted: Callable[[str], bool]) -> Request | None:
        """A request in the queue that is not in the log: it waits, was cancelled, or has failed (`dead`)."""
        for run in await self._fleet.runs(session=session_id, limit=None):
            if is_wanted(run.prompt_id):
                last_seq = (await off_loop(True, self.store.read_summary, session_id)).events
                ended: RequestState = "over" if run.state == "cancelled" else "dead"
                return Request(run.prompt_id, last_seq, 0, last_seq, ended if run.is_over else "queued")
        return None

    async def _is_queued(self, session_id: str, request_id: str | None, key: str | None) -> bool:
        """Whether a run with this key is open or was cancelled.

        Raises `RequestRefusedError` 422 if it was queued with a different body.
        """
        if key is None:
            return False
        runs = await self._fleet.runs(states=(*OPEN, "cancelled"), session=session_id, limit=None)
        queued_ids = {run.prompt_id for run in runs}
        if request_id not in queued_ids and any(other.startswith(f"{key}~") for other in queued_ids):
            raise other_body(key)
        return request_id in queued_ids

    async def _check_may_prompt(self, prompt: Said, session_id: str) -> None:
        """Raise `QuestionOpenError` if the prompt may not close the open questions; the run itself checks later ones."""
        open_ids = (
            () if prompt.may_answer else (await off_loop(True, self.store.read_summary, session_id)).open_questions
        )
        if open_ids:
            raise QuestionOpenError(session_id, open_ids)


def _as_prompt(prompt: Said) -> Any:
    """The prompt as JSON that `read_prompt` accepts."""
    if not prompt.may_answer or prompt.typed is not None:
        content = _as_prompt(replace(prompt, may_answer=True, typed=None))
        return {"content": content, "may_answer": prompt.may_answer, "typed": prompt.typed}
    if not prompt.parts:
        return prompt.text
    parts: list[dict[str, Any]] = [{"type": "text", "text": prompt.text}] if prompt.text else []
    for part in prompt.parts:
        data = None if part.data is None else base64.b64encode(part.data).decode("ascii")
        fields = {"name": part.name, "media_type": part.media_type, "data": data, "url": part.url}
        parts.append({"type": part.type, **{name: value for name, value in fields.items() if value is not None}})
    return parts
