"""Run tests in a copy of the project: report the lines that each of them runs, or whether they fail in a changed copy.

`map MODULE` runs one module's tests with coverage; `run` runs the tests whose ids are in a file, in that order, up to the
first failure. Either prints one line of JSON as the last line of its output.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
import unittest
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent.parent.parent / "openagentic_sdk"


def package_caches() -> list[functools._lru_cache_wrapper[Any]]:
    """The caches of the package's functions, except those without parameters: these act once in a process."""
    names = [name for name in sys.modules if name.partition(".")[0] == PACKAGE.name]
    values = {id(value): value for name in names for value in vars(sys.modules[name]).values()}
    caches = [value for value in values.values() if isinstance(value, functools._lru_cache_wrapper)]
    return [cached for cached in caches if cached.__wrapped__.__code__.co_argcount]


class _Mapped(unittest.TestResult):
    """Switches the coverage's context with each test, and times it.

    The package's caches are emptied before each test: lines whose result an earlier test had cached would otherwise
    not be mapped to it.
    """

    def __init__(self, coverage: Any) -> None:
        super().__init__()
        self._coverage = coverage
        self._began = 0.0
        self.seconds: dict[str, float] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        for cached in package_caches():
            cached.cache_clear()
        self._coverage.switch_context(test.id())
        self._began = time.monotonic()

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        self.seconds[test.id()] = time.monotonic() - self._began
        self._coverage.switch_context("")


def map_module(name: str) -> dict[str, Any]:
    import coverage

    measured = coverage.Coverage(data_file=None, include=[f"{PACKAGE}/*"], config_file=False)
    measured.start()
    result = _Mapped(measured)
    unittest.defaultTestLoader.loadTestsFromName(name).run(result)
    measured.stop()
    data = measured.get_data()
    failed = [*result.failures, *result.errors, *result.skipped, *result.expectedFailures]
    bad = {getattr(test, "test_case", test).id() for test, _ in failed}  # for a subtest, the whole test
    lines: dict[str, dict[str, list[int]]] = {}
    for file in data.measured_files():
        for line, tests in data.contexts_by_lineno(file).items():
            for test in tests:
                lines.setdefault(test, {}).setdefault(os.path.relpath(file, PACKAGE), []).append(line)
    good = {test: seconds for test, seconds in result.seconds.items() if test not in bad}
    return {"seconds": good, "bad": sorted(bad), "lines": {test: lines.get(test, {}) for test in ("", *good)}}


def run_tests(ids: list[str]) -> dict[str, Any]:
    result = unittest.TestResult()
    result.failfast = True
    unittest.defaultTestLoader.loadTestsFromNames(ids).run(result)
    found = [*result.failures, *result.errors]
    return {
        "ran": result.testsRun,
        "noticed": found[0][0].id() if found else None,
        "how": found[0][1] if found else None,
    }


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    command, what = sys.argv[1:]
    said = map_module(what) if command == "map" else run_tests(json.loads(Path(what).read_text()))
    print("\n" + json.dumps(said), flush=True)
    os._exit(0)  # processes that a mutant left running
