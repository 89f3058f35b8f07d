"""The process in which Grep runs patterns that may not terminate: started on demand, killed when time is up."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

from ...errors import ToolError
from ...ground.clock import Clock
from ...kernel.tool import ToolContext
from ...serialization import dumps_json, loads_json
from ..files.workspace import check_cancelled
from .search import SearchAnswer

_ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
_PROGRAM = "import sys; sys.path[:0] = [sys.argv[1]]; from openagentic_sdk.tools.find.search import serve; serve()"
_LOOK_EVERY_MS = 100
_NOTHING = b'["ok", 0, []]'
MAX_BATCH_BYTES = 30_000


def batch_bytes(path: str) -> int:
    """An upper bound for the bytes of a file's entry in a batch; all entries together have at most `MAX_BATCH_BYTES`."""
    return (len(path) if path.isascii() else 6 * len(path)) + 40


def find_interpreter() -> str:
    """Find the Python with which to run the worker; in a program that embeds Python, `sys.executable` is that program.

    Raises `ToolError` if none exists.
    """
    for path in (sys.executable, os.path.join(sys.exec_prefix, "bin", "python3")):
        if path and os.path.basename(path).startswith(("python", "pypy")) and os.access(path, os.X_OK):
            return path
    raise ToolError(
        "this pattern may never finish, and no Python is available to run it in a separate process: use a simpler one"
    )


def _ended() -> ToolError:
    return ToolError("the search process ended unexpectedly: try a simpler pattern")


class OutOfTime(Exception):
    """Raised when the worker did not answer in time."""


class GrepWorker:
    """One worker process, for one query. Close it: it does not end by itself.

    Files are sent in batches and answered in the same order. Up to two batches may be under way: together they fit into a
    pipe, so that neither side ever waits for the other to read.
    """

    def __init__(self, query: dict[str, Any], deadline: float, clock: Clock) -> None:
        """Prepare the worker, which starts with the first batch.

        `query` holds the arguments of `search.Query`, `deadline` is on the scale of `monotonic`.
        """
        self._query = query
        self._deadline = deadline
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: deque[bytes] = deque()
        self._rest = b""

    def send(self, files: Sequence[tuple[str, int]]) -> None:
        """Request a batch of files, each a path and its inode number. Raises `ToolError` if the process ended or cannot
        start.
        """
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(dumps_json(files).encode("ascii") + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise _ended() from None

    def receive(self, ctx: ToolContext) -> SearchAnswer:
        """Wait for the next answer. Raises `OutOfTime`, and `ToolError` if the call is cancelled or the process ended."""
        while not self._lines:
            process = self._process
            assert process is not None and process.stdout is not None
            fd = process.stdout.fileno()
            waiting = select.poll()
            waiting.register(fd, select.POLLIN)
            while not waiting.poll(_LOOK_EVERY_MS):
                check_cancelled(ctx)
                if self._clock.monotonic() > self._deadline:
                    raise OutOfTime
            data = os.read(fd, 1 << 20)
            if not data:
                raise _ended()
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines += lines
        line = self._lines.popleft()
        if line == _NOTHING:
            return "ok", 0, []
        status, count, hits = loads_json(line)
        return status, count, hits

    def _start(self) -> subprocess.Popen[bytes]:
        # Nothing in the environment or the workspace influences the worker: no variables, no site-packages, no folder.
        self._process = subprocess.Popen(
            [find_interpreter(), "-I", "-S", "-c", _PROGRAM, _ROOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            start_new_session=True,
        )
        assert self._process.stdin is not None
        seconds = max(1, int(self._deadline - self._clock.monotonic()) + 2)
        self._process.stdin.write(dumps_json({"cpu_s": seconds, "query": self._query}).encode("ascii") + b"\n")
        return self._process

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is None:
            return
        self._process.kill()
        self._process.communicate()
        self._process = None
