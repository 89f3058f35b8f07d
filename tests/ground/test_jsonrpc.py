"""JSON-RPC between two peers, over bytes in memory."""

from __future__ import annotations

import asyncio
import json
import unittest
from collections.abc import Mapping
from typing import Any

from openagentic_sdk.errors import RpcError
from openagentic_sdk.ground.jsonrpc import MAX_OPEN, AnswerThen, Lines, Peer, encode


class Wire(unittest.TestCase):
    def test_a_message_is_one_ascii_line_whatever_its_texts_hold(self) -> None:
        line = encode({"a": "\u2028\n\r\x1b\x00é🍵", "b": [1.5, None]})
        self.assertEqual(line.count(b"\n"), 1)
        self.assertTrue(line.endswith(b"\n") and line.isascii())
        self.assertEqual(json.loads(line), {"a": "\u2028\n\r\x1b\x00é🍵", "b": [1.5, None]})

    def test_half_letters_become_one_that_every_reader_takes(self) -> None:
        message = {"a\ud800": ["x\udc00y", "\ud83c\udf75", {"b": "\ud83cz", "c": "\\ud800"}]}
        self.assertEqual(json.loads(encode(message)), {"a\ufffd": ["x\ufffdy", "🍵", {"b": "\ufffdz", "c": "\\ud800"}]})

    def test_lines_are_cut_at_every_byte_alike(self) -> None:
        data = b'{"a":1}\r\n\n  \n{"b":"\xc3\xa9"}\n' + b"x" * 30 + b"\n{}\nrest"
        whole = Lines(20).feed(data)
        self.assertEqual(whole, [b'{"a":1}', b'{"b":"\xc3\xa9"}', None, b"{}"])
        lines = Lines(20)
        self.assertEqual([line for byte in data for line in lines.feed(bytes([byte]))], whole)


