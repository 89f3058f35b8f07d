"""The job shared by all schedulers: execute one run of the fleet whose database the environment names."""

from __future__ import annotations

import asyncio
import os

from openagentic_sdk.fleet import Fleet, execute_run
from tests.fleet.payments import agents

URL = os.environ["OPENAGENTIC_TEST_FLEET_URL"]
LEASE_S = 2.0


def do_run(run_id: int) -> str:
    """Execute the run."""
    fleet = Fleet(URL, agents())
    try:
        return asyncio.run(execute_run(fleet, run_id, lease_s=LEASE_S)).state
    finally:
        fleet.close()
        fleet.store.close()
