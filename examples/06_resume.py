"""A session continues later: in another process, with another model, on the same log."""

import asyncio
import tempfile

from model import model

from openagentic_sdk import FileSessionStore, OpenAgenticOptions, run


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        first = await run(
            prompt="My favourite colour is green. Remember it.",
            options=OpenAgenticOptions(**model("I will."), session_store=FileSessionStore(folder)),
        )
        # Only the files and the id remain of the first run.
        answer = {"text": "Green.", "expect": {"contains": "My favourite colour is green"}}
        second = await run(
            prompt="Which colour do I like?",
            options=OpenAgenticOptions(
                **model(answer), session_store=FileSessionStore(folder), resume=first.session_id
            ),
        )
        events = FileSessionStore(folder).read_events(first.session_id)
    print(second.final_text)
    print("the same session:", second.session_id == first.session_id)
    print("numbered without a hole:", [event.seq for event in events] == list(range(1, len(events) + 1)))
    print("runs in its log:", sum(event.type == "result" for event in events))


asyncio.run(main())
