"""Costs from session summaries: each share counted once, whatever batches, subagents, prices and names occur."""

from __future__ import annotations

import contextlib
import io
import json
import random
import tempfile
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openagentic_sdk import (
    AgentDefinition,
    FileSessionStore,
    MemorySessionStore,
    OpenAgenticOptions,
    PermissionGate,
    run_sync,
)
from openagentic_sdk.cli.main import main
from openagentic_sdk.errors import OptionsError
from openagentic_sdk.events import (
    Event,
    ModelRequest,
    ModelResponse,
    SessionForked,
    SessionMeta,
    SkillActivated,
    SkillDeactivated,
    SubagentFinished,
    ToolUse,
    UserMessage,
)
from openagentic_sdk.parts.record.folds.costs import BY, CostReport, cost_report, session_costs
from openagentic_sdk.parts.record.folds.prices import session_cost
from openagentic_sdk.parts.record.lifecycle import rows_of_tag
from openagentic_sdk.sessions.base import SessionStore, stamp_events
from openagentic_sdk.sessions.folds.summary import (
    SessionSummary,
    fold_session_summary,
    summary_from_dict,
    summary_to_dict,
)
from openagentic_sdk.sessions.stores.locate import open_store
from openagentic_sdk.testing import ScriptedProvider

DAY = 1_763_769_600.0  # 2025-11-22 00:00 UTC
PRICES = {"m": {"input": 1.0, "output": 1.0}, "helper-model": {"input": 10.0, "output": 10.0}}


def answer(cost: float | None = 1.0, model: str = "m", **more: Any) -> ModelResponse:
    usage = {
        "input_tokens": 100,
        "cached_input_tokens": 40,
        "cache_write_tokens": 10,
        "output_tokens": 7,
        "reasoning_tokens": 3,
    }
    return ModelResponse(1, 1, usage=usage, cost_usd=cost, model=model, **more)


def use(name: str) -> ToolUse:
    return ToolUse("c", name, {})


def folded(events: Sequence[Event], *, at: float = DAY) -> SessionSummary:
    return fold_session_summary(None, stamp_events(events, first_seq=1, now=at))


def dollars(report: CostReport) -> dict[str, float]:
    return {row.name: row.known_cost_usd for row in report.rows}


