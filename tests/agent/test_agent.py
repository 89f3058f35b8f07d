"""Runs of a typed agent: types are kept from input to output, and each failure is a typed error."""

import asyncio
import json
import os
import threading
import unittest
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import IsolatedAsyncioTestCase

from openagentic_sdk import (
    Agent,
    AgentDefinition,
    Fallback,
    HookDecision,
    OpenAgenticOptions,
    OpenAIProvider,
    PermissionGate,
    RunFailedError,
    ToolContext,
    run,
    run_sync,
    submit,
    tool,
)
from openagentic_sdk.agents import read_agent
from openagentic_sdk.assemble import guarded_provider
from openagentic_sdk.errors import (
    AnswerRefusedError,
    ApiKeyError,
    EventLoopError,
    GuardrailTrippedError,
    ModelRetryError,
    OptionsError,
    SessionNotFoundError,
)
from openagentic_sdk.events import AssistantMessage, SystemNotice, ToolResult, UserMessage
from openagentic_sdk.ground.clock import SystemClock
from openagentic_sdk.options import located, with_model
from openagentic_sdk.parts.record.lifecycle import fork_session
from openagentic_sdk.providers.named import split_model
from openagentic_sdk.providers.wrappers.guarded import guarded
from openagentic_sdk.runs.agent_replay import replay_agent
from openagentic_sdk.runs.replay import replay_events
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.skills.fields import served_model
from openagentic_sdk.testing import ScriptedProvider, crash_everywhere
from openagentic_sdk.testing.crash import Life
from tests.runtime.support import assert_closed
from tests.size import full_size

from .support import Shop, Verdict, answering, calling, look_up, model_of, scripted


def store_of(agent: Agent[Any, Any]) -> Any:
    return agent.options.session_store


def resumable(*turns: Any) -> ScriptedProvider:
    return ScriptedProvider(turns, resumable=True)


class RunTest(IsolatedAsyncioTestCase):
    async def test_tools_get_the_deps_and_the_output_is_of_its_type(self) -> None:
        agent = scripted(
            calling("look_up", order="7"), answering(ok=True, why="paid"), tools=[look_up], output=Verdict, deps=Shop
        )
        result = await agent.run("Where is it?", deps=Shop(), session="customer-17")
        self.assertEqual(result.output, Verdict(True, "paid"))
        self.assertEqual((result.session_id, result.stop_reason), ("customer-17", "end"))
        self.assertEqual(
            [tool["function"]["name"] for tool in model_of(agent).requests[0]["tools"]], ["look_up", "final_answer"]
        )
        assert_closed(self, store_of(agent), "customer-17")

    async def test_async_and_plain_functions_tools_and_named_sets_are_tools(self) -> None:
        async def later(text: str) -> str:
            """Say it later."""
            return text

        agent = scripted(calling("later", text="x"), "Done.", tools=["files", later, "shell"])
        self.assertEqual((await agent.run("Go.")).output, "Done.")
        names = [tool["function"]["name"] for tool in model_of(agent).requests[0]["tools"]]
        self.assertEqual(names, ["Read", "Write", "Edit", "Glob", "Grep", "later", "Bash", "BashOutput", "KillBash"])
        with self.assertRaisesRegex(OptionsError, "unknown set 'fiels': the sets are files, shell, web"):
            Agent("m", tools="fiels")
        with self.assertRaisesRegex(OptionsError, "shell, web; Read is in 'files'"):
            Agent("m", tools=["Read"])
        with self.assertRaisesRegex(OptionsError, "is not a function, tool or name of a set"):
            Agent("m", tools=[3])  # type: ignore[list-item]

    async def test_an_agent_begins_without_built_in_tools(self) -> None:
        agent = scripted("Hello.")
        await agent.run("Hi.")
        self.assertEqual(list(model_of(agent).requests[0]["tools"]), [])

    async def test_a_run_that_an_error_of_other_code_ended_names_its_type(self) -> None:
        class Broken(ScriptedProvider):
            async def complete(self, **request: Any) -> Any:
                raise KeyError("choices")

            stream = None  # type: ignore[assignment]

        with self.assertRaisesRegex(RunFailedError, "ended with stop reason 'error': KeyError: 'choices'"):
            await Agent(Broken([])).run("Hi.")

    async def test_own_tools_run_and_built_in_ones_are_judged(self) -> None:
        agent = scripted(calling("Write", file_path="/nowhere/x", content="x"), "No.", tools=["files"])
        with self.assertRaises(RunFailedError) as caught:
            await agent.run("Write it.")
        self.assertEqual(caught.exception.result.stop_reason, "waiting")
        self.assertEqual(caught.exception.result.questions[0].details["tool_name"], "Write")

    async def test_instructions_may_be_functions_of_the_deps(self) -> None:
        async def orders(ctx: ToolContext[Shop]) -> str:
            return f"There are {len(ctx.deps.orders)} orders."

        agent = scripted("Hi.", "Again.", instructions=["Be kind.", orders, lambda ctx: ""], deps=Shop)
        shop = Shop()
        await agent.run("Hi.", deps=shop, session="s")
        shop.orders["8"] = "sent"
        await agent.run("And now?", deps=shop, session="s")
        prompts = [request["messages"][0]["content"] for request in model_of(agent).requests]
        self.assertEqual(prompts, ["Be kind.\n\nThere are 1 orders.", "Be kind.\n\nThere are 2 orders."])
        wrong = scripted("Hi.", instructions=lambda ctx: 3)
        with self.assertRaisesRegex(
            OptionsError, "the function <lambda> in `instructions` returned 3: return a string"
        ):
            await wrong.run("Hi.")

    async def test_missing_and_wrong_deps_are_refused_before_anything_happens(self) -> None:
        agent = scripted("Hi.", deps=Shop)
        with self.assertRaisesRegex(
            OptionsError,
            r"deps must be of the type Shop that the agent declares, not None: pass such a value to run\(..., deps=...\)",
        ):
            await agent.run("Hi.", session="s")
        with self.assertRaisesRegex(OptionsError, "deps must be of the type Shop that the agent declares, not 'shop'"):
            await agent.run("Hi.", deps="shop")
        self.assertEqual(store_of(agent).list_session_summaries(), [])

    async def test_a_run_without_an_answer_raises_with_its_result(self) -> None:
        agent = scripted(calling("look_up", order="7"), "Never.", tools=[look_up], deps=Shop)
        with self.assertRaises(RunFailedError) as caught:
            await agent.run("Hi.", deps=Shop(), max_steps=1, session="s")
        self.assertEqual((caught.exception.result.stop_reason, caught.exception.result.session_id), ("max_steps", "s"))
        assert_closed(self, store_of(agent), "s")

    async def test_limits_of_use_end_a_run_by_name(self) -> None:
        agent = scripted(calling("look_up", order="7"), "Never.", tools=[look_up], deps=Shop)
        with self.assertRaises(RunFailedError) as caught:
            await agent.run("Hi.", deps=Shop(), max_tokens=1)
        self.assertEqual(caught.exception.result.stop_reason, "budget")
        with self.assertRaisesRegex(OptionsError, "a run has no setting 'max_turns': use max_steps="):
            await agent.run("Hi.", deps=Shop(), max_turns=3)  # type: ignore[call-arg]

    async def test_an_answer_of_another_type_is_sent_back_and_then_ends_the_run(self) -> None:
        agent = scripted(answering(ok="perhaps"), answering(ok=True, why="paid"), output=Verdict)
        self.assertEqual((await agent.run("Hi.")).output, Verdict(True, "paid"))
        agent = scripted("no JSON", "still none", "never", output=Verdict, settings={"output_form": "text"})
        with self.assertRaises(RunFailedError) as caught:
            await agent.run("Hi.")
        self.assertEqual(caught.exception.result.error_type, "StructuredOutputError")

    async def test_lists_and_other_types_are_outputs_too(self) -> None:
        agent = scripted(answering(value=[1, 2]), output=list[int])
        self.assertEqual((await agent.run("Hi.")).output, [1, 2])
        with self.assertRaises(OptionsError):
            Agent("m", output=complex)

    async def test_run_sync_is_for_plain_code(self) -> None:
        agent = scripted("Hi.")
        with self.assertRaises(EventLoopError):
            agent.run_sync("Hi.")
        self.assertEqual(await asyncio.to_thread(lambda: agent.run_sync("Hi.").output), "Hi.")

    async def test_another_model_answers_one_run(self) -> None:
        agent = scripted("Mine.")
        self.assertEqual((await agent.run("Hi.", model=ScriptedProvider(["Theirs."]))).output, "Theirs.")
        self.assertEqual((await replace(agent, model=ScriptedProvider(["Other."])).run("Hi.")).output, "Other.")

    async def test_the_same_request_is_answered_once(self) -> None:
        agent = scripted(answering(ok=True, why="paid"), output=Verdict)
        first = await agent.run("Hi.", request_id="r1")
        again = await agent.run("Hi.", request_id="r1")
        self.assertEqual((again.output, again.session_id), (first.output, first.session_id))
        self.assertEqual(len(model_of(agent).requests), 1)

    async def test_iter_gives_the_events_of_the_log(self) -> None:
        agent = scripted("Hi.")
        types = [event.type async for event in agent.iter("Hi.", session="s")]
        self.assertEqual((types[0], types[-1]), ("system.init", "result"))
        kept = [event.type for event in store_of(agent).read_events("s")]
        self.assertEqual([name for name in types if name != "assistant.delta"], kept)


