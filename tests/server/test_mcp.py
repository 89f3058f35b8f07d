"""The agent as an MCP server: both eras, over HTTP and stdio, and what a caller may not do."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import unittest
from pathlib import Path
from typing import Any, ClassVar

from openagentic_sdk import tool
from openagentic_sdk.agents import Agents, NamedAgent
from openagentic_sdk.errors import RpcError
from openagentic_sdk.events import UserAnswer
from openagentic_sdk.parts.mcp.protocol import LEGACY, MODERN
from openagentic_sdk.server.asgi import Application, app
from openagentic_sdk.server.desk import Desk
from openagentic_sdk.server.guard import Principal
from openagentic_sdk.server.mcp import Face, McpCaller
from openagentic_sdk.server.mcp_stdio import serve
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.tools.base import Questions, Tool, ToolContext
from openagentic_sdk.tools.write import WriteTool
from tests.pythons import run_python
from tests.server.support import ASK, TOKEN, Answer, Gate, agents, ask, bearer, by_tenant, endless, options

META = {"io.modelcontextprotocol/protocolVersion": MODERN[0], "io.modelcontextprotocol/clientCapabilities": {}}
FORMS = {**META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
WRITE = {"tool_calls": [{"name": "Write", "arguments": {"file_path": "x", "content": "y"}}]}
ROOT = Path(__file__).resolve().parents[2]


class FaceCase(unittest.IsolatedAsyncioTestCase):
    """The server's MCP face with sessions of its own; `wait_s` is long enough for every run that ends."""

    async def asyncSetUp(self) -> None:
        self.gate = Gate()
        self.held = options([{"tool_calls": [{"name": "hold", "arguments": {}}]}, "Held."], self.gate.tool())
        registry = agents(tea=["Tea."], asks=options([ASK, "Thanks."]), held=self.held)
        self.desk = Desk(registry, MemorySessionStore())
        self.desk.open()
        self.face = Face(self.desk, wait_s=120)
        self.said: list[tuple[str, Any]] = []

    async def asyncTearDown(self) -> None:
        self.gate.open.set()
        await self.desk.drain(1)

    async def say(self, method: str, params: Any) -> None:
        self.said.append((method, params))

    async def call(
        self, tool: str, *, meta: Any = META, client: McpCaller | None = None, **arguments: Any
    ) -> dict[str, Any]:
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        return await self.face.answer("tools/call", params, client or McpCaller(Principal(), self.say))

    async def refused(self, method: str, params: dict[str, Any]) -> int:
        with self.assertRaises(RpcError) as caught:
            await self.face.answer(method, params, McpCaller(Principal()))
        return caught.exception.code

    def text(self, result: dict[str, Any]) -> str:
        return str(result["content"][0]["text"])


class ProtocolTest(FaceCase):
    async def test_both_eras_find_their_way_in(self) -> None:
        found = await self.face.answer("server/discover", {"_meta": META}, McpCaller(Principal()))
        self.assertEqual((found["resultType"], found["supportedVersions"]), ("complete", [*MODERN, *LEGACY]))
        self.assertEqual(found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "openagentic-sdk")
        for asked, given in ((LEGACY[1], LEGACY[1]), ("1999-01-01", LEGACY[0]), (None, LEGACY[0])):
            begun = await self.face.answer("initialize", {"protocolVersion": asked}, McpCaller(Principal()))
            self.assertEqual((begun["protocolVersion"], "resultType" in begun), (given, False))
        self.assertEqual(await self.face.answer("ping", {}, McpCaller(Principal())), {})

    async def test_the_tools_are_the_same_in_both(self) -> None:
        legacy = await self.face.answer("tools/list", {}, McpCaller(Principal()))
        modern = await self.face.answer("tools/list", {"_meta": META}, McpCaller(Principal()))
        self.assertEqual(legacy["tools"], modern["tools"])
        self.assertEqual((modern["cacheScope"], modern["ttlMs"] > 0), ("private", True))
        names = [tool["name"] for tool in legacy["tools"]]
        self.assertEqual(names, ["run_agent", "list_sessions", "show_session", "cancel_run", "answer_question"])

    async def test_incomplete_requests_and_requests_for_missing_things_are_errors(self) -> None:
        version, capabilities = META
        for method, params, code in (
            ("tools/list", {"_meta": {version: MODERN[0]}}, -32602),
            ("tools/list", {"_meta": {capabilities: {}}}, -32602),
            ("tools/list", {"_meta": {**META, version: 5}}, -32602),
            ("tools/list", {"_meta": {**META, version: "2999-01-01"}}, -32022),
            ("initialize", {"_meta": META}, -32601),
            ("ping", {"_meta": META}, -32601),
            ("prompts/list", {"_meta": META}, -32601),
            ("resources/list", {}, -32601),
            ("tools/call", {"name": "nothing"}, -32602),
            ("tools/call", {"name": 5}, -32602),
            ("tools/call", {"name": "list_sessions", "arguments": []}, -32602),
            ("tools/call", {"name": "run_agent", "_meta": META, "inputResponses": []}, -32602),
        ):
            with self.subTest(method, params=params):
                self.assertEqual(await self.refused(method, params), code)


