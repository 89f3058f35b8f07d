"""A Bash call: its result, the state it keeps, and the processes and files it must not leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openagentic_sdk.errors import OptionsError, ToolError, ToolInputError
from openagentic_sdk.tools.base import Secrets, Services, ToolContext
from openagentic_sdk.tools.bash import BashTool
from openagentic_sdk.tools.shell import process
from openagentic_sdk.tools.shell.background import BashOutputTool, KillBashTool, run_shells
from openagentic_sdk.tools.shell.environment import command_environment, is_dropped
from openagentic_sdk.tools.shell.helper import descendants, process_parents
from openagentic_sdk.tools.shell.output import MAX_MASKED_BYTES, keep_output, keep_text, output_paths
from openagentic_sdk.tools.shell.process import stop_helper
from tests.pythons import Process
from tests.size import LARGE, full_size, sized
from tests.waiting import until

from .support import WorkspaceTestCase, close_run, open_descriptors, processes_with, wait_until_gone


def children(parents: set[int]) -> set[int]:
    return {pid for pid, parent in process_parents().items() if parent in parents}


def is_dead(pid: int) -> bool:
    """Whether a process has ended, even if it has not been reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


def unique_seconds() -> str:
    """A duration for `sleep` that no other process on this machine has in its command line."""
    return f"1{secrets.randbelow(10**9):09d}"


class Results(WorkspaceTestCase):
    def test_output_error_output_and_exit_code_are_separate(self) -> None:
        result = self.bash("echo out; echo err >&2; exit 3")
        self.assertEqual((result["stdout"], result["stderr"], result["exit_code"]), ("out\n", "err\n", 3))
        self.assertFalse(result["stdout_truncated"] or result["stderr_truncated"] or result["timed_out"])

    def test_a_signal_is_named(self) -> None:
        result = self.bash("kill -KILL $$")
        self.assertEqual((result["exit_code"], result["signal"]), (137, "SIGKILL"))

    def test_the_command_reaches_bash_byte_for_byte(self) -> None:
        for command, expected in (
            ("printf '%s' 'a\\b\"c' \"$0\"", 'a\\b"c/bin/bash'),
            ("echo 'é\u2028ß'", "é\u2028ß\n"),
            ("cat <<'X'\n$HOME `x`\nX", "$HOME `x`\n"),
        ):
            with self.subTest(command):
                self.assertEqual(self.bash(command)["stdout"].replace("/usr/bin/bash", "/bin/bash"), expected)

    def test_there_is_no_standard_input(self) -> None:
        self.assertEqual(self.bash("cat; read x || echo none")["stdout"], "none\n")

    def test_devices_for_the_streams_can_be_opened_again(self) -> None:
        result = self.bash("echo first >&2; echo second > /dev/stderr; echo x | tee /dev/stderr")
        self.assertEqual((result["stdout"], result["stderr"]), ("x\n", "first\nsecond\nx\n"))

    def test_a_command_that_no_shell_can_be_given_is_an_input_error(self) -> None:
        for command in ("echo \0", "echo \ud800", "x" * 130_000):
            with self.assertRaises(ToolInputError):
                self.bash(command)

    def test_a_working_directory_that_is_missing_is_an_error_that_names_it(self) -> None:
        with self.assertRaisesRegex(ToolError, "/no/such/folder"):
            BashTool().run_sync({"command": "true"}, ToolContext(cwd="/no/such/folder"))

    def test_limits_that_make_no_sense_are_refused(self) -> None:
        with self.assertRaises(OptionsError):
            BashTool(timeout_s=0)
        with self.assertRaises(ToolInputError):
            self.bash("true", timeout_s=601)


