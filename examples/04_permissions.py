"""Rules decide what may run; for each call, the log records who allowed it, and why."""

import asyncio
import tempfile

from model import call, model

from openagentic_sdk import MemorySessionStore, OpenAgenticOptions, PermissionGate, run
from openagentic_sdk.events import PermissionDecision, ToolResult

TURNS = (
    {"tool_calls": [call("Bash", command="touch ready"), call("Bash", command="touch ready && rm -rf notes")]},
    "One command ran; the other one was not allowed.",
)


async def main() -> None:
    gate = PermissionGate(allow=("Bash(touch:*)",), deny=("Bash(rm:*)",))
    with tempfile.TemporaryDirectory() as folder:
        options = OpenAgenticOptions(
            **model(*TURNS), cwd=folder, permission_gate=gate, session_store=MemorySessionStore()
        )
        result = await run(prompt="Clean up.", options=options)
    for event in result.events:
        if isinstance(event, PermissionDecision):
            print("allowed" if event.allowed else "denied", "by the rule", event.rule)
        elif isinstance(event, ToolResult):
            print("  outcome:", event.outcome)
    print(result.final_text)


asyncio.run(main())
