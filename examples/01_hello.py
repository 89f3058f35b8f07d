"""One prompt, one answer."""

import asyncio

from model import model

from openagentic_sdk import MemorySessionStore, OpenAgenticOptions, run


async def main() -> None:
    options = OpenAgenticOptions(**model("Hello from the model!"), session_store=MemorySessionStore())
    result = await run(prompt="Say hello.", options=options, raise_on_error=True)
    print(result.final_text)
    print(f"ended because of: {result.stop_reason}, steps: {result.steps}")


asyncio.run(main())