class Output(WorkspaceTestCase):
    @full_size
    def test_each_stream_is_at_most_the_limit_whatever_is_in_it(self) -> None:
        sources = (
            "head -c 5000 /dev/urandom",
            "seq 5000",
            "printf 'é%.0s' {1..3000}",
            "printf '\\xff%.0s' {1..3000}",
            "echo x",
        )
        for limit in (0, 1, 2, 3, 10, 100, 1000, 4096) if LARGE else (0, 2, 100, 4096):
            for source in sources:
                with self.subTest(limit=limit, source=source):
                    result = self.bash(f"{{ {source}; }} | tee /dev/stderr", max_output_bytes=limit)
                    for name in ("stdout", "stderr"):
                        self.assertLessEqual(len(result[name].encode("utf-8")), limit)

    def test_start_and_end_are_kept_and_the_whole_is_in_a_file(self) -> None:
        result = self.bash("seq 10000", max_output_bytes=400)
        self.assertTrue(result["stdout"].startswith("1\n2\n") and result["stdout"].endswith("9999\n10000\n"))
        self.assertTrue(result["stdout_truncated"])
        self.assertFalse(result["stderr_truncated"])
        whole = Path(result["stdout_file"]).read_text()
        self.assertEqual(whole, "".join(f"{number}\n" for number in range(1, 10001)))
        self.assertIn(result["stdout_file"], result["notes"][0])

    def test_the_file_lies_in_the_sessions_folder(self) -> None:
        session_dir = self.workspace.parent / "session"
        ctx = ToolContext(cwd=str(self.workspace), session_dir=str(session_dir), tool_use_id="../../evil id")
        self.addCleanup(close_run, ctx)
        result = BashTool(max_output_bytes=10).run_sync({"command": "seq 100"}, ctx)
        self.assertEqual(Path(result["stdout_file"]).parent, session_dir / "outputs")

    def test_a_command_that_cleans_up_all_that_is_temporary_has_a_result_and_the_next_one_a_file(self) -> None:
        folder = Path(output_paths(None)[0]).parent
        cleaning = f"until rm {folder}/command-*; do sleep 0.01; done 2>/dev/null; rm -r {folder}"
        result = self.bash(f"seq 10000; {cleaning}; exit 3", max_output_bytes=400)
        self.assertEqual((result["exit_code"], result["stdout_truncated"]), (3, True))
        self.assertNotIn("stdout_file", result)
        self.assertIn("narrow the output", result["notes"][0])
        self.assertTrue(Path(self.bash("seq 10000", max_output_bytes=400)["stdout_file"]).is_file())

    def test_a_secret_is_in_no_file_once_the_command_is_over(self) -> None:
        masking = Services({Secrets: Secrets(lambda text: text.replace("5000", "****"))})
        ctx = ToolContext(cwd=str(self.workspace), tool_use_id="masked", services=masking)
        self.addCleanup(close_run, ctx)
        result = BashTool(max_output_bytes=400).run_sync({"command": "seq 10000"}, ctx)
        kept = Path(result["stdout_file"])
        self.assertEqual(kept.read_text().split()[4998:5001], ["4999", "****", "5001"])
        self.assertEqual(list(kept.parent.parent.rglob("masked-*")), [kept])

    def test_a_call_that_is_cancelled_while_its_output_is_masked_stops_masking(self) -> None:
        pieces: list[str] = []

        def redact(text: str) -> str:
            pieces.append(text)
            ctx.cancelled.set()
            return text

        session_dir = self.workspace / "session"
        ctx = ToolContext(
            cwd=str(self.workspace), session_dir=str(session_dir), services=Services({Secrets: Secrets(redact)})
        )
        path = self.workspace / "raw.txt"
        path.write_bytes(b"line\n" * 1_000_000)
        self.assertIsNone(keep_output(str(path), ctx, is_over=True))
        self.assertLess(sum(map(len, pieces)), 2_000_000)
        self.assertEqual(list((session_dir / "outputs").iterdir()), [])

    @full_size
    def test_the_beginning_of_a_flood_of_output_is_masked_and_kept(self) -> None:
        ctx = ToolContext(cwd=str(self.workspace), services=Services({Secrets: Secrets(lambda text: text)}))
        command = f"head -c {MAX_MASKED_BYTES + 5} /dev/zero"
        result = BashTool(max_output_bytes=100).run_sync({"command": command, "timeout_s": 300}, ctx)
        self.assertEqual(Path(result["stdout_file"]).stat().st_size, MAX_MASKED_BYTES)
        self.assertIn(f"its first {MAX_MASKED_BYTES:,} bytes are in ", " ".join(result["notes"]))

    def test_a_command_that_writes_too_much_is_ended_at_the_limit(self) -> None:
        result = self.bash("yes", max_file_bytes=3_000_000)
        self.assertIn("wrote more", " ".join(result["notes"]))
        self.assertEqual(Path(result["stdout_file"]).stat().st_size, 3_000_000)

    def test_much_output_costs_no_memory_here(self) -> None:
        size = 1024**3 if LARGE else 32 * 1024**2
        before = peak_memory_bytes()
        result = self.bash(f"head -c {size} /dev/zero | tr '\\0' x; echo end", timeout_s=300)
        self.assertEqual(result["exit_code"], 0)
        self.assertTrue(result["stdout"].endswith("xend\n"))
        path = Path(result["stdout_file"])
        self.assertEqual(path.stat().st_size, size + 4)
        path.unlink()
        self.assertLess(peak_memory_bytes() - before, 16 * 1024**2)

    def test_text_is_cut_between_characters_and_lines(self) -> None:
        kept = keep_text("ab€".encode()[:4], "€cd".encode()[1:], 1000, 1000)
        self.assertEqual((kept.text, kept.is_truncated), ("abcd", True))
        kept = keep_text(b"1\n2\n333", b"444\n5\n6\n", 1000, 15)
        self.assertEqual(kept.text, "1\n2\n5\n6\n")


