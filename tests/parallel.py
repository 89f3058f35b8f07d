"""Spread the test modules over the machine's cores, for the command that runs all of them.

unittest asks `tests` itself (`load_tests`) only when everything is discovered: a single room or module runs
as ever. Each worker is a fork that takes the next module, runs it whole and sends what became of each test; the caller's
result hears of it as if the test had run there. One core, or a system without fork, runs everything in this process.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import select
import sys
import threading
import time
import traceback
import unittest
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from .pythons import begin_zygote

# How long what a module left behind may take to end.
PATIENCE_S = 60.0
# The process that starts commands is the package's own, one for each process, and stays (tools/shell/process.py).
HELPER = b"\0-I\0-S\0-c\0"
# These take longer than their source says, most of them because they wait for processes or clocks: none may be the last.
LONG = (
    "tests.fleet.test_processes",
    "tests.runtime.test_endings",
    "tests.servers.test_llmock",
    "tests.cli.test_main",
    "tests.runtime.test_code",
    "tests.tools_run.test_sandbox",
    "tests.runtime.test_crash",
    "tests.fleet.test_fleet",
    "tests.fleet.test_faults",
    "tests.guards.test_house",
    "tests.durability.test_stops",
    "tests.cli.test_bundle",
    "tests.cli.test_chat_terminal",
    "tests.evals.test_scorers",
    "tests.stores.test_contract",
    "tests.stores.test_faults",
    "tests.durability.test_kill",
    "tests.stores.test_lost_answers",
    "tests.stores.test_poolers",
    "tests.stores.test_sharing",
    "tests.mcp.test_peers",
    "tests.server.test_mcp_clients",
)


class Outcome(NamedTuple):
    """What a test told its result: the method, the test's name, and the text of a failure or the reason of a skip."""

    method: str
    name: str
    text: str


class ElsewhereError(Exception):
    """A failure in another process; its text is the traceback that was written there."""


class Elsewhere(unittest.TestCase):
    """A test that ran in another process."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def runTest(self) -> None:
        raise NotImplementedError

    def id(self) -> str:
        return self.name

    __str__ = id


class Notes(unittest.TestResult):
    """Writes down what tests tell it."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[Outcome] = []

    def _note(self, method: str, test: Any, text: str = "") -> None:
        self.outcomes.append(Outcome(method, str(test), text))

    def addSuccess(self, test: Any) -> None:
        self._note("addSuccess", test)

    def addFailure(self, test: Any, err: Any) -> None:
        self._note("addFailure", test, self._exc_info_to_string(err, test))  # type: ignore[attr-defined]

    def addError(self, test: Any, err: Any) -> None:
        self._note("addError", test, self._exc_info_to_string(err, test))  # type: ignore[attr-defined]

    def addSkip(self, test: Any, reason: str) -> None:
        self._note("addSkip", test, reason)

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self._note("addExpectedFailure", test, self._exc_info_to_string(err, test))  # type: ignore[attr-defined]

    def addUnexpectedSuccess(self, test: Any) -> None:
        self._note("addUnexpectedSuccess", test)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            is_failure = issubclass(err[0], test.failureException)
            (self.addFailure if is_failure else self.addError)(subtest, err)


def tell(outcome: Outcome, result: unittest.TestResult) -> None:
    """Say to `result` what a test elsewhere said to its own."""
    test = Elsewhere(outcome.name)
    failure = (ElsewhereError, ElsewhereError("\n" + outcome.text), None)
    result.startTest(test)
    match outcome.method:
        case "addSuccess" | "addUnexpectedSuccess":
            getattr(result, outcome.method)(test)
        case "addSkip":
            result.addSkip(test, outcome.text)
        case method:
            getattr(result, method)(test, failure)
    result.stopTest(test)


