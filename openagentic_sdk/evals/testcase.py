"""A suite as unittest tests, one for each case and variant; pytest finds them too."""

from __future__ import annotations

import asyncio
import re
import sys
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import OptionsError
from ..ground.checks import NAME, check_settings
from ..parts.budgets import Budget
from ..sessions.base import SessionStore
from ..sessions.memory import MemorySessionStore
from ..sessions.stores.locate import open_store
from .plan import plan_cases, variants_of
from .report import Row
from .run import run_suite
from .suite import Suite, check_suite, load_suite


def eval_tests(
    suite: Suite | str, *, store: SessionStore | str | None = None, name: str = "EvalTest"
) -> type[unittest.TestCase]:
    """Create a test class, called `name`, for a module: `EvalTest = eval_tests("evals/support.toml")`.

    The path of a suite is relative to the calling module, one in `store` to the working directory. `store` contains
    the recorded sessions and receives new ones; by default, all are in memory. An invalid suite becomes a failing test.
    """
    check_settings({"name": name}, {"name": NAME})
    here = sys._getframe(1).f_globals
    folder = Path(here.get("__file__") or ".").resolve().parent
    methods: dict[str, Any] = {"__module__": here.get("__name__", __name__), "__doc__": f"The suite {suite!s:.100}."}
    try:
        if isinstance(suite, str):
            suite = load_suite(str(folder / suite) if suite.endswith((".py", ".toml")) else suite)
        suite = check_suite(suite)
        opened = open_store(store) if isinstance(store, str) else store or MemorySessionStore()
        budget = Budget(max_cost_usd=suite.max_cost_usd)
        for planned in plan_cases(suite, opened):
            for variant in filter(planned.runs_under, variants_of(suite)):
                words = re.sub(r"\W+", "_", f"{planned.id}_{variant}" if suite.variants else planned.id)
                same = sum(re.fullmatch(rf"test_{words}(_\d+)?", method) is not None for method in methods)
                method = f"test_{words}_{same + 1}" if same else f"test_{words}"
                methods[method] = _test(suite, opened, planned.id, variant, budget)
    except OptionsError as error:
        methods["test_the_suite"] = _broken(error)
    return type(name, (unittest.TestCase,), methods)


def _test(
    suite: Suite, store: SessionStore, case: str, variant: str, budget: Budget
) -> Callable[[unittest.TestCase], None]:
    """Create one test; the suite's budget is reduced by the cost of earlier tests."""

    def test(self: unittest.TestCase) -> None:
        limit = budget.max_cost_usd
        usd_left = None if limit is None else 0.0 if budget.cost_usd is None else max(0.0, limit - budget.cost_usd)
        report = asyncio.run(run_suite(suite, store=store, cases=[case], variants=[variant], max_cost_usd=usd_left))
        is_spent = report.finished is not None and report.finished.reason == "budget"
        budget.charge(None, usd_left if is_spent else report.cost_usd)
        if not report.ok:
            self.fail(_words(report.rows(), report.session_id))

    return test


def _words(rows: list[Row], session_id: str) -> str:
    if not rows:
        return f"it did not run: the budget is spent (eval {session_id})"
    row = rows[0]
    problems = [f"  {problem}" for problem in row.problems()]
    return "\n".join([f"{row.passed} of {len(row.runs)} runs passed (eval {session_id})", *problems])


def _broken(error: OptionsError) -> Callable[[unittest.TestCase], None]:
    def test(self: unittest.TestCase) -> None:
        raise error

    return test
