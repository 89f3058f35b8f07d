"""The command in unusual environments: a user without a home folder, a Python that is too old."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from openagentic_sdk.cli.loop import run_async
from openagentic_sdk.cli.main import main
from openagentic_sdk.cli.streams import MAX_INPUT_CHARS, open_streams, read_stdin
from openagentic_sdk.errors import OptionsError
from openagentic_sdk.ground.system import user_home
from tests.size import full_size

try:
    import pwd
except ImportError:  # Windows has no uids
    pwd = None  # type: ignore[assignment]
try:
    import resource
except ImportError:
    resource = None  # type: ignore[assignment]

ROOT = Path(__file__).resolve().parents[2]


@unittest.skipIf(pwd is None, "Windows knows no uids")
class NoHome(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "script.json").write_text('{"turns": ["Hello."]}')
        # A trap in a hostile project for users without a known home: "~" must not be read as a folder's name.
        planted = self.folder / "~" / ".claude"
        planted.mkdir(parents=True)
        (planted / "settings.json").write_text('{"model": "planted", "permissions": {"allow": ["Bash(*)"]}}')
        (planted / "CLAUDE.md").write_text("planted")

    def command(self, *argv: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr in a container without HOME, whose uid is not in any user database."""
        out, err = io.StringIO(), io.StringIO()
        before, getpwuid = dict(os.environ), pwd.getpwuid
        for name in [name for name in os.environ if name == "HOME" or name.startswith(("OPENAGENTIC_", "CLAUDE_"))]:
            del os.environ[name]
        pwd.getpwuid = _unknown
        try:
            with contextlib.chdir(self.folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = main(argv)
        finally:
            pwd.getpwuid = getpwuid
            os.environ.clear()
            os.environ.update(before)
        return code, out.getvalue(), err.getvalue()

    def test_commands_that_need_no_home_folder_work_without_one(self) -> None:
        sources = ("--setting-sources", "user,project")
        for argv in (
            ("run", "--store", "memory:", "--script", "script.json", *sources, "hi"),
            ("run", "--store", str(self.folder / "store"), "--script", "script.json", "hi"),
            ("doctor",),
            ("skills", "list"),
        ):
            with self.subTest(argv):
                code, out, err = self.command(*argv)
                self.assertEqual((code, err), (0, ""))
                self.assertNotIn("planted", out)

    def test_a_command_that_needs_a_home_folder_is_refused_in_one_sentence(self) -> None:
        for argv in (("run", "--script", "script.json", "hi"), ("sessions", "list"), ("trust", "list")):
            with self.subTest(argv):
                code, _, err = self.command(*argv)
                self.assertEqual(code, 2)
                self.assertRegex(err, r"\Aopenagentic-sdk: this user has no home folder .*OPENAGENTIC_SDK_HOME.*\n\Z")


def _unknown(uid: int) -> Any:
    raise KeyError(f"getpwuid(): uid not found: {uid}")


class OddProcess(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "script.json").write_text('{"turns": ["Hello."]}')
        self.run_it = ("run", "--store", "memory:", "--script", str(self.folder / "script.json"), "hi")

    def test_a_closed_stdin_or_stderr_is_ignored_and_a_closed_stdout_fails_only_if_something_is_printed(self) -> None:
        quiet = ("export", "newest", "-o", str(self.folder / "out.json"), "--store", str(self.folder / "store"))
        self.assertEqual(self.closed(("stdin", "stderr"), *self.run_it), (0, "Hello."))
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(main((*self.run_it[:2], str(self.folder / "store"), *self.run_it[3:])), 0)
        self.assertEqual(self.closed(("stdout",), *quiet), (0, ""))
        sentence = "openagentic-sdk: the output cannot be written: Bad file descriptor; redirect it to /dev/null to "
        for argv in (self.run_it, ("--version",), ("sessions", "list", "--store", str(self.folder / "store"))):
            with self.subTest(argv):
                self.assertEqual(self.closed(("stdout",), *argv), (1, f"{sentence}discard it"))
                self.assertEqual(self.closed(("stdout", "stderr"), *argv), (1, ""))

    def closed(self, names: tuple[str, ...], *argv: str) -> tuple[int, str]:
        """Exit code and first line of output of a command some of whose standard streams are closed at the start."""
        before = sys.stdin, sys.stdout, sys.stderr
        out = io.StringIO()
        try:
            sys.stdin, sys.stdout, sys.stderr = io.StringIO(), out, out
            for name in names:
                setattr(sys, name, None)
            code = main(argv)
        finally:
            opened = [getattr(sys, name) for name in names]
            sys.stdin, sys.stdout, sys.stderr = before
            for stream in opened:
                stream.close()
        return code, out.getvalue().partition("\n")[0]

    @unittest.skipIf(sys.platform == "win32", "Windows has no such pipes")
    def test_standard_streams_that_another_program_made_non_blocking_wait_again(self) -> None:
        reads, writes = os.pipe()
        os.set_blocking(writes, False)
        before, sys.stdout = sys.stdout, open(writes, "w", encoding="utf-8")  # noqa: SIM115
        try:
            open_streams()
            self.assertTrue(os.get_blocking(writes))
        finally:
            sys.stdout.close()
            sys.stdout = before
            os.close(reads)

    def test_standard_input_is_read_up_to_a_size_and_whatever_its_bytes(self) -> None:
        before = sys.stdin
        try:
            sys.stdin = io.TextIOWrapper(io.BytesIO(b"tea\xff"), "utf-8")
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                self.assertEqual(main((*self.run_it[:-1], "--json", "-")), 0)
            self.assertIn('"text":"tea\\ufffd"', out.getvalue())
            sys.stdin = io.StringIO("x" * (MAX_INPUT_CHARS + 1))
            with self.assertRaisesRegex(OptionsError, "standard input is longer than 16,777,216 characters: write it "):
                read_stdin()
        finally:
            sys.stdin = before

    def test_a_working_folder_that_was_removed_is_one_sentence(self) -> None:
        gone = self.folder / "gone"
        gone.mkdir()
        err = io.StringIO()
        with contextlib.chdir(gone), contextlib.redirect_stderr(err):
            gone.rmdir()
            code = main(self.run_it)
        self.assertEqual(code, 2)
        self.assertRegex(
            err.getvalue(), r"\Aopenagentic-sdk: the working directory of this process has been removed.*\n\Z"
        )

    @unittest.skipIf(resource is None, "Windows limits no files")
    def test_running_out_of_open_files_names_the_limit_to_raise(self) -> None:
        argv, err = ("view", "--store", str(self.folder)), io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
            main(argv)  # so that nothing is imported below
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            try:
                code = main(argv)
                with self.assertRaisesRegex(OSError, "Too many open files"):
                    run_async(asyncio.sleep(0))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        self.assertEqual(code, 1)
        self.assertRegex(err.getvalue(), r"Too many open files[:;] [^;]* \(ulimit -n\)\n\Z")

    def test_ctrl_c_while_the_event_loop_is_closed_ends_the_command_after_that(self) -> None:
        async def interrupted() -> AsyncIterator[None]:
            try:
                yield
            finally:
                signal.raise_signal(signal.SIGINT)
                await asyncio.sleep(0)
                closed.append("closed")

        async def begin() -> None:
            await anext(generator)
            await asyncio.to_thread(str)  # whose executor has to be shut down, too

        closed, generator = list[str](), interrupted()
        self.addCleanup(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with self.assertRaises(KeyboardInterrupt):
            run_async(begin())
        self.assertEqual(closed, ["closed"])
        self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)

    def test_a_second_ctrl_c_in_a_task_is_not_reported_by_python(self) -> None:
        async def interrupted() -> None:
            raise KeyboardInterrupt

        async def wait() -> None:
            task = asyncio.create_task(interrupted())
            try:
                await task
            except asyncio.CancelledError:
                await task  # as a command does that closes its runs

        with self.assertNoLogs("asyncio"):
            with self.assertRaises(KeyboardInterrupt):
                run_async(wait())
            gc.collect()

    @unittest.skipIf(not hasattr(os, "geteuid") or os.geteuid() == 0, "root may enter every folder")
    def test_a_home_folder_without_access_is_ignored(self) -> None:
        before = os.environ["HOME"]
        self.addCleanup(os.environ.__setitem__, "HOME", before)
        self.addCleanup(self.folder.chmod, 0o700)
        os.environ["HOME"] = str(self.folder)
        self.assertEqual(user_home(), str(self.folder))
        self.folder.chmod(0o600)
        self.assertEqual(user_home(), os.devnull)


class OldPython(unittest.TestCase):
    @full_size
    def test_a_python_that_is_too_old_gets_one_sentence(self) -> None:
        found = [path for name in ("python3.10", "python3.9") if (path := shutil.which(name))]
        works = [p for p in found if not subprocess.run([p, "-c", ""], cwd=ROOT, capture_output=True).returncode]
        if not works:
            self.skipTest("this machine has no Python older than 3.11")
        done = subprocess.run([works[0], "-m", "openagentic_sdk", "--help"], cwd=ROOT, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"\Aopenagentic_sdk needs Python 3\.11 or newer, and this is 3\.\d+.*\n\Z")


if __name__ == "__main__":
    unittest.main()
