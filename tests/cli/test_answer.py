"""`openagentic-sdk sessions answer`: the answer to a question of an agent, from another process than its program."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from openagentic_sdk import Agent, FileSessionStore, OpenAgenticOptions, RunFailedError
from openagentic_sdk.cli.exits import FAILED, OK, USAGE
from openagentic_sdk.testing import ScriptedProvider
from openagentic_sdk.tools.session.ask_user_question import AskUserQuestionTool

from .test_main import CommandCase


def shop(store: Path, refunds: list[str], *orders: str) -> Agent[None, str]:
    """An agent that asks before each refund, with the script and the store that every process of the program has."""

    def refund(order: str) -> str:
        """Refund an order."""
        refunds.append(order)
        return "refunded"

    calls = [{"name": "refund", "arguments": {"order": order}} for order in orders]
    model = ScriptedProvider([{"tool_calls": calls}, "Done."], resumable=True)
    options = OpenAgenticOptions(session_store=FileSessionStore(store))
    return Agent(model, tools=[refund], needs_approval=["refund"], options=options)


class Answer(CommandCase):
    def test_the_next_run_of_the_program_continues_with_the_stored_answer(self) -> None:
        refunds: list[str] = []
        with self.assertRaises(RunFailedError):
            shop(self.store, refunds, "7").run_sync("Refund order 7.", session="customer")
        code, _, wrong = self.command("sessions", "answer", "customer", "perhaps")
        self.assertEqual(code, USAGE)
        self.assertIn("'perhaps' is not a valid answer", wrong)
        code, said, _ = self.command("sessions", "answer", "cust", "yes")
        self.assertEqual(code, OK)
        self.assertIn("answered: yes; its next run without a prompt continues with it", said)
        self.assertEqual(refunds, [], "the command stores the answer and runs nothing")
        self.assertEqual(shop(self.store, refunds, "7").run_sync(session="customer").output, "Done.")
        self.assertEqual(refunds, ["7"])
        code, _, wrong = self.command("sessions", "answer", "customer", "yes")
        self.assertEqual(code, USAGE)
        self.assertIn("'customer' has no open question: `openagentic-sdk sessions why customer`", wrong)

    def test_every_command_that_is_printed_names_the_store(self) -> None:
        here = self.store.parent / "refunds of today"
        with self.assertRaises(RunFailedError):
            shop(here, [], "7").run_sync("Refund order 7.", session="customer")
        flag = ("--store", str(here))
        _, said, _ = self.command("sessions", "why", "customer", *flag)
        printed = re.findall(r"`openagentic-sdk ([^`]+)`", said)
        self.assertEqual(len(printed), 1)
        _, _, wrong = self.command("workflow", "answer", "customer", "yes", *flag)
        for command in re.findall(r"`openagentic-sdk ([^`]+)`", wrong):
            self.assertIn(f" {shlex.join(flag)}", command)
        self.assertEqual(self.command(*shlex.split(printed[0]))[0], OK)
        _, _, wrong = self.command("sessions", "answer", "customer", "yes", *flag)
        (look,) = re.findall(r"`openagentic-sdk ([^`]+)`", wrong)
        self.assertEqual(self.command(*shlex.split(look))[0], FAILED)
        _, _, wrong = self.command("run", "--resume", "customer", *flag, "")
        (look,) = re.findall(r"`openagentic-sdk ([^`]+)`", wrong)
        self.assertEqual(self.command(*shlex.split(look))[0], FAILED)

    def test_one_of_several_questions_is_named(self) -> None:
        asked = [{"question": text, "options": ["small", "large"]} for text in ("Which pot?", "Which cup?")]
        model = ScriptedProvider([{"tool_calls": [{"name": "AskUserQuestion", "arguments": {"questions": asked}}]}])
        options = OpenAgenticOptions(session_store=FileSessionStore(self.store))
        with self.assertRaises(RunFailedError) as failed:
            Agent(model, tools=[AskUserQuestionTool()], options=options).run_sync("Tea.", session="tea")
        first, second = [question.question_id for question in failed.exception.result.questions]
        code, _, wrong = self.command("sessions", "answer", "tea", "small")
        self.assertEqual(code, USAGE)
        self.assertIn(f"waits for 2 questions: name one with --question ({first}, {second})", wrong)
        code, said, _ = self.command("sessions", "answer", "tea", "large", "--question", second, "--json")
        self.assertEqual(json.loads(said), {"session_id": "tea", "question_id": second})
        self.assertEqual(FileSessionStore(self.store).open_question_ids("tea"), (first,))

    def test_a_command_for_workflows_refuses_other_sessions_and_names_their_command(self) -> None:
        with self.assertRaises(RunFailedError):
            shop(self.store, [], "7").run_sync("Refund order 7.", session="customer")
        code, _, wrong = self.command("workflow", "answer", "customer", "yes")
        self.assertEqual(code, USAGE)
        self.assertIn("'customer' is not a workflow: it waits for 1 answer", wrong)
        self.assertIn("`openagentic-sdk sessions answer customer ANSWER` answers it", wrong)
        self.assertEqual(self.command("sessions", "answer", "customer", "yes")[0], OK)
        code, _, wrong = self.command("workflow", "answer", "customer", "yes")
        self.assertEqual(code, USAGE)
        self.assertIn("it waits for nothing, and `openagentic-sdk sessions why customer` shows its state", wrong)
