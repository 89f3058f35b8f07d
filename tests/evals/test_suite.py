"""A suite as a file: each error names the field and the line, before anything runs."""

from __future__ import annotations

import io
import json
import tempfile
import textwrap
import unittest
from pathlib import Path

from openagentic_sdk import MemorySessionStore
from openagentic_sdk.errors import SuiteError
from openagentic_sdk.evals import (
    Call,
    Calls,
    Case,
    Exact,
    Function,
    Judge,
    Regex,
    Suite,
    Variant,
    eval_tests,
    load_suite,
)
from openagentic_sdk.evals.suite import check_suite
from tests.size import full_size

from .support import MILLION, evaluate, made

WHOLE = """
name = "shop"
repeats = 2
max_cost_usd = 1.5

[agent]
script = "script.json"
system_prompt = \"\"\"
[[cases]]
id = "this is text"
\"\"\"

[[cases]]
id = "tea"
prompt = "Is there tea?"
ends = ["end", "max_steps"]

[[cases.scores]]
type = "calls"
must = ["Read", { tool = "Bash", matches = { command = "^ls" }, outcome = "ok" }]

[[cases]]
id = "log"
log = "events.jsonl"
variants = ["today"]

[[scores]]
type = "function"
check = "own.py:good"

[[scores]]
type = "judge"
rubric = "It is polite."
script = "judge.json"

[variants.today]

[variants.other]
system_prompt_file = "other.txt"
deny = ["Bash(rm:*)"]
tools = ["Read", "Bash"]
permission_mode = "plan"
"""


