"""Cases run by replay, by what-if and live detect an agent that got worse."""

from __future__ import annotations

import asyncio
import unittest
from dataclasses import replace
from typing import Any

from openagentic_sdk import MemorySessionStore, PermissionGate, tool
from openagentic_sdk.errors import SuiteError
from openagentic_sdk.evals import Call, Calls, Case, Cost, Exact, Regex, Steps, Suite, Variant
from openagentic_sdk.evals.plan import plan_cases
from openagentic_sdk.events import SessionMeta, UserMessage
from openagentic_sdk.providers.base import ModelOutput
from openagentic_sdk.testing import ScriptedProvider
from tests.examples.record_logs import LOGS

from .support import TURNS, evaluate, made, options, recorded, scores_of


@tool(name="stock", effect="read")
def worse_stock(item: str) -> str:
    """Return how much of it there is."""
    return f"{item}: none"


class Replays(unittest.TestCase):
    def setUp(self) -> None:
        self.store = MemorySessionStore()
        self.session = recorded(self.store)
        self.suite = Suite(
            name="shop", cases=[Case(id="tea", session=self.session)], agent=made(), scores=[Regex(pattern="4 packs")]
        )

    def test_an_agent_that_is_what_it_was_passes_offline(self) -> None:
        report = evaluate(self.suite, self.store)
        self.assertTrue(report.ok, report.to_dict())
        self.assertEqual((report.cost_usd, report.runs[0].session_id), (0.0, self.session))

    def _replay_of(self, **changes: object) -> str:
        report = evaluate(replace(self.suite, agent=made(**changes)), self.store)
        self.assertFalse(report.ok)
        score = scores_of(report)["replay"]
        self.assertFalse(score["passed"])
        return str(score["words"])

    def test_a_worsened_prompt_is_found(self) -> None:
        self.assertIn("You keep a zoo.", self._replay_of(system_prompt="You keep a zoo."))

    def test_a_worsened_tool_is_found(self) -> None:
        self.assertIn("tea: none", self._replay_of(tools=[worse_stock]))

    def test_a_worsened_rule_is_found(self) -> None:
        words = self._replay_of(permission_gate=PermissionGate(permission_mode="deny"))
        self.assertIn("was allowed", words)
        self.assertIn("was refused", words)

    def test_variants_of_prompt_tools_and_rules_are_found_too(self) -> None:
        variants = {
            "same": Variant(),
            "prompt": Variant(system_prompt="You keep a zoo."),
            "rule": Variant(deny=["stock"]),
            "tools": Variant(tools=["Read"]),
            "code": Variant(change=lambda o: replace(o, tools=[worse_stock])),
        }
        report = evaluate(replace(self.suite, variants=variants), self.store)
        self.assertEqual({run.variant: run.passed for run in report.runs}, {name: name == "same" for name in variants})

    def test_a_difference_is_not_a_failure_where_the_case_is_not_strict(self) -> None:
        suite = replace(self.suite, cases=[Case(id="tea", session=self.session, strict=False)])
        self.assertTrue(evaluate(replace(suite, agent=made(system_prompt="Other.")), self.store).ok)

    def test_the_recorded_sessions_of_the_repository_pass_without_an_agent(self) -> None:
        names = ("plain", "resumed", "tools", "subagent")
        suite = Suite(name="logs", folder=str(LOGS), cases=[Case(id=n, log=f"{n}/events.jsonl") for n in names])
        self.assertTrue(evaluate(suite).ok)

    def test_sessions_are_found_by_tag_and_by_search_and_those_that_evals_made_are_not(self) -> None:
        self.store.append_events(self.session, [SessionMeta(tags=["golden"])])
        recorded(self.store, "Coffee is out.", prompt="Is there coffee?")
        cases = [
            Case(id="tagged", tag="golden"),
            Case(id="found", search="coffee"),
            Case(id="again", session=self.session, mode="whatif"),
        ]
        suite = Suite(name="shop", cases=cases, agent=made())
        first, second = evaluate(suite, self.store), evaluate(suite, self.store)
        self.assertEqual(len(first.runs), 3)
        self.assertEqual([run.case for run in second.rows()], [run.case for run in first.rows()])

    def test_an_older_session_is_found_behind_one_with_many_events_that_match(self) -> None:
        self.store.append_events(self.session, [SessionMeta(title="rare")])
        newer = recorded(self.store, "Coffee is out.", prompt="Is there coffee?")
        self.store.append_events(newer, [SessionMeta(title="rare") for _ in range(250)])
        planned = plan_cases(Suite(name="shop", cases=[Case(search="rare", limit=2)], agent=made()), self.store)
        self.assertEqual({each.session_id for each in planned}, {self.session, newer})

    def test_a_case_that_finds_nothing_is_an_error_and_not_a_pass(self) -> None:
        with self.assertRaisesRegex(SuiteError, r"cases\[0\].tag: matches no session"):
            evaluate(Suite(name="none", cases=[Case(tag="golden")], agent=made()), self.store)


