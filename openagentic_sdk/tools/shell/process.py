"""The host's side of running a command: request it from the helper process, wait for its report, end it if necessary.

One helper serves the whole process. It lives as long as any run or call holds it; after an explicit release it ends at
once, after an abandoned one a few seconds later. Nothing here forks.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from ...errors import ToolError
from ...ground.frozen import frozen, mutable

# The run's cancellation is a flag that another thread sets, so it has to be polled.
CANCEL_CHECK_S = 0.05
# More than the grace period and the helper's limit for killing together.
REPORT_LIMIT_S = 15.0
HELPER_EXIT_LIMIT_S = 5.0
# Longer than the busiest machine needs to accept a request: after that, a command may have stopped the helper.
TAKE_LIMIT_S = 30.0
HELPER_GONE = "the process that starts commands ended twice"
# The variable that identifies the processes of one call if both its supervisor and the helper were killed.
MARK = "OPENAGENTIC_SDK_CALL"

_PACKAGE_DIR = Path(__file__).parents[2]
# The package's own __init__ would load the whole library; with empty stand-ins, the helper loads only its own modules.
_BOOTSTRAP = """
import sys
for name, path in (("openagentic_sdk", sys.argv[2]), ("openagentic_sdk.tools", sys.argv[2] + "/tools")):
    sys.modules[name] = package = type(sys)(name)
    package.__path__ = [path]
from openagentic_sdk.tools.shell.helper import serve
serve(int(sys.argv[1]))
"""


@frozen(kw_only=True)
class CommandSpec:
    """A command to run, and how much of its output to keep; `_Supervisor` in `helper` documents each field."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    keep_bytes: int
    paths: tuple[str, str]
    file_bytes: int
    spool: bool = False
    sandbox: Mapping[str, Any] | None = None

    def packed(self, mark: str) -> bytes:
        fields = {**vars(self), "argv": list(self.argv), "env": {**self.env, MARK: mark}, "paths": list(self.paths)}
        # `marshal` is built in, so that the helper imports nothing for it; both ends are the same Python.
        return marshal.dumps(fields, 2)


@frozen(kw_only=True)
class ServerSpec:
    """A program with which the host itself communicates. `argv` begins with a path, `grace_s` is the time between SIGTERM
    and SIGKILL, and `sandbox` is a plan (see the module `sandbox`).
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    grace_s: float = 2.0
    sandbox: Mapping[str, Any] | None = None

    def packed(self, mark: str) -> bytes:
        return marshal.dumps({**vars(self), "argv": list(self.argv), "env": {**self.env, MARK: mark}}, 2)


@frozen
class StreamReport:
    """One stream of a command: its first and last bytes, their total number, and whether its file contains all of them."""

    head: bytes = b""
    tail: bytes = b""
    total_bytes: int = 0
    is_spooled: bool = False


@frozen
class CommandReport:
    """The outcome of a command. `ended_by` is `timeout`, `cancel`, `output_limit` or, if it ended by itself, empty.

    `signal` is 0 unless a signal ended the shell. `leftovers` counts processes that still ran after a shell that ended by
    itself, and were killed; `stubborn` counts processes that could not be killed. `cwd` is the shell's final folder, None if
    it did not report one.
    """

    exit_code: int
    signal: int
    ended_by: str
    duration_s: float
    leftovers: int
    stubborn: int
    stdout: StreamReport
    stderr: StreamReport
    cwd: str | None


class RunningCommand:
    """A running command; closing it kills it. Its `fileno` becomes readable when it has ended."""

    def __init__(self, call: socket.socket, mark: str, received: bytes = b"") -> None:
        self._owner_pid = os.getpid()
        self._call = call
        self._mark = mark
        self._received = bytearray(received)
        self.report: CommandReport | None = None

    def fileno(self) -> int:
        return self._call.fileno()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; return False on timeout. Raises `ToolError` if the command's supervisor is lost."""
        deadline = time.monotonic() + timeout_s
        while self.report is None:
            if not _is_readable(self._call, max(0.0, deadline - time.monotonic())):
                return False
            self._receive()
        return True

    def watch(self, take_end: Callable[[CommandReport | ToolError], None]) -> None:
        """Make the event loop call `take_end` once the command has ended, with its report, or with the error if its
        supervisor is lost.
        """
        loop, watched = asyncio.get_running_loop(), self.fileno()

        def look() -> None:
            end: CommandReport | ToolError | None
            try:
                end = self.report if self.wait(0) else None
            except ToolError as error:
                end = error
            if end is not None:
                # Before the callback: the descriptor is closed by then, and its number may be reused for another
                # reader.
                loop.remove_reader(watched)
                take_end(end)

        loop.add_reader(watched, look)

    def order(self, letter: bytes) -> None:
        """Send `T` (time is up: SIGTERM, then SIGKILL) or `K` (SIGKILL now)."""
        try:
            self._call.send(letter)
        except OSError:  # it has just ended
            return

    def close(self) -> None:
        """Kill the command if it still runs, wait up to `REPORT_LIMIT_S` until nothing of it is left, and release its
        socket.
        """
        try:
            # A forked child closes its copy of the socket only: the command belongs to the parent.
            if self.report is None and self._owner_pid == os.getpid():
                self.order(b"K")
                self.wait(REPORT_LIMIT_S)
        except ToolError:  # its supervisor is gone: the helper ends the remaining processes
            return
        finally:
            self._call.close()

    def _receive(self) -> None:
        try:
            data = self._call.recv(1 << 20)
        except OSError:
            data = b""
        if data:
            self._received += data
            return
        self._call.close()
        received = bytes(self._received)
        if b"\n" not in received:  # the helper ends the remaining processes, unless it was also killed
            _end_marked(self._mark)
        self.report = _parse_report(received)


