"""Servers behind a URL, byte by byte: sessions that die, streams that break, redirects, logins, headers, eras."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import unittest
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from openagentic_sdk.errors import McpError, UnknownOutcomeError
from openagentic_sdk.parts.mcp.seat import Seat
from openagentic_sdk.parts.mcp.server_config import McpServer
from openagentic_sdk.parts.mcp.tools import RemoteTool
from openagentic_sdk.tools.base import ToolContext
from tests.providers.server import Connection, Request, Server
from tests.size import full_size
from tests.waiting import until_async

MODERN, LEGACY = "2026-07-28", "2025-11-25"
Answer = Callable[[Connection, Request, Any], "bool | None"]


class Script:
    """The behaviour of a server: `at` maps a method to a function, which returns True if it did everything; else the
    protocol applies.
    """

    def __init__(self, era: str, session: str | None = None, **at: Answer) -> None:
        self.era = era
        self.session = session
        self.at = at
        self.schema: dict[str, Any] = {"type": "object"}
        self.capabilities: dict[str, Any] = {"tools": {}}
        self.calls = 0
        self.seen: list[str] = []

    def __call__(self, connection: Connection, request: Request) -> None:
        message = request.json if request.body else {}
        method = message.get("method", request.method)
        self.seen.append(method)
        special = self.at.get(method.replace("/", "_"))
        if special is not None and special(connection, request, message):
            return
        if request.method != "POST":
            connection.reply(b"", "405 Method Not Allowed")
        elif "id" not in message:
            connection.reply(b"", "202 Accepted")
        elif self.is_dead(connection, request, method):
            return
        else:
            self.answer(connection, message)

    def is_dead(self, connection: Connection, request: Request, method: str) -> bool:
        if self.session is None or method in ("initialize", "server/discover"):
            return False
        if request.headers.get("mcp-session-id") == self.session:
            return False
        error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "No valid session ID provided"}}
        connection.reply(json.dumps(error).encode(), "400 Bad Request")
        return True

    def answer(self, connection: Connection, message: Mapping[str, Any]) -> None:
        method, headers = message["method"], {}
        complete = {"resultType": "complete"} if self.era == MODERN else {}
        if method == "server/discover" and self.era == MODERN:
            result: dict[str, Any] = {"supportedVersions": [MODERN], "capabilities": self.capabilities}
        elif method == "initialize" and self.era != MODERN:
            result = {"protocolVersion": self.era, "capabilities": self.capabilities}
            headers = {} if self.session is None else {"Mcp_Session_Id": self.session}
        elif method == "tools/list":
            result = {"tools": [{"name": "brew", "inputSchema": self.schema}]}
        elif method == "tools/call":
            self.calls += 1
            result = {"content": [{"type": "text", "text": f"cup {self.calls}"}]}
        else:
            error = {"code": -32601, "message": "Server not initialized" if self.era != MODERN else "unknown"}
            body = json.dumps({"jsonrpc": "2.0", "id": None if self.era != MODERN else message["id"], "error": error})
            connection.reply(body.encode(), "400 Bad Request")
            return
        connection.reply(
            json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {**complete, **result}}).encode(), **headers
        )


def event(message: Any, event_id: str = "") -> bytes:
    """One event of a stream."""
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}data: {message if isinstance(message, str) else json.dumps(message)}\n\n".encode()


def cup(message: Mapping[str, Any], text: str = "a cup") -> dict[str, Any]:
    result = {"resultType": "complete", "content": [{"type": "text", "text": text}]}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


class HttpServers(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.seats: list[Seat] = []

    async def asyncTearDown(self) -> None:
        for seat in self.seats:
            await seat.close()

    def serve(self, script: Callable[[Connection, Request], None]) -> Server:
        server = self.enterContext(Server(script))
        return server

    async def seat(self, url: str, auth: Any = None, **settings: Any) -> Seat:
        seat = Seat("tea", McpServer(url=url, **settings), "/", ["/"], auth, None)
        self.seats.append(seat)
        seat.start()
        await seat.ready()
        return seat

    async def tool(self, server: Server, auth: Any = None, **settings: Any) -> RemoteTool:
        seat = await self.seat(server.url + "/mcp", auth, **settings)
        self.assertEqual(seat.event.state, "started", seat.event)
        [tool] = [tool for tool in seat.tools if isinstance(tool, RemoteTool)]
        return tool

    async def failure(self, server: Server, **settings: Any) -> str:
        seat = await self.seat(server.url + "/mcp", **settings)
        self.assertEqual(seat.event.state, "failed", seat.event)
        return seat.event.error_message or ""

    @full_size
    async def test_a_server_that_asks_much_at_once_gets_its_answers_a_few_at_a_time(self) -> None:
        asked, together, lock = 80, threading.Barrier(8), threading.Lock()
        open_now, most, answered = 0, 0, 0

        def ask(connection: Connection, request: Request, message: Any) -> bool:
            pings = [event({"jsonrpc": "2.0", "id": f"p{n}", "method": "ping"}) for n in range(asked)]
            connection.stream([b"".join(pings), event(cup(message))])
            return True

        def hear(connection: Connection, request: Request, message: Any) -> bool:
            nonlocal open_now, most, answered
            with lock:
                open_now += 1
                most = max(most, open_now)
            together.wait(60)
            with lock:
                open_now, answered = open_now - 1, answered + 1
            connection.reply(b"", "202 Accepted")
            return True

        tool = await self.tool(self.serve(Script(LEGACY, tools_call=ask, POST=hear)))
        self.assertEqual(await tool.run({}, ToolContext()), "a cup")
        await until_async(lambda: answered == asked, "the last answer has come")
        self.assertEqual(most, 8)

    # --- eras ----------------------------------------------------------------------------------------------------------

    async def test_the_headers_of_a_modern_request_repeat_its_body(self) -> None:
        script = Script(MODERN)
        script.schema = {
            "type": "object",
            "properties": {
                "kind": {"type": "string", "x-mcp-header": "Kind"},
                "n": {"type": "integer", "x-mcp-header": "N"},
            },
        }
        server = self.serve(script)
        tool = await self.tool(server, headers={"X-Own": "1"})
        await tool.run({"kind": "grün", "n": 3}, ToolContext())
        self.assertEqual(script.seen, ["server/discover", "tools/list", "tools/call"])
        sent = server.requests[-1]
        wanted = {
            "mcp-method": "tools/call",
            "mcp-name": "brew",
            "mcp-protocol-version": MODERN,
            "mcp-param-kind": "=?base64?Z3LDvG4=?=",
            "mcp-param-n": "3",
            "x-own": "1",
        }
        self.assertEqual({name: sent.headers.get(name) for name in wanted}, wanted)
        meta = sent.json["params"]["_meta"]
        self.assertEqual(meta["io.modelcontextprotocol/protocolVersion"], MODERN)
        self.assertNotIn("sampling", meta["io.modelcontextprotocol/clientCapabilities"])

    async def test_a_version_that_the_server_names_is_used_and_without_a_common_one_both_lists_are_shown(self) -> None:
        def refuse(supported: list[str]) -> Answer:
            def answer(connection: Connection, request: Request, message: Any) -> bool:
                data = {"supported": supported, "requested": MODERN}
                error = {"code": -32022, "message": "Unsupported protocol version", "data": data}
                body = {"jsonrpc": "2.0", "id": message["id"], "error": error}
                connection.reply(json.dumps(body).encode(), "400 Bad Request")
                return True

            return answer

        why = await self.failure(self.serve(Script(MODERN, server_discover=refuse(["2031-01-01"]))))
        self.assertIn("speaks 2031-01-01, and this client speaks 2026-07-28, 2025-11-25", why)
        script = Script(LEGACY, server_discover=refuse([LEGACY]))
        await self.tool(self.serve(script))
        self.assertEqual(script.seen[:2], ["server/discover", "initialize"])

    async def test_the_oldest_transport_is_found_and_never_followed_to_another_host(self) -> None:
        def not_allowed(connection: Connection, request: Request, message: Any) -> bool:
            connection.reply(b"", "405 Method Not Allowed")
            return True

        streams: list[Connection] = []

        def stream(endpoint: str) -> Answer:
            def get(connection: Connection, request: Request, message: Any) -> bool:
                connection.head(Content_Type="text/event-stream", Transfer_Encoding="chunked")
                connection.chunk(f"event: endpoint\ndata: {endpoint}\n\n".encode())
                streams.append(connection)
                connection.wait_for_client_to_go()
                return True

            return get

        def old(connection: Connection, request: Request) -> None:
            if request.method == "GET":
                stream("/messages?session=1")(connection, request, None)
            elif request.path.startswith("/mcp"):
                connection.reply(b"", "405 Method Not Allowed")
            else:
                connection.reply(b"", "202 Accepted")
                message = request.json
                results = {
                    "initialize": {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}},
                    "tools/list": {"tools": [{"name": "brew", "inputSchema": {}}]},
                    "tools/call": {"content": [{"type": "text", "text": "old tea"}]},
                }
                if "id" in message:
                    answer = {"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]}
                    streams[-1].chunk(event(answer))

        tool = await self.tool(self.serve(old))
        self.assertEqual(await tool.run({}, ToolContext()), "old tea")
        other = Script(
            LEGACY, server_discover=not_allowed, initialize=not_allowed, GET=stream("http://127.0.0.1:9/steal")
        )
        why = await self.failure(self.serve(other))
        self.assertIn("405", why)
        self.assertIn("initialize", other.seen)
        why = (await self.seat(self.serve(other).url + "/mcp", is_sse=True)).event.error_message
        self.assertIn("which has another scheme, host or port", why or "")
        for endpoint in ("http://[x", "//["):
            why = (
                await self.seat(self.serve(Script(LEGACY, GET=stream(endpoint))).url, is_sse=True)
            ).event.error_message
            self.assertIn("which is not a URL", why or "")

    # --- sessions --------------------------------------------------------------------------------------------------------

    async def test_a_session_that_the_server_forgot_is_started_again_and_the_call_is_made_once(self) -> None:
        for status in ("404 Not Found", "400 Bad Request"):
            script = Script(LEGACY, session="one")
            tool = await self.tool(self.serve(script))
            self.assertEqual(await tool.run({}, ToolContext()), "cup 1")
            script.session = "two"
            if status.startswith("404"):
                gone: list[int] = []

                def forget(connection: Connection, request: Request, message: Any, gone: list[int] = gone) -> bool:
                    if request.headers.get("mcp-session-id") == "two":
                        return False
                    gone.append(1)
                    connection.reply(b"gone", "404 Not Found")
                    return True

                script.at["tools_call"] = forget
            with self.subTest(status):
                self.assertEqual(await tool.run({}, ToolContext()), "cup 2")
                self.assertEqual(script.seen.count("initialize"), 2)

    async def test_a_session_is_ended_with_a_delete(self) -> None:
        script = Script(LEGACY, session="one")
        server = self.serve(script)
        await self.tool(server)
        await self.seats.pop().close()
        ended = [request.headers["mcp-session-id"] for request in server.requests if request.method == "DELETE"]
        self.assertEqual(ended, ["one"])

    # --- streams -----------------------------------------------------------------------------------------------------------

    async def test_an_answer_may_come_as_a_stream_with_other_things_before_it(self) -> None:
        def stream(connection: Connection, request: Request, message: Any) -> bool:
            note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}
            pieces = [
                b": hello\n\n",
                event(note),
                b"data: no json\r\n\r\n",
                b"event: other\ndata: {}\n\n",
                event(cup(message)),
            ]
            connection.stream(pieces)
            return True

        tool = await self.tool(self.serve(Script(MODERN, tools_call=stream)))
        self.assertEqual(await tool.run({}, ToolContext()), "a cup")

    async def test_a_server_that_asks_without_end_and_accepts_no_answer_blocks_neither_a_call_nor_the_end(
        self,
    ) -> None:
        def ask(connection: Connection, request: Request, message: Any) -> bool:
            pings = [event({"jsonrpc": "2.0", "id": number, "method": "ping"}) for number in range(1500)]
            batch = [{"jsonrpc": "2.0", "method": "notifications/x"}] * 101
            connection.stream([*pings, event([*batch, cup(message, "in a long list")]), event(cup(message))])
            return True

        def accept_nothing(connection: Connection, request: Request, message: Any) -> bool:
            connection.wait_for_client_to_go()
            return True

        script = Script(LEGACY, tools_call=ask, POST=accept_nothing)
        tool = await self.tool(self.serve(script))
        self.assertEqual(await tool.run({}, ToolContext()), "a cup")
        await asyncio.wait_for(self.seats.pop().close(), 60)
        self.assertLessEqual(script.seen.count("POST"), 8)

    @full_size
    async def test_errors_lists_and_questions_of_any_size_are_cut(self) -> None:
        def long_list(connection: Connection, request: Request, message: Any) -> bool:
            tools = [{"name": f"t{number}", "inputSchema": {}, "_meta": "x" * 1_000_000} for number in range(18)]
            connection.reply(json.dumps({"id": message["id"], "result": {"tools": tools}}).encode())
            return True

        def long_error(connection: Connection, request: Request, message: Any) -> bool:
            error = {"code": -1, "message": "y" * 2_000_000}
            connection.reply(json.dumps({"id": message["id"], "error": error}).encode())
            return True

        def questions(connection: Connection, request: Request, message: Any) -> bool:
            asked = {str(number): {"method": "elicitation/create"} for number in range(31)}
            result = {"resultType": "input_required", "inputRequests": asked}
            connection.reply(json.dumps({"id": message["id"], "result": result}).encode())
            return True

        seat = await self.seat(self.serve(Script(LEGACY, tools_list=long_list)).url + "/mcp")
        self.assertEqual({tool.name for tool in seat.tools}, {f"mcp__tea__t{number}" for number in range(16)})
        self.assertIn("more than 16,777,216 characters", seat.event.left_out[0]["reason"])
        for answer, words, error in (
            (long_error, "returned an error: y{2000} ", McpError),
            (questions, "asks 31 questions at once, and the limit is 30", UnknownOutcomeError),
        ):
            tool = await self.tool(self.serve(Script(MODERN, tools_call=answer)))
            with self.assertRaisesRegex(error, words):
                await tool.run({}, ToolContext())
        why = await self.failure(self.serve(Script(LEGACY, initialize=partial(self.other_version, "\x1b[31mred"))))
        self.assertIn("speaks [31mred, and", why)

    def other_version(self, version: str, connection: Connection, request: Request, message: Any) -> bool:
        result = {"protocolVersion": version, "capabilities": {}}
        connection.reply(json.dumps({"id": message["id"], "result": result}).encode())
        return True

    async def test_a_stream_that_breaks_is_gone_on_with_where_it_ended_as_long_as_that_leads_further(self) -> None:
        asked: list[str | None] = []

        def breaks(connection: Connection, request: Request, message: Any) -> bool:
            self.message = message
            connection.stream([b"retry: 1\n" + event("", "a")])
            return True

        def goes_on(connection: Connection, request: Request, message: Any) -> bool:
            asked.append(request.headers.get("last-event-id"))
            if asked[-1] is None:
                return False  # the stream for other messages, which this server does not offer
            if asked[-1] == "a":
                connection.stream([event({"jsonrpc": "2.0", "method": "notifications/x"}, "b")])
            else:
                connection.stream([event(cup(self.message), "c")])
            return True

        tool = await self.tool(self.serve(Script(LEGACY, tools_call=breaks, GET=goes_on)))
        self.assertEqual(await tool.run({}, ToolContext()), "a cup")
        self.assertEqual([one for one in asked if one], ["a", "b"])

        def nothing(connection: Connection, request: Request, message: Any) -> bool:
            asked.append("again")
            connection.stream([b"retry: 1\n\n"])
            return True

        tool = await self.tool(self.serve(Script(LEGACY, tools_call=breaks, GET=nothing)))
        with self.assertRaisesRegex(UnknownOutcomeError, "closed the stream before it answered"):
            await tool.run({}, ToolContext())

        def breaks_oddly(connection: Connection, request: Request, message: Any) -> bool:
            connection.stream([b"retry: 1\n" + event("", "\u00e9")])
            return True

        # The call was sent, so an id that no header can carry leaves its outcome unknown as well.
        tool = await self.tool(self.serve(Script(LEGACY, tools_call=breaks_oddly)))
        with self.assertRaisesRegex(UnknownOutcomeError, "closed the stream before it answered"):
            await tool.run({}, ToolContext())

    async def test_a_broken_answer_has_an_unknown_outcome_and_a_refused_connection_none(self) -> None:
        def cut(connection: Connection, request: Request, message: Any) -> bool:
            connection.head(Content_Type="application/json", Content_Length="100", body=b'{"jsonrpc":')
            connection.keep = False
            return True

        def silent(connection: Connection, request: Request, message: Any) -> bool:
            connection.wait_for_client_to_go()
            return True

        def other(body: Any, **headers: str) -> Answer:
            def answer(connection: Connection, request: Request, message: Any) -> bool:
                connection.reply(body if isinstance(body, bytes) else json.dumps(body).encode(), **headers)
                return True

            return answer

        bad = {
            "bytes before the end of its answer": cut,
            "sent nothing during tools/call": silent,
            "not JSON": other(b"<html>hello"),
            "answered 502: bad gateway": lambda c, r, m: c.reply(b"bad\r\ngateway", "502 Bad Gateway") or True,
            "does not match the request": other({"jsonrpc": "2.0", "id": 99, "result": {}}),
            "other than an object": lambda c, r, m: other({"jsonrpc": "2.0", "id": m["id"], "result": [1]})(c, r, m),
            "unknown type 'task'": lambda c, r, m: other({"id": m["id"], "result": {"resultType": "task"}})(c, r, m),
        }
        for reason, answer in bad.items():
            limit_s = 0.5 if answer is silent else 120.0
            tool = await self.tool(self.serve(Script(MODERN, tools_call=answer)), idle_timeout_s=limit_s)
            with self.subTest(reason), self.assertRaisesRegex(UnknownOutcomeError, reason):
                await tool.run({}, ToolContext())
        refusals = {
            "(202)": lambda c, r, m: c.reply(b"", "202 Accepted") or True,
            "no such kind": lambda c, r, m: other(
                {"id": m["id"], "error": {"code": -32602, "message": "no such kind"}}
            )(c, r, m),
        }
        for reason, answer in refusals.items():
            tool = await self.tool(self.serve(Script(MODERN, tools_call=answer)))
            with self.subTest(reason), self.assertRaises(McpError) as raised:
                await tool.run({}, ToolContext())
            self.assertIn(reason, str(raised.exception))
        with Server(Script(MODERN)) as server:
            tool = await self.tool(server)
        with self.assertRaisesRegex(McpError, "cannot be reached"):
            await tool.run({}, ToolContext())

    async def test_a_cancelled_call_closes_its_answer_and_nothing_else_is_sent(self) -> None:
        gone, began = threading.Event(), threading.Event()

        def wait(connection: Connection, request: Request, message: Any) -> bool:
            connection.head(Content_Type="text/event-stream", Transfer_Encoding="chunked")
            connection.chunk(b": wait\n\n")
            began.set()
            if connection.wait_for_client_to_go():
                gone.set()
            return True

        script = Script(MODERN, tools_call=wait)
        tool = await self.tool(self.serve(script))
        call = asyncio.create_task(tool.run({}, ToolContext()))
        await asyncio.to_thread(began.wait, 120)
        call.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await call
        self.assertTrue(await asyncio.to_thread(gone.wait, 120))
        self.assertEqual(script.seen[-1], "tools/call")

    async def test_changes_of_lists_arrive_on_a_stream_in_both_eras(self) -> None:
        async def listed_again(script: Script, seat: Any) -> bool:
            await seat.ready()
            return script.seen.count("tools/list") == 2

        for era, method in ((MODERN, "subscriptions_listen"), (LEGACY, "GET")):
            told = threading.Event()

            def tell(connection: Connection, request: Request, message: Any, told: threading.Event = told) -> bool:
                connection.head(Content_Type="text/event-stream", Transfer_Encoding="chunked")
                told.wait(120)
                connection.chunk(event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}))
                connection.wait_for_client_to_go()
                return True

            script = Script(era, **{method: tell})
            script.capabilities = {"tools": {"listChanged": True}}
            await self.tool(self.serve(script))
            seat = self.seats[-1]
            told.set()
            with self.subTest(era):
                await until_async(partial(listed_again, script, seat), "the tools are listed again")
                self.assertEqual(seat.event.state, "started")

    # --- logins and redirects --------------------------------------------------------------------------------------------

    async def test_a_token_is_asked_for_again_when_it_is_refused_and_never_shown(self) -> None:
        tokens = itertools.chain(["stale-secret", "fresh-secret"], itertools.repeat("other-secret", 3))

        def check(connection: Connection, request: Request, message: Any) -> bool:
            if request.headers.get("authorization") == "Bearer fresh-secret":
                return False
            connection.reply(b"who are you?", "401 Unauthorized", WWW_Authenticate='Bearer realm="tea"')
            return True

        script = Script(MODERN, server_discover=check)
        await self.tool(self.serve(script), token=lambda: next(tokens))
        self.assertEqual(script.seen[:2], ["server/discover", "server/discover"])
        why = await self.failure(self.serve(Script(MODERN, server_discover=check)), token=lambda: next(tokens))
        self.assertIn("401", why)
        self.assertNotIn("secret", why)
        why = await self.failure(self.serve(Script(MODERN)), token=lambda: next(tokens))
        self.assertIn("the callable for token failed with RuntimeError", why)

    async def test_the_login_receives_every_refusal_and_decides_whether_to_retry(self) -> None:
        class Login:
            def __init__(self) -> None:
                self.heard: list[tuple[int, str | None]] = []

            async def headers(self) -> Mapping[str, str]:
                return {"Authorization": f"Bearer {len(self.heard)}"}

            async def refused(self, status: int, www_authenticate: str | None) -> bool:
                self.heard.append((status, www_authenticate))
                return len(self.heard) < 3

        def check(connection: Connection, request: Request, message: Any) -> bool:
            if request.headers["authorization"] == "Bearer 2":
                return False
            connection.reply(b"", "403 Forbidden", WWW_Authenticate='Bearer error="insufficient_scope"')
            return True

        login = Login()
        await self.tool(self.serve(Script(MODERN, server_discover=check)), login)
        self.assertEqual(login.heard, [(403, 'Bearer error="insufficient_scope"')] * 2)

    async def test_a_redirect_leads_nowhere_but_within_the_origin(self) -> None:
        stolen: list[Request] = []

        def steal(connection: Connection, request: Request) -> None:
            stolen.append(request)
            connection.reply(b"{}")

        thief = self.serve(steal)

        def away(connection: Connection, request: Request, message: Any) -> bool:
            connection.reply(b"", "307 Temporary Redirect", Location=f"{thief.url}/mcp")
            return True

        def within(connection: Connection, request: Request, message: Any) -> bool:
            if request.path == "/new":
                return False
            connection.reply(b"", "308 Permanent Redirect", Location="/new")
            return True

        why = await self.failure(self.serve(Script(MODERN, server_discover=away)), token="secret")
        self.assertIn(f"redirects to {thief.url}/mcp", why)
        self.assertEqual(stolen, [])
        await self.tool(self.serve(Script(MODERN, server_discover=within)))

    async def test_headers_that_do_not_fit_any_more_are_made_from_a_new_list_once(self) -> None:
        script = Script(MODERN)

        def mismatch(connection: Connection, request: Request, message: Any) -> bool:
            if request.headers.get("mcp-param-kind") == "green":
                return False
            script.schema = {"type": "object", "properties": {"kind": {"type": "string", "x-mcp-header": "Kind"}}}
            error = {"code": -32020, "message": "Header mismatch"}
            connection.reply(json.dumps({"id": message["id"], "error": error}).encode(), "400 Bad Request")
            return True

        script.at["tools_call"] = mismatch
        tool = await self.tool(self.serve(script))
        self.assertEqual(await tool.run({"kind": "green"}, ToolContext()), "cup 1")
        self.assertEqual(script.seen[2:], ["tools/call", "tools/list", "tools/call"])


if __name__ == "__main__":
    unittest.main()
