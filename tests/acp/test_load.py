"""The view of a session in an editor: the same while it runs and when it is loaded."""

from __future__ import annotations

import base64
import json
import os
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from openagentic_sdk.api import compact_session
from openagentic_sdk.events import Event, ModelResponse, SystemInit, SystemNotice
from openagentic_sdk.ground.frozen import changed
from openagentic_sdk.ground.jsonrpc import encode
from openagentic_sdk.options import AgentDefinition, OpenAgenticOptions
from openagentic_sdk.parts.record.lifecycle import fork_session, rename_session, rewind_session
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.providers.wrappers.retry import RetryPolicy
from openagentic_sdk.serialization import loads_event
from openagentic_sdk.server.acp.view import EditorView, replay
from openagentic_sdk.server.agui import RunEvents, conversation
from openagentic_sdk.server.responses import ResponseEvents
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing.scripted import ScriptedProvider
from tests.security.test_redaction import event_types, filled
from tests.size import full_size

from .editor import ALL, Editor, Refused, choose, settled
from .schema import check_messages

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


HOSTILE = "a\x1b[31mb\u202ec\x07 \u2028d\re\ud800f 👨\u200d👩 ❤\ufe0f ```x``` \x00\x85"
# Prompts of one session, each with the turns of the model.
SCENES: dict[str, list[Any]] = {
    "text": [{"reasoning": "I think.", "text": "Hello. " * 20, "deltas": 3}],
    "nothing": [""],
    "hostile": [
        {
            "reasoning": HOSTILE,
            "text": HOSTILE,
            "deltas": 1,
            "tool_calls": [
                {"name": "Bash\x1b[2J", "arguments": {"command": HOSTILE}, "id": "\x1b"},
                {"name": "Read", "arguments": {"file_path": HOSTILE}, "id": "x" * 500},
                {"name": "Write", "arguments": {"file_path": "../\u202egpj.exe", "content": HOSTILE}, "id": "same"},
                {"name": "Grep", "arguments": {"query": [[[HOSTILE]]]}, "id": "same"},
                {"name": "Read", "raw_arguments": "{\x1b"},
            ],
        },
        {"text": HOSTILE, "tool_calls": [{"name": "Read", "arguments": {}, "id": "same"}]},
        HOSTILE,
    ],
    "tools": [
        {
            "text": "I look.",
            "tool_calls": [
                call("Read", file_path="a.txt", offset=2),
                call("Read", file_path="picture.png"),
                call("Read", file_path="missing"),
            ],
        },
        {
            "tool_calls": [
                call("Edit", file_path="a.txt", old="one", new="two"),
                call("Write", file_path="b/c.txt", content="c"),
            ]
        },
        {"tool_calls": [call("Bash", command="printf 'out\\n```\\n'; exit 3"), call("Bash", command="echo ok")]},
        {"tool_calls": [call("TodoWrite", todos=[{"content": "t", "status": "in_progress"}])]},
        "Done.",
    ],
    "subagent": [
        {
            "tool_calls": [
                call("Task", agent="reader", prompt="Read it."),
                call("Task", agent="reader", prompt="Again."),
            ]
        },
        {"agent": "You read", "text": "Reading.", "tool_calls": [call("Read", file_path="a.txt")]},
        {"agent": "You read", "tool_calls": [call("Write", file_path="d.txt", content="d")]},
        {"agent": "You read", "text": "It says *one*."},
        {"agent": "You read", "text": "It says *one*."},
        "Done.",
    ],
    "failure": [{"text": "I begin, and", "error": {"message": "the line broke", "type": "incomplete", "after": 8}}],
}


