"""A local HTTP server for tests that follows a script byte by byte and records its requests."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Request:
    """A client's request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Connection:
    """The server's side of one request, for a script to write to."""

    sock: socket.socket
    closing: threading.Event
    keep: bool = True

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def head(self, status: str = "200 OK", body: bytes = b"", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
        self.send(("\r\n".join(lines) + "\r\n\r\n").encode() + body)

    def reply(self, body: bytes, status: str = "200 OK", **headers: str) -> None:
        headers.setdefault("Content_Type", "application/json")
        self.head(status, Content_Length=str(len(body)), body=body, **headers)

    def chunk(self, data: bytes) -> None:
        self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def stream(self, pieces: list[bytes], **headers: str) -> None:
        self.head(Content_Type="text/event-stream", Transfer_Encoding="chunked", **headers)
        for piece in pieces:
            self.chunk(piece)
        self.send(b"0\r\n\r\n")

    def reset(self) -> None:
        """Cut the connection with RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self.keep = False

    def wait_for_client_to_go(self, timeout_s: float = 300.0) -> bool:
        """Whether the client closed the connection within that time."""
        self.keep = False
        self.sock.settimeout(timeout_s)
        try:
            return self.sock.recv(1) == b""
        except ConnectionError:
            return True
        except OSError:
            return False


Script = Callable[[Connection, Request], None]


@dataclass
class Server:
    """Serves each request with `script` until it is closed. `with Server(script) as server: ...`"""

    script: Script
    tls: ssl.SSLContext | None = None
    requests: list[Request] = field(default_factory=list)
    connections: int = 0

    def __enter__(self) -> Server:
        self.closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, name="test-server")]
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()
        self._threads[0].start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._guard:
            for sock in self._open:
                _shut(sock)
        for thread in self._threads:
            thread.join(120)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while not self.closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._guard:
                self.connections += 1
                self._open.add(sock)
                thread = threading.Thread(target=self._serve, args=(sock,), name="test-server")
                self._threads.append(thread)
            thread.start()

    def _serve(self, plain: socket.socket) -> None:
        sock = plain
        try:
            if self.tls is not None:
                sock = self.tls.wrap_socket(plain, server_side=True)
                with self._guard:
                    self._open.add(sock)
            while not self.closing.is_set():
                request = _read_request(sock)
                if request is None:
                    return
                self.requests.append(request)
                connection = Connection(sock, self.closing)
                self.script(connection, request)
                if not connection.keep:
                    return
        except OSError:
            pass  # the client disconnected, which many tests do on purpose
        finally:
            with self._guard:
                self._open -= {plain, sock}
            sock.close()


def _read_request(sock: socket.socket) -> Request | None:
    with sock.makefile("rb", buffering=0) as file:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = file.read(1)
            if not piece:
                return None
            data += piece
        head, _, _ = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length, body = int(headers.get("content-length", "0")), b""
        while len(body) < length:
            piece = file.read(length - len(body))
            if not piece:
                return None
            body += piece
    return Request(method, path, headers, body)


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def sse(*chunks: Any, done: bool = True) -> list[bytes]:
    """Chunks of a chat completion as server-sent events."""
    events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
    return [*events, b"data: [DONE]\n\n"] if done else events


def delta(content: str | None = None, *, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """One chunk of a chat completion."""
    body = dict(fields) if content is None else {"content": content, **fields}
    return {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": body, "finish_reason": finish}]}
