"""Write a recorded session as a test that anybody can run: a unittest file, and its log beside it, trimmed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from ..errors import OptionsError
from ..events import Event
from ..serialization import dumps_event

# What a replay reads; hooks, decisions, retries and the like explain a session but do not shape its requests.
_NEEDED = frozenset(
    (
        "system.init",
        "user.message",
        "model.context",
        "model.request",
        "model.response",
        "assistant.reasoning",
        "assistant.message",
        "tool.use",
        "tool.result",
        "session.compacted",
        "session.rewound",
    )
)

_TEST = '''"""Session {session_id}, replayed: every request must be the one that was recorded."""

import asyncio
import unittest
from pathlib import Path

from openagentic_sdk.runs.replay import replay_events
from openagentic_sdk.serialization import loads_event

LOG = Path(__file__).with_name({log_name!r})


class {class_name}(unittest.TestCase):
    def test_every_request_is_the_one_that_was_recorded(self):
        events = [loads_event(line, strict=False) for line in LOG.read_bytes().split(b"\\n") if line]
        report = asyncio.run(replay_events(events))
        self.assertTrue(report.ok, report.error)
        self.assertEqual(report.compared, {steps})


if __name__ == "__main__":
    unittest.main()
'''


def emit_test(events: Iterable[Event], path: str | os.PathLike[str], *, session_id: str = "") -> tuple[Path, Path]:
    """Write `path` (a .py file) and the log that it replays beside it; returns both paths.

    Raises `OptionsError` for a log without requests or a path that is no .py file, `OSError` when it cannot be written.
    """
    target = Path(path)
    if target.suffix != ".py":
        raise OptionsError(f"{os.fspath(path)!r} must end in .py: it becomes a test file")
    kept = [event for event in events if event.type in _NEEDED]
    steps = sum(event.type == "model.request" and vars(event).get("purpose") == "turn" for event in kept)
    if not steps:
        raise OptionsError("this session has no recorded requests, so a test of it could not fail")
    log = target.with_suffix(".jsonl")
    log.write_text("".join(dumps_event(event) + "\n" for event in kept), encoding="ascii")
    name = "".join(part.capitalize() for part in re.split(r"[^A-Za-z0-9]+", target.stem)) or "Replay"
    class_name = f"{name}Test" if name[0].isalpha() else f"Test{name}"
    text = _TEST.format(session_id=session_id, log_name=log.name, class_name=class_name, steps=steps)
    target.write_text(text, encoding="utf-8")
    return target, log
