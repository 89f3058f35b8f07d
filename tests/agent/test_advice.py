"""Arguments of other SDKs, and misspelled ones: the error names the replacement."""

import asyncio
import re
import unittest
from collections.abc import Callable
from typing import Any

from openagentic_sdk import (
    Agent,
    AgentClient,
    AgentDefinition,
    AgentResult,
    EventLoopError,
    Flow,
    HookEngine,
    HookMatcher,
    MemorySessionStore,
    OpenAgenticOptions,
    OpenAICompatibleProvider,
    OpenAIProvider,
    OptionsError,
    PermissionGate,
    RunFailedError,
    RunResult,
    run_sync,
    submit,
    workflow,
)
from openagentic_sdk import tool as typed_tool
from openagentic_sdk.errors import ScriptError
from openagentic_sdk.evals import Suite, run_suite_sync
from openagentic_sdk.ground.settings import _WORDS
from openagentic_sdk.options import Limits, check_options
from openagentic_sdk.server import app
from openagentic_sdk.testing import ScriptedProvider, crash_everywhere
from openagentic_sdk.tools.write import WriteTool

from .support import Shop, look_up, scripted

tool: Any = typed_tool

agent: Any = scripted("Hello.")
result: Any = AgentResult("Hello.", "s", [], None, None, "end")
plain_result: Any = RunResult("Hello.", "s", [], None, None, "end")
# What somebody writes, the error, and the replacement that it names.
MISTAKES: tuple[tuple[Callable[..., Any], type[Exception], str], ...] = (
    (
        lambda: Agent("openai:gpt-4o", output_type=int),
        TypeError,
        "Agent() takes no argument 'output_type': use output=",
    ),
    (lambda: Agent("openai:gpt-4o", deps_type=int), TypeError, "use deps="),
    (lambda: Agent("openai:gpt-4o", system_prompt="Be kind."), TypeError, "use instructions="),
    (lambda: Agent("openai:gpt-4o", usage_limits=3), TypeError, "use run(max_steps=..., max_tokens=..., max_cost"),
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
    (
        lambda: scripted("Hi.", output_validators=[lambda ctx, output: None]).run_sync("Hi."),
        RunFailedError,
        "the output validator <lambda> returned None: return the output",
    ),
    (
        lambda: plain_result.output,
        AttributeError,
        "a RunResult has no attribute 'output': use final_text, or structured_ou",
    ),
    (lambda: plain_result.messages, AttributeError, "use rebuild_messages(result.events)"),
    (lambda: plain_result.stop_reson, AttributeError, "did you mean stop_reason?"),
    (lambda: OpenAIProvider(temperature=1), TypeError, "use settings=RequestSettings(temperature=...)"),
    (lambda: OpenAIProvider(timeout=1), TypeError, "use settings=RequestSettings(timeouts=...)"),
    (
        lambda: OpenAIProvider(model="gpt-4o"),
        TypeError,
        "use OpenAgenticOptions(model=...), or Agent(provider, options=...)",
    ),
    (lambda: result.evnts, AttributeError, "did you mean events?"),
    (lambda: agent.run_snyc, AttributeError, "an Agent has no attribute 'run_snyc'"),
    (lambda: Agent("openai:gpt-4o", max_turns=3), TypeError, "write options=OpenAgenticOptions(max_steps=...)"),
    (lambda: Agent("openai:gpt-4o", context_type=int), TypeError, "use deps="),
    (lambda: agent.run_sync("Hi.", usage_limits=3), OptionsError, "use max_steps="),
    (lambda: agent.run_sync("Hi.", output_type=int), OptionsError, "use Agent(output=...)"),
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
    (lambda: OpenAgenticOptions(output_type=int), TypeError, "use output_schema=, or Agent(output=...)"),
    (lambda: OpenAgenticOptions(deps_type=int), TypeError, "use Agent(deps=...)"),
    (lambda: OpenAgenticOptions(mode="plan"), TypeError, "use permission_gate=PermissionGate(permission_mode=...)"),
    (lambda: agent.run_sync("Hi.", input_guardrails=[]), OptionsError, "use Agent(input_guardrails=[...])"),
    (lambda: OpenAgenticOptions(max_stepz=3), TypeError, "did you mean max_steps?"),
    (lambda: Limits(max_turns=3), TypeError, "Limits() takes no argument 'max_turns': use max_steps="),
    (lambda: PermissionGate(can_use_tool=print), TypeError, "use approver="),
    (lambda: AgentDefinition("d", system_prompt="p"), TypeError, "use prompt="),
    (lambda: AgentDefinition("d", "p", maxSteps=3), TypeError, "use max_steps="),
    (lambda: HookEngine(PreToolUse=[]), TypeError, "HookEngine() takes no argument 'PreToolUse': use pre_tool_use="),
    (lambda: HookMatcher("h", matcher="Bash"), TypeError, "use tool_name_pattern="),
    (lambda: HookMatcher("h", hooks=[print]), TypeError, "use hook=, with a HookMatcher for each hook"),
    (lambda: tool(needs_approval=True), TypeError, "use Agent(needs_approval=[...]), or PermissionGate(ask=[...])"),
    (lambda: tool(name_override="x"), TypeError, "tool() takes no argument 'name_override': use name="),
    (lambda: tool("add", "Add two numbers.", {"a": float}), OptionsError, "write @tool(name=..., description=...)"),
    (lambda: tool(effect="reads")(look_up), OptionsError, "effect must be one of 'read', 'idempotent', 'unsafe'"),
    (lambda: AgentDefinition("d", "p", disallowedTools=[]), TypeError, "use disallowed_tools="),
)


