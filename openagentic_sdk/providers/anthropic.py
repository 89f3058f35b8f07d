"""Anthropic's Messages API as a provider: chat messages in, stream events out.

Thinking and the blocks of the vendor's own tools are sent back verbatim, to the endpoint that sent them. Cache marks are
set where the API looks for them, so that a growing conversation is read from the cache.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Unpack

from ..errors import GarbledResponseError, OptionsError, ProviderHTTPError
from ..ground.frozen import mutable
from ..ground.loose import as_list, as_mapping, as_mappings, as_text
from ..ground.words import plural
from .base import Message, ModelOutput, ReasoningPiece, StreamEvent, TextDelta, ToolCall, ToolSpec, is_unfinished
from .calls import (
    TOOL_SEARCH,
    HeardCall,
    allowed_callers,
    finish_calls,
    read_arguments,
    tool_names_in,
    vendor_caller,
)
from .chat_request import (
    RequestSettings,
    ToolNames,
    function_of,
    repair_messages,
    usable,
    used_call_ids,
    with_extra_body,
    write_tool,
    write_tools,
)
from .claude_models import ClaudeFamily, claude_family
from .content import ContentPart, cannot_carry, read_parts
from .controls import DROP_BLOCK, is_prefix_refused
from .endpoint import EndpointArguments, EndpointProvider
from .failures import cut_answer, unexpected
from .keys import ApiKey, is_host_of
from .quirks import Quirks
from .wire.growing import check_part_count
from .wire.reading import LINGER_AFTER_FINISH_S, Reading

# Each edit becomes a notice in the log, and the endpoint decides how many there are.
_MAX_EDITS = 8
_EDITING_BETA = "context-management-2025-06-27"
_BINDING_BETA = "thinking-binding-controls-2026-08-01"
# The API requires a limit; this one is below that of every model since Claude 3.7.
DEFAULT_MAX_TOKENS = 16_384

_QUIRKS = Quirks(
    accepts="anthropic",
    empty_content="",
    echo_fields=("anthropic_content", "anthropic_container"),
    think_tags=False,
    keeps_parts=True,
    name_in_tool_result=True,
)
_PLACEHOLDER = "DeferredToolPlaceholder"
# Blocks that a message's own fields represent already; any other is opaque and kept verbatim.
_PLAIN_BLOCKS = frozenset({"text", "tool_use"})
_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
# The smallest `budget_tokens` that the API accepts.
_MIN_BUDGET = 1024
# The maximum length of a call's id.
_MAX_ID = 64
# The share of the answer's limit to use as the thinking budget, for models that need a number.
_BUDGET_SHARES = {"minimal": 0.125, "low": 0.125, "medium": 0.25, "high": 0.5, "xhigh": 0.75, "max": 0.75}
_NEAREST_EFFORT = {"minimal": "low", "xhigh": "high", "max": "high"}


class AnthropicProvider(EndpointProvider):
    """A provider for the Messages API. The key is that of the call, else `api_key`, else ANTHROPIC_API_KEY.

    `base_url` defaults to ANTHROPIC_BASE_URL. `cache_ttl` is how long prompts stay cached (`5m`, `1h`); None sets no cache
    marks. `thinking` is the API's own object (`{"type": "adaptive"}`); `RequestSettings.reasoning_effort` sets the effort
    and turns thinking on. Settings that the model does not support, judged by its name (`claude_models`), are omitted with
    a notice. `context_management` is the API's own object for context editing
    (`{"edits": [{"type": "clear_tool_uses_20250919"}]}`); the edits applied are reported in the answer's notices. If
    `loads_tools` is true, tools found later are defined at the search result that found them (`tool_reference`) and not at
    the start; None means only at the hosts of Anthropic and of the clouds that serve Claude.
    """

    name = "anthropic"
    operation = "/v1/messages"
    usual_url = "https://api.anthropic.com"
    url_variable: str | None = "ANTHROPIC_BASE_URL"
    key_variable: str | None = "ANTHROPIC_API_KEY"
    hosts: tuple[str, ...] = ("api.anthropic.com",)
    inputs = ("image", "file")
    needs_key = True

    def __init__(
        self,
        *,
        base_url: str | None = None,
        version: str = "2023-06-01",
        cache_ttl: str | None = "5m",
        thinking: Mapping[str, Any] | None = None,
        context_management: Mapping[str, Any] | None = None,
        loads_tools: bool | None = None,
        **endpoint: Unpack[EndpointArguments],
    ) -> None:
        super().__init__(base_url=base_url, **endpoint)
        self._context_management = context_management
        self._loads_tools = is_host_of(self.hosts, self.base_url) if loads_tools is None else loads_tools
        # The paths of this API begin with /v1, which addresses copied from other clients end with.
        self.base_url = self.base_url.removesuffix("/v1")
        self._version = version
        self._cache_ttl = cache_ttl
        self._thinking = thinking

    def url(self, model: str) -> str:
        return self.address(self.operation)

    def models_url(self) -> str:
        # The maximum page size; the default is 20.
        return self.address("/v1/models", limit="1000")

    def authorization(self, key: str) -> dict[str, str]:
        return {"x-api-key": key}

    def fixed_headers(self) -> dict[str, str]:
        return {"anthropic-version": self._version}

    async def request_headers(self, api_key: ApiKey | None = None, *, fresh: bool = False) -> dict[str, str]:
        headers = await super().request_headers(api_key, fresh=fresh)
        if betas := self.betas(headers):
            headers = {name: value for name, value in headers.items() if name.lower() != "anthropic-beta"}
            headers["anthropic-beta"] = ",".join(betas)
        return headers

    def loads_tools(self, model: str) -> bool:
        """Whether a tool's definition may be placed at the search result that found the tool.

        The feature: platform.claude.com, "Custom tool search implementation".
        """
        return self._loads_tools and claude_family(model).loads_tools

    def betas(self, headers: Mapping[str, str]) -> list[str]:
        """The beta features to enable: those named in the headers, and those that the requests need."""
        values = [value for name, value in headers.items() if name.lower() == "anthropic-beta"]
        values += [_EDITING_BETA] if self._context_management else []
        values += [_BINDING_BETA] if self.controls.has(DROP_BLOCK) else []
        return list(dict.fromkeys(part.strip() for value in values for part in value.split(",")))

    def control_for(self, error: ProviderHTTPError) -> str | None:
        """Like the base class, but try the vendor's own control `DROP_BLOCK` before removing all reasoning.

        The control: platform.claude.com, "Fix a thinking block bound to a different conversation".
        """
        if is_prefix_refused(error) and not self.controls.has(DROP_BLOCK):
            return DROP_BLOCK
        return super().control_for(error)

    def count_request(self, model: str, payload: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
        counted = {key: payload[key] for key in _COUNTED if key in payload}
        return self.address("/v1/messages/count_tokens"), counted, "input_tokens"

    def prepare(
        self, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], *, stream: bool
    ) -> tuple[dict[str, Any], Reading, ToolNames]:
        names = ToolNames(tools, _QUIRKS.accepts)
        repaired = repair_messages(messages, quirks=_QUIRKS, names=names, origin=self.origin)
        found_names = _deferred_tool_names(tools, names) if self.loads_tools(model) else {}
        prompt = _write_prompt(repaired, found_names)
        definitions = write_tools(tools, self.settings.extra_tools, lambda tool: _write_tool(tool, names), names)
        payload: dict[str, Any] = {
            "model": model,
            "max_tokens": self.settings.max_tokens or DEFAULT_MAX_TOKENS,
            "messages": prompt.turns,
            "system": prompt.system or None,
            "container": prompt.container,
            "tools": _with_deferred(definitions, found_names) or None,
            "stream": True if stream else None,
            "context_management": self._context_management,
        }
        notices = _choose(payload, self.settings, names, self._thinking, claude_family(model))
        if self.controls.has(DROP_BLOCK):
            _drop_bound_blocks(payload)
        if self._cache_ttl is not None:
            # Mark the ends of tools, system prompt and conversation; the API accepts at most four marks.
            mark = {"type": "ephemeral", "ttl": self._cache_ttl} if self._cache_ttl != "5m" else {"type": "ephemeral"}
            ends = [payload.get("tools"), payload.get("system")]
            ends += [turn["content"] for turn in payload["messages"] if turn["role"] == "user"][-2:]
            for blocks in ends:
                # A definition that is loaded later is not part of the cached prefix, and gets no mark.
                sent_places = [place for place, block in enumerate(blocks or ()) if not block.get("defer_loading")]
                if blocks and sent_places:
                    blocks[sent_places[-1]] = {**blocks[sent_places[-1]], "cache_control": mark}
        payload = with_extra_body(payload, self.settings.extra_body)
        payload = {key: value for key, value in payload.items() if value is not None}
        reading = MessageReading(used_call_ids(messages), self.origin, holds=bool(prompt.held))
        reading.notices = notices
        return payload, reading, names


# count_tokens refuses every other field of a request, such as `max_tokens`.
_COUNTED = ("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "context_management")


class MessageReading(Reading):
    """A reader of a message, block by block. With `holds`, part of the prompt was held back, so the answer is not final."""

    def __init__(self, used_ids: set[str], origin: str, *, holds: bool = False) -> None:
        super().__init__(used_ids, origin)
        self._holds = holds
        self._blocks: dict[int, dict[str, Any]] = {}
        self._ended: set[int] = set()
        self._arguments: dict[int, list[str]] = {}
        self._usage: dict[str, Any] = {}
        self._stop_reason: str | None = None
        self._stopped = False
        self._has_calls_behind = False  # whether a call continues after the stop reason
        self._has_started = False
        self._id: str | None = None
        self._model: str | None = None
        self._container: str | None = None

    def take_chunk(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        kind = chunk.get("type")
        if kind == "message_start":
            self._start(as_mapping(chunk.get("message")))
        elif kind == "content_block_start":
            return self._open_block(self._index(chunk, len(self._blocks)), as_mapping(chunk.get("content_block")))
        elif kind == "content_block_delta":
            return self._grow_block(self._index(chunk, len(self._blocks) - 1), as_mapping(chunk.get("delta")))
        elif kind == "content_block_stop":
            self._ended.add(self._index(chunk, len(self._blocks) - 1))
        elif kind == "message_delta":
            beside = {key: chunk[key] for key in ("usage", "context_management") if key in chunk}
            self._take_message({**as_mapping(chunk.get("delta")), **beside})
            if self._stop_reason is not None:
                self.linger_s = LINGER_AFTER_FINISH_S  # some gateways send no message_stop
        elif kind == "message_stop":
            self._stopped = True
            self.take_marker()
        return []

    def take_whole(self, body: Mapping[str, Any]) -> list[StreamEvent]:
        if not isinstance(body.get("content"), list):
            raise unexpected("answer has no list of content blocks", body)
        self._start(body)
        events: list[StreamEvent] = []
        for index, block in enumerate(body["content"]):
            events += self._open_block(index, as_mapping(block))
            self._ended.add(index)
        self._stopped = True
        return events

    def conclude(self) -> tuple[list[StreamEvent], ModelOutput]:
        blocks = [block for _, block in sorted(self._blocks.items())]
        text = "".join(as_text(block.get("text")) for block in blocks if block.get("type") == "text")
        if not self._stopped and (self._stop_reason is None or self._has_calls_behind):
            raise cut_answer(text, "message_stop")
        reasoning = "".join(as_text(block.get("thinking")) for block in blocks if block.get("type") == "thinking")
        return [], ModelOutput(
            assistant_text=text or None,
            tool_calls=self._calls(),
            usage=self._usage or None,
            finish_reason="pause_turn" if self._holds and self._stop_reason == "end_turn" else self._stop_reason,
            reasoning=reasoning or None,
            extras=self._extras(),
            refusal=self._stop_reason == "refusal",
            model=self._model,
            citations=tuple(citation for block in blocks for citation in as_mappings(block.get("citations"))),
            response_id=self._id,
            service_tier=as_text(self._usage.get("service_tier")) or None,
        )

    def _start(self, message: Mapping[str, Any]) -> None:
        """Begin the message, or the same one again. Raises `GarbledResponseError` if the stream has begun another."""
        new_id = message.get("id") if isinstance(message.get("id"), str) else None
        if (self._blocks and not self._has_started) or (
            self._has_started and (new_id != self._id or (new_id is None and self._blocks))
        ):
            raise GarbledResponseError("the endpoint sent two messages in one stream")
        self._has_started, self._id = True, new_id
        self._take_message(message)

    def _take_message(self, message: Mapping[str, Any]) -> None:
        for edit in as_mappings(as_mapping(message.get("context_management")).get("applied_edits"))[:_MAX_EDITS]:
            cleared = ", ".join(f"{key} {edit[key]}" for key in sorted(edit) if key.startswith("cleared_"))
            details = f" ({cleared})" if cleared else ""
            self.notices.append(
                f"the endpoint edited the context with {as_text(edit.get('type')) or 'an edit'}{details}"
            )
        if dropped := len(as_list(message.get("input_transformations"))):
            self.notices.append(
                f"the endpoint dropped or changed {plural(dropped, 'block')} of thinking that did not match the conversation"
            )
        self._container = as_text(as_mapping(message.get("container")).get("id")) or self._container
        self._model = as_text(message.get("model")) or self._model
        # A reason such as `max_tokens` stays: a gateway that sends `end_turn` after it would make the cut answer look
        # complete.
        if (reason := as_text(message.get("stop_reason"))) and not is_unfinished(self._stop_reason):
            self._stop_reason, self._has_calls_behind = reason, False
        # The last message_delta is cumulative, but does not repeat the prompt's counts from message_start.
        usage = as_mapping(message.get("usage"))
        self._usage.update({key: value for key, value in usage.items() if value is not None})

    def _index(self, chunk: Mapping[str, Any], usual: int) -> int:
        index = chunk.get("index")
        return index if isinstance(index, int) and not isinstance(index, bool) else max(usual, 0)

    def _open_block(self, index: int, block: Mapping[str, Any]) -> list[StreamEvent]:
        # A gateway that mixes two answers repeats indices: their pieces must not be joined into one call.
        if index in self._blocks or self._stopped:
            raise GarbledResponseError(f"the endpoint began block {index} twice, or after the end of its message")
        check_part_count(len(self._blocks) + 1)
        self._blocks[index] = dict(block)
        self._has_calls_behind |= self._stop_reason is not None and block.get("type") == "tool_use"
        if block.get("type") == "text" and as_text(block.get("text")):
            return [TextDelta(block["text"])]
        if block.get("type") == "thinking" and as_text(block.get("thinking")):
            return [ReasoningPiece(block["thinking"])]
        return []

    def _grow_block(self, index: int, delta: Mapping[str, Any]) -> list[StreamEvent]:
        kind = delta.get("type")
        if kind == "input_json_delta":
            # A piece that belongs to no open call is an error: it would be missing from another call.
            if self._blocks.get(index, {}).get("type") in (None, "text", "thinking") or index in self._ended:
                raise GarbledResponseError(f"the endpoint sent arguments for block {index}, which is not an open call")
            self._has_calls_behind |= self._stop_reason is not None
            self._arguments.setdefault(index, []).append(as_text(delta.get("partial_json")))
            return []
        block = self._blocks.setdefault(index, {"type": "text", "text": ""})
        check_part_count(len(self._blocks))
        if kind == "text_delta" and as_text(delta.get("text")):
            self._growing.add(block, "text", delta["text"])
            return [TextDelta(delta["text"])]
        if kind == "thinking_delta" and as_text(delta.get("thinking")):
            self._growing.add(block, "thinking", delta["thinking"])
            return [ReasoningPiece(delta["thinking"])]
        if kind == "signature_delta":
            self._growing.add(block, "signature", as_text(delta.get("signature")))
        elif kind == "citations_delta":
            self._growing.add(block, "citations", as_mapping(delta.get("citation")))
        return []

    def _calls(self) -> list[ToolCall]:
        uses = [(index, block) for index, block in sorted(self._blocks.items()) if block.get("type") == "tool_use"]
        heard_calls = [
            HeardCall(
                as_text(block.get("id")),
                as_text(block.get("name")),
                "".join(self._arguments.get(index, ())) or (json.dumps(block["input"]) if block.get("input") else ""),
                ended=index in self._ended,
                caller=vendor_caller(block),
            )
            for index, block in uses
        ]
        calls = finish_calls(
            heard_calls,
            finish_reason=self._stop_reason,
            refusal=self._stop_reason == "refusal",
            used_ids=self._used_ids,
        )
        for (_, block), call in zip(uses, calls, strict=True):
            block["id"], block["input"] = call.tool_use_id, call.arguments
        return calls

    def _extras(self) -> dict[str, Any] | None:
        kept_blocks = []
        for index, block in sorted(self._blocks.items()):
            if index in self._arguments and block.get("type") != "tool_use":  # a tool that ran on the server
                block["input"] = read_arguments("".join(self._arguments[index]))[0]
            if block.get("type") != "thinking" or index in self._ended:  # truncated thinking has no valid signature
                kept_blocks.append(block)
        if not any(map(_needs_keeping, kept_blocks)):
            return None
        container = {"anthropic_container": self._container} if self._container else {}
        return {"anthropic_content": kept_blocks, **container, "origin": self._origin}


def _needs_keeping(block: Mapping[str, Any]) -> bool:
    """Whether a block contains more than text and calls can represent."""
    return block.get("type") not in _PLAIN_BLOCKS or bool(block.get("citations")) or vendor_caller(block) is not None


def _deferred_tool_names(tools: Sequence[ToolSpec], names: ToolNames) -> dict[str, str]:
    """Map the tools that are defined where a search found them, and their placeholder, to their names as sent."""
    deferred_names = [str(function_of(tool).get("name")) for tool in tools if tool.get("defer_loading")]
    # The placeholder is in every request from the first, so that a later deferred tool does not change the prompt's prefix.
    has_search = any(function_of(tool).get("name") == TOOL_SEARCH for tool in tools)
    return {name: names.sent(name) for name in (*([_PLACEHOLDER] if has_search else ()), *deferred_names)}


def _with_deferred(definitions: list[dict[str, Any]], found_names: Mapping[str, str]) -> list[dict[str, Any]]:
    """The definitions, with those in `found_names` marked as deferred; with the placeholder, if it is among them."""
    marked = [
        {**tool, "defer_loading": True} if tool.get("name") in found_names.values() else tool for tool in definitions
    ]
    if _PLACEHOLDER not in found_names:
        return marked
    about = "Stands for tools that are found later. It cannot be called."
    schema = {"type": "object", "properties": {}}
    return [*marked, {"name": _PLACEHOLDER, "description": about, "input_schema": schema, "defer_loading": True}]


def _references(message: Message, found_names: Mapping[str, str]) -> list[dict[str, Any]]:
    """The result of a tool search as references to the definitions; empty for any other message."""
    tool_names = tool_names_in(message.get("content")) if found_names and message.get("name") == TOOL_SEARCH else ()
    return [{"type": "tool_reference", "tool_name": found_names[name]} for name in tool_names if name in found_names]


@mutable
class _MessagesPrompt:
    """A request's system prompt and turns.

    `container` is the container in which the vendor's code waits for results, None if none waits. `held` contains the
    user's blocks that cannot be sent until that code has its results.
    """

    system: list[dict[str, Any]] = field(default_factory=list)
    turns: list[dict[str, Any]] = field(default_factory=list)
    container: str | None = None
    held: list[dict[str, Any]] = field(default_factory=list)


def _write_prompt(messages: Sequence[Message], found_names: Mapping[str, str]) -> _MessagesPrompt:
    """Write the messages in the API's format. Results come first in the user turn after their calls.

    After calls made by the vendor's code, the turn may contain results only (platform.claude.com, "Programmatic tool
    calling"); the user's other content follows the answer to these results. Raises `OptionsError` for a system prompt with
    parts other than text.
    """
    prompt = _MessagesPrompt()
    system, turns = prompt.system, prompt.turns
    code_waits = False
    for message in messages:
        role, content = message["role"], message.get("content")
        if role == "system":
            for part in read_parts(content):
                if part.kind != "text":
                    raise cannot_carry(part, "the system prompt", "put it into a user message")
            system += _blocks(content)
            continue
        if role == "assistant":
            blocks = _assistant_blocks(message)
            code_waits = any(vendor_caller(block) for block in blocks if block.get("type") == "tool_use")
            prompt.container = message.get("anthropic_container") if code_waits else None
        elif role == "tool":
            result_content = _references(message, found_names) or (
                content if isinstance(content, str) else _blocks(content)
            )
            result_block = {
                "type": "tool_result",
                "tool_use_id": usable(message["tool_call_id"], _MAX_ID),
                "content": result_content,
            }
            blocks = [result_block | ({"is_error": True} if message.get("is_error") else {})]
        else:
            blocks = _blocks(content)
            if code_waits:
                prompt.held += blocks
                continue
        # Consecutive turns of one speaker are joined: all results of an answer's calls must be in the one turn after it.
        speaker = "assistant" if role == "assistant" else "user"
        if turns and turns[-1]["role"] == speaker:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": speaker, "content": blocks})
        if prompt.held and role == "assistant" and not code_waits:
            turns.append({"role": "user", "content": prompt.held})
            prompt.held = []
    return prompt


def _blocks(content: Any) -> list[dict[str, Any]]:
    """A message's content as blocks, without empty or blank text, which the API refuses."""
    return [_block(part) for part in read_parts(content) if part.kind != "text" or part.text.strip()]


