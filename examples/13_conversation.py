"""Many turns in one session, as in a chat; each turn can be interrupted and steered."""

import asyncio

from model import model

from openagentic_sdk import MemorySessionStore, OpenAgenticOptions
from openagentic_sdk.client import AgentClient
from openagentic_sdk.events import AssistantMessage

TURNS = (
    "Hello Ada, what shall we look at?",
    {"text": "Your name is Ada.", "expect": {"contains": ["I am Ada.", "Hello Ada"]}},
)


async def main() -> None:
    options = OpenAgenticOptions(**model(*TURNS), session_store=MemorySessionStore())
    async with AgentClient(options) as client:
        for prompt in ("I am Ada.", "What is my name?"):
            print(">", prompt)
            await client.send(prompt)
            async for event in client.receive():
                if isinstance(event, AssistantMessage):
                    print(event.text)
        print(client.state, "after", client.metrics().messages, "messages")


asyncio.run(main())
