"""Stop hooks and other judges of an answer: which of them is final, and what the result reports."""

import unittest

from openagentic_sdk.api import run
from openagentic_sdk.errors import RunFailedError
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.providers.base import cut_by
from openagentic_sdk.runs.background import submit
from openagentic_sdk.serialization import dumps_event, loads_event

from .support import assert_closed, options_for

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def final(n):
    return {"tool_calls": [{"name": "final_answer", "arguments": {"n": n}}]}


def judge(*decisions):
    """Stop hooks that return these decisions in turn, and the list of answers they judged."""
    seen, left = [], list(decisions)

    def hook(payload):
        seen.append(payload["last_assistant_message"])
        return left.pop(0) if left else None

    return HookEngine(stop=[HookMatcher("judge", hook=hook)]), seen


class StopHooksTest(unittest.IsolatedAsyncioTestCase):
    async def answer(self, turns, **changes):
        options = options_for(turns, **changes)
        result = await run(prompt="How many?", options=options)
        assert_closed(self, options.session_store, result.session_id)
        return result

    async def test_a_stop_hook_sees_the_answer_of_the_final_tool_and_may_send_it_back(self):
        hooks, seen = judge(HookDecision(block=True, block_reason="Count again."))
        better = {**final(2), "expect": {"contains": "Count again."}}
        result = await self.answer([final(1), better], output_schema=SCHEMA, output_form="tool", hooks=hooks)
        self.assertEqual((result.stop_reason, result.structured_output), ("end", {"n": 2}))
        self.assertEqual(seen, ['{"n":1}', '{"n":2}'])

    async def test_a_stop_hook_that_ends_the_run_refuses_the_answer_in_every_form(self):
        refuse = HookDecision(stops=True, block_reason="not good enough")
        for turns, more in (
            (["Secret."], {}),
            ([final(1)], {"output_schema": SCHEMA, "output_form": "tool"}),
            (['{"n": 1}'], {"output_schema": SCHEMA, "output_form": "text"}),
        ):
            hooks, seen = judge(refuse)
            with self.subTest(turns=turns):
                result = await self.answer(turns, hooks=hooks, **more)
                self.assertEqual((result.stop_reason, result.ok), ("blocked:stop", False))
                self.assertEqual(result.error_message, "not good enough")
                self.assertEqual((result.final_text, result.structured_output), ("", None))
                self.assertEqual(len(seen), 1)

    async def test_a_refused_text_is_not_the_final_text_whatever_ends_the_run_then(self):
        hooks, _ = judge(*[HookDecision(block=True, block_reason="Again.")] * 9)
        result = await self.answer(["One.", "Two."], hooks=hooks, max_steps=2)
        self.assertEqual((result.stop_reason, result.final_text), ("max_steps", ""))
        refuse = HookMatcher("judge", hook=lambda payload: HookDecision(block=True, block_reason="no"))
        result = await self.answer(["One."], hooks=HookEngine(after_model_call=[refuse]))
        self.assertEqual((result.stop_reason, result.final_text), ("blocked:after_model_call", ""))

    async def test_a_hook_after_the_final_tool_can_stop_the_run(self):
        stop = HookMatcher("stop", hook=lambda payload: HookDecision(stops=True, block_reason="enough"))
        hooks = HookEngine(post_tool_use=[stop])
        result = await self.answer([final(1)], output_schema=SCHEMA, output_form="tool", hooks=hooks)
        self.assertEqual((result.stop_reason, result.structured_output), ("blocked:post_tool_use", None))


class CutAnswersTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_truncated_text_is_marked_in_every_result(self):
        for reason, word in (
            ("length", "length"),
            ("max_tokens", "length"),
            ("model_context_window_exceeded", "length"),
            ("content_filter", "content_filter"),
            ("SAFETY", "content_filter"),
            ("error_of_its_own", "error_of_its_own"),
        ):
            with self.subTest(reason):
                turns = [{"text": "The half of", "finish_reason": reason}]
                options = options_for(turns)
                result = await run(prompt="go", options=options)
                self.assertEqual((result.stop_reason, result.cut_by, result.ok), ("end", word, False))
                self.assertIn(word, result.error_message)
                self.assertEqual(result.final_text, "The half of")
                event = options.session_store.read_events(result.session_id)[-1]
                self.assertEqual(loads_event(dumps_event(event)).cut_by, word)
                done = await submit("go", options_for(turns)).wait()
                self.assertEqual((done.success, done.data), (False, "The half of"))
                self.assertIn(word, done.error)
                with self.assertRaises(RunFailedError):
                    await run(prompt="go", options=options_for(turns), raise_on_error=True)

    async def test_only_the_last_answer_of_a_run_counts(self):
        call = {"tool_calls": [{"name": "echo", "arguments": {"text": "x"}}], "finish_reason": "length"}
        result = await run(prompt="go", options=options_for([call, "Done."]))
        self.assertEqual((result.cut_by, result.ok), (None, True))
        again = await run(prompt="go", options=options_for(["More."], max_steps=1))
        self.assertEqual((again.cut_by, again.error_message), (None, None))

    def test_whole_answers_have_no_word_for_their_cut(self):
        for reason in (None, "stop", "tool_calls", "end_turn", "eos", "STOP", "completed"):
            self.assertIsNone(cut_by(reason), reason)


if __name__ == "__main__":
    unittest.main()
