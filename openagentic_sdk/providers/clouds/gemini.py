"""Gemini's own API as a provider: chat messages in, stream events out.

A model's parts are sent back verbatim, with their thought signatures, to the endpoint that sent them. The format of
requests and answers: ai.google.dev/api/generate-content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Unpack
from urllib.parse import quote

from ...errors import GarbledResponseError, OptionsError, ProviderHTTPError
from ...ground.loose import as_mapping, as_mappings, as_text
from ...ground.patterns import regex
from ..base import Message, ModelOutput, ReasoningPiece, StreamEvent, TextDelta, ToolSpec
from ..calls import HeardCall, finish_calls
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
from ..controls import UNSIGNED
from ..endpoint import EndpointArguments, EndpointProvider
from ..failures import cut_answer, unexpected
from ..quirks import Quirks
from ..wire.growing import check_part_count
from ..wire.reading import LINGER_AFTER_FINISH_S, Reading
from .pieces import CallInPieces

_QUIRKS = Quirks(
    accepts="gemini", empty_content="", echo_fields=("gemini_parts",), name_in_tool_result=True, think_tags=False,
    keeps_parts=True,
)  # fmt: skip
# Fields of a part that a message's own fields represent already; a part with any other is kept verbatim.
_PLAIN_FIELDS = frozenset({"text", "functionCall"})
# The only finish reason of a complete answer (ai.google.dev/api/generate-content#FinishReason).
_WHOLE = "stop"
# ai.google.dev, "Thought signatures": for function calls that were not made by this API.
_SIGNED_ELSEWHERE = "skip_thought_signature_validator"
_UNSIGNED = regex(r"missing a thought.?signature", re.I)
# Models up to 2.5 accept a thinking budget in tokens, later ones a level; the later ones also accept media in function
# results (ai.google.dev, "Function calling", "Multimodal function responses").
_OLD_MODEL = regex(r"gemini-(1|2)|gemma|learnlm")
_BUDGETS = {"none": 0, "minimal": 1_024, "low": 1_024, "medium": 8_192, "high": 24_576}
_LEVELS = ("minimal", "low", "medium", "high")


class GeminiProvider(EndpointProvider):
    """A provider for Gemini's own API. The key is that of the call, else `api_key`, else GEMINI_API_KEY.

    `base_url` defaults to GEMINI_BASE_URL, then to Gemini's address. `thinking` is the API's own `thinkingConfig`; it takes
    precedence over `RequestSettings.reasoning_effort`.
    """

    name = "gemini"
    usual_url = "https://generativelanguage.googleapis.com"
    url_variable = "GEMINI_BASE_URL"
    hosts: tuple[str, ...] = ("generativelanguage.googleapis.com",)
    key_variable: str | None = "GEMINI_API_KEY"
    needs_key = True
    has_response_format = True

    def __init__(
        self,
        *,
        base_url: str | None = None,
        thinking: Mapping[str, Any] | None = None,
        **endpoint: Unpack[EndpointArguments],
    ) -> None:
        super().__init__(base_url=base_url, **endpoint)
        self.base_url = self.base_url.removesuffix("/v1beta")
        self._thinking = thinking

    def model_path(self, model: str) -> str:
        """The path of a model; the operation is appended after a colon."""
        return f"/v1beta/models/{quote(model.removeprefix('models/'), safe='')}"

    def url(self, model: str) -> str:
        return self.address(f"{self.model_path(model)}:generateContent")

    def url_of_request(self, model: str, *, stream: bool) -> str:
        return self.address(f"{self.model_path(model)}:streamGenerateContent", alt="sse") if stream else self.url(model)

    def models_url(self) -> str:
        return self.address("/v1beta/models", pageSize="1000")

    def count_request(self, model: str, payload: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
        request = {"model": f"models/{model.removeprefix('models/')}", **payload}
        return self.address(f"{self.model_path(model)}:countTokens"), {"generateContentRequest": request}, "totalTokens"

    def authorization(self, key: str) -> dict[str, str]:
        return {"x-goog-api-key": key}

    def control_for(self, error: ProviderHTTPError) -> str | None:
        """Like the base class, or `UNSIGNED` if a call without a signature, which another model made, was refused."""
        if error.status == 400 and _UNSIGNED.search(f"{error} {error.body}"):
            return UNSIGNED
        return super().control_for(error)

    def prepare(
        self, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], *, stream: bool
    ) -> tuple[dict[str, Any], Reading, ToolNames]:
        names = ToolNames(tools, _QUIRKS.accepts)
        repaired = repair_messages(messages, quirks=_QUIRKS, names=names, origin=self.origin)
        system, contents = _contents(repaired, media_in_results=_OLD_MODEL.search(model) is None)
        if self.controls.has(UNSIGNED):
            # If no call of an answer is signed, give the first one the signature that the API accepts for foreign calls.
            for turn in contents:
                calls = [part for part in turn["parts"] if part.get("functionCall")]
                if calls and not any(part.get("thoughtSignature") for part in calls):
                    calls[0]["thoughtSignature"] = _SIGNED_ELSEWHERE
        effort, response_format = self.settings.reasoning_effort, self.settings.response_format
        if response_format is not None and response_format.get("type") not in ("json_schema", "json_object"):
            raise OptionsError(
                "the type of response_format must be json_schema or json_object for Gemini, not "
                f"{response_format.get('type')!r:.100}"
            )
        thinking = None if effort is None else _thinking(effort, model)
        generation: dict[str, Any] = {
            "maxOutputTokens": self.settings.max_tokens,
            "temperature": self.settings.temperature,
            "topP": self.settings.top_p,
            "seed": self.settings.seed,
            "stopSequences": list(self.settings.stop) if self.settings.stop else None,
            "responseMimeType": None if response_format is None else "application/json",
            "responseJsonSchema": as_mapping((response_format or {}).get("json_schema")).get("schema"),
            "thinkingConfig": thinking if self._thinking is None else dict(self._thinking),
        }
        payload: dict[str, Any] = {
            "contents": contents,
            "systemInstruction": {"parts": system} if system else None,
            "tools": _tools(tools, self.settings.extra_tools, names) or None,
            **(_tool_config(self.settings, names) if tools else {}),
            "generationConfig": {key: value for key, value in generation.items() if value is not None} or None,
        }
        payload = with_extra_body(payload, self.settings.extra_body)
        payload = {key: value for key, value in payload.items() if value is not None}
        return payload, GeminiReading(used_call_ids(messages), self.origin), names


class GeminiReading(Reading):
    """A reader of an answer, chunk by chunk: each contains parts, and the last one also the finish reason."""

    def __init__(self, used_ids: set[str], origin: str) -> None:
        super().__init__(used_ids, origin)
        self._parts: list[dict[str, Any]] = []
        self._pieces: CallInPieces | None = None  # the call that is open
        self._usage: dict[str, Any] | None = None
        self._finish_reason: str | None = None
        self._finish_message = ""
        self._has_calls_behind = False  # whether a call came after the finish reason
        self._blocked: str | None = None
        self._model: str | None = None
        self._response_id: str | None = None
        self._citations: dict[str, Mapping[str, Any]] = {}  # by their JSON
        self._logprobs: Any = None

    def take_chunk(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        if response_id := as_text(chunk.get("responseId")):
            if self._response_id not in (None, response_id):
                raise GarbledResponseError(
                    f"the endpoint mixed two answers in one stream ({self._response_id!r:.100} and {response_id!r:.100}): "
                    "the answer was discarded"
                )
            self._response_id = response_id
        usage = chunk.get("usageMetadata")
        self._usage = _usage(usage) if isinstance(usage, Mapping) else self._usage
        self._model = as_text(chunk.get("modelVersion")) or self._model
        feedback = as_mapping(chunk.get("promptFeedback"))
        self._blocked = str(feedback["blockReason"]) if feedback.get("blockReason") else self._blocked
        candidates = as_mappings(chunk.get("candidates"))
        # Only the first candidate: with several, their parts would be mixed into one answer.
        first: Mapping[str, Any] = next((one for one in candidates if one.get("index", 0) == 0), {})
        events: list[StreamEvent] = []
        for part in as_mappings(as_mapping(first.get("content")).get("parts")):
            events += self._take_part(dict(part))
            self._has_calls_behind |= self._finish_reason is not None and "functionCall" in part
        for holder, key in (("groundingMetadata", "groundingChunks"), ("citationMetadata", "citationSources")):
            for item in as_mappings(as_mapping(first.get(holder)).get(key)):
                check_part_count(len(self._citations) + 1)
                self._citations.setdefault(json.dumps(item, sort_keys=True), item)
        self._logprobs = first.get("logprobsResult") or self._logprobs
        reason = as_text(first.get("finishReason"))
        if reason not in ("", "FINISH_REASON_UNSPECIFIED"):
            self._finish_reason, self._has_calls_behind = reason, False
            self._finish_message = str(first.get("finishMessage") or "")
        if self._finish_reason or self._blocked:
            self.linger_s = LINGER_AFTER_FINISH_S
        return events

    def take_whole(self, body: Mapping[str, Any]) -> list[StreamEvent]:
        if not isinstance(body.get("candidates"), list) and not body.get("promptFeedback"):
            raise unexpected("answer has no candidates", body)
        return self.take_chunk(body)

    def take_array(self, chunks: Sequence[Any]) -> list[StreamEvent]:
        """Read a stream that was requested without `alt=sse`: an array of its chunks."""
        return [event for chunk in chunks for event in self.take_chunk(as_mapping(chunk))]

    def conclude(self) -> tuple[list[StreamEvent], ModelOutput]:
        text = "".join(as_text(part.get("text")) for part in self._parts if not part.get("thought"))
        if (self._finish_reason is None or self._has_calls_behind) and self._blocked is None:
            raise cut_answer(text, "a finishReason")
        reason = (self._finish_reason or f"blocked:{self._blocked}").lower()
        heard_calls = [
            HeardCall(
                id=str(call.get("id") or ""),
                name=str(call.get("name") or ""),
                text=args if isinstance(args := call.get("args"), str) else json.dumps(args or {}),
                # A call that arrived in pieces keeps these fields if its end is missing or a piece fits nowhere.
                ended=reason == _WHOLE and not (call.get("willContinue") or call.get("partialArgs")),
            )
            for call in (as_mapping(part.get("functionCall")) for part in self._parts)
            if call
        ]
        is_refusal = bool(self._blocked or re.search("safety|prohibited|blocklist|spii|recitation", reason))
        calls = finish_calls(heard_calls, finish_reason=reason, refusal=is_refusal, used_ids=self._used_ids)
        reason_text = self._finish_message or (
            f"the endpoint blocked the prompt: {self._blocked}" if self._blocked else ""
        )
        reasoning = "".join(as_text(part.get("text")) for part in self._parts if part.get("thought"))
        return [], ModelOutput(
            assistant_text=text or (reason_text if is_refusal else "") or None,
            tool_calls=calls,
            usage=self._usage,
            finish_reason=reason,
            reasoning=reasoning or None,
            extras=self._extras([call.tool_use_id for call in calls]),
            refusal=is_refusal,
            model=self._model,
            response_id=self._response_id,
            citations=tuple(self._citations.values()),
            logprobs=self._logprobs,
        )

    def _take_part(self, part: dict[str, Any]) -> list[StreamEvent]:
        call = part.get("functionCall")
        if isinstance(call, dict) and (call.get("willContinue") or (self._pieces is not None and not call.get("name"))):
            self._take_piece(part, call)
            return []
        text = as_text(part.get("text"))
        last = self._parts[-1] if self._parts else {}
        # Text arrives in many parts, which are joined unless they have other fields. A signature ends its part.
        joins = set(part) <= {"text", "thought"} and set(last) <= {"text", "thought"} and "text" in last
        if joins and "text" in part and bool(part.get("thought")) == bool(last.get("thought")):
            self._growing.add(last, "text", text)
        elif not _is_empty(part):
            check_part_count(len(self._parts) + 1)
            self._parts.append(part)
        if not text:
            return []
        return [ReasoningPiece(text) if part.get("thought") else TextDelta(text)]

    def _take_piece(self, part: dict[str, Any], piece: Mapping[str, Any]) -> None:
        """Assemble a call that arrives in pieces (`streamFunctionCallArguments`, which `extra_body` can request)."""
        # Only the first piece of a call contains its name, so a name begins another call.
        if self._pieces is None or piece.get("name"):
            self._pieces = CallInPieces()
            self._parts.append({**part, "functionCall": self._pieces.call})
        self._pieces.take(piece)
        if not piece.get("willContinue"):
            self._pieces = None

    def _extras(self, call_ids: list[str]) -> dict[str, Any] | None:
        """The parts verbatim, with the ids of their calls; None if they are only text and calls without signatures."""
        if all(part.keys() <= _PLAIN_FIELDS for part in self._parts):
            return None
        ids = iter(call_ids)
        kept_parts = [
            {**part, "functionCall": {**part["functionCall"], "id": next(ids)}} if part.get("functionCall") else part
            for part in self._parts
        ]
        return {"gemini_parts": kept_parts, "origin": self._origin}


def _contents(
    messages: Sequence[Message], *, media_in_results: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The parts of the system prompt, and the turns.

    The results of an answer's calls have their own turn: Vertex refuses results beside text. Without `media_in_results`,
    the parts of results that are not text go into the turn after them.
    """
    system: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    kinds: list[str] = []
    media: list[dict[str, Any]] = []

    def add(kind: str, parts: list[dict[str, Any]]) -> None:
        if kinds[-1:] == [kind]:
            turns[-1]["parts"] += parts
        elif parts:
            kinds.append(kind)
            turns.append({"role": "model" if kind == "assistant" else "user", "parts": parts})

    for message in messages:
        role = message["role"]
        if role == "tool":
            response, unsent = _response(message, media_in_results)
            media += unsent
            add("tool", [{"functionResponse": response}])
            continue
        add("user", media)
        media = []
        if role == "system":
            system += _user_parts(message.get("content"))
        else:
            add(role, _model_parts(message) if role == "assistant" else _user_parts(message.get("content")))
    add("user", media)
    return system, turns


