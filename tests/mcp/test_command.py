"""`openagentic-sdk mcp ...` from the outside, and a run with the servers that it configured."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from openagentic_sdk.cli.commands.trust import ask_about_servers
from openagentic_sdk.cli.exits import FAILED, OK, USAGE
from openagentic_sdk.cli.output.terminal import Screen
from openagentic_sdk.options import OpenAgenticOptions
from tests.cli.test_main import ROOT, CommandCase
from tests.mcp.oauth.support import Place, reply
from tests.pythons import run_python
from tests.size import full_size

SMALL = str(Path(__file__).with_name("small_server.py"))


class McpCase(CommandCase):
    def setUp(self) -> None:
        super().setUp()
        self.project = self.folder / "project"
        (self.project / ".git").mkdir(parents=True)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.project)
        self.tools({"name": "look", "description": "Look around.", "inputSchema": {"type": "object"}})

    def tools(self, *tools: dict[str, Any]) -> None:
        (self.folder / "tools.json").write_text(json.dumps(tools))

    def entry(self, *more: str) -> dict[str, Any]:
        return {
            "command": sys.executable,
            "args": ["-S", SMALL, str(self.folder / "tools.json"), *more],
            "env": {"A": "b"},
        }

    def name_in_project(self, **servers: Any) -> None:
        (self.project / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))

    def mcp(self, *argv: str, code: int = OK) -> str:
        got, out, err = self.command("mcp", *argv)
        self.assertEqual((got, "Traceback" in err), (code, False), out + err)
        return out + err

    def json(self, *argv: str, code: int = OK) -> Any:
        return json.loads(self.mcp(*argv, "--json", code=code))


class EditTest(McpCase):
    def test_a_server_is_added_shown_and_removed(self) -> None:
        self.mcp("add", "-e", "KEY=a=b", "one", "-s", "user", "--", "run-it", "-y", "--", "--flag")
        shown = self.json("get", "one")
        self.assertEqual((shown["scope"], shown["state"]), ("user", "ready"))
        self.assertEqual(shown["definition"], ["run: run-it -y -- --flag", "with the variable KEY=[hidden]"])
        self.mcp("add", "two", "https://example.com/mcp", "-H", "Authorization: Bearer secret-word")
        self.mcp("add-json", "three", '{"command": "x"}', "-s", "project")
        listed = self.mcp("list")
        for words in ("one [user]  run: run-it", "two [local]  connect to: https://example.com/mcp", "three [project]"):
            self.assertIn(words, listed)
        everything = listed + self.mcp("list", "--json") + self.mcp("get", "two")
        self.assertNotIn("secret-word", everything)
        self.assertIn("send the header Authorization, from the file", everything)
        for name in ("one", "two", "three"):
            self.mcp("remove", name)
        self.assertEqual(self.json("list")["servers"], [])

    def test_an_unusable_entry_is_reported_with_its_remedy(self) -> None:
        self.mcp("add", "there", "--", "x")
        for argv, wanted in (
            (["add", "there", "--", "y"], "mcp remove there"),
            (["add", "a__b", "--", "x"], "not a valid name of an MCP server"),
            (["add", "a"], "--help shows examples"),
            (["add", "a", "-H", "X: y", "--", "x"], "headers and logins are for a URL"),
            (["add", "a", "-e", "no-joint", "--", "x"], "not of the form -e NAME=VALUE"),
            (["add", "a", "-t", "http", "--", "x"], "accepts one URL"),
            (["add", "a", "https://h/x", "-e", "A=b"], "accepts one URL and no -e"),
            (["add", "a", "https://h/x", "--callback-port", "70000"], "a port from 1 to 65535"),
            (["add-json", "a", "{"], "not JSON"),
            (["add-json", "a", '{"command": 5}'], "command must be"),
            (["get", "nothing"], "the servers here are there"),
            (["login", "there"], "a program on this machine"),
            (["test", "nothing"], "unknown server 'nothing'"),
        ):
            with self.subTest(argv):
                self.assertIn(wanted, self.mcp(*argv, code=USAGE))
        self.mcp("remove", "nothing", code=FAILED)
        self.assertIn("is in a file that others read", self.mcp("add", "p", "-s", "project", "-e", "K=v", "--", "x"))
        self.mcp("add", "p", "--", "x")
        self.assertIn("choose one with --scope", self.mcp("remove", "p", code=USAGE))

    def test_help_has_examples(self) -> None:
        for action in ("add", "add-json", "trust", "login", "serve"):
            with self.subTest(action):
                self.assertIn("openagentic-sdk mcp", self.mcp(action, "--help"))


class LoginTest(McpCase):
    @full_size
    def test_a_person_logs_in_with_a_browser_and_out_again(self) -> None:
        place = Place()
        self.addCleanup(place.close)
        self.mcp("add", "docs", f"{place.url}/mcp")
        visit = self.folder / "visit.py"
        visit.write_text("import sys, urllib.request\nurllib.request.urlopen(sys.argv[1], timeout=300).read()\n")
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "BROWSER": f"{sys.executable} {visit} %s"}
        command = ("-m", "openagentic_sdk", "mcp", "login", "docs", "--json", "--scope", "read write")
        done = run_python(*command, text=True, env=environ)
        self.assertEqual(done.returncode, OK, done.stderr)
        said = json.loads(done.stdout)
        self.assertEqual((said["issuer"], said["scope"]), (place.url, "read write"))
        self.assertIn(f"Log in to {place.url.removeprefix('http://')}", done.stderr)
        secrets = [*place.accepted, *(grant for grant in place.grants if grant.startswith("refresh"))]
        everything = done.stdout + done.stderr + self.mcp("list", "--json") + self.mcp("get", "docs", "--json")
        self.assertEqual([secret for secret in secrets if secret in everything], [])
        self.assertEqual(len(secrets), 2)
        self.mcp("logout", "docs")
        self.assertIn("there was no login", self.mcp("logout", f"{place.url}/mcp", code=FAILED))
        self.assertIn("mcp login docs", self.mcp("test", "docs", code=FAILED))


class ConsentTest(McpCase):
    def run_once(self, *flags: str) -> list[dict[str, Any]]:
        script = self.script({"tool_calls": [{"name": "mcp__small__look", "arguments": {}}]}, "Done.")
        allowed = ("--allow", "mcp__small__look")
        _, out, err = self.command("run", "Go.", "--script", script, "--json", *allowed, *flags)
        self.assertNotIn("Traceback", err)
        return [json.loads(line) for line in out.splitlines()]

    @full_size
    def test_a_projects_server_starts_after_consent_and_again_after_no_other_word(self) -> None:
        log = self.folder / "log"
        self.name_in_project(small=self.entry(str(log)))
        events = self.run_once("--trust")
        self.assertFalse(log.exists())
        self.assertIn("pending", [event["state"] for event in events if event["type"] == "mcp.server"])
        notices = [event["message"] for event in events if event["type"] == "system.notice"]
        self.assertTrue(any("openagentic-sdk mcp trust small" in text for text in notices), notices)
        digest = self.json("get", "small", code=FAILED)["digest"]
        self.assertIn("look at it again", self.mcp("trust", "small", "--digest", "0" * 64, code=USAGE))
        self.assertFalse(log.exists())
        said = self.mcp("trust", "small", "--digest", digest)
        for words in ("with the variable A=b", "look: Look around.", "small is approved"):
            self.assertIn(words, said)
        results = [event["output"] for event in self.run_once() if event["type"] == "tool.result"]
        self.assertIn("look was called, A=b", json.dumps(results))
        count = len(log.read_text().splitlines())
        self.name_in_project(small={**self.entry(str(log)), "env": {"A": "c"}})
        self.run_once()
        self.assertEqual(len(log.read_text().splitlines()), count)
        self.assertEqual(self.json("get", "small", code=FAILED)["changes"][:1], ["- with the variable A=b"])

    def test_the_person_at_the_terminal_is_asked_before_a_run(self) -> None:
        self.name_in_project(small=self.entry(), other={"command": "x\u202ey", "args": ["a b", "\x1b[2J"]})
        options = OpenAgenticOptions(cwd=self.project, project_dir=self.project, setting_sources=("project",))
        for answers, decided in (
            ("", ["pending"] * 2),
            ("\nmaybe\nno\ny\n", ["refused", "ready"]),
            ("", ["refused", "ready"]),
        ):
            shown, before, sys.stdin = io.StringIO(), sys.stdin, io.StringIO(answers)
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    ask_about_servers(options, Screen(shown))
            finally:
                sys.stdin = before
            self.assertEqual([row["state"] for row in self.json("list")["servers"]], decided)
            if answers:
                self.assertIn(r"run: 'x\u202ey' 'a b' '\x1b[2J'", shown.getvalue())
                self.assertIn("with the variable A=b", shown.getvalue())
        self.assertEqual(shown.getvalue(), "")

    @full_size
    def test_a_chat_keeps_its_servers_from_turn_to_turn(self) -> None:
        starts = self.folder / "starts"
        started = f'echo started >> {starts}; exec "$0" "$@"'
        self.mcp("add", "small", "--", "/bin/sh", "-c", started, sys.executable, SMALL, str(self.folder / "tools.json"))
        look = {"tool_calls": [{"name": "mcp__small__look", "arguments": {}}]}
        script = self.folder / "script.json"
        script.write_text(json.dumps([look, "One.", look, "Two.", look, "Three."]))
        command = ["-m", "openagentic_sdk", "chat", "--script", str(script), "--allow", "mcp__small"]
        words = "look\nlook again\n/clear\nlook anew\n"
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = run_python(*command, cwd=self.project, env=environ, input=words, text=True, timeout=300)
        self.assertEqual((done.returncode, "Three." in done.stdout), (0, True), done.stdout + done.stderr)
        self.assertEqual(starts.read_text(), "started\n", done.stdout)

    @full_size
    def test_a_run_without_servers_loads_nothing_of_the_room(self) -> None:
        code = (
            "import sys; from openagentic_sdk.cli.main import main; main(sys.argv[1:]); "
            "print([name for name in sys.modules if name.startswith('openagentic_sdk.parts.mcp')])"
        )
        argv = ["run", "Go.", "--script", self.script("Done."), "--store", "memory:"]
        done = subprocess.run(
            [sys.executable, "-c", code, *argv],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.assertEqual(done.stdout.splitlines()[-1:], ["[]"], done.stdout + done.stderr)

    def test_doctor_tries_what_was_agreed_to_and_nothing_else(self) -> None:
        log = self.folder / "log"
        self.name_in_project(small=self.entry(str(log)))
        code, out, _ = self.command("doctor", "--json")
        self.assertEqual([(row["name"], row["works"]) for row in json.loads(out)["servers"]], [("small", None)])
        self.assertFalse(log.exists())
        self.mcp("trust", "small")
        code, out, _ = self.command("doctor")
        self.assertEqual((code, "server: yes small: stdio, 2025-11-25, 1 tools" in out), (OK, True), out)

    @full_size
    def test_tools_that_change_wait_for_consent_too(self) -> None:
        self.name_in_project(small=self.entry())
        self.mcp("trust", "small")
        self.tools({"name": "look", "description": "Look around, and tell everybody."}, {"name": "new"})
        (tried,) = self.json("test", "small")["servers"]
        self.assertEqual([left["code"] for left in tried["left_out"]], ["pin", "pin"])
        self.assertEqual(
            [(change["tool"], change["is_new"]) for change in tried["changes"]], [("look", False), ("new", True)]
        )
        results = [event for event in self.run_once() if event["type"] == "tool.result"]
        self.assertEqual(results[0]["is_error"], True)
        self.assertIn("+description: Look around, and tell everybody.", self.mcp("trust", "small"))
        self.assertEqual(len(self.json("test", "small")["servers"][0]["tools"]), 2)
        self.assertIn("is no longer approved", self.mcp("trust", "small", "--revoke"))
        self.assertEqual(self.json("get", "small", code=FAILED)["state"], "pending")
        self.assertIn("is not approved", self.mcp("trust", "small", "--revoke"))

    def test_a_server_of_ones_own_needs_no_approval_that_could_be_revoked(self) -> None:
        self.mcp("add", "mine", "-s", "user", "--", "no-such-program-anywhere")
        self.assertIn("your own server, which needs no approval", self.mcp("trust", "mine", "--revoke"))

    def test_a_server_that_does_not_start_is_reported_with_its_reason(self) -> None:
        self.mcp("add", "gone", "-s", "user", "--", "no-such-program-anywhere")
        self.mcp("add", "dies", "-s", "user", "--", sys.executable, "-c", "import sys; sys.exit('\\x1b[31mno luck')")
        self.mcp("add", "off", "-s", "user", "--", "x")
        said = self.mcp("test", code=FAILED)
        self.assertIn("no such program", said.lower().replace("is not a program", "no such program"))
        self.assertIn("no luck", said)
        self.assertNotIn("\x1b", said)

    @full_size
    def test_the_secrets_that_a_server_receives_are_in_no_error_and_no_log(self) -> None:
        word = "sesame-open-1234567890"
        place = Place()
        self.addCleanup(place.close)
        echo = {"error": {"code": -32000, "message": f"what is {word}?"}, "id": 1, "jsonrpc": "2.0", "said": word}
        place.routes["/mcp"] = lambda said: reply(500, echo)
        place.routes["/plain"] = lambda said: (500, {}, b"x" * 190 + f"Bearer {word}".encode())
        os.environ["T"] = word
        entry = {**self.entry(str(self.folder / "log"), "--token", "${T}"), "env": {"A": "${T}"}}
        servers = {
            "small": entry,
            "dies": {**entry, "env": {"A": "${T}", "DIES": "1"}},
            "http": {"type": "http", "url": f"{place.url}/mcp", "headers": {"Authorization": "Bearer ${T}"}},
            "plain": {"type": "http", "url": f"{place.url}/plain", "headers": {"X-Key": "${T}"}},
        }
        for name, each in servers.items():
            self.mcp("add-json", name, json.dumps(each), "-s", "user")
        said = self.mcp("test", code=FAILED) + self.mcp("test", "--json", code=FAILED) + self.mcp("list", "--json")
        events = json.dumps(self.run_once())
        self.assertIn("cannot go on with [masked: ", said)
        self.assertIn("what is [masked: ", said)
        self.assertIn("look was called, A=[masked: ", events)
        for text in (said, events):
            self.assertNotIn(word[:12], text)

    def test_no_tool_reads_logins_or_the_servers_token_or_changes_what_was_agreed_to(self) -> None:
        self.mcp("add", "one", "-s", "user", "--", "x")
        kept = self.folder / ".openagentic-sdk" / "mcp"
        (kept / "logins").mkdir()
        (kept / "logins" / "a.json").write_text("a-token-of-somebody")
        (kept.parent / "server.token").write_text("a-token-of-somebody")
        calls = [
            {"name": "Read", "arguments": {"file_path": str(kept.parent / "server.token")}},
            {"name": "Read", "arguments": {"file_path": str(kept / "logins" / "a.json")}},
            {"name": "Bash", "arguments": {"command": f"cat {kept}/logins/a.json"}},
            {"name": "Write", "arguments": {"file_path": str(kept / "consent.json"), "content": "{}"}},
        ]
        script = self.script({"tool_calls": calls}, "Done.")
        _, out, _ = self.command("run", "Go.", "--script", script, "--json", "--permission-mode", "bypass")
        results = [event for event in map(json.loads, out.splitlines()) if event["type"] == "tool.result"]
        self.assertEqual([event["outcome"] for event in results], ["denied"] * 4)
        self.assertNotIn("a-token-of-somebody", out)
