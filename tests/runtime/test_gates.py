"""The loop accepts any gate that implements `kernel.gate.Gate`; parts can only restrict what it allows."""

import unittest
from dataclasses import replace

from openagentic_sdk.assemble import build_agent
from openagentic_sdk.errors import OptionsError
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.kernel.agent import RunRequest
from openagentic_sdk.kernel.gate import ApprovalResult, Narrowing
from openagentic_sdk.kernel.part import Part, without_parts
from openagentic_sdk.kernel.prompt import Said
from openagentic_sdk.kernel.task import RunTask, run_events
from openagentic_sdk.parts.claude.names import ClaudeNames
from openagentic_sdk.permissions.gate import PermissionGate, permission_gate
from openagentic_sdk.tools.function import tool

from .support import assert_closed, events_of, options_for, result_of


class OnlyTools:
    """A minimal gate: it allows the listed tools and has nobody to ask."""

    mode = "default"
    can_ask = False

    def __init__(self, names):
        self.names = frozenset(names)

    @property
    def policy_sha256(self):
        return "only " + " ".join(sorted(self.names))

    def record(self):
        return {"only": sorted(self.names), "protected": [], "roots": []}

    async def answer(self, question):
        return ""

    async def approve(self, tool_name, tool_input, context):
        return ApprovalResult(tool_name in self.names, f"the list decides about {tool_name}", category="list")

    async def permits_path(self, path, write, context):
        return True

    def read_filter(self, cwd, roots):
        return None

    def offered_tools(self, names):
        return tuple(name for name in names if name in self.names)

    def restore(self, session_id, events):
        pass

    def narrowed(self, *, tools, deny, source):
        return OnlyTools(self.names.intersection(self.names if tools is None else tools).difference(deny))

    def moved(self, old, new):
        return OnlyTools(self.names & new.names)


class WithoutFail(Part):
    """A part that forbids one tool and lists another that the gate never allows."""

    def narrow(self):
        return [Narrowing(tools=("echo", "Bash"), source="test"), Narrowing(deny=("fail",), source="test")]


def calls(*names):
    return [{"tool_calls": [{"name": name, "arguments": {"text": "x"}}]} for name in names]


async def play(agent):
    return [event async for event in run_events(lambda: RunTask.start(agent, RunRequest(), Said("go")))]


def decisions(events):
    return {event.name: event.allowed for event in events if event.type == "permission.decision"}


class GatesTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_run_asks_a_gate_of_another_class(self):
        options = options_for([*calls("echo", "fail"), "done"])
        agent = replace(build_agent(options), gate=OnlyTools(["echo"]))
        events = await play(agent)
        self.assertEqual(decisions(events), {"echo": True, "fail": False})
        first = next(event for event in events if event.type == "permission.decision")
        self.assertEqual(first.details["policy"]["only"], ["echo"])
        self.assertEqual(first.details["category"], "list")
        self.assertEqual(result_of(events).stop_reason, "end")
        assert_closed(self, agent.store, events[0].session_id)

    async def test_the_hooks_around_a_call_receive_its_id(self):
        call_ids = []
        look = HookMatcher("look", hook=lambda payload: call_ids.append(payload["context"]["tool_use_id"]))
        hooks = HookEngine(pre_tool_use=[look], post_tool_use=[look], post_tool_use_failure=[look])
        events = await events_of("hi", options_for([*calls("echo", "fail"), "done"], hooks=hooks))
        uses = [event.tool_use_id for event in events if event.type == "tool.use"]
        self.assertEqual(call_ids, [uses[0], uses[0], uses[1], uses[1], uses[1]])

    async def test_a_hook_that_answers_for_a_person_is_in_the_log_with_the_call_that_it_answers(self):
        seen = []

        def allow(payload):
            seen.append((payload["tool_name"], payload["tool_input"]))
            return HookDecision(permission="allow", action="allowed")

        hooks = HookEngine(permission_request=[HookMatcher("clerk", hook=allow)])
        turns = [{"tool_calls": [{"name": "fail", "arguments": {"text": "x"}}]}, "ok"]
        events = await events_of("hi", options_for(turns, hooks=hooks, permission_gate=PermissionGate()))
        use = next(event for event in events if event.type == "tool.use")
        [asked] = [event for event in events if event.type == "hook.event" and event.name == "clerk"]
        self.assertEqual((asked.tool_use_id, seen), (use.tool_use_id, [("fail", {"text": "x"})]))
        decision = next(event for event in events if event.type == "permission.decision")
        self.assertEqual((decision.allowed, decision.hook), (True, "clerk"))

    async def test_a_part_takes_authority_away_and_gives_none(self):
        for gate in (OnlyTools(["echo", "fail"]), PermissionGate(permission_mode="dontAsk", allow=["echo", "fail"])):
            with self.subTest(gate=type(gate).__name__):
                agent = build_agent(options_for([*calls("echo", "fail"), "done"]))
                self.assertEqual(decisions(await play(replace(agent, gate=gate))), {"echo": True, "fail": True})
                agent = build_agent(options_for([*calls("echo", "fail"), "done"]))
                agent = replace(agent, gate=gate, parts=(*agent.parts, WithoutFail))
                self.assertEqual(decisions(await play(agent)), {"echo": True, "fail": False})

    async def test_a_gate_that_is_not_a_permission_gate_is_an_error_that_names_it(self):
        with self.assertRaisesRegex(OptionsError, "OnlyTools"):
            permission_gate(OnlyTools([]))

    async def test_a_rule_for_a_mistyped_tool_is_reported_at_the_start_with_a_similar_name(self):
        @tool(effect="read")
        def lookup(key: str) -> str:
            """Look it up."""
            return key

        for more, expected in (
            ({"allowed_tools": ["lokup"]}, ["allowed_tools: no tool is called 'lokup'; did you mean lookup?"]),
            ({"disallowed_tools": ["Lookup"]}, ["disallowed_tools: no tool is called 'Lookup'; did you mean lookup?"]),
            (
                {"permission_gate": PermissionGate(allow=["lookpu"])},
                ["allowed_tools: no tool is called 'lookpu'; did you mean lookup?"],
            ),
            ({"allowed_tools": ["lookup", "mcp__far__away", "WebFetch(domain:a.example)"]}, []),
        ):
            with self.subTest(more):
                events = await events_of("Go.", options_for(["Done."], tools=[lookup], **more))
                found = [
                    event.message for event in events if event.type == "system.notice" and event.code == "options.tool"
                ]
                self.assertEqual(found, expected)

    async def test_claude_codes_names_of_tools_are_read_by_a_part(self):
        @tool(name="Task")
        def task(agent: str, prompt: str) -> str:
            """Assign a task."""
            return f"{agent}: {prompt}"

        turns = [{"tool_calls": [{"name": "Agent", "arguments": {"subagent_type": "a", "prompt": "Go."}}]}, "done"]
        for parts_left_out, output in (((), "a: Go."), ((ClaudeNames,), None)):
            with self.subTest(parts_left_out=parts_left_out):
                agent = build_agent(options_for(turns, tools=[task]))
                events = await play(replace(agent, parts=without_parts(agent.parts, *parts_left_out)))
                [result] = [event for event in events if event.type == "tool.result"]
                self.assertEqual(result.output, output)
                self.assertEqual(result.error_type, None if output else "ToolNotFoundError")


if __name__ == "__main__":
    unittest.main()
