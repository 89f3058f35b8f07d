"""A part: one feature of a run, with a state of its own, called at the seams of the loop.

The loop does not know what parts there are. An agent lists what opens them, in the order in which they are called; to
leave one out takes its feature away and nothing else. Parts never touch each other's state: they share events in the log,
and services that one offers and another asks for by type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import field
from functools import cache, partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ..errors import OpenAgentSdkError, PartError
from ..events import Event, Result, ToolResult, ToolUse, UserQuestion
from ..ground.frozen import mutable
from .gate import CallContext
from .lifetime import RunStopped
from .tool import Services

if TYPE_CHECKING:
    from ..sessions.system_prompt import SystemPrompt
    from .agent import Run
    from .gate import Narrowing
    from .model_step import Reply
    from .prompt import Said
    from .registry import ToolRegistry
    from .tool_call import Permitted, Proposed


E = TypeVar("E", bound=Event)
T = TypeVar("T")


@mutable
class IncomingPrompt:
    """A prompt on its way into the log, which each part may change.

    The model reads `text` and, right behind it, `behind`, which hooks do not see; `events` are stored after the message.
    `sources` names what came from elsewhere (see `UserMessage.untrusted`). `is_expanded` is true once a part has put another
    text in the place of what a person typed. `sha256` is the digest of what the caller gave, where it has a request id.
    """

    said: Said
    text: str
    request_id: str | None = None
    sha256: str | None = None
    origin: str = "user"
    behind: str = ""
    is_expanded: bool = False
    events: list[Event] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    attachments: list[Mapping[str, Any]] = field(default_factory=list)


class Part:
    """One feature of one run. Each method is a seam; those that a part does not override cost nothing.

    Parts are called in the order of the agent's list. An exception of a seam ends the run as an error; `RunStopped` ends it
    with its reason. `limits` names the fields of a `RunRequest` that mean nothing without this part.
    """

    limits: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, run: Run) -> None:
        self.run = run

    def services(self) -> Mapping[type, object]:
        """What this part offers to tools and other parts, each under the type by which it is asked for."""
        return {}

    def opening_events(self) -> Sequence[Event]:
        """Events that are stored together with `system.init`."""
        return ()

    async def begin(self) -> None:
        """Act on the opened session: `system.init` is stored, and calls that an earlier run left open are still open."""

    async def settle(self, prompt_follows: bool) -> None:
        """End or go on with what an earlier run left open besides calls.

        Where a prompt follows, what waits for a person is left open: `supersede` ends it.
        """

    async def supersede(self, questions: Sequence[UserQuestion]) -> Sequence[Event]:
        """The events that end what these questions wait for: a prompt came instead of an answer, and is stored with them."""
        return ()

    async def expand_prompt(self, prompt: IncomingPrompt) -> None:
        """Change a prompt before hooks see it."""

    async def fill_prompt(self, prompt: IncomingPrompt) -> None:
        """Complete a prompt, or a message to the running turn, that hooks let pass."""

    async def before_step(self) -> None:
        """Act before each request to the model: between two steps, nothing else is going on."""

    def system_prompt(self) -> SystemPrompt | None:
        """The system prompt of a session that would begin now. The first part that has one provides it."""
        return None

    def facts(self) -> Mapping[str, str]:
        """What the model must have read by now, by subject; what is new or has changed is appended as a message.

        Return the same object while nothing changes.
        """
        return {}

    def model(self) -> str | None:
        """The model to ask next, None for the agent's. The first part that names one decides."""
        return None

    def narrow(self) -> Sequence[Narrowing]:
        """What the next call may not do although the agent's gate allows it."""
        return ()

    def tell_gate(self, context: CallContext, tool: str | None) -> CallContext:
        """Complete what the gate is told about a call of `tool`, which is None for a path that a running call asks for."""
        return context

    async def permit(self, call: Proposed, context: CallContext) -> Permitted | CallContext:
        """Let a call run in another way than by the gate's decision; otherwise complete what the gate is told about it."""
        return context

    def tell_hooks(self) -> Mapping[str, Any]:
        """What hooks find in their `context` besides where they run."""
        return {}

    def receive(self, size_bytes: int) -> tuple[int, str | None]:
        """How many of the answer's bytes, of which so many have come by now, may be kept, and why it ends there, if it does.

        The number shrinks where the answer comes again, as a whole.
        """
        return size_bytes, None

    def mask(self, event: E) -> E:
        """The event without what may not be stored. Called for every event, before it is stored or shown."""
        return event

    def mask_value(self, value: T) -> T:
        """A JSON value without what may not be stored: it goes to the model as the log will hold it."""
        return value

    def stored(self, events: Sequence[Event]) -> None:
        """Take note of events of this run that were just stored, or shown without being stored."""

    async def make_room(self) -> bool:
        """Shorten a conversation that the endpoint refused as too long. True asks the model again."""
        return False

    def read_call(self, use: ToolUse, tools: ToolRegistry) -> ToolUse:
        """A call as the tools that are offered take it, for a model that was taught other names."""
        return use

    def continues(self, tool_use_id: str) -> bool:
        """Whether this part goes on with a started call in the next run, or with one of an earlier run in this one."""
        return False

    def still_waits(self, question: UserQuestion) -> bool:
        """Whether this part needs the answer to a question of an earlier run although no open call waits for it."""
        return False

    async def after_answer(self, reply: Reply) -> None:
        """Act on an answer with calls, before they run."""

    async def send(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The messages of a request as they leave; the log holds them as they came."""
        return messages

    async def store_result(self, result: ToolResult) -> ToolResult:
        """Put beside the log what does not belong in it. Called for every result, before hooks see it."""
        return result

    async def after_call(self, call: Permitted, result: ToolResult) -> ToolResult:
        """Change the result of a call as hooks left it, or take note of it."""
        return result

    async def may_end(self, reply: Reply) -> bool:
        """Whether the run may end with this answer. False asks the model again."""
        return True

    def take_answer(self) -> str | None:
        """The run's final answer as JSON if a call has given it, so that the model is not asked again; None otherwise.

        An answer is taken once.
        """
        return None

    def complete_result(self, result: Result) -> Result:
        """Add this part's fields to the run's result before it is stored."""
        return result

    async def end(self, ending: RunStopped) -> RunStopped:
        """Close what this part left open; the session takes events until the `result`. Returns how the run ends."""
        return ending

    async def vouch(self) -> None:
        """Append what vouches for the record: the `result` is stored and not shown yet, and the session is still held."""

    async def close(self) -> None:
        """Let go of everything; the session is another's by now. Called once `begin` was, however the run ended."""


# Opens a part in a run: its class, or a `partial` of it with its settings.
PartOpener = Callable[["Run"], Part]


def kind_of(opener: PartOpener) -> object:
    """The class of the parts that an opener opens."""
    return opener.func if isinstance(opener, partial) else opener


def without_parts(openers: Iterable[PartOpener], *kinds: type[Part]) -> tuple[PartOpener, ...]:
    """The openers but for those of these classes."""
    return tuple(opener for opener in openers if kind_of(opener) not in kinds)


class Parts:
    """The parts of one run in their order, and what they and the kernel (`offered`) offer."""

    def __init__(self, parts: Sequence[Part] = (), offered: Mapping[type, object] | None = None) -> None:
        self._parts = parts
        self._kinds = tuple(map(type, parts))
        for place in _foreign(self._kinds):
            _watch(parts[place])
        self._by_seam: dict[str, tuple[Part, ...]] = {}
        services = dict(offered or {})
        for part in self.at(Part.services):
            services |= part.services()
        self.services = Services(services)

    def offering(self, services: Mapping[type, object]) -> Parts:
        """The same parts beside these services of the kernel."""
        other = copy(self)
        other.services = self.services.extended(services)
        return other

    def masked(self, value: T) -> T:
        """A JSON value as it may be stored."""
        for part in self.at(Part.mask_value):
            value = part.mask_value(value)
        return value

    def continue_call(self, tool_use_id: str) -> bool:
        """Whether a part goes on with a call that was started, so that it stays open or runs again."""
        return any(part.continues(tool_use_id) for part in self.at(Part.continues))

    def at(self, seam: Callable[..., Any]) -> tuple[Part, ...]:
        """The parts that override a seam, which is given as `Part.before_step` and so on."""
        name = seam.__name__
        parts = self._by_seam.get(name)
        if parts is None:
            places = _overriding(self._kinds, seam)
            parts = self._by_seam[name] = tuple(map(self._parts.__getitem__, places))
        return parts


@cache
def _overriding(kinds: tuple[type[Part], ...], seam: Callable[..., Any]) -> tuple[int, ...]:
    """The places of the classes that override a seam: a default that is awaited for every part and event is not free."""
    return tuple(place for place, kind in enumerate(kinds) if getattr(kind, seam.__name__) is not seam)


# What a seam must return. One that is not listed may return None, or anything.
_RETURNS: Mapping[str, type] = {
    "services": Mapping, "opening_events": Sequence, "supersede": Sequence, "facts": Mapping, "narrow": Sequence,
    "tell_gate": CallContext, "permit": object, "tell_hooks": Mapping, "receive": tuple, "mask": Event, "make_room": bool,
    "read_call": ToolUse, "continues": bool, "still_waits": bool, "send": Sequence, "store_result": ToolResult,
    "after_call": ToolResult, "may_end": bool, "complete_result": Result, "end": RunStopped,
}  # fmt: skip


@cache
def _foreign(kinds: tuple[type[Part], ...]) -> tuple[int, ...]:
    """The places of the classes that are not of this package, whose parts are held to their types when they are checked."""
    package = __name__.partition(".")[0]
    return tuple([place for place, kind in enumerate(kinds) if kind.__module__.partition(".")[0] != package])


def _watch(part: Part) -> None:
    """Let errors name the part and the seam."""
    kind = type(part)
    for seam, default in vars(Part).items():
        if seam[0] != "_" and callable(default) and getattr(kind, seam) is not default:
            setattr(part, seam, _watched(kind.__name__, seam, getattr(part, seam), default))


def _watched(name: str, seam: str, work: Callable[..., Any], default: Callable[..., Any]) -> Callable[..., Any]:
    due = _RETURNS.get(seam)

    @contextmanager
    def naming_the_part() -> Iterator[None]:
        try:
            yield
        except (RunStopped, OpenAgentSdkError):
            raise
        except Exception as error:
            raise PartError(name, seam, f"{type(error).__name__}: {error}") from error

    def checked(value: Any) -> Any:
        if due is not None and (value is None or not isinstance(value, due)):
            raise TypeError(f"it returned {value!r:.100}, and should return a value of type {due.__name__}")
        return value

    async def awaited(*given: Any) -> Any:
        with naming_the_part():
            return checked(await work(*given))

    def called(*given: Any) -> Any:
        with naming_the_part():
            return checked(work(*given))

    return awaited if iscoroutinefunction(default) else called
