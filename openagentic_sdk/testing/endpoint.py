"""An endpoint on 127.0.0.1 that simulates a vendor's prompt cache, and refuses what the vendors refuse.

It implements chat completions, Responses, Messages and Gemini, answers from a script, and binds reasoning as `validity`
describes. Its cache follows the vendors' documentation:

- Messages (platform.claude.com, "Prompt caching"): tools, then system, then messages; an entry ends at each of at most four
  marks; a request finds one at its marks or up to 20 blocks before; a prefix below `min_tokens` is never cached.
- The others cache automatically: the longest prefix of an earlier request, in steps of 128 tokens, starting at 1024.

A token is four bytes of canonical JSON.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ..ground.frozen import frozen, mutable
from .validity import (
    CachedPiece,
    EndpointProtocol,
    bound_signature,
    find_binding_fault,
    prompt_sha256,
    protocol_of,
    read_prompt,
)

BYTES_PER_TOKEN = 4
LOOKBACK_PARTS = 20
MAX_MARKS = 4
STEP_TOKENS = 128
DROP_BETA = "thinking-binding-controls-2026-08-01"


@frozen
class Answer:
    """The endpoint's answer: `calls` are `{"name", "arguments"}`; `thinking`, if set, comes first and is bound."""

    text: str = ""
    calls: Sequence[Mapping[str, Any]] = ()
    thinking: str | None = None


@mutable
class Asked:
    """One received request: `cached_tokens` of its `tokens` were in the cache; `fault` is why it was refused."""

    protocol: EndpointProtocol
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    parts: Sequence[CachedPiece]
    tokens: int = 0
    cached_tokens: int = 0
    fault: str | None = None
    account: str = ""
    dropped: list[str] = field(default_factory=list)

    @property
    def tool_names(self) -> list[str]:
        """The names of the tools, including deferred ones."""
        tools = self.body.get("tools") or []
        declared = [one for tool in tools for one in tool.get("functionDeclarations") or [tool]]
        return [str(one.get("name") or one.get("function", {}).get("name") or one.get("type")) for one in declared]


