"""Offer the tools of MCP servers, which may appear and disappear between two steps.

Tools that were already announced to the model keep their positions, and new ones are appended, so the prefix of the request
that a provider has cached stays valid.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any, Protocol

from ..events import CommandExpanded, McpServerChanged, ToolUse, UserMessage
from ..ground.frozen import changed
from ..ground.loose import tool_name
from ..ground.text import one_line
from ..ground.words import shortened
from ..kernel.agent import Run
from ..kernel.gate import CallContext, Objection
from ..kernel.part import IncomingPrompt, Part, PartOpener
from ..kernel.registry import ToolRegistry, tool_spec
from ..kernel.tool import BareTool
from ..kernel.tool_call import ask_gate
from ..prompts import read_prompt
from ..sessions.folds.features.listed import DefinitionsFold
from ..sessions.folds.features.untrusted import short_source
from ..sessions.request import canonical_json
from .project.prompt import server_block

if TYPE_CHECKING:
    from .mcp.resources import PromptExpansion


# Whether a resource (server, URI) may be read for a prompt that names it.
Permits = Callable[[str, str], Awaitable[bool]]


class ToolServers(Protocol):
    """A source of tools that may appear and disappear between two steps: MCP servers, see `mcp.servers.Servers`."""

    def hold(self) -> None: ...

    async def release(self) -> None: ...

    async def ready(self) -> None: ...

    def tools(self, may_use: Callable[[str], bool]) -> list[BareTool]: ...

    def instructions(self) -> list[tuple[str, str]]: ...

    def changes(self, seen: dict[str, int]) -> list[McpServerChanged]: ...

    def held_definition(self, tool: str) -> tuple[str, str] | None: ...

    async def expand_prompt(self, text: str, permits: Permits) -> PromptExpansion | None: ...


class ServerTools(Part):
    """A part that uses servers during a run: they are held from its beginning to its end, and queried before each step.

    `offers` filters tool names to those that the agent may use. `instructions` are the servers' instructions in the system
    prompt, None before the first step; those of a server that connects later are sent as a message.
    """

    def __init__(
        self, run: Run, servers: ToolServers, offers: Callable[[Iterable[str]], Iterable[str]] = tuple
    ) -> None:
        super().__init__(run)
        self.instructions: tuple[tuple[str, str], ...] | None = None
        self._servers, self._offers = servers, offers
        self._own = tuple(run.agent.tools)
        self._known_changes: dict[str, int] = {}
        self._offered: tuple[BareTool, ...] = ()
        self._served_before: tuple[list[BareTool], list[BareTool]] = [], []
        self._is_held = False
        self._facts: Mapping[str, str] = {}

    def services(self) -> Mapping[type, object]:
        return {ServerTools: self}

    def facts(self) -> Mapping[str, str]:
        return self._facts

    def _note_withheld(self, changes: Iterable[McpServerChanged]) -> None:
        """Tell the model which tools are withheld because nobody has agreed to their current definitions."""
        facts = dict(self._facts)
        for event in changes:
            subject = f"held tools of {event.name}:"
            tools = [str(one.get("tool")) for one in event.left_out if one.get("code") == "pin"]
            if tools:
                names = shortened(", ".join(one_line(name) for name in tools), 1000)
                facts[subject] = (
                    f"Tools of the server {event.name} that are not offered, because they are new or changed and nobody has"
                    f" approved them yet: {names}"
                )
            elif event.left_out or event.state in ("started", "restarted", "changed"):
                facts.pop(subject, None)
        if facts != self._facts:
            self._facts = facts

    async def begin(self) -> None:
        self._servers.hold()
        self._is_held = True
        if self.run.view.open_calls():  # one of them may be a call of a server's tool
            await self.before_step()

    async def before_step(self) -> None:
        await self._servers.ready()
        # Read before anything is awaited: a list that changes while these events are stored must not be offered before the
        # event of that change is stored.
        changes = self._servers.changes(self._known_changes)
        tools, instructions = (*self._own, *self._served()), tuple(self._servers.instructions())
        await self.run.record(*[event for event in changes if event != self._last_recorded(event.name)])
        self._note_withheld(changes)
        await self._announce(instructions)
        if len(tools) == len(self._offered) and all(map(is_, tools, self._offered)):
            return
        self._offered = tools
        context = self.run.view.context
        announced_tools = [] if context is None else [tool_name(spec) for spec in context.tools]
        specs = {tool.name: tool_spec(tool) for tool in tools}
        names = dict.fromkeys([*(name for name in announced_tools if name in specs), *specs])
        registry = ToolRegistry(tools, [specs[name] for name in names])
        agent = self.run.agent
        if not _are_same(registry, agent.tools):
            self.run.agent = replace(agent, tools=registry)

    def tell_gate(self, context: CallContext, tool: str | None) -> CallContext:
        held = None if tool is None else self._servers.held_definition(tool)
        if held is None or self.run.agent.gate.mode == "bypass":
            return context
        return changed(context, objection=partial(self._objection, context.tool_use_id, *held))

    def _objection(
        self, tool_use_id: str | None, server: str, digest: str, name: str, input: Mapping[str, Any]
    ) -> Objection | None:
        """Object to a call that was made, or may have been allowed, under another definition of its tool."""
        view = self.run.view
        record = view.calls.get(tool_use_id or "")
        called = None if record is None else view.fold(DefinitionsFold).listed_at(name, record.use.seq)
        facts = {"server": server, "sha256": digest}
        if called is not None and called != digest:
            reason = f"the server {server} changed the definition of this tool after the call was made: call it again"
            return Objection("deny", reason, details={"definition": {**facts, "outcome": "deny", "before": called}})
        run: Run | None = self.run
        folds = []
        while run is not None:  # a subagent uses what its starter was allowed
            folds.append(run.view.fold(DefinitionsFold))
            run = run.parent
        first = next((listed[0][1] for fold in reversed(folds) if (listed := fold.listed.get(name))), digest)
        if first == digest or any(fold.is_approved(name, digest) for fold in folds):
            return None
        reason = (
            f"the server {server} changed the definition of this tool during the session, and earlier rules and approvals"
            f" do not cover the new one (pin=False on the server makes them cover it)"
        )
        return Objection("ask", reason, details={"definition": {**facts, "outcome": "ask", "before": first}})

    def told_sources(self) -> list[str]:
        """The servers whose instructions the model reads, as sources of untrusted text."""
        return [f"MCP: {name}, in its instructions" for name, _ in self._servers.instructions()]

    async def expand_prompt(self, prompt: IncomingPrompt) -> None:
        """Append the resources that a prompt names, or replace it with a server's prompt that it calls.

        Raises `McpError` if the server does not return that prompt.
        """
        if prompt.is_expanded:
            return

        async def permits(server: str, uri: str) -> bool:
            use = ToolUse(f"attachment:{os.urandom(8).hex()}", "ReadMcpResource", {"server": server, "uri": uri})
            may_name, run = prompt.said.names_files, self.run
            return may_name and (await ask_gate(run, run.agent.gate, use, "read", parks=False)).allowed

        expansion = await self._servers.expand_prompt(prompt.text, permits)
        if expansion is None:
            return
        prompt.sources += map(short_source, expansion.sources)
        if expansion.parts:
            prompt.said.parts.extend(read_prompt([{"type": "text", "text": ""}, *expansion.parts]).parts)
        prompt.behind += expansion.behind
        if expansion.instead is not None:
            name, _, arguments = prompt.text.removeprefix("/").partition(" ")
            prompt.text, prompt.behind, prompt.is_expanded = expansion.instead, "", True
            prompt.events.append(CommandExpanded(name, scope="mcp", arguments=arguments))

    async def close(self) -> None:
        if self._is_held:
            self._is_held = False
            await self._servers.release()

    def _served(self) -> list[BareTool]:
        """The servers' tools that this agent may use, sorted by name."""
        offers, (before, earlier_tools) = self._offers, self._served_before
        # Resources may be read if the agent may use the tools of their server: a made-up name stands in for these.
        served = self._servers.tools(lambda name: bool(tuple(offers((f"mcp__{name}__resource",)))))
        if len(served) == len(before) and all(map(is_, served, before)):
            return earlier_tools
        tools_by_name = {tool.name: tool for tool in served}
        # A tool whose name was cut is offered only if it would also be offered under its full name.
        whole = {name: (name, *tool.rule_names({})) for name, tool in tools_by_name.items()}
        allowed_names = {name for name in tools_by_name if len(tuple(offers(whole[name]))) == len(whole[name])}
        allowed_names -= {tool.name for tool in self._own}
        self._served_before = served, [tool for name, tool in sorted(tools_by_name.items()) if name in allowed_names]
        return self._served_before[1]

    def _last_recorded(self, name: str) -> McpServerChanged | None:
        """The last recorded event of a server without its envelope, to compare states, or None."""
        events = (e for e in reversed(self.run.view.events) if isinstance(e, McpServerChanged) and e.name == name)
        last = next(events, None)
        bare: dict[str, Any] = {"seq": None, "ts": None, "mac": None, "parent_tool_use_id": None, "agent_name": None}
        return None if last is None else replace(last, **bare)

    async def _announce(self, instructions: tuple[tuple[str, str], ...]) -> None:
        if self.instructions is None:
            self.instructions = instructions
            return
        texts = [server_block(*instruction) for instruction in instructions if instruction not in self.instructions]
        for text in texts:
            if not any(isinstance(event, UserMessage) and event.text == text for event in self.run.view.events):
                await self.run.record(UserMessage(text, origin="mcp"))


def servers_of(openers: Iterable[PartOpener]) -> ToolServers | None:
    """The servers among the parts of an agent; None if it has none."""
    plans = (opener for opener in openers if isinstance(opener, partial) and opener.func is ServerTools)
    return next((plan.keywords["servers"] for plan in plans), None)


def _are_same(one: ToolRegistry, other: ToolRegistry) -> bool:
    """Whether both registries have the same tools and the same definitions for the model."""
    if len(one) != len(other) or not all(map(is_, one, other)):
        return False
    return [*map(canonical_json, one.specs())] == [*map(canonical_json, other.specs())]
