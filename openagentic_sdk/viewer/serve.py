"""Follow a running session in the browser: a server for one person on this machine.

It answers on 127.0.0.1 only, to requests that name it by that address (a page elsewhere cannot reach it under a name of its
own), and only below a path that cannot be guessed.
"""

from __future__ import annotations

import json
import secrets
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from ..errors import SessionError
from ..runtime.masking import shown
from ..serialization import event_to_dict
from ..sessions.base import SessionStore
from .page import build_page

WAIT_S = 10.0


class ViewServer:
    """Serves one session of a store. `address` is what a person opens."""

    def __init__(self, store: SessionStore, session_id: str, *, title: str, port: int = 0) -> None:
        self._token = secrets.token_urlsafe(24)
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(store, session_id, title, self._token))
        self._server.daemon_threads = True

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/{self._token}/"

    def serve_forever(self) -> None:
        """Answer until `close` is called from another thread, or Ctrl-C."""
        self._server.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        """Stop and let go of the port."""
        self._server.shutdown()
        self._server.server_close()


def _handler(store: SessionStore, session_id: str, title: str, token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            target = urlsplit(self.path)
            assert isinstance(self.server, ThreadingHTTPServer)
            if self.headers.get("Host") != f"127.0.0.1:{self.server.server_port}":
                self._answer(403, "text/plain", b"this page answers to 127.0.0.1 only\n")
            elif target.path == f"/{token}/":
                page = build_page(store.iter_events(session_id), title=title, live_address=f"/{token}/events")
                self._answer(200, "text/html; charset=utf-8", page.encode())
            elif target.path == f"/{token}/events":
                self._answer(200, "application/json", self._events(parse_qs(target.query)))
            else:
                self._answer(404, "text/plain", b"there is nothing here: open the address that was printed\n")

        def _events(self, query: dict[str, list[str]]) -> bytes:
            after = query.get("after", ["0"])[0]
            seq = int(after) if after.isdecimal() else 0
            try:
                store.wait_for_events(session_id, after_seq=seq, timeout_s=WAIT_S)
                events = store.read_events(session_id, after_seq=seq)
            except SessionError:
                events = []
            return json.dumps([event_to_dict(shown(event)) for event in events]).encode("ascii")

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: the token stands in every request line."""

    return Handler
