"""Improvements and regressions, and intervals that claim no more than a few cases can show."""

from __future__ import annotations

import random
import unittest
from collections.abc import Mapping, Sequence
from math import comb
from xml.etree import ElementTree

from openagentic_sdk.errors import OptionsError
from openagentic_sdk.evals import EvalReport, compare_reports
from openagentic_sdk.evals.compare import (
    bootstrap,
    comparison_junit,
    difference,
    exact_p_value,
    median_interval,
    newcombe,
    typical_values,
    wilson,
)
from openagentic_sdk.evals.report import to_junit
from openagentic_sdk.events import EvalCase, EvalFinished, EvalStarted, Event
from tests.size import full_size


def report(
    results: Mapping[str, Sequence[bool]], name: str = "e", variant: str = "plain", replayed: Sequence[str] = ()
) -> EvalReport:
    events: list[Event] = [EvalStarted(name, "0", [{"id": case} for case in results], [variant])]
    for case, passes in results.items():
        for repeat, passed in enumerate(passes, 1):
            scores = [{"name": "exact", "type": "exact", "passed": passed, "value": float(passed)}]
            mode = "replay" if case in replayed else "live"
            events.append(EvalCase(case, variant, repeat, mode, passed=passed, scores=scores, steps=2, cost_usd=0.1))
    return EvalReport.of(name, [*events, EvalFinished("end", 0, 0)])


class Cases(unittest.TestCase):
    def test_each_case_that_changed_is_named(self) -> None:
        a = report({"a": [True], "b": [False], "c": [True], "gone": [True]})
        b = report({"a": [False], "b": [True], "c": [True], "new": [True]})
        found = compare_reports(a, b)
        self.assertEqual((found.worse, found.better, found.same), (["a"], ["b"], ["c"]))
        self.assertEqual((found.only_a, found.only_b), (["gone"], ["new"]))
        passed = found.differences[0]
        self.assertEqual((passed.mean, passed.is_sure), (0.0, False))

    def test_a_replay_is_a_check_of_equality_and_no_score_of_another_prompt(self) -> None:
        a = report({"r1": [True], "r2": [True], "live": [True]}, replayed=("r1", "r2"))
        b = report({"r1": [False], "r2": [True], "live": [True]}, replayed=("r1", "r2"))
        found = compare_reports(a, b)
        self.assertEqual((found.worse, found.same, found.p_value), ([], ["live"], None))
        self.assertEqual((found.replayed, found.differs), (["r1", "r2"], ["r1"]))
        self.assertEqual(found.differences[0].cases, 1)
        alone = compare_reports(*(report({"r": [passed]}, replayed=("r",)) for passed in (True, False)))
        self.assertEqual((alone.cases, alone.differences, alone.differs), (0, [], ["r"]))

    def test_one_repeat_that_wavers_fails_no_case_unless_that_is_asked_for(self) -> None:
        wavering, failing = report({"a": [True, True, False]}), report({"a": [True, False, False]})
        self.assertEqual([wavering.passes(on) for on in ("any", "most", "all")], [False, True, True])
        self.assertEqual([failing.passes(on) for on in ("any", "most", "all")], [False, False, True])
        self.assertEqual(
            (wavering.ok, wavering.rows()[0].verdict(), failing.rows()[0].verdict()), (True, "wavers", "FAIL")
        )
        self.assertFalse(report({"a": [False]}).passes("all"))
        self.assertIn('failures="0"', to_junit(wavering))
        self.assertIn('failures="1"', to_junit(wavering, "any"))

    def test_the_interval_of_costs_holds_for_skewed_ones(self) -> None:
        chance, held, rounds = random.Random(7), 0, 4000
        for _ in range(rounds):
            pairs = [(chance.lognormvariate(0, 1.5), chance.lognormvariate(0, 1.5)) for _ in range(20)]
            found = difference("cost_usd", pairs)
            assert found.low is not None and found.high is not None
            held += found.low <= 0 <= found.high
        self.assertTrue(0.93 <= held / rounds <= 0.97, held)
        skewed = [(0.0, chance.lognormvariate(0, 1)) for _ in range(20)]
        self.assertIn("median difference", difference("cost_usd", skewed).method)
        for n in range(6, 60):
            low, high = median_interval(list(map(float, range(n))))
            place = int(low)
            outside = 2 * sum(comb(n, k) for k in range(place + 1)) / 2**n
            self.assertLessEqual(outside, 0.05)
            self.assertEqual((high, n - 1 - place), (n - 1 - place, high))
            self.assertGreater(outside + 2 * comb(n, place + 1) / 2**n, 0.05, "and no wider than necessary")

    def test_a_case_that_wavers_more_is_worse_though_it_counts_once(self) -> None:
        a = report({"a": [True] * 4, "b": [True] * 4})
        b = report({"a": [True, False, False, False], "b": [True] * 4})
        found = compare_reports(a, b)
        self.assertEqual(found.worse, ["a"])
        self.assertEqual(found.differences[0].cases, 2)
        self.assertIsNone(found.differences[0].low)

    def test_the_values_of_fail_on_select_cases_that_fail_only_in_b(self) -> None:
        a = report({"wavers": [True] * 3, "falls": [True, True, False], "gone": [True] * 3, "bad": [False] * 3})
        b = report(
            {"wavers": [True, True, False], "falls": [True, False, False], "gone": [False] * 3, "bad": [False] * 3}
        )
        found = compare_reports(a, b)
        self.assertEqual(found.worse, ["wavers", "falls", "gone"])
        # `any`: A fails "falls" already.
        self.assertEqual(found.failing, {"any": ["wavers", "gone"], "most": ["falls", "gone"], "all": ["gone"]})
        for word, failures, skipped in (("any", "2", "1"), ("most", "2", "1"), ("all", "1", "2")):
            suite = ElementTree.fromstring(comparison_junit(found, "s", word))[0]
            self.assertEqual((suite.get("failures"), suite.get("skipped")), (failures, skipped), word)
            self.assertEqual(len(suite.findall(".//failure")), int(failures))
            self.assertEqual(len(suite.findall(".//skipped")), int(skipped))

    @full_size
    def test_the_same_twice_gives_the_same_figures(self) -> None:
        chance = random.Random(5)
        sides = [{f"c{n}": [chance.random() < 0.5 for _ in range(3)] for n in range(30)} for _ in range(2)]
        one, other = (compare_reports(*map(report, sides)) for _ in range(2))
        self.assertEqual(one.to_dict(), other.to_dict())
        self.assertIn("bootstrap", one.differences[0].method)

    def test_variants_of_one_eval_are_compared_by_name(self) -> None:
        base, other = report({"a": [True]}, variant="base"), report({"a": [False]}, variant="other")
        started = EvalStarted("e", "0", [{"id": "a"}], ["base", "other"])
        both = EvalReport.of("e", [started, *base.runs, *other.runs])
        self.assertEqual(compare_reports(both, both, variant_a="base", variant_b="other").worse, ["a"])
        self.assertEqual(compare_reports(both, both).same, ["a (base)", "a (other)"])
        with self.assertRaisesRegex(OptionsError, "has no variant 'x': it has base, other"):
            compare_reports(both, both, variant_a="x", variant_b="base")
        with self.assertRaisesRegex(OptionsError, "choose one, as e:NAME"):
            compare_reports(both, both, variant_a="base")

    def test_nothing_in_common_is_an_error(self) -> None:
        with self.assertRaisesRegex(OptionsError, "no case ran in both"):
            compare_reports(report({"a": [True]}), report({"b": [True]}))


