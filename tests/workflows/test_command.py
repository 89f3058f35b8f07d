"""`openagentic-sdk workflow run|list|show|tail|answer|cancel|retry`, and the fold they display."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import sys
import unittest
from pathlib import Path
from typing import Any

from openagentic_sdk.assemble import trust_store
from openagentic_sdk.cli.exits import FAILED, INTERRUPTED, OK, USAGE
from openagentic_sdk.cli.main import main
from openagentic_sdk.events import PartState, Result, SystemInit, ToolResult, ToolStarted, ToolUse, UserMessage
from openagentic_sdk.parts.project.claude import find_project_root
from openagentic_sdk.parts.workflows.progress import WorkflowProgress
from openagentic_sdk.sessions.store import FileSessionStore
from tests.size import full_size

from ..cli.test_main import CommandCase
from ..guards.source import ROOT
from ..pythons import run_python

WAITING = 3
MODULE = """
import asyncio, os, shutil, signal
from pathlib import Path
from openagentic_sdk import Agent, Flow, OpenAgenticOptions, workflow
from openagentic_sdk.testing import ScriptedProvider

HERE = Path(__file__).parent
(HERE / "imported").touch()
reviewer = Agent(ScriptedProvider(["note", "note"]), name="reviewer")

def list_files(repository: str, most: int) -> list[str]:
    return [f"{repository}/{number}" for number in range(most)]

def publish(notes: list[str]) -> int:
    if not (HERE / "up").exists():
        raise ConnectionError("the site is down")
    return len(notes)

@workflow
async def review(flow: Flow, repository: str, most: int) -> str:
    files = await flow.step(list_files, repository, most)
    flow.publish("files", len(files))
    notes = await flow.gather((flow.agent(reviewer, file) for file in files), limit=2)
    if await flow.ask("Publish?", choices=("yes", "no")) == "yes":
        await flow.step(publish, notes, effect="unsafe")
    return f"{len(notes)} notes of {flow.now():%Y}"

@workflow(name="review")
async def changed(flow: Flow, repository: str, most: int) -> str:
    return str(await flow.step(publish, []))

async def wait_for_ever() -> None:
    if not (HERE / "up").exists():
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

@workflow
async def nap(flow: Flow) -> str:
    await flow.step(wait_for_ever, effect="read")
    return "rested"

@workflow
async def order(flow: Flow) -> str:
    return str((await flow.wait_for("paid"))["amount"])

@workflow
async def tidy(flow: Flow) -> str:
    try:
        return await flow.ask("Go on?")
    except asyncio.CancelledError:
        await flow.step((HERE / "tidied").touch)
        raise

def remove(folder: str) -> None:
    shutil.rmtree(folder)

@workflow
async def lose(flow: Flow, folder: str) -> None:
    await flow.step(remove, folder)
    await flow.step(publish, [])

