"""Shared helpers of this room: folders, contexts, and lookups of processes on this machine."""

from __future__ import annotations

import os
import tempfile
import unittest
from pathlib import Path
from typing import Any

from openagentic_sdk.kernel.loop import Closable
from openagentic_sdk.tools.base import RunResources, ToolContext
from openagentic_sdk.tools.bash import BashTool
from tests.waiting import until

FIXTURES = Path(__file__).parents[2] / "fixtures" / "tools_run"


class WorkspaceTestCase(unittest.TestCase):
    """A test with its own workspace folder and a run whose resources are closed at the end."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="openagentic-test-")
        self.addCleanup(folder.cleanup)
        self.workspace = Path(folder.name).resolve() / "workspace"
        self.workspace.mkdir()
        self.ctx = ToolContext(cwd=str(self.workspace))
        self.addCleanup(close_run, self.ctx)

    def bash(self, command: str, *, timeout_s: float = 120.0, **settings: Any) -> dict[str, Any]:
        return BashTool(**settings).run_sync({"command": command, "timeout_s": timeout_s}, self.ctx)


def close_run(ctx: ToolContext) -> None:
    """Close the resources of a run, as the runtime does at its end."""
    for resource in ctx.services.get(RunResources):
        assert isinstance(resource, Closable)
        resource.close()


def processes_with(marker: str) -> list[int]:
    """The live processes with `marker` in their command line."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            command_line = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if marker.encode() in command_line and int(name) != os.getpid():
            found.append(int(name))
    return found


def wait_until_gone(marker: str) -> None:
    """Wait until the marked processes have ended."""
    until(lambda: not processes_with(marker), lambda: f"the processes {processes_with(marker)} have ended")


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
