"""examples/flight_booking.py of pydantic-ai 2.62.0: an agent asks another, a validator sends it back, within limits."""

import asyncio
import datetime
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from plays import answer, call, model

from openagentic_sdk import Agent, MemorySessionStore, OpenAgenticOptions, ToolContext
from openagentic_sdk.errors import ModelRetryError

STORE = OpenAgenticOptions(session_store=MemorySessionStore())
PAGE = """
1. SFO-AK123, $350, San Francisco (SFO) to Anchorage (ANC), January 10, 2025
2. SFO-AK456, $370, San Francisco (SFO) to Fairbanks (FAI), January 10, 2025
3. SFO-AK789, $400, San Francisco (SFO) to Juneau (JNU), January 20, 2025
4. NYC-LA101, $250, San Francisco (SFO) to Anchorage (ANC), January 10, 2025
5. BOS-SEA303, $120, Boston (BOS) to Anchorage (ANC), January 12, 2025
"""


@dataclass
class FlightDetails:
    """Details of the most suitable flight."""

    flight_number: str
    price: int
    origin: Annotated[str, "Three-letter airport code"]
    destination: Annotated[str, "Three-letter airport code"]
    date: datetime.date


@dataclass
class NoFlightFound:
    """No valid flight is found."""

    reason: str


@dataclass
class SeatPreference:
    """A seat."""

    row: Annotated[int, "1 to 30"]
    seat: Literal["A", "B", "C", "D", "E", "F"]


@dataclass
class Failed:
    """The text names no seat."""

    reason: str


@dataclass
class Search:
    """The requested flight, and the page to search."""

    page: str
    origin: str
    destination: str
    date: datetime.date


def flight(number: str, price: int, origin: str = "SFO") -> dict[str, Any]:
    return {
        "flight_number": number,
        "price": price,
        "origin": origin,
        "destination": "ANC",
        "date": "2025-01-12" if origin == "BOS" else "2025-01-10",
    }


FLIGHTS = [flight("SFO-AK123", 350), flight("NYC-LA101", 250), flight("BOS-SEA303", 120, "BOS")]
SAID = ["search", "buy", "somewhere nice", "row 1, at the window"]

extraction_agent = Agent(
    model("openai:gpt-4o", answer(value=FLIGHTS)),
    name="extraction",
    output=list[FlightDetails],
    instructions="Extract all the flight details from the given text.",
    options=STORE,
)


async def extract_flights(ctx: ToolContext[Search]) -> list[FlightDetails]:
    """Get details of all flights."""
    return (await extraction_agent.run(ctx.deps.page, max_steps=5)).output


def fits_search(ctx: ToolContext[Search], found: FlightDetails | NoFlightFound) -> FlightDetails | NoFlightFound:
    if isinstance(found, FlightDetails):
        wanted = ctx.deps
        pairs = {
            "origin": (wanted.origin, found.origin),
            "destination": (wanted.destination, found.destination),
            "date": (wanted.date, found.date),
        }
        if wrong := [f"{name} should be {want}, not {got}" for name, (want, got) in pairs.items() if want != got]:
            raise ModelRetryError("; ".join(wrong))
    return found


search_agent = Agent(
    model(
        "openai:gpt-4o",
        call("extract_flights"),
        answer(value=FLIGHTS[2]),
        answer(value=FLIGHTS[0]),
        answer(value=FLIGHTS[1]),
    ),
    deps=Search,
    output=FlightDetails | NoFlightFound,
    output_retries=4,
    instructions="Your job is to find the cheapest flight for the user on the given date.",
    tools=[extract_flights],
    output_validators=[fits_search],
    options=STORE,
)
seat_agent = Agent(
    model("openai:gpt-4o", answer(value={"reason": "It names no seat."}), answer(value={"row": 1, "seat": "A"})),
    output=SeatPreference | Failed,
    instructions="Extract the user's seat. A and F are at the window. Rows 1, 14 and 20 have extra leg room.",
    options=STORE,
)


def said(prompt: str) -> str:
    text = input(f"{prompt} ") if sys.stdin.isatty() else SAID.pop(0)
    print(f"{prompt} {text}")
    return text


async def main() -> None:
    search = Search(PAGE, "SFO", "ANC", datetime.date(2025, 1, 10))
    prompt = f"Find me a flight from {search.origin} to {search.destination} on {search.date}"
    while True:
        found = (await search_agent.run(prompt, deps=search, session="search", max_steps=15, max_tokens=50_000)).output
        if isinstance(found, NoFlightFound):
            print("No flight found:", found.reason)
            return
        print(f"Flight found: {found}")
        if said("Buy this flight, or keep searching? (buy/search)") == "buy":
            break
        prompt = "Please suggest another flight"
    while isinstance(seat := (await seat_agent.run(said("What seat would you like?"), session="seat")).output, Failed):
        print(f"Please try again: {seat.reason}")
    print(f"Purchasing {found.flight_number}, {seat}")


if __name__ == "__main__":
    asyncio.run(main())
