"""Spread the test modules over several processes when the whole suite is discovered.

unittest calls `load_tests` of `tests` only for full discovery: a single room or module runs as usual. Each worker is a fork
that takes the next module, runs it whole and sends its outcomes back; they are reported to the caller's TestResult as if
the tests had run in this process. A test that exceeds its time limit is reported by name with its stacks, its worker is
killed, and a new worker takes the next module. On a system without fork everything runs in this process.
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
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback
import unittest
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

from .pythons import begin_zygote
from .size import LARGE
from .waiting import until

# How long threads and processes that outlive a module may take to end.
PATIENCE_S = 120.0
# How long one test or one setUpClass may take: several times as long as the slowest needs on a busy machine.
TEST_LIMIT_S = 4 * 3600.0 if LARGE else 600.0
# How many modules with failures run again, alone, once all others have ended. A module that then passes is reported as
# passed, and its failure as flaky (as `--rerun` of CPython's regrtest does). 0 unless the caller sets it.
RERUNS = int(os.environ.get("OPENAGENTIC_TEST_RERUNS", "0"))
# Asks a worker to write its stacks. Nothing else here uses this signal.
STACKS_SIGNAL = getattr(signal, "SIGUSR2", 0)
STACKS_END = b"(end of stacks)\n"
# The package's helper that starts commands: one per process, which outlives each test (tools/shell/process.py).
HELPER = b"\0-I\0-S\0-c\0"
# Modules that take longer than their size suggests, mostly because they wait for processes or clocks. They start in this
# order: the longest first, as measured in the gate's size on two cores. A long one that starts late runs alone at the end.
LONG = (
    "tests.fleet.test_faults",
    "tests.stores.test_contract",
    "tests.fleet.test_processes",
    "tests.guards.test_rooms_left_out",
    "tests.stores.test_lost_answers",
    "tests.stores.test_poolers",
    "tests.permissions.test_findings",
    "tests.viewer.test_live_page",
    "tests.fleet.test_fleet",
    "tests.providers.test_public_tools",
    "tests.stores.test_faults",
    "tests.viewer.test_view",
    "tests.stores.test_versions",
    "tests.stores.test_sharing",
    "tests.guards.test_parallel",
    "tests.guards.test_docs",
    "tests.labels.test_suite",
    "tests.schemas.test_schemas",
    "tests.guards.test_types",
    "tests.server.test_clients",
    "tests.fleet.test_procrastinate",
    "tests.server.test_servers",
    "tests.cli.test_bundle",
    "tests.mcp.test_peers",
    "tests.server.test_schemathesis",
    "tests.acp.test_process",
    "tests.parts.test_part_contract",
    "tests.cli.test_main",
    "tests.guards.test_readme",
    "tests.servers.test_llmock",
    "tests.server.test_mcp_clients",
    "tests.runtime.test_code",
    "tests.schemas.test_suite",
    "tests.server.test_rolling",
    "tests.runtime.test_endings",
    "tests.permissions.test_disk_fuzz",
    "tests.stores.test_system_errors",
    "tests.stores.test_servers",
    "tests.security.test_authority",
    "tests.tools_run.test_git_config",
    "tests.simulation.test_lua",
    "tests.stores.test_sums",
    "tests.stores.test_redis_index",
    "tests.server.test_left",
    "tests.acp.test_turns",
    "tests.fleet.test_rules",
    "tests.runtime.test_subagents_resume",
    "tests.stores.test_postgres_index",
    "tests.fleet.test_workspace",
    "tests.parts.test_trials",
    "tests.tools_run.test_bash",
    "tests.mutants.test_mutants",
    "tests.stores.test_file_index",
    "tests.cli.test_chat",
    "tests.record.test_erasing",
    "tests.providers.test_cut_streams",
    "tests.mcp.test_hostile_servers",
    "tests.tools_run.test_sandbox",
    "tests.testing.test_crash",
    "tests.stores.test_standby",
    "tests.runtime.test_context",
    "tests.durability.test_store",
    "tests.server.test_streams",
    "tests.guards.test_house",
    "tests.tools_run.test_file_policy",
    "tests.security.test_redaction",
    "tests.parts.test_page",
    "tests.labels.test_plan_values",
    "tests.permissions.test_past_deny_rules",
    "tests.skills.test_text_commands",
    "tests.permissions.test_under_strace",
    "tests.tools_run.test_at_the_same_time",
    "tests.cli.test_chat_terminal",
    "tests.fleet.test_schedulers",
)
# These take minutes in the large size, and start first there.
LONG_IF_LARGE = (
    "tests.permissions.test_disk_fuzz",
    "tests.servers.test_llama_server",
    "tests.schemas.test_suite",
    "tests.durability.test_power",
    "tests.mcp.test_public_servers",
    "tests.server.test_rolling",
    "tests.fleet.test_schedulers",
    "tests.durability.test_kill",
    "tests.durability.test_tail",
    "tests.providers.test_public_tools",
    "tests.stores.test_lost_answers",
    "tests.workflows.test_two_workers",
    "tests.durability.test_sabotage",
    "tests.simulation.test_simulation",
    "tests.permissions.test_shell_against_bash",
    "tests.fleet.test_protocol",
    "tests.runtime.test_context",
)
ORDER = (*LONG_IF_LARGE, *LONG) if LARGE else LONG


class Outcome(NamedTuple):
    """One call of a TestResult method: the method's name, the test's name, and the failure text or skip reason."""

    method: str
    name: str
    text: str

    @property
    def is_bad(self) -> bool:
        return self.method in ("addFailure", "addError", "addUnexpectedSuccess")


class ElsewhereError(Exception):
    """A failure in another process; its text is the traceback formatted there."""


class Elsewhere(unittest.TestCase):
    """A stand-in for a test that ran in another process."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def runTest(self) -> None:
        raise NotImplementedError

    def id(self) -> str:
        return self.name

    __str__ = id


