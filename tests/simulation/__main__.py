"""Replay one seed with its operations, run and count many, or show which of them find the seeded defects."""

from __future__ import annotations

import argparse
import gc
import sys
import time

from . import defects, schedules


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.simulation",
        description="Schedules by seed of what can go wrong, checked against small models.",
        epilog="What the schedules cover, with an interpreter from 3.12: COVERAGE_CORE=sysmon python3 -m coverage run -m "
        "tests.simulation 0-2999; python3 -m coverage report "
        "--include='openagentic_sdk/sessions/*,openagentic_sdk/kernel/recorder.py,openagentic_sdk/kernel/settle.py,"
        "openagentic_sdk/fleet/*,openagentic_sdk/parts/workflows/*'",
    )
    parser.add_argument(
        "seeds", help="N, to replay it; FIRST-LAST; or `defects`: the first seed that finds each defect"
    )
    parser.add_argument("stop", nargs="?", choices=["stop"], help="end at the first seed that fails")
    asked = parser.parse_args(words)
    return show_defects() if asked.seeds == "defects" else run_seeds(asked.seeds, stops=asked.stop is not None)


def run_seeds(seeds: str, *, stops: bool) -> int:
    first, _, last = seeds.partition("-")
    gc.freeze()  # a collection examines nothing that was imported
    gc.set_threshold(20_000, 50)  # as the test runner does: fewer collections of the garbage of schedules
    began, broken = time.process_time(), 0
    for seed in range(int(first), int(last or first) + 1):
        try:
            history = schedules.run_seed(seed)
            if not last:
                print("\n".join(history.lines))
        except AssertionError as error:
            broken += 1
            print(error)
            if stops:
                break
    spent_s = time.process_time() - began
    print(f"{broken} seeds failed, {spent_s:.1f} CPU seconds, a loop beside them {loop_s():.2f}")
    return min(1, broken)


def loop_s() -> float:
    """The CPU time of a fixed loop, by which figures of a busy machine, or of another one, can be compared."""
    began, value = time.process_time(), 0
    for number in range(2_000_000):
        value = (value * 31 + number) & 0xFFFF
    return time.process_time() - began


def show_defects() -> int:
    missed = 0
    for what, seed in defects.first_seeds(defects.DEFECTS):
        missed += seed is None
        print(f"{'never' if seed is None else seed:>6}  {what}", flush=True)
    print(f"{missed} of {len(defects.DEFECTS)} were not found within {defects.SEEDS} seeds")
    return min(1, missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
