"""A proxy to a server on 127.0.0.1 that fails on request: it cuts connections, drops responses, or stops forwarding."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from types import TracebackType
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

# Fail before the server receives the data, after half of it, after half of the answer, or after the server answered; "hang"
# keeps the connection open but forwards nothing.
Fault = Literal[
    "cut before", "cut inside", "cut answer", "cut after", "hang before", "hang inside", "hang answer", "hang after"
]


class Proxy:
    """Forward connections; `fail(number, fault)` breaks the connection that sends the number-th next piece to the server."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = (parts.hostname or "127.0.0.1", parts.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = urlunsplit(parts._replace(netloc=f"{parts.username or ''}@127.0.0.1:{port}".lstrip("@")))
        self._guard = threading.Lock()
        self._left: int | None = None
        self._fault: Fault = "cut before"
        self._sockets: list[socket.socket] = []
        self.sent = 0
        self._hung_until = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hung_until.set()
        # Closing alone does not wake a thread that is in accept().
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._guard:
            for end in self._sockets:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def fail(self, number: int, fault: Fault) -> None:
        """Arm the fault for the number-th piece from now; 1 is the next piece. Close the connections that hang."""
        self._hung_until.set()  # a server accepts a limited number of connections
        with self._guard:
            self._left, self._fault, self._hung_until = number, fault, threading.Event()

    def disarm(self) -> bool:
        """Cancel the fault; return whether it was still pending."""
        with self._guard:
            was_armed, self._left = self._left is not None, None
            return was_armed

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
            except OSError:
                return
            with self._guard:
                self._sockets += [client, server]
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()

    def _next(self) -> Fault | None:
        with self._guard:
            self.sent += 1
            if self._left is None:
                return None
            self._left -= 1
            if self._left:
                return None
            self._left = None
            return self._fault

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, contextlib.suppress(OSError):
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    fault = self._next() if ready is client else None
                    how = fault.split()[1] if fault else ""
                    if how == "inside":
                        server.sendall(data[: len(data) // 2])
                    elif how != "before":
                        (server if ready is client else client).sendall(data)
                    if how in ("answer", "after"):
                        answer = server.recv(65536)
                        client.sendall(answer[: len(answer) // 2] if how == "answer" else b"")
                    if fault:
                        return self._break(fault)

    def _break(self, fault: Fault) -> None:
        if fault.startswith("hang"):
            self._hung_until.wait()