class Notes(unittest.TestResult):
    """A TestResult that records each outcome and duration, and passes the name of the current test to `step`."""

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
        self._began = time.monotonic()  # some versions call stopTest without startTest for skipped classes
        self._step(f"after {test.id()}")

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


def report_outcomes(outcomes: Iterable[Outcome], result: unittest.TestResult) -> None:
    """Report outcomes from another process to `result`."""
    for outcome in outcomes:
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


@contextlib.contextmanager
def temporary_folder() -> Iterator[None]:
    """Use one folder for all temporary files, and remove it: the processes that tests kill leave theirs behind."""
    outer, folder = os.environ.get("TMPDIR"), tempfile.mkdtemp(prefix="t-")
    os.chmod(folder, 0o711)  # servers and tests that run as other users reach their own folders in it
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    try:
        yield
    finally:
        tempfile.tempdir = None
        if outer is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = outer
        shutil.rmtree(folder, ignore_errors=True)


class Spread(unittest.TestSuite):
    """A suite of test modules that run in several processes."""

    def __init__(
        self,
        modules: Iterable[unittest.TestSuite],
        workers: int,
        limit_s: float = TEST_LIMIT_S,
        reruns: int = RERUNS,
    ) -> None:
        super().__init__(modules)
        self.workers, self.limit_s, self.reruns = workers, limit_s, reruns

    def run(self, result: unittest.TestResult, debug: bool = False) -> unittest.TestResult:
        modules = sorted(self, key=length, reverse=True)  # the longest first, so that all workers finish together
        gc.freeze()  # exempt everything loaded so far from garbage collection in the workers
        gc.set_threshold(10_000, 20)  # and collect less often: twice the memory, a fiftieth of the time
        begin_zygote()
        failed: dict[int, list[Outcome]] = {}  # by module, to be run again

        def take(number: int, outcomes: list[Outcome]) -> None:
            if len(failed) < self.reruns and any(outcome.is_bad for outcome in outcomes):
                failed[number] = outcomes
            else:
                report_outcomes(outcomes, result)

        def take_again(number: int, outcomes: list[Outcome]) -> None:
            if any(outcome.is_bad for outcome in outcomes):
                return report_outcomes(failed[number], result)
            print_flaky(failed[number])
            report_outcomes(outcomes, result)

        with temporary_folder():
            self._spread(modules, range(len(modules)), self.workers, result, take)
            if failed and not result.shouldStop:
                self._spread(modules, list(failed), 1, result, take_again)
        return result

    def _spread(
        self,
        modules: list[unittest.TestSuite],
        order: Sequence[int],
        count: int,
        result: unittest.TestResult,
        take: Callable[[int, list[Outcome]], None],
    ) -> None:
        """Run the modules of the numbers in `order` in `count` workers; pass the outcomes of each to `take`."""
        numbers = iter(order)
        workers = [Worker(modules, self.limit_s) for _ in range(min(count, len(order)))]
        for worker in workers:
            worker.begin(next(numbers))
        busy = list(workers)
        while busy:
            ready, _, _ = select.select(busy, (), (), 1.0)
            for worker in [worker for worker in busy if worker in ready or worker.is_overdue()]:
                take(worker.number, worker.outcomes() if worker in ready else worker.end_overdue())
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
            report_outcomes(worker.join(), result)
        print_slowest([row for worker in workers for row in worker.durations])


