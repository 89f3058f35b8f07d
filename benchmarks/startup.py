"""What it costs to start: the import, a run of one step to its end, the help text. Bytecode is cached, as when installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import Row

ROOT = Path(__file__).parent.parent
_FLOOR = "import asyncio, json, dataclasses"
_SURFACE = "from openagentic_sdk import query, OpenAgenticOptions"
_HELP_FLOOR = "import argparse, asyncio, json, dataclasses"
# A new process inherits the peak that getrusage knows, but not the one of its own address space.
_PEAK = """
try:
    print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")))
except OSError:
    import resource
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


_FIRST_COMMAND = [
    "-m",
    "openagentic_sdk",
    "run",
    "--script=fixtures/scripts/first_run.json",
    "--cwd=fixtures/projects/checklist",
    "Is this project ready to be released?",
]
# What a program pays that asks once and ends: import, one step of the model, its log on disk.
_STEP = """
import asyncio
from openagentic_sdk import OpenAgenticOptions, query
from openagentic_sdk.testing import ScriptedProvider

async def main():
    options = OpenAgenticOptions(provider=ScriptedProvider(["Yes."]), model="scripted")
    return [event async for event in query(prompt="Is this project ready?", options=options)]

assert asyncio.run(main())[-1].stop_reason == "end"
"""


def rows() -> list[Row]:
    runs = {
        "bare": ["-c", "pass"],
        "floor": ["-c", _FLOOR],
        "import": ["-c", "import openagentic_sdk"],
        "surface": ["-c", _SURFACE],
        "step": ["-c", _STEP],
        "help floor": ["-c", _HELP_FLOOR],
        "help": ["-m", "openagentic_sdk", "--help"],
    }
    with tempfile.TemporaryDirectory() as scratch:
        ms = _measure_ms(runs, scratch, repeats=15)
        first_text_ms = _first_text_ms(scratch)
        peak = {name: _peak_mib(runs[name][1], scratch) for name in ("bare", "floor", "import", "surface", "step")}
    return [
        Row("python3 -c pass", ms["bare"], "ms"),
        Row(_FLOOR, ms["floor"], "ms", ms["floor"] / ms["bare"], "bare interpreter"),
        Row("import openagentic_sdk", ms["import"], "ms", ms["import"] / ms["floor"], _FLOOR, "ratio <= 1.5"),
        Row(_SURFACE, ms["surface"], "ms", ms["surface"] / ms["floor"], _FLOOR, "ratio <= 2.2"),
        Row("... and one scripted step to its end", ms["step"], "ms", ms["step"] / ms["floor"], _FLOOR, "ratio <= 2.6"),
        Row("import openagentic_sdk, peak memory", peak["import"], "MiB", peak["import"] / peak["floor"], _FLOOR),
        Row(
            "... query, OpenAgenticOptions, peak memory",
            peak["surface"],
            "MiB",
            peak["surface"] / peak["floor"],
            _FLOOR,
        ),
        Row("... and one scripted step, peak memory", peak["step"], "MiB", peak["step"] / peak["floor"], _FLOOR),
        Row("openagentic-sdk --help", ms["help"], "ms", ms["help"] / ms["help floor"], _HELP_FLOOR, "ratio <= 1.5"),
        Row("README's first command, first text", first_text_ms, "ms", first_text_ms / ms["floor"], _FLOOR),
    ]


def _first_text_ms(scratch: str) -> float:
    """From the start of the process to the first character of streamed text, the best of three."""
    best = float("inf")
    for number in range(3):
        began = time.perf_counter()
        environment = {**_environment(scratch), "OPENAGENTIC_SDK_STORE": os.path.join(scratch, f"store-{number}")}
        with subprocess.Popen(
            [sys.executable, *_FIRST_COMMAND],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            process.stdout.read(1)
            best = min(best, (time.perf_counter() - began) * 1000)
            process.stdout.read()
    return best


def _measure_ms(runs: dict[str, list[str]], scratch: str, repeats: int) -> dict[str, float]:
    """Fastest wall time of each, taken in turns so that a busy moment falls on all of them."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, arguments in runs.items():
            began = time.perf_counter()
            _python(arguments, scratch)
            best[name] = min(best[name], (time.perf_counter() - began) * 1000)
    return best


def _peak_mib(code: str, scratch: str) -> float:
    return int(_python(["-c", code + "\n" + _PEAK], scratch)) / 1024


def _python(arguments: list[str], scratch: str) -> str:
    """Run Python with modules compiled once, as an installed package is, whatever this machine's settings say."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=_environment(scratch), capture_output=True, text=True, check=True
    )
    return done.stdout


def _environment(scratch: str) -> dict[str, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": os.path.join(scratch, "bytecode")}
    environment["OPENAGENTIC_SDK_STORE"] = os.path.join(scratch, "store")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment
