"""The agents that foreign clients use in `test_mcp_clients`: they say hello, ask about tea, and want to write a file."""

from __future__ import annotations

import tempfile

from openagentic_sdk.agents import Agents, NamedAgent
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.testing.scripted import ScriptedProvider


def _agent(*turns: object) -> NamedAgent:
    folder = tempfile.gettempdir()
    return NamedAgent(OpenAgenticOptions(provider=ScriptedProvider(turns), model="scripted", cwd=folder), "For tests.")


def _call(name: str, **arguments: object) -> dict[str, object]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


agents = Agents(
    {
        "hello": _agent("Hello."),
        "asks": _agent(_call("AskUserQuestion", question="Tea?", choices=["green", "black"]), "Fine."),
        "writes": _agent(_call("Bash", command="touch never-without-a-yes"), "Not done."),
    }
)
