"""Keep secrets out of storage: mask every text of every event, except the few that must stay verbatim.

The exceptions are ids, digests, names and modes, which code that reads the log compares, and the stored input of a call:
decisions are bound to its digest, and a parked call runs from it. Code that shows or exports an input masks it at that point
(`shown`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, TypeVar

from ..events import Event, ModelContext, PermissionDecision, ToolResult, ToolStarted, ToolUse, UserAnswer, UserQuestion
from ..ground.frozen import changed
from ..ground.text import Redact
from ..kernel.agent import Run
from ..kernel.part import Part
from ..kernel.tool import Secrets
from ..permissions.redact import Redactor, secrets_of
from ..permissions.shell import word_set
from ..serialization import WrittenList, dumps_json, loads_json
from ..sessions.answers import HIDDEN_ANSWER

E = TypeVar("E", bound=Event)
T = TypeVar("T")

# Fields that are compared, looked up or acted upon, and never read as prose, in every event class that has them.
EXACT = word_set("""
    about agent_name agents allowed_only answered_by child_session_id code command_id cwd disallowed_tools durability effect
    error_type finish_reason grants hook hook_point idempotency_key input_sha256 kind method mode model moved_to name
    new_sha256 old_sha256 origin outcome part parent_session_id parent_tool_use_id path permission_mode policy_sha256
    provider purpose question_id request_id request_sha256 requested_by scope sdk_version session_id source stop_reason
    body_sha256 prompt_sha256 tree_sha256 tool_use_id trigger usage input messages workspace_roots
