"""`openagentic-sdk acp` as a process, with editors written by others."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from contextlib import suppress
from pathlib import Path
from typing import Any

from openagentic_sdk.sessions.store import FileSessionStore
from tests.pythons import Python
from tests.size import full_size

ROOT = Path(__file__).resolve().parents[2]
NODE = os.environ.get("OPENAGENTIC_TEST_NODE")
MODULES = os.environ.get("OPENAGENTIC_TEST_NODE_MODULES", "")
WRITE = {"name": "Write", "arguments": {"file_path": "out.txt", "content": "hello\n"}}
TODO = {"name": "TodoWrite", "arguments": {"todos": [{"content": "write", "status": "in_progress"}]}}
# A command that writes to whatever stdout it has, and reads whatever stdin it has.
LOUD = {"name": "Bash", "arguments": {"command": "cat; echo loud; echo louder >&2; echo loudest > /dev/stdout"}}
TURN = [{"reasoning": "Hm.", "text": "I write.", "tool_calls": [TODO, WRITE, LOUD]}, {"text": "Done."}]


class Process:
    """The command, with a script of turns and a folder to work in."""

    def __init__(self, *turns: Any, more: tuple[str, ...] = ()) -> None:
        self.place = tempfile.TemporaryDirectory()
        self.folder = os.path.join(self.place.name, "work")
        os.mkdir(self.folder)
        script = Path(self.place.name, "script.json")
        script.write_text(json.dumps({"turns": list(turns)}))
        self.store = FileSessionStore(Path(self.place.name, "store"))
        flags = ("--script", os.fspath(script), "--store", os.path.join(self.place.name, "store"), *more)
        self.command = [sys.executable, "-m", "openagentic_sdk", "acp", *flags]
        self.environment = {**os.environ, "HOME": self.place.name, "PYTHONPATH": os.fspath(ROOT)}
        self._ids = 0
        self.seen: list[dict[str, Any]] = []

    def start(self) -> None:
        pipe = subprocess.PIPE
        self.process = Python(*self.command[1:], stdin=pipe, stdout=pipe, stderr=pipe, env=self.environment)

    def say(self, message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\r\n")
        self.process.stdin.flush()

    def begin(self, method: str, **params: Any) -> int:
        self._ids += 1
        self.say({"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params})
        return self._ids

    def until(self, holds: Any) -> dict[str, Any]:
        """The first message for which `holds` is true; every line must be a message."""
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            message: dict[str, Any] = json.loads(line)
            self.seen.append(message)
            if holds(message):
                return message
        raise AssertionError(f"the agent ended: {self.process.stderr.read()!r}")  # type: ignore[union-attr]

    def ask(self, method: str, **params: Any) -> Any:
        asked = self.begin(method, **params)
        answer = self.until(lambda message: message.get("id") == asked and "method" not in message)
        if "result" not in answer:
            raise KeyError(f"the agent answered {answer}")
        return answer["result"]

    def open(self) -> str:
        self.start()
        self.ask("initialize", protocolVersion=1)
        return str(self.ask("session/new", cwd=self.folder, mcpServers=[])["sessionId"])

    def end(self) -> tuple[int, bytes, bytes]:
        """Close its input; return the exit code and the rest of both streams."""
        out, err = self.process.communicate(timeout=300)
        return self.process.returncode, out, err

    def close(self) -> None:
        if hasattr(self, "process"):
            self.process.kill()
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
                with suppress(OSError):  # unread output is no longer needed
                    assert stream is not None
                    stream.close()
        self.place.cleanup()


class Command(unittest.TestCase):
    @full_size
    def test_nothing_but_messages_is_on_stdout_and_the_end_of_input_ends_it(self) -> None:
        agent = Process(*TURN)
        self.addCleanup(agent.close)
        session_id = agent.open()
        prompt = agent.begin("session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": "Go."}])
        while "result" not in (
            message := agent.until(
                lambda m: (m.get("id") == prompt and "method" not in m) or m.get("method", "").endswith("n")
            )
        ):
            outcome = {"outcome": "selected", "optionId": "yes"}
            agent.say({"jsonrpc": "2.0", "id": message["id"], "result": {"outcome": outcome}})
        self.assertEqual(message["result"], {"stopReason": "end_turn"})
        self.assertEqual(Path(agent.folder, "out.txt").read_text(), "hello\n")
        self.assertIn("loudest", json.dumps(agent.seen))
        self.assertEqual(agent.end(), (0, b"", b""))

    @full_size
    def test_a_question_that_is_open_on_termination_stays_open(self) -> None:
        agent = Process(*TURN)
        self.addCleanup(agent.close)
        session_id = agent.open()
        agent.begin("session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": "Go."}])
        agent.until(lambda message: message.get("method") == "session/request_permission")
        agent.process.send_signal(signal.SIGTERM)
        self.assertEqual(agent.process.wait(120), 0)
        row = agent.store.read_summary(session_id)
        self.assertEqual((row.state, len(row.open_questions)), ("waiting", 1))
        agent.store.open_writer(session_id).close()
        self.assertFalse(os.path.exists(os.path.join(agent.folder, "out.txt")))

    def test_an_editor_that_is_killed_leaves_a_free_session_and_no_process(self) -> None:
        agent = Process({"text": "x" * 200_000, "deltas": 20, "delay_s": 0.0001})
        self.addCleanup(agent.close)
        session_id = agent.open()
        agent.begin("session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": "Go."}])
        agent.until(lambda message: "agent_message_chunk" in json.dumps(message))
        assert agent.process.stdin is not None and agent.process.stdout is not None
        agent.process.stdout.close()
        agent.process.stdin.close()
        self.assertEqual(agent.process.wait(120), 0)
        agent.process.stderr.close()  # type: ignore[union-attr]
        agent.store.open_writer(session_id).close()
        # It depends on which end of the pipe the process sees closed first.
        self.assertIn(agent.store.read_summary(session_id).state, ("idle", "suspended"))

    def test_a_missing_key_is_an_error_answer_and_does_not_end_the_process(self) -> None:
        agent = Process()
        self.addCleanup(agent.close)
        agent.command = [sys.executable, "-m", "openagentic_sdk", "acp", "--model", "gpt-x", *agent.command[-2:]]
        agent.environment.pop("OPENAI_API_KEY", None)
        agent.start()
        agent.ask("initialize", protocolVersion=1)
        asked = agent.begin("session/new", cwd=agent.folder, mcpServers=[])
        error = agent.until(lambda message: message.get("id") == asked)["error"]
        self.assertEqual((error["code"], "OPENAI_API_KEY" in error["message"]), (-32000, True))
        self.assertEqual(agent.end()[0], 0)


@unittest.skipUnless(
    NODE and MODULES, "no Node: OPENAGENTIC_TEST_NODE and OPENAGENTIC_TEST_NODE_MODULES name one with the SDK"
)
class NodeEditors(unittest.TestCase):
    def test_the_typescript_sdk(self) -> None:
        agent = Process(*TURN, *TURN)
        self.addCleanup(agent.close)
        script = os.fspath(Path(__file__).with_name("sdk_client.mjs"))
        done = subprocess.run(
            [str(NODE), script, agent.folder, *agent.command],
            env=agent.environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        seen = json.loads(done.stdout)
        self.assertEqual((seen["first"], seen["cancelled"], seen["code"]), ("end_turn", "cancelled", 0))
        self.assertEqual((seen["listed"], seen["unknown"], seen["left"]), ([True], -32002, 0))
        kinds = [update["sessionUpdate"] for update in seen["live"]]
        self.assertLess({"agent_thought_chunk", "agent_message_chunk", "tool_call", "plan"}, set(kinds))
        asked = [block for call in seen["asked"] for block in call["content"] if block["type"] == "diff"]
        self.assertEqual([block["newText"] for block in asked], ["hello\n", "hello\n"])
        texts = [u["content"]["text"] for u in seen["loaded"] if u["sessionUpdate"] == "user_message_chunk"]
        self.assertEqual(texts, ["one", "two"])

    def test_acpx(self) -> None:
        for flag, code, is_written in (("--approve-all", 0, True), ("--deny-all", 5, False)):
            with self.subTest(flag):
                agent = Process(*TURN)
                self.addCleanup(agent.close)
                acpx = os.path.join(MODULES, ".bin", "acpx")
                line = ["--agent", " ".join(agent.command), "--cwd", agent.folder, flag, "exec", "write a file"]
                path = f"{os.path.dirname(str(NODE))}:{os.environ['PATH']}"
                done = subprocess.run(
                    [str(NODE), acpx, *line],
                    env={**agent.environment, "PATH": path},
                    capture_output=True,
                    text=True,
                    timeout=300,
                )
                self.assertEqual(done.returncode, code, done.stdout + done.stderr)
                self.assertIn("[done] end_turn", done.stdout)
                self.assertEqual(os.path.exists(os.path.join(agent.folder, "out.txt")), is_written)


@unittest.skipUnless(importlib.util.find_spec("acp"), "the package agent-client-protocol is not installed")
class PythonEditor(unittest.IsolatedAsyncioTestCase):
    async def test_the_python_sdk(self) -> None:
        acp: Any = importlib.import_module("acp")
        schema: Any = importlib.import_module("acp.schema")
        updates: list[Any] = []

        class Client(acp.Client):  # type: ignore[misc]
            async def session_update(self, session_id: str, update: Any, **more: Any) -> None:
                updates.append(update)

            async def request_permission(self, session_id: str, tool_call: Any, options: Any, **more: Any) -> Any:
                outcome = {"outcome": "selected", "optionId": options[0].option_id}
                return schema.RequestPermissionResponse.model_validate({"outcome": outcome})

        agent = Process(*TURN)
        self.addCleanup(agent.close)
        program, *args = agent.command
        async with acp.spawn_agent_process(Client(), program, *args, env=agent.environment) as (editor, _):
            await editor.initialize(protocol_version=acp.PROTOCOL_VERSION)
            session = await editor.new_session(cwd=agent.folder, mcp_servers=[])
            answer = await editor.prompt(session_id=session.session_id, prompt=[acp.text_block("Go.")])
            self.assertEqual(answer.stop_reason, "end_turn")
            live = len(updates)
            await editor.load_session(session_id=session.session_id, cwd=agent.folder, mcp_servers=[])
            self.assertGreater(len(updates), live + 5)
        self.assertTrue(os.path.exists(os.path.join(agent.folder, "out.txt")))


if __name__ == "__main__":
    unittest.main()