def peak_memory_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise unittest.SkipTest("this kernel does not report peak memory")


class WorkingDirectory(WorkspaceTestCase):
    def test_it_is_kept_between_calls_inside_the_workspace(self) -> None:
        (self.workspace / "sub dir").mkdir()
        self.assertEqual(self.bash("cd 'sub dir'; export X=1")["cwd"], "sub dir")
        self.assertEqual(self.bash('pwd; echo "[$X]"')["stdout"], f"{self.workspace}/sub dir\n[]\n")

    def test_outside_the_workspace_the_folder_is_reset_with_a_note(self) -> None:
        result = self.bash("cd /")
        self.assertIn("outside the workspace", result["notes"][0])
        self.assertEqual(self.bash("pwd")["stdout"], f"{self.workspace}\n")

    def test_a_folder_that_has_gone_is_left(self) -> None:
        self.bash("mkdir gone; cd gone")
        (self.workspace / "gone").rmdir()
        self.assertEqual(self.bash("pwd")["stdout"], f"{self.workspace}\n")

    def test_no_command_can_forge_where_the_next_one_starts(self) -> None:
        (self.workspace / "link").symlink_to("/usr")
        for path in (f"{self.workspace}/..", f"{self.workspace}/link", f"{self.workspace}/./link/bin", "/usr"):
            with self.subTest(path=path):
                everywhere = f'for fd in /proc/$$/fd/*; do echo {path} > "$fd"; done 2>/dev/null; trap - EXIT; exit 0'
                self.bash(everywhere)
                self.assertEqual(self.bash("pwd -P")["stdout"], f"{os.path.realpath(self.workspace)}\n")
        self.bash("mkdir sub && cd sub")
        (self.workspace / "sub").rmdir()
        (self.workspace / "sub").symlink_to("/usr")
        self.assertEqual(self.bash("pwd -P")["stdout"], f"{os.path.realpath(self.workspace)}\n")

    def test_a_link_out_of_the_workspace_is_outside(self) -> None:
        (self.workspace / "link").symlink_to("/usr")
        self.assertIn("outside the workspace", self.bash("cd link")["notes"][0])


