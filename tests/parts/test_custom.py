"""Users' own parts: their state in the log, what the model reads of them, and what they cannot do."""

import asyncio
import gc
import itertools
import json
import os
import signal
import tempfile
import textwrap
import threading
import unittest
from functools import partial
from pathlib import Path

from openagentic_sdk.agents import load_agents
from openagentic_sdk.api import compact_session, query, run
from openagentic_sdk.assemble import build_agent
from openagentic_sdk.client import AgentClient
from openagentic_sdk.errors import OptionsError, PartError
from openagentic_sdk.events import PartState, SystemNotice, ToolResult, UserMessage
from openagentic_sdk.kernel.agent import AgentRuntime, Run
from openagentic_sdk.kernel.part import Part
from openagentic_sdk.parts.custom import MAX_STATE_BYTES, CustomPart, EndRun
from openagentic_sdk.parts.custom.run import CustomPartRun
from openagentic_sdk.parts.record.lifecycle import rewind_session
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.runs.agent_replay import replay_agent
from openagentic_sdk.runs.forked import query_forked
from openagentic_sdk.runs.replay import replay_events
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.tools.base import Tool
from openagentic_sdk.tools.function import tool
from tests.pythons import run_python
from tests.runtime.support import assert_closed, events_of, options_for, result_of

ECHO = {"tool_calls": [{"name": "echo", "arguments": {"text": "hello"}}]}


class Tally(CustomPart):
    """Counts prompts and results."""

    name = "tally"

    def __init__(self):
        self.counts = {"prompts": 0, "results": 0}

    def state(self):
        return self.counts

    def restore(self, state, version):
        self.counts = dict(state)

    async def see_prompt(self, prompt):
        self.counts["prompts"] += 1

    def see_result(self, result):
        self.counts["results"] += 1


def part_with(**seams):
    """A class of parts with these seams and attributes."""
    return type("Made", (CustomPart,), {"name": "made", **seams})


def states(events):
    """The states in the log."""
    return [event.data for event in events if isinstance(event, PartState)]


def newest_state(store, session_id):
    """The state in force at the end of a log without rewinds."""
    return states(store.read_events(session_id))[-1]


class StateTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_state_is_in_the_log_before_the_run_continues_and_only_when_it_has_changed(self):
        events = await events_of("hi", options_for([ECHO, ECHO, "done"], parts=[Tally]))
        self.assertEqual(states(events)[0], {"prompts": 0, "results": 0})
        self.assertEqual([state["results"] for state in states(events)], [0, 0, 1, 2])
        types = [event.type for event in events if event.type in ("part.state", "tool.result", "model.request")]
        self.assertEqual(
            types,
            ["part.state", "part.state", *["model.request", "tool.result", "part.state"] * 2, "model.request"],
        )
        self.assertEqual((events[-1].type, result_of(events).stop_reason), ("result", "end"))

    async def test_a_resumed_run_continues_from_the_state(self):
        store = MemorySessionStore()
        first = await run(prompt="one", options=options_for([ECHO, "done"], session_store=store, parts=[Tally]))
        again = options_for([ECHO, "done"], session_store=store, parts=[Tally], resume=first.session_id)
        await run(prompt="two", options=again)
        self.assertEqual(newest_state(store, first.session_id), {"prompts": 2, "results": 2})
        assert_closed(self, store, first.session_id)

    async def test_a_conversation_of_several_runs_keeps_one_state(self):
        store = MemorySessionStore()
        async with AgentClient(options_for([ECHO, "one", ECHO, "two"], session_store=store, parts=[Tally])) as client:
            for prompt in ("a", "b"):
                await client.send(prompt)
                async for _ in client.receive():
                    pass
            session_id = client.session_id
        self.assertEqual(newest_state(store, session_id), {"prompts": 2, "results": 2})

    async def test_a_fork_a_rewind_and_a_compaction_keep_the_state_that_belongs_there(self):
        store = MemorySessionStore()
        first = await run(prompt="one", options=options_for([ECHO, "done"], session_store=store, parts=[Tally]))
        at = store.last_seq(first.session_id)
        again = options_for([ECHO, ECHO, "done"], session_store=store, parts=[Tally], resume=first.session_id)
        await run(prompt="two", options=again)
        self.assertEqual(newest_state(store, first.session_id), {"prompts": 2, "results": 3})

        forked = options_for([ECHO, "done"], session_store=store, parts=[Tally], session_id="fork")
        async for _ in query_forked(source_id=first.session_id, prompt="three", options=forked, at_seq=at):
            pass
        self.assertEqual(newest_state(store, "fork"), {"prompts": 2, "results": 2})

        long = [{"text": "x" * 4000}, {"text": "y" * 4000}]
        more = options_for(long, session_store=store, parts=[Tally], resume=first.session_id)
        for prompt in ("four", "five"):
            await run(prompt=prompt, options=more)
        summary = options_for(["A summary."], session_store=store, parts=[Tally], resume=first.session_id)
        self.assertTrue(await compact_session(options=summary))
        await run(
            prompt="six",
            options=options_for([ECHO, "done"], session_store=store, parts=[Tally], resume=first.session_id),
        )
        self.assertEqual(newest_state(store, first.session_id), {"prompts": 5, "results": 4})

        rewind_session(store, first.session_id, to_seq=at)
        await run(
            prompt="two again", options=options_for(["ok"], session_store=store, parts=[Tally], resume=first.session_id)
        )
        self.assertEqual(newest_state(store, first.session_id), {"prompts": 2, "results": 1})

    async def test_a_replay_has_the_state_and_a_replay_by_the_agent_stores_it_again(self):
        class Insists(Tally):
            def may_end(self, answer):
                return "Echo once more." if self.counts["results"] < 2 else None

        turns = [ECHO, "early", ECHO, "done"]
        result = await run(prompt="hi", options=options_for(turns, parts=[Insists]))
        self.assertEqual((result.final_text, result.stop_reason), ("done", "end"))
        kept = states(result.events)
        replayed = await replay_events(result.events)
        self.assertEqual((replayed.ok, replayed.differences), (True, ()), replayed.error)
        self.assertEqual(states(replayed.events)[-1], kept[-1])
        by_agent = await replay_agent(result.events, options_for([], parts=[Insists]))
        self.assertTrue(by_agent.ok, by_agent.text)
        self.assertEqual(states(by_agent.events), kept)

    async def test_another_version_of_a_part_gets_the_old_state_with_its_version(self):
        given = []

        def restore(self, state, version):
            given.append((state, version))

        store = MemorySessionStore()
        old = part_with(state=lambda self: {"old": 1})
        new = part_with(version=2, state=lambda self: [2], restore=restore)
        first = await run(prompt="hi", options=options_for(["a"], session_store=store, parts=[old]))
        await run(prompt="hi", options=options_for(["b"], session_store=store, parts=[new], resume=first.session_id))
        self.assertEqual(given, [({"old": 1}, 1)])
        kept = [event for event in store.read_events(first.session_id) if isinstance(event, PartState)]
        self.assertEqual((kept[-1].version, kept[-1].data), (2, [2]))

    async def test_a_state_that_another_installation_wrote_is_not_restored_and_the_log_records_that(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "key").write_bytes(os.urandom(32))
            os.chmod(Path(folder, "key"), 0o600)
            store = MemorySessionStore()
            first = await run(prompt="hi", options=options_for(["a"], session_store=store, parts=[Tally]))
            other = options_for(
                ["b"], session_store=store, parts=[Tally], resume=first.session_id, key_file=f"{folder}/key"
            )
            events = await events_of("hi", other)
            notices = [event.message for event in events if isinstance(event, SystemNotice)]
            self.assertIn("was written by another installation", "".join(notices))
            self.assertEqual(states(events)[0], {"prompts": 1, "results": 0})  # counted again from the log

    async def test_each_part_has_a_state_of_its_own_and_so_has_a_subagent(self):
        from openagentic_sdk.options import AgentDefinition

        places = []

        class Other(Tally):
            name = "other"

            def begin(self, place):
                places.append((place.session_id, place.agent_name))

            def see_prompt(self, prompt):
                pass

        store = MemorySessionStore()
        turns = [
            {"tool_calls": [{"name": "Task", "arguments": {"agent": "helper", "prompt": "help"}}]},
            {"agent": "You help.", "text": "helped"},
            "done",
        ]
        options = options_for(
            turns, session_store=store, parts=[Tally, Other], agents={"helper": AgentDefinition("Helps.", "You help.")}
        )
        result = await run(prompt="hi", options=options)
        kept = {
            event.part: event.data for event in store.read_events(result.session_id) if isinstance(event, PartState)
        }
        self.assertEqual(kept, {"tally": {"prompts": 1, "results": 1}, "other": {"prompts": 0, "results": 1}})
        self.assertEqual([name for _, name in places], [None, "helper"])
        self.assertEqual(states(store.read_events(places[1][0]))[-1], {"prompts": 0, "results": 0})

    async def test_a_secret_in_a_state_is_masked_in_the_log(self):
        made = part_with(state=lambda self: {"note": "the key is hush-hush-value", "deep": [{"a": "hush-hush-value"}]})
        hush = lambda text: text.replace("hush-hush-value", "***")  # noqa: E731
        result = await run(prompt="hi", options=options_for(["a"], parts=[made], redact=hush))
        self.assertEqual(states(result.events), [{"note": "the key is ***", "deep": [{"a": "***"}]}] * 2)

    def test_a_killed_process_leaves_its_state_to_the_next(self):
        script = """
            import os, signal, sys
            sys.path.insert(0, sys.argv[1])
            from openagentic_sdk import *
            from openagentic_sdk.testing import ScriptedProvider
            from tests.parts.test_custom import Tally

            @tool
            def die() -> str:
                "Kill the process."
                os.kill(os.getpid(), signal.SIGKILL)

            call = {"tool_calls": [{"name": "echo", "arguments": {"text": "a"}}]}
            from tests.runtime.support import echo
            run_sync(prompt="hi", options=OpenAgenticOptions(
                provider=ScriptedProvider([call, call, {"tool_calls": [{"name": "die"}]}]), model="m", tools=[echo, die],
                permission_gate=PermissionGate(permission_mode="bypass"), parts=[Tally],
                session_store=FileSessionStore(sys.argv[2]), session="killed"))
        """
        root = Path(__file__).resolve().parents[2]
        with tempfile.TemporaryDirectory() as folder:
            done = run_python("-c", textwrap.dedent(script), str(root), folder, text=True, timeout=300)
            self.assertEqual(done.returncode, -signal.SIGKILL, done.stderr)
            store = FileSessionStore(folder)
            options = options_for([ECHO, "done"], session_store=store, parts=[Tally], session="killed")
            asyncio.run(run(prompt="go on", options=options))
            # Two prompts; two earlier results, that of the call which killed the process, and one of this run.
            self.assertEqual(newest_state(store, "killed"), {"prompts": 2, "results": 4})


class BlockTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_block_is_appended_when_it_changes_and_what_was_sent_before_stays(self):
        class Shown(Tally):
            def block(self):
                return f"{self.counts['results'] // 2 * 2} results so far."

        options = options_for([ECHO, ECHO, ECHO, "done"], parts=[Shown])
        events = await events_of("hi", options)
        told = [(e.about, e.text) for e in events if isinstance(e, UserMessage) and e.origin == "context"]
        self.assertEqual([about for about, _ in told], ["part:tally"] * 2)
        self.assertEqual(told[0][1], "0 results so far.")
        self.assertTrue(told[1][1].endswith("2 results so far."))
        requests = [request["messages"] for request in options.provider.requests]
        for before, after in itertools.pairwise(requests):
            self.assertEqual(after[: len(before)], before)

    async def test_a_resumed_session_gets_no_second_notice_and_one_without_the_part_gets_one(self):
        made = part_with(block=lambda self: "The shop is open.")
        store = MemorySessionStore()
        first = await run(prompt="hi", options=options_for(["a"], session_store=store, parts=[made]))
        limits = {"max_context_tokens": 100_000}  # the compaction reads the context before the part is called
        for parts, told in (([made], []), ([], ["part:made"])):
            options = options_for(["b"], session_store=store, parts=parts, resume=first.session_id, **limits)
            events = await events_of("hi", options)
            found = [e for e in events if isinstance(e, UserMessage) and e.about]
            self.assertEqual([e.about for e in found], told)
        # Logs contain this text, and a resume compares with it: reworded, old sessions would get it again.
        self.assertEqual(found[0].text, "This is not there any more, and what it said is not in force: part made")

    async def test_a_secret_in_a_block_is_masked_for_the_model_and_the_log(self):
        made = part_with(block=lambda self: "hush-hush-value", may_end=lambda self, answer: None)
        hush = lambda text: text.replace("hush-hush-value", "***")  # noqa: E731
        options = options_for(["a"], parts=[made], redact=hush)
        await run(prompt="hi", options=options)
        self.assertNotIn("hush-hush", json.dumps(options.provider.requests, default=str))


class EndTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_part_sends_the_model_back_to_work_until_it_lets_the_run_end(self):
        heard = []

        def may_end(self, answer):
            heard.append(answer)
            return "Not yet." if len(heard) < 2 else None

        ended = []
        made = part_with(may_end=may_end, end=lambda self, reason: ended.append(reason))
        result = await run(prompt="hi", options=options_for(["one", "two"], parts=[made]))
        self.assertEqual((heard, result.final_text, result.stop_reason, ended), (["one", "two"], "two", "end", ["end"]))
        sent = [event for event in result.events if isinstance(event, UserMessage) and event.origin == "part"]
        self.assertEqual([event.text for event in sent], ["Not yet."])

    async def test_it_is_asked_about_an_answer_that_a_call_gives_too(self):
        heard = []
        made = part_with(may_end=lambda self, answer: heard.append(answer))
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        turns = [{"tool_calls": [{"name": "final_answer", "arguments": {"a": 1}}]}]
        options = options_for(turns, parts=[made], output_schema=schema, output_form="tool")
        result = await run(prompt="hi", options=options)
        self.assertEqual((heard, result.structured_output), (['{"a":1}'], {"a": 1}))

    async def test_one_that_never_lets_go_is_ended_by_max_steps(self):
        made = part_with(may_end=lambda self, answer: "Again.")
        result = await run(prompt="hi", options=options_for(["a"] * 9, parts=[made], max_steps=3))
        self.assertEqual(result.stop_reason, "max_steps")

    async def test_changes_at_the_end_of_a_run_are_in_the_state(self):
        class Ends(Tally):
            def end(self, stop_reason):
                self.counts["ended"] = stop_reason

        result = await run(prompt="hi", options=options_for(["a"], parts=[Ends]))
        self.assertEqual(states(result.events)[-1]["ended"], "end")
        self.assertEqual(result.events[-1].type, "result")


