"""Ports for servers of tests that have to be told one before they start."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens, and which no connection of any process is given meanwhile.

    Systems take the ports of connections from above (Linux from 32768, others from 49152): one from there could be gone
    before the server is up, or while a test has it down.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
