"""Spread the test modules over the machine's cores, for the command that runs all of them.

unittest asks `tests` itself (`load_tests`) only when everything is discovered: a single room or module runs
as ever. Each worker is a fork that takes the next module, runs it whole and sends what became of each test; the caller's
result hears of it as if the test had run there. A test that does not end is ended, by name and with its stacks, and another
worker takes the next module. A system without fork runs everything in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import mmap
import os
import pickle
import select
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback
import unittest
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

from .pythons import begin_zygote
from .size import LARGE
from .waiting import until

# How long what a module left behind may take to end.
PATIENCE_S = 60.0
# How long one test may take, and what it sets up: several times what the slowest takes on a busy machine.
TEST_LIMIT_S = 4 * 3600.0 if LARGE else 600.0
# Tells a worker to write its stacks. Nothing else here uses it.
STACKS_SIGNAL = getattr(signal, "SIGUSR2", 0)
STACKS_END = b"(end of stacks)\n"
# The process that starts commands is the package's own, one for each process, and stays (tools/shell/process.py).
HELPER = b"\0-I\0-S\0-c\0"
# These take longer than their source says, many because they wait for processes or clocks: they begin first, in this order.
LONG = (
    "tests.guards.test_parallel",
    "tests.guards.test_rooms_left_out",
    "tests.fleet.test_processes",
    "tests.fleet.test_workspace",
    "tests.schemas.test_schemas",
    "tests.stores.test_garbage",
    "tests.permissions.test_disk_fuzz",
    "tests.tools_run.test_file_policy",
    "tests.providers.test_cut_streams",
    "tests.acp.test_turns",
    "tests.security.test_authority",
    "tests.durability.test_sabotage",
    "tests.permissions.test_hindsight",
    "tests.guards.test_docs",
    "tests.tools_run.test_bash",
    "tests.cli.test_chat",
    "tests.providers.test_structured_output",
    "tests.skills.test_text_commands",
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
    """Writes down what tests tell it and how many seconds each took, and tells `step` what runs now."""

    def __init__(self, step: Callable[[str], None]) -> None:
        super().__init__()
        self.outcomes: list[Outcome] = []
        self.durations: list[tuple[float, str]] = []
        self._step = step
        self._began = time.monotonic()

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self._began = time.monotonic()
        self._step(test.id())

    def stopTest(self, test: Any) -> None:
        super().stopTest(test)
        self.durations.append((time.monotonic() - self._began, test.id()))
        self._began = time.monotonic()  # some versions stop what a class skips without starting it
        self._step(f"what follows {test.id()}")

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

    def __init__(self, modules: Iterable[unittest.TestSuite], workers: int, limit_s: float = TEST_LIMIT_S) -> None:
        super().__init__(modules)
        self.workers, self.limit_s = workers, limit_s

    def run(self, result: unittest.TestResult, debug: bool = False) -> unittest.TestResult:
        modules = sorted(self, key=length, reverse=True)  # the long ones first, so that all end together
        gc.freeze()  # what is loaded stays: no worker looks through it for garbage
        gc.set_threshold(10_000, 20)  # and for that of the tests less often: twice the memory, a fiftieth of the time
        begin_zygote()
        numbers = iter(range(len(modules)))
        workers = [Worker(modules, self.limit_s) for _ in range(min(self.workers, len(modules)))]
        for worker in workers:
            worker.begin(next(numbers))
        busy = list(workers)
        while busy:
            ready, _, _ = select.select(busy, (), (), 1.0)
            for worker in [worker for worker in busy if worker in ready or worker.is_overdue()]:
                for outcome in worker.outcomes() if worker in ready else worker.end_overdue():
                    tell(outcome, result)
                busy.remove(worker)
                number = None if result.shouldStop else next(numbers, None)
                if number is not None and not worker.is_alive:
                    workers.append(worker := Worker(modules, self.limit_s))
                if number is not None:
                    worker.begin(number)
                    busy.append(worker)
        for worker in workers:
            worker.close()
        for worker in workers:
            for outcome in worker.join():
                tell(outcome, result)
        tell_slowest([row for worker in workers for row in worker.durations])
        return result


class Worker:
    """A fork of this process that runs the modules whose numbers it is given, one after the other."""

    def __init__(self, modules: list[unittest.TestSuite], limit_s: float) -> None:
        jobs, self._jobs = os.pipe()
        results, outcomes = os.pipe()
        self._modules, self._limit_s = modules, limit_s
        self._number = -1
        self._step = mmap.mmap(-1, 4096)  # shared with the fork: when what runs now began, and its name
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process runs
        self.durations: list[tuple[float, str]] = []
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
            write_stacks_when_told(self._stacks)
            # Late: a test replaces the locks of the package before any module of it is loaded.
            from openagentic_sdk.tools.shell.process import HelperHold

            HelperHold()  # never released: the helper would end with each run, and the next one start another
            with os.fdopen(jobs, "rb", buffering=0) as lines, os.fdopen(outcomes, "wb") as out:
                while line := lines.readline():
                    notes = Notes(self._note_step)
                    module = self._modules[int(line)]
                    name = module_name(module)  # a suite forgets its tests
                    unittest.TestSuite([module]).run(notes)
                    if left := left_behind():
                        text = "it leaves behind, for the tests that run after it in this process: " + ", ".join(left)
                        notes.outcomes.append(Outcome("addError", name, text))
                    pickle.dump((notes.outcomes, notes.durations), out)
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
        self._note_step(module_name(self._modules[number]))
        os.write(self._jobs, b"%d\n" % number)

    def outcomes(self) -> list[Outcome]:
        """What became of the module's tests; they are waited for."""
        try:
            outcomes, durations = pickle.load(self._results)
        except EOFError:
            self.is_alive = False
            return [self._lost("the process that ran it ended")]
        self.durations += durations
        return outcomes  # type: ignore[no-any-return]

    def _note_step(self, name: str) -> None:
        text = name.encode()[:4000]
        self._step[: 12 + len(text)] = struct.pack("=dI", time.monotonic(), len(text)) + text

    def _read_step(self) -> tuple[float, str]:
        began, size = struct.unpack_from("=dI", self._step)
        return began, self._step[12 : 12 + size].decode(errors="replace")

    def is_overdue(self) -> bool:
        return time.monotonic() - self._read_step()[0] > self._limit_s

    def end_overdue(self) -> list[Outcome]:
        """End the process, whose test takes too long, and all that it started; its stacks are the failure's text."""
        self.is_alive = False
        return [self._lost(f"it did not end within {self._limit_s:g} s and was ended. {self._end()}")]

    def _lost(self, reason: str) -> Outcome:
        rest = f"The outcomes of the other tests of {module_name(self._modules[self._number])} are lost."
        return Outcome("addError", self._read_step()[1], f"{reason}\n{rest}")

    def _end(self) -> str:
        """Kill the process and those that it started. The stacks of its threads and tasks, and the commands of those."""
        stacks = self._ask_for_stacks()
        started = descendants(self._pid)
        commands = [text for number in started if (text := command(number))]
        for number in (self._pid, *started):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        return f"Its stacks:\n{stacks}\nThe processes below it:\n" + ("\n".join(commands) or "none")

    def _ask_for_stacks(self) -> str:
        def written() -> bytes:
            return os.pread(self._stacks.fileno(), 1 << 20, 0)

        os.kill(self._pid, STACKS_SIGNAL)
        with contextlib.suppress(AssertionError):  # a main thread that runs no Python shows no tasks, only its stack
            until(lambda: STACKS_END in written(), "the tasks are shown", 10)
        lines = written().decode(errors="replace").splitlines()
        return "\n".join(line for line in lines if "/unittest/" not in line and __file__ not in line)

    def close(self) -> None:
        os.close(self._jobs)

    def join(self) -> list[Outcome]:
        """Every worker must have been closed: a later one holds the pipe of an earlier one open."""
        self._results.close()
        outcomes = []
        try:
            until(lambda: os.waitpid(self._pid, os.WNOHANG)[0], "the worker ends", PATIENCE_S)
        except AssertionError:
            text = f"the process that ran all tests of this module did not end after them. {self._end()}"
            outcomes = [Outcome("addError", module_name(self._modules[self._number]), text)]
            os.waitpid(self._pid, 0)
        self._stacks.close()
        self._step.close()
        return outcomes


