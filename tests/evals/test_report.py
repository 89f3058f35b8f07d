"""The results of an eval: a session, rows, JSON, JUnit XML, a page and telemetry, whatever the sessions contain."""

from __future__ import annotations

import json
import re
import unittest
import xml.etree.ElementTree as ElementTree
from typing import Any

from openagentic_sdk import MemorySessionStore
from openagentic_sdk.evals import Case, EvalReport, Exact, Function, Regex, Suite, Variant, to_junit
from openagentic_sdk.events import EvalCase, EvalFinished, EvalStarted, Event
from openagentic_sdk.parts.record.folds.export import to_otlp
from openagentic_sdk.serialization import dumps_event, loads_event
from openagentic_sdk.viewer.evals import build_eval_page

from .support import evaluate, made, recorded

HOSTILE = "</pre><script>alert(1)</script>]]>\x1b[2J\u202e\x00\ufffe\uffff\ud800&amp;<!-- \" '"


def hostile_report() -> EvalReport:
    scores = [
        {"name": HOSTILE, "type": HOSTILE, "passed": False, "value": 0.0, "words": HOSTILE, "error_type": HOSTILE},
        {"name": "no words", "type": "x", "passed": False},
    ]
    events: list[Event] = [
        EvalStarted(suite=HOSTILE, suite_sha256="0", plan=[{"id": HOSTILE}], variants=[HOSTILE], source=HOSTILE),
        EvalCase(
            HOSTILE,
            HOSTILE,
            1,
            "live",
            passed=False,
            scores=scores,
            session_id=HOSTILE,
            stop_reason=HOSTILE,
            final_text=HOSTILE,
        ),
        EvalFinished("end", 0, 1),
    ]
    return EvalReport.of("e", events)


class Sessions(unittest.TestCase):
    def test_the_results_are_a_session_that_reads_back_as_the_report(self) -> None:
        store = MemorySessionStore()
        suite = Suite(name="x", cases=[Case(id="a", prompt="?")], agent=made("Hi."), scores=[Exact(text="Hi.")])
        report = evaluate(suite, store)
        events = [loads_event(dumps_event(event)) for event in store.iter_events(report.session_id)]
        self.assertEqual([e.type for e in events], ["session.meta", "eval.started", "eval.case", "eval.finished"])
        again = EvalReport.of(report.session_id, events)
        self.assertEqual(again.to_dict(), report.to_dict())
        self.assertEqual(store.read_summary(report.session_id).title, "eval x")

    def test_a_report_is_json(self) -> None:
        told = json.loads(json.dumps(hostile_report().to_dict()))
        self.assertEqual((told["ok"], told["failed"], told["left"]), (False, 1, 0))

    def test_a_run_that_is_reported_twice_counts_once(self) -> None:
        report = hostile_report()
        self.assertEqual(report.after(report.runs[0]).runs, report.runs)

    def test_a_report_in_which_nothing_ran_is_not_a_success(self) -> None:
        started = EvalStarted(suite="x", suite_sha256="0", plan=[], variants=["plain"])
        self.assertFalse(EvalReport.of("e", [started, EvalFinished("end", 0, 0)]).ok)


