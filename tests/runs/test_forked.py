"""Copies of sessions that continue differently."""

import unittest
from dataclasses import replace

from openagentic_sdk.api import run
from openagentic_sdk.errors import OptionsError, SessionNotFoundError
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.runs.forked import query_forked
from openagentic_sdk.runs.replay import replay_events
from openagentic_sdk.runs.whatif import what_if
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.tools.function import tool
from tests.runtime.support import assert_closed, options_for, result_of

ran = []


@tool
async def act(text: str) -> str:
    """Take effect."""
    ran.append(text)
    return f"did {text}"


def acting(text):
    return {"tool_calls": [{"name": "act", "arguments": {"text": text}}]}


class ForkedTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        ran.clear()
        self.options = options_for([acting("a"), acting("b"), "Done."], tools=[act])
        self.store = self.options.session_store
        self.source = (await run(prompt="go", options=self.options)).session_id
        self.before = self.store.read_events(self.source)
        ran.clear()

    def position_of(self, event_type, number=0):
        return [event.seq for event in self.before if event.type == event_type][number]

    def options_of(self, turns, **changes):
        return options_for(turns, tools=[act], session_store=self.store, **changes)

    async def test_a_call_that_gives_the_final_answer_is_no_new_call(self):
        turns = [{"tool_calls": [{"name": "final_answer", "arguments": {"value": number}}]} for number in (1, 2)]
        source = (await run(prompt="count", options=self.options_of(turns[:1], output_schema=int))).session_id
        for number, turn in enumerate(turns, 1):
            options = self.options_of([turn], output_schema=int)
            result = result_of([event async for event in what_if(source_id=source, at_seq=2, options=options)])
            self.assertEqual((result.stop_reason, result.structured_output), ("end", number))

    async def test_a_fork_continues_from_its_position_and_the_source_stays_unchanged(self):
        provider = ScriptedProvider(["Otherwise."])
        at = self.position_of("tool.result", 0)
        events = [
            event
            async for event in query_forked(
                source_id=self.source, at_seq=at, prompt="stop there", options=self.options_of(provider)
            )
        ]
        self.assertEqual(
            [m["role"] for m in provider.requests[0]["messages"]], ["system", "user", "assistant", "tool", "user"]
        )
        self.assertEqual(self.store.read_events(self.source), self.before)
        fork = result_of(events).session_id
        assert_closed(self, self.store, fork)
        self.assertTrue((await replay_events(self.store.read_events(fork))).ok)

    async def test_positions_and_sessions_that_are_not_there_are_refused(self):
        for changes, error in (({"at_seq": 999}, OptionsError), ({"source_id": "nowhere"}, SessionNotFoundError)):
            arguments = {"source_id": self.source, "prompt": "x", "options": self.options_of([]), **changes}
            with self.assertRaises(error):
                async for _ in query_forked(**arguments):
                    pass

    async def wonder(self, turns, **changes):
        at = self.position_of("user.message", 0)
        changes = {"options": self.options_of(turns), **changes}
        events = [event async for event in what_if(source_id=self.source, at_seq=at, **changes)]
        return result_of(events), [event for event in events if event.type == "tool.result"]

    async def test_known_calls_are_answered_from_the_recording_without_running(self):
        result, results = await self.wonder([acting("b"), acting("a"), "Same."])
        self.assertEqual([r.output for r in results], ["did b", "did a"])
        self.assertEqual((ran, result.final_text, result.stop_reason), ([], "Same.", "end"))

    async def test_a_recorded_error_is_returned_like_a_recorded_result(self):
        @tool
        def order(item: str) -> str:
            """Order an item."""
            ran.append(item)
            raise ValueError(f"no {item}")

        def ordering(**arguments):
            return {"tool_calls": [{"name": "order", "arguments": arguments}]}

        recorded = options_for([ordering(item="tea"), ordering(), "None."], tools=[order], session_store=self.store)
        self.source = (await run(prompt="go", options=recorded)).session_id
        ran.clear()
        options = replace(self.options_of([ordering(item="tea"), "None."]), tools=[order])
        result, results = await self.wonder([], options=options)
        self.assertEqual((ran, result.final_text, result.stop_reason), ([], "None.", "end"))
        answer = results[0]
        self.assertEqual((answer.error_type, answer.error_message, answer.outcome), ("ValueError", "no tea", "error"))

    async def test_the_first_new_call_stops_the_run_before_it_takes_effect(self):
        result, results = await self.wonder([acting("a"), acting("new"), "never"])
        self.assertEqual(ran, [])
        self.assertEqual(result.stop_reason, "interrupted")
        self.assertIn("never made this call", results[-1].error_message)

    async def test_a_new_call_runs_live_or_after_a_yes(self):
        await self.wonder([acting("new"), "ok"], on_new="live")
        self.assertEqual(ran, ["new"])

        async def no(question):
            return "no"

        gate = PermissionGate(permission_mode="bypass", user_answerer=no)
        options = self.options_of([acting("newer"), "ok"], permission_gate=gate)
        await self.wonder([], options=options, on_new="ask")
        self.assertEqual(ran, ["new"])

    async def test_an_unknown_way_is_refused(self):
        with self.assertRaisesRegex(OptionsError, "stop, ask or live"):
            await self.wonder([], on_new="maybe")


if __name__ == "__main__":
    unittest.main()
