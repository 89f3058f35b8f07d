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
    """A class of tests to put into a module: `EvalTest = eval_tests("evals/support.toml")`.

    Paths are relative to the module that calls. `store` holds the recorded sessions and gets those that are made; without
    one they live in memory. What is wrong with the suite is a test that fails.
    """
    here = sys._getframe(1).f_globals
    folder = Path(here.get("__file__") or ".").resolve().parent
    methods: dict[str, Any] = {"__module__": here.get("__name__", __name__), "__doc__": f"The suite {suite!s:.100}."}
    try:
        if isinstance(suite, str):
            suite = load_suite(str(folder / suite) if suite.endswith((".py", ".toml")) else suite)
        suite = check_suite(suite)
        opened = open_store(store) if isinstance(store, str) else store or MemorySessionStore()
        for planned in plan_cases(suite, opened):
            for variant in variants_of(suite):
                if not planned.case.variants or variant in planned.case.variants:
                    words = re.sub(r"\W+", "_", f"{planned.id}_{variant}" if suite.variants else planned.id)
                    methods[f"test_{words}"] = _test(suite, opened, planned.id, variant)
    except OptionsError as error:
        methods["test_the_suite"] = _broken(error)
    return type(name, (unittest.TestCase,), methods)


def _test(suite: Suite, store: SessionStore, case: str, variant: str) -> Callable[[unittest.TestCase], None]:
    def test(self: unittest.TestCase) -> None:
        report = asyncio.run(run_suite(suite, store=store, cases=[case], variants=[variant]))
        if not report.ok:
            self.fail(_words(report.rows(), report.session_id))

    test.__doc__ = None
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
