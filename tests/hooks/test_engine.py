"""Hooks in order: what each may change, the effect of a failing or slow one, and what the log records."""

from __future__ import annotations

import asyncio
import inspect
import threading
import unittest
from typing import Any

from openagentic_sdk.ground.threads import run_in_thread
from openagentic_sdk.hooks.engine import HookEngine, _match_name
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from tests.looptime import skip_time


def says(decision: HookDecision | None, seen: list[dict[str, Any]] | None = None) -> Any:
    """A hook that always returns the same decision and remembers its inputs."""

    def hook(payload: dict[str, Any]) -> HookDecision | None:
        if seen is not None:
            seen.append(payload)
        return decision

    return hook


class Matching(unittest.TestCase):
    def test_a_pattern_is_one_or_more_shell_patterns_joined_by_bars(self) -> None:
        cases = [
            ("Edit|Write", "Edit", True),
            ("Edit|Write", "Write", True),
            ("Edit | Write", "Write", True),
            ("Edit|Write", "Read", False),
            ("Edit", "NotebookEdit", False),
            ("mcp__*", "mcp__server__tool", True),
            ("*", "anything", True),
            ("edit", "Edit", False),
        ]
        for pattern, name, expected in cases:
            with self.subTest(pattern=pattern, name=name):
                self.assertIs(_match_name(pattern, name), expected)

    def test_a_hook_whose_pattern_does_not_fit_leaves_no_event(self) -> None:
        engine = HookEngine(pre_tool_use=(HookMatcher("edits", "Edit|Write", says(HookDecision(block=True))),))
        value, events, decision = asyncio.run(engine.run_pre_tool_use(tool_name="Read", tool_input={"a": 1}))
        self.assertEqual((value, events, decision), ({"a": 1}, [], None))

    def test_a_regular_expression_counts_instead_of_the_pattern(self) -> None:
        hook = HookMatcher("mcp", "Nothing", says(HookDecision(block=True)), tool_name_regex="^mcp__.*write")
        engine = HookEngine(pre_tool_use=(hook,))
        for name, blocked in (("mcp__files__write", True), ("Write", False)):
            _, _, decision = asyncio.run(engine.run_pre_tool_use(tool_name=name, tool_input={}))
            self.assertEqual(decision is not None, blocked)


class Order(unittest.IsolatedAsyncioTestCase):
    async def test_each_hook_sees_what_the_one_before_it_left(self) -> None:
        seen: list[dict[str, Any]] = []
        engine = HookEngine(
            pre_tool_use=(
                HookMatcher("first", "*", says(HookDecision(override_tool_input={"n": 2}), seen)),
                HookMatcher("second", "*", says(HookDecision(override_tool_input={"n": 3}), seen)),
                HookMatcher("third", "*", says(None, seen)),
            )
        )
        value, events, decision = await engine.run_pre_tool_use(tool_name="Edit", tool_input={"n": 1})
        self.assertEqual([payload["tool_input"] for payload in seen], [{"n": 1}, {"n": 2}, {"n": 3}])
        self.assertEqual(value, {"n": 3})
        self.assertEqual([event.action for event in events], ["rewrite_input", "rewrite_input", "none"])
        self.assertEqual(events[0].details["tool_input"], {"n": 2})
        assert decision is not None
        self.assertEqual(decision.override_tool_input, {"n": 3})

    async def test_a_block_ends_the_row(self) -> None:
        seen: list[dict[str, Any]] = []
        engine = HookEngine(
            user_prompt_submit=(
                HookMatcher("guard", hook=says(HookDecision(block=True, block_reason="no secrets"))),
                HookMatcher("later", hook=says(None, seen)),
            )
        )
        value, events, decision = await engine.run_user_prompt_submit(prompt="hi")
        assert decision is not None
        self.assertTrue(decision.block)
        self.assertEqual((value, len(events), seen), ("hi", 1, []))
        self.assertEqual((events[0].action, events[0].details["block_reason"]), ("block", "no secrets"))

    async def test_the_strictest_permission_and_all_contexts_count(self) -> None:
        engine = HookEngine(
            pre_tool_use=(
                HookMatcher("a", hook=says(HookDecision(permission="ask", additional_context="one"))),
                HookMatcher("b", hook=says(HookDecision(permission="allow", additional_context="two"))),
            )
        )
        _, _, decision = await engine.run_pre_tool_use(tool_name="Edit", tool_input={})
        assert decision is not None
        self.assertEqual((decision.permission, decision.additional_context), ("ask", "one\ntwo"))

    async def test_a_hook_gets_copies_so_that_only_its_answer_counts(self) -> None:
        def meddles(payload: dict[str, Any]) -> None:
            payload["tool_input"]["command"] = "rm -rf /"
            payload["tool_input"]["list"].append("x")

        engine = HookEngine(pre_tool_use=(HookMatcher("meddler", hook=meddles),))
        given = {"command": "ls", "list": []}
        value, _, _ = await engine.run_pre_tool_use(tool_name="Bash", tool_input=given)
        self.assertIs(value, given)
        self.assertEqual(given, {"command": "ls", "list": []})

    async def test_asynchronous_hooks_are_awaited(self) -> None:
        async def hook(payload: dict[str, Any]) -> HookDecision:
            await asyncio.sleep(0)
            return HookDecision(override_tool_output=payload["tool_output"] + "!")

        engine = HookEngine(post_tool_use=(HookMatcher("shout", hook=hook),))
        value, events, _ = await engine.run_post_tool_use(tool_name="Read", tool_output="hello")
        self.assertEqual((value, events[0].action), ("hello!", "rewrite_output"))


