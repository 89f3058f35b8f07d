"""Why a session stands where it does: forty failures, and those that are none."""

import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk import FileSessionStore, MemorySessionStore
from openagentic_sdk.cli.main import main
from openagentic_sdk.events import AssistantMessage, McpServerChanged, Result, SubagentStarted, SystemInit, UserMessage
from openagentic_sdk.runs.why import MAX_LINES, find_cause, why_session
from openagentic_sdk.viewer.page import build_page

from .failures import COFFEE, FAILURES, GLOB, call, compacted, gone_on, record, written


def ended():
    return [UserMessage("Go."), AssistantMessage("Done."), Result("Done.", "s", "end")]


class WhyTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.made = {name: make() for name, (_, _, _, make) in FAILURES.items()}

    def logs(self):
        for name, (kind, event, words, _) in FAILURES.items():
            yield name, kind, event, words, *self.made[name]

    def test_each_of_forty_failures_of_twelve_kinds_is_said_as_it_is_true(self):
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

    def test_the_command_that_goes_on_runs_for_every_failure(self):
        with tempfile.TemporaryDirectory() as folder:
            files, script = FileSessionStore(Path(folder, "store")), Path(folder, "script.json")
            script.write_text(json.dumps({"turns": ["Done."]}))
            tried = set()
            for name, kind, _, _, store, session_id in self.logs():
                command = why_session(store, session_id).go_on
                self.assertEqual(command[0], "openagentic-sdk", name)
                shape = (kind, command[1], *(word for word in command if word.startswith("--")))
                if shape in tried:
                    continue
                tried.add(shape)
                with self.subTest(name):
                    copy = files.create_session(session_id=session_id)
                    files.append_events(copy, list(store.read_events(session_id)))
                    more = ["--script", str(script), "--cwd", folder] if command[1] == "run" else []
                    out, err = io.StringIO(), io.StringIO()
                    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                        code = main([*command[1:-1], *more, "--store", str(files.root_dir), command[-1]])
                    self.assertEqual(code, 0, f"{command} {out.getvalue()[-300:]} {err.getvalue()}")

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

    def test_the_command_the_page_and_the_value_say_the_same(self):
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
