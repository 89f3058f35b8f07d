"""The chat, operated through a pseudo-terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
import unittest
from pathlib import Path
from typing import Any

from openagentic_sdk import answer_question
from openagentic_sdk.cli.commands.chat import _stop
from openagentic_sdk.cli.output.turn import Stopped, on_stop_signals
from openagentic_sdk.events import Result, SystemInit, ToolUse, UserMessage, UserQuestion
from openagentic_sdk.sessions.store import FileSessionStore
from tests.size import full_size
from tests.waiting import until

from ..pythons import Python

try:
    import pty
except ImportError:  # Windows has no such terminals
    pty = None  # type: ignore[assignment]

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120.0  # generous, so that no test fails on a busy machine
CTRL_C, CTRL_D = b"\x03", b"\x04"


@unittest.skipIf(os.name == "nt", "Windows has no SIGHUP")
class IgnoredSignals(unittest.TestCase):
    def test_a_signal_that_comes_during_a_callback_of_the_event_loop_ends_it(self) -> None:
        async def wait() -> None:
            asyncio.get_running_loop().call_soon(_stop, signal.SIGTERM)
            await asyncio.Event().wait()

        with self.assertRaises(Stopped):
            asyncio.run(wait())

    def test_a_signal_that_the_process_ignores_stays_ignored(self) -> None:
        came: list[int] = []
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        try:
            with on_stop_signals(came.append):
                signal.raise_signal(signal.SIGHUP)
                signal.raise_signal(signal.SIGTERM)
            self.assertEqual((came, signal.getsignal(signal.SIGHUP)), ([signal.SIGTERM], signal.SIG_IGN))
        finally:
            signal.signal(signal.SIGHUP, before)


class Terminal:
    """A command on a terminal; `read_until` waits for its output."""

    def __init__(self, arguments: list[str], environ: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        streams = {"stdin": slave, "stdout": slave, "stderr": slave}
        # A separate session with this terminal, so that Ctrl-C reaches only the command.
        self.process = Python(*arguments, cwd=ROOT, env=environ, start_new_session=True, **streams)
        os.close(slave)
        os.set_blocking(self._master, False)
        self._seen = ""

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def read_until(self, text: str) -> str:
        """The output since the last call, up to and including `text`."""
        until(lambda: text in self._seen or self._read(), lambda: f"{text!r}; what came is {self._seen!r}", SECONDS)
        shown, _, self._seen = self._seen.partition(text)
        return shown + text

    def _read(self) -> None:  # only what is still missing: the command may have ended after its last output
        try:
            with contextlib.suppress(BlockingIOError):
                self._seen += os.read(self._master, 65536).decode("utf-8", "replace").replace("\r\n", "\n")
        except OSError as error:  # Linux reports this when the command has ended
            raise AssertionError(f"the command has ended; its output is {self._seen!r}") from error

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._master)


@unittest.skipIf(pty is None, "this system has no pseudo terminals")
class Chat(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def start(self, command: str, *turns: dict[str, Any] | str, flags: tuple[str, ...] = ()) -> Terminal:
        script = self.folder / "script.json"
        script.write_text(json.dumps({"turns": list(turns)}), encoding="utf-8")
        keep = {name: value for name, value in os.environ.items() if not name.startswith("OPENAGENTIC_")}
        environ = {**keep, "HOME": str(self.folder), "NO_COLOR": "1", "TERM": "dumb", "PYTHONPATH": str(ROOT)}
        argv = ["-m", "openagentic_sdk", command, "--script", str(script), "--cwd", str(self.folder)]
        terminal = Terminal([*argv, "--store", str(self.folder / "store"), *flags], environ)
        self.addCleanup(terminal.close)
        return terminal

    def events(self) -> list[Any]:
        store = FileSessionStore(self.folder / "store")
        (session_id,) = store.list_sessions()
        return store.read_events(session_id)

    def test_turns_share_one_session_and_ctrl_d_prints_how_to_continue(self) -> None:
        chat = self.start("chat", "Hello Ada.", {"text": "You are Ada.", "expect": {"contains": "I am Ada"}})
        chat.read_until("> ")
        chat.type(b"I am Ada\n")
        chat.read_until("Hello Ada.")
        chat.read_until("\n> ")
        chat.type(b"Who \\\n")
        chat.read_until("... ")
        chat.type(b"am I?\n")
        chat.read_until("You are Ada.")
        chat.read_until("\n> ")
        chat.type(CTRL_D)
        chat.read_until("Continue with: openagentic-sdk chat --resume ")
        self.assertEqual(chat.process.wait(SECONDS), 0)
        self.assertEqual(
            [event.text for event in self.events() if event.type == "user.message"], ["I am Ada", "Who \nam I?"]
        )

    @full_size
    def test_ctrl_c_stops_the_turn_and_keeps_the_session(self) -> None:
        call = {"text": "Waiting.", "tool_calls": [{"name": "Bash", "arguments": {"command": "sleep 60"}}]}
        chat = self.start("chat", call, "On we go.", flags=("--allow", "Bash(sleep:*)"))
        chat.read_until("> ")
        chat.type(b"wait\n")
        chat.read_until("[Bash] sleep 60")
        chat.type(CTRL_C)
        chat.read_until("Stopped (interrupted)")
        chat.read_until("\n> ")
        chat.type(b"go on\n")
        chat.read_until("On we go.")
        chat.read_until("\n> ")
        chat.type(b"/exit\n")
        self.assertEqual(chat.process.wait(SECONDS), 0)
        self.assertEqual(
            [event.stop_reason for event in self.events() if event.type == "result"], ["interrupted", "end"]
        )

    @full_size
    def test_a_signal_leaves_the_question_open_and_the_next_chat_asks_it_first(self) -> None:
        call = {"tool_calls": [{"name": "Write", "arguments": {"file_path": "a.txt", "content": "x"}}]}
        for number, name in ((signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP")):
            with self.subTest(name):
                shutil.rmtree(self.folder / "store", ignore_errors=True)
                (self.folder / "a.txt").unlink(missing_ok=True)
                chat = self.start("chat", call, "never asked for")
                chat.read_until("> ")
                chat.type(b"write\n")
                chat.read_until("Allow Write?")
                chat.read_until("] ")
                chat.process.send_signal(number)
                chat.read_until("Continue with: openagentic-sdk chat --resume ")
                self.assertEqual(chat.process.wait(SECONDS), 128 + number)
                self.assertEqual(self.events()[-1].stop_reason, "waiting")
                again = self.start("chat", "Done.", flags=("--continue",))
                again.read_until("write")  # the prompt at the end of the history
                again.read_until("Allow Write?")
                again.read_until("] ")
                again.type(b"yes\n")
                again.read_until("Done.")
                again.read_until("\n> ")
                again.type(CTRL_D)
                self.assertEqual(again.process.wait(SECONDS), 0)
                self.assertTrue((self.folder / "a.txt").exists())
                self.assertEqual([event.text for event in self.events() if event.type == "user.message"], ["write"])

    @full_size
    def test_an_answer_that_was_given_elsewhere_is_acted_on_before_a_prompt_is_read(self) -> None:
        call = {"tool_calls": [{"name": "Write", "arguments": {"file_path": "a.txt", "content": "x"}}]}
        chat = self.start("chat", call, "never asked for")
        chat.read_until("> ")
        chat.type(b"write\n")
        chat.read_until("Allow Write?")
        chat.read_until("] ")
        chat.process.send_signal(signal.SIGTERM)
        chat.read_until("Continue with: openagentic-sdk chat --resume ")
        chat.process.wait(SECONDS)
        store = FileSessionStore(self.folder / "store")
        (session_id,) = store.list_sessions()
        (question_id,) = store.open_question_ids(session_id)
        key_file = str(self.folder / ".openagentic-sdk" / "installation.key")
        asyncio.run(answer_question(store, session_id, question_id, "yes", key_file=key_file))
        again = self.start("chat", "Done.", flags=("--continue",))
        again.read_until("Done.")
        again.read_until("\n> ")
        again.type(CTRL_D)
        self.assertEqual(again.process.wait(SECONDS), 0)
        self.assertTrue((self.folder / "a.txt").exists())

    def test_a_chat_without_the_tool_in_question_takes_neither_an_answer_nor_a_prompt(self) -> None:
        store = FileSessionStore(self.folder / "store")
        session_id = store.create_session()
        refund = ToolUse("c1", "refund", {})
        details = {"tool_name": "refund", "input": {}}
        question = UserQuestion(
            "q1", "Allow refund?", ["yes", "no"], tool_use_id="c1", kind="permission", details=details
        )
        begin = [SystemInit(session_id, str(self.folder), "1"), UserMessage("go")]
        store.append_events(session_id, [*begin, refund, question, Result("", session_id, "waiting")])
        chat = self.start("chat", "never asked for", flags=("--resume", session_id))
        chat.read_until("this process lacks the tool 'refund'")
        self.assertNotEqual(chat.process.wait(SECONDS), 0)
        self.assertEqual(self.events()[-1].stop_reason, "waiting")

    def test_a_signal_at_the_prompt_prints_how_to_continue(self) -> None:
        chat = self.start("chat", "Hello.")
        chat.read_until("> ")
        chat.type(b"hi\n")
        chat.read_until("Hello.")
        chat.read_until("\n> ")
        chat.process.send_signal(signal.SIGTERM)
        chat.read_until("Continue with: openagentic-sdk chat --resume ")
        self.assertEqual(chat.process.wait(SECONDS), 128 + signal.SIGTERM)

    def test_ctrl_c_at_a_question_closes_it(self) -> None:
        call = {"tool_calls": [{"name": "Write", "arguments": {"file_path": "a.txt", "content": "x"}}]}
        chat = self.start("chat", call, "never asked for")
        chat.read_until("> ")
        chat.type(b"write\n")
        chat.read_until("] ")
        chat.type(CTRL_C)
        chat.read_until("Stopped (interrupted)")
        chat.read_until("\n> ")
        chat.type(CTRL_D)
        self.assertEqual(chat.process.wait(SECONDS), 0)
        (session_id,) = FileSessionStore(self.folder / "store").list_sessions()
        self.assertEqual(FileSessionStore(self.folder / "store").read_summary(session_id).open_questions, ())

    def test_a_question_is_answered_in_place(self) -> None:
        call = {"tool_calls": [{"name": "Write", "arguments": {"file_path": "a.txt", "content": "x\u001b[2J\n"}}]}
        chat = self.start("chat", call, "Done.", {"tool_calls": call["tool_calls"]}, "As you wish.")
        chat.read_until("> ")
        chat.type(b"write\n")
        question = chat.read_until("] ")
        self.assertIn("Allow Write?", question)
        self.assertIn("a.txt", question)
        self.assertNotIn("\x1b[2J", question)
        chat.type(b"yes\n")
        chat.read_until("Done.")
        self.assertTrue((self.folder / "a.txt").exists())

    def test_ctrl_c_at_a_question_does_not_allow(self) -> None:
        call = {"tool_calls": [{"name": "Write", "arguments": {"file_path": "a.txt", "content": "x"}}]}
        chat = self.start("chat", call, "Hello again.")
        chat.read_until("> ")
        chat.type(b"write\n")
        chat.read_until("] ")
        chat.type(CTRL_C)
        chat.read_until("Stopped (interrupted)")
        chat.read_until("\n> ")
        self.assertFalse((self.folder / "a.txt").exists())
        chat.type(b"go on\n")
        chat.read_until("Hello again.")

    def test_run_asks_at_the_terminal_too(self) -> None:
        call = {"tool_calls": [{"name": "Write", "arguments": {"file_path": "a.txt", "content": "x"}}]}
        terminal = self.start("run", call, "Not done.", flags=("write it",))
        terminal.read_until("] ")
        terminal.type(b"no because it is late\n")
        terminal.read_until("it is late")
        terminal.read_until("Not done.")
        self.assertEqual(terminal.process.wait(SECONDS), 0)
        self.assertFalse((self.folder / "a.txt").exists())

    @full_size
    def test_a_person_is_asked_once_whether_to_trust_a_project(self) -> None:
        settings = self.folder / ".claude" / "settings.json"
        settings.parent.mkdir()
        settings.write_text('{"permissions": {"allow": ["Bash(touch:*)"]}}', encoding="utf-8")
        call = {"tool_calls": [{"name": "Bash", "arguments": {"command": "touch made"}}]}
        first = self.start("run", call, "Made.", flags=("make it",))
        first.read_until("[yes/no] ")
        first.type(b"yes\n")
        first.read_until("Made.")
        self.assertEqual(first.process.wait(SECONDS), 0)
        second = self.start("run", call, "Made.", flags=("make it",))
        self.assertNotIn("Trust", second.read_until("Made."))

    @full_size
    def test_a_project_whose_skills_alone_want_rights_is_asked_about_word_for_word(self) -> None:
        skill = self.folder / ".claude" / "skills" / "ship" / "SKILL.md"
        skill.parent.mkdir(parents=True)
        skill.write_text(
            "---\nname: ship\ndescription: d\nallowed-tools: Bash(touch:*)\n---\nShip it.\n", encoding="utf-8"
        )
        activate = {"tool_calls": [{"name": "SkillActivate", "arguments": {"name": "ship"}}]}
        call = {"tool_calls": [{"name": "Bash", "arguments": {"command": "touch made"}}]}
        terminal = self.start("run", activate, call, "Made.", flags=("make it",))
        self.assertIn("while skill ship is used, allow: Bash(touch:*)", terminal.read_until("[yes/no] "))
        terminal.type(b"yes\n")
        terminal.read_until("Made.")
        self.assertEqual(terminal.process.wait(SECONDS), 0)

    @full_size
    def test_always_save_keeps_the_rule_in_settings_and_the_trust_of_the_project(self) -> None:
        settings = self.folder / ".claude" / "settings.json"
        settings.parent.mkdir()
        settings.write_text('{"permissions": {"allow": ["Bash(touch:*)"]}}', encoding="utf-8")
        call = {"tool_calls": [{"name": "Bash", "arguments": {"command": "mkdir made"}}]}
        first = self.start("run", call, "Made.", flags=("make it",))
        first.read_until("[yes/no] ")
        first.type(b"yes\n")
        self.assertIn("always save: ", first.read_until("[yes/no/always/always save] "))
        first.type(b"always save\n")
        first.read_until(f"kept in {os.path.realpath(self.folder)}/.claude/settings.local.json: Bash(mkdir made)\n")
        first.read_until("Made.")
        self.assertEqual(first.process.wait(SECONDS), 0)
        second = self.start("run", call, "Made.", flags=("make it",))
        shown = second.read_until("Made.")
        self.assertNotIn("Trust", shown)
        self.assertNotIn("Allow", shown)

    def test_no_answer_about_trust_decides_nothing(self) -> None:
        settings = self.folder / ".claude" / "settings.json"
        settings.parent.mkdir()
        settings.write_text('{"permissions": {"allow": ["Bash(touch:*)"]}}', encoding="utf-8")
        for _ in range(2):
            terminal = self.start("run", "Done.", flags=("go",))
            terminal.read_until("[yes/no] ")
            terminal.type(CTRL_D)
            terminal.read_until("Done.")


if __name__ == "__main__":
    unittest.main()
