"""Values of tools, hooks and models that the log cannot contain: the model is told, and the run goes on."""

import json
import unittest
from typing import Any

from openagentic_sdk import Flow, HookDecision, HookMatcher, MemorySessionStore, OpenAgenticOptions, run, tool, workflow
from openagentic_sdk.errors import RunFailedError
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.kernel.tool import ToolOutput
from openagentic_sdk.providers.calls import MAX_ARGUMENT_VALUES, read_arguments
from openagentic_sdk.serialization import MAX_DEPTH
from openagentic_sdk.testing import ScriptedProvider


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


VALUES = {
    "a float that is no number": float("nan"),
    "a list one level too deep": nested(MAX_DEPTH),
    "a list as deep as Python can encode": nested(900),
    "an object": object(),
    "bytes": b"x",
    "a dict whose keys are tuples": {(1,): 2},
    "a whole number of 5,000 digits": 10**5000,
}


class Unwritable(unittest.IsolatedAsyncioTestCase):
    async def result_of(self, output: Any = "fine", **hooks: Any) -> Any:
        """The result of one call in a run that must come to its own end."""
        ran = list[int]()

        @tool
        def give(n: int = 1) -> Any:
            "Give."
            ran.append(n)
            return output

        points = {point: [HookMatcher(name="h", tool_name_pattern="*", hook=hook)] for point, hook in hooks.items()}
        options = OpenAgenticOptions(
            provider=ScriptedProvider([{"tool_calls": [{"name": "give", "arguments": {}}]}, "Done."]),
            model="scripted",
            tools=[give],
            allowed_tools=["give"],
            hooks=HookEngine(**points),
            session_store=MemorySessionStore(),
        )
        result = await run(prompt="x", options=options)
        self.assertEqual((result.stop_reason, result.final_text), ("end", "Done."), result.events[-1])
        (ended,) = [event for event in result.events if event.type == "tool.result"]
        self.assertEqual(len(ran), 0 if ended.outcome == "denied" else 1)
        return ended

    async def test_an_output_becomes_text_or_the_error_of_its_call(self) -> None:
        for words, value in VALUES.items():
            with self.subTest(words):
                self.assertIn((await self.result_of(value)).outcome, ("ok", "error"))

    async def test_metadata_and_attachments_are_the_error_of_their_call(self) -> None:
        for words, value in VALUES.items():
            attachments = [{"type": "text", "text": value}]
            for output in (ToolOutput("x", meta={"key": value}), ToolOutput("x", attachments=attachments)):
                with self.subTest(words, meta=output.meta is not None):
                    result = await self.result_of(output)
                    self.assertEqual(result.error_message is not None, result.outcome == "error")
        message = (await self.result_of(ToolOutput("x", meta={"key": nested(MAX_DEPTH)}))).error_message
        self.assertIn("the call ran, but its output's meta must be", message)

    async def test_an_output_of_a_hook_becomes_text(self) -> None:
        for words, value in VALUES.items():
            with self.subTest(words):
                hook = HookDecision(override_tool_output=value)
                result = await self.result_of(post_tool_use=lambda _, hook=hook: hook)
                self.assertEqual(result.outcome, "ok")
                self.assertIn("not a JSON value", result.output)

    async def test_an_input_of_a_hook_blocks_the_call(self) -> None:
        for words, value in VALUES.items():
            with self.subTest(words):
                hook = HookDecision(override_tool_input={"n": value})
                result = await self.result_of(pre_tool_use=lambda _, hook=hook: hook)
                self.assertEqual(result.outcome, "denied")
                self.assertIn("returned an override_tool_input that is not a JSON object", result.error_message)

    async def test_a_structured_answer_is_requested_again(self) -> None:
        deep = f'{{"x": {"[" * MAX_DEPTH}{"]" * MAX_DEPTH}}}'
        for bad in (deep, '{"x": 1e999}'):
            store = MemorySessionStore()
            options = OpenAgenticOptions(
                provider=ScriptedProvider([bad, '{"x": 1}']),
                model="m",
                output_schema={"type": "object"},
                session_store=store,
            )
            result = await run(prompt="x", options=options)
            self.assertEqual((result.stop_reason, result.structured_output), ("end", {"x": 1}))
            self.assertEqual(store.read_events(result.session_id)[-1].type, "result")

    async def test_the_value_of_a_workflow_fails_it_in_its_log(self) -> None:
        @workflow
        async def deep(flow: Flow) -> list[Any]:
            return nested(MAX_DEPTH)

        store = MemorySessionStore()
        options = OpenAgenticOptions(provider=ScriptedProvider([]), model="scripted", session_store=store)
        with self.assertRaisesRegex(RunFailedError, "cannot be written as JSON: it is nested more than"):
            await deep.run(options=options, session="deep")
        last = store.read_events("deep")[-1]
        self.assertEqual((last.type, getattr(last, "stop_reason", None)), ("result", "error"))

    def test_arguments_that_are_nested_too_deeply_or_too_many_stay_text(self) -> None:
        for depth in (MAX_DEPTH, 900, 100_000):
            text = f'{{"x": {"[" * depth}{"]" * depth}}}'
            self.assertEqual(read_arguments(text), ({}, text))
        self.assertEqual(read_arguments('{"x": [[1]]}'), ({"x": [[1]]}, None))
        many = json.dumps({"x": [0] * MAX_ARGUMENT_VALUES})
        self.assertEqual(read_arguments(many), ({}, many))
        long = {"x": "," * (2 * MAX_ARGUMENT_VALUES)}
        self.assertEqual(read_arguments(json.dumps(long)), (long, None))


if __name__ == "__main__":
    unittest.main()
