"""Record fixtures/logs again: python3 -m tests.examples.record_logs. Review the difference before you commit it.

Each folder contains a log as the library wrote it, the messages that it folds into, and its summary. They are a promise: a
later version reads these logs with the same result. `torn` is `tools` cut off after the start of its first call; `bare` was
not recorded here: it contains lines as older tools wrote them.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from openagentic_sdk import AgentDefinition, FileSessionStore, OpenAgenticOptions, PermissionGate, run
from openagentic_sdk.events import Event
from openagentic_sdk.serialization import loads_event
from openagentic_sdk.sessions.folds.summary import fold_session_summary, summary_to_dict
from openagentic_sdk.sessions.rebuild import rebuild_messages
from openagentic_sdk.testing import FakeClock, ScriptedProvider
from openagentic_sdk.tools.bash import BashTool
from openagentic_sdk.tools.read import ReadTool
from openagentic_sdk.tools.session.task import TaskTool

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "fixtures" / "logs"
# Logs contain absolute paths; this one belongs to nobody.
WORKPLACE = Path("/tmp/openagentic-recording")
_AGENTS = {"reader": AgentDefinition("Reads files.", "You are the reader.", tools=("Read",))}


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


SESSIONS: dict[str, list[tuple[str, list[Any]]]] = {
    "plain": [("Say hello.", ["Hello!"])],
    "tools": [
        (
            "Which version is this? Then clean up.",
            [
                {
                    "text": "I look it up.",
                    "tool_calls": [call("Read", file_path="src/version.py"), call("Read", file_path="missing.py")],
                },
                {
                    "tool_calls": [
                        call("Bash", command="rm -rf src"),
                        {"name": "Read", "raw_arguments": '{"file_path": "sr'},
                    ]
                },
                "It is 0.2.0; I may not clean up.",
            ],
        )
    ],
    "resumed": [("My name is Ada.", ["Hello, Ada."]), ("What is my name?", ["Ada."])],
    "subagent": [
        (
            "Ask the reader for the version.",
            [
                {"tool_calls": [call("Task", agent="reader", prompt="Which version?")]},
                {"agent": "You are the reader", "tool_calls": [call("Read", file_path="src/version.py")]},
                {"agent": "You are the reader", "text": "0.2.0"},
                "The reader says 0.2.0.",
            ],
        )
    ],
    "failed": [
        ("Say hello.", [{"text": "Hel", "error": {"type": "incomplete", "after": 3, "message": "the answer stopped"}}])
    ],
}


def read_log(folder: Path) -> list[Event]:
    """The events of a recorded log."""
    return [loads_event(line, strict=False) for line in (folder / "events.jsonl").read_bytes().splitlines()]


def facts(events: Iterable[Event]) -> dict[str, Any]:
    """The promised facts about a log: JSON values by file name."""
    events = list(events)
    summary = summary_to_dict(fold_session_summary(None, events))
    del summary["version"]  # which describes how a cache is written
    return {"messages.json": rebuild_messages(events), "summary.json": json.loads(json.dumps(summary))}


def main() -> None:
    shutil.copytree(ROOT / "fixtures" / "projects" / "checklist", WORKPLACE)
    try:
        _record_all()
    finally:
        shutil.rmtree(WORKPLACE)
    lines = (LOGS / "tools" / "events.jsonl").read_bytes().splitlines(keepends=True)
    started = next(index for index, line in enumerate(lines) if b'"tool.started"' in line)
    (LOGS / "torn" / "events.jsonl").write_bytes(b"".join(lines[: started + 1]))
    for folder in sorted(path.parent for path in LOGS.glob("*/events.jsonl")):
        for file, value in facts(read_log(folder)).items():
            text = json.dumps(value, indent=1, ensure_ascii=True) + "\n"
            (folder / file).write_text(text, encoding="ascii")


def _record_all() -> None:
    for name, prompts in SESSIONS.items():
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(_record(name, prompts, FileSessionStore(folder, "flush", clock=FakeClock())))
            (LOGS / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(folder) / "sessions" / name / "events.jsonl", LOGS / name)


async def _record(name: str, prompts: list[tuple[str, list[Any]]], store: FileSessionStore) -> None:
    clock, agents = FakeClock(), _AGENTS if name == "subagent" else {}
    options = OpenAgenticOptions(
        model="scripted",
        cwd=WORKPLACE,
        tools=[ReadTool(), BashTool(), TaskTool({name: agent.description for name, agent in agents.items()})],
        agents=agents,
        permission_gate=PermissionGate(deny=("Bash(rm:*)",)),
        system_prompt="You are the agent of a recorded session.",
        session_store=store,
        session_id=name,
        clock=clock,
    )
    for prompt, turns in prompts:
        result = await run(prompt=prompt, options=replace(options, provider=ScriptedProvider(turns, clock=clock)))
        assert result.ok == (name != "failed"), f"{name} ended with {result.stop_reason}: {result.error_message}"
        options = replace(options, session_id=None, resume=name)


if __name__ == "__main__":
    main()
