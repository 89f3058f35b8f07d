"""Two servers behind nginx over one database, restarted in turn under clients of six protocols: nothing is lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections import Counter
from contextlib import closing
from pathlib import Path

from openagentic_sdk.events import AssistantMessage, Event, Result, UserAnswer, UserMessage
from openagentic_sdk.sessions.stores.locate import open_store
from tests.size import LARGE, full_size

from ..ports import free_port, until_listens
from .rolling import NAME, PROTOCOLS, Talk
from .rolling_app import TURNS
from .support import TOKEN, WAIT_S

ROOT = Path(__file__).parents[2]
DOCUMENTED = ROOT / "docs" / "serving.md"
NGINX = os.environ.get("OPENAGENTIC_TEST_NGINX")
ROUNDS = 20 if LARGE else 1
CLIENTS = 40 if LARGE else len(PROTOCOLS)
TEXTS = [str(turn["text"]) if isinstance(turn, dict) else turn for turn in TURNS]


@unittest.skipUnless(NGINX, "OPENAGENTIC_TEST_NGINX names nginx")
class Rolling(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        # Each server has a separate home, as in a container; they share the key and the database.
        self.key = Path(self.folder, "installation.key")
        self.key.write_text("k" * 44)
        self.key.chmod(0o600)
        self.address = os.environ.get("OPENAGENTIC_TEST_ROLLING_STORE") or f"sqlite:{self.folder}/runs.db"
        self.ports = [free_port(), free_port()]
        self.servers = [self.serve(port) for port in self.ports]
        self.port = free_port()
        self.proxy()

    def serve(self, port: int) -> subprocess.Popen[bytes]:
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "OPENAGENTIC_SDK_SERVER_TOKEN": TOKEN}
        environ |= (
            {} if LARGE else {"ROLLING_GATE": f"{self.folder}/gate"}
        )  # no client is done before its servers restart
        environ |= {"OPENAGENTIC_SDK_HOME": f"{self.folder}/home-{port}", "OPENAGENTIC_SDK_KEY": str(self.key)}
        command = [sys.executable, "-W", "error", "-m", "openagentic_sdk", "serve", "--port", str(port)]
        command += ["--agents", "tests.server.rolling_app:agents", "--store", self.address, "--grace", "0.2"]
        command += ["--allow-host", NAME, "--log", "none", "--max-runs", "200"]
        with open(f"{self.folder}/{port}.log", "ab") as log:
            server = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=log, stderr=log)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        until_listens(port, server)
        return server

    def proxy(self) -> None:
        """The proxy as documented, in front of both servers."""
        [block] = re.findall(r"```nginx\n(.*?)```", DOCUMENTED.read_text(), re.DOTALL)
        changes = [("443 ssl", f"127.0.0.1:{self.port}")]
        changes += [(f"127.0.0.1:{old}", f"127.0.0.1:{new}") for old, new in zip((8321, 8322), self.ports, strict=True)]
        for said, here in changes:
            self.assertIn(said, block)
            block = block.replace(said, here)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "".join(f"{kind}_temp_path {self.folder}/{kind};" for kind in kinds)
        config = Path(self.folder, "nginx.conf")
        config.write_text(
            f"daemon off; pid {self.folder}/pid; error_log {self.folder}/error; events {{}}\n"
            f"http {{ access_log off; {temporary} {block} }}\n"
        )
        assert NGINX is not None
        command = [NGINX, "-p", self.folder, "-c", os.fspath(config)]
        nginx = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self.addCleanup(nginx.wait)
        self.addCleanup(nginx.terminate)
        until_listens(self.port, nginx)

    def restart(self, number: int, how: signal.Signals) -> None:
        self.servers[number].send_signal(how)
        self.servers[number].wait(WAIT_S)
        self.servers[number] = self.serve(self.ports[number])

    def converse(self, how: signal.Signals) -> list[Talk]:
        """One round: the clients begin, both servers are restarted one after the other, the clients finish."""
        talks = [PROTOCOLS[number % len(PROTOCOLS)](self.port, number) for number in range(CLIENTS)]
        for talk in talks:
            talk.start()
        for talk in talks:
            self.assertTrue(talk.has_begun.wait(WAIT_S), talk.key)
        for number in range(2):
            self.restart(number, how)
        Path(self.folder, "gate").touch()
        for talk in talks:
            talk.join(WAIT_S * 2)
        return talks

    def wrong(self, talk: Talk) -> list[str]:
        """The faults in one client's conversation, and in the log of its session."""
        if talk.failure or not talk.is_done:
            return [talk.failure or f"{talk.key} is not done: {talk.seen}"]
        with closing(open_store(self.address)) as store:
            log: list[Event] = store.read_events(talk.session_id)
        found = [talk.differs(log)]
        texts = [event.text for event in log if isinstance(event, AssistantMessage)]
        if texts != TEXTS:
            found.append(f"{talk.key}: the model said {texts}")
        if [event.text for event in log if isinstance(event, UserMessage) and event.origin == "user"] != [talk.key]:
            found.append(f"{talk.key}: the prompt is not there once")
        if len([event for event in log if isinstance(event, UserAnswer)]) != 1:
            found.append(f"{talk.key}: the answer is not there once")
        ends = [event.stop_reason for event in log if isinstance(event, Result)]
        if ends[-1:] != ["end"] or ends.count("end") != 1 or set(ends) - {"end", "waiting", "suspended"}:
            found.append(f"{talk.key}: ends {ends}")
        return [each for each in found if each]

    def check(self, how: signal.Signals) -> None:
        table: Counter[str] = Counter()
        gaps: dict[str, list[float]] = {}
        wrong: list[str] = []
        began = time.monotonic()
        for _ in range(ROUNDS):
            talks = self.converse(how)
            for talk in talks:
                wrong += self.wrong(talk)
                table[type(talk).__name__] += talk.cuts > 0
                gaps.setdefault(type(talk).__name__, []).append(talk.gap_s)
        if LARGE:
            print(
                f"\n{how.name}: {ROUNDS} rounds of {CLIENTS} clients in {time.monotonic() - began:.0f} s, {len(wrong)} wrong"
            )
            for name, waits in gaps.items():
                longest = f"longest wait {max(waits):5.1f} s, median {sorted(waits)[len(waits) // 2]:4.1f} s"
                print(f"  {name:10} {len(waits):4} clients, {table[name]:4} cut; {longest}")
        self.assertEqual(wrong, [])
        self.assertTrue(sum(table.values()), "no client experienced a restart")

    @full_size
    def test_a_rolling_restart_by_sigterm_loses_and_doubles_nothing(self) -> None:
        self.check(signal.SIGTERM)

    @full_size
    def test_servers_that_are_killed_in_turn_lose_and_double_nothing(self) -> None:
        self.check(signal.SIGKILL)


if __name__ == "__main__":
    unittest.main()
