"""Write a chat-completions request that the endpoint accepts, whatever the history of the conversation.

Pure. Messages that would make requests fail are repaired on a copy: calls without a result directly after them, results
without a call, duplicate ids, and names and text that JSON or the endpoint cannot carry. A repair is deterministic, so that
prompt caches keep working.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from typing import Any

from ..errors import OptionsError
from ..ground.frozen import frozen
from ..ground.loose import as_mapping, as_text
from ..ground.patterns import regex
from ..ground.words import plural, shortened
from ..serialization import whole_letters
from .base import Message, ToolCall, ToolSpec
from .content import cannot_carry, read_part, read_parts
from .definitions.accept import accepted
from .definitions.keys import KeyNames
from .definitions.table import rules_of
from .quirks import Quirks
from .wire.timeouts import Timeouts

NO_RESULT = "No result of this call was recorded: it may or may not have run. Check before repeating it."
# Mistral refuses a user's message directly after a result (`Quirks.assistant_after_tool`).
BETWEEN = "I have read the result."

# Longer strings bypass the JSON encoder (`encode_request`), and are written in pieces of this size.
_LONG = 64 * 1024
# The start of a failed call's result (`sessions.rebuild.result_text`).
_ERROR = regex(r"Error(?: \(\w+\))?: ")
_ROLE_FIELDS = {
    "system": ("role", "content", "name"),
    "developer": ("role", "content", "name"),
    "user": ("role", "content", "name"),
    "assistant": ("role", "content", "name", "tool_calls", "refusal"),
    "tool": ("role", "content", "tool_call_id", "name"),
}


@frozen(kw_only=True)
class RequestSettings:
    """Request options besides messages and tools; None leaves the choice to the endpoint.

    `tool_choice` is `auto`, `none`, `required` or the name of a tool. `response_format` is the protocol's JSON.
    `extra_tools` are entries for the vendor's own tools (`{"type": "web_search"}`), sent as they are. `extra_body` is
    merged into the request last, object by object (`with_extra_body`); a None in it removes a field. `extra_headers` are
    added to the headers. `idempotency_key` is sent as `Idempotency-Key`, the same for each attempt at one call. `timeouts`
    default to those of the connections. If `stream` is false, only complete answers are requested, for endpoints that
    cannot stream. `keep_raw` keeps the endpoint's answer verbatim as `ModelOutput.raw`.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: Sequence[str] | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    response_format: Mapping[str, Any] | None = None
    reasoning_effort: str | None = None
    extra_tools: Sequence[Mapping[str, Any]] = ()
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    extra_headers: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None
    timeouts: Timeouts | None = None
    stream: bool = True
    keep_raw: bool = False


def usable(name: str, max_chars: int) -> str:
    """The name if it consists of at most `max_chars` letters, digits, _ and -; else a cleaned form with a digest."""
    cleaned = re.sub("[^a-zA-Z0-9_-]", "_", name)
    if cleaned == name and 0 < len(name) <= max_chars:
        return name
    # The digest keeps names apart that differ only in replaced characters, or after the limit.
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{cleaned[: max_chars - 9]}_{digest}"


class ToolNames:
    """The names of tools and their properties in the form that the endpoint accepts, and the mapping back.

    `notices` report parts of the request that were omitted because of the vendor's limits.
    """

    def __init__(self, tools: Iterable[ToolSpec] = (), vendor: str = "standard") -> None:
        self.vendor = vendor
        self.notices: list[str] = []
        self._sent: dict[str, str] = {}
        self._real: dict[str, str] = {}
        self._keys: dict[str, KeyNames] = {}
        self._max_chars = rules_of(vendor).names
        has_keys = rules_of(vendor).keys is not None
        for tool in tools:
            if name := function_of(tool).get("name"):
                self.sent(str(name))
                keys = accepted(vendor, parameters_of(tool)).keys if has_keys else None
                if keys is not None and keys.sent:
                    self._keys[str(name)] = keys

    def sent(self, name: str) -> str:
        """The name to send: unchanged if it is usable and unique, else a cleaned form with a digest."""
        if name not in self._sent:
            sent_name, seed = usable(name, self._max_chars), name
            # Two tools may become the same name when their characters are replaced.
            while sent_name in self._real:
                seed += "'"
                sent_name = usable(f"{seed}.", self._max_chars)
            self._sent[name] = sent_name
            self._real[sent_name] = name
        return self._sent[name]

    def real(self, name: str) -> str:
        """The tool's own name for a name that the model used, or that name itself if it is unknown."""
        return self._real.get(name, name)

    def sent_arguments(self, name: str, arguments: str) -> str:
        """The arguments of a call in the conversation, with the property names that the endpoint was given."""
        keys = self._keys.get(name)
        return arguments if keys is None else json.dumps(keys.as_sent(json.loads(arguments)), ensure_ascii=False)

    def own_call(self, call: ToolCall) -> ToolCall:
        """A call from the model, with the tool's own names."""
        name = self.real(call.name)
        keys = self._keys.get(name)
        return replace(call, name=name, arguments=call.arguments if keys is None else keys.as_own(call.arguments))


