"""examples/agent_patterns/input_guardrails.py of openai-agents 0.24.0: an agent beside the model that stops homework."""

import asyncio
import sys
from dataclasses import dataclass

from plays import answer, model

from openagentic_sdk import Agent, MemorySessionStore, OpenAgenticOptions, ToolContext
from openagentic_sdk.errors import GuardrailTrippedError

STORE = OpenAgenticOptions(session_store=MemorySessionStore())
SAID = ["What's the capital of California?", "Can you help me solve for x: 2x + 5 = 11"]


@dataclass
class MathHomework:
    """The verdict of the guardrail."""

    reasoning: str
    is_math_homework: bool


guardrail_agent = Agent(
    model(
        "openai:gpt-4o-mini",
        answer(reasoning="It is about geography.", is_math_homework=False),
        answer(reasoning="It is an equation.", is_math_homework=True),
    ),
    instructions="Check if the user is asking you to do their math homework.",
    output=MathHomework,
    options=STORE,
)


async def math_guardrail(ctx: ToolContext[None], prompt: str) -> str | None:
    found = (await guardrail_agent.run(prompt)).output
    return found.reasoning if found.is_math_homework else None


agent = Agent(
    model("openai:gpt-4o", "The capital of California is Sacramento.", "x is 3."),
    instructions="You are a customer support agent. You help customers with their questions.",
    input_guardrails=[math_guardrail],
    options=STORE,
)


async def main() -> None:
    for text in sys.argv[1:] or SAID:
        print(f"> {text}")
        try:
            print((await agent.run(text, session="customer")).output)
        except GuardrailTrippedError as error:
            print(f"Sorry, I can't help you with your math homework. ({error.reason})")


if __name__ == "__main__":
    asyncio.run(main())
