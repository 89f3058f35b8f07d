"""The parser compared with a real bash: whatever it accepts, bash runs exactly as parsed."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import tempfile
import unittest
from collections.abc import Mapping

from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.permissions.shell import CommandLine, SimpleCommand, parse_command
from openagentic_sdk.tools.base import ToolContext
from openagentic_sdk.tools.bash import BashTool
from openagentic_sdk.tools.shell.sandboxed import ConfinedCommand
from tests.size import LARGE, full_size, sized

from .real_bash import BASH, disguised_line, files_made, random_line, record_commands

LOCALE_LINES = sized(10, 25, 3_000)
LINES = sized(40, 100, 15_000)
DISGUISED_LINES = sized(30, 70, 3_000)
FILE_LINES = 1_000 if LARGE else 20


def create_locales(folder: str) -> list[str]:
    """Create locales with double-byte charsets in a folder; return those that this machine can create."""
    made: list[str] = []
    for charset in ("GBK", "BIG5", "SHIFT_JIS", "BIG5-HKSCS", *(("GB18030",) if LARGE else ())):
        if shutil.which("localedef") is not None:
            command = ["localedef", "--no-archive", "-c", "-i", "POSIX", "-f", charset, os.path.join(folder, charset)]
            subprocess.run(command, capture_output=True, check=False, timeout=300)
        if os.path.isdir(os.path.join(folder, charset)):
            made.append(charset)
    return made


def command_environment_of(host: Mapping[str, str]) -> dict[str, str]:
    """The environment of a Bash command on a host with these variables."""
    with tempfile.TemporaryDirectory() as folder:
        tool = BashTool(environment=host)
        return dict(tool._spec("true", folder, ToolContext(cwd=folder), ConfinedCommand()).env)


def comparable(line: CommandLine) -> bool:
    """Whether bash would record all of it: no wildcard, no redirection into a missing folder, no program by path."""
    if any("/" in command.argv[0] for command in line.commands):
        return False
    targets = [redirect.target for command in line.commands for redirect in command.redirects]
    return not any(command.globs for command in line.commands) and not any(
        "/" in target and target != "/dev/null" for target in targets
    )


def reads_a_file_named_by(letters: str, line: CommandLine) -> bool:
    """Whether a command would fail because it reads a file named by one of the letters, which does not exist."""
    redirects = [redirect for command in line.commands for redirect in command.redirects]
    return any(not redirect.writes and not set(letters).isdisjoint(redirect.target) for redirect in redirects)


def commands_that_run(line: CommandLine, succeeds: bool) -> list[SimpleCommand]:
    """The commands that run if every command ends with the same status."""
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
    """The files that redirections create if every command succeeds."""
    redirects = [redirect for command in commands_that_run(line, True) for redirect in command.redirects]
    return {r.target for r in redirects if r.writes and not r.target.startswith("/")}


@unittest.skipIf(BASH is None, "bash is not installed")
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

    @full_size
    def test_bash_runs_exactly_the_words_of_every_accepted_line(self) -> None:
        lines = self.accepted_lines(seed=5, count=LINES)
        for status in (0, 1):
            for (text, line), calls in zip(lines, record_commands([text for text, _ in lines], status), strict=True):
                expected = [command.argv for command in commands_that_run(line, status == 0)]
                with self.subTest(line=text, status=status):
                    self.assertEqual(sorted(calls), sorted(expected))

    @full_size
    def test_bash_reads_the_letters_that_were_read_here_whatever_the_locale_of_the_host(self) -> None:
        # In these locales the last byte of such a letter combines with an ASCII byte after it, such as a quote.
        letters = "\u4e57\u8868\u529f\u65e5\u80fd\u00e9\u00b5\u30bd"
        rng = random.Random(15)
        lines: list[tuple[str, CommandLine]] = []
        while len(lines) < LOCALE_LINES:
            text = random_line(rng, 0.1)
            for _ in range(rng.choice((1, 2, 4))):
                at = rng.randrange(len(text) + 1)
                text = text[:at] + rng.choice(letters) + text[at:]
            line = parse_command(text)
            if isinstance(line, CommandLine) and comparable(line) and not reads_a_file_named_by(letters, line):
                lines.append((text, line))
        with tempfile.TemporaryDirectory() as folder:
            hosts = [{}, *({"LC_ALL": name, "LANG": name, "LOCPATH": folder} for name in create_locales(folder))]
            for host in hosts:
                calls_of_lines = record_commands([text for text, _ in lines], 0, env=command_environment_of(host))
                for (text, line), calls in zip(lines, calls_of_lines, strict=True):
                    expected = [command.argv for command in commands_that_run(line, True)]
                    with self.subTest(line=text, host=host.get("LC_ALL")):
                        self.assertEqual(sorted(calls), sorted(expected))

    def test_an_accepted_line_writes_no_file_but_the_targets_of_its_redirections(self) -> None:
        lines = [(text, line) for text, line in self.accepted_lines(seed=6, count=20 * FILE_LINES) if ">" in text]
        for text, line in lines[:FILE_LINES]:
            with self.subTest(line=text):
                self.assertEqual(files_made(text), written_files(line))

    @full_size
    def test_no_disguise_gets_a_denied_command_past_the_gate(self) -> None:
        rng = random.Random(8)
        lines = sorted({disguised_line(rng) for _ in range(DISGUISED_LINES)})
        gate = PermissionGate(permission_mode="bypass", deny=["Bash(evil:*)"], cwd="/")
        ran = 0
        with asyncio.Runner() as runner:
            for status in (0, 1):
                for line, calls in zip(
                    lines, record_commands(lines, status, kept="echo command break trap"), strict=True
                ):
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
