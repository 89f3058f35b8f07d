"""The process in which Grep runs patterns that may not come to an end: started when needed, killed when time is up."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ToolError
from ..serialization import dumps_json, loads_json
from .base import ToolContext
from .search import Answer
from .workspace import check_cancelled

if TYPE_CHECKING:
    import subprocess

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PROGRAM = "import sys; sys.path[:0] = [sys.argv[1]]; from openagentic_sdk.tools.search import serve; serve()"
_LOOK_EVERY_MS = 100


class OutOfTime(Exception):
    """The worker did not answer in time and was killed. `answers` came before; the file after them is the one."""

    def __init__(self, answers: list[Answer]) -> None:
        super().__init__("the worker did not answer in time")
        self.answers = answers


class GrepWorker:
    """One worker process, for one query. Close it: it does not end by itself."""

    def __init__(self, query: dict[str, Any], deadline: float) -> None:
        """`query` holds the arguments of `search.Query`, `deadline` is in the time of `time.monotonic`."""
        self._query = query
        self._deadline = deadline
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""

    def search(self, files: Sequence[tuple[str, int]], ctx: ToolContext) -> list[Answer]:
        """Search files (path, inode number), one after the other. Raises `OutOfTime`."""
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        answers: list[Answer] = []
        try:
            process.stdin.write(dumps_json(files).encode("ascii") + b"\n")
            process.stdin.flush()
            while len(answers) < len(files):
                status, count, hits = loads_json(self._line(process.stdout.fileno(), answers, ctx))
                answers.append((status, count, [tuple(hit) for hit in hits]))
        except BrokenPipeError:
            raise ToolError("the process that searches has ended unexpectedly: try a simpler pattern") from None
        return answers

    def _line(self, fd: int, answers: list[Answer], ctx: ToolContext) -> str:
        waiting = select.poll()
        waiting.register(fd, select.POLLIN)
        while b"\n" not in self._received:
            check_cancelled(ctx)
            if time.monotonic() > self._deadline:
                raise OutOfTime(answers)
            if waiting.poll(_LOOK_EVERY_MS):
                data = os.read(fd, 1 << 20)
                if not data:
                    raise BrokenPipeError
                self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line.decode("ascii")

    def _start(self) -> subprocess.Popen[bytes]:
        import subprocess

        if not sys.executable:
            raise ToolError("this pattern may take for ever and there is no Python to run it apart: use a simpler one")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, _ROOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            start_new_session=True,
        )
        assert self._process.stdin is not None
        seconds = max(1, int(self._deadline - time.monotonic()) + 2)
        self._process.stdin.write(dumps_json({"cpu_s": seconds, "query": self._query}).encode("ascii") + b"\n")
        return self._process

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is None:
            return
        self._process.kill()
        self._process.communicate()
        self._process = None
