"""AskUserQuestion, Task and WebSearch, with plain functions in place of people, runtime and service."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import threading
import unittest
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from openagentic_sdk.errors import ToolError, ToolInputError
from openagentic_sdk.events import Event
from openagentic_sdk.ground.threads import run_in_thread
from openagentic_sdk.tools import web_search_tavily
from openagentic_sdk.tools.base import Questions, RunResources, Services, ToolContext, ToolOutput
from openagentic_sdk.tools.session.ask_user_question import AskUserQuestionTool
from openagentic_sdk.tools.session.background_tasks import RunTasks, SubagentResult, TaskOutputTool
from openagentic_sdk.tools.session.task import Subagents, TaskTool
from openagentic_sdk.tools.web_search_tavily import WebSearchTool


class Asking(unittest.TestCase):
    def ask(self, input: Mapping[str, Any], answer: str) -> dict[str, Any]:
        self.prompts: list[tuple[str, tuple[str, ...]]] = []
        prompts = self.prompts

        class Answered(Questions):
            async def ask(self, ctx: ToolContext, prompt: str, choices: Sequence[str] = (), details: Any = None) -> str:
                prompts.append((prompt, tuple(choices)))
                return answer

        ctx = ToolContext(services=Services({Questions: Answered()}))
        result = AskUserQuestionTool().run_sync(input, ctx)
        assert isinstance(result, dict)
        return result

    def test_an_answer_is_a_choice_by_text_or_number_or_free_text(self) -> None:
        for words, answer, is_choice in (
            ("Blue", "blue", True),
            ("1", "red", True),
            ("3", "3", False),
            ("neither", "neither", False),
        ):
            with self.subTest(words):
                result = self.ask({"question": "Which?", "choices": ["red", "blue"]}, words)
                self.assertEqual((result["answer"], result["is_choice"]), (answer, is_choice))

    def test_several_choices_are_separated_by_commas(self) -> None:
        question = {"question": "Which?", "choices": ["red", "blue", "green"], "multi_select": True}
        self.assertEqual(self.ask(question, "1, green")["answer"], "red, green")
        self.assertFalse(self.ask(question, "1, mauve")["is_choice"])

    def test_a_choice_that_lists_other_choices_is_refused_where_several_may_be_picked(self) -> None:
        question: dict[str, Any] = {
            "question": "Which?",
            "choices": ["red", "blue", {"label": "Red, blue"}, "blue, dark"],
        }
        self.assertEqual(self.ask(question, "red, blue")["answer"], "Red, blue")
        with self.assertRaisesRegex(ToolInputError, "the choice 'Red, blue' could be an answer of several choices"):
            self.ask({**question, "multi_select": True}, "red, blue")
        del question["choices"][2]
        self.assertEqual(self.ask({**question, "multi_select": True}, "red, blue, dark")["answer"], "red, blue, dark")

    def test_several_questions_are_asked_in_order(self) -> None:
        result = self.ask(
            {
                "questions": [
                    {"question": "One?"},
                    {"question": "Two?", "choices": [{"label": "x", "description": "y"}]},
                ]
            },
            "x",
        )
        self.assertEqual([answer["question"] for answer in result["answers"]], ["One?", "Two?"])
        self.assertEqual(self.prompts[1], ("Two?\nx: y", ("x",)))

    def test_nobody_to_ask_is_an_error_and_no_answer(self) -> None:
        with self.assertRaisesRegex(ToolError, "nobody can be asked"):
            AskUserQuestionTool().run_sync({"question": "Well?"}, ToolContext())

    def test_no_question_is_an_input_error(self) -> None:
        with self.assertRaises(ToolInputError):
            AskUserQuestionTool().run_sync({}, ToolContext())


class StartedBy(Subagents):
    """Start subagents by calling a plain function with name and prompt."""

    def __init__(self, start: Callable[[str, str], Awaitable[SubagentResult]]) -> None:
        self._start = start

    async def spawn(self, tool_use_id: str, name: str, prompt: str, events: Sequence[Event] = ()) -> SubagentResult:
        return await self._start(name, prompt)


def starting(start: Callable[[str, str], Awaitable[SubagentResult]]) -> ToolContext:
    return ToolContext(services=Services({Subagents: StartedBy(start)}))


class Tasks(unittest.IsolatedAsyncioTestCase):
    async def spawn(self, agent: str, prompt: str) -> SubagentResult:
        return SubagentResult(f"{agent} did {prompt}", "child-1", "error" if agent == "broken" else "end")

    async def test_the_result_names_the_childs_session(self) -> None:
        tool = TaskTool({"reader": "reads", "broken": "fails"})
        done = await tool.run({"agent": "reader", "prompt": "it"}, starting(self.spawn))
        assert isinstance(done, ToolOutput)
        self.assertEqual(done.output["final_text"], "reader did it")
        self.assertEqual(done.output["child_session_id"], "child-1")
        self.assertFalse(done.is_error)
        failed = await tool.run({"agent": "broken", "prompt": "it"}, starting(self.spawn))
        self.assertTrue(failed.is_error)

    async def test_an_unknown_agent_is_an_input_error_that_names_the_known_ones(self) -> None:
        with self.assertRaisesRegex(ToolInputError, "reader, writer"):
            await TaskTool({"writer": "", "reader": ""}).run({"agent": "x", "prompt": "p"}, starting(self.spawn))

    async def test_the_description_lists_the_agents(self) -> None:
        self.assertIn("- reader: reads things", TaskTool({"reader": "reads things"}).description)
        self.assertTrue(TaskTool({}).parallel)

    async def test_one_in_the_background_returns_at_once_and_its_result_is_fetched_later(self) -> None:
        release = asyncio.Event()

        async def slow(agent: str, prompt: str) -> SubagentResult:
            await release.wait()
            return await self.spawn(agent, prompt)

        ctx = starting(slow)
        tool = TaskTool({"reader": "reads"}, background=True)
        started = await tool.run({"agent": "reader", "prompt": "it", "background": True}, ctx)
        self.assertEqual(started, {"agent": "reader", "task_id": "task_1", "status": "running"})
        self.assertEqual((await TaskOutputTool().run({"task_id": "task_1"}, ctx))["status"], "running")
        release.set()
        done = await TaskOutputTool().run({"task_id": "task_1", "wait_s": 10}, ctx)
        self.assertEqual(
            (done["status"], done["final_text"], done["child_session_id"]), ("done", "reader did it", "child-1")
        )
        with self.assertRaisesRegex(ToolInputError, "task_1"):
            await TaskOutputTool().run({"task_id": "task_9"}, ctx)

    async def test_a_failed_subagent_is_reported_with_its_reason(self) -> None:
        async def refused(agent: str, prompt: str) -> SubagentResult:
            raise ToolError("a hook blocked this subagent")

        ctx = starting(refused)
        await TaskTool({"reader": ""}, background=True).run({"agent": "reader", "prompt": "p", "background": True}, ctx)
        result = await TaskOutputTool().run({"task_id": "task_1", "wait_s": 10}, ctx)
        self.assertEqual((result["status"], result["error_message"]), ("failed", "a hook blocked this subagent"))

    async def test_one_that_still_works_when_the_run_ends_is_cancelled_and_waited_for(self) -> None:
        ended: list[str] = []

        async def endless(agent: str, prompt: str) -> SubagentResult:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append(agent)
            raise AssertionError

        ctx = starting(endless)
        await TaskTool({"reader": ""}, background=True).run({"agent": "reader", "prompt": "p", "background": True}, ctx)
        await asyncio.sleep(0)
        await run_in_thread(ctx.services.get(RunResources).get(RunTasks).close, ctx.cancelled)
        self.assertEqual(ended, ["reader"])

    async def test_without_a_runtime_it_is_an_error(self) -> None:
        with self.assertRaisesRegex(ToolError, "no subagent"):
            await TaskTool({"reader": ""}).run({"agent": "reader", "prompt": "p"}, ToolContext())


class Searching(unittest.TestCase):
    def test_each_hit_has_exactly_four_strings(self) -> None:
        hits = [
            {"title": "T", "url": "https://a.example", "content": "C", "score": 0.9, "raw_content": "x"},
            {"title": None, "url": "https://b.example", "snippet": "S"},
            {"title": 7, "url": "u", "content": "", "snippet": "S2"},
            "nonsense",
        ]
        sent: list[tuple[str, Mapping[str, str], Mapping[str, Any]]] = []

        def transport(url: str, headers: Mapping[str, str], payload: Mapping[str, Any]) -> dict[str, Any]:
            sent.append((url, headers, payload))
            return {"results": hits}

        result = WebSearchTool(transport=transport, api_key="k").run_sync(
            {"query": "q", "max_results": 5}, ToolContext()
        )
        self.assertEqual(
            result["results"],
            [
                {"title": "T", "url": "https://a.example", "content": "C", "source": "tavily"},
                {"title": "", "url": "https://b.example", "content": "S", "source": "tavily"},
                {"title": "7", "url": "u", "content": "S2", "source": "tavily"},
            ],
        )
        self.assertEqual(sent[0][2]["query"], "q")
        self.assertNotIn("k", str(sent[0][2]))

    def test_a_missing_key_is_a_clear_error_and_nothing_is_sent(self) -> None:
        key = os.environ.pop("TAVILY_API_KEY", None)
        try:
            with self.assertRaisesRegex(ToolError, "TAVILY_API_KEY"):
                WebSearchTool(transport=lambda *_: self.fail("sent")).run_sync({"query": "q"}, ToolContext())
        finally:
            if key is not None:
                os.environ["TAVILY_API_KEY"] = key

    def test_a_question_goes_to_the_service_with_its_key_and_a_refusal_names_the_key(self) -> None:
        asked: list[tuple[str, str | None, dict[str, Any]]] = []

        class Service(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked.append((self.path, self.headers["Authorization"], body))
                is_known = self.headers["Authorization"] == "Bearer good"
                said = json.dumps({"results": [{"title": "T", "url": "u", "content": "C"}]}).encode()
                self.send_response(200 if is_known else 401)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, format: str, *args: Any) -> None: ...

        usual = web_search_tavily.SEARCH_URL
        with http.server.HTTPServer(("127.0.0.1", 0), Service) as server:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
            web_search_tavily.SEARCH_URL = f"http://127.0.0.1:{server.server_address[1]}/search"
            try:
                result = WebSearchTool(api_key="good").run_sync(
                    {"query": "q", "allowed_domains": ["a.b"]}, ToolContext()
                )
                with self.assertRaisesRegex(ToolError, "status 401.*TAVILY_API_KEY"):
                    WebSearchTool(api_key="bad").run_sync({"query": "q"}, ToolContext())
            finally:
                web_search_tavily.SEARCH_URL = usual
                server.shutdown()
        hits = [{"title": "T", "url": "u", "content": "C", "source": "tavily"}]
        self.assertEqual(result, {"query": "q", "results": hits})
        self.assertEqual(
            asked[0], ("/search", "Bearer good", {"query": "q", "max_results": 5, "include_domains": ["a.b"]})
        )

    def test_an_answer_without_results_is_an_error(self) -> None:
        with self.assertRaisesRegex(ToolError, "without a list"):
            WebSearchTool(transport=lambda *_: {"detail": "no"}, api_key="k").run_sync({"query": "q"}, ToolContext())
