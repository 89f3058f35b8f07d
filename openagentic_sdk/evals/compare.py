"""Compare two evals: which cases got better or worse, and the difference of the means with a valid interval.

Cases are paired by name. Repeats count as one value per case, their mean: they show the variation of a case, not the
differences between cases.

    what is compared                        the 95 % interval of the mean difference
    cases that passed or did not            Newcombe's score interval for paired proportions (method 10; Statistics in
                                            Medicine 17, 1998, 2635-2650), valid for few cases and for no change
    other values, 6 to 16 cases             exact: the means of all subsets (Hartigan's typical values; Journal of the
                                            American Statistical Association 64, 1969, 1303-1317)
    other values, more cases                paired bootstrap of the mean over cases, percentiles of 10,000 samples from a
                                            fixed seed (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, 13)
    other values, fewer than 6 cases        none: no 95 % interval exists for so few
    other values that all changed equally   none: the differences do not vary
    costs, 6 cases or more                  that of the median difference, exact for any distribution (sign test; Conover,
                                            Practical Nonparametric Statistics, 1999, 3.2): for the mean of skewed values,
                                            no method, bootstrap included, is valid for so few

A case that was replayed on both sides is not scored: a different prompt is itself a difference. It is reported as an
equality check and does not count otherwise.

Whether the excess of better over worse cases could be due to chance is tested with McNemar's exact test (two-sided binomial
on changed cases).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from math import comb, sqrt
from typing import Any, get_args

from ..errors import OptionsError
from ..ground.frozen import frozen
from .report import EvalReport, FailOn, Row, mean, xml_attributes

LEAST_CASES = 6
# The exact interval holds the means of all 2 ** 16 subsets in memory.
MOST_EXACT = 16
SAMPLES = 10_000
SEED = 1
_Z = 1.959963984540054  # the quantile of the normal distribution for 95 %


@frozen(kw_only=True)
class MeanDifference:
    """The mean of B minus that of A over `cases` pairs.

    `low` and `high` are its 95 % bounds (for costs, those of the median difference); None if `method` gives no interval.
    """

    of: str
    cases: int
    a: float
    b: float
    low: float | None
    high: float | None
    method: str

    @property
    def mean(self) -> float:
        return self.b - self.a

    @property
    def is_sure(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "mean": self.mean, "is_sure": self.is_sure}


@frozen(kw_only=True)
class Comparison:
    """The outcome of each case, and the differences of the means.

    `better` and `worse` are cases whose pass rate rose and fell; `only_a` and `only_b` are unpaired cases. `p_value` is
    McNemar's, None if no case changed. `replayed` are the equality checks, `differs` those of them that are equal less
    often in B. `failing` are the cases that B fails and A does not, for each word of `--fail-on`.
    """

    better: Sequence[str]
    worse: Sequence[str]
    same: Sequence[str]
    only_a: Sequence[str]
    only_b: Sequence[str]
    differences: Sequence[MeanDifference]
    p_value: float | None
    replayed: Sequence[str] = ()
    differs: Sequence[str] = ()
    failing: Mapping[FailOn, Sequence[str]] = field(default_factory=dict)

    @property
    def cases(self) -> int:
        return len(self.better) + len(self.worse) + len(self.same)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        differences = [difference.to_dict() for difference in self.differences]
        return {**vars(self), "differences": differences, "cases": self.cases}


def compare_reports(
    a: EvalReport, b: EvalReport, *, variant_a: str | None = None, variant_b: str | None = None
) -> Comparison:
    """Compare two evals, or two variants: the named variant of each eval or, without names, all that both have.

    Raises `OptionsError` for a variant that did not run, and if no case ran in both.
    """
    left, right = paired_rows(a, b, variant_a, variant_b)
    both = [key for key in left if key in right]
    replayed = [key for key in both if left[key].is_replayed and right[key].is_replayed]
    both = [key for key in both if key not in replayed]
    pairs = [(left[key], right[key]) for key in both]
    changed = {key: right[key].rate - left[key].rate for key in both}
    better, worse = ([pair_name(key) for key in both if sign * changed[key] > 0] for sign in (1, -1))
    return Comparison(
        better=better,
        worse=worse,
        same=[pair_name(key) for key in both if not changed[key]],
        only_a=[pair_name(key) for key in left if key not in right],
        only_b=[pair_name(key) for key in right if key not in left],
        replayed=list(map(pair_name, replayed)),
        differs=[pair_name(key) for key in replayed if right[key].rate < left[key].rate],
        failing={
            word: [pair_name(key) for key in both if right[key].fails(word) and not left[key].fails(word)]
            for word in get_args(FailOn)
        },
        differences=_differences(pairs) if pairs else [],
        p_value=exact_p_value(len(better), len(worse)),
    )


def _differences(pairs: Sequence[tuple[Row, Row]]) -> list[MeanDifference]:
    """The differences in each measure that all pairs have and, with several scorers, in the scores of each."""
    values: dict[str, list[tuple[float, float]]] = {}
    for one, other in pairs:
        theirs = other.scores
        for scorer, value in one.scores.items():
            if scorer in theirs:
                values.setdefault(scorer, []).append((value, theirs[scorer]))
    # With a single scorer, its score is the value itself.
    scorers = values if len(values) > 1 else {}
    cost_pairs = [(one.cost_usd, other.cost_usd) for one, other in pairs]
    costs = [(one, other) for one, other in cost_pairs if one is not None and other is not None]
    has_costs = len(costs) == len(cost_pairs) and any(map(any, costs))
    return [
        difference("passed", [(one.rate, other.rate) for one, other in pairs]),
        difference("value", [(one.value, other.value) for one, other in pairs]),
        *(difference(f"score {scorer}", value_pairs) for scorer, value_pairs in scorers.items()),
        difference("steps", [(one.steps, other.steps) for one, other in pairs]),
        *([difference("cost_usd", costs)] if has_costs else []),
    ]


RowsByCase = dict[tuple[str, str], Row]


def paired_rows(
    a: EvalReport, b: EvalReport, variant_a: str | None, variant_b: str | None
) -> tuple[RowsByCase, RowsByCase]:
    """The rows of both sides, by case and variant. Raises the errors of `compare_reports`."""
    is_one = variant_a is not None or variant_b is not None
    left, right = _rows(a, variant_a, is_one), _rows(b, variant_b, is_one)
    if not left.keys() & right.keys():
        raise OptionsError(
            f"no case ran in both {a.session_id} ({_names(left)}) and {b.session_id} ({_names(right)}): nothing to pair"
        )
    return left, right


def pair_name(key: tuple[str, str]) -> str:
    """The name of a pair: its case, and the variant if several are compared."""
    return f"{key[0]} ({key[1]})" if key[1] else key[0]


def _rows(report: EvalReport, variant: str | None, is_one: bool) -> dict[tuple[str, str], Row]:
    """The rows of a report by case and variant; the variant is empty if only one is compared.

    With `is_one`, the other side is a single variant. Raises `OptionsError` if this one is missing or not named.
    """
    variants = ", ".join(report.started.variants)
    if variant is not None and variant not in report.started.variants:
        raise OptionsError(f"eval {report.session_id} has no variant {variant!r:.100}: it has {variants}")
    several = len(report.started.variants) > 1 and variant is None
    if several and is_one:
        raise OptionsError(
            f"eval {report.session_id} has the variants {variants}: choose one, as {report.session_id}:NAME"
        )
    rows = [row for row in report.rows() if variant in (None, row.variant)]
    return {(row.case, row.variant if several else ""): row for row in rows}


def _names(rows: Iterable[tuple[str, str]]) -> str:
    names = [pair_name(key) for key in rows]
    return ", ".join(names[:5]) + (" ..." if len(names) > 5 else "") or "none"


# --- intervals -------------------------------------------------------------------------------------------------------


def difference(of: str, pairs: Sequence[tuple[float, float]]) -> MeanDifference:
    """The difference of the means of pairs (A, B), with the interval suited to these values and their number."""
    deltas = [other - one for one, other in pairs]
    interval: tuple[float, float] | None
    # Steps and costs are not proportions, even if all of them happen to be 0 or 1.
    if of not in ("steps", "cost_usd") and all(value in (0.0, 1.0) for pair in pairs for value in pair):
        method, interval = "Newcombe's paired score interval", newcombe(pairs)
    elif len(pairs) < LEAST_CASES:
        method, interval = f"none: fewer than {LEAST_CASES} cases", None
    elif of == "cost_usd":
        method, interval = "of the median difference, exact by the sign test", median_interval(deltas)
    elif len(set(deltas)) == 1:
        method, interval = "none: every case changed by the same amount", None
    elif len(pairs) <= MOST_EXACT:
        method, interval = "exact, means of all subsets", typical_values(deltas)
    else:
        method, interval = f"paired bootstrap, {SAMPLES} samples, seed {SEED}", bootstrap(deltas)
    low, high = interval or (None, None)
    a, b = mean([one for one, _ in pairs]), mean([other for _, other in pairs])
    return MeanDifference(of=of, cases=len(pairs), a=a, b=b, low=low, high=high, method=method)


def newcombe(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The 95 % interval by Newcombe's method 10 for the difference of two paired proportions; each value is 0 or 1."""
    n = len(pairs)
    both = sum(one == other == 1 for one, other in pairs)
    only_a = sum(one > other for one, other in pairs)
    only_b = sum(other > one for one, other in pairs)
    neither = n - both - only_a - only_b
    p_a, p_b = (both + only_a) / n, (both + only_b) / n
    (low_a, high_a), (low_b, high_b) = wilson(both + only_a, n), wilson(both + only_b, n)
    margins = (both + only_a) * (only_b + neither) * (both + only_b) * (only_a + neither)
    product: float = both * neither - only_a * only_b
    if product > 0:  # the continuity correction of Newcombe's formula
        product = max(product - n / 2, 0)
    phi = product / sqrt(margins) if margins else 0.0
    down_b, up_b, down_a, up_a = p_b - low_b, high_b - p_b, p_a - low_a, high_a - p_a
    below = sqrt(max(down_b**2 - 2 * phi * down_b * up_a + up_a**2, 0))
    above = sqrt(max(down_a**2 - 2 * phi * down_a * up_b + up_b**2, 0))
    return max(p_b - p_a - below, -1.0), min(p_b - p_a + above, 1.0)