class LoadEqualsLive(unittest.IsolatedAsyncioTestCase):
    async def _both(self, scene: list[Any], **options: Any) -> tuple[list[Any], list[Any], Editor]:
        answers = {"session/request_permission": choose("yes")}
        agents = {"reader": AgentDefinition("Reads.", "You read.")}
        editor = Editor(scene, answers=answers, agents=agents, max_context_tokens=100_000, **options)
        editor.write("a.txt", "zero\none\n")
        Path(editor.folder, "picture.png").write_bytes(PNG)
        session_id = await editor.start(**ALL)
        try:
            await editor.take_turn(session_id)
        except Exception as error:  # noqa: BLE001 - a scene may fail
            self.assertIn("broke", str(error))
        live = editor.updates
        loaded = await editor.load(session_id)
        check_messages(self, editor.messages)
        return live, loaded, editor

    @full_size
    async def test_every_scene(self) -> None:
        for name, scene in SCENES.items():
            with self.subTest(name):
                live, loaded, _ = await self._both(scene)
                self.assertEqual(settled(loaded), settled(live))
                self.assertEqual([u["sessionUpdate"] for u in loaded].count("user_message_chunk"), 1)
                self.assertNotIn("notice", [update["sessionUpdate"] for update in loaded])

    @full_size
    async def test_denied_limited_and_blocked_runs(self) -> None:
        asks = [
            {"tool_calls": [call("Bash", command="touch a")]},
            {"tool_calls": [call("Bash", command="touch b")]},
            "Done.",
        ]
        for name, options in {
            "denied": {"permission_gate": PermissionGate(permission_mode="dontAsk")},
            "max_steps": {"max_steps": 1},
            "budget": {"max_tokens": 1},
        }.items():
            with self.subTest(name):
                live, loaded, _ = await self._both(asks, **options)
                self.assertEqual(settled(loaded), settled(live))
                text = json.dumps(loaded)
                self.assertIn("Stopped (" if name != "denied" else '"failed"', text)

    async def test_a_retry_in_the_middle_of_an_answer_begins_another_message(self) -> None:
        scene = [{"text": "first try", "error": {"message": "broke", "type": "incomplete", "after": 5}}, "second try"]
        live, loaded, _ = await self._both(scene, retry=RetryPolicy(max_retries=1, base_s=0.0))
        self.assertEqual(settled(loaded), settled(live))
        texts = [(key[1], value) for key, value in settled(live)["seen"] if key[0] == "agent_message_chunk"]
        self.assertEqual([text for _, text in texts], ["first", "second try"])

    async def test_loading_a_session_replays_prompts_as_they_were_typed(self) -> None:
        editor = Editor(["One.", "Two.", "Three."])
        editor.write(".claude/commands/greet.md", "Say hello to $ARGUMENTS, please.")
        editor.write(".claude/skills/tea/SKILL.md", "---\nname: tea\ndescription: Makes tea\n---\nBoil.")
        session_id = await editor.start()
        image = {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}
        await editor.ask("session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": "Look."}, image])
        await editor.take_turn(session_id, "/greet Ada")
        await editor.take_turn(session_id, "/tea green")
        said = [u["content"] for u in await editor.load(session_id) if u["sessionUpdate"] == "user_message_chunk"]
        typed = [{"type": "text", "text": text} for text in ("Look.", "/greet Ada", "/tea green")]
        self.assertEqual(said, [typed[0], image, *typed[1:]])

    async def test_a_session_that_continues_keeps_its_ids_apart(self) -> None:
        scene = [{"text": "A", "tool_calls": [{**call("Read", file_path="a"), "id": "same"}]}, "B"]
        provider = ScriptedProvider([*scene, *scene])
        editor = Editor(lambda: provider)
        session_id = await editor.start()
        await editor.take_turn(session_id)
        await editor.load(session_id)
        await editor.take_turn(session_id)
        live_again = len(editor.messages)
        loaded = await editor.load(session_id)
        settled(loaded)  # fails when an id comes twice
        ids = [u["toolCallId"] for u in loaded if u["sessionUpdate"] == "tool_call"]
        self.assertEqual(len(ids), 2)
        told = [m["params"]["update"] for m in editor.messages[:live_again] if m.get("method") == "session/update"]
        self.assertEqual({u["toolCallId"] for u in told if "toolCallId" in u}, set(ids))


