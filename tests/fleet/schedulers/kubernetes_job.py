"""A Kubernetes Job: the container's process executes run RUN; its exit code decides whether the Job is complete."""

from __future__ import annotations

import asyncio
import signal
import sys

from openagentic_sdk.errors import StorageError
from openagentic_sdk.fleet import Fleet, execute_run
from tests.fleet.payments import agents

from .shared import LEASE_S, URL


async def main(run_id: int) -> int:
    fleet = Fleet(URL, agents())
    task = asyncio.ensure_future(execute_run(fleet, run_id, lease_s=LEASE_S))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
        return 0  # finished, or waiting for a person
    except (StorageError, asyncio.CancelledError):
        return 1  # restarted by `restartPolicy: OnFailure`
    finally:
        fleet.close()
        fleet.store.close()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]))))
