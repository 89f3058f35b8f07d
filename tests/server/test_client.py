"""The client: every operation of the contract against a real server, events that survive a cut, and typed refusals."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import subprocess
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

from openagentic_sdk.errors import (
    EventLoopError,
    OptionsError,
    ProviderError,
    ProviderResponseError,
    RequestRefusedError,
)
from openagentic_sdk.events import Result, SessionRewound, UserQuestion
from openagentic_sdk.providers.wire.http import HttpTransport
from openagentic_sdk.server import AsyncClient, Client
from openagentic_sdk.server.contract.operations import AsyncOperations, Operations
from openagentic_sdk.server.contract.table import ENDPOINTS
from openagentic_sdk.server.contract.values import StartedRun
from tests.size import full_size
from tests.waiting import until

from .support import ASK, TOKEN, WAIT_S, Gate, Served, agents, options

DOCUMENTED = Path(__file__).parents[2] / "docs" / "serving.md"
OPEN_BODIES = {"run_ag_ui", "create_response", "mcp"}


class AgainstAServer(unittest.TestCase):
    def serve(self, tea=("Tea.",)) -> tuple[Served, Client]:
        served = Served(agents(tea=list(tea) if isinstance(tea, tuple) else tea))
        self.addCleanup(served.close)
        client = Client(f"http://{served.host}/", TOKEN, http=HttpTransport(proxies={}))
        self.addCleanup(client.close)
        return served, client

    def test_a_program_starts_follows_answers_lists_renames_and_deletes_sessions(self):
        _, client = self.serve(options([ASK, "Milk it is."]))
        made = client.create_session(prompt="Tea?", key="k")
        session_id = made.session_id
        events = list(client.follow(session_id, until_result=True))
        self.assertEqual([event.text for event in events if event.type == "user.message"], ["Tea?"])
        (asked,) = client.iter_questions(limit=1)
        (question,) = [event for event in events if isinstance(event, UserQuestion)]
        self.assertEqual(asked.question.question_id, question.question_id)
        self.assertEqual(
            client.answer(session_id, question_id=question.question_id, answer="milk").session_id, session_id
        )
        behind = max(event.seq for event in events if event.seq)
        events = list(client.follow(session_id, after=behind, until_result=True))
        self.assertIsInstance(events[-1], Result)
        self.assertEqual(events[-1].final_text, "Milk it is.")
        self.assertEqual(list(client.follow(session_id, after=events[-1].seq, until_result=True)), [])
        again = client.create_session(prompt="Tea?", key="k")
        self.assertEqual((again.session_id, again.is_new), (session_id, False))
        fork = client.fork(session_id).session_id
        self.assertEqual(client.rename(fork, title="More tea").title, "More tea")
        self.assertEqual({row.session_id for row in client.iter_sessions(limit=1)}, {session_id, fork})
        self.assertIsInstance(client.rewind(fork, turns=1), SessionRewound)
        client.archive(fork)
        self.assertEqual([row.session_id for row in client.iter_sessions(archived=True)], [fork])
        self.assertEqual(client.delete(fork, confirm=fork).deleted, [fork])
        self.assertFalse(client.cancel(session_id).was_running)

    def test_the_documented_program_runs_a_prompt_and_answers_what_it_asks(self):
        served, _ = self.serve(options([ASK, "Milk it is."]))
        told = DOCUMENTED.read_text("utf-8").partition("## From Python")[2]
        names: dict[str, Any] = {"input": lambda question: "milk"}
        exec(re.findall(r"```python\n(.*?)```", told, re.DOTALL)[0], names)
        names["Client"] = partial(Client, http=HttpTransport(proxies={}))
        self.assertEqual(names["converse"](f"http://{served.host}", TOKEN, "Tea?"), "Milk it is.")

    def test_the_documented_reader_of_a_stream_needs_only_the_standard_library(self):
        served, client = self.serve(options([ASK, "Milk it is."]))
        read, source = documented_reader()
        imported = set(re.findall(r"^(?:from|import) (\w+)", source, re.MULTILINE))
        self.assertEqual(imported - set(sys.stdlib_module_names), set())
        session_id = client.create_session(prompt="Tea?").session_id
        events = list(read(f"http://{served.host}", TOKEN, session_id))
        self.assertEqual(events[-1]["stop_reason"], "waiting")
        (question,) = [event for event in events if event["type"] == "user.question"]
        client.answer(session_id, question_id=question["question_id"], answer="milk")
        events = list(read(f"http://{served.host}", TOKEN, session_id, events[-1]["seq"]))
        self.assertEqual(events[-1]["final_text"], "Milk it is.")
        self.assertEqual(list(read(f"http://{served.host}", TOKEN, session_id, events[-1]["seq"])), [])
        for token, name, text in ((TOKEN, "nobody", "does not exist|no session"), ("wrong", session_id, "token")):
            with self.subTest(text), self.assertRaisesRegex(RuntimeError, text):
                list(read(f"http://{served.host}", token, name))
        with self.assertRaisesRegex(RuntimeError, "^resync: "):
            list(read(f"http://{served.host}", TOKEN, session_id, 999))

    def test_every_operation_of_the_table_reaches_its_route_in_both_faces(self):
        _, client = self.serve()
        for endpoint in ENDPOINTS:
            with self.subTest(endpoint.name):
                places = ["tea" if part == "{agent}" else "x" for part in endpoint.path.split("/") if part[:1] == "{"]
                bodies = [{}] if endpoint.name in OPEN_BODIES else []
                self.assertTrue(callable(getattr(AsyncOperations, endpoint.name)))
                try:
                    getattr(client, endpoint.name)(*places, *bodies)
                except RequestRefusedError as error:
                    self.assertNotIn(error.code, ("method_not_allowed", "not_implemented", "internal"))
                    self.assertNotIn("at this path", str(error))
        names = {endpoint.name for endpoint in ENDPOINTS}
        self.assertEqual({name for name in vars(Operations) if name[:1] != "_"}, names)

    def test_a_refusal_has_the_status_the_code_and_the_sentence_of_the_server(self):
        served, client = self.serve()
        for call, status, code in (
            (lambda: client.show_session("nobody"), 404, "session_not_found"),
            (lambda: client.create_session(prompt="x", agent="nobody"), 404, "agent_not_found"),
            (lambda: client.show_model("nobody"), 404, "agent_not_found"),
            (lambda: client.list_sessions(limit=-1), 400, "invalid_request"),
            (lambda: next(client.follow("nobody")), 404, "session_not_found"),
        ):
            with self.subTest(code), self.assertRaises(RequestRefusedError) as refused:
                call()
            self.assertEqual((refused.exception.status, refused.exception.code), (status, code))
            self.assertGreater(len(str(refused.exception)), 10)
        session_id = client.create_session(prompt="Tea?").session_id
        list(client.follow(session_id, until_result=True))
        with self.assertRaises(RequestRefusedError) as refused:
            next(client.follow(session_id, after=999))
        self.assertEqual(refused.exception.code, "cursor_beyond_log")
        stranger = Client(f"http://{served.host}", http=HttpTransport(proxies={}))
        self.addCleanup(stranger.close)
        self.assertEqual(stranger.tell_health().status, "ok")
        with self.assertRaises(RequestRefusedError) as refused:
            stranger.list_agents()
        self.assertEqual(refused.exception.code, "unauthorized")

    def test_an_invalid_call_is_refused_before_it_is_sent(self):
        with Client("http://127.0.0.1:9", http=HttpTransport(proxies={})) as client:
            for call in (
                lambda: client.show_session(""),
                lambda: client.show_session(".."),
                lambda: client.show_session(),
                lambda: client.show_session("a", "b"),
                lambda: client.list_sessions(page=2),
                lambda: client.create_session(prompt="x", agnet="tea"),
            ):
                with self.assertRaises(OptionsError):
                    call()
            with self.assertRaises(AttributeError):
                client.make_tea()

    def test_a_client_may_be_closed_while_it_follows(self):
        served, client = self.serve()
        session_id = client.create_session(prompt="Tea?").session_id
        events = client.follow(session_id)
        self.assertEqual(next(events).seq, 1)
        client.close()
        events.close()
        self.assertEqual(served.ask("GET", f"/v1/sessions/{session_id}").status, 200)

    def test_a_stream_that_a_program_drops_is_closed_and_the_client_continues(self):
        served, client = self.serve()
        session_id = client.create_session(prompt="Tea?").session_id
        for _ in range(3):
            self.assertEqual(next(iter(client.follow(session_id))).seq, 1)
        gc.collect()
        self.assertEqual(client.show_session(session_id).session_id, session_id)
        until(lambda: served.server.connections <= 1, "the streams that were dropped are closed")

    def test_threads_share_a_client_and_one_cancels_what_another_follows(self):
        gate = Gate()
        turns = [{"tool_calls": [{"name": "hold", "arguments": {}}]}, "Tea."]
        _, client = self.serve(options(turns, gate.tool()))
        self.addCleanup(gate.open.set)
        session_id = client.create_session(prompt="Tea?").session_id
        with ThreadPoolExecutor(1) as pool:
            following = pool.submit(lambda: list(client.follow(session_id, until_result=True)))
            self.assertTrue(gate.reached.wait(WAIT_S))
            self.assertTrue(client.cancel(session_id).was_running)
            gate.open.set()
            self.assertEqual(following.result()[-1].stop_reason, "interrupted")

    def test_closing_a_client_ends_what_another_thread_waits_for(self):
        _, client = self.serve()
        session_id = client.create_session(prompt="Tea?").session_id
        end = list(client.follow(session_id, until_result=True))[-1].seq
        with ThreadPoolExecutor(1) as pool:
            following = pool.submit(next, client.follow(session_id, after=end - 1))
            self.assertEqual(following.result().seq, end)
            events = client.follow(session_id, after=end)
            following = pool.submit(next, events)
            client.close()
            with self.assertRaises(EventLoopError):
                following.result()
            self.assertEqual(list(events), [])
        with self.assertRaisesRegex(EventLoopError, "was closed: create a new one"):
            client.list_agents()
        client.close()

    def test_plain_code_inside_of_an_event_loop_may_use_the_client(self):
        _, client = self.serve()

        async def cell():
            return client.list_agents().default

        self.assertEqual(asyncio.run(cell()), "tea")

    @full_size
    def test_a_client_that_nobody_closes_leaves_nothing_behind_and_no_word(self):
        served, _ = self.serve()
        code = f"""
