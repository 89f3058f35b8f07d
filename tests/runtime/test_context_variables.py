"""The caller's context variables reach every callback of a run, in any thread or task; changes made there do not leak."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import unittest
from collections.abc import AsyncIterator, Iterable, Mapping
from contextvars import ContextVar
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from openagentic_sdk import (
    AgentClient,
    AgentDefinition,
    HookEngine,
    HookMatcher,
    McpServer,
    MemorySessionStore,
    PermissionGate,
    query,
    query_forked,
    run_sync,
    submit,
    tool,
    what_if,
)
from openagentic_sdk.events import Event, UserQuestion
from openagentic_sdk.parts.record.telemetry.exporter import close_all
from openagentic_sdk.permissions.interactive import InteractiveApprover
from openagentic_sdk.providers.openai_compatible import OpenAICompatibleProvider
from openagentic_sdk.testing import ScriptedProvider
from openagentic_sdk.tools.base import BlockingTool, ToolContext
from openagentic_sdk.tools.schema import object_schema
from openagentic_sdk.tools.session.ask_user_question import AskUserQuestionTool
from openagentic_sdk.tools.web_fetch import WebFetchTool
from tests.size import full_size

from .support import options_for

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")
FEATURE_SERVER = str(Path(__file__).parents[1] / "mcp" / "feature_server.py")


class Seen:
    """The tenants that each kind of callback saw."""

    def __init__(self) -> None:
        self.tenants: dict[str, set[str]] = {}

    def note(self, kind: str) -> None:
        self.tenants.setdefault(kind, set()).add(TENANT.get())

    def noting(self, kind: str, answer: Any = None) -> Any:
        def plain(*_: Any, **__: Any) -> Any:
            self.note(kind)
            return answer

        return plain

    def noting_async(self, kind: str, answer: Any = None) -> Any:
        async def awaited(*_: Any, **__: Any) -> Any:
            self.note(kind)
            return answer

        return awaited


def tools_of(seen: Seen) -> list[Any]:
    @tool(effect="read")
    def plain() -> str:
        """A sync tool."""
        seen.note("def tool")
        return "ok"

    @tool(effect="read")
    async def awaited(ctx: ToolContext) -> str:
        """An async tool."""
        seen.note("async tool")
        return str(InLoop().run_sync({}, ctx))

    class Blocking(BlockingTool):
        name, description, input_schema, effect = "Blocking", "A blocking tool.", object_schema({}), "read"

        def execute(self, input: Mapping[str, Any], ctx: ToolContext) -> str:
            seen.note("blocking tool")
            return "ok"

    class InLoop(Blocking):
        name = "InLoop"

        def run_sync(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
            return super(BlockingTool, self).run_sync(input, ctx)  # runs in another thread, because a loop is running

        def execute(self, input: Mapping[str, Any], ctx: ToolContext) -> str:
            seen.note("run_sync within a loop")
            return "ok"

    fetch = WebFetchTool(
        resolver=seen.noting("resolver", ["93.184.216.34"]),
        transport=seen.noting("transport of WebFetch", (200, {"content-type": "text/plain"}, b"tea")),
    )
    return [plain, awaited, Blocking(), fetch]


def calls(*named: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments} for name, arguments in named]}


class NotingStore(MemorySessionStore):
    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def create_session(self, **settings: Any) -> str:
        self._seen.note("store")
        return super().create_session(**settings)


class Collector(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Suppress the request log."""


def collector(test: unittest.TestCase) -> str:
    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    test.addCleanup(server.server_close)
    test.addCleanup(thread.join)
    test.addCleanup(server.shutdown)
    return f"http://127.0.0.1:{server.server_port}"


async def in_context(tenant: str, work: Any) -> Any:
    """Await `work` in a task whose context has this tenant, and return its value."""

    async def served() -> Any:
        TENANT.set(tenant)
        return await work()

    return await asyncio.create_task(served())


