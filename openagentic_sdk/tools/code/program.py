"""The host's side of running code: one process in a sandbox, and the calls that it requests.

Nothing from the process is trusted: a frame that is too long, not JSON or not a call ends it. The channel is its standard
input, a bidirectional socket (`child.py` has the frames); standard output and error are one pipe.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.resources import files
from typing import Any

from ...errors import InvalidEventError, ToolError
from ...events import ToolResult
from ...ground.frozen import mutable
from ...ground.threads import run_in_thread, settled
from ...kernel.tool import BareTool
from ...serialization import dumps_json, loads_json
from ...sessions.rebuild import result_text
from ..shell.process import CommandReport, HelperHold, Outbox, RunningCommand, ServerSpec
from .place import CodeLimits, code_place

# The process is not trusted, so whatever it sends or does not read is limited; exceeding a limit ends it.
MAX_FRAME_BYTES = 4 << 20
MAX_CALLS_BYTES = 32 << 20
MAX_VALUE_BYTES = 16 << 20
MAX_UNSENT_BYTES = 64 << 20
MAX_AT_ONCE = 16
MAX_NAME_CHARS = 256
_READ_BYTES = 64 * 1024
_MOMENT_S = 0.05

CallTool = Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]]


@mutable
class Ended:
    """The outcome of code: its exit code, its output and the output's size before any cut, the number of its calls.

    `reason` states why the code was ended, and is empty if it ended by itself.
    """

    exit_code: int = 0
    output: bytes = b""
    total_bytes: int = 0
    calls: int = 0
    reason: str = ""


async def run_program(code: str, tools: Sequence[BareTool], call: CallTool, limits: CodeLimits) -> Ended:
    """Run code to its end or to a limit; when this returns or raises, the process is gone and no call is running.

    Raises `ToolError` if this machine has no sandbox. Also raises the errors of `call`.
    """
    program = _CodeProgram(call, limits)
    with code_place(files(__package__).joinpath("child.py").read_text("utf-8"), limits) as spec:
        try:
            tool_facts = [{"name": t.name, "description": t.description, "schema": dict(t.input_schema)} for t in tools]
            await program.start(spec, _framed({"code": code, "tools": tool_facts}))
            await program.watch()
        finally:
            await program.end()
    return program.ended


def _framed(value: Any) -> bytes:
    body = dumps_json(value).encode()
    return len(body).to_bytes(4, "big") + body


class _CodeProgram:
    """One process and its calls: `start` it, `watch` it until it is over, and `end` it in any case."""

    def __init__(self, call: CallTool, limits: CodeLimits) -> None:
        self.ended = Ended()
        self._call, self._limits = call, limits
        self._loop = asyncio.get_running_loop()
        self._hold = HelperHold()
        self._command: RunningCommand | None = None
        self._channel: socket.socket | None = None
        self._received = bytearray()
        self._outbox: Outbox | None = None
        self._seen: set[int] = set()
        self._calls_bytes = 0
        self._waiting: deque[tuple[int, str, Mapping[str, Any]]] = deque()  # calls that wait for a free slot
        self._is_full = False
        self._out_r = -1
        self._output = bytearray()
        self._over = asyncio.Event()  # the program has ended, or must be ended
        self._failure: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # Tool calls in progress, whose time does not count as the code's: `_worked_s` plus the time since the first one.
        self._at_work = 0
        self._working_since = self._worked_s = 0.0

    async def start(self, spec: ServerSpec, first_frame: bytes) -> None:
        ours, theirs = socket.socketpair()
        self._out_r, out_w = os.pipe()
        with theirs:
            start = partial(self._hold.start, spec, (theirs.fileno(), out_w, out_w))
            # A start is short, and the started process must not be lost.
            started, cancelled = await settled(run_in_thread(start, name="openagentic-code-start"))
        # While this end is open here, the other end never reports the end of the output.
        os.close(out_w)
        try:
            self._command = started.result()
        except BaseException:  # also on cancellation: close the channel
            ours.close()
            raise
        os.set_blocking(self._out_r, False)
        self._loop.add_reader(self._out_r, self._read_output)
        self._command.watch(self._take_end)
        self._channel = ours
        ours.setblocking(False)
        self._outbox = Outbox(ours.fileno(), ours.send)
        self._loop.add_reader(ours, self._read_calls)
        if cancelled is not None:
            raise cancelled
        self._send(first_frame)

    async def watch(self) -> None:
        """Wait for the code's end or its time limit; the clock is stopped while a tool works for the code.

        Raises the first error with which a call failed unexpectedly.
        """
        began = self._loop.time()
        while not self._over.is_set():
            working_s = self._loop.time() - self._working_since if self._at_work else 0.0
            left_s = self._limits.seconds - (self._loop.time() - began - self._worked_s - working_s)
            if left_s <= 0 and not self._at_work:
                self._stop(
                    f"the code was ended after {self._limits.seconds:g} s, not counting its calls: do less at once"
                )
                break
            with suppress(TimeoutError):
                # At the limit while a tool works: look again soon, because the clock continues once the tool is done.
                await asyncio.wait_for(self._over.wait(), max(left_s, _MOMENT_S))
        if self._failure is not None:
            raise self._failure

    def _stop(self, reason: str) -> None:
        self.ended.reason = self.ended.reason or reason
        self._over.set()

    async def end(self) -> None:
        """Kill what still runs, end the pending calls, and read the remaining output."""
        self._over.set()  # from here on, no call starts
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        command = self._command
        try:
            if command is not None:
                if command.fileno() >= 0:
                    self._loop.remove_reader(command.fileno())
                # Before its calls are awaited: a call that ends slowly must not give the code more time.
                await run_in_thread(command.close, name="openagentic-code-end")
                while self._out_r >= 0 and self._read_output():
                    continue
            while tasks:
                _, tasks = await asyncio.wait(tasks)
        finally:
            if self._channel is not None:
                self._loop.remove_reader(self._channel)
                self._loop.remove_writer(self._channel)
                self._channel.close()
                self._channel = None
            if self._out_r >= 0:
                self._loop.remove_reader(self._out_r)
                os.close(self._out_r)
            self._hold.release(at_once=False)
            self.ended.output = bytes(self._output)

    def _take_end(self, end: CommandReport | ToolError) -> None:
        if isinstance(end, ToolError):
            self._stop(str(end))
            return
        self._over.set()
        self.ended.exit_code = end.exit_code
        if end.signal or end.exit_code > 128:
            # bwrap, like a shell, exits with 128 plus the signal that ended its child.
            number = end.signal or end.exit_code - 128
            self.ended.reason = (
                f"the code was ended by signal {number}: it exceeded its time or memory limit, or crashed"
            )

    def _read_output(self) -> bool:
        """Read one piece of the output; return whether there was one."""
        try:
            data = os.read(self._out_r, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._out_r)
            return False
        self.ended.total_bytes += len(data)
        room = self._limits.output_bytes - len(self._output)
        self._output += data[: max(0, room)]
        if room < len(data):
            self._stop(f"the code was ended because it printed more than {self._limits.output_bytes} bytes: print less")
        return True

    # --- calls -------------------------------------------------------------------------------------------------------

    def _read_calls(self) -> None:
        """Read once from the channel and begin the calls that are complete; stop reading when it is closed or misused."""
        assert self._channel is not None, "the process is watched"
        try:
            data = self._channel.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._received += data
        try:
            self._take_frames()
        except ToolError as error:
            data = b""
            self._stop(f"the code was ended because it wrote to the channel of its calls: {error}")
        if not data:  # the process has ended, or has closed the channel and can make no more calls
            self._loop.remove_reader(self._channel)

    def _take_frames(self) -> None:
        """Begin the calls of the complete frames. Raises `ToolError` for an invalid one."""
        while len(self._received) >= 4:
            length = int.from_bytes(self._received[:4], "big")
            # Before the frame has arrived: the process could otherwise announce and send without end.
            if length > MAX_FRAME_BYTES:
                raise ToolError(f"a call of {length:,} bytes exceeds the limit of {MAX_FRAME_BYTES:,}")
            if len(self._received) < 4 + length:
                break
            self._calls_bytes += length
            if self._calls_bytes > MAX_CALLS_BYTES:
                raise ToolError(f"its calls contain more than {MAX_CALLS_BYTES} bytes")
            self._waiting.append(_read_call(bytes(self._received[4 : 4 + length]), self._seen))
            del self._received[: 4 + length]
        self._begin_calls()

    def _begin_calls(self) -> None:
        """Begin the calls within the limit; while others wait, nothing more is read."""
        while self._waiting and len(self._tasks) < MAX_AT_ONCE and not self._over.is_set():
            task = self._loop.create_task(self._answer(*self._waiting.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._ended_call)
        if self._channel is None or self._over.is_set() or self._is_full == bool(self._waiting):
            return
        self._is_full = bool(self._waiting)
        # With the reader removed the socket fills, and the process blocks in its next call instead of filling our
        # memory.
        if self._is_full:
            self._loop.remove_reader(self._channel)
        else:
            self._loop.add_reader(self._channel, self._read_calls)

    def _ended_call(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._waiting:
            self._begin_calls()

    async def _answer(self, number: int, tool: str, input: Mapping[str, Any]) -> None:
        try:
            self._send(await self._outcome(number, tool, input))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - the run must end, and the caller must get the error
            self._failure = self._failure or error
            self._over.set()

    def _send(self, frame: bytes) -> None:
        if self._channel is None or self._outbox is None:
            return
        if self._outbox.send(frame) > MAX_UNSENT_BYTES:
            self._stop("the code was ended because it does not read the results of its calls")

    async def _outcome(self, number: int, tool: str, input: Mapping[str, Any]) -> bytes:
        def failed(kind: str, message: str) -> bytes:
            return _framed({"id": number, "error": {"type": kind, "message": message}})

        if self.ended.calls >= self._limits.max_calls:
            message = f"this code has made its {self._limits.max_calls} calls: continue in another call of Code"
            return failed("ToolError", message)
        self.ended.calls += 1
        self._count(1)
        try:
            result = await self._call(tool, input)
        finally:
            self._count(-1)
        if result.outcome != "ok":
            return failed(result.error_type or "ToolError", result.error_message or result_text(result))
        frame = _framed({"id": number, "value": result.output})
        if len(frame) > MAX_VALUE_BYTES:
            return failed(
                "ToolError", f"the call ran, but its result of {len(frame)} bytes is too long for code: ask for less"
            )
        return frame

    def _count(self, step: int) -> None:
        if not self._at_work:
            self._working_since = self._loop.time()
        self._at_work += step
        if not self._at_work:
            self._worked_s += self._loop.time() - self._working_since


def _read_call(body: bytes, used_numbers: set[int]) -> tuple[int, str, Mapping[str, Any]]:
    """Parse one call from an untrusted process. Raises `ToolError`."""
    try:
        frame = loads_json(body)
    except InvalidEventError as error:
        raise ToolError(str(error)) from None
    if not isinstance(frame, dict) or frame.keys() != {"id", "tool", "input"}:
        raise ToolError("the message is not a call")
    number, tool, input = frame["id"], frame["tool"], frame["input"]
    # `True` is an int for `isinstance`, and equals 1.
    if type(number) is not int or number in used_numbers or number < 0 or number > sys.maxsize:
        raise ToolError("the call's number was used before, or is invalid")
    if not isinstance(tool, str) or len(tool) > MAX_NAME_CHARS or not isinstance(input, dict):
        raise ToolError("a call has no valid name, or no arguments")
    used_numbers.add(number)
    return number, tool, input
