"""`python3 -m benchmarks [topic ...]`: run topics and print their figures. The exit code is 1 if a bar is missed."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path

from . import Row


def main() -> int:
    known = sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if not m.name.startswith("_"))
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks", description="Measure what things cost.")
    parser.add_argument("topics", nargs="*", metavar="topic", help=f"which to run; all by default: {', '.join(known)}")
    topics = parser.parse_args().topics or known
    unknown = sorted(set(topics) - set(known))
    if unknown:
        parser.error(f"there is no topic {unknown[0]!r}: the topics are {', '.join(known)}")
    missed = sum(_run_topic(topic) for topic in topics)
    print(f"\n{missed} bars missed" if missed else "\nevery bar is met")
    return 1 if missed else 0


def _run_topic(topic: str) -> int:
    """Print the rows of one topic; return how many of them miss their bar."""
    print(f"\n{topic}", flush=True)
    rows: list[Row] = importlib.import_module(f"{__package__}.{topic}").rows()
    for row in rows:
        print("  " + _line(row), flush=True)
    return sum(row.met is False for row in rows)


def _line(row: Row) -> str:
    ratio = f"{row.ratio:8.2f} x {row.floor}" if row.ratio is not None else ""
    verdict = {None: "", True: f"  [meets {row.bar}]", False: f"  [MISSES {row.bar}]"}[row.met]
    return f"{row.name:<58} {_figure(row.value):>12} {row.unit:<10} {ratio}{verdict}".rstrip()


def _figure(value: float) -> str:
    if value == int(value) and abs(value) < 1e12:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
