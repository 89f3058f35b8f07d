"""The turns of one session: what waits for which turn, who may begin one, and where the session continues."""

from __future__ import annotations

import ast
import os
import tempfile
import unittest
from dataclasses import replace

from openagentic_sdk import AgentClient, MemorySessionStore, PermissionGate, submit, tool
from openagentic_sdk.errors import OptionsError, QuestionOpenError, ScriptMismatchError
from openagentic_sdk.events import UserMessage
from openagentic_sdk.kernel.prompt import Said
from openagentic_sdk.runs.turns import Turns
from openagentic_sdk.testing.scripted import ScriptedProvider
from tests.guards.source import nodes_of, package_modules
from tests.runtime.support import fail, options_for
from tests.size import full_size

ASK = {"tool_calls": [{"name": "fail", "arguments": {}}]}


async def played(turns, prompt, late=()):
    """Play the turn of a prompt to its end; `late` messages are sent once it has its result."""
    turn = await turns.begin(prompt)
    try:
        while (event := await turns.next_event(turn)) is not None:
            for said in late if event.type == "result" else ():
                turns.say(said)
    finally:
        await turns.end(turn)
    return turns.result.stop_reason


class Waiting(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.store = MemorySessionStore()

    def parking(self, turns, **more):
        """Options under which `fail` asks, and nobody answers."""
        return options_for(turns, tools=[fail], permission_gate=PermissionGate(), session_store=self.store, **more)

    def messages(self, turns):
        events = self.store.read_events(turns.session_id)
        return [(event.text, event.origin) for event in events if isinstance(event, UserMessage)]

    async def test_messages_that_a_turn_did_not_read_precede_later_prompts(self):
        turns = Turns(options_for(["1", "2", "3", "4"], session_store=self.store))
        for text in ("one", "last"):
            turns.say(text)
        await played(turns, turns.next_prompt(), late=["b", "c"])
        while (said := turns.next_prompt()) is not None:
            await played(turns, said)
        self.assertEqual(self.messages(turns), [(text, "user") for text in ("one", "b", "c", "last")])

    async def test_while_a_question_is_open_only_a_sender_who_may_answer_begins_the_next_turn(self):
        turns = Turns(self.parking([ASK, "Good."]), parks=True)
        guest, owner = Said("guest", may_answer=False), Said("owner")
        self.assertEqual(await played(turns, "go", late=[guest, owner]), "waiting")
        self.assertEqual([question.kind for question in turns.questions], ["permission"])
        self.assertEqual(turns.next_prompt(), owner)
        self.assertIsNone(turns.next_prompt())
        self.assertEqual(await played(turns, owner), "end")
        self.assertEqual(turns.next_prompt(), guest)
        self.assertEqual(turns.questions, [])

    async def test_a_turn_that_may_not_begin_changes_nothing_and_the_next_one_continues(self):
        turns = Turns(self.parking([ASK, "Good."]), parks=True)
        await played(turns, "go")
        before = self.store.read_events(turns.session_id)
        with self.assertRaises(QuestionOpenError):
            await turns.begin(Said("guest", may_answer=False))
        self.assertEqual((turns.running, self.store.read_events(turns.session_id)), (None, before))
        self.assertEqual(await played(turns, "never mind"), "end")

    async def test_a_withdrawn_message_reaches_no_turn(self):
        turns = Turns(options_for(["1", "2"], session_store=self.store))
        turns.say("later")
        turn = await turns.begin("one")
        turns.say("meanwhile")
        self.assertEqual([said.text for said in turns.take_back()], ["meanwhile", "later"])
        while await turns.next_event(turn) is not None:
            pass
        await turns.end(turn)
        self.assertEqual((turns.next_prompt(), self.messages(turns)), (None, [("one", "user")]))

    async def test_the_request_id_of_the_options_names_the_first_prompt(self):
        turns = Turns(options_for(["1", "2"], session_store=self.store, session="s", request_id="r1"))
        for text in ("one", "two"):
            await played(turns, text)
        events = [event for event in self.store.read_events("s") if isinstance(event, UserMessage)]
        self.assertEqual([(event.text, event.request_id) for event in events], [("one", "r1"), ("two", None)])

    async def test_messages_that_wait_for_an_answer_are_read_in_the_turn_that_continues_with_it(self):
        @tool
        async def tell() -> str:
            """Let a guest say something while the turn runs."""
            background.send(Said("guest", may_answer=False))
            return "told"

        both = {"tool_calls": [{"name": "tell", "arguments": {}}, *ASK["tool_calls"]]}
        options = replace(self.parking([both, "Good."]), tools=[tell, fail], allowed_tools=["tell"])
        background = submit("go", options)
        [question] = (await background.wait()).questions
        await background.answer(question.question_id, "no")
        self.assertEqual((await background.wait()).state, "ended")
        events = [event for event in self.store.read_events(background.session_id) if isinstance(event, UserMessage)]
        self.assertEqual([(event.text, event.origin) for event in events], [("go", "user"), ("guest", "steering")])


class Clients(unittest.IsolatedAsyncioTestCase):
    async def test_a_second_receive_while_a_turn_runs_is_refused_and_the_turn_continues(self):
        async with AgentClient(options_for(["hello"])) as client:
            await client.send("hi")
            types = []
            async for event in client.receive():
                if not types:
                    with self.assertRaisesRegex(OptionsError, "running: wait until the turn has ended"):
                        await anext(client.receive())
                types.append(event.type)
            self.assertEqual((types[-1], client.state), ("result", "connected"))

    async def test_a_request_that_the_script_does_not_expect_is_raised_as_query_raises_it(self):
        async with AgentClient(options_for(ScriptedProvider([{"text": "x", "expect": {"last": "tea"}}]))) as client:
            await client.send("coffee")
            with self.assertRaises(ScriptMismatchError):
                async for _ in client.receive():
                    pass

    async def test_a_prompt_waits_until_what_kept_its_turn_from_beginning_is_put_right(self):
        with tempfile.TemporaryDirectory() as folder:
            cwd = os.path.join(folder, "work")
            os.mkdir(cwd)
            async with AgentClient(options_for(["hello"], cwd=cwd)) as client:
                await client.send("hi")
                os.rmdir(cwd)
                with self.assertRaisesRegex(OptionsError, "is not a folder"):
                    await anext(client.receive())
                os.mkdir(cwd)
                self.assertEqual([event.type async for event in client.receive()][-1], "result")


class Doors(unittest.TestCase):
    @full_size
    def test_nobody_but_the_kernel_and_the_parts_reaches_into_a_run(self):
        reached = [
            f"{module.path}:{node.lineno} {node.attr}"
            for module in package_modules().values()
            if module.room not in ("kernel", "parts")
            for node in nodes_of(module)
            if isinstance(node, ast.Attribute) and node.attr in ("inbox", "parked", "stopping")
        ]
        self.assertEqual(reached, [])


if __name__ == "__main__":
    unittest.main()
