"""WebFetch against a loopback server and against transports that are plain functions."""

from __future__ import annotations

import asyncio
import gzip
import http.server
import os
import shutil
import ssl
import subprocess
import tempfile
import threading
import time
import unittest
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from openagentic_sdk.errors import AddressRefusedError, ToolError
from openagentic_sdk.tools.base import ToolContext
from openagentic_sdk.tools.web.content import find_charset
from openagentic_sdk.tools.web_fetch import WebFetchTool
from tests.size import full_size
from tests.waiting import until, until_async

from .support import open_descriptors

Answer = tuple[int, Mapping[str, str], bytes]
HTML = {"Content-Type": "text/html"}


def fetch(answers: Callable[[str], Answer], url: str = "http://example.com/", **settings: Any) -> dict[str, Any]:
    input = {"url": url, **settings.pop("input", {})}
    tool = WebFetchTool(
        resolver=settings.pop("resolver", lambda host: ["93.184.216.34"]),
        transport=lambda asked, headers: answers(asked),
        **settings,
    )
    result = tool.run_sync(input, ToolContext())
    assert isinstance(result, dict)
    return result


def redirect(location: str) -> Answer:
    return 302, {"location": location}, b""


class Redirects(unittest.TestCase):
    def test_one_on_the_same_host_is_followed(self) -> None:
        pages = {"http://example.com/": redirect("/next?a=b"), "http://example.com/next?a=b": (200, HTML, b"<p>there")}
        result = fetch(pages.__getitem__)
        self.assertEqual((result["url"], result["text"]), ("http://example.com/next?a=b", "there"))

    def test_the_step_from_http_to_https_is_followed_and_the_step_back_is_not(self) -> None:
        pages = {
            "http://example.com/": redirect("https://example.com/"),
            "https://example.com/": (200, HTML, b"<p>safe"),
        }
        self.assertEqual(fetch(pages.__getitem__)["text"], "safe")
        back = fetch(lambda url: redirect("http://example.com/"), "https://example.com/")
        self.assertEqual(back["redirect_url"], "http://example.com/")

    def test_one_to_another_host_is_reported_and_not_followed(self) -> None:
        asked: list[str] = []

        def answers(url: str) -> Answer:
            asked.append(url)
            return redirect("https://other.example/landing")

        result = fetch(answers)
        self.assertEqual(asked, ["http://example.com/"])
        self.assertEqual(result["redirect_url"], "https://other.example/landing")
        self.assertIn("https://other.example/landing", result["text"])

    def test_one_to_a_refused_address_is_an_error_however_it_is_spelled(self) -> None:
        for location in (
            "http://127.0.0.1/",
            "//169.254.169.254/latest",
            "http://[::1]/",
            "http://2130706433/",
            "file:///etc/passwd",
            "http://example.com@10.0.0.1/",
            "http://localhost/",
        ):
            with self.subTest(location), self.assertRaises(ValueError):
                fetch(lambda url, location=location: redirect(location))  # type: ignore[misc]

    def test_a_host_that_moves_to_a_private_address_between_two_steps_is_refused(self) -> None:
        answers = iter([["93.184.216.34"], ["127.0.0.1"]])
        with self.assertRaises(AddressRefusedError):
            fetch(lambda url: redirect("/again"), resolver=lambda host: next(answers))

    def test_a_circle_of_redirects_ends_with_an_error_that_names_their_number(self) -> None:
        with self.assertRaisesRegex(ToolError, "more than 5 times"):
            fetch(lambda url: redirect("/"))


class Urls(unittest.TestCase):
    def test_one_is_asked_for_and_reported_as_it_was_given_but_for_case_and_default_port(self) -> None:
        for given, asked in (
            ("https://example.com", "https://example.com"),
            ("HTTP://Example.COM:80/A?b=ü#part", "http://example.com/A?b=%C3%BC"),
            ("http://example.com?q", "http://example.com/?q"),
        ):
            seen: list[str] = []

            def answers(url: str, seen: list[str] = seen) -> Answer:
                seen.append(url)
                return 200, HTML, b"x"

            self.assertEqual((fetch(answers, given)["url"], seen), (asked, [asked]))


