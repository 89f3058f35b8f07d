"""Tools, and the context that a tool receives for each call.

A tool declares a name, a description and a JSON schema for the model, and an effect class for the runtime. The effect class
determines what may be repeated after a crash and, unless the tool overrides `parallel`, what may run in parallel.
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

if TYPE_CHECKING:  # only for type checkers; a context without a parameter has deps of any type
    from typing_extensions import TypeVar as TypeVarWithDefault

    DepsT = TypeVarWithDefault("DepsT", default=Any)
else:
    DepsT = TypeVar("DepsT")
T = TypeVar("T")

# The effects of calls that may run again after a crash.
REPEATABLE = ("read", "idempotent")


class SessionLog:
    """A service: the session's log. The default is a list in memory."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def events(self) -> list[Event]:
        """Return the session's events, except those removed from view by a compaction."""
        return list(self._events)

    async def record(self, *events: Event) -> None:
        """Append events as one batch and show them to the caller."""
        self._events += events

    async def show(self, event: Event) -> None:
        """Show the caller an event without storing it."""


class Questions:
    """A service: questions to a person. The default reaches nobody."""

    def reach_anybody(self, ctx: ToolContext) -> bool:
        """Whether a question of this call can be answered, now or when the run is resumed."""
        return False

    async def ask(
        self, ctx: ToolContext, prompt: str, choices: Sequence[str] = (), details: Mapping[str, Any] | None = None
    ) -> str:
        """Return a person's answer, which need not be one of the choices. `details` are for displaying the question.

        Raises `ToolError` if nobody can be asked.
        """
        raise ToolError(
            f"nobody can be asked {prompt!r:.500} in this session: decide yourself and say what you assumed, "
            "or stop and put the question in your answer"
        )


class PathRules:
    """A service: the permission rules for paths. The default allows everything."""

    async def permits(self, ctx: ToolContext, path: str, *, write: bool = False) -> bool:
        """Whether this call may also read another path or, with `write`, change it. Nobody is asked."""
        return True

    def read_filter(self) -> Callable[[str], bool] | None:
        """Return a predicate that is true for the absolute paths that a search may show; None if it may show all."""
        return None


class Blobs:
    """A service: bytes stored beside the log, keyed by SHA-256. The default keeps them in memory."""

    def __init__(self) -> None:
        self._by_digest: dict[str, bytes] = {}

    def read(self, digest: str) -> bytes:
        """Return the bytes of a digest; call this in a thread. Raises `ToolError` or `StorageError` if they are missing."""
        if digest not in self._by_digest:
            raise ToolError(f"blob:{digest} cannot be read here: no session with stored outputs is open")
        return self._by_digest[digest]

    async def keep(self, data: bytes) -> str:
        """Store bytes and return their digest."""
        digest = sha256(data).hexdigest()
        self._by_digest[digest] = data
        return digest


@frozen
class Secrets:
    """A service: `redact` masks the secrets in a text; None if nothing is masked.

    Results are masked anyway; a tool masks whatever it truncates or writes elsewhere before doing so.
    """

    redact: Callable[[str], str] | None = None


class RunResources:
    """A service: values that the calls of one run share, one per class.

    Values with a `close` method are closed at the end of the run, in a thread.
    """

    def __init__(self) -> None:
        self._by_type: dict[type, object] = {}
        self._creation = threading.Lock()

    def find(self, kind: type[T]) -> T | None:
        """Return the value of this class, or None if no call has requested one."""
        value = self._by_type.get(kind)
        assert value is None or isinstance(value, kind), f"the value made for {kind.__name__} is an instance of it"
        return value

    def get(self, kind: type[T], make: Callable[[], T] | None = None) -> T:
        """Return the value of this class; on first use it is made by `make`, or by the class itself."""
        # Calls in threads may ask at the same time, and each must get the same value.
        with self._creation:
            # The lock is not reentrant: `make` must not request another value.
            value = self.find(kind)
            if value is None:
                self._by_type[kind] = value = (make or kind)()
            return value

    def __iter__(self) -> Iterator[object]:
        """Return an iterator over all values in the order of their creation."""
        # A copy, because a call that is being abandoned may still add one.
        return iter(list(self._by_type.values()))


@frozen
class Deps:
    """A service: the value that the caller passed to the run for its tools, `ctx.deps`."""

    value: Any