class Environment(WorkspaceTestCase):
    def test_keys_and_what_steers_programs_do_not_arrive(self) -> None:
        hostile = {
            "OPENAI_API_KEY": "sk-1", "GITHUB_TOKEN": "t", "DB_PASSWORD": "p", "DATABASE_URL": "postgres://u:p@h/d",
            "BASH_ENV": "/tmp/evil", "BASH_FUNC_ls%%": "() { echo evil; }", "IFS": "x", "LD_PRELOAD": "/x.so",
            "GIT_DIR": "/x", "MYSQL_PWD": "p", "SLACK_WEBHOOK_URL": "https://x", "GH_PAT": "t",
            "PROMPT_COMMAND": "evil", "PYTHONSTARTUP": "/x", "PS4": "$(evil)", "NODE_OPTIONS": "--require /x", "ENV": "/x",
        }  # fmt: skip
        for name, value in hostile.items():
            self.assertTrue(is_dropped(name, value), name)
        for name in (
            "HOME",
            "PATH",
            "LANG",
            "KEYBOARD",
            "MONKEY",
            "AUTHOR",
            "USER",
            "VIRTUAL_ENV",
            "TOKENIZERS_PARALLELISM",
            "PWD",
            "OLDPWD",
            "PATTERN",
        ):
            self.assertFalse(is_dropped(name, "x"), name)
        kept = command_environment(hostile, keep=("GIT_DIR",))
        self.assertEqual(set(kept) & set(hostile), {"GIT_DIR"})

    def test_no_program_is_found_in_the_current_folder(self) -> None:
        for path, expected in {".:/bin:": "/bin", ":/bin:x/y:/usr/bin": "/bin:/usr/bin", ".": os.defpath}.items():
            with self.subTest(path=path):
                self.assertEqual(command_environment({"PATH": path})["PATH"], expected)

    def test_the_shell_does_not_pass_on_how_it_was_started(self) -> None:
        self.assertEqual(self.bash("env | grep -c BASH_ENV; bash -c 'trap -p'")["stdout"], "0\n")

    def test_added_variables_arrive(self) -> None:
        self.assertEqual(self.bash("echo $MINE", environment={"MINE": "yes"})["stdout"], "yes\n")


