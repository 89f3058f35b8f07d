"""Compaction cuts a long conversation only where it is legal, and keeps what must survive."""

from __future__ import annotations

import json
import random
import unittest
from collections.abc import Sequence

from openagentic_sdk.events import (
    AssistantMessage,
    Event,
    ModelRequest,
    SessionCompacted,
    SessionRewound,
    SkillActivated,
    SkillDeactivated,
    TodoUpdated,
    ToolResult,
    ToolUse,
    UserMessage,
)
from openagentic_sdk.sessions.base import stamp_events
from openagentic_sdk.sessions.folds import compaction
from openagentic_sdk.sessions.folds.compaction import ContextLimits
from openagentic_sdk.sessions.rebuild import rebuild_messages
from tests.size import full_size


def numbered(events: Sequence[Event]) -> list[Event]:
    return stamp_events(events, first_seq=1, now=1.0)


def step(number: int, output: str = "out", calls: int = 1) -> list[Event]:
    ids = [f"c{number}.{index}" for index in range(calls)]
    return [
        ModelRequest(number, 1, "", 0),
        AssistantMessage(f"step {number}"),
        *(ToolUse(name, "Bash", {"command": f"do {name}"}) for name in ids),
        *(ToolResult(name, output=output) for name in ids),
    ]


def turns(count: int, output: str = "out") -> list[Event]:
    events: list[Event] = []
    for number in range(1, count + 1):
        events += [UserMessage(f"prompt {number}"), *step(number, output), ModelRequest(number, 1, "", 0)]
        events.append(AssistantMessage(f"answer {number}"))
    return numbered(events)


class CutTest(unittest.TestCase):
    def test_the_newest_messages_stay_word_for_word_and_the_rest_becomes_the_summary(self) -> None:
        events = turns(20, "x" * 500)
        limits = ContextLimits(max_bytes=10_000)
        plan = compaction.plan_compaction(events, limits)
        assert plan is not None
        before = rebuild_messages(events)
        after = rebuild_messages([*events, compacted(events, plan, "SUMMARY")])
        self.assertIn("SUMMARY", after[0]["content"])
        self.assertEqual(after[1:], before[-len(after) + 1 :])
        self.assertEqual([*plan.messages, *after[1:]], before)
        self.assertLessEqual(compaction.size_of(after[1:]), 3000)
        self.assertFalse(compaction.is_near_limit(plan.bytes_kept, limits))

    def test_a_log_that_fits_is_cut_in_half_on_demand_and_an_empty_one_not_at_all(self) -> None:
        plan = compaction.plan_compaction(turns(6), ContextLimits())
        assert plan is not None
        self.assertLess(plan.bytes_kept, plan.bytes_before * 0.6)
        self.assertIsNone(compaction.plan_compaction([], ContextLimits()))
        self.assertIsNone(compaction.plan_compaction(numbered([SkillActivated("x")]), ContextLimits(max_bytes=10)))

    def test_a_last_exchange_larger_than_the_limit_goes_into_the_summary_too(self) -> None:
        events = numbered([UserMessage("the task"), *step(1, "x" * 100_000)])
        limits = ContextLimits(max_bytes=20_000)
        plan = compaction.plan_compaction(events, limits)
        assert plan is not None
        self.assertEqual(plan.up_to_seq, events[-1].seq)
        self.assertEqual(plan.prompt, "the task")
        summary = compaction.finish_summary(plan, compaction.fallback_summary(plan))
        after = rebuild_messages([*events, compacted(events, plan, summary)])
        self.assertLess(compaction.size_of(after), 20_000 * limits.start_at)

    @full_size
    def test_no_cut_ever_separates_a_call_from_its_result(self) -> None:
        chance = random.Random(11)
        for _ in range(200):
            events = random_log(chance)
            limits = ContextLimits(max_bytes=chance.choice((300, 1500, 6000, 10**6)), keep=chance.random())
            plan = compaction.plan_compaction(events, limits)
            if plan is None:
                continue
            self.assert_paired(rebuild_messages([*events, compacted(events, plan, "S")]))
            later = numbered([*events, SessionCompacted(plan.up_to_seq, "S"), *answers(events)])
            self.assert_paired(rebuild_messages(later))
            uses = [event for event in events if isinstance(event, ToolUse) and (event.seq or 0) <= plan.up_to_seq]
            answered = {event.tool_use_id for event in events if isinstance(event, ToolResult)}
            self.assertTrue(all(use.tool_use_id in answered for use in uses))

    def test_compactions_follow_each_other_and_each_can_be_undone(self) -> None:
        events = turns(10, "y" * 300)
        views = [rebuild_messages(events)]
        for number in range(3):
            plan = compaction.plan_compaction(events, ContextLimits())
            assert plan is not None
            events = numbered([*events, SessionCompacted(plan.up_to_seq, f"summary {number}")])
            views.append(rebuild_messages(events))
        self.assertIn("summary 2", views[-1][0]["content"])
        back = numbered([*events, SessionRewound((events[-1].seq or 0) - 1)])
        self.assertEqual(rebuild_messages(back), views[-2])

    def test_the_prefix_stays_unchanged_between_compactions(self) -> None:
        events = turns(8)
        plan = compaction.plan_compaction(events, ContextLimits())
        assert plan is not None
        events = [*events, compacted(events, plan, "S")]
        before = rebuild_messages(events)
        after = rebuild_messages(numbered([*events, UserMessage("more"), *step(99)]))
        self.assertEqual(after[: len(before)], before)

    def assert_paired(self, messages: list[dict[str, object]]) -> None:
        waiting: list[str] = []
        for message in messages:
            if message["role"] == "tool":
                self.assertIn(message["tool_call_id"], waiting)
                waiting.remove(str(message["tool_call_id"]))
                continue
            self.assertEqual(waiting, [])
            calls = message.get("tool_calls") or []
            assert isinstance(calls, list)
            waiting = [call["id"] for call in calls]
        self.assertEqual(waiting, [])


