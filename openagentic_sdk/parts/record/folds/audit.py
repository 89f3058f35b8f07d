"""Rebuild every request from the log before it, and compare it with the digest that was recorded when it was sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ....events import Event, ModelContext, ModelRequest
from ....ground.frozen import frozen
from ....sessions.rebuild import Conversation, system_messages
from ....sessions.request import RunningDigest, canonical_json
from ..commit import ERASED


@frozen
class RebuiltRequest:
    """One request as rebuilt from the log. `matches` is false if its digest differs from the recorded one.

    A request that contained erased data no longer has a digest to compare, and matches.
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
    """Yield the requests of a log. Those without a preceding `model.context` (from an older version) are omitted."""
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
            model = event.model or context.model  # a summary may come from another model
            yield RebuiltRequest(
                event.seq or 0,
                event.step,
                model,
                tuple(messages),
                tuple(tools),
                event.request_sha256,
                digest.of(model, messages, tools),
            )
        conversation.apply(event)


def find_mismatches(events: Iterable[Event]) -> list[RebuiltRequest]:
    """Find the requests whose rebuilt digest differs from the recorded one."""
    return [request for request in rebuild_requests(events) if not request.matches]


class RequestDigest:
    """A calculator of the digests of consecutive requests, which encodes only the messages that each request adds.

    The conversation's fold returns known messages as the same objects, so only the system prompt is encoded for comparison.
    """

    def __init__(self) -> None:
        self._seen: list[Mapping[str, Any]] = []
        self._of: tuple[str, Sequence[Mapping[str, Any]]] | None = None
        self._digest = RunningDigest("", ())

    def of(self, model: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        same = self._of is not None and self._of[0] == model and self._of[1] is tools
        if not same or len(self._seen) > len(messages) or not all(map(_is_same, self._seen, messages)):
            self._seen, self._of, self._digest = [], (model, tools), RunningDigest(model, tools)
        self._digest.add(messages[len(self._seen) :])
        self._seen = list(messages)
        return self._digest.hexdigest()


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one is other or canonical_json(one) == canonical_json(other)