class NothingSurvives(WorkspaceTestCase):
    def assert_gone(self, marker: str) -> None:
        self.assertEqual(processes_with(marker), [])

    def test_a_background_child_that_holds_the_pipe_delays_nothing_and_is_ended(self) -> None:
        marker = unique_seconds()
        began = time.monotonic()
        result = self.bash(f"sleep {marker} & echo started")
        self.assertLess(time.monotonic() - began, 60)
        self.assertEqual(result["stdout"], "started\n")
        self.assertIn("ended with it", " ".join(result["notes"]))
        self.assert_gone(marker)

    def test_children_in_sessions_of_their_own_are_ended(self) -> None:
        marker = unique_seconds()
        daemon = f"setsid sh -c 'setsid sleep {marker} >/dev/null 2>&1 < /dev/null &'"
        self.bash(f"{daemon}; (env -i setsid sleep {marker} 3>&- &); echo x")
        self.assert_gone(marker)

    def test_a_tree_that_ignores_sigterm_is_ended_at_the_time_limit(self) -> None:
        marker = unique_seconds()
        began = time.monotonic()
        result = self.bash(
            f"trap '' TERM INT HUP; (trap '' TERM; sleep {marker}) & "
            f"setsid bash -c \"trap '' TERM; sleep {marker}; sleep {marker}\" & while :; do sleep {marker}; done",
            timeout_s=0.3,
        )
        self.assertTrue(result["timed_out"])
        self.assertLess(time.monotonic() - began, 60)
        self.assert_gone(marker)

    def test_output_before_the_time_limit_is_kept(self) -> None:
        printed = self.workspace / "printed"
        for limit_s in (1, 10, 60):  # on a busy machine the second command may start only after the first limit
            result = self.bash("echo early; touch printed; sleep 600", timeout_s=limit_s)
            if printed.exists():
                break
        self.assertEqual((result["stdout"], result["timed_out"]), ("early\n", True))

    @full_size
    def test_a_process_that_forks_as_fast_as_it_can_is_ended(self) -> None:
        marker = unique_seconds()
        times = f"{{1..{sized(12, 40, 40)}}}"
        bomb = f"f() {{ for i in 1 2 3 4 5 6 7 8; do setsid sleep {marker} & done; }}; for n in {times}; do f & done"
        self.bash(f"{bomb}; sleep 60", timeout_s=0.3)
        self.assert_gone(marker)

    def test_killing_the_supervisor_is_reported_and_leaves_nothing(self) -> None:
        marker = unique_seconds()
        with self.assertRaisesRegex(ToolError, "supervisor was killed"):
            self.bash(f"(setsid sleep {marker} &); sleep 0.1; kill -9 $PPID; sleep {marker}")
        wait_until_gone(marker)
        self.assertEqual(self.bash("echo still works")["stdout"], "still works\n")

    def test_killing_the_helper_and_the_supervisor_together_leaves_nothing(self) -> None:
        marker = unique_seconds()
        both = "helper=$(cut -d' ' -f4 /proc/$PPID/stat); kill -9 $helper $PPID"
        with self.assertRaisesRegex(ToolError, "supervisor was killed"):
            self.bash(f"(setsid sleep {marker} &); sleep 0.1; {both}; sleep {marker}")
        wait_until_gone(marker)
        self.assertEqual(self.bash("echo still works")["stdout"], "still works\n")

    def test_a_process_that_waits_for_the_next_command_may_be_killed(self) -> None:
        for generation in (1, 2):  # the prepared supervisor, and its child, the prepared command
            self.bash("true")
            assert process._state.helper is not None
            waiting = {process._state.helper._process.pid}
            for _ in range(generation):
                waiting = until(lambda parents=waiting: children(parents), "a process waits for a command")
            for pid in waiting:
                os.kill(pid, signal.SIGKILL)
            for pid in waiting:  # a process that receives a command before the signal would die with it
                until(lambda pid=pid: is_dead(pid), f"process {pid} has ended")
            self.assertEqual(self.bash("echo still works")["stdout"], "still works\n")

    def test_the_helper_starts_commands_from_a_process_with_one_thread_whatever_this_one_has(self) -> None:
        self.bash("true")
        helper = process._state.helper
        assert helper is not None
        self.assertEqual(len(os.listdir(f"/proc/{helper._process.pid}/task")), 1)

    @full_size
    def test_a_command_that_stops_its_supervisor_ends_with_it(self) -> None:
        marker = unique_seconds()
        with self.assertRaisesRegex(ToolError, "supervisor was killed"):
            self.bash(f"(setsid sleep {marker} &); while :; do kill -STOP $PPID; done")
        wait_until_gone(marker)

    def test_a_killed_helper_is_replaced(self) -> None:
        self.bash("true")
        for pid in processes_with("openagentic_sdk.tools.shell.helper"):
            with contextlib.suppress(OSError):  # the helper of another test has ended
                if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1] == str(os.getpid()):
                    os.kill(pid, 9)
        self.assertEqual(self.bash("echo again")["stdout"], "again\n")

    def test_a_helper_that_was_stopped_is_replaced_and_the_next_command_runs_once(self) -> None:
        ran = self.workspace / "ran"
        self.bash("true")
        helper = process._state.helper
        assert helper is not None
        helper.take_limit_s = 0.01
        os.kill(helper._process.pid, signal.SIGSTOP)
        self.assertEqual(self.bash(f"echo once | tee -a {ran}")["stdout"], "once\n")
        self.assertEqual(ran.read_text(), "once\n")
        self.assertFalse(helper.is_alive())

    def test_a_cancelled_call_leaves_no_process_thread_or_descriptor(self) -> None:
        marker = unique_seconds()
        self.bash("true")
        threads, descriptors = threading.active_count(), open_descriptors()
        for delay_s in (0, 0.001, 0.003, 0.01, 0.1):
            with self.subTest(delay_s=delay_s):
                asyncio.run(self.cancel_after(delay_s, f"setsid sleep {marker} & sleep {marker}"))
                wait_until_gone(marker)  # a busy machine can exceed the call's THREAD_MOMENT_S
        until(lambda: threading.active_count() == threads, "the threads have ended")
        until(lambda: open_descriptors() == descriptors, "the descriptors are closed")

    async def cancel_after(self, delay_s: float, command: str) -> None:
        ctx = ToolContext(cwd=str(self.workspace), services=self.ctx.services)
        task = asyncio.create_task(BashTool().run({"command": command}, ctx))
        await asyncio.wait([task], timeout=delay_s)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task

    def test_after_the_end_of_the_run_no_helper_is_left(self) -> None:
        stop_helper()
        before = descendants({os.getpid()}, process_parents())
        self.bash("true")
        close_run(self.ctx)
        stop_helper()
        self.assertEqual(descendants({os.getpid()}, process_parents()) - before, set())