def _response(message: Message, with_media: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The `functionResponse` for a result, and the parts that must be sent after it."""
    content, media, unsent = message.get("content"), [], []
    if not isinstance(content, str):
        parts = _user_parts(content)
        media = [part for part in parts if "text" not in part]
        content = "\n\n".join(part["text"] for part in parts if "text" in part)
    if media and not with_media:
        unsent, media = [{"text": f"From the result of {message['name']}:"}, *media], []
    response = {
        "id": message["tool_call_id"],
        "name": message["name"],
        "response": {"error" if message.get("is_error") else "output": content},
        **({"parts": media} if media else {}),
    }
    return response, unsent


def _user_parts(content: Any) -> list[dict[str, Any]]:
    return [_user_part(part) for part in read_parts(content)]


def _user_part(part: ContentPart) -> dict[str, Any]:
    """One part of a prompt. Raises `OptionsError` for a part that the API cannot carry."""
    if part.kind == "text":
        return {"text": part.text}
    if part.data is not None:
        return {"inlineData": {"mimeType": part.media_type, "data": part.data}}
    if part.url is None:
        raise cannot_carry(part, "Gemini", "give its data or a URL")
    return {"fileData": {"fileUri": part.url, **({"mimeType": part.media_type} if part.media_type else {})}}


def _model_parts(message: Message) -> list[dict[str, Any]]:
    calls = message.get("tool_calls") or ()
    kept_parts = message.get("gemini_parts")
    if isinstance(kept_parts, list):
        kept_ids = [part["functionCall"].get("id") for part in kept_parts if part.get("functionCall")]
        if kept_ids == [call["id"] for call in calls]:
            return [dict(part) for part in kept_parts if not _is_empty(part)]
    parts = _user_parts(message.get("content"))
    for call in calls:
        function = call["function"]
        function_call = {"id": call["id"], "name": function["name"], "args": json.loads(function["arguments"])}
        parts.append({"functionCall": function_call})
    return parts


def _is_empty(part: Mapping[str, Any]) -> bool:
    """Whether a part has no content, which the API refuses; a signature counts as content."""
    return set(part) <= {"text", "thought"} and not part.get("text")


def _tools(
    tools: Sequence[ToolSpec], extra_tools: Sequence[Mapping[str, Any]], names: ToolNames
) -> list[dict[str, Any]]:
    """One entry with all functions, and one for each of the vendor's own tools (`{"google_search": {}}`)."""

    def declare(tool: ToolSpec) -> dict[str, Any]:
        function = write_tool(tool, names, _QUIRKS)["function"]
        return {
            "name": function["name"],
            "description": function["description"],
            "parametersJsonSchema": function["parameters"],
        }

    definitions = write_tools(tools, extra_tools, declare, names)
    declared = [tool for tool in definitions if "parametersJsonSchema" in tool]
    own = [tool for tool in definitions if "parametersJsonSchema" not in tool]
    return [*([{"functionDeclarations": declared}] if declared else []), *own]


def _tool_config(settings: RequestSettings, names: ToolNames) -> dict[str, Any]:
    if settings.parallel_tool_calls is False:
        raise OptionsError("Gemini cannot be limited to one call per answer: leave parallel_tool_calls unset")
    if settings.tool_choice is None:
        return {}
    modes: dict[str, dict[str, Any]] = {"auto": {"mode": "AUTO"}, "none": {"mode": "NONE"}, "required": {"mode": "ANY"}}
    mode = modes.get(settings.tool_choice)
    if mode is None:
        mode = {"mode": "ANY", "allowedFunctionNames": [names.sent(settings.tool_choice)]}
    return {"toolConfig": {"functionCallingConfig": mode}}


def _thinking(effort: str, model: str) -> dict[str, Any]:
    if _OLD_MODEL.search(model):
        if effort not in _BUDGETS:
            raise OptionsError(f"{model} accepts reasoning_effort {', '.join(_BUDGETS)}, not {effort!r}")
        return {"thinkingBudget": _BUDGETS[effort]}
    if effort not in _LEVELS:
        raise OptionsError(f"{model} accepts reasoning_effort {', '.join(_LEVELS)}, not {effort!r}")
    return {"thinkingLevel": effort.upper()}


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """The counts in the terms of the Responses API, in which output includes thoughts."""
    counts = {key: value if isinstance(value, int) else 0 for key, value in usage.items()}
    thoughts = counts.get("thoughtsTokenCount", 0)
    return {
        "input_tokens": counts.get("promptTokenCount", 0) + counts.get("toolUsePromptTokenCount", 0),
        "output_tokens": counts.get("candidatesTokenCount", 0) + thoughts,
        "input_tokens_details": {"cached_tokens": counts.get("cachedContentTokenCount", 0)},
        "output_tokens_details": {"reasoning_tokens": thoughts},
    }
