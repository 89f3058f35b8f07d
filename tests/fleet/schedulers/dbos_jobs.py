"""DBOS: `work RUN...` starts missing jobs and resumes existing ones; `alone KEY SECONDS` pays without a fleet."""

from __future__ import annotations

import os
import sys

from dbos import DBOS, SetWorkflowID

from openagentic_sdk.tools.base import ToolContext
from tests.fleet.payments import pay, reach
from tests.waiting import hang

from .shared import do_run

DBOS(
    config={
        "name": "agents",
        "system_database_url": os.environ["OPENAGENTIC_TEST_DBOS_URL"],
        "application_version": "1",
        "executor_id": "one",
        "run_admin_server": False,
        "log_level": "ERROR",
    }
)


@DBOS.step(retries_allowed=True, max_attempts=1000)
def run_step(run_id: int) -> str:
    return do_run(run_id)


@DBOS.workflow()
def run(run_id: int) -> str:
    return run_step(run_id)


# --- the same job with DBOS alone ------------------------------------------------------------------------------------


@DBOS.step()
def ask(key: str) -> str:
    reach("asked", key)
    return "pay"


@DBOS.step()
def pay_step(key: str, seconds: float) -> str:
    return str(pay.run_sync({"key": key, "seconds": seconds}, ToolContext()))


@DBOS.step()
def answer(key: str) -> str:
    reach("answering", key)
    return "done"


@DBOS.workflow()
def alone(key: str, seconds: float) -> str:
    ask(key)
    pay_step(key, seconds)
    return answer(key)


def main(what: str, words: list[str]) -> None:
    DBOS.launch()  # resumes what this executor had begun
    if what == "alone":
        with SetWorkflowID(f"alone-{words[0]}"):
            DBOS.start_workflow(alone, words[0], float(words[1])).get_result()
        return
    for number in words:
        with SetWorkflowID(f"run-{number}"):
            DBOS.start_workflow(run, int(number))
    hang()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
