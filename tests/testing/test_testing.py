"""The tools for testing agents: scripts, recordings, the emitted test."""

import asyncio
import json
import os
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

from openagentic_sdk import Agent, MemorySessionStore, OpenAgenticOptions
from openagentic_sdk.api import query, run
from openagentic_sdk.errors import OptionsError, ScriptError
from openagentic_sdk.options import AgentDefinition
from openagentic_sdk.providers.base import Done, Retrying, TextDelta
from openagentic_sdk.runs.agent_replay import replay_agent
from openagentic_sdk.serialization import loads_event
from openagentic_sdk.testing.clock import FakeClock
from openagentic_sdk.testing.emit import emit_test
from openagentic_sdk.testing.recording import RecordingProvider
from openagentic_sdk.testing.scripted import ScriptedProvider
from tests.pythons import run_python
from tests.runtime.support import options_for

ECHO = {"name": "echo", "arguments": {"text": "x"}}
ROOT = Path(__file__).resolve().parents[2]


class ScriptTest(unittest.IsolatedAsyncioTestCase):
    async def outcome(self, turns, prompt="hi"):
        return await run(prompt=prompt, options=options_for(turns))

    async def test_an_expectation_that_does_not_hold_fails_with_what_came(self):
        cases = [
            ({"last": "hello"}, "the last message must contain 'hello'"),
            ({"contains": ["hi", "there"]}, "some message must contain 'there'"),
            ({"lacks": "hi"}, "no message may contain 'hi'"),
            ({"messages": 5}, "there must be 5 messages"),
            ({"tools": ["Read"]}, "the tool 'Read' must be offered"),
        ]
        for expect, sentence in cases:
            with self.assertRaisesRegex(AssertionError, sentence):
                await self.outcome([{"text": "x", "expect": expect}])

    async def test_an_expectation_of_a_subagent_fails_the_test_too(self):
        child = ScriptedProvider([{"text": "x", "expect": {"contains": "please"}}])
        task = {"name": "Task", "arguments": {"agent": "helper", "prompt": "go"}}
        agents = {"helper": AgentDefinition(description="d", prompt="p", provider=child)}
        seen = []
        with self.assertRaisesRegex(AssertionError, "some message must contain 'please'"):
            async for event in query(prompt="hi", options=options_for([{"tool_calls": [task]}, "ok"], agents=agents)):
                seen.append(event.type)
        self.assertEqual(seen[-1], "result")

    async def test_expectations_on_results_of_tools(self):
        second = {"text": "ok", "expect": {"tool_results": {"echo": "x"}}}
        self.assertTrue((await self.outcome([{"tool_calls": [ECHO]}, second])).ok)
        second = {"text": "ok", "expect": {"tool_results": {"echo": "y"}}}
        with self.assertRaisesRegex(AssertionError, "newest result of echo"):
            await self.outcome([{"tool_calls": [ECHO]}, second])

    def test_unknown_keys_are_refused_wherever_they_are(self):
        for turn, sentence in (
            ({"tool_calls": [{"name": "echo", "args": {}}]}, "turn 1, call 1: unknown key 'args'"),
            ({"tool_calls": ["echo"]}, "turn 1, call 1: 'echo' is not an object"),
            ({"tool_calls": [{"arguments": {}}]}, "turn 1, call 1: the call needs a name"),
            ({"error": {"code": 500}}, "turn 1, error: unknown key 'code'"),
            ({"expect": {"contain": "x"}}, "turn 1, expect: unknown key 'contain'"),
            (
                {"deltas": ["Good ", "day."]},
                "turn 1: deltas must be a number of characters .* not .'Good ', 'day.'.; put the words",
            ),
            ({"text": "Good day.", "deltas": "Good day."}, "turn 1: deltas must be a number of characters"),
            ({"text": "Good day.", "deltas": [3, -1]}, "turn 1: deltas must be a number of characters"),
        ):
            with self.assertRaisesRegex(ScriptError, sentence):
                ScriptedProvider([turn])

    def test_one_turn_outside_a_list_is_refused(self):
        for turns in ("Hello.", {"text": "Hello."}):
            with self.assertRaisesRegex(ScriptError, "a script must be a list of turns, not "):
                ScriptedProvider(turns)

    async def test_a_script_without_turns_left_is_an_error(self):
        result = await self.outcome([{"tool_calls": [ECHO]}])
        self.assertIn("has 1 turn, and all have been used", result.error_message)

    async def test_delays_pass_on_the_clock_and_deltas_have_their_sizes(self):
        clock = FakeClock()
        provider = ScriptedProvider([{"text": "abcdef", "deltas": [1, 2], "delay_s": 3}], clock=clock)
        pieces = [event.delta async for event in provider.stream(model="m", messages=[]) if event.type == "text_delta"]
        self.assertEqual((pieces, clock.slept), (["a", "bc", "def"], [3.0, 3.0, 3.0]))

    def test_files_that_are_not_scripts_are_refused_with_their_place(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "script.json"
            for text, sentence in (
                ("{", "cannot be read"),
                ("{}", "turns"),
                ('{"turns": [{"txet": 1}]}', "turn 1: unknown key 'txet'"),
            ):
                file.write_text(text)
                with self.assertRaisesRegex(ScriptError, sentence):
                    ScriptedProvider.from_file(file)


class RecordingTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_cassette_plays_the_same_session_and_holds_no_secret(self):
        key = "sk-proj-" + "a1B2" * 12
        turns = [
            {"text": f"the key is {key}", "tool_calls": [ECHO], "deltas": 5},
            {"text": "Done.", "reasoning": "why"},
        ]
        with tempfile.TemporaryDirectory() as folder:
            cassette = Path(folder) / "cassette.json"
            provider = RecordingProvider(ScriptedProvider(turns), cassette, api_key="a-very-secret-key")
            first = await run(prompt="hi", options=options_for([], provider=provider))
            text = cassette.read_text()
            self.assertNotIn(key, text)
            second = await run(prompt="hi", options=options_for(ScriptedProvider.from_file(cassette)))
        self.assertEqual(first.final_text, second.final_text)
        self.assertEqual(first.usage, second.usage)
        kinds = [[event.type for event in result.events] for result in (first, second)]
        self.assertEqual(*kinds)

    async def test_an_answer_that_came_in_pieces_only_is_recorded(self):
        class Pieces:
            name = "pieces"

            async def stream(self, *, model, messages, tools=(), api_key=None):
                yield TextDelta("void")
                yield Retrying("again", 0.0, 1, mid_answer=True)
                yield TextDelta("It ")
                yield TextDelta("works.")
                yield Done(usage={"input_tokens": 1, "output_tokens": 2})

        with tempfile.TemporaryDirectory() as folder:
            cassette = Path(folder) / "cassette.json"
            said = await RecordingProvider(Pieces(), cassette).complete(model="m", messages=[])
            played = await ScriptedProvider.from_file(cassette).complete(model="m", messages=[])
            turn = json.loads(cassette.read_text())["turns"][0]
        self.assertEqual(
            (said.assistant_text, played.assistant_text, turn["deltas"]), ("It works.", "It works.", [3, 6])
        )
        self.assertEqual(played.usage, said.usage)


def run_tests(folder, name):
    """The output of `python3 -m unittest` for a test file."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return run_python("-m", "unittest", name, cwd=folder, env=environment, text=True)


APP = """
from openagentic_sdk import MemorySessionStore, OpenAgenticOptions, PermissionGate, tool
from openagentic_sdk.testing import ScriptedProvider

@tool(effect="read")
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

@tool
def pay(amount: int) -> str:
    "Pay."
    if RECORDING:
        return "paid"
    raise RuntimeError("a test must not pay")

RECORDING = False
CALLS = [{"name": "add", "arguments": {"a": 2, "b": 3}}, {"name": "pay", "arguments": {"amount": 5}}]

def make():
    return OpenAgenticOptions(
        provider=ScriptedProvider([{"tool_calls": CALLS}, "Done."]),
        model="m",
        system_prompt="Be kind.",
        tools=[add, pay],
        permission_gate=PermissionGate(allow=("pay",)),
        session_store=MemorySessionStore(),
    )
"""
CHANGES = {
    "a prompt": ("Be kind.", "Be cruel.", '-   "content": "Be kind."'),
    "a tool": ("a + b", "a * b", "-5\n+6"),
    "a schema": ("amount: int)", "amount: int, to: str = '')", '"to"'),
    "a description": ("Add two numbers.", "Sum up.", "Sum up."),
    "a permission": ('allow=("pay",)', 'ask=("pay",)', "pay {"),
    "a tool's name": ("def pay(", "def give(", "pay"),
}


class EmittedTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.app = self.folder / "their_app.py"
        self.app.write_text(APP)
        names = {"__name__": "recording"}
        exec(compile(APP, str(self.app), "exec"), names)
        names["RECORDING"] = True
        self.options = names["make"]()
        result = asyncio.run(run(prompt="hi", options=self.options))
        self.events = result.events

    def emit(self, **named):
        return emit_test(self.events, self.folder / "test_it", app_dir=self.folder, **named)

    def test_it_passes_while_nothing_changes_and_never_runs_what_is_not_pure(self):
        test, log = self.emit(agent="their_app:make")
        self.assertEqual((test.name, log.name), ("test_it.py", "test_it.jsonl"))
        done = run_tests(self.folder, test.name)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_it_fails_with_a_readable_difference_when_the_agent_changes(self):
        self.emit(agent="their_app:make")
        events = [loads_event(line) for line in (self.folder / "test_it.jsonl").read_text().splitlines()]
        for name, (old, new, shown) in CHANGES.items():
            with self.subTest(name):
                names = {"__name__": "changed"}
                changed = APP.replace(old, new)
                changed = changed.replace("[add, pay]", "[add, give]") if "give" in new else changed
                exec(compile(changed, "app", "exec"), names)
                report = asyncio.run(replay_agent(events, names["make"]()))
                self.assertFalse(report.ok)
                self.assertIn(shown, report.text)

    def test_an_agent_is_replayed_as_it_is(self):
        def stock(item: str) -> int:
            """Count."""
            return 4

        turns = [{"tool_calls": [{"name": "stock", "arguments": {"item": "tea"}}]}, "Four."]
        agent = Agent(
            ScriptedProvider(turns), tools=[stock], options=OpenAgenticOptions(session_store=MemorySessionStore())
        )
        events = agent.run_sync("How much?").events
        self.assertTrue(asyncio.run(replay_agent(events, agent)).ok)
        report = asyncio.run(replay_agent(events, replace(agent, instructions="Be brief.")))
        self.assertIn("Be brief.", report.text)

    def test_a_tool_runs_for_real_if_the_user_allows_it(self):
        report = asyncio.run(replay_agent(self.events, self.options, live_tools=["pay"]))
        self.assertTrue(report.ok, report.text)
        names = {"__name__": "changed"}
        exec(compile(APP, "app", "exec"), names)
        report = asyncio.run(replay_agent(self.events, names["make"](), live_tools=["pay"]))
        self.assertIn("a test must not pay", report.text)

    def test_the_whole_file_fails_when_the_app_changes(self):
        self.app.write_text(APP.replace("a + b", "a * b"))
        test, _ = self.emit(agent="their_app:make")
        done = run_tests(self.folder, test.name)
        self.assertEqual(done.returncode, 1)
        self.assertIn("-5\n+6", done.stderr)

    def test_a_session_of_own_tools_asks_for_the_agent_and_one_of_the_command_does_not(self):
        with self.assertRaisesRegex(OptionsError, "add, pay.*--agent module:function"):
            self.emit()
        with self.assertRaisesRegex(OptionsError, "module:name"):
            self.emit(agent="their_app.make; import os")
        options = options_for(["Done."], tools=None, system_prompt=None, cwd=str(self.folder))
        result = asyncio.run(run(prompt="hi", options=options))
        test, _ = emit_test(result.events, self.folder / "test_plain.py")
        done = run_tests(self.folder, test.name)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_an_invalid_test_is_refused(self):
        with self.assertRaisesRegex(OptionsError, "no recorded requests"):
            emit_test([], "x.py")


class Fixtures(unittest.TestCase):
    def test_scripts_of_this_repository_are_readable(self):
        for path in sorted((ROOT / "fixtures" / "scripts").glob("*.json")):
            self.assertGreater(ScriptedProvider.from_file(path).turns_left, 0, path.name)
            json.loads(path.read_text())


if __name__ == "__main__":
    unittest.main()
