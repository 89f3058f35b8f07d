"""Spans sent to a collector: named by the conventions, during a run, and from the log after outages."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import struct
import subprocess
import tempfile
import threading
import unittest
from collections.abc import Callable, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from openagentic_sdk import (
    AgentDefinition,
    FileSessionStore,
    MemorySessionStore,
    OpenAgenticOptions,
    PermissionGate,
    run,
)
from openagentic_sdk.cli.commands.endpoint.doctor import traces_of
from openagentic_sdk.errors import OptionsError
from openagentic_sdk.events import (
    Event,
    ModelContext,
    ModelRequest,
    ModelResponse,
    ModelRetry,
    Result,
    SessionMeta,
    SystemInit,
    SystemNotice,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserMessage,
)
from openagentic_sdk.ground.frozen import changed
from openagentic_sdk.parts.record.folds import genai
from openagentic_sdk.parts.record.folds.export import to_otlp
from openagentic_sdk.parts.record.folds.spans import SpanFold, session_spans, trace_request
from openagentic_sdk.parts.record.lifecycle import child_events
from openagentic_sdk.parts.record.telemetry.exporter import (
    Exporter,
    close_all,
    exporter_for,
    exporters_of,
    tls_context,
    try_collector,
)
from openagentic_sdk.parts.record.telemetry.protobuf import REQUEST, fields_of
from openagentic_sdk.parts.record.telemetry.settings import TelemetrySettings, read_telemetry
from openagentic_sdk.permissions.redact import Redactor
from openagentic_sdk.sessions.base import SessionStore, stamp_events
from openagentic_sdk.testing import ScriptedProvider
from tests.providers.server import Server
from tests.size import full_size

CONVENTIONS = Path(__file__).resolve().parents[2] / "fixtures" / "wire" / "genai_conventions.json"
WAIT_S = 60.0  # an upper limit, reached only on failure
USAGE = {
    "input_tokens": 100,
    "cached_input_tokens": 60,
    "cache_write_tokens": 10,
    "output_tokens": 9,
    "reasoning_tokens": 4,
}


def plain(span: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a span as plain values."""

    def value(each: Mapping[str, Any]) -> Any:
        ((kind, inner),) = each.items()
        if kind == "arrayValue":
            return [value(part) for part in inner["values"]]
        return int(inner) if kind == "intValue" else inner

    return {entry["key"]: value(entry["value"]) for entry in span["attributes"]}


def spans_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [span for each in body["resourceSpans"] for scope in each["scopeSpans"] for span in scope.get("spans", [])]