class Files(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "own.py").write_text("def good(events):\n    return True\n")
        (self.folder / "script.json").write_text(json.dumps({"turns": ["Hi."]}))
        (self.folder / "judge.json").write_text(
            json.dumps({"turns": ['{"reason": "", "verdict": "pass", "score": 1}']})
        )
        (self.folder / "other.txt").write_text("You are another.")

    def load(self, text: str, name: str = "suite.toml") -> Suite:
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return load_suite(str(path))

    def test_a_whole_file(self) -> None:
        suite = self.load(WHOLE)
        self.assertEqual((suite.name, suite.repeats, [case.id for case in suite.cases]), ("shop", 2, ["tea", "log"]))
        self.assertEqual(
            suite.cases[0].scores[0].must,
            [Call(tool="Read"), Call(tool="Bash", matches={"command": "^ls"}, outcome="ok")],
        )
        other = suite.options("other")
        assert other is not None and other.permission_gate is not None
        self.assertEqual(
            (other.system_prompt, other.disallowed_tools, other.permission_gate.mode),
            ("You are another.", ("Bash(rm:*)",), "plan"),
        )
        self.assertIsNot(suite.options("today").provider, suite.options("today").provider)  # type: ignore[union-attr]

    @full_size
    def test_it_runs(self) -> None:
        start, rest = WHOLE.index("[[cases.scores]]"), WHOLE.index("[[scores]]")
        suite = self.load((WHOLE[:start] + WHOLE[rest:]).replace("max_cost_usd = 1.5", ""))
        report = evaluate(suite)
        self.assertTrue(report.ok, report.to_dict())
        self.assertEqual(len(report.runs), 4)

    @full_size
    def test_an_error_names_its_field_and_line(self) -> None:
        for old, new, field, line, words in (
            ("repeats = 2", "repeats = two", "", 3, "not TOML"),
            ("repeats = 2", 'repeats = "two"', "repeats", 3, "must be a whole number"),
            ("repeats = 2", "repeats = 0", "repeats", 3, "from 1 to 1000"),
            ("repeats = 2", "repeat = 2", "repeat", 3, "is not known"),
            ("max_cost_usd = 1.5", "max_cost_usd = -1", "max_cost_usd", 4, "0 or more"),
            ("max_cost_usd = 1.5", "max_cost_usd = nan", "max_cost_usd", 4, "0 or more"),
            ('prompt = "Is there tea?"', "prompt = 5", "cases[0].prompt", 15, "must be a string"),
            ('prompt = "Is there tea?"', 'promt = "?"', "cases[0].promt", 15, "is not known"),
            ('prompt = "Is there tea?"', 'prompt = "?"\ntag = "x"', "cases[0]", 13, "must have exactly one of"),
            ('ends = ["end", "max_steps"]', 'ends = ["stop"]', "cases[0].ends[0]", 16, "must be one of"),
            ('type = "calls"', 'type = "call"', "cases[0].scores[0].type", 19, "must be one of exact, regex"),
            ('must = ["Read",', 'mus = ["Read",', "cases[0].scores[0].mus", 20, "is not known"),
            ('"^ls"', '"(ls"', "cases[0].scores[0].must[1].matches.command", 20, "not a regular expression"),
            ('outcome = "ok"', 'outcome = "good"', "cases[0].scores[0].must[1].outcome", 20, "must be one of"),
            ('id = "log"', 'id = "tea"', "cases[1].id", 23, "the id of more than one case"),
            ('id = "log"', 'id = "\\u001b"', "cases[1].id", 23, "letters"),
            ('variants = ["today"]', 'variants = ["x"]', "cases[1].variants", 25, "unknown variant 'x'"),
            ('check = "own.py:good"', 'check = "own.py:bad"', "scores[0].check", 29, "cannot be imported"),
            ('check = "own.py:good"', 'check = "nowhere.py:bad"', "scores[0].check", 29, "cannot be imported"),
            ('check = "own.py:good"', "check = 5", "scores[0].check", 29, "module:name"),
            ('rubric = "It is polite."', 'rubric = " "', "scores[1].rubric", 33, "is empty"),
            ('permission_mode = "plan"', 'permission_mode = "plane"', "variants.other.permission_mode", 42, "plane"),
            ("[variants.today]", "[variants.today]\nchange = 5", "variants.today.change", 37, "in Python"),
            ('system_prompt_file = "other.txt"', 'system_prompt_file = "no.txt"', "variants.other", 38, "no.txt"),
            ("[agent]", "[agent]\nmodle = 'x'", "agent", 6, "modle"),
        ):
            with self.subTest(new):
                self.assertIn(old, WHOLE)
                with self.assertRaises(SuiteError) as caught:
                    self.load(WHOLE.replace(old, new, 1))
                self.assertIn(words, str(caught.exception))
                self.assertEqual((caught.exception.field, caught.exception.line), (field, line), str(caught.exception))
                self.assertTrue(str(caught.exception).startswith(f"{self.folder}/suite.toml:{line}: "))

    def test_an_invalid_file_is_an_error_that_names_the_reason(self) -> None:
        for name, data, words in (
            ("a.toml", b"\xff\xfe", "not TOML"),
            ("b.toml", b"a = " + b"[" * 100_000, "not TOML"),
            ("c.toml", b"", "cases: is missing"),
            ("d.toml", b"cases = 5", "must be tables"),
            ("e.py", b"raise SystemExit(0)", "SystemExit"),
            ("f.py", b"\n\n1 +\n", "f.py:3: SyntaxError"),
            ("g.py", b"suite = 5", "must be Suite"),
        ):
            path = self.folder / name
            path.write_bytes(data)
            with self.subTest(name), self.assertRaises(SuiteError) as caught:
                load_suite(str(path))
            self.assertIn(words, str(caught.exception))
        for where in (str(self.folder / "no.toml"), str(self.folder / "no.py"), "no_such_module:suite", "nonsense"):
            with self.subTest(where), self.assertRaises(SuiteError):
                load_suite(where)

    def test_an_error_in_a_python_file_names_its_line(self) -> None:
        with self.assertRaises(SuiteError) as caught:
            self.load("a = 1\n\nb = a / 0\n", "own_suite.py")
        self.assertEqual((caught.exception.line, caught.exception.source), (3, str(self.folder / "own_suite.py")))

    @full_size
    def test_a_function_of_a_suite_in_python_runs_in_a_process_of_its_own(self) -> None:
        text = """
        import os
        from openagentic_sdk import OpenAgenticOptions
        from openagentic_sdk.evals import Case, Function, Suite
        from openagentic_sdk.testing import ScriptedProvider
        PARENT = os.getpid()

        def apart(events):
            return os.getppid() == int(os.environ["EVAL_TEST_PARENT"]), str(len(events))

        def agent():
            return OpenAgenticOptions(provider=ScriptedProvider(["Hi."]), model="m")

        suite = Suite(name="own", agent=agent, cases=[Case(prompt="?", scores=[Function(check=apart)])])
        """
        import os

        os.environ["EVAL_TEST_PARENT"] = str(os.getpid())
        self.addCleanup(os.environ.pop, "EVAL_TEST_PARENT")
        report = evaluate(self.load(text, "apart.py"))
        self.assertTrue(report.ok, report.to_dict())