class Messages(unittest.IsolatedAsyncioTestCase):
    messages = ({"role": "user", "content": "hi"},)
    others = ({"role": "user", "content": "bye"},)

    async def test_rewritten_messages_are_ignored_and_logged_while_the_flag_is_off(self) -> None:
        hook = HookMatcher(
            "rewriter", hook=says(HookDecision(override_messages=self.others, action="rewrite_messages"))
        )
        engine = HookEngine(before_model_call=(hook,))
        value, events, decision = await engine.run_before_model_call(messages=self.messages, context={})
        self.assertEqual((value, decision), (self.messages, None))
        self.assertEqual([event.action for event in events], ["ignored_override_messages"])

    async def test_rewritten_messages_count_while_the_flag_is_on(self) -> None:
        hook = HookMatcher("rewriter", hook=says(HookDecision(override_messages=self.others)))
        engine = HookEngine(before_model_call=(hook,), enable_message_rewrite_hooks=True)
        value, events, decision = await engine.run_before_model_call(messages=self.messages, context={})
        self.assertEqual(value, self.others)
        self.assertEqual(events[0].action, "rewrite_messages")
        self.assertIsNotNone(decision)

    async def test_a_block_counts_even_when_the_messages_beside_it_are_ignored(self) -> None:
        hook = HookMatcher("both", hook=says(HookDecision(block=True, override_messages=self.others)))
        value, _, decision = await HookEngine(before_model_call=(hook,)).run_before_model_call(messages=self.messages)
        assert decision is not None
        self.assertEqual((value, decision.block, decision.override_messages), (self.messages, True, None))

    async def test_a_field_of_another_point_is_ignored_and_logged(self) -> None:
        hook = HookMatcher("lost", hook=says(HookDecision(override_tool_input={"a": 1})))
        value, events, decision = await HookEngine(after_model_call=(hook,)).run_after_model_call(output="text")
        self.assertEqual((value, decision, events[0].action), ("text", None, "ignored_override_tool_input"))