class Models(unittest.TestCase):
    def setUp(self) -> None:
        kept = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(kept)))
        for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAGENTIC_SDK_MODEL"):
            os.environ.pop(name, None)

    def test_a_word_names_the_provider_and_the_model(self) -> None:
        for word, named in (
            ("openai:gpt-4o", ("openai", "gpt-4o")),
            ("ollama:qwen3:8b", ("ollama", "qwen3:8b")),
            ("qwen3:8b", (None, "qwen3:8b")),
            ("openai:", (None, "openai:")),
            ("gpt-4o", (None, "gpt-4o")),
            ("Openai:x", (None, "Openai:x")),
            (None, (None, None)),
        ):
            self.assertEqual(split_model(word), named)

    def test_an_agent_is_created_without_a_key_and_asks_the_provider_that_its_model_names(self) -> None:
        agent = Agent("anthropic:claude-x")
        with self.assertRaisesRegex(ApiKeyError, "ANTHROPIC_API_KEY"):
            agent.run_sync("Hi.")
        os.environ["OPENAGENTIC_SDK_MODEL"] = "anthropic:claude-x"
        with self.assertRaisesRegex(ApiKeyError, "ANTHROPIC_API_KEY"):
            Agent().run_sync("Hi.")
        with self.assertRaisesRegex(ApiKeyError, "OPENAI_API_KEY"):
            Agent("qwen3:8b").run_sync("Hi.")
        options = asyncio.run(Agent("ollama:qwen3:8b").to_options())
        self.assertEqual((options.provider and options.provider.name, options.model), ("ollama", "qwen3:8b"))

    def test_a_given_provider_gets_the_word_whole(self) -> None:
        model = ScriptedProvider(["Hi."])
        agent = Agent("openai:gpt-4o", options=replace(scripted().options, provider=model))
        agent.run_sync("Hi.")
        self.assertEqual(model.requests[0]["model"], "openai:gpt-4o")

    def test_options_and_agents_of_a_file_take_the_word_too(self) -> None:
        with self.assertRaisesRegex(ApiKeyError, "ANTHROPIC_API_KEY"):
            run_sync(prompt="Hi.", options=OpenAgenticOptions(model="anthropic:claude-x"))
        with self.assertRaisesRegex(OptionsError, "no provider is configured for the model 'qwen3:8b'"):
            run_sync(prompt="Hi.", options=OpenAgenticOptions(model="qwen3:8b"))
        found = read_agent("a", {"model": "ollama:qwen3:8b"}, Path.cwd()).options
        self.assertEqual((found.provider and found.provider.name, found.model), ("ollama", "qwen3:8b"))

    def test_every_place_in_code_that_names_a_model_takes_the_word(self) -> None:
        options = replace(scripted("Hi.").options, provider=ScriptedProvider(["Hi."]), model="m")

        def fallback(*words: Fallback | str) -> Any:
            return guarded_provider(replace(options, fallback=words), SystemClock())

        def agent(**fields: Any) -> AgentDefinition:
            return located(replace(options, agents={"a": AgentDefinition("d", "p", **fields)})).agents["a"]

        own = ScriptedProvider(["Hi."])
        placed = fallback("ollama:qwen3:8b", "qwen3:8b", Fallback("vllm:x"), Fallback("vllm:x", own)).fallbacks
        self.assertEqual([one.provider and one.provider.name for one in placed], ["ollama", None, "vllm", "scripted"])
        self.assertEqual([one.model for one in placed], ["qwen3:8b", "qwen3:8b", "x", "vllm:x"])
        found = [
            agent(model=word, provider=given)
            for word, given in (("ollama:q:8b", None), ("q:8b", None), ("vllm:x", own))
        ]
        self.assertEqual([one.provider and one.provider.name for one in found], ["ollama", None, "scripted"])
        self.assertEqual([one.model for one in found], ["q:8b", "q:8b", "vllm:x"])
        self.assertEqual(agent(model="scripted:x"), AgentDefinition("d", "p", model="scripted:x"))
        for word, name, model in (("ollama:q:8b", "ollama", "q:8b"), ("q:8b", "scripted", "q:8b")):
            other = with_model(options, word)
            self.assertEqual((other.provider and other.provider.name, other.model), (name, model))
        at_home = OpenAgenticOptions(model="ollama:a")
        self.assertEqual([with_model(at_home, word).model for word in ("b", "ollama:b", "vllm:b")], ["b"] * 3)
        keyless = (
            partial(fallback, "openai:x"),
            partial(agent, model="openai:x"),
            partial(with_model, options, "openai:x"),
        )
        for use in keyless:
            with self.assertRaisesRegex(ApiKeyError, "contains no API key"):
                use()
        self.assertIsNotNone(fallback(Fallback("anthropic:x", api_key="k")).fallbacks[0].provider)
        keyed = located(OpenAgenticOptions(model="openai:x", api_key="k"))
        self.assertEqual(keyed.provider and keyed.provider.name, "openai")

    def test_one_provider_is_asked_for_its_own_word(self) -> None:
        """A fallback or subagent at `openai:...` of a run at openai uses the run's proxy and key."""
        first = OpenAIProvider(api_key="k", base_url="http://127.0.0.1:1/v1")
        placed: Any = guarded(first, fallback=["openai:small"])
        self.assertEqual((placed.fallbacks[0].provider, placed.fallbacks[0].model), (None, "small"))
        agents = {"a": AgentDefinition("d", "p", model="openai:small")}
        found = located(OpenAgenticOptions(provider=first, model="m", agents=agents)).agents["a"]
        self.assertEqual((found.provider, found.model), (None, "small"))

    def test_a_file_chooses_no_provider(self) -> None:
        self.assertEqual(served_model("qwen3:8b"), "qwen3:8b")
        for word, names in (("openai:gpt-4o", {}), ("haiku", {"haiku": "openai:gpt-4o"})):
            with self.assertRaisesRegex(OptionsError, "write 'gpt-4o' there, and choose the provider in code"):
                served_model(word, names)