from openagentic_sdk.providers.wire.http import HttpTransport
from openagentic_sdk.server import Client
client = Client("http://{served.host}", "{TOKEN}", http=HttpTransport(proxies={{}}))
events = client.follow(client.create_session(prompt="Tea?").session_id)
print(next(events).seq)
"""
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False, timeout=WAIT_S
        )
        self.assertEqual((done.stdout, done.stderr, done.returncode), ("1\n", "", 0))

    def test_many_coroutines_share_an_async_client(self):
        served, _ = self.serve()

        async def converse():
            async with AsyncClient(f"http://{served.host}", TOKEN, http=HttpTransport(proxies={})) as client:

                async def one(prompt):
                    made = await client.create_session(prompt=prompt)
                    return [event async for event in client.follow(made.session_id, until_result=True)][-1]

                return await asyncio.gather(*(one(f"Tea {number}?") for number in range(3)))

        self.assertEqual([result.final_text for result in asyncio.run(converse())], ["Tea."] * 3)


def documented_reader() -> tuple[Any, str]:
    """The reader of server-sent events on the page, which does not wait between attempts here, and its source."""
    _, source = re.findall(
        r"```python\n(.*?)```", DOCUMENTED.read_text("utf-8").partition("## From Python")[2], re.DOTALL
    )[:2]
    names: dict[str, Any] = {}
    exec(source, names)
    names["time"] = SimpleNamespace(sleep=lambda _: None)
    return names["stream"], source


class CutStreams(unittest.TestCase):
    def test_a_stream_that_was_cut_continues_after_the_last_whole_event(self):
        lines = [json.dumps({"type": "user.message", "text": f"{seq}", "seq": seq}) for seq in range(1, 4)]
        end = {"type": "result", "final_text": "Tea.", "session_id": "s", "stop_reason": "end", "steps": 1, "seq": 4}
        whole = [f"id: {seq}\ndata: {line}\n\n".encode() for seq, line in enumerate([*lines, json.dumps(end)], 1)]
        answers = [whole[0] + whole[1][:25], b"", whole[1], b"".join(whole[2:])]
        cursors = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                cursors.append(self.headers["Last-Event-ID"])
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                self.wfile.write(answers[len(cursors) - 1])

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        with HTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                with Client(f"http://127.0.0.1:{server.server_port}", http=HttpTransport(proxies={})) as client:
                    events = list(client.follow("s", until_result=True))
                followed = cursors.copy()
                cursors.clear()
                read, _ = documented_reader()
                pieces = list(read(f"http://127.0.0.1:{server.server_port}", TOKEN, "s"))
            finally:
                server.shutdown()
                thread.join()
        self.assertEqual([event.seq for event in events], [1, 2, 3, 4])
        self.assertEqual([event["seq"] for event in pieces], [1, 2, 3, 4])
        self.assertEqual((followed, cursors), (["0", "1", "1", "2"],) * 2)

    def answer(self, *answers) -> tuple[Client, list[tuple[str, str | None]]]:
        """A client of a server that sends these responses (status, headers, body), and the requests to it."""
        asked: list[tuple[str, str | None]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"] or 0))
                status, headers, body = answers[len(asked)]
                asked.append((self.path, self.headers["Idempotency-Key"]))
                data = json.dumps(body).encode()
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        server = HTTPServer(("127.0.0.1", 0), Handler)
        self.addCleanup(server.server_close)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        client = Client(f"http://127.0.0.1:{server.server_port}", http=HttpTransport(proxies={}))
        self.addCleanup(client.close)
        return client, asked

    def test_only_repeatable_requests_are_sent_again_with_their_keys(self):
        busy = (503, {"Retry-After": "0"}, {"error": {"status": 503, "code": "draining", "message": "Not now."}})
        taken = (409, {}, {"error": {"status": 409, "code": "in_progress", "message": "Wait."}})
        made = (201, {}, {"session_id": "s", "request_id": "r", "after_seq": 0, "is_new": True, "added_later": 1})
        client, asked = self.answer(busy, taken, made, busy)
        self.assertEqual(client.create_session(prompt="Tea?"), StartedRun("s", "r", 0, True))
        self.assertEqual(len({key for _, key in asked}), 1)
        with self.assertRaises(RequestRefusedError) as refused:
            client.rename("s", title="Tea")
        self.assertEqual((refused.exception.code, refused.exception.retry_after_s, len(asked)), ("draining", 0.0, 4))

    def test_an_answer_that_violates_the_contract_is_an_error_that_names_the_operation(self):
        client, _ = self.answer((200, {}, {"agents": []}), (200, {}, [1]))
        for _ in range(2):
            with self.assertRaisesRegex(ProviderResponseError, r"answers list_agents\(\)"):
                client.list_agents()

    def test_a_server_that_is_not_there_is_an_error_of_the_connection(self):
        with Client("http://127.0.0.1:9", http=HttpTransport(proxies={})) as client, self.assertRaises(ProviderError):
            client.list_agents()


class Import(unittest.TestCase):
    def test_the_server_is_imported_without_its_client(self):
        code = "import sys, openagentic_sdk.server; sys.exit('openagentic_sdk.server.contract.client' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], check=False)
        self.assertEqual(done.returncode, 0)


if __name__ == "__main__":
    unittest.main()
