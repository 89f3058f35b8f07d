"""Turns that are cancelled, abandoned or questioned at every moment."""

from __future__ import annotations

import asyncio
import json
import os
import unittest
from collections.abc import Callable
from typing import Any

from openagentic_sdk.events import Event
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.options import AgentDefinition
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.rebuild import rebuild_messages
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.testing.validity import find_fault
from tests.size import LARGE, drawn, full_size

from .editor import ALL, Editor, Refused, choose, settled
from .schema import check_messages

TOUCH = {"name": "Bash", "arguments": {"command": "touch made"}}
ASK = {"name": "AskUserQuestion", "arguments": {"question": "Milk?", "choices": ["oat", "cow"]}}
READ = {"name": "Read", "arguments": {"file_path": "a.txt"}}
EDIT = {"name": "Edit", "arguments": {"file_path": "a.txt", "old": "one", "new": "two"}}
SCENE = [
    {"reasoning": "Well.", "text": "I look.", "deltas": 4, "tool_calls": [READ, ASK]},
    {"tool_calls": [EDIT, TOUCH]},
    {"tool_calls": [{"name": "Task", "arguments": {"agent": "reader", "prompt": "Read."}}]},
    {"agent": "You read", "tool_calls": [TOUCH]},
    {"agent": "You read", "text": "Read."},
    "Done.",
]
AGENTS = {"reader": AgentDefinition("Reads.", "You read.")}


def asks(name: str = "yes") -> dict[str, Callable[[dict[str, Any]], Any]]:
    """An editor that answers everything."""
    form = {"action": "accept", "content": {"answer": "oat"}}
    return {"session/request_permission": choose(name), "elicitation/create": lambda params: form}


async def whole_run() -> int:
    """The number of messages that the agent sends in the scene."""
    editor = Editor(SCENE, answers=asks(), agents=AGENTS)
    editor.write("a.txt", "zero\none\n")
    session_id = await editor.start(**ALL)
    await editor.until(lambda: editor.updates, "the commands")
    before = len(editor.messages)
    assert await editor.take_turn(session_id) == "end_turn"
    assert os.path.exists(os.path.join(editor.folder, "made"))
    return len(editor.messages) - before


def assert_settled(test: unittest.TestCase, store: SessionStore, session_id: str) -> list[Event]:
    """Assert that the session is unlocked and its log can be sent to a model."""
    store.open_writer(session_id).close()
    events = store.read_events(session_id)
    test.assertIsNone(find_fault(rebuild_messages(events)))
    test.assertEqual(events[-1].type, "result")
    return events