class ChangesByOtherPrograms(unittest.IsolatedAsyncioTestCase):
    async def test_loading_a_session_reports_what_other_programs_did_to_it(self) -> None:
        editor = Editor(lambda: ScriptedProvider(["One. " * 50, "Two.", "Three."]), max_context_tokens=100_000)
        session_id = await editor.start(**ALL)
        for text in ("first " * 200, "second", "third"):
            await editor.take_turn(session_id, text)
        rename_session(editor.store, session_id, "Tea \x1b[2J")
        events = editor.store.read_events(session_id)
        prompts = [event.seq or 0 for event in events if event.type == "user.message"]
        rewind_session(editor.store, session_id, to_seq=prompts[-1] - 1)
        compacts = OpenAgenticOptions(
            provider=ScriptedProvider(["Tea was made."]),
            model="scripted",
            cwd=editor.folder,
            session_store=editor.store,
            resume=session_id,
            max_context_tokens=300,
        )
        self.assertTrue(await compact_session(options=compacts))
        loaded = await editor.load(session_id)
        check_messages(self, editor.messages)
        kinds = {update["sessionUpdate"]: update for update in loaded}
        self.assertNotIn("\x1b", kinds["session_info_update"]["title"])
        self.assertIn("Tea was made", kinds["compaction_update"]["summary"][0]["text"])
        texts = [u["content"]["text"] for u in loaded if u["sessionUpdate"] == "agent_message_chunk"]
        self.assertTrue(any("undone" in text for text in texts))
        fork = fork_session(editor.store, session_id)
        copied = settled(await editor.load(fork))
        self.assertEqual(
            [value for _, value in copied["seen"]][: len(texts) - 1],
            [value for _, value in settled(loaded)["seen"]][: len(texts) - 1],
        )
        await editor.take_turn(fork, "And now?")
        self.assertEqual(len(settled(await editor.load(fork))["seen"]), len(copied["seen"]) + 1)

    async def test_loading_a_damaged_session_is_refused_and_names_the_command_to_salvage_it(self) -> None:
        place = self.enterContext(tempfile.TemporaryDirectory())
        editor = Editor(["One.", "Two."], store=FileSessionStore(os.path.join(place, "store")))
        session_id = await editor.start()
        await editor.take_turn(session_id)
        log = Path(place, "store", "sessions", session_id, "events.jsonl")
        log.write_bytes(log.read_bytes().replace(b"Go.", b"No.", 1))
        with self.assertRaises(Refused) as refused:
            await editor.load(session_id)
        self.assertIn("sessions salvage", refused.exception.text)