class _EndpointServer(ThreadingHTTPServer):
    """A server that, when closed, closes its open connections and waits for the threads that serve them."""

    daemon_threads = False

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: set[Any] = set()
        super().__init__(("127.0.0.1", 0), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        for request in list(self._open):
            with contextlib.suppress(OSError):  # the client has closed the connection
                request.shutdown(socket.SHUT_RDWR)
        super().server_close()


class CachingEndpoint:
    """A caching endpoint, which serves at `url` inside a `with` block; `script(asked)` returns each answer.

    `checks_binding` refuses reasoning that does not fit, as if the vendor enforced it for the account; reasoning of another
    `account` never fits. Without `knows_drop_block`, a request cannot have it dropped.
    """

    def __init__(
        self,
        script: Callable[[Asked], Answer],
        *,
        checks_binding: bool = True,
        min_tokens: int = 1024,
        knows_drop_block: bool = True,
        account: str = "",
    ) -> None:
        self.account = account
        self.requests: list[Asked] = []
        self._script = script
        self._checks_binding = checks_binding
        self._knows_drop_block = knows_drop_block
        self._min_tokens = min_tokens
        self._cached_digests: set[str] = set()
        self._guard = threading.Lock()

    def __enter__(self) -> CachingEndpoint:
        serve = self._serve

        class EndpointHandler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # a body in its own packet would wait for the client's delayed ACK

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = serve(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                """Print nothing."""

        self._server = _EndpointServer(EndpointHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="caching-endpoint")
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        """The root URL, to which providers add the paths of their protocols."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def answered(self) -> list[Asked]:
        """The requests that were not refused."""
        return [request for request in self.requests if request.fault is None]

    def cached_share(self) -> float:
        """The fraction of the answered requests' input tokens that came from the cache, 0 to 1."""
        total = sum(request.tokens for request in self.answered)
        return sum(request.cached_tokens for request in self.answered) / total if total else 0.0

    def _serve(self, path: str, headers: Mapping[str, str], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        protocol = protocol_of(path)
        if protocol is None:
            return 404, {"error": {"message": f"nothing is served at {path}"}}
        if protocol == "gemini":
            body["model"] = path.rpartition("/models/")[2].partition(":")[0]
        with self._guard:
            request = Asked(protocol, body, headers, read_prompt(protocol, body), account=self.account)
            self.requests.append(request)
            request.fault = self._refusal(request)
            if request.fault is not None:
                return 400, {"type": "error", "error": {"type": "invalid_request_error", "message": request.fault}}
            self._count(request)
            answer = self._script(request)
        return 200, _WRITERS[protocol](request, answer, len(self.requests))

    def _refusal(self, request: Asked) -> str | None:
        """The reason why the request is refused, or None; blocks that it asks to drop are removed from its parts."""
        marks = sum(part.is_marked for part in request.parts)
        if marks > MAX_MARKS:
            return f"A maximum of {MAX_MARKS} blocks with cache_control may be provided. Found {marks}."
        if request.protocol == "messages" and (misplaced := _deferral_fault(request.body)):
            return misplaced
        model = str(request.body.get("model"))
        while self._checks_binding:
            fault = find_binding_fault(request.protocol, model, request.parts, self.account)
            if fault is None:
                break
            if not _drops_blocks(request) or not self._knows_drop_block:
                return _words(request, fault.path, fault.reason, self._knows_drop_block)
            request.dropped.append(fault.path)
            request.parts = [part for part in request.parts if part.path != fault.path]
        return None

    def _count(self, request: Asked) -> None:
        ends, total = [], 0
        for part in request.parts:
            total += len(part.data)
            ends.append(total // BYTES_PER_TOKEN)
        request.tokens = ends[-1] if ends else 0
        marked = [index for index, part in enumerate(request.parts) if part.is_marked]
        is_marking = request.protocol == "messages"
        places = marked if is_marking else range(len(request.parts))
        lookup_places = (
            [place for mark in marked for place in range(mark, max(-1, mark - LOOKBACK_PARTS), -1)]
            if is_marking
            else list(places)
        )
        model = str(request.body.get("model"))
        digests = {place: f"{model} {prompt_sha256(request.parts[: place + 1])}" for place in {*lookup_places, *places}}
        cached_tokens = max(
            (ends[place] for place in lookup_places if digests[place] in self._cached_digests), default=0
        )
        request.cached_tokens = cached_tokens if is_marking else cached_tokens // STEP_TOKENS * STEP_TOKENS
        if request.cached_tokens < self._min_tokens:
            request.cached_tokens = 0
        self._cached_digests |= {digests[place] for place in places if ends[place] >= self._min_tokens}


def _deferral_fault(body: Mapping[str, Any]) -> str | None:
    """The error in deferred definitions (platform.claude.com, "Tool search", error handling)."""
    deferred = {tool["name"]: tool for tool in body.get("tools") or () if tool.get("defer_loading")}
    if deferred and len(deferred) == len(body["tools"]):
        return "At least one tool must have defer_loading=false."
    if any("cache_control" in tool for tool in deferred.values()):
        return "tools: a tool with defer_loading cannot have cache_control."
    for message in body["messages"]:
        for block in message["content"] if isinstance(message["content"], list) else ():
            for part in block.get("content") or () if block.get("type") == "tool_result" else ():
                if (
                    isinstance(part, Mapping)
                    and part.get("type") == "tool_reference"
                    and part["tool_name"] not in deferred
                ):
                    return f"Tool reference '{part['tool_name']}' has no corresponding tool definition"
    return None


def _drops_blocks(request: Asked) -> bool:
    thinking = request.body.get("thinking") or {}
    wish = (thinking.get("block_binding") or {}).get("prefix_mismatch_behavior")
    return wish == "drop_block" and DROP_BETA in request.headers.get("anthropic-beta", "")


def _words(request: Asked, path: str, reason: str, knows_drop_block: bool) -> str:
    """The refusal in the vendor's wording."""
    if request.protocol == "messages":
        way_out = (
            ', or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block". That setting requires the '
            f"`{DROP_BETA}` value in the `anthropic-beta` header."
        )
        return (
            f"{path}: Invalid `signature` in `thinking` block. The block is bound to a different conversation. "
            f"Remove the block{way_out if knows_drop_block else '.'}"
        )
    if request.protocol == "responses":
        return f"{path}: The encrypted content could not be verified. Reason: it belongs to another {reason}."
    return f"{path}: the thought signature is not valid: it belongs to another {reason}."


# --- complete answers in the format of each protocol -----------------------------------------------------------------


def _messages_answer(request: Asked, answer: Answer, number: int) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if answer.thinking is not None:
        signature = bound_signature("messages", str(request.body["model"]), request.parts, request.account)
        content.append({"type": "thinking", "thinking": answer.thinking, "signature": signature})
    if answer.text:
        content.append({"type": "text", "text": answer.text})
    for place, call in enumerate(answer.calls):
        call_fields = {"name": call["name"], "input": call["arguments"]}
        content.append({"type": "tool_use", "id": f"toolu_{number}_{place}", **call_fields})
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": request.body["model"],
        "content": content,
        "stop_reason": "tool_use" if answer.calls else "end_turn",
        "input_transformations": [{"type": "thinking_dropped", "path": path} for path in request.dropped],
        "usage": {
            "input_tokens": request.tokens - request.cached_tokens,
            "cache_read_input_tokens": request.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": _weight(answer),
        },
    }


def _chat_answer(request: Asked, answer: Answer, number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.thinking is not None:
        signature = bound_signature("chat", str(request.body["model"]), request.parts, request.account)
        detail = {"type": "reasoning.text", "text": answer.thinking, "signature": signature}
        message |= {"reasoning": answer.thinking, "reasoning_details": [detail]}
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{place}",
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
            }
            for place, call in enumerate(answer.calls)
        ]
    finish = "tool_calls" if answer.calls else "stop"
    return {
        "id": f"chat_{number}",
        "object": "chat.completion",
        "model": request.body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": request.tokens,
            "prompt_tokens_details": {"cached_tokens": request.cached_tokens},
            "completion_tokens": _weight(answer),
        },
    }


def _responses_answer(request: Asked, answer: Answer, number: int) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if answer.thinking is not None:
        sealed = bound_signature("responses", str(request.body["model"]), request.parts, request.account)
        output.append({"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": sealed})
    if answer.text:
        content = [{"type": "output_text", "text": answer.text, "annotations": []}]
        output.append({"type": "message", "id": f"msg_{number}", "role": "assistant", "content": content})
    searches = any(tool.get("type") == "tool_search" for tool in request.body.get("tools") or ())
    for place, call in enumerate(answer.calls):
        ids = {"id": f"fc_{number}_{place}", "call_id": f"call_{number}_{place}"}
        if searches and call["name"] == "ToolSearch":
            output.append({"type": "tool_search_call", **ids, "execution": "client", "arguments": call["arguments"]})
            continue
        arguments = json.dumps(call["arguments"])
        output.append({"type": "function_call", **ids, "name": call["name"], "arguments": arguments})
    return {
        "id": f"resp_{number}",
        "object": "response",
        "status": "completed",
        "model": request.body["model"],
        "output": [{**item, "status": "completed"} for item in output],
        "usage": {
            "input_tokens": request.tokens,
            "input_tokens_details": {"cached_tokens": request.cached_tokens},
            "output_tokens": _weight(answer),
        },
    }


def _gemini_answer(request: Asked, answer: Answer, number: int) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    signed = {}
    if answer.thinking is not None:
        parts.append({"text": answer.thinking, "thought": True})
        signed = {
            "thoughtSignature": bound_signature("gemini", str(request.body["model"]), request.parts, request.account)
        }
    if answer.text:
        parts.append({"text": answer.text, **({} if answer.calls else signed)})
    for place, call in enumerate(answer.calls):
        # Only the first call of an answer is signed (ai.google.dev, "Thought signatures").
        function = {"id": f"call_{number}_{place}", "name": call["name"], "args": call["arguments"]}
        parts.append({"functionCall": function, **({} if place else signed)})
    candidate = {"index": 0, "content": {"role": "model", "parts": parts}, "finishReason": "STOP"}
    return {
        "candidates": [candidate],
        "modelVersion": request.body["model"],
        "responseId": f"gen_{number}",
        "usageMetadata": {
            "promptTokenCount": request.tokens,
            "cachedContentTokenCount": request.cached_tokens,
            "candidatesTokenCount": _weight(answer),
        },
    }


def _weight(answer: Answer) -> int:
    return 1 + len(json.dumps([answer.text, answer.thinking, list(answer.calls)])) // BYTES_PER_TOKEN


_WRITERS: Mapping[EndpointProtocol, Callable[[Asked, Answer, int], dict[str, Any]]] = {
    "chat": _chat_answer,
    "responses": _responses_answer,
    "messages": _messages_answer,
    "gemini": _gemini_answer,
}
