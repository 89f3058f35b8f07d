"""Streams of a real server: cut and continued anywhere, slow readers, many writers, and two servers on one store."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import threading
import unittest
from dataclasses import replace

from openagentic_sdk import open_store
from openagentic_sdk.events import Result, SystemInit, UserMessage
from openagentic_sdk.server import call
from openagentic_sdk.sessions.memory import MemorySessionStore
from tests.size import LARGE, drawn, full_size
from tests.stores.servers import own_postgres_schema
from tests.waiting import until

from .support import ASK, TOKEN, WAIT_S, Gate, Served, agents, options

EVENTS = 21
POSTGRES_URL = os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL", "")


def stored(store, count=EVENTS, session_id=None, text="{}"):
    """A session of this many events."""
    session_id = store.create_session(session_id=session_id)
    store.append_events(session_id, [UserMessage(text.format(n)) for n in range(1, count + 1)])
    return session_id


class Halting:
    """A model that waits in the middle of its answer until it may go on."""

    name = "halting"

    def __init__(self, text, goes_on):
        self.text, self.goes_on = text, goes_on

    async def stream(self, **asked):
        for start in range(0, len(self.text), 5):
            if start == 20:
                await asyncio.to_thread(self.goes_on.wait, WAIT_S)
            yield {"type": "text_delta", "delta": self.text[start : start + 5]}
        yield {"type": "done"}


def until_a_delta(stream):
    """The events up to the first delta."""
    seen = [stream.next()]
    while "id" in seen[-1]:
        seen.append(stream.next())
    return seen


class Resume(unittest.TestCase):
    def setUp(self):
        self.store = MemorySessionStore()
        self.served = Served(store=self.store)
        self.addCleanup(self.served.close)

    def test_a_reader_that_is_cut_after_every_kth_event_sees_each_event_once(self):
        session_id = stored(self.store)
        for k in drawn(range(1, EVENTS), 4):
            seen = []
            while len(seen) < EVENTS:
                cursor = {"Last-Event-ID": str(seen[-1])} if seen else {}
                stream = self.served.stream(f"/v1/sessions/{session_id}/events", **cursor)
                seen += [event["seq"] for event in stream.events(min(k, EVENTS - len(seen)))]
                stream.close()
            self.assertEqual(seen, list(range(1, EVENTS + 1)), k)

    def test_ids_are_seqs_deltas_have_none_and_the_answer_is_complete_even_for_late_followers(self):
        goes_on = threading.Event()
        self.addCleanup(goes_on.set)
        text = "The tea is hot and strong, as it should be."
        asked = replace(options(), provider=Halting(text, goes_on))
        self.served.application.desk._agents = agents(tea=asked)
        session_id = self.served.ask("POST", "/v1/sessions", {"prompt": "Go."}).json["session_id"]
        path = f"/v1/sessions/{session_id}/events?until=result"
        streams = [self.served.stream(path)]
        seen = [until_a_delta(streams[0])]
        streams.append(self.served.stream(path))  # in the middle of the answer
        seen.append(until_a_delta(streams[1]))
        goes_on.set()
        for stream, begun in zip(streams, seen, strict=True):
            events = begun + list(iter(stream.next, None))
            datas = [json.loads(event["data"]) for event in events]
            for event, data in zip(events, datas, strict=True):
                self.assertEqual(event.get("id"), str(data["seq"]) if "seq" in data else None)
            deltas = [data for data in datas if data["type"] == "assistant.delta"]
            self.assertEqual("".join(delta["text_delta"] for delta in deltas), text)
            kinds = [data["type"] for data in datas]
            self.assertLess(len(kinds) - 1 - kinds[::-1].index("assistant.delta"), kinds.index("assistant.message"))
            self.assertEqual(kinds[-1], "result")
            stream.close()

    def test_no_cursor_depends_on_a_clock(self):
        session_id = "an hour back with every event"
        self.store.import_session(session_id, [UserMessage(str(n), seq=n, ts=1e9 - 3600 * n) for n in range(1, 6)])
        session_id = session_id.replace(" ", "%20")
        stream = self.served.stream(f"/v1/sessions/{session_id}/events", **{"Last-Event-ID": "2"})
        self.assertEqual([event["text"] for event in stream.events(3)], ["3", "4", "5"])
        stream.close()

    @full_size
    def test_a_request_sent_right_after_an_event_is_not_too_early(self):
        # The question is visible before its run has parked, the result before the session is unlocked.
        self.served.application.desk._agents = agents(tea=options([ASK, "Tea."] * 5))
        session_id = self.served.ask("POST", "/v1/sessions", {"prompt": "Go."}).json["session_id"]
        path = f"/v1/sessions/{session_id}"
        stream = self.served.stream(f"{path}/events")
        for turn in range(5):
            [event] = stream.events(1)
            while event["type"] != "user.question":
                [event] = stream.events(1)
            body = {"question_id": event["question_id"], "answer": "milk"}
            self.assertEqual(self.served.ask("POST", f"{path}/answers", body).status, 202)
            while event.get("stop_reason") != "end":
                [event] = stream.events(1)
            if turn < 4:
                self.assertEqual(self.served.ask("POST", f"{path}/runs", {"prompt": "Again."}).status, 202)
        stream.close()

    def test_a_session_that_is_deleted_ends_its_streams(self):
        session_id = stored(self.store, 1)
        stream = self.served.stream(f"/v1/sessions/{session_id}/events")
        stream.events(1)
        self.store.delete_session(session_id)
        self.assertEqual(stream.next()["event"], "error")
        self.assertIsNone(stream.next())
        stream.close()

    def test_sixteen_writers_and_four_readers_each_agree_on_the_order(self):
        count, each = (16, 60) if LARGE else (6, 20)
        ids = [self.store.create_session() for _ in range(count)]
        readers = [(name, self.served.stream(f"/v1/sessions/{name}/events")) for name in ids for _ in range(4)]
        seen = {}

        def read(at, stream):
            seen[at] = [(event["seq"], event["text"]) for event in stream.events(each)]

        def write(name):
            for n in range(each):
                self.store.append_event(name, UserMessage(f"{name} {n}"))

        threads = [threading.Thread(target=read, args=(at, stream)) for at, (_, stream) in enumerate(readers)]
        threads += [threading.Thread(target=write, args=(name,)) for name in ids]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        for at, (name, stream) in enumerate(readers):
            self.assertEqual(seen[at], [(event.seq, event.text) for event in self.store.read_events(name)])
            stream.close()


class SlowReaders(unittest.TestCase):
    """A client that does not read its response costs a bounded time and memory, and can continue later."""

    def setUp(self):
        self.send_s = call.SEND_S
        self.addCleanup(setattr, call, "SEND_S", self.send_s)
        call.SEND_S = 0.3

    @full_size
    def test_a_stalled_reader_slows_no_run_and_is_dropped_and_resumes(self):
        text = "x" * 20_000
        served = Served(agents(tea=[{"text": text, "deltas": 0}] * 2))
        self.addCleanup(served.close)
        session_id = stored(served.store, 400 if LARGE else 300, text=text + "{}")
        request = f"GET /v1/sessions/{session_id}/events HTTP/1.1\r\nHost: {served.host}\r\n"
        request += f"Authorization: Bearer {TOKEN}\r\nAccept: text/event-stream\r\n\r\n"
        with served.connect(small_buffers=True) as sock:
            sock.sendall(request.encode())
            started = served.ask("POST", f"/v1/sessions/{session_id}/runs", {"prompt": "Go."})
            self.assertEqual(started.status, 202)
            until(
                lambda: served.store.read_summary(session_id).state != "running", "the run waits for no reader", WAIT_S
            )
            until(lambda: served.server.connections == 0, "the stalled reader is dropped", WAIT_S)
        call.SEND_S = self.send_s  # a busy machine must not make this client look stalled
        last = served.store.last_seq(session_id)
        stream = served.stream(f"/v1/sessions/{session_id}/events?until=result", **{"Last-Event-ID": "5"})
        self.assertEqual([event["seq"] for event in stream.events()], list(range(6, last + 1)))
        stream.close()


class TwoServers(unittest.TestCase):
    """Two servers on one store: clients need not return to the same one."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.gate = Gate()
        turns = [ASK, {"tool_calls": [{"name": "hold", "arguments": {}}]}, "Tea."]
        # After the first turn, the other server asks the model, and then either of them.
        url = self.store_url(folder.name)
        self.servers = [self.serve(url, played) for played in (turns, turns[1:])]

    def store_url(self, folder):
        return f"sqlite:{folder}/s.db"

    def serve(self, url, turns):
        store = open_store(url)
        served = Served(agents(tea=options(turns, self.gate.tool())), store=store)
        self.addCleanup(store.close)
        self.addCleanup(served.close)
        return served

    def test_events_answers_and_refusals_are_the_same_at_both(self):
        one, two = self.servers
        session_id = one.ask("POST", "/v1/sessions", {"prompt": "Go."}).json["session_id"]
        path = f"/v1/sessions/{session_id}"
        reader = two.stream(f"{path}/events")
        seen = reader.events(1)
        while seen[-1]["type"] != "result":
            seen += reader.events(1)
        [question] = [event for event in seen if event["type"] == "user.question"]
        body = {"question_id": question["question_id"], "answer": "milk"}
        self.assertEqual(two.ask("POST", f"{path}/answers", body).status, 202)
        self.assertEqual(one.ask("POST", f"{path}/answers", body).status, 409)
        self.assertTrue(self.gate.reached.wait(WAIT_S))
        refused = one.ask("POST", f"{path}/runs", {"prompt": "x"})
        self.assertEqual((refused.status, refused.headers["retry-after"]), (409, "1"))
        reader.close()
        self.gate.open.set()
        reader = one.stream(f"{path}/events?until=result", **{"Last-Event-ID": str(seen[-1]["seq"])})
        seen += reader.events()
        reader.close()
        events = one.store.read_events(session_id)
        stored_seqs = [event["seq"] for event in seen if "seq" in event]
        self.assertEqual(stored_seqs, [event.seq for event in events])
        self.assertIsInstance(events[-1], Result)
        self.assertEqual(sum(isinstance(event, SystemInit) for event in events), 2)

    def start_and_answer(self, one, two):
        """A run that continues at the second server, in its call of `hold`."""
        session_id = one.ask("POST", "/v1/sessions", {"prompt": "Go."}).json["session_id"]
        row = self.until(one, session_id, "waiting")
        body = {"question_id": row["open_questions"][0]["question_id"], "answer": "milk"}
        self.assertEqual(two.ask("POST", f"/v1/sessions/{session_id}/answers", body).status, 202)
        self.assertTrue(self.gate.reached.wait(WAIT_S))
        return session_id

    def until(self, served, session_id, *states):
        def row():
            found = served.ask("GET", f"/v1/sessions/{session_id}").json
            return found if found["state"] in states else None

        return until(row, f"the session is {' or '.join(states)}", WAIT_S)

    def test_a_message_to_one_server_reaches_the_run_of_the_other_once(self):
        one, two = self.servers
        session_id = self.start_and_answer(one, two)
        for text in ("Sugar.", "Two lumps."):
            answer = one.ask("POST", f"/v1/sessions/{session_id}/messages", {"prompt": text})
            self.assertEqual(answer.status, 202)
        until(lambda: len(two.application.desk.messages._delivered) == 2, "the run has received both", WAIT_S)
        self.gate.open.set()
        self.until(one, session_id, "idle")
        said = [event for event in one.store.read_events(session_id) if isinstance(event, UserMessage)]
        self.assertEqual(
            [(event.origin, event.text) for event in said[1:]], [("steering", "Sugar."), ("steering", "Two lumps.")]
        )
        self.until_all_are_taken(session_id)
        until(lambda: not one.store.is_held(session_id), "the other server has let go of the session", WAIT_S)
        self.assertEqual(one.ask("POST", f"/v1/sessions/{session_id}/messages", {"prompt": "Late."}).status, 409)

    def test_a_cancel_at_one_server_ends_the_run_of_the_other_and_what_waits(self):
        one, two = self.servers
        session_id = self.start_and_answer(one, two)
        run = two.application.desk._runs[session_id]
        self.assertTrue(one.ask("POST", f"/v1/sessions/{session_id}/cancel", {}).json["was_running"])
        until(lambda: run._requested_end == "cancel", "the other server has taken the cancel", WAIT_S)
        self.gate.open.set()  # a tool that runs in a thread ends only by itself
        self.until(one, session_id, "idle")
        self.assertEqual(one.store.read_events(session_id)[-1].stop_reason, "interrupted")
        until(lambda: not one.store.is_held(session_id), "the other server has let go of the session", WAIT_S)
        self.assertFalse(one.ask("POST", f"/v1/sessions/{session_id}/cancel", {}).json["was_running"])
        self.until_all_are_taken(session_id)

    def test_a_cancel_that_came_for_an_earlier_run_ends_no_later_one(self):
        one, two = self.servers
        session_id = self.start_and_answer(one, two)
        began = two.application.desk._runs[session_id].first_seq
        one.store.put_message(session_id, {"do": "cancel", "by": "user", "seq": began - 1})
        self.until_all_are_taken(session_id)
        self.gate.open.set()
        self.until(one, session_id, "idle")
        self.assertEqual(one.store.read_events(session_id)[-1].stop_reason, "end")

    def until_all_are_taken(self, session_id):
        until(lambda: not self.servers[0].store.read_messages([session_id]), "all messages are taken", WAIT_S)


@unittest.skipUnless(POSTGRES_URL, "no server is named by OPENAGENTIC_TEST_POSTGRES_URL")
class OverPostgres(TwoServers):
    def store_url(self, folder):
        return own_postgres_schema(self, POSTGRES_URL)


if __name__ == "__main__":
    unittest.main()