class WhatIf(unittest.TestCase):
    def setUp(self) -> None:
        self.store = MemorySessionStore()
        self.session = recorded(self.store)

    def test_another_model_is_asked_again_and_calls_that_were_recorded_get_their_results(self) -> None:
        turns = [TURNS[0], {"text": "Four.", "expect": {"contains": "tea: 4"}}]
        suite = Suite(
            name="shop",
            cases=[Case(id="tea", session=self.session, mode="whatif")],
            agent=made(*turns, tools=[worse_stock]),
            scores=[Exact(text="Four."), Calls(exactly=["stock"])],
        )
        report = evaluate(suite, self.store)
        self.assertTrue(report.ok, report.to_dict())
        self.assertNotEqual(report.runs[0].session_id, self.session)

    def test_only_the_calls_after_the_fork_count(self) -> None:
        seq = next(e.seq for e in self.store.read_events(self.session) if e.type == "tool.result")
        suite = Suite(
            name="shop",
            cases=[Case(id="tea", session=self.session, at=seq)],
            agent=made("Four."),
            scores=[Calls(must_not=["stock"]), Steps(at_most=1)],
        )
        self.assertTrue(evaluate(suite, self.store).ok)

    def test_a_call_that_is_new_ends_the_run_and_fails_the_case(self) -> None:
        other = {"tool_calls": [{"name": "stock", "arguments": {"item": "gold"}}]}
        suite = Suite(
            name="shop", cases=[Case(id="tea", session=self.session, mode="whatif")], agent=made(other, "Gold.")
        )
        report = evaluate(suite, self.store)
        self.assertIn("never made", scores_of(report)["ended"]["words"])
        # As if the process had died before it wrote that: the run that stopped there is not continued.
        events = self.store.read_events(report.session_id)
        copy = MemorySessionStore()
        for name in self.store.list_sessions():
            kept = events[:2] if name == report.session_id else self.store.read_events(name)
            copy.import_session(name, kept, metadata=self.store.read_metadata(name)["metadata"])
        nobody = replace(suite, agent=made(provider=ScriptedProvider()))
        again = evaluate(nobody, copy, resume=report.session_id)
        self.assertEqual(scores_of(again), scores_of(report))

    def test_a_log_in_a_file_can_be_gone_on_with(self) -> None:
        case = Case(id="plain", log=str(LOGS / "plain" / "events.jsonl"), mode="whatif")
        report = evaluate(Suite(name="x", cases=[case], agent=made("Hi."), scores=[Exact(text="Hi.")]), self.store)
        self.assertTrue(report.ok, report.to_dict())