class ToolsTest(FaceCase):
    async def test_a_run_returns_its_answer_and_reports_its_steps(self) -> None:
        result = await self.call("run_agent", prompt="Go.", meta={**META, "progressToken": "t"})
        self.assertTrue(self.text(result).startswith("Tea.\n"))
        self.assertEqual(result["structuredContent"]["status"], "done")
        steps = [params for method, params in self.said if method == "notifications/progress"]
        self.assertEqual([step["progress"] for step in steps], list(range(1, len(steps) + 1)))
        self.assertEqual({step["progressToken"] for step in steps}, {"t"})
        self.assertIn("says: Tea.", [step["message"] for step in steps])
        self.said.clear()
        await self.call("run_agent", prompt="Go.")
        self.assertEqual(self.said, [])

    async def test_a_run_that_takes_longer_continues_and_is_seen(self) -> None:
        started = (await self.call("run_agent", prompt="Go.", agent="held", wait_s=0))["structuredContent"]
        self.assertEqual(started["status"], "running")
        await asyncio.to_thread(self.gate.reached.wait, 120)
        shown = await self.call("show_session", session_id=started["session_id"])
        self.assertEqual(shown["structuredContent"]["state"], "running")
        self.assertIn("calls hold", self.text(shown))
        listed = await self.call("list_sessions")
        self.assertEqual(listed["structuredContent"]["sessions"][0]["session_id"], started["session_id"])
        self.gate.open.set()
        async with self.desk.follow(Principal(), started["session_id"], deltas=False) as follower:
            async with asyncio.timeout(120):
                while not any(event.type == "result" for event in await follower.batch()):
                    continue
        after = shown["structuredContent"]["after_seq"]
        shown = await self.call("show_session", session_id=started["session_id"], after_seq=after)
        self.assertIn("says: Held.", self.text(shown))
        self.assertNotIn("calls hold", self.text(shown))

    async def test_a_run_is_cancelled(self) -> None:
        reached = asyncio.Event()
        held = options([{"tool_calls": [{"name": "hold", "arguments": {}}]}, "Held."], endless(reached))
        self.desk = Desk(agents(held=held), MemorySessionStore())
        self.desk.open()
        self.face = Face(self.desk, wait_s=120)
        started = (await self.call("run_agent", prompt="Go.", wait_s=0))["structuredContent"]
        await asyncio.wait_for(reached.wait(), 120)
        cancelled = await self.call("cancel_run", session_id=started["session_id"])
        self.assertTrue(cancelled["structuredContent"]["cancelled"])
        again = await self.call("cancel_run", session_id=started["session_id"])
        self.assertFalse(again["structuredContent"]["cancelled"])

    async def test_a_cancelled_call_ends_the_run_only_if_the_agent_requests_it(self) -> None:
        for ends, can_cancel in ((True, True), (False, True), (True, False)):
            with self.subTest(ends=ends, can_cancel=can_cancel):
                self.reached, self.opened = asyncio.Event(), asyncio.Event()

                @tool(effect="read")
                async def hold() -> str:
                    """Wait."""
                    self.reached.set()
                    await self.opened.wait()
                    return "held"

                held = options([{"tool_calls": [{"name": "hold", "arguments": {}}]}, "Held."], hold)
                desk = Desk(Agents({"held": NamedAgent(held, ends_with_call=ends)}), MemorySessionStore())
                desk.open()
                self.face = Face(desk, wait_s=120)
                meta = META if can_cancel else {}  # a legacy client over HTTP has no back channel, and only disconnects
                call = asyncio.create_task(self.call("run_agent", prompt="Go.", meta=meta))
                await asyncio.wait_for(self.reached.wait(), 120)
                call.cancel()
                await asyncio.wait({call})
                [row] = await desk.rows(Principal())
                is_ended = ends and can_cancel
                if not is_ended:
                    self.opened.set()
                async with asyncio.timeout(120), desk.follow(Principal(), row.id, deltas=False) as follower:
                    ended = None
                    while ended is None:
                        ended = next((e for e in await follower.batch() if e.type == "result"), None)
                self.assertEqual(ended.stop_reason, "interrupted" if is_ended else "end")
                await desk.drain(1)

    async def test_a_run_beyond_the_limit_is_refused_with_the_seconds_to_wait(self) -> None:
        self.desk = Desk(agents(held=self.held), MemorySessionStore(), max_runs=1)
        self.desk.open()
        self.face = Face(self.desk, wait_s=120)
        await self.call("run_agent", prompt="Go.", wait_s=0)
        refused = await self.call("run_agent", prompt="Go.")
        self.assertEqual((refused["isError"], refused["structuredContent"]), (True, {"retryAfter": 2}))

    async def test_invalid_arguments_are_an_error_for_the_model(self) -> None:
        for name, arguments in (
            ("run_agent", {"prompt": "x", "cwd": "/"}),
            ("run_agent", {"prompt": "x", "allowed_tools": ["Bash"]}),
            ("run_agent", {"prompt": ""}),
            ("run_agent", {"prompt": 5}),
            ("run_agent", {"prompt": "x", "agent": "../tea"}),
            ("run_agent", {"prompt": "x", "session_id": "../../etc"}),
            ("run_agent", {"prompt": "x", "wait_s": 1e9}),
            ("run_agent", {"prompt": "x" * 500_001}),
            ("show_session", {"session_id": "nowhere"}),
            ("show_session", {"session_id": "x", "after_seq": -1}),
            ("cancel_run", {"session_id": "a/../b"}),
            ("answer_question", {"session_id": "nowhere", "question_id": "q", "answer": "a"}),
            ("list_sessions", {"limit": 10_000}),
        ):
            with self.subTest(name, arguments=str(arguments)[:80]):
                self.assertTrue((await self.call(name, **arguments))["isError"])

    async def test_a_question_of_the_work_is_answered_by_a_tool(self) -> None:
        asked = await self.call("run_agent", prompt="Go.", agent="asks")
        data = asked["structuredContent"]
        self.assertEqual((data["status"], data["question"]["prompt"]), ("waiting", "Milk or lemon?"))
        shown = (await self.call("show_session", session_id=data["session_id"]))["structuredContent"]
        self.assertEqual(shown["questions"][0]["question_id"], data["question"]["question_id"])
        known = {"session_id": data["session_id"], "question_id": data["question"]["question_id"]}
        wrong = await self.call("answer_question", **{**known, "question_id": "other"}, answer="lemon")
        self.assertTrue(wrong["isError"])
        done = await self.call("answer_question", **known, answer="lemon")
        self.assertTrue(self.text(done).startswith("Thanks."))
        self.assertTrue((await self.call("answer_question", **known, answer="lemon"))["isError"])

    async def test_a_choice_that_is_shown_cut_is_answered_as_shown(self) -> None:
        long = "lemon " * 50 + "!"
        question = {"question": "Which?", "choices": ["milk", long]}
        turns = [{"tool_calls": [{"name": "AskUserQuestion", "arguments": question}]}, "Thanks."]
        self.desk = Desk(agents(asks=options(turns)), MemorySessionStore())
        self.face = Face(self.desk, wait_s=120)
        data = (await self.call("run_agent", prompt="Go."))["structuredContent"]
        known = {"session_id": data["session_id"], "question_id": data["question"]["question_id"]}
        await self.call("answer_question", **known, answer=data["question"]["choices"][1])
        answers = [e.answer for e in self.desk.store.read_events(data["session_id"]) if isinstance(e, UserAnswer)]
        self.assertEqual(answers, [long.strip()])

    async def test_a_form_with_an_empty_field_for_own_words_answers_with_its_choice(self) -> None:
        params = {"name": "run_agent", "arguments": {"prompt": "Go.", "agent": "chooses"}, "_meta": FORMS}
        question = {"question": "Which?", "choices": ["milk", "lemon"]}
        turns = [{"tool_calls": [{"name": "AskUserQuestion", "arguments": question}]}, "Thanks."]
        self.desk = Desk(agents(chooses=options(turns)), MemorySessionStore())
        self.face = Face(self.desk, wait_s=120)
        client = McpCaller(Principal())
        ((key, _),) = (await self.face.answer("tools/call", params, client))["inputRequests"].items()
        filled = {key: {"action": "accept", "content": {"answer": "lemon", "other": ""}}}
        done = await self.face.answer("tools/call", {**params, "inputResponses": filled}, client)
        self.assertEqual(done["structuredContent"]["status"], "done")

    async def test_questions_of_other_tools_are_for_a_person(self) -> None:
        class Launch(Tool):
            name, description = "Launch", "Asks somebody."
            input_schema: ClassVar[dict[str, Any]] = {"type": "object"}

            async def run(self, input: Any, ctx: ToolContext) -> Any:
                return await ctx.services.get(Questions).ask(ctx, "Launch?", ("yes", "no"))

        turns = [{"tool_calls": [{"name": "Launch", "arguments": {}}]}, "Launched."]
        self.desk = Desk(agents(launch=options(turns, Launch())), MemorySessionStore())
        self.face = Face(self.desk, wait_s=120)
        data = (await self.call("run_agent", prompt="Go."))["structuredContent"]
        self.assertEqual((data["status"], data["question"]["kind"]), ("waiting", "person"))
        known = {"session_id": data["session_id"], "question_id": data["question"]["question_id"]}
        refused = await self.call("answer_question", **known, answer="yes")
        self.assertIn("only a person may answer this", self.text(refused))

    async def test_long_and_odd_texts_are_cut_and_cleaned(self) -> None:
        registry = agents(loud=["\x1b[31m" + "x" * 20_000])
        self.desk = Desk(registry, MemorySessionStore())
        self.face = Face(self.desk, wait_s=120)
        text = self.text(await self.call("run_agent", prompt="\x1b[2J\nGo."))
        self.assertTrue(len(text) < 17_000 and "\x1b" not in text)