class Bodies(unittest.TestCase):
    @full_size
    def test_compressed_pages_are_read_and_a_bomb_is_cut(self) -> None:
        for encoding, packed in (("gzip", gzip.compress(b"hello")), ("deflate", zlib.compress(b"hello"))):
            page = (200, {"content-type": "text/plain", "Content-Encoding": encoding}, packed)
            self.assertEqual(fetch(lambda url, page=page: page)["text"], "hello")  # type: ignore[misc]
        bomb = gzip.compress(bytes(50_000_000))
        result = fetch(
            lambda url: (200, {"content-type": "text/plain", "content-encoding": "gzip"}, bomb), max_body_bytes=10_000
        )
        self.assertTrue(result["truncated"])
        self.assertLessEqual(len(result["text"]), 10_000)

    def test_an_answer_that_is_not_text_is_refused_with_its_media_type(self) -> None:
        for headers, body in (({"content-type": "image/png"}, b"\x89PNG"), ({}, b"\0\1\2")):
            with self.assertRaisesRegex(ToolError, "not text"):
                fetch(lambda url, h=headers, b=body: (200, h, b))  # type: ignore[misc]

    def test_a_long_text_is_cut_and_continues_at_next_offset(self) -> None:
        page = (200, {"content-type": "text/plain"}, b"0123456789")
        first = fetch(lambda url: page, max_text_chars=4)
        self.assertEqual((first["text"], first["truncated"], first["next_offset"]), ("0123", True, 4))
        last = fetch(lambda url: page, max_text_chars=4, input={"offset": 8})
        self.assertEqual((last["text"], last["truncated"]), ("89", False))

    def test_an_error_page_is_returned_with_its_status(self) -> None:
        result = fetch(lambda url: (404, HTML, b"<h1>Not here</h1>"))
        self.assertEqual((result["status"], result["text"]), (404, "# Not here"))

    def test_raw_leaves_the_markup(self) -> None:
        self.assertEqual(fetch(lambda url: (200, HTML, b"<b>x</b>"), input={"format": "raw"})["text"], "<b>x</b>")

    def test_the_character_set_is_found_in_the_order_of_the_standard(self) -> None:
        rows = [
            (b"\xef\xbb\xbfx", "latin-1", "utf-8-sig"),
            (b"\xff\xfex\0", "utf-8", "utf-16"),
            ("é".encode("latin-1"), "iso-8859-1", "windows-1252"),
            (b'<meta charset="koi8-r">', "", "koi8-r"),
            (b"<meta http-equiv=x content='text/html; charset=Shift_JIS'>", "", "shift_jis"),
            (b'<meta charset="utf-16">', "", "utf-8"),
            (b'<?xml version="1.0" encoding="euc-jp"?>', "", "euc-jp"),
            ("é".encode(), "", "utf-8"),
            (b"caf\xe9 au lait", "", "windows-1252"),
            (b"x", "rot13", "utf-8"),
            (b"x", "utf-7", "utf-8"),
            (b"x", "nonsense", "utf-8"),
        ]
        for data, declared, expected in rows:
            with self.subTest(data=data, declared=declared):
                self.assertEqual(find_charset(data, declared)[0], expected)


class _Pages(http.server.BaseHTTPRequestHandler):
    hosts: list[str]

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        server.hosts.append(self.headers["Host"])
        if self.path == "/hang":
            server.released.wait(120)
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.end_headers()
        try:
            for _ in range(200 if self.path == "/endless" else 1):
                self.wfile.write(b"x" * 65536 if self.path == "/endless" else b"hello")
        except OSError:
            return

    def log_message(self, format: str, *args: Any) -> None:
        return


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Pages)
        self.hosts: list[str] = []
        self.released = threading.Event()


