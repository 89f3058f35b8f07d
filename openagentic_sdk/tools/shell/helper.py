"""The small process that starts commands and ends every process that outlives its command.

`process.py` starts it beside the host, with none of the host's memory or descriptors: a service with many threads cannot
fork safely, and this process can. It forks a supervisor for each command. The supervisor is a subreaper, so every process
that the command leaves behind becomes its child, even in another session; it exits once it has no children. If the host's
end of the socket is closed, for any reason, the command is killed, so it never outlives the host.

It is loaded without the package and starts within a few milliseconds: it imports no slow module (`socket`, `signal`, `json`,
`typing`, `dataclasses`), and of this package only `sandbox`, which every command would otherwise have to import.

Protocol: the host sends one byte and a socket on the channel, then `<length> <marshal of the spec>` on that socket. The
answers are `taken` before anything runs, then `started` or `failed <reason>`, and at the end one JSON line and the captured
output. In between, the host may send `T` (time is up) or `K` (kill now). For a program that the host talks to (a server),
three more descriptors follow the socket: its input, its output and its errors.
"""

from __future__ import annotations

import _socket
import ctypes
import gc
import marshal
import os
import select
import sys
import time

from .sandbox import PLAIN, enter_namespaces, enter_sandbox, fork_into, prepare_sandbox

# Instead of importing `typing`, which alone would double the time until the first command runs; type checkers accept it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# The numbers of Linux and macOS; the `signal` module would be slow to import.
SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGPIPE, SIGTERM = 1, 2, 3, 9, 13, 15
SIGSTOP, SIGCONT = (19, 18) if sys.platform == "linux" else (17, 19)
SIGXFSZ = 25
SIG_DFL, SIG_IGN = 0, 1
F_SETPIPE_SZ = 1031
MSG_CMSG_CLOEXEC = 0x40000000
PIPE_BYTES = 1024 * 1024
TERM_GRACE_S = 0.5
# A process that detaches itself often ends a moment after its shell: that one is not a leftover.
LEFTOVER_GRACE_S = 0.15
KILL_LIMIT_S = 5.0
LINGER_S = 5.0
# A supervisor that was killed sends nothing, so the helper must check.
ORPHAN_CHECK_S = 0.5
IS_LINUX = sys.platform == "linux"

_libc = ctypes.CDLL(None, use_errno=True)
# One buffer for all reads: a new object for each piece would be allocated from the kernel and returned each time.
_buffer = bytearray(PIPE_BYTES)
_buffer_view = memoryview(_buffer)


def serve(channel_fd: int) -> None:
    """Start a supervisor for each request until the host closes the channel, or releases it and stays silent."""
    # Memory shared with forks stays shared: a garbage collection would write to every page.
    gc.disable()
    _set_signals((SIGINT, SIGTERM, SIGHUP, SIGQUIT), SIG_IGN)
    _become_subreaper()
    prepare_sandbox()
    channel = _socket.socket(fileno=channel_fd)
    supervisors: set[int] = set()
    spare = _Spare(channel_fd, PLAIN)
    lingers_until: float | None = None
    while True:
        _reap_supervisors(supervisors, spare.pid)
        # Without anything to collect, the helper sleeps until the next request and costs nothing.
        is_watchful = bool(supervisors) or lingers_until is not None
        if _readable(channel_fd, ORPHAN_CHECK_S if is_watchful else None):
            data, fds = _receive(channel)
            if not data:
                break
            lingers_until = time.monotonic() + LINGER_S if data == b"L" else None
            if fds:
                if not spare.take(fds):  # a command has killed it
                    spare = _Spare(channel_fd, data.decode())
                    spare.take(fds)
                supervisors.add(spare.pid)
                for fd in fds:
                    os.close(fd)
                spare = _Spare(channel_fd, data.decode())
        elif lingers_until is not None and not supervisors and time.monotonic() > lingers_until:
            break
    channel.close()
    spare.close()
    # The channel is closed, so the host is gone or has released the helper; each supervisor notices that at its own socket.
    while supervisors:
        _reap_supervisors(supervisors, spare.pid)
        time.sleep(0.002)


