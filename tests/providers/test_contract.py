"""Every provider of the package, also the scripted one, passes the contract; endpoints are played on real sockets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from openagentic_sdk.providers.anthropic import AnthropicProvider
from openagentic_sdk.providers.base import Provider
from openagentic_sdk.providers.openai_compatible import OpenAICompatibleProvider
from openagentic_sdk.providers.openai_responses import OpenAIResponsesProvider
from openagentic_sdk.providers.wire.http import HttpTransport
from openagentic_sdk.providers.wrappers.breaker import BreakingProvider, CircuitBreaker
from openagentic_sdk.providers.wrappers.fallback import FallbackProvider
from openagentic_sdk.providers.wrappers.retry import RetryingProvider, RetryPolicy
from openagentic_sdk.testing import ScriptedProvider, provider_contract

from .server import Connection, Request, Server

Turn = Mapping[str, Any]


class Played:
    """Endpoints that play turns; subclasses define the form of a turn on the wire."""

    spoil: Callable[[bytes], bytes] | None = None

    def make_garbled_provider(self: Any, turns: Sequence[Turn], spoil: Callable[[bytes], bytes]) -> Provider:
        self.spoil = spoil
        provider: Provider = self.make_provider(turns)
        return provider

    def make_provider(self: Any, turns: Sequence[Turn]) -> Provider:
        left = list(turns)
        server = self.enterContext(Server(lambda c, r: self._play(c, r, left.pop(0))))
        http = HttpTransport(proxies={})
        self.addCleanup(http.close)
        return self.provider(server.url, http)

    def provider(self, url: str, http: HttpTransport) -> Provider:
        raise NotImplementedError

    def chunks(self, turn: Turn) -> list[dict[str, Any]]:
        raise NotImplementedError

    def body(self, turn: Turn) -> dict[str, Any]:
        raise NotImplementedError

    def _play(self, connection: Connection, request: Request, turn: Turn) -> None:
        error = turn.get("error") or {}
        if error.get("type") == "http":
            body = json.dumps({"error": {"message": error["message"]}}).encode()
            connection.reply(body, f"{error['status']} No")
            return
        if turn.get("delay_s"):
            connection.wait_for_client_to_go(turn["delay_s"])
        elif request.json.get("stream"):
            self._stream(connection, turn, error.get("after"))
        else:
            connection.reply(json.dumps(self.body(turn)).encode())

    def _stream(self, connection: Connection, turn: Turn, after: int | None) -> None:
        said = turn if after is None else {**turn, "text": turn["text"][:after]}
        events = [
            f"event: {chunk.get('type', 'x')}\ndata: {json.dumps(chunk)}\n\n".encode() for chunk in self.chunks(said)
        ]
        events = events if after is None else events[: len(events) // 2]
        connection.stream(events if self.spoil is None else [self.spoil(b"".join(events))])


class Chat(Played, provider_contract.ProviderContract):
    def provider(self, url: str, http: HttpTransport) -> Provider:
        return OpenAICompatibleProvider(base_url=url + "/v1", http=http)

    def chunks(self, turn: Turn) -> list[dict[str, Any]]:
        text = turn.get("text") or ""
        deltas: list[dict[str, Any]] = [{"reasoning_content": turn["reasoning"]}] if turn.get("reasoning") else []
        deltas += [{"content": text[n : n + 7]} for n in range(0, len(text), 7)]
        for index, call in enumerate(turn.get("tool_calls") or ()):
            arguments = arguments_of(call)
            deltas.append(tool_delta(index, id=call["id"], function={"name": call["name"], "arguments": arguments[:5]}))
            deltas.append(tool_delta(index, function={"arguments": arguments[5:]}))
        chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        return [*chunks, {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage_of(turn)}]

    def body(self, turn: Turn) -> dict[str, Any]:
        calls = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": arguments_of(call)}}
            for call in turn.get("tool_calls") or ()
        ]
        message = {"content": turn.get("text"), "reasoning_content": turn.get("reasoning"), "tool_calls": calls}
        return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage_of(turn)}


class ChatWithEverythingAround(Chat):
    """Retries, breaker and fallback do not change an answer."""

    def provider(self, url: str, http: HttpTransport) -> Provider:
        retrying = RetryingProvider(super().provider(url, http), policy=RetryPolicy(max_retries=0))
        return FallbackProvider(BreakingProvider(retrying, CircuitBreaker(url)), [])


class Responses(Played, provider_contract.ProviderContract):
    def provider(self, url: str, http: HttpTransport) -> Provider:
        return OpenAIResponsesProvider(base_url=url + "/v1", http=http)

    def chunks(self, turn: Turn) -> list[dict[str, Any]]:
        chunks: list[dict[str, Any]] = []
        for place, item in enumerate(self.items(turn)):
            empty = {**item, **{key: [] for key in ("content", "summary") if key in item}}
            chunks.append({"type": "response.output_item.added", "output_index": place, "item": empty})
            for kind, text in (("reasoning_summary_text", turn.get("reasoning")), ("output_text", turn.get("text"))):
                if text and item["type"] == {"output_text": "message"}.get(kind, "reasoning"):
                    pieces = [text[n : n + 7] for n in range(0, len(text), 7)]
                    chunks += [{"type": f"response.{kind}.delta", "output_index": place, "delta": p} for p in pieces]
            chunks.append({"type": "response.output_item.done", "output_index": place, "item": item})
        return [*chunks, {"type": "response.completed", "response": self.body(turn)}]

    def items(self, turn: Turn) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        if turn.get("reasoning"):
            items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": turn["reasoning"]}]})
        if turn.get("text"):
            items.append({"type": "message", "content": [{"type": "output_text", "text": turn["text"]}]})
        for call in turn.get("tool_calls") or ():
            item = {"type": "function_call", "id": "fc_" + call["id"], "call_id": call["id"], "name": call["name"]}
            items.append({**item, "arguments": arguments_of(call)})
        return items

    def body(self, turn: Turn) -> dict[str, Any]:
        return {"status": "completed", "output": self.items(turn), "usage": turn.get("usage")}


class Messages(Played, provider_contract.ProviderContract):
    def provider(self, url: str, http: HttpTransport) -> Provider:
        return AnthropicProvider(base_url=url, api_key="k", http=http)

    def chunks(self, turn: Turn) -> list[dict[str, Any]]:
        chunks: list[dict[str, Any]] = [{"type": "message_start", "message": {"usage": turn.get("usage")}}]
        for index, (start, deltas) in enumerate(self.blocks(turn)):
            chunks.append({"type": "content_block_start", "index": index, "content_block": start})
            chunks += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            chunks.append({"type": "content_block_stop", "index": index})
        return [*chunks, {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"}]

    def blocks(self, turn: Turn) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
        found: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        for kind, field, text in (("thinking", "thinking", turn.get("reasoning")), ("text", "text", turn.get("text"))):
            if text:
                pieces = [{"type": f"{kind}_delta", field: text[n : n + 7]} for n in range(0, len(text), 7)]
                found.append(({"type": kind, field: ""}, pieces))
        for call in turn.get("tool_calls") or ():
            start = {"type": "tool_use", "id": call["id"], "name": call["name"], "input": {}}
            found.append((start, [{"type": "input_json_delta", "partial_json": arguments_of(call)}]))
        return found

    def body(self, turn: Turn) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        if turn.get("reasoning"):
            content.append({"type": "thinking", "thinking": turn["reasoning"], "signature": "s"})
        if turn.get("text"):
            content.append({"type": "text", "text": turn["text"]})
        for call in turn.get("tool_calls") or ():
            content.append(
                {"type": "tool_use", "id": call["id"], "name": call["name"], "input": call.get("arguments", {})}
            )
        return {"type": "message", "content": content, "stop_reason": "end_turn", "usage": turn.get("usage")}


class Scripted(provider_contract.ProviderContract):
    def make_provider(self, turns: Sequence[Turn]) -> Provider:
        return ScriptedProvider(turns)


def arguments_of(call: Mapping[str, Any]) -> str:
    return str(call.get("raw_arguments") or json.dumps(call["arguments"]))


def tool_delta(index: int, **fields: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "type": "function", **fields}]}


def usage_of(turn: Turn) -> dict[str, Any] | None:
    usage = turn.get("usage")
    return {"prompt_tokens": usage["input_tokens"], "completion_tokens": usage["output_tokens"]} if usage else None
