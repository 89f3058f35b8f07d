"""The tools of a run as they are at its next step: those of its agent, and those that servers offer by now.

What servers offer may come and go, but only here, between two steps. Tools that the model has been told about keep their
places, and new ones stand behind them: what a provider has cached of the request before stays as it was. When all the
definitions would take too much of the model's window, those of servers and of the caller are told only once ToolSearch has
found them. They can be called all the same: what a model is told is no permission.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import is_
from typing import Any

from ..events import McpServerChanged, ToolsLoaded, ToolUse, UserMessage
from ..permissions.shell import word_set
from ..project.prompt import server_block
from ..providers.base import can_load_tools
from ..sessions.folds.features.loaded_tools import LoadedToolsFold
from ..sessions.request import canonical_json
from ..text import one_line
from ..tools.base import Tool
from ..tools.registry import ToolRegistry, tool_spec
from ..tools.tool_search import TOOL_SEARCH, ToolSearchTool
from .agent import Run

# Fewer tools than these are not worth a search.
_LEAST_DEFERRED = 10
# Tools that every agent works with: they are told always.
_ALWAYS_TOLD = word_set("""
    Read Write Edit Glob Grep Bash BashOutput KillBash WebFetch WebSearch TodoWrite AskUserQuestion Task TaskOutput Code
    SkillList SkillLoad SkillActivate SkillDeactivate memory final_answer
