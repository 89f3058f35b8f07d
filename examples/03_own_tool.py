"""A typed function as a tool: its schema comes from the annotations, and arguments that do not fit never reach it."""

import asyncio
from typing import Annotated, Literal

from model import call, model

from openagentic_sdk import MemorySessionStore, OpenAgenticOptions, run, tool
from openagentic_sdk.events import ToolResult


@tool(effect="read")
async def convert(
    degrees: Annotated[float, "the temperature to convert"],
    scale: Annotated[Literal["fahrenheit", "kelvin"], "the scale of the result"] = "kelvin",
) -> str:
    """Convert degrees Celsius to another scale."""
    result = degrees * 9 / 5 + 32 if scale == "fahrenheit" else degrees + 273.15
    return f"{result:.2f} {scale}"


TURNS = (
    {"tool_calls": [call("convert", degrees="warm"), call("convert", degrees=20, scale="fahrenheit")]},
    "20 degrees Celsius are 68 degrees Fahrenheit.",
)


async def main() -> None:
    print(convert.run_sync({"degrees": 0}, None))  # a tool can be used without an agent
    options = OpenAgenticOptions(
        **model(*TURNS), tools=[convert], allowed_tools=["convert"], session_store=MemorySessionStore()
    )
    result = await run(prompt="How warm are 20 degrees Celsius in Fahrenheit?", options=options)
    for event in result.events:
        if isinstance(event, ToolResult):
            print(event.outcome, "-", event.error_message or event.output)
    print(result.final_text)


asyncio.run(main())
