"""Change 300 places of the code, one at a time, and check whether the tests of their rooms fail: python -m tests.mutants

Needs mutmut and coverage (the `dev` extra) and bubblewrap: a deliberately broken gate runs what its test expects to be
denied, so commands can write only to a copy of the project, reach no network and use no privilege of root. Results are kept
in the state folder; an interrupted run continues there, and --again tests the survivors with the current tests.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .draw import PACKAGE, ROOMS, ROOT, Mutant, draw, functions_by_line
from .equivalent import EQUIVALENT

COUNT, SEED = 300, 31
MIN_KILLED, MAX_EQUIVALENT = 0.90, 0.05
MAP_SECONDS = 600
# A mutant that makes the tests run much longer counts as noticed.
SLOWER = 5
MIN_SECONDS = 60
COPIED = (
    "openagentic_sdk",
    "tests",
    "fixtures",
    "examples",
    "docs",
    "benchmarks",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
)


class Jail:
    """A copy of the project in which commands run, without a network and without a way to write elsewhere."""

    def __init__(self, folder: Path) -> None:
        self._copy = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in COPIED:
            copy: Callable[..., Any] = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
            copy(ROOT / name, folder / name)

    def change(self, file: str, code: str) -> Callable[[], None]:
        """Write other code into a file of the package; return a function that restores the original."""
        path = self._copy / PACKAGE / file
        former = path.read_text()
        compiled = list((path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"))
        for old in compiled:
            old.unlink()
        path.write_text(code)

        def put_back() -> None:
            for new in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
                new.unlink()
            path.write_text(former)

        return put_back

    def ask(self, command: str, what: str, seconds: float) -> dict[str, Any]:
        """The output of `inside`, or the signal or exit code that ended it."""
        python = [os.path.realpath(sys.prefix), sys.prefix]
        jail = [
            "bwrap",
            "--ro-bind",
            "/",
            "/",
            "--dev",
            "/dev",
            "--proc",
            "/proc",
            "--ro-bind",
            "/proc/sys",
            "/proc/sys",
        ]
        jail += ["--tmpfs", "/tmp"]
        jail += [word for folder in python for word in ("--ro-bind", folder, folder)]
        jail += ["--bind", str(self._copy), "/tmp/copy", "--chdir", "/tmp/copy"]
        # No privileges of root either: a mutant of the permissions once let a test set the machine's clock.
        jail += ["--unshare-all", "--cap-drop", "ALL", "--die-with-parent", "--new-session"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENAGENTIC")}
        limited = [
            "nice",
            "timeout",
            "--kill-after=1",
            str(seconds),
            *jail,
            "prlimit",
            "--as=8589934592",
            "--fsize=1073741824",
        ]
        done = subprocess.run(
            [*limited, sys.executable, "-m", "tests.mutants.inside", command, what],
            env=environment | {"OPENAGENTIC_TEST_FULL": "1", "TMPDIR": "/dev/shm", "HOME": "/tmp"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode in (124, 137):
            return {"noticed": "timeout"}
        try:
            said = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            return {"noticed": f"exit code {done.returncode}", "how": done.stdout.decode(errors="replace")[-2000:]}
        assert isinstance(said, dict)
        return said

    def tell(self, ids: list[str]) -> str:
        (self._copy / "ids.json").write_text(json.dumps(ids))
        return "ids.json"


class Map:
    """Which test runs which line of the package, by the line's text, which survives changes elsewhere in a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.seconds: dict[str, float] = {}
        self._by_line: dict[tuple[str, str, str], set[str]] = {}
        self._by_function: dict[tuple[str, str], set[str]] = {}
        self._sources: dict[str, tuple[list[str], dict[int, str]]] = {}

    def read(self, modules: list[str], jails: list[Jail], say: Callable[[str], None]) -> None:
        """Run the tests that are not mapped in their current form."""
        waiting = [module for module in modules if not self._place(module).exists()]
        free = list(jails)

        def one(module: str) -> None:
            jail = free.pop()
            began = time.monotonic()
            said = jail.ask("map", module, MAP_SECONDS)
            free.append(jail)
            if "lines" in said:
                said["lines"] = {test: self._named(files) for test, files in said["lines"].items()}
                self._place(module).write_text(json.dumps(said))
            trouble = said.get("noticed") or f"{len(said['bad'])} not green"
            say(f"map {module}: {time.monotonic() - began:.0f} s, {trouble}")

        with ThreadPoolExecutor(len(jails)) as pool:
            list(pool.map(one, waiting))
        for module in modules:
            if self._place(module).exists():
                self._add(json.loads(self._place(module).read_text()))

    def _place(self, module: str) -> Path:
        digest = hashlib.sha256((ROOT / (module.replace(".", "/") + ".py")).read_bytes()).hexdigest()[:12]
        return self._folder / f"{module}.{digest}.json"

    def _named(self, files: dict[str, list[int]]) -> list[tuple[str, str, str]]:
        found = set[tuple[str, str, str]]()
        for file, numbers in files.items():
            lines, functions = self._source(file)
            for number in numbers:
                if number in functions:
                    found.add((file, functions[number], lines[number - 1].strip()))
        return sorted(found)

    def _source(self, file: str) -> tuple[list[str], dict[int, str]]:
        if file not in self._sources:
            code = (ROOT / PACKAGE / file).read_text()
            self._sources[file] = (code.split("\n"), functions_by_line(code))
        return self._sources[file]

    def _add(self, mapped: dict[str, Any]) -> None:
        self.seconds.update(mapped["seconds"])
        for test, places in mapped["lines"].items():
            tests = [test] if test else list(mapped["seconds"])  # set-up shared by a whole class or module
            for file, function, text in places:
                self._by_line.setdefault((file, function, text), set()).update(tests)
                self._by_function.setdefault((file, function), set()).update(tests)

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests of the mutant's room, class by class, the fastest first."""
        lines, _ = self._source(mutant.file)
        found = set[str]()
        for number in range(mutant.line, mutant.last_line + 1):
            found |= self._by_line.get((mutant.file, mutant.function, lines[number - 1].strip()), set())
        found = found or self._by_function.get((mutant.file, mutant.function), set())
        rooms = tuple(f"tests.{folder}." for folder in ROOMS[mutant.room].tests)
        classes: dict[str, list[str]] = {}
        for test in sorted(found, key=lambda test: self.seconds[test]):
            if test.startswith(rooms):
                classes.setdefault(test.rpartition(".")[0], []).append(test)
        return [test for tests in sorted(classes.values(), key=self._mean_seconds) for test in tests]

    def _mean_seconds(self, tests: list[str]) -> float:
        return sum(self.seconds[test] for test in tests) / len(tests)


