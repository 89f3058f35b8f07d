"""A run that is interrupted in the middle of a tool leaves a closed log, and the session continues."""

import asyncio
from dataclasses import replace

from model import call, model

from openagentic_sdk import MemorySessionStore, OpenAgenticOptions, query, run, tool
from openagentic_sdk.events import SystemInit, ToolStarted

TURNS = (
    {"tool_calls": [call("wait_for_rain")]},
    {"text": "It did not rain before you stopped me.", "expect": {"contains": "interrupted"}},
)


@tool
async def wait_for_rain() -> str:
    """Wait until it rains."""
    await asyncio.sleep(3600)
    return "it rains"


async def main() -> None:
    options = OpenAgenticOptions(
        **model(*TURNS),
        tools=[wait_for_rain],
        allowed_tools=["wait_for_rain"],
        session_store=MemorySessionStore(),
    )
    session_id = await stop_at_the_first_call(options)
    result = await run(prompt="And?", options=replace(options, resume=session_id))
    outcomes = [event for event in options.session_store.read_events(session_id) if event.type == "tool.result"]
    print("the call was closed as:", outcomes[0].outcome)
    print(result.final_text)


async def stop_at_the_first_call(options: OpenAgenticOptions) -> str:
    session_id = ""
    events = query(prompt="Tell me when it rains.", options=options)
    async for event in events:
        if isinstance(event, SystemInit):
            session_id = event.session_id
        if isinstance(event, ToolStarted):
            await events.aclose()
    return session_id


asyncio.run(main())