class PermissionTest(FaceCase):
    """A model that calls tools never decides about permissions."""

    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        writer = options([WRITE, "Written."], WriteTool(), mode="default", cwd=self.folder.name)
        self.desk = Desk(agents(writer=writer), MemorySessionStore())
        self.face = Face(self.desk, wait_s=120)

    def is_written(self) -> bool:
        return (Path(self.folder.name) / "x").exists()

    async def test_without_a_person_it_waits_for_one(self) -> None:
        asked = await self.call("run_agent", prompt="Go.")
        data = asked["structuredContent"]
        self.assertEqual((data["status"], data["question"]["kind"]), ("waiting", "permission"))
        self.assertIn(f"openagentic-sdk chat --resume {data['session_id']}", self.text(asked))
        answer = {"session_id": data["session_id"], "question_id": data["question"]["question_id"], "answer": "yes"}
        refused = await self.call("answer_question", **answer)
        self.assertIn("only a person may answer this", self.text(refused))
        self.assertFalse(self.is_written())

    async def test_a_modern_client_asks_its_person_and_calls_again(self) -> None:
        params: dict[str, Any] = {"name": "run_agent", "arguments": {"prompt": "Go."}, "_meta": FORMS}
        client = McpCaller(Principal())
        needed = await self.face.answer("tools/call", params, client)
        self.assertEqual((needed["resultType"], "requestState" in needed), ("input_required", False))
        ((key, request),) = needed["inputRequests"].items()
        self.assertEqual(request["method"], "elicitation/create")
        self.assertIn("Write", request["params"]["message"])
        self.assertNotIn("always save", str(request))

        async def answered(**inputs: Any) -> dict[str, Any]:
            return await self.face.answer("tools/call", {**params, "inputResponses": inputs}, client)

        accept = {"action": "accept", "content": {"answer": "yes"}}
        for wrong in ({"other": accept}, {key: accept, "second": accept}):
            with self.assertRaises(RpcError):
                await answered(**wrong)
        for wrong in ({key + "x": accept}, {"nowhere/x": accept}):
            self.assertTrue((await answered(**wrong))["isError"])
        for no in ({"action": "decline"}, {"action": "accept", "content": {"answer": "always save"}}, "yes", None):
            declined = await answered(**{key: no})
            self.assertEqual(declined["structuredContent"]["status"], "waiting")
        self.assertFalse(self.is_written())
        done = await answered(**{key: accept})
        self.assertEqual(done["structuredContent"]["status"], "done")
        self.assertTrue(self.is_written())
        self.assertTrue((await answered(**{key: accept}))["isError"])

    async def test_a_legacy_client_is_asked_in_the_call(self) -> None:
        asked: list[Any] = []

        async def person(method: str, params: Any) -> Any:
            asked.append((method, params["requestedSchema"]["properties"]["answer"]["enum"][:2]))
            return {"action": "accept", "content": {"answer": "yes"}}

        for capabilities, written in (({}, False), ({"elicitation": {"url": {}}}, False), ({"elicitation": {}}, True)):
            client = McpCaller(Principal(), self.say, person, capabilities)
            result = await self.call("run_agent", prompt="Go.", meta={}, client=client)
            self.assertEqual((self.is_written(), result["structuredContent"]["status"] == "done"), (written, written))
            await self.asyncSetUp()
        self.assertEqual(asked, [("elicitation/create", ["yes", "no"])])

    async def test_somebody_who_may_not_answer_is_not_asked(self) -> None:
        client = McpCaller(Principal(may_answer=False))
        params: dict[str, Any] = {"name": "run_agent", "arguments": {"prompt": "Go."}, "_meta": FORMS}
        result = await self.face.answer("tools/call", params, client)
        self.assertEqual((result["resultType"], result["structuredContent"]["status"]), ("complete", "waiting"))


