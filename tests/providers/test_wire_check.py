"""`wire check`: every kind of recording is read, and whatever is read differently from what was sent is reported."""

from __future__ import annotations

import base64
import contextlib
import gzip
import io
import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

from openagentic_sdk.cli.main import main
from openagentic_sdk.errors import OptionsError
from openagentic_sdk.testing.wire_check.check import check_exchange
from openagentic_sdk.testing.wire_check.recordings import Exchange, read_recording
from openagentic_sdk.testing.wire_check.rules import find_broken_rules

URL = "https://api.openai.com/v1/chat/completions"


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"id": "c1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def call(index: int, call_id: str, arguments: str, name: str = "look") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}


def stream(*chunks: dict[str, Any], end: str = "data: [DONE]\n\n") -> str:
    return "".join(f"data: {json.dumps(one)}\n\n" for one in chunks) + end


HELLO = stream(chunk(content="Hel"), chunk(content="lo."), chunk("stop"))
REQUEST = json.dumps({"model": "gpt-5.4", "stream": True, "messages": [{"role": "user", "content": "Hi."}]})


def indented(text: str, spaces: int) -> str:
    return "".join(f"{' ' * spaces}{line}\n" if line else "\n" for line in text.split("\n")[:-1])


VCR = f"""interactions:
- request:
    body: '{REQUEST}'
    headers: &id001
      accept:
      - '*/*'
    method: POST
    uri: {URL}
  response:
    body:
      string: |+
{indented(HELLO, 8)}    headers: *id001
    status:
      code: 200
      message: OK
- request:
    parsed_body:
      model: gpt-5.4
      temperature: 0.5
      stop: null
    uri: {URL}
  response:
    body:
      string: !!binary |
        {base64.b64encode(gzip.compress(HELLO.encode())).decode()}
    status: {{code: 200, message: OK}}
version: 1
"""
GO_VCR = f"""---
version: 2
interactions:
    - id: 0
      request:
        body: '{REQUEST}'
        url: {URL}
      response:
        body: {json.dumps(HELLO)}
        code: 200
"""
RUBY = f"""---
http_interactions:
- request:
    method: post
    uri: {URL}
    body:
      encoding: UTF-8
      string: '{REQUEST}'
  response:
    status:
      code: 200
    headers:
      Content-Type:
      - text/event-stream
    body:
      encoding: UTF-8
      string: {json.dumps(HELLO)}
recorded_with: VCR 6.4.0
...
"""
HAR = {
    "log": {
        "entries": [
            {
                "request": {"url": URL, "postData": {"text": REQUEST}},
                "response": {
                    "status": 200,
                    "headers": [{"name": "Content-Type", "value": "text/event-stream"}],
                    "content": {"text": base64.b64encode(HELLO.encode()).decode(), "encoding": "base64"},
                },
            }
        ]
    }
}
_ASKED = f"POST {URL} HTTP/1.1\r\nHost: api.openai.com\r\n\r\n{REQUEST}"
_TOLD = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n{HELLO}"
HTTPRR = f"httprr trace v1\n{len(_ASKED)} {len(_TOLD)}\n{_ASKED}{_TOLD}"
LOG = [
    {"v": 1, "seq": 1, "type": "user.message", "text": "Hi."},
    {"v": 1, "seq": 2, "type": "model.response", "raw": [chunk(content="Hello."), chunk("stop")]},
]
LINES = [chunk(content="Hello."), chunk("stop"), {**chunk(role="assistant", content="Bye."), "id": "c2"}, chunk("stop")]
RECORDINGS = {
    "vcr.yaml": (VCR, 2),
    "go.yaml": (GO_VCR, 1),
    "ruby.yml": (RUBY, 1),
    "vcr.json": (json.dumps({"interactions": [{"request": {"uri": URL}, "response": {"body": {"string": HELLO}}}]}), 1),
    "one.har": (json.dumps(HAR), 1),
    "go.httprr": (HTTPRR, 1),
    "events.jsonl": ("\n".join(map(json.dumps, LOG)), 1),
    "saved.sse": (HELLO, 1),
    "two.chunks.txt": ("\n".join(map(json.dumps, LINES)), 2),
}


def exchange(body: str, url: str = URL, request: Any = None) -> Exchange:
    return Exchange("here#1", url, 200, {}, request, body.encode())


def found(body: str, url: str = URL) -> list[tuple[str, str]]:
    checked = check_exchange(exchange(body, url))
    assert checked is not None
    return [(one.kind, one.detail) for one in checked.differences]


