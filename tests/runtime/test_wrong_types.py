"""A value of a wrong type is refused by the public functions in one sentence, before anything happens."""

from __future__ import annotations

import asyncio
import inspect
import re
import unittest
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from openagentic_sdk import (
    Agent,
    FileSessionStore,
    Flow,
    MemorySessionStore,
    OpenAgenticOptions,
    Workflow,
    answer_question,
    workflow,
)
from openagentic_sdk.agents import Agents, NamedAgent, Repository, load_agents
from openagentic_sdk.errors import AgentNotFoundError, OptionsError, SuiteError
from openagentic_sdk.evals.run import run_suite
from openagentic_sdk.evals.scorers import Calls
from openagentic_sdk.evals.suite import Case, Suite, Variant, check_suite, load_suite
from openagentic_sdk.evals.testcase import eval_tests
from openagentic_sdk.fleet.fleet import Fleet
from openagentic_sdk.fleet.worker import Worker
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.testing import ScriptedProvider
from tests.size import full_size

Call = Callable[[Any], Any]


def say(text: str) -> str:
    """Return the text."""
    return text


@workflow
async def inner(flow: Flow, text: str = "") -> str:
    return text


def named(**fields: Any) -> Agents:
    return Agents({"tea": NamedAgent(OpenAgenticOptions(provider=ScriptedProvider([]), model="m"), **fields)})


def suite(**fields: Any) -> Suite:
    return check_suite(Suite(**{"name": "s", "cases": [Case(log="x")], **fields}))