class Conversation(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.notified: list[tuple[str, Mapping[str, Any]]] = []
        self.gate = asyncio.Event()
        self.peer = Peer(self._send, self._handle, self._hear)

    async def _send(self, line: bytes) -> None:
        self.sent.append(json.loads(line))

    async def _handle(self, method: str, params: Mapping[str, Any]) -> Any:
        if method == "wait":
            await self.gate.wait()
        if method == "refuse":
            raise RpcError(-32002, "there is no such thing", {"name": "x"})
        if method == "break":
            raise ZeroDivisionError("oh")
        if method == "unsayable":
            return {1, 2}
        if method == "then":
            return AnswerThen("first", lambda: self.peer.notify("second", {}))
        return {"method": method, "params": params}

    async def _hear(self, method: str, params: Mapping[str, Any]) -> None:
        self.notified.append((method, params))
        if method == "break":
            raise ZeroDivisionError("oh")

    async def settle(self) -> list[dict[str, Any]]:
        for _ in range(10):
            await asyncio.sleep(0)
        sent, self.sent[:] = list(self.sent), []
        return sent

    def say(self, *lines: str | bytes | None) -> None:
        for line in lines:
            self.peer.receive(line.encode() if isinstance(line, str) else line)

    async def test_requests_are_answered_in_the_order_in_which_they_are_done(self) -> None:
        self.say('{"id":1,"method":"wait"}', '{"id":"b","method":"echo","params":{"x":1}}')
        answers = await self.settle()
        self.assertEqual(answers, [{"jsonrpc": "2.0", "id": "b", "result": {"method": "echo", "params": {"x": 1}}}])
        self.gate.set()
        self.assertEqual([answer["id"] for answer in await self.settle()], [1])

    async def test_a_message_sent_after_an_answer_is_written_after_it(self) -> None:
        self.say('{"id":1,"method":"then"}')
        answer, then = await self.settle()
        self.assertEqual((answer["result"], then["method"]), ("first", "second"))

    async def test_an_invalid_message_is_answered_with_an_error_and_ends_nothing(self) -> None:
        cases: list[tuple[str | bytes | None, int]] = [
            ("{", -32700),
            (b"\xff\xfe{", -32700),
            ('{"id":1,"method":NaN}', -32700),
            ("[" * 100_000, -32700),
            ('{"id":' + "1" * 10_000 + ',"method":"x"}', -32700),
            (None, -32600),
            ("[]", -32600),
            ('[{"id":1,"method":"x"}]', -32600),
            ('"x"', -32600),
            ("{}", -32600),
            ('{"id":1}', -32600),
            ('{"id":1,"method":5}', -32600),
            ('{"id":1,"method":"x","params":[1]}', -32600),
            ('{"id":true,"method":"x"}', -32600),
            ('{"id":{},"method":"x"}', -32600),
            ('{"id":1.5,"method":"x"}', -32600),
        ]
        for line, code in cases:
            with self.subTest(str(line)[:40]):
                self.say(line)
                (answer,) = await self.settle()
                self.assertEqual(answer["error"]["code"], code)
                self.assertTrue(answer["error"]["message"])
        self.say('{"id":7,"method":"echo"}')
        self.assertEqual((await self.settle())[0]["id"], 7)

    async def test_whatever_a_handler_raises_is_an_answer(self) -> None:
        self.say('{"id":1,"method":"refuse"}', '{"id":2,"method":"break"}', '{"id":3,"method":"unsayable"}')
        errors = {answer["id"]: answer["error"] for answer in await self.settle()}
        self.assertEqual(errors[1], {"code": -32002, "message": "there is no such thing", "data": {"name": "x"}})
        self.assertEqual(errors[2], {"code": -32603, "message": "ZeroDivisionError: oh"})
        self.assertEqual(errors[3]["code"], -32603)

    async def test_nothing_answers_a_notification_or_an_answer_that_nobody_waits_for(self) -> None:
        self.say(
            '{"method":"break"}', '{"method":"hello","params":null}', '{"id":99,"result":1}', '{"id":[],"error":1}'
        )
        self.assertEqual(await self.settle(), [])
        self.assertEqual([method for method, _ in self.notified], ["break", "hello"])

    async def test_an_id_that_is_in_use_answers_the_first_request_only(self) -> None:
        self.say('{"id":1,"method":"wait"}', '{"id":1,"method":"echo"}')
        (refusal,) = await self.settle()
        self.assertEqual((refusal["id"], refusal["error"]["code"]), (None, -32600))
        self.gate.set()
        self.assertEqual([answer["id"] for answer in await self.settle()], [1])
        self.say('{"id":1,"method":"echo"}')
        self.assertIn("result", (await self.settle())[0])

    async def test_a_flood_of_requests_is_refused_and_then_not_answered_at_all(self) -> None:
        sent: list[bytes] = []
        strays: list[str] = []
        is_read, never = asyncio.Event(), asyncio.Event()

        async def send(line: bytes) -> None:
            sent.append(line)
            await is_read.wait()

        async def work(method: str, params: Any) -> None:
            await never.wait()

        peer = Peer(send, work, work, on_stray=lambda reason, line: strays.append(reason))
        for number in range(2 * MAX_OPEN + 5):
            peer.receive(encode({"id": number, "method": "work"}))
        await asyncio.sleep(0)
        self.assertEqual((len(sent), len(strays)), (MAX_OPEN, 5))
        self.assertIn("1000 requests are open", strays[0])
        is_read.set()
        peer.fail(lambda: ValueError())
        await peer.close()
        self.assertEqual(len(sent), 2 * MAX_OPEN)

    async def test_a_request_that_the_end_overtakes_does_not_hold_it_up(self) -> None:
        self.say('{"id":1,"method":"wait"}')
        self.peer.fail(lambda: ValueError())
        await asyncio.wait_for(self.peer.close(), 60)
        self.assertEqual(self.sent, [])

    async def test_a_request_that_is_withdrawn_is_answered_as_cancelled(self) -> None:
        self.say('{"id":1,"method":"wait"}')
        await self.settle()
        self.say('{"method":"$/cancel_request","params":{"requestId":1}}')
        self.say('{"method":"$/cancel_request","params":{"requestId":[]}}')
        (answer,) = await self.settle()
        self.assertEqual(answer["error"]["code"], -32800)

    async def test_answers_find_who_asked_and_errors_carry_their_values(self) -> None:
        first = asyncio.create_task(self.peer.request("a", {}))
        second = asyncio.create_task(self.peer.request("b", {}))
        third = asyncio.create_task(self.peer.request("c", {}))
        ids = [message["id"] for message in await self.settle()]
        self.say(
            json.dumps({"id": ids[1], "result": 2}),
            json.dumps({"id": ids[0], "error": {"code": 5, "message": "no", "data": [1]}}),
            json.dumps({"id": ids[2], "error": "nonsense"}),
        )
        self.assertEqual(await second, 2)
        with self.assertRaises(RpcError) as refused:
            await first
        self.assertEqual((refused.exception.code, str(refused.exception), refused.exception.data), (5, "no", [1]))
        with self.assertRaises(RpcError):
            await third

    async def test_giving_up_on_a_request_cancels_it_and_a_late_answer_is_ignored(self) -> None:
        asking = asyncio.create_task(self.peer.request("slow", {}))
        (asked,) = await self.settle()
        asking.cancel()
        (withdrawn,) = await self.settle()
        self.assertEqual((withdrawn["method"], withdrawn["params"]), ("$/cancel_request", {"requestId": asked["id"]}))
        self.say(json.dumps({"id": asked["id"], "result": 1}))
        self.assertEqual(await self.settle(), [])

    async def test_a_closed_connection_fails_what_was_asked_and_waits_for_what_is_being_answered(self) -> None:
        asking = asyncio.create_task(self.peer.request("slow", {}))
        self.say('{"id":1,"method":"wait"}')
        await self.settle()
        closing = asyncio.create_task(self.peer.close())
        with self.assertRaises(RpcError):
            await asking
        self.assertFalse(closing.done())
        self.gate.set()
        await closing
        self.assertEqual(self.sent[-1]["id"], 1)


if __name__ == "__main__":
    unittest.main()
