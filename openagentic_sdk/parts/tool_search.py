"""Send some tool definitions to the model only after it has searched for them.

If all definitions would take up too much of the model's context window, or are too many for a request, the tools of servers
and of the caller are announced by name only, and ToolSearch finds them. Whether a tool may be called does not depend on
whether its definition was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import is_
from typing import Any

from ..events import ToolsLoaded
from ..ground.loose import tool_name
from ..ground.text import one_line
from ..kernel.agent import Run
from ..kernel.model_step import Reply
from ..kernel.part import Part
from ..kernel.registry import ToolRegistry, tool_spec
from ..kernel.tool import BareTool
from ..permissions.shell import word_set
from ..providers.wrappers.abilities import can_load_tools
from ..sessions.folds.clearing import outputs_in_view
from ..sessions.folds.features.all import LoadedToolsFold
from ..sessions.rebuild import Conversation
from ..sessions.request import canonical_json
from ..tools.session.tool_search import TOOL_SEARCH, ToolSearchTool

# Fewer than `_LEAST_DEFERRED` tools are not worth a search; several endpoints refuse more than `_MOST_TOLD`
# (`providers.definitions.table`).
_LEAST_DEFERRED = 10
_MOST_TOLD = 128
# Tools that every agent works with: their definitions are always sent.
_ALWAYS_TOLD = word_set("""
    Read Write Edit Glob Grep Bash BashOutput KillBash WebFetch WebSearch TodoWrite AskUserQuestion Task TaskOutput Code
    SkillList SkillLoad SkillActivate SkillDeactivate memory final_answer