class Cancelling(unittest.IsolatedAsyncioTestCase):
    @full_size
    async def test_at_every_message_of_a_run(self) -> None:
        """Before the first event, in the middle of text, in a call, a question and a subagent, and after the last event."""
        total = await whole_run()
        for at in range(total + 1) if LARGE else sorted({0, total, *range(0, total, 4)}):
            with self.subTest(at=at):
                editor = Editor(SCENE, answers=asks(), agents=AGENTS)
                editor.write("a.txt", "zero\none\n")
                session_id = await editor.start(**ALL)
                await editor.until(lambda: editor.updates, "the commands")  # noqa: B023
                before, seen = len(editor.messages), 0

                def cancel(message: dict[str, Any]) -> None:
                    nonlocal seen
                    seen += 1
                    if seen == at:  # noqa: B023
                        editor.notify("session/cancel", sessionId=session_id)  # noqa: B023
                        editor.notify("session/cancel", sessionId=session_id)  # noqa: B023

                editor.saw = cancel
                turn = editor.prompt(session_id)
                if at == 0:
                    editor.notify("session/cancel", sessionId=session_id)
                answer = await asyncio.wait_for(turn, 120)
                is_over = at == total  # it was itself the answer
                self.assertEqual(answer["stopReason"], "end_turn" if is_over else "cancelled")
                self.assertIn("result", editor.messages[-1], "nothing follows the answer")
                check_messages(self, editor.messages)
                assert_settled(self, editor.store, session_id)
                calls = [u for u in editor.updates if "toolCallId" in u]
                final = {u["toolCallId"]: u["status"] for u in calls if "status" in u}
                self.assertLessEqual(set(final.values()), {"completed", "failed"}, "no call remains open")
                loaded = await editor.load(session_id)
                told = [m["params"]["update"] for m in editor.messages[before:] if m.get("method") == "session/update"]
                live = told[: len(told) - len(loaded)]
                self.assertEqual(_without_thoughts(settled(loaded)), _without_thoughts(settled(live)))

    async def test_a_question_that_is_open_is_answered_with_cancelled_and_runs_nothing(self) -> None:
        editor = Editor([{"tool_calls": [TOUCH]}, "never"])
        session_id = await editor.start()
        turn = editor.prompt(session_id)
        asked = await editor.until(lambda: editor.asked("session/request_permission"))
        editor.notify("session/cancel", sessionId=session_id)
        editor.reply(asked[0], {"outcome": {"outcome": "cancelled"}})
        self.assertEqual((await turn)["stopReason"], "cancelled")
        self.assertFalse(os.path.exists(os.path.join(editor.folder, "made")))
        events = assert_settled(self, editor.store, session_id)
        self.assertEqual([e.type for e in events if e.type == "tool.started"], [])

    async def test_cancelling_nothing_is_nothing_and_the_next_prompt_runs(self) -> None:
        editor = Editor(["One.", "Two."])
        session_id = await editor.start()
        editor.notify("session/cancel", sessionId=session_id)
        self.assertEqual(await editor.take_turn(session_id), "end_turn")
        editor.notify("session/cancel", sessionId=session_id)
        self.assertEqual(await editor.take_turn(session_id), "end_turn")

    async def test_a_prompt_right_after_a_cancel_is_a_turn_of_its_own(self) -> None:
        editor = Editor([{"tool_calls": [TOUCH]}, "Two."])
        session_id = await editor.start()
        first = editor.prompt(session_id)
        await editor.until(lambda: editor.asked("session/request_permission"))
        editor.notify("session/cancel", sessionId=session_id)
        second = editor.prompt(session_id, "And?")
        self.assertEqual((await first)["stopReason"], "cancelled")
        self.assertEqual((await second)["stopReason"], "end_turn")

    async def test_a_prompt_that_is_withdrawn_as_a_request_is_cancelled_like_a_turn(self) -> None:
        editor = Editor([{"tool_calls": [TOUCH]}, "Two."])
        session_id = await editor.start()
        turn = editor.prompt(session_id)
        await editor.until(lambda: editor.asked("session/request_permission"))
        editor.notify("$/cancel_request", requestId=editor._ids)
        self.assertEqual((await turn)["stopReason"], "cancelled")

    async def test_closing_and_deleting_cancel_what_runs(self) -> None:
        for method in ("session/close", "session/delete"):
            editor = Editor([{"tool_calls": [TOUCH]}, "Two."])
            session_id = await editor.start()
            turn = editor.prompt(session_id)
            await editor.until(lambda: editor.asked("session/request_permission"))  # noqa: B023
            await editor.ask(method, sessionId=session_id)
            self.assertEqual((await turn)["stopReason"], "cancelled")
            self.assertEqual(editor.store.session_exists(session_id), method == "session/close")
            with self.assertRaises(Refused):
                await editor.take_turn(session_id)