class _Spare:
    """A supervisor that is forked before its request arrives, together with the process for its command, for the `home` of
    the last request. A forked Python copies the pages that it uses one by one, which takes longer than running `true`.
    """

    def __init__(self, channel_fd: int, home: str) -> None:
        self._socket, theirs = _socket.socketpair()
        self.pid = os.fork()
        if self.pid:
            theirs.close()
            return
        status = 1
        try:
            os.close(channel_fd)
            self._socket.close()
            _become_subreaper()
            # The command's process is forked, and enters its namespaces, before anybody asks for a command.
            seed = _planted(home)
            _, fds = _receive(theirs)
            theirs.close()
            if fds:
                _Supervisor(fds[0], fds[1:], seed).run()
            status = 0
        finally:
            # Never return to the helper's loop, whatever went wrong: the host sees the socket close.
            os._exit(status)

    def take(self, fds: list[int]) -> bool:
        """Pass the descriptors of a call to the supervisor; return False if it has ended."""
        packed = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
        try:
            # Descriptors travel with at least one byte of data (unix(7)).
            self._socket.sendmsg([b"C"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)])
        except OSError:
            return False
        finally:
            self.close()
        return True

    def close(self) -> None:
        """Release the supervisor, which ends if it has no call."""
        self._socket.close()


def _receive(channel: _socket.socket) -> tuple[bytes, list[int]]:
    """Receive one request: its byte, empty at end of file, and the call's socket and a program's pipes, if included."""
    flags = MSG_CMSG_CLOEXEC if IS_LINUX else 0
    try:
        data, ancillary, _, _ = channel.recvmsg(1, _socket.CMSG_SPACE(16), flags)
    except OSError:  # the host process is gone
        return b"", []
    fds = []
    for level, kind, payload in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            for at in range(0, len(payload) - 3, 4):
                fds.append(int.from_bytes(payload[at : at + 4], sys.byteorder))
                os.set_inheritable(fds[-1], False)
    return data, fds


def _reap_supervisors(supervisors: set[int], spare_pid: int) -> None:
    """Collect supervisors that ended, and kill any that a command has stopped.

    Also kill the remaining processes of one that failed or was killed: they are children of the helper by then.
    """
    has_lost = False
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            break
        if pid == 0:
            break
        # A command may send SIGSTOP to its own supervisor; nothing would watch its time limit then.
        if os.WIFSTOPPED(status):
            if pid == spare_pid or pid in supervisors:
                send_signal(pid, SIGKILL)
        elif pid in supervisors:
            supervisors.discard(pid)
            # A supervisor that ended regularly has seen the end of all its processes; after any other end some may be
            # left.
            has_lost = has_lost or status != 0
    if has_lost:
        parents = process_parents()
        live = {*supervisors, spare_pid}
        spared = live | descendants(live, parents)
        for pid in descendants({os.getpid()}, parents) - spared:
            send_signal(pid, SIGKILL)


# --- one command -----------------------------------------------------------------------------------------------------


