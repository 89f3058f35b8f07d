"""Answers are exact: one rule defines valid answers at every entry point."""

import asyncio
import contextlib
import io
import json
import os
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

from openagentic_sdk import MemorySessionStore, PermissionGate, answer_question, answer_questions, submit
from openagentic_sdk.errors import AnswerRefusedError, OptionsError
from openagentic_sdk.events import UserAnswer, UserQuestion
from openagentic_sdk.parts.mcp.questions import elicit
from openagentic_sdk.permissions.interactive import InteractiveApprover
from openagentic_sdk.server.acp.questions import form_answer, form_params
from openagentic_sdk.server.asgi import app
from openagentic_sdk.server.guard import Principal
from openagentic_sdk.server.mcp_tools import Caller, RunTools
from openagentic_sdk.sessions.answers import pick_choices, read_answer
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.tools.base import Questions, Tool
from openagentic_sdk.tools.bash import BashTool
from openagentic_sdk.tools.session.ask_user_question import AskUserQuestionTool
from tests.pythons import run_python
from tests.runtime.support import assert_closed, options_for
from tests.server.support import TOKEN, agents, ask, options, until_free, until_state
from tests.size import full_size

ROOT = Path(__file__).resolve().parents[2]
UNCLEAR = ("approve", "OK", "true", "1", "yess", "yes please", "nope", "", "  ", "edit", "edit {", "always save")
BASH = {"tool_name": "Bash", "input": {"command": "ls"}}
SEVERAL = {
    "questions": [
        {"question": "Which tea?", "header": "Tea", "choices": ["green", "black"]},
        {"question": "With what?", "choices": ["milk", "lemon, fresh"], "multi_select": True},
        {"question": "For whom?"},
    ]
}


def permission(**details):
    return UserQuestion("q", "Allow Bash?", ("yes", "no", "always"), "permission", details={**BASH, **details})


class Rule(unittest.TestCase):
    def test_a_permission_is_answered_with_a_choice_a_no_with_its_reason_or_an_edit(self):
        for words, answer in (
            ("y", "yes"), (" YES\n", "yes"), ("Always", "always"), ("n", "no"), ("No.", "no"),
            ("n too early", "no too early"),
            ("no because it is late", "no because it is late"), ("No, later", "no later"), ("edit ls -l", "edit ls -l"),
            ('edit {"command": "ls"}', 'edit {"command": "ls"}'),
        ):  # fmt: skip
            self.assertEqual(read_answer(permission(), words), answer)
        for words in UNCLEAR:
            self.assertIsNone(read_answer(permission(), words), words)
        self.assertIsNone(read_answer(permission(tool_name="Write"), "edit a.txt"))
        self.assertIsNone(read_answer(UserQuestion("q", "Allow?", ("yes", "no"), "permission"), "always"))

    def test_a_question_accepts_its_choices_and_other_words_only_if_it_allows_them(self):
        colours = UserQuestion("q", "Which?", ("Red", "blue, dark"))
        for words, answer in (("red", "Red"), (" Blue,dark ", "blue, dark"), ("green", None), ("1", None), ("", None)):
            self.assertEqual(read_answer(colours, words), answer)
        self.assertEqual(read_answer(UserQuestion("q", "Why?"), " because "), "because")
        self.assertIsNone(read_answer(UserQuestion("q", "Why?"), " "))
        own = UserQuestion("q", "Which?", ("Red", "blue"), details={"free_text": True})
        self.assertEqual([read_answer(own, words) for words in ("RED", "green", "")], ["Red", "green", None])
        form = UserQuestion("q", "Open it?", ("accept", "decline"), details={"mcp": {}})
        said = [read_answer(form, words) for words in ("y", "no because it is odd", "true", "OK", "yes sir")]
        self.assertEqual(said, ["accept", "decline", None, None, None])

    def test_several_choices_are_separated_by_commas_which_a_choice_may_contain(self):
        several = UserQuestion("q", "Which?", ("milk", "lemon, fresh"), details={"multi_select": True})
        for words, answer in (
            ("lemon, fresh, MILK", "lemon, fresh, milk"),
            ("milk,milk,", "milk"),
            ("lemon", None),
            ("milk and lemon, fresh", None),
        ):
            self.assertEqual(read_answer(several, words), answer)
        self.assertEqual(pick_choices("2, 1", ("a", "b"), several=True, numbered=True), ["b", "a"])
        self.assertEqual(pick_choices("2", ("2", "1"), numbered=True), ["2"], "a choice before a number")
        self.assertEqual(pick_choices("A", ("a", "A")), ["A"])
        self.assertEqual(pick_choices(" , ", (";", ",")), [","])