class Recordings(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def place(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8", newline="")
        return path

    def command(self, *argv: str) -> tuple[int, str]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            code = main(["wire", "check", *argv])
        return code, out.getvalue()

    def test_every_form_of_recording_is_read(self) -> None:
        for name, (text, answers) in RECORDINGS.items():
            with self.subTest(name):
                exchanges = list(read_recording(self.place(name, text)))
                checked = [one for each in exchanges if (one := check_exchange(each)) is not None]
                self.assertEqual([(one.protocol, one.differences) for one in checked], [("chat", [])] * answers)
                self.assertTrue(all(one.cuts == one.events - 1 > 0 for one in checked))

    def test_values_of_a_cassette_have_their_types(self) -> None:
        second = list(read_recording(self.place("vcr.yaml", VCR)))[1]
        self.assertEqual(second.request, {"model": "gpt-5.4", "temperature": 0.5, "stop": None})
        self.assertEqual(second.body.decode(), HELLO)

    def test_a_file_of_another_kind_is_named_with_its_line(self) -> None:
        for name, text, told in (("a.yaml", "a: b: c\n", "line 1"), ("b.yaml", "a: 'b", "never closed")):
            with self.subTest(name), self.assertRaisesRegex(OptionsError, told):
                list(read_recording(self.place(name, text)))

    def test_a_folder_is_checked_file_by_file_and_sets_the_exit_code(self) -> None:
        for name, (text, _) in RECORDINGS.items():
            self.place(name, text)
        code, said = self.command(str(self.folder))
        self.assertEqual((code, said), (0, "11 answers in 9 files, 27 cuts: 0 different\n"))
        self.place("worse.yaml", "a: 'b")
        worse = stream(chunk(**call(0, "a", '{"at": 1}')), chunk("tool_calls"), chunk("length"))
        self.place("cut.sse", worse)
        code, said = self.command(str(self.folder))
        self.assertEqual(code, 1)
        self.assertRegex(said, r"cut\.sse#1: cut: after event \d of 4: would run look\(\{\"at\": 1\}\)")
        self.assertRegex(said, r"unreadable: .*worse\.yaml .*line 1")
        code, said = self.command(str(self.folder), "--json")
        told = json.loads(said)
        self.assertEqual((code, told["kinds"], len(told["unreadable"])), (1, {"cut": 1}, 1))

    def test_a_path_that_is_not_there_is_wrong_usage(self) -> None:
        self.assertEqual(self.command(str(self.folder / "none"))[0], 2)

    def test_a_check_that_finds_no_answer_fails(self) -> None:
        self.assertRegex(self.command(str(self.folder))[1], "unreadable: no answer of a model's endpoint was found in ")
        self.assertEqual(self.command(str(self.place("passwords.txt", "root:x:0:0")))[0], 1)


class Differences(unittest.TestCase):
    def test_exchanges_without_an_answer_are_omitted(self) -> None:
        bodies = ('{"data": [{"embedding": [1]}]}', '{"error": {"message": "no"}}', "", "<html>", "data: x\n\n")
        for body in bodies:
            with self.subTest(body):
                self.assertIsNone(check_exchange(exchange(body)))

    def test_an_incomplete_answer_is_reported_and_is_not_a_difference(self) -> None:
        checked = check_exchange(exchange(stream(chunk(content="Hel"), end="")))
        assert checked is not None
        self.assertEqual(checked.differences, [])
        self.assertIn("IncompleteResponseError", checked.refusal or "")

    def test_a_text_that_the_end_withdraws_is_a_difference(self) -> None:
        events = [
            {"type": "response.created", "response": {"id": "r"}},
            {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "id": "m"}},
            {"type": "response.output_text.delta", "output_index": 0, "item_id": "m", "delta": "Other words."},
            {
                "type": "response.completed",
                "response": {
                    "id": "r",
                    "status": "completed",
                    "output": [{"type": "message", "id": "m", "content": [{"type": "output_text", "text": "Words."}]}],
                },
            },
        ]
        kinds = {kind for kind, _ in found(stream(*events, end=""), "https://api.openai.com/v1/responses")}
        self.assertEqual(kinds, {"reading"})

    def test_rules_are_applied_where_they_are_in_force(self) -> None:
        nine = {"id": "abc123XYZ", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        long = {**nine, "id": "call_that_is_longer_than_nine"}
        answered = [{"role": "tool", "tool_call_id": "abc123XYZ", "content": "x"}]
        asked = {"messages": [{"role": "assistant", "tool_calls": [nine]}, *answered]}
        named = {"messages": [{"role": "assistant", "tool_calls": [long]}, {**answered[0], "tool_call_id": long["id"]}]}
        late = {"messages": [*asked["messages"][:1], {"role": "user", "content": "Hm."}, *answered]}
        thought = [{"response": {"output": [{"type": "reasoning", "id": "rs1", "encrypted_content": "x"}]}}]
        phased = [{"response": {"output": [{"type": "message", "phase": "commentary", "content": [{"text": "Hm."}]}]}}]
        empty = {"contents": [{"role": "model", "parts": [{"text": ""}]}]}
        signed = {"contents": [{"role": "model", "parts": [{"text": "", "thoughtSignature": "s"}]}]}
        cases: list[tuple[str, str, dict[str, Any], Any, str | None]] = [
            ("chat", "api.mistral.ai", asked, [], None),
            ("chat", "api.mistral.ai", named, [], "tool_calls.*.id is 'call_that"),
            ("chat", "api.openai.com", named, [], None),
            ("chat", "api.openai.com", {"messages": [{"role": "assistant", "reasoning": "Hm."}]}, [], "is sent"),
            ("chat", "openrouter.ai", {"messages": [{"role": "assistant", "reasoning": "Hm."}]}, [], None),
            ("chat", "", late, [], "does not directly follow"),
            ("chat", "", {"messages": asked["messages"][:1]}, [], "has no result"),
            ("chat", "", {"messages": answered}, [], "without having been asked"),
            ("responses", "", {"input": []}, thought, "lacks 'rs1'"),
            ("responses", "", {"input": [{"type": "reasoning", "id": "r", "encrypted_content": "x"}]}, thought, None),
            ("responses", "", {"input": [{"type": "message"}]}, phased, "lacks 'commentary'"),
            ("responses", "", {"input": [{"type": "message", "phase": "commentary"}]}, phased, None),
            ("gemini", "", empty, [], "text is ''"),
            ("gemini", "", signed, [], None),
        ]
        for protocol, host, request, answer, told in cases:
            with self.subTest(protocol=protocol, host=host, told=told):
                broken = list(find_broken_rules(protocol, host, request, answer))  # type: ignore[arg-type]
                self.assertEqual(bool(broken), told is not None, broken)
                self.assertIn(told or "", "".join(broken))
                self.assertTrue(all("(" in one for one in broken if "path" in one))


if __name__ == "__main__":
    unittest.main()
