"""Ports for servers of tests that have to be told one before they start."""

from __future__ import annotations

import secrets
import socket
import subprocess
from contextlib import suppress

from .waiting import until


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens, and which no connection of any process is given meanwhile.

    Systems take the ports of connections from above (Linux from 32768, others from 49152): one from there could be gone
    before the server is up, or while a test has it down.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def until_listens(port: int, server: subprocess.Popen[bytes]) -> None:
    """Come back when a server that was started takes connections; RuntimeError when it ended instead."""

    def connects() -> bool:
        if server.poll() is not None:
            raise RuntimeError(f"{server.args!r} ended with {server.returncode}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    until(connects, f"{server.args!r} takes connections on port {port}")
