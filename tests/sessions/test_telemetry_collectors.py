"""Traces beside third-party programs: a real Phoenix accepts them, and OpenTelemetry's SDK sends the same way as we do.

`.ci/run` installs both if `CI_LARGE=1`; OPENAGENTIC_TEST_PHOENIX_PYTHON names a Python that has `arize-phoenix`.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
import threading
import unittest
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from openagentic_sdk import AgentDefinition, FileSessionStore, OpenAgenticOptions, PermissionGate, run_sync, tool
from openagentic_sdk.parts.record.telemetry.exporter import close_all, exporters_of, try_collector
from openagentic_sdk.parts.record.telemetry.settings import read_telemetry
from openagentic_sdk.testing import ScriptedProvider

from ..ports import free_port
from ..waiting import until

PYTHON = os.environ.get("OPENAGENTIC_TEST_PHOENIX_PYTHON")
needs_peers = unittest.skipUnless(PYTHON, "OPENAGENTIC_TEST_PHOENIX_PYTHON is not set")

# Environments for the standard exporter, `URL` being a collector: it sends one span under each.
ENVIRONMENTS: tuple[Mapping[str, str], ...] = (
    {"OTEL_EXPORTER_OTLP_ENDPOINT": "URL"},
    {"OTEL_EXPORTER_OTLP_ENDPOINT": "URL/"},
    {"OTEL_EXPORTER_OTLP_ENDPOINT": "URL/otlp"},
    {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "URL/own/path"},
    {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "URL/mine", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
    {"OTEL_EXPORTER_OTLP_ENDPOINT": "URL", "OTEL_EXPORTER_OTLP_HEADERS": "x-a=b, x-c = d%20e ,x-e=1=2"},
    {"OTEL_EXPORTER_OTLP_ENDPOINT": "URL", "OTEL_EXPORTER_OTLP_HEADERS": "x-auth=Basic%20YTpi"},
    {"OTEL_EXPORTER_OTLP_ENDPOINT": "URL", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-a=b"},
    {"OTEL_EXPORTER_OTLP_ENDPOINT": "URL", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"},
    {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "URL",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "none",
    },
    {"OTEL_EXPORTER_OTLP_ENDPOINT": "URL", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
)
STANDARD = """
import json, os, sys
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
before = dict(os.environ)
for environment in json.load(sys.stdin):
    os.environ.clear()
    os.environ.update(before, **environment)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    provider.get_tracer("t").start_span("s").end()
    provider.shutdown()
"""


class _Collector(ThreadingHTTPServer):
    """Accept everything, and keep the path, headers and body of each request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Take)
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def seen(self) -> list[dict[str, str]]:
        """The properties of each request that environment variables determine."""
        names = ("content-type", "content-encoding")
        found = [
            {
                "path": path,
                **{name: value for name, value in headers.items() if name in names or name.startswith("x-")},
            }
            for path, headers, _ in self.requests
        ]
        self.requests.clear()
        return found


