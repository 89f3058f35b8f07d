"""OpenAI's Responses API as a provider: chat messages in, stream events out.

Nothing is stored at OpenAI unless `store` requests it: reasoning is returned encrypted and sent along with the next
request, to the same endpoint only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Unpack

from ..errors import GarbledResponseError, OptionsError, ProviderHTTPError, ProviderResponseError
from ..ground.loose import as_mapping, as_mappings, as_text
from .base import Message, ModelOutput, ReasoningPiece, StreamEvent, TextDelta, ToolCall, ToolSpec
from .calls import TOOL_SEARCH, HeardCall, allowed_callers, finish_calls, tool_names_in, vendor_caller
from .chat_request import (
    RequestSettings,
    ToolNames,
    function_of,
    repair_messages,
    used_call_ids,
    with_extra_body,
    write_tool,
    write_tools,
)
from .content import ContentPart, cannot_carry, read_parts
from .endpoint import EndpointArguments, EndpointProvider
from .failures import cut_answer, error_in_body, unexpected
from .openai import OPENAI_HOSTS, OPENAI_URL
from .openai_stream_assembler import reported_cost
from .quirks import Quirks, quirks_for
from .wire.growing import check_part_count
from .wire.reading import Reading

_QUIRKS = Quirks(
    accepts="openai",
    empty_content="",
    strict_tools=True,
    echo_fields=("responses_items", "responses_id"),
    think_tags=False,
    keeps_parts=True,
    name_in_tool_result=True,
    max_tool_id=64,
)
# These families do not reason, and reply 400 to a request for encrypted reasoning. Any other name (a deployment's, a
# router's) may be that of a model that does.
_PLAIN_MODEL = r"(?:.*/)?(?:ft:)?(?:gpt-[34]|chatgpt|davinci|babbage|computer-use)"
_BETWEEN_MESSAGES = "\n\n"
# The fields kept of messages and calls, whose text and arguments are in the conversation; `chars` is added to messages.
_KEPT_OF_PLAIN = ("type", "id", "status", "phase", "call_id", "execution", "caller")
# Calls of the vendor's own tools that a client must carry out, which is not supported here; the API refuses one that has
# no result.
_DONE_BY_CLIENTS = frozenset({"local_shell_call", "shell_call", "apply_patch_call", "computer_call"})
# The request fields that the number of tokens depends on.
_COUNTED = frozenset(
    {"model", "input", "tools", "tool_choice", "reasoning", "text", "previous_response_id", "parallel_tool_calls"}
)


class OpenAIResponsesProvider(EndpointProvider):
    """A provider for the Responses API. The key is that of the call, else `api_key`, else OPENAI_API_KEY.

    `base_url` defaults to OPENAI_BASE_URL. `reasoning_summary` (`auto`, `concise`, `detailed`) requests the reasoning as
    text; None does not. With `store`, answers are kept at OpenAI, and a request names the previous answer
    (`previous_response_id`) and carries only what came after it; later changes to messages before it have no effect.
    `previous_response_id` is the id of a stored answer to start from. If `loads_tools` is true, tools found later are
    defined at the search result that found them (`tool_search`) and not at the start; None means only for the models that
    support it, at OpenAI's own endpoint.
    """

    name = "openai-responses"
    operation = "/responses"
    usual_url = OPENAI_URL
    url_variable = "OPENAI_BASE_URL"
    key_variable = "OPENAI_API_KEY"
    hosts = OPENAI_HOSTS
    has_response_format = True

    inputs = ("image", "file")

    def __init__(
        self,
        *,
        base_url: str | None = None,
        reasoning_summary: str | None = None,
        store: bool = False,
        previous_response_id: str | None = None,
        loads_tools: bool | None = None,
        **endpoint: Unpack[EndpointArguments],
    ) -> None:
        super().__init__(base_url=base_url, **endpoint)
        self.needs_key = self.is_at_home
        self._reasoning_summary = reasoning_summary
        self._store = store
        self._previous_response_id = previous_response_id
        self._plain_models: set[str] = set()
        self._loads_tools = loads_tools

    def url(self, model: str) -> str:
        return self.address(self.operation)

    def loads_tools(self, model: str) -> bool:
        """Whether tools may be defined where they were found (developers.openai.com, "Tool search", since gpt-5.4)."""
        if self._loads_tools is not None:
            return self._loads_tools
        version = re.match(r"gpt-(\d+)(?:\.(\d+))?", model)
        return self.is_at_home and version is not None and (int(version[1]), int(version[2] or 0)) >= (5, 4)

    def learn_from(self, error: ProviderHTTPError, model: str) -> bool:
        """Stop requesting encrypted reasoning if the endpoint refused it; return whether to send the request again."""
        refused = error.status == 400 and re.search(r"encrypted|include", f"{error} {error.body}", re.I) is not None
        if not refused or not self._wants_reasoning(model):
            return False
        self._plain_models.add(model)
        return True

    def count_request(self, model: str, payload: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
        counted = {key: value for key, value in payload.items() if key in _COUNTED}
        return self.address("/responses/input_tokens"), counted, "input_tokens"

    def prepare(
        self, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], *, stream: bool
    ) -> tuple[dict[str, Any], Reading, ToolNames]:
        names = ToolNames(tools, _QUIRKS.accepts)
        repaired = repair_messages(messages, quirks=_QUIRKS, names=names, origin=self.origin)
        previous, new_messages = self._behind_stored(repaired)
        asked_as = _call_forms(repaired)

        def write(tool: ToolSpec) -> dict[str, Any]:
            definition = {"type": "function", "strict": False, **write_tool(tool, names, _QUIRKS)["function"]}
            return {**definition, **allowed_callers(tool, "programmatic")}

        found_tools: dict[str, dict[str, Any]] | None = None
        if self.loads_tools(model):
            found_tools = {str(function_of(t).get("name")): write(t) for t in tools if t.get("defer_loading")}
            tools = [tool for tool in tools if not tool.get("defer_loading")]
        definitions = write_tools(tools, self.settings.extra_tools, write, names)
        if found_tools is not None:
            # The tool search is the API's own tool, but carried out here.
            own = {"type": "tool_search", "execution": "client"}
            shown_keys = ("description", "parameters")
            definitions = [
                {**own, **{k: t[k] for k in shown_keys}} if t.get("name") == TOOL_SEARCH else t for t in definitions
            ]
        reasoning = {"effort": self.settings.reasoning_effort, "summary": self._reasoning_summary}
        payload: dict[str, Any] = {
            "model": model,
            "input": [item for message in new_messages for item in _items(message, found_tools, asked_as)],
            "store": self._store,
            "previous_response_id": previous,
            "tools": definitions or None,
            "stream": True if stream else None,
            # Without storage at the vendor, encrypted reasoning is the only form in which the next request can contain
            # it.
            "include": ["reasoning.encrypted_content"] if self._wants_reasoning(model) else None,
            "prompt_cache_key": self._session.cache_key if quirks_for(self.base_url).cache_key else None,
            "reasoning": {key: value for key, value in reasoning.items() if value} or None,
            **_choices(self.settings, names, bool(definitions)),
        }
        payload = with_extra_body(payload, self.settings.extra_body)
        payload = {key: value for key, value in payload.items() if value is not None}
        return payload, ResponseReading(used_call_ids(messages), self.origin, stored=self._store), names

    def _wants_reasoning(self, model: str) -> bool:
        """Whether to request encrypted reasoning: from every model except those known to have none."""
        return not self._store and model not in self._plain_models and re.match(_PLAIN_MODEL, model) is None

    def _behind_stored(self, messages: Sequence[Message]) -> tuple[str | None, Sequence[Message]]:
        """The id of the stored answer that the request continues, or None, and the messages after it."""
        if self._store:
            for place in range(len(messages) - 1, -1, -1):
                if response_id := messages[place].get("responses_id"):
                    return str(response_id), messages[place + 1 :]
        return self._previous_response_id, messages


class ResponseReading(Reading):
    """A reader of a response, item by item. Events refer to an item by its place or its id, otherwise to the last one."""

    def __init__(self, used_ids: set[str], origin: str, *, stored: bool = False) -> None:
        super().__init__(used_ids, origin)
        self._stored = stored
        self._items: list[dict[str, Any]] = []
        self._by_place: dict[Any, int] = {}
        self._by_id: dict[Any, int] = {}
        self._ended: set[int] = set()
        self._arguments: dict[int, list[str]] = {}  # in pieces
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal = False
        self._begins_message = False  # whether the next text belongs to another message
        self._text_index: Any = None
        self._id: str | None = None
        self._is_created = False
        self._response: Mapping[str, Any] | None = None

    def take_chunk(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        take = _TAKES.get(str(chunk.get("type")))
        return [] if take is None else take(self, chunk)

    def take_whole(self, body: Mapping[str, Any]) -> list[StreamEvent]:
        if not isinstance(body.get("output"), list):
            raise unexpected("answer has no output", body)
        self._id = as_text(body.get("id")) or None
        self._take_end(body)
        events: list[StreamEvent] = []
        if reasoning := _reasoning_of(self._items):
            events += self._show_reasoning(reasoning)
        if text := _text_of(self._items):
            events += self._show_text(text)
        return events

    def conclude(self) -> tuple[list[StreamEvent], ModelOutput]:
        text = _text_of(self._items) or "".join(self._text)
        response = self._response
        if response is None:
            raise cut_answer(text, "response.completed")
        rest = self._show_text(text) if text and not self._text else []
        parts = [part for item in self._items for part in as_mappings(item.get("content"))]
        refusal = self._refusal or any(part.get("refusal") for part in parts)
        reason = self._finish_reason(response)
        calls = self._calls(reason, refusal)
        usage = as_mapping(response.get("usage"))
        return rest, ModelOutput(
            assistant_text=text or None,
            tool_calls=calls,
            usage=usage or None,
            finish_reason=reason or ("tool_calls" if calls else "stop"),
            reasoning=_reasoning_of(self._items) or "".join(self._reasoning) or None,
            extras=self._extras(),
            refusal=refusal,
            model=as_text(response.get("model")) or None,
            citations=tuple(note for part in parts for note in as_mappings(part.get("annotations"))),
            response_id=self._id,
            service_tier=as_text(response.get("service_tier")) or None,
            logprobs=[one for part in parts for one in as_mappings(part.get("logprobs"))] or None,
            cost_usd=reported_cost(usage),
        )

    def _begin_response(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        # The id proves nothing: GitHub Copilot's endpoint gives each event its own.
        if self._is_created:
            raise GarbledResponseError("the endpoint sent two responses in one stream")
        self._is_created = True
        self._id = as_text(as_mapping(chunk.get("response")).get("id")) or self._id
        return []

    def _end_response(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        response = as_mapping(chunk.get("response"))
        self._id = as_text(response.get("id")) or self._id
        status = str(chunk["type"]).removeprefix("response.")
        self._take_end({**response, **({} if status == "completed" else {"status": status})})
        return []

    def _begin_item(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        self._put(len(self._items), self._placed(chunk))
        self._begins_message = self._items[-1].get("type") == "message" and bool(self._text)
        return []

    def _end_item(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        item = self._placed(chunk)
        index = self._find(item)
        place = len(self._items) if index is None else index
        self._put(place, item)
        # The endpoint may end an item twice, and the last status counts: an incomplete call must not run.
        self._ended.discard(place)
        if _is_whole(item):
            self._ended.add(place)
        return []

    def _add_arguments(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        place = self._find_call(chunk)
        self._arguments.setdefault(place, []).append(as_text(chunk.get("delta")))
        return []

    def _end_arguments(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        place = self._find_call(chunk)
        whole = as_text(chunk.get("arguments")) or as_text(chunk.get("input"))
        if whole:
            self._arguments[place] = [whole]
        self._ended.add(place)
        return []

    def _begin_summary(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        return self._show_reasoning("\n\n") if self._reasoning else []

    def _add_reasoning(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        delta = as_text(chunk.get("delta"))
        return self._show_reasoning(delta) if delta else []

    def _add_refusal(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        delta = as_text(chunk.get("delta"))
        self._refusal = self._refusal or bool(delta)
        return self._show_text(delta) if delta else []

    def _add_text(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        delta, index = as_text(chunk.get("delta")), chunk.get("output_index")
        if not delta:
            return []
        begins = self._begins_message or (bool(self._text) and index != self._text_index)
        self._begins_message, self._text_index = False, index
        return self._show_text(_BETWEEN_MESSAGES + delta if begins else delta)

    def _take_end(self, response: Mapping[str, Any]) -> None:
        if error := error_in_body({"error": response.get("error")}):
            raise error
        if response.get("status") in ("failed", "cancelled"):
            raise ProviderResponseError(f"the response ended with status {response['status']} and without a reason")
        self._response = response
        final = [dict(item) for item in as_mappings(response.get("output"))]
        if not self._items:
            self._items = final
            self._ended = {n for n, item in enumerate(final) if _is_whole(item)}
        elif not final:
            # Some servers mark only the end of the whole response. A call without arguments may have been incomplete then.
            self._ended |= {n for n, pieces in self._arguments.items() if any(pieces) and not _is_cut(self._items[n])}
        else:
            # The final response is authoritative: a call that is missing from it was withdrawn.
            final_items = {one[key]: one for one in final for key in ("id", "call_id") if one.get(key) is not None}
            self._ended = set()
            for place, item in enumerate(self._items):
                one = final_items.get(item.get("id")) or final_items.get(item.get("call_id")) or {"status": "missing"}
                if _is_whole(one) and not _is_cut(item):
                    self._ended.add(place)
                    item |= {key: one[key] for key in ("arguments", "input") if one.get(key)}
        self.take_marker()

    def _placed(self, chunk: Mapping[str, Any]) -> dict[str, Any]:
        return {**as_mapping(chunk.get("item")), "_place": chunk.get("output_index")}

    def _put(self, place: int, item: dict[str, Any]) -> None:
        """Append an item, or replace the one at this place."""
        check_part_count(place + 1)
        self._items[place : place + 1] = [item]
        for index, key in ((self._by_place, item["_place"]), (self._by_id, item.get("id"))):
            if key is not None:
                index[key] = place

    def _find(self, target: Mapping[str, Any]) -> int | None:
        """Find the index of an item: by its place in the output, else by its id, unless the places differ; else None."""
        place = self._by_place.get(target["_place"])
        by_id = self._by_id.get(target["id"]) if target.get("id") else None
        if place is not None or by_id is None:
            return place
        return by_id if target["_place"] is None or self._items[by_id]["_place"] is None else None

    def _find_call(self, chunk: Mapping[str, Any]) -> int:
        """Find the index of the call that a piece of arguments belongs to: by place, by id, else the last item.

        Raises `GarbledResponseError` if that item is not a call.
        """
        target = {"id": chunk.get("item_id"), "_place": chunk.get("output_index")}
        index = self._find(target)
        # Some servers send arguments without announcing the call; its name then comes with the item at the end.
        if index is None and not self._items:
            self._put(0, {"type": "function_call", **target})
        place = len(self._items) - 1 if index is None else index
        if self._items[place].get("type") not in ("function_call", "custom_tool_call", "tool_search_call"):
            raise GarbledResponseError("the endpoint sent arguments for an item that is not a call")
        return place

    def _calls(self, finish_reason: str | None, refusal: bool) -> list[ToolCall]:
        call_items = [(place, item) for place, item in enumerate(self._items) if _is_call(item)]
        heard_calls = [
            HeardCall(
                as_text(item.get("call_id")) or as_text(item.get("id")),
                TOOL_SEARCH if item["type"] == "tool_search_call" else as_text(item.get("name")),
                _arguments(item, "".join(self._arguments.get(place, ()))),
                ended=place in self._ended,
                caller=vendor_caller(item),
            )
            for place, item in call_items
        ]
        calls = finish_calls(heard_calls, finish_reason=finish_reason, refusal=refusal, used_ids=self._used_ids)
        for (_, item), call in zip(call_items, calls, strict=True):
            item["call_id"] = call.tool_use_id
        return calls

    def _extras(self) -> dict[str, Any] | None:
        """The items to send back in their order: reasoning and the vendor's own tools verbatim, others without content.

        None if all items are plain function calls, which the conversation itself contains.
        """
        extras: dict[str, Any] = {"responses_id": self._id} if self._stored and self._id else {}
        plain = [item.get("type") == "message" or _is_call(item) for item in self._items]
        if not all(plain) or any(item.get("type") != "function_call" or vendor_caller(item) for item in self._items):
            kept_items = [
                {key: item[key] for key in _KEPT_OF_PLAIN if item.get(key) is not None}
                if is_plain
                else {key: value for key, value in item.items() if key != "_place" and value is not None}
                for item, is_plain in zip(self._items, plain, strict=True)
            ]
            for item, kept_item in zip(self._items, kept_items, strict=True):
                if item.get("type") == "message":
                    # Instead of the text itself, which is in the conversation already: enough to divide it into the
                    # same messages again.
                    kept_item["chars"] = len(_text_of([item]))
            extras["responses_items"] = kept_items
        return {**extras, "origin": self._origin} if extras else None

    def _finish_reason(self, response: Mapping[str, Any]) -> str | None:
        """The reason why the response is incomplete; None if it is complete."""
        if response.get("status") != "incomplete":
            return None
        reason = as_text(as_mapping(response.get("incomplete_details")).get("reason")) or "incomplete"
        return "length" if reason == "max_output_tokens" else reason

    def _show_text(self, text: str) -> list[StreamEvent]:
        self._text.append(text)
        return [TextDelta(text)]

    def _show_reasoning(self, text: str) -> list[StreamEvent]:
        self._reasoning.append(text)
        return [ReasoningPiece(text)]


# The method for each type of event; the other types add nothing new.
_TAKES: Mapping[str, Callable[[ResponseReading, Mapping[str, Any]], list[StreamEvent]]] = {
    "response.created": ResponseReading._begin_response,
    "response.output_item.added": ResponseReading._begin_item,
    "response.output_item.done": ResponseReading._end_item,
    "response.output_text.delta": ResponseReading._add_text,
    "response.refusal.delta": ResponseReading._add_refusal,
    "response.reasoning_summary_part.added": ResponseReading._begin_summary,
    "response.reasoning_summary_text.delta": ResponseReading._add_reasoning,
    "response.reasoning_text.delta": ResponseReading._add_reasoning,
    "response.function_call_arguments.delta": ResponseReading._add_arguments,
    "response.function_call_arguments.done": ResponseReading._end_arguments,
    "response.custom_tool_call_input.delta": ResponseReading._add_arguments,
    "response.custom_tool_call_input.done": ResponseReading._end_arguments,
    "response.completed": ResponseReading._end_response,
    "response.incomplete": ResponseReading._end_response,
    "response.failed": ResponseReading._end_response,
    "response.cancelled": ResponseReading._end_response,
}


def _is_call(item: Mapping[str, Any]) -> bool:
    """Whether an item is a call to carry out here; a tool search may also run at the vendor."""
    kind = item.get("type")
    return kind in ("function_call", "custom_tool_call") or (
        kind == "tool_search_call" and item.get("execution") == "client"
    )


def _is_whole(item: Mapping[str, Any]) -> bool:
    return item.get("status") in (None, "completed")


def _is_cut(item: Mapping[str, Any]) -> bool:
    """Whether an item has ended before it was complete; one in progress may still continue."""
    return not _is_whole(item) and item["status"] != "in_progress"


def _arguments(item: Mapping[str, Any], streamed: str) -> str:
    """A call's arguments as JSON text.

    A function's arguments are already text, a search's are an object, and a tool with its own grammar (`custom`) gets one
    string, its `input`.
    """
    if item.get("type") == "custom_tool_call":
        return json.dumps({"input": as_text(item.get("input")) or streamed})
    arguments = item.get("arguments")
    return json.dumps(arguments) if isinstance(arguments, Mapping) else as_text(arguments) or streamed


def _text_of(items: Sequence[Mapping[str, Any]]) -> str:
    texts = [
        "".join(str(part.get("text") or part.get("refusal") or "") for part in as_mappings(item.get("content")))
        for item in items
        if item.get("type") == "message"
    ]
    return _BETWEEN_MESSAGES.join(text for text in texts if text)


def _reasoning_of(items: Sequence[Mapping[str, Any]]) -> str:
    texts = []
    for item in items:
        if item.get("type") == "reasoning":
            parts = as_mappings(item.get("summary")) or as_mappings(item.get("content"))
            texts += [str(part.get("text") or "") for part in parts]
    return "\n\n".join(text for text in texts if text)


def _call_forms(messages: Sequence[Message]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Map the id of each call in the endpoint's own items to its type and the fields that its result must repeat.

    Such a field is `caller`, if a program at the vendor made the call.
    """
    items = [item for message in messages for item in as_mappings(message.get("responses_items"))]
    return {
        str(item.get("call_id")): (item["type"], {"caller": caller} if (caller := vendor_caller(item)) else {})
        for item in items
        if _is_call(item)
    }


