"""Python processes that start fast: a zygote (a fresh interpreter) imports what the command needs and forks once for each.

The forks share nothing with the process of the test, just like separate interpreters. In the large size, on systems other
than Linux, and if an environment variable changes how Python itself starts, each process is a real interpreter.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .size import LARGE

ROOT = str(Path(__file__).parents[1])
# A shell command for scripts that need the standard library only. It starts in a quarter of the time.
PLAIN_PYTHON = f"{shlex.quote(sys.executable)} -I -S"
# The private methods of Popen overridden below are the same in these versions; later ones use real interpreters.
_QUICK = hasattr(os, "pidfd_open") and sys.version_info < (3, 15) and not LARGE


class Process(subprocess.Popen[Any]):
    """A command that is killed if its `with` block raises: Popen would wait for it, possibly for ever."""

    def __exit__(self, kind: type[BaseException] | None, *failure: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, *failure)


class Python(Process):
    """`python3 -m MODULE ...` or `python3 -c SCRIPT ...`; with `start_new_session`, a terminal on stdin becomes its own.

    `settings` are those of Popen, except `preexec_fn` and `pass_fds`.
    """

    _ended: int | None = None  # a pidfd, readable once the fork has ended; None for a real interpreter

    def __init__(self, *arguments: str, **settings: Any) -> None:
        super().__init__([sys.executable, *arguments], **settings)

    def _execute_child(self, args: list[str], *plan: Any) -> None:
        cwd, env, pipes, new_session = plan[4], plan[5], plan[9:15], plan[20]
        env = dict(os.environ if env is None else env)
        if not _QUICK or _read_at_start(env) != _read_at_start(os.environ):
            take = _take_terminal if new_session else None
            super()._execute_child(args, plan[0], take, *plan[2:])  # type: ignore[misc]
            return
        self._zygote = find_zygote()
        request = {"arguments": args[1:], "cwd": os.fspath(cwd or os.getcwd()), "env": env, "new_session": new_session}
        fds = [number if fd == -1 else fd for number, fd in enumerate((pipes[0], pipes[3], pipes[5]))]
        self.pid = _ask(self._zygote, request, fds)[0]
        self._child_created = True
        self._ended = os.pidfd_open(self.pid)
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._ended is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        if not select.select([self._ended], (), (), 0 if wait_flags & os.WNOHANG else None)[0]:
            return 0, 0
        os.close(self._ended)
        pid, status = _ask(self._zygote, {"wait": self.pid})
        return pid, status

    def _internal_poll(self, _deadstate: int | None = None, **_: Any) -> int | None:
        if self.returncode is None and self._ended is None:
            return super()._internal_poll(_deadstate)  # type: ignore[misc,no-any-return]
        lock = self._waitpid_lock  # type: ignore[attr-defined]
        if self.returncode is None and lock.acquire(blocking=False):  # otherwise another thread is waiting for it
            try:
                pid, status = self._try_wait(os.WNOHANG) if self.returncode is None else (0, 0)
                if pid == self.pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                lock.release()
        return self.returncode


def run_python(*arguments: str, input: Any = None, timeout: float = 120, **settings: Any) -> Any:
    """Run such a process to its end and return its `CompletedProcess`, with stdout and stderr captured."""
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Python(*arguments, **streams, **settings) as python:
        out, err = python.communicate(input, timeout=timeout)
    return subprocess.CompletedProcess(python.args, python.returncode, out, err)


def contract_python(case: Any, script: str, *arguments: str) -> Python:
    """Start a process; a store's contract test uses this function as its `python` method."""
    pipe = subprocess.PIPE
    return Python("-c", script, *arguments, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that Python reads only at startup, so that a fork would ignore them."""
    names = ("PYTHON", "LC_", "LANG")
    return {name: text for name, text in env.items() if name.startswith(names) and name != "PYTHONPATH"}


def _take_terminal() -> None:
    import fcntl
    import termios

    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


_zygotes: dict[int, socket.socket] = {}  # keyed by the pid of the client; a fork inherits the sockets of its ancestors


def find_zygote() -> socket.socket:
    """Return this process's socket to its zygote, creating the zygote on first use; it ends with this process.

    It is forked from the zygote of an ancestor if there is one; otherwise it is a new interpreter.
    """
    if (zygote := _zygotes.get(os.getpid())) is not None:
        return zygote
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with other:
        if _zygotes:
            socket.send_fds(next(iter(_zygotes.values())), [b'{"another": true}'], [other.fileno()])
        else:
            env = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
            other.set_inheritable(True)
            command = [sys.executable, "-c", _SERVE, ROOT, str(other.fileno())]
            os.waitpid(os.posix_spawn(sys.executable, command, env), 0)
    _zygotes[os.getpid()] = own
    atexit.register(own.close)
    return own


def begin_zygote() -> None:
    """Create the zygote before this process forks, so that no fork has to start an interpreter."""
    if _QUICK:
        find_zygote()


def _ask(zygote: socket.socket, request: Mapping[str, Any], fds: list[int] | None = None) -> Any:
    """Send a request to the zygote and return its answer. Raise `ConnectionError` if it has ended.

    Each request has its own socket pair for the answer: threads send requests concurrently, and so may a garbage collection
    that interrupts this function.
    """
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with own:
        with other:
            socket.send_fds(zygote, [json.dumps(request).encode()], [other.fileno(), *(fds or ())])
        answer = own.recv(1000)
    if not answer:
        raise ConnectionError("the zygote has ended")
    return json.loads(answer)


_SERVE = """
import atexit, fcntl, gc, importlib, json, os, pkgutil, runpy, socket, sys, termios, threading
if os.fork():
    os._exit(0)  # not a child of the test's process: some tests look for leftover children
root, number = sys.argv[1:]
sys.path[0] = root
import asyncio, unittest
import openagentic_sdk.assemble, openagentic_sdk.cli.commands, openagentic_sdk.cli.main, openagentic_sdk.server.acp.stdio
import openagentic_sdk.testing.scripted, openagentic_sdk.tools.defaults, openagentic_sdk.tools.find
import tests.stores.faulty
for package in (openagentic_sdk.cli.commands, openagentic_sdk.tools.find):
    for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(found.name)
for thing in gc.get_objects():
    if type(thing) is openagentic_sdk.ground.patterns._Pattern:
        thing.pattern  # compile it: a run uses about fifty
gc.freeze()
end = socket.socket(fileno=int(number))
pid = 1
while pid:
    try:
        data, fds, _, _ = socket.recv_fds(end, 1 << 20, 4)
    except KeyboardInterrupt:
        data = b""
    if not data:
        os._exit(0)
    request = json.loads(data)
    replies = fds.pop(0)
    if "wait" in request:
        answer = os.waitpid(request["wait"], 0)
    elif pid := os.fork():
        answer = (pid, 0)
    elif "another" in request:  # become the zygote of a fork of the client
        pid = 1
        end.close()
        end = socket.socket(fileno=replies)
        continue
    if pid:
        if "another" not in request:
            os.write(replies, json.dumps(answer).encode())
        for fd in (replies, *fds):
            os.close(fd)
os.close(replies)
end.close()
for number, fd in enumerate(fds):
    os.dup2(fd, number)
for fd in fds:
    os.close(fd)
if request["new_session"]:
    os.setsid()
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.chdir(request["cwd"])
os.environ.clear()
os.environ.update(request["env"])
flag, what, *arguments = request["arguments"]
sys.path[:1] = [os.getcwd() if flag == "-m" else "", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
    old, way = getattr(sys, name), "w" if number else "r"
    lines = number == 2 or os.isatty(number)
    new = open(number, way, encoding=old.encoding, errors=old.errors, closefd=False)
    if number:
        new.reconfigure(line_buffering=lines)
    setattr(sys, name, new)
    setattr(sys, "__%s__" % name, new)
sys.argv[:] = ["-c" if flag == "-c" else what, *arguments]
code = 0
try:
    if flag == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
except SystemExit as end:
    if not isinstance(end.code, (int, type(None))):
        raise
    code = end.code or 0
# Shut down as Python does, but without tearing down modules imported before the fork, which would take most of the time of
# a short command. Warnings about unclosed resources and coroutines never awaited are still printed.
threading._shutdown()
atexit._run_exitfuncs()
gc.collect()
try:
    sys.stdout.flush(), sys.stderr.flush()
except Exception:
    sys.exit(code)  # let Python handle a closed or broken stream
os._exit(code & 255)
"""