not_one = 4
"""


class Terminal(io.StringIO):
    """A text that counts as a terminal."""

    def isatty(self) -> bool:
        return True


class WorkflowCommand(CommandCase):
    def setUp(self) -> None:
        super().setUp()
        self.app = self.folder / "app"
        self.app.mkdir()
        self.module = f"flows_{id(self)}"
        (self.app / f"{self.module}.py").write_text(MODULE, encoding="utf-8")
        self.addCleanup(lambda: sys.modules.pop(self.module, None))

    def run_flow(self, name: str, *words: str) -> tuple[int, str, str]:
        return self.command("workflow", "run", f"{self.module}:{name}", *words, "--app-dir", str(self.app))

    def add_own_flows(self, key: Path) -> None:
        """Add workflows that have a key file of their own."""
        with (self.app / f"{self.module}.py").open("a") as file:
            file.write(f"from dataclasses import replace\nown = OpenAgenticOptions(key_file={str(key)!r})\n")
            file.writelines(f"own_{flow} = replace({flow}, options=own)\n" for flow in ("order", "tidy", "review"))

    def shown(self, session: str) -> dict[str, Any]:
        code, out, _ = self.command("workflow", "show", session, "--json")
        self.assertEqual(code, OK)
        found: dict[str, Any] = json.loads(out)
        return found

    def test_a_workflow_whose_store_is_removed_fails_with_the_reason(self) -> None:
        code, out, err = self.run_flow("lose", f"folder={self.store}")
        self.assertEqual(code, FAILED)
        self.assertRegex(out + err, "lose: .*\n.*no longer written to, since its file was deleted")

    def test_a_misspelled_name_suggests_the_workflow(self) -> None:
        code, _, err = self.run_flow("reveiw")
        self.assertEqual(code, USAGE)
        self.assertIn("did you mean review?", err)

    def test_the_same_command_starts_a_workflow_whose_process_died_before_its_arguments_were_stored(self) -> None:
        FileSessionStore(self.store).create_session(session_id="r")
        code, out, err = self.run_flow("review", "repository=/srv", "most=1", "--session", "r")
        self.assertEqual(code, WAITING, err)
        self.assertIn("? Publish? (yes, no)", out)
        for words in ((), ("repository=/srv", "most=1")):  # now they are stored, and need not be repeated
            code, _, err = self.run_flow("review", *words, "--session", "r")
            self.assertEqual(code, WAITING, err)
        code, _, err = self.run_flow("review", "repository=/other", "most=1", "--session", "r")
        self.assertEqual((code, "'r' began with other arguments" in err), (USAGE, True))

    @full_size
    def test_a_workflow_runs_waits_is_answered_fails_is_retried_and_ends(self) -> None:
        code, out, err = self.run_flow("review", "repository=/srv", "most=2", "--session", "r")
        self.assertEqual(code, WAITING, err)
        self.assertIn("? Publish? (yes, no)", out)
        go_on = shlex.split(err.strip().removeprefix("to continue: openagentic-sdk "))
        self.assertEqual(self.command("workflow", "query", "r", "files")[:2], (OK, "2\n"))
        self.assertEqual(json.loads(self.command("workflow", "query", "r", "--json")[1])["value"], {"files": 2})
        self.assertIn("it has published files", self.command("workflow", "query", "r", "pages")[2])
        self.assertEqual(self.command("workflow", "answer", "r", "maybe")[0], USAGE)
        self.assertEqual(self.command("workflow", "answer", "r", "yes")[0], OK)
        code, out, _ = self.command(*go_on)
        self.assertEqual(code, FAILED)
        self.assertIn("the site is down", out)
        steps = self.shown("r")["steps"]
        self.assertEqual([step["state"] for step in steps], ["done", "done", "done", "done", "failed"])
        self.assertEqual([step["level"] for step in steps], [1, 2, 2, 3, 4])
        child = steps[1]["child_session_id"]
        self.assertIn("a step of the workflow 'r': give that id", self.command("workflow", "answer", child, "yes")[2])
        (self.app / "up").touch()
        for number, code in (("99", FAILED), ("1", FAILED), (steps[-1]["number"], OK)):
            self.assertEqual(self.command("workflow", "retry", "r", number)[0], code)
        code, out, _ = self.command(*go_on)
        self.assertEqual((code, out.splitlines()[-1][:8]), (OK, "2 notes "))
        self.assertEqual(self.shown("r")["steps"][-1]["attempt"], 2)
        code, out, _ = self.command("workflow", "replay", f"{self.module}:review", "r", "--app-dir", str(self.app))
        self.assertEqual((code, out), (OK, "7 steps: the code matches them\n"))
        code, out, _ = self.command("workflow", "replay", f"{self.module}:changed", "r", "--app-dir", str(self.app))
        self.assertEqual(code, FAILED)
        self.assertRegex(out, r"its step 1 was list_files\(.*\) at .*\.py:\d+ and is now publish\(.*\) at .*\.py:\d+")
        self.assertIn("workflow replay", self.command("replay", "r")[2])
        code, out, _ = self.command("workflow", "tail", "r")
        self.assertEqual((code, out.count("\ndone "), out.count("publish")), (OK, 4, 2))

    def test_lists_and_ends_what_waits(self) -> None:
        self.assertEqual(self.command("workflow", "list")[1], "no workflows\n")
        self.run_flow("review", "repository=/srv", "most=1", "--session", "waits")
        out = self.command("workflow", "list", "--json")[1]
        (row,) = map(json.loads, out.splitlines())
        self.assertEqual(
            (row["session_id"], row["state"], row["counts"]), ("waits", "waiting", {"done": 2, "waiting": 1})
        )
        self.assertEqual(self.command("workflow", "cancel", "waits")[0], OK)
        self.assertEqual(self.command("workflow", "cancel", "waits")[0], FAILED)
        self.assertEqual(self.command("workflow", "answer", "waits", "yes")[0], USAGE)
        self.assertEqual(self.command("run", "--script", self.script("Hello."), "x")[0], OK)
        self.assertEqual(self.command("workflow", "show", self.session_ids()[0])[0], USAGE)

    def test_one_whose_process_died_is_stopped_and_every_command_names_how_to_continue(self) -> None:
        self.run_flow("review", "repository=/srv", "most=1", "--session", "asks")
        self.run_flow("order", "--session", "dead")
        for name in ("asks", "dead"):
            FileSessionStore(self.store).append_event(name, SystemInit(name, "/", "1"))
        rows = map(json.loads, self.command("workflow", "list", "--json")[1].splitlines())
        states = {"asks": "waiting", "dead": "stopped"}  # a question can be answered whether or not its process lives
        self.assertEqual({row["session_id"]: row["state"] for row in rows}, states)
        self.assertEqual({name: self.shown(name)["state"] for name in states}, states)
        command = "openagentic-sdk workflow run MODULE:NAME --session dead"
        lines = self.command("workflow", "show", "dead")[1].splitlines()
        self.assertTrue(lines[-1].startswith(f"to continue: {command}"), lines)
        why = self.command("sessions", "why", "dead")[1]
        self.assertIn(f"to continue: {command}", why)
        self.assertNotIn("run_sync", why)

    def test_one_that_was_cancelled_asks_nothing_more_and_cleans_up(self) -> None:
        self.assertEqual(self.run_flow("tidy", "--session", "t")[0], WAITING)
        code, _, err = self.run_flow("order", "--session", "t")
        self.assertEqual((code, "belongs to the workflow 'tidy', not 'order'" in err), (USAGE, True))
        self.assertEqual((self.shown("t")["state"], len(self.shown("t")["questions"])), ("waiting", 1))
        code, out, _ = self.command("workflow", "cancel", "t")
        self.assertEqual((code, "lets it clean up" in out), (OK, True))
        code, out, _ = self.command("workflow", "cancel", "t")
        self.assertEqual((code, out.startswith("it had already been cancelled; the next")), (FAILED, True))
        for _ in range(2):
            code, _, err = self.run_flow("tidy", "--session", "t")
            self.assertEqual((code, "to continue" in err), (INTERRUPTED, False))
        self.assertEqual(self.command("workflow", "cancel", "t")[:2], (FAILED, "it had already ended\n"))
        self.assertIn("'t' has no open question", self.command("workflow", "answer", "t", "yes")[2])
        self.assertIn("'t' has ended and receives no more", self.command("workflow", "send", "t", "paid")[2])
        for words in (("sessions", "why", "t"), ("workflow", "show", "t")):
            out = self.command(*words)[1]
            self.assertEqual(("run_sync" in out, "to continue" in out), (False, False), out)
        self.assertTrue((self.app / "tidied").exists())
        self.assertEqual([step["name"] for step in self.shown("t")["steps"]], ["ask", "touch"])

    def test_an_event_is_delivered_once_and_before_the_workflow_waits_for_it(self) -> None:
        for start in ("delivered", "it had been delivered before"):
            code, out, _ = self.command("workflow", "send", "o", "paid", '{"amount": 7}', "--event-id", "e")
            self.assertEqual((code, out.startswith(start)), (OK, True))
        self.assertEqual(self.run_flow("order", "--session", "o")[0], OK)
        self.assertEqual(self.shown("o")["output"], "7")
        code, out, err = self.command("workflow", "send", "o", "paid", '{"amount": 8}')
        self.assertEqual((code, out), (FAILED, ""))
        self.assertIn("workflow 'o' has ended and receives no more events: 'paid' was not stored", err)
        self.assertEqual(self.command("sessions", "verify", "--all")[0], OK)  # its inbox names no call

    def test_an_event_reaches_the_newest_workflow_and_no_session_of_another_kind(self) -> None:
        send = ("workflow", "send")
        code, out, err = self.command(*send, "newest", "paid", '{"amount": 7}')
        self.assertEqual((code, out, "contains no sessions yet" in err), (USAGE, "", True))
        for flow in ("order", "tidy"):
            self.assertEqual(self.run_flow(flow, "--session", f"{flow}-1")[0], WAITING)
        FileSessionStore(self.store).create_session(session_id="chat")
        self.assertEqual(self.command(*send, "newest", "paid", "--json")[1].count('"session_id": "tidy-1"'), 1)
        code, out, _ = self.command(*send, "order", "paid", '{"amount": 7}')
        self.assertEqual(code, OK)
        self.assertIn(
            "no session has the id 'order' yet: the workflow must be run with it; if you meant 'order-1'", out
        )
        self.assertNotIn("yet", self.command(*send, "order-1", "other")[1])
        self.assertEqual(self.command(*send, "chat", "paid")[0], OK)  # its process may have died before the arguments
        with FileSessionStore(self.store).open_writer("chat") as writer:
            writer.append([UserMessage("Hi.")])
        code, _, err = self.command(*send, "chat", "paid")
        self.assertEqual((code, "session 'chat' is not a workflow" in err), (USAGE, True))
        self.assertIn("give that id to this command", self.command(*send, "tidy-1.inbox", "paid")[2])

    def test_the_start_of_an_id_names_a_workflow_that_has_received_an_event(self) -> None:
        self.assertEqual(self.run_flow("order", "--session", "order-17")[0], WAITING)
        self.assertEqual(self.command("workflow", "send", "order-17", "other")[0], OK)
        self.assertEqual(self.command("workflow", "show", "order-1")[0], OK)
        FileSessionStore(self.store).create_session(session_id="order-17.b")
        self.assertIn("begin with 'order-1'", self.command("workflow", "show", "order-1")[2])

    def test_no_session_is_created_whose_id_the_commands_would_take_for_another(self) -> None:
        code, _, err = self.run_flow("order", "--session", "newest")
        self.assertEqual((code, self.session_ids()), (USAGE, []))
        self.assertIn("--session needs a complete id, and 'newest' is not one", err)
        agents = self.folder / "agents.toml"
        agents.write_text(f"[agents.tea]\nscript = {json.dumps(self.script('Tea.'))}\n", encoding="utf-8")
        where = ("--agents", str(agents), "--store", f"sqlite:{self.folder / 'runs.db'}")
        code, _, err = self.command("fleet", "enqueue", *where, "tea", "Tea?", "--session", "newest")
        self.assertEqual((code, "'newest' is not one" in err), (USAGE, True))
        FileSessionStore(self.store).create_session(session_id="newest")
        self.assertEqual(self.run_flow("order", "--session", "newest")[0], WAITING)

    def test_a_workflow_with_its_own_key_is_changed_only_with_that_key(self) -> None:
        key = self.folder / "own.key"
        self.add_own_flows(key)
        for flow in ("order", "tidy", "review"):
            arguments = ("repository=/srv", "most=0") if flow == "review" else ()
            self.assertEqual(self.run_flow(f"own_{flow}", *arguments, "--session", flow)[0], WAITING)
        commands = (
            ("send", "order", "paid", '{"amount": 7}'),
            ("cancel", "tidy"),
            ("answer", "review", "yes"),
        )
        for words in commands:
            code, out, err = self.command("workflow", *words)
            self.assertEqual((code, out), (USAGE, ""))
            self.assertRegex(err, r"another key.*\$OPENAGENTIC_SDK_KEY")
        os.environ["OPENAGENTIC_SDK_KEY"] = str(key)
        for words in commands:
            self.assertEqual(self.command("workflow", *words)[0], OK)
        del os.environ["OPENAGENTIC_SDK_KEY"]
        self.assertIn("7", self.run_flow("own_order", "--session", "order")[1])
        self.run_flow("own_tidy", "--session", "tidy")
        self.assertTrue((self.app / "tidied").exists())
        self.run_flow("own_review", "--session", "review")  # `publish` fails
        failed = self.shown("review")["steps"][-1]["number"]
        code, _, err = self.command("workflow", "retry", "review", failed)
        self.assertEqual((code, "another key" in err), (USAGE, True))
        (self.app / "up").touch()
        os.environ["OPENAGENTIC_SDK_KEY"] = str(key)
        self.assertEqual(self.command("workflow", "retry", "review", failed)[0], OK)
        del os.environ["OPENAGENTIC_SDK_KEY"]
        self.assertEqual(self.run_flow("own_review", "--session", "review")[0], OK)

    @unittest.skipUnless(hasattr(os, "openpty"), "there are no pseudoterminals here")
    def test_an_answer_typed_during_a_run_is_stored_with_the_key_of_the_workflow(self) -> None:
        self.add_own_flows(self.folder / "own.key")
        leader, follower = os.openpty()
        self.addCleanup(os.close, leader)
        os.write(leader, b"Yes.\n")
        before = sys.stdin
        self.addCleanup(setattr, sys, "stdin", before)
        with open(follower, encoding="utf-8") as sys.stdin, contextlib.redirect_stdout(Terminal()) as out:
            code = main(["workflow", "run", f"{self.module}:own_tidy", "--session", "t", "--app-dir", str(self.app)])
        self.assertEqual(code, OK, out.getvalue())
        self.assertEqual(self.shown("t")["output"], "Yes.")

    def test_a_secret_in_an_event_is_masked_and_the_sender_notified(self) -> None:
        code, out, _ = self.command(
            "workflow", "send", "o", "paid", '{"key": "sk-proj-abcdefghijklmnopqrstuvwx0123456789"}'
        )
        self.assertEqual((code, "a secret in its data was masked" in out), (OK, True))
        code, out, _ = self.command("workflow", "send", "o", "paid", '{"key": "OUR_KEY"}', "--json")
        self.assertEqual(json.loads(out)["masked"], False)

    def test_json_prints_each_event_and_a_deny_rule_holds(self) -> None:
        words = ("repository=/srv", "most=1", "--session", "r", "--json", "--deny", "list_files")
        code, out, _ = self.run_flow("review", *words)
        events = [json.loads(line) for line in out.splitlines()]
        self.assertEqual((code, events[0]["type"], events[-1]["type"]), (FAILED, "system.init", "result"))
        self.assertEqual([each["outcome"] for each in events if each["type"] == "tool.result"], ["denied"])

    def test_an_unknown_workflow_or_wrong_arguments_are_usage_errors(self) -> None:
        for name, words in (
            ("review", ("most=1",)),
            ("review", ("repository",)),
            ("review", ("repository=x", "most=1", "other=1")),
            ("review", ("repository=x", "most=many")),
            ("not_one", ()),
            ("missing", ()),
        ):
            with self.subTest(name, words=words):
                self.assertEqual(self.run_flow(name, *words)[0], USAGE)
        self.assertIn(" (the arguments are repository, most)\n", self.run_flow("review", "most=1")[2])
        self.assertIn(
            "most=a,b cannot be used (the value must be", said := self.run_flow("review", "repository=x", "most=a,b")[2]
        )
        self.assertIn(": write it as JSON", said)
        self.assertEqual(self.command("workflow", "run", "flows")[0], USAGE)
        self.assertIn("instead of its file, as flows:review", self.command("workflow", "run", "flows.py:review")[2])
        self.assertEqual(self.session_ids(), [])

    def test_a_number_is_a_text_where_the_parameter_is_one(self) -> None:
        code, _, err = self.run_flow("review", "repository=17", "most=1", "--session", "r")
        self.assertEqual((code, err.count("\n")), (3, 1), err)
        self.assertIn('"repository":"17"', self.command("workflow", "show", "r")[1])

    def test_code_of_a_folder_that_was_refused_is_not_imported(self) -> None:
        trust_store().remember(find_project_root(self.app), "refused", digest=None)
        code, _, err = self.run_flow("review", "repository=/srv", "most=1")
        self.assertEqual((code, (self.app / "imported").exists()), (USAGE, False))
        self.assertIn("is not run", err)
        self.assertEqual(self.run_flow("review", "repository=/srv", "most=1", "--trust")[0], WAITING)

    def test_ctrl_c_suspends_and_prints_how_to_continue(self) -> None:
        words = ["workflow", "run", f"{self.module}:nap", "--session", "n", "--app-dir", str(self.app)]
        done = run_python("-m", "openagentic_sdk", *words, cwd=ROOT, text=True, timeout=500)
        self.assertEqual(done.returncode, INTERRUPTED, done.stderr)
        self.assertEqual(self.shown("n")["state"], "suspended")
        (self.app / "up").touch()
        code, out, _ = self.command(*shlex.split(done.stderr.partition("to continue: openagentic-sdk ")[2]))
        self.assertEqual((code, out.splitlines()[-1]), (OK, "rested"))


class Progress(unittest.TestCase):
    def test_a_fold_computes_states_levels_and_times(self) -> None:
        events = [
            SystemInit("s", "/", "0", ts=100.0),
            UserMessage('{"workflow": "w", "arguments": {"x": 1}}'),
            ToolUse("1", "a", {}),
            ToolUse("2", "uuid", {}),
            ToolResult("2", "x"),
            ToolUse("3-1-1", "b", {}, extras={"due": 500.0}),
            ToolStarted("1", "a", "read", "", "", ts=101.0),
            ToolResult("1", is_error=True, outcome="error", error_message="no", ts=103.0),
            ToolUse("1_2", "a", {}),
            ToolStarted("1_2", "a", "read", "", "", ts=104.0),
            PartState("workflow", 1, {"wake_at": 500.0}),
        ]
        progress = WorkflowProgress.of(events)
        first, second = progress.steps.values()
        self.assertEqual(
            (first.state, first.attempt, first.began, second.state, second.due), ("running", 2, 104.0, "waiting", 500.0)
        )
        self.assertEqual(
            (progress.name, progress.wake_at, progress.counts()), ("w", 500.0, {"running": 1, "waiting": 1})
        )
        for event in (ToolResult("1_2", ts=106.0), ToolUse("4", "c", {}), ToolStarted("4", "c", "read", "", "")):
            progress.apply(event)
        self.assertEqual([step.level for step in progress.steps.values()], [1, 1, 2])
        self.assertEqual(progress.left_s(planned=3, now=108.0), 16.0)
        progress.apply(Result("", "s", "error", error_message="failed"))
        self.assertEqual((progress.state, progress.message), ("failed", "failed"))

    def test_other_sessions_are_not_taken_for_workflows(self) -> None:
        for text in ("hello", "{}", '{"workflow": 1, "arguments": {}}', "[" * 100_000):
            self.assertFalse(WorkflowProgress.of([UserMessage(text), ToolUse("1", "a", {})]).is_workflow)
