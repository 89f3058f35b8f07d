"""Whatever a server does, the run continues, sees the outcome of each call, has an intact log and leaves nothing behind."""

from __future__ import annotations

import os
import sys
import unittest
from pathlib import Path
from typing import Any

from openagentic_sdk import (
    McpServer,
    MemorySessionStore,
    OpenAgenticOptions,
    PermissionGate,
    answer_question,
    query,
    submit,
)
from openagentic_sdk.api import compact_session
from openagentic_sdk.events import McpServerChanged, ToolResult, UserQuestion
from openagentic_sdk.testing import ScriptedProvider
from openagentic_sdk.testing.validity import find_fault
from tests.size import LARGE, full_size

SCRIPT = str(Path(__file__).with_name("bad_server.py"))
# Unanswered calls, and servers that never start, are abandoned after this time; all others have no limit.
SHORT_S = 0.5


def mark() -> str:
    """A word in the command lines of this process's servers; the worker processes of a whole run share their imports."""
    return f"mark-{os.getpid()}-"


def bad_server(kind: str, **settings: Any) -> McpServer:
    """A server of `bad_server.py`; with `-I -S` it starts in a fraction of the usual time."""
    return McpServer(command=sys.executable, args=["-I", "-S", SCRIPT, kind, mark()], **settings)


def processes() -> list[str]:
    """The command lines of the servers that still run, including grandchildren."""
    found = []
    for name in os.listdir("/proc"):
        try:
            line = Path(f"/proc/{name}/cmdline").read_bytes() if name.isdigit() else b""
            state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0] if line else "Z"
        except OSError:
            continue
        if mark().encode() in line and state != "Z":
            found.append(line.decode(errors="replace"))
    return found


class Outcome:
    """The outcome of a run: its events, the last state of each server, the results of calls by the server's name."""

    def __init__(self, events: list[Any], provider: ScriptedProvider) -> None:
        self.events = events
        self.states: dict[str, list[McpServerChanged]] = {}
        self.requests = provider.requests
        names = {event.tool_use_id: event.name.split("__")[1] for event in events if event.type == "tool.use"}
        self.results: dict[str, list[ToolResult]] = {}
        for event in events:
            if isinstance(event, McpServerChanged):
                self.states.setdefault(event.name, []).append(event)
            elif isinstance(event, ToolResult):
                self.results.setdefault(names[event.tool_use_id], []).append(event)


async def outcome_of(
    servers: dict[str, McpServer], *turns: list[tuple[str, dict[str, Any]]], **options: Any
) -> Outcome:
    """Run an agent whose model makes these calls, one list of `(tool, arguments)` for each turn."""
    calls = [{"tool_calls": [{"name": name, "arguments": given} for name, given in turn]} for turn in turns]
    provider = ScriptedProvider([*calls, "Done."])
    settings = OpenAgenticOptions(
        provider=provider,
        model="scripted",
        mcp_servers=servers,
        **{
            "session_store": MemorySessionStore(),
            "permission_gate": PermissionGate(permission_mode="bypass"),
            **options,
        },
    )
    return Outcome([event async for event in query(prompt="go", options=settings)], provider)


