"""Clients and a proxy written by others, against a real server."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

from openagentic_sdk.agents import Agents, NamedAgent
from openagentic_sdk.events import UserMessage
from openagentic_sdk.sessions.memory import MemorySessionStore
from tests.pythons import Process
from tests.size import full_size
from tests.waiting import until

from ..ports import free_port, until_listens
from .support import ASK, TOKEN, WAIT_S, Gate, Served, agents, options

NODE = os.environ.get("OPENAGENTIC_TEST_NODE")
ROOT = Path(__file__).parents[2]
DOCUMENTED = ROOT / "docs" / "serving.md"
NAME = "agents.example.com"
NGINX = os.environ.get("OPENAGENTIC_TEST_NGINX")
CURL = shutil.which("curl")
NO_NODE = "OPENAGENTIC_TEST_NODE and OPENAGENTIC_TEST_NODE_MODULES name Node with .ci/package.json"


def stored(store, count=21):
    session_id = store.create_session()
    store.append_events(session_id, [UserMessage(str(n)) for n in range(count)])
    return session_id


class NodeCase(unittest.TestCase):
    def client(self, name, served, session_id):
        script = Path(__file__).with_name("clients.mjs")
        command = [NODE, os.fspath(script), name, str(served.port), TOKEN, session_id]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S * 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)


@unittest.skipUnless(NODE, NO_NODE)
class Node(NodeCase):
    def test_eventsource_continues_by_itself_when_its_connection_is_cut_again_and_again(self):
        store = MemorySessionStore()
        session_id = stored(store, 0)
        served = Served(store=store)
        self.addCleanup(served.close)
        followers = served.application.desk.followers

        def feed():
            for n in range(21):
                store.append_event(session_id, UserMessage(str(n)))
                if n in (6, 13):  # not after the last event: the client leaves when it has received that
                    until(lambda: any(each.after_seq > n for each in list(followers)), "the client is sent the event")  # noqa: B023
                    served.loop.call_soon_threadsafe(
                        lambda: [each.close() for each in list(served.server._connections)]
                    )
                    until(lambda: not followers, "its connection is cut")

        feeding = threading.Thread(target=feed)
        feeding.start()
        self.addCleanup(feeding.join)
        found = self.client("eventsource", served, session_id)
        self.assertEqual(found["seen"], [[n, n] for n in range(1, 22)])
        self.assertGreaterEqual(found["opens"], 2)

    def test_ws_reads_pings_and_posts(self):
        store = MemorySessionStore()
        session_id = stored(store)
        served = Served(store=store)
        self.addCleanup(served.close)
        found = self.client("websocket", served, session_id)
        self.assertEqual([each for each in found["seen"] if isinstance(each, int)], list(range(1, 22)))
        self.assertIn("pong there?", found["seen"])
        self.assertEqual((found["seen"][-1], found["code"]), ([404, 200_000], 1000))

    def test_the_agent_of_ag_ui_runs_is_interrupted_and_continues(self):
        served = Served(agents(tea=options([ASK, "Lemon tea."])))
        self.addCleanup(served.close)
        found = self.client("agui", served, "none")
        self.assertEqual(found["waiting"]["message"], "Milk or lemon?")
        texts = [message.get("content") for message in found["messages"] if message["role"] == "assistant"]
        self.assertEqual(texts[-1], "Lemon tea.")


@unittest.skipUnless(NODE, NO_NODE)
class NodeResponses(NodeCase):
    """Clients of OpenAI's API for Node, which were not made for this server."""

    TEXT = "Hello there, and tea."

    def found(self, name):
        turns = [{"text": self.TEXT, "deltas": 2}]
        accepts = {"tea": ["instructions", "history"], "strict": []}
        registry = {key: NamedAgent(lambda: options(turns), accepts=words) for key, words in accepts.items()}
        fails = [{"error": {"type": "http", "status": 400, "message": "there is no such model"}}]
        more = {"asks": NamedAgent(lambda: options([ASK])), "fails": NamedAgent(lambda: options(fails))}
        served = Served(Agents({**registry, **more}))
        self.addCleanup(served.close)
        return self.client(name, served, "none"), served

    def test_openai_creates_lists_streams_cuts_continues_and_cancels(self):
        found, _ = self.found("openai")
        texts = [found[name] for name in ("plain", "streamed", "whole")]
        self.assertEqual(texts, [self.TEXT] * 3)
        self.assertEqual(found["models"], ["tea", "strict", "asks", "fails"])
        self.assertTrue(found["behind"])
        self.assertEqual(found["missing"], [True, "session_not_found"])
        self.assertEqual((found["status"], found["metadata"]), ("completed", {"table": "4"}))

    def test_langchain_streams_and_shows_why_a_system_message_is_refused(self):
        found, _ = self.found("langchain")
        self.assertEqual((found["plain"], found["streamed"]), (self.TEXT, self.TEXT))
        status, message = found["refused"]
        self.assertEqual(status, 400)
        self.assertIn("accepts", message)

    def test_the_ai_sdk_distinguishes_waiting_failed_and_finished_runs(self):
        found, _ = self.found("aisdk")
        self.assertEqual((found["plain"], found["streamed"]), (self.TEXT, self.TEXT))
        self.assertEqual((found["finishReason"], found["parked"]), ("stop", "other"))
        self.assertIn("there is no such model", found["failed"])

    def test_the_agents_of_openai_run_continue_and_stream(self):
        found, served = self.found("agents")
        self.assertEqual((found["plain"], found["next"], found["streamed"]), (self.TEXT,) * 3)
        said = [
            event.text
            for name in served.store.list_sessions()
            for event in served.store.read_events(name)
            if isinstance(event, UserMessage)
        ]
        self.assertEqual(sorted(said), sorted(["Be kind.\n\nTea?", "Be kind.\n\nMore?", "Be kind.\n\nTea?"]))


