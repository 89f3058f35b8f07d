"""A chat desk over HTTP: a session for each customer, and vouchers that somebody approves later.

    DESK_TOKEN=secret python3 examples/apps/desk.py --port 8080 --store sqlite:desk.db --model openai:gpt-4o

    POST /customers/NAME/messages  {"text": ...}                    200 {"reply"}, or 202 {"waits_for": [...]}
    GET  /approvals                                                 open questions of all customers
    POST /approvals/QUESTION       {"answer": "yes"}                200 {"reply"}; "no because ..." refuses the call

Stop it and start it again: sessions and questions are in the store.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from common import UsageError, command_line, exit_code, model_of, options_of, shared_flags

from openagentic_sdk import Agent, RunFailedError, SessionStore, UserQuestion, open_store
from openagentic_sdk.errors import AnswerRefusedError, GuardrailTrippedError, OptionsError, SessionLockedError

MAX_BODY_BYTES = 64 * 1024
Reply = tuple[HTTPStatus, Mapping[str, Any]]


def opening_hours(day: str) -> str:
    """Return the opening hours of the tea room."""
    return "closed" if day.lower() == "monday" else "10 to 18"


def give_voucher(euros: int, reason: str) -> str:
    """Give the customer a voucher."""
    return f"TEA-{euros}"


def no_abuse(ctx: object, prompt: str) -> str | None:
    return "be kind, please" if re.search(r"\b(idiot|moron)s?\b", prompt, re.IGNORECASE) else None


class Desk(ThreadingHTTPServer):
    """The server: an agent, and the store of its sessions."""

    daemon_threads = True

    def __init__(self, args: Namespace, token: str) -> None:
        self.token, self.store = token, open_store(args.store)
        self.agent = Agent(
            model_of(args),
            name="desk",
            instructions="You answer the guests of a tea room.",
            tools=[opening_hours, give_voucher],
            needs_approval=["give_voucher"],
            input_guardrails=[no_abuse],
            options=options_of(args),
        )
        super().__init__((args.host, args.port), Request)

    def answer(self, customer: str, text: str | None, answers: Mapping[str, str]) -> Reply:
        """Run one turn of a customer's session."""
        try:
            result = self.agent.run_sync(text, session=customer, answers=answers, session_store=self.store)
        except GuardrailTrippedError as error:
            return HTTPStatus.UNPROCESSABLE_ENTITY, {"error": error.reason}
        except SessionLockedError:
            return HTTPStatus.CONFLICT, {"error": "an answer to this customer is on its way"}
        except (AnswerRefusedError, OptionsError) as error:
            return HTTPStatus.BAD_REQUEST, {"error": str(error)}
        except RunFailedError as error:
            if error.result.stop_reason == "waiting":
                return HTTPStatus.ACCEPTED, {"waits_for": [shown(customer, each) for each in error.result.questions]}
            return HTTPStatus.BAD_GATEWAY, {"error": str(error)}
        return HTTPStatus.OK, {"reply": result.output}


def shown(customer: str, question: UserQuestion) -> dict[str, Any]:
    return {
        "id": question.question_id,
        "customer": customer,
        "prompt": question.prompt,
        "input": question.details.get("input"),
    }


def open_questions(store: SessionStore) -> list[dict[str, Any]]:
    """The open questions of all customers, as the API returns them."""
    return [
        shown(row.id, event)
        for row in store.list_session_summaries()
        if row.open_questions
        for event in store.read_events(row.id)
        if event.type == "user.question" and event.question_id in row.open_questions
    ]


class Request(BaseHTTPRequestHandler):
    """One request. Each has its own thread, so a run may take as long as it needs."""

    timeout = 60

    @property
    def desk(self) -> Desk:
        """The server that received the request."""
        assert isinstance(self.server, Desk)
        return self.server

    def do_GET(self) -> None:
        self.reply(self.approvals if self.path == "/approvals" else None)

    def do_POST(self) -> None:
        if found := re.fullmatch(r"/customers/([a-z][a-z0-9-]{0,63})/messages", self.path):
            self.reply(partial(self.say, found[1]))
        elif found := re.fullmatch(r"/approvals/([0-9a-f]+)", self.path):
            self.reply(partial(self.decide, found[1]))
        else:
            self.reply(None)

    def say(self, customer: str) -> Reply:
        return self.desk.answer(customer, self.field("text"), {})

    def approvals(self) -> Reply:
        return HTTPStatus.OK, {"approvals": open_questions(self.desk.store)}

    def decide(self, question: str) -> Reply:
        for each in open_questions(self.desk.store):
            if each["id"] == question:
                return self.desk.answer(each["customer"], None, {question: self.field("answer")})
        return HTTPStatus.NOT_FOUND, {"error": "no such question is open"}

    def field(self, name: str) -> str:
        """A string in the body. Raises `UsageError` if it is missing."""
        size = int(self.headers.get("Content-Length") or 0)
        if not 0 < size <= MAX_BODY_BYTES:
            raise UsageError(f"the body must have 1 to {MAX_BODY_BYTES} bytes, not {size}")
        body = json.loads(self.rfile.read(size))
        text = cast("dict[str, Any]", body).get(name) if isinstance(body, dict) else None
        if not isinstance(text, str) or not text.strip():
            raise UsageError(f'the body must be {{"{name}": "..."}}')
        return text

    def reply(self, work: Callable[[], Reply] | None) -> None:
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        try:
            if not hmac.compare_digest(given.encode(), self.desk.token.encode()):
                reply: Reply = (HTTPStatus.UNAUTHORIZED, {"error": "the token is missing or wrong"})
            elif work is None:
                reply = (HTTPStatus.NOT_FOUND, {"error": "there is nothing here"})
            else:
                reply = work()
        except (UsageError, ValueError) as error:
            reply = (HTTPStatus.BAD_REQUEST, {"error": str(error)})
        status, body = reply[0], json.dumps(reply[1]).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the sessions' logs record what happened."""


def program(args: Namespace) -> int:
    """Serve until Ctrl-C."""
    token = os.environ.get("DESK_TOKEN")
    if not token:
        raise UsageError("set DESK_TOKEN to the token that clients send")
    with Desk(args, token) as desk:
        print(f"listening on http://{args.host}:{desk.server_port}", flush=True)
        try:
            desk.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


def arguments() -> ArgumentParser:
    """The command line."""
    parser = command_line(__doc__, shared_flags())
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    return exit_code(program, arguments(), argv)


if __name__ == "__main__":
    sys.exit(main())
