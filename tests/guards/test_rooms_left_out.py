"""Without an optional room, an installation loses the features of that room and nothing else."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from functools import cached_property
from pathlib import Path

from openagentic_sdk.ground.rooms import OPTIONAL_ROOMS
from tests.guards.source import PACKAGE, ROOT
from tests.size import UNFINISHED, full_size

SCRIPT = [{"text": "Tea."}]
PROJECT = str(ROOT / "fixtures" / "projects" / "checklist")
# For each room, commands that need it, and commands of the same family that work without it.
NEEDS = {
    "fleet": (["fleet", "list"], ["fleet", "--help"], ["fleet", "work", "--agents", "a.toml"]),
    "server": (["serve", "--agents", "a.toml"], ["mcp", "serve", "--agents", "a.toml"], ["view", "--all"], ["acp"]),
    "server.acp": (["acp"],),
    "evals": (["eval", "suite.toml"], ["eval", "show", "x"]),
    "viewer": (["view"], ["export", "--format", "record"]),
    "parts.mcp": (["mcp", "list"], ["mcp", "test"], ["mcp", "--help"]),
    "cli.screen": (["chat"],),
}
WORKING = (
    ["--help"],
    ["sessions", "list"],
    ["sessions", "show"],
    ["completion", "bash"],
    ["run", "--help"],
    ["sessions", "cost"],
    ["verify"],
    ["export"],
    ["replay"],
    ["skills", "list"],
    ["plugins", "list"],
    ["trust", "list"],
)
FIRST = 2  # these are tried without each room in turn, the others only without all of them
# Modules that need another optional room than their own; importing them is up to the code that needs them.
BETWEEN = {
    "fleet": {"server.fleet_desk"},
    "evals": {"viewer.evals"},
    "parts.mcp": {"server.mcp", "server.mcp_stdio"},
}
QUERY = """
import asyncio, importlib, json, pkgutil, sys
import openagentic_sdk
from openagentic_sdk import *

async def ask():
    options = OpenAgenticOptions(provider=ScriptedProvider(["Tea."]), model="scripted", session_store=MemorySessionStore(),
        labels="guard")
    return [event.type async for event in query(prompt="go", options=options)][-1]

from openagentic_sdk.testing import ScriptedProvider
missing = {}
for name in openagentic_sdk._HOMES:
    try:
        getattr(openagentic_sdk, name)
    except ImportError as error:
        missing[name] = str(error)
servers = ""
try:
    run_sync(prompt="go", options=OpenAgenticOptions(provider=ScriptedProvider(["Tea."]), model="scripted",
        session_store=MemorySessionStore(), mcp_servers={"small": {"command": "true"}}, timeout_s=120))
except openagentic_sdk.OptionsError as error:
    servers = str(error)
rooms = {}
for room in sys.argv[1:]:
    try:
        importlib.import_module("openagentic_sdk." + room)
    except openagentic_sdk.errors.RoomMissingError as error:
        rooms[room] = str(error)
between = {}
for room in sys.argv[1:]:
    if room not in rooms:
        package = importlib.import_module("openagentic_sdk." + room)
        for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            try:
                importlib.import_module(found.name)
            except openagentic_sdk.errors.RoomMissingError as error:
                between[found.name.removeprefix("openagentic_sdk.")] = error.room

async def status(path):
    from openagentic_sdk.server.asgi import app
    sent = []
    async def send(message):
        sent.append(message)
    async def receive():
        return {"type": "http.request", "body": b""}
    asked = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "scheme": "http",
        "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1),
        "headers": [(b"host", b"127.0.0.1"), (b"authorization", b"Bearer " + b"t" * 40)]}
    await app(None, store=MemorySessionStore(), auth="t" * 40)(asked, receive, send)
    return sent[0]["status"], b"room is not installed" in sent[1]["body"]

pages = {} if "server" in rooms else {path: asyncio.run(status(path)) for path in ("/", "/v1/sessions", "/metrics")}
try:
    import openagentic_sdk.nowhere
except ModuleNotFoundError as error:
    assert type(error) is ModuleNotFoundError, error
hidden = sorted(set(openagentic_sdk._HOMES) - set(openagentic_sdk.__all__))
print(json.dumps([asyncio.run(ask()), hidden, missing, servers, rooms, between, pages]))
"""


# Runs one command per input line in a fork, so that all of them share what one interpreter has imported.
COMMANDS = """
import contextlib, gc, importlib, json, os, pkgutil, runpy, sys, tempfile
import openagentic_sdk.assemble, openagentic_sdk.cli.commands, openagentic_sdk.testing.scripted
for found in pkgutil.iter_modules(openagentic_sdk.cli.commands.__path__, "openagentic_sdk.cli.commands."):
    with contextlib.suppress(openagentic_sdk.errors.RoomMissingError):
        importlib.import_module(found.name)
gc.freeze()
for line in sys.stdin:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            for fd, file in enumerate((open(os.devnull, "rb"), out, err)):
                os.dup2(file.fileno(), fd)
            sys.argv[1:] = json.loads(line)
            code = 0
            try:
                runpy.run_module("openagentic_sdk", run_name="__main__", alter_sys=True)
            except SystemExit as end:
                code = end.code
            sys.stdout.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps([code, *(os.pread(file.fileno(), 10_000_000, 0).decode() for file in (out, err))]), flush=True)
