"""Agents for fleet tests: each run pays once, with a tool that must not run twice, and confirms it.

The messages alone determine what a worker does, so that any process can continue any run. The folder
OPENAGENTIC_TEST_PAYMENTS contains `paid`, with a line for each payment, and files `<point> <key>`, each consumed once, that
make a worker stop itself (SIGSTOP) at a point.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openagentic_sdk import OpenAgenticOptions, PermissionGate
from openagentic_sdk.agents import Agents, NamedAgent
from openagentic_sdk.providers.base import Message, ModelOutput, ToolCall, ToolSpec
from openagentic_sdk.tools.function import tool

FOLDER = "OPENAGENTIC_TEST_PAYMENTS"
# Set to end the slow payments of this process.
OVER = threading.Event()


# Stops a process while none of its threads is in a transaction of the SQLite database: it would block all other workers.
_STOP = """
import os, signal, sqlite3, sys
path, pid = sys.argv[1], int(sys.argv[2])
db = sqlite3.connect(path, timeout=300, isolation_level=None)
db.execute("BEGIN IMMEDIATE")
os.kill(pid, signal.SIGSTOP)
while any(open(f"/proc/{pid}/task/{task}/stat").read().rpartition(")")[2].split()[0] != "T"
          for task in os.listdir(f"/proc/{pid}/task")):
    os.sched_yield()
"""


def reach(point: str, key: str) -> None:
    """Stop this process here, once, if the test requests it."""
    try:
        os.unlink(os.path.join(os.environ[FOLDER], f"{point} {key}"))
    except FileNotFoundError:
        return
    database = os.path.join(os.environ[FOLDER], "fleet.db")
    if os.path.exists(database):
        subprocess.run([sys.executable, "-I", "-S", "-c", _STOP, database, str(os.getpid())], check=True)
    else:
        os.kill(os.getpid(), signal.SIGSTOP)


@tool
def pay(key: str, seconds: float) -> str:
    """Pay once."""
    reach("started", key)
    Path(os.environ[FOLDER], f"entered {key}").touch()
    line = os.open(os.path.join(os.environ[FOLDER], "paid"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(line, f"{key} {os.getpid()}\n".encode())
    os.close(line)
    OVER.wait(seconds)
    reach("paid", key)
    return f"paid {key}"


class Payer:
    """A model that pays for the key in the prompt (`pay KEY SECONDS`), then answers `done`."""

    name = "payer"

    async def complete(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: str | None = None
    ) -> ModelOutput:
        words = next(str(each["content"]) for each in reversed(messages) if each["role"] == "user").split()
        if messages[-1]["role"] == "tool":
            reach("answering", words[1])
            return ModelOutput("done", [])
        reach("asked", words[1])
        call = ToolCall(f"call-{words[1]}", "pay", {"key": words[1], "seconds": float(words[2])})
        return ModelOutput("", [call])


def _options(**gate: Any) -> OpenAgenticOptions:
    return OpenAgenticOptions(
        provider=Payer(),
        model="payer",
        tools=[pay],
        permission_gate=PermissionGate(**gate),
        cwd=os.environ[FOLDER],
        setting_sources=(),
    )


def agents() -> Agents:
    """`payer` pays at once; `asker` asks a person first."""
    return Agents(
        {
            "payer": NamedAgent(lambda: _options(allow=["pay"])),
            "asker": NamedAgent(lambda: _options(permission_mode="prompt")),
        }
    )
