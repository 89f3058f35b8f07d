"""WebSocket: frames as bytes, the same over a connection, and against servers written by others."""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
import subprocess
import unittest
from pathlib import Path

from openagentic_sdk.events import UserMessage
from openagentic_sdk.server.guard import Principal
from openagentic_sdk.server.websocket import (
    BrokenFrameError,
    FrameReader,
    Received,
    accept_key,
    close_frame,
    frame,
    is_key,
)
from openagentic_sdk.sessions.memory import MemorySessionStore

from .support import ASK, AUTH, TOKEN, Served, agents, options

PEERS = os.environ.get("OPENAGENTIC_TEST_WEBSOCKET_PYTHON")
NODE = os.environ.get("OPENAGENTIC_TEST_NODE")
NODE_MODULES = os.environ.get("OPENAGENTIC_TEST_NODE_MODULES")


def masked(
    opcode: int, payload: bytes, *, final: bool = True, mask: bytes = b"\x01\x02\x03\x04", reserved: int = 0
) -> bytes:
    """One frame as a client sends it; without a mask for b""."""
    first, size = (0x80 if final else 0) | reserved | opcode, len(payload)
    bit = 0x80 if mask else 0
    if size < 126:
        head = bytes((first, bit | size))
    else:
        head = (
            struct.pack("!BBH", first, bit | 126, size) if size < 65536 else struct.pack("!BBQ", first, bit | 127, size)
        )
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload)) if mask else head + payload


def read(data: bytes, step: int = 0, max_bytes: int = 1 << 20) -> list[Received]:
    """The messages in these bytes, fed in pieces of this size (0: at once)."""
    reader, found = FrameReader(max_bytes, max_bytes), []
    for start in range(0, len(data), step or len(data) or 1):
        reader.feed(data[start : start + (step or len(data))])
        while (received := reader.next()) is not None:
            found.append(received)
    return found


TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
EMOJI = "\U0001f600" * 70_000
READ = {
    "a text": (masked(TEXT, b"hello"), [Received("text", "hello")]),
    "an empty text": (masked(TEXT, b""), [Received("text", "")]),
    "bytes": (masked(BINARY, b"\0\xff"), [Received("binary", b"\0\xff")]),
    "two texts": (masked(TEXT, b"a") + masked(TEXT, b"b"), [Received("text", "a"), Received("text", "b")]),
    "three parts": (
        masked(TEXT, b"a", final=False) + masked(0, b"b", final=False) + masked(0, b"c"),
        [Received("text", "abc")],
    ),
    "empty parts": (masked(TEXT, b"", final=False) + masked(0, b""), [Received("text", "")]),
    "a ping between parts": (
        masked(TEXT, b"a", final=False) + masked(PING, b"p") + masked(0, b"c"),
        [Received("ping", b"p"), Received("text", "ac")],
    ),
    "a letter across parts": (
        masked(TEXT, "é".encode()[:1], final=False) + masked(0, "é".encode()[1:]),
        [Received("text", "é")],
    ),
    "a pong": (masked(PONG, b""), [Received("pong", b"")]),
    "another mask": (masked(TEXT, b"hello", mask=b"\xff\0\x80\x7f"), [Received("text", "hello")]),
    "a mask of zeros": (masked(TEXT, b"hello", mask=b"\0\0\0\0"), [Received("text", "hello")]),
    "126 bytes": (masked(TEXT, b"a" * 126), [Received("text", "a" * 126)]),
    "65536 bytes": (masked(BINARY, b"a" * 65536), [Received("binary", b"a" * 65536)]),
    "a length of 16 bits for 5": (b"\x81\xfe\0\5\0\0\0\0hello", [Received("text", "hello")]),
    "a length of 64 bits for 5": (b"\x81\xff\0\0\0\0\0\0\0\5\0\0\0\0hello", [Received("text", "hello")]),
    "a close": (masked(CLOSE, b""), [Received("close", "", 1005)]),
    "a close with a code": (masked(CLOSE, b"\x03\xe8bye"), [Received("close", "bye", 1000)]),
    "a close of ours": (masked(CLOSE, struct.pack("!H", 4999)), [Received("close", "", 4999)]),
    "nothing behind a close": (masked(CLOSE, b"") + masked(TEXT, b"x"), [Received("close", "", 1005)]),
}
BROKEN = {
    "no mask": (1002, masked(TEXT, b"a", mask=b"")),
    "rsv1": (1002, masked(TEXT, b"a", reserved=0x40)),
    "rsv2": (1002, masked(TEXT, b"a", reserved=0x20)),
    "rsv3": (1002, masked(PING, b"a", reserved=0x10)),
    **{f"opcode {n}": (1002, masked(n, b"")) for n in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)},
    "a long ping": (1002, masked(PING, b"a" * 126)),
    "a ping in parts": (1002, masked(PING, b"a", final=False)),
    "a close in parts": (1002, masked(CLOSE, b"\x03\xe8", final=False)),
    "a part without a beginning": (1002, masked(0, b"a")),
    "a beginning inside": (1002, masked(TEXT, b"a", final=False) + masked(TEXT, b"b")),
    "bytes inside a text": (1002, masked(TEXT, b"a", final=False) + masked(BINARY, b"b")),
    "a part behind the end": (1002, masked(TEXT, b"a") + masked(0, b"b")),
    "a close of one byte": (1002, masked(CLOSE, b"\x03")),
    **{
        f"code {code}": (1002, masked(CLOSE, struct.pack("!H", code)))
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535)
    },
    "a reason that is no UTF-8": (1007, masked(CLOSE, b"\x03\xe8\xff")),
    "no UTF-8": (1007, masked(TEXT, b"\xff")),
    "half a letter": (1007, masked(TEXT, "é".encode()[:1])),
    "an overlong letter": (1007, masked(TEXT, b"\xc0\xaf")),
    "a surrogate": (1007, masked(TEXT, b"\xed\xa0\x80")),
    "a letter beyond the last": (1007, masked(TEXT, b"\xf4\x90\x80\x80")),
    "half a letter in the last part": (1007, masked(TEXT, b"a", final=False) + masked(0, b"\xc3")),
    "a length of 63 bits and more": (1009, b"\x81\xff\x80\0\0\0\0\0\0\0\1\2\3\4"),
    "a gigabyte": (1009, b"\x81\xff\0\0\0\0\x40\0\0\0\1\2\3\4"),
    "a megabyte in parts": (1009, masked(TEXT, b"a" * 600_000, final=False) + masked(0, b"a" * 600_000)),
}


