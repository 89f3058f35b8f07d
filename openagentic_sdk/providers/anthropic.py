"""Anthropic's Messages API as a provider: chat messages in, the same events out.

Thinking goes back as it came, with its signatures, to the endpoint that sent it; cache marks are set where the API looks
for them, so that a growing conversation is read from the cache.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from ..errors import IncompleteResponseError, ProviderResponseError
from ..patterns import regex
from .base import Message, ModelOutput, ReasoningDelta, StreamEvent, TextDelta, ToolCall, ToolSpec
from .chat_request import RequestSettings, ToolNames, function_of, repair_messages, used_call_ids, write_tool
from .endpoint import EndpointArguments, EndpointProvider, Reading
from .openai_stream_assembler import new_call_id, read_arguments
from .quirks import Quirks

# The API wants a limit; this one is below that of every model since Claude 3.7.
DEFAULT_MAX_TOKENS = 16_384

_QUIRKS = Quirks(empty_content="", echo_fields=("anthropic_content",), think_tags=False)
# Blocks that the messages' own fields hold already; any other is opaque and is kept as it came.
_PLAIN_BLOCKS = frozenset({"text", "tool_use"})
_DATA_URL = regex(r"data:([\w.+/-]+);base64,(.*)", re.S)


class AnthropicProvider(EndpointProvider):
    """The Messages API. The key comes with the call, from `api_key`, or from ANTHROPIC_API_KEY.

    `cache_ttl` is how long prompts stay cached (`5m`, `1h`), None sets no cache marks. `thinking` is the API's own object
    (`{"type": "enabled", "budget_tokens": 4096}`).
    """

    name = "anthropic"
    key_variable = "ANTHROPIC_API_KEY"
    needs_key = True

    def __init__(
        self,
        *,
        base_url: str = "https://api.anthropic.com",
        version: str = "2023-06-01",
        cache_ttl: str | None = "5m",
        thinking: Mapping[str, Any] | None = None,
        **endpoint: Unpack[EndpointArguments],
    ) -> None:
        endpoint["headers"] = {"anthropic-version": version, **(endpoint.get("headers") or {})}
        super().__init__(base_url=base_url.rstrip("/").removesuffix("/v1"), **endpoint)
        self._cache_ttl = cache_ttl
        self._thinking = thinking

    def url(self, model: str) -> str:
        return f"{self.base_url}/v1/messages"

    def authorization(self, key: str) -> dict[str, str]:
        return {"x-api-key": key}

    def prepare(
        self, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], *, stream: bool
    ) -> tuple[dict[str, Any], Reading, ToolNames]:
        names = ToolNames(function_of(tool).get("name", "") for tool in tools)
        repaired = repair_messages(messages, quirks=_QUIRKS, names=names, origin=self.origin)
        system, turns = _turns(repaired)
        payload: dict[str, Any] = {
            "model": model,
            "max_tokens": self.settings.max_tokens or DEFAULT_MAX_TOKENS,
            "messages": turns,
            **({"system": system} if system else {}),
            **({"tools": _tools(tools, names)} if tools else {}),
            **({"stream": True} if stream else {}),
            **({"thinking": dict(self._thinking)} if self._thinking else {}),
            **_choices(self.settings, names, bool(tools)),
        }
        if self._cache_ttl is not None:
            _mark_cached(payload, self._cache_ttl)
        for key, value in self.settings.extra_body.items():
            payload[key] = value
        payload = {key: value for key, value in payload.items() if value is not None}
        return payload, MessageReading(used_call_ids(messages), self.origin), names


class MessageReading(Reading):
    """A message being read, block by block."""

    def __init__(self, used_ids: set[str], origin: str) -> None:
        super().__init__()
        self._used_ids = used_ids
        self._origin = origin
        self._blocks: dict[int, dict[str, Any]] = {}
        self._arguments: dict[int, list[str]] = {}
        self._usage: dict[str, Any] = {}
        self._stop_reason: str | None = None
        self._stopped = False
        self._model: str | None = None

    def take_chunk(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        kind = chunk.get("type")
        if kind == "message_start":
            self._take_message(_mapping(chunk.get("message")))
        elif kind == "content_block_start":
            return self._open_block(_index(chunk), _mapping(chunk.get("content_block")))
        elif kind == "content_block_delta":
            return self._grow_block(_index(chunk), _mapping(chunk.get("delta")))
        elif kind == "message_delta":
            self._take_message({**_mapping(chunk.get("delta")), "usage": chunk.get("usage")})
        elif kind == "message_stop":
            self._stopped = True
            self.take_marker()
        return []

    def take_whole(self, body: Mapping[str, Any]) -> list[StreamEvent]:
        if not isinstance(body.get("content"), list):
            raise ProviderResponseError(f"the endpoint's answer has no content; it is {json.dumps(body)[:200]}")
        self._take_message(body)
        self._stopped = True
        shown: list[StreamEvent] = []
        for index, block in enumerate(body["content"]):
            shown += self._open_block(index, _mapping(block))
        return shown

    def finish(self) -> tuple[list[StreamEvent], ModelOutput]:
        blocks = [block for _, block in sorted(self._blocks.items())]
        text = "".join(block.get("text") or "" for block in blocks if block.get("type") == "text")
        if not self._stopped and self._stop_reason is None:
            raise IncompleteResponseError(
                f"the message stopped after {len(text)} characters without message_stop", partial_text=text
            )
        reasoning = "".join(block.get("thinking") or "" for block in blocks if block.get("type") == "thinking")
        return [], ModelOutput(
            assistant_text=text or None,
            tool_calls=self._calls(),
            usage=self._usage or None,
            finish_reason=self._stop_reason,
            reasoning=reasoning or None,
            extras=self._extras(blocks),
            refusal=self._stop_reason == "refusal",
            model=self._model,
        )

    def _take_message(self, message: Mapping[str, Any]) -> None:
        model, reason = message.get("model"), message.get("stop_reason")
        self._model = model if isinstance(model, str) and model else self._model
        self._stop_reason = reason if isinstance(reason, str) and reason else self._stop_reason
        # The last message_delta is cumulative, but does not repeat what message_start said of the prompt.
        usage = _mapping(message.get("usage"))
        self._usage.update({key: value for key, value in usage.items() if value is not None})

    def _open_block(self, index: int, block: Mapping[str, Any]) -> list[StreamEvent]:
        self._blocks[index] = dict(block)
        if block.get("type") == "text" and block.get("text"):
            return [TextDelta(str(block["text"]))]
        if block.get("type") == "thinking" and block.get("thinking"):
            return [ReasoningDelta(str(block["thinking"]))]
        return []

    def _grow_block(self, index: int, delta: Mapping[str, Any]) -> list[StreamEvent]:
        block = self._blocks.setdefault(index, {"type": "text", "text": ""})
        kind = delta.get("type")
        if kind == "text_delta" and delta.get("text"):
            block["text"] = (block.get("text") or "") + str(delta["text"])
            return [TextDelta(str(delta["text"]))]
        if kind == "thinking_delta" and delta.get("thinking"):
            block["thinking"] = (block.get("thinking") or "") + str(delta["thinking"])
            return [ReasoningDelta(str(delta["thinking"]))]
        if kind == "input_json_delta":
            self._arguments.setdefault(index, []).append(str(delta.get("partial_json") or ""))
        elif kind == "signature_delta":
            block["signature"] = (block.get("signature") or "") + str(delta.get("signature") or "")
        elif kind == "citations_delta":
            block.setdefault("citations", []).append(delta.get("citation"))
        return []

    def _calls(self) -> list[ToolCall]:
        calls, taken = [], set(self._used_ids)
        cut = self._stop_reason in ("max_tokens", "model_context_window_exceeded")
        uses = [(index, block) for index, block in sorted(self._blocks.items()) if block.get("type") == "tool_use"]
        for index, block in uses:
            call_id = str(block.get("id") or "")
            call_id = call_id if call_id and call_id not in taken else new_call_id()
            taken.add(call_id)
            block["id"] = call_id
            text = "".join(self._arguments.get(index, ())) or json.dumps(block.get("input") or {})
            arguments, raw = read_arguments(text, cut=cut)
            block["input"] = arguments
            calls.append(ToolCall(call_id, str(block.get("name") or ""), arguments, raw))
        return calls

    def _extras(self, blocks: list[dict[str, Any]]) -> dict[str, Any] | None:
        for index, block in self._blocks.items():
            if index in self._arguments and block.get("type") != "tool_use":  # a tool that ran at the server
                block["input"] = read_arguments("".join(self._arguments[index]))[0]
        if all(block.get("type") in _PLAIN_BLOCKS for block in blocks):
            return None
        return {"anthropic_content": blocks, "origin": self._origin}


def _turns(messages: Sequence[Message]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The system prompt's blocks, and the turns; results stand first in the user turn behind their calls."""
    system: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    for message in messages:
        role = message["role"]
        if role == "system":
            system += _user_blocks(message.get("content"))
            continue
        blocks = _assistant_blocks(message) if role == "assistant" else _result_or_user_blocks(message)
        speaker = "assistant" if role == "assistant" else "user"
        if turns and turns[-1]["role"] == speaker:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": speaker, "content": blocks})
    return system, turns


