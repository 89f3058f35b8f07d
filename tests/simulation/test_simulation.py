"""The simulation: many schedules keep every promise, a seed always gives the same schedule, and broken code is found."""

from __future__ import annotations

import os
import random
import re
import unittest

from openagentic_sdk.errors import SessionLockedError, StorageError
from openagentic_sdk.events import UserMessage
from tests.size import LARGE, full_size, sized

from .defects import DEFECTS, first_seeds, fits
from .modelled_server import Database, Times
from .schedules import run_seed
from .servers import Process, in_place_of_the_real

# The random parts of a process: its pid, and ids.
RANDOM = re.compile(rf"{os.getpid()}|[0-9a-f]{{32}}")
SEEDS = range(sized(40, 100, 10_000))


class SimulationTest(unittest.TestCase):
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

    def test_every_defect_fits_the_package(self) -> None:
        self.assertEqual([row.what for row in DEFECTS if not fits(row)], [])

    @unittest.skipUnless(LARGE, "OPENAGENTIC_TEST_LARGE is not set")
    def test_broken_code_is_found_within_a_thousand_seeds(self) -> None:
        self.assertGreater(len(DEFECTS), 40)
        self.assertEqual([what for what, seed in first_seeds(DEFECTS) if seed is None], [])


if __name__ == "__main__":
    unittest.main()
