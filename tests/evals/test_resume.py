"""Nothing runs twice or is paid twice: after a kill, after Ctrl-C, and when the budget is spent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import unittest
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from openagentic_sdk import MemorySessionStore
from openagentic_sdk.errors import SessionLockedError, SuiteError
from openagentic_sdk.evals import Case, EvalReport, Exact, Judge, Suite, run_suite
from openagentic_sdk.events import EvalCase, EvalFinished, ModelResponse
from openagentic_sdk.providers.base import ModelOutput
from openagentic_sdk.testing import ScriptedProvider
from tests.pythons import run_python
from tests.size import full_size

from .support import MILLION, TURNS, evaluate, made, recorded

ROOT = Path(__file__).resolve().parents[2]
PAID = {"text": "Yes.", "usage": MILLION}


class Stopping:
    """A model that does something else before it answers the `at`-th request."""

    name = "stopping"

    def __init__(self, at: int, what: Any) -> None:
        self.asked: list[str] = []
        self._at = at
        self._what = what

    async def complete(self, *, model: str, messages: Any, tools: Any = (), api_key: str | None = None) -> ModelOutput:
        self.asked.append(messages[-1]["content"])
        if len(self.asked) == self._at:
            await self._what()
        return ModelOutput("Yes.", [], usage=MILLION)


def suite_of(provider: Any, count: int = 4, **changes: Any) -> Suite:
    cases = [Case(id=f"c{number}", prompt=f"prompt {number}") for number in range(count)]
    return Suite(name="x", cases=cases, agent=made(provider=provider), scores=[Exact(text="Yes.")], **changes)


class Resume(unittest.TestCase):
    def test_cases_finished_before_ctrl_c_are_kept_and_not_repeated(self) -> None:
        store = MemorySessionStore()

        async def interrupt() -> None:
            raise asyncio.CancelledError

        async def first() -> str:
            stopping = Stopping(3, self.forever)
            seen: list[EvalReport] = []
            reached = asyncio.Event()
            stopping._what = lambda: self.wait(reached)
            work = asyncio.create_task(
                run_suite(
                    suite_of(stopping), store=store, parallel=1, on_progress=lambda report, running: seen.append(report)
                )
            )
            await reached.wait()
            work.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await work
            self.assertEqual(len(stopping.asked), 3)
            return seen[-1].session_id

        session_id = asyncio.run(first())
        ended = [event for event in store.iter_events(session_id) if isinstance(event, EvalFinished)]
        self.assertEqual([(event.reason, event.left) for event in ended], [("interrupted", 2)])
        second = Stopping(0, None)
        report = evaluate(suite_of(second), store, resume=session_id)
        self.assertTrue(report.ok, report.to_dict())
        self.assertEqual((len(report.runs), sorted(second.asked)), (4, ["prompt 2", "prompt 3"]))

    async def forever(self) -> None:
        await asyncio.Event().wait()

    async def wait(self, reached: asyncio.Event) -> None:
        reached.set()
        await asyncio.Event().wait()

    def test_a_run_that_was_under_way_continues_with_what_it_has(self) -> None:
        store = MemorySessionStore()
        reached = asyncio.Event()
        held = Both(TURNS[0], lambda: self.wait(reached))

        async def first() -> str:
            seen: list[EvalReport] = []
            work = asyncio.create_task(
                run_suite(suite, store=store, on_progress=lambda report, running: seen.append(report))
            )
            await reached.wait()
            work.cancel()
            await asyncio.wait({work})
            return seen[0].session_id

        case = Case(id="tea", prompt="Is there tea?")
        suite = Suite(name="x", cases=[case], agent=made(provider=held))
        session_id = asyncio.run(first())
        rest = ScriptedProvider([{"text": "Four.", "expect": {"contains": "tea: 4"}}])
        report = evaluate(replace(suite, agent=made(provider=rest)), store, resume=session_id)
        self.assertEqual((report.ok, report.runs[0].final_text, rest.turns_left), (True, "Four.", 0))

    def test_an_eval_that_is_done_asks_nobody_when_it_is_resumed(self) -> None:
        store = MemorySessionStore()
        report = evaluate(suite_of(Stopping(0, None)), store)
        nobody = Stopping(0, None)
        again = evaluate(suite_of(nobody), store, resume=report.session_id)
        self.assertEqual((again.runs, nobody.asked), (report.runs, []))

    def test_a_verdict_that_was_given_before_a_crash_is_not_paid_again(self) -> None:
        store = MemorySessionStore()
        answers = ["Hi.", '{"reason": "It does.", "verdict": "pass", "score": 1}']
        suite = Suite(
            name="x",
            cases=[Case(id="a", prompt="?")],
            agent=made(provider=ScriptedProvider(answers)),
            scores=[Judge(rubric="Says hi.")],
        )
        report = evaluate(suite, store)
        kept = [
            event for event in store.iter_events(report.session_id) if not isinstance(event, EvalCase | EvalFinished)
        ]
        copy = MemorySessionStore()  # the same, as if the process had died before it wrote the result
        for name in store.list_sessions():
            events = kept if name == report.session_id else store.read_events(name)
            copy.import_session(name, events, metadata=store.read_metadata(name)["metadata"])
        again = evaluate(replace(suite, agent=made(provider=ScriptedProvider([]))), copy, resume=report.session_id)
        self.assertTrue(again.ok, again.to_dict())

    @full_size
    def test_from_every_place_where_a_process_can_die_the_eval_ends_with_the_same_result(self) -> None:
        whole = MemorySessionStore()
        answers = [*TURNS, '{"reason": "It does.", "verdict": "pass", "score": 1}']
        scores = [Exact(text="There are 4 packs of tea."), Judge(rubric="Says how many.")]
        suite = Suite(name="x", cases=[Case(id="a", prompt="?")], agent=made(provider=Playing(answers)), scores=scores)
        report = evaluate(suite, whole)
        self.assertTrue(report.ok, report.to_dict())
        run, judge = report.runs[0].session_id or "", report.runs[0].scores[2]["session_id"]
        lengths = [len(whole.read_events(name)) for name in (run, judge)]
        cuts = [(length, -1) for length in range(1, lengths[0] + 1)] + [(lengths[0], n) for n in range(lengths[1] + 1)]
        for of_run, of_judge in cuts:
            with self.subTest(of_run=of_run, of_judge=of_judge):
                store = MemorySessionStore()
                kept = [e for e in whole.read_events(report.session_id) if not isinstance(e, EvalCase | EvalFinished)]
                for name, events in (
                    (report.session_id, kept),
                    (run, whole.read_events(run)[:of_run]),
                    (judge, None if of_judge < 0 else whole.read_events(judge)[:of_judge]),
                ):
                    if events is not None:
                        store.import_session(name, events, metadata=whole.read_metadata(name)["metadata"])
                model = Playing(answers)
                again = evaluate(replace(suite, agent=made(provider=model)), store, resume=report.session_id)
                self.assertTrue(again.ok, again.to_dict())
                answered = [e for n in (run, judge) for e in store.iter_events(n) if isinstance(e, ModelResponse)]
                # Nothing is known of an incomplete answer: it is requested again.
                last = (whole.read_events(run)[:of_run] if of_judge < 0 else whole.read_events(judge)[:of_judge])[-1:]
                self.assertEqual(len(answered), 3 + any(isinstance(event, ModelResponse) for event in last))

    def test_a_case_that_could_not_run_is_retried(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        store = MemorySessionStore()
        suite = Suite(name="x", cases=[Case(prompt="?")], agent=made("Hi.", cwd=folder / "later"))
        report = evaluate(suite, store)
        self.assertEqual((report.ok, len(report.runs)), (False, 1))
        (folder / "later").mkdir()
        again = evaluate(suite, store, resume=report.session_id)
        self.assertEqual((again.ok, len(again.runs)), (True, 1))

    def test_another_suite_and_another_choice_are_refused(self) -> None:
        store = MemorySessionStore()
        report = evaluate(suite_of(Stopping(0, None)), store)
        with self.assertRaisesRegex(SuiteError, "has changed since"):
            evaluate(suite_of(Stopping(0, None), repeats=2), store, resume=report.session_id)
        with self.assertRaisesRegex(SuiteError, "give none of them"):
            evaluate(suite_of(Stopping(0, None)), store, resume=report.session_id, cases=["c0"])
        with self.assertRaisesRegex(SuiteError, "is not an eval"):
            evaluate(suite_of(Stopping(0, None)), store, resume=recorded(store))

    def test_two_processes_do_not_run_one_eval(self) -> None:
        store = MemorySessionStore()
        report = evaluate(suite_of(Stopping(0, None)), store)
        with store.open_writer(report.session_id), self.assertRaises(SessionLockedError):
            evaluate(suite_of(Stopping(0, None)), store, resume=report.session_id)


class Killed(unittest.TestCase):
    """A real process, killed at a real event."""

    @full_size
    def test_a_killed_eval_continues_and_asks_nothing_twice(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "suite.py").write_text(SUITE)
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder), "EVAL_FOLDER": str(folder)}
        command = ["-m", "openagentic_sdk", "eval", str(folder / "suite.py"), "--store", str(folder)]
        killed = run_python(*command, "--parallel", "1", env=environ)
        self.assertEqual(killed.returncode, -signal.SIGKILL, killed.stderr)
        (folder / "killed").write_text("")
        done = run_python(*command, "--resume", "--json", env=environ)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        told = json.loads(done.stdout)
        self.assertEqual((told["passed"], told["left"]), (6, 0))
        asked = Counter((folder / "asked").read_text().splitlines())
        # Only the request in progress when the process died is made again.
        self.assertEqual(asked, {**{f"prompt {n}": 1 for n in range(6)}, "prompt 3": 2})


SUITE = """
import os
import signal
from pathlib import Path