class FixtureLogs(unittest.TestCase):
    ROOT = Path(__file__).resolve().parents[2] / "fixtures"

    def _logs(self) -> dict[str, list[Event]]:
        paths = [*sorted(self.ROOT.glob("logs/*/events.jsonl")), *sorted(self.ROOT.glob("durability/*.jsonl"))]
        return {
            os.fspath(path.relative_to(self.ROOT)): [
                loads_event(line, strict=False) for line in path.read_bytes().split(b"\n") if line.endswith(b"}")
            ]
            for path in paths
        }

    def test_every_log_is_shown_whole_and_valid_from_any_of_its_events_on(self) -> None:
        for name, events in self._logs().items():
            with self.subTest(name):
                shown = list(replay(EditorView(notices=True, compaction=True, context_tokens=1000), events))
                messages = [_told(update) for update in shown]
                check_messages(self, messages)
                for start in range(len(events)):
                    check_messages(self, [_told(update) for update in replay(EditorView(), events[start:])])
                again = EditorView(notices=True, compaction=True, context_tokens=1000)
                piecewise = [update for event in events for update in again.take(event)]
                self.assertEqual(settled(piecewise), settled(shown))

    def test_every_kind_of_event_with_any_text_in_it_can_be_shown_anywhere(self) -> None:
        for text in ("plain", HOSTILE, "", "/" * 300, "\ud800"):
            every = [filled(cls, text) for cls in event_types()]
            for nested in (None, text, "call"):
                events = [
                    changed(event, seq=number, ts=1.0, parent_tool_use_id=nested)
                    for number, event in enumerate([*every, *reversed(every)], 1)
                ]
                view = EditorView(notices=True, compaction=True, context_tokens=5)
                shown = list(replay(view, events))
                check_messages(self, [_told(update) for update in shown])
                self.assertNotIn("\x1b", "".join(_texts(shown)))
                for fold in (RunEvents("t", "r"), ResponseEvents("resp_x")):
                    encode({"all": [told for event in events for told in fold.take(event)]})
                encode({"all": conversation(events)})

    def test_every_editor_is_notified_of_settings_that_have_no_effect(self) -> None:
        grave = SystemNotice("settings.withheld", "hooks were left out", seq=3)
        slight = SystemNotice("settings.mode", "never mind", seq=4)
        told = [
            update["sessionUpdate"] for view in (EditorView(), EditorView(notices=True)) for update in view.take(grave)
        ]
        self.assertEqual(told, ["agent_message_chunk", "notice"])
        self.assertEqual((EditorView().take(slight), len(EditorView(notices=True).take(slight))), ([], 1))

    def test_a_foreign_log_cannot_break_the_fold(self) -> None:
        lines = [
            '{"type":"todo.updated","todos":["x",null,{"content":5,"status":[]}]}',
            '{"type":"user.message","text":"","attachments":["x",{"type":"image","sha256":5}]}',
            '{"type":"tool.result","tool_use_id":"nobody","output":{"stdout":5,"exit_code":[1]}}',
            '{"type":"tool.started","tool_use_id":"n","name":"","effect":"","input_sha256":"","idempotency_key":"","input":{}}',
            '{"type":"tool.use","tool_use_id":"","name":"Edit","input":{"file_path":5,"edits":[1,{"old":[1]}]}}',
            '{"type":"tool.use","tool_use_id":"e","name":"Edit","input":{"file_path":"x","edits":[1,{"old":[1],"new":null}]}}',
            '{"type":"model.response","step":1,"attempt":1,"usage":{"input_tokens":"many"},"cost_usd":1e999}',
            '{"type":"assistant.message","text":"\\ud83d"}',
            '{"type":"text_command.finished","command_id":"x","output":"o"}',
            '{"type":"from.the.future","text":"?"}',
            '{"type":"subagent.finished","tool_use_id":"a","name":"b","child_session_id":"c","stop_reason":"d"}',
            '{"type":"result","final_text":"","session_id":"","stop_reason":"from the future"}',
        ]
        events = [loads_event(line, strict=False) for line in lines]
        shown = list(replay(EditorView(context_tokens=5, notices=True), events))
        check_messages(self, [_told(update) for update in shown])
        self.assertTrue(shown)


class Windows(unittest.TestCase):
    def test_the_window_of_a_model_in_the_table_is_shown_without_a_setting(self) -> None:
        answer = ModelResponse(1, 1, usage={"input_tokens": 900, "output_tokens": 100})
        for model, limit, size in (("gpt-4o", None, 128_000), ("gpt-4o", 5_000, 5_000), ("own", None, None)):
            view = EditorView(context_tokens=limit)
            updates = [
                update for event in (SystemInit("s", "/", "1", model=model), answer) for update in view.take(event)
            ]
            sizes = [update["size"] for update in updates if update["sessionUpdate"] == "usage_update"]
            self.assertEqual(sizes, [] if size is None else [size])


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


def _told(update: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}}


if __name__ == "__main__":
    unittest.main()