def wilson(passed: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % score interval for a proportion (Journal of the American Statistical Association 22, 1927, 209-212)."""
    p, z = passed / n, _Z
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def median_interval(deltas: Sequence[float]) -> tuple[float, float]:
    """The order statistics that enclose the median with at least 95 % confidence for any distribution; needs 6 values."""
    n, place = len(deltas), 0
    while 2 * sum(comb(n, k) for k in range(place + 2)) <= 0.05 * 2**n:
        place += 1
    ordered = sorted(deltas)
    return ordered[place], ordered[-place - 1]


def typical_values(deltas: Sequence[float]) -> tuple[float, float] | None:
    """The exact interval from the means of all nonempty subsets; None if there are too few values."""
    sums = [(0.0, 0)]
    for delta in deltas:
        sums += [(total + delta, count + 1) for total, count in sums]
    means = sorted(total / count for total, count in sums if count)
    place = int(0.025 * (len(means) + 1))
    return None if place < 1 else (means[place - 1], means[-place])


def bootstrap(deltas: Sequence[float]) -> tuple[float, float]:
    """The central 95 % of the means of samples drawn with replacement; deterministic."""
    chance = random.Random(SEED)
    n = len(deltas)
    means = sorted(sum(chance.choices(deltas, k=n)) / n for _ in range(SAMPLES))
    place = int(0.025 * SAMPLES)
    return means[place], means[-place - 1]


def comparison_junit(comparison: Comparison, suite: str, fail_on: FailOn = "most") -> str:
    """JUnit XML of a comparison: a test case for each pair, which fails if B fails and A does not.

    A pair that is worse and does not fail counts as skipped.
    """
    failing = comparison.failing[fail_on]
    inner = {
        **dict.fromkeys(comparison.worse, '><skipped message="worse than before in some repeats"/></testcase>'),
        **dict.fromkeys(failing, '><failure message="worse than before" type="compare"></failure></testcase>'),
    }
    cases = (*comparison.worse, *comparison.better, *comparison.same)
    body = "\n".join(
        f"<testcase{xml_attributes({'name': case, 'classname': suite, 'time': '0'})}{inner.get(case, '/>')}"
        for case in cases
    )
    attributes = {
        "name": suite,
        "tests": str(len(cases)),
        "failures": str(len(failing)),
        "skipped": str(len(inner) - len(failing)),
        "errors": "0",
    }
    return (
        '<?xml version="1.0" '
        f'encoding="UTF-8"?>\n<testsuites>\n<testsuite{xml_attributes(attributes)}>\n{body}\n</testsuite>\n'
        "</testsuites>\n"
    )


def exact_p_value(better: int, worse: int) -> float | None:
    """McNemar's exact test: the probability that chance splits the changed cases at least as unevenly.

    None if no case changed.
    """
    n = better + worse
    if not n:
        return None
    tail: float = sum(comb(n, k) for k in range(min(better, worse) + 1)) / 2**n
    return min(1.0, 2.0 * tail)
