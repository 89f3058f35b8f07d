"""Final answers that must match a schema."""

import unittest
from dataclasses import dataclass

from openagentic_sdk.api import run
from openagentic_sdk.client import AgentClient
from openagentic_sdk.errors import OptionsError
from openagentic_sdk.testing import crash_everywhere
from openagentic_sdk.testing.scripted import ScriptedProvider
from tests.size import full_size

from .support import assert_closed, options_for


@dataclass
class Verdict:
    """The answer type of these tests."""

    ready: bool
    reason: str = ""


class Formatting(ScriptedProvider):
    """A scripted model that supports response formats."""

    asked = None

    def with_response_format(self, response_format):
        self.asked = response_format
        return self


GOOD = '{"ready": true, "reason": "tested"}'


class FinalAnswerTest(unittest.IsolatedAsyncioTestCase):
    async def answer(self, turns, **changes):
        options = options_for(turns, output_schema=Verdict, **changes)
        result = await run(prompt="ready?", options=options)
        assert_closed(self, options.session_store, result.session_id)
        return result

    async def test_an_endpoint_with_a_response_format_is_asked_by_it(self):
        provider = Formatting([GOOD])
        result = await self.answer(provider)
        self.assertEqual(result.structured_output, {"ready": True, "reason": "tested"})
        self.assertEqual(provider.asked["type"], "json_schema")
        self.assertEqual(provider.requests[0]["tools"][-1]["function"]["name"], "fail", "no tool is added")

    async def test_other_endpoints_get_a_last_tool_and_its_call_ends_the_run(self):
        call = {"tool_calls": [{"name": "final_answer", "arguments": {"ready": True}}]}
        provider = ScriptedProvider(
            [{"tool_calls": [{"name": "echo", "arguments": {"text": "x"}}]}, call, "never asked"]
        )
        result = await self.answer(provider)
        self.assertEqual((result.structured_output, result.steps), ({"ready": True}, 2))
        self.assertIn("final_answer", provider.requests[0]["messages"][0]["content"])

    async def test_a_call_that_does_not_fit_goes_back_to_the_model_with_the_path(self):
        bad = {"tool_calls": [{"name": "final_answer", "arguments": {"ready": "yes"}}]}
        good = {
            "tool_calls": [{"name": "final_answer", "arguments": {"ready": True}}],
            "expect": {"tool_results": {"final_answer": "ready must be a boolean"}},
        }
        self.assertEqual((await self.answer([bad, good])).structured_output, {"ready": True})

    async def test_text_around_the_json_is_tolerated_and_an_answer_without_it_is_repaired(self):
        fenced = f"Here it is:\n```json\n{GOOD}\n```"
        provider = ScriptedProvider(["It is ready.", {"text": fenced, "expect": {"last": "cannot be used"}}])
        result = await self.answer(provider, output_form="text")
        self.assertEqual(result.structured_output["ready"], True)
        self.assertEqual([e.origin for e in result.events if e.type == "user.message"], ["user", "repair"])

    async def test_repairs_are_bounded_and_the_failure_is_clear(self):
        result = await self.answer(["no", "no", "no", "never asked"], output_form="text", output_repair_turns=2)
        self.assertEqual((result.stop_reason, result.error_type), ("error", "StructuredOutputError"))
        self.assertIn("after 2 repair turns", result.error_message)
        self.assertIsNone(result.structured_output)

    async def test_a_value_that_is_not_an_object_works_too(self):
        options = options_for(["[1, 2]"], output_schema=list[int], output_form="text")
        self.assertEqual((await run(prompt="numbers", options=options)).structured_output, [1, 2])

    async def test_a_form_that_the_endpoint_lacks_is_refused_at_once(self):
        with self.assertRaisesRegex(OptionsError, "does not support response formats"):
            await self.answer([], output_form="response_format")

    async def test_a_session_whose_answer_a_call_gave_has_nothing_to_continue(self):
        provider = ScriptedProvider([{"tool_calls": [{"name": "final_answer", "arguments": {"ready": True}}]}, "more"])
        options = options_for(provider, output_schema=Verdict, session="s")
        await run(prompt="ready?", options=options)
        await run(prompt=None, options=options)
        self.assertEqual(len(provider.requests), 1)

    async def test_a_message_that_arrives_while_a_call_gives_the_answer_is_still_answered(self):
        turns = [{"tool_calls": [{"name": "final_answer", "arguments": {"ready": ready}}]} for ready in (True, False)]
        async with AgentClient(options_for(turns, output_schema=Verdict)) as client:
            await client.send("ready?")
            results = []
            async for event in client.receive():
                if event.type == "tool.use" and not results:
                    await client.send("Look again.")
                results += [event] if event.type in ("tool.result", "result") else []
        self.assertEqual([event.type for event in results], ["tool.result", "tool.result", "result"])
        self.assertEqual(results[-1].structured_output, {"ready": False})


class KilledTest(unittest.TestCase):
    @full_size
    def test_an_answer_that_a_call_gave_is_not_asked_for_again_after_a_kill(self):
        def build(life):
            call = {"text": "Here it is.", "tool_calls": [{"name": "final_answer", "arguments": {"ready": True}}]}
            options = options_for(
                ScriptedProvider([call], resumable=True),
                output_schema=Verdict,
                session_store=life.store,
                session="s",
                request_id="r",
            )
            return run(prompt="ready?", options=options)

        crash_everywhere(build)


if __name__ == "__main__":
    unittest.main()