class DisconnectedEditors(unittest.IsolatedAsyncioTestCase):
    @full_size
    async def test_at_every_message_of_a_run(self) -> None:
        """Whatever it leaves is unlocked at once and continues when it returns; nothing runs without permission."""
        total = await whole_run()
        for at in range(total) if LARGE else sorted({0, *range(1, total, 4)}):
            with self.subTest(at=at):
                provider = ScriptedProvider(SCENE)
                editor = Editor(lambda: provider, answers=asks(), agents=AGENTS)  # noqa: B023
                editor.write("a.txt", "zero\none\n")
                session_id = await editor.start(**ALL)
                await editor.until(lambda: editor.updates, "the commands")  # noqa: B023
                gone, seen = asyncio.Event(), 0

                def go(message: dict[str, Any]) -> None:
                    nonlocal seen
                    seen += 1
                    if seen > at:  # noqa: B023
                        editor.answers = {}  # noqa: B023
                        gone.set()  # noqa: B023

                editor.saw = go
                turn = editor.prompt(session_id)
                if at == 0:
                    await asyncio.sleep(0)
                    gone.set()
                await asyncio.wait_for(gone.wait(), 120)
                await asyncio.wait_for(editor.agent.leave(), 120)
                turn.cancel()
                if not editor.store.session_exists(session_id):
                    continue
                events = assert_settled(self, editor.store, session_id)
                started = {e.tool_use_id for e in events if e.type == "tool.started"}  # type: ignore[attr-defined]
                allowed = {e.tool_use_id for e in events if e.type == "permission.decision" and e.allowed}  # type: ignore[attr-defined]
                self.assertLessEqual(started, allowed)
                back = Editor(lambda: provider, answers=asks(), agents=AGENTS, store=editor.store, folder=editor.folder)  # noqa: B023
                await back.ask("initialize", protocolVersion=1, clientCapabilities=ALL)
                settled(await back.load(session_id))

    async def test_a_prompt_ends_the_permission_that_was_open_and_the_call_never_runs(self) -> None:
        provider = ScriptedProvider([{"tool_calls": [TOUCH]}, "Done.", "More."])
        editor = Editor(lambda: provider)
        session_id = await editor.start()
        turn = editor.prompt(session_id)
        await editor.until(lambda: editor.asked("session/request_permission"))
        await editor.agent.leave()
        turn.cancel()
        events = assert_settled(self, editor.store, session_id)
        self.assertEqual(vars(events[-1])["stop_reason"], "waiting")
        self.assertFalse(os.path.exists(os.path.join(editor.folder, "made")))
        back = Editor(lambda: provider, answers=asks(), store=editor.store, folder=editor.folder)
        await back.ask("initialize", protocolVersion=1, clientInfo={"name": "zed", "version": "1"})
        loaded = await back.load(session_id)
        self.assertEqual([u["status"] for u in loaded if u["sessionUpdate"] == "tool_call"], ["pending"])
        self.assertEqual(await back.take_turn(session_id, "Never mind."), "end_turn")
        self.assertEqual(back.asked("session/request_permission"), [])
        self.assertFalse(os.path.exists(os.path.join(editor.folder, "made")))
        answer = [event for event in back.store.iter_events(session_id) if event.type == "user.answer"]
        self.assertEqual([vars(event)["answered_by"] for event in answer], ["superseded"])
        texts = [vars(event)["text"] for event in back.store.iter_events(session_id) if event.type == "user.message"]
        self.assertEqual(texts[-1], "Never mind.")
        settled(await back.load(session_id))

    async def test_a_permission_that_is_asked_for_names_the_editor_in_the_log(self) -> None:
        editor = Editor([{"tool_calls": [TOUCH]}, "Done."], answers=asks())
        session_id = await editor.start()
        self.assertEqual(await editor.take_turn(session_id), "end_turn")
        answer = [event for event in editor.store.iter_events(session_id) if event.type == "user.answer"]
        self.assertEqual([vars(event)["answered_by"] for event in answer], ["acp:test"])
        self.assertEqual([vars(event)["approver"]["how"] for event in answer], ["editor"])
        decision = [event for event in editor.store.iter_events(session_id) if event.type == "permission.decision"]
        self.assertEqual([vars(event)["answered_by"] for event in decision], ["acp:test"])

    async def test_a_prompt_ends_the_permission_that_a_subagent_waits_for_too(self) -> None:
        scene = [
            {"tool_calls": [{"name": "Task", "arguments": {"agent": "reader", "prompt": "Read."}}]},
            {"agent": "You read", "tool_calls": [TOUCH]},
            "Done.",
        ]
        provider = ScriptedProvider(scene)
        editor = Editor(lambda: provider, agents=AGENTS)
        session_id = await editor.start()
        turn = editor.prompt(session_id)
        await editor.until(lambda: editor.asked("session/request_permission"))
        await editor.agent.leave()
        turn.cancel()
        back = Editor(lambda: provider, answers=asks(), agents=AGENTS, store=editor.store, folder=editor.folder)
        await back.ask("initialize", protocolVersion=1)
        settled(await back.load(session_id))
        self.assertEqual(await back.take_turn(session_id, "Never mind."), "end_turn")
        self.assertEqual(back.asked("session/request_permission"), [])
        self.assertFalse(os.path.exists(os.path.join(editor.folder, "made")))
        for name in back.store.list_sessions():
            answer = [event for event in back.store.iter_events(name) if event.type == "user.answer"]
            self.assertEqual([vars(event)["answered_by"] for event in answer], ["superseded"])
        settled(await back.load(session_id))


