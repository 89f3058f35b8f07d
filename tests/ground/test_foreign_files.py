"""Files of other people are read only if they are regular and small, wherever a command or a rule reads one."""

from __future__ import annotations

import os
import signal
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from openagentic_sdk.cli.flags import text_or_file
from openagentic_sdk.errors import OptionsError, ScriptError, StorageError, SuiteError
from openagentic_sdk.evals.plan import read_log
from openagentic_sdk.evals.suite import load_suite
from openagentic_sdk.ground.diagnostic import Diagnostic
from openagentic_sdk.ground.disk import may_exist, read_regular, read_toml
from openagentic_sdk.parts.budgets import read_limits
from openagentic_sdk.parts.mcp.configured.pins import Pins
from openagentic_sdk.parts.project.claude import markdown_below
from openagentic_sdk.parts.project.private_json import KeptFile
from openagentic_sdk.parts.record.archive import check_archive
from openagentic_sdk.parts.record.folds.prices import load_prices
from openagentic_sdk.parts.record.importers import read_claude_transcript
from openagentic_sdk.parts.workflows.lint import check_paths
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.permissions.hold.repository import is_plain_repository
from openagentic_sdk.permissions.rules import parse_rules
from openagentic_sdk.skills.index import SkillIndex
from openagentic_sdk.testing import ScriptedProvider
from openagentic_sdk.testing.wire_check.recordings import read_recording
from openagentic_sdk.tools.shell.protected import common_dir_of
from tests.size import full_size

_LIMIT_S = 60


def _give_up(_signal: int, _frame: FrameType | None) -> None:
    raise AssertionError("reading waited for the other end of a pipe")