class Live(unittest.TestCase):
    def test_a_prompt_runs_under_each_variant_and_is_scored(self) -> None:
        suite = Suite(
            name="shop",
            cases=[Case(id="tea", prompt="Is there tea?")],
            agent=made(),
            variants={"plain": Variant(), "loose": Variant(change=lambda o: options("Perhaps."))},
            scores=[Calls(must=["stock"]), Regex(pattern=r"\b4 packs"), Steps(at_most=2), Cost(max_usd=1.0)],
        )
        report = evaluate(suite)
        passed = {run.variant: run.passed for run in report.runs}
        self.assertEqual(passed, {"plain": True, "loose": False})

    def test_the_prompts_of_a_recorded_session_are_sent_again(self) -> None:
        store = MemorySessionStore()
        session = recorded(store)
        recorded(store, "Yes.", prompt="Sure?", resume=session)
        suite = Suite(name="shop", cases=[Case(id="tea", session=session, mode="live")], agent=made())
        shared = ScriptedProvider([*TURNS, "Quite."])
        report = evaluate(replace(suite, agent=made(provider=shared)), store)
        self.assertEqual(report.runs[0].final_text, "Quite.")
        events = store.read_events(report.runs[0].session_id or "")
        self.assertEqual([e.text for e in events if isinstance(e, UserMessage)], ["Is there tea?", "Sure?"])

    def test_a_run_that_did_not_end_by_itself_fails_whatever_else_passes(self) -> None:
        failing = made({"text": "4 packs", "error": {"type": "incomplete", "after": 7}})
        suite = Suite(name="x", cases=[Case(prompt="Tea?")], agent=failing, scores=[Calls(must_not=["stock"])])
        report = evaluate(suite)
        self.assertEqual([score["passed"] for score in report.runs[0].scores], [False, True])

    def test_an_agent_that_cannot_be_built_fails_its_cases_with_words(self) -> None:
        report = evaluate(Suite(name="x", cases=[Case(prompt="Tea?")], agent=made(cwd="/nowhere")))
        self.assertIn("cwd '/nowhere' is not a folder", scores_of(report)["run"]["words"])

    def test_no_more_runs_are_under_way_at_a_time_than_the_limit(self) -> None:
        model = Counting(awaited=3)
        suite = Suite(name="x", cases=[Case(id=f"c{n}", prompt="?") for n in range(9)], agent=made(provider=model))
        self.assertTrue(evaluate(suite, parallel=3).ok)
        self.assertEqual(model.most, 3)

    def test_a_call_that_would_be_asked_about_is_not_waited_for(self) -> None:
        turn = {"tool_calls": [{"name": "change", "arguments": {}}]}
        suite = Suite(
            name="x",
            cases=[Case(prompt="?")],
            agent=made(turn, "I may not.", tools=[change], permission_gate=PermissionGate(interactive=True)),
            scores=[Calls(exactly=[Call(tool="change", outcome="denied")])],
        )
        report = evaluate(suite)
        self.assertTrue(report.ok, report.to_dict())

    def test_repeats_are_kept_apart_and_their_spread_is_reported(self) -> None:
        turns = ["yes", "no", "yes"]
        shared = ScriptedProvider(turns)
        suite = Suite(
            name="x",
            cases=[Case(id="a", prompt="?")],
            agent=made(provider=shared),
            scores=[Exact(text="yes")],
            repeats=3,
        )
        row = evaluate(suite, parallel=1).rows()[0]
        self.assertEqual((row.passed, len(row.runs)), (2, 3))
        self.assertAlmostEqual(row.spread or 0, 0.288675, places=5)


class Counting:
    """A model that answers only once `awaited` requests are open at the same time."""

    name = "counting"

    def __init__(self, awaited: int) -> None:
        self.now = self.most = 0
        self._awaited, self._all_here = awaited, asyncio.Event()

    async def complete(self, *, model: str, messages: Any, tools: Any = (), api_key: str | None = None) -> ModelOutput:
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now >= self._awaited:
            self._all_here.set()
        async with asyncio.timeout(60):  # ends a test that would hang if fewer were admitted
            await self._all_here.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        self.now -= 1
        return ModelOutput("Hi.", [])


@tool
def change() -> str:
    """Change something."""
    return "changed"


class SkillsOfVariants(unittest.TestCase):
    def test_a_skill_is_active_from_the_start(self) -> None:
        import tempfile
        from pathlib import Path

        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "counting").mkdir()
        (folder / "counting" / "SKILL.md").write_text("---\nname: counting\ndescription: Counts.\n---\nCount twice.\n")
        turn = {"text": "Done.", "expect": {"contains": "Count twice."}}
        suite = Suite(
            name="x",
            cases=[Case(prompt="?")],
            agent=made(turn),
            variants={"skilled": Variant(skills=["counting"], skill_paths=[str(folder)])},
        )
        report = evaluate(suite)
        self.assertTrue(report.ok, report.to_dict())


if __name__ == "__main__":
    unittest.main()
