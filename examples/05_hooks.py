"""Hooks see every call before it runs and every result before the model does; they can change or stop both."""

import asyncio
from typing import Any

from model import PROJECTS, call, model

from openagentic_sdk import HookDecision, HookEngine, HookMatcher, MemorySessionStore, OpenAgenticOptions, run
from openagentic_sdk.events import HookEvent, ToolResult

TURNS = (
    {"tool_calls": [call("Read", file_path="NOTES.md"), call("Read", file_path=".env")]},
    "I have read the notes; the other file is none of my business.",
)


def guard_secrets(hook: dict[str, Any]) -> HookDecision | None:
    """Refuse to read files that look like secrets."""
    if hook["tool_input"].get("file_path", "").endswith(".env"):
        return HookDecision(block=True, block_reason="files of secrets are not read")
    return None


async def shorten(hook: dict[str, Any]) -> HookDecision:
    """Give the model a summary instead of the whole output."""
    return HookDecision(override_tool_output=f"{len(str(hook['tool_output']))} characters were read", action="shorten")


async def main() -> None:
    hooks = HookEngine(
        pre_tool_use=[HookMatcher("guard_secrets", "Read|Edit|Write", guard_secrets)],
        post_tool_use=[HookMatcher("shorten", "Read", shorten)],
    )
    options = OpenAgenticOptions(
        **model(*TURNS), cwd=PROJECTS / "checklist", hooks=hooks, session_store=MemorySessionStore()
    )
    result = await run(prompt="Read what you can.", options=options)
    for event in result.events:
        if isinstance(event, HookEvent):
            print(f"hook {event.name} at {event.hook_point}: {event.action}")
        elif isinstance(event, ToolResult):
            print(f"{event.outcome}: {'output is shortened' if event.outcome == 'ok' else event.error_message}")
    print(result.final_text)


asyncio.run(main())
