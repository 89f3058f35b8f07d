"""OpenAI's Responses API as a provider: chat messages in, the same events out.

Nothing is stored at OpenAI: reasoning comes back encrypted and is sent along with the next request, to the same endpoint
only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from ..errors import IncompleteResponseError, ProviderResponseError
from ..patterns import regex
from .base import Message, ModelOutput, ReasoningDelta, StreamEvent, TextDelta, ToolCall, ToolSpec
from .chat_request import RequestSettings, ToolNames, function_of, repair_messages, used_call_ids, write_tool
from .endpoint import EndpointArguments, EndpointProvider, Reading
from .failures import error_in_body
from .openai_stream_assembler import new_call_id, read_arguments
from .quirks import Quirks

_QUIRKS = Quirks(empty_content="", strict_tools=True, echo_fields=("responses_items",), think_tags=False)
# Only these accept `include: reasoning.encrypted_content`; the others answer 400.
_REASONING_MODEL = regex(r"^(o\d|gpt-[5-9]|codex)")
_ENDS = {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}


class OpenAIResponsesProvider(EndpointProvider):
    """The Responses API. The key comes with the call, from `api_key`, or from OPENAI_API_KEY.

    `reasoning_summary` (`auto`, `concise`, `detailed`) asks for the reasoning in words; None does not.
    """

    name = "openai-responses"
    key_variable = "OPENAI_API_KEY"
    has_response_format = True

    def __init__(
        self,
        *,
        base_url: str = "https://api.openai.com/v1",
        reasoning_summary: str | None = None,
        **endpoint: Unpack[EndpointArguments],
    ) -> None:
        super().__init__(base_url=base_url, **endpoint)
        self.needs_key = self.origin == "api.openai.com"
        self._reasoning_summary = reasoning_summary

    def url(self, model: str) -> str:
        return f"{self.base_url}/responses"

    def prepare(
        self, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], *, stream: bool
    ) -> tuple[dict[str, Any], Reading, ToolNames]:
        names = ToolNames(function_of(tool).get("name", "") for tool in tools)
        repaired = repair_messages(messages, quirks=_QUIRKS, names=names, origin=self.origin)
        payload: dict[str, Any] = {
            "model": model,
            "input": [item for message in repaired for item in _items(message)],
            "store": False,
            "tools": [
                {"type": "function", "strict": False, **write_tool(tool, names, _QUIRKS)["function"]} for tool in tools
            ]
            or None,
            "stream": True if stream else None,
            "include": ["reasoning.encrypted_content"] if _REASONING_MODEL.match(model) else None,
            "reasoning": self._reasoning(),
            **_choices(self.settings, names, bool(tools)),
            **self.settings.extra_body,
        }
        payload = {key: value for key, value in payload.items() if value is not None}
        return payload, ResponseReading(used_call_ids(messages), self.origin), names

    def _reasoning(self) -> dict[str, str] | None:
        fields = {"effort": self.settings.reasoning_effort, "summary": self._reasoning_summary}
        return {key: value for key, value in fields.items() if value} or None


class ResponseReading(Reading):
    """A response being read, item by item. Items are known by their place, their id, or as the last one."""

    def __init__(self, used_ids: set[str], origin: str) -> None:
        super().__init__()
        self._used_ids = used_ids
        self._origin = origin
        self._items: list[dict[str, Any]] = []
        self._arguments: dict[int, str] = {}
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal = False
        self._response: Mapping[str, Any] | None = None
        self._model: str | None = None

    def take_chunk(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        kind = str(chunk.get("type") or "")
        if kind in _ENDS:
            self._take_end(_mapping(chunk.get("response")))
        elif kind == "response.output_item.added":
            self._items.append(self._placed(chunk))
        elif kind == "response.output_item.done":
            self._replace_item(chunk)
        elif kind == "response.function_call_arguments.delta":
            place = self._find(chunk)
            self._arguments[place] = self._arguments.get(place, "") + str(chunk.get("delta") or "")
        elif kind == "response.function_call_arguments.done":
            self._arguments[self._find(chunk)] = str(chunk.get("arguments") or "")
        elif kind == "response.reasoning_summary_part.added" and self._reasoning:
            return self._show_reasoning("\n\n")
        else:
            return self._take_delta(kind, chunk)
        return []

    def take_whole(self, body: Mapping[str, Any]) -> list[StreamEvent]:
        if not isinstance(body.get("output"), list):
            raise ProviderResponseError(f"the endpoint's answer has no output; it is {json.dumps(body)[:200]}")
        self._take_end(body)
        shown: list[StreamEvent] = []
        if reasoning := _reasoning_of(self._items):
            shown += self._show_reasoning(reasoning)
        if text := _text_of(self._items):
            shown += self._show_text(text)
        return shown

    def finish(self) -> tuple[list[StreamEvent], ModelOutput]:
        text = _text_of(self._items) or "".join(self._text)
        if self._response is None:
            raise IncompleteResponseError(
                f"the response stopped after {len(text)} characters without response.completed", partial_text=text
            )
        rest: list[StreamEvent] = []
        if text and not self._text:
            rest = self._show_text(text)
        calls = self._calls()
        return rest, ModelOutput(
            assistant_text=text or None,
            tool_calls=calls,
            usage=_mapping(self._response.get("usage")) or None,
            finish_reason=self._finish_reason(bool(calls)),
            reasoning=_reasoning_of(self._items) or "".join(self._reasoning) or None,
            extras=self._extras(),
            refusal=self._refusal
            or any(part.get("refusal") for item in self._items for part in _parts(item.get("content"))),
            model=self._model,
        )

    def _take_delta(self, kind: str, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        delta = chunk.get("delta")
        if not isinstance(delta, str) or not delta:
            return []
        if kind == "response.output_text.delta":
            return self._show_text(delta)
        if kind == "response.refusal.delta":
            self._refusal = True
            return self._show_text(delta)
        if kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            return self._show_reasoning(delta)
        return []

    def _take_end(self, response: Mapping[str, Any]) -> None:
        error = error_in_body({"error": response["error"]}) if response.get("error") else None
        if error is not None:
            raise error
        if response.get("status") in ("failed", "cancelled"):
            raise ProviderResponseError(f"the response ended with status {response['status']} and without a reason")
        self._response = response
        model, output = response.get("model"), response.get("output")
        self._model = model if isinstance(model, str) else None
        if not self._items and isinstance(output, list):
            self._items = [dict(item) for item in output if isinstance(item, Mapping)]
        self.take_marker()

    def _placed(self, chunk: Mapping[str, Any]) -> dict[str, Any]:
        return {**_mapping(chunk.get("item")), "_place": chunk.get("output_index")}

    def _replace_item(self, chunk: Mapping[str, Any]) -> None:
        item = self._placed(chunk)
        known = [n for n, one in enumerate(self._items) if _same_item(one, item)]
        if known:
            self._items[known[-1]] = item
        else:
            self._items.append(item)

    def _find(self, chunk: Mapping[str, Any]) -> int:
        wanted = {"id": chunk.get("item_id"), "_place": chunk.get("output_index")}
        known = [n for n, one in enumerate(self._items) if _same_item(one, wanted)]
        if not known and not self._items:
            self._items.append({"type": "function_call", **wanted})
        return known[-1] if known else len(self._items) - 1

    def _calls(self) -> list[ToolCall]:
        calls, taken = [], set(self._used_ids)
        cut = (self._response or {}).get("status") == "incomplete"
        for place, item in enumerate(self._items):
            if item.get("type") != "function_call":
                continue
            call_id = str(item.get("call_id") or item.get("id") or "")
            call_id = call_id if call_id and call_id not in taken else new_call_id()
            taken.add(call_id)
            item["call_id"] = call_id
            arguments, raw = read_arguments(str(item.get("arguments") or self._arguments.get(place, "")), cut=cut)
            calls.append(ToolCall(call_id, str(item.get("name") or ""), arguments, raw))
        return calls

    def _finish_reason(self, has_calls: bool) -> str:
        response = self._response or {}
        if response.get("status") == "incomplete":
            reason = str(_mapping(response.get("incomplete_details")).get("reason") or "incomplete")
            return "length" if reason == "max_output_tokens" else reason
        return "tool_calls" if has_calls else "stop"

    def _extras(self) -> dict[str, Any] | None:
        """Reasoning items as they came, and where they stood between the others."""
        if not any(item.get("type") == "reasoning" for item in self._items):
            return None
        kept = [
            _kept_item(item) for item in self._items if item.get("type") in ("reasoning", "message", "function_call")
        ]
        return {"responses_items": kept, "origin": self._origin}

    def _show_text(self, text: str) -> list[StreamEvent]:
        self._text.append(text)
        return [TextDelta(text)]

    def _show_reasoning(self, text: str) -> list[StreamEvent]:
        self._reasoning.append(text)
        return [ReasoningDelta(text)]


def _same_item(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if one.get("_place") is not None and other.get("_place") is not None:
        return bool(one["_place"] == other["_place"])
    return bool(one.get("id")) and one.get("id") == other.get("id")


def _kept_item(item: Mapping[str, Any]) -> dict[str, Any]:
    if item.get("type") == "reasoning":
        return {key: value for key, value in item.items() if key not in ("_place", "status") and value is not None}
    return {"type": item["type"], **({"call_id": item["call_id"]} if item["type"] == "function_call" else {})}


def _text_of(items: Sequence[Mapping[str, Any]]) -> str:
    parts = [part for item in items if item.get("type") == "message" for part in _parts(item.get("content"))]
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in parts)


def _reasoning_of(items: Sequence[Mapping[str, Any]]) -> str:
    texts = []
    for item in items:
        if item.get("type") == "reasoning":
            parts = _parts(item.get("summary")) or _parts(item.get("content"))
            texts += [str(part.get("text") or "") for part in parts]
    return "\n\n".join(text for text in texts if text)


def _parts(value: Any) -> list[Mapping[str, Any]]:
    return [part for part in value if isinstance(part, Mapping)] if isinstance(value, list) else []


def _items(message: Message) -> list[dict[str, Any]]:
    """A message as items of the request."""
    role, content = message["role"], message.get("content")
    if role == "tool":
        shown = content if isinstance(content, str) else json.dumps(content)
        return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": shown}]
    if role != "assistant":
        return [{"role": role, "content": [_input_part(part) for part in _content_parts(content)]}]
    text: list[dict[str, Any]] = []
    if content:
        parts = [{"type": "output_text", "text": part.get("text", "")} for part in _content_parts(content)]
        text = [{"type": "message", "role": "assistant", "content": parts}]
    calls = {call["id"]: _call_item(call) for call in message.get("tool_calls") or ()}
    return _with_reasoning(message.get("responses_items"), text, calls)


def _with_reasoning(kept: Any, text: list[dict[str, Any]], calls: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Reasoning items back in their places, when they belong to exactly these calls."""
    kept = _parts(kept)
    if [item.get("call_id") for item in kept if item.get("type") == "function_call"] != list(calls):
        return [*text, *calls.values()]
    items: list[dict[str, Any]] = []
    for item in kept:
        if item.get("type") == "reasoning":
            items.append(dict(item))
        elif item.get("type") == "message":
            items += text
            text = []
        else:
            items.append(calls[item["call_id"]])
    return [*items, *text]


def _call_item(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {
        "type": "function_call",
        "call_id": call["id"],
        "name": function["name"],
        "arguments": function["arguments"],
    }


def _content_parts(content: Any) -> list[Mapping[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else _parts(content)


def _input_part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part.get("type") == "image_url":
        return {"type": "input_image", "image_url": _mapping(part.get("image_url")).get("url", "")}
    return {"type": "input_text", "text": part.get("text", "")}


def _choices(settings: RequestSettings, names: ToolNames, has_tools: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "max_output_tokens": settings.max_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "text": {"format": _format(settings.response_format)} if settings.response_format else None,
    }
    if has_tools:
        fields["parallel_tool_calls"] = settings.parallel_tool_calls
        choice = settings.tool_choice
        named = choice not in (None, "auto", "none", "required")
        fields["tool_choice"] = {"type": "function", "name": names.sent(str(choice))} if named else choice
    return fields


def _format(response_format: Mapping[str, Any]) -> dict[str, Any]:
    inner = response_format.get("json_schema")
    return {"type": "json_schema", **inner} if isinstance(inner, Mapping) else dict(response_format)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