class Frames(unittest.TestCase):
    def test_the_first_message_is_small_as_nobody_has_shown_a_token_yet(self) -> None:
        head = b"\x81\xff" + (70_000).to_bytes(8, "big")
        reader = FrameReader()
        reader.feed(head)
        with self.assertRaisesRegex(BrokenFrameError, "65536"):
            reader.next()
        reader = FrameReader()
        reader.feed(b"\x81\x81\0\0\0\0a" + head + bytes(70_004))
        self.assertEqual([len(each.data) for each in (reader.next(), reader.next()) if each], [1, 70_000])

    def test_messages_are_read_however_their_bytes_are_cut(self) -> None:
        for name, (data, wanted) in READ.items():
            for step in (0, 1, 2, 3, 5) if len(data) < 1000 else (0, 1000):
                with self.subTest(name, step=step):
                    self.assertEqual(read(data, step), wanted)

    def test_a_violation_of_the_protocol_closes_with_its_code(self) -> None:
        for name, (code, data) in BROKEN.items():
            for step in (0, 1) if len(data) < 1000 else (0, 5000):
                with self.subTest(name, step=step), self.assertRaises(BrokenFrameError) as caught:
                    read(data, step)
                self.assertEqual(caught.exception.code, code)

    def test_a_message_may_be_cut_into_parts_at_every_byte(self) -> None:
        text = "aé€😀" * 30
        data = text.encode()
        for at in range(len(data) + 1):
            parts = masked(TEXT, data[:at], final=False) + masked(PING, b"") + masked(0, data[at:])
            self.assertEqual(read(parts), [Received("ping", b""), Received("text", text)])

    def test_a_message_of_empty_parts_is_too_long_some_day(self) -> None:
        reader = FrameReader(max_bytes=64_000)
        reader.feed(masked(TEXT, b"", final=False) + masked(0, b"", final=False) * 2_000)
        with self.assertRaises(BrokenFrameError) as caught:
            reader.next()
        self.assertEqual(caught.exception.code, 1009)

    def test_letters_beyond_the_basic_plane_survive_any_cut(self) -> None:
        data = EMOJI.encode()
        whole = masked(TEXT, data[:100_001], final=False) + masked(0, data[100_001:])
        self.assertEqual(read(whole, 4097), [Received("text", EMOJI)])

    def test_sent_frames_have_the_shortest_length_and_no_mask(self) -> None:
        for size, head in ((5, b"\x81\x05"), (126, b"\x81\x7e\0\x7e"), (65536, b"\x81\x7f\0\0\0\0\0\1\0\0")):
            self.assertEqual(frame(TEXT, b"a" * size), head + b"a" * size)
        self.assertEqual(close_frame(1000, "é" * 100)[:4], b"\x88\x7c\x03\xe8")
        self.assertEqual(close_frame(1005), b"\x88\0")
        self.assertEqual(accept_key(b"dGhlIHNhbXBsZSBub25jZQ=="), b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
        self.assertTrue(is_key(base64.b64encode(bytes(16))))
        for wrong in (None, b"", b"x", base64.b64encode(bytes(15)), b"!" * 24):
            self.assertFalse(is_key(wrong))


class Client:
    """A WebSocket client that works with raw bytes."""

    def __init__(self, served: Served, target: str, *headers: str, token: str | None = TOKEN) -> None:
        self.sock = served.connect()
        lines = [
            f"GET {target} HTTP/1.1",
            f"Host: {served.host}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            *([f"Authorization: Bearer {token}"] if token else []),
            *headers,
        ]
        self.data = b""
        try:
            self.sock.sendall("\r\n".join([*lines, "", ""]).encode())
            while b"\r\n\r\n" not in self.data:
                piece = self.sock.recv(65536)
                if not piece:
                    raise ConnectionResetError(f"the connection ended after {self.data!r} of the response's head")
                self.data += piece
        except OSError:
            self.close()
            raise
        head, _, self.data = self.data.partition(b"\r\n\r\n")
        self.status = int(head.split()[1])
        self.head = head.decode().lower()

    def frame(self) -> tuple[int, bytes]:
        """The next frame; opcode -1 at the end of the connection."""
        while True:
            if len(self.data) >= 2:
                size, start = self.data[1] & 0x7F, 2
                if size >= 126:
                    start = 4 if size == 126 else 10
                    size = int.from_bytes(self.data[2:start], "big") if len(self.data) >= start else 1 << 60
                if len(self.data) >= start + size:
                    opcode, payload = self.data[0] & 15, self.data[start : start + size]
                    self.data = self.data[start + size :]
                    return opcode, payload
            try:
                piece = self.sock.recv(65536)
            except ConnectionResetError:
                piece = b""
            if not piece:
                return -1, b""
            self.data += piece

    def json(self) -> dict:
        """The next text as JSON; a server that is slow to answer may send pings before it."""
        while (got := self.frame())[0] == PING:
            continue
        opcode, payload = got
        assert opcode == TEXT, (opcode, payload)
        return json.loads(payload)

    def until_close(self) -> int | None:
        """The code of the close frame; None if the connection simply ends."""
        while (got := self.frame())[0] not in (CLOSE, -1):
            continue
        return int.from_bytes(got[1][:2], "big") if got[0] == CLOSE else None

    def say(self, value: object) -> None:
        self.sock.sendall(masked(TEXT, json.dumps(value).encode()))

    def close(self) -> None:
        self.sock.close()


class Wire(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        store = MemorySessionStore()
        cls.session_id = store.create_session()
        store.append_event(cls.session_id, UserMessage("hello"))
        cls.served = Served(agents(tea=options([ASK, "Tea."]), more=["More."]), store=store)
        cls.addClassCleanup(cls.served.close)
        cls.path = f"/v1/sessions/{cls.session_id}/events"

    def client(self, *headers: str, path: str | None = None, token: str | None = TOKEN) -> Client:
        client = Client(self.served, path or self.path, *headers, token=token)
        self.addCleanup(client.close)
        return client

    def test_broken_frames_end_with_the_same_code_over_a_connection(self) -> None:
        for name, (code, data) in BROKEN.items():
            if "megabyte" not in name:
                with self.subTest(name):
                    client = self.client()
                    client.sock.sendall(data)
                    self.assertEqual(client.until_close(), code)
                    self.assertEqual(client.frame(), (-1, b""))
                    client.close()

    def test_pings_are_answered_and_a_close_is_echoed(self) -> None:
        client = self.client()
        self.assertEqual(client.json()["seq"], 1)
        client.sock.sendall(masked(PING, b"are you there"))
        self.assertEqual(client.frame(), (PONG, b"are you there"))
        client.sock.sendall(masked(CLOSE, b"\x0f\xa1bye"))
        self.assertEqual(client.frame(), (CLOSE, b"\x0f\xa1"))
        self.assertEqual(client.frame(), (-1, b""))

    def test_invalid_handshakes_are_refused_by_status(self) -> None:
        self.assertEqual(self.client().status, 101)
        cases = {
            426: ["Sec-WebSocket-Version: 8"],
            400: ["Sec-WebSocket-Key: short"],
        }
        usual = ["Upgrade: websocket", "Connection: keep-alive, Upgrade", "Sec-WebSocket-Version: 13"]
        key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
        for status, lines in cases.items():
            head = [f"GET {self.path} HTTP/1.1", f"Host: {self.served.host}", f"Authorization: Bearer {TOKEN}", *lines]
            rest = [
                line for line in (*usual, key) if line.split(":")[0] not in {given.split(":")[0] for given in lines}
            ]
            answer = self.served.raw("\r\n".join([*head, *rest, "", ""]).encode())
            self.assertTrue(answer.startswith(b"HTTP/1.1 %d" % status), answer)
        for status, headers, path in (
            (403, ["Origin: http://evil.example"], None),
            (403, ["Origin: null"], None),
            (403, ["Sec-Fetch-Site: same-site"], None),
            (404, [], "/v1/sessions"),
            (400, [], f"{self.path}?after=-1"),
            (400, [], "/v1/sessions/..%2f/events"),
        ):
            self.assertEqual(self.client(*headers, path=path).status, status, headers)
        self.assertIn("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=", self.client().head)
        self.assertNotIn("extensions", self.client("Sec-WebSocket-Extensions: permessage-deflate").head)

    def test_a_secret_may_come_in_the_first_message_and_never_in_the_address(self) -> None:
        for first, code in (
            ({"type": "auth", "token": "wrong"}, 4001),
            ({"post": "runs", "body": {"prompt": "x"}}, 4001),
        ):
            client = self.client(token=None)
            self.assertEqual(client.status, 101)
            client.say(first)
            self.assertEqual(client.until_close(), code)
        client = self.client(token=None, path=f"{self.path}?token={TOKEN}")
        client.sock.sendall(masked(TEXT, b"no JSON"))
        self.assertEqual(client.until_close(), 4001)
        client = self.client(token=None)
        client.say({"type": "auth", "token": TOKEN})
        self.assertEqual(client.json()["text"], "hello")

    def test_a_browser_that_is_signed_in_may_begin_with_a_large_message_and_nobody_else(self) -> None:
        guard = self.served.application.guard
        cookie = (guard.redeem(guard.new_ticket(Principal()), secure=False) or "").partition(";")[0]
        large = masked(TEXT, json.dumps({"post": "nothing", "body": "x" * 200_000, "id": 7}).encode())
        for headers, token in (([f"Cookie: {cookie}"], None), ([], TOKEN)):
            client = self.client(*headers, token=token)
            client.sock.sendall(large)
            while (answer := client.json())["type"] != "reply":
                continue
            self.assertEqual((answer["id"], answer["status"]), (7, 404))
        client = self.client(f"Cookie: {cookie[:-1]}", token=None)
        client.sock.sendall(large)
        self.assertEqual(client.until_close(), 1009)

    def test_unknown_sessions_and_cursors_after_the_end_close_with_codes_of_our_own(self) -> None:
        self.assertEqual(self.client(path="/v1/sessions/none/events").until_close(), 4004)
        self.assertEqual(self.client(path=f"{self.path}?after=9999").until_close(), 4009)

    def test_what_is_posted_is_what_post_takes_and_events_and_deltas_come_between(self) -> None:
        made = self.served.ask("POST", "/v1/sessions", {"prompt": "Go.", "agent": "tea"}).json
        client = self.client(path=f"/v1/sessions/{made['session_id']}/events")
        seen = [client.json()]
        while seen[-1]["type"] != "result":
            seen.append(client.json())
        question = next(event for event in seen if event["type"] == "user.question")
        client.say({"post": "answers", "id": 1, "body": {"question_id": "wrong", "answer": "x"}})
        self.assertEqual((client.json()["status"], seen[-1]["stop_reason"]), (409, "waiting"))
        client.say({"post": "answers", "id": 2, "body": {"question_id": question["question_id"], "answer": " "}})
        refused = client.json()
        self.assertEqual((refused["status"], refused["id"]), (400, 2))
        self.assertIn("is not a valid answer to question", refused["body"]["error"]["message"])
        for wrong in ({"post": "nothing"}, {"id": 7}, [], {"post": "runs", "body": {"prompt": 3}}):
            client.say(wrong)
            self.assertIn(client.json()["status"], (400, 404))
        client.say({"post": "answers", "id": "two", "body": {"question_id": question["question_id"], "answer": "milk"}})
        more = [client.json()]
        while more[-1]["type"] != "result" or not any(each["type"] == "reply" for each in more):
            more.append(client.json())
        reply = next(each for each in more if each["type"] == "reply")
        self.assertEqual((reply["id"], reply["status"]), ("two", 202))
        deltas = "".join(each["text_delta"] for each in more if each["type"] == "assistant.delta")
        self.assertEqual(deltas, "Tea.")
        seqs = [each["seq"] for each in (*seen, *more) if each.get("seq")]
        self.assertEqual(seqs, list(range(1, len(seqs) + 1)))


# --- against others ------------------------------------------------------------------------------------------------------

DIFFERENTIAL = {
    **{name: data for name, (data, _) in READ.items() if "close" not in name},
    **{name: data for name, (_, data) in BROKEN.items() if "megabyte" not in name and "gigabyte" not in name},
    "a close": masked(CLOSE, b""),
    "a close with a code": masked(CLOSE, b"\x03\xe8bye"),
}


def answers_of(port: int, path: str, data: bytes, host: str) -> tuple[list[bytes], int | None]:
    """The pongs, and the code of the close frame, that a server sends for these bytes and a close."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=300)
    with sock:
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: {host}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            *(f"{name}: {value}" for name, value in AUTH.items()),
        ]
        sock.sendall("\r\n".join([*lines, "", ""]).encode())
        client = Client.__new__(Client)
        client.sock, client.data = sock, b""
        while b"\r\n\r\n" not in client.data:
            client.data += sock.recv(4096)
        client.data = client.data.partition(b"\r\n\r\n")[2]
        sock.sendall(data + masked(CLOSE, b"\x03\xe8"))
        pongs = []
        while True:
            opcode, payload = client.frame()
            if opcode == PONG:
                pongs.append(payload)
            if opcode == CLOSE:
                return pongs, int.from_bytes(payload[:2], "big") if payload else 1005
            if opcode == -1:
                return pongs, None


PYTHON_PEER = """
import asyncio, websockets
async def main():
    async def drop(socket):
        try:
            async for _ in socket: pass
        except websockets.ConnectionClosed: pass
    async with websockets.serve(drop, "127.0.0.1", 0, compression=None, ping_interval=None) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.Future()
asyncio.run(main())
"""
NODE_PEER = """
const { WebSocketServer } = require("ws");
const address = { port: 0, host: "127.0.0.1", perMessageDeflate: false };
const server = new WebSocketServer(address, () => console.log(server.address().port));
server.on("connection", (socket) => { socket.on("message", () => {}); socket.on("error", () => {}); });
"""


class Peers(unittest.TestCase):
    """The same bytes sent to this server and to a foreign one: the same pongs, the same close."""

    def check(self, command: list[str], *, left_out: int = 0, **where: object) -> None:
        peer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **where)
        self.addCleanup(peer.stdout.close)
        self.addCleanup(peer.wait)
        self.addCleanup(peer.kill)
        port = int(peer.stdout.readline())
        store = MemorySessionStore()
        session_id = store.create_session()
        served = Served(store=store)
        self.addCleanup(served.close)
        different = {}
        for name, data in DIFFERENTIAL.items():
            if BROKEN.get(name, (None,))[0] == left_out:
                continue
            ours = answers_of(served.port, f"/v1/sessions/{session_id}/events", data, served.host)
            theirs = answers_of(port, "/", data, f"127.0.0.1:{port}")
            if ours != theirs:
                different[name] = (ours, theirs)
        self.assertEqual(different, {})

    @unittest.skipUnless(PEERS, "OPENAGENTIC_TEST_WEBSOCKET_PYTHON names a Python that has websockets")
    def test_websockets_answers_alike(self) -> None:
        # It reads the close frame after a text before it decodes the text.
        self.check([PEERS, "-c", PYTHON_PEER], left_out=1007)

    @unittest.skipUnless(
        NODE and NODE_MODULES, "OPENAGENTIC_TEST_NODE and OPENAGENTIC_TEST_NODE_MODULES name Node and ws"
    )
    def test_ws_answers_alike(self) -> None:
        self.check([NODE, "-e", NODE_PEER], cwd=Path(NODE_MODULES).parent)


if __name__ == "__main__":
    unittest.main()
