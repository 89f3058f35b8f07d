"""The operations of clients: start, answer, steer, cancel, fork, rewind and read, over the application itself."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
import unittest
from dataclasses import replace
from pathlib import Path

from openagentic_sdk import tool
from openagentic_sdk.agents import NamedAgent
from openagentic_sdk.events import PermissionDecision, Result, SessionRewound, UserAnswer, UserMessage
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookMatcher
from openagentic_sdk.parts.record.lifecycle import rename_session
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.server.asgi import app
from openagentic_sdk.server.desk import Desk
from openagentic_sdk.server.guard import Principal
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.sessions.store import FileSessionStore
from tests.runtime.support import assert_closed

from .support import ASK, TOKEN, WAIT_S, Gate, agents, ask, endless, options, until_free, until_received, until_state


class DeskCase(unittest.IsolatedAsyncioTestCase):
    def app(self, store=None, registry=None, **given):
        self.store = store or MemorySessionStore()
        made = app(registry or agents(**given), store=self.store, auth=TOKEN)
        self.addAsyncCleanup(made.desk.drain, 2.0)
        made.desk.open()
        return made

    async def start(self, application, prompt="Go.", **more):
        answer = await ask(application, "POST", "/v1/sessions", {"prompt": prompt, **more})
        self.assertEqual(answer.status, 201, answer.body)
        return answer.json["session_id"]

    def texts(self, session_id, kind=UserMessage):
        return [event for event in self.store.read_events(session_id) if isinstance(event, kind)]


class Runs(DeskCase):
    async def test_a_prompt_is_stored_before_its_answer_and_the_run_continues_by_itself(self):
        application = self.app(tea=["Tea.", "More."])
        answer = await ask(application, "POST", "/v1/sessions", {"prompt": "Tea?", "agent": "tea"})
        session_id = answer.json["session_id"]
        self.assertEqual((answer.status, answer.headers["location"]), (201, f"/v1/sessions/{session_id}"))
        [prompt] = self.texts(session_id)
        self.assertEqual((prompt.text, prompt.request_id), ("Tea?", answer.json["request_id"]))
        row = await until_state(application, session_id, "idle")
        self.assertEqual((row["turns"], row["first_prompt"]), (1, "Tea?"))
        again = await ask(application, "POST", f"/v1/sessions/{session_id}/runs", {"prompt": "More?"})
        self.assertEqual((again.status, again.json["after_seq"]), (202, row["events"]))
        await until_state(application, session_id, "idle")
        self.assertEqual([event.text for event in self.texts(session_id)], ["Tea?", "More?"])

    async def test_a_clients_prompt_names_no_files_unless_the_agent_allows_it_and_then_through_the_gate(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, ".env").write_text("of the project")
            for allows, deny in ((False, ()), (True, ()), (True, ("Read(.env)",))):
                gate = PermissionGate(permission_mode="bypass", deny=deny)
                made = replace(
                    options(["Seen.", "Seen."]), cwd=folder, setting_sources=["project"], permission_gate=gate
                )
                application = self.app(tea=NamedAgent(made, client_files=allows))
                asked = "look at @.env"
                session_id = await self.start(application, asked)
                await until_state(application, session_id, "idle")
                await ask(application, "POST", f"/v1/sessions/{session_id}/runs", {"prompt": asked})
                await until_state(application, session_id, "idle")
                is_read = allows and not deny
                for message in self.texts(session_id):
                    self.assertEqual("of the project" in message.text, is_read, message.text)
                    self.assertEqual(message.text == asked, not is_read)
                decisions = self.texts(session_id, PermissionDecision)
                self.assertEqual([(each.name, each.allowed) for each in decisions], [("Read", is_read)] * 2 * allows)

    async def test_an_answer_for_a_tool_that_the_agent_here_lacks_is_refused_and_its_question_stays_open(self):
        @tool
        def refund() -> str:
            """Refund an order."""
            return "refunded"

        call = {"tool_calls": [{"name": "refund", "arguments": {}}]}
        application = self.app(tea=NamedAgent(lambda: options([call], refund, mode="default")))
        session_id = await self.start(application)
        row = await until_state(application, session_id, "waiting")
        await until_free(application)
        application.desk.agents._agents["tea"] = agents(tea=["Never asked for."])["tea"]
        body = {"question_id": row["open_questions"][0]["question_id"], "answer": "yes"}
        answer = await ask(application, "POST", f"/v1/sessions/{session_id}/answers", body)
        self.assertEqual(answer.status, 409, answer.body)
        self.assertIn(b"refund", answer.body)
        self.assertEqual(self.texts(session_id, UserAnswer), [])
        row = (await ask(application, "GET", f"/v1/sessions/{session_id}")).json
        self.assertEqual((row["state"], len(row["open_questions"])), ("waiting", 1))

    async def test_an_answer_sent_again_with_its_key_starts_the_run_that_a_crash_kept_from_going_on(self):
        with tempfile.TemporaryDirectory() as folder:
            store = SqliteSessionStore(Path(folder, "sessions.db"))
            self.addCleanup(store.close)

            class Dying(Desk):
                async def _go_on(self, session_id, options):
                    raise asyncio.CancelledError  # the process ends between the answer and its run

            application = self.app(store, tea=[ASK, "Milk it is."])
            session_id = await self.start(application)
            row = await until_state(application, session_id, "waiting")
            await until_free(application)
            question_id = row["open_questions"][0]["question_id"]
            dead = Dying(application.desk.agents, store)
            with self.assertRaises(asyncio.CancelledError):
                await dead.answer_all(Principal(), session_id, {question_id: "milk"}, key="k")
            [stored] = self.texts(session_id, UserAnswer)
            application.desk.agents._agents["tea"] = agents(tea=["Milk it is."])["tea"]
            path, body = f"/v1/sessions/{session_id}/answers", {"question_id": question_id, "answer": "milk"}
            key = {"Idempotency-Key": "k"}
            for given, headers in (
                ({**body, "answer": "lemon"}, key),
                (body, {}),
                (body, {"Idempotency-Key": "other"}),
            ):
                self.assertEqual((await ask(application, "POST", path, given, headers=headers)).status, 409)
            self.assertEqual((await ask(application, "GET", f"/v1/sessions/{session_id}")).json["state"], "stopped")
            for _ in range(2):  # also during the run
                self.assertEqual((await ask(application, "POST", path, body, headers=key)).status, 202)
            row = await until_state(application, session_id, "idle")
            await until_free(application)
            self.assertEqual((await ask(application, "POST", path, body, headers=key)).status, 202)
            self.assertEqual(self.texts(session_id, UserAnswer), [stored])
            self.assertEqual(self.texts(session_id, Result)[-1].final_text, "Milk it is.")
            self.assertEqual(store.last_seq(session_id), row["events"])

    async def test_a_session_whose_run_begins_here_after_an_answer_is_never_shown_as_stopped(self):
        gate = Gate()

        class SlowToOpen(SqliteSessionStore):
            def open_writer(self, session_id):
                if any(isinstance(event, UserAnswer) for event in self.iter_events(session_id)):
                    gate.reached.set()
                    gate.open.wait(WAIT_S)
                return super().open_writer(session_id)

        with tempfile.TemporaryDirectory() as folder:
            store = SlowToOpen(Path(folder, "sessions.db"))
            self.addCleanup(store.close)
            application = self.app(store, tea=[ASK, "Milk it is."])
            session_id = await self.start(application)
            row = await until_state(application, session_id, "waiting")
            await until_free(application)
            application.desk.agents._agents["tea"] = agents(tea=["Milk it is."])["tea"]
            body = {"question_id": row["open_questions"][0]["question_id"], "answer": "milk"}
            answering = asyncio.create_task(ask(application, "POST", f"/v1/sessions/{session_id}/answers", body))
            try:
                await asyncio.to_thread(gate.reached.wait, WAIT_S)
                row = (await ask(application, "GET", f"/v1/sessions/{session_id}")).json
                [listed] = (await ask(application, "GET", "/v1/sessions")).json["sessions"]
            finally:
                gate.open.set()
            self.assertEqual((row["state"], listed["state"]), ("running", "running"))
            self.assertEqual((await answering).status, 202)
            await until_state(application, session_id, "idle")
            await until_free(application)
            await application.desk.drain(2.0)

    async def test_a_question_parks_the_run_and_the_answer_that_continues_with_it_names_who_gave_it(self):
        application = self.app(tea=[ASK, "Lemon it is."])
        registry = application.desk.agents
        session_id = await self.start(application)
        row = await until_state(application, session_id, "waiting")
        await until_free(application)  # a parked run occupies no slot
        [question_id] = [question["question_id"] for question in row["open_questions"]]
        path, body = f"/v1/sessions/{session_id}/answers", {"question_id": question_id, "answer": "lemon"}
        self.assertEqual((await ask(application, "POST", path, {**body, "question_id": "x"})).status, 409)
        # The continuing run plays the second turn: each run has its own model.
        registry._agents["tea"] = agents(tea=["Lemon it is."])["tea"]
        both = await asyncio.gather(*(ask(application, "POST", path, body) for _ in range(2)))
        self.assertEqual(sorted(answer.status for answer in both), [202, 409])
        await until_state(application, session_id, "idle")
        [given] = self.texts(session_id, UserAnswer)
        self.assertEqual((given.answer, given.answered_by), ("lemon", "user"))
        self.assertEqual(given.approver, {"name": "user", "how": "server token", "tenant": ""})
        self.assertEqual((await ask(application, "POST", path, body)).status, 409)

    async def test_a_call_that_needs_a_person_runs_once_one_allows_it_and_the_decision_names_them(self):
        gate = Gate()
        gate.open.set()
        call = {"tool_calls": [{"name": "hold", "arguments": {}}]}
        registry = agents(tea=options([call, "Held."], gate.tool(), mode="prompt"))
        application = self.app(registry=registry)
        session_id = await self.start(application)
        row = await until_state(application, session_id, "waiting")
        self.assertFalse(gate.reached.is_set())
        body = {"question_id": row["open_questions"][0]["question_id"], "answer": "yes"}
        await ask(application, "POST", f"/v1/sessions/{session_id}/answers", body)
        await until_state(application, session_id, "idle")
        self.assertTrue(gate.reached.is_set())
        self.assertTrue(self.texts(session_id, PermissionDecision)[-1].allowed)

    async def test_a_message_reaches_the_run_that_continues_and_a_cancel_ends_it(self):
        gate = Gate()
        turns = [{"tool_calls": [{"name": "hold", "arguments": {}}]}, "Done."]
        application = self.app(tea=options(turns, gate.tool()))
        session_id = await self.start(application)
        await asyncio.to_thread(gate.reached.wait, 120)
        path = f"/v1/sessions/{session_id}"
        self.assertEqual((await ask(application, "POST", f"{path}/runs", {"prompt": "x"})).status, 409)
        self.assertEqual((await ask(application, "POST", f"{path}/messages", {"prompt": "Faster."})).status, 202)
        await until_received(application)
        gate.open.set()
        await until_state(application, session_id, "idle")
        self.assertIn(("steering", "Faster."), [(event.origin, event.text) for event in self.texts(session_id)])
        # After its last event, a run still releases its resources; until then it accepts messages.
        while (await ask(application, "POST", f"{path}/cancel", {})).json["was_running"]:
            await asyncio.to_thread(time.sleep, 0.01)
        self.assertEqual((await ask(application, "POST", f"{path}/messages", {"prompt": "x"})).status, 409)

        reached = asyncio.Event()
        application = self.app(tea=options(turns, endless(reached)))
        session_id = await self.start(application)
        await asyncio.wait_for(reached.wait(), WAIT_S)
        cancelled = await ask(application, "POST", f"/v1/sessions/{session_id}/cancel", {})
        self.assertEqual(cancelled.json["was_running"], True)
        self.assertEqual(self.store.read_events(session_id)[-1].stop_reason, "interrupted")

    async def test_a_prompt_whose_run_is_cancelled_before_it_is_stored_is_not_accepted(self):
        release, reached = asyncio.Event(), asyncio.Event()

        async def wait(payload):
            reached.set()
            await release.wait()

        hooks = HookEngine(user_prompt_submit=[HookMatcher("wait", hook=wait)])
        application = self.app(tea=options(["Tea."], hooks=hooks))
        asking = asyncio.create_task(ask(application, "POST", "/v1/sessions", {"prompt": "Go."}))
        await asyncio.wait_for(reached.wait(), 120)
        [session_id] = self.store.list_sessions()
        cancelled = await ask(application, "POST", f"/v1/sessions/{session_id}/cancel", {})
        self.assertTrue(cancelled.json["was_running"])
        self.assertEqual((await asking).status, 409)
        self.assertEqual(self.texts(session_id), [])

    async def test_a_cancel_ends_what_is_parked_or_was_killed_for_good(self):
        application = self.app(tea=[ASK])
        session_id = await self.start(application)
        row = await until_state(application, session_id, "waiting")
        path = f"/v1/sessions/{session_id}"
        self.assertTrue((await ask(application, "POST", f"{path}/cancel", {})).json["was_running"])
        self.assertEqual((await until_state(application, session_id, "idle"))["open_questions"], [])
        body = {"question_id": row["open_questions"][0]["question_id"], "answer": "milk"}
        self.assertEqual((await ask(application, "POST", f"{path}/answers", body)).status, 409)
        [closed] = self.texts(session_id, UserAnswer)
        self.assertEqual((closed.answer, closed.answered_by), ("", "interrupted by user"))
        self.assertFalse((await ask(application, "POST", f"{path}/cancel", {})).json["was_running"])
        assert_closed(self, self.store, session_id)
        again = await ask(application, "POST", f"{path}/runs", {"prompt": "Once more?"})
        self.assertEqual(again.status, 202)

    async def test_forks_and_rewinds_are_sessions_and_events_like_any_other(self):
        application = self.app(tea=["One."])
        session_id = await self.start(application)
        row = await until_state(application, session_id, "idle")
        path = f"/v1/sessions/{session_id}"
        forked = await ask(application, "POST", f"{path}/fork", {"at_seq": 2})
        self.assertEqual(forked.status, 201)
        self.assertEqual([event.seq for event in self.store.read_events(forked.json["session_id"])], [1, 2, 3])
        for wrong in ({"at_seq": 10**6}, {"at_seq": -1}, {"at_seq": True}, {"at_seq": "2"}, {"to": 2}, []):
            self.assertEqual((await ask(application, "POST", f"{path}/fork", wrong)).status, 400, wrong)
        keyed = [
            (await ask(application, "POST", f"{path}/fork", {"at_seq": 2}, headers={"Idempotency-Key": "f"})).json
            for _ in range(2)
        ]
        self.assertEqual(keyed[0], keyed[1])
        other = await ask(application, "POST", f"{path}/fork", {"at_seq": 1}, headers={"Idempotency-Key": "f"})
        self.assertEqual(other.status, 422)
        again = f"/v1/sessions/{keyed[0]['session_id']}/fork"
        of_another = await ask(application, "POST", again, {"at_seq": 2}, headers={"Idempotency-Key": "f"})
        self.assertEqual(of_another.status, 201, "a key is valid within its session")
        rewound = await ask(application, "POST", f"{path}/rewind", {"turns": 1})
        self.assertEqual((rewound.status, rewound.json["type"], rewound.json["to_seq"]), (200, "session.rewound", 1))
        self.assertEqual((await ask(application, "POST", f"{path}/rewind", {})).status, 400)
        self.assertEqual(row["events"] + 1, self.store.last_seq(session_id))

    async def test_invalid_bodies_are_refused_and_leave_no_session(self):
        application = self.app()
        wrong = (
            {},
            {"prompt": None},
            {"prompt": 3},
            {"prompt": ""},
            {"prompt": " \n"},
            {"prompt": []},
            {"prompt": [{"type": "text", "text": ""}]},
            {"prompt": ""[1:], "agent": 3},
            {"prompt": "x", "cwd": "/"},
            {"prompt": "x", "options": {"cwd": "/"}},
            {"prompt": "x", "options": {"permission_mode": "bypass"}},
            {"prompt": "x", "options": {"max_steps": 10**9}},
            {"prompt": [{"type": "image", "path": "/etc/passwd"}]},
            {"prompt": "x", "session_id": "mine"},
            [],
            "x",
            3,
            b'{"prompt": "x", "prompt": "y"}',
            b'{"prompt": "x", "options": {"max_steps": 1, "max_steps": 2}}',
        )
        for body in wrong:
            self.assertEqual((await ask(application, "POST", "/v1/sessions", body)).status, 400, body)
        self.assertEqual((await ask(application, "POST", "/v1/sessions", {"prompt": "x", "agent": "no"})).status, 404)
        self.assertEqual(self.store.list_sessions(), [])

    async def test_runs_beyond_the_limit_are_refused_with_a_time_to_retry(self):
        gate = Gate()
        registry = agents(tea=options([{"tool_calls": [{"name": "hold", "arguments": {}}]}, "Done."], gate.tool()))
        application = app(registry, store=MemorySessionStore(), auth=TOKEN, max_runs=1)
        await self.start(application)
        refused = await ask(application, "POST", "/v1/sessions", {"prompt": "x"})
        self.assertEqual((refused.status, refused.headers["retry-after"]), (429, "2"))
        self.assertEqual(len(application.desk.store.list_sessions()), 1)
        gate.open.set()
        await application.desk.drain(5)
        late = await ask(application, "POST", "/v1/sessions", {"prompt": "x"})
        self.assertEqual((late.status, late.headers["retry-after"]), (503, "1"))


class Retries(DeskCase):
    """The same key is the same request, whoever answers it."""

    async def test_a_retry_runs_nothing_twice_here_or_in_a_process_that_comes_later(self):
        with tempfile.TemporaryDirectory() as folder:
            store = SqliteSessionStore(f"{folder}/s.db")
            self.addCleanup(store.close)
            first = self.app(store)
            key, body = {"Idempotency-Key": "order-1"}, {"prompt": "Once."}
            both = await asyncio.gather(*(ask(first, "POST", "/v1/sessions", body, headers=key) for _ in range(2)))
            self.assertEqual(sorted(answer.status for answer in both), [200, 201])
            session_id = both[0].json["session_id"]
            self.assertEqual(both[1].json["session_id"], session_id)
            await until_state(first, session_id, "idle")
            later = self.app(store)
            again = await ask(later, "POST", "/v1/sessions", body, headers=key)
            self.assertEqual((again.status, again.json["is_new"], again.json["after_seq"]), (200, False, 1))
            other = await ask(later, "POST", "/v1/sessions", {"prompt": "Twice."}, headers=key)
            self.assertEqual(other.status, 422)
            runs = f"/v1/sessions/{session_id}/runs"
            for status, prompt in ((202, "A."), (200, "A."), (422, "B.")):
                answer = await ask(later, "POST", runs, {"prompt": prompt}, headers={"Idempotency-Key": "order-2"})
                self.assertEqual(answer.status, status)
                await until_state(later, session_id, "idle")
            self.assertEqual([event.text for event in self.texts(session_id)], ["Once.", "A."])
            for key_text in ("", "with ~", "x" * 201, "ü", "a b"):
                answer = await ask(
                    later, "POST", runs, {"prompt": "A."}, raw_headers=[(b"idempotency-key", key_text.encode())]
                )
                self.assertEqual(answer.status, 400, key_text)

    async def test_a_rewind_and_a_message_are_taken_once_by_their_key(self):
        with tempfile.TemporaryDirectory() as folder:
            stores = (MemorySessionStore(), SqliteSessionStore(f"{folder}/s.db"), FileSessionStore(f"{folder}/files"))
            for store in stores:
                with self.subTest(type(store).__name__):
                    self.addCleanup(store.close)
                    gate = Gate()
                    hold = {"tool_calls": [{"name": "hold", "arguments": {}}]}
                    application = self.app(store, agents(tea=options([hold, "1", "2", "3", "4"], gate.tool())))
                    session_id = await self.start(application, "One.")
                    path, key = f"/v1/sessions/{session_id}", {"Idempotency-Key": "m-1"}
                    await asyncio.to_thread(gate.reached.wait, 120)
                    both = await asyncio.gather(
                        *(
                            ask(application, "POST", f"{path}/messages", {"prompt": "Two."}, headers=key)
                            for _ in range(2)
                        )
                    )
                    other = await ask(application, "POST", f"{path}/messages", {"prompt": "Three."}, headers=key)
                    self.assertEqual([*(answer.status for answer in both), other.status], [202, 202, 422])
                    await until_received(application)
                    gate.open.set()
                    await until_state(application, session_id, "idle")
                    late = await ask(application, "POST", f"{path}/messages", {"prompt": "Two."}, headers=key)
                    self.assertEqual(late.status, 202, "an accepted request is not refused because its run is over")
                    await ask(application, "POST", f"{path}/runs", {"prompt": "Three."})
                    await until_state(application, session_id, "idle")
                    self.assertEqual([event.text for event in self.texts(session_id)], ["One.", "Two.", "Three."])

                    turn, key = {"turns": 1}, {"Idempotency-Key": "back-1"}
                    first = await ask(application, "POST", f"{path}/rewind", turn, headers=key)
                    again = await ask(self.app(store), "POST", f"{path}/rewind", turn, headers=key)
                    other = await ask(application, "POST", f"{path}/rewind", {"to_seq": 0}, headers=key)
                    self.assertEqual((first.status, again.status, other.status), (200, 200, 422))
                    self.assertEqual(first.json, again.json)
                    self.assertEqual(len(self.texts(session_id, SessionRewound)), 1)

    async def test_a_request_that_waits_for_a_person_is_the_same_run_when_it_is_sent_again(self):
        store = MemorySessionStore()
        application = self.app(store, agents(tea=[ASK, "Milk it is."]))
        made = await self.keyed(application, "/v1/sessions", "first")
        path = f"/v1/sessions/{made['session_id']}"
        for where in ("/v1/sessions", f"{path}/runs"):  # in a new session, and in a continued one
            key = f"key-of-{len(where)}"
            began = await self.keyed(application, where, key)
            place = f"/v1/sessions/{began['session_id']}"
            await until_state(application, began["session_id"], "waiting")
            events = (await ask(application, "GET", f"{place}/events")).json["last_seq"]
            for other in (application, self.app(store, agents(tea=[ASK, "Milk it is."]))):
                again = await self.keyed(other, where, key)
                self.assertEqual(again, {**began, "is_new": False, "after_seq": again["after_seq"]})
            self.assertEqual((await ask(application, "GET", f"{place}/events")).json["last_seq"], events)
            self.assertEqual((await ask(application, "GET", place)).json["state"], "waiting")
        # The second key's prompt has closed the first one's question, which is not asked again either.
        self.assertFalse((await self.keyed(application, "/v1/sessions", "first"))["is_new"])

    async def keyed(self, application, where, key):
        return (await ask(application, "POST", where, {"prompt": "Go."}, headers={"Idempotency-Key": key})).json

    async def test_a_request_that_failed_is_run_again_and_never_shows_an_older_end(self):
        store, gone = MemorySessionStore(), {"error": {"message": "gone"}}
        application = self.app(store, agents(tea=options([gone, "Paris.", "Rome."])))
        ids = {}
        for name, prompt in (("k1", "Italy?"), ("k2", "France?"), ("k1", "Italy?")):
            where = f"/v1/sessions/{ids['session']}/runs" if ids else "/v1/sessions"
            if (name, "runs") in ids:
                where = ids[name, "runs"]
            answer = await ask(application, "POST", where, {"prompt": prompt}, headers={"Idempotency-Key": name})
            ids.setdefault("session", answer.json["session_id"])
            ids.setdefault((name, "runs"), where)
            last = answer.json
            await until_state(application, ids["session"], "failed" if prompt == "Italy?" and len(ids) == 2 else "idle")
        self.assertEqual((last["is_new"], last["session_id"]), (True, ids["session"]))
        ends = [
            event
            for event in store.read_events(ids["session"], after_seq=last["after_seq"])
            if isinstance(event, Result)
        ]
        self.assertEqual([event.final_text for event in ends], ["Rome."])

    async def test_a_prompt_whose_run_died_is_resumed_and_not_stored_twice(self):
        store = MemorySessionStore()
        application = self.app(store)
        key, body = {"Idempotency-Key": "k"}, {"prompt": "Once."}
        made = (await ask(application, "POST", "/v1/sessions", body, headers=key)).json
        await until_state(application, made["session_id"], "idle")
        # The state left by a process that was killed after the prompt.
        events = store.read_events(made["session_id"])
        store.delete_session(made["session_id"])
        store.import_session(made["session_id"], events[:2])
        again = await ask(self.app(store), "POST", "/v1/sessions", body, headers=key)
        self.assertEqual((again.json["session_id"], again.json["is_new"]), (made["session_id"], True))
        await until_state(application, made["session_id"], "idle")
        self.assertEqual([event.text for event in self.texts(made["session_id"])], ["Once."])


class Reading(DeskCase):
    async def test_pages_of_events_have_cursors_that_are_seqs(self):
        application = self.app()
        session_id = await self.start(application)
        row = await until_state(application, session_id, "idle")
        path, count = f"/v1/sessions/{session_id}/events", row["events"]
        seen, after = [], 0
        while after < count:
            page = (await ask(application, "GET", f"{path}?after={after}&limit=2")).json
            seen += [event["seq"] for event in page["events"]]
            after = page["next"]
            self.assertEqual(page["last_seq"], count)
        self.assertEqual(seen, list(range(1, count + 1)))
        self.assertEqual((await ask(application, "GET", f"{path}?after={count}")).json["events"], [])
        for cursor, status in ((count + 1, 409), (10**25, 409), ("-1", 400), ("x", 400), ("1.0", 400), ("%D9%A1", 400)):
            self.assertEqual((await ask(application, "GET", f"{path}?after={cursor}")).status, status, cursor)
        huge = await ask(application, "GET", path, headers={"Last-Event-ID": "9" * 5000})
        self.assertEqual(huge.status, 400)

    async def test_streams_begin_after_the_cursor_and_end_after_the_run(self):
        application = self.app()
        session_id = await self.start(application)
        await until_state(application, session_id, "idle")
        rename_session(application.desk.store, session_id, "Tea")  # the session has ended, and stays so
        count = (await until_state(application, session_id, "idle"))["events"]
        path = f"/v1/sessions/{session_id}/events?until=result"
        for headers, first in (({}, 1), ({"Last-Event-ID": "3"}, 4)):
            answer = await ask(application, "GET", path, headers={"Accept": "text/event-stream", **headers})
            self.assertEqual(answer.headers["content-type"], "text/event-stream")
            self.assertEqual(answer.headers["x-accel-buffering"], "no")
            ids = [int(line[4:]) for line in answer.body.decode().split("\n") if line.startswith("id: ")]
            self.assertEqual(ids, list(range(first, count + 1)))
            lines = [line[6:] for line in answer.body.decode().split("\n") if line.startswith("data: ")]
            self.assertEqual([json.loads(line)["seq"] for line in lines], ids)
        over = {"Accept": "text/event-stream", "Last-Event-ID": str(count)}
        self.assertEqual((await ask(application, "GET", path, headers=over)).status, 204)
        over["Last-Event-ID"] = str(count + 1)
        self.assertIn(b"event: resync\nid:\n", (await ask(application, "GET", path, headers=over)).body)

    async def test_head_gets_the_headers_of_a_stream_and_no_stream(self):
        application = self.app()
        session_id = await self.start(application)
        await until_state(application, session_id, "idle")
        path = f"/v1/sessions/{session_id}/events"
        answer = await ask(application, "HEAD", path, headers={"Accept": "text/event-stream"})
        self.assertEqual((answer.status, answer.body), (200, b""))
        self.assertEqual(answer.headers["content-type"], "text/event-stream")
        ticket = application.guard.new_ticket(Principal())
        self.assertEqual((await ask(application, "HEAD", f"/signin/{ticket}")).status, 405)
        self.assertEqual((await ask(application, "GET", f"/signin/{ticket}")).status, 303)

    async def test_lists_and_searches_name_what_is_there(self):
        application = self.app()
        for prompt in ("green tea", "black tea", "coffee"):
            await until_state(application, await self.start(application, prompt), "idle")
        rows = (await ask(application, "GET", "/v1/sessions")).json["sessions"]
        self.assertEqual([row["label"] for row in rows], ["coffee", "black tea", "green tea"])
        page = (await ask(application, "GET", "/v1/sessions?limit=1&offset=1")).json["sessions"]
        self.assertEqual([row["label"] for row in page], ["black tea"])
        found = (await ask(application, "GET", "/v1/sessions?query=tea")).json["sessions"]
        self.assertEqual(len(found), 2)
        hits = (await ask(application, "GET", "/v1/search?query=green")).json["hits"]
        self.assertEqual([hit["type"] for hit in hits], ["user.message"])
        for wrong in ("limit=x", "limit=-1", "limit=100000", "offset=1e3", "limit=1&limit=2"):
            self.assertEqual((await ask(application, "GET", f"/v1/sessions?{wrong}")).status, 400, wrong)
        named = (await ask(application, "GET", "/v1/agents")).json
        self.assertEqual((named["default"], [agent["name"] for agent in named["agents"]]), ("tea", ["tea"]))


if __name__ == "__main__":
    unittest.main()
