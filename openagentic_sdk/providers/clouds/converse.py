"""Any model on Amazon Bedrock through its Converse API: chat messages in, stream events out.

The format of requests and answers: docs.aws.amazon.com, "Amazon Bedrock API Reference", Converse and ConverseStream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from ...errors import GarbledResponseError, OptionsError
from ...ground.loose import as_mapping, as_mappings, as_text
from ..base import Message, ModelOutput, ReasoningPiece, StreamEvent, TextDelta, ToolSpec
from ..calls import HeardCall, finish_calls, read_arguments
from ..chat_request import (
    RequestSettings,
    ToolNames,
    repair_messages,
    used_call_ids,
    with_extra_body,
    write_tool,
    write_tools,
)
from ..content import ContentPart, cannot_carry, read_parts
from ..failures import cut_answer, unexpected
from ..quirks import Quirks
from ..wire.exchange import BodyReader
from ..wire.growing import check_part_count
from ..wire.reading import LINGER_AFTER_FINISH_S, Reading
from .bedrock import BedrockEndpoint
from .event_stream import EventStreamReader

_QUIRKS = Quirks(
    accepts="bedrock", empty_content="", echo_fields=("converse_content",), name_in_tool_result=True, think_tags=False,
    keeps_parts=True, max_tool_id=64,
)  # fmt: skip
# Blocks that a message's own fields represent already; any other is sent back verbatim.
_PLAIN_BLOCKS = frozenset({"text", "toolUse"})
_IMAGES = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
_DOCUMENTS = {
    "application/pdf": "pdf", "text/csv": "csv", "text/html": "html", "text/markdown": "md", "text/plain": "txt",
    "application/msword": "doc", "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
}  # fmt: skip
_REFUSALS = frozenset({"guardrail_intervened", "content_filtered"})


class BedrockConverseProvider(BedrockEndpoint):
    """A provider for every model on Bedrock (Nova, Llama, Claude ...); accepts the arguments of `BedrockEndpoint`.

    Claude has more features through `BedrockProvider`, in its own format (caching, deferred tools, the vendor's own tools).
    """

    name = "bedrock-converse"
    inputs = ("image", "file")

    def url(self, model: str) -> str:
        # A model may be an ARN, with slashes and colons.
        return self.address(f"/model/{quote(model, safe='')}/converse")

    def url_of_request(self, model: str, *, stream: bool) -> str:
        return self.url(model) + ("-stream" if stream else "")

    def body_reader(self) -> BodyReader:
        return EventStreamReader(is_plain=True)

    def count_request(self, model: str, payload: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
        counted = {key: payload[key] for key in ("messages", "system", "toolConfig") if key in payload}
        return (
            self.address(f"/model/{quote(model, safe='')}/count-tokens"),
            {"input": {"converse": counted}},
            "inputTokens",
        )

    def prepare(
        self, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], *, stream: bool
    ) -> tuple[dict[str, Any], Reading, ToolNames]:
        names = ToolNames(tools, _QUIRKS.accepts)
        repaired = repair_messages(messages, quirks=_QUIRKS, names=names, origin=self.origin)
        system, turns = _turns(repaired)
        settings = self.settings
        inference = {
            "maxTokens": settings.max_tokens,
            "temperature": settings.temperature,
            "topP": settings.top_p,
            "stopSequences": list(settings.stop) if settings.stop else None,
        }
        payload: dict[str, Any] = {
            "messages": turns,
            "system": system or None,
            "inferenceConfig": {key: value for key, value in inference.items() if value is not None} or None,
            "toolConfig": _tool_config(settings, tools, names),
        }
        _refuse_settings(settings)
        payload = with_extra_body(payload, settings.extra_body)
        payload = {key: value for key, value in payload.items() if value is not None}
        return payload, ConverseReading(used_call_ids(messages), self.origin), names


class ConverseReading(Reading):
    """A reader of an answer, block by block."""

    def __init__(self, used_ids: set[str], origin: str) -> None:
        super().__init__(used_ids, origin)
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, list[str]] = {}
        self._ended: set[int] = set()
        self._stop_reason: str | None = None
        self._has_started = False
        self._usage: Mapping[str, Any] | None = None

    def take_chunk(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        kind, index = chunk.get("type"), chunk.get("contentBlockIndex")
        place = index if isinstance(index, int) else max(self._blocks, default=0)
        if kind == "messageStart":
            if self._has_started:
                raise GarbledResponseError("the endpoint sent two answers in one stream")
            self._has_started = True
        elif kind == "contentBlockStart":
            start = as_mapping(chunk.get("start"))
            self._blocks[place] = {key: dict(as_mapping(value)) for key, value in start.items()}
            check_part_count(len(self._blocks))
        elif kind == "contentBlockDelta":
            return self._grow(place, as_mapping(chunk.get("delta")))
        elif kind == "contentBlockStop":
            self._ended.add(place)
        elif kind == "messageStop":
            self._stop_reason = as_text(chunk.get("stopReason")) or "end_turn"
            # The usage follows, in `metadata`; an endpoint that does not send it must not delay the answer for long.
            self.linger_s = LINGER_AFTER_FINISH_S
        elif kind == "metadata":
            self._usage = as_mapping(chunk.get("usage")) or self._usage
            if self._stop_reason is not None:
                self.take_marker()
        return []

    def take_whole(self, body: Mapping[str, Any]) -> list[StreamEvent]:
        content = as_mapping(as_mapping(body.get("output")).get("message")).get("content")
        if not isinstance(content, list) or not body.get("stopReason"):
            raise unexpected("answer lacks the content of a message or a stopReason", body)
        events: list[StreamEvent] = []
        for place, block in enumerate(as_mappings(content)):
            self._blocks[place] = dict(block)
            self._ended.add(place)
            if text := as_text(block.get("text")):
                events.append(TextDelta(text))
            elif thinking := _reasoning_text(block):
                events.append(ReasoningPiece(thinking))
        self._stop_reason, self._usage = as_text(body.get("stopReason")), as_mapping(body.get("usage")) or None
        return events

    def conclude(self) -> tuple[list[StreamEvent], ModelOutput]:
        blocks = [(place, block) for place, block in sorted(self._blocks.items())]
        text = "".join(as_text(block.get("text")) for _, block in blocks)
        if self._stop_reason is None:
            raise cut_answer(text, "messageStop")
        done_there = self._keep_done_there(blocks)
        heard_calls = [
            HeardCall(
                as_text(use.get("toolUseId")),
                as_text(use.get("name")),
                "".join(self._inputs[place]) if place in self._inputs else json.dumps(use.get("input") or {}),
                ended=place in self._ended,
            )
            for place, block in blocks
            if place not in done_there and (use := as_mapping(block.get("toolUse")))
        ]
        is_refusal = self._stop_reason in _REFUSALS
        calls = finish_calls(heard_calls, finish_reason=self._stop_reason, refusal=is_refusal, used_ids=self._used_ids)
        return [], ModelOutput(
            assistant_text=text or None,
            tool_calls=calls,
            usage=_usage(self._usage) if self._usage else None,
            finish_reason=self._stop_reason,
            reasoning="".join(_reasoning_text(block) for _, block in blocks) or None,
            extras=self._extras([call.tool_use_id for call in calls], done_there),
            refusal=is_refusal,
        )

    def _grow(self, place: int, delta: Mapping[str, Any]) -> list[StreamEvent]:
        block = self._blocks.setdefault(place, {})
        check_part_count(len(self._blocks))
        if text := as_text(delta.get("text")):
            self._growing.add(block, "text", text)
            return [TextDelta(text)]
        if use := as_mapping(delta.get("toolUse")):
            if "toolUse" not in block:
                raise GarbledResponseError("the endpoint sent arguments for a block that is not a call")
            self._inputs.setdefault(place, []).append(as_text(use.get("input")))
        if results := as_mappings(delta.get("toolResult")):
            for one in results:
                self._growing.add(block.setdefault("toolResult", {}), "content", one)
        thinking = as_mapping(delta.get("reasoningContent"))
        if redacted := as_text(thinking.get("redactedContent")):
            block["reasoningContent"] = {"redactedContent": redacted}
        elif thinking:
            reasoning = block.setdefault("reasoningContent", {"reasoningText": {"text": ""}})["reasoningText"]
            self._growing.add(reasoning, "text", as_text(thinking.get("text")))
            if signature := as_text(thinking.get("signature")):
                reasoning["signature"] = signature
            return [ReasoningPiece(piece)] if (piece := as_text(thinking.get("text"))) else []
        return []

    def _keep_done_there(self, blocks: Sequence[tuple[int, dict[str, Any]]]) -> set[int]:
        """Complete the input of the calls that the vendor has carried out itself; return the places of these calls."""
        answered_ids = {as_mapping(block.get("toolResult")).get("toolUseId") for _, block in blocks}
        places = set()
        for place, block in blocks:
            use = as_mapping(block.get("toolUse"))
            if use and (use.get("type") == "server_tool_use" or use.get("toolUseId") in answered_ids):
                places.add(place)
                if place in self._inputs:
                    block["toolUse"] = {**use, "input": read_arguments("".join(self._inputs[place]))[0]}
        return places

    def _extras(self, call_ids: list[str], done_there: set[int]) -> dict[str, Any] | None:
        """The blocks to send back: verbatim, except that calls keep only their ids; None for text and plain calls alone."""
        blocks = [(place, block) for place, block in sorted(self._blocks.items()) if any(block.values())]
        if not done_there and all(block.keys() <= _PLAIN_BLOCKS for _, block in blocks):
            return None
        ids = iter(call_ids)
        kept_blocks = [
            # Only the id: name and input are in the conversation, and may have been changed there.
            {"toolUse": {"toolUseId": next(ids)}} if block.get("toolUse") and place not in done_there else block
            for place, block in blocks
        ]
        return {"converse_content": kept_blocks, "origin": self._origin}


def _reasoning_text(block: Mapping[str, Any]) -> str:
    return as_text(as_mapping(as_mapping(block.get("reasoningContent")).get("reasoningText")).get("text"))


def _turns(messages: Sequence[Message]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The blocks of the system prompt, and the turns with alternating speakers."""
    system: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    for message in messages:
        role, content = message["role"], message.get("content")
        if role == "system":
            system += _blocks(content)
            continue
        speaker = "assistant" if role == "assistant" else "user"
        if role == "assistant":
            blocks = _assistant_blocks(message)
        elif role == "tool":
            status = {"status": "error"} if message.get("is_error") else {}
            # The API refuses a result without content.
            result_blocks = _blocks(content) or [{"text": "(no output)"}]
            blocks = [{"toolResult": {"toolUseId": message["tool_call_id"], "content": result_blocks, **status}}]
        else:
            blocks = _blocks(content)
        if turns and turns[-1]["role"] == speaker:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": speaker, "content": blocks})
    return system, turns


def _assistant_blocks(message: Message) -> list[dict[str, Any]]:
    calls = {
        call["id"]: {
            "toolUse": {
                "toolUseId": call["id"],
                "name": call["function"]["name"],
                "input": json.loads(call["function"]["arguments"]),
            }
        }
        for call in message.get("tool_calls") or ()
    }
    kept_blocks = as_mappings(message.get("converse_content"))
    # A call of the vendor's own tool was kept whole, including its name.
    ids = [
        None if "name" in (use := as_mapping(block.get("toolUse"))) else use.get("toolUseId") for block in kept_blocks
    ]
    if kept_blocks and [one for one in ids if one is not None] == list(calls):
        return [dict(block) if one is None else calls[one] for one, block in zip(ids, kept_blocks, strict=True)]
    return [*_blocks(message.get("content")), *calls.values()]


def _blocks(content: Any) -> list[dict[str, Any]]:
    """The blocks of a prompt or a result, without blank text, which the API refuses."""
    parts = enumerate(read_parts(content), 1)
    return [_block(part, number) for number, part in parts if part.kind != "text" or part.text.strip()]


def _block(part: ContentPart, number: int) -> dict[str, Any]:
    if part.kind == "text":
        return {"text": part.text}
    source: dict[str, Any] | None = {"bytes": part.data} if part.data is not None else None
    if part.url and part.url.startswith("s3://"):
        source = {"s3Location": {"uri": part.url}}
    formats = {"image": _IMAGES, "file": _DOCUMENTS}.get(part.kind, {})
    kind = formats.get(part.media_type.partition(";")[0])
    if source is None or kind is None:
        advice = f"give its data as {', '.join(formats.values())}" if formats else "send a transcript"
        raise cannot_carry(part, "Bedrock's Converse API", advice)
    if part.kind == "image":
        return {"image": {"format": kind, "source": source}}
    # The API allows letters, digits, white space, hyphens and brackets in a document's name, which must be unique.
    return {"document": {"format": kind, "name": f"document {number}", "source": source}}


def _tool_config(settings: RequestSettings, tools: Sequence[ToolSpec], names: ToolNames) -> dict[str, Any] | None:
    def declare(tool: ToolSpec) -> dict[str, Any]:
        function = write_tool(tool, names, _QUIRKS)["function"]
        described = {"description": function["description"]} if function.get("description") else {}
        return {"toolSpec": {"name": function["name"], **described, "inputSchema": {"json": function["parameters"]}}}

    definitions = write_tools(tools, settings.extra_tools, declare, names)
    # `toolChoice` cannot express `none`; without definitions, no tool can be called.
    if not definitions or settings.tool_choice == "none":
        return None
    choices: dict[str | None, dict[str, Any]] = {None: {}, "auto": {"auto": {}}, "required": {"any": {}}}
    choice = choices.get(settings.tool_choice)
    if choice is None:
        choice = {"tool": {"name": names.sent(str(settings.tool_choice))}}
    return {"tools": definitions, **({"toolChoice": choice} if choice else {})}


def _refuse_settings(settings: RequestSettings) -> None:
    """Raise `OptionsError` for settings that have no field in the API."""
    for name in ("seed", "response_format", "reasoning_effort", "parallel_tool_calls"):
        if (value := getattr(settings, name)) is not None:
            raise OptionsError(
                f"Bedrock's Converse API has no {name}: leave {name}={value!r:.100} out, or give the model's own field as "
                'extra_body={"additionalModelRequestFields": {...}}'
            )


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """The counts in the terms of the Messages API, in which input tokens exclude cached ones."""
    counts = {key: value if isinstance(value, int) else 0 for key, value in usage.items()}
    return {
        "input_tokens": counts.get("inputTokens", 0),
        "output_tokens": counts.get("outputTokens", 0),
        "cache_read_input_tokens": counts.get("cacheReadInputTokens", 0),
        "cache_creation_input_tokens": counts.get("cacheWriteInputTokens", 0),
    }