class Mistakes(unittest.TestCase):
    def test_an_invalid_agent_is_refused_when_it_is_created(self) -> None:
        def one(output: Any) -> Any:
            return output

        for fields, words in (
            ({"tools": [lambda x: x]}, "a tool needs a name, and a lambda has none"),
            ({"instructions": 5}, r"instructions must be a list of strings or functions of \(ctx\), not 5"),
            ({"instructions": lambda: ""}, r"instructions: <lambda> must accept \(ctx\) \(too many"),
            ({"output_validators": one}, r"output_validators must be a list of functions of \(ctx, output\)"),
            ({"output_validators": [one]}, r"output_validators: one must accept \(ctx, output\) \(too many"),
            ({"input_guardrails": [3]}, r"input_guardrails must be a list of functions of \(ctx, prompt\)"),
            ({"output_guardrails": [one]}, r"output_guardrails: one must accept \(ctx, output\)"),
            ({"output_retries": -1}, "output_retries must be a whole number"),
            ({"needs_approval": "refund"}, "needs_approval must be"),
            (
                {"needs_approval": ["refnd"], "tools": [look_up]},
                "a tool that does not exist, 'refnd': the tools are look_up",
            ),
            ({"needs_approval": ["refund"]}, "a tool that does not exist, 'refund': there are no tools"),
            ({"model": object()}, 'model must be a name such as "openai:gpt-4o", or a provider'),
            ({"model": ScriptedProvider}, 'model must be a name such as "openai:gpt-4o", or a provider'),
        ):
            with self.subTest(words), self.assertRaisesRegex(OptionsError, words):
                Agent(**{"model": "m", **fields})

    def test_an_approval_may_be_for_a_tool_of_an_agent_that_is_a_tool(self) -> None:
        inner = Agent("m", name="inner", tools=[look_up])
        Agent("m", tools=[inner.as_tool()], needs_approval=["look_up", "inner", "mcp__shop__buy"])
        Agent("m", tools="shell", needs_approval=["Bash(git push:*)"])


class Messages(IsolatedAsyncioTestCase):
    async def test_new_messages_of_one_run_begin_another(self) -> None:
        first = await scripted(calling("look_up", order="7"), "It is paid.", tools=[look_up], deps=Shop).run(
            "Which?", deps=Shop()
        )
        agent = scripted("You asked for 7.")
        second = await agent.run("What did I ask for?", message_history=first.new_messages())
        sent = model_of(agent).requests[0]["messages"]
        self.assertEqual([message["role"] for message in sent], ["user", "assistant", "tool", "assistant", "user"])
        self.assertEqual([message["role"] for message in second.new_messages()], ["user", "assistant"])
        assert_closed(self, store_of(agent), second.session_id)

    async def test_calls_of_a_history_never_run_and_a_cut_one_is_closed(self) -> None:
        call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"order": "7"}'}}
        history = [
            {"role": "system", "content": "x"},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ]
        agent = scripted(calling("look_up", order="7"), "Done.", tools=[look_up], deps=Shop)
        result = await agent.run("Go on.", deps=Shop(), message_history=history)
        results = [event for event in result.events if isinstance(event, ToolResult)]
        self.assertEqual([event.outcome for event in results], ["unknown", "ok"])
        assert_closed(self, store_of(agent), result.session_id)

    async def test_a_history_is_for_a_new_session_only(self) -> None:
        agent = scripted("One.", "Two.")
        first = await agent.run("Hi.", session="s")
        with self.assertRaisesRegex(
            RunFailedError, "message_history is for a new session, and 's' already has messages"
        ):
            await agent.run("Hi.", session="s", message_history=first.new_messages())
        assert_closed(self, store_of(agent), "s")

    async def test_a_session_with_nothing_to_continue_is_not_an_answer(self) -> None:
        agent = scripted("Once.")
        await agent.run("Hi.", session="s")
        with self.assertRaisesRegex(OptionsError, "session s has no work left to continue: give a prompt"):
            await agent.run(session="s")

    async def test_without_a_prompt_no_session_is_created(self) -> None:
        agent = scripted("Never.")
        with self.assertRaisesRegex(OptionsError, "no session to continue: give a prompt"):
            await agent.run()
        with self.assertRaisesRegex(
            SessionNotFoundError, "no session 'nosuch' in this store: give a prompt to begin one"
        ):
            await agent.run(session="nosuch")
        options = await agent.to_options()
        for settings in ({"session": "nosuch"}, {"session_id": "nosuch"}, {"request_id": "r"}):
            with self.subTest(settings), self.assertRaises((OptionsError, SessionNotFoundError)):
                await run(prompt=None, options=replace(options, **settings))
            with self.subTest(settings), self.assertRaises((OptionsError, SessionNotFoundError)):
                await submit(None, replace(options, **settings)).wait()
        self.assertEqual(store_of(agent).list_sessions(), [])
        history = [{"role": "user", "content": "Hi."}]
        self.assertEqual((await agent.run(message_history=history)).final_text, "Never.")

    async def test_sessions_that_began_with_a_history_replay(self) -> None:
        call = {"id": "call_1_1", "type": "function", "function": {"name": "look_up", "arguments": '{"order": "7"}'}}
        hi = {"role": "user", "content": "Hi."}
        calls = [hi, {"role": "assistant", "content": "", "tool_calls": [call]}]
        hello = [hi, {"role": "assistant", "content": "Hello."}]
        for history, prompt in (([hi], "7?"), ([hi, hi], None), (hello, "7?"), (calls, "7?"), (calls, None)):
            settings = {"labels": ["deny(untrusted): look_up"]}
            agent = scripted(calling("look_up", order="7"), "Done.", tools=[look_up], deps=Shop, settings=settings)
            store = store_of(agent)
            await agent.run(prompt, deps=Shop(), session="s", message_history=history)
            await replace(agent, model=ScriptedProvider(["Yes."])).run("Sure?", deps=Shop(), session="s")
            with self.subTest(history=history, prompt=prompt):
                report = await replay_events(store.read_events("s"))
                self.assertTrue(report.ok, report)
                options = await agent.to_options(deps=Shop())
                self.assertEqual((await replay_agent(store.read_events("s"), options)).text, "")

    async def test_an_invalid_message_is_refused_with_its_position(self) -> None:
        for history, wanted in (
            (5, "must be a list of messages, not 5"),
            ([3], "message 1 must be a mapping, .*, not 3"),
            ([{"role": "assistant", "tool_calls": 5}], "message 1 has the calls 5: tool_calls must be a list"),
            ([{"role": "robot", "content": ""}], "message 1 has the role 'robot'"),
            ([{"role": "tool", "tool_call_id": "x", "content": ""}], "message 1 is the result of call 'x'"),
            (
                [{"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": "["}}]}],
                "as arguments a string with a JSON object",
            ),
            ([{"role": "user", "content": [{"type": "image_url"}]}], "message 1 may contain only text"),
        ):
            with self.subTest(wanted=wanted), self.assertRaisesRegex(OptionsError, wanted):
                await scripted("Hi.").run("Hi.", message_history=history)