def make_certificate(folder: str, name: str) -> tuple[str, str]:
    """Create a key and a self-signed certificate; skip the test if openssl is not installed."""
    openssl = shutil.which("openssl")
    if openssl is None:
        raise unittest.SkipTest("openssl is not installed")
    key, certificate = os.path.join(folder, "key.pem"), os.path.join(folder, "certificate.pem")
    command = [
        openssl,
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        key,
        "-out",
        certificate,
        "-days",
        "2",
    ]
    names = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    subprocess.run([*command, *names], check=True, capture_output=True)
    return key, certificate


class RealConnections(unittest.TestCase):
    def setUp(self) -> None:
        self.server = _Server()
        thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.addCleanup(self.server.released.set)

    def tool(self, **settings: Any) -> WebFetchTool:
        return WebFetchTool(allow_private_networks=True, resolver=lambda host: ["127.0.0.1"], **settings)

    def url(self, path: str) -> str:
        return f"http://pinned.example:{self.server.server_port}{path}"

    def test_the_socket_goes_to_the_checked_address_and_the_name_only_into_the_host_header(self) -> None:
        result = self.tool().run_sync({"url": self.url("/")}, ToolContext())
        self.assertEqual(result["text"], "hello")
        self.assertEqual(self.server.hosts, [f"pinned.example:{self.server.server_port}"])

    def test_a_long_body_is_read_up_to_the_limit(self) -> None:
        result = self.tool(max_body_bytes=100_000).run_sync({"url": self.url("/endless")}, ToolContext())
        self.assertTrue(result["truncated"])
        self.assertEqual(len(result["text"]), 100_000)

    def test_a_page_that_does_not_come_ends_at_the_deadline(self) -> None:
        began = time.monotonic()
        with self.assertRaisesRegex(ToolError, "in time"):
            self.tool(timeout_s=0.2).run_sync({"url": self.url("/hang")}, ToolContext())
        self.assertLess(time.monotonic() - began, 30)

    def test_a_cancelled_fetch_ends_at_once_and_leaves_no_thread_or_descriptor(self) -> None:
        threads = threading.active_count()

        async def cancel() -> float:
            task = asyncio.create_task(self.tool().run({"url": self.url("/hang")}, ToolContext()))
            await until_async(lambda: self.server.hosts, "the server received the request")
            began = time.monotonic()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            return time.monotonic() - began

        before = open_descriptors()
        self.assertLess(asyncio.run(cancel()), 30)
        self.server.released.set()
        until(lambda: threading.active_count() <= threads, "the server's thread has ended", 60)
        until(lambda: open_descriptors() <= before, "its socket is closed", 60)

    @full_size
    def test_a_certificate_must_belong_to_the_name_and_not_to_the_address(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            key, certificate = make_certificate(folder, "pinned.example")
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            before = os.environ.get("SSL_CERT_FILE")
            os.environ["SSL_CERT_FILE"] = certificate
            try:
                secured = self.url("/").replace("http:", "https:")
                self.assertEqual(self.tool().run_sync({"url": secured}, ToolContext())["text"], "hello")
                for host in ("other.example", "127.0.0.1"):
                    with self.assertRaisesRegex(ToolError, "CERTIFICATE_VERIFY_FAILED"):
                        self.tool().run_sync({"url": secured.replace("pinned.example", host)}, ToolContext())
            finally:
                os.environ.pop("SSL_CERT_FILE")
                if before is not None:
                    os.environ["SSL_CERT_FILE"] = before

    def test_a_refused_connection_is_named_in_the_error(self) -> None:
        port = self.server.server_port
        self.server.shutdown()
        self.server.server_close()
        with self.assertRaisesRegex(ToolError, "cannot be reached"):
            self.tool().run_sync({"url": f"http://pinned.example:{port}/"}, ToolContext())
