"""The files of a run: a shared folder, or its own checkout whose changes another host can pick up."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import unittest
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from openagentic_sdk.agents import Agents, NamedAgent, Repository, load_agents
from openagentic_sdk.api import run
from openagentic_sdk.errors import FleetError, OptionsError
from openagentic_sdk.events import HookEvent, ToolResult, WorkspaceKept
from openagentic_sdk.fleet.workspace import HOOK, KeptCheckout, _Git, kept_workspace, open_workspace, read_wish
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.tools.shell.environment import find_program
from openagentic_sdk.tools.shell.process import stop_helper
from tests.size import drawn, full_size

_GIT = find_program("git")
_IDENTITY = {f"GIT_{who}_{what}": "t@t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
_ENV = {
    "PATH": os.defpath,
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    **_IDENTITY,
}


def _git(folder: Path, *arguments: str) -> str:
    command = [str(_GIT), "-c", "init.defaultBranch=main", *arguments]
    done = subprocess.run(command, cwd=folder, env=_ENV, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout.strip()


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


def tearDownModule() -> None:
    stop_helper()


class WorkspaceTest(unittest.TestCase):
    """A repository with one commit, and helpers that run an agent in it as a worker does."""

    origin: Path
    head: str

    @classmethod
    def setUpClass(cls) -> None:
        if _GIT is None:
            raise unittest.SkipTest("git is not installed")
        made = tempfile.TemporaryDirectory()
        cls.addClassCleanup(made.cleanup)
        cls.origin = Path(made.name) / "origin"
        cls.origin.mkdir()
        _git(cls.origin, "init", "--quiet")
        (cls.origin / "code.txt").write_bytes(b"one\r\ntwo\n")
        (cls.origin / ".gitattributes").write_text("*.txt text=auto eol=crlf\n*.dat filter=evil diff=evil\n")
        (cls.origin / ".gitignore").write_text("*.tmp\n")
        (cls.origin / "big.dat").write_bytes(bytes(range(256)))
        _git(cls.origin, "add", "--all")
        _git(cls.origin, "commit", "--quiet", "--message=first")
        cls.head = _git(cls.origin, "rev-parse", "HEAD")

    def setUp(self) -> None:
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.host = Path(made.name)
        self.store = MemorySessionStore()

    def agent(self, turns: Sequence[Any], workspaces: Mapping[str, Any], **options: Any) -> NamedAgent:
        made = OpenAgenticOptions(
            provider=ScriptedProvider(turns),
            model="scripted",
            permission_gate=PermissionGate(permission_mode="bypass"),
            session_store=self.store,
            **options,
        )
        return Agents({"a": NamedAgent(made, workspaces=workspaces)})["a"]

    def repository(self, **fields: Any) -> Repository:
        return Repository(**{"url": self.origin.as_uri(), "allow": ("file",), **fields})

    def work(
        self,
        turns: Sequence[Any],
        workspaces: Mapping[str, Any],
        named: str | None = None,
        host: str = "one",
        **ours: Any,
    ) -> Any:
        """Run the agent to its end; return its result and the observed state of its folder."""
        agent = self.agent(turns, workspaces)
        base = agent.options
        assert isinstance(base, OpenAgenticOptions)
        session = "s"
        wish = read_wish(agent, named)
        with open_workspace(agent, base, wish, store=self.store, session_id=session, root=self.host / host) as options:
            names = {"resume": session} if self.store.session_exists(session) else {"session_id": session}
            result = asyncio.run(run(prompt="go", options=replace(options, **names, **ours)))
            files = Path(options.cwd or ".")
            seen = {
                str(path.relative_to(files)): path.read_bytes()
                for path in files.rglob("*")
                if path.is_file() and ".git" not in path.parts
            }
        return result, seen

    def results(self) -> list[ToolResult]:
        return [event for event in self.store.read_events("s") if isinstance(event, ToolResult)]


class WithoutWorkspace(WorkspaceTest):
    @full_size
    def test_tools_that_touch_files_are_refused_with_a_sentence(self) -> None:
        turns = [
            _call("Write", file_path=str(self.host / "x"), content="x"),
            _call("Read", file_path="/etc/hostname"),
            _call("Bash", command=f"touch {self.host}/y"),
            "end",
        ]
        self.work(turns, {"site": str(self.host)})
        for result in self.results():
            self.assertEqual(result.outcome, "denied")
            self.assertIn("no workspace", result.error_message or "")
        self.assertEqual(len(self.results()), 3)
        self.assertEqual(list(self.host.iterdir()), [])

    def test_names_come_from_the_registry_alone(self) -> None:
        agent = self.agent([], {"site": str(self.host), "code": self.repository()})
        wrong = ("", "/etc", "other", "../site", "site@main", "site@", "code@", "code@--upload-pack=x", "code@a..b")
        for named in (*wrong, "code@a:b", "code@@", "code@/x", "code@" + "x" * 300, "code@a\n", self.origin.as_uri()):
            with self.subTest(named), self.assertRaises(OptionsError):
                read_wish(agent, named)
        self.assertIsNone(read_wish(agent, None))
        self.assertEqual(getattr(read_wish(agent, "code@v1/x"), "ref", None), "v1/x")

    def test_a_registry_accepts_only_safe_places(self) -> None:
        for url in (
            *(
                "ext::sh -c id",
                "file:///x",
                "/x",
                "http://h/x",
                "--upload-pack=x",
                "ssh://-oProxyCommand=x/y",
                "git://h/x",
            ),
            *("https://user:secret@h/x", "h::x", "h:-x", "https://h", "ssh://h/x y", "fd::17", "https://-h/x"),
        ):
            with self.subTest(url), self.assertRaises(OptionsError):
                self.agent([], {"code": Repository(url=url)})
        for url in ("https://h/x.git", "ssh://git@h:22/x", "git@h:x/y.git", "h:/srv/x"):
            self.agent([], {"code": Repository(url=url)})
        with self.assertRaises(OptionsError):
            self.agent([], {"site": "relative"})


class SharedFolder(WorkspaceTest):
    def test_a_run_works_in_the_folder_of_that_name(self) -> None:
        self.work([_call("Write", file_path="new.txt", content="x"), "end"], {"default": str(self.host)})
        self.assertEqual((self.host / "new.txt").read_text(), "x")

    def test_a_missing_folder_is_an_error_that_names_it(self) -> None:
        with self.assertRaisesRegex(OptionsError, "does not exist on this host"):
            self.work(["end"], {"default": str(self.host / "gone")})


class Checkout(WorkspaceTest):
    @full_size
    def test_another_host_continues_with_the_commit_and_what_was_changed(self) -> None:
        edits = [
            _call(
                "Bash",
                command="printf 'three\\r\\n' >> code.txt; rm big.dat; printf '\\0\\1' > new.dat; chmod +x new.dat",
            ),
            _call("Write", file_path="deep/er.txt", content="\u00e9\r\n"),
            _call("Bash", command="ln -s /etc/passwd link; echo x > left.tmp; git add -A; git commit -qm mine"),
            "end",
        ]
        _, here = self.work(edits, {"default": self.repository()})
        kept = kept_workspace(self.store.read_events("s"))
        assert kept is not None
        self.assertEqual((kept.name, kept.commit), ("default", self.head))
        (self.origin / "later.txt").write_text("later")
        _git(self.origin, "add", "--all")
        _git(self.origin, "commit", "--quiet", "--message=second")
        self.addCleanup(_git, self.origin, "reset", "--quiet", "--hard", self.head)
        _, there = self.work(
            [_call("Bash", command="git status --short; ls -l"), "end"], {"default": self.repository()}, host="two"
        )
        here.pop("left.tmp")
        self.assertEqual(there, here)
        self.assertNotIn("later.txt", there)
        self.assertRegex(str(self.results()[-1].output), r"-rwx\S* [^\\]* new\.dat")

    @full_size
    def test_a_repository_planted_in_the_checkout_is_not_entered_and_reported_as_omitted(self) -> None:
        ran = self.host / "ran"
        plant = (
            "mkdir sub; cd sub; git init -q .; echo 1 > f; git add f; git -c user.name=a -c user.email=a@b commit -qm 1; "
            f"git config filter.x.clean 'env > {ran}; cat'; echo '* filter=x' > .gitattributes; echo 22 > f; cd ..; "
            "touch kept"
        )
        os.environ["WORKSPACE_TOKEN"] = "of-the-repository"
        self.addCleanup(os.environ.pop, "WORKSPACE_TOKEN")
        place = self.repository(token_env="WORKSPACE_TOKEN")
        calls = [_call("Bash", command=plant), _call("Bash", command="touch sub/f later"), "end"]
        self.work(calls, {"default": place}, sandbox="off")
        self.assertFalse(ran.exists(), ran.read_text() if ran.exists() else "")
        kept = kept_workspace(self.store.read_events("s"))
        assert kept is not None
        patch = self.store.read_blob("s", kept.patch).decode()
        self.assertIn("b/later", patch)
        self.assertNotIn("b/sub", patch)
        self.assertIn("repositories in it: sub", str(self.store.read_events("s")))

    def test_git_of_the_runtime_finds_no_program_not_even_a_second_git(self) -> None:
        git = _Git(self.repository(), lambda: False)
        home = self.host / "own"
        home.mkdir()
        for words in (["-c", "alias.x=!touch ran", "x"], ["ls-remote", "https://127.0.0.1:9/x"], ["help", "add"]):
            with self.subTest(words=words), self.assertRaises(FleetError):
                git.run(*words, home=home)
        self.assertEqual(list(home.iterdir()), [])

    @full_size
    def test_the_log_records_what_was_kept_before_the_result(self) -> None:
        self.work(
            [_call("Write", file_path="a", content="a"), _call("Read", file_path="a"), "end"],
            {"default": self.repository()},
        )
        events = self.store.read_events("s")
        words = [
            event.action if isinstance(event, HookEvent) else event.type
            for event in events
            if isinstance(event, ToolResult) or (isinstance(event, HookEvent) and event.name == HOOK)
        ]
        self.assertLess(words.index("kept"), words.index("tool.result"))
        self.assertEqual(words.count("kept"), 1)

    @full_size
    def test_kept_changes_are_read_from_the_fields_of_their_event_or_the_text_of_older_logs(self) -> None:
        opened = {"hook_point": "session_start", "name": HOOK, "action": "opened"}
        self.work([_call("Write", file_path="a", content="a"), "end"], {"default": self.repository()})
        events = [event for event in self.store.read_events("s") if isinstance(event, WorkspaceKept)]
        self.assertEqual([(event.workspace, event.commit) for event in events], [("default", self.head)] * 2)
        self.assertEqual([bool(event.patch) for event in events], [False, True])
        digest = events[-1].patch
        old = [
            HookEvent(**{**opened, "action": f"opened code {self.head}"}),
            HookEvent("post_tool_use", HOOK, action=f"kept {digest}"),
        ]
        self.assertEqual(kept_workspace(old), KeptCheckout("code", self.head, digest))
        self.assertEqual(kept_workspace([*old, *events]), KeptCheckout("default", self.head, digest))

    @full_size
    def test_nothing_that_a_run_leaves_in_its_repository_runs_or_counts_outside(self) -> None:
        trap = self.host / "trapped"
        script = f"""
            mkdir -p .git/hooks; printf '#!/bin/sh\\ntouch {trap}' > .git/hooks/pre-commit; chmod +x .git/hooks/*
            cp .git/hooks/pre-commit .git/hooks/post-checkout; cp .git/hooks/pre-commit .git/hooks/post-index-change
            git config core.fsmonitor 'touch {trap};'; git config core.hooksPath .git/hooks
            git config filter.evil.clean 'touch {trap}; cat'; git config filter.evil.smudge 'touch {trap}; cat'
            git config diff.evil.textconv 'touch {trap}; cat'; git config diff.external 'touch {trap}'
            git config core.worktree /etc; git config core.excludesFile {self.origin}/.gitignore
            echo changed > big.dat; echo x > seen.txt
            mkdir inner; cd inner; GIT_DIR=.git git init -q .; cd ..
        """
        self.work([_call("Bash", command=script), "end"], {"default": self.repository()})
        kept = kept_workspace(self.store.read_events("s"))
        assert kept is not None
        patch = self.store.read_blob("s", kept.patch)
        self.assertIn(b"seen.txt", patch)
        self.assertNotIn(b"passwd", patch)
        _, there = self.work(["end"], {"default": self.repository()}, host="two")
        self.assertEqual(there["big.dat"], b"changed\n")
        self.assertFalse(trap.exists())

    @full_size
    def test_hooks_filters_and_submodules_of_the_repository_do_nothing(self) -> None:
        trap = self.host / "trapped"
        (self.origin / ".gitmodules").write_text(
            f'[submodule "m"]\n\tpath = m\n\turl = ext::touch {trap}\n\tupdate = !touch {trap}\n'
        )
        _git(self.origin, "add", "--all")
        _git(self.origin, "update-index", "--add", "--cacheinfo", f"160000,{self.head},m")
        _git(self.origin, "commit", "--quiet", "--message=module")
        self.addCleanup(_git, self.origin, "reset", "--quiet", "--hard", self.head)
        hook = self.origin / ".git/hooks/post-checkout"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {trap}\n")
        hook.chmod(0o755)
        self.addCleanup(hook.unlink)
        _, files = self.work([_call("Bash", command="echo x > y"), "end"], {"default": self.repository()})
        self.assertEqual(files["y"], b"x\n")
        self.assertFalse(trap.exists())

    @full_size
    def test_a_run_may_name_a_branch_a_tag_or_a_commit_that_one_of_them_holds(self) -> None:
        _git(self.origin, "branch", "side")
        _git(self.origin, "tag", "v1")
        loose = _git(self.origin, "commit-tree", "-m", "loose", f"{self.head}^{{tree}}")
        self.addCleanup(_git, self.origin, "branch", "-D", "side")
        for ref in drawn(("side", "v1", "refs/heads/side", self.head, "HEAD"), 3):
            with self.subTest(ref):
                self.store = MemorySessionStore()
                self.work(["end"], {"code": self.repository()}, named=f"code@{ref}")
        for ref in drawn(("nowhere", loose, "f" * 40), 2):
            with self.subTest(ref), self.assertRaisesRegex(OptionsError, "has no branch, tag or commit"):
                self.store = MemorySessionStore()
                self.work(["end"], {"code": self.repository()}, named=f"code@{ref}")

    @full_size
    def test_changes_are_pushed_to_a_branch_if_the_registry_requests_it(self) -> None:
        repository = self.repository(branches="agents/")
        self.work([_call("Write", file_path="a", content="a"), "end"], {"default": repository})
        self.addCleanup(_git, self.origin, "branch", "-D", "agents/s")
        self.assertEqual(_git(self.origin, "show", "agents/s:a"), "a")
        self.assertEqual(_git(self.origin, "rev-parse", "agents/s^"), self.head)

    @full_size
    def test_leftovers_of_a_crash_are_swept_and_what_lives_stays(self) -> None:
        trees = self.host / "one/trees"
        dead = trees / "dead"
        (dead / "locked/in").mkdir(parents=True)
        (dead / "locked/in/file").write_text("x")
        (dead / "locked").chmod(0)
        (trees / "dead.lock").touch()
        agent = self.agent([], {"default": self.repository()})
        wish, base = read_wish(agent, None), agent.options
        assert isinstance(base, OpenAgenticOptions)
        known: dict[str, Any] = {"store": self.store, "session_id": "s", "root": self.host / "one"}
        with open_workspace(agent, base, wish, **known) as first, open_workspace(agent, base, wish, **known) as second:
            self.assertNotEqual(first.cwd, second.cwd)
            self.assertTrue(os.path.isdir(str(first.cwd)) and os.path.isdir(str(second.cwd)))
            self.assertFalse(dead.exists())
        self.assertEqual([path.name for path in trees.iterdir()], ["lock"])

    def test_a_repository_that_cannot_be_had_is_an_error_with_gits_words(self) -> None:
        gone = Repository(url=(self.host / "gone").as_uri(), allow=("file",))
        with self.assertRaisesRegex(FleetError, "git fetch for .* failed"):
            self.work(["end"], {"default": gone})
        with self.assertRaisesRegex(OptionsError, "NO_SUCH_TOKEN"):
            self.work(["end"], {"default": self.repository(token_env="NO_SUCH_TOKEN")})

    @full_size
    def test_a_session_keeps_its_workspace(self) -> None:
        places = {"default": self.repository(), "other": self.repository()}
        self.work(["end"], places)
        with self.assertRaisesRegex(OptionsError, "or start a new session in 'other'"):
            self.work(["end"], places, named="other")


class Registry(WorkspaceTest):
    def setUp(self) -> None:
        super().setUp()
        (self.host / "script.json").write_text('{"turns": []}')

    def test_a_file_of_agents_names_workspaces(self) -> None:
        (self.host / "agents.toml").write_text(
            "[agents.a]\nscript = 'script.json'\n[agents.a.workspaces.site]\nfolder = 'www'\n"
            "[agents.a.workspaces.code]\nurl = 'https://h/x'\nref = 'main'\nbranches = 'agents/'\n"
        )
        workspaces = load_agents(str(self.host / "agents.toml"))["a"].workspaces
        self.assertEqual(workspaces["site"], str(self.host / "www"))
        self.assertEqual(workspaces["code"], Repository(url="https://h/x", ref="main", branches="agents/"))

    def test_a_workspace_in_a_file_that_cannot_be_used_is_named(self) -> None:
        for table in (
            "folder = 1",
            "url = 'https://h/x'\nfolder = 'x'",
            "ref = 'x'",
            "url = 'file:///x'",
            "url = 'https://h/x'\nallow = ['ext']",
        ):
            (self.host / "agents.toml").write_text(
                f"[agents.a]\nscript = 'script.json'\n[agents.a.workspaces.code]\n{table}\n"
            )
            with self.subTest(table), self.assertRaisesRegex(OptionsError, "workspace 'code'"):
                load_agents(str(self.host / "agents.toml"))


if __name__ == "__main__":
    unittest.main()