class Validators(IsolatedAsyncioTestCase):
    async def test_a_validator_sends_the_model_back_and_may_change_the_output(self) -> None:
        async def has_reason(ctx: ToolContext[Shop], verdict: Verdict) -> Verdict:
            if len(verdict.why) < 4:
                raise ModelRetryError(f"say why, the shop has {len(ctx.deps.orders)} orders")
            return replace(verdict, why=verdict.why.upper())

        agent = scripted(
            answering(ok=True, why="no"),
            answering(ok=True, why="paid"),
            output=Verdict,
            deps=Shop,
            output_validators=[has_reason],
        )
        result = await agent.run("Hi.", deps=Shop())
        self.assertEqual(result.output, Verdict(True, "PAID"))
        repairs = [event.text for event in result.events if isinstance(event, UserMessage) and event.origin == "repair"]
        self.assertEqual(repairs, ["Your answer cannot be used: say why, the shop has 1 orders. Answer again."])
        assert_closed(self, store_of(agent), result.session_id)

    async def test_a_validator_that_always_fails_ends_the_run(self) -> None:
        def never(ctx: ToolContext[None], text: str) -> str:
            raise ValueError("not good enough")

        agent = scripted("a", "b", "c", "d", output_validators=[never], output_retries=2)
        with self.assertRaises(RunFailedError) as caught:
            await agent.run("Hi.", session="s")
        result = caught.exception.result
        self.assertEqual(
            (result.stop_reason, result.error_type, result.final_text), ("error", "StructuredOutputError", "")
        )
        self.assertEqual(len(model_of(agent).requests), 3)
        assert_closed(self, store_of(agent), "s")

    async def test_answers_that_do_not_fit_and_answers_that_are_refused_count_together(self) -> None:
        def has_reason(ctx: ToolContext[None], verdict: Verdict) -> Verdict:
            if not verdict.why:
                raise ModelRetryError("say why")
            return verdict

        misfit, refused, good = {"ok": "perhaps"}, {"ok": True, "why": ""}, {"ok": True, "why": "paid"}
        for form in ("tool", "text"):
            for retries, given in (
                (0, [misfit]),
                (0, [refused]),
                (1, [misfit, refused]),
                (3, [misfit, refused, misfit, refused]),
            ):
                script = [answering(**each) if form == "tool" else json.dumps(each) for each in (*given, *[good] * 3)]
                fields: dict[str, Any] = {"output": Verdict, "output_validators": [has_reason]}
                with self.subTest(form=form, retries=retries):
                    agent = scripted(*script, output_retries=retries, settings={"output_form": form}, **fields)
                    with self.assertRaises(RunFailedError) as caught:
                        await agent.run("Hi.", session="s")
                    self.assertEqual(caught.exception.result.error_type, "StructuredOutputError")
                    self.assertEqual(len(model_of(agent).requests), retries + 1)
                    assert_closed(self, store_of(agent), "s")
                    again = scripted(*script, output_retries=retries + 1, settings={"output_form": form}, **fields)
                    self.assertEqual((await again.run("Hi.")).output, Verdict(True, "paid"))

    async def test_a_validator_with_a_defect_ends_the_run_as_an_error(self) -> None:
        def broken(ctx: ToolContext[None], text: str) -> str:
            return {}["x"]

        with self.assertRaises(RunFailedError) as caught:
            await scripted("a", output_validators=[broken]).run("Hi.")
        self.assertEqual(caught.exception.result.error_type, "KeyError")


class Types(IsolatedAsyncioTestCase):
    async def test_none_is_a_type_of_output(self) -> None:
        result = await scripted(answering(value=None), output=None).run("Hi.")
        self.assertEqual((result.output, result.steps), (None, 1))

    def test_an_agent_used_as_a_tool_replaces_no_other_agent_of_its_name(self) -> None:
        settings = {"agents": {"judge": AgentDefinition("Judges.", "Judge.")}}
        with self.assertRaisesRegex(OptionsError, "'judge' is also the name of one of options.agents"):
            scripted(tools=[scripted(name="judge").as_tool()], settings=settings)


class Replays(IsolatedAsyncioTestCase):
    """Sessions in which an answer was refused replay, with and without their agent."""

    async def assert_replays(self, agent: Agent[Any, Any], session: str) -> None:
        events = store_of(agent).read_events(session)
        report = await replay_events(events)
        self.assertTrue(report.ok, report)
        self.assertEqual((await replay_agent(events, await agent.to_options())).text, "")

    async def test_by_a_validator_although_a_call_gave_it(self) -> None:
        def long(ctx: ToolContext[None], verdict: Verdict) -> Verdict:
            if len(verdict.why) < 4:
                raise ModelRetryError("say more")
            return verdict

        turns = answering(ok=True, why="no"), answering(ok=True, why="it is paid")
        agent = scripted(*turns, output=Verdict, output_validators=[long])
        await agent.run("Hi.", session="s")
        await self.assert_replays(agent, "s")

    async def test_by_a_run_that_found_it_after_a_kill(self) -> None:
        def long(ctx: ToolContext[None], text: str) -> str:
            if len(text) < 4:
                raise ModelRetryError("say more")
            return text

        def longer(ctx: ToolContext[None], payload: dict[str, Any]) -> HookDecision:
            return HookDecision(block=len(payload["last_assistant_message"]) < 4, block_reason="Say more.")

        for fields in ({"output_validators": [long]}, {"hooks": {"stop": [longer]}}):
            whole = scripted("no", "it is paid", **fields)
            events = (await whole.run("Hi.")).events
            kinds = [event.type for event in events]
            for cut in (kinds.index("assistant.message") + 1, kinds.index("user.message", 3) + 1):
                agent = scripted("it is paid", **fields)
                session = store_of(agent).create_session(session_id="killed")
                for event in events[:cut]:
                    store_of(agent).append_event(session, event)
                await agent.run(session=session)
                with self.subTest(fields=[*fields], cut=cut):
                    await self.assert_replays(agent, session)

    async def test_and_so_do_those_with_calls_that_neither_a_tool_nor_a_hook_ended(self) -> None:
        @tool(effect="read")
        def count() -> int:
            """Count."""
            return 4

        def change(ctx: ToolContext[None], payload: dict[str, Any]) -> HookDecision:
            return HookDecision(override_tool_output="changed")

        agent = scripted(calling("count"), "Four.", "Why?", "Why?", tools=[count], hooks={"post_tool_use": [change]})
        events = (await agent.run("How many?", session="s")).events
        for kind in ("tool.use", "tool.started"):
            cut = next(event.seq for event in events if event.type == kind)
            fork = fork_session(store_of(agent), "s", at_seq=cut)
            await agent.run("Again.", session=fork)
            with self.subTest(kind):
                await self.assert_replays(agent, fork)

    async def test_and_so_do_those_whose_first_run_made_no_request(self) -> None:
        def note(ctx: ToolContext[None], payload: dict[str, Any]) -> HookDecision:
            return HookDecision(additional_context="It is Monday.")

        events = (await scripted("Hi.", hooks={"user_prompt_submit": [note]}).run("Hi.", request_id="r")).events
        cut = [event.type for event in events].index("model.request")
        agent = scripted("Hello.", hooks={"user_prompt_submit": [note]})
        session = store_of(agent).create_session(session_id="killed")
        for event in events[:cut]:
            store_of(agent).append_event(session, event)
        await agent.run("Hi.", session=session, request_id="r")
        await self.assert_replays(agent, session)


