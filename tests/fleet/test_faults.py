"""A fleet on Postgres with failing network, server, backends, pooler and clocks: each run is still done once."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import unittest
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from openagentic_sdk.fleet import Fleet, Worker
from openagentic_sdk.sessions.stores.locate import open_store
from tests.pythons import ROOT, Python
from tests.size import LARGE
from tests.stores.own_servers import OwnBouncer, OwnPostgres
from tests.stores.proxy import Fault, Proxy

from .payments import agents
from .places import FleetTest, PostgresFleetTest, end, postgres_url
from .test_fleet import QueueTest

if TYPE_CHECKING:
    from collections.abc import Iterator

NEEDS = "no server is named by OPENAGENTIC_TEST_POSTGRES_URL"
_SKEWED = """
import sys, time
real, skew = time.time, float(sys.argv.pop(1))
time.time = lambda: real() + skew
from openagentic_sdk.cli.main import main
sys.exit(main())
"""


class Partition(Proxy):
    """While `is_cut`, no client data arrives on old or new connections, and none of them is closed."""

    is_cut = False

    def _next(self) -> Fault | None:
        fault = super()._next()
        return "hang before" if self.is_cut else fault


@unittest.skipUnless(postgres_url(), NEEDS)
class NetworkTest(PostgresFleetTest):
    def work(self, url: str) -> int:
        """Work in this process through a proxy until nothing is due; return the number of pieces sent."""
        store = open_store(url)
        fleet = Fleet(store, agents())

        async def work() -> None:
            await Worker(fleet, lease_s=30.0).work(until_idle=True)

        try:
            asyncio.run(work())
        finally:
            fleet.close()
            store.close()
        return 0

    def test_a_connection_that_is_cut_before_or_behind_any_statement_does_nothing_twice(self) -> None:
        with Proxy(self.url) as proxy:
            first = self.pay("first")
            self.work(proxy.url)
            self.check_ended(first, "first")
            pieces = proxy.sent
            for fault in ("cut before", "cut inside", "cut answer", "cut after"):
                for number in range(1, pieces, 1 if LARGE else 5):
                    key = f"{fault.split()[1]}{number}"
                    with self.subTest(fault=fault, piece=number):
                        run_id = self.pay(key)
                        proxy.fail(number, fault)  # type: ignore[arg-type]
                        self.work(proxy.url)
                        proxy.disarm()
                        self.until(lambda: self._ends(run_id), "the run ends")  # noqa: B023
                        self.assertEqual(self.check_ended(run_id, key), "ok")
                        self.assertEqual(self.status(run_id).attempts, 1)

    def _ends(self, run_id: int) -> bool:
        if not self.status(run_id).is_over:
            self.work(self.url)
        return self.status(run_id).is_over

    def test_a_worker_behind_a_broken_network_gives_up_within_its_lease_and_another_continues(self) -> None:
        run_id = self.pay("k", 3.0)
        with Partition(self.url) as proxy, self.worker(url=proxy.url) as cut_off:
            self.until(lambda: self.payments()["k"], "the run has paid")
            proxy.is_cut = True
            with self.worker():
                self.until_over(run_id)
            self.assertEqual(self.check_ended(run_id, "k"), "unknown")
            before, seq = self.status(run_id), self.store.last_seq(self.status(run_id).session)
            proxy.is_cut = False
            self.assertEqual(end(cut_off), 0)
            self.assertIn("lost", cut_off.stdout.read())
        self.assertEqual((self.status(run_id), self.store.last_seq(before.session)), (before, seq))

    def test_backends_that_are_ended_all_the_time_lose_nothing(self) -> None:
        import psycopg

        ids = {f"t{number}": self.pay(f"t{number}", 0.1) for number in range(12)}
        name = f"ended_{uuid.uuid4().hex[:12]}"
        url = f"{self.url}&application_name={name}"
        with psycopg.connect(self.url, autocommit=True) as db, self.worker(url=url) as worker:
            command = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
            for number in range(1, len(ids) + 1):
                self.until(lambda: len(self.payments()) >= number, "another run has paid")  # noqa: B023
                self.until(lambda: db.execute(command, (name,)).fetchall(), "the worker has connected again")
                self.assertIsNone(worker.poll())
            self.until_over(*ids.values())
        for key, run_id in ids.items():
            self.check_ended(run_id, key)

    def test_workers_whose_clocks_are_an_hour_off_take_over_when_the_lease_is_over_and_not_before(self) -> None:
        @contextmanager
        def skewed(seconds: float) -> Iterator[Python]:
            command = ("fleet", "work", "--agents", "tests.fleet.payments:agents", "--store", self.url, "--lease", "5")
            pipe = subprocess.PIPE
            with Python("-c", _SKEWED, str(seconds), *command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT) as worker:
                try:
                    yield worker
                finally:
                    worker.kill()

        long, short = self.pay("long", 6.0), self.pay("short")
        with skewed(-3600) as behind, skewed(3600):
            self.until_over(short)
            self.until_over(long)
            self.assertEqual([self.check_ended(long, "long"), self.check_ended(short, "short")], ["ok", "ok"])
            self.assertEqual((self.status(long).attempts, self.status(long).steals), (1, 0))
            killed = self.pay("killed", 60.0)
            self.until(lambda: self.payments()["killed"], "the run has paid")
            if self.status(killed).owner.split(":")[1] == str(behind.pid):
                end(behind, signal.SIGKILL)
                self.until_over(killed)
                self.assertEqual(self.check_ended(killed, "killed"), "unknown")


@unittest.skipUnless(postgres_url() and sys.platform == "linux", NEEDS)
class RestartTest(FleetTest):
    lease_s = 30.0

    def make_url(self) -> str:
        self.server = OwnPostgres()
        self.addCleanup(self.server.remove)
        return self.server.url()

    def test_runs_continue_after_crashes_of_the_server_and_no_attempt_is_counted(self) -> None:
        ids = {f"r{number}": self.pay(f"r{number}", 0.3) for number in range(8)}
        with self.worker("--slots", "2") as worker:
            for number in (1, 4):
                self.until(lambda: len(self.payments()) >= number, "some runs have paid")  # noqa: B023
                self.server.stop()
                self.server.start()
            self.until_over(*ids.values())
            self.assertEqual(end(worker), 0)
        for key, run_id in ids.items():
            self.assertEqual(self.check_ended(run_id, key), "ok")
            self.assertEqual(self.status(run_id).attempts, 1)


@unittest.skipUnless(postgres_url(), NEEDS)
class TransactionPoolerTest(QueueTest):
    mode = "transaction"

    @classmethod
    def setUpClass(cls) -> None:
        parts = urlsplit(postgres_url())
        bouncer = OwnBouncer(parts.port or 5432, cls.mode)
        cls.addClassCleanup(bouncer.remove)
        cls.port = bouncer.port

    def make_url(self) -> str:
        import psycopg

        name = f"pooled_{uuid.uuid4().hex[:12]}"
        admin = psycopg.connect(postgres_url(), autocommit=True)
        self.addCleanup(admin.close)
        admin.execute(f"CREATE DATABASE {name}")
        self.addCleanup(admin.execute, f"DROP DATABASE {name} WITH (FORCE)")
        return f"postgresql://postgres@127.0.0.1:{self.port}/{name}"

    def test_a_killed_worker_is_replaced_through_the_pooler(self) -> None:
        run_id = self.pay("k", 60.0)
        with self.worker() as first:
            self.until(lambda: self.payments()["k"], "the run has paid")
            end(first, signal.SIGKILL)
        with self.worker():
            self.until_over(run_id)
        self.assertEqual(self.check_ended(run_id, "k"), "unknown")


@unittest.skipUnless(LARGE, "runs with OPENAGENTIC_TEST_LARGE=1")
class SessionPoolerTest(TransactionPoolerTest):
    mode = "session"


if __name__ == "__main__":
    unittest.main()