class Values(unittest.TestCase):
    def test_unusable_values_are_errors_that_name_them(self) -> None:
        good = Case(prompt="?")
        for suite, field in (
            (Suite(name="x", cases=[]), "cases"),
            (Suite(name="x", cases=[good]), "cases[0].mode"),
            (Suite(name="x", cases=[Case(prompt="?", mode="replay")], agent=made()), "cases[0].mode"),
            (Suite(name="x", cases=[Case(session="s", at=0)], agent=made()), "cases[0].at"),
            (Suite(name="x", cases=[Case(session="s", at=5, mode="live")], agent=made()), "cases[0].at"),
            (Suite(name="x", cases=["case"], agent=made()), "cases[0]"),  # type: ignore[list-item]
            (Suite(name="x", cases=[good], agent=made(), scores=["exact"]), "scores[0]"),
            (Suite(name="x", cases=[good], agent=made(), scores=[Exact(text=5)]), "scores[0].text"),  # type: ignore[arg-type]
            (Suite(name="x", cases=[good], agent=made(), scores=[Regex(pattern="(")]), "scores[0].pattern"),
            (
                Suite(name="x", cases=[good], agent=made(), scores=[Regex(pattern="a", timeout_s=0)]),
                "scores[0].timeout_s",
            ),
            (Suite(name="x", cases=[good], agent=made(), scores=[Function(check="f")]), "scores[0].check"),
            (Suite(name="x", cases=[good], agent=made(), scores=[Calls(must=[5])]), "scores[0].must[0]"),  # type: ignore[list-item]
            (Suite(name="x", cases=[good], agent=5), "agent"),
            (Suite(name="x", cases=[good], agent=lambda: 1 / 0), "agent"),
            (Suite(name="x", cases=[good], agent=made(), variants={"a": Variant(change=lambda o: 5)}), "change"),
            (Suite(name="x", cases=[good], agent=made(), variants={"a b": Variant()}), "variants.a b"),
            (Suite(name="x", cases=[good], agent=made(), variants={"a": 5}), "variants.a"),  # type: ignore[dict-item]
            (Suite(name="x", cases=[Case(session="s")], scores=[Judge(rubric="?")]), "scores"),
        ):
            with self.subTest(field=field), self.assertRaises(SuiteError) as caught:
                check_suite(suite)
            self.assertEqual(caught.exception.field, field, str(caught.exception))


class InUnittest(unittest.TestCase):
    def run_tests(self, case: type[unittest.TestCase]) -> unittest.TestResult:
        tests = unittest.defaultTestLoader.loadTestsFromTestCase(case)
        return unittest.TextTestRunner(stream=io.StringIO()).run(tests)

    def test_a_suite_is_a_class_of_tests(self) -> None:
        suite = Suite(
            name="x",
            cases=[Case(id="a-b", prompt="?"), Case(id="a_b", prompt="?", scores=[Exact(text="no")])],
            agent=made("Hi."),
        )
        case = eval_tests(suite)
        self.assertEqual([name for name in dir(case) if name.startswith("test")], ["test_a_b", "test_a_b_2"])
        result = self.run_tests(case)
        self.assertEqual((result.testsRun, len(result.failures)), (2, 1))
        self.assertIn("exact: the final text is 'Hi.'", result.failures[0][1])

    def test_an_error_in_the_suite_is_a_failing_test(self) -> None:
        for wrong in ("nowhere.toml", Suite(name="x", cases=[Case(tag="none")])):
            result = self.run_tests(eval_tests(wrong))
            self.assertEqual((result.testsRun, result.wasSuccessful()), (1, False))

    def test_the_budget_holds_over_all_tests_of_the_suite(self) -> None:
        suite = Suite(
            name="x",
            cases=[Case(id=f"c{n}", prompt="?") for n in range(4)],
            agent=made({"text": "Hi.", "usage": MILLION}),
            max_cost_usd=2.0,
        )
        result = self.run_tests(eval_tests(suite, store=MemorySessionStore()))
        self.assertEqual(len(result.failures), 2)


if __name__ == "__main__":
    unittest.main()