def decode(data: bytes, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Decode a protobuf request to OTLP's JSON with the encoder's own tables, which the peer test verifies."""
    names = {number: (name, kind) for name, (number, kind) in fields.items()}
    message: dict[str, Any] = {}
    for number, value in fields_of(data):
        name, kind = names[number]
        if isinstance(value, int):
            read: Any = bool(value) if name == "boolValue" else value if name in ("kind", "code") else str(value)
        elif kind == "text":
            read = value.decode()
        elif isinstance(kind, str):
            one = {"hex": value.hex, "fixed64": lambda v=value: str(struct.unpack("<Q", v)[0])}
            read = one[kind]() if kind in one else struct.unpack("<d", value)[0]
        else:
            read = decode(value, kind)
        is_list = name in ("resourceSpans", "scopeSpans", "spans", "attributes", "events", "values")
        message[name] = [*message.get(name, []), read] if is_list else read
    return message


class Collector:
    """A collector on 127.0.0.1 with scripted answers: one for each request, the last one for all further requests."""

    def __init__(self, *answers: tuple[int, Mapping[str, str], bytes]) -> None:
        self.answers = list(answers) or [(200, {}, b"{}")]
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.taken: list[dict[str, Any]] = []
        self.changed = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                with collector.changed:
                    status, headers, said = collector.answers[0]
                    if len(collector.answers) > 1:
                        collector.answers.pop(0)
                    is_json = self.headers["Content-Type"] == "application/json"
                    body = json.loads(data) if is_json else decode(data, REQUEST)
                    collector.bodies.append(body)
                    collector.headers.append({**dict(self.headers), "path": self.path})
                    if status == 200:
                        collector.taken += spans_of(body)
                    collector.changed.notify_all()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(said))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: Any) -> None:
                """Suppress the request log."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def wait_for(self, is_there: Callable[[], bool]) -> bool:
        with self.changed:
            return self.changed.wait_for(is_there, WAIT_S)

    def names(self) -> list[str]:
        return [span["name"] for span in self.taken]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


def log_of(session_id: str = "s") -> list[Event]:
    """A run with a call, a failed attempt, and an answer."""
    events: list[Event] = [
        SystemInit(session_id, "/w", "1", model="gpt-5", provider="openai"),
        ModelContext("gpt-5", "openai", "", [{"function": {"name": "Bash", "description": "Runs a command."}}]),
        ModelRequest(1, 1, "", 1, model="gpt-5"),
        ModelResponse(1, 1, complete=False, usage={"input_tokens": 5, "output_tokens": 0}, error_type="Overloaded"),
        ModelRetry(1, 1, "overloaded", 1.0),
        ModelResponse(
            1,
            2,
            usage=USAGE,
            cost_usd=0.5,
            model="gpt-5-2025",
            provider="openai",
            response_id="resp_1",
            first_token_s=0.25,
            finish_reason="tool_calls",
            service_tier="flex",
        ),
        ToolUse("c1", "Bash", {"command": "ls"}),
        ToolStarted("c1", "Bash", "unsafe", "", "k"),
        ToolResult("c1", "out"),
        ModelRequest(2, 1, "", 1, model="gpt-5"),
        ModelResponse(2, 1, usage=USAGE, model="gpt-5-2025", provider="openai", finish_reason="stop"),
        Result("done", session_id, "end"),
    ]
    return stamp_events(events, first_seq=1, now=1_763_800_000.0)


BINARY = (
    b"\n\x04\x08\x03\x12\x00"  # ExportTraceServiceResponse: partial_success { rejected_spans: 3, error_message: "" }
)


class Spans(unittest.TestCase):
    def test_every_name_that_is_written_is_one_of_the_published_conventions_or_our_own(self) -> None:
        published = json.loads(CONVENTIONS.read_text(encoding="utf-8"))
        names = {value for name, value in vars(genai).items() if name.isupper() and isinstance(value, str)}
        known = {*published["attributes"], *published["operations"], *published["events"], published["schema_url"]}
        self.assertEqual(names - known, set())
        spans = session_spans(log_of(), SpanFold("s", with_content=True))
        written = {key for span in spans for key in plain(span)}
        self.assertEqual({key for key in written if not key.startswith("openagentic.")} - known, set())
        providers = ("openai-responses", "azure-openai", "bedrock", "gemini", "vertex", "anthropic")
        self.assertLessEqual({genai.provider_name(name) for name in providers}, {*published["providers"]})

    def test_a_model_call_has_its_tokens_ids_models_and_all_its_attempts(self) -> None:
        spans = session_spans(log_of(), SpanFold("s"))
        self.assertEqual(
            [span["name"] for span in spans], ["invoke_agent agent", "chat gpt-5", "execute_tool Bash", "chat gpt-5"]
        )
        first = plain(spans[1])
        wanted = {
            "gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "gpt-5",
            "gen_ai.response.model": "gpt-5-2025", "gen_ai.response.id": "resp_1", "gen_ai.conversation.id": "s",
            "gen_ai.response.finish_reasons": ["tool_calls"], "gen_ai.usage.input_tokens": 105,
            "gen_ai.usage.cache_read.input_tokens": 60, "gen_ai.usage.cache_creation.input_tokens": 10,
            "gen_ai.usage.output_tokens": 9, "gen_ai.usage.reasoning.output_tokens": 4, "gen_ai.request.stream": True,
            "gen_ai.response.time_to_first_chunk": 0.25, "openai.response.service_tier": "flex",
        }  # fmt: skip
        self.assertEqual({key: first.get(key) for key in wanted}, wanted)
        self.assertNotIn("status", spans[1], "the operation succeeded in the end")
        self.assertEqual(plain(spans[0])["gen_ai.usage.input_tokens"], 205)
        tool = plain(spans[2])
        self.assertEqual((tool["gen_ai.tool.call.id"], tool["gen_ai.tool.description"]), ("c1", "Runs a command."))

    def test_content_has_messages_calls_instructions_and_tags_without_secrets_and_stays_json(self) -> None:
        secret = "sk-ant-api03-" + "a1" * 40
        log, big = log_of(), ToolResult("c2", "x" * 90_000)
        messages = [
            SessionMeta(tags=["nightly"]),
            ModelContext("m", "openai", "Be brief.", []),
            UserMessage("key " + secret),
        ]
        events = [log[0], *messages, *log[2:9], ToolUse("c2", "Read", {"file": secret}), big, *log[9:]]
        stamped = [changed(event, seq=number, ts=1.0) for number, event in enumerate(events, 1)]
        spans = session_spans(stamped, SpanFold("s", mask=Redactor(), with_content=True))
        self.assertNotIn(secret, json.dumps(spans))
        first, last = (plain(span) for span in spans if span["name"] == "chat gpt-5")
        self.assertEqual(json.loads(first["gen_ai.system_instructions"])[0]["content"], "Be brief.")
        self.assertEqual([m["role"] for m in json.loads(first["gen_ai.input.messages"])], ["user"])
        calls = [
            part for part in json.loads(first["gen_ai.output.messages"])[0]["parts"] if part["type"] == "tool_call"
        ]
        self.assertEqual((calls[0]["name"], calls[0]["arguments"]), ("Bash", {"command": "ls"}))
        newest = json.loads(last["gen_ai.input.messages"])
        self.assertEqual((newest[-1]["role"], newest[-1]["parts"][0]["type"]), ("tool", "tool_call_response"))
        self.assertLess(len(last["gen_ai.input.messages"]), 70_000)
        self.assertEqual(json.loads(plain(spans[2])["gen_ai.tool.call.result"]), "out")
        self.assertEqual(plain(spans[0]).get("openagentic.tags"), None, "they arrived after the start")
        tagged = session_spans(stamped, SpanFold("s", tags=["nightly"]))
        self.assertEqual(plain(tagged[0])["openagentic.tags"], ["nightly"])
        self.assertNotIn("messages", json.dumps(tagged))

    def test_failed_spans_have_an_error_status_and_no_clock_ends_a_span_before_its_start(self) -> None:
        events = log_of()[:4]
        back = [event if index < 3 else type(event)(**{**vars(event), "ts": 5.0}) for index, event in enumerate(events)]
        spans = session_spans(back, SpanFold("s"))
        self.assertEqual([span["status"]["code"] for span in spans], [2, 2])
        self.assertEqual(plain(spans[1])["error.type"], "Overloaded")
        for span in spans:
            self.assertGreaterEqual(int(span["endTimeUnixNano"]), int(span["startTimeUnixNano"]))

    def test_characters_without_a_utf_8_form_break_no_request(self) -> None:
        events = stamp_events([SystemInit("\ud800", "/", "1", model="m\ud800")], first_seq=1, now=1.0)
        body = trace_request(session_spans(events, SpanFold("\ud800")))
        json.dumps(body, ensure_ascii=False).encode()


class Settings(unittest.TestCase):
    def test_the_standard_variables_set_the_endpoint_and_protocol(self) -> None:
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/base/",
            "OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20b, x=1",
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x=2",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1500",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_SERVICE_NAME": "mine",
            "OTEL_RESOURCE_ATTRIBUTES": "service.name=other,team=a%2Cb",
            "OTEL_BSP_SCHEDULE_DELAY": "oops",
        }
        found = read_telemetry(None, {"y": "3"}, environ)
        assert found is not None
        self.assertEqual(found.url, "http://collector:4318/base/v1/traces")
        self.assertEqual(dict(found.headers), {"api-key": "a b", "x": "2", "y": "3"})
        self.assertEqual(dict(found.resource), {"service.name": "mine", "team": "a,b"})
        self.assertEqual((found.timeout_s, found.delay_s, found.gzip, found.with_content), (1.5, 5.0, True, False))
        self.assertFalse(found.as_json)
        for names in ({"OTLP_PROTOCOL": "http/json"}, {"OTLP_TRACES_PROTOCOL": "http/json", "OTLP_PROTOCOL": "grpc"}):
            chosen = {f"OTEL_EXPORTER_{name}": value for name, value in names.items()}
            self.assertTrue(getattr(read_telemetry(None, {}, {**environ, **chosen}), "as_json", None), chosen)
            self.assertTrue(
                getattr(read_telemetry("http://c", {}, chosen), "as_json", None), "even if the option is set"
            )
        certificates = {"CERTIFICATE": "ca.pem", "TRACES_CLIENT_CERTIFICATE": "me.pem", "CLIENT_KEY": "me.key"}
        named = read_telemetry(None, {}, {**environ, **{f"OTEL_EXPORTER_OTLP_{k}": v for k, v in certificates.items()}})
        assert named is not None
        self.assertEqual(
            (named.certificate, named.client_certificate, named.client_key), ("ca.pem", "me.pem", "me.key")
        )
        with self.assertRaisesRegex(OptionsError, "'ca.pem', 'me.pem', 'me.key'.* cannot be used"):
            tls_context(named)
        whole = {**environ, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/as/it/is"}
        self.assertEqual(getattr(read_telemetry(None, {}, whole), "url", None), "http://t/as/it/is")

    def test_nothing_is_sent_without_a_configured_endpoint(self) -> None:
        base = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}
        for environ in (
            {}, {**base, "OTEL_SDK_DISABLED": "true"}, {**base, "OTEL_TRACES_EXPORTER": "none"},
            {**base, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
        ):  # fmt: skip
            self.assertIsNone(read_telemetry(None, {}, environ), environ)
        self.assertIsNone(read_telemetry("", {}, base))
        for wrong in ("collector:4318", "ftp://x", "http://[", "http://user:key@c"):
            with self.subTest(wrong), self.assertRaises(OptionsError):
                read_telemetry(wrong, {}, {})
        with self.assertRaisesRegex(OptionsError, "api-key") as caught:
            read_telemetry("http://c", {"api-key": "geheim\n"}, {})
        self.assertNotIn("geheim", str(caught.exception))


class Export(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.addCleanup(close_all, WAIT_S)
        home = os.environ.get("OPENAGENTIC_SDK_HOME")
        os.environ["OPENAGENTIC_SDK_HOME"] = str(self.folder / "home")
        self.addCleanup(self._set, "OPENAGENTIC_SDK_HOME", home)

    def _set(self, name: str, value: str | None) -> None:
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value

    def collector(self, *answers: tuple[int, Mapping[str, str], bytes]) -> Collector:
        collector = Collector(*answers)
        self.addCleanup(collector.close)
        return collector

    def exporter(self, store: SessionStore, url: str, **more: Any) -> Exporter:
        settings = TelemetrySettings(f"{url}/v1/traces", delay_s=0.01, **more)
        exporter = Exporter(store, settings, self.folder / "cursors")
        self.addCleanup(exporter.close, WAIT_S)
        return exporter

    def stored(self, events: list[Event] | None = None) -> tuple[SessionStore, list[Event]]:
        store = MemorySessionStore()
        events = log_of() if events is None else events
        store.import_session("s", events)
        return store, events

    def test_a_run_and_its_subagents_arrive_as_one_trace_at_the_endpoint_of_the_options(self) -> None:
        collector = self.collector()
        helper = ScriptedProvider(["helped"])
        options = OpenAgenticOptions(
            provider=ScriptedProvider(
                [{"tool_calls": [{"name": "Task", "arguments": {"agent": "h", "prompt": "p"}}]}, "done"]
            ),
            model="m",
            session_store=FileSessionStore(self.folder / "store", durability="flush"),
            agents={"h": AgentDefinition("helps", "help", provider=helper)},
            permission_gate=PermissionGate(permission_mode="bypass"),
            otlp_endpoint=collector.url,
            otlp_headers={"x-key": "k"},
            key_file=str(self.folder / "key"),
        )
        result = asyncio.run(run(prompt="go", options=options))
        self.assertTrue(result.ok)
        self.assertTrue(collector.wait_for(lambda: len(collector.names()) == 6), collector.names())
        self.assertEqual(len({span["traceId"] for span in collector.taken}), 1)
        by_name = {span["name"]: span for span in collector.taken}
        self.assertEqual(by_name["invoke_agent h"]["parentSpanId"], by_name["execute_tool Task"]["spanId"])
        self.assertEqual(by_name["execute_tool Task"]["parentSpanId"], by_name["invoke_agent agent"]["spanId"])
        store = options.session_store
        assert isinstance(store, FileSessionStore)
        exported = spans_of(to_otlp(store.read_events(result.session_id), read=partial(child_events, store)))
        ids = ("traceId", "spanId", "parentSpanId")
        places = [sorted([span.get(name, "") for name in ids] for span in each) for each in (exported, collector.taken)]
        self.assertEqual(places[0], places[1], "an export reports what was sent")
        self.assertEqual((collector.headers[0]["x-key"], collector.headers[0]["path"]), ("k", "/v1/traces"))
        self.assertEqual(collector.bodies[0]["resourceSpans"][0]["scopeSpans"][0]["schemaUrl"], genai.SCHEMA_URL)

    def test_throttled_and_broken_requests_are_tried_again_and_refused_ones_are_not(self) -> None:
        store, events = self.stored()
        again = self.collector((429, {"Retry-After": "0"}, b""), (503, {"Retry-After": "0.01"}, b""), (200, {}, b"{}"))
        exporter = self.exporter(store, again.url)
        exporter.notify("s", events)
        self.assertTrue(exporter.flush(WAIT_S))
        self.assertEqual((len(again.bodies), exporter.health.sent, exporter.health.dropped), (3, 4, 0))
        refusing = self.collector((400, {}, b"no"))
        exporter = self.exporter(store, refusing.url)
        exporter.notify("s", events)
        self.assertTrue(exporter.flush(WAIT_S))
        self.assertEqual((len(refusing.bodies), exporter.health.dropped), (1, 4))

    def test_a_collector_that_accepts_no_protobuf_causes_one_notice_with_the_remedy(self) -> None:
        status = b"\x12\x0bunsupported"  # google.rpc.Status: message
        collector = self.collector((415, {"Content-Type": "application/x-protobuf"}, status))
        store, messages = MemorySessionStore(), list[str]()
        options = OpenAgenticOptions(
            provider=ScriptedProvider(["one", "two", "three"]), model="m", session_store=store,
            otlp_endpoint=collector.url, key_file=str(self.folder / "key"),
        )  # fmt: skip
        for number in range(3):
            events = asyncio.run(run(prompt="go", options=options)).events
            messages += [event.message for event in events if isinstance(event, SystemNotice)]
            (exporter,) = exporters_of(store)
            self.assertTrue(exporter.flush(WAIT_S))
            self.assertGreater(exporter.health.dropped, number)
        self.assertEqual(len(messages), 1)
        self.assertIn("with 415: unsupported", messages[0])
        self.assertIn("OTEL_EXPORTER_OTLP_PROTOCOL=http/json", messages[0])

    def test_a_refusal_that_no_run_could_report_is_logged_at_the_end_of_the_process(self) -> None:
        store, events = self.stored()
        collector = self.collector((401, {}, b"who are you?"))
        settings = TelemetrySettings(f"{collector.url}/v1/traces", delay_s=0.01)
        exporter_for(store, settings, None, None).notify("s", events)
        with self.assertLogs("openagentic_sdk", "WARNING") as logged:
            close_all(WAIT_S)
        self.assertIn("with 401: who are you?; set OTEL_EXPORTER_OTLP_HEADERS", logged.output[0])

    def test_doctor_tries_the_collector_with_a_request_without_spans(self) -> None:
        collector = self.collector((200, {}, b""), (415, {}, b""))
        url = f"{collector.url}/v1/traces"
        found = [asyncio.run(try_collector(TelemetrySettings(url, as_json=as_json))) for as_json in (False, True)]
        self.assertIsNone(found[0])
        self.assertIn("set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", found[1] or "")
        types = [headers["Content-Type"] for headers in collector.headers]
        self.assertEqual(types, ["application/x-protobuf", "application/json"])
        self.assertEqual(collector.taken, [])
        collector.answers[:] = [(200, {}, b"")]
        paths = traces_of({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url})
        self.assertEqual(paths, [f"{url} accepts them as protobuf"])
        self.assertIn("gRPC", traces_of({"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})[0])
        self.assertEqual(traces_of({}), [])

    @full_size
    def test_the_certificates_of_the_standard_variables_are_trusted_and_shown(self) -> None:
        cert, key = str(self.folder / "cert.pem"), str(self.folder / "key.pem")
        subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
        try:
            subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            raise unittest.SkipTest("the openssl command is needed to make a certificate") from None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        context.load_verify_locations(cert)
        context.verify_mode = ssl.CERT_REQUIRED
        with Server(lambda connection, request: connection.reply(b""), tls=context) as server:
            found = [
                asyncio.run(try_collector(TelemetrySettings(f"{server.url}/v1/traces", **files)))
                for files in (
                    {},
                    {"certificate": cert, "client_certificate": cert, "client_key": key},
                )
            ]
        self.assertIn("certificate", found[0] or "")
        self.assertIsNone(found[1])
        self.assertEqual(len(server.requests), 1)

    def test_spans_rejected_by_a_partial_success_are_counted_and_not_sent_again(self) -> None:
        store, events = self.stored()
        said = json.dumps({"partialSuccess": {"rejectedSpans": "3", "errorMessage": "too many"}}).encode()
        for body, sent, rejected in (
            (said, 1, 3),
            (b"\xff not json", 4, 0),
            (b"[]", 4, 0),
            (b"", 4, 0),
            (BINARY, 1, 3),
        ):
            collector = self.collector(
                (200, {"Content-Type": "application/x-protobuf"} if body is BINARY else {}, body)
            )
            exporter = self.exporter(store, collector.url)
            exporter.notify("s", events)
            self.assertTrue(exporter.flush(WAIT_S))
            self.assertEqual((exporter.health.sent, exporter.health.rejected), (sent, rejected))
            complaint = exporter.health.take_complaint() or ""
            self.assertEqual("rejects 3 spans of 4: " in complaint, rejected > 0, complaint)
            self.assertEqual(len(collector.bodies), 1)

    def test_after_an_outage_another_process_sends_the_gap_from_the_log_and_nothing_twice(self) -> None:
        store = MemorySessionStore()
        events = log_of()
        store.import_session("s", events[:9])
        collector = self.collector()
        exporter = self.exporter(store, collector.url)
        exporter.notify("s", events[:9])
        self.assertTrue(exporter.flush(WAIT_S))
        self.assertEqual(collector.names(), ["chat gpt-5", "execute_tool Bash"])
        exporter.close(WAIT_S)
        store.append_events("s", events[9:])
        # The starting point of another process: the stored cursors, and a session of its own that grows.
        store.import_session("t", log_of("t"))
        later = self.exporter(store, collector.url)
        later.notify("t", log_of("t"))
        self.assertTrue(collector.wait_for(lambda: len(collector.taken) >= 8), collector.names())
        self.assertTrue(later.flush(WAIT_S))
        ids = [span["spanId"] for span in collector.taken]
        self.assertEqual(len(ids), len(set(ids)))
        everything = {
            span["spanId"] for name in "st" for span in session_spans(store.read_events(name), SpanFold(name))
        }
        self.assertEqual(set(ids), everything)

    def test_big_sessions_go_in_several_requests(self) -> None:
        events = log_of()
        steps = [event for _ in range(30) for event in events[9:11]]
        store, stamped = self.stored(stamp_events([*events[:9], *steps, events[11]], first_seq=1, now=1.0))
        collector = self.collector()
        exporter = self.exporter(store, collector.url, max_spans=7)
        exporter.notify("s", stamped)
        self.assertTrue(exporter.flush(WAIT_S))
        self.assertEqual(len(collector.taken), 33)
        self.assertTrue(all(len(spans_of(body)) <= 7 for body in collector.bodies))

    def test_a_run_does_not_wait_for_a_dead_or_silent_collector(self) -> None:
        import socket

        with socket.socket() as silent, socket.socket() as gone:
            silent.bind(("127.0.0.1", 0))
            silent.listen(8)
            gone.bind(("127.0.0.1", 0))
            dead_port = gone.getsockname()[1]
            gone.close()
            for port in (silent.getsockname()[1], dead_port):
                options = OpenAgenticOptions(
                    provider=ScriptedProvider(["done"]),
                    model="m",
                    session_store=MemorySessionStore(),
                    otlp_endpoint=f"http://127.0.0.1:{port}",
                    key_file=str(self.folder / "key"),
                )
                result = asyncio.run(asyncio.wait_for(run(prompt="go", options=options), WAIT_S))
                self.assertTrue(result.ok)