""")
_MAX_LISTED_CHARS = 2000


async def update_tools(run: Run) -> None:
    """Take over what the servers offer now, and record what has become of them. Waits for servers that are still coming."""
    agent = run.agent
    if agent.servers is None and agent.defer_bytes is None:
        return
    run.own_tools = tuple(agent.tools) if run.own_tools is None else run.own_tools
    is_plain = agent.servers is None and not run.view.fold(LoadedToolsFold).names
    if is_plain and sum([tool.name not in _ALWAYS_TOLD for tool in run.own_tools]) < _LEAST_DEFERRED:
        return
    served = await _served_tools(run)
    tools = (*run.own_tools, *served.values())
    state = (run.model, len(run.view.fold(LoadedToolsFold).names), run.view.conversation.shown)
    seen = run.tools_seen
    if seen is None or seen[1] != state or len(seen[0]) != len(tools) or not all(map(is_, seen[0], tools)):
        run.tools_seen = (tools, state)
        registry = _registry(run, tools)
        same = [*map(canonical_json, registry.specs())] == [*map(canonical_json, agent.tools.specs())]
        if not same or len(registry) != len(agent.tools) or not all(map(is_, registry, agent.tools)):
            run.agent = replace(agent, tools=registry)


async def load_called(run: Run, calls: Sequence[ToolUse]) -> None:
    """Tell the model from now on about tools that it called without being told: it knows their names from elsewhere."""
    told = {spec["function"]["name"] for spec in run.agent.tools.specs()}
    names = [use.name for use in calls if use.name in run.agent.tools and use.name not in told]
    if names:
        await run.record(ToolsLoaded(list(dict.fromkeys(names))))


async def _served_tools(run: Run) -> dict[str, Tool]:
    """The tools of servers that this agent may have, by name; none without servers."""
    servers, offers = run.agent.servers, run.agent.offers
    if servers is None:
        return {}
    await servers.ready()
    await run.record(*(event for event in servers.changes(run.servers_seen) if event != _last_known(run, event.name)))
    await _tell_instructions(run, tuple(servers.instructions()))
    offered = {tool.name: tool for tool in servers.tools(lambda name: bool(tuple(offers((f"mcp__{name}__resource",)))))}
    # A tool whose name had to be cut is offered only when it would be under its whole name, too.
    whole = {name: (name, *tool.rule_names({})) for name, tool in offered.items()}
    own = {tool.name for tool in run.own_tools or ()}
    wanted = {name for name in offered if len(tuple(offers(whole[name]))) == len(whole[name])} - own
    return {name: tool for name, tool in sorted(offered.items()) if name in wanted}


def _registry(run: Run, tools: Sequence[Tool]) -> ToolRegistry:
    """All the tools, of which the model is told those that it was told before, and what else there is room for."""
    context, loaded = run.view.context, run.view.fold(LoadedToolsFold).names
    known = {} if context is None else {spec["function"]["name"]: spec for spec in context.tools}
    specs = {tool.name: tool_spec(tool) for tool in tools}
    may_wait = [name for name in specs if name not in _ALWAYS_TOLD and name not in known]
    search = ToolSearchTool(lambda: [tool for tool in tools if tool.name not in told])
    if not _defers(run, specs, known, may_wait):
        run.facts = {}
        names = dict.fromkeys([*(name for name in known if name in specs), *specs])
        return ToolRegistry(tools, [specs[name] for name in names])
    hidden = [name for name in may_wait if name not in loaded]
    told = {name: spec for name, spec in specs.items() if name not in hidden}
    told[TOOL_SEARCH] = tool_spec(search)
    if can_load_tools(run.agent.provider, run.model):
        # The tools that results of ToolSearch in view name.
        outputs = [result.output for use, result in run.view.conversation.outputs() if use.name == TOOL_SEARCH]
        rows = [tool for output in outputs if isinstance(output, Mapping) for tool in output.get("tools") or ()]
        found = {str(row["name"]) for row in rows if isinstance(row, Mapping) and "name" in row} & loaded.keys()
        told = {name: {**spec, "defer_loading": True} if name in found else spec for name, spec in told.items()}
    names = dict.fromkeys([*(name for name in known if name in told), *(n for n in told if n not in loaded), *loaded])
    run.facts = {"tools:": _overview(hidden)} if hidden else {}
    return ToolRegistry([*tools, search], [told[name] for name in names if name in told])


def _defers(run: Run, specs: Mapping[str, Any], known: Mapping[str, Any], may_wait: Sequence[str]) -> bool:
    """Whether some definitions are told only when they are found. A session that began so goes on so."""
    limit = run.agent.defer_bytes
    if limit is None or TOOL_SEARCH in specs or not tuple(run.agent.gate.offered_tools([TOOL_SEARCH])):
        return False
    if TOOL_SEARCH in known:
        return True
    return len(may_wait) >= _LEAST_DEFERRED and sum(len(canonical_json(spec)) for spec in specs.values()) > limit


def _overview(names: Iterable[str]) -> str:
    """What can be found, in words: how many tools of which servers, with as many names as there is room for."""
    groups: dict[str, list[str]] = {}
    for name in names:
        server, _, short = name.removeprefix("mcp__").partition("__") if name.startswith("mcp__") else ("", "", name)
        groups.setdefault(one_line(server), []).append(one_line(short))
    room = _MAX_LISTED_CHARS // len(groups)
    lines = []
    for server, found in groups.items():
        listed = ", ".join(found)
        listed = listed if len(listed) <= room else f"{listed[:room].rpartition(', ')[0]}, ..."
        lines.append(f"- {f'server {server}' if server else 'more'}: {len(found)} tools ({listed})")
    return "Tools that ToolSearch finds:\n" + "\n".join(lines[:50])


def _last_known(run: Run, name: str) -> McpServerChanged | None:
    """What the session's log said last of a server, as if it had not been stored: said once, it need not be said again."""
    known = (event for event in reversed(run.view.events) if isinstance(event, McpServerChanged) and event.name == name)
    last = next(known, None)
    return (
        None if last is None else replace(last, seq=None, ts=None, mac=None, parent_tool_use_id=None, agent_name=None)
    )


async def _tell_instructions(run: Run, instructions: tuple[tuple[str, str], ...]) -> None:
    """What servers say of themselves stands in the system prompt; of one that comes later, or anew, in a message."""
    if run.instructions is None:
        run.instructions = instructions
        return
    texts = [server_block(*told) for told in instructions if told not in run.instructions]
    for text in texts:
        if not any(isinstance(event, UserMessage) and event.text == text for event in run.view.events):
            await run.record(UserMessage(text, origin="mcp"))
