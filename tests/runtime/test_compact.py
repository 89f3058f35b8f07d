"""Conversations that exceed the context window."""

import asyncio
import json
import shutil
import tempfile
import threading
import unittest
from dataclasses import replace
from pathlib import Path

from openagentic_sdk.api import compact_session, query, run
from openagentic_sdk.client import AgentClient
from openagentic_sdk.errors import ContextLengthError
from openagentic_sdk.events import ContextCleared, SessionRewound
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.parts.record.folds.audit import find_mismatches
from openagentic_sdk.parts.record.verify_log import verify_session
from openagentic_sdk.providers.base import ModelOutput, ToolCall
from openagentic_sdk.runs.replay import replay_events
from openagentic_sdk.sessions.folds.view import SessionView
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.resume import load_view
from openagentic_sdk.sessions.seal import Seal
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.tools.base import SessionLog, Tool, ToolContext
from openagentic_sdk.tools.function import tool
from openagentic_sdk.tools.read import ReadTool
from tests.durability.scenes import CountingDisk
from tests.size import IN_MEMORY, LARGE, full_size

from .support import assert_closed, events_of, options_for, result_of

LONG = "word " * 400


class Narrow(ScriptedProvider):
    """A scripted model that refuses prompts above a size, as an endpoint does."""

    def __init__(self, turns, max_chars):
        super().__init__(turns)
        self.max_chars = max_chars

    async def stream(self, *, model, messages, tools=(), api_key=None):
        if sum(len(str(message.get("content"))) for message in messages) > self.max_chars:
            raise ContextLengthError("the prompt is too long", status=400)
        async for event in super().stream(model=model, messages=messages, tools=tools, api_key=api_key):
            yield event


async def events_in(stream):
    return [event async for event in stream]


def talk(provider, **changes):
    """Options, and the prompts of three long exchanges."""
    options = options_for(provider, **changes)

    async def prompts():
        for number in range(3):
            yield f"question {number}: {LONG}"

    return options, prompts()


