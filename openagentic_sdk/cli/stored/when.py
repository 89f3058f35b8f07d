"""A time as people type it."""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime

from ...patterns import regex

_AGO = regex(r"(\d{1,6})\s*(min|h|d|w)")
_SECONDS = {"min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def moment(text: str) -> float:
    """Epoch seconds of a date or date and time (UTC unless it says otherwise), or of how long ago: `36h`, `7d`."""
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        return time.time() - int(ago[1]) * _SECONDS[ago[2]]
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 2026-11-01, 2026-11-01T12:00 or 7d") from None
    return (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()
