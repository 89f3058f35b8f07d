"""The client: every operation of the contract against a real server, events that survive a cut, and typed refusals."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import unittest
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

from openagentic_sdk.errors import OptionsError, ProviderError, RequestRefusedError
from openagentic_sdk.events import Result, SessionRewound, UserQuestion
from openagentic_sdk.providers.wire.http import HttpTransport
from openagentic_sdk.server import AsyncClient, Client
from openagentic_sdk.server.contract.operations import AsyncOperations, Operations
from openagentic_sdk.server.contract.table import ENDPOINTS

from .support import ASK, TOKEN, Served, agents, options

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
        session_id = made["session_id"]
        events = list(client.follow(session_id, until_result=True))
        self.assertEqual([event.text for event in events if event.type == "user.message"], ["Tea?"])
        (asked,) = client.iter_questions(limit=1)
        (question,) = [event for event in events if isinstance(event, UserQuestion)]
        self.assertEqual(asked["question"]["question_id"], question.question_id)
        self.assertEqual(
            client.answer(session_id, question_id=question.question_id, answer="milk")["session_id"], session_id
        )
        behind = max(event.seq for event in events if event.seq)
        events = list(client.follow(session_id, after=behind, until_result=True))
        self.assertIsInstance(events[-1], Result)
        self.assertEqual(events[-1].final_text, "Milk it is.")
        self.assertEqual(list(client.follow(session_id, after=events[-1].seq, until_result=True)), [])
        again = client.create_session(prompt="Tea?", key="k")
        self.assertEqual((again["session_id"], again["is_new"]), (session_id, False))
        fork = client.fork(session_id)["session_id"]
        self.assertEqual(client.rename(fork, title="More tea")["title"], "More tea")
        self.assertEqual({row["session_id"] for row in client.iter_sessions(limit=1)}, {session_id, fork})
        self.assertIsInstance(client.rewind(fork, turns=1), SessionRewound)
        client.archive(fork)
        self.assertEqual([row["session_id"] for row in client.iter_sessions(archived=True)], [fork])
        self.assertEqual(client.delete(fork, confirm=fork), {"deleted": [fork]})
        self.assertFalse(client.cancel(session_id)["was_running"])

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
                    self.assertNotIn("under this path", str(error))
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
        session_id = client.create_session(prompt="Tea?")["session_id"]
        list(client.follow(session_id, until_result=True))
        with self.assertRaises(RequestRefusedError) as refused:
            next(client.follow(session_id, after=999))
        self.assertEqual(refused.exception.code, "cursor_beyond_log")
        stranger = Client(f"http://{served.host}", http=HttpTransport(proxies={}))
        self.addCleanup(stranger.close)
        self.assertEqual(stranger.tell_health(), {"status": "ok"})
        with self.assertRaises(RequestRefusedError) as refused:
            stranger.list_agents()
        self.assertEqual(refused.exception.code, "unauthorized")

    def test_what_cannot_be_asked_is_refused_before_it_is_sent(self):
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
        session_id = client.create_session(prompt="Tea?")["session_id"]
        events = client.follow(session_id)
        self.assertEqual(next(events).seq, 1)
        client.close()
        events.close()
        self.assertEqual(served.ask("GET", f"/v1/sessions/{session_id}").status, 200)

    def test_many_coroutines_share_an_async_client(self):
        served, _ = self.serve()

        async def converse():
            async with AsyncClient(f"http://{served.host}", TOKEN, http=HttpTransport(proxies={})) as client:

                async def one(prompt):
                    made = await client.create_session(prompt=prompt)
                    return [event async for event in client.follow(made["session_id"], until_result=True)][-1]

                return await asyncio.gather(*(one(f"Tea {number}?") for number in range(3)))

        self.assertEqual([result.final_text for result in asyncio.run(converse())], ["Tea."] * 3)


class CutStreams(unittest.TestCase):
    def test_a_stream_that_was_cut_goes_on_behind_the_last_whole_event(self):
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
            finally:
                server.shutdown()
                thread.join()
        self.assertEqual([event.seq for event in events], [1, 2, 3, 4])
        self.assertEqual(cursors, ["0", "1", "1", "2"])

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
