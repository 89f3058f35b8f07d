"""The programs and the ports of `examples/` run to their end with a scripted model, as their expected files say.

A program's file is a transcript: each `$` line is its command line, and what it prints follows, errors too. QUESTION stands
for the id of a question, in what is typed for the last that was printed.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
import unittest
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

from . import test_examples
from .test_examples import ROOT

APPS = ROOT / "examples" / "apps"
EXPECTED = ROOT / "examples" / "expected"
QUESTION = re.compile(r"\b[0-9a-f]{32}\b")


def load_app(name: str) -> Any:
    """A program as a module; its `main(argv)` is the command."""
    spec = spec_from_file_location(f"examples_apps_{name}", APPS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    sys.path.insert(0, str(APPS))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(APPS))
    return module


class Bare(unittest.TestCase):
    """A test of a newcomer: without a key, a model or a home of one's own, and with nobody at the terminal."""

    maxDiff = None

    def setUp(self) -> None:
        test_examples.Examples.setUp(self)  # type: ignore[arg-type]
        argv, stdin = sys.argv, sys.stdin
        self.addCleanup(lambda: (setattr(sys, "argv", argv), setattr(sys, "stdin", stdin)))
        sys.argv, sys.stdin = ["example"], io.StringIO()


class Programs(Bare):
    def play(self, transcript: str, **main: Any) -> str:
        """The transcript as it comes out in a folder of its own."""
        said, question = [], "no question"
        for line in transcript.splitlines():
            if not line.startswith("$ "):
                continue
            sys.argv[0], *words = shlex.split(line.removeprefix("$ ").replace("QUESTION", question))
            with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
                try:
                    code = main[sys.argv[0]](words)
                except SystemExit as wrong_usage:
                    code = wrong_usage.code
            printed = out.getvalue()
            question = [question, *QUESTION.findall(printed)][-1]
            said += [line, *QUESTION.sub("QUESTION", printed).splitlines(), *([f"[exit {code}]"] if code else [])]
        return "\n".join([*said, ""])

    def play_file(self, name: str) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.enterContext(contextlib.chdir(folder))
        os.symlink(APPS / "scripts", "scripts")
        transcript = (EXPECTED / "apps" / f"{name}.txt").read_text(encoding="utf-8")
        self.assertEqual(self.play(transcript, **{f"{name}.py": load_app(name).main}), transcript)

    def test_support_waits_for_an_approval_that_another_process_gives(self) -> None:
        self.play_file("support")


class Ports(Bare):
    def test_each_does_what_the_peers_example_does(self) -> None:
        ports = sorted(path for path in (ROOT / "examples" / "ports").glob("*_*.py"))
        for path in ports:
            with self.subTest(path.name):
                expected = EXPECTED / "ports" / f"{path.stem}.txt"
                self.assertEqual(test_examples._printed_by(path), expected.read_text(encoding="utf-8"))

    def test_each_names_the_example_that_it_ports_and_its_version(self) -> None:
        names = r'"""[\w/.]+\.py of (claude-agent-sdk|openai-agents|pydantic-ai) \d+\.\d+\.\d+: .+\n'
        for path in sorted((ROOT / "examples" / "ports").glob("*_*.py")):
            with self.subTest(path.name):
                self.assertRegex(path.read_text(encoding="utf-8"), f"^{names}")


if __name__ == "__main__":
    unittest.main()
