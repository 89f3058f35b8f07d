"""examples/agent_patterns/human_in_the_loop.py of openai-agents 0.24.0: a call waits, and another process lets it run."""

import asyncio
import sys
import tempfile

from plays import call, model

from openagentic_sdk import Agent, HookDecision, OpenAgenticOptions, RunFailedError, ToolContext, UserQuestion

MODEL = model(
    "openai:gpt-4o",
    {
        "tool_calls": [
            *call("get_weather", city="Oakland")["tool_calls"],
            *call("get_temperature", city="Oakland")["tool_calls"],
        ]
    },
    "It is sunny in Oakland, at 20 degrees.",
)


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"The weather in {city} is sunny"


def get_temperature(city: str) -> str:
    """Get the temperature of a city."""
    return f"The temperature in {city} is 20 degrees"


def ask_about_oakland(ctx: ToolContext[None], payload: dict[str, object]) -> HookDecision | None:
    asks = payload["tool_name"] == "get_temperature" and "Oakland" in str(payload["tool_input"])
    return HookDecision(permission="ask") if asks else None


def weather_agent(store: str) -> Agent[None, str]:
    """The agent, as each process creates it."""
    return Agent(
        MODEL,
        instructions="You answer questions about weather and temperature with the tools.",
        tools=[get_weather, get_temperature],
        hooks={"pre_tool_use": [ask_about_oakland]},
        options=OpenAgenticOptions(session_store=store),
    )


async def ask(store: str) -> list[UserQuestion]:
    """Ask, and return the questions that wait for a person."""
    try:
        print(
            (
                await weather_agent(store).run("What is the weather and temperature in Oakland?", session="oakland")
            ).output
        )
    except RunFailedError as error:
        if not error.result.questions:
            raise
        return list(error.result.questions)
    return []


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:{folder}/runs.db"
        answers: dict[str, str] = {}
        for question in await ask(store):
            print(f"{question.prompt} {question.details['input']}")
            answers[question.question_id] = await asyncio.to_thread(input, "(y/n): ") if sys.stdin.isatty() else "yes"
        # Only the store is kept: this may be another process, next week.
        result = await weather_agent(store).run(session="oakland", answers=answers)
        print(result.output)


if __name__ == "__main__":
    asyncio.run(main())