class Outbox:
    """A queue of bytes for a program, written to a non-blocking pipe or socket: as many as possible at once, the rest by the
    running event loop as the program reads on.
    """

    def __init__(self, fd: int, write: Callable[[bytes | bytearray], int]) -> None:
        self._fd, self._write = fd, write
        self._unsent = bytearray()
        self._loop = asyncio.get_running_loop()

    def send(self, data: bytes) -> int:
        """Queue the bytes; return the number of bytes waiting now."""
        if not self._unsent:
            written = self._written(data)
            if written == len(data):
                return 0
            data = data[written:]
            self._loop.add_writer(self._fd, self._flush)
        self._unsent += data
        return len(self._unsent)

    def _written(self, data: bytes | bytearray) -> int:
        try:
            return self._write(data)
        except BlockingIOError:
            return 0
        except OSError:  # it no longer reads: its end shows why
            return len(data)

    def _flush(self) -> None:
        del self._unsent[: self._written(self._unsent)]
        if not self._unsent:
            self._loop.remove_writer(self._fd)


def run_command(
    spec: CommandSpec, *, timeout_s: float, is_cancelled: Callable[[], bool] = lambda: False
) -> CommandReport:
    """Run a command to its end, its time limit or its cancellation, for which `is_cancelled` is polled. Afterwards, even
    after an error, none of its processes is left but those that cannot be killed.

    Raises `ToolError` if the command cannot be started or does not end, or if its supervisor is lost.
    """
    with hold_helper() as helper:
        command = helper.start(spec)
        try:
            deadline = time.monotonic() + timeout_s
            while not command.wait(min(CANCEL_CHECK_S, max(0.0, deadline - time.monotonic()))):
                if is_cancelled():
                    command.order(b"K")
                    break
                if time.monotonic() >= deadline:
                    command.order(b"T")
                    break
            if not command.wait(REPORT_LIMIT_S):
                raise ToolError(
                    f"the command did not end within {REPORT_LIMIT_S:g} s of the request to end: look for its processes "
                    "before you continue"
                )
            assert command.report is not None
            return command.report
        finally:
            command.close()


# --- the helper ------------------------------------------------------------------------------------------------------


