"""Evals: suites of cases from recorded sessions and prompts, run under variants, scored, kept as sessions, and compared.

Names are imported when they are first used: the processes in which scorers run need next to nothing of this.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .compare import Comparison, compare_reports
    from .report import EvalReport, to_junit
    from .run import run_suite, run_suite_sync
    from .scorers import Call, Calls, Cost, Exact, Function, JsonSchema, Judge, Regex, Score, Steps
    from .suite import Case, Suite, Variant, load_suite
    from .testcase import eval_tests

_HOMES = {
    "Call": "scorers",
    "Calls": "scorers",
    "Case": "suite",
    "Comparison": "compare",
    "Cost": "scorers",
    "EvalReport": "report",
    "Exact": "scorers",
    "Function": "scorers",
    "JsonSchema": "scorers",
    "Judge": "scorers",
    "Regex": "scorers",
    "Score": "scorers",
    "Steps": "scorers",
    "Suite": "suite",
    "Variant": "suite",
    "compare_reports": "compare",
    "eval_tests": "testcase",
    "load_suite": "suite",
    "run_suite": "run",
    "run_suite_sync": "run",
    "to_junit": "report",
}

__all__ = [
    "Call",
    "Calls",
    "Case",
    "Comparison",
    "Cost",
    "EvalReport",
    "Exact",
    "Function",
    "JsonSchema",
    "Judge",
    "Regex",
    "Score",
    "Steps",
    "Suite",
    "Variant",
    "compare_reports",
    "eval_tests",
    "load_suite",
    "run_suite",
    "run_suite_sync",
    "to_junit",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{home}", __name__), name)
    return value
