"""What it costs that a session's record can be shown to others: signing it beside the steps that it vouches for."""

from __future__ import annotations

import asyncio
import tempfile
import time

from openagentic_sdk import FileSessionStore, OpenAgenticOptions, query
from openagentic_sdk.sessions.record.sign import sign_session
from openagentic_sdk.sessions.record.signers import InstallationKey, Trust
from openagentic_sdk.sessions.record.verify import verify_record
from openagentic_sdk.sessions.seal import Seal

from . import Row, best_cpu_s
from .loop import Nothing, Stepping

STEPS = 200


def rows() -> list[Row]:
    return [*_signing()]


def _signing() -> list[Row]:
    """A step computes nothing of the chain: it is worked out when somebody signs, from the events as they are stored."""
    with tempfile.TemporaryDirectory() as folder:
        store = FileSessionStore(folder)
        began = time.perf_counter()
        session_id = asyncio.run(_run(store))
        step_s = (time.perf_counter() - began) / STEPS
        key = InstallationKey(f"{folder}/installation.key")
        began = time.perf_counter()
        sign_session(store, session_id, [key])
        signing_s = (time.perf_counter() - began) / STEPS
        events, trust = store.read_events(session_id), Trust(Seal(key.path))
        checking_s = best_cpu_s(lambda: verify_record(session_id, events, trust), 3) / len(events)
    return [
        Row("a step, file store as it is by default", step_s * 1e6, "us"),
        Row("signing its events", signing_s * 1e6, "us", signing_s / step_s, "the step", ""),
        Row("checking one signed event", checking_s * 1e6, "us"),
    ]


async def _run(store: FileSessionStore) -> str:
    options = OpenAgenticOptions(
        provider=Stepping(STEPS), model="m", tools=[Nothing()], session_store=store, max_steps=STEPS + 1
    )
    session_id = ""
    async for event in query(prompt="go", options=options):
        session_id = getattr(event, "session_id", session_id)
    return session_id
