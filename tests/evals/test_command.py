"""`openagentic-sdk eval`, as used by a person and by a CI job."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from openagentic_sdk import FileSessionStore
from openagentic_sdk.cli.main import main
from openagentic_sdk.events import EvalCase, EvalFinished, EvalStarted
from tests.pythons import run_python

from .support import recorded

ROOT = Path(__file__).resolve().parents[2]
SUITE = """
name = "shop"

[agent]
script = "script.json"

[[cases]]
id = "hello"
prompt = "Say hello."

[[cases]]
id = "bye"
prompt = "Say bye."

[[scores]]
type = "regex"
pattern = "Hello"

[variants.plain]
"""
WORSE = '\n[variants.worse]\nscript = "worse.json"\n'


class Command(unittest.TestCase):
    maxDiff = None

    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.suite = self.folder / "suite.toml"
        self.suite.write_text(SUITE)
        (self.folder / "script.json").write_text(json.dumps({"turns": ["Hello!"]}))
        (self.folder / "worse.json").write_text(json.dumps({"turns": ["\x1b[2JGo away\u202e."]}))

    def call(self, *arguments: str) -> tuple[int, str, str]:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            code = main(["eval", *arguments, "--store", str(self.folder / "store")])
        return code, out.getvalue(), err.getvalue()

    def test_all_that_passes_is_0_and_a_table(self) -> None:
        code, out, err = self.call(str(self.suite))
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"pass  hello  value 1.00  1 steps  \? USD\n")
        self.assertRegex(out, r"2 of 2 runs passed; an unknown cost; eval [0-9a-f]{32}\n")

    def test_a_comparison_is_a_page_with_both_prompts_and_transcripts_and_a_file_for_ci(self) -> None:
        self.suite.write_text(SUITE + WORSE + 'system_prompt = "Be <b>rude</b>."\n')
        self.call(str(self.suite))
        listed = [self.listed(*flags) for flags in ((), ("--evals",))]
        self.assertEqual(listed[0], [])
        self.assertEqual(len(listed[1]), 5)
        eval_id = next(row["id"] for row in listed[1] if row["turns"] == 0)
        page, junit = self.folder / "c.html", self.folder / "c.xml"
        wanted = (f"{eval_id}:plain", f"{eval_id}:worse", "--page", str(page), "--junit", str(junit))
        code, out, _ = self.call("compare", *wanted)
        self.assertEqual((code, out.count("  worse: ")), (1, 2))
        text = page.read_text()
        for part in ("Be &lt;b&gt;rude&lt;/b&gt;.", "Hello!", "Go away", "Say hello.", "2 worse"):
            self.assertIn(part, text)
        self.assertNotIn("<b>rude", text)
        suite = ElementTree.fromstring(junit.read_text())[0]
        self.assertEqual((suite.get("tests"), suite.get("failures")), ("2", "2"))

    def test_a_comparison_takes_the_words_of_fail_on(self) -> None:
        store = FileSessionStore(self.folder / "store")
        session = store.create_session()
        runs = [
            ("plain", True),
            ("plain", True),
            ("plain", True),
            ("wavers", True),
            ("wavers", True),
            ("wavers", False),
        ]
        cases = [
            EvalCase(case="a", variant=variant, repeat=number % 3 + 1, mode="live", passed=passed)
            for number, (variant, passed) in enumerate(runs)
        ]
        start = EvalStarted("s", "0", [{"id": "a"}], ["plain", "wavers"], repeats=3)
        store.append_events(session, [start, *cases, EvalFinished(reason="end", passed=5, failed=1, left=0)])
        sides = f"{session}:plain", f"{session}:wavers"
        for words, code, told in (
            ((), 0, "worse in some repeats, no failure with --fail-on most: a"),
            (("--fail-on", "most"), 0, "no failure with --fail-on most: a"),
            (("--fail-on", "any"), 1, "  worse: a"),
            (("--fail-on", "all"), 0, "no failure with --fail-on all: a"),
        ):
            with self.subTest(words):
                found = self.call("compare", *sides, *words)
                self.assertEqual(found[0], code)
                self.assertIn(told, found[1])
        self.assertIs(json.loads(self.call("compare", *sides, "--fail-on", "any", "--json")[1])["ok"], False)

    def listed(self, *flags: str) -> list[dict[str, Any]]:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            main(["sessions", "list", "--json", "--limit", "9", *flags, "--store", str(self.folder / "store")])
        return [json.loads(line) for line in out.getvalue().splitlines() if line.startswith("{")]

    def test_a_failure_exits_with_1_and_prints_its_explanation_without_control_sequences(self) -> None:
        self.suite.write_text(SUITE + WORSE)
        junit, page = self.folder / "j.xml", self.folder / "p.html"
        code, out, _ = self.call(str(self.suite), "--junit", str(junit), "--page", str(page))
        self.assertEqual(code, 1)
        self.assertNotIn("\x1b", out)
        self.assertNotIn("\u202e", out)
        self.assertIn("regex: the final text is '\\\\x1b[2JGo away\\\\u202e.'", out)
        commands = re.findall(r"^ +openagentic-sdk (\w+) (\w+)(?: --at (\d+))? --store ", out, re.MULTILINE)
        self.assertEqual([name for name, _, _ in commands], ["view", "whatif"] * 2)
        store = FileSessionStore(self.folder / "store")
        for name, session, seq in commands:
            after = store.read_events(session)[int(seq or 0)]
            self.assertEqual(after.type, "model.request" if name == "whatif" else "system.init")
        self.assertIn('failures="2"', junit.read_text())
        self.assertIn("Go away", page.read_text())

    def test_the_command_that_continues_a_failed_run_names_the_agent_of_its_suite(self) -> None:
        (self.folder / "agent_of_this_suite.py").write_text(
            "from openagentic_sdk import OpenAgenticOptions\n"
            "from openagentic_sdk.testing import ScriptedProvider\n"
            "def make():\n"
            "    return OpenAgenticOptions(provider=ScriptedProvider(['Go away.', 'Go away.']), model='m')\n"
        )
        self.addCleanup(sys.modules.pop, "agent_of_this_suite", None)
        suite = SUITE.replace('[agent]\nscript = "script.json"\n', 'agent = "agent_of_this_suite:make"\n')
        self.suite.write_text(suite + '[variants.other]\nagent = "agent_of_this_suite:make"\n')
        code, out, err = self.call(str(self.suite))
        self.assertEqual(code, 1, err)
        commands = re.findall(r"openagentic-sdk (whatif .*)", out)
        self.assertEqual(len(commands), 4, out)
        _, shown, _ = self.call("show", "newest")
        self.assertEqual(re.findall(r"openagentic-sdk (whatif .*)", shown), commands)
        self.suite.write_text(suite)  # a changed suite may have another agent: it is not named
        self.assertNotIn("--agent", self.call("show", "newest")[1])
        for command in commands:
            words = shlex.split(command)
            self.assertEqual(words[4:6], ["--agent", "agent_of_this_suite:make"])
            with contextlib.redirect_stdout(io.StringIO()) as again:
                self.assertEqual(main(words), 0)
            self.assertIn("Go away.", again.getvalue())

    def test_only_what_is_named_runs(self) -> None:
        self.suite.write_text(SUITE + WORSE)
        code, out, _ = self.call(str(self.suite), "--case", "hello", "--variant", "plain", "--repeats", "3", "--json")
        told = json.loads(out)
        self.assertEqual((code, told["passed"], [row["runs"] for row in told["rows"]]), (0, 3, [3]))

    def test_wrong_usage_is_2_with_one_sentence(self) -> None:
        for arguments, words in (
            (["nowhere.toml"], "the suite cannot be read"),
            ([str(self.suite), "--case", "x"], "unknown case 'x': the cases are hello, bye"),
            ([str(self.suite), "--variant", "x"], "unknown variant 'x'"),
            ([str(self.suite), "--repeats", "0"], "at least 1"),
            ([str(self.suite), "--parallel", "0"], "at least 1"),
            ([str(self.suite), "--max-cost", "-1"], "at least 0"),
            ([str(self.suite), "ID"], "accepts 0 ids"),
            ([str(self.suite), "--resume"], "no interrupted eval of 'shop'"),
            (["compare", "a"], "accepts 2 ids"),
            (["show"], "accepts 1 id,"),
        ):
            with self.subTest(words):
                code, out, err = self.call(*arguments)
                self.assertEqual((code, out, err.count("\n")), (2, "", 1), err)
                self.assertIn(words, err)

    def test_stored_results_can_be_shown_and_compared(self) -> None:
        self.suite.write_text(SUITE + WORSE)
        _, out, _ = self.call(str(self.suite), "--json")
        first = json.loads(out)["session_id"]
        code, again, _ = self.call("show", first[:12], "--json")
        self.assertEqual((code, json.loads(again)), (1, json.loads(out)))
        code, text, _ = self.call("compare", f"{first[:12]}:plain", f"{first[:12]}:worse")
        self.assertEqual(code, 1)
        self.assertIn("2 cases ran in both: 0 better, 2 worse\n  worse: hello\n  worse: bye\n", text)
        self.assertIn("passed: 1 -> 0, -1, 95 % from -1 to ", text)
        self.assertIn("McNemar's exact test of better against worse: p = 0.5", text)
        code, text, _ = self.call("compare", first, first, "--json")
        self.assertEqual((code, json.loads(text)["p_value"]), (0, None))
        code, _, err = self.call("compare", f"{first}:none", f"{first}:plain")
        self.assertEqual(code, 2)
        self.assertIn("it has plain, worse", err)

    def test_a_session_that_is_not_an_evaluation_is_refused(self) -> None:
        session = recorded(FileSessionStore(self.folder / "store"), "Hi.")
        code, _, err = self.call("show", session)
        self.assertEqual(code, 2)
        self.assertIn("is not an eval", err)

    def test_hostile_names_in_a_log_do_no_harm_in_a_table(self) -> None:
        store = FileSessionStore(self.folder / "store")
        evil = "\x1b]0;x\x07\u202e\n"
        session = store.create_session(session_id="e1")
        scores = [{"name": evil, "words": evil, "passed": False, "value": "x"}, {"value": None}]
        store.append_events(
            session,
            [
                EvalStarted(evil, "0", [{}], [evil, "b"], source=evil),
                EvalCase(evil, evil, 1, evil, passed=False, scores=scores, session_id=evil),
            ],
        )
        for arguments in (["show", session], ["compare", session, session]):
            _, out, err = self.call(*arguments)
            self.assertNotIn("\x1b", out + err)
            self.assertNotIn("\u202e", out + err)
        self.call("show", session, "--junit", str(self.folder / "j"), "--page", str(self.folder / "p"))


class CtrlC(unittest.TestCase):
    def test_ctrl_c_keeps_finished_cases_and_prints_how_to_continue(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "suite.py").write_text(STOPPED)
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder)}
        command = ["-m", "openagentic_sdk", "eval", str(folder / "suite.py"), "--store", str(folder)]
        done = run_python(*command, "--parallel", "1", env=environ, text=True, cwd=folder)
        self.assertEqual((done.returncode, done.stdout), (130, ""), done.stderr)
        self.assertRegex(
            done.stderr,
            r"stopped, with 1 run kept. To continue: openagentic-sdk eval \S+suite.py --resume \w+ --store ",
        )
        self.assertNotIn("Traceback", done.stderr)
        store = FileSessionStore(folder)
        kept = [e for name in store.list_sessions() for e in store.iter_events(name) if isinstance(e, EvalCase)]
        self.assertEqual([event.case for event in kept], ["c0"])


STOPPED = """
import asyncio
import os
import re
import signal

from openagentic_sdk import OpenAgenticOptions
from openagentic_sdk.evals import Case, Suite
from openagentic_sdk.providers.base import ModelOutput


class Model:
    name = "waits"

    async def complete(self, *, model, messages, tools=(), api_key=None):
        if messages[-1]["content"] == "prompt 1":
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        return ModelOutput("Yes.", [])


def agent():
    return OpenAgenticOptions(provider=Model(), model="m", tools=())


suite = Suite(name="stopped", agent=agent, cases=[Case(id=f"c{n}", prompt=f"prompt {n}") for n in range(3)])
"""


if __name__ == "__main__":
    unittest.main()
