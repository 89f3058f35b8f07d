"""The first hour with a server: timeouts, addresses, mistakes in entries, eras, and other output of the server."""

from __future__ import annotations

import asyncio
import json
import sys
import unittest
from typing import Any

from openagentic_sdk import MemorySessionStore, OpenAgenticOptions, run
from openagentic_sdk.cli.exits import FAILED, USAGE
from openagentic_sdk.cli.servers.here import hidden_arguments
from openagentic_sdk.errors import McpError, OptionsError
from openagentic_sdk.events import UserAnswer, UserQuestion
from openagentic_sdk.parts.mcp.seat import Seat
from openagentic_sdk.parts.mcp.server_config import McpServer, read_server_entry
from openagentic_sdk.parts.mcp.session import RequestHooks
from openagentic_sdk.parts.mcp.tools import RemoteTool
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.testing import ScriptedProvider
from tests.size import full_size

from .test_command import McpCase

# Answers with a list where allowed, and writes the stray output of typical servers.
_NOISY = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    method, answer = asked["method"], {"jsonrpc": "2.0", "id": asked.get("id")}
    if method == "initialize":
        answer["result"] = {"protocolVersion": "2025-03-26", "capabilities": {"tools": {}}}
    elif method == "tools/list":
        answer["result"] = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        print('DEBUG sent {"jsonrpc": "2.0", "id": 3}')
        print(json.dumps({"level": "debug", "request": {"jsonrpc": "2.0"}}))
        print('[info] handled {"jsonrpc"')
        answer["result"] = {"content": [{"type": "text", "text": "echo"}]}
        answer = [{"jsonrpc": "2.0", "method": "notifications/message", "params": {}}, answer]
    else:
        answer["error"] = {"code": -32601, "message": f"no {method}"}
    if "id" in asked:
        print(json.dumps(answer), flush=True)
"""


class Entries(unittest.TestCase):
    def test_a_calls_limit_is_read_in_the_unit_of_its_file_and_what_looks_like_the_other_is_refused(self) -> None:
        entry = {"command": "x"}
        for said, in_milliseconds, limit_s in (
            ({"timeout": 60}, False, 60.0),
            ({"timeout": 60_000}, True, 60.0),
            ({"callTimeout": 60}, True, 60.0),
            ({"callTimeout": 20_000}, False, 20_000.0),
        ):
            server = read_server_entry("s", {**entry, **said}, in_milliseconds=in_milliseconds)
            self.assertEqual(server.call_timeout_s, limit_s)
        refused = [(60, True, ["60000", '"callTimeout": 60']), (60_000, False, ['"timeout": 60,'])]
        for value, in_milliseconds, words in refused:
            with self.assertRaises(OptionsError) as caught:
                read_server_entry("s", {**entry, "timeout": value}, in_milliseconds=in_milliseconds)
            for each in words:
                self.assertIn(each, str(caught.exception))

    def test_a_value_of_a_wrong_type_is_named_by_its_key_and_not_repeated(self) -> None:
        for key, words in (
            ("env", "'PORT' in env must be a string, not a value of type int"),
            ("headers", "'PORT' in headers must be a string, not a value of type int"),
        ):
            with self.assertRaisesRegex(OptionsError, words) as caught:
                read_server_entry("s", {"command": "x", key: {"PORT": 31337}})
            self.assertNotIn("31337", str(caught.exception))

    def test_programs_that_install_what_they_start_are_waited_for_unless_a_limit_is_set(self) -> None:
        waits = [("npx", 30.0, 300.0), ("/usr/bin/uvx", 30.0, 300.0), ("npx.cmd", 9.0, 9.0), ("x", 30.0, 30.0)]
        for command, limit_s, wait_s in waits:
            self.assertEqual(McpServer(command=command, connect_timeout_s=limit_s).wait_s, wait_s)

    def test_secrets_in_arguments_are_hidden(self) -> None:
        args = [
            "--token",
            "hunter2",
            "--api-key=hunter2",
            "-v",
            "--port",
            "80",
            "--password",
            "--yes",
            "--key",
            "${KEY}",
        ]
        shown = ["--token", "[hidden]", "--api-key=[hidden]", *args[3:]]
        self.assertEqual(hidden_arguments(args), shown)
        key = "SK" + "0123456789abcdef" * 2
        self.assertEqual(hidden_arguments([f"account/{key}:hunter2", f"--x={key}"]), ["[hidden]", "--x=[hidden]"])


class Commands(McpCase):
    def test_files_that_claude_code_reads_have_milliseconds_and_our_own_seconds(self) -> None:
        self.name_in_project(shared={**self.entry(), "timeout": 60})
        listed = self.mcp("list", code=FAILED)
        self.assertIn("milliseconds", listed)
        self.assertIn("60000", listed)
        self.mcp("add-json", "mine", json.dumps({"command": "x", "timeout": 60}), code=0)

    def test_addresses_that_no_server_has_are_refused_and_a_list_shows_no_secret(self) -> None:
        self.assertIn("not the address of a server", self.mcp("add", "x", "ftp://example.com/mcp", code=USAGE))
        self.mcp("add", "--connect-timeout", "7", "--era", "legacy", "y", "--", "run-it", "--token", "hunter2")
        self.assertNotIn("hunter2", self.mcp("list") + self.mcp("get", "y"))
        self.assertIn("connectTimeout: 7.0", self.mcp("get", "y"))

    def test_the_end_of_the_last_words_is_shown(self) -> None:
        code = "import sys; sys.stderr.write('npm notice\\n' * 180 + 'the real reason\\n'); sys.exit(3)"
        self.mcp("add", "x", "--", sys.executable, "-c", code)
        self.assertIn("the real reason", self.mcp("test", "x", code=FAILED))

    def test_a_secret_without_its_issuer_is_refused(self) -> None:
        flags = ["add", "--client-id", "c", "--client-secret-env", "S", "x", "https://example.com/mcp"]
        self.assertIn("--issuer", self.mcp(*flags, code=USAGE))
        self.mcp(*flags[:1], "--issuer", "https://issuer.example", *flags[1:])


class Eras(unittest.IsolatedAsyncioTestCase):
    async def seat(self, **settings: Any) -> Seat:
        server = McpServer(command=sys.executable, args=["-I", "-S", "-c", _NOISY], **settings)
        seat = Seat("srv", server, "/", [], None, None)
        self.addAsyncCleanup(seat.close)
        seat.start()
        await seat.ready()
        return seat

    async def test_lists_of_messages_and_lines_of_a_log_cost_no_call_in_flight(self) -> None:
        seat = await self.seat()
        tool = seat.tools[0]
        assert isinstance(tool, RemoteTool)
        calls = [seat.call_tool(tool.definition, {}, RequestHooks(), "unsafe") for _ in range(3)]
        for said in await asyncio.gather(*calls):
            self.assertEqual(said["content"][0]["text"], "echo")

    async def test_an_entry_chooses_the_era_and_a_refusal_names_the_other(self) -> None:
        seat = await self.seat(era="modern")
        self.assertIn('remove "era": "modern"', str(seat.event and seat.event.error_message))
        seat = await self.seat(era="legacy")
        assert seat.event is not None
        self.assertEqual(seat.event.state, "started")
        with self.assertRaisesRegex(McpError, 'used 2025-03-26, and "era": "modern"'):
            await seat.ask("prompts/list", {})
        with self.assertRaises(OptionsError):
            McpServer(command="x", era="new")  # type: ignore[arg-type]


# Asks the question in its arguments, as often as they request.
_ASKING = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    method, answer = asked.get("method"), {"jsonrpc": "2.0", "id": asked.get("id")}
    if method == "initialize":
        answer["result"] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
    elif method == "tools/list":
        answer["result"] = {"tools": [{"name": "form", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        given, said = asked["params"]["arguments"], []
        for number in range(given["times"]):
            schema = {"type": "object", "properties": {given["field"]: {"type": "string"}}, "required": [given["field"]]}
            params = {"message": "Hello.", "requestedSchema": schema}
            print(json.dumps({"jsonrpc": "2.0", "id": number, "method": "elicitation/create", "params": params}), flush=True)
            said.append(json.loads(sys.stdin.readline())["result"])
        answer["result"] = {"content": [{"type": "text", "text": str(len(json.dumps(said)))}]}
    elif "id" in asked:
        answer["error"] = {"code": -32601, "message": f"no {method}"}
    if "id" in asked:
        print(json.dumps(answer), flush=True)
"""