class Failures(unittest.IsolatedAsyncioTestCase):
    def failing(self, closed: bool | None = None) -> HookMatcher:
        def hook(payload: dict[str, Any]) -> None:
            raise KeyError("boom")

        return HookMatcher("broken", hook=hook, fail_closed=closed)

    async def test_a_failing_hook_closes_where_an_effect_would_follow(self) -> None:
        _, events, decision = await HookEngine(pre_tool_use=(self.failing(),)).run_pre_tool_use(
            tool_name="Edit", tool_input={}
        )
        assert decision is not None
        self.assertTrue(decision.block)
        self.assertIn("broken", decision.block_reason or "")
        self.assertEqual((events[0].action, events[0].error_type), ("error", "KeyError"))
        self.assertEqual(events[0].details, {"fails": "closed"})

    async def test_a_failing_hook_opens_where_nothing_follows(self) -> None:
        engine = HookEngine(post_tool_use=(self.failing(),), stop=(self.failing(),))
        value, events, decision = await engine.run_post_tool_use(tool_name="Edit", tool_output="ok")
        self.assertEqual((value, decision, events[0].details), ("ok", None, {"fails": "open"}))
        events, decision = await engine.run_stop()
        self.assertIsNone(decision)

    async def test_a_hook_fails_the_way_it_declares(self) -> None:
        _, _, decision = await HookEngine(pre_tool_use=(self.failing(False),)).run_pre_tool_use(
            tool_name="E", tool_input={}
        )
        self.assertIsNone(decision)
        _, _, decision = await HookEngine(post_tool_use=(self.failing(True),)).run_post_tool_use(
            tool_name="E", tool_output=1
        )
        assert decision is not None
        self.assertTrue(decision.block)

    async def test_a_hook_that_hangs_is_left_behind_and_closes(self) -> None:
        loop, released = asyncio.get_running_loop(), threading.Event()
        self.addCleanup(released.set)

        async def sleeps(payload: dict[str, Any]) -> None:
            skip_time(60)
            await asyncio.Event().wait()

        def blocks(payload: dict[str, Any]) -> None:
            loop.call_soon_threadsafe(skip_time, 60)
            released.wait()

        for hook in (sleeps, blocks):
            with self.subTest(hook.__name__):
                engine = HookEngine(pre_tool_use=(HookMatcher("slow", hook=hook, timeout_s=60),))
                _, events, decision = await engine.run_pre_tool_use(tool_name="Edit", tool_input={})
                assert decision is not None
                self.assertIn("60 s", decision.block_reason or "")
                self.assertEqual((events[0].action, events[0].error_type), ("timeout", "TimeoutError"))

    async def test_a_coroutine_that_came_in_the_moment_its_wait_ended_is_closed(self) -> None:
        loop = asyncio.get_running_loop()
        made = asyncio.Event().wait()

        def end_the_wait(thread: threading.Thread) -> None:
            thread.join()  # its answer has been sent but not received
            loop.call_soon(waiting.cancel)

        def answer() -> Any:
            loop.call_soon_threadsafe(end_the_wait, threading.current_thread())
            return made

        waiting = asyncio.create_task(run_in_thread(answer, name="late", moment_s=0))
        with self.assertRaises(asyncio.CancelledError):
            await waiting
        self.assertEqual(inspect.getcoroutinestate(made), inspect.CORO_CLOSED)

    async def test_an_answer_that_is_not_a_decision_is_a_failure(self) -> None:
        engine = HookEngine(pre_tool_use=(HookMatcher("wrong", hook=says({"block": True})),))  # type: ignore[arg-type]
        _, events, decision = await engine.run_pre_tool_use(tool_name="Edit", tool_input={})
        assert decision is not None
        self.assertEqual((decision.block, events[0].error_type), (True, "TypeError"))

    async def test_an_unknown_permission_is_ignored(self) -> None:
        engine = HookEngine(pre_tool_use=(HookMatcher("odd", hook=says(HookDecision(permission="yes please"))),))
        _, events, decision = await engine.run_pre_tool_use(tool_name="Edit", tool_input={})
        self.assertEqual((decision, events[0].action), (None, "ignored_permission"))


class Types(unittest.IsolatedAsyncioTestCase):
    async def test_a_decision_with_a_value_of_another_type_is_a_failed_hook(self) -> None:
        rubbish: list[dict[str, Any]] = [
            {"override_prompt": 5},
            {"block_reason": ["no"]},
            {"override_tool_input": [1, 2]},
            {"override_messages": ["x"]},
            {"override_messages": 7},
        ]
        for values in rubbish:
            with self.subTest(values):
                engine = HookEngine(before_model_call=[HookMatcher("h", hook=says(HookDecision(**values)))])
                messages, _, decision = await engine.run_before_model_call(messages=[], context={})
                assert decision is not None
                self.assertEqual((messages, decision.block), ([], True))
                self.assertIn(
                    f"hook 'h' failed: TypeError: hook 'h' returned {self.named(values)}", decision.block_reason
                )

    @staticmethod
    def named(values: dict[str, Any]) -> str:
        (name, value), *_ = values.items()
        return name if name == "override_messages" else f"{type(value).__name__} as {name}"


class Points(unittest.IsolatedAsyncioTestCase):
    async def test_every_point_runs_its_hooks_with_what_concerns_it(self) -> None:
        seen: list[dict[str, Any]] = []
        names = (
            *("session_start", "session_end", "stop", "permission_request", "subagent_start", "subagent_stop"),
            *("pre_compact", "post_compact", "notification"),
        )
        engine = HookEngine(
            **{name: (HookMatcher(name, hook=says(HookDecision(action="seen"), seen)),) for name in names}
        )
        context = {"session_id": "s", "tool_use_id": "t"}
        await engine.run_session_start(context=context)
        await engine.run_session_end(context=context)
        await engine.run_stop(context=context)
        await engine.run("permission_request", {"tool_name": "Bash", "tool_input": {"command": "ls"}}, context)
        await engine.run("subagent_start", {"agent_name": "a", "prompt": "p"}, context)
        await engine.run("subagent_stop", {"agent_name": "a"}, context)
        await engine.run("pre_compact", {"trigger": "auto"}, context)
        await engine.run("post_compact", {"trigger": "auto", "summary": "s"}, context)
        value, events, decision = await engine.run("notification", {"message": "look"}, context)
        self.assertIsNone(value)
        self.assertEqual([payload["hook_point"] for payload in seen], list(names))
        self.assertTrue(all(payload["context"] == context for payload in seen))
        self.assertEqual(seen[3]["tool_input"], {"command": "ls"})
        self.assertEqual((events[0].hook_point, events[0].tool_use_id, events[0].action), ("notification", "t", "seen"))
        self.assertEqual(decision, HookDecision(action="seen"))


if __name__ == "__main__":
    unittest.main()