def _items(
    message: Message,
    found_tools: Mapping[str, dict[str, Any]] | None,
    asked_as: Mapping[str, tuple[str, dict[str, Any]]],
) -> list[dict[str, Any]]:
    """A message as items of the request. `found_tools` are the definitions to place where tools were found, if any.

    `asked_as` is the result of `_call_forms` for the whole conversation.
    """
    role, content = message["role"], message.get("content")
    if role == "tool" and found_tools is not None and message.get("name") == TOOL_SEARCH:
        tools = [{**found_tools[name], "defer_loading": True} for name in tool_names_in(content) if name in found_tools]
        ended = {"call_id": message["tool_call_id"], "execution": "client", "status": "completed"}
        return [{"type": "tool_search_output", **ended, "tools": tools}]
    if role == "tool":
        output = content if isinstance(content, str) else [_input_part(part) for part in read_parts(content)]
        call_id = message["tool_call_id"]
        kind, made_by = asked_as.get(call_id, ("function_call", {}))
        return [{"type": f"{kind}_output", "call_id": call_id, "output": output, **made_by}]
    if role != "assistant":
        parts = [_input_part(part) for part in read_parts(content)]
        return [{"role": role, "content": parts}] if parts else []
    text = "".join(part.text for part in read_parts(content))
    calls: dict[str, dict[str, Any]] = {}
    for call in message.get("tool_calls") or ():
        call_id, function = call["id"], {key: call["function"][key] for key in ("name", "arguments")}
        calls[call_id] = {"type": "function_call", "call_id": call_id, **function}
        if found_tools is not None and function["name"] == TOOL_SEARCH:
            ended = {"call_id": call_id, "execution": "client", "status": "completed"}
            calls[call_id] = {"type": "tool_search_call", **ended, "arguments": json.loads(function["arguments"])}
    return _restored_items(as_mappings(message.get("responses_items")), text, calls)


