"""A model that plays from a script: for tests, examples, and a first run without a network.

A script is a list of turns, as Python objects or as a JSON file `{"name": ..., "turns": [...]}`. Each turn answers one
request and may contain

    text        the text of the answer
    tool_calls  [{"name": ..., "arguments": {...}, "id": ...}]; a missing id is derived from the turn and the position.
                `"raw_arguments": "..."` instead of arguments plays a call whose arguments are not a JSON object, `"caller"`
                one made by code that the vendor executes
    reasoning   the model's reasoning
    deltas      how the text is cut: a number of characters per piece (default 12), or a list of sizes; 0 sends it whole
    usage       {"input_tokens": ..., "output_tokens": ...}; default: estimated from the text, four characters per token;
                null plays an endpoint that does not report usage
    delay_s     seconds before each piece
    error       {"message": ..., "type": "http" | "connection" | "timeout" | "incomplete", "status": ..., "after": n}: fails,
                after n characters of the text
    finish_reason  default "tool_calls" or "stop"
    expect      properties of the request; if one is not met, the run fails with the difference:
                  "last": text that the last message must contain, or a list of such strings
                  "contains": text, or a list of strings, that some message must contain; "lacks": that none may contain
                  "tool_results": {name of the tool: text} that the newest result of that tool must contain
                  "messages": the number of messages; "tools": names of tools that must be offered
    agent       plays only for the subagent whose system prompt contains this text

With `resumable`, the turn for a request follows from the number of answers in its conversation, counting only turns of its
kind (those of its `agent`, or those of none), so a provider created after a crash continues where the last one stopped.

A script without turns left raises `ScriptError`. An `expect` that is not met ends the run with an error, which `query()`
and `run()` then raise as `ScriptMismatchError`, an `AssertionError`, so the test fails with its message.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from typing import Any

from ..errors import (
    IncompleteResponseError,
    ProviderConnectionError,
    ProviderError,
    ProviderHTTPError,
    ProviderTimeoutError,
    ScriptError,
    ScriptMismatchError,
)
from ..ground.checks import shown
from ..ground.clock import Clock, SystemClock
from ..ground.disk import read_named
from ..ground.system import reason_of
from ..ground.words import plural
from ..providers.base import (
    Done,
    Message,
    ModelOutput,
    ReasoningPiece,
    StreamEvent,
    TextDelta,
    ToolCall,
    ToolCallReady,
    ToolSpec,
)
from ..providers.wrappers.wrap import StreamedProvider

_KEYS = frozenset(
    ("text", "tool_calls", "reasoning", "deltas", "usage", "delay_s", "error", "finish_reason", "expect", "agent")
)
_CALL_KEYS = frozenset(("name", "arguments", "raw_arguments", "id", "caller"))
_ERROR_KEYS = frozenset(("message", "type", "status", "after"))
_EXPECT_KEYS = frozenset(("last", "contains", "lacks", "tool_results", "messages", "tools"))
_PIECE_CHARS = 12
_MAX_SCRIPT_BYTES = 64 << 20
# The turn's number in the script, from 1, and the turn.
_NumberedTurn = tuple[int, Mapping[str, Any]]


class ScriptedProvider(StreamedProvider):
    """A provider that plays one turn of a script per request, as this module describes. `requests` records the requests for
    tests.
    """

    def __init__(
        self,
        # The second type is the one that mypy infers for a variable with a list of both.
        turns: Iterable[Mapping[str, Any] | str] | Iterable[Collection[str]] = (),
        *,
        name: str = "scripted",
        source: str = "script",
        clock: Clock | None = None,
        resumable: bool = False,
    ) -> None:
        self.name = name
        self._resumable = resumable
        self.requests: list[dict[str, Any]] = []
        self._source = source
        self._clock = clock or SystemClock()
        # Both are iterable, too: a text would be a script with one turn for each letter.
        if isinstance(turns, (str, Mapping)) or not isinstance(turns, Iterable):
            raise ScriptError(f"{source}: a script must be a list of turns, not {shown(turns)}")
        checked: list[_NumberedTurn] = [(index, _checked(turn, index, source)) for index, turn in enumerate(turns, 1)]
        self._total = len(checked)
        self._turns = deque((index, turn) for index, turn in checked if not turn.get("agent"))
        self._agent_turns = [(index, turn) for index, turn in checked if turn.get("agent")]
        self._counted = (0, 0)

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], *, clock: Clock | None = None, resumable: bool = False
    ) -> ScriptedProvider:
        """Create a provider from a JSON file. Raises `ScriptError` if it is not a valid script."""
        try:
            data = json.loads(read_named(path, _MAX_SCRIPT_BYTES).decode("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ScriptError(f"the script {os.fspath(path)!r} cannot be read: {reason_of(error)}") from None
        turns = data.get("turns") if isinstance(data, dict) else data
        if not isinstance(turns, list):
            raise ScriptError(f'the script {os.fspath(path)!r} must contain a list of turns, or {{"turns": [...]}}')
        name = data.get("name", "scripted") if isinstance(data, dict) else "scripted"
        return cls(turns, name=str(name), source=os.fspath(path), clock=clock, resumable=resumable)

    @property
    def turns_left(self) -> int:
        """The number of turns not played yet; of all turns if the provider is `resumable`."""
        return len(self._turns) + len(self._agent_turns)

    async def stream(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: str | None = None
    ) -> AsyncGenerator[StreamEvent, None]:
        """Stream the next turn, piece by piece. Raises `ScriptError` if none is left, and the errors that the turn plays."""
        index, turn = self._next_turn(messages)
        self.requests.append({"model": model, "messages": list(messages), "tools": list(tools)})
        if turn.get("expect"):
            _check_expectations(turn["expect"], messages, tools, f"{self._source}, turn {index}")
        text, error = str(turn.get("text") or ""), turn.get("error")
        delay_s = float(turn.get("delay_s") or 0)
        if turn.get("reasoning"):
            yield ReasoningPiece(str(turn["reasoning"]))
        shown_text = text if error is None else text[: int(error.get("after") or 0)]
        for piece in _pieces(shown_text, turn.get("deltas", _PIECE_CHARS)):
            await self._clock.sleep(delay_s)
            yield TextDelta(piece)
        if error is not None:
            raise _error(error, shown_text)
        calls = []
        for position, call in enumerate(turn.get("tool_calls") or ()):
            if isinstance(call, ToolCall):
                calls.append(call)
                continue
            # From the turn's number, so that a provider made after a crash gives a call the id that it has in the log.
            call_id = str(call.get("id") or f"call_{index}_{position + 1}")
            rest = call.get("raw_arguments"), None, call.get("caller")
            calls.append(ToolCall(call_id, call["name"], call.get("arguments") or {}, *rest))
        for call in calls:
            yield ToolCallReady(call)
        yield Done(
            output=ModelOutput(
                assistant_text=text,
                tool_calls=calls,
                usage=turn["usage"] if "usage" in turn else self._count_usage(text, calls, messages),
                finish_reason=turn.get("finish_reason") or ("tool_calls" if calls else "stop"),
                reasoning=turn.get("reasoning"),
            )
        )

    def _next_turn(self, messages: Sequence[Message]) -> _NumberedTurn:
        system = str(messages[0].get("content")) if messages and messages[0].get("role") == "system" else ""
        turn = self._turn_behind(messages, system) if self._resumable else self._take_turn(system)
        if turn is not None:
            return turn
        last = f"a {messages[-1].get('role')} message: {_clip(_text(messages[-1]))}" if messages else "nothing"
        raise ScriptError(
            f"{self._source} has {plural(self._total, 'turn')}, and all have been used:"
            f" the model was called once more, after {last}"
            + ("" if self._resumable else "; with resumable=True, each conversation plays the turns from the first")
        )

    def _take_turn(self, system: str) -> _NumberedTurn | None:
        for position, (_, turn) in enumerate(self._agent_turns):
            if turn["agent"] in system:
                return self._agent_turns.pop(position)
        return self._turns.popleft() if self._turns else None

    def _turn_behind(self, messages: Sequence[Message], system: str) -> _NumberedTurn | None:
        """The turn that follows the answers in the conversation; None if none is left."""
        own = [each for each in self._agent_turns if each[1]["agent"] in system] or list(self._turns)
        answers = sum(message.get("role") == "assistant" for message in messages)
        return own[answers] if answers < len(own) else None

    def _count_usage(self, text: str, calls: Sequence[ToolCall], messages: Sequence[Message]) -> dict[str, int]:
        """Estimate usage at four characters per token. The count of the previous request's messages is reused."""
        # Fewer messages than before are another conversation, or the same one after a compaction.
        start, chars = self._counted if len(messages) >= self._counted[0] else (0, 0)
        chars += sum(len(str(message.get("content") or "")) for message in messages[start:])
        self._counted = (len(messages), chars)
        answer_chars = len(text) + sum(len(str(call.arguments)) for call in calls)
        return {"input_tokens": chars // 4 + 1, "output_tokens": answer_chars // 4 + 1}


def _checked(turn: Any, number: int, source: str) -> Mapping[str, Any]:
    if isinstance(turn, str):
        return {"text": turn}
    where = f"{source}, turn {number}"
    fields: Mapping[str, Any] = turn
    _check_keys(fields, _KEYS, where)
    _check_keys(turn.get("error") or {}, _ERROR_KEYS, f"{where}, error")
    _check_keys(turn.get("expect") or {}, _EXPECT_KEYS, f"{where}, expect")
    sizes = turn.get("deltas", _PIECE_CHARS)
    for size in sizes if isinstance(sizes, list) else [sizes]:
        if type(size) is not int or size < 0:
            raise ScriptError(
                f"{where}: deltas must be a number of characters per piece, or a list of such numbers, not {shown(sizes)}; "
                "put the words themselves into text"
            )
    for place, call in enumerate(turn.get("tool_calls") or (), 1):
        if not isinstance(call, ToolCall):
            _check_keys(call, _CALL_KEYS, f"{where}, call {place}")
            if not isinstance(call.get("name"), str):
                raise ScriptError(f"{where}, call {place}: the call needs a name")
    return fields


def _check_keys(table: Any, keys: frozenset[str], where: str) -> None:
    if not isinstance(table, Mapping):
        raise ScriptError(f"{where}: {shown(table)} is not an object; the possible keys are {', '.join(sorted(keys))}")
    for key in sorted(set(table) - keys):
        raise ScriptError(f"{where}: unknown key {key!r}; the keys are {', '.join(sorted(keys))}")


def _pieces(text: str, deltas: Any) -> Iterable[str]:
    if isinstance(deltas, list):
        start = 0
        for size in deltas:
            yield text[start : start + size]
            start += size
        text = text[start:]
        deltas = 0
    size = deltas or max(1, len(text))
    for start in range(0, len(text), size):
        yield text[start : start + size]


def _error(error: Mapping[str, Any], partial: str) -> ProviderError:
    message, kind = str(error.get("message") or "scripted error"), error.get("type") or "http"
    if kind == "connection":
        return ProviderConnectionError(message)
    if kind == "timeout":
        return ProviderTimeoutError(message, phase="idle")
    if kind == "incomplete":
        return IncompleteResponseError(message, partial_text=partial)
    status = int(error.get("status") or 500)
    return ProviderHTTPError(message, status=status, retryable=status >= 500 or status == 429)


def _check_expectations(
    expect: Mapping[str, Any], messages: Sequence[Message], tools: Sequence[ToolSpec], where: str
) -> None:
    texts = [_text(message) for message in messages]
    for expected in _list(expect.get("last")):
        _require(
            expected in (texts[-1] if texts else ""), f"{where}: the last message must contain {expected!r}", texts[-1:]
        )
    for expected in _list(expect.get("contains")):
        _require(any(expected in text for text in texts), f"{where}: some message must contain {expected!r}", texts)
    for unwanted in _list(expect.get("lacks")):
        _require(not any(unwanted in text for text in texts), f"{where}: no message may contain {unwanted!r}", texts)
    if "messages" in expect:
        _require(len(messages) == expect["messages"], f"{where}: there must be {expect['messages']} messages", texts)
    tool_names = [tool["function"]["name"] for tool in tools]
    for name in _list(expect.get("tools")):
        _require(name in tool_names, f"{where}: the tool {name!r} must be offered", [", ".join(tool_names)])
    for name, expected in (expect.get("tool_results") or {}).items():
        ids = [
            call["id"]
            for message in messages
            for call in message.get("tool_calls") or ()
            if call["function"]["name"] == name
        ]
        results = [_text(message) for message in messages if ids and message.get("tool_call_id") == ids[-1]]
        result = results[-1] if results else ""
        _require(str(expected) in result, f"{where}: the newest result of {name} must contain {expected!r}", [result])


def _require(holds: bool, claim: str, actual: Sequence[str]) -> None:
    if not holds:
        lines = "\n".join(f"  {position}: {_clip(text)}" for position, text in enumerate(actual, 1)) or "  (nothing)"
        raise ScriptMismatchError(f"{claim}, but found:\n{lines}")


def _text(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False) if content else ""


def _list(value: Any) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def _clip(text: str) -> str:
    return text if len(text) <= 400 else f"{text[:300]} ... {text[-80:]}"
