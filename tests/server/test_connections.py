"""A server has a limit of open connections, which leaves files to its runs."""

from __future__ import annotations

import contextlib
import io
import unittest

from openagentic_sdk.cli.main import main
from openagentic_sdk.server.listen import _room_for_connections
from tests.waiting import until

from .support import AUTH, Served, read_all


class Connections(unittest.TestCase):
    def test_a_connection_beyond_the_limit_is_refused_and_the_others_continue(self) -> None:
        served = Served(max_connections=2)
        self.addCleanup(served.close)
        first, second = served.connect(), served.connect()
        self.addCleanup(first.close)
        self.addCleanup(second.close)
        until(lambda: served.server.connections == 2, "the server has accepted both")
        with served.connect() as third:
            answer = read_all(third)
        self.assertTrue(answer.startswith(b"HTTP/1.1 503 "), answer)
        self.assertIn(b"the limit of 2 open connections is reached", answer)
        self.assertIn(b"retry-after: 1", answer)
        head = "".join(
            f"{name}: {value}\r\n" for name, value in {**AUTH, "Host": served.host, "Connection": "close"}.items()
        )
        second.sendall(f"GET /v1/sessions HTTP/1.1\r\n{head}\r\n".encode())
        self.assertTrue(read_all(second).startswith(b"HTTP/1.1 200 "))
        until(lambda: served.server.connections == 1, "one has ended")

    def test_files_remain_for_runs(self) -> None:
        import resource

        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.assertLess(_room_for_connections(), files if files != resource.RLIM_INFINITY else 1 << 30)

    def test_a_limit_of_zero_connections_is_refused(self) -> None:
        with contextlib.redirect_stderr(io.StringIO()) as err:
            self.assertEqual(main(["serve", "--max-connections", "0"]), 2)
        self.assertIn("--max-connections", err.getvalue())
