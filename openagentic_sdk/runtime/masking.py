"""Keep secrets out of the log: mask texts before they are stored, and say what was masked.

What people, models and tools said is masked; the input of a call is not, since exactly what is stored is what runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..events import AssistantMessage, AssistantReasoning, Event, Result, ToolResult, UserMessage
from ..permissions.redact import Redactor


def mask_event(event: Event, redact: Callable[[str], str]) -> Event:
    """The event as it may be stored. `meta["masked"]` of a result counts what a `Redactor` masked in it, by name."""
    if isinstance(event, UserMessage | AssistantMessage | AssistantReasoning):
        return replace(event, text=redact(event.text))
    if isinstance(event, Result):
        return replace(
            event, final_text=redact(event.final_text), structured_output=_mask_value(event.structured_output, redact)
        )
    if not isinstance(event, ToolResult):
        return event
    before = dict(redact.counts) if isinstance(redact, Redactor) else {}
    message = event.error_message
    masked = replace(
        event,
        output=_mask_value(event.output, redact),
        error_message=None if message is None else redact(message),
    )
    if not isinstance(redact, Redactor):
        return masked
    counts = {name: n - before.get(name, 0) for name, n in redact.counts.items() if n > before.get(name, 0)}
    return replace(masked, meta={**(event.meta or {}), "masked": counts}) if counts else masked


def _mask_value(value: Any, redact: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {key: _mask_value(item, redact) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mask_value(item, redact) for item in value]
    return value
