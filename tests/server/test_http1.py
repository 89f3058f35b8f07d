"""Requests as bytes: what is read, what is refused, and that no division of the bytes changes either."""

from __future__ import annotations

import asyncio
import re
import time
import unittest

from openagentic_sdk.errors import RequestRefusedError
from openagentic_sdk.server import connection
from openagentic_sdk.server.http1 import MAX_HEAD_BYTES, MAX_HEADERS, MAX_LINE_BYTES, RequestReader, response_head

from .support import AUTH, WAIT_S, Served

HOST = b"Host: x\r\n"
POST = b"POST /p HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

READ = {
    "no body": (b"GET /a?b=1 HTTP/1.1\r\n" + HOST + b"\r\n", [b""]),
    "a body": (POST + b"Content-Length: 5\r\n\r\nhello", [b"hello"]),
    "an empty body": (POST + b"Content-Length: 0\r\n\r\n", [b""]),
    "chunks": (CHUNKED + b"3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n", [b"abc0123456789"]),
    "chunks in capitals": (CHUNKED.replace(b"chunked", b"CHUNKED") + b"1\r\nx\r\n0\r\n\r\n", [b"x"]),
    "chunks of CRLF": (CHUNKED + b"4\r\n\r\n\r\n\r\n0\r\n\r\n", [b"\r\n\r\n"]),
    "two requests": (POST + b"Content-Length: 2\r\n\r\nab" + CHUNKED + b"1\r\nc\r\n0\r\n\r\n", [b"ab", b"c"]),
    "blanks around a value": (b"GET / HTTP/1.1\r\nHost: \t x \t\r\n\r\n", [b""]),
    "bytes above ASCII in a value": (b"GET / HTTP/1.1\r\nHost: x\r\nA: \xff\xfe\r\n\r\n", [b""]),
    "OPTIONS *": (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", [b""]),
    "an absolute target": (b"GET http://X:80/a?b HTTP/1.1\r\nHost: x:80\r\n\r\n", [b""]),
    "an absolute target without a path": (b"GET http://x HTTP/1.1\r\nHost: x\r\n\r\n", [b""]),
    "HTTP/1.0": (b"GET / HTTP/1.0\r\nHost: x\r\n\r\n", [b""]),
}

HEADS = {
    400: {
        "length and coding": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "coding and length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        "the same length twice": POST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        "a list of lengths": POST + b"Content-Length: 5, 5\r\n\r\nhello",
        "a signed length": POST + b"Content-Length: +5\r\n\r\nhello",
        "a negative length": POST + b"Content-Length: -1\r\n\r\n",
        "a length in hex": POST + b"Content-Length: 0x5\r\n\r\nhello",
        "an empty length": POST + b"Content-Length:\r\n\r\n",
        "a length of other digits": POST + "Content-Length: ٥\r\n\r\nhello".encode(),
        "a huge length": POST + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n",
        "a length with an underscore": POST + b"Content-Length: 1_0\r\n\r\n",
        "two codings": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "a coding in HTTP/1.0": b"POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "a blank before the colon": POST + b"Content-Length : 5\r\n\r\nhello",
        "a folded line": POST + b"A: b\r\n c\r\n\r\n",
        "a folded first line": b"GET / HTTP/1.1\r\n Host: x\r\n\r\n",
        "a tab-folded coding": POST + b"Transfer-Encoding:\r\n\tchunked\r\n\r\n0\r\n\r\n",
        "a bare line feed": b"GET / HTTP/1.1\nHost: x\n\n",
        "one bare line feed": b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
        "a line feed first": b"\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "an empty line first": b"\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "a bare carriage return": b"GET / HTTP/1.1\r\nHost: x\rA: b\r\n\r\n",
        "a carriage return too many": b"GET / HTTP/1.1\r\r\nHost: x\r\n\r\n",
        "NUL in a value": POST + b"A: b\0c\r\n\r\n",
        "NUL in a name": POST + b"A\0: b\r\n\r\n",
        "NUL in the target": b"GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n",
        "no colon": POST + b"nothing\r\n\r\n",
        "no name": POST + b": b\r\n\r\n",
        "a name of other letters": POST + "É: b\r\n\r\n".encode(),
        "no Host": b"GET / HTTP/1.1\r\n\r\n",
        "no Host in HTTP/1.0": b"GET / HTTP/1.0\r\n\r\n",
        "two Hosts": b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        "two origins": b"GET / HTTP/1.1\r\nHost: x\r\nOrigin: a\r\nOrigin: b\r\n\r\n",
        "two blanks": b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
        "a tab": b"GET\t/ HTTP/1.1\r\nHost: x\r\n\r\n",
        "a target with a blank": b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
        "an absolute target of another host": b"GET http://y/ HTTP/1.1\r\nHost: x\r\n\r\n",
        "an absolute target with a user": b"GET http://u@x/ HTTP/1.1\r\nHost: x\r\n\r\n",
        "an absolute target of another kind": b"GET ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
        "an absolute star": b"OPTIONS http://x* HTTP/1.1\r\nHost: x\r\n\r\n",
        "an absolute target without a host": b"GET http:/// HTTP/1.1\r\nHost: x\r\n\r\n",
        "two blanks without a target": b"GET  HTTP/1.1\r\nHost: x\r\n\r\n",
        "an authority": b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
        "a fragment": b"GET /#a HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET *": b"GET * HTTP/1.1\r\nHost: x\r\n\r\n",
        "no target": b"GET HTTP/1.1\r\nHost: x\r\n\r\n",
        "HTTP/0.9": b"GET /\r\n\r\n",
        "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: x\r\n\r\n",
        "http in small letters": b"GET / http/1.1\r\nHost: x\r\n\r\n",
        "a method in small letters": b"get / HTTP/1.1\r\nHost: x\r\n\r\n",
        "a long method": b"A" * 30 + b" / HTTP/1.1\r\nHost: x\r\n\r\n",
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    },
    501: {
        "another coding": POST + b"Transfer-Encoding: gzip\r\n\r\n",
        "a list of codings": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "an obfuscated coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n",
        "a quoted coding": POST + b'Transfer-Encoding: "chunked"\r\n\r\n',
        "a coding with a vertical tab": POST + b"Transfer-Encoding: identity\r\n\r\n",
    },
    417: {"another expectation": POST + b"Expect: 200-ok\r\n\r\n"},
    414: {"a long line": b"GET /" + b"a" * MAX_LINE_BYTES + b" HTTP/1.1\r\nHost: x\r\n\r\n"},
    431: {
        "a long head": POST + b"A: " + b"b" * MAX_HEAD_BYTES + b"\r\n\r\n",
        "many headers": POST + b"A: b\r\n" * (MAX_HEADERS + 1) + b"\r\n",
    },
}

BODIES = {
    "a chunk extension": b"3;a=b\r\nabc\r\n0\r\n\r\n",
    "an extension of the last chunk": b"0;a\r\n\r\n",
    "a blank behind the size": b"3 \r\nabc\r\n0\r\n\r\n",
    "a blank before the size": b" 3\r\nabc\r\n0\r\n\r\n",
    "a signed size": b"+3\r\nabc\r\n0\r\n\r\n",
    "a negative size": b"-3\r\nabc\r\n0\r\n\r\n",
    "0x": b"0x3\r\nabc\r\n0\r\n\r\n",
    "no size": b"\r\nabc\r\n0\r\n\r\n",
    "a huge size": b"FFFFFFFFFFFFFFFFFFFF\r\nabc",
    "a size of nine digits": b"100000000\r\nabc",
    "an underscore": b"1_0\r\n0123456789abcdef\r\n",
    "a bare line feed": b"3\nabc\r\n0\r\n\r\n",
    "a line feed behind a chunk": b"3\r\nabc\n0\r\n\r\n",
    "a chunk too long": b"3\r\nabcd\r\n0\r\n\r\n",
    "a chunk too short": b"3\r\nab\r\n0\r\n\r\n",
    "a trailer": b"0\r\nA: b\r\n\r\n",
    "a long line": b"0" * 100 + b"3\r\nabc\r\n",
}


def read(data: bytes, step: int = 0) -> list[bytes]:
    """The bodies of all requests in these bytes, fed in pieces of this size (0: at once)."""
    reader, bodies, body = RequestReader(), [], None
    for start in range(0, len(data), step or len(data)):
        reader.feed(data[start : start + (step or len(data))])
        while True:
            if body is None:
                if reader.read_head() is None:
                    break
                body = b""
            piece = reader.read_body()
            if piece is None:
                break
            body += piece
            if not piece:
                bodies.append(body)
                body = None
    return bodies


class Requests(unittest.TestCase):
    def test_proper_requests_are_read_however_their_bytes_are_cut(self) -> None:
        for name, (data, bodies) in READ.items():
            for step in (0, 1, 2, 3, 7):
                with self.subTest(name, step=step):
                    self.assertEqual(read(data, step), bodies)

    def test_ambiguous_requests_are_refused_however_they_are_split(self) -> None:
        for status, cases in HEADS.items():
            for name, data in cases.items():
                for step in (0, 1, 3) if len(data) < 500 else (0, 1000):
                    with self.subTest(name, step=step), self.assertRaises(RequestRefusedError) as caught:
                        read(data, step)
                    self.assertEqual(caught.exception.status, status, name)
        for name, data in BODIES.items():
            for step in (0, 1, 3):
                with self.subTest(name, step=step), self.assertRaises(RequestRefusedError) as caught:
                    read(CHUNKED + data, step)
                self.assertEqual(caught.exception.status, 400)

    def test_a_head_that_never_ends_is_refused_at_the_bound(self) -> None:
        for data in (b"G" * (MAX_LINE_BYTES + 1), POST + b"A: " + b"b" * MAX_HEAD_BYTES):
            with self.assertRaises(RequestRefusedError):
                read(data, 4096)

    def test_a_header_of_an_answer_cannot_end_its_line(self) -> None:
        for name, value in ((b"a", b"b\r\nc: d"), (b"a\n", b"b"), (b"a", b"\0"), (b"", b"b")):
            with self.assertRaises(ValueError):
                response_head(200, [(name, value)])


class Wire(unittest.TestCase):
    """The same over a connection: one response, and nothing after it is ever treated as a request."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.served = Served()
        cls.addClassCleanup(cls.served.close)

    def request(self, *lines: str, body: bytes = b"") -> bytes:
        head = [f"Host: {self.served.host}", *(f"{name}: {value}" for name, value in AUTH.items())]
        return "\r\n".join([lines[0], *head, *lines[1:], "", ""]).encode() + body

    def test_every_refused_request_is_answered_once_and_ends_the_connection(self) -> None:
        smuggled = self.request("POST /v1/sessions HTTP/1.1", "Content-Type: application/json", "Content-Length: 14")
        smuggled += b'{"prompt":"x"}'
        before = self.served.store.list_sessions()
        for status, cases in HEADS.items():
            for name, data in cases.items():
                with self.subTest(name):
                    answer = self.served.raw(data + smuggled)
                    self.assertTrue(answer.startswith(b"HTTP/1.1 %d " % status), answer[:60])
                    self.assertEqual(answer.count(b"HTTP/1.1 "), 1)
                    self.assertIn(b"connection: close", answer)
        self.assertEqual(self.served.store.list_sessions(), before)

    def test_requests_sent_ahead_are_answered_in_order_even_after_an_error_of_the_application(self) -> None:
        first, last = (
            self.request("GET /v1/agents HTTP/1.1"),
            self.request("GET /healthz HTTP/1.1", "Connection: close"),
        )
        with self.served.connect() as sock:
            sock.sendall(first + self.request("GET /none HTTP/1.1") + first + last)
            answer = b""
            while piece := sock.recv(65536):
                answer += piece
        statuses = re.findall(rb"HTTP/1.1 (\d+) ", answer)
        self.assertEqual(statuses, [b"200", b"404", b"200", b"200"])

    def test_a_half_closed_client_still_gets_its_answer_and_a_stream_ends(self) -> None:
        self.assertIn(b"HTTP/1.1 200 ", self.served.raw(self.request("GET /v1/sessions HTTP/1.1")))
        session_id = self.served.ask("POST", "/v1/sessions", {"prompt": "x"}).json["session_id"]
        stream = self.request(f"GET /v1/sessions/{session_id}/events HTTP/1.1", "Accept: text/event-stream")
        self.assertIn(b"text/event-stream", self.served.raw(stream))
        half = self.request("POST /v1/sessions HTTP/1.1", "Content-Type: application/json", "Content-Length: 50")
        before = self.served.store.list_sessions()
        self.assertNotIn(b"HTTP/1.1 2", self.served.raw(half + b'{"prompt": "x"}'))
        self.assertEqual(self.served.store.list_sessions(), before)

    def test_nothing_is_written_to_a_connection_that_is_being_closed(self) -> None:
        async def close_and_write() -> None:
            connection = next(iter(self.served.server._connections))
            connection.abort()
            with self.assertRaises(ConnectionResetError):
                connection.put(b"x")

        with self.served.connect() as sock:
            sock.sendall(self.request("GET /healthz HTTP/1.1"))
            self.assertTrue(sock.recv(1))
            asyncio.run_coroutine_threadsafe(close_and_write(), self.served.loop).result(WAIT_S)

    def test_an_unread_body_is_not_taken_for_a_request(self) -> None:
        inner = self.request("GET /healthz HTTP/1.1")
        outer = self.request("POST /none HTTP/1.1", f"Content-Length: {len(inner)}", body=inner)
        self.assertEqual(self.served.raw(outer).count(b"HTTP/1.1 "), 1)

    def test_an_answer_to_head_has_no_body_and_to_http_1_0_ends_the_connection(self) -> None:
        answer = self.served.raw(self.request("HEAD /v1/agents HTTP/1.1", "Connection: close"))
        self.assertTrue(answer.endswith(b"\r\n\r\n") and b"content-length: 1" in answer, answer)
        answer = self.served.raw(self.request("GET /v1/agents HTTP/1.0"))
        self.assertIn(b"connection: close", answer)
        self.assertTrue(answer.endswith(b"}"))

    def test_a_client_that_expects_100_continue_gets_it(self) -> None:
        body = b'{"prompt": "hello"}'
        head = self.request(
            "POST /v1/sessions HTTP/1.1",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Expect: 100-continue",
            "Connection: close",
        )
        with self.served.connect() as sock:
            sock.sendall(head)
            self.assertEqual(sock.recv(100), b"HTTP/1.1 100 Continue\r\n\r\n")
            sock.sendall(body)
            self.assertTrue(sock.recv(100).startswith(b"HTTP/1.1 201 "))

    def test_a_head_or_body_that_comes_drop_by_drop_is_given_up(self) -> None:
        for name in ("HEAD_S", "BODY_S", "WHOLE_BODY_S", "CLOSE_S"):
            self.addCleanup(setattr, connection, name, getattr(connection, name))
            setattr(connection, name, 0.2)
        kind = "Content-Type: application/json"
        body = self.request("POST /v1/sessions HTTP/1.1", kind, "Content-Length: 100000")
        before = self.served.store.list_sessions()
        for start in (b"", b"GET / HTTP/1.1\r\n", body, body + b"{"):
            with self.subTest(start), self.served.connect() as sock:
                sock.settimeout(0.03)
                answer, over = b"", time.monotonic() + WAIT_S
                sock.sendall(start)
                while b"\r\n\r\n" not in answer and time.monotonic() < over:
                    try:
                        piece = sock.recv(1000)
                        answer += piece
                        if not piece:
                            break
                    except TimeoutError:
                        if start:  # one more drop
                            sock.sendall(b"a")
                self.assertTrue(not start or answer.startswith(b"HTTP/1.1 408 "), answer)
                self.assertLess(time.monotonic(), over)
        self.assertEqual(self.served.store.list_sessions(), before)

    def test_a_body_above_the_bound_is_refused_before_it_is_read(self) -> None:
        kind = "Content-Type: application/json"
        head = self.request("POST /v1/sessions HTTP/1.1", kind, f"Content-Length: {5 << 20}")
        with self.served.connect() as sock:
            sock.sendall(head)
            self.assertTrue(sock.recv(100).startswith(b"HTTP/1.1 413 "))
        chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
        head = self.request("POST /v1/sessions HTTP/1.1", kind, "Transfer-Encoding: chunked")
        with self.served.connect() as sock:
            try:
                for part in (head, *[chunk] * 5):
                    sock.sendall(part)
            except OSError:
                pass
            self.assertTrue(sock.recv(100).startswith(b"HTTP/1.1 413 "))


if __name__ == "__main__":
    unittest.main()