def _restored_items(
    kept_items: list[Mapping[str, Any]], text: str, calls: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Put reasoning, messages and the vendor's own calls back in their places; if they belong to other calls, omit them.

    Reasoning is sent with the item after it or not at all, and only if the endpoint can read it again; xAI returns the
    results of its own tools as reasoning, several in a row.
    """
    answered_ids = {item.get("call_id") for item in kept_items if str(item.get("type")).endswith("_output")}
    kept_items = [
        item for item in kept_items if item.get("type") not in _DONE_BY_CLIENTS or item.get("call_id") in answered_ids
    ]
    # The short form of a message: in the long form, vLLM also requires the id.
    message = [{"type": "message", "role": "assistant", "content": text}] if text else []
    if [item.get("call_id") for item in kept_items if _is_call(item)] != list(calls):
        return [*message, *calls.values()]
    messages = _messages_of(kept_items, text) or iter(message)
    items: list[dict[str, Any]] = []
    last = max((n for n, item in enumerate(kept_items) if item.get("type") != "reasoning"), default=-1)
    for place, item in enumerate(kept_items):
        if item.get("type") == "reasoning":
            readable = item.get("encrypted_content") or item.get("content")
            # The API refuses reasoning that is not followed by the item it led to.
            if readable and place < last:
                items.append({key: value for key, value in item.items() if key != "status"})
        elif item.get("type") == "message":
            items += islice(messages, 1 if item.get("chars") != 0 else 0)
        elif _is_call(item):
            items.append(_call_again(item, calls[item["call_id"]]))
        else:
            items.append(dict(item))
    return [*items, *messages]


def _call_again(item: Mapping[str, Any], call: dict[str, Any]) -> dict[str, Any]:
    made_by = {"caller": item["caller"]} if vendor_caller(item) else {}
    if item.get("type") != "custom_tool_call":
        return {**call, **made_by}
    text = as_text(as_mapping(json.loads(call["arguments"])).get("input"))
    return {"type": "custom_tool_call", "call_id": call["call_id"], "name": call["name"], "input": text, **made_by}


def _messages_of(items: Sequence[Mapping[str, Any]], text: str) -> Iterator[dict[str, Any]] | None:
    """The messages of an answer verbatim, with their ids and phases; None without ids, or if the text no longer matches."""
    messages = [item for item in items if item.get("type") == "message"]
    lengths = [item["chars"] if isinstance(item.get("chars"), int) else -1 for item in messages]
    texts, at = [], 0
    for length in lengths:
        at += len(_BETWEEN_MESSAGES) if at and length else 0
        texts.append(text[at : at + length])
        at += length
    if not messages or min(lengths) < 0 or at != len(text) or not all(item.get("id") for item in messages):
        return None
    return iter(
        [
            {key: item[key] for key in ("type", "id", "status", "phase") if key in item}
            | {"role": "assistant", "content": [{"type": "output_text", "text": part_text, "annotations": []}]}
            for item, part_text in zip(messages, texts, strict=True)
            if part_text
        ]
    )


def _input_part(part: ContentPart) -> dict[str, Any]:
    if part.kind == "text":
        return {"type": "input_text", "text": part.text}
    if part.kind == "audio":
        raise cannot_carry(part, "the Responses API", "use chat completions, or send a transcript")
    if part.file_id:
        return {"type": f"input_{part.kind}", "file_id": part.file_id}
    if part.kind == "image":
        return {"type": "input_image", "image_url": part.data_url, "detail": part.detail or "auto"}
    if part.url:
        return {"type": "input_file", "file_url": part.url}
    return {"type": "input_file", "filename": part.name or "file", "file_data": part.data_url}


def _choices(settings: RequestSettings, names: ToolNames, has_tools: bool) -> dict[str, Any]:
    for name, value in {"seed": settings.seed, "stop": settings.stop}.items():
        if value is not None:
            raise OptionsError(
                f"the Responses API has no {name}: leave {name}={value!r:.100} out, or use chat completions"
            )
    fields: dict[str, Any] = {
        "max_output_tokens": settings.max_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
    }
    if settings.response_format:
        inner = settings.response_format.get("json_schema")
        text_format = {"type": "json_schema", **inner} if isinstance(inner, Mapping) else dict(settings.response_format)
        fields["text"] = {"format": text_format}
    if has_tools:
        fields["parallel_tool_calls"] = settings.parallel_tool_calls
        choice = settings.tool_choice
        is_tool_name = choice not in (None, "auto", "none", "required")
        fields["tool_choice"] = {"type": "function", "name": names.sent(str(choice))} if is_tool_name else choice
    return fields