class WrongTypes(unittest.TestCase):
    def assert_refused(self, calls: dict[str, Call], *values: Any, error: type[OptionsError] = OptionsError) -> None:
        async def outcome(call: Call, value: Any) -> None:
            returned = call(value)
            if inspect.isawaitable(returned):
                await returned

        for name, call in calls.items():
            for value in values:
                with self.subTest(name, value=value):
                    with self.assertRaises(error) as caught:
                        asyncio.run(outcome(call, value))
                    self.assertIn(re.sub(r"^<(object).*", r"<\1", repr(value)), str(caught.exception))

    def test_agents(self) -> None:
        agents, typed = named(), Agent(ScriptedProvider([]), output=int)
        calls: dict[str, Call] = {
            "client_modes": lambda value: named(client_modes=value),
            "accepts": lambda value: named(accepts=value),
            "description": lambda value: named(description=value),
            "workspaces": lambda value: named(workspaces=value),
            "url": lambda value: named(workspaces={"w": Repository(url=value)}),
            "allow": lambda value: named(workspaces={"w": Repository(url="https://x.example/y", allow=value)}),
            "wishes": lambda value: agents.options("tea", value),
            "wishes of a guest": lambda value: agents.check_no_looser("tea", value),
            "load_agents": load_agents,
            "read_answer": typed.read_answer,
            "output": lambda value: Agent("m", output=value),
            "question_id": lambda value: answer_question(MemorySessionStore(), "s", value, "yes"),
        }
        self.assert_refused(calls, 3, object())
        self.assert_refused({"output": lambda value: Agent("m", output=value)}, "", "1 +", "a\0")
        with self.assertRaises(AgentNotFoundError):
            agents.options([])  # type: ignore[arg-type]
        self.assertNotIn([], agents)

    def test_names_of_functions_and_modules_that_cannot_be_called_or_found(self) -> None:
        for load, error in ((load_agents, OptionsError), (load_suite, SuiteError)):
            for where in ("json:dumps", "os.path:join", ".json:x"):
                with self.subTest(where, load=load.__name__), self.assertRaises(error) as caught:
                    load(where)
                self.assertRegex(str(caught.exception), "without arguments|is relative")
        with self.assertRaisesRegex(SuiteError, "the function raised SystemExit"):
            load_suite("sys:exit")

    def test_operations_of_a_workflow(self) -> None:
        agent = Agent(ScriptedProvider(["x"]), name="a")
        calls: dict[str, Callable[[Flow, Any], Any]] = {
            "step": lambda flow, value: flow.step(value),
            "name of a step": lambda flow, value: flow.step(say, "x", name=value),
            "agent": lambda flow, value: flow.agent(value, "x"),
            "prompt": lambda flow, value: flow.agent(agent, value),
            "name of an agent": lambda flow, value: flow.agent(agent, "x", name=value),
            "question": lambda flow, value: flow.ask(value),
            "choices": lambda flow, value: flow.ask("Which?", value),
            "sleep": lambda flow, value: flow.sleep(value),
            "event": lambda flow, value: flow.wait_for(value),
            "child": lambda flow, value: flow.child(value),
            "name of a child": lambda flow, value: flow.child(inner, name=value),
            "gather": lambda flow, value: flow.gather(value),
            "list to gather": lambda flow, value: flow.gather([flow.step(say, "x"), value]),
            "limit": lambda flow, value: flow.gather(limit=value),
            "function to map": lambda flow, value: flow.map(value, [1]),
            "items": lambda flow, value: flow.map(inner.run, value),
            "what map returns": lambda flow, value: flow.map(lambda item: value, [1]),
            "first": lambda flow, value: flow.first(value),
            "version": lambda flow, value: flow.version(value),
            "publish": lambda flow, value: flow.publish(value, 1),
        }

        async def body(flow: Flow) -> None:
            for name, call in calls.items():
                for value in (object(),) if name in ("sleep", "limit") else (3, object()):
                    with self.subTest(name, value=value):
                        with self.assertRaises(OptionsError) as caught:
                            await call(flow, value)
                        self.assertIn("3" if value == 3 else "<object", str(caught.exception))
            unread = inner.function(flow)
            with self.assertRaisesRegex(OptionsError, r"accept steps and coroutines, not 3"):
                await flow.gather([unread, 3])  # type: ignore[list-item]
            refused.append(True)

        refused: list[bool] = []
        store = MemorySessionStore()
        Workflow(body, name="w").run_sync(options=OpenAgenticOptions(session_store=store), session="s")
        self.assertTrue(refused)

    def test_workflows(self) -> None:
        options: dict[str, Call] = {
            "options": lambda value: Workflow(inner.function, options=value),
            "options of the decorator": lambda value: workflow(options=value)(inner.function),
            "name": lambda value: Workflow(inner.function, name=value),
            "words": inner.read_words,
            "query": lambda value: inner.query(
                "s", value, options=OpenAgenticOptions(session_store=MemorySessionStore())
            ),
        }
        self.assert_refused(options, 3, [], object())

    def test_evals(self) -> None:
        offline, store = suite(), MemorySessionStore()
        calls: dict[str, Call] = {
            "suite": check_suite,
            "cases": lambda value: suite(cases=value),
            "variants": lambda value: suite(variants=value),
            "scores": lambda value: suite(scores=value),
            "a case": lambda value: suite(cases=[value]),
            "variants of a case": lambda value: suite(cases=[Case(log="x", variants=value)]),
            "scores of a case": lambda value: suite(cases=[Case(log="x", scores=value)]),
            "load_suite": load_suite,
        }
        self.assert_refused(calls, 3, object(), error=SuiteError)
        calls = {
            "a variant": lambda value: suite(variants={"v": value}),
            "tools of a variant": lambda value: suite(variants={"v": Variant(tools=value)}),
            "calls": lambda value: suite(scores=[Calls(must=value)]),
        }
        for name, call in calls.items():
            with self.subTest(name), self.assertRaises(SuiteError):
                call(3)
        for name in ("resume", "cases", "variants", "repeats", "parallel", "max_cost_usd", "on_progress"):
            wrong = {name: lambda value, name=name: run_suite(offline, store=store, **{name: value})}
            self.assert_refused(wrong, b"x", object(), error=SuiteError)
        self.assert_refused({"name": lambda value: eval_tests(offline, name=value)}, 3)
        self.assertEqual(store.list_sessions(), [])

    def test_stores(self) -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder, "x.db")
            calls: dict[str, Call] = {
                "memory": lambda value: MemorySessionStore(clock=value),
                "files": lambda value: FileSessionStore(folder, clock=value),
                "sqlite": lambda value: SqliteSessionStore(path, clock=value),
                "folder": FileSessionStore,
                "database": SqliteSessionStore,
            }
            self.assert_refused(calls, 3, object())
            self.assert_refused({"database": SqliteSessionStore}, "")
            self.assertFalse(path.exists())

    @full_size
    def test_a_fleet(self) -> None:
        with TemporaryDirectory() as folder:
            fleet = Fleet(f"sqlite:{folder}/x.db", named())
            calls: dict[str, Call] = {
                "wishes": lambda value: fleet.enqueue("tea", "x", wishes=value),
                "told": lambda value: fleet.enqueue("tea", "x", told=value),
                "fleet": Worker,
                "slots": lambda value: Worker(fleet, slots=value),
                "queues": lambda value: Worker(fleet, queues=value),
                "lease_s": lambda value: Worker(fleet, lease_s=value),
                "grace_s": lambda value: Worker(fleet, grace_s=value),
            }
            self.assert_refused(calls, "x", object())
            self.assertEqual(asyncio.run(fleet.runs()), [])
            fleet.close()


if __name__ == "__main__":
    unittest.main()
