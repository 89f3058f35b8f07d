"""Watch a session's log as it grows, from this process or another: every stored event once, in order, without a gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

from ..errors import EventLoopError
from ..events import Event, Result
from ..threads import in_daemon_thread
from .base import SessionStore

# How long one wait in the store lasts; it bounds how late a follower notices that nobody listens any more.
WAIT_S = 1.0
_THREAD = "openagentic-follow"


async def follow(
    store: SessionStore, session_id: str, *, after_seq: int = 0, until_result: bool = False
) -> AsyncGenerator[Event, None]:
    """The events with `seq > after_seq`, those that are there at once and the others as they come.

    Goes on for ever, or with `until_result` ends behind a `result` when nothing follows it yet. Raises
    `SessionNotFoundError` when there is no such session, or when it is deleted, and `EventLoopError` where asyncio does
    not run.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise EventLoopError(
            "follow() needs asyncio's event loop, and none runs here: start with asyncio.run()"
        ) from None
    while True:
        batch = await in_daemon_thread(partial(store.read_events, session_id, after_seq=after_seq), _THREAD)
        for event in batch:
            after_seq = event.seq or after_seq
            yield event
        if until_result and batch and isinstance(batch[-1], Result):
            return
        wait = partial(store.wait_for_events, session_id, after_seq=after_seq, timeout_s=WAIT_S)
        await in_daemon_thread(wait, _THREAD)
