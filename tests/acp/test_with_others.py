"""What an editor contributes: MCP servers, and files whose text in the editor differs from the disk."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from openagentic_sdk.errors import RpcError
from openagentic_sdk.server.acp.buffers import unsaved_guard
from tests.size import full_size

from .editor import ALL, Editor, choose, settled
from .schema import check_messages

EDIT = {"name": "Edit", "arguments": {"file_path": "a.txt", "old": "one", "new": "two"}}
READ = {"name": "Read", "arguments": {"file_path": "a.txt"}}
# A server with one tool, which asks the person a question, and reports progress.
SERVER = """
import json, sys
def say(**message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    method, params, known = message.get("method"), message.get("params") or {}, message.get("id")
    if method == "initialize":
        say(id=known, result={"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                              "serverInfo": {"name": "kitchen", "version": "1"}})
    elif method == "tools/list":
        say(id=known, result={"tools": [{"name": "brew", "inputSchema": {"type": "object", "properties": {}}}]})
    elif method == "tools/call":
        call, token = known, (params.get("_meta") or {}).get("progressToken")
        if token is not None:
            far = {"progressToken": token, "progress": 1, "total": 2, "message": "water"}
            say(method="notifications/progress", params=far)
        schema = {"type": "object", "properties": {"milk": {"type": "string"}}, "required": ["milk"]}
        say(id="ask", method="elicitation/create", params={"message": "Which milk?", "requestedSchema": schema})
    elif known == "ask":
        said = json.dumps(message.get("result"))
        say(id=call, result={"content": [{"type": "text", "text": sys.argv[1] + " " + said}]})
    elif known is not None:
        say(id=known, error={"code": -32601, "message": "no"})
"""


class McpServers(unittest.IsolatedAsyncioTestCase):
    async def _run(self, *answers: Any, form: bool, expected: str) -> Editor:
        place = self.enterContext(tempfile.TemporaryDirectory())
        Path(place, "server.py").write_text(SERVER)
        given = list(answers)
        editor = Editor(
            [
                {"tool_calls": [{"name": "mcp__my-kitchen__brew", "arguments": {}}]},
                {"text": "Done.", "expect": {"last": expected}},
            ],
            answers={
                "session/request_permission": choose("yes"),
                "elicitation/create": lambda params: given.pop(0),
            },
        )
        await editor.ask("initialize", protocolVersion=1, clientCapabilities=ALL if form else {})
        server = {
            "name": "my kitchen",
            "command": sys.executable,
            "args": [os.path.join(place, "server.py"), "tea"],
            "env": [{"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}],
        }
        opened = await editor.ask("session/new", cwd=editor.folder, mcpServers=[server])
        self.assertEqual(await editor.take_turn(opened["sessionId"]), "end_turn")
        check_messages(self, editor.messages)
        settled(editor.updates)
        await editor.agent.leave()
        return editor

    @full_size
    async def test_a_call_of_the_editors_server_is_asked_about_and_the_server_asks_with_a_form(self) -> None:
        editor = await self._run({"action": "accept", "content": {"other": "oat"}}, form=True, expected='"milk": "oat"')
        (asked,) = editor.asked("session/request_permission")
        self.assertIn("mcp__my-kitchen__brew", json.dumps(asked["params"]["toolCall"]))
        (form,) = editor.asked("elicitation/create")
        self.assertIn("my-kitchen asks: Which milk?", form["params"]["message"])
        texts = json.dumps([u["content"] for u in editor.updates if u["sessionUpdate"] == "tool_call_update"])
        self.assertIn("1 of 2 water", texts)

    async def test_a_person_who_declines_or_cannot_be_asked_gives_the_server_no_words_of_ours(self) -> None:
        await self._run({"action": "decline"}, form=True, expected='"decline')
        await self._run(form=False, expected='"decline')


class UnsavedText(unittest.IsolatedAsyncioTestCase):
    async def _edit(self, held: Any) -> tuple[str, list[dict[str, Any]]]:
        editor = Editor(
            [{"tool_calls": [READ]}, {"tool_calls": [EDIT]}, "Done."],
            answers={"session/request_permission": choose("yes"), "fs/read_text_file": lambda params: held},
        )
        path = editor.write("a.txt", "zero\r\none\r\n")
        await editor.take_turn(await editor.start(fs={"readTextFile": True}))
        check_messages(self, editor.messages)
        self.assertEqual({m["params"]["path"] for m in editor.asked("fs/read_text_file")}, {path})
        return Path(path).read_text(), [u for u in editor.updates if u.get("status") == "failed"]

    async def test_unsaved_text_of_an_editor_is_not_changed(self) -> None:
        text, failed = await self._edit({"content": "zero\none\nand more\n"})
        self.assertNotIn("two", text)
        self.assertIn("unsaved changes", json.dumps(failed))

    async def test_a_file_that_is_the_same_in_editor_and_on_disk_is_changed(self) -> None:
        for held in ({"content": "zero\none\n"}, {"content": "\ufeffzero\r\none"}):
            with self.subTest(str(held)):
                text, failed = await self._edit(held)
                self.assertEqual((failed, "two" in text), ([], True))

    async def test_what_a_person_types_while_the_question_about_an_edit_is_open_is_kept(self) -> None:
        buffer = {"content": "zero\none\n"}

        def type_and_allow(params: dict[str, Any]) -> Any:
            buffer["content"] += "and more\n"
            return choose("always")(params)

        editor = Editor(
            [{"tool_calls": [READ]}, {"tool_calls": [EDIT]}, "Done."],
            answers={"session/request_permission": type_and_allow, "fs/read_text_file": lambda params: dict(buffer)},
        )
        path = editor.write("a.txt", "zero\none\n")
        await editor.take_turn(await editor.start(fs={"readTextFile": True}))
        self.assertEqual(Path(path).read_text(), "zero\none\n")
        failed = [update for update in editor.updates if update.get("status") == "failed"]
        self.assertIn("is open in the person's editor with unsaved changes", json.dumps(failed))

    async def test_a_file_that_the_editor_does_not_give_is_not_changed(self) -> None:
        for held in ({"content": 5}, [], "x", {}):
            with self.subTest(str(held)):
                text, failed = await self._edit(held)
                self.assertNotIn("two", text)
                self.assertIn("returned no text", json.dumps(failed))

    async def _look(self, read: Any, path: str, name: str = "file_path") -> str | None:
        payload = {"tool_input": {name: path}, "context": {"cwd": self.folder}}
        decision = await unsaved_guard(read, wait_s=0).hook(payload)
        return None if decision is None else decision.block_reason

    async def test_only_a_file_that_neither_the_disk_nor_the_editor_holds_is_made_unseen(self) -> None:
        with tempfile.TemporaryDirectory() as self.folder:
            Path(self.folder, "text").write_text("one")
            Path(self.folder, "latin").write_bytes(b"caf\xe9")

            async def never(path: str) -> Any:
                await asyncio.get_running_loop().create_future()

            async def fails(path: str) -> Any:
                raise RpcError(-32603, "internal error")

            async def empty(path: str) -> Any:
                return {"content": ""}

            async def holds(path: str) -> Any:
                return {"content": "typed"}

            for name in ("file_path", "notebook_path"):
                self.assertIn("did not return it within", await self._look(never, "text", name) or "")
                self.assertIn("internal error", await self._look(fails, "text", name) or "")
            self.assertIn("did not return it within", await self._look(never, "new") or "")
            self.assertIn("unsaved changes", await self._look(holds, "new") or "")
            self.assertIn("cannot be compared", await self._look(empty, "latin") or "")
            self.assertIn("cannot resolve", await self._look(empty, "te\u202ext") or "")
            self.assertIsNone(await self._look(fails, "new"))
            self.assertIsNone(await self._look(empty, "new"))

    async def test_an_editor_that_offers_no_files_is_not_asked(self) -> None:
        editor = Editor(
            [{"tool_calls": [READ]}, {"tool_calls": [EDIT]}, "Done."],
            answers={"session/request_permission": choose("yes")},
        )
        path = editor.write("a.txt", "one")
        await editor.take_turn(await editor.start(fs={"readTextFile": False, "writeTextFile": True}))
        self.assertEqual((Path(path).read_text(), editor.asked("fs/read_text_file")), ("two", []))


if __name__ == "__main__":
    unittest.main()
