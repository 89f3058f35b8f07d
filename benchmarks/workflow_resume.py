"""The cost of a finished step of a workflow when its run is resumed.

Half of it is reading: the events since the last cut, and the steps before it from the stored state. The other half is the
body, which binds the arguments of each step again, finds its record and compares both.
"""

from __future__ import annotations

import tempfile

from openagentic_sdk import FileSessionStore, Flow, OpenAgenticOptions, workflow

from . import Row, best_cpu_s

STEPS = 10_000


async def _add(number: int) -> int:
    return number + 1


@workflow
async def _count(flow: Flow, steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = await flow.step(_add, number, effect="read")
    await flow.wait_for("end")
    return number


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:

        def run() -> None:
            options = OpenAgenticOptions(session_store=FileSessionStore(folder, durability="flush"))
            _count.run_sync(STEPS, options=options, session="long")

        run()
        resumed_s = best_cpu_s(run, 3)
    return [Row("resume a workflow of 10,000 steps, a step", resumed_s / STEPS * 1e6, "us", bar="value <= 100")]