@workflow
async def greeting(flow: Flow, name: str) -> str:
    """Greet somebody."""
    return f"Hello {name}."


def hooked(matcher: HookMatcher) -> OpenAgenticOptions:
    """The options of a run with this hook."""
    return OpenAgenticOptions(provider=ScriptedProvider([]), hooks=HookEngine(pre_tool_use=[matcher]))


def changed_when_closed() -> None:
    """Change the model of a closed client."""
    client = AgentClient(
        OpenAgenticOptions(provider=ScriptedProvider([]), model="m", session_store=MemorySessionStore())
    )
    asyncio.run(client.close())
    client.set_model("another")


def submitted(options: Any) -> Any:
    """What `submit` with these options returns."""

    async def submit_it() -> Any:
        return submit("Hi.", options)

    return asyncio.run(submit_it())


# Values of the wrong kind: the error names the argument, and what it takes.
WRONG_VALUES: tuple[tuple[Callable[..., Any], str], ...] = (
    (lambda: scripted(tools=None), "tools must be a list of functions and tools, not None"),
    (lambda: scripted(tools=[WriteTool]), "tools contains the class WriteTool: write WriteTool()"),
    (lambda: scripted(tools=[scripted(name="helper")]), "write agent.as_tool()"),
    (lambda: scripted(tools=[tool(name="look up")(look_up)]), "no permission rule can name the tool 'look up'"),
    (
        lambda: scripted(hooks={"pre_tool_use": look_up}),
        "hooks['pre_tool_use'] must be a list of functions of (ctx, pay",
    ),
    (lambda: scripted(hooks={"PreToolUse": [look_up]}), "unknown point 'PreToolUse': the points are session_start, "),
    (
        lambda: scripted(hooks=[look_up]),
        "hooks must be a HookEngine(...), or a mapping of points to lists of functions",
    ),
    (lambda: scripted(handoffs=scripted(name="b")), "handoffs must be a list of agents, not Agent("),
    (lambda: scripted(handoffs=[scripted()]), "must be an Agent whose name is a valid identifier"),
    (lambda: scripted(deps=Shop()), "deps must be the class of the value that run(deps=...) gets, not Shop("),
    (lambda: scripted(name=3), "name must be a string that is not empty, or None, not 3"),
    (lambda: Agent("m", options={}), "options must be OpenAgenticOptions(...), not {}"),  # type: ignore[arg-type]
    (lambda: agent.run_sync("Hi.", model=3), "model must be a name such as"),
    (lambda: AgentClient(None), "options must be OpenAgenticOptions(...), not None"),  # type: ignore[arg-type]
    (
        lambda: check_options(OpenAgenticOptions(tools=[look_up])),
        "write @tool above the function, or pass it to an Agent",
    ),
    (
        lambda: check_options(OpenAgenticOptions(tools=["Read"])),
        "without this setting, the built-in tools are available",
    ),
    (
        lambda: check_options(hooked(HookMatcher("h", "Bash"))),
        "hooks.pre_tool_use['h'].hook must be a callable, not None",
    ),
    (
        lambda: OpenAICompatibleProvider(base_url=""),
        "base_url must be an address, such as http://127.0.0.1:8000/v1, not ''",
    ),
    (lambda: OpenAIProvider(api_key=3), "api_key must be text or a callable, not a value of type int"),
    (lambda: greeting.run_sync("Ada", options={}), "options must be OpenAgenticOptions(...), not {}"),
    (lambda: run_suite_sync(Suite(name="s", cases=[]), store="runs"), "not a string: pass it to open_store()"),  # type: ignore[arg-type]
    (lambda: app([agent]), "agents must be a mapping of names to agents, such as {'tea': agent}, not [Agent("),  # type: ignore[arg-type]
    (lambda: app({"tea": agent}, auth=3), "auth must be a token, or a function from the scope to a Principal, not 3"),  # type: ignore[arg-type]
    (
        lambda: crash_everywhere(lambda life: asyncio.sleep(0)),
        "nothing can be killed: build stored no event in life.store",
    ),
    (
        lambda: agent.run_sync([{"role": "user", "content": "Hi."}]),
        "as Agent.run(message_history=...)",
    ),
    (
        lambda: AgentClient(hooked(HookMatcher("h", hook=print))).set_model(""),
        "model must be a string that is not empty",
    ),
    (lambda: changed_when_closed(), "this client is closed: create another one"),
    (lambda: run_sync(prompt="Hi.", options=None), "options must be OpenAgenticOptions(...), not None"),  # type: ignore[arg-type]
    (lambda: run_sync(prompt="Hi.", options=agent), "options must be OpenAgenticOptions(...), not Agent("),
    (lambda: submitted(None), "options must be OpenAgenticOptions(...), not None"),
    (lambda: check_options(OpenAgenticOptions(tools=[WriteTool])), "write WriteTool(), an object of the class"),
)


