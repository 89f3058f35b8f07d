"""Workers in separate processes that are killed, stopped and drained: nothing is done twice, nothing is lost.

The default run uses SQLite; with OPENAGENTIC_TEST_POSTGRES_URL the tests run on Postgres too.
"""

from __future__ import annotations

import random
import signal
import sys
import unittest
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from openagentic_sdk.events import ToolResult
from tests.pythons import Python
from tests.size import LARGE, full_size

from .places import FleetTest, PostgresFleetTest, end, postgres_url

# A worker stopped at these points has asked the model, started a call, paid, or is about to give its final answer.
POINTS = ("asked", "started", "paid", "answering")


@unittest.skipUnless(sys.platform == "linux", "needs signals and /proc")
class ProcessesTest(FleetTest):
    points: tuple[str, ...] = ("started", "answering")
    storm = (8, 2, 4)  # numbers of runs, workers and kills

    @full_size
    def test_a_run_whose_worker_is_killed_in_a_call_continues_elsewhere_and_nothing_is_done_twice(self) -> None:
        run_id = self.pay("k", 60.0)
        with self.worker() as first:
            self.until(lambda: self.payments()["k"], "the run has paid")
            end(first, signal.SIGKILL)
        with self.worker():
            self.until_over(run_id)
        self.assertEqual(self.check_ended(run_id, "k"), "unknown")
        run = self.status(run_id)
        self.assertGreaterEqual(run.steals, 1)
        self.assertEqual(run.attempts, run.steals + 1)

    @full_size
    def test_a_worker_that_was_stopped_writes_nothing_and_starts_nothing_when_it_wakes_up(self) -> None:
        for point in self.points:
            with self.subTest(stopped=point):
                run_id = self.pay(point)
                self.stop_at(point, point)
                with self.worker() as zombie, ExitStack() as others:
                    self.until_stopped(zombie)
                    others.enter_context(self.worker())
                    self.until_over(run_id)
                    before, seq = self.status(run_id), self.store.last_seq(self.status(run_id).session)
                    zombie.send_signal(signal.SIGCONT)
                    self.assertEqual(end(zombie), 0)
                self.assertEqual((self.status(run_id), self.store.last_seq(before.session)), (before, seq))
                self.check_ended(run_id, point)

    @full_size
    def test_a_storm_of_kills_and_zombies_loses_and_doubles_nothing(self) -> None:
        runs, size, kills = self.storm
        rng, ids = random.Random(7), {}
        for number in range(runs):
            ids[f"s{number}"] = self.pay(f"s{number}", rng.uniform(0.0, 0.3))
        with ExitStack() as stack:
            team = [stack.enter_context(self.worker("--slots", "4")) for _ in range(size)]
            stopped: list[Python] = []
            for number in range(kills):
                more = len(self.payments()) + 1
                self.until(partial(self._has_paid_or_ended, more, ids), "another run has paid, or all runs are over")
                victim = team.pop(rng.randrange(size))
                if number % 4 == 3:
                    self.stop_at_will(victim)
                    stopped.append(victim)
                else:
                    end(victim, signal.SIGKILL)
                team.append(stack.enter_context(self.worker("--slots", "4")))
            self.until_over(*ids.values())
            for zombie in stopped:
                zombie.send_signal(signal.SIGCONT)
                # A worker stopped during startup has not installed all of its signal handlers yet.
                self.assertIn(end(zombie), (0, -signal.SIGTERM, 128 + signal.SIGTERM))
            for worker in team:
                end(worker)
        for key, run_id in ids.items():
            self.check_ended(run_id, key)

    def _has_paid_or_ended(self, number: int, ids: dict[str, int]) -> bool:
        # A worker killed between the start of a call and its effect pays nothing, and no other may try the call again.
        return len(self.payments()) >= number or all(self.status(run_id).is_over for run_id in ids.values())

    @full_size
    def test_a_drained_worker_hands_back_at_once_and_no_attempt_is_counted(self) -> None:
        self.lease_s = self.long_lease_s
        ids = [self.pay(f"d{number}", 4.0) for number in range(4)]  # long enough to be under way when it is told to end
        with self.worker("--slots", "4") as first, ExitStack() as others:
            self.until(lambda: len(self.payments()) == len(ids), "all runs are in their calls")
            first.stdout.close()  # the terminal was closed, and nobody reads any more
            is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # if the tests run under nohup
            first.send_signal(signal.SIGTERM if is_ignored else signal.SIGHUP)
            others.enter_context(self.worker("--slots", "4"))
            self.assertEqual(first.wait(), 0)
            self.until_over(*ids)
        for number, run_id in enumerate(ids):
            self.assertEqual(self.check_ended(run_id, f"d{number}"), "ok")
            self.assertEqual((self.status(run_id).attempts, self.status(run_id).steals), (1, 0))

    @full_size
    def test_a_second_signal_ends_a_worker_that_still_waits_for_a_call(self) -> None:
        self.lease_s = self.long_lease_s
        run_id = self.pay("long", 60.0)
        with self.worker() as worker:
            self.until(lambda: self.payments()["long"], "the run is in its call")
            worker.send_signal(signal.SIGTERM)
            self.assertIn("second signal", worker.stderr.readline())
            self.assertEqual(end(worker), 128 + signal.SIGTERM)
        self.assertEqual(self.status(run_id).state, "running")

    @full_size
    def test_exactly_the_parked_runs_with_an_answered_question_continue(self) -> None:
        self.lease_s = self.long_lease_s
        ids = [self.pay(f"p{number}", agent="asker") for number in range(4)]
        with self.worker() as first:
            self.until(lambda: all(self.status(each).state == "waiting" for each in ids), "all runs are parked")
            self.assertEqual(end(first), 0)
        self.assertEqual(
            {(run.attempts, run.owner, run.lease_left_s) for run in map(self.status, ids)}, {(0, "", None)}
        )
        for run_id in ids[::2]:
            self.run_async(self.fleet.answer(run_id, None, "yes"))
        with self.worker("--until-idle") as second:
            self.assertEqual(second.wait(), 0)
        self.assertEqual([self.status(each).state for each in ids], ["ended", "waiting"] * 2)
        self.assertEqual(self.payments(), {"p0": 1, "p2": 1})

    @full_size
    def test_a_run_that_kills_every_worker_fails_and_its_session_can_be_used(self) -> None:
        self.lease_s = self.long_lease_s
        run_id = self.pay("poison", max_attempts=2)
        for _ in range(2):
            self.stop_at("asked", "poison")
            with self.worker() as victim:
                self.until_stopped(victim)
                end(victim, signal.SIGKILL)
            self.expire(run_id)
        with self.worker():
            self.until_over(run_id)
        run = self.status(run_id)
        self.assertEqual((run.state, run.attempts), ("failed", 2))
        self.assertIn("2 workers died or hung", run.error or "")
        self.assertEqual(self.store.read_summary(run.session).state, "idle")
        again = self.run_async(self.fleet.enqueue("payer", "pay again 0", session=run.session))
        with self.worker("--until-idle") as worker:
            self.assertEqual(worker.wait(), 0)
        self.assertEqual(self.status(again).state, "ended", self.status(again))
        results = [event for event in self.store.read_events(run.session) if isinstance(event, ToolResult)]
        self.assertEqual([result.outcome for result in results], ["ok"])

    def test_a_worker_prints_one_line_at_the_start_and_one_at_the_end_of_a_run(self) -> None:
        self.lease_s = self.long_lease_s
        run_id = self.pay("line")
        with self.worker("--until-idle") as worker:
            lines = worker.stdout.read().splitlines()
        name = f"run {run_id} (payer, session {self.status(run_id).session})"
        self.assertEqual(lines[1:], [f"{name}: running", f"{name}: ended"])
        self.assertFalse(Path(self.folder, "asked line").exists())


@unittest.skipUnless(postgres_url(), "OPENAGENTIC_TEST_POSTGRES_URL is not set")
class PostgresProcessesTest(PostgresFleetTest, ProcessesTest):
    points = POINTS
    storm = (400, 8, 200) if LARGE else (16, 3, 6)


if __name__ == "__main__":
    unittest.main()
