"""The simulation: many schedules keep every promise, a seed always gives the same schedule, and broken code is found."""

from __future__ import annotations

import os
import random
import re
import unittest
from typing import Any

from openagentic_sdk.errors import LeaseLostError, SessionLockedError, StorageError
from openagentic_sdk.events import UserMessage
from tests.size import LARGE, full_size, sized

from .defects import DEFECTS, first_seeds, fits
from .modelled_redis import RedisDatabase
from .modelled_server import Database, Times
from .redis_servers import RedisProcess
from .schedules import run_seed
from .servers import Process, in_place_of_the_real

# The random parts of a process: its pid, and ids.
RANDOM = re.compile(rf"{os.getpid()}|[0-9a-f]{{32}}")
SEEDS = range(sized(40, 100, 10_000))


class SimulationTest(unittest.TestCase):
    @full_size
    def test_every_schedule_keeps_every_promise(self) -> None:
        for seed in SEEDS:
            run_seed(seed)

    @full_size
    def test_a_seed_is_the_same_schedule_each_time(self) -> None:
        for seed in range(45):
            first, second = (RANDOM.sub("", "\n".join(run_seed(seed).lines)) for _ in range(2))
            self.assertEqual(first, second)

    def test_a_claim_whose_answer_is_lost_is_released_with_the_next_heartbeat(self) -> None:
        times = Times()
        database = Database(times, random.Random(0))
        with in_place_of_the_real(times):
            claims, other = Process(1, database), Process(2, database)
            self.addCleanup(claims.clean_up)
            self.addCleanup(other.clean_up)
            claims.store.create_session(session_id="s")
            claims.wire.plan("away", 4)  # the claim is stored, but the state that its writer needs cannot be read
            with self.assertRaises(StorageError):
                claims.store.open_writer("s")
            claims.wire.plan("", 0)
            with self.assertRaises(SessionLockedError):
                other.store.open_writer("s")
            claims.beat()
            other.store.open_writer("s").close()

    def test_a_claim_that_never_took_effect_does_not_release_the_session_of_another_process(self) -> None:
        times = Times()
        database = Database(times, random.Random(0))
        with in_place_of_the_real(times):
            claims, other = Process(1, database), Process(2, database)
            self.addCleanup(claims.clean_up)
            self.addCleanup(other.clean_up)
            claims.store.create_session(session_id="s")
            for opens in (other, claims):
                claims.wire.plan("away", 3)  # the claim never reaches the server
                with self.assertRaises(StorageError):
                    claims.store.open_writer("s")
                claims.wire.plan("", 0)
                writer = opens.store.open_writer("s")
                claims.beat()
                writer.append([UserMessage("mine")])
                writer.close()

    def test_a_process_that_loses_its_claim_at_once_does_not_write_with_the_claim_of_the_other(self) -> None:
        times = Times()
        database = Database(times, random.Random(0))
        with in_place_of_the_real(times):
            claims, other = Process(1, database), Process(2, database)
            self.addCleanup(claims.clean_up)
            self.addCleanup(other.clean_up)
            claims.store.create_session(session_id="s")
            writers, claim_once = [], claims.store._claim_once

            def lose_at_once(*call: Any, **settings: Any) -> bool:
                came = bool(claim_once(*call, **settings))
                writers.append(other.store.take_over("s"))
                return came

            claims.store._claim_once = lose_at_once
            with self.assertRaises(SessionLockedError):
                claims.store.open_writer("s")
            writers[0].append([UserMessage("mine")])
            self.assertEqual(database.sessions["s"]["holder"], other.server.holder.name)

    def test_a_writer_that_a_restarted_server_forgot_does_not_write_beside_the_next_one(self) -> None:
        times = Times()
        database = RedisDatabase(times, random.Random(0))
        with in_place_of_the_real(times):
            forgotten, other = RedisProcess(1, database), RedisProcess(2, database)
            self.addCleanup(forgotten.clean_up)
            self.addCleanup(other.clean_up)
            forgotten.store.create_session(session_id="s")
            restart = database.saved()
            old = forgotten.store.open_writer("s")
            restart()
            new = other.store.open_writer("s")
            for _ in range(2):
                with self.assertRaises(LeaseLostError):
                    old.append([UserMessage("not mine")])
            old.close()
            new.append([UserMessage("mine")])
            self.assertEqual([event.seq for event in other.store.read_events("s")], [1])

    def test_a_list_fails_when_the_server_cannot_be_reached_instead_of_leaving_sessions_out(self) -> None:
        times = Times()
        database = RedisDatabase(times, random.Random(0))
        database.policy = "allkeys-lru"  # then lists read one session after the other
        with in_place_of_the_real(times):
            process = RedisProcess(1, database)
            self.addCleanup(process.clean_up)
            process.store.create_session(session_id="s", metadata={"tenant": "t"})
            process.wire.plan("", 0)  # counts the statements
            self.assertEqual([row.id for row in process.store.list_session_summaries(tenant="t")], ["s"])
            for at in range(1, process.wire.count + 1):
                process.wire.plan("away", at)
                with self.assertRaises(StorageError):
                    process.store.list_session_summaries(tenant="t")

    def test_every_defect_fits_the_package(self) -> None:
        self.assertEqual([row.what for row in DEFECTS if not fits(row)], [])

    @unittest.skipUnless(LARGE, "OPENAGENTIC_TEST_LARGE is not set")
    def test_broken_code_is_found_within_a_thousand_seeds(self) -> None:
        self.assertGreater(len(DEFECTS), 40)
        self.assertEqual([what for what, seed in first_seeds(DEFECTS) if seed is None], [])


if __name__ == "__main__":
    unittest.main()
