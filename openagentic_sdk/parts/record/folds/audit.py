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
    """One request as rebuilt from the log. `matches` is false if its digest differs from the recorded one.

    A request that contained erased data no longer has a digest to compare.
    """

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
    """Iterate over the requests of a log. Those without a preceding `model.context` (from an older version) are omitted."""
    conversation, context, digest = Conversation(), None, RequestDigest()
    system: list[Mapping[str, Any]] = []  # created once: the digest of a common prefix of identical objects is reused
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
    """The requests whose rebuilt digest differs from the recorded one."""
    return [request for request in rebuild_requests(events) if not request.matches]