class Intervals(unittest.TestCase):
    def test_newcombes_interval_is_his(self) -> None:
        # Statistics in Medicine 17, 1998, by method 10, and as R's diffdepprop and biostatUZH give it.
        for counts, low, high in (
            ((36, 12, 2, 0), 0.0569, 0.3404),
            ((20, 12, 2, 16), 0.0562, 0.3292),
        ):
            both, only_b, only_a, neither = counts
            pairs = [(1.0, 1.0)] * both + [(0.0, 1.0)] * only_b + [(1.0, 0.0)] * only_a + [(0.0, 0.0)] * neither
            found = newcombe(pairs)
            with self.subTest(counts):
                self.assertAlmostEqual(found[0], low, places=4)
                self.assertAlmostEqual(found[1], high, places=4)

    def test_few_cases_that_all_got_better_do_not_make_it_sure_by_how_much(self) -> None:
        found = difference("passed", [(0.0, 1.0)] * 6)
        assert found.low is not None
        self.assertLess(found.low, 0.6)
        self.assertTrue(found.is_sure)
        self.assertFalse(difference("passed", [(0.0, 1.0)]).is_sure)

    def test_no_change_leaves_room_for_one(self) -> None:
        found = difference("passed", [(1.0, 1.0)] * 10)
        self.assertLess(found.low or 0.0, -0.2)
        self.assertGreater(found.high or 0.0, 0.2)

    def test_fewer_than_six_values_have_no_interval(self) -> None:
        self.assertIsNone(difference("value", [(0.1, 0.5), (0.2, 0.9), (0.3, 0.4), (0.2, 0.3), (0.1, 0.9)]).low)
        self.assertIsNone(typical_values([1.0, 2.0, 3.0, 4.0, 5.0]))
        self.assertEqual(typical_values([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), (1.0, 6.0))

    @full_size
    def test_the_intervals_hold_what_they_promise(self) -> None:
        chance = random.Random(7)
        for n, interval, times in ((8, typical_values, 100), (20, bootstrap, 12)):
            hits = 0
            for _ in range(times):
                low, high = interval([0.1 + chance.gauss(0, 0.2) for _ in range(n)]) or (1, 0)
                hits += low <= 0.1 <= high
            with self.subTest(n):
                self.assertGreaterEqual(hits, 0.85 * times)

    def test_wilsons_interval_and_the_exact_test_are_the_known_ones(self) -> None:
        low, high = wilson(81, 263)
        self.assertAlmostEqual(low, 0.2553, places=4)
        self.assertAlmostEqual(high, 0.3662, places=4)
        self.assertEqual(exact_p_value(6, 0), 0.03125)
        self.assertEqual(exact_p_value(3, 3), 1.0)
        self.assertIsNone(exact_p_value(0, 0))


if __name__ == "__main__":
    unittest.main()