class Run:
    """The mutants of one state folder, and their outcomes."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._state: Path = options.state
        self._verdicts_file = self._state / "verdicts.jsonl"
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self.verdicts: dict[str, dict[str, Any]] = {}
        if self._verdicts_file.exists():
            for line in self._verdicts_file.read_text().splitlines():
                verdict = json.loads(line)
                self.verdicts[verdict["key"]] = verdict
        self.mutants, self.total = draw(options.count, options.seed, options.rooms)

    def say(self, text: str) -> None:
        with self._lock:
            print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    def is_waiting(self, mutant: Mutant) -> bool:
        verdict = self.verdicts.get(mutant.key)
        return verdict is None or (verdict["noticed"] is None and self._options.again and not is_equivalent(mutant))

    def play(self) -> None:
        waiting = [mutant for mutant in self.mutants if self.is_waiting(mutant)]
        self.say(f"{len(self.mutants)} of {self.total} mutants drawn, {len(waiting)} to run")
        if not waiting:
            return
        jails = [Jail(self._state / f"copy-{number}") for number in range(self._options.workers)]
        folder = self._state / "map"
        folder.mkdir(exist_ok=True)
        self._map = Map(folder)
        self._map.read(test_modules(self._options.rooms), jails, self.say)
        with ThreadPoolExecutor(len(jails)) as pool:
            list(pool.map(lambda mutant: self._judge(mutant, jails), waiting))

    def _judge(self, mutant: Mutant, jails: list[Jail]) -> None:
        tests = self._map.tests_of(mutant)
        usual_s = sum(self._map.seconds[test] for test in tests)
        with self._lock:
            jail = jails.pop()
        began = time.monotonic()
        put_back = jail.change(mutant.file, mutant.code)
        said = jail.ask("run", jail.tell(tests), MIN_SECONDS + SLOWER * usual_s) if tests else {"noticed": None}
        put_back()
        seconds = time.monotonic() - began
        verdict = {"key": mutant.key, "tests": len(tests), "seconds": round(seconds, 1), "how": None, **said}
        with self._lock:
            jails.append(jail)
            self.verdicts[mutant.key] = verdict
            with self._verdicts_file.open("a") as file:
                file.write(json.dumps(verdict) + "\n")
            left = sum(map(self.is_waiting, self.mutants)) if not self._options.again else -1
        name = f"{mutant.key} {mutant.file}:{mutant.line} {mutant.function}"
        self.say(f"{left} left, {seconds:.0f} s, {len(tests)} tests: {verdict['noticed'] or 'SURVIVED'} {name}")

    def report(self) -> bool:
        """Print the figures by room, and each surviving mutant; return whether the bars are met."""
        figures: dict[str, Counter[str]] = {room: Counter() for room in self._options.rooms}
        for mutant in self.mutants:
            noticed = self.verdicts[mutant.key]["noticed"]
            fate = "killed" if noticed else "equivalent" if is_equivalent(mutant) else "surviving"
            figures[mutant.room][fate] += 1
            if fate == "surviving":
                print(
                    f"\n{mutant.key} {mutant.file}:{mutant.line} {mutant.function}\n  - {mutant.before}\n  + {mutant.after}"
                )
        print()
        for room, counted in figures.items():
            print(
                f"{room}: {counted.total()} mutants, {', '.join(f'{n} {fate}' for fate, n in sorted(counted.items()))}"
            )
        whole = sum(figures.values(), Counter())
        killed, equivalent = whole["killed"], whole["equivalent"]
        share = killed / max(whole.total() - equivalent, 1)
        seconds = time.monotonic() - self._began
        print(
            f"all: {whole.total()} mutants of {self.total} (seed {self._options.seed}), {killed} killed, {equivalent} "
            f"equivalent, {whole['surviving']} surviving: {share:.1%} of those that differ, {seconds:.0f} s"
        )
        return share >= MIN_KILLED and equivalent <= MAX_EQUIVALENT * whole.total()


def is_equivalent(mutant: Mutant) -> bool:
    return (mutant.file, mutant.function, mutant.before, mutant.after) in EQUIVALENT


def test_modules(rooms: list[str]) -> list[str]:
    """The test modules in all folders that the rooms name."""
    folders = dict.fromkeys(folder for room in rooms for folder in ROOMS[room].tests)
    return [
        f"tests.{folder}.{path.stem}"
        for folder in folders
        for path in sorted((ROOT / "tests" / folder).glob("test_*.py"))
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--state", type=Path, help="folder of what is done; a temporary one unless told")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=list(ROOMS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="run what survived again")
    options = parser.parse_args()
    if not shutil.which("bwrap"):
        print("bubblewrap is not installed: without it a mutant of the permissions could change this machine")
        return 2
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        options.state = (options.state or Path(place)).resolve()
        options.state.mkdir(parents=True, exist_ok=True)
        run = Run(options)
        run.play()
        return 0 if run.report() else 1


if __name__ == "__main__":
    raise SystemExit(main())
