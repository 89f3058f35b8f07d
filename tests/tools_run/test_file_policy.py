"""A command's real access to files: protected paths, git's own files, hidden files, a private temporary folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path
from typing import Any

from openagentic_sdk.kernel.tool import Services, ToolContext
from openagentic_sdk.tools.bash import BashTool
from openagentic_sdk.tools.shell.background import KillBashTool
from openagentic_sdk.tools.shell.file_policy import CommandRules, FilePolicy
from openagentic_sdk.tools.shell.protected import PROTECTED_FILES, git_places, program_places, protected_places
from openagentic_sdk.tools.shell.sandboxed import BashSandbox, ConfinedCommand
from tests.size import full_size
from tests.waiting import until

from .support import WorkspaceTestCase, close_run
from .test_sandbox import needs


class Rules(CommandRules):
    """The rules of a run, chosen by the test."""

    def __init__(self, **more: Any) -> None:
        self.more = more

    def policy(self, ctx: ToolContext, command: str) -> FilePolicy:
        return replace(super().policy(ctx, command), **self.more)


class OnDisk(WorkspaceTestCase):
    direct = False

    def setUp(self) -> None:
        super().setUp()
        needs("namespaces")
        needs("overlay")
        self.more: dict[str, Any] = {}

    def confined(self, command: str, **more: Any) -> dict[str, Any]:
        services = Services({CommandRules: Rules(**{**self.more, **more})})
        ctx = ToolContext(cwd=str(self.workspace), services=services)
        self.addCleanup(close_run, ctx)
        return BashTool(sandbox="require").run_sync({"command": command}, ctx)

    def git(self, *words: str, cwd: str = ".") -> str:
        done = subprocess.run(
            ["git", "-c", "user.name=n", "-c", "user.email=e@x", *words],
            cwd=self.workspace / cwd,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    @full_size
    def test_no_protected_name_is_made_or_changed_whatever_it_is(self) -> None:
        places = [
            *sorted(PROTECTED_FILES),
            ".github/workflows/ci.yml",
            ".venv/lib/site-packages/evil.pth",
            ".cargo/config.toml",
        ]
        places += [
            ".githooks/pre-commit",
            ".codex/config.toml",
            "deep/er/.git/config",
            "x.git/HEAD",
            "AGENTS.md",
            ".NPMRC",
        ]
        script = "\n".join(f"mkdir -p '{os.path.dirname(name) or '.'}'; echo evil > '{name}'" for name in places)
        self.confined(f"{script}\necho fine > fine")
        self.assertEqual((self.workspace / "fine").read_text(), "fine\n")
        left = [
            path for path in self.workspace.rglob("*") if protected_places((str(self.workspace),)).covers(str(path))
        ]
        self.assertEqual(left, [])

    @full_size
    def test_twenty_thousand_files_do_not_blind_the_search(self) -> None:
        result = self.confined(
            "mkdir many sub; cd many; seq 21000 | xargs touch; cd ../sub; mkdir -p .git/objects .git/refs; "
            "echo 'ref: refs/heads/main' > .git/HEAD; printf '[core]\\n fsmonitor = evil\\n' > .git/config"
        )
        self.assertFalse((self.workspace / "sub/.git").exists())
        self.assertEqual(len(os.listdir(self.workspace / "many")), 21_000)
        self.assertIn("sub/.git were discarded", " ".join(result["notes"]))

    def test_head_with_commondir_and_another_configuration_makes_no_repository(self) -> None:
        self.confined(
            "mkdir real; echo x > real/config; echo ref: refs/heads/m > HEAD; echo real > commondir; "
            "echo y > config.worktree"
        )
        self.assertFalse((self.workspace / "HEAD").exists())

    def test_where_hooks_and_included_settings_are_is_protected_too(self) -> None:
        self.git("init", "-q")
        self.git("config", "core.hooksPath", "tools/hooks")
        self.git("config", "include.path", "../shared/gitconfig")
        (self.workspace / "shared").mkdir()
        (self.workspace / "shared/gitconfig").write_text("[user]\n\tname = me\n")
        (self.workspace / "nested").mkdir()
        self.git("init", "-q", cwd="nested")
        self.git("config", "core.hooksPath", "../own-hooks", cwd="nested")
        self.confined(
            "mkdir -p tools/hooks own-hooks; echo evil > tools/hooks/pre-commit; echo evil >> shared/gitconfig; "
            "echo evil > own-hooks/pre-commit"
        )
        self.assertFalse((self.workspace / "tools/hooks/pre-commit").exists())
        self.assertFalse((self.workspace / "own-hooks/pre-commit").exists())
        self.assertNotIn("evil", (self.workspace / "shared/gitconfig").read_text())

    def test_a_folder_that_holds_something_protected_is_not_deleted_with_it(self) -> None:
        (self.workspace / "sub/.git").mkdir(parents=True)
        for name in ("sub/.git/config", "sub/a", "sub/deep/b"):
            (self.workspace / name).parent.mkdir(exist_ok=True)
            (self.workspace / name).write_text("mine")
        result = self.confined("rm -rf sub; echo now a file > sub")
        self.assertEqual((self.workspace / "sub/.git/config").read_text(), "mine")
        self.assertEqual(os.listdir(self.workspace / "sub"), [".git"])
        self.assertIn("sub/.git were discarded", " ".join(result["notes"]))

    def test_an_allowed_git_write_commits_but_reaches_no_configuration_and_no_hook(self) -> None:
        self.git("init", "-q")
        (self.workspace / "a").write_text("1")
        before = (self.workspace / ".git/config").read_text()
        git = "git -c user.name=n -c user.email=e@x"
        result = self.confined(
            f"git add a && {git} commit -qm one && git tag v1 && git switch -qc b && {git} commit -q --allow-empty -m two; "
            "git config alias.x '!evil'; echo evil > .git/hooks/post-commit; mkdir -p .git/info; echo '* filter=x' > "
            ".git/info/attributes; echo x > .git/config.worktree",
            git_writes=True,
        )
        self.assertEqual(self.git("log", "--format=%s").split(), ["two", "one"], result)
        self.assertEqual(self.git("status", "--porcelain"), "")
        self.assertEqual((self.workspace / ".git/config").read_text(), before)
        for name in ("hooks/post-commit", "info/attributes", "config.worktree"):
            self.assertFalse((self.workspace / ".git" / name).exists(), name)
        self.assertIn(".git/config were discarded", " ".join(result["notes"]))

    def test_a_workspace_that_is_a_part_or_a_worktree_of_a_repository_commits_too(self) -> None:
        self.git("init", "-q")
        self.git("commit", "-q", "--allow-empty", "-m", "zero")
        self.git("worktree", "add", "-q", "../beside")
        top = self.workspace
        for folder in (top / "part", top.parent / "beside"):
            folder.mkdir(exist_ok=True)
            (folder / "new").write_text("x")
            self.workspace = folder
            command = f"git add new && git -c user.name=n -c user.email=e@x commit -qm {folder.name}; git config a.b c"
            result = self.confined(command, git_writes=True)
            self.assertEqual(self.git("log", "-1", "--format=%s"), f"{folder.name}\n", result)
            self.assertEqual(self.git("status", "--porcelain", "."), "")
        self.assertNotIn("[a]", (top / ".git/config").read_text())

    def test_without_that_nothing_of_the_repository_changes(self) -> None:
        self.git("init", "-q")
        (self.workspace / "a").write_text("1")
        self.assertNotEqual(self.confined("git add a")["exit_code"], 0)
        self.assertEqual(self.git("ls-files"), "")

    def test_git_renames_a_folder_and_a_program_that_cannot_gets_a_hint(self) -> None:
        self.git("init", "-q", ".")
        (self.workspace / "folder").mkdir()
        (self.workspace / "folder/f").write_text("x")
        self.git("add", ".")
        self.git("commit", "-qm", "one")
        result = self.confined("git mv folder moved", git_writes=True)
        self.assertEqual(result["exit_code"], 0, result["stderr"])
        self.assertEqual((self.workspace / "moved/f").read_text(), "x")
        result = self.confined(f"{sys.executable} -c \"import os; os.rename('moved', 'again')\"")
        self.assertIn("can rename an existing folder", " ".join(result["notes"]))
        self.assertEqual(self.confined("mv moved again && cat again/f")["stdout"], "x")

    @full_size
    def test_hidden_files_cannot_be_read_in_any_way(self) -> None:
        (self.workspace / "secrets/deep").mkdir(parents=True)
        for name in (".env", "secrets/key", "secrets/deep/k2"):
            (self.workspace / name).write_text("swordfish")
        (self.workspace / "link").symlink_to(".env")
        hidden = tuple(str(self.workspace / name) for name in (".env", "secrets"))
        result = self.confined(
            "cat .env link .e?v; sed '$r.env' /etc/hostname; tar cf - . | cat; cp -r . /tmp/all; cat /tmp/all/.env; "
            "python3 -c \"print(open('.env').read())\"; grep -r sword .; cat secrets/key secrets/deep/k2; mv .env x; cat x; "
            "ln .env y; cat y; chmod 777 .env secrets; cat .env secrets/key; head -c 99 /proc/self/root$PWD/.env",
            hidden=hidden,
        )
        self.assertNotIn("swordfish", result["stdout"] + result["stderr"])
        self.assertEqual((self.workspace / ".env").read_text(), "swordfish")

    def test_protected_files_cannot_be_written_by_another_name_either(self) -> None:
        (self.workspace / ".npmrc").write_text("mine")
        os.link(self.workspace / ".npmrc", self.workspace / "other")
        result = BashTool(sandbox="require").run_sync(
            {"command": "echo x >> other; echo y > done", "run_in_background": True}, self.ctx
        )
        until(lambda: (self.workspace / "done").exists(), "the shell has written its files")
        KillBashTool().run_sync({"shell_id": result["shell_id"]}, self.ctx)
        self.confined("echo x >> other")
        self.assertEqual((self.workspace / ".npmrc").read_text(), "mine")

    def test_a_program_whose_file_is_hidden_runs_under_no_name(self) -> None:
        (self.workspace / "y").write_text("stays")
        program = os.path.realpath(shutil.which("rm") or "")
        self.confined(
            "rm y; <a r${IFS:9}m y; printf '%s%s y' r m | sh; ln -s /bin/rm z; ./z y; cp /bin/rm w; ./w y",
            hidden=(program,),
        )
        self.assertTrue((self.workspace / "y").exists())

    def test_temporary_files_are_the_runs_own_and_stay_between_its_commands(self) -> None:
        name = f"openagentic-kept-{os.urandom(6).hex()}"
        other = Path("/tmp", f"{name}-of-others")
        other.write_text("theirs")
        self.addCleanup(other.unlink)
        ctx = ToolContext(cwd=str(self.workspace))
        tool = BashTool(sandbox="require")
        tool.run_sync({"command": f"echo mine > /tmp/{name}; ls {other}"}, ctx)
        self.assertEqual(tool.run_sync({"command": f"cat /tmp/{name} {other}"}, ctx)["stdout"], "mine\n")
        self.assertFalse(Path("/tmp", name).exists())
        close_run(ctx)
        again = ToolContext(cwd=str(self.workspace))
        self.addCleanup(close_run, again)
        self.assertEqual(tool.run_sync({"command": f"cat /tmp/{name}"}, again)["stdout"], "")

    def test_caches_that_tools_write_belong_to_the_run(self) -> None:
        home = self.workspace.parent / "home"
        (home / ".cache").mkdir(parents=True)
        (home / ".cache/old").write_text("old\n")
        self.addCleanup(os.environ.__setitem__, "HOME", os.environ["HOME"])
        os.environ["HOME"] = str(home)
        ctx = ToolContext(cwd=str(self.workspace))
        tool = BashTool(sandbox="require")
        tool.run_sync({"command": "echo new > ~/.cache/new; echo x > ~/other"}, ctx)
        result = tool.run_sync({"command": "cat ~/.cache/*; echo $npm_config_cache; ls ~"}, ctx)
        self.assertEqual([os.path.basename(line) for line in result["stdout"].splitlines()], ["new", "old", ".npm"])
        close_run(ctx)
        self.assertEqual([path.name for path in home.rglob("*")], [".cache", "old"])

    def test_commands_at_once_write_to_caches_of_their_own_and_later_ones_to_the_first(self) -> None:
        home = self.workspace.parent / "home"
        (home / ".cache").mkdir(parents=True)
        self.addCleanup(os.environ.__setitem__, "HOME", os.environ["HOME"])
        os.environ["HOME"] = str(home)
        policy = CommandRules().policy(self.ctx, "true")
        temp = tempfile.mkdtemp(dir=self.workspace.parent)

        def confine() -> Any:
            return BashSandbox("require").confine(str(self.workspace), policy, f"{temp}/tmp")

        def layers(confined: ConfinedCommand) -> set[str]:
            mounts = confined.plan["mounts"] if confined.plan else []
            cache = ("overlay", f"{home}/.cache")
            return {layer for mount in mounts if mount[:2] == cache for layer in mount[3:]}

        with confine() as one:
            with confine() as other:
                self.assertEqual((len(layers(one)), layers(one) & layers(other)), (2, set()))
            with confine() as third:
                self.assertEqual(layers(third), layers(other))
        with confine() as later:
            self.assertEqual(layers(later), layers(one))

    def test_in_a_home_folder_dot_files_are_read_only(self) -> None:
        self.addCleanup(os.environ.__setitem__, "HOME", os.environ["HOME"])
        os.environ["HOME"] = str(self.workspace)
        for name in (".ssh", ".some"):
            (self.workspace / name).mkdir()
        result = self.confined(
            "echo k > .ssh/authorized_keys; echo x > .some/server.json; echo y > .new; echo z > plain"
        )
        self.assertEqual(sorted(os.listdir(self.workspace)), [".some", ".ssh", "plain"], result)
        self.assertEqual(os.listdir(self.workspace / ".ssh") + os.listdir(self.workspace / ".some"), [])

    def test_the_sdks_own_folder_cannot_be_seen_but_for_the_workspace_in_it(self) -> None:
        home = self.workspace.parent / "sdk-home"
        (home / "fleet/one").mkdir(parents=True)
        (home / "server.token").write_text("swordfish")
        self.workspace = home / "fleet/one"
        result = self.confined(f"cat {home}/server.token; ls {home}; echo ok > here", covered=(str(home),))
        self.assertEqual(result["stdout"], "fleet\n")
        self.assertEqual((self.workspace / "here").read_text(), "ok\n")


class Places(unittest.TestCase):
    def test_git_names_what_it_runs_and_includes(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config").write_text(
                '[include]\n\tpath = more\n[core] hooksPath = "h"\n[alias]\n\tst = status\n\tx = !./run.sh --all\n'
                '[filter "f"]\n\tclean = bin/clean %f\n[remote "o"]\n\turl = ../elsewhere\n'
            )
            Path(folder, "more").write_text("[core]\n\tfsmonitor = ./watch\n")
            real = os.path.realpath(folder)
            found = {os.path.relpath(path, real) for path in git_places([f"{real}/config"], real)}
        self.assertEqual(found, {"more", "h", "run.sh", "bin/clean", "watch"})

    def test_this_package_cannot_be_edited_from_inside(self) -> None:
        import openagentic_sdk

        package = os.path.dirname(os.path.realpath(openagentic_sdk.__file__))
        root = os.path.dirname(package)
        for roots in ((root,), (package,), ("/",)):
            with self.subTest(roots=roots):
                protected = protected_places(roots)
                self.assertTrue(protected.covers(f"{package}/tools/shell/helper.py"))
                self.assertTrue(protected.covers(f"{package}/new.py"))
        self.assertFalse(protected_places((root,)).covers(f"{root}/tests/x.py"))

    def test_a_file_cannot_take_the_place_of_a_module_that_this_process_loads(self) -> None:
        self.addCleanup(program_places.cache_clear)
        self.addCleanup(sys.path.pop)
        with tempfile.TemporaryDirectory() as folder:
            sys.path.append(folder)
            program_places.cache_clear()
            root = os.path.realpath(folder)
            protected = protected_places((root,))
            for name, is_protected in {"tempfile.py": 1, "json/__init__.py": 1, "json/data": 0, "mine.py": 0}.items():
                self.assertEqual(protected.covers(f"{root}/{name}"), bool(is_protected), name)