async def listed(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


class ContextVariablesTest(unittest.IsolatedAsyncioTestCase):
    maxDiff = None

    @full_size
    async def test_the_callers_variables_reach_every_kind_of_callback_whoever_takes_the_events(self) -> None:
        seen = Seen()
        url = collector(self)
        os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "true"
        self.addCleanup(os.environ.pop, "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT")

        def redact(text: str) -> str:
            seen.note("redactor on the telemetry's thread" if "otlp" in threading.current_thread().name else "redactor")
            return text

        async def prompts() -> AsyncIterator[str]:
            seen.note("source of prompts")
            yield "Go."

        def answer(question: UserQuestion) -> str:
            seen.note("answerer")
            return question.choices[0] if question.choices else "yes"

        hooks = {
            point: [
                HookMatcher(f"plain {point}", "*", seen.noting(f"def hook {point}")),
                HookMatcher(f"async {point}", "*", seen.noting_async(f"async hook {point}")),
            ]
            for point in (
                "pre_tool_use",
                "post_tool_use",
                "user_prompt_submit",
                "before_model_call",
                "session_start",
                "stop",
            )
        }
        turns = [
            calls(("plain", {}), ("awaited", {}), ("Blocking", {}), ("WebFetch", {"url": "http://tea.example/"})),
            calls(("AskUserQuestion", {"question": "Tea?", "choices": ["yes", "no"]})),
            calls(("Task", {"agent": "a", "prompt": "Help."})),
            {**calls(("plain_of_agent", {})), "agent": "the helper"},
            {"text": "Helped.", "agent": "the helper"},
            "Done.",
        ]

        @tool(effect="read")
        def plain_of_agent() -> str:
            """A tool of the subagent."""
            seen.note("tool of a subagent")
            return "ok"

        options = options_for(
            ScriptedProvider(turns),
            tools=[*tools_of(seen), plain_of_agent, AskUserQuestionTool()],
            hooks=HookEngine(**hooks),
            agents={"a": AgentDefinition("d", "You are the helper.", tools=("plain_of_agent",))},
            permission_gate=PermissionGate(
                permission_mode="default",
                approver=seen.noting("approver", True),
                user_answerer=answer,
            ),
            redact=redact,
            api_key=None,
            session_store=NotingStore(seen),
            otlp_endpoint=url,
        )

        async def begin() -> AsyncIterator[Event]:
            return query(prompt=prompts(), options=options)

        events = await in_context("ada", begin)
        await in_context("bob", lambda: listed(events))  # another task consumes the events
        await asyncio.to_thread(close_all)
        await self.go_on_in_forks(seen)
        await self.ask_models(seen)
        await self.go_on_behind_a_question(seen)
        await self.ask_through_mcp(seen)
        await in_context("ada", lambda: asyncio.to_thread(self.run_plainly, seen))
        expected = {
            *("def tool", "async tool", "blocking tool", "run_sync within a loop", "resolver", "transport of WebFetch"),
            *("tool of a subagent", "redactor", "redactor on the telemetry's thread", "source of prompts", "answerer"),
            *("approver", "store", "transport", "stream transport", "api key", "tool of a background run"),
            *(
                "tool behind an answer",
                "answerer for an MCP server",
                "own tool as MCP",
                "run_sync of plain code",
                "terminal",
            ),
            "tool of a fork",
            *(f"{kind} hook {point}" for point in hooks for kind in ("def", "async")),
        }
        self.assertEqual(seen.tenants, {kind: {"ada"} for kind in expected})

    async def go_on_in_forks(self, seen: Seen) -> None:
        @tool(effect="read")
        def plain() -> str:
            """A tool of a fork."""
            seen.note("tool of a fork")
            return "ok"

        store = MemorySessionStore()
        session_id = (await listed(query(prompt="Tea?", options=options_for(["Tea."], session_store=store))))[
            -1
        ].session_id  # type: ignore[attr-defined]

        async def begin() -> list[AsyncIterator[Event]]:
            turns = [calls(("plain", {})), "Done."]
            options = [options_for(turns, tools=[plain], session_store=store) for _ in range(2)]
            return [
                query_forked(source_id=session_id, prompt="Go.", options=options[0]),
                what_if(source_id=session_id, at_seq=1, prompt="Go.", options=options[1], on_new="live"),
            ]

        for events in await in_context("ada", begin):
            (result,) = [event for event in await listed(events) if event.type == "tool.result"]
            self.assertEqual(result.output, "ok")  # type: ignore[attr-defined]

    async def ask_models(self, seen: Seen) -> None:
        def chunks(*_: Any) -> Iterable[bytes]:
            seen.note("stream transport")
            yield b'data: {"choices": [{"delta": {"content": "Tea."}, "finish_reason": "stop"}]}\n\n'
            seen.note("stream transport")
            yield b"data: [DONE]\n\n"

        whole = {"choices": [{"message": {"role": "assistant", "content": "Tea."}, "finish_reason": "stop"}]}
        provider = OpenAICompatibleProvider(
            base_url="http://127.0.0.1:1/v1", transport=seen.noting("transport", whole), stream_transport=chunks
        )
        for stream in (True, False):
            options = options_for([], provider=provider, stream=stream, api_key=seen.noting("api key", "k"))
            events = await in_context("ada", lambda options=options: listed(query(prompt="Tea?", options=options)))
            self.assertEqual(events[-1].final_text, "Tea.")  # type: ignore[attr-defined]

    async def go_on_behind_a_question(self, seen: Seen) -> None:
        @tool(effect="read")
        def first() -> str:
            """A tool of a background run."""
            seen.note("tool of a background run")
            return "ok"

        @tool
        def asked() -> str:
            """A tool that needs a person's approval."""
            seen.note("tool behind an answer")
            return "ok"

        gate = PermissionGate(permission_mode="prompt")
        turns = [calls(("first", {})), calls(("asked", {})), "Done."]
        options = options_for(turns, tools=[first, asked], permission_gate=gate, allowed_tools=["first"])

        async def begin() -> Any:
            return submit("Go.", options)

        run = await in_context("ada", begin)
        question = (await run.wait()).question

        async def allow() -> None:
            await run.answer(question.question_id, "yes")

        await in_context("bob", allow)
        self.assertEqual((await run.wait()).data, "Done.")

    async def ask_through_mcp(self, seen: Seen) -> None:
        @tool(effect="read")
        def own() -> str:
            """A tool of a server in this process."""
            seen.note("own tool as MCP")
            return "ok"

        async def answer(question: UserQuestion) -> str:
            seen.note("answerer for an MCP server")
            return "green" if "name" in question.prompt else ""

        servers = {
            "x": McpServer(command=sys.executable, args=["-I", "-S", FEATURE_SERVER, "legacy"]),
            "mine": McpServer(tools=[own]),
        }
        gate = PermissionGate(permission_mode="bypass", user_answerer=answer)
        turns = [calls(("mcp__x__ask", {}), ("mcp__mine__own", {})), "Done."]
        async with AgentClient(
            options_for(turns, mcp_servers=servers, permission_gate=gate)
        ) as client:  # without a tenant
            await client.send("Go.")

            async def begin() -> AsyncIterator[Event]:
                return client.receive()

            begun = await in_context("ada", begin)
            events = await in_context("bob", lambda: listed(begun))
        (output, _) = [event.output for event in events if event.type == "tool.result"]  # type: ignore[attr-defined]
        self.assertEqual(json.loads(output)[0]["action"], "accept")

    def run_plainly(self, seen: Seen) -> None:
        @tool
        def plain() -> str:
            """A sync tool."""
            seen.note("run_sync of plain code")
            return "ok"

        gate = PermissionGate(interactive_approver=InteractiveApprover(seen.noting("terminal", "yes")))
        options = options_for([calls(("plain", {})), "Done."], tools=[plain], permission_gate=gate)
        run_sync(prompt="Go.", options=options)

    async def test_variables_set_in_a_call_are_visible_to_no_other_call_and_not_to_the_caller(self) -> None:
        seen: list[str] = []
        both = threading.Barrier(2, timeout=300)

        def made(effect: Any, waits: bool) -> list[Any]:
            @tool(effect=effect, name=f"plain_{effect}")
            def plain(mine: str) -> str:
                """Set the tenant."""
                before = TENANT.get()
                TENANT.set(mine)
                if waits:
                    both.wait()
                seen.append(f"{before} {TENANT.get()}")
                return "ok"

            @tool(effect=effect, name=f"awaited_{effect}")
            async def awaited(mine: str) -> str:
                """Set the tenant."""
                before = TENANT.get()
                TENANT.set(mine)
                if waits:
                    await asyncio.to_thread(both.wait)
                seen.append(f"{before} {TENANT.get()}")
                return "ok"

            return [plain, awaited]

        beside = calls(("plain_read", {"mine": "p"}), ("awaited_read", {"mine": "a"}))
        after = calls(("plain_unsafe", {"mine": "p"}), ("awaited_unsafe", {"mine": "a"}))
        TENANT.set("ada")
        hook = HookMatcher("sets", "*", lambda payload: TENANT.set("hook") and None)
        options = options_for(
            [beside, after, "Done."],
            tools=[*made("read", True), *made("unsafe", False)],
            hooks=HookEngine(pre_tool_use=[hook]),
        )
        await listed(query(prompt="Go.", options=options))
        self.assertEqual(sorted(seen), ["ada a", "ada a", "ada p", "ada p"])
        self.assertEqual(TENANT.get(), "ada")