""")
_MAX_LISTED_CHARS = 2000


class DeferredTools(Part):
    """A part that decides which tool definitions the model receives and which it must search for.

    It must search if all definitions together exceed `limit_bytes`, or are too many for a request.
    """

    def __init__(self, run: Run, limit_bytes: int) -> None:
        super().__init__(run)
        self._limit_bytes = limit_bytes
        self._seen: tuple[tuple[BareTool, ...], Any] | None = None
        self._hidden: Sequence[str] = ()
        self._facts: Mapping[str, str] = {}

    def services(self) -> Mapping[type, object]:
        return {DeferredTools: self}

    def facts(self) -> Mapping[str, str]:
        return self._facts

    async def begin(self) -> None:
        """Decide for the first time, and send the definitions of tools whose calls an earlier run left open."""
        self.update()
        await self._tell_called(record.use.name for record in self.run.view.open_calls())

    async def before_step(self) -> None:
        self.update()

    def update(self) -> None:
        """Decide again if the tools, the model or its view of the conversation have changed since the last decision."""
        run = self.run
        if len(run.agent.tools) < _LEAST_DEFERRED and not run.view.fold(LoadedToolsFold).names:
            return
        tools = tuple([tool for tool in run.agent.tools if not isinstance(tool, ToolSearchTool)])
        if (
            not run.view.fold(LoadedToolsFold).names
            and sum([tool.name not in _ALWAYS_TOLD for tool in tools]) < _LEAST_DEFERRED
        ):
            return
        state = (run.model, len(run.view.fold(LoadedToolsFold).names), run.view.conversation.shown)
        if self._seen is not None and self._seen[1] == state and _are_same(self._seen[0], tools):
            return
        self._seen = (tools, state)
        registry = self._registry(tools)
        self._facts = {"tools:": _overview(self._hidden)} if self._hidden else {}
        if not _are_same(tuple(registry), tuple(run.agent.tools)) or registry.specs() != run.agent.tools.specs():
            run.agent = replace(run.agent, tools=registry)

    async def after_answer(self, reply: Reply) -> None:
        await self._tell_called(use.name for use in reply.calls)

    async def _tell_called(self, called: Iterable[str]) -> None:
        """Record the tools that the model called without their definitions, so that these are sent from now on."""
        tools = self.run.agent.tools
        sent_names = {spec["function"]["name"] for spec in tools.specs()}
        names = [name for name in called if name in tools and name not in sent_names]
        if names:
            await self.run.record(ToolsLoaded(list(dict.fromkeys(names))))

    def _registry(self, tools: Sequence[BareTool]) -> ToolRegistry:
        """Build a registry of all tools with the definitions to send; set `_hidden` to the names of the others.

        If definitions are deferred, only those always sent, sent before or found are sent, and ToolSearch's.
        """
        run = self.run
        context, loaded = run.view.context, run.view.fold(LoadedToolsFold).names
        earlier_specs = {} if context is None else {tool_name(spec): spec for spec in context.tools}
        specs = {tool.name: tool_spec(tool) for tool in tools}
        may_wait = [name for name in specs if name not in _ALWAYS_TOLD and name not in earlier_specs]
        search = ToolSearchTool(lambda: [tool for tool in tools if tool.name not in sent_specs])
        if not self._defers(specs, earlier_specs, may_wait):
            self._hidden = ()
            names = dict.fromkeys([*(name for name in earlier_specs if name in specs), *specs])
            return ToolRegistry(tools, [specs[name] for name in names])
        self._hidden = hidden = _too_many(specs, [*earlier_specs, *loaded], [n for n in may_wait if n not in loaded])
        sent_specs = {name: spec for name, spec in specs.items() if name not in hidden}
        sent_specs[TOOL_SEARCH] = tool_spec(search)
        if can_load_tools(run.agent.provider, run.model):
            for name in _found_in(run.view.conversation) & loaded.keys() & sent_specs.keys():
                sent_specs[name] = {**sent_specs[name], "defer_loading": True}
        # Definitions that were sent before keep their positions, so that the prefix that a provider has cached stays valid.
        names = dict.fromkeys(
            [*(n for n in earlier_specs if n in sent_specs), *(n for n in sent_specs if n not in loaded), *loaded]
        )
        return ToolRegistry([*tools, search], [sent_specs[name] for name in names if name in sent_specs])

    def _defers(self, specs: Mapping[str, Any], earlier_specs: Mapping[str, Any], may_wait: Sequence[str]) -> bool:
        """Whether some definitions are sent only once found. A session that began this way continues to do so."""
        if TOOL_SEARCH in specs or not tuple(self.run.agent.gate.offered_tools([TOOL_SEARCH])):
            return False
        if TOOL_SEARCH in earlier_specs:
            return True
        weight = sum(len(canonical_json(spec)) for spec in specs.values())
        return len(specs) > _MOST_TOLD or (len(may_wait) >= _LEAST_DEFERRED and weight > self._limit_bytes)


def _too_many(specs: Mapping[str, Any], announced_names: Sequence[str], hidden: list[str]) -> list[str]:
    """The names to hide: `hidden`, and if the others are too many, the first of `announced_names`, which are the oldest."""
    shown_names = [
        name for name in announced_names if name in specs and name not in _ALWAYS_TOLD and name not in hidden
    ]
    newest_first = list(dict.fromkeys(reversed(shown_names)))
    room = _MOST_TOLD - 1 - (len(specs) - len(hidden) - len(newest_first))
    return [*hidden, *newest_first[max(0, room) :]]


def _found_in(conversation: Conversation) -> set[str]:
    """The tools named by the results of ToolSearch that the model still sees."""
    outputs = [result.output for use, result in outputs_in_view(conversation) if use.name == TOOL_SEARCH]
    rows = [row for output in outputs if isinstance(output, Mapping) for row in output.get("tools") or ()]
    return {str(row["name"]) for row in rows if isinstance(row, Mapping) and "name" in row}


def _are_same(one: Sequence[BareTool], other: Sequence[BareTool]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


def _overview(names: Iterable[str]) -> str:
    """The text that lists the hidden tools: their number for each of up to 50 servers, with as many names as fit."""
    groups: dict[str, list[str]] = {}
    for name in names:
        server, _, short = name.removeprefix("mcp__").partition("__") if name.startswith("mcp__") else ("", "", name)
        groups.setdefault(one_line(server), []).append(one_line(short))
    room = _MAX_LISTED_CHARS // len(groups)
    lines = []
    for server, tool_names in groups.items():
        listed = ", ".join(tool_names)
        listed = listed if len(listed) <= room else f"{listed[:room].rpartition(', ')[0]}, ..."
        lines.append(f"- {f'server {server}' if server else 'more'}: {len(tool_names)} tools ({listed})")
    return "Tools that ToolSearch finds:\n" + "\n".join(lines[:50])