class Asking(unittest.IsolatedAsyncioTestCase):
    async def _asked(self, *calls: Any, answer: Any, **options: Any) -> tuple[Editor, list[dict[str, Any]], str]:
        editor = Editor(
            [{"tool_calls": list(calls)}, "Done."],
            answers={"session/request_permission": lambda params: answer},
            **options,
        )
        editor.write("a.txt", "zero\none\n")
        session_id = await editor.start()
        reason = await editor.take_turn(session_id)
        check_messages(self, editor.messages)
        return editor, [message["params"] for message in editor.asked("session/request_permission")], reason

    @full_size
    async def test_only_a_clear_approval_allows_a_call(self) -> None:
        selected = {"outcome": "selected", "optionId": "yes"}
        answers: tuple[Any, ...] = (
            {"outcome": {"outcome": "selected", "optionId": "allow"}},
            {"outcome": {"outcome": "selected", "optionId": "edit rm"}},
            {"outcome": {"outcome": "selected", "optionId": ["yes"]}},
            {"outcome": {"outcome": "selected"}},
            {"outcome": {"outcome": "cancelled"}},
            {"outcome": {"outcome": "other", "optionId": "yes"}},
            {"outcome": "yes"},
            selected,
            {},
            [],
            "yes",
            True,
        )
        for answer in drawn(answers, 3):
            with self.subTest(str(answer)):
                editor, asked, reason = await self._asked(TOUCH, answer=answer)
                self.assertEqual((len(asked), reason), (1, "end_turn"))
                self.assertFalse(os.path.exists(os.path.join(editor.folder, "made")))
                final = [u for u in editor.updates if u.get("status") == "failed"]
                self.assertIn("the person answered no", json.dumps(final))

    async def test_an_editor_that_cannot_ask_allows_nothing(self) -> None:
        editor = Editor([{"tool_calls": [TOUCH]}, "Done."])
        session_id = await editor.start()
        turn = editor.prompt(session_id)
        (asked,) = await editor.until(lambda: editor.asked("session/request_permission"))
        editor.say({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "what?"}})
        self.assertEqual((await turn)["stopReason"], "end_turn")
        self.assertIn("could not ask: what?", json.dumps(editor.updates))
        self.assertFalse(os.path.exists(os.path.join(editor.folder, "made")))

    async def test_a_person_sees_the_whole_of_what_they_allow(self) -> None:
        write = {"name": "Write", "arguments": {"file_path": "a.txt", "content": "new\n", "overwrite": True}}
        command = {"name": "Bash", "arguments": {"command": "touch " + "x" * 300 + "; touch \x1b[2Jy"}}
        editor, asked, _ = await self._asked(READ, EDIT, write, command, answer=choose("no")({}))
        place = os.path.join(editor.folder, "a.txt")
        edit, whole, bash = (params["toolCall"] for params in asked)
        self.assertEqual(edit["content"][0], {"type": "diff", "path": place, "oldText": "one", "newText": "two"})
        self.assertEqual(
            whole["content"][0], {"type": "diff", "path": place, "oldText": "zero\none\n", "newText": "new\n"}
        )
        text = bash["content"][0]["content"]["text"]
        self.assertIn("x" * 300, text)
        self.assertIn("\\x1b[2Jy", text)
        self.assertNotIn("\\u001b", json.dumps(asked))
        kinds = [[option["kind"] for option in params["options"]] for params in asked]
        self.assertEqual(kinds[0], ["allow_once", "allow_always", "reject_once", "reject_once"])
        self.assertEqual(kinds[2][0], "allow_once")

    async def test_a_file_that_is_replaced_is_shown_with_its_old_content(self) -> None:
        write = {"name": "Write", "arguments": {"file_path": "a.txt", "content": "new\n", "overwrite": True}}
        editor, _, _ = await self._asked(READ, write, answer=choose("yes")({}))
        session_id = editor.messages[1]["result"]["sessionId"]
        shown = dict(settled(editor.updates)["seen"])["call_1_2"]["content"]
        self.assertEqual((shown[0]["oldText"], shown[0]["newText"]), ("zero\none\n", "new\n"))
        self.assertEqual(settled(await editor.load(session_id)), settled(_turn(editor)))

    async def test_always_holds_for_the_session_and_stop_ends_the_turn(self) -> None:
        editor, asked, _ = await self._asked(TOUCH, TOUCH, answer=choose("always")({}))
        self.assertEqual(len(asked), 1)
        editor, asked, reason = await self._asked(TOUCH, TOUCH, answer=choose("stop")({}))
        self.assertEqual((len(asked), reason), (1, "cancelled"))
        self.assertFalse(os.path.exists(os.path.join(editor.folder, "made")))

    async def test_one_question_is_open_at_a_time(self) -> None:
        task = {"name": "Task", "arguments": {"agent": "reader", "prompt": "Read."}}
        other = {"name": "Bash", "arguments": {"command": "touch other"}}  # the same file would cause another question
        reads = [{"agent": "You read", "tool_calls": [TOUCH]}, {"agent": "You read", "tool_calls": [other]}]
        done = [{"agent": "You read", "text": "Read."}, {"agent": "You read", "text": "Read."}]
        editor = Editor([{"tool_calls": [task, task]}, *reads, *done, "Done."], agents=AGENTS)
        session_id = await editor.start()
        turn = editor.prompt(session_id)
        for number in (1, 2):
            asked = await editor.until(lambda n=number: len(editor.asked("session/request_permission")) >= n)
            for _ in range(20):
                await asyncio.sleep(0)
            asked = editor.asked("session/request_permission")
            self.assertEqual(len(asked), number)
            editor.reply(asked[-1], choose("yes")({}))
        self.assertEqual((await turn)["stopReason"], "end_turn")
        settled(editor.updates)

    @full_size
    async def test_a_model_asks_with_a_form_or_with_buttons_or_in_its_answer(self) -> None:
        free = {"name": "AskUserQuestion", "arguments": {"question": "Which tea?"}}
        form = {"elicitation": {"form": {}}}
        cases: list[tuple[dict[str, Any], Any, str, Any, str]] = [
            (form, ASK, "elicitation/create", {"action": "accept", "content": {"answer": "cow"}}, '"answer": "cow"'),
            (
                form,
                ASK,
                "elicitation/create",
                {"action": "accept", "content": {"other": "none", "answer": "cow"}},
                "none",
            ),
            (form, free, "elicitation/create", {"action": "accept", "content": {"other": "green"}}, "green"),
            (form, free, "elicitation/create", {"action": "decline"}, "did not answer"),
            (form, free, "elicitation/create", {"action": "accept"}, "did not answer"),
            (form, free, "elicitation/create", [], "did not answer"),
            ({}, ASK, "session/request_permission", choose("1")({}), '"answer": "cow"'),
            ({}, ASK, "session/request_permission", choose("none")({}), "did not answer"),
            ({}, ASK, "session/request_permission", choose("²")({}), "did not answer"),
            ({"elicitation": {}}, free, "", None, "end your turn"),
        ]
        for capabilities, call, method, answer, expected in cases:
            with self.subTest(f"{method} {answer}"):
                editor = Editor(
                    [
                        {"tool_calls": [call]},
                        {"text": "Done.", "expect": {"tool_results": {"AskUserQuestion": expected}}},
                    ],
                    answers={method: lambda params, answer=answer: answer},
                )
                session_id = await editor.start(**capabilities)
                self.assertEqual(await editor.take_turn(session_id), "end_turn")
                check_messages(self, editor.messages)
                self.assertEqual(len(editor.asked(method)), 1 if method else 0)


