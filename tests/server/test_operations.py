"""The operator's view: a line for each request and run, metrics, health, shutdown, and one agent without a registry."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk.agents import Agents
from openagentic_sdk.errors import OptionsError
from openagentic_sdk.events import SystemInit
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.server.asgi import app
from openagentic_sdk.server.listen import http_address
from openagentic_sdk.server.operations.journal import Journal
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing.scripted import ScriptedProvider
from tests.pythons import Python

from .support import (
    TOKEN,
    WAIT_S,
    Client,
    Gate,
    Served,
    agents,
    ask,
    bearer,
    by_tenant,
    options,
    until_free,
    until_state,
)
from .test_websocket import Client as WebSocketClient

ROOT = Path(__file__).parents[2]
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Lines(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.lines: list[str] = []

    def serve(self, form: str = "json", registry: Agents | None = None, **more: object):
        settings = {"store": MemorySessionStore(), "auth": TOKEN, **more}
        return app(registry or agents(), journal=Journal(self.lines.append, form), **settings)

    def logged(self, event: str) -> list[dict]:
        return [line for line in map(json.loads, self.lines) if line["event"] == event]

    async def test_each_request_is_one_line_with_its_id_and_trace_and_nothing_that_signs_anybody_in(self) -> None:
        application = self.serve()
        ticket = "not-a-ticket"
        for method, path, body, headers, status in (
            ("GET", "/v1/agents?query=secret", None, {"traceparent": TRACE, "X-Request-Id": "abc-1"}, 200),
            ("GET", "/v1/agents", None, {"Authorization": "Bearer wrong", "X-Request-Id": "a b"}, 401),
            ("GET", "/nowhere", None, {"traceparent": "nonsense"}, 404),
            ("POST", "/v1/agents", {}, {}, 405),
            ("POST", "/v1/sessions", {"prompt": 5}, {}, 400),
            ("GET", f"/signin/{ticket}", None, {}, 401),
            ("GET", "/v1/agents", None, {"Host": "evil.example"}, 403),
        ):
            answer = await ask(application, method, path, body, headers=headers)
            [line] = self.logged("request")
            self.assertEqual((answer.status, line["status"], line["method"]), (status, status, method), line)
            self.assertEqual(answer.headers["x-request-id"], line["id"])
            self.assertFalse({"secret", ticket, TOKEN, "wrong"} & set(re.findall(r"[\w-]+", self.lines[0])), self.lines)
            if path.startswith("/v1/agents?"):
                self.assertEqual((line["id"], line["trace"], line["who"]), ("abc-1", TRACE[3:35], "user"))
            else:
                self.assertNotIn("trace", line)
                self.assertRegex(line["id"], r"\A[0-9a-f]{16}\Z")
            self.lines.clear()

    async def test_a_run_that_fails_is_a_line_and_has_the_trace_of_its_request_in_the_log(self) -> None:
        store = MemorySessionStore()
        application = self.serve(registry=agents(tea=[]), store=store)
        made = await ask(application, "POST", "/v1/sessions", {"prompt": "Go."}, headers={"traceparent": TRACE})
        await until_free(application)
        [line] = self.logged("run")
        self.assertEqual((line["session"], line["stop_reason"]), (made.json["session_id"], "error"))
        self.assertTrue(line["error"])
        [started] = [e for e in store.read_events(made.json["session_id"]) if isinstance(e, SystemInit)]
        self.assertEqual(started.traceparent, TRACE)
        text = (await ask(application, "GET", "/metrics")).body.decode()
        self.assertIn('openagentic_server_runs_ended_total{stop_reason="error"} 1', text)
        self.assertIn('openagentic_server_requests_total{route="create_session",method="POST",status="201"} 1', text)
        self.assertIn("openagentic_server_runs 0\n", text)

    async def test_text_lines_hold_no_line_that_a_client_made(self) -> None:
        application = self.serve("text")
        await ask(application, "GET", "/v1/agents\n2026 request status=200")
        self.assertEqual(len(self.lines), 1)
        self.assertNotIn("\n", self.lines[0])

    async def test_figures_of_the_process_are_for_no_tenant(self) -> None:
        application = self.serve(auth=by_tenant)
        answer = await ask(application, "GET", "/metrics", headers=bearer("token-of-anna-at-north"))
        self.assertEqual(answer.status, 404)
        self.assertEqual((await ask(application, "GET", "/metrics", headers={"Authorization": None})).status, 401)

    async def test_a_process_that_ends_is_healthy_but_not_ready_and_reports_its_drain(self) -> None:
        application = self.serve()
        for path in ("/health", "/ready", "/healthz"):
            self.assertEqual((await ask(application, "GET", path, headers={"Authorization": None})).status, 200)
        async with application.lifespan():
            pass
        self.assertEqual([line["state"] for line in self.logged("drain")], ["begins", "ends"])
        self.assertEqual((await ask(application, "GET", "/health")).status, 200)
        for path in ("/ready", "/healthz"):
            self.assertEqual((await ask(application, "GET", path)).status, 503)

    async def test_posts_report_the_limit_of_simultaneous_runs(self) -> None:
        gate = Gate()
        self.addCleanup(gate.open.set)
        hold = {"tool_calls": [{"name": "hold", "arguments": {}}]}
        application = self.serve(registry=Agents({"a": options([hold, "Done."], gate.tool())}), max_runs=1)
        made = await ask(application, "POST", "/v1/sessions", {"prompt": "Go."})
        self.assertEqual(made.headers["ratelimit-policy"], '"runs";q=1;qu="concurrent-requests"')
        refused = await ask(application, "POST", "/v1/sessions", {"prompt": "Go."})
        self.assertEqual((refused.status, refused.headers["ratelimit"]), (429, '"runs";r=0'))
        self.assertTrue(int(refused.headers["retry-after"]))
        gate.open.set()
        await until_state(application, made.json["session_id"], "idle")
        await until_free(application)

    async def test_a_missing_project_folder_ends_the_start_and_its_path_reaches_no_client(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            place = os.path.join(folder, "a-secret-place")
            made = OpenAgenticOptions(provider=ScriptedProvider(["Hi."]), model="scripted", cwd=place)
            with self.assertRaisesRegex(OptionsError, "agent 'tea'.*a-secret-place"):
                self.serve(registry=Agents({"tea": made}))
            os.mkdir(place)
            application = self.serve(registry=Agents({"tea": made}))
            os.rmdir(place)
            answer = await ask(application, "POST", "/v1/sessions", {"prompt": "Go."})
            self.assertEqual(answer.status, 503, answer.body)
            self.assertNotIn(b"a-secret-place", answer.body)
            self.assertEqual((await ask(application, "GET", "/v1/sessions")).json["sessions"], [])

    def test_a_wildcard_address_is_printed_as_one_that_works_here(self) -> None:
        told = {"0.0.0.0": "http://127.0.0.1:80", "::": "http://[::1]:80", "192.0.2.1": "http://192.0.2.1:80"}
        for host, address in told.items():
            self.assertEqual(http_address(host, 80), address)


class Oracles(unittest.TestCase):
    def test_a_session_of_somebody_else_ends_a_web_socket_like_one_that_is_not_there(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for store in (MemorySessionStore(), FileSessionStore(folder)):
                served = Served(auth=by_tenant, store=store)
                self.addCleanup(served.close)
                mine = served.ask("POST", "/v1/sessions", {"prompt": "Go."}, **bearer("token-of-anna-at-north"))
                seen = []
                for name in (mine.json["session_id"], "0" * 32):
                    client = WebSocketClient(served, f"/v1/sessions/{name}/events", token="token-of-carl-at-south")
                    seen.append((client.status, client.frame(), client.frame()))
                    client.close()
                self.assertEqual(seen[0], seen[1])
                self.assertNotIn(folder.encode(), repr(seen).encode())


class ServingOneAgent(unittest.TestCase):
    def start(self, *flags: str, **environ: str) -> tuple[subprocess.Popen[str], list[str]]:
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        known = {name: value for name, value in os.environ.items() if not name.endswith(("_KEY", "_MODEL", "_TOKEN"))}
        known |= {"PYTHONPATH": str(ROOT), "OPENAGENTIC_SDK_HOME": folder.name, "HOME": folder.name, **environ}
        command = ("-m", "openagentic_sdk", "serve", "--port", "0", "--store", folder.name, *flags)
        server = Python(
            *command, cwd=folder.name, env=known, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        lines = []
        while not lines or "/signin/" not in lines[-1]:
            lines.append(server.stdout.readline())
            self.assertTrue(lines[-1], lines)
        return server, lines

    def test_serve_alone_prints_a_link_for_one_sign_in_to_a_page_that_names_what_to_set(self) -> None:
        server, lines = self.start()
        port, link = re.search(r"http://127\.0\.0\.1:(\d+)(/signin/\S+)", lines[-1]).groups()
        client = Client(int(port))
        nobody = {"Authorization": ""}
        self.assertEqual(client.ask("HEAD", link, **nobody).status, 405)
        signed_in = client.ask("GET", link, **nobody)
        self.assertEqual((signed_in.status, signed_in.headers["location"]), (303, "/"))
        cookie = signed_in.headers["set-cookie"]
        self.assertIn("HttpOnly; SameSite=Strict", cookie)
        self.assertEqual(client.ask("GET", link, **nobody).status, 401)
        signed = {**nobody, "Cookie": cookie.partition(";")[0]}
        page = client.ask("GET", "/", **signed)
        self.assertIn(b"OPENAGENTIC_SDK_MODEL", page.body)
        self.assertNotIn(b"unsafe-inline", page.body)
        refused = client.ask("POST", "/v1/sessions", {"prompt": "Hi."}, **signed)
        self.assertIn("OPENAGENTIC_SDK_MODEL", refused.json["error"]["message"])
        foreign = client.ask("POST", "/v1/sessions", {"prompt": "Hi."}, **signed, Origin="https://evil.example")
        self.assertEqual(foreign.status, 403)
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(WAIT_S), 0)

    def test_flags_name_the_one_agent(self) -> None:
        script = str(ROOT / "fixtures" / "scripts" / "first_run.json")
        server, lines = self.start("--script", script, "--log", "none")
        self.assertIn("serving agent on http://127.0.0.1:", lines[0])
        is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # if the tests run under nohup
        # Its terminal is closed: it drains as on SIGTERM.
        server.send_signal(signal.SIGTERM if is_ignored else signal.SIGHUP)
        self.assertEqual(server.wait(WAIT_S), 0)


if __name__ == "__main__":
    unittest.main()
