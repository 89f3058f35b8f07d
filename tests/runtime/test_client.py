"""Several turns in one session through `AgentClient`."""

import asyncio
import unittest

from openagentic_sdk.client import AgentClient
from openagentic_sdk.errors import OptionsError
from openagentic_sdk.options import AgentDefinition, OpenAgenticOptions
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.testing.scripted import ScriptedProvider

from .support import assert_closed, options_for, result_of

ECHO = {"name": "echo", "arguments": {"text": "x"}}
TASK = {"tool_calls": [{"name": "Task", "arguments": {"agent": "a", "prompt": "p"}}]}


async def received(client):
    return [event async for event in client.receive()]


class ClientTest(unittest.IsolatedAsyncioTestCase):
    async def test_turns_share_one_session_and_the_model_sees_all_of_them(self):
        provider = ScriptedProvider(["first", "second"])
        options = options_for(provider)
        async with AgentClient(options) as client:
            await client.send("one")
            first = result_of(await received(client))
            await client.send("two")
            second = result_of(await received(client))
            self.assertEqual(client.state, "connected")
        self.assertEqual(first.session_id, second.session_id)
        self.assertEqual([m["content"] for m in provider.requests[1]["messages"][1:]], ["one", "first", "two"])
        self.assertEqual(client.state, "closed")
        assert_closed(self, options.session_store, first.session_id)

    async def test_a_message_sent_while_a_turn_runs_is_delivered_at_the_next_step_and_recorded(self):
        provider = ScriptedProvider([{"tool_calls": [ECHO]}, "Understood."])
        options = options_for(provider)
        async with AgentClient(options) as client:
            await client.send("start")
            async for event in client.receive():
                if event.type == "tool.use":
                    await client.send("in French, please")
        self.assertEqual(provider.requests[1]["messages"][-1]["content"], "in French, please")
        events = options.session_store.read_events(client.session_id)
        self.assertEqual([e.origin for e in events if e.type == "user.message"], ["user", "steering"])

    async def test_an_interrupted_turn_ends_with_its_result_and_the_next_one_continues(self):
        options = options_for([{"tool_calls": [ECHO]}, "never seen", "hello again"])
        async with AgentClient(options) as client:
            await client.send("start")
            events = []
            async for event in client.receive():
                events.append(event)
                if event.type == "tool.use":
                    await client.interrupt()
            self.assertEqual(result_of(events).stop_reason, "interrupted")
            assert_closed(self, options.session_store, client.session_id)
            await client.send("again")
            self.assertEqual(result_of(await received(client)).final_text, "never seen")

    async def test_a_turn_that_is_still_being_opened_can_be_interrupted(self):
        options = options_for(["one", "two"])
        async with AgentClient(options) as client:
            await client.send("1")
            turn = asyncio.create_task(received(client))
            await asyncio.sleep(0)  # its first step opens the session, in a thread
            self.assertEqual(client.state, "running")
            await client.interrupt()
            self.assertEqual(result_of(await turn).stop_reason, "interrupted")
            await client.send("2")
            self.assertEqual(result_of(await received(client)).stop_reason, "end")

    async def test_the_model_can_change_between_steps(self):
        provider = ScriptedProvider([{"tool_calls": [ECHO]}, "Done."])
        async with AgentClient(options_for(provider)) as client:
            await client.send("start")
            async for event in client.receive():
                if event.type == "tool.use":
                    client.set_model("scripted-2")
        self.assertEqual([request["model"] for request in provider.requests], ["scripted-1", "scripted-2"])

    async def test_metrics_add_up(self):
        turn = {"tool_calls": [ECHO, {"name": "fail"}], "usage": {"input_tokens": 10, "output_tokens": 5}}
        async with AgentClient(
            options_for([turn, {"text": "ok", "usage": {"input_tokens": 20, "output_tokens": 1}}])
        ) as client:
            await client.send("start")
            await received(client)
            metrics = client.metrics()
        self.assertEqual((metrics.messages, metrics.tool_calls, metrics.errors), (3, 2, 1))
        self.assertEqual((metrics.input_tokens, metrics.output_tokens, metrics.cost_usd), (30, 6, None))
        self.assertGreater(metrics.seconds, 0)

    async def test_using_a_closed_client_is_an_error_with_a_remedy(self):
        client = AgentClient(options_for([]))
        with self.assertRaisesRegex(OptionsError, "connect it first"):
            await client.send("hi")
        async with client:
            pass
        with self.assertRaisesRegex(OptionsError, "create another one"):
            await client.send("hi")

    async def test_a_consumer_that_walks_away_ends_the_turn(self):
        options = options_for([{"text": "a long answer", "deltas": 2}])
        async with AgentClient(options) as client:
            await client.send("start")
            async for event in client.receive():
                if event.type == "assistant.delta":
                    break
        await asyncio.sleep(0)  # Python closes the generator in a task of its own
        self.assertEqual([t for t in asyncio.all_tasks() if t is not asyncio.current_task()], [])
        assert_closed(self, options.session_store, client.session_id)

    async def test_a_store_that_would_be_empty_at_each_turn_is_refused_before_the_first(self):
        options = OpenAgenticOptions(provider=ScriptedProvider(["Hi."]), model="m", session_store="memory:")
        with self.assertRaisesRegex(OptionsError, r"empty store for each turn: create a MemorySessionStore\(\)"):
            await AgentClient(options).connect()

    async def test_an_invalid_model_is_refused_and_changes_nothing(self):
        async with AgentClient(options_for(["hello"])) as client:
            with self.assertRaisesRegex(OptionsError, "model"):
                client.set_model(3)
            await client.send("hi")
            self.assertEqual(result_of(await received(client)).stop_reason, "end")

    async def test_a_mode_that_changes_while_a_subagent_works_holds_for_its_next_call(self):
        calls = {"tool_calls": [ECHO]}
        for mode, outcomes in (("deny", ["ok", "denied", "ok"]), ("bypass", ["ok", "ok", "ok"])):
            options = options_for([TASK, calls, calls, "Helped.", "Done."], agents={"a": AgentDefinition("d", "Help.")})
            async with AgentClient(options) as client:
                await client.send("go")
                results = []
                async for event in client.receive():
                    if event.type == "tool.result":
                        results.append(event.outcome)
                        if len(results) == 1:
                            client.set_permission_mode(mode)
                self.assertEqual(results, outcomes)

    async def test_a_subagent_that_starts_later_has_the_mode_and_model_of_then(self):
        turns = [{"tool_calls": [ECHO]}, TASK, {"tool_calls": [{"name": "fail"}]}, "Helped.", "Done."]
        provider = ScriptedProvider(turns)
        options = options_for(provider, agents={"a": AgentDefinition("d", "Help.")}, allowed_tools=["Task"])
        async with AgentClient(options) as client:
            await client.send("go")
            results = []
            async for event in client.receive():
                if event.type == "tool.result":
                    results.append(event.outcome)
                    if len(results) == 1:
                        client.set_permission_mode("dontAsk")
                        client.set_model("another")
        self.assertEqual(results, ["ok", "denied", "ok"])
        self.assertEqual([request["model"] for request in provider.requests], ["scripted-1", *["another"] * 4])

    async def test_changing_the_mode_leaves_the_rules_unchanged(self):
        options = options_for(
            [{"tool_calls": [ECHO]}, "one", {"tool_calls": [ECHO]}, "two"],
            allowed_tools=["Read", "echo"],
            permission_gate=PermissionGate(),
        )
        async with AgentClient(options) as client:
            digests = []
            for prompt in ("one", "two"):
                await client.send(prompt)
                decision = next(e for e in await received(client) if e.type == "permission.decision")
                digests.append(decision.policy_sha256)
                for _ in range(3):
                    client.set_permission_mode("default")
        self.assertEqual(digests[0], digests[1])

    async def test_a_mode_that_changes_while_a_turn_runs_forgets_nothing_that_a_person_allowed(self):
        asked = []

        async def always(question):
            asked.append(question)
            return "always"

        gate = PermissionGate(permission_mode="prompt", user_answerer=always)
        call = {"tool_calls": [{"name": "fail"}]}
        async with AgentClient(options_for([call, call, "done"], permission_gate=gate)) as client:
            await client.send("go")
            async for event in client.receive():
                if event.type == "tool.result":
                    client.set_permission_mode("default")
        self.assertEqual(len(asked), 1)


if __name__ == "__main__":
    unittest.main()
