"""Another scheduler executes a fleet's runs: procrastinate, whose worker is killed in the middle of an unsafe tool.

`OPENAGENTIC_TEST_PROCRASTINATE_PYTHON` names a Python with procrastinate, `OPENAGENTIC_TEST_POSTGRES_URL` a server.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path

from openagentic_sdk.events import ToolResult
from openagentic_sdk.fleet import Fleet
from openagentic_sdk.sessions.stores.locate import open_store
from tests.stores import servers
from tests.waiting import until

PYTHON = os.environ.get("OPENAGENTIC_TEST_PROCRASTINATE_PYTHON", "")
POSTGRES_URL = os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL", "")
ROOT = Path(__file__).parents[2]
PATIENCE_S = 120  # an upper limit, reached only on failure


@unittest.skipUnless(PYTHON and POSTGRES_URL, "no Python with procrastinate or no Postgres server is configured")
class Procrastinate(unittest.TestCase):
    def setUp(self) -> None:
        self.url = servers.own_postgres_schema(self, POSTGRES_URL)
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.file = Path(made.name) / "payments"
        self.home = made.name

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [PYTHON, "-m", "tests.fleet.procrastinate_jobs", self.url, str(self.file), *words]
        environment = {**os.environ, "OPENAGENTIC_SDK_HOME": self.home}
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, **settings)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def wait_until(self, is_so: Callable[[], object], what: str) -> None:
        until(is_so, what, PATIENCE_S)

    def order(self, *lease_s: str) -> tuple[int, subprocess.Popen[str]]:
        """The number of a new run, and the worker that has begun its payment."""
        store = open_store(self.url)
        self.addCleanup(store.close)
        self.fleet = Fleet(store)
        self.addCleanup(self.fleet.close)
        self.assertEqual(self.start("schema").wait(PATIENCE_S), 0)
        run_id = int(self.start("order").stdout.read())
        worker = self.start("work", *lease_s)
        self.wait_until(self.file.exists, "the first worker has paid")
        return run_id, worker

    def check(self, run_id: int, steals: int) -> str:
        """Check that the run ended and paid once; return the outcome of its call."""
        self.wait_until(lambda: self.fleet.queue.find(run_id).is_over, "the run is over")
        run = self.fleet.queue.find(run_id)
        self.assertEqual((run.state, run.attempts, run.steals), ("ended", steals + 1, steals))
        self.assertEqual(self.file.read_text(), "paid\n")
        results = [event for event in self.fleet.store.read_events(run.session) if isinstance(event, ToolResult)]
        [outcome] = [result.outcome for result in results]
        return outcome

    def test_a_run_continues_after_kill_9_and_its_tool_has_started_once(self) -> None:
        run_id, first = self.order()
        first.send_signal(signal.SIGKILL)
        self.start("work")
        self.assertEqual(self.check(run_id, 1), "unknown")

    def test_a_run_that_a_terminated_worker_interrupts_continues_in_another(self) -> None:
        run_id, first = self.order("60")  # none expires while the worker ends, however busy the machine is
        first.send_signal(signal.SIGTERM)
        Path(f"{self.file}.go").touch()
        self.assertEqual(first.wait(PATIENCE_S), 0)
        self.start("work")
        self.assertIn(self.check(run_id, 0), ("ok", "unknown"))  # the step may end before the interruption


if __name__ == "__main__":
    unittest.main()
