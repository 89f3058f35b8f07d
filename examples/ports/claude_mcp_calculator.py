"""examples/mcp_calculator.py of claude-agent-sdk 0.2.189: custom tools, allowed by name, and a prompt for each."""

import asyncio
import math

from plays import call, settings

from openagentic_sdk import AgentClient, AnyEvent, MemorySessionStore, OpenAgenticOptions, Tool, ToolError, tool

PLAY = (
    "add, subtract, multiply, divide, square_root, power",
    call("add", a=15, b=27),
    "15 + 27 = 42.",
    call("divide", a=100, b=7),
    "100 / 7 is about 14.29.",
    call("square_root", n=144),
    "The square root of 144 is 12.",
    call("power", base=2, exponent=8),
    "2 to the power of 8 is 256.",
    {"tool_calls": [*call("add", a=12, b=8)["tool_calls"], *call("divide", a=1, b=0)["tool_calls"]]},
    call("multiply", a=20, b=3),
    call("subtract", a=60, b=10),
    "(12 + 8) * 3 - 10 = 50.",
)


@tool(effect="read")
def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


@tool(effect="read")
def subtract(a: float, b: float) -> float:
    """Subtract one number from another."""
    return a - b


@tool(effect="read")
def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


@tool(effect="read")
def divide(a: float, b: float) -> float:
    """Divide one number by another."""
    if b == 0:
        raise ToolError("division by zero is not allowed")
    return a / b


@tool(effect="read")
def square_root(n: float) -> float:
    """Calculate a square root."""
    if n < 0:
        raise ToolError(f"the negative number {n} has no square root")
    return math.sqrt(n)


@tool(effect="read")
def power(base: float, exponent: float) -> float:
    """Raise a number to a power."""
    return float(base**exponent)


def display(event: AnyEvent) -> None:
    if event.type == "assistant.message" and event.text:
        print(f"Model: {event.text}")
    elif event.type == "tool.use":
        print(f"Using tool: {event.name} {dict(event.input)}")
    elif event.type == "tool.result":
        print(f"Tool result: {event.error_message if event.is_error else event.output}")
    elif event.type == "result" and event.cost_usd:
        print(f"Cost: ${event.cost_usd:.6f}")


async def main() -> None:
    calculator: list[Tool] = [add, subtract, multiply, divide, square_root, power]
    options = OpenAgenticOptions(
        **settings("anthropic:claude-sonnet-4-5", *PLAY),
        tools=calculator,
        allowed_tools=[each.name for each in calculator],
        session_store=MemorySessionStore(),
    )
    for prompt in (
        "List your tools",
        "Calculate 15 + 27",
        "What is 100 divided by 7?",
        "Calculate the square root of 144",
        "What is 2 raised to the power of 8?",
        "Calculate (12 + 8) * 3 - 10",
    ):
        print(f"== {prompt}")
        async with AgentClient(options) as client:
            await client.send(prompt)
            async for event in client.receive():
                display(event)


if __name__ == "__main__":
    asyncio.run(main())
