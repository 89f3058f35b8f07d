"""Sessions and checks that the tests of durability share."""

from __future__ import annotations

import os
import tempfile
import unittest
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from openagentic_sdk.events import (
    AssistantMessage,
    AssistantReasoning,
    Event,
    LogRecovered,
    PermissionDecision,
    Result,
    ToolResult,
    ToolStarted,
    ToolUse,
    UnknownEvent,
    UserMessage,
)
from openagentic_sdk.ground.disk import SystemDisk
from openagentic_sdk.parts.record.verify_log import verify_session
from openagentic_sdk.sessions.store import LOG_NAME, FileSessionStore
from openagentic_sdk.testing.clock import FakeClock
from tests.size import IN_MEMORY


class InstantDisk(SystemDisk):
    """The real disk without syncs to the hardware: for tests in which no machine loses power."""

    @staticmethod
    def fdatasync(fd: int) -> None:  # type: ignore[override]
        return

    @staticmethod
    def fsync_folder(path: str) -> None:
        return


class CountingDisk(SystemDisk):
    """The real disk, with a count of the bytes read."""

    read_bytes = 0

    def read(self, fd: int, n: int) -> bytes:
        data = os.read(fd, n)
        self.read_bytes += len(data)
        return data


class InterruptedDisk(SystemDisk):
    """The real disk, with a call of `work` at the chosen moment.

    `moment` is after each opening of a log ("opened"), before the first stat of a file ("looked at"), or before the first
    file creation ("made").
    """

    def __init__(self, moment: Literal["opened", "looked at", "made"], work: Callable[[], object]) -> None:
        self._moment: str | None = moment
        self._work = work

    def open(self, path: str, flags: int, mode: int = 0o666) -> int:
        self._at("made", flags & os.O_CREAT)
        fd = os.open(path, flags, mode)
        if path.endswith(LOG_NAME) and self._moment == "opened":
            self._work()
        return fd

    def fstat(self, fd: int) -> os.stat_result:
        self._at("looked at")
        return os.fstat(fd)

    def _at(self, moment: str, is_met: int = True) -> None:
        if self._moment == moment and is_met:
            self._moment = None
            self._work()


def tool_turn(turn: int, *, calls: int = 2, size: int = 40) -> list[list[Event]]:
    """The events of one prompt, in the batches that a run appends: two read-only or unsafe calls, and an answer."""
    ids = [f"call-{turn}-{index}" for index in range(calls)]
    batches: list[list[Event]] = [[UserMessage(f"prompt {turn} \u2028 \ud83d {'x' * size}")]]
    batches.append([AssistantMessage(f"thinking {turn}"), *(ToolUse(i, "Bash", {"command": "echo"}) for i in ids)])
    for index, call_id in enumerate(ids):
        effect = "read" if index % 2 else "unsafe"
        batches.append([PermissionDecision(call_id, "Bash", True, "default", "0" * 64)])
        batches.append([ToolStarted(call_id, "Bash", effect, "0" * 64, f"key-{call_id}")])
        batches.append([ToolResult(call_id, {"stdout": f"\x00 {'y' * size}"})])
    batches.append([AssistantMessage(f"done {turn}"), Result(f"done {turn}", "s", "end")])
    return batches


def three_turns(size: int = 40) -> list[list[Event]]:
    return [batch for turn in (1, 2, 3) for batch in tool_turn(turn, size=size)]


def small_batches(count: int) -> list[list[Event]]:
    """Batches of one short event each; every fifth one is a barrier."""
    return [[UserMessage(f"{n}") if n % 5 == 0 else AssistantReasoning(f"{n}")] for n in range(count)]


def without_stamps(events: Sequence[Event]) -> list[Event]:
    """The events without what storing them added, and without events added by repairs."""
    return [_without_stamps(event) for event in events if not isinstance(event, LogRecovered)]


def _without_stamps(event: Event) -> Event:
    if isinstance(event, UnknownEvent):
        return UnknownEvent({name: value for name, value in event.data.items() if name not in ("seq", "ts")})
    return replace(event, seq=None, ts=None)


class SceneTest(unittest.TestCase):
    """Give each test a folder, and a store that does not wait for the hardware."""

    durability = "barrier"
    medium = IN_MEMORY  # most tests here check thousands of file states and do not depend on the hardware

    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory(prefix="durability-", dir=self.medium)
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)
        self.clock = FakeClock()
        self.store = self.make_store()
        self.session_id = self.store.create_session(session_id="s")
        self.path = self.store.session_dir("s") / LOG_NAME

    def make_store(self, **settings: object) -> FileSessionStore:
        settings.setdefault("disk", InstantDisk())
        return FileSessionStore(self.place, settings.pop("durability", self.durability), clock=self.clock, **settings)

    def write(self, batches: Sequence[Sequence[Event]]) -> list[Event]:
        with self.store.open_writer("s") as writer:
            return [event for batch in batches for event in writer.append(batch)]

    def restore(self, content: bytes) -> None:
        """Replace the log with these bytes, and delete the files that accompany it."""
        folder = str(self.path.parent)
        for name in os.listdir(folder):
            if name.lstrip(".").startswith(LOG_NAME + "."):
                os.unlink(os.path.join(folder, name))
        with open(self.path, "wb", buffering=0) as file:
            file.write(content)

    def assert_goes_on(self, expected: Sequence[Event], store: FileSessionStore | None = None) -> list[Event]:
        """Check that the session opens with exactly these events, accepts another, and is intact afterwards."""
        store = store or self.store
        with store.open_writer("s") as writer:
            writer.append([UserMessage("and on")])
        events = store.read_events("s")
        self.assertEqual([event.seq for event in events], list(range(1, len(events) + 1)))
        self.assertEqual(without_stamps(events[:-1]), without_stamps(expected))
        self.assertEqual(without_stamps(events[-1:]), [UserMessage("and on")])
        report = verify_session(store, "s")
        self.assertEqual(report.problems, ())
        return events
