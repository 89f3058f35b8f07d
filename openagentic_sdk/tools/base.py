"""What a tool is, and what it is given for one call.

A tool declares a name, a description and a JSON schema for the model, and an effect class for the runtime: what may be
repeated after a crash and what may run beside others follows from the effect class alone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import field
from typing import Any, ClassVar, Protocol, TypeVar

from ..errors import MissingServiceError
from ..events import Effect, Event, StopReason, ToolResult, ToolUse
from ..frozen import frozen
from ..schemas import compiled
from ..threads import run_in_thread

T = TypeVar("T")

# The effects of calls that may run again after a crash.
REPEATABLE = ("read", "idempotent")


class Services:
    """What the parts of a run offer to tools and to each other, each under the type by which it is asked for."""

    def __init__(self, by_type: Mapping[type, object] | None = None) -> None:
        self._by_type = dict(by_type or {})

    def find(self, kind: type[T]) -> T | None:
        """The service of this type, None when nothing offers it."""
        found = self._by_type.get(kind)
        assert found is None or isinstance(found, kind), f"what is offered as {kind.__name__} is one"
        return found

    def get(self, kind: type[T]) -> T:
        """The service of this type. Raises `MissingServiceError` when nothing offers it."""
        found = self.find(kind)
        if found is None:
            raise MissingServiceError(kind.__name__)
        return found


@frozen
class SubagentResult:
    """What a subagent gave back: its last text, where its session is, and why it ended (see `Result.stop_reason`)."""

    final_text: str
    child_session_id: str
    stop_reason: StopReason
    error_message: str | None = None


class AskUser(Protocol):
    """Puts a question to a person and gives the answer."""

    async def __call__(self, prompt: str, choices: tuple[str, ...], details: Mapping[str, Any] = ..., /) -> str: ...


@frozen(kw_only=True)
class ToolContext:
    """What one call may know and use. A tool that is run alone, in a test, needs none of it.

    `cwd` is the working directory; `workspace_roots` the folders that belong to the session (cwd when empty). `seq` is the
    event by which the model asked for the call, `untrusted` maps what of elsewhere the session has read by now to the event
    that said so (see `sessions.folds.untrusted`). `observed_files` maps absolute paths to the digest of what the model last
    saw or wrote, rebuilt from the log. `record` appends an event to the session's log and shows it to the caller, `show`
    only shows one. `ask_user` puts a question to a person (text, choices, details for whoever shows it) and returns the
    answer. `permits_path(path, write)` asks the permission gate about one more path
    that a call turned out to touch. `read_blob` returns the bytes of
    a stored big output, by digest. `redact` masks secrets: results are masked anyway, what a tool cuts it masks first.
    `cancelled` is set when the call is to stop; code in a thread looks at it. `idempotency_key` is the same for every
    attempt at one call. `may_read` says without a question whether a path that a search turned up may be shown; where it is
    None, `permits_path` is asked. `run_resources` is
    what the calls of one run share, by a key of the tool's own or by its class (`shared`); what has a `close` is closed at
    the run's end. `keep_files`
    keeps what files are before a call changes them, so that it can be undone; it is called in a thread. `call_tool` makes a
    call inside of this one (a name, an input), through gate, hooks and log, and gives its result; `callable_tools` are
    those that may be called so. `keep_blob` stores bytes beside the log and gives their digest. `services` are what the
    parts of the run offer, by type.
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
    untrusted: Mapping[str, int] = field(default_factory=dict)
    observed_files: Mapping[str, str] = field(default_factory=dict)
    history: Callable[[], list[Event]] | None = None
    record: Callable[[Event], Awaitable[None]] | None = None
    show: Callable[[Event], Awaitable[None]] | None = None
    ask_user: AskUser | None = None
    permits_path: Callable[[str, bool], Awaitable[bool]] | None = None
    may_read: Callable[[str], bool] | None = None
    read_blob: Callable[[str], bytes] | None = None
    keep_files: Callable[[Sequence[str]], None] = lambda paths: None
    redact: Callable[[str], str] | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    run_resources: dict[Any, Any] = field(default_factory=dict)
    call_tool: Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]] | None = None
    callable_tools: Callable[[], Sequence[Tool]] = tuple
    keep_blob: Callable[[bytes], Awaitable[str]] | None = None
    services: Services = field(default_factory=Services)


_creation = threading.Lock()


def shared(resources: dict[Any, Any], kind: type[T]) -> T:
    """The one value of this class in a run's `run_resources`; it is made when it is first asked for."""
    with _creation:
        if kind not in resources:
            resources[kind] = kind()
        made: T = resources[kind]
        return made


def may_read_all(path: str) -> bool:
    """The `may_read` of a run in which no rule keeps a path from being read."""
    return True


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


class Tool(ABC):
    """One thing that a model can ask for.

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
        """Do it, with input that fits `input_schema`. Returns a JSON value or a `ToolOutput`.

        Whatever it raises becomes an error result for the model.
        """

    def rule_names(self, input: Mapping[str, Any]) -> tuple[str, ...]:
        """What permission rules may call this tool, with this input, besides its name."""
        return ()

    async def reconcile(self, call: ToolUse, ctx: ToolContext) -> Any | None:
        """Say what came of a call that was started before a crash: its result, or None when it cannot be known."""
        return None

    def run_sync(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        """Run the tool to its end from plain code, with or without a running event loop in this thread.

        Raises `ToolInputError` for input that does not fit; `run` is given input that does.
        """
        input = compiled(self.input_schema).check(input)

        async def output() -> Any:
            result = await self.run(input, ctx)
            return result.output if isinstance(result, ToolOutput) else result

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(output())
        with concurrent.futures.ThreadPoolExecutor(1, "openagentic-tool") as apart:
            return apart.submit(copy_context().run, asyncio.run, output()).result()


# Callers that a vendor calls otherwise in calls than in definitions (OpenAI, "Programmatic tool calling").
CALLER_WORDS = {"program": "programmatic"}


def may_call(tool: Tool, caller: str) -> bool:
    """Whether a tool may be called by this caller (see `Tool.allowed_callers`)."""
    return tool.allowed_callers is None or caller in tool.allowed_callers


class BlockingTool(Tool):
    """A tool whose work is plain blocking code; it runs in a thread of its own, so the event loop goes on.

    A cancelled call sets `ctx.cancelled` and waits for the thread to notice: no thread outlives its call.
    """

    @abstractmethod
    def execute(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        """Do it, in a thread. Long work looks at `ctx.cancelled` now and then."""

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        return await run_in_thread(lambda: self.execute(input, ctx), ctx.cancelled)

    def run_sync(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        input = compiled(self.input_schema).check(input)
        result = self.execute(input, ctx)
        return result.output if isinstance(result, ToolOutput) else result
