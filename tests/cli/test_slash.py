"""Slash commands of `chat`, without a terminal."""

from __future__ import annotations

import asyncio
import io
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk import OpenAgenticOptions, run
from openagentic_sdk.cli.conversation import Chat
from openagentic_sdk.cli.output.terminal import Screen
from openagentic_sdk.cli.output.turn import Turn
from openagentic_sdk.cli.screen.live import CallOutputs
from openagentic_sdk.cli.slash import SlashCommands
from openagentic_sdk.events import UserQuestion
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing import ScriptedProvider


class Slash(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = Path(folder.name).resolve()
        (self.home / "work").mkdir()
        (self.home / "more").mkdir()
        self.file = self.home / "more" / "file"
        self.file.write_text("before")
        call = {"name": "Write", "arguments": {"file_path": str(self.file), "content": "after", "overwrite": True}}
        self.options = OpenAgenticOptions(
            provider=ScriptedProvider([{"tool_calls": [call]}, "done"]),
            model="m",
            cwd=str(self.home / "work"),
            additional_dirs=[str(self.home / "more")],
            key_file=self.home / "own.key",
            session_store=FileSessionStore(root_dir=self.home / "store"),
            permission_gate=PermissionGate(permission_mode="bypass"),
        )
        self.asked: list[UserQuestion] = []
        self.answer = 0
        self.out = io.StringIO()

    def say(self, *lines: str) -> str:
        """Type these lines into the chat of a session with one turn; return the output."""
        session_id = asyncio.run(run(prompt="go", options=self.options)).session_id

        async def ask(question: UserQuestion) -> str:
            self.asked.append(question)
            return question.choices[self.answer]

        def no_turn(options: OpenAgenticOptions) -> Turn:
            raise AssertionError("no command here begins a turn")

        async def talk() -> None:
            conversation = Chat(self.options, Screen(self.out), ask, no_turn)
            conversation.session_id = session_id
            commands = SlashCommands(conversation, CallOutputs())
            for line in lines:
                self.assertTrue(await commands.run(line), line)

        asyncio.run(talk())
        return self.out.getvalue()

    def test_undo_uses_the_key_and_the_folders_of_the_chat(self) -> None:
        said = self.say("/undo")
        self.assertIn(f"put back: {self.file}", said)
        self.assertEqual(self.asked[0].choices[0], "conversation and files")
        self.assertEqual(self.file.read_text(), "before")

    def test_export_asks_before_it_replaces_a_file(self) -> None:
        target = self.home / "work" / "talk.md"
        target.write_text("mine")
        self.answer = 1
        self.assertIn("nothing was written", self.say("/export talk.md"))
        self.assertEqual(target.read_text(), "mine")
        self.assertIn("talk.md exists", self.asked[0].prompt)

    def test_wrong_arguments_are_answered_with_a_sentence(self) -> None:
        said = self.say(
            "/undo many", "/undo 7", "/mode what", "/show 9", "/resume zz", "/export \0", "/export /no/such/x.md"
        )
        for sentence in ("as in /undo 2, not 'many'", "not 7", "'what' is unknown", "no output 9", "no session 'zz'"):
            self.assertIn(sentence, said)
        self.assertEqual(len(said.splitlines()), 7)


if __name__ == "__main__":
    unittest.main()
