"""Requests to a collector, parsed with OpenTelemetry's own definition of the protocol (`opentelemetry-proto`)."""

from __future__ import annotations

import base64
import importlib.util
import json
import unittest
from typing import Any

from openagentic_sdk.events import EvalCase
from openagentic_sdk.parts.record.folds.spans import SpanFold, session_spans, trace_request
from openagentic_sdk.parts.record.telemetry.protobuf import encode

from .test_telemetry import log_of

_IDS = ("traceId", "spanId", "parentSpanId")


def _with_base64_ids(value: Any) -> Any:
    """Convert ids from hex, as in OTLP (specification, "JSON Protobuf Encoding"), to base64, as in Protobuf's JSON."""
    if isinstance(value, dict):
        return {
            key: base64.b64encode(bytes.fromhex(inner)).decode() if key in _IDS else _with_base64_ids(inner)
            for key, inner in value.items()
        }
    return [_with_base64_ids(each) for each in value] if isinstance(value, list) else value


@unittest.skipUnless(
    importlib.util.find_spec("opentelemetry.proto") if importlib.util.find_spec("opentelemetry") else None,
    "opentelemetry-proto is not installed",
)
class Protocol(unittest.TestCase):
    def test_our_protobuf_is_what_the_protocols_own_code_reads(self) -> None:
        from google.protobuf.json_format import Parse
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        scores = [{"name": "s", "value": 0.5, "passed": False}]
        case = EvalCase("a", "b", 1, "live", False, scores, session_id="s", ts=2.0)
        odd = {"n": -5, "big": 2**62, "no": False, "none": 0, "empty": "", "list": ["a", 1.5], "\u00fc": "\ud83d\ude80"}
        for log, resource in (([*log_of(), case], {"team": "a"}), ([], odd)):
            body = trace_request(session_spans(log, SpanFold("s", with_content=True)), resource)
            read = ExportTraceServiceRequest.FromString(encode(body))
            self.assertEqual(read, Parse(json.dumps(_with_base64_ids(body)), ExportTraceServiceRequest()))

    def test_every_field_of_a_request_is_one_of_the_protocol(self) -> None:
        from google.protobuf.json_format import Parse
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        body = trace_request(session_spans(log_of(), SpanFold("s", with_content=True)), {"team": "a"})
        read = Parse(json.dumps(_with_base64_ids(body)), ExportTraceServiceRequest())  # raises for an unknown field
        spans = read.resource_spans[0].scope_spans[0].spans
        self.assertEqual(
            [span.name for span in spans], ["invoke_agent agent", "chat gpt-5", "execute_tool Bash", "chat gpt-5"]
        )
        self.assertEqual({len(span.trace_id) for span in spans}, {16})
        self.assertEqual({len(span.span_id) for span in spans}, {8})
        tokens = {each.key: each.value.int_value for each in spans[1].attributes}
        self.assertEqual(tokens["gen_ai.usage.cache_read.input_tokens"], 60)