class HttpTest(unittest.IsolatedAsyncioTestCase):
    """The same at POST /mcp of a server, between its guards."""

    def setUp(self) -> None:
        self.application: Application = app(agents(tea=["Tea."]), store=MemorySessionStore(), auth=TOKEN)

    async def post(self, body: Any, headers: Any = None, path: str = "/mcp", method: str = "POST") -> Answer:
        accept = {"Accept": "application/json, text/event-stream"}
        return await ask(self.application, method, path, body, headers={**accept, **(headers or {})})

    async def modern(self, method: str, params: dict[str, Any], **headers: str | None) -> Answer:
        named = {"MCP-Protocol-Version": MODERN[0], "Mcp-Method": method}
        named |= {"Mcp-Name": params["name"]} if "name" in params else {}
        given = {**named, **{name.replace("_", "-"): value for name, value in headers.items()}}
        message = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {"_meta": META, **params}}
        return await self.post(message, {name: value for name, value in given.items() if value is not None})

    async def test_modern_requests_need_no_session(self) -> None:
        found = await self.modern("server/discover", {})
        self.assertEqual((found.status, found.json["id"]), (200, 7))
        ran = await self.modern("tools/call", {"name": "run_agent", "arguments": {"prompt": "Go."}})
        self.assertEqual((ran.headers["content-type"], ran.headers["x-accel-buffering"]), ("text/event-stream", "no"))
        last = json.loads(ran.body.decode().strip().split("\n")[-1].removeprefix("data: "))
        self.assertEqual((last["id"], last["result"]["structuredContent"]["status"]), (7, "done"))

    async def test_headers_must_match_the_body(self) -> None:
        call = {"name": "list_sessions", "arguments": {}}
        encoded = "=?base64?bGlzdF9zZXNzaW9ucw==?="
        self.assertEqual((await self.modern("tools/call", call, Mcp_Name=encoded)).status, 200)
        for headers in (
            {"MCP_Protocol_Version": None},
            {"MCP_Protocol_Version": LEGACY[0]},
            {"Mcp_Method": None},
            {"Mcp_Method": "tools/list"},
            {"Mcp_Name": None},
            {"Mcp_Name": "run_agent"},
            {"Mcp_Name": "=?base64?!?="},
        ):
            with self.subTest(headers):
                refused = await self.modern("tools/call", call, **headers)
                self.assertEqual((refused.status, refused.json["error"]["code"], refused.json["id"]), (400, -32020, 7))

    async def test_status_and_code_of_what_is_refused(self) -> None:
        old = {"MCP-Protocol-Version": LEGACY[0]}

        def message(**more: Any) -> dict[str, Any]:
            return {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}, **more}

        unknown = {**META, "io.modelcontextprotocol/protocolVersion": "2999-01-01"}
        for body, headers, status, code in (
            (message(), {"MCP-Protocol-Version": MODERN[0], "Mcp-Method": "tools/list"}, 400, -32602),
            (message(method="ping"), old, 200, None),
            (message(method="nothing"), old, 200, -32601),
            (message(id=None), old, 400, -32600),
            (message(id=True), old, 400, -32600),
            (message(params=[]), old, 400, -32600),
            ([message()], old, 400, -32600),
            (5, old, 400, -32600),
            (message(), {**old, "Accept": "application/json"}, 406, -32600),
            ({"jsonrpc": "2.0", "method": "notifications/initialized"}, old, 202, None),
            ({"jsonrpc": "2.0", "id": 1, "result": {}}, old, 202, None),
        ):
            with self.subTest(str(body)[:70], headers=headers):
                answer = await self.post(body, headers)
                self.assertEqual(answer.status, status)
                error = answer.json.get("error", {}) if answer.body else {}
                self.assertEqual(error.get("code"), code)
        version = {"MCP-Protocol-Version": "2999-01-01", "Mcp-Method": "tools/list"}
        refused = await self.post(message(params={"_meta": unknown}), version)
        self.assertEqual((refused.status, refused.json["error"]["code"]), (400, -32022))
        self.assertIn(MODERN[0], refused.json["error"]["data"]["supported"])
        gone = await self.modern("ping", {})
        self.assertEqual((gone.status, gone.json["error"]["code"]), (404, -32601))

    async def test_nobody_gets_in_from_elsewhere(self) -> None:
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
        self.assertEqual((await self.post(body)).status, 200)
        for headers, status in (
            ({"Host": "evil.example"}, (400, 403, 421)),
            ({"Origin": "http://evil.example"}, (403,)),
            ({"Authorization": "Bearer wrong"}, (401,)),
            ({"Content-Type": "text/plain"}, (415,)),
        ):
            with self.subTest(headers):
                self.assertIn((await self.post(body, headers)).status, status)
        for method in ("GET", "DELETE"):
            self.assertEqual((await self.post(None, method=method)).status, 405)

    async def test_a_tenant_sees_its_own_sessions_only(self) -> None:
        self.application = app(agents(tea=["Tea."]), store=MemorySessionStore(), auth=by_tenant)
        mine = await self.modern(
            "tools/call", {"name": "run_agent", "arguments": {"prompt": "Go."}}, **bearer("token-of-anna-at-north")
        )
        session_id = json.loads(mine.body.decode().strip().split("\n")[-1][6:])["result"]["structuredContent"][
            "session_id"
        ]
        for token, found in (("token-of-bert-at-north", True), ("token-of-carl-at-south", False)):
            shown = await self.modern(
                "tools/call", {"name": "show_session", "arguments": {"session_id": session_id}}, **bearer(token)
            )
            self.assertEqual('"isError":false' in shown.body.decode(), found)


