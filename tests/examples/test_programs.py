"""The programs and ports in `examples/` run to completion with a scripted model, as in their expected files.

A program's file is a transcript: each `$` line is a command line, followed by its output, including errors. QUESTION in an
input is the id of the last question that was printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from openagentic_sdk import FileSessionStore, open_store
from openagentic_sdk.testing import FakeClock
from tests.size import full_size

from . import test_examples
from .test_examples import ROOT

APPS = ROOT / "examples" / "apps"
EXPECTED = ROOT / "examples" / "expected"
QUESTION = re.compile(r"\b[0-9a-f]{32}\b")
# The nightly batch, whose process is killed when the model is asked for the fourth time.
KILLED = """
import asyncio, os, signal, sys
from dataclasses import replace
root, *words = sys.argv[1:]
sys.path[:0] = [root, f"{root}/examples/apps"]
import nightly
from openagentic_sdk import FileSessionStore
from openagentic_sdk.testing import FakeClock, ScriptedProvider

class Killed(ScriptedProvider):
    async def stream(self, **request):
        if len(self.requests) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        async for event in super().stream(**request):
            yield event

args = nightly.arguments().parse_args(words)
clock = FakeClock()
settings = replace(nightly.options_of(args), clock=clock, session_store=FileSessionStore("sessions", clock=clock))
asyncio.run(nightly.batch(args, settings, Killed.from_file(args.script)))
"""


def load_app(name: str) -> Any:
    """A program as a module; its `main(argv)` is the command."""
    spec = spec_from_file_location(f"examples_apps_{name}", APPS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    sys.path.insert(0, str(APPS))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(APPS))
    return module


class Bare(unittest.TestCase):
    """A test in a newcomer's environment: no key, no model, an empty home folder, and nobody at the terminal."""

    maxDiff = None

    def setUp(self) -> None:
        test_examples.Examples.setUp(self)  # type: ignore[arg-type]
        argv, stdin = sys.argv, sys.stdin
        self.addCleanup(lambda: (setattr(sys, "argv", argv), setattr(sys, "stdin", stdin)))
        sys.argv, sys.stdin = ["example"], io.StringIO()


