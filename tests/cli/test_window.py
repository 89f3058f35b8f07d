"""The fill level of the window, what a compaction would drop, and missing prices, as shown on the command line."""

import contextlib
import io
import json
import os
import pathlib
import tempfile
import unittest

from openagentic_sdk import FileSessionStore, OpenAgenticOptions, PermissionGate, run_sync, tool
from openagentic_sdk.cli.main import main
from openagentic_sdk.errors import OptionsError
from openagentic_sdk.events import ModelRequest, ModelResponse, PartState, SessionCompacted, SessionRewound, SystemInit
from openagentic_sdk.parts.record.folds.window import WindowMeter
from openagentic_sdk.runs.window import session_window
from openagentic_sdk.sessions.folds.compaction import WINDOW_STATE
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

    def record(self, *turns, prompt="Read the report.", resume=None, model="our-own", max_context_tokens=None):
        options = OpenAgenticOptions(
            provider=ScriptedProvider(turns),
            model=model,
            max_context_tokens=max_context_tokens,
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

    def test_a_window_is_reported_by_kind_with_the_size_at_which_compaction_starts(self):
        turns = [{"tool_calls": [{"name": "page", "arguments": {"number": n}}]} for n in range(20)]
        session = self.record(*turns, "Read.")
        code, text, _ = self.command("sessions", "context", session, "--window", "20000")
        self.assertEqual(code, 0)
        self.assertIn("of a window of 20,000", text)
        self.assertIn("a compaction starts at 16,000 tokens", text)
        found = json.loads(self.command("sessions", "context", session, "--window", "20000", "--json")[1])
        self.assertEqual(next(iter(found["by_kind"])), "results of calls")
        self.assertLess(abs(sum(found["by_kind"].values()) - found["tokens"]), 20)
        # The ten newest outputs are kept, as in the run itself.
        self.assertIn("it would clear the outputs of", text)
        self.assertLessEqual(len(found["cleared"]), 10)

    def test_the_prompts_that_a_summary_would_replace_are_named_and_those_gone_before_are_not(self):
        session = self.record("Noted.", prompt="The codename is BLUEFIN-7.")
        last = self.store.read_events(session)[-1].seq
        self.store.append_event(session, SessionCompacted(last, "Somebody greeted."))
        self.record("Yes.", prompt="Is there tea?", resume=session)
        self.record("No.", prompt="Is there coffee?", resume=session)
        text = self.command("sessions", "context", session)[1]
        self.assertIn("the window size is unknown: --window TOKENS", text)
        self.assertIn("Is there tea?", text)
        self.assertNotIn("BLUEFIN", text)

    def test_a_session_without_a_conversation_and_an_invalid_window_are_answered(self):
        empty = self.store.create_session()
        self.assertIn("a compaction could drop nothing now", self.command("sessions", "context", empty)[1])
        code, _, words = self.command("sessions", "context", empty, "--window", "0")
        self.assertEqual(code, 2)
        self.assertIn("--window 0 is not a number of tokens", words)

    def test_the_window_comes_from_the_log_of_the_run_or_the_table_of_models(self):
        known = self.record("Read.", prompt="Is there tea?", model="gpt-4o")
        text = self.command("sessions", "context", known)[1]
        self.assertIn("% of the model's window of 128,000", text)
        self.assertIn(
            "when the endpoint refuses a request as too long; max_context_tokens=128000 starts one earlier", text
        )
        set_by_hand = self.record("Read.", prompt="Is there tea?", model="gpt-4o", max_context_tokens=5_000)
        found = json.loads(self.command("sessions", "context", set_by_hand, "--json")[1])
        self.assertEqual((found["window"], found["source"], found["starts_at"]), (5_000, "max_context_tokens", 4_000))
        self.assertEqual(session_window(self.store, set_by_hand).window, 5_000)
        # A run with the same limit records nothing again; one without it does.
        for limit, notes in ((5_000, 1), (None, 2), (None, 2)):
            self.record("Read.", resume=set_by_hand, model="gpt-4o", max_context_tokens=limit)
            events = self.store.read_events(set_by_hand)
            self.assertEqual(sum(e.type == "part.state" for e in events), notes)
        self.assertEqual(session_window(self.store, set_by_hand).source, "model")
        other = json.loads(self.command("sessions", "context", set_by_hand, "--window", "999", "--json")[1])
        self.assertEqual((other["window"], other["source"]), (999, "caller"))

    def test_a_meter_follows_the_window_and_warns_before_a_compaction(self):
        meter = WindowMeter()
        usage = {"input_tokens": 7_000, "output_tokens": 1_000}
        steps = (
            (SystemInit("s", "/", "1", model="own"), ""),
            (ModelResponse(1, 1, usage=usage), ""),
            (PartState(WINDOW_STATE, 1, {"max_tokens": 10_000, "max_bytes": None}), "window 80%, compacts next"),
            (SessionCompacted(3, "x", tokens_after=1_200), "window 12%"),
            (ModelResponse(2, 1, usage=usage, parent_tool_use_id="call_1"), "window 12%"),
            (ModelRequest(2, 1, "", 1, purpose="compaction"), "window 12%"),
            (ModelResponse(2, 1, usage=usage), "window 12%"),
            (SessionRewound(1), ""),
            (PartState(WINDOW_STATE, 1, {"max_tokens": -5, "max_bytes": "x"}), ""),
            (PartState(WINDOW_STATE, 1, ["?"]), ""),
            (SystemInit("other", "/", "1", model="openai/gpt-4o"), ""),
            (ModelRequest(1, 1, "", 1), ""),
            (ModelResponse(1, 1, usage={**usage, "input_tokens": 127_000}), "window 100%"),
        )
        for event, words in steps:
            meter.take(event)
            self.assertEqual(meter.words, words, event)
        self.assertEqual(list(meter.unpriced), ["openai/gpt-4o"])

    def test_a_run_ends_with_the_share_of_the_window_and_what_makes_its_cost_known(self):
        script = pathlib.Path(self.folder, "script.json")
        script.write_text(
            json.dumps({"turns": [{"text": "Tea.", "usage": {"input_tokens": 9_990, "output_tokens": 10}}]})
        )
        words = ("run", "Tea?", "--script", str(script), "--setting-sources", "", "--window", "40000")
        code, text, _ = self.command(*words)
        self.assertEqual(code, 0)
        self.assertIn("cost unknown, window 25%", text)
        self.assertNotIn("no price", text, "a script costs nothing")
        session = self.store.list_session_summaries()[0].id
        # The log already contains the limit, so this run records nothing.
        script.write_text(
            json.dumps({"turns": [{"text": "Tea.", "usage": {"input_tokens": 37_990, "output_tokens": 10}}]})
        )
        text = self.command(*words, "--resume", session, "--model", "hosted")[1]
        self.assertIn("window 95%, compacts next", text)
        self.assertIn("no price of hosted is known: OpenAgenticOptions(prices=", text)

    def test_prices_of_the_home_folder_make_a_cost_known(self):
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)
        before = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))
        os.environ["OPENAGENTIC_SDK_HOME"] = home.name
        pathlib.Path(home.name, "prices.json").write_text('{"our-own": {"input": 1, "output": 2}}')
        session = self.record("Read.")
        self.assertNotIn("cost unknown", self.command("sessions", "cost", session)[1])
        self.assertEqual(session_window(self.store, session).unpriced, ())
        pathlib.Path(home.name, "prices.json").write_text('{"our-own": {"input": 1}}')
        with self.assertRaisesRegex(OptionsError, "needs both input and output"):
            self.record("Read.")

    def test_costs_and_doctor_explain_how_to_set_an_unknown_price(self):
        session = self.record("Read.")
        setting = 'OpenAgenticOptions(prices={"our-own": {"input": USD, "output": USD}})'
        shown = (("sessions", "context", session), ("sessions", "cost", session), ("sessions", "cost", "--by", "model"))
        for words in (*shown, ("doctor",)):
            self.assertIn(setting, self.command(*words)[1], words)
        self.assertEqual(json.loads(self.command("doctor", "--json")[1])["unpriced_models"], ["our-own"])


if __name__ == "__main__":
    unittest.main()
