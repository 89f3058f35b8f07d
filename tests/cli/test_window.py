"""How full the window is, what a compaction would drop, and which prices are missing, as the command line says it."""

import contextlib
import io
import json
import tempfile
import unittest

from openagentic_sdk import FileSessionStore, OpenAgenticOptions, PermissionGate, run_sync, tool
from openagentic_sdk.cli.main import main
from openagentic_sdk.events import SessionCompacted
from openagentic_sdk.testing import ScriptedProvider


@tool(effect="read")
def page(number: int) -> str:
    """Read a page."""
    return f"page {number}: " + "all is well. " * 200


class WindowTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder, self.store = folder.name, FileSessionStore(folder.name)

    def record(self, *turns, prompt="Read the report.", resume=None):
        options = OpenAgenticOptions(
            provider=ScriptedProvider(turns),
            model="our-own",
            tools=[page],
            session_store=self.store,
            resume=resume,
            permission_gate=PermissionGate(permission_mode="bypass"),
            setting_sources=(),
        )
        return run_sync(prompt=prompt, options=options).session_id

    def command(self, *words):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*words, "--store", self.folder])
        return code, out.getvalue(), err.getvalue()

    def test_a_window_is_split_by_what_fills_it_and_says_when_a_compaction_starts(self):
        turns = [{"tool_calls": [{"name": "page", "arguments": {"number": n}}]} for n in range(20)]
        session = self.record(*turns, "Read.")
        code, text, _ = self.command("sessions", "context", session, "--window", "20000")
        self.assertEqual(code, 0)
        self.assertIn("of a window of 20,000", text)
        self.assertIn("a compaction starts at 16,000 tokens", text)
        found = json.loads(self.command("sessions", "context", session, "--window", "20000", "--json")[1])
        self.assertEqual(next(iter(found["by_kind"])), "results of calls")
        self.assertLess(abs(sum(found["by_kind"].values()) - found["tokens"]), 20)
        # The ten newest outputs stay, as the run itself has it.
        self.assertIn("it would clear the outputs of", text)
        self.assertLessEqual(len(found["cleared"]), 10)

    def test_the_prompts_that_a_summary_would_replace_are_named_and_those_gone_before_are_not(self):
        session = self.record("Noted.", prompt="The codename is BLUEFIN-7.")
        last = self.store.read_events(session)[-1].seq
        self.store.append_event(session, SessionCompacted(last, "Somebody greeted."))
        self.record("Yes.", prompt="Is there tea?", resume=session)
        self.record("No.", prompt="Is there coffee?", resume=session)
        text = self.command("sessions", "context", session)[1]
        self.assertIn("the window is not known: --window TOKENS", text)
        self.assertIn("Is there tea?", text)
        self.assertNotIn("BLUEFIN", text)

    def test_a_session_without_a_conversation_and_a_window_that_is_none_are_answered(self):
        empty = self.store.create_session()
        self.assertIn("a compaction could drop nothing now", self.command("sessions", "context", empty)[1])
        code, _, words = self.command("sessions", "context", empty, "--window", "0")
        self.assertEqual(code, 2)
        self.assertIn("--window 0 is not a number of tokens", words)

    def test_what_makes_an_unknown_price_known_is_said_by_costs_and_by_doctor(self):
        session = self.record("Read.")
        setting = 'OpenAgenticOptions(prices={"our-own": {"input": USD, "output": USD}})'
        for words in (("sessions", "cost", session), ("sessions", "cost", "--by", "model"), ("doctor",)):
            self.assertIn(setting, self.command(*words)[1], words)
        self.assertEqual(json.loads(self.command("doctor", "--json")[1])["unpriced_models"], ["our-own"])


if __name__ == "__main__":
    unittest.main()
