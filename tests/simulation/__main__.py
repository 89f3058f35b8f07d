"""Replay one seed with what was done in it, or run many and count."""

from __future__ import annotations

import sys
import time

from . import schedules


def main(words: list[str]) -> int:
    """Run the seeds that are named: `N`, or `FIRST-LAST`."""
    first, _, last = words[0].partition("-")
    began, broken = time.process_time(), 0
    for seed in range(int(first), int(last or first) + 1):
        try:
            history = schedules.run_seed(seed)
            if not last:
                print("\n".join(history.lines))
        except AssertionError as error:
            broken += 1
            print(error)
            if len(words) > 1:
                break
    print(f"{broken} seeds failed, {time.process_time() - began:.1f} CPU seconds")
    return min(1, broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
