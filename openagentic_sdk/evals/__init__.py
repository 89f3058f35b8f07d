"""Evals: suites of cases from recorded sessions and prompts, run under variants, scored, stored as sessions, and compared.

Names are imported on first use: the processes that run scorers need almost none of this.
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
    name: home
    for home, names in {
        "compare": "Comparison compare_reports",
        "report": "EvalReport to_junit",
        "run": "run_suite run_suite_sync",
        "scorers": "Call Calls Cost Exact Function JsonSchema Judge Regex Score Steps",
        "suite": "Case Suite Variant load_suite",
        "testcase": "eval_tests",
    }.items()
    for name in names.split()
}
__all__ = [
    "Call", "Calls", "Case", "Comparison", "Cost", "EvalReport", "Exact", "Function", "JsonSchema", "Judge", "Regex",
    "Score", "Steps", "Suite", "Variant", "compare_reports", "eval_tests", "load_suite", "run_suite", "run_suite_sync",
    "to_junit",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{home}", __name__), name)
    return value