class Worker:
    """A fork of this process that runs the modules it is assigned by number, one after another."""

    def __init__(self, modules: list[unittest.TestSuite], limit_s: float) -> None:
        jobs, self._jobs = os.pipe()
        results, outcomes = os.pipe()
        self._modules, self._limit_s = modules, limit_s
        self.number = -1
        self._step = mmap.mmap(-1, 4096)  # shared with the fork: the start time and name of the current step
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115 - open for the lifetime of the worker
        self.durations: list[tuple[float, str]] = []
        self.is_alive = True
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._jobs)
            os.close(results)
            self._serve(jobs, outcomes)
        os.close(jobs)
        os.close(outcomes)
        self._results = os.fdopen(results, "rb")  # buffered: the outcomes of a module may exceed the capacity of a pipe

    def _serve(self, jobs: int, outcomes: int) -> NoReturn:
        status = 1
        try:
            write_stacks_on_signal(self._stacks)
            # Imported late: one test replaces the package's locks, which requires that no module of it is loaded yet.
            from openagentic_sdk.tools.shell.process import HelperHold

            HelperHold()  # never released: otherwise the helper would end with each run and the next run start another
            with os.fdopen(jobs, "rb", buffering=0) as lines, os.fdopen(outcomes, "wb") as out:
                while line := lines.readline():
                    notes = Notes(self._note_step)
                    module = self._modules[int(line)]
                    name = module_name(module)  # read first: a suite drops its tests once they have run
                    unittest.TestSuite([module]).run(notes)
                    if names := leftovers():
                        text = "still running, beside the next tests in this process: " + ", ".join(names)
                        notes.outcomes.append(Outcome("addError", name, text))
                    pickle.dump((notes.outcomes, notes.durations), out)
                    out.flush()
            status = 0
        except BaseException:  # noqa: BLE001 - the process ends here, and nothing else would report the cause
            traceback.print_exc()
        finally:
            os._exit(status)

    def fileno(self) -> int:
        return self._results.fileno()

    def begin(self, number: int) -> None:
        self.number = number
        self._note_step(module_name(self._modules[number]))
        os.write(self._jobs, b"%d\n" % number)

    def outcomes(self) -> list[Outcome]:
        """Wait for the outcomes of the current module and return them."""
        try:
            outcomes, durations = pickle.load(self._results)
        except EOFError:
            self.is_alive = False
            return [self._lost("its process exited")]
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
        """Kill an overdue worker and its descendants; return an error with its stacks."""
        self.is_alive = False
        return [self._lost(f"killed: it did not end within {self._limit_s:g} s. {self._end()}")]

    def _lost(self, reason: str) -> Outcome:
        rest = f"The outcomes of the other tests of {module_name(self._modules[self.number])} are lost."
        return Outcome("addError", self._read_step()[1], f"{reason}\n{rest}")

    def _end(self) -> str:
        """Kill the process and its descendants; return the stacks of its threads and tasks, and the commands below it."""
        stacks = self._ask_for_stacks()
        started = descendants(self._pid)
        commands = [text for number in started if (text := command(number))]
        for number in (self._pid, *started):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        return f"Its stacks:\n{stacks}\nIts child processes:\n" + ("\n".join(commands) or "none")

    def _ask_for_stacks(self) -> str:
        def stacks() -> bytes:
            return os.pread(self._stacks.fileno(), 1 << 20, 0)

        os.kill(self._pid, STACKS_SIGNAL)
        with contextlib.suppress(AssertionError):  # a main thread blocked outside Python shows a stack but no tasks
            until(lambda: STACKS_END in stacks(), "the tasks are written", PATIENCE_S)
        lines = stacks().decode(errors="replace").splitlines()
        return "\n".join(line for line in lines if "/unittest/" not in line and __file__ not in line)

    def close(self) -> None:
        os.close(self._jobs)

    def join(self) -> list[Outcome]:
        """Wait for the process to exit; return an error if it does not.

        Close every worker first: later workers inherit the pipes of earlier ones and hold them open.
        """
        self._results.close()
        outcomes = []
        try:
            until(lambda: os.waitpid(self._pid, os.WNOHANG)[0], "the worker exits", PATIENCE_S)
        except AssertionError:
            text = f"the worker did not exit after the tests of this module. {self._end()}"
            outcomes = [Outcome("addError", module_name(self._modules[self.number]), text)]
            os.waitpid(self._pid, 0)
        self._stacks.close()
        self._step.close()
        return outcomes


