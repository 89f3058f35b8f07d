"""examples/customer_service/main.py of openai-agents 0.24.0: a triage that hands over to two agents."""

import asyncio
import random
import sys
from dataclasses import dataclass

from plays import call, model

from openagentic_sdk import Agent, MemorySessionStore, OpenAgenticOptions, ToolContext

MODEL = model(
    "openai:gpt-4o",
    call("transfer_to_faq"),
    call("faq_lookup", question="How many bags may I bring?"),
    "You may bring one bag of up to 50 pounds.",
    call("transfer_to_triage"),
    call("transfer_to_seat_booking"),
    "What is your confirmation number, and which seat would you like?",
    call("update_seat", confirmation_number="C-17", new_seat="12A"),
    "You have seat 12A.",
)
STORE = OpenAgenticOptions(session_store=MemorySessionStore())
SAID = ["How many bags may I bring?", "I want another seat.", "C-17, seat 12A please."]
ANSWERS = {
    ("bag", "luggage", "carry-on"): "One bag is free. It may weigh 50 pounds and measure 22 x 14 x 9 inches.",
    ("seat", "plane"): "There are 120 seats: 22 in business class, 98 in economy. The exits are at rows 4 and 16.",
    ("wifi", "internet", "network"): "The wifi on board is free: join Airline-Wifi.",
}


@dataclass
class Trip:
    """The known facts about the passenger's flight."""

    flight_number: str | None = None
    confirmation_number: str | None = None
    seat_number: str | None = None


def faq_lookup(question: str) -> str:
    """Look up frequently asked questions."""
    found = (said for words, said in ANSWERS.items() if any(word in question.lower() for word in words))
    return next(found, "I do not know the answer to that question.")


def update_seat(ctx: ToolContext[Trip], confirmation_number: str, new_seat: str) -> str:
    """Update the seat of a booking."""
    trip = ctx.deps
    trip.flight_number = trip.flight_number or f"FLT-{random.randint(100, 999)}"
    trip.confirmation_number, trip.seat_number = confirmation_number, new_seat
    return f"Updated the seat to {new_seat} for confirmation number {confirmation_number}"


faq = Agent(
    MODEL,
    name="faq",
    description="Answers questions about the airline.",
    instructions="Answer the customer's last question with the lookup tool. Without one, transfer to the triage.",
    tools=[faq_lookup],
    deps=Trip,
    handoffs=lambda: [triage],
    options=STORE,
)
seat_booking = Agent(
    MODEL,
    name="seat_booking",
    description="Updates a seat on a flight.",
    instructions="Ask for the confirmation number and the desired seat, and update it. Transfer other questions.",
    tools=[update_seat],
    deps=Trip,
    handoffs=lambda: [triage],
    options=STORE,
)
triage: Agent[Trip, str] = Agent(
    MODEL,
    name="triage",
    description="Delegates a request to the right agent.",
    instructions="Delegate each question to the agent for it.",
    deps=Trip,
    handoffs=[faq, seat_booking],
    options=STORE,
)


async def main() -> None:
    agents = {str(agent.name): agent for agent in (triage, faq, seat_booking)}
    agent, trip = triage, Trip()
    for text in sys.argv[1:] or SAID:
        print(f"> {text}")
        async with agent.stream(text, deps=trip, session="customer-17") as stream:
            async for event in stream.events():
                if event.type == "tool.result":
                    print(f"  tool: {event.output}")
            result = await stream.result()
        print(f"{result.agent_name}: {result.output}")
        agent = agents[str(result.agent_name)]
    print(trip.confirmation_number, trip.seat_number)


if __name__ == "__main__":
    asyncio.run(main())