class AnswersTest(unittest.IsolatedAsyncioTestCase):
    async def test_each_answer_of_the_model_is_shown_once_and_in_the_order_of_the_log(self):
        seen = []
        look = {"see_answer": lambda self, answer: seen.append(answer.text)}
        made = part_with(see_result=lambda self, result: seen.append(result.tool), **look)
        beside = {"text": "I look.", **ECHO}
        options = options_for([beside, "It is there."], parts=[made])
        result = await run(prompt="hi", options=options)
        self.assertEqual((seen, result.stop_reason), (["I look.", "echo", "It is there."], "end"))

    async def test_the_usage_of_each_request_is_passed_once_before_its_answer_even_after_a_resume(self):
        seen = []
        made = part_with(
            see_cost=lambda self, cost: seen.append(cost.usage["output_tokens"]),
            see_answer=lambda self, answer: seen.append(answer.text),
            state=lambda self: {"seen": len(seen)},
        )

        def answer(number, **said):
            return {**said, "usage": {"input_tokens": 3, "output_tokens": number}}

        store = MemorySessionStore()
        options = options_for([answer(1, **ECHO), answer(2, text="There.")], session_store=store, parts=[made])
        result = await run(prompt="hi", options=options)
        options = options_for([answer(3, text="Yes.")], session_store=store, parts=[made], resume=result.session_id)
        await run(prompt="and?", options=options)
        self.assertEqual(seen, [1, 2, "There.", 3, "Yes."])

    async def test_a_part_ends_a_run_in_order_from_any_seam_and_its_state_is_kept(self):
        def stop(self, *given):
            raise EndRun("it is enough", "budget")

        for seam in ("begin", "see_prompt", "see_cost", "see_answer", "see_result", "before_step", "block", "may_end"):
            with self.subTest(seam):
                made = part_with(state=lambda self: {"kept": True}, **{seam: stop})
                options = options_for([{"text": "I look.", **ECHO}, "Done."], parts=[made])
                result = await run(prompt="hi", options=options)
                self.assertEqual((result.stop_reason, result.error_message), ("budget", "it is enough"))
                self.assertEqual(states(result.events)[-1], {"kept": True})

    async def test_a_reason_that_no_run_ends_with_is_an_error_of_the_part(self):
        def see_result(self, result):
            raise EndRun("it is enough", "because")

        result = await run(prompt="hi", options=options_for([ECHO, "Done."], parts=[part_with(see_result=see_result)]))
        self.assertEqual((result.stop_reason, result.error_type), ("error", "PartError"))
        self.assertIn("stop_reason must be one of end, budget, interrupted, not 'because'", result.error_message)

    async def test_at_the_end_it_is_too_late_to_end_a_run(self):
        def stop(self, stop_reason):
            raise EndRun("it is enough")

        result = await run(prompt="hi", options=options_for(["a"], parts=[part_with(end=stop)]))
        self.assertEqual(result.stop_reason, "end")
        self.assertEqual(
            [event.message for event in result.events if isinstance(event, SystemNotice)], ["it is enough"]
        )