class _Supervisor:
    """The supervision of one command, from its spec to the end of its last process.

    The spec has `argv`, `env`, `cwd`, `keep_bytes` (of each stream, in memory), `paths` (a file for each stream, used if it
    has more), `file_bytes` (the most that a stream may write), `spool` (write the files from the start) and `sandbox`. For a
    program with `pipes` of the host it has `argv`, `env`, `cwd`, `sandbox`, and `grace_s` between SIGTERM and SIGKILL.
    """

    def __init__(self, call_fd: int, pipes: list[int], seed: _Captured | None) -> None:
        self._call_fd = call_fd
        self._pipes = pipes
        self._seed = seed
        self._captures: list[Capture] = []
        self._cwd_r = -1
        self._grace_s = TERM_GRACE_S
        self._call = _socket.socket(fileno=call_fd)
        self._status: int | None = None
        self._ended_by: str | None = None
        self._kill_at: float | None = None
        self._leftovers = 0
        self._stubborn = 0

    def run(self) -> None:
        length = _read_exactly(self._call_fd, 8)
        body = None if length is None else _read_exactly(self._call_fd, int.from_bytes(length, "big"))
        if body is None:  # the host disconnected before its request was complete
            return
        spec = marshal.loads(body)
        # Before the first process starts: without this line, the host may safely send the request to another helper.
        self._call.sendall(b"taken\n")
        began = time.monotonic()
        try:
            self.start(spec)
        except OSError as error:
            reason = error.strerror if error.filename is None and error.strerror else str(error)
            self._call.sendall(b"failed %s\n" % reason.replace("\n", " ").encode("utf-8", "surrogateescape"))
            return
        self._call.sendall(b"started\n")
        self.watch()
        self.end_everything()
        for capture in self._captures:
            capture.drain()
        self.report(time.monotonic() - began)

    def start(self, spec: dict[str, Any]) -> None:
        plan, seed = spec["sandbox"], self._seed
        home = PLAIN if plan is None else plan["home"]
        if seed is not None and (self._pipes or seed.home != home):
            seed.give_up()
            seed = None
        if self._pipes:
            self._grace_s = spec["grace_s"]
            self._pid = Seed(home, self._pipes).grow(spec)
        else:
            seed = seed or _Captured(home)
            try:
                self._pid = seed.grow(spec)
            except BrokenPipeError:  # a command has killed the seed
                seed = _Captured(home)
                self._pid = seed.grow(spec)
            keep, limit, spool = spec["keep_bytes"], spec["file_bytes"], spec["spool"]
            self._cwd_r = seed.cwd_r
            streams = zip(seed.outputs, spec["paths"], strict=True)
            self._captures = [Capture(fd, keep, path, limit, spool) for fd, path in streams]
        # Cannot belong to another process: the pid stays in use until this supervisor waits for it.
        self._pidfd = _open_pidfd(self._pid)

    def watch(self) -> None:
        """Read output and listen to the host until the command's shell has ended or must be killed."""
        watched = select.poll()
        for fd in (self._call_fd, self._pidfd, *(capture.fd for capture in self._captures)):
            if fd >= 0:
                watched.register(fd, select.POLLIN)
        by_fd = {capture.fd: capture for capture in self._captures}
        while self._status is None and not self.must_kill():
            for fd, _ in watched.poll(self.poll_ms()):
                if fd in by_fd:
                    self._read(by_fd[fd], watched)
                elif fd == self._call_fd:
                    self.obey(watched)
            self.reap()

    def poll_ms(self) -> int | None:
        if self._kill_at is not None:
            # Rounded up: a poll of 0 ms would return at once, again and again, in the last millisecond.
            return max(0, int((self._kill_at - time.monotonic()) * 1000)) + 1
        # Without a pidfd nothing wakes the poll when a command ends that keeps its output open: look every 10 ms.
        return None if self._pidfd >= 0 else 10

    def must_kill(self) -> bool:
        return self._kill_at is not None and time.monotonic() >= self._kill_at

    def _read(self, capture: Capture, watched: select.poll) -> None:
        if not capture.read():
            watched.unregister(capture.fd)
        if capture.is_over_limit and self._ended_by is None:
            self._ended_by, self._kill_at = "output_limit", time.monotonic()

    def obey(self, watched: select.poll) -> None:
        try:
            order = self._call.recv(1)
        except OSError:
            order = b""
        if order == b"T" and self._ended_by is None:
            self._ended_by, self._kill_at = "timeout", time.monotonic() + self._grace_s
            self.terminate_all()
        # `K`, or end of file: the host has closed the call or has died.
        elif order != b"T":
            self._ended_by, self._kill_at = self._ended_by or "cancel", time.monotonic()
        if not order:
            watched.unregister(self._call_fd)

    def reap(self) -> bool:
        """Collect ended children; return whether any are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._pid:
                self._status = status

    def end_everything(self) -> None:
        """Give the command's remaining processes a moment to end, then kill them for at most `KILL_LIMIT_S`."""
        if not self.must_kill():
            self.wait_for_leftovers()
        if not self.reap():
            return
        if self._ended_by is None:
            # Counted only if the command ended by itself: of a command that is being killed, everything is left over.
            self._leftovers = len(self.tree())
        # Killed again and again: a process may have forked between the listing and its own SIGSTOP.
        gives_up_at = time.monotonic() + KILL_LIMIT_S
        while self.reap() and time.monotonic() < gives_up_at:
            self.kill_all()
            time.sleep(0.001)
        # The rest belong to another user (through sudo) or are stuck in the kernel: they cannot be killed, so report them.
        self._stubborn = len(self.tree()) if self.reap() else 0

    def wait_for_leftovers(self) -> None:
        until = time.monotonic() + LEFTOVER_GRACE_S
        while self.reap() and time.monotonic() < until:
            for capture in self._captures:
                capture.drain()
            # An order, or the end of the host: the remaining processes are killed without further patience.
            if _readable(self._call_fd, 0.005):
                return

    def tree(self) -> set[int]:
        if not IS_LINUX:
            return {self._pid}
        return descendants({os.getpid()}, process_parents())

    def kill_all(self) -> None:
        """Kill all processes, stopping them first: a stopped process cannot fork while the list is processed."""
        stopped: set[int] = set()
        # Until nothing new appears: a process that was listed before it stopped may have had time to fork.
        while fresh := self.tree() - stopped:
            for pid in fresh:
                send_signal(pid, SIGSTOP)
            stopped |= fresh
            if not IS_LINUX:
                break
        for pid in stopped:
            send_signal(pid, SIGKILL)
        if not IS_LINUX:
            send_signal(-self._pid, SIGKILL)

    def terminate_all(self) -> None:
        for pid in self.tree():
            send_signal(pid, SIGTERM)
            # Until it continues, a stopped process acts on no signal but SIGKILL.
            send_signal(pid, SIGCONT)

    def report(self, duration_s: float) -> None:
        status = self._status
        signal_number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else 0
        # As bash reports it: 128 plus the signal.
        code = (
            os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else 128 + (signal_number or SIGKILL)
        )
        parts: list[bytes | bytearray] = [b""] * 5
        numbers = {
            "exit_code": code,
            "signal": signal_number,
            "leftovers": self._leftovers,
            "stubborn": self._stubborn,
        }
        if self._captures:
            out, err = self._captures
            try:
                cwd = os.read(self._cwd_r, 65536)
            except BlockingIOError:
                cwd = b""
            parts = [out.head, out.tail, err.head, err.tail, cwd]
            numbers |= {"out_bytes": out.total, "out_spooled": int(out.is_spooled)}
            numbers |= {"err_bytes": err.total, "err_spooled": int(err.is_spooled)}
        fields = ", ".join(f'"{name}": {value}' for name, value in numbers.items())
        lengths = ", ".join(str(len(part)) for part in parts)
        header = f'{fields}, "ended_by": "{self._ended_by or ""}", "duration_s": {duration_s:.6f}, "parts": [{lengths}]'
        try:
            # JSON by hand: all values are numbers or fixed words, and the `json` module is slow to import.
            self._call.sendall(b"{%s}\n" % header.encode("ascii") + b"".join(map(bytes, parts)))
        except OSError:  # the host process is gone: nobody waits for the report
            return