class Killed(unittest.TestCase):
    """The same call after a kill, with the same session and request id, returns what the first would have returned."""

    def test_a_run_that_began_with_a_message_history_continues(self) -> None:
        history = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]

        async def build(life: Life) -> Any:
            agent = scripted(model=resumable("Never.", "It is lost."), settings={"session_store": life.store})
            result = await agent.run("Where is 7?", session="s", request_id="r", message_history=history)
            texts = [event.text for event in life.store.read_events("s") if isinstance(event, UserMessage)]
            return result.output, texts

        crash_everywhere(build)

    def test_a_run_of_a_message_history_alone_continues(self) -> None:
        history = [{"role": "user", "content": "Where is 7?"}]
        events = asyncio.run(scripted("Never.").run(None, message_history=history)).events
        agent = scripted("It is lost.")
        session = store_of(agent).create_session(session_id="killed")
        for event in events[:4]:
            store_of(agent).append_event(session, event)
        result = asyncio.run(agent.run(None, session=session, message_history=history))
        self.assertEqual([message["content"] for message in result.new_messages()], ["It is lost."])
        self.assertEqual(len(model_of(agent).requests[0]["messages"]), 1)

    @full_size
    def test_the_agent_that_took_over_continues_and_is_named(self) -> None:
        async def build(life: Life) -> Any:
            options = OpenAgenticOptions(session_store=life.store)
            billing = Agent(resumable("Never.", "I bill."), name="billing", options=options)
            sorting = resumable(calling("transfer_to_billing"), "Never seen.")
            triage = Agent(sorting, name="triage", handoffs=[billing], options=options)
            result = await triage.run("Refund me.", session="s", request_id="r")
            return result.output, result.agent_name

        crash_everywhere(build)

    @full_size
    def test_a_request_that_was_answered_returns_what_the_validators_returned(self) -> None:
        def louder(ctx: ToolContext[None], output: Any) -> Any:
            return output.upper() if isinstance(output, str) else replace(output, why=output.why.upper())

        for answer, output in (("paid", str), (answering(ok=True, why="paid"), Verdict)):

            async def build(life: Life, answer: Any = answer, output: Any = output) -> Any:
                settings = {"session_store": life.store}
                agent = scripted(model=resumable(answer), output=output, output_validators=[louder], settings=settings)
                return (await agent.run("Hi.", session="s", request_id="r")).output

            with self.subTest(output):
                crash_everywhere(build)

    def test_a_request_that_ended_with_an_answer_from_before_a_kill_can_be_repeated(self) -> None:
        events = asyncio.run(scripted("Paid.").run("Hi.", request_id="r")).events
        agent = scripted()
        session = store_of(agent).create_session(session_id="killed")
        for event in events[:-1]:
            store_of(agent).append_event(session, event)
        for _ in range(2):
            self.assertEqual(asyncio.run(agent.run("Hi.", session=session, request_id="r")).output, "Paid.")

    def test_an_agent_that_asks_another_reads_what_its_validators_returned(self) -> None:
        judge = scripted("paid", name="judge", output_validators=[lambda ctx, text: text.upper()])
        agent = scripted(calling("judge", prompt="Is it paid?"), "Yes.", tools=[judge.as_tool()])
        events = asyncio.run(agent.run("Hi.")).events
        self.assertEqual([event.output for event in events if isinstance(event, ToolResult)], ["PAID"])


class Guardrails(IsolatedAsyncioTestCase):
    async def test_only_the_prompts_that_no_guardrail_has_let_pass_are_judged_when_a_run_continues(self) -> None:
        judged: list[str] = []

        def no_homework(ctx: ToolContext[Any], prompt: str) -> str | None:
            judged.append(prompt)
            return "homework" if "homework" in prompt else None

        history = [{"role": "user", "content": "My homework, earlier."}, {"role": "assistant", "content": "Fine."}]
        done = await scripted("Done.").run("Do my homework.", session="s", request_id="r", message_history=history)
        cut = next(
            at for at, each in enumerate(done.events, 1) if isinstance(each, AssistantMessage) and each.text == "Done."
        )
        for more in ({"message_history": history}, {}):
            for prompt in ("Do my homework.", None):
                agent = scripted("Second.", input_guardrails=[no_homework])
                store = agent.options.session_store
                store.create_session(session_id="s")
                store.append_events("s", done.events[:cut])
                request_id = None if prompt is None else "r"
                with self.assertRaises(GuardrailTrippedError):
                    await agent.run(prompt, session="s", request_id=request_id, **more)
        self.assertEqual(judged, ["Do my homework."] * 4)

    async def test_a_refused_prompt_does_not_block_the_one_after_it(self) -> None:
        store = MemorySessionStore()

        def agent(*turns: Any) -> Agent[None, str]:
            refuse_bad = lambda ctx, prompt: "no" if "bad" in prompt else None  # noqa: E731
            return scripted(*turns, input_guardrails=[refuse_bad], settings={"session_store": store})

        with self.assertRaises(GuardrailTrippedError):
            await agent("Hi.").run("bad", session="s")
        with self.assertRaises(RunFailedError):
            await agent({"text": "x", "error": {"message": "gone", "after": 1}}).run("Good.", session="s")
        self.assertEqual((await agent("Answer.").run(session="s")).output, "Answer.")

    async def test_an_input_guardrail_stops_the_model_while_it_answers(self) -> None:
        asked = asyncio.Event()

        class Endless:
            name = "endless"

            async def stream(self, **request: Any) -> Any:
                asked.set()
                await asyncio.Event().wait()
                yield {}

        async def no_homework(ctx: ToolContext[None], prompt: str) -> str | None:
            await asked.wait()
            return "this is homework" if "homework" in prompt else None

        agent = replace(scripted(input_guardrails=[no_homework]), model=Endless())
        with self.assertRaises(GuardrailTrippedError) as caught:
            await agent.run("Do my homework.", session="s")
        error = caught.exception
        self.assertEqual((error.kind, error.guardrail, error.reason), ("input", "no_homework", "this is homework"))
        self.assertEqual(error.result.stop_reason, "blocked:input_guardrail")
        notices = [event.code for event in error.result.events if isinstance(event, SystemNotice)]
        self.assertEqual(notices, ["guardrail.tripped"])
        assert_closed(self, store_of(agent), "s")

    async def test_the_first_guardrail_that_trips_ends_the_run_and_the_other_guardrails(self) -> None:
        asked, over, released, ended = asyncio.Event(), asyncio.Event(), threading.Event(), []
        self.addCleanup(released.set)

        class Patient:
            name = "patient"

            async def stream(self, **request: Any) -> Any:
                asked.set()
                try:
                    for _ in range(1000):
                        await asyncio.sleep(0)
                except asyncio.CancelledError:
                    ended.append("model interrupted")
                    raise
                over.set()
                released.set()
                yield {}

        async def slow(ctx: ToolContext[None], prompt: str) -> None:
            try:
                await over.wait()
            except asyncio.CancelledError:
                ended.append("slow cancelled")
                raise

        def blocking(ctx: ToolContext[None], prompt: str) -> None:
            released.wait()

        async def no(ctx: ToolContext[None], prompt: str) -> str:
            await asked.wait()
            return "never"

        agent = replace(scripted(input_guardrails=[slow, blocking, no]), model=Patient())
        with self.assertRaisesRegex(GuardrailTrippedError, "no stopped the run: never"):
            await agent.run("Hi.", session="s")
        self.assertEqual(sorted(ended), ["model interrupted", "slow cancelled"])
        assert_closed(self, store_of(agent), "s")

    async def test_the_first_output_guardrail_that_trips_ends_the_others(self) -> None:
        ended = []

        async def slow(ctx: ToolContext[None], text: str) -> None:
            try:
                for _ in range(1000):
                    await asyncio.sleep(0)
                ended.append("by itself")
            finally:
                ended.append("slow")

        agent = scripted("Hi.", output_guardrails=[slow, lambda ctx, text: "never"])
        with self.assertRaises(GuardrailTrippedError):
            await agent.run("Hi.")
        self.assertEqual(ended, ["slow"])

    async def test_no_call_starts_before_the_input_has_passed(self) -> None:
        ran = []

        def act() -> str:
            """Act."""
            ran.append(1)
            return "done"

        async def no(ctx: ToolContext[None], prompt: str) -> str:
            for _ in range(20):
                await asyncio.sleep(0)
            return "never"

        agent = scripted(calling("act"), "Done.", tools=[act], input_guardrails=[no])
        with self.assertRaises(GuardrailTrippedError):
            await agent.run("Act.", session="s")
        self.assertEqual(ran, [])
        assert_closed(self, store_of(agent), "s")

    async def test_an_output_guardrail_sees_the_typed_output_and_refuses_it(self) -> None:
        def polite(ctx: ToolContext[None], verdict: Verdict) -> str | None:
            return "it is rude" if "fool" in verdict.why else None

        agent = scripted(answering(ok=True, why="you fool"), output=Verdict, output_guardrails=[polite])
        with self.assertRaises(GuardrailTrippedError) as caught:
            await agent.run("Hi.", session="s")
        result = caught.exception.result
        self.assertEqual((result.stop_reason, result.final_text), ("blocked:output_guardrail", ""))
        assert_closed(self, store_of(agent), "s")

    async def test_a_guardrail_that_fails_or_returns_no_reason_has_let_nothing_pass(self) -> None:
        def broken(ctx: ToolContext[None], prompt: str) -> str | None:
            raise KeyError("x")

        with self.assertRaisesRegex(GuardrailTrippedError, "broken stopped the run: it failed: KeyError"):
            await scripted("Hi.", input_guardrails=[broken]).run("Hi.")
        with self.assertRaisesRegex(GuardrailTrippedError, "it returned True, and must return None or a reason"):
            await scripted("Hi.", output_guardrails=[lambda ctx, text: True]).run("Hi.")

    async def test_a_prompt_whose_guardrails_did_not_end_is_judged_again_before_anything_continues(self) -> None:
        """However its run was left: stopped by the guardrail, killed with a call that has not started, or abandoned."""
        ran, judged = [], []

        def act() -> str:
            """Act."""
            ran.append(1)
            return "done"

        def no_homework(ctx: ToolContext[None], prompt: str) -> str | None:
            judged.append(prompt)
            return "this is homework" if "homework" in prompt else None

        events = (await scripted(calling("act"), "Done.", tools=[act]).run("Do my homework.", request_id="r")).events
        cut = next(place for place, event in enumerate(events) if event.type == "tool.use") + 1
        for prompt, request_id in ((None, None), ("Do my homework.", "r"), ("Hi.", None)):
            agent = scripted(calling("act"), "Done.", tools=[act], input_guardrails=[no_homework])
            store = store_of(agent)
            session = store.create_session(session_id="killed")
            for event in events[:cut]:
                store.append_event(session, event)
            ran.clear()
            with self.subTest(prompt=prompt):
                if prompt == "Hi.":  # only the new prompt continues
                    result = await agent.run(prompt, session=session)
                    ended = next(event for event in result.events if isinstance(event, ToolResult))
                    self.assertIn("this is homework", str(ended.error_message))
                    self.assertEqual((result.output, ran), ("Done.", [1]))
                    continue
                for again in (prompt, None):  # what a guardrail stopped does not continue without a prompt either
                    with self.assertRaisesRegex(GuardrailTrippedError, "this is homework"):
                        await agent.run(again, session=session, request_id=request_id)
                    self.assertEqual((ran, judged[-1]), ([], "Do my homework."))
                assert_closed(self, store, session)

    async def test_a_prompt_that_passed_is_not_judged_again(self) -> None:
        judged = []

        def passes(ctx: ToolContext[None], prompt: str) -> None:
            judged.append(prompt)

        agent = scripted(calling("look_up", order="7"), "Done.", tools=[look_up], deps=Shop, input_guardrails=[passes])
        with self.assertRaises(RunFailedError):
            await agent.run("Hi.", deps=Shop(), session="s", max_steps=1)
        self.assertEqual((await agent.run(deps=Shop(), session="s")).output, "Done.")
        self.assertEqual(judged, ["Hi."])

    async def test_guardrails_that_let_pass_cost_nothing_in_the_log(self) -> None:
        agent = scripted("Hi.", input_guardrails=[lambda ctx, text: None], output_guardrails=[lambda ctx, text: ""])
        self.assertEqual((await agent.run("Hi.")).output, "Hi.")


