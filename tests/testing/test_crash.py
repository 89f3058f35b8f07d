"""The tester that kills at every point: it finds each kind of broken promise, and none if all are kept."""

import unittest

from openagentic_sdk.api import run
from openagentic_sdk.errors import OptionsError
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.testing.crash import crash_everywhere, crash_report
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.tools.function import tool
from tests.runtime.support import options_for
from tests.size import full_size

TURNS = [
    {"tool_calls": [{"name": "look", "arguments": {}}, {"name": "book", "arguments": {"table": 4}}]},
    {"tool_calls": [{"name": "book", "arguments": {"table": 5}}]},
    "Booked.",
]


def booking(life, *, effect="unsafe", looked="free", **changes):
    """An agent that books two tables."""

    @tool(effect="read")
    def look() -> str:
        """Look whether tables are free."""
        return looked

    @tool(effect=effect)
    def book(table: int) -> str:
        """Book a table."""
        life.effect(f"table {table}")
        return "booked"

    provider = ScriptedProvider(TURNS, resumable=True)
    settings = {"session": "dinner", "request_id": "dinner", "tools": [look, book], "session_store": life.store}
    return run(prompt="Two tables.", options=options_for(provider, **{**settings, **changes}))


class CrashEverywhereTest(unittest.TestCase):
    def broken(self, build, **how):
        return {each.promise for each in crash_report(build, **how).broken}

    @full_size
    def test_an_agent_that_keeps_its_promises_passes_at_every_point(self):
        seen = []
        report = crash_everywhere(booking, lambda outcome: seen.append(outcome.result.stop_reason))
        self.assertEqual(set(seen), {"end"})
        self.assertEqual(len(seen), report.points + 1)
        self.assertGreaterEqual(report.points, 40)
        self.assertEqual(report.broken, ())

    @full_size
    def test_a_tool_wrongly_declared_as_repeatable_is_reported_as_a_repeated_effect(self):
        self.assertEqual(self.broken(lambda life: booking(life, effect="idempotent")), {"an effect twice"})

    @full_size
    def test_a_program_that_starts_again_loses_answers(self):
        def begin_anew(life):
            return booking(life, session=None, request_id=None)

        self.assertEqual(self.broken(begin_anew), {"an effect twice", "a lost answer", "no end"})

    @full_size
    def test_a_hook_that_takes_results_out_of_requests_makes_them_invalid(self):
        def drop(payload):
            kept = [message for message in payload["messages"] if message["role"] != "tool"]
            return HookDecision(override_messages=kept)

        def forgetful(life):
            hooks = [HookMatcher("drop", hook=drop)] if life.number > 1 else []
            return booking(life, hooks=HookEngine(before_model_call=hooks, enable_message_rewrite_hooks=True))

        self.assertEqual(self.broken(forgetful), {"an invalid request"})

    @full_size
    def test_an_answer_that_depends_on_the_process_is_another_result(self):
        def moody(life):
            turns = [*TURNS[:2], f"Booked by life {life.number}."]
            return booking(life, provider=ScriptedProvider(turns, resumable=True))

        self.assertEqual(self.broken(moody), {"another result"})

    @full_size
    def test_a_check_of_the_caller_is_named_with_the_place(self):
        def check(outcome):
            assert outcome.effects == ("table 4", "table 5"), outcome.effects

        with self.assertRaisesRegex(AssertionError, r"(?s)broken: check.*killed before \d+, effect 'table 4'"):
            crash_everywhere(booking, check)

    def test_a_test_that_would_kill_nothing_is_refused(self):
        for how in ({"points": 0}, {"points": -1}, {"deaths": 0}):
            with self.subTest(how), self.assertRaisesRegex(OptionsError, "must be a whole number of at least 1"):
                crash_report(booking, **how)


if __name__ == "__main__":
    unittest.main()
