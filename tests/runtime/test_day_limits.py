"""Daily and hourly limits count every session of the store, before and during a run, with subagents, by tag and tenant."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
import tempfile
import unittest
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openagentic_sdk import (
    AgentDefinition,
    FileSessionStore,
    MemorySessionStore,
    OpenAgenticOptions,
    PermissionGate,
    RunResult,
    run_sync,
    tool,
)
from openagentic_sdk.api import compact_session
from openagentic_sdk.assemble import limits_left
from openagentic_sdk.errors import BudgetError, OptionsError
from openagentic_sdk.events import ModelRequest, SystemInit, ToolResult
from openagentic_sdk.parts.budgets import Budget, read_limits
from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.core import TENANT_KEY
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.testing import FakeClock, ScriptedProvider
from tests.pythons import ROOT, Python
from tests.size import full_size

PRICES = {"m": {"input": 0.0, "output": 10_000.0}}
MORNING = 10_000.0 * 86_400 + 10 * 3_600
ONE_DOLLAR = {"text": "spent", "usage": {"input_tokens": 0, "output_tokens": 100}}


def asks(name: str, **arguments: Any) -> Mapping[str, Any]:
    """An answer that costs a dollar and calls a tool."""
    return {**ONE_DOLLAR, "tool_calls": [{"name": name, "arguments": arguments}]}


class DayLimits(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def limits(self, text: str) -> str:
        path = self.folder / "limits.toml"
        path.write_text(text)
        return str(path)

    def run_with(self, store: SessionStore, turns: list[Any], limits: str, **more: Any) -> RunResult:
        options = OpenAgenticOptions(
            provider=ScriptedProvider(turns),
            model=more.pop("model", "m"),
            prices=PRICES,
            clock=more.pop("clock", None),
            session_store=store,
            limits_file=limits,
            permission_gate=PermissionGate(permission_mode="bypass"),
            **more,
        )
        return run_sync(prompt="go", options=options)

    def test_todays_spending_of_other_sessions_stops_a_run_before_its_first_request(self) -> None:
        limits = self.limits("[day]\nmax_cost_usd = 2.0\n")
        stores = (
            lambda: FileSessionStore(self.folder / "files", durability="flush"),
            lambda: SqliteSessionStore(self.folder / "runs.db"),
        )
        for open_again in stores:
            results = []
            for _ in range(3):  # each with its own store object, like separate processes
                store = open_again()
                results.append(self.run_with(store, [ONE_DOLLAR], limits))
                store.close()
            self.assertEqual([result.stop_reason for result in results], ["end", "end", "budget"])
            self.assertRegex(
                results[2].error_message or "", r"2\.0000 USD have been spent today; max_cost_usd in day of .* is 2: "
            )
            self.assertFalse([event for event in results[2].events if isinstance(event, ModelRequest)])

    def test_simultaneous_spending_of_another_session_stops_a_run_at_its_next_step(self) -> None:
        store, limits = MemorySessionStore(), self.limits("[day]\nmax_cost_usd = 3\n")

        @tool(effect="read")
        async def elsewhere() -> str:
            """Spend money in another session."""
            other = [asks("TodoWrite", todos=[]), ONE_DOLLAR]
            return (await asyncio.to_thread(self.run_with, store, other, limits)).stop_reason

        result = self.run_with(store, [asks("elsewhere"), ONE_DOLLAR], limits, tools=[elsewhere])
        self.assertEqual(result.stop_reason, "budget")
        self.assertEqual(result.steps, 1)

    def test_tokens_and_tags_have_limits_of_their_own(self) -> None:
        store, limits = MemorySessionStore(), self.limits("[tag.nightly]\nmax_tokens = 50\n")
        nightly = {"session_metadata": {"tags": ["nightly"]}}
        ends = [
            self.run_with(store, [ONE_DOLLAR], limits, **more).stop_reason for more in ({}, nightly, nightly, {}, {})
        ]
        self.assertEqual(ends, ["end", "end", "budget", "end", "end"])

    def test_subagents_spend_from_the_same_limit_and_under_the_same_tag(self) -> None:
        store, limits = MemorySessionStore(), self.limits("[tag.t]\nmax_cost_usd = 2\n")
        helper = ScriptedProvider([asks("TodoWrite", todos=[]), ONE_DOLLAR])
        result = self.run_with(
            store,
            [asks("Task", agent="helper", prompt="p"), ONE_DOLLAR],
            limits,
            agents={"helper": AgentDefinition("helps", "help", provider=helper)},
            session_metadata={"tags": ["t"]},
        )
        self.assertEqual(result.stop_reason, "budget")
        self.assertEqual(result.cost_usd, 2.0)
        child = store.list_children(result.session_id)[0]
        self.assertEqual(store.read_events(child)[-1].stop_reason, "budget")  # type: ignore[attr-defined]

    def test_a_call_without_a_known_price_ends_what_a_limit_in_dollars_covers_and_names_the_model(self) -> None:
        store, limits = MemorySessionStore(), self.limits("[day]\nmax_cost_usd = 100\n")
        self.assertTrue(self.run_with(store, [ONE_DOLLAR], limits, model="unheard-of").ok)
        result = self.run_with(store, [ONE_DOLLAR], limits)
        self.assertEqual(result.stop_reason, "budget")
        self.assertIn("add unheard-of to `prices`", result.error_message or "")

    def test_a_limit_that_cannot_be_read_is_an_error_and_not_a_limit_that_does_not_hold(self) -> None:
        for text in (
            "[day", "day = 3", "[day]\n", "[day]\nmax_cost = 3", "[day]\nmax_cost_usd = -1", "[day]\nmax_cost_usd = nan",
            "[hour]\n", "[hour]\nx = 1", "tenant = 1", "[tenant.a]", "[tenant.a]\nhour = 3", "[tag.a.hour]\n",
            "[tag.a.day]\nmax_tokens = 1",
            "[day]\nmax_cost_usd = true", "[day]\nmax_tokens = 1.5", "[days]\nmax_tokens = 1", "tag = 1", "[tag]\nx = 1",
        ):  # fmt: skip
            with self.subTest(text), self.assertRaises(OptionsError):
                self.run_with(MemorySessionStore(), [ONE_DOLLAR], self.limits(text))
        with self.assertRaisesRegex(OptionsError, "does not exist"):
            self.run_with(MemorySessionStore(), [ONE_DOLLAR], str(self.folder / "missing.toml"))
        self.assertTrue(self.run_with(MemorySessionStore(), [ONE_DOLLAR], self.limits("# none yet\n")).ok)

    def test_no_tool_changes_the_limits_that_hold_for_it(self) -> None:
        limits = self.limits("[day]\nmax_cost_usd = 9\n")
        calls = [
            asks("Write", file_path=limits, content="", overwrite=True),
            asks("Bash", command=f"echo > {limits}"),
            ONE_DOLLAR,
        ]
        result = self.run_with(MemorySessionStore(), calls, limits, cwd=str(self.folder))
        outcomes = [event.outcome for event in result.events if isinstance(event, ToolResult)]
        self.assertEqual(outcomes, ["denied", "denied"])

    def test_a_session_is_not_summarised_for_money_that_is_not_there(self) -> None:
        store, limits = MemorySessionStore(), self.limits("[day]\nmax_cost_usd = 1\n")
        session_id = self.run_with(store, [ONE_DOLLAR], limits).session_id
        options = OpenAgenticOptions(
            provider=ScriptedProvider([ONE_DOLLAR]),
            model="m",
            session_store=store,
            limits_file=limits,
            resume=session_id,
        )
        with self.assertRaisesRegex(BudgetError, "max_cost_usd in day of"):
            asyncio.run(compact_session(options=options))

    def test_no_report_lowers_what_is_spent(self) -> None:
        for tokens in (-(10**9), float("-inf"), float("nan"), "-5", True, [], None):
            budget = Budget(max_tokens=10, max_cost_usd=1.0, tokens=9, cost_usd=0.9)
            budget.charge({"input_tokens": tokens, "output_tokens": tokens}, -5.0)
            self.assertEqual((budget.tokens, budget.cost_usd), (9, 0.9))

    def test_an_hour_ends_by_the_clock_and_the_day_continues(self) -> None:
        clock = FakeClock(MORNING + 3599)
        store = MemorySessionStore(clock=clock)
        limits = self.limits("[day]\nmax_cost_usd = 3\n[hour]\nmax_cost_usd = 2\n")
        ends = []
        for passes_s in (0, 0, 0, 1, 0, 3600, 10 * 3600, 4 * 3600, 0):
            clock.advance(passes_s)
            message = self.run_with(store, [ONE_DOLLAR], limits, clock=clock).error_message or "end"
            ends.append(re.sub(r".* spent (.*); .* in (\w+) of .*: (.*) \(UTC.*", r"\1, \2: \3", message))
        hour, day = "in this hour, hour: continue in the next hour", "today, day: continue tomorrow"
        self.assertEqual(ends, ["end", "end", hour, "end", day, day, day, "end", "end"])

    def test_each_name_that_fits_a_pattern_has_a_limit_of_its_own(self) -> None:
        clock = FakeClock(MORNING + 60)
        store = MemorySessionStore(clock=clock)
        tenants = '[tenant."*"]\nmax_cost_usd = 1\n[tenant.acme]\nmax_cost_usd = 2\n'
        limits = self.limits(tenants + '[tag."n*".hour]\nmax_tokens = 150\n')

        def ends(**metadata: Any) -> list[str]:
            more = {"session_metadata": metadata, "clock": clock}
            return [self.run_with(store, [ONE_DOLLAR], limits, **more).stop_reason for _ in range(3)]

        self.assertEqual(ends(**{TENANT_KEY: "acme"}), ["end", "end", "budget"])
        self.assertEqual(ends(**{TENANT_KEY: "beta"}), ["end", "budget", "budget"])
        self.assertEqual(ends(tags=["nightly"]), ["end", "end", "budget"])
        self.assertEqual(ends(tags=["noon", "other"]), ["end", "end", "budget"])
        self.assertEqual(ends(tags=["other"]), ["end", "end", "end"])
        left = limits_left(OpenAgenticOptions(session_store=store, limits_file=limits, clock=clock))
        self.assertEqual(
            [(each.table, each.name, each.left_usd, each.left_tokens, each.until - MORNING) for each in left],
            [
                ('tag."n*".hour', "n*", None, 150, 3600),
                ('tenant."*"', "*", 1.0, None, 14 * 3600),
                ("tenant.acme", "acme", 0.0, None, 14 * 3600),
                ('tag."n*".hour', "nightly", None, 0, 3600),
                ('tag."n*".hour', "noon", None, 0, 3600),
                ('tenant."*"', "beta", 0.0, None, 14 * 3600),
            ],
        )

    def test_for_each_limit_the_most_specific_entry_that_states_it_holds(self) -> None:
        dice = random.Random(34)
        for _ in range(100):
            stated: dict[str, dict[str, int]] = {}
            for _ in range(5):
                pattern = "".join(dice.choices(["*", "?", "[ab]", "a", "b"], k=dice.randint(1, 4)))
                keys = [key for key in ("max_tokens", "max_cost_usd") if dice.random() < 0.7]
                if keys and pattern not in stated:
                    stated[pattern] = {key: dice.randint(1, 9) for key in keys}
            tables = {f'[tag."{pattern}"]': of for pattern, of in stated.items()}
            lines = [line for table, of in tables.items() for line in (table, *(f"{k} = {v}" for k, v in of.items()))]
            name = "".join(dice.choices("ab", k=dice.randint(1, 3)))
            expected: dict[str, int | None] = {}
            for key in ("max_tokens", "max_cost_usd"):
                as_regex = {p: p.replace("?", ".").replace("*", ".*") for p in stated if key in stated[p]}
                fitting = [pattern for pattern, text in as_regex.items() if re.fullmatch(text, name)]
                plain = [len(re.sub(r"\[ab\]|[*?]", "", pattern)) for pattern in fitting]
                first = fitting[plain.index(max(plain))] if fitting else None
                chosen = name if name in fitting else first
                expected[key] = None if chosen is None else stated[chosen][key]
            limits = read_limits(Path(self.limits("\n".join(lines))))
            store = MemorySessionStore(clock=FakeClock(MORNING))
            session = store.create_session(metadata={"tags": [name]})
            store.append_event(session, SystemInit(session, "/", "1"))
            found: dict[str, Any] = dict.fromkeys(expected)
            for budget in () if limits is None else limits.shared(store, session, MORNING):
                found |= {key: value for key in expected if (value := getattr(budget, key)) is not None}
            self.assertEqual(found, expected, (lines, name))

    @full_size
    def test_processes_that_share_a_store_share_its_limits(self) -> None:
        limits = self.limits("[hour]\nmax_cost_usd = 3\n")
        code = (
            "import sys\nfrom tests.runtime.test_day_limits import *\n"
            "for _ in range(4):\n"
            "    clock = FakeClock(MORNING)\n"
            "    store = FileSessionStore(sys.argv[1], durability='flush', clock=clock)\n"
            "    result = DayLimits().run_with(store, [ONE_DOLLAR], sys.argv[2], clock=clock)\n"
            "    print(result.stop_reason)\n"
        )
        command = ("-c", code, str(self.folder / "shared"), limits)
        both = [Python(*command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        ends = [word for process in both for word in process.communicate()[0].split()]
        self.assertIn(ends.count("end"), (3, 4))  # concurrent calls may exceed the limit by one each
        self.assertEqual(ends.count("end") + ends.count("budget"), 8)
