"""examples/tool_permission_callback.py of claude-agent-sdk 0.2.189: code that allows, refuses and redirects each call."""

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plays import call, settings

from openagentic_sdk import AgentClient, ApprovalResult, MemorySessionStore, OpenAgenticOptions, PermissionGate

PLAY = (
    call("Glob", pattern="*"),
    call("Write", file_path="hello.py", content="print('Hello, world!')\n"),
    call("Bash", command="python3 safe_output/hello.py && sudo reboot"),
    call("Write", file_path="/etc/motd", content="Hello."),
    call("Bash", command="echo done"),
    "hello.py is written, and it works.",
)
DANGEROUS = ("rm -rf", "sudo", "chmod 777", "dd if=", "mkfs")
asked: list[tuple[str, Mapping[str, Any]]] = []


async def can_use_tool(tool_name: str, tool_input: Mapping[str, Any], context: Mapping[str, Any]) -> ApprovalResult:
    """Decide about a call that no rule has settled."""
    asked.append((tool_name, tool_input))
    if tool_name in ("Write", "Edit"):
        path = tool_input["file_path"]
        if path.startswith(("/etc/", "/usr/")):
            return ApprovalResult(False, reason=f"{path} is in a system directory")
        if not path.startswith(("/tmp/", "./")):
            safe = f"./safe_output/{Path(path).name}"
            print(f"redirected: {path} to {safe}")
            return ApprovalResult(True, updated_input={**tool_input, "file_path": safe})
        return ApprovalResult(True)
    if tool_name == "Bash":
        for pattern in DANGEROUS:
            if pattern in tool_input["command"]:
                return ApprovalResult(False, reason=f"the command contains {pattern!r}")
        return ApprovalResult(True)
    said = await asyncio.to_thread(input, f"Allow {tool_name}? (y/N): ")
    return ApprovalResult(said.strip().lower() in ("y", "yes"))


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        options = OpenAgenticOptions(
            **settings("anthropic:claude-sonnet-4-5", *PLAY),
            cwd=folder,
            permission_gate=PermissionGate(approver=can_use_tool),
            session_store=MemorySessionStore(),
        )
        async with AgentClient(options) as client:
            await client.send("List the files here, create hello.py with a simple hello world, and run it.")
            async for event in client.receive():
                if event.type == "assistant.message" and event.text:
                    print(f"Model: {event.text}")
                elif event.type == "tool.result" and event.outcome == "denied":
                    print(f"denied: {event.error_message}")
                elif event.type == "result":
                    print(f"ended: {event.stop_reason}, after {event.steps} steps")
    for number, (name, given) in enumerate(asked, 1):
        print(f"{number}. {name} {dict(given)}")


if __name__ == "__main__":
    asyncio.run(main())