class Spread(unittest.TestSuite):
    """Modules of tests that run in several processes."""

    def __init__(self, modules: Iterable[unittest.TestSuite], workers: int) -> None:
        super().__init__(modules)
        self.workers = workers

    def run(self, result: unittest.TestResult, debug: bool = False) -> unittest.TestResult:
        modules = sorted(self, key=length, reverse=True)  # the long ones first, so that all end together
        gc.freeze()  # what is loaded stays: no worker looks through it for garbage
        gc.set_threshold(10_000, 20)  # and for that of the tests less often: twice the memory, a fiftieth of the time
        begin_zygote()
        workers = [Worker(modules) for _ in range(min(self.workers, len(modules)))]
        numbers = iter(range(len(modules)))
        for worker in workers:
            worker.begin(next(numbers))
        busy = list(workers)
        while busy:
            ready, _, _ = select.select(busy, (), ())
            for worker in ready:
                for outcome in worker.outcomes():
                    tell(outcome, result)
                number = None if result.shouldStop or not worker.is_alive else next(numbers, None)
                if number is None:
                    busy.remove(worker)
                else:
                    worker.begin(number)
        for worker in workers:
            worker.close()
        for worker in workers:
            worker.join()
        return result


class Worker:
    """A fork of this process that runs the modules whose numbers it is given, one after the other."""

    def __init__(self, modules: list[unittest.TestSuite]) -> None:
        jobs, self._jobs = os.pipe()
        results, outcomes = os.pipe()
        self._modules = modules
        self._number = -1
        self.is_alive = True
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._jobs)
            os.close(results)
            self._serve(jobs, outcomes)
        os.close(jobs)
        os.close(outcomes)
        self._results = os.fdopen(results, "rb")  # buffered: the outcomes of a module may be more than a pipe holds

    def _serve(self, jobs: int, outcomes: int) -> NoReturn:
        status = 1
        try:
            with os.fdopen(jobs, "rb", buffering=0) as lines, os.fdopen(outcomes, "wb") as out:
                while line := lines.readline():
                    notes = Notes()
                    module = self._modules[int(line)]
                    name = module_name(module)  # a suite forgets its tests
                    unittest.TestSuite([module]).run(notes)
                    if left := left_behind():
                        text = "it leaves behind, for the tests that run after it in this process: " + ", ".join(left)
                        notes.outcomes.append(Outcome("addError", name, text))
                    pickle.dump(notes.outcomes, out)
                    out.flush()
            status = 0
        except BaseException:  # noqa: BLE001 - the process ends here, and nobody else would say why
            traceback.print_exc()
        finally:
            os._exit(status)

    def fileno(self) -> int:
        return self._results.fileno()

    def begin(self, number: int) -> None:
        self._number = number
        os.write(self._jobs, b"%d\n" % number)

    def outcomes(self) -> list[Outcome]:
        """What became of the module's tests; they are waited for."""
        try:
            return pickle.load(self._results)
        except EOFError:
            self.is_alive = False
            name = module_name(self._modules[self._number])
            return [Outcome("addError", name, f"the process that ran {name} ended before its tests did")]

    def close(self) -> None:
        os.close(self._jobs)

    def join(self) -> None:
        """Every worker must have been closed: a later one holds the pipe of an earlier one open."""
        self._results.close()
        os.waitpid(self._pid, 0)


def left_behind() -> list[str]:
    """The threads and child processes of this process that do not end, by name; children where the system lists them."""
    until = time.monotonic() + PATIENCE_S
    threads = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    commands = []
    for number in children.read_text().split() if children.exists() else ():
        with contextlib.suppress(OSError):  # it has ended
            commands.append(Path(f"/proc/{number}/cmdline").read_bytes())
    return [
        *(f"the thread {thread.name}" for thread in threads if thread.is_alive()),
        *(f"the process {words.decode(errors='replace')!r}" for words in commands if words and HELPER not in words),
    ]


def module_name(suite: unittest.TestSuite) -> str:
    test: Any = suite
    while isinstance(test, unittest.TestSuite):
        test = next(part for part in test if part.countTestCases())
    return type(test).__module__


def length(suite: unittest.TestSuite) -> tuple[bool, int]:
    """How long a module may take, to be compared with others: by its source where nothing else is known."""
    name = module_name(suite)
    return name in LONG, os.path.getsize(sys.modules[name].__file__ or os.devnull)


def spread(found: unittest.TestSuite) -> unittest.TestSuite:
    """The modules that were found, on all cores where that can be."""
    modules = [part for part in found if part.countTestCases()]
    cores = os.cpu_count() or 1
    # Three for each core: a test that waits for a process or a clock leaves its core to another.
    return Spread(modules, 3 * cores) if cores > 1 and hasattr(os, "fork") else unittest.TestSuite(modules)
