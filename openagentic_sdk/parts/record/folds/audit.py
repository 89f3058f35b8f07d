"""Rebuild every request from the log before it, and compare it with the digest that was recorded when it was sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ....events import Event, ModelContext, ModelRequest
from ....ground.frozen import frozen
from ....sessions.rebuild import Conversation, system_messages
from ....sessions.request import RequestDigest
from ..commit import ERASED


@frozen
class RebuiltRequest:
    """One request as the log tells it. `matches` is False when its digest is not the recorded one; one that
    held what was erased has none any more."""

    seq: int
    step: int
    model: str
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...]
    recorded_sha256: str
    rebuilt_sha256: str

    @property
    def matches(self) -> bool:
        return self.recorded_sha256 in (self.rebuilt_sha256, ERASED)


def rebuild_requests(events: Iterable[Event]) -> Iterable[RebuiltRequest]:
    """Each request of a log in order. A request that no `model.context` precedes (an older tool's log) is left out."""
    conversation, context, digest = Conversation(), None, RequestDigest()
    system: list[Mapping[str, Any]] = []  # made once: the digest goes on behind messages that are the same objects
    for event in events:
        if isinstance(event, ModelContext):
            context, system = event, list(system_messages(event.system_prompt))
        if isinstance(event, ModelRequest) and context is not None:
            messages: list[Mapping[str, Any]] = list(event.messages or ())
            if event.messages is None:
                messages += [*system, *conversation.messages(), *(event.appended or ())]
            tools = context.tools if event.purpose == "turn" or event.messages is None else ()
            yield RebuiltRequest(
                event.seq or 0,
                event.step,
                context.model,
                tuple(messages),
                tuple(tools),
                event.request_sha256,
                digest.of(context.model, messages, tools),
            )
        conversation.apply(event)


def find_mismatches(events: Iterable[Event]) -> list[RebuiltRequest]:
    """The requests whose digest is not what the log rebuilds."""
    return [request for request in rebuild_requests(events) if not request.matches]
