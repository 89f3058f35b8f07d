"""The cost of labels in Python function calls: for one decision, for many results, and for a run without labels."""

from __future__ import annotations

import subprocess
import sys
import unittest
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from openagentic_sdk.events import SystemInit, ToolResult, ToolStarted, ToolUse, UserMessage
from openagentic_sdk.parts.labels.fold import LabelsFold
from openagentic_sdk.parts.labels.judgement import ActingTool, object_to
from openagentic_sdk.parts.labels.rules import read_label_rules
from openagentic_sdk.sessions.folds.features.untrusted import UntrustedFold
from openagentic_sdk.sessions.folds.view import SessionView
from tests.size import full_size

from .test_labels import Session, call, read_mail, send_money

ROOT = Path(__file__).parents[2]
PAY: Mapping[str, Any] = {"to": "GB29NWBK60161331926819", "amount": 50}
PROMPT = "Read my mail. Pay 50 to GB29NWBK60161331926819. " + "Some more words. " * 30


def count_calls(work: Any) -> int:
    """Count the Python functions called in this thread during the work."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def calls_of_one_payment(labels: str) -> float:
    """The function calls caused by one more payment, from the model's call to its result in the log."""

    def played(payments: int) -> int:
        many = {"tool_calls": call("send_money", **PAY)["tool_calls"] * payments}
        session = Session(labels)
        return count_calls(lambda: session.run(PROMPT, call("read_mail"), many, tools=[read_mail, send_money]))

    played(1)
    return (played(60) - played(20)) / 40


def view_of(results: int) -> SessionView:
    view = SessionView((UntrustedFold, LabelsFold))
    view.apply(SystemInit("s", "/", "0", seq=1))
    view.apply(UserMessage(PROMPT, seq=2))
    meta = {"untrusted": "tool read_mail", "label": {"source": "tool read_mail"}}
    for number in range(results):
        name = f"call-{number}"
        view.apply(ToolUse(name, "read_mail", {}, seq=3 * number + 3))
        view.apply(ToolStarted(name, "read_mail", "read", "0" * 64, name, seq=3 * number + 4))
        view.apply(ToolResult(name, f"mail {number}", meta=meta, seq=3 * number + 5))
    return view


class CostTest(unittest.TestCase):
    @full_size
    def test_a_decision_with_labels_calls_at_most_a_fifth_more_functions(self) -> None:
        without, guarded = calls_of_one_payment("off"), calls_of_one_payment("guard")
        self.assertGreater(guarded, without)
        self.assertLessEqual(guarded, 1.2 * without)

    def test_a_thousand_labelled_results_make_no_decision_dearer(self) -> None:
        tool, rules = ActingTool.of(send_money, send_money.labels), read_label_rules("guard")
        costs = []
        for results in (1, 1000):
            judge = partial(object_to, rules, tool, lambda input: (), PAY, [view_of(results)])
            judge()
            costs.append(count_calls(judge))
        self.assertEqual(*costs)

    @full_size
    def test_a_run_without_labels_imports_nothing_of_them_but_their_rules(self) -> None:
        program = (
            "import sys; from openagentic_sdk import *; from openagentic_sdk.testing import ScriptedProvider\n"
            "kept = dict(model='m', session_store=MemorySessionStore())\n"
            "run_sync(prompt='go', options=OpenAgenticOptions(provider=ScriptedProvider(['Tea.']), **kept))\n"
            "print(sorted(name for name in sys.modules if 'parts.labels.' in name))\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, cwd=ROOT)
        rooms = ["openagentic_sdk.parts.labels.rules", "openagentic_sdk.parts.labels.settings_rules"]
        self.assertEqual((done.stdout.strip(), done.returncode), (str(rooms), 0), done.stderr)


if __name__ == "__main__":
    unittest.main()