"""


class Installation:
    """A copy of the package without some of its rooms, with a home and a project that configures MCP servers."""

    def __init__(self, test, *left_out):
        folder = Path(test.enterContext(tempfile.TemporaryDirectory()))
        self.root = folder / "lib"
        shutil.copytree(ROOT / PACKAGE, self.root / PACKAGE, ignore=UNFINISHED)
        for room in left_out:
            shutil.rmtree(self.root / PACKAGE / room.replace(".", "/"), ignore_errors=True)
        self.home, self.project = folder / "home", folder / "project"
        self.home.mkdir()
        shutil.copytree(PROJECT, self.project)
        self.script = str(folder / "script.json")
        Path(self.script).write_text(json.dumps(SCRIPT))
        (self.project / ".mcp.json").write_text('{"mcpServers": {"small": {"command": "true"}}}')
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        self.environ = {
            **kept,
            "HOME": str(self.home),
            "PYTHONPATH": str(self.root),
            "OPENAGENTIC_SDK_HOME": str(self.home),
        }

        self._test = test

    @cached_property
    def _commands(self):
        # -S: an editable installation on the path would still provide the removed rooms.
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        commands = subprocess.Popen([sys.executable, "-S", "-c", COMMANDS], env=self.environ, cwd=self.project, **pipes)
        self._test.addCleanup(commands.communicate)
        return commands

    def python(self, *words):
        return subprocess.run(
            [sys.executable, "-S", *words],
            capture_output=True, text=True, env=self.environ, cwd=self.project, stdin=subprocess.DEVNULL, timeout=300,
        )  # fmt: skip

    def command(self, *words):
        self._commands.stdin.write(json.dumps(words) + "\n")
        self._commands.stdin.flush()
        code, out, err = json.loads(self._commands.stdout.readline())
        return subprocess.CompletedProcess(words, code, out, err)


@full_size
@unittest.skipUnless(hasattr(os, "fork"), "the commands need fork")
class RoomsLeftOut(unittest.TestCase):
    def check(self, *left_out):
        here = Installation(self, *left_out)
        gone = [room for room in OPTIONAL_ROOMS if any(f"{room}.".startswith(f"{out}.") for out in left_out)]

        asked = here.python("-c", QUERY, *OPTIONAL_ROOMS)
        self.assertEqual((asked.returncode, asked.stderr), (0, ""))
        last, hidden, missing, servers, rooms, between, pages = json.loads(asked.stdout)
        self.assertEqual(last, "result")
        has_servers = "parts.mcp" not in gone
        self.assertEqual((hidden, list(missing)), ([], []) if has_servers else (["McpServer"], ["McpServer"]))
        self.assertIn("" if has_servers else "the parts.mcp room is not installed", servers)
        self.assertEqual(bool(servers), not has_servers)
        self.assertEqual(list(rooms), gone)
        needing = {module: room for room in gone for module in BETWEEN.get(room, ())}
        self.assertEqual(
            between, {m: r for m, r in needing.items() if not any(m.startswith(f"{out}.") for out in gone)}
        )
        if "server" not in gone:
            self.assertEqual(pages["/v1/sessions"], [200, False])
            self.assertEqual(pages["/"], [501, True] if "viewer" in gone else [200, False])
            self.assertEqual(pages["/metrics"], [200, False])

        ran = here.command("run", "--script", here.script, "hi", "--json")
        self.assertEqual((ran.returncode, ran.stderr.count("Traceback")), (0, 0), ran.stderr)
        notices = [event for event in map(json.loads, ran.stdout.splitlines()) if event["type"] == "system.notice"]
        messages = [event["message"] for event in notices if "parts.mcp room is not installed" in event["message"]]
        self.assertEqual(len(messages), 0 if has_servers else 1, notices)

        for words in WORKING if len(left_out) > 1 else WORKING[:FIRST]:
            with self.subTest(" ".join(words)):
                done = here.command(*words)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
        with self.subTest("doctor"):
            done = here.command("doctor")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual("the parts.mcp room is not installed" in done.stdout, not has_servers)
        for room in gone:
            for words in NEEDS[room]:
                with self.subTest(" ".join(words)):
                    done = here.command(*words)
                    self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
                    self.assertRegex(done.stderr, r"^openagentic-sdk: the [a-z.]+ room is not installed, which .* need")

    def test_every_optional_room_has_commands_that_need_it(self):
        self.assertEqual(set(NEEDS), set(OPTIONAL_ROOMS))

    @full_size
    def test_a_room_that_has_lost_its_files_counts_as_missing(self):
        here = Installation(self, "fleet")
        (here.root / PACKAGE / "fleet" / "__pycache__").mkdir(parents=True)
        done = here.command("fleet", "list")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
        self.assertIn("the fleet room is not installed", done.stderr)

    @full_size
    def test_all_of_them_can_be_left_out_at_once(self):
        self.check(*OPTIONAL_ROOMS)


def _check_of(room):
    return lambda self: self.check(room)


for _room in OPTIONAL_ROOMS:
    setattr(RoomsLeftOut, f"test_{_room.replace('.', '_')}_can_be_left_out", _check_of(_room))

if __name__ == "__main__":
    unittest.main()
