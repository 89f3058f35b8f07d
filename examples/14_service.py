"""Background runs in a service: followed by many clients, answered from elsewhere, stopped without losing a question."""

import asyncio

from model import call, model

from openagentic_sdk import MemorySessionStore, OpenAgenticOptions, PermissionGate, events, tool
from openagentic_sdk.runs.background import answer_question, submit
from openagentic_sdk.sessions.follow import follow

STORE = MemorySessionStore()  # a service takes open_store("sqlite:runs.db") or a server


@tool
def deploy(version: str) -> str:
    """Put a version into production."""
    return f"{version} is live"


def options(*turns: object, **more: object) -> OpenAgenticOptions:
    return OpenAgenticOptions(**model(*turns), tools=[deploy], session_store=STORE, **more)


async def watch(name: str, session_id: str, after_seq: int, deltas: bool) -> str:
    """The stream for a browser that has the events up to `after_seq`; deltas are the text as it arrives."""
    seen = [e async for e in follow(STORE, session_id, after_seq=after_seq, deltas=deltas, until_result=True)]
    text = "".join(event.text_delta for event in seen if isinstance(event, events.AssistantDelta))
    return f"{name} began at event {seen[0].seq}" + (f" and read {text!r} as it came" if deltas else "")


async def main() -> None:
    deployment = {"tool_calls": [call("deploy", version="1.2")]}
    run = submit("Deploy 1.2, please.", options(deployment))
    parked = await run.wait()  # nobody can answer here; the process may end now
    print(parked.state, "on:", parked.question.prompt, len(STORE.list_session_summaries()[0].open_questions))
    last = STORE.last_seq(run.session_id)

    await answer_question(STORE, run.session_id, parked.question.question_id, "yes")  # from any process
    run = submit(None, options("Version 1.2 is live.", resume=run.session_id))
    first = asyncio.create_task(watch("a newcomer", run.session_id, last, True))
    second = asyncio.create_task(watch("one who was away", run.session_id, last + 2, False))
    print(await first, await second, (await run.wait()).state, sep="\n")

    asked = asyncio.Event()

    async def person(question: object) -> str:
        asked.set()
        return await asyncio.Future()  # never finishes thinking

    gate = PermissionGate(user_answerer=person)
    late = submit("And 1.3?", options(deployment, permission_gate=gate))
    await asked.wait()
    await late.suspend()  # what a service does on SIGTERM
    print("stopped:", (await late.wait()).stop_reason)


asyncio.run(main())
