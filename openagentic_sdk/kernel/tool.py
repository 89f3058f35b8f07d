"""What a tool is, and what it is given for one call.

A tool declares a name, a description and a JSON schema for the model, and an effect class for the runtime: what may be
repeated after a crash and what may run beside others follows from the effect class alone.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from ..errors import MissingServiceError, ToolError
from ..events import Effect, Event, ToolUse
from ..ground.frozen import frozen

if TYPE_CHECKING:  # checkers bring this module themselves; a context without a parameter has deps of any type
    from typing_extensions import TypeVar as TypeVarWithDefault

    DepsT = TypeVarWithDefault("DepsT", default=Any)
else:
    DepsT = TypeVar("DepsT")
T = TypeVar("T")

# The effects of calls that may run again after a crash.
REPEATABLE = ("read", "idempotent")


class SessionLog:
    """A service: the log of the session. Alone, a list in memory."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def events(self) -> list[Event]:
        """The session's events, without those that a compaction took out of sight."""
        return list(self._events)

    async def record(self, *events: Event) -> None:
        """Append events as one batch and show them to the caller."""
        self._events += events

    async def show(self, event: Event) -> None:
        """Show the caller an event that is not stored."""


class Questions:
    """A service: puts questions to a person. Alone, it reaches nobody."""

    def reach_anybody(self, ctx: ToolContext) -> bool:
        """Whether a question of this call gets an answer, now or when the run is resumed."""
        return False

    async def ask(
        self, ctx: ToolContext, prompt: str, choices: Sequence[str] = (), details: Mapping[str, Any] | None = None
    ) -> str:
        """The answer of a person, which may be none of the choices. `details` are for whoever shows the question.

        Raises `ToolError` when nobody can be asked.
        """
        raise ToolError(
            f"nobody can be asked {prompt!r} in this session: decide yourself and say what you assumed, "
            "or stop and put the question in your answer"
        )


class PathRules:
    """A service: what the permission rules say about paths. Alone, everything is allowed."""

    async def permits(self, ctx: ToolContext, path: str, *, write: bool = False) -> bool:
        """Whether this call may touch one more path that it turned out to need."""
        return True

    def read_filter(self) -> Callable[[str], bool] | None:
        """A function from an absolute path to whether a search may show it; None where every path may be shown."""
        return None


class Blobs:
    """A service: bytes stored beside the log, by their SHA-256. Alone, they are kept in memory."""

    def __init__(self) -> None:
        self._by_digest: dict[str, bytes] = {}

    def read(self, digest: str) -> bytes:
        """Raises `ToolError` or `StorageError` when they are not there. To be called in a thread."""
        if digest not in self._by_digest:
            raise ToolError(f"blob:{digest} cannot be read here: there is no session that holds stored outputs")
        return self._by_digest[digest]

    async def keep(self, data: bytes) -> str:
        """Store bytes and return their digest."""
        digest = sha256(data).hexdigest()
        self._by_digest[digest] = data
        return digest


@frozen
class Secrets:
    """A service: `redact` masks the secrets in a text; None where nothing is masked.

    Results are masked anyway; a tool masks what it cuts or writes elsewhere, before it does.
    """

    redact: Callable[[str], str] | None = None


class RunResources:
    """A service: what the calls of one run share, one value of each class.

    What has a `close` is closed at the run's end, in a thread.
    """

    def __init__(self) -> None:
        self._by_type: dict[type, object] = {}
        self._creation = threading.Lock()

    def find(self, kind: type[T]) -> T | None:
        """The value of this class, None when no call has asked for one."""
        found = self._by_type.get(kind)
        assert found is None or isinstance(found, kind), f"{kind.__name__} is what was made of it"
        return found

    def get(self, kind: type[T], make: Callable[[], T] | None = None) -> T:
        """The value of this class, made by `make` or by the class itself when it is first asked for."""
        with self._creation:
            found = self.find(kind)
            if found is None:
                self._by_type[kind] = found = (make or kind)()
            return found

    def __iter__(self) -> Iterator[object]:
        """All values, in the order in which they were made."""
        return iter(list(self._by_type.values()))


@frozen
class Deps:
    """A service: the value that the caller gave the run for its tools, `ctx.deps`."""

    value: Any


# Services that every tool may count on: outside of a run each stands alone, as its class says.
_ALWAYS_THERE = (SessionLog, Questions, PathRules, Blobs, Secrets, RunResources)


