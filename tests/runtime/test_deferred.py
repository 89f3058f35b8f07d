"""Hundreds of tools: the model receives only the definitions that it has found by searching."""

from __future__ import annotations

import asyncio
import json
import random
import unittest
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from openagentic_sdk import McpServer
from openagentic_sdk.api import run
from openagentic_sdk.events import ModelContext, ToolResult, ToolsLoaded, UserMessage
from openagentic_sdk.parts.record.folds.audit import find_mismatches
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.providers.anthropic import AnthropicProvider
from openagentic_sdk.providers.openai_responses import OpenAIResponsesProvider
from openagentic_sdk.runs.replay import replay_events
from openagentic_sdk.testing.endpoint import Answer, CachingEndpoint
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.tools.base import Tool, ToolContext
from openagentic_sdk.tools.session.tool_search import MAX_FOUND, rank_tools
from tests.size import LARGE, full_size

from .support import options_for

VERBS = ("create", "list", "delete", "update", "find", "archive", "rename", "export")
THINGS = ("invoice", "pull request", "calendar event", "customer", "deployment", "ticket", "mail", "report")


class Thing(Tool):
    """A tool like those of MCP servers: a name, two sentences and a few parameters."""

    effect = "read"

    def __init__(self, number: int) -> None:
        verb, thing = VERBS[number % 8], THINGS[number // 8 % 8]
        self.name = f"{verb}_{thing.replace(' ', '_')}_{number}"
        self.description = (
            f"{verb.title()} one {thing} of the workspace. Takes what the {thing} is about, and answers with it."
        )
        self.input_schema: Mapping[str, Any] = {
            "type": "object",
            "properties": {"title": {"type": "string", "description": f"The title of the {thing}."}},
        }

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> str:
        return f"{self.name} did it"


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


def defined_tools(provider: ScriptedProvider) -> list[list[str]]:
    """The names of the tools defined in each request."""
    return [[tool["function"]["name"] for tool in request["tools"]] for request in provider.requests]


class DeferredTest(unittest.IsolatedAsyncioTestCase):
    def options(self, *turns: Any, count: int = 500, served: bool = False, **changes: Any) -> Any:
        things = [Thing(number) for number in range(count)]
        tools = {"tools": [], "mcp_servers": {"desk": McpServer(tools=things)}} if served else {"tools": things}
        return options_for(ScriptedProvider(turns), **{**tools, **changes})

    @full_size
    async def test_no_request_has_more_than_128_tools_however_small_they_are_and_however_many_were_found(self) -> None:
        for count, is_deferred in ((100, False), (200, True)):
            options = self.options("done", count=count)
            for tool in options.tools:
                tool.description, tool.input_schema = "Small.", {"type": "object", "properties": {}}
            await run(prompt="Go.", options=options)
            self.assertEqual("ToolSearch" in defined_tools(options.provider)[0], is_deferred)
            self.assertLessEqual(len(defined_tools(options.provider)[0]), 128)
        names = [Thing(number).name for number in range(200)]
        turns = [
            {"tool_calls": [{"name": name, "arguments": {}} for name in names[at : at + 40]]}
            for at in range(0, 200, 40)
        ]
        options = self.options(*turns, "done", count=200)
        await run(prompt="Go.", options=options)
        requests = defined_tools(options.provider)
        self.assertEqual(max(map(len, requests)), 128)
        self.assertIn(names[-1], requests[-1])
        self.assertNotIn(names[0], requests[-1])

    async def test_a_request_with_five_hundred_tools_is_hardly_larger_than_one_with_twenty(self) -> None:
        for served in (False, True):
            sizes = []
            for count in (20, 500):
                options = self.options("done", count=count, served=served)
                await run(prompt="Go.", options=options)
                sizes.append(len(json.dumps(options.provider.requests[0], default=str)))
            self.assertLess(sizes[1], 1.3 * sizes[0], f"served: {served}")

    async def test_found_tools_follow_the_others_and_can_be_called(self) -> None:
        name = Thing(11).name
        for served in (False, True):
            shown = f"mcp__desk__{name}" if served else name
            turns = (call("ToolSearch", query="update a pull request"), call(shown, title="x"), "Done.")
            options = self.options(*turns, count=100, served=served, max_context_tokens=40_000)
            result = await run(prompt="Go.", options=options)
            first, second, third = defined_tools(options.provider)
            self.assertEqual(first, ["ToolSearch"])
            self.assertEqual((second[0], shown in second, third), ("ToolSearch", True, second))
            (loaded,) = [event for event in result.events if isinstance(event, ToolsLoaded)]
            self.assertEqual((list(loaded.names), loaded.query), (second[1:], "update a pull request"))
            last = [event.output for event in result.events if isinstance(event, ToolResult)][-1]
            self.assertIn(f"{name} did it", str(last))
            causes = [event.cause for event in result.events if isinstance(event, ModelContext)]
            self.assertEqual(causes[0], "the session begins")
            self.assertIn(f"+{shown}", causes[1])
            self.assertEqual(find_mismatches(result.events), [])
            self.assertTrue((await replay_events(result.events)).ok)

    async def test_a_resumed_session_offers_the_same_tools(self) -> None:
        turns = (call("ToolSearch", query="archive a report"), call("ToolSearch", query="mail"), "Done.")
        options = self.options(*turns, count=300, served=True)
        first = await run(prompt="Go.", options=options)
        again = replace(options, provider=ScriptedProvider(["Done."]), resume=first.session_id)
        second = await run(prompt="More.", options=again)
        self.assertEqual(defined_tools(again.provider)[0], defined_tools(options.provider)[-1])
        self.assertEqual([e for e in second.events if isinstance(e, ModelContext)], [])
        self.assertEqual([e for e in second.events if isinstance(e, UserMessage) and e.about], [])

    async def test_a_deferred_tool_that_is_called_by_name_runs_and_is_offered_from_then_on(
        self,
    ) -> None:
        name = Thing(150).name
        options = self.options(call(name, title="x"), "Done.", count=300)
        result = await run(prompt="Go.", options=options)
        self.assertEqual(defined_tools(options.provider), [["ToolSearch"], ["ToolSearch", name]])
        (end,) = [event for event in result.events if isinstance(event, ToolResult)]
        self.assertEqual((end.outcome, end.output), ("ok", f"{name} did it"))

    async def test_a_forbidden_tool_is_not_allowed_by_being_found(self) -> None:
        class Unsafe(Thing):
            effect = "unsafe"

        name = Unsafe(0).name
        turns = (call("ToolSearch", query=name), call(name, title="x"), "Done.")
        gate = PermissionGate(permission_mode="dontAsk")
        tools = [Unsafe(number) for number in range(300)]
        result = await run(prompt="Go.", options=self.options(*turns, permission_gate=gate, tools=tools))
        self.assertEqual([event.outcome for event in result.events if isinstance(event, ToolResult)], ["ok", "denied"])

    async def test_few_or_small_tools_or_the_option_leave_all_tools_in_the_request(self) -> None:
        for count, changes in ((9, {"max_context_bytes": 3000}), (40, {}), (500, {"defer_tools": "off"})):
            options = self.options("Done.", count=count, **changes)
            await run(prompt="Go.", options=options)
            self.assertEqual(len(defined_tools(options.provider)[0]), count)

    async def test_a_server_that_withdraws_a_tool_leaves_the_others_where_they_are_and_the_log_names_it(self) -> None:
        options = self.options("Done.", count=12, served=True)
        first = await run(prompt="Go.", options=options)
        fewer = {"desk": McpServer(tools=[Thing(number) for number in (0, 20, *range(2, 12))])}
        again = replace(options, provider=ScriptedProvider(["Done."]), resume=first.session_id, mcp_servers=fewer)
        second = await run(prompt="More.", options=again)
        gone, new = (f"mcp__desk__{Thing(number).name}" for number in (1, 20))
        (before,), (after,) = defined_tools(options.provider), defined_tools(again.provider)
        self.assertEqual(after, [*(name for name in before if name != gone), new])
        (context,) = [event for event in second.events if isinstance(event, ModelContext)]
        self.assertEqual(context.cause, f"tools: +{new}, -{gone}")

    async def test_the_model_gets_the_names_of_servers_whose_tools_can_be_found(self) -> None:
        options = self.options("Done.", count=300, served=True, system_prompt="Be good.")
        result = await run(prompt="Go.", options=options)
        (note,) = [event.text for event in result.events if isinstance(event, UserMessage) and event.about]
        self.assertIn("server desk: 300 tools (", note)
        self.assertLess(len(note), 2500)


class WhereFoundTest(unittest.TestCase):
    """Vendors whose models accept a definition beside the search result: the prefix and the reasoning stay valid."""

    def walk(self, protocol: str, answers: list[Answer], *, loads: bool, **changes: Any) -> CachingEndpoint:
        provider_of: Any = {"messages": AnthropicProvider, "responses": OpenAIResponsesProvider}[protocol]
        left = list(answers)
        with CachingEndpoint(lambda asked: left.pop(0) if left else Answer("Done.", thinking="Done.")) as endpoint:
            provider = provider_of(base_url=endpoint.url, api_key="none", loads_tools=loads)
            self.addCleanup(provider.http.close)
            options = options_for([], tools=[Thing(number) for number in range(300)], **changes)
            model = {"messages": "claude-opus-5-5", "responses": "gpt-5.4"}[protocol]
            self.result = asyncio.run(run(prompt="Go.", options=replace(options, provider=provider, model=model)))
        self.assertEqual((self.result.stop_reason, self.result.error_message), ("end", None))
        self.assertEqual([asked.fault for asked in endpoint.requests if asked.fault], [])
        self.assertEqual(find_mismatches(self.result.events), [])
        return endpoint

    def answers(self) -> list[Answer]:
        name = Thing(11).name
        search = Answer(calls=[{"name": "ToolSearch", "arguments": {"query": name}}], thinking="Which one?")
        again = Answer(calls=[{"name": "ToolSearch", "arguments": {"query": "export mail"}}], thinking="More?")
        use = Answer(calls=[{"name": name, "arguments": {"title": "x"}}], thinking="This one.")
        return [search, use, again, use]

    def test_requests_begin_with_the_ones_before_and_carry_all_their_reasoning(self) -> None:
        for protocol in ("messages", "responses"):
            with self.subTest(protocol):
                endpoint = self.walk(protocol, self.answers(), loads=True)
                for before, now in pairwise(endpoint.requests):
                    data = [part.data for part in before.parts]
                    self.assertEqual(data, [part.data for part in now.parts[: len(data)]])
                bound = [sum(part.bound is not None for part in asked.parts) for asked in endpoint.requests]
                self.assertEqual(bound, [0, 1, 2, 3, 4])
                results = [event for event in self.result.events if isinstance(event, ToolResult)]
                self.assertEqual([event.outcome for event in results], ["ok"] * 4)

    @full_size
    def test_the_definitions_are_in_the_results_of_the_search(self) -> None:
        name = Thing(11).name
        last = self.walk("messages", self.answers(), loads=True).requests[-1].body
        found = [tool["name"] for tool in last["tools"] if tool.get("defer_loading")]
        self.assertEqual((last["tools"][0]["name"], name in found), ("ToolSearch", True))
        (reference, *_) = last["messages"][2]["content"][0]["content"]
        self.assertEqual(reference, {"type": "tool_reference", "tool_name": name})
        last = self.walk("responses", self.answers(), loads=True).requests[-1].body
        self.assertEqual([tool["type"] for tool in last["tools"]], ["tool_search"])
        output = next(item for item in last["input"] if item.get("type") == "tool_search_output")
        self.assertEqual((output["tools"][0]["name"], output["execution"]), (name, "client"))

    def test_elsewhere_they_follow_the_other_tools_and_outdated_reasoning_is_omitted(self) -> None:
        endpoint = self.walk("messages", self.answers(), loads=False)
        bound = [sum(part.bound is not None for part in asked.parts) for asked in endpoint.requests]
        self.assertEqual(bound, [0, 0, 1, 0, 1])
        self.assertIn(Thing(11).name, endpoint.requests[-1].tool_names)

    def test_after_a_summary_found_tools_are_in_the_first_request(self) -> None:
        def summarised(asked: Any) -> Answer:
            return Answer("SUMMARY") if b"replaced by your summary" in asked.parts[-1].data else left.pop(0)

        long = Answer("word " * 4000, calls=[{"name": Thing(11).name, "arguments": {"title": "x"}}], thinking="Long.")
        left = [*self.answers()[:2], *[long] * 3, Answer("Done.")]
        with CachingEndpoint(summarised) as endpoint:
            provider = AnthropicProvider(base_url=endpoint.url, api_key="none", loads_tools=True)
            self.addCleanup(provider.http.close)
            options = options_for([], tools=[Thing(number) for number in range(300)], max_context_bytes=40_000)
            options = replace(options, provider=provider, model="claude-opus-5-5")
            result = asyncio.run(run(prompt="Go.", options=options))
        self.assertEqual((result.stop_reason, result.error_message), ("end", None))
        self.assertIn("session.compacted", [event.type for event in result.events])
        self.assertEqual([asked.fault for asked in endpoint.requests if asked.fault], [])
        (tool,) = [tool for tool in endpoint.requests[-1].body["tools"] if tool["name"] == Thing(11).name]
        self.assertNotIn("defer_loading", tool)


class RankingTest(unittest.TestCase):
    def setUp(self) -> None:
        self.tools: list[Tool] = [Thing(number) for number in range(300)]

    def test_exact_names_come_first_and_words_find_what_they_are_about(self) -> None:
        name = self.tools[222].name
        self.assertEqual(rank_tools(f"please use {name}", self.tools)[0].name, name)
        for verb, thing in zip(VERBS, THINGS, strict=True):
            best = rank_tools(f"{verb} some {thing}s", self.tools)[0]
            self.assertTrue(best.name.startswith(f"{verb}_{thing.replace(' ', '_')}"), best.name)

    def test_camel_case_plurals_and_parameters_are_words_too(self) -> None:
        class Camel(Thing):
            def __init__(self) -> None:
                super().__init__(0)
                self.name, self.description = "getHTTPStatusCodes", "Nothing else."
                self.input_schema = {"properties": {"hostname": {"description": "Where the proxy stands."}}}

        tools = [*self.tools, Camel()]
        for query in ("status code", "http", "proxies proxy", "hostnames"):
            self.assertEqual(rank_tools(query, tools)[0].name, "getHTTPStatusCodes", query)

    def test_hostile_queries_and_definitions_cost_little_and_raise_nothing(self) -> None:
        class Hostile(Thing):
            def __init__(self) -> None:
                super().__init__(0)
                self.name, self.description = "x" * 60, "aA" * 1_000_000
                self.input_schema = {"properties": ["no", "mapping"]}

        rng = random.Random(1)
        letters = "aA _-/()[]*\\\x00\u202e\ud800é中1"
        for _ in range(50 if LARGE else 5):
            query = "".join(rng.choice(letters) for _ in range(500))
            self.assertLessEqual(len(rank_tools(query, [*self.tools, Hostile()], MAX_FOUND)), MAX_FOUND)
        self.assertEqual(rank_tools("", self.tools), [])
        self.assertEqual(rank_tools("zzz", []), [])


if __name__ == "__main__":
    unittest.main()
