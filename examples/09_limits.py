"""Limits end a run, never a session: it continues where it stopped as soon as it may."""

import asyncio
from dataclasses import replace

from model import PROJECTS, call, model

from openagentic_sdk import MemorySessionStore, OpenAgenticOptions, run

TURNS = (
    {"tool_calls": [call("Read", file_path="NOTES.md")]},
    {"tool_calls": [call("Read", file_path="src/version.py")]},
    "The notes belong to version 0.2.0.",
)


async def main() -> None:
    options = OpenAgenticOptions(
        **model(*TURNS), cwd=PROJECTS / "checklist", session_store=MemorySessionStore(), max_steps=1
    )
    stopped = await run(prompt="Which version do the notes belong to?", options=options)
    print(stopped.stop_reason, "after", stopped.steps, "step:", stopped.error_message)
    poor = replace(options, resume=stopped.session_id, max_steps=10, max_tokens=1)
    refused = await run(prompt="Go on.", options=poor)
    print(refused.stop_reason, "after", refused.steps, "steps")
    ended = await run(prompt="Go on.", options=replace(poor, max_tokens=None))
    print(ended.stop_reason, "after", ended.steps, "steps:", ended.final_text)


asyncio.run(main())
