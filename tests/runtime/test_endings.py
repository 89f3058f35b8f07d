"""A run ends within its limit plus a grace period, whatever tools, hooks, providers and stores do; the host survives."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import textwrap
import threading
import unittest
from dataclasses import replace
from pathlib import Path

from openagentic_sdk.api import query, run
from openagentic_sdk.errors import StorageError
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.options import AgentDefinition
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.providers.base import Done, ModelOutput, TextDelta, ToolCall, ToolCallReady
from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.core import SessionWriter
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.testing.clock import FakeClock
from openagentic_sdk.tools.base import Tool
from tests.looptime import skip_time
from tests.pythons import Python
from tests.size import full_size
from tests.waiting import until, until_async

from .support import assert_closed, options_for

LIMIT_S = 3600.0  # expires when a test advances the clock
MOMENT_S = 60.0  # far above the runtime's grace period, so that no test fails on a busy machine
NEVER = threading.Event()
HANGING = []  # one entry for each call that hangs at present
OVER = threading.Event()  # set after a test, so that abandoned coroutines end and its event loop can close


def tearDownModule():
    NEVER.set()


def stubborn(*_):
    """A coroutine that swallows every cancellation."""

    async def work():
        HANGING.append(work)
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if OVER.is_set():
                    raise

    return work()


def blocking(*_):
    HANGING.append(blocking)
    NEVER.wait()


def raising(kind):
    def work(*_):
        raise kind

    return work


def later(work):
    async def started(*arguments):
        await asyncio.sleep(0)
        return work(*arguments)

    return started


class Made(Tool):
    """A tool built from one function."""

    name, description, input_schema = "made", "x", {"type": "object"}

    def __init__(self, work, effect="unsafe"):
        self._work, self.effect = work, effect

    async def run(self, input, ctx):
        result = self._work(input)
        return await result if asyncio.iscoroutine(result) else result


class InThread(Made):
    async def run(self, input, ctx):
        from openagentic_sdk.ground.threads import run_in_thread

        return await run_in_thread(lambda: self._work(input), ctx.cancelled)


class Model:
    """A provider built from one stream function or one answer."""

    name = "made"

    def __init__(self, work):
        if hasattr(work, "__aiter__") or "stream" in work.__name__:
            self.stream = work
        else:
            self.complete = work


def summarising(work):
    """Options for a model that fills its conversation with long tool outputs and runs `work` to summarise it."""

    async def stream(*, messages, **_):
        if messages[-1]["role"] == "user" and messages[-1]["content"] != "go":
            async for event in work():
                yield event
            return
        yield ToolCallReady(ToolCall(f"call {len(messages)}", "made", {}))
        yield Done()

    tools = [Made(lambda input: "x" * 3000)]
    return {"provider": Model(stream), "tools": tools, "max_context_bytes": 8000, "max_steps": 10}


CALL = {"tool_calls": [{"name": "made"}]}


class Wordless(Exception):
    def __str__(self):
        raise KeyboardInterrupt


KINDS = [
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    RecursionError("deep"),
    BaseException("odd"),
    MemoryError(),
    Wordless(),
]
CANCELLED = asyncio.CancelledError("by itself")  # raised although nothing cancels the run


class ForeignStore(SessionStore):
    """A third-party store that wraps a memory store and hangs from the event `hangs_at` on."""

    def __init__(self, hangs_at=None, error=None):
        self.inner, self.hangs_at, self.error = MemorySessionStore(), hangs_at, error
        for name in ("create_session", "iter_events", "read_metadata", "update_metadata", "list_sessions"):
            setattr(self, name, getattr(self.inner, name))
        self.delete_session, self.put_blob, self.read_blob = (
            self.inner.delete_session,
            self.inner.put_blob,
            self.inner.read_blob,
        )

    def open_writer(self, session_id):
        if self.hangs_at == "open":
            blocking()
        return ForeignWriter(self.inner.open_writer(session_id), self)

    create_session = iter_events = read_metadata = update_metadata = list_sessions = None
    delete_session = put_blob = read_blob = None


class ForeignWriter(SessionWriter):
    def __init__(self, inner, store):
        self.inner, self.store = inner, store

    def close(self):
        self.inner.close()

    @property
    def last_seq(self):
        return self.inner.last_seq

    def waits_for_disk(self, events):
        return False

    def append(self, events):
        if any(event.type == self.store.hangs_at for event in events):
            if self.store.error is not None:
                raise self.store.error
            blocking()
        return self.inner.append(events)


class HangingTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_hook_that_stops_the_run_ends_it_at_any_point(self):
        def stop(payload):
            return HookDecision(stops=True, block_reason="enough")

        async def yes(question):
            return "yes"

        echo, task = (
            {"name": "echo", "arguments": {"text": "x"}},
            {"name": "Task", "arguments": {"agent": "a", "prompt": "p"}},
        )
        asks = {"permission_gate": PermissionGate(permission_mode="prompt", user_answerer=yes)}
        helper = {"agents": {"a": AgentDefinition("helps", "You help")}}
        for point, reason, calls, changes in (
            ("before_model_call", "before_model_call", [], {}),
            ("after_model_call", "after_model_call", [echo], {}),
            ("post_tool_use_failure", "post_tool_use", [{"name": "fail"}], {}),
            ("permission_request", "permission_request", [echo], asks),
            ("notification", "notification", [echo], asks),
            ("subagent_start", "subagent_start", [task], helper),
            ("subagent_stop", "subagent_stop", [task], helper),
        ):
            with self.subTest(point):
                turns = [] if point == "before_model_call" else [{"tool_calls": calls}]
                turns += ["Helped."] if point == "subagent_stop" else []
                hooks = HookEngine(**{point: [HookMatcher("stop", hook=stop)]})
                result = await run(prompt="go", options=options_for(turns, hooks=hooks, **changes))
                self.assertEqual((result.stop_reason, result.error_message), (f"blocked:{reason}", "enough"))

    async def asyncSetUp(self):
        OVER.clear()
        HANGING.clear()
        self.clock = FakeClock()

    async def asyncTearDown(self):
        OVER.set()  # stays set, because the loop closes only after all cleanups

    async def test_whatever_never_ends_the_run_ends_in_time(self):
        # Concurrently, because each check takes the whole grace period.
        checks = [*self.tool_checks(), *self.hook_checks(), self.check_prompts(), *self.store_checks()]
        ended = asyncio.gather(*checks)
        await until_async(lambda: ended.done() or len(HANGING) == len(checks), "all runs hang")
        self.clock.advance(LIMIT_S)
        skip_time(LIMIT_S)
        await asyncio.wait_for(ended, MOMENT_S)

    async def test_a_closed_or_cancelled_run_ends_at_once(self):
        await asyncio.gather(self.check_closing(), self.check_cancelled())

    async def run_to_end(self, options, prompt="go"):
        result = await run(prompt=prompt, options=replace(options, timeout_s=LIMIT_S, clock=self.clock))
        assert_closed(self, options.session_store, result.session_id)
        return result

    def tool_checks(self):
        """The call gets the result `unknown`, and a notice names the abandoned coroutine or thread."""
        tools = {
            "coroutine": Made(stubborn),
            "thread": InThread(blocking),
            "read-only": Made(stubborn, "read"),
        }

        async def check(name, tool):
            result = await self.run_to_end(options_for([CALL, "never"], tools=[tool]))
            outcome = next(event.outcome for event in result.events if event.type == "tool.result")
            notices = [e.message for e in result.events if e.type == "system.notice" and e.code == "left_behind"]
            with self.subTest(name):
                self.assertEqual((result.stop_reason, outcome, len(notices)), ("timeout", "unknown", 1))
                self.assertRegex(notices[0], "tool made" if name != "thread" else "thread openagentic-tool")

        return [check(*item) for item in tools.items()]

    def hook_checks(self):
        points = ["session_start", "user_prompt_submit", "before_model_call", "pre_tool_use", "post_tool_use", "stop"]

        async def check(point, hook):
            hooks = HookEngine(**{point: [HookMatcher("hung", hook=hook)]})
            result = await self.run_to_end(options_for([CALL, "done"], tools=[Made(lambda input: "ok")], hooks=hooks))
            with self.subTest(point):
                # After the last step, a run waits for its session_end hooks until its time limit, plus a grace period.
                self.assertEqual(result.stop_reason, "end" if point == "session_end" else "timeout")

        cases = [(point, hook) for point in (*points, "session_end") for hook in (stubborn_hook, blocking)]
        return [check(*case) for case in cases]

    async def check_cancelled(self):
        """A run that is cancelled while its session_end hooks run grants them a grace period."""
        began = asyncio.Event()

        async def last(payload):
            began.set()
            await stubborn()

        hooks = HookEngine(session_end=[HookMatcher("hung", hook=last, timeout_s=3600)])
        options = options_for(["done"], hooks=hooks)
        running = asyncio.create_task(run(prompt="go", options=options))
        await began.wait()
        running.cancel()
        await asyncio.wait({running}, timeout=300)
        self.assertTrue(running.cancelled())
        assert_closed(self, options.session_store, options.session_store.list_sessions()[0])

    async def check_prompts(self):
        async def prompts():
            yield "one"
            await stubborn()

        result = await self.run_to_end(options_for(["done"]), prompts())
        self.assertEqual(result.stop_reason, "timeout")

    @full_size
    async def test_a_provider_that_never_ends_is_left_in_time(self):
        """Some of these providers block the event loop."""

        async def silent_stream(**_):
            await stubborn()
            yield Done()

        async def empty_stream(**_):
            while True:
                yield TextDelta("")

        async def unknown_stream(**_):
            while True:
                yield {"type": "unheard of"}

        async def silent(**_):
            await stubborn()

        for_ever = [silent_stream, empty_stream, unknown_stream, silent]
        asked = [(work.__name__, {"provider": Model(work)}) for work in for_ever]
        asked += [(f"{work.__name__} of a summary", summarising(work)) for work in for_ever[:3]]

        async def check(name, changes):
            options = options_for([], **changes, timeout_s=0.4)
            result = await run(prompt="go", options=options)
            assert_closed(self, options.session_store, result.session_id)
            with self.subTest(name):
                self.assertEqual(result.stop_reason, "timeout")

        await asyncio.gather(*(check(*item) for item in asked))

    def store_checks(self):
        """If the store does not respond, no result can be stored: the run raises an error in time."""

        async def check(hangs_at):
            options = options_for(
                [CALL, "done"], tools=[Made(lambda input: "ok")], session_store=ForeignStore(hangs_at)
            )
            with self.subTest(hangs_at), self.assertRaises(StorageError):
                await self.run_to_end(options)

        places = ["open", "system.init", "model.request", "tool.started", "tool.result", "result"]
        return [check(place) for place in places]

    async def check_closing(self):
        store = MemorySessionStore()
        events = query(prompt="go", options=options_for([CALL], tools=[Made(stubborn)], session_store=store))
        async for event in events:
            if event.type == "tool.started":
                break
        await asyncio.wait_for(events.aclose(), MOMENT_S)
        stored = assert_closed(self, store, store.list_sessions()[0])
        self.assertEqual([e.outcome for e in stored if e.type == "tool.result"], ["cancelled"])


async def stubborn_hook(payload):
    await stubborn()


class ExitingTest(unittest.IsolatedAsyncioTestCase):
    @full_size
    async def test_an_exit_in_a_tool_is_an_error_result(self):
        for kind in KINDS:
            for tool in (Made(raising(kind)), Made(later(raising(kind))), InThread(raising(kind))):
                options = options_for([CALL, "done"], tools=[tool])
                result = await run(prompt="go", options=options)
                failed = next(event for event in result.events if event.type == "tool.result")
                with self.subTest(kind=repr(kind), tool=type(tool).__name__):
                    self.assertEqual((failed.error_type, result.stop_reason), (type(kind).__name__, "end"))

    @full_size
    async def test_an_exit_in_a_hook_is_an_error_of_the_hook(self):
        for kind in (*KINDS, CANCELLED):
            for matcher in (
                HookMatcher("exits", hook=raising(kind)),
                HookMatcher("exits", hook=later(raising(kind))),
                HookMatcher("exits", hook=print, when=raising(kind)),
            ):
                hooks = HookEngine(post_tool_use=[matcher])
                options = options_for([CALL, "done"], tools=[Made(lambda input: "ok")], hooks=hooks)
                result = await run(prompt="go", options=options)
                hook_event = next(event for event in result.events if event.type == "hook.event")
                with self.subTest(repr(kind)):
                    self.assertEqual((hook_event.error_type, result.stop_reason), (type(kind).__name__, "end"))

    @full_size
    async def test_an_exit_in_an_approver_denies_the_call_and_stores_no_rule(self):
        for kind in (*KINDS, CANCELLED):
            for work in (raising(kind), later(raising(kind))):
                refusing = PermissionGate(permission_mode="callback", approver=work)
                asked = PermissionGate(user_answerer=lambda question: "always save", save_rule=raising(kind))
                for gate, outcome in ((refusing, "denied"), (asked, "ok")):
                    options = options_for([CALL, "done"], tools=[Made(lambda input: "ok")], permission_gate=gate)
                    result = await run(prompt="go", options=options)
                    with self.subTest(repr(kind), outcome=outcome):
                        outcomes = [event.outcome for event in result.events if event.type == "tool.result"]
                        self.assertEqual((outcomes, result.stop_reason), ([outcome], "end"))

    async def test_an_exit_in_a_provider_or_a_source_of_prompts_is_its_error(self):
        for kind in (*KINDS, CANCELLED):

            async def exiting(kind=kind, **_):
                raise kind

            async def prompts(kind=kind):
                raise kind
                yield

            async def exiting_stream(kind=kind):
                raise kind
                yield

            for changes in ({"provider": Model(exiting)}, {"prompt": prompts()}, summarising(exiting_stream)):
                prompt = changes.pop("prompt", "go")
                options = options_for(["done"], **changes)
                result = await run(prompt=prompt, options=options)
                with self.subTest(repr(kind)):
                    self.assertEqual((result.stop_reason, result.error_type), ("error", type(kind).__name__))
                    assert_closed(self, options.session_store, result.session_id)

    async def test_an_exit_in_a_store_is_a_storage_error(self):
        for kind in (SystemExit(3), RuntimeError("odd")):
            store = ForeignStore("tool.started", kind)
            options = options_for([CALL, "done"], tools=[Made(lambda input: "ok")], session_store=store)
            result = await run(prompt="go", options=options)
            self.assertEqual((result.stop_reason, result.error_type), ("error", "StorageError"))

    async def test_whatever_a_tool_returns_is_a_result(self):
        class Silent:
            def __repr__(self):
                raise SystemExit(9)

        deep = []
        for _ in range(50_000):
            deep = [deep]
        for output in (Silent(), {"a": Silent()}, {Silent(): 1}, deep, {1, 2}, float("nan"), b"x"):
            options = options_for([CALL, "done"], tools=[Made(lambda input, output=output: output)])
            result = await run(prompt="go", options=options)
            with self.subTest(type(output).__name__):
                self.assertEqual((result.final_text, result.stop_reason), ("done", "end"))
        while deep:  # avoid a recursive deallocation
            deep = deep[0]

    async def test_an_error_without_words_is_a_result_too(self):
        class Silent(Exception):
            def __str__(self):
                raise RuntimeError("no message")

        result = await run(prompt="go", options=options_for([CALL, "done"], tools=[Made(raising(Silent()))]))
        self.assertEqual(result.final_text, "done")


class ProcessTest(unittest.TestCase):
    """Behaviour that can only be observed in a separate process."""

    def start(self, body):
        script = (
            "import asyncio, sys\nfrom openagentic_sdk import *\nfrom openagentic_sdk.testing import ScriptedProvider\n"
        )
        root = str(Path(__file__).parents[2])
        environ = {**os.environ, "PYTHONPATH": root}
        pipe = subprocess.PIPE
        process = Python("-c", script + textwrap.dedent(body), stdout=pipe, stderr=pipe, text=True, env=environ)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    @full_size
    def test_a_process_with_a_tool_that_swallows_its_cancellation_ends(self):
        processes = {
            waits: self.start(f"""
            import gc
            async def stubborn():
                while True:
                    try:
                        await asyncio.Event().wait()
                    except (Exception, asyncio.CancelledError):
                        pass

            async def texts():
                await stubborn()
                yield "never"

            @tool
            async def hung() -> str:
                "Never end."
                {waits}

            model = ScriptedProvider([{{"tool_calls": [{{"name": "hung"}}]}}, "never"])
            options = OpenAgenticOptions(provider=model, model="m", tools=[hung],
                allowed_tools=["hung"], timeout_s=0.2, session_store=MemorySessionStore())
            async def main():
                result = await run(prompt="go", options=options)
                gc.collect()
                return result.stop_reason
            print(asyncio.run(main()))
        """)
            for waits in ("await stubborn()", "async for text in texts(): pass")
        }
        for waits, process in processes.items():
            with self.subTest(waits):
                out, err = process.communicate(timeout=300)
                self.assertEqual((process.returncode, out, err), (0, "timeout\n", ""))

    def test_a_real_ctrl_c_ends_a_run_whose_tool_holds_the_main_thread(self):
        process = self.start("""
            import time
            @tool
            async def busy() -> str:
                "Hold the event loop."
                print("busy", flush=True)
                while True:
                    time.sleep(0.01)

            store = MemorySessionStore()
            model = ScriptedProvider([{"tool_calls": [{"name": "busy"}]}, "never"])
            try:
                run_sync(prompt="go", options=OpenAgenticOptions(provider=model, model="m", tools=[busy],
                    allowed_tools=["busy"], session_store=store))
            except KeyboardInterrupt:
                print([event.type for event in store.read_events(store.list_sessions()[0])][-1])
        """)
        self.assertEqual(process.stdout.readline(), "busy\n")
        process.send_signal(signal.SIGINT)  # cancels the run; no effect while a tool blocks the loop

        def has_ended():
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(0.2) is not None

        until(has_ended, "Ctrl-C ends the run")


class LongAnswerTest(unittest.IsolatedAsyncioTestCase):
    async def test_an_answer_ends_near_the_budget(self):
        sent = []

        async def endless_stream(**_):
            while True:
                sent.append(1000)
                yield TextDelta("x" * 1000)

        for limit, most in (({"max_tokens": 5000}, 40_000), ({"max_answer_bytes": 20_000}, 21_000)):
            sent.clear()
            options = options_for([], provider=Model(endless_stream), **limit)
            result = await run(prompt="go", options=options)
            with self.subTest(limit=limit):
                self.assertEqual(result.stop_reason, "budget")
                self.assertIn(next(iter(limit)), result.error_message)
                self.assertLessEqual(sum(sent), most)
                self.assertLessEqual(len(result.final_text), most)
                assert_closed(self, options.session_store, result.session_id)

    async def test_a_price_ends_an_answer_near_the_budget(self):
        async def endless_stream(**_):
            while True:
                yield TextDelta("x" * 1000)

        prices = {"scripted-1": {"input": 1.0, "output": 10.0}}
        result = await run(
            prompt="go", options=options_for([], provider=Model(endless_stream), max_cost_usd=0.01, prices=prices)
        )
        self.assertEqual((result.stop_reason, len(result.final_text) < 10_000), ("budget", True))

    async def test_one_huge_piece_or_answer_is_bounded(self):
        async def huge_stream(**_):
            yield TextDelta("é" * 1_000_000)

        async def huge(**_):
            return ModelOutput("x" * 1_000_000)

        for work in (huge_stream, huge):
            options = options_for([], provider=Model(work), max_answer_bytes=100_001)
            result = await run(prompt="go", options=options)
            with self.subTest(work.__name__):
                self.assertEqual(result.stop_reason, "budget")
                self.assertIn(len(result.final_text.encode()), (100_000, 100_001))

    async def test_a_whole_answer_that_only_calls_is_bounded_too(self):
        async def huge(**_):
            return ModelOutput("", [ToolCall("call", "made", {"text": "x" * 1_000_000})])

        options = options_for([], provider=Model(huge), tools=[Made(lambda input: "ok")], max_answer_bytes=100_000)
        result = await run(prompt="go", options=options)
        self.assertEqual((result.stop_reason, "tool.use" in {event.type for event in result.events}), ("budget", False))

    async def test_an_answer_of_too_many_calls_runs_none_of_them(self):
        async def many(**_):
            return ModelOutput("", [ToolCall(f"call {n}", "made", {}) for n in range(2_001)])

        async def many_in_a_stream(**_):
            while True:
                yield ToolCallReady(ToolCall("call", "made", {}))

        for work in (many, many_in_a_stream):
            result = await run(
                prompt="go", options=options_for([], provider=Model(work), tools=[Made(lambda input: "ok")])
            )
            with self.subTest(work.__name__):
                self.assertEqual(
                    (result.stop_reason, result.error_message),
                    ("budget", "the model's answer has more than 2,000 calls"),
                )
                self.assertNotIn("tool.use", {event.type for event in result.events})

    async def test_an_id_that_is_too_long_is_replaced(self):
        async def once(*, messages, **_):
            return ModelOutput(
                "done" if len(messages) > 2 else "", [] if len(messages) > 2 else [ToolCall("x" * 20_000, "made", {})]
            )

        result = await run(prompt="go", options=options_for([], provider=Model(once), tools=[Made(lambda input: "ok")]))
        [use] = [event for event in result.events if event.type == "tool.use"]
        self.assertEqual((use.tool_use_id, result.final_text), ("call_1_0", "done"))

    async def test_a_summary_is_bounded_too(self):
        async def endless_stream():
            while True:
                yield TextDelta("x" * 1000)

        result = await run(
            prompt="go", options=options_for([], **summarising(endless_stream), max_answer_bytes=100_000)
        )
        self.assertEqual((result.stop_reason, result.error_message[:18]), ("budget", "the model's answer"))

    async def test_tokens_that_an_endpoint_does_not_count_are_estimated(self):
        for usage in (None, {"input_tokens": 0, "output_tokens": 0}, {"input_tokens": -5, "output_tokens": "9"}):

            async def silent(usage=usage, *, messages, **_):
                call = ToolCall(f"call {len(messages)}", "made", {"text": "x" * 1000})
                return ModelOutput("", [call], usage=usage)

            options = options_for([], provider=Model(silent), tools=[Made(lambda input: "ok")], max_tokens=3000)
            result = await run(prompt="go", options=options)
            with self.subTest(usage=usage):
                self.assertEqual(result.stop_reason, "budget")
                self.assertRegex(result.error_message, "about [34]")

    async def test_subagents_that_answer_at_the_same_time_share_what_is_left(self):
        async def endless_stream(**_):
            while True:
                yield TextDelta("x" * 100)
                await asyncio.sleep(0)

        agents = {"writer": AgentDefinition("writes", "write", provider=Model(endless_stream))}
        calls = [{"name": "Task", "arguments": {"agent": "writer", "prompt": "go"}} for _ in range(4)]
        options = options_for([{"tool_calls": calls}, "done"], agents=agents, max_tokens=5000)
        result = await run(prompt="go", options=options)
        written = sum(len(event.text) for event in result.events if event.type == "assistant.message")
        self.assertEqual((result.stop_reason, written < 25_000), ("budget", True))

    @full_size
    async def test_a_long_text_is_stored_once_and_given_back_whole(self):
        text = "word " * 600_000

        async def long(**_):
            return ModelOutput(text)

        options = options_for([], provider=Model(long))
        result = await run(prompt="go", options=options)
        self.assertEqual(result.final_text, text)
        events = options.session_store.read_events(result.session_id)
        self.assertLess(len(json.dumps([str(event) for event in events])), 1.5 * len(text))


if __name__ == "__main__":
    unittest.main()
