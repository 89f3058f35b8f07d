"""The cost of Grep and Glob compared with the simplest loops that do the same work, with a warm page cache."""

from __future__ import annotations

import os
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from openagentic_sdk.tools.base import ToolContext
from openagentic_sdk.tools.edit import EditTool
from openagentic_sdk.tools.glob import GlobTool
from openagentic_sdk.tools.grep import GrepTool
from openagentic_sdk.tools.read import ReadTool

from . import Row, best_cpu_s, best_s

GREP_FILES = 5_000
GREP_FILE_BYTES = 20_000
GLOB_FILES = 100_000
FILES_PER_FOLDER = 50
_NEEDLE = "find_the_needle_4711"
# Literals, with or without case, run here; patterns with repetitions in the worker.
_PATTERNS = {
    "a literal": ("find_the_needle", True),
    "one repetition": (r"needle_\d+", True),
    "two repetitions": (r"find_\w+_\d+", True),
    "without case": ("find_the_NEEDLE", False),
}


def rows() -> list[Row]:
    return [*_grep_rows(), *_glob_rows(), *_single_file_rows()]


def _grep_rows() -> list[Row]:
    found: list[Row] = []
    with _folder() as root:
        paths = _write_sources(root, GREP_FILES, GREP_FILE_BYTES)
        for name, (pattern, case) in _PATTERNS.items():
            compiled = re.compile(pattern.encode(), 0 if case else re.IGNORECASE)
            for mode in ("content", "files"):
                call = {"query": pattern, "mode": mode, "case_sensitive": case}
                work = _call(GrepTool(), call, root)
                floor_s, took_s = _in_turns(lambda compiled=compiled: _loop(paths, compiled), work)
                label, floor = f"Grep of 100 MB, {name}, {mode}", "reading each file, one bytes pattern"
                found.append(Row(label, took_s * 1000, "ms", took_s / floor_s, floor, "ratio <= 2"))
    return found


def _glob_rows() -> list[Row]:
    calls = {
        "every file": (GlobTool(), "**/*"),
        "every file shown": (GlobTool(max_matches=GLOB_FILES), "**/*"),
        "one ending": (GlobTool(), "**/*.py"),
        "a path": (GlobTool(), "**/b?/**/n*_[0-4].{py,md}"),
    }
    with _folder() as root:
        _write_tree(root, GLOB_FILES, FILES_PER_FOLDER)
        found = [_glob_row(root, name, tool, pattern) for name, (tool, pattern) in calls.items()]
        (root / ".gitignore").write_text("*.pyc\n__pycache__/\nnode_modules/\n/build/\n.venv\n*.log\n")
        return [*found, _glob_row(root, "with a .gitignore", GlobTool(), "**/*")]


def _glob_row(root: Path, name: str, tool: GlobTool, pattern: str) -> Row:
    """Compare Glob with the loop in processor time, which other programs disturb less: Glob does its work in one thread."""
    floor_s, took_s = _in_turns(lambda: _walk(root), _call(tool, {"pattern": pattern}, root), best_cpu_s)
    label = f"Glob of {GLOB_FILES:,} files, {name}"
    return Row(label, took_s * 1000, "ms", took_s / floor_s, "os.walk of the same tree", "ratio <= 1.5")


def _single_file_rows() -> list[Row]:
    with _folder() as root:
        [path] = _write_sources(root, 1, GREP_FILE_BYTES)
        Path(path).write_text(Path(path).read_text() + "\nversion = 1\n")
        floor_s = best_s(lambda: Path(path).read_bytes(), 50)
        read_s = best_s(_call(ReadTool(), {"file_path": path}, root), 50)
        edits = [{"file_path": path, "old": f"version = {n}\n", "new": f"version = {n + 1}\n"} for n in range(1, 21)]
        waiting = iter(edits)
        replace_s = best_s(lambda: _replace(Path(path)), len(edits))
        edit_s = best_s(lambda: EditTool().run_sync(next(waiting), ToolContext(cwd=str(root))), len(edits))
        return [
            Row("Read of 20 kB", read_s * 1e6, "us", read_s / floor_s, "Path.read_bytes, no event loop or thread"),
            Row("Edit of 20 kB, durable", edit_s * 1e6, "us", edit_s / replace_s, "write, fsync, rename"),
        ]


def _replace(path: Path) -> None:
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        file.write(path.read_bytes())
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _call(tool: ReadTool | GrepTool | GlobTool, input: dict[str, object], root: Path) -> Callable[[], object]:
    return lambda: tool.run_sync(input, ToolContext(cwd=str(root)))


def _loop(paths: list[str], pattern: re.Pattern[bytes]) -> int:
    found = 0
    for path in paths:
        with open(path, "rb") as file:
            found += pattern.search(file.read()) is not None
    return found


def _walk(root: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(root))


def _in_turns(
    floor: Callable[[], object],
    work: Callable[[], object],
    best: Callable[[Callable[[], object], int], float] = best_s,
) -> tuple[float, float]:
    """The fastest time of each function, called in turns so that a busy moment affects both."""
    pairs = [(best(floor, 1), best(work, 1)) for _ in range(7)]
    return min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)


def _write_sources(root: Path, files: int, size: int) -> list[str]:
    """Write files that resemble source text; every hundredth contains the needle."""
    chance = random.Random(4)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz_", k=chance.randint(2, 11))) for _ in range(2_000)]
    paths = []
    for number in range(files):
        lines, length = [], 0
        while length < size:
            line = "    " * chance.randint(0, 3) + " ".join(chance.choices(words, k=chance.randint(0, 12)))
            lines.append(line)
            length += len(line) + 1
        if number % 100 == 50:
            lines[len(lines) // 2] = f"    return {_NEEDLE}"
        path = root / f"d{number // FILES_PER_FOLDER % 10}" / f"e{number // FILES_PER_FOLDER}" / f"f{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines)[:size] + "\n")
        paths.append(str(path))
    return paths


def _write_tree(root: Path, files: int, per_folder: int) -> None:
    endings = ("py", "md", "ts", "json", "pyc")
    for start in range(0, files, per_folder):
        number = start // per_folder
        folder = root / f"a{number % 7}" / f"b{number % 11}" / f"c{number}"
        folder.mkdir(parents=True, exist_ok=True)
        for index in range(start, min(start + per_folder, files)):
            (folder / f"name{index}_{index % 10}.{endings[index % 5]}").touch()


@contextmanager
def _folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="benchmark-files-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)
