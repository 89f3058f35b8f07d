"""examples/stream_whales.py of pydantic-ai 2.62.0: a table that grows while the typed answer streams."""

import asyncio
import json
from typing import Annotated, NotRequired, TypedDict

from plays import model

from openagentic_sdk import Agent, MemorySessionStore, OpenAgenticOptions


class Whale(TypedDict):
    """A species."""

    name: str
    length: Annotated[float, "Average length of an adult whale in meters."]
    weight: NotRequired[Annotated[float, "Average weight of an adult whale in kilograms."]]
    ocean: NotRequired[str]


WHALES = [
    {"name": "Blue whale", "length": 25, "weight": 140000, "ocean": "All"},
    {"name": "Orca", "length": 7, "weight": 5000},
    {"name": "Narwhal", "length": 4.5, "ocean": "Arctic"},
]
agent = Agent(
    model("openai:gpt-4o", {"text": json.dumps(WHALES), "deltas": 40}),
    output=list[Whale],
    options=OpenAgenticOptions(output_form="text", session_store=MemorySessionStore()),
)


def table(whales: list[Whale]) -> str:
    rows: list[str] = []
    for number, whale in enumerate(whales, 1):
        weight, ocean = whale.get("weight", "..."), whale.get("ocean", "...")
        rows.append(f"{number:>2} {whale['name']:<12} {whale['length']:>4.0f} m {weight:>8} {ocean}")
    return "\n".join(rows)


async def main() -> None:
    async with agent.stream("Generate me details of 3 species of whale.") as stream:
        async for whales in stream.output():
            print(f"-- {len(whales)}", table(whales), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