class ForbiddenTest(unittest.IsolatedAsyncioTestCase):
    async def test_changing_what_it_was_given_changes_nothing(self):
        def see_result(self, result):
            result.output["rows"].append("forged")
            result.input["text"] = "forged"
            with_error = []
            for name in ("output", "tool", "outcome"):
                try:
                    setattr(result, name, "forged")
                except AttributeError as error:
                    with_error.append(error)
            assert len(with_error) == 3

        @tool(effect="read")
        async def rows(text: str) -> dict:
            """Give rows."""
            return {"rows": [text]}

        call = {"tool_calls": [{"name": "rows", "arguments": {"text": "a"}}]}
        options = options_for([call, "done"], tools=[rows], parts=[part_with(see_result=see_result)])
        events = await events_of("hi", options)
        self.assertEqual(result_of(events).stop_reason, "end")
        (result,) = [event for event in events if isinstance(event, ToolResult)]
        self.assertEqual(result.output, {"rows": ["a"]})
        self.assertNotIn("forged", json.dumps(options.provider.requests, default=str))
        self.assertNotIn("forged", "".join(map(repr, events)))

    async def test_a_changed_result_is_refused(self):
        for seam in ("see_prompt", "see_result"):
            made = part_with(**{seam: lambda self, seen: {"output": "forged"}})
            result = await run(prompt="hi", options=options_for([ECHO, "done"], parts=[made]))
            self.assertEqual((result.stop_reason, result.error_type), ("error", "PartError"))
            self.assertIn("a part only observes", result.error_message)

    async def test_nothing_in_its_hands_leads_to_a_run_a_tool_or_the_log(self):
        parts = []

        class Looks(Tally):
            def begin(self, place):
                self.seen = [place]
                parts.append(self)

            def see_prompt(self, prompt):
                self.seen.append(prompt)

            def see_result(self, result):
                self.seen.append(result)

        await run(prompt="hi", options=options_for([ECHO, "done"], parts=[Looks]))
        known, waiting = set(), [*parts[0].seen]
        while waiting:
            value = waiting.pop()
            if id(value) in known or isinstance(value, type):
                continue
            known.add(id(value))
            self.assertNotIsInstance(value, Run | AgentRuntime | Part | Tool | PermissionGate | MemorySessionStore)
            self.assertFalse(callable(value), value)
            waiting += gc.get_referents(value)
        self.assertGreater(len(known), 5)

    async def test_it_reads_what_is_stored_and_never_what_was_masked(self):
        seen = []
        made = part_with(
            see_prompt=lambda self, prompt: seen.append(prompt) and None,
            see_result=lambda self, result: seen.append(result) and None,
            may_end=lambda self, answer: seen.append(answer),
        )
        hush = lambda text: text.replace("hush-hush-value", "***")  # noqa: E731
        call = {"tool_calls": [{"name": "echo", "arguments": {"text": "hush-hush-value"}}]}
        fails = {"tool_calls": [{"name": "fail", "arguments": {"text": "hush-hush-value"}}]}
        options = options_for([call, fails, "it was hush-hush-value"], parts=[made], redact=hush)
        await run(prompt="say hush-hush-value", options=options)
        self.assertEqual(len(seen), 4)
        self.assertNotIn("hush-hush-value", repr(seen))
        self.assertEqual(repr(seen).count("***"), 6)

    def test_settings_and_agent_files_name_no_parts(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, ".claude").mkdir()
            Path(folder, ".claude", "settings.json").write_text('{"parts": ["tests.parts.test_custom:Tally"]}')
            options = options_for([], cwd=folder, setting_sources=("project",), trust_project=True)
            kinds = [getattr(opener, "func", opener) for opener in build_agent(options).parts]
            self.assertNotIn(CustomPartRun, kinds)
            Path(folder, "agents.toml").write_text(
                '[agents.a]\nmodel = "m"\nparts = ["tests.parts.test_custom:Tally"]\n'
            )
            with self.assertRaisesRegex(OptionsError, "no setting 'parts'"):
                load_agents(f"{folder}/agents.toml")

    def test_a_client_names_no_parts(self):
        from openagentic_sdk.agents import Agents

        with self.assertRaisesRegex(OptionsError, "a client cannot set 'parts'"):
            Agents({"a": options_for([])}).options("a", {"parts": ["x"]})

    def test_parts_are_added_and_none_is_removed(self):
        without, with_one = build_agent(options_for([])), build_agent(options_for([], parts=[Tally]))
        kinds = [[getattr(opener, "func", opener) for opener in agent.parts] for agent in (without, with_one)]
        self.assertEqual([kind for kind in kinds[1] if kind is not CustomPartRun], kinds[0])
        self.assertEqual(kinds[1].count(CustomPartRun), 1)


