"""Everything in a request besides the conversation, and the messages that announce changes to it.

Within a session the beginning of a request (tools, system prompt, earlier messages) changes as rarely as possible: a
vendor's cache depends on it, and vendors reject signed reasoning after a different prefix. So a new fact, or one that has
changed since the session began, arrives as a message at the end and stays there. Whether something was announced follows
from the view: anything that a compaction or a rewind removed is announced again.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any

from ..events import ModelContext, UserMessage
from ..ground.frozen import changed, frozen
from ..ground.loose import tool_name
from .part import Part

if TYPE_CHECKING:
    from .agent import Run

_REPLACES = "This takes the place of what stood here before:\n"
_GONE = "This is not there any more, and what it said is not in force: "  # as in existing logs: never reword


class Once(str):
    """A fact that is sent again only when no version of it is in view any more, not when it changes."""

    __slots__ = ()


@frozen
class PromptPart:
    """A slice of the prompt, `text[start:end]`, and its origin: `kind` is a word, `source` a path, a name or empty."""

    kind: str
    source: str
    start: int
    end: int


@frozen
class SystemPrompt:
    """The text of a system prompt, and its parts with their origins, which cover all but the blank lines between them.

    Parts of the kinds in `changing` may change during a session: their new text is sent as a message, the prompt stays.
    """

    text: str
    parts: tuple[PromptPart, ...]
    changing: Container[str] = ()

    def facts(self) -> dict[str, str]:
        """The texts of the parts that may change during a session, by subject (`kind:source`)."""
        return {
            f"{part.kind}:{part.source}": self.text[part.start : part.end]
            for part in self.parts
            if part.kind in self.changing
        }

    def begins_like(self, other: SystemPrompt) -> bool:
        """Whether two prompts differ at most in parts that may change. One with unknown parts differs from all others."""
        fixed, theirs = (
            [(part.kind, one.text[part.start : part.end]) for part in one.parts if part.kind not in self.changing]
            for one in (self, other)
        )
        # A prompt in a log of an older version has no parts, so nothing can be compared.
        return bool(fixed) and fixed == theirs


_NO_PROMPT = SystemPrompt("", ())


def _system_prompt(run: Run) -> SystemPrompt:
    for part in run.parts.at(Part.system_prompt):
        if (prompt := part.system_prompt()) is not None:
            return prompt
    return _NO_PROMPT


class RequestContext:
    """The model, system prompt, tools and facts that the requests of one run carry besides the conversation."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._asked: tuple[tuple[str, SystemPrompt, Sequence[Any], ModelContext | None], ModelContext] | None = None
        self._announced: tuple[tuple[object, ...], int] | None = None

    async def update(self) -> ModelContext:
        """Return the context of the next request; record it if it differs from the last one, and announce changed facts."""
        run = self._run
        agent, last = run.agent, run.view.context
        fresh = _system_prompt(run)
        facts = (run.model, fresh, agent.tools.specs(), last)
        # Compared by identity, because this runs before every step: prompt and definitions are long, and stay the same
        # objects until one of them changes.
        if self._asked is None or not all(map(is_, self._asked[0], facts)):
            prompt = _prompt_of(last, fresh.changing)
            # The recorded prompt stays while only parts that may change differ: those arrive as messages.
            prompt = prompt if prompt.begins_like(fresh) else fresh
            parts = [vars(part) for part in prompt.parts]
            context = ModelContext(run.model, agent.provider.name, prompt.text, facts[2], parts)
            context = run.recorder.masked(context)  # what is sent is what is stored
            cause = _cause(last, context)
            if last is None or cause:
                await run.record(changed(context, cause=cause))
                last = run.view.context
            assert last is not None, "it was recorded just now"
            self._asked = ((*facts[:3], last), last)
        if run.parts.at(Part.facts):
            await self._announce(self._asked[1], fresh)
        return self._asked[1]

    async def _announce(self, context: ModelContext, fresh: SystemPrompt) -> None:
        """Record the facts that the model needs and cannot see, or sees in outdated form; withdraw those that are gone."""
        run = self._run
        part_facts = [part.facts() for part in run.parts.at(Part.facts)]
        state = (context, fresh, *part_facts)
        view_seq = run.view.conversation.shown
        if self._announced is not None and self._announced[1] == view_seq and all(map(is_, self._announced[0], state)):
            return
        now = {**fresh.facts(), **{about: text for facts in part_facts for about, text in facts.items()}}
        old_facts = {**_prompt_of(context, fresh.changing).facts(), **run.view.conversation.facts_in_view}
        for about, fact in now.items():
            old_text, text = old_facts.get(about), run.parts.masked(str(fact))
            if old_text is None or (old_text.removeprefix(_REPLACES) != text and not isinstance(fact, Once)):
                message = text if old_text is None else _REPLACES + text
                await run.record(UserMessage(message, origin="context", about=about))
        # Sorted, so that the same change makes the same messages: a replay compares requests by their digests.
        for about in sorted(old_facts.keys() - now.keys()):
            if not old_facts[about].startswith(_GONE):
                # Without the `seq` at the end of some subjects (a skill's activation), which means nothing to the model.
                kind, _, name = re.sub(r"@\d+$", "", about).partition(":")
                await run.record(UserMessage(f"{_GONE}{kind} {name}".rstrip(), origin="context", about=about))
        self._announced = state, run.view.conversation.shown


def _prompt_of(context: ModelContext | None, changing: Container[str]) -> SystemPrompt:
    """The system prompt of a context, with its parts; empty without a context."""
    if context is None:
        return _NO_PROMPT
    return SystemPrompt(context.system_prompt, tuple(PromptPart(**part) for part in context.parts), changing)


def _cause(last: ModelContext | None, now: ModelContext) -> str:
    """The differences between two contexts, in words; empty without any."""
    if last is None:
        return "the session begins"
    changes = [
        f"{name} {before} became {after}"
        for name, before, after in (("model", last.model, now.model), ("provider", last.provider, now.provider))
        if before != after
    ]
    if last.system_prompt != now.system_prompt:
        changes.append("another system prompt")
    if list(last.tools) != list(now.tools):
        changes.append(f"tools: {_tool_changes(last.tools, now.tools)}")
    return "; ".join(changes)


def _tool_changes(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> str:
    old, new = ({tool_name(tool): tool for tool in tools} for tools in (before, now))
    changes = [f"+{name}" for name in new.keys() - old.keys()] + [f"-{name}" for name in old.keys() - new.keys()]
    changes += [f"{name} changed" for name in old.keys() & new.keys() if old[name] != new[name]]
    return ", ".join(sorted(changes)) or "another order"
