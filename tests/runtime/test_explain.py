"""`explain`: the sources of each piece of a request."""

import unittest
from dataclasses import replace

from openagentic_sdk.api import compact_session, run
from openagentic_sdk.errors import OptionsError
from openagentic_sdk.events import ModelContext, ModelRequest
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.parts.record.folds.audit import RequestDigest
from openagentic_sdk.parts.record.folds.explain import explain_step, find_misses

from .support import echo, options_for

ECHO = {"name": "echo", "arguments": {"text": "x"}}


class ExplainTest(unittest.IsolatedAsyncioTestCase):
    async def explained(self, step, turns, **changes):
        options = options_for(turns, **changes)
        result = await run(prompt="hi", options=options)
        return explain_step(options.session_store.read_events(result.session_id), step)

    async def test_every_message_names_the_events_that_it_is_made_of(self):
        step = await self.explained(2, [{"text": "Look.", "tool_calls": [ECHO]}, "Done."])
        self.assertTrue(step.matches)
        self.assertEqual(
            [part.origin for part in step.messages], ["system prompt", "prompt", "answer", "result of echo"]
        )
        self.assertEqual([part.first_seq for part in step.messages[1:]], [2, 6, 10])
        self.assertEqual((step.prefix.kept_messages, step.prefix.broke_at), (2, None))
        self.assertEqual([part.kind for part in step.system], ["base"])

    async def test_an_explanation_holds_the_whole_request_whose_digest_was_recorded(self):
        options = options_for([{"text": "Look.", "tool_calls": [ECHO]}, "Done."])
        events = options.session_store.read_events((await run(prompt="hi", options=options)).session_id)
        asked = [event for event in events if isinstance(event, ModelRequest)]
        for step in (1, 2):
            request = explain_step(events, step).request
            found = RequestDigest().of(request["model"], request["messages"], request["tools"])
            self.assertEqual(found, asked[step - 1].request_sha256)
            self.assertEqual(list(request["messages"]), options.provider.requests[step - 1]["messages"])

    async def test_a_rewriting_hook_is_named(self):
        rewrite = HookMatcher(
            "r", hook=lambda p: HookDecision(override_messages=[p["messages"][0], {"role": "user", "content": "!"}])
        )
        hooks = HookEngine(before_model_call=[rewrite], enable_message_rewrite_hooks=True)
        step = await self.explained(1, ["Done."], hooks=hooks)
        self.assertTrue(step.rewritten_by_hook)
        self.assertEqual(step.messages[1].origin, "hook")

    async def test_a_broken_prefix_is_reported_with_its_place_and_reason(self):
        options = options_for(["one", "two"])
        first = await run(prompt="hi", options=options)
        again = replace(options, resume=first.session_id, model="scripted-2", system_prompt="Another.")
        await run(prompt="more", options=again)
        events = options.session_store.read_events(first.session_id)
        prefix = explain_step(events, 2).prefix
        context = [event for event in events if isinstance(event, ModelContext)][-1]
        why = f"model scripted-1 became scripted-2; another system prompt (event {context.seq})"
        self.assertEqual((prefix.reason, prefix.seq, prefix.same_bytes), (why, context.seq, 0))

    async def test_every_request_that_missed_the_cache_names_its_bytes_and_its_event(self):
        spoken = [{"text": "Look.", "tool_calls": [ECHO]}, "Done.", "Summary.", "two", "three"]
        options = options_for(spoken)
        first = await run(prompt="hi", options=options)
        again = replace(options, resume=first.session_id)
        await compact_session(options=again)
        await run(prompt="more", options=again)
        await run(prompt="more", options=replace(again, tools=[echo]))
        events = options.session_store.read_events(first.session_id)
        kinds = {event.seq: event.type for event in events}
        missed = [(request.step, report) for request, report in find_misses(events)]
        self.assertEqual(
            [(step, kinds[report.seq], report.kept_messages) for step, report in missed],
            [(3, "session.compacted", 1), (4, "model.context", 0)],
        )
        self.assertIn("tools: -fail", missed[1][1].reason)
        for _, report in missed:
            self.assertLess(0, report.same_bytes)
            self.assertLess(report.same_bytes, report.previous_bytes)

    async def test_the_endpoints_cache_hits_are_reported_with_the_time_between_requests(self):
        usage = {"input_tokens": 1200, "cached_input_tokens": 900, "output_tokens": 3}
        step = await self.explained(2, [{"text": "Look.", "tool_calls": [ECHO]}, {"text": "Done.", "usage": usage}])
        self.assertEqual((step.prefix.cached_tokens, step.prefix.input_tokens), (900, 1200))
        self.assertEqual(step.prefix.same_bytes, step.prefix.previous_bytes)
        self.assertGreaterEqual(step.prefix.after_s, 0)

    async def test_a_step_that_is_not_there_is_refused(self):
        with self.assertRaisesRegex(OptionsError, "its steps are 1 to 1"):
            await self.explained(9, ["Done."])

    async def test_slices_whose_offsets_are_not_numbers_count_as_absent(self):
        options = options_for(["Done."])
        events = options.session_store.read_events((await run(prompt="hi", options=options)).session_id)
        whole = [part.chars for part in explain_step(events, 1).system]
        for start, end in (("0", "4"), (None, 4), (0, 1.5), ([], {})):
            wrong = [{"kind": "base", "source": "", "start": start, "end": end}, {"start": 0}]
            for parts, chars in ((wrong, whole), ([*wrong, {"start": 0, "end": 3}], [3])):
                with self.subTest(parts=parts):
                    changed = [replace(e, parts=parts) if isinstance(e, ModelContext) else e for e in events]
                    self.assertEqual([part.chars for part in explain_step(changed, 1).system], chars)


if __name__ == "__main__":
    unittest.main()