""")
# The answers that refuse an MCP server's question, and so contain nothing to hide.
_NO_SECRETS = ("", "decline", "cancel")
# The tools of `system.init` are names, those of `model.context` are definitions with descriptions.
_EXACT_OF = {"system.init": frozenset({"tools"})}


class Masking(Part):
    """A part that masks secrets in whatever a run stores, shows and sends; `redact` masks one text."""

    def __init__(self, run: Run, redact: Redact) -> None:
        super().__init__(run)
        self._redact = redact
        self._clean_tools: Any = None

    def services(self) -> Mapping[type, object]:
        return {Secrets: Secrets(self._redact)}

    def mask(self, event: E) -> E:
        if isinstance(event, UserAnswer) and self._is_for_secret(event.question_id) and event.answer not in _NO_SECRETS:
            return changed(event, answer=HIDDEN_ANSWER)
        return mask_event(event, self._redact, self._are_clean)

    def _is_for_secret(self, question_id: str) -> bool:
        """Whether a question asks for a secret that only the asking server may receive (`mcp.questions`)."""
        questions = (
            e for e in reversed(self.run.view.events) if isinstance(e, UserQuestion) and e.question_id == question_id
        )
        question = next(questions, None)
        return question is not None and question.details.get("secret") is True

    def mask_value(self, value: T) -> T:
        masked: T = mask_value(value, self._redact)
        return masked

    def _are_clean(self, tools: Any, redact: Redact) -> bool:
        """Whether tool definitions contain nothing to mask; the newest clean list is not searched again.

        A context is masked twice: to be sent and to be stored.
        """
        if tools is not self._clean_tools and _are_clean(tools, redact):
            self._clean_tools = tools
        return tools is self._clean_tools


def _are_clean(tools: Any, redact: Redact) -> bool:
    """Whether tool definitions contain nothing to mask; all texts are searched together, as there may be hundreds."""
    if not isinstance(redact, Redactor):
        return False  # a custom one may depend on where a text ends
    key = (tools.text if isinstance(tools, WrittenList) else dumps_json(tools), redact.known)
    if key not in _CLEAN:
        if len(_CLEAN) >= _MAX_CLEAN:
            _CLEAN.clear()
        _CLEAN[key] = _is_clean(key[0], redact)
    return _CLEAN[key]


def mask_event(event: E, redact: Redact, are_clean: Callable[[Any, Redact], bool] = _are_clean) -> E:
    """Return the event in the form to store. In a result, `meta["masked"]` counts what a `Redactor` masked in it, by name.

    `are_clean` decides whether the tool definitions of a context contain nothing to mask.
    """
    kind: Any = event.__class__
    names, take = _masked_fields(kind)
    values = take(event)
    places = _may_hold_text(tuple(map(type, values)))
    if not places:
        return event
    if isinstance(event, UserAnswer) and event.answer.startswith("edit "):
        return event  # it contains the input of a call
    total, counter = redact, None
    if isinstance(event, ToolResult) and isinstance(redact, Redactor):
        redact = counter = redact.apart()
    changes: dict[str, Any] = {}
    for index in places:
        name, value = names[index], values[index]
        if kind is ModelContext and name == "tools" and are_clean(value, redact):
            continue
        masked = redact(value) if value.__class__ is str else mask_value(value, redact)
        if masked is not value and masked != value:
            # A vendor's signature no longer matches after any change, so the signed content is not sent back at all.
            changes[name] = None if name == "extras" else masked
    if not changes:
        return event
    if isinstance(event, PermissionDecision) and "details" in changes:
        # A remembered rule that contains a secret is dropped: once masked, it would be a different rule.
        rules = event.details.get("remembered")
        if changes["details"].get("remembered") != rules:
            changes["details"] = {key: value for key, value in changes["details"].items() if key != "remembered"}
    if isinstance(event, ToolResult) and isinstance(total, Redactor) and counter is not None:
        total.counts.update(counter.counts)
        if counter.counts:
            changes["meta"] = {**(changes.get("meta", event.meta) or {}), "masked": dict(counter.counts)}
    return changed(event, **changes)


# Whether tool definitions are free of secrets, keyed by the definitions and the secrets: most runs of a process share both.
_CLEAN: dict[tuple[str, tuple[str, ...]], bool] = {}
_MAX_CLEAN = 64


def _is_clean(tools: str, redact: Redactor) -> bool:
    texts: list[str] = []
    waiting = [loads_json(tools)]
    while waiting:
        value = waiting.pop()
        if value.__class__ is str:
            texts.append(value)
        elif value.__class__ is dict:
            waiting += value.values()
        elif value.__class__ is list:
            waiting += value
    together = "\n".join(texts)
    return redact(together) == together


@lru_cache(maxsize=1024)
def _may_hold_text(kinds: tuple[type, ...]) -> tuple[int, ...]:
    """The indices of the values that may contain text, judged by their classes."""
    return tuple(index for index, kind in enumerate(kinds) if kind not in _NO_TEXT)


_NO_TEXT = frozenset({type(None), int, float, bool})


@cache
def _masked_fields(kind: Any) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """The names of the masked fields of an event class, and a getter for their values."""
    exact = EXACT | _EXACT_OF.get(kind.type, frozenset())
    names = tuple(field.name for field in fields(kind) if field.name not in exact)
    return names, attrgetter(*names)


def mask_value(value: Any, redact: Redact) -> Any:
    """Return a JSON value with every string in it masked; keys are unchanged."""
    if isinstance(value, str):
        return redact(value)
    if value.__class__ is dict or isinstance(value, Mapping):
        return {
            key: item
            if item.__class__ in _NO_TEXT
            else redact(item)
            if item.__class__ is str
            else mask_value(item, redact)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        masked = [
            item if item.__class__ in _NO_TEXT else redact(item) if item.__class__ is str else mask_value(item, redact)
            for item in value
        ]
        return masked if isinstance(value, list) else tuple(masked)
    return value


def shown(event: E, redact: Redact | None = None) -> E:
    """The event in the form to show or export: a call's input and an edited answer, stored verbatim, are masked too.

    If `redact` is None, the secrets of this process's environment and tokens with a recognisable form are masked.
    """
    redact = redact or environment_redactor()
    if isinstance(event, ToolUse | ToolStarted) and event.input is not None:
        return replace(event, input=mask_value(event.input, redact))
    if isinstance(event, UserAnswer):
        return replace(event, answer=redact(event.answer))
    return event


def environment_redactor() -> Redactor:
    """A redactor for the secrets currently in this process's environment."""
    return _redactor_of(frozenset(secrets_of(os.environ).items()))


@lru_cache(maxsize=4)
def _redactor_of(secrets: frozenset[tuple[str, str]]) -> Redactor:
    return Redactor(dict(secrets))