class Attribution(unittest.TestCase):
    def test_an_answer_is_paid_by_its_calls_in_equal_shares_and_by_itself_without_any(self) -> None:
        summary = folded([answer(), use("Bash"), use("Read"), answer(), answer(0.5), use("Bash")])
        report = cost_report([summary], "tool")
        self.assertEqual(dollars(report), {"Bash": 1.0, "Read": 0.5, "(answer)": 1.0})
        self.assertEqual(report.total.known_cost_usd, 2.5)

    def test_prompts_are_split_into_what_the_cache_had_and_what_it_had_not(self) -> None:
        row = cost_report([folded([answer()])]).rows[0]
        self.assertEqual((row.input_tokens, row.cached_tokens, row.cache_write_tokens), (50, 40, 10))
        self.assertEqual((row.output_tokens, row.reasoning_tokens, row.calls), (7, 3, 1))

    def test_skills_pay_while_they_are_active(self) -> None:
        events = [
            answer(),
            SkillActivated("a"),
            answer(),
            SkillActivated("b"),
            answer(),
            SkillDeactivated("a"),
            answer(),
        ]
        self.assertEqual(dollars(cost_report([folded(events)], "skill")), {"(none)": 1.0, "a": 1.5, "b": 1.5})

    def test_compaction_and_failed_attempts_have_their_share_named(self) -> None:
        asked = ModelRequest(1, 1, "", 1, purpose="compaction")
        report = cost_report([folded([answer(), asked, answer(0.25), answer(0.5, complete=False), answer()])], "tool")
        self.assertEqual(report.compaction.known_cost_usd, 0.25)
        self.assertEqual(report.retries.known_cost_usd, 0.5)
        self.assertEqual(dollars(report)["(compaction)"], 0.25)
        self.assertEqual(report.total.known_cost_usd, 2.75)

    def test_models_without_a_price_are_named_and_make_the_cost_unknown_as_do_invalid_prices(self) -> None:
        odd = [answer(price, model=f"odd{n}") for n, price in enumerate((None, -1.0, 1e300))]
        report = cost_report([folded([answer(), *odd])])
        self.assertEqual(report.unpriced_models, ("odd0", "odd1", "odd2"))
        self.assertEqual(
            (report.total.cost_usd, report.total.known_cost_usd, report.total.unpriced_calls), (None, 1.0, 3)
        )

    def test_days_are_those_of_the_answers_in_utc(self) -> None:
        late = stamp_events([answer()], first_seq=2, now=DAY + 86_400)
        summary = fold_session_summary(folded([answer()], at=DAY + 86_399), late)
        self.assertEqual(dollars(cost_report([summary], "day")), {"2025-11-22": 1.0, "2025-11-23": 1.0})
        second = int(DAY // 86_400) + 1
        self.assertEqual(cost_report([summary], "model", first_day=second).total.known_cost_usd, 1.0)

    def test_a_fork_is_not_charged_with_what_its_parent_paid(self) -> None:
        summary = folded([answer(), use("Bash"), SessionForked("p", 2), answer(0.5)])
        self.assertEqual(dollars(cost_report([summary], "tool")), {"(answer)": 0.5})

    def test_a_subagent_whose_session_is_gone_is_still_paid_for(self) -> None:
        gone = SubagentFinished("c", "helper", "child", "end", answer().usage, 3.0)
        report = session_costs(stamp_events([answer(), gone], first_seq=1, now=DAY))
        self.assertEqual(dollars(report), {"(deleted)": 3.0, "m": 1.0})

    def test_another_word_to_split_by_is_refused(self) -> None:
        with self.assertRaisesRegex(OptionsError, "not by 'colour'"):
            cost_report([], "colour")


class Folding(unittest.TestCase):
    def _random_events(self, dice: random.Random) -> list[Event]:
        made: list[Event] = []
        for _ in range(60):
            made.append(
                dice.choice(
                    (
                        answer(dice.choice((None, 0.25, 1.5)), model=dice.choice("abc")),
                        answer(0.5, complete=False),
                        ModelRequest(1, 1, "", 1, purpose=dice.choice(("turn", "compaction"))),
                        use(dice.choice(("Bash", "Read", "x" * 300, "a\nb"))),
                        SkillActivated(dice.choice("st")),
                        SkillDeactivated(dice.choice("st")),
                    )
                )
            )
        return stamp_events(made, first_seq=1, now=DAY)

    def test_any_split_into_batches_and_any_stop_in_a_file_gives_the_same_and_all_splits_the_same_total(self) -> None:
        dice = random.Random(5)
        for _ in range(25):
            events = self._random_events(dice)
            whole = fold_session_summary(None, events)
            parts, at = None, 0
            while at < len(events):
                size = dice.randrange(1, 9)
                parts = fold_session_summary(parts, events[at : at + size])
                parts = summary_from_dict(json.loads(json.dumps(summary_to_dict(parts))))
                at += size
            self.assertEqual(json.dumps(parts.spent), json.dumps(whole.spent))  # type: ignore[union-attr]
            for by in ("model", "tool", "skill", "agent", "subagent", "day", "cwd", "tag"):
                report = cost_report([whole], by)
                self.assertAlmostEqual(sum(dollars(report).values()), session_cost_known(events), 6)
                self.assertAlmostEqual(sum(row.calls for row in report.rows), report.total.calls, 4)

    def test_names_without_end_end_in_one_row(self) -> None:
        events = [each for n in range(500) for each in (answer(model=f"m{n}"), use(f"t{n}"))]
        summary = folded(events)
        self.assertLess(len(json.dumps(summary.spent)), 20_000)
        self.assertEqual(cost_report([summary], "tool").total.known_cost_usd, 500.0)
        self.assertIn("(other)", dollars(cost_report([summary])))

    def test_a_summary_that_somebody_wrote_is_named_and_the_others_count(self) -> None:
        good = folded([answer()])
        for spent in ({"days": 7}, {"days": {"x": {}}}, {"days": {"1": {"model": {"m": [1]}}}}, {"days": {"1": None}}):
            bad = SessionSummary(id="bad", spent=spent)
            report = cost_report([bad, good])
            self.assertEqual((report.unreadable, report.total.known_cost_usd), (("bad",), 1.0), spent)


def session_cost_known(events: Sequence[Event]) -> float:
    return sum(e.cost_usd or 0.0 for e in events if isinstance(e, ModelResponse))


class CostsOfOneTag(unittest.TestCase):
    """The rows of one tag add up to its figure in the report over all sessions."""

    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.url = f"sqlite:{Path(place.name, 'runs.db')}?durability=flush"
        self.store = open_store(self.url)
        self.addCleanup(self.store.close)
        self.add("root", 1.0, "nightly", "50% _x")
        self.add("child", 2.0, "own", parent="root")
        self.add("grandchild", 4.0, parent="child")
        self.add("orphan", 8.0, "nightly", parent="gone")
        self.add("longer", 16.0, "nightly-2")
        self.add("other", 32.0, "a b")
        self.add("prompt", 64.0)

    def add(self, name: str, cost: float, *tags: str, parent: str | None = None) -> None:
        metadata = {} if parent is None else {"parent_session_id": parent, "parent_tool_use_id": "t"}
        events = [UserMessage("nightly a b"), answer(cost), SessionMeta(tags=list(tags))]
        self.store.import_session(name, stamp_events(events, first_seq=1, now=DAY), metadata=metadata)

    def test_they_add_up_to_the_row_of_the_whole_report(self) -> None:
        whole = dollars(cost_report(self.store.list_session_summaries(include_children=True), "tag"))
        self.assertEqual(whole["nightly"], 15.0)
        for tag in ("nightly", "50% _x", "nightly-2", "a b"):
            with self.subTest(tag=tag):
                self.assertEqual(dollars(cost_report(rows_of_tag(self.store, tag), "tag"))[tag], whole[tag])
        for tag in ("own", "night", "", "b"):
            self.assertEqual(rows_of_tag(self.store, tag), [], tag)

    def test_the_command_counts_only_them(self) -> None:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(main(["sessions", "cost", "--store", self.url, "--tag", "nightly", "--json"]), 0)
        report = json.loads(out.getvalue())
        self.assertEqual((report["sessions"], report["total"]["cost_usd"]), (4, 15.0))


class Runs(unittest.TestCase):
    def _run(self, store: SessionStore, **more: Any) -> str:
        helper = ScriptedProvider(["helped"])
        turns = [{"tool_calls": [{"name": "Task", "arguments": {"agent": "helper", "prompt": "p"}}]}, "done"]
        options = OpenAgenticOptions(
            provider=ScriptedProvider(turns),
            model="m",
            prices=PRICES,
            session_store=store,
            agents={"helper": AgentDefinition("helps", "help", provider=helper, model="helper-model")},
            permission_gate=PermissionGate(permission_mode="bypass"),
            **more,
        )
        return run_sync(prompt="go", options=options).session_id

    def test_a_tree_of_agents_is_counted_once_in_every_split(self) -> None:
        store = MemorySessionStore()
        name = self._run(store, session_metadata={"tags": ["nightly", "ci"]})
        rows = store.list_session_summaries(include_children=True)
        whole = session_cost(store.read_events(name))
        assert whole is not None
        for by in BY:
            self.assertAlmostEqual(cost_report(rows, by).total.known_cost_usd, whole, 9, by)
        self.assertEqual({row.name for row in cost_report(rows, "subagent").rows}, {"(main)", "helper"})
        self.assertEqual({row.name for row in cost_report(rows, "model").rows}, {"m", "helper-model"})
        for row in cost_report(rows, "tag").rows:
            self.assertAlmostEqual(row.known_cost_usd, whole, 9)
        self.assertEqual({row.name for row in cost_report(rows, "tag").rows}, {"nightly", "ci"})

    def test_the_command_prints_the_costs_of_all_or_selected_sessions(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            store = FileSessionStore(Path(folder, "s"), durability="flush")
            first, second = self._run(store), self._run(store)
            whole = session_cost(store.read_events(first)) or 0.0
            for arguments, factor in ((["--by", "model"], 2), (["--by", "agent", first], 1), ([first, second], 2)):
                out = io.StringIO()
                with contextlib.redirect_stdout(out):
                    code = main(["sessions", "cost", "--store", str(Path(folder, "s")), "--json", *arguments])
                report = json.loads(out.getvalue())
                self.assertEqual(code, 0)
                self.assertAlmostEqual(report["total"]["cost_usd"], whole * factor, 9)
            file = Path(folder, "limits.toml")
            file.write_text('[tag."n*"]\nmax_cost_usd = 4\nmax_tokens = 5000\n')
            for arguments in ([], ["--json"]):
                out = io.StringIO()
                with contextlib.redirect_stdout(out):
                    code = main(
                        ["sessions", "cost", "--store", str(Path(folder, "s")), "--left", str(file), *arguments]
                    )
                self.assertEqual(code, 0)
                if arguments:
                    self.assertEqual(json.loads(out.getvalue())["limits"][0]["left_tokens"], 5000)
                else:
                    line = (
                        'tag."n*": 4.0000 of 4 USD and 5,000 of 5,000 tokens left for n* until the day\'s end (UTC)\n'
                    )
                    self.assertEqual(out.getvalue(), line)
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                main(["sessions", "cost", "--store", str(Path(folder, "s")), "--by", "subagent"])
            head, *rows = out.getvalue().splitlines()
            self.assertEqual(head.split(), ["subagent", "calls", "input", "cached", "output", "cost", "share"])
            self.assertIn(["helper", "2"], [row.split()[:2] for row in rows])
            self.assertEqual({len(row) for row in rows}, {len(head)}, "the columns are not aligned")
