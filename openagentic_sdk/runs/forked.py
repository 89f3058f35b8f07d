"""Continue a copy of a session, from any event, with other options; the session itself is not changed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial

from ..assemble import build_agent, run_request
from ..events import AnyEvent
from ..kernel.agent import AgentRuntime
from ..kernel.recorder import may_block, off_loop
from ..kernel.task import RunTask, run_events
from ..options import OpenAgenticOptions
from ..parts.record.lifecycle import fork_session
from ..prompts import Prompt, read_prompts


def query_forked(
    *, source_id: str, prompt: Prompt, options: OpenAgenticOptions, at_seq: int | None = None
) -> AsyncGenerator[AnyEvent, None]:
    """Fork `source_id` after `at_seq` (None: its end) and run there; yield the events that `query()` yields.

    `options.session_store` contains the source and receives the copy, whose id is `options.session_id` or random. A
    `prompt` of None continues without a new prompt. Raises `SessionNotFoundError`, `OptionsError` for a position after the
    end of the log, and the other errors that `query()` raises before its first event.
    """

    async def start() -> RunTask:
        return await start_forked(build_agent(options), options, source_id, prompt, at_seq)

    return run_events(start)


async def start_forked(
    agent: AgentRuntime, options: OpenAgenticOptions, source_id: str, prompt: Prompt, at_seq: int | None
) -> RunTask:
    """Fork a session after `at_seq` (None: its end) and start a run in the copy. The caller must close the run."""
    store = agent.store
    fork = partial(fork_session, at_seq=at_seq, session_id=options.session_id, seal=agent.seal)
    fork = partial(fork, metadata=options.session_metadata)
    fork_id = await off_loop(may_block(store), fork, store, source_id)
    request = run_request(replace(options, resume=fork_id, session=None, session_id=None), agent)
    return await RunTask.start(agent, request, read_prompts(prompt))
