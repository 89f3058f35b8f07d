"""Writers on a Postgres server that keeps crashing lose nothing, duplicate nothing and leave no gap.

Needs the server's programs and about a minute, so it runs only with OPENAGENTIC_TEST_LARGE=1.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from openagentic_sdk.events import UserMessage
from openagentic_sdk.sessions.folds.summary import fold_session_summary, start_summary
from openagentic_sdk.sessions.stores.locate import open_store
from tests.ports import free_port
from tests.size import LARGE
from tests.waiting import pause

ROOT = Path(__file__).parents[2]
CHAOS_S = 60.0
WRITERS = ("p0", "p1", "run2", "run3")
_WRITER = """
import sys, time
from openagentic_sdk.errors import ConcurrencyError, SessionLockedError, StorageError
from openagentic_sdk.events import UserMessage
from openagentic_sdk.sessions.stores.locate import open_store
url, session_id, name, seconds = sys.argv[1:]
store = open_store(url)
end = time.monotonic() + float(seconds)
count = 0

def batch():
    return [UserMessage(f"{name} {count} a"), UserMessage(f"{name} {count} b")]

# The very first connection is not waited for: a wrong address should fail at once.
while True:
    try:
        store.last_seq(session_id)
        break
    except StorageError:
        time.sleep(0.1)
while time.monotonic() < end:
    try:
        if not name.startswith("run"):
            store.append_events(session_id, batch())
            count += 1
            continue
        with store.open_writer(session_id) as writer:
            for _ in range(5):
                writer.append(batch())
                count += 1
        time.sleep(0.02)
    except (SessionLockedError, ConcurrencyError):
        # A run whose lock went down with the server is fenced when somebody else wrote before it came back.
        time.sleep(0.01)
    except StorageError as error:
        # Only opening may fail while the server is away: an append waits and finds out what became of it.
        if not name.startswith("run"):
            raise
        time.sleep(0.1)
print(count)
"""


def server_programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    on_path = shutil.which("pg_ctl")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


@unittest.skipUnless(LARGE, "runs with OPENAGENTIC_TEST_LARGE=1")
@unittest.skipUnless(importlib.util.find_spec("psycopg"), "the driver psycopg is not installed")
@unittest.skipUnless(server_programs(), "the programs of a Postgres server are not installed")
class PostgresChaosTest(unittest.TestCase):
    def setUp(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="chaos-"))
        self.addCleanup(shutil.rmtree, self.place, ignore_errors=True)
        self.user = self.server_user()
        self.port = free_port()
        self.control("initdb", "-D", str(self.place / "data"), "-A", "trust", "-U", "chaos")
        settings = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.place}"
        log = str(self.place / "log")
        self.start = ("pg_ctl", "-D", str(self.place / "data"), "-l", log, "-o", settings, "-w", "start")
        self.control(*self.start)
        self.addCleanup(self.control, "pg_ctl", "-D", str(self.place / "data"), "-m", "immediate", "stop")
        self.url = f"postgresql://chaos@127.0.0.1:{self.port}/postgres"

    def server_user(self) -> str | None:
        """The user to run the server as, since it refuses root."""
        if os.geteuid() != 0:
            return None
        with contextlib.suppress(LookupError):
            shutil.chown(self.place, "postgres")
            return "postgres"
        self.skipTest("a Postgres server refuses to run as root, and there is no user postgres")

    def control(self, program: str, *arguments: str) -> None:
        programs = server_programs()
        assert programs is not None
        command = [str(programs / program), *arguments]
        done = subprocess.run(
            command, user=self.user, cwd=self.place, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_crashes_of_the_server_lose_and_double_nothing(self) -> None:
        store = open_store(self.url)
        self.addCleanup(store.close)
        session_id = store.create_session()
        writers = {name: self.spawn(session_id, name) for name in WRITERS}
        end = time.monotonic() + CHAOS_S
        crashes = 0
        while time.monotonic() < end - 3:
            pause(2, "the writers continue meanwhile")
            self.control("pg_ctl", "-D", str(self.place / "data"), "-m", "immediate", "stop")
            self.control(*self.start)
            crashes += 1
        counts = {name: self.result_of(writer) for name, writer in writers.items()}
        self.assertGreater(crashes, 0)
        self.assertTrue(all(counts.values()), counts)
        events = store.read_events(session_id)
        self.assertEqual([event.seq for event in events], list(range(1, len(events) + 1)))
        texts = [event.text for event in events if isinstance(event, UserMessage)]
        for name, count in counts.items():
            own = [text for text in texts if text.startswith(f"{name} ")]
            self.assertEqual(own, [f"{name} {number} {part}" for number in range(count) for part in "ab"])
        for first, second in zip(texts[::2], texts[1::2], strict=True):
            self.assertEqual(first[:-1], second[:-1])
        known = store.read_metadata(session_id)
        start = start_summary(session_id, known["created_at"], {})
        self.assertEqual(store.read_summary(session_id), fold_session_summary(start, events))
        print(f"\n{crashes} crashes, {len(texts)} events of {counts}", file=sys.stderr)

    def spawn(self, session_id: str, name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _WRITER, self.url, session_id, name, str(CHAOS_S)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        self.addCleanup(writer.__exit__, None, None, None)
        self.addCleanup(writer.kill)
        return writer

    def result_of(self, writer: subprocess.Popen[str]) -> int:
        output, errors = writer.communicate(timeout=300)
        self.assertEqual(writer.returncode, 0, errors)
        return int(output)