class Steering(unittest.IsolatedAsyncioTestCase):
    async def test_a_prompt_sent_during_a_turn_reaches_its_next_step(self) -> None:
        editor = Editor([{"tool_calls": [TOUCH]}, {"text": "Done.", "expect": {"last": "hurry"}}])
        session_id = await editor.start()
        first = editor.prompt(session_id)
        (asked,) = await editor.until(lambda: editor.asked("session/request_permission"))
        second = editor.prompt(session_id, "hurry")
        editor.reply(asked, choose("yes")({}))
        self.assertEqual([(await turn)["stopReason"] for turn in (first, second)], ["end_turn", "end_turn"])
        said = [
            u["content"]["text"] for u in await editor.load(session_id) if u["sessionUpdate"] == "user_message_chunk"
        ]
        self.assertEqual(said, ["Go.", "hurry"])

    async def test_many_prompts_at_once_are_all_answered(self) -> None:
        editor = Editor(lambda: ScriptedProvider(["x"] * 20))
        session_id = await editor.start()
        turns = [editor.prompt(session_id, f"p{number}") for number in range(10)]
        answers = await asyncio.wait_for(asyncio.gather(*turns), 120)
        self.assertEqual({answer["stopReason"] for answer in answers}, {"end_turn"})
        said = [vars(e)["text"] for e in editor.store.iter_events(session_id) if e.type == "user.message"]
        self.assertEqual(sorted(said), sorted(f"p{number}" for number in range(10)))
        turns = [editor.prompt(session_id, f"q{number}") for number in range(10)]
        editor.notify("session/cancel", sessionId=session_id)
        answers = await asyncio.wait_for(asyncio.gather(*turns), 120)
        self.assertEqual({answer["stopReason"] for answer in answers}, {"cancelled"})
        self.assertEqual(await editor.take_turn(session_id, "after"), "end_turn")


