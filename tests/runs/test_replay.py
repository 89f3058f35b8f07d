"""Recorded sessions, replayed."""

import random
import unittest
from dataclasses import replace
from pathlib import Path

from openagentic_sdk.api import compact_session, query, run
from openagentic_sdk.client import AgentClient
from openagentic_sdk.events import CODE_CALLER, ModelContext, SessionRewound, ToolResult, ToolUse
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.parts.record.lifecycle import fork_session, rewind_session
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.runs.background import submit
from openagentic_sdk.runs.replay import replay_events
from openagentic_sdk.serialization import loads_event
from openagentic_sdk.sessions.memory import MemorySessionStore
from tests.runtime.support import echo, options_for
from tests.runtime.test_cancel import long_run
from tests.size import full_size, sized

ROOT = Path(__file__).resolve().parents[2]
ECHO = {"name": "echo", "arguments": {"text": "x"}}


async def recorded(prompt, options):
    result = await run(prompt=prompt, options=options)
    return options.session_store.read_events(result.session_id)


class ReplayTest(unittest.IsolatedAsyncioTestCase):
    async def assert_replays(self, events):
        report = await replay_events(events)
        self.assertTrue(report.ok, report.error or report)

    async def test_a_session_with_calls_of_every_outcome_replays_without_running_anything(self):
        calls = [ECHO, {"name": "fail"}, {"name": "nope"}, {"name": "echo"}, {"name": "echo", "raw_arguments": "{"}]
        await self.assert_replays(await recorded("hi", options_for([{"text": "a", "tool_calls": calls}, "Done."])))

    async def test_denied_calls_subagents_and_threads_replay(self):
        store = MemorySessionStore()
        result = await run(prompt="go", options=long_run(store))
        for session_id in store.list_sessions():
            await self.assert_replays(store.read_events(session_id))
        gate = PermissionGate(permission_mode="deny")
        options = options_for([{"tool_calls": [ECHO]}, "No."], permission_gate=gate)
        await self.assert_replays(await recorded("hi", options))
        self.assertEqual(result.stop_reason, "end")

    async def test_resumed_cut_and_failed_runs_replay(self):
        options = options_for(["one", {"text": "half", "error": {"message": "gone", "after": 2}}, "three", "four"])
        first = await run(prompt="1", options=options)
        for number in (2, 3):
            await run(prompt=str(number), options=replace(options, resume=first.session_id))
        await run(prompt="4", options=replace(options, resume=first.session_id, resume_max_events=3))
        await self.assert_replays(options.session_store.read_events(first.session_id))

    async def test_an_interrupted_run_and_what_followed_replay(self):
        store = MemorySessionStore()
        for stop_after in (4, 9, 14, 20, 26):
            events = query(prompt="go", options=long_run(store))
            for _ in range(stop_after):
                event = await anext(events)
            await events.aclose()
            session_id = (event.session_id if event.type == "system.init" else None) or store.list_sessions()[0]
            if store.read_metadata(session_id)["metadata"].get("parent_session_id"):
                session_id = store.read_metadata(session_id)["metadata"]["parent_session_id"]
            await run(prompt="and?", options=options_for(["ok"], session_store=store, resume=session_id))
            report = await replay_events(store.read_events(session_id))
            self.assertTrue(report.ok, (stop_after, report.error))

    async def test_a_rewind_to_after_a_call_whose_code_made_calls_replays(self):
        events = await recorded("hi", options_for([{"tool_calls": [ECHO]}, "Done."]))
        place = next(place for place, event in enumerate(events) if isinstance(event, ToolResult))
        inside = {"parent_tool_use_id": events[place].tool_use_id}
        made = [
            event
            for name in ("inner-1", "inner-2")
            for event in (
                ToolUse(name, "echo", {"text": name}, caller={"type": CODE_CALLER}, **inside),
                ToolResult(name, name, **inside),
            )
        ]
        store = MemorySessionStore()
        store.create_session(session_id="s")
        log = [*events[:place], *made, *events[place:]]
        store.append_events("s", [replace(event, seq=None) for event in log])
        rewind_session(store, "s", to_seq=place + len(made) + 1)
        again = options_for(["Again."], session_store=store, session="s")
        await self.assert_replays(await recorded(None, again))

    async def test_a_source_of_prompts_that_was_given_again_after_a_kill_replays(self):
        async def source():
            yield "one"
            yield "two"

        options = options_for(["1", "2", "1", "2"], request_id="r")
        events = await recorded(source(), options)
        place = [event.type for event in events].index("user.message")
        store = MemorySessionStore()
        store.create_session(session_id="s")
        store.append_events("s", [replace(event, seq=None) for event in events[: place + 1]])
        again = await recorded(source(), replace(options, session_store=store, session="s"))
        self.assertEqual([event.text for event in again if event.type == "user.message"], ["one", "two"])
        await self.assert_replays(again)

    async def test_steering_and_messages_of_hooks_replay(self):
        hooks = HookEngine(
            user_prompt_submit=[HookMatcher("ctx", hook=lambda p: HookDecision(additional_context="it is Monday"))],
            post_tool_use=[HookMatcher("note", hook=lambda p: HookDecision(additional_context="noted"))],
        )
        options = options_for([{"tool_calls": [ECHO]}, "Done."], hooks=hooks)
        async with AgentClient(options) as client:
            await client.send("start")
            async for event in client.receive():
                if event.type == "tool.use":
                    await client.send("faster")
        await self.assert_replays(options.session_store.read_events(client.session_id))

    async def test_messages_that_a_hook_rewrote_and_compactions_replay(self):
        def shorten(payload):
            return HookDecision(override_messages=[payload["messages"][0], {"role": "user", "content": "short"}])

        hooks = HookEngine(before_model_call=[HookMatcher("shorten", hook=shorten)], enable_message_rewrite_hooks=True)
        await self.assert_replays(await recorded("hi", options_for([{"tool_calls": [ECHO]}, "Done."], hooks=hooks)))

        async def prompts():
            for number in range(3):
                yield f"{number} " + "word " * 400

        long = "word " * 400
        options = options_for([long, long, "SUMMARY", "end"], max_context_tokens=2200)
        events = await recorded(prompts(), options)
        self.assertIn("session.compacted", [event.type for event in events])
        await self.assert_replays(events)

    async def test_rewound_and_compacted_sessions_replay_when_they_continue(self):
        options = options_for(["one", "two", "SUMMARY", "SUMMARY of it", "three", "four"])
        first = await run(prompt="1", options=options)
        resumed = replace(options, resume=first.session_id)
        await run(prompt="2", options=resumed)
        store = options.session_store
        store.append_event(first.session_id, SessionRewound(to_seq=first.events[-1].seq))
        for _ in range(2):
            self.assertTrue(await compact_session(options=resumed))
        await run(prompt="3", options=resumed)
        await run(prompt="4", options=replace(resumed, resume_max_events=4))
        await self.assert_replays(store.read_events(first.session_id))

    async def test_a_rewind_to_between_an_earlier_rewind_and_the_next_prompt_replays(self):
        options = options_for(["one", "two", "three", "four"])
        first = await run(prompt="1", options=options)
        resumed, store = replace(options, resume=first.session_id), options.session_store
        second = await run(prompt="2", options=resumed)
        store.append_event(first.session_id, SessionRewound(to_seq=first.events[-1].seq))
        await run(prompt="3", options=resumed)
        # Behind the rewind, which took the second turn back, and before the third prompt.
        store.append_event(first.session_id, SessionRewound(to_seq=second.events[-1].seq + 1))
        await run(prompt="4", options=resumed)
        await self.assert_replays(store.read_events(first.session_id))

    async def test_a_fork_that_cut_an_answer_from_its_message_replays_after_a_rewind(self):
        options = options_for(["one", "two"])
        first = await run(prompt="1", options=options)
        store = options.session_store
        cut = next(event.seq for event in first.events if event.type == "model.response")
        fork_id = fork_session(store, first.session_id, at_seq=cut)
        for to_seq in (1, store.last_seq(fork_id) + 1):  # to the first event, and to behind this rewind
            store.append_event(fork_id, SessionRewound(to_seq))
        await run(prompt="2", options=replace(options, resume=fork_id))
        await self.assert_replays(store.read_events(fork_id))

    async def test_calls_that_could_not_run_and_were_cancelled_before_anybody_saw_that_replay(self):
        ask = {"name": "echo", "arguments": {"text": "x"}}
        broken = [{"name": "nope"}, {"name": "echo", "raw_arguments": "{"}, {"name": "echo", "arguments": {"text": 1}}]
        options = options_for([{"tool_calls": [ask, *broken]}, "Fine."], permission_gate=PermissionGate(ask=["echo"]))
        parked = await submit("go", options).wait()
        self.assertEqual(parked.state, "waiting", parked.error)
        await run(prompt="never mind", options=replace(options, resume=parked.session_id))
        events = options.session_store.read_events(parked.session_id)
        outcomes = [event.outcome for event in events if isinstance(event, ToolResult)]
        self.assertEqual(outcomes, ["cancelled"] * 4)
        await self.assert_replays(events)

    async def test_runs_that_a_stop_hook_or_a_repair_sent_back_to_work_replay(self):
        answers = iter([HookDecision(block=True, block_reason="run the tests"), None])
        hooks = HookEngine(stop=[HookMatcher("tests", hook=lambda payload: next(answers))])
        await self.assert_replays(await recorded("hi", options_for(["Done.", "Really done."], hooks=hooks)))
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        options = options_for(["no json", '{"n": 1}'], output_schema=schema, output_form="text")
        events = await recorded("hi", options)
        self.assertEqual(events[-1].structured_output, {"n": 1})
        await self.assert_replays(events)

    async def test_a_changed_result_is_found_and_shown(self):
        events = await recorded("hi", options_for([{"tool_calls": [ECHO]}, "Done."]))
        changed = [replace(e, output="y") if isinstance(e, ToolResult) else e for e in events]
        for event in changed:
            if event.type == "model.request" and event.step == 2:
                original = event
        report = await replay_events([*changed[:-1], changed[-1]])
        self.assertFalse(report.ok)
        self.assertEqual(report.differences[0].seq, original.seq)

    async def test_a_live_tool_that_answers_differently_gives_a_readable_difference(self):
        from openagentic_sdk.tools.function import tool

        @tool(name="echo", effect="read")
        async def other(text: str) -> str:
            """Give the text back."""
            return text + "!"

        events = await recorded("hi", options_for([{"tool_calls": [ECHO]}, "Done."]))
        self.assertTrue((await replay_events(events, live_tools=[echo])).ok)
        report = await replay_events(events, live_tools=[other])
        self.assertIn('-   "content": "x"', report.error)
        self.assertIn('+   "content": "x!"', report.error)
        tolerant = await replay_events(events, live_tools=[other], strict=False)
        self.assertEqual((tolerant.compared, len(tolerant.differences), tolerant.error), (2, 1, None))

    async def test_a_request_with_other_tools_is_found(self):
        events = await recorded("hi", options_for(["Done."]))
        changed = [replace(e, tools=e.tools[:1]) if isinstance(e, ModelContext) else e for e in events]
        report = await replay_events(changed)
        self.assertFalse(report.ok)

    async def test_every_recorded_log_of_this_repository_replays(self):
        logs = sorted((ROOT / "fixtures" / "logs").glob("*/events.jsonl"))
        self.assertGreater(len(logs), 4)
        for log in logs:
            with self.subTest(log=log.parent.name):
                lines = [line for line in log.read_bytes().split(b"\n") if line.endswith(b"}")]
                events = [loads_event(line, strict=False) for line in lines]
                if any(event.type == "model.request" for event in events):
                    await self.assert_replays(events)

    @full_size
    async def test_generated_sessions_replay(self):
        rng = random.Random(20261121)
        for _ in range(sized(6, 15, 200)):
            turns = []
            for _ in range(rng.randint(0, 6)):
                calls = [rng.choice([ECHO, {"name": "fail"}, {"name": "nope"}]) for _ in range(rng.randint(1, 3))]
                turns.append({"text": rng.choice(["", "text", "\ud800"]), "tool_calls": calls})
            options = options_for([*turns, "Done."], max_steps=rng.choice([3, 50]))
            events = await recorded(rng.choice(["hi", "\udfff \u2028"]), options)
            if rng.random() < 0.5:
                again = replace(
                    options_for(["More."]), session_store=options.session_store, resume=events[0].session_id
                )
                events = await recorded("more", replace(again, resume_max_events=rng.choice([None, 2, 7])))
            await self.assert_replays(events)

    async def test_a_log_without_requests_is_reported_as_nothing_to_compare(self):
        report = await replay_events([])
        self.assertIn("nothing to compare", report.error)


if __name__ == "__main__":
    unittest.main()
