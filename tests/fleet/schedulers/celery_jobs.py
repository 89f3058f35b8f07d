"""Celery: `celery -A tests.fleet.schedulers.celery_jobs worker`, and `send RUN...` to enqueue jobs."""

from __future__ import annotations

import os
import sys

from celery import Celery

from openagentic_sdk.errors import StorageError

from .shared import do_run

app = Celery("jobs", broker=os.environ["OPENAGENTIC_TEST_BROKER_URL"])
app.conf.update(
    task_default_queue=os.environ["OPENAGENTIC_TEST_QUEUE"],
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_acks_on_failure_or_timeout=False,
    worker_prefetch_multiplier=1,
    # Celery looks for unacknowledged jobs every 100 seconds, and a killed worker may hold the lock of this search for 300.
    broker_transport_options={
        "visibility_timeout": 6,
        "unacked_restore_interval": 2,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 6,
    },
    worker_proc_alive_timeout=60,
    broker_connection_retry_on_startup=True,
)


@app.task(name="run", autoretry_for=(StorageError,), retry_backoff=True, retry_backoff_max=3, max_retries=None)
def run(run_id: int) -> str:
    return do_run(run_id)


if __name__ == "__main__":
    for number in sys.argv[1:]:
        run.delay(int(number))