def write_stacks_on_signal(file: IO[bytes]) -> None:
    """Install a signal handler that writes the stacks of all threads, then those of all tasks, to `file`."""

    def write_tasks(*_: Any) -> None:
        tasks = [item for item in gc.get_objects() if issubclass(type(item), asyncio.Task) and not item.done()]
        lines = [line for task in tasks for line in task_stack(task)]
        os.write(file.fileno(), "\n".join([*lines, ""]).encode() + STACKS_END)

    signal.signal(STACKS_SIGNAL, write_tasks)
    faulthandler.register(STACKS_SIGNAL, file, all_threads=True, chain=True)


def task_stack(task: asyncio.Task[Any]) -> list[str]:
    """The chain of awaits of a task, outermost first."""
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
    """The pids of all descendants of a process; empty on a system without /proc."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the process has ended
            for number in map(int, children.read_text().split()):
                found += (number, *descendants(number))
    return found


def command(pid: int) -> str:
    """The pid and command line of a process; empty if it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return f"{pid}: {words[:500].replace(bytes(1), b' ').decode(errors='replace')}" if words else ""


def print_slowest(durations: list[tuple[float, str]]) -> None:
    """Print the slowest tests to stderr, one to a line; OPENAGENTIC_TEST_SLOWEST sets how many (default 0)."""
    slowest = sorted(durations, reverse=True)[: int(os.environ.get("OPENAGENTIC_TEST_SLOWEST", "0"))]
    lines = [f"slow {took_s:7.1f} s  {name}" for took_s, name in slowest]
    if lines:
        # The leading line break ends the row of dots, so that a search anchored at line starts finds the first row.
        print("", *lines, sep="\n", file=sys.stderr, flush=True)


def print_flaky(outcomes: Iterable[Outcome]) -> None:
    """Print the failures of a module whose tests passed when they ran again, to stderr."""
    for outcome in outcomes:
        if outcome.is_bad:
            print(f"\nflaky  {outcome.name} failed once, then passed\n{outcome.text}", file=sys.stderr, flush=True)


def leftovers() -> list[str]:
    """Describe the threads and child processes that do not end in time; children only on a system with /proc."""
    deadline = time.monotonic() + PATIENCE_S
    threads = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    commands = []
    for number in children.read_text().split() if children.exists() else ():
        with contextlib.suppress(OSError):  # the process has ended
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
    """A sort key for a module's run time: its place among the long ones, otherwise the size of its source."""
    name = module_name(suite)
    place = ORDER.index(name) if name in ORDER else len(ORDER)
    return -place, os.path.getsize(sys.modules[name].__file__ or os.devnull)


def spread(found: unittest.TestSuite) -> unittest.TestSuite:
    """Distribute the discovered modules over all cores if the system has fork."""
    modules = [part for part in found if part.countTestCases()]
    # Three per core: a test that waits for a process or a clock leaves its core idle.
    return Spread(modules, 3 * (os.cpu_count() or 1)) if hasattr(os, "fork") else unittest.TestSuite(modules)