class CompactTest(unittest.IsolatedAsyncioTestCase):
    async def test_near_the_limit_the_model_summarises_and_the_run_continues(self):
        provider = ScriptedProvider([LONG, LONG, "SUMMARY of it", "short answer"])
        options, prompts = talk(provider, max_context_tokens=2200)
        events = await events_of(prompts, options)
        compacted = [event for event in events if event.type == "session.compacted"]
        self.assertEqual([event.method for event in compacted], ["model"])
        self.assertIn("SUMMARY of it", provider.requests[-1]["messages"][1]["content"])
        self.assertEqual(result_of(events).final_text, "short answer")
        assert_closed(self, options.session_store, result_of(events).session_id)

    async def test_a_failing_model_is_not_a_dead_end(self):
        failing = {"error": {"message": "overloaded", "status": 503}}
        options, prompts = talk([LONG, LONG, failing, "short answer"], max_context_tokens=2200)
        events = await events_of(prompts, options)
        compacted = next(event for event in events if event.type == "session.compacted")
        self.assertEqual(compacted.method, "fallback")
        self.assertIn("question 0", compacted.summary)
        self.assertEqual(result_of(events).stop_reason, "end")

    async def test_a_prompt_that_the_endpoint_refuses_as_too_long_is_compacted_and_sent_again(self):
        provider = Narrow([LONG, LONG, "SUMMARY", "short answer"], max_chars=9_000)
        options, prompts = talk(provider)
        events = await events_of(prompts, options)
        self.assertEqual([e.trigger for e in events if e.type == "session.compacted"], ["overflow"])
        self.assertEqual(result_of(events).stop_reason, "end")
        assert_closed(self, options.session_store, result_of(events).session_id)

    async def test_a_hook_can_keep_the_conversation_unchanged(self):
        hooks = HookEngine(pre_compact=[HookMatcher("keep", hook=lambda payload: HookDecision(block=True))])
        options, prompts = talk([LONG, LONG, "answer"], max_context_tokens=2200, hooks=hooks)
        events = await events_of(prompts, options)
        self.assertNotIn("session.compacted", [event.type for event in events])

    async def test_a_hook_that_stops_the_run_there_ends_it_before_the_model_is_asked_again(self):
        for point in ("pre_compact", "post_compact"):
            with self.subTest(point):
                stop = HookMatcher("stop", hook=lambda payload: HookDecision(stops=True, block_reason="enough"))
                turns = ScriptedProvider([LONG, LONG, *(["SUMMARY"] if point == "post_compact" else [])])
                options, prompts = talk(turns, max_context_tokens=2200, hooks=HookEngine(**{point: [stop]}))
                result = result_of(await events_of(prompts, options))
                self.assertEqual((result.stop_reason, result.error_message), (f"blocked:{point}", "enough"))

    async def test_an_interrupt_while_the_checkpoint_is_written_ends_the_run(self):
        loop, is_writing, may_end = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        class SlowStore(MemorySessionStore):
            def keep_view(self, session_id, view):
                loop.call_soon_threadsafe(is_writing.set)
                may_end.wait(60)

        writing = asyncio.create_task(is_writing.wait())
        provider = ScriptedProvider([LONG, "SUMMARY of it", "answer"])
        async with AgentClient(options_for(provider, max_context_tokens=2200, session_store=SlowStore())) as client:
            for number in range(2):
                await client.send(f"question {number}: {LONG}")
                reading = asyncio.create_task(events_in(client.receive()))
                await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
                if writing.done():
                    break
            interrupting = asyncio.create_task(client.interrupt())
            for _ in range(20):  # until it has reached the task that waits for the store
                await asyncio.sleep(0)
            may_end.set()
            await interrupting
            self.assertEqual(result_of(await reading).stop_reason, "interrupted")
        self.assertEqual(len(provider.requests), 2)

    async def test_a_resumed_session_sees_the_summary_and_the_log_keeps_everything(self):
        provider = ScriptedProvider([LONG, LONG, "SUMMARY of it", "short answer"])
        options, prompts = talk(provider, max_context_tokens=2200)
        first = await run(prompt=prompts, options=options)
        again = ScriptedProvider([{"text": "ok", "expect": {"contains": "SUMMARY of it", "lacks": "question 0"}}])
        second = await run(
            prompt="go on", options=options_for(again, resume=first.session_id, session_store=options.session_store)
        )
        self.assertEqual(second.final_text, "ok", second.error_message)
        texts = [e.text for e in options.session_store.read_events(first.session_id) if e.type == "user.message"]
        self.assertTrue(texts[0].startswith("question 0"))

    async def test_a_session_is_compacted_on_demand(self):
        async def prompts():
            yield f"first {LONG}"
            yield f"second {LONG}"

        options = options_for(["one", "two", "SUMMARY"])
        first = await run(prompt=prompts(), options=options)
        self.assertTrue(await compact_session(options=replace(options, resume=first.session_id)))
        again = options_for([{"text": "ok", "expect": {"contains": "SUMMARY"}}], session_store=options.session_store)
        second = await run(prompt="go on", options=replace(again, resume=first.session_id))
        self.assertEqual(second.final_text, "ok", second.error_message)

    async def test_a_summary_by_a_different_model_from_the_last_turns_is_not_damage(self):
        options = options_for(["one", "two", "SUMMARY"], system_prompt="You are a test.")
        first = await run(prompt="first", options=options)
        resumed = replace(options, resume=first.session_id)
        await run(prompt="second", options=replace(resumed, model="scripted-2"))
        self.assertTrue(await compact_session(options=resumed))
        self.assertEqual(find_mismatches(options.session_store.read_events(first.session_id)), [])

    async def test_an_id_that_an_endpoint_repeats_is_replaced_although_a_compaction_hid_its_first_call(self):
        keys = []

        @tool
        def pay(ctx: ToolContext, amount: int) -> str:
            """Pay."""
            keys.append(ctx.idempotency_key)
            return "paid"

        def turns(*more):
            return [{"tool_calls": [{"name": "pay", "arguments": {"amount": 5}, "id": "0"}]}, "Paid.", *more]

        store = FileSessionStore(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, store.root_dir)
        options = options_for(turns("SUMMARY"), tools=[pay], session_store=store)
        first = await run(prompt="pay", options=options)
        self.assertTrue(await compact_session(options=replace(options, resume=first.session_id)))
        self.assertIsNotNone(store.read_kept_view(first.session_id)[0])
        for _ in range(2):
            again = options_for(turns("SUMMARY"), tools=[pay], session_store=store, resume=first.session_id)
            await run(prompt="pay again", options=again)
            self.assertTrue(await compact_session(options=again))
        self.assertEqual(len(set(keys)), 3, keys)
        report = await replay_events(store.read_events(first.session_id))
        self.assertTrue(report.ok, report.error)


def read(name):
    return {"tool_calls": [{"name": "Read", "arguments": {"file_path": name}}]}


