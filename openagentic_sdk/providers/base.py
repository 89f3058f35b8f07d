"""What a model provider is: something that answers a list of messages, whole or piece by piece.

Messages are chat-completions messages (dicts with `role` and `content`), tools are chat-completions tool entries
(`{"type": "function", "function": {"name", "description", "parameters"}}`). `content` is a text or a list of parts, see
`content`. Each protocol translates at its own edge, and refuses what it cannot carry before anything is sent.

A stream is an async generator of the events below, or of dicts with the same keys (`{"type": "text_delta", "delta": ...}`).
It ends with `Done`; a stream that ends without one is incomplete.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import field, fields
from functools import cache
from typing import Any, ClassVar, Protocol, TypeGuard, TypeVar, runtime_checkable

from ..errors import ProviderResponseError
from ..ground.frozen import frozen, mutable

T = TypeVar("T")
Message = Mapping[str, Any]
ToolSpec = Mapping[str, Any]


@frozen
class ToolCall:
    """One call that the model asks for.

    `raw_arguments` is set when the call did not arrive whole (the answer was cut, the arguments are no JSON object):
    `arguments` is then empty and the call must not run. `extras` are opaque vendor fields that go back with the call to the
    same provider. `caller` is what a vendor says of code that it runs and that made the call, None for the model itself.
    """

    tool_use_id: str
    name: str
    arguments: Mapping[str, Any]
    raw_arguments: str | None = None
    extras: Mapping[str, Any] | None = None
    caller: Mapping[str, Any] | None = None


@frozen
class ModelOutput:
    """A whole answer. `usage` is as the provider sent it or in the normal form of `sessions.usage`; None is "unknown".

    `reasoning` is the model's reasoning as text, never part of `assistant_text`. `extras` are opaque vendor fields of the
    message. `refusal` marks that `assistant_text` is the model's refusal. `complete` is False when the answer was cut.
    `raw` is what the endpoint sent; `record_raw` says that it is JSON and belongs into the log, see
    `RequestSettings.keep_raw`.
    `citations` are the vendor's own objects. `cost_usd` is what the endpoint itself says that the call cost. `rate_limits`
    are the headers that tell what is left of a limit. `notices` say what of the request this model does not take and was
    left out.
    """

    assistant_text: str | None
    tool_calls: Sequence[ToolCall] = ()
    usage: Mapping[str, Any] | None = None
    raw: Any = None
    finish_reason: str | None = None
    reasoning: str | None = None
    extras: Mapping[str, Any] | None = None
    refusal: bool = False
    complete: bool = True
    model: str | None = None
    citations: Sequence[Mapping[str, Any]] = ()
    # What is about the call and not about what was said; two answers that say the same are equal.
    response_id: str | None = field(default=None, compare=False)
    service_tier: str | None = field(default=None, compare=False)
    system_fingerprint: str | None = field(default=None, compare=False)
    logprobs: Any = field(default=None, compare=False)
    cost_usd: float | None = field(default=None, compare=False)
    rate_limits: Mapping[str, str] | None = field(default=None, compare=False)
    notices: Sequence[str] = field(default=(), compare=False)
    record_raw: bool = field(default=False, compare=False)


@frozen
class TextDelta:
    """A piece of text."""

    delta: str
    type: ClassVar[str] = "text_delta"


@frozen
class ReasoningPiece:
    """A piece of reasoning."""

    delta: str
    type: ClassVar[str] = "reasoning_delta"


@frozen
class ToolCallReady:
    """A call whose arguments are complete."""

    tool_call: ToolCall
    type: ClassVar[str] = "tool_call"


@frozen
class Retrying:
    """Attempt `attempt` failed; another follows after `delay_s`. `model` is set on a fallback.

    With `mid_answer`, pieces of the failed attempt came before: they are void, and the answer begins again. `control` says
    how requests of this session are written from now on because one was refused, see `ProviderSession`.
    """

    reason: str
    delay_s: float
    attempt: int
    model: str | None = None
    mid_answer: bool = False
    control: str | None = None
    type: ClassVar[str] = "retry"


@frozen
class Done:
    """The answer is complete. `output`, when set, is the whole answer and stands above what the deltas add up to."""

    output: ModelOutput | None = None
    usage: Mapping[str, Any] | None = None
    finish_reason: str | None = None
    extras: Mapping[str, Any] | None = None
    refusal: bool = False
    type: ClassVar[str] = "done"


StreamEvent = TextDelta | ReasoningPiece | ToolCallReady | Retrying | Done


def fits(provider: object, protocol: Callable[..., T]) -> TypeGuard[T]:
    """Whether a provider has all that one of these protocols names, at a thirtieth of the price of `isinstance`."""
    return None not in [getattr(provider, name, None) for name in _members(protocol)]


@cache
def _members(protocol: Any) -> tuple[str, ...]:
    return tuple(name for name in {**protocol.__annotations__, **vars(protocol)} if name[0] != "_")


@runtime_checkable
class CompletingProvider(Protocol):
    """A provider that answers at once."""

    name: str

    async def complete(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: str | None = None
    ) -> ModelOutput: ...


@runtime_checkable
class StreamingProvider(Protocol):
    """A provider that answers piece by piece."""

    name: str

    def stream(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: str | None = None
    ) -> AsyncIterator[Any]: ...


Provider = CompletingProvider | StreamingProvider


@mutable
class ProviderSession:
    """What the providers of one session share. `cache_key` is the same for requests that begin alike and says nothing else.

    `controls` are what endpoints have made necessary, each with the host that it is for: `drop_block HOST` asks the vendor
    to drop reasoning that fits no longer, `no_reasoning HOST` leaves all of it out, `unsigned HOST` says that calls came
    from elsewhere, `hold_tool NAME HOST` leaves out a tool whose definition was refused, `cut_descriptions N HOST` cuts
    descriptions of tools that were too long. They stay for the session: what a conversation went through stays in it.
    """

    cache_key: str | None = None
    controls: set[str] = field(default_factory=set)


@runtime_checkable
class SessionProvider(Protocol):
    """A provider that writes its requests for one session."""

    def for_session(self, state: ProviderSession) -> Provider:
        """The same provider for this session alone."""
        ...


def for_session(provider: Provider, state: ProviderSession) -> Provider:
    """The provider for this session alone; one that knows no sessions as it is."""
    return provider.for_session(state) if fits(provider, SessionProvider) else provider


def read_stream_event(item: Any) -> StreamEvent | None:
    """The typed form of what a provider's stream yielded, a dict or an object; None for an unknown type."""
    if isinstance(item, TextDelta | ReasoningPiece | ToolCallReady | Retrying | Done):
        return item
    data: Mapping[str, Any] = item if isinstance(item, Mapping) else _Attributes(item)
    kind = data.get("type")
    if kind == TextDelta.type:
        return TextDelta(str(data.get("delta") or ""))
    if kind == ReasoningPiece.type:
        return ReasoningPiece(str(data.get("delta") or ""))
    if kind == ToolCallReady.type:
        return ToolCallReady(read_tool_call(data.get("tool_call")))
    if kind == Retrying.type:
        delay_s, attempt = float(data.get("delay_s") or 0), int(data.get("attempt") or 1)
        mid_answer, control = bool(data.get("mid_answer")), data.get("control")
        return Retrying(str(data.get("reason")), delay_s, attempt, data.get("model"), mid_answer, control)
    if kind == Done.type:
        return Done(
            None if data.get("output") is None else read_output(data["output"]),
            data.get("usage"),
            data.get("finish_reason"),
            data.get("extras"),
            bool(data.get("refusal")),
        )
    return None


