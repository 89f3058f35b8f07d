"""Check how our readers read a recorded exchange: whole, byte by byte and cut at every event, and the request after it.

- *bytes*: reading the answer byte by byte has the same result as reading it at once;
- *reading*: text and calls equal those of a plain reading of the protocol;
- *cut*: a stream that ends after any of the events runs no call and contains no text that the whole answer does not;
- *request*: the request that carries the answer back obeys the vendor's rules (`rules.json`, each with source and date).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any
from urllib.parse import urlsplit

from ...errors import IncompleteResponseError, OpenAgentSdkError, ProviderError
from ...ground.frozen import frozen
from ...ground.loose import as_mapping
from ...ground.patterns import regex
from ...providers.anthropic import AnthropicProvider
from ...providers.base import ModelOutput
from ...providers.chat_request import RequestSettings
from ...providers.clouds.bedrock import BedrockProvider
from ...providers.clouds.converse import BedrockConverseProvider
from ...providers.clouds.gemini import GeminiProvider
from ...providers.endpoint import EndpointProvider
from ...providers.openai_compatible import OpenAICompatibleProvider
from ...providers.openai_responses import OpenAIResponsesProvider
from ...providers.wire.exchange import LastEvents, Whole
from ...providers.wire.reading import Reading
from .habits import habits_of, new_habits, profile_of
from .plain import WireProtocol, plain_answer, protocol_of_answer, read_plainly
from .recordings import Exchange
from .rules import find_broken_rules

_USER = {"role": "user", "content": "Go on."}
_UNKNOWN = "https://recorded.invalid/v1"
_THINK, _TAG = regex(r"<think>.*?</think>", re.S), regex(r"</?think>")


@frozen
class WireDifference:
    """One deviation from what is expected; `kind` is bytes, reading, cut or request."""

    kind: str
    detail: str


@frozen
class CheckedExchange:
    """A checked exchange: the number of events in its answer, and the number of places at which it was cut.

    `refusal` is the error of our reader for an incomplete answer. `habits` are the habits that the answer shows,
    `new_habits` those that the vendor's profile lacks (`profiles.json`).
    """

    name: str
    protocol: WireProtocol
    events: int
    cuts: int
    refusal: str | None
    differences: Sequence[WireDifference]
    vendor: str | None = None
    habits: Sequence[str] = ()
    new_habits: Sequence[str] = ()


@frozen
class _ReadOutcome:
    """The result of reading an answer: `output`, or the error, and the text that preceded it."""

    output: ModelOutput | None = None
    error: ProviderError | None = None

    @property
    def text(self) -> str:
        if self.output is not None:
            return self.output.assistant_text or ""
        return self.error.partial_text if isinstance(self.error, IncompleteResponseError) else ""

    @property
    def running(self) -> list[tuple[str, str]]:
        """The calls that would run."""
        calls = self.output.tool_calls if self.output is not None else ()
        return [(one.name, _canonical(dict(one.arguments))) for one in calls if one.raw_arguments is None]

    def comparable(self) -> tuple[object, ...]:
        """The values that must not depend on how the bytes are cut; ids that we generate are excluded."""
        if self.output is None:
            return (type(self.error), str(self.error))
        output = self.output
        raw = [(call.name, call.raw_arguments) for call in output.tool_calls]
        return (
            output.assistant_text,
            output.reasoning,
            raw,
            self.running,
            output.finish_reason,
            output.usage,
            output.refusal,
        )


def check_exchange(exchange: Exchange) -> CheckedExchange | None:
    """Check one exchange; return None if its response is not a model's answer but, for example, embeddings or an error."""
    chunks = read_plainly(exchange.body) if exchange.status < 300 else []
    protocol = protocol_of_answer(chunks)
    if protocol is None:
        return None
    provider = _provider(protocol, exchange)
    differences = list[WireDifference]()
    whole, events = _read(provider, exchange, [exchange.body])
    by_byte, _ = _read(provider, exchange, [exchange.body[at : at + 1] for at in range(len(exchange.body))])
    if whole.comparable() != by_byte.comparable():
        differences.append(WireDifference("bytes", f"at once {_shown(whole)}, byte by byte {_shown(by_byte)}"))
    cuts = 0
    if len(events) > 1:
        for number, cut in enumerate(_cuts(provider, exchange, events), 1):
            cuts += 1
            differences += [
                WireDifference("cut", f"after event {number} of {len(events)}: {one}") for one in _worse(cut, whole)
            ]
    habits = list[str]()
    try:
        habits = habits_of(exchange, protocol, chunks)
        if whole.output is not None:
            differences += _misread(whole.output, protocol, chunks)
            differences += [
                WireDifference("request", broken) for broken in _broken_rules(provider, protocol, whole.output, chunks)
            ]
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        note = f"the protocol's documentation does not cover this answer ({type(error).__name__}: {error})"
        differences.append(WireDifference("reading", note))
    refusal = None if whole.error is None else f"{type(whole.error).__name__}: {whole.error}"
    host = urlsplit(exchange.url).netloc
    vendor = (profile_of(host), habits, new_habits(host, habits))
    return CheckedExchange(exchange.name, protocol, len(events), cuts, refusal, differences, *vendor)


