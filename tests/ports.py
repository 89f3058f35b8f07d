"""Ports for test servers that need a fixed one before they start."""

from __future__ import annotations

import secrets
import socket
import subprocess
from contextlib import suppress

from .waiting import until


def free_port() -> int:
    """A port of 127.0.0.1 that is free and that the system does not assign to outgoing connections.

    Ephemeral ports start higher (at 32768 on Linux, 49152 elsewhere): one of those could be taken before the server is up,
    or while a test has stopped it.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def until_listens(port: int, server: subprocess.Popen[bytes]) -> None:
    """Wait until a started server accepts connections. Raise `RuntimeError` if it exits first."""

    def connects() -> bool:
        if server.poll() is not None:
            raise RuntimeError(f"{server.args!r} ended with {server.returncode}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    until(connects, f"{server.args!r} takes connections on port {port}")
