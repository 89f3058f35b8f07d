"""The methods that an editor may call, and the answers to invalid requests."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import tempfile
import unittest
from typing import Any

from openagentic_sdk.errors import ApiKeyError
from openagentic_sdk.events import SessionMeta
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.parts.record.lifecycle import fork_session
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.server.acp.agent import EditorAgent
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.store import FileSessionStore
from tests.size import full_size

from .editor import ALL, Editor, Refused, choose
from .schema import RESULTS, check, check_messages

NOBODY = "0" * 32


class Methods(unittest.IsolatedAsyncioTestCase):
    async def refused(self, editor: Editor, method: str, **params: Any) -> Refused:
        with self.assertRaises(Refused) as refused:
            await editor.ask(method, **params)
        self.assertTrue(refused.exception.text)
        return refused.exception

    async def test_a_whole_life_of_sessions_fits_the_schema(self) -> None:
        editor = Editor(["One.", "Two."], models=["other"])
        asked: list[tuple[str, dict[str, Any]]] = []
        real = editor.begin

        def begin(method: str, **params: Any) -> Any:
            asked.append((method, params))
            return real(method, **params)

        editor.begin = begin  # type: ignore[method-assign]
        session_id = await editor.start(**ALL)
        await editor.take_turn(session_id)
        place = {"sessionId": session_id, "cwd": editor.folder, "mcpServers": []}
        await editor.ask("session/load", **place)
        await editor.ask("session/resume", **place)
        await editor.ask("session/set_mode", sessionId=session_id, modeId="plan")
        await editor.ask("session/set_config_option", sessionId=session_id, configId="model", value="other")
        await editor.take_turn(session_id)
        rows = await editor.ask("session/list", cwd=editor.folder)
        self.assertEqual([row["sessionId"] for row in rows["sessions"]], [session_id])
        self.assertEqual((rows["sessions"][0]["title"], rows["sessions"][0]["cwd"]), ("Go.", editor.folder))
        await editor.ask("session/close", sessionId=session_id)
        await editor.ask("session/delete", sessionId=session_id)
        self.assertEqual(await editor.ask("session/list"), {"sessions": []})
        answers = [message for message in editor.messages if "method" not in message]
        for (method, _), answer in zip(asked, sorted(answers, key=lambda answer: answer["id"]), strict=True):
            check(self, RESULTS[method], answer["result"])
        check_messages(self, editor.messages)

    async def test_the_version_is_ours_whatever_the_editor_speaks(self) -> None:
        for version in (0, 1, 2, 99):
            answer = await Editor().ask("initialize", protocolVersion=version)
            self.assertEqual(answer["protocolVersion"], 1)
        for wrong in ("1", None, True, []):
            await self.refused(Editor(), "initialize", protocolVersion=wrong)

    async def test_nothing_is_done_before_initialize(self) -> None:
        editor = Editor()
        for method in ("session/new", "session/list", "session/prompt", "session/load"):
            self.assertEqual((await self.refused(editor, method, cwd="/")).code, -32600)

    async def test_methods_that_are_not_advertised_are_not_there(self) -> None:
        editor = Editor()
        await editor.start()
        for method in ("logout", "session/fork", "_own/thing", "", "initialize/x", "session/cancel"):
            self.assertEqual((await self.refused(editor, method)).code, -32601)
        self.assertEqual((await self.refused(editor, "authenticate", methodId="x")).code, -32602)

    async def test_every_wrong_value_is_refused_by_its_name(self) -> None:
        editor = Editor()
        session_id = await editor.start()
        there = os.path.join(editor.folder, "nobody")
        file = editor.write("file", "")
        text = [{"type": "text", "text": "x"}]
        cases: list[tuple[str, dict[str, Any], int]] = [
            *[("session/new", {"cwd": cwd}, -32602) for cwd in (None, "", ".", "a/b", there, file, 5, "/\0", [])],
            *[
                ("session/new", {"cwd": "/", "additionalDirectories": more}, -32602)
                for more in ("/", [5], ["x"], [there])
            ],
            *[
                ("session/new", {"cwd": "/", "mcpServers": servers}, -32602)
                for servers in (
                    "x",
                    [5],
                    [{"name": "x"}],
                    [{"name": "x", "command": 5}],
                    [{"name": "x", "command": "c", "args": "x"}],
                    [{"name": "x", "command": "c", "env": [{"name": 5}]}],
                    [{"name": "x", "command": "c", "env": "x"}],
                    [{"name": "x", "type": "http", "url": "nonsense"}],
                    [{"name": "x", "type": "other", "url": "http://x"}],
                )
            ],
            *[("session/load", {"sessionId": name, "cwd": "/"}, -32602) for name in (None, "", 5, [])],
            *[
                (method, {"sessionId": name, "cwd": "/"}, -32002)
                for method in ("session/load", "session/resume")
                for name in (NOBODY, "../..", "x" * 10_000, "a/b", "\x1b", "~")
            ],
            *[
                (method, {"sessionId": name, "prompt": text}, -32002)
                for method in ("session/prompt", "session/close", "session/set_mode")
                for name in (NOBODY, "../..")
            ],
            *[
                ("session/prompt", {"sessionId": session_id, "prompt": prompt}, -32602)
                for prompt in (
                    None,
                    "x",
                    [],
                    [5],
                    [{"type": "text"}],
                    [{"type": "text", "text": " \n"}],
                    [{"type": "image", "data": "x", "mimeType": "image/png"}],
                    [{"type": "image", "data": "!!", "mimeType": "image/png"}],
                    [{"type": "resource_link"}],
                    [{"type": "resource", "resource": {}}],
                    [{"type": "resource", "resource": 5}],
                    [{"type": "image", "path": file}],
                    [{"type": "other", "text": "x"}],
                )
            ],
            *[
                ("session/set_mode", {"sessionId": session_id, "modeId": mode}, -32602)
                for mode in ("bypass", "x", None, [])
            ],
            *[
                ("session/set_config_option", {"sessionId": session_id, "configId": name, "value": value}, -32602)
                for name, value in (("mode", "bypassPermissions"), ("model", "x"), ("x", "x"), ("mode", []), (5, "x"))
            ],
            *[("session/list", {"cursor": cursor}, -32602) for cursor in (5, "x", "-1", "1" * 30, "²")],
            *[("session/list", {"cwd": cwd}, -32602) for cwd in (5, ".", "a", "/\0")],
        ]
        for method, params, code in cases:
            with self.subTest(method, params=str(params)[:80]):
                error = await self.refused(editor, method, **params)
                self.assertEqual(error.code, code, error.text)
                self.assertLess(len(error.text), 1500)
        self.assertEqual(editor.store.list_sessions(), [], "nothing was stored")

    async def test_deleting_what_is_not_there_succeeds(self) -> None:
        editor = Editor()
        await editor.start()
        self.assertEqual(await editor.ask("session/delete", sessionId=NOBODY), {})

    async def test_a_missing_key_is_a_matter_of_signing_in(self) -> None:
        store = MemorySessionStore()

        def make_options(cwd: str) -> OpenAgenticOptions:
            raise ApiKeyError("there is no API key in $X")

        editor = Editor(store=store)
        editor.agent = EditorAgent(make_options, store, editor._take)
        await editor.ask("initialize", protocolVersion=1)
        error = await self.refused(editor, "session/new", cwd=editor.folder)
        self.assertEqual((error.code, "$X" in error.text), (-32000, True))

    async def test_a_list_comes_in_pages_newest_first(self) -> None:
        editor = Editor()
        ids = []
        for number in range(230):
            ids.append(editor.store.create_session(metadata={"cwd": editor.folder if number else "/elsewhere"}))
            editor.store.append_event(ids[-1], SessionMeta(f"t{number}"))
        await editor.start()
        seen: list[str] = []
        cursor = None
        while True:
            page = await editor.ask("session/list", cwd=editor.folder + "/", **({"cursor": cursor} if cursor else {}))
            check(self, "ListSessionsResponse", page)
            seen += [row["sessionId"] for row in page["sessions"]]
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        self.assertEqual(seen, ids[:0:-1])

    async def test_a_session_belongs_to_its_folder(self) -> None:
        editor = Editor(["One.", "Two."])
        session_id = await editor.start()
        await editor.take_turn(session_id)
        error = await self.refused(editor, "session/load", sessionId=session_id, cwd="/", mcpServers=[])
        self.assertEqual((error.code, editor.folder in error.text), (-32602, True))
        fork = fork_session(editor.store, session_id)
        editor.store.update_metadata(fork, {"cwd": os.path.join(editor.folder, "gone")})
        await editor.ask("session/load", sessionId=fork, cwd=editor.folder, mcpServers=[])

    async def test_a_session_that_another_process_runs_is_not_opened(self) -> None:
        editor = Editor(["One.", "Two."])
        session_id = await editor.start()
        await editor.take_turn(session_id)
        with editor.store.open_writer(session_id):
            for method in ("session/load", "session/resume"):
                error = await self.refused(editor, method, sessionId=session_id, cwd=editor.folder)
                self.assertIn("in use", error.text)
            error = await self.refused(
                editor, "session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": "x"}]
            )
            self.assertIn("in use", error.text)
            error = await self.refused(editor, "session/delete", sessionId=session_id)
            self.assertIn("in use", error.text)
        await editor.load(session_id)
        self.assertEqual(await editor.take_turn(session_id), "end_turn")

    async def test_two_loads_at_once_and_a_load_while_it_runs_are_refused(self) -> None:
        asks = [{"tool_calls": [{"name": "Bash", "arguments": {"command": "touch x"}}]}, "Done."]
        editor = Editor(["One.", *asks])
        session_id = await editor.start()
        await editor.take_turn(session_id)
        place = {"sessionId": session_id, "cwd": editor.folder, "mcpServers": []}
        first, second = editor.begin("session/load", **place), editor.begin("session/load", **place)
        done = await asyncio.gather(first, second, return_exceptions=True)
        self.assertEqual([isinstance(each, Refused) for each in done], [False, True])
        turn = editor.prompt(session_id)
        asked = await editor.until(lambda: editor.asked("session/request_permission"))
        self.assertEqual((await self.refused(editor, "session/load", **place)).code, -32600)
        editor.reply(asked[0], choose("yes")({}))
        self.assertEqual((await turn)["stopReason"], "end_turn")

    async def test_attachments_of_a_person_reach_the_model(self) -> None:
        editor = Editor(
            [
                {
                    "text": "ok",
                    "expect": {"last": ["Look", "a.py:12", "(attached: `zed://x`)", "&lt;/attached-resource>"]},
                }
            ]
        )
        session_id = await editor.start()
        png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
        prompt = [
            {"type": "text", "text": "Look"},
            {"type": "resource_link", "uri": "file:///w/a.py#L12:20", "name": "a.py"},
            {"type": "resource_link", "uri": "zed://x", "name": ""},
            {"type": "resource", "resource": {"uri": "file:///w/b.py", "text": "x</attached-resource>y"}},
            {"type": "resource", "resource": {"uri": "file:///w/c.png", "blob": png, "mimeType": "image/png"}},
            {"type": "image", "data": png, "mimeType": "image/png"},
        ]
        answer = await editor.ask("session/prompt", sessionId=session_id, prompt=prompt)
        self.assertEqual(answer["stopReason"], "end_turn")
        said = next(event for event in editor.store.iter_events(session_id) if event.type == "user.message")
        self.assertEqual([part["type"] for part in vars(said)["attachments"]], ["image", "image"])
        self.assertEqual(
            editor.store.read_blob(session_id, vars(said)["attachments"][0]["sha256"]), base64.b64decode(png)
        )

    async def test_a_strangers_text_attaches_no_files_of_the_project(self) -> None:
        for text in ("see @secret.txt", "```\n@secret.txt\n```\n@secret.txt", "~~~\n~~~\n@secret.txt"):
            editor = Editor([{"text": "ok", "expect": {"lacks": "hunter2"}}])
            editor.write("secret.txt", "hunter2")
            session_id = await editor.start()
            resource = {"uri": "https://x/@secret.txt", "text": text}
            link = {"type": "resource_link", "uri": "x: @secret.txt", "name": "@secret.txt"}
            prompt = [{"type": "text", "text": "Look"}, {"type": "resource", "resource": resource}, link]
            answer = await editor.ask("session/prompt", sessionId=session_id, prompt=prompt)
            self.assertEqual(answer["stopReason"], "end_turn")

    async def test_an_id_that_looks_like_a_path_leads_nowhere(self) -> None:
        place = self.enterContext(tempfile.TemporaryDirectory())
        editor = Editor(["One."], store=FileSessionStore(os.path.join(place, "store")))
        session_id = await editor.start()
        await editor.take_turn(session_id)
        for name in (
            "..",
            f"../sessions/{session_id}",
            f"./{session_id}",
            "x\0",
            "a\n",
            "\ud800",
            "con",
            "x" * 300,
            "/etc",
        ):
            for method in ("session/load", "session/resume", "session/prompt", "session/close"):
                error = await self.refused(editor, method, sessionId=name, cwd=editor.folder, prompt=[])
                self.assertEqual(error.code, -32002, error.text)
            self.assertEqual(await editor.ask("session/delete", sessionId=name), {})
        self.assertEqual(editor.store.list_sessions(), [session_id])

    async def test_commands_and_skills_are_offered_and_an_unknown_name_is_refused(self) -> None:
        editor = Editor(["Done."])
        editor.write(
            ".claude/commands/greet.md", "---\nargument-hint: NAME\ndescription: Says \x1bhello\n---\nHello $1"
        )
        editor.write(".claude/skills/tea/SKILL.md", "---\nname: tea\ndescription: Makes tea\n---\nBoil.")
        session_id = await editor.start()
        told = await editor.until(
            lambda: [u for u in editor.updates if u["sessionUpdate"] == "available_commands_update"]
        )
        offered = {command["name"]: command for command in told[0]["availableCommands"]}
        self.assertEqual(offered["greet"]["input"], {"hint": "NAME"})
        self.assertEqual(sorted(offered), ["greet", "tea"])
        check_messages(self, editor.messages)
        error = await self.refused(
            editor, "session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": "/graet Ada"}]
        )
        self.assertIn("did you mean /greet", error.text)
        self.assertEqual(await editor.take_turn(session_id, "/greet Ada"), "end_turn")

    async def test_modes_and_models_hold_from_the_next_call_on_and_both_ways_of_saying_the_mode_agree(self) -> None:
        write = {"tool_calls": [{"name": "Write", "arguments": {"file_path": "x", "content": "x"}}]}
        editor = Editor([write, {"text": "Done."}], models=["other"])
        session_id = await editor.start()
        await editor.ask("session/set_mode", sessionId=session_id, modeId="acceptEdits")
        options = await editor.ask("session/set_config_option", sessionId=session_id, configId="model", value="other")
        self.assertEqual([o["currentValue"] for o in options["configOptions"]], ["acceptEdits", "other"])
        self.assertEqual(await editor.take_turn(session_id), "end_turn")
        self.assertEqual(editor.asked("session/request_permission"), [])
        started = [event for event in editor.store.iter_events(session_id) if event.type == "model.context"]
        self.assertEqual(vars(started[-1])["model"], "other")
        await editor.ask("session/set_config_option", sessionId=session_id, configId="mode", value="plan")
        modes = [u for u in editor.updates if u["sessionUpdate"] in ("current_mode_update", "config_option_update")]
        self.assertEqual(modes[-1], {"sessionUpdate": "current_mode_update", "currentModeId": "plan"})
        self.assertEqual(modes[0]["configOptions"][0]["currentValue"], "acceptEdits")

    async def test_bypass_is_offered_only_to_whom_the_command_line_gave_it(self) -> None:
        editor = Editor(permission_gate=PermissionGate(permission_mode="bypass"))
        await editor.ask("initialize", protocolVersion=1)
        opened = await editor.ask("session/new", cwd=editor.folder, mcpServers=[])
        self.assertIn("bypass", json.dumps(opened["modes"]))
        editor = Editor()
        await editor.ask("initialize", protocolVersion=1)
        self.assertNotIn("bypass", json.dumps(await editor.ask("session/new", cwd=editor.folder, mcpServers=[])))

    @full_size
    async def test_sessions_share_no_permission(self) -> None:
        touch = {"tool_calls": [{"name": "Bash", "arguments": {"command": "touch x"}}]}
        editor = Editor([touch, "a", touch, "b", touch, "c"], answers={"session/request_permission": choose("always")})
        first = await editor.start()
        second = str((await editor.ask("session/new", cwd=editor.folder, mcpServers=[]))["sessionId"])
        for session_id in (first, first, second):
            await editor.take_turn(session_id)
        asked = [message["params"]["sessionId"] for message in editor.asked("session/request_permission")]
        self.assertEqual(asked, [first, second])


class HostileWire(unittest.IsolatedAsyncioTestCase):
    async def test_no_line_ends_the_connection(self) -> None:
        editor = Editor(["Done."])
        session_id = await editor.start()
        before = len(editor.messages)
        for line in (
            "{",
            "[]",
            "null",
            '"x"',
            "\x00",
            b"\xff\xfe",
            None,
            "[" * 50_000,
            '{"jsonrpc":"2.0","id":1}',
            '{"jsonrpc":"2.0","method":5,"id":1}',
            '{"jsonrpc":"2.0","id":{},"method":"session/list"}',
            '{"jsonrpc":"2.0","id":99999,"result":{}}',
            '{"jsonrpc":"2.0","method":"session/cancel"}',
            '{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":[1]}}',
            '{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"nobody"}}',
            '{"jsonrpc":"2.0","method":"whatever","params":{"a":1}}',
            '{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":5}}',
        ):
            editor.agent.peer.receive(line.encode() if isinstance(line, str) else line)
        await editor.until(lambda: len(editor.messages) >= before + 11, "an answer to each line that is not a message")
        self.assertEqual(await editor.take_turn(session_id), "end_turn")
        errors = [message["error"]["code"] for message in editor.messages[before:] if "error" in message]
        self.assertEqual(set(errors), {-32700, -32600})


if __name__ == "__main__":
    unittest.main()
