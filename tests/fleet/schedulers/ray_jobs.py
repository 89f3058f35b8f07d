"""Ray: a driver whose tasks are the runs RUN..., in worker processes that Ray restarts when they die."""

from __future__ import annotations

import sys

import ray

from openagentic_sdk.errors import StorageError


@ray.remote(max_retries=-1, retry_exceptions=[StorageError], num_cpus=0.5)
def run(run_id: int) -> str:
    from tests.fleet.schedulers.shared import do_run

    return do_run(run_id)


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
    print(ray.get([run.remote(int(number)) for number in sys.argv[1:]]), flush=True)