def build_chat_request(
    *,
    model: str,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    settings: RequestSettings,
    quirks: Quirks,
    origin: str,
    stream: bool,
) -> tuple[dict[str, Any], ToolNames]:
    """Build the request body, and the tool names with which to read the answer.

    Raises `OptionsError` for messages, tools and settings that the endpoint does not accept.
    """
    names = ToolNames(tools, quirks.accepts)
    definitions = write_tools(tools, settings.extra_tools, lambda tool: write_tool(tool, names, quirks), names)
    payload: dict[str, Any] = {
        "model": model,
        "messages": [
            {**one, "tool_calls": [_as_custom(call) for call in one["tool_calls"]]} if "tool_calls" in one else one
            for one in repair_messages(messages, quirks=quirks, names=names, origin=origin)
        ],
    }
    if definitions:
        payload["tools"] = definitions
        _choose_tool(payload, settings, names, quirks)
    if stream:
        payload["stream"] = True
        if quirks.stream_usage:
            payload["stream_options"] = {"include_usage": True}
    sampling = {
        quirks.max_tokens_field: settings.max_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        quirks.seed_field: settings.seed,
        "stop": list(settings.stop) if settings.stop else None,
        "response_format": settings.response_format,
        "reasoning_effort": settings.reasoning_effort,
    }
    payload.update({key: value for key, value in sampling.items() if value is not None})
    return with_extra_body(payload, settings.extra_body), names


def _as_custom(call: dict[str, Any]) -> dict[str, Any]:
    """A call in chat-completions form, which differs for tools with their own grammar."""
    if call["type"] != "custom":
        return call
    text = as_text(as_mapping(json.loads(call["function"]["arguments"])).get("input"))
    return {"id": call["id"], "type": "custom", "custom": {"name": call["function"]["name"], "input": text}}