def read_output(item: Any) -> ModelOutput:
    """The typed form of a whole answer given as a `ModelOutput`, a dict, or an object with the same names."""
    if isinstance(item, ModelOutput):
        return item
    data: Mapping[str, Any] = item if isinstance(item, Mapping) else _Attributes(item)
    given: dict[str, Any] = {known.name: data[known.name] for known in fields(ModelOutput) if known.name in data}
    if not {"assistant_text", "tool_calls"} & given.keys():
        raise ProviderResponseError(f"an answer has assistant_text or tool_calls, and this is a {type(item).__name__}")
    calls = [read_tool_call(call) for call in given.get("tool_calls") or ()]
    return ModelOutput(**{"assistant_text": None, **given, "tool_calls": calls})


def read_tool_call(item: Any) -> ToolCall:
    """The typed form of a tool call given as a `ToolCall`, a dict, or an object with the same names."""
    if isinstance(item, ToolCall):
        return item
    data: Mapping[str, Any] = item if isinstance(item, Mapping) else _Attributes(item)
    name, arguments = data.get("name"), data.get("arguments")
    if not isinstance(name, str):
        raise ProviderResponseError(f"a tool call needs a name, not {name!r}")
    if not isinstance(arguments, Mapping):
        raise ProviderResponseError(f"the arguments of {name} must be an object, not {type(arguments).__name__}")
    rest = (data.get(key) for key in ("raw_arguments", "extras", "caller"))
    return ToolCall(str(data.get("tool_use_id") or ""), name, arguments, *rest)


@frozen
class _Attributes(Mapping[str, Any]):
    """An object of somebody else's class, read like a dict."""

    item: Any

    def __getitem__(self, key: str) -> Any:
        try:
            return getattr(self.item, key)
        except AttributeError:
            raise KeyError(key) from None

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0