def _provider(protocol: WireProtocol, exchange: Exchange) -> EndpointProvider:
    """The provider that would have sent the request."""
    url = exchange.url.partition("?")[0] or _UNKNOWN
    request = as_mapping(exchange.request)
    settings = RequestSettings(extra_body={"n": request["n"]} if protocol == "chat" and request.get("n") else {})
    if protocol == "chat":
        return OpenAICompatibleProvider(base_url=url.removesuffix("/chat/completions"), settings=settings)
    if protocol == "responses":
        return OpenAIResponsesProvider(base_url=url.removesuffix("/responses"))
    host = "{0.scheme}://{0.netloc}".format(urlsplit(url))
    if protocol == "gemini":
        return GeminiProvider(base_url=host)
    if protocol == "converse":
        return BedrockConverseProvider(base_url=host, region="us-east-1")
    if exchange.body[:1] == b"\0":
        return BedrockProvider(base_url=host, region="us-east-1")
    return AnthropicProvider(base_url=url.removesuffix("/messages"))


def _reading(provider: EndpointProvider, exchange: Exchange) -> Reading:
    return provider.prepare(_model(exchange), [_USER], (), stream=True)[1]


def _model(exchange: Exchange) -> str:
    return str(as_mapping(exchange.request).get("model") or "recorded")


def _read(provider: EndpointProvider, exchange: Exchange, pieces: Sequence[bytes]) -> tuple[_ReadOutcome, list[Any]]:
    """Read the answer in these pieces; return the result and the events."""
    reader, reading = provider.body_reader(), _reading(provider, exchange)
    events = list[Any]()
    try:
        for piece in pieces:
            if batch := reader.feed(piece):
                events += batch
                reading.take(batch)
        last = reader.close()
        events += [] if isinstance(last, Whole) else last
        reading.take(last)
        reading.check_answered()
        return _ReadOutcome(reading.finish()[1]), events
    except ProviderError as error:
        return _ReadOutcome(error=error), events


def _cuts(provider: EndpointProvider, exchange: Exchange, events: Sequence[Any]) -> Iterator[_ReadOutcome]:
    """Yield the results of reading a stream that ends after each of the events but the last, in order."""
    reading = _reading(provider, exchange)
    for event in events[:-1]:
        try:
            reading.take([event])
            ended = deepcopy(reading)
            ended.take(LastEvents())
            yield _ReadOutcome(ended.finish()[1])
        except ProviderError as error:
            yield _ReadOutcome(error=error)


def _worse(cut: _ReadOutcome, whole: _ReadOutcome) -> Iterator[str]:
    extra = Counter(cut.running) - Counter(whole.running)
    for name, arguments in extra:
        yield f"would run {name}({arguments[:200]}), which the whole answer does not"
    if whole.output is not None and not whole.text.startswith(cut.text):
        yield f"would produce {cut.text[-80:]!r}, which the whole answer does not"


def _misread(output: ModelOutput, protocol: WireProtocol, chunks: Sequence[Any]) -> Iterator[WireDifference]:
    text, calls = plain_answer(protocol, chunks)
    text_read = output.assistant_text or ""
    # We separate reasoning in tags from the text; no protocol does.
    forms = {_bare(text), _bare(_THINK.sub("", text)), _bare(_TAG.sub("", text))}
    if not forms & {_bare(text_read), _bare((output.reasoning or "") + text_read)}:
        yield WireDifference("reading", f"the text is {_end(text)}, read as {_end(text_read)}")
    ours = [(one.name, one.arguments if one.raw_arguments is None else one.raw_arguments) for one in output.tool_calls]
    expected, got = ([(name, _canonical(arguments)) for name, arguments in one] for one in (calls, ours))
    if sorted(expected) != sorted(got):
        yield WireDifference("reading", f"the calls are {expected!s:.400}, read as {got!s:.400}")


def _broken_rules(
    provider: EndpointProvider, protocol: WireProtocol, output: ModelOutput, chunks: Sequence[Any]
) -> Iterator[str]:
    """Yield the reasons why an endpoint would refuse a request with the answer and a result for each of its calls."""
    message: dict[str, Any] = {**(output.extras or {}), "role": "assistant", "content": output.assistant_text}
    calls = [
        {
            **(call.extras or {}),
            "id": call.tool_use_id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
        }
        for call in output.tool_calls
    ]
    if not (output.assistant_text or calls or output.extras):
        return
    if calls:
        message["tool_calls"] = calls
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "Done."} for call in calls]
    tools = [
        {"type": "function", "function": {"name": call.name, "parameters": {}}}
        for call in output.tool_calls
        if call.name
    ]
    try:
        request = provider.prepare(output.model or "recorded", [_USER, message, *results, _USER], tools, stream=True)[0]
    except OpenAgentSdkError as error:
        yield f"it cannot be written: {error}"
        return
    yield from find_broken_rules(protocol, provider.origin, request, chunks)


def _canonical(arguments: Any) -> str:
    """Arguments as one text, whether they are text or a value."""
    value = arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments) if arguments.strip() else {}
        except ValueError:
            return arguments
    return json.dumps({} if value is None else value, sort_keys=True)


def _bare(text: str) -> str:
    """The text without white space, because white space between two messages belongs to neither."""
    return "".join(text.split())


def _end(text: str) -> str:
    return f"{len(text)} characters ending in {text[-60:]!r}"


def _shown(outcome: _ReadOutcome) -> str:
    return f"{outcome.comparable()!s:.300}"