class Advice(unittest.TestCase):
    def test_the_model_is_not_asked_to_repair_a_validator_without_a_return(self) -> None:
        agent = scripted("1", "2", output=int, output_validators=[lambda ctx, output: None])
        with self.assertRaises(RunFailedError) as caught:
            agent.run_sync("Hi.")
        self.assertEqual(caught.exception.result.steps, 1)

    def test_each_word_of_another_sdk_is_answered_with_the_one_of_here(self) -> None:
        for number, (mistake, kind, said) in enumerate(MISTAKES, 1):
            with self.subTest(number=number, said=said), self.assertRaises(kind) as caught:
                mistake()
            self.assertIn(said, str(caught.exception))

    def test_a_value_of_the_wrong_kind_is_refused_where_it_is_written(self) -> None:
        for number, (mistake, said) in enumerate(WRONG_VALUES, 1):
            with self.subTest(number=number, said=said), self.assertRaises(OptionsError) as caught:
                mistake()
            self.assertIn(said, str(caught.exception))

    def test_advice_names_arguments_that_exist(self) -> None:
        for cls in (Agent, OpenAgenticOptions, AgentDefinition, PermissionGate):
            names = cls.__dataclass_fields__
            for word in _WORDS.keys() - names.keys():
                advised = re.match(r": use (\w+)=", cls.advice(word))
                with self.subTest(cls=cls.__name__, word=word):
                    self.assertTrue(advised is None or advised[1] in names, cls.advice(word))

    def test_a_synchronous_call_in_a_coroutine_names_what_to_await(self) -> None:
        async def in_a_coroutine() -> None:
            agent.run_sync("Hi.")

        with self.assertRaisesRegex(EventLoopError, r"write `await agent\.run\(\.\.\.\)`"):
            asyncio.run(in_a_coroutine())

    def test_a_script_that_is_not_a_list_is_refused(self) -> None:
        script: Any
        for script in (None, 3, "Hello.", {"text": "Hello."}):
            with self.assertRaisesRegex(ScriptError, "a script must be a list of turns"):
                ScriptedProvider(script)

    def test_a_word_like_no_other_gets_no_advice(self) -> None:
        with self.assertRaises(TypeError) as caught:
            Agent("openai:gpt-4o", zzz=3)  # type: ignore[call-arg]
        self.assertEqual(str(caught.exception), "Agent() takes no argument 'zzz'")
        self.assertFalse(hasattr(agent, "zzz"))

    def test_a_memory_store_that_each_run_creates_continues_no_session(self) -> None:
        for settings in ({"session": "customer-17"}, {"session_store": "memory:", "session": "customer-17"}):
            with self.assertRaisesRegex(OptionsError, "without the session 'customer-17': create a MemorySessionStore"):
                scripted("Hello.", settings={"session_store": "memory:"}).run_sync("Hi.", **settings)
        self.assertEqual(scripted("Hello.", settings={"session_store": "memory:"}).run_sync("Hi.").output, "Hello.")

    def test_an_argument_too_many_stays_an_error_of_python(self) -> None:
        with self.assertRaises(TypeError):
            Agent("openai:gpt-4o", "Be kind.")  # type: ignore[misc]


if __name__ == "__main__":
    unittest.main()