class Doors(unittest.IsolatedAsyncioTestCase):
    """Everywhere, invalid answers are refused with a message that names the choices, and nothing is stored."""

    def setUp(self):
        self.store = MemorySessionStore()
        self.call = {"tool_calls": [{"name": "Bash", "arguments": {"command": "echo paid"}}]}

    def size(self, session_id):
        return len(self.store.read_events(session_id))

    async def park(self, turns, *tools, gate=None):
        made = options_for(turns, tools=[BashTool(), AskUserQuestionTool(), *tools], session_store=self.store)
        self.options = (
            made
            if gate is None
            else options_for(turns, tools=list(made.tools), session_store=self.store, permission_gate=gate)
        )
        parked = await submit("go", self.options).wait()
        self.assertEqual(parked.state, "waiting")
        return parked

    async def test_answer_question_refuses_words_that_are_not_a_choice_and_stores_nothing(self):
        parked = await self.park([self.call, "Done."], gate=PermissionGate(permission_mode="prompt"))
        before = self.size(parked.session_id)
        for words in UNCLEAR:
            with self.subTest(words), self.assertRaises(AnswerRefusedError) as caught:
                await answer_question(self.store, parked.session_id, parked.question.question_id, words)
            self.assertIn("yes, no", str(caught.exception))
            self.assertEqual(caught.exception.choices[:2], ("yes", "no"))
        self.assertEqual(self.size(parked.session_id), before)
        await answer_question(self.store, parked.session_id, parked.question.question_id, " Yes ")
        [answer] = [event for event in self.store.read_events(parked.session_id) if isinstance(event, UserAnswer)]
        self.assertEqual(answer.answer, "yes")

    async def test_the_questions_of_one_call_are_put_together_and_answered_together_or_not_at_all(self):
        turns = [{"tool_calls": [{"name": "AskUserQuestion", "arguments": SEVERAL}]}, "Done."]
        parked = await self.park(turns)
        self.assertEqual(
            [each.prompt.split("\n")[0] for each in parked.questions], ["Tea: Which tea?", "With what?", "For whom?"]
        )
        self.assertEqual(parked.question, parked.questions[0])
        self.assertEqual([each.details["multi_select"] for each in parked.questions], [False, True, False])
        self.assertEqual(parked.questions[0].details["header"], "Tea")
        tea, what, whom = [each.question_id for each in parked.questions]
        before = self.size(parked.session_id)
        for wrong, error in (({"x": "y"}, OptionsError), ({whom: " "}, AnswerRefusedError)):
            with self.assertRaises(error):
                await answer_questions(self.store, parked.session_id, {tea: "green", **wrong})
            self.assertEqual(self.size(parked.session_id), before)
        answers = {tea: "GREEN", what: "lemon, fresh, milk", whom: "me"}
        await answer_questions(self.store, parked.session_id, answers)
        again = options_for(
            ["Done."], tools=[AskUserQuestionTool()], session_store=self.store, resume=parked.session_id
        )
        self.assertEqual((await submit(None, again).wait()).data, "Done.")
        events = assert_closed(self, self.store, parked.session_id)
        [result] = [event.output for event in events if event.type == "tool.result"]
        said = [(each["answer"], each["is_choice"]) for each in result["answers"]]
        self.assertEqual(said, [("green", True), ("lemon, fresh, milk", True), ("me", False)])
        self.assertEqual(sum(event.type == "user.question" for event in events), 3)

    async def test_one_answer_of_several_leaves_the_others_open(self):
        turns = [{"tool_calls": [{"name": "AskUserQuestion", "arguments": SEVERAL}]}]
        parked = await self.park(turns)
        await answer_question(self.store, parked.session_id, parked.questions[1].question_id, "milk")
        again = options_for([], tools=[AskUserQuestionTool()], session_store=self.store, resume=parked.session_id)
        still = await submit(None, again).wait()
        self.assertEqual(
            [each.question_id for each in still.questions], [parked.questions[i].question_id for i in (0, 2)]
        )

    async def test_http_and_the_mcp_face_refuse_words_that_are_not_a_choice(self):
        class Launch(Tool):
            name, description, input_schema = "AskUserQuestion", "Asks.", {"type": "object", "properties": {}}

            async def run(self, input, ctx):
                return await ctx.services.get(Questions).ask(ctx, "Launch?", ("now", "never"))

        turns = [{"tool_calls": [{"name": "AskUserQuestion", "arguments": {}}]}]
        made = replace(options(turns), tools=[Launch()])
        application = app(agents(launch=made), store=self.store, auth=TOKEN)
        self.addAsyncCleanup(application.desk.drain, 2.0)
        application.desk.open()
        started = await ask(application, "POST", "/v1/sessions", {"prompt": "Go.", "agent": "launch"})
        session_id = started.json["session_id"]
        row = await until_state(application, session_id, "waiting")
        [question] = row["open_questions"]
        self.assertEqual((question["prompt"], question["choices"]), ("Launch?", ["now", "never"]))
        before, path = self.size(session_id), f"/v1/sessions/{session_id}/answers"
        for words in ("yes", "OK", "true", "1", ""):
            one = {"question_id": question["question_id"], "answer": words}
            for body in (one, {"answers": {one["question_id"]: words}}):
                refused = await ask(application, "POST", path, body)
                self.assertEqual(refused.status, 400)
                self.assertIn("choose one of now, never", refused.json["error"]["message"])
        tools = RunTools(application.desk)
        arguments = {"session_id": session_id, "question_id": question["question_id"], "answer": "approve"}
        refused = await tools.call("answer_question", arguments, Caller(Principal("", True, "user")))
        self.assertTrue(refused["isError"])
        self.assertIn("choose one of now, never", refused["content"][0]["text"])
        for bad in ({}, {"answers": {}}, {"answers": {"q": 1}}, {"question_id": "q", "answers": {"q": "now"}}):
            self.assertEqual((await ask(application, "POST", path, bad)).status, 400)
        self.assertEqual(self.size(session_id), before)
        self.assertEqual(
            (await ask(application, "POST", path, {"answers": {question["question_id"]: "Now"}})).status, 202
        )

    async def test_open_questions_over_http_are_whole_and_answered_in_one_request(self):
        turns = [{"tool_calls": [{"name": "AskUserQuestion", "arguments": SEVERAL}]}, "Done."]
        application = app(agents(tea=turns), store=self.store, auth=TOKEN)
        self.addAsyncCleanup(application.desk.drain, 2.0)
        application.desk.open()
        session_id = (await ask(application, "POST", "/v1/sessions", {"prompt": "Go."})).json["session_id"]
        await until_free(application)  # the questions of the call are asked one after the other, then the run parks
        questions = (await until_state(application, session_id, "waiting"))["open_questions"]
        self.assertEqual([each["choices"] for each in questions], [["green", "black"], ["milk", "lemon, fresh"], []])
        self.assertEqual(questions[0]["details"]["header"], "Tea")
        self.assertTrue(questions[1]["details"]["multi_select"])
        said = dict(zip([each["question_id"] for each in questions], ["black", "milk", "nobody"], strict=True))
        application.desk.agents._agents["tea"] = agents(tea=["Done."])["tea"]
        done = await ask(application, "POST", f"/v1/sessions/{session_id}/answers", {"answers": said})
        self.assertEqual(done.status, 202)
        row = await until_state(application, session_id, "idle")
        self.assertEqual(row["open_questions"], [])

    async def test_ag_ui_refuses_words_that_are_not_a_choice_and_offers_the_choices_as_an_enum(self):
        application = app(agents(pay=options([self.call], BashTool(), mode="prompt")), store=self.store, auth=TOKEN)
        self.addAsyncCleanup(application.desk.drain, 2.0)
        application.desk.open()
        body = {"threadId": "t", "runId": "r1", "messages": [{"id": "m", "role": "user", "content": "Pay."}]}
        first = await ask(application, "POST", "/v1/ag-ui/pay", body)
        last = [json.loads(row[6:]) for row in first.body.decode().splitlines() if row.startswith("data: ")][-1]
        [interrupt] = last["outcome"]["interrupts"]
        self.assertEqual(interrupt["responseSchema"]["properties"]["answer"]["enum"][:2], ["yes", "no"])
        [session_id] = self.store.list_sessions()
        before = self.size(session_id)
        for payload in ("approve", {"answer": "OK"}, "true"):
            entry = {"interruptId": interrupt["id"], "status": "resolved", "payload": payload}
            again = await ask(
                application, "POST", "/v1/ag-ui/pay", {**body, "runId": "r2", "resume": [entry], "messages": []}
            )
            self.assertIn(b"RUN_ERROR", again.body)
            self.assertIn(b"choose one of yes, no", again.body)
        self.assertEqual(self.size(session_id), before)

    async def test_a_form_of_a_server_names_which_answers_its_fields_take(self):
        asked = []

        async def person(text, choices, details):
            asked.append(UserQuestion("q", text, choices, details=details))
            return "red" if choices else ""

        fields = {"colour": {"type": "array", "items": {"enum": ["red", "blue"]}}, "note": {"type": "string"}}
        schema = {"type": "object", "properties": fields, "required": ["colour"]}
        done = await elicit("shop", {"message": "?", "requestedSchema": schema}, person)
        self.assertEqual(done, {"action": "accept", "content": {"colour": ["red"]}})
        self.assertEqual(
            [read_answer(asked[0], words) for words in ("blue, red", "true", "")], ["blue, red", None, None]
        )
        self.assertEqual([read_answer(asked[1], words) for words in ("any", "")], ["any", ""])

    def test_an_editor_that_sends_other_words_than_a_form_offered_has_not_answered(self):
        question = UserQuestion("q", "Launch?", ("now", "never"))
        self.assertNotIn("other", form_params(question, None)["requestedSchema"]["properties"])
        for content, answer in (({"answer": "Now"}, "now"), ({"answer": "OK"}, "none"), ({"other": "maybe"}, "none")):
            said = form_answer({"action": "accept", "content": content}, question, {"cancel": "none"})
            self.assertEqual(said, answer)