class Capture:
    """One stream of output: its first and last bytes in memory and, once it exceeds these, up to `file_bytes` in a file."""

    def __init__(self, fd: int, keep_bytes: int, path: str, file_bytes: int, spool: bool) -> None:
        self.fd = fd
        self.head = bytearray()
        self.tail = bytearray()
        self.total = 0
        self._keep_bytes = keep_bytes
        self._tail_bytes = keep_bytes // 2
        self._path = path
        self._file_bytes = file_bytes
        self._file = -1
        self.is_file_lost = False
        self._is_cut = False
        os.set_blocking(fd, False)
        if spool:
            self._open_file()

    @property
    def is_spooled(self) -> bool:
        return self._file >= 0 and not self.is_file_lost

    @property
    def is_over_limit(self) -> bool:
        return self.total > self._file_bytes

    def read(self) -> bool:
        """Read one piece from the pipe; return False at end of file."""
        try:
            count = os.readv(self.fd, [_buffer])
        except BlockingIOError:
            return True
        self._take(_buffer_view[:count])
        return count > 0

    def drain(self) -> None:
        """Read what is available without waiting, in at most 64 reads."""
        # Bounded: a background process that writes as fast as this reads would never let it end.
        for _ in range(64):
            try:
                count = os.readv(self.fd, [_buffer])
            except BlockingIOError:
                return
            if count == 0:
                return
            self._take(_buffer_view[:count])

    def _take(self, data: memoryview) -> None:
        room = self._file_bytes - self.total
        self.total += len(data)
        if self.total <= self._keep_bytes:
            self.head += data
            self._save(data)
            return
        # The file begins with what was only in memory so far; from now on both are written.
        if self._file < 0 and not self.is_file_lost:
            self._open_file()
            self._save(self.head)
        self._save(data[: max(0, room)])
        self._keep(data)

    def _save(self, data: memoryview | bytearray) -> None:
        if self._file < 0 or self.is_file_lost:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:  # the disk is full: the command continues, and the part in memory is reported
            self.is_file_lost = True

    def _keep(self, data: memoryview) -> None:
        head_bytes = self._keep_bytes - self._tail_bytes
        if not self._is_cut:
            self._is_cut = True
            whole = self.head + data
            self.head, data = whole[:head_bytes], memoryview(whole)[head_bytes:]
        if len(data) >= self._tail_bytes:
            self.tail = bytearray(data[len(data) - self._tail_bytes :])
            return
        self.tail += data
        if len(self.tail) > self._tail_bytes:
            del self.tail[: len(self.tail) - self._tail_bytes]

    def _open_file(self) -> None:
        # The folder may be writable for the command: it must not be able to prepare a link at this name.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._file = os.open(self._path, flags, 0o600)
        except OSError:
            self.is_file_lost = True


