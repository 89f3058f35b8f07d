"""Read an endpoint's answer to its end, whether a stream or one body: the part that all protocols have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ...errors import GarbledResponseError, ProviderResponseError
from ...ground.loose import read_json
from ..base import ModelOutput, StreamEvent
from ..failures import cut_answer, error_in_body, unexpected
from ..sse import SSEEvent
from .exchange import LastEvents, Whole
from .growing import GrowingFields

# After the end marker only the end of the body is missing; after a finish reason, usage may still follow.
LINGER_AFTER_DONE_S = 0.25
LINGER_AFTER_FINISH_S = 5.0


class Reading(ABC):
    """A reader of an answer, event by event or at once.

    `used_ids` are the ids of the conversation's calls, `origin` is the host to which opaque fields are sent back.
    `linger_s`, once set, means that the essential part has arrived; `is_over`, that the end marker has, and that anything
    after it is ignored. `is_broken` means that the connection failed or the last event was truncated. `raw`, if it is a
    list, collects the answer verbatim. `notices` report what was omitted from the request.
    `_growing` holds what was added to fields of blocks until `conclude` is called. Whatever an endpoint sends,
    `take` and `finish` raise only `ProviderError`s.
    """

    linger_s: float | None = None
    is_over = False
    is_broken = False

    def __init__(self, used_ids: Collection[str] = (), origin: str = "") -> None:
        self.raw: Any = None
        self.notices: list[str] = []
        self._used_ids = used_ids
        self._origin = origin
        self._count = 0
        self._growing = GrowingFields()

    @abstractmethod
    def take_chunk(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        """Add the JSON of one stream event; return the events to show."""

    @abstractmethod
    def take_whole(self, body: Mapping[str, Any]) -> list[StreamEvent]:
        """Add an answer in one piece; return the events to show. Raises `ProviderResponseError` if it is not an answer."""

    @abstractmethod
    def conclude(self) -> tuple[list[StreamEvent], ModelOutput]:
        """Return the events held back, and the whole answer. Raises `IncompleteResponseError` if its end is missing."""

    def take_array(self, chunks: Sequence[Any]) -> list[StreamEvent]:
        """Add an answer that is an array; return the events to show. Raises `ProviderResponseError` if none is expected."""
        raise unexpected("answer is not an object", chunks)

    def take_marker(self) -> None:
        """Note that the stream has sent `[DONE]`."""
        self.linger_s, self.is_over = LINGER_AFTER_DONE_S, True

    def take(self, batch: list[SSEEvent] | Whole) -> list[StreamEvent]:
        """Add what was received; return the events to show. Raises `ProviderHTTPError` for the endpoint's error, and another
        `ProviderError` for an answer that cannot be read.
        """
        with _understood():
            if isinstance(batch, Whole):
                self._count += 1
                # First: many gateways answer an error with status 200.
                raise_error_in(batch.data)
                if self.raw is not None:
                    self.raw = batch.data
                if isinstance(batch.data, list):
                    for chunk in batch.data:
                        raise_error_in(chunk)
                    return self.take_array(batch.data)
                if not isinstance(batch.data, Mapping):
                    raise unexpected("answer is not an object", batch.data)
                return self.take_whole(batch.data)
            events: list[StreamEvent] = []
            is_last = isinstance(batch, LastEvents)
            for event in batch:
                events += self._take_event(event, is_last)
            return events

    def finish(self) -> tuple[list[StreamEvent], ModelOutput]:
        """Return the events held back, and the whole answer. Raises `IncompleteResponseError` if its end is missing.

        Text before a broken end may be complete. Calls are complete only if their end arrived.
        """
        with _understood():
            self._growing.settle()
            rest, output = self.conclude()
        # A call whose arguments are complete may still be one of several, of which the rest was lost: none of them may
        # run.
        if self.is_broken and not self.is_over and any(call.raw_arguments is None for call in output.tool_calls):
            raise cut_answer(output.assistant_text or "", "an end after its calls: the connection was cut")
        return rest, output

    def check_answered(self, beginning: str = "") -> None:
        """Raise `ProviderResponseError` if the endpoint sent no events and no JSON; `beginning` is the text that it sent."""
        if not self._count:
            excerpt = f"; it sent {beginning!r}" if beginning else ""
            raise ProviderResponseError(
                f"the endpoint accepted the request without sending an answer{excerpt}: check base_url"
            )

    def _take_event(self, event: SSEEvent, is_last: bool) -> list[StreamEvent]:
        data = event.data.strip()
        if not data:
            return []  # only keeps the connection open
        self._count += 1
        if self.is_over:
            return []
        if data == "[DONE]":
            self.take_marker()
            return []
        try:
            chunk = read_json(data)
        except (ValueError, RecursionError):
            return self._take_unreadable(event, is_last)
        if self.raw is not None:
            self.raw.append(chunk)
        raise_error_in(chunk)
        if event.event == "error":
            raise_error_in({"error": chunk})
        return self.take_chunk(chunk) if isinstance(chunk, Mapping) else []

    def _take_unreadable(self, event: SSEEvent, is_last: bool) -> list[StreamEvent]:
        if event.event == "error":
            raise_error_in({"error": event.data})
        lines = event.data.split("\n")
        if len(lines) > 1:  # some servers omit the blank lines between events
            event_lists = [self._take_event(SSEEvent(line), is_last) for line in lines if line.strip()]
            return [event for events in event_lists for event in events]
        if not is_last:
            raise GarbledResponseError(f"the endpoint sent an event that is not JSON: {event.data[:200]!r}")
        self.is_broken = True  # the event was truncated
        return []


@contextmanager
def _understood() -> Iterator[None]:
    """Convert errors in the block into `GarbledResponseError`: the data that the endpoint sent is at fault."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise GarbledResponseError(
            f"the endpoint's answer does not follow its protocol ({type(error).__name__}: {error!s:.200})"
        ) from error


def raise_error_in(data: Any) -> None:
    """Raise `ProviderHTTPError` if this JSON is an error in place of an answer."""
    error = error_in_body(data)
    if error is not None:
        raise error
