"""Vendor-run code that calls our tools: the log records the caller, and every call is sent back unchanged."""

import unittest

from openagentic_sdk.api import run
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.providers.anthropic import AnthropicProvider
from openagentic_sdk.providers.openai_compatible import OpenAICompatibleProvider
from openagentic_sdk.providers.openai_responses import OpenAIResponsesProvider
from openagentic_sdk.runs.replay import replay_events
from openagentic_sdk.tools.function import tool

from .support import assert_closed, options_for


@tool(effect="read", allowed_callers=("direct", "Code", "code_execution_20260120", "programmatic"))
async def sales(region: str) -> str:
    """Return the sales of a region."""
    return f"sales of {region}"


@tool(effect="read", allowed_callers=("direct",))
async def private(region: str) -> str:
    """Be callable by the model only."""
    return "private"


def scripted_endpoint(provider, bodies, asked):
    """A provider whose endpoint returns these bodies in order; `asked` collects the requests."""

    def transport(url, headers, payload):
        asked.append(payload)
        return bodies[len(asked) - 1]

    return provider(transport=transport, api_key="none", base_url="http://127.0.0.1:9")


def message(*blocks, stop="tool_use", **more):
    return {
        "id": f"msg_{len(blocks)}_{stop}",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-5-5",
        "content": list(blocks),
        "stop_reason": stop,
        "usage": {"input_tokens": 1, "output_tokens": 1},
        **more,
    }


CODE = {"type": "code_execution_20260120", "tool_id": "srvtoolu_1"}
RUNS = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {"code": "..."}}


def called(call_id, name="sales", caller=CODE):
    return {"type": "tool_use", "id": call_id, "name": name, "input": {"region": call_id}, "caller": caller}


CONTAINER = {"container": {"id": "container_1", "expires_at": "2026-11-22T20:00:00Z"}}
RAN = {"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_1", "content": {"stdout": "x", "return_code": 0}}


