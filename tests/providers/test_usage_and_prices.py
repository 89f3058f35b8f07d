"""Tokens in one form whatever the endpoint calls them, counted once over any log, and priced only if a price is known."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

from openagentic_sdk.errors import OptionsError
from openagentic_sdk.events import Event, ModelResponse, SessionForked, SubagentFinished, SystemInit
from openagentic_sdk.parts.record.folds.prices import (
    built_in_prices,
    cost,
    load_prices,
    price_date,
    session_cost,
    with_prices,
)
from openagentic_sdk.parts.record.folds.spending import usage
from openagentic_sdk.sessions.folds.usage import add_usage, normalize_usage


def normal(prompt: int, answer: int, *, cached: int = 0, written: int = 0, reasoning: int = 0) -> dict[str, int]:
    return {
        "input_tokens": prompt,
        "cached_input_tokens": cached,
        "cache_write_tokens": written,
        "output_tokens": answer,
        "reasoning_tokens": reasoning,
    }


class NormalForm(unittest.TestCase):
    def test_every_vendor_form_becomes_the_same(self) -> None:
        table: list[tuple[Any, Any]] = [
            ({"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}, normal(10, 4)),
            (
                {
                    "prompt_tokens": 10,
                    "completion_tokens": 4,
                    "prompt_tokens_details": {"cached_tokens": 6, "audio_tokens": 0},
                    "completion_tokens_details": {"reasoning_tokens": 3},
                },
                normal(10, 4, cached=6, reasoning=3),
            ),
            ({"prompt_tokens": 10, "completion_tokens": 4, "prompt_cache_hit_tokens": 6}, normal(10, 4, cached=6)),
            ({"prompt_tokens": 10, "completion_tokens": 4, "cached_tokens": 6}, normal(10, 4, cached=6)),
            ({"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": None}, normal(10, 4)),
            (
                {
                    "input_tokens": 10,
                    "output_tokens": 4,
                    "input_tokens_details": {"cached_tokens": 6, "cache_write_tokens": 2},
                    "output_tokens_details": {"reasoning_tokens": 3},
                },
                normal(10, 4, cached=6, written=2, reasoning=3),
            ),
            # Messages: cached tokens are listed beside the input, not in it.
            (
                {
                    "input_tokens": 2,
                    "cache_read_input_tokens": 6,
                    "cache_creation_input_tokens": 2,
                    "cache_creation": {"ephemeral_5m_input_tokens": 2},
                    "output_tokens": 4,
                },
                normal(10, 4, cached=6, written=2),
            ),
            # LiteLLM in front of it: the same names, but within the prompt.
            (
                {"prompt_tokens": 10, "completion_tokens": 4, "cache_read_input_tokens": 6, "total_tokens": 14},
                normal(10, 4, cached=6),
            ),
            # xAI: completion_tokens without the reasoning, total_tokens with it.
            (
                {
                    "prompt_tokens": 10,
                    "completion_tokens": 4,
                    "total_tokens": 44,
                    "completion_tokens_details": {"reasoning_tokens": 30},
                },
                normal(10, 34, reasoning=30),
            ),
            ({"prompt_tokens": 10}, normal(10, 0)),
            ({"prompt_tokens": "10", "completion_tokens": 4}, normal(0, 4)),
            ({"prompt_tokens": -1, "completion_tokens": True}, None),
            ({"cost": 0.1}, None),
            ({}, None),
            (None, None),
            ([1], None),
        ]
        for raw, expected in table:
            self.assertEqual(normalize_usage(raw), expected, raw)

    def test_the_normal_form_is_its_own_normal_form(self) -> None:
        form = normal(10, 4, cached=6, written=2, reasoning=3)
        self.assertEqual(normalize_usage(form), form)
        for wrong in (-5, 10**400, 1e400, "9", True, None):  # in exactly this form, too
            spoilt = normalize_usage({**form, "input_tokens": wrong, "output_tokens": wrong})
            self.assertIsNone(spoilt, wrong)

    def test_sums_distinguish_unknown_from_zero(self) -> None:
        self.assertIsNone(add_usage(None, None))
        self.assertEqual(add_usage(None, normal(1, 2)), normal(1, 2))
        self.assertEqual(
            add_usage(normal(1, 2, cached=1), normal(3, 4, reasoning=2)), normal(4, 6, cached=1, reasoning=2)
        )


def answer(step: int, tokens: int = 10, **more: Any) -> ModelResponse:
    return ModelResponse(step, 1, usage=normal(tokens, 1), cost_usd=tokens / 100, seq=step, **more)


class Sums(unittest.TestCase):
    def test_calls_and_subagents_are_summed(self) -> None:
        events: list[Event] = [
            answer(1),
            SubagentFinished("t", "helper", "c", "end", usage=normal(5, 5), cost_usd=1.0, seq=2),
            answer(3),
        ]
        self.assertEqual(usage(events), normal(25, 7))
        self.assertAlmostEqual(session_cost(events) or 0, 1.2)

    def test_events_of_subagents_in_a_callers_list_are_not_counted_beside_their_sum(self) -> None:
        events = [
            SystemInit("s", "/", "1", seq=1),
            answer(2),
            answer(1, parent_tool_use_id="t", agent_name="helper"),
            SubagentFinished("t", "helper", "c", "end", usage=normal(10, 1), cost_usd=0.1, seq=3),
        ]
        self.assertEqual(usage(events), normal(20, 2))

    def test_a_subagents_own_log_is_counted(self) -> None:
        self.assertEqual(usage([answer(1, parent_tool_use_id="t"), answer(2, parent_tool_use_id="t")]), normal(20, 2))

    def test_resuming_counts_nothing_twice(self) -> None:
        first = [SystemInit("s", "/", "1", seq=1), answer(2)]
        again = [*first, SystemInit("s", "/", "1", seq=3), answer(4)]
        self.assertEqual(usage([*again, *again]), normal(20, 2))

    def test_events_copied_by_a_fork_are_paid_for_by_its_parent(self) -> None:
        parent = [SystemInit("s", "/", "1", seq=1), answer(2), answer(3)]
        fork = [*parent, SessionForked("s", 3, seq=4), answer(5, 7)]
        self.assertEqual(usage(fork), normal(7, 1))

    def test_usage_without_numbers_is_none(self) -> None:
        self.assertIsNone(usage([]))
        self.assertIsNone(usage([ModelResponse(1, 1, usage=None)]))
        self.assertIsNone(session_cost([]))

    def test_one_unknown_price_makes_the_sum_unknown(self) -> None:
        unknown = ModelResponse(2, 1, usage=normal(1, 1), cost_usd=None, seq=2)
        self.assertIsNone(session_cost([answer(1), unknown]))

    def test_an_answer_that_was_cut_before_its_usage_hides_no_cost(self) -> None:
        cut = ModelResponse(2, 1, complete=False, usage=None, seq=2)
        self.assertAlmostEqual(session_cost([answer(1), cut]) or 0, 0.1)


class Prices(unittest.TestCase):
    def test_each_part_has_its_price(self) -> None:
        prices = {"m": {"input": 10.0, "cached_input": 1.0, "cache_write": 12.5, "output": 40.0}}
        spent = normal(1_000_000, 500_000, cached=400_000, written=200_000)
        self.assertAlmostEqual(cost(spent, "m", prices) or 0, 4.0 + 0.4 + 2.5 + 20.0)

    def test_a_part_without_a_price_costs_what_input_costs(self) -> None:
        self.assertAlmostEqual(
            cost(normal(1_000_000, 0, cached=400_000), "m", {"m": {"input": 10, "output": 1}}) or 0, 10
        )

    def test_long_prompts_have_their_own_prices(self) -> None:
        prices = {"m": {"input": 1, "output": 1, "long": {"above_tokens": 100, "input": 2, "output": 3}}}
        self.assertAlmostEqual((cost(normal(100, 100), "m", prices) or 0) * 1e6, 200)
        self.assertAlmostEqual((cost(normal(101, 100), "m", prices) or 0) * 1e6, 202 + 300)

    def test_an_unknown_model_costs_none_and_never_nothing(self) -> None:
        for model in ("who-knows", "", None, "gpt-4o-audio-preview", "someone/gpt-4o", "gpt-4o:free"):
            self.assertIsNone(cost(normal(10, 10), model), model)
        self.assertIsNone(cost(None, "gpt-4o"))
        # More tokens from the cache than tokens, and more for an hour than were written, do not earn money.
        for odd in (normal(0, 0, cached=10**9), {**normal(0, 0, written=1), "cache_write_1h_tokens": 10**9}):
            self.assertGreaterEqual(cost(odd, "gpt-4o") or 0, 0)
            self.assertGreaterEqual(cost(odd, "claude-opus-5") or 0, 0)

    def test_dated_releases_and_routed_names_find_their_family(self) -> None:
        plain = cost(normal(10, 10), "gpt-4o")
        for model in ("gpt-4o-2024-08-06", "openai/gpt-4o", "openai/gpt-4o-2024-08-06"):
            self.assertEqual(cost(normal(10, 10), model), plain)

    def test_the_built_in_table_is_whole(self) -> None:
        for model, price in built_in_prices().items():
            self.assertGreater(price["input"], 0, model)
            self.assertGreater(price["output"], 0, model)
            self.assertLessEqual(price.get("cached_input", 0), price["input"], model)

    def test_a_file_replaces_and_adds_and_litellms_keys_load_too(self) -> None:
        table = {
            "gpt-4o": {"input": 1, "output": 2},
            "mine": {"input_cost_per_token": 1e-6, "output_cost_per_token": 3e-6, "mode": "chat"},
            "a picture": {"output_cost_per_image": 1},
        }
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "prices.json")
            path.write_text(json.dumps(table))
            prices = with_prices(path)
        self.assertEqual(prices["gpt-4o"], {"input": 1, "output": 2})
        self.assertAlmostEqual(prices["mine"]["output"], 3.0)
        self.assertNotIn("a picture", prices)
        self.assertIn("gpt-4o-mini", prices)

    def test_a_file_that_is_not_a_table_is_an_error_that_names_the_reason(self) -> None:
        bad = [
            "[]",
            "{",
            '{"m": 1}',
            '{"m": {"input": -1, "output": 1}}',
            '{"m": {"input": 1}}',
            '{"m": {"input": "1"}}',
        ]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "prices.json")
            for text in bad:
                path.write_text(text)
                with self.assertRaisesRegex(OptionsError, "prices|price"):
                    load_prices(path)
            with self.assertRaises(OptionsError):
                load_prices(Path(folder, "absent.json"))


class TiersAndCaches(unittest.TestCase):
    def test_an_hour_in_the_cache_costs_more(self) -> None:
        written = {"ephemeral_5m_input_tokens": 40, "ephemeral_1h_input_tokens": 60}
        raw = {"input_tokens": 0, "cache_creation_input_tokens": 100, "output_tokens": 0, "cache_creation": written}
        normal = normalize_usage(raw)
        assert normal is not None
        self.assertEqual((normal["cache_write_tokens"], normal["cache_write_1h_tokens"]), (100, 60))
        self.assertEqual(normalize_usage(normal), normal)
        self.assertAlmostEqual(cost(normal, "claude-opus-5") or 0, (40 * 6.25 + 60 * 10) / 1e6)
        total = add_usage(normal, {"input_tokens": 1, "output_tokens": 1}) or {}
        self.assertEqual((total["cache_write_1h_tokens"], total["input_tokens"]), (60, 101))

    def test_a_service_tier_has_its_factor_or_no_known_price(self) -> None:
        usage = {"input_tokens": 1_000_000, "output_tokens": 0}
        table = {"m": {"input": 2.0, "output": 1.0, "tiers": {"priority": 2}}}
        for tier, dollars in ((None, 2.0), ("default", 2.0), ("flex", 1.0), ("batch", 1.0), ("priority", 4.0)):
            self.assertEqual(cost(usage, "m", table, tier), dollars, tier)
        self.assertIsNone(cost(usage, "m", table, "unheard-of"))
        self.assertRegex(price_date(), r"\d{4}-\d{2}")


if __name__ == "__main__":
    unittest.main()