class BackgroundShells(WorkspaceTestCase):
    def start(self, command: str) -> str:
        result = BashTool().run_sync({"command": command, "run_in_background": True}, self.ctx)
        self.assertEqual(result["status"], "running")
        return str(result["shell_id"])

    def read_until(self, shell_id: str, holds: Callable[[str, str], bool]) -> tuple[str, dict[str, Any]]:
        """Read from a shell until `holds(text, status)` is true; return the text and the last answer of the tool."""
        text = ""
        while True:
            latest = BashOutputTool().run_sync({"shell_id": shell_id, "wait_s": 60}, self.ctx)
            text += latest["stdout"]
            if holds(text, latest["status"]):
                return text, latest

    def test_output_is_read_piece_by_piece_until_the_end(self) -> None:
        os.mkfifo(self.workspace / "pipe")
        shell_id = self.start("echo one; read x < pipe; echo two; exit 4")
        text, latest = self.read_until(shell_id, lambda text, state: "\n" in text)
        self.assertEqual((text, latest["status"]), ("one\n", "running"))
        (self.workspace / "pipe").write_text("go\n")
        text, latest = self.read_until(shell_id, lambda text, state: state != "running")
        self.assertEqual((text, latest["exit_code"], latest["status"]), ("two\n", 4, "exited"))
        again = BashOutputTool().run_sync({"shell_id": shell_id}, self.ctx)
        self.assertEqual((again["stdout"], again["status"]), ("", "exited"))

    def test_much_new_output_is_cut_in_the_middle(self) -> None:
        shell_id = self.start("seq 100000")
        run_shells(self.ctx).get(shell_id)._running.wait(120)
        result = BashOutputTool(max_output_bytes=1000).run_sync({"shell_id": shell_id}, self.ctx)
        self.assertTrue(result["stdout_truncated"])
        self.assertLessEqual(len(result["stdout"]), 1000)
        self.assertTrue(result["stdout"].startswith("1\n") and result["stdout"].endswith("100000\n"))

    def test_one_whose_output_was_cut_continues_to_be_read(self) -> None:
        os.mkfifo(self.workspace / "pipe")
        shell_id = self.start("seq 10000; read x < pipe; echo last")
        running = run_shells(self.ctx).get(shell_id)
        while running.stdout.size() < 48_894:
            threading.Event().wait(0.01)
        latest = BashOutputTool(max_output_bytes=1000).run_sync({"shell_id": shell_id}, self.ctx)
        self.assertTrue(latest["stdout_truncated"])
        (self.workspace / "pipe").write_text("go\n")
        self.assertEqual(self.read_until(shell_id, lambda text, state: state != "running")[0], "last\n")

    def test_killing_one_ends_all_it_started(self) -> None:
        marker = unique_seconds()
        shell_id = self.start(f"(setsid sleep {marker} &); sleep {marker}")
        result = KillBashTool().run_sync({"shell_id": shell_id}, self.ctx)
        self.assertEqual(result["status"], "killed")
        self.assertEqual(processes_with(marker), [])

    def test_they_end_with_the_run(self) -> None:
        marker = unique_seconds()
        self.start(f"sleep {marker}")
        self.start(f"setsid sleep {marker}")
        close_run(self.ctx)
        self.assertEqual(processes_with(marker), [])

    def test_they_end_when_the_run_is_forgotten(self) -> None:
        marker = unique_seconds()
        ctx = ToolContext(cwd=str(self.workspace))
        BashTool().run_sync({"command": f"sleep {marker}", "run_in_background": True}, ctx)
        until(lambda: processes_with(marker), "the command runs")
        del ctx
        gc.collect()
        # Closed by a thread, not by the collector itself: see `when_collected`.
        wait_until_gone(marker)

    def test_they_do_not_block_calls_in_the_foreground(self) -> None:
        self.start("sleep 60")
        self.assertEqual(self.bash("echo now")["stdout"], "now\n")

    def test_one_whose_supervisor_was_killed_is_lost_and_the_run_still_closes(self) -> None:
        marker = unique_seconds()
        shell_id = self.start(f"kill -9 $PPID; sleep {marker}")
        result = BashOutputTool().run_sync({"shell_id": shell_id, "wait_s": 60}, self.ctx)
        self.assertEqual((result["status"], result["exit_code"]), ("lost", None))
        close_run(self.ctx)
        wait_until_gone(marker)

    @full_size
    def test_one_that_kills_its_supervisor_at_once_is_never_run_a_second_time(self) -> None:
        ran = self.workspace / "ran"
        for _ in range(10):
            shell_id = self.start(f"echo once >> {ran}; kill -9 $PPID")
            result = BashOutputTool().run_sync({"shell_id": shell_id, "wait_s": 60}, self.ctx)
            self.assertEqual(result["status"], "lost")
        self.assertEqual(ran.read_text(), "once\n" * 10)

    def test_an_unknown_shell_is_an_input_error_that_names_the_known_ones(self) -> None:
        shell_id = self.start("true")
        with self.assertRaisesRegex(ToolInputError, shell_id):
            KillBashTool().run_sync({"shell_id": "shell_99"}, self.ctx)


