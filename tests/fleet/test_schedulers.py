"""Other schedulers execute a fleet's runs and are killed in the middle: each run pays at most once and ends once.

`OPENAGENTIC_TEST_SCHEDULERS_PYTHON` names a Python with Celery, DBOS and Ray; `OPENAGENTIC_TEST_POSTGRES_URL` and
`OPENAGENTIC_TEST_REDIS_URL` name servers. The Kubernetes Job needs none of them.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import unittest
import uuid
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from tests.pythons import ROOT
from tests.size import LARGE, full_size

from .places import FleetTest, PostgresFleetTest, postgres_url

PYTHON = os.environ.get("OPENAGENTIC_TEST_SCHEDULERS_PYTHON", "")
REDIS_URL = os.environ.get("OPENAGENTIC_TEST_REDIS_URL", "")
POINTS = ("asked", "started", "paid", "answering")
RUNS = 40 if LARGE else 8


class Scheduled(FleetTest):
    """Start processes of a scheduler, each in its own process group, which is killed at the end."""

    def start(self, python: str, *words: str, **names: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "OPENAGENTIC_TEST_FLEET_URL": self.url,
            "OPENAGENTIC_SDK_HOME": self.folder,
            **names,
        }
        if python == PYTHON:
            environment["PYTHONWARNINGS"] = ""  # Celery and Ray emit some, and do not start if they are errors
        with open(Path(self.folder, "output"), "ab") as output:
            process = subprocess.Popen(
                [python, *words], cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
            )
        self.addCleanup(process.wait)
        self.addCleanup(self.kill, process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        process.wait()

    def wait_until_stopped(self, process: subprocess.Popen[bytes], key: str) -> None:
        """Wait until the process executing this run has stopped itself at the point of the same name."""
        self.until(lambda: not Path(self.folder, f"{key} {key}").exists(), f"a process reaches {key}")
        stat = Path(f"/proc/{process.pid}/stat")
        self.until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the process stopped itself")

    def check(self, runs: dict[str, int]) -> None:
        self.until_over(*runs.values())
        for key, run_id in runs.items():
            self.check_ended(run_id, key)


@unittest.skipUnless(sys.platform == "linux", "needs process groups")
class KubernetesJobs(Scheduled):
    @full_size
    def test_a_job_that_is_killed_at_each_point_and_started_again_pays_once_at_most(self) -> None:
        for point in POINTS if LARGE else ("paid",):
            with self.subTest(killed=point):
                run_id = self.pay(point)
                self.stop_at(point, point)
                pod = self.pod(run_id)
                self.wait_until_stopped(pod, point)
                self.kill(pod)
                second, third = self.pod(run_id), self.pod(run_id)  # a network partition: two pods of one Job
                self.assertEqual((second.wait(), third.wait()), (0, 0))
                self.check({point: run_id})

    @full_size
    def test_a_terminated_pod_hands_its_run_back_and_the_next_one_continues_it(self) -> None:
        run_id = self.pay("k", 60.0)
        pod = self.pod(run_id)
        self.until(lambda: self.payments()["k"], "the run has paid")
        pod.send_signal(signal.SIGTERM)
        self.assertNotEqual(pod.wait(), 0)
        self.assertEqual(self.pod(run_id).wait(), 0)
        self.check({"k": run_id})

    def pod(self, run_id: int) -> subprocess.Popen[bytes]:
        return self.start(sys.executable, "-m", "tests.fleet.schedulers.kubernetes_job", str(run_id))


@unittest.skipUnless(PYTHON and REDIS_URL and postgres_url(), "no Python with Celery or no server is configured")
class Celery(Scheduled, PostgresFleetTest):
    def setUp(self) -> None:
        super().setUp()
        self.names = {"OPENAGENTIC_TEST_BROKER_URL": REDIS_URL, "OPENAGENTIC_TEST_QUEUE": f"test-{uuid.uuid4().hex}"}

    def celery_worker(self) -> subprocess.Popen[bytes]:
        words = ("-A", "tests.fleet.schedulers.celery_jobs", "worker", "-c", "4", "-l", "WARNING")
        return self.start(PYTHON, "-m", "celery", *words, "--without-gossip", "--without-mingle", **self.names)

    def send(self, runs: dict[str, int]) -> None:
        numbers = [str(run_id) for run_id in runs.values()]
        sent = self.start(PYTHON, "-m", "tests.fleet.schedulers.celery_jobs", *numbers, **self.names)
        self.assertEqual(sent.wait(), 0)

    def test_workers_and_their_children_are_killed_and_every_run_ends_once(self) -> None:
        rng = random.Random(3)
        runs = {f"k{number}": self.pay(f"k{number}", 0.3) for number in range(RUNS)}
        worker = self.celery_worker()
        self.send(runs)
        with self.worker():  # a native worker beside it, which takes over lost runs
            for number in range(RUNS // 4):
                self.until(lambda number=number: len(self.payments()) > number, "the next run has paid")
                self.assertIsNone(worker.poll(), Path(self.folder, "output").read_text()[-2000:])
                children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
                if children and rng.random() < 0.5:
                    os.kill(int(rng.choice(children)), signal.SIGKILL)
                else:
                    self.kill(worker)
                    worker = self.celery_worker()
            self.check(runs)

    def test_without_a_worker_beside_what_a_killed_worker_held_is_delivered_again(self) -> None:
        runs = {"k": self.pay("k", 60.0)}
        first = self.celery_worker()
        self.send(runs)
        self.until(lambda: self.payments()["k"], "the run has paid")
        self.kill(first)
        self.celery_worker()
        self.check(runs)


@unittest.skipUnless(PYTHON and postgres_url(), "no Python with DBOS or no Postgres server is configured")
class Dbos(Scheduled, PostgresFleetTest):
    def setUp(self) -> None:
        """Give DBOS a database of its own. In SQLite it needs version 3.42, which is newer than that of many systems."""
        import psycopg

        super().setUp()
        name = f"test_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(postgres_url(), autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}")

        def drop() -> None:
            with psycopg.connect(postgres_url(), autocommit=True) as db:
                db.execute(f"DROP DATABASE {name} WITH (FORCE)")

        self.addCleanup(drop)
        self.names = {"OPENAGENTIC_TEST_DBOS_URL": urlunsplit(urlsplit(postgres_url())._replace(path=f"/{name}"))}

    def process(self, *words: str) -> subprocess.Popen[bytes]:
        return self.start(PYTHON, "-m", "tests.fleet.schedulers.dbos_jobs", *words, **self.names)

    def test_the_matrix_of_kills_in_a_step_of_dbos_that_does_a_run(self) -> None:
        found = {}
        for point in POINTS:
            run_id = self.pay(point)
            self.stop_at(point, point)
            first = self.process("work", str(run_id))
            self.wait_until_stopped(first, point)
            self.kill(first)
            second = self.process("work")  # recovers what the first process had begun
            self.until_over(run_id)
            found[point] = (self.check_ended(run_id, point), self.payments()[point])
            self.kill(second)
        # A thread may run a little further before a stop takes effect: whether it has paid is unknown, as is its outcome.
        self.assertIn(found.pop("started"), (("unknown", 0), ("unknown", 1)))
        self.assertEqual(found, {"asked": ("ok", 1), "paid": ("unknown", 1), "answering": ("ok", 1)})

    def test_the_matrix_of_kills_in_the_same_job_of_dbos_alone(self) -> None:
        found = {}
        for point in POINTS:
            self.stop_at(point, point)
            first = self.process("alone", point, "0")
            self.wait_until_stopped(first, point)
            self.kill(first)
            self.assertEqual(self.process("alone", point, "0").wait(), 0)
            found[point] = self.payments()[point]
        self.assertIn(found.pop("started"), (1, 2))
        self.assertEqual(found, {"asked": 1, "paid": 2, "answering": 1})


@unittest.skipUnless(LARGE and PYTHON and postgres_url(), "not the large size, or no Python with Ray is configured")
class Ray(Scheduled, PostgresFleetTest):
    def test_a_worker_of_ray_that_is_killed_in_a_tool_has_its_run_done_by_another(self) -> None:
        runs = {f"k{number}": self.pay(f"k{number}", 3.0 if number == 0 else 0.1) for number in range(4)}
        driver = self.start(PYTHON, "-m", "tests.fleet.schedulers.ray_jobs", *map(str, runs.values()))
        self.until(lambda: self.payments()["k0"], "the run has paid")
        lines = Path(self.folder, "paid").read_text().splitlines()
        os.kill(int(next(line for line in lines if line.startswith("k0 ")).split()[1]), signal.SIGKILL)
        self.assertEqual(driver.wait(), 0, Path(self.folder, "output").read_text()[-2000:])
        self.check(runs)


if __name__ == "__main__":
    unittest.main()