class Typed(unittest.TestCase):
    def approve(self, *lines):
        """The answer to a permission question, and the text shown with each line that was read."""
        left, shown = list(lines), []

        def typed(text):
            shown.append(text)
            if not left:
                raise EOFError
            return left.pop(0)

        gate = PermissionGate(
            permission_mode="prompt", interactive_approver=InteractiveApprover(input_fn=typed, colour=False)
        )
        with contextlib.redirect_stdout(io.StringIO()):
            return asyncio.run(gate.approve("Bash", {"command": "rm x"})), shown

    def test_an_unclear_word_is_asked_about_twice_more_and_then_it_is_no(self):
        for lines, allowed, times in (
            (("y",), True, 1), (("why?", "approve", "yes"), True, 3), (("OK", "true", "sure", "yes"), False, 3),
            (("",), False, 1), ((), False, 1), (("maybe",), False, 2), (("what", "no because it is mine"), False, 2),
        ):  # fmt: skip
            result, shown = self.approve(*lines)
            self.assertEqual((result.allowed, len(shown)), (allowed, times), lines)
        result, shown = self.approve("why?", "no because it is mine")
        self.assertIn("it is mine", result.reason)
        self.assertIn("'why?' is not an answer; the answers are yes, no", shown[1])


class PipedAnswers(unittest.TestCase):
    def chat(self, typed, *turns, flags=()):
        script = Path(self.folder, "script.json")
        script.write_text(json.dumps({"turns": list(turns)}), encoding="utf-8")
        keep = {name: value for name, value in os.environ.items() if not name.startswith("OPENAGENTIC_")}
        argv = ["--script", str(script), "--cwd", self.folder, "--store", str(Path(self.folder, "store")), *flags]
        environ = {**keep, "HOME": self.folder, "NO_COLOR": "1"}
        command = ("-m", "openagentic_sdk", "chat", *argv)
        return run_python(*command, input=typed, text=True, timeout=300, cwd=ROOT, env=environ)

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def events(self):
        store = FileSessionStore(root_dir=str(Path(self.folder, "store")))
        [session_id] = store.list_sessions()
        return store.read_events(session_id)

    @full_size
    def test_the_end_of_input_leaves_the_question_open_and_the_next_chat_asks_it(self):
        write = {"tool_calls": [{"name": "Write", "arguments": {"file_path": "a.txt", "content": "x"}}]}
        first = self.chat("write\n", write, "never")
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertIn("Continue with: openagentic-sdk chat --resume", first.stdout)
        self.assertEqual(self.events()[-1].stop_reason, "waiting")
        self.assertEqual([event for event in self.events() if isinstance(event, UserAnswer)], [])
        again = self.chat("approve\nyes\n", "Done.", flags=("--continue",))
        self.assertIn("'approve' is not an answer", again.stdout)
        self.assertTrue(Path(self.folder, "a.txt").exists(), again.stdout)

    def test_a_number_picks_a_choice_and_unclear_words_three_times_are_no(self):
        asks = {"tool_calls": [{"name": "AskUserQuestion", "arguments": SEVERAL}]}
        write = {"tool_calls": [{"name": "Write", "arguments": {"file_path": "a.txt", "content": "x"}}]}
        done = self.chat("go\n2\n2, 1\nthem\n1\nok\nsure\n", asks, write, "Done.")
        said = [event.answer for event in self.events() if isinstance(event, UserAnswer)]
        self.assertEqual(said, ["black", "lemon, fresh, milk", "them", "no"], done.stdout)
        self.assertFalse(Path(self.folder, "a.txt").exists())


if __name__ == "__main__":
    unittest.main()
