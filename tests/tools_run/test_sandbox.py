"""The real sandbox and dry run: as this user and, if this is root, as an ordinary user too."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from openagentic_sdk.errors import OptionsError, ToolError, ToolInputError
from openagentic_sdk.events import SystemNotice
from openagentic_sdk.tools.base import SessionLog, ToolContext
from openagentic_sdk.tools.bash import BashTool
from openagentic_sdk.tools.shell import sandbox_plan
from openagentic_sdk.tools.shell.file_policy import run_temp
from openagentic_sdk.tools.shell.sandbox import filter_program
from openagentic_sdk.tools.shell.sandbox_plan import SandboxReport, probe_sandbox
from tests.pythons import Process
from tests.size import FULL, IN_MEMORY, LARGE, full_size, full_size_but

from .support import WorkspaceTestCase, close_run, processes_with

NOBODY = 65534
POLICY = "tests.tools_run.test_file_policy.OnDisk"
# Tests where root's rights could make a difference; the full size runs all of them.
OF_AN_ORDINARY_USER = ("",)
if not LARGE:
    OF_AN_ORDINARY_USER = (
        ".Confined.test_the_workspace_and_temp_can_be_written_and_nothing_else",
        ".Confined.test_git_and_settings_stay_unchanged_even_when_they_do_not_exist_yet",
        ".Confined.test_there_is_no_network_unless_allowed",
        ".Confined.test_no_socket_leads_to_another_program",
        ".Confined.test_no_capability_is_left_and_none_can_be_gained",
        ".Confined.test_it_sees_and_signals_no_process_outside",
        ".LandlockAlone",
    )


def needs(rung: str) -> None:
    reason = probe_sandbox().reasons.get(rung)
    if reason is not None:
        raise unittest.SkipTest(f"{rung} is not available: {reason}")


def pretend(test: unittest.TestCase, report: SandboxReport) -> None:
    """Simulate a machine with the capabilities in the report; restore the real report after the test."""
    known = probe_sandbox()
    sandbox_plan._probed[os.geteuid()] = report
    test.addCleanup(sandbox_plan._probed.__setitem__, os.geteuid(), known)


class Confined(WorkspaceTestCase):
    rung = "namespaces"
    on_copy = True

    def setUp(self) -> None:
        super().setUp()
        needs(self.rung)

    def confined(self, command: str, **settings: Any) -> dict[str, Any]:
        return self.bash(command, **{"sandbox": "require", **settings})

    def test_the_workspace_and_temp_can_be_written_and_nothing_else(self) -> None:
        result = self.confined("echo x > here; mktemp -u >/dev/null; touch /usr/x /etc/x; echo $?")
        self.assertEqual(result["stdout"], "1\n")
        self.assertIn("Read-only", result["stderr"])
        self.assertEqual((self.workspace / "here").read_text(), "x\n")
        self.assertEqual(result["sandbox"], self.rung)

    def test_a_pipe_of_the_workspace_leads_to_the_program_at_its_other_end(self) -> None:
        os.mkfifo(self.workspace / "pipe")
        with Process(["cat", str(self.workspace / "pipe")], stdout=subprocess.PIPE) as reader:
            self.addCleanup(reader.kill)
            self.confined("echo hello > pipe; echo x > .mcp.json")
            assert reader.stdout is not None
            self.assertEqual(reader.stdout.read(), b"hello\n")
        self.assertFalse((self.workspace / ".mcp.json").exists())

    def test_a_link_out_of_the_workspace_does_not_lead_out(self) -> None:
        outside = self.workspace.parent.parent / f"outside-{os.getpid()}"
        (self.workspace / "link").symlink_to("/etc")
        self.assertNotEqual(self.confined("echo x > link/evil")["exit_code"], 0)
        self.assertFalse(outside.exists() or Path("/etc/evil").exists())

    def test_git_and_settings_stay_unchanged_even_when_they_do_not_exist_yet(self) -> None:
        (self.workspace / ".claude").mkdir()
        (self.workspace / ".claude" / "settings.json").write_text("{}")
        (self.workspace / ".mcp.json").write_text("{}")
        self.confined(
            "echo x > .claude/settings.json; rm -rf .claude .mcp.json; mv .claude c; echo y > .mcp.json; "
            "mkdir -p .git/hooks; echo evil > .git/hooks/pre-commit; rmdir .git; ln -s /tmp .git; mv . ../w"
        )
        self.assertEqual((self.workspace / ".claude" / "settings.json").read_text(), "{}")
        self.assertEqual((self.workspace / ".mcp.json").read_text(), "{}")
        self.assertFalse(os.path.lexists(self.workspace / ".git"))
        left = sorted(entry.name for entry in self.workspace.iterdir())
        self.assertEqual([name for name in left if not name.endswith(".from-sandbox")], [".claude", ".mcp.json"])

    def test_files_that_other_programs_trust_are_protected_at_any_depth(self) -> None:
        for folder in ("sub/.git/hooks", "sub/deep/.claude", "bare/objects", "bare/refs", "real"):
            (self.workspace / folder).mkdir(parents=True)
        files = (
            "sub/.git/config",
            "sub/deep/.envrc",
            "sub/deep/.claude/settings.json",
            "bare/config",
            "bare/HEAD",
            "real/env",
        )
        for name in files:
            (self.workspace / name).write_text("mine")
        (self.workspace / ".envrc").symlink_to("real/env")
        (self.workspace / "sub/.vscode").symlink_to("../real")
        self.confined(
            "for f in sub/.git/config sub/.git/hooks/x sub/deep/.envrc sub/deep/.claude/settings.json bare/config bare/HEAD "
            ".envrc real/env sub/.vscode/y; do echo evil > $f; done; rm -rf sub/.git sub/deep/.envrc; mv sub/deep/.claude x"
        )
        self.assertEqual([(self.workspace / name).read_text() for name in files], ["mine"] * len(files))
        self.assertEqual(sorted(os.listdir(self.workspace / "sub/.git")), ["config", "hooks"])

    def assert_kept_away(self, result: dict[str, Any], *names: str) -> None:
        """Check that none of the names exist, whether dropped with the copy or set aside, and that the result reports it."""
        for name in names:
            with self.subTest(name):
                self.assertFalse(os.path.lexists(self.workspace / name) and not (self.workspace / name).is_symlink())
                self.assertEqual(os.path.lexists(self.workspace / f"{name}.from-sandbox"), not self.on_copy)
        phrase = "were discarded" if self.on_copy else ".from-sandbox"
        self.assertEqual(len([note for note in result["notes"] if phrase in note]), len(names))

    def test_the_mode_of_a_placeholder_keeps_nothing_that_a_command_made_in_its_place(self) -> None:
        result = self.confined(
            "mkdir -p sub/.git/objects .github/workflows; echo evil > sub/.git/config; echo x > sub/.git/HEAD; "
            "echo '{}' > .mcp.json; echo evil > .github/workflows/a.yml; "
            "chmod 1500 sub/.git .mcp.json .github/workflows"
        )
        self.assert_kept_away(result, "sub/.git", ".mcp.json", ".github/workflows")

    def test_links_of_such_names_stay_and_new_repositories_are_kept_away(self) -> None:
        (self.workspace / ".envrc").symlink_to("somewhere")
        result = self.confined(
            "rm .envrc; echo evil > .envrc; mkdir -p new/.git d/.husky objects refs; echo evil > new/.git/config; "
            "echo evil > config; echo 'ref: refs/heads/x' > HEAD; mkdir -p far/down/objects far/down/refs; "
            "touch far/down/HEAD"
        )
        self.assertEqual(os.readlink(self.workspace / ".envrc"), "somewhere")
        names = ["new/.git", "d/.husky", "HEAD", "far/down/HEAD"]
        self.assert_kept_away(result, *names, ".envrc", *([] if self.on_copy else ["config"]))

    def test_a_settings_file_that_a_command_creates_is_removed_with_a_note(self) -> None:
        result = self.confined(
            "echo evil > .mcp.json; ln -s /etc/passwd .envrc; mkdir .github; echo x > .github/CODEOWNERS"
        )
        self.assert_kept_away(result, ".mcp.json", ".envrc")
        self.assertTrue((self.workspace / ".github/CODEOWNERS").exists())

    @full_size
    def test_there_is_no_network_unless_allowed(self) -> None:
        command = "python3 -c \"import socket; socket.create_connection(('127.0.0.1', PORT), 3); print('connected')\""
        with socket.create_server(("127.0.0.1", 0)) as server:
            command = command.replace("PORT", str(server.getsockname()[1])).replace("python3", sys.executable)
            self.assertNotIn("connected", self.confined(command)["stdout"])
            self.assertIn("connected", self.confined(command, sandbox_network=True)["stdout"])

    @full_size
    def test_no_socket_leads_to_another_program(self) -> None:
        with tempfile.TemporaryDirectory() as elsewhere:
            named, datagrams = os.path.join(elsewhere, "s"), os.path.join(elsewhere, "d")
            name = f"openagentic-test-{os.getpid()}"  # an abstract socket is visible to everybody
            script = "\n".join(
                (
                    "import socket as s",
                    "def tried(name, work):",
                    "    try: work(); print('reached', name)",
                    "    except OSError: pass",
                    f"tried('stream', lambda: s.socket(s.AF_UNIX).connect({named!r}))",
                    f"tried('datagram', lambda: s.socket(s.AF_UNIX, s.SOCK_DGRAM).sendto(b'x', {datagrams!r}))",
                    f"tried('pair', lambda: s.socketpair(type=s.SOCK_DGRAM)[0].sendto(b'x', {datagrams!r}))",
                    f"tried('raw pair', lambda: s.socketpair(type=s.SOCK_RAW)[0].sendto(b'x', {datagrams!r}))",
                    f"tried('abstract', lambda: s.socket(s.AF_UNIX).connect(chr(0) + {name!r}))",
                    "tried('vsock', lambda: s.socket(40))",
                    "tried('netlink', lambda: s.socket(16, s.SOCK_RAW, 0))",
                    "tried('packet', lambda: s.socket(17, s.SOCK_RAW, 0))",
                    "a, b = s.socketpair(); a.send(b'x'); print('pair', b.recv(1))",
                )
            )
            (self.workspace / "try.py").write_text(script)
            with (
                socket.socket(socket.AF_UNIX) as server,
                socket.socket(socket.AF_UNIX) as abstract,
                socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log,
            ):
                for listening, address in ((server, named), (abstract, f"\0{name}"), (log, datagrams)):
                    listening.bind(address)
                for listening in (server, abstract):
                    listening.listen()
                for settings in ({}, {"sandbox_network": True}, {"sandbox_unix_sockets": True}):
                    with self.subTest(settings=settings):
                        result = self.confined(f"{sys.executable} -W ignore try.py", **settings)
                        self.assertEqual((result["stdout"], result["stderr"]), ("pair b'x'\n", ""))

    @full_size
    def test_local_sockets_of_the_workspace_work_once_they_are_allowed(self) -> None:
        script = "\n".join(
            (
                "import socket as s, threading",
                "server = s.socket(s.AF_UNIX); server.bind('mine'); server.listen()",
                "client = s.socket(s.AF_UNIX); client.connect('mine'); client.send(b'x')",
                "print(server.accept()[0].recv(1))",
            )
        )
        (self.workspace / "talk.py").write_text(script)
        command = f"{sys.executable} talk.py"
        self.assertIn("PermissionError", self.confined(command)["stderr"])
        self.assertEqual(self.confined(command, sandbox_unix_sockets=True)["stdout"], "b'x'\n")

    def test_terminals_and_devices_of_this_machine_are_not_there(self) -> None:
        leader, follower = os.openpty()
        self.addCleanup(os.close, leader)
        self.addCleanup(os.close, follower)
        path = os.ttyname(follower)
        result = self.confined(
            f"echo typed > {path}; cat {path}; ls /dev/pts; echo x > /dev/null; head -c 1 /dev/zero | wc -c; "
            f"cat <(echo substituted); {sys.executable} -c 'import os; print(os.ttyname(os.openpty()[1]))'"
        )
        self.assertEqual(result["stdout"].split(), ["ptmx", "1", "substituted", "/dev/pts/0"])
        os.set_blocking(leader, False)
        with self.assertRaises(BlockingIOError):
            os.read(leader, 1)

    def test_no_capability_is_left_and_none_can_be_gained(self) -> None:
        status = self.confined("grep -E '^(Cap(Prm|Eff|Bnd|Amb)|NoNewPrivs)' /proc/self/status")["stdout"]
        values = dict(line.split(":\t") for line in status.splitlines())
        self.assertEqual(set(values.pop("NoNewPrivs")), {"1"})
        self.assertEqual(set(values.values()), {"0" * 16})
        self.assertNotEqual(self.confined("unshare -Ur true || mount -t tmpfs none /mnt")["exit_code"], 0)

    def test_it_sees_and_signals_no_process_outside(self) -> None:
        result = self.confined(f"kill -9 {os.getpid()}; kill -9 $PPID; ls /proc | grep -cE '^[0-9]+$'")
        self.assertLess(int(result["stdout"]), 10)

    def test_a_hidden_socket_leads_nowhere(self) -> None:
        from openagentic_sdk.tools.shell.process import CommandSpec, run_command
        from openagentic_sdk.tools.shell.sandbox_plan import sandbox_plan as make_plan

        path = str(self.workspace / "control.sock")
        script = f"import socket; socket.socket(socket.AF_UNIX).connect({path!r}); print('connected')"
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)
            server.listen()
            for hidden, expected in (((), b"connected\n"), ((path,), b"")):
                plan = make_plan(self.rung, cwd="/", writable=[str(self.workspace)], hidden=hidden, unix_sockets=True)
                spec = CommandSpec(
                    argv=(sys.executable, "-c", script),
                    env={},
                    cwd="/",
                    keep_bytes=1000,
                    paths=(os.devnull, os.devnull),
                    file_bytes=1000,
                    sandbox=plan,
                )
                self.assertEqual(run_command(spec, timeout_s=120).stdout.head, expected)

    def test_the_sessions_folder_is_protected_inside_the_workspace_too(self) -> None:
        session_dir = self.workspace / ".sessions" / "one"
        session_dir.mkdir(parents=True)
        (session_dir / "events.jsonl").write_text("{}")
        ctx = ToolContext(cwd=str(self.workspace), session_dir=str(session_dir))
        self.addCleanup(close_run, ctx)
        command = "echo x >> .sessions/one/events.jsonl; seq 1000"
        result = BashTool(sandbox="require", max_output_bytes=50).run_sync({"command": command}, ctx)
        self.assertEqual((session_dir / "events.jsonl").read_text(), "{}")
        self.assertTrue(Path(result["stdout_file"]).is_relative_to(session_dir))

    def test_exit_code_output_and_working_directory_are_as_without(self) -> None:
        (self.workspace / "sub").mkdir()
        result = self.confined("cd sub; echo out; echo err >&2; exit 9")
        self.assertEqual((result["stdout"], result["stderr"], result["exit_code"]), ("out\n", "err\n", 9))
        self.assertEqual(self.confined("cat <(pwd)")["stdout"], f"{self.workspace}/sub\n")

    def test_nothing_survives_it(self) -> None:
        marker = f"1{os.getpid()}000"
        self.confined(f"trap '' TERM; (setsid sleep {marker} &); sleep {marker}", timeout_s=0.3)
        self.assertEqual(processes_with(f"sleep\0{marker}"), [])

    def test_limits_hold(self) -> None:
        import resource

        result = self.confined("head -c 100000 /dev/zero > big", sandbox_limits=[(resource.RLIMIT_FSIZE, 5000)])
        self.assertNotEqual(result["exit_code"], 0)
        self.assertLessEqual((self.workspace / "big").stat().st_size, 5000)

    def test_the_protection_by_the_sandbox_is_announced_once(self) -> None:
        self.assertIn(f"{self.rung}, network off", self.confined("true", sandbox="auto")["notes"][0])
        self.assertEqual(self.confined("true", sandbox="auto")["notes"], [])

    def test_the_protection_by_the_sandbox_is_recorded_once_for_people(self) -> None:
        ctx = ToolContext(cwd=str(self.workspace))

        async def two_calls() -> None:
            for _ in range(2):
                await BashTool(sandbox="auto").run({"command": "true"}, ctx)
            close_run(ctx)

        asyncio.run(two_calls())
        self.assertEqual(
            ctx.services.get(SessionLog).events(),
            [SystemNotice("sandbox", f"commands run in a sandbox ({self.rung}, network off)")],
        )

    def test_a_shell_in_the_background_is_confined_until_it_ends(self) -> None:
        tool = BashTool(sandbox="require")
        tool.run_sync(
            {"command": "touch /etc/x; mkdir .git/x; touch done; sleep 60", "run_in_background": True}, self.ctx
        )
        close_run(self.ctx)
        self.assertFalse(Path("/etc/x").exists() or (self.workspace / ".git").exists())

    @full_size
    def test_several_at_once_do_not_trip_over_each_other(self) -> None:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(4) as pool:
            results = list(
                pool.map(lambda number: self.confined(f"sleep 0.0{number}; echo {number} > f{number}"), range(8))
            )
        self.assertEqual([result["exit_code"] for result in results], [0] * 8)
        self.assertEqual(len(list(self.workspace.iterdir())), 8)


@full_size_but(
    "test_the_workspace_and_temp_can_be_written_and_nothing_else",
    "test_git_and_settings_stay_unchanged_even_when_they_do_not_exist_yet",
    "test_no_capability_is_left_and_none_can_be_gained",
    "test_it_sees_and_signals_no_process_outside",
)
class ConfinedByBubblewrap(Confined):
    rung = "bwrap"
    on_copy = False
    if not LARGE:  # independent of the rung, and tested on the other one
        test_several_at_once_do_not_trip_over_each_other = None
        test_the_protection_by_the_sandbox_is_recorded_once_for_people = None
        test_the_protection_by_the_sandbox_is_announced_once = None

    def setUp(self) -> None:
        super().setUp()
        reasons = {"namespaces": "not tried", "overlay": "not tried"}
        pretend(self, SandboxReport(False, False, False, reasons, bwrap=True))

    def test_a_sandbox_that_cannot_be_set_up_runs_nothing(self) -> None:
        plan = sandbox_plan.sandbox_plan("bwrap", cwd="/", writable=[str(self.workspace / "missing")])
        self.assertIn("missing", sandbox_plan.try_plan(plan) or "")


class LandlockAlone(WorkspaceTestCase):
    def test_writes_stay_inside_and_sockets_are_refused(self) -> None:
        needs("landlock")
        pretend(self, SandboxReport(False, False, True, {"namespaces": "not tried", "overlay": "not tried"}))
        result = self.bash(
            "echo x > here; touch /usr/x; echo > /dev/null; exec 3<>/dev/tcp/127.0.0.1/9", sandbox="auto"
        )
        self.assertEqual(result["sandbox"], "landlock")
        self.assertIn("not protected", result["notes"][0])
        self.assertIn("Permission denied", result["stderr"])
        self.assertTrue((self.workspace / "here").exists())
        with self.assertRaisesRegex(ToolError, "only in a sandbox"):
            self.bash("true", sandbox="require")
        leader, follower = os.openpty()
        self.addCleanup(os.close, leader)
        self.addCleanup(os.close, follower)
        path = os.ttyname(follower)
        script = "import socket; socket.socket(socket.AF_UNIX)"
        result = self.bash(
            f"echo typed > {path}; head -c 1 < {path}; cat /proc/{os.getpid()}/environ; {sys.executable} -c '{script}'; "
            "cat <(echo substituted); head -c 1 /dev/zero | wc -c",
            sandbox="auto",
        )
        self.assertEqual(result["stdout"].split(), ["substituted", "1"])
        self.assertEqual(result["stderr"].count("Permission denied") + result["stderr"].count("not permitted"), 4)


class NoSandbox(WorkspaceTestCase):
    def setUp(self) -> None:
        super().setUp()
        reasons = dict.fromkeys(("namespaces", "overlay", "landlock"), "for this test")
        pretend(self, SandboxReport(False, False, False, reasons))

    def test_auto_runs_with_a_note_and_require_does_not_run(self) -> None:
        self.assertIn("no sandbox", self.bash("touch ran", sandbox="auto")["notes"][0])
        (self.workspace / "ran").unlink()
        with self.assertRaisesRegex(ToolError, "for this test"):
            self.bash("touch ran", sandbox="require")
        with self.assertRaisesRegex(ToolError, "cannot be previewed"):
            self.bash("touch ran", bash_effects="preview")
        self.assertFalse((self.workspace / "ran").exists())
        self.assertIn("not listed", self.bash("touch ran", bash_effects="commit")["notes"][0])

    def test_words_that_are_not_a_mode_are_refused(self) -> None:
        with self.assertRaises(OptionsError):
            BashTool(sandbox="on")  # type: ignore[arg-type]
        with self.assertRaises(OptionsError):
            BashTool(bash_effects="maybe")  # type: ignore[arg-type]


COMMANDS = """
rm -rf gone kept; mkdir kept; echo new > kept/new
echo changed > file; chmod 600 mode; touch same
mv old renamed; ln -s file link; mkdir -p deep/er; echo x > deep/er/x
rm swap; mkdir swap; echo y > swap/y; rm -r folder; echo z > folder
printf 'a\\nb' > "na me,:=\\\\x"
"""


class Undetermined(WorkspaceTestCase):
    """The sandboxes cannot be tried, which does not mean that there are none."""

    def setUp(self) -> None:
        super().setUp()
        known = sandbox_plan._probed.pop(os.geteuid(), None)
        if known is not None:
            self.addCleanup(sandbox_plan._probed.__setitem__, os.geteuid(), known)

    def probe_with(self, answer: Any) -> None:
        real = sandbox_plan.try_plan
        self.addCleanup(setattr, sandbox_plan, "try_plan", real)
        sandbox_plan.try_plan = lambda *_: answer()

    def refused(self) -> str:
        with self.assertRaises(ToolError) as caught:
            self.bash("touch ran", sandbox="auto")
        self.assertFalse((self.workspace / "ran").exists())
        return str(caught.exception)

    def test_no_command_runs_when_every_probe_lacks_file_descriptors_and_the_next_call_tries_again(self) -> None:
        real = sandbox_plan.try_plan
        shortage = f"the command could not be started: {os.strerror(errno.EMFILE)}"
        for text in (
            shortage,
            sandbox_plan._TOO_SLOW,
            f"{sandbox_plan.HELPER_GONE} (Connection reset by peer): try again",
        ):
            with self.subTest(text):
                self.probe_with(lambda text=text: text)
                self.assertIn(f"cannot be tried now ({text})", self.refused())
        self.assertNotIn(os.geteuid(), sandbox_plan._probed)
        sandbox_plan.try_plan = real
        self.assertEqual(self.bash("echo again", sandbox="auto")["stdout"], "again\n")

    def test_no_command_runs_when_the_probe_itself_fails(self) -> None:
        def fail() -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        self.probe_with(fail)
        self.assertIn("Too many open files), and nothing runs until they can:", self.refused())

    def test_a_probe_that_the_kernel_refuses_is_an_answer(self) -> None:
        self.probe_with(lambda: "unshare: Operation not permitted")
        self.assertEqual(probe_sandbox().level, "none")
        del sandbox_plan._probed[os.geteuid()]


class Effects(WorkspaceTestCase):
    def setUp(self) -> None:
        super().setUp()
        needs("overlay")
        for name in ("file", "mode", "same", "old", "swap"):
            (self.workspace / name).write_text(name)
        for name in ("gone", "kept", "folder"):
            (self.workspace / name).mkdir()
            (self.workspace / name / "inside").write_text(name)

    def state(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.workspace)): f"{path.lstat().st_mode:o} "
            + (os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else "")
            for path in sorted(self.workspace.rglob("*"))
        }

    def test_a_preview_lists_everything_and_changes_nothing(self) -> None:
        before = self.state()
        result = self.bash(COMMANDS, bash_effects="preview")
        self.assertEqual(self.state(), before)
        effects = result["effects"]
        self.assertFalse(effects["applied"])
        self.assertEqual(
            effects["created"],
            [
                "deep/",
                "deep/er/",
                "deep/er/x",
                "folder",
                "kept/new",
                "link",
                "na me,:=\\x",
                "renamed",
                "swap/",
                "swap/y",
            ],
        )
        self.assertEqual(effects["changed"], ["file", "mode"])
        self.assertEqual(effects["deleted"], ["folder/", "gone/", "kept/inside", "old", "swap"])
        self.assertIn("dry run", " ".join(result["notes"]))

    def test_a_commit_leaves_what_the_command_alone_would_have_left(self) -> None:
        twin = self.workspace.parent / "twin"
        shutil.copytree(self.workspace, twin, symlinks=True)
        self.assertTrue(self.bash(COMMANDS, bash_effects="commit")["effects"]["applied"])
        committed = self.state()
        subprocess.run(["bash", "-c", COMMANDS], cwd=twin, check=True)
        self.workspace = twin
        self.assertEqual(committed, self.state())

    def test_the_command_sees_its_own_writes(self) -> None:
        self.assertEqual(
            self.bash("echo 1 > n; cat n; ls gone; rm -r gone; ls gone 2>&1 | wc -l", bash_effects="preview")["stdout"],
            "1\ninside\n1\n",
        )

    def test_nothing_outside_the_workspace_is_written_and_temp_is_its_own(self) -> None:
        result = self.bash('echo x > "$TMPDIR/t" && cat "$TMPDIR/t"; touch ../outside', bash_effects="preview")
        self.assertEqual(result["stdout"], "x\n")
        self.assertFalse((self.workspace.parent / "outside").exists())

    @full_size
    def test_the_bytecode_of_a_command_is_removed_when_it_ends(self) -> None:
        result = self.bash('python3 -c "import json"; ls "$PYTHONPYCACHEPREFIX"', bash_effects="commit")
        self.assertNotEqual(result["stdout"], "")
        names = os.listdir(run_temp(self.ctx).folder)
        self.assertEqual([name for name in names if name.startswith("bytecode")], [])

    def test_no_scratch_folder_is_left(self) -> None:
        own = self.workspace.parent / "temp"  # other processes put their scratch folders into the system's
        own.mkdir()
        self.addCleanup(setattr, tempfile, "tempdir", tempfile.tempdir)
        tempfile.tempdir = str(own)
        self.bash("echo x > y", bash_effects="preview")
        self.assertEqual([path for path in own.iterdir() if "run" not in path.name], [])

    def test_a_link_that_took_a_folders_place_stops_the_commit(self) -> None:
        from openagentic_sdk.tools.shell.overlay import FileEffect, apply_effects

        upper = self.workspace.parent / "upper"
        (upper / "kept").mkdir(parents=True)
        (upper / "kept" / "evil").write_text("x")
        elsewhere = self.workspace.parent / "elsewhere"
        elsewhere.mkdir()
        shutil.rmtree(self.workspace / "kept")
        (self.workspace / "kept").symlink_to(elsewhere)
        with self.assertRaises(OSError):
            apply_effects(str(self.workspace), str(upper), [FileEffect("created", "kept/evil")])
        self.assertEqual(list(elsewhere.iterdir()), [])

    def test_a_folder_that_another_process_swaps_for_a_link_leads_the_commit_nowhere_else(self) -> None:
        from openagentic_sdk.tools.shell.overlay import FileEffect, apply_effects

        upper, elsewhere = self.workspace.parent / "upper", self.workspace.parent / "elsewhere"
        (upper / "kept").mkdir(parents=True)
        elsewhere.mkdir()
        (self.workspace / "link").symlink_to(elsewhere)
        swaps = (
            "import ctypes, sys; swap = ctypes.CDLL(None).renameat2; print(flush=True)\n"
            "while True: swap(-100, sys.argv[1].encode(), -100, sys.argv[2].encode(), 2)"
        )
        paths = [str(self.workspace / name) for name in ("kept", "link")]
        with Process([sys.executable, "-c", swaps, *paths], stdout=subprocess.PIPE) as swapper:
            self.addCleanup(swapper.kill)
            assert swapper.stdout is not None
            swapper.stdout.readline()
            for number in range(1500 if FULL else 150):
                (upper / "kept" / f"{number}").write_text("x")
                with contextlib.suppress(OSError):
                    apply_effects(str(self.workspace), str(upper), [FileEffect("created", f"kept/{number}")])
            swapper.kill()
        self.assertEqual(list(elsewhere.iterdir()), [])

    def test_with_a_sandbox_the_protected_paths_hold(self) -> None:
        (self.workspace / ".git").mkdir()
        command = "echo x > .git/config; mkdir -p .claude/hooks; touch .claude/hooks/evil .mcp.json; echo y > ok"
        result = self.bash(command, sandbox="auto", bash_effects="commit")
        self.assertEqual(result["effects"]["created"], ["ok"])
        self.assertIn("were discarded", " ".join(result["notes"]))
        self.assertEqual(list((self.workspace / ".git").iterdir()), [])
        self.assertFalse((self.workspace / ".claude").exists() or (self.workspace / ".mcp.json").exists())

    def test_the_background_is_refused(self) -> None:
        with self.assertRaises(ToolInputError):
            BashTool(bash_effects="preview").run_sync({"command": "true", "run_in_background": True}, self.ctx)


class Filter(unittest.TestCase):
    def test_jumps_stay_inside_the_program_and_it_ends_with_a_verdict(self) -> None:
        for machine in ("x86_64", "aarch64"):
            for families in ((2, 10), (2, 10, 1), (1,), ()):
                program = filter_program(machine, families)
                for index, (_, true, false, _) in enumerate(program):
                    self.assertLess(index + 1 + max(true, false), len(program) + (index == len(program) - 1))
                self.assertEqual(program[-1], (0x06, 0, 0, 0x7FFF0000))


class AsAnOrdinaryUser(unittest.TestCase):
    @full_size
    @unittest.skipUnless(os.geteuid() == 0, "only root can become an ordinary user for this test")
    def test_the_same_tests_pass(self) -> None:
        python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
        if (
            python is None
            or subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]).returncode
        ):
            self.skipTest("no Python 3.11 that other users may run is installed")
        # Not below /tmp: a folder of temporary files that contains the home stays visible to commands.
        with tempfile.TemporaryDirectory(prefix="openagentic-nobody-", dir=IN_MEMORY) as folder:
            os.chmod(folder, 0o777)
            root = Path(__file__).parents[2]
            for name in ("openagentic_sdk", "tests/tools_run", "fixtures/tools_run"):
                bytecode = shutil.ignore_patterns("*.pyc.*")  # temporary files of other processes
                shutil.copytree(root / name, Path(folder) / name, ignore=bytecode)
            for path in (root / "tests").glob("*.py"):
                shutil.copy(path, Path(folder) / "tests")
            subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
            temp = Path(folder) / "tmp"
            temp.mkdir()
            temp.chmod(0o777)
            done = subprocess.run(
                [python, "-m", "unittest", *(f"{__name__}{part}" for part in OF_AN_ORDINARY_USER), POLICY],
                cwd=folder,
                user=NOBODY,
                group=NOBODY,
                extra_groups=[],
                env={"PATH": "/usr/bin:/bin", "TMPDIR": str(temp), "HOME": str(temp)},
                capture_output=True,
                text=True,
                timeout=600,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