class Handoffs(IsolatedAsyncioTestCase):
    def agents(self, *turns: Any, **fields: Any) -> tuple[Agent[Any, Any], ScriptedProvider]:
        model, store = ScriptedProvider(turns), {"session_store": scripted().options.session_store}
        options = OpenAgenticOptions(**store)
        billing = Agent(
            model,
            name="billing",
            description="Refunds.",
            instructions="You bill.",
            tools=[look_up],
            deps=Shop,
            options=options,
            handoffs=lambda: [triage],
        )
        triage: Agent[Any, Any] = Agent(
            model, name="triage", instructions="You sort.", handoffs=[billing], deps=Shop, options=options, **fields
        )
        return triage, model

    async def test_a_handoff_keeps_the_session_and_the_deps(self) -> None:
        triage, model = self.agents(calling("transfer_to_billing"), calling("look_up", order="7"), "It is paid.")
        result = await triage.run("Refund me.", deps=Shop(), session="s")
        self.assertEqual((result.output, result.agent_name, result.session_id), ("It is paid.", "billing", "s"))
        self.assertEqual(
            [request["messages"][0]["content"] for request in model.requests], ["You sort.", "You bill.", "You bill."]
        )
        self.assertEqual([message["content"] for message in model.requests[1]["messages"]][1], "Refund me.")
        ends = [event.stop_reason for event in result.events if event.type == "result"]
        self.assertEqual((ends, result.steps), (["handoff", "end"], 3))
        agents = [event.details["agent"] for event in result.events if isinstance(event, SystemNotice)]
        self.assertEqual(agents, ["triage", "billing"])
        assert_closed(self, triage.options.session_store, "s")

    async def test_a_handoff_stays_in_the_store_and_under_the_key_of_the_run(self) -> None:
        with TemporaryDirectory() as folder:
            store = scripted().options.session_store
            key = Path(folder, "key")
            key.write_bytes(bytes(range(32)))
            key.chmod(0o600)
            others = [OpenAgenticOptions(), OpenAgenticOptions(session_store=Path(folder, "other"))]
            for number, options in enumerate(others):
                billing = Agent(ScriptedProvider(["Paid."]), name="billing", options=options)
                front = Agent(
                    ScriptedProvider([calling("transfer_to_billing")]),
                    name="front",
                    handoffs=[billing],
                    options=OpenAgenticOptions(session_store=store, key_file=str(key)),
                )
                result = await front.run("Hi.", session=f"s{number}")
                self.assertEqual((result.output, result.agent_name), ("Paid.", "billing"))
                self.assertEqual(result.events[-1].seq, store.last_seq(f"s{number}"))
            self.assertFalse(Path(folder, "other").exists())

    async def test_agents_that_hand_over_forever_are_stopped(self) -> None:
        there, back = calling("transfer_to_billing"), calling("transfer_to_triage")
        triage, _ = self.agents(*[there, back] * 5, calling("transfer_to_billing"), "I answer myself.")
        result = await triage.run("Hi.", deps=Shop(), session="s")
        self.assertEqual((result.output, result.agent_name), ("I answer myself.", "triage"))
        self.assertEqual(
            [event.outcome for event in result.events if isinstance(event, ToolResult)], ["ok"] * 10 + ["error"]
        )
        assert_closed(self, triage.options.session_store, "s")
        triage, _ = self.agents(*[there, back] * 5)
        with self.assertRaises(RunFailedError) as caught:
            await triage.run("Hi.", deps=Shop(), max_steps=4)
        self.assertIn(caught.exception.result.stop_reason, ("max_steps", "error"))

    @full_size
    async def test_limits_hold_over_all_agents_of_a_run(self) -> None:
        """Whoever sets the limit: the run, the first agent, or the agent that continues."""
        usage = {"usage": {"input_tokens": 90, "output_tokens": 10}}
        limits = ({"max_tokens": 250}, {"max_cost_usd": 2.5}, {"max_steps": 3})
        for limit in limits:
            for place in ("run", "first", "second"):
                turns = [
                    {**calling("transfer_to_billing"), **usage},
                    *[{**calling("look_up", order="7"), **usage} for _ in range(5)],
                ]
                triage, model = self.agents(*turns)
                both = {"prices": {model.name: {"input": 10_000, "output": 10_000}}}
                first = {**both, **(limit if place == "first" else {})}
                second = {**both, **(limit if place == "second" else {})}
                billing = replace(triage.handoffs[0], options=replace(triage.options, **second), handoffs=())
                agent = replace(triage, options=replace(triage.options, **first), handoffs=[billing])
                with self.subTest(limit=limit, place=place), self.assertRaises(RunFailedError) as caught:
                    await agent.run("Hi.", deps=Shop(), **(limit if place == "run" else {}))
                with self.subTest(limit=limit, place=place):
                    self.assertEqual(
                        caught.exception.result.stop_reason, "max_steps" if "max_steps" in limit else "budget"
                    )
                    # The second agent's own step limit counts only its own steps.
                    self.assertEqual(len(model.requests), 4 if "max_steps" in limit and place == "second" else 3)

    async def test_a_session_continues_with_another_agent(self) -> None:
        triage, model = self.agents("Hello.", "I bill now.")
        await triage.run("Hi.", deps=Shop(), session="s")
        billing = triage.handoffs[0]
        self.assertEqual((await billing.run("Refund.", deps=Shop(), session="s")).output, "I bill now.")
        self.assertEqual(model.requests[1]["messages"][0]["content"], "You bill.")

    async def test_handoffs_answer_with_the_same_type(self) -> None:
        judge = Agent("m", name="judge", output=Verdict)
        with self.assertRaisesRegex(
            OptionsError, "judge in handoffs returns .*Verdict.* and this agent .*str.*: give both the same output type"
        ):
            await scripted("Hi.", handoffs=[judge]).run("Hi.")
        with self.assertRaisesRegex(OptionsError, "must be an Agent whose name is a valid identifier"):
            await scripted("Hi.", handoffs=[scripted()]).run("Hi.")

    async def test_a_handoff_before_which_the_process_died_happens_on_resume(self) -> None:
        triage, _ = self.agents(calling("transfer_to_billing"), "Never seen.")
        events = (await triage.run("Hi.", deps=Shop(), session="s")).events
        handed_over = next(place for place, event in enumerate(events) if isinstance(event, ToolResult))
        store, model = scripted().options.session_store, ScriptedProvider(["I bill."])
        session = store.create_session(session_id="killed")
        for event in events[: handed_over + 1]:
            store.append_event(session, event)
        options = OpenAgenticOptions(session_store=store)
        billing = replace(triage.handoffs[0], model=model, options=options)
        result = await replace(triage, model=model, options=options, handoffs=[billing]).run(
            deps=Shop(), session=session
        )
        self.assertEqual((result.agent_name, result.output), ("billing", "I bill."))

    async def test_an_answer_to_a_question_after_a_handoff_continues_with_the_agent_that_asked(self) -> None:
        store = scripted().options.session_store
        for name in ("triage", None):
            calls: list[str] = []

            def refund(order: str, calls: list[str] = calls) -> str:
                """Refund an order."""
                calls.append(order)
                return "refunded"

            def triage(name: str | None = name, refund: Any = refund) -> Agent[Any, Any]:
                turns = [
                    calling("transfer_to_desk"),
                    calling("transfer_to_billing"),
                    calling("refund", order="7"),
                    "Done.",
                ]
                model, options = ScriptedProvider(turns, resumable=True), OpenAgenticOptions(session_store=store)
                billing = Agent(model, name="billing", tools=[refund], needs_approval=["refund"], options=options)
                desk = Agent(model, name="desk", handoffs=[billing], options=options)
                return Agent(model, name=name, handoffs=[desk], options=options)

            session = f"of {name}".replace(" ", "-")
            with self.subTest(name):
                with self.assertRaises(RunFailedError) as waiting:
                    await triage().run("Refund 7.", session=session)
                with self.assertRaises(RunFailedError) as again:  # in another process, which asks for the questions
                    await triage().run(session=session)
                (question,) = again.exception.result.questions
                self.assertEqual((waiting.exception.result.questions, calls), ([question], []))
                result = await triage().run(session=session, answers={question.question_id: "yes"})
                self.assertEqual((result.output, result.agent_name, calls), ("Done.", "billing", ["7"]))

    async def test_the_first_of_two_handoffs_in_one_answer_counts(self) -> None:
        both = {"tool_calls": [{"name": "transfer_to_billing", "arguments": {}}] * 2}
        triage, _ = self.agents(both, "I bill.")
        result = await triage.run("Hi.", deps=Shop(), session="s")
        self.assertEqual([event.outcome for event in result.events if isinstance(event, ToolResult)], ["ok", "error"])
        assert_closed(self, triage.options.session_store, "s")


