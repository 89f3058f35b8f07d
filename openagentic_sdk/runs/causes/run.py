"""One run of a log, from which causes are found, and functions that word their texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from ...events import (
    AssistantMessage,
    Event,
    HookEvent,
    ModelRequest,
    ModelResponse,
    PermissionDecision,
    Result,
    SubagentStarted,
    SystemInit,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserMessage,
)
from ...ground.loose import as_list, as_mapping
from ...ground.patterns import regex
from ...ground.text import on_one_line
from ...ground.words import plural, shortened
from ...parts.record.folds.notes import describe_input
from ...parts.workflows.fold import is_final
from ...providers.named import COMPATIBLE, LOCAL_SERVERS, PROVIDERS
from .cause import Cause

_MAX_CHARS = 300
# The prefix of our own errors for refused requests (`ProviderHTTPError`): text from an endpoint can never precede it.
_ENDPOINT = regex(r"(https?://[^\s/@?#]+(?:/[^\s?#]*)?)/chat/completions answered ")
# The permission modes that a flag of a command can set; the default needs no flag, and the others need code that asks.
_MODES_OF_FLAGS = frozenset({"acceptEdits", "plan", "dontAsk", "deny", "bypass"})
_URL = regex(r"https?://[!-~]{1,200}")


# Returns the events of a subagent's session, given its parent's id and its own.
ReadEvents = Callable[[str, str], Sequence[Event]]


class JudgedRun:
    """One run of a log: its events, and the facts about it from which causes are derived.

    `bounds` are the indexes in the log of the run's first event and of the event after its last; `uses` are the log's calls
    by id. `read` returns the events of a subagent's session, and `explain_child` the cause inside one that the run started,
    None if nothing went wrong there. `base_url` is the endpoint's address, if the session's metadata contains it.
    """

    def __init__(
        self,
        session_id: str,
        log: Sequence[Event],
        bounds: tuple[int, int],
        uses: Mapping[str, ToolUse],
        read: ReadEvents | None = None,
        explain_child: Callable[[SubagentStarted], Cause | None] = lambda started: None,
        base_url: object = None,
    ) -> None:
        self.session_id, self.events, self.uses = session_id, log[slice(*bounds)], uses
        self.read, self.explain_child = read, explain_child
        self._whole, self._end = log, bounds[1]
        self._base_url = base_url if isinstance(base_url, str) and _URL.fullmatch(base_url) else None
        self.init = next(e for e in self.events if isinstance(e, SystemInit))

    @cached_property
    def log(self) -> Sequence[Event]:
        """The events up to the end of this run."""
        return self._whole[: self._end]

    @cached_property
    def result(self) -> Result | None:
        """The run's result; None if it has not ended."""
        return next((e for e in reversed(self.events) if isinstance(e, Result)), None)

    @property
    def ended(self) -> str:
        """A sentence about how the run ended."""
        result = self.result
        if result is None:
            return f"it did not end: the log stops at event {self.events[-1].seq}"
        cost = "" if result.cost_usd is None else f", ${result.cost_usd:.4f}"
        took = "" if result.duration_s is None else f", {result.duration_s:.0f} s"
        error = f": {short(result.error_message)}" if result.error_message else ""
        return f"{result.stop_reason} after {plural(result.steps, 'step')}{took}{cost} (event {result.seq}){error}"

    @property
    def model_flags(self) -> tuple[str, ...]:
        """The flags that select the run's model and endpoint; empty if no command can name them."""
        init = self.init
        if init.provider not in PROVIDERS or not init.model or on_one_line(init.model) != init.model:
            return ()
        if init.provider != COMPATIBLE and (self._base_url is None or init.provider not in LOCAL_SERVERS):
            return ("--model", f"{init.provider}:{init.model}")
        refused = (_ENDPOINT.match(e.error_message or "") for e in self.of(ModelResponse))
        url = self._base_url or next((url_match.group(1) for url_match in refused if url_match), "URL")
        return ("--provider", init.provider, "--model", init.model, "--base-url", url)

    @property
    def permission_flags(self) -> tuple[str, ...]:
        """The flags for the run's mode and, if a decision contains them, its command-line rules; settings apply anyway."""
        mode = self.init.permission_mode
        flags = ["--permission-mode", mode] if isinstance(mode, str) and mode in _MODES_OF_FLAGS else []
        policies = (as_mapping(as_mapping(e.details).get("policy")).get("layers") for e in self.of(PermissionDecision))
        own_rules = next((as_mapping(layers[0]) for layers in policies if isinstance(layers, list) and layers), {})
        for effect in ("allow", "deny"):
            for book in as_list(own_rules.get(effect)):
                if as_mapping(book).get("from") == "command line":
                    rules = (rule for rule in as_list(book.get("rules")) if isinstance(rule, str))
                    flags += [word for rule in rules if on_one_line(rule) == rule for word in (f"--{effect}", rule)]
        return tuple(flags)

    @property
    def doing(self) -> str:
        """A clause about what the run was doing at its end."""
        ended = {e.tool_use_id for e in self.of(ToolResult) if e.outcome not in ("cancelled", "unknown")}
        open_calls = [e.tool_use_id for e in self.of(ToolStarted) if e.tool_use_id not in ended]
        if open_calls:
            return f"{self.call(open_calls[0])} was running"
        last = next(self.of(ModelRequest, ModelResponse, ToolResult), None)
        if isinstance(last, ModelRequest) or (isinstance(last, ModelResponse) and not last.complete):
            return "a request to the model was open"
        return "no call was open"

    def call(self, tool_use_id: str) -> str:
        """A short description of a call; its id if the log does not contain it."""
        use = self.uses.get(tool_use_id)
        return tool_use_id if use is None else on_one_line(f"{use.name}({describe_input(use.name, use.input)})", 160)

    def of(self, *kinds: type[Event]) -> Iterator[Any]:
        """An iterator over the events of these types, newest first."""
        return (event for event in reversed(self.events) if isinstance(event, kinds))

    def name_of(self, event: ToolResult) -> str:
        """The name of the tool that returned a result; empty if the log does not contain the call."""
        use = self.uses.get(event.tool_use_id)
        return "" if use is None else use.name

    @property
    def is_workflow(self) -> bool:
        """Whether the session is a workflow's."""
        prompts = (e.text for e in self.log if isinstance(e, UserMessage))
        return next(prompts, "").startswith('{"workflow":')

    @property
    def going_on(self) -> tuple[str, ...]:
        """The command that continues a workflow; empty if the workflow has ended for good."""
        if self.result is not None and is_final(self.result.stop_reason, self.result.error_message):
            return ()
        return ("openagentic-sdk", "workflow", "run", "MODULE:NAME", "--session", self.session_id)

    def workflow_command(self, action: str, *words: Event | str) -> tuple[str, ...]:
        """A workflow command about this session, with steps as their numbers; empty if it is not a workflow's session."""
        arguments = [w if isinstance(w, str) else getattr(w, "tool_use_id", "").rpartition("step-")[2] for w in words]
        return ("openagentic-sdk", "workflow", action, self.session_id, *arguments) if self.is_workflow else ()


def short(text: object, most: int = _MAX_CHARS) -> str:
    """The text on one line, shortened."""
    return on_one_line(shortened(" ".join(str(text or "").split()), most))


def as_text(value: object) -> str:
    """A value as text: a string unchanged, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def error_words_of(event: ToolResult) -> str:
    """The type and message of a call's error on one line, or its outcome if there is no message."""
    message = short(event.error_message) or event.outcome
    kind = event.error_type or ""
    return message if not kind or message.startswith(kind) else f"{kind}: {message}"


def has_failed(event: ToolResult) -> bool:
    """Whether a call did not succeed, for any reason but a cancellation."""
    return event.outcome != "cancelled" and (event.is_error or event.outcome in ("error", "denied", "unknown"))


def blocks(event: HookEvent) -> bool:
    """Whether a hook refused something, or failed in a way that counts as a refusal."""
    return event.action in ("block", "stop") or event.details.get("fails") == "closed"


def text_of(event: Event) -> str:
    """The text of an event that the model reads; empty for an event that it does not read."""
    if isinstance(event, UserMessage | AssistantMessage):
        return event.text
    return as_text(event.output) if isinstance(event, ToolResult) else ""