class Endings(unittest.IsolatedAsyncioTestCase):
    async def test_every_way_to_end_has_its_reason(self) -> None:
        calls = [{"tool_calls": [READ]}, "never"]
        refuses = HookEngine(user_prompt_submit=[HookMatcher("h", "*", lambda payload: HookDecision(block=True))])
        cases: list[tuple[list[Any], dict[str, Any], str]] = [
            (["x"], {}, "end_turn"),
            ([{"text": "x", "finish_reason": "length"}], {}, "max_tokens"),
            (calls, {"max_steps": 1}, "max_turn_requests"),
            (calls, {"max_tokens": 1}, "max_turn_requests"),
            (["x"], {"hooks": refuses}, "end_turn"),
        ]
        for turns, options, reason in cases:
            with self.subTest(reason, **{key: str(value) for key, value in options.items()}):
                editor = Editor(turns, **options)
                self.assertEqual(await editor.take_turn(await editor.start()), reason)

    async def test_a_run_that_fails_is_an_error_and_the_session_continues(self) -> None:
        broken = {"error": {"message": "no model here", "status": 400}}
        editor = Editor([broken, "Better."])
        session_id = await editor.start()
        with self.assertRaises(Refused) as failed:
            await editor.take_turn(session_id)
        self.assertEqual((failed.exception.code, failed.exception.text), (-32603, "no model here"))
        self.assertEqual(await editor.take_turn(session_id), "end_turn")

    async def test_a_prompt_whose_turn_could_not_begin_is_not_run_with_the_next_one(self) -> None:
        editor = Editor(["x"])
        session_id = await editor.start()
        os.rename(editor.folder, f"{editor.folder}.away")
        with self.assertRaisesRegex(Refused, "is not a folder"):
            await editor.take_turn(session_id, "first")
        os.rename(f"{editor.folder}.away", editor.folder)
        self.assertEqual(await editor.take_turn(session_id, "second"), "end_turn")
        said = [vars(event)["text"] for event in editor.store.iter_events(session_id) if event.type == "user.message"]
        self.assertEqual(said, ["second"])

    @full_size
    async def test_sessions_run_side_by_side(self) -> None:
        editor = Editor(lambda: ScriptedProvider([{"tool_calls": [TOUCH]}, "Done."]))
        ids = [await editor.start() for _ in range(3)]
        turns = [editor.prompt(session_id) for session_id in ids]
        asked = await editor.until(
            lambda: len(found := editor.asked("session/request_permission")) == 3 and found, "all three questions"
        )
        for message in reversed(asked):
            editor.reply(message, choose("yes")({}))
        self.assertEqual([(await turn)["stopReason"] for turn in turns], ["end_turn"] * 3)

    async def test_an_editor_that_takes_nothing_for_a_while_gets_all_of_it_in_order(self) -> None:
        editor = Editor([{"text": "x" * 3000, "deltas": 3}], permission_gate=PermissionGate())
        taking = asyncio.Event()
        real = editor._take

        async def slow(line: bytes) -> None:
            await taking.wait()
            await real(line)

        session_id = await editor.start()
        editor.agent.peer._send = slow
        turn = editor.prompt(session_id)
        for _ in range(50):
            await asyncio.sleep(0)
        self.assertFalse(turn.done())
        taking.set()
        self.assertEqual((await turn)["stopReason"], "end_turn")
        text = "".join(u["content"]["text"] for u in editor.updates if u["sessionUpdate"] == "agent_message_chunk")
        self.assertEqual(text, "x" * 3000)


def _without_thoughts(shown: dict[str, Any]) -> dict[str, Any]:
    """Remove reasoning, because no log contains the reasoning of an answer that was cut off."""
    seen = [(key, value) for key, value in shown["seen"] if "agent_thought_chunk" not in key]
    return {**shown, "seen": seen}


def _turn(editor: Editor) -> list[dict[str, Any]]:
    """The updates of the first turn."""
    over = next(i for i, m in enumerate(editor.messages) if "stopReason" in (m.get("result") or {}))
    return [m["params"]["update"] for m in editor.messages[:over] if m.get("method") == "session/update"]


if __name__ == "__main__":
    unittest.main()