class Forms(unittest.IsolatedAsyncioTestCase):
    async def go(self, field: str, times: int, answer: Any) -> tuple[list[UserQuestion], list[Any]]:
        asked: list[UserQuestion] = []

        async def person(question: UserQuestion) -> str:
            asked.append(question)
            return str(answer(question))

        call = {"tool_calls": [{"name": "mcp__srv__form", "arguments": {"field": field, "times": times}}]}
        options = OpenAgenticOptions(
            provider=ScriptedProvider([call, "Done."]), model="scripted", session_store=MemorySessionStore(),
            permission_gate=PermissionGate(allow=["mcp__srv"], user_answerer=person),
            mcp_servers={"srv": McpServer(command=sys.executable, args=["-I", "-S", "-c", _ASKING], era="legacy")},
        )  # fmt: skip
        return asked, list((await run(prompt="Go.", options=options)).events)

    async def test_a_question_for_a_secret_is_shown_with_a_warning_and_its_answer_is_in_no_log(self) -> None:
        for field, is_secret in (("api_key", True), ("Password", True), ("city", False)):
            with self.subTest(field):
                asked, events = await self.go(field, 1, lambda question: "hunter2hunter2")
                self.assertEqual("Careful: this asks for a secret" in asked[0].prompt, is_secret)
                [answer] = [event.answer for event in events if isinstance(event, UserAnswer)]
                self.assertEqual(answer, "[hidden]" if is_secret else "hunter2hunter2")
                [result] = [event for event in events if event.type == "tool.result"]
                self.assertEqual(
                    result.output, str(len(json.dumps([{"action": "accept", "content": {field: "hunter2hunter2"}}])))
                )

    async def test_a_server_that_asks_more_than_ten_questions_in_a_call_is_asked_about(self) -> None:
        for lets_go_on, count in (("yes", 14), ("decline", 11)):
            said = {True: lets_go_on, False: "Ulm"}
            asked, _ = await self.go("city", 13, lambda question, said=said: said["in one call" in question.prompt])
            self.assertEqual(len(asked), count)
            self.assertIn("asked 10 questions in one call", asked[10].prompt)


class Notices(McpCase):
    @full_size
    def test_a_tool_that_a_pin_excludes_is_in_the_notices_and_the_model_gets_the_reason(self) -> None:
        self.mcp("add-json", "small", json.dumps(self.entry()))
        self.mcp("test", "small")
        self.tools(*({"name": name, "inputSchema": {"type": "object"}} for name in ("look", "spy")))
        _, out, err = self.command("run", "Go.", "--script", self.script("Done."))
        self.assertIn("withheld until somebody approves: look, spy", out + err)
        _, out, _ = self.command("sessions", "show", "newest")
        self.assertIn("withheld until somebody approves: look, spy", out)
        _, out, _ = self.command("run", "Go.", "--script", self.script("Done."), "--json")
        self.assertIn("nobody has approved them yet: look, spy", out)


if __name__ == "__main__":
    unittest.main()