# Services that are always available to tools: outside a run, with the default behaviour of their class.
_ALWAYS_THERE = (SessionLog, Questions, PathRules, Blobs, Secrets, RunResources)


class Services:
    """The services that the kernel and the parts of a run offer to tools and each other, keyed by type."""

    def __init__(self, by_type: Mapping[type, object] | None = None) -> None:
        self._by_type = dict(by_type or {})

    def find(self, kind: type[T]) -> T | None:
        """Return the service of this type, or None if it is not offered."""
        service = self._by_type.get(kind)
        if service is None and kind in _ALWAYS_THERE:
            service = self._by_type.setdefault(kind, kind())
        assert service is None or isinstance(service, kind), f"the service offered as {kind.__name__} is one"
        return service

    def get(self, kind: type[T]) -> T:
        """Return the service of this type. Raises `MissingServiceError` if it is not offered."""
        service = self.find(kind)
        if service is None:
            raise MissingServiceError(kind.__name__)
        return service

    def extended(self, by_type: Mapping[type, object]) -> Services:
        """Return these services with others added; those of the same type are replaced."""
        return Services({**self._by_type, **by_type})


@frozen(kw_only=True)
class ToolContext(Generic[DepsT]):
    """The context of one call: where it runs, and its services. Every field is optional, so a test can run a tool alone.

    `cwd` is the working directory; `workspace_roots` are the folders that belong to the session (cwd if empty).
    `session_dir` is the session's folder, None if its store does not use files. `idempotency_key` is the same for every
    attempt at one call. `seq` is that of the event that requested the call. `cancelled` is set when the call should
    stop; code in a thread polls it. `services` are offered by the kernel and the parts of the run, and requested by type:
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
        """The value that the caller passed to the run for its tools. Raises `MissingServiceError` if none was passed."""
        value: DepsT = self.services.get(Deps).value
        return value


@frozen
class ToolOutput:
    """A tool's answer when it is more than the text that the model reads.

    `output` is that text, or a JSON value; `is_error` marks it as a failure. `meta` is stored and never shown to the model.
    `attachments` are pictures, documents and sounds, `{"type": "image" | "file" | "audio", "media_type", "name"?, "data":
    base64}`, stored beside the log and sent as media; the type `other` is only stored.
    """

    output: Any
    meta: Mapping[str, Any] | None = None
    is_error: bool = False
    attachments: Sequence[Mapping[str, Any]] = ()


class BareTool(ABC):
    """One operation that a model can request, as the kernel runs it; `tools.base.Tool` also checks its input.

    `effect`: `read` changes nothing and may run beside other calls; `idempotent` may be repeated with the same
    `idempotency_key`; `unsafe` is started at most once. `parallel` lets calls of one answer run at the same time.
    `allowed_callers` lists who may call it: `direct` is the model itself, `Code` our tool of that name, anything else is a
    vendor's name for code that it runs (`code_execution_20260120`, `programmatic`), sent to the vendor with the definition;
    None allows all. A call of a tool with `is_answer` is the run's final answer: it has no other effect and needs no
    permission, whatever the mode.
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
        """Run the tool. Return what `json_value` accepts, or a `ToolOutput`; any exception becomes an error result."""

    def rule_names(self, input: Mapping[str, Any]) -> tuple[str, ...]:
        """Return further names by which permission rules may refer to this tool with this input."""
        return ()

    def json_value(self, output: Any) -> Any:
        """Convert what `run` returned to JSON values; what JSON cannot express is left as it is, or raises `ToolError`."""
        return output

    async def reconcile(self, call: ToolUse, ctx: ToolContext) -> Any | None:
        """Return the output of a call that was started before a crash, as `run` does; None if it cannot be determined."""
        return None

    @abstractmethod
    def check_input(self, input: Mapping[str, Any], name: str = "the arguments") -> Mapping[str, Any]:
        """Return the input with the defaults of `input_schema` filled in. `name` is what an error calls the input.

        Raises `ToolInputError` for input that does not fit.
        """


# Callers with different names in a vendor's calls and definitions (OpenAI, "Programmatic tool calling").
CALLER_WORDS = {"program": "programmatic"}


def may_call(tool: BareTool, caller: str) -> bool:
    """Whether this caller may call the tool (see `BareTool.allowed_callers`)."""
    return tool.allowed_callers is None or caller in tool.allowed_callers
