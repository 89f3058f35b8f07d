"""Two subagents at work: each has its own session, and only its last text enters the conversation."""

import asyncio

from model import PROJECTS, call, model

from openagentic_sdk import AgentDefinition, MemorySessionStore, OpenAgenticOptions, run
from openagentic_sdk.events import SubagentFinished, ToolUse

AGENTS = {
    "reader": AgentDefinition("Reads one file and sums it up.", "You are the reader.", tools=("Read",)),
    "counter": AgentDefinition("Counts things in files.", "You are the counter.", tools=("Grep",)),
}
TURNS = (
    {
        "tool_calls": [
            call("Task", agent="reader", prompt="What does NOTES.md say about 0.2.0?"),
            call("Task", agent="counter", prompt="How many TODOs are in src?"),
        ]
    },
    {"agent": "You are the reader", "tool_calls": [call("Read", file_path="NOTES.md")]},
    {"agent": "You are the reader", "text": "Kelvin is understood now."},
    {"agent": "You are the counter", "tool_calls": [call("Grep", query="TODO", root="src")]},
    {"agent": "You are the counter", "text": "One."},
    {"text": "Kelvin is new, and one TODO is left.", "expect": {"lacks": "absolute zero"}},
)


async def main() -> None:
    store = MemorySessionStore()
    options = OpenAgenticOptions(
        **model(*TURNS), cwd=PROJECTS / "checklist", agents=AGENTS, session_store=store, setting_sources=()
    )
    result = await run(prompt="What is new, and what is left to do?", options=options)
    for event in sorted((e for e in result.events if isinstance(e, ToolUse)), key=lambda use: use.agent_name or ""):
        print(f"{event.agent_name or 'main agent'} calls {event.name}")
    children = [event.child_session_id for event in result.events if isinstance(event, SubagentFinished)]
    print("linked both ways:", all(_parent(store, child) == result.session_id for child in children))
    print(result.final_text)


def _parent(store: MemorySessionStore, session_id: str) -> str:
    return str(store.read_metadata(session_id)["metadata"]["parent_session_id"])


asyncio.run(main())
