"""The program of a procrastinate worker: python procrastinate_jobs.py URL FILE work | order | schema

It is the recipe of docs/schedulers.md with short intervals, and with an agent whose tool writes a line and then waits for
the file FILE.go.
"""

from __future__ import annotations

import asyncio
import os
import sys

import procrastinate

from openagentic_sdk import OpenAgenticOptions
from openagentic_sdk.agents import NamedAgent
from openagentic_sdk.errors import StorageError
from openagentic_sdk.fleet import Fleet, execute_run
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.testing import ScriptedProvider
from openagentic_sdk.tools.function import tool
from tests.waiting import pause, until

URL, FILE, WHAT = sys.argv[1:4]
# How long a worker may seem dead, and, unless given, the lease of its run.
STALLED_S = 6.0
LEASE_S = float(sys.argv[4]) if sys.argv[4:] else STALLED_S
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL))


@tool(effect="unsafe")
def pay() -> str:
    """Write a line, then wait until the test creates a file."""
    with open(FILE, "a") as file:
        file.write("paid\n")
    until(lambda: os.path.exists(f"{FILE}.go"), "the test lets the payment end")
    return "paid"


def payer() -> OpenAgenticOptions:
    turns = [{"tool_calls": [{"name": "pay", "arguments": {}}]}, "done"]
    if os.path.exists(FILE):
        turns = ["done"]  # the rest of the script for a resumed run
    gate = PermissionGate(permission_mode="bypass")
    return OpenAgenticOptions(provider=ScriptedProvider(turns), model="m", tools=[pay], permission_gate=gate)


fleet = Fleet(URL, {"payer": NamedAgent(payer)})
again = procrastinate.RetryStrategy(wait=1, retry_exceptions={StorageError, asyncio.CancelledError})


@app.task(name="run", retry=again)
async def run(run_id: int) -> str:
    return (await execute_run(fleet, run_id, lease_s=LEASE_S)).state


async def order() -> int:
    async with app.connector.pool.connection() as connection:  # type: ignore[attr-defined]
        run_id = await fleet.enqueue("payer", "Pay.", connection=connection)
        job = run.configure(connection=connection)
        await job.defer_async(run_id=run_id)
        await job.defer_async(run_id=run_id)  # a duplicate job is harmless
    return run_id


async def recover_runs() -> None:
    """Do the work of the periodic task, which runs once a minute in the recipe."""
    while True:
        for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=STALLED_S):
            await app.job_manager.retry_job(job)
        await asyncio.to_thread(pause, 0.2, "the recipe looks once a minute")


async def main() -> None:
    async with app.open_async():
        if WHAT == "schema":
            await app.schema_manager.apply_schema_async()
        elif WHAT == "order":
            print(await order())
        else:
            recovery = asyncio.create_task(recover_runs())
            intervals = {"update_heartbeat_interval": 1.0, "stalled_worker_timeout": STALLED_S}
            await app.run_worker_async(concurrency=2, shutdown_graceful_timeout=0.1, **intervals)
            recovery.cancel()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    finally:
        fleet.close()
        fleet.store.close()