def write_stacks_when_told(file: IO[bytes]) -> None:
    """From now on the signal makes this process write the stacks of its threads, then those of its tasks."""

    def write_tasks(*_: Any) -> None:
        tasks = [item for item in gc.get_objects() if issubclass(type(item), asyncio.Task) and not item.done()]
        lines = [line for task in tasks for line in task_stack(task)]
        os.write(file.fileno(), "\n".join([*lines, ""]).encode() + STACKS_END)

    signal.signal(STACKS_SIGNAL, write_tasks)
    faulthandler.register(STACKS_SIGNAL, file, all_threads=True, chain=True)


def task_stack(task: asyncio.Task[Any]) -> list[str]:
    """What a task awaits, outermost first."""
    lines = [f"Task {task.get_name()!r}:"]
    at: Any = task.get_coro()
    while True:
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(at, f"{kind}_frame")), None)
        frame = getattr(at, f"{kind}_frame") if kind else None
        if frame is None:
            return [*lines, f"  awaits {at!r}"]
        lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_qualname}')
        at = getattr(at, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")


def descendants(pid: int) -> list[int]:
    """The processes below this one, where the system lists them."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has ended
            for number in map(int, children.read_text().split()):
                found += (number, *descendants(number))
    return found


def command(pid: int) -> str:
    """A process's number and command; empty once it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return f"{pid}: {words[:500].replace(bytes(1), b' ').decode(errors='replace')}" if words else ""


def tell_slowest(durations: list[tuple[float, str]]) -> None:
    """Write the slowest tests, as many as a variable says, one in a line."""
    slowest = sorted(durations, reverse=True)[: int(os.environ.get("OPENAGENTIC_TEST_SLOWEST", "0"))]
    lines = [f"slow {took_s:7.1f} s  {name}" for took_s, name in slowest]
    if lines:  # behind the line of dots, where a search for lines would miss the first
        print("", *lines, sep="\n", file=sys.stderr, flush=True)


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


def length(suite: unittest.TestSuite) -> tuple[int, int]:
    """How long a module may take, to be compared with others: by its source where nothing else is known."""
    name = module_name(suite)
    return -LONG.index(name) if name in LONG else -len(LONG), os.path.getsize(sys.modules[name].__file__ or os.devnull)


def spread(found: unittest.TestSuite) -> unittest.TestSuite:
    """The modules that were found, on all cores where that can be."""
    modules = [part for part in found if part.countTestCases()]
    # Three for each core: a test that waits for a process or a clock leaves its core to another.
    return Spread(modules, 3 * (os.cpu_count() or 1)) if hasattr(os, "fork") else unittest.TestSuite(modules)