from openagentic_sdk import OpenAgenticOptions
from openagentic_sdk.evals import Case, Exact, Suite
from openagentic_sdk.providers.base import ModelOutput

FOLDER = Path(os.environ["EVAL_FOLDER"])


class Model:
    name = "dies"

    async def complete(self, *, model, messages, tools=(), api_key=None):
        prompt = messages[-1]["content"]
        with (FOLDER / "asked").open("a") as file:
            file.write(prompt + "\\\\n")
        if prompt == "prompt 3" and not (FOLDER / "killed").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return ModelOutput("Yes.", [], usage={"input_tokens": 1, "output_tokens": 1})


def agent():
    return OpenAgenticOptions(provider=Model(), model="m", cwd=FOLDER, tools=())


cases = [Case(id=f"c{n}", prompt=f"prompt {n}") for n in range(6)]
suite = Suite(name="killed", agent=agent, cases=cases, scores=[Exact(text="Yes.")])
""".replace("\\\\", "\\")


class Budgets(unittest.TestCase):
    def test_the_budget_holds_over_all_runs_and_what_is_left_can_be_made_up_for(self) -> None:
        store = MemorySessionStore()
        model = Stopping(0, None)
        report = evaluate(suite_of(model, max_cost_usd=2.0), store, parallel=1)
        self.assertEqual((len(report.runs), report.ok, len(model.asked)), (2, False, 2))
        assert report.finished is not None
        self.assertEqual((report.finished.reason, report.finished.left), ("budget", 2))
        again = evaluate(suite_of(model, max_cost_usd=2.0), store, resume=report.session_id)
        self.assertEqual(len(model.asked), 2)
        more = evaluate(suite_of(model, max_cost_usd=2.0), store, resume=again.session_id, max_cost_usd=10.0)
        self.assertEqual((more.ok, len(model.asked), more.cost_usd), (True, 4, 4.0))

    def test_runs_at_a_time_do_not_each_spend_the_whole(self) -> None:
        turns = [{**TURNS[0], "usage": MILLION}] * 5
        suite = Suite(
            name="x",
            cases=[Case(id=f"c{n}", prompt="?") for n in range(4)],
            agent=made(*turns, "Done."),
            max_cost_usd=4.0,
        )
        store = MemorySessionStore()
        evaluate(suite, store, parallel=4)
        paid = [e for name in store.list_sessions() for e in store.iter_events(name) if isinstance(e, ModelResponse)]
        # Each run can have one request in progress when the budget is spent.
        self.assertLessEqual(len(paid), 4 + 3)

    def test_a_model_without_a_price_stops_a_suite_that_has_a_budget(self) -> None:
        suite = Suite(
            name="x",
            cases=[Case(id=f"c{n}", prompt="?") for n in range(3)],
            agent=made("Hi.", prices=None),
            max_cost_usd=1.0,
        )
        report = evaluate(suite, parallel=1)
        self.assertEqual((len(report.runs), report.ok), (1, False))

    def test_the_costs_of_a_judge_count(self) -> None:
        verdict = {"text": '{"reason": "", "verdict": "pass", "score": 1}', "usage": MILLION}
        suite = Suite(
            name="x",
            cases=[Case(id=f"c{n}", prompt="?") for n in range(3)],
            agent=made(provider=Both(PAID, lambda: self.say(verdict))),
            scores=[Judge(rubric="Is it?")],
            max_cost_usd=2.0,
        )
        report = evaluate(suite, parallel=1)
        self.assertEqual((len(report.runs), report.cost_usd), (1, 2.0))

    async def say(self, turn: Any) -> Any:
        return turn


class Playing:
    """A model whose answer depends only on the request, so that it can be asked again from anywhere."""

    name = "playing"

    def __init__(self, answers: list[Any]) -> None:
        self._answers = answers

    async def complete(self, *, model: str, messages: Any, tools: Any = (), api_key: str | None = None) -> ModelOutput:
        judges = "You judge" in messages[0]["content"]
        turn = self._answers[2 if judges else sum(message["role"] == "tool" for message in messages)]
        return await ScriptedProvider([turn]).complete(model=model, messages=messages)


class Both:
    """A model that answers the first request of a conversation with a turn, and forwards all others to another model."""

    name = "both"

    def __init__(self, first: Any, then: Any) -> None:
        self._first = first
        self._then = then

    async def complete(self, *, model: str, messages: Any, tools: Any = (), api_key: str | None = None) -> ModelOutput:
        is_first = messages[-1]["role"] == "user" and "You judge" not in messages[0]["content"]
        turn = self._first if is_first else await self._then()
        return await ScriptedProvider([turn]).complete(model=model, messages=messages)


if __name__ == "__main__":
    unittest.main()