class SizeTest(unittest.TestCase):
    def test_the_estimate_is_corrected_by_what_the_endpoint_counted(self) -> None:
        for size, reported, expected in (
            (3500, None, 3.5),
            (3500, 0, 3.5),
            (4000, 1000, 4.0),
            (4000, 2000, 2.0),
            (4000, 1_000_000, 1.0),
            (4000, 1, 8.0),
        ):
            self.assertEqual(compaction.corrected_bytes_per_token(size, reported), expected)
        self.assertEqual(compaction.estimate_tokens(7000), 2000)

    def test_a_limit_in_tokens_and_one_in_bytes_both_hold(self) -> None:
        both = ContextLimits(max_tokens=1000, max_bytes=2000, start_at=0.5)
        self.assertFalse(compaction.is_near_limit(999, both))
        self.assertTrue(compaction.is_near_limit(1000, both))
        self.assertTrue(compaction.is_near_limit(500, ContextLimits(max_tokens=1000, start_at=0.5), 1.0))
        self.assertFalse(compaction.is_near_limit(10**9, ContextLimits()))


class SummaryTest(unittest.TestCase):
    def test_todos_skills_and_the_current_request_survive_whatever_the_model_wrote(self) -> None:
        events = numbered(
            [
                UserMessage("build the bridge"),
                TodoUpdated([{"content": "dig", "status": "completed"}, {"content": "pour", "status": "in_progress"}]),
                SkillActivated("old"),
                SkillActivated("concrete", body="B"),
                SkillDeactivated("old"),
                *step(1, "x" * 5000),
                *step(2, "x" * 5000),
            ]
        )
        plan = compaction.plan_compaction(events, ContextLimits(max_bytes=9000))
        assert plan is not None
        summary = compaction.finish_summary(plan, "  ")
        for part in ("build the bridge", "[in_progress] pour", "concrete"):
            self.assertIn(part, summary)
        self.assertNotIn("old", summary)

    def test_a_request_for_a_summary_fits_however_long_the_conversation_is(self) -> None:
        plan = compaction.plan_compaction(turns(60, "\u2028ä" * 3000), ContextLimits(max_bytes=5000))
        assert plan is not None
        for max_bytes in (1500, 5000, 20_000, 10**7):
            request = compaction.summary_request(plan, max_bytes)
            self.assertLessEqual(compaction.size_of(request), max_bytes)
        self.assertIn("prompt 59", request[0]["content"])

    def test_without_a_model_the_oldest_outputs_are_cut_first_and_then_the_oldest_parts_dropped(self) -> None:
        messages = rebuild_messages(turns(10, "z" * 3000))
        whole = compaction.transcript(messages, 10**6)
        self.assertEqual(whole.count("z" * 3000), 10)
        cut = compaction.transcript(messages, 25_000)
        self.assertIn("prompt 1\n", cut)
        self.assertTrue(0 < cut.count("z" * 3000) < 10)
        self.assertTrue(cut.rstrip().endswith("answer 10"))
        dropped = compaction.transcript(messages, 1500)
        self.assertNotIn("prompt 1\n", dropped)
        self.assertIn("prompt 10", dropped)
        for max_bytes in (0, 1, 50, 100, 400, 1500, 25_000):
            self.assertLessEqual(len(json.dumps(compaction.transcript(messages, max_bytes))) - 2, max_bytes)

    def test_the_event_records_what_it_saved(self) -> None:
        plan = compaction.plan_compaction(turns(20, "x" * 500), ContextLimits(max_bytes=10_000))
        assert plan is not None
        event = compaction.compacted_event(plan, "S", trigger="manual", method="cut")
        assert event.tokens_before is not None and event.tokens_after is not None
        self.assertLess(event.tokens_after, event.tokens_before)
        self.assertEqual((event.trigger, event.method, event.up_to_seq), ("manual", "cut", plan.up_to_seq))


def compacted(events: Sequence[Event], plan: compaction.CompactionPlan, summary: str) -> Event:
    return SessionCompacted(plan.up_to_seq, summary, seq=(events[-1].seq or 0) + 1)


def random_log(chance: random.Random) -> list[Event]:
    events: list[Event] = []
    for number in range(chance.randrange(1, 12)):
        if chance.random() < 0.5:
            events.append(UserMessage(f"prompt {number}"))
        events += step(number, "o" * chance.randrange(800), calls=chance.randrange(1, 4))
        if chance.random() < 0.1:
            events.append(SessionRewound(chance.randrange(len(events))))
    if chance.random() < 0.5:
        del events[-chance.randrange(1, 4) :]
    return numbered(events)


def answers(events: Sequence[Event]) -> list[Event]:
    done = {event.tool_use_id for event in events if isinstance(event, ToolResult)}
    uses = [event.tool_use_id for event in events if isinstance(event, ToolUse)]
    return [ToolResult(name, output="late") for name in uses if name not in done]
