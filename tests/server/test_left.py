"""A request that its process left, suspended or dead: another server continues it, and every protocol delivers the rest."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
import unittest
from collections import Counter
from pathlib import Path
from typing import Any

from openagentic_sdk.events import AssistantMessage, Result, SystemInit, UserMessage, UserQuestion
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.server import abandoned
from openagentic_sdk.server.asgi import Application, app
from openagentic_sdk.server.responses import response_id
from openagentic_sdk.sessions.memory import MemorySessionStore
from tests.size import full_size
from tests.waiting import until_async

from .support import ASK, AUTH, TOKEN, WAIT_S, Answer, Gate, agents, ask, options, until_state

SSE = {"Accept": "text/event-stream"}
HOLD = {"text": "I look.", "tool_calls": [{"name": "hold", "arguments": {}}]}


async def socket_events(application: Application, session_id: str, after_seq: int, last: str) -> list[Any]:
    """The messages of a WebSocket up to the first one of this type."""
    coming, done, got = asyncio.Queue[Any](), asyncio.Event(), list[Any]()
    coming.put_nowait({"type": "websocket.connect"})

    async def send(message: Any) -> None:
        if message["type"] == "websocket.send":
            got.append(json.loads(message["text"]))
            if got[-1]["type"] == last and got[-1].get("stop_reason") != "suspended":
                coming.put_nowait({"type": "websocket.disconnect", "code": 1000})
                done.set()

    headers = [(name.lower().encode(), value.encode()) for name, value in {**AUTH, "Host": "127.0.0.1:8000"}.items()]
    path = f"/v1/sessions/{session_id}/events"
    scope = {"type": "websocket", "scheme": "ws", "path": path, "raw_path": path.encode(), "headers": headers}
    scope |= {"query_string": f"after={after_seq}".encode(), "server": ("127.0.0.1", 8000), "root_path": ""}
    await asyncio.wait_for(application(scope, coming.get, send), WAIT_S)
    assert done.is_set(), got
    return got


class AbandonedRuns(unittest.IsolatedAsyncioTestCase):
    def server(self, store: Any, agent: Any, **more: Any) -> Application:
        application = app(agent if agent is None else agents(tea=agent), store=store, auth=TOKEN, **more)
        application.desk.left.look_s = 0.02
        application.desk.open()
        self.addAsyncCleanup(application.desk.drain, 2.0)
        return application

    async def leave(self, how: str, start: Any) -> tuple[Any, str, list[Any]]:
        """A store with a session whose run was left in the middle of a call, and what its client had received by then."""
        gate, store = Gate(), MemorySessionStore()
        self.addCleanup(gate.open.set)
        one = self.server(store, options([HOLD, "Milk."], gate.tool()), grace_s=0.0)
        asking = asyncio.create_task(start(one))
        await asyncio.to_thread(gate.reached.wait, WAIT_S)
        [session_id] = store.list_sessions()
        if how == "dead":  # the state after kill -9: the log, without a writer
            killed = MemorySessionStore()
            killed.create_session(metadata=store.read_metadata(session_id)["metadata"], session_id=session_id)
            killed.append_events(session_id, store.read_events(session_id))
        one.desk.stop_taking()
        gate.open.set() if how == "dead" else None
        await one.desk.drain(0.0)
        answer = await asking
        return (killed if how == "dead" else store), session_id, answer.messages()

    def check_log(self, store: Any, session_id: str) -> None:
        events = store.read_events(session_id)
        self.assertEqual([event.text for event in events if isinstance(event, UserMessage)], ["Tea?"])
        self.assertEqual([event.text for event in events if isinstance(event, AssistantMessage)], ["I look.", "Milk."])
        ends = [event.stop_reason for event in events if isinstance(event, Result)]
        self.assertIn(ends, (["end"], ["suspended", "end"]))
        self.assertEqual(len([event for event in events if isinstance(event, SystemInit)]), 2)

    async def test_another_server_continues_and_every_protocol_delivers_the_rest(self) -> None:
        body = {"agent": "tea", "prompt": "Tea?"}

        async def start(one: Application) -> Answer:
            return await ask(one, "POST", "/v1/sessions", body)

        for how, state in (("suspended", "suspended"), ("dead", "stopped")):
            with self.subTest(how):
                store, session_id, _ = await self.leave(how, start)
                last_seq = store.last_seq(session_id)
                [said] = [event for event in store.read_events(session_id) if isinstance(event, UserMessage)]
                response = f"/v1/responses/{response_id(session_id, said.request_id)}"
                events = f"/v1/sessions/{session_id}/events"
                two = app(agents(tea=["Milk."]), store=store, auth=TOKEN)
                two.desk.left.look_s = 0.1
                self.addAsyncCleanup(two.desk.drain, 2.0)
                self.assertEqual((await ask(two, "GET", f"/v1/sessions/{session_id}")).json["state"], state)
                shown = (await ask(two, "GET", response)).json
                self.assertIn(shown["status"], ("queued", "in_progress"))
                self.assertEqual(shown["output"][0]["content"][0]["text"], "I look.")
                call = {"name": "show_session", "arguments": {"session_id": session_id}}
                rpc = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
                both = {"Accept": "application/json, text/event-stream"}
                shown = await ask(two, "POST", "/mcp", rpc, headers=both)
                self.assertIn(f"state: {state}", shown.body.decode())
                sse, whole, streamed, socket = await asyncio.gather(
                    ask(two, "GET", f"{events}?until=result", headers={**SSE, "Last-Event-ID": str(last_seq)}),
                    ask(two, "GET", f"{events}?until=result", headers=SSE),
                    ask(two, "GET", f"{response}?stream=true", headers=SSE),
                    socket_events(two, session_id, last_seq, "result"),
                )
                self.check_log(store, session_id)
                stored = [event.seq for event in store.read_events(session_id)]
                seqs = [
                    [each["seq"] for each in got if "seq" in each] for got in (sse.messages(), whole.messages(), socket)
                ]
                self.assertEqual(seqs, [stored[last_seq:], stored, stored[last_seq:]])
                last = streamed.messages()[-1]
                self.assertEqual((last["type"], last["response"]["status"]), ("response.completed", "completed"))
                self.assertEqual((await ask(two, "GET", response)).json, last["response"])
                texts = [item["content"][0]["text"] for item in last["response"]["output"]]
                self.assertEqual(texts, ["I look.", "Milk."])
                cursor = streamed.messages()[3]["sequence_number"]
                rest = await ask(two, "GET", f"{response}?stream=true&starting_after={cursor}", headers=SSE)
                self.assertEqual(rest.messages(), streamed.messages()[4:])

    async def test_any_number_of_requests_is_continued(self) -> None:
        self.addCleanup(setattr, abandoned, "SCAN_ROWS", abandoned.SCAN_ROWS)
        abandoned.SCAN_ROWS = 2
        store, gate = MemorySessionStore(), Gate()
        self.addCleanup(gate.open.set)
        one = self.server(store, options([HOLD, "Milk."] * 5, gate.tool()))
        for _ in range(5):
            await ask(one, "POST", "/v1/sessions", {"prompt": "Tea?"})
        await asyncio.to_thread(gate.reached.wait, WAIT_S)
        await one.desk.drain(0.0)
        two = app(agents(tea=["Milk."]), store=store, auth=TOKEN)
        two.desk.left.look_s = two.desk.left.scan_s = 0.02
        two.desk.open()
        self.addAsyncCleanup(two.desk.drain, 2.0)
        for name in store.list_sessions():
            await until_async(lambda name=name: store.read_summary(name).state == "idle", name, WAIT_S)

    async def test_polling_a_session_waits_no_longer_than_following_it(self) -> None:
        async def start(one: Application) -> Answer:
            return await ask(one, "POST", "/v1/sessions", {"prompt": "Tea?"})

        left, session_id, _ = await self.leave("suspended", start)
        listed = asyncio.Event()
        loop = asyncio.get_running_loop()

        class Listed(MemorySessionStore):
            def list_session_summaries(self, **asked: Any) -> Any:
                loop.call_soon_threadsafe(listed.set)
                return super().list_session_summaries(**asked)

        store = Listed()
        two = app(agents(tea=["Milk."]), store=store, auth=TOKEN)
        two.desk.left.look_s, two.desk.left.scan_s = 0.02, 1e9
        two.desk.open()
        self.addAsyncCleanup(two.desk.drain, 2.0)
        await asyncio.wait_for(
            listed.wait(), WAIT_S
        )  # it has searched for abandoned requests, and does not search again
        store.create_session(metadata=left.read_metadata(session_id)["metadata"], session_id=session_id)
        store.append_events(session_id, left.read_events(session_id))
        await until_state(two, session_id, "idle")
        self.check_log(store, session_id)

    async def test_a_followed_session_at_rest_is_not_read_again_until_its_log_grows(self) -> None:
        reads = Counter[str]()

        class Counted(MemorySessionStore):
            def read_summary(self, session_id: str) -> Any:
                reads[session_id] += 1
                return super().read_summary(session_id)

        async def are_read(name: str, times: int) -> None:
            enough = reads[name] + times
            await until_async(lambda: reads[name] >= enough, f"{name} is read {times} times")

        store = Counted()
        prompt = [SystemInit(session_id="s", cwd="/", sdk_version="1"), UserMessage("Tea?")]
        parked = [UserQuestion("q", "Sugar?", ()), Result("", "s", "waiting")]
        for name, end in (("rests", [Result("Milk.", "s", "end")]), ("parked", parked)):
            store.create_session(session_id=name)
            store.append_events(name, [*prompt, *end])
        two = self.server(store, ["Milk."])
        two.desk.left.scan_s = 1e9
        async with (
            two.desk.follow_known("rests", after_seq=0) as follower,
            two.desk.follow_known("parked", after_seq=0) as other,
        ):
            await follower.batch()
            await other.batch()
            await are_read("parked", 3)
            before = reads["rests"]
            await are_read("parked", 5)
            self.assertEqual(reads["rests"], before)
            store.append_events("rests", prompt)
            self.assertTrue(await follower.batch(WAIT_S))
            await are_read("rests", 2)

    async def test_a_request_that_is_slow_to_begin_blocks_no_other(self) -> None:
        async def start(one: Application) -> Answer:
            return await ask(one, "POST", "/v1/sessions", {"prompt": "Tea?"})

        class Slow(MemorySessionStore):
            """Returns the metadata that a run needs to begin once it was requested for every session."""

            def read_metadata(self, session_id: str) -> Any:
                asked.add(session_id)
                if asked == names:
                    all_have.set()
                return super().read_metadata(session_id) if all_have.wait(WAIT_S) else None

        store, names, asked, all_have = Slow(), set[str](), set[str](), threading.Event()
        for _ in range(2):
            left, name, _ = await self.leave("suspended", start)
            names.add(store.create_session(metadata=left.read_metadata(name)["metadata"], session_id=name))
            store.append_events(name, left.read_events(name))
        two = self.server(store, ["Milk.", "Milk."])
        for name in names:
            await until_state(two, name, "idle")
            self.check_log(store, name)

    async def test_a_server_that_ends_takes_up_nothing_more(self) -> None:
        async def start(one: Application) -> Answer:
            return await ask(one, "POST", "/v1/sessions", {"prompt": "Tea?"})

        store, session_id, _ = await self.leave("suspended", start)
        before = store.read_events(session_id)
        two = app(agents(tea=["Milk."]), store=store, auth=TOKEN)
        left = two.desk.find_left(session_id)
        assert left is not None
        two.desk.stop_taking()
        await two.desk.go_on_with(left)
        await two.desk.drain(0.0)
        self.assertEqual(store.read_events(session_id), before)

    async def test_readers_of_a_run_that_was_killed_while_asking_learn_that_it_waits(self) -> None:
        asked = MemorySessionStore()
        one = self.server(asked, [ASK])
        body = {"input": "Tea?", "model": "tea", "background": True}
        response = (await ask(one, "POST", "/v1/responses", body)).json["id"]
        [session_id] = asked.list_sessions()
        await until_state(one, session_id, "waiting")
        await one.desk.drain(2.0)
        log = asked.read_events(session_id)
        [question] = [event for event in log if isinstance(event, UserQuestion)]
        store = MemorySessionStore()
        store.create_session(metadata=asked.read_metadata(session_id)["metadata"], session_id=session_id)
        store.append_events(session_id, log[: question.seq])
        two = self.server(store, ["Milk."])
        thread = {"threadId": session_id, "runId": "r", "messages": []}
        events, streamed, run = await asyncio.gather(
            ask(two, "GET", f"/v1/sessions/{session_id}/events?until=result", headers=SSE),
            ask(two, "GET", f"/v1/responses/{response}?stream=true", headers=SSE),
            ask(two, "POST", "/v1/ag-ui/tea", thread, headers=SSE),
        )
        self.assertEqual((events.messages()[-1]["type"], events.messages()[-1]["stop_reason"]), ("result", "waiting"))
        self.assertEqual(streamed.messages()[-1]["type"], "response.incomplete")
        self.assertEqual(run.messages()[-1]["type"], "RUN_ERROR")  # its protocol now accepts only an answer
        self.assertIn(question.question_id, run.messages()[-1]["message"])
        path = f"/v1/sessions/{session_id}/answers"
        answer = await ask(two, "POST", path, {"question_id": question.question_id, "answer": "milk"})
        self.assertEqual(answer.status, 202, answer.body)
        await until_state(two, session_id, "idle")
        self.assertEqual(len([event for event in store.read_events(session_id) if isinstance(event, UserQuestion)]), 1)

    async def test_an_answer_that_was_cut_when_its_process_ended_is_asked_for_again(self) -> None:
        shown, store = asyncio.Event(), MemorySessionStore()

        class Slow:
            name = "slow"

            async def stream(self, **asked: Any) -> Any:
                yield {"type": "text_delta", "delta": "Half of"}
                shown.set()
                await asyncio.Event().wait()

        slow = OpenAgenticOptions(provider=Slow(), model="slow", tools=[], system_prompt="A test.")
        one = self.server(store, slow, grace_s=0.0)
        made = await ask(one, "POST", "/v1/sessions", {"prompt": "Tea?"})
        await asyncio.wait_for(shown.wait(), WAIT_S)
        await one.desk.drain(0.0)
        session_id = made.json["session_id"]
        self.assertEqual(store.read_events(session_id)[-1].stop_reason, "suspended")
        two = self.server(store, ["Half of it is gone."])
        await until_state(two, session_id, "idle")
        log = store.read_events(session_id)
        self.assertEqual([event.text for event in log if isinstance(event, AssistantMessage)], ["Half of it is gone."])
        self.assertEqual([event.stop_reason for event in log if isinstance(event, Result)], ["suspended", "end"])

    @full_size
    async def test_an_ag_ui_client_returns_to_its_thread_under_the_same_run_and_under_another(self) -> None:
        run = {"threadId": "t", "runId": "r", "state": {}, "tools": [], "context": [], "messages": []}
        run["messages"] = [{"id": "m", "role": "user", "content": "Tea?"}]

        async def start(one: Application) -> Answer:
            return await ask(one, "POST", "/v1/ag-ui/tea", run, headers=SSE)

        for how in ("suspended", "dead"):
            for run_id in ("r", "r2"):
                with self.subTest(how, run_id=run_id):
                    store, session_id, had = await self.leave(how, start)
                    self.assertEqual((had[-1]["type"], had[-1]["code"]), ("RUN_ERROR", "suspended"))
                    ids = [each["messageId"] for each in had if each["type"] == "TEXT_MESSAGE_START"]
                    partial = [{"id": wire_id, "role": "assistant", "content": "I l"} for wire_id in ids]
                    again = {**run, "runId": run_id, "messages": [*run["messages"], *partial]}
                    two = self.server(store, ["Milk."])
                    got = (await ask(two, "POST", "/v1/ag-ui/tea", again, headers=SSE)).messages()
                    self.check_log(store, session_id)
                    self.assertEqual((got[0]["type"], got[-1]["type"]), ("RUN_STARTED", "RUN_FINISHED"))
                    self.assertEqual(got[-1]["outcome"], {"type": "success"})
                    snapshot = got[1]
                    self.assertEqual(snapshot["type"], "MESSAGES_SNAPSHOT")
                    self.assertEqual([each["content"] for each in snapshot["messages"]], ["Tea?"])
                    text = [each["delta"] for each in got if each["type"] == "TEXT_MESSAGE_CONTENT"]
                    self.assertEqual("".join(text), "I look.Milk.")
                    said = [{"id": "m2", "role": "user", "content": "Thanks."}]
                    messages = [*snapshot["messages"], *ids_of(got), *said]
                    more = {**run, "runId": "r3", "messages": messages}
                    got = (await ask(two, "POST", "/v1/ag-ui/tea", more, headers=SSE)).messages()
                    self.assertEqual(got[-1]["type"], "RUN_FINISHED", got)
                    self.assertNotIn("MESSAGES_SNAPSHOT", [each["type"] for each in got], "it has received all of them")

    async def test_if_nobody_can_resume_a_run_every_reader_gets_its_end(self) -> None:
        async def start(one: Application) -> Answer:
            return await ask(one, "POST", "/v1/sessions", {"agent": "tea", "prompt": "Tea?"})

        store, session_id, _ = await self.leave("dead", start)
        before = store.read_events(session_id)
        [said] = [event for event in before if isinstance(event, UserMessage)]
        response = f"/v1/responses/{response_id(session_id, said.request_id)}"
        events = f"/v1/sessions/{session_id}/events?until=result"
        two = app(agents(coffee=["Milk."]), store=store, auth=TOKEN)
        two.desk.left.look_s = 0.02
        two.desk.open()
        self.addAsyncCleanup(two.desk.drain, 2.0)
        sse, streamed, socket = await asyncio.gather(
            ask(two, "GET", events, headers=SSE),
            ask(two, "GET", f"{response}?stream=true", headers=SSE),
            socket_events(two, session_id, 0, "left"),
        )
        self.assertIn("this server has no agent 'tea'", socket[-1]["message"])
        self.assertIn(b"event: left", sse.body)
        self.assertEqual(sse.messages()[-1], {"message": socket[-1]["message"]})
        last = streamed.messages()[-1]
        self.assertEqual((last["type"], last["response"]["status"]), ("response.incomplete", "incomplete"))
        shown = (await ask(two, "GET", response)).json
        self.assertEqual((shown["status"], shown["incomplete_details"]), ("incomplete", {"reason": "steered"}))
        self.assertEqual(shown["metadata"]["stop_reason"], "dead")
        again = await ask(two, "GET", events, headers={**SSE, "Last-Event-ID": str(before[-1].seq)})
        self.assertEqual(again.status, 204)
        self.assertEqual(store.read_events(session_id), before, "and nothing was written")

    async def test_a_host_with_another_key_accepts_no_answer_and_resumes_nothing(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = (str(Path(folder, name)) for name in ("ours.key", "theirs.key"))
            store = MemorySessionStore()
            one = self.server(store, options([ASK, "Milk it is."], key_file=ours))
            asked = {"agent": "tea", "prompt": "Tea?"}
            session_id = (await ask(one, "POST", "/v1/sessions", asked)).json["session_id"]
            row = await until_state(one, session_id, "waiting")
            path = f"/v1/sessions/{session_id}/answers"
            answer = {"question_id": row["open_questions"][0]["question_id"], "answer": "milk"}
            before = store.last_seq(session_id)
            two = self.server(store, options(["Milk."], key_file=theirs))
            refused = await ask(two, "POST", path, answer)
            self.assertEqual((refused.status, store.last_seq(session_id)), (409, before), refused.body)
            self.assertIn("another key", refused.json["error"]["message"])
            three = self.server(store, options(["Milk it is."], key_file=ours))
            self.assertEqual((await ask(three, "POST", path, answer)).status, 202)
            await until_state(three, session_id, "idle")

    async def test_one_of_many_servers_continues_and_a_request_that_kills_them_ends(self) -> None:
        async def start(one: Application) -> Answer:
            return await ask(one, "POST", "/v1/sessions", {"agent": "tea", "prompt": "Tea?"})

        store, session_id, _ = await self.leave("dead", start)
        servers = [self.server(store, ["Milk."]) for _ in range(4)]
        await until_state(servers[0], session_id, "idle")
        for each in servers:
            await each.desk.drain(2.0)
        self.check_log(store, session_id)
        store, session_id, _ = await self.leave("dead", start)
        [init, *_] = store.read_events(session_id)
        for _ in range(9):
            store.append_event(session_id, init)
        row = await until_state(self.server(store, ["Milk."]), session_id, "failed")
        [*_, last] = store.read_events(session_id)
        self.assertEqual((row["events"], last.stop_reason, last.error_type), (last.seq, "error", "ProcessLost"))
        self.assertIn("10 processes died", last.error_message)

    async def test_a_parked_response_is_incomplete_and_continues_with_its_answer_or_is_cancelled_by_another_prompt(
        self,
    ):
        for instead in (False, True):
            store = MemorySessionStore()
            one = self.server(store, options([ASK, "Milk it is."]))
            parked = (await ask(one, "POST", "/v1/responses", {"model": "tea", "input": "Tea?"})).json
            self.assertEqual((parked["status"], parked["incomplete_details"]), ("incomplete", {"reason": "steered"}))
            self.assertEqual(parked["metadata"]["stop_reason"], "waiting")
            path, session_id = f"/v1/responses/{parked['id']}", parked["id"].split("_")[1]
            if instead:
                await ask(one, "POST", f"/v1/sessions/{session_id}/runs", {"prompt": "Never mind."})
            else:
                answer = {"question_id": parked["metadata"]["question_id"], "answer": "milk"}
                await ask(one, "POST", f"/v1/sessions/{session_id}/answers", answer)
            await until_state(one, session_id, "idle")
            shown = (await ask(one, "GET", path)).json
            streamed = (await ask(one, "GET", f"{path}?stream=true", headers=SSE)).messages()
            status, texts = ("cancelled", []) if instead else ("completed", ["Milk it is."])
            self.assertEqual((shown["status"], streamed[-1]["response"]["status"]), (status, status))
            self.assertEqual([item["content"][0]["text"] for item in shown["output"]], texts)
            self.assertEqual([each["type"] for each in streamed].count("response.incomplete"), instead)


def ids_of(messages: list[Any]) -> list[Any]:
    starts = [each["messageId"] for each in messages if each["type"] == "TEXT_MESSAGE_START"]
    return [{"id": wire_id, "role": "assistant", "content": ""} for wire_id in starts]
