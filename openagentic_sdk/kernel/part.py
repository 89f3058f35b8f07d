"""A part: one feature of a run, with its own state, called at the seams of the loop.

The loop does not depend on any particular part. An agent lists the openers of its parts in the order in which they are
called; leaving one out removes its feature and nothing else. Parts never touch each other's state: they share events in the
log, and services that one offers and another requests by type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ..events import Event, Result, ToolResult, ToolUse, UserQuestion
from ..ground.frozen import mutable
from .gate import CallContext
from .lifetime import RunStopped
from .tool import Services

if TYPE_CHECKING:
    from .agent import Run
    from .context import SystemPrompt
    from .gate import Narrowing
    from .model_step import Reply
    from .prompt import Said
    from .registry import ToolRegistry
    from .tool_call import Permitted, Proposed


E = TypeVar("E", bound=Event)
T = TypeVar("T")


@mutable
class IncomingPrompt:
    """A prompt on its way into the log; each part may change it.

    The model reads `text` and, directly after it, `behind`, which hooks do not see; `events` are stored after the message.
    `sources` names the outside origins of the text (see `UserMessage.untrusted`). `is_expanded` is true if nobody typed the
    text, or a part has replaced it. `sha256` is the digest of the caller's input, if it has a request id.
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
    """One feature of one run. Each method is a seam; seams that a part does not override cost nothing.

    Parts are called in the order of the agent's list. An exception from a seam ends the run as an error; `RunStopped` ends
    it with its reason. `limits` names the fields of `RunRequest` that have no effect without this part.
    """

    limits: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, run: Run) -> None:
        self.run = run

    def services(self) -> Mapping[type, object]:
        """Return the services that this part offers to tools and other parts, keyed by the type that they request."""
        return {}

    def opening_events(self) -> Sequence[Event]:
        """Return the events to store together with `system.init`."""
        return ()

    async def begin(self) -> None:
        """Act on the opened session: `system.init` is stored, and calls left open by an earlier run are still open."""

    async def settle(self, prompt_follows: bool) -> None:
        """End or continue whatever an earlier run left open, except calls.

        If a prompt follows, leave open what waits for a person: `supersede` ends it.
        """

    async def supersede(self, questions: Sequence[UserQuestion]) -> Sequence[Event]:
        """Return the events that end whatever these questions block, to be stored with the prompt that was sent instead."""
        return ()

    async def expand_prompt(self, prompt: IncomingPrompt) -> None:
        """Change a prompt before hooks see it. Not called for the prompt of a subagent."""

    async def fill_prompt(self, prompt: IncomingPrompt) -> None:
        """Complete a prompt after the hooks have accepted it, or a message to the running turn."""

    async def before_step(self) -> None:
        """Act before each request to the model, after the calls of the previous step have ended."""

    def system_prompt(self) -> SystemPrompt | None:
        """Return the system prompt for a session that would begin now. The first part that has one provides it."""
        return None

    def facts(self) -> Mapping[str, str]:
        """Return the facts that the model must have read by now, by subject. New and changed ones are appended as messages
        (a `context.Once` only when it is new), and those that are no longer returned are withdrawn.

        Return the same object as long as nothing changes.
        """
        return {}

    def model(self) -> str | None:
        """Return the model to ask next, or None for the agent's. The first part that names one decides."""
        return None

    def narrow(self) -> Sequence[Narrowing]:
        """Return restrictions on the next call beyond the agent's gate."""
        return ()

    def tell_gate(self, context: CallContext, tool: str | None) -> CallContext:
        """Complete the gate's context for a call of `tool`, which is `None` for a path that a running call asks for."""
        return context

    async def permit(self, call: Proposed, context: CallContext) -> Permitted | CallContext:
        """Permit a call without asking the gate; otherwise complete the gate's context for it."""
        return context

    def tell_hooks(self) -> Mapping[str, Any]:
        """Return additional entries for the hooks' `context`."""
        return {}

    def receive(self, size_bytes: int) -> tuple[int, str | None]:
        """Return how many of the `size_bytes` that have arrived may be kept, and why the answer ends there, if it does.

        `size_bytes` shrinks when the answer arrives again as a whole.
        """
        return size_bytes, None

    def mask(self, event: E) -> E:
        """Return the event without secrets. Called before each event is stored or shown; in a thread for a large result."""
        return event

    def mask_value(self, value: T) -> T:
        """Return a JSON value without secrets: what the model receives must be what the log holds."""
        return value

    def may_wait(self, events: Sequence[Event]) -> bool:
        """Whether events may be stored and shown with the next ones, because nobody acts on them before then."""
        return False

    def stored(self, events: Sequence[Event]) -> None:
        """Take note of this run's events that were just stored, or shown without being stored."""

    async def make_room(self) -> bool:
        """Shorten a conversation that the endpoint rejected as too long. Return True to ask the model again."""
        return False

    def read_call(self, use: ToolUse, tools: ToolRegistry) -> ToolUse:
        """Translate a call to the tools on offer, for a model that was trained with other names."""
        return use

    def continues(self, tool_use_id: str) -> bool:
        """Whether this part continues a started call in the next run, or a call of an earlier run in this one."""
        return False

    def still_waits(self, question: UserQuestion) -> bool:
        """Whether this part needs the answer to a question of an earlier run although no open call waits for it."""
        return False

    async def after_answer(self, reply: Reply) -> None:
        """Act on an answer with calls, before they run."""

    async def send(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Change the messages of a request as they are sent, unless all are plain text; the log keeps the originals."""
        return messages

    async def store_result(self, result: ToolResult) -> ToolResult:
        """Move data that does not belong in the log out of a result. Called for every call that ran, before hooks."""
        return result

    async def after_call(self, call: Permitted, result: ToolResult) -> ToolResult:
        """Change the result of a call after hooks have seen it, or take note of it."""
        return result

    async def may_end(self, reply: Reply) -> bool:
        """Whether the run may end with this answer; False asks the model again."""
        return True

    def take_answer(self) -> str | None:
        """Return the final answer as JSON if a call has provided it, so that the model is not asked again; otherwise None.

        An answer can be taken once.
        """
        return None

    def complete_result(self, result: Result) -> Result:
        """Add this part's fields to the run's result before it is stored."""
        return result

    async def end(self, ending: RunStopped) -> RunStopped:
        """Close everything that this part left open; the session accepts events until the `result`. Return how the run
        ends.
        """
        return ending

    async def vouch(self) -> None:
        """Append attestations to the log: the `result` is stored but not yet shown, and the session is still locked."""

    async def close(self) -> None:
        """Release all resources; another run may hold the session by now. Called last, however the run ended."""


# Creates a part in a run: its class, or a `partial` of it with its settings.
PartOpener = Callable[["Run"], Part]


def kind_of(opener: PartOpener) -> object:
    """The class of the parts that an opener opens."""
    return opener.func if isinstance(opener, partial) else opener


def without_parts(openers: Iterable[PartOpener], *kinds: type[Part]) -> tuple[PartOpener, ...]:
    """Return the openers, except those of the given classes."""
    return tuple(opener for opener in openers if kind_of(opener) not in kinds)


class Parts:
    """The parts of one run in order, and the services that they and the kernel (`offered`) provide."""

    def __init__(self, parts: Sequence[Part] = (), offered: Mapping[type, object] | None = None) -> None:
        self._parts = parts
        self._kinds = tuple(map(type, parts))
        self._by_seam: dict[str, tuple[Part, ...]] = {}
        services = dict(offered or {})
        for part in self.at(Part.services):
            # If two parts offer the same type, the later one replaces the service of the earlier one.
            services |= part.services()
        self.services = Services(services)

    def offering(self, services: Mapping[type, object]) -> Parts:
        """Return the same parts with these additional services of the kernel."""
        # A shallow copy: both share the parts, and so their state.
        other = copy(self)
        other.services = self.services.extended(services)
        return other

    def masked(self, value: T) -> T:
        """Return a JSON value in which everything that must not be stored is masked."""
        for part in self.at(Part.mask_value):
            value = part.mask_value(value)
        return value

    def continue_call(self, tool_use_id: str) -> bool:
        """Whether a part continues a started call, so that it stays open or runs again."""
        return any(part.continues(tool_use_id) for part in self.at(Part.continues))

    def at(self, seam: Callable[..., Any]) -> tuple[Part, ...]:
        """Return the parts that override a seam, given as `Part.before_step` and so on."""
        name = seam.__name__
        parts = self._by_seam.get(name)
        if parts is None:
            places = _overriding(self._kinds, seam)
            parts = self._by_seam[name] = tuple(map(self._parts.__getitem__, places))
        return parts


@cache
def _overriding(kinds: tuple[type[Part], ...], seam: Callable[..., Any]) -> tuple[int, ...]:
    """The positions of the classes that override a seam; the others are skipped, because awaiting a default is not free."""
    return tuple(place for place, kind in enumerate(kinds) if getattr(kind, seam.__name__) is not seam)
