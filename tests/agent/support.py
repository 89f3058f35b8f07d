"""Shared objects for the tests of `Agent`: a shop, a verdict, and an agent with a scripted model."""

from dataclasses import dataclass, field
from typing import Any

from openagentic_sdk import Agent, MemorySessionStore, OpenAgenticOptions, ToolContext
from openagentic_sdk.testing import ScriptedProvider


@dataclass
class Shop:
    """The dependencies of the tools."""

    orders: dict[str, str] = field(default_factory=lambda: {"7": "paid"})


@dataclass
class Verdict:
    """The answer of an agent."""

    ok: bool
    why: str


def look_up(ctx: ToolContext[Shop], order: str) -> str:
    """Return the state of an order."""
    return ctx.deps.orders[order]


def calling(name: str, **arguments: Any) -> dict[str, Any]:
    """A turn with one call."""
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


def answering(**value: Any) -> dict[str, Any]:
    """A turn with the final answer of an agent that has an output type."""
    return calling("final_answer", **value)


def scripted(*turns: Any, **fields: Any) -> Agent[Any, Any]:
    """An agent whose model plays these turns, with a store in memory; `fields` are further fields of the agent."""
    options = {"session_store": MemorySessionStore(), **fields.pop("settings", {})}
    model = fields.pop("model", None) or ScriptedProvider(turns)
    return Agent(model, options=OpenAgenticOptions(**options), **fields)


def model_of(agent: Agent[Any, Any]) -> ScriptedProvider:
    """The scripted model of an agent."""
    assert isinstance(agent.model, ScriptedProvider)
    return agent.model
