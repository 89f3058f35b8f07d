"""What a request was made of."""

import unittest
from dataclasses import replace

from openagentic_sdk.api import run
from openagentic_sdk.errors import OptionsError
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.sessions.folds.explain import explain_step

from .support import options_for

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

    async def test_a_rewriting_hook_is_named(self):
        rewrite = HookMatcher(
            "r", hook=lambda p: HookDecision(override_messages=[p["messages"][0], {"role": "user", "content": "!"}])
        )
        hooks = HookEngine(before_model_call=[rewrite], enable_message_rewrite_hooks=True)
        step = await self.explained(1, ["Done."], hooks=hooks)
        self.assertTrue(step.rewritten_by_hook)
        self.assertEqual(step.messages[1].origin, "hook")

    async def test_a_broken_prefix_says_where_and_why(self):
        options = options_for(["one", "two"])
        first = await run(prompt="hi", options=options)
        again = replace(options, resume=first.session_id, model="scripted-2", system_prompt="Another.")
        await run(prompt="more", options=again)
        events = options.session_store.read_events(first.session_id)
        self.assertEqual(explain_step(events, 2).prefix.reason, "the model changed from scripted-1 to scripted-2")

    async def test_a_step_that_is_not_there_is_refused(self):
        with self.assertRaisesRegex(OptionsError, "its steps are 1 to 1"):
            await self.explained(9, ["Done."])


if __name__ == "__main__":
    unittest.main()
