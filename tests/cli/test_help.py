"""The output of `--help`: every command has examples that work."""

from __future__ import annotations

import argparse
import contextlib
import io
import shlex
import unittest

from openagentic_sdk.cli.commands import COMMANDS
from openagentic_sdk.cli.commands.completion import _walk, _whole_parser
from openagentic_sdk.cli.examples import EXAMPLES
from openagentic_sdk.cli.main import main


def command_line(line: str) -> list[str]:
    """The words after the command's name in an example, which may be part of a pipe or a substitution."""
    words = shlex.split(line.replace("<(", " ").replace(")  #", "  #").replace(")   #", "  #"), comments=True)
    if "openagentic-sdk" in words:
        words = words[words.index("openagentic-sdk") + 1 :]
    return words[: words.index("|")] if "|" in words else words


class Help(unittest.TestCase):
    def test_every_command_has_examples_and_every_example_is_a_command_that_is_there(self) -> None:
        known = {path.replace("/", " ").strip() for path, _ in _walk("", _whole_parser())}
        self.assertEqual((sorted(set(COMMANDS) - set(EXAMPLES)), sorted(set(EXAMPLES) - known)), ([], []))

    def test_every_example_is_understood(self) -> None:
        parser = _whole_parser()
        for name, lines in EXAMPLES.items():
            for line in lines:
                words = command_line(line)
                with self.subTest(line=line):
                    self.assertEqual(words[: len(name.split())], name.split())
                    try:
                        with contextlib.redirect_stderr(io.StringIO()) as said:
                            parser.parse_args(words)
                    except (SystemExit, argparse.ArgumentError):
                        self.fail(said.getvalue())

    def test_help_shows_them_below_the_flags(self) -> None:
        for words, shown in (
            (["--help"], "  openagentic-sdk chat --continue  # continue the newest"),
            (["run", "-h"], "  git diff | openagentic-sdk run - --system"),
            (
                ["sessions", "fork", "--help"],
                "  openagentic-sdk sessions fork 3f2a --at-seq 12  # a copy up to event 12",
            ),
        ):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                self.assertEqual(main(words), 0)
            self.assertIn("\nexamples:\n", out.getvalue())
            self.assertIn(shown, out.getvalue())


if __name__ == "__main__":
    unittest.main()
