"""The cost of running a command compared with plain `subprocess.run`, and the throughput of large output."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from statistics import median
from typing import Any

from openagentic_sdk.tools.base import RunResources, ToolContext
from openagentic_sdk.tools.bash import BashTool
from openagentic_sdk.tools.shell.background import RunShells
from openagentic_sdk.tools.shell.sandbox_plan import probe_sandbox
from openagentic_sdk.tools.web.markdown import html_to_markdown

from . import Row, best_s

CALLS = 60
OUTPUT_BYTES = 1024**3
PLAIN = "subprocess.run of true"


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return [*_call_rows(folder), _output_row(folder), _html_row()]


def _call_rows(folder: str) -> list[Row]:
    ctx = ToolContext(cwd=folder)
    works: dict[str, Callable[[], object]] = {
        "floor": lambda: subprocess.run(["true"], capture_output=True, check=True)
    }
    works["plain"] = lambda: BashTool().run_sync({"command": "true"}, ctx)
    works["fresh"] = lambda: BashTool().run_sync({"command": "true"}, ToolContext(cwd=folder))
    if probe_sandbox().namespaces:
        works["sandbox"] = lambda: BashTool(sandbox="require").run_sync({"command": "true"}, ctx)
    if probe_sandbox().overlay:
        works["preview"] = lambda: BashTool(bash_effects="preview").run_sync({"command": "true"}, ctx)
    spent = _interleaved_ms(works)
    ctx.services.get(RunResources).get(RunShells).close()
    floor = spent["floor"]
    names = {
        "plain": ("Bash of true", "ratio <= 10"),
        "fresh": ("the same, a new context each time", "ratio <= 10"),
        "sandbox": ("the same in a sandbox", "ratio <= 8"),
        "preview": ("the same as a dry run", "ratio <= 10"),
    }
    return [
        Row(names[key][0], value, "ms", value / floor, PLAIN, names[key][1])
        for key, value in spent.items()
        if key != "floor"
    ]


def _interleaved_ms(works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The median time of each function, called in turns so that a busy moment of the machine affects all of them."""
    spent: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(CALLS):
        for name, work in works.items():
            spent[name].append(_timed_ms(work))
    return {name: median(values) for name, values in spent.items()}


def _timed_ms(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def _output_row(folder: str) -> Row:
    command = f"head -c {OUTPUT_BYTES} /dev/zero"
    floor_file = Path(folder) / "floor"

    def write_to_file() -> None:
        subprocess.run(["bash", "-c", f"{command} | cat > {floor_file}"], check=True)
        floor_file.unlink()

    def capture() -> None:
        ctx = ToolContext(cwd=folder)
        result: dict[str, Any] = BashTool().run_sync({"command": command}, ctx)
        os.unlink(result["stdout_file"])
        ctx.services.get(RunResources).get(RunShells).close()

    floor_s, spent_s = best_s(write_to_file, 2), best_s(capture, 2)
    return Row(
        "1 GiB of output, kept in a file",
        spent_s,
        "s",
        spent_s / floor_s,
        "the same through cat into a file",
        "ratio <= 3",
    )


def _html_row() -> Row:
    page = "<div class='x'><p>Some <b>bold</b> text and <a href='/a?b=c'>a link</a> in a paragraph.</p></div>\n" * 2000
    spent_s = best_s(lambda: html_to_markdown(page, "https://example.com/"))
    floor_s = best_s(lambda: HTMLParser().feed(page))
    return Row(
        "HTML to Markdown", spent_s / len(page) * 1e6, "s per MB", spent_s / floor_s, "html.parser", "ratio <= 4"
    )