@unittest.skipUnless(sys.platform == "linux", "supervision of servers is tested where there is /proc")
class HostileServers(unittest.IsolatedAsyncioTestCase):
    def assert_whole(self, outcome: Outcome) -> None:
        self.assertEqual((outcome.events[-1].type, outcome.events[-1].stop_reason), ("result", "end"))
        for request in outcome.requests:
            self.assertIsNone(find_fault(request["messages"]))
        self.assertEqual(processes(), [])

    @full_size
    async def test_malformed_servers_are_tolerated_and_unresponsive_ones_block_nothing(self) -> None:
        talking = ("good", "banners", "big_line", "duplicate_ids", "cursor_loop", "asks_much", "grandchildren")
        servers = {kind: bad_server(kind) for kind in (*talking, "many_tools", "dies_at_discover")}
        absent = {
            "silence": "has not responded within 0.5 s",
            "half_line": "has not responded within 0.5 s",
            "dies_at_once": "exited with code 5",
            "dies_at_initialize": "cannot do initialize: no database",
            "dies_at_list": "cannot do tools/list: no database",
        }
        quick = {"silence", "half_line"}
        servers |= {
            kind: bad_server(kind, **({"connect_timeout_s": SHORT_S} if kind in quick else {})) for kind in absent
        }
        servers["missing"] = McpServer(command="no-such-program-anywhere")
        calls = [(f"mcp__{kind}__echo", {"text": kind}) for kind in (*talking, "dies_at_discover")]
        outcome = await outcome_of(servers, calls, [("mcp__many_tools__tool00999", {})])
        self.assert_whole(outcome)
        for kind in (*talking, "dies_at_discover"):
            with self.subTest(kind):
                [result] = outcome.results[kind]
                self.assertEqual(result.outcome, "ok", result)
                self.assertEqual(outcome.states[kind][0].state, "started")
                if kind != "big_line":
                    self.assertEqual(result.output, f"echo {kind}")
        big = outcome.results["big_line"][0].output
        self.assertEqual((big["truncated"], big["bytes"]), (True, 10 * 1024 * 1024))
        many = outcome.states["many_tools"][0]
        self.assertEqual(len(many.tools), 1000)
        self.assertIn("more than 1000", many.left_out[0]["reason"])
        self.assertIn("twice", outcome.states["cursor_loop"][0].left_out[0]["reason"])
        for kind, reason in {**absent, "missing": "not a program on PATH"}.items():
            with self.subTest(kind):
                self.assertEqual([event.state for event in outcome.states[kind]], ["failed"])
                self.assertIn(reason, outcome.states[kind][0].error_message or "")

    @full_size
    async def test_a_call_that_may_have_taken_effect_is_unknown_unless_the_user_allowed_its_repetition(
        self,
    ) -> None:
        repeatable = {"effects": {"echo": "idempotent"}}
        servers = {
            "dies": bad_server("dies_at_call"),
            "dies-again": bad_server("dies_at_call", **repeatable),
            "silent": bad_server("silent_call", idle_timeout_s=SHORT_S),
            "wrong": bad_server("wrong_ids", call_timeout_s=SHORT_S),
            "flood": bad_server("stderr_flood"),
            "garbled": bad_server("garbled"),
            "chatters": bad_server("chatters"),
        }
        outcome = await outcome_of(servers, [(f"mcp__{name}__echo", {}) for name in servers])
        self.assert_whole(outcome)
        reasons = {
            "dies": "cannot do tools/call: no database",
            "dies-again": "exited with code 3",
            "silent": "sent nothing during tools/call for 0.5 s (idle_timeout_s)",
            "wrong": "did not finish tools/call within 0.5 s (call_timeout_s)",
            "flood": "the very last words",
            "garbled": "wrote a message that cannot be read",
            "chatters": "are not messages; it wrote 10,001 lines that cannot be read as a message, first 'y'",
        }
        for name, reason in reasons.items():
            with self.subTest(name):
                [result] = outcome.results[name]
                self.assertEqual((result.outcome, result.error_type), ("unknown", "UnknownOutcome"))
                self.assertIn(reason, result.error_message)
        states = {name: [event.state for event in outcome.states[name]] for name in servers}
        self.assertEqual(states["dies"], ["started", "lost"])
        self.assertEqual(states["silent"], ["started"])

    async def test_tools_that_change_are_other_ones_from_the_next_step_on(self) -> None:
        servers = {"moving": bad_server("changing_tools")}
        outcome = await outcome_of(servers, [("mcp__moving__echo", {})], [("mcp__moving__other", {})])
        self.assert_whole(outcome)
        self.assertEqual([event.state for event in outcome.states["moving"]], ["started", "changed"])
        offered = [[spec["function"]["name"] for spec in request["tools"]] for request in outcome.requests]
        self.assertEqual(
            [("mcp__moving__echo" in names, "mcp__moving__other" in names) for names in offered[:2]],
            [(True, False), (False, True)],
        )

    @full_size
    async def test_rules_and_approvals_of_one_definition_do_not_cover_another_in_the_same_session(self) -> None:
        asked: list[UserQuestion] = []

        async def always(question: UserQuestion) -> str:
            asked.append(question)
            return "always" if "always" in question.choices else "yes"

        echo = [("mcp__x__echo", {})]
        allowed = PermissionGate(allow=["mcp__x__echo"])
        for settings, gate, outcomes in (
            ({}, allowed, ["ok", "denied", "denied"]),
            ({"pin": False}, allowed, ["ok", "ok", "ok"]),
            ({}, PermissionGate(permission_mode="bypass"), ["ok", "ok", "ok"]),
            ({}, PermissionGate(user_answerer=always), ["ok", "ok", "ok"]),
        ):
            server = bad_server("rug_pull", **settings)
            outcome = await outcome_of({"x": server}, echo, echo, echo, permission_gate=gate)
            with self.subTest(gate.mode, settings=settings):
                self.assert_whole(outcome)
                self.assertEqual([result.outcome for result in outcome.results["x"]], outcomes)
        self.assertEqual([question.choices for question in asked], [("yes", "no", "always"), ("yes", "no")])
        self.assertIn("changed the definition of this tool", asked[1].details["reason"])

    async def test_an_answer_to_a_parked_call_does_not_cover_what_its_tool_has_become(self) -> None:
        def options(kind: str, *turns: Any, **more: Any) -> OpenAgenticOptions:
            return OpenAgenticOptions(
                provider=ScriptedProvider(list(turns)), model="scripted", session_store=store,
                mcp_servers={"x": bad_server(kind)}, **more,
            )  # fmt: skip

        store = MemorySessionStore()
        call = {"tool_calls": [{"name": "mcp__x__echo", "arguments": {}}]}
        parked = await submit("go", options("good", call)).wait()
        assert parked.question is not None
        await answer_question(store, parked.session_id, parked.question.question_id, "yes")
        ended = await submit(None, options("is_pulled", "Done.", resume=parked.session_id)).wait()
        self.assertEqual((parked.state, ended.state), ("waiting", "ended"))
        [result] = [event for event in store.read_events(parked.session_id) if isinstance(event, ToolResult)]
        self.assertEqual(result.outcome, "denied")
        self.assertIn("changed the definition of this tool after the call was made", result.error_message or "")

    async def test_a_compaction_does_not_forget_which_definition_came_first(self) -> None:
        def options(kind: str, *turns: Any, **more: Any) -> OpenAgenticOptions:
            return OpenAgenticOptions(
                provider=ScriptedProvider([*turns, "Done."]), model="scripted", session_store=store,
                permission_gate=PermissionGate(allow=["mcp__x__echo"]), mcp_servers={"x": bad_server(kind)}, **more,
            )  # fmt: skip

        store = MemorySessionStore()
        call = {"tool_calls": [{"name": "mcp__x__echo", "arguments": {}}]}
        first = await submit("go", options("good", call, {**call, "text": "x" * 2000})).wait()
        await compact_session(options=options("good", "A summary.", resume=first.session_id))
        again = await submit("again", options("is_pulled", call, resume=first.session_id)).wait()
        results = [event.outcome for event in store.read_events(first.session_id) if isinstance(event, ToolResult)]
        self.assertEqual((results, again.state), (["ok", "ok"], "waiting"))

    async def test_a_bad_tool_is_left_out_with_the_reason_and_strange_texts_are_cleaned(self) -> None:
        outcome = await outcome_of({"strange": bad_server("strange_tools")}, [("mcp__strange__control__31m", {})])
        self.assert_whole(outcome)
        [started] = outcome.states["strange"]
        reasons = {(one["tool"], one["code"]): one["reason"] for one in started.left_out}
        for tool, words in (
            ("remote", "never fetched"),
            ("file", "never fetched"),
            ("text", "arguments must be an object"),
            ("list", "must be an object, not a value of type list"),
            ("deep", "nested deeper"),
            ("long", "its definition has more than 1,048,576 characters"),
            ("wide", "more than 10,000 schemas"),
        ):
            self.assertIn(words, reasons[(tool, "schema")])
        self.assertIn(("none", "duplicate"), reasons)
        specs = {
            s["function"]["name"]: s["function"]
            for s in outcome.requests[0]["tools"]
            if "strange" in s["function"]["name"]
        }
        offered = {tool["tool"]: tool["name"] for tool in started.tools}
        self.assertEqual(set(offered.values()), set(specs))
        self.assertEqual(set(offered), {"control\x1b[31m", "none", "nested", "loop", "wrong", "x" * 100})
        for spec in specs.values():
            self.assertRegex(spec["name"], r"\A[A-Za-z0-9_-]{1,64}\Z")
            self.assertEqual(spec["parameters"]["type"], "object")
            self.assertTrue(spec["description"].startswith("[MCP server strange]"))
            self.assertLess(len(spec["description"]), 2_200)
        self.assertEqual(specs[offered["control\x1b[31m"]]["description"], "[MCP server strange] abcd]0;x")
        self.assertEqual(
            specs["mcp__strange__wrong"]["parameters"]["properties"]["a"], {"description": "(pattern: (a+)+$)"}
        )
        self.assertEqual(outcome.results["strange"][0].output, "a[2Jbcd")

    async def test_odd_results_are_results_or_errors_and_never_the_end_of_the_run(self) -> None:
        wanted = ("null", "list", "empty", "nan", "types", "parts", "long error")
        calls = [("mcp__odd__echo", {"text": text}) for text in wanted]
        outcome = await outcome_of({"odd": bad_server("odd_results")}, calls)
        self.assert_whole(outcome)
        found = [(result.outcome, result.output) for result in outcome.results["odd"]]
        self.assertEqual([outcome for outcome, _ in found], ["unknown", "unknown", *["ok"] * 4, "error"])
        self.assertEqual([output for _, output in found[2:4]], ["", "n"])
        self.assertIn("'video'", found[4][1])
        self.assertTrue(found[5][1].endswith("p\n[5 more parts of this result are left out]"))
        self.assertLess(len(outcome.results["odd"][6].error_message or ""), 3_000)

    @unittest.skipUnless(LARGE, "a server that will not end costs seconds: OPENAGENTIC_TEST_LARGE=1")
    async def test_a_server_that_ignores_every_request_to_end_is_killed(self) -> None:
        outcome = await outcome_of({"stubborn": bad_server("stubborn")}, [("mcp__stubborn__echo", {"text": "a"})])
        self.assert_whole(outcome)


if __name__ == "__main__":
    unittest.main()
