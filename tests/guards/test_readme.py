"""README's commands and code blocks do what README claims."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openagentic_sdk.cli.commands import COMMANDS, FIRST_COMMANDS
from openagentic_sdk.cli.main import main, read_command_line
from tests.pythons import run_python
from tests.size import FULL, full_size

from .source import ROOT

NEEDS_A_MODEL = "<!-- needs a model -->"
TEST_COMMAND = "python3 -m unittest discover -s tests -t ."
README = (ROOT / "README.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Block:
    """A fenced block of README: its language, its text, and whether it needs a model that tests do not have."""

    language: str
    text: str
    needs_a_model: bool


def blocks() -> list[Block]:
    found = re.finditer(r"^([^\n]*)\n```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [Block(match[2], match[3], match[1] == NEEDS_A_MODEL) for match in found]


def commands(*, needs_a_model: bool) -> Iterator[str]:
    for block in blocks():
        if block.language == "bash" and block.needs_a_model == needs_a_model:
            yield from block.text.splitlines()


class Readme(unittest.TestCase):
    def setUp(self) -> None:
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)
        offline = {
            name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "OPENAGENTIC_"))
        }
        self.environ = {**offline, "HOME": home.name, "PYTHONIOENCODING": "utf-8"}

    def _run(self, words: list[str]) -> str:
        settings: dict[str, Any] = {"cwd": ROOT, "env": self.environ, "text": True, "timeout": 600}
        match words:
            case ["python3", "-m" | "-c", *_]:
                done = run_python(*words[1:], **settings)
            case ["python3", example] if not FULL and example.startswith("examples/"):
                # tests/examples compares this file with the example's output.
                return (ROOT / "examples" / "expected" / f"{Path(example).stem}.txt").read_text(encoding="utf-8")
            case ["python3", *arguments]:
                done = subprocess.run([sys.executable, *arguments], capture_output=True, **settings)
            case _:
                done = subprocess.run(words, capture_output=True, **settings)
        self.assertEqual((done.returncode, done.stderr), (0, ""), f"{shlex.join(words)}\n{done.stdout}")
        return done.stdout

    @full_size
    def test_the_commands_run_one_after_the_other_on_a_fresh_machine_and_prove_what_is_claimed(self) -> None:
        first, show = [self._run(shlex.split(line)) for line in blocks()[0].text.splitlines()]
        self.assertIn("Not ready.", first)
        self.assertIn("[Grep] TODO - ok", first)
        self.assertIn("Ended: session ", first)
        self.assertTrue(show.startswith("> Is this project ready to be released?\n"), show)
        self.assertTrue(show.endswith(first[-200:]), show)
        claims = README.partition("## Five claims")[2].partition("And the quick tests")[0]
        proofs = [(a, b) for a, b in itertools.pairwise(blocks()) if a.text in claims and b.text in claims]
        proofs = [(command, output) for command, output in proofs if command.language == "bash"]
        self.assertEqual(len(proofs), 5)
        for command, output in proofs:
            with self.subTest(command.text):
                self.assertIn(output.text.strip(), self._run(shlex.split(command.text)))

    def test_one_screen_leads_to_the_first_command(self) -> None:
        self.assertLess(README.partition("```")[0].count("\n"), 24)

    def test_the_last_command_runs_all_tests(self) -> None:
        self.assertEqual(list(commands(needs_a_model=False))[-1], TEST_COMMAND)
        self.assertIn(
            TEST_COMMAND.removeprefix("python3 "), " ".join((ROOT / ".ci" / "run").read_text().split("TESTS=(")[1:])
        )

    def test_commands_that_need_a_model_have_flags_that_exist(self) -> None:
        for line in commands(needs_a_model=True):
            with self.subTest(line):
                words = [word for word in shlex.split(line) if "=" not in word.split("-")[0]]
                self.assertEqual(words[:3], ["python3", "-m", "openagentic_sdk"])
                read_command_line(words[3:])  # raises SystemExit for an unknown flag

    @full_size
    def test_the_python_prints_the_output_below_it(self) -> None:
        code, output = next((a, b) for a, b in itertools.pairwise(blocks()) if a.language == "python")
        self.assertEqual(self._run(["python3", "-c", code.text]), output.text)

    def test_every_file_that_it_links_to_exists(self) -> None:
        links = re.findall(r"\]\(([^)#:]+)\)", README)
        self.assertEqual([link for link in links if not (ROOT / link).exists()], [])

    def test_every_subcommand_is_named(self) -> None:
        self.assertEqual([name for name in FIRST_COMMANDS if f"\nopenagentic-sdk {name} " not in README], [])

    def test_every_subcommand_answers_for_help(self) -> None:
        for name in COMMANDS:
            with self.subTest(name), contextlib.redirect_stdout(io.StringIO()) as help_text:
                self.assertEqual(main([name, "--help"]), 0)
                self.assertIn(f"openagentic-sdk {name}", help_text.getvalue())


if __name__ == "__main__":
    unittest.main()