class FailureTest(unittest.IsolatedAsyncioTestCase):
    async def test_one_that_raises_at_any_seam_ends_the_run_with_its_name_and_the_session_continues(self):
        def boom(self, *given):
            raise ValueError("boom")

        for seam in ("__init__", "begin", "state", "see_prompt", "see_result", "before_step", "block", "may_end"):
            with self.subTest(seam):
                store = MemorySessionStore()
                options = options_for([ECHO, "done"], session_store=store, parts=[part_with(**{seam: boom})])
                result = await run(prompt="hi", options=options)
                self.assertEqual((result.stop_reason, result.error_type), ("error", "PartError"))
                for words in ("part 'made'", seam, "ValueError: boom", "OpenAgenticOptions.parts"):
                    self.assertIn(words, result.error_message)
                assert_closed(self, store, result.session_id)
                again = options_for(["fine"], session_store=store, resume=result.session_id)
                self.assertEqual((await run(prompt="go on", options=again)).stop_reason, "end")

    async def test_an_exception_that_would_end_the_process_ends_only_the_run(self):
        def leave(self):
            raise SystemExit(3)

        async def cancel(self):
            raise asyncio.CancelledError

        for seam in (leave, cancel):
            result = await run(prompt="hi", options=options_for(["a"], parts=[part_with(before_step=seam)]))
            self.assertEqual((result.stop_reason, result.error_type), ("error", "PartError"))

    async def test_one_that_fails_at_the_end_is_a_notice(self):
        def boom(self, reason):
            raise ValueError("boom")

        result = await run(prompt="hi", options=options_for(["a"], parts=[part_with(end=boom)]))
        self.assertEqual(result.stop_reason, "end")
        (notice,) = [event for event in result.events if isinstance(event, SystemNotice)]
        self.assertEqual((notice.code, notice.details), ("part.end", {"part": "made"}))
        self.assertIn("boom", notice.message)

    async def test_one_that_hangs_is_left_behind_and_the_run_ends(self):
        never = threading.Event()
        self.addCleanup(never.set)

        async def hang_async(self):
            await asyncio.Event().wait()

        for seam in (lambda self: never.wait(), hang_async):
            made = part_with(before_step=seam, timeout_s=0.05)
            result = await run(prompt="hi", options=options_for(["a"], parts=[made]))
            self.assertEqual((result.stop_reason, result.error_type), ("error", "PartError"))
            self.assertIn("did not return within 0.05 s", result.error_message)

    async def test_a_hanging_part_can_be_cancelled_and_its_session_continues(self):
        never, entered = threading.Event(), asyncio.Event()
        self.addCleanup(never.set)
        loop = asyncio.get_running_loop()

        def hang(self):
            loop.call_soon_threadsafe(entered.set)
            never.wait()

        store = MemorySessionStore()
        options = options_for(["a"], parts=[part_with(before_step=hang)], session_store=store, session="s")

        async def consume():
            async for _ in query(prompt="hi", options=options):
                pass

        consumer = asyncio.create_task(consume())
        await entered.wait()
        consumer.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await consumer
        events = assert_closed(self, store, "s")
        self.assertEqual(events[-1].stop_reason, "interrupted")
        again = options_for(["fine"], session_store=store, resume="s")
        self.assertEqual((await run(prompt="go on", options=again)).stop_reason, "end")

    async def test_a_state_that_cannot_be_kept_is_refused_with_its_size_or_kind(self):
        for state, words in (
            ({1, 2}, "set is not JSON serializable"),
            (float("nan"), "JSON"),
            ("x" * MAX_STATE_BYTES, f"{MAX_STATE_BYTES + 2} bytes, and the limit is {MAX_STATE_BYTES}"),
        ):
            made = part_with(state=lambda self, state=state: state)
            result = await run(prompt="hi", options=options_for(["a"], parts=[made]))
            self.assertEqual((result.stop_reason, result.error_type), ("error", "PartError"))
            self.assertIn(words, result.error_message)
            self.assertEqual(states(result.events), [])

    async def test_a_block_or_reason_that_is_not_text_is_refused(self):
        for seam in ("block", "may_end"):
            for value in (True, False, "", " ", 3, b"x", "x" * 70_000):
                made = part_with(**{seam: lambda self, *given, value=value: value})
                result = await run(prompt="hi", options=options_for(["a", "b"], parts=[made]))
                self.assertEqual((result.stop_reason, result.error_type), ("error", "PartError"), value)
                self.assertIn("return a non-blank string of at most 65536 bytes, or None", result.error_message)

    def test_bad_parts_are_refused_with_the_value_and_a_remedy(self):
        class Nameless(CustomPart):
            pass

        class Kernels(Part):
            pass

        for parts, words in (
            (Tally, "parts must be a list"),
            ("tally", "parts must be a list of subclasses of CustomPart, not 'tally'"),
            ({"tally": Tally}, "parts must be a list"),
            ([Tally()], r"parts\[0\] is a Tally instance: list the class"),
            ([lambda: Tally()], r"parts\[0\] must be a subclass of CustomPart"),
            ([Tally, 3], r"parts\[1\] must be .*, not 3"),
            ([Kernels], r"parts\[0\] must be a subclass of CustomPart"),
            ([CustomPart], r"the name of CustomPart is ''"),
            ([Nameless], r"the name of Nameless is ''"),
            ([part_with(name="a b")], "the name of Made is 'a b': use 1 to 64 letters"),
            ([part_with(name="ärger")], "the name of Made"),
            ([part_with(name="x" * 65)], "the name of Made"),
            ([part_with(name="a\n")], "the name of Made"),
            ([part_with(name=7)], "the name of Made is 7"),
            ([Tally, partial(Tally)], r"two parts are named 'tally': give Tally \(parts\[1\]\)"),
            ([part_with(see_results=lambda self, result: None)], "Made.see_results is not a seam .* mean see_result"),
            ([part_with(beforeStep=lambda self: None)], "did you mean before_step"),
            ([part_with(see_pormpt=lambda self, prompt: None)], "did you mean see_prompt"),
            ([part_with(see_anser=lambda self, answer: None)], "did you mean see_answer"),
            ([part_with(_state=1, send=2, lock=3, seen=4, verison=2)], "Made.verison is not a seam .* mean version"),
            ([part_with(version=0)], "version of 'made' must be a whole number of at least 1, not 0"),
            ([part_with(version="1")], "version of 'made'"),
            ([part_with(timeout_s=-1)], "timeout_s of 'made'"),
        ):
            with self.subTest(words), self.assertRaisesRegex(OptionsError, words):
                build_agent(options_for([], parts=parts))

    def test_a_public_name_that_the_part_uses_or_that_resembles_none_is_not_taken_for_a_misspelt_seam(self):
        class Stages(CustomPart):
            name = "stages"
            names = ("first", "last")
            stage = 0

            def blocks(self) -> list[str]:
                return [f"{name} {self.stage}" for name in self.names]

            def block(self) -> str:
                return "\n".join(text for text in (lambda: self.blocks())())

            @property
            def ends(self) -> bool:
                return self.stage > 1

            def may_end(self, answer: str) -> str | None:
                return None if self.ends else "Go on."

            def see_prompt_of_a_person(self, prompt: object) -> None: ...

            def end_report(self) -> str:
                return ""

        build_agent(options_for([], parts=[Stages]))

    def test_the_error_carries_its_values(self):
        error = PartError("tally", "begin", "boom")
        self.assertEqual((error.part, error.seam, error.problem), ("tally", "begin", "boom"))


class PartialTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_part_with_settings_is_listed_as_a_partial(self):
        class Told(CustomPart):
            name = "told"

            def __init__(self, text):
                self.text = text

            async def block(self):
                return self.text

        options = options_for(["a"], parts=[partial(Told, "It rains.")])
        await run(prompt="hi", options=options)
        self.assertIn("It rains.", json.dumps(options.provider.requests[0]["messages"]))
        self.assertEqual(len([r for r in options.provider.requests if r]), 1)


if __name__ == "__main__":
    unittest.main()