IN_ASCII = r"""
import sys
from openagentic_sdk.errors import ToolError
from openagentic_sdk.kernel.tool import ToolContext
from openagentic_sdk.tools.bash import BashTool
from openagentic_sdk.tools.files.workspace import resolve_path
ctx = ToolContext(cwd=sys.argv[1])
result = BashTool(sandbox="off").run_sync({"command": "echo 'gr\u00fcn' > '\u00e9'; cat '\u00e9'"}, ctx)
print(sys.getfilesystemencoding(), ascii(result["stdout"]))
try:
    resolve_path("\u00e9", sys.argv[1])
except ToolError as error:
    print(ascii(str(error)))
"""


class AsciiHosts(unittest.TestCase):
    @full_size
    def test_a_command_keeps_its_letters_and_a_file_tool_names_the_remedy(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            shown = subprocess.run(
                [sys.executable, "-c", IN_ASCII, folder],
                env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
                capture_output=True,
                text=True,
                check=False,
            )
            self.assertEqual(os.listdir(folder), ["\u00e9"])
        first, second = shown.stdout.splitlines()
        self.assertEqual(first, r"ascii 'gr\xfcn\n'", shown.stderr)
        self.assertIn("cannot be encoded as ascii", second)
        self.assertIn("set PYTHONUTF8=1", second)


class ForkedHosts(unittest.TestCase):
    @full_size
    def test_a_fork_runs_commands_of_its_own_without_a_complaint(self) -> None:
        script = (
            "import os\n"
            "from openagentic_sdk.tools.base import ToolContext\n"
            "from openagentic_sdk.tools.bash import BashTool\n"
            "def say():\n"
            "    code = BashTool().run_sync({'command': 'echo $$'}, ToolContext())['exit_code']\n"
            "    os.write(1, b'%d\\n' % code)  # one write: two processes share the pipe\n"
            "say()\n"
            "pid = os.fork()\n"
            "say()\n"
            "os._exit(0) if pid == 0 else os.waitpid(pid, 0)\n"
        )
        # A thread that has just finished may still be counted for some microseconds.
        quiet = "ignore:This process:DeprecationWarning"
        command = [sys.executable, "-W", "error::ResourceWarning", "-W", quiet, "-c", script]
        done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300)
        self.assertEqual((done.stdout, done.stderr), ("0\n0\n0\n", ""))


class KilledHosts(unittest.TestCase):
    def test_its_commands_die_with_it(self) -> None:
        import subprocess
        import sys

        marker = unique_seconds()
        script = (
            "import os, threading\n"
            "from openagentic_sdk.tools.bash import BashTool\n"
            "from openagentic_sdk.tools.base import ToolContext\n"
            "ctx = ToolContext(cwd='/')\n"
            f"BashTool().run_sync({{'command': 'setsid sleep {marker}', 'run_in_background': True}}, ctx)\n"
            f"work = lambda: BashTool().run_sync({{'command': 'echo up > /dev/null; sleep {marker}'}}, ctx)\n"
            "threading.Thread(target=work, daemon=True).start()\n"
            "print('ready', flush=True)\n"
            "threading.Event().wait(30)\n"
        )
        root = Path(__file__).parents[2]
        with Process([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=root) as host:
            assert host.stdout is not None
            self.assertEqual(host.stdout.readline(), b"ready\n")
            host.kill()
        # The host had the marker in its own command line, but it has been reaped by now.
        wait_until_gone(marker)
