"""Agents for test workers: a workflow that delegates documents to runs of the fleet and stores each note once."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from openagentic_sdk import Agent, Flow, OpenAgenticOptions, ToolContext, workflow
from openagentic_sdk.agents import Agents
from openagentic_sdk.testing import ScriptedProvider
from tests.fleet.payments import FOLDER

reader = Agent(ScriptedProvider(["A note."], resumable=True), name="reader")


def keep(document: int, note: str, ctx: ToolContext) -> str:
    """Write one file for each key, so that a repeated step adds none."""
    Path(os.environ[FOLDER], f"kept {sha256((ctx.idempotency_key or '').encode()).hexdigest()}").write_text(
        str(document)
    )
    return f"{document}: {note}"


async def read(flow: Flow, document: int) -> str:
    return await flow.step(keep, document, await flow.agent(reader, f"Read document {document}.", queue="models"))


@workflow
async def notes(flow: Flow, documents: int) -> list[str]:
    return await flow.map(lambda document: read(flow, document), range(documents), limit=20)


def agents() -> Agents:
    return Agents({"notes": notes.to_options(), "reader": OpenAgenticOptions(provider=reader.model, model="scripted")})
