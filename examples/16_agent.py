"""A typed agent: dependencies, a typed answer, and a refund that somebody approves the next day."""

import asyncio
from dataclasses import dataclass

from model import call, model

from openagentic_sdk import Agent, MemorySessionStore, OpenAgenticOptions, RunFailedError, ToolContext


@dataclass
class Shop:
    """The dependencies of the tools."""

    orders: dict[str, int]
    paid_back: int = 0


@dataclass
class Answer:
    """The agent's answer."""

    text: str
    refunded: int


def look_up(ctx: ToolContext[Shop], order: str) -> int:
    """Return the price of an order."""
    return ctx.deps.orders[order]


async def refund(ctx: ToolContext[Shop], order: str) -> str:
    """Refund an order."""
    ctx.deps.paid_back += ctx.deps.orders[order]
    return "paid back"


TURNS = (
    {"tool_calls": [call("look_up", order="7")]},
    {"tool_calls": [call("refund", order="7")]},
    {"tool_calls": [call("final_answer", text="You get 30 back.", refunded=30)]},
)


async def main() -> None:
    options = OpenAgenticOptions(**model(*TURNS), session_store=MemorySessionStore())
    agent = Agent(tools=[look_up, refund], needs_approval=["refund"], output=Answer, deps=Shop, options=options)
    shop, answers = Shop({"7": 30}), {}
    try:
        await agent.run("Order 7 never came.", deps=shop, session="customer-17")
    except RunFailedError as error:
        for question in error.result.questions:
            print(f"{error.result.stop_reason}: {question.prompt} {question.details['input']}")
            answers[question.question_id] = "yes"
    result = await agent.run(deps=shop, session="customer-17", answers=answers)
    print(result.output, shop.paid_back)


asyncio.run(main())