class AgentsAsTools(IsolatedAsyncioTestCase):
    async def test_an_agent_is_a_tool_of_another_with_the_same_deps(self) -> None:
        model = ScriptedProvider(
            [
                calling("judge", prompt="Is 7 paid?"),
                {**calling("look_up", order="7"), "agent": "You judge"},
                {**answering(ok=True, why="paid"), "agent": "You judge"},
                "It is fine.",
            ]
        )
        options = scripted().options
        judge = Agent(model, name="judge", instructions="You judge.", tools=[look_up], output=Verdict, deps=Shop)
        clerk = Agent(model, instructions="You help.", tools=[judge.as_tool()], deps=Shop, options=options)
        result = await clerk.run("Is it?", deps=Shop(), session="s")
        self.assertEqual(result.output, "It is fine.")
        outputs = {
            e.tool_use_id: e.output for e in result.events if isinstance(e, ToolResult) and e.parent_tool_use_id is None
        }
        self.assertEqual(list(outputs.values()), ['{"ok":true,"why":"paid"}'])
        self.assertNotIn("Task", [tool["function"]["name"] for tool in model.requests[0]["tools"]])
        assert_closed(self, options.session_store, "s")

    async def test_denials_of_a_parent_apply_to_agents_that_are_its_tools(self) -> None:
        model = ScriptedProvider(
            [
                calling("judge", prompt="Look."),
                {**calling("look_up", order="7"), "agent": "You judge"},
                {"text": "I may not.", "agent": "You judge"},
                "No.",
            ]
        )
        judge = Agent(model, name="judge", instructions="You judge.", tools=[look_up], deps=Shop)
        options = OpenAgenticOptions(session_store=scripted().options.session_store, disallowed_tools=["look_up"])
        clerk = Agent(model, instructions="You help.", tools=[judge.as_tool()], deps=Shop, options=options)
        result = await clerk.run("Is it?", deps=Shop())
        self.assertNotIn("ok", [e.outcome for e in result.events if isinstance(e, ToolResult) and e.parent_tool_use_id])

    async def test_a_stopped_inner_agent_is_an_error_for_the_outer_model(self) -> None:
        for rule in ({"input_guardrails": [lambda ctx, prompt: "no"]}, {"output_guardrails": [lambda ctx, text: "no"]}):
            model = ScriptedProvider(
                [calling("judge", prompt="Look."), {"text": "Rude.", "agent": "You judge"}, "Sorry."]
            )
            judge = Agent(model, name="judge", instructions="You judge.", **rule)
            clerk = Agent(model, instructions="You help.", tools=[judge.as_tool()], options=scripted().options)
            result = await clerk.run("Is it?", session="s")
            self.assertEqual(result.output, "Sorry.")
            said = [event.error_message for event in result.events if isinstance(event, ToolResult)]
            self.assertRegex(str(said), "the agent judge ended with the stop reason 'blocked:(in|out)put_guardrail'")
            assert_closed(self, clerk.options.session_store, "s")

    async def test_an_approval_of_the_inner_agent_waits_once_for_both(self) -> None:
        looking = {**calling("look_up", order="7"), "agent": "You judge"}
        model = ScriptedProvider(
            [calling("judge", prompt="Look."), looking, {"text": "Paid.", "agent": "You judge"}, "It is."]
        )
        judge = Agent(
            model, name="judge", instructions="You judge.", tools=[look_up], deps=Shop, needs_approval=["look_up"]
        )
        clerk = Agent(model, instructions="You help.", tools=[judge.as_tool()], deps=Shop, options=scripted().options)
        with self.assertRaises(RunFailedError) as caught:
            await clerk.run("Is it?", deps=Shop(), session="s")
        (question,) = caught.exception.result.questions
        result = await clerk.run(deps=Shop(), session="s", answers={question.question_id: "yes"})
        self.assertEqual(result.output, "It is.")

    async def test_true_and_false_answer_an_approval_and_other_values_are_refused(self) -> None:
        said: tuple[Any, ...] = (None, 1, ["yes"], {"approved": True})
        for given, outcome in ((True, "ok"), (False, "denied")):
            agent = scripted(calling("look_up", order="7"), "Done.", tools=[look_up], needs_approval=["look_up"])
            with self.assertRaises(RunFailedError) as caught:
                await agent.run("Look.", deps=Shop(), session="s")
            (question,) = caught.exception.result.questions
            for wrong in said:
                with self.assertRaisesRegex(AnswerRefusedError, "choose one of yes, no, "):
                    await agent.run(deps=Shop(), session="s", answers={question.question_id: wrong})
            result = await agent.run(deps=Shop(), session="s", answers={question.question_id: given})
            self.assertEqual([event.outcome for event in result.events if event.type == "tool.result"], [outcome])

    async def test_an_agent_without_a_name_is_not_a_tool(self) -> None:
        with self.assertRaisesRegex(OptionsError, "needs a name"):
            scripted().as_tool()


