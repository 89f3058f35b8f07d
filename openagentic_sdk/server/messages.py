"""Deliver messages to runs in this or another process: each is kept in the store until it is delivered or obsolete."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..agents import AGENT_KEY
from ..errors import OptionsError, RequestRefusedError, SessionLockedError, SessionNotFoundError, StorageError
from ..kernel.prompt import Said
from ..kernel.recorder import off_loop
from ..prompts import OnePrompt, read_prompt
from ..runs.abandoned import WISHES_KEY
from ..runs.background import BackgroundRun, cancel_session
from ..runs.turns import first_allowed
from ..sessions.follow import is_held
from ..sessions.inbox import InboxMessage
from ..sessions.resume import load_view

if TYPE_CHECKING:
    from .desk import Desk

# The interval at which the store is polled for messages from other processes.
INBOX_S = 0.2


class Messages:
    """The messages for a desk's runs, delivered while the desk has runs. A message that has become an event is removed."""

    def __init__(self, desk: Desk, runs: Mapping[str, BackgroundRun]) -> None:
        self._desk = desk
        self._runs = runs
        self._store = desk.store
        self._news = asyncio.Event()  # set for new messages in the store
        self._delivered: set[str] = set()
        self._is_looking = False

    async def put(self, session_id: str, message: dict[str, Any]) -> None:
        """Store a message; it becomes the next prompt if no run, in this or another process, can receive it."""
        await off_loop(True, self._store.put_message, session_id, message)
        self._news.set()
        if session_id not in self._runs:
            await self.take_up(session_id)

    def look(self) -> None:
        """Deliver messages from now on, until the last run is over."""
        if self._store.has_inbox and not self._is_looking:
            self._is_looking = True
            self._desk.keep(self._look())

    async def _look(self) -> None:
        while ids := list(self._runs):
            with suppress(TimeoutError):
                async with asyncio.timeout(INBOX_S):
                    await self._news.wait()
            self._news.clear()
            with suppress(StorageError):  # temporarily unavailable: messages in the store are not lost
                await self._hand_over(await self._waiting(ids))
        self._is_looking = False

    async def _hand_over(self, waiting: Sequence[InboxMessage]) -> None:
        """Deliver waiting messages to this process's runs; remove those received, invalid or, for a cancel, carried out."""
        done = []
        for message in waiting:
            run, name = self._runs.get(message.session_id), name_of(message)
            if run is None:
                continue
            if _is_cancel(message):
                if not run.has_begun:
                    continue
                if _is_for(message, run.first_seq):
                    await run.cancel()
                done.append(message.number)
            elif name in run.heard or (prompt := _prompt_in(message)) is None:
                done.append(message.number)
            elif name not in self._delivered:
                with suppress(OptionsError):  # the run is starting or ending: the message waits
                    run.send(prompt)
                    self._delivered.add(name)
        await self._remove(done)

    async def after(self, session_id: str, run: BackgroundRun, stop_reason: str) -> None:
        """Remove the messages that a finished run has received and, unless it may continue, the cancels; all if it was
        cancelled.

        A message that the run has not received becomes the next prompt, unless the run failed.
        """
        if not self._store.has_inbox:
            return
        with suppress(StorageError, SessionNotFoundError, SessionLockedError):
            may_go_on, is_cancelled = stop_reason in ("suspended", "waiting"), stop_reason == "cancelled"
            if may_go_on:  # a cancel may have arrived as it parked
                is_cancelled = await self.cancel_left(session_id, run.first_seq, run.key_file)
            waiting = await self._waiting([session_id])
            self._delivered.difference_update(map(name_of, waiting))
            heard_messages = [m for m in waiting if name_of(m) in run.heard or (_is_cancel(m) and not may_go_on)]
            done = waiting if is_cancelled else heard_messages
            await self._remove([message.number for message in done])
            if stop_reason != "error" and len(done) < len(waiting):
                await self.take_up(session_id)

    async def cancel_left(self, session_id: str, first_seq: int, key_file: str | None) -> bool:
        """Cancel a session's request, which has no run, if a cancel for a run that began with event `first_seq` is waiting.

        Return whether such a cancel was waiting.
        """
        waiting = await self._waiting([session_id])
        cancels = [message for message in waiting if _is_cancel(message) and _is_for(message, first_seq)]
        if cancels:
            by = str(cancels[0].message.get("by"))
            await cancel_session(self._store, session_id, cancelled_by=by, key_file=key_file)
            await self._remove([message.number for message in cancels])
        return bool(cancels)

    async def take_up(self, session_id: str) -> None:
        """Start a run with a message that arrived just as the last run ended or parked.

        Do nothing if another run is in progress or this process is ending.
        """
        if self._desk.is_draining or await off_loop(True, is_held, self._store, session_id):
            return
        waiting = await self._waiting([session_id])
        view, _ = await off_loop(True, load_view, self._store, session_id)
        # Already handled: the process was killed before it removed them.
        done = [message.number for message in waiting if _is_cancel(message) or name_of(message) in view.requests]
        await self._remove(done)
        is_asking = bool((await off_loop(True, self._store.read_summary, session_id)).open_questions)
        prompt = first_allowed(
            filter(None, (_prompt_in(m) for m in waiting if m.number not in done)), is_asking=is_asking
        )
        if prompt is not None:
            metadata, agents = (
                (await off_loop(True, self._store.read_metadata, session_id))["metadata"],
                self._desk.agents,
            )
            mine: dict[str, Any] = {"session_store": self._store, "resume": session_id}
            options = agents.options(metadata.get(AGENT_KEY) or agents.default, metadata.get(WISHES_KEY), **mine)
            with suppress(SessionLockedError, RequestRefusedError):
                await self._desk.begin_run(session_id, prompt, options)

    async def sessions_of(self, session_ids: Sequence[str]) -> list[str]:
        """Return the ids of the given sessions that have waiting messages."""
        return list(dict.fromkeys(message.session_id for message in await self._waiting(session_ids)))

    async def _waiting(self, session_ids: Sequence[str]) -> Sequence[InboxMessage]:
        return await off_loop(True, self._store.read_messages, session_ids) if self._store.has_inbox else ()

    async def _remove(self, numbers: Sequence[int]) -> None:
        if numbers:
            await off_loop(True, self._store.remove_messages, numbers)


def read_message(prompt: OnePrompt) -> Said:
    """Parse a client's prompt. Raises `OptionsError` if it is invalid, is empty or names a file of this machine."""
    message = read_prompt(prompt, paths=False)
    if not message.text.strip() and not message.parts:
        raise OptionsError("the prompt is empty: describe the task")
    return message


def name_of(message: InboxMessage) -> str:
    """The request id of a message: the one set by its sender, otherwise derived from its number."""
    name = message.message.get("request_id")
    return name if isinstance(name, str) else f"inbox {message.number}"


def _prompt_in(message: InboxMessage) -> Said | None:
    """The prompt in a message, with its request id; None if it contains no valid prompt."""
    if message.message.get("do") != "steer":
        return None
    try:
        prompt = read_message(message.message.get("prompt"))  # type: ignore[arg-type]
    except OptionsError:
        return None
    may_answer = message.message.get("may_answer") is not False
    return replace(prompt, request_id=name_of(message), may_answer=may_answer)


def _is_cancel(message: InboxMessage) -> bool:
    return message.message.get("do") == "cancel"


def _is_for(cancel: InboxMessage, first_seq: int) -> bool:
    """Whether a cancel was meant for the run that began with this event, rather than for an earlier one."""
    return int(cancel.message.get("seq", first_seq)) >= first_seq
