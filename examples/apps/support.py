"""Answer the customers of a shop; a refund waits until somebody approves it, in another process or on another day.

python3 examples/apps/support.py init python3 examples/apps/support.py ask ada "Order 7 never came."     --model
openai:gpt-4o python3 examples/apps/support.py approvals python3 examples/apps/support.py approve QUESTION
--model openai:gpt-4o python3 examples/apps/support.py refuse QUESTION "It was delivered." --model openai:gpt-4o
"""

from __future__ import annotations

import re
import sqlite3
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

from common import UsageError, command_line, exit_code, model_of, options_of, shared_flags

from openagentic_sdk import Agent, RunFailedError, ToolContext, UserQuestion, open_store
from openagentic_sdk.errors import GuardrailTrippedError, ModelRetryError


@dataclass
class Order:
    """An order of the shop."""

    id: str
    item: str
    price: Decimal
    state: Literal["sent", "delivered", "refunded"]


@dataclass
class Shop:
    """The orders of one customer, in an SQLite file."""

    path: Path
    customer: str

    def orders(self) -> list[Order]:
        """All orders of the customer."""
        with closing(sqlite3.connect(self.path)) as db:
            rows = db.execute("SELECT id, item, price, state FROM orders WHERE customer = ?", (self.customer,))
            return [Order(id, item, Decimal(price), state) for id, item, price, state in rows]

    def refund(self, order: str) -> Decimal:
        """Mark an order as refunded, once, and return the refunded amount."""
        found = next((each for each in self.orders() if each.id == order), None)
        if found is None or found.state == "refunded":
            raise ModelRetryError(f"{self.customer} has no order {order!r} that can be refunded: look at the orders")
        with closing(sqlite3.connect(self.path)) as db, db:
            db.execute("UPDATE orders SET state = 'refunded' WHERE id = ?", (order,))
        return found.price

    def create(self) -> None:
        """Create the file, with a few orders."""
        rows = [
            ("7", "ada", "A teapot", "30.00", "sent"),
            ("8", "ada", "Six cups", "24.50", "delivered"),
            ("9", "bob", "A kettle", "45.00", "delivered"),
        ]
        with closing(sqlite3.connect(self.path)) as db, db:
            db.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, customer TEXT, item TEXT, price TEXT, state TEXT)")
            db.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", rows)


@dataclass
class Verdict:
    """The agent's answer."""

    reply: Annotated[str, "what the customer reads"]
    refunded: Annotated[Decimal, "what was paid back in this conversation, 0 if nothing"]
    escalate: Annotated[bool, "whether a person must look at it"]


def list_orders(ctx: ToolContext[Shop]) -> list[Order]:
    """List the customer's orders."""
    return ctx.deps.orders()


def refund(ctx: ToolContext[Shop], order: str, reason: Literal["lost", "damaged", "late"]) -> Decimal:
    """Refund an order. Return the refunded amount."""
    return ctx.deps.refund(order)


def who_asks(ctx: ToolContext[Shop]) -> str:
    return f"The customer is {ctx.deps.customer}."


def no_card_number(ctx: ToolContext[Shop], prompt: str) -> str | None:
    return "a card number does not belong here" if re.search(r"\b(?:\d[ -]?){15,16}\b", prompt) else None


def pays_what_it_says(ctx: ToolContext[Shop], verdict: Verdict) -> Verdict:
    paid = sum((order.price for order in ctx.deps.orders() if order.state == "refunded"), Decimal())
    if verdict.refunded > paid:
        raise ModelRetryError(f"{paid} was paid back, not {verdict.refunded}")
    return verdict


def support_agent(args: Namespace) -> Agent[Shop, Verdict]:
    """The agent that all commands share."""
    return Agent(
        model_of(args),
        name="support",
        instructions=["You answer the customers of a tea shop. Refund what is lost or damaged.", who_asks],
        tools=[list_orders, refund],
        needs_approval=["refund"],
        deps=Shop,
        output=Verdict,
        output_validators=[pays_what_it_says],
        input_guardrails=[no_card_number],
        options=options_of(args),
    )


def ask(args: Namespace) -> int:
    """Answer a customer, or print the questions that the answer waits for."""
    return turn(args, args.customer, args.text, {})


def decide(args: Namespace) -> int:
    """Answer the question of a waiting session, and continue it."""
    for session, question in open_questions(args):
        if question.question_id == args.question:
            answer = "yes" if args.command == "approve" else f"no because {args.reason}"
            return turn(args, session, None, {args.question: answer})
    raise UsageError(f"no question {args.question!r} is open: `approvals` lists those that are")


def turn(args: Namespace, customer: str, text: str | None, answers: dict[str, str]) -> int:
    shop = Shop(args.shop, customer)
    try:
        result = support_agent(args).run_sync(text, deps=shop, session=customer, answers=answers)
    except GuardrailTrippedError as error:
        print(f"not answered: {error.reason}")
        return 2
    except RunFailedError as error:
        if not error.result.questions:
            raise
        for question in error.result.questions:
            print(f"waits for {question.question_id}: {question.prompt} {question.details['input']}")
        return 0
    verdict = result.output
    print(verdict.reply)
    print(f"refunded {verdict.refunded}{', to be looked at' if verdict.escalate else ''}")
    return 0


def approvals(args: Namespace) -> int:
    """Print the questions that wait for a person."""
    for session, question in open_questions(args):
        print(f"{question.question_id}  {session}  {question.prompt} {question.details['input']}")
    return 0


def open_questions(args: Namespace) -> Iterator[tuple[str, UserQuestion]]:
    """Every open question, with its session."""
    store = open_store(args.store)
    for row in store.list_session_summaries():
        for event in store.read_events(row.id):
            if isinstance(event, UserQuestion) and event.question_id in row.open_questions:
                yield row.id, event


def init(args: Namespace) -> int:
    """Create a shop to try this with."""
    if args.shop.exists():
        raise UsageError(f"{args.shop} exists")
    Shop(args.shop, "").create()
    return 0


def program(args: Namespace) -> int:
    if args.command != "init" and not args.shop.is_file():
        raise UsageError(f"there is no shop {args.shop}: `init` makes one")
    return {"init": init, "ask": ask, "approvals": approvals, "approve": decide, "refuse": decide}[args.command](args)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser, flags = command_line(__doc__), shared_flags()
    flags.add_argument("--shop", type=Path, default=Path("shop.db"), help="the orders (default: %(default)s)")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("init", help="make a shop to try this with", parents=[flags])
    asking = commands.add_parser("ask", help="answer a customer", parents=[flags])
    asking.add_argument("customer")
    asking.add_argument("text")
    commands.add_parser("approvals", help="list what waits for a person", parents=[flags])
    commands.add_parser("approve", help="let a call run", parents=[flags]).add_argument("question")
    refusing = commands.add_parser("refuse", help="let it not run", parents=[flags])
    refusing.add_argument("question")
    refusing.add_argument("reason")
    return exit_code(program, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
