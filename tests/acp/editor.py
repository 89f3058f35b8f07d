"""An editor for tests: it speaks ACP with an agent in this process, line by line, and follows scripted answers."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from openagentic_sdk.ground.disk import remove_tree
from openagentic_sdk.ground.garbage import when_collected
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.server.acp.agent import EditorAgent
from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.testing.scripted import ScriptedProvider
from tests.waiting import until_async

ALL = {"elicitation": {"form": {}}, "session": {"notices": {}, "compaction": {}}}
WAIT_S = 120.0  # only bounds failure


class Refused(Exception):
    """The agent answered with an error."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: int = error["code"]
        self.text: str = error["message"]


class Editor:
    """`messages` are all lines from the agent, `updates` those about sessions. `answers` maps each of our methods to a
    function that answers it; None leaves the request open.
    """

    def __init__(
        self,
        turns: Sequence[Any] | Callable[[], Any] = (),
        *,
        store: SessionStore | None = None,
        answers: Mapping[str, Callable[[dict[str, Any]], Any]] | None = None,
        models: Sequence[str] = (),
        folder: str | None = None,
        **options: Any,
    ) -> None:
        self.store = store or MemorySessionStore()
        self.folder = folder or tempfile.mkdtemp(prefix="acp-")
        if folder is None:
            # In a thread: an editor may be collected where a test has used up the recursion limit.
            when_collected(self, remove_tree, self.folder)
        self.messages: list[dict[str, Any]] = []
        self.answers = dict(answers or {})
        self.saw: Callable[[dict[str, Any]], None] = lambda message: None
        self._ids = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        provider = ScriptedProvider(turns) if not callable(turns) else None

        def make_options(cwd: str) -> OpenAgenticOptions:
            made = turns() if callable(turns) else provider
            known: dict[str, Any] = {
                "provider": made,
                "model": "scripted",
                "permission_gate": PermissionGate(),
                "session_store": self.store,
                "setting_sources": ("project",),
                "redact": False,
            }
            return OpenAgenticOptions(**{**known, **options})

        self.agent = EditorAgent(make_options, self.store, self._take, models=models)

    # --- the wire ----------------------------------------------------------------------------------------------------

    async def _take(self, line: bytes) -> None:
        assert line.endswith(b"\n") and line.count(b"\n") == 1 and line.isascii(), line
        message = json.loads(line)
        assert message["jsonrpc"] == "2.0", message
        self.messages.append(message)
        self.saw(message)
        if "method" not in message:
            waiting = self._waiting.pop(message["id"], None)
            if waiting is not None and not waiting.done():
                if "error" in message:
                    waiting.set_exception(Refused(message["error"]))
                else:
                    waiting.set_result(message["result"])
        elif "id" in message:
            answer = self.answers.get(message["method"])
            if answer is not None:
                asyncio.get_running_loop().call_soon(self.reply, message, answer(message["params"]))

    def reply(self, asked: Mapping[str, Any], result: Any) -> None:
        if result is not None:
            self.say({"jsonrpc": "2.0", "id": asked["id"], "result": result})

    def say(self, message: Mapping[str, Any] | str | bytes) -> None:
        text = message if isinstance(message, str | bytes) else json.dumps(message)
        self.agent.peer.receive(text.encode() if isinstance(text, str) else text)

    def begin(self, method: str, **params: Any) -> asyncio.Future[Any]:
        self._ids += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._ids] = future
        self.say({"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params})
        return future

    async def ask(self, method: str, **params: Any) -> Any:
        return await asyncio.wait_for(self.begin(method, **params), WAIT_S)

    def notify(self, method: str, **params: Any) -> None:
        self.say({"jsonrpc": "2.0", "method": method, "params": params})

    async def until(self, holds: Callable[[], Any], what: str = "it") -> Any:
        """Read messages until `holds` returns a true value, and return that value."""
        return await until_async(holds, lambda: f"{what}; the last messages are {self.messages[-3:]}", WAIT_S)

    # --- what tests do most ------------------------------------------------------------------------------------------

    async def start(self, **capabilities: Any) -> str:
        """Initialize the connection and open a new session; return its id."""
        await self.ask(
            "initialize",
            protocolVersion=1,
            clientCapabilities=capabilities,
            clientInfo={"name": "test", "version": "1"},
        )
        return str((await self.ask("session/new", cwd=self.folder, mcpServers=[]))["sessionId"])

    def prompt(self, session_id: str, text: str = "Go.") -> asyncio.Future[Any]:
        return self.begin("session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": text}])

    async def take_turn(self, session_id: str, text: str = "Go.") -> str:
        return str((await asyncio.wait_for(self.prompt(session_id, text), WAIT_S))["stopReason"])

    async def load(self, session_id: str) -> list[dict[str, Any]]:
        """Load a session; return the updates that arrived before the answer."""
        before = len(self.messages)
        await self.ask("session/load", sessionId=session_id, cwd=self.folder, mcpServers=[])
        answered = next(i for i, m in enumerate(self.messages) if i >= before and "method" not in m)
        return updates(self.messages[before:answered])

    @property
    def updates(self) -> list[dict[str, Any]]:
        return updates(self.messages)

    def asked(self, method: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message.get("method") == method]

    def write(self, name: str, text: str) -> str:
        path = Path(self.folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return os.fspath(path)


def updates(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [message["params"]["update"] for message in messages if message.get("method") == "session/update"]


def choose(option: str) -> Callable[[dict[str, Any]], Any]:
    """Answer a permission request with this option."""
    return lambda params: {"outcome": {"outcome": "selected", "optionId": option}}


# Updates about a session in addition to its history.
_BESIDE = {"available_commands_update", "config_option_update", "current_mode_update", "notice", "user_message_chunk"}


def settled(shown: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The final view of an editor: joined messages, and calls with their latest fields, in order of first appearance.

    Calls of subagents run in parallel and have no order among each other; usage has no position among the messages.
    """
    seen: dict[Any, Any] = {}
    below: dict[str, Any] = {}
    used: list[Any] = []
    for number, update in enumerate(shown):
        kind, fields = update["sessionUpdate"], {key: update[key] for key in update if key != "sessionUpdate"}
        if kind in _BESIDE:
            continue
        if kind in ("agent_message_chunk", "agent_thought_chunk"):
            key = (kind, fields["messageId"])
            seen[key] = seen.get(key, "") + fields["content"]["text"]
        elif "toolCallId" in fields:
            wire_id = fields["toolCallId"]
            calls: dict[Any, Any] = below if "/" in wire_id else seen
            assert (kind == "tool_call") == (wire_id not in calls), f"two calls, or an update before its call: {fields}"
            calls[wire_id] = {**calls.get(wire_id, {}), **fields}
        elif kind == "usage_update":
            used.append(fields)
        else:
            seen[(kind, number)] = fields
    return {
        "seen": [
            (key[0] if isinstance(key, tuple) and isinstance(key[1], int) else key, value)
            for key, value in seen.items()
        ],
        "below": below,
        "used": used,
    }
