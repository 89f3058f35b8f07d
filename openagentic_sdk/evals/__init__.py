"""Evals: suites of cases from recorded sessions and prompts, run under variants, scored, kept as sessions, and compared."""

from .compare import Comparison, compare_reports
from .report import EvalReport, to_junit
from .run import run_suite, run_suite_sync
from .scorers import Call, Calls, Cost, Exact, Function, JsonSchema, Judge, Regex, Score, Steps
from .suite import Case, Suite, Variant, load_suite
from .testcase import eval_tests

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