def response(number, *items):
    return {
        "id": f"resp_{number}",
        "status": "completed",
        "model": "gpt-5.5",
        "output": list(items),
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


PROGRAM = {"type": "program", "id": "pg_1", "call_id": "call_p", "code": "await tools.sales()", "fingerprint": "opaque"}
CALLER = {"type": "program", "caller_id": "call_p"}


def function_call(call_id, name="sales", **more):
    arguments = f'{{"region":"{call_id}"}}'
    known = {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id, "status": "completed"}
    return {**known, "name": name, "arguments": arguments, **more}


def without_marks(turns):
    """The turns of a request, without their cache marks."""
    return [
        {**t, "content": [{k: v for k, v in b.items() if k != "cache_control"} for b in t["content"]]} for t in turns
    ]


class VendorCodeTest(unittest.IsolatedAsyncioTestCase):
    async def play(self, provider, bodies, **changes):
        asked = []
        options = options_for(
            ["unused"],
            provider=scripted_endpoint(provider, bodies, asked),
            model="claude-opus-5-5" if provider is AnthropicProvider else "gpt-5.5",
            tools=[sales, private],
            stream=False,
            **changes,
        )
        result = await run(prompt="go", options=options)
        self.assertEqual(result.stop_reason, "end", result.events[-1])
        events = assert_closed(self, options.session_store, result.session_id)
        self.assertEqual((await replay_events(events)).differences, ())
        return events, asked

    async def test_calls_of_anthropics_code_carry_their_caller_there_and_back(self):
        bodies = [
            message({"type": "text", "text": "Looking."}, RUNS, called("toolu_1"), called("toolu_2"), **CONTAINER),
            message(called("toolu_3"), called("toolu_4", "private"), **CONTAINER),
            message(RAN, {"type": "text", "text": "Done."}, stop="end_turn", **CONTAINER),
        ]
        events, asked = await self.play(AnthropicProvider, bodies)
        definitions = {one["name"]: one.get("allowed_callers") for one in asked[0]["tools"]}
        self.assertEqual(definitions, {"sales": ["direct", "code_execution_20260120"], "private": None})
        uses = [event for event in events if event.type == "tool.use"]
        self.assertEqual([dict(use.caller) for use in uses], [CODE] * 4)
        results = [event for event in events if event.type == "tool.result"]
        self.assertEqual([result.outcome for result in results], ["ok", "ok", "ok", "error"])
        self.assertIn("may not be called by code_execution_20260120", results[3].error_message)
        decided = [event.tool_use_id for event in events if event.type == "permission.decision"]
        self.assertEqual(decided, ["toolu_1", "toolu_2", "toolu_3"])
        self.assertEqual([request.get("container") for request in asked], [None, "container_1", "container_1"])
        turns = asked[2]["messages"]
        self.assertEqual(turns[1]["content"], bodies[0]["content"])
        self.assertEqual(turns[3]["content"], bodies[1]["content"])
        for turn in (turns[2], turns[4]):
            self.assertEqual([block["type"] for block in turn["content"]], ["tool_result"] * 2)

    async def test_a_message_sent_while_anthropics_code_waits_follows_its_answer(self):
        def note(payload):
            return HookDecision(additional_context="Mind the rules.")

        bodies = [
            message(RUNS, called("toolu_1"), **CONTAINER),
            message(RAN, {"type": "text", "text": "Code has ended."}, stop="end_turn"),
            message({"type": "text", "text": "Minded."}, stop="end_turn"),
        ]
        hooks = HookEngine(post_tool_use=[HookMatcher("note", "sales", note)])
        events, asked = await self.play(AnthropicProvider, bodies, hooks=hooks)
        self.assertEqual([block["type"] for block in asked[1]["messages"][-1]["content"]], ["tool_result"])
        self.assertIn("Mind the rules.", str(asked[2]["messages"][-1]))
        earlier, later = (without_marks(asked[at]["messages"]) for at in (1, 2))
        self.assertEqual(later[: len(earlier)], earlier)
        self.assertEqual(events[-1].final_text, "Minded.")

    async def test_calls_of_openais_programs_carry_their_caller_there_and_back(self):
        ended = {"type": "program_output", "id": "po_1", "call_id": "call_p", "result": "x", "status": "completed"}
        message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}
        bodies = [
            response(1, PROGRAM, function_call("call_1", caller=CALLER), function_call("call_2")),
            response(2, function_call("call_3", "private", caller=CALLER)),
            response(3, ended, message),
        ]
        events, asked = await self.play(OpenAIResponsesProvider, bodies)
        definitions = {one["name"]: one.get("allowed_callers") for one in asked[0]["tools"]}
        self.assertEqual(definitions, {"sales": ["direct", "programmatic"], "private": None})
        uses = [event for event in events if event.type == "tool.use"]
        self.assertEqual([use.caller and dict(use.caller) for use in uses], [CALLER, None, CALLER])
        outcomes = [event.outcome for event in events if event.type == "tool.result"]
        self.assertEqual(outcomes, ["ok", "ok", "error"])
        items = [item for item in asked[2]["input"] if "type" in item]
        kinds = [
            "program",
            *["function_call"] * 2,
            *["function_call_output"] * 2,
            "function_call",
            "function_call_output",
        ]
        self.assertEqual([item["type"] for item in items], kinds)
        self.assertEqual(items[0], PROGRAM)
        callers = [item.get("caller") for item in items[1:]]
        self.assertEqual(callers, [CALLER, None, CALLER, None, CALLER, CALLER])

    async def test_calls_of_a_vendors_code_pass_the_same_gate(self):
        bodies = [
            message(RUNS, called("toolu_1"), **CONTAINER),
            message({"type": "text", "text": "No."}, stop="end_turn"),
        ]
        gate = PermissionGate(ask=["sales"])
        events, _ = await self.play(AnthropicProvider, bodies, permission_gate=gate)
        self.assertEqual([e.outcome for e in events if e.type == "tool.result"], ["denied"])
        self.assertFalse(any(event.type == "tool.started" for event in events))

    async def test_no_endpoint_makes_a_call_of_its_own_look_like_one_of_ours(self):
        for caller in (
            {"type": "Code", "tool_use_id": "x"},
            {"type": "code_execution_x", "tool_id": "x" * 5000},
            ["Code"],
        ):
            bodies = [
                message(called("toolu_1", caller=caller)),
                message({"type": "text", "text": "x"}, stop="end_turn"),
            ]
            events, asked = await self.play(AnthropicProvider, bodies)
            [use] = [event for event in events if event.type == "tool.use"]
            self.assertIsNone(use.caller)
            self.assertEqual(asked[1]["messages"][-1]["content"][0]["tool_use_id"], "toolu_1")

    async def test_an_endpoint_of_another_protocol_receives_no_callers(self):
        body = {"choices": [{"message": {"role": "assistant", "content": "Done."}, "finish_reason": "stop"}]}
        _, asked = await self.play(OpenAICompatibleProvider, [body])
        self.assertEqual([sorted(one) for one in asked[0]["tools"]], [["function", "type"]] * 2)


if __name__ == "__main__":
    unittest.main()