class LeavingTest(FaceCase):
    """The client closes its end."""

    async def test_a_run_in_progress_is_parked_and_its_call_still_answered(self) -> None:
        reached = asyncio.Event()

        class Wait(Tool):
            name, description, effect = "Wait", "Waits.", "read"
            input_schema: ClassVar[dict[str, Any]] = {"type": "object"}

            async def run(self, input: Any, ctx: ToolContext) -> Any:
                reached.set()
                await asyncio.Event().wait()

        turns = [{"tool_calls": [{"name": "Wait", "arguments": {}}]}, "Never."]
        self.desk = Desk(agents(waits=options(turns, Wait())), MemorySessionStore())
        ours, theirs = os.pipe(), os.pipe()
        serving = asyncio.create_task(serve(self.desk, stdin=ours[0], stdout=theirs[1], wait_s=120, grace_s=0.05))
        call = {"name": "run_agent", "arguments": {"prompt": "Go."}, "_meta": META}
        os.write(
            ours[1], json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode() + b"\n"
        )
        await asyncio.wait_for(reached.wait(), 120)
        os.close(ours[1])
        await asyncio.wait_for(serving, 120)
        os.close(theirs[1])
        with open(theirs[0], "rb") as file:
            said = json.loads(file.read())["result"]["structuredContent"]
        os.close(ours[0])
        self.assertEqual(said["status"] in ("running", "done"), True, said)
        last = self.desk.store.read_events(said["session_id"])[-1]
        self.assertEqual((last.type, last.stop_reason), ("result", "suspended"))


