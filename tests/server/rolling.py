"""Clients of six protocols in conversations while their servers are restarted.

Each continues only by means of its own protocol: a cursor, a sequence number, or the same input again.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

from openagentic_sdk.events import AssistantMessage, Event, ToolResult
from tests.waiting import pause

from .support import AUTH, TOKEN
from .test_websocket import Client as Socket

NAME = "agents.example.com"
LIMIT_S = 180.0  # bounds failures only
AGAIN_S = 0.1
# Errors of a connection that is cut, or refused by a proxy without a server, or by a server during shutdown.
CUT = (OSError, http.client.HTTPException, ValueError)


class _Again(Exception):
    """What was asked has to be asked again."""


class Talk(threading.Thread):
    """One conversation. `answer` is how its question is answered; `seen` is what the client received, in its terms."""

    def __init__(self, port: int, number: int) -> None:
        super().__init__(daemon=True)
        self.host = NAME
        self.key = f"{type(self).__name__}-{number}-{time.monotonic_ns()}"
        self.session_id = ""
        self.seen: list[Any] = []
        self.has_begun, self.is_done, self.may_answer = threading.Event(), False, threading.Event()
        self.gap_s, self.cuts, self.failure = 0.0, 0, ""
        self._port = port
        self._news_at = 0.0
        self._until = time.monotonic() + LIMIT_S

    def connect(self) -> socket.socket:
        """A bare connection, for WebSocket."""
        return socket.create_connection(("127.0.0.1", self._port), timeout=30)

    def run(self) -> None:
        self._news_at = time.monotonic()
        try:
            while not self.is_done:
                if time.monotonic() > self._until:
                    raise TimeoutError(f"{self.key} has only {self.seen!r}")
                try:
                    self.talk()
                except (*CUT, _Again):
                    self.cuts += 1
                    pause(AGAIN_S, "clients ask again after a while")
        except Exception as failure:  # noqa: BLE001 - it is told in the test's thread
            self.failure = f"{self.key}: {type(failure).__name__}: {failure}"
        self.has_begun.set()

    def talk(self) -> None:
        """Continue the conversation until it is over. Raises one of `CUT` or `_Again` if that must be tried again."""
        raise NotImplementedError

    def differs(self, log: list[Event]) -> str:
        """How the client's transcript differs from that of the log; empty if they are the same."""
        raise NotImplementedError

    # --- what all of them need ---------------------------------------------------------------------------------------

    def news(self, what: Any = None) -> None:
        """Note that something new was received."""
        now = time.monotonic()
        self.gap_s, self._news_at = max(self.gap_s, now - self._news_at), now
        self.has_begun.set()
        if what is not None:
            self.seen.append(what)

    @contextmanager
    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Iterator[http.client.HTTPResponse]:
        """The response, its body still to be read."""
        sent = {**AUTH, "Host": NAME, "Connection": "close", **headers}
        sent |= {} if body is None else {"Content-Type": "application/json"}
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body), sent)
            with connection.getresponse() as answer:
                if answer.status in (409, 429, 502, 503, 504):
                    raise _Again
                if answer.status >= 400:
                    raise AssertionError(f"{method} {path}: {answer.status} {answer.read()[:500]!r}")
                yield answer

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The JSON of a response."""
        with self.request(method, path, body, **headers) as answer:
            data = answer.read()
        return json.loads(data)

    def stream(self, method: str, path: str, body: Any = None, **headers: str) -> Iterator[Any]:
        """The JSON of server-sent events, up to the point where the stream ends or is cut."""
        with self.request(method, path, body, Accept="application/json, text/event-stream", **headers) as answer:
            while line := answer.readline():
                if line.startswith(b"data: "):
                    if not line.endswith(b"\n"):
                        raise _Again
                    yield json.loads(line[6:])

    def start_natively(self) -> None:
        """Start a session, or find the one that this key has started."""
        if not self.session_id:
            key = {"Idempotency-Key": self.key}
            made = self.ask("POST", "/v1/sessions", {"prompt": self.key, "agent": "tea"}, **key)
            self.session_id = made["session_id"]

    def answer(self, question_id: str) -> None:
        """Answer natively, as often as necessary."""
        body, key = {"question_id": question_id, "answer": "milk"}, {"Idempotency-Key": f"{self.key}-answer"}
        self.ask("POST", f"/v1/sessions/{self.session_id}/answers", body, **key)

    def answer_what_waits(self) -> None:
        """Answer the question of the session, if it still waits."""
        row = self.ask("GET", f"/v1/sessions/{self.session_id}")
        for question in row["open_questions"]:
            self.answer(question["question_id"])


class ByEvents(Talk):
    """Protocols that send the events as they are stored, with their `seq` as cursors."""

    asked = ""

    @property
    def after(self) -> int:
        return self.seen[-1] if self.seen else 0

    def take(self, event: dict[str, Any]) -> None:
        if event.get("seq") is None:
            return
        self.news(event["seq"])
        if event["type"] == "user.question":
            self.asked = event["question_id"]
        if event["type"] == "user.answer":
            self.asked = ""
        self.is_done = event["type"] == "result" and event["stop_reason"] == "end"

    def differs(self, log: list[Event]) -> str:
        stored = [event.seq for event in log]
        return "" if self.seen == stored else f"{self.key}: {self.seen} is not {stored}"


class Sse(ByEvents):
    def talk(self) -> None:
        self.start_natively()
        if self.asked:  # its answer, or the acknowledgement, was lost
            self.answer_what_waits()
        cursor = {"Last-Event-ID": str(self.after)}
        for event in self.stream("GET", f"/v1/sessions/{self.session_id}/events", **cursor):
            self.take(event)
            if self.is_done:
                return
            if event["type"] == "result" and event["stop_reason"] == "waiting":
                self.answer(self.asked)


class WebSocket(ByEvents):
    def talk(self) -> None:
        self.start_natively()
        socket = Socket(self, f"/v1/sessions/{self.session_id}/events?after={self.after}")  # type: ignore[arg-type]
        try:
            if socket.status not in (101, 502, 503, 504):
                raise AssertionError(f"{self.key}: {socket.head}")
            if socket.status != 101:
                raise _Again
            if self.asked:
                self.say(socket)
            while not self.is_done:
                opcode, payload = socket.frame()
                if opcode == 9:
                    continue
                if opcode != 1:
                    raise _Again
                event = json.loads(payload)
                if event["type"] == "reply":
                    if event["status"] not in (202, 409, 503):
                        raise AssertionError(event)
                    if event["status"] != 202:
                        raise _Again
                    continue
                self.take(event)
                if event["type"] == "result" and event["stop_reason"] == "waiting":
                    self.say(socket)
        finally:
            socket.close()

    def say(self, socket: Socket) -> None:
        body = {"question_id": self.asked, "answer": "milk"}
        socket.say({"post": "answers", "body": body, "key": f"{self.key}-answer", "id": 1})


class Pages(ByEvents):
    def talk(self) -> None:
        self.start_natively()
        page = self.ask("GET", f"/v1/sessions/{self.session_id}/events?after={self.after}")
        for event in page["events"]:
            self.take(event)
        if self.asked and not self.is_done:
            self.answer_what_waits()
        pause(AGAIN_S, "clients ask again after a while")


class AgUi(Talk):
    """A client that keeps the messages of its thread, and sends the same input again after losing the stream."""

    def __init__(self, port: int, number: int) -> None:
        super().__init__(port, number)
        self.texts: dict[str, str] = {}
        self.results: dict[str, str] = {}
        self.said: list[dict[str, Any]] = [{"id": "m1", "role": "user", "content": self.key}]
        self.resume: list[dict[str, Any]] = []
        self._known = 0

    def talk(self) -> None:
        name = f"{self.key}-{2 if self.resume else 1}"
        body = {"threadId": self.key, "runId": name, "messages": self.said, "resume": self.resume}
        self.session_id = self.key
        for event in self.stream("POST", "/v1/ag-ui/tea", body):
            match event:
                case {"type": "MESSAGES_SNAPSHOT", "messages": messages}:
                    self.texts = {
                        each["id"]: each.get("content") or "" for each in messages if each["role"] == "assistant"
                    }
                    self.results = {each["id"]: each["content"] for each in messages if each["role"] == "tool"}
                case {"type": "TEXT_MESSAGE_START", "messageId": wire_id}:
                    self.texts[wire_id] = ""
                case {"type": "TEXT_MESSAGE_CONTENT", "messageId": wire_id, "delta": delta}:
                    self.texts[wire_id] += delta
                case {"type": "TOOL_CALL_RESULT", "messageId": wire_id, "content": content}:
                    self.results[wire_id] = content
                case {"type": "RUN_FINISHED", "outcome": {"type": "interrupt", "interrupts": [asked]}}:
                    answer = {"interruptId": asked["id"], "status": "resolved", "payload": {"answer": "milk"}}
                    self.resume = [answer]
                case {"type": "RUN_FINISHED", "outcome": {"type": "success"}}:
                    self.is_done = True
                case {"type": "RUN_ERROR", "code": "suspended" | "dead" | "queued" | "running"}:
                    raise _Again
                case {"type": "RUN_ERROR"}:
                    raise _Again if "draining" in str(event) or "shutting down" in str(event) else AssertionError(event)
            known = sum(map(len, self.texts.values())) + len(self.results)
            if known > self._known or self.is_done:
                self._known = known
                self.news()

    def differs(self, log: list[Event]) -> str:
        told = ([text for text in self.texts.values() if text], list(self.results.values()))
        texts = [event.text for event in log if isinstance(event, AssistantMessage) and event.text]
        results = [event.output for event in log if isinstance(event, ToolResult)]
        same = told[0] == texts and len(told[1]) == len(results)
        return "" if same else f"{self.key}: {told} is not {(texts, results)}"


class Responses(Talk):
    """A client of the Responses API, in the background, which continues after its last `sequence_number`."""

    def __init__(self, port: int, number: int) -> None:
        super().__init__(port, number)
        self.response_id = ""
        self.texts: list[str] = []

    def talk(self) -> None:
        if self.response_id:
            cursor = self.seen[-1] if self.seen else 0
            path = f"/v1/responses/{self.response_id}?stream=true&starting_after={cursor}"
            events = self.stream("GET", path)
        else:
            body = {"model": "tea", "input": self.key, "stream": True, "background": True}
            events = self.stream("POST", "/v1/responses", body, **{"Idempotency-Key": self.key})
        for event in events:
            if event.get("response"):
                self.response_id = event["response"]["id"]
                self.session_id = self.response_id[5:].rpartition("_")[0]
            if self.seen and event["sequence_number"] <= self.seen[-1]:
                if self.cuts and event["type"] in ("response.created", "response.in_progress"):
                    continue
                raise AssertionError(f"{self.key}: {event['sequence_number']} came again after {self.seen[-1]}")
            if event["type"] == "response.incomplete":
                self.news()
                continue  # its number is after all others; it continues when the question is answered
            self.news(event["sequence_number"])
            if event["type"] == "response.output_text.done":
                self.texts.append(event["text"])
            self.is_done = event["type"] == "response.completed"
            if event["type"] == "response.failed":
                raise AssertionError(event)
        if not self.is_done:
            self.answer_what_waits()

    def differs(self, log: list[Event]) -> str:
        texts = [event.text for event in log if isinstance(event, AssistantMessage)]
        return "" if self.texts == texts else f"{self.key}: {self.texts} is not {texts}"


class Mcp(Talk):
    """A client of the MCP server, which calls `show_session` until the run is over."""

    def __init__(self, port: int, number: int) -> None:
        super().__init__(port, number)
        self.after = 0

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
        for message in self.stream("POST", "/mcp", body):
            if message.get("id") != 1:
                continue
            if "error" in message or message["result"].get("isError"):
                raise _Again
            return dict(message["result"]["structuredContent"])
        raise _Again

    def talk(self) -> None:
        if not self.session_id:
            self.session_id = self.call("run_agent", agent="tea", prompt=self.key, wait_s=0)["session_id"]
        shown = self.call("show_session", session_id=self.session_id, after_seq=self.after)
        if shown["after_seq"] > self.after:
            self.after = shown["after_seq"]
            self.news(self.after)
        for question in shown["questions"]:
            with suppress(_Again):  # its answer was lost, and it is not asked again
                self.call(
                    "answer_question",
                    session_id=self.session_id,
                    question_id=question["question_id"],
                    answer="milk",
                    wait_s=0,
                )
        self.is_done = shown["state"] == "idle" and shown["after_seq"] == shown["last_seq"]
        pause(AGAIN_S, "clients ask again after a while")

    def differs(self, log: list[Event]) -> str:
        end = log[-1].seq or 0
        is_rising = all(one < two for one, two in zip(self.seen, self.seen[1:], strict=False))
        return "" if is_rising and self.after == end else f"{self.key}: {self.seen} does not lead to {end}"


PROTOCOLS: tuple[type[Talk], ...] = (Sse, WebSocket, Pages, AgUi, Responses, Mcp)
assert TOKEN
