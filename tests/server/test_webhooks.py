"""Webhooks: signed, repeated until they are accepted, and delivered by a later process after a kill."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from openagentic_sdk.errors import AddressRefusedError, OptionsError, StorageError
from openagentic_sdk.events import Result, UserAnswer, UserQuestion
from openagentic_sdk.parts.record.erase import erase
from openagentic_sdk.parts.record.lifecycle import delete_session, fork_session, rename_session
from openagentic_sdk.server.asgi import app
from openagentic_sdk.server.operations.journal import Journal
from openagentic_sdk.server.operations.webhooks import Webhooks, WebhookTarget, poster, sign
from openagentic_sdk.sessions.memory import MemorySessionStore

from .support import ASK, TOKEN, WAIT_S, agents, ask, until, until_free, until_state

SECRET = "whsec_" + base64.b64encode(b"k" * 24).decode()
TARGET = WebhookTarget("https://hooks.example/agents", SECRET)


class Receiver:
    """Receives messages, and answers with these statuses, then with 200."""

    def __init__(self, *statuses: int) -> None:
        self.statuses, self.got = list(statuses), list[tuple[dict[str, str], bytes]]()

    async def post(self, url: str, headers: Any, body: bytes) -> int:
        self.got.append((dict(headers), body))
        status = self.statuses.pop(0) if self.statuses else 200
        if not status:
            raise ConnectionRefusedError("nobody is there")
        return status

    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.got]


class WebhookTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.store = MemorySessionStore()
        self.lines: list[str] = []

    def webhooks(self, receiver: Receiver, *delays_s: float) -> Webhooks:
        journal = Journal(self.lines.append, "json")
        return Webhooks(self.store, [TARGET], journal, post=receiver.post, delays_s=delays_s)

    async def run_one(self, turns: list[Any], state: str) -> str:
        application = app(agents(tea=turns), store=self.store, auth=TOKEN)
        made = await ask(application, "POST", "/v1/sessions", {"prompt": "Go."})
        session_id: str = made.json["session_id"]
        await until_state(application, session_id, state)
        await until_free(application)
        return session_id

    async def go_on(self, session_id: str) -> None:
        application = app(agents(tea=["Tea."]), store=self.store, auth=TOKEN)
        await ask(application, "POST", f"/v1/sessions/{session_id}/runs", {"prompt": "More."})
        await until_state(application, session_id, "idle")
        await until_free(application)

    async def test_each_end_of_a_run_is_delivered_once_and_signed_as_specified(self) -> None:
        names = [
            await self.run_one([ASK], "waiting"),
            await self.run_one(["Tea."], "idle"),
            await self.run_one([], "failed"),
        ]
        receiver = Receiver()
        for _ in range(2):  # the second process finds nothing undelivered
            webhooks = self.webhooks(receiver)
            await webhooks.start()
            await webhooks.settled()
        told = {message["data"]["session_id"]: message for message in receiver.messages()}
        self.assertEqual([told[name]["type"] for name in names], ["session.waiting", "session.ended", "session.failed"])
        self.assertEqual(len(receiver.got), 3)
        self.assertEqual(told[names[0]]["data"]["questions"][0]["prompt"], "Milk or lemon?")
        for headers, body in receiver.got:
            signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
            mac = base64.b64encode(hmac.new(b"k" * 24, signed, hashlib.sha256).digest()).decode()
            self.assertEqual(headers["webhook-signature"], f"v1,{mac}")
        self.assertNotIn(TARGET.url, "".join(self.lines))

    async def test_a_fork_is_reported_from_where_it_leaves_its_source(self) -> None:
        receiver = Receiver()
        webhooks = self.webhooks(receiver)
        session_id = await self.run_one(["Tea."], "idle")
        cut = self.store.last_seq(session_id)

        for _ in range(2):
            await self.go_on(session_id)
            webhooks.notice(session_id)
            await webhooks.settled()
        fork_id = fork_session(self.store, session_id, at_seq=cut)
        await self.go_on(fork_id)
        webhooks.notice(fork_id)
        await webhooks.settled()
        told = [message["data"]["session_id"] for message in receiver.messages()]
        self.assertEqual(told, [session_id] * 3 + [fork_id])

    async def test_a_repeated_message_contains_nothing_that_was_erased_or_deleted_meanwhile(self) -> None:
        for change in (
            lambda name: erase(self.store, name, texts=["secret tea"]),
            lambda name: delete_session(self.store, name),
        ):
            session_id = await self.run_one(["It is secret tea."], "idle")
            receiver = Receiver()

            async def post(url: str, headers: Any, body: bytes) -> int:
                await receiver.post(url, headers, body)  # noqa: B023
                change(session_id) if len(receiver.got) == 1 else None  # noqa: B023
                return 503 if len(receiver.got) == 1 else 200  # noqa: B023

            webhooks = Webhooks(self.store, [TARGET], Journal(), post=post, delays_s=[0, 0])
            webhooks.notice(session_id)
            await webhooks.settled()
            texts = [message["data"]["text"] for message in receiver.messages()]
            self.assertEqual(texts[0], "It is secret tea.")
            self.assertIn(texts[1:], (["[erased]"], []))
            self.assertEqual(len(texts), 1 + self.store.session_exists(session_id))

    async def test_a_receiver_that_is_away_keeps_no_other_waiting(self) -> None:
        receiver, away = Receiver(), WebhookTarget("https://away.example/", SECRET)

        async def post(url: str, headers: Any, body: bytes) -> int:
            return 503 if url == away.url else await receiver.post(url, headers, body)

        webhooks = Webhooks(self.store, [away, TARGET], Journal(), post=post, delays_s=[10 * WAIT_S])
        self.addAsyncCleanup(webhooks.close)
        session_id = await self.run_one(["Tea."], "idle")
        for count in (1, 2):
            webhooks.notice(session_id)
            await until(lambda: len(receiver.got) == count)  # noqa: B023
            await self.go_on(session_id)

    async def test_a_run_of_another_process_is_reported_if_watched_for(self) -> None:
        receiver = Receiver()
        webhooks = Webhooks(self.store, [TARGET], Journal(), post=receiver.post, watch_s=0.01)
        await webhooks.start()
        self.addAsyncCleanup(webhooks.close)
        names = [await self.run_one([ASK], "waiting"), await self.run_one(["Tea."], "idle")]
        await until(lambda: len(receiver.got) == 2)
        rename_session(self.store, names[0], "Tea")
        names.append(await self.run_one([], "failed"))
        await until(lambda: len(receiver.got) == 3)
        self.assertCountEqual([message["data"]["session_id"] for message in receiver.messages()], names)

    async def test_a_suspended_run_is_delivered_once_it_has_ended(self) -> None:
        session_id = await self.run_one(["Tea."], "idle")
        receiver = Receiver()
        for stop_reason, types in (
            ("suspended", ["session.ended"]),
            ("interrupted", ["session.ended", "session.ended"]),
        ):
            self.store.append_event(session_id, Result("", session_id, stop_reason))
            webhooks = self.webhooks(receiver)
            await webhooks.start()
            await webhooks.settled()
            self.assertEqual([message["type"] for message in receiver.messages()], types)

    async def test_a_message_names_the_questions_that_were_open_when_the_run_stopped(self) -> None:
        session_id = await self.run_one([ASK], "waiting")
        (first,) = self.store.open_question_ids(session_id)
        later = [UserQuestion("second", "Two?"), Result("", session_id, "waiting")]
        last = [UserAnswer(first, "milk"), UserQuestion("third", "Three?"), Result("", session_id, "waiting")]
        for event in (*later, *last):
            self.store.append_event(session_id, event)
        receiver = Receiver()
        webhooks = self.webhooks(receiver)
        await webhooks.start()
        await webhooks.settled()
        names = [[each["question_id"] for each in message["data"]["questions"]] for message in receiver.messages()]
        self.assertEqual(names, [[first], [first, "second"], ["second", "third"]])

    def test_the_example_of_the_specification_has_its_signature(self) -> None:
        key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
        body = b'{"test": 2432232314}'
        made = sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
        self.assertEqual(made, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")

    async def test_an_undelivered_message_is_sent_again_under_its_id_and_finally_given_up(self) -> None:
        await self.run_one(["Tea."], "idle")
        receiver = Receiver(500, 0, 302)
        webhooks = self.webhooks(receiver, 0, 0, 0)
        await webhooks.start()
        await webhooks.settled()
        self.assertEqual(len(receiver.got), 4)
        self.assertEqual(len({headers["webhook-id"] for headers, _ in receiver.got}), 1)
        outcomes = [json.loads(line)["outcome"] for line in self.lines]
        self.assertEqual(outcomes, ["failed", "failed", "failed", "delivered"])
        await self.run_one(["Tea."], "idle")
        webhooks = self.webhooks(Receiver(*[503] * 9), 0)
        await webhooks.start()
        await webhooks.settled()
        self.assertEqual(json.loads(self.lines[-1])["outcome"], "given up")

    async def test_a_store_that_fails_between_two_attempts_is_asked_again_at_the_next_one(self) -> None:
        class Restarting(Receiver):
            async def post(_, url: str, headers: Any, body: bytes) -> int:
                status = await super(Restarting, _).post(url, headers, body)
                if status != 200:
                    self.store.iter_events = fail_once  # type: ignore[method-assign]
                return status

        iter_events = self.store.iter_events

        def fail_once(*args: Any, **settings: Any) -> Any:
            self.store.iter_events = iter_events  # type: ignore[method-assign]
            raise StorageError("the database is restarting", retryable=True)

        await self.run_one(["Tea."], "idle")
        webhooks = self.webhooks(Restarting(503), 0, 0)
        await webhooks.start()
        await webhooks.settled()
        outcomes = [json.loads(line)["outcome"] for line in self.lines]
        self.assertEqual(outcomes, ["failed", "failed", "delivered"])

    async def test_a_process_that_ends_before_it_was_taken_leaves_it_to_the_next_one(self) -> None:
        session_id = await self.run_one([ASK], "waiting")
        first = Receiver(500)
        webhooks = self.webhooks(first, 3600)
        webhooks.notice(session_id)

        async def tried() -> bool:
            return bool(self.lines)

        await until(tried)
        await webhooks.close()
        second = Receiver()
        webhooks = self.webhooks(second)
        await webhooks.start()
        await webhooks.settled()
        self.assertEqual(first.messages(), second.messages())

    async def test_private_addresses_are_for_hosts_that_the_operator_names(self) -> None:
        for url in ("http://127.0.0.1:9/", "http://169.254.169.254/latest", "http://localhost:9/", "http://10.0.0.1/"):
            with self.subTest(url), self.assertRaises(AddressRefusedError):
                await poster()(url, {}, b"{}")
        with self.assertRaises(AddressRefusedError):
            await poster(["169.254.169.254"])("http://169.254.169.254/latest", {}, b"{}")

    async def test_the_server_delivers_to_a_receiver_at_an_allowed_address(self) -> None:
        got = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                got.append((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *told: object) -> None:
                return

        receiver = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        self.addCleanup(receiver.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(receiver.shutdown)
        target = WebhookTarget(f"http://127.0.0.1:{receiver.server_address[1]}/hook", SECRET)
        more = {"webhooks": [target], "webhook_hosts": ["127.0.0.1"], "store": self.store, "auth": TOKEN}
        application = app(agents(tea=[ASK]), **more)
        async with application.lifespan():
            made = await ask(application, "POST", "/v1/sessions", {"prompt": "Go."})
            await until_state(application, made.json["session_id"], "waiting")
            await until_free(application)
            assert application.webhooks is not None
            await application.webhooks.settled()
        [(headers, body)] = got
        self.assertEqual(json.loads(body)["type"], "session.waiting")
        signed = sign(b"k" * 24, headers["webhook-id"], int(headers["webhook-timestamp"]), body)
        self.assertEqual(headers["webhook-signature"], signed)

    def test_a_secret_is_long_and_of_the_form_of_the_specification(self) -> None:
        for secret in ("", "short", "whsec_", "whsec_AAAA", "whsec_!!!", SECRET.removeprefix("whsec_")):
            with self.subTest(secret), self.assertRaises(OptionsError):
                WebhookTarget("https://hooks.example", secret).key()


if __name__ == "__main__":
    unittest.main()
