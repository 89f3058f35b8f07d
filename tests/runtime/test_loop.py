"""The loop: the events a run yields and stores, and how it ends."""

import asyncio
import unittest

from openagentic_sdk.api import query, run
from openagentic_sdk.errors import OptionsError, SessionLockedError, SessionNotFoundError
from openagentic_sdk.events import UserAnswer
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.kernel.tool_step import MAX_AT_ONCE
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.providers.base import ModelOutput, ToolCall
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.request import json_sha256
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.tools.base import Tool
from openagentic_sdk.tools.function import tool
from tests.looptime import skip_time

from .support import assert_closed, events_of, options_for, result_of, types_of

ECHO = {"name": "echo", "arguments": {"text": "x"}}


class LoopTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_run_starts_with_system_init_and_ends_with_its_result(self):
        options = options_for(["Hello."])
        events = await events_of("hi", options)
        self.assertEqual(types_of(events), ["system.init", "user.message", "assistant.message", "result"])
        result = result_of(events)
        self.assertEqual((result.final_text, result.stop_reason, result.steps), ("Hello.", "end", 1))
        assert_closed(self, options.session_store, result.session_id)

    async def test_every_event_but_deltas_is_stored_before_it_is_seen(self):
        store = MemorySessionStore()
        session_id = None
        async for event in query(
            prompt="hi", options=options_for([{"tool_calls": [ECHO]}, "Done."], session_store=store)
        ):
            session_id = session_id or event.session_id
            if event.type == "assistant.delta":
                self.assertIsNone(event.seq)
            else:
                self.assertEqual(store.read_events(session_id)[event.seq - 1], event)

    async def test_deltas_add_up_to_the_message_and_are_not_stored(self):
        options = options_for([{"text": "Hello there.", "deltas": 3}])
        events = await events_of("hi", options)
        deltas = [event.text_delta for event in events if event.type == "assistant.delta"]
        self.assertEqual(deltas, ["Hel", "lo ", "the", "re."])
        stored = options.session_store.read_events(result_of(events).session_id)
        self.assertNotIn("assistant.delta", [event.type for event in stored])

    async def test_a_provider_with_complete_only_gives_no_deltas(self):
        class Plain:
            name = "plain"

            async def complete(self, *, model, messages, tools=(), api_key=None):
                return ModelOutput(assistant_text="ok", tool_calls=())

        events = await events_of("hi", options_for([], provider=Plain()))
        self.assertNotIn("assistant.delta", [event.type for event in events])
        self.assertEqual(result_of(events).final_text, "ok")

    async def test_a_provider_whose_methods_are_not_async_ends_the_run_with_what_to_change(self):
        class Plain:
            name = "plain"

            def complete(self, **request):
                return ModelOutput(assistant_text="ok", tool_calls=())

        class Listing(Plain):
            def stream(self, **request):
                return []

        class Awaited(Plain):
            async def stream(self, **request):
                return []

        for provider, text in (
            (Plain(), "async def"),
            (Listing(), "returned a list"),
            (Awaited(), "returned a coroutine"),
        ):
            with self.subTest(text):
                result = result_of(await events_of("hi", options_for([], provider=provider)))
                self.assertEqual(result.error_type, "ProviderResponseError")
                self.assertIn(text, result.error_message)

    async def test_stream_events_may_be_dicts_or_objects_of_anybodys_class(self):
        class Item:
            def __init__(self, **values):
                self.__dict__.update(values)

        class Mixed:
            name = "mixed"

            def __init__(self):
                self.turn = 0

            async def stream(self, *, model, messages, tools=(), api_key=None):
                self.turn += 1
                yield {"type": "text_delta", "delta": "a"}
                yield Item(type="text_delta", delta="b")
                if self.turn == 1:
                    yield {"type": "tool_call", "tool_call": ToolCall("t1", "echo", {"text": "1"})}
                    yield Item(
                        type="tool_call", tool_call={"tool_use_id": "t2", "name": "echo", "arguments": {"text": "2"}}
                    )
                yield {"type": "done"}

        events = await events_of("hi", options_for([], provider=Mixed()))
        self.assertEqual([e.output for e in events if e.type == "tool.result"], ["1", "2"])
        self.assertEqual(result_of(events).final_text, "ab")

    async def test_a_stream_that_just_ends_is_incomplete_and_its_text_is_kept(self):
        class Cut:
            name = "cut"

            async def stream(self, *, model, messages, tools=(), api_key=None):
                yield {"type": "text_delta", "delta": "half"}
                yield {"type": "tool_call", "tool_call": ToolCall("t1", "echo", {"text": "1"})}

        events = await events_of("hi", options_for([], provider=Cut()))
        message = next(event for event in events if event.type == "assistant.message")
        self.assertTrue(message.incomplete)
        self.assertEqual(message.text, "half")
        self.assertNotIn("tool.use", [event.type for event in events], "a call from a truncated answer ran")
        self.assertEqual(result_of(events).error_type, "IncompleteResponseError")

    async def test_all_calls_of_an_answer_are_answered_before_the_next_request(self):
        provider = ScriptedProvider([{"text": "Both.", "tool_calls": [ECHO, ECHO, ECHO]}, "Done."])
        options = options_for(provider)
        await events_of("hi", options)
        roles = [message["role"] for message in provider.requests[1]["messages"]]
        self.assertEqual(roles, ["system", "user", "assistant", "tool", "tool", "tool"])
        self.assertEqual(provider.requests[1]["messages"][2]["content"], "Both.")

    async def test_unknown_tools_bad_arguments_and_exceptions_are_results_for_the_model(self):
        calls = [
            {"name": "nope", "arguments": {}},
            {"name": "echo", "arguments": {}},
            {"name": "fail", "arguments": {"text": "boom"}},
            {"name": "echo", "raw_arguments": '{"text": "cut'},
        ]
        events = await events_of("hi", options_for([{"tool_calls": calls}, "Done."]))
        results = [event for event in events if event.type == "tool.result"]
        self.assertEqual([r.is_error for r in results], [True] * 4)
        texts = [result.error_message for result in results]
        self.assertIn("no tool 'nope'", texts[0])
        self.assertIn("text is missing", texts[1])
        self.assertEqual(texts[2], "boom")
        self.assertIn('{"text": "cut', texts[3])
        self.assertEqual(result_of(events).stop_reason, "end")

    async def test_doubled_and_missing_call_ids_are_replaced(self):
        class Same:
            name = "same"

            def __init__(self):
                self.turn = 0

            async def complete(self, *, model, messages, tools=(), api_key=None):
                self.turn += 1
                calls = [ToolCall(id, "echo", {"text": text}) for id, text in (("0", "a"), ("0", "b"), ("", "c"))]
                return ModelOutput("", calls if self.turn < 3 else ())

        options = options_for([], provider=Same())
        events = await events_of("hi", options)
        assert_closed(self, options.session_store, result_of(events).session_id)
        self.assertEqual([e.output for e in events if e.type == "tool.result"], ["a", "b", "c"] * 2)

    async def test_a_replaced_call_id_is_one_that_the_model_has_not_used_before(self):
        calls = [{**ECHO, "id": call_id} for call_id in ("call_2_0", "call_2_1")]
        options = options_for([{"tool_calls": calls}, {"tool_calls": [calls[0], calls[0]]}, "Done."])
        events = await events_of("hi", options)
        ids = [event.tool_use_id for event in events if event.type == "tool.use"]
        self.assertEqual(len(set(ids)), 4, ids)
        self.assertEqual([event.tool_use_id for event in events if event.type == "tool.result"], ids)
        assert_closed(self, options.session_store, result_of(events).session_id)

    async def test_read_only_calls_run_together_and_their_results_keep_the_models_order(self):
        together = asyncio.Barrier(2)

        @tool(effect="read")
        async def slow(text: str) -> str:
            """Wait for the other call to start, then answer; the first call answers last."""
            await together.wait()
            for _ in range(5 if text == "first" else 0):
                await asyncio.sleep(0)
            return text

        calls = [{"name": "slow", "arguments": {"text": text}} for text in ("first", "second")]
        events = await events_of("hi", options_for([{"tool_calls": calls}, "Done."], tools=[slow]))
        self.assertEqual([e.output for e in events if e.type == "tool.result"], ["first", "second"])

    async def test_the_calls_of_one_answer_that_run_together_are_few_however_many_it_has(self):
        running, most = 0, 0

        @tool(effect="read")
        async def busy() -> str:
            """Count the calls that run now."""
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return "done"

        calls = [{"name": "busy"}] * (2 * MAX_AT_ONCE + 1)
        events = await events_of("hi", options_for([{"tool_calls": calls}, "Done."], tools=[busy]))
        self.assertEqual([e.output for e in events if e.type == "tool.result"], ["done"] * len(calls))
        self.assertLessEqual(most, MAX_AT_ONCE)

    async def test_prompts_of_an_async_iterable_run_one_after_the_other_on_one_session(self):
        async def prompts():
            yield "one"
            yield {"text": "two"}

        events = await events_of(prompts(), options_for(["first", "second"]))
        self.assertEqual([e.text for e in events if e.type == "user.message"], ["one", "two"])
        self.assertEqual(types_of(events).count("system.init"), 1)
        self.assertEqual(result_of(events).final_text, "second")

    async def test_run_returns_the_values_of_the_result_event(self):
        turn = {"text": "yes", "usage": {"input_tokens": 7, "output_tokens": 2}}
        result = await run(prompt="hi", options=options_for([turn]))
        self.assertTrue(result.ok)
        self.assertEqual(result.final_text, "yes")
        self.assertEqual((result.usage["input_tokens"], result.usage["output_tokens"]), (7, 2))
        self.assertIsNone(result.cost_usd, "an unknown model has no price")
        self.assertEqual(result.events[0].type, "system.init")

    async def test_an_output_without_a_json_form_becomes_text(self):
        class Odd(Tool):
            name, description, input_schema = "odd", "Return a class.", {"type": "object"}

            async def run(self, input, ctx):
                return set

        events = await events_of("hi", options_for([{"tool_calls": [{"name": "odd"}]}, "Done."], tools=[Odd()]))
        result = next(event for event in events if event.type == "tool.result")
        self.assertIn("not a JSON value", result.output)


class EndingTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_provider_error_ends_the_run_with_a_result_that_names_it(self):
        options = options_for([{"text": "Half a sent", "error": {"message": "the server fell over", "after": 4}}])
        events = await events_of("hi", options)
        result = result_of(events)
        self.assertEqual((result.stop_reason, result.error_type), ("error", "ProviderHTTPError"))
        self.assertIn("fell over", result.error_message)
        partial = next(event for event in events if event.type == "assistant.message")
        self.assertEqual((partial.text, partial.incomplete), ("Half", True))
        assert_closed(self, options.session_store, result.session_id)

    async def test_max_steps_ends_the_run_after_the_last_calls_are_answered(self):
        options = options_for([{"tool_calls": [ECHO]}] * 5, max_steps=2)
        events = await events_of("hi", options)
        self.assertEqual((result_of(events).stop_reason, result_of(events).steps), ("max_steps", 2))
        assert_closed(self, options.session_store, result_of(events).session_id)

    async def test_the_deadline_ends_a_model_call_that_hangs(self):
        class Hanging:
            name = "hanging"

            async def stream(self, *, model, messages, tools=(), api_key=None):
                yield {"type": "text_delta", "delta": "so far"}
                skip_time(60)
                await asyncio.Event().wait()

        options = options_for([], provider=Hanging(), timeout_s=60)
        events = await events_of("hi", options)
        self.assertEqual(result_of(events).stop_reason, "timeout")
        partial = next(event for event in events if event.type == "assistant.message")
        self.assertEqual((partial.text, partial.incomplete), ("so far", True))
        assert_closed(self, options.session_store, result_of(events).session_id)

    async def test_a_token_budget_ends_the_run_before_the_next_call(self):
        turns = [{"tool_calls": [ECHO], "usage": {"input_tokens": 60, "output_tokens": 50}}, "never"]
        events = await events_of("hi", options_for(turns, max_tokens=100))
        self.assertEqual(result_of(events).stop_reason, "budget")
        self.assertIn("110 tokens", result_of(events).error_message)

    async def test_a_budget_survives_resume(self):
        store = MemorySessionStore()
        turn = {"text": "ok", "usage": {"input_tokens": 60, "output_tokens": 50}}
        limits = {"session_store": store, "max_tokens": 100}
        first = await run(prompt="hi", options=options_for([turn], **limits))
        second = await run(prompt="more", options=options_for([turn], resume=first.session_id, **limits))
        self.assertEqual((first.stop_reason, second.stop_reason), ("end", "budget"))

    async def test_a_cost_budget_without_a_price_names_the_price_to_add(self):
        result = await run(prompt="hi", options=options_for([{"tool_calls": [ECHO]}, "x"], max_cost_usd=1.0))
        self.assertEqual(result.stop_reason, "budget")
        self.assertIn("prices", result.error_message)

    async def test_prices_from_the_options_give_the_cost(self):
        prices = {"scripted-1": {"input": 1.0, "output": 2.0}}
        turn = {"text": "ok", "usage": {"input_tokens": 1_000_000, "output_tokens": 500_000}}
        result = await run(prompt="hi", options=options_for([turn], prices=prices))
        self.assertAlmostEqual(result.cost_usd, 2.0)

    async def test_each_blocking_hook_point_ends_the_run_with_its_name(self):
        def block(payload):
            return HookDecision(block=True, block_reason="not today")

        for point in ("session_start", "user_prompt_submit", "before_model_call", "after_model_call"):
            hooks = HookEngine(**{point: [HookMatcher("stopper", hook=block)]})
            options = options_for(["Hello."], hooks=hooks)
            result = result_of(await events_of("hi", options))
            self.assertEqual((result.stop_reason, result.error_message), (f"blocked:{point}", "not today"))
            assert_closed(self, options.session_store, result.session_id)

    async def test_a_stop_hook_sends_the_model_back_to_work(self):
        answers = iter([HookDecision(block=True, block_reason="run the tests first"), None])
        hooks = HookEngine(stop=[HookMatcher("tests", hook=lambda payload: next(answers))])
        events = await events_of("hi", options_for(["Done.", "Really done."], hooks=hooks))
        self.assertIn("run the tests first", [e.text for e in events if e.type == "user.message"])
        self.assertEqual(result_of(events).final_text, "Really done.")

    async def test_a_pre_tool_hook_denies_and_a_rewritten_input_is_what_runs(self):
        def judge(payload):
            if payload["tool_input"]["text"] == "bad":
                return HookDecision(block=True, block_reason="no bad words")
            return HookDecision(override_tool_input={"text": "better"})

        hooks = HookEngine(pre_tool_use=[HookMatcher("judge", "echo", judge)])
        calls = [{"name": "echo", "arguments": {"text": text}} for text in ("bad", "good")]
        options = options_for([{"tool_calls": calls}, "Done."], hooks=hooks)
        events = await events_of("hi", options)
        results = [event for event in events if event.type == "tool.result"]
        self.assertEqual([(r.outcome, r.output) for r in results], [("denied", None), ("ok", "better")])
        started = [event for event in events if event.type == "tool.started"]
        self.assertEqual([event.input for event in started], [{"text": "better"}])
        self.assertEqual([e.allowed for e in events if e.type == "permission.decision"], [False, True])

    async def test_the_decision_names_the_hook_that_blocked_the_call(self):
        hooks = HookEngine(
            pre_tool_use=[
                HookMatcher("looks on", hook=lambda payload: None),
                HookMatcher("guard", hook=lambda payload: HookDecision(block=True, block_reason="not today")),
            ]
        )
        events = await events_of("hi", options_for([{"tool_calls": [ECHO]}, "Done."], hooks=hooks))
        decision = next(event for event in events if event.type == "permission.decision")
        self.assertEqual((decision.allowed, decision.hook, decision.reason), (False, "guard", "not today"))

    async def test_an_input_that_a_hook_made_invalid_does_not_run(self):
        hooks = HookEngine(
            pre_tool_use=[HookMatcher("h", "*", lambda payload: HookDecision(override_tool_input={"text": 5}))]
        )
        events = await events_of("hi", options_for([{"tool_calls": [ECHO]}, "Done."], hooks=hooks))
        result = next(event for event in events if event.type == "tool.result")
        self.assertIn("as a hook changed it", result.error_message)

    async def test_a_permission_request_hook_answers_in_the_place_of_a_person(self):
        async def nobody(question):
            raise AssertionError("the hook has answered")

        for wish, outcome in (("allow", "ok"), ("deny", "denied")):
            hook = HookMatcher("policy", hook=lambda payload, wish=wish: HookDecision(permission=wish))
            gate = PermissionGate(permission_mode="prompt", user_answerer=nobody)
            options = options_for(
                [{"tool_calls": [ECHO]}, "Done."], hooks=HookEngine(permission_request=[hook]), permission_gate=gate
            )
            events = await events_of("hi", options)
            self.assertEqual([e.outcome for e in events if e.type == "tool.result"], [outcome])
            decision = next(event for event in events if event.type == "permission.decision")
            self.assertEqual(decision.hook, "policy")

    async def test_a_question_that_is_open_when_the_time_is_over_ends_with_the_run(self):
        async def late(question):
            skip_time(60)
            await asyncio.Event().wait()

        gate = PermissionGate(permission_mode="prompt", user_answerer=late)
        options = options_for([{"tool_calls": [ECHO]}], permission_gate=gate, timeout_s=60)
        events = await events_of("hi", options)
        asked, answer = (next(e for e in events if e.type == kind) for kind in ("user.question", "user.answer"))
        self.assertEqual((answer.question_id, answer.answer, answer.answered_by), (asked.question_id, "", "timeout"))
        [summary] = options.session_store.list_session_summaries()
        self.assertEqual((result_of(events).stop_reason, summary.open_questions), ("timeout", ()))

    async def test_the_answer_and_the_decision_record_who_answered(self):
        async def ann(question):
            return UserAnswer("another question's", "yes", answered_by="ann")

        gate = PermissionGate(permission_mode="prompt", user_answerer=ann)
        events = await events_of("hi", options_for([{"tool_calls": [ECHO]}, "Done."], permission_gate=gate))
        asked, answer = (next(e for e in events if e.type == kind) for kind in ("user.question", "user.answer"))
        decision = next(event for event in events if event.type == "permission.decision")
        self.assertEqual((answer.question_id, answer.answer), (asked.question_id, "yes"))
        self.assertEqual((answer.answered_by, decision.answered_by, decision.allowed), ("ann", "ann", True))

    async def test_an_answer_that_edits_the_input_must_fit_the_schema(self):
        async def edit(question):
            return 'edit {"text": 5}'

        gate = PermissionGate(permission_mode="prompt", user_answerer=edit)
        events = await events_of("hi", options_for([{"tool_calls": [ECHO]}, "Done."], permission_gate=gate))
        result = next(event for event in events if event.type == "tool.result")
        self.assertIn("as it was edited", result.error_message)

    async def test_the_decision_on_an_edited_call_names_the_input_that_runs_with_its_defaults(self):
        greeted = []

        properties = {"name": {"type": "string"}, "times": {"type": "integer", "default": 2}}
        schema = {"type": "object", "properties": properties, "required": ["name", "times"]}

        class Greet(Tool):
            name, description, input_schema = "greet", "Greet somebody.", schema

            async def run(self, input, ctx):
                greeted.append(dict(input))

        gate = PermissionGate(permission_mode="prompt", user_answerer=lambda question: 'edit {"name": "Eve"}')
        turns = [{"tool_calls": [{"name": "greet", "arguments": {"name": "Bob"}}]}, "Done."]
        events = await events_of("hi", options_for(turns, tools=[Greet()], permission_gate=gate))
        decision = next(event for event in events if event.type == "permission.decision")
        self.assertEqual((greeted, decision.allowed), ([{"name": "Eve", "times": 2}], True))
        self.assertEqual(decision.input_sha256, json_sha256({"name": "Eve", "times": 2}))

    async def test_the_decision_in_the_log_names_its_rule_and_where_that_is_from(self):
        call = {"name": "fail", "arguments": {"text": "x"}}
        for policy, allowed, rule in (
            ({"allow": ["fail"]}, True, "fail"),
            ({"deny": ["fail(text:x)"], "permission_mode": "bypass"}, False, "fail(text:x)"),
        ):
            gate = PermissionGate(**policy)
            events = await events_of("hi", options_for([{"tool_calls": [call]}, "Done."], permission_gate=gate))
            use, decision = (
                next(event for event in events if event.type == kind) for kind in ("tool.use", "permission.decision")
            )
            self.assertEqual((decision.tool_use_id, decision.name), (use.tool_use_id, "fail"))
            self.assertEqual((decision.allowed, decision.mode), (allowed, gate.mode))
            self.assertEqual((decision.rule, decision.source), (rule, "options"))
            self.assertEqual(decision.input_sha256, json_sha256({"text": "x"}))

    async def test_a_denied_call_is_a_result_and_the_decision_is_in_the_log(self):
        gate = PermissionGate(permission_mode="deny")
        events = await events_of("hi", options_for([{"tool_calls": [{"name": "fail"}]}, "Done."], permission_gate=gate))
        decision = next(event for event in events if event.type == "permission.decision")
        result = next(event for event in events if event.type == "tool.result")
        self.assertFalse(decision.allowed)
        self.assertEqual((result.outcome, result.error_type), ("denied", "PermissionDenied"))
        self.assertNotIn("tool.started", [event.type for event in events])


class RefusedStartTest(unittest.IsolatedAsyncioTestCase):
    async def test_missing_settings_and_sessions_raise_before_anything_happens(self):
        for options, error in (
            (options_for([], provider=None), OptionsError),
            (options_for([], model=None), OptionsError),
            (options_for([], cwd="/no/such/folder"), OptionsError),
            (options_for([], resume="nowhere"), SessionNotFoundError),
            (options_for([], continue_last=True), SessionNotFoundError),
        ):
            with self.assertRaises(error):
                await events_of("hi", options)

    async def test_a_session_in_use_is_refused_and_unchanged(self):
        store = MemorySessionStore()
        options = options_for(["one", "two"], session_store=store)
        first = query(prompt="hi", options=options)
        session_id = (await anext(first)).session_id
        before = len(store.read_events(session_id))
        with self.assertRaises(SessionLockedError):
            await events_of("me too", options_for(["x"], session_store=store, resume=session_id))
        self.assertEqual(len(store.read_events(session_id)), before)
        await first.aclose()


if __name__ == "__main__":
    unittest.main()
