"""The cost of starting: the import, a run of one step to its end, the help text. Bytecode is cached, as when installed.

`query, OpenAgenticOptions` and the run of one step miss their bars. They load about 265 modules, at 0.3 to 0.5 ms each
(finding and reading the file, its bytecode, its classes), and no module takes more than 3 % of the time. Whatever a run of
one step never calls (the decision about a command, the sandbox, the index of a folder of sessions) makes up an eighth of
it: loading that on first use, in more than thirty places inside functions, would not reach the bars either.
`ground.frozen` takes 8 %, and defining its classes by the standard decorator several times as much.

Counted in instructions (cachegrind), the surface is 2.34 x its floor and the step 2.72 x. In processor time outside the
kernel they are 2.65 and 3.4 x, in the kernel, which reads the files, 2.45 and 2.1 x. Garbage collection takes about 14 % of
the surface's processor time (perf): 28 collections of young objects during the import, and complete ones of its 16,900
objects and the floor's 15,700 as the process ends. An import with collection switched off does not take less.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from . import Row

ROOT = Path(__file__).parent.parent
_FLOOR = "import asyncio, json, dataclasses"
_SURFACE = "from openagentic_sdk import query, OpenAgenticOptions"
_AGENT = "from openagentic_sdk import Agent, OpenAgenticOptions"
_HELP_FLOOR = "import argparse, asyncio, json, dataclasses"
# A new process inherits the peak reported by getrusage, but not that of its own address space.
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
# The cost of a program that asks once and ends: import, one step of the model, its log on disk.
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
        "agent": ["-c", _AGENT],
        "step": ["-c", _STEP],
        "help floor": ["-c", _HELP_FLOOR],
        "help": ["-m", "openagentic_sdk", "--help"],
    }
    with tempfile.TemporaryDirectory() as scratch:
        measured = _measure(runs, scratch, repeats=15)
        first_text_ms = _first_text_ms(scratch)
        peak = {name: _peak_mib(runs[name][1], scratch) for name in ("bare", "floor", "import", "surface", "step")}
        modules = {name: _modules(runs[name][1], scratch) for name in ("floor", "import", "surface", "step")}

    def cpu(label: str, name: str, floor: str = "floor", words: str = _FLOOR, bar: str = "") -> Row:
        pairs = zip(measured[name], measured[floor], strict=True)
        ratio = statistics.median(one.cpu_ms / other.cpu_ms for one, other in pairs)
        return Row(label, statistics.median(one.cpu_ms for one in measured[name]), "ms", ratio, words, bar)

    def memory(label: str, name: str) -> Row:
        return Row(f"{label}, peak memory", peak[name], "MiB", peak[name] / peak["floor"], _FLOOR)

    def loaded(label: str, name: str) -> Row:
        return Row(f"{label}, modules loaded", modules[name], "", modules[name] / modules["floor"], _FLOOR)

    first = "import openagentic_sdk"
    query, step = "... query, OpenAgenticOptions", "... and one scripted step"
    return [
        Row("python3 -c pass", statistics.median(one.cpu_ms for one in measured["bare"]), "ms"),
        cpu(_FLOOR, "floor", "bare", "bare interpreter"),
        cpu(first, "import", bar="ratio <= 1.5"),
        cpu(_SURFACE, "surface", bar="ratio <= 2.2"),
        cpu("... Agent, OpenAgenticOptions", "agent", "surface", _SURFACE, "ratio <= 1.1"),
        cpu(f"{step} to its end", "step", bar="ratio <= 2.6"),
        *(
            write(label, name)
            for write in (memory, loaded)
            for label, name in ((first, "import"), (query, "surface"), (step, "step"))
        ),
        cpu("openagentic-sdk --help", "help", "help floor", _HELP_FLOOR, "ratio <= 1.5"),
        Row(
            "README's first command, first text",
            first_text_ms,
            "ms",
            first_text_ms / min(one.wall_ms for one in measured["floor"]),
            _FLOOR,
        ),
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


@dataclass(frozen=True)
class _Run:
    """The figures of one process."""

    cpu_ms: float
    wall_ms: float


def _measure(runs: dict[str, list[str]], scratch: str, repeats: int) -> dict[str, list[_Run]]:
    """Run each program `repeats` times.

    They take turns, so that a busy moment affects all of them, and each is compared with the floor of the same turn.
    """
    _python(["-c", _STEP], scratch)  # compiles the modules
    measured: dict[str, list[_Run]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, arguments in runs.items():
            spent_s, began = _spent_s(), time.perf_counter()
            _python(arguments, scratch)
            measured[name].append(_Run((_spent_s() - spent_s) * 1000, (time.perf_counter() - began) * 1000))
    return measured


def _spent_s() -> float:
    """Processor time of all child processes that have been waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _modules(code: str, scratch: str) -> int:
    return int(_python(["-c", f"{code}\nimport sys; print(len(sys.modules))"], scratch))


def _peak_mib(code: str, scratch: str) -> float:
    return int(_python(["-c", code + "\n" + _PEAK], scratch)) / 1024


def _python(arguments: list[str], scratch: str) -> str:
    """Run Python with modules that are already compiled, as in an installed package, regardless of local settings."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=_environment(scratch), capture_output=True, text=True, check=True
    )
    return done.stdout


def _environment(scratch: str) -> dict[str, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": os.path.join(scratch, "bytecode")}
    environment["OPENAGENTIC_SDK_STORE"] = os.path.join(scratch, "store")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment
