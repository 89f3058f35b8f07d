"""The trace context of a run's caller: `traceparent` in the format of W3C Trace Context."""

from __future__ import annotations

import re
from typing import Any


def read_traceparent(text: Any) -> tuple[str, str] | None:
    """The trace id and parent span id of a `traceparent`, or None if it is invalid (W3C Trace Context, section 3.2.2)."""
    match = (
        re.fullmatch(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}", text)
        if isinstance(text, str)
        else None
    )
    if match is None or not int(match[1], 16) or not int(match[2], 16):
        return None
    return match[1], match[2]
