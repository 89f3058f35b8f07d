"""Assemble a chat completion: text, reasoning and tool calls, however the endpoint splits and labels them.

Pure: chunks in, stream events out, no I/O. A whole answer goes through the same code as one big chunk, so that `complete`
and `stream` cannot differ. Observed on the wire: ids and names repeated in every fragment or only in the first; indices
missing, all 0, or with gaps; arguments as an object; calls with any finish reason.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Any

from ..errors import GarbledResponseError
from ..ground.frozen import mutable
from ..ground.loose import as_list, as_mapping, as_mappings, as_text
from .base import ModelOutput, ReasoningPiece, StreamEvent, TextDelta, ToolCall, is_unfinished
from .calls import HeardCall, finish_calls, read_arguments
from .failures import cut_answer
from .think_tags import ThinkTagSplitter
from .wire.growing import GrowingFields, check_part_count

_REASONING_TEXT = ("reasoning_content", "reasoning", "reasoning_text")
_FACTS = ("model", "service_tier", "system_fingerprint")
# Each check takes time in proportion to the arguments; after this many, the fragments are taken for those of one call.
_MAX_LOOKS = 100
_CALL_FIELDS = frozenset({"index", "id", "type", "function", "custom"})


@mutable
class _Slot:
    """One call, as received so far."""

    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    extras: dict[str, Any] = field(default_factory=dict)
    looks: int = 0  # the number of checks whether its arguments are complete

    @property
    def text(self) -> str:
        """The arguments as JSON; a tool with its own grammar (`custom`) gets one string, its `input`."""
        text = "".join(self.pieces)
        return json.dumps({"input": text}) if self.extras.get("custom") else text

    def take(self, entry: Mapping[str, Any]) -> None:
        """Add a fragment. Ids and names are kept from the first fragment that has them: many servers repeat them."""
        self.id = self.id or as_text(entry.get("id"))
        function = as_mapping(entry.get("function"))
        # Snowflake sends every field of a call, with empty values in those of the other kind.
        custom = {} if any(function.values()) else as_mapping(entry.get("custom"))
        self.name = self.name or as_text(function.get("name")) or as_text(custom.get("name"))
        arguments = function.get("arguments")
        if any(custom.values()):
            self.extras["custom"] = True
            self.pieces.append(as_text(custom.get("input")))
        elif isinstance(arguments, str):
            if self.pieces == ["{}"] and arguments.lstrip().startswith("{"):
                self.pieces.clear()  # some gateways start with empty arguments and send the real ones later
            self.pieces.append(arguments)
        elif arguments is not None:
            self.pieces.append(json.dumps(arguments))
        for key, value in entry.items():
            if key not in _CALL_FIELDS and value is not None:
                self.extras[key] = value

    def is_over(self, entry: Mapping[str, Any]) -> bool:
        """Whether a fragment with the same index begins another call: Ollama and Gemini give every call the index 0."""
        call_id = as_text(entry.get("id"))
        function = as_mapping(entry.get("function"))
        if self.id and call_id:
            # Some gateways give each fragment its own id: only a name begins a call.
            return call_id != self.id and bool(_name_in(entry))
        name, arguments = as_text(function.get("name")), function.get("arguments")
        if not (name and self.name):
            return False
        begins = isinstance(arguments, Mapping) or as_text(arguments).lstrip().startswith("{")
        if name != self.name or not (begins and self.pieces and self.pieces[-1].endswith("}")):
            return name != self.name
        self.looks += 1
        return self.looks <= _MAX_LOOKS and read_arguments("".join(self.pieces))[1] is None


def _name_in(entry: Mapping[str, Any]) -> str:
    return as_text(as_mapping(entry.get("function")).get("name")) or as_text(
        as_mapping(entry.get("custom")).get("name")
    )


class ToolCallAssembler:
    """A collector of the fragments of tool calls, in the order in which the calls first appear.

    `used_ids` are ids already in the conversation; a call with one of them gets another id. `origin` is the endpoint's
    host, which is recorded in a call's opaque extras.
    """

    def __init__(self, *, used_ids: Collection[str] = (), origin: str = "") -> None:
        self._slots: list[_Slot] = []
        self._by_index: dict[int, _Slot] = {}
        self._by_id: dict[str, _Slot] = {}
        self._used_ids = used_ids
        self._origin = origin

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def has_all_arguments(self) -> bool:
        """Whether nothing can be missing: the arguments of every call are an object that is not empty."""
        return all(read_arguments(slot.text)[0] for slot in self._slots if slot.name or slot.pieces)

    def apply_delta(self, delta: Mapping[str, Any]) -> None:
        """Add one fragment: an entry of `tool_calls`, or a delta that contains such a list."""
        entries = delta.get("tool_calls", (delta,))
        for entry in entries if isinstance(entries, Sequence) else ():
            if isinstance(entry, Mapping):
                slot = self._slot_for(entry)
                slot.take(entry)
                self._by_id.setdefault(slot.id, slot)

    def finalize(self, *, finish_reason: str | None = None, refusal: bool = False) -> list[ToolCall]:
        """Return the calls of an answer that ended for this reason; the answer's end counts as the end of every call."""
        heard_calls = [
            HeardCall(
                slot.id,
                slot.name,
                slot.text,
                ended=True,
                extras={**slot.extras, "origin": self._origin} if slot.extras else None,
            )
            for slot in self._slots
            if slot.name or slot.pieces
        ]
        return finish_calls(heard_calls, finish_reason=finish_reason, refusal=refusal, used_ids=self._used_ids)

    def _slot_for(self, entry: Mapping[str, Any]) -> _Slot:
        index, call_id = entry.get("index"), as_text(entry.get("id"))
        if isinstance(index, int) and not isinstance(index, bool):
            slot = self._by_index.get(index)
            if slot is None or slot.is_over(entry):
                slot = self._by_index[index] = self._open()
            return slot
        if call_id and call_id in self._by_id:
            return self._by_id[call_id]
        return self._open() if _name_in(entry) or not self._slots else self._slots[-1]

    def _open(self) -> _Slot:
        check_part_count(len(self._slots) + 1)
        self._slots.append(_Slot())
        return self._slots[-1]


