"""The tools of a run as they are at its next step: those of its agent, and those that servers offer by now.

What servers offer may come and go, but only here, between two steps. Tools that the model has been told about keep their
places, new ones stand behind them, sorted by name: what a provider has cached of the request before stays as it was.
"""

from __future__ import annotations

from dataclasses import replace
from operator import is_

from ..events import UserMessage
from ..project.prompt import server_block
from ..tools.registry import ToolRegistry
from .agent import Run


async def update_tools(run: Run) -> None:
    """Take over what the servers offer now, and record what has become of them. Waits for servers that are still coming."""
    servers = run.agent.servers
    if servers is None:
        return
    await servers.ready()
    await run.record(*servers.changes(run.servers_seen))
    offers = run.agent.offers
    offered = {tool.name: tool for tool in servers.tools(lambda name: bool(tuple(offers((f"mcp__{name}__resource",)))))}
    now = list(run.agent.tools)
    own = [tool for tool in now if tool.name not in run.served]
    # A tool whose name had to be cut is offered only when it would be under its whole name, too.
    whole = {name: (name, *tool.rule_names({})) for name, tool in offered.items()}
    wanted = {name for name in offered if len(tuple(offers(whole[name]))) == len(whole[name])}
    wanted -= {tool.name for tool in own}
    told = [] if run.view.context is None else [spec["function"]["name"] for spec in run.view.context.tools]
    # A set as a dict: names that were told about before, in their order, then the new ones.
    names = [name for name in dict.fromkeys([*told, *run.served, *sorted(wanted)]) if name in wanted]
    tools = [*own, *(offered[name] for name in names)]
    run.served = dict.fromkeys(names)
    if len(tools) != len(now) or not all(map(is_, tools, now)):
        run.agent = replace(run.agent, tools=ToolRegistry(tools))
    await _tell_instructions(run, tuple(servers.instructions()))


async def _tell_instructions(run: Run, instructions: tuple[tuple[str, str], ...]) -> None:
    """What servers say of themselves stands in the system prompt; of one that comes later, or anew, in a message."""
    if run.instructions is None:
        run.instructions = instructions
        return
    texts = [server_block(*told) for told in instructions if told not in run.instructions]
    for text in texts:
        if not any(isinstance(event, UserMessage) and event.text == text for event in run.view.events):
            await run.record(UserMessage(text, origin="mcp"))
