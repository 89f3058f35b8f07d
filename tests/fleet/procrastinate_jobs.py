"""The program of a procrastinate worker: python procrastinate_jobs.py URL FILE work | defer NUMBER | schema

It is the recipe of docs/schedulers.md with short intervals, and with an agent whose tool writes a line and then hangs.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import procrastinate

from openagentic_sdk import OpenAgenticOptions
from openagentic_sdk.agents import NamedAgent
from openagentic_sdk.fleet import Fleet, execute_run
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.testing import ScriptedProvider
from openagentic_sdk.tools.function import tool
from tests.waiting import hang, pause

URL, FILE, WHAT = sys.argv[1:4]
LEASE_S = 6.0
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL))


@tool(effect="unsafe")
def pay() -> str:
    """Write a line, then take a very long time."""
    with open(FILE, "a") as file:
        file.write("paid\n")
    hang()


def payer() -> OpenAgenticOptions:
    turns = [{"tool_calls": [{"name": "pay", "arguments": {}}]}, "done"]
    if os.path.exists(FILE):
        turns = ["done"]  # the rest of the script for a resumed run
    gate = PermissionGate(permission_mode="bypass")
    return OpenAgenticOptions(provider=ScriptedProvider(turns), model="m", tools=[pay], permission_gate=gate)


@app.task(name="run")
async def run(run_id: int) -> str:
    fleet = Fleet(URL, {"payer": NamedAgent(payer)})
    try:
        return (await execute_run(fleet, run_id, lease_s=LEASE_S)).state
    finally:
        fleet.close()
        fleet.store.close()


async def recover_runs() -> None:
    """Do the work of the periodic task, which runs once a minute in the recipe."""
    while True:
        for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=LEASE_S):
            await app.job_manager.retry_job(job)
        await asyncio.to_thread(pause, 0.2, "the recipe looks once a minute")


async def main() -> Any:
    async with app.open_async():
        if WHAT == "schema":
            await app.schema_manager.apply_schema_async()
        elif WHAT == "defer":
            await run.defer_async(run_id=int(sys.argv[4]))
            await run.defer_async(run_id=int(sys.argv[4]))  # a duplicate job is harmless
        else:
            back = asyncio.create_task(recover_runs())
            await app.run_worker_async(concurrency=2, update_heartbeat_interval=1.0, stalled_worker_timeout=LEASE_S)
            back.cancel()


if __name__ == "__main__":
    asyncio.run(main())
