"""examples/hooks.py of claude-agent-sdk 0.2.189: hooks that block, add context, review results, decide and stop."""

import asyncio
import sys
import tempfile
from typing import Any

from plays import call, settings

from openagentic_sdk import (
    AgentClient,
    AnyEvent,
    HookDecision,
    HookEngine,
    HookMatcher,
    MemorySessionStore,
    OpenAgenticOptions,
)

PLAYS: dict[str, tuple[Any, ...]] = {
    "PreToolUse": (
        call("Bash", command="./foo.sh --help"),
        "I am not allowed to run that.",
        call("Bash", command="echo 'Hello from hooks example!'"),
        "It printed a greeting.",
    ),
    "UserPromptSubmit": ({"text": "It is hot pink.", "expect": {"contains": "hot pink"}},),
    "PostToolUse": (
        call("Bash", command="ls /nonexistent_directory"),
        {"text": "There is no such directory.", "expect": {"contains": "Try a different approach."}},
    ),
    "DecisionFields": (
        call("Write", file_path="important_config.txt", content="test data"),
        "That file is protected.",
        call("Write", file_path="regular_file.txt", content="test data"),
        "It is written.",
    ),
    "ContinueControl": (call("Bash", command="echo 'CRITICAL ERROR: system failure'"), "never asked"),
}
PROMPTS = {
    "PreToolUse": ("Run the bash command: ./foo.sh --help", "Run the bash command: echo 'Hello from hooks example!'"),
    "UserPromptSubmit": ("What's my favorite color?",),
    "PostToolUse": ("Run this command: ls /nonexistent_directory",),
    "DecisionFields": ("Write 'test data' to important_config.txt", "Write 'test data' to regular_file.txt"),
    "ContinueControl": ("Run this bash command: echo 'CRITICAL ERROR: system failure'",),
}


async def check_bash_command(payload: dict[str, Any]) -> HookDecision | None:
    """Keep a command from running."""
    if "foo.sh" in payload["tool_input"].get("command", ""):
        return HookDecision(block=True, block_reason="the command contains the pattern foo.sh")
    return None


async def add_custom_instructions(payload: dict[str, Any]) -> HookDecision:
    """Add context to a prompt."""
    return HookDecision(additional_context="My favorite color is hot pink")


async def review_tool_output(payload: dict[str, Any]) -> HookDecision | None:
    """Advise the model about an error, and notify the person of it."""
    if payload["tool_output"]["exit_code"] != 0:
        return HookDecision(
            additional_context="The command met an error. Try a different approach.",
            system_message="the command produced an error",
        )
    return None


async def strict_approval(payload: dict[str, Any]) -> HookDecision:
    """Decide about a call in place of the rules."""
    if "important" in payload["tool_input"]["file_path"].lower():
        return HookDecision(permission="deny", block_reason="the policy blocks writes to important files")
    return HookDecision(permission="allow")


async def stop_on_error(payload: dict[str, Any]) -> HookDecision | None:
    """End the run after a critical error."""
    if "critical" in str(payload["tool_output"]).lower():
        return HookDecision(stops=True, block_reason="critical error in the output of a tool")
    return None


HOOKS = {
    "PreToolUse": HookEngine(pre_tool_use=[HookMatcher("check", "Bash", check_bash_command)]),
    "UserPromptSubmit": HookEngine(user_prompt_submit=[HookMatcher("instructions", "*", add_custom_instructions)]),
    "PostToolUse": HookEngine(post_tool_use=[HookMatcher("review", "Bash", review_tool_output)]),
    "DecisionFields": HookEngine(pre_tool_use=[HookMatcher("approval", "Write", strict_approval)]),
    "ContinueControl": HookEngine(post_tool_use=[HookMatcher("stop", "Bash", stop_on_error)]),
}


def display(event: AnyEvent) -> None:
    if event.type == "assistant.message" and event.text:
        print(f"Model: {event.text}")
    elif event.type == "tool.result" and event.is_error:
        print(f"{event.outcome}: {event.error_message}")
    elif event.type == "result":
        print(f"Ended: {event.stop_reason} {event.error_message or ''}".rstrip())


async def example(name: str) -> None:
    print(f"=== {name}")
    with tempfile.TemporaryDirectory() as folder:
        options = OpenAgenticOptions(
            **settings("anthropic:claude-sonnet-4-5", *PLAYS[name]),
            cwd=folder,
            allowed_tools=["Bash"],
            hooks=HOOKS[name],
            session_store=MemorySessionStore(),
        )
        async with AgentClient(options) as client:
            for prompt in PROMPTS[name]:
                print(f"User: {prompt}")
                await client.send(prompt)
                async for event in client.receive():
                    display(event)


async def main() -> None:
    names = sys.argv[1:] or list(HOOKS)
    if unknown := set(names) - set(HOOKS):
        sys.exit(f"there is no example {min(unknown)!r}: the examples are {', '.join(HOOKS)}")
    for name in names:
        await example(name)


if __name__ == "__main__":
    asyncio.run(main())
