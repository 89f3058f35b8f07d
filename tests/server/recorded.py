"""Runs as clients see them: with deltas while they happen, and from the log afterwards."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from openagentic_sdk.events import Event
from openagentic_sdk.options import AgentDefinition, OpenAgenticOptions
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.providers.wrappers.retry import RetryPolicy
from openagentic_sdk.runs.background import submit
from openagentic_sdk.serialization import loads_event
from openagentic_sdk.sessions.follow import follow
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.tools.function import tool
from openagentic_sdk.tools.session.ask_user_question import AskUserQuestionTool
from openagentic_sdk.tools.session.todo_write import TodoWriteTool

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


@tool(effect="read")
async def echo(text: str) -> str:
    """Give the text back."""
    return text


@tool
def fail(text: str = "it broke") -> str:
    """Fail."""
    raise RuntimeError(text)


ECHO = {"name": "echo", "arguments": {"text": "x"}}
TASK = {"name": "Task", "arguments": {"agent": "reader", "prompt": "Read."}}
ASK = {"name": "AskUserQuestion", "arguments": {"question": "Milk?", "choices": ["yes", "no"]}}
TODO = {"name": "TodoWrite", "arguments": {"todos": [{"content": "tea", "status": "pending"}]}}
BROKEN = {"text": "first try", "error": {"message": "broke", "type": "incomplete", "after": 5}}
READS = {"agent": "You read", "text": "Read."}
DENY = PermissionGate(permission_mode="deny")
# The components of one run of each: the model's turns, and options.
RUNS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "text": ([{"reasoning": "I think, and think.", "text": "Hello there. " * 5, "deltas": 3}], {}),
    "letters": ([{"text": "a\ud83d\ude00b\u2028\x1b👨\u200d👩\ud800c", "deltas": 1}], {}),
    "nothing": ([""], {}),
    "tools": (
        [
            {"text": "I look.", "tool_calls": [ECHO, {"name": "fail"}, {"name": "nobody"}]},
            {"tool_calls": [{"name": "echo", "raw_arguments": '{"te'}, TODO]},
            {"reasoning": "Done?", "text": "Done."},
        ],
        {},
    ),
    "denied": ([{"tool_calls": [{"name": "fail"}]}, "I may not."], {"permission_gate": DENY}),
    "subagent": ([{"tool_calls": [TASK, TASK]}, READS, READS, "Done."], {}),
    "retried": ([BROKEN, "second try"], {"retry": RetryPolicy(max_retries=1, base_s=0.0)}),
    "failed": ([BROKEN], {}),
    "limited": ([{"tool_calls": [ECHO]}, "never"], {"max_steps": 1}),
    "parked": ([{"text": "I ask.", "tool_calls": [ASK, ECHO]}, "Thanks."], {}),
}


def options_for(turns: Sequence[Any], **more: Any) -> OpenAgenticOptions:
    settings: dict[str, Any] = {
        "provider": ScriptedProvider(turns),
        "model": "scripted",
        "tools": [echo, fail, TodoWriteTool(), AskUserQuestionTool()],
        "agents": {"reader": AgentDefinition("Reads.", "You read.")},
        "permission_gate": PermissionGate(permission_mode="bypass"),
        "session_store": MemorySessionStore(),
        "redact": False,
    }
    return OpenAgenticOptions(**{**settings, **more})


async def live_events(options: OpenAgenticOptions, prompt: str | None = "Go.") -> list[Event]:
    """What a server's follower sees of a run in its process: the session's own events, with deltas in between."""
    store, session_id = options.session_store, options.resume
    assert isinstance(store, MemorySessionStore) and session_id is not None
    following = follow(store, session_id, after_seq=store.last_seq(session_id), deltas=True, until_result=True)
    first = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0)  # it follows from now on, and misses no delta
    run = submit(prompt, options)
    seen = [await first, *[event async for event in following]]
    await run.wait()
    return seen


def begin(name: str) -> OpenAgenticOptions:
    """The options of one of `RUNS`, on an existing session."""
    turns, more = RUNS[name]
    options = options_for(turns, **more)
    assert isinstance(options.session_store, MemorySessionStore)
    return replace(options, resume=options.session_store.create_session(metadata={}))


def stored(options: OpenAgenticOptions) -> list[Event]:
    assert isinstance(options.session_store, MemorySessionStore) and options.resume is not None
    return options.session_store.read_events(options.resume)


def record(name: str) -> tuple[list[Event], list[Event]]:
    """One run: as seen live, and as stored."""
    options = begin(name)
    return asyncio.run(live_events(options)), stored(options)


def fixture_logs() -> dict[str, list[Event]]:
    """Every log of the fixtures, by its path; events of older tools are numbered by position, as stores return them."""
    paths = [*sorted(FIXTURES.glob("logs/*/events.jsonl")), *sorted(FIXTURES.glob("durability/*.jsonl"))]
    return {
        os.fspath(path.relative_to(FIXTURES)): [
            loads_event(json.dumps({"seq": number, **json.loads(line)}), strict=False)
            for number, line in enumerate(path.read_bytes().split(b"\n"), 1)
            if line.endswith(b"}")
        ]
        for path in paths
    }