class Programs(Bare):
    def play(self, transcript: str, **main: Any) -> str:
        """Run a transcript in a separate folder and return the actual one."""
        said, question = [], "no question"
        for line in transcript.splitlines():
            if not line.startswith("$ "):
                continue
            sys.argv[0], *words = shlex.split(line.removeprefix("$ ").replace("QUESTION", question))
            with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
                try:
                    code = main[sys.argv[0]](words)
                except SystemExit as wrong_usage:
                    code = wrong_usage.code
            printed = out.getvalue().replace(os.path.realpath(os.curdir), "/FOLDER")
            question = [question, *QUESTION.findall(printed)][-1]
            said += [line, *QUESTION.sub("QUESTION", printed).splitlines(), *([f"[exit {code}]"] if code else [])]
        return "\n".join([*said, ""])

    def play_file(self, name: str, main: Callable[[list[str]], int] | None = None) -> None:
        """Check the transcript of a program, in a copy of `examples/apps/data`."""
        folder = self.enterContext(tempfile.TemporaryDirectory()) + "/data"
        shutil.copytree(APPS / "data", folder)
        shutil.copytree(APPS / "scripts", f"{folder}/scripts")
        self.enterContext(contextlib.chdir(folder))
        transcript = (EXPECTED / "apps" / f"{name}.txt").read_text(encoding="utf-8")
        self.check_expected(name, self.play(transcript, **{f"{name}.py": main or load_app(name).main}))

    def test_support_waits_for_an_approval_that_another_process_gives(self) -> None:
        self.play_file("support")

    def test_review_reads_the_project_changes_nothing_and_finds_what_the_diff_shows(self) -> None:
        self.play_file("review")
        self.assertEqual(Path("project/shop.py").read_bytes(), (APPS / "data/project/shop.py").read_bytes())

    @unittest.skipUnless(shutil.which("git"), "git is not there")
    def test_review_takes_the_change_from_git(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.enterContext(contextlib.chdir(folder))
        shutil.copy(APPS / "data/project/shop.py", folder)
        git = ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false"]
        for words in (["init", "-q"], ["add", "shop.py"], ["commit", "-q", "-m", "Add a shop"]):
            subprocess.run([*git, *words], check=True, capture_output=True)
        review, command = load_app("review").main, ["--script", str(APPS / "scripts/review.json"), "--store", "memory:"]
        for more, code, said in (
            (["nowhere"], 1, "review.py: fatal: "),
            ([], 1, "review.py: there is no change to review"),
        ):
            with contextlib.redirect_stderr(io.StringIO()) as err:
                sys.argv[0] = "review.py"
                self.assertEqual(review([*more, *command]), code)
            self.assertTrue(err.getvalue().startswith(said), err.getvalue())
        text = Path("shop.py").read_text()
        Path("shop.py").write_text(text.replace("Iterable[int]", "Iterable[int | None]"))
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(review(command), 1)
        self.assertIn("shop.py:8: blocker: a price of None", out.getvalue())

    def test_research_cites_what_its_scouts_have_read(self) -> None:
        self.play_file("research")

    @full_size
    def test_a_nightly_batch_continues_after_a_kill_within_the_budget_of_each_tenant(self) -> None:
        nightly = load_app("nightly")

        def main(words: list[str]) -> int:
            if "scripts/nightly_1.json" in words:
                done = subprocess.run(
                    [sys.executable, "-c", KILLED, str(ROOT), *words], capture_output=True, text=True, timeout=600
                )
                print(done.stdout + done.stderr, end="")
                return done.returncode
            args = nightly.arguments().parse_args(words)
            clock = FakeClock()  # a day that does not end during the test
            store = FileSessionStore("sessions", clock=clock)
            settings = replace(nightly.options_of(args), clock=clock, session_store=store)
            return int(asyncio.run(nightly.batch(args, settings, nightly.model_of(args))))

        self.play_file("nightly", main)
        self.assertEqual(
            Path("inbox/acme/tickets.log").read_text(), "Send one amount back\nCall the service of the lift\n"
        )
        self.assertEqual(
            json.loads(Path("inbox/acme/lift.json").read_text()),
            {"title": "A stuck lift", "urgent": True, "points": ["building B"]},
        )

    def test_a_desk_continues_with_its_sessions_and_questions_after_a_restart(self) -> None:
        self.enterContext(contextlib.chdir(self.enterContext(tempfile.TemporaryDirectory())))
        desk, said = load_app("desk"), list[str]()

        @contextlib.contextmanager
        def serving(script: str) -> Iterator[Callable[..., Any]]:
            words = ["--store", "sqlite:desk.db", "--port", "0", "--script", str(APPS / "scripts" / f"{script}.json")]
            with desk.Desk(desk.arguments().parse_args(words), "secret") as server:
                thread = threading.Thread(target=server.serve_forever)
                thread.start()
                try:
                    yield partial(request, server.server_port)
                finally:
                    server.shutdown()
                    thread.join()

        def request(port: int, method: str, path: str, token: str = "secret", **body: Any) -> Any:
            with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=600)) as connection:
                headers = {"Authorization": f"Bearer {token}"}
                connection.request(method, path, json.dumps(body) if body else None, headers)
                with connection.getresponse() as response:
                    text = response.read().decode()
            said.append(f"{method} {QUESTION.sub('QUESTION', path)} {json.dumps(body) if body else ''}".rstrip())
            said.append(f"{response.status} {QUESTION.sub('QUESTION', text)}")
            return json.loads(text)

        with serving("desk_1") as ask:
            ask("GET", "/approvals", token="guess")
            ask("GET", "/")
            ask("POST", "/customers/ada/messages")
            ask("POST", "/customers/ada/messages", words="Hello")
            ask("POST", "/customers/ada/messages", text="When are you open on Monday?")
            ask("POST", "/customers/bob/messages", text="My tea was cold.")
            with open_store("sqlite:desk.db").open_writer("ada"):
                ask("POST", "/customers/ada/messages", text="And on Sunday?")
            ask("POST", "/customers/ada/messages", text="You idiots!")
        said.append("-- the next day, another process")
        with serving("desk_2") as ask:
            [question] = ask("GET", "/approvals")["approvals"]
            ask("POST", f"/approvals/{question['id']}", answer="perhaps")
            ask("POST", f"/approvals/{question['id']}", answer="yes")
            ask("POST", f"/approvals/{question['id']}", answer="yes")
            ask("POST", "/customers/ada/messages", text="And on Sunday?")
        self.check_expected("desk", "\n".join([*said, ""]))

    def check_expected(self, name: str, text: str) -> None:
        self.assertEqual(text, (EXPECTED / "apps" / f"{name}.txt").read_text(encoding="utf-8"))


class Ports(Bare):
    @full_size
    def test_each_does_what_the_peers_example_does(self) -> None:
        ports = sorted(path for path in (ROOT / "examples" / "ports").glob("*_*.py"))
        for path in ports:
            with self.subTest(path.name):
                expected = EXPECTED / "ports" / f"{path.stem}.txt"
                self.assertEqual(test_examples._printed_by(path), expected.read_text(encoding="utf-8"))

    def test_each_names_the_example_that_it_ports_and_its_version(self) -> None:
        names = r'"""[\w/.]+\.py of (claude-agent-sdk|openai-agents|pydantic-ai) \d+\.\d+\.\d+: .+\n'
        for path in sorted((ROOT / "examples" / "ports").glob("*_*.py")):
            with self.subTest(path.name):
                self.assertRegex(path.read_text(encoding="utf-8"), f"^{names}")


if __name__ == "__main__":
    unittest.main()