@unittest.skipUnless(importlib.util.find_spec("openai"), "the openai package is not installed")
class OpenAI(unittest.TestCase):
    def test_its_client_creates_streams_cuts_and_continues(self):
        from openai import NotFoundError, OpenAI

        text = "Hello there, and tea."
        served = Served(agents(tea=[{"text": text, "deltas": 2}]))
        self.addCleanup(served.close)
        client = OpenAI(base_url=f"http://{served.host}/v1", api_key=TOKEN, max_retries=0)
        self.addCleanup(client.close)
        self.assertEqual(client.responses.create(model="tea", input="Hi.").output_text, text)
        stream = client.responses.create(model="tea", input="Hi.", stream=True, background=True)
        events = [next(stream) for _ in range(6)]
        stream.close()
        response_id = events[0].response.id
        rest = client.responses.retrieve(response_id, stream=True, starting_after=events[-1].sequence_number)
        events += list(rest)
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        self.assertEqual(("".join(deltas), events[-1].response.output_text), (text, text))
        with client.responses.stream(model="tea", input="Hi.", previous_response_id=response_id) as whole:
            self.assertEqual(whole.get_final_response().output_text, text)
        self.assertEqual(client.responses.cancel(response_id).status, "completed")
        with self.assertRaises(NotFoundError):
            client.responses.retrieve("resp_none_000000000000")


