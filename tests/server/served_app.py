"""An application for real servers in separate processes: files in the folder $SERVED_STORE, on the port $SERVED_PORT."""

from __future__ import annotations

import asyncio
import os

from openagentic_sdk.agents import Agents, NamedAgent
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.server import app
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.tools.function import tool


@tool(effect="read")
async def rest() -> str:
    """Wait until the run is told to end."""
    await asyncio.Event().wait()
    return "rested"


def tea() -> OpenAgenticOptions:
    """Rests for long when it is asked to, and answers."""
    turns = [{"tool_calls": [{"name": "rest", "arguments": {}}]}, "Rested."]
    return OpenAgenticOptions(
        provider=ScriptedProvider(turns),
        model="scripted",
        tools=[rest],
        permission_gate=PermissionGate(permission_mode="bypass"),
        system_prompt="A test.",
    )


def greeter() -> OpenAgenticOptions:
    """Answers at once."""
    return OpenAgenticOptions(
        provider=ScriptedProvider(["Hello."] * 99), model="scripted", tools=[], system_prompt="A test."
    )


agents = Agents({"tea": NamedAgent(tea), "greeter": NamedAgent(greeter)})


def make() -> object:
    """The application."""
    return app(agents, store=os.environ["SERVED_STORE"], auth=os.environ["SERVED_TOKEN"], grace_s=1.0)


application = make() if "SERVED_STORE" in os.environ else None
