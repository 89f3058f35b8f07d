"""The state of a request, derived from its log and the lease, as a table."""

from __future__ import annotations

import unittest
from collections.abc import Sequence

from openagentic_sdk.events import (
    AssistantMessage,
    Event,
    ModelRequest,
    Result,
    StopReason,
    SystemInit,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from openagentic_sdk.ground.frozen import changed
from openagentic_sdk.serialization import dumps_event, loads_event
from openagentic_sdk.sessions.folds.standing import find_request, with_lease
from openagentic_sdk.sessions.folds.summary import fold_session_summary

INIT, ASK = SystemInit("s", "/p", "1"), ModelRequest(1, 1, "0" * 64, 1)
QUESTION, ANSWER = UserQuestion("q", "May I?"), UserAnswer("q", "yes")


def end(reason: StopReason, request_id: str | None = None) -> Result:
    return Result("", "s", reason, request_id=request_id)


def prompt(request_id: str | None) -> UserMessage:
    return UserMessage("Do it.", request_id=request_id)


BEGUN: tuple[Event, ...] = (INIT, prompt("r"), ASK)
# The events; then the state of request r, its newest stop reason, its number of deaths, and the seq of its last event.
CASES: Sequence[tuple[tuple[Event, ...], str, str | None, int, int]] = (
    (BEGUN, "running", None, 0, 3),
    ((*BEGUN, AssistantMessage("Done."), end("end")), "over", "end", 0, 5),
    ((*BEGUN, end("error")), "over", "error", 0, 4),
    ((*BEGUN, end("interrupted")), "over", "interrupted", 0, 4),
    ((*BEGUN, end("suspended")), "suspended", "suspended", 0, 4),
    ((*BEGUN, end("suspended"), INIT, ASK), "running", "suspended", 0, 6),
    ((*BEGUN, end("suspended"), INIT, ASK, end("end")), "over", "end", 0, 7),
    ((*BEGUN, QUESTION), "parked", None, 0, 4),
    ((*BEGUN, QUESTION, ANSWER), "running", None, 0, 5),
    ((*BEGUN, QUESTION, end("waiting")), "parked", "waiting", 0, 5),
    ((*BEGUN, QUESTION, end("waiting"), ANSWER), "queued", "waiting", 0, 6),
    ((*BEGUN, QUESTION, end("waiting"), ANSWER, INIT), "running", "waiting", 0, 7),
    ((*BEGUN, INIT, ASK, INIT), "running", None, 2, 6),
    # A run that refuses another prompt does nothing for the request.
    ((*BEGUN, QUESTION, end("waiting"), INIT, end("blocked:user_prompt_submit", "x")), "parked", "waiting", 0, 7),
    ((*BEGUN, QUESTION, end("waiting"), INIT, end("error", "x"), ANSWER), "queued", "waiting", 0, 8),
    ((*BEGUN, end("end"), INIT, end("error", "x")), "over", "end", 0, 6),
    ((*BEGUN, UserMessage("More.", request_id="m", origin="steering"), end("error", "m")), "over", "error", 0, 5),
    # Another prompt supersedes it: earlier runs of that prompt do not belong to the request.
    ((*BEGUN, QUESTION, end("waiting"), INIT, ANSWER, prompt("x"), ASK), "over", "waiting", 0, 5),
    ((*BEGUN, end("end"), INIT, prompt("x"), ASK), "over", "end", 0, 4),
    ((*BEGUN, AssistantMessage("One."), prompt("x"), ASK), "over", None, 0, 4),
    ((*BEGUN, end("suspended"), INIT, prompt(None), ASK), "over", "suspended", 0, 4),
)


def stored(events: Sequence[Event]) -> list[Event]:
    return [changed(event, seq=seq) for seq, event in enumerate(events, 1)]


class StatesOfRequests(unittest.TestCase):
    def test_the_state_of_a_request_follows_from_the_log_between_its_prompt_and_the_next(self) -> None:
        for events, state, reason, deaths, last_seq in CASES:
            found = find_request(stored(events), "r".__eq__)
            assert found is not None
            result = None if found.result is None else found.result.stop_reason
            with self.subTest([event.type for event in events]):
                self.assertEqual((found.state, result, found.last_seq), (state, reason, last_seq))
                self.assertEqual((found.after_seq, found.said_seq), (0, 2))
                if found.is_newest:
                    self.assertEqual(found.deaths, deaths)

    def test_a_request_that_runs_is_dead_when_nobody_holds_its_session(self) -> None:
        for state in ("queued", "running", "parked", "suspended", "over"):
            dead = "dead" if state == "running" else state
            self.assertEqual(
                (with_lease(state, False), with_lease(state, True), with_lease(state, None)), (dead, state, state)
            )

    def test_a_request_that_is_in_no_log_is_none(self) -> None:
        self.assertIsNone(find_request(stored([INIT, prompt(None), ASK, end("end")]), lambda _: True))

    def test_the_row_of_a_session_has_the_same_state(self) -> None:
        rows = {"over": ("idle", "failed"), "suspended": ("suspended",), "parked": ("waiting",)}
        for events, state, *_ in CASES:
            if isinstance(events[-1], Result):
                with self.subTest([event.type for event in events]):
                    self.assertIn(fold_session_summary(None, stored(events)).state, rows[state])

    def test_an_unknown_stop_reason_is_read_unchanged(self) -> None:
        event = loads_event(dumps_event(end("suspended")).replace("suspended", "from the future"))
        self.assertEqual(fold_session_summary(None, stored([*BEGUN, event])).state, "idle")
