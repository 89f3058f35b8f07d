"""The output of `--help`: every command has examples that work."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
import unittest
from collections.abc import Sequence
from pathlib import Path

from openagentic_sdk.cli.commands import COMMANDS
from openagentic_sdk.cli.commands.completion import _walk, _whole_parser
from openagentic_sdk.cli.examples import EXAMPLES
from openagentic_sdk.cli.main import main
from tests.size import full_size

ROOT = Path(__file__).resolve().parents[2]


def command_line(line: str) -> list[str]:
    """The words after the command's name in an example, which may be part of a pipe or a substitution."""
    words = shlex.split(line.replace("<(", " ").replace(")  #", "  #").replace(")   #", "  #"), comments=True)
    if "openagentic-sdk" in words:
        words = words[words.index("openagentic-sdk") + 1 :]
    return words[: words.index("|")] if "|" in words else words


# A command line in a message, a data file or a page: the command's name and the words up to the end of the code or sentence.
PRINTED = re.compile(r"(?:openagentic-sdk|python3 -m openagentic_sdk)((?: +[^\s`'\"\\\\|;&)(]+)+)")
# Words after the name of the package that are no command: strings that identify formats and keys.
NOT_COMMANDS = {"session archive", "record 1", "authority 1", "fork 1", "checkpoint", "cookie"}


def mistakes_of(words: Sequence[str], parser: argparse.ArgumentParser) -> str | None:
    """What a printed command line gets wrong: an unknown command or action, or a flag that the action does not have."""
    words = words[1:] if words[0] == "admin" else words
    while words:
        below = next((each for each in parser._actions if isinstance(each, argparse._SubParsersAction)), None)
        if below is None or not re.fullmatch(r"[a-z][a-z-]+", words[0]):
            break
        if words[0] not in below.choices:
            return f"there is no {words[0]}"
        parser, words = below.choices[words[0]], words[1:]
    if any(isinstance(each, argparse._SubParsersAction) for each in parser._actions) or "--" in words:
        return None
    known = {flag for action in parser._actions for flag in action.option_strings}
    flags = [word.partition("=")[0].rstrip(".,:") for word in words]
    return next(
        (f"there is no flag {flag}" for flag in flags if re.fullmatch(r"--[a-z-]+", flag) and flag not in known), None
    )


class Help(unittest.TestCase):
    @full_size
    def test_every_command_line_in_messages_and_pages_names_what_the_command_has(self) -> None:
        parser = _whole_parser()
        found = []
        for top, kinds in (("openagentic_sdk", ("py", "json")), ("docs", ("md",)), ("examples", ("py", "md"))):
            for path in (each for kind in kinds for each in (ROOT / top).rglob(f"*.{kind}")):
                for match in PRINTED.finditer(path.read_text(encoding="utf-8")):
                    words = match[1].split()
                    is_command = re.fullmatch(r"[a-z-]+", words[0]) and not words[0].startswith("-")
                    if not is_command or any(" ".join(words).startswith(text) for text in NOT_COMMANDS):
                        continue
                    if (mistake := mistakes_of(words, parser)) is not None:
                        found.append(f"{path.relative_to(ROOT)}: {match[0]}: {mistake}")
        self.assertEqual(found, [])
        self.assertEqual(mistakes_of(["sessions", "prune"], parser), "there is no prune")
        self.assertEqual(mistakes_of(["sessions", "purge", "--older"], parser), "there is no flag --older")

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
