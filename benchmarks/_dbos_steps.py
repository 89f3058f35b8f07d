"""The side of `workflow_steps` that DBOS plays, in an environment of its own: it prints one figure as JSON.

python _dbos_steps.py URL run WORKFLOWS STEPS     seconds for so many workflows of so many steps, all at once
python _dbos_steps.py URL begin STEPS             runs one workflow, and dies in front of its last step
python _dbos_steps.py URL recover STEPS           seconds until that workflow, which died, has ended
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from dbos import DBOS, SetWorkflowID  # type: ignore[import-not-found, unused-ignore]

URL, KIND, *NUMBERS = sys.argv[1:]
DBOS(
    config={
        "name": "steps",
        "system_database_url": URL,
        "run_admin_server": False,
        "log_level": "ERROR",
        "application_version": "1",
        "executor_id": "one",
        "enable_otlp": False,
    }
)


@DBOS.step()
async def add(number: int) -> int:
    return number + 1


@DBOS.workflow()
async def count(steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = await add(number)
        if KIND == "begin" and number == steps - 1:
            os._exit(0)
    return number


async def measure(workflows: int, steps: int) -> float:
    assert await count(2) == 2
    began = time.perf_counter()
    found = await asyncio.gather(*(count(steps) for _ in range(workflows)))
    took_s = time.perf_counter() - began
    assert found == [steps] * workflows
    return took_s


async def begin(steps: int) -> None:
    with SetWorkflowID("long"):
        await count(steps)


async def recover(began: float, steps: int) -> float:
    handle = await DBOS.retrieve_workflow_async("long")
    assert await handle.get_result() == steps
    return time.perf_counter() - began


if __name__ == "__main__":
    launched = time.perf_counter()
    DBOS.launch()
    if KIND == "run":
        figure = asyncio.run(measure(int(NUMBERS[0]), int(NUMBERS[1])))
    elif KIND == "begin":
        asyncio.run(begin(int(NUMBERS[0])))
        raise SystemExit("it did not die")
    else:
        figure = asyncio.run(recover(launched, int(NUMBERS[0])))
    print(json.dumps(figure), flush=True)
    os._exit(0)
