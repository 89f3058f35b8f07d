"""An agent for servers that are restarted under their clients: six steps and one question, wherever it continues."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

from openagentic_sdk.agents import Agents, NamedAgent
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.tools.function import tool
from openagentic_sdk.tools.session.ask_user_question import AskUserQuestionTool

STEP_S = 0.3
ASK = {"name": "AskUserQuestion", "arguments": {"question": "Milk or lemon?"}}


@tool(effect="read")
async def brew(number: int) -> str:
    """Take a while; the second one until the test says so, where it has named a file for that."""
    gate = os.environ.get("ROLLING_GATE")
    is_over = False
    while not is_over:
        with suppress(TimeoutError):  # its servers are restarted during this time
            async with asyncio.timeout(STEP_S):
                await asyncio.Event().wait()
        is_over = number != 2 or gate is None or os.path.exists(gate)
    return f"brewed {number}"


def _brews(number: int) -> dict[str, object]:
    return {"text": f"Pot {number}.", "tool_calls": [{"name": "brew", "arguments": {"number": number}}]}


TURNS = [*map(_brews, (1, 2, 3)), {"text": "I ask.", "tool_calls": [ASK]}, *map(_brews, (4, 5, 6)), "All are served."]


def _options() -> OpenAgenticOptions:
    return OpenAgenticOptions(
        provider=ScriptedProvider(TURNS, resumable=True),
        model="scripted",
        tools=[brew, AskUserQuestionTool()],
        permission_gate=PermissionGate(permission_mode="bypass"),
        system_prompt="A test.",
    )


agents = Agents({"tea": NamedAgent(_options)})
