"""Functions that suites name; they run in a separate process that imports only this module."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from openagentic_sdk.events import Event, ToolUse
from tests.waiting import hang


def counts_calls(events: Sequence[Event]) -> tuple[float, str]:
    return sum(isinstance(event, ToolUse) for event in events) / 4, "calls of four"


def raises(events: Sequence[Event]) -> bool:
    raise KeyError("\x1b[31mno such thing")


def exits(events: Sequence[Event]) -> bool:
    sys.exit(0)


def ends_its_process(events: Sequence[Event]) -> bool:
    print("a scorer may print", flush=True)
    os._exit(0)


def hangs(events: Sequence[Event]) -> bool:
    hang()


def gives_nonsense(events: Sequence[Event]) -> Any:
    return float("nan")


def gives_much(events: Sequence[Event]) -> Any:
    return (True, "x" * 5_000_000)


async def waits(events: Sequence[Event]) -> bool:
    return True
