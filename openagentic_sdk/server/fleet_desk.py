"""A desk that runs nothing itself: requests are queued for a fleet, whose workers run them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..agents import AGENT_KEY
from ..errors import QuestionOpenError, RequestRefusedError, SessionExistsError
from ..fleet.fleet import Fleet
from ..fleet.record import OPEN
from ..kernel.prompt import Said
from ..kernel.recorder import off_loop
from ..options import OpenAgenticOptions
from ..prompts import OnePrompt
from ..runs.abandoned import WISHES_KEY
from ..sessions.core import TENANT_KEY
from .desk import Desk, is_request_known, request_id_of
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
        if await is_request_known(self.store, session_id, request_id, key):
            return
        await self._check_may_prompt(message, session_id)
        if not await self._fleet.runs(states=OPEN, session=session_id, limit=1):
            raise RequestRefusedError(409, "no run is in progress in this session: send a prompt", "no_run")
        agent = metadata.get(AGENT_KEY) or self.agents.default
        wishes, tenant = metadata.get(WISHES_KEY), metadata.get(TENANT_KEY, "")
        await self._fleet.enqueue(
            agent, _as_prompt(message), session=session_id, request_id=request_id, tenant=tenant, wishes=wishes
        )

    async def cancel(self, who: Principal, session_id: str) -> bool:
        """End all runs of a session permanently, wherever they are; return False if the session has none."""
        await self._metadata(who, session_id)
        runs = await self._fleet.runs(states=OPEN, session=session_id)
        ended = [await self._fleet.cancel(run.id, cancelled_by=who.name) for run in runs]
        return any(ended) or await super().cancel(who, session_id)

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
        runs = await self._fleet.runs(states=OPEN, session=session_id) if prompt is None else []
        for run in runs:
            await off_loop(True, self._fleet.queue.wake, run.id, run.parked_seq)
        if runs:
            return
        if prompt is not None:
            await self._check_may_prompt(prompt, session_id)
        metadata = (await off_loop(True, self.store.read_metadata, session_id))["metadata"]
        run_metadata = options.session_metadata
        await self._fleet.enqueue(
            run_metadata[AGENT_KEY],
            None if prompt is None else _as_prompt(prompt),
            session=session_id,
            request_id=options.request_id if prompt is None else prompt.request_id,
            tenant=metadata.get(TENANT_KEY, ""),
            wishes=(metadata if prompt is None else run_metadata).get(WISHES_KEY),
        )

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
