"""Another scheduler executes a fleet's runs: procrastinate, whose worker is killed in the middle of an unsafe tool.

`OPENAGENTIC_TEST_PROCRASTINATE_PYTHON` names a Python with procrastinate, `OPENAGENTIC_TEST_POSTGRES_URL` a server.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path

from openagentic_sdk.agents import NamedAgent
from openagentic_sdk.events import ToolResult
from openagentic_sdk.fleet import Fleet
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.sessions.stores.locate import open_store
from openagentic_sdk.testing.scripted import ScriptedProvider
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

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [PYTHON, "-m", "tests.fleet.procrastinate_jobs", self.url, str(self.file), *words]
        environment = {**os.environ, "OPENAGENTIC_SDK_HOME": self.home}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def wait_until(self, is_so: Callable[[], object], what: str) -> None:
        until(is_so, what, PATIENCE_S)

    def test_a_run_goes_on_after_kill_9_and_its_tool_has_started_once(self) -> None:
        store = open_store(self.url)
        self.addCleanup(store.close)
        agent = NamedAgent(lambda: OpenAgenticOptions(provider=ScriptedProvider([]), model="m"))
        fleet = Fleet(store, {"payer": agent})
        self.addCleanup(fleet.close)
        self.assertEqual(self.start("schema").wait(PATIENCE_S), 0)
        run_id = asyncio.run(fleet.enqueue("payer", "Pay."))
        self.assertEqual(self.start("defer", str(run_id)).wait(PATIENCE_S), 0)
        first = self.start("work")
        self.wait_until(self.file.exists, "the first worker never paid")
        first.send_signal(signal.SIGKILL)
        self.start("work")
        self.wait_until(lambda: fleet.queue.find(run_id).is_over, "nobody went on")
        run = fleet.queue.find(run_id)
        self.assertEqual((run.state, run.attempts, run.steals), ("ended", 2, 1))
        self.assertEqual(self.file.read_text(), "paid\n")
        results = [event for event in store.read_events(run.session) if isinstance(event, ToolResult)]
        self.assertEqual([result.outcome for result in results], ["unknown"])


if __name__ == "__main__":
    unittest.main()