def _result_or_user_blocks(message: Message) -> list[dict[str, Any]]:
    if message["role"] != "tool":
        return _user_blocks(message.get("content"))
    content = message.get("content")
    shown = content if isinstance(content, str) else _user_blocks(content)
    return [{"type": "tool_result", "tool_use_id": _usable_id(message["tool_call_id"]), "content": shown}]


def _user_blocks(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    blocks = []
    for part in content or ():
        if part.get("type") == "text" and part.get("text"):
            blocks.append({"type": "text", "text": part["text"]})
        elif part.get("type") == "image_url":
            blocks.append(_image(_mapping(part.get("image_url")).get("url") or ""))
    return blocks


def _image(url: str) -> dict[str, Any]:
    match = _DATA_URL.fullmatch(url)
    if match is None:
        return {"type": "image", "source": {"type": "url", "url": url}}
    return {"type": "image", "source": {"type": "base64", "media_type": match[1], "data": match[2]}}


def _assistant_blocks(message: Message) -> list[dict[str, Any]]:
    calls = message.get("tool_calls") or ()
    kept = message.get("anthropic_content")
    if isinstance(kept, list):
        kept_ids = [block.get("id") for block in kept if block.get("type") == "tool_use"]
        if kept_ids == [call["id"] for call in calls]:
            return [_sendable_block(block) for block in kept if block.get("type") != "text" or block.get("text")]
    blocks = _user_blocks(message.get("content"))
    for call in calls:
        function = call["function"]
        arguments = json.loads(function["arguments"])
        blocks.append({"type": "tool_use", "id": _usable_id(call["id"]), "name": function["name"], "input": arguments})
    return blocks


def _sendable_block(block: Mapping[str, Any]) -> dict[str, Any]:
    return {**block, "id": _usable_id(block["id"])} if block.get("type") == "tool_use" else dict(block)


def _usable_id(call_id: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", call_id)


def _tools(tools: Sequence[ToolSpec], names: ToolNames) -> list[dict[str, Any]]:
    functions = [write_tool(tool, names, _QUIRKS)["function"] for tool in tools]
    return [{"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in functions]


def _choices(settings: RequestSettings, names: ToolNames, has_tools: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "stop_sequences": list(settings.stop) if settings.stop else None,
    }
    choice = settings.tool_choice or ("auto" if settings.parallel_tool_calls is not None else None)
    if has_tools and choice is not None:
        kinds = {"auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}}
        fields["tool_choice"] = kinds.get(choice) or {"type": "tool", "name": names.sent(choice)}
        if settings.parallel_tool_calls is False and choice != "none":
            fields["tool_choice"]["disable_parallel_tool_use"] = True
    return {key: value for key, value in fields.items() if value is not None}


def _mark_cached(payload: dict[str, Any], ttl: str) -> None:
    """Mark the ends of tools, system prompt and conversation; the API takes at most four marks."""
    mark = {"type": "ephemeral", "ttl": ttl} if ttl != "5m" else {"type": "ephemeral"}
    ends = [payload.get("tools"), payload.get("system")]
    ends += [turn["content"] for turn in payload["messages"] if turn["role"] == "user"][-2:]
    for blocks in ends:
        if blocks:
            blocks[-1] = {**blocks[-1], "cache_control": mark}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _index(chunk: Mapping[str, Any]) -> int:
    index = chunk.get("index")
    return index if isinstance(index, int) else 0
