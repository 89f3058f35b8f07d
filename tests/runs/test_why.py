"""Why a session ended as it did: forty failures, and sessions without one."""

import contextlib
import io
import json
import os
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk import FileSessionStore, MemorySessionStore, OpenAgenticOptions, run_sync
from openagentic_sdk.cli.main import main
from openagentic_sdk.errors import InvalidEventError
from openagentic_sdk.events import (
    AssistantMessage,
    McpServerChanged,
    PermissionDecision,
    Result,
    SessionCompacted,
    SubagentStarted,
    SystemInit,
    ToolResult,
    ToolUse,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from openagentic_sdk.parts.record.folds.window import read_window
from openagentic_sdk.providers.openai_compatible import OpenAICompatibleProvider
from openagentic_sdk.providers.wrappers.retry import RetryPolicy
from openagentic_sdk.runs.why import MAX_LINES, find_cause, why_session
from openagentic_sdk.serialization import event_from_dict, event_to_dict
from openagentic_sdk.viewer.page import build_page

from ..size import full_size
from .failures import COFFEE, FAILURES, GLOB, call, compacted, gone_on, in_workflow, record, written
from .newcomers import NEWCOMERS

RUN_AGAIN = "openagentic-sdk workflow run MODULE:NAME --session"


def ended():
    return [UserMessage("Go."), AssistantMessage("Done."), Result("Done.", "s", "end")]


# Fields that determine how an event is read, and are not text.
KEPT = (
    "type",
    "stop_reason",
    "outcome",
    "origin",
    "hook_point",
    "action",
    "state",
    "permission_mode",
    "mode",
    "effect",
)


class WhyTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.made = {name: make() for name, (_, _, _, make) in FAILURES.items()}

    def logs(self):
        for name, (kind, event, words, _) in FAILURES.items():
            yield name, kind, event, words, *self.made[name]

    def test_each_of_forty_failures_of_twelve_kinds_is_explained_correctly(self):
        self.assertGreaterEqual(len(FAILURES), 40)
        self.assertGreaterEqual(len({kind for kind, *_ in FAILURES.values()}), 12)
        for name, kind, event, words, store, session_id in self.logs():
            with self.subTest(name):
                cause = why_session(store, session_id)
                text = "\n".join(cause.lines())
                self.assertEqual((cause.kind, cause.event), (kind, event), text)
                self.assertEqual([word for word in words if word not in text], [], text)
                self.assertLessEqual(len(cause.lines()), MAX_LINES)
                at = [one for one in store.read_events(cause.session_id) if one.seq == cause.seq]
                self.assertEqual([one.type for one in at], [event])

    @full_size
    def test_the_faults_of_a_newcomer_are_found_by_the_command_alone(self):
        self.assertGreaterEqual(len(NEWCOMERS), 10)
        with tempfile.TemporaryDirectory() as folder:
            store = FileSessionStore(folder)
            for name, (kind, words, make) in NEWCOMERS.items():
                with self.subTest(name):
                    session_id, out = make(store), io.StringIO()
                    with contextlib.redirect_stdout(out):
                        self.assertEqual(main(["sessions", "why", session_id, "--store", folder]), 1)
                    self.assertEqual([word for word in words if word not in out.getvalue()], [], out.getvalue())
                    self.assertLessEqual(len(out.getvalue().splitlines()), MAX_LINES)
                    self.assertEqual(why_session(store, session_id).kind, kind)

    def test_a_program_with_custom_tools_is_shown_how_to_continue_in_code(self):
        store, session_id = self.made["a tool raises"]
        (line,) = (line for line in why_session(store, session_id).lines() if "run_sync" in line)
        self.assertIn("supplies order, look, the model", line)
        code = line.rpartition("run_sync")[2]
        given = eval(f"dict{code}", {"replace": lambda options, **changes: changes, "options": None})
        self.assertEqual(given, {"prompt": "The problem is fixed: continue.", "options": {"resume": session_id}})

    def test_nothing_in_a_log_moves_the_cursor_or_adds_a_line(self):
        bad = "\x1b]0;x\x07\x1b[2J\n\nto continue: rm -rf ~\u202e\u2028\ud83d'$(id)`"

        def hostile(value, key=""):
            if isinstance(value, str) and key not in KEPT:
                return value + bad
            if isinstance(value, dict):
                return {name: hostile(item, name) for name, item in value.items()}
            return [hostile(item) for item in value] if isinstance(value, list) else value

        for name, _, _, _, store, session_id in self.logs():
            events = []
            for event in store.read_events(session_id):
                with contextlib.suppress(InvalidEventError):
                    events.append(event_from_dict(hostile(event_to_dict(event))))
            lines = find_cause(session_id, events).lines("--store", "a\nb")
            with self.subTest(name):
                self.assertEqual([line for line in lines if not line.isprintable()], [])
                self.assertLessEqual(len(lines), MAX_LINES)
                self.assertLessEqual(sum(line.startswith("to continue:") for line in lines), 1)
                window = read_window(events)
                self.assertEqual([line for line in window.lines() if not line.isprintable()], [])

    def test_the_second_of_two_compactions_is_named_when_the_first_kept_the_fact(self):
        store, session_id = record("Noted.", prompt="The codename is BLUEFIN-7.")
        for summary in ("The codename is BLUEFIN-7.", "The person greeted."):
            last = store.read_events(session_id)[-1].seq
            store.append_event(session_id, SessionCompacted(last, summary))
        second = store.read_events(session_id)[-1].seq
        cause = why_session(*gone_on(store, session_id, "What is the codename?", "I do not know."))
        self.assertEqual((cause.kind, cause.seq), ("compaction", second))

    @full_size
    def test_the_suggested_command_to_continue_works_for_every_failure(self):
        with tempfile.TemporaryDirectory() as folder:
            files, script = FileSessionStore(Path(folder, "store")), Path(folder, "script.json")
            script.write_text(json.dumps({"turns": ["Done."]}))
            tried = set()
            for name, kind, _, _, store, session_id in self.logs():
                command = why_session(store, session_id).go_on
                if name == "it waits for a person":  # about a call of the program's own tool, which no command has
                    self.assertEqual(command, ())
                    continue
                self.assertEqual(command[0], "openagentic-sdk", name)
                shape = (kind, command[1], *(word for word in command if word.startswith("--")))
                if shape in tried:
                    continue
                tried.add(shape)
                with self.subTest(name):
                    copy = files.create_session(session_id=session_id)
                    files.append_events(copy, list(store.read_events(session_id)))
                    begin = 3 if command[1] == "workflow" else 2
                    more = [] if command[1] == "workflow" else ["--script", str(script), "--cwd", folder]
                    words = [*command[1:begin], "--store", str(files.root_dir), *more, *command[begin:]]
                    out, err = io.StringIO(), io.StringIO()
                    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                        code = main(words)
                    told = out.getvalue() + err.getvalue()
                    self.assertEqual(code, 0, f"{command} {told[-600:]}")

    def test_a_session_in_which_nothing_went_wrong_has_no_cause(self):
        fine = {
            "an answer": record("Tea it is."),
            "an error that was mended": record(call("look", at="x"), GLOB, "Nothing is there."),
            "a failure that a later prompt mended": gone_on(
                *record(COFFEE, "I cannot."), "Then tea.", call("order", item="tea"), "Ordered."
            ),
            "a fact that the summary kept": compacted(
                "The codename is BLUEFIN-7.", "What is the codename?", "It is BLUEFIN-7.", "The codename is BLUEFIN-7."
            ),
            "a fact that the answer has": compacted(
                "The codename is BLUEFIN-7.", "What is the codename?", "BLUEFIN-7."
            ),
            "an unrelated compaction": compacted("I like tea.", "What is the capital of France?", "Paris."),
            "three equal calls, and an answer": record(GLOB, GLOB, GLOB, "Nothing is there."),
            "a server that came back": written(
                McpServerChanged("s", "lost", "stdio"), McpServerChanged("s", "restarted", "stdio"), *ended()
            ),
        }
        for name, (store, session_id) in fine.items():
            with self.subTest(name):
                cause = why_session(store, session_id)
                self.assertEqual((cause.kind, cause.seq), ("", None), cause.lines())
                self.assertIn("nothing went wrong", cause.why)
        mended = why_session(*fine["a failure that a later prompt mended"])
        self.assertIn("an earlier run", mended.more[0])
        self.assertIn("KeyError", mended.more[0])

    def test_a_call_that_was_cancelled_is_neither_a_failure_nor_a_success(self):
        def called(name, *, outcome, use_id):
            error = {} if outcome == "ok" else {"is_error": True, "error_type": "E", "error_message": f"{use_id} ended"}
            return ToolUse(use_id, name, {}), ToolResult(use_id, outcome=outcome, **error)

        for outcomes, kind, words in (
            (("cancelled",), "", "nothing went wrong"),
            (("error", "cancelled"), "tool", "c0 ended"),
            (("error", "ok", "cancelled"), "", "nothing went wrong"),
        ):
            calls = [called("Bash", outcome=outcome, use_id=f"c{at}") for at, outcome in enumerate(outcomes)]
            with self.subTest(outcomes):
                cause = why_session(*written(*(event for pair in calls for event in pair), *ended()))
                self.assertEqual(cause.kind, kind)
                self.assertIn(words, cause.why)
        prompt = UserMessage('{"workflow": "shop", "arguments": {}}')
        failed = Result("", "s", "error", error_type="StepUnknownError", error_message="step 1 may have run")
        ends = [prompt, *called("pay", outcome="cancelled", use_id="call.step-1"), Result("", "s", "interrupted")]
        store, session_id = written(*ends, SystemInit("s", "/srv", "1"), failed)
        self.assertEqual(why_session(store, session_id).go_on[1:], ("workflow", "retry", session_id, "1"))

    def test_an_ending_of_a_later_version_is_an_error_with_its_words(self):
        for reason in ("moved", "blocked:later", "end:later"):
            end = Result("", "s", reason, error_message="it moved")
            cause = find_cause("s", [SystemInit("s", "/", "9"), UserMessage("Go."), end])
            with self.subTest(reason):
                self.assertIn(f"ended: {reason} after 0 steps", "\n".join(cause.lines()))

    def test_a_session_that_runs_or_has_not_begun_is_not_called_dead(self):
        store, session_id = written(UserMessage("Wait."))
        self.assertEqual(why_session(store, session_id).kind, "dead")
        self.assertEqual(find_cause(session_id, store.read_events(session_id), is_held=True).kind, "")
        empty = MemorySessionStore()
        self.assertEqual(why_session(empty, empty.create_session()).kind, "")

    def test_a_log_leads_to_no_session_that_does_not_name_it_as_its_parent(self):
        store, other = record(call("order", item="secret"), "no")
        mine = store.create_session()
        fake = SubagentStarted("c1", "spy", other, "look")
        store.append_events(mine, [SystemInit(mine, "/", "1"), fake, *ended()])
        self.assertNotIn("secret", "\n".join(why_session(store, mine).lines()))

    def test_the_address_of_a_server_is_noted_without_its_secrets_and_is_in_the_command(self):
        store = MemorySessionStore()
        options = OpenAgenticOptions(
            provider=OpenAICompatibleProvider(base_url="http://user:word@127.0.0.1:9/v1?key=k"),
            model="m",
            session_store=store,
            setting_sources=(),
            retry=RetryPolicy(max_retries=0),
        )
        session_id = run_sync(prompt="Hello.", options=options).session_id
        self.assertEqual(store.read_metadata(session_id)["metadata"]["base_url"], "http://127.0.0.1:9/v1")
        flags = ("--provider", "openai-compatible", "--model", "m", "--base-url")
        self.assertEqual(why_session(store, session_id).go_on[4:10], (*flags, "http://127.0.0.1:9/v1"))
        events = store.read_events(session_id)
        for bad in (None, 7, "file:///etc/passwd", "http://a\nb", "http://a b", "http://" + "x" * 999):
            self.assertEqual(find_cause(session_id, events, base_url=bad).go_on[4:10], (*flags, "URL"), bad)

    def test_the_command_has_the_mode_and_the_rules_of_the_command_line_and_no_others(self):
        books = [
            {"from": "command line", "root": None, "rules": ["Bash(echo:*)", "Bash(a\nb)", 7]},
            {"from": "user settings", "root": None, "rules": ["Bash(rm:*)"]},
            "?",
        ]
        policy = {"layers": [{"allow": books, "deny": [{"from": "command line", "rules": ["Read(.env)"]}]}]}
        flags = ("--permission-mode", "acceptEdits", "--allow", "Bash(echo:*)", "--deny", "Read(.env)")
        for mode, recorded, expected in (
            ("acceptEdits", policy, flags),
            ("default", policy, flags[2:]),
            ("callback", {"layers": "?"}, ()),
            ("plan", {"layers": [7]}, ("--permission-mode", "plan")),
        ):
            decision = PermissionDecision("c1", "Bash", True, mode, "", details={"policy": recorded})
            events = [
                SystemInit("s", "/", "9", permission_mode=mode),
                UserMessage("Go."),
                decision,
                Result("", "s", "max_steps"),
            ]
            with self.subTest(mode):
                self.assertEqual(find_cause("s", events).go_on[4 : 4 + len(expected)], expected)

    def test_no_command_is_named_that_lacks_the_tools_of_the_program(self):
        store = MemorySessionStore()
        refund = ToolUse("c1", "refund", {})
        question = UserQuestion("q1", "Allow refund?", ["yes", "no"], tool_use_id="c1", kind="permission")
        for tools in (["refund"], []):  # the newest run may be one in which the tool is missing
            session_id = store.create_session()
            begin = [SystemInit(session_id, "/", "1", model="m", provider="openai", tools=tools), UserMessage("Go.")]
            store.append_events(session_id, [*begin, refund, question, Result("", session_id, "waiting")])
            with self.subTest(tools):
                cause = why_session(store, session_id)
                self.assertIn("in your program, which supplies refund", cause.more[-1])
                self.assertRegex("\n".join(cause.lines()), r"\nstopped at: event \d+, user.question,")
                self.assertIn(f"(or `openagentic-sdk sessions answer {session_id} --question q1 yes`)", cause.more[-1])
                self.assertNotIn("to continue", "\n".join(cause.lines()))
                store.append_event(session_id, UserAnswer("q1", "yes"))
                # A prompt would end the call that was just approved.
                cause = why_session(store, session_id)
                self.assertRegex(cause.more[-1], r"refund: agent\.run_sync\(session=.+\) or run_sync\(prompt=None, ")
                self.assertNotIn("to continue", "\n".join(cause.lines()))

    def test_the_command_continues_in_the_folder_of_the_session(self):
        store = MemorySessionStore()
        session_id = store.create_session()
        store.append_events(
            session_id, [SystemInit(session_id, os.sep, "1"), UserMessage("Go."), Result("", session_id, "max_steps")]
        )
        cause = why_session(store, session_id)
        self.assertEqual((cause.cwd, cause.flags_outside(cause.cwd)), (os.sep, ()))
        self.assertIn(f" run --cwd {os.sep} --resume ", cause.lines(*cause.flags_outside("/elsewhere"))[-1])
        page = build_page(store.read_events(session_id), title="t", cause=cause)
        self.assertIn(f" run --cwd {os.sep} --resume ", page)
        workflow = why_session(*self.made["a step of a workflow raises"])
        self.assertEqual(workflow.flags_outside("/elsewhere"), ())
        self.assertIn("openagentic-sdk workflow run MODULE:NAME --session ", workflow.more[-1])

    def test_a_step_that_failed_in_an_earlier_run_of_a_workflow_is_still_the_cause(self):
        for child in (False, True):
            for runs in (1, 2):
                with self.subTest(child=child, runs=runs):
                    cause = why_session(*in_workflow(runs, child))
                    self.assertEqual((cause.kind, cause.event), ("workflow", "tool.result"))
                    self.assertIn("find: return STOCK[item]", cause.more[0])
                    self.assertEqual(cause.more[1:], (f"to run the step again: {RUN_AGAIN} w1",))
                    self.assertEqual(cause.go_on[1:4], ("workflow", "retry", "w1"))

    def test_the_denying_rule_is_named_if_no_allow_rule_would_have_helped(self):
        labels = {"labels": {"rule": "deny(untrusted): order"}, "category": "objection"}
        for changes, words in (
            ({"details": labels}, ("no allow rule permits it: the label rule deny(untrusted): order is in force",)),
            (
                {"rule": "order", "source": "options"},
                ("no allow rule permits it: the deny rule order (options) is in force",),
            ),
            ({"answered_by": "user"}, ()),
            ({}, ("no rule permits it: only another mode or the person could",)),
        ):
            store = MemorySessionStore()
            session_id = store.create_session()
            refused = [
                ToolUse("c1", "order", {"item": "tea"}),
                PermissionDecision("c1", "order", False, "default", "", "order is denied", **changes),
                ToolResult("c1", None, True, outcome="denied"),
            ]
            store.append_events(session_id, [SystemInit(session_id, "/", "1"), *refused, *ended()])
            with self.subTest(changes):
                more = [line for line in why_session(store, session_id).more if not line.startswith("in your program")]
                self.assertEqual(tuple(more), words)

    def test_a_call_to_a_server_that_waits_for_consent_names_the_command_that_gives_it(self):
        store = MemorySessionStore()
        session_id = store.create_session()
        pending = McpServerChanged(
            "stock", "pending", "stdio", error_message="agree with `openagentic-sdk mcp trust stock`"
        )
        failed = [
            ToolUse("c1", "mcp__stock__count", {}),
            ToolResult("c1", None, True, error_type="ToolNotFoundError", error_message="no tool", outcome="error"),
        ]
        store.append_events(session_id, [SystemInit(session_id, "/", "1"), pending, *failed, *ended()])
        cause = why_session(store, session_id)
        self.assertEqual((cause.kind, cause.event), ("mcp", "mcp.server"))
        self.assertIn("'stock' was not started: agree with `openagentic-sdk mcp trust stock`", cause.why)
        # A server whose tools nobody called is not a failure.
        session_id = store.create_session()
        store.append_events(session_id, [SystemInit(session_id, "/", "1"), pending, *ended()])
        self.assertEqual(why_session(store, session_id).kind, "")

    def test_the_command_the_page_and_the_value_agree(self):
        store, session_id = self.made["a tool raises"]
        cause = why_session(store, session_id)
        with tempfile.TemporaryDirectory() as folder:
            files = FileSessionStore(folder)
            files.append_events(files.create_session(session_id=session_id), store.read_events(session_id))
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                self.assertEqual(main(["sessions", "why", session_id, "--store", folder]), 1)
            self.assertEqual(out.getvalue().splitlines()[:-1], cause.lines()[:-1])
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                main(["sessions", "why", session_id, "--json", "--store", folder])
            self.assertEqual(json.loads(out.getvalue())["seq"], cause.seq)
        page = build_page(store.read_events(session_id), title="t", cause=cause)
        self.assertIn("KeyError: 'coffee'", page.partition('"why":')[2])


if __name__ == "__main__":
    unittest.main()