class ForeignFiles(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(os.path.realpath(folder.name))
        before = signal.signal(signal.SIGALRM, _give_up)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        self.addCleanup(signal.alarm, 0)
        signal.alarm(_LIMIT_S)

    def test_a_pipe_a_device_and_a_folder_are_refused_at_once(self) -> None:
        os.mkfifo(self.folder / "pipe")
        for path in (self.folder / "pipe", Path("/dev/zero"), Path("/dev/null")):
            with self.subTest(path), self.assertRaisesRegex(ValueError, "^it is not a regular file$"):
                read_regular(path, 10)
        with self.assertRaises(IsADirectoryError):
            read_regular(self.folder, 10)

    def test_a_file_of_a_gigabyte_is_refused_by_its_first_bytes(self) -> None:
        big = self.folder / "big"
        with open(big, "wb") as file:
            file.truncate(1 << 30)
        with self.assertRaisesRegex(ValueError, "^it is larger than 10 bytes$"):
            read_regular(big, 10)
        with open(big, "wb") as file:
            file.write(b"0123456789")
        self.assertEqual(read_regular(big, 10), b"0123456789")

    def test_every_reader_of_settings_refuses_a_pipe_in_one_sentence(self) -> None:
        readers: tuple[tuple[str, Callable[[Path], object], type[Exception]], ...] = (
            ("limits.toml", read_limits, OptionsError),
            ("prices.json", load_prices, OptionsError),
            ("suite.toml", lambda path: load_suite(str(path)), SuiteError),
            ("log.jsonl", read_log, SuiteError),
        )
        for name, read, error in readers:
            path = self.folder / name
            os.mkfifo(path)
            with self.subTest(name), self.assertRaisesRegex(error, "it is not a regular file"):
                read(path)

    def test_a_script_without_end_or_nested_too_deeply_is_refused_in_one_sentence(self) -> None:
        deep = self.folder / "deep.json"
        deep.write_text("[" * 100_000 + "]" * 100_000)
        for path, words in (("/dev/zero", "it is larger than 67108864 bytes"), (deep, "recursion")):
            with self.subTest(path), self.assertRaisesRegex(ScriptError, f"cannot be read: .*{words}"):
                ScriptedProvider.from_file(path)

    def test_a_key_of_thousands_of_parts_is_refused_before_it_fills_the_memory(self) -> None:
        path = self.folder / "limits.toml"
        for text in ("a." * 10_000 + "b = 1", "['a'.\n" + '"b" . b.' * 5_000 + "c]", "x = {" + "a." * 64 + "b = 1}"):
            path.write_text(text)
            with (
                self.subTest(text[:10]),
                self.assertRaisesRegex(OptionsError, "a key in it has more than 64 dotted parts"),
            ):
                read_limits(path)
        path.write_text("x = '" + "1.2, " * 1_000 + "'\n" + "a." * 63 + "b = 1")
        self.assertEqual(read_toml(path)["x"], "1.2, " * 1_000)

    @full_size
    def test_every_reader_of_a_named_file_refuses_a_large_one_in_one_sentence(self) -> None:
        big, odd = self.folder / "big.jsonl", self.folder / "odd.txt"
        with open(big, "wb") as file:
            file.truncate(1 << 30)
        odd.write_bytes(b"\xff")
        for path, words in ((big, "it is larger than"), (odd, "it is not UTF-8 text")):
            with self.subTest(path), self.assertRaisesRegex(OptionsError, f"--system '.*' cannot be read: {words}"):
                text_or_file(str(path), "--system")
        self.assertEqual(text_or_file("a" * 5_000, "--system"), "a" * 5_000)
        with self.assertRaisesRegex(StorageError, "transcript .* cannot be read: it is larger than"):
            read_claude_transcript(big)
        odd.write_bytes(b"\n" * 1_000_001)
        with self.assertRaisesRegex(StorageError, "transcript .* cannot be read: it has more than 1,000,000 lines"):
            read_claude_transcript(odd)
        with self.assertRaisesRegex(OptionsError, "is not a supported recording .it is larger than"):
            list(read_recording(big))
        with self.assertRaisesRegex(StorageError, "cannot be read as an archive: it is not a regular file"):
            check_archive("/dev/zero")

    def test_an_inaccessible_file_is_reported_and_does_not_count_as_missing(self) -> None:
        loop = self.folder / ".claude" / "skills"
        loop.parent.mkdir()
        loop.symlink_to(loop)  # every look at it fails with ELOOP, as with EIO on a failing disk
        words = "Too many levels of symbolic links"
        [finding] = SkillIndex(self.folder).read().diagnostics
        self.assertEqual((finding.path, words in finding.message), (str(loop), True))
        problems: list[Diagnostic] = []
        self.assertEqual(list(markdown_below(str(loop), "project", str(self.folder), problems)), [])
        self.assertIn(words, problems[0].message)
        with self.assertRaisesRegex(StorageError, words):
            KeptFile(loop / "kept.json", "projects").read()
        offered, withheld = Pins(loop, "", "x").judge("x", [{"name": "echo"}])
        self.assertEqual((list(offered), len(withheld)), ([], 1))
        for path, expected in (
            (loop, True),
            (loop / "x", True),
            (self.folder / "no", False),
            ("a\0b", False),
            ("a" * 5000, False),
        ):
            self.assertEqual(may_exist(path), expected, path)

    def test_a_pipe_instead_of_a_python_file_is_a_finding_of_the_check(self) -> None:
        path = self.folder / "flow.py"
        os.mkfifo(path)
        self.assertEqual([each.message for each in check_paths([path]).findings], ["it is not a regular file"])

    def test_a_repository_of_pipes_is_not_plain_and_its_commands_are_asked_about(self) -> None:
        for name in ("objects", "refs"):
            (self.folder / ".git" / name).mkdir(parents=True)
        (self.folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
        (self.folder / ".git" / "config").write_text("[core]\n\tbare = false\n")
        self.assertTrue(is_plain_repository(str(self.folder)))
        os.mkfifo(self.folder / ".git" / "index")
        self.assertFalse(is_plain_repository(str(self.folder)))
        deny = parse_rules(["Read(./secret.txt)"], "deny", "options")
        gate = PermissionGate(permission_mode="default", workspace_roots=(str(self.folder),), deny=deny)
        context = {"cwd": str(self.folder), "project_dir": str(self.folder)}
        for command in ("git diff HEAD", "git status", "git log -p"):
            with self.subTest(command):
                self.assertEqual(gate.verdict("Bash", {"command": command}, context).outcome, "ask")

    def test_a_pipe_named_commondir_shares_nothing(self) -> None:
        os.mkfifo(self.folder / "commondir")
        self.assertEqual(common_dir_of(str(self.folder)), str(self.folder))