class JUnit(unittest.TestCase):
    def test_the_report_is_valid_xml_whatever_the_sessions_contain(self) -> None:
        text = to_junit(hostile_report())
        self.assertIsNone(re.search("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", text))
        root = ElementTree.fromstring(text.encode())
        failure = root.find("testsuite/testcase/error")
        assert failure is not None
        self.assertIn("<script>", failure.text or "")

    def test_it_has_what_both_schemas_want(self) -> None:
        suite = Suite(
            name="x",
            cases=[Case(id="good", prompt="?"), Case(id="bad", prompt="?", scores=[Exact(text="no")])],
            agent=made("Hi."),
            variants={"a": Variant(), "b": Variant()},
            repeats=2,
        )
        root = ElementTree.fromstring(to_junit(evaluate(suite)).encode())
        self.assertEqual((root.tag, root.attrib), ("testsuites", {}))
        for number, child in enumerate(root):
            needed = {
                "package",
                "id",
                "name",
                "timestamp",
                "hostname",
                "tests",
                "failures",
                "errors",
                "time",
                "skipped",
            }
            self.assertEqual(set(child.attrib), needed)
            self.assertEqual(child.attrib["id"], str(number))
            self.assertRegex(child.attrib["timestamp"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d$")
            kinds = [part.tag for part in child]
            self.assertEqual(kinds, ["properties", *["testcase"] * 4, "system-out", "system-err"])
            self.assertEqual((child.attrib["tests"], child.attrib["failures"], child.attrib["errors"]), ("4", "2", "0"))
            for case in child.findall("testcase"):
                self.assertEqual(set(case.attrib), {"name", "classname", "time"})
                self.assertLessEqual(len(case), 1)

    def test_a_case_that_did_not_run_counts_as_skipped(self) -> None:
        suite = Suite(
            name="x", cases=[Case(id=f"c{n}", prompt="?") for n in range(3)], agent=made("Hi."), max_cost_usd=0.0
        )
        report = evaluate(suite)
        root = ElementTree.fromstring(to_junit(report).encode())
        (child,) = root
        self.assertEqual((report.ok, child.get("tests"), child.get("skipped")), (False, "3", "3"))
        self.assertEqual([part.tag for case in child.iter("testcase") for part in case], ["skipped"] * 3)

    def test_a_scorer_that_could_not_score_is_an_error_and_no_failure(self) -> None:
        def broken(events: Any) -> bool:
            raise RuntimeError("broken")

        suite = Suite(name="x", cases=[Case(prompt="?")], agent=made("Hi."), scores=[Function(check=broken)])
        root = ElementTree.fromstring(to_junit(evaluate(suite)).encode())
        self.assertEqual([(e.tag, e.get("type")) for e in root.iter("error")], [("error", "function")])


class Pages(unittest.TestCase):
    def test_nothing_of_a_session_becomes_markup(self) -> None:
        page = build_eval_page(hostile_report())
        self.assertNotIn("<script", page)
        self.assertIn("&lt;script&gt;", page)
        self.assertNotIn("\x1b", page)
        self.assertNotIn("\u202e", page)
        self.assertIn("default-src 'none'", page)


class Telemetry(unittest.TestCase):
    def spans_of(self, store: MemorySessionStore, session_id: str) -> list[dict[str, Any]]:
        spans = to_otlp(store.read_events(session_id))["resourceSpans"][0]["scopeSpans"][0]["spans"]
        return [{**span, "attributes": self.flat(span)} for span in spans]

    def flat(self, holder: dict[str, Any]) -> dict[str, Any]:
        return {each["key"]: next(iter(each["value"].values())) for each in holder["attributes"]}

    def test_the_span_of_an_evaluation_is_a_child_of_its_run(self) -> None:
        store = MemorySessionStore()
        session = recorded(store)
        suite = Suite(
            name="x",
            cases=[Case(id="a", session=session)],
            agent=made(),
            scores=[Regex(pattern="4 p"), Exact(text="no")],
        )
        report = evaluate(suite, store)
        run = next(s for s in self.spans_of(store, session) if s["name"].startswith("invoke_agent"))
        (span,) = self.spans_of(store, report.session_id)
        self.assertEqual((span["traceId"], span["parentSpanId"]), (run["traceId"], run["spanId"]))
        self.assertEqual(span["attributes"]["gen_ai.conversation.id"], session)
        found = [(event["name"], self.flat(event)) for event in span["events"]]
        self.assertEqual({name for name, _ in found}, {"gen_ai.evaluation.result"})
        told = {facts["gen_ai.evaluation.name"]: facts for _, facts in found}
        self.assertEqual(set(told), {"replay", "regex", "exact"})
        self.assertEqual(told["exact"]["gen_ai.evaluation.score.label"], "fail")
        self.assertEqual(told["regex"]["gen_ai.evaluation.score.value"], 1.0)
        self.assertIn("final text", told["exact"]["gen_ai.evaluation.explanation"])

    def test_two_evals_of_one_session_have_spans_of_their_own(self) -> None:
        store = MemorySessionStore()
        suite = Suite(name="x", cases=[Case(id="a", session=recorded(store))], agent=made(), repeats=2)
        reports = [evaluate(suite, store) for _ in range(2)]
        spans = [span for report in reports for span in self.spans_of(store, report.session_id)]
        self.assertEqual(len({span["spanId"] for span in spans}), 4)


if __name__ == "__main__":
    unittest.main()