class _Helper:
    """A running helper process and the channel to it."""

    def __init__(self) -> None:
        self.owner_pid = os.getpid()
        self.take_limit_s = TAKE_LIMIT_S
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            command = [
                sys.executable or "python3",
                # Isolated and without `site`: a sitecustomize module or PYTHONPATH of the host must not run in the
                # helper.
                "-I",
                "-S",
                "-c",
                _BOOTSTRAP,
                str(theirs.fileno()),
                str(_PACKAGE_DIR),
            ]
            try:
                self._process = subprocess.Popen(
                    command,
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    # The helper must not keep the host's folder in use, which may be a mount or about to be deleted.
                    cwd="/",
                    # Nothing else of the host's environment: a command, which runs as the same user, can read the
                    # helper's in /proc, and would see the host's keys there.
                    env={"PATH": os.defpath},
                    # A Ctrl-C at the terminal goes to the whole process group; the host alone decides what it ends.
                    start_new_session=True,
                )
            except OSError as error:
                self._channel.close()
                raise ToolError(
                    f"commands need {command[0]} as a helper, which cannot be started: {error.strerror or error}"
                ) from error

    def is_alive(self) -> bool:
        return self.owner_pid == os.getpid() and self._process.poll() is None

    def start(self, spec: CommandSpec | ServerSpec, pipes: tuple[int, ...]) -> RunningCommand:
        """Start a command. Raises `_HelperGoneError` if the helper did not take it, so that a retry is safe, and `ToolError`
        if it cannot be started, or was taken and does not report its start.
        """
        call, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        call.settimeout(self.take_limit_s)
        try:
            with theirs:
                home = "P" if spec.sandbox is None else spec.sandbox["home"]
                socket.send_fds(self._channel, [home.encode()], [theirs.fileno(), *pipes])
            mark = os.urandom(12).hex()
            packed = spec.packed(mark)
            try:
                call.sendall(len(packed).to_bytes(8, "big") + packed)
                _, rest = _read_line(call)  # `taken`: from here on it may have run, so never resend it
            except TimeoutError:
                call.shutdown(socket.SHUT_RDWR)  # it can no longer be taken, but may just have been
                _, rest = _read_line(call)
            command = _accepted_command(call, mark, rest)
            # Weakly: a command that its caller has dropped is closed by the collector, and needs no end at exit.
            _state.commands.add(command)
            return command
        except OSError as error:
            call.close()
            raise _HelperGoneError(error.strerror or str(error)) from error
        except BaseException:  # also on Ctrl-C: close the channel
            call.close()
            raise

    def linger(self) -> None:
        """Let the helper end by itself after some idle seconds."""
        try:
            self._channel.send(b"L")
        except OSError:  # it has ended already
            return

    def stop(self, *, at_once: bool = False) -> None:
        """End the helper and wait for it; `at_once` kills the helper. No command is ended by this: each is ended through its
        own socket.
        """
        self._channel.close()
        if self.owner_pid != os.getpid():
            self._process.returncode = 0  # the parent that forked this process waits for it; avoid the warning here
            return
        if at_once:
            self._process.kill()
        try:
            self._process.wait(HELPER_EXIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _HelperGoneError(OSError):
    """The helper ended before it accepted a request."""


class HelperHold:
    """A claim on the helper. `start` restarts a helper that has died; `release` releases the claim, once."""

    def __init__(self) -> None:
        self._is_held = True
        with _lock:
            _state.holders += 1

    def start(self, spec: CommandSpec | ServerSpec, pipes: tuple[int, ...] = ()) -> RunningCommand:
        """Start a command, or a server with `pipes` for its input, output and errors, which the caller must close. Raises
        `ToolError` if it cannot be started.
        """
        try:
            helper = _live_helper()
            try:
                return helper.start(spec, pipes)
            except _HelperGoneError:
                # It was killed or stopped, or had just ended: it had not taken this command, so a retry is safe.
                return _live_helper(instead_of=helper).start(spec, pipes)
        except _HelperGoneError as error:
            raise ToolError(f"{HELPER_GONE} ({error}): try again") from error
        except OSError as error:  # the host itself lacks something, such as file descriptors
            raise ToolError(f"the command could not be started: {error.strerror or error}") from error

    def release(self, *, at_once: bool) -> None:
        """Release the claim. The last release stops the helper: now, or after some idle seconds if not `at_once`."""
        with _lock:
            if not self._is_held:
                return
            self._is_held = False
            _state.holders -= 1
            if _state.holders > 0 or _state.helper is None:
                return
            if not at_once:
                _state.helper.linger()
                return
            helper, _state.helper = _state.helper, None
        helper.stop()


@contextmanager
def hold_helper() -> Iterator[HelperHold]:
    """Hold a claim on the helper during the block."""
    hold = HelperHold()
    try:
        yield hold
    finally:
        hold.release(at_once=False)


@mutable
class _HelperState:
    holders: int = 0
    helper: _Helper | None = None
    # Only for the exit of the process: running commands are ended before the helper is.
    commands: weakref.WeakSet[RunningCommand] = field(default_factory=weakref.WeakSet)
    is_registered: bool = False


_lock = threading.Lock()
_state = _HelperState()


def _live_helper(instead_of: _Helper | None = None) -> _Helper:
    with _lock:
        helper = _state.helper
        # Several threads may find the same dead helper: only the first replaces it, the others use the new one.
        if helper is not None and (helper is instead_of or not helper.is_alive()):
            helper.stop(at_once=True)
            helper = None
        if helper is None:
            helper = _state.helper = _Helper()
            if not _state.is_registered:
                _state.is_registered = True
                # Only with the first helper: importing this module must not have an effect.
                atexit.register(stop_helper)
        return helper


def stop_helper() -> None:
    """End every running command, and the helper. A later command starts a new one."""
    for command in list(_state.commands):
        command.close()
    with _lock:
        helper, _state.helper = _state.helper, None
    if helper is not None:
        helper.stop()


# --- bytes -----------------------------------------------------------------------------------------------------------


def _is_readable(call: socket.socket, timeout_s: float) -> bool:
    # Closed by `_receive` at end of file: reading it again returns at once.
    if call.fileno() < 0:
        return True
    if sys.platform == "win32":
        raise ToolError("commands run only on a POSIX system: use the file tools instead")
    # Not `select.select`, which fails for descriptors of 1,024 and above.
    watched = select.poll()
    watched.register(call, select.POLLIN)
    return bool(watched.poll(timeout_s * 1000))


def _accepted_command(call: socket.socket, mark: str, received: bytes) -> RunningCommand:
    """The command of an accepted request; if its supervisor is already gone, waiting for it reports that."""
    try:
        line, rest = _read_line(call, received)
    except TimeoutError:
        raise ToolError(
            "the command was accepted but did not report its start, so it is being ended: check what it did"
        ) from None
    except OSError:
        return RunningCommand(call, mark)
    word, _, reason = line.partition(b" ")
    if word != b"started":
        raise ToolError(f"the command could not be started: {reason.decode('utf-8', 'replace')}")
    return RunningCommand(call, mark, rest)


def _read_line(call: socket.socket, received_before: bytes = b"") -> tuple[bytes, bytes]:
    """Read up to the end of a line; return the line, and the bytes received after it."""
    received = bytearray(received_before)
    while b"\n" not in received:
        data = call.recv(65536)
        if not data:
            raise _HelperGoneError("it closed the connection")
        received += data
    line, _, rest = bytes(received).partition(b"\n")
    return line, rest


def _end_marked(mark: str) -> None:
    """Kill every process that carries a call's mark, each stopped first so that it cannot fork."""
    # Processes inherit the environment, and others of the same user can read it in /proc; a program may drop the variable.
    needle, until = f"{MARK}={mark}".encode(), time.monotonic() + HELPER_EXIT_LIMIT_S
    while (pids := _processes_with(needle)) and time.monotonic() < until:
        # All are stopped before the first is killed: otherwise one that is still running could replace it.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        time.sleep(0.001)


def _processes_with(needle: bytes) -> list[int]:
    pids = []
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        with suppress(OSError, ValueError):  # no such process, an ended one, or another user's
            if needle in Path(f"/proc/{int(name)}/environ").read_bytes().split(b"\0"):
                pids.append(int(name))
    return pids


def _parse_report(received: bytes) -> CommandReport:
    header, newline, body = received.partition(b"\n")
    if not newline:
        raise ToolError(
            "the command's supervisor was killed, so the end of the command is unknown; its remaining processes were "
            "killed too: check what it did before repeating it"
        )
    numbers = json.loads(header)
    ends = list(accumulate(numbers["parts"], initial=0))
    parts = [body[start:end] for start, end in pairwise(ends)]
    cwd = os.fsdecode(parts[4].removesuffix(b"\n"))
    return CommandReport(
        exit_code=numbers["exit_code"],
        signal=numbers["signal"],
        ended_by=numbers["ended_by"],
        duration_s=numbers["duration_s"],
        leftovers=numbers["leftovers"],
        stubborn=numbers["stubborn"],
        stdout=StreamReport(parts[0], parts[1], numbers.get("out_bytes", 0), bool(numbers.get("out_spooled"))),
        stderr=StreamReport(parts[2], parts[3], numbers.get("err_bytes", 0), bool(numbers.get("err_spooled"))),
        cwd=cwd or None,
    )
