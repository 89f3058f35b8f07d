"""Every event as it happens: text as it arrives, and each tool call from its request to its outcome."""

import asyncio

from model import PROJECTS, call, model

from openagentic_sdk import MemorySessionStore, OpenAgenticOptions, query
from openagentic_sdk.events import AssistantDelta, Result, ToolResult, ToolUse

TURNS = (
    {"text": "I will look it up. ", "tool_calls": [call("Read", file_path="src/version.py")]},
    "The version is 0.2.0.",
)


async def main() -> None:
    options = OpenAgenticOptions(
        **model(*TURNS), cwd=PROJECTS / "checklist", session_store=MemorySessionStore(), max_steps=5
    )
    async for event in query(prompt="Which version is this?", options=options):
        match event:
            case AssistantDelta(text_delta=text):
                print(text, end="", flush=True)
            case ToolUse(name=name, input=arguments):
                print(f"\n[{name} {dict(arguments)}]")
            case ToolResult(outcome=outcome):
                print(f"[{outcome}]")
            case Result(stop_reason=reason, steps=steps):
                print(f"\n{reason} after {steps} steps")


asyncio.run(main())
