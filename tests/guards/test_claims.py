"""Claims of the docs that no other test checks: figures, modes, masking, and the commands, flags and names they mention."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import re
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk import MemorySessionStore, OpenAgenticOptions, PermissionGate, run_sync, tool
from openagentic_sdk.cli.commands.completion import _whole_parser
from openagentic_sdk.cli.slash import COMMANDS as SLASH_COMMANDS
from openagentic_sdk.fleet import record, worker, workspace
from openagentic_sdk.kernel import settle
from openagentic_sdk.parts import custom, undo
from openagentic_sdk.parts.mcp import seat, server_config
from openagentic_sdk.parts.record.async_store import AsyncStore
from openagentic_sdk.serialization import dumps_event
from openagentic_sdk.server import call, connection, guard, http1, mcp_tools, streams
from openagentic_sdk.server.acp import buffers
from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.stores import holders
from openagentic_sdk.sessions.stores.postgres import link as postgres_link
from openagentic_sdk.sessions.stores.redis import link as redis_link
from openagentic_sdk.skills.ledger import words
from openagentic_sdk.testing import ScriptedProvider
from openagentic_sdk.tools.code import CodeLimits
from openagentic_sdk.tools.memory import store as memory_store

from .source import PACKAGE, ROOT

DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), ROOT / "README.md", ROOT / "SECURITY.md"]
MIB = 1 << 20
WORDS = ("nought", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
# A sentence of a page, and the code's value of the figure in it.
FIGURES: tuple[tuple[str, str, float], ...] = (
    ("editors", r"returns no text within (\d+) s", buffers.WAIT_S),
    ("mcp", r"`connect_timeout_s` (\d+)", server_config.CONNECT_TIMEOUT_S),
    ("mcp", r"`idle_timeout_s` (\d+)", server_config.IDLE_TIMEOUT_S),
    ("mcp", r"`call_timeout_s` (\d+)", server_config.CALL_TIMEOUT_S),
    ("mcp", r"after each quick death, and no longer after (\w+) of them", seat.MAX_QUICK_DEATHS),
    ("mcp", r"longer than `--wait-s` \((\d+) s\)", mcp_tools.WAIT_S),
    ("serving", r"a ticket that works once within (\w+) minutes", guard.TICKET_S / 60),
    ("serving", r"heads are limited to (\d+) s", connection.HEAD_S),
    ("serving", r"heads are limited to \d+ s and (\d+) KiB", http1.MAX_HEAD_BYTES / 1024),
    ("serving", r"KiB, bodies to (\d+) MiB", call.MAX_BODY_BYTES / MIB),
    ("serving", r"a reader that is slow is dropped after (\d+) s", call.SEND_S),
    ("serving", r"silence of up to\s+(\d+) s between comments", call.COMMENT_S),
    ("serving", r"streams end by themselves after (\w+) minutes", streams.MAX_STREAM_S / 60),
    ("fleet", r"continues within the lease \((\d+) s\)", worker.LEASE_S),
    ("fleet", r"or hand-overs;\s+after (\w+) attempts the run is `failed`", record.MAX_ATTEMPTS),
    ("fleet", r"A patch of more than (\d+) MiB is not kept", workspace.MAX_PATCH_BYTES / MIB),
    ("stores", r"opens at most (\d+) connections", postgres_link.MAX_CONNECTIONS),
    ("stores", r"opens at most (\d+) connections", redis_link.MAX_CONNECTIONS),
    ("stores", r"the lease of a process lasts (\d+) s", holders.LEASE_S),
    ("stores", r"and is renewed every (\d+)\.", holders.BEAT_S),
    (
        "stores",
        r"async services: (\w+) operations",
        sum(map(asyncio.iscoroutinefunction, vars(AsyncStore).values())),
    ),
    ("stores", r"implements its (\w+)\s+abstract methods", len(SessionStore.__abstractmethods__)),
    ("undo", r"more than (\d+) MiB are not kept", undo._MAX_KEPT_BYTES / MIB),
    ("undo", r"nor more than (\d+) of one call", undo._MAX_KEPT_FILES),
    ("context", r"limits calls \((\d+)\)", CodeLimits().max_calls),
    ("context", r"those of the calls\s+\((\d+)\)", CodeLimits().seconds),
    ("context", r"memory \((\d+) GiB\)", CodeLimits().memory_bytes / (1 << 30)),
    ("context", r"the folder \((\d+) MiB;", CodeLimits().folder_bytes / MIB),
    ("context", r"output \((\d+) MiB\)", CodeLimits().output_bytes / MIB),
    ("context", r"A note has at most ([\d,]+) bytes", memory_store.MAX_TEXT_BYTES),
    ("parts", r"as a JSON value of at most (\d+) KiB", custom.MAX_STATE_BYTES / 1024),
    ("parts", r"within its `timeout_s` \((\d+)\)", custom.CustomPart.timeout_s),
    ("kernel", r"or `idempotent`,\s+(\w+) times at most", settle.MAX_ATTEMPTS),
)
# The table of modes in docs/permissions.md for a call without a rule: y runs, a asks, n is denied.
MODES = {
    "default": "y a y a y a a y",
    "acceptEdits": "y a y y y y a y",
    "plan": "y a y n y n a y",
    "dontAsk": "y n y n y n n n",
    "prompt": "a a a a a a a y",
    "deny": "n n n n n n n n",
    "bypass": "y y y y y y y y",
    "bypassPermissions": "y y y y y y y y",
}
CALLS = (
    ("Read", {"file_path": "notes.txt"}),
    ("Read", {"file_path": "/etc/hostname"}),
    ("TodoWrite", {"todos": []}),
    ("Write", {"file_path": "new.txt", "content": "x"}),
    ("Bash", {"command": "cat notes.txt"}),
    ("Bash", {"command": "touch new.txt"}),
    ("WebFetch", {"url": "https://example.com"}),
    ("AskUserQuestion", {"questions": []}),
)


# Methods of variables, and a file.
OTHER_NAMES = {"fleet.answer", "fleet.cancel", "server.token"}


@tool(effect="read")
def echo(text: str) -> str:
    """Return the text."""
    return text


def code_of(page: Path) -> list[str]:
    """The inline code of a page, and each line of its command blocks, without comments."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:text|bash|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return [*inline, *(line.partition(" #")[0] for block in blocks for line in block.splitlines())]