# --- starting --------------------------------------------------------------------------------------------------------


class Seed:
    """A process that waits for the command that it is to become.

    The command's `streams` (input, output, errors) are closed in this process. `cwd_w` is the pipe to which the shell writes
    its folder at the end, or -1.
    """

    def __init__(self, home: str, streams: list[int], cwd_w: int = -1) -> None:
        self.home = home
        spec_r, self._spec_w = os.pipe()
        self._failure_r, failure_w = os.pipe()
        uid, gid = os.geteuid(), os.getegid()
        self.pid = fork_into(home)
        if self.pid == 0:
            os.close(self._spec_w)
            _become_command(home, (uid, gid), spec_r, streams, cwd_w, failure_w)
        for fd in (spec_r, failure_w, cwd_w, *streams):
            if fd >= 0:
                os.close(fd)

    def grow(self, spec: dict[str, Any]) -> int:
        """Turn the process into the command; return its pid once the command runs. Raises OSError with the reason if it
        cannot be started, and `BrokenPipeError` if the process ended before it received the spec.
        """
        # Written piece by piece: the spec may exceed the capacity of the pipe.
        rest, is_gone = memoryview(marshal.dumps(spec, 2)), False
        try:
            while rest:
                rest = rest[os.write(self._spec_w, rest) :]
        except BrokenPipeError:
            is_gone = True
        os.close(self._spec_w)
        reason = b""
        # The command's end of this pipe closes on exec: end of file without a reason means that it runs.
        while piece := os.read(self._failure_r, 4096):
            reason += piece
        os.close(self._failure_r)
        if reason:
            os.waitpid(self.pid, 0)
            raise OSError(reason.decode("utf-8", "replace"))
        if is_gone:
            os.waitpid(self.pid, 0)
            raise BrokenPipeError(f"process {self.pid} ended before it received its command")
        return self.pid

    def give_up(self) -> None:
        """End the process without using it."""
        send_signal(self.pid, SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._spec_w)
        os.close(self._failure_r)


class _Captured(Seed):
    """A seed that sends its output and its final working folder to this process."""

    def __init__(self, home: str) -> None:
        out_r, out_w = _wide_pipe()
        err_r, err_w = _wide_pipe()
        self.outputs = (out_r, err_r)
        self.cwd_r, cwd_w = os.pipe()
        os.set_blocking(self.cwd_r, False)
        super().__init__(home, [os.open(os.devnull, os.O_RDONLY), out_w, err_w], cwd_w)


def _planted(home: str) -> _Captured | None:
    """Create a seed; None if that fails, since the later attempt for the command then fails, too, and reports the reason."""
    try:
        return _Captured(home)
    except OSError:
        return None