class Approvals(IsolatedAsyncioTestCase):
    async def test_a_call_that_needs_approval_waits_and_continues_the_next_day(self) -> None:
        agent = scripted(
            calling("look_up", order="7"), "It is paid.", tools=[look_up], deps=Shop, needs_approval=["look_up"]
        )
        with self.assertRaises(RunFailedError) as caught:
            await agent.run("Where?", deps=Shop(), session="s")
        waiting = caught.exception.result
        self.assertEqual((waiting.stop_reason, len(waiting.questions)), ("waiting", 1))
        result = await agent.run(None, deps=Shop(), session="s", answers={waiting.questions[0].question_id: "yes"})
        self.assertEqual((result.output, result.questions), ("It is paid.", []))
        assert_closed(self, store_of(agent), "s")

    async def test_a_process_that_did_not_ask_reads_the_open_questions_from_the_store(self) -> None:
        agent = scripted(calling("look_up", order="7"), "Paid.", tools=[look_up], deps=Shop, needs_approval=["look_up"])
        found = []
        for prompt in ("Where?", None, None):
            with self.assertRaises(RunFailedError) as caught:
                await agent.run(prompt, deps=Shop(), session="s")
            found.append([question.question_id for question in caught.exception.result.questions])
        self.assertEqual((len(found[0]), found[1:]), (1, [found[0], found[0]]))
        self.assertLess(len(repr(caught.exception.result)), 4_000)
        self.assertRegex(repr(caught.exception.result), r"^AgentResult\(.*events=<\d+ events>")
        result = await agent.run(deps=Shop(), session="s", answers={found[0][0]: True})
        self.assertEqual(result.output, "Paid.")

    async def test_a_person_is_asked_if_one_is_there(self) -> None:
        async def answer(question: Any) -> str:
            return "no because it is late"

        gate = PermissionGate(user_answerer=answer)
        agent = scripted(
            calling("look_up", order="7"),
            "No.",
            tools=[look_up],
            deps=Shop,
            needs_approval=["look_up"],
            settings={"permission_gate": gate},
        )
        result = await agent.run("Where?", deps=Shop())
        self.assertEqual([event.outcome for event in result.events if isinstance(event, ToolResult)], ["denied"])


class Hooks(IsolatedAsyncioTestCase):
    async def test_hooks_get_a_context_with_the_deps(self) -> None:
        seen = []

        def before(ctx: ToolContext[Shop], payload: dict[str, Any]) -> HookDecision | None:
            seen.append((ctx.deps.orders["7"], payload["tool_name"], ctx.session_id))
            return HookDecision(block=True, block_reason="closed")

        agent = scripted(
            calling("look_up", order="7"), "No.", tools=[look_up], deps=Shop, hooks={"pre_tool_use": [before]}
        )
        await agent.run("Where?", deps=Shop(), session="s")
        self.assertEqual(seen, [("paid", "look_up", "s")])
        with self.assertRaisesRegex(OptionsError, "hooks has the unknown point 'before_tool': the points are"):
            await scripted("Hi.", hooks={"before_tool": [before]}).run("Hi.")


class Streams(IsolatedAsyncioTestCase):
    async def test_text_comes_in_pieces_and_the_result_after_it(self) -> None:
        agent = scripted("It is paid and sent.")
        async with agent.stream("Where?") as stream:
            pieces = [text async for text in stream.text()]
            result = await stream.result()
        self.assertEqual(
            ("".join(pieces), len(pieces) > 1, result.output), ("It is paid and sent.", True, "It is paid and sent.")
        )

    async def test_a_typed_output_grows(self) -> None:
        agent = scripted('{"ok": true, "why": "it is paid and sent"}', output=Verdict, settings={"output_form": "text"})
        async with agent.stream("Where?") as stream:
            values = [value async for value in stream.output()]
        self.assertTrue(all(isinstance(value, Verdict) and value.ok for value in values))
        self.assertGreater(len(values), 1)
        self.assertEqual(values[-1], Verdict(True, "it is paid and sent"))

    async def test_leaving_a_stream_in_the_middle_ends_the_run_with_a_whole_log(self) -> None:
        agent = scripted("It is paid and sent to you.", "Once more.")
        async with agent.stream("Where?", session="s") as stream:
            async for _ in stream.text():
                break
        assert_closed(self, store_of(agent), "s")
        self.assertEqual((await agent.run("Again?", session="s")).output, "Once more.")

    async def test_a_failed_run_raises_at_the_end_of_its_stream(self) -> None:
        agent = scripted({"error": {"message": "down", "type": "connection"}})
        async with agent.stream("Where?") as stream:
            with self.assertRaises(RunFailedError):
                [text async for text in stream.text()]


if __name__ == "__main__":
    unittest.main()