def actions_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(next(found, {}))


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    own = {flag for action in parser._actions for flag in action.option_strings}
    return own.union(*map(flags_of, actions_of(parser).values()))


class Claims(unittest.TestCase):
    def test_the_figures_of_the_pages_are_those_of_the_code(self) -> None:
        for page, pattern, figure in FIGURES:
            with self.subTest(page=page, sentence=pattern):
                text = " ".join((DOCS / f"{page}.md").read_text(encoding="utf-8").split())
                found = re.search(pattern, text)
                assert found is not None, "the sentence is gone: remove it from the list"
                figure_text = found[1].replace(",", "")
                self.assertEqual(
                    float(WORDS.index(figure_text) if figure_text in WORDS else figure_text), float(figure)
                )

    def test_every_command_and_flag_that_a_page_writes_out_exists(self) -> None:
        whole = _whole_parser()
        commands, flags = actions_of(whole), flags_of(whole)
        lost = []
        for page in PAGES:
            for code in code_of(page):
                lost += [f"{page.name}: {flag}" for flag in re.findall(r"^--[a-z][\w-]*", code) if flag not in flags]
                for line in re.findall(r"(?:^|[$ ])openagentic[-_]sdk ([a-z][^|;]*)", code):
                    name, *words = re.split(r" -- |\s{2,}", line)[0].split()
                    parser = commands.get(name.rstrip('"'))
                    if parser is None:
                        lost.append(f"{page.name}: {code}")
                        continue
                    known = flags_of(actions_of(parser).get(words[0], parser) if words else parser)
                    lost += [f"{page.name}: {code}: {word}" for word in words if word[:2] == "--" and word not in known]
        self.assertEqual(lost, [])

    def test_every_command_that_the_page_of_the_terminal_names_is_one_of_the_chats(self) -> None:
        named = set(re.findall(r"`(/[a-z]+)`", (DOCS / "terminal.md").read_text(encoding="utf-8")))
        self.assertEqual(named - {"/commands"} - set(SLASH_COMMANDS), set())

    def test_every_module_that_a_page_names_is_there(self) -> None:
        events = (DOCS / "events.md").read_text(encoding="utf-8")
        rooms = {path.name for path in (ROOT / PACKAGE).iterdir() if path.is_dir()}
        lost = []
        for page in PAGES:
            text = page.read_text(encoding="utf-8")
            for name in re.findall(r"`(?:openagentic_sdk\.)?([a-z_]+(?:\.\w+)+)(?:\(.*?\))?`", text):
                is_ours = name.partition(".")[0] in rooms and name not in OTHER_NAMES | words("setting")
                if is_ours and not self.is_there(name) and f"\n## {name}\n" not in events:
                    lost.append(f"{page.name}: {name}")
        self.assertEqual(lost, [])

    def is_there(self, name: str) -> bool:
        """Whether a dotted name is a module of the package, or a name in one."""
        module, found, missing = name, object(), object()
        while module:
            try:
                found = importlib.import_module(f"{PACKAGE}.{module}")
                break
            except ImportError:
                module = module.rpartition(".")[0]
        for part in name.removeprefix(module).split(".")[1:]:
            found = getattr(found, part, missing)
        return found is not missing

    def test_the_table_of_modes_states_the_decision_about_a_call_without_a_rule(self) -> None:
        page = (DOCS / "permissions.md").read_text(encoding="utf-8")
        for mode, outcomes in MODES.items():
            self.assertIn(f"`{mode}`", page)
            with self.subTest(mode):
                self.assertEqual(asyncio.run(self.judged(mode)), outcomes)

    async def judged(self, mode: str, **rules: list[str]) -> str:
        asked: list[str] = []

        async def answer(question: object) -> str:
            asked.append("a")
            return "no"

        gate = PermissionGate(permission_mode=mode, user_answerer=answer, **rules)  # type: ignore[arg-type]
        letters = []
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "notes.txt").touch()
            for name, arguments in CALLS:
                asked.clear()
                approval = await gate.approve(name, arguments, {"cwd": folder, "workspace_roots": [folder]})
                letters.append(asked[0] if asked else "y" if approval else "n")
        return " ".join(letters)

    def test_an_ask_rule_asks_in_bypass_too_but_not_where_the_mode_forbids_or_asks_nobody(self) -> None:
        for mode, wanted in (("bypass", "a"), ("acceptEdits", "a"), ("dontAsk", "n"), ("plan", "n"), ("deny", "n")):
            with self.subTest(mode):
                self.assertEqual(asyncio.run(self.judged(mode, ask=["Write"])).split()[3], wanted)

    def test_secrets_are_masked_in_all_that_is_stored_but_the_input_of_calls(self) -> None:
        key = "sk-ant-api03-" + "Ab3dEf6hIj9k" * 6
        turn = {"text": f"It is {key}", "tool_calls": [{"name": "echo", "arguments": {"text": key}}]}
        options = OpenAgenticOptions(
            provider=ScriptedProvider([turn, f"Still {key}"]),
            model="scripted",
            tools=[echo],
            allowed_tools=["echo"],
            session_store=MemorySessionStore(),
        )
        result = run_sync(prompt=f"Use {key}", options=options)
        self.assertEqual({event.type for event in result.events if key in dumps_event(event)}, {"tool.use"})


if __name__ == "__main__":
    unittest.main()