class Services:
    """What the kernel and the parts of a run offer to tools and each other, each under the type by which it is asked for."""

    def __init__(self, by_type: Mapping[type, object] | None = None) -> None:
        self._by_type = dict(by_type or {})

    def find(self, kind: type[T]) -> T | None:
        """The service of this type, None when nothing offers it."""
        found = self._by_type.get(kind)
        if found is None and kind in _ALWAYS_THERE:
            found = self._by_type.setdefault(kind, kind())
        assert found is None or isinstance(found, kind), f"what is offered as {kind.__name__} is one"
        return found

    def get(self, kind: type[T]) -> T:
        """The service of this type. Raises `MissingServiceError` when nothing offers it."""
        found = self.find(kind)
        if found is None:
            raise MissingServiceError(kind.__name__)
        return found

    def extended(self, by_type: Mapping[type, object]) -> Services:
        """These services, with others added or in the place of those of the same type."""
        return Services({**self._by_type, **by_type})


@frozen(kw_only=True)
class ToolContext(Generic[DepsT]):
    """Where one call runs, and the services that it may ask for. A tool that is run alone, in a test, needs none of it.

    `cwd` is the working directory; `workspace_roots` the folders that belong to the session (cwd when empty). `session_dir`
    is the session's own folder, None when its store has no files. `idempotency_key` is the same for every attempt at one
    call. `seq` is the event by which the model asked for the call. `cancelled` is set when the call is to stop; code in a
    thread looks at it. `services` are what the kernel and the parts of the run offer, each asked for by its type:
    `ctx.services.get(Questions)`. The folds that the run keeps over its log are among them.
    """

    cwd: str = "."
    project_dir: str | None = None
    workspace_roots: tuple[str, ...] = ()
    session_id: str | None = None
    session_dir: str | None = None
    tool_use_id: str | None = None
    idempotency_key: str | None = None
    agent_name: str | None = None
    seq: int | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    services: Services = field(default_factory=Services)

    @property
    def deps(self) -> DepsT:
        """What the caller gave the run for its tools. Raises `MissingServiceError` where nothing was given."""
        value: DepsT = self.services.get(Deps).value
        return value


@frozen
class ToolOutput:
    """A tool's answer when it has more to say than what the model reads as text.

    `meta` is stored and never shown to the model. `attachments` are pictures, documents and sounds, `{"type": "image" |
    "file" | "audio", "media_type", "name"?, "data": base64}`, which are stored beside the log and sent as what they are;
    the type `other` is stored only.
    """

    output: Any
    meta: Mapping[str, Any] | None = None
    is_error: bool = False
    attachments: Sequence[Mapping[str, Any]] = ()


class BareTool(ABC):
    """One thing that a model can ask for, as the kernel runs it; `tools.base.Tool` also checks its input.

    `effect`: `read` changes nothing and may run beside other calls; `idempotent` may be repeated with the same
    `idempotency_key`; `unsafe` is started at most once. `parallel` lets calls of one answer run at the same time.
    `allowed_callers` says who may call it: `direct` is the model itself, `Code` our tool of that name, anything else is a
    vendor's word for code that it runs (`code_execution_20260120`, `programmatic`) and is sent to the vendor with the
    definition. None lets all of them. A call of a tool that `is_answer` is the run's final answer: it has no other effect
    and needs no permission, whatever the mode.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]
    effect: Effect = "unsafe"
    allowed_callers: Sequence[str] | None = None
    is_answer: ClassVar[bool] = False

    @property
    def parallel(self) -> bool:
        return self.effect == "read"

    @abstractmethod
    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        """Do it, with input that fits `input_schema`. Returns what `json_value` takes, or a `ToolOutput`; whatever it raises
        becomes an error result for the model."""

    def rule_names(self, input: Mapping[str, Any]) -> tuple[str, ...]:
        """What permission rules may call this tool, with this input, besides its name."""
        return ()

    def json_value(self, output: Any) -> Any:
        """What `run` gave, as JSON values; what they cannot hold stays as it is, or is a `ToolError`."""
        return output

    async def reconcile(self, call: ToolUse, ctx: ToolContext) -> Any | None:
        """Say what came of a call that was started before a crash: its result, or None when it cannot be known."""
        return None

    @abstractmethod
    def check_input(self, input: Mapping[str, Any], name: str = "the arguments") -> Mapping[str, Any]:
        """The input with what `input_schema` fills in. `name` is how an error calls it.

        Raises `ToolInputError` for input that does not fit.
        """


# Callers that a vendor calls otherwise in calls than in definitions (OpenAI, "Programmatic tool calling").
CALLER_WORDS = {"program": "programmatic"}


def may_call(tool: BareTool, caller: str) -> bool:
    """Whether a tool may be called by this caller (see `Tool.allowed_callers`)."""
    return tool.allowed_callers is None or caller in tool.allowed_callers
