"""Where a run stands in its caller's trace: `traceparent` as W3C Trace Context writes it."""

from __future__ import annotations

import re
from typing import Any


def read_traceparent(text: Any) -> tuple[str, str] | None:
    """The ids of the trace and of the span above, or None for anything else (W3C Trace Context, section 3.2.2)."""
    match = (
        re.fullmatch(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}", text)
        if isinstance(text, str)
        else None
    )
    if match is None or not int(match[1], 16) or not int(match[2], 16):
        return None
    return match[1], match[2]
