"""The application under servers in separate processes: it answers, streams, and shuts down; killed work continues
elsewhere.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk.events import Result
from openagentic_sdk.sessions.store import FileSessionStore
from tests.size import full_size
from tests.waiting import until

from ..ports import free_port
from .support import TOKEN, WAIT_S
from .support import Client as HttpClient

ROOT = Path(__file__).parents[2]
PEERS = os.environ.get("OPENAGENTIC_TEST_ASGI_PYTHON")


class Process:
    """One server in a process."""

    def __init__(self, test: unittest.TestCase, command: list[str], store: str, port: int, prefix: str = "") -> None:
        environ = {**os.environ, "SERVED_STORE": store, "SERVED_TOKEN": TOKEN, "PYTHONPATH": str(ROOT)}
        environ["OPENAGENTIC_SDK_SERVER_TOKEN"] = TOKEN
        self.store = FileSessionStore(store)
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the test
        test.addCleanup(self.errors.close)
        self.process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=self.errors, stderr=self.errors)
        test.addCleanup(self.end)
        self.client = HttpClient(port, prefix)
        until(self.is_healthy, lambda: f"the server answers; it said {self.stderr_text()}", WAIT_S)

    def is_healthy(self) -> bool:
        assert self.process.poll() is None, self.stderr_text()
        try:
            return self.client.ask("GET", "/healthz").status == 200
        except OSError:
            return False

    def stderr_text(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class ServersCase(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def ours(self, port: int) -> list[str]:
        where = ["--agents", "tests.server.served_app:agents", "--store", self.folder]
        return [
            sys.executable,
            "-W",
            "error",
            "-m",
            "openagentic_sdk",
            "serve",
            *where,
            "--port",
            str(port),
            "--grace",
            "1",
        ]

    def check_server(self, command: list[str], port: int, prefix: str = "") -> Process:
        """Check that it answers and refuses, streams with a cursor, and parks runs at shutdown."""
        server = Process(self, command, self.folder, port, prefix)
        client = server.client
        self.assertEqual(client.ask("GET", "/v1/agents", Authorization="").status, 401)
        self.assertEqual(client.ask("GET", "/v1/agents", Host="evil.example").status, 403)
        made = client.ask("POST", "/v1/sessions", {"prompt": "Hi.", "agent": "greeter"})
        self.assertEqual(made.status, 201, made.body)
        self.assertEqual(made.headers["location"], f"{prefix}/v1/sessions/{made.json['session_id']}")
        path = f"/v1/sessions/{made.json['session_id']}/events"
        stream = client.stream(f"{path}?until=result")
        seen = stream.events()
        stream.close()
        stream = client.stream(f"{path}?until=result", **{"Last-Event-ID": "2"})
        stored = [event for event in seen if "seq" in event]
        self.assertEqual(stream.events(), stored[2:])
        stream.close()

        session_id = client.ask("POST", "/v1/sessions", {"prompt": "Rest.", "agent": "tea"}).json["session_id"]
        streams = [client.stream(f"/v1/sessions/{session_id}/events") for _ in range(3)]
        while all(event["type"] != "tool.started" for event in streams[0].events(1)):
            continue
        server.process.send_signal(signal.SIGTERM)
        for stream in streams:
            stream.events()
            stream.close()
        server.process.wait(WAIT_S)
        [*_, last] = server.store.read_events(session_id)
        self.assertIsInstance(last, Result)
        self.assertEqual(last.stop_reason, "suspended")
        server.store.open_writer(session_id).close()
        return server


class OurServers(ServersCase):
    @full_size
    def test_the_command_serves_and_ends_in_time_with_streams_open(self) -> None:
        port = free_port()
        server = self.check_server(self.ours(port), port)
        self.assertEqual(server.process.returncode, 0)
        said = server.stderr_text()
        self.assertIn(f"http://127.0.0.1:{port}/signin/", said)
        self.assertNotIn(TOKEN, said)
        self.assertNotIn("Warning", said)
        self.assertNotIn("Traceback", said)

    @full_size
    def test_a_server_that_is_killed_is_gone_on_with_by_the_next_one(self) -> None:
        port = free_port()
        server = Process(self, self.ours(port), self.folder, port)
        key = {"Idempotency-Key": "rest"}
        body = {"prompt": "Rest.", "agent": "tea"}
        session_id = server.client.ask("POST", "/v1/sessions", body, **key).json["session_id"]
        stream = server.client.stream(f"/v1/sessions/{session_id}/events")
        seen = stream.events(1)
        while seen[-1]["type"] != "tool.started":
            seen += stream.events(1)
        server.process.kill()
        server.process.wait()
        stream.close()
        again = Process(self, self.ours(port), self.folder, port)
        retried = again.client.ask("POST", "/v1/sessions", body, **key)
        self.assertEqual(retried.json["session_id"], session_id)
        cursor = {"Last-Event-ID": str([event["seq"] for event in seen if "seq" in event][-1])}
        stream = again.client.stream(f"/v1/sessions/{session_id}/events", **cursor)
        more = stream.events(2)
        stream.close()
        self.assertEqual(more[0]["seq"], int(cursor["Last-Event-ID"]) + 1)
        again.process.send_signal(signal.SIGINT)
        self.assertEqual(again.process.wait(WAIT_S), 0)
        prompts = [event for event in again.store.read_events(session_id) if event.type == "user.message"]
        self.assertEqual(len(prompts), 1)

    @full_size
    def test_a_second_signal_ends_at_once(self) -> None:
        port = free_port()
        command = self.ours(port)
        command[-1] = "60"
        server = Process(self, command, self.folder, port)
        session_id = server.client.ask("POST", "/v1/sessions", {"prompt": "Rest.", "agent": "tea"}).json["session_id"]
        stream = server.client.stream(f"/v1/sessions/{session_id}/events")
        while stream.events(1)[0]["type"] != "tool.started":
            continue
        server.process.send_signal(signal.SIGTERM)
        stream.events()
        stream.close()
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(WAIT_S), 128 + signal.SIGTERM)

    @full_size
    def test_it_listens_elsewhere_only_with_a_token_that_was_given(self) -> None:
        environ = {**os.environ, "OPENAGENTIC_SDK_HOME": self.folder, "PYTHONPATH": str(ROOT)}
        environ.pop("OPENAGENTIC_SDK_SERVER_TOKEN", None)
        command = [*self.ours(0), "--host", "0.0.0.0"]
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=WAIT_S)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--token-file", done.stderr)


@unittest.skipUnless(PEERS, "OPENAGENTIC_TEST_ASGI_PYTHON names a Python with uvicorn, hypercorn, granian, websockets")
class OtherServers(ServersCase):
    """Servers written by others."""

    def test_uvicorn(self) -> None:
        port = free_port()
        self.check_server([PEERS, "-m", "uvicorn", "tests.server.served_app:application", "--port", str(port)], port)

    def test_uvicorn_with_the_application_mounted_in_fastapi(self) -> None:
        port = free_port()
        command = [PEERS, "-m", "uvicorn", "tests.server.mounted_app:application", "--port", str(port)]
        self.check_server(command, port, "/a%20b/agents")

    def test_hypercorn(self) -> None:
        port = free_port()
        where = ["--workers", "0", "--bind", f"127.0.0.1:{port}", "tests.server.served_app:application"]
        self.check_server([PEERS, "-m", "hypercorn", *where], port)

    def test_granian(self) -> None:
        port = free_port()
        where = ["--interface", "asgi", "--port", str(port), "tests.server.served_app:application"]
        self.check_server([str(Path(PEERS).with_name("granian")), *where], port)


if __name__ == "__main__":
    unittest.main()