def with_extra_body(payload: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request with these fields merged in, and objects merged into its existing objects.

    None removes a field. An object with another `type` (`thinking`, `response_format`) replaces the existing one.
    """
    merged = dict(payload)
    for key, value in extra.items():
        there = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif (
            isinstance(value, Mapping) and isinstance(there, Mapping) and value.get("type", 0) in (0, there.get("type"))
        ):
            merged[key] = with_extra_body(there, value)
        else:
            merged[key] = value
    return merged


def repair_messages(
    messages: Sequence[Message], *, quirks: Quirks, names: ToolNames | None = None, origin: str = ""
) -> list[dict[str, Any]]:
    """Return the messages in a form that the endpoint accepts; the originals are not changed.

    Raises `OptionsError` for an unknown role, and for a part that is invalid or not accepted.
    """
    repair = _Repair(quirks, names or ToolNames(), origin)
    for position, message in enumerate(messages):
        repair.take(message, messages, position + 1)
    return repair.written


class _Repair:
    """One pass over a conversation; `written` contains the repaired messages."""

    def __init__(self, quirks: Quirks, names: ToolNames, origin: str) -> None:
        self.written: list[dict[str, Any]] = []
        self._quirks = quirks
        self._names = names
        self._origin = origin
        self._used_ids: set[str] = set()

    def take(self, message: Message, messages: Sequence[Message], next_position: int) -> None:
        role = message.get("role")
        if role == "assistant":
            self._take_assistant(message, messages, next_position)
        elif role in ("system", "developer"):
            last = self.written[-1] if self.written else {}
            joins = self._quirks.one_system_message and last.get("role") == self._quirks.system_role
            if joins and isinstance(message.get("content"), str):
                last["content"] = f"{last['content']}\n\n{message['content']}"
            else:
                self.written.append({**_known_fields(message), "role": self._quirks.system_role})
        elif role == "user":
            self._take_user(message)
        elif role != "tool":  # results are written together with the call that they answer
            raise OptionsError(
                f"a message's role must be system, developer, user, assistant or tool, not {role!r:.100}"
            )

    def _take_user(self, message: Message) -> None:
        if self._quirks.assistant_after_tool and self.written and self.written[-1]["role"] == "tool":
            self.written.append({"role": "assistant", "content": BETWEEN})
        content = message.get("content")
        fields = _known_fields(message)
        if content is not None and not isinstance(content, str) and not self._quirks.keeps_parts:
            parts = map(self._write_part, content)
            fields["content"] = [part for part in parts if part.get("text") != ""] or ""
        self.written.append(fields)

    def _take_assistant(self, message: Message, messages: Sequence[Message], next_position: int) -> None:
        calls = [call for call in message.get("tool_calls") or () if isinstance(call, Mapping)]
        content = message.get("content")
        for part in read_parts(content):
            if part.kind != "text":
                raise cannot_carry(part, "a model as its own message", "put it into a user message")
        echoed = self._echo(message)
        if not calls and not content and not (echoed and self._quirks.keeps_parts):
            return  # endpoints refuse an assistant message with neither content nor calls
        fields = {**echoed, **_known_fields(message)}
        fields.pop("tool_calls", None)
        fields["content"] = content or self._quirks.empty_content if calls else content
        self.written.append(fields)
        if calls:
            results = _results_from(messages, next_position)
            new_ids = [self._new_id(str(call.get("id") or "")) for call in calls]
            fields["tool_calls"] = [self._call(call, new) for call, new in zip(calls, new_ids, strict=True)]
            media: list[Any] = []
            for call, new in zip(calls, new_ids, strict=True):
                self.written.append(self._result(call, new, results, media))
            if media:
                self._take_user({"role": "user", "content": media})

    def _call(self, call: Mapping[str, Any], new_id: str) -> dict[str, Any]:
        function = function_of(call)
        name = str(function.get("name") or "unknown")
        return {
            **self._echo(call),
            "id": new_id,
            # A call of a tool with its own grammar, made by the same endpoint; chat completions use another form.
            "type": "custom" if call.get("custom") is True and call.get("origin") == self._origin else "function",
            "function": {
                "name": self._names.sent(name),
                "arguments": self._names.sent_arguments(name, _arguments_text(function.get("arguments"))),
            },
        }

    def _result(
        self, call: Mapping[str, Any], new_id: str, results: dict[str, Message], media: list[Any]
    ) -> dict[str, Any]:
        # Removed once used: a second call with the same id has no result of its own, and must not get this one.
        message = results.pop(str(call.get("id") or ""), None)
        content = NO_RESULT if message is None else message.get("content")
        if content is not None and not isinstance(content, str) and not self._quirks.keeps_parts:
            # The text of a result; its other parts go into a user message after the results, where media are allowed.
            tool = str(function_of(call).get("name") or "a tool")
            texts: list[str] = []
            for item in content:
                part = read_part(item)
                if part.kind == "text":
                    texts.append(part.text)
                    continue
                label = part.name or part.media_type or part.kind
                texts.append(f"[{label}: in the next message]")
                media += [{"type": "text", "text": f"{label}, from the result of {tool}:"}, item]
            content = "\n\n".join(text for text in texts if text)
        result = {"role": "tool", "tool_call_id": new_id, "content": "" if content is None else content}
        if self._quirks.name_in_tool_result:
            result["name"] = self._names.sent(str(function_of(call).get("name") or "unknown"))
        if self._quirks.keeps_parts and isinstance(content, str) and (message is None or _ERROR.match(content)):
            result["is_error"] = True
        return result

    def _write_part(self, item: Any) -> dict[str, Any]:
        """Write a part in chat-completions form; a part already in that form is unchanged."""
        part = read_part(item)
        if part.kind == "text":
            # A part with more fields than type and text (`cache_control`) is kept as the caller wrote it.
            return {"type": "text", "text": part.text} if isinstance(item, str) or len(item) <= 2 else dict(item)
        if part.kind not in self._quirks.inputs:
            raise cannot_carry(part, self._origin or "this endpoint")
        if part.kind == "image":
            detail = {"detail": part.detail} if part.detail else {}
            image_part = {"type": "image_url", "image_url": {"url": part.data_url, **detail}}
            return dict(item) if item.get("image_url") else image_part
        if part.kind == "audio":
            if isinstance(item.get("input_audio"), Mapping):
                return dict(item)
            if part.data is None or part.audio_format is None:
                raise cannot_carry(part, "chat completions", "give its data as WAV or MP3")
            return {"type": "input_audio", "input_audio": {"data": part.data, "format": part.audio_format}}
        if isinstance(item.get("file"), Mapping):
            return dict(item)
        if self._quirks.document_url:
            return {"type": "document_url", "document_url": part.data_url}
        if part.data is None:
            raise cannot_carry(part, "chat completions", "give its data instead of a URL")
        return {"type": "file", "file": {"filename": part.name or "file", "file_data": part.data_url}}

    def _new_id(self, old: str) -> str:
        """The id to send: unique in the conversation, in the endpoint's format, and the same in every request."""
        most, number = self._quirks.max_tool_id, len(self._used_ids)

        def fitting(call_id: str) -> str:
            if self._quirks.short_tool_ids:
                is_short = re.fullmatch(r"[a-zA-Z0-9]{9}", call_id) is not None
                return call_id if is_short else hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]
            return call_id if most is None or len(call_id) <= most else usable(call_id, most)

        new = fitting(old or f"call_{number}")
        while new in self._used_ids:
            new, number = fitting(f"{old or 'call'}_{number}"), number + 1
        self._used_ids.add(new)
        return new

    def _echo(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """The opaque fields to send back: those that the endpoint expects, and only if they came from it."""
        if item.get("origin", self._origin) != self._origin:
            return {}
        return {key: item[key] for key in self._quirks.echo_fields if key in item and _can_be_sent_back(item[key])}


def _can_be_sent_back(field: Any) -> bool:
    """Whether an opaque field is usable: text, or blocks whose types and ids are text.

    Without this check, a malformed field, which the log keeps, would make every further request of the session fail.
    """
    return not isinstance(field, list) or all(
        isinstance(block, Mapping)
        and all(isinstance(block.get(key), str | None) for key in ("type", "id", "call_id"))
        and isinstance(block.get("functionCall"), Mapping | None)
        for block in field
    )


def write_tools(
    tools: Sequence[ToolSpec],
    extra_tools: Sequence[Mapping[str, Any]],
    write: Callable[[ToolSpec], dict[str, Any]],
    names: ToolNames,
) -> list[dict[str, Any]]:
    """Write the tools with `write`; an entry for one of the vendor's own tools is unchanged.

    Tools beyond the vendor's limit are omitted, with a notice. Raises `OptionsError` for an entry that is neither a
    function nor a vendor's tool.
    """
    definitions = []
    most = rules_of(names.vendor).tools
    if most is not None and len(tools) + len(extra_tools) > most:
        room = max(0, most - len(extra_tools))
        left_out = [*tools[room:], *extra_tools[most:]]
        tools, extra_tools = tools[:room], extra_tools[:most]
        listed = shortened(", ".join(str(function_of(tool).get("name")) for tool in left_out), 300)
        names.notices.append(
            f"the endpoint accepts at most {most} tools, so the request omits {plural(len(left_out), 'tool')}: {listed}"
        )
    for tool in (*tools, *extra_tools):
        if function_of(tool).get("name"):
            definitions.append(write(tool))
        elif tool and "function" not in tool and tool.get("type") != "function":
            definitions.append(dict(tool))
        else:
            raise OptionsError(
                f"a tool needs a function with a name, or the type of a vendor's tool; this one is {dict(tool)!r:.200}"
            )
    return definitions


def write_tool(tool: ToolSpec, names: ToolNames, quirks: Quirks) -> dict[str, Any]:
    """Write a tool's entry in the vendor's form. `parameters` is always an object schema, even without parameters."""
    function, parameters = function_of(tool), parameters_of(tool)
    is_strict = quirks.strict_tools and function.get("strict")
    # Strict mode requires `additionalProperties: false` even in a schema without properties.
    if is_strict and not parameters.get("properties"):
        parameters = _NOTHING
    accepted_form = accepted(names.vendor, parameters)
    entry: dict[str, Any] = {
        "name": names.sent(str(function.get("name") or "")),
        "description": " ".join(filter(None, (str(function.get("description") or ""), accepted_form.notes))),
        "parameters": accepted_form.parameters,
    }
    if quirks.strict_tools and function.get("strict") is not None:
        entry["strict"] = bool(is_strict and accepted("openai-strict", parameters).is_strict)
    return {"type": "function", "function": entry}


def parameters_of(tool: ToolSpec) -> Mapping[str, Any]:
    """The schema of a tool's arguments; if it declares none, that of an empty object."""
    return function_of(tool).get("parameters") or _NO_PARAMETERS


_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_NOTHING = {**_NO_PARAMETERS, "additionalProperties": False}


def sendable(value: Any) -> Any:
    """The value with text that strict UTF-8 can encode: lone surrogates become U+FFFD."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return whole_letters(value)
    return value


def encode_request(payload: Mapping[str, Any]) -> bytes:
    """Encode the body of a request. Raises `OptionsError` for a value that JSON cannot represent.

    Images and files, which are long strings without escapes, bypass the JSON encoder: it would hold three copies of them.
    """
    # Random, so that no text of the conversation can contain the mark.
    mark, long = os.urandom(12).hex(), list[str]()
    try:
        text = _dumps(_set_aside(payload, mark, long))
    except (TypeError, ValueError) as error:
        raise OptionsError(f"the request cannot be written as JSON: {error}") from error
    try:
        if not long:
            return text.encode()
        body = io.BytesIO()
        for place, piece in enumerate(text.split(mark)):
            body.write(piece.encode())
            data = long[place] if place < len(long) else ""
            for start in range(0, len(data), _LONG):
                body.write(data[start : start + _LONG].encode())
        return body.getvalue()
    except UnicodeEncodeError:
        return _dumps(whole_letters(payload)).encode()


def _set_aside(value: Any, mark: str, long: list[str]) -> Any:
    """The value with each long string replaced by a mark; the strings are appended to `long` in order."""
    if isinstance(value, str):
        # Only strings that JSON writes unchanged: those with quotes, backslashes or control characters need the
        # encoder.
        if len(value) <= _LONG or not value.isascii() or not value.isprintable() or '"' in value or "\\" in value:
            return value
        long.append(value)
        return mark
    if isinstance(value, dict):
        return {key: _set_aside(item, mark, long) for key, item in value.items()}
    if isinstance(value, list):
        return [_set_aside(item, mark, long) for item in value]
    return value


def _dumps(payload: Mapping[str, Any]) -> str:
    return json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def used_call_ids(messages: Sequence[Message]) -> set[str]:
    """The ids of all calls in a conversation."""
    return {
        str(call["id"])
        for message in messages
        for call in message.get("tool_calls") or ()
        if isinstance(call, Mapping) and call.get("id")
    }


def _choose_tool(payload: dict[str, Any], settings: RequestSettings, names: ToolNames, quirks: Quirks) -> None:
    if settings.parallel_tool_calls is not None:
        payload["parallel_tool_calls"] = settings.parallel_tool_calls
    choice = settings.tool_choice
    if choice in (None, "auto", "none", "required"):
        if choice is not None:
            payload["tool_choice"] = choice
        return
    sent_name = names.sent(choice)
    only = [tool for tool in payload["tools"] if function_of(tool).get("name") == sent_name]
    if not only:
        raise OptionsError(f"tool_choice names {choice!r}, which is not one of the request's tools")
    if quirks.tool_choice_object:
        payload["tool_choice"] = {"type": "function", "function": {"name": sent_name}}
    else:
        payload["tools"], payload["tool_choice"] = only, "required"


def _results_from(messages: Sequence[Message], position: int) -> dict[str, Message]:
    """The results before the next assistant message, by call id; the first result for an id counts."""
    results: dict[str, Message] = {}
    while position < len(messages):
        message = messages[position]
        position += 1
        if message.get("role") == "assistant":
            break
        if message.get("role") == "tool":
            results.setdefault(str(message.get("tool_call_id") or ""), message)
    return results


def _known_fields(message: Message) -> dict[str, Any]:
    keys = _ROLE_FIELDS.get(str(message.get("role")), ("role", "content"))
    return {key: message[key] for key in keys if key in message and (message[key] is not None or key == "content")}


def function_of(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `function` of a tool entry or call; empty if it has none."""
    function = item.get("function")
    return function if isinstance(function, Mapping) else {}


def _arguments_text(arguments: Any) -> str:
    if isinstance(arguments, Mapping):
        return json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str):
        return "{}"
    is_object = _is_object_seen(arguments) if len(arguments) <= _MAX_REMEMBERED else _is_object(arguments)
    return arguments if is_object else "{}"


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


# Cached, because every request repeats all earlier calls.
_MAX_REMEMBERED = 4096
_is_object_seen = lru_cache(maxsize=2048)(_is_object)
