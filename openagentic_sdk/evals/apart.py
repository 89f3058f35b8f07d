"""Run a suite's own patterns and functions in separate processes that are killed on timeout.

A pattern may backtrack forever inside one call that Python cannot interrupt, and a function may do anything, even end its
process. A process handles one question at a time, as a line of JSON, and answers with a line; it is started for the first
question, and again after it has died.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import ToolInputError
from ..ground.schemas import validate
from ..ground.threads import error_words, run_in_thread
from ..serialization import event_from_dict
from ..tools.find.worker import find_interpreter

MAX_ANSWER_BYTES = 1 << 20
MAX_WORDS_CHARS = 2_000
_ROOT = str(Path(__file__).resolve().parents[2])
_PROGRAM = "import sys; sys.path[:0] = [sys.argv[1]]; from openagentic_sdk.evals.apart import serve; serve()"
# A process whose parent was killed ends by itself this long after the time limit of its question.
_ORPHAN_S = 5.0
_START_S = 60.0

ApartAnswer = dict[str, Any]


class Apart:
    """The processes of one eval. They do not end by themselves: call `close`."""

    def __init__(self) -> None:
        self._idle: list[_EvalProcess] = []
        self._busy: set[_EvalProcess] = set()
        self._is_closed = False

    async def ask(self, question: Mapping[str, Any], timeout_s: float) -> ApartAnswer:
        """Ask a process, an idle one or a new one; return its answer.

        The answer has `value`, and for a schema possibly `words`; after an exception, a timeout or a crash, it has
        `error_type` and `error` instead.
        """
        worker = self._idle.pop() if self._idle else _EvalProcess()
        self._busy.add(worker)
        try:
            answer = await run_in_thread(partial(worker.ask, question, timeout_s), name="openagentic-eval")
        except asyncio.CancelledError:
            worker.close()
            raise
        finally:
            self._busy.discard(worker)
            if self._is_closed:
                worker.close()
            else:
                self._idle.append(worker)
        return answer

    async def call(self, function: Callable[..., Any], argument: Any, timeout_s: float) -> ApartAnswer:
        """Call a function with events as JSON objects.

        The function runs in a process if it can be imported there by name, otherwise in a thread, abandoned on timeout.
        Returns the same as `ask`.
        """
        place = place_of(function)
        if place is not None:
            return await self.ask({"kind": "function", "place": place, "events": argument, "path": sys.path}, timeout_s)
        work = run_in_thread(partial(_called, function, argument), name="openagentic-eval", moment_s=0)
        try:
            return await asyncio.wait_for(work, timeout_s)
        except TimeoutError:
            return _too_long(timeout_s)

    def close(self) -> None:
        """End all processes, even busy ones."""
        self._is_closed = True
        for worker in (*self._idle, *self._busy):
            worker.close()


class _EvalProcess:
    """One process, started by the first question. One thread at a time may use it, and any thread may close it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, question: Mapping[str, Any], timeout_s: float) -> ApartAnswer:
        if self._process is None:
            # In a session of its own, so that Ctrl-C reaches only the eval, which then ends its processes.
            self._process = subprocess.Popen(
                [find_interpreter(), "-c", _PROGRAM, _ROOT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            # Its first line reports that it is ready: a question's timeout must not include the start.
            self._within(_START_S, b"")
        text = json.dumps({**question, "timeout_s": timeout_s}).encode("ascii") + b"\n"
        line, is_late = self._within(timeout_s, text)
        # An answer that is longer than `MAX_ANSWER_BYTES` is cut, so it has no line end.
        with contextlib.suppress(ValueError):
            if line.endswith(b"\n") and isinstance(answer := json.loads(line), dict):
                return answer
        code = self.close()
        if is_late:
            return _too_long(timeout_s)
        return {"error_type": "ProcessEnded", "error": f"its process ended with code {code} without a complete answer"}

    def _within(self, timeout_s: float, text: bytes) -> tuple[bytes, bool]:
        """Send `text`; return the line that the process answers (b"" if it ends), and whether the timeout killed it."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            process.kill()

        timer = threading.Timer(timeout_s, end)
        timer.daemon = True
        timer.start()
        line = b""
        with contextlib.suppress(OSError, ValueError):  # it died or was closed
            process.stdin.write(text)
            process.stdin.flush()
            line = process.stdout.readline(MAX_ANSWER_BYTES)
        timer.cancel()
        return line, is_late.is_set()

    def close(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill() if process.poll() is None else None
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # unwritten input is no longer needed
                pipe.close() if pipe is not None else None
        return process.returncode


def _too_long(timeout_s: float) -> ApartAnswer:
    return {"error_type": "TimeoutError", "error": f"it exceeded {timeout_s:g} s and was ended"}


# --- names of functions -------------------------------------------------------------------------------------------------


def place_of(function: Callable[..., Any]) -> dict[str, str] | None:
    """The location of a function for another process: module, file and name; None if it cannot be imported."""
    name, module = getattr(function, "__qualname__", ""), sys.modules.get(getattr(function, "__module__", ""))
    if module is None or module.__name__ == "__main__":
        return None
    target: Any = module
    for part in name.split("."):
        target = getattr(target, part, None)
    return (
        {"module": module.__name__, "file": getattr(module, "__file__", "") or "", "name": name}
        if (target is function)
        else None
    )


def load_file(path: Path, name: str) -> ModuleType:
    """Load the module in a file, under a unique name. Raises the errors of the module's own code."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "a file that ends in .py is Python code"
    module = importlib.util.module_from_spec(spec)
    # Before its code runs: a dataclass looks up the module in which it is defined.
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        with contextlib.suppress(ValueError):  # the file's code may have removed it
            sys.path.remove(str(path.parent))
    return module


# --- in the process --------------------------------------------------------------------------------------------------


def serve() -> None:
    """Answer questions until the end of the input. Output printed by functions is discarded."""
    # What a function prints must not be read as an answer, even if C code prints it.
    answers = os.fdopen(os.dup(1), "wb")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    answers.write(b"\n")
    answers.flush()
    for line in sys.stdin.buffer:
        question = json.loads(line)
        if sys.platform != "win32":
            # Nothing handles SIGALRM, so it ends the process, even in the middle of a pattern.
            signal.setitimer(signal.ITIMER_REAL, question["timeout_s"] + _ORPHAN_S)
        answers.write(json.dumps(_answer(question)).encode("ascii") + b"\n")
        answers.flush()
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_REAL, 0)


def _answer(question: Mapping[str, Any]) -> ApartAnswer:
    try:
        if question["kind"] == "patterns":
            return {"value": [re.search(pattern, text) is not None for pattern, text in question["pairs"]]}
        if question["kind"] == "schema":
            validate(question["value"], question["schema"], "the answer")
            return {"value": True}
    except ToolInputError as error:
        return {"value": False, "words": str(error)[:MAX_WORDS_CHARS]}
    except Exception as error:  # noqa: BLE001 - a schema may be anything, and its error is the answer
        return _raised(error)
    try:
        # The caller's search path, so that a name refers to the same module in both processes.
        sys.path[:] = question["path"]
        place = question["place"]
        module = sys.modules.get(place["module"])
        # A file that the caller loaded under a made-up name cannot be imported by that name.
        if module is None and not importlib.util.find_spec(place["module"]):
            module = load_file(Path(place["file"]), place["module"])
        target: Any = module or importlib.import_module(place["module"])
        for part in place["name"].split("."):
            target = getattr(target, part)
    except BaseException as error:  # noqa: BLE001 - third-party module, which may even exit the process
        return _raised(error)
    return _called(target, question["events"])


def _called(function: Callable[..., Any], events: list[Any]) -> ApartAnswer:
    """Call a function with events; return its result, converted to JSON values, or its error."""
    try:
        value = function([event_from_dict(event, strict=False) for event in events])
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        # Encoded and decoded, so that a function in a thread returns what it would return in a process.
        return {"value": json.loads(json.dumps(value))}
    except BaseException as error:  # noqa: BLE001 - even `sys.exit()` in a scorer must only fail that score
        return _raised(error)


def _raised(error: BaseException) -> ApartAnswer:
    name, words = error_words(error)
    return {"error_type": name[:80], "error": words[:MAX_WORDS_CHARS]}