class ChatAssembler:
    """One chat completion, from its first chunk to its end.

    `apply` takes a chunk and returns the events to show; `finish` returns the whole answer once the stream has ended.
    `origin` is the endpoint's host in the opaque extras, which are sent back to that host only. `think_tags` is as in
    `Quirks`; `has_choices` is true if several answers were requested (`n`), of which the first is read.
    """

    def __init__(
        self,
        *,
        used_ids: Collection[str] = (),
        think_tags: bool = False,
        origin: str = "",
        has_choices: bool = False,
    ) -> None:
        self._has_choices = has_choices
        self._counted: list[Mapping[str, Any]] = []
        self._last_index = 0
        self._calls = ToolCallAssembler(used_ids=used_ids, origin=origin)
        self._function_call = ToolCallAssembler(used_ids=used_ids)
        self._splitter = ThinkTagSplitter() if think_tags else None
        self._origin = origin
        self._shown: list[StreamEvent] = []  # of the chunk being read
        self._text: list[str] = []
        self._half = ""  # the first half of a surrogate pair
        self._reasoning: list[str] = []
        self._reasoning_fields: dict[str, list[str]] = {}
        self._details: list[dict[str, Any]] = []
        self._growing = GrowingFields()  # of the details
        self._message_extras: dict[str, Any] = {}
        self._usage: Mapping[str, Any] | None = None
        self._finish_reason: str | None = None
        self._refusal = False
        self._ended = False
        # Whether pieces of calls came in the chunk of the last finish reason, and after it.
        self._has_calls_beside = self._has_calls_behind = False
        self._id = ""
        self._role_begins = False  # whether only the first chunk names the role, as in most servers
        self._facts: dict[str, Any] = {}
        self._logprobs: list[Any] = []
        self._citations: dict[str, Mapping[str, Any]] = {}  # by their JSON

    def apply(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        """Add a chunk; return the events to show."""
        self._take_usage(chunk)
        chunk_id, choices = chunk.get("id"), chunk.get("choices")
        if chunk_id != self._id:
            self._take_facts(chunk)
            if isinstance(chunk_id, str) and chunk_id:
                self._check_same_answer(choices)
                self._id = chunk_id
        self._shown = []
        for choice in self._first_choices(as_mappings(choices)):
            self._take_choice(choice)
        return self._shown

    def end_marker(self) -> None:
        """Note that the stream has sent `[DONE]`."""
        self._ended = True

    @property
    def has_finish_reason(self) -> bool:
        """Whether a finish reason has arrived; usage may still follow."""
        return self._finish_reason is not None

    def finish(self) -> tuple[list[StreamEvent], ModelOutput]:
        """Return the events held back, and the whole answer. Raises `IncompleteResponseError` if its end is missing."""
        self._shown = []
        if self._splitter is not None:
            self._show(self._splitter.close())
        if self._half:
            self._half = ""
            self._show_text("\ufffd")
        calls = self._calls if len(self._calls) else self._function_call
        # Some servers send a finish reason with the first piece of a call, or with each piece. It ends what came before it,
        # and the calls beside it if they are complete; calls after it need `[DONE]` or another reason.
        is_open = self._has_calls_behind or (self._has_calls_beside and not calls.has_all_arguments)
        is_open = self._finish_reason is None or (is_open and not is_unfinished(self._finish_reason))
        if (is_open and not self._ended) or self._finish_reason == "error":
            end = "a finish reason or an end marker: the connection was cut, or the endpoint does not end its streams"
            raise cut_answer("".join(self._text), end)
        extras = {**self._message_extras, **{name: "".join(pieces) for name, pieces in self._reasoning_fields.items()}}
        self._growing.settle()
        if self._details:
            extras["reasoning_details"] = self._details
        output = ModelOutput(
            assistant_text="".join(self._text) or None,
            tool_calls=calls.finalize(finish_reason=self._finish_reason, refusal=self._refusal),
            usage=self._usage,
            finish_reason=self._finish_reason,
            reasoning="".join(self._reasoning) or None,
            extras={**extras, "origin": self._origin} if extras else None,
            refusal=self._refusal,
            citations=tuple(self._citations.values()),
            response_id=self._id or None,
            logprobs=self._logprobs or None,
            cost_usd=reported_cost(self._usage),
            **self._facts,
        )
        return self._shown, output

    def _first_choices(self, choices: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The entries of a chunk that belong to the first choice.

        Some gateways increase the index of the only choice with each chunk. Index 1 could still be another choice; index 2
        directly after it settles the question.
        """
        first = [choice for choice in choices if not choice.get("index")]
        if first:
            self._counted, self._last_index = [], 0
        elif len(choices) == 1 and choices[0].get("index") == self._last_index + 1 and not self._has_choices:
            self._last_index += 1
            self._counted.append(choices[0])
            if self._last_index > 1:
                first, self._counted = self._counted, []
        return first

    def _check_same_answer(self, choices: Any) -> None:
        """Refuse a second answer in the stream: one that starts over, or continues after the end, under another id.

        Some servers give each chunk its own id, so a different id alone proves nothing.
        """
        if not self._id or not self._has_begun:
            return
        for choice in as_mappings(choices):
            delta = {} if choice.get("index") else as_mapping(choice.get("delta"))
            says = bool(delta.get("content") or delta.get("tool_calls"))
            if (self._finish_reason is not None and says) or (self._role_begins and delta.get("role")):
                raise GarbledResponseError("the endpoint sent two answers in one stream")

    @property
    def _has_begun(self) -> bool:
        return bool(self._text or self._reasoning or len(self._calls))

    def _take_usage(self, chunk: Mapping[str, Any]) -> None:
        """Keep the last usage: servers send it once, or cumulatively in every chunk, never as differences."""
        usage = as_mapping(chunk.get("usage")) or as_mapping(as_mapping(chunk.get("x_groq")).get("usage"))
        if usage:
            self._usage = usage
            self._take_facts(chunk)

    def _take_facts(self, chunk: Mapping[str, Any]) -> None:
        """Keep facts about the answer as a whole, from the first chunk that has them or the one with the usage."""
        for name in _FACTS:
            value = chunk.get(name)
            if value and name not in self._facts and isinstance(value, str):
                self._facts[name] = value
        self._take_citations(chunk.get("citations"))

    def _take_choice(self, choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta")
        if not isinstance(delta, Mapping) or not (any(delta[key] for key in delta if key != "role") or self._has_begun):
            # A whole answer has a message; some gateways also send one in a stream, beside an empty delta.
            delta = choice.get("message") or delta
        has_calls = False
        if isinstance(delta, Mapping):
            self._take_delta(delta)
            has_calls = bool(delta.get("tool_calls") or delta.get("function_call"))
        elif isinstance(choice.get("text"), str):
            self._show_content(choice["text"])
        reason = as_text(choice.get("finish_reason"))
        if reason and not is_unfinished(self._finish_reason):
            self._finish_reason = reason
        if has_calls or reason:
            self._has_calls_beside, self._has_calls_behind = has_calls, has_calls and not reason
        if choice.get("logprobs"):
            self._logprobs += as_list(as_mapping(choice["logprobs"]).get("content"))
        self._take_usage(choice)

    def _take_delta(self, delta: Mapping[str, Any]) -> None:
        self._role_begins = self._role_begins or not delta.get("role")
        self._take_reasoning(delta)
        content = delta.get("content")
        if isinstance(content, str):
            if content:
                self._show_content(content)
        elif isinstance(content, Mapping):  # Cloudflare, if JSON was requested
            self._show_content(json.dumps(content, ensure_ascii=False))
        elif isinstance(content, list):  # Mistral: parts, including thinking
            for part in content:
                if isinstance(part, str):
                    self._show_content(part)
                elif isinstance(part, Mapping) and part.get("type") == "thinking":
                    self._show_reasoning(_part_text(part.get("thinking")))
                elif isinstance(part, Mapping):
                    self._show_content(_part_text(part.get("text")))
        if refusal := as_text(delta.get("refusal")):
            self._refusal = True
            self._show_text(refusal)
        if delta.get("tool_calls"):
            self._calls.apply_delta(delta)
        elif any(as_mapping(delta.get("function_call")).values()):  # the form before tools; empty from Snowflake
            self._function_call.apply_delta({"index": 0, "function": delta["function_call"]})
        if isinstance(delta.get("extra_content"), Mapping):  # Gemini's thought signatures
            self._message_extras["extra_content"] = delta["extra_content"]
        if delta.get("annotations"):
            self._take_citations(delta["annotations"])

    def _take_reasoning(self, delta: Mapping[str, Any]) -> None:
        """Show reasoning from the first field that has any; servers send copies of it under several names."""
        has_shown = False
        for name in _REASONING_TEXT:
            if text := as_text(delta.get(name)):
                self._reasoning_fields.setdefault(name, []).append(text)
                if not has_shown:
                    self._show_reasoning(text)
                has_shown = True
        if delta.get("reasoning_details"):
            details = as_mappings(delta["reasoning_details"])
            self._take_details(details)
            if not has_shown:
                inside = [as_text(detail.get("text")) or as_text(detail.get("summary")) for detail in details]
                self._show_reasoning("".join(inside))

    def _take_citations(self, citations: Any) -> None:
        """Keep each citation once: OpenAI's annotations, Perplexity's and xAI's lists of URLs."""
        for item in as_list(citations):
            citation = {"type": "url", "url": item} if isinstance(item, str) else item
            if isinstance(citation, Mapping):
                check_part_count(len(self._citations) + 1)
                self._citations.setdefault(json.dumps(citation, sort_keys=True), citation)

    def _take_details(self, details: Sequence[Mapping[str, Any]]) -> None:
        """Keep reasoning details verbatim; fragments of one entry (same type and index) are joined."""
        for detail in details:
            last = self._details[-1] if self._details else {}
            same = last and all(detail.get(key) == last.get(key) for key in ("type", "index"))
            if same and not (last.get("id") and detail.get("id") and last["id"] != detail["id"]):
                for key, value in detail.items():
                    if key in ("text", "summary", "data") and isinstance(value, str) and isinstance(last.get(key), str):
                        self._growing.add(last, key, value)
                    elif value is not None:
                        last[key] = value
            else:
                check_part_count(len(self._details) + 1)
                self._details.append(dict(detail))

    def _show_content(self, text: str) -> None:
        if self._splitter is None:
            self._show_text(text)
        else:
            self._show(self._splitter.feed(text))

    def _show(self, pieces: list[tuple[bool, str]]) -> None:
        for is_reasoning, piece in pieces:
            if is_reasoning:
                self._show_reasoning(piece)
            else:
                self._show_text(piece)

    def _show_text(self, text: str) -> None:
        if self._half or not text.isascii():
            text = self._join_halves(text)
        if text:
            self._text.append(text)
            self._shown.append(TextDelta(text))

    def _join_halves(self, text: str) -> str:
        """Join surrogate pairs that were escaped and split between chunks; a lone surrogate becomes U+FFFD."""
        text, self._half = self._half + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _show_reasoning(self, text: str) -> None:
        if text:
            self._reasoning.append(text)
            self._shown.append(ReasoningPiece(text))


def reported_cost(usage: Mapping[str, Any] | None) -> float | None:
    """The cost of the call in US dollars, as reported by the endpoint: OpenRouter's `cost`, xAI's ticks of 1e-10 dollars."""
    for name, dollars in (("cost", 1.0), ("cost_in_usd_ticks", 1e-10)):
        value = (usage or {}).get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18:
            return value * dollars
    return None


def _part_text(value: Any) -> str:
    """The text of a content part, which may itself be a list of parts."""
    if isinstance(value, list):
        return "".join(_part_text(part.get("text")) for part in as_mappings(value))
    return as_text(value)