class ClearingTest(unittest.IsolatedAsyncioTestCase):
    """A model reads thirty files: the first is missing, and the second is read again at the end."""

    async def asyncSetUp(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for number in range(1, 30):
            (folder / f"{number}.txt").write_text(f"file {number}: " + "word " * 400)
        self.names = ["0.txt", *(f"{number}.txt" for number in range(1, 30)), "1.txt"]
        self.settings = {"cwd": folder, "project_dir": folder, "tools": [ReadTool()], "max_context_bytes": 60_000}

    async def walk(self, turns, **changes):
        provider = ScriptedProvider([*map(read, self.names), *turns])
        options = options_for(provider, **{**self.settings, **changes})
        return options, provider, await events_of("read them all", options)

    def tool_outputs(self, provider):
        """The tool outputs in the last request, in the order of the reads."""
        return [m["content"] for m in provider.requests[-1]["messages"] if m["role"] == "tool"]

    async def test_old_outputs_are_cleared_and_what_is_likely_to_be_needed_stays(self):
        options, provider, events = await self.walk(["done"])
        cleared = [event for event in events if isinstance(event, ContextCleared)]
        self.assertEqual([e for e in events if e.type == "session.compacted"], [])
        shown = self.tool_outputs(provider)
        self.assertIn("Error", shown[0])
        self.assertEqual(
            sum("was cleared to save space" in text for text in shown), sum(len(event.results) for event in cleared)
        )
        self.assertTrue(all("word word" in text for text in shown[-10:]))
        self.assertTrue(cleared and all(event.tokens_after < event.tokens_before for event in cleared))
        self.assertEqual(find_mismatches(events), [])
        self.assertTrue((await replay_events(events)).ok)
        assert_closed(self, options.session_store, result_of(events).session_id)

    @full_size
    async def test_a_cleared_output_can_be_read_again_from_the_place_in_its_note(self):
        _, provider, _ = await self.walk(["done"])
        note = next(text for text in self.tool_outputs(provider) if "was cleared" in text)
        name = json.loads(note[note.index("{") : note.index("}") + 1])["file_path"]
        self.names = [*self.names, name]
        _, provider, _ = await self.walk(["done"])
        self.assertIn("word word", self.tool_outputs(provider)[-1])

    async def test_a_rewind_to_before_it_shows_the_outputs_again(self):
        options, _, events = await self.walk(["done"])
        cleared = next(event for event in events if isinstance(event, ContextCleared))
        session_id = result_of(events).session_id
        options.session_store.append_event(session_id, SessionRewound(cleared.seq - 1))
        again = ScriptedProvider(["ok"])
        options = replace(options, provider=again, resume=session_id, max_context_bytes=None)
        await run(prompt="go on", options=options)
        self.assertNotIn("was cleared", str(self.tool_outputs(again)))

    async def test_if_clearing_is_not_enough_the_conversation_is_summarised_with_its_files(self):
        _, _, events = await self.walk(["SUMMARY", *["done"] * 3], max_context_bytes=14_000)
        (compacted, *_) = [event for event in events if event.type == "session.compacted"]
        self.assertEqual([e for e in events if isinstance(e, ContextCleared)], [])
        read_first = [str(self.settings["cwd"] / f"{number}.txt") for number in (1, 2, 3)]
        self.assertEqual([Path(p).name for p in compacted.files_read[:3]], [Path(p).name for p in read_first])
        self.assertIn("Files that were read:\n- ", compacted.summary)

    async def test_a_stored_session_continues_with_what_was_cleared(self):
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            store = FileSessionStore(folder)
            _, provider, events = await self.walk(["done"], session_store=store)
            view, _ = load_view(store, result_of(events).session_id, provider="scripted")
            outputs = [m["content"] for m in view.conversation.messages() if m["role"] == "tool"]
            self.assertEqual(outputs, self.tool_outputs(provider))
            self.assertTrue(verify_session(store, result_of(events).session_id).ok)


class Working:
    """A model that calls a tool for `steps` steps."""

    name = "scripted"

    def __init__(self, steps):
        self.steps, self.step = steps, 0

    async def complete(self, *, model, messages, tools=(), api_key=None):
        is_step = "summary" not in str(messages[-1]["content"])
        self.step += is_step
        if not is_step or self.step > self.steps:
            return ModelOutput("All that was done.", ())
        return ModelOutput("", (ToolCall(f"c{self.step}", "work", {}),))


class LongSessionTest(unittest.IsolatedAsyncioTestCase):
    @full_size
    async def test_a_run_holds_what_its_model_still_sees_and_a_resume_reads_that(self):
        steps = 10_000 if LARGE else 250
        held = []

        class WorkTool(Tool):
            name = "work"
            description = "Work."
            input_schema = {"type": "object", "properties": {}}  # noqa: RUF012
            effect = "read"

            async def run(self, tool_input, ctx):
                held.append(len(ctx.services.get(SessionLog).events()))
                return f"{len(held)} " + "x" * 300

        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            store = FileSessionStore(folder, seal=Seal(f"{folder}/key"))
            options = options_for(
                [], tools=[WorkTool()], session_store=store, max_steps=steps + 1, max_context_bytes=30_000
            )
            async for event in query(prompt="go", options=replace(options, provider=Working(steps))):
                result = event
            self.assertEqual((result.stop_reason, len(held)), ("end", steps), result.error_message)
            self.assertGreater(result.seq, steps * 5)
            self.assertLess(max(held), 600, "the memory of a run must be bounded by what its model sees")
            whole = SessionView(provider="scripted").extend(store.iter_events(result.session_id))
            disk = CountingDisk()
            reader = FileSessionStore(folder, seal=Seal(f"{folder}/key"), disk=disk)
            with reader.open_writer(result.session_id):
                disk.read_bytes = 0
                view, _ = load_view(reader, result.session_id, provider="scripted")
            self.assertLess(disk.read_bytes, 600_000)
            self.assertEqual(view.conversation.messages(), whole.conversation.messages())
            self.assertEqual((view.steps, view.usage, len(view.events) < 600), (whole.steps, whole.usage, True))
            self.assertEqual(find_mismatches(whole.events), [])
            self.assertTrue(verify_session(store, result.session_id).ok)


if __name__ == "__main__":
    unittest.main()