def _block(part: ContentPart) -> dict[str, Any]:
    if part.kind == "text":
        return {"type": "text", "text": part.text}
    if part.kind == "audio":
        raise cannot_carry(part, "the Messages API", "it does not accept audio, so send a transcript")
    source: dict[str, Any] = {"type": "url", "url": part.url}
    if part.file_id:
        source = {"type": "file", "file_id": part.file_id}
    elif part.data is not None:
        source = {"type": "base64", "media_type": part.media_type, "data": part.data}
    if part.kind == "image":
        if part.data is not None and part.media_type not in _IMAGES:
            raise cannot_carry(part, "the Messages API", "it accepts only JPEG, PNG, GIF and WebP")
        return {"type": "image", "source": source}
    if part.data is not None and part.media_type != "application/pdf":
        source = {"type": "text", "media_type": "text/plain", "data": _document_text(part)}
    return {"type": "document", "source": source, **({"title": part.name} if part.name else {})}


def _document_text(part: ContentPart) -> str:
    if not re.match(r"text/|application/(json|xml|yaml|toml)", part.media_type):
        raise cannot_carry(part, "the Messages API", "it accepts only PDF and text, so extract the text")
    try:
        return base64.b64decode(part.data or "", validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        raise cannot_carry(part, "the Messages API", "its data is not UTF-8 text in base64") from None


def _assistant_blocks(message: Message) -> list[dict[str, Any]]:
    calls = message.get("tool_calls") or ()
    kept_blocks = message.get("anthropic_content")
    if isinstance(kept_blocks, list):
        kept_ids = [block.get("id") for block in kept_blocks if block.get("type") == "tool_use"]
        # If calls were added, removed or reordered since, the kept blocks, with their signatures, belong to another
        # answer.
        if kept_ids == [call["id"] for call in calls]:
            sendable = [
                block for block in kept_blocks if block.get("type") != "text" or as_text(block.get("text")).strip()
            ]
            return [
                {**block, "id": usable(block["id"], _MAX_ID)} if block.get("type") == "tool_use" else dict(block)
                for block in sendable
            ]
    blocks = _blocks(message.get("content"))
    for call in calls:
        function = call["function"]
        arguments = json.loads(function["arguments"])
        blocks.append(
            {"type": "tool_use", "id": usable(call["id"], _MAX_ID), "name": function["name"], "input": arguments}
        )
    return blocks


def _write_tool(tool: ToolSpec, names: ToolNames) -> dict[str, Any]:
    function = write_tool(tool, names, _QUIRKS)["function"]
    definition = {
        "name": function["name"],
        "description": function["description"],
        "input_schema": function["parameters"],
    }
    return {**definition, **allowed_callers(tool, "code_execution")}


def _choose(
    payload: dict[str, Any],
    settings: RequestSettings,
    names: ToolNames,
    thinking: Mapping[str, Any] | None,
    family: ClaudeFamily,
) -> list[str]:
    """Add the settings that the model supports to the request; return a sentence about each that was omitted or replaced.

    Raises `OptionsError` for a seed, and for a response format that the API or the model does not accept.
    """
    if settings.seed is not None:
        raise OptionsError(f"the Messages API has no seed: remove seed={settings.seed}")
    model, notices = payload["model"], list[str]()
    config: dict[str, Any] = {}
    if settings.response_format is not None and settings.response_format.get("type") != "text":
        config["format"] = _format(settings.response_format, model, family)
    effort = settings.reasoning_effort
    if effort not in (None, "none") and family.efforts:
        config["effort"] = effort if effort in family.efforts else _NEAREST_EFFORT.get(effort, "high")
        if config["effort"] != effort:
            notices.append(f"{model} does not support effort {effort!r}; {config['effort']!r} was used")
    payload["thinking"] = _thinking(payload, effort, thinking, family, notices)
    thinks = as_mapping(payload["thinking"]).get("type") in ("enabled", "adaptive")
    payload.update(
        _sampling(settings, model, thinks, family, notices),
        stop_sequences=list(settings.stop) if settings.stop else None,
        output_config=config or None,
    )
    if payload["tools"]:  # the API refuses a choice without tools
        payload["tool_choice"] = _tool_choice(settings, model, names, thinks, family, notices)
    return notices


def _sampling(
    settings: RequestSettings, model: str, thinks: bool, family: ClaudeFamily, notices: list[str]
) -> dict[str, float]:
    """The fields `temperature` and `top_p` as the model supports them; each omitted one is added to `notices`."""
    settings_by_name = {"temperature": settings.temperature, "top_p": settings.top_p}
    sampling_fields = {name: value for name, value in settings_by_name.items() if value is not None}
    if sampling_fields and not family.sampling:
        notices.append(f"omitted {' and '.join(sampling_fields)}, which {model} does not support")
        return {}
    if thinks and sampling_fields.pop("temperature", 1) != 1:
        notices.append("temperature was omitted: it cannot be combined with thinking")
    if len(sampling_fields) == 2 and family.one_sampling_field:
        del sampling_fields["top_p"]
        notices.append(f"{model} accepts only one of temperature and top_p, so top_p was omitted")
    return sampling_fields


def _tool_choice(
    settings: RequestSettings, model: str, names: ToolNames, thinks: bool, family: ClaudeFamily, notices: list[str]
) -> dict[str, Any] | None:
    """The field `tool_choice`, or None; a choice that the model refuses becomes `auto`, with a notice."""
    choice = settings.tool_choice or ("auto" if settings.parallel_tool_calls is not None else None)
    if choice is None:
        return None
    if choice not in ("auto", "none") and (thinks or not family.forced_tool):
        condition = " while it thinks" if family.forced_tool else ""
        notices.append(
            f"{model} cannot be forced to call a tool{condition} ({choice}), so the choice is left to the model"
        )
        choice = "auto"
    kinds: dict[str, dict[str, Any]] = {"auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}}
    tool_choice = kinds.get(choice) or {"type": "tool", "name": names.sent(choice)}
    if settings.parallel_tool_calls is False and choice != "none":
        tool_choice["disable_parallel_tool_use"] = True
    return tool_choice


def _format(response_format: Mapping[str, Any], model: str, family: ClaudeFamily) -> dict[str, Any]:
    inner = response_format.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, Mapping) else response_format.get("schema")
    if response_format.get("type") != "json_schema" or not isinstance(schema, Mapping):
        raise OptionsError(
            f"response_format must have the type json_schema and a schema for the Messages API, not {response_format!r:.200}"
        )
    if not family.schemas:
        raise OptionsError(
            f"{model} does not accept response_format: use a newer model, or describe the form in the prompt"
        )
    return {"type": "json_schema", "schema": dict(schema)}


def _thinking(
    payload: Mapping[str, Any],
    effort: str | None,
    setting: Mapping[str, Any] | None,
    family: ClaudeFamily,
    notices: list[str],
) -> dict[str, Any] | None:
    """The request's `thinking` field as the model supports it, or None.

    Adds a notice if part of the setting or thinking itself is omitted, a budget is raised, or thinking cannot be turned
    off. `adaptive` becomes a budget for an older model without a notice.
    """
    model, max_tokens = payload["model"], payload["max_tokens"]
    usual = {"type": "adaptive" if family.adaptive_thinking else "enabled"}
    thinking_field = {"type": "disabled"} if effort == "none" else dict(setting or (usual if effort else {}))
    kind = thinking_field.get("type")
    if kind == "enabled" and not family.budget_thinking and family.adaptive_thinking:
        notices.append(f"{model} does not accept budget_tokens, so it was omitted: use reasoning_effort instead")
        return {**{key: value for key, value in thinking_field.items() if key != "budget_tokens"}, "type": "adaptive"}
    if kind in ("enabled", "adaptive") and not family.adaptive_thinking:
        asked_tokens = thinking_field.get("budget_tokens")
        budget = max(asked_tokens or int(max_tokens * _BUDGET_SHARES.get(effort or "", 0.5)), _MIN_BUDGET)
        if family.budget_thinking and budget < max_tokens:
            if asked_tokens is not None and asked_tokens != budget:
                notices.append(f"{model} needs budget_tokens of at least {_MIN_BUDGET}, so {budget} was sent")
            if others := sorted(thinking_field.keys() - {"type", "budget_tokens"}):
                notices.append(f"{model} does not accept {' and '.join(others)} in thinking, so it was omitted")
            return {"type": "enabled", "budget_tokens": budget}
        limit = f" within max_tokens={max_tokens}" if family.budget_thinking else ""
        notices.append(f"{model} cannot think{limit}, so thinking was omitted")
        return None
    if kind == "disabled" and family.always_thinks:
        notices.append(f"{model} always thinks, so thinking was not turned off")
        return None
    return thinking_field or None


def _drop_bound_blocks(payload: dict[str, Any]) -> None:
    """Ask the API to drop thinking that no longer fits; if thinking is off, remove all thinking blocks from the request."""
    # The models that bind their thinking think adaptively without the field, too (`claude_models`).
    thinking = payload["thinking"] or {"type": "adaptive"}
    if thinking.get("type") != "disabled":
        payload["thinking"] = {**thinking, "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
        return
    for turn in payload["messages"]:
        # With thinking disabled, the API has no control for blocks that no longer fit, and refuses them.
        turn["content"] = [b for b in turn["content"] if b.get("type") not in ("thinking", "redacted_thinking")]
