"""Arguments of other SDKs, and misspelled ones: the error names the replacement."""

import unittest
from collections.abc import Callable
from typing import Any

from openagentic_sdk import Agent, AgentDefinition, AgentResult, OpenAgenticOptions, OptionsError, PermissionGate
from openagentic_sdk.options import Limits

from .support import scripted

agent: Any = scripted("Hello.")
result: Any = AgentResult("Hello.", "s", [], None, None, "end")
# What somebody writes, the error, and the replacement that it names.
MISTAKES: tuple[tuple[Callable[..., Any], type[Exception], str], ...] = (
    (
        lambda: Agent("openai:gpt-4o", output_type=int),
        TypeError,
        "Agent() takes no argument 'output_type': use output=",
    ),
    (lambda: Agent("openai:gpt-4o", deps_type=int), TypeError, "use deps="),
    (lambda: Agent("openai:gpt-4o", system_prompt="Be kind."), TypeError, "use instructions="),
    (lambda: Agent("openai:gpt-4o", usage_limits=3), TypeError, "use max_steps=, max_tokens=, max_cost_usd="),
    (lambda: Agent("openai:gpt-4o", handoff_description="x"), TypeError, "use description="),
    (lambda: Agent("openai:gpt-4o", mcp_servers={}), TypeError, "write options=OpenAgenticOptions(mcp_servers=...)"),
    (lambda: Agent("openai:gpt-4o", output_validator=3), TypeError, "use Agent(output_validators=[...])"),
    (lambda: Agent("openai:gpt-4o", instrctions="x"), TypeError, "did you mean instructions?"),
    (lambda: agent.tool, AttributeError, "an Agent has no attribute 'tool': use Agent(tools=[function])"),
    (lambda: agent.run_stream, AttributeError, "async with agent.stream(...) as stream"),
    (lambda: agent.clone, AttributeError, "use dataclasses.replace(agent, ...)"),
    (
        lambda: result.final_output,
        AttributeError,
        "an AgentResult has no attribute 'final_output': use output",
    ),
    (lambda: result.to_input_list(), AttributeError, "use new_messages()"),
    (lambda: result.evnts, AttributeError, "did you mean events?"),
    (lambda: agent.run_snyc, AttributeError, "an Agent has no attribute 'run_snyc'"),
    (lambda: agent.run_sync("Hi.", usage_limits=3), OptionsError, "use max_steps="),
    (lambda: agent.run_sync("Hi.", request_limit=3), OptionsError, "use max_steps="),
    (lambda: agent.run_sync("Hi.", total_tokens_limit=3), OptionsError, "use max_tokens="),
    (lambda: agent.run_sync("Hi.", timeout=3), OptionsError, "use timeout_s="),
    (lambda: agent.run_sync("Hi.", context=3), OptionsError, "use deps="),
    (lambda: agent.run_sync("Hi.", session_id="s"), OptionsError, "use session="),
    (lambda: agent.run_sync("Hi.", redact=False), OptionsError, "write options=OpenAgenticOptions(redact=...)"),
    (lambda: agent.run_sync("Hi.", nonsense=1), OptionsError, "'nonsense': the settings are session, "),
    (lambda: OpenAgenticOptions(can_use_tool=print), TypeError, "use PermissionGate(approver=...)"),
    (lambda: OpenAgenticOptions(max_turns=3), TypeError, "use max_steps="),
    (lambda: OpenAgenticOptions(add_dirs=[]), TypeError, "use additional_dirs="),
    (lambda: OpenAgenticOptions(fork_session=True), TypeError, "use fork_session(store, session_id)"),
    (lambda: OpenAgenticOptions(temperature=0), TypeError, "use RequestSettings(temperature=...) of the provider"),
    (lambda: OpenAgenticOptions(permission_mode="plan"), TypeError, "PermissionGate(permission_mode=...)"),
    (lambda: OpenAgenticOptions(checkpointer=3), TypeError, "use session_store="),
    (lambda: OpenAgenticOptions(thread_id="s"), TypeError, "use session="),
    (lambda: OpenAgenticOptions(recursion_limit=3), TypeError, "use max_steps="),
    (lambda: OpenAgenticOptions(retry_policy=3), TypeError, "use retry="),
    (lambda: agent.run_sync("Hi.", input_guardrails=[]), OptionsError, "use Agent(input_guardrails=[...])"),
    (lambda: OpenAgenticOptions(max_stepz=3), TypeError, "did you mean max_steps?"),
    (lambda: Limits(max_turns=3), TypeError, "Limits() takes no argument 'max_turns': use max_steps="),
    (lambda: PermissionGate(can_use_tool=print), TypeError, "use PermissionGate(approver=...)"),
    (lambda: AgentDefinition("d", "p", disallowedTools=[]), TypeError, "did you mean disallowed_tools?"),
)


class Advice(unittest.TestCase):
    def test_each_word_of_another_sdk_is_answered_with_the_one_of_here(self) -> None:
        for number, (mistake, kind, said) in enumerate(MISTAKES, 1):
            with self.subTest(number=number, said=said), self.assertRaises(kind) as caught:
                mistake()
            self.assertIn(said, str(caught.exception))

    def test_a_word_like_no_other_gets_no_advice(self) -> None:
        with self.assertRaises(TypeError) as caught:
            Agent("openai:gpt-4o", zzz=3)  # type: ignore[call-arg]
        self.assertEqual(str(caught.exception), "Agent() takes no argument 'zzz'")
        self.assertFalse(hasattr(agent, "zzz"))

    def test_a_store_in_memory_that_each_run_makes_anew_goes_on_with_no_session(self) -> None:
        for settings in ({"session": "customer-17"}, {"session_store": "memory:", "session": "customer-17"}):
            with self.assertRaisesRegex(OptionsError, "without the session 'customer-17': create a MemorySessionStore"):
                scripted("Hello.", settings={"session_store": "memory:"}).run_sync("Hi.", **settings)
        self.assertEqual(scripted("Hello.", settings={"session_store": "memory:"}).run_sync("Hi.").output, "Hello.")

    def test_an_argument_too_many_stays_an_error_of_python(self) -> None:
        with self.assertRaises(TypeError):
            Agent("openai:gpt-4o", "Be kind.")  # type: ignore[misc]


if __name__ == "__main__":
    unittest.main()
