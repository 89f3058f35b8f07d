"""Under test, a body that reads anything outside the log fails at that place; its steps are unrestricted."""

from __future__ import annotations

import os
import random
import socket
import tempfile
import time
import unittest
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from openagentic_sdk import Flow, RunFailedError, workflow
from openagentic_sdk.testing.bodies import strict_bodies

from .test_flow import FlowCase

READS: dict[str, Callable[[], object]] = {
    "flow.now()": time.time,
    "flow.now() ": lambda: datetime.now(UTC),
    "flow.now()  ": time.monotonic,
    "flow.random()": random.random,
    "flow.random() ": lambda: random.choice("ab"),
    "flow.uuid()": uuid.uuid4,
    "flow.uuid() ": lambda: os.urandom(4),
    "flow.step()": lambda: os.listdir("."),
    "flow.step() ": lambda: open(__file__, encoding="utf-8").close(),
    "flow.step()  ": lambda: socket.create_connection(("127.0.0.1", 1), 0.01),
}


class Strict(FlowCase):
    async def test_reading_clock_chance_files_or_network_fails_the_body_with_the_function_to_use(self) -> None:
        for number, (instead, read) in enumerate(READS.items()):

            @workflow
            async def look(flow: Flow) -> None:
                read()  # noqa: B023 - called before the next iteration

            with self.subTest(number), strict_bodies(), self.assertRaises(RunFailedError) as caught:
                await look.run(options=self.options(), session=f"s{number}")
            self.assertIn("which no log records: use", str(caught.exception))
            self.assertIn(instead.strip(), str(caught.exception))
            self.assertIn("test_strict.py:", str(caught.exception))

    async def test_functions_of_the_flow_and_code_in_steps_are_allowed(self) -> None:
        def read(name: str) -> int:
            time.time()
            with tempfile.TemporaryFile() as file:
                return file.write(name.encode())

        @workflow
        async def work(flow: Flow) -> int:
            flow.now(), flow.random(), flow.uuid()
            await flow.sleep(1)
            return sum(await flow.map(lambda name: flow.step(read, name), ["a", "bc"]))

        with strict_bodies():
            self.assertEqual((await work.run(options=self.options(), session="s")).output, 3)


if __name__ == "__main__":
    unittest.main()
