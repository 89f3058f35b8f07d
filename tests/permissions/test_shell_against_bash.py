"""The parser against a real bash: what it accepts, bash runs word for word."""

from __future__ import annotations

import asyncio
import random
import unittest

from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.permissions.shell import CommandLine, SimpleCommand, parse_command
from tests.size import LARGE

from .real_bash import BASH, disguised_line, files_made, random_line, recorded

LINES = 15_000 if LARGE else 400
DISGUISED_LINES = 3_000 if LARGE else 200
FILE_LINES = 1_000 if LARGE else 30


def comparable(line: CommandLine) -> bool:
    """Whether bash would report all of it: no wildcard, no redirection into a missing folder, no program by its path."""
    if any("/" in command.argv[0] for command in line.commands):
        return False
    targets = [redirect.target for command in line.commands for redirect in command.redirects]
    return not any(command.globs for command in line.commands) and not any(
        "/" in target and target != "/dev/null" for target in targets
    )


def commands_that_run(line: CommandLine, succeeds: bool) -> list[SimpleCommand]:
    """What runs when every command ends with the same status."""
    found: list[SimpleCommand] = []
    running = last = True
    for command in line.commands:
        if command.joined_by == "&&":
            running = last
        elif command.joined_by == "||":
            running = not last
        elif command.joined_by not in ("|", "|&"):
            running = True
        if running:
            found.append(command)
            last = succeeds
    return found


def written_files(line: CommandLine) -> set[str]:
    """The files that the redirections make when every command succeeds."""
    redirects = [redirect for command in commands_that_run(line, True) for redirect in command.redirects]
    return {r.target for r in redirects if r.writes and not r.target.startswith("/")}


@unittest.skipIf(BASH is None, "there is no bash on this machine")
class ParserAgainstBash(unittest.TestCase):
    def accepted_lines(self, seed: int, count: int) -> list[tuple[str, CommandLine]]:
        rng = random.Random(seed)
        found: list[tuple[str, CommandLine]] = []
        while len(found) < count:
            text = random_line(rng, rng.choice((0.0, 0.02, 0.1, 0.4)))
            line = parse_command(text)
            if isinstance(line, CommandLine) and comparable(line):
                found.append((text, line))
        return found

    def test_bash_runs_exactly_the_words_of_every_accepted_line(self) -> None:
        lines = self.accepted_lines(seed=5, count=LINES)
        for status in (0, 1):
            for (text, line), calls in zip(lines, recorded([text for text, _ in lines], status), strict=True):
                expected = [command.argv for command in commands_that_run(line, status == 0)]
                with self.subTest(line=text, status=status):
                    self.assertEqual(sorted(calls), sorted(expected))

    def test_an_accepted_line_writes_no_file_but_the_targets_of_its_redirections(self) -> None:
        lines = [(text, line) for text, line in self.accepted_lines(seed=6, count=20 * FILE_LINES) if ">" in text]
        for text, line in lines[:FILE_LINES]:
            with self.subTest(line=text):
                self.assertEqual(files_made(text), written_files(line))

    def test_no_disguise_gets_a_denied_command_past_the_gate(self) -> None:
        rng = random.Random(8)
        lines = sorted({disguised_line(rng) for _ in range(DISGUISED_LINES)})
        gate = PermissionGate(permission_mode="bypass", deny=["Bash(evil:*)"], cwd="/")
        ran = 0
        with asyncio.Runner() as runner:
            for status in (0, 1):
                for line, calls in zip(lines, recorded(lines, status, kept="echo command break trap"), strict=True):
                    if any(argv[0] == "evil" for argv in calls):
                        ran += 1
                        with self.subTest(line=line):
                            self.assertFalse(runner.run(gate.approve("Bash", {"command": line}, {"cwd": "/"})))
        self.assertGreater(ran, len(lines) / 2)

    def test_plain_lines_are_understood(self) -> None:
        rng = random.Random(7)
        texts = [random_line(rng, 0.0) for _ in range(500)]
        understood = sum(isinstance(parse_command(text), CommandLine) for text in texts)
        self.assertGreater(understood, 350)
