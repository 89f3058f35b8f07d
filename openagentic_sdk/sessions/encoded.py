"""Events on their way into a log, with the JSON of each one's own fields.

Signing needs the JSON before an event has its place in the log, and the store needs it again after: it is made once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import InvalidEventError
from ..events import Event, UnknownEvent
from ..serialization import dumps_fields, dumps_values

# What a line of the log adds to an event: an event of an unknown type, kept verbatim, must not bring its own.
_ENVELOPE = ("v", "seq", "ts", "dur", "crc")


def encode_event(event: Event) -> str:
    """The event's own fields as JSON, without braces and envelope. Raises `InvalidEventError`."""
    if not isinstance(event, UnknownEvent):
        return dumps_fields(event)
    if not isinstance(event.data.get("type"), str):
        raise InvalidEventError(f"the type of an event must be a string, not {event.data.get('type')!r}")
    return dumps_values({name: value for name, value in event.data.items() if name not in _ENVELOPE})


class EncodedEvents(list[Event]):
    """Events on their way into a log, each with the JSON from `encode_event`, which signing has already produced."""

    def __init__(self, events: Iterable[Event], bodies: Sequence[str]) -> None:
        super().__init__(events)
        self.bodies = bodies


def joined(first: Sequence[Event], then: Sequence[Event]) -> Sequence[Event]:
    """Combine both into one batch."""
    return EncodedEvents((*first, *then), (*encode_events(first), *encode_events(then))) if first else then


def encode_events(events: Sequence[Event]) -> Sequence[str]:
    """The JSON of each event, from `encode_event`."""
    return events.bodies if isinstance(events, EncodedEvents) else [encode_event(event) for event in events]
