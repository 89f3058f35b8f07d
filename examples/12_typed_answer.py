"""An answer as data: it fits the schema of a dataclass, or the model reads what is wrong and tries again."""

import asyncio
from dataclasses import dataclass

from model import PROJECTS, call, model

from openagentic_sdk import MemorySessionStore, OpenAgenticOptions, run


@dataclass
class Release:
    """The type of the answer."""

    version: str
    open_points: list[str]
    is_ready: bool


TURNS = (
    {"tool_calls": [call("Read", file_path="NOTES.md")]},
    {"tool_calls": [call("final_answer", version="0.2.0", open_points="one", is_ready=False)]},
    {"tool_calls": [call("final_answer", version="0.2.0", open_points=["say what is too cold"], is_ready=False)]},
)


async def main() -> None:
    options = OpenAgenticOptions(
        **model(*TURNS), cwd=PROJECTS / "checklist", output_schema=Release, session_store=MemorySessionStore()
    )
    result = await run(prompt="Is the newest version ready?", options=options)
    print(result.structured_output)
    for event in result.events:
        if event.type == "tool.result" and event.is_error:
            print("sent back:", event.error_message)


asyncio.run(main())