class StdioTest(unittest.TestCase):
    """The command itself: stdout contains only the protocol, and the command ends when the client closes its end."""

    def test_noise_hostile_lines_and_the_end_of_input(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "registry.py").write_text(
                "import os, sys\n"
                "from openagentic_sdk.agents import Agents, NamedAgent\n"
                "from openagentic_sdk.options import OpenAgenticOptions\n"
                "from openagentic_sdk.testing.scripted import ScriptedProvider\n"
                "def make():\n"
                "    print('noise'); os.write(1, b'noise'); os.system('echo noise'); sys.stdout.write('noise')\n"
                "    return OpenAgenticOptions(provider=ScriptedProvider(['Tea.']), model='m')\n"
                "agents = Agents({'tea': NamedAgent(make)})\n"
            )
            call = {"name": "run_agent", "arguments": {"prompt": "Go."}, "_meta": META}
            lines = [
                b"no json",
                b"[]",
                json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode(),
                json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}).encode(),
                b"x" * 5_000_000,
                json.dumps({"jsonrpc": "2.0", "id": 3, "method": "initialize", "params": {}}).encode(),
                json.dumps({"jsonrpc": "2.0", "id": 4, "method": "tools/list", "params": {}}).encode(),
            ]
            environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "OPENAGENTIC_SDK_HOME": folder}
            command = ("-m", "openagentic_sdk", "mcp", "serve", "--agents", "registry:agents")
            done = run_python(*command, input=b"\n".join(lines) + b"\n", env=environ)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        by_id = {answer["id"]: answer for answer in answers if answer.get("id") is not None}
        self.assertEqual(by_id[1]["error"]["code"], -32602)
        called = by_id[2]["result"]
        if called["isError"]:  # the input ended before the call had begun
            self.assertIn("shutting down", called["content"][0]["text"])
        else:
            self.assertIn(called["structuredContent"]["status"], ("done", "running"))
        self.assertEqual(len(by_id[4]["result"]["tools"]), 5)
        self.assertEqual(
            [answer["error"]["code"] for answer in answers if answer.get("id") is None], [-32700, -32600, -32600]
        )
        self.assertIn(b"noise", done.stderr)


if __name__ == "__main__":
    unittest.main()
