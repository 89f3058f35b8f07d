"""Sessions to sign, tamper with and erase from, in every store that needs no server."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import unittest
from collections.abc import Sequence
from pathlib import Path

from openagentic_sdk.events import (
    AssistantMessage,
    Event,
    PermissionDecision,
    Result,
    SystemInit,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from openagentic_sdk.ground.frozen import changed
from openagentic_sdk.parts.record.lifecycle import append_signed
from openagentic_sdk.parts.record.signers import InstallationKey, Trust
from openagentic_sdk.parts.record.verify import RecordReport, verify_record
from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.seal import Seal

HAS_SSH = shutil.which("ssh-keygen") is not None


def turn(number: int, secret: str = "") -> list[Event]:
    """One prompt with a call that a person allowed, and its answer."""
    call, question = f"call-{number}", f"question-{number}"
    return [
        UserMessage(f"What is number {number}? {secret}".strip()),
        ToolUse(call, "Bash", {"command": f"lookup {number} {secret}".strip(), "timeout_s": 5}),
        UserQuestion(question, "Allow Bash?", ("yes", "no"), "permission", call, {"tool_name": "Bash"}),
        UserAnswer(question, "yes", "alice", {"name": "alice", "how": "server token"}),
        PermissionDecision(call, "Bash", True, "default", "0" * 64, answered_by="alice"),
        ToolStarted(call, "Bash", "unsafe", "0" * 64, call),
        ToolResult(call, {"stdout": f"it is {number} {secret}".strip(), "exit_code": 0}),
        AssistantMessage(f"It is {number}. {secret}".strip()),
    ]


class RecordCase(unittest.TestCase):
    """A test with a separate folder that contains a key."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="record-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.key = InstallationKey(str(self.folder / "installation.key"))
        self.seal = Seal(self.key.path)
        self.trust = Trust(self.seal)

    def filled(self, store: SessionStore, session_id: str = "s", turns: Sequence[int] = (1,), secret: str = "") -> str:
        """A session with these turns, as this installation records them."""
        store.create_session(session_id=session_id, metadata={"cwd": "/"})
        self.goes_on(store, session_id, [SystemInit(session_id, "/", "0", model="m")])
        for number in turns:
            self.goes_on(store, session_id, turn(number, secret))
        self.goes_on(store, session_id, [Result(f"done {secret}".strip(), session_id, "end")])
        return session_id

    def goes_on(self, store: SessionStore, session_id: str, events: Sequence[Event]) -> None:
        append_signed(store, session_id, events, self.seal)

    def report(self, store: SessionStore, session_id: str = "s") -> RecordReport:
        return verify_record(session_id, store.iter_events(session_id), self.trust)

    def of(self, events: Sequence[Event], session_id: str = "s") -> RecordReport:
        """The report on these events in a log, renumbered as somebody who edits a log would renumber them."""
        numbered = [changed(event, seq=seq) for seq, event in enumerate(events, start=1)]
        store = MemorySessionStore()
        store.import_session(session_id, numbered)
        return self.report(store, session_id)

    def ssh_key(self, name: str) -> str:
        path = self.folder / name
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", path], check=True, timeout=300)
        return str(path)