@unittest.skipUnless(CURL, "curl is not installed")
class Curl(unittest.TestCase):
    @full_size
    def test_the_documented_commands_start_a_server_and_talk_with_it(self):
        written = DOCUMENTED.read_text("utf-8")
        blocks = re.findall(r"```bash\n(.*?)```", written[written.index("## Start an agent") :], re.DOTALL)
        [script] = [block for block in blocks if "--script" in block]
        start = next(number for number, block in enumerate(blocks) if block.startswith("U=http"))
        self.assertIn("choices", blocks[start + 1])
        folder = self.enterContext(tempfile.TemporaryDirectory())
        port = free_port()
        environ = {
            **os.environ,
            "HOME": folder,
            "PYTHONPATH": str(ROOT),
            "OPENAGENTIC_SDK_HOME": f"{folder}/.openagentic-sdk",
        }
        environ.pop("OPENAGENTIC_SDK_SERVER_TOKEN", None)
        command = f"{shlex.quote(sys.executable)} -m openagentic_sdk"
        script = script.replace("openagentic-sdk", f"exec {command}").replace(" --open", f" --port {port}")
        server = subprocess.Popen(
            ["bash", "-c", script], cwd=folder, env=environ, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        until_listens(port, server)
        wait = 'until curl -sH "$H" $U/v1/sessions/$ID | grep -q \'"state":"waiting"\'; do sleep 0.05; done'
        talk = "\n".join(["set -e", blocks[start], wait, blocks[start + 1]]).replace(
            "127.0.0.1:8321", f"127.0.0.1:{port}"
        )
        done = subprocess.run(
            ["bash", "-c", talk], cwd=folder, env=environ, capture_output=True, text=True, timeout=WAIT_S
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertIn('"final_text":"Hello, and tea."', done.stdout)
        self.assertIn('"answer":"milk"', done.stdout)
        self.assertIn('"final_text":"Coming."', done.stdout)

    @unittest.skipUnless(NGINX, "OPENAGENTIC_TEST_NGINX names nginx")
    def test_through_a_proxy_set_up_as_documented_the_first_event_comes_at_once_and_a_web_socket_opens(self):
        gate = Gate()
        turns = [{"tool_calls": [{"name": "hold", "arguments": {}}]}, "Tea."]
        port = free_port()
        served = Served(agents(tea=options(turns, gate.tool())), hosts=[NAME])
        self.addCleanup(served.close)
        self.addCleanup(gate.open.set)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        config = Path(folder.name, "nginx.conf")
        temporary = "".join(
            f"{kind}_temp_path {folder.name}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        [block] = re.findall(r"```nginx\n(.*?)```", DOCUMENTED.read_text(), re.DOTALL)
        both = [(f"127.0.0.1:{each}", served.host) for each in (8321, 8322)]
        for said, here in ((NAME, NAME), ("443 ssl", f"127.0.0.1:{port}"), *both):
            self.assertIn(said, block)
            block = block.replace(said, here)
        config.write_text(
            f"daemon off; pid {folder.name}/pid; error_log {folder.name}/error; events {{}}\n"
            f"http {{ access_log off; {temporary} {block} }}\n"
        )
        nginx = subprocess.Popen([NGINX, "-p", folder.name, "-c", os.fspath(config)], stderr=subprocess.DEVNULL)
        self.addCleanup(nginx.wait)
        self.addCleanup(nginx.terminate)
        session_id = served.ask("POST", "/v1/sessions", {"prompt": "Go."}).json["session_id"]
        self.assertTrue(gate.reached.wait(WAIT_S))
        command = [CURL, "-sN", "--retry", "20", "--retry-connrefused", "--retry-delay", "0", "--max-time", "120"]
        command += ["-H", f"Host: {NAME}", "-H", f"Authorization: Bearer {TOKEN}", "-H", "Accept: text/event-stream"]
        address = f"http://127.0.0.1:{port}/v1/sessions/{session_id}/events?until=result"
        with Process([*command, address], stdout=subprocess.PIPE, text=True) as curl:
            lines = []
            while not lines or "tool.started" not in lines[-1]:  # during the run
                lines.append(curl.stdout.readline())
                self.assertTrue(lines[-1], lines)
            self.assertFalse(gate.open.is_set())
            gate.open.set()
            rest = curl.stdout.read()
        self.assertIn('"type":"result"', rest)
        self.assertEqual(curl.returncode, 0)
        headers = {"Authorization": f"Bearer {TOKEN}", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
        headers |= {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        asked = "".join(f"{name}: {value}\r\n" for name, value in {"Host": NAME, **headers}.items())
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
            connection.sendall(f"GET /v1/sessions/{session_id}/events HTTP/1.1\r\n{asked}\r\n".encode())
            self.assertIn(b"101 Switching Protocols", connection.recv(4096))


if __name__ == "__main__":
    unittest.main()