class _Take(BaseHTTPRequestHandler):
    server: _Collector

    def log_message(self, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()


@needs_peers
class StandardExporter(unittest.TestCase):
    def test_each_variable_sends_where_and_as_the_sdk_of_opentelemetry_sends(self) -> None:
        assert PYTHON is not None
        with _Collector() as collector:
            thread = threading.Thread(target=collector.serve_forever)
            thread.start()
            try:
                cases = [{k: v.replace("URL", collector.url) for k, v in case.items()} for case in ENVIRONMENTS]
                clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PYTHON"))}
                subprocess.run(
                    [PYTHON, "-c", STANDARD], input=json.dumps(cases), text=True, env=clean, check=True, timeout=120
                )
                theirs = collector.seen()
                self.assertEqual(len(theirs), len(cases))
                for case, expected in zip(ENVIRONMENTS, theirs, strict=True):
                    with self.subTest(case):
                        settings = read_telemetry(
                            None, {}, {k: v.replace("URL", collector.url) for k, v in case.items()}
                        )
                        assert settings is not None
                        self.assertIsNone(asyncio.run(try_collector(settings)))
                        self.assertEqual(collector.seen(), [expected])
            finally:
                collector.shutdown()
                thread.join()


@tool(effect="read")
def weather(city: str) -> str:
    """The weather of a city."""
    return f"cloudy in {city}"


@needs_peers
class Phoenix(unittest.TestCase):
    folder: str
    url: str

    @classmethod
    def setUpClass(cls) -> None:
        assert PYTHON is not None
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        ports = [free_port() for _ in range(2)]
        cls.url = f"http://127.0.0.1:{ports[0]}"
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PYTHON"))}
        environ |= {
            "PHOENIX_WORKING_DIR": cls.folder,
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }
        environ |= {"PHOENIX_PORT": str(ports[0]), "PHOENIX_GRPC_PORT": str(ports[1])}
        with Path(cls.folder, "log").open("wb") as log:
            command = [PYTHON, "-m", "phoenix.server.main", "serve"]
            server = subprocess.Popen(command, env=environ, stdout=log, stderr=log, cwd=cls.folder)

        def stop() -> None:
            server.terminate()
            server.wait()

        cls.addClassCleanup(stop)

        def answers() -> bool:
            assert server.poll() is None, Path(cls.folder, "log").read_text()[-2000:]
            try:
                with urllib.request.urlopen(f"{cls.url}/healthz", timeout=5):
                    return True
            except (urllib.error.URLError, OSError):
                return False

        until(answers, "Phoenix does not answer")

    def _spans(self) -> list[dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"{self.url}/v1/projects/default/spans?limit=50", timeout=10) as answer:
                found: list[dict[str, Any]] = json.loads(answer.read())["data"]
                return found
        except urllib.error.HTTPError as error:  # the project is created with the first span
            error.close()
            return []

    def test_a_session_with_a_subagent_is_one_tree_with_its_messages_calls_and_tokens(self) -> None:
        usage = {"usage": {"input_tokens": 10, "output_tokens": 3}}

        def call(name: str, **arguments: Any) -> dict[str, Any]:
            return {"tool_calls": [{"name": name, "arguments": arguments}], **usage}

        turns: list[Any] = [
            call("Task", agent="researcher", prompt="dig"),
            {"agent": "You research.", **call("weather", city="Oslo")},
            {"agent": "You research.", "text": "found", **usage},
            {"text": "Cloudy.", **usage},
        ]
        store = FileSessionStore(root_dir=self.folder)
        options = OpenAgenticOptions(
            provider=ScriptedProvider(turns),
            model="scripted",
            tools=[weather],
            agents={"researcher": AgentDefinition("researches", "You research.", tools=("weather",))},
            session_store=store,
            permission_gate=PermissionGate(permission_mode="bypass"),
            setting_sources=(),
            otlp_endpoint=self.url,
        )
        os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "true"
        self.addCleanup(os.environ.pop, "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT")
        result = run_sync(prompt="How is the weather?", options=options)
        close_all(60.0)
        (exporter,) = exporters_of(store)
        self.assertEqual((exporter.health.problem, exporter.health.dropped, exporter.health.sent), ("", 0, 8))
        until(lambda: len(self._spans()) == 8, "Phoenix does not show all spans")
        spans = {span["context"]["span_id"]: span for span in self._spans()}
        self.assertEqual(len({span["context"]["trace_id"] for span in spans.values()}), 1)
        (weathers,) = (span for span in spans.values() if span["name"] == "execute_tool weather")
        way, span = [], weathers
        while span["parent_id"] is not None:
            span = spans[span["parent_id"]]
            way.append((span["name"], span["span_kind"]))
        expected = [
            ("invoke_agent researcher", "AGENT"),
            ("execute_tool Task", "TOOL"),
            ("invoke_agent agent", "AGENT"),
        ]
        self.assertEqual(way, expected)
        self.assertEqual(span["attributes"]["session.id"], result.session_id)
        chats = [span["attributes"] for span in spans.values() if span["span_kind"] == "LLM"]
        self.assertEqual([chat["llm.token_count.prompt"] for chat in chats], [10] * 4)
        # Phoenix parsed the conventions' messages and their calls, and converted them to its own attributes.
        values = {
            str(value) for chat in chats for name, value in chat.items() if name.startswith("llm.output_messages.")
        }
        self.assertLessEqual({"Cloudy.", "found", "weather", "Task"}, values)

    def test_json_that_phoenix_refuses_causes_one_complaint_that_names_the_remedy(self) -> None:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}
        settings = read_telemetry(None, {}, environ)
        assert settings is not None
        found = asyncio.run(try_collector(settings)) or ""
        self.assertIn("415", found)
        self.assertIn("OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", found)


if __name__ == "__main__":
    unittest.main()