def _become_command(
    home: str, owner: tuple[int, int], spec_r: int, streams: list[int], cwd_w: int, failure_w: int
) -> NoReturn:
    try:
        if home != PLAIN:
            enter_namespaces(*owner)
        _prepare_command(streams)
        pieces = []
        while piece := os.read(spec_r, 1 << 20):
            pieces.append(piece)
        if not pieces:  # closed without a command: there is nothing to run
            os._exit(0)
        os.close(spec_r)
        spec = marshal.loads(b"".join(pieces))
        if cwd_w >= 0:
            _follow_shell(spec, cwd_w)
        plan = spec["sandbox"]
        # First outside the sandbox, so that a folder that does not exist is reported as such; inside, the plan changes to
        # it again.
        os.chdir(spec["cwd"])
        argv = [*(enter_sandbox(plan) if plan is not None else ()), *spec["argv"]]
        os.execve(argv[0], argv, spec["env"])
    except BaseException as error:  # noqa: BLE001
        # No error may unwind into the supervisor's code: this process belongs to the command.
        os.write(failure_w, f"{error}".encode("utf-8", "surrogateescape")[:4000] or b"it could not be started")
    os._exit(127)


def _prepare_command(streams: list[int]) -> None:
    # A process group of its own: where the system has no subreaper, it is killed as a whole.
    os.setsid()
    if IS_LINUX:
        # A second safeguard: if the supervisor is killed, the command dies even before the helper notices.
        _libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    # Python ignores some signals, and the helper further ones; the command starts with none ignored.
    _set_signals((SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGXFSZ), SIG_DFL)
    for target, source in enumerate(streams):
        os.dup2(source, target)


def _follow_shell(spec: dict[str, Any], cwd_w: int) -> None:
    """Make bash report its working directory at exit, by a start file that also unsets the variable that names it.

    The file comes through BASH_ENV so that bash receives the command itself byte for byte as approved.
    """
    # A pipe and not a file: nothing is left behind, and no other process can change it before bash reads it.
    preamble_r, preamble_w = os.pipe()
    preamble = b"unset BASH_ENV; trap 'builtin pwd -P 2>/dev/null >&%d' EXIT; exec %d<&-\n" % (cwd_w, preamble_r)
    os.write(preamble_w, preamble)
    os.close(preamble_w)
    for fd in (preamble_r, cwd_w):
        os.set_inheritable(fd, True)
    spec["env"]["BASH_ENV"] = f"/dev/fd/{preamble_r}"


# --- processes -------------------------------------------------------------------------------------------------------


def process_parents() -> dict[int, int]:
    """The pid of each process in /proc, except zombies, with that of its parent."""
    parents = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb", 0) as file:
                # The name in parentheses may contain anything, even parentheses.
                fields = file.read(4096).rpartition(b")")[2].split()
        except OSError:  # it ended in the meantime
            continue
        # A zombie cannot be killed and does nothing; its parent only has to collect it.
        if len(fields) > 1 and fields[0] not in (b"Z", b"X"):
            parents[int(name)] = int(fields[1])
    return parents


def descendants(roots: set[int], parents: dict[int, int]) -> set[int]:
    """Every process below `roots`, excluding these."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    below: set[int] = set()
    waiting = list(roots)
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            if pid not in below and pid not in roots:
                below.add(pid)
                waiting.append(pid)
    return below


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process, which may have ended or changed its user by now."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _open_pidfd(pid: int) -> int:
    """A descriptor that becomes readable when the process ends; -1 if not supported (before Linux 5.3)."""
    try:
        return os.pidfd_open(pid) if IS_LINUX else -1
    except OSError:
        return -1


def _become_subreaper() -> None:
    if IS_LINUX:
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _set_signals(numbers: tuple[int, ...], disposition: int) -> None:
    # The C function, because the signal module would double the start time of this process.
    _libc.signal.restype = ctypes.c_void_p
    for number in numbers:
        _libc.signal(number, ctypes.c_void_p(disposition))


# --- bytes -----------------------------------------------------------------------------------------------------------


def _readable(fd: int, timeout_s: float | None) -> bool:
    watched = select.poll()
    watched.register(fd, select.POLLIN)
    return bool(watched.poll(None if timeout_s is None else timeout_s * 1000))


def _wide_pipe() -> tuple[int, int]:
    read_end, write_end = os.pipe()
    if IS_LINUX:
        _libc.fcntl(read_end, F_SETPIPE_SZ, PIPE_BYTES)  # refused beyond a user's quota: then the pipe is only smaller
    return read_end, write_end


def _read_exactly(fd: int, count: int) -> bytes | None:
    pieces = []
    while count > 0:
        piece = os.read(fd, count)
        if not piece:
            return None
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
