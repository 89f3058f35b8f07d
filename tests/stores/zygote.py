"""Pythons that start fast: one new interpreter imports the stores and opens none of them, and forks for each script.

What a script runs in is as foreign to the test as a Python of its own: nothing of the test's process was ever in it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import sys
from functools import cache
from pathlib import Path
from types import TracebackType

from ..size import LARGE

# The full size starts a Python for each script all the same.
QUICK = sys.platform == "linux" and not LARGE
ROOT = str(Path(__file__).parents[2])
_SERVE = """
import json, os, signal, socket, sys
sys.path.insert(0, sys.argv[1])
import tests.stores.faulty, openagentic_sdk.sessions.store
end = socket.socket(fileno=int(sys.argv[2]))
while True:
    data, fds, _, _ = socket.recv_fds(end, 1 << 20, 3)
    if not data:
        os._exit(0)
    asked = json.loads(data)
    if "wait" in asked:
        answer = os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1])
    else:
        answer = os.fork()
    if answer == 0 and "script" in asked:
        end.close()
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
            os.close(fd)
        sys.argv[:] = ["-c", *asked["arguments"]]
        code = 1
        try:
            exec(compile(asked["script"], "<script>", "exec"), {"__name__": "__main__"})
            code = 0
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    for fd in fds:
        os.close(fd)
    end.sendall(json.dumps(answer).encode())
"""


class Script:
    """A script under way, as `subprocess.Popen` shows it."""

    def __init__(self, script: str, *arguments: str) -> None:
        ends = [os.pipe() for _ in range(3)]
        (child_in, own_in), (own_out, child_out), (own_err, child_err) = ends
        asked = {"script": script, "arguments": list(arguments)}
        self._zygote = _zygote(os.getpid())
        self.pid = int(_ask(self._zygote, asked, [child_in, child_out, child_err]))
        for fd in (child_in, child_out, child_err):
            os.close(fd)
        self.stdin = os.fdopen(own_in, "w")
        self.stdout = os.fdopen(own_out)
        self.stderr = os.fdopen(own_err)
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = int(_ask(self._zygote, {"wait": self.pid}, []))
        return self.returncode

    def communicate(self, text: str = "", timeout: float | None = None) -> tuple[str, str]:
        self.stdin.write(text)
        self.stdin.close()
        with self.stdout, self.stderr:
            found = self.stdout.read(), self.stderr.read()
        self.wait()
        return found

    def __enter__(self) -> Script:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stdout.close()
        self.stderr.close()
        with contextlib.suppress(BrokenPipeError):  # it was killed with a line on its way
            self.stdin.close()
        self.wait()


@cache
def _zygote(pid: int) -> socket.socket:
    """This process's way to its zygote, which ends with it."""
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    other.set_inheritable(True)
    command = [sys.executable, "-c", _SERVE, ROOT, str(other.fileno())]
    zygote = os.posix_spawn(sys.executable, command, dict(os.environ))
    other.close()

    def end() -> None:
        own.close()
        if os.getpid() == pid:
            os.waitpid(zygote, 0)

    atexit.register(end)
    return own


def _ask(zygote: socket.socket, asked: dict[str, object], fds: list[int]) -> object:
    socket.send_fds(zygote, [json.dumps(asked).encode()], fds)
    return json.loads(zygote.recv(1000))
