"""Reading subcommands: which ones the tables allow without a question, and what none of the rows cover."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
import unittest
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.permissions.hold.repository import is_plain_repository
from openagentic_sdk.permissions.subcommands import PROGRAMS, SubcommandRow, subcommands
from tests.size import LARGE

from .workspace import WorkspaceTestCase

ROOT = Path(__file__).parents[2]
FIXTURE = ROOT / "fixtures" / "permissions" / "not_reading.txt"
READING = (
    "git status",
    "git diff",
    "git diff --stat HEAD~1",
    "git log --oneline -5",
    "git log -p src/a.py",
    "git branch --list 'feature/*'",
    "env",
    "ps",
    "ps aux",
    "ps -eo pid,comm",
    "jq . package.json",
    "jq -r --arg name value '.[$name]' README.md",
    "python3 --version",
    "node --version",
    "docker ps -a --format '{{.Names}}'",
    "docker inspect --format '{{.State.Status}} {{json .NetworkSettings.Networks}}' web",
    "kubectl -n web get pods -o wide",
    "gh pr list --state open",
    "npm --version",
    "aws s3 ls s3://bucket/logs/",
    "git log --grep=https://example.com/issues/1",
    "gh repo view owner/name",
    "pip list --outdated",
    "systemctl status nginx",
    "aws ec2 describe-instances --filters Name=tag:Name,Values=web",
    "az vm list --output table",
    "gcloud compute zones list --limit=5",
    "helm list -A",
    "git log --format='%h %an %s'",
    "git for-each-ref --sort=-committerdate --format='%(refname:short)'",
    "docker history --quiet web",
    "docker image inspect --format '{{.Id}}' web",
    "systemctl show --property=ActiveState nginx",
    "brew info python@3.11",
    "ip -br addr",
    "journalctl -b -1 -u nginx -n 50",
    "dmesg -T | grep error",
)


def outcome(gate: PermissionGate, command: str, cwd: str) -> str:
    return gate.verdict("Bash", {"command": command}, {"cwd": cwd}).outcome


def every_row() -> Iterator[tuple[str, SubcommandRow]]:
    for program in PROGRAMS:
        table = subcommands(program)
        assert table is not None
        yield from ((program, row) for row in table.rows)


def may_begin(row: SubcommandRow, word: str) -> bool:
    return not row.words or row.words[0] == "@" or fnmatchcase(word, row.words[0])


class Tables(WorkspaceTestCase):
    def test_reading_subcommands_run_without_a_question(self) -> None:
        shutil.rmtree(self.root / ".git")
        gate = PermissionGate(cwd=str(self.root))
        for command in READING:
            with self.subTest(command=command):
                self.assertEqual(outcome(gate, command, str(self.root)), "allow")

    def test_subcommands_that_write_run_or_read_more_are_still_asked_about(self) -> None:
        gate = PermissionGate(cwd=str(self.root))
        lines = FIXTURE.read_text("utf-8").splitlines()[1:]
        self.assertGreater(len(lines), 200)
        for command in lines:
            with self.subTest(command=command):
                self.assertEqual(outcome(gate, command, str(self.root)), "ask")

    def test_programs_whose_project_names_code_or_a_server_need_its_trust(self) -> None:
        for command in ("cargo tree", "terraform show", "npm view react", "npm ls", "npm run", "uv python list"):
            with self.subTest(command=command):
                self.assertEqual(outcome(PermissionGate(cwd=str(self.root)), command, str(self.root)), "ask")
                trusting = PermissionGate(cwd=str(self.root), trusted=True)
                self.assertEqual(outcome(trusting, command, str(self.root)), "allow")

    def test_content_that_git_has_tracked_is_asked_about_where_rules_keep_files_from_being_read(self) -> None:
        gate = PermissionGate(cwd=str(self.root), deny=["Read(secret.txt)"], trusted=True)
        for command in ("git show HEAD:secret.txt", "git log -p", "git diff", "git grep key", "git stash show -p"):
            with self.subTest(command=command):
                self.assertNotEqual(outcome(gate, command, str(self.root)), "allow")
        self.assertEqual(outcome(gate, "git status", str(self.root)), "allow")
        confined = {"cwd": str(self.root), "confined": "namespaces"}
        for command in ("git log -p", "git log -p --format=%s\\", "echo $x; git log -p --format=x\\"):
            for policy in ({"allow": ["Bash"]}, {"permission_mode": "bypass"}):
                with self.subTest(command=command, policy=policy):
                    gate = PermissionGate(cwd=str(self.root), deny=["Read(secret.txt)"], trusted=True, **policy)
                    self.assertEqual(gate.verdict("Bash", {"command": command}, confined).outcome, "ask")

    def test_each_row_names_its_page_of_the_manual(self) -> None:
        for program, row in every_row():
            with self.subTest(program=program, row=row.words):
                self.assertRegex(row.manual, r"^https://[\w.-]+/")
                self.assertNotIn("{}", row.manual)

    def test_the_rows_searched_for_a_word_are_all_whose_name_may_begin_with_it(self) -> None:
        for program in PROGRAMS:
            table = subcommands(program)
            assert table is not None
            for word in (*table.rows_by_word, "unknown"):
                with self.subTest(program=program, word=word):
                    expected = [row for row in table.rows if may_begin(row, word)]
                    self.assertEqual(list(table.rows_by_word.get(word, table.rows_by_word["*"])), expected)

    def test_each_file_is_the_table_of_the_programs_that_it_names(self) -> None:
        named = {
            program: path.stem
            for path in (ROOT / "openagentic_sdk" / "permissions" / "reading").glob("*.toml")
            for program in tomllib.loads(path.read_text("utf-8"))["programs"]
        }
        self.assertEqual(named, dict(PROGRAMS))


@unittest.skipUnless(LARGE, "needs the help of each subcommand")
class AgainstTheirOwnHelp(unittest.TestCase):
    def help_of(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*words, "--help"], capture_output=True, text=True, check=False)

    def test_each_option_of_a_row_is_in_the_help_of_its_subcommand(self) -> None:
        for program in ("docker", "pip", "kubectl"):
            table = subcommands(program)
            assert table is not None
            if shutil.which(program) is None:
                continue
            own_help = self.help_of(program).stdout
            for row in table.rows:
                if row.reader is None or row.words[0].startswith("-") or "*" in row.words or row.words == ("help",):
                    continue
                done = self.help_of(program, *row.words)
                # Docker prints its own help for a subcommand whose plugin is not installed.
                if done.returncode or "buildx" in row.words or done.stdout == own_help:
                    continue
                for name in (*row.reader.long, *row.reader.long_valued):
                    known = (*table.before.long, *table.before.long_valued)
                    with self.subTest(program=program, row=row.words, option=name):
                        self.assertTrue(name in known or re.search(rf"--{re.escape(name)}\b", done.stdout))


@unittest.skipIf(shutil.which("git") is None, "git is not installed")
class PlainRepository(WorkspaceTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = self.root / "repository"
        self.git("init", "-q", str(self.folder), cwd=self.root)

    def git(self, *words: str, cwd: Path | None = None) -> None:
        subprocess.run(["git", *words], cwd=cwd or self.folder, check=True, capture_output=True)

    def test_a_fresh_repository_and_its_folders_are_plain(self) -> None:
        self.git("remote", "add", "origin", "https://example.com/a.git")
        (self.folder / "src").mkdir()
        self.assertTrue(is_plain_repository(str(self.folder)))
        self.assertTrue(is_plain_repository(str(self.folder / "src")))
        self.assertEqual(outcome(PermissionGate(cwd=str(self.folder)), "git status", str(self.folder)), "allow")

    def test_a_repository_whose_configuration_could_run_or_contact_something_is_not(self) -> None:
        config = self.folder / ".git" / "config"
        plain = config.read_text("utf-8")
        for more in (
            "[core]\n\tfsmonitor = ./x\n",
            "[core] fsmonitor = ./x\n",
            "[CORE]\n\tFSMonitor = ./x\n",
            "[core]\n\thooksPath = x\n",
            "[diff]\n\texternal = ./x\n",
            '[diff "a"]\n\ttextconv = ./x\n',
            '[filter "a"]\n\tclean = ./x\n',
            "[include]\n\tpath = ../x\n",
            '[includeIf "gitdir:/"]\n\tpath = ../x\n',
            "[alias]\n\tstatus = !x\n",
            "[gpg.ssh]\n\tdefaultKeyCommand = ./x\n",
            "[gpg]\n\tprogram = ./x\n",
            "[core]\n\tfilemode = true \\\n[core]\n\tpager = x\n",
            '[branch "a\\"b"]\n\tremote = x\n',
            "[user]\n\tname = a\n[core]\n\tsshCommand = x\n",
            "[core]\n\tworktree = /\n",
            '[remote "x"]\n\turl = git://example.com/x\n\tpromisor = true\n',
            "[extensions]\n\tPartialClone = x\n",
        ):
            with self.subTest(config=more):
                config.write_text(plain + more, "utf-8")
                self.assertFalse(is_plain_repository(str(self.folder)))
                self.assertEqual(outcome(PermissionGate(cwd=str(self.folder)), "git status", str(self.folder)), "ask")

    def test_a_repository_with_a_second_configuration_is_not(self) -> None:
        (self.folder / ".git" / "config.worktree").write_text("[core]\n")
        self.assertFalse(is_plain_repository(str(self.folder)))

    def test_a_repository_whose_files_are_links_or_whose_objects_are_elsewhere_is_not(self) -> None:
        for name in ("packed-refs", "objects/ab", "info/x", "refs/heads/x"):
            with self.subTest(name=name):
                path = self.folder / ".git" / name
                path.symlink_to(self.outside / "outside.txt")
                self.assertFalse(is_plain_repository(str(self.folder)))
                path.unlink()
        self.assertTrue(is_plain_repository(str(self.folder)))
        (self.folder / ".git/objects/info/alternates").write_text("/x/objects\n", "utf-8")
        self.assertFalse(is_plain_repository(str(self.folder)))

    def test_a_repository_whose_index_names_what_is_outside_the_work_tree_is_not(self) -> None:
        (self.folder / "aa").mkdir()
        (self.folder / "aa" / "x").write_text("x\n", "utf-8")
        self.git("add", ".")
        self.git("update-index", "--add", "--cacheinfo", f"100644,{'0' * 39}1,b")
        self.git("update-index", "--skip-worktree", "b")
        index = self.folder / ".git" / "index"
        plain = index.read_bytes()
        self.assertTrue(is_plain_repository(str(self.folder)))
        for name in (b"../x", b"/a/x", b"a/.."):
            with self.subTest(name=name):
                index.write_bytes(plain.replace(b"aa/x", name))
                self.assertFalse(is_plain_repository(str(self.folder)))
        index.write_bytes(plain)
        self.git("update-index", "--index-version", "4")
        self.assertFalse(is_plain_repository(str(self.folder)), "its names are compressed")
        index.write_bytes(plain)
        shutil.rmtree(self.folder / "aa")
        (self.folder / "aa").symlink_to(self.outside)
        self.assertFalse(is_plain_repository(str(self.folder)), "git grep follows the link")
        index.unlink()
        for command in ("git blame aa/outside.txt", "git check-attr -a aa/x"):
            self.assertEqual(outcome(PermissionGate(cwd=str(self.folder)), command, str(self.folder)), "ask")

    def test_a_repository_with_another_inside_of_it_or_behind_it_is_not(self) -> None:
        inner = self.folder / "inner"
        self.git("init", "-q", str(inner))
        self.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x", cwd=inner)
        self.git("add", "inner")
        self.assertFalse(
            is_plain_repository(str(self.folder)), "git status enters paths that the index lists as repositories"
        )

    def test_folders_that_git_takes_for_a_repository_themselves_are_not(self) -> None:
        for names in (("objects", "refs"), ("commondir",)):
            with self.subTest(names=names):
                folder = self.folder / names[0]
                folder.mkdir()
                (folder / "HEAD").write_text("ref: refs/heads/x\n", "utf-8")
                for name in names:
                    (folder / name).mkdir()
                self.assertFalse(is_plain_repository(str(folder)))
        (self.root / "linked").mkdir()
        (self.root / "linked" / ".git").write_text("gitdir: ../repository/.git\n", "utf-8")
        self.assertFalse(is_plain_repository(str(self.root / "linked")))
        (self.folder / ".git" / "commondir").write_text("..", "utf-8")
        self.assertFalse(is_plain_repository(str(self.folder)))
        self.assertTrue(os.path.isdir(self.folder))


if __name__ == "__main__":
    unittest.main()
